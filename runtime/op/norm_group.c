/* GroupNormalization (Wu and He, 2018) and InstanceNormalization, its case of one group per
 * channel: each sample's group of channels gets mean 0 and variance 1, then every channel its
 * scale and bias. Opset 18 had one scale per group; scale and bias may therefore have as many
 * elements as there are groups, each standing for the channels of its group. Statistics are taken
 * again in the backward pass. */
#include "runtime/op/norm.h"

static const AttrRow group_attrs[] = {
    ATTR(GroupNormParams, num_groups, "num_groups", INT, .required = true),
    ATTR(GroupNormParams, epsilon, "epsilon", FLOAT, .def_float = 1e-5f),
    ATTR(GroupNormParams, stash_type, "stash_type", INT, .def_int = MPR_FLOAT32),
    ATTR(GroupNormParams, per_group, "per_group", INT, .internal = true),
    ATTR_OUT_DTYPE(GroupNormParams),
    ATTR_END,
};
static const AttrRow instance_attrs[] = {
    ATTR(InstanceNormParams, epsilon, "epsilon", FLOAT, .def_float = 1e-5f),
    ATTR_OUT_DTYPE(InstanceNormParams),
    ATTR_END,
};

static mpr_status check_groups(InferCtx *c, int x, int64_t groups)
{
    const Shape *s = op_shape(c, x);
    TRY(mpri_op_check_rank(c, x, 2, MPRI_MAX_RANK));
    if (groups < 1) return mpri_op_shape_error(c, x, "num_groups must be 1 or more", groups);
    if (s->rank >= 0 && mpri_dim_const(s->d[1]) && s->d[1] % groups != 0)
        return mpri_op_shape_error(c, x, "num_groups must divide the channels", groups);
    return MPR_OK;
}

/* Types and shapes of (x, scale, bias), with as many weights as the Dim says. */
static mpr_status infer_weighted(InferCtx *c, int64_t out_dtype, Dim weights, const char *what)
{
    Shape want = {.rank = 1, .d = {weights}};
    DType t;
    if (!out_dtype) TRY(mpri_norm_check_types(c, 0, 1, 3));
    TRY(mpri_op_mixed_type(c, 0, 1, TS_FLOAT, out_dtype, &t));
    for (int k = 1; k < 3; k++) {
        TRY(mpri_op_check_type(c, k, TS_FLOAT));
        TRY(mpri_op_check_rank(c, k, 1, 1));
        if (op_shape(c, 0)->rank >= 0) TRY(mpri_op_expect_shape(c, k, &want, what));
    }
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status infer_group(InferCtx *c)
{
    const GroupNormParams *p = c->n->params;
    TRY(check_groups(c, 0, p->num_groups));
    return p->per_group
               ? infer_weighted(c, p->out_dtype, p->num_groups, "one value per group")
               : infer_weighted(c, p->out_dtype, op_shape(c, 0)->d[1], "one value per channel");
}

static mpr_status infer_instance(InferCtx *c)
{
    const InstanceNormParams *p = c->n->params;
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    return infer_weighted(c, p->out_dtype, op_shape(c, 0)->d[1], "one value per channel");
}

static mpr_status infer_group_grad(InferCtx *c)
{
    const GroupNormParams *p = c->n->params;
    DType t, wide = mpri_op_wide(op_type(c, 1));
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 0, op_shape(c, 1), "cotangent"));
    if (p->num_groups) TRY(check_groups(c, 1, p->num_groups));
    TRY(mpri_op_check_rank(c, 2, 1, 1));
    TRY(mpri_infer_set(c, 0, t, op_shape(c, 1)));
    TRY(mpri_infer_set(c, 1, wide, op_shape(c, 2)));
    return mpri_infer_set(c, 2, wide, op_shape(c, 2));
}

static mpr_status build_grad(GradCtx *c, GroupNormParams p)
{
    Value *out[3] = {NULL};
    TRY(mpri_op_grad_const_shape(c, grad_in(c, 0)));
    mpri_build(c->b, OP_GroupNormGrad, &p, 3,
               (Value *const[]){c->dy[0], grad_in(c, 0), grad_in(c, 1)}, 3, out);
    for (int k = 0; k < 3; k++)
        if (grad_needs(c, k)) c->dx[k] = out[k];
    return mpri_op_grad_done(c);
}

static mpr_status grad_group(GradCtx *c)
{
    const GroupNormParams *p = c->n->params;
    return build_grad(c, (GroupNormParams){.num_groups = p->num_groups, .epsilon = p->epsilon});
}

static mpr_status grad_instance(GradCtx *c)
{
    const InstanceNormParams *p = c->n->params;
    return build_grad(c, (GroupNormParams){.epsilon = p->epsilon});
}

#define GROUP_NORM                                                                                 \
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, .flags = OPF_MIXED_IN | OPF_MIXED_OUT,   \
    .inplace = 1, .fixed_in = 6, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_GroupNormalization = {
    MPRI_OP(GroupNormalization, "", "norm"),
    .help = "channels of a group to mean 0 and variance 1, then scale and bias", GROUP_NORM,
    PARAMS(GroupNormParams, group_attrs), .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP,
    .infer = infer_group, .grad = grad_group,
};
const OpDef mpri_op_InstanceNormalization = {
    MPRI_OP(InstanceNormalization, "", "norm"),
    .help = "each channel of a sample to mean 0 and variance 1, then scale and bias", GROUP_NORM,
    PARAMS(InstanceNormParams, instance_attrs), .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_instance, .grad = grad_instance,
};
const OpDef mpri_op_GroupNormGrad = {
    MPRI_OP(GroupNormGrad, "mpr", "norm"),
    .help = "(dy, x, scale): dx, dscale, dbias; num_groups 0: one group per channel",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 3, PARAMS(GroupNormParams, group_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 3, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_group_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
