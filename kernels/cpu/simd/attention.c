/* Attention and its gradient in blocks of queries and keys; the matrix of scores never exists as a
 * whole (Dao, "FlashAttention-2", 2023). Products go through the micro-kernel of the matrix
 * product, which also converts 16-bit storage while packing.
 *
 * Forward: a tile is one block of queries of one head; it runs over the keys with the maximum
 * and the sum of exponentials so far, and scales what it has when the maximum grows. A packed block
 * of keys and values serves all its queries; the scores of one panel of them at a time stay in the
 * L1 cache. Backward: a
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

enum {
    FORWARD_Q = 140 / GEMM_MR * GEMM_MR,
    FORWARD_K = 256,
    BLOCK_Q = 64 / GEMM_MR * GEMM_MR, /* of the backward pass */
    BLOCK_K = 128,
    SLACK = 16,
    FEW_TILES = 16, /* so many large tiles are enough for any number of threads */
};

typedef struct Job {
    AttentionForm f;
    const Tensor *q, *k, *v, *dy, *y, *lse;
    Tensor *out, *out_lse, *dq, *dk, *dv;
    int64_t blocks, block; /* of queries: how many, how long */
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

/* out = alpha a b, or added to it. Panels of b are `deep` long, the product takes the first k. */
static void multiply(int64_t m, int64_t n, int64_t k, float alpha, const float *a, const float *b,
                     int64_t deep, float *out, int64_t ld, bool add)
{
    for (int64_t j = 0; j < n; j += GEMM_NR) {
        int width = (int)least(GEMM_NR, n - j);
        for (int64_t i = 0; i < m; i += GEMM_MR) {
            int rows = (int)least(GEMM_MR, m - i);
            float *c = out + i * ld + j;
            gemm_kernels[rows - 1][width > VF_LANES](k, a + i * k, b + j * deep, add ? c : NULL, ld,
                                                     c, ld, width, alpha);
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

/* v = scaled products of query i with the keys j .. j + W - 1 becomes scores. */
VF_FN vf score(const AttentionForm *f, int64_t mask_at, int64_t j, int64_t low, int64_t high, vf v,
               float *slope)
{
    const Tensor *mask = f->mask_of;
    const vf hidden = vf_set1(-INFINITY);
    if (f->softcap > 0) {
        vf t = vf_tanh(v * vf_set1((float)(1 / f->softcap)));
        if (slope) vf_store(slope + j, vf_fnma(t, t, vf_set1(1.0f)));
        v = vf_set1((float)f->softcap) * t;
    }
    if (j < low || j + VF_LANES > high) { /* a key outside of the range in it */
        float lanes[VF_LANES];
        vf_store(lanes, v);
        for (int e = 0; e < VF_LANES; e++)
            if (j + e < low || j + e >= high) lanes[e] = -INFINITY;
        v = vf_load(lanes);
    }
    int seen = j >= high ? 0 : (int)least(VF_LANES, high - j); /* the mask may end there */
    if (mask && mask->dtype == MPR_BOOL) {
        vm keep = vm_load_bool_n((const uint8_t *)mask->data + mask_at + j, seen);
        v = vf_blend(keep, v, hidden);
    } else if (mask) {
        vf bias = vf_ld_n(mask->dtype, mask->data, mask_at + j, seen);
        vm off = vm_or(vm_eq(bias, hidden), vm_eq(v, hidden));
        v = vf_blend(off, hidden, v + bias);
    }
    return v;
}

/* Scaled products s[0 .. n) of query i with keys j0 .. j0 + n - 1 become scores, -inf where masked
 * and up to the end of the last vector. slope (may be NULL) receives the derivative of the softcap.
 * Returns the maximum. */
static float score_row(const AttentionForm *f, int64_t b, int64_t h, int64_t i, int64_t j0,
                       int64_t n, float *s, float *slope)
{
    int64_t low, high, m = b * f->mask.batch + h * f->mask.head + i * f->mask.row + j0;
    const bool plain = !f->mask_of && !(f->softcap > 0);
    vf top = vf_set1(-INFINITY);
    vm odd = vm_first(0);
    mpri_attention_range(f, b, i, &low, &high);
    low = low > j0 ? least(low - j0, n) : 0;
    high = high > j0 ? least(high - j0, n) : 0;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        vf v = vf_load(s + j);
        if (!plain || j < low || j + VF_LANES > high) {
            v = score(f, m, j, low, high, v, slope);
            vf_store(s + j, v);
        }
        odd = vm_or(odd, vm_nan(v));
        top = vf_max(top, v);
    }
    return vm_any(odd) ? NAN : vf_hmax(top);
}

/* s, whole vectors of it, becomes exp(s - shift), 0 where masked; returns the sum. */
static float exp_row(float *s, int64_t n, float shift)
{
    const vf by = vf_set1(shift);
    vf sum = vf_zero();
    if (shift != shift) { /* NaN, but not where masked */
        for (int64_t j = 0; j < n; j++) s[j] = s[j] == -INFINITY ? 0 : NAN;
        return NAN;
    }
    for (int64_t j = 0; j < n; j += VF_LANES) {
        vf e = vf_exp_share(vf_load(s + j) - by);
        vf_store(s + j, e);
        sum += e;
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
    float *q, *k, *v, *s, *p, *o, top[FORWARD_Q], sum[FORWARD_Q];
} Forward;

static size_t forward_pieces(const AttentionForm *f, float *base, Forward *w)
{
    size_t at = 0;
    w->q = take(base, &at, FORWARD_Q * f->size);
    w->k = take(base, &at, FORWARD_K * f->size);
    w->v = take(base, &at, FORWARD_K * padded(f->v_size));
    w->s = take(base, &at, GEMM_MR * FORWARD_K);
    w->p = take(base, &at, GEMM_MR * FORWARD_K);
    w->o = take(base, &at, FORWARD_Q * f->v_size);
    return at;
}

/* Where a tile lies: queries of a head of a batch item. */
typedef struct Place {
    int64_t b, h, i0, m;
} Place;

/* The panel of m queries from row r of the tile on, and a block of n keys. */
static void forward_panel(const Job *job, Forward *w, const Place *at, int64_t r, int64_t m,
                          int64_t j0, int64_t n)
{
    const AttentionForm *f = &job->f;
    int64_t low, high, seen = n;
    block_range(f, at->b, at->i0 + r, m, &low, &high);
    if (low >= j0 + n || high <= j0) return;
    if (high < j0 + n) seen = least(n, padded(high - j0));
    multiply(m, seen, f->size, (float)f->scale, w->q + r * f->size, w->k, f->size, w->s, FORWARD_K,
             false);
    for (int64_t i = 0; i < m; i++) {
        float *s = w->s + i * FORWARD_K, *top = &w->top[r + i], *sum = &w->sum[r + i];
        float now = score_row(f, at->b, at->h, at->i0 + r + i, j0, seen, s, NULL);
        now = now != now || now > *top ? now : *top;
        if (now == -INFINITY) {
            memset(s, 0, (size_t)seen * sizeof *s);
            continue;
        }
        if (now != *top) {
            float back = *top == -INFINITY ? 0 : expf(*top - now);
            if (*sum != 0) scale_row(w->o + (r + i) * f->v_size, f->v_size, back);
            *sum *= back;
            *top = now;
        }
        *sum += exp_row(s, seen, now);
    }
    pack_rows(MPR_FLOAT32, false, w->p, w->s, FORWARD_K, m, seen);
    multiply(m, f->v_size, seen, 1, w->p, w->v, n, w->o + r * f->v_size, f->v_size, true);
}

static void forward_keys(const Job *job, Forward *w, const Place *at, int64_t j0, int64_t n)
{
    const AttentionForm *f = &job->f;
    int64_t kv = at->h / (f->heads / f->kv_heads);
    const void *k = element(job->k, at->b * f->k.batch + kv * f->k.head + j0 * f->k.row);
    const void *v = element(job->v, at->b * f->v.batch + kv * f->v.head + j0 * f->v.row);
    pack_b(job->k->dtype, true, w->k, k, f->k.row, 0, n, 0, f->size);
    pack_b(job->v->dtype, false, w->v, v, f->v.row, 0, f->v_size, 0, n);
    for (int64_t r = 0; r < at->m; r += GEMM_MR)
        forward_panel(job, w, at, r, least(GEMM_MR, at->m - r), j0, n);
}

static void forward_tile(void *ctx, int64_t tile, int worker)
{
    const Job *job = ctx;
    const AttentionForm *f = &job->f;
    Forward w;
    forward_pieces(f, job->work + (size_t)worker * job->floats, &w);
    int64_t low, high, head = tile / job->blocks;
    Place p = {.b = head / f->heads, .h = head % f->heads, .i0 = tile % job->blocks * job->block};
    p.m = least(job->block, f->queries - p.i0);
    for (int64_t i = 0; i < p.m; i++) {
        w.top[i] = -INFINITY;
        w.sum[i] = 0;
    }
    memset(w.o, 0, (size_t)(p.m * f->v_size) * sizeof *w.o);
    pack_rows(job->q->dtype, false, w.q,
              element(job->q, p.b * f->q.batch + p.h * f->q.head + p.i0 * f->q.row), f->q.row, p.m,
              f->size);
    block_range(f, p.b, p.i0, p.m, &low, &high);
    for (int64_t j = low; j < high; j += FORWARD_K)
        forward_keys(job, &w, &p, j, least(FORWARD_K, high - j));
    for (int64_t i = 0; i < p.m; i++) {
        bool none = w.top[i] == -INFINITY;
        store_row(job->out, p.b * f->y.batch + p.h * f->y.head + (p.i0 + i) * f->y.row,
                  w.o + i * f->v_size, f->v_size, none ? 0 : 1 / w.sum[i]);
        if (job->out_lse)
            vf_st1(job->out_lse->dtype, job->out_lse->data,
                   head * f->queries + p.i0 + i,
                   none ? INFINITY : w.top[i] + logf(w.sum[i]));
    }
}

/* Blocks of queries of like length, whole panels; short ones where heads are few. */
static void cut_queries(Job *job)
{
    const AttentionForm *f = &job->f;
    int64_t most = f->batch * f->heads < FEW_TILES ? BLOCK_Q : FORWARD_Q;
    int64_t panels = tiles_of(f->queries, GEMM_MR);
    job->blocks = tiles_of(panels, most / GEMM_MR);
    job->block = job->blocks ? tiles_of(panels, job->blocks) * GEMM_MR : 0;
    job->blocks = job->blocks ? tiles_of(f->queries, job->block) : 0;
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
    cut_queries(&job);
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
    multiply(m, n, f->size, (float)f->scale, w->a, w->kt, f->size, w->s, BLOCK_K, false);
    pack_rows(job->dy->dtype, false, w->a, dy, f->y.row, m, f->v_size);
    multiply(m, n, f->v_size, 1, w->a, w->vt, f->v_size, w->dp, BLOCK_K, false);
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
    multiply(n, f->v_size, m, 1, w->a, w->b, m, w->dv, f->v_size, true);
    pack_rows(MPR_FLOAT32, true, w->a, w->dp, BLOCK_K, n, m);
    pack_b(job->q->dtype, false, w->b, q, f->q.row, 0, f->size, 0, m);
    multiply(n, f->size, m, 1, w->a, w->b, m, w->dk, f->size, true);
    pack_rows(MPR_FLOAT32, false, w->a, w->dp, BLOCK_K, m, n);
    multiply(m, f->size, n, 1, w->a, w->k, n, w->dq + in_group * f->size, f->size, true);
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
