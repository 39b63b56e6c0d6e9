/* Sums, means, largest and smallest elements over any axes, and SumTo (gradients of broadcasting, of
 * biases).
 *
 * The tensor is seen as [outer, fold, inner] where the reduced axes stand side by side.
 *   rows     inner = 1: one block per output, its threads stride through the row, then a tree.
 *   columns  inner > 1: a thread per column, neighbours read neighbours; long folds are cut into parts
 *            of a size that follows from the shape only, and a second kernel adds the parts in order.
 *   scatter  axes that do not stand together: one block per output, positions by division.
 * Sums run in float over at most a few thousand elements per thread and then by a tree: the same bits in
 * every run. Traffic: the input once. */
#include "kernels/cuda/kernel.cuh"

#include <math.h>

enum { ROW_THREADS = 256, COLUMN_THREADS = 128, LEAST_PART = 64, MOST_PARTS = 256 };

enum Fold { FOLD_SUM, FOLD_MEAN, FOLD_MAX, FOLD_MIN, FOLD_PROD };

static __host__ __device__ __forceinline__ float fold_start(int f)
{
    return f == FOLD_MAX ? -INFINITY : f == FOLD_MIN ? INFINITY : f == FOLD_PROD ? 1.0f : 0.0f;
}
static __device__ __forceinline__ float fold_two(int f, float a, float b)
{
    if (f == FOLD_MAX) return a != a || a > b ? a : b;
    if (f == FOLD_MIN) return a != a || a < b ? a : b;
    return f == FOLD_PROD ? a * b : a + b;
}

typedef struct Shape3 {
    int64_t outer, fold, inner;
} Shape3;

static __device__ float block_fold(int f, float v, SharedPtr<float> part)
{
    for (int k = 16; k; k /= 2) v = fold_two(f, v, __shfl_xor_sync(FULL_MASK, v, k));
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = lane < warps ? (float)part[lane] : fold_start(f);
        for (int k = 16; k; k /= 2) v = fold_two(f, v, __shfl_xor_sync(FULL_MASK, v, k));
    }
    __syncthreads();
    return v; /* right in warp 0 */
}

static __device__ __forceinline__ float finish(int f, float v, int64_t n)
{
    return f == FOLD_MEAN ? v / (float)n : v;
}

__global__ void k_rows(int f, const void *x, int tx, void *y, int ty, Shape3 s)
{
    MPRI_SHARED(float, part, 32);
    for (int64_t row = blockIdx.x; row < s.outer; row += gridDim.x) {
        float v = fold_start(f);
        for (int64_t j = threadIdx.x; j < s.fold; j += blockDim.x)
            v = fold_two(f, v, load_float(x, tx, row * s.fold + j));
        v = block_fold(f, v, part);
        if (threadIdx.x == 0) store_float(y, ty, row, finish(f, v, s.fold));
    }
}

/* Part p of column i; with one part the result goes to y at once. */
__global__ void k_columns(int f, const void *x, int tx, void *y, int ty, float *parts, Shape3 s,
                          int64_t part_size)
{
    int64_t columns = s.outer * s.inner, part = blockIdx.y;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= columns) return;
    int64_t base = i / s.inner * s.fold * s.inner + i % s.inner, end = (part + 1) * part_size;
    float v = fold_start(f);
    if (end > s.fold) end = s.fold;
    for (int64_t j = part * part_size; j < end; j++)
        v = fold_two(f, v, load_float(x, tx, base + j * s.inner));
    if (parts) parts[part * columns + i] = v;
    else store_float(y, ty, i, finish(f, v, s.fold));
}

__global__ void k_join(int f, const float *parts, int n_parts, void *y, int ty, int64_t columns,
                       int64_t fold)
{
    for (int64_t i = grid_begin(); i < columns; i += grid_step()) {
        float v = fold_start(f);
        for (int p = 0; p < n_parts; p++) v = fold_two(f, v, parts[p * columns + i]);
        store_float(y, ty, i, finish(f, v, fold));
    }
}

typedef struct Scatter {
    int kept, folded;
    int64_t kept_dim[MPRI_TENSOR_RANK], kept_step[MPRI_TENSOR_RANK];
    int64_t fold_dim[MPRI_TENSOR_RANK], fold_step[MPRI_TENSOR_RANK];
    int64_t n, fold;
} Scatter;

static __device__ int64_t offset_of(int rank, const int64_t *dim, const int64_t *step, int64_t i)
{
    int64_t at = 0;
    for (int k = rank - 1; k >= 0; k--) {
        at += i % dim[k] * step[k];
        i /= dim[k];
    }
    return at;
}

__global__ void k_scatter(int f, const void *x, int tx, void *y, int ty, Scatter s)
{
    MPRI_SHARED(float, part, 32);
    for (int64_t i = blockIdx.x; i < s.n; i += gridDim.x) {
        int64_t base = offset_of(s.kept, s.kept_dim, s.kept_step, i);
        float v = fold_start(f);
        for (int64_t j = threadIdx.x; j < s.fold; j += blockDim.x)
            v = fold_two(f, v, load_float(x, tx, base + offset_of(s.folded, s.fold_dim, s.fold_step, j)));
        v = block_fold(f, v, part);
        if (threadIdx.x == 0) store_float(y, ty, i, finish(f, v, s.fold));
    }
}

/* ---- which form ---- */

/* False: the reduced axes do not stand together. Dims of size 1 are on either side. */
static bool side_by_side(const Tensor *x, uint32_t axes, Shape3 *s)
{
    int state = 0; /* 0 before, 1 in, 2 behind the reduced axes */
    *s = Shape3{1, 1, 1};
    for (int k = 0; k < x->rank; k++) {
        bool in = axes >> k & 1;
        if (x->dims[k] == 1) continue;
        if (in && state == 2) return false;
        state = in ? 1 : state ? 2 : 0;
        (state == 0 ? s->outer : state == 1 ? s->fold : s->inner) *= x->dims[k];
    }
    return true;
}

static int parts_of(const Shape3 *s, int64_t *size)
{
    int64_t columns = s->outer * s->inner, want = s->fold / LEAST_PART;
    int64_t enough = (1 << 18) / (columns + 1); /* threads beyond this find no room on a GPU */
    if (want > enough) want = enough;
    if (want > MOST_PARTS) want = MOST_PARTS;
    if (want < 1) want = 1;
    *size = (s->fold + want - 1) / want;
    if (*size < 1) *size = 1;
    return (int)((s->fold + *size - 1) / *size > 1 ? (s->fold + *size - 1) / *size : 1);
}

static Scatter scatter_of(const Tensor *x, uint32_t axes, int64_t n)
{
    Scatter s = {};
    int64_t step = 1;
    int64_t steps[MPRI_TENSOR_RANK];
    for (int k = x->rank - 1; k >= 0; k--) {
        steps[k] = step;
        step *= x->dims[k];
    }
    s.n = n;
    s.fold = 1;
    for (int k = 0; k < x->rank; k++) {
        if (axes >> k & 1) {
            s.fold_dim[s.folded] = x->dims[k];
            s.fold_step[s.folded++] = steps[k];
            s.fold *= x->dims[k];
        } else {
            s.kept_dim[s.kept] = x->dims[k];
            s.kept_step[s.kept++] = steps[k];
        }
    }
    return s;
}

static mpr_status fold_axes(const KernelCall *c, uint32_t axes, int f)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Shape3 s;
    int tx = (int)x->dtype, ty = (int)y->dtype;
    if (!y->n) return MPR_OK;
    if (!side_by_side(x, axes, &s)) {
        Scatter w = scatter_of(x, axes, y->n);
        MPRI_LAUNCH(k_scatter, blocks_for(y->n, 1), ROW_THREADS, 0, c->queue, f, x->data, tx, y->data,
                    ty, w);
        return MPR_OK;
    }
    if (s.inner == 1) {
        unsigned threads = s.fold <= 64 ? 32 : ROW_THREADS;
        MPRI_LAUNCH(k_rows, blocks_for(s.outer, 1), threads, 0, c->queue, f, x->data, tx, y->data, ty,
                    s);
        return MPR_OK;
    }
    int64_t size, columns = s.outer * s.inner;
    int parts = parts_of(&s, &size);
    float *work = parts > 1 ? (float *)c->workspace : NULL;
    dim3 grid((unsigned)((columns + COLUMN_THREADS - 1) / COLUMN_THREADS), (unsigned)parts);
    MPRI_LAUNCH(k_columns, grid, COLUMN_THREADS, 0, c->queue, f, x->data, tx, y->data, ty, work, s,
                size);
    if (work)
        MPRI_LAUNCH(k_join, blocks_for(columns, COLUMN_THREADS), COLUMN_THREADS, 0, c->queue, f, work,
                    parts, y->data, ty, columns, s.fold);
    return MPR_OK;
}

static size_t fold_bytes(const Tensor *x, uint32_t axes)
{
    Shape3 s;
    int64_t size;
    if (!side_by_side(x, axes, &s) || s.inner == 1) return 0;
    int parts = parts_of(&s, &size);
    return parts > 1 ? (size_t)parts * (size_t)(s.outer * s.inner) * sizeof(float) : 0;
}

/* ---- rows ---- */

/* Axes are input 1, a constant; absent or empty means all, or none with noop_with_empty_axes. */
static uint32_t reduced_axes(const void *params, int n_in, const Tensor *in)
{
    const ReduceParams *p = (const ReduceParams *)params;
    uint32_t axes = 0;
    if (n_in > 1 && mpri_tensor_here(&in[1]))
        for (int64_t i = 0; i < in[1].n; i++) {
            int64_t a = mpri_load_i64(in[1].dtype, in[1].host, i);
            axes |= 1u << (a < 0 ? a + in[0].rank : a);
        }
    return axes || p->noop_with_empty_axes ? axes : (1u << in[0].rank) - 1;
}

static uint32_t sum_to_axes(const Tensor *x, const Tensor *y)
{
    uint32_t axes = 0;
    for (int k = 0, o = y->rank - x->rank; k < x->rank; k++, o++)
        if (o < 0 || (y->dims[o] == 1 && x->dims[k] != 1)) axes |= 1u << k;
    return axes;
}

static mpr_status reduce(const KernelCall *c, int f)
{
    return fold_axes(c, reduced_axes(c->params, c->n_in, c->in), f);
}
static mpr_status k_sum(const KernelCall *c) { return reduce(c, FOLD_SUM); }
static mpr_status k_mean(const KernelCall *c) { return reduce(c, FOLD_MEAN); }
static mpr_status k_max(const KernelCall *c) { return reduce(c, FOLD_MAX); }
static mpr_status k_min(const KernelCall *c) { return reduce(c, FOLD_MIN); }
static mpr_status k_prod(const KernelCall *c) { return reduce(c, FOLD_PROD); }
static mpr_status k_sum_to(const KernelCall *c)
{
    return fold_axes(c, sum_to_axes(&c->in[0], &c->out[0]), FOLD_SUM);
}

static const char *refuse_types(const KernelSig *s)
{
    return cuda_float(s->in[0].dtype) && cuda_float(s->out[0].dtype) ? NULL : CUDA_NOT_FLOAT;
}
static const char *refuse_reduce(const KernelSig *s)
{
    if (s->n_in > 1 && mpri_tensor_here(&s->in[1]) && !(s->const_in & 2))
        return "the axes are no constant";
    return refuse_types(s);
}

static size_t reduce_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return fold_bytes(&s->in[0], reduced_axes(s->params, s->n_in, s->in));
}
static size_t sum_to_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return fold_bytes(&s->in[0], sum_to_axes(&s->in[0], &s->out[0]));
}

#define REDUCE_ROW(Op, lower, fn) CUDA_ROW(Op, lower, fn, .refuse = refuse_reduce, .workspace = reduce_bytes)
static const KernelRow rows[] = {
    REDUCE_ROW(ReduceMean, "reducemean", k_mean),
    REDUCE_ROW(ReduceSum, "reducesum", k_sum),
    REDUCE_ROW(ReduceProd, "reduceprod", k_prod),
    REDUCE_ROW(ReduceMax, "reducemax", k_max),
    REDUCE_ROW(ReduceMin, "reducemin", k_min),
    CUDA_ROW(SumTo, "sumto", k_sum_to, .refuse = refuse_types, .workspace = sum_to_bytes),
};
extern "C" const KernelTable mpri_cuda_reduce = CUDA_TABLE(rows);
