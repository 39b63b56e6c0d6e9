/* Reductions with an operation before and after the fold: norms, sums of squares and logarithms of
 * sums. Over no axes (noop_with_empty_axes) only those operations remain.
 *
 * Gradients are computed in f32 and rounded once: squares and sums leave the range of f16 long
 * before the gradient does. */
#include <math.h>

#include "runtime/op/reduce.h"

static Value *wide(GradCtx *c, Value *v)
{
    return mpri_build_cast(c->b, v, mpri_op_wide(grad_in(c, 0)->dtype));
}

static Value *mul(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Mul, a, b); }

/* The reduction `op` of x with kept dims, in the wide type. */
static Value *fold(GradCtx *c, int op, const Reduction *r, Value *x)
{
    DType t = mpri_op_wide(x->dtype);
    ReduceParams p = {.keepdims = 1, .noop_with_empty_axes = 1, .out_dtype = t == x->dtype ? 0 : t};
    return mpri_build2(c->b, op, &p, x, mpri_build_i64s(c->b, r->n, r->axes));
}

static mpr_status finish(GradCtx *c, Value *dx)
{
    c->dx[0] = dx ? mpri_build_cast(c->b, dx, grad_in(c, 0)->dtype) : NULL;
    return mpri_op_grad_done(c);
}

/* sign(x) dy, and 0 at 0. */
static mpr_status grad_l1(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *x = grad_in(c, 0), *zero = mpri_op_grad_zero(c, x);
    Value *dy = mpri_reduce_kept(c, &r, c->dy[0]), *none = mpri_op_grad_zero(c, dy);
    Value *minus = mpri_op_grad_unary(c, OP_Neg, dy);
    Value *below = mpri_build3(c->b, OP_Where, NULL, mpri_op_grad_binary(c, OP_Less, x, zero),
                               minus, none);
    Value *above = mpri_op_grad_binary(c, OP_Greater, x, zero);
    return finish(c, mpri_build3(c->b, OP_Where, NULL, above, dy, below));
}

/* dy x / |x|, and 0 for the zero vector. */
static mpr_status grad_l2(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *x = grad_in(c, 0), *dy = wide(c, mpri_reduce_kept(c, &r, c->dy[0]));
    Value *norm = fold(c, OP_ReduceL2, &r, x), *zero = norm ? mpri_op_grad_zero(c, norm) : NULL;
    Value *unit = mpri_op_grad_binary(c, OP_Div, wide(c, x), norm);
    unit = mpri_build3(c->b, OP_Where, NULL, mpri_op_grad_binary(c, OP_Equal, norm, zero), zero,
                       unit);
    return finish(c, mul(c, dy, unit));
}

static mpr_status grad_sum_square(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *dy = wide(c, mpri_reduce_kept(c, &r, c->dy[0]));
    return finish(c, mul(c, dy, mpri_op_grad_scale(c, wide(c, grad_in(c, 0)), 2)));
}

static mpr_status grad_log_sum(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *x = grad_in(c, 0), *dy = wide(c, mpri_reduce_kept(c, &r, c->dy[0]));
    Value *share = mpri_op_grad_binary(c, OP_Div, dy, fold(c, OP_ReduceSum, &r, x));
    return finish(c, mpri_op_grad_expand_like(c, share, x));
}

/* dy e^(x - y). Where nothing is above -inf, y is -inf too and the gradient is 0. */
static mpr_status grad_log_sum_exp(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *x = wide(c, grad_in(c, 0)), *dy = wide(c, mpri_reduce_kept(c, &r, c->dy[0]));
    Value *y = fold(c, OP_ReduceLogSumExp, &r, grad_in(c, 0));
    if (!y) return mpri_op_grad_done(c);
    Value *lowest = mpri_op_grad_scalar(c, y, -HUGE_VAL);
    Value *empty = mpri_op_grad_binary(c, OP_Equal, x, lowest), *zero = mpri_op_grad_zero(c, y);
    Value *share = mpri_op_grad_unary(c, OP_Exp, mpri_op_grad_binary(c, OP_Sub, x, y));
    share = mpri_build3(c->b, OP_Where, NULL, empty, zero, share);
    return finish(c, mul(c, dy, share));
}

const OpDef mpri_op_ReduceL1 = {
    MPRI_OP(ReduceL1, "", "reduce"), .help = "sum of absolute values over axes", REDUCTION,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum, .grad = grad_l1,
};
const OpDef mpri_op_ReduceL2 = {
    MPRI_OP(ReduceL2, "", "reduce"), .help = "square root of the sum of squares over axes",
    REDUCTION,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum, .grad = grad_l2,
};
const OpDef mpri_op_ReduceSumSquare = {
    MPRI_OP(ReduceSumSquare, "", "reduce"), .help = "sum of squares over axes", REDUCTION,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum,
    .grad = grad_sum_square,
};
const OpDef mpri_op_ReduceLogSum = {
    MPRI_OP(ReduceLogSum, "", "reduce"), .help = "logarithm of the sum over axes", REDUCTION,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum,
    .grad = grad_log_sum,
};
const OpDef mpri_op_ReduceLogSumExp = {
    MPRI_OP(ReduceLogSumExp, "", "reduce"),
    .help = "logarithm of the sum of exponentials over axes, without overflow", REDUCTION,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum,
    .grad = grad_log_sum_exp,
};
