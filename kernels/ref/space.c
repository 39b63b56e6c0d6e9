/* Moves between channels, patches and positions. */
#include "kernels/ref/util.h"

static void move(const KernelCall *c, int64_t to, int64_t from)
{
    size_t size = mpri_dtype_size(c->out[0].dtype);
    memcpy((char *)c->out[0].data + (size_t)to * size,
           (const char *)c->in[0].data + (size_t)from * size, size);
}

/* Position in [N, C b b, H, W] of the element at [n, ch, y, x] of [N, C, H b, W b]. */
static int64_t deep(int64_t i, const Tensor *wide, int64_t b, bool channels_first)
{
    int64_t W = wide->dims[3], H = wide->dims[2], C = wide->dims[1];
    int64_t x = i % W, y = i / W % H, ch = i / W / H % C, n = i / W / H / C;
    int64_t block = y % b * b + x % b;
    int64_t depth = channels_first ? ch * b * b + block : block * C + ch;
    return ((n * C * b * b + depth) * (H / b) + y / b) * (W / b) + x / b;
}

static mpr_status k_depth_to_space(const KernelCall *c)
{
    const DepthToSpaceParams *p = c->params;
    bool channels_first = strcmp(p->mode, "CRD") == 0;
    for (int64_t i = 0; i < c->out[0].n; i++)
        move(c, i, deep(i, &c->out[0], p->blocksize, channels_first));
    return MPR_OK;
}

static mpr_status k_space_to_depth(const KernelCall *c)
{
    int64_t b = ((const SpaceToDepthParams *)c->params)->blocksize;
    for (int64_t i = 0; i < c->in[0].n; i++) move(c, deep(i, &c->in[0], b, false), i);
    return MPR_OK;
}

/* An axis is shifted by half of the difference, rounded down, either way. */
static mpr_status k_center_crop_pad(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n) memset(y->data, 0, (size_t)y->n * mpri_dtype_size(y->dtype));
    for (int64_t i = 0; i < y->n; i++) {
        int64_t rest = i, at = 0, stride = 1;
        bool inside = true;
        for (int k = x->rank - 1; k >= 0; k--) {
            int64_t less = x->dims[k] - y->dims[k];
            int64_t j = rest % y->dims[k] + (less >= 0 ? less / 2 : -(-less / 2));
            inside = inside && j >= 0 && j < x->dims[k];
            at += j * stride;
            stride *= x->dims[k];
            rest /= y->dims[k];
        }
        if (inside) move(c, i, at);
    }
    return MPR_OK;
}

/* ---- Col2Im ---- */

typedef struct Blocks {
    int spatial;
    int64_t image[MPRI_TENSOR_RANK], block[MPRI_TENSOR_RANK], places[MPRI_TENSOR_RANK];
    int64_t stride[MPRI_TENSOR_RANK], dilation[MPRI_TENSOR_RANK], pad[MPRI_TENSOR_RANK];
    int64_t image_n, block_n, places_n;
} Blocks;

static Blocks blocks_of(const Col2ImParams *p, const Tensor *image, const Tensor *block)
{
    Blocks b = {.spatial = image->rank - 2, .image_n = 1, .block_n = 1, .places_n = 1};
    for (int k = 0; k < b.spatial; k++) {
        b.image[k] = image->dims[k + 2];
        b.block[k] = mpri_load_i64(block->dtype, block->data, k);
        b.stride[k] = p->strides.n ? p->strides.v[k] : 1;
        b.dilation[k] = p->dilations.n ? p->dilations.v[k] : 1;
        b.pad[k] = p->pads.n ? p->pads.v[k] : 0;
        int64_t end = p->pads.n ? p->pads.v[k + b.spatial] : 0;
        int64_t room = b.image[k] + b.pad[k] + end - (b.block[k] - 1) * b.dilation[k] - 1;
        b.places[k] = room / b.stride[k] + 1;
        b.image_n *= b.image[k];
        b.block_n *= b.block[k];
        b.places_n *= b.places[k];
    }
    return b;
}

/* Place from which element `t` of the block covers position i of the image, or -1. */
static int64_t place_at(const Blocks *b, int64_t i, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = b->spatial - 1; k >= 0; k--) {
        int64_t o = i % b->image[k] + b->pad[k] - t % b->block[k] * b->dilation[k];
        if (o < 0 || o % b->stride[k] != 0 || o / b->stride[k] >= b->places[k]) return -1;
        at += o / b->stride[k] * stride;
        stride *= b->places[k];
        i /= b->image[k];
        t /= b->block[k];
    }
    return at;
}

/* Inputs columns [N, C block, places], image_shape, block_shape. */
static mpr_status k_col2im(const KernelCall *c)
{
    Blocks b = blocks_of(c->params, &c->out[0], &c->in[2]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t plane = i / b.image_n;
        double sum = 0;
        for (int64_t t = 0; t < b.block_n; t++) {
            int64_t at = place_at(&b, i % b.image_n, t);
            if (at >= 0) sum += mpri_ref_load(&c->in[0], (plane * b.block_n + t) * b.places_n + at);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* Inputs dy, block_shape: every image position is copied to where it came from. */
static mpr_status k_col2im_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0];
    Blocks b = blocks_of(c->params, dy, &c->in[1]);
    if (c->out[0].n)
        memset(c->out[0].data, 0, (size_t)c->out[0].n * mpri_dtype_size(c->out[0].dtype));
    for (int64_t i = 0; i < dy->n; i++)
        for (int64_t t = 0; t < b.block_n; t++) {
            int64_t at = place_at(&b, i % b.image_n, t);
            if (at >= 0) move(c, (i / b.image_n * b.block_n + t) * b.places_n + at, i);
        }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(DepthToSpace, "depthtospace", k_depth_to_space),
    REF_ROW(SpaceToDepth, "spacetodepth", k_space_to_depth),
    REF_ROW(CenterCropPad, "centercroppad", k_center_crop_pad),
    REF_ROW(Col2Im, "col2im", k_col2im),
    REF_ROW(Col2ImGrad, "col2imgrad", k_col2im_grad),
};
const KernelTable mpri_ref_space = REF_TABLE(rows);
