/* Elementwise operators of two or more inputs: arithmetic, comparisons, logic, selection.
 *
 * Numpy broadcasting everywhere. Inputs have one type, except: the exponent of Pow may be of any
 * numeric type, and where out_dtype is set float inputs may be mixed (the kernel computes in f32).
 * Integer contents are followed because exporters compute shapes with these operators. */
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

/* ---- definitions ---- */

#define ARITHMETIC                                                                                 \
    .min_out = 1, .max_out = 1, PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),              \
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .cast_cuda = CAST_WIDEST,             \
    .cast_cpu = CAST_WIDEST, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_Add = {
    MPRI_OP(Add, "", "elementwise"), .help = "a + b", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_add, .grad = mpri_op_grad_add,
};
const OpDef mpri_op_Sub = {
    MPRI_OP(Sub, "", "elementwise"), .help = "a - b", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_sub, .grad = mpri_op_grad_sub,
};
const OpDef mpri_op_Mul = {
    MPRI_OP(Mul, "", "elementwise"), .help = "a * b", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_mul, .grad = mpri_op_grad_mul,
};
const OpDef mpri_op_Div = {
    MPRI_OP(Div, "", "elementwise"), .help = "a / b; integers truncate", ARITHMETIC,
    .min_in = 2, .max_in = 2, .inplace = 3, .infer = infer_div, .grad = mpri_op_grad_div,
};
const OpDef mpri_op_Max = {
    MPRI_OP(Max, "", "elementwise"), .help = "largest of the inputs; NaN wins", ARITHMETIC,
    .min_in = 1, .max_in = -1, .inplace = 1, .infer = infer_max, .grad = mpri_op_grad_extremum,
};
const OpDef mpri_op_Min = {
    MPRI_OP(Min, "", "elementwise"), .help = "smallest of the inputs; NaN wins", ARITHMETIC,
    .min_in = 1, .max_in = -1, .inplace = 1, .infer = infer_min, .grad = mpri_op_grad_extremum,
};
const OpDef mpri_op_Sum = {
    MPRI_OP(Sum, "", "elementwise"), .help = "sum of the inputs, left to right", ARITHMETIC,
    .min_in = 1, .max_in = -1, .inplace = 1, .infer = infer_sum, .grad = mpri_op_grad_add,
};

const OpDef mpri_op_Pow = {
    MPRI_OP(Pow, "", "elementwise"), .help = "a ^ b; type of a",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = infer_pow,
    .grad_state = GRAD_FUNCTION, .grad = mpri_op_grad_pow,
};
const OpDef mpri_op_Mod = {
    MPRI_OP(Mod, "", "elementwise"),
    .help = "remainder: sign of the divisor, or of the dividend with fmod",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(ModParams, mod_attrs),
    .flags = OPF_ELEMENTWISE, .inplace = 3, .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST,
    .infer = infer_mod, .grad_state = GRAD_FUNCTION, .grad = mpri_op_grad_mod,
};
const OpDef mpri_op_Where = {
    MPRI_OP(Where, "", "elementwise"), .help = "x where the condition holds, else y",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
    PARAMS(ElementwiseParams, mpri_op_elementwise_attrs),
    .flags = OPF_ELEMENTWISE | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 6,
    .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST, .infer = infer_where,
    .grad_state = GRAD_FUNCTION, .grad = mpri_op_grad_where, .nondiff_in = 1,
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
