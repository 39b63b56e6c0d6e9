/* Attention and its gradient in blocks of queries and keys; the matrix of scores never exists as a
 * whole (Dao, "FlashAttention-2", 2023). Products go through the micro-kernel of the matrix
 * product, which also converts 16-bit storage while packing.
 *
 * Forward: a tile is one block of queries of one head; it runs over the keys with the maximum
 * and the sum of exponentials so far, and scales what it has when the maximum grows. Backward: a
 * tile is one key head with all queries that read it, so dk and dv of a block of keys are summed
 * in one place and dq in an f32 buffer of the worker: order of additions and bits do not depend on
 * threads.
 *
 * Trap: a masked score is set to -inf by choice and its probability to 0 by choice; adding -inf
 * to an infinite product would make NaN. A query that sees no key has lse = +inf, so exp(s - lse)
 * is 0 in the backward pass without a test. */
#include "kernels/attention.h"
#include "kernels/cpu/simd/gemm_pack.h"
#include "kernels/cpu/simd/tiles.h"
#include "kernels/cpu/simd/vmath.h"

enum { BLOCK_Q = 64 / GEMM_MR * GEMM_MR, BLOCK_K = 128, SLACK = 16 };

typedef struct Job {
    AttentionForm f;
    const Tensor *q, *k, *v, *dy, *y, *lse;
    Tensor *out, *out_lse, *dq, *dk, *dv;
    int64_t blocks; /* of queries */
    size_t floats;  /* of workspace per worker */
    float *work;
} Job;

static int64_t padded(int64_t n) { return (n + GEMM_NR - 1) / GEMM_NR * GEMM_NR; }

static const void *element(const Tensor *t, int64_t i)
{
    return (const char *)t->data + i * (int64_t)mpri_dtype_size(t->dtype);
}

/* The next piece of a workspace, 64-byte aligned; without a base they are only counted. */
static float *take(float *base, size_t *at, int64_t n)
{
    float *p = base ? base + *at : NULL;
    *at += (size_t)((n + SLACK + 15) / 16 * 16);
    return p;
}

/* ---- products of packed operands ---- */

/* Rows of op(A) in panels: full ones, then a ragged one, which may overhang into the slack. */
static void pack_rows(DType t, bool trans, float *dst, const void *src, int64_t ld, int64_t m,
                      int64_t k)
{
    int64_t full = m / GEMM_MR, rest = m % GEMM_MR;
    if (full) pack_a(t, trans, dst, src, ld, m, 0, GEMM_MR, full, 0, k);
    if (rest)
        pack_a(t, trans, dst + full * GEMM_MR * k, src, ld, m, full * GEMM_MR, (int)rest, 1, 0, k);
}

static void multiply(int64_t m, int64_t n, int64_t k, const float *a, const float *b, float *out,
                     int64_t ld, bool add)
{
    for (int64_t j = 0; j < n; j += GEMM_NR) {
        int width = (int)least(GEMM_NR, n - j);
        for (int64_t i = 0; i < m; i += GEMM_MR) {
            int rows = (int)least(GEMM_MR, m - i);
            float *c = out + i * ld + j;
            gemm_kernels[rows - 1][width > VF_LANES](k, a + i * k, b + j * k, add ? c : NULL, ld, c,
                                                     ld, width, 1.0f);
        }
    }
}

/* ---- scores ---- */

/* Keys that any of the queries [i0, i0 + m) sees. */
static void block_range(const AttentionForm *f, int64_t b, int64_t i0, int64_t m, int64_t *low,
                        int64_t *high)
{
    *low = f->keys;
    *high = 0;
    for (int64_t i = i0; i < i0 + m; i++) {
        int64_t l, h;
        mpri_attention_range(f, b, i, &l, &h);
        if (h == l) continue;
        *low = least(*low, l);
        if (h > *high) *high = h;
    }
}

/* Products s[0 .. n) of query i with keys j0 .. j0 + n - 1 become scores, -inf where masked. slope
 * (may be NULL) receives the derivative of the softcap. Returns the maximum. */
static float score_row(const AttentionForm *f, int64_t b, int64_t h, int64_t i, int64_t j0,
                       int64_t n, float *s, float *slope)
{
    int64_t low, high, m = b * f->mask.batch + h * f->mask.head + i * f->mask.row + j0;
    const Tensor *mask = f->mask_of;
    const vf scale = vf_set1((float)f->scale), hidden = vf_set1(-INFINITY);
    const vf cap = vf_set1((float)f->softcap), inv_cap = vf_set1((float)(1 / f->softcap));
    vf top = hidden;
    mpri_attention_range(f, b, i, &low, &high);
    low = low > j0 ? least(low - j0, n) : 0;
    high = high > j0 ? least(high - j0, n) : 0;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf v = vf_load_n(s + j, k) * scale;
        if (f->softcap > 0) {
            vf t = vf_tanh(v * inv_cap);
            if (slope) vf_store_n(slope + j, vf_fnma(t, t, vf_set1(1.0f)), k);
            v = cap * t;
        }
        if (j < low || j + k > high || k < VF_LANES) { /* a key outside of the range in it */
            float lanes[VF_LANES];
            vf_store(lanes, v);
            for (int e = 0; e < VF_LANES; e++)
                if (j + e < low || j + e >= high) lanes[e] = -INFINITY;
            v = vf_load(lanes);
        }
        int seen = j >= high ? 0 : (int)least(k, high - j); /* the mask may end there */
        if (mask && mask->dtype == MPR_BOOL) {
            vm keep = vm_load_bool_n((const uint8_t *)mask->data + m + j, seen);
            v = vf_blend(keep, v, hidden);
        } else if (mask) {
            vf bias = vf_ld_n(mask->dtype, mask->data, m + j, seen);
            vm off = vm_or(vm_eq(bias, hidden), vm_eq(v, hidden));
            v = vf_blend(off, hidden, v + bias);
        }
        top = vf_max_nan(top, v);
        vf_store_n(s + j, v, k);
    }
    return vf_hmax_nan(top);
}

/* s becomes exp(s - shift), 0 where masked; returns the sum. */
static float exp_row(float *s, int64_t n, float shift)
{
    const vf by = vf_set1(shift), hidden = vf_set1(-INFINITY);
    vf sum = vf_zero();
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf v = k == VF_LANES ? vf_load(s + j) : vf_load_n(s + j, k);
        vf e = vf_blend(vm_eq(v, hidden), vf_zero(), vf_exp(v - by));
        vf_store_n(s + j, e, k);
        sum += k == VF_LANES ? e : vf_load_n(s + j, k);
    }
    return vf_hsum(sum);
}

static void scale_row(float *x, int64_t n, float factor)
{
    const vf by = vf_set1(factor);
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf_store_n(x + j, vf_load_n(x + j, k) * by, k);
    }
}

static void store_row(Tensor *t, int64_t at, const float *x, int64_t n, float factor)
{
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf_st_n(t->dtype, t->data, at + j, vf_load_n(x + j, k) * vf_set1(factor), k);
    }
}

/* ---- forward ---- */

typedef struct Forward { /* workspace of one tile */
    float *q, *k, *s, *p, *o, top[BLOCK_Q], sum[BLOCK_Q];
} Forward;

static size_t forward_pieces(const AttentionForm *f, float *base, Forward *w)
{
    size_t at = 0;
    int64_t wide = f->size > f->v_size ? f->size : f->v_size;
    w->q = take(base, &at, BLOCK_Q * f->size);
    w->k = take(base, &at, BLOCK_K * padded(wide));
    w->s = take(base, &at, BLOCK_Q * BLOCK_K);
    w->p = take(base, &at, BLOCK_Q * BLOCK_K);
    w->o = take(base, &at, BLOCK_Q * f->v_size);
    return at;
}

/* One block of keys for m queries from i0 on. */
static void forward_block(const Job *job, Forward *w, int64_t b, int64_t h, int64_t i0, int64_t m,
                          int64_t j0, int64_t n)
{
    const AttentionForm *f = &job->f;
    int64_t kv = h / (f->heads / f->kv_heads);
    pack_b(job->k->dtype, true, w->k,
           element(job->k, b * f->k.batch + kv * f->k.head + j0 * f->k.row), f->k.row, 0, n, 0,
           f->size);
    multiply(m, n, f->size, w->q, w->k, w->s, BLOCK_K, false);
    for (int64_t i = 0; i < m; i++) {
        float *s = w->s + i * BLOCK_K;
        float top = score_row(f, b, h, i0 + i, j0, n, s, NULL);
        top = top != top || top > w->top[i] ? top : w->top[i];
        if (top == -INFINITY) {
            memset(s, 0, (size_t)n * sizeof *s);
            continue;
        }
        if (top != w->top[i]) {
            float back = w->top[i] == -INFINITY ? 0 : expf(w->top[i] - top);
            scale_row(w->o + i * f->v_size, f->v_size, back);
            w->sum[i] *= back;
            w->top[i] = top;
        }
        w->sum[i] += exp_row(s, n, top);
    }
    pack_rows(MPR_FLOAT32, false, w->p, w->s, BLOCK_K, m, n);
    pack_b(job->v->dtype, false, w->k,
           element(job->v, b * f->v.batch + kv * f->v.head + j0 * f->v.row), f->v.row, 0,
           f->v_size, 0, n);
    multiply(m, f->v_size, n, w->p, w->k, w->o, f->v_size, true);
}

static void forward_tile(void *ctx, int64_t tile, int worker)
{
    const Job *job = ctx;
    const AttentionForm *f = &job->f;
    Forward w;
    forward_pieces(f, job->work + (size_t)worker * job->floats, &w);
    int64_t block = tile % job->blocks, h = tile / job->blocks % f->heads,
            b = tile / job->blocks / f->heads, i0 = block * BLOCK_Q, low, high;
    int64_t m = least(BLOCK_Q, f->queries - i0);
    for (int64_t i = 0; i < m; i++) {
        w.top[i] = -INFINITY;
        w.sum[i] = 0;
    }
    memset(w.o, 0, (size_t)(m * f->v_size) * sizeof *w.o);
    pack_rows(job->q->dtype, false, w.q,
              element(job->q, b * f->q.batch + h * f->q.head + i0 * f->q.row), f->q.row, m,
              f->size);
    block_range(f, b, i0, m, &low, &high);
    for (int64_t j = low; j < high; j += BLOCK_K)
        forward_block(job, &w, b, h, i0, m, j, least(BLOCK_K, high - j));
    for (int64_t i = 0; i < m; i++) {
        bool none = w.top[i] == -INFINITY;
        store_row(job->out, b * f->y.batch + h * f->y.head + (i0 + i) * f->y.row,
                  w.o + i * f->v_size, f->v_size, none ? 0 : 1 / w.sum[i]);
        if (job->out_lse)
            vf_st1(job->out_lse->dtype, job->out_lse->data,
                   (b * f->heads + h) * f->queries + i0 + i,
                   none ? INFINITY : w.top[i] + logf(w.sum[i]));
    }
}

static mpr_status k_attention(const KernelCall *c)
{
    Forward w;
    Job job = {.f = mpri_attention_form(c->params, c->in, c->n_in),
               .q = &c->in[0],
               .k = &c->in[1],
               .v = &c->in[2],
               .out = &c->out[0],
               .out_lse = output_or_null(c, 4),
               .work = c->workspace};
    job.blocks = tiles_of(job.f.queries, BLOCK_Q);
    job.floats = forward_pieces(&job.f, job.work, &w);
    mpri_parallel_worker(c->threads, job.f.batch * job.f.heads * job.blocks, forward_tile, &job);
    return MPR_OK;
}

static size_t forward_workspace(const KernelSig *s, int threads)
{
    AttentionForm f = mpri_attention_form(s->params, s->in, s->n_in);
    Forward w;
    return (size_t)threads * forward_pieces(&f, NULL, &w) * sizeof(float);
}

/* ---- backward ---- */

typedef struct Backward { /* workspace of one tile */
    float *dq, *delta;        /* [group][queries][size], [group][queries] */
    float *kt, *k, *vt;       /* keys as columns and as rows, values as columns, packed */
    float *a, *b;             /* packed operands of the product being made */
    float *s, *dp, *slope;    /* scores, then probabilities; their gradients */
    float *dk, *dv;
} Backward;

static size_t backward_pieces(const AttentionForm *f, float *base, Backward *w)
{
    size_t at = 0;
    int64_t wide = f->size > f->v_size ? f->size : f->v_size;
    int64_t rows = f->kv_heads ? f->heads / f->kv_heads * f->queries : 0;
    w->dq = take(base, &at, rows * f->size);
    w->delta = take(base, &at, rows);
    w->kt = take(base, &at, BLOCK_K * f->size);
    w->k = take(base, &at, BLOCK_K * padded(f->size));
    w->vt = take(base, &at, BLOCK_K * f->v_size);
    w->a = take(base, &at, BLOCK_Q * (wide > BLOCK_K ? wide : BLOCK_K));
    w->b = take(base, &at, BLOCK_Q * padded(wide));
    w->s = take(base, &at, BLOCK_Q * BLOCK_K);
    w->dp = take(base, &at, BLOCK_Q * BLOCK_K);
    w->slope = take(base, &at, f->softcap > 0 ? BLOCK_Q * BLOCK_K : 0);
    w->dk = take(base, &at, BLOCK_K * f->size);
    w->dv = take(base, &at, BLOCK_K * f->v_size);
    return at;
}

/* delta = sum of dy * y over a row: what the softmax takes off every dp. */
static void delta_rows(const Job *job, float *delta, int64_t b, int64_t h)
{
    const AttentionForm *f = &job->f;
    for (int64_t i = 0; i < f->queries; i++) {
        int64_t at = b * f->y.batch + h * f->y.head + i * f->y.row;
        vf sum = vf_zero();
        for (int64_t e = 0; e < f->v_size; e += VF_LANES) {
            int k = (int)least(VF_LANES, f->v_size - e);
            sum = vf_fma(vf_ld_n(job->dy->dtype, job->dy->data, at + e, k),
                         vf_ld_n(job->y->dtype, job->y->data, at + e, k), sum);
        }
        delta[i] = vf_hsum(sum);
    }
}

/* s: scores to probabilities; dp to the gradient of the products. */
static void grad_row(const AttentionForm *f, float *s, float *dp, const float *slope, int64_t n,
                     float lse, float delta)
{
    const vf off = vf_set1(delta), scale = vf_set1((float)f->scale);
    exp_row(s, n, lse);
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf p = vf_load_n(s + j, k);
        vf ds = p * (vf_load_n(dp + j, k) - off) * scale;
        if (f->softcap > 0) ds = ds * vf_load_n(slope + j, k);
        vf_store_n(dp + j, vf_blend(vm_eq(p, vf_zero()), vf_zero(), ds), k);
    }
}

/* Queries [i0, i0 + m) of head h against the keys [j0, j0 + n) that are packed. */
static void backward_block(const Job *job, Backward *w, int64_t b, int64_t h, int64_t i0, int64_t m,
                           int64_t j0, int64_t n)
{
    const AttentionForm *f = &job->f;
    int64_t in_group = h % (f->heads / f->kv_heads) * f->queries + i0;
    const void *q = element(job->q, b * f->q.batch + h * f->q.head + i0 * f->q.row);
    const void *dy = element(job->dy, b * f->y.batch + h * f->y.head + i0 * f->y.row);
    pack_rows(job->q->dtype, false, w->a, q, f->q.row, m, f->size);
    multiply(m, n, f->size, w->a, w->kt, w->s, BLOCK_K, false);
    pack_rows(job->dy->dtype, false, w->a, dy, f->y.row, m, f->v_size);
    multiply(m, n, f->v_size, w->a, w->vt, w->dp, BLOCK_K, false);
    for (int64_t i = 0; i < m; i++) {
        float *slope = f->softcap > 0 ? w->slope + i * BLOCK_K : NULL, *s = w->s + i * BLOCK_K;
        score_row(f, b, h, i0 + i, j0, n, s, slope);
        float lse = vf_ld1(job->lse->dtype, job->lse->data,
                           (b * f->heads + h) * f->queries + i0 + i);
        grad_row(f, s, w->dp + i * BLOCK_K, slope, n, lse, w->delta[in_group + i]);
    }
    /* rows of P^T and dS^T are keys: BLOCK_K of them at most, BLOCK_Q long */
    pack_rows(MPR_FLOAT32, true, w->a, w->s, BLOCK_K, n, m);
    pack_b(job->dy->dtype, false, w->b, dy, f->y.row, 0, f->v_size, 0, m);
    multiply(n, f->v_size, m, w->a, w->b, w->dv, f->v_size, true);
    pack_rows(MPR_FLOAT32, true, w->a, w->dp, BLOCK_K, n, m);
    pack_b(job->q->dtype, false, w->b, q, f->q.row, 0, f->size, 0, m);
    multiply(n, f->size, m, w->a, w->b, w->dk, f->size, true);
    pack_rows(MPR_FLOAT32, false, w->a, w->dp, BLOCK_K, m, n);
    multiply(m, f->size, n, w->a, w->k, w->dq + in_group * f->size, f->size, true);
}

static void backward_keys(const Job *job, Backward *w, int64_t b, int64_t kv, int64_t j0, int64_t n)
{
    const AttentionForm *f = &job->f;
    int64_t group = f->heads / f->kv_heads;
    const void *k = element(job->k, b * f->k.batch + kv * f->k.head + j0 * f->k.row);
    const void *v = element(job->v, b * f->v.batch + kv * f->v.head + j0 * f->v.row);
    memset(w->dk, 0, (size_t)(n * f->size) * sizeof(float));
    memset(w->dv, 0, (size_t)(n * f->v_size) * sizeof(float));
    pack_b(job->k->dtype, true, w->kt, k, f->k.row, 0, n, 0, f->size);
    pack_b(job->k->dtype, false, w->k, k, f->k.row, 0, f->size, 0, n);
    pack_b(job->v->dtype, true, w->vt, v, f->v.row, 0, n, 0, f->v_size);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < f->queries; i += BLOCK_Q) {
            int64_t m = least(BLOCK_Q, f->queries - i), low, high;
            block_range(f, b, i, m, &low, &high);
            if (low < j0 + n && high > j0) backward_block(job, w, b, h, i, m, j0, n);
        }
    for (int64_t j = 0; j < n && job->dk; j++)
        store_row(job->dk, b * f->k.batch + kv * f->k.head + (j0 + j) * f->k.row,
                  w->dk + j * f->size, f->size, 1);
    for (int64_t j = 0; j < n && job->dv; j++)
        store_row(job->dv, b * f->v.batch + kv * f->v.head + (j0 + j) * f->v.row,
                  w->dv + j * f->v_size, f->v_size, 1);
}

static void backward_tile(void *ctx, int64_t tile, int worker)
{
    const Job *job = ctx;
    const AttentionForm *f = &job->f;
    Backward w;
    backward_pieces(f, job->work + (size_t)worker * job->floats, &w);
    int64_t b = tile / f->kv_heads, kv = tile % f->kv_heads, group = f->heads / f->kv_heads;
    memset(w.dq, 0, (size_t)(group * f->queries * f->size) * sizeof(float));
    for (int64_t g = 0; g < group; g++)
        delta_rows(job, w.delta + g * f->queries, b, kv * group + g);
    for (int64_t j = 0; j < f->keys; j += BLOCK_K)
        backward_keys(job, &w, b, kv, j, least(BLOCK_K, f->keys - j));
    for (int64_t r = 0; r < group * f->queries && job->dq; r++)
        store_row(job->dq,
                  b * f->q.batch + (kv * group + r / f->queries) * f->q.head +
                      r % f->queries * f->q.row,
                  w.dq + r * f->size, f->size, 1);
}

static mpr_status k_attention_grad(const KernelCall *c)
{
    Backward w;
    Job job = {.f = mpri_attention_form(c->params, c->in, c->n_in),
               .q = &c->in[0],
               .k = &c->in[1],
               .v = &c->in[2],
               .dy = &c->in[7],
               .y = &c->in[8],
               .lse = &c->in[9],
               .dq = output_or_null(c, 0),
               .dk = output_or_null(c, 1),
               .dv = output_or_null(c, 2),
               .work = c->workspace};
    job.floats = backward_pieces(&job.f, job.work, &w);
    mpri_parallel_worker(c->threads, job.f.batch * job.f.kv_heads, backward_tile, &job);
    return MPR_OK;
}

static size_t backward_workspace(const KernelSig *s, int threads)
{
    AttentionForm f = mpri_attention_form(s->params, s->in, s->n_in);
    Backward w;
    return (size_t)threads * backward_pieces(&f, NULL, &w) * sizeof(float);
}

/* ---- rows ---- */

static const char *refuse(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++) {
        bool mask = k == 3 && s->in[k].dtype == MPR_BOOL;
        if (k != 6 && !mask && mpri_tensor_here(&s->in[k]) && !vf_can(s->in[k].dtype))
            return NOT_FLOAT;
    }
    if (sig_has_in(s, 4)) return "past keys";
    if (s->op == OP_Attention && (sig_has_out(s, 1) || sig_has_out(s, 2))) return "present keys";
    if (s->op == OP_Attention && sig_has_out(s, 3)) return "scores as an output";
    if (s->op == OP_AttentionGrad && sig_has_in(s, 10)) return "a gradient of the scores";
    if (s->op == OP_AttentionGrad && sig_has_out(s, 3)) return "gradient of the mask";
    if (s->op == OP_AttentionGrad && !sig_has_in(s, 7)) return "no gradient of the output";
    return NULL;
}

static double flops(const KernelSig *s)
{
    AttentionForm f = mpri_attention_form(s->params, s->in, s->n_in);
    double pairs = (double)f.batch * (double)f.heads * (double)f.queries * (double)f.keys;
    double size = (double)f.size, v = (double)f.v_size;
    return 2 * pairs * (s->op == OP_Attention ? size + v : 3 * size + 2 * v);
}

static const KernelRow rows[] = {
    {.op = OP_Attention, .name = MPRI_ROW("attention"), .isa = MPRI_ISA_ID, .fn = k_attention,
     .refuse = refuse, .workspace = forward_workspace, .flops = flops},
    {.op = OP_AttentionGrad, .name = MPRI_ROW("attentiongrad"), .isa = MPRI_ISA_ID,
     .fn = k_attention_grad, .refuse = refuse, .workspace = backward_workspace, .flops = flops},
};

const KernelTable MPRI_NAME(cpu_attention) = {rows, sizeof rows / sizeof rows[0]};
