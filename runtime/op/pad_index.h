/* Where Pad takes an element from: the one definition for shape rules, gradients and kernels.
 *
 * Along one axis a negative pad first cuts that many elements off; what is left is then extended.
 * Axes are independent, so a padded tensor is one lookup per axis. */
#ifndef MPRI_OP_PAD_INDEX_H
#define MPRI_OP_PAD_INDEX_H

#include <stdint.h>

/* Compiled for hosts and, by kernels/cuda, for GPUs. */
#if defined(__CUDACC__)
#define MPRI_PAD static inline __host__ __device__
#else
#define MPRI_PAD static inline
#endif

/* Elements of the axis that stay. Not positive: none. */
MPRI_PAD int64_t mpri_pad_kept(int64_t dim, int64_t before, int64_t after)
{
    return dim + (before < 0 ? before : 0) + (after < 0 ? after : 0);
}

/* Source position of output position `at`; -1 for the constant. mode is "constant", "reflect"
 * (without repeating the border, any number of times), "edge" or "wrap". In the last three at least
 * one element is kept. */
MPRI_PAD int64_t mpri_pad_source(const char *mode, int64_t dim, int64_t before, int64_t after,
                                 int64_t at)
{
    int64_t cut = before < 0 ? -before : 0, n = mpri_pad_kept(dim, before, after);
    int64_t i = at - (before > 0 ? before : 0);
    if (i >= 0 && i < n) return cut + i;
    if (mode[0] == 'c') return -1;
    if (mode[0] == 'e') return cut + (i < 0 ? 0 : n - 1);
    int64_t period = mode[0] == 'w' ? n : n > 1 ? 2 * (n - 1) : 1;
    i %= period;
    if (i < 0) i += period;
    return cut + (i < n ? i : period - i);
}

#endif
