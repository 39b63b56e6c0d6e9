/* What is cheap to compute again is not kept for the backward pass (Chen et al., Training Deep Nets
 * with Sublinear Memory Cost, arXiv 1604.06174: results of low cost are dropped).
 *
 * Where scores and probabilities have 16 bits, the pair of products around a Softmax is not one
 * Attention, so its f32 probabilities and their 16-bit copy would live until the backward pass; so
 * would the 16-bit copies of weights, the output of GELU beside its input and that of a LayerNorm
 * beside its. A copy of such a node, or of a short chain of them, is put into the backward segment
 * and reads what lives there anyway: parameters, inputs, and values that backward reads as late or
 * later. Where the start of the chain does not, it is kept instead, if it is that much smaller. The
 * kernels are deterministic, so the bits are the same.
 *
 * Only values of 16 bits, and what is computed from such, are dropped: a step in f32 stays as it
 * is. Copies are taken in forward order, which frees what would have lived longest, until their
 * traffic reaches a share of the estimated traffic of the step: with few rows in a batch converting
 * a weight costs as much as using it.
 *
 * Trap: copies stand at the start of the segment, where definitions come before uses whatever chain
 * they share; it is the schedule that moves each in front of its first reader. */
#include "passes/rewrite.h"

enum {
    CHAIN = 6,              /* nodes that one value may take */
    LEAVES = 12,            /* what they read */
    NEAR = 16,              /* nodes between two readers that share a copy */
    WORTH = 64 * 1024,      /* bytes below which a value is kept */
    FLOPS_PER_BYTE = 6,     /* what a product computes while memory moves a byte */
    SHARE = 40,             /* copies move at most 1/SHARE of the step */
};

typedef struct Chain {
    Node *node[CHAIN]; /* readers before what they read */
    int n;
    const Value *leaf[LEAVES];
    int n_leaves;
    size_t kept, moved; /* bytes that live longer, bytes that the copies move */
    bool low, refused;
} Chain;

typedef struct Again {
    Graph *g;
    Node *start;            /* first node of the backward segment */
    int *place;             /* by node id */
    int *first, *last;      /* by value id: backward readers, -1: none; views count in last */
    bool *viewed;           /* by value id: backward reads a forward view of it */
    bool *written;          /* by value id: slots that a node writes */
    Value **copy;           /* by value id: what stands for it in the backward segment */
    size_t budget;          /* bytes that copies may still move */
} Again;

static bool is_cheap(const Node *n)
{
    if (n->n_in > LEAVES) return false;
    if (n->op->flags & (OPF_RANDOM | OPF_EFFECT | OPF_VIEW | OPF_OPAQUE)) return false;
    if (n->op->flags & OPF_ELEMENTWISE) return n->n_out == 1;
    return mpri_is(n, OP_Softmax) || mpri_is(n, OP_LayerNormalization);
}

/* ---- what a step moves ---- */

/* Multiplications of a product with operands a, b and result y: the root of MK * KN * MN, which a
 * batch enlarges and a convolution's window makes too small. */
static double flops(const Node *n)
{
    static const int products[] = {OP_FusedMatMul, OP_Conv, OP_ConvGradInput, OP_ConvGradWeight};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        if (!mpri_is(n, products[i])) continue;
        double all = 1;
        const Value *v[3] = {n->in[0], n->in[1], n->out[0]};
        for (int k = 0; k < 3; k++)
            all *= (double)mpri_rewrite_bytes(v[k]) / (double)mpri_dtype_size(v[k]->dtype);
        return 2 * __builtin_sqrt(all);
    }
    return 0;
}

static double traffic(const Node *n)
{
    double bytes = flops(n) / FLOPS_PER_BYTE;
    if (n->op->flags & OPF_VIEW) return 0;
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k]) bytes += (double)mpri_rewrite_bytes(n->in[k]);
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k]) bytes += (double)mpri_rewrite_bytes(n->out[k]);
    return bytes;
}

/* ---- who reads what ---- */

static mpr_status prepare(Again *a, PassCtx *ctx, Err *err)
{
    Graph *g = a->g;
    a->place = ARENA_ARRAY(ctx->scratch, int, g->next_node_id);
    a->first = ARENA_ARRAY(ctx->scratch, int, g->n_values);
    a->last = ARENA_ARRAY(ctx->scratch, int, g->n_values);
    a->viewed = ARENA_ARRAY(ctx->scratch, bool, g->n_values);
    a->written = ARENA_ARRAY(ctx->scratch, bool, g->n_values);
    a->copy = ARENA_ARRAY(ctx->scratch, Value *, g->n_values);
    if (!a->place || !a->first || !a->last || !a->viewed || !a->written || !a->copy)
        return mpri_err_nomem(err, (size_t)g->n_values * sizeof *a->copy);
    for (int i = 0; i < g->n_values; i++) a->first[i] = a->last[i] = -1;
    double step = 0;
    int place = 0;
    for (Node *n = g->first; n; n = n->next) {
        a->place[n->id] = ++place;
        step += traffic(n);
        if (!a->start && n->segment == SEG_BACKWARD) a->start = n;
        for (int k = 0; k < n->n_in; k++) {
            if (!n->in[k]) continue;
            int id = n->in[k]->id;
            bool effect = n->op->flags & OPF_EFFECT;
            if (effect && mpri_op_mask(n->op->writes, k)) a->written[id] = true;
            if (n->segment == SEG_FORWARD) continue;
            if (a->first[id] < 0) a->first[id] = place;
            a->last[id] = place;
        }
    }
    for (Node *n = g->last; n; n = n->prev) {
        if (!(n->op->flags & OPF_VIEW) || n->segment != SEG_FORWARD || !n->in[0]) continue;
        int from = n->in[0]->id, last = a->last[n->out[0]->id];
        if (last >= 0 || n->out[0]->n_outputs) a->viewed[from] = true;
        if (last > a->last[from]) a->last[from] = last;
    }
    a->budget = (size_t)(step / SHARE);
    return MPR_OK;
}

/* ---- the chain behind a value ---- */

static bool listed(const Chain *c, const Value *v)
{
    for (int i = 0; i < c->n_leaves; i++)
        if (c->leaf[i] == v) return true;
    return false;
}

static bool in_chain(const Chain *c, const Node *n)
{
    for (int i = 0; i < c->n; i++)
        if (c->node[i] == n) return true;
    return false;
}

/* A copy that another value needed and whose readers are not far. */
static bool has_copy(const Again *a, const Value *v, int reader)
{
    int far = a->first[v->id] - reader;
    return a->copy[v->id] && far <= NEAR && far >= -NEAR;
}

static void follow(const Again *a, Chain *c, Node *n, int reader)
{
    c->node[c->n++] = n;
    for (int k = 0; k < n->n_in && !c->refused; k++) {
        const Value *v = n->in[k];
        if (!v || v->kind == VAL_CONST || listed(c, v)) continue;
        Node *def = mpri_def(v);
        c->low = c->low || mpri_dtype_is_low(v->dtype);
        if (def && in_chain(c, def)) {
            c->refused = true; /* read twice: the copies would stand in the wrong order */
            continue;
        }
        bool there = !def || has_copy(a, v, reader) || v->n_outputs ||
                     (a->last[v->id] >= reader && !a->copy[v->id]);
        if (!there && is_cheap(def) && c->n < CHAIN) {
            follow(a, c, def, reader);
            continue;
        }
        if (c->n_leaves == LEAVES || a->written[v->id]) {
            c->refused = true;
            continue;
        }
        c->leaf[c->n_leaves++] = v;
        c->moved += mpri_rewrite_bytes(v);
        if (!there) c->kept += mpri_rewrite_bytes(v);
    }
}

static bool pays(const Again *a, const Value *v, Chain *c)
{
    size_t bytes = mpri_rewrite_bytes(v);
    *c = (Chain){.low = mpri_dtype_is_low(v->dtype)};
    if (bytes < WORTH) return false;
    follow(a, c, v->def, a->first[v->id]);
    c->moved += bytes;
    if (c->refused || !c->low || bytes < c->kept + WORTH) return false;
    return 4 * (bytes - c->kept) >= c->moved && c->moved <= a->budget;
}

/* ---- copies ---- */

/* What stands for the inputs of n in the backward segment: made[i] for those of chain node i. */
static mpr_status copy_node(const Again *a, const Chain *c, int at, int reader, Value **made,
                            Err *err)
{
    Node *n = c->node[at];
    Builder b = {.g = a->g, .before = a->start, .segment = SEG_BACKWARD, .origin = n, .err = err};
    Value *in[LEAVES] = {0};
    b.scope = mpri_arena_printf(a->g->arena, "again:%s", n->name);
    if (!b.scope) return mpri_err_nomem(err, 64);
    for (int k = 0; k < n->n_in; k++) {
        in[k] = n->in[k];
        if (!in[k] || in[k]->kind != VAL_NODE) continue;
        if (has_copy(a, in[k], reader)) in[k] = a->copy[in[k]->id];
        for (int i = at + 1; i < c->n; i++)
            if (n->in[k]->def == c->node[i]) in[k] = made[i];
    }
    made[at] = mpri_build(&b, n->op->id, n->params, n->n_in, in, 1, NULL);
    return b.failed;
}

static mpr_status replace(Again *a, Value *v, const Chain *c, Err *err)
{
    Value *made[CHAIN];
    int reader = a->first[v->id];
    for (int i = c->n - 1; i >= 0; i--) TRY(copy_node(a, c, i, reader, made, err));
    for (Use *u = v->uses, *next; u; u = next) {
        next = u->next;
        if (u->user->segment != SEG_FORWARD) mpri_node_set_input(u->user, u->index, made[0]);
    }
    for (int i = 0; i < c->n_leaves; i++)
        if (a->last[c->leaf[i]->id] < reader) a->last[c->leaf[i]->id] = reader;
    a->copy[v->id] = made[0];
    a->last[v->id] = -1;
    a->budget -= c->moved;
    return MPR_OK;
}

mpr_status mpri_pass_recompute(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->o->no_fuse || ctx->o->grads == GRADS_OFF) return MPR_OK;
    Again a = {.g = g};
    TRY(prepare(&a, ctx, err));
    if (!a.start) return MPR_OK;
    for (Node *n = g->first; n && n->segment == SEG_FORWARD; n = n->next) {
        Value *v = n->n_out ? n->out[0] : NULL;
        Chain c;
        if (!v || a.first[v->id] < 0 || a.viewed[v->id] || v->n_outputs) continue;
        if (!is_cheap(n) || !pays(&a, v, &c)) continue;
        TRY(replace(&a, v, &c, err));
        *changed = true;
    }
    return MPR_OK;
}
