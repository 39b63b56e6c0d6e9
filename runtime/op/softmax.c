/* Softmax, LogSoftmax and Hardmax over one axis, computed in f32 and rounded once. The backward pass
 * keeps the output only. */
#include "runtime/op/rules.h"

static const AttrRow softmax_attrs[] = {
    ATTR(SoftmaxParams, axis, "axis", INT, .def_int = -1),
    ATTR_OUT_DTYPE(SoftmaxParams),
    ATTR_END,
};

static mpr_status check_axis(InferCtx *c)
{
    const SoftmaxParams *p = c->n->params;
    int axis;
    if (op_shape(c, 0)->rank <= 0) return MPR_OK; /* a scalar is its own axis */
    return mpri_infer_axis(c, p->axis, op_shape(c, 0)->rank, &axis);
}

static mpr_status infer_softmax(InferCtx *c)
{
    const SoftmaxParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    TRY(check_axis(c));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status infer_softmax_grad(InferCtx *c)
{
    const SoftmaxParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "output of the forward pass"));
    TRY(check_axis(c));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status grad_by(GradCtx *c, int op)
{
    const SoftmaxParams *forward = c->n->params;
    SoftmaxParams p = {.axis = forward->axis};
    c->dx[0] = mpri_build2(c->b, op, &p, c->dy[0], c->n->out[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_softmax(GradCtx *c) { return grad_by(c, OP_SoftmaxGrad); }
static mpr_status grad_log_softmax(GradCtx *c) { return grad_by(c, OP_LogSoftmaxGrad); }

#define SOFTMAX                                                                                    \
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(SoftmaxParams, softmax_attrs),    \
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1, .cast_cuda = CAST_FP32,                   \
    .cast_cpu = CAST_KEEP,                                                                         \
    .infer = infer_softmax, .grad_state = GRAD_FUNCTION

#define SOFTMAX_GRAD                                                                               \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(SoftmaxParams, softmax_attrs),    \
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3, .cast_cuda = CAST_FIXED,   \
    .cast_cpu = CAST_FIXED, .infer = infer_softmax_grad, .grad_state = GRAD_NONE,                  \
    .grad_reason = "second derivatives are not built"

const OpDef mpri_op_Softmax = {
    MPRI_OP(Softmax, "", "softmax"),
    .help = "e^x / sum e^x along one axis; a fully masked row gives zeros",
    SOFTMAX, .grad = grad_softmax,
};
const OpDef mpri_op_LogSoftmax = {
    MPRI_OP(LogSoftmax, "", "softmax"), .help = "x - log sum e^x along one axis", SOFTMAX,
    .grad = grad_log_softmax,
};
const OpDef mpri_op_Hardmax = {
    MPRI_OP(Hardmax, "", "softmax"), .help = "1 at the first maximum along one axis, 0 elsewhere",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(SoftmaxParams, softmax_attrs),
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_softmax, .grad_state = GRAD_ZERO, .nondiff_in = 1,
};
const OpDef mpri_op_SoftmaxGrad = {
    MPRI_OP(SoftmaxGrad, "mpr", "softmax"), .help = "(dy, y): (dy - sum(dy * y)) * y", SOFTMAX_GRAD,
};
const OpDef mpri_op_LogSoftmaxGrad = {
    MPRI_OP(LogSoftmaxGrad, "mpr", "softmax"), .help = "(dy, y): dy - e^y * sum(dy)", SOFTMAX_GRAD,
};
