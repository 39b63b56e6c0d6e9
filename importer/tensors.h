/* TensorProto in any legal storage form -> contiguous bytes. */
#ifndef MPRI_IMPORTER_TENSORS_H
#define MPRI_IMPORTER_TENSORS_H

#include "importer/model.h"

typedef struct TensorForm { /* a tensor of the file */
    const TensorProto *p;   /* header; typed storage; its raw_data is not looked at */
    const char *name;       /* for messages: its own, or that of its node */
    bool has_raw;
    const uint8_t *raw;
    size_t raw_len;
} TensorForm;

typedef struct TensorData {
    int64_t data_type;
    int rank;
    int64_t dims[MPRI_MAX_RANK];
    int64_t elements;
    const void *data;     /* in place where aligned, else in the arena; never NULL */
    int typed_field;      /* field number of the typed storage in use, 0 none */
    const char *location; /* external: interned nowhere, in the arena */
    int64_t ext_offset, ext_length;
} TensorData;

/* The form of a tensor that protobuf-c has unpacked whole. */
TensorForm mpri_tensor_form(const TensorProto *p, const char *name);
/* Checks type, dims, storage and values; reads external data. TYPE, SHAPE, LIMIT, INVALID_MODEL,
 * EXTDATA_*. */
mpr_status mpri_tensor_decode(Import *im, const TensorForm *t, TensorData *out, Err *err);
/* All initializers of the main graph into im->src->tensors. */
mpr_status mpri_import_tensors(Import *im, Err *err);
/* Bits of one element in raw_data; 0 for types that have none (string, undefined, unknown). */
int mpri_tensor_bits(int64_t data_type);
/* Name of a data type for people: "float", "int64", "type 99". */
const char *mpri_tensor_type_name(int64_t data_type);

#endif
