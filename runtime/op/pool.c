/* Pooling: the largest element, the mean or the p-norm of windows over N, C, spatial dims.
 *
 * A global pool is the pool whose window is the whole plane, and gets its gradient that way.
 * Conventions: MaxPool's cotangent goes to the first largest element in row-major order; a p-norm of 0
 * passes nothing on. */
#include "runtime/op/rules.h"

#include <string.h>

#define WINDOW_ROWS(T)                                                                             \
    ATTR(T, window.auto_pad, "auto_pad", STRING, .def_string = "NOTSET",                           \
         .choices = "NOTSET|SAME_UPPER|SAME_LOWER|VALID"),                                         \
    ATTR(T, window.dilations, "dilations", INTS),                                                  \
    ATTR(T, window.kernel_shape, "kernel_shape", INTS, .required = true),                          \
    ATTR(T, window.pads, "pads", INTS), ATTR(T, window.strides, "strides", INTS),                  \
    ATTR_FLAG(T, window.ceil_mode, "ceil_mode", 0)

static const AttrRow max_attrs[] = {
    WINDOW_ROWS(MaxPoolParams), ATTR_FLAG(MaxPoolParams, storage_order, "storage_order", 0),
    ATTR_END,
};
static const AttrRow average_attrs[] = {
    WINDOW_ROWS(AveragePoolParams),
    ATTR_FLAG(AveragePoolParams, count_include_pad, "count_include_pad", 0),
    ATTR(AveragePoolParams, dims, "dims", INTS, .internal = true),
    ATTR_END,
};
#define LP_ROW(T) ATTR(T, p, "p", INT, .def_int = 2, .min_int = 1, .max_int = INT32_MAX)
static const AttrRow lp_attrs[] = {WINDOW_ROWS(LpPoolParams), LP_ROW(LpPoolParams), ATTR_END};
static const AttrRow global_lp_attrs[] = {LP_ROW(GlobalLpPoolParams), ATTR_END};

/* ---- type and shape rules ---- */

static int64_t entry(Ints v, int i, int64_t otherwise) { return i < v.n ? v.v[i] : otherwise; }

static mpr_status check_lists(InferCtx *c, const PoolWindow *p, int spatial)
{
    int64_t least = c->n->op->flags & OPF_INTERNAL ? 0 : 1; /* a plane without elements */
    const ListRule lists[] = {
        {"kernel_shape", p->kernel_shape, spatial, least, true},
        {"dilations", p->dilations, spatial, 1, false},
        {"strides", p->strides, spatial, 1, false},
        {"pads", p->pads, 2 * (int64_t)spatial, 0, false},
    };
    return mpri_op_check_lists(c, lists, (int)(sizeof lists / sizeof *lists));
}

/* ceil(x / stride) for SAME, else floor((x + pads - reach) / stride) + 1; with ceil_mode ceil, but no
 * window begins behind the last element. */
static mpr_status spatial_dim(InferCtx *c, const PoolWindow *p, int i, int spatial, Dim x, Dim *out)
{
    SymTab *s = c->sym;
    int64_t stride = entry(p->strides, i, 1), dilation = entry(p->dilations, i, 1), v;
    int64_t begin = 0, end = 0, reach = (p->kernel_shape.v[i] - 1) * dilation + 1;
    bool given = !p->auto_pad || strcmp(p->auto_pad, "VALID") != 0;
    if (p->auto_pad && strncmp(p->auto_pad, "SAME", 4) == 0) {
        *out = mpri_dim_div(s, mpri_dim_add(s, x, stride - 1), stride);
        return MPR_OK;
    }
    if (given) {
        begin = entry(p->pads, i, 0);
        end = entry(p->pads, i + spatial, 0);
    }
    Dim room = mpri_op_dim_add(s, x, mpri_dim_int(s, begin + end - reach));
    int64_t beyond = p->ceil_mode && given ? stride - 1 : 0; /* by which the only window may go over */
    if (mpri_dim_is_int(s, room, &v) && v < -beyond)
        return mpri_op_shape_error(c, 0, "the window is larger than the padded input, by", -v);
    if (!p->ceil_mode || !given) {
        *out = mpri_dim_add(s, mpri_dim_div(s, room, stride), 1);
        return MPR_OK;
    }
    Dim all = mpri_dim_div(s, mpri_dim_add(s, room, stride - 1), stride);
    Dim last = mpri_dim_div(s, mpri_op_dim_add(s, x, mpri_dim_int(s, begin - 1)), stride);
    *out = mpri_dim_add(s, mpri_dim_min(s, all, last), 1);
    return MPR_OK;
}

static mpr_status pool_shape(InferCtx *c, const PoolWindow *p, const Shape *x, Shape *out)
{
    TRY(check_lists(c, p, x->rank - 2));
    *out = *x;
    for (int i = 0; i < x->rank - 2; i++)
        TRY(spatial_dim(c, p, i, x->rank - 2, x->d[i + 2], &out->d[i + 2]));
    return MPR_OK;
}

static mpr_status infer_window(InferCtx *c, const PoolWindow *p, TypeSet types, Shape *out)
{
    TRY(mpri_op_check_type(c, 0, types));
    TRY(mpri_op_check_rank(c, 0, 3, MPRI_MAX_RANK));
    *out = mpri_op_unknown;
    if (op_shape(c, 0)->rank >= 0) TRY(pool_shape(c, p, op_shape(c, 0), out));
    return mpri_infer_set(c, 0, op_type(c, 0), out);
}

static mpr_status infer_max(InferCtx *c)
{
    const MaxPoolParams *p = c->n->params;
    Shape out;
    TRY(infer_window(c, &p->window, TS_FLOAT | TS(MPR_INT8) | TS(MPR_UINT8), &out));
    return mpri_infer_set(c, 1, MPR_INT64, &out);
}

static mpr_status infer_average(InferCtx *c)
{
    Shape out;
    return infer_window(c, &((const AveragePoolParams *)c->n->params)->window, TS_FLOAT, &out);
}

static mpr_status infer_lp(InferCtx *c)
{
    Shape out;
    return infer_window(c, &((const LpPoolParams *)c->n->params)->window, TS_FLOAT, &out);
}

static mpr_status infer_global(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_rank(c, 0, 3, MPRI_MAX_RANK));
    Shape out = *op_shape(c, 0);
    for (int i = 2; i < out.rank; i++) out.d[i] = 1;
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

/* Gradients: input 0 is dy, of the shape of the pool of x (input 1), which is the result's. */
static mpr_status infer_grad(InferCtx *c, const PoolWindow *p, const Shape *x)
{
    DType t;
    Shape dy;
    TRY(mpri_op_common_type(c, 0, 3, TS_FLOAT, &t));
    if (x->rank < 3) return mpri_op_shape_error(c, 0, "rank of a pool, allowed 3 to 8", x->rank);
    TRY(pool_shape(c, p, x, &dy));
    TRY(mpri_op_expect_shape(c, 0, &dy, "cotangent: shape of the pool"));
    return mpri_infer_set(c, 0, t, x);
}

static mpr_status infer_max_grad(InferCtx *c)
{
    return infer_grad(c, &((const MaxPoolParams *)c->n->params)->window, op_shape(c, 1));
}

static mpr_status infer_lp_grad(InferCtx *c)
{
    return infer_grad(c, &((const LpPoolParams *)c->n->params)->window, op_shape(c, 1));
}

static mpr_status infer_average_grad(InferCtx *c)
{
    const AveragePoolParams *p = c->n->params;
    Shape x;
    TRY(mpri_op_dims_shape(c, p->dims, &x));
    return infer_grad(c, &p->window, &x);
}

/* ---- gradients ---- */

static mpr_status grad_max(GradCtx *c)
{
    if (!c->dy[0]) return MPR_OK; /* only the indices are used */
    c->dx[0] = mpri_build2(c->b, OP_MaxPoolGrad, c->n->params, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

static mpr_status grad_average(GradCtx *c)
{
    AveragePoolParams p = *(const AveragePoolParams *)c->n->params;
    const Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    p.dims = (Ints){x->shape.rank, x->shape.d};
    c->dx[0] = mpri_build1(c->b, OP_AveragePoolGrad, &p, c->dy[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_lp(GradCtx *c)
{
    c->dx[0] = mpri_build3(c->b, OP_LpPoolGrad, c->n->params, c->dy[0], grad_in(c, 0), c->n->out[0]);
    return mpri_op_grad_done(c);
}

/* The window that is the whole plane of x. */
static PoolWindow whole_plane(const Value *x)
{
    return (PoolWindow){.auto_pad = "NOTSET", .kernel_shape = {x->shape.rank - 2, x->shape.d + 2}};
}

static mpr_status grad_global_max(GradCtx *c)
{
    Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    MaxPoolParams p = {.window = whole_plane(x)};
    c->dx[0] = mpri_build2(c->b, OP_MaxPoolGrad, &p, c->dy[0], x);
    return mpri_op_grad_done(c);
}

static mpr_status grad_global_average(GradCtx *c)
{
    const Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    AveragePoolParams p = {.window = whole_plane(x), .dims = {x->shape.rank, x->shape.d}};
    c->dx[0] = mpri_build1(c->b, OP_AveragePoolGrad, &p, c->dy[0]);
    return mpri_op_grad_done(c);
}

static mpr_status grad_global_lp(GradCtx *c)
{
    Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    LpPoolParams p = {.window = whole_plane(x), .p = ((const GlobalLpPoolParams *)c->n->params)->p};
    c->dx[0] = mpri_build3(c->b, OP_LpPoolGrad, &p, c->dy[0], x, c->n->out[0]);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define POOL                                                                                       \
    .min_in = 1, .max_in = 1, .min_out = 1, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,         \
    .grad_state = GRAD_FUNCTION
/* torch's p-norm pools go through pow, which is f32 on CUDA. */
#define POOL_LP                                                                                    \
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, .cast_cuda = CAST_FP32,                  \
    .cast_cpu = CAST_KEEP, .grad_state = GRAD_FUNCTION
#define POOL_GRAD                                                                                  \
    .min_out = 1, .max_out = 1, .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,                    \
    .cast_cpu = CAST_FIXED, .grad_state = GRAD_NONE,                                               \
    .grad_reason = "second derivatives are not built"

const OpDef mpri_op_MaxPool = {
    MPRI_OP(MaxPool, "", "pool"), .help = "largest element of every window, and where it is", POOL,
    .max_out = 2, PARAMS(MaxPoolParams, max_attrs), .infer = infer_max, .grad = grad_max,
};
const OpDef mpri_op_AveragePool = {
    MPRI_OP(AveragePool, "", "pool"), .help = "mean of every window", POOL, .max_out = 1,
    PARAMS(AveragePoolParams, average_attrs), .infer = infer_average, .grad = grad_average,
};
const OpDef mpri_op_LpPool = {
    MPRI_OP(LpPool, "", "pool"), .help = "p-norm of every window", POOL_LP,
    PARAMS(LpPoolParams, lp_attrs), .infer = infer_lp, .grad = grad_lp,
};
const OpDef mpri_op_GlobalMaxPool = {
    MPRI_OP(GlobalMaxPool, "", "pool"), .help = "largest element of every plane", POOL,
    .max_out = 1, .infer = infer_global, .grad = grad_global_max,
};
const OpDef mpri_op_GlobalAveragePool = {
    MPRI_OP(GlobalAveragePool, "", "pool"), .help = "mean of every plane", POOL, .max_out = 1,
    .infer = infer_global, .grad = grad_global_average,
};
const OpDef mpri_op_GlobalLpPool = {
    MPRI_OP(GlobalLpPool, "", "pool"), .help = "p-norm of every plane", POOL_LP,
    PARAMS(GlobalLpPoolParams, global_lp_attrs), .infer = infer_global, .grad = grad_global_lp,
};
const OpDef mpri_op_MaxPoolGrad = {
    MPRI_OP(MaxPoolGrad, "mpr", "pool"), .help = "(dy, x): gradient of MaxPool", POOL_GRAD,
    .min_in = 2, .max_in = 2, PARAMS(MaxPoolParams, max_attrs), .infer = infer_max_grad,
};
const OpDef mpri_op_AveragePoolGrad = {
    MPRI_OP(AveragePoolGrad, "mpr", "pool"), .help = "(dy): gradient of AveragePool, of shape dims",
    POOL_GRAD, .min_in = 1, .max_in = 1, PARAMS(AveragePoolParams, average_attrs),
    .infer = infer_average_grad,
};
const OpDef mpri_op_LpPoolGrad = {
    MPRI_OP(LpPoolGrad, "mpr", "pool"), .help = "(dy, x, y): gradient of LpPool", POOL_GRAD,
    .min_in = 3, .max_in = 3, PARAMS(LpPoolParams, lp_attrs), .infer = infer_lp_grad,
};
