/* Reports on a model as text or JSON: inspect.c (model, parameters), inspect_ops.c (operators, of a
 * model or of the program), inspect_precision.c (types and
 * their reasons), inspect_plan.c (plan, memory). */
#ifndef MPRI_TRAIN_INSPECT_H
#define MPRI_TRAIN_INSPECT_H

#include "runtime/train/session.h"

typedef struct Inspect {
    mpr_context *ctx;
    mpr_model *model; /* may be NULL for operators */
    mpr_inspect_options o;
    Text out;
    Err *err;
} Inspect;

mpr_status mpri_inspect(mpr_context *ctx, mpr_model *model, mpr_inspect_what what,
                        const mpr_inspect_options *options, char **text, Err *err);
typedef struct OpCount {
    const char *name;
    const OpDef *op;
    int n;
} OpCount;

/* Operator types of the model's graph, most frequent first. */
mpr_status mpri_inspect_count_ops(Inspect *i, Arena *arena, OpCount **out, int *n_out);
mpr_status mpri_inspect_ops(Inspect *i);
mpr_status mpri_inspect_precision(Inspect *i);
mpr_status mpri_inspect_explain(Inspect *i);
/* A session with the options of the report. */
mpr_status mpri_inspect_open(Inspect *i, const char *loss, mpr_session **s, Err *err);
mpr_status mpri_inspect_plan(Inspect *i);
mpr_status mpri_inspect_memory(Inspect *i);

#endif
