/* Decisions that were made once, kept beside a model or inside it, and made again from there.
 *
 * A sidecar file (--annotations) has the SHA-256 of the model and the array of nodes of the report.
 * An annotated model (--annotate) carries the same in its metadata, without the hash, for training
 * changes the weights and not the decisions. Both take the place of the painting.
 *
 * Decisions of a profile of torch have its base and rules as well, which decide again when they are
 * read (passes/profile_decided.c); then the units only have to agree. */
#ifndef MPRI_CONVERT_DECISIONS_H
#define MPRI_CONVERT_DECISIONS_H

#include "convert/paint.h"

#define MPRI_DECISIONS_KEY "mpr.decisions"

/* "float", "float16", "bfloat16"; "PATH:VARIABLE". */
const char *mpri_decisions_word(DType t);
const char *mpri_decisions_unit(Pool *pool, const MixUnit *u);
/* Takes the decisions out of the model's metadata: NULL when there are none. */
const char *mpri_decisions_take(Mix *m);
/* The colours of the units as text, in the pool. profile: of torch, which decided; NULL: painted. */
const char *mpri_decisions_text(Mix *m, const Profile *profile);
/* Writes them into the model's metadata. */
void mpri_decisions_put(Mix *m);
/* Base and rules as the member "profile" of an object. */
void mpri_decisions_profile(Text *t, const Profile *p);
/* Units get the colours and reasons of `text`. The policy may keep more of them in float32.
 * MPR_E_USAGE names what does not fit the model or the target type. */
mpr_status mpri_decisions_read(Paint *p, const char *text, Err *err);
/* As read, of a profile of torch: what the painter cannot follow, and weights that do not fit, stay
 * in float32. */
mpr_status mpri_decisions_follow(Paint *p, const char *text, Err *err);
/* The colours of the units, which are those of a profile of torch, must be what `text` says. kept:
 * more is kept in float32 than there. MPR_E_USAGE names what does not fit. */
mpr_status mpri_decisions_hold(Mix *m, const char *text, bool kept, Err *err);
/* Were they made under a profile of torch? */
bool mpri_decisions_by_profile(const char *text);
/* Is it the sidecar of the model with one of these hashes? Without a hash it is refused. */
mpr_status mpri_decisions_check(const char *text, const char *hex, const char *plain_hex, Err *err);

/* The decisions inside a model, copied to the arena: *text is NULL when there are none. */
mpr_status mpri_decisions_find(const Source *s, Arena *arena, const char **text, Err *err);
/* The 16-bit type that they are for, NONE when they do not say it or cannot be read. */
DType mpri_decisions_type(const char *text);

#endif
