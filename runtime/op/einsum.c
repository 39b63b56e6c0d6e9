/* Einsum: products of operands summed over the labels that the result leaves out.
 *
 * The gradient is Einsum again: the cotangent takes the place of the operand. Labels that only the
 * operand has were summed, so their gradient is repeated along them; a label that the operand has
 * twice names its diagonal, and off it the gradient is zero. Dims of 1 that met longer ones are
 * taken out of their term first, which leaves plain sums. */
#include "runtime/op/einsum.h"

#include <stdio.h>
#include <string.h>
#include "runtime/op/rules.h"

static const AttrRow einsum_attrs[] = {
    ATTR(EinsumParams, equation, "equation", STRING, .required = true), ATTR_END};

/* ---- the equation ---- */

static int letter_label(char c)
{
    if (c >= 'a' && c <= 'z') return c - 'a';
    return c >= 'A' && c <= 'Z' ? 26 + c - 'A' : -1;
}

static char label_letter(int label)
{
    return (char)(label < 26 ? 'a' + label : 'A' + label - 26);
}

static const char *add_label(EinsumTerm *t, int label)
{
    if (t->n == MPRI_MAX_RANK) return "a term has more than 8 labels";
    t->label[t->n++] = label;
    return NULL;
}

/* Labels up to the term's end; ellipsis: dims that "..." stands for, -1 = what rank leaves. */
static const char *read_term(const char **p, int rank, int ellipsis, EinsumTerm *t)
{
    int letters = 0;
    bool dots = false;
    for (const char *q = *p; *q && *q != ',' && *q != '-'; q++) letters += letter_label(*q) >= 0;
    *t = (EinsumTerm){0};
    for (; **p && **p != ',' && **p != '-'; (*p)++) {
        const char *why = NULL;
        int label = letter_label(**p);
        if (**p == ' ') continue;
        if (label >= 0) {
            why = add_label(t, label);
        } else if (!strncmp(*p, "...", 3) && !dots) {
            int n = ellipsis >= 0 ? ellipsis : rank - letters;
            dots = true;
            *p += 2;
            for (int i = n - 1; i >= 0 && !why; i--) why = add_label(t, MPRI_EINSUM_ELLIPSIS + i);
        } else {
            return "a term holds something other than letters and one ellipsis";
        }
        if (why) return why;
    }
    bool fits = ellipsis >= 0 || t->n == rank;
    return fits ? NULL : "a term has not as many labels as its operand has dims";
}

static const char *implicit_output(EinsumForm *f, int ellipsis)
{
    int count[MPRI_EINSUM_LABELS] = {0};
    const char *why = NULL;
    for (int k = 0; k < f->n_in; k++)
        for (int i = 0; i < f->in[k].n; i++) count[f->in[k].label[i]]++;
    for (int i = ellipsis - 1; i >= 0 && !why; i--)
        why = add_label(&f->out, MPRI_EINSUM_ELLIPSIS + i);
    for (char c = 'A'; c <= 'z'; c++)
        if (letter_label(c) >= 0 && count[letter_label(c)] == 1)
            why = why ? why : add_label(&f->out, letter_label(c));
    return why;
}

static const char *check_output(const EinsumForm *f)
{
    for (int i = 0; i < f->out.n; i++) {
        bool found = f->out.label[i] >= MPRI_EINSUM_ELLIPSIS;
        if (mpri_einsum_find(&f->out, f->out.label[i]) != i) return "the result has a label twice";
        for (int k = 0; k < f->n_in; k++)
            found = found || mpri_einsum_find(&f->in[k], f->out.label[i]) >= 0;
        if (!found) return "the result has a label that no operand has";
    }
    return NULL;
}

const char *mpri_einsum_parse(const char *equation, int n_in, const int *rank, EinsumForm *f)
{
    const char *p = equation, *why;
    int ellipsis = 0;
    *f = (EinsumForm){.n_in = n_in};
    if (n_in > MPRI_EINSUM_INPUTS) return "there are more than 32 operands";
    for (int k = 0; k < n_in; k++) {
        why = read_term(&p, rank[k], -1, &f->in[k]);
        if (why) return why;
        for (int i = 0; i < f->in[k].n; i++)
            if (f->in[k].label[i] - MPRI_EINSUM_ELLIPSIS >= ellipsis)
                ellipsis = f->in[k].label[i] - MPRI_EINSUM_ELLIPSIS + 1;
        if (k + 1 < n_in && *p++ != ',') return "it has fewer terms than there are operands";
    }
    if (*p == ',') return "it has more terms than there are operands";
    if (!*p) return implicit_output(f, ellipsis);
    if (p[1] != '>') return "a '-' is no '->'";
    p += 2;
    why = read_term(&p, 0, ellipsis, &f->out);
    if (!why && *p) why = "something follows the result's term";
    return why ? why : check_output(f);
}

bool mpri_einsum_letters(const EinsumForm *f, const EinsumTerm *t, char *text)
{
    bool used[MPRI_EINSUM_ELLIPSIS] = {false};
    int free_label[MPRI_MAX_RANK], n = 0;
    for (int k = 0; k < f->n_in; k++)
        for (int i = 0; i < f->in[k].n; i++)
            if (f->in[k].label[i] < MPRI_EINSUM_ELLIPSIS) used[f->in[k].label[i]] = true;
    for (int l = 0; l < MPRI_EINSUM_ELLIPSIS && n < MPRI_MAX_RANK; l++)
        if (!used[l]) free_label[n++] = l;
    for (int i = 0; i < t->n; i++) {
        int dot = t->label[i] - MPRI_EINSUM_ELLIPSIS;
        if (dot >= n) return false;
        text[i] = label_letter(dot >= 0 ? free_label[dot] : t->label[i]);
    }
    text[t->n] = '\0';
    return true;
}

/* ---- shape rule ---- */

#define NO_DIM INT64_MIN /* no dim has the label yet */

static mpr_status bad_equation(InferCtx *c, const char *why)
{
    const EinsumParams *p = c->n->params;
    return mpri_err_set(c->err, MPR_E_SHAPE, "equation \"%s\" of %d operands: %s",
                        mpri_err_name(p->equation), c->n->n_in, why);
}

static mpr_status set_size(InferCtx *c, int k, Dim d, Dim *size)
{
    if (*size == NO_DIM || *size == 1 || *size == d) *size = d;
    else if (mpri_dim_const(d) && d != 1) {
        if (mpri_dim_const(*size))
            return mpri_op_shape_error(c, k, "a dim differs from an earlier one of its label", d);
        *size = d;
    }
    return MPR_OK;
}

static mpr_status infer_einsum(InferCtx *c)
{
    const EinsumParams *p = c->n->params;
    EinsumForm f;
    DType t;
    int rank[MPRI_EINSUM_INPUTS];
    Dim size[MPRI_EINSUM_LABELS];
    TRY(mpri_op_common_type(c, 0, c->n->n_in, TS_NUMBER, &t));
    if (c->n->n_in > MPRI_EINSUM_INPUTS) return bad_equation(c, "there are more than 32 operands");
    for (int k = 0; k < c->n->n_in; k++) {
        rank[k] = op_shape(c, k)->rank;
        if (rank[k] < 0) return mpri_infer_set(c, 0, t, NULL);
    }
    const char *why = mpri_einsum_parse(p->equation, c->n->n_in, rank, &f);
    if (why) return bad_equation(c, why);
    for (int l = 0; l < MPRI_EINSUM_LABELS; l++) size[l] = NO_DIM;
    for (int k = 0; k < f.n_in; k++)
        for (int i = 0; i < rank[k]; i++)
            TRY(set_size(c, k, op_shape(c, k)->d[i], &size[f.in[k].label[i]]));
    Shape out = {.rank = f.out.n};
    for (int i = 0; i < f.out.n; i++) out.d[i] = size[f.out.label[i]];
    return mpri_infer_set(c, 0, t, &out);
}

/* ---- gradient ---- */

typedef struct Diff {
    GradCtx *c;
    EinsumForm f;
    int64_t size[MPRI_EINSUM_LABELS];
} Diff;

static mpr_status diff_begin(GradCtx *c, Diff *d)
{
    const EinsumParams *p = c->n->params;
    int rank[MPRI_EINSUM_INPUTS];
    *d = (Diff){.c = c};
    for (int k = 0; k < c->n->n_in; k++) {
        TRY(mpri_op_grad_const_shape(c, c->n->in[k]));
        rank[k] = c->n->in[k]->shape.rank;
    }
    const char *why = mpri_einsum_parse(p->equation, c->n->n_in, rank, &d->f);
    if (why) return mpri_err_set(c->err, MPR_E_INTERNAL, "Einsum: %s", why);
    for (int l = 0; l < MPRI_EINSUM_LABELS; l++) d->size[l] = 1;
    for (int k = 0; k < c->n->n_in; k++)
        for (int i = 0; i < rank[k]; i++) {
            int64_t dim = c->n->in[k]->shape.d[i], *size = &d->size[d->f.in[k].label[i]];
            if (dim != 1) *size = dim;
        }
    return MPR_OK;
}

/* Operand k without the dims of 1 that met longer ones; *t: its labels. */
static Value *trimmed(const Diff *d, int k, EinsumTerm *t)
{
    Value *v = d->c->n->in[k];
    int64_t dims[MPRI_MAX_RANK];
    *t = (EinsumTerm){0};
    for (int i = 0; i < v->shape.rank; i++) {
        int label = d->f.in[k].label[i];
        if (v->shape.d[i] != d->size[label]) continue;
        dims[t->n] = v->shape.d[i];
        t->label[t->n++] = label;
    }
    return mpri_op_grad_reshape(d->c, v, t->n, dims);
}

static bool put_term(const Diff *d, char *text, size_t room, const char *before,
                     const EinsumTerm *t)
{
    char letters[MPRI_MAX_RANK + 1];
    size_t at = strlen(text);
    return mpri_einsum_letters(&d->f, t, letters) &&
           snprintf(text + at, room - at, "%s%s", before, letters) < (int)(room - at);
}

/* Einsum of dy and the other operands, over the labels of operand k that those have; *got: them. */
static Value *others(const Diff *d, int k, EinsumTerm *got)
{
    GradCtx *c = d->c;
    Value *in[MPRI_EINSUM_INPUTS] = {c->dy[0]};
    EinsumTerm terms[MPRI_EINSUM_INPUTS] = {d->f.out}, own;
    char text[MPRI_EINSUM_INPUTS * (MPRI_MAX_RANK + 4)] = "";
    int n = 1;
    for (int i = 0; i < d->f.n_in; i++)
        if (i != k) {
            in[n] = trimmed(d, i, &terms[n]);
            n++;
        }
    Value *x = trimmed(d, k, &own);
    *got = (EinsumTerm){0};
    for (int i = 0; x && i < own.n; i++) {
        bool there = false;
        for (int j = 0; j < n; j++) there = there || mpri_einsum_find(&terms[j], own.label[i]) >= 0;
        if (there && mpri_einsum_find(got, own.label[i]) < 0) got->label[got->n++] = own.label[i];
    }
    bool fits = true;
    for (int j = 0; j < n; j++)
        fits = fits && put_term(d, text, sizeof text, j ? "," : "", &terms[j]);
    if (!fits || !put_term(d, text, sizeof text, "->", got)) {
        c->b->failed = mpri_err_set(c->err, MPR_E_NOT_DIFFERENTIABLE,
                                    "the equation of Einsum uses too many letters");
        return NULL;
    }
    return mpri_build(c->b, OP_Einsum, &(EinsumParams){text}, n, in, 1, NULL);
}

Value *mpri_einsum_on_diagonal(Builder *b, Value *x, int first, int second)
{
    Value *side[2];
    int64_t n = x ? x->shape.d[first] : 0, *at = ARENA_ARRAY(b->g->arena, int64_t, n ? n : 1);
    if (!x || b->failed != MPR_OK) return NULL;
    if (!at) {
        b->failed = mpri_err_nomem(b->err, (size_t)n * sizeof *at);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) at[i] = i;
    for (int s = 0; s < 2; s++) {
        Shape shape = {.rank = x->shape.rank};
        for (int i = 0; i < shape.rank; i++) shape.d[i] = i == (s ? second : first) ? n : 1;
        side[s] = mpri_value_const_copy(b->g, "iota", MPR_INT64, &shape, at);
        if (!side[s]) {
            b->failed = mpri_err_nomem(b->err, sizeof *side[s]);
            return NULL;
        }
    }
    Value *on = mpri_build2(b, OP_Equal, NULL, side[0], side[1]);
    return mpri_build3(b, OP_Where, NULL, on, x, mpri_build_scalar(b, x->dtype, 0));
}

static Value *grad_operand(const Diff *d, int k)
{
    GradCtx *c = d->c;
    const Value *x = c->n->in[k];
    EinsumTerm got;
    int64_t dims[MPRI_MAX_RANK];
    Value *dx = others(d, k, &got);
    for (int i = 0; i < x->shape.rank; i++) {
        int label = d->f.in[k].label[i];
        bool own = mpri_einsum_find(&d->f.in[k], label) == i || x->shape.d[i] == 1;
        bool kept = own && mpri_einsum_find(&got, label) >= 0 && x->shape.d[i] == d->size[label];
        dims[i] = kept ? x->shape.d[i] : 1;
    }
    dx = mpri_op_grad_reshape(c, dx, x->shape.rank, dims);
    dx = mpri_op_grad_expand_like(c, dx, x);
    for (int i = 0; i < x->shape.rank; i++) {
        int first = mpri_einsum_find(&d->f.in[k], d->f.in[k].label[i]);
        if (first != i && x->shape.d[i] != 1) dx = mpri_einsum_on_diagonal(c->b, dx, first, i);
    }
    return dx;
}

static mpr_status grad_einsum(GradCtx *c)
{
    Diff d;
    TRY(diff_begin(c, &d));
    for (int k = 0; k < c->n->n_in; k++)
        if (grad_needs(c, k)) c->dx[k] = grad_operand(&d, k);
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_Einsum = {
    MPRI_OP(Einsum, "", "einsum"), .help = "products summed over labels, by an equation",
    .min_in = 1, .max_in = -1, .min_out = 1, .max_out = 1, PARAMS(EinsumParams, einsum_attrs),
    .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW, .infer = infer_einsum,
    .grad_state = GRAD_FUNCTION, .grad = grad_einsum,
};
