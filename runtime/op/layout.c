/* Operators that move data: Transpose, Concat, Expand. */
#include "runtime/op/layout.h"

static const AttrRow transpose_attrs[] = {ATTR(TransposeParams, perm, "perm", INTS), ATTR_END};
static const AttrRow concat_attrs[] = {ATTR(AxisParams, axis, "axis", INT, .required = true),
                                       ATTR_END};

/* ---- Transpose ---- */

static mpr_status infer_transpose(InferCtx *c)
{
    const TransposeParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    if (x->rank < 0) {
        Shape known = p->perm.n ? mpri_op_fresh_shape(c, p->perm.n) : mpri_op_unknown;
        return mpri_infer_set(c, 0, op_type(c, 0), &known);
    }
    if (p->perm.n && p->perm.n != x->rank)
        return mpri_op_shape_error(c, 0, "entries of perm, allowed: as many as dims", p->perm.n);
    Shape out = {.rank = x->rank};
    bool seen[MPRI_MAX_RANK] = {false};
    for (int i = 0; i < out.rank; i++) {
        int64_t from = p->perm.n ? p->perm.v[i] : out.rank - 1 - i;
        if (from < 0 || from >= out.rank || seen[from])
            return mpri_op_shape_error(c, 0, "perm is not a permutation of the axes", from);
        seen[from] = true;
        out.d[i] = x->d[from];
    }
    TRY(mpri_infer_set(c, 0, op_type(c, 0), &out));
    if (x->rank <= 1) mpri_op_content_copy(c);
    return MPR_OK;
}

static mpr_status grad_transpose(GradCtx *c)
{
    const TransposeParams *p = c->n->params;
    int64_t inverse[MPRI_MAX_RANK];
    for (int i = 0; i < p->perm.n; i++) inverse[p->perm.v[i]] = i;
    TransposeParams back = {.perm = {p->perm.n, inverse}};
    c->dx[0] = mpri_build1(c->b, OP_Transpose, &back, c->dy[0]);
    return mpri_op_grad_done(c);
}

/* ---- Concat ---- */

/* Elements of the inputs one after another; inputs that are not known give fresh atoms, so that one
 * unknown element of a shape does not hide the others. */
static void concat_content(InferCtx *c)
{
    DType t = op_type(c, 0);
    Dim r[MPRI_CONTENT_MAX];
    int64_t at = 0, n, elements;
    bool any = false;
    if (t != MPR_INT64 && t != MPR_INT32 && t != MPR_BOOL) return;
    for (int k = 0; k < c->n->n_in; k++) {
        elements = mpri_shape_elements(op_shape(c, k));
        if (elements < 0 || at + elements > MPRI_CONTENT_MAX) return;
        const Dim *d = mpri_infer_content(c, k, &n);
        any = any || d;
        for (int64_t i = 0; i < elements; i++) r[at++] = d ? d[i] : mpri_op_dim_any(c->sym);
    }
    if (any) mpri_infer_set_content(c, 0, at, r);
}

static mpr_status infer_concat(InferCtx *c)
{
    const AxisParams *p = c->n->params;
    DType t;
    int first = -1, axis = 0;
    bool all = true;
    Shape out = mpri_op_unknown;
    TRY(mpri_op_common_type(c, 0, c->n->n_in, TS_ANY, &t));
    for (int k = 0; k < c->n->n_in; k++) {
        const Shape *s = op_shape(c, k);
        if (s->rank < 0) {
            all = false;
            continue;
        }
        TRY(mpri_infer_axis(c, p->axis, s->rank, &axis));
        if (first < 0) {
            first = k;
            out = *s;
            continue;
        }
        if (s->rank != out.rank)
            return mpri_op_expect_shape(c, k, &out, "inputs of Concat have one rank");
        for (int i = 0; i < out.rank; i++) {
            if (i == axis) {
                out.d[i] = mpri_dim_add(c->sym, out.d[i], s->d[i]);
                continue;
            }
            TRY(mpri_op_same_dim(c, "dims beside the axis of Concat", first, out.d[i], k, s->d[i]));
            if (!mpri_dim_const(out.d[i])) out.d[i] = s->d[i];
        }
    }
    if (!all && out.rank >= 0) out.d[axis] = mpri_dim_fresh(c->sym);
    TRY(mpri_infer_set(c, 0, t, &out));
    if (out.rank == 1) concat_content(c);
    return MPR_OK;
}

/* The part of dy that came from one input. */
static Value *part(GradCtx *c, int axis, int64_t from, int64_t size)
{
    int64_t to = from + size, at = axis;
    Value *in[4] = {c->dy[0], mpri_build_i64s(c->b, 1, &from), mpri_build_i64s(c->b, 1, &to),
                    mpri_build_i64s(c->b, 1, &at)};
    return mpri_build(c->b, OP_Slice, NULL, 4, in, 1, NULL);
}

static mpr_status grad_concat(GradCtx *c)
{
    const AxisParams *p = c->n->params;
    Node *n = c->n;
    int64_t at = 0;
    int rank = n->out[0]->shape.rank, axis = (int)(p->axis < 0 ? p->axis + rank : p->axis);
    for (int k = 0; k < n->n_in; k++) {
        TRY(mpri_op_grad_const_shape(c, n->in[k]));
        int64_t size = n->in[k]->shape.d[axis];
        if (grad_needs(c, k)) c->dx[k] = n->n_in == 1 ? c->dy[0] : part(c, axis, at, size);
        at += size;
    }
    return mpri_op_grad_done(c);
}

/* ---- Expand ---- */

static mpr_status infer_expand(InferCtx *c)
{
    int64_t n;
    Dim rank;
    Shape target = mpri_op_unknown, out = mpri_op_unknown;
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    const Dim *d = mpri_infer_content(c, 1, &n);
    if (d) {
        if (n > MPRI_MAX_RANK)
            return mpri_op_shape_error(c, 1, "dims asked for, allowed at most 8", n);
        target.rank = (int)n;
        for (int i = 0; i < target.rank; i++) {
            int64_t v;
            if (mpri_dim_is_int(c->sym, d[i], &v) && v < 0)
                return mpri_op_shape_error(c, 0, "Expand to a negative dim", v);
            target.d[i] = d[i];
        }
        TRY(mpri_infer_broadcast(c, op_shape(c, 0), &target, &out));
    } else if (mpri_op_elements(c, 1, &rank) && mpri_dim_const(rank) && op_shape(c, 0)->rank >= 0) {
        int64_t wider = rank > op_shape(c, 0)->rank ? rank : op_shape(c, 0)->rank;
        out = mpri_op_fresh_shape(c, wider);
    }
    TRY(mpri_infer_set(c, 0, op_type(c, 0), &out));
    mpri_op_content_expand(c);
    return MPR_OK;
}

static mpr_status grad_expand(GradCtx *c)
{
    c->dx[0] = c->dy[0];
    return MPR_OK;
}

/* ---- definitions ---- */

const OpDef mpri_op_Transpose = {
    MPRI_OP(Transpose, "", "layout"), .help = "axes in another order",
    .min_in = 1, .max_in = 1, .min_out = 1,
    .max_out = 1, PARAMS(TransposeParams, transpose_attrs), MOVE,
    .infer = infer_transpose, .grad = grad_transpose,
};
/* Unlike the other moves, Concat meets several types: one f32 input lifts all. */
const OpDef mpri_op_Concat = {
    MPRI_OP(Concat, "", "layout"), .help = "inputs one after another along an axis",
    .min_in = 1, .max_in = -1, .min_out = 1, .max_out = 1, PARAMS(AxisParams, concat_attrs),
    .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_WIDEST, .infer = infer_concat,
    .grad_state = GRAD_FUNCTION, .grad = grad_concat,
};
const OpDef mpri_op_Expand = {
    MPRI_OP(Expand, "", "layout"), .help = "broadcast to a shape, in both directions",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .fixed_in = 2, .nondiff_in = 2, MOVE,
    .infer = infer_expand, .grad = grad_expand,
};

/* ---- Trilu ---- */

static const AttrRow trilu_attrs[] = {ATTR_FLAG(TriluParams, upper, "upper", 1), ATTR_END};

static mpr_status infer_trilu(InferCtx *c)
{
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    return mpri_op_infer_same(c);
}

/* What was zeroed takes no part: the cotangent is cut along the same diagonal. */
static mpr_status grad_trilu(GradCtx *c)
{
    Value *in[] = {c->dy[0], grad_in(c, 1)};
    if (grad_needs(c, 0)) c->dx[0] = mpri_build(c->b, OP_Trilu, c->n->params, in[1] ? 2 : 1, in, 1, NULL);
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_Trilu = {
    MPRI_OP(Trilu, "", "layout"), .help = "upper or lower triangle of the last two dims, zeros elsewhere", MOVE,
    .min_in = 1, .max_in = 2, .optional_in = 2, .min_out = 1, .max_out = 1, PARAMS(TriluParams, trilu_attrs), .inplace = 1,
    .fixed_in = 2, .nondiff_in = 2, .infer = infer_trilu, .grad = grad_trilu,
};
