/* MatMul + Add of a bias vector, and plain Gemm, are one linear layer: x W + b with the bias added
 * in the f32 accumulator. A weight that the file transposes first is read transposed instead. A
 * bias that is not a stored vector stays an Add: it might be an activation, and torch would
 * promote there. */
#include "passes/recover.h"

static bool is_vector_of(const Value *v, Dim n)
{
    return v && v->shape.rank == 1 && v->shape.d[0] == n;
}

static bool stored(const Value *v)
{
    return v->kind == VAL_CONST || v->kind == VAL_SLOT;
}

/* The weight as Linear reads it: W of Transpose(W) when there is one. */
static Value *weight(Match *m, Value *w, LinearParams *p)
{
    Node *t = mpri_def(w);
    if (!mpri_is(t, OP_Transpose) || t->in[0]->shape.rank != 2) return w;
    const TransposeParams *tp = t->params;
    if (tp->perm.n == 2 && tp->perm.v[0] == 0) return w;
    if (mpri_match_user(w)) mpri_match_add(m, t);
    p->trans_w = !p->trans_w;
    return t->in[0];
}

static mpr_status matmul_add(Graph *g, Node *add, bool *hit, Err *err)
{
    for (int k = 0; k < 2; k++) {
        Node *mm = mpri_def(add->in[k]);
        Value *bias = add->in[1 - k];
        if (!mpri_is(mm, OP_MatMul) || !mpri_prepare_eligible(mm->out[0]) || !mm->in[0] ||
            !mm->in[1])
            continue;
        if (mm->in[1]->shape.rank != 2 || mm->in[0]->shape.rank < 2 || !bias) continue;
        const Value *root = mpri_match_through(NULL, bias);
        if (!stored(root) || !is_vector_of(bias, mm->in[1]->shape.d[1])) continue;
        Match m = {{mm, add}, 2, false};
        if (!mpri_match_closed(&m, add)) continue;
        LinearParams p = {0};
        Value *w = weight(&m, mm->in[1], &p), *y;
        TRY(mpri_match_build(g, add, &mpri_op_Linear, mm->name, &p, 3,
                             (Value *[]){mm->in[0], w, bias}, &y, err));
        *hit = true;
        return mpri_match_replace(g, &m, add, y, err);
    }
    return MPR_OK;
}

static mpr_status gemm(Graph *g, Node *n, bool *hit, Err *err)
{
    const GemmParams *gp = n->params;
    Value *c = n->n_in > 2 ? n->in[2] : NULL;
    if (gp->alpha != 1 || gp->beta != 1 || gp->trans_a || !mpri_prepare_eligible(n->out[0]))
        return MPR_OK;
    if (n->in[0]->shape.rank != 2 || n->in[1]->shape.rank != 2) return MPR_OK;
    if (c && !is_vector_of(c, n->in[1]->shape.d[gp->trans_b ? 0 : 1])) return MPR_OK;
    LinearParams p = {.trans_w = gp->trans_b};
    Match m = {{n}, 1, false};
    Value *w = weight(&m, n->in[1], &p), *y;
    TRY(mpri_match_build(g, n, &mpri_op_Linear, n->name, &p, c ? 3 : 2, (Value *[]){n->in[0], w, c},
                         &y, err));
    *hit = true;
    return mpri_match_replace(g, &m, n, y, err);
}

mpr_status mpri_recover_linear(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err)
{
    (void)ctx;
    if (mpri_is(n, OP_Add)) return matmul_add(g, n, hit, err);
    return mpri_is(n, OP_Gemm) ? gemm(g, n, hit, err) : MPR_OK;
}
