/* One source node on its way into the graph: attributes become parameter structs and inputs, and
 * the meaning of its opset becomes the newest one. */
#ifndef MPRI_IMPORTER_ADAPT_H
#define MPRI_IMPORTER_ADAPT_H

#include "importer/model.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"

typedef struct Draft Draft;
/* Emits the node (and what it needs around it) itself; outputs go to out[DRAFT_OUTPUTS]. It may set
 * opaque_why instead. */
typedef mpr_status (*EmitFn)(Draft *d, Value **out, Err *err);

enum { DRAFT_SPARE_INPUTS = 8, DRAFT_OUTPUTS = 8 };

struct Draft {
    Import *im;
    Graph *g;
    const FileNode *node;
    const char *label;      /* "node 'x' (Op)" for messages */
    int64_t opset;          /* of the node's domain in its scope */
    const OpDef *op;        /* opaque once it turns out that the program cannot express the node */
    const char *opaque_why; /* what cannot be expressed */
    Value **in;
    int n_in; /* trailing absent inputs are cut; room for DRAFT_SPARE_INPUTS more */
    int n_out;
    bool *taken;      /* per attribute: an adapter has used it */
    bool lenient;     /* attributes that are required now have a default in this opset */
    void *params;     /* of op, defaults filled in */
    EmitFn emit;      /* NULL: one node of op */
    const char *base; /* name of the first output, prefix of helper values */
    Origin origin;
};

/* Rewrites to the newest meaning, checks arity and attributes against the rows of the operator,
 * fills params. What is wrong with the node goes to err as findings (INVALID_MODEL) and gives
 * MPR_OK; other failures return. */
mpr_status mpri_adapt_node(Draft *d, Err *err);

/* Helpers for adapters. An attribute of another kind than asked for is a finding and counts as
 * absent. */
const AttributeProto *mpri_adapt_take(Draft *d, const char *name);
bool mpri_adapt_take_int(Draft *d, const char *name, int64_t *v, Err *err);
bool mpri_adapt_take_float(Draft *d, const char *name, float *v, Err *err);
bool mpri_adapt_take_ints(Draft *d, const char *name, Ints *v, Err *err);
Value *mpri_adapt_ints(Draft *d, const char *role, int64_t n,
                       const int64_t *v); /* 1-D int64 constant */
Value *mpri_adapt_scalar(Draft *d, const char *role, DType t, double v);
mpr_status mpri_adapt_set_input(Draft *d, int k, Value *v, Err *err);
/* A node before the draft's own, with its types inferred; origin and name follow the source node.
 */
mpr_status mpri_adapt_emit(Draft *d, int op, const char *role, const void *params, int n_in,
                           Value *const *in, Value **out, Err *err);

/* The rows of a family of operators; adapt.c goes through all of them. */
typedef struct AdaptRow {
    const char *op;
    int from, to; /* opsets, both included */
    mpr_status (*fn)(Draft *d, Err *err);
} AdaptRow;
/* end with op NULL */
extern const AdaptRow mpri_adapt_layout[], mpri_adapt_compute[], mpri_adapt_norm[];
extern const AdaptRow mpri_adapt_image[];

#endif
