/* --dropout P: every Dropout of the file gets ratio P and drops in training, whatever the file
 * says.
 *
 * An export in evaluation mode has no Dropout left. Then it is put where the usual recipes have it:
 * on attention probabilities and on what a sublayer adds to the residual stream (Vaswani et al.,
 * section 5.4; BERT and GPT-2 alike); in a network without either, on hidden activations in front
 * of the next layer (Srivastava et al.). What was done is told, and a file without such a place is
 * refused: nothing happens silently. */
#include "passes/pass.h"

typedef struct Draw { /* inputs of every Dropout: constants of the graph */
    Value *ratio, *on;
} Draw;

static mpr_status set_input(Graph *g, Node *n, int k, Value *v, Err *err)
{
    while (n->n_in <= k) TRY(mpri_node_add_input(g, n, NULL, err));
    mpri_node_set_input(n, k, v);
    return MPR_OK;
}

static mpr_status set_existing(Graph *g, const Draw *d, int *count, Err *err)
{
    for (Node *n = g->first; n; n = n->next) {
        if (!mpri_is(n, OP_Dropout)) continue;
        TRY(set_input(g, n, 1, d->ratio, err));
        TRY(set_input(g, n, 2, d->on, err));
        (*count)++;
    }
    return MPR_OK;
}

/* Input k of n through a Dropout. */
static mpr_status insert(Graph *g, Node *n, int k, const Draw *d, Err *err)
{
    DropoutParams p = {0};
    const char *scope = mpri_arena_printf(g->arena, "%s/Dropout", n->in[k]->name);
    if (!scope) return mpri_err_nomem(err, 64);
    Builder b = {.g = g, .before = n, .segment = n->segment, .scope = scope, .err = err};
    Value *y = mpri_build(&b, OP_Dropout, &p, 3, (Value *const[]){n->in[k], d->ratio, d->on}, 1,
                          NULL);
    TRY(b.failed);
    mpri_node_set_input(n, k, y);
    return MPR_OK;
}

/* ---- places ---- */

static bool only_use(const Value *v) { return v && v->n_uses == 1 && !v->n_outputs; }

static bool is_layer(const Node *n)
{
    return mpri_is(n, OP_Linear) || mpri_is(n, OP_Gemm) || mpri_is(n, OP_MatMul);
}

/* Probabilities times values. */
static bool attends(const Node *n, int k)
{
    return mpri_is(n, OP_MatMul) && k == 0 && mpri_is(mpri_def(n->in[0]), OP_Softmax) &&
           only_use(n->in[0]);
}

/* The output of a layer with weights, reshaped or not, added to something that was computed. */
static bool adds_sublayer(const Node *n, int k)
{
    if (!mpri_is(n, OP_Add) || k > 1 || !only_use(n->in[k])) return false;
    const Node *layer = mpri_def(n->in[k]);
    while (mpri_is(layer, OP_Reshape) && only_use(layer->in[0])) layer = mpri_def(layer->in[0]);
    const Value *other = n->in[1 - k], *weight = is_layer(layer) ? layer->in[1] : NULL;
    return weight && weight->kind != VAL_NODE && other->kind == VAL_NODE &&
           other->shape.rank == n->in[k]->shape.rank;
}

/* A hidden activation in front of a layer. */
static bool feeds_layer(const Node *n, int k)
{
    const Node *act = k == 0 && is_layer(n) ? mpri_def(n->in[0]) : NULL;
    return act && act->n_in == 1 && (act->op->flags & OPF_ELEMENTWISE) && !mpri_is(act, OP_Cast) &&
           mpri_dtype_is_float(n->in[0]->dtype);
}

static mpr_status put(Graph *g, const Draw *d, bool (*here)(const Node *n, int k), int *count,
                      Err *err)
{
    for (Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->n_in && k < 2; k++) {
            if (!n->in[k] || !here(n, k)) continue;
            TRY(insert(g, n, k, d, err));
            (*count)++;
            break;
        }
    return MPR_OK;
}

static mpr_status put_new(PassCtx *ctx, Graph *g, const Draw *d, Err *err)
{
    int attention = 0, sublayers = 0, hidden = 0;
    TRY(put(g, d, attends, &attention, err));
    TRY(put(g, d, adds_sublayer, &sublayers, err));
    if (!attention && !sublayers) TRY(put(g, d, feeds_layer, &hidden, err));
    if (!attention && !sublayers && !hidden) {
        mpri_err_set(err, MPR_E_USAGE, "no Dropout found, and no place where one usually stands");
        return mpri_err_advice(err, "export the model in training mode to keep its Dropout, or "
                                    "train without --dropout");
    }
    mpri_log(ctx->log, MPR_LOG_NOTICE,
             "no Dropout found: put in with ratio %g on %d attention probabilities, %d sublayer "
             "outputs, %d hidden activations",
             (double)ctx->o->dropout, attention, sublayers, hidden);
    return MPR_OK;
}

mpr_status mpri_pass_dropout(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (!ctx->o->has_dropout || !ctx->o->training) return MPR_OK;
    Builder b = {.g = g, .scope = "dropout", .err = err};
    Draw d = {mpri_build_scalar(&b, MPR_FLOAT32, (double)ctx->o->dropout),
              mpri_build_scalar(&b, MPR_BOOL, 1)};
    int count = 0;
    TRY(b.failed);
    TRY(set_existing(g, &d, &count, err));
    if (count)
        mpri_log(ctx->log, MPR_LOG_NOTICE, "ratio %g and training mode for %d Dropout nodes",
                 (double)ctx->o->dropout, count);
    else TRY(put_new(ctx, g, &d, err));
    *changed = true;
    return MPR_OK;
}
