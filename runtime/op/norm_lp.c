/* Normalisations without parameters: LpNormalization (to length 1), MeanVarianceNormalization and
 * LRN (local response normalisation across channels, Krizhevsky et al., 2012).
 *
 * A zero vector stays zero in LpNormalization, and gets a zero gradient. The first two have their
 * gradients composed in f32 and rounded once. */
#include "runtime/op/rules.h"

static const AttrRow lp_attrs[] = {
    ATTR(LpNormParams, axis, "axis", INT, .def_int = -1),
    ATTR(LpNormParams, p, "p", INT, .def_int = 2, .min_int = 1, .max_int = 2),
    ATTR_END,
};
static const AttrRow mean_variance_attrs[] = {
    ATTR(MeanVarianceParams, axes, "axes", INTS),
    ATTR_END,
};
static const AttrRow lrn_attrs[] = {
    ATTR(LrnParams, size, "size", INT, .required = true),
    ATTR(LrnParams, alpha, "alpha", FLOAT, .def_float = 1e-4f),
    ATTR(LrnParams, beta, "beta", FLOAT, .def_float = 0.75f),
    ATTR(LrnParams, bias, "bias", FLOAT, .def_float = 1),
    ATTR_END,
};

static mpr_status infer_lp(InferCtx *c)
{
    const LpNormParams *p = c->n->params;
    int axis;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    if (op_shape(c, 0)->rank > 0) TRY(mpri_infer_axis(c, p->axis, op_shape(c, 0)->rank, &axis));
    return mpri_op_infer_same(c);
}

static const int64_t usual_axes[] = {0, 2, 3};

static Ints axes_of(const MeanVarianceParams *p)
{
    return p->axes.n ? p->axes : (Ints){3, usual_axes};
}

static mpr_status infer_mean_variance(InferCtx *c)
{
    Ints axes = axes_of(c->n->params);
    int at[MPRI_MAX_RANK];
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    if (op_shape(c, 0)->rank >= 0)
        TRY(mpri_op_axes(c, axes.n, axes.v, op_shape(c, 0)->rank, at));
    return mpri_op_infer_same(c);
}

static mpr_status check_lrn(InferCtx *c, int x)
{
    const LrnParams *p = c->n->params;
    if (p->size < 1) return mpri_op_shape_error(c, x, "size must be 1 or more", p->size);
    return mpri_op_check_rank(c, x, 2, MPRI_MAX_RANK);
}

static mpr_status infer_lrn(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(check_lrn(c, 0));
    return mpri_op_infer_same(c);
}

static mpr_status infer_lrn_grad(InferCtx *c)
{
    DType t;
    TRY(mpri_op_common_type(c, 0, 2, TS_FLOAT, &t));
    TRY(mpri_op_expect_shape(c, 0, op_shape(c, 1), "cotangent"));
    TRY(check_lrn(c, 1));
    return mpri_infer_set(c, 0, t, op_shape(c, 1));
}

/* ---- gradients ---- */

static Value *wide(GradCtx *c, Value *v)
{
    return mpri_build_cast(c->b, v, mpri_op_wide(grad_in(c, 0)->dtype));
}
static Value *mul(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Mul, a, b); }
static Value *sub(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Sub, a, b); }
static Value *divide(GradCtx *c, Value *a, Value *b)
{
    return mpri_op_grad_binary(c, OP_Div, a, b);
}

/* a, and 0 where the divisor is 0. */
static Value *unless_zero(GradCtx *c, Value *divisor, Value *a)
{
    if (!divisor || !a) return NULL;
    Value *zero = mpri_op_grad_zero(c, divisor);
    return mpri_build3(c->b, OP_Where, NULL, mpri_op_grad_binary(c, OP_Equal, divisor, zero), zero,
                       a);
}

static Value *sign_of(GradCtx *c, Value *x)
{
    Builder *b = c->b;
    Value *zero = mpri_op_grad_zero(c, x), *one = mpri_build_scalar(b, x->dtype, 1);
    Value *minus = mpri_build_scalar(b, x->dtype, -1);
    Value *below =
        mpri_build3(b, OP_Where, NULL, mpri_op_grad_binary(c, OP_Less, x, zero), minus, zero);
    return mpri_build3(b, OP_Where, NULL, mpri_op_grad_binary(c, OP_Greater, x, zero), one, below);
}

static mpr_status finish(GradCtx *c, Value *dx)
{
    c->dx[0] = dx ? mpri_build_cast(c->b, dx, grad_in(c, 0)->dtype) : NULL;
    return mpri_op_grad_done(c);
}

/* (dy - d|x|/dx * sum(dy y)) / |x|, where d|x|/dx is y for p = 2 and sign(x) for p = 1. */
static mpr_status grad_lp(GradCtx *c)
{
    const LpNormParams *p = c->n->params;
    Value *x = wide(c, grad_in(c, 0)), *dy = wide(c, c->dy[0]);
    if (!x || !dy) return mpri_op_grad_done(c);
    int n = x->shape.rank > 0;
    int64_t axis = p->axis < 0 ? p->axis + x->shape.rank : p->axis;
    ReduceParams kept = {.keepdims = 1, .noop_with_empty_axes = 1};
    Value *axes = mpri_build_i64s(c->b, n, &axis);
    Value *norm = mpri_build2(c->b, p->p == 1 ? OP_ReduceL1 : OP_ReduceL2, &kept, x, axes);
    Value *y = unless_zero(c, norm, divide(c, x, norm));
    Value *dot = mpri_build2(c->b, OP_ReduceSum, &kept, mul(c, dy, y), axes);
    Value *slope = p->p == 1 ? sign_of(c, x) : y;
    return finish(c, unless_zero(c, norm, divide(c, sub(c, dy, mul(c, slope, dot)), norm)));
}

/* With m, s the mean and deviation, d = s + 1e-9 and x' = x - m:
 *   (dy - avg(dy)) / d - x' avg(dy x') / (s d^2), the second term 0 where s is 0. */
static mpr_status grad_mean_variance(GradCtx *c)
{
    Ints axes = axes_of(c->n->params);
    Value *x = wide(c, grad_in(c, 0)), *dy = wide(c, c->dy[0]);
    if (!x || !dy) return mpri_op_grad_done(c);
    int n = (int)axes.n;
    Value *from = sub(c, x, mpri_op_grad_reduce(c, OP_ReduceMean, x, n, axes.v));
    Value *var = mpri_op_grad_reduce(c, OP_ReduceMean, mul(c, from, from), n, axes.v);
    Value *s = mpri_op_grad_unary(c, OP_Sqrt, var);
    if (!s) return mpri_op_grad_done(c);
    Value *e = mpri_op_grad_scalar(c, s, (double)MPRI_MEAN_VARIANCE_EPSILON);
    Value *d = mpri_op_grad_binary(c, OP_Add, s, e);
    Value *flat = sub(c, dy, mpri_op_grad_reduce(c, OP_ReduceMean, dy, n, axes.v));
    Value *dot = mpri_op_grad_reduce(c, OP_ReduceMean, mul(c, dy, from), n, axes.v);
    Value *slope = unless_zero(c, s, divide(c, divide(c, divide(c, dot, d), d), s));
    return finish(c, sub(c, divide(c, flat, d), mul(c, from, slope)));
}

static mpr_status grad_lrn(GradCtx *c)
{
    c->dx[0] = mpri_build2(c->b, OP_LrnGrad, c->n->params, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

#define ONE_TO_ONE .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_LpNormalization = {
    MPRI_OP(LpNormalization, "", "norm"), .help = "x / |x| along one axis; a zero vector stays",
    ONE_TO_ONE, PARAMS(LpNormParams, lp_attrs), .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP,
    .infer = infer_lp, .grad = grad_lp,
};
const OpDef mpri_op_MeanVarianceNormalization = {
    MPRI_OP(MeanVarianceNormalization, "", "norm"), .help = "(x - mean) / (deviation + 1e-9)",
    ONE_TO_ONE, PARAMS(MeanVarianceParams, mean_variance_attrs), .cast_cuda = CAST_FP32,
    .cast_cpu = CAST_KEEP, .infer = infer_mean_variance, .grad = grad_mean_variance,
};
const OpDef mpri_op_LRN = {
    MPRI_OP(LRN, "", "norm"), .help = "x / (bias + alpha / size * sum of near x^2)^beta",
    ONE_TO_ONE, PARAMS(LrnParams, lrn_attrs), .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP,
    .infer = infer_lrn, .grad = grad_lrn,
};
const OpDef mpri_op_LrnGrad = {
    MPRI_OP(LrnGrad, "mpr", "norm"), .help = "(dy, x): dx", .min_in = 2, .max_in = 2, .min_out = 1,
    .max_out = 1, PARAMS(LrnParams, lrn_attrs), .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_lrn_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
