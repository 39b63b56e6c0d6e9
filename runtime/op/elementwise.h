/* Shared by the elementwise families: elementwise.c, elementwise_unary.c, activation.c, math.c. */
#ifndef MPRI_OP_ELEMENTWISE_H
#define MPRI_OP_ELEMENTWISE_H

#include "runtime/op/rules.h"

extern const AttrRow mpri_op_elementwise_attrs[];

/* Output 0 has the shape of input 0, and its type out of the set or out_dtype. */
mpr_status mpri_op_infer_unary(InferCtx *c, TypeSet set);
/* Inputs dy and what was saved for the gradient, of one shape: the gradient has the type of dy. */
mpr_status mpri_op_infer_activation_grad(InferCtx *c);

#endif
