/* The reference kernels: one plain kernel for every operator, any legal type.
 *
 * They are the oracle of the tests and the last fallback of every device, and they are never tuned.
 * Float values are loaded as double, computed in double and rounded once at the store, so a result
 * is the exactly computed one up to that rounding (except in the update family, whose f32
 * arithmetic is the definition of the training bits). Each input is loaded by its own type: mixed
 * float types are legal. */
#ifndef MPRI_REF_H
#define MPRI_REF_H

#include "runtime/exec/kernel.h"

/* One table per family; *n receives how many. Static memory. */
const KernelTable *mpri_ref_tables(int *n);

#endif
