/* What the graph needs to know of an operator: OpDef is its whole meaning, in one const struct.
 *
 * The definitions stand in runtime/op/<family>.c, one per row of runtime/op/ops.def. This header is
 * only the interface, so that the graph can print, parse, check and build nodes generically. */
#ifndef MPRI_IR_OPDEF_H
#define MPRI_IR_OPDEF_H

#include <stdbool.h>
#include <stdint.h>
#include "runtime/base/dtype.h"
#include "runtime/base/err.h"
#include "runtime/ir/dim.h"

typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Value Value;
typedef struct Builder Builder;

/* ---- attributes: one C struct per node (runtime/op/params.h), described by rows ---- */

typedef struct Ints {  /* a list of integers; v is in the graph's arena or static */
    int64_t n;
    const int64_t *v;
} Ints;

typedef struct Floats {
    int64_t n;
    const float *v;
} Floats;

typedef struct TensorAttr { /* a constant tensor as attribute value */
    DType dtype;
    Shape shape;
    const void *data;
} TensorAttr;

typedef enum AttrKind {
    ATTR_INT,    /* int64_t */
    ATTR_FLOAT,  /* float */
    ATTR_STRING, /* const char *, interned */
    ATTR_INTS,   /* Ints */
    ATTR_FLOATS, /* Floats */
    ATTR_TENSOR, /* TensorAttr */
    ATTR_DTYPE,  /* int64_t holding an mpr_dtype; an ONNX int attribute */
} AttrKind;

typedef struct AttrRow {
    const char *name;
    AttrKind kind;
    uint16_t offset;    /* into the parameter struct */
    bool required;
    bool internal;      /* not an ONNX attribute: set by passes, printed in the text form only */
    int64_t def_int;    /* defaults; zero / NULL / empty otherwise */
    float def_float;
    const char *def_string;
    const char *choices; /* for strings: "none|tanh"; NULL = any */
    int64_t min_int, max_int; /* checked when min_int < max_int */
} AttrRow;

/* ---- type and shape rule ---- */

/* The rule reads the node's inputs and attributes and sets dtype and shape of every output
 * (mpri_infer_set). Optional inputs are NULL. Shapes may have unknown rank or symbolic dims: a rule
 * must then set what it can and leave the rest unknown. Contradictions are MPR_E_TYPE / MPR_E_SHAPE
 * with both numbers; the caller adds node name and operator. */
typedef struct InferCtx {
    Graph *g;
    Node *n;
    SymTab *sym;
    Err *err;
} InferCtx;
typedef mpr_status (*InferFn)(InferCtx *c);

/* ---- gradient ---- */

/* dy[i] is the cotangent of output i, NULL when none flows. need[k] says whether the cotangent of
 * input k is wanted. The rule sets dx[k] (may leave NULL = zero) using the builder only. A rule
 * need not sum over broadcast dims, cast to the input's type, or add up several uses: the autodiff
 * pass does. dy[i] has the shape and dtype of output i. */
typedef struct GradCtx {
    Builder *b;
    Node *n;
    Value *const *dy;
    const bool *need;
    Value **dx;
    Err *err;
} GradCtx;
typedef mpr_status (*GradFn)(GradCtx *c);

typedef enum GradState {
    GRAD_FORGOTTEN = 0, /* a test fails */
    GRAD_FUNCTION,
    GRAD_ZERO,          /* piecewise constant or integer output: no cotangent flows */
    GRAD_NONE,          /* not differentiable; OpDef.grad_reason says why */
} GradState;

/* ---- autocast class, spec of the two torch lists ---- */
typedef enum CastClass {
    CAST_FORGOTTEN = 0,
    CAST_LOW,     /* allow list: eligible inputs and output in the 16-bit type */
    CAST_FP32,    /* deny list: eligible inputs and output f32 */
    CAST_WIDEST,  /* promote: one f32 input lifts all */
    CAST_KEEP,    /* type of the first eligible input */
    CAST_MOVE,    /* moves data only: type of input 0, never a reason for a cast */
    CAST_FIXED,   /* types are as declared */
} CastClass;

enum { /* OpDef.flags */
    OPF_ELEMENTWISE = 1 << 0, /* out[i] depends on in[i] only, numpy broadcasting */
    OPF_VIEW = 1 << 1,        /* output 0 is the bytes of input 0, reshaped: no kernel runs */
    OPF_RANDOM = 1 << 2,
    OPF_EFFECT = 1 << 3,      /* writes a slot: never removed, nor reordered against it */
    OPF_INTERNAL = 1 << 4,    /* domain "mpr": made by passes, never in a file */
    OPF_COMMUTATIVE = 1 << 5,
    OPF_MIXED_IN = 1 << 6,    /* computes in f32 whatever the float types of its inputs: the
                                 kernel's load may absorb a cast of an input */
    OPF_MIXED_OUT = 1 << 7,   /* the same for the store of output 0 */
    OPF_OPAQUE = 1 << 8,      /* unknown operator: types from declarations */
    OPF_LOSS = 1 << 9,        /* a loss: deny on every profile, by itself */
};

typedef struct OpDef {
    int id;               /* OpId of runtime/op/ops.h */
    const char *name;     /* ONNX op_type, or the internal name */
    const char *domain;   /* "" for ai.onnx, "mpr" for internal ones */
    int since;            /* opset whose meaning this is (after adaptation) */
    const char *family;
    const char *help;     /* one line */
    int min_in, max_in;   /* max_in -1: variadic */
    int min_out, max_out; /* max_out -1: variadic */
    uint32_t optional_in; /* bit k: input k may be absent although k < min_in…max_in */
    const AttrRow *attrs; /* ends with a row whose name is NULL; NULL when there are none */
    size_t params_size;   /* bytes of the parameter struct */
    uint32_t flags;
    uint32_t inplace;     /* bit k: output 0 may take the buffer of input k when that dies here
                             and has the same element count and size */
    uint32_t writes;      /* OPF_EFFECT: bit k: the kernel writes slot input k; mpri_op_mask */
    uint32_t fixed_in;    /* bit k: autocast never casts input k (statistics, indices) */
    CastClass cast_cuda, cast_cpu; /* profiles torch-cuda and torch-cpu */
    InferFn infer;
    GradState grad_state;
    GradFn grad;
    const char *grad_reason;
    uint32_t nondiff_in;  /* bit k: no cotangent ever flows to input k (indices, shapes) */
} OpDef;

/* Fill the defaults of the rows into op->params_size bytes at p. */
void mpri_params_default(const OpDef *op, void *p);
/* Deep copy: lists and tensors go into the arena, strings into the names. False: out of memory. */
bool mpri_params_copy(const OpDef *op, void *dst, const void *src, Arena *arena, Intern *names);
/* Equal as attributes: numbers by bits, strings, lists and tensors by contents. */
bool mpri_params_equal(const OpDef *op, const void *a, const void *b);
const AttrRow *mpri_params_row(const OpDef *op, const char *name); /* NULL when there is none */
/* Is the number in the range of the row, the text one of its choices? Rows of other kinds allow everything. */
bool mpri_params_row_allows(const AttrRow *row, const void *field);
bool mpri_params_row_equal(const AttrRow *row, const void *a, const void *b);

/* Bit of an input in a mask of an OpDef: bit 31 stands for input 31 and every later one. */
static inline bool mpri_op_mask(uint32_t mask, int input)
{
    return mask >> (input < 31 ? input : 31) & 1;
}

/* Lookup by identity; given to the graph at creation so that ir does not depend on op. */
typedef struct OpTable {
    int count;
    const OpDef *const *defs; /* by id */
    const OpDef *(*find)(const char *domain, const char *name); /* NULL when unknown */
    const OpDef *opaque;
} OpTable;

#endif
