/* Numbers from the words of the Philox generator; see philox.h. */
#include "runtime/base/rng.h"

#include <math.h>
#include "runtime/base/philox.h"

void mpri_philox(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4])
{
    mpri_philox_words(seed, stream, counter, out);
}

float mpri_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t r[4];
    mpri_philox(seed, stream, counter, r);
    return (float)(r[0] >> 8) * 0x1p-24f;
}

double mpri_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t r[4];
    mpri_philox(seed, stream, counter, r);
    uint64_t a = ((uint64_t)r[0] << 32 | r[1]) >> 11, b = ((uint64_t)r[2] << 32 | r[3]) >> 11;
    double u = ((double)a + 1) * 0x1p-53, v = (double)b * 0x1p-53; /* u in (0,1]: log is finite */
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

/* Lemire, "Fast random integer generation in an interval", 2019: the high half of r * n, where the
 * few r that would favour some results are rejected; each attempt draws under another key. */
uint64_t mpri_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n)
{
    if (n < 2) return 0;
    uint64_t threshold = -n % n;
    for (uint64_t attempt = 0;; attempt++) {
        uint32_t r[4];
        mpri_philox(seed + attempt * 0x9E3779B97F4A7C15, stream, counter, r);
        for (int half = 0; half < 4; half += 2) {
            uint64_t x = (uint64_t)r[half] << 32 | r[half + 1];
            unsigned __int128 product = (unsigned __int128)x * n;
            if ((uint64_t)product >= threshold) return (uint64_t)(product >> 64);
        }
    }
}

void mpri_rng_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)mpri_rng_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        int64_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}
