/* Fields keep their order and their payloads: a tree that nothing has changed is written as it was
 * read. Lengths of the messages around a change are measured anew. */
#include "convert/tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "importer/wire.h"

/* ---- memory ---- */

void *mpri_pool_take(Pool *p, size_t size)
{
    void *m = mpri_arena_alloc(p->arena, size ? size : 1);
    if (!m) longjmp(p->full, 1);
    return m;
}

char *mpri_pool_text(Pool *p, const void *text, size_t n)
{
    char *s = mpri_pool_take(p, n + 1);
    if (n) memcpy(s, text, n);
    return s;
}

char *mpri_pool_print(Pool *p, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    char *s = mpri_pool_take(p, (size_t)(n < 0 ? 0 : n) + 1);
    if (n > 0) vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return s;
}

void mpri_pool_grow(Pool *p, void *array, int n, int *cap, size_t size)
{
    void **a = array;
    if (n < *cap) return;
    int more = *cap ? 2 * *cap : 8;
    void *b = mpri_pool_take(p, (size_t)more * size);
    if (n) memcpy(b, *a, (size_t)n * size);
    *a = b;
    *cap = more;
}

/* ---- reading ---- */

static TreeKind kind_of(TreeKind in, uint32_t number)
{
    static const struct { TreeKind in; uint32_t number; TreeKind is; } rows[] = {
        {TREE_MODEL, 7, TREE_GRAPH},     {TREE_MODEL, 8, TREE_ENTRY},
        {TREE_MODEL, 14, TREE_ENTRY},    {TREE_MODEL, 25, TREE_FUNCTION},
        {TREE_GRAPH, 1, TREE_NODE},      {TREE_GRAPH, 5, TREE_TENSOR},
        {TREE_GRAPH, 15, TREE_SPARSE},   {TREE_GRAPH, 11, TREE_INFO},
        {TREE_GRAPH, 12, TREE_INFO},     {TREE_GRAPH, 13, TREE_INFO},
        {TREE_FUNCTION, 7, TREE_NODE},   {TREE_FUNCTION, 9, TREE_ENTRY},
        {TREE_FUNCTION, 11, TREE_ATTRIBUTE}, {TREE_FUNCTION, 12, TREE_INFO},
        {TREE_NODE, 5, TREE_ATTRIBUTE},  {TREE_NODE, 9, TREE_ENTRY},
        {TREE_ATTRIBUTE, 5, TREE_TENSOR},
        {TREE_ATTRIBUTE, 6, TREE_GRAPH}, {TREE_ATTRIBUTE, 11, TREE_GRAPH},
        {TREE_ATTRIBUTE, 14, TREE_TYPE}, {TREE_ATTRIBUTE, 22, TREE_SPARSE},
        {TREE_TENSOR, 13, TREE_ENTRY},   {TREE_TENSOR, 16, TREE_ENTRY},
        {TREE_SPARSE, 1, TREE_TENSOR},   {TREE_SPARSE, 2, TREE_TENSOR},
        {TREE_INFO, 2, TREE_TYPE},       {TREE_TYPE, 1, TREE_TENSOR_TYPE},
        {TREE_TYPE, 4, TREE_TENSOR_TYPE}, {TREE_TYPE, 9, TREE_TENSOR_TYPE},
        {TREE_TYPE, 8, TREE_TENSOR_TYPE}, {TREE_TYPE, 5, TREE_RAW},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].in == in && rows[i].number == number) return rows[i].is;
    return TREE_RAW;
}

/* sequence and optional hold a TypeProto in their field 1, tensors a number */
static TreeKind inner_kind(TreeKind in, const WireField *w)
{
    if (in == TREE_TENSOR_TYPE) return w->number == 1 ? TREE_TYPE : TREE_RAW;
    return kind_of(in, w->number);
}

Tree *mpri_tree_parse(Pool *p, TreeKind kind, const uint8_t *bytes, size_t len)
{
    Tree *t = mpri_tree_new(p);
    WireField w;
    size_t pos = 0;
    t->tensor = kind == TREE_TENSOR;
    while (mpri_wire_next(bytes, len, &pos, &w) == WIRE_OK) {
        TreeField *f = mpri_tree_add(p, t, w.number, w.type);
        f->value = w.value;
        if (w.type != WIRE_BYTES) continue;
        f->bytes = bytes + w.body.at;
        f->len = w.body.len;
        TreeKind inner = inner_kind(kind, &w);
        if (inner != TREE_RAW) f->tree = mpri_tree_parse(p, inner, f->bytes, f->len);
    }
    return t;
}

Tree *mpri_tree_new(Pool *p)
{
    return mpri_pool_take(p, sizeof(Tree));
}

Tree *mpri_tree_copy(Pool *p, const Tree *t)
{
    Tree *c = mpri_tree_new(p);
    c->tensor = t->tensor;
    c->outside = t->outside;
    for (int i = 0; i < t->n; i++) {
        TreeField *f = mpri_tree_add(p, c, t->f[i].number, t->f[i].type);
        *f = t->f[i];
        if (f->tree) f->tree = mpri_tree_copy(p, f->tree);
    }
    return c;
}

TreeField *mpri_tree_find(const Tree *t, uint32_t number)
{
    for (int i = t ? t->n - 1 : -1; i >= 0; i--)
        if (t->f[i].number == number) return &t->f[i];
    return NULL;
}

const char *mpri_tree_text(Pool *p, const Tree *t, uint32_t number)
{
    TreeField *f = mpri_tree_find(t, number);
    return f && f->bytes ? mpri_pool_text(p, f->bytes, f->len) : "";
}

int64_t mpri_tree_int(const Tree *t, uint32_t number, int64_t absent)
{
    TreeField *f = mpri_tree_find(t, number);
    return f && f->type == WIRE_VARINT ? (int64_t)f->value : absent;
}

bool mpri_field_is(const TreeField *f, const char *text)
{
    return f->len == strlen(text) && (f->len == 0 || !memcmp(f->bytes, text, f->len));
}

/* ---- changing ---- */

TreeField *mpri_tree_insert(Pool *p, Tree *t, int at, uint32_t number, int type)
{
    mpri_pool_grow(p, &t->f, t->n, &t->cap, sizeof *t->f);
    memmove(t->f + at + 1, t->f + at, (size_t)(t->n - at) * sizeof *t->f);
    t->n++;
    t->f[at] = (TreeField){.number = number, .type = type};
    return &t->f[at];
}

TreeField *mpri_tree_add(Pool *p, Tree *t, uint32_t number, int type)
{
    return mpri_tree_insert(p, t, t->n, number, type);
}

void mpri_tree_remove(Tree *t, int at)
{
    t->n--;
    memmove(t->f + at, t->f + at + 1, (size_t)(t->n - at) * sizeof *t->f);
}

void mpri_tree_put_text(Pool *p, Tree *t, uint32_t number, const char *text)
{
    TreeField *f = mpri_tree_add(p, t, number, WIRE_BYTES);
    f->len = strlen(text);
    f->bytes = (const uint8_t *)mpri_pool_text(p, text, f->len);
}

void mpri_tree_put_int(Pool *p, Tree *t, uint32_t number, int64_t value)
{
    mpri_tree_add(p, t, number, WIRE_VARINT)->value = (uint64_t)value;
}

Tree *mpri_tree_put_tree(Pool *p, Tree *t, uint32_t number)
{
    Tree *inner = mpri_tree_new(p);
    mpri_tree_add(p, t, number, WIRE_BYTES)->tree = inner;
    return inner;
}

/* ---- writing ---- */

static int put_varint(uint8_t *to, uint64_t v)
{
    int n = 0;
    do {
        to[n] = (uint8_t)(v & 0x7F);
        v >>= 7;
        if (v) to[n] |= 0x80;
        n++;
    } while (v);
    return n;
}

/* Tag, and the length or the number. */
static int head_of(const TreeField *f, uint8_t to[32])
{
    int n = put_varint(to, (uint64_t)f->number << 3 | (uint64_t)f->type);
    if (f->type == WIRE_VARINT) return n + put_varint(to + n, f->value);
    if (f->type == WIRE_BYTES) return n + put_varint(to + n, f->tree ? f->tree->size : f->len);
    int bytes = f->type == WIRE_FIXED64 ? 8 : 4;
    for (int i = 0; i < bytes; i++) to[n + i] = (uint8_t)(f->value >> (8 * i));
    return n + bytes;
}

static int measure(Tree *t)
{
    uint8_t head[32];
    int pieces = 0;
    t->size = 0;
    for (int i = 0; i < t->n; i++) {
        TreeField *f = &t->f[i];
        pieces += f->tree ? measure(f->tree) + 1 : 2;
        t->size += (size_t)head_of(f, head);
        if (f->type == WIRE_BYTES) t->size += f->tree ? f->tree->size : f->len;
    }
    return pieces;
}

static void put(Pool *p, const Tree *t, Piece *pieces, int *n)
{
    uint8_t head[32];
    for (int i = 0; i < t->n; i++) {
        const TreeField *f = &t->f[i];
        int k = head_of(f, head);
        pieces[(*n)++] = (Piece){.bytes = mpri_pool_text(p, head, (size_t)k), .n = (size_t)k};
        if (f->tree) put(p, f->tree, pieces, n);
        else if (f->type == WIRE_BYTES && f->len)
            pieces[(*n)++] = (Piece){.bytes = f->bytes, .n = f->len, .maker = f->maker};
    }
}

Piece *mpri_tree_pieces(Pool *p, Tree *t, int *n)
{
    Piece *pieces = mpri_pool_take(p, sizeof *pieces * (size_t)(measure(t) + 1));
    *n = 0;
    put(p, t, pieces, n);
    return pieces;
}

void mpri_pieces_copy(const Piece *pieces, int n, uint8_t *to)
{
    for (int i = 0; i < n; to += pieces[i++].n) {
        const Piece *p = &pieces[i];
        if (p->maker) p->maker->make(p->maker, 0, to, p->n);
        else memcpy(to, p->bytes, p->n);
    }
}

void *mpri_tree_image(Pool *p, Tree *t, size_t *size)
{
    int n;
    Piece *pieces = mpri_tree_pieces(p, t, &n);
    *size = 0;
    for (int i = 0; i < n; i++) *size += pieces[i].n;
    void *image = mpri_pool_take(p, *size);
    mpri_pieces_copy(pieces, n, image);
    return image;
}
