/* GELU written out (Hendrycks & Gimpel, arXiv 1606.08415):
 *
 *   erf form    x * 0.5 * (1 + Erf(x / sqrt 2))
 *   tanh form   x * 0.5 * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
 *
 * Exporters multiply in every order, divide by 1.4142 or multiply by 0.7071, cube by Pow or by two
 * Muls. So orders are not listed: what feeds Erf or Tanh is read as a polynomial in x and its
 * coefficients are compared, with room for constants that were rounded to 16 bits. */
#include "passes/recover.h"

#include <math.h>
#include <string.h>

enum { DEGREE = 3, DEPTH = 12 };
static const double inv_sqrt2 = 0.70710678118654752, tanh_scale = 0.79788456080286536,
                    tanh_cube = 0.044715;

typedef struct Poly {
    double c[DEGREE + 1];
} Poly;

static bool multiply(const Poly *a, const Poly *b, Poly *out)
{
    Poly r = {{0}};
    for (int i = 0; i <= DEGREE; i++)
        for (int j = 0; j <= DEGREE; j++) {
            double t = a->c[i] * b->c[j];
            if (t == 0) continue;
            if (i + j > DEGREE) return false;
            r.c[i + j] += t;
        }
    *out = r;
    return true;
}

/* v as a polynomial in x; nodes in between are added. */
static bool polynomial(Match *m, Value *v, const Value *x, int depth, Poly *out)
{
    double k;
    if (v == x) {
        *out = (Poly){{0, 1}};
        return true;
    }
    if (mpri_prepare_scalar(v, &k)) {
        *out = (Poly){{k}};
        return true;
    }
    Node *n = mpri_def(v);
    if (!n || depth == 0) return false;
    mpri_match_add(m, n);
    if (mpri_is(n, OP_Cast))
        return mpri_dtype_is_float(n->in[0]->dtype) && polynomial(m, n->in[0], x, depth - 1, out);
    Poly a, b;
    if (mpri_is(n, OP_Pow)) {
        if (!mpri_prepare_scalar(n->in[1], &k) || (k != 2 && k != 3) ||
            !polynomial(m, n->in[0], x, depth - 1, &a))
            return false;
        return multiply(&a, &a, &b) && (k == 2 ? (*out = b, true) : multiply(&b, &a, out));
    }
    if (n->n_in != 2 || !polynomial(m, n->in[0], x, depth - 1, &a) ||
        !polynomial(m, n->in[1], x, depth - 1, &b))
        return false;
    if (mpri_is(n, OP_Mul)) return multiply(&a, &b, out);
    if (mpri_is(n, OP_Div) && mpri_prepare_scalar(n->in[1], &k) && k != 0) {
        b = (Poly){{1 / k}};
        return multiply(&a, &b, out);
    }
    if (!mpri_is(n, OP_Add)) return false;
    for (int i = 0; i <= DEGREE; i++) out->c[i] = a.c[i] + b.c[i];
    return true;
}

/* Two constants that were rounded to bf16 are off by 2^-8 together. */
static bool near(const Node *f, double c, double want)
{
    return mpri_match_near(c, want) ||
           (f->in[0]->dtype == MPR_BFLOAT16 && fabs(c - want) <= 0x1.02p-8 * want);
}

static bool inner(Match *m, const Node *f, const Value *x)
{
    Poly p;
    if (!polynomial(m, f->in[0], x, DEPTH, &p) || p.c[0] != 0 || p.c[2] != 0) return false;
    if (mpri_is(f, OP_Erf)) return p.c[3] == 0 && near(f, p.c[1], inv_sqrt2);
    return near(f, p.c[1], tanh_scale) && near(f, p.c[3], tanh_scale * tanh_cube);
}

/* v is half of something: *of. */
static bool half(Match *m, Value *v, Value **of)
{
    Node *n = mpri_def(v);
    double k;
    Value *other = (mpri_is(n, OP_Mul) || mpri_is(n, OP_Div)) ? mpri_match_scalar_operand(n, &k)
                                                              : NULL;
    if (!other || (mpri_is(n, OP_Div) && (other != n->in[0] || k != 2)) ||
        (mpri_is(n, OP_Mul) && k != 0.5))
        return false;
    mpri_match_add(m, n);
    *of = other;
    return true;
}

/* From 1 + f(x) to x * 0.5 * (1 + f(x)): *x and the last node. One factor may be met before the
 * other. */
static Node *product(Match *m, Value *v, Value **x)
{
    bool halved = false;
    *x = NULL;
    Node *last = NULL;
    while (!halved || !*x) {
        Node *n = mpri_match_user_through(m, v);
        if (!n) return NULL;
        mpri_match_add(m, n);
        Value *of, *before = mpri_match_through(NULL, v);
        double k;
        if (!halved && half(m, n->out[0], &of) && mpri_match_through(NULL, of) == before) {
            halved = true;
        } else if (!*x && mpri_is(n, OP_Mul) && !mpri_match_scalar_operand(n, &k)) {
            int side = mpri_match_through(NULL, n->in[0]) == before;
            if (mpri_match_through(NULL, n->in[1 - side]) != before) return NULL;
            *x = n->in[side];
            Match with = *m;
            if (!halved && half(&with, *x, &of)) {
                *x = of;
                *m = with;
                halved = true;
            }
        } else {
            return NULL;
        }
        last = n;
        v = n->out[0];
    }
    return last;
}

/* x as the inner polynomial sees it: casts of x on either side belong to the pattern. */
static Value *common_x(Match *m, const Node *f, Value *x)
{
    Match tried = *m;
    if (inner(&tried, f, x)) {
        *m = tried;
        return x;
    }
    tried = *m;
    Value *root = mpri_match_through(&tried, x);
    if (root == x || !inner(&tried, f, root)) return NULL;
    *m = tried;
    return root;
}

mpr_status mpri_recover_gelu(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err)
{
    (void)ctx;
    if (!mpri_is(n, OP_Erf) && !mpri_is(n, OP_Tanh)) return MPR_OK;
    Match m = {.node = {n}, .n = 1};
    Node *add = mpri_match_user_through(&m, n->out[0]);
    double one;
    if (!mpri_is(add, OP_Add) || !mpri_match_scalar_operand(add, &one) || one != 1) return MPR_OK;
    mpri_match_add(&m, add);
    Value *x, *y;
    Node *final = product(&m, add->out[0], &x);
    x = final ? common_x(&m, n, x) : NULL;
    if (!x || !mpri_prepare_eligible(x) || !mpri_match_closed(&m, final)) return MPR_OK;
    GeluParams p;
    mpri_params_default(&mpri_op_Gelu, &p);
    p.approximate = mpri_is(n, OP_Erf) ? "none" : "tanh";
    *hit = true;
    TRY(mpri_match_build(g, final, &mpri_op_Gelu, final->name, &p, 1, &x, &y, err));
    return mpri_match_replace(g, &m, final, y, err);
}
