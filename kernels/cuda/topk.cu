/* TopK: every line is sorted by (value, position), see sort.cuh, and its first k leave. The order
 * is total, so the result does not depend on how the sort runs. Traffic: the line's keys, 16 bytes
 * each, once per pass of the sort. The gradient writes zeros, then the k values. 256 threads a
 * block. */
#include "kernels/cuda/lines.cuh"
#include "kernels/cuda/sort.cuh"

enum { THREADS = 256 };

__global__ void k_line_keys(const void *x, int type, Lines l, int largest, WideKey *keys)
{
    for (int64_t i = grid_begin(); i < l.count * l.n; i += grid_step()) {
        int64_t line = i / l.n, j = i - line * l.n;
        uint64_t key = order_key(x, type, line_base(l, line) + j * l.inner);
        keys[i] = WideKey{largest ? ~key : key, (uint64_t)j};
    }
}

template <typename T> __global__ void k_first_of(const WideKey *sorted, Lines l, const T *x,
                                                 Lines to, T *values, int64_t *indices)
{
    for (int64_t i = grid_begin(); i < to.count * to.n; i += grid_step()) {
        int64_t line = i / to.n, j = i - line * to.n, from = (int64_t)sorted[line * l.n + j].low;
        int64_t at = line_base(to, line) + j * to.inner;
        values[at] = x[line_base(l, line) + from * l.inner];
        if (indices) indices[at] = from;
    }
}

static mpr_status k_topk(const KernelCall *c)
{
    const TopKParams *p = (const TopKParams *)c->params;
    const Tensor *x = &c->in[0], *values = &c->out[0], *indices = output_of(c, 1);
    Lines l = lines_of(x, p->axis), to = lines_of(values, p->axis);
    WideKey *keys = (WideKey *)c->workspace;
    if (!values->n) return MPR_OK;
    MPRI_LAUNCH(k_line_keys, blocks_for(x->n, THREADS), THREADS, 0, c->queue, x->data,
                (int)x->dtype, l, (int)(p->largest != 0), keys);
    const WideKey *sorted = mpri_cuda_sort_wide(keys, keys + x->n, l.n, l.count, c->queue);
    with_size(mpri_dtype_size(x->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_first_of<T>, blocks_for(values->n, THREADS), THREADS, 0, c->queue, sorted, l,
                    (const T *)x->data, to, (T *)values->data,
                    indices ? (int64_t *)indices->data : NULL);
    });
    return MPR_OK;
}

static size_t key_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return 2 * sizeof(WideKey) * (size_t)s->in[0].n;
}

template <typename T>
__global__ void k_put_back(const T *dy, const int64_t *indices, Lines l, T *dx, Lines to, int step, DeviceFault *fault)
{
    for (int64_t i = grid_begin(); i < l.count * l.n; i += grid_step()) {
        int64_t line = i / l.n, at = line_base(l, line) + (i - line * l.n) * l.inner, index = indices[at];
        if (index >= 0 && index < to.n) dx[line_base(to, line) + index * to.inner] = dy[at];
        else note_fault(fault, step, 1, at, index, 0, to.n);
    }
}

/* Inputs dy, indices; the indices of a line are distinct. */
static mpr_status k_topk_grad(const KernelCall *c)
{
    const TopKGradParams *p = (const TopKGradParams *)c->params;
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    move_zero(dx, c->queue);
    if (!dy->n) return MPR_OK;
    with_size(mpri_dtype_size(dy->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_put_back<T>, blocks_for(dy->n, THREADS), THREADS, 0, c->queue,
                    (const T *)dy->data, (const int64_t *)c->in[1].data, lines_of(dy, p->axis),
                    (T *)dx->data, lines_of(dx, p->axis), c->step_id, c->device_fault);
    });
    return MPR_OK;
}

static const KernelRow rows[] = {
    CUDA_ROW(TopK, "topk", k_topk, .workspace = key_bytes),
    CUDA_ROW(TopKGrad, "topkgrad", k_topk_grad),
};
extern "C" const KernelTable mpri_cuda_topk = CUDA_TABLE(rows);
