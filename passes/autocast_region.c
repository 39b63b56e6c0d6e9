/* The loss region. A loss that the file writes operator by operator would be judged operator by
 * operator: the squared error of two low tensors would be a low Mul. From the scalar loss back to
 * the last product, normalisation, parameter or input, everything is computed in f32, whatever the
 * profile says. What the model shows as an output of its own is no part of the loss: it has one
 * type, whether the loss stands in the file or is attached for training. */
#include "passes/autocast.h"

#include <string.h>

static bool family(const Node *n, const char *name)
{
    return !strcmp(n->op->family, name);
}

static bool walked(const Profile *p, const Node *n)
{
    static const char *const families[] = {"elementwise", "reduce",  "layout",
                                           "index",       "softmax", "cast"};
    if (n->op->flags & (OPF_LOSS | OPF_OPAQUE)) return false;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (family(n, families[i])) return mpri_profile_class(p, n).cls != CAST_LOW;
    return false;
}

static Node *loss_node(const Graph *g)
{
    for (int i = 0; i < g->n_outputs; i++) {
        const Value *v = g->outputs[i].value;
        if (strcmp(g->outputs[i].name, "loss") || !mpri_dtype_is_float(v->dtype)) continue;
        if (v->shape.rank == 0 || mpri_shape_elements(&v->shape) == 1) return mpri_def(v);
    }
    return NULL;
}

/* Log of a Sigmoid, or of 1 - Sigmoid, perhaps clamped or with an epsilon. */
static bool log_of_sigmoid(const Node *n)
{
    enum { FAR = 4 };
    if (!mpri_is(n, OP_Log)) return false;
    const Node *d = mpri_def(n->in[0]);
    for (int i = 0; i < FAR && d; i++) {
        if (mpri_is(d, OP_Sigmoid)) return true;
        if (!mpri_is(d, OP_Add) && !mpri_is(d, OP_Sub) && !mpri_is(d, OP_Clip) &&
            !mpri_is(d, OP_Max))
            return false;
        const Node *left = mpri_def(d->in[0]);
        d = left || d->n_in < 2 ? left : mpri_def(d->in[1]);
    }
    return false;
}

/* A graph output, or the logits in front of a Sigmoid that is one. */
static bool is_shown(const Value *v)
{
    if (v->n_outputs) return true;
    for (const Use *u = v->uses; u; u = u->next)
        if (mpri_is(u->user, OP_Sigmoid) && u->user->out[0]->n_outputs) return true;
    return false;
}

void mpri_autocast_region(PassCtx *ctx, const Graph *g, bool *region)
{
    const Node *loss = loss_node(g);
    if (!loss || !walked(ctx->o->profile, loss)) return;
    region[loss->id] = true;
    bool warned = false;
    for (const Node *n = loss; n;
         n = n->prev) { /* users come before producers: one walk is enough */
        if (!region[n->id]) continue;
        if (!warned && log_of_sigmoid(n)) {
            mpri_log(ctx->log, MPR_LOG_WARNING,
                     "node '%s': the loss takes the logarithm of a Sigmoid; it is kept in f32, but "
                     "a loss on "
                     "logits is more accurate",
                     mpri_err_name(n->name));
            warned = true;
        }
        for (int k = 0; k < n->n_in; k++) {
            const Node *d = mpri_def(n->in[k]);
            if (d && !is_shown(n->in[k]) && walked(ctx->o->profile, d)) region[d->id] = true;
        }
    }
}
