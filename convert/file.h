/* The main graph of a model file as the converter sees it: nodes and values by their names in the
 * file, what they hold before and after the conversion, and the Casts that this takes.
 *
 * A value has three types. `before` is its type in the file. `meant` is the type in which training
 * under the profile sees it. `held` is what its name holds in the new file; it differs from `meant`
 * only where ONNX forces a node to run in float32, and then a Cast behind it does the rounding. */
#ifndef MPRI_CONVERT_FILE_H
#define MPRI_CONVERT_FILE_H

#include "convert/convert.h"

typedef struct Made { /* a node that the converter adds, behind the producer of its value */
    const char *from; /* Cast: what it reads; NULL: a Constant */
    const char *to;   /* what it writes */
    const char *name; /* of the node: that of the new value, which is one of the two */
    DType type;
    bool rounds;      /* Cast: it reads what is float32 only for want of a 16-bit form */
    const Value *constant;
    struct Made *next;
} Made;

typedef struct FileValue {
    const char *name;
    DType before, meant, held; /* NONE: no tensor, or of a type that is not known */
    int producer;              /* file node, -1: graph input or initializer */
    bool output;               /* a graph output: its name keeps its type */
    bool forced;               /* held in f32 because of what ONNX knows, not of the profile */
    const char *base;          /* name that the producer writes */
    const char *as[3];         /* name in f32, f16, bf16; NULL: not there yet */
    const char *rounded;       /* name of its f32 version that went through the low type */
    const char *saturated;     /* a low constant whose large elements are the largest finite ones */
    Made *first, *last;
} FileValue;

typedef struct FileNodeIO {
    const char *op_type, *domain, *name;
    const char **in;
    int n_in; /* "" = absent */
    const char **out;
    int n_out;
    bool bodies;     /* holds graphs that may read names from outside */
    bool alias;      /* Identity: passes its input through as it is held */
    DType compute;   /* type of its data as the profile means it; NONE: nothing is decided */
    DType runs;      /* type it runs in: compute, or f32 */
    bool rounds_in;  /* f32 although low was meant: its f32 inputs go through the low type first */
    bool forced;     /* f32 although low was meant, because of what ONNX knows */
    uint32_t own;    /* bit k: input k keeps its type */
    uint32_t wide;   /* bit k: input k is f32 although the low data is meant to include it */
    uint32_t saturate; /* bit k: constant input k is clamped, not rounded to infinity */
    const Value **constants; /* those constants, by input */
    const Node *by;  /* the canonical node that decides, or NULL */
    const char **reads; /* by input: the name it reads in the new file, once written */
} FileNodeIO;

typedef struct FileGraph {
    const ImportedModel *m;
    int64_t opset, ir_version;
    FileNodeIO *nodes;
    int n_nodes;
    int *order; /* of the nodes: producers before readers */
    FileValue *values;
    int n_values, cap_values;
    const Graph *decided; /* after autocast, where decisions were made */
    struct NameEntry *names; /* every name of the main graph and of the graphs inside it */
    Arena *arena;
} FileGraph;

/* Reads names and types. The graph of m has been inferred. Everything lives in the arena. */
mpr_status mpri_file_read(const ImportedModel *m, Arena *arena, FileGraph *f, Err *err);
FileValue *mpri_file_value(const FileGraph *f, const char *name); /* NULL: none, or "" */
/* base, or base_1, base_2 …: the first one that no graph of the file knows. It is known from then
 * on. */
mpr_status mpri_file_fresh(FileGraph *f, const char *base, const char **out, Err *err);

/* f32, f16 or bf16: what casts are made between; their order is that of FileValue.as. */
static inline bool mpri_file_castable(DType t)
{
    return t == MPR_FLOAT32 || mpri_dtype_is_low(t);
}
/* "f32", "f16", "bf16": end of a made name, "x__mpr_f16". */
const char *mpri_file_suffix(DType t);

#endif
