/* The first look at the bytes of a model: iterative, before anything is unpacked. */
#ifndef MPRI_IMPORTER_PRESCAN_H
#define MPRI_IMPORTER_PRESCAN_H

#include "runtime/base/alloc.h"
#include "runtime/base/err.h"
#include "runtime/base/size.h"

/* limits with every 0 replaced by its default; o may be NULL. */
mpr_limits mpri_limits_fill(const mpr_limits *o);

/* Checks bytes[0, size) as a ModelProto: wire form, kinds of known fields, nesting, counts, name
 * lengths and characters, singular fields that occur twice. limits must be filled. Memory: one
 * block of limits->nesting frames before the scan starts. PROTO, LIMIT, INVALID_MODEL with byte
 * offset and field. */
mpr_status mpri_prescan(const uint8_t *bytes, size_t size, const mpr_limits *limits,
                        const Alloc *alloc, Err *err);

/* True when the bytes read as a TensorProto (people pass the .pb files of the ONNX node tests). */
bool mpri_prescan_is_tensor(const uint8_t *bytes, size_t size);

#endif
