/* Matrix products. MatMul follows numpy.matmul (rank-1 operands are promoted and the extra dim
 * removed); Linear is a recovered layer y = x W + b; FusedMatMul is what all of them are lowered
 * to, and what gradients are built from, so that no transposed copy of a weight is ever made.
 *
 * Trap in the gradients: with a weight of rank 2 under batch dims, a batched product followed by a
 * sum over the batch would need batch times the memory of the weight: rows are flattened. */
#include "runtime/op/rules.h"

static const AttrRow gemm_attrs[] = {
    ATTR(GemmParams, alpha, "alpha", FLOAT, .def_float = 1),
    ATTR(GemmParams, beta, "beta", FLOAT, .def_float = 1),
    ATTR_FLAG(GemmParams, trans_a, "transA", 0),
    ATTR_FLAG(GemmParams, trans_b, "transB", 0),
    ATTR_END,
};
static const AttrRow linear_attrs[] = {ATTR_FLAG(LinearParams, trans_w, "trans_w", 0), ATTR_END};
static const AttrRow fused_attrs[] = {
    ATTR_FLAG(FusedMatMulParams, trans_a, "trans_a", 0),
    ATTR_FLAG(FusedMatMulParams, trans_b, "trans_b", 0),
    ATTR(FusedMatMulParams, alpha, "alpha", FLOAT, .def_float = 1),
    ATTR(FusedMatMulParams, activation, "activation", STRING, .def_string = "",
         .choices = "|relu|gelu|gelu_tanh"),
    ATTR_OUT_DTYPE(FusedMatMulParams),
    ATTR_END,
};

#define TS_MATMUL (TS_FLOAT | TS_WIDE_INT)

/* ---- type and shape rules ---- */

/* Shape of op(A) op(B) for operands of rank >= 2; batch dims broadcast. */
static mpr_status product_shape(InferCtx *c, Shape a, Shape b, Shape *out)
{
    Shape batch_a = a, batch_b = b;
    TRY(mpri_op_same_dim(c, "inner dimensions", 0, a.d[a.rank - 1], 1, b.d[b.rank - 2]));
    batch_a.rank -= 2;
    batch_b.rank -= 2;
    TRY(mpri_infer_broadcast(c, &batch_a, &batch_b, out));
    out->d[out->rank++] = a.d[a.rank - 2];
    out->d[out->rank++] = b.d[b.rank - 1];
    return MPR_OK;
}

static mpr_status infer_matmul(InferCtx *c)
{
    DType t;
    TRY(mpri_op_common_type(c, 0, 2, TS_MATMUL, &t));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    TRY(mpri_op_check_rank(c, 1, 1, MPRI_MAX_RANK));
    Shape a = *op_shape(c, 0), b = *op_shape(c, 1), out;
    if (a.rank < 0 || b.rank < 0) return mpri_infer_set(c, 0, t, NULL);
    bool row = a.rank == 1, column = b.rank == 1;
    if (row) a = (Shape){.rank = 2, .d = {1, a.d[0]}};
    if (column) b = (Shape){.rank = 2, .d = {b.d[0], 1}};
    TRY(product_shape(c, a, b, &out));
    if (column) out.rank--;
    if (row) {
        if (!column) out.d[out.rank - 2] = out.d[out.rank - 1];
        out.rank--;
    }
    return mpri_infer_set(c, 0, t, &out);
}

static void transpose_last(Shape *s)
{
    Dim d = s->d[s->rank - 1];
    s->d[s->rank - 1] = s->d[s->rank - 2];
    s->d[s->rank - 2] = d;
}

static mpr_status infer_gemm(InferCtx *c)
{
    const GemmParams *p = c->n->params;
    DType t;
    TRY(mpri_op_common_type(c, 0, 3, TS_MATMUL, &t));
    TRY(mpri_op_check_rank(c, 0, 2, 2));
    TRY(mpri_op_check_rank(c, 1, 2, 2));
    Shape a = *op_shape(c, 0), b = *op_shape(c, 1);
    if (a.rank < 0) a = mpri_op_fresh_shape(c, 2);
    if (b.rank < 0) b = mpri_op_fresh_shape(c, 2);
    if (p->trans_a) transpose_last(&a);
    if (p->trans_b) transpose_last(&b);
    Shape out, all;
    TRY(product_shape(c, a, b, &out));
    if (op_in(c, 2)) {
        TRY(mpri_op_check_rank(c, 2, 0, 2));
        TRY(mpri_infer_broadcast(c, &out, op_shape(c, 2), &all));
        TRY(mpri_op_expect_broadcast_to(c, 2, &out, "the addend of Gemm"));
    }
    return mpri_infer_set(c, 0, t, &out);
}

static mpr_status expect_bias(InferCtx *c, Dim n)
{
    return mpri_op_expect_shape(c, 2, &(Shape){.rank = 1, .d = {n}}, "bias");
}

static mpr_status infer_linear(InferCtx *c)
{
    const LinearParams *p = c->n->params;
    DType t;
    TRY(mpri_op_common_type(c, 0, 3, TS_FLOAT, &t));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    TRY(mpri_op_check_rank(c, 1, 2, 2));
    Shape x = *op_shape(c, 0), w = *op_shape(c, 1);
    if (w.rank < 0) w = mpri_op_fresh_shape(c, 2);
    if (p->trans_w) transpose_last(&w);
    TRY(expect_bias(c, w.d[1]));
    if (x.rank < 0) return mpri_infer_set(c, 0, t, NULL);
    TRY(mpri_op_same_dim(c, "features of x and W", 0, x.d[x.rank - 1], 1, w.d[0]));
    x.d[x.rank - 1] = w.d[1];
    return mpri_infer_set(c, 0, t, &x);
}

/* A and B of one type; bias of that type or f32. Output 1 is stored in the type of output 0. */
static mpr_status infer_fused(InferCtx *c)
{
    const FusedMatMulParams *p = c->n->params;
    DType t, out_type;
    TRY(mpri_op_common_type(c, 0, 2, TS_FLOAT, &t));
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &out_type));
    if (t != MPR_DTYPE_NONE)
        TRY(mpri_op_check_type(c, 2, TS(t) | (t == MPR_FLOAT64 ? 0 : TS(MPR_FLOAT32))));
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    TRY(mpri_op_check_rank(c, 1, 2, MPRI_MAX_RANK));
    Shape a = *op_shape(c, 0), b = *op_shape(c, 1), out = mpri_op_unknown;
    if (a.rank >= 0 && b.rank >= 0) {
        if (p->trans_a) transpose_last(&a);
        if (p->trans_b) transpose_last(&b);
        TRY(product_shape(c, a, b, &out));
        TRY(expect_bias(c, out.d[out.rank - 1]));
    }
    TRY(mpri_infer_set(c, 0, out_type, &out));
    return mpri_infer_set(c, 1, out_type, &out);
}

/* ---- gradients ---- */

static Value *product(GradCtx *c, Value *a, bool trans_a, Value *b, bool trans_b, double alpha)
{
    FusedMatMulParams p = {
        .trans_a = trans_a, .trans_b = trans_b, .alpha = (float)alpha, .activation = ""};
    return mpri_build2(c->b, OP_FusedMatMul, &p, a, b);
}

/* Leading dims as rows: [rows, last]. */
static Value *rows_of(GradCtx *c, Value *v)
{
    if (!v) return NULL;
    int64_t dims[2] = {1, v->shape.rank ? v->shape.d[v->shape.rank - 1] : 1};
    for (int i = 0; i < v->shape.rank - 1; i++) dims[0] *= v->shape.d[i];
    return mpri_op_grad_reshape(c, v, 2, dims);
}

static Value *insert_one(GradCtx *c, Value *v, int from_end)
{
    if (!v) return NULL;
    int64_t dims[MPRI_MAX_RANK];
    int rank = v->shape.rank, at = rank - from_end;
    if (rank + 1 > MPRI_MAX_RANK) return v;
    for (int i = 0; i < at; i++) dims[i] = v->shape.d[i];
    dims[at] = 1;
    for (int i = at; i < rank; i++) dims[i + 1] = v->shape.d[i];
    return mpri_op_grad_reshape(c, v, rank + 1, dims);
}

static mpr_status grad_matmul(GradCtx *c)
{
    Value *a = grad_in(c, 0), *b = grad_in(c, 1), *dy = c->dy[0];
    TRY(mpri_op_grad_const_shape(c, a));
    TRY(mpri_op_grad_const_shape(c, b));
    bool row = a->shape.rank == 1, column = b->shape.rank == 1;
    /* dy with the dims that rank-1 operands lost, operands as matrices */
    if (column) dy = insert_one(c, dy, 0);
    if (row) dy = insert_one(c, dy, 1);
    Value *ma = row ? mpri_op_grad_reshape(c, a, 2, (int64_t[]){1, a->shape.d[0]}) : a;
    Value *mb = column ? mpri_op_grad_reshape(c, b, 2, (int64_t[]){b->shape.d[0], 1}) : b;
    TRY(c->b->failed);
    if (grad_needs(c, 0)) {
        Value *da = product(c, dy, false, mb, true, 1);
        if (row && da && da->shape.rank == 2) da = mpri_op_grad_reshape_like(c, da, a);
        c->dx[0] = da;
    }
    if (grad_needs(c, 1)) {
        bool flat = mb->shape.rank == 2;
        Value *db =
            product(c, flat ? rows_of(c, ma) : ma, true, flat ? rows_of(c, dy) : dy, false, 1);
        c->dx[1] = column ? mpri_op_grad_reshape_like(c, db, b) : db;
    }
    return mpri_op_grad_done(c);
}

static mpr_status grad_gemm(GradCtx *c)
{
    const GemmParams *p = c->n->params;
    Value *a = grad_in(c, 0), *b = grad_in(c, 1), *dy = c->dy[0];
    if (grad_needs(c, 0))
        c->dx[0] = p->trans_a ? product(c, b, p->trans_b, dy, true, p->alpha)
                              : product(c, dy, false, b, !p->trans_b, p->alpha);
    if (grad_needs(c, 1))
        c->dx[1] = p->trans_b ? product(c, dy, true, a, p->trans_a, p->alpha)
                              : product(c, a, !p->trans_a, dy, false, p->alpha);
    if (grad_needs(c, 2) && p->beta != 0) c->dx[2] = mpri_op_grad_scale(c, dy, p->beta);
    return mpri_op_grad_done(c);
}

static mpr_status grad_linear(GradCtx *c)
{
    const LinearParams *p = c->n->params;
    Value *x = grad_in(c, 0), *w = grad_in(c, 1), *dy = c->dy[0];
    TRY(mpri_op_grad_const_shape(c, x));
    if (grad_needs(c, 0)) {
        Value *d = dy->shape.rank < 2 ? rows_of(c, dy) : dy;
        c->dx[0] = mpri_op_grad_reshape_like(c, product(c, d, false, w, !p->trans_w, 1), x);
    }
    if (grad_needs(c, 1)) {
        Value *rows = rows_of(c, x), *drows = rows_of(c, dy);
        c->dx[1] = p->trans_w ? product(c, drows, true, rows, false, 1)
                              : product(c, rows, true, drows, false, 1);
    }
    if (grad_needs(c, 2)) c->dx[2] = dy;
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

const OpDef mpri_op_MatMul = {
    MPRI_OP(MatMul, "", "matmul"), .help = "matrix product, batch dims broadcast",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .cast_cuda = CAST_LOW,
    .cast_cpu = CAST_LOW,
    .infer = infer_matmul, .grad_state = GRAD_FUNCTION, .grad = grad_matmul,
};
const OpDef mpri_op_Gemm = {
    MPRI_OP(Gemm, "", "matmul"), .help = "alpha * A' B' + beta * C",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1,
    .optional_in = 4, PARAMS(GemmParams, gemm_attrs),
    .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW,
    .infer = infer_gemm, .grad_state = GRAD_FUNCTION, .grad = grad_gemm,
};
const OpDef mpri_op_Linear = {
    MPRI_OP(Linear, "mpr", "matmul"), .help = "layer: x W + b, or x W^T + b",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1,
    .optional_in = 4, PARAMS(LinearParams, linear_attrs),
    .flags = OPF_INTERNAL, .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW,
    .infer = infer_linear, .grad_state = GRAD_FUNCTION, .grad = grad_linear,
};
const OpDef mpri_op_FusedMatMul = {
    MPRI_OP(FusedMatMul, "mpr", "matmul"),
    .help = "act(alpha * A' B' + bias); output 1: before act",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 2,
    .optional_in = 4, PARAMS(FusedMatMulParams, fused_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_OUT, .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW,
    .infer = infer_fused, .grad_state = GRAD_NONE,
    .grad_reason = "made after the backward pass was built",
};
