/* One engine for all operators that only move elements: a copy over an index space where source and
 * target each have a stride per dim. Dims are given outermost first; neighbours that both sides
 * walk as one merge. move.cu says how it runs.
 *
 *   Move m = move_begin(to, from, y->dtype);
 *   move_dim(&m, dim, stride of the source, stride of the target);    for every dim
 *   mpri_cuda_move(&m, c->queue); */
#ifndef MPRI_CUDA_MOVE_CUH
#define MPRI_CUDA_MOVE_CUH

#include "kernels/cuda/kernel.cuh"

enum { MOVE_RANK = 2 * MPRI_TENSOR_RANK };

typedef struct Move {
    const char *from;
    char *to;
    int size;                                                    /* bytes of an element */
    int rank;
    int64_t dims[MOVE_RANK], in[MOVE_RANK],
        out[MOVE_RANK]; /* strides in elements, may be negative */
} Move;

static inline Move move_begin(void *to, const void *from, DType t)
{
    Move m = {};
    m.from = (const char *)from;
    m.to = (char *)to;
    m.size = (int)mpri_dtype_size(t);
    return m;
}

static inline void move_dim(Move *m, int64_t dim, int64_t in, int64_t out)
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

void mpri_cuda_move(const Move *m, void *queue);

/* All elements zero. */
static inline void move_zero(const Tensor *t, void *queue)
{
    if (t->n)
        cudaMemsetAsync(t->data, 0, (size_t)t->n * mpri_dtype_size(t->dtype), (cudaStream_t)queue);
}

/* Product of dims [from, to). */
static inline int64_t span_of(const Tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int k = from; k < to; k++) n *= t->dims[k];
    return n;
}
static inline int axis_of(int64_t axis, int rank) { return (int)(axis < 0 ? axis + rank : axis); }

/* Calls f with a zero of an unsigned type of `size` bytes: one kernel per element size. */
template <typename F> static inline void with_size(size_t size, F f)
{
    if (size == 1) f((uint8_t)0);
    else if (size == 2) f((uint16_t)0);
    else if (size == 4) f((uint32_t)0);
    else f((uint64_t)0);
}

#endif
