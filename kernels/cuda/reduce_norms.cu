/* ReduceL1, L2, SumSquare, LogSum, LogSumExp of floats, and all reductions of integers.
 *
 * One block per result. Its threads stride through what it folds, the positions found by division
 * along kept and folded axes; then a tree of fixed shape joins them. L2 is scaled by the largest
 * magnitude, so that the norm overflows only where the result does; LogSumExp subtracts the largest
 * element: both read their input twice, the second time from the cache. Integers wrap around; order
 * of u64 is unsigned. 128 threads a block. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"

#include <math.h>

enum { FOLD_THREADS = 128 };
enum Norm {
    NORM_L1,
    NORM_L2,
    NORM_SQUARE,
    NORM_LOG,
    NORM_LOG_EXP,
    WHOLE_SUM,
    WHOLE_PROD,
    WHOLE_MAX,
    WHOLE_MIN,
    WHOLE_MEAN
};

typedef struct Folds { /* result i folds x[base(i) + step(j)], j < fold */
    int kept, folded;
    int64_t kept_dim[MPRI_TENSOR_RANK], kept_stride[MPRI_TENSOR_RANK];
    int64_t fold_dim[MPRI_TENSOR_RANK], fold_stride[MPRI_TENSOR_RANK];
    int64_t n, fold;
} Folds;

static __device__ int64_t offset_of(int rank, const int64_t *dim, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int k = rank - 1; k > 0; k--) {
        int64_t q = i / dim[k];
        at += (i - q * dim[k]) * stride[k];
        i = q;
    }
    return rank ? at + i * stride[0] : 0;
}
static __device__ int64_t step_of(const Folds &s, int64_t j)
{
    return offset_of(s.folded, s.fold_dim, s.fold_stride, j);
}

static __device__ __forceinline__ float term(int f, float v, float top)
{
    if (f == NORM_L1) return fabsf(v);
    if (f == NORM_L2) return (v / top) * (v / top);
    if (f == NORM_SQUARE) return v * v;
    return f == NORM_LOG_EXP ? expf(v - top) : v;
}

__global__ void k_norms(int f, const void *x, int tx, void *y, int ty, Folds s)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t i = blockIdx.x; i < s.n; i += gridDim.x) {
        int64_t base = offset_of(s.kept, s.kept_dim, s.kept_stride, i);
        float top = f == NORM_L2 ? 0.0f : -INFINITY, sum = 0;
        if (f == NORM_L2 || f == NORM_LOG_EXP) {
            for (int64_t j = threadIdx.x; j < s.fold; j += blockDim.x) {
                float v = load_float(x, tx, base + step_of(s, j));
                top = max_nan(top, f == NORM_L2 ? fabsf(v) : v);
            }
            top = block_max(top, part);
        }
        for (int64_t j = threadIdx.x; j < s.fold; j += blockDim.x)
            sum += term(f, load_float(x, tx, base + step_of(s, j)), top);
        sum = block_sum<float>(sum, part);
        if (threadIdx.x) continue;
        bool plain = !isinf(top) && top == top; /* else the answer is top */
        if (f == NORM_L2) sum = plain && top > 0 ? top * sqrtf(sum) : top;
        if (f == NORM_LOG_EXP) sum = plain ? top + logf(sum) : top;
        if (f == NORM_LOG) sum = logf(sum);
        store_float(y, ty, i, sum);
    }
}

/* ---- integers ---- */

static __device__ __forceinline__ int64_t join(int f, int64_t a, int64_t b, bool is_unsigned)
{
    if (f == WHOLE_PROD) return (int64_t)((uint64_t)a * (uint64_t)b);
    if (f == WHOLE_MAX) return less_i64(a, b, is_unsigned) ? b : a;
    if (f == WHOLE_MIN) return less_i64(b, a, is_unsigned) ? b : a;
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

__global__ void k_whole(int f, const void *x, int tx, void *y, int ty, Folds s, int64_t start)
{
    MPRI_SHARED(int64_t, part, 32);
    bool u = tx == MPR_UINT64;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (int64_t i = blockIdx.x; i < s.n; i += gridDim.x) {
        int64_t base = offset_of(s.kept, s.kept_dim, s.kept_stride, i), v = start;
        for (int64_t j = threadIdx.x; j < s.fold; j += blockDim.x) {
            int64_t e = load_i64(x, tx, base + step_of(s, j));
            if (f == NORM_L1 && !u && e < 0) e = negate(e);
            if (f == NORM_SQUARE) e = (int64_t)((uint64_t)e * (uint64_t)e);
            v = join(f, v, e, u);
        }
        for (int k = 16; k; k /= 2) v = join(f, v, __shfl_xor_sync(FULL_MASK, v, k), u);
        if (lane == 0) part[warp] = v;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int k = 1; k < warps; k++) v = join(f, v, part[k], u);
            if (f == WHOLE_MEAN && s.fold)
                v = u ? (int64_t)((uint64_t)v / (uint64_t)s.fold) : v / s.fold;
            store_i64(y, ty, i, v);
        }
        __syncthreads();
    }
}

/* ---- host ---- */

/* Axes are input 1, a constant; absent or empty means all, or none with noop_with_empty_axes. */
static uint32_t reduced_axes(const KernelCall *c)
{
    const ReduceParams *p = (const ReduceParams *)c->params;
    const Tensor *x = &c->in[0], *list = input_of(c, 1);
    uint32_t axes = 0;
    for (int64_t i = 0; list && i < list->n; i++)
        axes |= 1u << axis_of(mpri_load_i64(list->dtype, list->host, i), x->rank);
    return axes || p->noop_with_empty_axes ? axes : (1u << x->rank) - 1;
}

static Folds folds_of(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    uint32_t axes = reduced_axes(c);
    Folds s = {};
    s.n = c->out[0].n;
    s.fold = 1;
    for (int k = 0; k < x->rank; k++) {
        int64_t stride = span_of(x, k + 1, x->rank);
        if (axes >> k & 1) {
            s.fold_dim[s.folded] = x->dims[k];
            s.fold_stride[s.folded++] = stride;
            s.fold *= x->dims[k];
        } else {
            s.kept_dim[s.kept] = x->dims[k];
            s.kept_stride[s.kept++] = stride;
        }
    }
    return s;
}

static mpr_status fold_floats(const KernelCall *c, int f)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    Folds s = folds_of(c);
    MPRI_LAUNCH(k_norms, blocks_for(s.n, 1), s.fold <= 64 ? 32 : FOLD_THREADS, 0, c->queue, f,
                x->data, (int)x->dtype, y->data, (int)y->dtype, s);
    return MPR_OK;
}

/* What a fold of nothing gives: the least, the greatest number of the type. */
static int64_t start_of(int f, DType t)
{
    int bits = 8 * (int)mpri_dtype_size(t);
    bool is_signed = t == MPR_INT8 || t == MPR_INT16 || t == MPR_INT32 || t == MPR_INT64;
    if (f == WHOLE_PROD) return 1;
    if (f != WHOLE_MAX && f != WHOLE_MIN) return 0;
    if (t == MPR_BOOL) return f == WHOLE_MIN;
    int64_t most = (int64_t)(~(uint64_t)0 >> (64 - bits + (is_signed ? 1 : 0)));
    return f == WHOLE_MIN ? most : is_signed ? -most - 1 : 0;
}

static mpr_status fold_ints(const KernelCall *c, int f)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    Folds s = folds_of(c);
    MPRI_LAUNCH(k_whole, blocks_for(s.n, 1), s.fold <= 64 ? 32 : FOLD_THREADS, 0, c->queue, f,
                x->data, (int)x->dtype, y->data, (int)y->dtype, s, start_of(f, x->dtype));
    return MPR_OK;
}

template <int F> static mpr_status k_float(const KernelCall *c) { return fold_floats(c, F); }
template <int F> static mpr_status k_ints(const KernelCall *c) { return fold_ints(c, F); }

static const char *refuse_axes(const KernelSig *s)
{
    bool here = s->n_in > 1 && mpri_tensor_here(&s->in[1]);
    return here && !(s->const_in & 2) ? "the axes are no constant" : NULL;
}
static const char *refuse_floats(const KernelSig *s)
{
    if (!cuda_float(s->in[0].dtype) || !cuda_float(s->out[0].dtype)) return CUDA_NOT_FLOAT;
    return refuse_axes(s);
}
static const char *refuse_ints(const KernelSig *s)
{
    return cuda_integer(s->in[0].dtype) ? refuse_axes(s) : CUDA_NOT_INTEGER;
}

#define FLOAT_ROW(Op, lower, f) CUDA_ROW(Op, lower, k_float<f>, .refuse = refuse_floats)
#define WHOLE_ROW(Op, lower, f) CUDA_ROW(Op, lower ".int", k_ints<f>, .refuse = refuse_ints)
static const KernelRow rows[] = {
    FLOAT_ROW(ReduceL1, "reducel1", NORM_L1),
    FLOAT_ROW(ReduceL2, "reducel2", NORM_L2),
    FLOAT_ROW(ReduceSumSquare, "reducesumsquare", NORM_SQUARE),
    FLOAT_ROW(ReduceLogSum, "reducelogsum", NORM_LOG),
    FLOAT_ROW(ReduceLogSumExp, "reducelogsumexp", NORM_LOG_EXP),
    WHOLE_ROW(ReduceL1, "reducel1", NORM_L1),
    WHOLE_ROW(ReduceSumSquare, "reducesumsquare", NORM_SQUARE),
    WHOLE_ROW(ReduceMean, "reducemean", WHOLE_MEAN),
    WHOLE_ROW(ReduceSum, "reducesum", WHOLE_SUM),
    WHOLE_ROW(ReduceProd, "reduceprod", WHOLE_PROD),
    WHOLE_ROW(ReduceMax, "reducemax", WHOLE_MAX),
    WHOLE_ROW(ReduceMin, "reducemin", WHOLE_MIN),
};
extern "C" const KernelTable mpri_cuda_reduce_norms = CUDA_TABLE(rows);
