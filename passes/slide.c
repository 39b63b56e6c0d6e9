/* A narrowing cast moves before the layout operator that it follows: half the bytes are moved, and
 * a transposed weight becomes Transpose(Cast(W)), which the matrix product reads as it lies.
 *
 * This is done on bound shapes, after every precision is decided and reported; the values are the
 * same bits either way. An operator that drops elements (Slice) keeps its place: casting less is
 * cheaper. */
#include "passes/rewrite.h"

static bool moves_all(const Node *n)
{
    if (!n || n->op->cast_cuda != CAST_MOVE || n->n_out != 1 || n->n_in == 0 || !n->in[0])
        return false;
    return mpri_rewrite_bytes(n->in[0]) > 0 &&
           mpri_rewrite_bytes(n->in[0]) <= mpri_rewrite_bytes(n->out[0]);
}

static bool narrows(const Node *n)
{
    return mpri_is(n, OP_Cast) && mpri_dtype_is_low(n->out[0]->dtype) &&
           mpri_dtype_size(n->in[0]->dtype) > mpri_dtype_size(n->out[0]->dtype);
}

/* x in type t: a cast that stands before `before` already, or a new one there. */
static Value *cast_before(Builder *b, Value *x, DType t, const Node *like)
{
    for (const Use *u = x->uses; u; u = u->next) {
        if (!mpri_is(u->user, OP_Cast) ||
            !mpri_params_equal(like->op, u->user->params, like->params))
            continue;
        mpri_node_move_before(b->g, u->user, x->def ? x->def->next : b->g->first);
        return u->user->out[0];
    }
    Value *y = mpri_build_cast(b, x, t);
    if (y && y->def) y->def->why = like->why;
    return y;
}

mpr_status mpri_pass_slide(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    (void)ctx;
    for (Node *n = g->last, *prev; n; n = prev) {
        prev = n->prev;
        Node *move = narrows(n) ? mpri_def(n->in[0]) : NULL;
        if (!moves_all(move) || !mpri_rewrite_one_use(move->out[0])) continue;
        Builder b = mpri_rewrite_builder(g, move, err);
        DType from = n->in[0]->dtype;
        for (int k = 0; k < move->n_in; k++) { /* the border of Pad has the type of its inside */
            if (!move->in[k] || move->in[k]->dtype != from) continue;
            Value *x = cast_before(&b, move->in[k], n->out[0]->dtype, n);
            TRY(b.failed);
            mpri_node_set_input(move, k, x);
        }
        TRY(mpri_infer_node(g, move, err));
        mpri_rewrite_forward(g, n, move->out[0]);
        *changed = true;
        prev = move; /* the new cast may follow another layout operator */
    }
    return MPR_OK;
}
