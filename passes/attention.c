/* Scaled dot-product attention written out in f32 becomes one Attention, so that the matrix of
 * scores and its gradient are never stored:
 *
 *   S = MatMul(q, k^T) with scalar factors on either side or behind; S + mask, or a Where with a
 *   hidden value; P = Softmax(S); y = MatMul(P, v).
 *
 * It runs on bound shapes, after every precision is decided. A mask that is known to be causal
 * becomes the flag; keys and values repeated for the heads of a group are read as they were before.
 * The backward pass, built later, follows from the operator.
 *
 * Trap: in 16 bits the written form rounds scores and probabilities to the type, as PyTorch does
 * where a model writes its attention out, and losses are compared with PyTorch's. One operator that
 * rounds once is not the same computation there, so 16-bit products stay as they are.
 *
 * Left alone besides: anything read from outside, dropout on the probabilities, a mask that is
 * trained (the gradient of a mask is as large as the scores), f64. */
#include <math.h>
#include <string.h>
#include "passes/rewrite.h"

enum { NODES = 24, TRAINED_STEPS = 4096 };

typedef struct Found {
    Node *inner[NODES]; /* what the operator replaces; each is read by the next alone */
    int n;
    bool full;
    Value *q, *k, *v;   /* [batch, heads, tokens, size]; k before its transposition */
    Value *mask;        /* added to the scores, or NULL */
    Value *hidden;      /* or: where this is false, the score is `fill` */
    double fill, scale;
} Found;

static void add(Found *f, Node *n)
{
    if (f->n == NODES) f->full = true;
    else f->inner[f->n++] = n;
}

static bool one_reader(const Value *v) { return v->n_uses == 1 && v->n_outputs == 0; }

/* Walks up from v over scalar factors, which are multiplied into the scale. */
static Value *through_factors(Found *f, Value *v)
{
    Value *x;
    double c;
    for (;;) {
        Node *n = mpri_def(v);
        if (!n || !one_reader(v) || !mpri_rewrite_scaling(n, &x, &c)) return v;
        add(f, n);
        f->scale *= c;
        v = x;
    }
}

/* ---- operands ---- */

/* Factors in front of an operand are taken only where nothing else reads the product. */
static Value *operand(Found *f, Value *v)
{
    Value *x;
    double c;
    for (;;) {
        Node *n = mpri_def(v);
        if (!n || !one_reader(v) || !mpri_rewrite_scaling(n, &x, &c)) return v;
        f->scale *= c;
        v = x;
    }
}

/* [batch, kv, tokens, size] that v repeats for the heads of each group; v when it does not. */
static Value *before_repeat(Value *v)
{
    Node *flat = mpri_def(v), *expand, *wide;
    if (!mpri_is(flat, OP_Reshape) || v->shape.rank != 4) return v;
    expand = mpri_def(flat->in[0]);
    if (!mpri_is(expand, OP_Expand) || expand->out[0]->shape.rank != 5) return v;
    wide = mpri_def(expand->in[0]);
    if (!mpri_is(wide, OP_Unsqueeze) && !mpri_is(wide, OP_Reshape)) return v;
    const Value *x = wide->in[0];
    const Dim *a = x->shape.d, *b = wide->out[0]->shape.d, *c = expand->out[0]->shape.d,
              *d = v->shape.d;
    bool same = x->shape.rank == 4 && wide->out[0]->shape.rank == 5 && b[2] == 1 && a[0] == b[0] &&
                a[1] == b[1] && a[2] == b[3] && a[3] == b[4] && c[0] == b[0] && c[1] == b[1] &&
                c[3] == b[3] && c[4] == b[4];
    bool flattened = d[0] == c[0] && d[1] == c[1] * c[2] && d[2] == c[3] && d[3] == c[4];
    return same && flattened ? wide->in[0] : v;
}

/* v seen with its last two dims exchanged: behind a Transpose, or through a new one. */
static Value *untransposed(Builder *b, Value *v)
{
    Node *t = mpri_def(v);
    int perm[MPRI_MAX_RANK], rank = v->shape.rank;
    Value *x = v;
    for (int i = 0; i < rank; i++) perm[i] = i;
    if (mpri_is(t, OP_Transpose)) {
        mpri_rewrite_perm(t, perm);
        x = t->in[0];
    }
    int last = perm[rank - 1];
    perm[rank - 1] = perm[rank - 2];
    perm[rank - 2] = last;
    return mpri_rewrite_transpose(b, x, perm);
}

/* ---- masks ---- */

/* Whether a gradient may be wanted for v: it depends on a parameter or on a float input. */
static bool may_be_trained(PassCtx *ctx, const Graph *g, Value *v)
{
    bool inputs = ctx->o->grads == GRADS_TO_OUTPUTS;
    if (ctx->o->grads == GRADS_OFF) return false;
    bool *seen = ARENA_ARRAY(ctx->scratch, bool, g->n_values);
    Value **stack = ARENA_ARRAY(ctx->scratch, Value *, TRAINED_STEPS);
    int n = 0;
    if (!seen || !stack) return true;
    stack[n++] = v;
    while (n > 0) {
        Value *top = stack[--n];
        if (top->kind == VAL_SLOT ||
            (inputs && top->kind == VAL_INPUT && mpri_dtype_is_float(top->dtype)))
            return true;
        Node *d = mpri_def(top);
        if (!d || !mpri_dtype_is_float(top->dtype)) continue; /* no gradient passes an integer */
        for (int k = 0; k < d->n_in; k++) {
            if (!d->in[k] || seen[d->in[k]->id]) continue;
            seen[d->in[k]->id] = true;
            if (n == TRAINED_STEPS) return true;
            stack[n++] = d->in[k];
        }
    }
    return false;
}

/* A constant that adds 0 up to the diagonal and hides what is behind it. */
static bool is_causal(const Value *m, Dim queries, Dim keys)
{
    int64_t n = mpri_shape_elements(&m->shape);
    int rank = m->shape.rank;
    if (m->kind != VAL_CONST || !m->data || rank < 2 || queries != keys || keys < 2 ||
        m->shape.d[rank - 1] != keys || m->shape.d[rank - 2] != queries)
        return false;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / keys % queries, column = i % keys;
        double x = m->dtype == MPR_BOOL ? 0 : mpri_load_f64(m->dtype, m->data, i);
        bool seen = m->dtype == MPR_BOOL ? mpri_load_i64(MPR_BOOL, m->data, i) != 0 : x == 0;
        if (seen != (column <= row) || (!seen && m->dtype != MPR_BOOL && x > -1e30)) return false;
    }
    return true;
}

static bool broadcasts(const Value *m, const Shape *scores)
{
    int rank = m->shape.rank;
    if (rank < 1 || rank > scores->rank || m->shape.d[rank - 1] != scores->d[scores->rank - 1])
        return false;
    for (int i = 0; i < rank; i++) {
        Dim want = scores->d[scores->rank - rank + i];
        if (m->shape.d[i] != 1 && m->shape.d[i] != want) return false;
    }
    return true;
}

/* Add(x, mask) or Where(seen, x, hidden value): the scores before it, or v. */
static Value *before_mask(PassCtx *ctx, const Graph *g, Found *f, Value *v)
{
    Node *n = mpri_def(v);
    if (!n || !one_reader(v)) return v;
    if (mpri_is(n, OP_Where) && mpri_rewrite_splat(n->in[2], &f->fill) && f->fill <= -1e30 &&
        mpri_shape_equal(&n->in[1]->shape, &v->shape) && broadcasts(n->in[0], &v->shape)) {
        f->hidden = n->in[0];
        add(f, n);
        return n->in[1];
    }
    if (!mpri_is(n, OP_Add)) return v;
    for (int k = 0; k < 2; k++) {
        Value *mask = n->in[1 - k], *x = n->in[k];
        Node *from = mpri_def(x);
        bool product = mpri_is(from, OP_MatMul) || mpri_is(from, OP_Mul) || mpri_is(from, OP_Div);
        if (!product || !mpri_shape_equal(&x->shape, &v->shape) || !broadcasts(mask, &v->shape) ||
            mask->dtype != MPR_FLOAT32 || may_be_trained(ctx, g, mask))
            continue;
        f->mask = mask;
        add(f, n);
        return x;
    }
    return v;
}

/* ---- the pattern ---- */

static bool fits(const Value *v)
{
    return v->shape.rank == 4 && v->dtype == MPR_FLOAT32;
}

/* From the second product upwards. */
static bool match(PassCtx *ctx, const Graph *g, Node *out, Found *f)
{
    *f = (Found){.scale = 1, .v = out->in[1]};
    Value *p = out->in[0];
    Node *soft = mpri_def(p);
    if (!mpri_is(soft, OP_Softmax) || !one_reader(p) || p->shape.rank != 4) return false;
    int64_t axis = ((const SoftmaxParams *)soft->params)->axis;
    if (axis != -1 && axis != 3) return false;
    add(f, soft);
    Value *s = through_factors(f, before_mask(ctx, g, f, soft->in[0]));
    Node *product = mpri_def(s);
    if (!mpri_is(product, OP_MatMul) || !one_reader(s)) return false;
    add(f, product);
    f->q = operand(f, product->in[0]);
    f->k = operand(f, product->in[1]);
    if (f->full || !fits(f->q) || !fits(f->k) || !fits(f->v)) return false;
    const Dim *q = f->q->shape.d, *k = f->k->shape.d, *v = f->v->shape.d;
    return q[0] == k[0] && q[1] == k[1] && q[0] == v[0] && q[1] == v[1] && v[2] == k[3] &&
           out->out[0]->dtype == MPR_FLOAT32;
}

/* The mask as an input; NULL when the causal flag says it all. */
static Value *mask_input(Builder *b, const Found *f, AttentionParams *p)
{
    Dim queries = f->q->shape.d[2], keys = f->k->shape.d[3];
    Value *m = f->hidden ? f->hidden : f->mask;
    if (!m) return NULL;
    p->is_causal = is_causal(m, queries, keys);
    if (p->is_causal) return NULL;
    if (!f->hidden || isinf(f->fill)) return m;
    /* a query whose keys are all hidden sees them all alike, as the finite value makes it */
    Value *in[3] = {m, mpri_build_scalar(b, MPR_FLOAT32, 0),
                    mpri_build_scalar(b, MPR_FLOAT32, f->fill)};
    return mpri_build(b, OP_Where, NULL, 3, in, 1, NULL);
}

static mpr_status replace(Graph *g, Node *out, const Found *f, Err *err)
{
    Builder b = mpri_rewrite_builder(g, out, err);
    AttentionParams p = {.scale = (float)f->scale, .left_window = -1, .right_window = -1};
    Value *in[4] = {f->q, NULL, f->v, mask_input(&b, f, &p)};
    in[1] = untransposed(&b, f->k);
    TRY(b.failed);
    Value *k = before_repeat(in[1]), *v = before_repeat(in[2]);
    if (k != in[1] && v != in[2] && k->shape.d[1] == v->shape.d[1]) in[1] = k, in[2] = v;
    Value *y = mpri_build(&b, OP_Attention, &p, in[3] ? 4 : 3, in, 1, NULL);
    TRY(b.failed);
    for (int i = 0; i < f->n; i++) mpri_node_set_origin(g, mpri_def(y), f->inner[i]);
    mpri_rewrite_supplant(g, out, y);
    return MPR_OK;
}

mpr_status mpri_pass_attention(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->o->no_fuse) return MPR_OK;
    for (Node *n = g->first, *next; n; n = next) {
        Found f;
        next = n->next;
        if (!mpri_is(n, OP_MatMul) || !match(ctx, g, n, &f) || f.scale == 0) continue;
        TRY(replace(g, n, &f, err));
        *changed = true;
    }
    mpri_graph_sweep(g);
    return MPR_OK;
}
