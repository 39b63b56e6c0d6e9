/* Patches of an image, one tap at a time in long runs. */
#ifndef MPRI_CPU_CONV_GATHER_H
#define MPRI_CPU_CONV_GATHER_H

#include "kernels/cpu/simd/conv.h"

/* U is an unsigned type of the element's size. */
#define CONV_GATHER(U)                                                                         \
    VF_FN void conv_copy_##U##_(U *restrict to, const U *restrict from, int64_t stride,        \
                                int64_t n)                                                     \
    {                                                                                          \
        if (stride == 1) memcpy(to, from, (size_t)n * sizeof *to);                             \
        else if (stride == 2)                                                                  \
            for (int64_t i = 0; i < n; i++) to[i] = from[2 * i];                               \
        else                                                                                   \
            for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];                          \
    }                                                                                          \
    /* Output rows [oy0, oy1) of one channel of one image; taps are ld elements apart. */      \
    static void conv_rows_##U(const ConvShape *s, const U *x, U *col, int64_t ld, int64_t oy0, \
                              int64_t oy1)                                                     \
    {                                                                                          \
        for (int64_t t = 0; t < s->taps; t++, col += ld) {                                     \
            int64_t dy = t / s->kw * s->dh - s->ph, dx = t % s->kw * s->dw - s->pw, low, high; \
            U *to = col;                                                                       \
            conv_range_(s->w, s->ow, s->sw, dx, &low, &high);                                  \
            for (int64_t oy = oy0; oy < oy1; oy++, to += s->ow) {                              \
                int64_t iy = oy * s->sh + dy;                                                  \
                if (iy < 0 || iy >= s->h || low == high) {                                     \
                    memset(to, 0, (size_t)s->ow * sizeof *to);                                 \
                    continue;                                                                  \
                }                                                                              \
                for (int64_t i = 0; i < low; i++) to[i] = 0;                                   \
                conv_copy_##U##_(to + low, x + iy * s->w + low * s->sw + dx, s->sw,            \
                                 high - low);                                                  \
                for (int64_t i = high; i < s->ow; i++) to[i] = 0;                              \
            }                                                                                  \
        }                                                                                      \
    }
CONV_GATHER(uint16_t)
CONV_GATHER(uint32_t)
#undef CONV_GATHER

#endif
