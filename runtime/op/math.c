/* Trigonometric and hyperbolic functions, Mean, rounding, sign and tests for NaN and infinity.
 *
 * Gradients of several operations run in f32 where the operands have 16 bits: x^2 overflows f16
 * from |x| = 256 on, and 1 - x^2 loses its digits near 1. Products of differences, (1 - x)(1 + x),
 * keep them. */
#include "runtime/op/elementwise.h"

static const AttrRow is_inf_attrs[] = {
    ATTR_FLAG(IsInfParams, detect_negative, "detect_negative", 1),
    ATTR_FLAG(IsInfParams, detect_positive, "detect_positive", 1),
    ATTR_END,
};

/* ---- type and shape rules ---- */

static mpr_status infer_float(InferCtx *c) { return mpri_op_infer_unary(c, TS_FLOAT); }
static mpr_status infer_number(InferCtx *c) { return mpri_op_infer_unary(c, TS_NUMBER); }

static mpr_status infer_mean(InferCtx *c)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    Shape s;
    TRY(mpri_op_mixed_type(c, 0, c->n->n_in, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_broadcast(c, 0, c->n->n_in, &s));
    return mpri_infer_set(c, 0, t, &s);
}

static mpr_status infer_test(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    return mpri_infer_set(c, 0, MPR_BOOL, op_shape(c, 0));
}

/* ---- gradient rules ---- */

static Value *wide_dy(GradCtx *c) { return mpri_op_grad_wide(c, c->dy[0]); }
static Value *wide_x(GradCtx *c) { return mpri_op_grad_wide(c, grad_in(c, 0)); }
static Value *apply(GradCtx *c, int op, Value *a) { return mpri_op_grad_unary(c, op, a); }
static Value *add(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Add, a, b); }
static Value *sub(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Sub, a, b); }
static Value *mul(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Mul, a, b); }
static Value *divide(GradCtx *c, Value *a, Value *b)
{
    return mpri_op_grad_binary(c, OP_Div, a, b);
}
static Value *one(GradCtx *c, const Value *like) { return mpri_op_grad_scalar(c, like, 1); }

/* (1 - x)(1 + x) */
static Value *one_minus_square(GradCtx *c, Value *x)
{
    return mul(c, sub(c, one(c, x), x), add(c, one(c, x), x));
}

/* 1 / cos^2, divided twice: the square of a small cosine underflows before the quotient does. */
static mpr_status grad_tan(GradCtx *c)
{
    Value *cosine = apply(c, OP_Cos, wide_x(c));
    c->dx[0] = divide(c, divide(c, wide_dy(c), cosine), cosine);
    return mpri_op_grad_done(c);
}

static mpr_status grad_asin(GradCtx *c)
{
    c->dx[0] = divide(c, wide_dy(c), apply(c, OP_Sqrt, one_minus_square(c, wide_x(c))));
    return mpri_op_grad_done(c);
}

static mpr_status grad_acos(GradCtx *c)
{
    TRY(grad_asin(c));
    c->dx[0] = apply(c, OP_Neg, c->dx[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_atan(GradCtx *c)
{
    Value *x = wide_x(c);
    c->dx[0] = divide(c, wide_dy(c), add(c, one(c, x), mul(c, x, x)));
    return mpri_op_grad_done(c);
}

static mpr_status grad_sinh(GradCtx *c)
{
    c->dx[0] = mul(c, wide_dy(c), apply(c, OP_Cosh, wide_x(c)));
    return mpri_op_grad_done(c);
}

static mpr_status grad_cosh(GradCtx *c)
{
    c->dx[0] = mul(c, wide_dy(c), apply(c, OP_Sinh, wide_x(c)));
    return mpri_op_grad_done(c);
}

static mpr_status grad_asinh(GradCtx *c)
{
    Value *x = wide_x(c);
    c->dx[0] = divide(c, wide_dy(c), apply(c, OP_Sqrt, add(c, one(c, x), mul(c, x, x))));
    return mpri_op_grad_done(c);
}

/* Two roots: their product does not overflow. */
static mpr_status grad_acosh(GradCtx *c)
{
    Value *x = wide_x(c);
    Value *below = apply(c, OP_Sqrt, sub(c, x, one(c, x))),
          *above = apply(c, OP_Sqrt, add(c, x, one(c, x)));
    c->dx[0] = divide(c, divide(c, wide_dy(c), below), above);
    return mpri_op_grad_done(c);
}

static mpr_status grad_atanh(GradCtx *c)
{
    c->dx[0] = divide(c, wide_dy(c), one_minus_square(c, wide_x(c)));
    return mpri_op_grad_done(c);
}

static mpr_status grad_mean(GradCtx *c)
{
    Value *dy = wide_dy(c);
    Value *share = divide(c, dy, mpri_op_grad_scalar(c, dy, c->n->n_in));
    for (int k = 0; k < c->n->n_in; k++)
        if (grad_needs(c, k)) c->dx[k] = share;
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define MIXED                                                                                      \
    .min_out = 1, .max_out = 1, PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),              \
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1

#define FUNCTION(Name, Help, Cuda, Grad)                                                           \
    {                                                                                              \
        MPRI_OP(Name, "", "math"), .help = Help, MIXED, .min_in = 1, .max_in = 1,                  \
        .cast_cuda = Cuda, .cast_cpu = CAST_KEEP, .infer = infer_float,                            \
        .grad_state = GRAD_FUNCTION, .grad = Grad,                                                 \
    }
#define STEP(Name, Help, Infer)                                                                    \
    {                                                                                              \
        MPRI_OP(Name, "", "math"), .help = Help, MIXED, .min_in = 1, .max_in = 1,                  \
        .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = Infer, .grad_state = GRAD_ZERO,    \
        .nondiff_in = 1,                                                                           \
    }

const OpDef mpri_op_Tan = FUNCTION(Tan, "tangent", CAST_FP32, grad_tan);
const OpDef mpri_op_Asin = FUNCTION(Asin, "arcsine", CAST_FP32, grad_asin);
const OpDef mpri_op_Acos = FUNCTION(Acos, "arccosine", CAST_FP32, grad_acos);
const OpDef mpri_op_Atan = FUNCTION(Atan, "arctangent", CAST_KEEP, grad_atan);
const OpDef mpri_op_Sinh = FUNCTION(Sinh, "hyperbolic sine", CAST_FP32, grad_sinh);
const OpDef mpri_op_Cosh = FUNCTION(Cosh, "hyperbolic cosine", CAST_FP32, grad_cosh);
const OpDef mpri_op_Asinh = FUNCTION(Asinh, "inverse of sinh", CAST_KEEP, grad_asinh);
const OpDef mpri_op_Acosh = FUNCTION(Acosh, "inverse of cosh", CAST_KEEP, grad_acosh);
const OpDef mpri_op_Atanh = FUNCTION(Atanh, "inverse of tanh", CAST_KEEP, grad_atanh);

const OpDef mpri_op_Mean = {
    MPRI_OP(Mean, "", "math"), .help = "mean of the inputs, broadcast", MIXED,
    .min_in = 1, .max_in = -1, .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST,
    .infer = infer_mean, .grad_state = GRAD_FUNCTION, .grad = grad_mean,
};

const OpDef mpri_op_Floor = STEP(Floor, "largest integer not above x", infer_float);
const OpDef mpri_op_Ceil = STEP(Ceil, "smallest integer not below x", infer_float);
const OpDef mpri_op_Round = STEP(Round, "nearest integer, halves to even", infer_float);
const OpDef mpri_op_Sign = STEP(Sign, "-1, 0 or 1; NaN stays", infer_number);

#define TEST                                                                                       \
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .flags = OPF_ELEMENTWISE,                \
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_test, .grad_state = GRAD_ZERO,   \
    .nondiff_in = 1

const OpDef mpri_op_IsNaN = {
    MPRI_OP(IsNaN, "", "math"), .help = "is x not a number?", TEST,
};
const OpDef mpri_op_IsInf = {
    MPRI_OP(IsInf, "", "math"), .help = "is x infinite, of a sign asked for?", TEST,
    PARAMS(IsInfParams, is_inf_attrs),
};
