/* Nodes that a file keeps in f32 only because its opset knows their operator in no 16-bit type
 * become 16-bit nodes. mpr-convert writes them between Casts, and marks the one behind
 * (Node.rounds): widen the inputs, compute, round is what the kernel on 16-bit tensors does. So the
 * file gives the graph that the operator written in 16 bits gives, and the backward pass, which
 * runs in the forward's types, adds gradients in 16 bits as well.
 *
 * Before patterns are recovered: the Casts would stand in their way. A node that is f32 on purpose
 * has no such mark. */
#include "passes/prepare.h"
#include "passes/rewrite.h"

static bool rounds(const Node *n)
{
    return mpri_is(n, OP_Cast) && n->rounds && mpri_dtype_is_low(n->out[0]->dtype);
}

/* What v, f32, holds, as a value of the 16-bit type t; *out stays NULL when it does not. */
static mpr_status narrow_source(Graph *g, Value *v, DType t, Value **out, Err *err)
{
    const Node *d = mpri_def(v);
    *out = NULL;
    if (v->dtype != MPR_FLOAT32) return MPR_OK;
    if (mpri_is(d, OP_Cast)) *out = d->in[0]->dtype == t ? d->in[0] : NULL;
    if (!mpri_prepare_small_const(v)) return MPR_OK;
    int64_t n = mpri_shape_elements(&v->shape);
    Value *low = mpri_prepare_convert(g, v, t, false);
    if (!low) return mpri_err_nomem(err, sizeof *low);
    for (int64_t i = 0; i < n; i++) {
        double x = mpri_load_f64(v->dtype, v->data, i), y = mpri_load_f64(t, low->data, i);
        if (x != y && (x == x || y == y)) return MPR_OK;
    }
    *out = low;
    return MPR_OK;
}

/* The inputs that n would have in the type t; *ok: all of its data are held in that type. */
static mpr_status narrow_inputs(Graph *g, const Node *n, DType t, Value **in, bool *ok, Err *err)
{
    *ok = true;
    for (int k = 0; k < n->n_in && *ok; k++) {
        in[k] = n->in[k];
        bool fixed = k < 32 && n->op->fixed_in >> k & 1;
        if (!in[k] || fixed || !mpri_prepare_eligible(in[k]) || in[k]->dtype == t) continue;
        TRY(narrow_source(g, n->in[k], t, &in[k], err));
        *ok = in[k] != NULL;
    }
    return MPR_OK;
}

/* Everything that reads v rounds it to t. */
static bool only_rounded(const Value *v, DType t)
{
    for (const Use *u = v->uses; u; u = u->next)
        if (!rounds(u->user) || u->user->out[0]->dtype != t) return false;
    return v->n_outputs == 0;
}

/* A rounding Cast among the readers of v, or NULL. */
static Node *rounding(const Value *v)
{
    for (const Use *u = v ? v->uses : NULL; u; u = u->next)
        if (rounds(u->user)) return u->user;
    return NULL;
}

/* Type to which the results of n are rounded, or NONE. */
static DType rounded_to(const Node *n)
{
    for (int k = 0; k < n->n_out; k++)
        if (rounding(n->out[k])) return rounding(n->out[k])->out[0]->dtype;
    return MPR_DTYPE_NONE;
}

static mpr_status set_inputs(Graph *g, Node *n, Value *const *in, Err *err)
{
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] != in[k]) mpri_node_set_input(n, k, in[k]);
    return mpri_infer_node(g, n, err);
}

static mpr_status narrow(PassCtx *ctx, Graph *g, Node *n, DType t, bool *changed, Err *err)
{
    bool ok;
    Value **in = ARENA_ARRAY(ctx->scratch, Value *, n->n_in);
    Value **was = ARENA_ARRAY(ctx->scratch, Value *, n->n_in);
    bool *wide = ARENA_ARRAY(ctx->scratch, bool, n->n_out);
    if (!in || !was || !wide) return mpri_err_nomem(err, sizeof *in * (size_t)n->n_in);
    TRY(narrow_inputs(g, n, t, in, &ok, err));
    if (!ok) return MPR_OK;
    for (int k = 0; k < n->n_in; k++) was[k] = n->in[k];
    for (int k = 0; k < n->n_out; k++) wide[k] = n->out[k] && n->out[k]->dtype == MPR_FLOAT32;
    TRY(set_inputs(g, n, in, err));
    for (int k = 0; k < n->n_out; k++)
        if (wide[k] && n->out[k]->dtype == t && !only_rounded(n->out[k], t)) ok = false;
    if (!ok) return set_inputs(g, n, was, err);
    for (int k = 0; k < n->n_out; k++)
        for (Node *cast; wide[k] && n->out[k]->dtype == t && (cast = rounding(n->out[k]));)
            mpri_rewrite_forward(g, cast, n->out[k]);
    *changed = true;
    return MPR_OK;
}

mpr_status mpri_pass_narrow(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first; n; n = n->next) {
        DType t = mpri_is(n, OP_Cast) ? MPR_DTYPE_NONE : rounded_to(n);
        if (t != MPR_DTYPE_NONE) TRY(narrow(ctx, g, n, t, changed, err));
    }
    return MPR_OK;
}
