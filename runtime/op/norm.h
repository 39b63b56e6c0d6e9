/* What the normalisations share. Scale and bias may be f32 with a 16-bit x: norm parameters and
 * statistics never get narrower. */
#ifndef MPRI_OP_NORM_H
#define MPRI_OP_NORM_H

#include "runtime/op/rules.h"

extern const AttrRow mpri_norm_row_attrs[]; /* of LayerNormParams */

/* Shape of the normalised axes. */
Shape mpri_norm_row_shape(const Shape *x, int axis);
/* scale (input 1) and bias broadcast to a row; leading ones beyond its rank are accepted. */
mpr_status mpri_norm_check_weight(InferCtx *c, int k, const Shape *x, int axis);
/* Float type of x; inputs [from, to) of the same type or f32. */
mpr_status mpri_norm_check_types(InferCtx *c, int x, int from, int to);
/* The gradient of one row of weights, in the weight's own shape when only ones differ. */
Value *mpri_norm_weight_grad(GradCtx *c, Value *row, const Value *weight);

#endif
