/* ArgMax and ArgMin: first or last position of the extreme element; a NaN counts as the extreme of
 * both, as in numpy. One warp per line: lanes stride through it and keep their best (key,
 * position), then five shuffles join them. Which lane saw what does not matter, the order of pairs
 * is total. Traffic: the input once; along an inner axis lines are interleaved and neighbours of a
 * warp read far apart. 4 warps a block. */
#include "kernels/cuda/lines.cuh"

enum { WARPS = 4 };

static __device__ __forceinline__ bool wins(uint64_t a, int64_t at, uint64_t b, int64_t bt,
                                            int last)
{
    return a != b ? a > b : last ? at > bt : at < bt;
}

__global__ void k_arg(const void *x, int type, int64_t *y, Lines l, int smallest, int last)
{
    int lane = threadIdx.x & 31;
    for (int64_t first = (int64_t)blockIdx.x * WARPS; first < l.count;
         first += (int64_t)gridDim.x * WARPS) {
        int64_t line = first + (threadIdx.x >> 5), base = line < l.count ? line_base(l, line) : 0;
        uint64_t best = 0;
        int64_t at = -1;
        for (int64_t j = lane; line < l.count && j < l.n; j += 32) {
            uint64_t key = order_key(x, type, base + j * l.inner);
            if (smallest && !(type_is_float(type) && key == UINT64_MAX)) key = ~key;
            if (at < 0 || wins(key, j, best, at, last)) best = key, at = j;
        }
        for (int k = 16; k; k /= 2) {
            uint64_t other = __shfl_xor_sync(FULL_MASK, best, k);
            int64_t there = __shfl_xor_sync(FULL_MASK, at, k);
            if (there >= 0 && (at < 0 || wins(other, there, best, at, last)))
                best = other, at = there;
        }
        if (lane == 0 && line < l.count) y[line] = at < 0 ? 0 : at;
    }
}

static mpr_status arg(const KernelCall *c, int smallest)
{
    const ArgParams *p = (const ArgParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    MPRI_LAUNCH(k_arg, blocks_for(y->n, WARPS), WARPS * 32, 0, c->queue, x->data, (int)x->dtype,
                (int64_t *)y->data, lines_of(x, p->axis), smallest,
                (int)(p->select_last_index != 0));
    return MPR_OK;
}
static mpr_status k_arg_max(const KernelCall *c) { return arg(c, 0); }
static mpr_status k_arg_min(const KernelCall *c) { return arg(c, 1); }

static const KernelRow rows[] = {
    CUDA_ROW(ArgMax, "argmax", k_arg_max),
    CUDA_ROW(ArgMin, "argmin", k_arg_min),
};
extern "C" const KernelTable mpri_cuda_reduce_arg = CUDA_TABLE(rows);
