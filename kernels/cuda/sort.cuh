/* Sorting in kernels' workspace: `lines` independent lists of n distinct keys each, ascending. The
 * order is the keys' alone, so every run gives the same; keys that carry a position make any sort
 * stable.
 *
 * The result lies in `keys` or in `spare` (of the same size), which is returned: where, follows
 * from n. */
#ifndef MPRI_CUDA_SORT_CUH
#define MPRI_CUDA_SORT_CUH

#include "kernels/cuda/kernel.cuh"

typedef struct WideKey { /* high first */
    uint64_t high, low;
} WideKey;

uint64_t *mpri_cuda_sort(uint64_t *keys, uint64_t *spare, int64_t n, int64_t lines, void *queue);
WideKey *mpri_cuda_sort_wide(WideKey *keys, WideKey *spare, int64_t n, int64_t lines, void *queue);

#endif
