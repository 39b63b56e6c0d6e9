/* Scatter: updates written, or reduced, into a copy of data at indexed places. Indices may be
 * negative (from the end); one outside its dim is found at run time.
 *
 * Every gradient is the forward operator and its lookup (GatherElements, GatherND) again. With max
 * and min all contributions that equal the result share its cotangent equally. With mul an update
 * gets the product of the others, exact with any number of zeros: zeros are counted beside the
 * product of what is not zero. */
#include "runtime/op/rules.h"

#include <string.h>

#define REDUCTION(T) \
    ATTR(T, reduction, "reduction", STRING, .def_string = "none", \
         .choices = "none|add|mul|max|min")

static const AttrRow scatter_attrs[] = {
    ATTR(ScatterParams, axis, "axis", INT),
    REDUCTION(ScatterParams),
    ATTR_END,
};
static const AttrRow scatter_nd_attrs[] = {REDUCTION(ScatterNDParams), ATTR_END};
static const AttrRow tensor_scatter_attrs[] = {
    ATTR(TensorScatterParams, axis, "axis", INT, .def_int = -2),
    ATTR(TensorScatterParams, mode, "mode", STRING, .def_string = "linear",
         .choices = "linear|circular"),
    ATTR_END,
};

/* ---- type and shape rules ---- */

/* data and updates have one type. */
static mpr_status data_type(InferCtx *c, int updates, DType *t)
{
    TRY(mpri_op_check_type(c, 0, TS_ANY));
    *t = op_type(c, 0);
    return *t == MPR_DTYPE_NONE ? MPR_OK : mpri_op_check_type(c, updates, TS(*t));
}

static mpr_status infer_scatter_elements(InferCtx *c)
{
    const ScatterParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *idx = op_shape(c, 1);
    DType t;
    int axis;
    TRY(data_type(c, 2, &t));
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    TRY(mpri_op_expect_shape(c, 2, idx, "updates, shaped as the indices"));
    if (x->rank >= 0) {
        TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
        TRY(mpri_op_check_rank(c, 1, x->rank, x->rank));
        for (int i = 0; i < idx->rank; i++)
            if (i != axis && mpri_dim_const(idx->d[i]) && mpri_dim_const(x->d[i]) &&
                idx->d[i] > x->d[i])
                TRY(mpri_op_same_dim(c, "dims beside the axis of a scatter", 0, x->d[i], 1,
                                     idx->d[i]));
    }
    return mpri_infer_set(c, 0, t, x);
}

static mpr_status infer_scatter_nd(InferCtx *c)
{
    const Shape *x = op_shape(c, 0), *idx = op_shape(c, 1);
    DType t;
    TRY(data_type(c, 2, &t));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    TRY(mpri_op_check_rank(c, 1, 1, MPRI_MAX_RANK));
    if (x->rank >= 0 && idx->rank >= 1 && mpri_dim_const(idx->d[idx->rank - 1])) {
        Dim depth = idx->d[idx->rank - 1];
        if (depth > x->rank)
            return mpri_op_shape_error(
                c, 0, "last dim of the indices of ScatterND, allowed at most the rank", depth);
        if (idx->rank - 1 + x->rank - depth > MPRI_MAX_RANK)
            return mpri_op_shape_error(c, 1, "rank of the updates of ScatterND, allowed at most 8",
                                       idx->rank - 1 + x->rank - depth);
        Shape want = *idx;
        want.rank--;
        for (int i = (int)depth; i < x->rank; i++) want.d[want.rank++] = x->d[i];
        TRY(mpri_op_expect_shape(c, 2, &want, "updates"));
    }
    return mpri_infer_set(c, 0, t, x);
}

static mpr_status infer_tensor_scatter(InferCtx *c)
{
    const TensorScatterParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *u = op_shape(c, 1);
    DType t;
    int axis;
    TRY(data_type(c, 1, &t));
    TRY(mpri_op_check_type(c, 2, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    if (x->rank >= 0) {
        TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
        if (axis == 0)
            return mpri_op_shape_error(c, 0, "axis of TensorScatter, allowed: not the batch", 0);
        TRY(mpri_op_check_rank(c, 1, x->rank, x->rank));
        for (int i = 0; i < u->rank; i++)
            if (i != axis || (mpri_dim_const(u->d[i]) && mpri_dim_const(x->d[i]) &&
                              u->d[i] > x->d[i]))
                TRY(mpri_op_same_dim(c, "dims of cache and update", 0, x->d[i], 1, u->d[i]));
        Shape batch = {.rank = 1, .d = {x->d[0]}};
        TRY(mpri_op_expect_shape(c, 2, &batch, "write_indices, one per batch row"));
    }
    return mpri_infer_set(c, 0, t, x);
}

/* ---- gradients ---- */

/* The places of one scatter: how to read and write them. */
typedef struct Site {
    GradCtx *c;
    Value *indices;
    bool nd;
    int64_t axis;
} Site;

/* The elements of x at the places, shaped as the updates. */
static Value *site_read(const Site *s, Value *x)
{
    AxisParams axis = {.axis = s->axis};
    GatherNDParams nd = {0};
    return s->nd ? mpri_build2(s->c->b, OP_GatherND, &nd, x, s->indices)
                 : mpri_build2(s->c->b, OP_GatherElements, &axis, x, s->indices);
}

static Value *site_write(const Site *s, Value *x, Value *updates, const char *reduction)
{
    ScatterParams elements = {.axis = s->axis, .reduction = reduction};
    ScatterNDParams nd = {.reduction = reduction};
    return s->nd ? mpri_build3(s->c->b, OP_ScatterND, &nd, x, s->indices, updates)
                 : mpri_build3(s->c->b, OP_ScatterElements, &elements, x, s->indices, updates);
}

static Value *wide(GradCtx *c, Value *v)
{
    return v ? mpri_build_cast(c->b, v, mpri_op_wide(v->dtype)) : NULL;
}

/* cond as 0 and 1 in type t. */
static Value *number(GradCtx *c, Value *cond, DType t)
{
    return mpri_build_cast(c->b, cond, t);
}

static Value *where(GradCtx *c, Value *cond, Value *x, Value *y)
{
    return mpri_build3(c->b, OP_Where, NULL, cond, x, y);
}

static void grad_mul(const Site *s, Value *data, Value *updates, bool of_data, int k)
{
    GradCtx *c = s->c;
    Value *x = wide(c, data), *u = wide(c, updates), *dy = wide(c, c->dy[0]);
    if (of_data) c->dx[0] = site_write(s, dy, u, "mul");
    if (!grad_needs(c, k) || !x) return;
    Value *zero = mpri_op_grad_zero(c, x), *one = mpri_op_grad_scalar(c, x, 1);
    Value *x0 = mpri_op_grad_binary(c, OP_Equal, x, zero);
    Value *u0 = mpri_op_grad_binary(c, OP_Equal, u, zero);
    Value *nonzero = where(c, u0, one, u);
    Value *product = site_write(s, where(c, x0, one, x), nonzero, "mul");
    Value *zeros = site_write(s, number(c, x0, x->dtype), number(c, u0, x->dtype), "add");
    Value *others = mpri_op_grad_binary(c, OP_Sub, site_read(s, zeros), number(c, u0, x->dtype));
    Value *dx = site_read(s, mpri_op_grad_binary(c, OP_Mul, dy, product));
    dx = mpri_op_grad_binary(c, OP_Div, dx, nonzero);
    c->dx[k] = where(c, mpri_op_grad_binary(c, OP_Equal, others, zero), dx, zero);
}

static void grad_extreme(const Site *s, Value *data, Value *updates, int k)
{
    GradCtx *c = s->c;
    Value *y = c->n->out[0], *dy = wide(c, c->dy[0]);
    Value *x_wins = mpri_op_grad_binary(c, OP_Equal, data, y);
    Value *u_wins = mpri_op_grad_binary(c, OP_Equal, updates, site_read(s, y));
    DType t = mpri_op_wide(y->dtype);
    Value *winners = site_write(s, number(c, x_wins, t), number(c, u_wins, t), "add");
    Value *share = mpri_op_grad_binary(c, OP_Div, dy, winners);
    Value *zero = mpri_build_scalar(c->b, t, 0);
    if (grad_needs(c, 0)) c->dx[0] = where(c, x_wins, share, zero);
    if (grad_needs(c, k)) c->dx[k] = where(c, u_wins, site_read(s, share), zero);
}

/* data is input 0, updates are input k. */
static mpr_status grad_site(const Site *s, const char *reduction, int k)
{
    GradCtx *c = s->c;
    Value *data = grad_in(c, 0), *updates = grad_in(c, k), *dy = c->dy[0];
    TRY(mpri_op_grad_const_shape(c, data));
    TRY(mpri_op_grad_const_shape(c, updates));
    if (!strcmp(reduction, "mul")) {
        grad_mul(s, data, updates, grad_needs(c, 0), k);
    } else if (reduction[0] == 'm') {
        grad_extreme(s, data, updates, k);
    } else {
        bool add = reduction[0] == 'a';
        if (grad_needs(c, 0))
            c->dx[0] = add ? dy : site_write(s, dy, mpri_op_grad_zeros_like(c, updates), "none");
        if (grad_needs(c, k)) c->dx[k] = site_read(s, dy);
    }
    return mpri_op_grad_done(c);
}

static mpr_status grad_scatter_elements(GradCtx *c)
{
    const ScatterParams *p = c->n->params;
    Site s = {.c = c, .indices = grad_in(c, 1), .axis = p->axis};
    return grad_site(&s, p->reduction, 2);
}

static mpr_status grad_scatter_nd(GradCtx *c)
{
    const ScatterNDParams *p = c->n->params;
    Site s = {.c = c, .indices = grad_in(c, 1), .nd = true};
    return grad_site(&s, p->reduction, 2);
}

/* Row t of the update goes to position write_indices[b] + t: the places as ScatterElements names
 * them. */
static mpr_status grad_tensor_scatter(GradCtx *c)
{
    const TensorScatterParams *p = c->n->params;
    const Value *x = grad_in(c, 0), *u = grad_in(c, 1);
    int64_t dims[MPRI_MAX_RANK];
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_const_shape(c, u));
    int rank = x->shape.rank, axis = (int)(p->axis < 0 ? p->axis + rank : p->axis);
    int64_t n = u->shape.d[axis], *steps = ARENA_ARRAY(c->b->g->arena, int64_t, n ? n : 1);
    if (!steps) return mpri_err_nomem(c->err, (size_t)n * sizeof *steps);
    for (int64_t i = 0; i < n; i++) steps[i] = i;
    for (int i = 0; i < rank; i++) dims[i] = i == axis ? n : 1;
    Value *at = mpri_op_grad_reshape(c, mpri_build_i64s(c->b, n, steps), rank, dims);
    if (grad_in(c, 2)) {
        for (int i = 0; i < rank; i++) dims[i] = i == 0 ? x->shape.d[0] : 1;
        Value *first = mpri_op_grad_reshape(c, grad_in(c, 2), rank, dims);
        at = mpri_op_grad_binary(c, OP_Add, first, at);
    }
    if (!strcmp(p->mode, "circular"))
        at = mpri_op_grad_binary(c, OP_Mod, at, mpri_build_i64s(c->b, 1, &x->shape.d[axis]));
    Site s = {.c = c, .indices = mpri_op_grad_expand_like(c, at, u), .axis = axis};
    TRY(mpri_op_grad_done(c));
    return grad_site(&s, "none", 1);
}

/* ---- definitions ---- */

/* Torch promotes index_put and index_copy, and scatter_add on CUDA (passes/profile.c); what it does
 * not list it refuses when types differ, and data decide here. */
#define SCATTER(cuda, cpu)                                                                \
    .min_out = 1, .max_out = 1, .inplace = 1, .cast_cuda = CAST_##cuda, .cast_cpu = CAST_##cpu, \
    .grad_state = GRAD_FUNCTION

const OpDef mpri_op_Scatter = {
    MPRI_OP(Scatter, "", "scatter"), .help = "the old name of ScatterElements", SCATTER(KEEP, KEEP),
    .min_in = 3, .max_in = 3, PARAMS(ScatterParams, scatter_attrs), .fixed_in = 2, .nondiff_in = 2,
    .infer = infer_scatter_elements, .grad = grad_scatter_elements,
};
const OpDef mpri_op_ScatterElements = {
    MPRI_OP(ScatterElements, "", "scatter"),
    .help = "updates into data along an axis, one index per update", SCATTER(KEEP, KEEP),
    .min_in = 3, .max_in = 3, PARAMS(ScatterParams, scatter_attrs), .fixed_in = 2, .nondiff_in = 2,
    .infer = infer_scatter_elements, .grad = grad_scatter_elements,
};
const OpDef mpri_op_ScatterND = {
    MPRI_OP(ScatterND, "", "scatter"), .help = "slices into data by index tuples",
    SCATTER(WIDEST, KEEP),
    .min_in = 3, .max_in = 3, PARAMS(ScatterNDParams, scatter_nd_attrs), .fixed_in = 2,
    .nondiff_in = 2, .infer = infer_scatter_nd, .grad = grad_scatter_nd,
};
const OpDef mpri_op_TensorScatter = {
    MPRI_OP(TensorScatter, "", "scatter"),
    .help = "rows into a cache from a position per batch row on", SCATTER(WIDEST, WIDEST),
    .min_in = 2, .max_in = 3, .optional_in = 4, PARAMS(TensorScatterParams, tensor_scatter_attrs),
    .fixed_in = 4, .nondiff_in = 4, .infer = infer_tensor_scatter, .grad = grad_tensor_scatter,
};
