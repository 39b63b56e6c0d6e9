/* BatchNormalization in both modes, its gradient, and the update of running statistics that are
 * slots. Statistics are per channel (dim 1), over all other dims, in double in two passes. With
 * xh = (x - mean) / sqrt(var + epsilon), averages over the n elements of a channel:
 *   dbias = sum(dy), dscale = sum(dy * xh)
 *   dx = scale * inv * (dy - avg(dy) - xh * avg(dy * xh))   in training, else scale * inv * dy. */
#include "kernels/ref/norm.h"

typedef struct Channel { /* element i of a channel, 0 <= i < n, lies at at(i) */
    Channels s;
    int64_t index, n;
} Channel;

static int64_t at(const Channel *k, int64_t i)
{
    return (i / k->s.inner * k->s.channels + k->index) * k->s.inner + i % k->s.inner;
}

static void batch_statistics(const Tensor *x, const Channel *k, double *mean, double *var)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < k->n; i++) sum += mpri_ref_load(x, at(k, i));
    *mean = sum / (double)k->n;
    for (int64_t i = 0; i < k->n; i++) {
        double d = mpri_ref_load(x, at(k, i)) - *mean;
        squares += d * d;
    }
    *var = squares / (double)k->n;
}

/* Inputs x, scale, bias, running mean, running var; outputs y, running mean and var, mean and var
 * that were used. */
static mpr_status k_batch_norm(const KernelCall *c)
{
    const BatchNormParams *p = c->params;
    const Tensor *x = &c->in[0];
    double keep = p->training_mode ? (double)p->momentum : 1;
    Channel k = {.s = mpri_ref_channels(x)};
    k.n = k.s.samples * k.s.inner;
    for (; k.index < k.s.channels; k.index++) {
        double old[2] = {mpri_ref_load(&c->in[3], k.index), mpri_ref_load(&c->in[4], k.index)};
        double used[2] = {old[0], old[1]};
        if (p->training_mode) batch_statistics(x, &k, &used[0], &used[1]);
        for (int i = 0; i < 2; i++) {
            double next = keep == 1 ? old[i] : old[i] * keep + used[i] * (1 - keep);
            if (mpri_ref_wanted(c, 1 + i)) mpri_ref_store(&c->out[1 + i], k.index, next);
            if (mpri_ref_wanted(c, 3 + i)) mpri_ref_store(&c->out[3 + i], k.index, used[i]);
        }
        double slope = mpri_ref_load(&c->in[1], k.index) / sqrt(used[1] + (double)p->epsilon);
        double bias = mpri_ref_load(&c->in[2], k.index);
        for (int64_t i = 0; i < k.n; i++)
            mpri_ref_store(&c->out[0], at(&k, i),
                           (mpri_ref_load(x, at(&k, i)) - used[0]) * slope + bias);
    }
    return MPR_OK;
}

/* Inputs dy, x, scale, mean, var; outputs dx, dscale, dbias, each optional. dx may take dy's or x's
 * memory. */
static mpr_status k_batch_norm_grad(const KernelCall *c)
{
    const BatchNormParams *p = c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1];
    Channel k = {.s = mpri_ref_channels(x)};
    k.n = k.s.samples * k.s.inner;
    for (; k.index < k.s.channels; k.index++) {
        double mean = mpri_ref_load(&c->in[3], k.index), sum = 0, dot = 0;
        double inv = 1 / sqrt(mpri_ref_load(&c->in[4], k.index) + (double)p->epsilon);
        for (int64_t i = 0; i < k.n; i++) {
            double d = mpri_ref_load(dy, at(&k, i));
            sum += d;
            dot += d * (mpri_ref_load(x, at(&k, i)) - mean) * inv;
        }
        if (mpri_ref_wanted(c, 1)) mpri_ref_store(&c->out[1], k.index, dot);
        if (mpri_ref_wanted(c, 2)) mpri_ref_store(&c->out[2], k.index, sum);
        double scale = mpri_ref_load(&c->in[2], k.index) * inv;
        sum = p->training_mode ? sum / (double)k.n : 0;
        dot = p->training_mode ? dot / (double)k.n : 0;
        for (int64_t i = 0; i < k.n && mpri_ref_wanted(c, 0); i++) {
            double xh = p->training_mode ? (mpri_ref_load(x, at(&k, i)) - mean) * inv : 0;
            mpri_ref_store(&c->out[0], at(&k, i),
                           scale * (mpri_ref_load(dy, at(&k, i)) - sum - xh * dot));
        }
    }
    return MPR_OK;
}

/* Inputs running mean, running var (both written), mean, var. A batch of one element has no
 * unbiased variance; its own stands for it. */
static mpr_status k_batch_norm_update(const KernelCall *c)
{
    const BatchNormUpdateParams *p = c->params;
    double keep = (double)p->momentum, n = (double)p->count, unbiased = n > 1 ? n / (n - 1) : 1;
    for (int k = 0; k < 2; k++) {
        Tensor running = c->in[k];
        for (int64_t i = 0; i < running.n && p->count > 0; i++) {
            double batch = mpri_ref_load(&c->in[2 + k], i) * (k ? unbiased : 1);
            mpri_ref_store(&running, i, mpri_ref_load(&running, i) * keep + batch * (1 - keep));
        }
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(BatchNormalization, "batchnormalization", k_batch_norm),
    REF_ROW(BatchNormGrad, "batchnormgrad", k_batch_norm_grad),
    REF_ROW(BatchNormUpdate, "batchnormupdate", k_batch_norm_update),
};
const KernelTable mpri_ref_norm_batch = REF_TABLE(rows);
