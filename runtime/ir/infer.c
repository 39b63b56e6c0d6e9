/* Running shape rules, and the helpers they are written with. Small integer tensors carry their
 * contents as dims, so that Shape -> Gather -> Concat -> Reshape chains resolve symbolically. */
#include <string.h>

#include "runtime/ir/graph.h"

enum { CONTENT_LIMIT = 64, TEXT = 256 };

static mpr_status check_size(const Graph *g, const Value *v, Err *err)
{
    char text[TEXT];
    int64_t dim;
    for (int i = 0; v && i < v->shape.rank; i++)
        if (!mpri_dim_const(v->shape.d[i]) && mpri_dim_is_int(g->sym, v->shape.d[i], &dim))
            return mpri_err_set(err, MPR_E_SHAPE, "value '%s' has shape %s; dims are 0 or more", mpri_err_name(v->name),
                                mpri_shape_print(g->sym, &v->shape, text, sizeof text));
    if (!v || mpri_shape_in_range(&v->shape)) return MPR_OK;
    return mpri_err_set(err, MPR_E_LIMIT, "value '%s' of shape %s has more elements than can be counted: 2^56",
                        mpri_err_name(v->name), mpri_shape_print(g->sym, &v->shape, text, sizeof text));
}

/* The rule, on inputs of a size that can be counted, and for outputs of such a size. */
static mpr_status run_rule(Graph *g, Node *n, Err *err)
{
    InferCtx c = {g, n, g->sym, err};
    for (int i = 0; i < n->n_in; i++) TRY(check_size(g, n->in[i], err));
    TRY(n->op->infer(&c));
    for (int i = 0; i < n->n_out; i++) TRY(check_size(g, n->out[i], err));
    return MPR_OK;
}

mpr_status mpri_infer_node(Graph *g, Node *n, Err *err)
{
    bool opaque = n->op->flags & OPF_OPAQUE;
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]) n->out[i]->content = NULL;
    if (!n->op->infer) return MPR_OK;
    /* What a rule does not state is not known: no shape stays from an earlier look. */
    for (int i = 0; i < n->n_out && !opaque; i++)
        if (n->out[i] && !n->out[i]->declared) n->out[i]->shape.rank = MPRI_RANK_UNKNOWN;
    mpr_status status = run_rule(g, n, err);
    if (status == MPR_OK && mpri_symtab_failed(g->sym)) status = mpri_err_nomem(err, sizeof(Dim));
    if (status == MPR_OK) return MPR_OK;
    const char *type = n->opaque_type ? n->opaque_type : n->op->name;
    if (n->name[0] || n->n_out == 0 || !n->out[0])
        return mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name), mpri_err_name(type));
    return mpri_err_where(err, "node of '%s' (%s)", mpri_err_name(n->out[0]->name),
                          mpri_err_name(type));
}

mpr_status mpri_infer_graph(Graph *g, Err *err)
{
    for (Node *n = g->first; n; n = n->next) TRY(mpri_infer_node(g, n, err));
    return MPR_OK;
}

static bool is_unknown(const SymTab *s, Dim d)
{
    char text[TEXT];
    if (d >= 0) return false;
    mpri_dim_print(s, d, text, sizeof text);
    return text[0] == '?' && strspn(text + 1, "0123456789") == strlen(text + 1);
}

/* What was declared for the value meets what its rule found. */
static mpr_status unify(InferCtx *c, const Value *v, Shape *found)
{
    const Shape *declared = &v->shape;
    if (declared->rank < 0) return MPR_OK;
    if (found->rank < 0) {
        *found = *declared;
        return MPR_OK;
    }
    char a[TEXT], b[TEXT];
    bool clash = declared->rank != found->rank;
    for (int i = 0; i < found->rank && !clash; i++) {
        Dim d = declared->d[i], f = found->d[i];
        clash = d >= 0 && f >= 0 && d != f;
        if (f < 0 && (d >= 0 || is_unknown(c->sym, f))) found->d[i] = d;
    }
    if (!clash) return MPR_OK;
    return mpri_err_set(c->err, MPR_E_SHAPE,
                        "value '%s' is declared as %s but the operator gives %s",
                        mpri_err_name(v->name), mpri_shape_print(c->sym, declared, a, sizeof a),
                        mpri_shape_print(c->sym, found, b, sizeof b));
}

mpr_status mpri_infer_set(InferCtx *c, int i, DType t, const Shape *shape)
{
    if (i >= c->n->n_out || !c->n->out[i]) return MPR_OK;
    Value *v = c->n->out[i];
    Shape found = {.rank = MPRI_RANK_UNKNOWN};
    if (shape) found = *shape;
    if (v->declared) TRY(unify(c, v, &found));
    v->dtype = t;
    v->shape = found;
    return MPR_OK;
}

mpr_status mpri_infer_broadcast(InferCtx *c, const Shape *a, const Shape *b, Shape *out)
{
    if (a->rank < 0 || b->rank < 0) {
        *out = (Shape){.rank = MPRI_RANK_UNKNOWN};
        return MPR_OK;
    }
    Shape r = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 0; i < r.rank; i++) {
        int ia = i - (r.rank - a->rank), ib = i - (r.rank - b->rank);
        Dim x = ia < 0 ? 1 : a->d[ia], y = ib < 0 ? 1 : b->d[ib];
        if (x == y || y == 1) {
            r.d[i] = x;
        } else if (x == 1 || (x < 0 && y >= 0)) {
            r.d[i] = y; /* a symbol against a number: it can only be that number or 1 */
        } else if (x >= 0 && y >= 0) {
            char ta[TEXT], tb[TEXT];
            return mpri_err_set(c->err, MPR_E_SHAPE,
                                "shapes %s and %s do not broadcast: %lld against %lld",
                                mpri_shape_print(c->sym, a, ta, sizeof ta),
                                mpri_shape_print(c->sym, b, tb, sizeof tb), (long long)x,
                                (long long)y);
        } else {
            r.d[i] = x >= 0 ? x : mpri_dim_max(c->sym, x, y);
        }
    }
    *out = r;
    return MPR_OK;
}

const Dim *mpri_infer_content(InferCtx *c, int input, int64_t *n)
{
    Value *v = input < c->n->n_in ? c->n->in[input] : NULL;
    if (!v) return NULL;
    int64_t count = mpri_shape_elements(&v->shape);
    if (count < 0 || count > CONTENT_LIMIT) return NULL;
    bool readable =
        v->kind == VAL_CONST && v->data && (v->dtype == MPR_INT64 || v->dtype == MPR_INT32);
    if (!v->content && readable) {
        Dim *content = ARENA_ARRAY(c->g->arena, Dim, count);
        if (!content) return NULL;
        for (int64_t i = 0; i < count; i++)
            content[i] = mpri_dim_int(c->sym, mpri_load_i64(v->dtype, v->data, i));
        v->content = content;
    }
    *n = count;
    return v->content;
}

void mpri_infer_set_content(InferCtx *c, int output, int64_t n, const Dim *content)
{
    if (output >= c->n->n_out || !c->n->out[output] || n > CONTENT_LIMIT || !content) return;
    Value *v = c->n->out[output];
    if (mpri_shape_elements(&v->shape) != n) return;
    v->content = mpri_arena_dup(c->g->arena, content, (size_t)n * sizeof(Dim));
}

mpr_status mpri_infer_axis(InferCtx *c, int64_t axis, int rank, int *out)
{
    if (axis < -(int64_t)rank || axis >= rank)
        return mpri_err_set(c->err, MPR_E_SHAPE,
                            "axis %lld is outside [%d, %d) of a tensor of rank %d", (long long)axis,
                            -rank, rank, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return MPR_OK;
}
