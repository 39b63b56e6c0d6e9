/* Sampling at the points of a grid, and the grid of an affine map. */
#include "runtime/op/rules.h"

static const AttrRow sample_attrs[] = {
    ATTR_FLAG(GridSampleParams, align_corners, "align_corners", 0),
    ATTR(GridSampleParams, mode, "mode", STRING, .def_string = "linear",
         .choices = "linear|nearest|cubic"),
    ATTR(GridSampleParams, padding_mode, "padding_mode", STRING, .def_string = "zeros",
         .choices = "zeros|border|reflection"),
    ATTR_END,
};
static const AttrRow affine_attrs[] = {
    ATTR_FLAG(AffineGridParams, align_corners, "align_corners", 0), ATTR_END};

/* ---- type and shape rules ---- */

static mpr_status check_grid(InferCtx *c, int x_at, int grid_at)
{
    const Shape *x = op_shape(c, x_at), *grid = op_shape(c, grid_at);
    TRY(mpri_op_check_type(c, x_at, TS_FLOAT));
    TRY(mpri_op_check_type(c, grid_at, TS_FLOAT));
    TRY(mpri_op_check_rank(c, x_at, 3, MPRI_MAX_RANK));
    if (x->rank < 0 || grid->rank < 0) return MPR_OK;
    TRY(mpri_op_check_rank(c, grid_at, x->rank, x->rank));
    TRY(mpri_op_same_dim(c, "batch sizes", x_at, x->d[0], grid_at, grid->d[0]));
    Dim last = grid->d[grid->rank - 1];
    if (mpri_dim_const(last) && last != x->rank - 2)
        return mpri_op_shape_error(
            c, grid_at, "last dim of the grid, expected one coordinate per spatial dim", last);
    return MPR_OK;
}

static mpr_status infer_sample(InferCtx *c)
{
    const Shape *x = op_shape(c, 0), *grid = op_shape(c, 1);
    TRY(check_grid(c, 0, 1));
    if (x->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    Shape out = mpri_op_fresh_shape(c, x->rank);
    out.d[0] = x->d[0];
    out.d[1] = x->d[1];
    for (int i = 2; i < x->rank && grid->rank >= 0; i++) out.d[i] = grid->d[i - 1];
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_sample_grad(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(check_grid(c, 1, 2));
    TRY(mpri_infer_set(c, 0, op_type(c, 1), op_shape(c, 1)));
    return mpri_infer_set(c, 1, op_type(c, 2), op_shape(c, 2));
}

static mpr_status infer_affine(InferCtx *c)
{
    const Shape *theta = op_shape(c, 0), *want = op_shape(c, 1);
    int64_t n, count = mpri_shape_elements(want);
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 3, 3));
    if (count >= 0 && count != 4 && count != 5)
        return mpri_op_shape_error(c, 1, "entries of size, allowed 4 or 5", count);
    if (count < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    int spatial = (int)count - 2;
    if (theta->rank == 3) {
        Shape wanted = {.rank = 3, .d = {theta->d[0], spatial, spatial + 1}};
        TRY(mpri_op_expect_shape(c, 0, &wanted, "theta: one matrix per item"));
    }
    Shape out = mpri_op_fresh_shape(c, count);
    const Dim *size = mpri_infer_content(c, 1, &n);
    if (theta->rank == 3) out.d[0] = theta->d[0];
    for (int i = 0; size && i < spatial; i++) {
        int64_t v;
        if (mpri_dim_is_int(c->sym, size[i + 2], &v) && v < 0)
            return mpri_op_shape_error(c, 1, "entry of size, allowed >= 0", v);
        out.d[i + 1] = size[i + 2];
    }
    if (size && theta->rank == 3)
        TRY(mpri_op_same_dim(c, "batch sizes", 0, theta->d[0], 1, size[0]));
    out.d[count - 1] = spatial;
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_affine_grad(InferCtx *c)
{
    const Shape *dy = op_shape(c, 0);
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_rank(c, 0, 4, 5));
    if (dy->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    Shape theta = {.rank = 3, .d = {dy->d[0], dy->rank - 2, dy->rank - 1}};
    return mpri_infer_set(c, 0, op_type(c, 0), &theta);
}

/* ---- gradients ---- */

static mpr_status grad_sample(GradCtx *c)
{
    Value *out[2] = {NULL}, *in[3] = {c->dy[0], grad_in(c, 0), grad_in(c, 1)};
    mpri_build(c->b, OP_GridSampleGrad, c->n->params, 3, in, 2, out);
    for (int k = 0; k < 2; k++)
        if (grad_needs(c, k)) c->dx[k] = out[k];
    return mpri_op_grad_done(c);
}

static mpr_status grad_affine(GradCtx *c)
{
    c->dx[0] = mpri_build1(c->b, OP_AffineGridGrad, c->n->params, c->dy[0]);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

const OpDef mpri_op_GridSample = {
    MPRI_OP(GridSample, "", "grid_sample"), .help = "interpolation at the points of a grid",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(GridSampleParams, sample_attrs),
    .cast_cuda = CAST_WIDEST, .cast_cpu = CAST_FP32, .infer = infer_sample,
    .grad_state = GRAD_FUNCTION, .grad = grad_sample,
};
const OpDef mpri_op_AffineGrid = {
    MPRI_OP(AffineGrid, "", "grid_sample"), .help = "the grid of an affine map, for GridSample",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(AffineGridParams, affine_attrs),
    .fixed_in = 2, .nondiff_in = 2, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_affine, .grad_state = GRAD_FUNCTION, .grad = grad_affine,
};
#define SAMPLE_GRAD                                                                                \
    .min_out = 1, .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,          \
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built"
const OpDef mpri_op_GridSampleGrad = {
    MPRI_OP(GridSampleGrad, "mpr", "grid_sample"), .help = "(dy, x, grid): dx, dgrid", SAMPLE_GRAD,
    .min_in = 3, .max_in = 3, .max_out = 2, PARAMS(GridSampleParams, sample_attrs),
    .infer = infer_sample_grad,
};
const OpDef mpri_op_AffineGridGrad = {
    MPRI_OP(AffineGridGrad, "mpr", "grid_sample"), .help = "(dy): dtheta", SAMPLE_GRAD,
    .min_in = 1, .max_in = 1, .max_out = 1, PARAMS(AffineGridParams, affine_attrs),
    .infer = infer_affine_grad,
};
