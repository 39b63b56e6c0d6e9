/* LpNormalization, MeanVarianceNormalization, LRN and the gradient of the last.
 *
 * Lp: along the last axis a block per line; along another one a thread per line, whose neighbours read
 * neighbours. The length is scaled by the largest element, so that no square overflows.
 * Mean and variance: a block per group of any axes, positions by division.
 * LRN over channels: s_c = bias + alpha / size * sum of x^2 over the window of c, which begins
 * (size - 1) / 2 channels before it; y = x s^-beta. A thread per element, the window comes from the
 * cache. Channel c lies in the window of i exactly when i is in [c - size / 2, c + (size - 1) / 2], so
 *   dx_c = dy_c s_c^-beta - 2 alpha beta / size x_c sum of dy_i x_i s_i^(-beta - 1)
 * gathers too; s of all elements lies in the workspace. Traffic: the inputs once, s twice. */
#include "kernels/cuda/lines.cuh"
#include "kernels/cuda/norm.cuh"

#include <math.h>

enum { LINE_THREADS = 256 };

/* ---- Lp ---- */

static __device__ __forceinline__ float term(float v, float top, int l1)
{
    v = fabsf(v) / (top > 0 ? top : 1);
    return l1 ? v : v * v;
}
static __device__ __forceinline__ float length_of(float sum, float top, int l1)
{
    return (l1 ? sum : sqrtf(sum)) * (top > 0 ? top : 1);
}

__global__ void k_lp_rows(Lines l, int l1, const void *x, int tx, void *y, int ty)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t line = blockIdx.x; line < l.count; line += gridDim.x) {
        int64_t base = line * l.n;
        float top = 0, sum = 0;
        for (int64_t j = threadIdx.x; j < l.n; j += blockDim.x)
            top = max_nan(top, fabsf(load_float(x, tx, base + j)));
        top = block_max(top, part);
        for (int64_t j = threadIdx.x; j < l.n; j += blockDim.x)
            sum += term(load_float(x, tx, base + j), top, l1);
        float length = length_of(block_sum<float>(sum, part), top, l1);
        for (int64_t j = threadIdx.x; j < l.n; j += blockDim.x)
            store_float(y, ty, base + j, length == 0 ? 0.0f : load_float(x, tx, base + j) / length);
    }
}

__global__ void k_lp_columns(Lines l, int l1, const void *x, int tx, void *y, int ty)
{
    for (int64_t line = grid_begin(); line < l.count; line += grid_step()) {
        int64_t base = line_base(l, line), end = base + l.n * l.inner;
        float top = 0, sum = 0;
        for (int64_t at = base; at < end; at += l.inner)
            top = max_nan(top, fabsf(load_float(x, tx, at)));
        for (int64_t at = base; at < end; at += l.inner) sum += term(load_float(x, tx, at), top, l1);
        float length = length_of(sum, top, l1);
        for (int64_t at = base; at < end; at += l.inner)
            store_float(y, ty, at, length == 0 ? 0.0f : load_float(x, tx, at) / length);
    }
}

static mpr_status k_lp(const KernelCall *c)
{
    const LpNormParams *p = (const LpNormParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Lines l = lines_of(x, p->axis);
    int l1 = p->p == 1, tx = (int)x->dtype, ty = (int)y->dtype;
    if (!y->n) return MPR_OK;
    if (l.inner == 1)
        MPRI_LAUNCH(k_lp_rows, blocks_for(l.count, 1), l.n <= 128 ? 32 : LINE_THREADS, 0, c->queue, l,
                    l1, x->data, tx, y->data, ty);
    else
        MPRI_LAUNCH(k_lp_columns, blocks_for(l.count, LINE_THREADS), LINE_THREADS, 0, c->queue, l, l1,
                    x->data, tx, y->data, ty);
    return MPR_OK;
}

/* ---- mean and variance ---- */

/* kept: first elements of the groups, folded: elements of a group. */
__global__ void k_mean_variance(const void *x, int tx, void *y, int ty, Walk kept, Walk folded,
                                int64_t groups, int64_t n)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t i = blockIdx.x; i < groups; i += gridDim.x) {
        int64_t base = walk_at(kept, 0, (uint32_t)i);
        float sum = 0, squares = 0;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            sum += load_float(x, tx, base + walk_at(folded, 0, (uint32_t)j));
        float mean = block_sum<float>(sum, part) / (float)n;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
            float d = load_float(x, tx, base + walk_at(folded, 0, (uint32_t)j)) - mean;
            squares += d * d;
        }
        float divisor = sqrtf(block_sum<float>(squares, part) / (float)n) + MPRI_MEAN_VARIANCE_EPSILON;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
            int64_t at = base + walk_at(folded, 0, (uint32_t)j);
            store_float(y, ty, at, (load_float(x, tx, at) - mean) / divisor);
        }
    }
}

/* The dims of x that `axes` has, or has not; *n: elements of them. */
static Walk walk_of_axes(const Tensor *x, uint32_t axes, bool wanted, int64_t *n)
{
    Walk w = {};
    *n = 1;
    for (int k = 0; k < x->rank; k++) {
        if ((bool)(axes >> k & 1) != wanted) continue;
        w.dims[w.rank] = (uint32_t)x->dims[k];
        w.stride[0][w.rank++] = (uint32_t)span_of(x, k + 1, x->rank);
        *n *= x->dims[k];
    }
    if (w.rank == 0) w.rank = 1, w.dims[0] = 1;
    return w;
}

static mpr_status k_mean_var(const KernelCall *c)
{
    const MeanVarianceParams *p = (const MeanVarianceParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    uint32_t axes = p->axes.n ? 0 : 1 << 0 | 1 << 2 | 1 << 3;
    int64_t groups, n;
    for (int64_t i = 0; i < p->axes.n; i++) {
        int64_t a = p->axes.v[i];
        axes |= 1u << (a < 0 ? a + x->rank : a);
    }
    Walk kept = walk_of_axes(x, axes, false, &groups), folded = walk_of_axes(x, axes, true, &n);
    if (y->n)
        MPRI_LAUNCH(k_mean_variance, blocks_for(groups, 1), LINE_THREADS, 0, c->queue, x->data,
                    (int)x->dtype, y->data, (int)y->dtype, kept, folded, groups, n);
    return MPR_OK;
}

/* ---- LRN ---- */

typedef struct Lrn {
    uint32_t channels, inner;
    int size;
    float bias, factor, beta; /* factor = alpha / size */
} Lrn;

/* Channels [from, to) of the window that begins `before` ahead of channel c. */
static __device__ __forceinline__ void window(const Lrn &p, int c, int before, int *from, int *to)
{
    *from = c - before;
    *to = *from + p.size;
    if (*from < 0) *from = 0;
    if (*to > (int)p.channels) *to = (int)p.channels;
}

static __device__ __forceinline__ float scale_at(const Lrn &p, const void *x, int tx, int64_t i)
{
    int c = (int)((uint32_t)i / p.inner % p.channels), from, to;
    float sum = 0;
    window(p, c, (p.size - 1) / 2, &from, &to);
    for (int k = from; k < to; k++) {
        float v = load_float(x, tx, i + (int64_t)(k - c) * p.inner);
        sum += v * v;
    }
    return p.bias + p.factor * sum;
}

__global__ void k_lrn(Lrn p, const void *x, int tx, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step())
        store_float(y, ty, i, load_float(x, tx, i) * powf(scale_at(p, x, tx, i), -p.beta));
}

__global__ void k_lrn_scale(Lrn p, const void *x, int tx, float *s, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) s[i] = scale_at(p, x, tx, i);
}

__global__ void k_lrn_grad(Lrn p, const void *dy, int td, const void *x, int tx, const float *s,
                           void *dx, int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int c = (int)((uint32_t)i / p.inner % p.channels), first, end;
        float sum = 0;
        window(p, c, p.size / 2, &first, &end);
        for (int k = first; k < end; k++) {
            int64_t near = i + (int64_t)(k - c) * p.inner;
            sum += load_float(dy, td, near) * load_float(x, tx, near) * powf(s[near], -p.beta - 1);
        }
        float v = load_float(dy, td, i) * powf(s[i], -p.beta);
        store_float(dx, to, i, v - 2 * p.factor * p.beta * load_float(x, tx, i) * sum);
    }
}

static Lrn lrn_of(const void *params, const Tensor *x)
{
    const LrnParams *p = (const LrnParams *)params;
    return Lrn{(uint32_t)x->dims[1], (uint32_t)span_of(x, 2, x->rank), (int)p->size, p->bias,
               p->alpha / (float)p->size, p->beta};
}

static mpr_status k_lrn_call(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n)
        MPRI_LAUNCH(k_lrn, blocks_for(y->n, LINE_THREADS), LINE_THREADS, 0, c->queue,
                    lrn_of(c->params, x), x->data, (int)x->dtype, y->data, (int)y->dtype, y->n);
    return MPR_OK;
}

/* Inputs dy, x. */
static mpr_status k_lrn_grad_call(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
    unsigned blocks = blocks_for(dx->n, LINE_THREADS);
    float *s = (float *)c->workspace;
    if (!dx->n) return MPR_OK;
    Lrn p = lrn_of(c->params, x);
    MPRI_LAUNCH(k_lrn_scale, blocks, LINE_THREADS, 0, c->queue, p, x->data, (int)x->dtype, s, x->n);
    MPRI_LAUNCH(k_lrn_grad, blocks, LINE_THREADS, 0, c->queue, p, dy->data, (int)dy->dtype, x->data,
                (int)x->dtype, (const float *)s, dx->data, (int)dx->dtype, dx->n);
    return MPR_OK;
}

static size_t scale_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)s->in[1].n * sizeof(float);
}

static const char *refuse_small(const KernelSig *s)
{
    return s->out[0].n >= INT32_MAX ? CUDA_TOO_LARGE : refuse_not_float(s);
}

static const KernelRow rows[] = {
    CUDA_ROW(LpNormalization, "lpnormalization", k_lp, .refuse = refuse_not_float),
    CUDA_ROW(MeanVarianceNormalization, "meanvariancenormalization", k_mean_var,
             .refuse = refuse_small),
    CUDA_ROW(LRN, "lrn", k_lrn_call, .refuse = refuse_small),
    CUDA_ROW(LrnGrad, "lrngrad", k_lrn_grad_call, .refuse = refuse_small, .workspace = scale_bytes),
};
extern "C" const KernelTable mpri_cuda_norm_lp = CUDA_TABLE(rows);
