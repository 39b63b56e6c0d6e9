/* From an ONNX file to a Graph, and back: the original file patched.
 *
 * Way in: open and map; pre-scan the wire bytes (iterative, no allocation, limits); unpack filtered
 * spans with protobuf-c (no initializer data); check scopes, SSA, arity, attributes; adapt opsets
 * to the newest meaning; build the Graph with every unknown operator as an opaque node; find
 * parameters. Way out: edits at wire level on the original bytes, so everything that is not edited
 * is byte-exact. */
#ifndef MPRI_IMPORTER_H
#define MPRI_IMPORTER_H

#include "runtime/base/alloc.h"
#include "runtime/base/log.h"
#include "runtime/ir/graph.h"
#include "importer/source.h"

/* One number that decides control flow and is known only once shapes or inputs are. */
enum { FACT_VALUE = INT32_MIN };
typedef struct Fact {
    const char *name; /* a value, by its name after expansion */
    int axis;         /* FACT_VALUE: its one element; else a dim, negative from the end */
    int64_t value;
} Fact;

typedef struct ImportOptions {
    const Alloc *alloc;
    const Log *log;
    const mpr_limits *limits; /* NULL: defaults */
    const char *const *tie, *const *untie;
    const char *const *train_only, *const *freeze; /* patterns of names that are going to be asked
                          for: equal tensors of which only some are asked for are not tied */
    const void *image; /* not NULL: the model's bytes, instead of what the file at the path holds;
                          they outlive the ImportedModel. External data still lie beside the path */
    size_t image_size;
    const Fact *facts; int n_facts; /* answers to what an earlier import of the file left open */
    bool stale_types; /* declared types of inner values are not held against the inferred ones */
} ImportOptions;

typedef struct ImportedModel {
    Arena arena; /* model lifetime */
    Intern *names;
    Source *source; /* mapped file and spans */
    Graph *graph;   /* symbolic; canonical operators; opaque nodes allowed */
    char *path;
    const char *const *overridable;
    int n_overridable;           /* graph inputs that are also initializers: constants
                                    of the graph that a caller may replace by name */
    const Fact *open; int n_open; /* what If, Loop, Scan and sequences wait for; they are opaque nodes
                                     until an import knows it */
    struct ImportDetail *detail; /* private to the importer */
} ImportedModel;

mpr_status mpri_import_file(const char *path, const ImportOptions *o, ImportedModel **out,
                            Err *err);
void mpri_import_destroy(ImportedModel *m, const Alloc *alloc); /* NULL-safe */

/* Every operator that cannot be run on the way to an output, grouped by type with counts and the
 * first three node names: MPR_E_UNSUPPORTED_OP; MPR_OK when there is none. Before it, declared
 * shapes of the file that contradict its operators: MPR_E_SHAPE. Ask the imported graph, before any
 * pass. */
mpr_status mpri_import_check_supported(const Graph *g, Err *err);
/* The same for training, which quantised operators that can be run are refused for too. */
mpr_status mpri_import_check_trainable(const Graph *g, Err *err);

/* ---- export ---- */
typedef struct WeightPatch { /* new contents of one initializer, f32, in the initializer's own
                                layout */
    const char
        *name; /* initializer; or an Identity output that becomes an initializer of its own */
    const float *data;
    int64_t n;
} WeightPatch;
/* Writes path (temp file beside, fsync, rename). MPR_E_USAGE when path is the model itself (by
 * inode). */
mpr_status mpri_export_file(const ImportedModel *m, const char *path, const WeightPatch *w, int n,
                            const Alloc *alloc, Err *err);

/* An operator that importing turns into others. */
typedef struct ExpandedOp {
    const char *domain, *name;
    bool gradient; /* a cotangent passes through what it becomes */
    bool foreign;  /* no operator of ONNX, whatever its domain says */
    const char *note;
} ExpandedOp;
/* One after the other; false after the last. */
bool mpri_import_expanded(int i, ExpandedOp *op);

#endif
