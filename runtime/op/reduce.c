/* Reductions. Axes are input 1 (since 13 or 18); absent or empty means all axes, or none with
 * noop_with_empty_axes. SumTo sums a tensor down to a shape it was broadcast from: the pass that builds
 * gradients uses it. */
#include "runtime/op/rules.h"

static const AttrRow reduce_attrs[] = {
    ATTR_FLAG(ReduceParams, keepdims, "keepdims", 1), ATTR_FLAG(ReduceParams, noop_with_empty_axes, "noop_with_empty_axes", 0),
    ATTR_OUT_DTYPE(ReduceParams), ATTR_END,
};
static const AttrRow sum_to_attrs[] = {ATTR(SumToParams, dims, "dims", INTS, .required = true), ATTR_OUT_DTYPE(SumToParams), ATTR_END};

/* Which axes of a known rank are reduced. False in *known when the axes input is not known yet. */
static mpr_status reduced_axes(InferCtx *c, int rank, bool *reduced, bool *known)
{
    const ReduceParams *p = c->n->params;
    int64_t n = 0;
    int axes[MPRI_MAX_RANK];
    *known = true;
    const int64_t *v = op_in(c, 1) ? mpri_op_ints(c, 1, &n) : NULL;
    if (op_in(c, 1) && !v) {
        const Shape *s = op_shape(c, 1);
        *known = s->rank == 1 && s->d[0] == 0;
        if (!*known) return MPR_OK;
    }
    for (int i = 0; i < rank; i++) reduced[i] = n == 0 && !p->noop_with_empty_axes;
    if (n == 0) return MPR_OK;
    TRY(mpri_op_axes(c, n, v, rank, axes));
    for (int i = 0; i < n; i++) reduced[axes[i]] = true;
    return MPR_OK;
}

static mpr_status reduce_shape(InferCtx *c, Shape *out)
{
    const ReduceParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    bool reduced[MPRI_MAX_RANK] = {0}, known;
    *out = mpri_op_unknown;
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    if (x->rank < 0) return MPR_OK;
    TRY(reduced_axes(c, x->rank, reduced, &known));
    if (!known) {
        if (p->keepdims) *out = mpri_op_fresh_shape(c, x->rank);
        return MPR_OK;
    }
    out->rank = 0;
    for (int i = 0; i < x->rank; i++)
        if (!reduced[i] || p->keepdims) out->d[out->rank++] = reduced[i] ? 1 : x->d[i];
    return MPR_OK;
}

static mpr_status infer_typed(InferCtx *c, TypeSet set)
{
    const ReduceParams *p = c->n->params;
    Shape out;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 1, set, p->out_dtype, &t));
    TRY(reduce_shape(c, &out));
    return mpri_infer_set(c, 0, t, &out);
}

static mpr_status infer_number(InferCtx *c) { return infer_typed(c, TS_FLOAT | TS_WIDE_INT); }
static mpr_status infer_extremum(InferCtx *c) { return infer_typed(c, TS_NUMBER | TS_BOOL); }

/* Shape codes multiply dims: the product of known contents is known. */
static mpr_status infer_prod(InferCtx *c)
{
    int64_t n;
    TRY(infer_number(c));
    const Dim *x = mpri_infer_content(c, 0, &n);
    const Shape *s = op_shape(c, 0);
    if (!x || s->rank != 1 || !mpri_dtype_is_int(op_type(c, 0))) return MPR_OK;
    Dim *y = mpri_op_content_alloc(c, 1);
    if (!y) return MPR_OK;
    y[0] = mpri_dim_int(c->sym, 1);
    for (int64_t i = 0; i < n; i++) y[0] = mpri_dim_mul(c->sym, y[0], x[i]);
    mpri_infer_set_content(c, 0, 1, y);
    return MPR_OK;
}

static mpr_status infer_sum_to(InferCtx *c)
{
    const SumToParams *p = c->n->params;
    Shape out, both;
    DType t;
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    if (op_shape(c, 0)->rank >= 0) TRY(mpri_infer_broadcast(c, op_shape(c, 0), &out, &both));
    return mpri_infer_set(c, 0, t, &out);
}

/* ---- gradients ---- */

/* v, which has the reduced shape, with ones where dims were reduced away. */
static Value *keep_dims(GradCtx *c, Value *v)
{
    const ReduceParams *p = c->n->params;
    const Value *x = c->n->in[0], *axes = grad_in(c, 1);
    int64_t d[MPRI_MAX_RANK];
    int rank = x->shape.rank;
    if (p->keepdims || !v) return v;
    for (int i = 0; i < rank; i++) d[i] = 1;
    bool all = !axes || mpri_shape_elements(&axes->shape) == 0;
    for (int i = 0; i < rank && !all; i++) d[i] = x->shape.d[i];
    if (!all && axes->kind == VAL_CONST)
        for (int64_t k = 0; k < mpri_shape_elements(&axes->shape); k++) {
            int64_t a = mpri_load_i64(axes->dtype, axes->data, k);
            d[a < 0 ? a + rank : a] = 1;
        }
    return mpri_op_grad_reshape(c, v, rank, d);
}

static mpr_status check_axes(GradCtx *c)
{
    const Value *axes = grad_in(c, 1);
    if (!axes || axes->kind == VAL_CONST || mpri_shape_elements(&axes->shape) == 0) return MPR_OK;
    return mpri_err_set(c->err, MPR_E_NOT_DIFFERENTIABLE, "the axes of %s are computed from data", c->n->op->name);
}

static bool noop(const GradCtx *c)
{
    const ReduceParams *p = c->n->params;
    const Value *axes = grad_in(c, 1);
    return p->noop_with_empty_axes && (!axes || mpri_shape_elements(&axes->shape) == 0);
}

static Value *spread(GradCtx *c, Value *v) { return noop(c) ? v : mpri_op_grad_expand_like(c, keep_dims(c, v), c->n->in[0]); }

static mpr_status grad_sum(GradCtx *c)
{
    TRY(check_axes(c));
    if (grad_needs(c, 0)) c->dx[0] = spread(c, c->dy[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_mean(GradCtx *c)
{
    TRY(check_axes(c));
    if (!grad_needs(c, 0)) return MPR_OK;
    int64_t n = mpri_shape_elements(&c->n->in[0]->shape), m = mpri_shape_elements(&c->n->out[0]->shape);
    c->dx[0] = spread(c, mpri_op_grad_scale(c, c->dy[0], n > 0 ? (double)m / (double)n : 1));
    return mpri_op_grad_done(c);
}

/* dy * y / x: right where no element is zero; zeros would need the product of the others. */
static mpr_status grad_prod(GradCtx *c)
{
    TRY(check_axes(c));
    if (!grad_needs(c, 0)) return MPR_OK;
    Value *t = mpri_op_grad_binary(c, OP_Mul, c->dy[0], c->n->out[0]);
    c->dx[0] = mpri_op_grad_binary(c, OP_Div, spread(c, t), c->n->in[0]);
    return mpri_op_grad_done(c);
}

/* Equal extremes share the cotangent evenly, as PyTorch's amax and amin. */
static mpr_status grad_extremum(GradCtx *c)
{
    TRY(check_axes(c));
    if (!grad_needs(c, 0)) return MPR_OK;
    Value *x = c->n->in[0];
    if (noop(c)) {
        c->dx[0] = c->dy[0];
        return MPR_OK;
    }
    Value *same = mpri_op_grad_binary(c, OP_Equal, x, keep_dims(c, c->n->out[0]));
    Value *one = mpri_build_cast(c->b, same, x->dtype);
    ReduceParams p = {.keepdims = 1};
    Value *axes = grad_in(c, 1);
    Value *in[] = {one, axes};
    Value *count = mpri_build(c->b, OP_ReduceSum, &p, axes ? 2 : 1, in, 1, NULL);
    c->dx[0] = mpri_op_grad_binary(c, OP_Mul, one, mpri_op_grad_binary(c, OP_Div, keep_dims(c, c->dy[0]), count));
    return mpri_op_grad_done(c);
}

#define REDUCE(Cuda, Cpu)                                                                                \
    .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(ReduceParams, reduce_attrs), .nondiff_in = 2, \
    .cast_cuda = Cuda, .cast_cpu = Cpu, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_ReduceMean = {
    MPRI_OP(ReduceMean, "", "reduce"), .help = "mean over axes: f32 sum, f32 division, one rounding", REDUCE(CAST_KEEP, CAST_KEEP),
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT, .infer = infer_number, .grad = grad_mean,
};
const OpDef mpri_op_ReduceSum = {
    MPRI_OP(ReduceSum, "", "reduce"), .help = "sum over axes in f32", REDUCE(CAST_FP32, CAST_KEEP),
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT, .infer = infer_number, .grad = grad_sum,
};
const OpDef mpri_op_ReduceProd = {
    MPRI_OP(ReduceProd, "", "reduce"), .help = "product over axes", REDUCE(CAST_FP32, CAST_FP32),
    .infer = infer_prod, .grad = grad_prod,
};
const OpDef mpri_op_ReduceMax = {
    MPRI_OP(ReduceMax, "", "reduce"), .help = "largest over axes; NaN wins", REDUCE(CAST_KEEP, CAST_KEEP),
    .infer = infer_extremum, .grad = grad_extremum,
};
const OpDef mpri_op_ReduceMin = {
    MPRI_OP(ReduceMin, "", "reduce"), .help = "smallest over axes; NaN wins", REDUCE(CAST_KEEP, CAST_KEEP),
    .infer = infer_extremum, .grad = grad_extremum,
};
const OpDef mpri_op_SumTo = {
    MPRI_OP(SumTo, "mpr", "reduce"), .help = "sum down to a shape that broadcasts to the input's",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(SumToParams, sum_to_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_sum_to,
    .grad_state = GRAD_NONE, .grad_reason = "made while the backward pass is built",
};
