/* Measured ranges of activations: what would not fit stays in float32.
 *
 * A body may run many times: what counts is all that a value was. Results of a branch or a function
 * are known under the name that they have outside, formals by what they are given. */
#include <math.h>

#include "convert/flow.h"
#include "convert/places.h"
#include "convert/ranges.h"

static void join(PaintRange *all, PaintRange one)
{
    all->most = fmax(all->most, one.most);
    all->tiny = fmax(all->tiny, one.tiny);
    all->finite = all->finite && one.finite;
}

static bool find(const Paint *p, const char *lead, const MixValue *v, PaintRange *r)
{
    const char *place = mpri_place(p->m->pool, v->scope, v->name);
    if (*lead) place = mpri_pool_print(p->m->pool, "%s%s", lead, place);
    return p->o->range(p->o->range_user, place, r);
}

/* Joins to r what is known of v under the names that it has elsewhere. */
static bool look(const Paint *p, const char *lead, const MixValue *v, int depth, PaintRange *r)
{
    enum { DEEPEST = 8 };
    MixValue *other[FLOW_MOST];
    PaintRange one;
    bool known = false;
    if (v->initializer || depth > DEEPEST) return false;
    if (find(p, lead, v, &one)) {
        join(r, one);
        return true;
    }
    int n = v->maker ? 0 : mpri_flow_before(v, other);
    for (int i = 0; i < n; i++)
        if (look(p, lead, other[i], depth + 1, r)) known = true;
    for (MixUse *u = v->maker && v->scope->owner ? v->uses : NULL; u; u = u->next) {
        n = u->node ? 0 : mpri_flow_next(u, other);
        if (n && look(p, lead, other[0], depth + 1, r)) known = true;
    }
    return known;
}

bool mpri_paint_range(const Paint *p, const MixValue *v, PaintRange *out)
{
    *out = (PaintRange){.finite = true};
    return p->o->range && look(p, "", v, 0, out);
}

/* What is wrong with the numbers, or NULL. */
static const char *fault(const Paint *p, const PaintRange *r, const char *what, const char *name)
{
    Pool *pool = p->m->pool;
    if (!r->finite) return mpri_pool_print(pool, "%s%s holds Inf or NaN", what, name);
    if (r->most * p->o->margin > 65504)
        return mpri_pool_print(pool, "%s%s: largest %.6g, times margin %g above 65504", what, name,
                               r->most, p->o->margin);
    if (r->tiny > 0.01)
        return mpri_pool_print(pool, "%s%s: %.3g%% of the non-zero values below 6e-8", what, name,
                               100 * r->tiny);
    return NULL;
}

static const char *value_fault(const Paint *p, const MixValue *v)
{
    PaintRange r;
    return v && mpri_paint_range(p, v, &r) ? fault(p, &r, "", v->name) : NULL;
}

/* What a node computes inside, such as the variance of a normalisation. */
static const char *inside_fault(const Paint *p, const MixValue *v)
{
    PaintRange r = {.finite = true};
    return v && look(p, MPRI_INSIDE, v, 0, &r) ? fault(p, &r, "variance for ", v->name) : NULL;
}

void mpri_paint_range_act(Paint *p)
{
    for (int i = 0; p->o->range && i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        const char *bad = n->n_out && n->n_units ? inside_fault(p, n->out[0]) : NULL;
        for (int k = 0; k < n->n_in && !bad; k++)
            if (n->in_unit[k]) bad = value_fault(p, n->in[k]);
        for (int k = 0; k < n->n_out && !bad; k++)
            if (n->out_unit[k]) bad = value_fault(p, n->out[k]);
        if (bad) mpri_guard_noted(n, WHY_RANGE_ACT, bad);
    }
}
