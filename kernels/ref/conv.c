/* Convolution over any number of spatial dims, with groups, strides, dilations and padding, and its
 * two gradients. One triple (output position, tap, input position) links all three: y += x * w, so
 * dx += dy * w and dw += dy * x over the same triples. */
#include "kernels/ref/windows.h"

typedef struct Geometry {
    int64_t batch, in_ch, out_ch, in_per_group, out_per_group;
    RefWindows w;
} Geometry;

static Geometry geometry(const ConvParams *p, const Tensor *x, const Tensor *w, const Tensor *y)
{
    int64_t group = p->group > 0 ? p->group : 1;
    int spatial = x->rank - 2;
    Geometry g = {.batch = x->dims[0],
                  .in_ch = x->dims[1],
                  .out_ch = w->dims[0],
                  .in_per_group = x->dims[1] / group,
                  .out_per_group = w->dims[0] / group,
                  .w = mpri_ref_windows()};
    for (int k = 0; k < spatial; k++) {
        WindowDim d = {.in = x->dims[k + 2],
                       .out = y->dims[k + 2],
                       .taps = w->dims[k + 2],
                       .stride = p->strides.n ? p->strides.v[k] : 1,
                       .dilation = p->dilations.n ? p->dilations.v[k] : 1};
        mpri_window_pad(&d, p->auto_pad, p->pads, spatial, k);
        mpri_ref_windows_add(&g.w, d);
    }
    return g;
}

/* Inputs x, w, bias (optional). */
static mpr_status k_conv(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *w = &c->in[1];
    bool bias = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    Geometry g = geometry(c->params, x, w, &c->out[0]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t o = i % g.w.out_n, oc = i / g.w.out_n % g.out_ch, n = i / g.w.out_n / g.out_ch;
        int64_t ic0 = oc / g.out_per_group * g.in_per_group;
        double sum = bias ? mpri_ref_load(&c->in[2], oc) : 0;
        for (int64_t t = 0; t < g.w.tap_n; t++) {
            int64_t at = mpri_ref_windows_input(&g.w, o, t);
            for (int64_t ic = 0; ic < g.in_per_group && at >= 0; ic++)
                sum += mpri_ref_load(x, (n * g.in_ch + ic0 + ic) * g.w.in_n + at) *
                       mpri_ref_load(w, (oc * g.in_per_group + ic) * g.w.tap_n + t);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* Inputs dy, w. */
static mpr_status k_grad_input(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *w = &c->in[1];
    Geometry g = geometry(c->params, &c->out[0], w, dy);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t ic = i / g.w.in_n % g.in_ch, n = i / g.w.in_n / g.in_ch;
        int64_t oc0 = ic / g.in_per_group * g.out_per_group;
        double sum = 0;
        int64_t own = ic % g.in_per_group;
        for (int64_t t = 0; t < g.w.tap_n; t++) {
            int64_t o = mpri_ref_windows_output(&g.w, i % g.w.in_n, t);
            for (int64_t oc = oc0; oc < oc0 + g.out_per_group && o >= 0; oc++)
                sum += mpri_ref_load(dy, (n * g.out_ch + oc) * g.w.out_n + o) *
                       mpri_ref_load(w, (oc * g.in_per_group + own) * g.w.tap_n + t);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* Inputs dy, x. */
static mpr_status k_grad_weight(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1];
    Geometry g = geometry(c->params, x, &c->out[0], dy);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t t = i % g.w.tap_n, oc = i / g.w.tap_n / g.in_per_group;
        int64_t ic = oc / g.out_per_group * g.in_per_group + i / g.w.tap_n % g.in_per_group;
        double sum = 0;
        for (int64_t n = 0; n < g.batch; n++)
            for (int64_t o = 0; o < g.w.out_n; o++) {
                int64_t at = mpri_ref_windows_input(&g.w, o, t);
                if (at < 0) continue;
                sum += mpri_ref_load(dy, (n * g.out_ch + oc) * g.w.out_n + o) *
                       mpri_ref_load(x, (n * g.in_ch + ic) * g.w.in_n + at);
            }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* Each of the three: output positions x output channels x the weights of one output channel. */
static double flops(const Tensor *w, const Tensor *y)
{
    return w->n && w->dims[0] ? 2.0 * (double)y->n * (double)(w->n / w->dims[0]) : 0;
}

static double flops_conv(const KernelSig *s) { return flops(&s->in[1], &s->out[0]); }
static double flops_grad_input(const KernelSig *s) { return flops(&s->in[1], &s->in[0]); }
static double flops_grad_weight(const KernelSig *s) { return flops(&s->out[0], &s->in[0]); }

static const KernelRow rows[] = {
    {.op = OP_Conv, .name = "ref.conv", .fn = k_conv, .flops = flops_conv},
    {.op = OP_ConvGradInput,
     .name = "ref.convgradinput",
     .fn = k_grad_input,
     .flops = flops_grad_input},
    {.op = OP_ConvGradWeight,
     .name = "ref.convgradweight",
     .fn = k_grad_weight,
     .flops = flops_grad_weight},
};
const KernelTable mpri_ref_conv = REF_TABLE(rows);
