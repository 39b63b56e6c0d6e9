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
/* A node y = NODE over inputs "a: F[2,3]|b: F[3]", F being type, timed by the device's kernels. */
mpr_status mpri_bench_node(mpr_context *ctx, Device *d, const char *inputs, const char *node,
                           mpr_dtype type, int repeat, mpr_op_rate *rate, Err *err);
/* The operator of that number; name NULL past the last one. */
mpr_status mpri_bench_op(mpr_context *ctx, int index, mpr_dtype type, int repeat, mpr_op_rate *rate,
                         Err *err);
mpr_status mpri_bench_copy(mpr_context *ctx, int repeat, double *bytes_per_second, Err *err);
mpr_status mpri_environment(mpr_context *ctx, char **json, Err *err);

#endif
