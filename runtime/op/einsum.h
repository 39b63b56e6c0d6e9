/* The equation of Einsum as numbers: what the shape rule, the gradient, the lowering and the
 * reference kernel read.
 *
 * A label is a letter (a-z: 0-25, A-Z: 26-51) or a dim of the ellipsis, counted from its right end
 * (52 …), so that ellipses of different length line up as in broadcasting. */
#ifndef MPRI_OP_EINSUM_H
#define MPRI_OP_EINSUM_H

#include "runtime/ir/opdef.h"

enum {
    MPRI_EINSUM_INPUTS = 32,
    MPRI_EINSUM_ELLIPSIS = 52,
    MPRI_EINSUM_LABELS = MPRI_EINSUM_ELLIPSIS + MPRI_MAX_RANK,
};

typedef struct EinsumTerm { /* labels of the dims of an operand or of the result */
    int n;
    int label[MPRI_MAX_RANK];
} EinsumTerm;

typedef struct EinsumForm {
    int n_in;
    EinsumTerm in[MPRI_EINSUM_INPUTS], out;
} EinsumForm;

/* NULL, or what is wrong with the equation for operands of these ranks. Without "->" the result has
 * the ellipsis and then every letter that occurs once, in alphabetical order. */
const char *mpri_einsum_parse(const char *equation, int n_in, const int *rank, EinsumForm *f);
/* Letters of a term, ended by NUL; dims of an ellipsis take letters that the form does not use.
 * False when there are not enough. text has room for MPRI_MAX_RANK + 1. */
bool mpri_einsum_letters(const EinsumForm *f, const EinsumTerm *t, char *text);

/* x with zeros off the diagonal of two dims of one size (shapes are constant). */
Value *mpri_einsum_on_diagonal(Builder *b, Value *x, int first, int second);

static inline int mpri_einsum_find(const EinsumTerm *t, int label) /* first place, or -1 */
{
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label) return i;
    return -1;
}

#endif
