/* Wire-level re-encoding. Unknown fields, field order and padded varints of what is kept stay as
 * they are. */
#include "importer/encode.h"

#include <string.h>

#include "importer/wire.h"
#include "runtime/base/dtype.h"

enum { T_DIMS = 1, T_TYPE = 2, T_NAME = 8, T_RAW = 9, T_EXTERNAL = 13, T_LOCATION = 14 };

static void copy_span(const Source *s, Span span, Text *out)
{
    mpri_text_bytes(out, s->bytes + span.at, span.len);
}

static void put_message(Text *out, uint32_t number, Text *body)
{
    if (body->failed) out->failed = true;
    else mpri_wire_put_bytes(out, number, body->text ? body->text : "", body->len);
    mpri_text_free(body);
}

static bool key_is(const Source *s, Span entry, const char *key)
{
    WireField k;
    return mpri_wire_find(s->bytes, entry, 1, &k) && k.body.len == strlen(key) &&
           !memcmp(s->bytes + k.body.at, key, k.body.len);
}

static void put_location(const char *location, Text *out)
{
    Text entry;
    mpri_text_init(&entry, out->alloc);
    mpri_wire_put_bytes(&entry, 1, "location", 8);
    mpri_wire_put_bytes(&entry, 2, location, strlen(location));
    put_message(out, T_EXTERNAL, &entry);
}

/* One packed field; integers of 32 bits and less go sign-extended into varints, as protobuf asks.
 */
static void put_typed(const TensorChange *c, Text *out)
{
    Text body;
    mpri_text_init(&body, out->alloc);
    DType t = (DType)c->data_type;
    if (t == MPR_FLOAT32 || t == MPR_FLOAT64) {
        mpri_text_bytes(&body, c->values, (size_t)c->elements * mpri_dtype_size(t));
    } else {
        for (int64_t i = 0; i < c->elements; i++) {
            uint16_t half;
            int64_t v = 0;
            if (mpri_dtype_is_low(t)) {
                memcpy(&half, (const char *)c->values + 2 * i, 2);
                v = half;
            } else {
                v = mpri_load_i64(t, c->values, i);
            }
            mpri_wire_put_varint(&body, (uint64_t)v);
        }
    }
    put_message(out, (uint32_t)c->typed_field, &body);
}

void mpri_encode_tensor(const Source *s, const SourceField *t, const TensorChange *c, Text *out)
{
    Text body;
    WireField f;
    size_t pos = t->body.at, end = pos + t->body.len;
    bool typed_done = false;
    mpri_text_init(&body, out->alloc);
    while (mpri_wire_next(s->bytes, end, &pos, &f) == WIRE_OK) {
        if (c->typed_field && f.number == (uint32_t)c->typed_field) {
            if (!typed_done) put_typed(c, &body);
            typed_done = true;
            continue;
        }
        if (c->raw && (f.number == T_EXTERNAL || f.number == T_LOCATION || f.number == T_RAW))
            continue;
        if (c->location && f.number == T_EXTERNAL) {
            if (key_is(s, f.body, "checksum")) continue;
            if (key_is(s, f.body, "location")) {
                put_location(c->location, &body);
                continue;
            }
        }
        copy_span(s, f.tagged, &body);
    }
    if (c->raw) mpri_wire_put_bytes(&body, T_RAW, c->raw, c->n);
    put_message(out, c->number, &body);
}

void mpri_encode_new_tensor(const char *name, int64_t data_type, int rank, const int64_t *dims,
                            const void *raw, size_t n, Text *out)
{
    Text body;
    mpri_text_init(&body, out->alloc);
    for (int i = 0; i < rank; i++) {
        mpri_wire_put_tag(&body, T_DIMS, WIRE_VARINT);
        mpri_wire_put_varint(&body, (uint64_t)dims[i]);
    }
    mpri_wire_put_tag(&body, T_TYPE, WIRE_VARINT);
    mpri_wire_put_varint(&body, (uint64_t)data_type);
    mpri_wire_put_bytes(&body, T_NAME, name, strlen(name));
    mpri_wire_put_bytes(&body, T_RAW, raw, n);
    put_message(out, 5, &body);
}

void mpri_encode_new_input(const char *name, int64_t data_type, int rank, const int64_t *dims,
                           Text *out)
{
    Text value, type, tensor, shape, dim;
    mpri_text_init(&value, out->alloc);
    mpri_text_init(&type, out->alloc);
    mpri_text_init(&tensor, out->alloc);
    mpri_text_init(&shape, out->alloc);
    for (int i = 0; i < rank; i++) {
        mpri_text_init(&dim, out->alloc);
        mpri_wire_put_tag(&dim, 1, WIRE_VARINT);
        mpri_wire_put_varint(&dim, (uint64_t)dims[i]);
        put_message(&shape, 1, &dim);
    }
    mpri_wire_put_tag(&tensor, 1, WIRE_VARINT);
    mpri_wire_put_varint(&tensor, (uint64_t)data_type);
    put_message(&tensor, 2, &shape);
    put_message(&type, 1, &tensor);
    mpri_wire_put_bytes(&value, 1, name, strlen(name));
    put_message(&value, 2, &type);
    put_message(out, 11, &value);
}

void mpri_encode_node_inputs(const Source *s, const SourceField *node, const char *const *names,
                             int n, Text *out)
{
    Text body;
    WireField f;
    size_t pos = node->body.at, end = pos + node->body.len;
    int input = 0;
    mpri_text_init(&body, out->alloc);
    while (mpri_wire_next(s->bytes, end, &pos, &f) == WIRE_OK) {
        int k = f.number == 1 ? input++ : -1;
        if (k >= 0 && k < n && names[k]) mpri_wire_put_bytes(&body, 1, names[k], strlen(names[k]));
        else copy_span(s, f.tagged, &body);
    }
    put_message(out, 1, &body);
}

void mpri_encode_outer(const Source *s, uint32_t number, Span outer_body, Span inner_tagged,
                       const Text *inner, Text *out)
{
    Text body;
    size_t tail = inner_tagged.at + inner_tagged.len;
    mpri_text_init(&body, out->alloc);
    copy_span(s, (Span){outer_body.at, inner_tagged.at - outer_body.at}, &body);
    if (inner->failed) body.failed = true;
    else mpri_text_bytes(&body, inner->text, inner->len);
    copy_span(s, (Span){tail, outer_body.at + outer_body.len - tail}, &body);
    put_message(out, number, &body);
}
