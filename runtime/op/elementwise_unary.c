/* Elementwise operators of one data input, and the gradient kernels of activations.
 *
 * Activations whose derivative is a function of the output (Relu, Tanh, Sigmoid) keep the output
 * for the backward pass, Gelu keeps its input. relu'(0) = 0, as PyTorch. */
#include "runtime/op/elementwise.h"

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

/* ---- definitions ---- */

#define UNARY(Name, Help, Cuda, Cpu, Infer, Grad)                                                  \
    {                                                                                              \
        MPRI_OP(Name, "", "elementwise"), .help = Help, .min_in = 1, .max_in = 1, .min_out = 1,    \
        .max_out = 1, PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),                        \
        .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1, .cast_cuda = Cuda,  \
        .cast_cpu = Cpu, .infer = Infer, .grad_state = GRAD_FUNCTION, .grad = Grad,                \
    }

const OpDef mpri_op_Neg = UNARY(Neg, "-x", CAST_KEEP, CAST_KEEP, infer_neg, mpri_op_grad_neg);
const OpDef mpri_op_Abs = UNARY(Abs, "|x|", CAST_KEEP, CAST_KEEP, infer_abs, mpri_op_grad_abs);
const OpDef mpri_op_Reciprocal =
    UNARY(Reciprocal, "1 / x", CAST_FP32, CAST_KEEP, infer_float, mpri_op_grad_reciprocal);
const OpDef mpri_op_Sqrt =
    UNARY(Sqrt, "square root", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_sqrt);
const OpDef mpri_op_Exp = UNARY(Exp, "e^x", CAST_FP32, CAST_KEEP, infer_float, mpri_op_grad_exp);
const OpDef mpri_op_Log =
    UNARY(Log, "natural logarithm", CAST_FP32, CAST_KEEP, infer_float, mpri_op_grad_log);
const OpDef mpri_op_Sin = UNARY(Sin, "sine", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_sin);
const OpDef mpri_op_Cos = UNARY(Cos, "cosine", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_cos);
const OpDef mpri_op_Erf =
    UNARY(Erf, "error function", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_erf);
const OpDef mpri_op_Tanh =
    UNARY(Tanh, "hyperbolic tangent", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_tanh);
const OpDef mpri_op_Sigmoid =
    UNARY(Sigmoid, "1 / (1 + e^-x)", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_sigmoid);
const OpDef mpri_op_Softsign =
    UNARY(Softsign, "x / (1 + |x|)", CAST_KEEP, CAST_KEEP, infer_float, mpri_op_grad_softsign);
const OpDef mpri_op_Relu =
    UNARY(Relu, "max(x, 0)", CAST_KEEP, CAST_KEEP, infer_relu, mpri_op_grad_relu);

const OpDef mpri_op_Gelu = {
    MPRI_OP(Gelu, "", "elementwise"), .help = "x * Phi(x), by erf or by its tanh approximation",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(GeluParams, gelu_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_float,
    .grad_state = GRAD_FUNCTION, .grad = mpri_op_grad_gelu,
};
const OpDef mpri_op_Clip = {
    MPRI_OP(Clip, "", "elementwise"), .help = "min(max(x, low), high)",
    .min_in = 1, .max_in = 3, .min_out = 1, .max_out = 1, .optional_in = 6,
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_clip,
    .grad_state = GRAD_FUNCTION, .grad = mpri_op_grad_clip,
};

/* Gradient kernels are made after autocast: their types follow from the forward pass. */
#define ACTIVATION_GRAD                                                                            \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,                                          \
    .flags = OPF_INTERNAL | OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3,          \
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = mpri_op_infer_activation_grad,               \
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
