/* What the reductions share: rows of attributes, shape rule, axes in gradient rules. */
#ifndef MPRI_OP_REDUCE_H
#define MPRI_OP_REDUCE_H

#include "runtime/op/rules.h"

#define TS_SUM (TS_FLOAT | TS_WIDE_INT)

extern const AttrRow mpri_reduce_attrs[];

#define REDUCTION                                                                                  \
    .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 1, .optional_in = 2,                        \
    PARAMS(ReduceParams, mpri_reduce_attrs), .fixed_in = 2, .nondiff_in = 2,                       \
    .grad_state = GRAD_FUNCTION

/* *all: every axis is reduced. */
mpr_status mpri_reduce_infer(InferCtx *c, TypeSet set, bool *all);
mpr_status mpri_reduce_infer_sum(InferCtx *c); /* types of a sum */

typedef struct Reduction {
    int n;
    int64_t axes[MPRI_MAX_RANK];
    int64_t kept[MPRI_MAX_RANK]; /* dims of x with ones at the reduced axes */
    int64_t count;               /* elements per result */
} Reduction;

/* The reduced axes of the forward node. */
mpr_status mpri_reduce_axes(GradCtx *c, Reduction *r);
/* v, of the shape of the result, with the reduced dims as ones. */
Value *mpri_reduce_kept(GradCtx *c, const Reduction *r, Value *v);
/* v / n computed in the type of n, which may be too large for f16; the type of v. */
Value *mpri_reduce_divide(GradCtx *c, Value *v, Value *n);

#endif
