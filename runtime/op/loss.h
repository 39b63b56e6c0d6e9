/* What the losses share. */
#ifndef MPRI_OP_LOSS_H
#define MPRI_OP_LOSS_H

#include "runtime/op/rules.h"

/* Checks labels and weights against scores at inputs (x, x + 1, weights); *rows = shape of the
 * labels. */
mpr_status mpri_loss_check_labels(InferCtx *c, int x, int64_t axis, int weights, Shape *rows);

#endif
