/* .npy headers, versions 1 to 3. Source: numpy.lib.format. The trap: everything in the header is a
 * claim; the shape is multiplied with checks and compared with the bytes that are there before
 * memory is taken. */
#include "runtime/train/npy.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/base/size.h"

static const char advice[] =
    "write the array with numpy.save or numpy.savez as a plain numeric type";

static mpr_status refuse(Err *err, const char *what)
{
    mpri_err_set(err, MPR_E_DATA, "npy header: %s", what);
    return mpri_err_advice(err, "%s", advice);
}

mpr_status mpri_npy_prefix(const uint8_t *b, uint64_t have, uint64_t member, uint64_t *header_end,
                           Err *err)
{
    if (have < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
        return refuse(err, "the first bytes are not those of an npy array");
    if (b[6] < 1 || b[6] > 3) {
        mpri_err_set(err, MPR_E_DATA, "npy header: version %d.%d; read are 1.0, 2.0 and 3.0", b[6],
                     b[7]);
        return mpri_err_advice(err, "%s", advice);
    }
    uint64_t length = (uint64_t)b[8] | (uint64_t)b[9] << 8, start = 10;
    if (b[6] > 1) {
        if (have < 12) return refuse(err, "it is cut");
        length |= (uint64_t)b[10] << 16 | (uint64_t)b[11] << 24;
        start = 12;
    }
    if (length > member - start) {
        mpri_err_set(err, MPR_E_DATA, "npy header: %llu bytes long, the member has %llu left",
                     (unsigned long long)length, (unsigned long long)(member - start));
        return mpri_err_advice(err, "%s", advice);
    }
    if (length > MPRI_NPY_HEADER_LIMIT) {
        mpri_err_set(err, MPR_E_DATA, "npy header: %llu bytes long; allowed are %d",
                     (unsigned long long)length, MPRI_NPY_HEADER_LIMIT);
        return mpri_err_advice(err, "%s", advice);
    }
    *header_end = start + length;
    return MPR_OK;
}

/* ---- the literal ---- */

typedef struct Cursor {
    const char *p, *end;
    Err *err;
} Cursor;

static void skip(Cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool take(Cursor *c, char want)
{
    skip(c);
    if (c->p >= c->end || *c->p != want) return false;
    c->p++;
    return true;
}

/* 'text' or "text" without escapes. */
static mpr_status take_string(Cursor *c, char *buf, size_t size)
{
    skip(c);
    if (c->p >= c->end || (*c->p != '\'' && *c->p != '"'))
        return refuse(c->err, "a quoted text is expected");
    char quote = *c->p++;
    size_t n = 0;
    for (; c->p < c->end && *c->p != quote; c->p++) {
        if (*c->p == '\\' || (unsigned char)*c->p < ' ')
            return refuse(c->err, "a text holds an escape or a control character");
        if (n + 1 < size) buf[n++] = *c->p;
    }
    buf[n] = 0;
    return take(c, quote) ? MPR_OK : refuse(c->err, "a text does not end");
}

static bool take_word(Cursor *c, const char *word)
{
    size_t n = strlen(word);
    skip(c);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n) != 0) return false;
    c->p += n;
    return true;
}

static mpr_status take_dim(Cursor *c, int64_t *dim)
{
    skip(c);
    const char *start = c->p;
    char text[32] = "";
    size_t n = 0;
    while (c->p < c->end && (strchr("+-.eE_", *c->p) || (*c->p >= '0' && *c->p <= '9'))) c->p++;
    n = (size_t)(c->p - start);
    if (n && n < sizeof(text)) memcpy(text, start, n);
    if (!n || n >= sizeof(text) || !mpri_parse_i64(text, dim) || *dim < 0) {
        mpri_err_set(c->err, MPR_E_DATA,
                     "npy header: dim '%s' of the shape; allowed are whole numbers from 0",
                     n < sizeof(text) ? text : "…");
        return mpri_err_advice(c->err, "%s", advice);
    }
    return MPR_OK;
}

static mpr_status take_shape(Cursor *c, NpyHeader *h)
{
    if (!take(c, '(')) return refuse(c->err, "'shape' is not a tuple");
    h->rank = 0;
    while (!take(c, ')')) {
        int64_t dim;
        TRY(take_dim(c, &dim));
        if (h->rank == 8) return refuse(c->err, "more than 8 dims");
        h->dims[h->rank++] = dim;
        if (take(c, ',')) continue;
        return take(c, ')') ? MPR_OK : refuse(c->err, "'shape' does not close");
    }
    return MPR_OK;
}

/* descr: '<f4', or a list for structured types, which is skipped to its end. */
static mpr_status take_descr(Cursor *c, NpyHeader *h)
{
    skip(c);
    if (c->p < c->end && *c->p == '[') {
        int depth = 0;
        do {
            if (c->p >= c->end) return refuse(c->err, "'descr' does not close");
            if (*c->p == '[') depth++;
            if (*c->p == ']') depth--;
            if (depth > 16) return refuse(c->err, "'descr' is nested too deep");
            c->p++;
        } while (depth);
        strcpy(h->type, "structured");
        return MPR_OK;
    }
    return take_string(c, h->type, sizeof(h->type));
}

typedef struct TypeRow {
    const char *code;
    mpr_dtype dtype;
} TypeRow;
static const TypeRow types[] = {
    {"f2", MPR_FLOAT16},  {"f4", MPR_FLOAT32}, {"f8", MPR_FLOAT64}, {"i1", MPR_INT8},
    {"i2", MPR_INT16},    {"i4", MPR_INT32},   {"i8", MPR_INT64},   {"u1", MPR_UINT8},
    {"u2", MPR_UINT16},   {"u4", MPR_UINT32},  {"u8", MPR_UINT64},  {"b1", MPR_BOOL},
    {"V2", MPR_BFLOAT16},
};

static void find_type(NpyHeader *h)
{
    const char *t = h->type;
    char order = strchr("<>|=", *t) && *t ? *t++ : '=';
    bool little = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (!strcmp(t, types[i].code)) {
            h->dtype = types[i].dtype;
            h->numeric = true;
            h->swapped = mpri_dtype_size(h->dtype) > 1 &&
                         ((order == '>' && little) || (order == '<' && !little));
            return;
        }
}

static mpr_status parse_literal(Cursor *c, NpyHeader *h)
{
    bool descr = false, order = false, shape = false;
    if (!take(c, '{')) return refuse(c->err, "it is not a dictionary");
    while (!take(c, '}')) {
        char key[32];
        TRY(take_string(c, key, sizeof(key)));
        if (!take(c, ':')) return refuse(c->err, "a key has no value");
        bool *seen = !strcmp(key, "descr")           ? &descr
                     : !strcmp(key, "fortran_order") ? &order
                     : !strcmp(key, "shape")         ? &shape
                                                     : NULL;
        if (!seen || *seen) {
            mpri_err_set(c->err, MPR_E_DATA,
                         "npy header: key '%s' is %s; expected are descr, fortran_order and shape",
                         mpri_err_name(key), seen ? "there twice" : "unknown");
            return mpri_err_advice(c->err, "%s", advice);
        }
        *seen = true;
        if (seen == &descr) TRY(take_descr(c, h));
        else if (seen == &shape) TRY(take_shape(c, h));
        else if (take_word(c, "True")) h->fortran = true;
        else if (!take_word(c, "False"))
            return refuse(c->err, "'fortran_order' is neither True nor False");
        if (take(c, ',')) continue;
        if (take(c, '}')) break;
        return refuse(c->err, "it does not close");
    }
    skip(c);
    if (c->p != c->end) return refuse(c->err, "there is text after the dictionary");
    if (!descr) return refuse(c->err, "'descr' is missing");
    if (!order) return refuse(c->err, "'fortran_order' is missing");
    return shape ? MPR_OK : refuse(c->err, "'shape' is missing");
}

mpr_status mpri_npy_parse(const uint8_t *bytes, uint64_t header_end, uint64_t member,
                          NpyHeader *out, Err *err)
{
    uint64_t start = bytes[6] > 1 ? 12 : 10;
    *out = (NpyHeader){.data_at = header_end};
    Cursor c = {
        .p = (const char *)bytes + start, .end = (const char *)bytes + header_end, .err = err};
    TRY(parse_literal(&c, out));
    find_type(out);
    uint64_t have = member - header_end;
    out->bytes = have;
    if (!out->numeric) return MPR_OK;
    size_t need;
    if (!mpri_size_elements(out->rank, out->dims, &out->n) ||
        !mpri_size_mul((size_t)out->n, mpri_dtype_size(out->dtype), &need))
        return refuse(err, "the product of the dims overflows");
    if (need != have) {
        mpri_err_set(err, MPR_E_DATA, "npy array: shape and type need %zu bytes, there are %llu",
                     need, (unsigned long long)have);
        return mpri_err_advice(err, "%s", advice);
    }
    return MPR_OK;
}

static void swap_bytes(uint8_t *p, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++, p += size)
        for (size_t k = 0; k < size / 2; k++) {
            uint8_t b = p[k];
            p[k] = p[size - 1 - k];
            p[size - 1 - k] = b;
        }
}

/* Column-major to row-major: walk the result in order, keep the source offset by counting. */
static void reorder(const NpyHeader *h, uint8_t *to, const uint8_t *from)
{
    size_t size = mpri_dtype_size(h->dtype);
    int64_t stride[8], index[8] = {0}, at = 0, step = 1;
    for (int d = 0; d < h->rank; d++) {
        stride[d] = step;
        step *= h->dims[d];
    }
    for (int64_t i = 0; i < h->n; i++) {
        memcpy(to + (size_t)i * size, from + (size_t)at * size, size);
        for (int d = h->rank - 1; d >= 0; d--) {
            at += stride[d];
            if (++index[d] < h->dims[d]) break;
            at -= stride[d] * h->dims[d];
            index[d] = 0;
        }
    }
}

mpr_status mpri_npy_normalise(const Alloc *alloc, const NpyHeader *h, void **data, Err *err)
{
    size_t size = mpri_dtype_size(h->dtype);
    if (h->swapped) swap_bytes(*data, h->n, size);
    if (h->dtype == MPR_BOOL)
        for (int64_t i = 0; i < h->n; i++) ((uint8_t *)*data)[i] = ((uint8_t *)*data)[i] != 0;
    if (!h->fortran || h->rank < 2) return MPR_OK;
    void *turned = mpri_alloc(alloc, (size_t)h->n * size + 1, 64);
    if (!turned) return mpri_err_nomem(err, (size_t)h->n * size);
    reorder(h, turned, *data);
    mpri_free(alloc, *data);
    *data = turned;
    return MPR_OK;
}

void mpri_npy_write_header(Text *t, mpr_dtype dtype, int rank, const int64_t *dims)
{
    const char *code = "f4";
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (types[i].dtype == dtype) code = types[i].code;
    char literal[512];
    int n = snprintf(literal, sizeof(literal),
                     "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                     mpri_dtype_size(dtype) > 1 ? '<' : '|', code);
    for (int i = 0; i < rank; i++)
        n += snprintf(literal + n, sizeof(literal) - (size_t)n, "%s%lld%s", i ? " " : "",
                      (long long)dims[i], i + 1 < rank || rank == 1 ? "," : "");
    n += snprintf(literal + n, sizeof(literal) - (size_t)n, "), }");
    int total = (10 + n + 1 + 63) / 64 * 64, pad = total - 10 - n - 1;
    uint8_t prefix[10] = {0x93,
                          'N',
                          'U',
                          'M',
                          'P',
                          'Y',
                          1,
                          0,
                          (uint8_t)((total - 10) & 255),
                          (uint8_t)((total - 10) >> 8)};
    mpri_text_bytes(t, prefix, sizeof(prefix));
    mpri_text_bytes(t, literal, (size_t)n);
    for (int i = 0; i < pad; i++) mpri_text_put(t, " ");
    mpri_text_put(t, "\n");
}
