/* Paths across the bodies of If, Loop, Scan and SequenceMap: through their formals, their results,
 * and states, which come round again. Visited values are marked per search, so a long chain costs
 * one visit a value. */
#include "convert/flow.h"

#include <string.h>

static bool is_flow(const MixNode *n)
{
    return n && n->n_bodies && mpri_node_is(n, "If Loop Scan SequenceMap");
}

/* Inputs of the node that are none of its body. */
static int skipped(const MixNode *n)
{
    return !strcmp(n->op, "Scan") && n->scope->opset < 9;
}

static int states_of(const MixNode *n)
{
    if (!strcmp(n->op, "Loop")) return n->n_in > 2 ? n->n_in - 2 : 0;
    if (strcmp(n->op, "Scan")) return 0;
    int scans = (int)mpri_mix_attribute_int(n, "num_scan_inputs", 0);
    int states = n->n_in - skipped(n) - scans;
    return states > 0 ? states : 0;
}

/* Results of a Loop's body begin with its condition, formals with the trip and the condition. */
static int first_result(const MixNode *n)
{
    return !strcmp(n->op, "Loop");
}

static int first_state(const MixNode *n)
{
    return !strcmp(n->op, "Loop") ? 2 : skipped(n);
}

static int put(MixValue *v, MixValue **list, int n)
{
    if (v) list[n++] = v;
    return n;
}

static MixValue *input_of(const MixScope *s, int k)
{
    return k >= 0 && k < s->n_inputs ? s->inputs[k] : NULL;
}

static MixValue *output_of(const MixScope *s, int k)
{
    return k >= 0 && k < s->n_outputs ? s->outputs[k] : NULL;
}

int mpri_flow_next(const MixUse *u, MixValue *next[FLOW_MOST])
{
    int n = 0;
    if (u->node && u->node->function) return put(input_of(u->node->function, u->at), next, 0);
    if (!u->node && u->scope->original)
        return u->at < u->scope->owner->n_out ? put(u->scope->owner->out[u->at], next, 0) : 0;
    if (is_flow(u->node)) {
        if (!strcmp(u->node->op, "If")) return 0;
        return put(input_of(u->node->bodies[0], u->at - skipped(u->node)), next, 0);
    }
    const MixNode *owner = u->node ? NULL : u->scope->owner;
    if (!is_flow(owner)) return 0;
    int k = u->at - first_result(owner);
    if (k >= 0 && k < owner->n_out) n = put(owner->out[k], next, n);
    if (k >= 0 && k < states_of(owner))
        n = put(input_of(u->scope, k + (strcmp(owner->op, "Loop") ? 0 : 2)), next, n);
    return n;
}

int mpri_flow_before(const MixValue *v, MixValue *before[FLOW_MOST])
{
    int n = 0, k = 0;
    const MixNode *maker = v->maker, *owner = maker ? NULL : v->scope->owner;
    if (maker && maker->function) {
        while (k < maker->n_out && maker->out[k] != v) k++;
        return put(output_of(maker->function, k), before, n);
    }
    if (v->input && v->scope->original) {
        const MixNode *call = v->scope->owner;
        while (k < v->scope->n_inputs && v->scope->inputs[k] != v) k++;
        return k < call->n_in ? put(call->in[k], before, n) : 0;
    }
    if (is_flow(maker)) {
        while (k < maker->n_out && maker->out[k] != v) k++;
        for (int b = 0; b < maker->n_bodies && n < FLOW_MOST - 1; b++)
            n = put(output_of(maker->bodies[b], k + first_result(maker)), before, n);
        int in = k + first_state(maker);
        if (k < states_of(maker)) n = put(maker->in[in], before, n);
        return n;
    }
    if (!is_flow(owner) || !v->input) return 0;
    while (k < v->scope->n_inputs && v->scope->inputs[k] != v) k++;
    int in = k + skipped(owner), state = k - (strcmp(owner->op, "Loop") ? 0 : 2);
    if (in < owner->n_in && (strcmp(owner->op, "Loop") || k >= 2)) n = put(owner->in[in], before, n);
    if (state >= 0 && state < states_of(owner))
        n = put(output_of(v->scope, state + first_result(owner)), before, n);
    return n;
}

/* ---- pins ---- */

static bool guarded(const MixUnit *u)
{
    return !u->forced && !u->excluded && u->legal && !(u->pinned && u->pin != WHY_RANGE_INIT);
}

void mpri_guard_unit(MixUnit *u, MixReason why)
{
    if (!u || !guarded(u)) return;
    u->pinned = false;
    mpri_unit_pin(u, why);
}

void mpri_guard_node(MixNode *n, MixReason why)
{
    for (int i = 0; i < n->n_units; i++) mpri_guard_unit(n->units[i], why);
}

void mpri_guard_noted(MixNode *n, MixReason why, const char *text)
{
    for (int i = 0; i < n->n_units; i++) {
        if (!guarded(n->units[i])) continue;
        mpri_guard_unit(n->units[i], why);
        n->units[i]->detail = text;
    }
}

/* ---- forward ---- */

static bool walk_node(Walk *w, MixNode *n, MixValue *by, int depth);

/* Does a path lead from the value to one of the ends? Everything on such a path is pinned. */
static bool walk(Walk *w, MixValue *v, int depth)
{
    if (!v || depth > 2000) return false;
    uint8_t *seen = &w->seen[v->order];
    if (*seen) return *seen == 2;
    *seen = 1;
    bool any = false;
    for (MixUse *u = v->uses; u; u = u->next) {
        MixValue *next[FLOW_MOST];
        int n = mpri_flow_next(u, next);
        bool leads = n == 0 && u->node && walk_node(w, u->node, v, depth + 1);
        for (int i = 0; i < n; i++)
            if (walk(w, next[i], depth + 1)) leads = true;
        if (leads && n) mpri_guard_unit(u->unit, w->why);
        any = any || leads;
    }
    if (any) *seen = 2;
    return any;
}

static bool walk_on(Walk *w, MixNode *n, int depth)
{
    bool any = false;
    for (int k = 0; k < n->n_out; k++)
        if (walk(w, n->out[k], depth)) any = true;
    return any;
}

static bool walk_node(Walk *w, MixNode *n, MixValue *by, int depth)
{
    bool leads = mpri_node_is(n, w->until) && (!w->reaches || w->reaches(n, by));
    if (!leads && mpri_node_is(n, w->through)) leads = walk_on(w, n, depth);
    if (leads) mpri_guard_node(n, w->why);
    return leads;
}

Walk mpri_walk_new(Paint *p, MixReason why, const char *through, const char *until)
{
    return (Walk){.p = p, .why = why, .through = through, .until = until,
                  .seen = mpri_pool_take(p->m->pool, (size_t)p->m->n_values + 1)};
}

bool mpri_walk(Walk *w, MixValue *v)
{
    return walk(w, v, 0);
}

bool mpri_walk_behind(Walk *w, MixNode *n)
{
    return walk_on(w, n, 0);
}

/* ---- backward ---- */

static bool allows(const MixNode *n)
{
    for (int i = 0; i < n->n_units; i++)
        if (n->units[i]->list == LIST_ALLOW && !n->units[i]->asked) return true;
    return false;
}

Before mpri_before_new(Paint *p, MixReason why, bool whole)
{
    return (Before){.p = p, .why = why, .whole = whole,
                    .seen = mpri_pool_take(p->m->pool, (size_t)p->m->n_values + 1)};
}

static void pin_before(Before *w, MixValue *v, int depth)
{
    MixValue *before[FLOW_MOST];
    if (!v || depth > 2000 || w->seen[v->order] || !mpri_mix_castable(v->type.elem)) return;
    w->seen[v->order] = 1;
    int n = mpri_flow_before(v, before);
    if (n) mpri_guard_unit(v->unit, w->why);
    for (int i = 0; i < n; i++) pin_before(w, before[i], depth + 1);
    if (n || !v->maker) return;
    bool last = allows(v->maker);
    if (!last || w->whole) mpri_guard_node(v->maker, w->why);
    for (int k = 0; k < v->maker->n_in && !last; k++) pin_before(w, v->maker->in[k], depth + 1);
}

void mpri_before(Before *w, MixValue *v)
{
    pin_before(w, v, 0);
}
