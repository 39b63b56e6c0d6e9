/* cuBLASLt's entries that mpr calls, answered by the CPU's matrix product: the same rounding, no speed.
 * Descriptors are read back as they were set; what mpr does not ask for is refused. */
#include "tests/cuda_on_cpu/shim_private.h"

#include <cstdio>
#include <cstdlib>

extern "C" {
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"
}
#include "kernels/cuda/cublaslt.h"

namespace {

struct Desc {
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *aux; /* the value before gelu */
    int64_t aux_ld, aux_step;
    bool has_bias() const
    {
        return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS ||
               epilogue == CUBLASLT_EPILOGUE_GELU_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    }
    bool has_aux() const
    {
        return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    }
    bool relu() const
    {
        return epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
    }
    bool gelu() const
    {
        return has_aux() || epilogue == CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
    }
};
struct Layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, step;
    int32_t batch;
};
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t), "room");
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "room");

DType type_of(cudaDataType_t t)
{
    return t == CUDA_R_32F ? MPR_FLOAT32 : t == CUDA_R_16F ? MPR_FLOAT16 : MPR_BFLOAT16;
}

cublasStatus_t create(cublasLtHandle_t *h)
{
    *h = (cublasLtHandle_t)malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t h)
{
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t desc_init(cublasLtMatmulDesc_t d, size_t size, cublasComputeType_t compute,
                         cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset((void *)d, 0, size);
    *(Desc *)d = Desc{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0, 0};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t desc_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void *value,
                        size_t size)
{
    Desc *p = (Desc *)d;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA: memcpy(&p->a, value, size); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: memcpy(&p->b, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: memcpy(&p->epilogue, value, size); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: memcpy(&p->bias, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: memcpy(&p->aux, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: memcpy(&p->aux_ld, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: memcpy(&p->aux_step, value, size); break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    bool known = p->epilogue == CUBLASLT_EPILOGUE_DEFAULT || p->has_bias() || p->relu() || p->gelu();
    return known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t layout_init(cublasLtMatrixLayout_t l, size_t size, cudaDataType_t type, uint64_t rows,
                           uint64_t cols, int64_t ld)
{
    memset((void *)l, 0, size);
    *(Layout *)l = Layout{type, rows, cols, ld, 0, 1};
    return ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t layout_set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what,
                          const void *value, size_t size)
{
    Layout *p = (Layout *)l;
    switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: memcpy(&p->batch, value, size); break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: memcpy(&p->step, value, size); break;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t preference_init(cublasLtMatmulPreference_t p, size_t size)
{
    memset((void *)p, 0, size);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t preference_set(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t what,
                              const void *value, size_t)
{
    if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
        *(const uint32_t *)value & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return CUBLAS_STATUS_NOT_SUPPORTED; /* in place needs atomics, the output's type may be narrow */
    return CUBLAS_STATUS_SUCCESS;
}

/* Inner sizes meet, and types go together. */
bool agree(const Desc *d, const Layout *a, const Layout *b, const Layout *c)
{
    uint64_t m = d->a == CUBLAS_OP_N ? a->rows : a->cols, ka = d->a == CUBLAS_OP_N ? a->cols : a->rows;
    uint64_t n = d->b == CUBLAS_OP_N ? b->cols : b->rows, kb = d->b == CUBLAS_OP_N ? b->rows : b->cols;
    bool types = a->type == b->type && (c->type == a->type || c->type == CUDA_R_32F);
    if (d->has_aux() && (d->aux_ld < (int64_t)c->rows || d->aux_ld % 8)) return false;
    return m == c->rows && n == c->cols && ka == kb && types && a->batch == c->batch &&
           b->batch == c->batch && m && n && ka;
}

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t,
                         cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t *out, int *found)
{
    const int there = 3; /* algorithms that differ in their number alone */
    bool can = agree((const Desc *)d, (const Layout *)a, (const Layout *)b, (const Layout *)c);
    *found = !can ? 0 : wanted < there ? wanted : there;
    for (int i = 0; i < *found; i++) {
        memset((void *)&out[i], 0, sizeof out[i]);
        out[i].algo.data[0] = 20 + (uint64_t)i;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t config(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what, void *value,
                      size_t size, size_t *written)
{
    int32_t v = what == CUBLASLT_ALGO_CONFIG_ID ? (int32_t)algo->data[0] : 1;
    if (size != sizeof v) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &v, sizeof v);
    *written = sizeof v;
    return CUBLAS_STATUS_SUCCESS;
}

/* Column-major D = alpha op(A) op(B) (+ bias per row of D) is row-major D' = op(B)' op(A)'. */
cudaError_t run(Desc d, Layout a, Layout b, Layout c, float alpha, const void *pa, const void *pb, void *pd)
{
    Gemm g = {};
    g.m = (int64_t)c.cols, g.n = (int64_t)c.rows;
    g.k = (int64_t)(d.a == CUBLAS_OP_N ? a.cols : a.rows);
    g.ta = type_of(b.type), g.tb = type_of(a.type), g.tc = g.tbias = type_of(c.type);
    g.trans_a = d.b == CUBLAS_OP_T, g.trans_b = d.a == CUBLAS_OP_T;
    g.a = pb, g.b = pa, g.c = pd;
    g.bias = d.has_bias() ? d.bias : nullptr;
    g.act = d.relu() ? GEMM_RELU : d.gelu() ? GEMM_GELU_TANH : GEMM_NONE;
    g.pre = d.has_aux() ? d.aux : nullptr;
    if (g.pre && (d.aux_ld != c.ld || d.aux_step != c.step)) return cudaErrorInvalidValue;
    g.lda = b.ld, g.ldb = a.ld, g.ldc = c.ld;
    g.alpha = alpha;
    g.batch = c.batch, g.c_step = c.step;
    g.batch_rank = 1;
    g.batch_dims[0] = c.batch, g.a_step[0] = b.step, g.b_step[0] = a.step;
    const GemmApi *api = mpri_gemm_api(mpri_cpu_isa());
    void *work = aligned_alloc(64, (api->workspace(&g, 1) + 127) & ~(size_t)63);
    if (!work) return cudaErrorMemoryAllocation;
    api->run(&g, work, nullptr);
    free(work);
    return cudaSuccess;
}

cublasStatus_t matmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                      cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb,
                      const void *beta, const void *, cublasLtMatrixLayout_t, void *out,
                      cublasLtMatrixLayout_t lc, const cublasLtMatmulAlgo_t *, void *work, size_t work_bytes,
                      cudaStream_t stream)
{
    if ((uintptr_t)work % 256) return CUBLAS_STATUS_INVALID_VALUE;
    Desc desc = *(const Desc *)d;
    Layout ga = *(const Layout *)la, gb = *(const Layout *)lb, gc = *(const Layout *)lc;
    float scale = *(const float *)alpha;
    if (!agree(&desc, &ga, &gb, &gc) || *(const float *)beta != 0) return CUBLAS_STATUS_INVALID_VALUE;
    cudaError_t e = shim::give(stream, "cublasLtMatmul",
                               [=] {
                                   memset(work, 0xa5, work_bytes); /* as the library may */
                                   return run(desc, ga, gb, gc, scale, a, b, out);
                               });
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

const CublasLt entries = {create,    destroy,    matmul,     heuristic, config, desc_init,
                          desc_set,  layout_init, layout_set, preference_init, preference_set};

} /* namespace */

extern "C" const CublasLt *mpri_cublaslt(const char **why)
{
    *why = nullptr;
    return &entries;
}
