/* A model at a newer opset: every node means what it meant. */
#ifndef MPRI_CONVERT_RAISE_H
#define MPRI_CONVERT_RAISE_H

#include "convert/mix.h"
#include "runtime/base/err.h"

enum { RAISE_NEWEST = 28 };

/* The nodes of all scopes and functions, and the imports of ai.onnx. m has been read and is stale
 * afterwards. MPR_E_USAGE for an opset that is older than the model's or not known, MPR_E_OPSET
 * names a node that has no counterpart. */
mpr_status mpri_raise(Mix *m, int64_t opset, Err *err);
/* The bytes of the raised model, in the arena. */
mpr_status mpri_raise_image(Source *s, Arena *arena, int64_t opset, void **bytes, size_t *size,
                            Err *err);
/* One function of the model. */
mpr_status mpri_raise_function(Mix *m, Tree *function, int64_t opset, Err *err);

/* ---- for the rows ---- */
typedef struct Raise {
    Mix *m;
    Tree *holder;         /* graph or function that holds the node */
    uint32_t number;      /* of its field of nodes */
    int at;               /* field of the node */
    Tree *node;
    const MixNode *known; /* the same node with types; NULL in a function */
    int64_t from, to;     /* opsets */
    const char *why;      /* set: the node cannot be raised */
} Raise;

typedef struct RaiseRow {
    int opset; /* that brings the change */
    const char *ops; /* blank-separated */
    void (*fn)(Raise *r);
} RaiseRow;
/* end with ops NULL */
extern const RaiseRow mpri_raise_rows[];

/* ---- nodes: raise_node.c ---- */
Tree *mpri_raise_attribute(const Raise *r, const char *name); /* NULL: none */
void mpri_raise_drop(Raise *r, const char *name);
int64_t mpri_raise_int(Raise *r, const char *name, int64_t absent);
float mpri_raise_float(Raise *r, const char *name, float absent);
/* Entries of a list; -1: there is no such attribute. */
int mpri_raise_ints(Raise *r, const char *name, int64_t *out, int cap);
int mpri_raise_floats(Raise *r, const char *name, float *out, int cap);
bool mpri_raise_text_is(const Raise *r, const char *name, const char *text);
void mpri_raise_put_int(Raise *r, const char *name, int64_t v);
void mpri_raise_put_float(Raise *r, const char *name, float v);
void mpri_raise_put_text(Raise *r, const char *name, const char *text);
void mpri_raise_put_ints(Raise *r, Tree *node, const char *name, const int64_t *v, int n);
const char *mpri_raise_input(const Raise *r, int k);  /* "" when absent */
const char *mpri_raise_output(const Raise *r, int k);
int mpri_raise_outputs(const Raise *r);
void mpri_raise_set_input(Raise *r, int k, const char *name);
void mpri_raise_set_output(Raise *r, int k, const char *name);
void mpri_raise_set_op(Raise *r, const char *op);
const MixValue *mpri_raise_value(const Raise *r, int k); /* of an input; NULL: nothing is known */
/* A new node before (or behind) this one with one output, named after output 0 and `role`. */
Tree *mpri_raise_add(Raise *r, bool behind, const char *op, const char *role, int n,
                     const char *const *in, const char **out);
void mpri_raise_put_cast(Raise *r, Tree *node, DType to); /* its attribute */
const char *mpri_raise_constant_ints(Raise *r, const char *role, int n, const int64_t *v);
const char *mpri_raise_constant_floats(Raise *r, const char *role, int rank, int n, const float *v);
/* A scalar of the type of input 0. */
const char *mpri_raise_constant_like(Raise *r, const char *role, float v);

#endif
