/* Shared by the reference normalisations. */
#ifndef MPRI_REF_NORM_H
#define MPRI_REF_NORM_H

#include "kernels/ref/util.h"

typedef struct NormRows {
    int64_t count, n;
} NormRows;

static inline NormRows mpri_ref_norm_rows(const Tensor *x, const LayerNormParams *p)
{
    int axis = mpri_ref_axis(p->axis, x->rank);
    return (NormRows){mpri_ref_span(x, 0, axis), mpri_ref_span(x, axis, x->rank)};
}

static inline bool mpri_ref_wanted(const KernelCall *c, int k)
{
    return c->n_out > k && mpri_tensor_here(&c->out[k]);
}

/* [samples, channels, inner] of a tensor whose dim 1 holds the channels; rank 1: one channel. */
typedef struct Channels {
    int64_t samples, channels, inner;
} Channels;

static inline Channels mpri_ref_channels(const Tensor *x)
{
    if (x->rank < 2) return (Channels){x->n, 1, 1};
    return (Channels){x->dims[0], x->dims[1], mpri_ref_span(x, 2, x->rank)};
}

#endif
