/* A model as the painter sees it: scopes, nodes, values with their types, and units.
 *
 * A unit is what gets one precision: a node together with one of its type variables. Units that
 * ONNX forces to one type are joined. Values have no precision of their own; a Cast fits a value to
 * the port that reads it. Everything lives in the pool of one conversion. */
#ifndef MPRI_CONVERT_MIX_H
#define MPRI_CONVERT_MIX_H

#include "convert/ports.h"
#include "convert/tree.h"
#include "runtime/base/dtype.h"
#include "runtime/base/hash.h"

typedef enum MixWrap { WRAP_TENSOR, WRAP_SEQUENCE, WRAP_OPTIONAL, WRAP_OTHER } MixWrap;
typedef struct MixType { DType elem; MixWrap wrap; } MixType; /* elem NONE: unknown */

/* X(constant, word of the report) */
#define MIX_REASONS(X)                                                                             \
    X(WHY_NONE, "") X(WHY_ALLOW, "allow-list") X(WHY_BETWEEN, "allow-between")                      \
    X(WHY_SPREAD, "allow-spread") X(WHY_JOINED, "joined") X(WHY_NAME, "user-name")                  \
    X(WHY_OP, "user-op") X(WHY_DENY, "deny-list") X(WHY_FROM, "deny-from")                          \
    X(WHY_UNLISTED, "unlisted") X(WHY_TABLE, "type-table") X(WHY_FIXED, "fixed-port")               \
    X(WHY_UNKNOWN, "type-unknown") X(WHY_FUNCTION, "function-body") X(WHY_CUSTOM, "custom-domain")  \
    X(WHY_FLOW, "control-flow") X(WHY_RANGE_INIT, "range-init") X(WHY_RANGE_ACT, "range-act")       \
    X(WHY_REDUCTION, "reduction") X(WHY_EPS, "eps") X(WHY_MASK, "mask")                             \
    X(WHY_VARIANCE, "variance") X(WHY_LOSS, "loss") X(WHY_WEIGHT, "weight-side")                    \
    X(WHY_SHAPE, "shape-path") X(WHY_FAR, "not-adjacent") X(WHY_IO, "graph-io")                     \
    X(WHY_ISLAND, "island") X(WHY_AUTO, "auto")
typedef enum MixReason {
#define X(constant, word) constant,
    MIX_REASONS(X)
#undef X
    N_REASONS
} MixReason;

typedef enum MixList { LIST_CLEAR, LIST_INFER, LIST_ALLOW, LIST_DENY } MixList;

typedef struct MixScope MixScope;
typedef struct MixNode MixNode;
typedef struct MixValue MixValue;
typedef struct MixUnit MixUnit;

typedef struct MixUse {   /* one reading of a value */
    MixNode *node;        /* NULL: output `at` of the scope */
    MixScope *scope;
    int at;
    MixUnit *unit;        /* NULL: the value's type in the file */
    struct MixUse *next;
} MixUse;

typedef struct MixAs {    /* a version of a value in another type */
    DType type;
    MixScope *scope;      /* seen there and below */
    const char *name;
    struct RewriteCast *cast; /* NULL: a copy */
    struct MixAs *next;
} MixAs;

typedef struct MixRange { /* of the numbers of a constant */
    bool known;
    int64_t elements, nonzero, tiny, over; /* that become zero, that become infinite */
    double least, most;   /* absolute, of those that are neither 0 nor infinite */
    bool infinite;
} MixRange;

struct MixValue {
    const char *name;
    MixScope *scope;
    int order;            /* in the file */
    MixType type;         /* in the file */
    MixNode *maker;       /* NULL: an input or initializer of its scope */
    MixUnit *unit;        /* that gives it its type; NULL: none, it keeps the file's */
    DType now;            /* elem after the conversion, under its own or its fresh name */
    DType held;           /* elem under its own name */
    bool input, initializer, sparse, pinned, output; /* pinned: must not be converted in place */
    Tree *tensor;         /* contents of an initializer or Constant */
    MixRange range;
    bool negative;        /* a constant whose first element is below zero */
    bool saturate;        /* beyond the range: the largest finite values instead of infinite ones */
    int seen_rank;        /* measured shape; 0 with `seen` false: none */
    int64_t seen_dims[8];
    bool seen;
    MixUse *uses, *last_use;
    const char *fresh;    /* name that its producer writes instead */
    MixAs *as;
    const Tree *info;     /* ValueInfoProto that declares it, or NULL */
    const char *known_as; /* key of the hash */
    bool lost;
    UT_hash_handle hh;
};

struct MixUnit {
    MixNode *node;
    char var[8];          /* letter of ports.def, or what part of a body it is */
    const char *name;     /* for people: what ONNX calls the variable */
    int number;           /* in the file */
    MixType was;
    DType is;
    MixUnit *joined;      /* towards the one that stands for all */
    MixList list;
    bool legal, pinned;
    bool asked, forced, excluded; /* by the user */
    bool follows;         /* of a Cast of the model, see casts.h: pinned, and yet */
    MixReason pin;        /* why it is pinned, or what put it on its list */
    const char *detail;   /* numbers for people */
    MixReason why;
    MixUnit *from;        /* that made it so */
    MixUnit *blocked;     /* of those joined with it, the one that is pinned */
    MixUnit *lister;      /* … the one whose list counts */
    MixUnit *source;      /* low one that leads here */
    MixUnit *same;        /* next one of those that are joined */
    MixUnit **behind, **before; int n_behind, cap_behind, n_before, cap_before;
};

struct MixNode {
    MixScope *scope;
    Tree *tree;
    int index;            /* among the nodes of its scope */
    int number;           /* among all */
    const char *op, *domain, *name, *path;
    const char **in_name, **out_name;
    MixValue **in, **out;
    int n_in, n_out;
    MixUnit **in_unit, **out_unit;
    MixScope **bodies;
    int n_bodies;
    const PortsRow *row;
    bool call;            /* of a function of the model */
    MixScope *function;   /* … whose body, as this call has it; NULL: it is not looked into */
    bool any;             /* a Cast that reads whatever its input becomes */
    MixUnit **units;
    int n_units, cap_units;
};

typedef struct MixName MixName;

/* A graph, or the body of a function for one call: then `graph` is a copy of the function, for every
 * call may get other types. Nothing outside of it is seen there. */
struct MixScope {
    Tree *graph;
    MixScope *outer;
    MixNode *owner;
    Tree *original;       /* the function; NULL: a graph */
    MixScope *home;       /* the function around, or it itself; NULL: none */
    MixName *names;       /* of a function: every name in use there */
    const char *attribute, *path;
    int64_t opset;        /* of ai.onnx */
    int number;           /* among all */
    int id;               /* among those outside of functions, -1 inside */
    uint32_t node_field, info_field; /* of `graph` */
    MixNode **nodes;
    int n_nodes;
    MixValue *values;     /* hash */
    MixValue **inputs, **outputs;
    MixUse **output_uses;
    int n_inputs, n_outputs;
};

struct MixName {
    const char *name;
    Tree *function; /* of that name */
    bool lost;
    UT_hash_handle hh;
};

typedef struct Mix {
    Pool *pool;
    Tree *model;
    int64_t opset, ir_version;
    Source *source;       /* for external data */
    MixScope *top;
    MixScope **scopes; int n_scopes, cap_scopes, n_graphs;
    MixNode **nodes; int n_nodes, cap_nodes;      /* of all scopes, in file order */
    MixValue **values; int n_values, cap_values;
    MixUnit **units; int n_units, cap_units;
    MixName *names;       /* every name in use */
    MixName *functions;   /* "domain:name:overload", and "domain:name" */
    int depth, calls;     /* of functions, while types are solved */
    DType to;
    bool widen;           /* from 16 bits to float32 */
    bool master;          /* initializers are master weights */
} Mix;

/* Scopes and types of the tree. to FLOAT32: units are those in 16 bits. */
void mpri_mix_read(Mix *m);
void mpri_mix_units(Mix *m);       /* units, joined; pinned where the type cannot change */
MixValue *mpri_mix_find(const MixScope *s, const char *name); /* here or further out */
/* AttributeProto or NULL. In a function a reference gives what the call says. */
const Tree *mpri_mix_attribute(const MixNode *n, const char *name);
int64_t mpri_mix_attribute_int(const MixNode *n, const char *name, int64_t absent);
const char *mpri_mix_fresh(Mix *m, const char *base);
const char *mpri_mix_fresh_function(Mix *m, const char *domain, const char *base);
const char *mpri_mix_fresh_in(Mix *m, const MixScope *s, const char *base); /* of a function */
MixUnit *mpri_unit_root(MixUnit *u);
void mpri_unit_pin(MixUnit *u, MixReason why); /* the first pin gives the reason */
const char *mpri_reason_text(MixReason r);
/* What a value is outside of the functions that it was given to. */
MixValue *mpri_mix_given(MixValue *v);
/* Elements of a declared or stored shape; -1: not known. */
int64_t mpri_mix_elements(const Mix *m, const MixValue *v);
/* Bytes of the tensors of a message that lie in data files. */
size_t mpri_mix_outside(const Tree *t);
/* Product of the integers of a repeated field, such as dims. */
int64_t mpri_mix_product(const Tree *t, uint32_t number);
/* Of a stored or declared shape; -1: not known. */
int mpri_mix_rank(const MixValue *v);
/* Dim `axis` of a stored or declared shape, negative from the end; -1: not known. */
int64_t mpri_mix_dim(const MixValue *v, int axis);
/* The first reason why the types are not those of ONNX, or NULL. */
const char *mpri_mix_fault(Mix *m, const MixNode **at);
static inline bool mpri_mix_castable(DType t)
{
    return t == MPR_FLOAT32 || t == MPR_FLOAT16 || t == MPR_BFLOAT16;
}

/* ---- contents of constants ---- */
typedef struct MixTensor {
    DType type;       /* of the elements */
    int64_t n;
    const void *data; /* NULL when there is no element */
    DType stored;     /* as data holds them; another type than theirs when an earlier step has
                         converted the tensor */
    bool saturate;    /* in that step */
} MixTensor;
/* False when the contents cannot be had. */
bool mpri_mix_tensor(Mix *m, const Tree *t, MixTensor *out);
void mpri_mix_ranges(Mix *m);
double mpri_mix_element(const MixTensor *t, int64_t i);
/* The tensor in another type, inline. The contents of large ones are made when they are written. */
void mpri_mix_store(Mix *m, Tree *t, DType type, bool saturate);

#endif
