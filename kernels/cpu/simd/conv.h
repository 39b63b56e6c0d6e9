/* Shape of a 1-D or 2-D convolution (NCHW), shared by the operator and its two gradients; a 1-D one
 * is a 2-D one of height 1. */
#ifndef MPRI_CPU_CONV_H
#define MPRI_CPU_CONV_H

#include "kernels/cpu/simd/simd.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/conv_transpose.h"
#include "runtime/op/ops.h"
#include "runtime/op/window.h"

typedef struct ConvShape {
    int64_t n, group, ci, co;       /* images, groups, channels per group in and out */
    int64_t h, w, oh, ow, kh, kw;   /* input, output, kernel */
    int64_t sh, sw, dh, dw, ph, pw; /* strides, dilations, padding at the begin */
    int64_t in, out, taps, ck;      /* positions of input, output, kernel; ci * taps */
} ConvShape;

VF_FN int64_t conv_pad_(const ConvParams *p, int spatial, int d, int64_t in, int64_t out, int64_t k,
                        int64_t s, int64_t dil)
{
    WindowDim w = {.in = in, .out = out, .taps = k, .stride = s, .dilation = dil};
    mpri_window_pad(&w, p->auto_pad, p->pads, spatial, d);
    return w.begin;
}

VF_FN ConvShape conv_shape(const ConvParams *p, const Tensor *x, const Tensor *w, const Tensor *y)
{
    int spatial = x->rank - 2, last = x->rank - 1;
    ConvShape s = {.n = x->dims[0],
                   .group = p->group > 0 ? p->group : 1,
                   .h = 1,
                   .oh = 1,
                   .kh = 1,
                   .sh = 1,
                   .dh = 1};
    s.ci = x->dims[1] / s.group;
    s.co = w->dims[0] / s.group;
    s.w = x->dims[last];
    s.ow = y->dims[last];
    s.kw = w->dims[last];
    s.sw = p->strides.n ? p->strides.v[spatial - 1] : 1;
    s.dw = p->dilations.n ? p->dilations.v[spatial - 1] : 1;
    s.pw = conv_pad_(p, spatial, spatial - 1, s.w, s.ow, s.kw, s.sw, s.dw);
    if (spatial == 2) {
        s.h = x->dims[2];
        s.oh = y->dims[2];
        s.kh = w->dims[2];
        s.sh = p->strides.n ? p->strides.v[0] : 1;
        s.dh = p->dilations.n ? p->dilations.v[0] : 1;
        s.ph = conv_pad_(p, spatial, 0, s.h, s.oh, s.kh, s.sh, s.dh);
    }
    s.in = s.h * s.w;
    s.out = s.oh * s.ow;
    s.taps = s.kh * s.kw;
    s.ck = s.ci * s.taps;
    return s;
}

/* The Conv that has y = ConvTranspose(x, w) as input; the padding at the end plays no part. */
VF_FN ConvParams conv_of_transpose(const ConvTransposeParams *p, const Tensor *x, const Tensor *w,
                                   const Tensor *y, int64_t *pads)
{
    int spatial = x->rank - 2;
    for (int d = 0; d < spatial; d++) {
        int64_t taps = w->dims[d + 2];
        pads[d] = mpri_transposed_begin(p, d, x->dims[d + 2], taps, y->dims[d + 2]);
        pads[d + spatial] = 0;
    }
    return (ConvParams){.auto_pad = "NOTSET", .dilations = p->dilations, .strides = p->strides,
                        .pads = {2 * (int64_t)spatial, pads}, .group = p->group};
}

/* Outputs o of [*low, *high) see an input inside [0, in) at o * s + offset. */
VF_FN void conv_range_(int64_t in, int64_t out, int64_t s, int64_t offset, int64_t *low,
                       int64_t *high)
{
    int64_t lo = offset >= 0 ? 0 : (-offset + s - 1) / s;
    int64_t hi = offset >= in ? 0 : (in - 1 - offset) / s + 1;
    *low = lo < out ? lo : out;
    *high = hi < out ? hi : out;
    if (*high < *low) *high = *low;
}

/* ---- what the rows of Conv and its two gradients share ---- */

static inline const char *conv_refuse(const KernelSig *sig)
{
    for (int i = 0; i < sig->n_in; i++)
        if (mpri_tensor_here(&sig->in[i]) && !vf_can(sig->in[i].dtype))
            return "types other than f32, f16, bf16";
    if (!vf_can(sig->out[0].dtype)) return "types other than f32, f16, bf16";
    if (sig->in[0].rank < 3 || sig->in[0].rank > 4) return "neither one nor two spatial dims";
    return NULL;
}

/* Each of the three: output positions times output channels times the weights of one output
 * channel. */
static inline double conv_flops(const KernelSig *sig)
{
    const Tensor *w = sig->op == OP_ConvGradWeight ? &sig->out[0] : &sig->in[1];
    const Tensor *y = sig->op == OP_Conv ? &sig->out[0] : &sig->in[0];
    return w->n ? 2.0 * (double)y->n * (double)(w->n / w->dims[0]) : 0;
}

#endif
