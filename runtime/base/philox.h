/* Philox4x32-10 as one inline function, for kernels of every device: Salmon, Moraes, Dror, Shaw, "Parallel
 * random numbers: as easy as 1, 2, 3", SC'11. Key = seed; counter words = (counter low, counter high, stream
 * low, stream high). */
#ifndef MPRI_BASE_PHILOX_H
#define MPRI_BASE_PHILOX_H

#include <stdint.h>

/* Compiled for hosts and, by kernels/cuda, for GPUs: plain arithmetic. */
#if defined(__CUDACC__)
#define MPRI_RULE static inline __host__ __device__
#else
#define MPRI_RULE static inline
#endif

MPRI_RULE void mpri_philox_words(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53 * c0, p1 = (uint64_t)0xCD9E8D57 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
