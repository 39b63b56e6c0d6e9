/* Elements picked by contents: Compress, NonZero, Unique; and ReverseSequence.
 *
 * The first three have sizes that depend on data. They are counted here once the data are constant,
 * in the file or after folding; until then the size is an unknown dim, and a plan that still holds
 * one is refused with the node named. */
#include "runtime/op/rules.h"
#include "runtime/op/unique.h"

static const AttrRow compress_attrs[] = {
    ATTR(CompressParams, axis, "axis", INT, .def_int = MPRI_NO_AXIS), ATTR_END};
static const AttrRow unique_attrs[] = {
    ATTR(UniqueParams, axis, "axis", INT, .def_int = MPRI_NO_AXIS),
    ATTR_FLAG(UniqueParams, sorted, "sorted", 1),
    ATTR_END,
};
static const AttrRow reverse_attrs[] = {
    ATTR(ReverseSequenceParams, batch_axis, "batch_axis", INT, .def_int = 1),
    ATTR(ReverseSequenceParams, time_axis, "time_axis", INT),
    ATTR_END,
};

/* An input whose elements are known now. */
static const Value *known(const InferCtx *c, int k)
{
    const Value *v = op_in(c, k);
    bool here = v && v->kind == VAL_CONST && v->data && mpri_dtype_size(v->dtype) &&
                mpri_shape_const(&v->shape);
    return here ? v : NULL;
}

/* ---- Compress ---- */

static Dim count_true(InferCtx *c, Dim dim)
{
    const Value *v = known(c, 1);
    if (!v || !mpri_dim_const(dim)) return mpri_dim_fresh(c->sym);
    int64_t n = mpri_shape_elements(&v->shape), count = 0;
    for (int64_t i = 0; i < n && i < dim; i++)
        count += mpri_load_i64(v->dtype, v->data, i) != 0;
    return count;
}

static mpr_status infer_compress(InferCtx *c)
{
    const CompressParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    Dim n = mpri_dim_fresh(c->sym);
    int axis = 0;
    TRY(mpri_op_check_type(c, 1, TS_BOOL));
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    bool flat = p->axis == MPRI_NO_AXIS;
    Shape out = flat ? (Shape){.rank = 1} : *x;
    if (!flat && x->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    if (flat) mpri_op_elements(c, 0, &n);
    else TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
    Dim dim = flat ? n : x->d[axis];
    if (mpri_dim_const(dim) && op_shape(c, 1)->rank == 1 && mpri_dim_const(op_shape(c, 1)->d[0]) &&
        op_shape(c, 1)->d[0] > dim)
        return mpri_op_shape_error(c, 0, "entries of the condition of Compress, allowed at most "
                                         "one per element", op_shape(c, 1)->d[0]);
    out.d[axis] = count_true(c, dim);
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

/* The picked elements are a Gather with constant indices. */
static mpr_status grad_compress(GradCtx *c)
{
    const CompressParams *p = c->n->params;
    const Value *x = grad_in(c, 0), *cond = grad_in(c, 1);
    TRY(mpri_op_grad_const_shape(c, x));
    if (cond->kind != VAL_CONST || !cond->data)
        return mpri_err_set(c->err, MPR_E_NOT_DIFFERENTIABLE,
                            "the condition '%s' of Compress is computed at run time",
                            mpri_err_name(cond->name));
    bool flat = p->axis == MPRI_NO_AXIS;
    Shape table = flat ? (Shape){.rank = 1, .d = {mpri_shape_elements(&x->shape)}} : x->shape;
    int axis = flat ? 0 : (int)(p->axis < 0 ? p->axis + table.rank : p->axis);
    int64_t n = mpri_shape_elements(&cond->shape), count = 0;
    int64_t *at = ARENA_ARRAY(c->b->g->arena, int64_t, n ? n : 1);
    if (!at) return mpri_err_nomem(c->err, (size_t)n * sizeof *at);
    for (int64_t i = 0; i < n && i < table.d[axis]; i++)
        if (mpri_load_i64(cond->dtype, cond->data, i)) at[count++] = i;
    GatherGradParams scatter = {.axis = axis, .dims = {table.rank, table.d}};
    Value *dx = mpri_build2(c->b, OP_GatherGrad, &scatter, c->dy[0],
                            mpri_build_i64s(c->b, count, at));
    c->dx[0] = mpri_op_grad_reshape_like(c, dx, x);
    return mpri_op_grad_done(c);
}

/* ---- ReverseSequence ---- */

static mpr_status infer_reverse(InferCtx *c)
{
    const ReverseSequenceParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    int batch, time;
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    if (x->rank >= 0) {
        TRY(mpri_infer_axis(c, p->batch_axis, x->rank, &batch));
        TRY(mpri_infer_axis(c, p->time_axis, x->rank, &time));
        if (batch == time || batch > 1 || time > 1)
            return mpri_op_shape_error(c, 0, "ReverseSequence needs batch_axis and time_axis 0 and "
                                             "1 in some order; time_axis", time);
        Shape lens = {.rank = 1, .d = {x->d[batch]}};
        TRY(mpri_op_expect_shape(c, 1, &lens, "sequence_lens, one per batch row"));
    }
    return mpri_op_infer_same(c);
}

/* Reversing twice changes nothing. */
static mpr_status grad_reverse(GradCtx *c)
{
    c->dx[0] = mpri_build2(c->b, OP_ReverseSequence, c->n->params, c->dy[0], grad_in(c, 1));
    return mpri_op_grad_done(c);
}

/* ---- NonZero ---- */

static mpr_status infer_non_zero(InferCtx *c)
{
    const Value *v = known(c, 0);
    Shape out = {.rank = 2, .d = {mpri_dim_fresh(c->sym), mpri_dim_fresh(c->sym)}};
    if (op_shape(c, 0)->rank >= 0) out.d[0] = op_shape(c, 0)->rank;
    if (v) {
        int64_t n = mpri_shape_elements(&v->shape);
        out.d[1] = 0;
        for (int64_t i = 0; i < n; i++) out.d[1] += mpri_load_f64(v->dtype, v->data, i) != 0;
    }
    return mpri_infer_set(c, 0, MPR_INT64, &out);
}

/* ---- Unique ---- */

static mpr_status count_unique(InferCtx *c, const UniqueItems *u, Dim *count)
{
    const Alloc *a = c->g->arena->alloc;
    size_t bytes = (size_t)u->n * sizeof(int64_t);
    int64_t *order = mpri_alloc(a, bytes ? bytes : 1, 16), *work = mpri_alloc(a, bytes + 1, 16);
    if (order && work) {
        mpri_unique_sort(u, order, work);
        *count = mpri_unique_count(u, order);
    }
    bool failed = !order || !work;
    mpri_free(a, order);
    mpri_free(a, work);
    return failed ? mpri_err_nomem(c->err, bytes) : MPR_OK;
}

static mpr_status infer_unique(InferCtx *c)
{
    const UniqueParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    bool flat = p->axis == MPRI_NO_AXIS;
    int axis = 0;
    Dim count = mpri_dim_fresh(c->sym), all = mpri_dim_fresh(c->sym);
    Shape out = flat ? (Shape){.rank = 1} : *x;
    if (!flat && x->rank >= 0) TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
    if (flat) mpri_op_elements(c, 0, &all);
    else if (x->rank >= 0) all = x->d[axis];
    const Value *v = known(c, 0);
    if (v) {
        UniqueItems u = {v->dtype, v->data, 1, all, 1};
        for (int k = 0; k < axis && !flat; k++) u.outer *= x->d[k];
        for (int k = axis + 1; k < x->rank && !flat; k++) u.inner *= x->d[k];
        TRY(count_unique(c, &u, &count));
    }
    if (out.rank > 0) out.d[axis] = count;
    Shape list = {.rank = 1, .d = {count}}, inverse = {.rank = 1, .d = {all}};
    TRY(mpri_infer_set(c, 0, op_type(c, 0), &out));
    TRY(mpri_infer_set(c, 1, MPR_INT64, &list));
    TRY(mpri_infer_set(c, 2, MPR_INT64, &inverse));
    return mpri_infer_set(c, 3, MPR_INT64, &list);
}

/* ---- definitions ---- */

const OpDef mpri_op_Compress = {
    MPRI_OP(Compress, "", "select"), .help = "the elements or slices that a condition marks",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(CompressParams, compress_attrs),
    .fixed_in = 2, .nondiff_in = 2, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_compress, .grad_state = GRAD_FUNCTION, .grad = grad_compress,
};
const OpDef mpri_op_ReverseSequence = {
    MPRI_OP(ReverseSequence, "", "select"), .help = "the first elements of each row backwards",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
    PARAMS(ReverseSequenceParams, reverse_attrs), .fixed_in = 2, .nondiff_in = 2,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_reverse,
    .grad_state = GRAD_FUNCTION, .grad = grad_reverse,
};
const OpDef mpri_op_NonZero = {
    MPRI_OP(NonZero, "", "select"), .help = "coordinates of what is not zero, one per column",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .nondiff_in = 1,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_non_zero,
    .grad_state = GRAD_ZERO,
};
const OpDef mpri_op_Unique = {
    MPRI_OP(Unique, "", "select"),
    .help = "distinct elements or slices, first positions, inverse and counts",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 4, PARAMS(UniqueParams, unique_attrs),
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_unique,
    .grad_state = GRAD_NONE, .grad_reason = "which elements are kept depends on the data",
};
