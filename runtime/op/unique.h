/* Distinct items of a tensor, where an item is an element or a slice along an axis: what the shape
 * rule counts and the kernel writes. NaN equals NaN and comes last. */
#ifndef MPRI_OP_UNIQUE_H
#define MPRI_OP_UNIQUE_H

#include "runtime/base/dtype.h"

typedef struct UniqueItems {
    DType dtype;
    const void *data;
    int64_t outer, n, inner; /* item i: elements [o, i, r] for all o and r */
} UniqueItems;

/* <0, 0, >0: item a comes before, equals, comes after item b. */
int mpri_unique_compare(const UniqueItems *u, int64_t a, int64_t b);
/* Item numbers by content, equal ones by position, into order; order and work have room for n. */
void mpri_unique_sort(const UniqueItems *u, int64_t *order, int64_t *work);
/* Distinct items of a sorted order. */
int64_t mpri_unique_count(const UniqueItems *u, const int64_t *order);

#endif
