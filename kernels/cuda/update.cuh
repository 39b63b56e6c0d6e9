/* Many tensors per launch, for what is done to all parameters: a launch carries pointers and sizes of up to
 * MANY tensors as its parameters; block b finds its chunk by them. */
#ifndef MPRI_CUDA_UPDATE_CUH
#define MPRI_CUDA_UPDATE_CUH

#include "kernels/cuda/kernel.cuh"

#include <math.h>

extern "C" {
#include "kernels/ledger_rule.h"
}

enum { MANY = 40, UPDATE_THREADS = 256 };

typedef struct Many {
    int n;
    float *p[MANY][4];
    void *copy[MANY];               /* in 16 bits; NULL: none */
    unsigned char copy_type[MANY];
    int64_t size[MANY];
    uint32_t first_block[MANY + 1]; /* of tensor k, in blocks of UPDATE_BLOCK */
    float rate[MANY], decay[MANY];
    int64_t next_copy;              /* where the search for the next parameter's begins */
    int64_t block_base;             /* blocks of the launches before */
    int rule_base;                  /* tensors of the launches before */
} Many;

/* The tensor that holds block b of a launch. */
static __device__ __forceinline__ int tensor_of(const Many &m, uint32_t b)
{
    int k = 0;
    while (k + 1 < m.n && m.first_block[k + 1] <= b) k++;
    return k;
}

static __host__ __device__ inline int64_t update_blocks(int64_t n)
{
    return (n + UPDATE_BLOCK - 1) / UPDATE_BLOCK;
}

/* The first copy of a parameter; further ones are written by themselves. */
static inline void find_copy(Many *m, const KernelCall *c, Ints copy_of, int param)
{
    while (m->next_copy < copy_of.n && copy_of.v[m->next_copy] < param) m->next_copy++;
    bool has = m->next_copy < copy_of.n && copy_of.v[m->next_copy] == param;
    const Tensor *copy = has ? c->in + mpri_update_end(c->n_in, copy_of) + m->next_copy : NULL;
    m->copy[m->n] = copy ? copy->data : NULL;
    m->copy_type[m->n] = copy ? (unsigned char)copy->dtype : 0;
}

/* Fills m with tensors from input *k on, `step` inputs each, of which `pointers` are wanted from
 * `offset` on. False: none is left. */
static inline bool gather(Many *m, const KernelCall *c, int *k, int step, int offset, int pointers,
                   const Floats *rate, const Floats *decay, Ints copy_of)
{
    int end = mpri_update_end(c->n_in, copy_of);
    m->block_base += m->n ? m->first_block[m->n] : 0;
    m->rule_base += m->n;
    m->n = 0;
    m->first_block[0] = 0;
    for (; *k < end && m->n < MANY; *k += step) {
        const Tensor *t = &c->in[*k];
        int param = (*k - UPDATE_FIRST) / step;
        for (int j = 0; j < pointers; j++) m->p[m->n][j] = (float *)t[offset + j].data;
        m->size[m->n] = t->n;
        find_copy(m, c, copy_of, param);
        m->rate[m->n] = rate && rate->n ? rate->v[param] : 1;
        m->decay[m->n] = decay && decay->n ? decay->v[param] : 1;
        m->first_block[m->n + 1] = m->first_block[m->n] + (uint32_t)update_blocks(t->n);
        m->n++;
    }
    return m->n > 0;
}

static inline int64_t all_blocks(const Tensor *in, int n_in, int step)
{
    int64_t n = 0;
    for (int k = UPDATE_FIRST; k < n_in; k += step) n += update_blocks(in[k].n);
    return n;
}

#endif
