/* Constant folding with the reference kernels, so that folded and executed code have one meaning.
 *
 * What goes: every node whose inputs are all constants, and every node whose integer outputs the
 * shape rules know already (Shape and what is computed from it). Shape subgraphs, masks and
 * position ids vanish once dims are numbers. What stays: random operators, parameters in training
 * (they are slots, not constants), transposes of frozen weights (the matmul reads them transposed,
 * a copy would double the weight), and results far larger than what they are made from.
 *
 * Memory: intermediate results live in the pass's scratch arena; only what is still used at the end
 * is copied into the graph's. */
#include <string.h>
#include "passes/rewrite.h"

#define FOLD_BUDGET ((size_t)64 << 20)  /* largest result, unless the inputs are as large */
#define FROZEN_BUDGET ((size_t)1 << 20) /* largest result made from a weight that is not trained */
#define SPREAD_LIMIT 512                /* larger results of Expand wait for the other rules */

static bool tensor_of(const Value *v, Tensor *t)
{
    *t = (Tensor){0};
    if (!v) return true;
    int64_t n = mpri_shape_elements(&v->shape);
    if (n < 0 || v->shape.rank > MPRI_TENSOR_RANK || !mpri_dtype_size(v->dtype)) return false;
    t->dtype = v->dtype;
    t->rank = v->shape.rank;
    t->n = n;
    for (int k = 0; k < t->rank; k++) t->dims[k] = v->shape.d[k];
    t->data = v->kind == VAL_CONST ? (void *)v->data : NULL;
    return true;
}

static void become_const(Node *n, int i, const void *data)
{
    Value *v = n->out[i];
    v->kind = VAL_CONST;
    v->def = NULL;
    v->def_index = 0;
    v->data = data;
    n->out[i] = NULL;
}

static bool worth_it(const Node *n, bool spread)
{
    size_t in = 0, out = 0;
    bool frozen = false;
    for (int k = 0; k < n->n_in; k++) {
        if (!n->in[k]) continue;
        if (n->in[k]->kind != VAL_CONST) return false;
        in += mpri_rewrite_bytes(n->in[k]);
        frozen = frozen || n->in[k]->param >= 0;
    }
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]) out += mpri_rewrite_bytes(n->out[i]);
    if (frozen && (out > FROZEN_BUDGET || mpri_is(n, OP_Transpose))) return false;
    if ((mpri_is(n, OP_Expand) || mpri_is(n, OP_ConstantOfShape)) && !spread && out > SPREAD_LIMIT)
        return false;
    return out <= FOLD_BUDGET || out <= in;
}

/* Contents known from the shape rules alone. */
static mpr_status fold_content(PassCtx *ctx, Graph *g, Node *n, bool *folded, Err *err)
{
    const Value *v = n->n_out == 1 ? n->out[0] : NULL;
    if (!v || !v->content || !mpri_dtype_is_int(v->dtype)) return MPR_OK;
    int64_t count = mpri_shape_elements(&v->shape), x;
    if (count < 0) return MPR_OK;
    for (int64_t i = 0; i < count; i++)
        if (!mpri_dim_is_int(g->sym, v->content[i], &x)) return MPR_OK;
    void *data = mpri_arena_array(ctx->scratch, (size_t)count, mpri_dtype_size(v->dtype));
    if (!data) return mpri_err_nomem(err, (size_t)count * mpri_dtype_size(v->dtype));
    for (int64_t i = 0; i < count; i++) {
        if (!mpri_dim_is_int(g->sym, v->content[i], &x)) return MPR_OK;
        mpri_store_i64(v->dtype, data, i, x);
    }
    become_const(n, 0, data);
    *folded = true;
    return MPR_OK;
}

static mpr_status fold_kernel(PassCtx *ctx, Node *n, bool spread, bool *folded, Err *err)
{
    if (!ctx->ref || (n->op->flags & (OPF_RANDOM | OPF_EFFECT | OPF_OPAQUE)) || !n->n_out ||
        !worth_it(n, spread))
        return MPR_OK;
    Tensor *in = ARENA_ARRAY(ctx->scratch, Tensor, n->n_in),
           *out = ARENA_ARRAY(ctx->scratch, Tensor, n->n_out);
    Err *local = ARENA_NEW(ctx->scratch, Err);
    if (!in || !out || !local) return mpri_err_nomem(err, sizeof *local);
    for (int k = 0; k < n->n_in; k++)
        if (!tensor_of(n->in[k], &in[k])) return MPR_OK;
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] && !mpri_shape_const(&n->out[i]->shape)) return MPR_OK;
    mpr_status s = mpri_eval_node(ctx->ref, n, in, out, ctx->scratch, local);
    if (s == MPR_E_UNSUPPORTED_OP) return MPR_OK;
    if (s != MPR_OK) {
        mpri_err_set(err, s, "%s", local->message);
        mpri_err_where(err, "%s", local->where);
        return mpri_err_advice(err, "%s", local->advice);
    }
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]) become_const(n, i, out[i].data);
    *folded = true;
    return MPR_OK;
}

/* Values whose data lie in scratch: keep what is used, in the graph's arena. */
static mpr_status keep_results(Graph *g, Value *const *made, int n, Err *err)
{
    for (int i = 0; i < n; i++) {
        size_t bytes = mpri_rewrite_bytes(made[i]);
        bool used = made[i]->n_uses || made[i]->n_outputs;
        made[i]->data = used ? mpri_arena_dup(g->arena, made[i]->data, bytes) : NULL;
        if (used && !made[i]->data) return mpri_err_nomem(err, bytes);
    }
    return MPR_OK;
}

mpr_status mpri_fold_evaluate(PassCtx *ctx, Graph *g, bool spread, bool *changed, Err *err)
{
    int n_made = 0, cap = 0;
    for (int i = 0; i < g->n_values; i++) cap += g->values[i]->kind == VAL_NODE;
    Value **made = ARENA_ARRAY(ctx->scratch, Value *, cap);
    if (!made) return mpri_err_nomem(err, (size_t)cap * sizeof *made);
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        TRY(mpri_infer_node(g, n, err));
        int first = n_made;
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i]) made[n_made++] = n->out[i];
        bool folded = false;
        TRY(fold_content(ctx, g, n, &folded, err));
        if (!folded) TRY(fold_kernel(ctx, n, spread, &folded, err));
        if (!folded) {
            n_made = first;
            continue;
        }
        mpri_node_remove(g, n);
        *changed = true;
    }
    return keep_results(g, made, n_made, err);
}

mpr_status mpri_pass_fold(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    bool spread = ctx->o->no_fuse;
    for (bool again = true; again;) {
        again = false;
        TRY(mpri_fold_evaluate(ctx, g, spread, &again, err));
        if (!ctx->o->no_fuse) {
            TRY(mpri_fold_identities(g, &again, err));
            TRY(mpri_fold_slices(ctx, g, &again, err));
            TRY(mpri_fold_scales(g, &again, err));
        }
        if (mpri_graph_sweep(g)) again = true;
        *changed = *changed || again;
        if (!again && !spread) spread = again = true;
    }
    return MPR_OK;
}
