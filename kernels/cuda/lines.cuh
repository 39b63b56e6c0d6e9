/* The lines of a tensor along one axis, and the order of their elements as 64-bit keys. */
#ifndef MPRI_CUDA_LINES_CUH
#define MPRI_CUDA_LINES_CUH

#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"

/* Element j of line i lies at line_base(i) + j * inner; a scalar is one line of one element. */
typedef struct Lines {
    int64_t count, n, inner;
} Lines;

static inline Lines lines_of(const Tensor *t, int64_t axis)
{
    if (t->rank == 0) return Lines{1, 1, 1};
    int a = axis_of(axis, t->rank);
    int64_t inner = span_of(t, a + 1, t->rank);
    return Lines{span_of(t, 0, a) * inner, t->dims[a], inner};
}

static __device__ __forceinline__ int64_t line_base(const Lines &l, int64_t i)
{
    int64_t o = i / l.inner;
    return o * l.n * l.inner + (i - o * l.inner);
}

/* Greater elements have greater keys; NaN is above every number and equal to NaN, -0 equal to 0. */
static __device__ __forceinline__ uint64_t order_key(const void *p, int type, int64_t i)
{
    const uint64_t top = (uint64_t)1 << 63;
    if (!type_is_float(type))
        return (uint64_t)load_i64(p, type, i) ^ (type == MPR_UINT64 ? 0 : top);
    double v = load_f64(p, type, i);
    if (v != v) return UINT64_MAX;
    int64_t bits = __double_as_longlong(v + 0.0); /* -0 + 0 = 0 */
    return bits < 0 ? ~(uint64_t)bits : (uint64_t)bits | top;
}

#endif
