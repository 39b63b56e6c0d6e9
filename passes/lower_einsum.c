/* Einsum becomes matrix products: diagonals are cut out, labels that one operand has alone are
 * summed, then operands are joined from left to right. Joining two, every label is one of
 *   batch  in both and wanted later      rows     in the left one only
 *   inner  in both and not wanted later  columns  in the right one only
 * so each side is a stack of matrices after at most one transpose, and often after none: a side
 * that lies with inner and outer labels swapped is read transposed. Without inner labels the join
 * is a product of elements.
 *
 * Integers, and a join of more than 8 labels, stay with the reference kernel. */
#include "passes/rewrite.h"
#include "runtime/op/einsum.h"

typedef struct Part { /* an operand or an intermediate result, with a label per dim */
    Value *v;
    EinsumTerm t;
} Part;

typedef struct Lower {
    Builder *b;
    EinsumForm f;
    int64_t size[MPRI_EINSUM_LABELS];
    bool wide_rank; /* a result of more than 8 labels came up */
} Lower;

static bool begin(Lower *l, const Node *n)
{
    const EinsumParams *p = n->params;
    int rank[MPRI_EINSUM_INPUTS];
    for (int k = 0; k < n->n_in && k < MPRI_EINSUM_INPUTS; k++) rank[k] = n->in[k]->shape.rank;
    if (mpri_einsum_parse(p->equation, n->n_in, rank, &l->f)) return false;
    for (int i = 0; i < MPRI_EINSUM_LABELS; i++) l->size[i] = 1;
    for (int k = 0; k < n->n_in; k++)
        for (int i = 0; i < rank[k]; i++)
            if (n->in[k]->shape.d[i] != 1) l->size[l->f.in[k].label[i]] = n->in[k]->shape.d[i];
    return true;
}

static Shape shape_of(const Lower *l, const EinsumTerm *t)
{
    Shape s = {.rank = t->n};
    for (int i = 0; i < t->n; i++) s.d[i] = l->size[t->label[i]];
    return s;
}

static void drop(EinsumTerm *t, int at)
{
    t->n--;
    for (int i = at; i < t->n; i++) t->label[i] = t->label[i + 1];
}

/* Sum over dims; 16-bit values are summed into f32. */
static Value *sum(Builder *b, Value *x, int n, const int64_t *axes)
{
    if (!n || !x) return x;
    ReduceParams p = {.out_dtype = mpri_dtype_is_low(x->dtype) ? MPR_FLOAT32 : 0};
    return mpri_build2(b, OP_ReduceSum, &p, x, mpri_build_i64s(b, n, axes));
}

/* Operand k with each label once, and only labels that the result or another operand has. */
static Part operand(Lower *l, const Node *n, int k)
{
    Part p = {n->in[k], l->f.in[k]};
    int64_t axes[MPRI_MAX_RANK];
    int n_axes = 0;
    for (int i = p.t.n - 1; i >= 0; i--)
        if (n->in[k]->shape.d[i] != l->size[p.t.label[i]]) drop(&p.t, i);
    Shape kept = shape_of(l, &p.t);
    p.v = mpri_rewrite_reshape(l->b, p.v, &kept);
    for (int i = p.t.n - 1; i >= 0; i--) {
        int first = mpri_einsum_find(&p.t, p.t.label[i]);
        if (first == i) continue;
        p.v = sum(l->b, mpri_einsum_on_diagonal(l->b, p.v, first, i), 1, &(int64_t){i});
        drop(&p.t, i);
    }
    EinsumTerm all = p.t;
    for (int i = all.n - 1; i >= 0; i--) {
        bool wanted = mpri_einsum_find(&l->f.out, all.label[i]) >= 0;
        for (int j = 0; j < n->n_in; j++)
            wanted = wanted || (j != k && mpri_einsum_find(&l->f.in[j], all.label[i]) >= 0);
        if (wanted) continue;
        axes[n_axes++] = i;
        drop(&p.t, i);
    }
    p.v = sum(l->b, p.v, n_axes, axes);
    return p;
}

static bool same_order(const EinsumTerm *a, const EinsumTerm *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) same = a->label[i] == b->label[i];
    return same;
}

static EinsumTerm joined(const EinsumTerm *a, const EinsumTerm *b, const EinsumTerm *c)
{
    const EinsumTerm *parts[3] = {a, b, c};
    EinsumTerm t = {0};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < parts[p]->n && t.n < MPRI_MAX_RANK; i++)
            t.label[t.n++] = parts[p]->label[i];
    return t;
}

static Value *ordered(Lower *l, const Part *p, const EinsumTerm *want)
{
    int perm[MPRI_MAX_RANK];
    if (same_order(&p->t, want)) return p->v;
    for (int i = 0; i < want->n; i++) perm[i] = mpri_einsum_find(&p->t, want->label[i]);
    return mpri_rewrite_transpose(l->b, p->v, perm);
}

static int64_t volume(const Lower *l, const EinsumTerm *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++) n *= l->size[t->label[i]];
    return n;
}

/* One side as [batch, first, second], or [batch, second, first] with *flipped when it lies so. */
static Value *matrix(Lower *l, const Part *p, const EinsumTerm *batch, const EinsumTerm *first,
                     const EinsumTerm *second, int64_t *flipped)
{
    EinsumTerm straight = joined(batch, first, second), turned = joined(batch, second, first);
    *flipped = !same_order(&p->t, &straight) && same_order(&p->t, &turned);
    Value *v = ordered(l, p, *flipped ? &turned : &straight);
    int64_t a = volume(l, *flipped ? second : first), z = volume(l, *flipped ? first : second);
    Shape flat = {.rank = 2, .d = {a, z}};
    if (batch->n) flat = (Shape){.rank = 3, .d = {volume(l, batch), a, z}};
    return mpri_rewrite_reshape(l->b, v, &flat);
}

static bool wanted_later(const Lower *l, int label, int next)
{
    bool found = mpri_einsum_find(&l->f.out, label) >= 0;
    for (int k = next; k < l->f.n_in; k++)
        found = found || mpri_einsum_find(&l->f.in[k], label) >= 0;
    return found;
}

/* a and b, where operands from `next` on are still to come; the result has type t. */
static Part join(Lower *l, const Part *a, const Part *b, int next, DType t)
{
    EinsumTerm batch = {0}, rows = {0}, inner = {0}, columns = {0};
    for (int i = 0; i < a->t.n; i++) {
        int label = a->t.label[i];
        EinsumTerm *to = mpri_einsum_find(&b->t, label) < 0     ? &rows
                         : wanted_later(l, label, next) ? &batch
                                                                : &inner;
        to->label[to->n++] = label;
    }
    for (int i = 0; i < b->t.n; i++)
        if (mpri_einsum_find(&a->t, b->t.label[i]) < 0)
            columns.label[columns.n++] = b->t.label[i];
    Part y = {NULL, joined(&batch, &rows, &columns)};
    if (batch.n + rows.n + columns.n > MPRI_MAX_RANK) {
        l->wide_rank = true;
        return y;
    }
    FusedMatMulParams p = {.alpha = 1, .activation = "", .out_dtype = t};
    Value *x = matrix(l, a, &batch, &rows, &inner, &p.trans_a);
    if (inner.n) {
        Value *w = matrix(l, b, &batch, &inner, &columns, &p.trans_b);
        y.v = mpri_build2(l->b, OP_FusedMatMul, &p, x, w);
    } else {
        int64_t flipped;
        ElementwiseParams e = {.out_dtype = t};
        Value *w = matrix(l, b, &batch, &inner, &columns, &flipped);
        y.v = mpri_build2(l->b, OP_Mul, &e, x, w);
    }
    Shape out = shape_of(l, &y.t);
    y.v = mpri_rewrite_reshape(l->b, y.v, &out);
    return y;
}

static Value *lower(Lower *l, const Node *n)
{
    DType t = n->out[0]->dtype, wide = t == MPR_FLOAT64 ? MPR_FLOAT64 : MPR_FLOAT32;
    Part y = operand(l, n, 0);
    for (int k = 1; k < n->n_in && !l->wide_rank; k++) {
        Part x = operand(l, n, k);
        y = join(l, &y, &x, k + 1, k + 1 < n->n_in ? wide : t);
    }
    return l->wide_rank ? NULL : mpri_build_cast(l->b, ordered(l, &y, &l->f.out), t);
}

mpr_status mpri_lower_einsum(Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!mpri_is(n, OP_Einsum) || !n->out[0] || !mpri_dtype_is_float(n->out[0]->dtype))
            continue;
        Builder b = mpri_rewrite_builder(g, n, err);
        Lower l = {.b = &b};
        if (!begin(&l, n)) continue;
        Value *y = lower(&l, n);
        TRY(b.failed);
        if (!y) continue;
        if (y == n->in[0]) mpri_rewrite_forward(g, n, y);
        else mpri_rewrite_supplant(g, n, y);
        *changed = true;
    }
    return MPR_OK;
}
