/* Giving numbers to symbolic dims: from the shapes of inputs, and from "NAME=N" options. */
#ifndef MPRI_TRAIN_BINDING_H
#define MPRI_TRAIN_BINDING_H

#include "runtime/ir/graph.h"

/* The dims of one input of g, which also becomes its shape. MPR_E_SHAPE tells the symbol and both
 * numbers. */
mpr_status mpri_bind_input(const Graph *g, DimBinding *b, Value *input, int rank,
                           const int64_t *dims, Err *err);
/* NULL-terminated "batch=4" …; a name that g lacks is MPR_E_USAGE and lists those it has. NULL:
 * nothing. */
mpr_status mpri_bind_options(const Graph *g, DimBinding *b, const char *const *options, Err *err);

#endif
