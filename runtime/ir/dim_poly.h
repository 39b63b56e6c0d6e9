/* Private to runtime/ir/dim*.c: the inside of symbolic dims. */
#ifndef MPRI_IR_DIM_POLY_H
#define MPRI_IR_DIM_POLY_H

#include "runtime/ir/dim.h"

enum { MAX_TERMS = 16, MAX_DEGREE = 7 };

typedef enum AtomKind {
    ATOM_NAMED, ATOM_FRESH,                     /* leaves; FRESH: a is its number */
    ATOM_DIV, ATOM_MOD, ATOM_MIN, ATOM_MAX,     /* of the dims a and b */
    ATOM_ADD, ATOM_SUB, ATOM_MUL,               /* did not fit into a polynomial */
} AtomKind;

typedef struct Atom {
    AtomKind kind;
    const char *name; /* interned */
    int64_t a, b;
} Atom;

typedef struct AtomKey { /* hashed as bytes: padding is zero */
    int64_t kind;
    const char *name;
    int64_t a, b;
} AtomKey;

typedef struct Term { /* hashed as bytes: no padding, unused atoms are zero */
    int64_t coef;
    int n;
    int atom[MAX_DEGREE];
} Term;

typedef struct Poly { int n; const Term *t; } Poly;
typedef struct PolyBuf { int n; Term t[MAX_TERMS]; } PolyBuf;

/* Terms of d, in scratch when d is a constant. False for a handle that this table does not have. */
bool mpri_dim_poly(const SymTab *s, Dim d, Poly *out, Term *scratch);
const Atom *mpri_dim_atom(const SymTab *s, int atom);
int mpri_dim_atom_count(const SymTab *s);
Dim mpri_dim_fresh_number(SymTab *s, int64_t number);
Dim mpri_dim_apply(SymTab *s, AtomKind kind, Dim a, Dim b);

#endif
