/* Convolution over N, C, spatial dims, with groups; and its two gradient kernels. */
#include "runtime/op/rules.h"

#include <string.h>

#define CONV_ROWS                                                                                  \
    ATTR(ConvParams, auto_pad, "auto_pad", STRING, .def_string = "NOTSET",                         \
         .choices = "NOTSET|SAME_UPPER|SAME_LOWER|VALID"),                                         \
    ATTR(ConvParams, dilations, "dilations", INTS), ATTR(ConvParams, kernel_shape,                 \
    "kernel_shape", INTS),                                                                         \
    ATTR(ConvParams, pads, "pads", INTS), ATTR(ConvParams, strides, "strides", INTS),              \
    ATTR(ConvParams, group, "group", INT, .def_int = 1, .min_int = 1, .max_int = INT32_MAX)

static const AttrRow conv_attrs[] = {
    CONV_ROWS, ATTR(ConvParams, dims, "dims", INTS, .internal = true), ATTR_END};
static const AttrRow conv_grad_attrs[] = {
    CONV_ROWS, ATTR(ConvParams, dims, "dims", INTS, .internal = true, .required = true), ATTR_END,
};

static int64_t entry(Ints v, int i, int64_t otherwise) { return i < v.n ? v.v[i] : otherwise; }

/* ---- type and shape rules ---- */

static mpr_status check_lists(InferCtx *c, const ConvParams *p, int spatial)
{
    const ListRule lists[] = {
        {"dilations", p->dilations, spatial, 1, false},
        {"kernel_shape", p->kernel_shape, spatial, 0, false},
        {"strides", p->strides, spatial, 1, false},
        {"pads", p->pads, 2 * (int64_t)spatial, INT32_MIN, false},
    };
    return mpri_op_check_lists(c, lists, (int)(sizeof lists / sizeof *lists));
}

/* One spatial dim: floor((x + pads - reach) / stride) + 1, or ceil(x / stride) for SAME. */
static mpr_status spatial_dim(InferCtx *c, const ConvParams *p, int i, int spatial, Dim x,
                              Dim kernel, Dim *out)
{
    SymTab *s = c->sym;
    int64_t stride = entry(p->strides, i, 1), dilation = entry(p->dilations, i, 1), pads = 0;
    if (p->auto_pad && strncmp(p->auto_pad, "SAME", 4) == 0) {
        *out = mpri_dim_div(s, mpri_dim_add(s, x, stride - 1), stride);
        return MPR_OK;
    }
    if (!p->auto_pad || strcmp(p->auto_pad, "VALID") != 0)
        pads = entry(p->pads, i, 0) + entry(p->pads, i + spatial, 0);
    Dim reach = mpri_op_dim_add(
        s, mpri_op_dim_mul(s, mpri_op_dim_sub(s, kernel, 1), mpri_dim_int(s, dilation)), 1);
    Dim room = mpri_op_dim_sub(s, mpri_op_dim_add(s, x, mpri_dim_int(s, pads)), reach);
    int64_t v;
    if (mpri_dim_is_int(s, room, &v) && v < 0)
        return mpri_op_shape_error(c, 0, "kernel is larger than the padded input, by", -v);
    *out = mpri_dim_add(s, mpri_dim_div(s, room, stride), 1);
    return MPR_OK;
}

/* Output shape of Conv for x and w; ranks are known. */
static mpr_status conv_shape(InferCtx *c, const ConvParams *p, const Shape *x, const Shape *w,
                             Shape *out)
{
    int spatial = x->rank - 2;
    TRY(check_lists(c, p, spatial));
    *out = *x;
    out->d[1] = w->d[0];
    for (int i = 0; i < spatial; i++) {
        Dim k = w->d[i + 2], declared = entry(p->kernel_shape, i, -1);
        if (declared >= 0 && mpri_dim_const(k) && k != declared)
            return mpri_op_shape_error(c, 1, "kernel_shape differs from the weight", declared);
        TRY(spatial_dim(c, p, i, spatial, x->d[i + 2], k, &out->d[i + 2]));
    }
    return MPR_OK;
}

static mpr_status check_channels(InferCtx *c, const ConvParams *p, Dim channels, const Shape *w)
{
    if (mpri_dim_const(channels) && mpri_dim_const(w->d[1]) && channels != mpri_op_dim_mul(c->sym, w->d[1], p->group))
        return mpri_op_shape_error(c, 1, "channels of the input, expected weight dim 1 times group",
                                   channels);
    if (mpri_dim_const(w->d[0]) && w->d[0] % p->group != 0)
        return mpri_op_shape_error(c, 1, "group does not divide the output channels", p->group);
    return MPR_OK;
}

static mpr_status infer_conv(InferCtx *c)
{
    const ConvParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *w = op_shape(c, 1);
    DType t;
    Shape out;
    TRY(mpri_op_common_type(c, 0, 3, TS_FLOAT, &t));
    TRY(mpri_op_check_rank(c, 0, 3, MPRI_MAX_RANK));
    if (x->rank < 0) return mpri_infer_set(c, 0, t, NULL);
    TRY(mpri_op_check_rank(c, 1, x->rank, x->rank));
    if (w->rank < 0) {
        out = mpri_op_fresh_shape(c, x->rank);
        out.d[0] = x->d[0];
        return mpri_infer_set(c, 0, t, &out);
    }
    TRY(check_channels(c, p, x->d[1], w));
    TRY(mpri_op_expect_shape(c, 2, &(Shape){.rank = 1, .d = {w->d[0]}},
                             "bias: one per output channel"));
    TRY(conv_shape(c, p, x, w, &out));
    return mpri_infer_set(c, 0, t, &out);
}

static mpr_status infer_conv_grad(InferCtx *c)
{
    const ConvParams *p = c->n->params;
    DType t;
    Shape out, dy;
    bool of_weight = c->n->op->id == OP_ConvGradWeight;
    TRY(mpri_op_common_type(c, 0, 2, TS_FLOAT, &t));
    TRY(mpri_op_dims_shape(c, p->dims, &out));
    if (out.rank < 3)
        return mpri_op_shape_error(c, 0, "rank of the gradient of Conv, allowed 3 to 8", out.rank);
    TRY(mpri_op_check_rank(c, 0, out.rank, out.rank));
    TRY(mpri_op_check_rank(c, 1, out.rank, out.rank));
    if (op_shape(c, 1)->rank >= 0) {
        const Shape *x = of_weight ? op_shape(c, 1) : &out, *w = of_weight ? &out : op_shape(c, 1);
        TRY(check_channels(c, p, x->d[1], w));
        TRY(conv_shape(c, p, x, w, &dy));
        TRY(mpri_op_expect_shape(c, 0, &dy, "cotangent: shape of the convolution"));
    }
    return mpri_infer_set(c, 0, t, &out);
}

/* ---- gradient ---- */

static mpr_status grad_conv(GradCtx *c)
{
    Value *x = grad_in(c, 0), *w = grad_in(c, 1), *dy = c->dy[0];
    ConvParams p = *(const ConvParams *)c->n->params;
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_const_shape(c, w));
    if (grad_needs(c, 0)) {
        p.dims = (Ints){x->shape.rank, x->shape.d};
        c->dx[0] = mpri_build2(c->b, OP_ConvGradInput, &p, dy, w);
    }
    if (grad_needs(c, 1)) {
        p.dims = (Ints){w->shape.rank, w->shape.d};
        c->dx[1] = mpri_build2(c->b, OP_ConvGradWeight, &p, dy, x);
    }
    if (grad_needs(c, 2)) c->dx[2] = mpri_op_grad_channel_sum(c, dy, grad_in(c, 2));
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

const OpDef mpri_op_Conv = {
    MPRI_OP(Conv, "", "conv"),
    .help = "convolution (cross-correlation) with groups, strides, dilations, pads",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1,
    .optional_in = 4, PARAMS(ConvParams, conv_attrs),
    .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW, .infer = infer_conv,
    .grad_state = GRAD_FUNCTION, .grad = grad_conv,
};

#define CONV_GRAD                                                                                  \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(ConvParams, conv_grad_attrs),     \
    .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,                        \
    .infer = infer_conv_grad,                                                                      \
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built"

const OpDef mpri_op_ConvGradInput = {
    MPRI_OP(ConvGradInput, "mpr", "conv"),
    .help = "(dy, w): gradient of the input, of shape dims", CONV_GRAD,
};
const OpDef mpri_op_ConvGradWeight = {
    MPRI_OP(ConvGradWeight, "mpr", "conv"),
    .help = "(dy, x): gradient of the weight, of shape dims", CONV_GRAD,
};
