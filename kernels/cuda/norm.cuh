/* What normalisations share: vectors of V elements whose type is known at run time, and sums over the
 * threads that own a row. */
#ifndef MPRI_CUDA_NORM_CUH
#define MPRI_CUDA_NORM_CUH

#include "kernels/cuda/move.cuh"

template <int V>
static __device__ __forceinline__ void load_vec(const void *p, int type, int64_t i, float *v)
{
    if (V == 1) {
        v[0] = load_float(p, type, i);
    } else if (type == MPR_FLOAT32) {
        Pack<float, V> x = *(const Pack<float, V> *)((const float *)p + i);
        for (int k = 0; k < V; k++) v[k] = x.v[k];
    } else if (type == MPR_FLOAT16) {
        Pack<f16, V> x = *(const Pack<f16, V> *)((const f16 *)p + i);
        for (int k = 0; k < V; k++) v[k] = to_float(x.v[k]);
    } else {
        Pack<bf16, V> x = *(const Pack<bf16, V> *)((const bf16 *)p + i);
        for (int k = 0; k < V; k++) v[k] = to_float(x.v[k]);
    }
}

template <int V>
static __device__ __forceinline__ void store_vec(void *p, int type, int64_t i, const float *v)
{
    if (V == 1) {
        store_float(p, type, i, v[0]);
    } else if (type == MPR_FLOAT32) {
        Pack<float, V> x;
        for (int k = 0; k < V; k++) x.v[k] = v[k];
        *(Pack<float, V> *)((float *)p + i) = x;
    } else if (type == MPR_FLOAT16) {
        Pack<f16, V> x;
        for (int k = 0; k < V; k++) x.v[k] = from_float<f16>(v[k]);
        *(Pack<f16, V> *)((f16 *)p + i) = x;
    } else {
        Pack<bf16, V> x;
        for (int k = 0; k < V; k++) x.v[k] = from_float<bf16>(v[k]);
        *(Pack<bf16, V> *)((bf16 *)p + i) = x;
    }
}

/* A row belongs to a warp or to a block. */
template <bool WARP> static __device__ __forceinline__ float own_sum(float v, SharedPtr<float> part)
{
    return WARP ? warp_sum(v) : block_sum<float>(v, part);
}

/* Rows that are read 16 or 8 bytes at a time. */
static inline bool aligned_rows(const Tensor *t, int64_t n)
{
    return n % 4 == 0 && ((uintptr_t)t->data & 15) == 0;
}

/* Every tensor that is there has a float type that kernels take. */
static inline const char *refuse_not_float(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (mpri_tensor_here(&s->in[k]) && !cuda_float(s->in[k].dtype)) return CUDA_NOT_FLOAT;
    for (int k = 0; k < s->n_out; k++)
        if (mpri_tensor_here(&s->out[k]) && !cuda_float(s->out[k].dtype)) return CUDA_NOT_FLOAT;
    return NULL;
}

#endif
