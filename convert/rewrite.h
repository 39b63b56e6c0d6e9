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
    bool drop;             /* narrowing Casts of the model */
    int casts, merged;     /* added; that were spared beside Casts of the model */
    RewriteCast *list, *last;
    Err *err;
    /* private */
    Tree *marks;
    const char *lines;     /* of the model's list */
    struct Insertion *insertions;
    int n_insertions, cap_insertions;
    const Tree **off;      /* Casts that round no more */
    int n_off, cap_off;
} Rewrite;

mpr_status mpri_rewrite(Rewrite *w);

/* Takes out what an earlier run added or changed; *n: how much. m has not been read. */
void mpri_rewrite_undo(Mix *m, int *n);
/* Declared types of inner values become those that the nodes give. */
void mpri_rewrite_retype(const Mix *m);
/* The target of a Cast, in the form that it has. */
void mpri_cast_retarget(Tree *cast, DType to);
/* Element type of a ValueInfoProto. */
void mpri_info_set(Tree *info, DType elem);

#endif
