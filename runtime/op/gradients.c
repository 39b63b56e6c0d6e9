/* What gradient rules share: reshaping and expanding cotangents, scalars of the right type, and
 * asking a forward node for outputs that only the backward pass wants. All of it goes through the
 * builder. */
#include "runtime/op/rules.h"

mpr_status mpri_op_grad_const_shape(GradCtx *c, const Value *v)
{
    if (mpri_shape_const(&v->shape)) return MPR_OK;
    return mpri_err_set(c->err, MPR_E_INTERNAL,
                        "gradient of %s asked for before '%s' has a constant shape", c->n->op->name,
                        mpri_err_name(v->name));
}

mpr_status mpri_op_grad_ints(GradCtx *c, int k, int64_t *n, const int64_t **out)
{
    const Value *in = grad_in(c, k);
    Graph *g = c->b->g;
    *n = mpri_shape_elements(&in->shape);
    bool data = in->kind == VAL_CONST && in->data && mpri_dtype_is_int(in->dtype);
    int64_t *v = *n >= 0 ? ARENA_ARRAY(g->arena, int64_t, *n ? *n : 1) : NULL;
    if (*n >= 0 && !v) return mpri_err_nomem(c->err, (size_t)*n * sizeof *v);
    bool known = v && (data || in->content);
    for (int64_t i = 0; known && i < *n; i++) {
        if (data) v[i] = mpri_load_i64(in->dtype, in->data, i);
        else known = mpri_dim_is_int(g->sym, in->content[i], &v[i]);
    }
    *out = v;
    if (known) return MPR_OK;
    return mpri_err_set(
        c->err, MPR_E_NOT_DIFFERENTIABLE,
        "input %d '%s' of %s is computed at run time; its gradient needs a constant", k,
        mpri_err_name(in->name), c->n->op->name);
}

mpr_status mpri_op_grad_done(GradCtx *c)
{
    return c->b->failed;
}

Value *mpri_op_grad_reshape(GradCtx *c, Value *v, int rank, const int64_t *dims)
{
    if (!v) return NULL;
    bool same = v->shape.rank == rank;
    ReshapeParams p = {0};
    for (int i = 0; i < rank; i++) {
        same = same && v->shape.d[i] == dims[i];
        if (dims[i] == 0) p.allowzero = 1;
    }
    return same ? v : mpri_build2(c->b, OP_Reshape, &p, v, mpri_build_i64s(c->b, rank, dims));
}

Value *mpri_op_grad_reshape_like(GradCtx *c, Value *v, const Value *like)
{
    return mpri_op_grad_reshape(c, v, like->shape.rank, like->shape.d);
}

Value *mpri_op_grad_expand_like(GradCtx *c, Value *v, const Value *like)
{
    if (!v || mpri_shape_equal(&v->shape, &like->shape)) return v;
    return mpri_build2(c->b, OP_Expand, NULL, v,
                       mpri_build_i64s(c->b, like->shape.rank, like->shape.d));
}

Value *mpri_op_grad_scalar(GradCtx *c, const Value *like, double v)
{
    return like ? mpri_build_scalar(c->b, like->dtype, v) : NULL;
}

Value *mpri_op_grad_zero(GradCtx *c, const Value *v) { return mpri_op_grad_scalar(c, v, 0); }

Value *mpri_op_grad_zeros_like(GradCtx *c, const Value *like)
{
    if (!like) return NULL;
    static const double zero; /* all bits zero: a zero of every float type */
    ConstantOfShapeParams p = {
        .value = {.dtype = like->dtype, .shape = {.rank = 1, .d = {1}}, .data = &zero}};
    return mpri_build1(c->b, OP_ConstantOfShape, &p,
                       mpri_build_i64s(c->b, like->shape.rank, like->shape.d));
}

Value *mpri_op_grad_binary(GradCtx *c, int op, Value *a, Value *b)
{
    return mpri_build2(c->b, op, NULL, a, b);
}

Value *mpri_op_grad_unary(GradCtx *c, int op, Value *a)
{
    return mpri_build1(c->b, op, NULL, a);
}

Value *mpri_op_grad_scale(GradCtx *c, Value *a, double factor)
{
    if (!a || factor == 1) return a;
    return mpri_op_grad_binary(c, OP_Mul, a, mpri_op_grad_scalar(c, a, factor));
}

Value *mpri_op_grad_reduce(GradCtx *c, int op, Value *v, int n, const int64_t *axes)
{
    if (n == 0 || !v) return v;
    ReduceParams p = {.keepdims = 1};
    return mpri_build2(c->b, op, &p, v, mpri_build_i64s(c->b, n, axes));
}

Value *mpri_op_grad_channel_sum(GradCtx *c, Value *v, const Value *like)
{
    if (!v) return NULL;
    int64_t axes[MPRI_MAX_RANK] = {0};
    for (int i = 2; i < v->shape.rank; i++) axes[i - 1] = i;
    Value *sum = mpri_op_grad_reduce(c, OP_ReduceSum, v, v->shape.rank - 1, axes);
    return mpri_op_grad_reshape_like(c, sum, like);
}

Value *mpri_op_grad_wide(GradCtx *c, Value *x)
{
    return x ? mpri_build_cast(c->b, x, mpri_op_wide(x->dtype)) : NULL;
}

mpr_status mpri_op_grad_output(GradCtx *c, int index, Value **out)
{
    Node *n = c->n;
    bool added = false;
    while (index >= n->n_out || !n->out[index]) {
        TRY(mpri_node_add_output(c->b->g, n, c->err));
        added = true;
    }
    if (added) TRY(mpri_infer_node(c->b->g, n, c->err));
    *out = n->out[index];
    return MPR_OK;
}

mpr_status mpri_op_grad_only_first(GradCtx *c)
{
    for (int i = 1; i < c->n->n_out; i++)
        if (grad_dy(c, i))
            return mpri_err_set(c->err, MPR_E_NOT_DIFFERENTIABLE,
                                "output %d '%s' of %s is used where a gradient flows; only output "
                                "0 is differentiable",
                                i, mpri_err_name(c->n->out[i]->name), c->n->op->name);
    return MPR_OK;
}
