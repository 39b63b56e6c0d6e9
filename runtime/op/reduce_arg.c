/* ArgMax and ArgMin: the position of the extreme element along one axis, as int64. No gradient
 * flows through a position. */
#include "runtime/op/rules.h"

static const AttrRow arg_attrs[] = {
    ATTR(ArgParams, axis, "axis", INT),
    ATTR_FLAG(ArgParams, keepdims, "keepdims", 1),
    ATTR_FLAG(ArgParams, select_last_index, "select_last_index", 0),
    ATTR_END,
};

static mpr_status infer_arg(InferCtx *c)
{
    const ArgParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    Shape out = {.rank = 0};
    int axis;
    TRY(mpri_op_check_type(c, 0, TS_NUMBER));
    if (x->rank < 0) return mpri_infer_set(c, 0, MPR_INT64, NULL);
    if (x->rank == 0) return mpri_infer_set(c, 0, MPR_INT64, &out);
    TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
    if (x->d[axis] == 0)
        return mpri_op_shape_error(c, 0, "no element to choose along the axis", p->axis);
    for (int i = 0; i < x->rank; i++) {
        if (i != axis) out.d[out.rank++] = x->d[i];
        else if (p->keepdims) out.d[out.rank++] = 1;
    }
    return mpri_infer_set(c, 0, MPR_INT64, &out);
}

#define ARG                                                                                        \
    .min_in = 1, .max_in = 1, .min_out = 1, .max_out = 1, PARAMS(ArgParams, arg_attrs),            \
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_arg, .grad_state = GRAD_ZERO

const OpDef mpri_op_ArgMax = {
    MPRI_OP(ArgMax, "", "reduce"), .help = "index of the largest along an axis; NaN wins", ARG,
};
const OpDef mpri_op_ArgMin = {
    MPRI_OP(ArgMin, "", "reduce"), .help = "index of the smallest along an axis; NaN wins", ARG,
};
