/* MaxUnpool: elements go back to the places that MaxPool took them from, zeros elsewhere.
 *
 * Trap: with output_shape the indices are positions in that shape, as in onnxruntime and torch. */
#include "runtime/op/rules.h"

static const AttrRow unpool_attrs[] = {
    ATTR(MaxUnpoolParams, kernel_shape, "kernel_shape", INTS, .required = true),
    ATTR(MaxUnpoolParams, pads, "pads", INTS),
    ATTR(MaxUnpoolParams, strides, "strides", INTS),
    ATTR_END,
};

static mpr_status check_lists(InferCtx *c, const MaxUnpoolParams *p, int spatial)
{
    const ListRule lists[] = {
        {"kernel_shape", p->kernel_shape, spatial, 1, true},
        {"strides", p->strides, spatial, 1, false},
        {"pads", p->pads, 2 * (int64_t)spatial, 0, false},
    };
    return mpri_op_check_lists(c, lists, (int)(sizeof lists / sizeof *lists));
}

/* The shape that the window attributes give: (x - 1) * stride + kernel - pads. */
static mpr_status window_shape(InferCtx *c, const Shape *x, Shape *out)
{
    const MaxUnpoolParams *p = c->n->params;
    int spatial = x->rank - 2;
    *out = *x;
    TRY(check_lists(c, p, spatial));
    for (int i = 0; i < spatial; i++) {
        int64_t stride = p->strides.n ? p->strides.v[i] : 1, add = p->kernel_shape.v[i] - stride, v;
        if (p->pads.n) add -= p->pads.v[i] + p->pads.v[i + spatial];
        Dim d = mpri_op_dim_mul(c->sym, x->d[i + 2], mpri_dim_int(c->sym, stride));
        out->d[i + 2] = mpri_op_dim_add(c->sym, d, mpri_dim_int(c->sym, add));
        if (mpri_dim_is_int(c->sym, out->d[i + 2], &v) && v < 0)
            return mpri_op_shape_error(c, 0, "dim of the result of MaxUnpool, allowed >= 0", v);
    }
    return MPR_OK;
}

static mpr_status infer_unpool(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    Shape out;
    int64_t n;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_type(c, 2, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 3, MPRI_MAX_RANK));
    if (x->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    TRY(mpri_op_expect_shape(c, 1, x, "indices: one per element"));
    TRY(window_shape(c, x, &out));
    if (!op_in(c, 2)) return mpri_infer_set(c, 0, op_type(c, 0), &out);
    const Dim *want = mpri_infer_content(c, 2, &n);
    if (want && n != x->rank)
        return mpri_op_shape_error(c, 2, "entries of output_shape, expected the rank of x", n);
    out = mpri_op_fresh_shape(c, x->rank);
    for (int i = 0; want && i < x->rank; i++) {
        int64_t v;
        if (mpri_dim_is_int(c->sym, want[i], &v) && v < 0)
            return mpri_op_shape_error(c, 2, "entry of output_shape, allowed >= 0", v);
        out.d[i] = want[i];
    }
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_unpool_grad(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    return mpri_infer_set(c, 0, op_type(c, 0), op_shape(c, 1));
}

static mpr_status grad_unpool(GradCtx *c)
{
    c->dx[0] = mpri_build2(c->b, OP_MaxUnpoolGrad, NULL, c->dy[0], grad_in(c, 1));
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_MaxUnpool = {
    MPRI_OP(MaxUnpool, "", "pool"), .help = "elements at the places that indices name, zeros elsewhere",
    .min_in = 2, .max_in = 3, .optional_in = 4, .min_out = 1, .max_out = 1,
    PARAMS(MaxUnpoolParams, unpool_attrs), .fixed_in = 6, .nondiff_in = 6,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_FP32, .infer = infer_unpool,
    .grad_state = GRAD_FUNCTION, .grad = grad_unpool,
};
const OpDef mpri_op_MaxUnpoolGrad = {
    MPRI_OP(MaxUnpoolGrad, "mpr", "pool"), .help = "(dy, indices): gradient of MaxUnpool",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .flags = OPF_INTERNAL,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_unpool_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
