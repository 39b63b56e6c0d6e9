/* Helpers of the bind-stage passes: constants, permutations, builders. */
#include "passes/rewrite.h"

#include <math.h>
#include <string.h>

#define SPLAT_LIMIT 65536 /* elements looked at: beyond, a tensor is not worth the walk */

bool mpri_rewrite_splat(const Value *v, double *x)
{
    if (!v || v->kind != VAL_CONST || !v->data || !mpri_dtype_size(v->dtype)) return false;
    int64_t n = mpri_shape_elements(&v->shape);
    if (n < 1 || n > SPLAT_LIMIT) return false;
    size_t size = mpri_dtype_size(v->dtype);
    for (int64_t i = 1; i < n; i++)
        if (memcmp(v->data, (const char *)v->data + (size_t)i * size, size) != 0) return false;
    *x = mpri_load_f64(v->dtype, v->data, 0);
    return true;
}

bool mpri_rewrite_scalar(const Value *v, double *x)
{
    return v && v->kind == VAL_CONST && mpri_shape_elements(&v->shape) == 1 &&
           mpri_rewrite_splat(v, x);
}

bool mpri_rewrite_power_of_two(double c)
{
    int e;
    return c > 0 && isfinite(c) && frexp(c, &e) == 0.5;
}

bool mpri_rewrite_scaling(const Node *n, Value **x, double *c)
{
    if (!mpri_is(n, OP_Mul) && !mpri_is(n, OP_Div)) return false;
    for (int k = 1; k >= (mpri_is(n, OP_Mul) ? 0 : 1); k--) {
        const Value *y = n->out[0];
        *x = n->in[1 - k];
        if (!*x || (*x)->dtype != y->dtype || !mpri_shape_equal(&(*x)->shape, &y->shape)) continue;
        if (!mpri_rewrite_scalar(n->in[k], c) || !isfinite(*c) || *c == 0) continue;
        if (mpri_is(n, OP_Div)) *c = 1 / *c;
        return true;
    }
    return false;
}

size_t mpri_rewrite_bytes(const Value *v)
{
    int64_t n = mpri_shape_elements(&v->shape);
    return n < 0 ? 0 : (size_t)n * mpri_dtype_size(v->dtype);
}

void mpri_rewrite_perm(const Node *transpose, int perm[MPRI_MAX_RANK])
{
    const TransposeParams *p = transpose->params;
    int rank = transpose->in[0]->shape.rank;
    for (int i = 0; i < rank; i++) perm[i] = p->perm.n == rank ? (int)p->perm.v[i] : rank - 1 - i;
}

bool mpri_rewrite_one_use(const Value *v)
{
    return v->n_uses == 1 && v->n_outputs == 0;
}

void mpri_rewrite_forward(Graph *g, Node *n, Value *to)
{
    mpri_value_replace(g, n->out[0], to);
    mpri_node_remove(g, n);
}

void mpri_rewrite_supplant(Graph *g, Node *n, Value *to)
{
    const char *name = n->out[0]->name;
    mpri_rewrite_forward(g, n, to);
    mpri_value_rename(g, to, name);
    if (to->def) to->def->name = n->name;
}

Builder mpri_rewrite_builder(Graph *g, Node *n, Err *err)
{
    return (Builder){
        .g = g, .before = n, .segment = n->segment, .scope = n->name, .origin = n, .err = err};
}

Value *mpri_rewrite_reshape(Builder *b, Value *x, const Shape *shape)
{
    if (!x || mpri_shape_equal(&x->shape, shape)) return x;
    ReshapeParams p = {0};
    for (int i = 0; i < shape->rank; i++)
        if (shape->d[i] == 0) p.allowzero = 1;
    return mpri_build2(b, OP_Reshape, &p, x, mpri_build_i64s(b, shape->rank, shape->d));
}

Value *mpri_rewrite_transpose(Builder *b, Value *x, const int *perm)
{
    if (!x) return NULL;
    int64_t v[MPRI_MAX_RANK];
    bool identity = true;
    for (int i = 0; i < x->shape.rank; i++) {
        v[i] = perm[i];
        identity = identity && perm[i] == i;
    }
    return identity
               ? x
               : mpri_build1(b, OP_Transpose, &(TransposeParams){.perm = {x->shape.rank, v}}, x);
}
