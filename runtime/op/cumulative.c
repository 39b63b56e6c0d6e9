/* CumSum and CumProd along one axis (input 1), over a prefix or, reversed, a suffix; exclusive
 * leaves the element itself out. The gradient of a cumulative sum is the cumulative sum the other
 * way.
 *
 * The product must not divide by an element, which may be 0. With P_j the product before element
 * j, y_i depends on x_j for i >= j only and
 *   dx_j = P_j S_j,  S_j = dy_j + x_(j+1) S_(j+1)
 * which the kernel of CumProdGrad computes with one pass each way. */
#include "runtime/op/rules.h"

static const AttrRow cumulative_attrs[] = {
    ATTR_FLAG(CumulativeParams, exclusive, "exclusive", 0),
    ATTR_FLAG(CumulativeParams, reverse, "reverse", 0),
    ATTR_END,
};

static mpr_status check_axis(InferCtx *c, int k, const Shape *x)
{
    int64_t n;
    int axis;
    TRY(mpri_op_check_type(c, k, TS_INDEX));
    TRY(mpri_op_check_rank(c, k, 0, 1));
    const int64_t *v = mpri_op_ints(c, k, &n);
    if (!v || x->rank < 0) return MPR_OK;
    if (n != 1) return mpri_op_shape_error(c, k, "elements of the axis, 1 is allowed", n);
    return mpri_infer_axis(c, v[0], x->rank, &axis);
}

static mpr_status infer_cumulative(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT | TS_WIDE_INT));
    TRY(check_axis(c, 1, op_shape(c, 0)));
    return mpri_op_infer_same(c);
}

static mpr_status infer_product_grad(InferCtx *c)
{
    DType t;
    TRY(mpri_op_common_type(c, 0, 2, TS_FLOAT, &t));
    TRY(mpri_op_expect_shape(c, 0, op_shape(c, 1), "cotangent"));
    TRY(check_axis(c, 2, op_shape(c, 1)));
    return mpri_infer_set(c, 0, t, op_shape(c, 1));
}

static mpr_status grad_sum(GradCtx *c)
{
    CumulativeParams p = *(const CumulativeParams *)c->n->params;
    p.reverse = !p.reverse;
    c->dx[0] = mpri_build2(c->b, OP_CumSum, &p, c->dy[0], grad_in(c, 1));
    return mpri_op_grad_done(c);
}

static mpr_status grad_product(GradCtx *c)
{
    c->dx[0] = mpri_build3(c->b, OP_CumProdGrad, c->n->params, c->dy[0], grad_in(c, 0),
                           grad_in(c, 1));
    return mpri_op_grad_done(c);
}

#define CUMULATIVE                                                                                 \
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,                                          \
    PARAMS(CumulativeParams, cumulative_attrs), .fixed_in = 2, .nondiff_in = 2,                    \
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = infer_cumulative,                      \
    .grad_state = GRAD_FUNCTION

const OpDef mpri_op_CumSum = {
    MPRI_OP(CumSum, "", "cumulative"), .help = "sums of all prefixes (or suffixes) along an axis",
    CUMULATIVE, .grad = grad_sum,
};
const OpDef mpri_op_CumProd = {
    MPRI_OP(CumProd, "", "cumulative"),
    .help = "products of all prefixes (or suffixes) along an axis", CUMULATIVE,
    .grad = grad_product,
};
const OpDef mpri_op_CumProdGrad = {
    MPRI_OP(CumProdGrad, "mpr", "cumulative"), .help = "(dy, x, axis): dx, exact with zeros in x",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1,
    PARAMS(CumulativeParams, cumulative_attrs), .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_product_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
