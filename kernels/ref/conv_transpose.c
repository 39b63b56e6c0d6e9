/* Transposed convolution over any number of spatial dims, gathered per result: an output position sums
 * the input positions that reach it through a tap. */
#include "kernels/ref/windows.h"
#include "runtime/op/conv_transpose.h"

/* The windows of the convolution whose gradient this is: they slide over y, one position is an
 * element of x. */
static RefWindows windows(const ConvTransposeParams *p, const Tensor *x, const Tensor *w,
                          const Tensor *y)
{
    RefWindows g = mpri_ref_windows();
    for (int k = 0; k < x->rank - 2; k++) {
        int64_t in = x->dims[k + 2], taps = w->dims[k + 2], out = y->dims[k + 2];
        mpri_ref_windows_add(&g, (WindowDim){.in = out,
                                             .out = in,
                                             .taps = taps,
                                             .stride = p->strides.n ? p->strides.v[k] : 1,
                                             .dilation = p->dilations.n ? p->dilations.v[k] : 1,
                                             .begin = mpri_transposed_begin(p, k, in, taps, out)});
    }
    return g;
}

/* Inputs x, w, bias (optional). */
static mpr_status k_transpose(const KernelCall *c)
{
    const ConvTransposeParams *p = c->params;
    const Tensor *x = &c->in[0], *w = &c->in[1];
    bool bias = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    RefWindows g = windows(p, x, w, &c->out[0]);
    int64_t in_ch = x->dims[1], out_ch = c->out[0].dims[1], per = w->dims[1];
    int64_t in_per = in_ch / p->group;
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t o = i % g.in_n, oc = i / g.in_n % out_ch, n = i / g.in_n / out_ch;
        int64_t ic0 = oc / per * in_per;
        double sum = bias ? mpri_ref_load(&c->in[2], oc) : 0;
        for (int64_t t = 0; t < g.tap_n; t++) {
            int64_t at = mpri_ref_windows_output(&g, o, t);
            for (int64_t ic = ic0; ic < ic0 + in_per && at >= 0; ic++)
                sum += mpri_ref_load(x, (n * in_ch + ic) * g.out_n + at) *
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
