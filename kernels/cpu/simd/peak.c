/* The rate of multiply-adds with all operands in registers: the ceiling that a matrix product is
 * measured against. Enough independent chains to cover the latency of the unit. */
#include "kernels/cpu/simd/simd.h"

double MPRI_NAME(fma_rounds)(int64_t rounds);

enum { CHAINS = 12 };

double MPRI_NAME(fma_rounds)(int64_t rounds)
{
    /* Different starts, or the compiler makes one chain of all. */
    volatile float start = 1.0f;
    vf x = vf_set1(0.999999f), y = vf_set1(1e-7f), s = vf_set1(start);
    vf c0 = s, c1 = c0 + s, c2 = c1 + s, c3 = c2 + s, c4 = c3 + s, c5 = c4 + s;
    vf c6 = c5 + s, c7 = c6 + s, c8 = c7 + s, c9 = c8 + s, c10 = c9 + s, c11 = c10 + s;
    for (int64_t r = 0; r < rounds; r++) {
        c0 = vf_fma(c0, x, y);
        c1 = vf_fma(c1, x, y);
        c2 = vf_fma(c2, x, y);
        c3 = vf_fma(c3, x, y);
        c4 = vf_fma(c4, x, y);
        c5 = vf_fma(c5, x, y);
        c6 = vf_fma(c6, x, y);
        c7 = vf_fma(c7, x, y);
        c8 = vf_fma(c8, x, y);
        c9 = vf_fma(c9, x, y);
        c10 = vf_fma(c10, x, y);
        c11 = vf_fma(c11, x, y);
    }
    vf sum = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11));
    volatile float sink = vf_hsum(sum);
    (void)sink;
    return 2.0 * CHAINS * VF_LANES * (double)rounds;
}
