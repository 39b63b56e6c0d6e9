/* MatMul, Gemm, Linear and FusedMatMul by the packed product of gemm.c: here operands become
 * matrices.
 *
 * Leading dims of A become rows wherever one matrix B serves them all, which makes one large
 * product out of a batch of small ones. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd/simd.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"

typedef struct Form { /* what the four operators ask for */
    bool trans_a, trans_b;
    float alpha, beta;
    GemmAct act;
} Form;

static Form form_of(int op, const void *params)
{
    Form f = {.alpha = 1, .beta = 1};
    if (op == OP_Gemm) {
        const GemmParams *p = params;
        f = (Form){p->trans_a != 0, p->trans_b != 0, p->alpha, p->beta, GEMM_NONE};
    } else if (op == OP_Linear) {
        f.trans_b = ((const LinearParams *)params)->trans_w != 0;
    } else if (op == OP_FusedMatMul) {
        const FusedMatMulParams *p = params;
        const char *act = p->activation ? p->activation : "";
        f = (Form){p->trans_a != 0, p->trans_b != 0, p->alpha, 1, GEMM_NONE};
        if (strcmp(act, "relu") == 0) f.act = GEMM_RELU;
        if (strcmp(act, "gelu") == 0) f.act = GEMM_GELU;
        if (strcmp(act, "gelu_tanh") == 0) f.act = GEMM_GELU_TANH;
    }
    return f;
}

static int64_t product(const int64_t *dims, int n)
{
    int64_t r = 1;
    for (int i = 0; i < n; i++) r *= dims[i];
    return r;
}

/* Elements from one item to the next along each of the batch's dims, 0 where t is broadcast. */
static void steps(const Tensor *t, int batch_rank, int64_t *step)
{
    int64_t size = t->rank > 1 ? t->dims[t->rank - 1] * t->dims[t->rank - 2] : 0;
    for (int d = batch_rank - 1, k = t->rank - 3; d >= 0; d--, k--) {
        step[d] = k >= 0 && t->dims[k] != 1 ? size : 0;
        if (k >= 0) size *= t->dims[k];
    }
}

static void describe(const Form *f, const Tensor *a, const Tensor *b, const Tensor *bias,
                     const Tensor *out, const Tensor *pre, Gemm *g)
{
    *g = (Gemm){.ta = a->dtype,
                .tb = b->dtype,
                .tc = out->dtype,
                .a = a->data,
                .b = b->data,
                .c = out->data,
                .alpha = f->alpha,
                .act = f->act,
                .batch = 1};
    if (bias) {
        g->bias = bias->data;
        g->tbias = bias->dtype;
    }
    if (pre) g->pre = pre->data;
    int64_t ar = a->rank > 1 ? a->dims[a->rank - 2] : 1, ac = a->dims[a->rank - 1];
    int64_t br = b->rank > 1 ? b->dims[b->rank - 2] : b->dims[0],
            bc = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    g->trans_a = f->trans_a && a->rank > 1;
    g->trans_b = f->trans_b && b->rank > 1;
    g->m = g->trans_a ? ac : ar;
    g->k = g->trans_a ? ar : ac;
    g->n = g->trans_b ? br : bc;
    g->lda = ac;
    g->ldb = bc;
    g->ldc = g->n;

    int ra = a->rank > 2 ? a->rank - 2 : 0, rb = b->rank > 2 ? b->rank - 2 : 0,
        rank = ra > rb ? ra : rb;
    for (int d = 0; d < rank; d++) {
        int64_t da = d - rank + ra >= 0 ? a->dims[d - rank + ra] : 1;
        int64_t db = d - rank + rb >= 0 ? b->dims[d - rank + rb] : 1;
        g->batch_dims[d] = da == 1 ? db : da;
    }
    int64_t batch = product(g->batch_dims, rank);
    if (!g->trans_a && product(b->dims, rb) == 1 && product(a->dims, ra) == batch) {
        g->m *= batch;
        return;
    }
    g->batch = batch;
    g->batch_rank = rank;
    g->c_step = g->m * g->n;
    steps(a, rank, g->a_step);
    steps(b, rank, g->b_step);
}

static const Tensor *given(const Tensor *t, int n, int k)
{
    return n > k && mpri_tensor_here(&t[k]) ? &t[k] : NULL;
}

static void describe_sig(const KernelSig *s, Gemm *g)
{
    Form f = form_of(s->op, s->params);
    describe(&f, &s->in[0], &s->in[1], given(s->in, s->n_in, 2), &s->out[0],
             given(s->out, s->n_out, 1), g);
    /* Data are unknown at choice time; what counts is whether they will be there. */
    if (given(s->in, s->n_in, 2)) g->bias = s;
    if (given(s->out, s->n_out, 1)) g->pre = (void *)(uintptr_t)s;
}

static size_t workspace(const KernelSig *s, int threads)
{
    Gemm g;
    describe_sig(s, &g);
    return MPRI_NAME(gemm).workspace(&g, threads);
}

static double flops(const KernelSig *s)
{
    Gemm g;
    describe_sig(s, &g);
    return 2.0 * (double)g.batch * (double)g.m * (double)g.n * (double)g.k;
}

static const char *refuse(const KernelSig *s)
{
    const Tensor *a = &s->in[0], *b = &s->in[1], *out = &s->out[0];
    const Tensor *bias = given(s->in, s->n_in, 2), *pre = given(s->out, s->n_out, 1);
    if (!vf_can(a->dtype) || !vf_can(b->dtype) || !vf_can(out->dtype))
        return "types other than f32, f16, bf16";
    if (a->rank < 1 || b->rank < 1) return "operand without dims";
    if (pre && pre->dtype != out->dtype) return "outputs of different types";
    if (!bias) return NULL;
    Form f = form_of(s->op, s->params);
    Gemm g;
    describe(&f, a, b, NULL, out, NULL, &g);
    if (!vf_can(bias->dtype)) return "bias of a type other than f32, f16, bf16";
    if (f.beta != 1.0f) return "beta other than 1";
    if (bias->rank < 1 || bias->n != g.n || bias->dims[bias->rank - 1] != g.n)
        return "bias that is not one row";
    return NULL;
}

static void multiply(int op, const KernelCall *c)
{
    Form f = form_of(op, c->params);
    Gemm g;
    if (c->out[0].n == 0) return;
    describe(&f, &c->in[0], &c->in[1], given(c->in, c->n_in, 2), &c->out[0],
             given(c->out, c->n_out, 1), &g);
    MPRI_NAME(gemm).run(&g, c->workspace, c->threads);
}

#define KERNEL(Op)                                \
    static mpr_status k_##Op(const KernelCall *c) \
    {                                             \
        multiply(OP_##Op, c);                     \
        return MPR_OK;                            \
    }
KERNEL(MatMul)
KERNEL(Gemm)
KERNEL(Linear)
KERNEL(FusedMatMul)

#define ENTRY(Op, text)                                                                            \
    {                                                                                              \
        .op = OP_##Op, .name = MPRI_ROW(text), .isa = MPRI_ISA_ID, .fn = k_##Op, .refuse = refuse, \
        .workspace = workspace, .flops = flops                                                     \
    }
static const KernelRow rows[] = {
    ENTRY(FusedMatMul, "fusedmatmul"),
    ENTRY(MatMul, "matmul"),
    ENTRY(Linear, "linear"),
    ENTRY(Gemm, "gemm"),
};

const KernelTable MPRI_NAME(cpu_matmul) = {rows, sizeof rows / sizeof rows[0]};
