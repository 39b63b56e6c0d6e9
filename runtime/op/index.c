/* Lookup by index. Indices may be negative (from the end); one outside its dim is found at run
 * time.
 *
 * The gradient of each lookup is a scatter-add. GatherGrad does it for whole rows; GatherElements
 * and GatherND compute flat positions with integer arithmetic and use it on a flattened table. */
#include "runtime/op/rules.h"

static const AttrRow axis_attrs[] = {ATTR(AxisParams, axis, "axis", INT), ATTR_END};
static const AttrRow gather_grad_attrs[] = {
    ATTR(GatherGradParams, axis, "axis", INT),
    ATTR(GatherGradParams, dims, "dims", INTS, .required = true),
    ATTR_END,
};
static const AttrRow gather_nd_attrs[] = {
    ATTR(GatherNDParams, batch_dims, "batch_dims", INT, .min_int = 0, .max_int = MPRI_MAX_RANK),
    ATTR_END,
};

/* ---- type and shape rules ---- */

static void gather_content(InferCtx *c)
{
    int64_t n, m, at;
    const Dim *d = op_shape(c, 0)->rank <= 1 ? mpri_infer_content(c, 0, &n) : NULL;
    const Dim *idx = d ? mpri_infer_content(c, 1, &m) : NULL;
    Dim *r = idx ? mpri_op_content_alloc(c, m) : NULL;
    if (!r) return;
    for (int64_t i = 0; i < m; i++) {
        if (!mpri_dim_is_int(c->sym, idx[i], &at)) return;
        if (at < 0) at += n;
        if (at < 0 || at >= n) return;
        r[i] = d[at];
    }
    mpri_infer_set_content(c, 0, m, r);
}

static mpr_status infer_gather(InferCtx *c)
{
    const AxisParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *idx = op_shape(c, 1);
    int axis;
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    if (x->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
    if (idx->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    if (x->rank - 1 + idx->rank > MPRI_MAX_RANK)
        return mpri_op_shape_error(c, 1, "rank of the result of Gather, allowed at most 8",
                                   x->rank - 1 + idx->rank);
    Shape out = {.rank = 0};
    for (int i = 0; i < axis; i++) out.d[out.rank++] = x->d[i];
    for (int i = 0; i < idx->rank; i++) out.d[out.rank++] = idx->d[i];
    for (int i = axis + 1; i < x->rank; i++) out.d[out.rank++] = x->d[i];
    TRY(mpri_infer_set(c, 0, op_type(c, 0), &out));
    gather_content(c);
    return MPR_OK;
}

static mpr_status infer_gather_grad(InferCtx *c)
{
    const GatherGradParams *p = c->n->params;
    Shape out;
    int axis;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    TRY(mpri_infer_axis(c, p->axis, out.rank, &axis));
    const Shape *dy = op_shape(c, 0), *idx = op_shape(c, 1);
    if (dy->rank >= 0 && idx->rank >= 0 && dy->rank != out.rank - 1 + idx->rank)
        return mpri_op_shape_error(
            c, 0, "rank of the cotangent, expected rank(table) - 1 + rank(indices)",
            out.rank - 1 + idx->rank);
    return mpri_infer_set(c, 0, mpri_op_wide(op_type(c, 0)), &out);
}

static mpr_status infer_gather_elements(InferCtx *c)
{
    const AxisParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *idx = op_shape(c, 1);
    int axis;
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    if (x->rank >= 0) {
        TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
        TRY(mpri_op_check_rank(c, 1, x->rank, x->rank));
        for (int i = 0; i < idx->rank; i++)
            if (i != axis && mpri_dim_const(idx->d[i]) && mpri_dim_const(x->d[i]) &&
                idx->d[i] > x->d[i])
                TRY(mpri_op_same_dim(c, "dims beside the axis of GatherElements", 0, x->d[i], 1,
                                     idx->d[i]));
    }
    return mpri_infer_set(c, 0, op_type(c, 0), idx);
}

static mpr_status infer_gather_nd(InferCtx *c)
{
    const GatherNDParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *idx = op_shape(c, 1);
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    TRY(mpri_op_check_rank(c, 1, 1, MPRI_MAX_RANK));
    if (x->rank < 0 || idx->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    int batch = (int)p->batch_dims;
    if (batch >= x->rank || batch >= idx->rank)
        return mpri_op_shape_error(c, 0, "batch_dims of GatherND, allowed below both ranks", batch);
    for (int i = 0; i < batch; i++)
        TRY(mpri_op_same_dim(c, "batch dims of GatherND", 0, x->d[i], 1, idx->d[i]));
    Dim depth = idx->d[idx->rank - 1];
    if (!mpri_dim_const(depth)) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    if (depth < 1 || depth > x->rank - batch)
        return mpri_op_shape_error(
            c, 0, "last dim of the indices of GatherND, allowed 1 to rank - batch_dims", depth);
    Shape out = *idx;
    out.rank--;
    int first = batch + (int)depth;
    if (out.rank + x->rank - first > MPRI_MAX_RANK)
        return mpri_op_shape_error(c, 1, "rank of the result of GatherND, allowed at most 8",
                                   out.rank + x->rank - first);
    for (int i = first; i < x->rank; i++) out.d[out.rank++] = x->d[i];
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

/* ---- gradients ---- */

static Value *scatter_add(GradCtx *c, Value *dy, Value *indices, int64_t axis, int rank,
                          const int64_t *dims)
{
    GatherGradParams p = {.axis = axis, .dims = {rank, dims}};
    return mpri_build2(c->b, OP_GatherGrad, &p, dy, indices);
}

static mpr_status grad_gather(GradCtx *c)
{
    const AxisParams *p = c->n->params;
    Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    c->dx[0] = scatter_add(c, c->dy[0], grad_in(c, 1), p->axis, x->shape.rank, x->shape.d);
    return mpri_op_grad_done(c);
}

static Value *i64(GradCtx *c, int64_t v)
{
    int64_t one[1] = {v};
    return mpri_build_i64s(c->b, 1, one);
}

/* Indices as int64 counted from the front. n broadcasts: the dim(s) that they index. */
static Value *from_front(GradCtx *c, Value *indices, Value *n)
{
    Value *v = mpri_build_cast(c->b, indices, MPR_INT64);
    Value *negative = mpri_op_grad_binary(c, OP_Less, v, i64(c, 0));
    return mpri_build3(c->b, OP_Where, NULL, negative, mpri_op_grad_binary(c, OP_Add, v, n), v);
}

/* 0, stride, 2 stride … along one axis of a tensor of that rank, ones elsewhere. */
static Value *offsets(GradCtx *c, int rank, int axis, int64_t n, int64_t stride)
{
    int64_t dims[MPRI_MAX_RANK];
    Arena *arena = c->b->g->arena;
    int64_t *v = ARENA_ARRAY(arena, int64_t, n ? n : 1);
    if (!v) {
        c->b->failed = mpri_err_nomem(c->err, (size_t)n * sizeof *v);
        return NULL;
    }
    for (int i = 0; i < rank; i++) dims[i] = i == axis ? n : 1;
    for (int64_t i = 0; i < n; i++) v[i] = i * stride;
    return mpri_op_grad_reshape(c, mpri_build_i64s(c->b, n, v), rank, dims);
}

static int64_t product(const int64_t *d, int from, int to)
{
    int64_t n = 1;
    for (int i = from; i < to; i++) n *= d[i];
    return n;
}

/* The element of x behind indices[i0,i1,…] lies at index * stride(axis) + sum over the others. */
static mpr_status grad_gather_elements(GradCtx *c)
{
    const AxisParams *p = c->n->params;
    Value *x = grad_in(c, 0), *idx = grad_in(c, 1);
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_const_shape(c, idx));
    int rank = x->shape.rank, axis = (int)(p->axis < 0 ? p->axis + rank : p->axis);
    int64_t total = product(x->shape.d, 0, rank), count = product(idx->shape.d, 0, rank);
    Value *at = from_front(c, idx, i64(c, x->shape.d[axis]));
    at = mpri_op_grad_binary(c, OP_Mul, at, i64(c, product(x->shape.d, axis + 1, rank)));
    for (int i = 0; i < rank; i++) {
        if (i == axis || idx->shape.d[i] <= 1) continue;
        Value *rest = offsets(c, rank, i, idx->shape.d[i], product(x->shape.d, i + 1, rank));
        at = mpri_op_grad_binary(c, OP_Add, at, rest);
    }
    Value *flat = mpri_op_grad_reshape(c, at, 1, &count);
    Value *dx = scatter_add(c, mpri_op_grad_reshape(c, c->dy[0], 1, &count), flat, 0, 1, &total);
    c->dx[0] = mpri_op_grad_reshape_like(c, dx, x);
    return mpri_op_grad_done(c);
}

/* Rows of a table [batch * indexed dims, row], at batch offset + sum of index_k * stride_k. */
static mpr_status grad_gather_nd(GradCtx *c)
{
    const GatherNDParams *p = c->n->params;
    Value *x = grad_in(c, 0), *idx = grad_in(c, 1);
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_const_shape(c, idx));
    int batch = (int)p->batch_dims, q = idx->shape.rank, depth = (int)idx->shape.d[q - 1],
        last = batch + depth;
    int64_t strides[MPRI_MAX_RANK], batches = product(x->shape.d, 0, batch);
    int64_t per_batch = product(x->shape.d, batch, last),
            row = product(x->shape.d, last, x->shape.rank);
    int64_t per = product(idx->shape.d, batch, q - 1), grid[2] = {batches, per},
            count = batches * per;
    for (int k = 0; k < depth; k++) strides[k] = product(x->shape.d, batch + k + 1, last);
    Value *at = from_front(c, idx, mpri_build_i64s(c->b, depth, x->shape.d + batch));
    at = mpri_op_grad_binary(c, OP_Mul, at, mpri_build_i64s(c->b, depth, strides));
    at = mpri_op_grad_reduce(c, OP_ReduceSum, at, 1, &(int64_t){q - 1});
    at = mpri_op_grad_reshape(c, at, 2, grid);
    if (batches > 1) at = mpri_op_grad_binary(c, OP_Add, at, offsets(c, 2, 0, batches, per_batch));
    int64_t table[2] = {batches * per_batch, row}, rows[2] = {count, row};
    at = mpri_op_grad_reshape(c, at, 1, &count);
    Value *dx = scatter_add(c, mpri_op_grad_reshape(c, c->dy[0], 2, rows), at, 0, 2, table);
    c->dx[0] = mpri_op_grad_reshape_like(c, dx, x);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define LOOKUP                                                                                     \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .fixed_in = 2, .nondiff_in = 2,          \
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_Gather = {
    MPRI_OP(Gather, "", "index"), .help = "slices along an axis, by index", LOOKUP,
    PARAMS(AxisParams, axis_attrs), .infer = infer_gather, .grad = grad_gather,
};
const OpDef mpri_op_GatherGrad = {
    MPRI_OP(GatherGrad, "mpr", "index"), .help = "(dy, indices): sum of dy per table entry, f32",
    .min_in = 2, .max_in = 2, .min_out = 1,
    .max_out = 1, PARAMS(GatherGradParams, gather_grad_attrs),
    .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_gather_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
const OpDef mpri_op_GatherElements = {
    MPRI_OP(GatherElements, "", "index"),
    .help = "elements along an axis, one index per result", LOOKUP,
    PARAMS(AxisParams, axis_attrs), .infer = infer_gather_elements, .grad = grad_gather_elements,
};
const OpDef mpri_op_GatherND = {
    MPRI_OP(GatherND, "", "index"), .help = "slices by index tuples", LOOKUP,
    PARAMS(GatherNDParams, gather_nd_attrs), .infer = infer_gather_nd, .grad = grad_gather_nd,
};
