/* Is there a GPU that can be used? If not, what was looked for and what is missing. */
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"

static mpr_status no_device(cudaError_t e, Err *err)
{
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    if (!version || e == cudaErrorInsufficientDriver) {
        if (!version)
            mpri_err_set(err, MPR_E_DEVICE,
                         "no CUDA driver: looked for libcuda.so.1, which cannot be loaded");
        else
            mpri_err_set(err, MPR_E_DEVICE,
                         "the CUDA driver is too old: it knows CUDA %d.%d, this program needs %d.%d",
                         version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                         CUDART_VERSION % 1000 / 10);
        return mpri_err_advice(err, "install NVIDIA's driver, or use --device cpu");
    }
    mpri_err_set(err, MPR_E_DEVICE, "no usable CUDA device: the driver (CUDA %d.%d) says: %s",
                 version / 1000, version % 1000 / 10, cudaGetErrorString(e));
    return mpri_err_advice(err, "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu");
}

mpr_status mpri_cuda_find(int index, Err *err)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    if (e != cudaSuccess || n == 0) return no_device(e == cudaSuccess ? cudaErrorNoDevice : e, err);
    if (index < n) return MPR_OK;
    mpri_err_set(err, MPR_E_DEVICE, "there is no CUDA device %d: there are %d, counted from 0", index,
                 n);
    return mpri_err_advice(err, "use --device cuda:0");
}
