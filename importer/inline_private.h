/* The walk that expands calls, branches, loops and sequences, shared by inline.c (calls, branches),
 * unroll.c (Loop, Scan, SequenceMap) and sequences.c (lists of tensors). All memory is scratch or
 * of the proto arena. */
#ifndef MPRI_IMPORTER_INLINE_PRIVATE_H
#define MPRI_IMPORTER_INLINE_PRIVATE_H

#include "importer/inline.h"

typedef struct Rename { /* one name of a body */
    UT_hash_handle hh;
    bool lost;
    const char *from, *to; /* interned */
} Rename;

typedef struct Names { /* of one expansion, with what it sees around it */
    Rename *hash;
    struct Names *outer; /* NULL: the main graph, whose names stay */
    bool closed;         /* a function body: nothing outside is seen */
} Names;

typedef struct Expansion { /* a frame of the walk */
    NodeProto **nodes;     /* NULL: im->nodes */
    int n, at;
    Names *names;
    const Opsets *opsets;
    const char *path;
    const NodeProto *call; /* for attribute references; NULL in branches of the main graph */
    const FunctionInfo *function;
    struct Repeat *repeat; /* the loop whose turn this is, or NULL */
    bool body;             /* inside a body of If, Loop, Scan or SequenceMap */
} Expansion;

typedef struct Known { /* one integer or truth value that is known before the run */
    UT_hash_handle hh;
    bool lost;
    const char *name;
    int64_t value;
} Known;

typedef struct Sequence { /* a name that stands for a list of tensors, or for an optional one */
    UT_hash_handle hh;
    bool lost;
    const char *name;
    const char **items; /* of an optional: one, or none */
    int n;
    bool optional;
    bool written; /* a node that writes it has been emitted for an operator that is not expanded */
} Sequence;

typedef struct Inliner {
    Import *im;
    const Functions *f;
    const Scope *scope;
    Expansion *stack;
    int depth, cap;
    FileNode *out;
    int n_out, cap_out;
    Known *known;
    Sequence *sequences;
    Fact *open; /* what control flow asks for */
    int n_open, cap_open;
    bool changed;
    Err *err;
} Inliner;

bool mpri_inline_grow(Arena *a, void **rows, int n, int *cap, size_t size);

/* ---- names */
const char *mpri_inline_intern(Inliner *x, const char *s);
mpr_status mpri_inline_put(Inliner *x, Rename **hash, const char *from, const char *to);
const char *mpri_inline_look(const Names *names, const char *name);
/* A name that nothing in the model has: path and old name, with a number when needed. */
const char *mpri_inline_fresh(Inliner *x, const char *path, const char *name);
/* "outer/CALL/what/" */
const char *mpri_inline_path(Inliner *x, const char *path, const NodeProto *p, const char *what);
/* What a branch is called in paths: its graph's name, if that tells it from the other one's. */
const char *mpri_inline_branch(const GraphProto *g, const NodeProto *from);
/* Names that a body's nodes write get fresh ones in `names`. */
mpr_status mpri_inline_define(Inliner *x, Names *names, const char *path, NodeProto **nodes,
                              size_t n);
/* Initializers of a body become Constants; their names go into e->names. */
mpr_status mpri_inline_constants(Inliner *x, const GraphProto *g, const Expansion *e);

/* ---- nodes */
mpr_status mpri_inline_push(Inliner *x, Expansion e);
mpr_status mpri_inline_emit(Inliner *x, NodeProto *p, const Expansion *e);
/* op(inputs) -> output, which the caller still gives attributes; NULL: no memory. */
NodeProto *mpri_inline_node(Inliner *x, const char *op, int n, const char *const *in,
                            const char *out);
bool mpri_inline_attr(Inliner *x, NodeProto *p, const char *name, int type, int64_t n,
                      const int64_t *v);
/* A Constant of this tensor. */
mpr_status mpri_inline_tensor(Inliner *x, TensorProto *t, const char *out, const Expansion *e);
/* A sequence gets a second name, a tensor an Identity. */
mpr_status mpri_inline_alias(Inliner *x, const char *from, const char *to, const Expansion *e);
/* A Constant of type int64 (rank 0 or 1) or bool (rank 0), under a fresh name unless *out has one.
 */
mpr_status mpri_inline_number(Inliner *x, const Expansion *e, DType t, int rank, int64_t value,
                              const char **out);
/* Pieces of one tensor along an axis that is new (stack) or there already. */
mpr_status mpri_inline_join(Inliner *x, const Expansion *e, int n, const char *const *in,
                            int64_t axis, bool stack, const char *out);
/* x at one index of an axis, which goes. */
mpr_status mpri_inline_pick(Inliner *x, const Expansion *e, const char *from, int64_t index,
                            int64_t axis, const char **out);

/* ---- what is known */
mpr_status mpri_inline_note_all(Inliner *x); /* initializers and Constants of one element */
mpr_status mpri_inline_note_node(Inliner *x, const NodeProto *p);
mpr_status mpri_inline_note(Inliner *x, const char *name, int64_t value);
bool mpri_inline_known(const Inliner *x, const char *name, int64_t *value);
bool mpri_inline_dim(const Inliner *x, const char *name, int axis, int64_t *value);
mpr_status mpri_inline_ask(Inliner *x, const char *name, int axis);
int64_t mpri_inline_int(const NodeProto *p, const char *attr, int64_t none);

/* ---- unroll.c: *taken when the node has become a loop of the walk, or nodes. `from` holds the
 * body as it was, p the names of the place. */
bool mpri_unroll_is(const NodeProto *p);
const char *mpri_unroll_op(int i); /* one after the other; NULL after the last */
mpr_status mpri_unroll_enter(Inliner *x, const NodeProto *from, NodeProto *p,
                             const Expansion *around, bool *taken);
mpr_status mpri_unroll_next(Inliner *x, const Expansion *done); /* at the end of a turn */

/* ---- sequences.c */
Sequence *mpri_sequence_find(const Inliner *x, const char *name);
mpr_status mpri_sequence_put(Inliner *x, const char *name, int n, const char *const *items,
                             bool optional);
mpr_status mpri_sequence_node(Inliner *x, const NodeProto *p, const Expansion *e, bool *taken);
/* Their operators, one after the other; NULL after the last. */
const char *mpri_sequence_op(int i, bool *gradient);
/* Before a node that stays as it is, and for outputs of the graph: sequences it reads get a writer.
 */
mpr_status mpri_sequence_write(Inliner *x, const char *name, const Expansion *e);

#endif
