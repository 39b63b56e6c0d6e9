/* The largest value, and how many of those that are not zero lie below the range of float16, over
 * all runs and all turns of a loop. */
#include "convert/ranges.h"

#include <math.h>
#include <string.h>

#include "convert/places.h"
#include "passes/pass.h"

typedef struct Range {
    double most;
    int64_t nonzero, tiny;
    bool finite;
} Range;

struct RangeEntry {
    const char *name, *known_as;
    Range r;
    int rank;
    int64_t dims[8];
    bool lost;
    UT_hash_handle hh;
};

static void measure(Range *r, const Tensor *t)
{
    for (int64_t i = 0; i < t->n; i++) {
        double x = fabs(mpri_load_f64(t->dtype, t->data, i));
        if (!isfinite(x)) {
            r->finite = false;
            continue;
        }
        if (x > r->most) r->most = x;
        r->nonzero += x != 0;
        r->tiny += x != 0 && x < 6e-8;
    }
}

static RangeEntry *range_entry(Ranges *r, const char *name)
{
    Arena *hash_arena = r->pool->arena;
    RangeEntry *e;
    name = mpri_place_imported(r->pool, name);
    HASH_FIND(hh, r->hash, name, strlen(name), e);
    if (e) return e;
    e = mpri_pool_take(r->pool, sizeof *e);
    *e = (RangeEntry){.name = mpri_pool_text(r->pool, name, strlen(name)), .r = {.finite = true}};
    e->known_as = e->name;
    HASH_ADD_KEYPTR(hh, r->hash, e->known_as, strlen(e->known_as), e);
    if (e->lost) longjmp(r->pool->full, 1);
    return e;
}

/* How many groups of neighbours n takes the variance of; 0: it takes none. */
static int64_t groups_of(const Node *n, const Tensor *x)
{
    int64_t rows = 1;
    int lead = 0;
    if (mpri_is(n, OP_LayerNormalization)) lead = (int)((const LayerNormParams *)n->params)->axis;
    else if (mpri_is(n, OP_RMSNormalization))
        lead = (int)((const LayerNormParams *)n->params)->axis;
    else if (mpri_is(n, OP_InstanceNormalization)) lead = 2;
    else if (mpri_is(n, OP_GroupNormalization)) {
        int64_t groups = ((const GroupNormParams *)n->params)->num_groups;
        return x->dims[0] * (groups ? groups : x->dims[1]);
    } else {
        return 0;
    }
    if (lead < 0) lead += x->rank;
    for (int k = 0; k < lead && k < x->rank; k++) rows *= x->dims[k];
    return rows;
}

static void measure_inside(Ranges *r, const Node *n, const Tensor *values)
{
    const Tensor *x = n->n_in && n->in[0] ? &values[n->in[0]->id] : NULL;
    int64_t groups = x && x->data && x->n ? groups_of(n, x) : 0;
    if (groups < 1 || !n->out[0]) return;
    RangeEntry *e = range_entry(r, mpri_pool_print(r->pool, MPRI_INSIDE "%s", n->out[0]->name));
    int64_t size = x->n / groups;
    for (int64_t g = 0; g < groups && size; g++) {
        double sum = 0, squares = 0;
        for (int64_t i = g * size; i < (g + 1) * size; i++)
            sum += mpri_load_f64(x->dtype, x->data, i);
        double mean = mpri_is(n, OP_RMSNormalization) ? 0 : sum / (double)size;
        for (int64_t i = g * size; i < (g + 1) * size; i++) {
            double d = mpri_load_f64(x->dtype, x->data, i) - mean;
            squares += d * d;
        }
        squares /= (double)size;
        if (!isfinite(squares)) e->r.finite = false;
        else if (squares > e->r.most) e->r.most = squares;
    }
}

void mpri_ranges_add(Ranges *r, const Graph *g, const Tensor *values)
{
    for (const Node *n = g->first; n; n = n->next) measure_inside(r, n, values);
    for (int i = 0; i < g->n_values; i++) {
        const Tensor *t = &values[i];
        const Value *v = g->values[i];
        if (v->kind == VAL_CONST || !mpri_dtype_is_float(t->dtype) || !t->data) continue;
        RangeEntry *e = range_entry(r, v->name);
        measure(&e->r, t);
        e->rank = t->rank;
        memcpy(e->dims, t->dims, sizeof e->dims);
    }
}

static const RangeEntry *find(const Ranges *r, const char *place)
{
    const RangeEntry *e;
    HASH_FIND(hh, r->hash, place, strlen(place), e);
    return e;
}

bool mpri_ranges_find(const Ranges *r, const char *place, PaintRange *out)
{
    const RangeEntry *e = find(r, place);
    if (e)
        *out = (PaintRange){.most = e->r.most, .finite = e->r.finite,
                            .tiny = e->r.nonzero ? (double)e->r.tiny / (double)e->r.nonzero : 0};
    return e != NULL;
}

bool mpri_ranges_dims(const Ranges *r, const char *place, int *rank, int64_t dims[8])
{
    const RangeEntry *e = find(r, place);
    if (!e) return false;
    *rank = e->rank;
    memcpy(dims, e->dims, sizeof e->dims);
    return true;
}
