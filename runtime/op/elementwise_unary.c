/* Elementwise operators of one data input, and the gradient kernels of activations.
 *
 * Activations whose derivative is a function of the output (Relu, Tanh, Sigmoid) keep the output
 * for the backward pass, Gelu keeps its input. Kinks as PyTorch: relu'(0) = 0, abs'(0) = 0, Clip
 * shares with a bound that it meets. */
#include "runtime/op/elementwise.h"

#include <math.h>

static const AttrRow gelu_attrs[] = {
    ATTR_OUT_DTYPE(GeluParams),
    ATTR(GeluParams, approximate, "approximate", STRING, .def_string = "none",
         .choices = "none|tanh"),
    ATTR_END,
};

mpr_status mpri_op_infer_unary(InferCtx *c, TypeSet set)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 1, set, p->out_dtype, &t));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status infer_float(InferCtx *c) { return mpri_op_infer_unary(c, TS_FLOAT); }
static mpr_status infer_abs(InferCtx *c) { return mpri_op_infer_unary(c, TS_NUMBER); }
static mpr_status infer_relu(InferCtx *c) { return mpri_op_infer_unary(c, TS_FLOAT | TS_SIGNED); }

static mpr_status infer_neg(InferCtx *c)
{
    TRY(mpri_op_infer_unary(c, TS_FLOAT | TS_SIGNED));
    mpri_op_content_neg(c);
    return MPR_OK;
}

/* Clip(x, min?, max?): the bounds are scalars of the type of x. */
static mpr_status infer_clip(InferCtx *c)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 3, TS_NUMBER, p->out_dtype, &t));
    for (int k = 1; k < 3; k++) {
        Dim n;
        if (op_in(c, k) && mpri_op_elements(c, k, &n) && mpri_dim_const(n) && n != 1)
            return mpri_op_shape_error(c, k, "elements of a bound of Clip, allowed 1", n);
    }
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

/* dy and the saved tensor have one shape; the gradient has the type of dy. */
mpr_status mpri_op_infer_activation_grad(InferCtx *c)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "saved for the gradient"));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

/* ---- gradient rules ---- */

static mpr_status grad_neg(GradCtx *c)
{
    c->dx[0] = grad_negate(c, c->dy[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_abs(GradCtx *c)
{
    Value *x = grad_in(c, 0), *zero = mpri_op_grad_zero(c, x),
          *dzero = mpri_op_grad_zero(c, c->dy[0]);
    Value *below = grad_select(c, mpri_op_grad_binary(c, OP_Less, x, zero),
                               grad_negate(c, c->dy[0]), dzero);
    c->dx[0] = grad_select(c, mpri_op_grad_binary(c, OP_Greater, x, zero), c->dy[0], below);
    return mpri_op_grad_done(c);
}

static mpr_status grad_reciprocal(GradCtx *c)
{
    Value *y = c->n->out[0];
    c->dx[0] = grad_negate(c, grad_times(c, c->dy[0], grad_times(c, y, y)));
    return mpri_op_grad_done(c);
}

static mpr_status grad_sqrt(GradCtx *c)
{
    c->dx[0] = grad_over(c, c->dy[0], mpri_op_grad_scale(c, c->n->out[0], 2));
    return mpri_op_grad_done(c);
}

static mpr_status grad_exp(GradCtx *c)
{
    c->dx[0] = grad_times(c, c->dy[0], c->n->out[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_log(GradCtx *c)
{
    c->dx[0] = grad_over(c, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

static mpr_status grad_sin(GradCtx *c)
{
    c->dx[0] = grad_times(c, c->dy[0], mpri_op_grad_unary(c, OP_Cos, grad_in(c, 0)));
    return mpri_op_grad_done(c);
}

static mpr_status grad_cos(GradCtx *c)
{
    Value *sine = mpri_op_grad_unary(c, OP_Sin, grad_in(c, 0));
    c->dx[0] = grad_negate(c, grad_times(c, c->dy[0], sine));
    return mpri_op_grad_done(c);
}

/* 2 / sqrt(pi) * exp(-x^2) */
static mpr_status grad_erf(GradCtx *c)
{
    Value *x = grad_in(c, 0);
    Value *bell = mpri_op_grad_unary(c, OP_Exp, grad_negate(c, grad_times(c, x, x)));
    c->dx[0] = grad_times(c, c->dy[0], mpri_op_grad_scale(c, bell, M_2_SQRTPI));
    return mpri_op_grad_done(c);
}

static mpr_status grad_tanh(GradCtx *c)
{
    c->dx[0] = mpri_op_grad_binary(c, OP_TanhGrad, c->dy[0], c->n->out[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_sigmoid(GradCtx *c)
{
    c->dx[0] = mpri_op_grad_binary(c, OP_SigmoidGrad, c->dy[0], c->n->out[0]);
    return mpri_op_grad_done(c);
}

/* 1 / (1 + |x|)^2, divided twice: in f16 the square overflows from |x| = 255 on. */
static mpr_status grad_softsign(GradCtx *c)
{
    Value *x = grad_in(c, 0), *one = mpri_op_grad_scalar(c, x, 1);
    Value *d = mpri_op_grad_binary(c, OP_Add, mpri_op_grad_unary(c, OP_Abs, x), one);
    c->dx[0] = grad_over(c, grad_over(c, c->dy[0], d), d);
    return mpri_op_grad_done(c);
}

static mpr_status grad_relu(GradCtx *c)
{
    c->dx[0] = mpri_op_grad_binary(c, OP_ReluGrad, c->dy[0], c->n->out[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_gelu(GradCtx *c)
{
    const GeluParams *forward = c->n->params;
    GeluParams p = {.approximate = forward->approximate};
    c->dx[0] = mpri_build2(c->b, OP_GeluGrad, &p, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

/* x against both bounds by two comparisons: `below` the upper one, `above` the lower one. */
static Value *clip_between(GradCtx *c, OpId above, OpId below)
{
    Value *x = grad_in(c, 0), *low = grad_in(c, 1), *high = grad_in(c, 2);
    Value *over = low ? mpri_op_grad_binary(c, above, x, low) : NULL;
    Value *under = high ? mpri_op_grad_binary(c, below, x, high) : NULL;
    return over && under ? mpri_op_grad_binary(c, OP_And, over, under) : over ? over : under;
}

/* What x gets on a bound. Crossed or equal bounds leave no range to share. */
static Value *clip_shared(GradCtx *c, Value *otherwise)
{
    Value *low = grad_in(c, 1), *high = grad_in(c, 2);
    Value *half = mpri_op_grad_scale(c, c->dy[0], 0.5);
    if (!low || !high) return half;
    return grad_select(c, mpri_op_grad_binary(c, OP_Less, low, high), half, otherwise);
}

/* Between the bounds dy goes to x, outside to the bound that was taken; on a bound both get half of
 * it, as in the Max and Min that Clip is made of (torch.clamp with tensors). */
static mpr_status grad_clip(GradCtx *c)
{
    Value *x = grad_in(c, 0), *low = grad_in(c, 1), *high = grad_in(c, 2), *dy = c->dy[0];
    Value *zero = mpri_op_grad_zero(c, dy);
    if (grad_needs(c, 0) && !low && !high) c->dx[0] = dy;
    else if (grad_needs(c, 0)) {
        Value *edge = grad_select(c, clip_between(c, OP_GreaterOrEqual, OP_LessOrEqual),
                                  clip_shared(c, dy), zero);
        c->dx[0] = grad_select(c, clip_between(c, OP_Greater, OP_Less), dy, edge);
    }
    if (grad_needs(c, 2)) {
        Value *raised = low ? mpri_op_grad_binary(c, OP_Max, x, low) : x;
        Value *edge = grad_select(c, mpri_op_grad_binary(c, OP_Equal, x, high),
                                  clip_shared(c, zero), zero);
        c->dx[2] = grad_select(c, mpri_op_grad_binary(c, OP_Greater, raised, high), dy, edge);
    }
    if (grad_needs(c, 1)) {
        Value *taken = mpri_op_grad_binary(c, OP_Less, x, low);
        if (high)
            taken = mpri_op_grad_binary(c, OP_And, taken,
                                        mpri_op_grad_binary(c, OP_LessOrEqual, low, high));
        Value *edge = grad_select(c, mpri_op_grad_binary(c, OP_Equal, x, low),
                                  clip_shared(c, zero), zero);
        c->dx[1] = grad_select(c, taken, dy, edge);
    }
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define UNARY(Name, Help, Cuda, Cpu, Infer, Grad)                                                  \
    {                                                                                              \
        MPRI_OP(Name, "", "elementwise"), .help = Help, .min_in = 1, .max_in = 1, .min_out = 1,    \
        .max_out = 1, PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),                        \
        .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1, .cast_cuda = Cuda,  \
        .cast_cpu = Cpu, .infer = Infer, .grad_state = GRAD_FUNCTION, .grad = Grad,                \
    }

const OpDef mpri_op_Neg = UNARY(Neg, "-x", CAST_KEEP, CAST_KEEP, infer_neg, grad_neg);
const OpDef mpri_op_Abs = UNARY(Abs, "|x|", CAST_KEEP, CAST_KEEP, infer_abs, grad_abs);
const OpDef mpri_op_Reciprocal =
    UNARY(Reciprocal, "1 / x", CAST_FP32, CAST_KEEP, infer_float, grad_reciprocal);
const OpDef mpri_op_Sqrt =
    UNARY(Sqrt, "square root", CAST_KEEP, CAST_KEEP, infer_float, grad_sqrt);
const OpDef mpri_op_Exp = UNARY(Exp, "e^x", CAST_FP32, CAST_KEEP, infer_float, grad_exp);
const OpDef mpri_op_Log =
    UNARY(Log, "natural logarithm", CAST_FP32, CAST_KEEP, infer_float, grad_log);
const OpDef mpri_op_Sin = UNARY(Sin, "sine", CAST_KEEP, CAST_KEEP, infer_float, grad_sin);
const OpDef mpri_op_Cos = UNARY(Cos, "cosine", CAST_KEEP, CAST_KEEP, infer_float, grad_cos);
const OpDef mpri_op_Erf =
    UNARY(Erf, "error function", CAST_KEEP, CAST_KEEP, infer_float, grad_erf);
const OpDef mpri_op_Tanh =
    UNARY(Tanh, "hyperbolic tangent", CAST_KEEP, CAST_KEEP, infer_float, grad_tanh);
const OpDef mpri_op_Sigmoid =
    UNARY(Sigmoid, "1 / (1 + e^-x)", CAST_KEEP, CAST_KEEP, infer_float, grad_sigmoid);
const OpDef mpri_op_Softsign =
    UNARY(Softsign, "x / (1 + |x|)", CAST_KEEP, CAST_KEEP, infer_float, grad_softsign);
const OpDef mpri_op_Relu =
    UNARY(Relu, "max(x, 0)", CAST_KEEP, CAST_KEEP, infer_relu, grad_relu);

const OpDef mpri_op_Gelu = {
    MPRI_OP(Gelu, "", "elementwise"), .help = "x * Phi(x), by erf or by its tanh approximation",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(GeluParams, gelu_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_float,
    .grad_state = GRAD_FUNCTION, .grad = grad_gelu,
};
const OpDef mpri_op_Clip = {
    MPRI_OP(Clip, "", "elementwise"), .help = "min(max(x, low), high)",
    .min_in = 1, .max_in = 3, .min_out = 1, .max_out = 1, .optional_in = 6,
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_clip,
    .grad_state = GRAD_FUNCTION, .grad = grad_clip,
};

/* Gradient kernels are made after autocast: their types follow from the forward pass. */
#define ACTIVATION_GRAD                                                                            \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,                                          \
    .flags = OPF_INTERNAL | OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3,          \
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = mpri_op_infer_activation_grad,       \
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built"

const OpDef mpri_op_ReluGrad = {
    MPRI_OP(ReluGrad, "mpr", "elementwise"), .help = "(dy, y): dy where y > 0, else 0",
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs), ACTIVATION_GRAD,
};
const OpDef mpri_op_TanhGrad = {
    MPRI_OP(TanhGrad, "mpr", "elementwise"), .help = "(dy, y): dy * (1 - y^2)",
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs), ACTIVATION_GRAD,
};
const OpDef mpri_op_SigmoidGrad = {
    MPRI_OP(SigmoidGrad, "mpr", "elementwise"), .help = "(dy, y): dy * y * (1 - y)",
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs), ACTIVATION_GRAD,
};
const OpDef mpri_op_GeluGrad = {
    MPRI_OP(GeluGrad, "mpr", "elementwise"), .help = "(dy, x): dy * gelu'(x)",
    PARAMS(GeluParams, gelu_attrs), ACTIVATION_GRAD,
};
