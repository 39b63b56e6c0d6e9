/* Descriptors and algorithms of cuBLASLt; see product.h. The descriptors lie in place (…Init_internal), so
 * there is nothing to destroy. */
#include "kernels/cuda/product.h"

#include <stdio.h>
#include <string.h>

/* The library's own buffers begin at multiples of 256 bytes, a step's workspace at multiples of 64. */
enum { WORKSPACE_ALIGN = 256, WORKSPACE_SLACK = WORKSPACE_ALIGN - 64 };

#define LT(call)                                                    \
    do {                                                            \
        cublasStatus_t lt_status_ = (call);                         \
        if (lt_status_ != CUBLAS_STATUS_SUCCESS) return lt_status_; \
    } while (0)

static cudaDataType_t lt_type(DType t)
{
    return t == MPR_FLOAT32 ? CUDA_R_32F : t == MPR_FLOAT16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* Column-major rows x cols. */
static cublasStatus_t set_layout(const CublasLt *lt, cublasLtMatrixLayoutOpaque_t *l, DType t, int64_t rows,
                                 int64_t cols, int64_t batch, int64_t step)
{
    int32_t count = (int32_t)batch;
    LT(lt->MatrixLayoutInit_internal(l, sizeof *l, lt_type(t), (uint64_t)rows, (uint64_t)cols, rows));
    LT(lt->MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    return lt->MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

static cublasLtEpilogue_t epilogue_of(const LtProduct *p)
{
    switch (p->epilogue) {
    case LT_RELU: return p->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case LT_GELU:
        if (p->aux) return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        return p->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    default: return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }
}

static cublasStatus_t set_epilogue(const LtProduct *p, LtHeld *h)
{
    const CublasLt *lt = h->lt;
    cublasLtEpilogue_t epilogue = epilogue_of(p);
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        LT(lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (!p->aux) return CUBLAS_STATUS_SUCCESS;
    LT(lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->n, sizeof p->n));
    return lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &p->c_step,
                                      sizeof p->c_step);
}

/* The library's first operand is B, its second A. */
static cublasStatus_t describe(const LtProduct *p, LtHeld *h)
{
    const CublasLt *lt = h->lt;
    cublasOperation_t first = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    LT(lt->MatmulDescInit_internal(&h->desc, sizeof h->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    LT(lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    LT(set_epilogue(p, h));
    LT(set_layout(lt, &h->a, p->type, p->trans_b ? p->k : p->n, p->trans_b ? p->n : p->k, p->batch,
                  p->b_step));
    LT(set_layout(lt, &h->b, p->type, p->trans_a ? p->m : p->k, p->trans_a ? p->k : p->m, p->batch,
                  p->a_step));
    return set_layout(lt, &h->c, p->out, p->n, p->m, p->batch, p->c_step);
}

static cublasStatus_t choose(const LtProduct *p, const CudaDevice *d, LtHeld *h)
{
    const CublasLt *lt = h->lt;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t best[MPRI_LT_CANDIDATES];
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const size_t workspace = h->workspace - WORKSPACE_SLACK;
    int found = 0;
    LT(lt->MatmulPreferenceInit_internal(&pref, sizeof pref));
#define PREFER(name, value) \
    LT(lt->MatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_##name, &(value), sizeof(value)))
    PREFER(MAX_WORKSPACE_BYTES, workspace);
    PREFER(REDUCTION_SCHEME_MASK, schemes);
    PREFER(MIN_ALIGNMENT_A_BYTES, p->b_align);
    PREFER(MIN_ALIGNMENT_B_BYTES, p->a_align);
    PREFER(MIN_ALIGNMENT_C_BYTES, p->c_align);
    PREFER(MIN_ALIGNMENT_D_BYTES, p->c_align);
#undef PREFER
    LT(lt->MatmulAlgoGetHeuristic(h->handle, &h->desc, &h->a, &h->b, &h->c, &h->c, &pref,
                                  d->d.tune ? MPRI_LT_CANDIDATES : 1, best, &found));
    if (!found) return CUBLAS_STATUS_NOT_SUPPORTED;
    h->algo = best[0].algo;
    if (d->d.tune) (void)mpri_cuda_tune(p, d, h, best, found);
    return CUBLAS_STATUS_SUCCESS;
}

size_t mpri_cuda_product_workspace(int64_t outputs)
{
    const int64_t parts = 16;
    if (outputs > MPRI_LT_WORKSPACE / (parts * (int64_t)sizeof(float))) return MPRI_LT_WORKSPACE;
    size_t bytes = (size_t)(outputs * parts) * sizeof(float) + WORKSPACE_SLACK;
    return (bytes + WORKSPACE_ALIGN - 1) & ~(size_t)(WORKSPACE_ALIGN - 1);
}

mpr_status mpri_cuda_product_prepare(const LtProduct *p, const CudaDevice *d, LtHeld *h, Err *err)
{
    memset(h, 0, sizeof *h);
    h->lt = d->lt;
    h->workspace = p->workspace ? p->workspace : MPRI_LT_WORKSPACE;
    h->handle = (cublasLtHandle_t)d->lt_handle;
    h->epilogue = p->epilogue;
    cublasStatus_t st = describe(p, h);
    if (st == CUBLAS_STATUS_SUCCESS) st = choose(p, d, h);
    if (st == CUBLAS_STATUS_SUCCESS) return MPR_OK;
    return mpri_err_set(err, MPR_E_DEVICE, "cuBLASLt has no product for %lld x %lld x %lld (status %d)",
                        (long long)p->m, (long long)p->n, (long long)p->k, (int)st);
}

mpr_status mpri_cuda_product_run(LtHeld *h, float alpha, const void *a, const void *b, const void *bias,
                                 void *c, void *workspace, void *queue)
{
    float zero = 0;
    uintptr_t at = ((uintptr_t)workspace + WORKSPACE_ALIGN - 1) & ~(uintptr_t)(WORKSPACE_ALIGN - 1);
    if (bias && h->lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                              sizeof bias) != CUBLAS_STATUS_SUCCESS)
        return MPR_E_DEVICE;
    return h->lt->Matmul(h->handle, &h->desc, &alpha, b, &h->a, a, &h->b, &zero, c, &h->c, c, &h->c,
                         &h->algo, (void *)at, h->workspace - WORKSPACE_SLACK,
                         (cudaStream_t)queue) == CUBLAS_STATUS_SUCCESS
               ? MPR_OK
               : MPR_E_DEVICE;
}

mpr_status mpri_cuda_product_aux(LtHeld *h, void *aux)
{
    return h->lt->MatmulDescSetAttribute(&h->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                         sizeof aux) == CUBLAS_STATUS_SUCCESS
               ? MPR_OK
               : MPR_E_DEVICE;
}

static int setting(const LtHeld *h, cublasLtMatmulAlgoConfigAttributes_t which)
{
    int32_t v = 0;
    size_t written;
    if (h->lt->MatmulAlgoConfigGetAttribute(&h->algo, which, &v, sizeof v, &written) !=
        CUBLAS_STATUS_SUCCESS)
        return -1;
    return v;
}

void mpri_cuda_product_describe(const LtHeld *h, char *buf, size_t size)
{
    static const char *const epilogues[] = {"", " with relu", " with gelu"};
    int n = snprintf(buf, size, "cuBLASLt algorithm %d, tile %d, stages %d, %d parts of k%s",
                     setting(h, CUBLASLT_ALGO_CONFIG_ID), setting(h, CUBLASLT_ALGO_CONFIG_TILE_ID),
                     setting(h, CUBLASLT_ALGO_CONFIG_STAGES_ID), setting(h, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                     epilogues[h->epilogue]);
    if (n > 0 && (size_t)n < size && h->found)
        snprintf(buf + n, size - (size_t)n, ", number %d of %d: %.1f us, the first takes %.1f us", h->rank,
                 h->found, (double)h->us, (double)h->us_first);
}

uint32_t mpri_cuda_step_align(int64_t elements, DType t)
{
    uint64_t bytes = (uint64_t)elements * mpri_dtype_size(t);
    uint32_t a = 64;
    while (a > 1 && bytes % a) a /= 2;
    return a;
}
