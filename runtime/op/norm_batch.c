/* BatchNormalization (Ioffe and Szegedy, 2015). Training mode normalises with the mean and the
 * population variance of the batch, and gives updated running statistics:
 *   running' = momentum * running + (1 - momentum) * batch      (momentum weighs the OLD value)
 * Otherwise the running statistics, inputs 3 and 4, normalise. They are state, no gradient goes to
 * them. Outputs 3 and 4 are the statistics that were used; the backward pass reads them, and files
 * before opset 14 may name them.
 *
 * Where the running statistics are slots, BatchNormUpdate writes them, as PyTorch does: with the
 * unbiased variance (n / (n - 1)), which only the running value gets. */
#include "runtime/op/norm.h"

static const AttrRow batch_attrs[] = {
    ATTR(BatchNormParams, epsilon, "epsilon", FLOAT, .def_float = 1e-5f),
    ATTR(BatchNormParams, momentum, "momentum", FLOAT, .def_float = 0.9f),
    ATTR_FLAG(BatchNormParams, training_mode, "training_mode", 0),
    ATTR_OUT_DTYPE(BatchNormParams),
    ATTR_END,
};
static const AttrRow update_attrs[] = {
    ATTR(BatchNormUpdateParams, momentum, "momentum", FLOAT, .def_float = 0.9f),
    ATTR(BatchNormUpdateParams, count, "count", INT),
    ATTR_END,
};

/* A tensor of rank 1 is one channel. */
static Shape channels_of(const Shape *x)
{
    if (x->rank < 0) return mpri_op_unknown;
    return (Shape){.rank = 1, .d = {x->rank > 1 ? x->d[1] : 1}};
}

static mpr_status check_channels(InferCtx *c, int x, int from, int to)
{
    Shape want = channels_of(op_shape(c, x));
    TRY(mpri_op_check_rank(c, x, 1, MPRI_MAX_RANK));
    for (int k = from; k < to; k++) {
        TRY(mpri_op_check_type(c, k, TS_FLOAT));
        TRY(mpri_op_check_rank(c, k, 1, 1));
        TRY(mpri_op_expect_shape(c, k, &want, "one value per channel"));
    }
    return MPR_OK;
}

static mpr_status infer_batch(InferCtx *c)
{
    const BatchNormParams *p = c->n->params;
    Shape channels = channels_of(op_shape(c, 0));
    DType t, wide = mpri_op_wide(op_type(c, 0));
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, p->out_dtype, &t));
    TRY(check_channels(c, 0, 1, 5));
    TRY(mpri_infer_set(c, 0, t, op_shape(c, 0)));
    TRY(mpri_infer_set(c, 1, op_type(c, 3), &channels));
    TRY(mpri_infer_set(c, 2, op_type(c, 4), &channels));
    TRY(mpri_infer_set(c, 3, wide, &channels));
    return mpri_infer_set(c, 4, wide, &channels);
}

static mpr_status infer_batch_grad(InferCtx *c)
{
    const BatchNormParams *p = c->n->params;
    Shape channels = channels_of(op_shape(c, 1));
    DType t, wide = mpri_op_wide(op_type(c, 1));
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 0, op_shape(c, 1), "cotangent"));
    TRY(check_channels(c, 1, 2, 5));
    TRY(mpri_infer_set(c, 0, t, op_shape(c, 1)));
    TRY(mpri_infer_set(c, 1, wide, &channels));
    return mpri_infer_set(c, 2, wide, &channels);
}

static mpr_status infer_update(InferCtx *c)
{
    for (int k = 0; k < 4; k++) {
        TRY(mpri_op_check_type(c, k, TS_FLOAT));
        TRY(mpri_op_check_rank(c, k, 1, 1));
        TRY(mpri_op_expect_shape(c, k, op_shape(c, 0), "one value per channel"));
    }
    return MPR_OK;
}

static mpr_status grad_batch(GradCtx *c)
{
    BatchNormParams p = *(const BatchNormParams *)c->n->params;
    Value *out[3] = {NULL}, *mean = grad_in(c, 3), *var = grad_in(c, 4);
    p.out_dtype = MPR_DTYPE_NONE;
    TRY(mpri_op_grad_const_shape(c, grad_in(c, 0)));
    TRY(mpri_op_grad_only_first(c));
    if (p.training_mode) {
        TRY(mpri_op_grad_output(c, 3, &mean));
        TRY(mpri_op_grad_output(c, 4, &var));
    }
    mpri_build(c->b, OP_BatchNormGrad, &p, 5,
               (Value *const[]){c->dy[0], grad_in(c, 0), grad_in(c, 1), mean, var}, 3, out);
    for (int k = 0; k < 3; k++)
        if (grad_needs(c, k)) c->dx[k] = out[k];
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_BatchNormalization = {
    MPRI_OP(BatchNormalization, "", "norm"),
    .help = "(x, scale, bias, mean, var): y, running mean and var, mean and var that were used",
    .min_in = 5, .max_in = 5, .min_out = 1, .max_out = 5, PARAMS(BatchNormParams, batch_attrs),
    .flags = OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 1, .fixed_in = 30, .nondiff_in = 24,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_batch,
    .grad_state = GRAD_FUNCTION, .grad = grad_batch,
};
const OpDef mpri_op_BatchNormGrad = {
    MPRI_OP(BatchNormGrad, "mpr", "norm"), .help = "(dy, x, scale, mean, var): dx, dscale, dbias",
    .min_in = 5, .max_in = 5, .min_out = 1, .max_out = 3, PARAMS(BatchNormParams, batch_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_batch_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
const OpDef mpri_op_BatchNormUpdate = {
    MPRI_OP(BatchNormUpdate, "mpr", "norm"),
    .help = "(running mean, running var, mean, var of count elements): writes the first two",
    .min_in = 4, .max_in = 4, .min_out = 0, .max_out = 0,
    PARAMS(BatchNormUpdateParams, update_attrs), .flags = OPF_INTERNAL | OPF_EFFECT, .writes = 3,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_update,
    .grad_state = GRAD_ZERO,
};
