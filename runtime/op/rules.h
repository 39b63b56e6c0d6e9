/* Shared pieces of the operator definitions: attribute rows, type sets, checks for shape rules,
 * small tensors as symbolic contents, and helpers for gradients. Only runtime/op includes this.
 *
 * Rules must accept unknown types (MPR_DTYPE_NONE), unknown ranks and symbolic dims: they set what
 * follows from what is known. */
#ifndef MPRI_OP_RULES_H
#define MPRI_OP_RULES_H

#include <stddef.h>
#include "runtime/ir/graph.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"

/* ---- attribute rows ---- */
#define ATTR(T, Field, Name, Kind, ...) \
    { .name = (Name), .kind = ATTR_##Kind, .offset = offsetof(T, Field), __VA_ARGS__ }
#define ATTR_FLAG(T, Field, Name, Default) \
    ATTR(T, Field, Name, INT, .def_int = (Default), .min_int = 0, .max_int = 1)
#define ATTR_OUT_DTYPE(T) ATTR(T, out_dtype, "out_dtype", DTYPE, .internal = true)
#define ATTR_END { .name = NULL }
#define PARAMS(T, Rows) .attrs = (Rows), .params_size = sizeof(T)

/* ---- type sets: bit per onnx.TensorProto.DataType number ---- */
typedef uint32_t TypeSet;
#define TS(t) ((TypeSet)1 << (t))
#define TS_FLOAT (TS(MPR_FLOAT16) | TS(MPR_BFLOAT16) | TS(MPR_FLOAT32) | TS(MPR_FLOAT64))
#define TS_SIGNED (TS(MPR_INT8) | TS(MPR_INT16) | TS(MPR_INT32) | TS(MPR_INT64))
#define TS_UNSIGNED (TS(MPR_UINT8) | TS(MPR_UINT16) | TS(MPR_UINT32) | TS(MPR_UINT64))
#define TS_INT (TS_SIGNED | TS_UNSIGNED)
#define TS_WIDE_INT (TS(MPR_INT32) | TS(MPR_INT64) | TS(MPR_UINT32) | TS(MPR_UINT64))
#define TS_INDEX (TS(MPR_INT32) | TS(MPR_INT64))
#define TS_NUMBER (TS_FLOAT | TS_INT)
#define TS_BOOL TS(MPR_BOOL)
#define TS_ANY (~(TypeSet)0)

/* ---- reading a node ---- */
static inline Value *op_in(const InferCtx *c, int k) { return k < c->n->n_in ? c->n->in[k] : NULL; }
static inline bool op_has_out(const InferCtx *c, int k) { return k < c->n->n_out && c->n->out[k]; }
static inline DType op_type(const InferCtx *c, int k)
{
    const Value *v = op_in(c, k);
    return v ? v->dtype : MPR_DTYPE_NONE;
}
extern const Shape mpri_op_unknown; /* rank unknown */
static inline const Shape *op_shape(const InferCtx *c, int k)
{
    const Value *v = op_in(c, k);
    return v ? &v->shape : &mpri_op_unknown;
}
static inline Shape op_scalar(void) { return (Shape){.rank = 0}; }

/* ---- types ---- */
/* Input k (if present and of known type) is in the set. */
mpr_status mpri_op_check_type(InferCtx *c, int k, TypeSet set);
/* Inputs [from, to) have one type out of the set; absent and untyped ones are skipped. */
mpr_status mpri_op_common_type(InferCtx *c, int from, int to, TypeSet set, DType *t);
/* The same for operators with out_dtype: where it is set, float inputs may differ and it is the
 * result. */
mpr_status mpri_op_mixed_type(InferCtx *c, int from, int to, TypeSet set, int64_t out_dtype,
                              DType *t);
/* Type of f32 statistics and losses computed from x: f64 for f64, else f32. */
DType mpri_op_wide(DType x);

/* ---- shapes ---- */
mpr_status mpri_op_check_rank(InferCtx *c, int k, int low, int high);
/* Inputs a and b agree in this dim (called `what`): different constants are MPR_E_SHAPE. */
mpr_status mpri_op_same_dim(InferCtx *c, const char *what, int a, Dim da, int b, Dim db);
/* The shape is the one wanted: the same rank, no two different constants. */
mpr_status mpri_op_expect_shape(InferCtx *c, int k, const Shape *want, const char *what);
/* Input k broadcasts to `want` without widening it. */
mpr_status mpri_op_expect_broadcast_to(InferCtx *c, int k, const Shape *want, const char *what);
/* Broadcast of all inputs [from, to). */
mpr_status mpri_op_broadcast(InferCtx *c, int from, int to, Shape *out);
/* Shape of an Ints attribute; MPR_E_SHAPE for a rank above 8 or negative dims. */
mpr_status mpri_op_dims_shape(InferCtx *c, Ints dims, Shape *out);
/* Rank n with fresh dims; unknown when n is out of range. */
Shape mpri_op_fresh_shape(InferCtx *c, int64_t n);
/* Output 0 has type and shape of input 0. */
mpr_status mpri_op_infer_same(InferCtx *c);
/* Elements of an input as a Dim: product of its dims. False when the rank is unknown. */
bool mpri_op_elements(InferCtx *c, int k, Dim *n);
/* Axes as ints of input k or an attribute, normalised and distinct, into axes[8] and *n. */
mpr_status mpri_op_axes(InferCtx *c, int64_t n, const int64_t *v, int rank, int *axes);
/* Known integer contents of an input; NULL when it is not completely known. Lives in the graph's
 * arena. */
const int64_t *mpri_op_ints(InferCtx *c, int k, int64_t *n);
/* A bad attribute or input content: MPR_E_SHAPE with input k's shape in the text. */
mpr_status mpri_op_shape_error(InferCtx *c, int k, const char *what, int64_t found);
/* Attributes that list one number (or two) per spatial dim: how many (none is left out, unless it is
 * required), and each within low .. INT32_MAX. */
typedef struct ListRule {
    const char *name;
    Ints v;
    int64_t n, low;
    bool required;
} ListRule;
mpr_status mpri_op_check_lists(InferCtx *c, const ListRule *lists, int n);

/* ---- contents of small integer tensors (content.c) ---- */
/* Scratch for contents of n elements in the graph's arena. NULL when out of memory (reported by the
 * caller as "not known"). */
Dim *mpri_op_content_alloc(InferCtx *c, int64_t n);
#define MPRI_CONTENT_MAX 64
typedef Dim (*DimBinary)(SymTab *s, Dim a, Dim b);
/* Contents of output 0 from inputs 0 and 1 with broadcasting, when both are known and integer. */
void mpri_op_content_binary(InferCtx *c, DimBinary fn);
void mpri_op_content_fold(InferCtx *c, DimBinary fn);  /* variadic */
void mpri_op_content_where(InferCtx *c);
void mpri_op_content_expand(InferCtx *c); /* output 0 is input 0 broadcast */
void mpri_op_content_neg(InferCtx *c);
void mpri_op_content_not(InferCtx *c);
void mpri_op_content_copy(InferCtx *c); /* output 0 holds the elements of input 0 in order */
/* An element of which nothing is known, not even its sign. */
Dim mpri_op_dim_any(SymTab *s);
Dim mpri_op_dim_add(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_sub(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_mul(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_div(SymTab *s, Dim a, Dim b); /* truncates, as ONNX Div on integers */
Dim mpri_op_dim_mod(SymTab *s, Dim a, Dim b); /* sign of the divisor */
Dim mpri_op_dim_min(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_max(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_equal(SymTab *s, Dim a, Dim b); /* 1, 0 or a fresh atom */
Dim mpri_op_dim_less(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_greater(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_less_equal(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_greater_equal(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_and(SymTab *s, Dim a, Dim b);
Dim mpri_op_dim_or(SymTab *s, Dim a, Dim b);

/* ---- gradients: shapes are constant there ---- */
static inline Value *grad_in(const GradCtx *c, int k)
{
    return k < c->n->n_in ? c->n->in[k] : NULL;
}
static inline bool grad_needs(const GradCtx *c, int k)
{
    return k < c->n->n_in && c->n->in[k] && c->need[k];
}
static inline Value *grad_dy(const GradCtx *c, int k) { return k < c->n->n_out ? c->dy[k] : NULL; }
/* MPR_E_INTERNAL unless the shape of v is constant. */
mpr_status mpri_op_grad_const_shape(GradCtx *c, const Value *v);
/* Integer contents of a constant input (axes, indices); MPR_E_NOT_DIFFERENTIABLE when it is
 * computed at run time. */
mpr_status mpri_op_grad_ints(GradCtx *c, int k, int64_t *n, const int64_t **v);
/* The builder's sticky error as the result of a gradient rule. */
mpr_status mpri_op_grad_done(GradCtx *c);
/* v with another shape of as many elements. */
Value *mpri_op_grad_reshape(GradCtx *c, Value *v, int rank, const int64_t *dims);
Value *mpri_op_grad_reshape_like(GradCtx *c, Value *v, const Value *like);
Value *mpri_op_grad_expand_like(GradCtx *c, Value *v, const Value *like);
Value *mpri_op_grad_zeros_like(GradCtx *c, const Value *like);
/* What a rule has built is NULL after a failure: these functions pass it on, a dereference would
 * not. */
/* Scalar of the type of `like`. */
Value *mpri_op_grad_scalar(GradCtx *c, const Value *like, double v);
/* Zero scalar of the type of v. */
Value *mpri_op_grad_zero(GradCtx *c, const Value *v);
/* a op b on values, sticky errors. */
Value *mpri_op_grad_binary(GradCtx *c, int op, Value *a, Value *b);
Value *mpri_op_grad_unary(GradCtx *c, int op, Value *a);
Value *mpri_op_grad_scale(GradCtx *c, Value *a, double factor); /* a * factor */
/* x in the type that gradients of several operations compute in: f32 for 16 bits. The casts are
 * absorbed by the kernels, so the result is rounded once. */
Value *mpri_op_grad_wide(GradCtx *c, Value *x);
static inline Value *grad_times(GradCtx *c, Value *a, Value *b)
{
    return mpri_op_grad_binary(c, OP_Mul, a, b);
}
static inline Value *grad_over(GradCtx *c, Value *a, Value *b)
{
    return mpri_op_grad_binary(c, OP_Div, a, b);
}
static inline Value *grad_negate(GradCtx *c, Value *a) { return mpri_op_grad_unary(c, OP_Neg, a); }
/* a where the condition holds, else b. */
static inline Value *grad_select(GradCtx *c, Value *condition, Value *a, Value *b)
{
    return mpri_build3(c->b, OP_Where, NULL, condition, a, b);
}
/* Reduce over axes (ReduceSum, ReduceProd …), keeping dims. */
Value *mpri_op_grad_reduce(GradCtx *c, int op, Value *v, int n, const int64_t *axes);
/* Sum of v (N, C, ...) over all dims but C, shaped as `like` of C elements. */
Value *mpri_op_grad_channel_sum(GradCtx *c, Value *v, const Value *like);
/* Output `index` of the forward node, added to it when it was not wanted before. The array dy of
 * the context keeps its length: read cotangents first. */
mpr_status mpri_op_grad_output(GradCtx *c, int index, Value **out);
/* Cotangents other than that of output 0 are not supported: MPR_E_NOT_DIFFERENTIABLE. */
mpr_status mpri_op_grad_only_first(GradCtx *c);

#endif
