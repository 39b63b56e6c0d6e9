/* CSV, read strictly: a ragged row, an open quote, an empty field or a word is never taken for a
 * number. */
#include "runtime/train/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/size.h"
#include "runtime/base/text.h"

typedef struct Cursor {
    const char *p, *end;
    int64_t line; /* of p, from 1 */
    int column;   /* of the field, from 1 */
    Arena *arena;
    char *field; /* text of the last field */
    size_t cap;
    Err *err;
} Cursor;

static mpr_status refuse(Cursor *c, const char *what)
{
    mpri_err_set(c->err, MPR_E_DATA, "CSV line %lld, column %d: %s", (long long)c->line, c->column,
                 what);
    return mpri_err_advice(c->err, "give every line as many plain numbers as the header has names");
}

static mpr_status put(Cursor *c, size_t *n, char byte)
{
    if (!byte) return refuse(c, "a NUL byte");
    if (*n + 1 >= MPRI_CSV_FIELD_LIMIT) return refuse(c, "a field of more than 1 MiB");
    if (*n + 1 >= c->cap) {
        char *grown = mpri_arena_alloc(c->arena, 2 * c->cap);
        if (!grown) return mpri_err_nomem(c->err, 2 * c->cap);
        memcpy(grown, c->field, *n);
        c->field = grown;
        c->cap *= 2;
    }
    c->field[(*n)++] = byte;
    return MPR_OK;
}

static mpr_status quoted(Cursor *c, size_t *n)
{
    int64_t opened = c->line;
    for (c->p++; c->p < c->end; c->p++) {
        if (*c->p == '\n') c->line++;
        if (*c->p != '"') {
            TRY(put(c, n, *c->p));
        } else if (c->p + 1 < c->end && c->p[1] == '"') {
            TRY(put(c, n, *c->p++));
        } else {
            c->p++;
            return MPR_OK;
        }
    }
    c->line = opened;
    return refuse(c, "a quote that never closes");
}

/* One field into c->field; *last when the line (or the file) ends behind it. */
static mpr_status field(Cursor *c, bool *last)
{
    size_t n = 0;
    if (c->p < c->end && *c->p == '"') {
        TRY(quoted(c, &n));
    } else {
        while (c->p < c->end && !strchr(",\r\n", *c->p)) TRY(put(c, &n, *c->p++));
        if (c->p < c->end && !*c->p) return refuse(c, "a NUL byte");
    }
    c->field[n] = 0;
    *last = true;
    if (c->p >= c->end) return MPR_OK;
    if (*c->p == ',') {
        c->p++;
        *last = false;
        return MPR_OK;
    }
    if (*c->p == '\r') c->p++;
    if (c->p < c->end && *c->p != '\n')
        return refuse(c, "text behind a quote or a lone carriage return");
    if (c->p < c->end) c->p++;
    return MPR_OK;
}

static mpr_status header(Cursor *c, Csv *out)
{
    int cap = 16;
    bool last = false;
    out->names = ARENA_ARRAY(c->arena, const char *, cap);
    if (!out->names) return mpri_err_nomem(c->err, 0);
    while (!last) {
        c->column = out->columns + 1;
        TRY(field(c, &last));
        if (!*c->field || !mpri_utf8_valid(c->field, strlen(c->field)))
            return refuse(c, "the name of a column is empty or not text");
        if (out->columns == cap) {
            const char **grown = ARENA_ARRAY(c->arena, const char *, 2 * cap);
            if (!grown) return mpri_err_nomem(c->err, 0);
            memcpy(grown, out->names, (size_t)cap * sizeof(*grown));
            out->names = grown;
            cap *= 2;
        }
        for (int i = 0; i < out->columns; i++)
            if (!strcmp(out->names[i], c->field))
                return refuse(c, "the name of a column is there twice");
        if (!(out->names[out->columns++] = mpri_arena_strdup(c->arena, c->field)))
            return mpri_err_nomem(c->err, 0);
    }
    c->line++;
    return MPR_OK;
}

static mpr_status number(Cursor *c, double *v)
{
    if (!*c->field) return refuse(c, "an empty field, a number is missing");
    if (mpri_parse_f64(c->field, v) && isfinite(*v)) return MPR_OK;
    mpri_err_set(c->err, MPR_E_DATA, "CSV line %lld, column %d: '%s' is no finite decimal number",
                 (long long)c->line, c->column, mpri_err_name(c->field));
    return mpri_err_advice(c->err, "write numbers as 1.5 or 1e-3");
}

static mpr_status row(Cursor *c, Csv *out, double *values)
{
    bool last = false;
    int n = 0;
    while (!last) {
        c->column = n + 1;
        TRY(field(c, &last));
        if (n < out->columns) {
            TRY(number(c, &values[n]));
            if (values[n] != floor(values[n]) || fabs(values[n]) > 0x1p53) out->whole[n] = false;
        }
        n++;
    }
    if (n != out->columns) {
        mpri_err_set(c->err, MPR_E_DATA, "CSV line %lld has %d fields, the header has %d",
                     (long long)c->line, n, out->columns);
        return mpri_err_advice(c->err, "give every line as many fields as the header has names");
    }
    c->line++;
    return MPR_OK;
}

mpr_status mpri_csv_parse(const char *text, size_t n, Arena *arena, Csv *out, Err *err)
{
    Cursor c = {
        .p = text, .end = text + n, .line = 1, .column = 1, .arena = arena, .cap = 256, .err = err};
    *out = (Csv){0};
    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) c.p += 3;
    if (c.p == c.end) return refuse(&c, "the file is empty");
    c.field = mpri_arena_alloc(arena, c.cap);
    if (!c.field) return mpri_err_nomem(err, c.cap);
    TRY(header(&c, out));
    int64_t lines = 0;
    for (const char *p = c.p; p < c.end; p++) lines += *p == '\n' || p + 1 == c.end;
    size_t count;
    if (!mpri_size_mul((size_t)lines, (size_t)out->columns, &count))
        return mpri_err_nomem(err, SIZE_MAX);
    out->values = ARENA_ARRAY(arena, double, count + 1);
    out->whole = ARENA_ARRAY(arena, bool, out->columns);
    if (!out->values || !out->whole) return mpri_err_nomem(err, count * sizeof(double));
    for (int i = 0; i < out->columns; i++) out->whole[i] = true;
    while (c.p < c.end) {
        TRY(row(&c, out, out->values + out->rows * out->columns));
        out->rows++;
    }
    return out->rows ? MPR_OK : refuse(&c, "there is no row below the header");
}

static int64_t number_of(const char *name, const char *key)
{
    size_t n = strlen(key);
    int64_t k;
    if (strncmp(name, key, n)) return -1;
    name += n;
    if (*name == '_' || *name == '.') name++;
    return *name >= '0' && *name <= '9' && mpri_parse_i64(name, &k) ? k : -1;
}

int mpri_csv_group(const Csv *c, const char *key, int *list)
{
    int n = 0;
    for (int i = 0; i < c->columns; i++)
        if (!strcmp(c->names[i], key)) {
            list[0] = i;
            return 1;
        }
    for (int i = 0; i < c->columns; i++) {
        int64_t k = number_of(c->names[i], key);
        if (k < 0) continue;
        int at = n++;
        while (at > 0 && number_of(c->names[list[at - 1]], key) > k) {
            list[at] = list[at - 1];
            at--;
        }
        if (at > 0 && number_of(c->names[list[at - 1]], key) == k) return -1;
        list[at] = i;
    }
    return n;
}
