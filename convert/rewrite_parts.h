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
/* The name of a version that exists and is seen in s, or NULL. */
const char *mpri_rewrite_version(const MixValue *v, const MixScope *s, DType type);
/* Type in which a use reads its value; NONE: as it is. */
DType mpri_rewrite_public(const Rewrite *w, const MixValue *v); /* type of an input or output */
DType mpri_rewrite_wanted(const MixValue *v, const MixUse *u);

/* rewrite_nodes.c: a Cast, its line of the report, and the declaration of what it makes. */
Tree *mpri_rewrite_cast(Rewrite *w, const MixScope *s, const char *from, const char *to,
                        const char *name, DType type);
void mpri_rewrite_note(Rewrite *w, MixScope *s, const MixValue *v, const char *name, DType from,
                       DType to);
void mpri_rewrite_declare(Rewrite *w, MixScope *s, const MixValue *v, const char *name, DType type);
void mpri_rewrite_text(TreeField *f, const char *text);
/* What was inserted and marked, into the tree. */
void mpri_rewrite_put_nodes(Rewrite *w);
void mpri_rewrite_put_marks(Rewrite *w);

/* rewrite_names.c: names and types into the tree. */
TreeField *mpri_info_elem(Tree *info); /* the element type of a declaration, or NULL */
void mpri_rename_node(MixNode *n);
void mpri_rewrite_retarget(Rewrite *w, const MixNode *n); /* a Cast of the model */
void mpri_retype_graph(Rewrite *w, MixScope *s);
void mpri_retype_function(Rewrite *w, MixScope *s);

/* rewrite_tensors.c: an initializer that may change, in place or by a copy. */
void mpri_rewrite_tensor(Rewrite *w, MixValue *v);
/* A low Constant beside one that low nodes read; on the way to float32 the Constant itself. */
void mpri_rewrite_twin(Rewrite *w, MixValue *v);

/* rounding.c: before anything is written, and at the end. */
void mpri_rounding_off(Rewrite *w);
void mpri_rounding_remove(Rewrite *w);

/* rewrite_calls.c: functions whose body has changed for a call become functions of their own. */
void mpri_rewrite_calls(Rewrite *w);

#endif
