/* A SparseTensorProto holds values [nnz] and indices, either [nnz] (positions in the flattened
 * tensor) or [nnz, rank], in ascending order and without repetition. The dense form is what the
 * graph computes with. */
#include "importer/sparse.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/base/size.h"

static mpr_status position(const TensorData *t, const TensorData *index, int64_t i,
                           const char *name, int64_t *at, Err *err)
{
    const int64_t *v = index->data;
    if (index->rank == 1) {
        *at = v[i];
        if (*at >= 0 && *at < t->elements) return MPR_OK;
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "sparse tensor %s: index %" PRId64 " at position %" PRId64
                            " is outside [0, %" PRId64 ")",
                            mpri_err_name(name), *at, i, t->elements);
    }
    *at = 0;
    for (int k = 0; k < t->rank; k++) {
        int64_t x = v[i * t->rank + k];
        if (x < 0 || x >= t->dims[k])
            return mpri_err_set(err, MPR_E_INVALID_MODEL,
                                "sparse tensor %s: index %" PRId64 " at position %" PRId64
                                ", dim %d, is outside [0, %" PRId64 ")",
                                mpri_err_name(name), x, i, k, t->dims[k]);
        *at = *at * t->dims[k] + x;
    }
    return MPR_OK;
}

mpr_status mpri_sparse_decode(Import *im, const Onnx__SparseTensorProto *p, const char *name,
                              TensorData *out, Err *err)
{
    TensorData values, index;
    size_t bytes;
    if (!p->values || !p->indices)
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "sparse tensor %s: values or indices are missing", mpri_err_name(name));
    TensorForm vf = mpri_tensor_form(p->values, name), xf = mpri_tensor_form(p->indices, name);
    TRY(mpri_tensor_decode(im, &vf, &values, err));
    TRY(mpri_tensor_decode(im, &xf, &index, err));
    *out = values;
    if (p->n_dims > MPRI_MAX_RANK)
        return mpri_err_set(err, MPR_E_LIMIT,
                            "sparse tensor %s: rank %zu, at most %d can be computed",
                            mpri_err_name(name), p->n_dims, MPRI_MAX_RANK);
    out->rank = (int)p->n_dims;
    if (p->n_dims) memcpy(out->dims, p->dims, p->n_dims * sizeof *p->dims);
    int64_t nnz = values.elements;
    bool flat = index.rank == 1 && index.elements == nnz;
    bool full = index.rank == 2 && index.dims[0] == nnz && index.dims[1] == out->rank;
    int size = mpri_tensor_bits(values.data_type) / 8;
    if (values.rank != 1 || index.data_type != MPR_INT64 || !(flat || full) || size == 0)
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "sparse tensor %s: %" PRId64 " values of %s with %" PRId64
                            " indices of %s do not make one of rank %d",
                            mpri_err_name(name), nnz, mpri_tensor_type_name(values.data_type),
                            index.elements, mpri_tensor_type_name(index.data_type), out->rank);
    if (!mpri_size_elements(out->rank, out->dims, &out->elements) ||
        !mpri_size_mul((size_t)out->elements, (size_t)size, &bytes) ||
        bytes > (uint64_t)im->limits.memory_bytes)
        return mpri_err_set(
            err, MPR_E_SHAPE,
            "sparse tensor %s: its dims are negative, or make it larger than memory",
            mpri_err_name(name));
    uint8_t *dense = mpri_arena_alloc(&im->m->arena, bytes);
    if (!dense) return mpri_err_nomem(err, bytes);
    for (int64_t i = 0, before = -1; i < nnz; i++) {
        int64_t at;
        TRY(position(out, &index, i, name, &at, err));
        if (at <= before)
            return mpri_err_set(
                err, MPR_E_INVALID_MODEL,
                "sparse tensor %s: indices are not in ascending order at position %" PRId64,
                mpri_err_name(name), i);
        memcpy(dense + (size_t)at * (size_t)size,
               (const uint8_t *)values.data + (size_t)i * (size_t)size, (size_t)size);
        before = at;
    }
    out->data = dense;
    out->typed_field = 0;
    out->location = NULL;
    return MPR_OK;
}
