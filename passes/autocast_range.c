/* Constants that do not fit 16 bits: -1e9 and the float minimum become -inf, 1e-12 becomes 0, and
 * a model with them is wrong without any message. Bounds are those of round to nearest even.
 *
 * Underflow counts for constants of the file only: training moves parameters, and a large table
 * has always some tiny elements, so there more than one in a hundred must be lost. */
#include "passes/autocast.h"

#include <math.h>

typedef struct Bounds {
    double over, under;
} Bounds; /* |x| >= over gives inf, |x| <= under gives 0 */

static Bounds bounds(DType low)
{
    return low == MPR_FLOAT16 ? (Bounds){65520, 0x1p-25} : (Bounds){0x1.FFp127, 0x1p-134};
}

/* The constant whose elements v shows, or NULL. */
static const Value *constant_behind(const Value *v)
{
    for (const Node *d = mpri_def(v); d; d = mpri_def(v)) {
        if (d->op->cast_cuda != CAST_MOVE || d->n_in == 0 || !d->in[0]) return NULL;
        v = d->in[0];
    }
    return v && v->kind == VAL_CONST && v->data && mpri_prepare_eligible(v) ? v : NULL;
}

/* Position of the first element beyond `over`, n when there is none. The f32 loop is the one over
 * weights. */
static int64_t first_over(const Value *v, int64_t n, double over)
{
    int64_t i = 0;
    if (v->dtype == MPR_FLOAT32) {
        const float *x = v->data, limit = (float)over;
        while (i < n && !(fabsf(x[i]) >= limit && isfinite(x[i]))) i++;
        return i;
    }
    for (; i < n; i++) {
        double x = mpri_load_f64(v->dtype, v->data, i);
        if (fabs(x) >= over && isfinite(x)) break;
    }
    return i;
}

RangeFault mpri_autocast_range(const Value *v, DType low, double *value, const Value **constant)
{
    const Value *c = constant_behind(v);
    int64_t n = c ? mpri_shape_elements(&c->shape) : -1;
    if (n <= 0) return RANGE_OK;
    *constant = c;
    Bounds b = bounds(low);
    int64_t at = first_over(c, n, b.over);
    if (at < n) {
        *value = mpri_load_f64(c->dtype, c->data, at);
        return RANGE_OVERFLOW;
    }
    if (c->param >= 0) return RANGE_OK;
    int64_t lost = 0, nonzero = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = mpri_load_f64(c->dtype, c->data, i);
        if (x == 0) continue;
        nonzero++;
        if (!(fabs(x) <= b.under)) continue;
        if (lost++ == 0) *value = x;
    }
    return lost > (n > MPRI_SMALL_CONST ? nonzero / 100 : 0) ? RANGE_UNDERFLOW : RANGE_OK;
}
