/* Nodes and graphs on wire level: reading their names, and writing them again with some replaced
 * and everything else byte for byte. */
#ifndef MPRI_CONVERT_WIRE_GRAPH_H
#define MPRI_CONVERT_WIRE_GRAPH_H

#include "importer/source.h"
#include "importer/wire.h"

enum {
    MODEL_IR_VERSION = 1,
    MODEL_METADATA = 14,
    OPSET_DOMAIN = 1,
    OPSET_VERSION = 2,
    GRAPH_NODE = 1,
    GRAPH_INITIALIZER = 5,
    GRAPH_INPUT = 11,
    GRAPH_OUTPUT = 12,
    GRAPH_VALUE_INFO = 13,
    NODE_INPUT = 1,
    NODE_OUTPUT = 2,
    NODE_NAME = 3,
    NODE_OP_TYPE = 4,
    NODE_ATTRIBUTE = 5,
    NODE_DOMAIN = 7,
    NODE_METADATA = 9,
    ATTRIBUTE_NAME = 1,
    ATTRIBUTE_I = 3,
    ATTRIBUTE_T = 5,
    ATTRIBUTE_G = 6,
    ATTRIBUTE_GRAPHS = 11,
    ATTRIBUTE_TYPE = 20,
    INFO_NAME = 1,
    INFO_TYPE = 2,
    TYPE_TENSOR = 1,
    TENSOR_TYPE_ELEM = 1,
    TENSOR_DIMS = 1,
    TENSOR_DATA_TYPE = 2,
    TENSOR_NAME = 8,
    TENSOR_RAW = 9,
    ENTRY_KEY = 1,
    ENTRY_VALUE = 2,
};

typedef enum NameUse {
    NAME_INPUT,   /* of the node itself, in order */
    NAME_OUTPUT,  /* of the node itself, in order */
    NAME_READ,    /* in a graph: input of a node, output of the graph */
    NAME_WRITTEN, /* in a graph: output of a node, input or initializer of the graph */
    NAME_TYPED,   /* in a graph: value_info */
    NAME_OF_NODE,
} NameUse;

/* Called with every name, empty ones as well. The name to write instead, or NULL to keep it. */
typedef const char *(*NameFn)(void *ctx, NameUse use, const char *name, size_t len);

/* Fields of a NodeProto, graphs in its attributes included, without tag and length. out may be
 * NULL: only looks. */
void mpri_wire_node(const uint8_t *bytes, Span node, NameFn fn, void *ctx, Text *out);
/* Fields of a GraphProto, in the same way. */
void mpri_wire_graph(const uint8_t *bytes, Span graph, NameFn fn, void *ctx, Text *out);
/* A node with graphs in its attributes. */
bool mpri_wire_has_bodies(const uint8_t *bytes, Span node);
/* Element type in a ValueInfoProto of a tensor, and where it stands; 0 when it says none. */
int64_t mpri_wire_info_elem(const uint8_t *bytes, Span info, Span *where);
/* The value_info field with another element type. */
void mpri_wire_info(const uint8_t *bytes, Span info, int64_t elem, Text *out);
/* metadata_props entry `key` among the fields `number` of a message: its text, or NULL. */
const char *mpri_wire_entry(const uint8_t *bytes, Span message, uint32_t number, const char *key,
                            Arena *arena, SourceField *where);
void mpri_wire_put_entry(Text *out, uint32_t number, const char *key, const char *value,
                         size_t n);
/* Text of a span. NULL: out of memory. */
char *mpri_wire_text(const uint8_t *bytes, Span span, Arena *arena);
bool mpri_wire_is(const uint8_t *bytes, Span span, const char *text);

#endif
