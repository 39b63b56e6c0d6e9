/* .npz archives: named arrays in a zip. Members are looked up by exact name and read one by one, so
 * that members nobody asks for may be of any type; nothing is ever written to disk. */
#ifndef MPRI_TRAIN_NPZ_H
#define MPRI_TRAIN_NPZ_H

#include "runtime/train/npy.h"

typedef struct Npz Npz;

mpr_status mpri_npz_open(const Alloc *alloc, const char *path, Npz **out, Err *err);
int mpri_npz_count(const Npz *z);
const char *mpri_npz_name(const Npz *z, int index); /* key: the member's name without ".npy" */
int mpri_npz_find(const Npz *z, const char *key);   /* -1 when there is none */
/* Reads one array: row-major, native order; out->data is allocated from alloc. A member of a type
 * that is not read gives MPR_E_DATA and *foreign = true. */
mpr_status mpri_npz_read(Npz *z, int index, mpr_tensor *out, bool *foreign, Err *err);
void mpri_npz_close(Npz *z);

/* Writes all tensors (bf16 as f32) to path, beside and renamed; a device or pipe is written
 * directly. */
mpr_status mpri_npz_write(const Alloc *alloc, const char *path, int n, const char *const *names,
                          const mpr_tensor *tensors, Err *err);

#endif
