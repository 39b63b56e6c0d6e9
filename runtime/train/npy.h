/* The .npy format: header parser and writer. The header is a Python literal; it is parsed strictly
 * and never evaluated: exactly the keys descr, fortran_order, shape, bounded depth, bounded
 * length. */
#ifndef MPRI_TRAIN_NPY_H
#define MPRI_TRAIN_NPY_H

#include <mpr.h>
#include "runtime/base/alloc.h"
#include "runtime/base/text.h"

#define MPRI_NPY_HEADER_LIMIT 65536 /* bytes of the header literal */
#define MPRI_NPY_PREFIX 12          /* bytes that tell version and length in every version */

typedef struct NpyHeader {
    mpr_dtype dtype;
    bool swapped; /* bytes are in the other order */
    bool fortran;
    int rank;
    int64_t dims[8];
    int64_t n;        /* elements */
    uint64_t data_at; /* offset of the data in the member */
    uint64_t bytes;   /* of the data */
    bool numeric;     /* false: a legal header of a type that is not read; `type` names it */
    char type[64];
} NpyHeader;

/* Length of prefix and header from the first MPRI_NPY_PREFIX bytes; checked against the member's
 * size. */
mpr_status mpri_npy_prefix(const uint8_t *bytes, uint64_t have, uint64_t member,
                           uint64_t *header_end, Err *err);
/* Parses bytes[0, header_end); the size of the member must be that of header and data. */
mpr_status mpri_npy_parse(const uint8_t *bytes, uint64_t header_end, uint64_t member,
                          NpyHeader *out, Err *err);
/* Data as read from the file -> native order, row-major. May replace *data. */
mpr_status mpri_npy_normalise(const Alloc *alloc, const NpyHeader *h, void **data, Err *err);
/* Header for a row-major tensor; bf16 must have been converted. */
void mpri_npy_write_header(Text *t, mpr_dtype dtype, int rank, const int64_t *dims);

#endif
