/* Padding of a transposed convolution, shared by the shape rule, the gradient and the kernels.
 *
 * ConvTranspose is the gradient of a Conv with respect to its input: the Conv that has the result as
 * input, the same strides and dilations, and the padding found here. */
#ifndef MPRI_OP_CONV_TRANSPOSE_H
#define MPRI_OP_CONV_TRANSPOSE_H

#include <string.h>
#include "runtime/op/params.h"

/* Result of spatial dim d without padding: stride * (in - 1) + output_padding + reach. */
static inline int64_t mpri_transposed_span(const ConvTransposeParams *p, int d, int64_t in,
                                           int64_t taps)
{
    int64_t stride = p->strides.n ? p->strides.v[d] : 1;
    int64_t dilation = p->dilations.n ? p->dilations.v[d] : 1;
    int64_t extra = p->output_padding.n ? p->output_padding.v[d] : 0;
    return stride * (in - 1) + extra + (taps - 1) * dilation + 1;
}

/* Elements cut off at the begin of spatial dim d, when `out` stay. */
static inline int64_t mpri_transposed_begin(const ConvTransposeParams *p, int d, int64_t in,
                                            int64_t taps, int64_t out)
{
    const char *mode = p->auto_pad ? p->auto_pad : "NOTSET";
    bool same = strncmp(mode, "SAME", 4) == 0;
    if (!same && !p->output_shape.n)
        return strcmp(mode, "VALID") != 0 && p->pads.n ? p->pads.v[d] : 0;
    int64_t total = mpri_transposed_span(p, d, in, taps) - out;
    if (total < 0) total = 0;
    return strcmp(mode, "SAME_UPPER") == 0 ? total / 2 : total - total / 2;
}

#endif
