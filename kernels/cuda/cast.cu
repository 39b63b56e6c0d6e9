/* Casts between the float types, and copies. One rounding at the store; NaN stays NaN. Traffic: read
 * once, written once; 256 threads a block. */
#include "kernels/cuda/elementwise.cuh"

struct CopyF {
    enum { N = 1 };
    __device__ float operator()(const float *x) const { return x[0]; }
};

/* Between types of different size 8 elements a thread: 16 bytes on the narrow side. */
template <typename A, typename B> __global__ void k_convert(const A *x, B *y, int64_t n)
{
    int64_t packs = n / 8;
    for (int64_t i = grid_begin(); i < packs; i += grid_step()) {
        Pack<A, 8> a = ((const Pack<A, 8> *)x)[i];
        Pack<B, 8> b;
        for (int j = 0; j < 8; j++) b.v[j] = from_float<B>(to_float(a.v[j]));
        ((Pack<B, 8> *)y)[i] = b;
    }
    for (int64_t i = packs * 8 + grid_begin(); i < n; i += grid_step())
        y[i] = from_float<B>(to_float(x[i]));
}

static bool aligned32(const void *p) { return ((uintptr_t)p & 31) == 0; }

static mpr_status k_cast(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    if (x->dtype == y->dtype) {
        cudaMemcpyAsync(y->data, x->data, (size_t)y->n * mpri_dtype_size(y->dtype),
                        cudaMemcpyDeviceToDevice, (cudaStream_t)c->queue);
        return MPR_OK;
    }
    if (!aligned32(x->data) || !aligned32(y->data)) return elements(c, CopyF());
    with_float(x->dtype, [&](auto from) {
        with_float(y->dtype, [&](auto to) {
            typedef decltype(from) A;
            typedef decltype(to) B;
            if constexpr (!std::is_same_v<A, B>)
                MPRI_LAUNCH((k_convert<A, B>), blocks_for(y->n / 8 + 1, ELEMENT_THREADS),
                            ELEMENT_THREADS, 0, c->queue, (const A *)x->data, (B *)y->data, y->n);
        });
    });
    return MPR_OK;
}

static const char *refuse_cast(const KernelSig *s)
{
    if (s->in[0].dtype == s->out[0].dtype) return NULL;
    return cuda_float(s->in[0].dtype) && cuda_float(s->out[0].dtype) ? NULL : CUDA_NOT_FLOAT;
}

static const KernelRow rows[] = {
    CUDA_ROW(Cast, "cast", k_cast, .refuse = refuse_cast),
    CUDA_ROW(CastLike, "castlike", k_cast, .refuse = refuse_cast),
    CUDA_ROW(Identity, "identity", k_cast, .refuse = refuse_cast),
};
extern "C" const KernelTable mpri_cuda_cast = CUDA_TABLE(rows);
