/* BatchNormalization in a session. In training its running statistics, inputs 3 and 4, become
 * slots "buffer:<initializer>", and every forward pass writes them (BatchNormUpdate), skipped step
 * or not, as PyTorch does; evaluation reads the same slots. Which nodes: those that the file has
 * in training mode, and with bn_train all.
 *
 * Two passes: the slots are made once, the update is attached when shapes are numbers, because the
 * unbiased variance needs the number of elements. Who runs a forward pass a second time, to look for
 * the first non-finite value, passes over the nodes that write slots. */
#include <string.h>
#include "passes/rewrite.h"

static Value *slot_of(Graph *g, const char *name)
{
    for (int i = 0; i < g->n_slots; i++)
        if (!strcmp(g->slots[i].name, name)) return g->slots[i].value;
    return NULL;
}

static mpr_status make_slot(PassCtx *ctx, Graph *g, Node *n, int k, Err *err)
{
    Value *v = n->in[k];
    if (v->kind == VAL_SLOT) return MPR_OK;
    if (v->kind != VAL_CONST || !v->data) {
        mpri_log(ctx->log, MPR_LOG_WARNING,
                 "node '%s' (BatchNormalization): '%s' is no initializer, so training does not "
                 "update it",
                 mpri_err_name(n->name), mpri_err_name(v->name));
        return MPR_OK;
    }
    const char *file = v->param >= 0 ? g->params[v->param].name : v->name;
    const char *name = mpri_arena_printf(g->arena, "buffer:%s", file);
    if (!name) return mpri_err_nomem(err, 64);
    Value *slot = slot_of(g, name);
    if (!slot)
        slot = mpri_value_slot(g, name, SLOT_STATE, MPR_FLOAT32, &v->shape, -1, v->data, v->dtype);
    if (!slot) return mpri_err_nomem(err, sizeof *slot);
    mpri_node_set_input(n, k, slot);
    return MPR_OK;
}

mpr_status mpri_pass_batch_norm(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    const PassOptions *o = ctx->o;
    int frozen = 0, all = 0;
    if (o->batch_norm == BN_OF_FILE) return MPR_OK;
    for (Node *n = g->first; n; n = n->next) {
        if (!mpri_is(n, OP_BatchNormalization)) continue;
        BatchNormParams *p = n->params;
        all++;
        if (!p->training_mode && !o->bn_train) {
            frozen++;
            continue;
        }
        for (int k = 3; k < 5; k++) TRY(make_slot(ctx, g, n, k, err));
        p->training_mode = o->batch_norm == BN_TRAIN;
        *changed = true;
    }
    if (o->batch_norm != BN_TRAIN) return MPR_OK;
    if (frozen)
        mpri_log(ctx->log, MPR_LOG_NOTICE,
                 "BatchNormalization is frozen: %d of %d nodes normalise with the statistics of "
                 "the file; bn-train trains with those of the batch",
                 frozen, all);
    else if (o->bn_train && !all)
        mpri_log(ctx->log, MPR_LOG_NOTICE,
                 "bn-train changes nothing: the model has no BatchNormalization");
    return MPR_OK;
}

static int64_t elements_per_channel(const Shape *x)
{
    int64_t n = x->rank > 0 ? x->d[0] : 1;
    for (int i = 2; i < x->rank; i++) n *= x->d[i];
    return n;
}

static mpr_status attach_update(Graph *g, Node *n, Err *err)
{
    const BatchNormParams *p = n->params;
    while (n->n_out < 5 || !n->out[3] || !n->out[4]) TRY(mpri_node_add_output(g, n, err));
    TRY(mpri_infer_node(g, n, err));
    Builder b = {.g = g, .before = n->next, .segment = SEG_FORWARD, .scope = "running",
                 .origin = n, .err = err};
    BatchNormUpdateParams up = {.momentum = p->momentum,
                                .count = elements_per_channel(&n->in[0]->shape)};
    Value *in[4] = {n->in[3], n->in[4], n->out[3], n->out[4]};
    mpri_build(&b, OP_BatchNormUpdate, &up, 4, in, 0, NULL);
    TRY(b.failed);
    for (int i = 1; i < 3; i++) /* the next running values: the slots have them */
        if (n->out[i] && !n->out[i]->n_uses && !n->out[i]->n_outputs)
            mpri_node_drop_output(g, n, i);
    return MPR_OK;
}

mpr_status mpri_pass_running(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->o->batch_norm != BN_TRAIN) return MPR_OK;
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!mpri_is(n, OP_BatchNormalization)) continue;
        const BatchNormParams *p = n->params;
        if (!p->training_mode || n->in[3]->kind != VAL_SLOT || n->in[4]->kind != VAL_SLOT) continue;
        TRY(attach_update(g, n, err));
        *changed = true;
    }
    return MPR_OK;
}
