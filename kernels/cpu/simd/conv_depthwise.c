/* Convolution with one input channel per group, and its gradients, without gathering: as matrices
 * these products are a few numbers high, so whole output rows are swept once per tap instead.
 *
 * Sums are f32, in the order of taps, then rows; a row is worked on in runs that fit the L1 cache.
 */
#include "kernels/cpu/simd/conv.h"

enum {
    RUN = 1024,
    GRAIN = 1 << 16
}; /* elements of a row at a time; below GRAIN one thread does all */

typedef struct Work {
    ConvShape s;
    const Tensor *x, *w, *dy, *bias;
    Tensor *out;
} Work;

/* acc[i] += factor * p[at + i * stride], 0 <= i < n */
static void add_row(float *acc, float factor, const Tensor *p, int64_t at, int64_t stride,
                    int64_t n)
{
    int64_t i = 0;
    if (stride == 1) {
        const vf f = vf_set1(factor);
        for (; i + VF_LANES <= n; i += VF_LANES)
            vf_store(acc + i, vf_fma(f, vf_ld(p->dtype, p->data, at + i), vf_load(acc + i)));
        if (i < n) {
            int left = (int)(n - i);
            vf v = vf_ld_n(p->dtype, p->data, at + i, left);
            vf_store_n(acc + i, vf_fma(f, v, vf_load_n(acc + i, left)), left);
        }
        return;
    }
    for (; i < n; i++) acc[i] += factor * vf_ld1(p->dtype, p->data, at + i * stride);
}

static void store_row(Tensor *out, int64_t at, const float *acc, int64_t n)
{
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) vf_st(out->dtype, out->data, at + i, vf_load(acc + i));
    if (i < n) {
        int left = (int)(n - i);
        vf_st_n(out->dtype, out->data, at + i, vf_load_n(acc + i, left), left);
    }
}

/* One image and output channel. */
static void forward_tile(void *ctx, int64_t t)
{
    const Work *k = ctx;
    const ConvShape *s = &k->s;
    int64_t channels = s->group * s->co, oc = t % channels, image = t / channels;
    int64_t in = (image * s->group + oc / s->co) * s->in;
    float acc[RUN], start = k->bias ? vf_ld1(k->bias->dtype, k->bias->data, oc) : 0.0f;
    for (int64_t oy = 0; oy < s->oh; oy++)
        for (int64_t x0 = 0; x0 < s->ow; x0 += RUN) {
            int64_t n = s->ow - x0 < RUN ? s->ow - x0 : RUN;
            for (int64_t i = 0; i < n; i++) acc[i] = start;
            for (int64_t tap = 0; tap < s->taps; tap++) {
                int64_t iy = oy * s->sh + tap / s->kw * s->dh - s->ph, low, high;
                int64_t offset = x0 * s->sw + tap % s->kw * s->dw - s->pw;
                if (iy < 0 || iy >= s->h) continue;
                conv_range_(s->w, n, s->sw, offset, &low, &high);
                float weight = vf_ld1(k->w->dtype, k->w->data, oc * s->taps + tap);
                int64_t from = in + iy * s->w + low * s->sw + offset;
                add_row(acc + low, weight, k->x, from, s->sw, high - low);
            }
            store_row(k->out, (t * s->oh + oy) * s->ow + x0, acc, n);
        }
}

/* One image and input channel: row[ox * stride + offset] += weight * dy[ox]. */
static void input_tile(void *ctx, int64_t t)
{
    const Work *k = ctx;
    const ConvShape *s = &k->s;
    float row[RUN];
    for (int64_t iy = 0; iy < s->h; iy++)
        for (int64_t x0 = 0; x0 < s->w; x0 += RUN) {
            int64_t n = s->w - x0 < RUN ? s->w - x0 : RUN;
            memset(row, 0, (size_t)n * sizeof *row);
            for (int64_t j = 0; j < s->co * s->taps; j++) {
                int64_t o = t * s->co + j / s->taps, tap = j % s->taps, low,
                        high; /* image, channel */
                int64_t oy = iy + s->ph - tap / s->kw * s->dh;
                if (oy < 0 || oy % s->sh != 0 || oy / s->sh >= s->oh) continue;
                int64_t offset = tap % s->kw * s->dw - s->pw - x0;
                conv_range_(n, s->ow, s->sw, offset, &low, &high);
                int64_t oc = o % (s->group * s->co), from = (o * s->oh + oy / s->sh) * s->ow;
                float weight = vf_ld1(k->w->dtype, k->w->data, oc * s->taps + tap);
                if (s->sw == 1) {
                    add_row(row + low + offset, weight, k->dy, from + low, 1, high - low);
                    continue;
                }
                for (int64_t ox = low; ox < high; ox++)
                    row[ox * s->sw + offset] +=
                        weight * vf_ld1(k->dy->dtype, k->dy->data, from + ox);
            }
            store_row(k->out, (t * s->h + iy) * s->w + x0, row, n);
        }
}

/* sum of dy[i] * x[i * stride], added to *lanes (stride 1) or *rest. */
static void dot_row(const Work *k, int64_t dy, int64_t x, int64_t stride, int64_t n, vf *lanes,
                    float *rest)
{
    DType ty = k->dy->dtype, tx = k->x->dtype;
    int64_t i = 0;
    if (stride == 1)
        for (; i < n; i += VF_LANES) {
            int left = n - i < VF_LANES ? (int)(n - i) : VF_LANES;
            vf a = vf_ld_n(ty, k->dy->data, dy + i, left), b = vf_ld_n(tx, k->x->data, x + i, left);
            *lanes = vf_fma(a, b, *lanes);
        }
    for (; i < n; i++)
        *rest += vf_ld1(ty, k->dy->data, dy + i) * vf_ld1(tx, k->x->data, x + i * stride);
}

/* One weight. */
static void weight_tile(void *ctx, int64_t t)
{
    const Work *k = ctx;
    const ConvShape *s = &k->s;
    int64_t channels = s->group * s->co, oc = t / s->taps, tap = t % s->taps, low, high;
    int64_t offset = tap % s->kw * s->dw - s->pw;
    conv_range_(s->w, s->ow, s->sw, offset, &low, &high);
    vf lanes = vf_zero();
    float rest = 0;
    for (int64_t image = 0; image < s->n; image++)
        for (int64_t oy = 0; oy < s->oh; oy++) {
            int64_t iy = oy * s->sh + tap / s->kw * s->dh - s->ph;
            if (iy < 0 || iy >= s->h) continue;
            int64_t dy = ((image * channels + oc) * s->oh + oy) * s->ow + low;
            int64_t x = ((image * s->group + oc / s->co) * s->h + iy) * s->w + low * s->sw + offset;
            dot_row(k, dy, x, s->sw, high - low, &lanes, &rest);
        }
    vf_st1(k->out->dtype, k->out->data, t, vf_hsum(lanes) + rest);
}

static mpr_status run(const Work *k, const KernelCall *c, int64_t tiles,
                      void (*tile)(void *, int64_t))
{
    int64_t work = k->s.n * k->s.group * k->s.co * k->s.out * k->s.taps;
    mpri_parallel(work < GRAIN ? NULL : c->threads, tiles, tile, (void *)(uintptr_t)k);
    return MPR_OK;
}

static mpr_status k_conv(const KernelCall *c)
{
    Work k = {.x = &c->in[0], .w = &c->in[1], .out = &c->out[0]};
    if (k.out->n == 0) return MPR_OK;
    if (c->n_in > 2 && mpri_tensor_here(&c->in[2])) k.bias = &c->in[2];
    k.s = conv_shape(c->params, k.x, k.w, k.out);
    return run(&k, c, k.s.n * k.s.group * k.s.co, forward_tile);
}

static mpr_status k_grad_input(const KernelCall *c)
{
    Work k = {.dy = &c->in[0], .w = &c->in[1], .out = &c->out[0]};
    if (k.out->n == 0) return MPR_OK;
    k.s = conv_shape(c->params, k.out, k.w, k.dy);
    return run(&k, c, k.s.n * k.s.group, input_tile);
}

static mpr_status k_grad_weight(const KernelCall *c)
{
    Work k = {.dy = &c->in[0], .x = &c->in[1], .out = &c->out[0]};
    if (k.out->n == 0) return MPR_OK;
    k.s = conv_shape(c->params, k.x, k.out, k.dy);
    return run(&k, c, k.out->n, weight_tile);
}

/* ---- rows ---- */

static const char *refuse(const KernelSig *sig)
{
    const Tensor *w = sig->op == OP_ConvGradWeight ? &sig->out[0] : &sig->in[1];
    const char *why = conv_refuse(sig);
    if (why) return why;
    if (w->dims[1] != 1) return "more than one input channel per group";
    if (((const ConvParams *)sig->params)->group < 2) return "one group";
    return NULL;
}

#define ENTRY(Op, function, text)                                                  \
    {                                                                              \
        .op = OP_##Op, .name = MPRI_ROW(text), .isa = MPRI_ISA_ID, .fn = function, \
        .refuse = refuse, .flops = conv_flops                                      \
    }
static const KernelRow rows[] = {
    ENTRY(Conv, k_conv, "conv_depthwise"),
    ENTRY(ConvGradInput, k_grad_input, "convgradinput_depthwise"),
    ENTRY(ConvGradWeight, k_grad_weight, "convgradweight_depthwise"),
};

const KernelTable MPRI_NAME(cpu_conv_depthwise) = {rows, sizeof rows / sizeof rows[0]};
