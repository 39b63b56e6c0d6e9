/* The graph: nodes in execution order, values with types and shapes, slots with a memory of their
 * own.
 *
 * Every Node and Value lives in the graph's arena; removing one only unlinks it. Nodes form a
 * doubly linked list that is always a valid execution order (definition before use): passes insert
 * at a point, as in an IR builder, and need no re-sort. Uses are kept exactly, in intrusive lists.
 *
 * Kinds of values: output of a node; graph input (fed per call); constant (data known, not
 * written); slot (persistent storage: a parameter, a gradient, a moment, the loss scale, a
 * counter).
 *
 * Ids of nodes and values are dense and never reused within a graph: analyses are side arrays. */
#ifndef MPRI_IR_GRAPH_H
#define MPRI_IR_GRAPH_H

#include "runtime/base/arena.h"
#include "runtime/base/intern.h"
#include "runtime/ir/opdef.h"

typedef enum ValueKind { VAL_NODE, VAL_INPUT, VAL_CONST, VAL_SLOT } ValueKind;

/* SLOT_COPY: a parameter in 16 bits beside its master, written whenever the master is. */
typedef enum SlotClass { SLOT_PARAM, SLOT_GRAD, SLOT_MOMENT, SLOT_COPY, SLOT_STATE } SlotClass;

typedef enum Segment { SEG_FORWARD, SEG_BACKWARD, SEG_UPDATE } Segment;

typedef struct Use { /* one input position of one node */
    Node *user;
    int index;
    struct Use *next, *prev; /* among the uses of the same value */
} Use;

struct Value {
    int id;
    const char *name; /* interned; the ONNX name where there is one; unique within the graph */
    DType dtype;
    Shape shape;
    ValueKind kind;
    Node *def;        /* VAL_NODE: producer, and which output */
    int def_index;
    Use *uses;        /* list in no particular order; output uses are not in it */
    int n_uses;
    int n_outputs;    /* how many graph outputs are this value */
    const void *data; /* VAL_CONST: contiguous row-major bytes (may be mapped from the file; may be
                         unaligned only if the loader says so: it never does) */
    int slot;         /* VAL_SLOT: index into g->slots */
    int param;        /* index into g->params when this value is (a view of the storage of) a
                         parameter candidate, else -1 */
    const Dim *content; /* small integer tensors: symbolic contents, element by element, or NULL */
    bool declared;    /* dtype/shape come from a declaration of the file (opaque outputs) */
};

enum { MPRI_ORIGIN_BODY = -2 }; /* in an Origin: a node of a body that importing has expanded */

typedef struct Origin { /* nodes of the source model this one stands for: indices into its list */
    const int *v;
    int n;
} Origin;

struct Node {
    int id;
    const OpDef *op;
    const char *name;      /* interned; never NULL; may be "" */
    Value **in;            /* NULL = absent optional input */
    Use *use;              /* parallel to in */
    int n_in;
    Value **out;           /* NULL = output not wanted */
    int n_out;
    void *params;          /* parameter struct of op->params_size bytes, or NULL */
    Origin origin;
    Segment segment;
    const char *why;       /* reason of its precision or existence, for --precision; or NULL */
    Node *next, *prev;
    const void *opaque;    /* OPF_OPAQUE: the importer's NodeProto */
    const char *opaque_type; /* OPF_OPAQUE: "domain:OpType" for messages */
    bool linked;
    bool rounds;           /* a Cast: what it reads is computed in f32 only because the file's opset
                              knows the operator in no 16-bit type */
};

typedef struct GraphInput { Value *value; } GraphInput;
typedef struct GraphOutput { const char *name; Value *value; } GraphOutput;

typedef struct Slot {
    const char *name;
    SlotClass cls;
    DType dtype;
    Shape shape;          /* constant */
    int param;            /* parameter it belongs to, or -1 */
    const void *init;     /* initial bytes (dtype below), NULL = zero */
    DType init_dtype;
    Value *value;         /* the VAL_SLOT value of this graph */
} Slot;

/* One float tensor of the file that training might change. Made by the importer. */
typedef struct Param {
    const char *name;        /* initializer name: the key in files */
    const char *public_name; /* what people call it */
    Value *value;            /* VAL_CONST at import; VAL_SLOT once training made a slot of it */
    DType file_dtype;
    bool trained;            /* decided by the parameter rule, --freeze, --train-only */
    bool buffer;             /* not trained although a gradient reaches it, unless named */
    const char *reason;      /* why trained, or why not; static or interned */
    int n_copies;            /* further initializers that hold the same tensor (ties) */
    const struct ParamCopy *copies;
    const char *identity_of; /* merged by value: this name is an Identity output of that one */
} Param;

typedef struct ParamCopy { /* a further storage place of a tied parameter */
    const char *name;
    bool transposed;
} ParamCopy;

struct Graph {
    Arena *arena;
    Intern *names;
    SymTab *sym;
    const OpTable *ops;
    const char *name;
    Node *first, *last;
    int n_nodes;                 /* linked nodes */
    int next_node_id, next_value_id;
    Value **values; int n_values, cap_values;   /* by id; detached ones stay */
    GraphInput *inputs; int n_inputs, cap_inputs;
    GraphOutput *outputs; int n_outputs, cap_outputs;
    Slot *slots; int n_slots, cap_slots;
    Param *params; int n_params, cap_params;
    struct NameTable *by_name;   /* private to graph.c */
};

/* ---- life ---- */
Graph *mpri_graph_create(Arena *arena, Intern *names, const OpTable *ops); /* NULL: no memory */
/* Deep copy into another arena: names and constant data are shared, everything else is copied.
 * Value and node ids are preserved. */
Graph *mpri_graph_clone(const Graph *g, Arena *arena);
/* The Arena struct that owns g moved to another address. */
void mpri_graph_move(Graph *g, Arena *arena);

/* ---- values ----
 * Names are unique: one that is taken, and NULL, get a fresh name instead. A slot keeps its own
 * name as its key in the store. NULL means out of memory. A NULL shape is rank 0. */
Value *mpri_value_input(Graph *g, const char *name, DType t, const Shape *shape);
Value *mpri_value_const(Graph *g, const char *name, DType t, const Shape *shape, const void *data);
/* data is copied into the arena */
Value *mpri_value_const_copy(Graph *g, const char *name, DType t, const Shape *shape,
                             const void *data);
Value *mpri_value_slot(Graph *g, const char *name, SlotClass cls, DType t, const Shape *shape,
                       int param, const void *init, DType init_dtype);
/* A name that no value of the graph has: prefix, or prefix_1, prefix_2 … */
const char *mpri_graph_fresh_name(Graph *g, const char *prefix);
Value *mpri_graph_find_value(const Graph *g, const char *name); /* NULL when there is none */
mpr_status mpri_graph_add_output(Graph *g, const char *name, Value *v, Err *err);
int mpri_graph_param_of(const Graph *g, const char *initializer_name); /* -1 when none */
Param *mpri_graph_add_param(Graph *g); /* zeroed row at index n_params-1, or NULL */

/* ---- nodes ---- */
/* Creates a node and its outputs (n_out fresh values with op-derived names), unlinked types; links
 * it before `before`, or at the end when NULL. params is copied (NULL = defaults from the attribute
 * rows). Inputs may be NULL (absent). No inference is run. NULL when out of memory. */
Node *mpri_node_create(Graph *g, Node *before, const OpDef *op, const char *name,
                       const void *params, int n_in, Value *const *in, int n_out);
void mpri_node_set_input(Node *n, int index, Value *v);
mpr_status mpri_node_add_input(Graph *g, Node *n, Value *v, Err *err);
/* One more output: the first place that is NULL, or a new one at the end. The new value has no type
 * yet; run mpri_infer_node. Gradient rules use it to ask a forward node for its statistics. */
mpr_status mpri_node_add_output(Graph *g, Node *n, Err *err);
/* Output i is not wanted any more; it has no uses. */
void mpri_node_drop_output(Graph *g, Node *n, int i);
void mpri_node_move_before(Graph *g, Node *n, Node *before); /* NULL = to the end */
void mpri_node_remove(Graph *g, Node *n);  /* outputs must have no uses */
/* Every use of `from` (nodes and graph outputs) becomes a use of `to`. */
void mpri_value_replace(Graph *g, Value *from, Value *to);
void mpri_node_set_origin(Graph *g, Node *n, const Node *from); /* append from's origins */
/* Set a value's name (must be unused or equal to its own). */
void mpri_value_rename(Graph *g, Value *v, const char *name);
/* Remove nodes without effect whose outputs are unused, repeatedly. Returns how many. */
int mpri_graph_sweep(Graph *g);

static inline bool mpri_is(const Node *n, int op_id) { return n && n->op->id == op_id; }
static inline Node *mpri_def(const Value *v) { return v && v->kind == VAL_NODE ? v->def : NULL; }

/* ---- inference ---- */
/* Run the shape rule of one node; adds node name and operator to the error. */
mpr_status mpri_infer_node(Graph *g, Node *n, Err *err);
mpr_status mpri_infer_graph(Graph *g, Err *err); /* all nodes in order */
/* Called by shape rules: sets output i (ignored when that output is absent). A NULL shape means
 * unknown rank. Declared shapes of the value are unified: known dims win, a contradiction of two
 * constants is MPR_E_SHAPE. */
mpr_status mpri_infer_set(InferCtx *c, int i, DType t, const Shape *shape);
/* Numpy broadcasting of two shapes (unknown ranks give unknown). MPR_E_SHAPE with both shapes. */
mpr_status mpri_infer_broadcast(InferCtx *c, const Shape *a, const Shape *b, Shape *out);
/* Contents of a small integer input as Dims (from data or content); NULL when not known. n:
 * elements */
const Dim *mpri_infer_content(InferCtx *c, int input, int64_t *n);
void mpri_infer_set_content(InferCtx *c, int output, int64_t n, const Dim *content);
/* Normalise an axis (negative counts from the end); MPR_E_SHAPE when outside [-rank, rank). */
mpr_status mpri_infer_axis(InferCtx *c, int64_t axis, int rank, int *out);

/* ---- builder ---- */
/* Inserts before a node and infers at once. Errors are sticky: after one, every call returns NULL
 * and b->failed keeps the status; NULL inputs to required positions propagate as NULL without a new
 * error. */
struct Builder {
    Graph *g;
    Node *before;        /* insertion point, NULL = end */
    Segment segment;
    const char *scope;   /* name prefix of new nodes, such as "grad:/layer/MatMul" */
    const Node *origin;  /* origins are copied from it, may be NULL */
    mpr_status failed;
    Err *err;
};
/* op by id; returns output 0; out (may be NULL) receives all n_out outputs. */
Value *mpri_build(Builder *b, int op_id, const void *params, int n_in, Value *const *in, int n_out,
                  Value **out);
Value *mpri_build1(Builder *b, int op_id, const void *params, Value *x);
Value *mpri_build2(Builder *b, int op_id, const void *params, Value *x, Value *y);
Value *mpri_build3(Builder *b, int op_id, const void *params, Value *x, Value *y, Value *z);
/* Scalar (rank 0) constant of type t; equal ones are shared within the graph. */
Value *mpri_build_scalar(Builder *b, DType t, double v);
Value *mpri_build_i64s(Builder *b, int64_t n, const int64_t *v); /* 1-D int64 constant */
Value *mpri_build_cast(Builder *b, Value *x, DType t);           /* x itself when it has the type */

/* ---- checks and text ---- */
/* SSA, order, use lists, arity, attribute ranges, types present, declared outputs. MPR_E_INTERNAL
 * names the pass that broke it (`after`). */
mpr_status mpri_graph_validate(const Graph *g, const char *after, Err *err);

#endif
