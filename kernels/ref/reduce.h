/* Shared by the reductions: which axes go, and which elements of x one output element folds. */
#ifndef MPRI_REF_REDUCE_H
#define MPRI_REF_REDUCE_H

#include "kernels/ref/util.h"

/* Element i of the output folds x[base(i) + step(j)] for j in [0, n). */
typedef struct FoldPlan {
    int kept, folded;
    int64_t kept_dims[MPRI_TENSOR_RANK], kept_stride[MPRI_TENSOR_RANK];
    int64_t folded_dims[MPRI_TENSOR_RANK], folded_stride[MPRI_TENSOR_RANK];
    int64_t n; /* elements folded into one */
} FoldPlan;

/* axes has a bit per reduced dim of x. */
static inline FoldPlan mpri_ref_fold_plan(const Tensor *x, uint32_t axes)
{
    FoldPlan p = {.n = 1};
    for (int k = 0; k < x->rank; k++) {
        int64_t stride = mpri_ref_span(x, k + 1, x->rank);
        if (axes >> k & 1) {
            p.folded_dims[p.folded] = x->dims[k];
            p.folded_stride[p.folded++] = stride;
            p.n *= x->dims[k];
        } else {
            p.kept_dims[p.kept] = x->dims[k];
            p.kept_stride[p.kept++] = stride;
        }
    }
    return p;
}

static inline int64_t mpri_ref_fold_offset(int rank, const int64_t *dims, const int64_t *stride,
                                           int64_t i)
{
    int64_t at = 0;
    for (int k = rank - 1; k >= 0; k--) {
        at += i % dims[k] * stride[k];
        i /= dims[k];
    }
    return at;
}

static inline int64_t mpri_ref_fold_base(const FoldPlan *p, int64_t i)
{
    return mpri_ref_fold_offset(p->kept, p->kept_dims, p->kept_stride, i);
}

static inline int64_t mpri_ref_fold_step(const FoldPlan *p, int64_t j)
{
    return mpri_ref_fold_offset(p->folded, p->folded_dims, p->folded_stride, j);
}

/* Axes are input 1; absent or empty means all, or none with noop_with_empty_axes. */
static inline uint32_t mpri_ref_reduced_axes(const KernelCall *c)
{
    const ReduceParams *p = c->params;
    int rank = c->in[0].rank;
    uint32_t axes = 0;
    if (c->n_in > 1 && mpri_tensor_here(&c->in[1]))
        for (int64_t i = 0; i < c->in[1].n; i++)
            axes |= 1u << mpri_ref_axis(mpri_load_i64(c->in[1].dtype, c->in[1].data, i), rank);
    return axes || p->noop_with_empty_axes ? axes : (1u << rank) - 1;
}

#endif
