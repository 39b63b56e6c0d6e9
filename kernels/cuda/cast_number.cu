/* Casts from and to integers, bool and double; cast.cu has the others. Floats to integers truncate;
 * integers drop their upper bits; anything non-zero is true. A float that an integer type cannot
 * hold is undefined in ONNX; here it gives what the reference kernels give. Every result is rounded
 * once: an integer reaches 16 bits through a float of 24 bits that was rounded to odd, so that the
 * second rounding decides as a single one would (Boldo and Melquiond, "When double rounding is
 * odd", 2005). Traffic: read once, written once. 256 threads a block, one element each. */
#include "kernels/cuda/number.cuh"

static __device__ __forceinline__ float whole(float v) { return truncf(v); }
static __device__ __forceinline__ double whole(double v) { return trunc(v); }

/* Types of up to 16 bits keep the low bits of an int32, so -1 to u8 is 255. i32 and i64 have one
 * value for all that they cannot hold, the least; u32 and u64 wrap negative numbers that the signed
 * type of their width holds. */
template <typename V> static __device__ int64_t to_integer(int type, V x)
{
    V v = whole(x), half = type == MPR_INT64 || type == MPR_UINT64 ? (V)0x1p63 : (V)0x1p31;
    if ((type == MPR_UINT32 || type == MPR_UINT64) && v >= half)
        return v < 2 * half ? (int64_t)(uint64_t)v : 0;
    if (v >= -half && v < half) return (int64_t)v;
    return half == (V)0x1p31 ? INT32_MIN : INT64_MIN;
}

static __device__ float to_odd(int64_t v, bool is_unsigned)
{
    bool negative = v < 0 && !is_unsigned;
    uint64_t m = negative ? 0 - (uint64_t)v : (uint64_t)v, lost = 0;
    float scale = 1;
    while (m >> 24) {
        lost |= m & 1;
        m >>= 1;
        scale *= 2;
    }
    float f = (float)(uint32_t)(m | lost) * scale;
    return negative ? -f : f;
}

static __device__ __forceinline__ void put(void *y, int type, int64_t i, int64_t v,
                                           bool is_unsigned)
{
    if (type == MPR_FLOAT64) ((double *)y)[i] = is_unsigned ? (double)(uint64_t)v : (double)v;
    else if (type == MPR_FLOAT32) ((float *)y)[i] = is_unsigned ? (float)(uint64_t)v : (float)v;
    else if (type_is_float(type)) store_float(y, type, i, to_odd(v, is_unsigned));
    else store_i64(y, type, i, v);
}
template <typename V>
static __device__ __forceinline__ void put(void *y, int type, int64_t i, V v, bool)
{
    if (type_is_float(type)) store_f64(y, type, i, (double)v);
    else if (type == MPR_BOOL) ((uint8_t *)y)[i] = v != 0;
    else store_i64(y, type, i, to_integer<V>(type, v));
}

template <typename V>
__global__ void k_cast_numbers(const void *x, int tx, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step())
        put(y, ty, i, load_as<V>(x, tx, i), tx == MPR_UINT64);
}

static mpr_status k_cast(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    unsigned blocks = blocks_for(y->n, ELEMENT_THREADS);
    int tx = (int)x->dtype, ty = (int)y->dtype;
    if (cuda_integer(x->dtype))
        MPRI_LAUNCH(k_cast_numbers<int64_t>, blocks, ELEMENT_THREADS, 0, c->queue, x->data, tx,
                    y->data, ty, y->n);
    else if (x->dtype == MPR_FLOAT64)
        MPRI_LAUNCH(k_cast_numbers<double>, blocks, ELEMENT_THREADS, 0, c->queue, x->data, tx,
                    y->data, ty, y->n);
    else
        MPRI_LAUNCH(k_cast_numbers<float>, blocks, ELEMENT_THREADS, 0, c->queue, x->data, tx,
                    y->data, ty, y->n);
    return MPR_OK;
}

static const KernelRow rows[] = {
    CUDA_ROW(Cast, "cast.number", k_cast),
    CUDA_ROW(CastLike, "castlike.number", k_cast),
};
extern "C" const KernelTable mpri_cuda_cast_number = CUDA_TABLE(rows);
