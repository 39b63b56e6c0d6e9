/* Shared by the files of the plan. */
#ifndef MPRI_EXEC_PLAN_PRIVATE_H
#define MPRI_EXEC_PLAN_PRIVATE_H

#include "runtime/exec/plan.h"

/* Type and constant shape of a value as a Tensor without data. MPR_E_SHAPE when the shape is not
 * constant, MPR_E_LIMIT when its bytes do not fit. */
mpr_status mpri_tensor_of_value(const Value *v, Tensor *out, size_t *bytes, Err *err);
/* What a kernel reported, as an error that names node, tensor, position, value and range. */
mpr_status mpri_fault_error(mpr_status status, const Node *n, const KernelCall *call, Err *err);

/* Recordings point into the memory of the plan: they go when that changes. */
void mpri_plan_forget_graphs(Plan *p);

/* Steps on the host (host_step.c). How much host memory one needs: counted into staging_bytes, and
 * the step's workspace placed there. */
mpr_status mpri_host_step_size(Plan *p, PlanStep *s, Err *err);
/* The memory for them, once. */
mpr_status mpri_host_step_memory(Plan *p, Err *err);
mpr_status mpri_host_step_run(Plan *p, PlanStep *s, Err *err);

#endif
