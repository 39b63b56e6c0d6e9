/* Operators whose output is the bytes of input 0 in another shape: Reshape, Squeeze, Unsqueeze,
 * Flatten. */
#include "runtime/op/layout.h"

static const AttrRow reshape_attrs[] = {ATTR_FLAG(ReshapeParams, allowzero, "allowzero", 0),
                                        ATTR_END};
static const AttrRow flatten_attrs[] = {ATTR(AxisParams, axis, "axis", INT, .def_int = 1),
                                        ATTR_END};

mpr_status mpri_op_grad_same_bytes(GradCtx *c)
{
    TRY(mpri_op_grad_const_shape(c, grad_in(c, 0)));
    c->dx[0] = mpri_op_grad_reshape_like(c, c->dy[0], grad_in(c, 0));
    return mpri_op_grad_done(c);
}

static mpr_status set_same_bytes(InferCtx *c, const Shape *out)
{
    TRY(mpri_infer_set(c, 0, op_type(c, 0), out));
    mpri_op_content_copy(c);
    return MPR_OK;
}

/* ---- Reshape ---- */

typedef struct Target {
    Shape out;
    int infer;      /* position of -1, or -1 */
    bool wraps;     /* the given dims are numbers whose product is none */
    Dim total, rest; /* elements of x and of the given dims, without copied dims */
} Target;

/* Copied dims (0) stand on both sides and are left out of the products, so [0,-1] works on empty x
 * too. */
static mpr_status read_target(InferCtx *c, const Dim *d, int64_t n, Target *t)
{
    const ReshapeParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    bool copied[MPRI_MAX_RANK] = {false};
    if (n > MPRI_MAX_RANK) return mpri_op_shape_error(c, 1, "dims asked for, allowed at most 8", n);
    *t = (Target){.out = {.rank = (int)n}, .infer = -1, .total = 1, .rest = 1};
    bool numbers = true;
    for (int i = 0; i < t->out.rank; i++) {
        int64_t v;
        bool known = mpri_dim_is_int(c->sym, d[i], &v);
        t->out.d[i] = d[i];
        if (known && v < 0) {
            if (v != -1) return mpri_op_shape_error(c, 0, "dim in the target of Reshape", v);
            if (t->infer >= 0)
                return mpri_op_shape_error(c, 0, "second -1 in the target of Reshape, at position",
                                           i);
            t->infer = i;
        } else if (known && v == 0 && !p->allowzero) {
            if (x->rank >= 0 && i >= x->rank)
                return mpri_op_shape_error(
                    c, 0, "0 in the target of Reshape has no dim to copy, at position", i);
            t->out.d[i] = x->rank >= 0 ? x->d[i] : mpri_dim_fresh(c->sym);
            copied[i] = true;
        } else {
            t->rest = mpri_dim_mul(c->sym, t->rest, d[i]);
            numbers = numbers && mpri_dim_const(d[i]);
        }
    }
    t->wraps = numbers && !mpri_dim_const(t->rest);
    for (int i = 0; i < x->rank; i++)
        if (!copied[i]) t->total = mpri_dim_mul(c->sym, t->total, x->d[i]);
    return MPR_OK;
}

static mpr_status count_error(InferCtx *c, const Target *t)
{
    char from[256], to[256];
    Shape shown = t->out;
    if (t->infer >= 0) shown.d[t->infer] = mpri_dim_int(c->sym, -1);
    return mpri_err_set(c->err, MPR_E_SHAPE, "cannot reshape %s to %s: %lld elements against %lld",
                        mpri_shape_print(c->sym, op_shape(c, 0), from, sizeof from),
                        mpri_shape_print(c->sym, &shown, to, sizeof to), (long long)t->total,
                        (long long)t->rest);
}

static mpr_status infer_reshape(InferCtx *c)
{
    int64_t n;
    Dim rank;
    Target t;
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    const Dim *d = mpri_infer_content(c, 1, &n);
    if (!d) {
        bool known = mpri_op_elements(c, 1, &rank) && mpri_dim_const(rank);
        Shape out = known ? mpri_op_fresh_shape(c, rank) : mpri_op_unknown;
        return set_same_bytes(c, &out);
    }
    TRY(read_target(c, d, n, &t));
    if (t.wraps)
        return mpri_err_set(c->err, MPR_E_SHAPE,
                            "the product of the dims that Reshape asks for has more than 63 bits");
    bool numbers = mpri_dim_const(t.total) && mpri_dim_const(t.rest) && op_shape(c, 0)->rank >= 0;
    if (t.infer >= 0) {
        if (numbers && (t.rest == 0 || t.total % t.rest != 0)) return count_error(c, &t);
        bool known = op_shape(c, 0)->rank >= 0 && t.rest != 0;
        t.out.d[t.infer] = known ? mpri_dim_div(c->sym, t.total, t.rest) : mpri_dim_fresh(c->sym);
    } else if (numbers && t.total != t.rest) {
        return count_error(c, &t);
    }
    return set_same_bytes(c, &t.out);
}

/* ---- Squeeze, Unsqueeze, Flatten ---- */

static mpr_status infer_squeeze(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    int64_t n = 0;
    int axes[MPRI_MAX_RANK];
    bool gone[MPRI_MAX_RANK] = {false};
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    const int64_t *v = mpri_op_ints(c, 1, &n);
    if (x->rank < 0 || (op_in(c, 1) && !v)) {
        Dim count;
        bool known = x->rank >= 0 && mpri_op_elements(c, 1, &count) && mpri_dim_const(count);
        Shape out = known ? mpri_op_fresh_shape(c, x->rank - count) : mpri_op_unknown;
        return set_same_bytes(c, &out);
    }
    TRY(mpri_op_axes(c, n, v, x->rank, axes));
    for (int64_t i = 0; i < n; i++) {
        Dim d = x->d[axes[i]];
        if (mpri_dim_const(d) && d != 1)
            return mpri_op_shape_error(c, 0, "Squeeze of a dim that is not 1", d);
        gone[axes[i]] = true;
    }
    Shape out = {.rank = 0};
    for (int i = 0; i < x->rank; i++) {
        if (!op_in(c, 1)) {
            /* without axes the rank depends on which symbols are 1 */
            if (!mpri_dim_const(x->d[i])) return set_same_bytes(c, &mpri_op_unknown);
            gone[i] = x->d[i] == 1;
        }
        if (!gone[i]) out.d[out.rank++] = x->d[i];
    }
    return set_same_bytes(c, &out);
}

static mpr_status infer_unsqueeze(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    int64_t n = 0;
    Dim count;
    int axes[MPRI_MAX_RANK];
    bool added[MPRI_MAX_RANK] = {false};
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    const int64_t *v = mpri_op_ints(c, 1, &n);
    if (x->rank < 0 || !v) {
        bool known = x->rank >= 0 && mpri_op_elements(c, 1, &count) && mpri_dim_const(count);
        Shape out = known ? mpri_op_fresh_shape(c, x->rank + count) : mpri_op_unknown;
        return set_same_bytes(c, &out);
    }
    if (x->rank + n > MPRI_MAX_RANK)
        return mpri_op_shape_error(c, 0, "Unsqueeze to a rank above 8", x->rank + n);
    Shape out = {.rank = x->rank + (int)n};
    TRY(mpri_op_axes(c, n, v, out.rank, axes));
    for (int64_t i = 0; i < n; i++) added[axes[i]] = true;
    for (int i = 0, from = 0; i < out.rank; i++) out.d[i] = added[i] ? 1 : x->d[from++];
    return set_same_bytes(c, &out);
}

static mpr_status infer_flatten(InferCtx *c)
{
    const AxisParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    if (x->rank < 0) {
        Shape out = mpri_op_fresh_shape(c, 2);
        return set_same_bytes(c, &out);
    }
    if (p->axis < -x->rank || p->axis > x->rank)
        return mpri_op_shape_error(c, 0, "axis of Flatten, allowed -rank to rank", p->axis);
    int64_t axis = p->axis < 0 ? p->axis + x->rank : p->axis;
    Shape out = {.rank = 2, .d = {1, 1}};
    for (int i = 0; i < x->rank; i++)
        out.d[i >= axis] = mpri_dim_mul(c->sym, out.d[i >= axis], x->d[i]);
    return set_same_bytes(c, &out);
}

/* ---- definitions ---- */

const OpDef mpri_op_Reshape = {
    MPRI_OP(Reshape, "", "layout"), .help = "another shape; -1 is computed, 0 copies the dim",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(ReshapeParams, reshape_attrs),
    .flags = OPF_VIEW, .inplace = 1, .fixed_in = 2, .nondiff_in = 2, MOVE,
    .infer = infer_reshape, .grad = mpri_op_grad_same_bytes,
};
const OpDef mpri_op_Squeeze = {
    MPRI_OP(Squeeze, "", "layout"), .help = "without dims of 1",
    .min_in = 1, .max_in = 2, .min_out = 1, .max_out = 1, .optional_in = 2,
    .flags = OPF_VIEW, .inplace = 1, .fixed_in = 2, .nondiff_in = 2, MOVE,
    .infer = infer_squeeze, .grad = mpri_op_grad_same_bytes,
};
const OpDef mpri_op_Unsqueeze = {
    MPRI_OP(Unsqueeze, "", "layout"), .help = "with dims of 1 at the given places of the result",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1,
    .flags = OPF_VIEW, .inplace = 1, .fixed_in = 2, .nondiff_in = 2, MOVE,
    .infer = infer_unsqueeze, .grad = mpri_op_grad_same_bytes,
};
const OpDef mpri_op_Flatten = {
    MPRI_OP(Flatten, "", "layout"), .help = "two dims: before the axis, from the axis on",
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(AxisParams, flatten_attrs),
    .flags = OPF_VIEW, .inplace = 1, MOVE, .infer = infer_flatten, .grad = mpri_op_grad_same_bytes,
};
