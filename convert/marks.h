/* Marks: what of a file this program has added, so that a later run can take it out again.
 *
 * For those of nodes see importer/marks.h. The list in the model's entry `mpr.precision` holds, at
 * every IR version, more than names: \cNAME a copy of an initializer,
 * \wSCOPE:NAME an initializer in another type, \rSCOPE:NAME a Cast of the model that makes 16 bits,
 * \mDOMAIN:NAME a copy of a function, \iTYPE:NAME the former type of a graph input or output. Declared types of inner values need no mark: they follow from the rest. */
#ifndef MPRI_CONVERT_MARKS_H
#define MPRI_CONVERT_MARKS_H

#include "importer/importer.h"
#include "importer/marks.h"

void mpri_marks_list(Text *list, const char *name, bool rounds); /* appends a line */

/* The bytes of the model without what this program has added or changed: *out stays NULL when there
 * is nothing. They live in the arena. *n: what is gone or back. */
mpr_status mpri_marks_strip(Source *s, Arena *arena, void **out, size_t *size, int *n, Err *err);

#endif
