/* Sparse tensors -> dense ones, every index checked. */
#ifndef MPRI_IMPORTER_SPARSE_H
#define MPRI_IMPORTER_SPARSE_H

#include "importer/tensors.h"

mpr_status mpri_sparse_decode(Import *im, const Onnx__SparseTensorProto *p, const char *name,
                              TensorData *out, Err *err);

#endif
