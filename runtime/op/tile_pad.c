/* Tile and Pad: copies of a tensor beside each other, and tensors with a border.
 *
 * Gradients. A tile adds up along one axis at a time, in f32. The inverse of a constant border is
 * the border with its signs turned, which also handles mixed signs; the other modes are a lookup
 * per axis, whose gradient is GatherGrad. */
#include "runtime/op/layout.h"
#include "runtime/op/pad_index.h"

static const AttrRow pad_attrs[] = {
    ATTR(PadParams, mode, "mode", STRING, .def_string = "constant",
         .choices = "constant|reflect|edge|wrap"),
    ATTR_END,
};

/* ---- Tile ---- */

static mpr_status infer_tile(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    int64_t n, v;
    Dim count;
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    const Dim *r = mpri_infer_content(c, 1, &n);
    if (x->rank < 0) {
        bool known = mpri_op_elements(c, 1, &count) && mpri_dim_const(count);
        Shape out = known ? mpri_op_fresh_shape(c, count) : mpri_op_unknown;
        return mpri_infer_set(c, 0, op_type(c, 0), &out);
    }
    if (r && n != x->rank)
        return mpri_op_shape_error(c, 0, "entries of repeats of Tile, allowed: one per dim", n);
    Shape out = *x;
    for (int k = 0; k < x->rank; k++) {
        int64_t dim = mpri_dim_const(x->d[k]) ? x->d[k] : 1, all;
        bool repeated = r && mpri_dim_is_int(c->sym, r[k], &v);
        if (repeated && v < 0) return mpri_op_shape_error(c, 0, "negative entry of repeats of Tile", v);
        if (repeated && (__builtin_mul_overflow(dim > 0 ? dim : 1, v, &all) || all > MPRI_MOST_ELEMENTS))
            return mpri_op_shape_error(c, 0, "entry of repeats of Tile gives more than 2^56 elements", v);
        out.d[k] = r ? mpri_dim_mul(c->sym, x->d[k], r[k]) : mpri_dim_fresh(c->sym);
    }
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

/* Axis k of what is left holds r copies of d elements: [outer, r, d * inner]. */
static mpr_status grad_tile(GradCtx *c)
{
    Value *x = grad_in(c, 0), *dx = c->dy[0];
    int64_t n, outer = 1, axis = 1;
    const int64_t *r;
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_ints(c, 1, &n, &r));
    if (mpri_shape_elements(&dx->shape) == 0) { /* sizes of what is repeated 0 times need not fit */
        c->dx[0] = mpri_op_grad_zeros_like(c, x);
        return mpri_op_grad_done(c);
    }
    ReduceParams sum = {.out_dtype = mpri_op_wide(dx->dtype)};
    for (int k = 0; k < x->shape.rank; k++) {
        int64_t inner = x->shape.d[k];
        for (int j = k + 1; j < x->shape.rank; j++) inner *= x->shape.d[j] * r[j];
        if (r[k] != 1) {
            dx = mpri_op_grad_reshape(c, dx, 3, (int64_t[]){outer, r[k], inner});
            dx = mpri_build2(c->b, OP_ReduceSum, &sum, dx, mpri_build_i64s(c->b, 1, &axis));
        }
        outer *= x->shape.d[k];
    }
    c->dx[0] = mpri_op_grad_reshape_like(c, dx, x);
    return mpri_op_grad_done(c);
}

/* ---- Pad ---- */

typedef struct Border {
    Dim before[MPRI_MAX_RANK], after[MPRI_MAX_RANK];
    bool known;
} Border;

static mpr_status border_of(InferCtx *c, int rank, Border *b)
{
    int64_t n = 0, n_axes = rank;
    int axes[MPRI_MAX_RANK];
    *b = (Border){.known = false};
    const Dim *pads = mpri_infer_content(c, 1, &n);
    const int64_t *v = op_in(c, 3) ? mpri_op_ints(c, 3, &n_axes) : NULL;
    if (!pads || (op_in(c, 3) && !v)) return MPR_OK;
    if (n != 2 * n_axes)
        return mpri_op_shape_error(c, 0, "entries of pads, allowed: two per padded axis", n);
    if (v) TRY(mpri_op_axes(c, n_axes, v, rank, axes));
    for (int64_t i = 0, one; i < n; i++)
        if (mpri_dim_is_int(c->sym, pads[i], &one) && (one < -MPRI_MOST_ELEMENTS || one > MPRI_MOST_ELEMENTS))
            return mpri_op_shape_error(c, 0, "entry of pads, allowed -2^56 to 2^56", one);
    for (int64_t i = 0; i < n_axes; i++) {
        int axis = v ? axes[i] : (int)i;
        b->before[axis] = pads[i];
        b->after[axis] = pads[n_axes + i];
    }
    b->known = true;
    return MPR_OK;
}

/* One axis; *out is its padded size. */
static mpr_status pad_axis(InferCtx *c, Dim dim, Dim before, Dim after, Dim *out)
{
    const PadParams *p = c->n->params;
    int64_t a, z, size;
    *out = mpri_op_dim_add(c->sym, dim, mpri_op_dim_add(c->sym, before, after));
    if (mpri_dim_is_int(c->sym, *out, &size) && size < 0)
        return mpri_op_shape_error(c, 0, "size of an axis after negative pads", size);
    if (p->mode[0] == 'c' || !mpri_dim_const(dim) || !mpri_dim_is_int(c->sym, before, &a) ||
        !mpri_dim_is_int(c->sym, after, &z) || *out == 0 || mpri_pad_kept(dim, a, z) > 0)
        return MPR_OK;
    return mpri_op_shape_error(c, 0, "elements to extend in modes other than constant, allowed: at "
                                     "least 1", mpri_pad_kept(dim, a, z));
}

static mpr_status infer_pad(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    Border b;
    Dim one;
    DType t;
    TRY(mpri_op_common_type(c, 0, 1, TS_ANY, &t));
    if (op_in(c, 2) && t != MPR_DTYPE_NONE) TRY(mpri_op_check_type(c, 2, TS(t)));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    TRY(mpri_op_check_type(c, 3, TS_INDEX));
    if (op_in(c, 2) && mpri_op_elements(c, 2, &one) && mpri_dim_const(one) && one != 1)
        return mpri_op_shape_error(c, 2, "elements of constant_value, allowed 1", one);
    if (x->rank < 0) return mpri_infer_set(c, 0, t, NULL);
    TRY(border_of(c, x->rank, &b));
    Shape out = b.known ? *x : mpri_op_fresh_shape(c, x->rank);
    for (int k = 0; b.known && k < x->rank; k++)
        TRY(pad_axis(c, x->d[k], b.before[k], b.after[k], &out.d[k]));
    return mpri_infer_set(c, 0, t, &out);
}

/* The border again, as numbers. */
static mpr_status grad_border(GradCtx *c, int rank, int64_t *before, int64_t *after)
{
    int64_t n, n_axes = rank;
    const int64_t *pads, *axes = NULL;
    TRY(mpri_op_grad_ints(c, 1, &n, &pads));
    if (grad_in(c, 3)) TRY(mpri_op_grad_ints(c, 3, &n_axes, &axes));
    for (int k = 0; k < rank; k++) before[k] = after[k] = 0;
    for (int64_t i = 0; i < n_axes; i++) {
        int64_t axis = axes ? axes[i] : i;
        if (axis < 0) axis += rank;
        before[axis] = pads[i];
        after[axis] = pads[n_axes + i];
    }
    return MPR_OK;
}

/* Zeros of the type of v, or true for bool, around v. */
static Value *bordered(GradCtx *c, Value *v, const int64_t *before, const int64_t *after, int sign)
{
    int64_t pads[2 * MPRI_MAX_RANK];
    int rank = v ? v->shape.rank : 0;
    PadParams p = {.mode = "constant"};
    for (int k = 0; k < rank; k++) {
        pads[k] = sign * before[k];
        pads[rank + k] = sign * after[k];
    }
    Value *fill = v ? mpri_op_grad_scalar(c, v, v->dtype == MPR_BOOL) : NULL;
    return mpri_build3(c->b, OP_Pad, &p, v, mpri_build_i64s(c->b, 2 * rank, pads), fill);
}

/* Lookup per axis, undone per axis. */
static Value *fold_border(GradCtx *c, const char *mode, const int64_t *before,
                          const int64_t *after)
{
    const Shape *x = &grad_in(c, 0)->shape;
    Value *dx = c->dy[0];
    Shape now = dx->shape;
    for (int k = 0; k < x->rank && dx; k++) {
        if (!before[k] && !after[k]) continue;
        int64_t n = now.d[k], *at = ARENA_ARRAY(c->b->g->arena, int64_t, n ? n : 1);
        if (!at) {
            c->b->failed = mpri_err_nomem(c->err, (size_t)n * sizeof *at);
            return NULL;
        }
        for (int64_t i = 0; i < n; i++)
            at[i] = mpri_pad_source(mode, x->d[k], before[k], after[k], i);
        now.d[k] = x->d[k];
        GatherGradParams p = {.axis = k, .dims = {now.rank, now.d}};
        dx = mpri_build2(c->b, OP_GatherGrad, &p, dx, mpri_build_i64s(c->b, n, at));
    }
    return dx;
}

/* The constant's part: the sum of dy over the border, which is marked by padding `false`. */
static Value *border_sum(GradCtx *c, const int64_t *before, const int64_t *after)
{
    const Value *x = grad_in(c, 0);
    static const bool inside = false;
    ConstantOfShapeParams p = {
        .value = {.dtype = MPR_BOOL, .shape = {.rank = 1, .d = {1}}, .data = &inside}};
    Value *mark = mpri_build1(c->b, OP_ConstantOfShape, &p,
                              mpri_build_i64s(c->b, x->shape.rank, x->shape.d));
    mark = bordered(c, mark, before, after, 1);
    Value *dy = c->dy[0];
    dy = mpri_build3(c->b, OP_Where, NULL, mark, dy, mpri_op_grad_zero(c, dy));
    ReduceParams all = {.out_dtype = mpri_op_wide(c->dy[0]->dtype)};
    return mpri_op_grad_reshape_like(c, mpri_build1(c->b, OP_ReduceSum, &all, dy), grad_in(c, 2));
}

static mpr_status grad_pad(GradCtx *c)
{
    const PadParams *p = c->n->params;
    const Value *x = grad_in(c, 0);
    int64_t before[MPRI_MAX_RANK], after[MPRI_MAX_RANK];
    bool constant = p->mode[0] == 'c';
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(grad_border(c, x->shape.rank, before, after));
    if (grad_needs(c, 0))
        c->dx[0] = constant ? bordered(c, c->dy[0], before, after, -1)
                            : fold_border(c, p->mode, before, after);
    if (grad_needs(c, 2) && constant) c->dx[2] = border_sum(c, before, after);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

const OpDef mpri_op_Tile = {
    MPRI_OP(Tile, "", "tile_pad"), .help = "the tensor repeated along each axis", MOVE,
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .fixed_in = 2, .nondiff_in = 2,
    .infer = infer_tile, .grad = grad_tile,
};
const OpDef mpri_op_Pad = {
    MPRI_OP(Pad, "", "tile_pad"),
    .help = "a border of a constant, or of reflected, repeated or wrapped elements", MOVE,
    .min_in = 2, .max_in = 4, .min_out = 1, .max_out = 1, .optional_in = 12,
    PARAMS(PadParams, pad_attrs), .fixed_in = 10, .nondiff_in = 10,
    .infer = infer_pad, .grad = grad_pad,
};
