/* A model as mpr-convert would write it, held in memory: what a session trains under the profile
 * paint, and under decisions that were made before. The original is what is exported. */
#ifndef MPRI_TRAIN_PAINTED_H
#define MPRI_TRAIN_PAINTED_H

#include "passes/pass.h"
#include "runtime/train/context.h"

/* The profile of a session or run: `name` as the user says it, NULL when nothing was said. Then the
 * decisions that the model carries for this type count, and *type NONE takes theirs. *out is NULL
 * when *type stays NONE. */
mpr_status mpri_painted_profile(mpr_model *model, const char *name, const char *const *keep_fp32,
                                Arena *arena, DType *type, Profile **out, Err *err);
/* *out: the painted model, for mpri_model_destroy; NULL when the profile is one of autocast. */
mpr_status mpri_painted_open(mpr_model *model, const Profile *p, DType type, mpr_model **out,
                             Err *err);
/* Gives the nodes of a prepared graph the reasons of the painting. */
void mpri_painted_explain(const mpr_model *painted, Graph *g);

#endif
