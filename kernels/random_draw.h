/* What the random operators draw: the one definition that every device follows.
 *
 * A number is a function of (key, stream, element). Without a seed of its own a node draws from the
 * run's seed under its own stream; a node with the attribute seed draws from that alone, so two
 * nodes with one seed draw alike, in every run. Both move on with the number of the forward pass.
 * Streams have bit 23 set, which those of Dropout do not. */
#ifndef MPRI_RANDOM_DRAW_H
#define MPRI_RANDOM_DRAW_H

#include <math.h>
#include <string.h>
#include "runtime/base/rng.h"
#include "runtime/exec/kernel.h"

typedef struct RandomStream {
    uint64_t seed, stream;
} RandomStream;

static inline RandomStream mpri_random_stream(const KernelCall *c, float seed, int64_t stream)
{
    const uint64_t family = (uint64_t)1 << 23;
    uint32_t bits;
    if (isnan(seed))
        return (RandomStream){c->seed, c->step << 24 ^ (family | (uint64_t)stream)};
    memcpy(&bits, &seed, sizeof bits);
    return (RandomStream){bits * 0x9E3779B97F4A7C15 + 1, c->step << 24 ^ family};
}

/* [0,1) with this many binary digits, at most 53: as many as the result's type holds, so that a
 * store does not round up to 1. */
static inline double mpri_random_uniform(RandomStream s, int64_t element, int digits)
{
    uint32_t r[4];
    mpri_philox(s.seed, s.stream, (uint64_t)element, r);
    return ldexp((double)(((uint64_t)r[0] << 32 | r[1]) >> (64 - digits)), -digits);
}

static inline int mpri_random_digits(DType t)
{
    return t == MPR_FLOAT64 ? 53 : t == MPR_FLOAT32 ? 24 : t == MPR_FLOAT16 ? 11 : 8;
}

#endif
