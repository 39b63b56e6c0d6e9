/* Running a model node by node, so that every value can be looked at: each operator by itself, its
 * outputs rounded to their types, nothing fused or folded. */
#ifndef MPRI_CONVERT_EVALUATE_H
#define MPRI_CONVERT_EVALUATE_H

#include "importer/importer.h"
#include "passes/pass.h"

typedef struct BoundModel { /* a model for one set of inputs */
    ImportedModel *m;       /* owned */
    Arena arena;            /* of what follows */
    Graph *g;               /* control flow is expanded, every shape is a number */
    FedInput *fed;          /* graph inputs, in their types there */
    int n_fed;
} BoundModel;

typedef struct Evaluator {
    const Device *device;
    DType sums;    /* MPR_DTYPE_NONE: as the kernels sum, in float32 or wider; else partial sums of
                      operators that compute in this type are rounded to it, one by one */
    size_t memory; /* bytes that the values of one run may take */
} Evaluator;

/* The values of one run, by id; dtype NONE: there is none. They live in the arena or are constants. */
typedef struct Values {
    Tensor *v;
    Arena arena;
} Values;

/* Room for the values of b, with constants and inputs filled in. */
mpr_status mpri_values_begin(const Evaluator *e, const BoundModel *b, const Alloc *alloc,
                             Values *out, Err *err);
void mpri_values_end(Values *v);
/* Runs n on `in`. Room for the outputs is made in the arena. */
mpr_status mpri_evaluate_node(const Evaluator *e, const Node *n, const Tensor *in, Tensor *out,
                              Arena *arena, Err *err);
/* Runs n on what is in v, and puts its outputs there. */
mpr_status mpri_evaluate_step(const Evaluator *e, const Node *n, Values *v, Err *err);
mpr_status mpri_evaluate_all(const Evaluator *e, const BoundModel *b, Values *v, Err *err);
/* t in another float type, rounded to nearest even; t itself when it has it. False: no memory. */
bool mpri_evaluate_cast(const Tensor *t, DType to, Arena *arena, Tensor *out);

/* accumulate.c: n with its sums kept in e->sums. False: the operator has no such form. */
bool mpri_accumulate_low(const Node *n, const Tensor *in, Tensor *out, DType sums);

#endif
