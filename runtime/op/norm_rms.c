/* RMSNormalization (Zhang and Sennrich, 2019): x / sqrt(mean(x^2) + epsilon) * scale over the axes
 * from `axis` to the last. The backward kernel takes the statistics of a row again: the row is in
 * the cache then, and nothing is kept. */
#include "runtime/op/norm.h"

static mpr_status row_axis(InferCtx *c, const Shape *x, int *axis)
{
    const LayerNormParams *p = c->n->params;
    return mpri_infer_axis(c, p->axis, x->rank, axis);
}

static mpr_status infer_rms(InferCtx *c)
{
    const LayerNormParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    DType t;
    int axis;
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 1, TS_FLOAT));
    if (!p->out_dtype) TRY(mpri_norm_check_types(c, 0, 1, 2));
    if (x->rank >= 0) {
        TRY(row_axis(c, x, &axis));
        TRY(mpri_norm_check_weight(c, 1, x, axis));
    }
    return mpri_infer_set(c, 0, t, x);
}

static mpr_status infer_rms_grad(InferCtx *c)
{
    const LayerNormParams *p = c->n->params;
    const Shape *x = op_shape(c, 1);
    Shape row = mpri_op_unknown;
    DType t;
    int axis;
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 0, x, "cotangent"));
    if (x->rank >= 0) {
        TRY(row_axis(c, x, &axis));
        row = mpri_norm_row_shape(x, axis);
    }
    TRY(mpri_infer_set(c, 0, t, x));
    return mpri_infer_set(c, 1, mpri_op_wide(op_type(c, 1)), &row);
}

static mpr_status grad_rms(GradCtx *c)
{
    LayerNormParams p = *(const LayerNormParams *)c->n->params;
    Value *out[2] = {NULL};
    p.out_dtype = MPR_DTYPE_NONE;
    TRY(mpri_op_grad_const_shape(c, grad_in(c, 0)));
    mpri_build(c->b, OP_RmsNormGrad, &p, 3,
               (Value *const[]){c->dy[0], grad_in(c, 0), grad_in(c, 1)}, 2, out);
    if (grad_needs(c, 0)) c->dx[0] = out[0];
    if (grad_needs(c, 1)) c->dx[1] = mpri_norm_weight_grad(c, out[1], grad_in(c, 1));
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_RMSNormalization = {
    MPRI_OP(RMSNormalization, "", "norm"), .help = "x / sqrt(mean(x^2) + epsilon) * scale",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
    PARAMS(LayerNormParams, mpri_norm_row_attrs), .flags = OPF_MIXED_IN | OPF_MIXED_OUT,
    .inplace = 1, .fixed_in = 2, .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP,
    .infer = infer_rms, .grad_state = GRAD_FUNCTION, .grad = grad_rms,
};
const OpDef mpri_op_RmsNormGrad = {
    MPRI_OP(RmsNormGrad, "mpr", "norm"), .help = "(dy, x, scale): dx, dscale",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 2,
    PARAMS(LayerNormParams, mpri_norm_row_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_rms_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
