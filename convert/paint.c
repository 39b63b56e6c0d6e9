/* Painting, after the four steps of TensorFlow's auto mixed precision rewriter: low operators are
 * low; float32 spreads forward between operators that want it; what lies between low ones becomes
 * low; low spreads through operators that only move data. Here it works on units, joined ones as
 * one. */
#include "convert/paint.h"

#include <string.h>

#include "convert/casts.h"
#include "convert/places.h"

typedef struct Colour { /* by number of the unit; only of those that stand for others */
    bool deny, low, up, down, wanted;
} Colour;

typedef struct Painter {
    Paint *p;
    Colour *c;
    MixUnit **stack;
    int n;
} Painter;

void mpri_paint_warn(Paint *p, const char *kind, const char *where, int64_t count,
                     const char *detail)
{
    PaintWarning *w = mpri_pool_take(p->m->pool, sizeof *w);
    *w = (PaintWarning){.kind = kind, .where = where, .count = count, .detail = detail};
    if (p->last_warning) p->last_warning->next = w;
    else p->warnings = w;
    p->last_warning = w;
}

/* The lists of joined units become one; one that is pinned pins all. */
static void gather(Paint *p)
{
    static const int rank[4] = {
        [LIST_CLEAR] = 0, [LIST_INFER] = 1, [LIST_ALLOW] = 2, [LIST_DENY] = 3};
    for (int i = 0; i < p->m->n_units; i++) {
        MixUnit *root = p->m->units[i];
        if (root->joined) continue;
        root->from = root->pinned ? root : NULL;
        root->lister = root;
        for (MixUnit *u = root->same; u; u = u->same) {
            if (rank[u->list] > rank[root->list]) {
                root->list = u->list;
                root->lister = u;
            }
            if (u->pinned && !root->from) root->from = u;
        }
        for (MixUnit *u = root->same; u; u = u->same)
            if (u->pinned && u->number < root->from->number && root->from != root)
                root->from = u;
        root->blocked = root->from;
    }
}

static void push(Painter *t, MixUnit *u)
{
    t->stack[t->n++] = u;
}

static bool soft(const MixUnit *u)
{
    return u->list == LIST_CLEAR || u->list == LIST_INFER;
}

/* Everything soft that leads to an operator on the deny or infer list. */
static void find_wanted(Painter *t, MixUnit **roots, int n)
{
    for (int i = 0; i < n; i++)
        if (roots[i]->list == LIST_DENY || roots[i]->list == LIST_INFER) push(t, roots[i]);
    while (t->n) {
        MixUnit *u = t->stack[--t->n];
        for (int k = 0; k < u->n_before; k++) {
            MixUnit *b = u->before[k];
            if (t->c[b->number].wanted || !soft(b)) continue;
            t->c[b->number].wanted = true;
            push(t, b);
        }
    }
}

static void spread_deny(Painter *t, MixUnit **roots, int n)
{
    for (int i = 0; i < n; i++) {
        MixUnit *u = roots[i];
        if (u->list != LIST_DENY) continue;
        t->c[u->number].deny = true;
        if (!u->blocked) u->why = u->lister->pin;
        push(t, u);
    }
    while (t->n) {
        MixUnit *u = t->stack[--t->n];
        for (int k = 0; k < u->n_behind; k++) {
            MixUnit *b = u->behind[k];
            if (t->c[b->number].deny || !t->c[b->number].wanted) continue;
            t->c[b->number].deny = true;
            if (!b->blocked) {
                b->why = WHY_FROM;
                b->from = u;
            }
            push(t, b);
        }
    }
}

static bool open(const Painter *t, const MixUnit *u)
{
    return !u->blocked && soft(u) && !t->c[u->number].deny && !t->c[u->number].low;
}

static void fill_between(Painter *t, MixUnit **roots, int n)
{
    for (int i = 0; i < n; i++)
        if (t->c[roots[i]->number].low) push(t, roots[i]);
    while (t->n) {
        MixUnit *u = t->stack[--t->n];
        for (int k = 0; k < u->n_behind; k++) {
            MixUnit *b = u->behind[k];
            if (!open(t, b) || t->c[b->number].down) continue;
            t->c[b->number].down = true;
            b->source = u;
            push(t, b);
        }
    }
    for (int i = 0; i < n; i++)
        if (roots[i]->list == LIST_ALLOW && t->c[roots[i]->number].low) push(t, roots[i]);
    while (t->n) {
        MixUnit *u = t->stack[--t->n];
        for (int k = 0; k < u->n_before; k++) {
            MixUnit *b = u->before[k];
            if (!open(t, b) || !t->c[b->number].down) continue;
            t->c[b->number].low = true;
            b->why = WHY_BETWEEN;
            b->from = b->source;
            push(t, b);
        }
    }
}

static void spread_low(Painter *t, MixUnit **roots, int n)
{
    for (int i = 0; i < n; i++)
        if (t->c[roots[i]->number].low) push(t, roots[i]);
    while (t->n) {
        MixUnit *u = t->stack[--t->n];
        for (int k = 0; k < u->n_before + u->n_behind; k++) {
            MixUnit *b = k < u->n_before ? u->before[k] : u->behind[k - u->n_before];
            if (!open(t, b) || b->list != LIST_CLEAR) continue;
            t->c[b->number].low = true;
            b->why = WHY_SPREAD;
            b->from = u;
            push(t, b);
        }
    }
}

/* Do the Casts around a region move more bytes than it saves? A Cast reads and writes the value once;
 * inside, each writing and reading of it takes half. False where a size is not known. */
static bool costs_more(const Painter *t, const bool *inside)
{
    const Mix *m = t->p->m;
    double cost = 0, saved = 0;
    for (int i = 0; i < m->n_values; i++) {
        const MixValue *v = m->values[i];
        bool made = v->unit && inside[mpri_unit_root(v->unit)->number], in = false, out = false;
        int reads = 0;
        for (const MixUse *u = v->uses; u; u = u->next) {
            bool here = u->unit && inside[mpri_unit_root(u->unit)->number];
            reads += here;
            in = in || (here && !made);
            out = out || (made && !here);
        }
        if (!made && !reads) continue;
        int64_t n = mpri_mix_elements(m, v);
        if (n < 0) return false;
        bool stored = v->initializer && !t->p->o->master;
        saved += 2.0 * (double)n * (reads + made);
        cost += stored ? 0 : 6.0 * (double)n * (in + out);
    }
    return cost > saved;
}

/* Low regions with fewer low operators than asked for, or that do not pay. */
static void drop_islands(Painter *t, MixUnit **roots, int n)
{
    bool *seen = mpri_pool_take(t->p->m->pool, (size_t)t->p->m->n_units + 1);
    MixUnit **region = mpri_pool_take(t->p->m->pool, sizeof(void *) * (size_t)(n + 1));
    bool *inside = mpri_pool_take(t->p->m->pool, (size_t)t->p->m->n_units + 1);
    for (int i = 0; i < n; i++) {
        if (!t->c[roots[i]->number].low || seen[roots[i]->number]) continue;
        int count = 0, allowed = 0;
        seen[roots[i]->number] = true;
        push(t, roots[i]);
        while (t->n) {
            MixUnit *u = t->stack[--t->n];
            region[count++] = u;
            allowed += u->list == LIST_ALLOW;
            for (int k = 0; k < u->n_before + u->n_behind; k++) {
                MixUnit *b = k < u->n_before ? u->before[k] : u->behind[k - u->n_before];
                if (!t->c[b->number].low || seen[b->number]) continue;
                seen[b->number] = true;
                push(t, b);
            }
        }
        for (int k = 0; k < count; k++) inside[region[k]->number] = true;
        bool drop = allowed < t->p->o->min_island || costs_more(t, inside);
        for (int k = 0; k < count; k++) inside[region[k]->number] = false;
        for (int k = 0; k < count && drop; k++) {
            t->c[region[k]->number].low = false;
            region[k]->why = WHY_ISLAND;
            region[k]->from = NULL;
        }
    }
}

/* A list counts for all that are joined: the reason is that of the unit that stands on it. */
static void tell_lister(MixUnit *root)
{
    MixUnit *l = root->lister;
    bool listed = root->list == LIST_ALLOW || root->list == LIST_DENY;
    if (!listed || l == root || root->blocked || root->why == WHY_ISLAND) return;
    for (MixUnit *u = root; u; u = u->same) {
        u->why = u == l ? (l->list == LIST_ALLOW && !l->asked ? WHY_ALLOW : l->pin)
                 : mpri_dtype_is_low(u->is) ? WHY_JOINED : l->pin;
        u->from = u == l ? NULL : l;
    }
}

static void colour(Painter *t)
{
    Mix *m = t->p->m;
    for (int i = 0; i < m->n_units; i++) {
        MixUnit *u = m->units[i], *root = mpri_unit_root(u);
        bool low = t->c[root->number].low;
        if (low) u->is = m->to;
        if (u != root) {
            u->why = low ? WHY_JOINED : root->why;
            u->from = root->blocked ? (u->pinned ? NULL : root->blocked)
                                    : low || root->from ? root : NULL;
            if (root->blocked) u->why = u->pinned ? u->pin : root->blocked->pin;
            else if (!low && !root->from) u->why = root->why;
        } else if (root->blocked) {
            u->why = root->blocked->pin;
            u->from = root->blocked == root ? NULL : root->blocked;
        }
        if (!low && u->why == WHY_NONE) u->why = WHY_FAR;
    }
    for (int i = 0; i < m->n_units; i++)
        if (!m->units[i]->joined) tell_lister(m->units[i]);
}

static mpr_status paint_all(Paint *p)
{
    Mix *m = p->m;
    Painter t = {.p = p};
    t.c = mpri_pool_take(m->pool, sizeof *t.c * (size_t)(m->n_units + 1));
    t.stack = mpri_pool_take(m->pool, 3 * sizeof(void *) * (size_t)(m->n_units + 1));
    MixUnit **roots = mpri_pool_take(m->pool, sizeof(void *) * (size_t)(m->n_units + 1));
    int n = 0;
    gather(p);
    for (int i = 0; i < m->n_units; i++)
        if (!m->units[i]->joined) roots[n++] = m->units[i];
    for (int i = 0; i < n; i++) {
        MixUnit *u = roots[i];
        if (u->list != LIST_ALLOW || u->blocked) continue;
        t.c[u->number].low = true;
        u->why = u->lister->asked ? u->lister->pin : WHY_ALLOW;
        p->allowed++;
    }
    find_wanted(&t, roots, n);
    spread_deny(&t, roots, n);
    fill_between(&t, roots, n);
    spread_low(&t, roots, n);
    if (p->o->min_island > 1) drop_islands(&t, roots, n);
    colour(&t);
    mpri_casts_follow(m);
    return MPR_OK;
}

/* Nodes whose errors are too large: they keep their list, so that their neighbours see no change of
 * it. */
static void raise_nodes(Paint *p)
{
    for (int i = 0; p->o->raised && i < p->m->n_units; i++) {
        MixUnit *u = p->m->units[i];
        const char *why = p->o->raised[u->node->number];
        if (!why || u->pinned || u->forced) continue;
        mpri_unit_pin(u, WHY_AUTO);
        u->detail = why;
    }
}

static void take_dims(Paint *p)
{
    for (int i = 0; p->o->dims && i < p->m->n_values; i++) {
        MixValue *v = p->m->values[i];
        if (!v->scope->outer)
            v->seen = p->o->dims(p->o->range_user, mpri_place(p->m->pool, v->scope, v->name),
                                 &v->seen_rank, v->seen_dims);
    }
}

mpr_status mpri_paint(Paint *p)
{
    p->m->master = p->o->master;
    take_dims(p);
    mpri_mix_units(p->m);
    if (p->m->widen) { /* everything that can */
        for (int i = 0; i < p->m->n_units; i++)
            p->m->units[i]->list = LIST_ALLOW;
        return paint_all(p);
    }
    mpri_mix_ranges(p->m);
    TRY(mpri_paint_lists(p));
    TRY(mpri_paint_rules(p));
    TRY(mpri_paint_guards(p));
    mpri_paint_constants(p);
    if (p->err->code != MPR_OK) return p->err->code;
    raise_nodes(p);
    TRY(paint_all(p));
    TRY(mpri_paint_changes(p));
    if (!p->allowed) mpri_paint_warn(p, "no-allow", "", 0, "no operator of the allow list");
    return MPR_OK;
}
