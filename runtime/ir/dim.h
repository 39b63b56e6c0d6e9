/* Dimensions: a constant, or a handle to a symbolic polynomial.
 *
 * A Dim >= 0 is a constant. A Dim < 0 is a handle (-1 - index) into the SymTab of the graph.
 * Handles are hash-consed: two equal expressions have one handle, so dims compare with ==. An
 * expression is a sum of at most 16 products of atoms with integer coefficients; what does not fit
 * becomes a fresh atom. An atom is a dim_param name, a fresh unknown, or a floor division / modulo
 * / min / max of two dims. Symbols stand for values >= 0. Once every atom is bound to a number
 * (mpri_dim_eval), all is constant. */
#ifndef MPRI_IR_DIM_H
#define MPRI_IR_DIM_H

#include <stdbool.h>
#include <stdint.h>
#include "runtime/base/arena.h"
#include "runtime/base/intern.h"

typedef int64_t Dim;
typedef struct SymTab SymTab;

#define MPRI_MAX_RANK 8
#define MPRI_RANK_UNKNOWN (-1)

typedef struct Shape {
    int rank; /* MPRI_RANK_UNKNOWN when not known */
    Dim d[MPRI_MAX_RANK];
} Shape;

SymTab *mpri_symtab_create(Arena *arena, Intern *names); /* NULL when out of memory */
/* Copy whose handles mean the same; NULL when out of memory. */
SymTab *mpri_symtab_clone(const SymTab *s, Arena *arena, Intern *names);
/* The Arena struct moved to another address. */
void mpri_symtab_move(SymTab *s, Arena *arena);
/* Fresh atoms made from now on have numbers above `number`. */
void mpri_symtab_reserve(SymTab *s, int64_t number);

static inline bool mpri_dim_const(Dim d) { return d >= 0; }

/* Out of memory inside these is sticky in the table (mpri_symtab_failed) and gives a handle that
 * stays valid, so shape rules need no checks. Constant operands give constant results; int64
 * overflow gives a fresh atom. */
Dim mpri_dim_named(SymTab *s, const char *dim_param);
Dim mpri_dim_fresh(SymTab *s);
Dim mpri_dim_add(SymTab *s, Dim a, Dim b);
Dim mpri_dim_sub(SymTab *s, Dim a, Dim b);
Dim mpri_dim_mul(SymTab *s, Dim a, Dim b);
Dim mpri_dim_div(SymTab *s, Dim a, Dim b); /* floor; exact polynomial division when it is one */
Dim mpri_dim_mod(SymTab *s, Dim a, Dim b);
Dim mpri_dim_min(SymTab *s, Dim a, Dim b);
Dim mpri_dim_max(SymTab *s, Dim a, Dim b);
/* Negative integers occur as VALUES of shape tensors (-1 in Reshape). They are atoms-free
 * polynomials: mpri_dim_int makes one, mpri_dim_is_int reads it back (also for constants >= 0). */
Dim mpri_dim_int(SymTab *s, int64_t v);
bool mpri_dim_is_int(const SymTab *s, Dim d, int64_t *v);
bool mpri_symtab_failed(const SymTab *s);

/* Values of atoms for one binding. Unbound atoms are absent. */
typedef struct DimBinding DimBinding;
DimBinding *mpri_binding_create(Arena *arena, SymTab *s);
/* Bind dim (constant, or an expression that is a single named/fresh atom, or one solvable for its
 * only unbound atom) to a number. False: contradiction with what is bound (nothing changed). */
bool mpri_dim_bind(DimBinding *b, Dim d, int64_t value);
/* Constant when every atom is bound, else d unchanged. */
Dim mpri_dim_eval(const DimBinding *b, Dim d);
bool mpri_dim_name_value(const DimBinding *b, const char *dim_param, int64_t *value);

/* Text as in "4*batch*seq+1"; written to buf, always terminated. Returns buf. */
const char *mpri_dim_print(const SymTab *s, Dim d, char *buf, size_t size);
/* "[2,batch,64]", "[?]" for unknown rank. */
const char *mpri_shape_print(const SymTab *s, const Shape *shape, char *buf, size_t size);
/* Parse what mpri_dim_print printed. False on a syntax error. */
bool mpri_dim_parse(SymTab *s, const char *text, size_t n, Dim *out);

static inline bool mpri_shape_equal(const Shape *a, const Shape *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->d[i] != b->d[i]) return false;
    return true;
}
static inline bool mpri_shape_const(const Shape *s)
{
    if (s->rank < 0) return false;
    for (int i = 0; i < s->rank; i++)
        if (s->d[i] < 0) return false;
    return true;
}
/* No tensor has more elements than MPRI_MOST_ELEMENTS, counted over the dims that are known and not 0: sizes and
 * offsets in bytes, and products of some dims, then fit int64. */
#define MPRI_MOST_ELEMENTS ((int64_t)1 << 56)
bool mpri_shape_in_range(const Shape *s);
/* Elements of a constant shape; -1 when not constant or overflowing. */
int64_t mpri_shape_elements(const Shape *s);

#endif
