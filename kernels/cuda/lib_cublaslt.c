/* Opens cuBLASLt: where the loader looks, else where the toolkit is. The versions are those whose interface this
 * file was compiled against. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cublaslt.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static CublasLt entries;
static const char *missing;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *open_library(void)
{
    const char *const homes[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < 3 && !lib; i++) {
        char path[1024];
        int n = homes[i] ? snprintf(path, sizeof path, "%s/lib64/" LIBRARY, homes[i]) : -1;
        if (n > 0 && n < (int)sizeof path) lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return lib;
}

static void load(void)
{
    void *lib = open_library();
    if (!lib) {
        missing = LIBRARY " cannot be loaded (looked for in the loader's folders, CUDA_HOME, CUDA_PATH and "
                          "/usr/local/cuda)";
        return;
    }
#define X(name)                                                       \
    if (!missing && !(*(void **)&entries.name = dlsym(lib, "cublasLt" #name)))   \
        missing = LIBRARY " has no cublasLt" #name;
    CUBLASLT_ENTRIES(X)
#undef X
}

const CublasLt *mpri_cublaslt(const char **why)
{
    pthread_once(&once, load);
    *why = missing;
    return missing ? NULL : &entries;
}
