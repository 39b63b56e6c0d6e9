/* Which units are low: lists, rules of the user, guards, and the painting between them. */
#ifndef MPRI_CONVERT_PAINT_H
#define MPRI_CONVERT_PAINT_H

#include "convert/mix.h"
#include "passes/pass.h"
#include "runtime/base/err.h"

typedef enum PaintRule { RULE_EXCLUDE, RULE_INCLUDE, RULE_FORCE } PaintRule;

typedef struct PaintRange { /* of a measured value */
    double most; /* absolute */
    double tiny; /* share of those that are not zero which are below the range of float16 */
    bool finite;
} PaintRange;

typedef struct PaintOptions {
    const char *const *rules;  /* "exclude op:RE", in the order of the command line; may be NULL */
    const Profile *policy;     /* rules of a file and of --keep-fp32, before `rules`; may be NULL */
    const char *const *no_guard;
    const char *lists;         /* text of a list file, or NULL */
    const char *lists_path;    /* of that file, for messages */
    int min_island;
    int64_t max_reduction;     /* 0: none */
    bool master;               /* train mode */
    const char *weights_oor;   /* NULL: keep-fp32 */
    double margin;
    /* Of the value at a place (places.h); false when it is not known. NULL: no value is. */
    bool (*range)(const void *user, const char *place, PaintRange *out);
    /* Measured dims; NULL without range. */
    bool (*dims)(const void *user, const char *place, int *rank, int64_t dims[8]);
    const void *range_user;
    const char *const *raised; /* by number of the node: why it has to stay in float32, or NULL */
} PaintOptions;

typedef struct PaintWarning {
    const char *kind, *where, *detail;
    int64_t count;
    struct PaintWarning *next;
} PaintWarning;

typedef struct Paint {
    Mix *m;
    const PaintOptions *o;
    Err *err;
    PaintWarning *warnings, *last_warning;
    int allowed; /* units that start a low region */
} Paint;

mpr_status mpri_paint(Paint *p);
void mpri_paint_warn(Paint *p, const char *kind, const char *where, int64_t count,
                     const char *detail);

/* ---- parts ---- */
mpr_status mpri_paint_lists(Paint *p);  /* list of every unit */
mpr_status mpri_paint_rules(Paint *p);  /* --exclude, --include, --force-include */
void mpri_paint_policy(Paint *p);       /* rules of the profile */
void mpri_paint_apply(MixNode *n, PaintRule rule, MixReason why);
mpr_status mpri_paint_guards(Paint *p);
void mpri_paint_range_act(Paint *p);
void mpri_paint_constants(Paint *p);    /* shape-path, weight-side, range-init */
/* The range of a value over all turns and calls; false when it is not known. */
bool mpri_paint_range(const Paint *p, const MixValue *v, PaintRange *out);
void mpri_paint_weights(Paint *p);      /* range-init alone */
const char *mpri_list_words(MixList list); /* the built-in list, blank-separated */
/* After the painting: warnings for constants that change beyond rounding, or would; MPR_E_DATA when
 * the user wants none of it. */
mpr_status mpri_paint_changes(Paint *p);
/* kernels.c: warnings for low operators that only reference kernels compute. */
void mpri_paint_kernels(Paint *p, const OpTable *ops, const KernelSet *set);
/* sentinel.c: constants beyond the range that the user forces into it; see there. */
void mpri_paint_sentinels(Paint *p);
bool mpri_node_is(const MixNode *n, const char *ops); /* one of the blank-separated words */

#endif
