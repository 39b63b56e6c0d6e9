/* Det: determinants of the last two dims. Its gradient is dy times the cofactor matrix, which
 * exists for singular matrices too, so it is not computed from an inverse. */
#include "runtime/op/rules.h"

static mpr_status check_square(InferCtx *c, int k)
{
    const Shape *x = op_shape(c, k);
    TRY(mpri_op_check_type(c, k, TS_FLOAT));
    TRY(mpri_op_check_rank(c, k, 2, MPRI_MAX_RANK));
    if (x->rank < 0) return MPR_OK;
    return mpri_op_same_dim(c, "rows and columns", k, x->d[x->rank - 2], k, x->d[x->rank - 1]);
}

static mpr_status infer_det(InferCtx *c)
{
    Shape out = *op_shape(c, 0);
    TRY(check_square(c, 0));
    if (out.rank >= 0) out.rank -= 2;
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_det_grad(InferCtx *c)
{
    Shape batch = *op_shape(c, 1);
    DType t;
    TRY(mpri_op_common_type(c, 0, 2, TS_FLOAT, &t));
    TRY(check_square(c, 1));
    if (batch.rank >= 0) batch.rank -= 2;
    TRY(mpri_op_expect_shape(c, 0, &batch, "cotangent"));
    return mpri_infer_set(c, 0, t, op_shape(c, 1));
}

static mpr_status grad_det(GradCtx *c)
{
    c->dx[0] = mpri_build2(c->b, OP_DetGrad, NULL, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_Det = {
    MPRI_OP(Det, "", "det"), .help = "determinants of the last two dims",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .cast_cuda = CAST_KEEP,
    .cast_cpu = CAST_KEEP, .infer = infer_det, .grad_state = GRAD_FUNCTION, .grad = grad_det,
};
const OpDef mpri_op_DetGrad = {
    MPRI_OP(DetGrad, "mpr", "det"), .help = "(dy, x): dy times the cofactor matrix of x",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .flags = OPF_INTERNAL,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_det_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
