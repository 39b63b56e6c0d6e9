/* Reading tensors. The standard allows one storage per type (its own typed field, or raw_data, or
 * external data); anything else in the message is an error and never repaired, because two readers
 * would disagree about the numbers. Sizes are computed with checks and compared with what is there
 * before memory is asked for, so a tensor that claims terabytes costs nothing. */
#include "importer/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "importer/file.h"
#include "importer/wire.h"
#include "runtime/base/size.h"

enum { RANK_ACCEPTED = 64, LARGE_RAW = 4096 };

typedef struct TypeRow {
    const char *name;
    uint8_t bits;     /* per element in raw_data */
    uint8_t field;    /* typed storage */
    int64_t min, max; /* of one entry in an integer field */
} TypeRow;

static const TypeRow types[] = {
    [1] = {"float", 32, 4, 0, 0},
    [2] = {"uint8", 8, 5, 0, UINT8_MAX},
    [3] = {"int8", 8, 5, INT8_MIN, INT8_MAX},
    [4] = {"uint16", 16, 5, 0, UINT16_MAX},
    [5] = {"int16", 16, 5, INT16_MIN, INT16_MAX},
    [6] = {"int32", 32, 5, INT32_MIN, INT32_MAX},
    [7] = {"int64", 64, 7, INT64_MIN, INT64_MAX},
    [8] = {"string", 0, 6, 0, 0},
    [9] = {"bool", 8, 5, 0, 1},
    [10] = {"float16", 16, 5, 0, UINT16_MAX},
    [11] = {"double", 64, 10, 0, 0},
    [12] = {"uint32", 32, 11, 0, UINT32_MAX},
    [13] = {"uint64", 64, 11, 0, -1},
    [14] = {"complex64", 64, 4, 0, 0},
    [15] = {"complex128", 128, 10, 0, 0},
    [16] = {"bfloat16", 16, 5, 0, UINT16_MAX},
    [17] = {"float8e4m3fn", 8, 5, 0, UINT8_MAX},
    [18] = {"float8e4m3fnuz", 8, 5, 0, UINT8_MAX},
    [19] = {"float8e5m2", 8, 5, 0, UINT8_MAX},
    [20] = {"float8e5m2fnuz", 8, 5, 0, UINT8_MAX},
    [21] = {"uint4", 4, 5, 0, UINT8_MAX},
    [22] = {"int4", 4, 5, INT8_MIN, UINT8_MAX},
    [23] = {"float4e2m1", 4, 5, 0, UINT8_MAX},
    [24] = {"float8e8m0", 8, 5, 0, UINT8_MAX},
    [25] = {"uint2", 2, 5, 0, UINT8_MAX},
    [26] = {"int2", 2, 5, INT8_MIN, UINT8_MAX},
    [27] = {"float6e2m3", 6, 5, 0, UINT8_MAX},
    [28] = {"float6e3m2", 6, 5, 0, UINT8_MAX},
};

static const TypeRow *type_row(int64_t t)
{
    return t >= 1 && t < (int64_t)(sizeof types / sizeof types[0]) ? &types[t] : NULL;
}

int mpri_tensor_bits(int64_t data_type)
{
    const TypeRow *row = type_row(data_type);
    return row ? row->bits : 0;
}

const char *mpri_tensor_type_name(int64_t data_type)
{
    static _Thread_local char text[32];
    const TypeRow *row = type_row(data_type);
    if (row) return row->name;
    snprintf(text, sizeof text, "type %" PRId64, data_type);
    return text;
}

TensorForm mpri_tensor_form(const TensorProto *p, const char *name)
{
    return (TensorForm){.p = p,
                        .name = name,
                        .has_raw = p->has_raw_data,
                        .raw = p->raw_data.data,
                        .raw_len = p->raw_data.len};
}

static const char *dims_text(const TensorProto *p, char buf[200])
{
    size_t used = (size_t)snprintf(buf, 200, "[");
    for (size_t i = 0; i < p->n_dims && used < 170; i++)
        used += (size_t)snprintf(buf + used, 200 - used, "%s%" PRId64, i ? "," : "", p->dims[i]);
    snprintf(buf + used, 200 - used, "]");
    return buf;
}

/* ---- header */

static mpr_status check_header(const Import *im, const TensorForm *t, TensorData *out,
                               size_t *bytes, Err *err)
{
    const TensorProto *p = t->p;
    char dims[200];
    const char *name = mpri_err_name(t->name);
    out->data_type = p->has_data_type ? p->data_type : 0;
    const TypeRow *row = type_row(out->data_type);
    if (!row) {
        mpri_err_set(err, MPR_E_TYPE,
                     "tensor %s: data_type %" PRId64 "%s is no element type; 1 to 28 are", name,
                     out->data_type, p->has_data_type ? "" : " (absent)");
        return mpri_err_advice(err, "export the model again: the file was written by a faulty tool "
                                    "or is newer than this program");
    }
    if (p->n_dims > RANK_ACCEPTED)
        return mpri_err_set(err, MPR_E_LIMIT,
                            "tensor %s: rank %zu (number of dims), at most 64 are accepted", name,
                            p->n_dims);
    for (size_t i = 0; i < p->n_dims; i++)
        if (p->dims[i] < 0)
            return mpri_err_set(err, MPR_E_SHAPE,
                                "tensor %s: dim %zu of %s is %" PRId64 ", dims of data are >= 0",
                                name, i, dims_text(p, dims), p->dims[i]);
    if (p->n_dims > MPRI_MAX_RANK)
        return mpri_err_set(err, MPR_E_LIMIT, "tensor %s: rank %zu, at most %d can be computed",
                            name, p->n_dims, MPRI_MAX_RANK);
    size_t bits;
    Shape shape = {.rank = (int)p->n_dims};
    if (p->n_dims) memcpy(shape.d, p->dims, p->n_dims * sizeof *p->dims);
    if (!mpri_shape_in_range(&shape) || !mpri_size_elements((int)p->n_dims, p->dims, &out->elements) ||
        !mpri_size_mul((size_t)out->elements, row->bits, &bits) || !mpri_size_add(bits, 7, &bits))
        return mpri_err_set(err, MPR_E_SHAPE,
                            "tensor %s: the size of shape %s of %s does not fit 64 bits", name,
                            dims_text(p, dims), row->name);
    *bytes = bits / 8;
    if (*bytes > (uint64_t)im->limits.memory_bytes) {
        mpri_err_set(err, MPR_E_LIMIT,
                     "tensor %s: shape %s of %s needs %zu bytes, the memory limit is %" PRId64,
                     name, dims_text(p, dims), row->name, *bytes, im->limits.memory_bytes);
        return mpri_err_advice(err, "raise mpr_limits.memory_bytes");
    }
    out->rank = (int)p->n_dims;
    if (p->n_dims) memcpy(out->dims, p->dims, p->n_dims * sizeof *p->dims);
    return MPR_OK;
}

/* ---- typed storage */

typedef struct FieldRow {
    int number;
    const char *name;
    size_t n_offset; /* of its count in TensorProto */
} FieldRow;

static const FieldRow typed_fields[] = {
    {4, "float_data", offsetof(TensorProto, n_float_data)},
    {5, "int32_data", offsetof(TensorProto, n_int32_data)},
    {6, "string_data", offsetof(TensorProto, n_string_data)},
    {7, "int64_data", offsetof(TensorProto, n_int64_data)},
    {10, "double_data", offsetof(TensorProto, n_double_data)},
    {11, "uint64_data", offsetof(TensorProto, n_uint64_data)},
};
enum { N_TYPED = (int)(sizeof typed_fields / sizeof typed_fields[0]) };

static size_t field_count(const TensorProto *p, const FieldRow *f)
{
    size_t n;
    memcpy(&n, (const char *)p + f->n_offset, sizeof n);
    return n;
}

/* The one typed field that holds data; at most one may, and it must be the type's own. */
static mpr_status find_storage(const TensorForm *t, const TypeRow *row, const FieldRow **used,
                               Err *err)
{
    *used = NULL;
    for (int i = 0; i < N_TYPED; i++) {
        const FieldRow *f = &typed_fields[i];
        if (field_count(t->p, f) == 0) continue;
        if (t->has_raw)
            return mpri_err_set(err, MPR_E_INVALID_MODEL,
                                "tensor %s: data in raw_data and in %s; one of them must go",
                                mpri_err_name(t->name), f->name);
        if (f->number != row->field) {
            const char *want = "";
            for (int k = 0; k < N_TYPED; k++)
                if (typed_fields[k].number == row->field) want = typed_fields[k].name;
            return mpri_err_set(
                err, MPR_E_INVALID_MODEL,
                "tensor %s: its data is in %s, a tensor of %s has it in %s or raw_data",
                mpri_err_name(t->name), f->name, row->name, want);
        }
        *used = f;
    }
    return MPR_OK;
}

static size_t entries_needed(const TypeRow *row, int64_t data_type, int64_t elements, size_t bytes)
{
    if (data_type == MPR_COMPLEX64 || data_type == MPR_COMPLEX128) return 2 * (size_t)elements;
    return row->bits > 0 && row->bits < 8 ? bytes : (size_t)elements;
}

static mpr_status out_of_range(const TensorForm *t, const TypeRow *row, size_t i, int64_t v,
                               Err *err)
{
    return mpri_err_set(err, MPR_E_INVALID_MODEL,
                        "tensor %s: value %" PRId64 " at position %zu does not fit %s (%" PRId64
                        " to %" PRId64 ")",
                        mpri_err_name(t->name), v, i, row->name, row->min, row->max);
}

static mpr_status narrow_ints(const TensorForm *t, const TypeRow *row, size_t n, uint8_t *dst,
                              Err *err)
{
    size_t size = row->bits < 8 ? 1 : row->bits / 8u;
    for (size_t i = 0; i < n; i++) {
        int64_t v = t->p->int32_data[i];
        if (v < row->min || v > row->max) return out_of_range(t, row, i, v, err);
        memcpy(dst + i * size, &v, size); /* little-endian hosts only, as raw_data is */
    }
    return MPR_OK;
}

static mpr_status narrow_unsigned(const TensorForm *t, const TypeRow *row, size_t n, uint8_t *dst,
                                  Err *err)
{
    size_t size = row->bits / 8u;
    for (size_t i = 0; i < n; i++) {
        uint64_t v = t->p->uint64_data[i];
        if (size == 4 && v > UINT32_MAX) return out_of_range(t, row, i, (int64_t)v, err);
        memcpy(dst + i * size, &v, size);
    }
    return MPR_OK;
}

static mpr_status read_typed(Import *im, const TensorForm *t, const TypeRow *row, const FieldRow *f,
                             size_t bytes, TensorData *out, Err *err)
{
    size_t found = field_count(t->p, f),
           need = entries_needed(row, out->data_type, out->elements, bytes);
    char dims[200];
    if (found != need)
        return mpri_err_set(
            err, MPR_E_INVALID_MODEL, "tensor %s: %zu values in %s, its shape %s of %s needs %zu",
            mpri_err_name(t->name), found, f->name, dims_text(t->p, dims), row->name, need);
    out->typed_field = f->number;
    if (row->bits == 0) return MPR_OK;
    uint8_t *dst = mpri_arena_alloc(&im->m->arena, bytes);
    if (!dst) return mpri_err_nomem(err, bytes);
    out->data = dst;
    switch (f->number) {
    case 4: memcpy(dst, t->p->float_data, bytes); return MPR_OK;
    case 5: return narrow_ints(t, row, need, dst, err);
    case 7: memcpy(dst, t->p->int64_data, bytes); return MPR_OK;
    case 10: memcpy(dst, t->p->double_data, bytes); return MPR_OK;
    default: return narrow_unsigned(t, row, need, dst, err);
    }
}

/* ---- raw and external data */

static mpr_status take_bytes(Import *im, const uint8_t *bytes, size_t n, int bits, TensorData *out,
                             Err *err)
{
    size_t align = bits >= 64 ? 8 : bits >= 16 ? (size_t)bits / 8 : 1;
    if (n == 0) return MPR_OK;
    out->data = (uintptr_t)bytes % align == 0 ? bytes : mpri_arena_dup(&im->m->arena, bytes, n);
    return out->data ? MPR_OK : mpri_err_nomem(err, n);
}

static mpr_status read_raw(Import *im, const TensorForm *t, const TypeRow *row, size_t bytes,
                           TensorData *out, Err *err)
{
    char dims[200];
    if (row->bits == 0)
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "tensor %s: a tensor of %s has no raw_data form",
                            mpri_err_name(t->name), row->name);
    if (t->raw_len != bytes)
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "tensor %s: %zu bytes of raw_data, its shape %s of %s needs %zu",
                            mpri_err_name(t->name), t->raw_len, dims_text(t->p, dims), row->name,
                            bytes);
    return take_bytes(im, t->raw, bytes, row->bits, out, err);
}

static mpr_status parse_range(const TensorForm *t, const char *key, const char *text, int64_t *out,
                              Err *err)
{
    size_t digits = strspn(text, "0123456789");
    if (digits > 0 && text[digits] == '\0' && mpri_parse_i64(text, out) && *out >= 0) return MPR_OK;
    return mpri_err_set(err, MPR_E_EXTDATA_RANGE,
                        "tensor %s: %s '%s' of external data is no plain decimal number below 2^63",
                        mpri_err_name(t->name), key, mpri_err_name(text));
}

static mpr_status read_keys(Import *im, const TensorForm *t, TensorData *out, Err *err)
{
    const char *name = mpri_err_name(t->name), *offset = NULL, *length = NULL;
    for (size_t i = 0; i < t->p->n_external_data; i++) {
        const Onnx__StringStringEntryProto *e = t->p->external_data[i];
        const char *key = e->key ? e->key : "", *value = e->value ? e->value : "";
        const char **slot = !strcmp(key, "location") ? &out->location
                            : !strcmp(key, "offset") ? &offset
                            : !strcmp(key, "length") ? &length
                                                     : NULL;
        if (slot && *slot)
            return mpri_err_set(err,
                                slot == &out->location ? MPR_E_EXTDATA_PATH : MPR_E_EXTDATA_RANGE,
                                "tensor %s: external data has two keys '%s'", name, key);
        if (slot) *slot = value;
        else if (strcmp(key, "checksum") != 0)
            mpri_log(im->log, MPR_LOG_WARNING,
                     "tensor %s: external data has an unknown key '%s', which is ignored", name,
                     mpri_err_name(key));
    }
    if (!out->location)
        return mpri_err_set(err, MPR_E_EXTDATA_PATH,
                            "tensor %s: its data is external but has no location", name);
    out->ext_length = -1;
    if (offset) TRY(parse_range(t, "offset", offset, &out->ext_offset, err));
    if (length) TRY(parse_range(t, "length", length, &out->ext_length, err));
    return MPR_OK;
}

static mpr_status read_external(Import *im, const TensorForm *t, const TypeRow *row, size_t bytes,
                                TensorData *out, Err *err)
{
    const char *name = mpri_err_name(t->name);
    const SourceMap *map;
    char dims[200];
    if (t->has_raw && t->raw_len > 0)
        return mpri_err_set(
            err, MPR_E_INVALID_MODEL,
            "tensor %s: data in raw_data and in an external file; one of them must go", name);
    if (row->bits == 0)
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "tensor %s: a tensor of %s has no external form", name, row->name);
    TRY(read_keys(im, t, out, err));
    TRY(mpri_source_external(im->src, &im->m->arena, t->name, out->location, &map, err));
    out->location = map->location;
    uint64_t offset = (uint64_t)out->ext_offset;
    if (offset > map->size)
        return mpri_err_set(err, MPR_E_EXTDATA_RANGE,
                            "tensor %s: offset %" PRIu64 " lies past the end of '%s' (%zu bytes)",
                            name, offset, mpri_err_name(map->location), map->size);
    uint64_t length = out->ext_length >= 0 ? (uint64_t)out->ext_length : map->size - offset;
    if (length != bytes)
        return mpri_err_set(
            err, MPR_E_EXTDATA_RANGE,
            "tensor %s: %s %" PRIu64 " bytes of '%s' (%zu bytes), its shape %s of %s needs %zu",
            name, out->ext_length >= 0 ? "length says" : "the data is the remaining", length,
            mpri_err_name(map->location), map->size, dims_text(t->p, dims), row->name, bytes);
    if (length > map->size - offset)
        return mpri_err_set(err, MPR_E_EXTDATA_RANGE,
                            "tensor %s: offset %" PRIu64 " + length %" PRIu64
                            " lie past the end of '%s' (%zu bytes)",
                            name, offset, length, mpri_err_name(map->location), map->size);
    out->ext_length = (int64_t)length;
    return take_bytes(im, map->bytes + offset, bytes, row->bits, out, err);
}

mpr_status mpri_tensor_decode(Import *im, const TensorForm *t, TensorData *out, Err *err)
{
    static const uint64_t nothing[2];
    size_t bytes = 0;
    const FieldRow *f;
    *out = (TensorData){.data = nothing};
    TRY(check_header(im, t, out, &bytes, err));
    const TypeRow *row = type_row(out->data_type);
    if (t->p->segment)
        return mpri_err_set(
            err, MPR_E_INVALID_MODEL,
            "tensor %s: a part of a tensor (segment), which no reader puts together",
            mpri_err_name(t->name));
    TRY(find_storage(t, row, &f, err));
    if (t->p->has_data_location &&
        t->p->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
        if (f)
            return mpri_err_set(
                err, MPR_E_INVALID_MODEL,
                "tensor %s: data in %s and in an external file; one of them must go",
                mpri_err_name(t->name), f->name);
        return read_external(im, t, row, bytes, out, err);
    }
    if (t->p->has_data_location &&
        t->p->data_location != ONNX__TENSOR_PROTO__DATA_LOCATION__DEFAULT)
        return mpri_err_set(err, MPR_E_INVALID_MODEL,
                            "tensor %s: data_location %d; 0 (default) and 1 (external) exist",
                            mpri_err_name(t->name), (int)t->p->data_location);
    if (f) return read_typed(im, t, row, f, bytes, out, err);
    if (t->has_raw) return read_raw(im, t, row, bytes, out, err);
    if (out->elements == 0) return MPR_OK;
    char dims[200];
    return mpri_err_set(err, MPR_E_INVALID_MODEL,
                        "tensor %s: no data, its shape %s of %s needs %zu bytes",
                        mpri_err_name(t->name), dims_text(t->p, dims), row->name, bytes);
}

/* ---- initializers */

/* Unpacks a tensor message without a large raw_data; the span of raw_data is in *raw. */
static mpr_status unpack_header(Import *im, Span body, Arena *tmp, ProtobufCAllocator *pb,
                                TensorProto **p, WireField *raw, bool *has_raw, Err *err)
{
    const uint8_t *bytes = im->src->bytes;
    size_t n = body.len;
    const uint8_t *from = bytes + body.at;
    *has_raw = mpri_wire_find(bytes, body, 9, raw);
    if (*has_raw && raw->body.len > LARGE_RAW) { /* glue what stands before and behind */
        size_t head = raw->tagged.at - body.at, tail = body.len - head - raw->tagged.len;
        uint8_t *glued = mpri_arena_alloc(tmp, head + tail);
        if (!glued) return mpri_err_nomem(err, head + tail);
        memcpy(glued, from, head);
        memcpy(glued + head, raw->tagged.at + raw->tagged.len + bytes, tail);
        from = glued;
        n = head + tail;
    }
    *p = onnx__tensor_proto__unpack(pb, n, from);
    return *p ? MPR_OK : mpri_err_nomem(err, n);
}

static void *tmp_alloc(void *arena, size_t size)
{
    return mpri_arena_alloc(arena, size);
}

static void tmp_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

static mpr_status load_one(Import *im, SourceTensor *t, Arena *tmp, Err *err)
{
    ProtobufCAllocator pb = {tmp_alloc, tmp_free, tmp};
    TensorProto *p;
    WireField raw;
    bool has_raw;
    TensorData d;
    TRY(unpack_header(im, t->field.body, tmp, &pb, &p, &raw, &has_raw, err));
    t->name = mpri_intern(im->names, p->name ? p->name : "");
    if (!t->name) return mpri_err_nomem(err, 0);
    TensorForm form = {.p = p,
                       .name = t->name,
                       .has_raw = has_raw,
                       .raw = has_raw ? im->src->bytes + raw.body.at : NULL,
                       .raw_len = has_raw ? raw.body.len : 0};
    TRY(mpri_tensor_decode(im, &form, &d, err));
    int64_t *dims = mpri_arena_dup(&im->m->arena, d.dims, sizeof d.dims);
    if (!dims) return mpri_err_nomem(err, sizeof d.dims);
    t->data_type = d.data_type;
    t->rank = d.rank;
    t->dims = dims;
    t->raw = has_raw ? raw.body : (Span){0, 0};
    t->has_raw = has_raw && !d.location;
    t->external = d.location != NULL;
    t->typed_field = d.typed_field;
    t->location = d.location;
    t->ext_offset = d.ext_offset;
    t->ext_length = d.ext_length;
    t->data = d.data;
    return MPR_OK;
}

mpr_status mpri_import_tensors(Import *im, Err *err)
{
    Arena tmp;
    mpri_arena_init(&tmp, im->alloc, 0);
    mpr_status status = MPR_OK;
    for (int i = 0; i < im->src->n_tensors && status == MPR_OK; i++) {
        SourceTensor *t = &im->src->tensors[i];
        status = load_one(im, t, &tmp, err);
        if (status != MPR_OK)
            mpri_err_where(err, "byte offset %zu, initializer %d", t->field.tagged.at, i);
        mpri_arena_reset(&tmp);
    }
    mpri_arena_destroy(&tmp);
    return status;
}
