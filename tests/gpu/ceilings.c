/* What the GPU can do at best: its copy bandwidth, and cuBLASLt's rate of one large product in each
 * 16-bit type with float32 sums. One line each, as in models.c. Exit status 77: no device.
 *
 * The product is one that mpr calls too (C = A B, float32 compute), by the first algorithm that the
 * library proposes with 32 MiB of workspace; the best of ten counts. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/cublaslt.h"

enum { TURNS = 10, EDGE = 8192 };
static const size_t copy_bytes = (size_t)1 << 30, workspace_bytes = (size_t)32 << 20;

typedef struct Machine {
    const CublasLt *lt;
    cublasLtHandle_t handle;
    void *a, *b, *c, *workspace;
    cudaEvent_t start, end;
} Machine;

static int line(const char *what, bool ok, const char *text)
{
    printf("ceiling\t%s\t%s\t%s\n", what, ok ? "passed" : "failed", text);
    return !ok;
}

static float best_of(float best, const Machine *m)
{
    float ms = 0;
    if (cudaEventSynchronize(m->end) != cudaSuccess ||
        cudaEventElapsedTime(&ms, m->start, m->end) != cudaSuccess)
        return -1;
    return best == 0 || ms < best ? ms : best;
}

static int copy_rate(const Machine *m)
{
    char text[128];
    float best = 0;
    for (int i = 0; i < TURNS && best >= 0; i++) {
        (void)cudaEventRecord(m->start, NULL);
        (void)cudaMemcpyAsync(m->a, m->b, copy_bytes, cudaMemcpyDeviceToDevice, NULL);
        (void)cudaEventRecord(m->end, NULL);
        best = best_of(best, m);
    }
    snprintf(text, sizeof text, "%.0f GB/s read and written", 2e-6 * (double)copy_bytes / (double)best);
    return line("copy", best > 0, best > 0 ? text : cudaGetErrorString(cudaGetLastError()));
}

static cublasStatus_t product(const Machine *m, cudaDataType_t type, float *best)
{
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t l;
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t found;
    float one = 1, zero = 0;
    int n = 0;
    cublasStatus_t st =
        m->lt->MatmulDescInit_internal(&desc, sizeof desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!st) st = m->lt->MatrixLayoutInit_internal(&l, sizeof l, type, EDGE, EDGE, EDGE);
    if (!st) st = m->lt->MatmulPreferenceInit_internal(&wish, sizeof wish);
    if (!st)
        st = m->lt->MatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace_bytes, sizeof workspace_bytes);
    if (!st) st = m->lt->MatmulAlgoGetHeuristic(m->handle, &desc, &l, &l, &l, &l, &wish, 1, &found, &n);
    if (!st && !n) st = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < TURNS && !st; i++) {
        (void)cudaEventRecord(m->start, NULL);
        st = m->lt->Matmul(m->handle, &desc, &one, m->a, &l, m->b, &l, &zero, m->c, &l, m->c, &l,
                           &found.algo, m->workspace, workspace_bytes, NULL);
        (void)cudaEventRecord(m->end, NULL);
        *best = best_of(*best, m);
        if (*best < 0) return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    return st;
}

static int product_rate(const Machine *m, const char *name, cudaDataType_t type)
{
    char text[128];
    float best = 0;
    cublasStatus_t st = product(m, type, &best);
    if (st) snprintf(text, sizeof text, "cuBLASLt status %d", (int)st);
    else
        snprintf(text, sizeof text, "%.1f TFLOP/s in a product of %d",
                 2e-9 * EDGE * EDGE * (double)EDGE / (double)best, EDGE);
    return line(name, !st, text);
}

static bool open_machine(Machine *m, const char **why)
{
    cudaError_t e = cudaMalloc(&m->a, copy_bytes);
    if (!e) e = cudaMalloc(&m->b, copy_bytes);
    if (!e) e = cudaMalloc(&m->c, (size_t)EDGE * EDGE * 2);
    if (!e) e = cudaMalloc(&m->workspace, workspace_bytes);
    if (!e) e = cudaMemset(m->a, 0, copy_bytes);
    if (!e) e = cudaMemset(m->b, 0, copy_bytes);
    if (!e) e = cudaEventCreate(&m->start);
    if (!e) e = cudaEventCreate(&m->end);
    *why = cudaGetErrorString(e);
    if (e) return false;
    m->lt = mpri_cublaslt(why);
    if (!m->lt) return false;
    *why = "cuBLASLt cannot be started";
    return m->lt->Create(&m->handle) == CUBLAS_STATUS_SUCCESS;
}

int main(void)
{
    Machine m = {0};
    int n = 0, bad = 0;
    const char *why;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || !n) {
        printf("skipped: no CUDA device: %s\n", cudaGetErrorString(e));
        return 77;
    }
    if (!open_machine(&m, &why)) return line("device", false, why);
    bad += copy_rate(&m);
    bad += product_rate(&m, "cuBLASLt FP16", CUDA_R_16F);
    bad += product_rate(&m, "cuBLASLt BF16", CUDA_R_16BF);
    return bad > 0; /* the process ends: the driver takes everything back */
}
