/* One product of cuBLASLt, for the families that multiply matrices: described and its algorithm chosen once,
 * when a plan is made, then run any number of times without making an object.
 *
 * Row-major C = A B is column-major C' = B' A': the operands change places and nothing is moved. Sums are in
 * float32 (CUBLAS_COMPUTE_32F: no TF32), partial sums are never added in 16 bits and never by atomics. */
#ifndef MPRI_CUDA_PRODUCT_H
#define MPRI_CUDA_PRODUCT_H

#include "kernels/cuda/cublaslt.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MPRI_LT_WORKSPACE = 32 << 20 }; /* bytes that a run may use at most */

/* What follows the product and its bias before the store: gelu is the tanh form. */
typedef enum LtEpilogue { LT_NOTHING, LT_RELU, LT_GELU } LtEpilogue;

/* C[m,n] = alpha A[m,k] B[k,n] for every item of the batch, row-major and dense. trans: the operand is stored
 * as its transpose. */
typedef struct LtProduct {
    int64_t m, n, k;
    bool trans_a, trans_b;
    DType type, out;                /* of A and B; of C: the same or float32 */
    LtEpilogue epilogue;
    bool aux;                       /* with gelu: the value before it is stored too, n a multiple of 8 */
    bool bias;                      /* one value per column of C, of its type */
    int64_t batch;
    int64_t a_step, b_step, c_step; /* elements from item to item; 0: one for all */
    uint32_t a_align, b_align, c_align; /* bytes that every address of an item is a multiple of */
    size_t workspace;               /* bytes that a run gets; 0: MPRI_LT_WORKSPACE */
} LtProduct;

typedef struct LtHeld {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    const CublasLt *lt;
    cublasLtHandle_t handle;
    size_t workspace;
    LtEpilogue epilogue;
    int rank, found;                /* the algorithm's place among those that were timed; 0: none were */
    float us, us_first;             /* microseconds of this one, and of the library's first */
} LtHeld;

/* Enough for a product of so many results to be cut 16 times along k; the algorithm is chosen among those
 * that this is enough for. */
size_t mpri_cuda_product_workspace(int64_t outputs);

/* Fills *h, which needs no release. m, n, k and batch are not 0. The algorithm is the first that the library's
 * heuristic names, which is the same in every process; with Device.tune the fastest of several (tune.c).
 * MPR_E_DEVICE: the library has no such product. */
mpr_status mpri_cuda_product_prepare(const LtProduct *p, const CudaDevice *d, LtHeld *h, Err *err);
/* bias: NULL unless p->bias was set. */
mpr_status mpri_cuda_product_run(LtHeld *h, float alpha, const void *a, const void *b, const void *bias,
                                 void *c, void *workspace, void *queue);

/* Where the value before gelu goes in the next run, with LtProduct.aux. */
mpr_status mpri_cuda_product_aux(LtHeld *h, void *aux);
/* The algorithm as text: its number, tile, stages, parts of k, and how it was chosen. */
void mpri_cuda_product_describe(const LtHeld *h, char *buf, size_t size);

/* ---- tune.c ---- */

enum { MPRI_LT_CANDIDATES = 8 };
/* Times n candidates and keeps the fastest in *h, or what the same product got before. False: there is no
 * memory for it; h is as it was. */
bool mpri_cuda_tune(const LtProduct *p, const CudaDevice *d, LtHeld *h, const cublasLtMatmulHeuristicResult_t *from,
                    int n);
/* Microseconds of fn, which gives work to the device's queue, the least of some rounds; < 0: it failed. */
float mpri_cuda_time(const CudaDevice *d, mpr_status (*fn)(void *user), void *user);
/* A product of NaN has NaN as its result: an epilogue may lose it. */
bool mpri_cuda_keeps_nan(const LtProduct *p, const CudaDevice *d, LtHeld *h);
void mpri_cuda_tune_forget(CudaDevice *d);

/* Largest power of two up to 64 that divides a step of so many elements. */
uint32_t mpri_cuda_step_align(int64_t elements, DType t);

#ifdef __cplusplus
}
#endif

#endif
