/* Inside of the importer: the file as it was read, before it is a Graph. Not included outside
 * importer/.
 *
 * Lifetimes: everything that the ImportedModel shows lives in its arena; unpacked messages live in
 * the proto arena, which is kept as long as the model because opaque nodes point into it; the
 * scratch arena dies with the call. Names are interned in the model's table, so they compare by
 * address. */
#ifndef MPRI_IMPORTER_MODEL_H
#define MPRI_IMPORTER_MODEL_H

#include "importer/importer.h"
#include "importer/onnx.pb-c.h"

typedef Onnx__NodeProto NodeProto;
typedef Onnx__AttributeProto AttributeProto;
typedef Onnx__GraphProto GraphProto;
typedef Onnx__TensorProto TensorProto;
typedef Onnx__ValueInfoProto ValueInfoProto;
typedef Onnx__TypeProto TypeProto;
typedef Onnx__FunctionProto FunctionProto;

typedef struct Opset {
    const char *domain; /* "" for ai.onnx */
    int64_t version;
} Opset;

typedef struct Opsets { /* one scope: the model, or a function body */
    const Opset *v;
    int n;
} Opsets;

typedef struct FileNode {
    NodeProto *p;       /* input, output and name strings are interned */
    const char *domain; /* "" for ai.onnx */
    const char *key;    /* interned "domain:OpType", or "OpType" in the default domain */
    const Opsets *opsets;
    int origin;       /* index in the main graph's node list of the file; -1: inlined, MPRI_ORIGIN_BODY */
    Span raw;         /* raw_data of its one large tensor attribute, left out of p; len 0: none */
    const char *path; /* of an inlined node: "call/F/" or "if/then/"; "" in the main graph */
    bool rounds;      /* becomes Node.rounds */
} FileNode;

/* One use of a merged-by-value tensor that becomes a tensor of its own. */
typedef struct MergedCopy {
    const char *name;   /* of the new initializer */
    const char *source; /* initializer that holds the value in the file */
    int identity;       /* file node index of the Identity that stood for it, or -1 */
    int reader, input;  /* else: file node index and input position of its reader */
    int cast;           /* file node index of the Cast that the reader sees it through, or -1 */
} MergedCopy;

typedef struct LiftedConstant { /* a float Constant of more than one element */
    const char *name;           /* its output */
    int node;                   /* file node index */
    DType dtype;
    int64_t elements;
    const void *data;
} LiftedConstant;

typedef struct ImportDetail { /* ImportedModel.detail */
    Arena proto;
    int64_t ir_version;
    MergedCopy *merged;
    int n_merged;
    LiftedConstant *constants;
    int n_constants;
} ImportDetail;

typedef struct Import {
    const Alloc *alloc;
    const Log *log;
    const ImportOptions *o;
    mpr_limits limits;
    ImportedModel *m;
    ImportDetail *d;
    Source *src;
    Intern *names;
    Arena scratch;
    ProtobufCAllocator pb; /* into the proto arena */
    bool budget_hit;       /* an allocation inside protobuf-c failed */
    Opsets opsets;
    FileNode *nodes;
    int n_nodes;
    ValueInfoProto **inputs;
    int n_inputs;
    ValueInfoProto **outputs;
    int n_outputs;
    ValueInfoProto **infos;
    int n_infos;
    Onnx__SparseTensorProto **sparse;
    int n_sparse;
    FunctionProto **functions;
    int n_functions;
    const char *graph_name;
    struct FoldedName *folded; /* names.c */
} Import;

/* load.c: unpack what the pre-scan accepted into the lists of im. */
mpr_status mpri_import_unpack(Import *im, Err *err);
/* Interns the names of a node in place and fills domain and key. */
mpr_status mpri_import_finish_node(Import *im, FileNode *n, Err *err);
/* Version of a domain in a scope, or 0 when it is not imported. */
int64_t mpri_opset_of(const Opsets *o, const char *domain);
/* "node 'x' (Op)" or "node 3 (Op)" for messages; one of the rotating buffers of mpri_err_name. */
const char *mpri_import_node_name(const FileNode *n);

/* attribute of a node by name, NULL when absent */
const AttributeProto *mpri_import_attr(const NodeProto *p, const char *name);

#endif
