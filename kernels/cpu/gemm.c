/* Access by instruction set to what kernels/cpu/simd builds once for each, and the peak rate. */
#include "kernels/cpu/gemm.h"

#include <time.h>
#include "kernels/cpu/isa.h"

const GemmApi *mpri_gemm_api(int isa)
{
#if defined(__x86_64__)
    if (isa >= MPRI_ISA_AVX512) return &mpri_gemm_avx512;
    if (isa >= MPRI_ISA_AVX2) return &mpri_gemm_avx2;
#else
    (void)isa;
#endif
    return &mpri_gemm_generic;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double mpri_cpu_peak(int isa)
{
    const GemmApi *api = mpri_gemm_api(isa);
    double best = 0;
    for (int i = 0; i < 8; i++) {
        double start = seconds(), ops = api->fma(300000);
        double rate = ops / (seconds() - start);
        if (rate > best) best = rate;
    }
    return best;
}
