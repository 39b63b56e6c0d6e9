/* One recursive walk over nodes and the graphs inside them serves all: collecting names, finding
 * what a branch reads from outside, renaming. The pre-scan has bounded the nesting. */
#include "convert/wire_graph.h"

#include <string.h>

char *mpri_wire_text(const uint8_t *bytes, Span span, Arena *arena)
{
    char *p = mpri_arena_alloc(arena, span.len + 1);
    if (p) memcpy(p, bytes + span.at, span.len);
    return p;
}

bool mpri_wire_is(const uint8_t *bytes, Span span, const char *text)
{
    return span.len == strlen(text) && !memcmp(bytes + span.at, text, span.len);
}

static void copy(const uint8_t *bytes, const WireField *f, Text *out)
{
    if (out) mpri_text_bytes(out, bytes + f->tagged.at, f->tagged.len);
}

/* Field f, a name. */
static void put_name(const uint8_t *bytes, const WireField *f, NameUse use, NameFn fn, void *ctx,
                     Text *out)
{
    const char *to = fn(ctx, use, (const char *)bytes + f->body.at, f->body.len);
    if (!to) copy(bytes, f, out);
    else if (out) mpri_wire_put_bytes(out, f->number, to, strlen(to));
}

/* Field f, a message whose name has the given number. */
static void put_named(const uint8_t *bytes, const WireField *f, uint32_t name, NameUse use,
                      NameFn fn, void *ctx, Text *out)
{
    WireField g;
    const char *to = NULL;
    if (mpri_wire_find(bytes, f->body, name, &g))
        to = fn(ctx, use, (const char *)bytes + g.body.at, g.body.len);
    if (!to) {
        copy(bytes, f, out);
        return;
    }
    if (!out) return;
    Text inner;
    mpri_text_init(&inner, out->alloc);
    size_t pos = f->body.at;
    while (mpri_wire_next(bytes, f->body.at + f->body.len, &pos, &g) == WIRE_OK) {
        if (g.number == name) mpri_wire_put_bytes(&inner, name, to, strlen(to));
        else copy(bytes, &g, &inner);
    }
    mpri_wire_put_bytes(out, f->number, inner.text, inner.len);
    out->failed = out->failed || inner.failed;
    mpri_text_free(&inner);
}

static bool holds_graph(const uint8_t *bytes, Span attribute)
{
    WireField f;
    return mpri_wire_find(bytes, attribute, ATTRIBUTE_G, &f) ||
           mpri_wire_find(bytes, attribute, ATTRIBUTE_GRAPHS, &f);
}

static void put_message(Text *out, uint32_t number, Text *inner)
{
    mpri_wire_put_bytes(out, number, inner->text, inner->len);
    out->failed = out->failed || inner->failed;
    mpri_text_free(inner);
}

static void put_attribute(const uint8_t *bytes, const WireField *a, NameFn fn, void *ctx,
                          Text *out)
{
    if (!holds_graph(bytes, a->body)) {
        copy(bytes, a, out);
        return;
    }
    Text attribute, graph;
    WireField f;
    size_t pos = a->body.at;
    if (out) mpri_text_init(&attribute, out->alloc);
    while (mpri_wire_next(bytes, a->body.at + a->body.len, &pos, &f) == WIRE_OK) {
        if (f.number != ATTRIBUTE_G && f.number != ATTRIBUTE_GRAPHS) {
            copy(bytes, &f, out ? &attribute : NULL);
            continue;
        }
        if (out) mpri_text_init(&graph, out->alloc);
        mpri_wire_graph(bytes, f.body, fn, ctx, out ? &graph : NULL);
        if (out) put_message(&attribute, f.number, &graph);
    }
    if (out) put_message(out, a->number, &attribute);
}

static void put_node(const uint8_t *bytes, Span node, bool inner, NameFn fn, void *ctx, Text *out)
{
    NameUse read = inner ? NAME_READ : NAME_INPUT, written = inner ? NAME_WRITTEN : NAME_OUTPUT;
    WireField f;
    size_t pos = node.at;
    while (mpri_wire_next(bytes, node.at + node.len, &pos, &f) == WIRE_OK) {
        switch (f.number) {
        case NODE_INPUT: put_name(bytes, &f, read, fn, ctx, out); break;
        case NODE_OUTPUT: put_name(bytes, &f, written, fn, ctx, out); break;
        case NODE_NAME: put_name(bytes, &f, NAME_OF_NODE, fn, ctx, out); break;
        case NODE_ATTRIBUTE: put_attribute(bytes, &f, fn, ctx, out); break;
        default: copy(bytes, &f, out);
        }
    }
}

void mpri_wire_node(const uint8_t *bytes, Span node, NameFn fn, void *ctx, Text *out)
{
    put_node(bytes, node, false, fn, ctx, out);
}

void mpri_wire_graph(const uint8_t *bytes, Span graph, NameFn fn, void *ctx, Text *out)
{
    WireField f;
    size_t pos = graph.at;
    while (mpri_wire_next(bytes, graph.at + graph.len, &pos, &f) == WIRE_OK) {
        Text node;
        switch (f.number) {
        case GRAPH_NODE:
            if (out) mpri_text_init(&node, out->alloc);
            put_node(bytes, f.body, true, fn, ctx, out ? &node : NULL);
            if (out) put_message(out, f.number, &node);
            break;
        case GRAPH_INITIALIZER:
            put_named(bytes, &f, TENSOR_NAME, NAME_WRITTEN, fn, ctx, out);
            break;
        case GRAPH_INPUT: put_named(bytes, &f, INFO_NAME, NAME_WRITTEN, fn, ctx, out); break;
        case GRAPH_OUTPUT: put_named(bytes, &f, INFO_NAME, NAME_READ, fn, ctx, out); break;
        case GRAPH_VALUE_INFO: put_named(bytes, &f, INFO_NAME, NAME_TYPED, fn, ctx, out); break;
        default: copy(bytes, &f, out);
        }
    }
}

bool mpri_wire_has_bodies(const uint8_t *bytes, Span node)
{
    WireField f;
    size_t pos = node.at;
    while (mpri_wire_next(bytes, node.at + node.len, &pos, &f) == WIRE_OK)
        if (f.number == NODE_ATTRIBUTE && holds_graph(bytes, f.body)) return true;
    return false;
}

/* ---- value_info ---- */

static bool find_elem(const uint8_t *bytes, Span info, WireField *type, WireField *tensor,
                      WireField *elem)
{
    return mpri_wire_find(bytes, info, INFO_TYPE, type) &&
           mpri_wire_find(bytes, type->body, TYPE_TENSOR, tensor) &&
           mpri_wire_find(bytes, tensor->body, TENSOR_TYPE_ELEM, elem);
}

int64_t mpri_wire_info_elem(const uint8_t *bytes, Span info, Span *where)
{
    WireField type, tensor, elem;
    if (!find_elem(bytes, info, &type, &tensor, &elem)) return 0;
    if (where) *where = elem.body;
    return (int64_t)elem.value;
}

/* Fields of `in` with the one at `cut` replaced by the message `by`. */
static void replaced(const uint8_t *bytes, Span in, const WireField *cut, Text *by, Text *out)
{
    WireField f;
    size_t pos = in.at;
    while (mpri_wire_next(bytes, in.at + in.len, &pos, &f) == WIRE_OK) {
        if (f.tagged.at == cut->tagged.at) put_message(out, f.number, by);
        else copy(bytes, &f, out);
    }
}

void mpri_wire_info(const uint8_t *bytes, Span info, int64_t elem, Text *out)
{
    WireField type, tensor, old, f;
    Text t, p, whole;
    if (!find_elem(bytes, info, &type, &tensor, &old)) return;
    mpri_text_init(&t, out->alloc);
    mpri_text_init(&p, out->alloc);
    mpri_text_init(&whole, out->alloc);
    size_t pos = tensor.body.at;
    while (mpri_wire_next(bytes, tensor.body.at + tensor.body.len, &pos, &f) == WIRE_OK) {
        if (f.number != TENSOR_TYPE_ELEM) {
            copy(bytes, &f, &t);
            continue;
        }
        mpri_wire_put_tag(&t, TENSOR_TYPE_ELEM, WIRE_VARINT);
        mpri_wire_put_varint(&t, (uint64_t)elem);
    }
    replaced(bytes, type.body, &tensor, &t, &p);
    replaced(bytes, info, &type, &p, &whole);
    put_message(out, GRAPH_VALUE_INFO, &whole);
}

/* ---- metadata ---- */

static bool is_entry(const uint8_t *bytes, const WireField *f, uint32_t number, const char *key)
{
    WireField k;
    return f->number == number && mpri_wire_find(bytes, f->body, ENTRY_KEY, &k) &&
           mpri_wire_is(bytes, k.body, key);
}

const char *mpri_wire_entry(const uint8_t *bytes, Span message, uint32_t number, const char *key,
                            Arena *arena, SourceField *where)
{
    WireField f, v;
    size_t pos = message.at;
    while (mpri_wire_next(bytes, message.at + message.len, &pos, &f) == WIRE_OK) {
        if (!is_entry(bytes, &f, number, key)) continue;
        if (where) *where = (SourceField){f.tagged, f.body};
        if (!mpri_wire_find(bytes, f.body, ENTRY_VALUE, &v)) return "";
        return mpri_wire_text(bytes, v.body, arena);
    }
    return NULL;
}

void mpri_wire_put_entry(Text *out, uint32_t number, const char *key, const char *value, size_t n)
{
    Text entry;
    mpri_text_init(&entry, out->alloc);
    mpri_wire_put_bytes(&entry, ENTRY_KEY, key, strlen(key));
    mpri_wire_put_bytes(&entry, ENTRY_VALUE, value, n);
    put_message(out, number, &entry);
}
