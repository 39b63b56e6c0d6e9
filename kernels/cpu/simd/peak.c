/* The rate of multiply-adds with all operands in registers: the ceiling that a matrix product is measured
 * against. Enough independent chains to cover the latency of the unit. */
#include "kernels/cpu/simd/simd.h"

double MPRI_NAME(fma_rounds)(int64_t rounds);

enum { CHAINS = 12 };

double MPRI_NAME(fma_rounds)(int64_t rounds)
{
    vf x = vf_set1(0.999999f), y = vf_set1(1e-7f);
    vf c0 = x, c1 = x, c2 = x, c3 = x, c4 = x, c5 = x, c6 = x, c7 = x, c8 = x, c9 = x, c10 = x, c11 = x;
    for (int64_t r = 0; r < rounds; r++) {
        c0 = vf_fma(c0, x, y); c1 = vf_fma(c1, x, y); c2 = vf_fma(c2, x, y); c3 = vf_fma(c3, x, y);
        c4 = vf_fma(c4, x, y); c5 = vf_fma(c5, x, y); c6 = vf_fma(c6, x, y); c7 = vf_fma(c7, x, y);
        c8 = vf_fma(c8, x, y); c9 = vf_fma(c9, x, y); c10 = vf_fma(c10, x, y); c11 = vf_fma(c11, x, y);
    }
    vf sum = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) + ((c8 + c9) + (c10 + c11));
    volatile float sink = vf_hsum(sum);
    (void)sink;
    return 2.0 * CHAINS * VF_LANES * (double)rounds;
}
