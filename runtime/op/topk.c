/* TopK: the k largest (or smallest) elements along an axis and their positions. Among equals the
 * lower index comes first and alone gets the gradient. `sorted` = 0 allows any order; ours is
 * sorted always. */
#include "runtime/op/rules.h"

static const AttrRow topk_attrs[] = {
    ATTR(TopKParams, axis, "axis", INT, .def_int = -1),
    ATTR_FLAG(TopKParams, largest, "largest", 1),
    ATTR_FLAG(TopKParams, sorted, "sorted", 1),
    ATTR_END,
};
static const AttrRow topk_grad_attrs[] = {
    ATTR(TopKGradParams, axis, "axis", INT, .def_int = -1),
    ATTR(TopKGradParams, dims, "dims", INTS, .required = true),
    ATTR_END,
};

static mpr_status infer_topk(InferCtx *c)
{
    const TopKParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    Shape out = *x;
    int axis;
    int64_t n;
    TRY(mpri_op_check_type(c, 0, TS_NUMBER));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 1, 0, 1));
    if (x->rank >= 0) {
        TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
        TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
        const Dim *k = mpri_infer_content(c, 1, &n);
        if (k && n != 1) return mpri_op_shape_error(c, 1, "elements of K, 1 is allowed", n);
        out.d[axis] = k ? k[0] : mpri_dim_fresh(c->sym);
        if (k && mpri_dim_is_int(c->sym, k[0], &n) &&
            (n < 0 || (mpri_dim_const(x->d[axis]) && n > x->d[axis])))
            return mpri_op_shape_error(c, 0, "K must be 0 to the size of the axis", n);
    }
    TRY(mpri_infer_set(c, 0, op_type(c, 0), &out));
    return mpri_infer_set(c, 1, MPR_INT64, &out);
}

static mpr_status infer_topk_grad(InferCtx *c)
{
    const TopKGradParams *p = c->n->params;
    Shape out;
    int axis;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "indices"));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    TRY(mpri_op_check_rank(c, 0, out.rank, out.rank));
    TRY(mpri_infer_axis(c, p->axis, out.rank, &axis));
    Shape lines = out;
    if (op_shape(c, 0)->rank == out.rank) lines.d[axis] = op_shape(c, 0)->d[axis];
    TRY(mpri_op_expect_shape(c, 0, &lines, "cotangent: dims, but for the axis"));
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status grad_topk(GradCtx *c)
{
    const TopKParams *forward = c->n->params;
    const Value *x = grad_in(c, 0);
    Value *dy = grad_dy(c, 0), *indices;
    TRY(mpri_op_grad_const_shape(c, x));
    if (!dy || !grad_needs(c, 0)) return MPR_OK;
    TRY(mpri_op_grad_output(c, 1, &indices));
    TopKGradParams p = {.axis = forward->axis, .dims = {x->shape.rank, x->shape.d}};
    c->dx[0] = mpri_build2(c->b, OP_TopKGrad, &p, dy, indices);
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_TopK = {
    MPRI_OP(TopK, "", "topk"), .help = "the k largest or smallest along an axis, and their indices",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 2, PARAMS(TopKParams, topk_attrs),
    .fixed_in = 2, .nondiff_in = 2, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_topk, .grad_state = GRAD_FUNCTION, .grad = grad_topk,
};
const OpDef mpri_op_TopKGrad = {
    MPRI_OP(TopKGrad, "mpr", "topk"),
    .help = "(dy, indices): zeros of shape dims with dy at the indices",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(TopKGradParams, topk_grad_attrs),
    .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_topk_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
