/* Function calls and constant branches become nodes of the main graph. */
#ifndef MPRI_IMPORTER_INLINE_H
#define MPRI_IMPORTER_INLINE_H

#include "importer/scope.h"

/* functions.c: definitions by key, recursion, depth and size after expansion. INVALID_MODEL, LIMIT.
 */
typedef struct FunctionInfo {
    UT_hash_handle hh;
    bool lost;
    const char *key; /* interned "domain:name:overload" */
    const FunctionProto *p;
    Opsets opsets;
    int index;
} FunctionInfo;

typedef struct Functions {
    FunctionInfo *by_key; /* hash */
    FunctionInfo *list;
    int n;
} Functions;

mpr_status mpri_functions_check(Import *im, Functions *out, Err *err);
/* The function that a node calls; NULL when its operator is built in or unknown. */
const FunctionInfo *mpri_functions_of(Import *im, const Functions *f, const NodeProto *p);

/* inline.c: replaces im->nodes. *changed tells whether names and order must be looked at again. */
mpr_status mpri_inline(Import *im, const Functions *f, const Scope *scope, bool *changed, Err *err);

/* Why an operator that the walk expands was left: "Loop" …; NULL for any other. */
const char *mpri_inline_why(const char *key);

#endif
