/* ArgMax and ArgMin: first (or last) position of the extreme element; a NaN counts as the extreme
 * of both, as in numpy. */
#include "kernels/ref/lines.h"

static bool is_nan(const Tensor *x, int64_t at)
{
    return mpri_dtype_is_float(x->dtype) && isnan(mpri_ref_load(x, at));
}

static mpr_status arg(const KernelCall *c, int sign)
{
    const ArgParams *p = c->params;
    const Tensor *x = &c->in[0];
    AxisLines l = mpri_ref_lines(x, p->axis);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t base = mpri_ref_line_base(&l, i), best = 0;
        for (int64_t j = 1; j < l.n; j++) {
            int64_t at = base + j * l.inner, held = base + best * l.inner;
            int order = sign * mpri_ref_compare(x, at, held);
            if (is_nan(x, at) || is_nan(x, held)) order = is_nan(x, at) - is_nan(x, held);
            if (order > 0 || (order == 0 && p->select_last_index)) best = j;
        }
        ((int64_t *)c->out[0].data)[i] = best;
    }
    return MPR_OK;
}

static mpr_status k_max(const KernelCall *c) { return arg(c, 1); }
static mpr_status k_min(const KernelCall *c) { return arg(c, -1); }

static const KernelRow rows[] = {
    REF_ROW(ArgMax, "argmax", k_max),
    REF_ROW(ArgMin, "argmin", k_min),
};
const KernelTable mpri_ref_reduce_arg = REF_TABLE(rows);
