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

/* Stored elements that a value shows: a constant, or the first contents of a parameter. */
typedef struct Stored {
    const Value *v;
    const void *data;
    DType dtype;
    int64_t n;
} Stored;

static bool stored_behind(const Graph *g, const Value *v, Stored *s)
{
    for (const Node *d = mpri_def(v); d; d = mpri_def(v)) {
        if (d->op->cast_cuda != CAST_MOVE || d->n_in == 0 || !d->in[0]) return false;
        v = d->in[0];
    }
    if (!mpri_prepare_eligible(v)) return false;
    *s = (Stored){v, v->data, v->dtype, mpri_shape_elements(&v->shape)};
    if (v->kind == VAL_SLOT) {
        s->data = g->slots[v->slot].init;
        s->dtype = g->slots[v->slot].init_dtype;
    } else if (v->kind != VAL_CONST) {
        return false;
    }
    return s->data && s->n > 0;
}

/* First element beyond `over`, n when there is none. The f32 loop is for weights. */
static int64_t first_over(const Stored *s, double over)
{
    int64_t i = 0;
    if (s->dtype == MPR_FLOAT32) {
        const float *x = s->data, limit = (float)over;
        while (i < s->n && !(fabsf(x[i]) >= limit && isfinite(x[i]))) i++;
        return i;
    }
    for (; i < s->n; i++) {
        double x = mpri_load_f64(s->dtype, s->data, i);
        if (fabs(x) >= over && isfinite(x)) break;
    }
    return i;
}

static RangeFault range_of(const Stored *s, Bounds b, double *value)
{
    int64_t at = first_over(s, b.over), lost = 0, nonzero = 0;
    if (at < s->n) {
        *value = mpri_load_f64(s->dtype, s->data, at);
        return RANGE_OVERFLOW;
    }
    if (s->v->param >= 0) return RANGE_OK;
    for (int64_t i = 0; i < s->n; i++) {
        double x = mpri_load_f64(s->dtype, s->data, i);
        if (x == 0) continue;
        nonzero++;
        if (!(fabs(x) <= b.under)) continue;
        if (lost++ == 0) *value = x;
    }
    return lost > (s->n > MPRI_SMALL_CONST ? nonzero / 100 : 0) ? RANGE_UNDERFLOW : RANGE_OK;
}

RangeFault mpri_autocast_range(const PassCtx *ctx, const Graph *g, const Value *v, DType low,
                               double *value, const Value **constant)
{
    Stored s;
    if (!stored_behind(g, v, &s)) return RANGE_OK;
    *constant = s.v;
    RangeFault fault = range_of(&s, bounds(low), value);
    if (ctx->o->seen)
        ctx->o->seen(ctx->o->seen_user, s.data, (size_t)s.n * mpri_dtype_size(s.dtype));
    return fault;
}
