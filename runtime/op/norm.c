/* Layer normalisation over the axes from `axis` to the last (Ba et al., 2016).
 *
 * Unlike the ONNX text, the canonical graph may mix types here: scale and bias f32 with a 16-bit x,
 * since norm parameters and statistics are always f32. The kernel computes in f32, rounds once. */
#include "runtime/op/norm.h"

const AttrRow mpri_norm_row_attrs[] = {
    ATTR(LayerNormParams, axis, "axis", INT, .def_int = -1),
    ATTR(LayerNormParams, epsilon, "epsilon", FLOAT, .def_float = 1e-5f),
    ATTR(LayerNormParams, stash_type, "stash_type", INT, .def_int = MPR_FLOAT32),
    ATTR_OUT_DTYPE(LayerNormParams),
    ATTR_END,
};

Shape mpri_norm_row_shape(const Shape *x, int axis)
{
    Shape row = {.rank = x->rank - axis};
    for (int i = 0; i < row.rank; i++) row.d[i] = x->d[axis + i];
    return row;
}

mpr_status mpri_norm_check_weight(InferCtx *c, int k, const Shape *x, int axis)
{
    const Shape *w = op_shape(c, k);
    if (!op_in(c, k) || w->rank < 0) return MPR_OK;
    Shape row = mpri_norm_row_shape(x, axis);
    Shape want = {.rank = w->rank > row.rank ? w->rank : row.rank};
    int extra = want.rank - row.rank;
    for (int i = 0; i < want.rank; i++) want.d[i] = i < extra ? 1 : row.d[i - extra];
    return mpri_op_expect_broadcast_to(c, k, &want, k == 1 ? "scale" : "bias");
}

static mpr_status statistics_shape(InferCtx *c, const Shape *x, int *axis, Shape *out)
{
    const LayerNormParams *p = c->n->params;
    TRY(mpri_infer_axis(c, p->axis, x->rank, axis));
    *out = *x;
    for (int i = *axis; i < out->rank; i++) out->d[i] = 1;
    return MPR_OK;
}

mpr_status mpri_norm_check_types(InferCtx *c, int x, int from, int to)
{
    TRY(mpri_op_check_type(c, x, TS_FLOAT));
    DType t = op_type(c, x);
    if (t == MPR_DTYPE_NONE) return MPR_OK;
    for (int k = from; k < to; k++) TRY(mpri_op_check_type(c, k, TS(t) | TS(mpri_op_wide(t))));
    return MPR_OK;
}

static mpr_status infer_layer_norm(InferCtx *c)
{
    const LayerNormParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    Shape stats = mpri_op_unknown;
    DType t;
    int axis;
    if (!p->out_dtype) TRY(mpri_norm_check_types(c, 0, 1, 3));
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    if (x->rank >= 0) {
        TRY(statistics_shape(c, x, &axis, &stats));
        TRY(mpri_norm_check_weight(c, 1, x, axis));
        TRY(mpri_norm_check_weight(c, 2, x, axis));
    }
    TRY(mpri_infer_set(c, 0, t, x));
    TRY(mpri_infer_set(c, 1, mpri_op_wide(op_type(c, 0)), &stats));
    return mpri_infer_set(c, 2, mpri_op_wide(op_type(c, 0)), &stats);
}

static mpr_status infer_layer_norm_grad(InferCtx *c)
{
    const LayerNormParams *p = c->n->params;
    const Shape *x = op_shape(c, 1);
    DType wide = mpri_op_wide(op_type(c, 1)), t;
    Shape stats = mpri_op_unknown, row = mpri_op_unknown;
    int axis;
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    if (wide != MPR_DTYPE_NONE)
        for (int k = 3; k < 5; k++) TRY(mpri_op_check_type(c, k, TS(wide)));
    TRY(mpri_op_expect_shape(c, 0, x, "cotangent"));
    if (x->rank >= 0) {
        TRY(statistics_shape(c, x, &axis, &stats));
        row = mpri_norm_row_shape(x, axis);
    }
    TRY(mpri_op_expect_shape(c, 3, &stats, "mean"));
    TRY(mpri_op_expect_shape(c, 4, &stats, "inverse deviation"));
    TRY(mpri_infer_set(c, 0, t, x));
    TRY(mpri_infer_set(c, 1, wide, &row));
    return mpri_infer_set(c, 2, wide, &row);
}

Value *mpri_norm_weight_grad(GradCtx *c, Value *row, const Value *weight)
{
    bool same = row && mpri_shape_elements(&row->shape) == mpri_shape_elements(&weight->shape);
    return same ? mpri_op_grad_reshape_like(c, row, weight) : row;
}

/* What flows into x through the statistics, which other nodes may read: d mean / dx = 1 / N and
 * d invstd / dx = -invstd^3 (x - mean) / N. Computed in the type of the statistics. */
static Value *statistics_grad(GradCtx *c, Value *mean, Value *inv, Value *dmean, Value *dinv)
{
    const LayerNormParams *p = c->n->params;
    Value *x = grad_in(c, 0), *dx = NULL;
    double n = 1;
    for (int i = (int)(p->axis < 0 ? p->axis + x->shape.rank : p->axis); i < x->shape.rank; i++)
        n *= (double)x->shape.d[i];
    if (n == 0) return NULL;
    if (dmean) dx = mpri_op_grad_expand_like(c, mpri_op_grad_scale(c, dmean, 1 / n), x);
    if (dinv) {
        Value *centred =
            mpri_op_grad_binary(c, OP_Sub, mpri_build_cast(c->b, x, mean->dtype), mean);
        Value *cube = mpri_op_grad_binary(c, OP_Mul, inv, mpri_op_grad_binary(c, OP_Mul, inv, inv));
        Value *slope = mpri_op_grad_scale(c, mpri_op_grad_binary(c, OP_Mul, dinv, cube), -1 / n);
        Value *part = mpri_op_grad_binary(c, OP_Mul, centred, slope);
        dx = dx ? mpri_op_grad_binary(c, OP_Add, dx, part) : part;
    }
    return mpri_build_cast(c->b, dx, x->dtype);
}

static mpr_status grad_layer_norm(GradCtx *c)
{
    LayerNormParams p = *(const LayerNormParams *)c->n->params;
    /* read before outputs are added: dy covers the outputs that were there */
    Value *mean, *inv, *dmean = grad_dy(c, 1), *dinv = grad_dy(c, 2), *out[3] = {NULL};
    p.out_dtype = MPR_DTYPE_NONE;
    TRY(mpri_op_grad_const_shape(c, grad_in(c, 0)));
    TRY(mpri_op_grad_output(c, 1, &mean));
    TRY(mpri_op_grad_output(c, 2, &inv));
    if (c->dy[0])
        mpri_build(c->b, OP_LayerNormGrad, &p, 5,
                   (Value *const[]){c->dy[0], grad_in(c, 0), grad_in(c, 1), mean, inv}, 3, out);
    if (grad_needs(c, 0)) {
        Value *more = statistics_grad(c, mean, inv, dmean, dinv);
        if (out[0] && more) more = mpri_op_grad_binary(c, OP_Add, out[0], more);
        c->dx[0] = more ? more : out[0];
    }
    for (int k = 1; k < 3; k++)
        if (grad_needs(c, k)) c->dx[k] = mpri_norm_weight_grad(c, out[k], grad_in(c, k));
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_LayerNormalization = {
    MPRI_OP(LayerNormalization, "", "norm"),
    .help = "(x - mean) / sqrt(var + epsilon) * scale + bias",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 3, .optional_in = 4,
    PARAMS(LayerNormParams, mpri_norm_row_attrs), .flags = OPF_MIXED_IN | OPF_MIXED_OUT,
    .inplace = 1, .fixed_in = 6, .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = infer_layer_norm,
    .grad_state = GRAD_FUNCTION, .grad = grad_layer_norm,
};
const OpDef mpri_op_LayerNormGrad = {
    MPRI_OP(LayerNormGrad, "mpr", "norm"),
    .help = "(dy, x, scale, mean, invstd): dx, dscale, dbias",
    .min_in = 5, .max_in = 5, .min_out = 1, .max_out = 3,
    PARAMS(LayerNormParams, mpri_norm_row_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_layer_norm_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
