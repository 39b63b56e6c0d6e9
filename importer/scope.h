/* Names of a model: who writes what, who reads what, in which order nodes can run. */
#ifndef MPRI_IMPORTER_SCOPE_H
#define MPRI_IMPORTER_SCOPE_H

#include "importer/model.h"
#include "runtime/base/hash.h"

typedef enum DefKind { DEF_INPUT, DEF_INITIALIZER, DEF_SPARSE, DEF_NODE } DefKind;

typedef struct NameDef { /* a value name and its writer */
    UT_hash_handle hh;
    bool lost;
    const char *name; /* interned */
    DefKind kind;
    int index;        /* of the input, initializer or node */
    int depth;        /* of its graph; 0 = the main graph or function body */
    bool overridable; /* an initializer that is also an input */
    Value *value;     /* filled while the graph is built */
} NameDef;

typedef struct Capture { /* a node's subgraphs read a name of the outermost graph */
    int node;
    const char *name;
} Capture;

typedef struct Scope {
    NameDef *defs; /* hash of the outermost names */
    int *order;    /* nodes in a valid order; the file's own where that is valid */
    Capture *captures;
    int n_captures; /* by node, ascending */
} Scope;

/* Checks names of the main graph, its branches, and all function bodies; collects up to 50 findings
 * (INVALID_MODEL). On success *out describes the main graph. Memory: the scratch arena. */
mpr_status mpri_scope_check(Import *im, Scope *out, Err *err);
NameDef *mpri_scope_find(const Scope *s, const char *interned);

/* check.c: what can be said of a node without knowing its operator: op_type present, attributes
 * named once, with one value of their kind. in_function: attribute references are allowed. Findings
 * go to err. */
void mpri_check_node_form(const char *where, const NodeProto *p, int index, bool in_function,
                          Err *err);

#endif
