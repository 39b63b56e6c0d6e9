/* Inside the layout family: definitions in layout.c (moves), layout_reshape.c (same bytes, other
 * shape), layout_slice.c (Split, Slice) and layout_fill.c (shapes and constants). */
#ifndef MPRI_OP_LAYOUT_H
#define MPRI_OP_LAYOUT_H

#include "runtime/op/rules.h"

/* Moves data only: any element type, no reason for a cast. */
#define MOVE .cast_cuda = CAST_MOVE, .cast_cpu = CAST_MOVE, .grad_state = GRAD_FUNCTION

/* dx of a same-bytes operator: the cotangent in the shape of input 0. */
mpr_status mpri_op_grad_same_bytes(GradCtx *c);

#endif
