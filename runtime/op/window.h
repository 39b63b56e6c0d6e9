/* Geometry of windows with known sizes, for kernels. A window of `taps` elements, `dilation`
 * apart, moves by `stride` over a dim of `in` elements that is padded by `begin` and `end`. */
#ifndef MPRI_OP_WINDOW_H
#define MPRI_OP_WINDOW_H

#include <string.h>
#include "runtime/op/params.h"

typedef struct WindowDim {
    int64_t in, out, taps, stride, dilation, begin, end;
} WindowDim;

/* Sets begin and end from auto_pad or pads; d is the dim, of `spatial`. */
static inline void mpri_window_pad(WindowDim *w, const char *auto_pad, Ints pads, int spatial,
                                   int d)
{
    const char *mode = auto_pad ? auto_pad : "NOTSET";
    if (strncmp(mode, "SAME", 4) == 0) {
        int64_t need = (w->out - 1) * w->stride + (w->taps - 1) * w->dilation + 1 - w->in;
        if (need < 0) need = 0;
        /* the odd one goes to the end or to the begin */
        w->begin = strcmp(mode, "SAME_LOWER") == 0 ? need - need / 2 : need / 2;
        w->end = need - w->begin;
    } else if (strcmp(mode, "VALID") != 0 && pads.n) {
        w->begin = pads.v[d];
        w->end = pads.v[d + spatial];
    }
}

/* Sizes of spatial dim d of `spatial`. */
static inline WindowDim mpri_window_dim(const PoolWindow *p, int spatial, int d, int64_t in,
                                        int64_t out)
{
    WindowDim w = {.in = in,
                   .out = out,
                   .taps = p->kernel_shape.v[d],
                   .stride = p->strides.n ? p->strides.v[d] : 1,
                   .dilation = p->dilations.n ? p->dilations.v[d] : 1};
    mpri_window_pad(&w, p->auto_pad, p->pads, spatial, d);
    return w;
}

/* Far larger than any plane: most of it lies in the padding. Kernels that go over all taps, or have memory for a
 * padded line, refuse it. */
static inline bool mpri_window_is_vast(const PoolWindow *p)
{
    for (int64_t i = 0; i < p->kernel_shape.n; i++)
        if ((p->kernel_shape.v[i] - 1) * (p->dilations.n ? p->dilations.v[i] : 1) >= 65536) return true;
    for (int64_t i = 0; i < p->pads.n; i++)
        if (p->pads.v[i] > 65536) return true;
    return false;
}

/* How many taps of the window at `out` meet an element; with `pads`, or the padding. What a window of
 * ceil_mode has beyond the padding never counts. */
static inline int64_t mpri_window_count(const WindowDim *w, int64_t out, bool pads)
{
    int64_t first = out * w->stride - w->begin;
    int64_t low = pads ? -w->begin : 0, high = w->in + (pads ? w->end : 0);
    int64_t from = low > first ? (low - first + w->dilation - 1) / w->dilation : 0;
    int64_t to = high > first ? (high - first - 1) / w->dilation + 1 : 0;
    if (to > w->taps) to = w->taps;
    return to > from ? to - from : 0;
}

#endif
