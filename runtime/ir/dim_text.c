/* Text of dims: a sum of products, "2*batch*seq+1"; floor division and modulo in parentheses,
 * "(seq/2)"; "min(a,b)", "max(a,b)"; "?3" is an unknown. A name that is no identifier stands in
 * quotes, as it is except for a backslash before '"' and '\'. */
#include <stdio.h>
#include <string.h>

#include "runtime/ir/dim_poly.h"

/* ---- printing into a fixed buffer, cut when it is full ---- */

typedef struct Out {
    char *buf;
    size_t size, len;
} Out;

static void out_bytes(Out *o, const char *s, size_t n)
{
    for (size_t i = 0; i < n && o->len + 1 < o->size; i++) o->buf[o->len++] = s[i];
    if (o->size) o->buf[o->len] = '\0';
}

static void out_text(Out *o, const char *s)
{
    out_bytes(o, s, strlen(s));
}

static void out_int(Out *o, int64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    out_text(o, text);
}

static bool identifier_char(char c, bool first)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') return true;
    return !first && ((c >= '0' && c <= '9') || c == '.');
}

static bool is_identifier(const char *s)
{
    if (!strcmp(s, "min") || !strcmp(s, "max") || !identifier_char(*s, true)) return false;
    for (s++; *s; s++)
        if (!identifier_char(*s, false)) return false;
    return true;
}

static void out_name(Out *o, const char *name)
{
    if (is_identifier(name)) {
        out_text(o, name);
        return;
    }
    out_text(o, "\"");
    for (; *name; name++) {
        if (*name == '"' || *name == '\\') out_text(o, "\\");
        out_bytes(o, name, 1);
    }
    out_text(o, "\"");
}

static void out_dim(Out *o, const SymTab *s, Dim d);

static void out_operand(Out *o, const SymTab *s, Dim d)
{
    Term scratch;
    Poly p;
    bool bare = d >= 0 || (mpri_dim_poly(s, d, &p, &scratch) && p.n == 1 && p.t[0].coef == 1 &&
                           p.t[0].n == 1);
    if (!bare) out_text(o, "(");
    out_dim(o, s, d);
    if (!bare) out_text(o, ")");
}

static void out_atom(Out *o, const SymTab *s, const Atom *a)
{
    static const char *const operators[] =
        {[ATOM_DIV] = "/", [ATOM_MOD] = "%", [ATOM_MIN] = "min(", [ATOM_MAX] = "max(",
         [ATOM_ADD] = "+", [ATOM_SUB] = "-", [ATOM_MUL] = "*"};
    switch (a->kind) {
    case ATOM_NAMED: out_name(o, a->name); break;
    case ATOM_FRESH:
        out_text(o, "?");
        out_int(o, a->a);
        break;
    case ATOM_MIN:
    case ATOM_MAX:
        out_text(o, operators[a->kind]);
        out_dim(o, s, a->a);
        out_text(o, ",");
        out_dim(o, s, a->b);
        out_text(o, ")");
        break;
    default:
        out_text(o, "(");
        out_operand(o, s, a->a);
        out_text(o, operators[a->kind]);
        out_operand(o, s, a->b);
        out_text(o, ")");
        break;
    }
}

static void out_dim(Out *o, const SymTab *s, Dim d)
{
    Term scratch;
    Poly p;
    if (!mpri_dim_poly(s, d, &p, &scratch)) {
        out_text(o, "?");
        return;
    }
    if (p.n == 0) out_text(o, "0");
    for (int i = 0; i < p.n; i++) {
        const Term *t = &p.t[i];
        if (i > 0 && t->coef >= 0) out_text(o, "+");
        if (t->n == 0 || (t->coef != 1 && t->coef != -1))
            out_int(o, t->coef);
        else if (t->coef == -1)
            out_text(o, "-");
        for (int k = 0; k < t->n; k++) {
            if (k > 0 || (t->coef != 1 && t->coef != -1)) out_text(o, "*");
            out_atom(o, s, mpri_dim_atom(s, t->atom[k]));
        }
    }
}

const char *mpri_dim_print(const SymTab *s, Dim d, char *buf, size_t size)
{
    Out o = {buf, size, 0};
    out_dim(&o, s, d);
    return buf;
}

const char *mpri_shape_print(const SymTab *s, const Shape *shape, char *buf, size_t size)
{
    Out o = {buf, size, 0};
    out_text(&o, "[");
    if (shape->rank < 0) out_text(&o, "?");
    for (int i = 0; i < shape->rank; i++) {
        if (i > 0) out_text(&o, ",");
        out_dim(&o, s, shape->d[i]);
    }
    out_text(&o, "]");
    return buf;
}

/* ---- parsing: sum := product (('+'|'-') product)*; product := factor (('*'|'/'|'%') factor)* ----
 */

enum { NESTING = 64 };

typedef struct In {
    SymTab *s;
    const char *p, *end;
    int depth;
} In;

static bool in_sum(In *in, Dim *out);

static bool in_accept(In *in, char c)
{
    while (in->p < in->end && (*in->p == ' ' || *in->p == '\t')) in->p++;
    if (in->p == in->end || *in->p != c) return false;
    in->p++;
    return true;
}

static bool in_digits(In *in, int64_t *out)
{
    const char *start = in->p;
    int64_t v = 0;
    for (; in->p < in->end && *in->p >= '0' && *in->p <= '9'; in->p++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *in->p - '0', &v))
            return false;
    *out = v;
    return in->p > start;
}

static bool in_quoted(In *in, Dim *out)
{
    char name[512];
    size_t n = 0;
    while (in->p < in->end && *in->p != '"') {
        if (*in->p == '\\' && ++in->p == in->end) return false;
        if (n + 1 >= sizeof name) return false;
        name[n++] = *in->p++;
    }
    if (in->p == in->end) return false;
    in->p++;
    name[n] = '\0';
    *out = mpri_dim_named(in->s, name);
    return true;
}

static bool in_word(In *in, Dim *out)
{
    char name[512];
    size_t n = 0;
    while (in->p < in->end && identifier_char(*in->p, n == 0)) {
        if (n + 1 >= sizeof name) return false;
        name[n++] = *in->p++;
    }
    if (n == 0) return false;
    name[n] = '\0';
    bool min = !strcmp(name, "min"), max = !strcmp(name, "max");
    if ((min || max) && in_accept(in, '(')) {
        Dim a, b;
        if (!in_sum(in, &a) || !in_accept(in, ',') || !in_sum(in, &b) || !in_accept(in, ')'))
            return false;
        *out = mpri_dim_apply(in->s, min ? ATOM_MIN : ATOM_MAX, a, b);
        return true;
    }
    *out = mpri_dim_named(in->s, name);
    return true;
}

static bool in_factor(In *in, Dim *out)
{
    int64_t v;
    if (in_accept(in, '(')) return in_sum(in, out) && in_accept(in, ')');
    if (in_accept(in, '"')) return in_quoted(in, out);
    if (in_accept(in, '?')) {
        if (!in_digits(in, &v)) return false;
        *out = mpri_dim_fresh_number(in->s, v);
        return true;
    }
    if (in->p < in->end && *in->p >= '0' && *in->p <= '9') {
        if (!in_digits(in, &v)) return false;
        *out = v;
        return true;
    }
    return in_word(in, out);
}

static bool in_product(In *in, Dim *out)
{
    if (!in_factor(in, out)) return false;
    for (;;) {
        AtomKind kind;
        if (in_accept(in, '*'))
            kind = ATOM_MUL;
        else if (in_accept(in, '/'))
            kind = ATOM_DIV;
        else if (in_accept(in, '%'))
            kind = ATOM_MOD;
        else
            return true;
        Dim b;
        if (!in_factor(in, &b)) return false;
        *out = mpri_dim_apply(in->s, kind, *out, b);
    }
}

static bool in_sum(In *in, Dim *out)
{
    if (++in->depth > NESTING) return false;
    bool negative = in_accept(in, '-');
    if (!in_product(in, out)) return false;
    if (negative) *out = mpri_dim_sub(in->s, 0, *out);
    for (;;) {
        AtomKind kind;
        if (in_accept(in, '+'))
            kind = ATOM_ADD;
        else if (in_accept(in, '-'))
            kind = ATOM_SUB;
        else
            break;
        Dim b;
        if (!in_product(in, &b)) return false;
        *out = mpri_dim_apply(in->s, kind, *out, b);
    }
    in->depth--;
    return true;
}

bool mpri_dim_parse(SymTab *s, const char *text, size_t n, Dim *out)
{
    In in = {s, text, text + n, 0};
    Dim d;
    if (!in_sum(&in, &d)) return false;
    in_accept(&in, '\0'); /* skip blanks */
    if (in.p != in.end) return false;
    *out = d;
    return true;
}
