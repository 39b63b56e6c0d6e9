/* Matrix products of the CPU kernels, for the operator rows, convolution and the benchmark.
 *
 * C[m,n] = act(alpha * op(A) op(B) + bias), a batch of them. Storage f32, f16 or bf16 per operand,
 * products accumulated in f32, one rounding at the store. An element of C is the same bits whatever
 * the number of threads: its sum runs over k in order, in blocks that depend on k only, and k is
 * never split. */
#ifndef MPRI_CPU_GEMM_H
#define MPRI_CPU_GEMM_H

#include "runtime/exec/kernel.h"

typedef enum GemmAct { GEMM_NONE, GEMM_RELU, GEMM_GELU, GEMM_GELU_TANH } GemmAct;

enum { GEMM_BATCH_RANK = 6 };

typedef struct Gemm {
    int64_t m, n, k;
    DType ta, tb, tc, tbias; /* f32, f16 or bf16 */
    bool trans_a, trans_b;   /* A is stored [k,m], B is stored [n,k] */
    const void *a, *b;
    void *c;
    void *pre;             /* NULL, or C before the activation, type and layout of C */
    const void *bias;      /* NULL, or [n] (one per column), or [m] with bias_rows */
    bool bias_rows;
    int64_t lda, ldb, ldc; /* elements from one stored row to the next */
    float alpha;
    GemmAct act;
    bool add;              /* the product is added to C: f32, alpha 1, no bias, act or pre */
    int64_t batch;         /* items; C items are c_step elements apart */
    int64_t c_step;
    int batch_rank;        /* item -> index by dims -> elements by steps (0: broadcast) */
    int64_t batch_dims[GEMM_BATCH_RANK], a_step[GEMM_BATCH_RANK], b_step[GEMM_BATCH_RANK];
} Gemm;

typedef struct GemmApi {
    size_t (*workspace)(const Gemm *g, int workers); /* bytes; reads sizes, types and flags only */
    /* The workspace is 64-byte aligned. */
    void (*run)(const Gemm *g, void *workspace, Threads *threads);
    /* Register-only multiply-adds; returns the number of operations done. */
    double (*fma)(int64_t rounds);
} GemmApi;

extern const GemmApi mpri_gemm_generic, mpri_gemm_avx2, mpri_gemm_avx512;
const GemmApi *mpri_gemm_api(int isa);

/* Operations per second of one core in registers, multiply-adds counting two; takes some 20 ms. */
double mpri_cpu_peak(int isa);

#endif
