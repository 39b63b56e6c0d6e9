/* Reading case files. A line that begins with a blank continues the row above it; '#' begins a
 * comment. The trap: a row that cannot be read must fail where it stands and not hide the others,
 * so the first problem is kept in the row and the reader goes on with the next one. */
#include "tests/support/case_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/text.h"
#include "tests/support/kernels.h"

typedef struct Cursor {
    const char *p;
    CaseRow *row;
    Arena *arena;
} Cursor;

static bool broken(Cursor *c, const char *fmt, ...) MPRI_PRINTF(2, 3);
static bool broken(Cursor *c, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!c->row->broken)
        c->row->broken = mpri_arena_printf(c->arena, "%s, before '%.30s'", text, c->p);
    return false;
}

static void blank(Cursor *c) { c->p += strspn(c->p, " \t\n"); }

static bool accept(Cursor *c, const char *s)
{
    blank(c);
    size_t n = strlen(s);
    if (strncmp(c->p, s, n)) return false;
    c->p += n;
    return true;
}

static bool expect(Cursor *c, const char *s)
{
    return accept(c, s) || broken(c, "expected '%s'", s);
}

static char *copy(Arena *a, const char *s, size_t n)
{
    char *p = mpri_arena_alloc(a, n + 1);
    if (p) {
        memcpy(p, s, n);
        p[n] = '\0';
    }
    return p;
}

/* Up to a blank or one of `stop`. */
static bool word(Cursor *c, const char *stop, char *out, size_t size)
{
    blank(c);
    size_t n = 0;
    while (c->p[n] && !strchr(" \t\n", c->p[n]) && !strchr(stop, c->p[n])) n++;
    if (n == 0 || n >= size) return false;
    memcpy(out, c->p, n);
    out[n] = '\0';
    c->p += n;
    return true;
}

/* ---- tensors ---- */

static bool read_type(Cursor *c, CaseArg *a)
{
    char name[16];
    if (!word(c, "[,()=", name, sizeof name)) return broken(c, "expected a type");
    a->dtype = mpri_dtype_parse(name);
    if (!mpri_dtype_size(a->dtype)) return broken(c, "no such type: '%s'", name);
    if (!expect(c, "[")) return false;
    while (!accept(c, "]")) {
        char *end;
        if (a->rank && !expect(c, ",")) return false;
        if (a->rank == MPRI_TENSOR_RANK) return broken(c, "more than %d dims", MPRI_TENSOR_RANK);
        a->dims[a->rank++] = strtoll(c->p, &end, 10);
        if (end == c->p || a->dims[a->rank - 1] < 0) return broken(c, "expected a dim");
        c->p = end;
    }
    return true;
}

static bool read_element(Cursor *c, Tensor *t, int64_t i)
{
    char text[64];
    double real;
    int64_t whole;
    if (!word(c, ",()~", text, sizeof text)) return broken(c, "expected a number");
    if (mpri_dtype_is_float(t->dtype)) {
        if (!mpri_parse_f64(text, &real)) return broken(c, "'%s' is no number", text);
        mpri_store_f64(t->dtype, t->data, i, real);
        return true;
    }
    char *end = text;
    if (t->dtype == MPR_UINT64) whole = (int64_t)strtoull(text, &end, 10);
    else if (!mpri_parse_i64(text, &whole)) return broken(c, "'%s' is no integer", text);
    if (t->dtype == MPR_UINT64 && (*end || end == text)) return broken(c, "bad number '%s'", text);
    mpri_store_i64(t->dtype, t->data, i, whole);
    if (mpri_load_i64(t->dtype, t->data, i) != whole)
        return broken(c, "'%s' does not fit %s", text, mpri_dtype_name(t->dtype));
    return true;
}

static bool read_values(Cursor *c, CaseArg *a)
{
    a->valued = true;
    a->t = test_tensor_new(c->arena, a->dtype, a->rank, a->dims);
    if (accept(c, "splat(")) {
        for (int64_t i = 0; i < a->t.n; i++) {
            const char *start = c->p;
            if (!read_element(c, &a->t, i)) return false;
            if (i + 1 < a->t.n) c->p = start;
        }
        return expect(c, ")");
    }
    for (int64_t i = 0; i < a->t.n; i++) {
        blank(c);
        if (!*c->p || strchr(",)~", *c->p))
            return broken(c, "%lld elements need as many numbers, found %lld", (long long)a->t.n,
                          (long long)i);
        if (!read_element(c, &a->t, i)) return false;
    }
    blank(c);
    if (*c->p && !strchr(",)~", *c->p))
        return broken(c, "more numbers than the %lld elements", (long long)a->t.n);
    return true;
}

static bool read_range(Cursor *c, double *low, double *high)
{
    char text[64];
    if (!word(c, ",()", text, sizeof text)) return broken(c, "expected a range low..high");
    char *dots = strstr(text, "..");
    if (dots) *dots = '\0';
    if (!dots || !mpri_parse_f64(text, low) || !mpri_parse_f64(dots + 2, high) || *low > *high)
        return broken(c, "expected a range low..high");
    return true;
}

static bool read_tensor(Cursor *c, CaseArg *a)
{
    if (!read_type(c, a)) return false;
    bool empty = false;
    for (int k = 0; k < a->rank; k++) empty = empty || a->dims[k] == 0;
    if (accept(c, "=") || (empty && c->row->kind != ROW_GRAD)) return read_values(c, a);
    a->ranged = accept(c, "in ");
    if (a->ranged) return read_range(c, &a->low, &a->high);
    if (c->row->kind == ROW_GRAD || c->row->kind == ROW_FAULT) return true;
    return broken(c, "expected '=' and the values");
}

/* ---- rows ---- */

/* "a1": argument 1 once more. */
static bool read_same(Cursor *c, CaseArg *a)
{
    char *end;
    const CaseRow *r = c->row;
    blank(c);
    if (c->p[0] != 'a' || c->p[1] < '0' || c->p[1] > '9') return false;
    long k = strtol(c->p + 1, &end, 10);
    if (k + 1 >= r->n_in || r->in[k].absent || r->in[k].same) return false;
    *a = r->in[k];
    a->same = (int)k + 1;
    c->p = end;
    return true;
}

static bool read_arguments(Cursor *c)
{
    CaseRow *r = c->row;
    while (!accept(c, ")")) {
        if (r->n_in && !expect(c, ",")) return false;
        if (r->n_in == CASE_ARGS) return broken(c, "more than %d arguments", CASE_ARGS);
        CaseArg *a = &r->in[r->n_in++];
        blank(c);
        a->absent = c->p[0] == '-' && strchr(" ,)", c->p[1]);
        if (a->absent) c->p++;
        else if (!read_same(c, a) && !read_tensor(c, a)) return false;
        if (r->kind == ROW_GRAD && !a->absent && !a->valued && !mpri_dtype_is_float(a->dtype))
            return broken(c, "only float inputs are differentiated: '= values' is missing");
    }
    return true;
}

static bool read_result(Cursor *c)
{
    CaseRow *r = c->row;
    char name[64];
    if (r->n_out == CASE_RESULTS) return broken(c, "more than %d results", CASE_RESULTS);
    CaseArg *a = &r->out[r->n_out++];
    blank(c);
    a->absent = c->p[0] == '_' && (!c->p[1] || strchr(" ,)\n", c->p[1]));
    if (a->absent) return accept(c, "_");
    if (r->kind != ROW_GRAD) return read_tensor(c, a);
    a->same = accept(c, "-");
    if (a->same || word(c, ",()", name, sizeof name)) return true;
    return broken(c, "expected the name of an output");
}

static bool read_results(Cursor *c)
{
    if (!accept(c, "(")) return read_result(c);
    do
        if (!read_result(c)) return false;
    while (accept(c, ","));
    return expect(c, ")");
}

static bool read_fault(Cursor *c)
{
    char name[64];
    if (!word(c, "", name, sizeof name)) return broken(c, "expected a status");
    for (int i = 1; i < 64 && c->row->code == MPR_OK; i++)
        if (strcmp(mpr_status_text((mpr_status)i), name) == 0) c->row->code = (mpr_status)i;
    if (c->row->code == MPR_OK) return broken(c, "no such status: '%s'", name);
    blank(c);
    c->row->words = copy(c->arena, c->p, strlen(c->p));
    c->p += strlen(c->p);
    return true;
}

static bool read_number(Cursor *c, double *out)
{
    char text[64];
    return (word(c, "", text, sizeof text) && mpri_parse_f64(text, out)) ||
           broken(c, "expected a number");
}

static bool read_rest(Cursor *c)
{
    CaseRow *r = c->row;
    while (*c->p) {
        if (r->kind == ROW_GRAD && accept(c, "in ")) {
            if (!read_range(c, &r->low, &r->high)) return false;
        } else if (r->kind == ROW_GRAD && accept(c, "ulp ")) {
            if (!read_number(c, &r->ulp)) return false;
        } else if (r->kind != ROW_GRAD && r->n_out && accept(c, "~")) {
            if (!read_number(c, &r->tolerance)) return false;
        } else if (!r->n_out && accept(c, "->")) {
            if (!(r->kind == ROW_FAULT ? read_fault(c) : read_results(c))) return false;
        } else {
            return broken(c, "this does not belong to the row");
        }
        blank(c);
    }
    if (r->kind == ROW_FAULT ? r->code == MPR_OK : r->kind != ROW_GRAD && !r->n_out)
        return broken(c, "expected '->'");
    return true;
}

static bool read_attributes(Cursor *c)
{
    blank(c);
    bool quoted = false;
    const char *start = c->p;
    if (*c->p != '{') return true;
    for (; *c->p && (quoted || *c->p != '}'); c->p++) quoted ^= *c->p == '"';
    if (!expect(c, "}")) return false;
    c->row->attrs = copy(c->arena, start, (size_t)(c->p - start));
    return true;
}

static bool read_kind(Cursor *c)
{
    static const char *const names[] = {"value", "grad", "tie", "fault"};
    char name[16] = "";
    if (!word(c, "({", name, sizeof name)) return broken(c, "expected the kind of row");
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) {
            c->row->kind = (RowKind)i;
            return true;
        }
    return broken(c, "no such kind of row: '%s'", name);
}

static void read_row(Cursor *c)
{
    CaseRow *r = c->row;
    if (!r->op) {
        broken(c, r->type ? "no such operator: '%s'" : "expected an 'op' line%s",
               r->type ? r->type : "");
        return;
    }
    if (accept(c, "graph ") && !r->body) {
        broken(c, "a graph row ends with a line 'end'");
        return;
    }
    if (!read_kind(c) || !read_attributes(c)) return;
    if (!r->body && !expect(c, "(")) return;
    if (r->body && !accept(c, "(")) {
        read_rest(c);
        return;
    }
    if (read_arguments(c)) {
        blank(c);
        read_rest(c);
    }
}

/* ---- files ---- */

static const OpDef *find_op(const char *type)
{
    const OpTable *t = mpri_op_table();
    const char *colon = strrchr(type, ':');
    char domain[64];
    if (colon) {
        snprintf(domain, sizeof domain, "%.*s", (int)(colon - type), type);
        return t->find(domain, colon + 1);
    }
    const OpDef *op = t->find("", type);
    return op ? op : t->find("mpr", type);
}

static char *read_text(const char *path, Arena *arena)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = NULL;
    long n = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    if (n >= 0) text = mpri_arena_alloc(arena, (size_t)n + 1);
    if (text && (fseek(f, 0, SEEK_SET) || fread(text, 1, (size_t)n, f) != (size_t)n)) text = NULL;
    if (text) text[n] = '\0';
    fclose(f);
    return text;
}

static CaseRow *add_row(CaseFile *f, Arena *arena)
{
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 64;
        CaseRow *rows = ARENA_ARRAY(arena, CaseRow, cap);
        if (!rows) return NULL;
        if (f->n) memcpy(rows, f->rows, (size_t)f->n * sizeof *rows);
        f->rows = rows;
        f->cap = cap;
    }
    f->rows[f->n] = (CaseRow){.file = f->name, .attrs = "", .low = -1, .high = 1};
    return &f->rows[f->n++];
}

/* The next line without its comment, as a string; NULL at the end. */
static char *take_line(char **at)
{
    char *line = *at;
    if (!*line) return NULL;
    size_t n = strcspn(line, "\n");
    *at = line + n + (line[n] == '\n');
    line[n] = '\0';
    n = strcspn(line, "#");
    line[n] = '\0';
    while (n && strchr(" \t\r", line[n - 1])) line[--n] = '\0';
    return line;
}

/* The lines of a graph row up to `end`. */
static const char *take_body(char **at, int *number, Arena *arena)
{
    Text body;
    const char *line, *result = NULL;
    mpri_text_init(&body, mpri_alloc_default());
    while ((line = take_line(at))) {
        ++*number;
        if (strcmp(line, "end") == 0) {
            result = copy(arena, body.text ? body.text : "", body.len);
            break;
        }
        mpri_text_add(&body, "%s\n", line);
    }
    mpri_text_free(&body);
    return result;
}

bool test_case_file_read(CaseFile *f, const char *path, const char *name, Arena *arena)
{
    char *at = read_text(path, arena), *line;
    const char *type = NULL;
    const OpDef *op = NULL;
    *f = (CaseFile){.name = name};
    if (!at) return false;
    for (int number = 1; (line = take_line(&at)); number++) {
        if (!*line) continue;
        if (strncmp(line, "op ", 3) == 0) {
            type = line + 3 + strspn(line + 3, " ");
            op = find_op(type);
            if (op) continue;
        }
        CaseRow *r = add_row(f, arena);
        if (!r) return false;
        r->line = number;
        r->op = op;
        r->type = type;
        r->text = line;
        while (at[0] == ' ' || at[0] == '\t') { /* continued, unless it is a graph */
            if (strncmp(line, "graph ", 6) == 0) break;
            const char *more = take_line(&at);
            r->text = mpri_arena_printf(arena, "%s\n%s", r->text, more);
            number++;
        }
        if (strncmp(line, "graph ", 6) == 0) r->body = take_body(&at, &number, arena);
        read_row(&(Cursor){r->text, r, arena});
    }
    return true;
}
