/* Contents of small integer tensors as Dims: shape arithmetic of exporters becomes symbolic
 * arithmetic.
 *
 * Booleans are 0 and 1. An element that cannot be expressed becomes fresh atoms, so one unknown
 * element does not lose its neighbours. Symbols stand for values >= 0, which decides comparisons
 * with negative numbers: Equal(dim, -1) in Where(Equal(shape, -1), …) is false. Elements that are
 * computed at run time are no sizes and may be negative: mpri_op_dim_any. */
#include "runtime/op/rules.h"

#include <string.h>

Dim *mpri_op_content_alloc(InferCtx *c, int64_t n)
{
    if (n < 0 || n > MPRI_CONTENT_MAX) return NULL;
    return ARENA_ARRAY(c->g->arena, Dim, n ? n : 1);
}

static bool holds_content(DType t)
{
    return t == MPR_INT64 || t == MPR_INT32 || t == MPR_BOOL;
}

/* ---- element functions: exact on integers, polynomials otherwise ---- */

static bool both_int(SymTab *s, Dim a, Dim b, int64_t *x, int64_t *y)
{
    return mpri_dim_is_int(s, a, x) && mpri_dim_is_int(s, b, y);
}

/* Atoms stand for sizes, which are not negative; a difference of two can be anything. */
Dim mpri_op_dim_any(SymTab *s) { return mpri_dim_sub(s, mpri_dim_fresh(s), mpri_dim_fresh(s)); }

Dim mpri_op_dim_add(SymTab *s, Dim a, Dim b)
{
    int64_t x, y, r;
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_add(s, a, b);
    return __builtin_add_overflow(x, y, &r) ? mpri_op_dim_any(s) : mpri_dim_int(s, r);
}

Dim mpri_op_dim_sub(SymTab *s, Dim a, Dim b)
{
    int64_t x, y, r;
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_sub(s, a, b);
    return __builtin_sub_overflow(x, y, &r) ? mpri_op_dim_any(s) : mpri_dim_int(s, r);
}

Dim mpri_op_dim_mul(SymTab *s, Dim a, Dim b)
{
    int64_t x, y, r;
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_mul(s, a, b);
    return __builtin_mul_overflow(x, y, &r) ? mpri_op_dim_any(s) : mpri_dim_int(s, r);
}

Dim mpri_op_dim_div(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    if (mpri_dim_is_int(s, b, &y) && y == 0) return mpri_op_dim_any(s);
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_div(s, a, b);
    return x == INT64_MIN && y == -1 ? mpri_op_dim_any(s) : mpri_dim_int(s, x / y);
}

Dim mpri_op_dim_mod(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    if (mpri_dim_is_int(s, b, &y) && y == 0) return mpri_op_dim_any(s);
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_mod(s, a, b);
    if (y == -1) return 0;
    int64_t r = x % y;
    return mpri_dim_int(s, r != 0 && (r < 0) != (y < 0) ? r + y : r);
}

Dim mpri_op_dim_min(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_min(s, a, b);
    return x < y ? a : b;
}

Dim mpri_op_dim_max(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    if (!both_int(s, a, b, &x, &y)) return mpri_dim_max(s, a, b);
    return x > y ? a : b;
}

/* -1, 0, 1 for a < b, a == b, a > b; 2 when it is not decided. */
static int compare(SymTab *s, Dim a, Dim b)
{
    int64_t x, y;
    if (a == b) return 0;
    bool ia = mpri_dim_is_int(s, a, &x), ib = mpri_dim_is_int(s, b, &y);
    if (ia && ib) return x < y ? -1 : x > y;
    if (ia && x < 0 && mpri_dim_max(s, b, 0) == b) return -1;
    if (ib && y < 0 && mpri_dim_max(s, a, 0) == a) return 1;
    return 2;
}

static Dim truth(SymTab *s, bool known, bool v)
{
    if (!known) return mpri_dim_fresh(s);
    return v ? 1 : 0;
}

Dim mpri_op_dim_equal(SymTab *s, Dim a, Dim b)
{
    int r = compare(s, a, b);
    return truth(s, r != 2, r == 0);
}

Dim mpri_op_dim_less(SymTab *s, Dim a, Dim b)
{
    int r = compare(s, a, b);
    return truth(s, r != 2, r == -1);
}

Dim mpri_op_dim_greater(SymTab *s, Dim a, Dim b) { return mpri_op_dim_less(s, b, a); }

Dim mpri_op_dim_less_equal(SymTab *s, Dim a, Dim b)
{
    int r = compare(s, a, b);
    return truth(s, r != 2, r != 1);
}

Dim mpri_op_dim_greater_equal(SymTab *s, Dim a, Dim b) { return mpri_op_dim_less_equal(s, b, a); }

Dim mpri_op_dim_and(SymTab *s, Dim a, Dim b)
{
    if (a == 0 || b == 0) return 0;
    return truth(s, a == 1 && b == 1, true);
}

Dim mpri_op_dim_or(SymTab *s, Dim a, Dim b)
{
    if (a == 1 || b == 1) return 1;
    return truth(s, a == 0 && b == 0, false);
}

static Dim select_dim(SymTab *s, Dim cond, Dim x, Dim y)
{
    if (x == y || cond == 1) return x;
    return cond == 0 ? y : mpri_op_dim_any(s);
}

/* ---- whole tensors ---- */

/* Output elements of constant shape, or -1 when it is not small. */
static int64_t small_elements(const Shape *s)
{
    if (!mpri_shape_const(s)) return -1;
    int64_t n = mpri_shape_elements(s);
    return n >= 0 && n <= MPRI_CONTENT_MAX ? n : -1;
}

/* Flat position in a tensor of shape s for flat position `at` of the broadcast shape out. */
static int64_t broadcast_position(const Shape *s, const Shape *out, int64_t at)
{
    int64_t pos = 0, stride = 1;
    for (int i = out->rank - 1, j = s->rank - 1; i >= 0; i--, j--) {
        int64_t x = at % out->d[i];
        at /= out->d[i];
        if (j < 0) continue;
        pos += s->d[j] == 1 ? 0 : x * stride;
        stride *= s->d[j];
    }
    return pos;
}

typedef struct Operand {
    const Shape *shape;
    const Dim *d;
} Operand;

/* Contents and constant shape of an integer input. */
static bool operand(InferCtx *c, int k, Operand *o)
{
    int64_t n;
    if (!op_in(c, k) || !holds_content(op_type(c, k)) || !mpri_shape_const(op_shape(c, k)))
        return false;
    o->shape = op_shape(c, k);
    o->d = mpri_infer_content(c, k, &n);
    return o->d && n == mpri_shape_elements(o->shape);
}

static Dim operand_at(const Operand *o, const Shape *out, int64_t at)
{
    return o->d[broadcast_position(o->shape, out, at)];
}

void mpri_op_content_binary(InferCtx *c, DimBinary fn)
{
    if (op_has_out(c, 0) && c->n->n_in == 2) mpri_op_content_fold(c, fn);
}

void mpri_op_content_fold(InferCtx *c, DimBinary fn)
{
    if (!op_has_out(c, 0) || !holds_content(c->n->out[0]->dtype)) return;
    const Shape *out = &c->n->out[0]->shape;
    int64_t n = small_elements(out);
    Dim *r = n < 0 ? NULL : mpri_op_content_alloc(c, n);
    if (!r) return;
    for (int k = 0; k < c->n->n_in; k++) {
        Operand o;
        if (!operand(c, k, &o)) return;
        for (int64_t i = 0; i < n; i++) {
            Dim d = operand_at(&o, out, i);
            r[i] = k ? fn(c->sym, r[i], d) : d;
        }
    }
    mpri_infer_set_content(c, 0, n, r);
}

void mpri_op_content_expand(InferCtx *c)
{
    Operand o;
    if (!op_has_out(c, 0)) return;
    const Shape *out = &c->n->out[0]->shape;
    int64_t n = small_elements(out);
    Dim *r = n < 0 ? NULL : mpri_op_content_alloc(c, n);
    if (!r || !operand(c, 0, &o)) return;
    for (int64_t i = 0; i < n; i++) r[i] = operand_at(&o, out, i);
    mpri_infer_set_content(c, 0, n, r);
}

void mpri_op_content_where(InferCtx *c)
{
    Operand cond, x, y;
    if (!op_has_out(c, 0)) return;
    const Shape *out = &c->n->out[0]->shape;
    int64_t n = small_elements(out);
    Dim *r = n < 0 ? NULL : mpri_op_content_alloc(c, n);
    if (!r || !operand(c, 0, &cond) || !operand(c, 1, &x) || !operand(c, 2, &y)) return;
    for (int64_t i = 0; i < n; i++)
        r[i] = select_dim(c->sym, operand_at(&cond, out, i), operand_at(&x, out, i),
                          operand_at(&y, out, i));
    mpri_infer_set_content(c, 0, n, r);
}

void mpri_op_content_neg(InferCtx *c)
{
    int64_t n;
    if (!holds_content(op_type(c, 0))) return;
    const Dim *d = mpri_infer_content(c, 0, &n);
    Dim *r = d ? mpri_op_content_alloc(c, n) : NULL;
    if (!r) return;
    for (int64_t i = 0; i < n; i++) r[i] = mpri_op_dim_sub(c->sym, 0, d[i]);
    mpri_infer_set_content(c, 0, n, r);
}

void mpri_op_content_not(InferCtx *c)
{
    int64_t n;
    const Dim *d = op_in(c, 0) ? mpri_infer_content(c, 0, &n) : NULL;
    Dim *r = d ? mpri_op_content_alloc(c, n) : NULL;
    if (!r) return;
    for (int64_t i = 0; i < n; i++)
        r[i] = d[i] == 0 || d[i] == 1 ? 1 - d[i] : mpri_dim_fresh(c->sym);
    mpri_infer_set_content(c, 0, n, r);
}

void mpri_op_content_copy(InferCtx *c)
{
    int64_t n;
    if (!op_has_out(c, 0) || !op_in(c, 0) || !holds_content(op_type(c, 0))) return;
    const Dim *d = mpri_infer_content(c, 0, &n);
    if (d && n <= MPRI_CONTENT_MAX) mpri_infer_set_content(c, 0, n, d);
}
