/* Matrix products in double (integers in int64), one rounding at the store. Blocks exist only so
 * that an element is converted once per block instead of once per product; the sum over k runs in
 * order.
 *
 * Epilogue: v = alpha * sum + beta * bias, rounded to the output's type; the activation is applied
 * to the rounded value, so a fused product equals the two separate operators bit for bit. */
#include "kernels/ref/util.h"

typedef struct Matrix { /* op(X) of one batch entry: element (r, c) at offset + r * rs + c * cs */
    const Tensor *t;
    int64_t rows, cols, rs, cs, offset;
    Tensor batch;       /* only rank, dims and n: the leading dims */
} Matrix;

typedef struct Epilogue {
    double alpha, beta;
    const Tensor *bias;         /* NULL: none */
    int64_t bias_rs, bias_cs;
    double (*activation)(double);
    Tensor *pre;                /* NULL, or where the value before the activation goes */
    Tensor *out;
} Epilogue;

/* A 1-D tensor is a row on the left and a column on the right. */
static Matrix matrix(const Tensor *t, bool trans, bool left)
{
    Matrix m = {.t = t, .batch = {.n = 1}};
    if (t->rank == 1) {
        m.rows = left ? 1 : t->dims[0];
        m.cols = left ? t->dims[0] : 1;
        m.rs = left ? 0 : 1;
        m.cs = left ? 1 : 0;
        return m;
    }
    int64_t r = t->dims[t->rank - 2], c = t->dims[t->rank - 1];
    m.rows = trans ? c : r;
    m.cols = trans ? r : c;
    m.rs = trans ? 1 : c;
    m.cs = trans ? c : 1;
    m.batch.rank = t->rank - 2;
    for (int i = 0; i < m.batch.rank; i++) {
        m.batch.dims[i] = t->dims[i];
        m.batch.n *= t->dims[i];
    }
    return m;
}

static void finish(const Epilogue *e, int64_t at, int64_t r, int64_t c, double sum)
{
    double v = e->alpha * sum;
    if (e->bias) v += e->beta * mpri_ref_load(e->bias, r * e->bias_rs + c * e->bias_cs);
    mpri_ref_store(e->out, at, v);
    if (e->pre) mpri_ref_store(e->pre, at, v);
    if (e->activation) mpri_ref_store(e->out, at, e->activation(mpri_ref_load(e->out, at)));
}

static void finish_int(const Epilogue *e, int64_t at, int64_t r, int64_t c, uint64_t sum)
{
    if (e->alpha != 1) sum = (uint64_t)(int64_t)(e->alpha * (double)(int64_t)sum);
    if (e->bias) {
        int64_t b = mpri_load_i64(e->bias->dtype, e->bias->data, r * e->bias_rs + c * e->bias_cs);
        sum += e->beta == 1 ? (uint64_t)b : (uint64_t)(int64_t)(e->beta * (double)b);
    }
    mpri_store_i64(e->out->dtype, e->out->data, at, (int64_t)sum);
}

enum { MB = 8, NB = 32, KB = 64 };

static void block(const Matrix *a, const Matrix *b, int64_t r0, int64_t c0, int64_t mb, int64_t nb,
                  double acc[MB][NB])
{
    double pa[MB][KB], pb[KB][NB];
    memset(acc, 0, sizeof(double[MB][NB]));
    for (int64_t k0 = 0; k0 < a->cols; k0 += KB) {
        int64_t kb = a->cols - k0 < KB ? a->cols - k0 : KB;
        for (int64_t r = 0; r < mb; r++)
            for (int64_t k = 0; k < kb; k++)
                pa[r][k] = mpri_ref_load(a->t, a->offset + (r0 + r) * a->rs + (k0 + k) * a->cs);
        for (int64_t k = 0; k < kb; k++)
            for (int64_t c = 0; c < nb; c++)
                pb[k][c] = mpri_ref_load(b->t, b->offset + (k0 + k) * b->rs + (c0 + c) * b->cs);
        for (int64_t r = 0; r < mb; r++)
            for (int64_t k = 0; k < kb; k++)
                for (int64_t c = 0; c < nb; c++) acc[r][c] += pa[r][k] * pb[k][c];
    }
}

static void product(const Matrix *a, const Matrix *b, int64_t base, const Epilogue *e)
{
    for (int64_t r0 = 0; r0 < a->rows; r0 += MB)
        for (int64_t c0 = 0; c0 < b->cols; c0 += NB) {
            double acc[MB][NB];
            int64_t mb = a->rows - r0 < MB ? a->rows - r0 : MB;
            int64_t nb = b->cols - c0 < NB ? b->cols - c0 : NB;
            block(a, b, r0, c0, mb, nb, acc);
            for (int64_t r = r0; r < r0 + mb; r++)
                for (int64_t c = c0; c < c0 + nb; c++)
                    finish(e, base + r * b->cols + c, r, c, acc[r - r0][c - c0]);
        }
}

static void product_int(const Matrix *a, const Matrix *b, int64_t base, const Epilogue *e)
{
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < b->cols; c++) {
            uint64_t sum = 0;
            for (int64_t k = 0; k < a->cols; k++)
                sum += (uint64_t)mpri_load_i64(a->t->dtype, a->t->data,
                                               a->offset + r * a->rs + k * a->cs) *
                       (uint64_t)mpri_load_i64(b->t->dtype, b->t->data,
                                               b->offset + k * b->rs + c * b->cs);
            finish_int(e, base + r * b->cols + c, r, c, sum);
        }
}

static mpr_status multiply(const KernelCall *c, bool trans_a, bool trans_b, const Epilogue *e)
{
    Matrix a = matrix(&c->in[0], trans_a, true), b = matrix(&c->in[1], trans_b, false);
    const Tensor *out = &c->out[0];
    if (out->n == 0) return MPR_OK;
    Tensor batch = {.n = out->n / (a.rows * b.cols)};
    batch.rank = a.batch.rank > b.batch.rank ? a.batch.rank : b.batch.rank;
    for (int i = 0; i < batch.rank; i++) batch.dims[i] = out->dims[i];
    for (int64_t i = 0; i < batch.n; i++) {
        a.offset = mpri_ref_broadcast(&a.batch, &batch, i) * a.rows * a.cols;
        b.offset = mpri_ref_broadcast(&b.batch, &batch, i) * b.rows * b.cols;
        int64_t base = i * a.rows * b.cols;
        if (mpri_dtype_is_float(out->dtype)) product(&a, &b, base, e);
        else product_int(&a, &b, base, e);
    }
    return MPR_OK;
}

static mpr_status k_matmul(const KernelCall *c)
{
    return multiply(c, false, false, &(Epilogue){.alpha = 1, .out = &c->out[0]});
}

static const Tensor *optional(const KernelCall *c, int k)
{
    return c->n_in > k && mpri_tensor_here(&c->in[k]) ? &c->in[k] : NULL;
}

static mpr_status k_gemm(const KernelCall *c)
{
    const GemmParams *p = c->params;
    Epilogue e = {.alpha = p->alpha, .beta = p->beta, .bias = optional(c, 2), .out = &c->out[0]};
    if (e.bias && e.bias->rank > 0) {
        int64_t cols = e.bias->dims[e.bias->rank - 1],
                rows = e.bias->rank > 1 ? e.bias->dims[0] : 1;
        e.bias_cs = cols == 1 ? 0 : 1;
        e.bias_rs = rows == 1 ? 0 : cols;
    }
    return multiply(c, p->trans_a, p->trans_b, &e);
}

static mpr_status k_linear(const KernelCall *c)
{
    const LinearParams *p = c->params;
    return multiply(
        c, false, p->trans_w,
        &(Epilogue){
            .alpha = 1, .beta = 1, .bias = optional(c, 2), .bias_cs = 1, .out = &c->out[0]});
}

static mpr_status k_fused(const KernelCall *c)
{
    const FusedMatMulParams *p = c->params;
    const char *act = p->activation ? p->activation : "";
    Epilogue e = {
        .alpha = p->alpha, .beta = 1, .bias = optional(c, 2), .bias_cs = 1, .out = &c->out[0]};
    if (c->n_out > 1 && mpri_tensor_here(&c->out[1])) e.pre = &c->out[1];
    if (strcmp(act, "relu") == 0) e.activation = mpri_ref_relu;
    if (strcmp(act, "gelu") == 0) e.activation = mpri_ref_gelu;
    if (strcmp(act, "gelu_tanh") == 0) e.activation = mpri_ref_gelu_tanh;
    return multiply(c, p->trans_a, p->trans_b, &e);
}

static double flops(const KernelSig *s, bool trans_a)
{
    const Tensor *a = &s->in[0];
    if (a->rank == 0) return 0;
    int64_t k = a->dims[trans_a && a->rank > 1 ? a->rank - 2 : a->rank - 1];
    return 2.0 * (double)s->out[0].n * (double)k;
}

static double flops_plain(const KernelSig *s) { return flops(s, false); }
static double flops_gemm(const KernelSig *s)
{
    return flops(s, ((const GemmParams *)s->params)->trans_a);
}
static double flops_fused(const KernelSig *s)
{
    return flops(s, ((const FusedMatMulParams *)s->params)->trans_a);
}

static const KernelRow rows[] = {
    {.op = OP_MatMul, .name = "ref.matmul", .fn = k_matmul, .flops = flops_plain},
    {.op = OP_Gemm, .name = "ref.gemm", .fn = k_gemm, .flops = flops_gemm},
    {.op = OP_Linear, .name = "ref.linear", .fn = k_linear, .flops = flops_plain},
    {.op = OP_FusedMatMul, .name = "ref.fusedmatmul", .fn = k_fused, .flops = flops_fused},
};
const KernelTable mpri_ref_matmul = REF_TABLE(rows);
