/* GroupNormalization, InstanceNormalization and their gradient. A group is a contiguous run of
 * elements: channels / groups channels of one sample. With xh = (x - mean) / sqrt(var + epsilon)
 * and g = dy * scale, averages over the group:
 *   dx = inv * (g - avg(g) - xh * avg(g * xh)); dscale = sum of dy * xh, dbias = sum of dy. */
#include "kernels/ref/norm.h"

typedef struct Groups {
    Channels s;
    int64_t per_sample, n; /* groups of a sample, elements of a group */
    double epsilon;
} Groups;

/* num_groups 0: one group per channel. */
static Groups groups_of(const Tensor *x, int64_t groups, float epsilon)
{
    Groups g = {.s = mpri_ref_channels(x), .epsilon = (double)epsilon};
    g.per_sample = groups > 0 ? groups : g.s.channels;
    g.n = g.per_sample ? g.s.channels / g.per_sample * g.s.inner : 0;
    return g;
}

/* Element of a weight that has one value per channel or per group, for element `at` of x. */
static int64_t weight_at(const Groups *g, const Tensor *w, int64_t at)
{
    int64_t channel = at / g->s.inner % g->s.channels;
    return channel / (g->s.channels / w->n);
}

static void statistics(const Groups *g, const Tensor *x, int64_t base, double *mean, double *inv)
{
    double sum = 0, var = 0;
    for (int64_t j = 0; j < g->n; j++) sum += mpri_ref_load(x, base + j);
    *mean = sum / (double)g->n;
    for (int64_t j = 0; j < g->n; j++) {
        double d = mpri_ref_load(x, base + j) - *mean;
        var += d * d;
    }
    *inv = 1 / sqrt(var / (double)g->n + g->epsilon);
}

/* Inputs x, scale, bias. */
static mpr_status normalise(const KernelCall *c, Groups g)
{
    const Tensor *x = &c->in[0], *scale = &c->in[1], *bias = &c->in[2];
    for (int64_t base = 0; base < x->n; base += g.n) {
        double mean, inv;
        statistics(&g, x, base, &mean, &inv);
        for (int64_t at = base; at < base + g.n; at++) {
            double v = (mpri_ref_load(x, at) - mean) * inv;
            v = v * mpri_ref_load(scale, weight_at(&g, scale, at)) +
                mpri_ref_load(bias, weight_at(&g, bias, at));
            mpri_ref_store(&c->out[0], at, v);
        }
    }
    return MPR_OK;
}

static mpr_status k_group_norm(const KernelCall *c)
{
    const GroupNormParams *p = c->params;
    return normalise(c, groups_of(&c->in[0], p->num_groups, p->epsilon));
}

static mpr_status k_instance_norm(const KernelCall *c)
{
    const InstanceNormParams *p = c->params;
    return normalise(c, groups_of(&c->in[0], 0, p->epsilon));
}

/* sums: dscale and dbias of every weight. */
static void weight_sums(const KernelCall *c, const Groups *g, int64_t base, double mean, double inv,
                        double *sums)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *scale = &c->in[2];
    for (int64_t at = base; at < base + g->n; at++) {
        double d = mpri_ref_load(dy, at), *to = sums + 2 * weight_at(g, scale, at);
        to[0] += d * (mpri_ref_load(x, at) - mean) * inv;
        to[1] += d;
    }
}

static void input_grad(const KernelCall *c, const Groups *g, int64_t base, double mean, double inv)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *scale = &c->in[2];
    double sum = 0, dot = 0;
    for (int64_t at = base; at < base + g->n; at++) {
        double d = mpri_ref_load(dy, at) * mpri_ref_load(scale, weight_at(g, scale, at));
        sum += d;
        dot += d * (mpri_ref_load(x, at) - mean) * inv;
    }
    sum /= (double)g->n;
    dot /= (double)g->n;
    for (int64_t at = base; at < base + g->n; at++) {
        double d = mpri_ref_load(dy, at) * mpri_ref_load(scale, weight_at(g, scale, at));
        double xh = (mpri_ref_load(x, at) - mean) * inv;
        mpri_ref_store(&c->out[0], at, inv * (d - sum - xh * dot));
    }
}

/* Inputs dy, x, scale; outputs dx, dscale, dbias, each optional. dx may take dy's or x's memory. */
static mpr_status k_group_norm_grad(const KernelCall *c)
{
    const Tensor *x = &c->in[1], *scale = &c->in[2];
    const GroupNormParams *p = c->params;
    Groups g = groups_of(x, p->num_groups, p->epsilon);
    double *sums = c->workspace;
    for (int64_t i = 0; i < 2 * scale->n; i++) sums[i] = 0;
    for (int64_t base = 0; base < x->n; base += g.n) {
        double mean, inv;
        statistics(&g, x, base, &mean, &inv);
        weight_sums(c, &g, base, mean, inv, sums);
        if (mpri_ref_wanted(c, 0)) input_grad(c, &g, base, mean, inv);
    }
    for (int k = 1; k < 3; k++)
        for (int64_t i = 0; i < scale->n && mpri_ref_wanted(c, k); i++)
            mpri_ref_store(&c->out[k], i, sums[2 * i + k - 1]);
    return MPR_OK;
}

static size_t sums_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)s->in[2].n * 2 * sizeof(double);
}

static const KernelRow rows[] = {
    REF_ROW(GroupNormalization, "groupnormalization", k_group_norm),
    REF_ROW(InstanceNormalization, "instancenormalization", k_instance_norm),
    {.op = OP_GroupNormGrad, .name = "ref.groupnormgrad", .fn = k_group_norm_grad,
     .workspace = sums_bytes},
};
const KernelTable mpri_ref_norm_group = REF_TABLE(rows);
