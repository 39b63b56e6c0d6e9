/* Between the shim's own files. */
#ifndef MPR_TEST_CUDA_SHIM_PRIVATE_H
#define MPR_TEST_CUDA_SHIM_PRIVATE_H

#include "tests/cuda_on_cpu/control.h"
#include "tests/cuda_on_cpu/shim.h"

namespace shim {

struct Kernel {
    const char *name;
    dim3 grid, block;
    size_t shared;
    std::function<void()> body;
};

/* shim.cpp: runs all blocks; an error is what a real device would say. */
void prepare();
cudaError_t check_launch(dim3 grid, dim3 block, size_t shared);
cudaError_t run_kernel(const Kernel &k);

/* runtime.cpp: false when the address is nobody's device memory. */
bool describe_address(const void *address, char *text, size_t size);
/* Work for a queue that is no kernel: a copy, a product. Runs with device memory open. */
cudaError_t give(cudaStream_t stream, const char *name, std::function<cudaError_t()> work);

} /* namespace shim */

#endif
