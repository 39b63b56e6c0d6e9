/* What each node of the file computes in, and what type each of its values has before and after. */
#ifndef MPRI_CONVERT_DECIDE_H
#define MPRI_CONVERT_DECIDE_H

#include "convert/convert.h"

typedef struct FileValue {
    const char *name;   /* in the file */
    DType before;       /* type in the original file; NONE: not a tensor we know */
    DType after;        /* type once the decisions are applied */
    int producer;       /* file node index, -1: graph input or initializer */
    bool restore;       /* the name must keep its original type: graph output, captured or used by its name */
    const char *low;    /* name of the version of type `after` when `restore` moved it away */
    const char *cast[2]; /* name of its cast to {low, f32}, NULL when none is needed */
    int first_use[2];    /* first reader in file order of that cast */
} FileValue;

typedef struct FileNodeIO {
    const char *op_type, *domain;
    const char **in; int n_in; /* "" = absent */
    const char **out; int n_out;
    DType compute;      /* decided type, NONE: no decision */
    bool round;         /* f32 inside, outputs rounded to the low type (a norm with f32 parameters) */
    DType round_to;
    uint32_t fixed_in;  /* inputs that are never cast */
    bool passes;        /* moves its input through: Identity, inactive Dropout */
    bool opaque;
} FileNodeIO;

typedef struct Decisions {
    FileNodeIO *nodes; int n_nodes;
    FileValue *values; int n_values, cap_values;
    struct NameIndex *index;
    int64_t nodes_low, nodes_fp32;
} Decisions;

/* Reads names of every file node, runs the prepare passes with autocast on a clone, and decides. */
mpr_status mpri_convert_decide(const ImportedModel *m, const ConvertOptions *o, Arena *arena, Decisions *d, Err *err);
FileValue *mpri_convert_value(const Decisions *d, const char *name); /* NULL when unknown */

#endif
