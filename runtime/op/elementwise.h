/* Inside the elementwise families: definitions in elementwise.c and elementwise_unary.c with gradient
 * rules in elementwise_grad.c; activation.c and math.c. */
#ifndef MPRI_OP_ELEMENTWISE_H
#define MPRI_OP_ELEMENTWISE_H

#include "runtime/op/rules.h"

extern const AttrRow mpri_op_elementwise_attrs[];

/* Output 0 has the shape of input 0, and its type out of the set or out_dtype. */
mpr_status mpri_op_infer_unary(InferCtx *c, TypeSet set);
/* Inputs dy and what was saved for the gradient, of one shape: the gradient has the type of dy. */
mpr_status mpri_op_infer_activation_grad(InferCtx *c);

mpr_status mpri_op_grad_add(GradCtx *c);      /* Add, Sum */
mpr_status mpri_op_grad_sub(GradCtx *c);
mpr_status mpri_op_grad_mul(GradCtx *c);
mpr_status mpri_op_grad_div(GradCtx *c);
mpr_status mpri_op_grad_pow(GradCtx *c);
mpr_status mpri_op_grad_extremum(GradCtx *c); /* Max, Min */
mpr_status mpri_op_grad_mod(GradCtx *c);
mpr_status mpri_op_grad_where(GradCtx *c);
mpr_status mpri_op_grad_neg(GradCtx *c);
mpr_status mpri_op_grad_abs(GradCtx *c);
mpr_status mpri_op_grad_reciprocal(GradCtx *c);
mpr_status mpri_op_grad_sqrt(GradCtx *c);
mpr_status mpri_op_grad_exp(GradCtx *c);
mpr_status mpri_op_grad_log(GradCtx *c);
mpr_status mpri_op_grad_sin(GradCtx *c);
mpr_status mpri_op_grad_cos(GradCtx *c);
mpr_status mpri_op_grad_erf(GradCtx *c);
mpr_status mpri_op_grad_tanh(GradCtx *c);
mpr_status mpri_op_grad_sigmoid(GradCtx *c);
mpr_status mpri_op_grad_softsign(GradCtx *c);
mpr_status mpri_op_grad_relu(GradCtx *c);
mpr_status mpri_op_grad_gelu(GradCtx *c);
mpr_status mpri_op_grad_clip(GradCtx *c);

#endif
