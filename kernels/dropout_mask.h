/* Which elements a Dropout keeps: the one definition that every device follows.
 *
 * The mask is a function of (run seed, node seed, node stream, number of the forward pass,
 * element), so it depends neither on threads nor on history, and a resumed run draws what the
 * uninterrupted one would have. Elements come in blocks of 64, which take 16 counters of the Philox
 * generator: element 64 b + 16 k + i is dropped when the upper 24 bits of word k of counter
 * 16 b + i are below the threshold. */
#ifndef MPRI_DROPOUT_MASK_H
#define MPRI_DROPOUT_MASK_H

#include "runtime/base/philox.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/params.h"

typedef struct DropoutDraw {
    uint64_t seed, stream;
    int32_t threshold; /* ratio * 2^24, rounded: 0 keeps all, 2^24 drops all */
    double scale;       /* 1 / (1 - ratio); 0 when all is dropped */
} DropoutDraw;

/* The part of the draw that follows from what the inputs say. */
MPRI_RULE void mpri_dropout_rule(DropoutDraw *d, double ratio, bool training)
{
    if (!training || !(ratio > 0)) ratio = 0;
    if (ratio > 1) ratio = 1;
    d->scale = ratio < 1 ? 1 / (1 - ratio) : 0;
    d->threshold = (int32_t)(ratio * 0x1p24 + 0.5);
}

/* The part that follows from the node and the pass. */
MPRI_RULE void mpri_dropout_pass(DropoutDraw *d, uint64_t node_seed, uint64_t node_stream,
                                 uint64_t seed, uint64_t step)
{
    d->seed = seed ^ node_seed * 0x9E3779B97F4A7C15;
    d->stream = step << 24 ^ node_stream;
}

static inline DropoutDraw mpri_dropout_stream(const KernelCall *c)
{
    const DropoutParams *p = (const DropoutParams *)c->params;
    DropoutDraw d;
    mpri_dropout_rule(&d, 0, false);
    mpri_dropout_pass(&d, (uint64_t)p->seed, (uint64_t)p->stream, c->seed, c->step);
    return d;
}

/* ratio: input `at` (0.5 when absent); training: input at + 1 (false when absent: everything is
 * kept). */
static inline DropoutDraw mpri_dropout_draw(const KernelCall *c, int at)
{
    DropoutDraw d = mpri_dropout_stream(c);
    double ratio = 0.5;
    bool training = false;
    if (c->n_in > at && mpri_tensor_here(&c->in[at]))
        ratio = mpri_load_f64(c->in[at].dtype, c->in[at].data, 0);
    if (c->n_in > at + 1 && mpri_tensor_here(&c->in[at + 1]))
        training = mpri_load_i64(c->in[at + 1].dtype, c->in[at + 1].data, 0) != 0;
    mpri_dropout_rule(&d, ratio, training);
    return d;
}

MPRI_RULE bool mpri_dropout_kept(const DropoutDraw *d, int64_t element)
{
    uint32_t word[4];
    mpri_philox_words(d->seed, d->stream, (uint64_t)(element / 64 * 16 + element % 16), word);
    return (int32_t)(word[element % 64 / 16] >> 8) >= d->threshold;
}

#endif
