/* NegativeLogLikelihoodLoss: -w[t] * x[t] over the classes of axis 1, from log-probabilities.
 * "mean" divides by the sum of the weights of the labels that count. */
#include "runtime/op/loss.h"

static const AttrRow nll_attrs[] = {
    ATTR(NllLossParams, ignore_index, "ignore_index", INT, .def_int = MPRI_NO_IGNORE),
    ATTR(NllLossParams, reduction, "reduction", STRING, .def_string = "mean",
         .choices = "mean|sum|none"),
    ATTR_END,
};
static const AttrRow nll_grad_attrs[] = {
    ATTR(NllLossGradParams, ignore_index, "ignore_index", INT, .def_int = MPRI_NO_IGNORE),
    ATTR(NllLossGradParams, reduction, "reduction", STRING, .def_string = "mean",
         .choices = "mean|sum|none"),
    ATTR(NllLossGradParams, dims, "dims", INTS, .required = true),
    ATTR_END,
};

static mpr_status infer_nll(InferCtx *c)
{
    const NllLossParams *p = c->n->params;
    const Shape scalar = op_scalar();
    Shape rows;
    DType t;
    TRY(mpri_op_common_type(c, 0, 1, TS_FLOAT, &t));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    TRY(mpri_loss_check_labels(c, 0, 1, 2, &rows));
    return mpri_infer_set(c, 0, t, p->reduction && p->reduction[0] == 'n' ? &rows : &scalar);
}

static mpr_status infer_nll_grad(InferCtx *c)
{
    const NllLossGradParams *p = c->n->params;
    Shape out;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    TRY(mpri_op_check_rank(c, 1, out.rank - 1, out.rank - 1));
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status grad_nll(GradCtx *c)
{
    const NllLossParams *forward = c->n->params;
    const Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    NllLossGradParams p = {.ignore_index = forward->ignore_index, .reduction = forward->reduction,
                           .dims = {x->shape.rank, x->shape.d}};
    Value *in[3] = {c->dy[0], grad_in(c, 1), grad_in(c, 2)};
    if (grad_needs(c, 0))
        c->dx[0] = mpri_build(c->b, OP_NllLossGrad, &p, in[2] ? 3 : 2, in, 1, NULL);
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_NegativeLogLikelihoodLoss = {
    MPRI_OP(NegativeLogLikelihoodLoss, "", "loss"),
    .help = "negative log-likelihood of log-probabilities (N,C,...) and labels (N,...)",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1, .optional_in = 4,
    PARAMS(NllLossParams, nll_attrs), .flags = OPF_LOSS, .nondiff_in = 6,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_FP32, .infer = infer_nll,
    .grad_state = GRAD_FUNCTION, .grad = grad_nll,
};
const OpDef mpri_op_NllLossGrad = {
    MPRI_OP(NllLossGrad, "mpr", "loss"),
    .help = "(dloss, labels, weights): gradient of shape dims, type of dloss",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1, .optional_in = 4,
    PARAMS(NllLossGradParams, nll_grad_attrs), .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_nll_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
