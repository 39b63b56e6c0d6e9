/* An order that frees memory early.
 *
 * Backward, list scheduling with three kinds of nodes. "Sinks" end in a slot and feed nothing else
 * (a weight's gradient and its AccumulateGrad): as soon as they can run they do, nearest to the
 * slot first, so dW and the activation it reads die before dX is made, which then finds their
 * memory. "Free" nodes need nothing from the segment: they are pulled in front of their first
 * reader. The others keep their order. Forward keeps its order, except that what is made from
 * weights and constants alone moves to its first reader. Deterministic: ties go to the older place.
 */
#include <string.h>
#include "passes/rewrite.h"

typedef struct Item {
    Node *n;
    int waits;      /* producers in the segment that have not run, free ones aside */
    int to_slot;    /* sinks: steps to the nearest effect; -1: no sink */
    bool free, done;
} Item;

typedef struct Segm {
    Graph *g;
    Item *items;
    int n;
    int *place;     /* by node id: index into items + 1, 0 = outside the segment */
    int *edge, *next_edge, n_edges; /* per item a list of (target) edges: slot order */
    int *target;
    Item **ready;   /* sinks that can run: a heap, the one nearest to its slot on top */
    int n_ready;
    Node **order;
    int n_order;
} Segm;

static Item *item_of(const Segm *s, const Node *n)
{
    return n && s->place[n->id] ? &s->items[s->place[n->id] - 1] : NULL;
}

static bool writes(const Node *n, int k)
{
    return (n->op->flags & OPF_EFFECT) && mpri_op_mask(n->op->writes, k);
}

/* Steps to the nearest effect when every reader of n is a sink; -1 otherwise. */
static int distance(const Segm *s, const Node *n)
{
    if (n->op->flags & OPF_EFFECT) return 0;
    int best = -1;
    for (int i = 0; i < n->n_out; i++) {
        if (!n->out[i]) continue;
        if (n->out[i]->n_outputs) return -1;
        for (const Use *u = n->out[i]->uses; u; u = u->next) {
            const Item *user = item_of(s, u->user);
            if (!user || user->to_slot < 0) return -1;
            if (best < 0 || user->to_slot + 1 < best) best = user->to_slot + 1;
        }
    }
    return best;
}

static void add_edge(Segm *s, int from, int to)
{
    s->target[s->n_edges] = to;
    s->next_edge[s->n_edges] = s->edge[from];
    s->edge[from] = ++s->n_edges;
    s->items[to].waits++;
}

/* Nodes that touch one written slot stay in order. */
static mpr_status order_effects(Segm *s, PassCtx *ctx, Err *err)
{
    int *last = ARENA_ARRAY(ctx->scratch, int, s->g->n_values);
    size_t room = 0;
    for (int i = 0; i < s->n; i++) room += (size_t)s->items[i].n->n_in;
    s->edge = ARENA_ARRAY(ctx->scratch, int, s->n);
    s->next_edge = ARENA_ARRAY(ctx->scratch, int, room);
    s->target = ARENA_ARRAY(ctx->scratch, int, room);
    if (!last || !s->edge || !s->next_edge || !s->target)
        return mpri_err_nomem(err, room * sizeof(int));
    bool *written = ARENA_ARRAY(ctx->scratch, bool, s->g->n_values);
    if (!written) return mpri_err_nomem(err, (size_t)s->g->n_values);
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->items[i].n->n_in; k++)
            if (s->items[i].n->in[k] && writes(s->items[i].n, k))
                written[s->items[i].n->in[k]->id] = true;
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->items[i].n->n_in; k++) {
            const Value *v = s->items[i].n->in[k];
            if (!v || v->kind != VAL_SLOT || !written[v->id]) continue;
            if (last[v->id] && last[v->id] - 1 != i) add_edge(s, last[v->id] - 1, i);
            last[v->id] = i + 1;
        }
    return MPR_OK;
}

/* Where gradients start: see GradTarget. */
static bool is_seed(const Value *v)
{
    if (!v || v->kind == VAL_NODE || v->kind == VAL_CONST) return false;
    return strcmp(v->name, "loss_seed") == 0 || strncmp(v->name, "cotangent:", 10) == 0;
}

static void classify(Segm *s)
{
    for (int i = 0; i < s->n; i++) {
        Item *it = &s->items[i];
        it->free = !(it->n->op->flags & OPF_EFFECT);
        for (int k = 0; k < it->n->n_in; k++) {
            const Item *def = item_of(s, mpri_def(it->n->in[k]));
            if (is_seed(it->n->in[k])) it->free = false;
            if (!def || def->free) continue;
            it->free = false;
            it->waits++;
        }
    }
    for (int i = s->n - 1; i >= 0; i--) s->items[i].to_slot = distance(s, s->items[i].n);
}

/* ---- the heap: nearest slot first, ties to the older place ---- */

static bool before(const Item *a, const Item *b)
{
    return a->to_slot != b->to_slot ? a->to_slot < b->to_slot : a < b;
}

static bool is_ready_sink(const Item *it)
{
    return !it->done && !it->free && it->to_slot >= 0 && it->waits <= 0;
}

static void push_sink(Segm *s, Item *it)
{
    int at = s->n_ready++;
    for (int up; at > 0 && before(it, s->ready[up = (at - 1) / 2]); at = up)
        s->ready[at] = s->ready[up];
    s->ready[at] = it;
}

/* NULL when no sink can run. One that ran out of turn is passed over. */
static Item *next_sink(Segm *s)
{
    while (s->n_ready) {
        Item *top = s->ready[0], *last = s->ready[--s->n_ready];
        int at = 0;
        for (int down; (down = 2 * at + 1) < s->n_ready; at = down) {
            if (down + 1 < s->n_ready && before(s->ready[down + 1], s->ready[down])) down++;
            if (before(last, s->ready[down])) break;
            s->ready[at] = s->ready[down];
        }
        s->ready[at] = last;
        if (!top->done) return top;
    }
    return NULL;
}

static void release(Segm *s, Item *it)
{
    if (--it->waits == 0 && is_ready_sink(it)) push_sink(s, it);
}

static void emit(Segm *s, Item *it)
{
    if (it->done) return;
    it->done = true;
    for (int k = 0; k < it->n->n_in; k++) {
        Item *def = item_of(s, mpri_def(it->n->in[k]));
        if (def && def->free) emit(s, def);
    }
    s->order[s->n_order++] = it->n;
    if (it->free) return;
    for (int i = 0; i < it->n->n_out; i++)
        for (const Use *u = it->n->out[i] ? it->n->out[i]->uses : NULL; u; u = u->next) {
            Item *user = item_of(s, u->user);
            if (user) release(s, user);
        }
    for (int e = s->edge[it - s->items]; e; e = s->next_edge[e - 1])
        release(s, &s->items[s->target[e - 1]]);
}

static mpr_status schedule_backward(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    Segm s = {.g = g};
    Node *end = NULL;
    for (Node *n = g->first; n; n = n->next) {
        if (n->segment == SEG_BACKWARD) s.n++;
        if (n->segment > SEG_BACKWARD && !end) end = n;
    }
    s.items = ARENA_ARRAY(ctx->scratch, Item, s.n);
    s.order = ARENA_ARRAY(ctx->scratch, Node *, s.n);
    s.place = ARENA_ARRAY(ctx->scratch, int, g->next_node_id);
    s.ready = ARENA_ARRAY(ctx->scratch, Item *, s.n);
    if (!s.items || !s.order || !s.place || !s.ready)
        return mpri_err_nomem(err, (size_t)s.n * sizeof *s.items);
    int i = 0;
    for (Node *n = g->first; n; n = n->next)
        if (n->segment == SEG_BACKWARD) {
            s.items[i].n = n;
            s.place[n->id] = ++i;
        }
    classify(&s);
    TRY(order_effects(&s, ctx, err));
    for (i = 0; i < s.n; i++)
        if (is_ready_sink(&s.items[i])) push_sink(&s, &s.items[i]);
    for (i = 0; i < s.n; i++) {
        for (Item *sink = next_sink(&s); sink; sink = next_sink(&s)) emit(&s, sink);
        if (!s.items[i].done && !s.items[i].free && s.items[i].to_slot < 0) emit(&s, &s.items[i]);
    }
    for (Item *sink = next_sink(&s); sink; sink = next_sink(&s)) emit(&s, sink);
    for (i = 0; i < s.n; i++) emit(&s, &s.items[i]);
    for (i = 0; i < s.n; i++) mpri_node_move_before(g, s.order[i], end);
    *changed = true;
    return MPR_OK;
}

/* ---- forward ---- */

static bool from_storage(const Node *n, const bool *written)
{
    if (n->op->flags & (OPF_EFFECT | OPF_RANDOM)) return false;
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = n->in[k];
        if (!v || v->kind == VAL_CONST) continue;
        if (v->kind != VAL_SLOT || written[v->id]) return false;
    }
    return true;
}

static mpr_status sink_forward(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    int *order = ARENA_ARRAY(ctx->scratch, int, g->next_node_id);
    bool *written = ARENA_ARRAY(ctx->scratch, bool, g->n_values);
    if (!order || !written) return mpri_err_nomem(err, (size_t)g->next_node_id * sizeof *order);
    int i = 0;
    for (Node *n = g->first; n; n = n->next) {
        order[n->id] = i++;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] && writes(n, k)) written[n->in[k]->id] = true;
    }
    for (Node *n = g->last, *prev; n; n = prev) {
        prev = n->prev;
        if (n->segment != SEG_FORWARD || !from_storage(n, written)) continue;
        Node *first = NULL;
        bool output = false;
        for (int k = 0; k < n->n_out; k++) {
            if (!n->out[k]) continue;
            output = output || n->out[k]->n_outputs;
            for (Use *u = n->out[k]->uses; u; u = u->next)
                if (!first || order[u->user->id] < order[first->id]) first = u->user;
        }
        if (!first || output || first == n->next) continue;
        n->segment = first->segment;
        order[n->id] = order[first->id];
        mpri_node_move_before(g, n, first);
        *changed = true;
    }
    return MPR_OK;
}

mpr_status mpri_pass_schedule(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    TRY(sink_forward(ctx, g, changed, err));
    return schedule_backward(ctx, g, changed, err);
}
