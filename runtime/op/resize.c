/* Resize by nearest, linear or cubic interpolation along any axes, and its older form Upsample.
 *
 * The weights of every axis follow from attributes and from roi, scales and sizes, which must be known
 * when shapes are bound; the operator is linear in x, so the gradient is its transpose. */
#include "runtime/op/resize.h"
#include "runtime/op/rules.h"

/* Upsample has the mode only; the rest is fixed to what it meant. */
#define RESIZE_ROWS(Fixed, Transformation, Nearest)                                                \
    ATTR(ResizeParams, antialias, "antialias", INT, .internal = (Fixed), .min_int = 0,             \
         .max_int = 1),                                                                            \
    ATTR(ResizeParams, axes, "axes", INTS, .internal = (Fixed)),                                   \
    ATTR(ResizeParams, coordinate_transformation_mode, "coordinate_transformation_mode", STRING,   \
         .internal = (Fixed), .def_string = (Transformation),                                      \
         .choices = "half_pixel|half_pixel_symmetric|pytorch_half_pixel|align_corners|asymmetric|" \
                    "tf_crop_and_resize|tf_half_pixel_for_nn"),                                    \
    ATTR(ResizeParams, cubic_coeff_a, "cubic_coeff_a", FLOAT, .internal = (Fixed),                 \
         .def_float = -0.75f),                                                                     \
    ATTR(ResizeParams, exclude_outside, "exclude_outside", INT, .internal = (Fixed), .min_int = 0, \
         .max_int = 1),                                                                            \
    ATTR(ResizeParams, extrapolation_value, "extrapolation_value", FLOAT, .internal = (Fixed)),    \
    ATTR(ResizeParams, keep_aspect_ratio_policy, "keep_aspect_ratio_policy", STRING,               \
         .internal = (Fixed), .def_string = "stretch",                                             \
         .choices = "stretch|not_larger|not_smaller"),                                             \
    ATTR(ResizeParams, nearest_mode, "nearest_mode", STRING, .internal = (Fixed),                  \
         .def_string = (Nearest), .choices = "round_prefer_floor|round_prefer_ceil|floor|ceil"),   \
    ATTR(ResizeParams, mode, "mode", STRING, .def_string = "nearest",                              \
         .choices = "nearest|linear|cubic")

static const AttrRow resize_attrs[] = {
    RESIZE_ROWS(false, "half_pixel", "round_prefer_floor"),
    ATTR(ResizeParams, dims, "dims", INTS, .internal = true),
    ATTR_END,
};
static const AttrRow upsample_attrs[] = {
    RESIZE_ROWS(true, "asymmetric", "floor"),
    ATTR(ResizeParams, dims, "dims", INTS, .internal = true),
    ATTR_END,
};

/* ---- type and shape rules ---- */

/* The input; exporters write one without elements for one that is absent. */
static const Value *present(const InferCtx *c, int k)
{
    const Value *v = op_in(c, k);
    return v && !(v->shape.rank == 1 && v->shape.d[0] == 0) ? v : NULL;
}

/* Float contents of a constant input; false when they are not known. */
static bool floats(const InferCtx *c, int k, int64_t n, double *out)
{
    const Value *v = present(c, k);
    if (!v || v->kind != VAL_CONST || !v->data || mpri_shape_elements(&v->shape) != n) return false;
    for (int64_t i = 0; i < n; i++) out[i] = mpri_load_f64(v->dtype, v->data, i);
    return true;
}

/* dim * scale, where it can be said. */
static Dim scaled(InferCtx *c, Dim d, double scale)
{
    if (mpri_dim_const(d)) return mpri_resize_scaled(d, scale);
    if (scale == 1) return d;
    if (scale == floor(scale) && scale < 1e6) return mpri_dim_mul(c->sym, d, (Dim)scale);
    double inverse = 1 / scale;
    if (inverse == floor(inverse) && inverse < 1e6 && ((int64_t)inverse & ((int64_t)inverse - 1)) == 0)
        return mpri_dim_div(c->sym, d, (Dim)inverse);
    return mpri_dim_fresh(c->sym);
}

static mpr_status by_scales(InferCtx *c, int at, int n, Shape *out)
{
    const ResizeParams *p = c->n->params;
    double scale[MPRI_MAX_RANK], roi[2 * MPRI_MAX_RANK];
    const Value *v = op_in(c, at);
    int64_t given = mpri_shape_elements(&v->shape);
    if (given >= 0 && given != n)
        return mpri_op_shape_error(c, at, "entries of scales, expected one per axis", given);
    bool known = floats(c, at, n, scale), crop = mpri_resize_crops(p) && at == 2 && present(c, 1);
    if (crop) known = floats(c, 1, 2 * n, roi) && known;
    for (int k = 0; k < n; k++) {
        int axis = mpri_resize_axis(p, k, out->rank);
        if (known && !(scale[k] > 0 && scale[k] < 1e9))
            return mpri_op_shape_error(c, at, "entry of scales, allowed above 0, rounded",
                                       (int64_t)fmax(fmin(scale[k], 1e9), -1e9));
        if (!known) {
            out->d[axis] = mpri_dim_fresh(c->sym);
        } else if (crop && mpri_dim_const(out->d[axis])) {
            double d = (double)out->d[axis] * (roi[k + n] - roi[k]) * scale[k];
            out->d[axis] = d > 0 && d < 1e15 ? (Dim)floor(d) : 0;
        } else {
            out->d[axis] = crop ? mpri_dim_fresh(c->sym) : scaled(c, out->d[axis], scale[k]);
        }
    }
    return MPR_OK;
}

static mpr_status by_sizes(InferCtx *c, int n, Shape *out)
{
    const ResizeParams *p = c->n->params;
    int64_t count, given = mpri_shape_elements(&op_shape(c, 3)[0]), sizes[MPRI_MAX_RANK];
    if (given >= 0 && given != n)
        return mpri_op_shape_error(c, 3, "entries of sizes, expected one per axis", given);
    const Dim *d = mpri_infer_content(c, 3, &count);
    bool known = d && count == n;
    for (int k = 0; known && k < n; k++) {
        if (!mpri_dim_is_int(c->sym, d[k], &sizes[k])) sizes[k] = -1;
        else if (sizes[k] < 0)
            return mpri_op_shape_error(c, 3, "entry of sizes, allowed >= 0", sizes[k]);
    }
    Shape x = *out;
    bool keep = mpri_resize_keeps_aspect(p), whole = known;
    for (int k = 0; whole && keep && k < n; k++)
        whole = sizes[k] >= 0 && x.d[mpri_resize_axis(p, k, x.rank)] > 0;
    for (int k = 0; k < n; k++) {
        int axis = mpri_resize_axis(p, k, x.rank);
        if (!known || (keep && !whole)) out->d[axis] = mpri_dim_fresh(c->sym);
        else if (!keep) out->d[axis] = d[k];
        else
            out->d[axis] = mpri_resize_rounded(
                x.d[axis], mpri_resize_factor(p, n, sizes, k, x.d, x.rank));
    }
    return MPR_OK;
}

static mpr_status check_inputs(InferCtx *c, int scales)
{
    if (scales == 2) TRY(mpri_op_check_type(c, 1, TS_FLOAT));
    TRY(mpri_op_check_type(c, scales, TS_FLOAT));
    if (scales == 2) TRY(mpri_op_check_type(c, 3, TS(MPR_INT64)));
    return MPR_OK;
}

/* Result of Resize for an x of that shape; the input numbered `scales` holds the factors. */
static mpr_status resized(InferCtx *c, int scales, const Shape *x, Shape *out)
{
    const ResizeParams *p = c->n->params;
    int axes[MPRI_MAX_RANK], n = p->axes.n ? (int)p->axes.n : x->rank;
    TRY(mpri_op_axes(c, p->axes.n, p->axes.v, x->rank, axes));
    const Value *by_scale = present(c, scales), *by_size = scales == 2 ? present(c, 3) : NULL;
    *out = *x;
    if (!by_scale && !by_size)
        return mpri_err_set(c->err, MPR_E_SHAPE, "Resize has neither scales nor sizes");
    if (mpri_resize_crops(p) && (scales != 2 || !present(c, 1)))
        return mpri_err_set(c->err, MPR_E_SHAPE, "tf_crop_and_resize needs roi (input 1)");
    return by_size ? by_sizes(c, n, out) : by_scales(c, scales, n, out);
}

static mpr_status infer_with(InferCtx *c, int scales)
{
    Shape out;
    TRY(mpri_op_check_type(c, 0, TS_NUMBER | TS_BOOL));
    TRY(check_inputs(c, scales));
    TRY(mpri_op_check_rank(c, 0, 1, MPRI_MAX_RANK));
    if (op_shape(c, 0)->rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    TRY(resized(c, scales, op_shape(c, 0), &out));
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_resize(InferCtx *c) { return infer_with(c, 2); }
static mpr_status infer_upsample(InferCtx *c) { return infer_with(c, 1); }

static mpr_status infer_resize_grad(InferCtx *c)
{
    Shape x, dy;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(check_inputs(c, 2));
    TRY(mpri_op_dims_shape(c, ((const ResizeParams *)c->n->params)->dims, &x));
    TRY(resized(c, 2, &x, &dy));
    TRY(mpri_op_expect_shape(c, 0, &dy, "cotangent: shape of the result"));
    return mpri_infer_set(c, 0, op_type(c, 0), &x);
}

/* ---- gradients ---- */

static mpr_status grad_with(GradCtx *c, Value *roi, Value *scales, Value *sizes)
{
    const Value *x = grad_in(c, 0);
    ResizeParams p = *(const ResizeParams *)c->n->params;
    TRY(mpri_op_grad_const_shape(c, x));
    p.dims = (Ints){x->shape.rank, x->shape.d};
    Value *in[4] = {c->dy[0], roi, scales, sizes};
    c->dx[0] = mpri_build(c->b, OP_ResizeGrad, &p, 4, in, 1, NULL);
    return mpri_op_grad_done(c);
}

static mpr_status grad_resize(GradCtx *c)
{
    return grad_with(c, grad_in(c, 1), grad_in(c, 2), grad_in(c, 3));
}

static mpr_status grad_upsample(GradCtx *c) { return grad_with(c, NULL, grad_in(c, 1), NULL); }

/* ---- definitions ---- */

const OpDef mpri_op_Resize = {
    MPRI_OP(Resize, "", "resize"), .help = "interpolation to another size: nearest, linear, cubic",
    .min_in = 1, .max_in = 4, .optional_in = 14, .min_out = 1, .max_out = 1, .fixed_in = 14,
    .nondiff_in = 14, PARAMS(ResizeParams, resize_attrs),
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = infer_resize,
    .grad_state = GRAD_FUNCTION, .grad = grad_resize,
};
const OpDef mpri_op_Upsample = {
    MPRI_OP(Upsample, "", "resize"), .help = "Resize before opset 10: asymmetric, nearest is floor",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, .fixed_in = 2, .nondiff_in = 2,
    PARAMS(ResizeParams, upsample_attrs),
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_KEEP, .infer = infer_upsample,
    .grad_state = GRAD_FUNCTION, .grad = grad_upsample,
};
const OpDef mpri_op_ResizeGrad = {
    MPRI_OP(ResizeGrad, "mpr", "resize"),
    .help = "(dy, roi?, scales?, sizes?): gradient of Resize, of shape dims",
    .min_in = 1, .max_in = 4, .optional_in = 14, .min_out = 1, .max_out = 1,
    PARAMS(ResizeParams, resize_attrs), .flags = OPF_INTERNAL,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_resize_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
