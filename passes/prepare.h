/* Small questions and steps that the prepare-stage passes share. Shapes may be symbolic here. */
#ifndef MPRI_PASSES_PREPARE_H
#define MPRI_PASSES_PREPARE_H

#include "passes/pass.h"

/* Constants up to this many elements are converted where a cast would be; larger ones are cast. */
#define MPRI_SMALL_CONST 64

/* v is a constant of at most MPRI_SMALL_CONST elements that belongs to no parameter. */
bool mpri_prepare_small_const(const Value *v);
/* The same with a single element, which goes to *x. */
bool mpri_prepare_scalar(const Value *v, double *x);
/* Every value of type `from` survives the way to `to` and back. */
bool mpri_prepare_exact(DType from, DType to);
/* f32, f16 or bf16: what autocast may change. */
static inline bool mpri_prepare_eligible(const Value *v)
{
    return v && (v->dtype == MPR_FLOAT32 || mpri_dtype_is_low(v->dtype));
}
/* A new constant with v's elements in another type, rounded once; with saturate, finite elements
 * stay finite. NULL when out of memory. */
Value *mpri_prepare_convert(Graph *g, const Value *v, DType to, bool saturate);
/* Largest finite value of a float type. */
double mpri_prepare_max(DType t);

#endif
