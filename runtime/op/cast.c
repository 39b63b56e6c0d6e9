/* Cast, CastLike and Identity. The gradient of a cast is the cast back, so the backward pass runs in the
 * types of the forward pass. */
#include "runtime/op/rules.h"

static const AttrRow cast_attrs[] = {
    ATTR(CastParams, to, "to", DTYPE, .required = true),
    ATTR_FLAG(CastParams, saturate, "saturate", 1),
    ATTR(CastParams, round_mode, "round_mode", STRING, .def_string = "up",
         .choices = "up|down|nearest"),
    ATTR_END,
};

static const AttrRow cast_like_attrs[] = {
    ATTR(CastParams, to, "to", DTYPE, .internal = true),
    ATTR_FLAG(CastParams, saturate, "saturate", 1),
    ATTR(CastParams, round_mode, "round_mode", STRING, .def_string = "up",
         .choices = "up|down|nearest"),
    ATTR_END,
};

static void cast_content(InferCtx *c, DType to)
{
    int64_t n, v;
    if (op_type(c, 0) != MPR_INT64 && op_type(c, 0) != MPR_INT32 && op_type(c, 0) != MPR_BOOL)
        return;
    if (to == MPR_INT64 || to == MPR_INT32) {
        mpri_op_content_copy(c);
        return;
    }
    const Dim *d = to == MPR_BOOL ? mpri_infer_content(c, 0, &n) : NULL;
    Dim *r = d ? mpri_op_content_alloc(c, n) : NULL;
    if (!r) return;
    for (int64_t i = 0; i < n; i++)
        r[i] = mpri_dim_is_int(c->sym, d[i], &v) ? (v != 0) : mpri_dim_fresh(c->sym);
    mpri_infer_set_content(c, 0, n, r);
}

static mpr_status infer_cast(InferCtx *c)
{
    const CastParams *p = c->n->params;
    if (p->to <= MPR_DTYPE_NONE || p->to > MPR_BFLOAT16) {
        (void)mpri_err_set(c->err, MPR_E_TYPE,
                           "attribute to is %lld; allowed: element types 1 to %d", (long long)p->to,
                           MPR_BFLOAT16);
        return mpri_err_advice(
            c->err, "8-bit and 4-bit floats are not supported: export without quantisation");
    }
    TRY(mpri_infer_set(c, 0, (DType)p->to, op_shape(c, 0)));
    cast_content(c, (DType)p->to);
    return MPR_OK;
}

/* The importer writes a Cast where it knows the type of input 1. */
static mpr_status infer_cast_like(InferCtx *c)
{
    TRY(mpri_infer_set(c, 0, op_type(c, 1), op_shape(c, 0)));
    cast_content(c, op_type(c, 1));
    return MPR_OK;
}

static mpr_status grad_cast(GradCtx *c)
{
    c->dx[0] = mpri_build_cast(c->b, c->dy[0], grad_in(c, 0)->dtype);
    return mpri_op_grad_done(c);
}

static mpr_status infer_identity(InferCtx *c)
{
    TRY(mpri_op_infer_same(c));
    mpri_op_content_copy(c);
    return MPR_OK;
}

static mpr_status grad_identity(GradCtx *c)
{
    c->dx[0] = c->dy[0];
    return MPR_OK;
}

const OpDef mpri_op_Cast = {
    MPRI_OP(Cast, "", "cast"), .help = "to another element type; float to int truncates, wraps in narrow types",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(CastParams, cast_attrs),
    .flags = OPF_ELEMENTWISE, .inplace = 1, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_cast, .grad_state = GRAD_FUNCTION, .grad = grad_cast,
};
const OpDef mpri_op_CastLike = {
    MPRI_OP(CastLike, "", "cast"), .help = "to the element type of input 1",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(CastParams, cast_like_attrs),
    .flags = OPF_ELEMENTWISE, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .fixed_in = 2,
    .infer = infer_cast_like, .grad_state = GRAD_FUNCTION, .grad = grad_cast, .nondiff_in = 2,
};
const OpDef mpri_op_Identity = {
    MPRI_OP(Identity, "", "cast"), .help = "the same tensor",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1,
    .flags = OPF_VIEW, .inplace = 1, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_identity, .grad_state = GRAD_FUNCTION, .grad = grad_identity,
};
