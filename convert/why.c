/* The reasons of a painted model by the names of its values, for the plan of a training. */
#include <stdlib.h>
#include <string.h>

#include "convert/mixed.h"

typedef struct Reasons {
    const Mix *m;
    Arena *arena;
    MixedWhy *list;
    int n;
} Reasons;

static int by_value(const void *a, const void *b)
{
    return strcmp(((const MixedWhy *)a)->value, ((const MixedWhy *)b)->value);
}

static const char *kept(const Reasons *r, const char *text)
{
    char *copy = mpri_arena_strdup(r->arena, text);
    if (!copy) longjmp(r->m->pool->full, 1);
    return copy;
}

/* "paint: deny-from layer/Softmax:T (rule)" */
static const char *reason_of(const Reasons *r, const MixUnit *u)
{
    Pool *pool = r->m->pool;
    const char *from = "", *detail = "";
    if (u->from && u->from != u)
        from = mpri_pool_print(pool, " %s:%s", u->from->node->path, u->from->name);
    if (u->detail) detail = mpri_pool_print(pool, " (%s)", u->detail);
    return mpri_pool_print(pool, "paint: %s%s%s", mpri_reason_text(u->why), from, detail);
}

static void add(Reasons *r, const char *value, const char *why)
{
    r->list[r->n].value = kept(r, value);
    r->list[r->n++].why = kept(r, why);
}

static void add_cast(Reasons *r, const RewriteCast *cast)
{
    const MixNode *n = cast->reader;
    const MixUnit *u = NULL;
    for (int i = 0; n && i < n->n_in; i++)
        if (n->in_unit[i] && n->in_unit[i]->is == cast->to && !strcmp(n->in[i]->name, cast->value))
            u = n->in_unit[i];
    if (u)
        add(r, cast->name, mpri_pool_print(r->m->pool, "for %s (%s), %s", n->path, n->op,
                                           reason_of(r, u)));
    else if (!n) /* it writes the public name */
        add(r, cast->value, "paint: graph outputs keep their declared type");
}

const MixedWhy *mpri_mixed_reasons(const Mix *m, const RewriteCast *casts, Arena *arena, int *n)
{
    Reasons r = {.m = m, .arena = arena};
    size_t most = (size_t)m->n_values + 1;
    for (const RewriteCast *c = casts; c; c = c->next) most++;
    r.list = mpri_arena_array(arena, most, sizeof *r.list);
    if (!r.list) longjmp(m->pool->full, 1);
    for (int i = 0; i < m->n_values; i++) {
        const MixValue *v = m->values[i];
        if (!v->maker || !v->maker->n_units || v->scope->home) continue;
        const MixUnit *u = v->unit ? v->unit : v->maker->units[0];
        add(&r, v->fresh ? v->fresh : v->name, reason_of(&r, u));
    }
    for (const RewriteCast *c = casts; c; c = c->next) add_cast(&r, c);
    qsort(r.list, (size_t)r.n, sizeof *r.list, by_value);
    *n = r.n;
    return r.list;
}
