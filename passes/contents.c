/* Sizes that follow from what the inputs hold: a shape, axes or bounds given as a graph input, and
 * computed sizes (NonZero, Compress, a Reshape by a computed shape).
 *
 * Nodes are visited in order. Where the shape rule leaves a size open, inputs of the node become
 * constants, computed by the reference kernels from the contents of the graph inputs: first those
 * that no gradient reaches (integers, indices, sizes), and only when that is not enough all of
 * them. */
#include <string.h>

#include "passes/rewrite.h"
#include "runtime/base/size.h"

typedef struct Contents {
    PassCtx *ctx;
    Graph *g;
    Err *err;
    Tensor *at; /* by value id: what was computed so far; dtype NONE: nothing */
    bool *want;
    int n; /* entries of both */
} Contents;

static mpr_status make_room(Contents *c)
{
    int n = c->g->next_value_id;
    if (n <= c->n) return MPR_OK;
    n += n / 4 + 64;
    Tensor *at = ARENA_ARRAY(c->ctx->scratch, Tensor, n);
    c->want = ARENA_ARRAY(c->ctx->scratch, bool, n);
    if (!at || !c->want) return mpri_err_nomem(c->err, (size_t)n * sizeof *at);
    if (c->n) memcpy(at, c->at, (size_t)c->n * sizeof *at);
    c->at = at;
    c->n = n;
    return MPR_OK;
}

static mpr_status shaped(const Value *v, Tensor *t, size_t *bytes, Err *err)
{
    *t = (Tensor){.dtype = v->dtype, .rank = v->shape.rank};
    if (!mpri_shape_const(&v->shape) || t->rank > MPRI_TENSOR_RANK)
        return mpri_err_set(err, MPR_E_SHAPE, "the shape of '%s' is not known",
                            mpri_err_name(v->name));
    for (int k = 0; k < t->rank; k++) t->dims[k] = v->shape.d[k];
    if (!mpri_size_elements(t->rank, t->dims, &t->n) ||
        !mpri_size_mul((size_t)t->n, mpri_dtype_size(t->dtype), bytes))
        return mpri_err_set(err, MPR_E_LIMIT, "'%s' has more bytes than the address space",
                            mpri_err_name(v->name));
    return MPR_OK;
}

/* data of n elements in type `from`, as type t->dtype. */
static mpr_status convert(const Contents *c, Tensor *t, const void *data, DType from, size_t bytes)
{
    if (from == t->dtype) {
        t->data = (void *)(uintptr_t)data;
        return MPR_OK;
    }
    t->data = mpri_arena_alloc(c->ctx->scratch, bytes);
    if (!t->data) return mpri_err_nomem(c->err, bytes);
    bool ints = !mpri_dtype_is_float(from) && !mpri_dtype_is_float(t->dtype);
    for (int64_t i = 0; i < t->n; i++)
        if (ints) mpri_store_i64(t->dtype, t->data, i, mpri_load_i64(from, data, i));
        else mpri_store_f64(t->dtype, t->data, i, mpri_load_f64(from, data, i));
    return MPR_OK;
}

static mpr_status leaf(Contents *c, const Value *v)
{
    Tensor *t = &c->at[v->id];
    size_t bytes;
    TRY(shaped(v, t, &bytes, c->err));
    if (v->kind == VAL_CONST && v->data) return convert(c, t, v->data, v->dtype, bytes);
    if (v->kind == VAL_SLOT) {
        const Slot *s = &c->g->slots[v->slot];
        if (s->init) return convert(c, t, s->init, s->init_dtype, bytes);
    }
    for (int i = 0; v->kind == VAL_INPUT && i < c->ctx->n_fed; i++) {
        const FedInput *fed = &c->ctx->fed[i];
        bool here = fed->t.data || !fed->t.n;
        if (here && !strcmp(fed->name, v->name) && fed->t.n == t->n)
            return convert(c, t, fed->t.data, fed->t.dtype, bytes);
    }
    t->dtype = MPR_DTYPE_NONE;
    mpri_err_set(c->err, MPR_E_DATA, "a size depends on what '%s' holds, which is not known yet",
                 mpri_err_name(v->name));
    return mpri_err_advice(c->err, "give it with the inputs");
}

static mpr_status run(Contents *c, const Node *n)
{
    Tensor *in = ARENA_ARRAY(c->ctx->scratch, Tensor, n->n_in);
    Tensor *out = ARENA_ARRAY(c->ctx->scratch, Tensor, n->n_out);
    if (!in || !out) return mpri_err_nomem(c->err, sizeof *in);
    if (n->op->flags & (OPF_RANDOM | OPF_EFFECT | OPF_OPAQUE)) {
        mpri_err_set(c->err, MPR_E_UNSUPPORTED_OP,
                     "a size depends on node '%s' (%s), which cannot be computed before the run",
                     mpri_err_name(n->name), n->opaque_type ? n->opaque_type : n->op->name);
        return mpri_err_advice(c->err, "export the model with a fixed size here");
    }
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k]) in[k] = c->at[n->in[k]->id];
    TRY(mpri_eval_node(c->ctx->ref, n, in, out, c->ctx->scratch, c->err));
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]) c->at[n->out[i]->id] = out[i];
    return MPR_OK;
}

static bool wanted(const Contents *c, const Node *n)
{
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] && c->want[n->out[i]->id]) return true;
    return false;
}

static mpr_status want(Contents *c, const Value *v)
{
    if (!v || c->want[v->id] || mpri_tensor_here(&c->at[v->id])) return MPR_OK;
    if (v->kind != VAL_NODE) return leaf(c, v);
    c->want[v->id] = true;
    return MPR_OK;
}

static mpr_status compute(Contents *c, const Value *v)
{
    TRY(make_room(c));
    TRY(want(c, v));
    if (mpri_tensor_here(&c->at[v->id])) return MPR_OK;
    Node *last = v->def;
    for (const Node *n = last; n; n = n->prev)
        if (wanted(c, n))
            for (int k = 0; k < n->n_in; k++) TRY(want(c, n->in[k]));
    for (const Node *n = c->g->first; n; n = n->next) {
        if (wanted(c, n)) {
            TRY(run(c, n));
            for (int i = 0; i < n->n_out; i++)
                if (n->out[i]) c->want[n->out[i]->id] = false;
        }
        if (n == last) break;
    }
    return MPR_OK;
}

mpr_status mpri_contents_of(PassCtx *ctx, Graph *g, Value *v, Tensor *out, Err *err)
{
    Contents c = {.ctx = ctx, .g = g, .err = err};
    TRY(compute(&c, v));
    *out = c.at[v->id];
    return MPR_OK;
}

/* ---- open nodes ---- */

static mpr_status settle(Contents *c, Node *n, bool all, bool *changed)
{
    for (int k = 0; k < n->n_in; k++) {
        Value *v = n->in[k];
        if (!v || v->kind == VAL_CONST) continue;
        if (!all && mpri_dtype_is_float(v->dtype) && !mpri_op_mask(n->op->nondiff_in, k)) continue;
        mpr_status s = compute(c, v);
        if (s != MPR_OK)
            return mpri_err_where(c->err, "node '%s' (%s)", mpri_err_name(n->name), n->op->name);
        Value *known = mpri_value_const_copy(c->g, NULL, v->dtype, &v->shape, c->at[v->id].data);
        if (!known) return mpri_err_nomem(c->err, sizeof *known);
        mpri_node_set_input(n, k, known);
        *changed = true;
    }
    return MPR_OK;
}

static mpr_status close_node(Contents *c, Node *n, bool *changed)
{
    bool open;
    TRY(mpri_bind_infer(c->g, n, c->ctx->scratch, &open, c->err));
    for (int all = 0; all < 2 && open; all++) {
        TRY(settle(c, n, all, changed));
        TRY(mpri_bind_infer(c->g, n, c->ctx->scratch, &open, c->err));
    }
    return MPR_OK;
}

mpr_status mpri_bind_contents(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    Contents c = {.ctx = ctx, .g = g, .err = err};
    for (Node *n = g->first; n; n = n->next)
        if (!(n->op->flags & OPF_OPAQUE)) TRY(close_node(&c, n, changed));
    return MPR_OK;
}
