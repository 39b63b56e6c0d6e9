/* Opens cuBLASLt. The versions are those whose interface this file was compiled against. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "kernels/cuda/cublaslt.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static CublasLt entries;
static const char *missing;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    void *lib = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        missing = LIBRARY " cannot be loaded";
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
