/* Values and nodes, their names and uses. The node list is kept in execution order by its users;
 * this file keeps names unique and use lists exact. Nothing is ever freed: removal unlinks. */
#include "runtime/ir/graph.h"

#include <assert.h>
#include <string.h>

#include "runtime/base/hash.h"
#include "runtime/ir/graph_private.h"

typedef struct NameEntry { /* a name that is or was in use, or is a prefix of fresh ones */
    UT_hash_handle hh;
    bool lost;
    const char *name; /* interned */
    Value *value;     /* NULL when free */
    int next_suffix;
} NameEntry;

struct NameTable {
    NameEntry *entries;
};

bool mpri_graph_grow(Arena *arena, void **rows, int n, int *cap, size_t size)
{
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 16;
    void *p = want > *cap ? mpri_arena_array(arena, (size_t)want, size) : NULL;
    if (!p) return false;
    if (n) memcpy(p, *rows, (size_t)n * size);
    *rows = p;
    *cap = want;
    return true;
}

Graph *mpri_graph_create(Arena *arena, Intern *names, const OpTable *ops)
{
    Graph *g = ARENA_NEW(arena, Graph);
    if (!g) return NULL;
    g->arena = arena;
    g->names = names;
    g->ops = ops;
    g->sym = mpri_symtab_create(arena, names);
    g->by_name = ARENA_NEW(arena, struct NameTable);
    g->name = "";
    return g->sym && g->by_name ? g : NULL;
}

void mpri_graph_move(Graph *g, Arena *arena)
{
    mpri_symtab_move(g->sym, arena);
    mpri_intern_move(g->names, g->arena, arena);
    g->arena = arena;
}

/* ---- names ---- */

static NameEntry *name_entry(const Graph *g, const char *interned)
{
    NameEntry *e;
    HASH_FIND_PTR(g->by_name->entries, &interned, e);
    return e;
}

static NameEntry *name_make(Graph *g, const char *interned)
{
    Arena *hash_arena = g->arena;
    NameEntry *e = name_entry(g, interned);
    if (e) return e;
    e = ARENA_NEW(g->arena, NameEntry);
    if (!e) return NULL;
    e->name = interned;
    HASH_ADD_PTR(g->by_name->entries, name, e);
    return e->lost ? NULL : e;
}

const char *mpri_graph_fresh_name(Graph *g, const char *prefix)
{
    const char *name = mpri_intern(g->names, prefix);
    NameEntry *base = name ? name_make(g, name) : NULL;
    if (!base) return NULL;
    if (!base->value && base->next_suffix == 0) {
        base->next_suffix = 1;
        return name;
    }
    for (;;) {
        if (base->next_suffix == 0) base->next_suffix = 1;
        char *text = mpri_arena_printf(g->arena, "%s_%d", prefix, base->next_suffix++);
        if (!text || !(name = mpri_intern(g->names, text))) return NULL;
        NameEntry *e = name_entry(g, name);
        if (!e || !e->value) return name;
    }
}

Value *mpri_graph_find_value(const Graph *g, const char *name)
{
    const char *interned = mpri_intern_find(g->names, name);
    NameEntry *e = interned ? name_entry(g, interned) : NULL;
    return e ? e->value : NULL;
}

/* Give v the name, or a fresh one made from it when it is taken. */
static bool name_value(Graph *g, Value *v, const char *name)
{
    const char *interned = mpri_intern(g->names, name);
    NameEntry *e = interned ? name_make(g, interned) : NULL;
    if (e && e->value) {
        interned = mpri_graph_fresh_name(g, name);
        e = interned ? name_make(g, interned) : NULL;
    }
    if (!e) return false;
    e->value = v;
    v->name = interned;
    return true;
}

static void forget_name(Graph *g, const Value *v)
{
    NameEntry *e = name_entry(g, v->name);
    if (e && e->value == v) e->value = NULL;
}

void mpri_value_rename(Graph *g, Value *v, const char *name)
{
    if (!strcmp(v->name, name)) return;
    const char *old = v->name;
    forget_name(g, v);
    if (name_value(g, v, name)) return;
    NameEntry *e = name_entry(g, old); /* out of memory: the old name stays */
    if (e) e->value = v;
}

/* ---- values ---- */

static Value *value_create(Graph *g, ValueKind kind, const char *name, DType t, const Shape *shape)
{
    Value *v = ARENA_NEW(g->arena, Value);
    if (!v || !mpri_graph_grow(g->arena, (void **)&g->values, g->n_values, &g->cap_values,
                               sizeof *g->values))
        return NULL;
    v->kind = kind;
    v->dtype = t;
    if (shape) v->shape = *shape;
    v->slot = v->param = -1;
    if (!name_value(g, v, name)) return NULL;
    v->id = g->next_value_id++;
    g->values[g->n_values++] = v;
    return v;
}

Value *mpri_value_input(Graph *g, const char *name, DType t, const Shape *shape)
{
    if (!mpri_graph_grow(g->arena, (void **)&g->inputs, g->n_inputs, &g->cap_inputs,
                         sizeof *g->inputs))
        return NULL;
    Value *v = value_create(g, VAL_INPUT, name ? name : "input", t, shape);
    if (v) g->inputs[g->n_inputs++].value = v;
    return v;
}

Value *mpri_value_const(Graph *g, const char *name, DType t, const Shape *shape, const void *data)
{
    Value *v = value_create(g, VAL_CONST, name ? name : "const", t, shape);
    if (v) v->data = data;
    return v;
}

Value *mpri_value_const_copy(Graph *g, const char *name, DType t, const Shape *shape,
                             const void *data)
{
    static const Shape scalar;
    int64_t n = mpri_shape_elements(shape ? shape : &scalar);
    size_t size = mpri_dtype_size(t);
    if (n < 0 || (size && (uint64_t)n > SIZE_MAX / size)) return NULL;
    void *copy = mpri_arena_alloc(g->arena, (size_t)n * size);
    if (!copy) return NULL;
    if (n > 0) memcpy(copy, data, (size_t)n * size);
    return mpri_value_const(g, name, t, shape, copy);
}

Value *mpri_value_slot(Graph *g, const char *name, SlotClass cls, DType t, const Shape *shape,
                       int param, const void *init, DType init_dtype)
{
    if (!mpri_graph_grow(g->arena, (void **)&g->slots, g->n_slots, &g->cap_slots, sizeof *g->slots))
        return NULL;
    Value *v = value_create(g, VAL_SLOT, name ? name : "slot", t, shape);
    const char *key = !v ? NULL : name ? mpri_intern(g->names, name) : v->name;
    if (!key) return NULL;
    v->slot = g->n_slots;
    v->param = param;
    g->slots[g->n_slots++] = (Slot){key, cls, t, v->shape, param, init, init_dtype, v};
    return v;
}

mpr_status mpri_graph_add_output(Graph *g, const char *name, Value *v, Err *err)
{
    const char *interned = mpri_intern(g->names, name);
    if (!interned || !mpri_graph_grow(g->arena, (void **)&g->outputs, g->n_outputs, &g->cap_outputs,
                                      sizeof *g->outputs))
        return mpri_err_nomem(err, sizeof(GraphOutput));
    for (int i = 0; i < g->n_outputs; i++)
        if (g->outputs[i].name == interned)
            return mpri_err_set(err, MPR_E_INVALID_MODEL, "graph output '%s' is there twice",
                                mpri_err_name(name));
    g->outputs[g->n_outputs++] = (GraphOutput){interned, v};
    v->n_outputs++;
    return MPR_OK;
}

int mpri_graph_param_of(const Graph *g, const char *initializer_name)
{
    for (int i = 0; i < g->n_params; i++)
        if (!strcmp(g->params[i].name, initializer_name)) return i;
    return -1;
}

Param *mpri_graph_add_param(Graph *g)
{
    if (!mpri_graph_grow(g->arena, (void **)&g->params, g->n_params, &g->cap_params,
                         sizeof *g->params))
        return NULL;
    Param *p = &g->params[g->n_params++];
    memset(p, 0, sizeof *p);
    return p;
}

/* ---- uses ---- */

static void use_add(Node *n, int index)
{
    Value *v = n->in[index];
    Use *u = &n->use[index];
    *u = (Use){.user = n, .index = index, .next = v->uses};
    if (v->uses) v->uses->prev = u;
    v->uses = u;
    v->n_uses++;
}

static void use_remove(Node *n, int index)
{
    Value *v = n->in[index];
    Use *u = &n->use[index];
    if (u->prev)
        u->prev->next = u->next;
    else
        v->uses = u->next;
    if (u->next) u->next->prev = u->prev;
    u->next = u->prev = NULL;
    v->n_uses--;
}

void mpri_node_set_input(Node *n, int index, Value *v)
{
    assert(index >= 0 && index < n->n_in);
    if (n->in[index] == v) return;
    if (n->in[index]) use_remove(n, index);
    n->in[index] = v;
    if (v) use_add(n, index);
}

mpr_status mpri_node_add_input(Graph *g, Node *n, Value *v, Err *err)
{
    Value **in = ARENA_ARRAY(g->arena, Value *, n->n_in + 1);
    Use *use = ARENA_ARRAY(g->arena, Use, n->n_in + 1);
    if (!in || !use) return mpri_err_nomem(err, (size_t)(n->n_in + 1) * sizeof(Use));
    for (int i = 0; i < n->n_in; i++) { /* uses live in the array: all of them move */
        in[i] = n->in[i];
        if (in[i]) use_remove(n, i);
    }
    n->in = in;
    n->use = use;
    n->n_in++;
    in[n->n_in - 1] = v;
    for (int i = 0; i < n->n_in; i++)
        if (in[i]) use_add(n, i);
    return MPR_OK;
}

void mpri_value_replace(Graph *g, Value *from, Value *to)
{
    if (from == to) return;
    while (from->uses) mpri_node_set_input(from->uses->user, from->uses->index, to);
    for (int i = 0; from->n_outputs > 0 && i < g->n_outputs; i++) {
        if (g->outputs[i].value != from) continue;
        g->outputs[i].value = to;
        from->n_outputs--;
        to->n_outputs++;
    }
}

/* ---- nodes ---- */

static void node_link(Graph *g, Node *n, Node *before)
{
    n->next = before;
    n->prev = before ? before->prev : g->last;
    if (n->prev)
        n->prev->next = n;
    else
        g->first = n;
    if (before)
        before->prev = n;
    else
        g->last = n;
    n->linked = true;
    g->n_nodes++;
}

static void node_unlink(Graph *g, Node *n)
{
    if (n->prev)
        n->prev->next = n->next;
    else
        g->first = n->next;
    if (n->next)
        n->next->prev = n->prev;
    else
        g->last = n->prev;
    n->next = n->prev = NULL;
    n->linked = false;
    g->n_nodes--;
}

/* Parameters of a new node: a copy, or the defaults. */
static bool node_params(Graph *g, Node *n, const void *params)
{
    if (n->op->params_size == 0) return true;
    n->params = mpri_arena_alloc(g->arena, n->op->params_size);
    if (!n->params) return false;
    if (params) return mpri_params_copy(n->op, n->params, params, g->arena, g->names);
    mpri_params_default(n->op, n->params);
    return true;
}

Node *mpri_node_create(Graph *g, Node *before, const OpDef *op, const char *name,
                       const void *params, int n_in, Value *const *in, int n_out)
{
    Node *n = ARENA_NEW(g->arena, Node);
    if (!n) return NULL;
    n->op = op;
    n->name = mpri_intern(g->names, name ? name : "");
    n->n_in = n_in;
    n->n_out = n_out;
    n->in = ARENA_ARRAY(g->arena, Value *, n_in);
    n->use = ARENA_ARRAY(g->arena, Use, n_in);
    n->out = ARENA_ARRAY(g->arena, Value *, n_out);
    if (!n->name || !n->in || !n->use || !n->out || !node_params(g, n, params)) return NULL;
    static const Shape unknown = {.rank = MPRI_RANK_UNKNOWN};
    for (int i = 0; i < n_out; i++) {
        n->out[i] =
            value_create(g, VAL_NODE, n->name[0] ? n->name : op->name, MPR_DTYPE_NONE, &unknown);
        if (!n->out[i]) return NULL;
        n->out[i]->def = n;
        n->out[i]->def_index = i;
    }
    n->id = g->next_node_id++;
    for (int i = 0; i < n_in; i++) {
        n->in[i] = in[i];
        if (in[i]) use_add(n, i);
    }
    if (before)
        n->segment = before->segment;
    else if (g->last)
        n->segment = g->last->segment;
    node_link(g, n, before);
    return n;
}

void mpri_node_move_before(Graph *g, Node *n, Node *before)
{
    if (n == before || n->next == before) return;
    node_unlink(g, n);
    node_link(g, n, before);
}

void mpri_node_remove(Graph *g, Node *n)
{
    if (!n->linked) return;
    for (int i = 0; i < n->n_out; i++) {
        assert(!n->out[i] || (n->out[i]->n_uses == 0 && n->out[i]->n_outputs == 0));
        if (n->out[i]) forget_name(g, n->out[i]);
    }
    for (int i = 0; i < n->n_in; i++) mpri_node_set_input(n, i, NULL);
    node_unlink(g, n);
}

mpr_status mpri_node_add_output(Graph *g, Node *n, Err *err)
{
    static const Shape unknown = {.rank = MPRI_RANK_UNKNOWN};
    int at = 0;
    while (at < n->n_out && n->out[at]) at++;
    if (at == n->n_out) {
        Value **out = ARENA_ARRAY(g->arena, Value *, n->n_out + 1);
        if (!out) return mpri_err_nomem(err, sizeof *out * (size_t)(n->n_out + 1));
        for (int i = 0; i < n->n_out; i++) out[i] = n->out[i];
        n->out = out;
        n->n_out++;
    }
    Value *v =
        value_create(g, VAL_NODE, n->name[0] ? n->name : n->op->name, MPR_DTYPE_NONE, &unknown);
    if (!v) return mpri_err_nomem(err, sizeof *v);
    v->def = n;
    v->def_index = at;
    n->out[at] = v;
    return MPR_OK;
}

void mpri_node_drop_output(Graph *g, Node *n, int i)
{
    Value *v = n->out[i];
    if (!v) return;
    assert(v->n_uses == 0 && v->n_outputs == 0);
    forget_name(g, v);
    v->def = NULL;
    n->out[i] = NULL;
}

void mpri_node_set_origin(Graph *g, Node *n, const Node *from)
{
    if (n == from || from->origin.n == 0) return;
    int *v = ARENA_ARRAY(g->arena, int, n->origin.n + from->origin.n);
    if (!v)
        return; /* origins serve reports and conversion only; the next allocation reports the
                   failure */
    int count = n->origin.n;
    if (count) memcpy(v, n->origin.v, (size_t)count * sizeof *v);
    for (int i = 0; i < from->origin.n; i++) {
        int k = 0;
        while (k < count && v[k] != from->origin.v[i]) k++;
        if (k == count) v[count++] = from->origin.v[i];
    }
    n->origin = (Origin){v, count};
}

int mpri_graph_sweep(Graph *g)
{
    int removed = 0;
    for (Node *n = g->last, *prev; n; n = prev) { /* backward: one walk reaches whole dead chains */
        prev = n->prev;
        bool used = (n->op->flags & OPF_EFFECT) != 0;
        for (int i = 0; i < n->n_out && !used; i++)
            used = n->out[i] && (n->out[i]->n_uses > 0 || n->out[i]->n_outputs > 0);
        if (used) continue;
        mpri_node_remove(g, n);
        removed++;
    }
    return removed;
}

bool mpri_graph_adopt_value(Graph *g, Value *v)
{
    NameEntry *e = name_make(g, v->name);
    if (!e) return false;
    e->value = v;
    return true;
}

void mpri_graph_adopt_node(Graph *g, Node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i]) use_add(n, i);
    node_link(g, n, NULL);
}
