/* Marks of mpr-convert in a file, and what of them an import takes over.
 *
 * An added node carries the metadata entry `mpr.cast`, its target type. Before IR 10 nodes have no
 * metadata, and the model's entry `mpr.precision` lists their names, one a line, with newlines and
 * backslashes escaped. A Cast behind a node that is float32 only because the opset knows the
 * operator in no 16-bit type says so: "bf16 rounds" in its entry, \fNAME in the list. */
#ifndef MPRI_IMPORTER_MARKS_H
#define MPRI_IMPORTER_MARKS_H

#include "runtime/base/err.h"

#define MPRI_MARK_NODE "mpr.cast"
#define MPRI_MARK_MODEL "mpr.precision"
#define MPRI_MARK_ROUNDS " rounds" /* ending of an entry of a node */
enum { MPRI_MARK_IR = 10 };        /* first IR version with metadata of nodes */

struct Import;
/* FileNode.rounds of the nodes, which have been read. */
mpr_status mpri_import_marks(struct Import *im, Err *err);

#endif
