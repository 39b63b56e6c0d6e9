/* Checking a converted model by numbers: the bytes that are going to be written are run next to
 * those of the plain model, on data of the user. Nothing here opens a file: data and bound models
 * come from the caller. */
#ifndef MPRI_CONVERT_VERIFY_H
#define MPRI_CONVERT_VERIFY_H

#include "convert/evaluate.h"
#include "convert/ranges.h"

typedef struct CheckData { /* data for a model, and how to run it */
    void *user;
    int batches;
    const Device *device;
    size_t memory; /* bytes for the values of one run; 0: no limit */
    /* The model in these bytes, made ready for the inputs of one batch. *out is ended by release. */
    mpr_status (*bind)(void *user, const void *bytes, size_t size, int batch, BoundModel **out,
                       Err *err);
    void (*release)(void *user, BoundModel *b);
} CheckData;

/* What is to be checked by numbers. */
typedef struct MixedCheck {
    const CheckData *verify, *calib; /* data, or NULL */
    double rtol, atol;               /* negative: a usual one */
    double search;                   /* relative tolerance to reach by raising nodes; 0: none */
    bool low_sums;                   /* sums in 16 bits */
    bool per_node;
    char **table;                    /* what was found, for people, from the allocator; or NULL */
} MixedCheck;

typedef struct Gap { double most, relative; } Gap; /* largest absolute and relative difference */

typedef struct NodeGaps { /* largest ones of all batches and of all turns of a loop */
    bool seen;
    Gap local, total; /* with inputs of the plain run; with those of the converted one */
    double ulps;      /* of local, in steps of the type of the output */
    double share;     /* largest local difference by the largest value of the output */
    const char *born; /* "none", "inf", "nan": with inputs that are what they were */
} NodeGaps;

typedef struct OutputGaps {
    const char *name;
    Gap gap;
    double most;              /* largest finite absolute value of the plain run */
    double atol;              /* in force */
    int64_t beyond, elements; /* above the tolerance; all */
    int64_t at;               /* first place of the largest excess */
    double was, is;
} OutputGaps;

typedef struct Verification {
    double rtol, atol; /* atol negative: a tenth of rtol times the largest value of the output, and 0
                          for integers; then the largest that was used */
    NodeGaps *nodes; /* by number of the node; NULL: not asked for */
    OutputGaps *outputs;
    int n_outputs;
    bool breach;
} Verification;

typedef struct Plain Plain; /* runs of the plain model */
/* keep: for mpri_verify; else only the ranges stay. *out is set on failure, too. */
mpr_status mpri_verify_plain(const CheckData *data, const void *bytes, size_t size, bool keep,
                             Pool *pool, const Alloc *alloc, Plain **out, Err *err);
void mpri_verify_end(Plain *p); /* NULL-safe */
const Ranges *mpri_verify_ranges(const Plain *p); /* of all batches */
/* m: what the bytes were made from, with its units coloured. sums: see Evaluator. v holds the
 * tolerance; the rest goes to the pool. nodes: gaps of single nodes as well. */
mpr_status mpri_verify(Plain *p, const Mix *m, const void *bytes, size_t size, DType sums,
                       bool nodes, Pool *pool, Verification *v, Err *err);
/* Tables for people. */
void mpri_verify_print(const Verification *v, const Mix *m, bool nodes, Text *out);
/* The breach as an error: which output, by how much, and which node is to blame. */
mpr_status mpri_verify_error(const Verification *v, const Mix *m, const char *lead, Err *err);

#endif
