/* Elementwise operators of two or more inputs: arithmetic, comparisons, logic, selection.
 *
 * Numpy broadcasting everywhere. Inputs have one type, except: the exponent of Pow may be of any
 * numeric type, and where out_dtype is set float inputs may be mixed (the kernel computes in f32).
 * Integer contents are followed because exporters compute shapes with these operators.
 *
 * Gradients have the broadcast shape: the autodiff pass sums them over broadcast dims. Equal
 * extremes share evenly, as in PyTorch. */
#include "runtime/op/elementwise.h"

const AttrRow mpri_op_elementwise_attrs[] = {ATTR_OUT_DTYPE(ElementwiseParams), ATTR_END};

static const AttrRow mod_attrs[] = {ATTR_FLAG(ModParams, fmod, "fmod", 0), ATTR_END};

/* ---- type and shape rules ---- */

static mpr_status infer_variadic(InferCtx *c, TypeSet set, DimBinary content)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    Shape s;
    TRY(mpri_op_mixed_type(c, 0, c->n->n_in, set, p->out_dtype, &t));
    TRY(mpri_op_broadcast(c, 0, c->n->n_in, &s));
    TRY(mpri_infer_set(c, 0, t, &s));
    if (content) mpri_op_content_fold(c, content);
    return MPR_OK;
}

static mpr_status infer_add(InferCtx *c) { return infer_variadic(c, TS_NUMBER, mpri_op_dim_add); }
static mpr_status infer_sub(InferCtx *c) { return infer_variadic(c, TS_NUMBER, mpri_op_dim_sub); }
static mpr_status infer_mul(InferCtx *c) { return infer_variadic(c, TS_NUMBER, mpri_op_dim_mul); }
static mpr_status infer_div(InferCtx *c) { return infer_variadic(c, TS_NUMBER, mpri_op_dim_div); }
static mpr_status infer_max(InferCtx *c) { return infer_variadic(c, TS_NUMBER, mpri_op_dim_max); }
static mpr_status infer_min(InferCtx *c) { return infer_variadic(c, TS_NUMBER, mpri_op_dim_min); }
static mpr_status infer_sum(InferCtx *c) { return infer_variadic(c, TS_FLOAT, NULL); }

static mpr_status infer_pow(InferCtx *c)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    Shape s;
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT | TS(MPR_INT32) | TS(MPR_INT64), p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 1, TS_NUMBER));
    TRY(mpri_op_broadcast(c, 0, 2, &s));
    return mpri_infer_set(c, 0, t, &s);
}

static mpr_status infer_mod(InferCtx *c)
{
    const ModParams *p = c->n->params;
    DType t;
    Shape s;
    TRY(mpri_op_common_type(c, 0, 2, TS_NUMBER, &t));
    if (t != MPR_DTYPE_NONE && mpri_dtype_is_float(t) && !p->fmod) {
        (void)mpri_err_set(c->err, MPR_E_TYPE, "Mod of %s needs fmod = 1; found fmod = 0",
                           mpri_dtype_name(t));
        return mpri_err_advice(c->err, "export the model with fmod=1 or use integer operands");
    }
    TRY(mpri_op_broadcast(c, 0, 2, &s));
    TRY(mpri_infer_set(c, 0, t, &s));
    if (!p->fmod) mpri_op_content_binary(c, mpri_op_dim_mod);
    return MPR_OK;
}

static mpr_status infer_where(InferCtx *c)
{
    const ElementwiseParams *p = c->n->params;
    DType t;
    Shape s;
    TRY(mpri_op_check_type(c, 0, TS_BOOL));
    TRY(mpri_op_mixed_type(c, 1, 3, TS_ANY, p->out_dtype, &t));
    TRY(mpri_op_broadcast(c, 0, 3, &s));
    TRY(mpri_infer_set(c, 0, t, &s));
    mpri_op_content_where(c);
    return MPR_OK;
}

static mpr_status infer_compare(InferCtx *c, TypeSet set, DimBinary content)
{
    DType t;
    Shape s;
    TRY(mpri_op_common_type(c, 0, 2, set, &t));
    TRY(mpri_op_broadcast(c, 0, 2, &s));
    TRY(mpri_infer_set(c, 0, MPR_BOOL, &s));
    mpri_op_content_binary(c, content);
    return MPR_OK;
}

static mpr_status infer_equal(InferCtx *c)
{
    return infer_compare(c, TS_NUMBER | TS_BOOL | TS(MPR_STRING), mpri_op_dim_equal);
}
static mpr_status infer_less(InferCtx *c) { return infer_compare(c, TS_NUMBER, mpri_op_dim_less); }
static mpr_status infer_greater(InferCtx *c)
{
    return infer_compare(c, TS_NUMBER, mpri_op_dim_greater);
}
static mpr_status infer_less_equal(InferCtx *c)
{
    return infer_compare(c, TS_NUMBER, mpri_op_dim_less_equal);
}
static mpr_status infer_greater_equal(InferCtx *c)
{
    return infer_compare(c, TS_NUMBER, mpri_op_dim_greater_equal);
}
static mpr_status infer_and(InferCtx *c) { return infer_compare(c, TS_BOOL, mpri_op_dim_and); }
static mpr_status infer_or(InferCtx *c) { return infer_compare(c, TS_BOOL, mpri_op_dim_or); }

static mpr_status infer_not(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_BOOL));
    TRY(mpri_infer_set(c, 0, MPR_BOOL, op_shape(c, 0)));
    mpri_op_content_not(c);
    return MPR_OK;
}

/* ---- gradient rules ---- */

static mpr_status grad_add(GradCtx *c)
{
    for (int k = 0; k < c->n->n_in; k++)
        if (grad_needs(c, k)) c->dx[k] = c->dy[0];
    return MPR_OK;
}

static mpr_status grad_sub(GradCtx *c)
{
    if (grad_needs(c, 0)) c->dx[0] = c->dy[0];
    if (grad_needs(c, 1)) c->dx[1] = grad_negate(c, c->dy[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_mul(GradCtx *c)
{
    Value *a = grad_in(c, 0), *b = grad_in(c, 1);
    if (grad_needs(c, 0)) c->dx[0] = grad_times(c, c->dy[0], b);
    if (grad_needs(c, 1)) c->dx[1] = grad_times(c, c->dy[0], a);
    return mpri_op_grad_done(c);
}

/* d(a/b)/db = -(a/b)/b, from the output, so a need not be kept. */
static mpr_status grad_div(GradCtx *c)
{
    Value *b = grad_in(c, 1);
    if (grad_needs(c, 0)) c->dx[0] = grad_over(c, c->dy[0], b);
    if (grad_needs(c, 1))
        c->dx[1] = grad_negate(c, grad_times(c, c->dy[0], grad_over(c, c->n->out[0], b)));
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
        if (v == 3) return mpri_op_grad_scale(c, grad_times(c, x, x), 3);
        return mpri_op_grad_scale(c, mpri_op_grad_binary(c, OP_Pow, x, less), v);
    }
    Value *ex = mpri_build_cast(b, e, x->dtype), *one = mpri_build_scalar(b, x->dtype, 1);
    Value *zero = mpri_op_grad_zero(c, x), *less = mpri_op_grad_binary(c, OP_Sub, ex, one);
    Value *slope = grad_times(c, ex, mpri_op_grad_binary(c, OP_Pow, x, less));
    return grad_select(c, mpri_op_grad_binary(c, OP_Equal, ex, zero), zero, slope);
}

/* y log x, and 0 where x is 0 and e >= 0. */
static Value *pow_exponent_slope(GradCtx *c, Value *x, Value *e)
{
    Value *zero = mpri_op_grad_zero(c, x), *ex = mpri_build_cast(c->b, e, x->dtype);
    Value *flat = mpri_op_grad_binary(c, OP_And, mpri_op_grad_binary(c, OP_Equal, x, zero),
                                      mpri_op_grad_binary(c, OP_GreaterOrEqual, ex, zero));
    return grad_select(c, flat, zero,
                       grad_times(c, c->n->out[0], mpri_op_grad_unary(c, OP_Log, x)));
}

static mpr_status grad_pow(GradCtx *c)
{
    Value *x = grad_in(c, 0), *e = grad_in(c, 1);
    if (grad_needs(c, 0)) {
        Value *slope = pow_base_slope(c, x, e);
        c->dx[0] = slope ? grad_times(c, c->dy[0], slope) : c->dy[0];
    }
    if (grad_needs(c, 1)) c->dx[1] = grad_times(c, c->dy[0], pow_exponent_slope(c, x, e));
    return mpri_op_grad_done(c);
}

/* The inputs that equal the result share dy evenly. */
static mpr_status grad_extremum(GradCtx *c)
{
    Node *n = c->n;
    if (n->n_in == 1) return grad_add(c);
    Value *count = NULL, *share, *zero = mpri_op_grad_zero(c, c->n->out[0]);
    for (int k = 0; k < n->n_in; k++) {
        Value *hit = mpri_op_grad_binary(c, OP_Equal, n->in[k], c->n->out[0]);
        hit = mpri_build_cast(c->b, hit, c->n->out[0]->dtype);
        count = k ? mpri_op_grad_binary(c, OP_Add, count, hit) : hit;
    }
    share = grad_over(c, c->dy[0], count);
    for (int k = 0; k < n->n_in; k++)
        if (grad_needs(c, k))
            c->dx[k] = grad_select(c, mpri_op_grad_binary(c, OP_Equal, n->in[k], c->n->out[0]),
                                   share, zero);
    return mpri_op_grad_done(c);
}

/* fmod: a - b * trunc(a / b), so the quotient is (a - y) / b. */
static mpr_status grad_mod(GradCtx *c)
{
    if (grad_needs(c, 0)) c->dx[0] = c->dy[0];
    if (grad_needs(c, 1)) {
        Value *whole = mpri_op_grad_binary(c, OP_Sub, grad_in(c, 0), c->n->out[0]);
        whole = grad_over(c, whole, grad_in(c, 1));
        c->dx[1] = grad_negate(c, grad_times(c, c->dy[0], whole));
    }
    return mpri_op_grad_done(c);
}

static mpr_status grad_where(GradCtx *c)
{
    Value *cond = grad_in(c, 0), *zero = mpri_op_grad_zero(c, c->dy[0]);
    if (grad_needs(c, 1)) c->dx[1] = grad_select(c, cond, c->dy[0], zero);
    if (grad_needs(c, 2)) c->dx[2] = grad_select(c, cond, zero, c->dy[0]);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define ARITHMETIC                                                                                 \
    .min_out = 1, .max_out = 1, PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),              \
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .cast_cuda = CAST_WIDEST,             \
    .cast_cpu = CAST_WIDEST, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_Add = {
    MPRI_OP(Add, "", "elementwise"), .help = "a + b", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_add, .grad = grad_add,
};
const OpDef mpri_op_Sub = {
    MPRI_OP(Sub, "", "elementwise"), .help = "a - b", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_sub, .grad = grad_sub,
};
const OpDef mpri_op_Mul = {
    MPRI_OP(Mul, "", "elementwise"), .help = "a * b", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_mul, .grad = grad_mul,
};
const OpDef mpri_op_Div = {
    MPRI_OP(Div, "", "elementwise"), .help = "a / b; integers truncate", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_div, .grad = grad_div,
};
const OpDef mpri_op_Max = {
    MPRI_OP(Max, "", "elementwise"), .help = "largest of the inputs; NaN wins", ARITHMETIC,
    .min_in = 1, .max_in = -1, .inplace = 1, .infer = infer_max, .grad = grad_extremum,
};
const OpDef mpri_op_Min = {
    MPRI_OP(Min, "", "elementwise"), .help = "smallest of the inputs; NaN wins", ARITHMETIC,
    .min_in = 1, .max_in = -1, .inplace = 1, .infer = infer_min, .grad = grad_extremum,
};
const OpDef mpri_op_Sum = {
    MPRI_OP(Sum, "", "elementwise"), .help = "sum of the inputs, left to right", ARITHMETIC,
    .min_in = 1, .max_in = -1, .inplace = 1, .infer = infer_sum, .grad = grad_add,
};

const OpDef mpri_op_Pow = {
    MPRI_OP(Pow, "", "elementwise"), .help = "a ^ b; type of a",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_WIDEST, .infer = infer_pow,
    .grad_state = GRAD_FUNCTION, .grad = grad_pow,
};
const OpDef mpri_op_Mod = {
    MPRI_OP(Mod, "", "elementwise"),
    .help = "remainder: sign of the divisor, or of the dividend with fmod",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(ModParams, mod_attrs),
    .flags = OPF_ELEMENTWISE, .inplace = 3, .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST,
    .infer = infer_mod, .grad_state = GRAD_FUNCTION, .grad = grad_mod,
};
const OpDef mpri_op_Where = {
    MPRI_OP(Where, "", "elementwise"), .help = "x where the condition holds, else y",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 6,
    .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST, .infer = infer_where,
    .grad_state = GRAD_FUNCTION, .grad = grad_where, .nondiff_in = 1,
};

/* Comparisons give bool whatever they compare; widest keeps their inputs of one type. */
#define COMPARISON                                                                                 \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .flags = OPF_ELEMENTWISE,                \
    .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST, .grad_state = GRAD_ZERO, .nondiff_in = 3

const OpDef mpri_op_Equal = {
    MPRI_OP(Equal, "", "elementwise"), .help = "a == b", COMPARISON, .infer = infer_equal,
};
const OpDef mpri_op_Less = {
    MPRI_OP(Less, "", "elementwise"), .help = "a < b", COMPARISON, .infer = infer_less,
};
const OpDef mpri_op_Greater = {
    MPRI_OP(Greater, "", "elementwise"), .help = "a > b", COMPARISON, .infer = infer_greater,
};
const OpDef mpri_op_LessOrEqual = {
    MPRI_OP(LessOrEqual, "", "elementwise"), .help = "a <= b", COMPARISON,
    .infer = infer_less_equal,
};
const OpDef mpri_op_GreaterOrEqual = {
    MPRI_OP(GreaterOrEqual, "", "elementwise"), .help = "a >= b", COMPARISON,
    .infer = infer_greater_equal,
};

#define LOGIC                                                                                      \
    .min_out = 1, .max_out = 1, .flags = OPF_ELEMENTWISE, .cast_cuda = CAST_FIXED,                 \
    .cast_cpu = CAST_FIXED, .grad_state = GRAD_ZERO

const OpDef mpri_op_And = {
    MPRI_OP(And, "", "elementwise"), .help = "a and b", LOGIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .nondiff_in = 3, .infer = infer_and,
};
const OpDef mpri_op_Or = {
    MPRI_OP(Or, "", "elementwise"), .help = "a or b", LOGIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .nondiff_in = 3, .infer = infer_or,
};
const OpDef mpri_op_Not = {
    MPRI_OP(Not, "", "elementwise"), .help = "not a", LOGIC,
    .min_in = 1, .max_in = 1, .inplace = 1, .nondiff_in = 1, .infer = infer_not,
};
