/* Random tensors. See kernels/random_draw.h for the draw. */
#include "kernels/random_draw.h"
#include "kernels/ref/util.h"

static mpr_status normal(const KernelCall *c, const RandomParams *p)
{
    RandomStream s = mpri_random_stream(c, p->seed, p->stream);
    for (int64_t i = 0; i < c->out[0].n; i++)
        mpri_ref_store(&c->out[0], i,
                       (double)p->a +
                           (double)p->b * mpri_rng_normal(s.seed, s.stream, (uint64_t)i));
    return MPR_OK;
}

/* high itself is left out: where a store rounds to it, low takes its place. */
static mpr_status uniform(const KernelCall *c, const RandomParams *p)
{
    Tensor *y = &c->out[0];
    RandomStream s = mpri_random_stream(c, p->seed, p->stream);
    int digits = mpri_random_digits(y->dtype);
    double low = (double)p->a, high = (double)p->b;
    for (int64_t i = 0; i < y->n; i++) {
        mpri_ref_store(y, i, low + (high - low) * mpri_random_uniform(s, i, digits));
        if (high > low && mpri_ref_load(y, i) >= high) mpri_ref_store(y, i, low);
    }
    return MPR_OK;
}

static mpr_status k_normal(const KernelCall *c)
{
    return normal(c, &((const RandomShapedParams *)c->params)->r);
}

static mpr_status k_uniform(const KernelCall *c)
{
    return uniform(c, &((const RandomShapedParams *)c->params)->r);
}

static mpr_status k_normal_like(const KernelCall *c) { return normal(c, c->params); }

static mpr_status k_uniform_like(const KernelCall *c) { return uniform(c, c->params); }

static mpr_status k_bernoulli(const KernelCall *c)
{
    const BernoulliParams *p = c->params;
    Tensor *y = &c->out[0];
    RandomStream s = mpri_random_stream(c, p->seed, p->stream);
    for (int64_t i = 0; i < y->n; i++)
        mpri_ref_store(y, i, mpri_random_uniform(s, i, 53) < mpri_ref_load(&c->in[0], i));
    return MPR_OK;
}

/* Inverse of the cumulative distribution of softmax(row). */
static mpr_status k_multinomial(const KernelCall *c)
{
    const MultinomialParams *p = c->params;
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    RandomStream s = mpri_random_stream(c, p->seed, p->stream);
    int64_t classes = x->dims[1];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t row = i / y->dims[1] * classes, k = 0;
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < classes; j++) top = fmax(top, mpri_ref_load(x, row + j));
        for (int64_t j = 0; j < classes; j++) sum += exp(mpri_ref_load(x, row + j) - top);
        double left = sum * mpri_random_uniform(s, i, 53);
        while (k < classes - 1 && (left -= exp(mpri_ref_load(x, row + k) - top)) >= 0) k++;
        mpri_store_i64(y->dtype, y->data, i, k);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(RandomNormal, "randomnormal", k_normal),
    REF_ROW(RandomUniform, "randomuniform", k_uniform),
    REF_ROW(RandomNormalLike, "randomnormallike", k_normal_like),
    REF_ROW(RandomUniformLike, "randomuniformlike", k_uniform_like),
    REF_ROW(Bernoulli, "bernoulli", k_bernoulli),
    REF_ROW(Multinomial, "multinomial", k_multinomial),
};
const KernelTable mpri_ref_random = REF_TABLE(rows);
