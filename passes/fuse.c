/* Work that a kernel can do while it stores or loads, so that a tensor is not written and read once
 * more.
 *
 * (1) The activation behind a matrix product goes into its epilogue. The value before it stays as
 * output 1 when backward reads it. In 16 bits the kernel rounds that value to the output's type
 * before it applies the activation, so the bits are those of the two operators. (2) A cast from 16
 * bits in front of an operator that computes in f32 goes into its load; a cast to 16 bits behind
 * one goes into its store. The type that the operator had is kept in its out_dtype attribute. */
#include <string.h>
#include "passes/rewrite.h"

/* ---- (1) activations ---- */

static const char *activation_of(const Node *n)
{
    if (n->op->id != OP_Relu && n->op->id != OP_Gelu) return NULL;
    if (n->out[0]->dtype != n->in[0]->dtype) return NULL;
    if (mpri_is(n, OP_Relu)) return "relu";
    const GeluParams *p = n->params;
    return p->approximate && strcmp(p->approximate, "tanh") == 0 ? "gelu_tanh" : "gelu";
}

/* Elementwise commutes with Reshape: a Reshape that stands between product and activation goes
 * behind. */
static Node *product_before(const Node *act)
{
    Node *n = mpri_def(act->in[0]);
    if (mpri_is(n, OP_Reshape) && mpri_rewrite_one_use(n->in[0])) n = mpri_def(n->in[0]);
    if (!mpri_is(n, OP_FusedMatMul) || n->segment != act->segment || n->n_out > 1) return NULL;
    return ((const FusedMatMulParams *)n->params)->activation[0] ? NULL : n;
}

static mpr_status fuse_activation(Graph *g, Node *act, bool *changed, Err *err)
{
    const char *name = activation_of(act);
    Node *n = name ? product_before(act) : NULL;
    if (!n) return MPR_OK;
    Value *x = n->out[0], *seen = act->in[0];
    const char *pre_name = x->name, *post_name = act->out[0]->name;
    Value *pre = NULL;
    if (x->n_uses > 1 || x->n_outputs || seen->n_uses > 1 || seen->n_outputs) {
        TRY(mpri_node_add_output(g, n, err));
        pre = n->out[1];
        mpri_value_replace(g, x, pre); /* a Reshape between reads it from now on */
    }
    mpri_node_set_origin(g, n, act);
    ((FusedMatMulParams *)n->params)->activation = mpri_intern(g->names, name);
    if (!((FusedMatMulParams *)n->params)->activation) return mpri_err_nomem(err, 16);
    TRY(mpri_infer_node(g, n, err));
    Builder b = mpri_rewrite_builder(g, act, err);
    Value *y = mpri_rewrite_reshape(&b, x, &act->out[0]->shape);
    TRY(b.failed);
    mpri_rewrite_forward(g, act, y);
    mpri_value_rename(g, y, post_name);
    if (pre && y != x) mpri_value_rename(g, x, n->name);
    if (pre) mpri_value_rename(g, pre, pre_name);
    *changed = true;
    return MPR_OK;
}

/* ---- (2) casts ---- */

/* The out_dtype attribute of n; NULL when it has none. */
static int64_t *out_dtype(Node *n)
{
    const AttrRow *row = mpri_params_row(n->op, "out_dtype");
    return row ? (int64_t *)((char *)n->params + row->offset) : NULL;
}

static bool is_cast(const Node *n, bool widening)
{
    if (!mpri_is(n, OP_Cast)) return false;
    DType from = n->in[0]->dtype, to = n->out[0]->dtype;
    return widening ? mpri_dtype_is_low(from) && to == MPR_FLOAT32
                    : from == MPR_FLOAT32 && mpri_dtype_is_low(to);
}

/* Types of the outputs of n, to see whether a change of its inputs altered one. */
static bool same_types(const Node *n, const DType *types)
{
    for (int i = 0; i < n->n_out && i < 4; i++)
        if (n->out[i] && n->out[i]->dtype != types[i]) return false;
    return true;
}

/* Input k of n reads the 16-bit source of its cast instead, every output type unchanged. False:
 * refused, n as before. */
static bool load_low(Graph *g, Node *n, int k, Err *scratch)
{
    if (!(n->op->flags & OPF_MIXED_IN)) return false;
    Value *wide = n->in[k];
    DType types[4] = {0};
    for (int i = 0; i < n->n_out && i < 4; i++)
        if (n->out[i]) types[i] = n->out[i]->dtype;
    int64_t *out = out_dtype(n), old = out ? *out : 0;
    if (out && !old && n->out[0]) *out = types[0];
    mpri_node_set_input(n, k, wide->def->in[0]);
    mpri_err_clear(scratch);
    if (mpri_infer_node(g, n, scratch) == MPR_OK && same_types(n, types)) return true;
    mpri_node_set_input(n, k, wide);
    if (out) *out = old;
    mpri_err_clear(scratch);
    (void)!mpri_infer_node(g, n, scratch); /* as it was before: cannot fail */
    return false;
}

static bool all_mixed(const Value *v)
{
    if (v->n_outputs || !v->n_uses) return false;
    for (const Use *u = v->uses; u; u = u->next)
        if (!(u->user->op->flags & OPF_MIXED_IN)) return false;
    return true;
}

/* Into the loads of all readers; the f32 copy is only saved when none is left that needs it. */
static void fuse_load(Graph *g, Node *cast, Err *scratch, bool *changed)
{
    if (!is_cast(cast, true) || !all_mixed(cast->out[0])) return;
    for (bool again = true; again && cast->out[0]->uses;) {
        again = false;
        for (Use *u = cast->out[0]->uses; u && !again; u = u->next)
            again = load_low(g, u->user, u->index, scratch);
        *changed = *changed || again;
    }
}

/* Into the store of the producer, when nothing else reads it. */
static mpr_status fuse_store(Graph *g, Node *cast, bool *changed, Err *err)
{
    Node *n = mpri_def(cast->in[0]);
    if (!n || !is_cast(cast, false) || !(n->op->flags & OPF_MIXED_OUT)) return MPR_OK;
    int64_t *out = out_dtype(n);
    if (!out || cast->in[0]->def_index != 0 || !mpri_rewrite_one_use(cast->in[0])) return MPR_OK;
    Value *x = n->out[0];
    const char *name = cast->out[0]->name;
    *out = cast->out[0]->dtype;
    TRY(mpri_infer_node(g, n, err));
    mpri_rewrite_forward(g, cast, x);
    mpri_value_rename(g, x, name);
    *changed = true;
    return MPR_OK;
}

mpr_status mpri_pass_fuse(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->o->no_fuse) return MPR_OK;
    Err *scratch = ARENA_NEW(ctx->scratch, Err);
    if (!scratch) return mpri_err_nomem(err, sizeof *scratch);
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        TRY(fuse_activation(g, n, changed, err));
    }
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!mpri_is(n, OP_Cast)) continue;
        fuse_load(g, n, scratch, changed);
        TRY(fuse_store(g, n, changed, err));
    }
    if (mpri_graph_sweep(g)) *changed = true;
    return MPR_OK;
}
