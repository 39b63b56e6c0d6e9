/* Marks: what of a file this program has added, so that a later run can take it out again.
 *
 * An added node carries the metadata entry `mpr.cast`, its target type. Before IR 10 nodes have no
 * metadata, and the model's entry `mpr.precision` lists their names, one a line, with newlines and
 * backslashes escaped. Beside names it holds, at every version: \cNAME a copy of an initializer,
 * \wSCOPE:NAME an initializer in another type, \iTYPE:NAME the former type of a graph input or
 * output. Declared types of inner values need no mark: they follow from the rest. */
#ifndef MPRI_CONVERT_MARKS_H
#define MPRI_CONVERT_MARKS_H

#include "importer/importer.h"

#define MPRI_MARK_NODE "mpr.cast"
#define MPRI_MARK_MODEL "mpr.precision"
enum { MPRI_MARK_IR = 10 }; /* first IR version with metadata of nodes */

void mpri_marks_list(Text *list, const char *name); /* appends a line */

/* The bytes of the model without what this program has added or changed: *out stays NULL when there
 * is nothing. They live in the arena. *n: what is gone or back. */
mpr_status mpri_marks_strip(Source *s, Arena *arena, void **out, size_t *size, int *n, Err *err);

#endif
