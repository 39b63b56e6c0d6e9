/* Precision profiles: a base list and rules on top. Made by mpri_profile_load (pass.h); owned by
 * the arena given there. */
#ifndef MPRI_PASSES_PROFILE_H
#define MPRI_PASSES_PROFILE_H

#include "passes/pass.h"

typedef enum ProfileKind { PROFILE_OP, PROFILE_NODE, PROFILE_SUBGRAPH, PROFILE_TENSOR } ProfileKind;

typedef struct ProfileRule {
    ProfileKind kind;
    const char *pattern; /* operator name, or a glob on names of nodes, scopes or outputs of nodes */
    CastClass cls;
    const char *where; /* it was said: a file and line, keep-fp32 */
    const char *why;
    bool matched;
} ProfileRule;

struct Profile {
    const char *name;
    bool cpu;   /* base list: torch-cpu, else torch-cuda */
    bool paint; /* the converter decides, see convert/paint.h; rules change its lists */
    const char *decisions; /* not NULL: a file that the converter has written decides, its text */
    const char *decided;   /* not NULL: base and rules come from decisions, which must be what they
                              decide; their text */
    int n_decided;         /* rules that come from there */
    bool carried;          /* by the model itself: no hash says which one they are for */
    ProfileRule *rules; /* in order of precedence: the last match wins */
    int n, cap;
    const char **why; /* by operator: its place on the base list */
    Arena *arena;
};

/* As mpri_profile_class, and whether a rule of the user decided. */
CastDecision mpri_profile_decide(const Profile *p, const Node *n, bool *by_rule);

/* Reason number `step` for the class of n: -1 what the base says, else rule `step`; NULL when that
 * rule does not match. */
const char *mpri_profile_step(const Profile *p, const Node *n, int step);
/* The rules on top of the base, a line each with what the base says; nothing without rules. */
void mpri_profile_print(const Profile *p, Text *out);
/* explain.c: the reasons of a node (name, "=VALUE", "#INDEX") of a graph that autocast went over;
 * false when there is no such node. */
bool mpri_autocast_explain(const Graph *imported, const Graph *prepared, const Profile *p,
                           const char *ref, Text *out);

/* Append a rule; why is made from where it stands. MPR_E_USAGE for an operator that does not exist
 * or whose types are fixed. */
mpr_status mpri_profile_add(Profile *p, ProfileKind kind, const char *pattern, CastClass cls,
                            const char *where, Err *err);
/* Some prefix of the name that ends before a '/' matches. */
bool mpri_profile_scope_matches(const char *glob, const char *name);
static inline bool mpri_profile_converts(const Profile *p)
{
    return p->paint || p->decisions;
}
/* "torch-cuda", "torch-cpu" or "paint". */
const char *mpri_profile_base_name(const Profile *p);
/* profile_file.c: base and rules from a YAML or JSON file, or the decisions of a sidecar file. */
mpr_status mpri_profile_read(Profile *p, const char *path, Err *err);
bool mpri_profile_base(Profile *p, const char *name);
/* profile_decided.c: p decides as the decisions do: by base and rules where they have been made so,
 * else they are final. */
mpr_status mpri_profile_decided(Profile *p, const char *text, Err *err);
/* The profile of decisions that a model carries; name and text stay the caller's. */
mpr_status mpri_profile_carried(const char *name, const char *text, const char *const *keep_fp32,
                                Arena *arena, Profile **out, Err *err);
const char *mpri_profile_class_name(
    CastClass c); /* "low", "fp32", "widest", "keep", "move", "fixed" */
CastClass mpri_profile_class_parse(
    const char *name); /* the first four; CAST_FORGOTTEN when it is none */

#endif
