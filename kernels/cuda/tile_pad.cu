/* Tile, Pad and CenterCropPad: any type, by element size. Tile is a move that walks every dim of
 * the source again and again. Pad looks its source up axis by axis (runtime/op/pad_index.h defines
 * where), a thread per element of the result; the pads must be constants, what fills lies on the
 * device. Traffic: what is moved, read once and written once, in Tile read from the cache. 256
 * threads a block. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"
#include "runtime/op/pad_index.h"

enum { THREADS = 256 };

static mpr_status k_tile_copy(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Move m = move_begin(y->data, x->data, y->dtype);
    if (!y->n) return MPR_OK;
    for (int k = 0; k < y->rank; k++) {
        int64_t in = span_of(x, k + 1, x->rank), out = span_of(y, k + 1, y->rank);
        move_dim(&m, y->dims[k] / x->dims[k], 0, out * x->dims[k]);
        move_dim(&m, x->dims[k], in, out);
    }
    mpri_cuda_move(&m, c->queue);
    return MPR_OK;
}

typedef struct Padding {
    int rank, mode;                                      /* first letter of the name */
    int64_t dims[MPRI_TENSOR_RANK], in[MPRI_TENSOR_RANK]; /* of the result; of the source */
    int64_t before[MPRI_TENSOR_RANK], after[MPRI_TENSOR_RANK];
} Padding;

template <typename T>
__global__ void k_padded(const T *x, const T *fill, T *y, int64_t n, Padding p)
{
    char mode[2] = {(char)p.mode, 0};
    T other = fill ? *fill : (T)0;
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t rest = i, from = 0, stride = 1;
        bool inside = true;
        for (int k = p.rank - 1; k >= 0; k--) {
            int64_t q = rest / p.dims[k];
            int64_t at =
                mpri_pad_source(mode, p.in[k], p.before[k], p.after[k], rest - q * p.dims[k]);
            inside = inside && at >= 0;
            from += at * stride;
            stride *= p.in[k];
            rest = q;
        }
        y[i] = inside ? x[from] : other;
    }
}

static mpr_status pad(const KernelCall *c, Padding *p, const Tensor *fill)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    p->rank = y->rank;
    for (int k = 0; k < y->rank; k++) p->dims[k] = y->dims[k], p->in[k] = x->dims[k];
    with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_padded<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue,
                    (const T *)x->data, fill ? (const T *)fill->data : NULL, (T *)y->data, y->n,
                    *p);
    });
    return MPR_OK;
}

/* Inputs data, pads, constant_value (optional), axes (optional). */
static mpr_status k_pad(const KernelCall *c)
{
    const PadParams *params = (const PadParams *)c->params;
    const Tensor *pads = &c->in[1], *axes = input_of(c, 3);
    Padding p = {};
    int64_t n = pads->n / 2;
    p.mode = params->mode[0];
    for (int64_t i = 0; i < n; i++) {
        int axis = axis_of(axes ? mpri_load_i64(axes->dtype, axes->host, i) : i, c->in[0].rank);
        p.before[axis] = mpri_load_i64(pads->dtype, pads->host, i);
        p.after[axis] = mpri_load_i64(pads->dtype, pads->host, n + i);
    }
    return pad(c, &p, input_of(c, 2));
}

static const char *refuse_pad(const KernelSig *s)
{
    for (int k = 1; k < s->n_in; k += 2)
        if (mpri_tensor_here(&s->in[k]) && !(s->const_in >> k & 1))
            return "pads and axes are no constants";
    return NULL;
}

/* An axis is shifted by half of the difference, rounded down, either way. */
static mpr_status k_center_crop_pad(const KernelCall *c)
{
    Padding p = {};
    p.mode = 'c';
    for (int k = 0; k < c->out[0].rank; k++) {
        int64_t less = c->in[0].dims[k] - c->out[0].dims[k];
        p.before[k] = less >= 0 ? -(less / 2) : -less / 2;
        p.after[k] = -less - p.before[k];
    }
    return pad(c, &p, NULL);
}

static const KernelRow rows[] = {
    CUDA_ROW(Tile, "tile", k_tile_copy),
    CUDA_ROW(Pad, "pad", k_pad, .refuse = refuse_pad),
    CUDA_ROW(CenterCropPad, "centercroppad", k_center_crop_pad),
};
extern "C" const KernelTable mpri_cuda_tile_pad = CUDA_TABLE(rows);
