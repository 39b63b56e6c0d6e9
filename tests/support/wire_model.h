/* ONNX models written field by field, for the tests of the importer: any shape of file, valid or
 * not. */
#ifndef MPRI_TESTS_WIRE_MODEL_H
#define MPRI_TESTS_WIRE_MODEL_H

#include "importer/importer.h"
#include "importer/wire.h"
#include "tests/support/support.h"

/* A message under construction; wm_end closes it into its parent as field `number`. */
typedef Text Wire;
Wire wm_begin(void);
void wm_end(Wire *parent, uint32_t number, Wire *message);
void wm_int(Wire *w, uint32_t number, int64_t v);
void wm_str(Wire *w, uint32_t number, const char *s);
void wm_f32(Wire *w, uint32_t number, float v);

/* Attributes of a node under construction. */
void wm_attr_int(Wire *node, const char *name, int64_t v);
void wm_attr_float(Wire *node, const char *name, float v);
void wm_attr_str(Wire *node, const char *name, const char *v);
void wm_attr_ints(Wire *node, const char *name, int n, const int64_t *v);

/* Opens a node: inputs and outputs are separated by blanks, "_" is the empty name. */
Wire wm_node(const char *op, const char *name, const char *inputs, const char *outputs);
#define GRAPH_ADD_NODE(graph, node) wm_end((graph), 1, (node))
/* Whole node without attributes. */
void wm_add_node(Wire *graph, const char *op, const char *name, const char *inputs,
                 const char *outputs);

/* Tensor with raw data; dims end with -1. */
Wire wm_tensor(const char *name, int type, const int64_t *dims, const void *raw, size_t n);
void wm_add_f32(Wire *graph, const char *name, const int64_t *dims, const float *v);
void wm_add_i64(Wire *graph, const char *name, const int64_t *dims, const int64_t *v);
/* Input (11), output (12) or value_info (13); dims below 0: symbol "d1" for -1, "d2" …; NULL: no
 * shape. End: -99. */
void wm_value(Wire *graph, uint32_t number, const char *name, int type, const int64_t *dims);

/* The model around a graph; consumes it. */
Wire wm_model(Wire *graph, int64_t ir, int64_t opset);
/* A folder of its own for the test, removed with what is in it at exit. */
const char *wm_folder(void);
/* Writes into that folder; returns the path, good until the eighth further call. */
const char *wm_write(const char *name, const void *bytes, size_t n);
const char *wm_write_model(const char *name, Wire *model); /* consumes it */
void *wm_read(const char *path, size_t *n);                /* malloc'ed */

/* Imports; NULL and err when it fails. */
ImportedModel *wm_import(const char *path, const ImportOptions *o, Err *err);
ImportedModel *wm_import_ok(const char *path);
/* Text form of the graph, malloc'ed. */
char *wm_graph_text(const ImportedModel *m);
const Param *wm_param(const ImportedModel *m,
                      const char *name); /* fails the test when there is none */

#endif
