/* Pools and their gradients, over one to three spatial dims. All gather: a thread per result, so there is
 * nothing to add up by atomics and the order of every sum is that of the taps.
 *
 * Windows: a thread per output goes over its taps, which come from the cache. Global pools: a block per plane.
 * Gradient of MaxPool: the winners of all windows first (4 bytes each in the workspace), then every input asks
 * the windows that see it. MaxUnpool: of two elements for one place the last stays, so the largest position is
 * found first (integer maximum, the same in any order), then every place takes its own.
 * Traffic: input and output once; 256 threads a block. */
#include "kernels/cuda/windows.cuh"

#include <math.h>

enum { POOL_THREADS = 256 };

/* MaxPool takes bytes too. */
static __device__ __forceinline__ float load_number(const void *p, int type, int64_t i)
{
    if (type == MPR_UINT8) return (float)((const uint8_t *)p)[i];
    if (type == MPR_INT8) return (float)((const int8_t *)p)[i];
    return load_float(p, type, i);
}
static __device__ __forceinline__ void store_number(void *p, int type, int64_t i, float v)
{
    if (type == MPR_UINT8) ((uint8_t *)p)[i] = (uint8_t)(v > 0 ? v : 0); /* -inf: a window in the padding */
    else if (type == MPR_INT8) ((int8_t *)p)[i] = (int8_t)(v > -128 ? v : -128);
    else store_float(p, type, i, v);
}

/* ---- largest elements ---- */

/* The first largest element, or the first NaN, of what was seen in order. */
struct Largest {
    float value;
    int at; /* -1: nothing was seen */
    __device__ Largest() : value(-INFINITY), at(-1) {}
    __device__ void see(float v, int where)
    {
        if (at >= 0 && !(v > value) && (v == v || value != value)) return;
        at = where;
        value = v;
    }
};

static __device__ __forceinline__ Largest largest(const Windows &w, const void *x, int tx, int64_t plane,
                                                  int o)
{
    Largest best;
    each_input(w, o, [&](int, int at) { best.see(load_number(x, tx, plane * w.in_n + at), at); });
    return best;
}

/* Flat position in x, counted row by row or with the first spatial dim running fastest. */
static __device__ __forceinline__ int64_t index_of(const Windows &w, int64_t plane, int at,
                                                   int column_major)
{
    if (at < 0) return -1;
    if (!column_major) return plane * w.in_n + at;
    At p = input_at(w, at);
    return plane * w.in_n + ((int64_t)p.c[2] * w.d[1].in + p.c[1]) * w.d[0].in + p.c[0];
}

__global__ void k_max_pool(Windows w, Divider by_out, int column_major, const void *x, void *y, int type,
                           int64_t *indices, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t o;
        int64_t plane = divide(by_out, (uint32_t)i, &o);
        Largest best = largest(w, x, type, plane, (int)o);
        store_number(y, type, i, best.value);
        if (indices) indices[i] = index_of(w, plane, best.at, column_major);
    }
}

__global__ void k_winners(Windows w, Divider by_out, const void *x, int tx, int *winner, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t o;
        int64_t plane = divide(by_out, (uint32_t)i, &o);
        winner[i] = largest(w, x, tx, plane, (int)o).at;
    }
}

__global__ void k_max_pool_grad(Windows w, Divider by_in, const void *dy, int td, const int *winner,
                                void *dx, int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t at;
        int64_t base = (int64_t)divide(by_in, (uint32_t)i, &at) * w.out_n;
        float sum = 0;
        each_output(w, (int)at, [&](int, int o) {
            if (winner[base + o] == (int)at) sum += load_float(dy, td, base + o);
        });
        store_float(dx, to, i, sum);
    }
}

/* ---- means ---- */

/* How many taps of the window at output o meet an element; with pads, or the padding. */
static __device__ __forceinline__ int count_axis(const WindowAxis &d, int o, int pads)
{
    int first = o * d.stride - d.begin, n = 0;
    int low = pads ? -d.begin : 0, high = d.in + (pads ? d.end : 0);
    for (int t = 0; t < d.taps; t++) {
        int i = first + t * d.dilation;
        n += i >= low && i < high;
    }
    return n;
}
/* 1 for a window that lies in the padding. */
static __device__ __forceinline__ float count_of(const Windows &w, int o, int pads)
{
    At at = output_at(w, o);
    int n = 1;
    for (int k = 0; k < WINDOW_DIMS; k++) n *= count_axis(w.d[k], at.c[k], pads);
    return n > 0 ? (float)n : 1.0f;
}

__global__ void k_average_pool(Windows w, Divider by_out, int pads, const void *x, int tx, void *y, int ty,
                               int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t o;
        int64_t base = (int64_t)divide(by_out, (uint32_t)i, &o) * w.in_n;
        float sum = 0;
        each_input(w, (int)o, [&](int, int at) { sum += load_float(x, tx, base + at); });
        store_float(y, ty, i, sum / count_of(w, (int)o, pads));
    }
}

__global__ void k_average_pool_grad(Windows w, Divider by_in, int pads, const void *dy, int td, void *dx,
                                    int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t at;
        int64_t base = (int64_t)divide(by_in, (uint32_t)i, &at) * w.out_n;
        float sum = 0;
        each_output(w, (int)at,
                    [&](int, int o) { sum += load_float(dy, td, base + o) / count_of(w, o, pads); });
        store_float(dx, to, i, sum);
    }
}

/* ---- lengths: (sum |x|^p)^(1/p), scaled by the largest |x| so that no power overflows ---- */

static __device__ __forceinline__ float power(float v, int p)
{
    return p == 1 ? v : p == 2 ? v * v : powf(v, (float)p);
}
static __device__ __forceinline__ float root(float v, int p)
{
    return p == 1 ? v : p == 2 ? sqrtf(v) : powf(v, 1.0f / (float)p);
}
static __device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }
static __device__ __forceinline__ float length_of(float top, float sum, int p)
{
    return top > 0 && !isinf(top) ? top * root(sum, p) : top;
}

__global__ void k_lp_pool(Windows w, Divider by_out, int p, const void *x, int tx, void *y, int ty,
                          int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t o;
        int64_t base = (int64_t)divide(by_out, (uint32_t)i, &o) * w.in_n;
        float top = 0, sum = 0;
        each_input(w, (int)o, [&](int, int at) { top = larger(top, fabsf(load_float(x, tx, base + at))); });
        each_input(w, (int)o,
                   [&](int, int at) { sum += power(fabsf(load_float(x, tx, base + at)) / top, p); });
        store_float(y, ty, i, length_of(top, sum, p));
    }
}

/* dx = sum of dy sign(x) (|x| / y)^(p - 1) */
__global__ void k_lp_pool_grad(Windows w, Divider by_in, int p, const void *dy, int td, const void *x,
                               int tx, const void *y, int ty, void *dx, int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t at;
        int64_t base = (int64_t)divide(by_in, (uint32_t)i, &at) * w.out_n;
        float v = load_float(x, tx, i), sign = v > 0 ? 1.0f : v < 0 ? -1.0f : v, sum = 0;
        each_output(w, (int)at, [&](int, int o) {
            float norm = load_float(y, ty, base + o);
            float slope = norm == 0 ? 0.0f : p == 1 ? sign : sign * power(fabsf(v) / norm, p - 1);
            sum += load_float(dy, td, base + o) * slope;
        });
        store_float(dx, to, i, sum);
    }
}

/* ---- the whole plane ---- */

enum Global { GLOBAL_MAX, GLOBAL_AVERAGE, GLOBAL_LP };

__global__ void k_global_pool(int kind, int p, const void *x, int tx, void *y, int ty, int64_t planes,
                              int64_t n)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t plane = blockIdx.x; plane < planes; plane += gridDim.x) {
        float v = kind == GLOBAL_MAX ? -INFINITY : 0.0f, sum = 0;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
            float e = load_float(x, tx, plane * n + j);
            if (kind == GLOBAL_AVERAGE) v += e;
            else v = max_nan(v, kind == GLOBAL_MAX ? e : fabsf(e));
        }
        v = kind == GLOBAL_AVERAGE ? block_sum<float>(v, part) / (float)(n ? n : 1) : block_max(v, part);
        if (kind == GLOBAL_LP) {
            for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
                sum += power(fabsf(load_float(x, tx, plane * n + j)) / v, p);
            v = length_of(v, block_sum<float>(sum, part), p);
        }
        if (threadIdx.x == 0) store_float(y, ty, plane, v);
    }
}

/* ---- MaxUnpool: indices are flat positions in the result ---- */

__global__ void k_unpool_owner(const void *indices, int ti, int64_t n_in, int *owner, int64_t n, int step,
                               DeviceFault *fault)
{
    for (int64_t i = grid_begin(); i < n_in; i += grid_step()) {
        int64_t at = load_int(indices, ti, i);
        if (at >= 0 && at < n) atomicMax(&owner[at], (int)i);
        else note_fault(fault, step, 1, i, at, 0, n);
    }
}

/* owner < 0: nothing. */
__global__ void k_unpool(const void *x, int tx, const int *owner, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step())
        store_float(y, ty, i, owner[i] < 0 ? 0.0f : load_float(x, tx, owner[i]));
}

__global__ void k_unpool_grad(const void *dy, int td, int64_t n_dy, const void *indices, int ti, void *dx,
                              int to, int64_t n, int step, DeviceFault *fault)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t at = load_int(indices, ti, i);
        bool inside = at >= 0 && at < n_dy;
        if (!inside) note_fault(fault, step, 1, i, at, 0, n_dy);
        store_float(dx, to, i, inside ? load_float(dy, td, at) : 0.0f);
    }
}

/* ---- host side ---- */

static Windows pool_of(const PoolWindow *p, const Tensor *x, const Tensor *y)
{
    Windows w = windows_none();
    int spatial = x->rank - 2;
    for (int k = 0; k < spatial; k++)
        windows_set(&w, spatial, k, mpri_window_dim(p, spatial, k, x->dims[k + 2], y->dims[k + 2]));
    return w;
}

#define POOL_LAUNCH(kernel, n, ...) \
    MPRI_LAUNCH(kernel, blocks_for(n, POOL_THREADS), POOL_THREADS, 0, c->queue, __VA_ARGS__, n)

static mpr_status k_max(const KernelCall *c)
{
    const MaxPoolParams *p = (const MaxPoolParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0], *indices = output_of(c, 1);
    Windows w = pool_of(&p->window, x, y);
    if (y->n)
        POOL_LAUNCH(k_max_pool, y->n, w, divider_of(w.out_n), (int)(p->storage_order == 1), x->data,
                    y->data, (int)y->dtype, (int64_t *)(indices ? indices->data : NULL));
    return MPR_OK;
}

/* Inputs dy, x. */
static mpr_status k_max_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
    Windows w = pool_of(&((const MaxPoolParams *)c->params)->window, x, dy);
    int *winner = (int *)c->workspace;
    if (!dx->n) return MPR_OK;
    if (dy->n) POOL_LAUNCH(k_winners, dy->n, w, divider_of(w.out_n), x->data, (int)x->dtype, winner);
    POOL_LAUNCH(k_max_pool_grad, dx->n, w, divider_of(w.in_n), dy->data, (int)dy->dtype,
                (const int *)winner, dx->data, (int)dx->dtype);
    return MPR_OK;
}

static mpr_status k_average(const KernelCall *c)
{
    const AveragePoolParams *p = (const AveragePoolParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Windows w = pool_of(&p->window, x, y);
    if (y->n)
        POOL_LAUNCH(k_average_pool, y->n, w, divider_of(w.out_n), (int)(p->count_include_pad == 1), x->data,
                    (int)x->dtype, y->data, (int)y->dtype);
    return MPR_OK;
}

static mpr_status k_average_grad(const KernelCall *c)
{
    const AveragePoolParams *p = (const AveragePoolParams *)c->params;
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    Windows w = pool_of(&p->window, dx, dy);
    if (dx->n)
        POOL_LAUNCH(k_average_pool_grad, dx->n, w, divider_of(w.in_n), (int)(p->count_include_pad == 1),
                    dy->data, (int)dy->dtype, dx->data, (int)dx->dtype);
    return MPR_OK;
}

static mpr_status k_lp(const KernelCall *c)
{
    const LpPoolParams *p = (const LpPoolParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Windows w = pool_of(&p->window, x, y);
    if (y->n)
        POOL_LAUNCH(k_lp_pool, y->n, w, divider_of(w.out_n), (int)p->p, x->data, (int)x->dtype, y->data,
                    (int)y->dtype);
    return MPR_OK;
}

/* Inputs dy, x, y. */
static mpr_status k_lp_grad(const KernelCall *c)
{
    const LpPoolParams *p = (const LpPoolParams *)c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1], *y = &c->in[2], *dx = &c->out[0];
    Windows w = pool_of(&p->window, x, dy);
    if (dx->n)
        POOL_LAUNCH(k_lp_pool_grad, dx->n, w, divider_of(w.in_n), (int)p->p, dy->data, (int)dy->dtype,
                    x->data, (int)x->dtype, y->data, (int)y->dtype, dx->data, (int)dx->dtype);
    return MPR_OK;
}

static mpr_status whole(const KernelCall *c, int kind, int p)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = y->n ? x->n / y->n : 0;
    if (y->n)
        MPRI_LAUNCH(k_global_pool, blocks_for(y->n, 1), n <= 256 ? 32 : POOL_THREADS, 0, c->queue, kind, p,
                    x->data, (int)x->dtype, y->data, (int)y->dtype, y->n, n);
    return MPR_OK;
}
static mpr_status k_global_max(const KernelCall *c) { return whole(c, GLOBAL_MAX, 0); }
static mpr_status k_global_average(const KernelCall *c) { return whole(c, GLOBAL_AVERAGE, 0); }
static mpr_status k_global_lp(const KernelCall *c)
{
    return whole(c, GLOBAL_LP, (int)((const GlobalLpPoolParams *)c->params)->p);
}

/* Inputs x, indices. */
static mpr_status k_unpool_call(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *indices = &c->in[1], *y = &c->out[0];
    int *owner = (int *)c->workspace;
    if (y->n)
        cudaMemsetAsync(owner, 0xff, (size_t)y->n * sizeof *owner, (cudaStream_t)c->queue);
    if (x->n)
        MPRI_LAUNCH(k_unpool_owner, blocks_for(x->n, POOL_THREADS), POOL_THREADS, 0, c->queue,
                    indices->data, (int)indices->dtype, x->n, owner, y->n, c->step_id, c->device_fault);
    if (y->n)
        POOL_LAUNCH(k_unpool, y->n, x->data, (int)x->dtype, (const int *)owner, y->data, (int)y->dtype);
    return MPR_OK;
}

/* Inputs dy, indices. */
static mpr_status k_unpool_grad_call(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *indices = &c->in[1], *dx = &c->out[0];
    if (dx->n)
        MPRI_LAUNCH(k_unpool_grad, blocks_for(dx->n, POOL_THREADS), POOL_THREADS, 0, c->queue, dy->data,
                    (int)dy->dtype, dy->n, indices->data, (int)indices->dtype, dx->data, (int)dx->dtype,
                    dx->n, c->step_id, c->device_fault);
    return MPR_OK;
}

/* ---- rows ---- */

static const char *refuse_pool(const KernelSig *s)
{
    bool bytes = s->op == OP_MaxPool && (s->in[0].dtype == MPR_UINT8 || s->in[0].dtype == MPR_INT8);
    if ((!cuda_float(s->in[0].dtype) || !cuda_float(s->out[0].dtype)) && !bytes) return CUDA_NOT_FLOAT;
    if (mpri_window_is_vast((const PoolWindow *)s->params)) return "a window or padding of more than 65536 elements";
    return refuse_windows(&s->in[0], &s->out[0]);
}
static const char *refuse_global(const KernelSig *s)
{
    return cuda_float(s->in[0].dtype) && cuda_float(s->out[0].dtype) ? NULL : CUDA_NOT_FLOAT;
}
static const char *refuse_unpool(const KernelSig *s)
{
    if (!cuda_float(s->in[0].dtype) || !cuda_index(s->in[1].dtype)) return CUDA_NOT_FLOAT;
    return s->in[0].n >= INT32_MAX || s->out[0].n >= INT32_MAX ? CUDA_TOO_LARGE : NULL;
}

static size_t winner_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)(s->op == OP_MaxUnpool ? s->out[0].n : s->in[0].n) * sizeof(int);
}

static const KernelRow rows[] = {
    CUDA_ROW(MaxPool, "maxpool", k_max, .refuse = refuse_pool),
    CUDA_ROW(MaxPoolGrad, "maxpoolgrad", k_max_grad, .refuse = refuse_pool, .workspace = winner_bytes),
    CUDA_ROW(AveragePool, "averagepool", k_average, .refuse = refuse_pool),
    CUDA_ROW(AveragePoolGrad, "averagepoolgrad", k_average_grad, .refuse = refuse_pool),
    CUDA_ROW(LpPool, "lppool", k_lp, .refuse = refuse_pool),
    CUDA_ROW(LpPoolGrad, "lppoolgrad", k_lp_grad, .refuse = refuse_pool),
    CUDA_ROW(GlobalMaxPool, "globalmaxpool", k_global_max, .refuse = refuse_global),
    CUDA_ROW(GlobalAveragePool, "globalaveragepool", k_global_average, .refuse = refuse_global),
    CUDA_ROW(GlobalLpPool, "globallppool", k_global_lp, .refuse = refuse_global),
    CUDA_ROW(MaxUnpool, "maxunpool", k_unpool_call, .refuse = refuse_unpool, .workspace = winner_bytes),
    CUDA_ROW(MaxUnpoolGrad, "maxunpoolgrad", k_unpool_grad_call, .refuse = refuse_unpool),
};
extern "C" const KernelTable mpri_cuda_pool = CUDA_TABLE(rows);
