/* Transposed convolution over any number of spatial dims, gathered per result: an output position sums
 * the input positions that reach it through a tap. */
#include "kernels/ref/util.h"
#include "runtime/op/conv_transpose.h"

enum { MAX_SPATIAL = MPRI_TENSOR_RANK - 2 };

typedef struct Geometry {
    int spatial;
    int64_t in[MAX_SPATIAL], out[MAX_SPATIAL], tap[MAX_SPATIAL], begin[MAX_SPATIAL];
    int64_t stride[MAX_SPATIAL], dilation[MAX_SPATIAL];
    int64_t in_n, out_n, tap_n;
} Geometry;

static Geometry geometry(const ConvTransposeParams *p, const Tensor *x, const Tensor *w,
                         const Tensor *y)
{
    Geometry g = {.spatial = x->rank - 2, .in_n = 1, .out_n = 1, .tap_n = 1};
    for (int k = 0; k < g.spatial; k++) {
        g.in[k] = x->dims[k + 2];
        g.out[k] = y->dims[k + 2];
        g.tap[k] = w->dims[k + 2];
        g.begin[k] = mpri_transposed_begin(p, k, g.in[k], g.tap[k], g.out[k]);
        g.stride[k] = p->strides.n ? p->strides.v[k] : 1;
        g.dilation[k] = p->dilations.n ? p->dilations.v[k] : 1;
        g.in_n *= g.in[k];
        g.out_n *= g.out[k];
        g.tap_n *= g.tap[k];
    }
    return g;
}

/* Input position that gives to output position o through tap t, or -1. */
static int64_t input_at(const Geometry *g, int64_t o, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = g->spatial - 1; k >= 0; k--) {
        int64_t i = o % g->out[k] + g->begin[k] - t % g->tap[k] * g->dilation[k];
        if (i < 0 || i % g->stride[k] != 0 || i / g->stride[k] >= g->in[k]) return -1;
        at += i / g->stride[k] * stride;
        stride *= g->in[k];
        o /= g->out[k];
        t /= g->tap[k];
    }
    return at;
}

/* Inputs x, w, bias (optional). */
static mpr_status k_transpose(const KernelCall *c)
{
    const ConvTransposeParams *p = c->params;
    const Tensor *x = &c->in[0], *w = &c->in[1];
    bool bias = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    Geometry g = geometry(p, x, w, &c->out[0]);
    int64_t in_ch = x->dims[1], out_ch = c->out[0].dims[1], per = w->dims[1];
    int64_t in_per = in_ch / p->group;
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t o = i % g.out_n, oc = i / g.out_n % out_ch, n = i / g.out_n / out_ch;
        int64_t ic0 = oc / per * in_per;
        double sum = bias ? mpri_ref_load(&c->in[2], oc) : 0;
        for (int64_t t = 0; t < g.tap_n; t++) {
            int64_t at = input_at(&g, o, t);
            for (int64_t ic = ic0; ic < ic0 + in_per && at >= 0; ic++)
                sum += mpri_ref_load(x, (n * in_ch + ic) * g.in_n + at) *
                       mpri_ref_load(w, (ic * per + oc % per) * g.tap_n + t);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

static double flops(const KernelSig *s)
{
    const Tensor *x = &s->in[0], *w = &s->in[1];
    return w->n ? 2.0 * (double)x->n * (double)(w->n / w->dims[0]) : 0;
}

static const KernelRow rows[] = {
    {.op = OP_ConvTranspose, .name = "ref.convtranspose", .fn = k_transpose, .flops = flops},
};
const KernelTable mpri_ref_conv_transpose = REF_TABLE(rows);
