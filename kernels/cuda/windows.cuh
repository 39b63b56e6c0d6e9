/* Windows that slide over up to three spatial dims, for convolutions and pools; fewer dims are led by dims of
 * size 1. A triple (output position, tap, input position) links both sides; positions are row-major.
 * Positions of a plane and their divisions are 32-bit: a division by a size that is known at launch is a
 * multiplication (Granlund, Montgomery 1994). */
#ifndef MPRI_CUDA_WINDOWS_CUH
#define MPRI_CUDA_WINDOWS_CUH

#include "kernels/cuda/kernel.cuh"

extern "C" {
#include "runtime/op/window.h"
}

enum { WINDOW_DIMS = 3 };

typedef struct Divider { /* n / d for 0 <= n < 2^31 */
    uint32_t d, factor, shift;
} Divider;

static inline Divider divider_of(int64_t d)
{
    Divider v = {(uint32_t)d, 0, 0};
    while (((uint64_t)1 << v.shift) < (uint64_t)d) v.shift++;
    v.factor =
        (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << v.shift) - (uint64_t)d)) / (uint64_t)d + 1);
    return v;
}
/* Returns the quotient, *rest takes the remainder. */
static __device__ __forceinline__ uint32_t divide(const Divider &v, uint32_t n, uint32_t *rest)
{
    uint32_t q = (__umulhi(n, v.factor) + n) >> v.shift;
    *rest = n - q * v.d;
    return q;
}

typedef struct WindowAxis {
    int in, out, taps, stride, dilation, begin, end;
    Divider by_in, by_out, by_taps, by_stride;
} WindowAxis;

typedef struct Windows {
    int in_n, out_n, tap_n; /* positions of a plane */
    WindowAxis d[WINDOW_DIMS];
    bool fits; /* positions in the padding and sizes are ints */
} Windows;

/* Where the three coordinates of a position are. */
struct At {
    int c[WINDOW_DIMS];
};

static __device__ __forceinline__ At input_at(const Windows &w, int i)
{
    uint32_t a, b, c;
    uint32_t q = divide(w.d[1].by_in, divide(w.d[2].by_in, (uint32_t)i, &c), &b);
    a = q;
    return At{{(int)a, (int)b, (int)c}};
}
static __device__ __forceinline__ At output_at(const Windows &w, int o)
{
    uint32_t b, c;
    uint32_t a = divide(w.d[1].by_out, divide(w.d[2].by_out, (uint32_t)o, &c), &b);
    return At{{(int)a, (int)b, (int)c}};
}
static __device__ __forceinline__ At tap_at(const Windows &w, int t)
{
    uint32_t b, c;
    uint32_t a = divide(w.d[1].by_taps, divide(w.d[2].by_taps, (uint32_t)t, &c), &b);
    return At{{(int)a, (int)b, (int)c}};
}

/* Input position that output o sees through tap t, or -1 in the padding. */
static __device__ __forceinline__ int input_seen(const Windows &w, const At &o, const At &t)
{
    int at = 0;
    for (int k = 0; k < WINDOW_DIMS; k++) {
        const WindowAxis &d = w.d[k];
        int i = o.c[k] * d.stride + t.c[k] * d.dilation - d.begin;
        if (i < 0 || i >= d.in) return -1;
        at = at * d.in + i;
    }
    return at;
}

/* Coordinate of the output that sees input coordinate i through tap t, or -1. */
static __device__ __forceinline__ int output_seeing(const WindowAxis &d, int i, int t)
{
    uint32_t rest;
    int o = i + d.begin - t * d.dilation;
    if (o < 0) return -1;
    o = (int)divide(d.by_stride, (uint32_t)o, &rest);
    return rest || o >= d.out ? -1 : o;
}

/* f(tap, input position) for the taps of output o that meet an element, in order. */
template <typename F> static __device__ __forceinline__ void each_input(const Windows &w, int o, F f)
{
    At at = output_at(w, o);
    int start[WINDOW_DIMS];
    for (int k = 0; k < WINDOW_DIMS; k++) start[k] = at.c[k] * w.d[k].stride - w.d[k].begin;
    for (int a = 0; a < w.d[0].taps; a++) {
        int i = start[0] + a * w.d[0].dilation;
        if (i < 0 || i >= w.d[0].in) continue;
        for (int b = 0; b < w.d[1].taps; b++) {
            int j = start[1] + b * w.d[1].dilation;
            if (j < 0 || j >= w.d[1].in) continue;
            for (int c = 0; c < w.d[2].taps; c++) {
                int k = start[2] + c * w.d[2].dilation;
                if (k < 0 || k >= w.d[2].in) continue;
                f((a * w.d[1].taps + b) * w.d[2].taps + c, (i * w.d[1].in + j) * w.d[2].in + k);
            }
        }
    }
}

/* f(tap, output position) for the outputs that see input i, in the order of taps. */
template <typename F> static __device__ __forceinline__ void each_output(const Windows &w, int i, F f)
{
    At at = input_at(w, i);
    for (int a = 0; a < w.d[0].taps; a++) {
        int o = output_seeing(w.d[0], at.c[0], a);
        if (o < 0) continue;
        for (int b = 0; b < w.d[1].taps; b++) {
            int p = output_seeing(w.d[1], at.c[1], b);
            if (p < 0) continue;
            for (int c = 0; c < w.d[2].taps; c++) {
                int q = output_seeing(w.d[2], at.c[2], c);
                if (q < 0) continue;
                f((a * w.d[1].taps + b) * w.d[2].taps + c, (o * w.d[1].out + p) * w.d[2].out + q);
            }
        }
    }
}

/* ---- host side ---- */

static inline Windows windows_none(void)
{
    Windows w = {1, 1, 1, {}, true};
    for (int k = 0; k < WINDOW_DIMS; k++) {
        WindowAxis &d = w.d[k];
        d.in = d.out = d.taps = d.stride = d.dilation = 1;
        d.by_in = d.by_out = d.by_taps = d.by_stride = divider_of(1);
    }
    return w;
}

/* Dim k of `spatial` dims; sizes are those of a shape that `refuse_windows` took. Empty dims divide by 1. */
static inline void windows_set(Windows *w, int spatial, int k, const WindowDim &from)
{
    int64_t reach = (from.taps - 1) * from.dilation, line = from.in + from.begin + from.end + reach;
    w->fits = w->fits && line < INT32_MAX / 2 && from.stride < INT32_MAX / 2 && (from.out - 1) * from.stride < INT32_MAX / 2 &&
              (int64_t)w->tap_n * from.taps < INT32_MAX;
    if (!w->fits) return;
    WindowAxis &d = w->d[WINDOW_DIMS - spatial + k];
    d.in = (int)from.in, d.out = (int)from.out, d.taps = (int)from.taps;
    d.stride = (int)from.stride, d.dilation = (int)from.dilation;
    d.begin = (int)from.begin, d.end = (int)from.end;
    d.by_in = divider_of(from.in ? from.in : 1), d.by_out = divider_of(from.out ? from.out : 1);
    d.by_taps = divider_of(from.taps ? from.taps : 1), d.by_stride = divider_of(from.stride);
    w->in_n *= d.in, w->out_n *= d.out, w->tap_n *= d.taps;
}

/* x: rank 3 to 5, planes of less than 2^31 elements with all padding. */
static inline const char *refuse_windows(const Tensor *x, const Tensor *y)
{
    if (x->rank - 2 > WINDOW_DIMS) return "more than three spatial dims";
    return x->n >= INT32_MAX || y->n >= INT32_MAX ? CUDA_TOO_LARGE : NULL;
}

#endif
