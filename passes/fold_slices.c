/* Slices of one tensor that together cut it into all its parts become one Split: rotary embeddings
 * and stacked query, key and value are exported so. The gain is backward: the gradient of a Split
 * is one Concat, that of a Slice is a whole tensor of zeros around a part, and those are added. */
#include <stdlib.h>
#include <string.h>
#include "passes/rewrite.h"

#define MAX_PIECES 64

typedef struct Piece { /* x[start, start + size) along one axis */
    Node *n;
    int axis;
    int64_t start, size;
} Piece;

static int64_t entry(const Value *v, int64_t i, int64_t otherwise)
{
    return v ? mpri_load_i64(v->dtype, v->data, i) : otherwise;
}

static bool is_constant(const Node *n, int k)
{
    return k >= n->n_in || !n->in[k] || n->in[k]->kind == VAL_CONST;
}

static bool piece_of(Node *n, Piece *p)
{
    for (int k = 1; k < 5; k++)
        if (!is_constant(n, k)) return false;
    const Shape *x = &n->in[0]->shape, *y = &n->out[0]->shape;
    *p = (Piece){.n = n, .axis = -1};
    for (int i = 0; i < x->rank; i++) {
        if (x->d[i] == y->d[i]) continue;
        if (p->axis >= 0) return false;
        p->axis = i;
    }
    if (p->axis < 0) return false;
    p->size = y->d[p->axis];
    const Value *axes = n->n_in > 3 ? n->in[3] : NULL, *steps = n->n_in > 4 ? n->in[4] : NULL;
    int64_t count = mpri_shape_elements(&n->in[1]->shape);
    bool found = false;
    for (int64_t i = 0; i < count; i++) {
        int64_t axis = entry(axes, i, i), dim = x->d[p->axis];
        if (entry(steps, i, 1) != 1) return false;
        if ((axis < 0 ? axis + x->rank : axis) != p->axis) continue;
        p->start = entry(n->in[1], i, 0);
        if (p->start < 0) p->start = p->start < -dim ? 0 : p->start + dim;
        found = true;
    }
    return found;
}

static int by_start(const void *a, const void *b)
{
    const Piece *p = a, *q = b;
    return p->start < q->start ? -1 : p->start > q->start;
}

/* Pieces of v along an axis, in order; 0 unless they are all of v. */
static int pieces_of(const Value *v, int axis, Piece *pieces)
{
    int n = 0;
    int64_t end = 0;
    for (const Use *u = v->uses; u; u = u->next) {
        if (!mpri_is(u->user, OP_Slice) || u->index != 0 || n == MAX_PIECES) continue;
        if (piece_of(u->user, &pieces[n]) && pieces[n].axis == axis) n++;
    }
    if (n < 2) return 0;
    qsort(pieces, (size_t)n, sizeof *pieces, by_start);
    for (int i = 0; i < n; i++) {
        if (pieces[i].start != end || pieces[i].size == 0) return 0;
        end += pieces[i].size;
    }
    return end == v->shape.d[axis] ? n : 0;
}

static mpr_status split(Graph *g, Value *v, const Piece *pieces, int n, Err *err)
{
    Node *before = mpri_def(v) ? v->def->next : g->first;
    Builder b = mpri_rewrite_builder(g, pieces[0].n, err);
    b.before = before;
    Value *out[MAX_PIECES];
    int64_t sizes[MAX_PIECES];
    for (int i = 0; i < n; i++) sizes[i] = pieces[i].size;
    SplitParams p = {.axis = pieces[0].axis};
    mpri_build(&b, OP_Split, &p, 2, (Value *[]){v, mpri_build_i64s(&b, n, sizes)}, n, out);
    TRY(b.failed);
    for (int i = 0; i < n; i++) {
        if (i > 0) mpri_node_set_origin(g, out[0]->def, pieces[i].n);
        mpri_rewrite_supplant(g, pieces[i].n, out[i]);
    }
    out[0]->def->name = pieces[0].n->name;
    return MPR_OK;
}

mpr_status mpri_fold_slices(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    Piece *pieces = ARENA_ARRAY(ctx->scratch, Piece, MAX_PIECES + 1);
    if (!pieces) return mpri_err_nomem(err, MAX_PIECES * sizeof *pieces);
    for (int i = 0, n = g->n_values; i < n; i++) {
        Value *v = g->values[i];
        if (v->n_uses < 2 || !mpri_dtype_is_float(v->dtype)) continue;
        for (int axis = 0; axis < v->shape.rank; axis++) {
            int count = pieces_of(v, axis, pieces);
            if (!count) continue;
            TRY(split(g, v, pieces, count, err));
            *changed = true;
        }
    }
    return MPR_OK;
}
