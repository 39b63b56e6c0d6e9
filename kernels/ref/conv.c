/* Convolution over any number of spatial dims, with groups, strides, dilations and padding, and its
 * two gradients. One triple (output position, tap, input position) links all three: y += x * w, so
 * dx += dy * w and dw += dy * x over the same triples. */
#include "kernels/ref/util.h"

enum { MAX_SPATIAL = MPRI_TENSOR_RANK - 2 };

typedef struct Geometry {
    int spatial;
    int64_t batch, in_ch, out_ch, group, in_per_group, out_per_group;
    int64_t in[MAX_SPATIAL], out[MAX_SPATIAL], tap[MAX_SPATIAL];
    int64_t stride[MAX_SPATIAL], dilation[MAX_SPATIAL], pad[MAX_SPATIAL]; /* pad: at the begin */
    int64_t in_n, out_n, tap_n; /* positions */
} Geometry;

static int64_t pad_begin(const ConvParams *p, const Geometry *g, int k)
{
    const char *mode = p->auto_pad ? p->auto_pad : "NOTSET";
    if (strcmp(mode, "VALID") == 0) return 0;
    if (strncmp(mode, "SAME", 4) != 0) return p->pads.n ? p->pads.v[k] : 0;
    int64_t reach =
        (g->out[k] - 1) * g->stride[k] + (g->tap[k] - 1) * g->dilation[k] + 1 - g->in[k];
    if (reach < 0) reach = 0;
    return strcmp(mode, "SAME_LOWER") == 0 ? reach - reach / 2 : reach / 2;
}

static Geometry geometry(const ConvParams *p, const Tensor *x, const Tensor *w, const Tensor *y)
{
    Geometry g = {.spatial = x->rank - 2,
                  .batch = x->dims[0],
                  .in_ch = x->dims[1],
                  .out_ch = w->dims[0],
                  .group = p->group > 0 ? p->group : 1,
                  .in_n = 1,
                  .out_n = 1,
                  .tap_n = 1};
    g.in_per_group = g.in_ch / g.group;
    g.out_per_group = g.out_ch / g.group;
    for (int k = 0; k < g.spatial; k++) {
        g.in[k] = x->dims[k + 2];
        g.out[k] = y->dims[k + 2];
        g.tap[k] = w->dims[k + 2];
        g.stride[k] = p->strides.n ? p->strides.v[k] : 1;
        g.dilation[k] = p->dilations.n ? p->dilations.v[k] : 1;
        g.pad[k] = pad_begin(p, &g, k);
        g.in_n *= g.in[k];
        g.out_n *= g.out[k];
        g.tap_n *= g.tap[k];
    }
    return g;
}

/* Input position that output position o sees through tap t, or -1 in the padding. */
static int64_t input_at(const Geometry *g, int64_t o, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = g->spatial - 1; k >= 0; k--) {
        int64_t i = o % g->out[k] * g->stride[k] + t % g->tap[k] * g->dilation[k] - g->pad[k];
        if (i < 0 || i >= g->in[k]) return -1;
        at += i * stride;
        stride *= g->in[k];
        o /= g->out[k];
        t /= g->tap[k];
    }
    return at;
}

/* Inputs x, w, bias (optional). */
static mpr_status k_conv(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *w = &c->in[1];
    bool bias = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    Geometry g = geometry(c->params, x, w, &c->out[0]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t o = i % g.out_n, oc = i / g.out_n % g.out_ch, n = i / g.out_n / g.out_ch;
        int64_t ic0 = oc / g.out_per_group * g.in_per_group;
        double sum = bias ? mpri_ref_load(&c->in[2], oc) : 0;
        for (int64_t t = 0; t < g.tap_n; t++) {
            int64_t at = input_at(&g, o, t);
            for (int64_t ic = 0; ic < g.in_per_group && at >= 0; ic++)
                sum += mpri_ref_load(x, (n * g.in_ch + ic0 + ic) * g.in_n + at) *
                       mpri_ref_load(w, (oc * g.in_per_group + ic) * g.tap_n + t);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* The output position that sees input position i through tap t, or -1: the inverse of input_at. */
static int64_t output_at(const Geometry *g, int64_t i, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = g->spatial - 1; k >= 0; k--) {
        int64_t o = i % g->in[k] + g->pad[k] - t % g->tap[k] * g->dilation[k];
        if (o < 0 || o % g->stride[k] != 0 || o / g->stride[k] >= g->out[k]) return -1;
        at += o / g->stride[k] * stride;
        stride *= g->out[k];
        i /= g->in[k];
        t /= g->tap[k];
    }
    return at;
}

/* Inputs dy, w. */
static mpr_status k_grad_input(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *w = &c->in[1];
    Geometry g = geometry(c->params, &c->out[0], w, dy);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t ic = i / g.in_n % g.in_ch, n = i / g.in_n / g.in_ch;
        int64_t oc0 = ic / g.in_per_group * g.out_per_group;
        double sum = 0;
        for (int64_t t = 0; t < g.tap_n; t++) {
            int64_t o = output_at(&g, i % g.in_n, t);
            for (int64_t oc = oc0; oc < oc0 + g.out_per_group && o >= 0; oc++)
                sum += mpri_ref_load(dy, (n * g.out_ch + oc) * g.out_n + o) *
                       mpri_ref_load(w, (oc * g.in_per_group + ic % g.in_per_group) * g.tap_n + t);
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
        int64_t t = i % g.tap_n, oc = i / g.tap_n / g.in_per_group;
        int64_t ic = oc / g.out_per_group * g.in_per_group + i / g.tap_n % g.in_per_group;
        double sum = 0;
        for (int64_t n = 0; n < g.batch; n++)
            for (int64_t o = 0; o < g.out_n; o++) {
                int64_t at = input_at(&g, o, t);
                if (at < 0) continue;
                sum += mpri_ref_load(dy, (n * g.out_ch + oc) * g.out_n + o) *
                       mpri_ref_load(x, (n * g.in_ch + ic) * g.in_n + at);
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
