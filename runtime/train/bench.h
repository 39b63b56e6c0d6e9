/* Rates and facts of this machine, for mpr-bench and mpr-inspect --env. */
#ifndef MPRI_TRAIN_BENCH_H
#define MPRI_TRAIN_BENCH_H

#include "runtime/train/context.h"

typedef struct BenchGemm {
    int64_t m, n, k;
    mpr_dtype dtype; /* of all three operands */
    bool trans_a, trans_b;
    int repeat; /* best of that many; 0 = 1 */
} BenchGemm;

mpr_status mpri_bench_peak(mpr_context *ctx, double *flops_per_second, Err *err);
mpr_status mpri_bench_gemm(mpr_context *ctx, const BenchGemm *g, double *seconds, Err *err);
mpr_status mpri_environment(mpr_context *ctx, char **json, Err *err);

#endif
