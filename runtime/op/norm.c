/* Layer normalisation over the axes from `axis` to the last (Ba et al., 2016).
 *
 * Unlike the ONNX text, the canonical graph may mix types here: scale and bias f32 with a 16-bit x, since
 * norm parameters and statistics are f32 always; the kernel computes in f32 and rounds once. */
#include "runtime/op/rules.h"

static const AttrRow layer_norm_attrs[] = {
    ATTR(LayerNormParams, axis, "axis", INT, .def_int = -1),
    ATTR(LayerNormParams, epsilon, "epsilon", FLOAT, .def_float = 1e-5f),
    ATTR(LayerNormParams, stash_type, "stash_type", INT, .def_int = MPR_FLOAT32),
    ATTR_OUT_DTYPE(LayerNormParams),
    ATTR_END,
};

/* scale and bias hold one element per normalised position. Leading ones are accepted. */
static mpr_status check_weight(InferCtx *c, int k, const Shape *x, int axis)
{
    const Shape *w = op_shape(c, k);
    if (!op_in(c, k) || w->rank < 0) return MPR_OK;
    Shape want = {.rank = x->rank - axis};
    for (int i = 0; i < want.rank; i++) want.d[i] = x->d[axis + i];
    int extra = w->rank - want.rank;
    for (int i = 0; i < extra && w->d[i] == 1 && want.rank < MPRI_MAX_RANK; i++) {
        for (int j = want.rank; j > 0; j--) want.d[j] = want.d[j - 1];
        want.d[0] = 1;
        want.rank++;
    }
    return mpri_op_expect_shape(c, k, &want, k == 1 ? "scale" : "bias");
}

static mpr_status statistics_shape(InferCtx *c, const Shape *x, int *axis, Shape *out)
{
    const LayerNormParams *p = c->n->params;
    TRY(mpri_infer_axis(c, p->axis, x->rank, axis));
    *out = *x;
    for (int i = *axis; i < out->rank; i++) out->d[i] = 1;
    return MPR_OK;
}

/* Float type of x; scale and bias of the same type or f32. */
static mpr_status check_types(InferCtx *c, int x, int from, int to)
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
    if (!p->out_dtype) TRY(check_types(c, 0, 1, 3));
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    if (x->rank >= 0) {
        TRY(statistics_shape(c, x, &axis, &stats));
        TRY(check_weight(c, 1, x, axis));
        TRY(check_weight(c, 2, x, axis));
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
    Shape stats = mpri_op_unknown;
    int axis;
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    if (wide != MPR_DTYPE_NONE)
        for (int k = 3; k < 5; k++) TRY(mpri_op_check_type(c, k, TS(wide)));
    TRY(mpri_op_expect_shape(c, 0, x, "cotangent"));
    if (x->rank >= 0) TRY(statistics_shape(c, x, &axis, &stats));
    TRY(mpri_op_expect_shape(c, 3, &stats, "mean"));
    TRY(mpri_op_expect_shape(c, 4, &stats, "inverse deviation"));
    TRY(mpri_infer_set(c, 0, t, x));
    TRY(mpri_infer_set(c, 1, wide, op_shape(c, 2)));
    return mpri_infer_set(c, 2, wide, op_shape(c, 2));
}

static mpr_status grad_layer_norm(GradCtx *c)
{
    const LayerNormParams *forward = c->n->params;
    LayerNormParams p = *forward;
    Value *mean, *invstd, *out[3];
    p.out_dtype = MPR_DTYPE_NONE;
    TRY(mpri_op_grad_only_first(c));
    TRY(mpri_op_grad_output(c, 1, &mean));
    TRY(mpri_op_grad_output(c, 2, &invstd));
    mpri_build(c->b, OP_LayerNormGrad, &p, 5,
               (Value *const[]){c->dy[0], grad_in(c, 0), grad_in(c, 1), mean, invstd}, 3, out);
    for (int k = 0; k < c->n->n_in && k < 3; k++)
        if (grad_needs(c, k)) c->dx[k] = out[k];
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_LayerNormalization = {
    MPRI_OP(LayerNormalization, "", "norm"), .help = "(x - mean) / sqrt(var + epsilon) * scale + bias",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 3, .optional_in = 4,
    PARAMS(LayerNormParams, layer_norm_attrs), .flags = OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1,
    .fixed_in = 6, .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = infer_layer_norm,
    .grad_state = GRAD_FUNCTION, .grad = grad_layer_norm,
};
const OpDef mpri_op_LayerNormGrad = {
    MPRI_OP(LayerNormGrad, "mpr", "norm"), .help = "(dy, x, scale, mean, invstd): dx, dscale, dbias",
    .min_in = 5, .max_in = 5, .min_out = 1, .max_out = 3, PARAMS(LayerNormParams, layer_norm_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_layer_norm_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
