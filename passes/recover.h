/* Finding an operator in the nodes that an exporter wrote for it. One file per pattern.
 *
 * A matcher collects the nodes it walks over in a Match; the output of the last one, `final`, is
 * what the new operator replaces. It fires only when the match is closed: every other node is used
 * inside alone and is no graph output, so nothing outside can tell the difference. */
#ifndef MPRI_PASSES_RECOVER_H
#define MPRI_PASSES_RECOVER_H

#include "passes/prepare.h"

enum { MPRI_MATCH_MAX = 32 };

typedef struct Match {
    Node *node[MPRI_MATCH_MAX];
    int n;
    bool full; /* more nodes than there is room for: no match */
} Match;

void mpri_match_add(Match *m, Node *n); /* once per node */
bool mpri_match_has(const Match *m, const Node *n);
/* Every node but `final` is used inside alone. */
bool mpri_match_closed(const Match *m, const Node *final);
/* The only user of v when it is one node and v is no graph output, else NULL. */
Node *mpri_match_user(const Value *v);
/* The float value behind float casts of v; the casts are added when m is given. */
Value *mpri_match_through(Match *m, Value *v);
/* As mpri_match_user, walking over float casts, which are added. */
Node *mpri_match_user_through(Match *m, const Value *v);
/* Operand of a two-input node that is not `one`; NULL when neither is. */
Value *mpri_match_other(const Node *n, const Value *one);
/* One operand is a scalar constant: *x; returns the other one. NULL when there is none. */
Value *mpri_match_scalar_operand(const Node *n, double *x);
/* |x - want| within rounding of a constant to f16, relative. */
bool mpri_match_near(double x, double want);
/* A new node before `before` under a name of the file, with its types; its output goes to *out. */
mpr_status mpri_match_build(Graph *g, Node *before, const OpDef *op, const char *name,
                            const void *params, int n_in, Value *const *in, Value **out, Err *err);
/* `made` (built before final) takes over type, name and uses of final's output, and all origins. */
mpr_status mpri_match_replace(Graph *g, const Match *m, Node *final, Value *made, Err *err);

/* The patterns. Each looks from one anchor node; *hit when it replaced something. n stays linked
 * or not. */
mpr_status mpri_recover_linear(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err);
mpr_status mpri_recover_layernorm(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err);
mpr_status mpri_recover_gelu(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err);
mpr_status mpri_recover_gated(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err);
mpr_status mpri_recover_softmax(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err);

#endif
