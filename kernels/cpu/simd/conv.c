/* Convolution and its gradients as matrix products over gathered patches.
 *
 * For one image and group, with col = the patches and ck = input channels times taps,
 *   y[co, out] = w[co, ck] col[ck, out],   dcol = w^T dy,   dw = sum over images of dy col^T.
 * Patches keep the type of x (16-bit storage stays 16-bit) and are laid out along whichever
 * direction copies long runs: [ck, out] when the horizontal stride is 1 or 2, [out, ck] otherwise (a
 * patch embedding copies whole kernel rows); the product takes either. A 1x1 kernel needs no
 * gathering. Images go in chunks of bounded size. dcol is f32, so that dx, the sum over the patches
 * an input lies in, is rounded once. Large images go in bands instead (conv_band.c). */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd/conv_band.h"
#include "kernels/cpu/simd/conv_gather.h"

enum {
    CHUNK_ELEMENTS = 4 << 20, /* of gathered patches at a time */
    GRAIN = 1 << 16,          /* fewer elements are moved by one thread */
};

typedef struct Work {
    ConvShape s;
    const void *x, *dy, *w; /* as the operator has them */
    void *y;
    DType tx, ty;
    bool direct;          /* x is its own patch matrix */
    bool by_position;     /* col is [out, ck] */
    int64_t chunk;        /* images at a time */
    int64_t first, count; /* images of this chunk */
    void *col;
    void *gemm_workspace;
    float *sum; /* dw in f32 where dw is not */
    const Tensor *bias; /* of ConvTranspose, or NULL */
} Work;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static bool is_direct(const ConvShape *s)
{
    return s->taps == 1 && s->sh == 1 && s->sw == 1 && s->ph == 0 && s->pw == 0 && s->in == s->out;
}

static Work work_of(const ConvShape *s)
{
    Work w = {.s = *s, .direct = is_direct(s), .by_position = s->sw > 2};
    int64_t image = max64(1, s->group * s->ck * s->out);
    w.chunk = max64(1, min64(s->n, CHUNK_ELEMENTS / image));
    return w;
}

/* ---- gathering patches; U is an unsigned type of the element's size ---- */

#define GATHER(U)                                                                              \
    /* One row of output positions of one image and group into [out, ck]. */                   \
    static void patches_##U(const ConvShape *s, const U *x, U *col, int64_t oy)                \
    {                                                                                          \
        for (int64_t ox = 0; ox < s->ow; ox++) {                                               \
            int64_t ix0 = ox * s->sw - s->pw;                                                  \
            bool inside = s->dw == 1 && ix0 >= 0 && ix0 + s->kw <= s->w;                       \
            for (int64_t c = 0; c < s->ci; c++)                                                \
                for (int64_t ky = 0; ky < s->kh; ky++, col += s->kw) {                         \
                    int64_t iy = oy * s->sh + ky * s->dh - s->ph;                              \
                    const U *row = x + c * s->in + iy * s->w;                                  \
                    if (iy >= 0 && iy < s->h && inside) {                                      \
                        for (int64_t kx = 0; kx < s->kw; kx++) col[kx] = row[ix0 + kx];        \
                        continue;                                                              \
                    }                                                                          \
                    for (int64_t kx = 0; kx < s->kw; kx++) {                                   \
                        int64_t ix = ix0 + kx * s->dw;                                         \
                        col[kx] = iy < 0 || iy >= s->h || ix < 0 || ix >= s->w ? 0 : row[ix];  \
                    }                                                                          \
                }                                                                              \
        }                                                                                      \
    }
GATHER(uint16_t)
GATHER(uint32_t)
#undef GATHER

static void gather_tile(void *ctx, int64_t t)
{
    const Work *k = ctx;
    const ConvShape *s = &k->s;
    size_t e = mpri_dtype_size(k->tx);
    if (k->by_position) { /* tile: image, group, row */
        int64_t oy = t % s->oh, item = t / s->oh;
        const char *x =
            (const char *)k->x + (size_t)((k->first * s->group + item) * s->ci * s->in) * e;
        char *col = (char *)k->col + (size_t)((item * s->out + oy * s->ow) * s->ck) * e;
        if (e == 4) patches_uint32_t(s, (const uint32_t *)x, (uint32_t *)col, oy);
        else patches_uint16_t(s, (const uint16_t *)x, (uint16_t *)col, oy);
        return;
    }
    const char *x = (const char *)k->x + (size_t)((k->first * s->group * s->ci + t) * s->in) * e;
    char *col = (char *)k->col + (size_t)(t * s->taps * s->out) * e; /* tile: image, channel */
    if (e == 4) conv_rows_uint32_t(s, (const void *)x, (void *)col, s->out, 0, s->oh);
    else conv_rows_uint16_t(s, (const void *)x, (void *)col, s->out, 0, s->oh);
}

/* Room for the patches of x of one chunk. */
static size_t patch_bytes(const Work *k)
{
    if (k->direct) return 0;
    return align64((size_t)(k->chunk * k->s.group * k->s.ck * k->s.out) * mpri_dtype_size(k->tx));
}

static Threads *threads_for(Threads *t, int64_t elements) { return elements < GRAIN ? NULL : t; }

/* Patches of the current chunk; returns where they are. */
static const void *gather(Work *k, Threads *threads)
{
    const ConvShape *s = &k->s;
    if (k->direct)
        return (const char *)k->x +
               (size_t)(k->first * s->group * s->ck * s->out) * mpri_dtype_size(k->tx);
    int64_t tiles = k->count * s->group * (k->by_position ? s->oh : s->ci);
    mpri_parallel(threads_for(threads, k->count * s->group * s->ck * s->out), tiles, gather_tile,
                  k);
    return k->col;
}

/* ---- the three products of one chunk ---- */

static Gemm forward(const Work *k, int64_t count)
{
    const ConvShape *s = &k->s;
    bool trans = k->by_position && !k->direct;
    return (Gemm){.m = s->co,
                  .n = s->out,
                  .k = s->ck,
                  .ta = MPR_FLOAT32,
                  .tb = k->tx,
                  .tc = k->ty,
                  .trans_b = trans,
                  .lda = s->ck,
                  .ldb = trans ? s->ck : s->out,
                  .ldc = s->out,
                  .alpha = 1,
                  .bias_rows = true,
                  .batch = count,
                  .c_step = s->group * s->co * s->out,
                  .batch_rank = 1,
                  .batch_dims = {count},
                  .b_step = {s->group * s->ck * s->out}};
}

static Gemm backward_patches(const Work *k, int64_t count)
{
    const ConvShape *s = &k->s;
    return (Gemm){.m = s->ck,
                  .n = s->out,
                  .k = s->co,
                  .ta = MPR_FLOAT32,
                  .tb = k->ty,
                  .tc = MPR_FLOAT32,
                  .trans_a = true,
                  .lda = s->ck,
                  .ldb = s->out,
                  .ldc = s->out,
                  .alpha = 1,
                  .batch = count,
                  .c_step = s->group * s->ck * s->out,
                  .batch_rank = 1,
                  .batch_dims = {count},
                  .b_step = {s->group * s->co * s->out}};
}

static Gemm backward_weight(const Work *k)
{
    const ConvShape *s = &k->s;
    bool rows = k->by_position && !k->direct;
    return (Gemm){.m = s->co,
                  .n = s->ck,
                  .k = s->out,
                  .ta = k->ty,
                  .tb = k->tx,
                  .tc = MPR_FLOAT32,
                  .trans_b = !rows,
                  .lda = s->out,
                  .ldb = rows ? s->ck : s->out,
                  .ldc = s->ck,
                  .alpha = 1,
                  .batch = 1};
}

static const void *at(const void *p, int64_t elements, DType t)
{
    return (const char *)p + (size_t)elements * mpri_dtype_size(t);
}

/* ---- operators ---- */

/* y = x convolved with w, of shape s. */
static void convolve(const KernelCall *c, const ConvShape *s, const Tensor *x, const void *w,
                     DType tw, const Tensor *bias, void *workspace)
{
    const Tensor *y = &c->out[0];
    if (MPRI_NAME(conv_band).fits(s, CONV_BAND_FORWARD)) {
        ConvBand band = {.s = *s, .use = CONV_BAND_FORWARD, .tx = x->dtype, .tw = tw,
                         .ty = y->dtype, .x = x->data, .w = w, .to = y->data, .bias = bias,
                         .workspace = workspace};
        MPRI_NAME(conv_band).run(&band, c->threads);
        return;
    }
    Work k = work_of(s);
    k.x = x->data;
    k.tx = x->dtype;
    k.ty = y->dtype;
    k.col = workspace;
    k.gemm_workspace = (char *)workspace + patch_bytes(&k);
    for (k.first = 0; k.first < s->n; k.first += k.chunk) {
        k.count = min64(k.chunk, s->n - k.first);
        const void *patches = gather(&k, c->threads);
        Gemm g = forward(&k, k.count);
        g.ta = tw;
        for (int64_t i = 0; i < s->group; i++) {
            g.a = at(w, i * s->co * s->ck, tw);
            g.b = at(patches, i * s->ck * s->out, k.tx);
            g.c = (char *)y->data +
                  (size_t)((k.first * s->group + i) * s->co * s->out) * mpri_dtype_size(k.ty);
            if (bias) {
                g.bias = at(bias->data, i * s->co, bias->dtype);
                g.tbias = bias->dtype;
            }
            MPRI_NAME(gemm).run(&g, k.gemm_workspace, c->threads);
        }
    }
}

static mpr_status k_conv(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *w = &c->in[1];
    if (c->out[0].n == 0) return MPR_OK;
    ConvShape s = conv_shape(c->params, x, w, &c->out[0]);
    const Tensor *bias = c->n_in > 2 && mpri_tensor_here(&c->in[2]) ? &c->in[2] : NULL;
    convolve(c, &s, x, w->data, w->dtype, bias, c->workspace);
    return MPR_OK;
}

/* ---- the gradient of the input, or ConvTranspose ----
 * With strides of 1 and channels enough for a product it is a convolution of dy with the weight turned
 * round: what is gathered then keeps the type of dy, and nothing is summed outside the product. */

static bool turns(const ConvShape *s) { return s->sh == 1 && s->sw == 1 && s->ci >= 16; }

static ConvShape turned_shape(const ConvShape *s)
{
    ConvShape t = *s;
    t.ci = s->co;
    t.co = s->ci;
    t.h = s->oh;
    t.w = s->ow;
    t.oh = s->h;
    t.ow = s->w;
    t.ph = (s->kh - 1) * s->dh - s->ph;
    t.pw = (s->kw - 1) * s->dw - s->pw;
    t.in = s->out;
    t.out = s->in;
    t.ck = s->co * s->taps;
    return t;
}

/* [group][co][ci][taps] -> [group][ci][co][taps], taps in reverse. */
static void turn_tile(void *ctx, int64_t tile)
{
    const Work *k = ctx;
    const ConvShape *s = &k->s;
    size_t e = mpri_dtype_size(k->tx);
    int64_t group = tile / s->ci, ci = tile % s->ci;
    for (int64_t co = 0; co < s->co; co++)
        for (int64_t t = 0; t < s->taps; t++) {
            int64_t from = ((group * s->co + co) * s->ci + ci) * s->taps + s->taps - 1 - t;
            int64_t to = (tile * s->co + co) * s->taps + t;
            if (e == 4) ((uint32_t *)k->col)[to] = ((const uint32_t *)k->w)[from];
            else ((uint16_t *)k->col)[to] = ((const uint16_t *)k->w)[from];
        }
}

static size_t turned_bytes(const Tensor *w)
{
    return align64((size_t)w->n * mpri_dtype_size(w->dtype));
}

static void turned_convolution(const KernelCall *c, const ConvShape *s, const Tensor *bias)
{
    const Tensor *dy = &c->in[0], *w = &c->in[1];
    Work k = {.s = *s, .w = w->data, .tx = w->dtype, .col = c->workspace};
    ConvShape t = turned_shape(s);
    mpri_parallel(threads_for(c->threads, w->n), s->group * s->ci, turn_tile, &k);
    convolve(c, &t, dy, k.col, w->dtype, bias, (char *)c->workspace + turned_bytes(w));
}

/* dx of one image and channel: every input row collects the patch rows it lies in. */
static void scatter_tile(void *ctx, int64_t t)
{
    const Work *k = ctx;
    const ConvShape *s = &k->s;
    const float *col = (const float *)k->col + t * s->taps * s->out;
    int64_t base = (k->first * s->group * s->ci + t) * s->in;
    float row[512], start = 0;
    if (k->bias) start = vf_ld1(k->bias->dtype, k->bias->data, t % (s->group * s->ci));
    for (int64_t iy = 0; iy < s->h; iy++)
        for (int64_t x0 = 0; x0 < s->w; x0 += 512) {
            int64_t n = min64(512, s->w - x0);
            for (int64_t i = 0; i < n; i++) row[i] = start;
            for (int64_t ky = 0; ky < s->kh; ky++) {
                int64_t oy = iy + s->ph - ky * s->dh;
                if (oy < 0 || oy % s->sh != 0 || oy / s->sh >= s->oh) continue;
                for (int64_t kx = 0; kx < s->kw; kx++) {
                    const float *from = col + (ky * s->kw + kx) * s->out + oy / s->sh * s->ow;
                    int64_t offset = kx * s->dw - s->pw - x0, low, high;
                    conv_range_(n, s->ow, s->sw, offset, &low, &high);
                    for (int64_t ox = low; ox < high; ox++) row[ox * s->sw + offset] += from[ox];
                }
            }
            int64_t to = base + iy * s->w + x0, i = 0;
            for (; i + VF_LANES <= n; i += VF_LANES) vf_st(k->tx, k->y, to + i, vf_load(row + i));
            if (i < n) vf_st_n(k->tx, k->y, to + i, vf_load_n(row + i, (int)(n - i)), (int)(n - i));
        }
}

/* dx (of dx's shape) = patches of w^T dy, plus the bias of ConvTranspose. */
static mpr_status grad_input(const KernelCall *c, const ConvParams *p, const Tensor *bias)
{
    const Tensor *dy = &c->in[0], *w = &c->in[1], *dx = &c->out[0];
    if (dx->n == 0) return MPR_OK;
    ConvShape s = conv_shape(p, dx, w, dy);
    if (turns(&s)) {
        turned_convolution(c, &s, bias);
        return MPR_OK;
    }
    if (MPRI_NAME(conv_band).fits(&s, CONV_BAND_INPUT)) {
        ConvBand band = {.s = s, .use = CONV_BAND_INPUT, .tx = dx->dtype, .tw = w->dtype,
                         .ty = dy->dtype, .w = w->data, .y = dy->data, .to = dx->data, .bias = bias,
                         .workspace = c->workspace};
        MPRI_NAME(conv_band).run(&band, c->threads);
        return MPR_OK;
    }
    Work k = work_of(&s);
    k.bias = bias;
    k.tx = dx->dtype;
    k.ty = dy->dtype;
    k.y = dx->data;
    k.col = c->workspace;
    k.gemm_workspace =
        (char *)c->workspace + align64((size_t)(k.chunk * s.group * s.ck * s.out) * sizeof(float));
    for (k.first = 0; k.first < s.n; k.first += k.chunk) {
        k.count = min64(k.chunk, s.n - k.first);
        Gemm g = backward_patches(&k, k.count);
        g.ta = w->dtype;
        for (int64_t i = 0; i < s.group; i++) {
            g.a = at(w->data, i * s.co * s.ck, w->dtype);
            g.b = at(dy->data, (k.first * s.group + i) * s.co * s.out, k.ty);
            g.c = (float *)k.col + i * s.ck * s.out;
            MPRI_NAME(gemm).run(&g, k.gemm_workspace, c->threads);
        }
        mpri_parallel(threads_for(c->threads, k.count * s.group * s.ck * s.out),
                      k.count * s.group * s.ci, scatter_tile, &k);
    }
    return MPR_OK;
}

static mpr_status k_grad_input(const KernelCall *c) { return grad_input(c, c->params, NULL); }

/* y = ConvTranspose(x, w) is the gradient of the Conv that has y as input. */
static mpr_status k_transpose(const KernelCall *c)
{
    int64_t pads[2 * MPRI_TENSOR_RANK];
    ConvParams p = conv_of_transpose(c->params, &c->in[0], &c->in[1], &c->out[0], pads);
    bool bias = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    return grad_input(c, &p, bias ? &c->in[2] : NULL);
}

static void convert_tile(void *ctx, int64_t t)
{
    const Work *k = ctx;
    int64_t all = k->s.group * k->s.co * k->s.ck, i = t * 16384, end = min64(all, i + 16384);
    for (; i + VF_LANES <= end; i += VF_LANES) vf_st(k->ty, k->y, i, vf_load(k->sum + i));
    if (i < end) vf_st_n(k->ty, k->y, i, vf_load_n(k->sum + i, (int)(end - i)), (int)(end - i));
}

static mpr_status k_grad_weight(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *dw = &c->out[0];
    if (dw->n == 0) return MPR_OK;
    ConvShape s = conv_shape(c->params, x, dw, dy);
    if (MPRI_NAME(conv_band).fits(&s, CONV_BAND_WEIGHT)) {
        ConvBand band = {.s = s, .use = CONV_BAND_WEIGHT, .tx = x->dtype, .tw = dw->dtype,
                         .ty = dy->dtype, .x = x->data, .y = dy->data, .to = dw->data,
                         .workspace = c->workspace};
        MPRI_NAME(conv_band).run(&band, c->threads);
        return MPR_OK;
    }
    Work k = work_of(&s);
    k.x = x->data;
    k.tx = x->dtype;
    k.ty = dy->dtype;
    k.y = dw->data;
    k.col = c->workspace;
    bool f32 = dw->dtype == MPR_FLOAT32;
    char *free_space = (char *)c->workspace + patch_bytes(&k);
    k.sum = f32 ? dw->data : (void *)free_space;
    if (!f32) free_space += align64((size_t)dw->n * sizeof(float));
    k.gemm_workspace = free_space;
    if (s.n == 0 || s.out == 0) memset(k.sum, 0, (size_t)dw->n * sizeof(float));
    for (k.first = 0; k.first < s.n && s.out > 0; k.first += k.chunk) {
        k.count = min64(k.chunk, s.n - k.first);
        const void *patches = gather(&k, c->threads);
        Gemm g = backward_weight(&k);
        for (int64_t item = 0; item < k.count * s.group; item++) {
            g.a = at(dy->data, (k.first * s.group + item) * s.co * s.out, k.ty);
            g.b = at(patches, item * s.ck * s.out, k.tx);
            g.c = k.sum + item % s.group * s.co * s.ck;
            g.add = k.first * s.group + item >= s.group;
            MPRI_NAME(gemm).run(&g, k.gemm_workspace, c->threads);
        }
    }
    if (!f32) {
        k.ty = dw->dtype;
        mpri_parallel(threads_for(c->threads, dw->n), (dw->n + 16383) / 16384, convert_tile, &k);
    }
    return MPR_OK;
}

/* ---- rows ---- */

static size_t workspace(const KernelSig *sig, int threads)
{
    const Tensor *first = &sig->in[0], *second = &sig->in[1], *out = &sig->out[0];
    bool to_input = sig->op == OP_ConvGradInput || sig->op == OP_ConvTranspose;
    const Tensor *x = sig->op == OP_Conv ? first : to_input ? out : second;
    const Tensor *w = sig->op == OP_ConvGradWeight ? out : second,
                 *y = sig->op == OP_Conv ? out : first;
    int64_t pads[2 * MPRI_TENSOR_RANK];
    ConvParams p;
    if (sig->op == OP_ConvTranspose) p = conv_of_transpose(sig->params, first, second, out, pads);
    else p = *(const ConvParams *)sig->params;
    ConvShape s = conv_shape(&p, x, w, y);
    if (to_input && turns(&s)) {
        ConvShape t = turned_shape(&s);
        if (MPRI_NAME(conv_band).fits(&t, CONV_BAND_FORWARD)) {
            ConvBand band = {.s = t, .use = CONV_BAND_FORWARD, .tx = y->dtype, .tw = w->dtype,
                             .ty = x->dtype};
            return turned_bytes(w) + MPRI_NAME(conv_band).workspace(&band, threads);
        }
        Work k = work_of(&t);
        k.tx = y->dtype;
        k.ty = x->dtype;
        Gemm g = forward(&k, k.chunk);
        return turned_bytes(w) + patch_bytes(&k) + MPRI_NAME(gemm).workspace(&g, threads);
    }
    ConvBandUse use = sig->op == OP_Conv ? CONV_BAND_FORWARD
                      : to_input         ? CONV_BAND_INPUT
                                         : CONV_BAND_WEIGHT;
    if (MPRI_NAME(conv_band).fits(&s, use)) {
        ConvBand band = {.s = s, .use = use, .tx = x->dtype, .tw = w->dtype, .ty = y->dtype};
        return MPRI_NAME(conv_band).workspace(&band, threads);
    }
    Work k = work_of(&s);
    k.tx = x->dtype;
    k.ty = y->dtype;
    size_t patches = (size_t)(k.chunk * s.group * s.ck * s.out), bytes = patch_bytes(&k);
    if (to_input) {
        Gemm g = backward_patches(&k, k.chunk);
        return align64(patches * sizeof(float)) + MPRI_NAME(gemm).workspace(&g, threads);
    }
    Gemm g = sig->op == OP_Conv ? forward(&k, k.chunk) : backward_weight(&k);
    if (sig->op == OP_ConvGradWeight && w->dtype != MPR_FLOAT32)
        bytes += align64((size_t)w->n * sizeof(float));
    return bytes + MPRI_NAME(gemm).workspace(&g, threads);
}

#define ENTRY(Op, function, text)                                                  \
    {                                                                              \
        .op = OP_##Op, .name = MPRI_ROW(text), .isa = MPRI_ISA_ID, .fn = function, \
        .refuse = conv_refuse, .workspace = workspace, .flops = conv_flops         \
    }
static const KernelRow rows[] = {
    ENTRY(Conv, k_conv, "conv"),
    ENTRY(ConvGradInput, k_grad_input, "convgradinput"),
    ENTRY(ConvGradWeight, k_grad_weight, "convgradweight"),
    ENTRY(ConvTranspose, k_transpose, "convtranspose"),
};

const KernelTable MPRI_NAME(cpu_conv) = {rows, sizeof rows / sizeof rows[0]};
