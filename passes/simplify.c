/* What the file writes but nobody needs: aliases, constants as nodes, casts that change nothing,
 * Dropout that drops nothing, dead code.
 *
 * The trap is the cast pair. Narrow-and-back rounds every value, so it stays, whoever wrote it;
 * wide-and- back changes nothing and goes. A cast of a parameter is never computed here: the
 * master copy must stay what gradients go to. */
#include "passes/prepare.h"
#include "passes/rewrite.h"

/* Output 0 turns into a constant in place: its name, uses and graph outputs stay. */
static void become_const(Graph *g, Node *n, const void *data)
{
    Value *v = n->out[0];
    v->kind = VAL_CONST;
    v->def = NULL;
    v->data = data;
    n->out[0] = NULL;
    mpri_node_remove(g, n);
}

static bool constant(Graph *g, Node *n)
{
    const ConstantParams *p = n->params;
    if (!n->out[0] || !p->value.data || !mpri_dtype_size(p->value.dtype)) return false;
    n->out[0]->dtype = p->value.dtype;
    n->out[0]->shape = p->value.shape;
    become_const(g, n, p->value.data);
    return true;
}

/* The value that a cast reads, seen through exact casts before it. */
static Value *cast_source(Node *n)
{
    Value *x = n->in[0];
    for (Node *d = mpri_def(x);
         mpri_is(d, OP_Cast) && mpri_prepare_exact(d->in[0]->dtype, x->dtype); d = mpri_def(x))
        x = d->in[0];
    return x;
}

/* A cast of the same value to the same type that stands before n: seen[] marks those. */
static Node *earlier_cast(const Node *n, const Value *x, const bool *seen)
{
    for (const Use *u = x->uses; u; u = u->next)
        if (u->user != n && u->index == 0 && mpri_is(u->user, OP_Cast) && seen[u->user->id] &&
            mpri_params_equal(n->op, u->user->params, n->params))
            return u->user;
    return NULL;
}

static mpr_status cast(Graph *g, Node *n, bool *seen, bool *changed, Err *err)
{
    const CastParams *p = n->params;
    Value *x = cast_source(n);
    if (x != n->in[0]) {
        mpri_node_set_input(n, 0, x);
        *changed = true;
    }
    Value *same = x->dtype == (DType)p->to ? x : NULL;
    if (!same && mpri_prepare_small_const(x) && mpri_dtype_size((DType)p->to)) {
        same = mpri_prepare_convert(g, x, (DType)p->to, false);
        if (!same) return mpri_err_nomem(err, sizeof *same);
    }
    Node *earlier = same ? NULL : earlier_cast(n, x, seen);
    if (earlier) {
        mpri_node_set_origin(g, earlier, n);
        earlier->rounds = earlier->rounds || n->rounds;
        same = earlier->out[0];
    }
    if (!same) {
        seen[n->id] = true;
        return MPR_OK;
    }
    mpri_rewrite_forward(g, n, same);
    *changed = true;
    return MPR_OK;
}

static bool const_false(const Value *v)
{
    double x;
    return !v || (mpri_prepare_scalar(v, &x) && x == 0);
}

/* Evaluation turns every Dropout off, whatever its training_mode says. */
static bool dropout(const PassCtx *ctx, Graph *g, Node *n)
{
    if (ctx->o->training) return false;
    bool changed = false;
    Value *mode = n->n_in > 2 ? n->in[2] : NULL;
    if (!const_false(mode)) {
        mpri_node_set_input(n, 2, NULL);
        changed = true;
    }
    if (n->n_out > 1 && n->out[1] && n->out[1]->n_uses + n->out[1]->n_outputs > 0) return changed;
    mpri_rewrite_forward(g, n, n->in[0]);
    return true;
}

mpr_status mpri_pass_simplify(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    bool *seen = ARENA_ARRAY(ctx->scratch, bool, g->next_node_id);
    if (!seen) return mpri_err_nomem(err, (size_t)g->next_node_id);
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (mpri_is(n, OP_Identity)) {
            mpri_rewrite_forward(g, n, n->in[0]);
            *changed = true;
        } else if (mpri_is(n, OP_Constant)) {
            if (constant(g, n)) *changed = true;
        } else if (mpri_is(n, OP_Dropout)) {
            if (dropout(ctx, g, n)) *changed = true;
        } else if (mpri_is(n, OP_Cast)) {
            TRY(cast(g, n, seen, changed, err));
        }
    }
    if (mpri_graph_sweep(g)) *changed = true;
    return MPR_OK;
}
