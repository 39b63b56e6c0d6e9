/* Reading the pieces of the text form: words, numbers, types, contents, attributes. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/text.h"
#include "runtime/ir/text_private.h"

mpr_status mpri_read_fail(Reader *r, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return mpri_err_set(r->err, MPR_E_USAGE, "line %d: %s, before '%.24s'", r->line, text,
                        mpri_err_name(r->p));
}

void mpri_read_blank(Reader *r)
{
    while (*r->p == ' ' || *r->p == '\t') r->p++;
    if (*r->p == '#') r->p += strcspn(r->p, "\n");
}

bool mpri_read_accept(Reader *r, const char *s)
{
    mpri_read_blank(r);
    size_t n = strlen(s);
    if (strncmp(r->p, s, n)) return false;
    r->p += n;
    return true;
}

bool mpri_read_keyword(Reader *r, const char *word)
{
    mpri_read_blank(r);
    size_t n = strspn(r->p, MPRI_WORD_CHARS);
    if (n != strlen(word) || strncmp(r->p, word, n)) return false;
    r->p += n;
    return true;
}

mpr_status mpri_read_expect(Reader *r, const char *s)
{
    if (mpri_read_accept(r, s)) return MPR_OK;
    return mpri_read_fail(r, "expected '%s'", s);
}

static mpr_status read_quoted(Reader *r, char **out)
{
    size_t room = strcspn(r->p, "\n") + 1, n = 0;
    char *s = mpri_arena_alloc(r->arena, room); /* escapes only shrink */
    if (!s) return mpri_err_nomem(r->err, room);
    while (*r->p != '"') {
        unsigned code;
        if (*r->p == '\0' || *r->p == '\n') return mpri_read_fail(r, "a quoted name does not end");
        if (*r->p != '\\') {
            s[n++] = *r->p++;
        } else if (r->p[1] == 'n') {
            s[n++] = '\n';
            r->p += 2;
        } else if (r->p[1] == 'u' && strspn(r->p + 2, "0123456789abcdefABCDEF") >= 4 &&
                   sscanf(r->p + 2, "%4x", &code) == 1 && code > 0 && code < 0x80) {
            s[n++] = (char)code;
            r->p += 6;
        } else if (r->p[1] == '"' || r->p[1] == '\\') {
            s[n++] = r->p[1];
            r->p += 2;
        } else {
            return mpri_read_fail(r, "unknown escape");
        }
    }
    r->p++;
    *out = s;
    return MPR_OK;
}

mpr_status mpri_read_name(Reader *r, char **out)
{
    mpri_read_blank(r);
    if (mpri_read_accept(r, "\"")) return read_quoted(r, out);
    size_t n = strspn(r->p, MPRI_WORD_CHARS);
    while (n > 0 && r->p[n - 1] == ':') n--; /* the colon before a type */
    if (n == 0) return mpri_read_fail(r, "expected a name");
    char *s = mpri_arena_alloc(r->arena, n + 1);
    if (!s) return mpri_err_nomem(r->err, n);
    memcpy(s, r->p, n);
    r->p += n;
    *out = s;
    return MPR_OK;
}

static bool read_number(Reader *r, char buf[64])
{
    mpri_read_blank(r);
    size_t n = strspn(r->p, "+-.0123456789abcdefinxABCDEFINX");
    if (n == 0 || n >= 64) return false;
    memcpy(buf, r->p, n);
    buf[n] = '\0';
    r->p += n;
    return true;
}

mpr_status mpri_read_i64(Reader *r, int64_t *out)
{
    char buf[64];
    const char *start = r->p;
    if (read_number(r, buf) && mpri_parse_i64(buf, out)) return MPR_OK;
    r->p = start;
    return mpri_read_fail(r, "expected an integer");
}

mpr_status mpri_read_f64(Reader *r, double *out)
{
    char buf[64];
    const char *start = r->p;
    if (read_number(r, buf) && mpri_parse_f64(buf, out)) return MPR_OK;
    r->p = start;
    return mpri_read_fail(r, "expected a number");
}

/* End of one dim: a comma or the bracket outside of quotes and parentheses. */
static const char *dim_end(const char *p)
{
    for (int depth = 0; *p && *p != '\n'; p++) {
        if (*p == '"') {
            for (p++; *p && *p != '"' && *p != '\n'; p++)
                if (*p == '\\' && p[1]) p++;
            if (*p != '"') break;
        } else if (*p == '(') {
            depth++;
        } else if (*p == ')') {
            depth--;
        } else if (depth == 0 && (*p == ',' || *p == ']')) {
            return p;
        }
    }
    return NULL;
}

static mpr_status read_shape(Reader *r, Shape *shape)
{
    *shape = (Shape){.rank = 0};
    TRY(mpri_read_expect(r, "["));
    if (mpri_read_accept(r, "]")) return MPR_OK;
    mpri_read_blank(r);
    if (r->p[0] == '?' && r->p[1] == ']') {
        r->p += 2;
        shape->rank = MPRI_RANK_UNKNOWN;
        return MPR_OK;
    }
    do {
        mpri_read_blank(r);
        const char *end = dim_end(r->p);
        if (shape->rank == MPRI_MAX_RANK)
            return mpri_read_fail(r, "more than %d dims", MPRI_MAX_RANK);
        if (!end || !mpri_dim_parse(r->g->sym, r->p, (size_t)(end - r->p), &shape->d[shape->rank]))
            return mpri_read_fail(r, "expected a dim");
        shape->rank++;
        r->p = end;
    } while (mpri_read_accept(r, ","));
    return mpri_read_expect(r, "]");
}

mpr_status mpri_read_type(Reader *r, DType *dtype, Shape *shape)
{
    char *word;
    TRY(mpri_read_name(r, &word));
    *dtype = mpri_dtype_parse(word);
    if (*dtype == MPR_DTYPE_NONE && strcmp(word, "undefined"))
        return mpri_read_fail(r, "unknown type '%s'", mpri_err_name(word));
    return read_shape(r, shape);
}

static mpr_status read_element(Reader *r, DType dtype, void *data, int64_t i)
{
    if (mpri_dtype_is_float(dtype)) {
        double v;
        TRY(mpri_read_f64(r, &v));
        mpri_store_f64(dtype, data, i, v);
    } else {
        int64_t v;
        TRY(mpri_read_i64(r, &v));
        mpri_store_i64(dtype, data, i, v);
    }
    return MPR_OK;
}

mpr_status mpri_read_contents(Reader *r, DType dtype, const Shape *shape, const void **data)
{
    int64_t n = mpri_shape_elements(shape);
    size_t size = mpri_dtype_size(dtype);
    if (mpri_read_accept(r, "<"))
        return mpri_read_fail(r, "the contents of this constant are not in the text");
    if (n < 0 || size == 0)
        return mpri_read_fail(r, "contents need a constant shape and a computable type");
    char *p = mpri_arena_array(r->arena, (size_t)n, size);
    if (!p) return mpri_err_nomem(r->err, (size_t)n);
    *data = p;
    if (mpri_read_accept(r, "splat(")) {
        TRY(read_element(r, dtype, p, 0));
        for (int64_t i = 1; i < n; i++) memcpy(p + (size_t)i * size, p, size);
        return mpri_read_expect(r, ")");
    }
    if (!mpri_read_accept(r, "[")) {
        if (n != 1) return mpri_read_fail(r, "one number for %lld elements", (long long)n);
        return read_element(r, dtype, p, 0);
    }
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) TRY(mpri_read_expect(r, ","));
        TRY(read_element(r, dtype, p, i));
    }
    return mpri_read_expect(r, "]");
}

/* ---- attributes ---- */

/* Numbers between brackets: at most as many as there are commas left on the line, plus one. */
static int64_t count_room(const char *p)
{
    int64_t n = 1;
    for (; *p && *p != ']' && *p != '\n'; p++) n += *p == ',';
    return n;
}

static mpr_status read_list(Reader *r, bool floats, void *field)
{
    TRY(mpri_read_expect(r, "["));
    int64_t room = count_room(r->p), n = 0;
    int64_t *ints = ARENA_ARRAY(r->arena, int64_t, room);
    float *reals = ARENA_ARRAY(r->arena, float, room);
    if (!ints || !reals) return mpri_err_nomem(r->err, (size_t)room * 8);
    while (!mpri_read_accept(r, "]")) {
        double v = 0;
        if (n > 0) TRY(mpri_read_expect(r, ","));
        if (n == room) return mpri_read_fail(r, "expected ']'");
        if (floats)
            TRY(mpri_read_f64(r, &v));
        else
            TRY(mpri_read_i64(r, &ints[n]));
        reals[n++] = (float)v;
    }
    if (floats)
        *(Floats *)field = (Floats){n, reals};
    else
        *(Ints *)field = (Ints){n, ints};
    return MPR_OK;
}

static mpr_status read_attribute(Reader *r, const AttrRow *row, void *field)
{
    char *word;
    double v;
    switch (row->kind) {
    case ATTR_INT: return mpri_read_i64(r, field);
    case ATTR_FLOAT:
        TRY(mpri_read_f64(r, &v));
        *(float *)field = (float)v;
        return MPR_OK;
    case ATTR_DTYPE:
        TRY(mpri_read_name(r, &word));
        *(int64_t *)field = mpri_dtype_parse(word);
        if (*(int64_t *)field == MPR_DTYPE_NONE && strcmp(word, "undefined"))
            return mpri_read_fail(r, "unknown type '%s'", mpri_err_name(word));
        return MPR_OK;
    case ATTR_STRING:
        TRY(mpri_read_expect(r, "\""));
        TRY(read_quoted(r, &word));
        *(const char **)field = word;
        return MPR_OK;
    case ATTR_INTS: return read_list(r, false, field);
    case ATTR_FLOATS: return read_list(r, true, field);
    case ATTR_TENSOR: {
        TensorAttr *t = field;
        TRY(mpri_read_type(r, &t->dtype, &t->shape));
        return mpri_read_contents(r, t->dtype, &t->shape, &t->data);
    }
    }
    return MPR_OK;
}

/* A text or a tensor that the operator cannot do without: numbers have a value, 0, in any case. And values that
 * are allowed. */
static mpr_status check_values(Reader *r, const OpDef *op, const void *params)
{
    for (const AttrRow *row = op->attrs; row && row->name; row++) {
        const void *at = (const char *)params + row->offset;
        bool absent = row->kind == ATTR_STRING   ? !*(const char *const *)at
                      : row->kind == ATTR_TENSOR ? !((const TensorAttr *)at)->dtype
                                                 : false;
        if (row->required && absent)
            return mpri_read_fail(r, "%s needs the attribute '%s'", op->name, row->name);
        if (mpri_params_row_allows(row, at)) continue;
        if (row->kind == ATTR_STRING)
            return mpri_read_fail(r, "attribute '%s' of %s is '%s', allowed %s", row->name, op->name,
                                  mpri_err_name(*(const char *const *)at), row->choices);
        return mpri_read_fail(r, "attribute '%s' of %s is %lld, allowed %lld to %lld", row->name, op->name,
                              (long long)*(const int64_t *)at, (long long)row->min_int, (long long)row->max_int);
    }
    return MPR_OK;
}

mpr_status mpri_read_attributes(Reader *r, const OpDef *op, void *params)
{
    if (!mpri_read_accept(r, "{")) return check_values(r, op, params);
    do {
        char *name;
        TRY(mpri_read_name(r, &name));
        const AttrRow *row = mpri_params_row(op, name);
        if (!row)
            return mpri_read_fail(r, "%s has no attribute '%s'", op->name, mpri_err_name(name));
        TRY(mpri_read_expect(r, "="));
        TRY(read_attribute(r, row, (char *)params + row->offset));
    } while (mpri_read_accept(r, ","));
    TRY(mpri_read_expect(r, "}"));
    return check_values(r, op, params);
}
