/* What every family of CUDA kernels is written with: launches, shared memory, element types, sums over
 * a warp and a block. The same source is compiled by nvcc for GPUs and, for the tests, by a C++
 * compiler against tests/cuda_on_cpu/shim.h; so kernels use the macros of this page instead of <<<>>> and
 * __shared__.
 *
 *   MPRI_LAUNCH(kernel, grid, block, shared_bytes, call->queue, arguments…)
 *   MPRI_LAUNCH((kernel<float, 4>), …)        a template with several parameters in parentheses
 *   MPRI_SHARED(float, part, 32);             static shared memory, one dimension; indexing is checked
 *   MPRI_SHARED_DYNAMIC(float, row);          the launch's shared_bytes
 *   SharedPtr<float>                          what a function takes for them
 *   MPRI_UNROLL for (…)                       wholly unrolled: arrays that it indexes stay in registers
 *   MPRI_ROLLED for (…)                       not unrolled: what is seldom run stays short
 *
 * Values are computed in float, whatever their storage, and rounded once at the store. Sums have a
 * fixed tree that depends on sizes only: the same bits in every run. No atomics on floats.
 * Blocks have a multiple of 32 threads; warp functions take the full mask. */
#ifndef MPRI_CUDA_KERNEL_CUH
#define MPRI_CUDA_KERNEL_CUH

#if !defined(MPR_CUDA_ON_CPU) /* there the compiler is told to read the shim first */
#include <cuda_runtime.h>
#define MPRI_LAUNCH(kernel, grid, block, shared, stream, ...) \
    kernel<<<(grid), (block), (shared), (cudaStream_t)(stream)>>>(__VA_ARGS__)
#define MPRI_SHARED(T, name, n) __shared__ T name[n]
#define MPRI_SHARED_DYNAMIC(T, name)                                   \
    extern __shared__ __align__(16) unsigned char mpri_dynamic_shared[]; \
    T *name = reinterpret_cast<T *>(mpri_dynamic_shared)
template <typename T> using SharedPtr = T *;
#define MPRI_UNROLL _Pragma("unroll")
#define MPRI_ROLLED _Pragma("unroll 1")
#else
#define MPRI_UNROLL
#define MPRI_ROLLED
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

extern "C" {
#include "kernels/cuda/cuda.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"
}

#define FULL_MASK 0xffffffffu
typedef __half f16;
typedef __nv_bfloat16 bf16;

/* ---- element types ---- */

static __device__ __forceinline__ float to_float(float v) { return v; }
static __device__ __forceinline__ float to_float(f16 v) { return __half2float(v); }
static __device__ __forceinline__ float to_float(bf16 v) { return __bfloat162float(v); }

template <typename T> static __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ f16 from_float<f16>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float v) { return __float2bfloat16_rn(v); }

/* Element i of a buffer whose type is known at run time only: all threads take one branch. */
static __device__ __forceinline__ float load_float(const void *p, int type, int64_t i)
{
    if (type == MPR_FLOAT32) return ((const float *)p)[i];
    if (type == MPR_FLOAT16) return to_float(((const f16 *)p)[i]);
    return to_float(((const bf16 *)p)[i]);
}

static __device__ __forceinline__ void store_float(void *p, int type, int64_t i, float v)
{
    if (type == MPR_FLOAT32) ((float *)p)[i] = v;
    else if (type == MPR_FLOAT16) ((f16 *)p)[i] = from_float<f16>(v);
    else ((bf16 *)p)[i] = from_float<bf16>(v);
}

static __device__ __forceinline__ int64_t load_int(const void *p, int type, int64_t i)
{
    return type == MPR_INT64 ? ((const int64_t *)p)[i] : (int64_t)((const int32_t *)p)[i];
}

/* N elements that are loaded and stored together: 16 bytes where N * sizeof(T) is 16. */
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T v[N];
};

/* ---- host side: what a row accepts ---- */

static inline bool cuda_float(DType t)
{
    return t == MPR_FLOAT32 || t == MPR_FLOAT16 || t == MPR_BFLOAT16;
}
#define CUDA_NOT_FLOAT "only float32, float16 and bfloat16"

static inline bool cuda_index(DType t) { return t == MPR_INT32 || t == MPR_INT64; }

static inline const Tensor *input_of(const KernelCall *c, int k)
{
    return k < c->n_in && mpri_tensor_here(&c->in[k]) ? &c->in[k] : NULL;
}
static inline Tensor *output_of(const KernelCall *c, int k)
{
    return k < c->n_out && mpri_tensor_here(&c->out[k]) ? &c->out[k] : NULL;
}

/* Calls f with a zero of the storage type: `with_float(t, [&](auto zero) { typedef decltype(zero) T; … })`
 * makes one kernel per type. */
template <typename F> static inline void with_float(DType t, F f)
{
    if (t == MPR_FLOAT32) f(0.0f);
    else if (t == MPR_FLOAT16) f(f16());
    else f(bf16());
}

/* Blocks of `threads` for n elements, not more than fill a large GPU: kernels walk with
 * grid_begin and grid_step. */
static inline unsigned blocks_for(int64_t n, int64_t threads)
{
    int64_t b = (n + threads - 1) / threads;
    return (unsigned)(b < 1 ? 1 : b > 16384 ? 16384 : b);
}
static __device__ __forceinline__ int64_t grid_begin()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ __forceinline__ int64_t grid_step() { return (int64_t)gridDim.x * blockDim.x; }

/* ---- sums of fixed order ---- */

/* Every lane gets the result: lane l adds l ^ 16, l ^ 8, …, 1, and addition commutes. */
template <typename T> static __device__ __forceinline__ T warp_sum(T v)
{
    for (int k = 16; k; k /= 2) v += __shfl_xor_sync(FULL_MASK, v, k);
    return v;
}
/* NaN wins. */
static __device__ __forceinline__ float max_nan(float a, float b) { return a != a || a > b ? a : b; }
static __device__ __forceinline__ float warp_max(float v)
{
    for (int k = 16; k; k /= 2) v = max_nan(v, __shfl_xor_sync(FULL_MASK, v, k));
    return v;
}

/* Over a block of at most 1024 threads: every thread gets the result. `part` has 33 elements and may be
 * used again at once. */
template <typename T> static __device__ __forceinline__ T block_sum(T v, SharedPtr<T> part)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    v = warp_sum(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        T w = lane < warps ? (T)part[lane] : (T)0;
        w = warp_sum(w);
        if (lane == 0) part[32] = w;
    }
    __syncthreads();
    T r = part[32];
    __syncthreads();
    return r;
}
static __device__ __forceinline__ float block_max(float v, SharedPtr<float> part)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    v = warp_max(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        float w = part[lane < warps ? lane : 0];
        w = warp_max(w);
        if (lane == 0) part[32] = w;
    }
    __syncthreads();
    float r = part[32];
    __syncthreads();
    return r;
}

/* ---- wrong data ---- */

/* The fault of the earliest position stays; the host reads it later (mpri_plan_check). */
static __device__ inline void note_fault(DeviceFault *f, int step, int input, int64_t position,
                                         int64_t value, int64_t low, int64_t high)
{
    if (!f) return;
    while (atomicCAS(&f->lock, 0u, 1u) != 0u) {}
    __threadfence();
    if (f->step < 0 || step < f->step || (step == f->step && position < f->at.position)) {
        f->at.input = input;
        f->at.position = position;
        f->at.value = value;
        f->at.low = low;
        f->at.high = high;
        f->step = step;
    }
    __threadfence();
    atomicExch(&f->lock, 0u);
}

/* ---- tensors in kernels: at most 8 dims, by value ---- */

typedef struct Walk { /* out element -> elements of the inputs; dims merged, innermost last */
    int rank, n_in;
    uint32_t dims[MPRI_TENSOR_RANK];
    uint32_t stride[4][MPRI_TENSOR_RANK];
} Walk;

static __device__ __forceinline__ uint32_t walk_at(const Walk &w, int k, uint32_t i)
{
    uint32_t at = 0;
    for (int d = w.rank - 1; d > 0; d--) {
        uint32_t q = i / w.dims[d];
        at += (i - q * w.dims[d]) * w.stride[k][d];
        i = q;
    }
    return at + i * w.stride[k][0];
}

/* Broadcasting of up to four inputs to `out`, numpy's way: dims of size 1 vanish and neighbours merge
 * where every input allows it. False: 2^31 elements or more. */
static inline bool walk_init(Walk *w, const Tensor *out, const Tensor *const *in, int n_in)
{
    int64_t stride[4][MPRI_TENSOR_RANK];
    *w = Walk{};
    w->n_in = n_in;
    if (out->n >= INT32_MAX) return false;
    for (int k = 0; k < n_in; k++) {
        int64_t s = 1;
        for (int o = out->rank - 1, i = in[k]->rank - 1; o >= 0; o--, i--) {
            stride[k][o] = i >= 0 && in[k]->dims[i] != 1 ? s : 0;
            if (i >= 0) s *= in[k]->dims[i];
        }
    }
    for (int o = 0; o < out->rank; o++) {
        int last = w->rank - 1;
        bool merge = w->rank > 0;
        if (out->dims[o] == 1) continue;
        for (int k = 0; merge && k < n_in; k++)
            merge = (int64_t)w->stride[k][last] == stride[k][o] * out->dims[o];
        if (!merge) last = w->rank++;
        w->dims[last] = (uint32_t)(merge ? w->dims[last] * out->dims[o] : out->dims[o]);
        for (int k = 0; k < n_in; k++) w->stride[k][last] = (uint32_t)stride[k][o];
    }
    if (w->rank == 0) {
        w->rank = 1;
        w->dims[0] = 1;
    }
    return true;
}

#define CUDA_TABLE(rows) {(rows), (int)(sizeof(rows) / sizeof((rows)[0]))}
#define CUDA_ROW(Op, lower, function, ...) {.op = OP_##Op, .name = "cuda." lower, .fn = (function), ##__VA_ARGS__}
#define CUDA_TOO_LARGE "2^31 elements or more"

#endif
