/* Calls of the model's own functions, taken apart. */
#ifndef MPRI_CONVERT_CALLS_H
#define MPRI_CONVERT_CALLS_H

#include "convert/mix.h"
#include "runtime/base/err.h"

/* Every call in every scope becomes the nodes of its function, and the functions go. m has been
 * read and is stale afterwards. *n: calls. MPR_E_OPSET for a function that needs a newer opset than
 * the model has. */
mpr_status mpri_calls_inline(Mix *m, int *n, Err *err);
/* The bytes of a model without its calls, in the arena; *bytes is NULL when it has none. */
mpr_status mpri_calls_image(Source *s, Arena *arena, void **bytes, size_t *size, int *n, Err *err);

#endif
