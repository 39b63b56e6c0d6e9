/* The part of cuBLASLt that matmul.cu calls, by pointers: the library is loaded at run time
 * (lib_cublaslt.c), so that the program starts without it. */
#ifndef MPRI_CUDA_CUBLASLT_H
#define MPRI_CUDA_CUBLASLT_H

#include <cublasLt.h>

#include "kernels/cuda/cuda.h"

#define CUBLASLT_ENTRIES(X)                                                                \
    X(Create) X(Destroy) X(Matmul) X(MatmulAlgoGetHeuristic) X(MatmulAlgoConfigGetAttribute) \
    X(MatmulDescInit_internal) X(MatmulDescSetAttribute)                     \
    X(MatrixLayoutInit_internal) X(MatrixLayoutSetAttribute)                 \
    X(MatmulPreferenceInit_internal) X(MatmulPreferenceSetAttribute)

struct CublasLt {
#define X(name) __typeof__(cublasLt##name) *name;
    CUBLASLT_ENTRIES(X)
#undef X
};

#endif
