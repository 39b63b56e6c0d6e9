/* BatchNormalization in both modes, its gradient, and the update of running statistics that are slots.
 * Statistics are per channel (dim 1), over all other dims. With xh = (x - mean) inv:
 *   dbias = sum(dy), dscale = sum(dy xh)
 *   dx = scale inv (dy - avg(dy) - xh avg(dy xh)) in training, else scale inv dy.
 *
 * A channel is cut into parts of about 8 Ki elements, one block each. Forward: a block finds the mean of its
 * part and then the sum of squares around it (the second pass reads the cache), so nothing cancels; the parts
 * are joined around the mean of all (Chan, Golub, LeVeque 1983), in double. Backward: a block sums dy and
 * dy xh. Then every element is visited once more, a block per plane, four at a time where it can be.
 * Parts follow from the shape only. Traffic: x twice forward, x and dy twice backward, the result once. */
#include "kernels/cuda/norm.cuh"

enum { BATCH_THREADS = 256, PART_ELEMENTS = 8192, MOST_PARTS = 256 };

typedef struct Channels {
    int64_t samples, channels, inner;
    int64_t n;            /* elements of a channel */
    int64_t part, parts;  /* elements of a part, how many */
} Channels;

static __device__ __forceinline__ int64_t element_of(const Channels &s, int64_t channel, int64_t i)
{
    uint32_t sample = (uint32_t)i / (uint32_t)s.inner;
    return ((int64_t)sample * s.channels + channel) * s.inner + (i - (int64_t)sample * s.inner);
}

/* means, squares: [channels, parts]. */
__global__ void k_batch_parts(Channels s, const void *x, int tx, float *means, float *squares)
{
    MPRI_SHARED(float, part, 33);
    int64_t channel = blockIdx.x, begin = blockIdx.y * s.part, end = begin + s.part;
    float sum = 0, square = 0;
    if (end > s.n) end = s.n;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
        sum += load_float(x, tx, element_of(s, channel, i));
    float mean = block_sum<float>(sum, part) / (float)(end - begin);
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float d = load_float(x, tx, element_of(s, channel, i)) - mean;
        square += d * d;
    }
    square = block_sum<float>(square, part);
    if (threadIdx.x) return;
    means[channel * s.parts + blockIdx.y] = mean;
    squares[channel * s.parts + blockIdx.y] = square;
}

typedef struct Running { /* of two vectors: means and variances */
    const void *old[2];
    void *next[2], *used[2]; /* may be NULL */
    int t_old[2], t_next[2], t_used[2];
    float keep;
    int training;
} Running;

/* One warp per channel: statistics of all parts, or the running ones; mean and var for the next kernel. */
__global__ void k_batch_join(Channels s, const float *means, const float *squares, Running r, float *mean,
                             float *var)
{
    int64_t warps = blockDim.x / 32, lane = threadIdx.x & 31;
    for (int64_t c = blockIdx.x * warps + threadIdx.x / 32; c < s.channels; c += gridDim.x * warps) {
        float used[2], old[2];
        for (int k = 0; k < 2; k++) used[k] = old[k] = load_float(r.old[k], r.t_old[k], c);
        if (r.training) {
            double sum = 0, square = 0;
            for (int64_t p = lane; p < s.parts; p += 32) {
                int64_t n = p + 1 < s.parts ? s.part : s.n - p * s.part;
                sum += (double)means[c * s.parts + p] * (double)n;
            }
            double m = warp_sum(sum) / (double)s.n;
            for (int64_t p = lane; p < s.parts; p += 32) {
                int64_t n = p + 1 < s.parts ? s.part : s.n - p * s.part;
                double d = (double)means[c * s.parts + p] - m;
                square += (double)squares[c * s.parts + p] + d * d * (double)n;
            }
            used[0] = (float)m;
            used[1] = (float)(warp_sum(square) / (double)s.n);
        }
        if (lane) continue;
        mean[c] = used[0];
        var[c] = used[1];
        for (int k = 0; k < 2; k++) {
            float next = r.keep == 1 ? old[k] : old[k] * r.keep + used[k] * (1 - r.keep);
            if (r.next[k]) store_float(r.next[k], r.t_next[k], c, next);
            if (r.used[k]) store_float(r.used[k], r.t_used[k], c, used[k]);
        }
    }
}

/* A block per plane, or per 32 Ki elements of it. */
enum { PLANE_TILE = 32768 };

template <int V>
__global__ void k_batch_apply(Channels s, const void *x, int tx, const float *mean, const float *var,
                              float epsilon, const void *scale, int ts, const void *bias, int tb, void *y,
                              int ty)
{
    int64_t begin = (int64_t)blockIdx.y * PLANE_TILE, end = begin + PLANE_TILE;
    if (end > s.inner) end = s.inner;
    for (int64_t plane = blockIdx.x; plane < s.samples * s.channels; plane += gridDim.x) {
        int64_t c = plane % s.channels, base = plane * s.inner;
        float m = mean[c], slope = load_float(scale, ts, c) / sqrtf(var[c] + epsilon), v[V];
        float b = load_float(bias, tb, c);
        for (int64_t j = begin + (int64_t)threadIdx.x * V; j < end; j += blockDim.x * V) {
            load_vec<V>(x, tx, base + j, v);
            for (int k = 0; k < V; k++) v[k] = (v[k] - m) * slope + b;
            store_vec<V>(y, ty, base + j, v);
        }
    }
}

typedef struct BatchGrad {
    const void *dy, *x, *scale, *mean, *var;
    int td, tx, ts, tm, tv;
    float epsilon;
    int training;
} BatchGrad;

static __device__ __forceinline__ float inverse_root(const BatchGrad &g, int64_t c)
{
    return 1.0f / sqrtf(load_float(g.var, g.tv, c) + g.epsilon);
}

/* dots (of dy xh), sums: [channels, parts]. */
__global__ void k_batch_grad_parts(Channels s, BatchGrad g, float *dots, float *sums)
{
    MPRI_SHARED(float, part, 33);
    int64_t channel = blockIdx.x, begin = blockIdx.y * s.part, end = begin + s.part;
    float mean = load_float(g.mean, g.tm, channel), inv = inverse_root(g, channel), sum = 0, dot = 0;
    if (end > s.n) end = s.n;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        int64_t at = element_of(s, channel, i);
        float d = load_float(g.dy, g.td, at);
        sum += d;
        dot += d * ((load_float(g.x, g.tx, at) - mean) * inv);
    }
    dot = block_sum<float>(dot, part);
    sum = block_sum<float>(sum, part);
    if (threadIdx.x) return;
    dots[channel * s.parts + blockIdx.y] = dot;
    sums[channel * s.parts + blockIdx.y] = sum;
}

/* One warp per channel; the first part's place takes the sum of all. */
__global__ void k_batch_grad_join(Channels s, float *dots, float *sums, void *dscale, int t_scale,
                                  void *dbias, int t_bias)
{
    int64_t warps = blockDim.x / 32, lane = threadIdx.x & 31;
    for (int64_t c = blockIdx.x * warps + threadIdx.x / 32; c < s.channels; c += gridDim.x * warps) {
        float dot = 0, sum = 0;
        for (int64_t p = lane; s.n && p < s.parts; p += 32) {
            dot += dots[c * s.parts + p];
            sum += sums[c * s.parts + p];
        }
        dot = warp_sum(dot);
        sum = warp_sum(sum);
        if (lane) continue;
        dots[c * s.parts] = dot;
        sums[c * s.parts] = sum;
        if (dscale) store_float(dscale, t_scale, c, dot);
        if (dbias) store_float(dbias, t_bias, c, sum);
    }
}

template <int V>
__global__ void k_batch_dx(Channels s, BatchGrad g, const float *dots, const float *sums, void *dx, int to)
{
    int64_t begin = (int64_t)blockIdx.y * PLANE_TILE, end = begin + PLANE_TILE;
    if (end > s.inner) end = s.inner;
    for (int64_t plane = blockIdx.x; plane < s.samples * s.channels; plane += gridDim.x) {
        int64_t c = plane % s.channels, base = plane * s.inner;
        float inv = inverse_root(g, c), slope = load_float(g.scale, g.ts, c) * inv, d[V], x[V];
        float mean = load_float(g.mean, g.tm, c), n = (float)s.n;
        float sum = sums[c * s.parts] / n, dot = dots[c * s.parts] / n;
        for (int64_t j = begin + (int64_t)threadIdx.x * V; j < end; j += blockDim.x * V) {
            load_vec<V>(g.dy, g.td, base + j, d);
            if (g.training) {
                load_vec<V>(g.x, g.tx, base + j, x);
                for (int k = 0; k < V; k++) d[k] = slope * (d[k] - sum - (x[k] - mean) * inv * dot);
            } else {
                for (int k = 0; k < V; k++) d[k] *= slope;
            }
            store_vec<V>(dx, to, base + j, d);
        }
    }
}

/* running = running keep + batch (1 - keep); factor: of an unbiased variance. */
__global__ void k_batch_update(void *running, int tr, const void *batch, int tb, int64_t n, double keep,
                               double factor)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        double v = (double)load_float(batch, tb, i) * factor;
        store_float(running, tr, i, (float)((double)load_float(running, tr, i) * keep + v * (1 - keep)));
    }
}

/* ---- host side ---- */

static Channels channels_of(const Tensor *x)
{
    Channels s;
    s.samples = x->rank < 2 ? x->n : x->dims[0];
    s.channels = x->rank < 2 ? 1 : x->dims[1];
    s.inner = x->rank < 2 ? 1 : span_of(x, 2, x->rank);
    s.n = s.samples * s.inner;
    s.parts = (s.n + PART_ELEMENTS - 1) / PART_ELEMENTS;
    if (s.parts > MOST_PARTS) s.parts = MOST_PARTS;
    if (s.parts < 1) s.parts = 1;
    s.part = (s.n + s.parts - 1) / s.parts;
    if (s.part) s.parts = (s.n + s.part - 1) / s.part;
    return s;
}

static dim3 planes(const Channels &s)
{
    return dim3(blocks_for(s.samples * s.channels, 1), (unsigned)((s.inner + PLANE_TILE - 1) / PLANE_TILE));
}
static int plane_threads(int64_t inner) { return inner <= 256 ? 64 : inner <= 1024 ? 128 : BATCH_THREADS; }

static unsigned warps_for(int64_t n) { return blocks_for(n, BATCH_THREADS / 32); }

/* Inputs x, scale, bias, running mean, running var; outputs y, running mean and var, mean and var that were
 * used. */
static mpr_status k_batch_norm(const KernelCall *c)
{
    const BatchNormParams *p = (const BatchNormParams *)c->params;
    const Tensor *x = &c->in[0], *scale = &c->in[1], *bias = &c->in[2];
    Tensor *y = &c->out[0];
    Channels s = channels_of(x);
    Running r = {};
    float *mean = (float *)c->workspace, *var = mean + s.channels, *means = var + s.channels,
          *squares = means + s.channels * s.parts;
    r.training = p->training_mode != 0;
    r.keep = r.training ? p->momentum : 1;
    for (int k = 0; k < 2; k++) {
        Tensor *next = output_of(c, 1 + k), *used = output_of(c, 3 + k);
        r.old[k] = c->in[3 + k].data, r.t_old[k] = (int)c->in[3 + k].dtype;
        if (next) r.next[k] = next->data, r.t_next[k] = (int)next->dtype;
        if (used) r.used[k] = used->data, r.t_used[k] = (int)used->dtype;
    }
    if (!s.channels) return MPR_OK;
    if (r.training && s.n)
        MPRI_LAUNCH(k_batch_parts, dim3((unsigned)s.channels, (unsigned)s.parts), BATCH_THREADS, 0,
                    c->queue, s, x->data, (int)x->dtype, means, squares);
    if (!s.n) s.parts = 0; /* 0 / 0 */
    MPRI_LAUNCH(k_batch_join, warps_for(s.channels), BATCH_THREADS, 0, c->queue, s, (const float *)means,
                (const float *)squares, r, mean, var);
    if (!y->n) return MPR_OK;
    if (aligned_rows(y, s.inner) && ((uintptr_t)x->data & 15) == 0)
        MPRI_LAUNCH((k_batch_apply<4>), planes(s), plane_threads(s.inner / 4), 0, c->queue, s, x->data,
                    (int)x->dtype, mean, var, p->epsilon, scale->data, (int)scale->dtype, bias->data,
                    (int)bias->dtype, y->data, (int)y->dtype);
    else
        MPRI_LAUNCH((k_batch_apply<1>), planes(s), plane_threads(s.inner), 0, c->queue, s, x->data,
                    (int)x->dtype, mean, var, p->epsilon, scale->data, (int)scale->dtype, bias->data,
                    (int)bias->dtype, y->data, (int)y->dtype);
    return MPR_OK;
}

/* Inputs dy, x, scale, mean, var; outputs dx, dscale, dbias, each optional. dx may take dy's or x's memory:
 * the sums come first. */
static mpr_status k_batch_norm_grad(const KernelCall *c)
{
    const BatchNormParams *p = (const BatchNormParams *)c->params;
    const Tensor *in = c->in;
    Tensor *dx = output_of(c, 0), *dscale = output_of(c, 1), *dbias = output_of(c, 2);
    Channels s = channels_of(&in[1]);
    BatchGrad g = {in[0].data, in[1].data, in[2].data, in[3].data, in[4].data, (int)in[0].dtype,
                   (int)in[1].dtype, (int)in[2].dtype, (int)in[3].dtype, (int)in[4].dtype, p->epsilon,
                   p->training_mode != 0};
    float *dots = (float *)c->workspace, *sums = dots + s.channels * s.parts;
    if (!s.channels) return MPR_OK;
    if (s.n)
        MPRI_LAUNCH(k_batch_grad_parts, dim3((unsigned)s.channels, (unsigned)s.parts), BATCH_THREADS, 0,
                    c->queue, s, g, dots, sums);
    MPRI_LAUNCH(k_batch_grad_join, warps_for(s.channels), BATCH_THREADS, 0, c->queue, s, dots, sums,
                dscale ? dscale->data : NULL, dscale ? (int)dscale->dtype : 0, dbias ? dbias->data : NULL,
                dbias ? (int)dbias->dtype : 0);
    if (!dx || !dx->n) return MPR_OK;
    if (aligned_rows(dx, s.inner) && (((uintptr_t)g.x | (uintptr_t)g.dy) & 15) == 0)
        MPRI_LAUNCH((k_batch_dx<4>), planes(s), plane_threads(s.inner / 4), 0, c->queue, s, g, dots, sums,
                    dx->data, (int)dx->dtype);
    else
        MPRI_LAUNCH((k_batch_dx<1>), planes(s), plane_threads(s.inner), 0, c->queue, s, g, dots, sums,
                    dx->data, (int)dx->dtype);
    return MPR_OK;
}

/* Inputs running mean, running var (both written), mean, var. A batch of one element has no unbiased
 * variance; its own stands for it. */
static mpr_status k_batch_norm_update(const KernelCall *c)
{
    const BatchNormUpdateParams *p = (const BatchNormUpdateParams *)c->params;
    double n = (double)p->count, unbiased = n > 1 ? n / (n - 1) : 1;
    for (int k = 0; k < 2; k++) {
        const Tensor *r = &c->in[k], *batch = &c->in[2 + k];
        if (r->n && p->count > 0)
            MPRI_LAUNCH(k_batch_update, blocks_for(r->n, BATCH_THREADS), BATCH_THREADS, 0, c->queue,
                        r->data, (int)r->dtype, batch->data, (int)batch->dtype, r->n, (double)p->momentum,
                        k ? unbiased : 1.0);
    }
    return MPR_OK;
}

static size_t batch_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    Channels k = channels_of(&s->in[s->op == OP_BatchNormGrad]);
    return (size_t)(2 * k.channels * (k.parts + 1)) * sizeof(float);
}

static const char *refuse_batch(const KernelSig *s)
{
    return s->in[0].n >= INT32_MAX ? CUDA_TOO_LARGE : refuse_not_float(s);
}

static const KernelRow rows[] = {
    CUDA_ROW(BatchNormalization, "batchnormalization", k_batch_norm, .refuse = refuse_batch,
             .workspace = batch_bytes),
    CUDA_ROW(BatchNormGrad, "batchnormgrad", k_batch_norm_grad, .refuse = refuse_batch,
             .workspace = batch_bytes),
    CUDA_ROW(BatchNormUpdate, "batchnormupdate", k_batch_norm_update, .refuse = refuse_not_float),
};
extern "C" const KernelTable mpri_cuda_norm_batch = CUDA_TABLE(rows);
