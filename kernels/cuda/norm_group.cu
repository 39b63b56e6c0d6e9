/* GroupNormalization, InstanceNormalization and their gradient. A group is a contiguous run of elements:
 * some channels of one sample. With xh = (x - mean) inv and g = dy scale, averages over the group:
 *   dx = inv (g - avg(g) - xh avg(g xh)); dscale = sum of dy xh, dbias = sum of dy.
 *
 * Forward: one block per group, of 32 to 512 threads by its size; mean, then squares of differences, then
 * the result, of which only the first comes from memory. Backward in three stages:
 *   1  one block per group finds mean and 1 / root again (the forward pass keeps neither)
 *   2  one block per sample and weight sums dy and dy xh of the channels that the weight counts for
 *   3  these few sums are added over samples (dscale, dbias) and, times scale, over a group (averages);
 *      then dx, four elements at a time where it can be
 * dx may take the memory of dy or x. Traffic: x three times, dy twice. */
#include "kernels/cuda/norm.cuh"

enum { GROUP_THREADS = 256 };

typedef struct GroupArgs {
    const void *x, *dy, *scale, *bias;
    int tx, td, ts, tb;
    int64_t samples, channels, inner;
    int64_t per_sample, n;         /* groups of a sample, elements of a group */
    int64_t per_scale, per_bias;   /* channels of one weight */
    float epsilon;
} GroupArgs;

template <int V>
static __device__ __forceinline__ void group_statistics(const GroupArgs &a, int64_t base,
                                                        SharedPtr<float> part, float *mean, float *inv)
{
    float sum = 0, squares = 0, v[V];
    for (int64_t j = (int64_t)threadIdx.x * V; j < a.n; j += blockDim.x * V) {
        load_vec<V>(a.x, a.tx, base + j, v);
        for (int k = 0; k < V; k++) sum += v[k];
    }
    *mean = block_sum<float>(sum, part) / (float)a.n;
    for (int64_t j = (int64_t)threadIdx.x * V; j < a.n; j += blockDim.x * V) {
        load_vec<V>(a.x, a.tx, base + j, v);
        for (int k = 0; k < V; k++) squares += (v[k] - *mean) * (v[k] - *mean);
    }
    *inv = 1.0f / sqrtf(block_sum<float>(squares, part) / (float)a.n + a.epsilon);
}

template <int V> __global__ void k_group(GroupArgs a, void *y, int ty)
{
    MPRI_SHARED(float, part, 33);
    int64_t groups = a.samples * a.per_sample, of_group = a.channels / a.per_sample;
    for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
        int64_t base = group * a.n, first = group % a.per_sample * of_group; /* channel */
        float mean, inv, v[V];
        group_statistics<V>(a, base, part, &mean, &inv);
        for (uint32_t j = threadIdx.x * V; j < a.n; j += blockDim.x * V) {
            uint32_t channel = (uint32_t)first + j / (uint32_t)a.inner;
            float slope = inv * load_float(a.scale, a.ts, channel / (uint32_t)a.per_scale);
            float bias = load_float(a.bias, a.tb, channel / (uint32_t)a.per_bias);
            load_vec<V>(a.x, a.tx, base + j, v);
            for (int k = 0; k < V; k++) v[k] = (v[k] - mean) * slope + bias;
            store_vec<V>(y, ty, base + j, v);
        }
    }
}

/* Stage 1. */
template <int V> __global__ void k_group_again(GroupArgs a, float *means, float *invs)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t group = blockIdx.x; group < a.samples * a.per_sample; group += gridDim.x) {
        float mean, inv;
        group_statistics<V>(a, group * a.n, part, &mean, &inv);
        if (threadIdx.x) continue;
        means[group] = mean;
        invs[group] = inv;
    }
}

/* Stage 2: sums of [samples, weights], dots first. */
template <int V>
__global__ void k_group_sums(GroupArgs a, const float *means, const float *invs, float *dots, float *sums)
{
    MPRI_SHARED(float, part, 33);
    int64_t weights = a.channels / a.per_scale, n = a.per_scale * a.inner, of_group = a.n / n;
    for (int64_t i = blockIdx.x; i < a.samples * weights; i += gridDim.x) {
        float mean = means[i / of_group], inv = invs[i / of_group], dot = 0, sum = 0, g[V], x[V];
        for (int64_t j = (int64_t)threadIdx.x * V; j < n; j += blockDim.x * V) {
            load_vec<V>(a.dy, a.td, i * n + j, g);
            load_vec<V>(a.x, a.tx, i * n + j, x);
            for (int k = 0; k < V; k++) {
                dot += g[k] * ((x[k] - mean) * inv);
                sum += g[k];
            }
        }
        dot = block_sum<float>(dot, part);
        sum = block_sum<float>(sum, part);
        if (threadIdx.x) continue;
        dots[i] = dot;
        sums[i] = sum;
    }
}

/* Stage 3, one warp per weight. */
__global__ void k_group_weights(const float *sums, int64_t samples, int64_t weights, void *out, int to)
{
    int64_t warps = blockDim.x / 32, lane = threadIdx.x & 31;
    for (int64_t w = blockIdx.x * warps + threadIdx.x / 32; w < weights; w += gridDim.x * warps) {
        float v = 0;
        for (int64_t s = lane; s < samples; s += 32) v += sums[s * weights + w];
        v = warp_sum(v);
        if (lane == 0) store_float(out, to, w, v);
    }
}

/* One warp per group: its averages of g xh and g. */
__global__ void k_group_averages(GroupArgs a, const float *dots, const float *sums, float *dot, float *sum)
{
    int64_t warps = blockDim.x / 32, lane = threadIdx.x & 31, groups = a.samples * a.per_sample;
    int64_t of_group = a.channels / a.per_sample / a.per_scale, weights = a.channels / a.per_scale;
    for (int64_t i = blockIdx.x * warps + threadIdx.x / 32; i < groups; i += gridDim.x * warps) {
        float d = 0, s = 0;
        for (int64_t k = lane; k < of_group; k += 32) {
            int64_t at = i * of_group + k;
            float scale = load_float(a.scale, a.ts, at % weights);
            d += dots[at] * scale;
            s += sums[at] * scale;
        }
        d = warp_sum(d);
        s = warp_sum(s);
        if (lane) continue;
        dot[i] = d / (float)a.n;
        sum[i] = s / (float)a.n;
    }
}

/* One block per channel of a sample. */
template <int V>
__global__ void k_group_dx(GroupArgs a, const float *means, const float *invs, const float *dots,
                           const float *sums, void *dx, int to)
{
    int64_t of_group = a.channels / a.per_sample;
    for (int64_t plane = blockIdx.x; plane < a.samples * a.channels; plane += gridDim.x) {
        int64_t group = plane / of_group, base = plane * a.inner;
        float mean = means[group], inv = invs[group], dot = dots[group], sum = sums[group];
        float scale = load_float(a.scale, a.ts, plane % a.channels / a.per_scale), g[V], x[V];
        for (int64_t j = (int64_t)threadIdx.x * V; j < a.inner; j += blockDim.x * V) {
            load_vec<V>(a.dy, a.td, base + j, g);
            load_vec<V>(a.x, a.tx, base + j, x);
            for (int k = 0; k < V; k++) g[k] = inv * (g[k] * scale - sum - (x[k] - mean) * inv * dot);
            store_vec<V>(dx, to, base + j, g);
        }
    }
}

/* ---- host side ---- */

/* num_groups 0: one group per channel. Dim 1 holds the channels. */
static GroupArgs shape_of(const Tensor *x, int64_t num_groups, const Tensor *scale, const Tensor *bias)
{
    GroupArgs a = {};
    a.samples = x->rank < 2 ? x->n : x->dims[0];
    a.channels = x->rank < 2 ? 1 : x->dims[1];
    a.inner = x->rank < 2 ? 1 : span_of(x, 2, x->rank);
    a.per_sample = num_groups > 0 ? num_groups : a.channels;
    a.n = a.per_sample ? a.channels / a.per_sample * a.inner : 0;
    a.per_scale = scale->n ? a.channels / scale->n : 1;
    a.per_bias = bias->n ? a.channels / bias->n : 1;
    a.x = x->data, a.tx = (int)x->dtype;
    a.scale = scale->data, a.ts = (int)scale->dtype;
    a.bias = bias->data, a.tb = (int)bias->dtype;
    return a;
}

static int threads_for(int64_t n) { return n <= 256 ? 32 : n <= 2048 ? 128 : n <= 16384 ? 256 : 512; }

static int64_t groups_of(const KernelSig *s)
{
    return s->op == OP_InstanceNormalization ? 0 : ((const GroupNormParams *)s->params)->num_groups;
}

static mpr_status normalise(const KernelCall *c, int64_t groups, float epsilon)
{
    GroupArgs a = shape_of(&c->in[0], groups, &c->in[1], &c->in[2]);
    Tensor *y = &c->out[0];
    int ty = (int)y->dtype, threads = threads_for(a.n);
    unsigned blocks = blocks_for(a.samples * a.per_sample, 1);
    a.epsilon = epsilon;
    if (!y->n) return MPR_OK;
    if (aligned_rows(y, a.inner) && ((uintptr_t)a.x & 15) == 0)
        MPRI_LAUNCH((k_group<4>), blocks, threads, 0, c->queue, a, y->data, ty);
    else
        MPRI_LAUNCH((k_group<1>), blocks, threads, 0, c->queue, a, y->data, ty);
    return MPR_OK;
}
static mpr_status k_group_norm(const KernelCall *c)
{
    const GroupNormParams *p = (const GroupNormParams *)c->params;
    return normalise(c, p->num_groups, p->epsilon);
}
static mpr_status k_instance_norm(const KernelCall *c)
{
    return normalise(c, 0, ((const InstanceNormParams *)c->params)->epsilon);
}

#define GROUP_LAUNCH(kernel, count, threads, ...)                                                     \
    do {                                                                                              \
        if (vec) MPRI_LAUNCH((kernel<4>), blocks_for(count, 1), (threads), 0, c->queue, __VA_ARGS__); \
        else MPRI_LAUNCH((kernel<1>), blocks_for(count, 1), (threads), 0, c->queue, __VA_ARGS__);     \
    } while (0)

/* Inputs dy, x, scale; outputs dx, dscale, dbias, each optional. */
static mpr_status k_group_norm_grad(const KernelCall *c)
{
    const GroupNormParams *p = (const GroupNormParams *)c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1], *scale = &c->in[2];
    Tensor *dx = output_of(c, 0);
    GroupArgs a = shape_of(x, p->num_groups, scale, scale);
    int64_t groups = a.samples * a.per_sample, weights = scale->n;
    float *mean = (float *)c->workspace, *inv = mean + groups, *dot = inv + groups, *sum = dot + groups;
    float *sums[2] = {sum + groups, sum + groups + a.samples * weights}; /* of dy xh, of dy */
    bool vec = aligned_rows(dy, a.inner) && ((uintptr_t)x->data & 15) == 0 &&
               (!dx || ((uintptr_t)dx->data & 15) == 0);
    a.dy = dy->data, a.td = (int)dy->dtype;
    a.epsilon = p->epsilon;
    if (x->n) {
        GROUP_LAUNCH(k_group_again, groups, threads_for(a.n), a, mean, inv);
        GROUP_LAUNCH(k_group_sums, a.samples * weights, threads_for(a.per_scale * a.inner), a,
                     (const float *)mean, (const float *)inv, sums[0], sums[1]);
    } else if (a.samples > 0 && weights > 0) {
        cudaMemsetAsync(sums[0], 0, (size_t)(2 * a.samples * weights) * sizeof(float),
                        (cudaStream_t)c->queue);
    }
    for (int k = 0; k < 2; k++) {
        Tensor *out = output_of(c, 1 + k);
        if (out && weights)
            MPRI_LAUNCH(k_group_weights, blocks_for(weights, GROUP_THREADS / 32), GROUP_THREADS, 0,
                        c->queue, (const float *)sums[k], a.samples, weights, out->data, (int)out->dtype);
    }
    if (!dx || !dx->n) return MPR_OK;
    MPRI_LAUNCH(k_group_averages, blocks_for(groups, GROUP_THREADS / 32), GROUP_THREADS, 0, c->queue, a,
                (const float *)sums[0], (const float *)sums[1], dot, sum);
    GROUP_LAUNCH(k_group_dx, a.samples * a.channels, threads_for(a.inner), a, (const float *)mean,
                 (const float *)inv, (const float *)dot, (const float *)sum, dx->data, (int)dx->dtype);
    return MPR_OK;
}

static size_t grad_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    GroupArgs a = shape_of(&s->in[1], groups_of(s), &s->in[2], &s->in[2]);
    return (size_t)(4 * a.samples * a.per_sample + 2 * a.samples * s->in[2].n) * sizeof(float);
}

static const char *refuse_group(const KernelSig *s)
{
    bool grad = s->op == OP_GroupNormGrad;
    const Tensor *x = &s->in[grad], *scale = &s->in[1 + grad];
    GroupArgs a = shape_of(x, groups_of(s), scale, grad ? scale : &s->in[2]);
    if (a.n >= INT32_MAX) return CUDA_TOO_LARGE;
    if (a.per_sample && scale->n % a.per_sample) return "a weight of more than one group";
    return refuse_not_float(s);
}

static const KernelRow rows[] = {
    CUDA_ROW(GroupNormalization, "groupnormalization", k_group_norm, .refuse = refuse_group),
    CUDA_ROW(InstanceNormalization, "instancenormalization", k_instance_norm, .refuse = refuse_group),
    CUDA_ROW(GroupNormGrad, "groupnormgrad", k_group_norm_grad, .refuse = refuse_group,
             .workspace = grad_bytes),
};
extern "C" const KernelTable mpri_cuda_norm_group = CUDA_TABLE(rows);
