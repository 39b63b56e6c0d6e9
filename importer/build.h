/* From the lists of a file to a Graph. */
#ifndef MPRI_IMPORTER_BUILD_H
#define MPRI_IMPORTER_BUILD_H

#include "importer/scope.h"
#include "importer/ties.h"

/* im->m->graph: inputs, constants, nodes in a valid order with inferred types, outputs. Every
 * operator that the table lacks becomes an opaque node. INVALID_MODEL (findings), TYPE, SHAPE … */
mpr_status mpri_build_graph(Import *im, Scope *scope, const Ties *ties, Err *err);

/* types.c: declared types. dtype MPR_DTYPE_NONE and unknown rank for what is not a tensor or not
 * declared. strict: negative dims and unknown element types are errors (graph inputs), else dims
 * are unknown. */
mpr_status mpri_build_type(Import *im, const ValueInfoProto *v, bool strict, DType *t, Shape *shape,
                           Err *err);
/* A type for a graph input that declares none: what its first readers want. */
DType mpri_build_guess(const Import *im, const Scope *scope, const char *name);

/* infer.c: types and shapes of a new node; declared ones of its outputs are compared with what is
 * found. */
mpr_status mpri_build_infer(Import *im, Node *n, const char *label, Err *err);
/* Types of the outputs of an opaque node that nothing declares. */
void mpri_build_guess_outputs(Node *n);

#endif
