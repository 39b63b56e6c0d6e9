/* Iterative pre-scan of the wire bytes.
 *
 * protobuf-c recurses once per nesting level, multiplies the size of small messages by up to 145,
 * merges repeated singular messages in quadratic time and cuts names at NUL. So nothing is unpacked
 * before this scan has seen every field: depth, counts, lengths, kinds, duplicates, names. The
 * stack is a block of frames whose number is the nesting limit; the scan itself neither recurses
 * nor allocates. */
#include "importer/prescan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "importer/wire.h"

typedef enum FieldKind { K_INT, K_F32, K_F64, K_BYTES, K_TEXT, K_NAME, K_MSG } FieldKind;

typedef struct MsgDef MsgDef;
typedef struct FieldDef {
    uint8_t number;
    uint8_t kind;
    bool repeated;
    bool choice; /* member of the message's oneof */
    const char *name;
    const MsgDef *child;
} FieldDef;

struct MsgDef {
    const char *name;
    const FieldDef *fields;
    int n;
    uint8_t label; /* number of the field that names an entry for people, 0 = none */
};

enum { MAX_FIELDS = 20 };

typedef struct Frame {
    const MsgDef *def;
    size_t begin, end;
    bool chosen; /* a member of the oneof was seen */
    uint32_t count[MAX_FIELDS];
} Frame;

typedef struct Scan {
    const uint8_t *bytes;
    const mpr_limits *limits;
    Frame *frames;
    int depth; /* frames in use */
    Err *err;
} Scan;

static const MsgDef msg_graph, msg_node, msg_attribute, msg_type, msg_model;

/* ---- errors */

static int field_of(const MsgDef *def, uint32_t number)
{
    for (int i = 0; i < def->n; i++)
        if (def->fields[i].number == number) return i;
    return -1;
}

/* Name of a message for people, from its own bytes; NULL when it has none. */
static const char *label_of(const Scan *s, const Frame *f)
{
    WireField w;
    if (!f->def->label) return NULL;
    if (!mpri_wire_find(s->bytes, (Span){f->begin, f->end - f->begin}, f->def->label, &w))
        return NULL;
    if (w.type != WIRE_BYTES || w.body.len == 0) return NULL;
    char buf[208];
    size_t n = w.body.len < sizeof buf - 1 ? w.body.len : sizeof buf - 1;
    memcpy(buf, s->bytes + w.body.at, n);
    buf[n] = '\0';
    return mpri_err_name(buf);
}

static const char *path_of(const Scan *s, const FieldDef *last, char *buf, size_t size)
{
    size_t used = 0;
    buf[0] = '\0';
    for (int d = 0; d < s->depth && used < size; d++) {
        const Frame *f = &s->frames[d];
        bool inner = d > 4 && d < s->depth - 4; /* of a deep path both ends are told */
        if (inner && d != 5) continue;
        const char *label = label_of(s, f);
        used += (size_t)snprintf(buf + used, size - used, "%s%s%s%s%s", d ? "." : "",
                                 inner ? "…" : f->def->name, label && !inner ? " '" : "",
                                 label && !inner ? label : "", label && !inner ? "'" : "");
    }
    if (last && used < size) snprintf(buf + used, size - used, ".%s", last->name);
    return buf;
}

static mpr_status fail(Scan *s, mpr_status code, size_t at, const FieldDef *field, const char *what)
{
    char path[1024];
    mpri_err_set(s->err, code, "%s", what);
    mpri_err_where(s->err, "byte offset %zu, %s", at, path_of(s, field, path, sizeof path));
    if (code == MPR_E_PROTO)
        return mpri_err_advice(s->err, "the file is damaged, cut, or not an ONNX model: compare "
                                       "its size and checksum with the source");
    return code;
}

static mpr_status over_limit(Scan *s, size_t at, const FieldDef *field, const char *what,
                             int64_t found, int64_t limit, const char *option)
{
    char text[160];
    snprintf(text, sizeof text, "%s: %" PRId64 ", at most %" PRId64 " are allowed", what, found,
             limit);
    fail(s, MPR_E_LIMIT, at, field, text);
    return mpri_err_advice(s->err, "if the file can be trusted, raise mpr_limits.%s", option);
}

/* ---- checks of one field */

static bool kind_fits(const FieldDef *d, int wire)
{
    bool packed = d->repeated && wire == WIRE_BYTES;
    switch (d->kind) {
    case K_INT: return wire == WIRE_VARINT || packed;
    case K_F32: return wire == WIRE_FIXED32 || packed;
    case K_F64: return wire == WIRE_FIXED64 || packed;
    default: return wire == WIRE_BYTES;
    }
}

static mpr_status check_packed(Scan *s, const FieldDef *d, const WireField *w)
{
    if (d->kind == K_F32 && w->body.len % 4)
        return fail(s, MPR_E_PROTO, w->tagged.at, d,
                    "a packed list of floats whose length is no multiple of 4");
    if (d->kind == K_F64 && w->body.len % 8)
        return fail(s, MPR_E_PROTO, w->tagged.at, d,
                    "a packed list of doubles whose length is no multiple of 8");
    if (d->kind != K_INT) return MPR_OK;
    size_t pos = w->body.at, end = pos + w->body.len;
    uint64_t v;
    while (pos < end)
        if (!mpri_wire_varint(s->bytes, end, &pos, &v))
            return fail(s, MPR_E_PROTO, pos, d,
                        "a packed list of integers that ends inside a varint, or holds one of more "
                        "than ten bytes");
    return MPR_OK;
}

static mpr_status check_name(Scan *s, const FieldDef *d, const WireField *w)
{
    const char *text = (const char *)s->bytes + w->body.at;
    if (w->body.len > (uint64_t)s->limits->name_bytes)
        return over_limit(s, w->tagged.at, d, "length of a name in bytes", (int64_t)w->body.len,
                          s->limits->name_bytes, "name_bytes");
    if (mpri_utf8_valid(text, w->body.len)) return MPR_OK;
    const char *nul = memchr(text, 0, w->body.len);
    if (nul)
        return fail(s, MPR_E_INVALID_MODEL, w->body.at + (size_t)(nul - text), d,
                    "a name with a NUL byte (\\x00) in it");
    return fail(s, MPR_E_INVALID_MODEL, w->body.at, d, "a name that is not valid UTF-8");
}

static mpr_status check_count(Scan *s, Frame *f, const FieldDef *d, uint32_t count, size_t at)
{
    char text[96];
    if (!d->repeated) {
        if (count > 1 || (d->choice && f->chosen)) {
            snprintf(text, sizeof text,
                     count > 1 ? "field %s occurs twice in one %s"
                               : "field %s is a second choice where one %s allows one",
                     d->name, f->def->name);
            return fail(s, MPR_E_INVALID_MODEL, at, d, text);
        }
        f->chosen |= d->choice;
        return MPR_OK;
    }
    if (d->kind != K_MSG && d->kind != K_NAME && d->kind != K_TEXT && d->kind != K_BYTES)
        return MPR_OK;
    int64_t limit = s->limits->repeated;
    const char *option = "repeated";
    if (f->def == &msg_node && d->child == &msg_attribute && s->limits->attributes_per_node < limit)
        limit = s->limits->attributes_per_node, option = "attributes_per_node";
    if (f->def == &msg_model && d->number == 25 && s->limits->functions < limit)
        limit = s->limits->functions, option = "functions";
    if ((int64_t)count <= limit) return MPR_OK;
    snprintf(text, sizeof text, "number of entries in %s", d->name);
    return over_limit(s, at, d, text, count, limit, option);
}

static mpr_status check_field(Scan *s, const WireField *w)
{
    Frame *f = &s->frames[s->depth - 1];
    int k = field_of(f->def, w->number);
    if (k < 0) return MPR_OK; /* a field of a future schema: kept by export, ignored here */
    const FieldDef *d = &f->def->fields[k];
    if (!kind_fits(d, w->type)) {
        char text[96];
        snprintf(text, sizeof text, "field %s has wire type %d, which does not fit it", d->name,
                 w->type);
        return fail(s, MPR_E_PROTO, w->tagged.at, d, text);
    }
    TRY(check_count(s, f, d, ++f->count[k], w->tagged.at));
    if (d->kind == K_NAME) return check_name(s, d, w);
    if (d->kind < K_BYTES) return w->type == WIRE_BYTES ? check_packed(s, d, w) : MPR_OK;
    if (d->kind != K_MSG) return MPR_OK;
    if (s->depth >= s->limits->nesting)
        return over_limit(s, w->tagged.at, d, "nesting depth of messages", s->depth + 1,
                          s->limits->nesting, "nesting");
    Frame *child = &s->frames[s->depth++];
    memset(child, 0, sizeof *child);
    child->def = d->child;
    child->begin = w->body.at;
    child->end = w->body.at + w->body.len;
    return MPR_OK;
}

/* ---- the scan */

static mpr_status scan(Scan *s)
{
    size_t pos = 0;
    while (s->depth > 0) {
        WireField w;
        WireStatus status = mpri_wire_next(s->bytes, s->frames[s->depth - 1].end, &pos, &w);
        if (status == WIRE_END) {
            s->depth--;
            continue;
        }
        if (status == WIRE_BAD) {
            const MsgDef *def = s->frames[s->depth - 1].def;
            int k = field_of(def, w.number);
            return fail(s, MPR_E_PROTO, w.tagged.at, k < 0 ? NULL : &def->fields[k], w.bad);
        }
        int before = s->depth;
        TRY(check_field(s, &w));
        if (s->depth > before)
            pos = w.body.at; /* into the message; its end brings us back behind it */
    }
    return MPR_OK;
}

mpr_status mpri_prescan(const uint8_t *bytes, size_t size, const mpr_limits *limits,
                        const Alloc *alloc, Err *err)
{
    Scan s = {.bytes = bytes, .limits = limits, .depth = 1, .err = err};
    size_t need;
    if (size == 0) {
        mpri_err_set(err, MPR_E_PROTO, "the file is empty: 0 bytes, no graph");
        return mpri_err_advice(err, "the download or export was cut: make the file again");
    }
    if (!mpri_size_mul((size_t)limits->nesting, sizeof(Frame), &need) ||
        !(s.frames = mpri_alloc(alloc, need, 16)))
        return mpri_err_nomem(err, (size_t)limits->nesting * sizeof(Frame));
    memset(&s.frames[0], 0, sizeof(Frame));
    s.frames[0].def = &msg_model;
    s.frames[0].end = size;
    mpr_status status = scan(&s);
    mpri_free(alloc, s.frames);
    return status;
}

bool mpri_prescan_is_tensor(const uint8_t *bytes, size_t size)
{
    bool type = false, data = false;
    size_t pos = 0;
    WireField w;
    WireStatus status;
    while ((status = mpri_wire_next(bytes, size, &pos, &w)) == WIRE_OK) {
        if (w.number == 1 && w.type != WIRE_VARINT && w.type != WIRE_BYTES) return false;
        if (w.number == 2 && w.type != WIRE_VARINT) return false;
        type |= w.number == 2;
        data |= (w.number == 4 || w.number == 5 || w.number == 6 || w.number == 7 ||
                 (w.number >= 9 && w.number <= 11)) &&
                w.type == WIRE_BYTES;
    }
    return status == WIRE_END && type && data;
}

mpr_limits mpri_limits_fill(const mpr_limits *o)
{
    mpr_limits l = {.size = sizeof l};
    if (o) memcpy(&l, o, o->size && o->size < sizeof l ? o->size : sizeof l);
    l.size = sizeof l;
    if (l.nesting <= 0) l.nesting = 64;
    if (l.repeated <= 0) l.repeated = 1000000;
    if (l.attributes_per_node <= 0) l.attributes_per_node = 4096;
    if (l.name_bytes <= 0) l.name_bytes = 64 << 10;
    if (l.metadata_bytes <= 0) l.metadata_bytes = (int64_t)1 << 30;
    if (l.functions <= 0) l.functions = 10000;
    if (l.call_depth <= 0) l.call_depth = 100;
    if (l.nodes <= 0) l.nodes = 1000000;
    if (l.trips <= 0) l.trips = 10000;
    if (l.memory_bytes <= 0) l.memory_bytes = INT64_MAX;
    return l;
}

/* ---- the messages of onnx.proto, as far as a scan needs them */

#define ONE(Number, Name, Kind)                              \
    {                                                        \
        .number = (Number), .kind = K_##Kind, .name = (Name) \
    }
#define MANY(Number, Name, Kind)                                               \
    {                                                                          \
        .number = (Number), .kind = K_##Kind, .name = (Name), .repeated = true \
    }
#define MSG(Number, Name, Child)                                             \
    {                                                                        \
        .number = (Number), .kind = K_MSG, .name = (Name), .child = &(Child) \
    }
#define MSGS(Number, Name, Child)                                                              \
    {                                                                                          \
        .number = (Number), .kind = K_MSG, .name = (Name), .child = &(Child), .repeated = true \
    }
#define PICK(Number, Name, Kind)                                             \
    {                                                                        \
        .number = (Number), .kind = K_##Kind, .name = (Name), .choice = true \
    }
#define PICKMSG(Number, Name, Child)                                                         \
    {                                                                                        \
        .number = (Number), .kind = K_MSG, .name = (Name), .child = &(Child), .choice = true \
    }
#define DEFINE(Var, Name, Label, ...)                                          \
    static const FieldDef Var##_fields[] = {__VA_ARGS__};                      \
    _Static_assert(sizeof Var##_fields / sizeof Var##_fields[0] <= MAX_FIELDS, \
                   "raise MAX_FIELDS");                                        \
    static const MsgDef Var = {(Name), Var##_fields,                           \
                               (int)(sizeof Var##_fields / sizeof Var##_fields[0]), (Label)}

DEFINE(msg_entry, "entry", 1, ONE(1, "key", TEXT), ONE(2, "value", TEXT));
DEFINE(msg_intlist, "group_map", 0, ONE(1, "key", INT), MANY(2, "value", INT));
DEFINE(msg_simple, "simple_sharding", 0, PICK(1, "dim_value", INT), PICK(2, "dim_param", TEXT),
       ONE(3, "num_shards", INT));
DEFINE(msg_sharded, "sharded_dim", 0, ONE(1, "axis", INT), MSGS(2, "simple_sharding", msg_simple));
DEFINE(msg_sharding, "sharding_spec", 1, ONE(1, "tensor_name", TEXT), MANY(2, "device", INT),
       MSGS(3, "index_to_device_group_map", msg_intlist), MSGS(4, "sharded_dim", msg_sharded));
DEFINE(msg_devices, "device_configurations", 1, ONE(1, "configuration_id", TEXT),
       MSGS(2, "sharding_spec", msg_sharding), ONE(3, "pipeline_stage", INT));
DEFINE(msg_configuration, "configuration", 1, ONE(1, "name", TEXT), ONE(2, "num_devices", INT),
       MANY(3, "device", TEXT));
DEFINE(msg_segment, "segment", 0, ONE(1, "begin", INT), ONE(2, "end", INT));
DEFINE(msg_external, "external_data", 1, ONE(1, "key", NAME), ONE(2, "value", NAME));
DEFINE(msg_tensor, "tensor", 8, MANY(1, "dims", INT), ONE(2, "data_type", INT),
       MSG(3, "segment", msg_segment), MANY(4, "float_data", F32), MANY(5, "int32_data", INT),
       MANY(6, "string_data", BYTES), MANY(7, "int64_data", INT), ONE(8, "name", NAME),
       ONE(9, "raw_data", BYTES), MANY(10, "double_data", F64), MANY(11, "uint64_data", INT),
       ONE(12, "doc_string", TEXT), MSGS(13, "external_data", msg_external),
       ONE(14, "data_location", INT), MSGS(16, "metadata_props", msg_entry));
DEFINE(msg_sparse, "sparse_tensor", 0, MSG(1, "values", msg_tensor), MSG(2, "indices", msg_tensor),
       MANY(3, "dims", INT));
DEFINE(msg_annotation, "quantization_annotation", 1, ONE(1, "tensor_name", TEXT),
       MSGS(2, "quant_parameter_tensor_names", msg_entry));
DEFINE(msg_dim, "dim", 0, PICK(1, "dim_value", INT), PICK(2, "dim_param", NAME),
       ONE(3, "denotation", TEXT));
DEFINE(msg_shape, "shape", 0, MSGS(1, "dim", msg_dim));
DEFINE(msg_type_tensor, "tensor_type", 0, ONE(1, "elem_type", INT), MSG(2, "shape", msg_shape));
DEFINE(msg_type_of, "element", 0, MSG(1, "elem_type", msg_type));
DEFINE(msg_type_map, "map_type", 0, ONE(1, "key_type", INT), MSG(2, "value_type", msg_type));
DEFINE(msg_type_opaque, "opaque_type", 0, ONE(1, "domain", TEXT), ONE(2, "name", TEXT));
DEFINE(msg_type, "type", 0, PICKMSG(1, "tensor_type", msg_type_tensor),
       PICKMSG(4, "sequence_type", msg_type_of), PICKMSG(5, "map_type", msg_type_map),
       ONE(6, "denotation", TEXT), PICKMSG(7, "opaque_type", msg_type_opaque),
       PICKMSG(8, "sparse_tensor_type", msg_type_tensor), PICKMSG(9, "optional_type", msg_type_of));
DEFINE(msg_value, "value", 1, ONE(1, "name", NAME), MSG(2, "type", msg_type),
       ONE(3, "doc_string", TEXT), MSGS(4, "metadata_props", msg_entry));
DEFINE(msg_attribute, "attribute", 1, ONE(1, "name", NAME), ONE(2, "f", F32), ONE(3, "i", INT),
       ONE(4, "s", BYTES), MSG(5, "t", msg_tensor), MSG(6, "g", msg_graph), MANY(7, "floats", F32),
       MANY(8, "ints", INT), MANY(9, "strings", BYTES), MSGS(10, "tensors", msg_tensor),
       MSGS(11, "graphs", msg_graph), ONE(13, "doc_string", TEXT), MSG(14, "tp", msg_type),
       MSGS(15, "type_protos", msg_type), ONE(20, "type", INT), ONE(21, "ref_attr_name", NAME),
       MSG(22, "sparse_tensor", msg_sparse), MSGS(23, "sparse_tensors", msg_sparse));
DEFINE(msg_node, "node", 3, MANY(1, "input", NAME), MANY(2, "output", NAME), ONE(3, "name", NAME),
       ONE(4, "op_type", NAME), MSGS(5, "attribute", msg_attribute), ONE(6, "doc_string", TEXT),
       ONE(7, "domain", NAME), ONE(8, "overload", NAME), MSGS(9, "metadata_props", msg_entry),
       MSGS(10, "device_configurations", msg_devices));
DEFINE(msg_graph, "graph", 2, MSGS(1, "node", msg_node), ONE(2, "name", TEXT),
       MSGS(5, "initializer", msg_tensor), ONE(10, "doc_string", TEXT),
       MSGS(11, "input", msg_value), MSGS(12, "output", msg_value),
       MSGS(13, "value_info", msg_value), MSGS(14, "quantization_annotation", msg_annotation),
       MSGS(15, "sparse_initializer", msg_sparse), MSGS(16, "metadata_props", msg_entry));
DEFINE(msg_opset, "opset_import", 1, ONE(1, "domain", NAME), ONE(2, "version", INT));
DEFINE(msg_function, "function", 1, ONE(1, "name", NAME), MANY(4, "input", NAME),
       MANY(5, "output", NAME), MANY(6, "attribute", NAME), MSGS(7, "node", msg_node),
       ONE(8, "doc_string", TEXT), MSGS(9, "opset_import", msg_opset), ONE(10, "domain", NAME),
       MSGS(11, "attribute_proto", msg_attribute), MSGS(12, "value_info", msg_value),
       ONE(13, "overload", NAME), MSGS(14, "metadata_props", msg_entry));
DEFINE(msg_training, "training_info", 0, MSG(1, "initialization", msg_graph),
       MSG(2, "algorithm", msg_graph), MSGS(3, "initialization_binding", msg_entry),
       MSGS(4, "update_binding", msg_entry));
DEFINE(msg_model, "model", 0, ONE(1, "ir_version", INT), ONE(2, "producer_name", TEXT),
       ONE(3, "producer_version", TEXT), ONE(4, "domain", TEXT), ONE(5, "model_version", INT),
       ONE(6, "doc_string", TEXT), MSG(7, "graph", msg_graph), MSGS(8, "opset_import", msg_opset),
       MSGS(14, "metadata_props", msg_entry), MSGS(20, "training_info", msg_training),
       MSGS(25, "functions", msg_function), MSGS(26, "configuration", msg_configuration));
