/* CumSum, CumProd and the gradient of the latter. A warp per line: 32 elements are joined by five
 * shuffles (Hillis and Steele 1986) behind what was carried from the 32 before, so the tree depends
 * on the length alone. Floats run in double, as in the reference kernels, each result rounded once;
 * integers wrap around. Traffic: read once, written once; the gradient keeps the suffix sums of a
 * line in the workspace. 4 warps a block. */
#include "kernels/cuda/lines.cuh"

enum { WARPS = 4 };

static __device__ __forceinline__ double join(double a, double b, bool product)
{
    return product ? a * b : a + b;
}
static __device__ __forceinline__ int64_t join(int64_t a, int64_t b, bool product)
{
    return (int64_t)(product ? (uint64_t)a * (uint64_t)b : (uint64_t)a + (uint64_t)b);
}
static __device__ __forceinline__ double read_number(const void *x, int type, int64_t i, double)
{
    return load_f64(x, type, i);
}
static __device__ __forceinline__ int64_t read_number(const void *x, int type, int64_t i, int64_t)
{
    return load_i64(x, type, i);
}

/* Lane l gets the join of lanes 0 … l. */
template <typename V> static __device__ V warp_prefix(V v, bool product)
{
    int lane = threadIdx.x & 31;
    for (int k = 1; k < 32; k *= 2) {
        V below = __shfl_up_sync(FULL_MASK, v, k);
        if (lane >= k) v = join(below, v, product);
    }
    return v;
}

/* Position of step j of a line, from its start or its end. */
static __device__ __forceinline__ int64_t step_at(const Lines &l, int64_t base, int64_t j,
                                                  int reverse)
{
    return base + (reverse ? l.n - 1 - j : j) * l.inner;
}

template <typename V> __global__ void k_prefix(const void *x, void *y, int type, Lines l,
                                               int product, int exclusive, int reverse)
{
    int lane = threadIdx.x & 31;
    for (int64_t first = (int64_t)blockIdx.x * WARPS; first < l.count;
         first += (int64_t)gridDim.x * WARPS) {
        int64_t line = first + (threadIdx.x >> 5), base = line < l.count ? line_base(l, line) : 0;
        V carried = (V)product;
        for (int64_t start = 0; start < l.n; start += 32) {
            int64_t j = start + lane;
            bool here = line < l.count && j < l.n;
            V v = here ? read_number(x, type, step_at(l, base, j, reverse), (V)0) : (V)product;
            V sum = join(carried, warp_prefix(v, product), product);
            V before = __shfl_up_sync(FULL_MASK, sum, 1);
            if (here)
                store_as(y, type, step_at(l, base, j, reverse),
                         exclusive ? (lane ? before : carried) : sum);
            carried = __shfl_sync(FULL_MASK, sum, 31);
        }
    }
}

static Lines lines_at(const KernelCall *c, int x, int axis)
{
    return lines_of(&c->in[x], mpri_load_i64(c->in[axis].dtype, c->in[axis].host, 0));
}

static mpr_status prefix(const KernelCall *c, int product)
{
    const CumulativeParams *p = (const CumulativeParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    Lines l = lines_at(c, 0, 1);
    int exclusive = p->exclusive != 0, reverse = p->reverse != 0;
    if (mpri_dtype_is_float(x->dtype))
        MPRI_LAUNCH(k_prefix<double>, blocks_for(l.count, WARPS), WARPS * 32, 0, c->queue, x->data,
                    y->data, (int)x->dtype, l, product, exclusive, reverse);
    else
        MPRI_LAUNCH(k_prefix<int64_t>, blocks_for(l.count, WARPS), WARPS * 32, 0, c->queue, x->data,
                    y->data, (int)x->dtype, l, product, exclusive, reverse);
    return MPR_OK;
}
static mpr_status k_sum(const KernelCall *c) { return prefix(c, 0); }
static mpr_status k_product(const KernelCall *c) { return prefix(c, 1); }

/* A thread per line, the operator is rare: suffix sums S of the line, then the prefix products.
 * S_j = dy_j + x_(j+1) S_(j+1); exclusive: S_j = dy_(j+1) + x_(j+1) S_(j+1), and 0 for the last. */
__global__ void k_product_slope(const void *dy, int td, const void *x, int tx, void *dx, int ty,
                                Lines l, double *sums, int exclusive, int reverse)
{
    for (int64_t i = grid_begin(); i < l.count; i += grid_step()) {
        int64_t base = line_base(l, i);
        double s = 0, before = 1;
        for (int64_t j = l.n - 1; j >= 0; j--) {
            bool last = j + 1 == l.n;
            int64_t next = last ? 0 : step_at(l, base, j + 1, reverse),
                    at = step_at(l, base, j, reverse);
            double tail = last ? 0 : load_f64(x, tx, next) * s;
            if (!exclusive) s = load_f64(dy, td, at) + tail;
            else s = last ? 0 : load_f64(dy, td, next) + tail;
            sums[at] = s;
        }
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = step_at(l, base, j, reverse);
            double v = load_f64(x, tx, at);
            store_f64(dx, ty, at, before * sums[at]);
            before *= v;
        }
    }
}

/* Inputs dy, x, axis. */
static mpr_status k_product_grad(const KernelCall *c)
{
    const CumulativeParams *p = (const CumulativeParams *)c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
    if (!dx->n) return MPR_OK;
    Lines l = lines_at(c, 1, 2);
    MPRI_LAUNCH(k_product_slope, blocks_for(l.count, 128), 128, 0, c->queue, dy->data,
                (int)dy->dtype, x->data, (int)x->dtype, dx->data, (int)dx->dtype, l,
                (double *)c->workspace, (int)(p->exclusive != 0), (int)(p->reverse != 0));
    return MPR_OK;
}

static size_t sum_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return sizeof(double) * (size_t)s->in[1].n;
}
static const char *refuse_axis(const KernelSig *s)
{
    return s->const_in >> (s->n_in - 1) & 1 ? NULL : "the axis is no constant";
}

static const KernelRow rows[] = {
    CUDA_ROW(CumSum, "cumsum", k_sum, .refuse = refuse_axis),
    CUDA_ROW(CumProd, "cumprod", k_product, .refuse = refuse_axis),
    CUDA_ROW(CumProdGrad, "cumprodgrad", k_product_grad, .refuse = refuse_axis,
             .workspace = sum_bytes),
};
extern "C" const KernelTable mpri_cuda_cumulative = CUDA_TABLE(rows);
