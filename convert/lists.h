/* A file that changes the built-in lists, --lists:
 *
 *   allow: [+Softmax, -Gemm]     amends: the operator moves here, or leaves
 *   deny: [Exp, com.x::Op]       replaces: what was built in leaves
 *
 * An operator that the file moves has left the list where it was; that the file itself puts it on
 * two of them is an error with both lines. */
#ifndef MPRI_CONVERT_LISTS_H
#define MPRI_CONVERT_LISTS_H

#include "convert/mix.h"
#include "runtime/base/err.h"

typedef struct ListEntry {
    const char *op; /* "domain::Op" outside of ai.onnx */
    MixList list;
    bool leaves;
    size_t line;
    struct ListEntry *next;
} ListEntry;

typedef struct ListFile {
    const char *path; /* for messages */
    ListEntry *first, *last;
    bool replaced[4];
} ListFile;

/* MPR_E_USAGE names file and line. Entries live in the pool. */
mpr_status mpri_lists_read(const char *path, const char *text, Pool *pool, ListFile *f, Err *err);
/* The list of an operator that is on `list` (-1: none) without the file. */
int mpri_lists_amend(const ListFile *f, const char *op, int list);

#endif
