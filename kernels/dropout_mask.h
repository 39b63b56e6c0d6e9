/* Which elements a Dropout keeps: the one definition that every device follows.
 *
 * The mask is a function of (run seed, node seed, node stream, number of the forward pass, element), so it
 * depends neither on threads nor on history, and a resumed run draws what the uninterrupted one would
 * have. Elements 4i .. 4i+3 take the four words of Philox counter i; a word below the threshold drops. */
#ifndef MPRI_DROPOUT_MASK_H
#define MPRI_DROPOUT_MASK_H

#include "runtime/base/rng.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/params.h"

typedef struct DropoutDraw {
    uint64_t seed, stream;
    uint64_t threshold; /* ratio * 2^32, rounded: 0 keeps all, 2^32 drops all */
    double scale;       /* 1 / (1 - ratio); 0 when all is dropped */
} DropoutDraw;

/* ratio: input `at` (0.5 when absent); training: input at + 1 (false when absent: everything is kept). */
static inline DropoutDraw mpri_dropout_draw(const KernelCall *c, int at)
{
    const DropoutParams *p = c->params;
    double ratio = 0.5;
    bool training = false;
    if (c->n_in > at && mpri_tensor_here(&c->in[at])) ratio = mpri_load_f64(c->in[at].dtype, c->in[at].data, 0);
    if (c->n_in > at + 1 && mpri_tensor_here(&c->in[at + 1]))
        training = mpri_load_i64(c->in[at + 1].dtype, c->in[at + 1].data, 0) != 0;
    if (!training || !(ratio > 0)) ratio = 0;
    if (ratio > 1) ratio = 1;
    DropoutDraw d = {.scale = ratio < 1 ? 1 / (1 - ratio) : 0};
    d.threshold = (uint64_t)(ratio * 0x1p32 + 0.5);
    d.seed = c->seed ^ (uint64_t)p->seed * 0x9E3779B97F4A7C15;
    d.stream = c->step << 24 ^ (uint64_t)p->stream;
    return d;
}

/* keep[0..3] for elements 4 * group … 4 * group + 3. */
static inline void mpri_dropout_keep(const DropoutDraw *d, int64_t group, bool keep[4])
{
    uint32_t word[4];
    mpri_philox(d->seed, d->stream, (uint64_t)group, word);
    for (int k = 0; k < 4; k++) keep[k] = word[k] >= d->threshold;
}

#endif
