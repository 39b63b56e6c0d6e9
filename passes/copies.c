/* Parameters in 16 bits, kept beside their masters instead of cast in every step.
 *
 * Where PassOptions.keep_copies says so, a Cast of a trained parameter to f16 or bf16 becomes the slot
 * "copy:TYPE:NAME", one for all its readers. The optimizer writes it together with the master, rounded
 * as the Cast rounds, and the session writes it where the host has set the master: the bits are those of
 * the Cast. This stands behind autodiff, which needs the Cast for the gradient's way back. */
#include <string.h>

#include "passes/rewrite.h"

static bool kept(const Graph *g, const Node *n)
{
    if (!mpri_is(n, OP_Cast) || n->in[0]->kind != VAL_SLOT) return false;
    return g->slots[n->in[0]->slot].cls == SLOT_PARAM && n->in[0]->dtype == MPR_FLOAT32 &&
           mpri_dtype_is_low(n->out[0]->dtype);
}

/* The slot of this parameter and type; made at its first use. */
static Value *copy_slot(Graph *g, const Slot *master, DType t, const char *name)
{
    for (int i = 0; i < g->n_slots; i++)
        if (g->slots[i].cls == SLOT_COPY && !strcmp(g->slots[i].name, name)) return g->slots[i].value;
    const char *own = mpri_intern(g->names, name);
    const Shape shape = master->shape;
    const int param = master->param;
    return own ? mpri_value_slot(g, own, SLOT_COPY, t, &shape, param, NULL, t) : NULL;
}

mpr_status mpri_pass_copies(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (!ctx->o->keep_copies || ctx->o->no_fuse) return MPR_OK;
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!kept(g, n)) continue;
        const Slot *master = &g->slots[n->in[0]->slot];
        DType t = n->out[0]->dtype;
        const char *name = mpri_copy_name(ctx->scratch, master->name, t);
        Value *copy = name ? copy_slot(g, master, t, name) : NULL;
        if (!copy) return mpri_err_nomem(err, 0);
        mpri_rewrite_forward(g, n, copy);
        *changed = true;
    }
    return MPR_OK;
}

const char *mpri_copy_name(Arena *a, const char *master, DType t)
{
    const char *param = strchr(master, ':');
    return mpri_arena_printf(a, "copy:%s:%s", mpri_dtype_name(t), param ? param + 1 : master);
}
