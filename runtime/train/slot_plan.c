/* One operator over slots of the store, as a plan of its own: how the loss scale and the ledger are changed
 * where they lie. */
#include "runtime/train/session.h"

static mpr_status build(mpr_session *s, Graph *g, const OpDef *op, const char *const *slots, int n,
                        Err *err)
{
    Value **in = ARENA_ARRAY(g->arena, Value *, n + 1);
    if (!in) return mpri_err_nomem(err, 0);
    for (int i = 0; i < n; i++) {
        const StoreSlot *slot = mpri_store_find(&s->store, slots[i]);
        const char *name = mpri_intern(g->names, slots[i]);
        if (name)
            in[i] = mpri_value_slot(g, name, slot->cls, slot->dtype, &slot->shape, slot->param,
                                    NULL, slot->dtype);
        if (!in[i]) return mpri_err_nomem(err, 0);
    }
    Node *node = mpri_node_create(g, NULL, op, "scale", NULL, n, in, 0);
    if (!node) return mpri_err_nomem(err, 0);
    node->segment = SEG_UPDATE;
    return mpri_infer_graph(g, err);
}

mpr_status mpri_session_run_slots(mpr_session *s, const OpDef *op, const char *const *slots, int n,
                                  Plan **plan, Err *err)
{
    if (*plan) return mpri_plan_run(*plan, -1, 0, 0, err);
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    Intern *names = mpri_intern_create(&arena);
    Graph *g = names ? mpri_graph_create(&arena, names, mpri_op_table()) : NULL;
    mpr_status status = g ? build(s, g, op, slots, n, err) : mpri_err_nomem(err, 0);
    if (status != MPR_OK) {
        mpri_arena_destroy(&arena);
        return status;
    }
    PlanOptions o = {.kernels = s->o.kernels};
    TRY(mpri_plan_create(s->device, &s->store, g, arena, &o, plan, err));
    status = mpri_plan_bind_memory(*plan, NULL, err);
    if (status == MPR_OK) return mpri_plan_run(*plan, -1, 0, 0, err);
    mpri_plan_destroy(*plan); /* a later step makes it anew */
    *plan = NULL;
    return status;
}
