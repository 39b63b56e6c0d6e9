/* Control flow that waits for numbers: If, Loop, Scan and sequences whose condition, trip count or
 * length the importer does not find in the file. The numbers are computed from shapes, constants
 * and the inputs given, and the file is imported again with them, until nothing more can be
 * answered. */
#ifndef MPRI_TRAIN_CONTROL_H
#define MPRI_TRAIN_CONTROL_H

#include "passes/pass.h"
#include "runtime/train/context.h"

/* *out: the model with what could be decided, or NULL when nothing could; mpri_import_destroy. What
 * is left stays an opaque node. fed may be NULL: constants and fixed shapes alone decide; an input
 * without data decides by its shape. stand_in: what a size of an input that is not given counts as,
 * 0: it stays open. */
enum { MPRI_STAND_IN = 2 }; /* of a session whose data are not bound, and of the converter */
mpr_status mpri_control_decide(mpr_model *model, const KernelSet *ref, const FedInput *fed,
                               int n_fed, int64_t stand_in, ImportedModel **out, Err *err);

/* What the converter asks for (ConvertSettle), user: a ControlSettler. As a session does before data
 * are bound. */
typedef struct ControlSettler {
    const mpr_model *model;
    const KernelSet *ref;
} ControlSettler;
mpr_status mpri_control_settle(void *user, const ImportedModel *m, const void *image, size_t size,
                               ImportedModel **out, Err *err);

#endif
