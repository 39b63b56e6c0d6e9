/* The model's own Casts: where they may work in 16 bits, and where a Cast of ours can pass them. */
#ifndef MPRI_CONVERT_CASTS_H
#define MPRI_CONVERT_CASTS_H

#include "convert/mix.h"

bool mpri_cast_is(const MixNode *n); /* a Cast of ai.onnx with both of its ports */
/* Says which units of a Cast may follow their neighbours although the port is fixed. */
void mpri_cast_units(const Mix *m, const MixNode *n);
/* After colouring: those units become low whose neighbours are. */
void mpri_casts_follow(Mix *m);
/* For decisions that are read: is that so for this unit? */
bool mpri_cast_may_be_low(const Mix *m, const MixUnit *u);
/* What a Cast of v to the low type can read instead of v with the same result: the input of the
 * Cast that makes v. NULL: nothing. Types of the values have been settled. */
MixValue *mpri_cast_source(const MixValue *v, DType to);

#endif
