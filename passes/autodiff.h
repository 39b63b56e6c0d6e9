/* Which values lie on a differentiable path: analysis for autodiff.c, made by autodiff_path.c. */
#ifndef MPRI_PASSES_AUTODIFF_H
#define MPRI_PASSES_AUTODIFF_H

#include "passes/pass.h"

/* Arrays by value id, in the pass's scratch arena, for the values that exist when it is made. */
typedef struct GradPath {
    int n_values;
    bool *active;   /* float, and depends on a wanted value through differentiable operators */
    bool *leads;    /* a seed depends on it through differentiable operators */
    bool *of_param; /* a trained parameter's slot, or a view or cast of one */
} GradPath;

/* Fills p. Errors: operators without a gradient on a path, all of them (MPR_E_NOT_DIFFERENTIABLE or
 * MPR_E_UNSUPPORTED_OP); in training, no path at all from a parameter to the loss, with the nodes
 * that stop it and the parameters behind them. */
mpr_status mpri_path_find(GradPath *p, PassCtx *ctx, const Graph *g, Value *const *seeds,
                          int n_seeds, Err *err);
/* Some input of n takes a cotangent and some output gives one. */
bool mpri_path_has(const GradPath *p, const Node *n);
/* Input k of n takes a cotangent. */
bool mpri_path_needs(const GradPath *p, const Node *n, int k);

#endif
