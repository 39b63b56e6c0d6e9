/* One walk for all elementwise families: F is a struct with the number of its inputs and the arithmetic,
 *   struct AddF { enum { N = 2 }; __device__ float operator()(const float *x) const { return x[0] + x[1]; } };
 * and may carry parameters. A row's function is `return elements(call, AddF());`, its refuse
 * `refuse_elements<AddF>`.
 *
 * Where all tensors have one type and one shape, each thread moves 16 bytes at a time; else the generic
 * kernel finds every element by the broadcast walk, of any mix of float types. Traffic: every input once
 * (broadcast ones from the cache), the output once. 256 threads a block. */
#ifndef MPRI_CUDA_ELEMENTWISE_CUH
#define MPRI_CUDA_ELEMENTWISE_CUH

#include "kernels/cuda/kernel.cuh"

enum { ELEMENT_IN = 4, ELEMENT_THREADS = 256 };

typedef struct Elements {
    const void *in[ELEMENT_IN];
    int type[ELEMENT_IN];
    void *out;
    int out_type;
    int64_t n;
} Elements;

/* Same type, same shape. n is a multiple of the pack but for the last elements. */
template <typename T, typename F> __global__ void k_elements_same(Elements e, F f)
{
    enum { V = 16 / sizeof(T) };
    int64_t packs = e.n / V;
    for (int64_t i = grid_begin(); i < packs; i += grid_step()) {
        Pack<T, V> x[F::N], y;
        for (int k = 0; k < F::N; k++) x[k] = ((const Pack<T, V> *)e.in[k])[i];
        for (int j = 0; j < V; j++) {
            float v[F::N];
            for (int k = 0; k < F::N; k++) v[k] = to_float(x[k].v[j]);
            y.v[j] = from_float<T>(f(v));
        }
        ((Pack<T, V> *)e.out)[i] = y;
    }
    for (int64_t i = packs * V + grid_begin(); i < e.n; i += grid_step()) {
        float v[F::N];
        for (int k = 0; k < F::N; k++) v[k] = to_float(((const T *)e.in[k])[i]);
        ((T *)e.out)[i] = from_float<T>(f(v));
    }
}

/* One shape, any types; 64-bit positions. */
template <typename F> __global__ void k_elements_mixed(Elements e, F f)
{
    for (int64_t i = grid_begin(); i < e.n; i += grid_step()) {
        float v[F::N];
        for (int k = 0; k < F::N; k++) v[k] = load_float(e.in[k], e.type[k], i);
        store_float(e.out, e.out_type, i, f(v));
    }
}

/* Broadcasting, any types. */
template <typename F> __global__ void k_elements_walk(Elements e, Walk w, F f)
{
    for (int64_t i = grid_begin(); i < e.n; i += grid_step()) {
        float v[F::N];
        for (int k = 0; k < F::N; k++)
            v[k] = load_float(e.in[k], e.type[k], walk_at(w, k, (uint32_t)i));
        store_float(e.out, e.out_type, i, f(v));
    }
}

static inline bool aligned16(const void *p) { return ((uintptr_t)p & 15) == 0; }

template <typename F> static mpr_status elements(const KernelCall *c, F f)
{
    const Tensor *y = &c->out[0], *in[F::N];
    Elements e = {};
    bool same = true, alike = aligned16(y->data);
    e.out = y->data;
    e.out_type = (int)y->dtype;
    e.n = y->n;
    if (!e.n) return MPR_OK;
    for (int k = 0; k < F::N; k++) {
        in[k] = &c->in[k];
        e.in[k] = in[k]->data;
        e.type[k] = (int)in[k]->dtype;
        same &= in[k]->n == y->n;
        alike &= in[k]->dtype == y->dtype && aligned16(in[k]->data);
    }
    unsigned blocks = blocks_for(e.n, ELEMENT_THREADS);
    if (same && alike) {
        with_float(y->dtype, [&](auto zero) {
            typedef decltype(zero) T;
            blocks = blocks_for(e.n / (16 / (int)sizeof(T)) + 1, ELEMENT_THREADS);
            MPRI_LAUNCH((k_elements_same<T, F>), blocks, ELEMENT_THREADS, 0, c->queue, e, f);
        });
        return MPR_OK;
    }
    if (same) {
        MPRI_LAUNCH((k_elements_mixed<F>), blocks, ELEMENT_THREADS, 0, c->queue, e, f);
        return MPR_OK;
    }
    Walk w;
    walk_init(&w, y, in, F::N);
    MPRI_LAUNCH((k_elements_walk<F>), blocks, ELEMENT_THREADS, 0, c->queue, e, w, f);
    return MPR_OK;
}

template <typename F> static const char *refuse_elements(const KernelSig *s)
{
    static_assert((int)F::N <= (int)ELEMENT_IN, "too many inputs");
    bool same = true;
    if (s->n_in < F::N || !cuda_float(s->out[0].dtype)) return CUDA_NOT_FLOAT;
    for (int k = 0; k < F::N; k++) {
        if (!cuda_float(s->in[k].dtype)) return CUDA_NOT_FLOAT;
        same &= s->in[k].n == s->out[0].n;
    }
    return same || s->out[0].n < INT32_MAX ? NULL : CUDA_TOO_LARGE;
}

template <typename F> static mpr_status k_plain(const KernelCall *c) { return elements(c, F()); }

#define ELEMENT_ROW(Op, lower, F) CUDA_ROW(Op, lower, k_plain<F>, .refuse = refuse_elements<F>)

/* ---- activations that several families compute ---- */

#define SQRT_HALF 0.70710678118654752440f
#define GELU_C0 0.79788456080286535588f /* sqrt(2 / pi) */
#define GELU_C1 0.044715f

static __device__ __forceinline__ float sigmoid(float x)
{
    float e = expf(-fabsf(x));
    return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

/* x Phi(x): erfc keeps the relative precision of the tail. */
static __device__ __forceinline__ float gelu(float x)
{
    return 0.5f * x * erfcf(-x * SQRT_HALF);
}
static __device__ __forceinline__ float gelu_slope(float x)
{
    float density = expf(-0.5f * x * x) * 0.39894228040143267794f;
    return 0.5f * erfcf(-x * SQRT_HALF) + (density > 0 ? x * density : 0 * x);
}
static __device__ __forceinline__ float gelu_tanh(float x)
{
    return x * sigmoid(2 * GELU_C0 * (x + GELU_C1 * x * x * x));
}
static __device__ __forceinline__ float gelu_tanh_slope(float x)
{
    float s = sigmoid(2 * GELU_C0 * (x + GELU_C1 * x * x * x)), slope = s * (1 - s);
    return s + (slope > 0 ? x * slope * 2 * GELU_C0 * (1 + 3 * GELU_C1 * x * x) : 0 * x);
}

/* Functors of one expression in x, or in a and b. */
#define FLOAT_UNARY(Name, expression)                             \
    struct Name {                                                 \
        enum { N = 1 };                                           \
        __device__ float operator()(const float *in) const        \
        {                                                         \
            float x = in[0];                                      \
            return expression;                                    \
        }                                                         \
    };
#define FLOAT_BINARY(Name, expression)                            \
    struct Name {                                                 \
        enum { N = 2 };                                           \
        __device__ float operator()(const float *in) const        \
        {                                                         \
            float a = in[0], b = in[1];                           \
            return expression;                                    \
        }                                                         \
    };

#endif
