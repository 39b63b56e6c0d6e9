/* Elements of every type in kernels: integers and bool as int64, floats as double or float, with the
 * conversions of the reference kernels. u64 travels in the bits of int64; who compares or divides takes
 * an `is_unsigned`. The type is known at run time only: all threads take one branch. */
#ifndef MPRI_CUDA_NUMBER_CUH
#define MPRI_CUDA_NUMBER_CUH

#include "kernels/cuda/kernel.cuh"

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

#endif
