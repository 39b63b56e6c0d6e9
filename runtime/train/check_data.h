/* Data on which the converter checks a model: an npz with graph inputs by name. */
#ifndef MPRI_TRAIN_CHECK_DATA_H
#define MPRI_TRAIN_CHECK_DATA_H

#include "convert/verify.h"
#include "runtime/train/tensors.h"

/* Reads the file and compares it with the inputs of the model. Several batches: every array has one
 * more dim in front than the model declares, or a first dim that is a multiple of the declared one;
 * arrays of exactly the declared shape go with every batch. what: "verification", for messages. */
mpr_status mpri_check_data_open(mpr_model *model, const char *npz, const Device *device,
                                const char *what, CheckData *out, Err *err);
void mpri_check_data_close(CheckData *d);

#endif
