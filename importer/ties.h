/* Which initializers are one tensor and which one is several, decided by content before the graph
 * is built. */
#ifndef MPRI_IMPORTER_TIES_H
#define MPRI_IMPORTER_TIES_H

#include "importer/scope.h"

typedef struct Tie { /* per initializer */
    int with;        /* index of the first initializer that holds the same tensor, or -1 */
    bool transposed; /* … with rows and columns exchanged */
    bool by_user;    /* --tie */
} Tie;

typedef struct Ties {
    Tie *tie; /* by initializer */
    MergedCopy *copies;
    int n_copies;    /* merged-by-value tensors that get values of their own */
    int *first_copy; /* by file node: index of its first copy in `copies` (sorted by node), or -1 */
} Ties;

mpr_status mpri_ties_find(Import *im, const Scope *scope, Ties *out, Err *err);
/* The copy that input `input` of file node `node` reads, or that the Identity `node` stands for
 * (input -1). */
const MergedCopy *mpri_ties_copy(const Ties *t, int node, int input);

#endif
