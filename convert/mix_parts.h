/* Between the files that read a model into scopes and units. */
#ifndef MPRI_CONVERT_MIX_PARTS_H
#define MPRI_CONVERT_MIX_PARTS_H

#include "convert/mix.h"

/* ---- mix_read.c ---- */
const char *mpri_mix_domain(const char *domain); /* "" for "ai.onnx" */
const MixName *mpri_mix_name(const MixName *names, const char *name);
void mpri_mix_add_name(Pool *pool, MixName **names, const char *name, Tree *function);
MixValue *mpri_mix_define(Mix *m, MixScope *s, const char *name);
void mpri_mix_add_use(Mix *m, MixValue *v, MixUse use);
/* The texts of a repeated field. */
void mpri_mix_read_names(Mix *m, const Tree *t, uint32_t number, const char ***names, int *n);
void mpri_mix_list_scope(Mix *m, MixScope *s);
void mpri_mix_list_nodes(Mix *m, MixScope *s);
void mpri_mix_read_infos(Mix *m, MixScope *s);
void mpri_mix_solve_nodes(Mix *m, MixScope *s);

/* ---- mix_types.c ---- */
MixType mpri_mix_in_type(const MixNode *n, int k);
MixType mpri_mix_info_type(const Tree *info); /* of a ValueInfoProto or NULL */
MixType mpri_mix_output_type(Mix *m, const MixNode *n, int k); /* its inputs and bodies are solved */
Tree *mpri_mix_attribute_tensor(const MixNode *n, const char *name);

/* ---- mix_calls.c ---- */
void mpri_mix_add_function(Mix *m, Tree *function);
Tree *mpri_mix_function(const Mix *m, const MixNode *n); /* that it calls, or NULL */
/* Types of the outputs of a call, and its body, where the model is going to be painted. NULL: they
 * cannot be had. */
MixType *mpri_mix_call(Mix *m, MixNode *n);
void mpri_mix_call_units(Mix *m, MixNode *n);

/* ---- mix_units.c ---- */
/* One type for what goes into a place of the body (in, formal), comes out of it (result), and what
 * the node gives (out); -1: no such port. */
void mpri_mix_flow_unit(Mix *m, MixNode *n, const char *var, int in, int formal, int result,
                        int out);

#endif
