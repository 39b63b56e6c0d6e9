/* The dims of a reduction, merged: see form_of. Shared by the reductions of this folder. */
#ifndef MPRI_CPU_REDUCE_FORM_H
#define MPRI_CPU_REDUCE_FORM_H

#include "kernels/cpu/simd/tiles.h"

typedef struct Form {
    bool middle_stays; /* [P, K, Q]: P and Q are reduced; else [A, R, B]: R is */
    int64_t dims[3];
    bool ok;
} Form;

/* Merges dims of one kind; axes has a bit per reduced dim of x. Not ok: kept and reduced dims
 * alternate more than twice. */
VF_FN Form form_of(const Tensor *x, uint32_t axes)
{
    int64_t size[MPRI_TENSOR_RANK];
    bool summed[MPRI_TENSOR_RANK];
    int n = 0;
    for (int k = 0; k < x->rank; k++) {
        bool s = axes >> k & 1;
        if (x->dims[k] == 1) continue;
        if (n && summed[n - 1] == s) {
            size[n - 1] *= x->dims[k];
            continue;
        }
        size[n] = x->dims[k];
        summed[n++] = s;
    }
    Form f = {.dims = {1, 1, 1}, .ok = n <= 3};
    if (n == 3 && summed[0]) {
        f.middle_stays = true;
        memcpy(f.dims, size, sizeof f.dims);
        return f;
    }
    int at = n && summed[0] ? 1 : 0; /* the first merged dim goes to A, or to R */
    for (int k = 0; k < n && at + k < 3; k++) f.dims[at + k] = size[k];
    return f;
}

VF_FN uint32_t axes_of_input(const Tensor *axes, int rank, bool noop)
{
    uint32_t bits = 0;
    for (int64_t i = 0; axes && i < axes->n; i++)
        bits |= 1u << axis_from_front(mpri_load_i64(axes->dtype, axes->data, i), rank);
    return bits || noop ? bits : (1u << rank) - 1;
}

VF_FN uint32_t axes_of_target(const Tensor *x, const Tensor *y)
{
    uint32_t bits = 0;
    for (int k = 0, o = y->rank - x->rank; k < x->rank; k++, o++)
        if (o < 0 || (y->dims[o] == 1 && x->dims[k] != 1)) bits |= 1u << k;
    return bits;
}

VF_FN uint32_t reduce_axes(const void *params, int rank, const Tensor *axes)
{
    const ReduceParams *p = params;
    return axes_of_input(axes, rank, p->noop_with_empty_axes != 0);
}

VF_FN Form reduce_form(const KernelSig *s)
{
    return form_of(&s->in[0],
                   reduce_axes(s->params, s->in[0].rank, sig_has_in(s, 1) ? &s->in[1] : NULL));
}

#define ALTERNATE "kept and reduced axes alternate more than twice"

#endif
