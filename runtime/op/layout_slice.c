/* Split and Slice.
 *
 * Slice with symbols: an end beyond 2^31 means "to the end", x[:, :-1] and x[:, 1:] both give
 * n - 1, and a symbolic end is clamped by min(). Numbers are exact; symbolic results are computed
 * again when bound. */
#include "runtime/op/layout.h"

static const AttrRow split_attrs[] = {
    ATTR(SplitParams, axis, "axis", INT),
    ATTR(SplitParams, num_outputs, "num_outputs", INT, .min_int = 0, .max_int = INT32_MAX),
    ATTR_END,
};
static const AttrRow slice_grad_attrs[] = {
    ATTR(SliceGradParams, dims, "dims", INTS, .required = true),
    ATTR(SliceGradParams, starts, "starts", INTS),
    ATTR(SliceGradParams, axes, "axes", INTS),
    ATTR(SliceGradParams, steps, "steps", INTS),
    ATTR_END,
};

/* ---- Split ---- */

/* Equal parts, the last one smaller. */
static Dim equal_part(InferCtx *c, Dim whole, int64_t parts, bool last)
{
    Dim exact = mpri_dim_div(c->sym, whole, parts);
    if (mpri_dim_mul(c->sym, exact, parts) == whole) return exact;
    Dim part = mpri_dim_div(c->sym, mpri_dim_add(c->sym, whole, parts - 1), parts);
    if (!last) return part;
    return mpri_op_dim_max(
        c->sym, mpri_op_dim_sub(c->sym, whole, mpri_dim_mul(c->sym, part, parts - 1)), 0);
}

/* Contents of one part of a 1-D tensor. */
static void split_content(InferCtx *c, int out, int64_t from, Dim size)
{
    int64_t n;
    const Dim *d = mpri_infer_content(c, 0, &n);
    if (d && mpri_dim_const(size) && from >= 0 && from + size <= n)
        mpri_infer_set_content(c, out, size, d + from);
}

static mpr_status infer_split(InferCtx *c)
{
    const SplitParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    int64_t n = 0, parts = c->n->n_out, from = 0;
    int axis = 0;
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    if (p->num_outputs && p->num_outputs != parts)
        return mpri_op_shape_error(
            c, 0, "num_outputs of Split differs from the outputs of the node", p->num_outputs);
    const Dim *sizes = op_in(c, 1) ? mpri_infer_content(c, 1, &n) : NULL;
    if (sizes && n != parts)
        return mpri_op_shape_error(c, 1, "entries of split, allowed: one per output", n);
    if (x->rank >= 0) TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
    Dim sum = 0;
    for (int i = 0; i < parts; i++) {
        Shape out = *x;
        if (x->rank >= 0) {
            Dim size = sizes ? sizes[i] : mpri_dim_fresh(c->sym);
            if (!op_in(c, 1)) size = equal_part(c, x->d[axis], parts, i == parts - 1);
            out.d[axis] = size;
            sum = mpri_dim_add(c->sym, sum, size);
        }
        TRY(mpri_infer_set(c, i, op_type(c, 0), &out));
        if (x->rank == 1) split_content(c, i, from, out.d[0]);
        from = x->rank == 1 && from >= 0 && mpri_dim_const(out.d[0]) ? from + out.d[0] : -1;
    }
    if (x->rank >= 0 && mpri_dim_const(sum) && mpri_dim_const(x->d[axis]) && sum != x->d[axis])
        return mpri_op_shape_error(c, 0, "sizes of Split do not add up to the dim along the axis",
                                   sum);
    return MPR_OK;
}

/* Cotangents one after another, zeros for those that are absent. */
static mpr_status grad_split(GradCtx *c)
{
    const SplitParams *p = c->n->params;
    AxisParams axis = {.axis = p->axis};
    int n = c->n->n_out;
    Value **parts = ARENA_ARRAY(c->b->g->arena, Value *, n);
    if (!parts) return mpri_err_nomem(c->err, (size_t)n * sizeof *parts);
    for (int i = 0; i < n; i++) {
        if (!c->n->out[i] && !c->dy[i])
            return mpri_err_set(c->err, MPR_E_NOT_DIFFERENTIABLE, "output %d of Split has no name",
                                i);
        parts[i] = c->dy[i] ? c->dy[i] : mpri_op_grad_zeros_like(c, c->n->out[i]);
    }
    c->dx[0] = n == 1 ? parts[0] : mpri_build(c->b, OP_Concat, &axis, n, parts, 1, NULL);
    return mpri_op_grad_done(c);
}

/* ---- Slice ---- */

/* Exporters write INT32_MAX, INT64_MAX and what lies between as "to the end". */
#define FAR ((int64_t)INT32_MAX)

typedef struct Range1 { /* elements start, start + step … of one axis */
    int64_t start, step, n;
} Range1;

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

static Range1 range_of(int64_t dim, int64_t start, int64_t end, int64_t step)
{
    Range1 r = {.step = step};
    if (start < 0) start = start < -dim ? -1 : start + dim;
    if (end < 0) end = end < -dim ? -1 : end + dim;
    if (step > 0) {
        r.start = clamp(start, 0, dim);
        end = clamp(end, 0, dim);
        r.n = end > r.start ? (end - r.start - 1) / step + 1 : 0;
    } else {
        r.start = clamp(start, -1, dim - 1);
        end = clamp(end, -1, dim - 1);
        uint64_t width = step == INT64_MIN ? (uint64_t)INT64_MAX + 1 : (uint64_t)-step;
        r.n = r.start > end ? (int64_t)((uint64_t)(r.start - end - 1) / width) + 1 : 0;
    }
    return r;
}

/* A bound of a symbolic slice with step 1, as a position from the front. */
static Dim position(SymTab *s, Dim dim, Dim bound)
{
    int64_t v;
    if (bound == dim) return dim;
    if (!mpri_dim_is_int(s, bound, &v)) return mpri_dim_min(s, bound, dim);
    if (v < 0) return mpri_dim_add(s, dim, bound);
    if (v >= FAR) return dim;
    return v == 0 ? 0 : mpri_dim_min(s, bound, dim);
}

static Dim slice_dim(InferCtx *c, Dim dim, Dim start, Dim end, Dim step)
{
    SymTab *s = c->sym;
    int64_t a, b, k;
    bool ka = mpri_dim_is_int(s, start, &a), kk = mpri_dim_is_int(s, step, &k);
    if (mpri_dim_const(dim) && ka && kk && mpri_dim_is_int(s, end, &b))
        return range_of(dim, a, b, k).n;
    if (!kk || k != 1) return mpri_dim_fresh(s);
    Dim to = position(s, dim, end);
    if (ka && a == 0) return to;
    if (ka && a < 0 && to == dim) /* the last -a */
        return a <= -FAR ? dim : mpri_dim_min(s, dim, -a);
    if (ka && a > 0 && to == dim) return mpri_dim_sub(s, dim, a);
    return mpri_dim_sub(s, to, position(s, dim, start));
}

typedef struct Bounds {
    int64_t n;
    int axes[MPRI_MAX_RANK];
    const Dim *start, *end, *step; /* NULL: not known (step: 1) */
} Bounds;

/* Axes of the slice; n is -1 when they are not known. */
static mpr_status slice_bounds(InferCtx *c, int rank, Bounds *b)
{
    int64_t n_start = 0, n_end = 0, n_step = 0, n_axes = 0;
    static const int64_t in_order[MPRI_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    Dim count;
    b->start = mpri_infer_content(c, 1, &n_start);
    b->end = mpri_infer_content(c, 2, &n_end);
    b->step = op_in(c, 4) ? mpri_infer_content(c, 4, &n_step) : NULL;
    const int64_t *axes = op_in(c, 3) ? mpri_op_ints(c, 3, &n_axes) : in_order;
    b->n = -1;
    if (!axes || !mpri_op_elements(c, 1, &count) || !mpri_dim_const(count)) return MPR_OK;
    if (count > rank || (op_in(c, 3) && n_axes != count) || (b->end && n_end != count) ||
        (b->step && n_step != count))
        return mpri_op_shape_error(
            c, 0, "Slice needs as many ends, axes and steps as starts, at most one per dim; starts",
            count);
    b->n = count;
    return mpri_op_axes(c, count, axes, rank, b->axes);
}

static Dim bound_step(const Bounds *b, int64_t i) { return b->step ? b->step[i] : 1; }

static void slice_content(InferCtx *c, const Bounds *b)
{
    int64_t n, start, end, step;
    const Dim *d = mpri_infer_content(c, 0, &n);
    if (!d || b->n != 1 || !b->start || !b->end) return;
    if (!mpri_dim_is_int(c->sym, b->start[0], &start) ||
        !mpri_dim_is_int(c->sym, b->end[0], &end) ||
        !mpri_dim_is_int(c->sym, bound_step(b, 0), &step))
        return;
    Range1 r = range_of(n, start, end, step);
    Dim *out = mpri_op_content_alloc(c, r.n);
    if (!out) return;
    for (int64_t i = 0; i < r.n; i++) out[i] = d[r.start + i * step];
    mpri_infer_set_content(c, 0, r.n, out);
}

static mpr_status infer_slice(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    Bounds b;
    for (int k = 1; k < 5; k++) {
        TRY(mpri_op_check_type(c, k, TS_INDEX));
        TRY(mpri_op_check_rank(c, k, 1, 1));
    }
    if (x->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    TRY(slice_bounds(c, x->rank, &b));
    bool unknown_step = op_in(c, 4) && !b.step;
    Shape out = b.n < 0 ? mpri_op_fresh_shape(c, x->rank) : *x;
    for (int64_t i = 0; i < b.n; i++) {
        int64_t step;
        if (mpri_dim_is_int(c->sym, bound_step(&b, i), &step) && step == 0)
            return mpri_op_shape_error(c, 0, "step of Slice, allowed: not 0", step);
        int axis = b.axes[i];
        out.d[axis] = b.start && b.end && !unknown_step
                          ? slice_dim(c, x->d[axis], b.start[i], b.end[i], bound_step(&b, i))
                          : mpri_dim_fresh(c->sym);
    }
    TRY(mpri_infer_set(c, 0, op_type(c, 0), &out));
    if (x->rank == 1 && !unknown_step) slice_content(c, &b);
    return MPR_OK;
}

static mpr_status grad_slice(GradCtx *c)
{
    Value *x = grad_in(c, 0);
    int64_t n, n_end, n_axes = 0, n_step = 0, starts[MPRI_MAX_RANK], axes[MPRI_MAX_RANK],
                      steps[MPRI_MAX_RANK];
    const int64_t *start, *end, *axis = NULL, *step = NULL;
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_ints(c, 1, &n, &start));
    TRY(mpri_op_grad_ints(c, 2, &n_end, &end));
    if (grad_in(c, 3)) TRY(mpri_op_grad_ints(c, 3, &n_axes, &axis));
    if (grad_in(c, 4)) TRY(mpri_op_grad_ints(c, 4, &n_step, &step));
    int rank = x->shape.rank;
    for (int64_t i = 0; i < n && i < rank; i++) {
        axes[i] = axis ? axis[i] : i;
        if (axes[i] < 0) axes[i] += rank;
        Range1 r = range_of(x->shape.d[axes[i]], start[i], end[i], step ? step[i] : 1);
        starts[i] = r.n > 0 ? r.start : 0;
        steps[i] = r.step;
    }
    SliceGradParams p = {
        .dims = {rank, x->shape.d}, .starts = {n, starts}, .axes = {n, axes}, .steps = {n, steps}};
    c->dx[0] = mpri_build1(c->b, OP_SliceGrad, &p, c->dy[0]);
    return mpri_op_grad_done(c);
}

static mpr_status infer_slice_grad(InferCtx *c)
{
    const SliceGradParams *p = c->n->params;
    const Shape *dy = op_shape(c, 0);
    Shape out;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    if (p->starts.n != p->axes.n || p->steps.n != p->axes.n)
        return mpri_op_shape_error(c, 0, "SliceGrad needs one start and step per axis; axes",
                                   p->axes.n);
    if (dy->rank >= 0 && dy->rank != out.rank)
        return mpri_op_expect_shape(c, 0, &out, "cotangent, up to sliced axes");
    for (int64_t i = 0; i < p->axes.n; i++) {
        int64_t axis = p->axes.v[i], start = p->starts.v[i], step = p->steps.v[i];
        if (axis < 0 || axis >= out.rank)
            return mpri_op_shape_error(c, 0, "axis of SliceGrad", axis);
        if (dy->rank < 0 || !mpri_dim_const(dy->d[axis]) || dy->d[axis] == 0) continue;
        int64_t last;
        bool beyond = __builtin_mul_overflow(dy->d[axis] - 1, step, &last) || __builtin_add_overflow(last, start, &last);
        if (beyond || start < 0 || start >= out.d[axis] || last < 0 || last >= out.d[axis])
            return mpri_op_shape_error(c, 0, "SliceGrad writes outside its dims; step", step);
    }
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

/* ---- definitions ---- */

const OpDef mpri_op_Split = {
    MPRI_OP(Split, "", "layout"), .help = "parts along an axis",
    .min_in = 1, .max_in = 2, .min_out = 1, .max_out = -1,
    .optional_in = 2, PARAMS(SplitParams, split_attrs),
    .fixed_in = 2, .nondiff_in = 2, MOVE, .infer = infer_split, .grad = grad_split,
};
const OpDef mpri_op_Slice = {
    MPRI_OP(Slice, "", "layout"), .help = "elements start, start + step ... before end, per axis",
    .min_in = 3, .max_in = 5, .min_out = 1, .max_out = 1, .optional_in = 24, .fixed_in = 30,
    .nondiff_in = 30, MOVE,
    .infer = infer_slice, .grad = grad_slice,
};
const OpDef mpri_op_SliceGrad = {
    MPRI_OP(SliceGrad, "mpr", "layout"),
    .help = "(dy): zeros of shape dims with dy at the sliced positions",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(SliceGradParams, slice_grad_attrs),
    .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_slice_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
