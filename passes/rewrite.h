/* Small questions and steps that several bind-stage passes share. Shapes are numbers here. */
#ifndef MPRI_PASSES_REWRITE_H
#define MPRI_PASSES_REWRITE_H

#include "passes/pass.h"

/* v is a constant whose elements all have one value, which goes to *x. */
bool mpri_rewrite_splat(const Value *v, double *x);
/* The same for a single element, whatever its shape. */
bool mpri_rewrite_scalar(const Value *v, double *x);
/* n is Mul or Div by a constant of one element: its output is *x times *c, in shape and type of *x.
 */
bool mpri_rewrite_scaling(const Node *n, Value **x, double *c);
bool mpri_rewrite_power_of_two(double c);
/* Bytes of a value of constant shape; 0 when they are not known. */
size_t mpri_rewrite_bytes(const Value *v);
/* The permutation of a Transpose node, defaults resolved. Its input has a known rank. */
void mpri_rewrite_perm(const Node *transpose, int perm[MPRI_MAX_RANK]);
/* One node input reads v and v is no graph output. */
bool mpri_rewrite_one_use(const Value *v);
/* Output 0 of n becomes `to` everywhere; n goes. */
void mpri_rewrite_forward(Graph *g, Node *n, Value *to);
/* The same where `to` was built to stand for n: it takes over the names of n and its output. */
void mpri_rewrite_supplant(Graph *g, Node *n, Value *to);
/* A builder that inserts before n, in n's segment, under n's name and origins. */
Builder mpri_rewrite_builder(Graph *g, Node *n, Err *err);
/* x seen with another shape of as many elements: x itself, or a Reshape of it. */
Value *mpri_rewrite_reshape(Builder *b, Value *x, const Shape *shape);
/* x with permuted dims: x itself, or a Transpose of it. */
Value *mpri_rewrite_transpose(Builder *b, Value *x, const int *perm);

/* passes/fold.c: infer and evaluate node by node. spread: also what only repeats a smaller tensor. */
mpr_status mpri_fold_evaluate(PassCtx *ctx, Graph *g, bool spread, bool *changed, Err *err);
/* passes/contents.c: inputs that a size depends on become constants, computed from PassCtx.fed. */
mpr_status mpri_bind_contents(PassCtx *ctx, Graph *g, bool *changed, Err *err);
/* passes/bind.c: the shape rule of n from what is certain at run time: contents of its inputs that
 * are known in part, or as symbols, do not count. *open: a size is left open. */
mpr_status mpri_bind_infer(Graph *g, Node *n, Arena *scratch, bool *open, Err *err);
/* The contents of v, of constant shape, computed from PassCtx.fed and the constants before it; in
 * ctx->scratch. */
mpr_status mpri_contents_of(PassCtx *ctx, Graph *g, Value *v, Tensor *out, Err *err);
/* passes/fold_identities.c: operators that change nothing, merged layout and casts. */
mpr_status mpri_fold_identities(Graph *g, bool *changed, Err *err);
/* passes/fold_slices.c: slices that cut a tensor into all its parts become one Split. */
mpr_status mpri_fold_slices(PassCtx *ctx, Graph *g, bool *changed, Err *err);
/* passes/fold_scale.c: factors on both operands of a 16-bit product become one behind it. */
mpr_status mpri_fold_scales(Graph *g, bool *changed, Err *err);
/* passes/lower_einsum.c: Einsum as matrix products, sums and transposes. */
mpr_status mpri_lower_einsum(Graph *g, bool *changed, Err *err);
/* passes/bind.c: trained parameters become slots "param:<name>", f32 (f64 when forced). */
mpr_status mpri_bind_params(PassCtx *ctx, Graph *g, bool *changed, Err *err);

#endif
