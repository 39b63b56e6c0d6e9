/* Casts in their normal form: those of the file and of autocast that are equal or idle by now are
 * one, or gone, and each stands right behind what it reads. A converted file holds the same Casts at
 * other places (behind an alias, where the first reader is), and gradients of a value are added in
 * the order of its readers. */
#include "passes/prepare.h"

static bool precision(const Node *n)
{
    return mpri_is(n, OP_Cast) && mpri_prepare_eligible(n->in[0]) &&
           mpri_prepare_eligible(n->out[0]);
}

mpr_status mpri_pass_tidy(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    TRY(mpri_pass_simplify(ctx, g, changed, err));
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!precision(n)) continue;
        const Node *d = mpri_def(n->in[0]);
        Node *place = d ? d->next : g->first;
        while (place != n && precision(place) && mpri_def(place->in[0]) == d) place = place->next;
        if (place == n) continue;
        mpri_node_move_before(g, n, place);
        *changed = true;
    }
    return MPR_OK;
}
