/* Recovery of operators that exporters decompose: the pass, and what its patterns share.
 *
 * Why before autocast: judged operator by operator, the f32 bias of an exported linear layer would
 * lift the whole branch to f32, and a decomposed LayerNormalization would square in 16 bits.
 * Recovered, they are one operator with one class, and one fast kernel. Each new node keeps the
 * origins of all it stands for. */
#include "passes/recover.h"

#include <math.h>

bool mpri_match_has(const Match *m, const Node *n)
{
    for (int i = 0; i < m->n; i++)
        if (m->node[i] == n) return true;
    return false;
}

void mpri_match_add(Match *m, Node *n)
{
    if (mpri_match_has(m, n)) return;
    if (m->n == MPRI_MATCH_MAX) m->full = true;
    else m->node[m->n++] = n;
}

bool mpri_match_closed(const Match *m, const Node *final)
{
    if (m->full) return false;
    for (int i = 0; i < m->n; i++) {
        const Node *n = m->node[i];
        for (int k = 0; k < n->n_out && n != final; k++) {
            if (!n->out[k]) continue;
            if (n->out[k]->n_outputs) return false;
            for (const Use *u = n->out[k]->uses; u; u = u->next)
                if (!mpri_match_has(m, u->user)) return false;
        }
    }
    return true;
}

Node *mpri_match_user(const Value *v)
{
    if (!v->uses || v->n_outputs) return NULL;
    for (const Use *u = v->uses->next; u; u = u->next)
        if (u->user != v->uses->user) return NULL;
    return v->uses->user;
}

static bool float_cast(const Node *n)
{
    return mpri_is(n, OP_Cast) && mpri_prepare_eligible(n->in[0]) &&
           mpri_prepare_eligible(n->out[0]);
}

Value *mpri_match_through(Match *m, Value *v)
{
    for (Node *d = mpri_def(v); float_cast(d); d = mpri_def(v)) {
        if (m) mpri_match_add(m, d);
        v = d->in[0];
    }
    return v;
}

Node *mpri_match_user_through(Match *m, const Value *v)
{
    Node *n = mpri_match_user(v);
    while (float_cast(n)) {
        mpri_match_add(m, n);
        n = mpri_match_user(n->out[0]);
    }
    return n;
}

Value *mpri_match_other(const Node *n, const Value *one)
{
    if (n->n_in != 2) return NULL;
    return n->in[0] == one ? n->in[1] : n->in[1] == one ? n->in[0] : NULL;
}

Value *mpri_match_scalar_operand(const Node *n, double *x)
{
    if (n->n_in != 2) return NULL;
    if (mpri_prepare_scalar(n->in[1], x)) return n->in[0];
    return mpri_prepare_scalar(n->in[0], x) ? n->in[1] : NULL;
}

bool mpri_match_near(double x, double want)
{
    return fabs(x - want) <= 2e-3 * fabs(want);
}

mpr_status mpri_match_build(Graph *g, Node *before, const OpDef *op, const char *name,
                            const void *params, int n_in, Value *const *in, Value **out, Err *err)
{
    Node *n = mpri_node_create(g, before, op, name, params, n_in, in, 1);
    if (!n) return mpri_err_nomem(err, sizeof *n);
    *out = n->out[0];
    return mpri_infer_node(g, n, err);
}

mpr_status mpri_match_replace(Graph *g, const Match *m, Node *final, Value *made, Err *err)
{
    Value *old = final->out[0];
    Builder b = {
        .g = g, .before = final, .segment = final->segment, .scope = final->name, .err = err};
    Value *to = mpri_build_cast(&b, made, old->dtype);
    TRY(b.failed);
    for (int i = 0; i < m->n; i++) {
        mpri_node_set_origin(g, mpri_def(made), m->node[i]);
        if (to != made) mpri_node_set_origin(g, mpri_def(to), m->node[i]);
    }
    const char *name = old->name;
    mpri_value_replace(g, old, to);
    mpri_node_remove(g, final);
    mpri_value_rename(g, to, name);
    return MPR_OK;
}

typedef mpr_status (*Pattern)(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err);

/* Linear first: GELU and LayerNormalization read its output. */
static const Pattern patterns[] = {mpri_recover_linear, mpri_recover_layernorm, mpri_recover_gelu,
                                   mpri_recover_gated, mpri_recover_softmax};

mpr_status mpri_pass_recover(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
        Node **nodes = ARENA_ARRAY(ctx->scratch, Node *, g->n_nodes);
        if (!nodes) return mpri_err_nomem(err, (size_t)g->n_nodes * sizeof *nodes);
        int count = 0;
        for (Node *n = g->first; n; n = n->next) nodes[count++] = n;
        for (int i = 0; i < count; i++) {
            bool hit = false;
            if (nodes[i]->linked) TRY(patterns[p](ctx, g, nodes[i], &hit, err));
            if (hit) *changed = true;
        }
        mpri_graph_sweep(g);
    }
    return MPR_OK;
}
