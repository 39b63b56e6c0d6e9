/* Between the files that rewrite a model. */
#ifndef MPRI_CONVERT_REWRITE_PARTS_H
#define MPRI_CONVERT_REWRITE_PARTS_H

#include "convert/rewrite.h"

/* A line of the model's list of marks: the prefix says what kind, the name is escaped. */
void mpri_rewrite_mark(Rewrite *w, const char *prefix, const char *name);
/* The metadata or the line that mark an added node; none in a function, which goes as a whole. */
void mpri_rewrite_mark_node(Rewrite *w, const MixScope *s, Tree *node, const char *name,
                            DType type);
/* A name for a version of v that no scope knows. */
const char *mpri_rewrite_fresh(Rewrite *w, const MixValue *v, DType type);
/* That version exists, and is seen in s and below. cast: of the report, or NULL. */
void mpri_rewrite_as(Rewrite *w, MixValue *v, MixScope *s, DType type, const char *name,
                     RewriteCast *cast);
/* Puts the node behind the producer of v, or at the start of the scope. */
void mpri_rewrite_insert(Rewrite *w, MixScope *s, const MixValue *v, Tree *node);
/* Type in which a use reads its value; NONE: as it is. */
DType mpri_rewrite_wanted(const MixValue *v, const MixUse *u);

/* rewrite_tensors.c: an initializer that may change, in place or by a copy. */
void mpri_rewrite_tensor(Rewrite *w, MixValue *v);
/* A low Constant beside one that low nodes read. */
void mpri_rewrite_twin(Rewrite *w, MixValue *v);

/* rewrite_calls.c: functions whose body has changed for a call become functions of their own. */
void mpri_rewrite_calls(Rewrite *w);

#endif
