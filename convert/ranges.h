/* Ranges of the values of a model that has run on data, by place (places.h). */
#ifndef MPRI_CONVERT_RANGES_H
#define MPRI_CONVERT_RANGES_H

#include "convert/paint.h"

typedef struct RangeEntry RangeEntry;
typedef struct Ranges {
    Pool *pool;
    RangeEntry *hash;
} Ranges;

/* Adds one run: values by id. */
void mpri_ranges_add(Ranges *r, const Graph *g, const Tensor *values);
/* False when there is no value of this place. */
bool mpri_ranges_find(const Ranges *r, const char *place, PaintRange *out);
bool mpri_ranges_dims(const Ranges *r, const char *place, int *rank, int64_t dims[8]);
/* In front of the place of a node's first output: the range of what the node computes inside, such
 * as the variance of a normalisation. */
#define MPRI_INSIDE "inside:"

#endif
