/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11). The value depends on (seed,
 * stream, counter) only, so results do not depend on threads, order or history. */
#ifndef MPRI_BASE_RNG_H
#define MPRI_BASE_RNG_H

#include <stdint.h>

void mpri_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4]);
float mpri_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter); /* [0,1), 24 bits */
double mpri_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter); /* Box-Muller */
/* Unbiased integer in [0, n). */
uint64_t mpri_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n);
/* Fisher-Yates permutation of 0..n-1, a function of (seed, stream) only. */
void mpri_rng_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out);

#endif
