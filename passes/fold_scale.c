/* Exporters write the 1/sqrt(d) of attention as a factor d^-1/4 on both query and key. In 16 bits
 * that rounds both operands once more, where attention itself scales the f32 scores; so the two
 * factors become one behind the product, which later goes into its accumulator (lower.c). Done when
 * the factor is a power of two, as it is for heads of 4, 16, 64 and 256 numbers: then it does not
 * round at all.
 *
 * d^-1/4 is a rounded number, so its square misses the power of two by some 1e-7: nothing in 16
 * bits. */
#include <math.h>
#include "passes/rewrite.h"

#define MISS 1e-6

/* x of Cast(Mul(Cast(x), c)) or Mul(x, c) in the type of v; NULL when v is something else. */
static Value *unscaled(const Value *v, double *c)
{
    Node *n = mpri_def(v);
    Value *x;
    if (!mpri_rewrite_one_use(v)) return NULL;
    if (mpri_is(n, OP_Cast)) {
        n = mpri_def(n->in[0]);
        if (!n || !mpri_rewrite_one_use(n->out[0])) return NULL;
    }
    if (!n || !mpri_rewrite_scaling(n, &x, c)) return NULL;
    if (mpri_is(mpri_def(x), OP_Cast) && x->dtype != v->dtype) x = x->def->in[0];
    return x->dtype == v->dtype ? x : NULL;
}

mpr_status mpri_fold_scales(Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!mpri_is(n, OP_MatMul) || !mpri_dtype_is_low(n->out[0]->dtype)) continue;
        double a, b;
        Value *x = unscaled(n->in[0], &a), *y = unscaled(n->in[1], &b);
        if (!x || !y) continue;
        double nearest = exp2(round(log2(fabs(a * b))));
        if (a * b < 0 || fabs(a * b - nearest) > MISS * nearest) continue;
        Builder at = mpri_rewrite_builder(g, n, err);
        Value *product = mpri_build2(&at, OP_MatMul, NULL, x, y);
        Value *factor = mpri_build_scalar(&at, n->out[0]->dtype, nearest);
        Value *z = mpri_build2(&at, OP_Mul, NULL, product, factor);
        TRY(at.failed);
        product->def->name = n->name;
        mpri_rewrite_supplant(g, n, z);
        *changed = true;
    }
    return MPR_OK;
}
