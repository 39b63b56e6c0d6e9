/* Moves between channels, patches and positions. */
#include "kernels/ref/windows.h"

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

/* Blocks slide over the image as windows do. */
static RefWindows blocks_of(const Col2ImParams *p, const Tensor *image, const Tensor *block)
{
    RefWindows b = mpri_ref_windows();
    int spatial = image->rank - 2;
    for (int k = 0; k < spatial; k++) {
        WindowDim d = {.in = image->dims[k + 2],
                       .taps = mpri_load_i64(block->dtype, block->data, k),
                       .stride = p->strides.n ? p->strides.v[k] : 1,
                       .dilation = p->dilations.n ? p->dilations.v[k] : 1};
        mpri_window_pad(&d, NULL, p->pads, spatial, k);
        d.out = (d.in + d.begin + d.end - (d.taps - 1) * d.dilation - 1) / d.stride + 1;
        mpri_ref_windows_add(&b, d);
    }
    return b;
}

/* Inputs columns [N, C block, places], image_shape, block_shape. */
static mpr_status k_col2im(const KernelCall *c)
{
    RefWindows b = blocks_of(c->params, &c->out[0], &c->in[2]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t plane = i / b.in_n;
        double sum = 0;
        for (int64_t t = 0; t < b.tap_n; t++) {
            int64_t at = mpri_ref_windows_output(&b, i % b.in_n, t);
            if (at >= 0) sum += mpri_ref_load(&c->in[0], (plane * b.tap_n + t) * b.out_n + at);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* Inputs dy, block_shape: every image position is copied to where it came from. */
static mpr_status k_col2im_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0];
    RefWindows b = blocks_of(c->params, dy, &c->in[1]);
    if (c->out[0].n)
        memset(c->out[0].data, 0, (size_t)c->out[0].n * mpri_dtype_size(c->out[0].dtype));
    for (int64_t i = 0; i < dy->n; i++)
        for (int64_t t = 0; t < b.tap_n; t++) {
            int64_t at = mpri_ref_windows_output(&b, i % b.in_n, t);
            if (at >= 0) move(c, (i / b.in_n * b.tap_n + t) * b.out_n + at, i);
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
