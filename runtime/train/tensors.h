/* A set of named tensors: the contents of an npz, the outputs of a run, the gradients of a vjp. */
#ifndef MPRI_TRAIN_TENSORS_H
#define MPRI_TRAIN_TENSORS_H

#include "runtime/train/context.h"

typedef struct TensorEntry {
    char *name;
    mpr_tensor t; /* data owned; dtype NONE: a member that cannot be read */
    char *why;    /* reason then */
} TensorEntry;

struct mpr_tensors {
    Handle h;
    mpr_context *ctx;
    TensorEntry *v;
    int n, cap;
};

mpr_status mpri_tensors_create(mpr_context *ctx, mpr_tensors **out, Err *err);
mpr_status mpri_tensors_load(mpr_context *ctx, const char *npz, mpr_tensors **out, Err *err);
mpr_status mpri_tensors_save(mpr_tensors *t, const char *npz, Err *err);
/* Copies; replaces a tensor of that name. */
mpr_status mpri_tensors_put(mpr_tensors *t, const char *name, const mpr_tensor *tensor, Err *err);
/* Data allocated from the context's allocator are taken over, also on failure. */
mpr_status mpri_tensors_give(mpr_tensors *t, const char *name, const mpr_tensor *tensor, Err *err);
const TensorEntry *mpri_tensors_find(const mpr_tensors *t,
                                     const char *name); /* NULL when there is none */
/* MPR_E_DATA lists the names there are. */
mpr_status mpri_tensors_need(const mpr_tensors *t, const char *name, const TensorEntry **out,
                             Err *err);
void mpri_tensors_destroy(mpr_tensors *t);

/* Elements; -1 when the dims are not valid. */
int64_t mpri_tensor_elements(const mpr_tensor *t);
/* The values in another type: floats are rounded once, integers must fit (MPR_E_DATA names `what`
 * and the position). Allocated from the context. */
mpr_status mpri_tensor_convert(mpr_context *ctx, const mpr_tensor *from, mpr_dtype to,
                               const char *what, mpr_tensor *out, Err *err);

#endif
