/* Names under which the nodes of the new file read and write their values; Casts are made on the
 * way. */
#ifndef MPRI_CONVERT_NAME_H
#define MPRI_CONVERT_NAME_H

#include "convert/file.h"

typedef struct Naming {
    FileGraph *f;
    DType low;       /* of this run */
    int64_t made;    /* nodes added so far */
} Naming;

/* Producers of graph outputs that change get another name: the public one keeps its type. */
mpr_status mpri_name_outputs(Naming *w, Err *err);
/* What input k of node n reads. */
mpr_status mpri_name_input(Naming *w, const FileNodeIO *n, int k, const char **out, Err *err);
/* The value in the type that it has in the file: for graphs inside nodes. */
mpr_status mpri_name_as_before(Naming *w, FileValue *v, const char **out, Err *err);

#endif
