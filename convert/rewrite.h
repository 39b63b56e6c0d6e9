/* Colours into the tree, and out of it again. */
#ifndef MPRI_CONVERT_REWRITE_H
#define MPRI_CONVERT_REWRITE_H

#include "convert/mix.h"
#include "runtime/base/err.h"

typedef struct RewriteCast {
    const char *name, *value, *scope;
    DType from, to;
    int consumers;
    const MixNode *reader; /* first one */
    struct RewriteCast *next;
} RewriteCast;

typedef struct Rewrite {
    Mix *m;
    const char *const *io; /* "NAME=TYPE", NULL-terminated; may be NULL */
    bool infer;            /* initializers may change */
    bool saturate;
    int casts;
    RewriteCast *list, *last;
    int64_t bytes_saved;
    Err *err;
    /* private */
    Tree *marks;
    const char *lines;     /* of the model's list */
    struct Insertion *insertions;
    int n_insertions, cap_insertions;
} Rewrite;

mpr_status mpri_rewrite(Rewrite *w);

/* Takes out what an earlier run added or changed; *n: how much. m has not been read. */
void mpri_rewrite_undo(Mix *m, int *n);
/* Element type of a ValueInfoProto. */
void mpri_info_set(Tree *info, DType elem);

#endif
