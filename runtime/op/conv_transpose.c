/* Transposed convolution: what an input element met through a tap in Conv, it gives back to.
 *
 * It is the gradient of a Conv with respect to its input, so its own gradients are that Conv and the
 * gradient of that Conv's weight. */
#include "runtime/op/conv_transpose.h"
#include "runtime/op/rules.h"

#define T ConvTransposeParams
static const AttrRow transpose_attrs[] = {
    ATTR(T, auto_pad, "auto_pad", STRING, .def_string = "NOTSET",
         .choices = "NOTSET|SAME_UPPER|SAME_LOWER|VALID"),
    ATTR(T, dilations, "dilations", INTS),
    ATTR(T, kernel_shape, "kernel_shape", INTS),
    ATTR(T, output_padding, "output_padding", INTS),
    ATTR(T, output_shape, "output_shape", INTS),
    ATTR(T, pads, "pads", INTS),
    ATTR(T, strides, "strides", INTS),
    ATTR(T, group, "group", INT, .def_int = 1, .min_int = 1, .max_int = INT32_MAX),
    ATTR_END,
};
#undef T

static mpr_status check_lists(InferCtx *c, const ConvTransposeParams *p, int spatial)
{
    const ListRule lists[] = {
        {"dilations", p->dilations, spatial, 1, false},
        {"kernel_shape", p->kernel_shape, spatial, 0, false},
        {"strides", p->strides, spatial, 1, false},
        {"output_padding", p->output_padding, spatial, 0, false},
        {"output_shape", p->output_shape, spatial, 0, false},
        {"pads", p->pads, 2 * (int64_t)spatial, INT32_MIN, false},
    };
    return mpri_op_check_lists(c, lists, (int)(sizeof lists / sizeof *lists));
}

static int64_t entry(Ints v, int i, int64_t otherwise) { return i < v.n ? v.v[i] : otherwise; }

static mpr_status spatial_dim(InferCtx *c, int i, int spatial, Dim x, Dim taps, Dim *out)
{
    const ConvTransposeParams *p = c->n->params;
    SymTab *s = c->sym;
    int64_t stride = entry(p->strides, i, 1), dilation = entry(p->dilations, i, 1), pads = 0, v;
    bool valid = p->auto_pad && strcmp(p->auto_pad, "VALID") == 0;
    Dim scaled = mpri_op_dim_mul(s, x, mpri_dim_int(s, stride));
    Dim reach = mpri_op_dim_mul(s, mpri_op_dim_sub(s, taps, 1), mpri_dim_int(s, dilation));
    if (mpri_dim_const(x) && mpri_dim_const(taps) &&
        (!mpri_dim_is_int(s, mpri_op_dim_add(s, scaled, reach), &v) || v > MPRI_MOST_ELEMENTS))
        return mpri_op_shape_error(c, 0, "dim that is too large for ConvTranspose with these strides and dilations", x);
    if (p->output_shape.n) {
        *out = p->output_shape.v[i];
        return MPR_OK;
    }
    if (p->auto_pad && strncmp(p->auto_pad, "SAME", 4) == 0) {
        *out = scaled;
        return MPR_OK;
    }
    if (!valid) pads = entry(p->pads, i, 0) + entry(p->pads, i + spatial, 0);
    int64_t add = 1 - stride + entry(p->output_padding, i, 0) - pads;
    *out = mpri_op_dim_add(s, mpri_op_dim_add(s, scaled, reach), mpri_dim_int(s, add));
    if (mpri_dim_is_int(s, *out, &v) && v < 0)
        return mpri_op_shape_error(c, 0, "dim of the result of ConvTranspose, allowed >= 0", v);
    return MPR_OK;
}

static mpr_status infer_transpose(InferCtx *c)
{
    const ConvTransposeParams *p = c->n->params;
    const Shape *x = op_shape(c, 0), *w = op_shape(c, 1);
    DType t;
    TRY(mpri_op_common_type(c, 0, 3, TS_FLOAT, &t));
    TRY(mpri_op_check_rank(c, 0, 3, MPRI_MAX_RANK));
    if (x->rank < 0) return mpri_infer_set(c, 0, t, NULL);
    int spatial = x->rank - 2;
    TRY(mpri_op_check_rank(c, 1, x->rank, x->rank));
    TRY(check_lists(c, p, spatial));
    Shape out = mpri_op_fresh_shape(c, x->rank);
    out.d[0] = x->d[0];
    if (w->rank < 0) return mpri_infer_set(c, 0, t, &out);
    TRY(mpri_op_same_dim(c, "input channels of ConvTranspose", 0, x->d[1], 1, w->d[0]));
    if (mpri_dim_const(w->d[0]) && w->d[0] % p->group != 0)
        return mpri_op_shape_error(c, 1, "group does not divide the input channels", p->group);
    out.d[1] = mpri_op_dim_mul(c->sym, w->d[1], p->group);
    TRY(mpri_op_expect_shape(c, 2, &(Shape){.rank = 1, .d = {out.d[1]}},
                             "bias: one per output channel"));
    for (int i = 0; i < spatial; i++) {
        Dim taps = w->d[i + 2];
        int64_t declared = entry(p->kernel_shape, i, -1);
        if (declared >= 0 && mpri_dim_const(taps) && taps != declared)
            return mpri_op_shape_error(c, 1, "kernel_shape differs from the weight", declared);
        TRY(spatial_dim(c, i, spatial, x->d[i + 2], taps, &out.d[i + 2]));
    }
    return mpri_infer_set(c, 0, t, &out);
}

/* The Conv whose input is y; its end padding may be negative, where y reaches beyond. */
static ConvParams as_conv(const ConvTransposeParams *p, const Value *x, const Value *w,
                          const Value *y, int64_t *pads)
{
    int spatial = x->shape.rank - 2;
    for (int i = 0; i < spatial; i++) {
        int64_t in = x->shape.d[i + 2], taps = w->shape.d[i + 2], out = y->shape.d[i + 2];
        int64_t used = mpri_transposed_span(p, i, in, taps) - entry(p->output_padding, i, 0);
        pads[i] = mpri_transposed_begin(p, i, in, taps, out);
        pads[i + spatial] = used - out - pads[i];
    }
    return (ConvParams){.auto_pad = "NOTSET", .dilations = p->dilations, .strides = p->strides,
                        .pads = {2 * (int64_t)spatial, pads}, .group = p->group};
}

static mpr_status grad_transpose(GradCtx *c)
{
    Value *x = grad_in(c, 0), *w = grad_in(c, 1), *dy = c->dy[0];
    int64_t pads[2 * MPRI_MAX_RANK];
    TRY(mpri_op_grad_const_shape(c, x));
    TRY(mpri_op_grad_const_shape(c, w));
    TRY(mpri_op_grad_const_shape(c, dy));
    ConvParams p = as_conv(c->n->params, x, w, dy, pads);
    if (grad_needs(c, 0)) c->dx[0] = mpri_build2(c->b, OP_Conv, &p, dy, w);
    if (grad_needs(c, 1)) {
        p.dims = (Ints){w->shape.rank, w->shape.d};
        c->dx[1] = mpri_build2(c->b, OP_ConvGradWeight, &p, x, dy);
    }
    if (grad_needs(c, 2)) c->dx[2] = mpri_op_grad_channel_sum(c, dy, grad_in(c, 2));
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_ConvTranspose = {
    MPRI_OP(ConvTranspose, "", "conv"),
    .help = "transposed convolution with groups, strides, dilations, pads",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 1,
    .optional_in = 4, PARAMS(ConvTransposeParams, transpose_attrs),
    .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW, .infer = infer_transpose,
    .grad_state = GRAD_FUNCTION, .grad = grad_transpose,
};
