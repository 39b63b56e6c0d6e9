/* The micro-kernel: mr rows of packed A times one panel of packed B, all of a k block in registers.
 *
 * 14 x 32 with AVX-512 and 6 x 16 with AVX2 use all registers but those for one row of B (Goto, van
 * de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). One instance per number of
 * rows and per panel width of one or two vectors, so that ragged matrices do not pay for absent
 * rows. Every instance adds the products of an element in the same order.
 *
 * Packed A: for each k, mr values. Packed B: for each k, nv vectors. */
#ifndef MPRI_CPU_GEMM_KERNEL_H
#define MPRI_CPU_GEMM_KERNEL_H

#include "kernels/cpu/simd/simd.h"

#if defined(MPRI_ISA_avx512)
#define GEMM_MR 14
#elif defined(MPRI_ISA_avx2)
#define GEMM_MR 6
#else
#define GEMM_MR 4
#endif
#define GEMM_NR (2 * VF_LANES)

/* out[i][j] = alpha * (in[i][j] + sum_k a b), columns 0 .. n-1; in may be NULL (zero) or out. */
typedef void (*GemmKernel)(int64_t kc, const float *a, const float *b, const float *in,
                           int64_t ldin, float *out, int64_t ldout, int n, float alpha);

#define GEMM_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

VF_FN vf gemm_in_(const float *in, int n)
{
    return n >= VF_LANES ? vf_load(in) : n > 0 ? vf_load_n(in, n) : vf_zero();
}
VF_FN void gemm_out_(float *out, vf v, int n)
{
    if (n >= VF_LANES) vf_store(out, v);
    else if (n > 0) vf_store_n(out, v, n);
}

VF_FN void gemm_kernel_(int mr, int nv, int64_t kc, const float *a, const float *b, const float *in,
                        int64_t ldin, float *out, int64_t ldout, int n, float alpha)
{
    const vf scale = vf_set1(alpha);
#define ZERO(i) vf c##i##_0 = vf_zero(), c##i##_1 = vf_zero();
    GEMM_ROWS(ZERO)
#undef ZERO
#define FETCH(i) \
    if (mr > i && in) __builtin_prefetch(in + i * ldin), __builtin_prefetch(in + i * ldin + n - 1);
    GEMM_ROWS(FETCH)
#undef FETCH
    for (int64_t k = 0; k < kc; k++) {
        __builtin_prefetch(b + 16 * GEMM_NR);
        if (nv > 1) __builtin_prefetch(b + 16 * GEMM_NR + VF_LANES);
        vf b0 = vf_load(b), b1 = nv > 1 ? vf_load(b + VF_LANES) : b0;
#define STEP(i)                                         \
    if (mr > i) {                                       \
        vf x = vf_set1(a[i]);                           \
        c##i##_0 = vf_fma(x, b0, c##i##_0);             \
        if (nv > 1) c##i##_1 = vf_fma(x, b1, c##i##_1); \
    }
        GEMM_ROWS(STEP)
#undef STEP
        a += mr;
        b += nv * VF_LANES;
    }
#define FINISH(i)                                                                               \
    if (mr > i) {                                                                               \
        if (in) {                                                                               \
            c##i##_0 = gemm_in_(in + i * ldin, n) + c##i##_0;                                   \
            if (nv > 1) c##i##_1 = gemm_in_(in + i * ldin + VF_LANES, n - VF_LANES) + c##i##_1; \
        }                                                                                       \
        gemm_out_(out + i * ldout, c##i##_0 * scale, n);                                        \
        if (nv > 1) gemm_out_(out + i * ldout + VF_LANES, c##i##_1 * scale, n - VF_LANES);      \
    }
    GEMM_ROWS(FINISH)
#undef FINISH
}

#define GEMM_INSTANCE(i)                                                                         \
    static void gemm_kernel_##i##_1(int64_t kc, const float *a, const float *b, const float *in, \
                                    int64_t ldin, float *out, int64_t ldout, int n, float alpha) \
    {                                                                                            \
        gemm_kernel_(i, 1, kc, a, b, in, ldin, out, ldout, n, alpha);                            \
    }                                                                                            \
    static void gemm_kernel_##i##_2(int64_t kc, const float *a, const float *b, const float *in, \
                                    int64_t ldin, float *out, int64_t ldout, int n, float alpha) \
    {                                                                                            \
        gemm_kernel_(i, 2, kc, a, b, in, ldin, out, ldout, n, alpha);                            \
    }
#define GEMM_ENTRY(i) {gemm_kernel_##i##_1, gemm_kernel_##i##_2},

#if GEMM_MR == 14
#define GEMM_COUNTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif GEMM_MR == 6
#define GEMM_COUNTS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define GEMM_COUNTS(X) X(1) X(2) X(3) X(4)
#endif
GEMM_COUNTS(GEMM_INSTANCE)
static const GemmKernel gemm_kernels[GEMM_MR][2] = {
    GEMM_COUNTS(GEMM_ENTRY)}; /* [rows - 1][vectors - 1] */

#endif
