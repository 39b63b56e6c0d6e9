/* All matrix products become FusedMatMul, and what a product can do on its way is put into it:
 * transposes of the last two dims into its flags, scalar factors into alpha. Forward and backward
 * alike.
 *
 * A 4-D attention transpose such as (0,2,3,1) is split: the flag takes the swap of the last two
 * dims, and the (0,2,1,3) that stays moves whole rows. The same on the way out, by (A B)^T = B^T
 * A^T.
 *
 * Trap: a factor may move into alpha only where rounding does not change: always in f32 (one
 * rounding of the accumulator either way), in 16 bits only for powers of two. */
#include <math.h>
#include "passes/rewrite.h"

static bool is_fused(const Node *n)
{
    return mpri_is(n, OP_FusedMatMul);
}

/* ---- MatMul, Gemm, Linear -> FusedMatMul ---- */

static Value *fused(Builder *b, const FusedMatMulParams *p, Value *x, Value *w, Value *bias)
{
    return mpri_build(b, OP_FusedMatMul, p, bias ? 3 : 2, (Value *const[]){x, w, bias}, 1, NULL);
}

/* A 1-D operand is a row on the left, a column on the right. */
static Value *as_matrix(Builder *b, Value *x, bool left)
{
    if (x->shape.rank != 1) return x;
    Shape s = {.rank = 2, .d = {left ? 1 : x->shape.d[0], left ? x->shape.d[0] : 1}};
    return mpri_rewrite_reshape(b, x, &s);
}

static Value *lower_matmul(Builder *b, Node *n)
{
    Value *x = as_matrix(b, n->in[0], true), *w = as_matrix(b, n->in[1], false);
    Value *y = fused(b, &(FusedMatMulParams){.alpha = 1, .activation = ""}, x, w, NULL);
    return mpri_rewrite_reshape(b, y, &n->out[0]->shape);
}

static Value *lower_linear(Builder *b, Node *n)
{
    const LinearParams *l = n->params;
    FusedMatMulParams p = {.alpha = 1, .activation = "", .trans_b = l->trans_w};
    Value *y = fused(b, &p, as_matrix(b, n->in[0], true), n->in[1], n->n_in > 2 ? n->in[2] : NULL);
    return mpri_rewrite_reshape(b, y, &n->out[0]->shape);
}

/* C of a Gemm as the bias row of N elements; NULL when it is more than that. */
static Value *bias_row(Builder *b, Value *c, Dim n)
{
    Shape row = {.rank = 1, .d = {n}};
    int64_t count = mpri_shape_elements(&c->shape);
    bool is_row = count == n && (c->shape.rank == 1 || (c->shape.rank == 2 && c->shape.d[0] == 1));
    if (is_row) return mpri_rewrite_reshape(b, c, &row);
    return count == 1 ? mpri_build2(b, OP_Expand, NULL, c, mpri_build_i64s(b, 1, &n)) : NULL;
}

static Value *scaled(Builder *b, Value *c, float beta)
{
    if (!c || beta == 1) return c;
    c = mpri_build_cast(b, c, c->dtype == MPR_FLOAT64 ? MPR_FLOAT64 : MPR_FLOAT32);
    return c ? mpri_build2(b, OP_Mul, NULL, c, mpri_build_scalar(b, c->dtype, (double)beta)) : NULL;
}

static Value *lower_gemm(Builder *b, Node *n)
{
    const GemmParams *gemm = n->params;
    FusedMatMulParams p = {
        .alpha = gemm->alpha, .activation = "", .trans_a = gemm->trans_a, .trans_b = gemm->trans_b};
    Value *c = n->n_in > 2 && gemm->beta != 0 ? n->in[2] : NULL, *y = n->out[0];
    if (!c) return fused(b, &p, n->in[0], n->in[1], NULL);
    Value *row = bias_row(b, c, y->shape.d[1]);
    if (row || b->failed) return fused(b, &p, n->in[0], n->in[1], scaled(b, row, gemm->beta));
    /* A bias of another shape is added in f32, so that there is one rounding as in the Gemm. */
    DType wide = y->dtype == MPR_FLOAT64 ? MPR_FLOAT64 : MPR_FLOAT32;
    if (y->dtype != wide) p.out_dtype = wide;
    Value *product = fused(b, &p, n->in[0], n->in[1], NULL);
    Value *sum =
        mpri_build2(b, OP_Add, NULL, product, mpri_build_cast(b, scaled(b, c, gemm->beta), wide));
    return mpri_build_cast(b, sum, y->dtype);
}

static mpr_status lower_products(Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (n->n_out < 1 || !n->out[0] || !mpri_dtype_is_float(n->out[0]->dtype)) continue;
        Builder b = mpri_rewrite_builder(g, n, err);
        Value *y = mpri_is(n, OP_MatMul)   ? lower_matmul(&b, n)
                   : mpri_is(n, OP_Linear) ? lower_linear(&b, n)
                   : mpri_is(n, OP_Gemm)   ? lower_gemm(&b, n)
                                           : NULL;
        TRY(b.failed);
        if (!y) continue;
        mpri_rewrite_supplant(g, n, y);
        *changed = true;
    }
    return MPR_OK;
}

/* ---- transposes ---- */

static void flip(Node *product, int operand)
{
    FusedMatMulParams *p = product->params;
    int64_t *flag = operand == 0 ? &p->trans_a : &p->trans_b;
    *flag = !*flag;
}

/* Only the last two dims trade places. */
static bool is_swap(const Node *t)
{
    int perm[MPRI_MAX_RANK], rank = t->in[0]->shape.rank;
    if (rank < 2) return false;
    mpri_rewrite_perm(t, perm);
    for (int i = 0; i < rank - 2; i++)
        if (perm[i] != i) return false;
    return perm[rank - 1] == rank - 2;
}

static bool absorb_swap(Node *n)
{
    bool any = false;
    for (int k = 0; k < 2; k++)
        for (Node *t = mpri_def(n->in[k]); mpri_is(t, OP_Transpose) && is_swap(t);
             t = mpri_def(n->in[k])) {
            mpri_node_set_input(n, k, t->in[0]);
            flip(n, k);
            any = true;
        }
    return any;
}

static bool only_operands(const Value *v)
{
    if (v->n_outputs) return false;
    for (const Use *u = v->uses; u; u = u->next)
        if (!is_fused(u->user) || u->index > 1) return false;
    return v->n_uses > 0;
}

static mpr_status set_perm(Graph *g, Node *t, const int *perm, Err *err)
{
    TransposeParams *p = t->params;
    int rank = t->in[0]->shape.rank;
    int64_t *v = ARENA_ARRAY(g->arena, int64_t, rank);
    if (!v) return mpri_err_nomem(err, sizeof(int64_t) * MPRI_MAX_RANK);
    for (int i = 0; i < rank; i++) v[i] = perm[i];
    p->perm = (Ints){rank, v};
    return mpri_infer_node(g, t, err);
}

/* The last dim of the source goes second to last: let it stay last, and let all readers transpose.
 */
static mpr_status split_operand(Graph *g, Node *t, bool *changed, Err *err)
{
    int perm[MPRI_MAX_RANK], rank = t->in[0]->shape.rank;
    if (rank < 3 || is_swap(t) || !only_operands(t->out[0])) return MPR_OK;
    mpri_rewrite_perm(t, perm);
    if (perm[rank - 2] != rank - 1) return MPR_OK;
    perm[rank - 2] = perm[rank - 1];
    perm[rank - 1] = rank - 1;
    TRY(set_perm(g, t, perm, err));
    for (Use *u = t->out[0]->uses; u; u = u->next) flip(u->user, u->index);
    *changed = true;
    return MPR_OK;
}

/* Transpose of a product whose rows become the last dim: multiply in the other order instead. */
static mpr_status split_result(Graph *g, Node *t, bool *changed, Err *err)
{
    Node *n = mpri_def(t->in[0]);
    int perm[MPRI_MAX_RANK], rank = t->in[0]->shape.rank;
    if (!is_fused(n) || n->n_out > 1 || n->n_in > 2 || !mpri_rewrite_one_use(n->out[0]))
        return MPR_OK;
    if (n->in[0]->shape.rank != n->in[1]->shape.rank) return MPR_OK;
    const FusedMatMulParams *old = n->params;
    mpri_rewrite_perm(t, perm);
    if (old->activation[0] || perm[rank - 1] != rank - 2) return MPR_OK;
    for (int i = 0; i < rank; i++)
        perm[i] = perm[i] == rank - 1 ? rank - 2 : perm[i] == rank - 2 ? rank - 1 : perm[i];
    FusedMatMulParams p = *old;
    p.trans_a = !old->trans_b;
    p.trans_b = !old->trans_a;
    if (!p.out_dtype && n->in[1]->dtype != n->in[0]->dtype) p.out_dtype = n->out[0]->dtype;
    Builder b = mpri_rewrite_builder(g, n, err);
    Value *y = mpri_rewrite_transpose(&b, fused(&b, &p, n->in[1], n->in[0], NULL), perm);
    TRY(b.failed);
    mpri_rewrite_supplant(g, t, y);
    mpri_node_remove(g, n);
    *changed = true;
    return MPR_OK;
}

/* ---- scalar factors ---- */

static bool alpha_takes(const Node *n, double c)
{
    const FusedMatMulParams *p = n->params;
    double product = (double)p->alpha * c;
    if (!isnormal((float)product)) return false;
    DType t = n->out[0]->dtype;
    if (mpri_dtype_is_low(t)) return mpri_rewrite_power_of_two(c);
    return t == MPR_FLOAT32 || (double)(float)product == product;
}

static void scale(Node *n, double c)
{
    FusedMatMulParams *p = n->params;
    p->alpha = (float)((double)p->alpha * c);
}

/* A scaled operand, when every reader of it is a product that takes the factor. */
static bool absorb_before(Node *s)
{
    Value *x;
    double c;
    if (!mpri_rewrite_scaling(s, &x, &c) || !only_operands(s->out[0])) return false;
    for (const Use *u = s->out[0]->uses; u; u = u->next)
        if (!alpha_takes(u->user, c) ||
            (mpri_dtype_is_low(x->dtype) && !mpri_rewrite_power_of_two(c)))
            return false;
    while (s->out[0]->uses) {
        Use *u = s->out[0]->uses;
        scale(u->user, c);
        mpri_node_set_input(u->user, u->index, x);
    }
    return true;
}

static bool absorb_after(Graph *g, Node *s)
{
    Value *x;
    double c;
    if (!mpri_rewrite_scaling(s, &x, &c)) return false;
    Node *n = mpri_def(x);
    if (!is_fused(n) || n->n_out > 1 || n->n_in > 2 || !mpri_rewrite_one_use(x) ||
        !alpha_takes(n, c))
        return false;
    if (((const FusedMatMulParams *)n->params)->activation[0]) return false;
    scale(n, c);
    mpri_rewrite_forward(g, s, x);
    return true;
}

mpr_status mpri_pass_lower(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    TRY(mpri_lower_einsum(g, changed, err));
    TRY(lower_products(g, changed, err));
    for (bool again = !ctx->o->no_fuse; again;) {
        again = false;
        for (Node *n = g->first, *next; n; n = next) {
            next = n->next;
            if (is_fused(n)) again = absorb_swap(n) || again;
            else if (mpri_is(n, OP_Transpose)) {
                TRY(split_operand(g, n, &again, err));
                TRY(split_result(g, n, &again, err));
            } else again = absorb_after(g, n) || absorb_before(n) || again;
        }
        *changed = *changed || again;
        if (mpri_graph_sweep(g)) *changed = true;
    }
    return MPR_OK;
}
