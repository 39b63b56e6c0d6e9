/* LayerNormalization (opset 17) and its gradient. Statistics are taken in double in two passes; the
 * mean and the inverse standard deviation are outputs because the gradient needs them.
 *
 * With xh = (x - mean) * inv and g = dy * scale:
 *   dx = inv * (g - avg(g) - xh * avg(g * xh)); over rows, dscale = sum of dy * xh, dbias of dy. */
#include "kernels/ref/norm.h"

static bool here(const KernelCall *c, int k)
{
    return c->n_in > k && mpri_tensor_here(&c->in[k]);
}

/* Inputs x, scale, bias (optional); outputs y, mean, inverse standard deviation. scale and bias may
 * broadcast to the normalised dims. */
static mpr_status k_layer_norm(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *x = &c->in[0];
    NormRows r = mpri_ref_norm_rows(x, p);
    for (int64_t i = 0; i < r.count; i++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < r.n; j++) mean += mpri_ref_load(x, i * r.n + j);
        mean /= (double)r.n;
        for (int64_t j = 0; j < r.n; j++) {
            double d = mpri_ref_load(x, i * r.n + j) - mean;
            var += d * d;
        }
        double inv = 1 / sqrt(var / (double)r.n + (double)p->epsilon);
        for (int64_t j = 0; j < r.n; j++) {
            int64_t at = i * r.n + j;
            double v = (mpri_ref_load(x, at) - mean) * inv;
            v *= mpri_ref_load(&c->in[1], mpri_ref_broadcast(&c->in[1], x, at));
            if (here(c, 2)) v += mpri_ref_load(&c->in[2], mpri_ref_broadcast(&c->in[2], x, at));
            mpri_ref_store(&c->out[0], at, v);
        }
        if (mpri_ref_wanted(c, 1)) mpri_ref_store(&c->out[1], i, mean);
        if (mpri_ref_wanted(c, 2)) mpri_ref_store(&c->out[2], i, inv);
    }
    return MPR_OK;
}

static double normalised(const KernelCall *c, int64_t row, int64_t at)
{
    return (mpri_ref_load(&c->in[1], at) - mpri_ref_load(&c->in[3], row)) *
           mpri_ref_load(&c->in[4], row);
}

static void input_grad(const KernelCall *c, NormRows r, int64_t i)
{
    const Tensor *dy = &c->in[0], *scale = &c->in[2];
    double inv = mpri_ref_load(&c->in[4], i), sum = 0, dot = 0;
    for (int64_t j = 0; j < r.n; j++) {
        int64_t at = i * r.n + j;
        double g = mpri_ref_load(dy, at) * mpri_ref_load(scale, mpri_ref_broadcast(scale, dy, at));
        sum += g;
        dot += g * normalised(c, i, at);
    }
    sum /= (double)r.n;
    dot /= (double)r.n;
    for (int64_t j = 0; j < r.n; j++) {
        int64_t at = i * r.n + j;
        double g = mpri_ref_load(dy, at) * mpri_ref_load(scale, mpri_ref_broadcast(scale, dy, at));
        mpri_ref_store(&c->out[0], at, inv * (g - sum - normalised(c, i, at) * dot));
    }
}

/* Inputs dy, x, scale, mean, inv; outputs dx, dscale, dbias, each optional. dscale and dbias have
 * the shape of the normalised dims. The parameter gradients come first: dx may take dy's or x's
 * memory. */
static mpr_status k_layer_norm_grad(const KernelCall *c)
{
    NormRows r = mpri_ref_norm_rows(&c->in[0], c->params);
    for (int64_t j = 0; j < r.n && (mpri_ref_wanted(c, 1) || mpri_ref_wanted(c, 2)); j++) {
        double dscale = 0, dbias = 0;
        for (int64_t i = 0; i < r.count; i++) {
            double dy = mpri_ref_load(&c->in[0], i * r.n + j);
            dscale += dy * normalised(c, i, i * r.n + j);
            dbias += dy;
        }
        if (mpri_ref_wanted(c, 1)) mpri_ref_store(&c->out[1], j, dscale);
        if (mpri_ref_wanted(c, 2)) mpri_ref_store(&c->out[2], j, dbias);
    }
    for (int64_t i = 0; i < r.count && mpri_ref_wanted(c, 0); i++) input_grad(c, r, i);
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(LayerNormalization, "layernormalization", k_layer_norm),
    REF_ROW(LayerNormGrad, "layernormgrad", k_layer_norm_grad),
};
const KernelTable mpri_ref_norm = REF_TABLE(rows);
