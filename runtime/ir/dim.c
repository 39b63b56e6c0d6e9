/* Symbolic dimensions: hash-consed polynomials over atoms.
 *
 * A polynomial is a sorted list of terms, a term a coefficient and a sorted multiset of atoms; the
 * order is by degree, then by the atoms' structure (never by their index), so the printed form does
 * not depend on which expression was made first. Handle -1 always exists and is what failures
 * return. The trap: what does not fit (too many terms, too high a degree, overflow of a
 * coefficient) must still be equal to itself, so it becomes an atom keyed by operation and
 * operands, not a new unknown each time. */
#include "runtime/ir/dim.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/hash.h"
#include "runtime/base/size.h"
#include "runtime/ir/dim_poly.h"

typedef struct PolyEntry {
    UT_hash_handle hh;
    bool lost;
    int index;
} PolyEntry;

typedef struct AtomEntry {
    UT_hash_handle hh;
    bool lost;
    int index;
    AtomKey key;
} AtomEntry;

struct SymTab {
    Arena *arena;
    Intern *names;
    Atom *atoms;
    int n_atoms, cap_atoms;
    Poly *polys;
    int n_polys, cap_polys;
    PolyEntry *poly_index;
    AtomEntry *atom_index;
    int64_t next_fresh;
    bool failed;
};

enum { FALLBACK = -1 };

/* ---- storage ---- */

static bool grow(SymTab *s, void **rows, int n, int *cap, size_t size)
{
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 16;
    void *p = want > *cap ? mpri_arena_array(s->arena, (size_t)want, size) : NULL;
    if (!p) {
        s->failed = true;
        return false;
    }
    if (n) memcpy(p, *rows, (size_t)n * size);
    *rows = p;
    *cap = want;
    return true;
}

/* Index of the atom with this key, made when it is new; -1 without memory. */
static int atom_of(SymTab *s, AtomKind kind, const char *name, int64_t a, int64_t b)
{
    Arena *hash_arena = s->arena;
    AtomKey key;
    memset(&key, 0, sizeof key);
    key.kind = kind;
    key.name = name;
    key.a = a;
    key.b = b;
    AtomEntry *e;
    HASH_FIND(hh, s->atom_index, &key, sizeof key, e);
    if (e) return e->index;
    e = ARENA_NEW(s->arena, AtomEntry);
    if (!e || !grow(s, (void **)&s->atoms, s->n_atoms, &s->cap_atoms, sizeof(Atom))) {
        s->failed = true;
        return -1;
    }
    e->key = key;
    e->index = s->n_atoms;
    HASH_ADD(hh, s->atom_index, key, sizeof e->key, e);
    if (e->lost) {
        s->failed = true;
        return -1;
    }
    s->atoms[s->n_atoms] = (Atom){kind, name, a, b};
    return s->n_atoms++;
}

/* Handle of a normalised polynomial; a constant >= 0 when it is one. */
static Dim dim_of(SymTab *s, const PolyBuf *p)
{
    if (p->n == 0) return 0;
    if (p->n == 1 && p->t[0].n == 0 && p->t[0].coef >= 0) return p->t[0].coef;
    size_t bytes = (size_t)p->n * sizeof(Term);
    PolyEntry *e;
    HASH_FIND(hh, s->poly_index, p->t, bytes, e);
    if (e) return -1 - (Dim)e->index;
    Arena *hash_arena = s->arena;
    e = ARENA_NEW(s->arena, PolyEntry);
    Term *t = mpri_arena_dup(s->arena, p->t, bytes);
    if (!e || !t || !grow(s, (void **)&s->polys, s->n_polys, &s->cap_polys, sizeof(Poly))) {
        s->failed = true;
        return FALLBACK;
    }
    e->index = s->n_polys;
    HASH_ADD_KEYPTR(hh, s->poly_index, t, bytes, e);
    if (e->lost) {
        s->failed = true;
        return FALLBACK;
    }
    s->polys[s->n_polys] = (Poly){p->n, t};
    return -1 - (Dim)s->n_polys++;
}

static Dim dim_of_atom(SymTab *s, int atom)
{
    if (atom < 0) return FALLBACK;
    PolyBuf p;
    memset(&p, 0, sizeof p);
    p.n = 1;
    p.t[0].coef = 1;
    p.t[0].n = 1;
    p.t[0].atom[0] = atom;
    return dim_of(s, &p);
}

bool mpri_dim_poly(const SymTab *s, Dim d, Poly *out, Term *scratch)
{
    if (d >= 0) {
        memset(scratch, 0, sizeof *scratch);
        scratch->coef = d;
        *out = (Poly){d != 0, scratch};
        return true;
    }
    int64_t index = -1 - d;
    if (index >= s->n_polys) return false;
    *out = s->polys[index];
    return true;
}

const Atom *mpri_dim_atom(const SymTab *s, int atom)
{
    return &s->atoms[atom];
}

int mpri_dim_atom_count(const SymTab *s)
{
    return s->n_atoms;
}

SymTab *mpri_symtab_create(Arena *arena, Intern *names)
{
    SymTab *s = ARENA_NEW(arena, SymTab);
    if (!s) return NULL;
    s->arena = arena;
    s->names = names;
    mpri_dim_fresh(s); /* handle -1 */
    return s->failed ? NULL : s;
}

SymTab *mpri_symtab_clone(const SymTab *s, Arena *arena, Intern *names)
{
    SymTab *c = mpri_symtab_create(arena, names);
    if (!c) return NULL;
    for (int i = 1; i < s->n_atoms; i++)
        atom_of(c, s->atoms[i].kind, s->atoms[i].name, s->atoms[i].a, s->atoms[i].b);
    for (int i = 1; i < s->n_polys; i++) {
        PolyBuf p;
        p.n = s->polys[i].n;
        memcpy(p.t, s->polys[i].t, (size_t)p.n * sizeof(Term));
        dim_of(c, &p);
    }
    bool same = c->n_atoms == s->n_atoms && c->n_polys == s->n_polys;
    c->next_fresh = s->next_fresh;
    c->failed |= s->failed;
    return same ? c : NULL;
}

void mpri_symtab_move(SymTab *s, Arena *arena)
{
    s->arena = arena;
}

void mpri_symtab_reserve(SymTab *s, int64_t number)
{
    if (s->next_fresh <= number && number < INT64_MAX) s->next_fresh = number + 1;
}

bool mpri_symtab_failed(const SymTab *s)
{
    return s->failed;
}

/* ---- order ---- */

static int poly_compare(const SymTab *s, Dim a, Dim b);

static int atom_compare(const SymTab *s, int x, int y)
{
    if (x == y) return 0;
    const Atom *a = &s->atoms[x], *b = &s->atoms[y];
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->kind == ATOM_NAMED) return strcmp(a->name, b->name);
    if (a->kind == ATOM_FRESH) return a->a < b->a ? -1 : 1;
    int c = poly_compare(s, a->a, b->a);
    return c ? c : poly_compare(s, a->b, b->b);
}

/* Graded order: a monomial order, as the division below needs. */
static int term_compare(const SymTab *s, const Term *a, const Term *b)
{
    if (a->n != b->n) return a->n > b->n ? -1 : 1;
    for (int i = 0; i < a->n; i++) {
        int c = atom_compare(s, a->atom[i], b->atom[i]);
        if (c) return c;
    }
    return 0;
}

static int poly_compare(const SymTab *s, Dim a, Dim b)
{
    if (a == b) return 0;
    Term ta, tb;
    Poly p, q;
    if (!mpri_dim_poly(s, a, &p, &ta) || !mpri_dim_poly(s, b, &q, &tb)) return a < b ? -1 : 1;
    for (int i = 0; i < p.n && i < q.n; i++) {
        int c = term_compare(s, &p.t[i], &q.t[i]);
        if (c) return c;
        if (p.t[i].coef != q.t[i].coef) return p.t[i].coef < q.t[i].coef ? -1 : 1;
    }
    return p.n < q.n ? -1 : 1;
}

/* ---- arithmetic on buffers; false: does not fit ---- */

static bool buf_load(const SymTab *s, Dim d, PolyBuf *out)
{
    Term scratch;
    Poly p;
    if (!mpri_dim_poly(s, d, &p, &scratch)) return false;
    out->n = p.n;
    if (p.n) memcpy(out->t, p.t, (size_t)p.n * sizeof(Term));
    return true;
}

static bool buf_add_term(const SymTab *s, PolyBuf *p, const Term *t)
{
    int i = 0, c = 1;
    while (i < p->n && (c = term_compare(s, &p->t[i], t)) < 0) i++;
    if (i < p->n && c == 0) {
        if (__builtin_add_overflow(p->t[i].coef, t->coef, &p->t[i].coef)) return false;
        if (p->t[i].coef == 0) {
            memmove(&p->t[i], &p->t[i + 1], (size_t)(p->n - i - 1) * sizeof(Term));
            p->n--;
        }
        return true;
    }
    if (t->coef == 0) return true;
    if (p->n == MAX_TERMS) return false;
    memmove(&p->t[i + 1], &p->t[i], (size_t)(p->n - i) * sizeof(Term));
    p->t[i] = *t;
    p->n++;
    return true;
}

static bool term_mul(const SymTab *s, const Term *a, const Term *b, Term *out)
{
    memset(out, 0, sizeof *out);
    if (a->n + b->n > MAX_DEGREE) return false;
    if (__builtin_mul_overflow(a->coef, b->coef, &out->coef)) return false;
    int i = 0, j = 0;
    while (i < a->n || j < b->n) {
        bool left = j == b->n || (i < a->n && atom_compare(s, a->atom[i], b->atom[j]) <= 0);
        out->atom[out->n++] = left ? a->atom[i++] : b->atom[j++];
    }
    return true;
}

/* p += scale * t * q */
static bool buf_add_product(const SymTab *s, PolyBuf *p, const Term *t, const PolyBuf *q)
{
    for (int i = 0; i < q->n; i++) {
        Term product;
        if (!term_mul(s, t, &q->t[i], &product) || !buf_add_term(s, p, &product)) return false;
    }
    return true;
}

/* Quotient of two terms when the divisor's atoms are all there and the coefficients divide. */
static bool term_div(const Term *a, const Term *b, Term *out)
{
    memset(out, 0, sizeof *out);
    if (b->coef == 0 || (b->coef == -1 && a->coef == INT64_MIN) || a->coef % b->coef != 0)
        return false;
    out->coef = a->coef / b->coef;
    int j = 0;
    for (int i = 0; i < a->n; i++) {
        if (j < b->n && a->atom[i] == b->atom[j])
            j++;
        else
            out->atom[out->n++] = a->atom[i];
    }
    return j == b->n;
}

/* Exact division by leading terms. */
static bool buf_div_exact(const SymTab *s, const PolyBuf *a, const PolyBuf *b, PolyBuf *quotient)
{
    PolyBuf rest = *a;
    quotient->n = 0;
    for (int guard = 0; rest.n > 0 && guard < 4 * MAX_TERMS; guard++) {
        Term q;
        if (!term_div(&rest.t[0], &b->t[0], &q) || !buf_add_term(s, quotient, &q)) return false;
        if (q.coef == INT64_MIN) return false;
        Term minus = q;
        minus.coef = -q.coef;
        if (!buf_add_product(s, &rest, &minus, b)) return false;
    }
    return rest.n == 0;
}

/* ---- operations ---- */

Dim mpri_dim_named(SymTab *s, const char *dim_param)
{
    const char *name = mpri_intern(s->names, dim_param);
    if (!name) {
        s->failed = true;
        return FALLBACK;
    }
    return dim_of_atom(s, atom_of(s, ATOM_NAMED, name, 0, 0));
}

Dim mpri_dim_fresh_number(SymTab *s, int64_t number)
{
    mpri_symtab_reserve(s, number);
    return dim_of_atom(s, atom_of(s, ATOM_FRESH, NULL, number, 0));
}

Dim mpri_dim_fresh(SymTab *s)
{
    return mpri_dim_fresh_number(s, s->next_fresh);
}

/* An operation that stays unevaluated. Two integers that got here overflowed or divided by zero. */
static Dim dim_opaque(SymTab *s, AtomKind kind, Dim a, Dim b)
{
    int64_t x, y;
    if (mpri_dim_is_int(s, a, &x) && mpri_dim_is_int(s, b, &y)) return mpri_dim_fresh(s);
    bool commutes = kind == ATOM_ADD || kind == ATOM_MUL || kind == ATOM_MIN || kind == ATOM_MAX;
    if (commutes && poly_compare(s, a, b) > 0) {
        Dim t = a;
        a = b;
        b = t;
    }
    return dim_of_atom(s, atom_of(s, kind, NULL, a, b));
}

static Dim dim_sum(SymTab *s, Dim a, Dim b, int64_t sign)
{
    PolyBuf p, q;
    Term one;
    memset(&one, 0, sizeof one);
    one.coef = sign;
    if (buf_load(s, a, &p) && buf_load(s, b, &q) && buf_add_product(s, &p, &one, &q))
        return dim_of(s, &p);
    return dim_opaque(s, sign > 0 ? ATOM_ADD : ATOM_SUB, a, b);
}

Dim mpri_dim_add(SymTab *s, Dim a, Dim b)
{
    Dim r;
    if (a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, &r)) return r;
    return dim_sum(s, a, b, 1);
}

Dim mpri_dim_sub(SymTab *s, Dim a, Dim b)
{
    if (a >= b && b >= 0) return a - b;
    return dim_sum(s, a, b, -1);
}

Dim mpri_dim_mul(SymTab *s, Dim a, Dim b)
{
    Dim r;
    if (a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, &r)) return r;
    PolyBuf p, q, product = {.n = 0};
    bool fits = buf_load(s, a, &p) && buf_load(s, b, &q);
    for (int i = 0; fits && i < p.n; i++) fits = buf_add_product(s, &product, &p.t[i], &q);
    return fits ? dim_of(s, &product) : dim_opaque(s, ATOM_MUL, a, b);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

/* Split a by a positive integer k: a = k * quotient + rest, with rest as small as term by term
 * allows. */
static bool split_by_int(const SymTab *s, Dim a, int64_t k, PolyBuf *quotient, PolyBuf *rest)
{
    PolyBuf p;
    if (!buf_load(s, a, &p)) return false;
    quotient->n = rest->n = 0;
    for (int i = 0; i < p.n; i++) {
        Term q = p.t[i], r = p.t[i];
        bool whole = q.n == 0 || q.coef % k == 0;
        q.coef = whole ? floor_div(p.t[i].coef, k) : 0;
        r.coef = whole ? p.t[i].coef - q.coef * k : p.t[i].coef;
        if (!buf_add_term(s, quotient, &q) || !buf_add_term(s, rest, &r)) return false;
    }
    return true;
}

Dim mpri_dim_div(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    bool whole = mpri_dim_is_int(s, b, &y);
    if (whole && y != 0 && mpri_dim_is_int(s, a, &x) && !(y == -1 && x == INT64_MIN))
        return mpri_dim_int(s, floor_div(x, y));
    if (a == 0 && !(whole && y == 0)) return 0;
    PolyBuf p, q, quotient, rest;
    if (whole && y > 0 && split_by_int(s, a, y, &quotient, &rest)) {
        Dim r = dim_of(s, &rest);
        if (r >= 0 && r < y) return dim_of(s, &quotient);
        return mpri_dim_add(s, dim_of(s, &quotient), dim_opaque(s, ATOM_DIV, r, b));
    }
    if (!(whole && y == 0) && buf_load(s, a, &p) && buf_load(s, b, &q) &&
        buf_div_exact(s, &p, &q, &quotient))
        return dim_of(s, &quotient);
    return dim_opaque(s, ATOM_DIV, a, b);
}

Dim mpri_dim_mod(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    bool whole = mpri_dim_is_int(s, b, &y);
    if (whole && (y == 1 || y == -1)) return 0;
    if (whole && y != 0 && mpri_dim_is_int(s, a, &x))
        return mpri_dim_int(s, x - floor_div(x, y) * y);
    if (a == 0 && !(whole && y == 0)) return 0;
    PolyBuf p, q, quotient, rest;
    if (whole && y > 0 && split_by_int(s, a, y, &quotient, &rest)) {
        Dim r = dim_of(s, &rest);
        return r >= 0 && r < y ? r : dim_opaque(s, ATOM_MOD, r, b);
    }
    if (!(whole && y == 0) && buf_load(s, a, &p) && buf_load(s, b, &q) &&
        buf_div_exact(s, &p, &q, &quotient))
        return 0;
    return dim_opaque(s, ATOM_MOD, a, b);
}

static bool dim_not_negative(const SymTab *s, Dim d);

static bool atom_not_negative(const SymTab *s, int atom)
{
    const Atom *a = &s->atoms[atom];
    switch (a->kind) {
    case ATOM_NAMED:
    case ATOM_FRESH: return true;
    case ATOM_SUB: return false;
    case ATOM_MOD: return dim_not_negative(s, a->b);
    case ATOM_MAX: return dim_not_negative(s, a->a) || dim_not_negative(s, a->b);
    default: return dim_not_negative(s, a->a) && dim_not_negative(s, a->b);
    }
}

/* Sufficient: every term is a product of things that are >= 0. */
static bool dim_not_negative(const SymTab *s, Dim d)
{
    Term scratch;
    Poly p;
    if (!mpri_dim_poly(s, d, &p, &scratch)) return false;
    for (int i = 0; i < p.n; i++) {
        if (p.t[i].coef < 0) return false;
        for (int k = 0; k < p.t[i].n; k++)
            if (!atom_not_negative(s, p.t[i].atom[k])) return false;
    }
    return true;
}

Dim mpri_dim_min(SymTab *s, Dim a, Dim b)
{
    if (a >= 0 && b >= 0) return a < b ? a : b;
    if (dim_not_negative(s, mpri_dim_sub(s, a, b))) return b;
    if (dim_not_negative(s, mpri_dim_sub(s, b, a))) return a;
    int64_t x, y;
    if (mpri_dim_is_int(s, a, &x) && mpri_dim_is_int(s, b, &y)) return x < y ? a : b;
    return dim_opaque(s, ATOM_MIN, a, b);
}

Dim mpri_dim_max(SymTab *s, Dim a, Dim b)
{
    if (a >= 0 && b >= 0) return a > b ? a : b;
    if (dim_not_negative(s, mpri_dim_sub(s, a, b))) return a;
    if (dim_not_negative(s, mpri_dim_sub(s, b, a))) return b;
    int64_t x, y;
    if (mpri_dim_is_int(s, a, &x) && mpri_dim_is_int(s, b, &y)) return x > y ? a : b;
    return dim_opaque(s, ATOM_MAX, a, b);
}

Dim mpri_dim_int(SymTab *s, int64_t v)
{
    if (v >= 0) return v;
    PolyBuf p;
    memset(&p, 0, sizeof p);
    p.n = 1;
    p.t[0].coef = v;
    return dim_of(s, &p);
}

bool mpri_dim_is_int(const SymTab *s, Dim d, int64_t *v)
{
    Term scratch;
    Poly p;
    if (!mpri_dim_poly(s, d, &p, &scratch)) return false;
    if (p.n > 1 || (p.n == 1 && p.t[0].n > 0)) return false;
    *v = p.n ? p.t[0].coef : 0;
    return true;
}

Dim mpri_dim_apply(SymTab *s, AtomKind kind, Dim a, Dim b)
{
    switch (kind) {
    case ATOM_DIV: return mpri_dim_div(s, a, b);
    case ATOM_MOD: return mpri_dim_mod(s, a, b);
    case ATOM_MIN: return mpri_dim_min(s, a, b);
    case ATOM_MAX: return mpri_dim_max(s, a, b);
    case ATOM_ADD: return mpri_dim_add(s, a, b);
    case ATOM_SUB: return mpri_dim_sub(s, a, b);
    case ATOM_MUL: return mpri_dim_mul(s, a, b);
    case ATOM_NAMED:
    case ATOM_FRESH: break;
    }
    return mpri_dim_fresh(s);
}

bool mpri_shape_in_range(const Shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++)
        if (s->d[i] > 0 && (__builtin_mul_overflow(n, s->d[i], &n) || n > MPRI_MOST_ELEMENTS)) return false;
    return true;
}

int64_t mpri_shape_elements(const Shape *s)
{
    int64_t n;
    if (s->rank < 0 || !mpri_size_elements(s->rank, s->d, &n)) return -1;
    return n;
}
