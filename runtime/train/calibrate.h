/* Ranges of a model's values on given inputs: what the converter's guards ask for. */
#ifndef MPRI_TRAIN_CALIBRATE_H
#define MPRI_TRAIN_CALIBRATE_H

#include "runtime/train/tensors.h"

/* Runs the model in FP32 once and returns every float value that has a name, graph inputs
 * included. The tensors are the caller's. */
mpr_status mpri_calibrate(mpr_model *model, const char *npz, Arena *arena, mpr_tensors **values,
                          Err *err);
/* Largest absolute value, share of the non-zeros below the least float16, and whether all are
 * finite. False when there is no such value. user: the mpr_tensors. */
bool mpri_calibrate_range(void *user, const char *value, double *most, double *tiny_share,
                          bool *finite);

#endif
