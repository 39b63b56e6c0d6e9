/* The .safetensors format: 8 bytes of header length, a JSON header, the bytes of all tensors. */
#ifndef MPRI_TRAIN_SAFETENSORS_H
#define MPRI_TRAIN_SAFETENSORS_H

#include <mpr.h>
#include "runtime/base/arena.h"
#include "runtime/base/text.h"

#define MPRI_SAFETENSORS_HEADER_LIMIT UINT64_C(100000000)

typedef struct SafeTensor {
    const char *name;
    mpr_dtype dtype;
    int rank;
    int64_t dims[8];
    const void *data; /* into the file's bytes */
    uint64_t bytes;
} SafeTensor;

/* All checks of the format: unique names, integers only, ranges that start at 0, are contiguous and
 * cover the file, sizes that equal shape times type. Faults are MPR_E_DATA. */
mpr_status mpri_safetensors_parse(const uint8_t *bytes, size_t n, Arena *arena, SafeTensor **out,
                                  int *count, Err *err);
/* Tensors in the given order; the header is padded to 8 bytes. */
mpr_status mpri_safetensors_write(Text *out, int n, const char *const *names,
                                  const mpr_tensor *tensors, Err *err);

/* Whole regular file into memory of alloc (one byte more, zero). MPR_E_IO with the reason. */
mpr_status mpri_read_file(const Alloc *alloc, const char *path, uint8_t **bytes, size_t *n,
                          Err *err);

#endif
