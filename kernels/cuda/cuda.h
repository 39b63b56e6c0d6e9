/* The CUDA device to the rest of its room: tables of rows, queues, libraries that are loaded when they
 * are needed. Plain C; what kernels share is in kernel.cuh. */
#ifndef MPRI_CUDA_CUDA_H
#define MPRI_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "runtime/exec/device.h"

/* All families of this folder in the order of choice, then those of the host. The tables are static. */
KernelSet mpri_cuda_kernels(const Device *host);

/* cuBLASLt, opened once per process. NULL: the library or an entry of it is missing; *why says which
 * (static text). */
typedef struct CublasLt CublasLt;
const CublasLt *mpri_cublaslt(const char **why);

/* MPR_E_DEVICE says why GPU number `index` cannot be used; find.c. */
mpr_status mpri_cuda_find(int index, Err *err);

/* What KernelCall.device_fault points to on a CUDA device, in its memory. A recorded launch is run again
 * with other numbers: kernels read seed and step here, not in the call. */
typedef struct CudaNotes {
    DeviceFault fault; /* first */
    uint64_t counter[2];
} CudaNotes;

/* What a CUDA device is beyond Device; device_cuda.c. */
typedef struct CudaDevice {
    Device d;
    int index;              /* of the GPU */
    int sms;                /* multiprocessors */
    const CublasLt *lt;     /* NULL: products run on the host */
    void *lt_handle;
    struct LtTuned **tuned; /* list of what was timed, by shape; Device.tune */
} CudaDevice;

#ifdef __cplusplus
}
#endif

#endif
