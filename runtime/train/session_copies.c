/* 16-bit copies of parameters, on devices that keep them (Device.fused_update, passes/copies.c): slots that the
 * optimizer writes in the step. Here they are written where something else was: a new plan brought new
 * slots, or the host set a parameter. That makes them stale, and the next pass writes all of them first. */
#include "runtime/train/session.h"

static const DType types[] = {MPR_FLOAT16, MPR_BFLOAT16};

const StoreSlot *mpri_session_copy(const mpr_session *s, const SessionParam *p, int which, Arena *a,
                                   Err *err)
{
    const char *name = mpri_copy_name(a, p->slot, types[which]);
    if (!name) (void)!mpri_err_nomem(err, 0);
    return name ? mpri_store_find(&s->store, name) : NULL;
}

static void count(mpr_session *s)
{
    s->n_copies = 0;
    for (int i = 0; i < s->store.n; i++) s->n_copies += s->store.slots[i].cls == SLOT_COPY;
}

static Value *slot_value(Graph *g, const StoreSlot *slot)
{
    const char *name = mpri_intern(g->names, slot->name);
    return name ? mpri_value_slot(g, name, slot->cls, slot->dtype, &slot->shape, slot->param, NULL,
                                  slot->dtype)
                : NULL;
}

/* One node over all copies and their masters. */
static mpr_status build(const mpr_session *s, Graph *g, Err *err)
{
    Value **in = ARENA_ARRAY(g->arena, Value *, 2 * s->n_copies + 1);
    int n = 0;
    if (!in) return mpri_err_nomem(err, 0);
    for (int i = 0; i < s->n_params; i++) {
        const StoreSlot *master = mpri_store_find(&s->store, s->params[i].slot);
        Value *from = NULL;
        for (int k = 0; k < MPRI_COPIES; k++) {
            const StoreSlot *copy = mpri_session_copy(s, &s->params[i], k, g->arena, err);
            TRY(err->code);
            if (!copy || !master) continue;
            if (!from) from = slot_value(g, master);
            Value *to = slot_value(g, copy);
            if (!from || !to) return mpri_err_nomem(err, 0);
            in[n++] = from;
            in[n++] = to;
        }
    }
    Node *node = mpri_node_create(g, NULL, &mpri_op_CopyParams, "copies", NULL, n, in, 0);
    if (!node) return mpri_err_nomem(err, 0);
    node->segment = SEG_UPDATE;
    return mpri_infer_graph(g, err);
}

mpr_status mpri_session_copies(mpr_session *s, Err *err)
{
    Arena arena;
    Plan *p = NULL;
    if (!s->copies_stale) return MPR_OK;
    count(s);
    if (!s->n_copies) {
        s->copies_stale = false;
        return MPR_OK;
    }
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    Intern *names = mpri_intern_create(&arena);
    Graph *g = names ? mpri_graph_create(&arena, names, mpri_op_table()) : NULL;
    mpr_status status = g ? build(s, g, err) : mpri_err_nomem(err, 0);
    if (status != MPR_OK) {
        mpri_arena_destroy(&arena);
        return status;
    }
    PlanOptions o = {.kernels = s->o.kernels};
    TRY(mpri_plan_create(s->device, &s->store, g, arena, &o, &p, err));
    status = mpri_plan_bind_memory(p, NULL, err);
    if (status == MPR_OK) status = mpri_plan_run(p, -1, 0, 0, err);
    mpri_plan_destroy(p);
    s->copies_stale = status != MPR_OK;
    return status;
}
