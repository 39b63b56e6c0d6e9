/* Softmax, LogSoftmax and Hardmax along one axis, and the gradients from the saved output.
 *
 * The tensor is seen as lines [outer, n, inner].
 *   warp     inner = 1, n <= 1024: a warp per line, the line in registers. Read once, written once.
 *   block    inner = 1, longer lines: largest element and sum of exponentials in one pass (the sum is
 *            scaled when the largest grows), then the line is read again, mostly from the cache.
 *   columns  inner > 1: a thread per line, neighbours read neighbours.
 * A line of only -inf (all keys masked) gives 0, its logarithm -inf; a NaN makes all of its line NaN. */
#include "kernels/cuda/kernel.cuh"

#include <math.h>

enum { WARP_LINE = 1024, WARPS = 8, BLOCK_THREADS = 256, COLUMN_THREADS = 128 };

typedef struct Lines {
    int64_t count, n, inner;
    int log_form;
    const void *a, *b; /* x; or dy and y */
    void *out;
    int ta, tb, to;
} Lines;

/* How elements are read and written: of one type that the compiler knows, or of any. */
template <typename T> struct Typed {
    static __device__ __forceinline__ float load(const void *p, int, int64_t i)
    {
        return to_float(((const T *)p)[i]);
    }
    static __device__ __forceinline__ void store(void *p, int, int64_t i, float v)
    {
        ((T *)p)[i] = from_float<T>(v);
    }
};
struct Any {
    static __device__ __forceinline__ float load(const void *p, int t, int64_t i)
    {
        return load_float(p, t, i);
    }
    static __device__ __forceinline__ void store(void *p, int t, int64_t i, float v)
    {
        store_float(p, t, i, v);
    }
};

static __device__ __forceinline__ int64_t line_base(const Lines &l, int64_t i)
{
    return i / l.inner * l.n * l.inner + i % l.inner;
}

/* ---- forward ---- */

/* The largest element so far and the sum of exponentials relative to it. */
typedef struct Online {
    float top, sum;
} Online;

static __device__ __forceinline__ void online_add(Online *o, float v)
{
    float top = max_nan(o->top, v);
    if (top == -INFINITY) return;
    o->sum = (top == o->top ? o->sum : o->sum * expf(o->top - top)) + expf(v - top);
    o->top = top;
}

/* shift: log(sum) for the logarithm, else 1 / sum. */
static __device__ __forceinline__ float shift_of(const Lines &l, float sum)
{
    return l.log_form ? logf(sum) : 1 / sum;
}
static __device__ __forceinline__ float result(const Lines &l, float v, float top, float shift)
{
    if (top == -INFINITY) return l.log_form ? -INFINITY : 0.0f;
    return l.log_form ? v - top - shift : expf(v - top) * shift;
}

template <typename A, int PER> __global__ void k_softmax_warp(Lines l)
{
    int lane = threadIdx.x & 31;
    int64_t warp = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    for (int64_t line = warp; line < l.count; line += (int64_t)gridDim.x * WARPS) {
        int64_t base = line * l.n;
        float v[PER], top = -INFINITY, sum = 0;
        MPRI_UNROLL
        for (int k = 0; k < PER; k++) {
            int j = k * 32 + lane;
            v[k] = j < l.n ? A::load(l.a, l.ta, base + j) : -INFINITY;
            top = max_nan(top, v[k]);
        }
        top = warp_max(top);
        MPRI_UNROLL
        for (int k = 0; k < PER; k++) sum += top == -INFINITY ? 0.0f : expf(v[k] - top);
        float shift = shift_of(l, warp_sum(sum));
        MPRI_UNROLL
        for (int k = 0; k < PER; k++) {
            int j = k * 32 + lane;
            if (j < l.n) A::store(l.out, l.to, base + j, result(l, v[k], top, shift));
        }
    }
}

template <typename A> __global__ void k_softmax_block(Lines l)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t line = blockIdx.x; line < l.count; line += gridDim.x) {
        int64_t base = line * l.n;
        Online o = {-INFINITY, 0};
        for (int64_t j = threadIdx.x; j < l.n; j += blockDim.x)
            online_add(&o, A::load(l.a, l.ta, base + j));
        float top = block_max(o.top, part);
        float mine = o.top == -INFINITY ? 0.0f : o.sum * expf(o.top - top);
        float shift = shift_of(l, block_sum<float>(mine, part));
        for (int64_t j = threadIdx.x; j < l.n; j += blockDim.x)
            A::store(l.out, l.to, base + j, result(l, A::load(l.a, l.ta, base + j), top, shift));
    }
}

__global__ void k_softmax_columns(Lines l)
{
    for (int64_t i = grid_begin(); i < l.count; i += grid_step()) {
        int64_t base = line_base(l, i);
        Online o = {-INFINITY, 0};
        for (int64_t j = 0; j < l.n; j++) online_add(&o, load_float(l.a, l.ta, base + j * l.inner));
        float shift = shift_of(l, o.sum);
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = base + j * l.inner;
            store_float(l.out, l.to, at, result(l, load_float(l.a, l.ta, at), o.top, shift));
        }
    }
}

/* ---- backward: y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm ---- */

static __device__ __forceinline__ float grad_term(const Lines &l, float g, float y)
{
    return l.log_form ? g : g * y;
}
static __device__ __forceinline__ float grad_result(const Lines &l, float g, float y, float sum)
{
    return l.log_form ? g - expf(y) * sum : y * (g - sum);
}

template <typename A, int PER> __global__ void k_softmax_grad_warp(Lines l)
{
    int lane = threadIdx.x & 31;
    int64_t warp = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    for (int64_t line = warp; line < l.count; line += (int64_t)gridDim.x * WARPS) {
        int64_t base = line * l.n;
        float g[PER], y[PER], sum = 0;
        MPRI_UNROLL
        for (int k = 0; k < PER; k++) {
            int j = k * 32 + lane;
            g[k] = j < l.n ? A::load(l.a, l.ta, base + j) : 0.0f;
            y[k] = j < l.n ? A::load(l.b, l.tb, base + j) : 0.0f;
            sum += grad_term(l, g[k], y[k]);
        }
        sum = warp_sum(sum);
        MPRI_UNROLL
        for (int k = 0; k < PER; k++) {
            int j = k * 32 + lane;
            if (j < l.n) A::store(l.out, l.to, base + j, grad_result(l, g[k], y[k], sum));
        }
    }
}

template <typename A> __global__ void k_softmax_grad_block(Lines l)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t line = blockIdx.x; line < l.count; line += gridDim.x) {
        int64_t base = line * l.n;
        float sum = 0;
        for (int64_t j = base + threadIdx.x; j < base + l.n; j += blockDim.x)
            sum += grad_term(l, A::load(l.a, l.ta, j), A::load(l.b, l.tb, j));
        sum = block_sum<float>(sum, part);
        for (int64_t j = base + threadIdx.x; j < base + l.n; j += blockDim.x)
            A::store(l.out, l.to, j,
                     grad_result(l, A::load(l.a, l.ta, j), A::load(l.b, l.tb, j), sum));
    }
}

__global__ void k_softmax_grad_columns(Lines l)
{
    for (int64_t i = grid_begin(); i < l.count; i += grid_step()) {
        int64_t base = line_base(l, i);
        float sum = 0;
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = base + j * l.inner;
            sum += grad_term(l, load_float(l.a, l.ta, at), load_float(l.b, l.tb, at));
        }
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = base + j * l.inner;
            store_float(l.out, l.to, at,
                        grad_result(l, load_float(l.a, l.ta, at), load_float(l.b, l.tb, at), sum));
        }
    }
}

/* ---- hardmax: a warp per line ---- */

/* Is v at i taken rather than w at j? The first largest wins, a NaN is the largest. */
static __device__ __forceinline__ bool wins(float v, int64_t i, float w, int64_t j)
{
    bool odd = v != v, other = w != w;
    if (odd || other) return odd && (!other || i < j);
    return v > w || (v == w && i < j);
}

__global__ void k_hardmax_lines(Lines l)
{
    int lane = threadIdx.x & 31;
    int64_t warp = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    for (int64_t line = warp; line < l.count; line += (int64_t)gridDim.x * WARPS) {
        int64_t base = line_base(l, line), best = INT64_MAX;
        float top = -INFINITY;
        for (int64_t j = lane; j < l.n; j += 32) {
            float v = load_float(l.a, l.ta, base + j * l.inner);
            if (!wins(v, j, top, best)) continue;
            top = v;
            best = j;
        }
        for (int k = 16; k; k /= 2) {
            float v = __shfl_xor_sync(FULL_MASK, top, k);
            int64_t j = __shfl_xor_sync(FULL_MASK, best, k);
            if (!wins(v, j, top, best)) continue;
            top = v;
            best = j;
        }
        for (int64_t j = lane; j < l.n; j += 32)
            store_float(l.out, l.to, base + j * l.inner, j == best ? 1.0f : 0.0f);
    }
}

/* ---- launches ---- */

static Lines lines_of(const KernelCall *c, bool log_form)
{
    const SoftmaxParams *p = (const SoftmaxParams *)c->params;
    const Tensor *x = &c->in[0], *y = c->n_in > 1 ? &c->in[1] : NULL;
    Lines l = {};
    int axis = (int)(p->axis < 0 ? p->axis + x->rank : p->axis);
    l.n = x->rank ? x->dims[axis] : 1;
    l.inner = 1;
    for (int k = axis + 1; k < x->rank; k++) l.inner *= x->dims[k];
    l.count = l.n ? x->n / l.n : 0;
    l.log_form = log_form;
    l.a = x->data, l.ta = (int)x->dtype;
    if (y) l.b = y->data, l.tb = (int)y->dtype;
    l.out = c->out[0].data, l.to = (int)c->out[0].dtype;
    return l;
}

template <typename A> static void launch(const KernelCall *c, const Lines &l, bool grad)
{
    unsigned warps = blocks_for(l.count, WARPS), blocks = blocks_for(l.count, 1);
    if (l.n > WARP_LINE && grad)
        MPRI_LAUNCH((k_softmax_grad_block<A>), blocks, BLOCK_THREADS, 0, c->queue, l);
    else if (l.n > WARP_LINE)
        MPRI_LAUNCH((k_softmax_block<A>), blocks, BLOCK_THREADS, 0, c->queue, l);
    else if (l.n > 128 && grad)
        MPRI_LAUNCH((k_softmax_grad_warp<A, WARP_LINE / 32>), warps, WARPS * 32, 0, c->queue, l);
    else if (l.n > 128)
        MPRI_LAUNCH((k_softmax_warp<A, WARP_LINE / 32>), warps, WARPS * 32, 0, c->queue, l);
    else if (grad)
        MPRI_LAUNCH((k_softmax_grad_warp<A, 4>), warps, WARPS * 32, 0, c->queue, l);
    else
        MPRI_LAUNCH((k_softmax_warp<A, 4>), warps, WARPS * 32, 0, c->queue, l);
}

static mpr_status softmax(const KernelCall *c, bool log_form, bool grad)
{
    Lines l = lines_of(c, log_form);
    if (!c->out[0].n) return MPR_OK;
    if (l.inner > 1) {
        unsigned blocks = blocks_for(l.count, COLUMN_THREADS);
        if (grad) MPRI_LAUNCH(k_softmax_grad_columns, blocks, COLUMN_THREADS, 0, c->queue, l);
        else MPRI_LAUNCH(k_softmax_columns, blocks, COLUMN_THREADS, 0, c->queue, l);
    } else if (l.ta != l.to || (grad && l.tb != l.to)) {
        launch<Any>(c, l, grad);
    } else {
        with_float((DType)l.to, [&](auto zero) { launch<Typed<decltype(zero)>>(c, l, grad); });
    }
    return MPR_OK;
}

static mpr_status k_softmax(const KernelCall *c) { return softmax(c, false, false); }
static mpr_status k_log_softmax(const KernelCall *c) { return softmax(c, true, false); }
static mpr_status k_softmax_grad(const KernelCall *c) { return softmax(c, false, true); }
static mpr_status k_log_softmax_grad(const KernelCall *c) { return softmax(c, true, true); }

static mpr_status k_hardmax(const KernelCall *c)
{
    Lines l = lines_of(c, false);
    if (!c->out[0].n) return MPR_OK;
    MPRI_LAUNCH(k_hardmax_lines, blocks_for(l.count, WARPS), WARPS * 32, 0, c->queue, l);
    return MPR_OK;
}

static const char *refuse(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (!cuda_float(s->in[k].dtype)) return CUDA_NOT_FLOAT;
    return cuda_float(s->out[0].dtype) ? NULL : CUDA_NOT_FLOAT;
}

static const KernelRow rows[] = {
    CUDA_ROW(Softmax, "softmax", k_softmax, .refuse = refuse),
    CUDA_ROW(LogSoftmax, "logsoftmax", k_log_softmax, .refuse = refuse),
    CUDA_ROW(Hardmax, "hardmax", k_hardmax, .refuse = refuse),
    CUDA_ROW(SoftmaxGrad, "softmaxgrad", k_softmax_grad, .refuse = refuse),
    CUDA_ROW(LogSoftmaxGrad, "logsoftmaxgrad", k_log_softmax_grad, .refuse = refuse),
};
extern "C" const KernelTable mpri_cuda_softmax = CUDA_TABLE(rows);
