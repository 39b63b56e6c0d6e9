/* OneHot and EyeLike. */
#include "kernels/ref/util.h"

/* Inputs indices, depth, values [off, on]. Indices of any number type, from the end when negative;
 * one outside the depth marks nothing. */
static mpr_status k_one_hot(const KernelCall *c)
{
    const OneHotParams *p = c->params;
    const Tensor *idx = &c->in[0];
    Tensor *y = &c->out[0];
    int axis = mpri_ref_axis(p->axis, y->rank);
    int64_t depth = y->dims[axis], inner = mpri_ref_span(y, axis + 1, y->rank);
    size_t size = mpri_dtype_size(y->dtype);
    const char *values = c->in[2].data;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t here = i / inner % depth;
        double at = mpri_ref_load(idx, i / (inner * depth) * inner + i % inner);
        if (at < 0) at += (double)depth;
        memcpy((char *)y->data + (size_t)i * size, values + (at == (double)here ? size : 0), size);
    }
    return MPR_OK;
}

static mpr_status k_eye_like(const KernelCall *c)
{
    const EyeLikeParams *p = c->params;
    Tensor *y = &c->out[0];
    int64_t cols = y->dims[1];
    for (int64_t i = 0; i < y->n; i++)
        mpri_ref_store(y, i, i % cols - i / cols == p->k ? 1 : 0);
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(OneHot, "onehot", k_one_hot),
    REF_ROW(EyeLike, "eyelike", k_eye_like),
};
const KernelTable mpri_ref_onehot = REF_TABLE(rows);
