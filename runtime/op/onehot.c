/* OneHot and EyeLike: tensors of two values, placed by index. */
#include "runtime/op/rules.h"

static const AttrRow one_hot_attrs[] = {
    ATTR(OneHotParams, axis, "axis", INT, .def_int = -1), ATTR_END};
static const AttrRow eye_like_attrs[] = {
    ATTR(EyeLikeParams, dtype, "dtype", DTYPE), ATTR(EyeLikeParams, k, "k", INT), ATTR_END};

/* ---- OneHot ---- */

/* depth may have any number type; a fraction is cut off. */
static Dim depth_of(InferCtx *c)
{
    int64_t n;
    const Value *v = op_in(c, 1);
    const Dim *d = mpri_infer_content(c, 1, &n);
    if (d && n == 1) return d[0];
    if (v && v->kind == VAL_CONST && v->data && mpri_dtype_size(v->dtype) &&
        mpri_shape_elements(&v->shape) == 1) {
        double x = mpri_load_f64(v->dtype, v->data, 0);
        if (x > -1 && x < 9e15) return mpri_dim_int(c->sym, (int64_t)x);
    }
    return mpri_dim_fresh(c->sym);
}

static mpr_status infer_one_hot(InferCtx *c)
{
    const OneHotParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    Dim n;
    int64_t v;
    int axis;
    TRY(mpri_op_check_type(c, 0, TS_NUMBER));
    TRY(mpri_op_check_type(c, 1, TS_NUMBER));
    if (mpri_op_elements(c, 1, &n) && mpri_dim_const(n) && n != 1)
        return mpri_op_shape_error(c, 1, "elements of depth of OneHot, allowed 1", n);
    if (mpri_op_elements(c, 2, &n) && mpri_dim_const(n) && n != 2)
        return mpri_op_shape_error(c, 2, "elements of values of OneHot, allowed 2", n);
    if (x->rank < 0) return mpri_infer_set(c, 0, op_type(c, 2), NULL);
    if (x->rank == MPRI_MAX_RANK)
        return mpri_op_shape_error(c, 0, "rank of the result of OneHot, allowed at most 8", 9);
    Shape out = {.rank = x->rank + 1};
    TRY(mpri_infer_axis(c, p->axis, out.rank, &axis));
    Dim depth = depth_of(c);
    if (mpri_dim_is_int(c->sym, depth, &v) && v < 0)
        return mpri_op_shape_error(c, 1, "depth of OneHot", v);
    for (int i = 0, from = 0; i < out.rank; i++) out.d[i] = i == axis ? depth : x->d[from++];
    return mpri_infer_set(c, 0, op_type(c, 2), &out);
}

/* The on value gets what flows to the marked places, the off value the rest. */
static mpr_status grad_one_hot(GradCtx *c)
{
    static const bool mark[2] = {false, true};
    Value *dy = c->dy[0], *zero = mpri_op_grad_zero(c, dy), *part[2];
    ReduceParams all = {.out_dtype = mpri_op_wide(dy->dtype)};
    Shape pair = {.rank = 1, .d = {2}};
    Value *two = mpri_value_const(c->b->g, "onehot", MPR_BOOL, &pair, mark);
    if (!two) return mpri_err_nomem(c->err, sizeof *two);
    Value *on = mpri_build3(c->b, OP_OneHot, c->n->params, grad_in(c, 0), grad_in(c, 1), two);
    for (int k = 0; k < 2; k++) {
        Value *flow = mpri_build3(c->b, OP_Where, NULL, on, k ? dy : zero, k ? zero : dy);
        flow = mpri_build1(c->b, OP_ReduceSum, &all, flow);
        part[k] = mpri_op_grad_reshape(c, flow, 1, &(int64_t){1});
    }
    c->dx[2] = mpri_build2(c->b, OP_Concat, &(AxisParams){0}, part[0], part[1]);
    return mpri_op_grad_done(c);
}

/* ---- EyeLike ---- */

static mpr_status infer_eye_like(InferCtx *c)
{
    const EyeLikeParams *p = c->n->params;
    DType t = p->dtype ? (DType)p->dtype : op_type(c, 0);
    TRY(mpri_op_check_rank(c, 0, 2, 2));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

/* ---- definitions ---- */

const OpDef mpri_op_OneHot = {
    MPRI_OP(OneHot, "", "onehot"), .help = "one value at the index, another elsewhere",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, PARAMS(OneHotParams, one_hot_attrs),
    .fixed_in = 3, .nondiff_in = 3, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_one_hot, .grad_state = GRAD_FUNCTION, .grad = grad_one_hot,
};
const OpDef mpri_op_EyeLike = {
    MPRI_OP(EyeLike, "", "onehot"), .help = "ones on a diagonal, in the shape of the input",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(EyeLikeParams, eye_like_attrs),
    .nondiff_in = 1, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_eye_like,
    .grad_state = GRAD_ZERO,
};
