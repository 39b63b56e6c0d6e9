/* LpNormalization, MeanVarianceNormalization, LRN and the gradient of the last.
 *
 * LRN over channels: s_c = bias + alpha / size * sum of x^2 over the window of c, which begins
 * (size - 1) / 2 channels before it; y = x s^-beta. Channel c lies in the window of i exactly when
 * i is in [c - size / 2, c + (size - 1) / 2], so
 *   dx_c = dy_c s_c^-beta - 2 alpha beta / size * x_c * sum of dy_i x_i s_i^(-beta - 1). */
#include "kernels/ref/lines.h"
#include "kernels/ref/reduce.h"

static double length(const Tensor *x, const AxisLines *l, int64_t base, bool l1)
{
    double top = 0, sum = 0;
    for (int64_t j = 0; j < l->n; j++) top = fmax(top, fabs(mpri_ref_load(x, base + j * l->inner)));
    for (int64_t j = 0; j < l->n; j++) {
        double v = fabs(mpri_ref_load(x, base + j * l->inner)) / (top > 0 ? top : 1);
        sum += l1 ? v : v * v;
    }
    return (l1 ? sum : sqrt(sum)) * (top > 0 ? top : 1);
}

static mpr_status k_lp(const KernelCall *c)
{
    const LpNormParams *p = c->params;
    const Tensor *x = &c->in[0];
    AxisLines l = mpri_ref_lines(x, p->axis);
    for (int64_t i = 0; i < l.count; i++) {
        int64_t base = mpri_ref_line_base(&l, i);
        double norm = length(x, &l, base, p->p == 1);
        for (int64_t at = base; at < base + l.n * l.inner; at += l.inner)
            mpri_ref_store(&c->out[0], at, norm == 0 ? 0 : mpri_ref_load(x, at) / norm);
    }
    return MPR_OK;
}

static mpr_status k_mean_variance(const KernelCall *c)
{
    const MeanVarianceParams *p = c->params;
    const Tensor *x = &c->in[0];
    uint32_t axes = p->axes.n ? 0 : 1 << 0 | 1 << 2 | 1 << 3;
    for (int64_t i = 0; i < p->axes.n; i++) axes |= 1u << mpri_ref_axis(p->axes.v[i], x->rank);
    FoldPlan f = mpri_ref_fold_plan(x, axes);
    for (int64_t i = 0, groups = f.n ? x->n / f.n : 0; i < groups; i++) {
        int64_t base = mpri_ref_fold_base(&f, i);
        double mean = 0, var = 0;
        for (int64_t j = 0; j < f.n; j++)
            mean += mpri_ref_load(x, base + mpri_ref_fold_step(&f, j));
        mean /= (double)f.n;
        for (int64_t j = 0; j < f.n; j++) {
            double d = mpri_ref_load(x, base + mpri_ref_fold_step(&f, j)) - mean;
            var += d * d;
        }
        double divisor = sqrt(var / (double)f.n) + (double)MPRI_MEAN_VARIANCE_EPSILON;
        for (int64_t j = 0; j < f.n; j++) {
            int64_t at = base + mpri_ref_fold_step(&f, j);
            mpri_ref_store(&c->out[0], at, (mpri_ref_load(x, at) - mean) / divisor);
        }
    }
    return MPR_OK;
}

/* s at channel j of a line. */
static double scale_at(const Tensor *x, const LrnParams *p, const AxisLines *l, int64_t base,
                       int64_t j)
{
    int64_t from = j - (p->size - 1) / 2, to = from + p->size;
    double sum = 0;
    for (int64_t k = from < 0 ? 0 : from; k < l->n && k < to; k++) {
        double v = mpri_ref_load(x, base + k * l->inner);
        sum += v * v;
    }
    return (double)p->bias + (double)p->alpha / (double)p->size * sum;
}

static mpr_status k_lrn(const KernelCall *c)
{
    const LrnParams *p = c->params;
    const Tensor *x = &c->in[0];
    AxisLines l = mpri_ref_lines(x, 1);
    for (int64_t i = 0; i < l.count; i++) {
        int64_t base = mpri_ref_line_base(&l, i);
        for (int64_t j = 0; j < l.n; j++) {
            double s = scale_at(x, p, &l, base, j), v = mpri_ref_load(x, base + j * l.inner);
            mpri_ref_store(&c->out[0], base + j * l.inner, v * pow(s, -(double)p->beta));
        }
    }
    return MPR_OK;
}

/* Inputs dy, x. The workspace holds s of the line. */
static mpr_status k_lrn_grad(const KernelCall *c)
{
    const LrnParams *p = c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1];
    double beta = (double)p->beta, factor = 2 * (double)p->alpha * beta / (double)p->size;
    AxisLines l = mpri_ref_lines(x, 1);
    double *s = c->workspace;
    for (int64_t i = 0; i < l.count; i++) {
        int64_t base = mpri_ref_line_base(&l, i);
        for (int64_t j = 0; j < l.n; j++) s[j] = scale_at(x, p, &l, base, j);
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = base + j * l.inner, from = j - p->size / 2, to = from + p->size;
            double sum = 0;
            for (int64_t k = from < 0 ? 0 : from; k < l.n && k < to; k++) {
                int64_t near = base + k * l.inner;
                sum += mpri_ref_load(dy, near) * mpri_ref_load(x, near) * pow(s[k], -beta - 1);
            }
            double v = mpri_ref_load(dy, at) * pow(s[j], -beta);
            mpri_ref_store(&c->out[0], at, v - factor * mpri_ref_load(x, at) * sum);
        }
    }
    return MPR_OK;
}

static size_t line_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)mpri_ref_lines(&s->in[1], 1).n * sizeof(double);
}

static const KernelRow rows[] = {
    REF_ROW(LpNormalization, "lpnormalization", k_lp),
    REF_ROW(MeanVarianceNormalization, "meanvariancenormalization", k_mean_variance),
    REF_ROW(LRN, "lrn", k_lrn),
    {.op = OP_LrnGrad, .name = "ref.lrngrad", .fn = k_lrn_grad, .workspace = line_bytes},
};
const KernelTable mpri_ref_norm_lp = REF_TABLE(rows);
