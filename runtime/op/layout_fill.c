/* Operators that make tensors: from shapes (Shape, Size), from a value (ConstantOfShape, Constant),
 * from bounds (Range). None has a gradient. */
#include "runtime/op/layout.h"

#include <math.h>

static const AttrRow shape_attrs[] = {
    ATTR(ShapeParams, start, "start", INT),
    ATTR(ShapeParams, end, "end", INT, .def_int = INT64_MAX),
    ATTR_END,
};
static const AttrRow of_shape_attrs[] = {ATTR(ConstantOfShapeParams, value, "value", TENSOR),
                                         ATTR_END};
static const AttrRow constant_attrs[] = {
    ATTR(ConstantParams, value, "value", TENSOR, .required = true), ATTR_END};

static int64_t clamp_axis(int64_t v, int rank)
{
    if (v < 0) v = v < -(int64_t)rank ? 0 : v + rank;
    return v > rank ? rank : v;
}

static mpr_status infer_shape(InferCtx *c)
{
    const ShapeParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    if (x->rank < 0)
        return mpri_infer_set(c, 0, MPR_INT64, &(Shape){.rank = 1, .d = {mpri_dim_fresh(c->sym)}});
    int64_t from = clamp_axis(p->start, x->rank), to = clamp_axis(p->end, x->rank);
    int64_t n = to > from ? to - from : 0;
    TRY(mpri_infer_set(c, 0, MPR_INT64, &(Shape){.rank = 1, .d = {n}}));
    mpri_infer_set_content(c, 0, n, x->d + (n ? from : 0));
    return MPR_OK;
}

static mpr_status infer_size(InferCtx *c)
{
    const Shape scalar = op_scalar();
    Dim n;
    TRY(mpri_infer_set(c, 0, MPR_INT64, &scalar));
    if (mpri_op_elements(c, 0, &n)) mpri_infer_set_content(c, 0, 1, &n);
    return MPR_OK;
}

static bool holds_content(DType t)
{
    return t == MPR_INT64 || t == MPR_INT32 || t == MPR_BOOL;
}

static mpr_status infer_of_shape(InferCtx *c)
{
    const ConstantOfShapeParams *p = c->n->params;
    DType t = p->value.dtype == MPR_DTYPE_NONE ? MPR_FLOAT32 : p->value.dtype;
    int64_t n;
    Dim rank;
    Shape out = mpri_op_unknown;
    TRY(mpri_op_check_type(c, 0, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 1, 1));
    if (p->value.dtype != MPR_DTYPE_NONE && mpri_shape_elements(&p->value.shape) != 1)
        return mpri_op_shape_error(c, 0, "elements in the value of ConstantOfShape, allowed 1",
                                   mpri_shape_elements(&p->value.shape));
    const Dim *d = mpri_infer_content(c, 0, &n);
    if (!d) {
        if (mpri_op_elements(c, 0, &rank) && mpri_dim_const(rank))
            out = mpri_op_fresh_shape(c, rank);
        return mpri_infer_set(c, 0, t, &out);
    }
    if (n > MPRI_MAX_RANK) return mpri_op_shape_error(c, 0, "dims asked for, allowed at most 8", n);
    out.rank = (int)n;
    for (int i = 0; i < out.rank; i++) {
        int64_t v;
        if (mpri_dim_is_int(c->sym, d[i], &v) && v < 0)
            return mpri_op_shape_error(c, 0, "dim of ConstantOfShape", v);
        out.d[i] = d[i];
    }
    TRY(mpri_infer_set(c, 0, t, &out));
    Dim *r = holds_content(t) ? mpri_op_content_alloc(c, mpri_shape_elements(&out)) : NULL;
    if (!r) return MPR_OK;
    Dim v = mpri_dim_int(c->sym, mpri_load_i64(t, p->value.data, 0));
    for (int64_t i = 0; i < mpri_shape_elements(&out); i++) r[i] = v;
    mpri_infer_set_content(c, 0, mpri_shape_elements(&out), r);
    return MPR_OK;
}

static mpr_status infer_constant(InferCtx *c)
{
    const TensorAttr *v = &((const ConstantParams *)c->n->params)->value;
    TRY(mpri_infer_set(c, 0, v->dtype, &v->shape));
    int64_t n = mpri_shape_elements(&v->shape);
    Dim *r = holds_content(v->dtype) && v->data ? mpri_op_content_alloc(c, n) : NULL;
    if (!r) return MPR_OK;
    for (int64_t i = 0; i < n; i++)
        r[i] = mpri_dim_int(c->sym, mpri_load_i64(v->dtype, v->data, i));
    mpri_infer_set_content(c, 0, n, r);
    return MPR_OK;
}

/* ---- Range ---- */

/* Number of elements of a range of constant floats, or -1. */
static int64_t float_count(InferCtx *c)
{
    double v[3];
    for (int k = 0; k < 3; k++) {
        const Value *in = op_in(c, k);
        if (!in || in->kind != VAL_CONST || !in->data || mpri_shape_elements(&in->shape) != 1)
            return -1;
        v[k] = mpri_load_f64(in->dtype, in->data, 0);
    }
    double n = ceil((v[1] - v[0]) / v[2]);
    if (!(n > 0)) return isnan(n) ? -1 : 0;
    return n < 9e15 ? (int64_t)n : -1;
}

static int64_t int_count(int64_t start, int64_t limit, int64_t delta)
{
    if (delta == 0 || (delta > 0 ? start >= limit : start <= limit)) return 0;
    uint64_t span =
        delta > 0 ? (uint64_t)limit - (uint64_t)start : (uint64_t)start - (uint64_t)limit;
    uint64_t width = delta > 0 ? (uint64_t)delta : 0 - (uint64_t)delta;
    uint64_t n = (span - 1) / width + 1;
    return n > INT64_MAX ? -1 : (int64_t)n;
}

/* limit - start for a symbolic range with step 1; a negative one is clamped once it is bound. */
static Dim symbolic_count(InferCtx *c, Dim start, Dim limit, Dim delta)
{
    return delta == 1 ? mpri_op_dim_sub(c->sym, limit, start) : mpri_dim_fresh(c->sym);
}

static mpr_status infer_range(InferCtx *c)
{
    DType t;
    Dim d[3], count = mpri_dim_fresh(c->sym);
    int64_t v[3], n;
    bool known = true, ints = true;
    TRY(mpri_op_common_type(c, 0, 3, TS_FLOAT | TS(MPR_INT16) | TS_INDEX, &t));
    for (int k = 0; k < 3; k++) {
        const Dim *content = mpri_infer_content(c, k, &n);
        Dim elements;
        if (mpri_op_elements(c, k, &elements) && mpri_dim_const(elements) && elements != 1)
            return mpri_op_shape_error(c, k, "elements of a bound of Range, allowed 1", elements);
        known = known && content && n == 1;
        if (known) d[k] = content[0];
        ints = known && ints && mpri_dim_is_int(c->sym, d[k], &v[k]);
    }
    if (ints) count = int_count(v[0], v[1], v[2]);
    else if (known) count = symbolic_count(c, d[0], d[1], d[2]);
    else if (t != MPR_DTYPE_NONE && mpri_dtype_is_float(t)) count = float_count(c);
    if (ints && v[2] == 0) return mpri_op_shape_error(c, 2, "step of Range, allowed: not 0", 0);
    if (count == -1) count = mpri_dim_fresh(c->sym);
    TRY(mpri_infer_set(c, 0, t, &(Shape){.rank = 1, .d = {count}}));
    Dim *r = ints && mpri_dim_const(count) ? mpri_op_content_alloc(c, count) : NULL;
    if (!r) return MPR_OK;
    for (int64_t i = 0; i < count; i++) /* modulo 2^64: i * step may not fit, the sum does */
        r[i] = mpri_dim_int(c->sym, (int64_t)((uint64_t)v[0] + (uint64_t)i * (uint64_t)v[2]));
    mpri_infer_set_content(c, 0, count, r);
    return MPR_OK;
}

/* ---- definitions ---- */

const OpDef mpri_op_Shape = {
    MPRI_OP(Shape, "", "layout"), .help = "dims of a tensor",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(ShapeParams, shape_attrs),
    .nondiff_in = 1,
    .cast_cuda = CAST_MOVE, .cast_cpu = CAST_MOVE, .infer = infer_shape, .grad_state = GRAD_ZERO,
};
const OpDef mpri_op_Size = {
    MPRI_OP(Size, "", "layout"), .help = "number of elements",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .nondiff_in = 1,
    .cast_cuda = CAST_MOVE, .cast_cpu = CAST_MOVE, .infer = infer_size, .grad_state = GRAD_ZERO,
};
const OpDef mpri_op_ConstantOfShape = {
    MPRI_OP(ConstantOfShape, "", "layout"), .help = "one value everywhere",
    .min_in = 1, .max_in = 1, .min_out = 1,
    .max_out = 1, PARAMS(ConstantOfShapeParams, of_shape_attrs),
    .nondiff_in = 1, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_of_shape,
    .grad_state = GRAD_ZERO,
};
const OpDef mpri_op_Range = {
    MPRI_OP(Range, "", "layout"), .help = "start, start + delta ... before limit",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, .nondiff_in = 7,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_range, .grad_state = GRAD_ZERO,
};
const OpDef mpri_op_Constant = {
    MPRI_OP(Constant, "", "layout"), .help = "a tensor from the file",
    .min_in = 0, .max_in = 0, .min_out = 1, .max_out = 1, PARAMS(ConstantParams, constant_attrs),
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_constant,
    .grad_state = GRAD_ZERO,
};
