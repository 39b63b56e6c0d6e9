/* Values of atoms for one binding: evaluation, and solving for the only unbound atom.
 * A binding may see handles of a clone's table that its own table lacks; those stay as they are. */
#include <string.h>

#include "runtime/ir/dim_poly.h"

struct DimBinding {
    Arena *arena;
    SymTab *sym;
    int64_t *value; /* by atom; meaningful where bound */
    bool *bound;
    int cap;
};

DimBinding *mpri_binding_create(Arena *arena, SymTab *s)
{
    DimBinding *b = ARENA_NEW(arena, DimBinding);
    if (!b) return NULL;
    b->arena = arena;
    b->sym = s;
    return b;
}

static bool value_of(const DimBinding *b, Dim d, int64_t *out);

static bool atom_value(const DimBinding *b, int atom, int64_t *out)
{
    const Atom *a = mpri_dim_atom(b->sym, atom);
    if (a->kind == ATOM_NAMED || a->kind == ATOM_FRESH) {
        if (atom >= b->cap || !b->bound[atom]) return false;
        *out = b->value[atom];
        return true;
    }
    int64_t x, y;
    if (!value_of(b, a->a, &x) || !value_of(b, a->b, &y)) return false;
    Dim r = mpri_dim_apply(b->sym, a->kind, mpri_dim_int(b->sym, x), mpri_dim_int(b->sym, y));
    return mpri_dim_is_int(b->sym, r, out); /* not an integer: overflow or division by zero */
}

/* coef * product of the atoms' values, leaving out one occurrence of atom `skip`. */
static bool term_value(const DimBinding *b, const Term *t, int skip, int64_t *out)
{
    int64_t v = t->coef;
    for (int k = 0; k < t->n; k++) {
        int64_t x;
        if (t->atom[k] == skip) {
            skip = -1;
            continue;
        }
        if (!atom_value(b, t->atom[k], &x) || __builtin_mul_overflow(v, x, &v)) return false;
    }
    *out = v;
    return true;
}

static bool value_of(const DimBinding *b, Dim d, int64_t *out)
{
    Term scratch;
    Poly p;
    int64_t sum = 0, v;
    if (!mpri_dim_poly(b->sym, d, &p, &scratch)) return false;
    for (int i = 0; i < p.n; i++)
        if (!term_value(b, &p.t[i], -1, &v) || __builtin_add_overflow(sum, v, &sum)) return false;
    *out = sum;
    return true;
}

Dim mpri_dim_eval(const DimBinding *b, Dim d)
{
    int64_t v;
    if (d >= 0 || !value_of(b, d, &v)) return d;
    return mpri_dim_int(b->sym, v);
}

static bool set_atom(DimBinding *b, int atom, int64_t value)
{
    if (atom >= b->cap) {
        int cap = mpri_dim_atom_count(b->sym) + 16;
        int64_t *values = ARENA_ARRAY(b->arena, int64_t, cap);
        bool *bound = ARENA_ARRAY(b->arena, bool, cap);
        if (!values || !bound) return false;
        if (b->cap) {
            memcpy(values, b->value, (size_t)b->cap * sizeof *values);
            memcpy(bound, b->bound, (size_t)b->cap * sizeof *bound);
        }
        b->value = values;
        b->bound = bound;
        b->cap = cap;
    }
    b->value[atom] = value;
    b->bound[atom] = true;
    return true;
}

/* The only atom of the polynomial without a value: a leaf, to the first power. -1 when there is no
 * such. */
static int only_unbound(const DimBinding *b, const Poly *p)
{
    int found = -1;
    for (int i = 0; i < p->n; i++) {
        int here = 0;
        for (int k = 0; k < p->t[i].n; k++) {
            int64_t v;
            int atom = p->t[i].atom[k];
            if (atom_value(b, atom, &v)) continue;
            if ((found >= 0 && atom != found) || ++here > 1) return -1;
            found = atom;
        }
    }
    if (found < 0) return -1;
    AtomKind kind = mpri_dim_atom(b->sym, found)->kind;
    return kind == ATOM_NAMED || kind == ATOM_FRESH ? found : -1;
}

bool mpri_dim_bind(DimBinding *b, Dim d, int64_t value)
{
    int64_t v;
    if (value_of(b, d, &v)) return v == value;
    Term scratch;
    Poly p;
    if (!mpri_dim_poly(b->sym, d, &p, &scratch)) return true;
    int atom = only_unbound(b, &p);
    if (atom < 0) return true;   /* nothing to solve yet, nothing contradicted */
    int64_t slope = 0, rest = 0; /* slope * atom + rest == value */
    for (int i = 0; i < p.n; i++) {
        bool in_term = false;
        for (int k = 0; k < p.t[i].n; k++) in_term |= p.t[i].atom[k] == atom;
        int64_t *sum = in_term ? &slope : &rest;
        if (!term_value(b, &p.t[i], atom, &v) || __builtin_add_overflow(*sum, v, sum)) return true;
    }
    int64_t right;
    if (__builtin_sub_overflow(value, rest, &right)) return false;
    if (slope == 0) return right == 0;
    if (slope == -1 && right == INT64_MIN) return false;
    if (right % slope != 0 || right / slope < 0) return false;
    return set_atom(b, atom, right / slope);
}

bool mpri_dim_name_value(const DimBinding *b, const char *dim_param, int64_t *value)
{
    for (int i = 0; i < b->cap && i < mpri_dim_atom_count(b->sym); i++) {
        const Atom *a = mpri_dim_atom(b->sym, i);
        if (b->bound[i] && a->kind == ATOM_NAMED && !strcmp(a->name, dim_param)) {
            *value = b->value[i];
            return true;
        }
    }
    return false;
}
