/* Moves between channels and patches: transposed views of six dims, by the engine of move.cuh; a
 * pixel's block is two dims of the picture and two of the channels. Traffic: read once, written
 * once. Col2Im and its gradient: a thread per element of the image or the columns, which looks at
 * the windows that meet it; sums in the order of the taps. 256 threads a block. */
#include "kernels/cuda/move.cuh"
#include "runtime/op/window.h"

#include <string.h>

enum { THREADS = 256 };

/* The wide side is [N, C, H b, W b]; the deep one [N, depth, H, W], depth = (C, b, b) with
 * channels_first, or (b, b, C), which is the only order of SpaceToDepth. */
static mpr_status between(const KernelCall *c, const Tensor *wide, int64_t b, bool channels_first,
                          bool to_wide)
{
    int64_t n = wide->dims[0], ch = wide->dims[1], h = wide->dims[2] / b, w = wide->dims[3] / b;
    int64_t plane = h * w, of_channel = channels_first ? b * b * plane : plane,
            of_block = channels_first ? plane : ch * plane;
    int64_t dims[6] = {n, ch, h, b, w, b};
    int64_t in_wide[6] = {ch * h * b * w * b, h * b * w * b, b * w * b, w * b, b, 1};
    int64_t in_deep[6] = {ch * b * b * plane, of_channel, w, b * of_block, 1, of_block};
    Move m = move_begin(c->out[0].data, c->in[0].data, c->out[0].dtype);
    if (!wide->n) return MPR_OK;
    const int blocks_first[6] = {0, 3, 5, 1, 2, 4};
    for (int i = 0; i < 6; i++) { /* in the order of the target */
        int k = to_wide ? i : blocks_first[i];
        move_dim(&m, dims[k], to_wide ? in_deep[k] : in_wide[k], to_wide ? in_wide[k] : in_deep[k]);
    }
    mpri_cuda_move(&m, c->queue);
    return MPR_OK;
}

static mpr_status k_depth_to_space(const KernelCall *c)
{
    const DepthToSpaceParams *p = (const DepthToSpaceParams *)c->params;
    return between(c, &c->out[0], p->blocksize, strcmp(p->mode, "CRD") == 0, true);
}
static mpr_status k_space_to_depth(const KernelCall *c)
{
    const SpaceToDepthParams *p = (const SpaceToDepthParams *)c->params;
    return between(c, &c->in[0], p->blocksize, false, false);
}

/* ---- Col2Im: blocks slide over the image as windows do ---- */

typedef struct Blocks {
    int spatial;
    int64_t in_n, out_n, tap_n; /* positions of one plane */
    WindowDim d[MPRI_TENSOR_RANK];
} Blocks;

/* The block that sees image position i through tap t, or -1. */
static __device__ int64_t block_at(const Blocks &b, int64_t i, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = b.spatial - 1; k >= 0; k--) {
        const WindowDim &d = b.d[k];
        int64_t o = i % d.in + d.begin - t % d.taps * d.dilation;
        if (o < 0 || o % d.stride != 0 || o / d.stride >= d.out) return -1;
        at += o / d.stride * stride;
        stride *= d.out;
        i /= d.in;
        t /= d.taps;
    }
    return at;
}

static Blocks blocks_of(const KernelCall *c, const Tensor *image, const Tensor *block)
{
    const Col2ImParams *p = (const Col2ImParams *)c->params;
    Blocks b = {};
    int spatial = image->rank - 2;
    b.spatial = spatial;
    b.in_n = b.out_n = b.tap_n = 1;
    for (int k = 0; k < spatial; k++) {
        WindowDim d = {};
        d.in = image->dims[k + 2];
        d.taps = mpri_load_i64(block->dtype, block->host, k);
        d.stride = p->strides.n ? p->strides.v[k] : 1;
        d.dilation = p->dilations.n ? p->dilations.v[k] : 1;
        mpri_window_pad(&d, NULL, p->pads, spatial, k);
        d.out = (d.in + d.begin + d.end - (d.taps - 1) * d.dilation - 1) / d.stride + 1;
        b.d[k] = d;
        b.in_n *= d.in;
        b.out_n *= d.out;
        b.tap_n *= d.taps;
    }
    return b;
}

__global__ void k_image(const void *columns, int tx, void *image, int ty, int64_t n, Blocks b)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t plane = i / b.in_n, place = i - plane * b.in_n;
        float sum = 0;
        for (int64_t t = 0; t < b.tap_n; t++) {
            int64_t at = block_at(b, place, t);
            if (at >= 0) sum += load_float(columns, tx, (plane * b.tap_n + t) * b.out_n + at);
        }
        store_float(image, ty, i, sum);
    }
}

/* Every image position goes to where it came from; the columns are zero elsewhere. */
template <typename T> __global__ void k_columns(const T *image, T *columns, int64_t n, Blocks b)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t plane = i / b.in_n, place = i - plane * b.in_n;
        for (int64_t t = 0; t < b.tap_n; t++) {
            int64_t at = block_at(b, place, t);
            if (at >= 0) columns[(plane * b.tap_n + t) * b.out_n + at] = image[i];
        }
    }
}

/* Inputs columns [N, C block, places], image_shape, block_shape. */
static mpr_status k_col2im(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    MPRI_LAUNCH(k_image, blocks_for(y->n, THREADS), THREADS, 0, c->queue, x->data, (int)x->dtype,
                y->data, (int)y->dtype, y->n, blocks_of(c, y, &c->in[2]));
    return MPR_OK;
}

/* Inputs dy, block_shape. */
static mpr_status k_col2im_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    move_zero(dx, c->queue);
    if (!dy->n || !dx->n) return MPR_OK;
    with_size(mpri_dtype_size(dy->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_columns<T>, blocks_for(dy->n, THREADS), THREADS, 0, c->queue,
                    (const T *)dy->data, (T *)dx->data, dy->n, blocks_of(c, dy, &c->in[1]));
    });
    return MPR_OK;
}

static const char *refuse_col2im(const KernelSig *s)
{
    if (!cuda_float(s->in[0].dtype)) return CUDA_NOT_FLOAT;
    return s->const_in & 4 ? NULL : "the block's shape is no constant";
}
static const char *refuse_col2im_grad(const KernelSig *s)
{
    return s->const_in & 2 ? NULL : "the block's shape is no constant";
}

static const KernelRow rows[] = {
    CUDA_ROW(DepthToSpace, "depthtospace", k_depth_to_space),
    CUDA_ROW(SpaceToDepth, "spacetodepth", k_space_to_depth),
    CUDA_ROW(Col2Im, "col2im", k_col2im, .refuse = refuse_col2im),
    CUDA_ROW(Col2ImGrad, "col2imgrad", k_col2im_grad, .refuse = refuse_col2im_grad),
};
extern "C" const KernelTable mpri_cuda_space = CUDA_TABLE(rows);
