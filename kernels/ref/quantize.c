/* QuantizeLinear and DequantizeLinear. See runtime/op/quantize.c for where the scale belongs. */
#include "kernels/ref/util.h"

/* Element of the scale for element i of x. */
typedef struct Scales {
    const Tensor *t;
    int64_t inner, dim, block, blocks; /* of x: elements behind the axis, size of the axis */
    bool one;
} Scales;

static Scales scales_of(const KernelCall *c, const DequantizeParams *p)
{
    const Tensor *x = &c->in[0];
    Scales s = {.t = &c->in[1], .one = c->in[1].n == 1};
    if (s.one || !x->rank) return s;
    int axis = mpri_ref_axis(x->rank == 1 && p->block_size <= 0 ? 0 : p->axis, x->rank);
    s.inner = mpri_ref_span(x, axis + 1, x->rank);
    s.dim = x->dims[axis];
    s.block = p->block_size > 0 ? p->block_size : 1;
    s.blocks = p->block_size > 0 ? s.t->dims[axis] : 0;
    return s;
}

static int64_t scale_at(const Scales *s, int64_t i)
{
    if (s->one) return 0;
    int64_t along = i / s->inner % s->dim;
    if (!s->blocks) return along;
    return (i / (s->inner * s->dim) * s->blocks + along / s->block) * s->inner + i % s->inner;
}

static double rounded(DType t, double v)
{
    char buffer[16];
    mpri_store_f64(t, buffer, 0, v);
    return mpri_load_f64(t, buffer, 0);
}

static int64_t zero_at(const KernelCall *c, int64_t at)
{
    const Tensor *z = c->n_in > 2 && mpri_tensor_here(&c->in[2]) ? &c->in[2] : NULL;
    return z ? mpri_load_i64(z->dtype, z->data, at) : 0;
}

static mpr_status k_quantize(const KernelCall *c)
{
    const QuantizeParams *p = c->params;
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    Scales s = scales_of(c, &p->at);
    DType t = p->precision ? (DType)p->precision : s.t->dtype;
    bool is_signed = y->dtype == MPR_INT8 || y->dtype == MPR_INT16;
    int width = 8 * (int)mpri_dtype_size(y->dtype);
    double low = is_signed ? -ldexp(1, width - 1) : 0;
    double high = ldexp(1, is_signed ? width - 1 : width) - 1;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at = scale_at(&s, i);
        double q = rounded(t, mpri_ref_load(x, i)) / rounded(t, mpri_ref_load(s.t, at));
        double v = nearbyint(rounded(t, q)) + (double)zero_at(c, at);
        v = v < high ? v : isnan(v) ? low : high;
        mpri_store_i64(y->dtype, y->data, i, (int64_t)(v > low ? v : low));
    }
    return MPR_OK;
}

static mpr_status k_dequantize(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    Scales s = scales_of(c, c->params);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at = scale_at(&s, i);
        int64_t d = mpri_load_i64(x->dtype, x->data, i) - zero_at(c, at);
        mpri_ref_store(y, i, rounded(MPR_FLOAT32, (double)d) * mpri_ref_load(s.t, at));
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(QuantizeLinear, "quantizelinear", k_quantize),
    REF_ROW(DequantizeLinear, "dequantizelinear", k_dequantize),
};
const KernelTable mpri_ref_quantize = REF_TABLE(rows);
