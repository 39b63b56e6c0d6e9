/* Elements of every type in kernels: integers and bool as int64, floats as double or float, with
 * the conversions of the reference kernels. u64 travels in the bits of int64; who compares or
 * divides takes an `is_unsigned`. The type is known at run time only: all threads take one branch.
 */
#ifndef MPRI_CUDA_NUMBER_CUH
#define MPRI_CUDA_NUMBER_CUH

#include "kernels/cuda/elementwise.cuh"

#include <type_traits>

static __device__ __forceinline__ int64_t load_i64(const void *p, int type, int64_t i)
{
    switch (type) {
    case MPR_BOOL: return ((const uint8_t *)p)[i] != 0;
    case MPR_UINT8: return ((const uint8_t *)p)[i];
    case MPR_INT8: return ((const int8_t *)p)[i];
    case MPR_UINT16: return ((const uint16_t *)p)[i];
    case MPR_INT16: return ((const int16_t *)p)[i];
    case MPR_UINT32: return ((const uint32_t *)p)[i];
    case MPR_INT32: return ((const int32_t *)p)[i];
    default: return ((const int64_t *)p)[i];
    }
}

/* Drops the upper bits; bool: v != 0. */
static __device__ __forceinline__ void store_i64(void *p, int type, int64_t i, int64_t v)
{
    switch (type) {
    case MPR_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    case MPR_UINT8:
    case MPR_INT8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case MPR_UINT16:
    case MPR_INT16: ((uint16_t *)p)[i] = (uint16_t)v; break;
    case MPR_UINT32:
    case MPR_INT32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    default: ((int64_t *)p)[i] = v; break;
    }
}

/* Floats of all four types. */
static __device__ __forceinline__ double load_f64(const void *p, int type, int64_t i)
{
    return type == MPR_FLOAT64 ? ((const double *)p)[i] : (double)load_float(p, type, i);
}

static __device__ __forceinline__ void store_f64(void *p, int type, int64_t i, double v)
{
    if (type == MPR_FLOAT64) ((double *)p)[i] = v;
    else if (type == MPR_FLOAT32) ((float *)p)[i] = (float)v;
    else if (type == MPR_FLOAT16) ((f16 *)p)[i] = __double2half(v);
    else ((bf16 *)p)[i] = __double2bfloat16(v);
}

static __host__ __device__ __forceinline__ bool type_is_float(int t)
{
    return t == MPR_FLOAT32 || t == MPR_FLOAT16 || t == MPR_BFLOAT16 || t == MPR_FLOAT64;
}

static __device__ __forceinline__ bool less_i64(int64_t a, int64_t b, bool is_unsigned)
{
    return is_unsigned ? (uint64_t)a < (uint64_t)b : a < b;
}
static __device__ __forceinline__ int64_t negate(int64_t v) { return (int64_t)(0 - (uint64_t)v); }

/* A type that is stored and counted like an integer. */
static inline bool cuda_integer(DType t) { return mpri_dtype_is_int(t) || t == MPR_BOOL; }
#define CUDA_NOT_INTEGER "only integers and bool"

/* ---- elementwise on integers, doubles and comparisons: the walk of elementwise.cuh for V =
 * int64_t, float or double. F: struct { enum { N }; R operator()(const V *x, bool is_unsigned)
 * const; }, R = bool, int64_t or double; is_unsigned: input 0 is u64. A thread per element, 256 a
 * block. ---- */

template <typename V>
static __device__ __forceinline__ V load_as(const void *p, int type, int64_t i)
{
    if constexpr (std::is_same_v<V, int64_t>) return load_i64(p, type, i);
    else if constexpr (std::is_same_v<V, float>) return load_float(p, type, i);
    else return load_f64(p, type, i);
}
static __device__ __forceinline__ void store_as(void *p, int, int64_t i, bool v)
{
    ((uint8_t *)p)[i] = v;
}
static __device__ __forceinline__ void store_as(void *p, int type, int64_t i, int64_t v)
{
    store_i64(p, type, i, v);
}
static __device__ __forceinline__ void store_as(void *p, int type, int64_t i, double v)
{
    store_f64(p, type, i, v);
}

/* walk: 0 where all have one shape. */
template <typename V, typename F> __global__ void k_each(Elements e, Walk w, int walk, F f)
{
    for (int64_t i = grid_begin(); i < e.n; i += grid_step()) {
        V v[F::N];
        for (int k = 0; k < F::N; k++)
            v[k] = load_as<V>(e.in[k], e.type[k], walk ? walk_at(w, k, (uint32_t)i) : i);
        store_as(e.out, e.out_type, i, f(v, e.type[0] == MPR_UINT64));
    }
}

/* in: the F::N inputs, which need not be those of the call. */
template <typename V, typename F>
static mpr_status each_of(const KernelCall *c, const Tensor *const *in, F f)
{
    const Tensor *y = &c->out[0];
    Elements e = {};
    Walk w = {};
    bool same = true;
    if (!y->n) return MPR_OK;
    e.out = y->data;
    e.out_type = (int)y->dtype;
    e.n = y->n;
    for (int k = 0; k < F::N; k++) {
        e.in[k] = in[k]->data;
        e.type[k] = (int)in[k]->dtype;
        same &= in[k]->n == y->n;
    }
    if (!same) walk_init(&w, y, in, F::N);
    MPRI_LAUNCH((k_each<V, F>), blocks_for(e.n, ELEMENT_THREADS), ELEMENT_THREADS, 0, c->queue, e,
                w, (int)!same, f);
    return MPR_OK;
}

template <typename V, typename F> static mpr_status each(const KernelCall *c, F f)
{
    const Tensor *in[F::N];
    for (int k = 0; k < F::N; k++) in[k] = &c->in[k];
    return each_of<V>(c, in, f);
}

template <typename F> static mpr_status k_int(const KernelCall *c) { return each<int64_t>(c, F()); }

/* Broadcasting walks count in 32 bits. */
static inline const char *refuse_walk(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (s->in[k].n != s->out[0].n && s->out[0].n >= INT32_MAX) return CUDA_TOO_LARGE;
    return NULL;
}
static inline const char *refuse_int(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (mpri_tensor_here(&s->in[k]) && !cuda_integer(s->in[k].dtype)) return CUDA_NOT_INTEGER;
    return refuse_walk(s);
}
#define INT_ROW(Op, lower, F) CUDA_ROW(Op, lower ".int", k_int<F>, .refuse = refuse_int)

#endif
