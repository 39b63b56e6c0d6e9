/* What attention and its gradient share: operands as rows of heads, tiles in shared memory, the two
 * products of tiles, the score of a pair of query and key.
 *
 * A block has 16 x 8 threads. A tile of `rows` has 16 R of them, R to a thread (thread group y has rows
 * y R …); a tile of `columns` has 32, four to a thread (lane x has columns 4 x …). A warp so has rows of
 * its own, and sums over the columns of a row are sums over 8 lanes. Rows are padded with zeros to D
 * elements and kept as float in packs of four; pack c of row r lies at c ^ (r / 4 % 8), so that the
 * eight lanes find their columns in different banks. */
#ifndef MPRI_CUDA_ATTENTION_CUH
#define MPRI_CUDA_ATTENTION_CUH

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/mma.cuh"

#include <math.h>

extern "C" {
#include "kernels/attention.h"
}

constexpr int TILE_THREADS = 128, TILE_COLUMNS = 32, TILE_LANES = 8, MOST_HEAD = 128;

typedef Pack<float, 4> F4;

typedef struct Operand { /* heads of a tensor */
    void *p;
    int type, vec; /* elements that can be moved at once wherever rows begin: 8, 4, or 0 for one by one */
    HeadSteps s;
} Operand;

typedef struct Attention {
    AttentionForm f;
    Operand q, k, v, past_k, past_v, dy, y;
    Operand dq, dk, dv, dpast_k, dpast_v;
    const void *mask, *lengths, *dscores, *lse;
    int mask_type, lengths_type, dscores_type, lse_type;
    int mode; /* which scores are an output */
    float scale, softcap;
    float *delta; /* of every row: what the softmax takes off each dp */
} Attention;

/* Rows of one head; those before `past` are in the old tensor. */
typedef struct Rows {
    const Operand *now, *old;
    int64_t at_now, at_old;
    int past, n; /* elements of a row */
} Rows;

static __device__ __forceinline__ int64_t head_at(const Operand &x, int64_t b, int64_t h)
{
    return b * x.s.batch + h * x.s.head;
}
static __device__ __forceinline__ Rows rows_of(const Operand &x, int64_t b, int64_t h, int64_t n)
{
    Rows r = {&x, &x, head_at(x, b, h), 0, 0, (int)n};
    return r;
}
static __device__ __forceinline__ Rows keys_of(const Attention &a, bool value, int64_t b, int64_t h)
{
    const Operand &now = value ? a.v : a.k, &old = value ? a.past_v : a.past_k;
    Rows r = {&now, &old, head_at(now, b, h), head_at(old, b, h), (int)a.f.past,
              (int)(value ? a.f.v_size : a.f.size)};
    return r;
}

/* ---- four elements ---- */

template <typename T> static __device__ __forceinline__ F4 load_typed(const T *p, bool vec, int n)
{
    F4 r = {{0, 0, 0, 0}};
    if (vec) {
        Pack<T, 4> v = *(const Pack<T, 4> *)p;
        MPRI_UNROLL
        for (int k = 0; k < 4; k++) r.v[k] = to_float(v.v[k]);
    } else {
        MPRI_UNROLL
        for (int k = 0; k < 4; k++)
            if (k < n) r.v[k] = to_float(p[k]);
    }
    return r;
}

/* Elements 4 c … of row i; zeros behind its end. */
static __device__ __forceinline__ F4 load_pack(const Rows &x, int i, int c)
{
    bool old = i < x.past;
    const Operand &o = old ? *x.old : *x.now;
    int64_t at = (old ? x.at_old + i * o.s.row : x.at_now + (i - x.past) * o.s.row) + c * 4;
    int n = x.n - c * 4;
    if (o.type == MPR_FLOAT32) return load_typed((const float *)o.p + at, o.vec, n);
    if (o.type == MPR_FLOAT16) return load_typed((const f16 *)o.p + at, o.vec, n);
    return load_typed((const bf16 *)o.p + at, o.vec, n);
}

template <typename T> static __device__ __forceinline__ void store_typed(T *p, bool vec, int n, F4 r)
{
    if (vec) {
        Pack<T, 4> v;
        MPRI_UNROLL
        for (int k = 0; k < 4; k++) v.v[k] = from_float<T>(r.v[k]);
        *(Pack<T, 4> *)p = v;
    } else {
        MPRI_UNROLL
        for (int k = 0; k < 4; k++)
            if (k < n) p[k] = from_float<T>(r.v[k]);
    }
}

/* n: elements of the row from `at` on. */
static __device__ __forceinline__ void store_pack(const Operand &o, int64_t at, int n, F4 v)
{
    if (n <= 0) return;
    if (o.type == MPR_FLOAT32) store_typed((float *)o.p + at, o.vec, n, v);
    else if (o.type == MPR_FLOAT16) store_typed((f16 *)o.p + at, o.vec, n, v);
    else store_typed((bf16 *)o.p + at, o.vec, n, v);
}

/* ---- tiles ---- */

static __device__ __forceinline__ int tile_y() { return (int)threadIdx.x / TILE_LANES; }
static __device__ __forceinline__ int tile_x() { return (int)threadIdx.x % TILE_LANES; }

template <int D4> static __device__ __forceinline__ int tile_at(int row, int c)
{
    return row * D4 + (c ^ (row >> 2 & 7));
}

/* Rows [first, first + n_rows), zeros from `end` on. Returns whether an element is not finite. */
template <int D4>
static __device__ __forceinline__ int load_tile(SharedPtr<F4> tile, int n_rows, const Rows &x, int first,
                                                int end)
{
    int odd = 0;
    for (int t = threadIdx.x; t < n_rows * D4; t += TILE_THREADS) {
        int r = t / D4, c = t % D4;
        F4 v = {{0, 0, 0, 0}};
        if (first + r < end && c * 4 < x.n) v = load_pack(x, first + r, c);
        odd |= 0 * v.v[0] + 0 * v.v[1] + 0 * v.v[2] + 0 * v.v[3] != 0;
        tile[tile_at<D4>(r, c)] = v;
    }
    return odd;
}

/* s = rows times columns over the first n4 packs. */
template <int D4, int R>
static __device__ __forceinline__ void tile_product(float (&s)[R][4], SharedPtr<F4> rows,
                                                    SharedPtr<F4> columns, int n4)
{
    int y = tile_y() * R, x = tile_x() * 4;
    MPRI_UNROLL
    for (int r = 0; r < R; r++) s[r][0] = s[r][1] = s[r][2] = s[r][3] = 0;
    for (int d = 0; d < n4; d++) {
        F4 a[R], b[4];
        MPRI_UNROLL
        for (int r = 0; r < R; r++) a[r] = rows[tile_at<D4>(y + r, d)];
        MPRI_UNROLL
        for (int c = 0; c < 4; c++) b[c] = columns[tile_at<D4>(x + c, d)];
        MPRI_UNROLL
        for (int r = 0; r < R; r++) {
            MPRI_UNROLL
            for (int c = 0; c < 4; c++) {
                MPRI_UNROLL
                for (int k = 0; k < 4; k++) s[r][c] += a[r].v[k] * b[c].v[k];
            }
        }
    }
}

/* Weights [rows][32] of a tile in shared memory; a warp writes and reads rows of its own. */
template <int R>
static __device__ __forceinline__ void store_weights(SharedPtr<F4> w, const float (&s)[R][4])
{
    int y = tile_y() * R, x = tile_x();
    MPRI_UNROLL
    for (int r = 0; r < R; r++) {
        F4 v = {{s[r][0], s[r][1], s[r][2], s[r][3]}};
        w[(y + r) * TILE_LANES + x] = v;
    }
}

/* o[rows][D] += weights times the tile of columns; lane x has packs x, x + 8, …. Skip: a weight of 0
 * takes nothing from its column, where that is infinite or NaN. */
template <int D4, int R, bool Skip>
static __device__ __forceinline__ void weigh_all(F4 (&o)[R][D4 / 8], SharedPtr<F4> weights,
                                                 SharedPtr<F4> columns, int n4)
{
    int y = tile_y() * R, x = tile_x();
    for (int j = 0; j < TILE_COLUMNS / 4; j++) {
        F4 w[R];
        MPRI_UNROLL
        for (int r = 0; r < R; r++) w[r] = weights[(y + r) * TILE_LANES + j];
        MPRI_UNROLL
        for (int k = 0; k < 4; k++) {
            MPRI_UNROLL
            for (int c = 0; c < D4 / 8; c++) {
                if (c * 8 >= n4) continue;
                F4 v = columns[tile_at<D4>(j * 4 + k, c * 8 + x)];
                MPRI_UNROLL
                for (int r = 0; r < R; r++) {
                    MPRI_UNROLL
                    for (int e = 0; e < 4; e++)
                        if (!Skip || w[r].v[k] != 0) o[r][c].v[e] += w[r].v[k] * v.v[e];
                }
            }
        }
    }
}
template <int D4, int R>
static __device__ __forceinline__ void weigh(F4 (&o)[R][D4 / 8], SharedPtr<F4> weights,
                                             SharedPtr<F4> columns, int n4, bool skip)
{
    if (skip) weigh_all<D4, R, true>(o, weights, columns, n4);
    else weigh_all<D4, R, false>(o, weights, columns, n4);
}

template <int D4, int R> static __device__ __forceinline__ void clear(F4 (&o)[R][D4 / 8])
{
    MPRI_UNROLL
    for (int r = 0; r < R; r++) {
        MPRI_UNROLL
        for (int c = 0; c < D4 / 8; c++) o[r][c] = F4{{0, 0, 0, 0}};
    }
}

/* o times `by` to a row of an operand. */
template <int D4>
static __device__ __forceinline__ void store_row(const Operand &out, int64_t at, int n,
                                                 const F4 (&o)[D4 / 8], float by)
{
    MPRI_UNROLL
    for (int c = 0; c < D4 / 8; c++) {
        int e = (c * 8 + tile_x()) * 4;
        F4 v = o[c];
        MPRI_UNROLL
        for (int k = 0; k < 4; k++) v.v[k] = by == 0 ? 0.0f : v.v[k] * by;
        store_pack(out, at + e, n - e, v);
    }
}

/* ---- scores ---- */

typedef struct Head { /* where the rows of a query head begin in the mask and among all rows */
    int64_t mask, row;
} Head;

typedef struct Seen { /* query i and the keys that it may see */
    int i, low, high;
} Seen;

static __device__ __forceinline__ int64_t keys_that_count(const Attention &a, int64_t b)
{
    return a.lengths ? load_int(a.lengths, a.lengths_type, b) : a.f.keys;
}

static __device__ __forceinline__ Head head_of(const Attention &a, int64_t b, int64_t h)
{
    return Head{b * a.f.mask.batch + h * a.f.mask.head, (b * a.f.heads + h) * a.f.queries};
}

/* A query behind the last sees nothing. */
static __device__ __forceinline__ Seen seen_by(const Attention &a, int64_t i, int64_t length)
{
    int64_t low = 0, high = 0;
    if (i < a.f.queries) mpri_attention_span(&a.f, length, i, &low, &high);
    return Seen{(int)i, (int)low, (int)high};
}

/* Keys [*low, *high) that some of the queries [i0, i1) may see: both ends grow with the query. */
static __device__ __forceinline__ void seen_by_all(const Attention &a, int64_t i0, int64_t i1,
                                                   int64_t length, int *low, int *high)
{
    int64_t l, h, none;
    if (i1 > a.f.queries) i1 = a.f.queries;
    mpri_attention_span(&a.f, length, i0, &l, &none);
    mpri_attention_span(&a.f, length, i1 - 1, &none, &h);
    *low = (int)l;
    *high = (int)(h < a.f.keys ? h : a.f.keys); /* an empty range may begin behind the keys */
}

static __device__ __forceinline__ float capped(const Attention &a, float raw, float *slope)
{
    if (!(a.softcap > 0)) return raw;
    float t = tanhf(raw / a.softcap);
    *slope = 1 - t * t;
    return a.softcap * t;
}

/* Score of the product `raw` with key j; -inf by choice where it is not seen. */
static __device__ __forceinline__ float score_of(const Attention &a, const Head &h, const Seen &s, int j,
                                                 float raw, float *slope)
{
    float v = capped(a, raw, slope);
    if (j < s.low || j >= s.high) return -INFINITY;
    if (!a.mask) return v;
    int64_t at = h.mask + s.i * a.f.mask.row + j;
    if (a.mask_type == MPR_BOOL) return ((const uint8_t *)a.mask)[at] ? v : -INFINITY;
    float bias = load_float(a.mask, a.mask_type, at);
    return bias == -INFINITY ? bias : v + bias;
}

/* exp(score - shift), 0 where nothing is seen, whatever the shift. */
static __device__ __forceinline__ float share_of(float score, float shift)
{
    return score == -INFINITY ? 0.0f : expf(score - shift);
}

/* ---- the gradient of one pair of query and key ---- */

typedef struct Query { /* what a query brings to each of its pairs */
    Seen seen;
    float lse, delta;
} Query;

static __device__ __forceinline__ Query query_of(const Attention &a, const Head &h, int64_t i,
                                                 int64_t length)
{
    Query q = {seen_by(a, i, length), INFINITY, 0};
    if (i >= a.f.queries) return q;
    q.lse = load_float(a.lse, a.lse_type, h.row + i);
    q.delta = a.delta[h.row + i];
    return q;
}

/* Cotangent of the matrix of scores, where that is an output. */
static __device__ __forceinline__ float direct_of(const Attention &a, int64_t row, int j)
{
    return a.dscores ? load_float(a.dscores, a.dscores_type, row * a.f.keys + j) : 0.0f;
}

/* s: the product of q and k, becomes the probability; d: dp, becomes the gradient of that product.
 * Returns the gradient of the mask. */
static __device__ __forceinline__ float pair_grad(const Attention &a, const Head &h, const Query &q,
                                                  int j, float *s, float *d)
{
    bool there = q.seen.i < a.f.queries && j < a.f.keys;
    float slope = 1, ds = 0, direct = there ? direct_of(a, h.row + q.seen.i, j) : 0.0f;
    float score = there ? score_of(a, h, q.seen, j, *s * a.scale, &slope) : -INFINITY;
    float p = share_of(score, q.lse), dp = a.mode == 3 ? *d + direct : *d;
    if (p != 0) ds = p * (dp - q.delta);
    if (a.mode == 2 && score != -INFINITY) ds += direct;
    float at_mask = ds;
    if (a.mode == 1) ds += direct;
    if (ds != 0) ds *= slope;
    if (a.mode == 0) ds += direct;
    *s = p;
    *d = ds * a.scale;
    return at_mask;
}

/* ---- host side ---- */

static inline Operand operand_of(const Tensor *t, HeadSteps s, int64_t n)
{
    Operand o = {};
    if (!t) return o;
    o.p = t->data, o.type = (int)t->dtype, o.s = s;
    for (int v = 8; v >= 4 && !o.vec; v /= 2)
        if (n % v == 0 && s.batch % v == 0 && s.head % v == 0 && s.row % v == 0 &&
            (uintptr_t)t->data % (v * mpri_dtype_size(t->dtype)) == 0)
            o.vec = v;
    return o;
}

/* The first seven inputs of Attention and AttentionGrad. */
static inline Attention attention_of(const KernelCall *c)
{
    const AttentionParams *p = (const AttentionParams *)c->params;
    const Tensor *mask = input_of(c, 3), *lengths = input_of(c, 6);
    Attention a = {};
    a.f = mpri_attention_form(p, c->in, c->n_in);
    a.q = operand_of(&c->in[0], a.f.q, a.f.size);
    a.k = operand_of(&c->in[1], a.f.k, a.f.size);
    a.v = operand_of(&c->in[2], a.f.v, a.f.v_size);
    a.past_k = operand_of(input_of(c, 4), a.f.past_k, a.f.size);
    a.past_v = operand_of(input_of(c, 5), a.f.past_v, a.f.v_size);
    if (mask) a.mask = mask->data, a.mask_type = (int)mask->dtype;
    if (lengths) a.lengths = lengths->data, a.lengths_type = (int)lengths->dtype;
    a.scale = (float)a.f.scale;
    a.softcap = (float)a.f.softcap;
    a.mode = (int)p->scores_mode;
    return a;
}

/* Tensor cores multiply 16-bit numbers of one type. */
static inline const char *refuse_mma(const KernelSig *s)
{
    DType t = s->in[0].dtype;
    if (s->capability < MMA_CAPABILITY) return "tensor cores of compute capability 8.0 are needed";
    if (t != MPR_FLOAT16 && t != MPR_BFLOAT16) return "tensor cores: only float16 and bfloat16";
    for (int k = 0; k < s->n_in && k < 8; k++)
        if (k != 3 && k != 6 && mpri_tensor_here(&s->in[k]) && s->in[k].dtype != t)
            return "tensor cores: operands of different types";
    return NULL;
}

static inline const char *refuse_attention(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++) {
        bool mask = k == 3 && s->in[k].dtype == MPR_BOOL;
        if (k != 6 && !mask && mpri_tensor_here(&s->in[k]) && !cuda_float(s->in[k].dtype))
            return CUDA_NOT_FLOAT;
    }
    for (int k = 0; k < s->n_out; k++)
        if (mpri_tensor_here(&s->out[k]) && !cuda_float(s->out[k].dtype)) return CUDA_NOT_FLOAT;
    AttentionForm f = mpri_attention_form((const AttentionParams *)s->params, s->in, s->n_in);
    if (f.size > MOST_HEAD || f.v_size > MOST_HEAD) return "heads of more than 128 elements";
    if (f.keys > INT32_MAX - 64 || f.queries > INT32_MAX - 64) return "2^31 tokens or more";
    return NULL;
}

/* Which gradients are wanted, and not empty. */
static inline bool gives_dq(const Attention &a)
{
    return a.f.batch * a.f.heads * a.f.queries > 0 && a.dq.p && a.f.size;
}
static inline bool gives_dkv(const Attention &a)
{
    return a.f.batch * a.f.kv_heads * a.f.keys > 0 && (a.dk.p || a.dv.p || a.dpast_k.p || a.dpast_v.p);
}

/* In attention_mma.cu and attention_mma_grad.cu: the same by tensor cores. */
void mpri_cuda_attention_mma(const KernelCall *c, const Attention &a, float *lse);
void mpri_cuda_attention_mma_grad(const KernelCall *c, const Attention &a);

static inline unsigned cut(int64_t n, int64_t by) { return (unsigned)((n + by - 1) / by); }

/* Multiply-adds of attention, for the plan. */
static inline double pairs_of(const KernelSig *s, AttentionForm *f)
{
    *f = mpri_attention_form((const AttentionParams *)s->params, s->in, s->n_in);
    return (double)f->batch * (double)f->heads * (double)f->queries * (double)f->keys;
}

/* More than 48 KiB of shared memory must be asked for; false where the GPU has less. */
template <typename K> static inline bool shared_fits(K kernel, size_t bytes)
{
    if (bytes <= 48 << 10) return true;
    bool fits = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)bytes) == cudaSuccess;
    if (!fits) (void)cudaGetLastError();
    return fits;
}

#endif
