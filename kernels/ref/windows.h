/* Windows that slide over any number of spatial dims, for the reference kernels of convolutions,
 * pools and Col2Im. A triple (output position, tap, input position) links both sides; positions are
 * row-major over all spatial dims. */
#ifndef MPRI_REF_WINDOWS_H
#define MPRI_REF_WINDOWS_H

#include "kernels/ref/util.h"
#include "runtime/op/window.h"

typedef struct RefWindows {
    int spatial;
    int64_t in_n, out_n, tap_n; /* positions of one plane */
    WindowDim d[MPRI_TENSOR_RANK];
} RefWindows;

static inline RefWindows mpri_ref_windows(void) { return (RefWindows){0, 1, 1, 1, {{0}}}; }

static inline void mpri_ref_windows_add(RefWindows *w, WindowDim d)
{
    w->d[w->spatial++] = d;
    w->in_n *= d.in;
    w->out_n *= d.out;
    if (__builtin_mul_overflow(w->tap_n, d.taps, &w->tap_n)) w->tap_n = INT64_MAX;
}

/* Input position that output position o sees through tap t, or -1 in the padding. */
static inline int64_t mpri_ref_windows_input(const RefWindows *w, int64_t o, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = w->spatial - 1; k >= 0; k--) {
        const WindowDim *d = &w->d[k];
        int64_t i = o % d->out * d->stride + t % d->taps * d->dilation - d->begin;
        if (i < 0 || i >= d->in) return -1;
        at += i * stride;
        stride *= d->in;
        o /= d->out;
        t /= d->taps;
    }
    return at;
}

/* The output position that sees input position i through tap t, or -1: the inverse. */
static inline int64_t mpri_ref_windows_output(const RefWindows *w, int64_t i, int64_t t)
{
    int64_t at = 0, stride = 1;
    for (int k = w->spatial - 1; k >= 0; k--) {
        const WindowDim *d = &w->d[k];
        int64_t o = i % d->in + d->begin - t % d->taps * d->dilation;
        if (o < 0 || o % d->stride != 0 || o / d->stride >= d->out) return -1;
        at += o / d->stride * stride;
        stride *= d->out;
        i /= d->in;
        t /= d->taps;
    }
    return at;
}

/* Does output position o see input position i? */
static inline bool mpri_ref_windows_meet(const RefWindows *w, int64_t o, int64_t i)
{
    for (int k = w->spatial - 1; k >= 0; k--) {
        const WindowDim *d = &w->d[k];
        int64_t reach = i % d->in + d->begin - o % d->out * d->stride;
        if (reach < 0 || reach % d->dilation != 0 || reach / d->dilation >= d->taps) return false;
        o /= d->out;
        i /= d->in;
    }
    return true;
}

/* The inputs that an output sees, in order, and the outputs that see an input: n of mpri_ref_windows_inputs and
 * mpri_ref_windows_outputs, some of them -1. A window may be far larger than the plane (it lies in the padding), so
 * the search goes over what is fewer, taps or positions. */
static inline int64_t mpri_ref_windows_inputs(const RefWindows *w) { return w->tap_n < w->in_n ? w->tap_n : w->in_n; }
static inline int64_t mpri_ref_windows_outputs(const RefWindows *w) { return w->tap_n < w->out_n ? w->tap_n : w->out_n; }

static inline int64_t mpri_ref_windows_nth_input(const RefWindows *w, int64_t o, int64_t n)
{
    if (w->tap_n < w->in_n) return mpri_ref_windows_input(w, o, n);
    return mpri_ref_windows_meet(w, o, n) ? n : -1;
}

static inline int64_t mpri_ref_windows_nth_output(const RefWindows *w, int64_t i, int64_t n)
{
    if (w->tap_n < w->out_n) return mpri_ref_windows_output(w, i, n);
    return mpri_ref_windows_meet(w, n, i) ? n : -1;
}

#endif
