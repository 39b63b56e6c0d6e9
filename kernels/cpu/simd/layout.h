/* One engine for all operators that only move elements: a copy over an index space where source and
 * target each have a stride per dim. Neighbouring dims that both sides walk as one merge; then the
 * innermost dim decides: both contiguous = memcpy, source stays = fill, else an element loop, and
 * where source and target are contiguous along different dims, square blocks of both. */
#ifndef MPRI_CPU_LAYOUT_H
#define MPRI_CPU_LAYOUT_H

#include "kernels/cpu/simd/tiles.h"

typedef struct Move {
    const char *from;
    char *to;
    size_t size;                    /* bytes of an element */
    int rank;
    int64_t dims[MPRI_TENSOR_RANK]; /* outermost first */
    int64_t in[MPRI_TENSOR_RANK];   /* strides in elements; 0 = the same element again */
    int64_t out[MPRI_TENSOR_RANK];
    int64_t n, per_tile;            /* set by cpu_move */
} Move;

VF_FN Move move_begin(void *to, const void *from, DType t)
{
    return (Move){.from = from, .to = to, .size = mpri_dtype_size(t)};
}

/* Adds the next inner dim, merging it into the last one where both sides allow. */
VF_FN void move_dim(Move *m, int64_t dim, int64_t in, int64_t out)
{
    int last = m->rank - 1;
    if (dim == 1) return;
    if (m->rank && m->in[last] == in * dim && m->out[last] == out * dim) {
        m->dims[last] *= dim;
        m->in[last] = in;
        m->out[last] = out;
        return;
    }
    m->dims[m->rank] = dim;
    m->in[m->rank] = in;
    m->out[m->rank++] = out;
}

void MPRI_NAME(cpu_move)(Move *m, Threads *threads);
/* n bytes set to 0, in parallel. */
void MPRI_NAME(cpu_zero)(void *p, size_t n, Threads *threads);

#endif
