/* Activations with parameters or pieces: rectifiers, exponential and hard ones, Softplus, Mish,
 * Swish.
 *
 * The backward pass keeps the input, and a kernel computes each derivative from it with one
 * rounding; the rectifiers that only select are rules over Where. Kinks as PyTorch: at a kink the
 * side that a comparison x > 0 (x > alpha, |x| > lambd) gives to "else" counts; HardSigmoid and
 * HardSwish have slope 0 on their left bound, and on the right one 0 and 1.
 *
 * Trap: thresholds are f32 attributes. A rule that compares a 16-bit x with one does so in f32, as
 * the forward kernel does: rounded to 16 bits the threshold would move past some x. */
#include "runtime/op/elementwise.h"

static const AttrRow slope_attrs[] = {
    ATTR_OUT_DTYPE(AlphaParams),
    ATTR(AlphaParams, alpha, "alpha", FLOAT, .def_float = 0.01f),
    ATTR_END,
};
static const AttrRow alpha_attrs[] = {
    ATTR_OUT_DTYPE(AlphaParams),
    ATTR(AlphaParams, alpha, "alpha", FLOAT, .def_float = 1),
    ATTR_END,
};
static const AttrRow selu_attrs[] = {
    ATTR_OUT_DTYPE(SeluParams),
    ATTR(SeluParams, alpha, "alpha", FLOAT, .def_float = 1.67326319217681884765625f),
    ATTR(SeluParams, gamma, "gamma", FLOAT, .def_float = 1.05070102214813232421875f),
    ATTR_END,
};
static const AttrRow elu_grad_attrs[] = {
    ATTR_OUT_DTYPE(EluGradParams),
    ATTR(EluGradParams, alpha, "alpha", FLOAT, .def_float = 1),
    ATTR(EluGradParams, gamma, "gamma", FLOAT, .def_float = 1),
    ATTR(EluGradParams, divisor, "divisor", FLOAT, .def_float = 1),
    ATTR_END,
};
static const AttrRow hard_sigmoid_attrs[] = {
    ATTR_OUT_DTYPE(HardSigmoidParams),
    ATTR(HardSigmoidParams, alpha, "alpha", FLOAT, .def_float = 0.2f),
    ATTR(HardSigmoidParams, beta, "beta", FLOAT, .def_float = 0.5f),
    ATTR_END,
};
static const AttrRow shrink_attrs[] = {
    ATTR_OUT_DTYPE(ShrinkParams),
    ATTR(ShrinkParams, lambd, "lambd", FLOAT, .def_float = 0.5f),
    ATTR(ShrinkParams, bias, "bias", FLOAT, .def_float = 0),
    ATTR_END,
};

/* ---- type and shape rules ---- */

static mpr_status infer_float(InferCtx *c) { return mpri_op_infer_unary(c, TS_FLOAT); }
static mpr_status infer_shrink(InferCtx *c) { return mpri_op_infer_unary(c, TS_NUMBER); }

static mpr_status infer_prelu(InferCtx *c)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 2, TS_FLOAT | TS_WIDE_INT, p->out_dtype, &t));
    TRY(mpri_op_expect_broadcast_to(c, 1, op_shape(c, 0), "slope"));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

/* The gate and the value have one shape. */
static mpr_status infer_swiglu(InferCtx *c)
{
    const AlphaParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "value"));
    Shape s = *op_shape(c, 0);
    if (s.rank == MPRI_RANK_UNKNOWN) s = *op_shape(c, 1);
    return mpri_infer_set(c, 0, t, &s);
}

/* ---- gradient rules ---- */

static Value *scalar(GradCtx *c, const Value *like, double v)
{
    return mpri_op_grad_scalar(c, like, v);
}

static Value *where(GradCtx *c, Value *cond, Value *x, Value *y)
{
    return mpri_build3(c->b, OP_Where, NULL, cond, x, y);
}

static mpr_status grad_by(GradCtx *c, int op, const void *params)
{
    c->dx[0] = mpri_build2(c->b, op, params, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

static mpr_status grad_alpha(GradCtx *c, int op)
{
    const AlphaParams *forward = c->n->params;
    return grad_by(c, op, &(AlphaParams){.alpha = forward->alpha});
}

static mpr_status grad_leaky_relu(GradCtx *c) { return grad_alpha(c, OP_LeakyReluGrad); }
static mpr_status grad_swish(GradCtx *c) { return grad_alpha(c, OP_SwishGrad); }
static mpr_status grad_hard_swish(GradCtx *c) { return grad_by(c, OP_HardSwishGrad, NULL); }
static mpr_status grad_softplus(GradCtx *c) { return grad_by(c, OP_SoftplusGrad, NULL); }
static mpr_status grad_mish(GradCtx *c) { return grad_by(c, OP_MishGrad, NULL); }

static mpr_status grad_hard_sigmoid(GradCtx *c)
{
    const HardSigmoidParams *forward = c->n->params;
    HardSigmoidParams p = {.alpha = forward->alpha, .beta = forward->beta};
    return grad_by(c, OP_HardSigmoidGrad, &p);
}

static mpr_status grad_elu(GradCtx *c)
{
    const AlphaParams *f = c->n->params;
    return grad_by(c, OP_EluGrad, &(EluGradParams){.alpha = f->alpha, .gamma = 1, .divisor = 1});
}

static mpr_status grad_selu(GradCtx *c)
{
    const SeluParams *f = c->n->params;
    EluGradParams p = {.alpha = f->alpha, .gamma = f->gamma, .divisor = 1};
    return grad_by(c, OP_EluGrad, &p);
}

static mpr_status grad_celu(GradCtx *c)
{
    const AlphaParams *f = c->n->params;
    EluGradParams p = {.alpha = f->alpha, .gamma = 1, .divisor = f->alpha};
    return grad_by(c, OP_EluGrad, &p);
}

static mpr_status grad_prelu(GradCtx *c)
{
    Value *x = grad_in(c, 0), *dy = c->dy[0];
    Value *right = mpri_op_grad_binary(c, OP_Greater, x, mpri_op_grad_zero(c, x));
    if (grad_needs(c, 0))
        c->dx[0] = where(c, right, dy, mpri_op_grad_binary(c, OP_Mul, dy, grad_in(c, 1)));
    if (grad_needs(c, 1))
        c->dx[1] = where(c, right, mpri_op_grad_zero(c, dy), mpri_op_grad_binary(c, OP_Mul, dy, x));
    return mpri_op_grad_done(c);
}

static mpr_status grad_thresholded_relu(GradCtx *c)
{
    const AlphaParams *p = c->n->params;
    Value *x = mpri_op_grad_wide(c, grad_in(c, 0)), *dy = c->dy[0];
    Value *right = mpri_op_grad_binary(c, OP_Greater, x, scalar(c, x, (double)p->alpha));
    c->dx[0] = where(c, right, dy, mpri_op_grad_zero(c, dy));
    return mpri_op_grad_done(c);
}

static mpr_status grad_shrink(GradCtx *c)
{
    const ShrinkParams *p = c->n->params;
    Value *x = mpri_op_grad_wide(c, grad_in(c, 0)), *dy = c->dy[0];
    Value *left = mpri_op_grad_binary(c, OP_Less, x, scalar(c, x, -(double)p->lambd));
    Value *right = mpri_op_grad_binary(c, OP_Greater, x, scalar(c, x, (double)p->lambd));
    Value *outside = mpri_op_grad_binary(c, OP_Or, left, right);
    c->dx[0] = where(c, outside, dy, mpri_op_grad_zero(c, dy));
    return mpri_op_grad_done(c);
}

/* y = swish(a) b. In 16 bits dy * b may overflow where the product with swish'(a) does not. */
static mpr_status grad_swiglu(GradCtx *c)
{
    const AlphaParams *forward = c->n->params;
    AlphaParams p = {.alpha = forward->alpha};
    Value *a = mpri_op_grad_wide(c, grad_in(c, 0)), *b = mpri_op_grad_wide(c, grad_in(c, 1)),
          *dy = mpri_op_grad_wide(c, c->dy[0]);
    if (grad_needs(c, 0))
        c->dx[0] = mpri_build2(c->b, OP_SwishGrad, &p, mpri_op_grad_binary(c, OP_Mul, dy, b), a);
    if (grad_needs(c, 1))
        c->dx[1] = mpri_op_grad_binary(c, OP_Mul, dy, mpri_build1(c->b, OP_Swish, &p, a));
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define ACTIVATION(T, rows)                                                                        \
    .min_out = 1, .max_out = 1, PARAMS(T, rows),                                                   \
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .grad_state = GRAD_FUNCTION
#define ONE_INPUT(T, rows)                                                                         \
    ACTIVATION(T, rows), .min_in = 1, .max_in = 1, .inplace = 1, .infer = infer_float,             \
        .cast_cpu = CAST_KEEP

const OpDef mpri_op_LeakyRelu = {
    MPRI_OP(LeakyRelu, "", "activation"), .help = "x where x > 0, else alpha * x",
    ONE_INPUT(AlphaParams, slope_attrs), .cast_cuda = CAST_KEEP, .grad = grad_leaky_relu,
};
const OpDef mpri_op_PRelu = {
    MPRI_OP(PRelu, "", "activation"), .help = "x where x >= 0, else slope * x",
    ACTIVATION(ElementwiseParams, mpri_op_elementwise_attrs), .min_in = 2, .max_in = 2,
    .inplace = 1, .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW, .infer = infer_prelu,
    .grad = grad_prelu,
};
const OpDef mpri_op_ThresholdedRelu = {
    MPRI_OP(ThresholdedRelu, "", "activation"), .help = "x where x > alpha, else 0",
    ONE_INPUT(AlphaParams, alpha_attrs), .cast_cuda = CAST_KEEP, .grad = grad_thresholded_relu,
};
const OpDef mpri_op_Elu = {
    MPRI_OP(Elu, "", "activation"), .help = "x where x > 0, else alpha * (e^x - 1)",
    ONE_INPUT(AlphaParams, alpha_attrs), .cast_cuda = CAST_KEEP, .grad = grad_elu,
};
const OpDef mpri_op_Selu = {
    MPRI_OP(Selu, "", "activation"), .help = "gamma * elu(x)",
    ONE_INPUT(SeluParams, selu_attrs), .cast_cuda = CAST_KEEP, .grad = grad_selu,
};
const OpDef mpri_op_Celu = {
    MPRI_OP(Celu, "", "activation"), .help = "x where x > 0, else alpha * (e^(x / alpha) - 1)",
    ONE_INPUT(AlphaParams, alpha_attrs), .cast_cuda = CAST_KEEP, .grad = grad_celu,
};
const OpDef mpri_op_HardSigmoid = {
    MPRI_OP(HardSigmoid, "", "activation"), .help = "alpha * x + beta, clamped to 0 … 1",
    ONE_INPUT(HardSigmoidParams, hard_sigmoid_attrs), .cast_cuda = CAST_KEEP,
    .grad = grad_hard_sigmoid,
};
const OpDef mpri_op_HardSwish = {
    MPRI_OP(HardSwish, "", "activation"), .help = "x * (x / 6 + 1 / 2, clamped to 0 … 1)",
    ONE_INPUT(ElementwiseParams, mpri_op_elementwise_attrs), .cast_cuda = CAST_KEEP,
    .grad = grad_hard_swish,
};
const OpDef mpri_op_Softplus = {
    MPRI_OP(Softplus, "", "activation"), .help = "log(1 + e^x)",
    ONE_INPUT(ElementwiseParams, mpri_op_elementwise_attrs), .cast_cuda = CAST_FP32,
    .grad = grad_softplus,
};
const OpDef mpri_op_Mish = {
    MPRI_OP(Mish, "", "activation"), .help = "x * tanh(softplus(x))",
    ONE_INPUT(ElementwiseParams, mpri_op_elementwise_attrs), .cast_cuda = CAST_KEEP,
    .grad = grad_mish,
};
const OpDef mpri_op_Swish = {
    MPRI_OP(Swish, "", "activation"), .help = "x * sigmoid(alpha * x)",
    ONE_INPUT(AlphaParams, alpha_attrs), .cast_cuda = CAST_KEEP, .grad = grad_swish,
};
const OpDef mpri_op_SwiGLU = {
    MPRI_OP(SwiGLU, "", "activation"), .help = "swish(a) * b",
    ACTIVATION(AlphaParams, alpha_attrs), .min_in = 2, .max_in = 2, .inplace = 3,
    .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST, .infer = infer_swiglu, .grad = grad_swiglu,
};
const OpDef mpri_op_Shrink = {
    MPRI_OP(Shrink, "", "activation"),
    .help = "x + bias below -lambd, x - bias above lambd, 0 between",
    ACTIVATION(ShrinkParams, shrink_attrs), .min_in = 1, .max_in = 1, .inplace = 1,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_shrink, .grad = grad_shrink,
};

/* Gradient kernels are made after autocast: their types follow from the forward pass. */
#define ACTIVATION_GRAD(T, rows)                                                                   \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(T, rows),                         \
    .flags = OPF_INTERNAL | OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3,          \
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = mpri_op_infer_activation_grad,       \
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built"

const OpDef mpri_op_LeakyReluGrad = {
    MPRI_OP(LeakyReluGrad, "mpr", "activation"), .help = "(dy, x): dy where x > 0, else alpha * dy",
    ACTIVATION_GRAD(AlphaParams, slope_attrs),
};
const OpDef mpri_op_EluGrad = {
    MPRI_OP(EluGrad, "mpr", "activation"), .help = "(dy, x): dy * elu'(x), also of Selu and Celu",
    ACTIVATION_GRAD(EluGradParams, elu_grad_attrs),
};
const OpDef mpri_op_HardSigmoidGrad = {
    MPRI_OP(HardSigmoidGrad, "mpr", "activation"),
    .help = "(dy, x): alpha * dy between the bounds, else 0",
    ACTIVATION_GRAD(HardSigmoidParams, hard_sigmoid_attrs),
};
const OpDef mpri_op_HardSwishGrad = {
    MPRI_OP(HardSwishGrad, "mpr", "activation"), .help = "(dy, x): dy * hardswish'(x)",
    ACTIVATION_GRAD(ElementwiseParams, mpri_op_elementwise_attrs),
};
const OpDef mpri_op_SoftplusGrad = {
    MPRI_OP(SoftplusGrad, "mpr", "activation"), .help = "(dy, x): dy * sigmoid(x)",
    ACTIVATION_GRAD(ElementwiseParams, mpri_op_elementwise_attrs),
};
const OpDef mpri_op_MishGrad = {
    MPRI_OP(MishGrad, "mpr", "activation"), .help = "(dy, x): dy * mish'(x)",
    ACTIVATION_GRAD(ElementwiseParams, mpri_op_elementwise_attrs),
};
const OpDef mpri_op_SwishGrad = {
    MPRI_OP(SwishGrad, "mpr", "activation"), .help = "(dy, x): dy * swish'(x)",
    ACTIVATION_GRAD(AlphaParams, alpha_attrs),
};
