/* RMSNormalization (opset 23) and its gradient. With r = 1 / sqrt(mean(x^2) + epsilon) per row,
 * xh = x r and g = dy * scale:
 *   dx = r * (g - xh * avg(g * xh)); over rows, dscale = sum of dy * xh. */
#include "kernels/ref/norm.h"

static double inverse_root(const Tensor *x, NormRows r, int64_t row, double epsilon)
{
    double sum = 0;
    for (int64_t j = 0; j < r.n; j++) {
        double v = mpri_ref_load(x, row * r.n + j);
        sum += v * v;
    }
    return 1 / sqrt(sum / (double)r.n + epsilon);
}

/* Inputs x, scale, which may broadcast to the normalised dims. */
static mpr_status k_rms_norm(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *x = &c->in[0], *scale = &c->in[1];
    NormRows r = mpri_ref_norm_rows(x, p);
    for (int64_t i = 0; i < r.count; i++) {
        double inv = inverse_root(x, r, i, (double)p->epsilon);
        for (int64_t at = i * r.n; at < (i + 1) * r.n; at++)
            mpri_ref_store(&c->out[0], at,
                           mpri_ref_load(x, at) * inv *
                               mpri_ref_load(scale, mpri_ref_broadcast(scale, x, at)));
    }
    return MPR_OK;
}

static void input_grad(const KernelCall *c, NormRows r, int64_t i, double inv)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *scale = &c->in[2];
    double dot = 0;
    for (int64_t at = i * r.n; at < (i + 1) * r.n; at++)
        dot += mpri_ref_load(dy, at) * mpri_ref_load(scale, mpri_ref_broadcast(scale, x, at)) *
               mpri_ref_load(x, at) * inv;
    dot /= (double)r.n;
    for (int64_t at = i * r.n; at < (i + 1) * r.n; at++) {
        double g = mpri_ref_load(dy, at) * mpri_ref_load(scale, mpri_ref_broadcast(scale, x, at));
        mpri_ref_store(&c->out[0], at, inv * (g - mpri_ref_load(x, at) * inv * dot));
    }
}

/* Inputs dy, x, scale; outputs dx, dscale, each optional. dscale has the shape of the normalised
 * dims; it comes first: dx may take dy's or x's memory. */
static mpr_status k_rms_norm_grad(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1];
    NormRows r = mpri_ref_norm_rows(x, p);
    double *inv = c->workspace;
    for (int64_t i = 0; i < r.count; i++) inv[i] = inverse_root(x, r, i, (double)p->epsilon);
    for (int64_t j = 0; j < r.n && mpri_ref_wanted(c, 1); j++) {
        double sum = 0;
        for (int64_t i = 0; i < r.count; i++)
            sum += mpri_ref_load(dy, i * r.n + j) * mpri_ref_load(x, i * r.n + j) * inv[i];
        mpri_ref_store(&c->out[1], j, sum);
    }
    for (int64_t i = 0; i < r.count && mpri_ref_wanted(c, 0); i++) input_grad(c, r, i, inv[i]);
    return MPR_OK;
}

static size_t row_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)mpri_ref_norm_rows(&s->in[1], s->params).count * sizeof(double);
}

static const KernelRow rows[] = {
    REF_ROW(RMSNormalization, "rmsnormalization", k_rms_norm),
    {.op = OP_RmsNormGrad, .name = "ref.rmsnormgrad", .fn = k_rms_norm_grad,
     .workspace = row_bytes},
};
const KernelTable mpri_ref_norm_rms = REF_TABLE(rows);
