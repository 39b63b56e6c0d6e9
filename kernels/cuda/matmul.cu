/* Matrix products by cuBLASLt: MatMul, Gemm, Linear and FusedMatMul.
 *
 * How a product is described, chosen once per plan and run: product.h.
 *
 * Bias: by the library's epilogue where it has the type of C; else the product goes to a float32 workspace
 * and one kernel adds the bias and rounds once. An activation reads the rounded value before it, as the
 * operator says, in a kernel of its own; with Device.tune also in the epilogue, where that was timed faster
 * and gives the same: relu of a value that nobody else reads, gelu (tanh form) in float32. Float operands of different types are widened into the workspace.
 * Batches broadcast: one call per run of items that lie evenly apart. */
#include "kernels/cuda/elementwise.cuh"

#include "kernels/cuda/product.h"

#include <stdio.h>

extern "C" {
#include "runtime/base/arena.h"
}

enum { PRODUCT_THREADS = 256 };

enum Act { ACT_NONE, ACT_RELU, ACT_GELU, ACT_GELU_TANH };

/* A product as the operator says it, row-major. */
typedef struct Product {
    int64_t m, n, k;
    bool trans_a, trans_b;
    float alpha, beta;    /* of the bias */
    DType ta, tb, tc;
    const Tensor *bias;   /* NULL; rows and columns by these steps */
    int64_t bias_rs, bias_cs;
    Act act;
    int64_t calls, batch; /* calls of `batch` items each */
    int64_t a_step, b_step;
    int rank;             /* of the calls' index */
    int64_t dims[MPRI_TENSOR_RANK], a_call[MPRI_TENSOR_RANK], b_call[MPRI_TENSOR_RANK];
} Product;

/* ---- what the operators mean ---- */

/* A tensor of rank 1 is a row on the left and a column on the right. */
static void sides(const Tensor *t, bool trans, bool left, int64_t *rows, int64_t *cols)
{
    int64_t r = t->rank > 1 ? t->dims[t->rank - 2] : left ? 1 : t->dims[0];
    int64_t c = t->rank > 1 ? t->dims[t->rank - 1] : left ? t->dims[0] : 1;
    *rows = trans ? c : r;
    *cols = trans ? r : c;
}

/* Batch dims: the innermost run that both operands step through evenly is one call. */
static void find_batch(Product *p, const Tensor *a, const Tensor *b, const Tensor *c)
{
    int ra = a->rank > 2 ? a->rank - 2 : 0, rb = b->rank > 2 ? b->rank - 2 : 0;
    int r = ra > rb ? ra : rb;
    int64_t sa = p->m * p->k, sb = p->k * p->n;
    (void)c;
    p->calls = p->batch = 1;
    p->rank = 0;
    bool open = true; /* the run may still grow */
    for (int o = r - 1; o >= 0; o--) {
        int64_t da = o - (r - ra) >= 0 ? a->dims[o - (r - ra)] : 1;
        int64_t db = o - (r - rb) >= 0 ? b->dims[o - (r - rb)] : 1;
        int64_t d = da > db ? da : db;
        if (da == 0 || db == 0) d = 0;
        int64_t ta = da == 1 && d != 1 ? 0 : sa, tb = db == 1 && d != 1 ? 0 : sb;
        sa *= da;
        sb *= db;
        if (d == 1) continue;
        if (open && (p->batch == 1 || (ta == p->a_step * p->batch && tb == p->b_step * p->batch))) {
            if (p->batch == 1) p->a_step = ta, p->b_step = tb;
            p->batch *= d;
            continue;
        }
        open = false;
        p->dims[p->rank] = d; /* innermost first */
        p->a_call[p->rank] = ta;
        p->b_call[p->rank++] = tb;
        p->calls *= d;
    }
}

/* Rows of A and all its leading dims are one matrix where B has none and A is not transposed. */
static bool flat_rows(const Tensor *a, const Tensor *b, bool trans_a)
{
    return b->rank == 2 && !trans_a && a->rank > 2;
}

static Act act_of(const char *name)
{
    if (!name || !*name) return ACT_NONE;
    return !strcmp(name, "relu") ? ACT_RELU : !strcmp(name, "gelu") ? ACT_GELU : ACT_GELU_TANH;
}

static const Tensor *tensor_at(const Tensor *in, int n_in, int k)
{
    return k < n_in && mpri_tensor_here(&in[k]) ? &in[k] : NULL;
}

static Product product_of(int op, const void *params, const Tensor *in, int n_in, const Tensor *out)
{
    Product p = {};
    int64_t kb;
    p.alpha = p.beta = 1;
    p.bias_cs = 1;
    if (op == OP_Gemm) {
        const GemmParams *g = (const GemmParams *)params;
        p.trans_a = g->trans_a, p.trans_b = g->trans_b, p.alpha = g->alpha, p.beta = g->beta;
        p.bias = tensor_at(in, n_in, 2);
        if (p.bias) {
            int64_t cols = p.bias->rank > 0 ? p.bias->dims[p.bias->rank - 1] : 1,
                    rows = p.bias->rank > 1 ? p.bias->dims[0] : 1;
            p.bias_cs = cols == 1 ? 0 : 1;
            p.bias_rs = rows == 1 ? 0 : cols;
        }
    } else if (op == OP_Linear) {
        p.trans_b = ((const LinearParams *)params)->trans_w;
        p.bias = tensor_at(in, n_in, 2);
    } else if (op == OP_FusedMatMul) {
        const FusedMatMulParams *f = (const FusedMatMulParams *)params;
        p.trans_a = f->trans_a, p.trans_b = f->trans_b, p.alpha = f->alpha;
        p.bias = tensor_at(in, n_in, 2);
        p.act = act_of(f->activation);
    }
    p.ta = in[0].dtype, p.tb = in[1].dtype, p.tc = out->dtype;
    sides(&in[0], p.trans_a && in[0].rank > 1, true, &p.m, &p.k);
    sides(&in[1], p.trans_b && in[1].rank > 1, false, &kb, &p.n);
    if (in[1].rank == 1) p.trans_b = false;
    if (in[0].rank == 1) p.trans_a = false;
    if (flat_rows(&in[0], &in[1], p.trans_a)) {
        p.m = p.k ? in[0].n / p.k : out->n / (p.n ? p.n : 1);
        p.calls = p.batch = 1;
    } else {
        find_batch(&p, &in[0], &in[1], out);
    }
    return p;
}

/* ---- workspace: the library's, then what is widened, then the float32 product ---- */

static bool own_bias(const Product *p) /* added by our kernel */
{
    return p->bias && !(p->bias->dtype == p->tc && p->bias_rs == 0 && p->bias_cs == 1 && p->beta == 1 &&
                        p->bias->n == p->n);
}
static DType common_type(const Product *p) { return p->ta == p->tb ? p->ta : MPR_FLOAT32; }
/* The product's own type: float32 where it cannot be stored as it is. */
static DType product_type(const Product *p)
{
    bool low = common_type(p) != MPR_FLOAT32;
    return own_bias(p) || (p->tc != MPR_FLOAT32 && (!low || p->tc != common_type(p))) ? MPR_FLOAT32
                                                                                       : p->tc;
}
static size_t aligned(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

typedef struct Spaces {
    size_t wide_a, wide_b, product, all; /* offsets */
} Spaces;

static Spaces spaces_of(const Product *p, const Tensor *in, const Tensor *out)
{
    Spaces s;
    s.wide_a = mpri_cuda_product_workspace(p->m * p->n * p->batch);
    s.wide_b = s.wide_a + (p->ta != common_type(p) ? aligned((size_t)in[0].n * 4) : 0);
    s.product = s.wide_b + (p->tb != common_type(p) ? aligned((size_t)in[1].n * 4) : 0);
    s.all = s.product + (product_type(p) != p->tc ? aligned((size_t)out->n * 4) : 0);
    return s;
}

static size_t product_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    Product p = product_of(s->op, s->params, s->in, s->n_in, &s->out[0]);
    return spaces_of(&p, s->in, &s->out[0]).all;
}

/* ---- the library ---- */

typedef struct ProductHeld {
    LtHeld alone, fused;
    bool use_fused;
    float us_apart; /* of the product and its activation as two, where that was timed */
} ProductHeld;

static LtProduct describe_product(const Product &p)
{
    LtProduct lt = {};
    lt.m = p.m, lt.n = p.n, lt.k = p.k;
    lt.trans_a = p.trans_a, lt.trans_b = p.trans_b;
    lt.type = common_type(&p), lt.out = product_type(&p);
    lt.bias = p.bias && !own_bias(&p);
    lt.batch = p.batch;
    lt.workspace = mpri_cuda_product_workspace(p.m * p.n * p.batch);
    lt.a_step = p.a_step, lt.b_step = p.b_step, lt.c_step = p.m * p.n;
    /* buffers begin 64 bytes aligned; what a call or an item begins at follows from the steps */
    lt.a_align = mpri_cuda_step_align(p.a_step ? p.a_step : p.m * p.k, lt.type);
    lt.b_align = mpri_cuda_step_align(p.b_step ? p.b_step : p.k * p.n, lt.type);
    lt.c_align = mpri_cuda_step_align(p.m * p.n, lt.out);
    return lt;
}

/* ---- around the product ---- */

typedef struct Bias {
    const void *v;
    int type;
    int64_t rs, cs, cols, per_item; /* per_item = m n */
    float beta;
} Bias;

/* y = round(x + beta bias), x in float32. bias may be NULL. */
__global__ void k_store(const float *x, Bias b, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        float v = x[i];
        int64_t at = i % b.per_item;
        if (b.v) v += b.beta * load_float(b.v, b.type, at / b.cols * b.rs + at % b.cols * b.cs);
        store_float(y, ty, i, v);
    }
}

__global__ void k_widen(const void *x, int tx, float *y, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) y[i] = load_float(x, tx, i);
}

/* A product over nothing: only the bias is left. */
__global__ void k_empty(Bias b, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t at = i % b.per_item;
        store_float(y, ty, i, b.v ? b.beta * load_float(b.v, b.type, at / b.cols * b.rs + at % b.cols * b.cs)
                                  : 0.0f);
    }
}

__global__ void k_activate(int act, const void *x, void *y, int type, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        float v = load_float(x, type, i);
        if (act == ACT_RELU) v = v > 0 || v != v ? v : 0;
        else v = act == ACT_GELU ? gelu(v) : gelu_tanh(v);
        store_float(y, type, i, v);
    }
}

/* ---- the activation in the epilogue ---- */

/* Whether the library's epilogue means the same as the two kernels, and as which. */
static LtEpilogue epilogue_for(const Product &p, bool pre)
{
    if (product_type(&p) != p.tc || own_bias(&p)) return LT_NOTHING;
    if (p.act == ACT_RELU && !pre) return LT_RELU;
    if (p.act == ACT_GELU_TANH && p.tc == MPR_FLOAT32 && (!pre || p.n % 8 == 0)) return LT_GELU;
    return LT_NOTHING;
}

typedef struct ActivationTrial {
    void *data, *queue;
    int act, type;
    int64_t n;
} ActivationTrial;

static mpr_status run_activation(void *user)
{
    const ActivationTrial *t = (const ActivationTrial *)user;
    MPRI_LAUNCH(k_activate, blocks_for(t->n, PRODUCT_THREADS), PRODUCT_THREADS, 0, t->queue, t->act, t->data,
                t->data, t->type, t->n);
    return MPR_OK;
}

/* Microseconds of the activation's kernel; < 0: it could not be timed. */
static float time_activation(const CudaDevice *d, const Product &p, int64_t n)
{
    ActivationTrial t = {NULL, d->d.queue, (int)p.act, (int)p.tc, n};
    size_t bytes = (size_t)n * mpri_dtype_size(p.tc);
    float us = -1;
    if (cudaMalloc(&t.data, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    if (cudaMemsetAsync(t.data, 0x3c, bytes, (cudaStream_t)t.queue) == cudaSuccess)
        us = mpri_cuda_time(d, run_activation, &t);
    (void)cudaStreamSynchronize((cudaStream_t)t.queue);
    (void)cudaFree(t.data);
    return us;
}

static void try_fused(const Product &p, const LtProduct &alone, bool pre, int64_t n, const CudaDevice *d,
                      ProductHeld *h)
{
    LtProduct lt = alone;
    Err none;
    lt.epilogue = epilogue_for(p, pre);
    lt.aux = pre;
    mpri_err_clear(&none);
    if (lt.epilogue == LT_NOTHING || !h->alone.found) return;
    if (mpri_cuda_product_prepare(&lt, d, &h->fused, &none) != MPR_OK || !h->fused.found) return;
    float act = time_activation(d, p, n), calls = (float)p.calls;
    h->us_apart = calls * h->alone.us + act;
    h->use_fused = act >= 0 && calls * h->fused.us < h->us_apart && mpri_cuda_keeps_nan(&lt, d, &h->fused);
}

static mpr_status prepare_product(const KernelSig *s, Device *device, Arena *arena, void **held, Err *err)
{
    const CudaDevice *d = (const CudaDevice *)device;
    Product p = product_of(s->op, s->params, s->in, s->n_in, &s->out[0]);
    if (!s->out[0].n || !p.k) return MPR_OK;
    ProductHeld *h = (ProductHeld *)mpri_arena_alloc(arena, sizeof *h);
    if (!h) return mpri_err_nomem(err, sizeof *h);
    *h = ProductHeld{};
    LtProduct lt = describe_product(p);
    *held = h;
    TRY(mpri_cuda_product_prepare(&lt, d, &h->alone, err));
    if (device->tune && p.act != ACT_NONE)
        try_fused(p, lt, s->n_out > 1 && mpri_tensor_here(&s->out[1]), s->out[0].n, d, h);
    return MPR_OK;
}

static void describe_held(const void *held, char *buf, size_t size)
{
    const ProductHeld *h = (const ProductHeld *)held;
    mpri_cuda_product_describe(h->use_fused ? &h->fused : &h->alone, buf, size);
    size_t n = strlen(buf);
    if (h->us_apart > 0)
        snprintf(buf + n, size - n, h->use_fused ? ", two kernels %.1f us" : ", with its activation %.1f us",
                 (double)h->us_apart);
}

static const void *widened(const KernelCall *c, const Tensor *t, DType want, size_t offset)
{
    if (t->dtype == want) return t->data;
    float *wide = (float *)((char *)c->workspace + offset);
    MPRI_LAUNCH(k_widen, blocks_for(t->n, PRODUCT_THREADS), PRODUCT_THREADS, 0, c->queue, t->data,
                (int)t->dtype, wide, t->n);
    return wide;
}

/* All calls of the batch. aux: NULL, or where the value before an activation in the epilogue goes. */
static mpr_status multiply(const KernelCall *c, const Product *p, LtHeld *h, const void *a, const void *b,
                           void *y, void *aux)
{
    size_t size = mpri_dtype_size(common_type(p)), out = mpri_dtype_size(product_type(p));
    const void *bias = p->bias && !own_bias(p) ? p->bias->data : NULL;
    for (int64_t i = 0; i < p->calls; i++) {
        int64_t at = i, ao = 0, bo = 0;
        for (int d = 0; d < p->rank; d++) {
            ao += at % p->dims[d] * p->a_call[d];
            bo += at % p->dims[d] * p->b_call[d];
            at /= p->dims[d];
        }
        size_t item = (size_t)(i * p->batch * p->m * p->n) * out;
        char *to = (char *)y + item;
        if (aux) TRY(mpri_cuda_product_aux(h, (char *)aux + item));
        TRY(mpri_cuda_product_run(h, p->alpha, (const char *)a + (size_t)ao * size,
                                  (const char *)b + (size_t)bo * size, bias, to, c->workspace, c->queue));
    }
    return MPR_OK;
}

static mpr_status run_product(const KernelCall *c, int op)
{
    Product p = product_of(op, c->params, c->in, c->n_in, &c->out[0]);
    Spaces s = spaces_of(&p, c->in, &c->out[0]);
    Tensor *y = &c->out[0], *pre = output_of(c, 1);
    Tensor *first = pre ? pre : y; /* before the activation */
    Bias bias = {};
    if (!y->n) return MPR_OK;
    bias.per_item = p.m * p.n, bias.cols = p.n, bias.beta = p.beta;
    if (p.bias) bias.v = p.bias->data, bias.type = (int)p.bias->dtype, bias.rs = p.bias_rs, bias.cs = p.bias_cs;
    unsigned blocks = blocks_for(y->n, PRODUCT_THREADS);
    if (!p.k) {
        MPRI_LAUNCH(k_empty, blocks, PRODUCT_THREADS, 0, c->queue, bias, first->data, (int)first->dtype, y->n);
    } else {
        bool through = product_type(&p) != p.tc || own_bias(&p);
        ProductHeld *h = (ProductHeld *)c->held;
        void *to = product_type(&p) != p.tc ? (char *)c->workspace + s.product : first->data;
        const void *a = widened(c, &c->in[0], common_type(&p), s.wide_a),
                   *b = widened(c, &c->in[1], common_type(&p), s.wide_b);
        if (h->use_fused) return multiply(c, &p, &h->fused, a, b, y->data, pre ? pre->data : NULL);
        TRY(multiply(c, &p, &h->alone, a, b, to, NULL));
        if (!own_bias(&p)) bias.v = NULL;
        if (through)
            MPRI_LAUNCH(k_store, blocks, PRODUCT_THREADS, 0, c->queue, (const float *)to, bias, first->data,
                        (int)first->dtype, y->n);
    }
    if (p.act != ACT_NONE)
        MPRI_LAUNCH(k_activate, blocks, PRODUCT_THREADS, 0, c->queue, (int)p.act, first->data, y->data,
                    (int)y->dtype, y->n);
    else if (pre)
        cudaMemcpyAsync(y->data, pre->data, (size_t)y->n * mpri_dtype_size(y->dtype),
                        cudaMemcpyDeviceToDevice, (cudaStream_t)c->queue);
    return MPR_OK;
}

/* ---- rows ---- */

static mpr_status k_matmul(const KernelCall *c) { return run_product(c, OP_MatMul); }
static mpr_status k_gemm(const KernelCall *c) { return run_product(c, OP_Gemm); }
static mpr_status k_linear(const KernelCall *c) { return run_product(c, OP_Linear); }
static mpr_status k_fused(const KernelCall *c) { return run_product(c, OP_FusedMatMul); }

static const char *refuse_product(const KernelSig *s)
{
    if (!cuda_float(s->in[0].dtype) || !cuda_float(s->in[1].dtype) || !cuda_float(s->out[0].dtype))
        return CUDA_NOT_FLOAT;
    if (s->n_in > 2 && mpri_tensor_here(&s->in[2]) && !cuda_float(s->in[2].dtype)) return CUDA_NOT_FLOAT;
    if (s->in[0].rank < 1 || s->in[1].rank < 1) return "a scalar operand";
    if (s->n_out > 1 && mpri_tensor_here(&s->out[1]) && s->out[1].dtype != s->out[0].dtype)
        return "the value before the activation has another type";
    return NULL;
}

static double product_flops(const KernelSig *s)
{
    Product p = product_of(s->op, s->params, s->in, s->n_in, &s->out[0]);
    return 2.0 * (double)s->out[0].n * (double)p.k;
}

#define PRODUCT_ROW(Op, lower, fn)                                                            \
    CUDA_ROW(Op, lower, fn, .refuse = refuse_product, .workspace = product_bytes,             \
             .flops = product_flops, .prepare = prepare_product,               \
             .describe = describe_held)
static const KernelRow rows[] = {
    PRODUCT_ROW(MatMul, "matmul", k_matmul),
    PRODUCT_ROW(Gemm, "gemm", k_gemm),
    PRODUCT_ROW(Linear, "linear", k_linear),
    PRODUCT_ROW(FusedMatMul, "fusedmatmul", k_fused),
};
extern "C" const KernelTable mpri_cuda_matmul = CUDA_TABLE(rows);
