/* OneHot and EyeLike: a thread per element of the result, which is written once. 256 threads a
 * block. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"

enum { THREADS = 256 };

/* Indices of any number type, from the end when negative; one outside the depth marks nothing. */
template <typename T> __global__ void k_one_hot(const void *idx, int type, const T *values, T *y,
                                                int64_t n, int64_t depth, int64_t inner)
{
    T off = values[0], on = values[1];
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t line = i / inner, here = line % depth,
                at = line / depth * inner + (i - line * inner);
        bool hit;
        if (type_is_float(type)) {
            double v = load_f64(idx, type, at);
            hit = (v < 0 ? v + (double)depth : v) == (double)here;
        } else {
            int64_t v = load_i64(idx, type, at);
            hit = (v < 0 && type != MPR_UINT64 ? v + depth : v) == here;
        }
        y[i] = hit ? on : off;
    }
}

static mpr_status k_onehot(const KernelCall *c)
{
    const OneHotParams *p = (const OneHotParams *)c->params;
    const Tensor *idx = &c->in[0], *y = &c->out[0];
    int axis = axis_of(p->axis, y->rank);
    if (!y->n) return MPR_OK;
    with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_one_hot<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue, idx->data,
                    (int)idx->dtype, (const T *)c->in[2].data, (T *)y->data, y->n, y->dims[axis],
                    span_of(y, axis + 1, y->rank));
    });
    return MPR_OK;
}

__global__ void k_eye(void *y, int type, int64_t n, int64_t cols, int64_t k)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t row = i / cols;
        bool on = i - row * cols - row == k;
        if (type_is_float(type)) store_f64(y, type, i, on ? 1.0 : 0.0);
        else store_i64(y, type, i, on);
    }
}

static mpr_status k_eye_like(const KernelCall *c)
{
    const EyeLikeParams *p = (const EyeLikeParams *)c->params;
    const Tensor *y = &c->out[0];
    if (!y->n) return MPR_OK;
    MPRI_LAUNCH(k_eye, blocks_for(y->n, THREADS), THREADS, 0, c->queue, y->data, (int)y->dtype,
                y->n, y->dims[1], p->k);
    return MPR_OK;
}

static const KernelRow rows[] = {
    CUDA_ROW(OneHot, "onehot", k_onehot),
    CUDA_ROW(EyeLike, "eyelike", k_eye_like),
};
extern "C" const KernelTable mpri_cuda_onehot = CUDA_TABLE(rows);
