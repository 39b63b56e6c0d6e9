/* Gradient rules of the elementwise operators.
 *
 * Results have the broadcast shape: the autodiff pass sums them over broadcast dims. Kinks and ties
 * as PyTorch: relu'(0) = 0, abs'(0) = 0, equal extremes share evenly, Clip passes at its bounds. */
#include "runtime/op/elementwise.h"

#include <math.h>

static Value *dy0(const GradCtx *c) { return c->dy[0]; }
static Value *out0(const GradCtx *c) { return c->n->out[0]; }

static Value *mul(GradCtx *c, Value *a, Value *b) { return mpri_op_grad_binary(c, OP_Mul, a, b); }
static Value *divide(GradCtx *c, Value *a, Value *b)
{
    return mpri_op_grad_binary(c, OP_Div, a, b);
}
static Value *neg(GradCtx *c, Value *a) { return mpri_op_grad_unary(c, OP_Neg, a); }
static Value *where(GradCtx *c, Value *cond, Value *x, Value *y)
{
    return mpri_build3(c->b, OP_Where, NULL, cond, x, y);
}

mpr_status mpri_op_grad_add(GradCtx *c)
{
    for (int k = 0; k < c->n->n_in; k++)
        if (grad_needs(c, k)) c->dx[k] = dy0(c);
    return MPR_OK;
}

mpr_status mpri_op_grad_sub(GradCtx *c)
{
    if (grad_needs(c, 0)) c->dx[0] = dy0(c);
    if (grad_needs(c, 1)) c->dx[1] = neg(c, dy0(c));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_mul(GradCtx *c)
{
    Value *a = grad_in(c, 0), *b = grad_in(c, 1);
    if (grad_needs(c, 0)) c->dx[0] = mul(c, dy0(c), b);
    if (grad_needs(c, 1)) c->dx[1] = mul(c, dy0(c), a);
    return mpri_op_grad_done(c);
}

/* d(a/b)/db = -(a/b)/b, from the output, so a need not be kept. */
mpr_status mpri_op_grad_div(GradCtx *c)
{
    Value *b = grad_in(c, 1);
    if (grad_needs(c, 0)) c->dx[0] = divide(c, dy0(c), b);
    if (grad_needs(c, 1)) c->dx[1] = neg(c, mul(c, dy0(c), divide(c, out0(c), b)));
    return mpri_op_grad_done(c);
}

/* The value of a one-element constant. */
static bool scalar_constant(const Value *v, double *out)
{
    if (v->kind != VAL_CONST || !v->data || mpri_shape_elements(&v->shape) != 1) return false;
    *out = mpri_load_f64(v->dtype, v->data, 0);
    return true;
}

/* e * x^(e-1), and 0 where e is 0: x^-1 would be infinite at x = 0. NULL: the slope is 1. */
static Value *pow_base_slope(GradCtx *c, Value *x, Value *e)
{
    Builder *b = c->b;
    double v;
    if (scalar_constant(e, &v)) {
        Value *less = mpri_build_scalar(b, x->dtype, v - 1);
        if (v == 0) return mpri_op_grad_zero(c, x);
        if (v == 1) return NULL;
        if (v == 2) return mpri_op_grad_scale(c, x, 2);
        if (v == 3) return mpri_op_grad_scale(c, mul(c, x, x), 3);
        return mpri_op_grad_scale(c, mpri_op_grad_binary(c, OP_Pow, x, less), v);
    }
    Value *ex = mpri_build_cast(b, e, x->dtype), *one = mpri_build_scalar(b, x->dtype, 1);
    Value *zero = mpri_op_grad_zero(c, x), *less = mpri_op_grad_binary(c, OP_Sub, ex, one);
    Value *slope = mul(c, ex, mpri_op_grad_binary(c, OP_Pow, x, less));
    return where(c, mpri_op_grad_binary(c, OP_Equal, ex, zero), zero, slope);
}

/* y log x, and 0 where x is 0 and e >= 0. */
static Value *pow_exponent_slope(GradCtx *c, Value *x, Value *e)
{
    Value *zero = mpri_op_grad_zero(c, x), *ex = mpri_build_cast(c->b, e, x->dtype);
    Value *flat = mpri_op_grad_binary(c, OP_And, mpri_op_grad_binary(c, OP_Equal, x, zero),
                                      mpri_op_grad_binary(c, OP_GreaterOrEqual, ex, zero));
    return where(c, flat, zero, mul(c, out0(c), mpri_op_grad_unary(c, OP_Log, x)));
}

mpr_status mpri_op_grad_pow(GradCtx *c)
{
    Value *x = grad_in(c, 0), *e = grad_in(c, 1);
    if (grad_needs(c, 0)) {
        Value *slope = pow_base_slope(c, x, e);
        c->dx[0] = slope ? mul(c, dy0(c), slope) : dy0(c);
    }
    if (grad_needs(c, 1)) c->dx[1] = mul(c, dy0(c), pow_exponent_slope(c, x, e));
    return mpri_op_grad_done(c);
}

/* The inputs that equal the result share dy evenly. */
mpr_status mpri_op_grad_extremum(GradCtx *c)
{
    Node *n = c->n;
    if (n->n_in == 1) return mpri_op_grad_add(c);
    Value *count = NULL, *share, *zero = mpri_op_grad_zero(c, out0(c));
    for (int k = 0; k < n->n_in; k++) {
        Value *hit = mpri_op_grad_binary(c, OP_Equal, n->in[k], out0(c));
        hit = mpri_build_cast(c->b, hit, out0(c)->dtype);
        count = k ? mpri_op_grad_binary(c, OP_Add, count, hit) : hit;
    }
    share = divide(c, dy0(c), count);
    for (int k = 0; k < n->n_in; k++)
        if (grad_needs(c, k))
            c->dx[k] = where(c, mpri_op_grad_binary(c, OP_Equal, n->in[k], out0(c)), share, zero);
    return mpri_op_grad_done(c);
}

/* fmod: a - b * trunc(a / b), so the quotient is (a - y) / b. */
mpr_status mpri_op_grad_mod(GradCtx *c)
{
    if (grad_needs(c, 0)) c->dx[0] = dy0(c);
    if (grad_needs(c, 1)) {
        Value *whole =
            divide(c, mpri_op_grad_binary(c, OP_Sub, grad_in(c, 0), out0(c)), grad_in(c, 1));
        c->dx[1] = neg(c, mul(c, dy0(c), whole));
    }
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_where(GradCtx *c)
{
    Value *cond = grad_in(c, 0), *zero = mpri_op_grad_zero(c, dy0(c));
    if (grad_needs(c, 1)) c->dx[1] = where(c, cond, dy0(c), zero);
    if (grad_needs(c, 2)) c->dx[2] = where(c, cond, zero, dy0(c));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_neg(GradCtx *c)
{
    c->dx[0] = neg(c, dy0(c));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_abs(GradCtx *c)
{
    Value *x = grad_in(c, 0), *zero = mpri_op_grad_zero(c, x),
          *dzero = mpri_op_grad_zero(c, dy0(c));
    Value *below = where(c, mpri_op_grad_binary(c, OP_Less, x, zero), neg(c, dy0(c)), dzero);
    c->dx[0] = where(c, mpri_op_grad_binary(c, OP_Greater, x, zero), dy0(c), below);
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_reciprocal(GradCtx *c)
{
    c->dx[0] = neg(c, mul(c, dy0(c), mul(c, out0(c), out0(c))));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_sqrt(GradCtx *c)
{
    c->dx[0] = divide(c, dy0(c), mpri_op_grad_scale(c, out0(c), 2));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_exp(GradCtx *c)
{
    c->dx[0] = mul(c, dy0(c), out0(c));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_log(GradCtx *c)
{
    c->dx[0] = divide(c, dy0(c), grad_in(c, 0));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_sin(GradCtx *c)
{
    c->dx[0] = mul(c, dy0(c), mpri_op_grad_unary(c, OP_Cos, grad_in(c, 0)));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_cos(GradCtx *c)
{
    c->dx[0] = neg(c, mul(c, dy0(c), mpri_op_grad_unary(c, OP_Sin, grad_in(c, 0))));
    return mpri_op_grad_done(c);
}

/* 2 / sqrt(pi) * exp(-x^2) */
mpr_status mpri_op_grad_erf(GradCtx *c)
{
    Value *x = grad_in(c, 0);
    Value *bell = mpri_op_grad_unary(c, OP_Exp, neg(c, mul(c, x, x)));
    c->dx[0] = mul(c, dy0(c), mpri_op_grad_scale(c, bell, M_2_SQRTPI));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_tanh(GradCtx *c)
{
    c->dx[0] = mpri_op_grad_binary(c, OP_TanhGrad, dy0(c), out0(c));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_sigmoid(GradCtx *c)
{
    c->dx[0] = mpri_op_grad_binary(c, OP_SigmoidGrad, dy0(c), out0(c));
    return mpri_op_grad_done(c);
}

/* 1 / (1 + |x|)^2, divided twice: in f16 the square overflows from |x| = 255 on. */
mpr_status mpri_op_grad_softsign(GradCtx *c)
{
    Value *x = grad_in(c, 0), *one = mpri_build_scalar(c->b, x->dtype, 1);
    Value *d = mpri_op_grad_binary(c, OP_Add, mpri_op_grad_unary(c, OP_Abs, x), one);
    c->dx[0] = divide(c, divide(c, dy0(c), d), d);
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_relu(GradCtx *c)
{
    c->dx[0] = mpri_op_grad_binary(c, OP_ReluGrad, dy0(c), out0(c));
    return mpri_op_grad_done(c);
}

mpr_status mpri_op_grad_gelu(GradCtx *c)
{
    const GeluParams *forward = c->n->params;
    GeluParams p = {.approximate = forward->approximate};
    c->dx[0] = mpri_build2(c->b, OP_GeluGrad, &p, dy0(c), grad_in(c, 0));
    return mpri_op_grad_done(c);
}

/* Inside the bounds (inclusive) dy goes to x; outside, to the bound that was taken. */
mpr_status mpri_op_grad_clip(GradCtx *c)
{
    Value *x = grad_in(c, 0), *low = grad_in(c, 1), *high = grad_in(c, 2), *dy = dy0(c);
    Value *zero = mpri_op_grad_zero(c, dy);
    if (grad_needs(c, 0)) {
        Value *dx = dy;
        if (high) dx = where(c, mpri_op_grad_binary(c, OP_LessOrEqual, x, high), dx, zero);
        if (low) dx = where(c, mpri_op_grad_binary(c, OP_GreaterOrEqual, x, low), dx, zero);
        c->dx[0] = dx;
    }
    if (grad_needs(c, 2)) {
        Value *taken = high;
        taken = mpri_op_grad_binary(c, OP_Greater, low ? mpri_op_grad_binary(c, OP_Max, x, low) : x,
                                    taken);
        c->dx[2] = where(c, taken, dy, zero);
    }
    if (grad_needs(c, 1)) {
        Value *taken = mpri_op_grad_binary(c, OP_Less, x, low);
        if (high)
            taken = mpri_op_grad_binary(c, OP_And, taken,
                                        mpri_op_grad_binary(c, OP_LessOrEqual, low, high));
        c->dx[1] = where(c, taken, dy, zero);
    }
    return mpri_op_grad_done(c);
}
