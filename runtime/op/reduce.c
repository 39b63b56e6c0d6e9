/* Reductions over axes given by input 1 (absent or empty: all axes, or none with
 * noop_with_empty_axes). Sums and means accumulate in f32 whatever the stored type. SumTo sums a
 * tensor down to a shape it was broadcast from; the autodiff pass uses it. */
#include "runtime/op/reduce.h"

const AttrRow mpri_reduce_attrs[] = {
    ATTR_FLAG(ReduceParams, keepdims, "keepdims", 1),
    ATTR_FLAG(ReduceParams, noop_with_empty_axes, "noop_with_empty_axes", 0),
    ATTR_OUT_DTYPE(ReduceParams),
    ATTR_END,
};
static const AttrRow sum_to_attrs[] = {
    ATTR(SumToParams, dims, "dims", INTS, .required = true),
    ATTR_OUT_DTYPE(SumToParams),
    ATTR_END,
};

#define TS_EXTREMUM (TS_SUM | TS(MPR_INT8) | TS(MPR_UINT8) | TS_BOOL)

/* ---- type and shape rules ---- */

/* Axes not known: with keepdims the rank stays, without it falls by the number of axes. */
static Shape unknown_axes_shape(InferCtx *c, const Shape *x, bool keepdims)
{
    Dim n;
    if (keepdims) return mpri_op_fresh_shape(c, x->rank);
    if (!mpri_op_elements(c, 1, &n) || !mpri_dim_const(n) || n == 0) return mpri_op_unknown;
    return mpri_op_fresh_shape(c, x->rank - n);
}

mpr_status mpri_reduce_infer(InferCtx *c, TypeSet set, bool *all)
{
    const ReduceParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    DType t;
    *all = false;
    TRY(mpri_op_mixed_type(c, 0, 1, set, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    if (x->rank < 0) {
        bool scalar = !op_in(c, 1) && !p->keepdims && !p->noop_with_empty_axes;
        return mpri_infer_set(c, 0, t, scalar ? &(Shape){.rank = 0} : NULL);
    }
    int64_t n = 0;
    const int64_t *v = op_in(c, 1) ? mpri_op_ints(c, 1, &n) : NULL;
    if (op_in(c, 1) && !v) {
        Shape out = unknown_axes_shape(c, x, p->keepdims);
        return mpri_infer_set(c, 0, t, &out);
    }
    int axes[MPRI_MAX_RANK];
    bool reduced[MPRI_MAX_RANK];
    *all = n == 0 && !p->noop_with_empty_axes;
    TRY(mpri_op_axes(c, n, v, x->rank, axes));
    for (int i = 0; i < x->rank; i++) reduced[i] = *all;
    for (int64_t i = 0; i < n; i++) reduced[axes[i]] = true;
    *all = *all || n == x->rank;
    Shape out = {.rank = 0};
    for (int i = 0; i < x->rank; i++) {
        if (!reduced[i]) out.d[out.rank++] = x->d[i];
        else if (p->keepdims) out.d[out.rank++] = 1;
    }
    return mpri_infer_set(c, 0, t, &out);
}

mpr_status mpri_reduce_infer_sum(InferCtx *c)
{
    bool all;
    return mpri_reduce_infer(c, TS_SUM, &all);
}

static mpr_status infer_extremum(InferCtx *c)
{
    bool all;
    return mpri_reduce_infer(c, TS_EXTREMUM, &all);
}

/* Number of elements from a shape: exporters write ReduceProd(Shape(x)). */
static mpr_status infer_prod(InferCtx *c)
{
    bool all, integer = op_type(c, 0) == MPR_INT64 || op_type(c, 0) == MPR_INT32;
    int64_t n;
    TRY(mpri_reduce_infer(c, TS_SUM, &all));
    const Dim *d = all && integer ? mpri_infer_content(c, 0, &n) : NULL;
    if (!d) return MPR_OK;
    Dim r = 1;
    for (int64_t i = 0; i < n; i++) r = mpri_op_dim_mul(c->sym, r, d[i]);
    mpri_infer_set_content(c, 0, 1, &r);
    return MPR_OK;
}

static mpr_status infer_sum_to(InferCtx *c)
{
    const SumToParams *p = c->n->params;
    DType t;
    Shape out;
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    const Shape *x = op_shape(c, 0);
    for (int i = 0; x->rank >= 0 && i < out.rank; i++) {
        int at = x->rank - out.rank + i;
        bool fits =
            out.d[i] == 1 || (at >= 0 && (out.d[i] == x->d[at] || !mpri_dim_const(x->d[at])));
        if (!fits)
            return mpri_op_shape_error(c, 0, "target dim of SumTo does not broadcast to the input",
                                       out.d[i]);
    }
    return mpri_infer_set(c, 0, t, &out);
}

/* ---- gradients ---- */

mpr_status mpri_reduce_axes(GradCtx *c, Reduction *r)
{
    const ReduceParams *p = c->n->params;
    const Value *x = grad_in(c, 0);
    int64_t n = 0;
    const int64_t *v = NULL;
    *r = (Reduction){.count = 1};
    TRY(mpri_op_grad_const_shape(c, x));
    if (grad_in(c, 1)) TRY(mpri_op_grad_ints(c, 1, &n, &v));
    bool all = n == 0 && !p->noop_with_empty_axes;
    for (int i = 0; i < x->shape.rank; i++) {
        bool hit = all;
        for (int64_t k = 0; k < n; k++) hit = hit || (v[k] < 0 ? v[k] + x->shape.rank : v[k]) == i;
        if (hit) {
            r->axes[r->n++] = i;
            r->count *= x->shape.d[i];
        }
        r->kept[i] = hit ? 1 : x->shape.d[i];
    }
    return MPR_OK;
}

Value *mpri_reduce_kept(GradCtx *c, const Reduction *r, Value *v)
{
    return mpri_op_grad_reshape(c, v, grad_in(c, 0)->shape.rank, r->kept);
}

static mpr_status grad_sum(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    c->dx[0] = mpri_op_grad_expand_like(c, mpri_reduce_kept(c, &r, c->dy[0]), grad_in(c, 0));
    return mpri_op_grad_done(c);
}

Value *mpri_reduce_divide(GradCtx *c, Value *v, Value *n)
{
    if (!v || !n) return NULL;
    Value *wide = mpri_build_cast(c->b, v, n->dtype);
    return mpri_build_cast(c->b, mpri_op_grad_binary(c, OP_Div, wide, n), v->dtype);
}

static mpr_status grad_mean(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *dy = mpri_reduce_kept(c, &r, c->dy[0]);
    Value *n = mpri_build_scalar(c->b, mpri_op_wide(grad_in(c, 0)->dtype), (double)r.count);
    c->dx[0] = mpri_op_grad_expand_like(c, mpri_reduce_divide(c, dy, n), grad_in(c, 0));
    return mpri_op_grad_done(c);
}

/* The elements that equal the result share dy evenly. */
static mpr_status grad_extremum(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Value *x = grad_in(c, 0), *dy = mpri_reduce_kept(c, &r, c->dy[0]);
    Value *hit = mpri_op_grad_binary(c, OP_Equal, x, mpri_reduce_kept(c, &r, c->n->out[0]));
    Value *hits = mpri_build_cast(c->b, hit, mpri_op_wide(x->dtype));
    hits = mpri_op_grad_reduce(c, OP_ReduceSum, hits, r.n, r.axes);
    Value *share = mpri_reduce_divide(c, dy, hits);
    c->dx[0] = mpri_build3(c->b, OP_Where, NULL, hit, share, mpri_op_grad_zero(c, dy));
    return mpri_op_grad_done(c);
}

/* Product of the others, without dividing by zero: with p the product of the nonzero elements, an
 * element has p / x when there is no zero, p when it is the only zero, else 0. */
static mpr_status grad_prod(GradCtx *c)
{
    Reduction r;
    TRY(mpri_reduce_axes(c, &r));
    Builder *b = c->b;
    Value *x = grad_in(c, 0), *dy = mpri_reduce_kept(c, &r, c->dy[0]);
    DType wide = mpri_op_wide(x->dtype);
    Value *zero = mpri_op_grad_zero(c, x), *is_zero = mpri_op_grad_binary(c, OP_Equal, x, zero);
    Value *nonzero = mpri_build3(b, OP_Where, NULL, is_zero, mpri_build_scalar(b, x->dtype, 1), x);
    Value *p = mpri_op_grad_reduce(c, OP_ReduceProd, nonzero, r.n, r.axes);
    Value *zeros =
        mpri_op_grad_reduce(c, OP_ReduceSum, mpri_build_cast(b, is_zero, wide), r.n, r.axes);
    Value *none = mpri_op_grad_binary(c, OP_Equal, zeros, mpri_build_scalar(b, wide, 0));
    Value *one = mpri_op_grad_binary(c, OP_Equal, zeros, mpri_build_scalar(b, wide, 1));
    Value *others =
        mpri_build3(b, OP_Where, NULL, none, mpri_op_grad_binary(c, OP_Div, p, nonzero), zero);
    Value *lone = mpri_build3(b, OP_Where, NULL, one, p, zero);
    Value *slope = mpri_build3(b, OP_Where, NULL, is_zero, lone, others);
    c->dx[0] = mpri_op_grad_binary(c, OP_Mul, dy, slope);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

const OpDef mpri_op_ReduceMean = {
    MPRI_OP(ReduceMean, "", "reduce"), .help = "mean over axes", REDUCTION,
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum,
    .grad = grad_mean,
};
const OpDef mpri_op_ReduceSum = {
    MPRI_OP(ReduceSum, "", "reduce"), .help = "sum over axes", REDUCTION,
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = mpri_reduce_infer_sum, .grad = grad_sum,
};
const OpDef mpri_op_ReduceProd = {
    MPRI_OP(ReduceProd, "", "reduce"), .help = "product over axes", REDUCTION,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_FP32, .infer = infer_prod, .grad = grad_prod,
};
const OpDef mpri_op_ReduceMax = {
    MPRI_OP(ReduceMax, "", "reduce"), .help = "largest over axes; NaN wins", REDUCTION,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_extremum, .grad = grad_extremum,
};
const OpDef mpri_op_ReduceMin = {
    MPRI_OP(ReduceMin, "", "reduce"), .help = "smallest over axes; NaN wins", REDUCTION,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_extremum, .grad = grad_extremum,
};
const OpDef mpri_op_SumTo = {
    MPRI_OP(SumTo, "mpr", "reduce"),
    .help = "sum over the dims that a tensor of shape dims was broadcast along",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(SumToParams, sum_to_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED,
    .infer = infer_sum_to, .grad_state = GRAD_NONE,
    .grad_reason = "made by the backward pass itself",
};
