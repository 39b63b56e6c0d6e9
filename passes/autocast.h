/* Inside the autocast pass: the loss region (autocast_region.c) and the range of constants
 * (autocast_range.c). */
#ifndef MPRI_PASSES_AUTOCAST_H
#define MPRI_PASSES_AUTOCAST_H

#include "passes/prepare.h"
#include "passes/profile.h"

/* Marks (by node id) the nodes between the graph output "loss" and the last allow operators. Warns
 * about a hand-written cross-entropy on probabilities. */
void mpri_autocast_region(PassCtx *ctx, const Graph *g, bool *region);

typedef enum RangeFault { RANGE_OK, RANGE_OVERFLOW, RANGE_UNDERFLOW } RangeFault;
/* Would the constant v (or the one behind layout operators) change beyond rounding in `low`:
 * finite to inf, or non-zero to 0? *value: the first such element. */
RangeFault mpri_autocast_range(const PassCtx *ctx, const Graph *g, const Value *v, DType low,
                               double *value, const Value **constant);

#endif
