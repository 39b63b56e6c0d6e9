/* A model file as a tree of protobuf messages in which names and types can be changed: what is not
 * understood stays as the bytes of the file. All of it lives in the arena of one conversion, and
 * payloads that did not change point into the mapped file. */
#ifndef MPRI_CONVERT_TREE_H
#define MPRI_CONVERT_TREE_H

#include <setjmp.h>

#include "importer/source.h"
#include "runtime/base/arena.h"

typedef enum TreeKind {
    TREE_RAW, TREE_MODEL, TREE_GRAPH, TREE_FUNCTION, TREE_NODE, TREE_ATTRIBUTE, TREE_TENSOR,
    TREE_SPARSE, TREE_INFO, TREE_TYPE, TREE_TENSOR_TYPE, TREE_ENTRY
} TreeKind;

typedef struct Tree Tree;
typedef struct TreeField {
    uint32_t number;
    int type;              /* of the wire */
    uint64_t value;        /* varint and fixed forms */
    const uint8_t *bytes;  /* payload of a length-delimited field without a tree */
    size_t len;
    const PieceMaker *maker; /* not NULL: makes the payload, and bytes is NULL */
    Tree *tree;
} TreeField;

struct Tree {
    TreeField *f;
    int n, cap;
    size_t size; /* of the payload, once measured */
    bool tensor; /* a TensorProto */
    bool outside; /* … whose contents lay in a data file before they were converted */
};

/* Memory of a conversion. Running out of it jumps to `full`, so that no other line has to ask. */
typedef struct Pool {
    Arena *arena;
    jmp_buf full;
} Pool;

void *mpri_pool_take(Pool *p, size_t size);
char *mpri_pool_text(Pool *p, const void *text, size_t n); /* with a NUL */
char *mpri_pool_print(Pool *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for one more element behind n of them. */
void mpri_pool_grow(Pool *p, void *array, int n, int *cap, size_t size);

/* The bytes have passed the importer's pre-scan. */
Tree *mpri_tree_parse(Pool *p, TreeKind kind, const uint8_t *bytes, size_t len);
Tree *mpri_tree_new(Pool *p);
Tree *mpri_tree_copy(Pool *p, const Tree *t); /* deep in trees, shallow in payloads */
TreeField *mpri_tree_find(const Tree *t, uint32_t number); /* last one, as parsers take it */
TreeField *mpri_tree_add(Pool *p, Tree *t, uint32_t number, int type);
TreeField *mpri_tree_insert(Pool *p, Tree *t, int at, uint32_t number, int type);
void mpri_tree_remove(Tree *t, int at);
void mpri_tree_put_text(Pool *p, Tree *t, uint32_t number, const char *text);
void mpri_tree_put_int(Pool *p, Tree *t, uint32_t number, int64_t value);
Tree *mpri_tree_put_tree(Pool *p, Tree *t, uint32_t number);
const char *mpri_tree_text(Pool *p, const Tree *t, uint32_t number); /* "" when absent */
int64_t mpri_tree_int(const Tree *t, uint32_t number, int64_t absent);
bool mpri_field_is(const TreeField *f, const char *text);
/* The message as runs of bytes. */
Piece *mpri_tree_pieces(Pool *p, Tree *t, int *n);
void mpri_pieces_copy(const Piece *pieces, int n, uint8_t *to);
/* The message as one run, in the pool. */
void *mpri_tree_image(Pool *p, Tree *t, size_t *size);

#endif
