/* Deep copy of a graph. Ids are kept, so a side array made for the original fits the copy, and
 * pointers are remapped by id. A value is live in the copy when its name is: names of removed nodes
 * stay free. */
#include <string.h>

#include "runtime/ir/graph_private.h"

static void *copy_rows(Arena *arena, const void *rows, int n, size_t size)
{
    void *p = mpri_arena_array(arena, (size_t)n, size);
    if (p && n) memcpy(p, rows, (size_t)n * size);
    return p;
}

static bool clone_values(Graph *c, const Graph *g)
{
    c->values = ARENA_ARRAY(c->arena, Value *, g->n_values);
    Value *all = ARENA_ARRAY(c->arena, Value, g->n_values);
    if (!c->values || !all) return false;
    c->n_values = c->cap_values = g->n_values;
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i];
        Value *w = &all[i];
        *w = *v;
        w->uses = NULL;
        w->n_uses = 0;
        w->def = NULL;
        c->values[i] = w;
        int64_t n = v->content ? mpri_shape_elements(&v->shape) : 0;
        if (n > 0 && !(w->content = mpri_arena_dup(c->arena, v->content, (size_t)n * sizeof(Dim))))
            return false;
        if (mpri_graph_find_value(g, v->name) == v && !mpri_graph_adopt_value(c, w)) return false;
    }
    return true;
}

static Node *clone_node(Graph *c, const Node *n)
{
    Node *m = ARENA_NEW(c->arena, Node);
    if (!m) return NULL;
    *m = *n;
    m->in = ARENA_ARRAY(c->arena, Value *, n->n_in);
    m->use = ARENA_ARRAY(c->arena, Use, n->n_in);
    m->out = ARENA_ARRAY(c->arena, Value *, n->n_out);
    m->origin.v = copy_rows(c->arena, n->origin.v, n->origin.n, sizeof(int));
    if (!m->in || !m->use || !m->out || !m->origin.v) return NULL;
    if (n->params) {
        m->params = mpri_arena_alloc(c->arena, n->op->params_size);
        if (!m->params || !mpri_params_copy(n->op, m->params, n->params, c->arena, c->names))
            return NULL;
    }
    for (int i = 0; i < n->n_in; i++) m->in[i] = n->in[i] ? c->values[n->in[i]->id] : NULL;
    for (int i = 0; i < n->n_out; i++) {
        if (!n->out[i]) continue;
        m->out[i] = c->values[n->out[i]->id];
        m->out[i]->def = m;
    }
    return m;
}

static bool clone_tables(Graph *c, const Graph *g)
{
    c->inputs = copy_rows(c->arena, g->inputs, g->n_inputs, sizeof *g->inputs);
    c->outputs = copy_rows(c->arena, g->outputs, g->n_outputs, sizeof *g->outputs);
    c->slots = copy_rows(c->arena, g->slots, g->n_slots, sizeof *g->slots);
    c->params = copy_rows(c->arena, g->params, g->n_params, sizeof *g->params);
    if (!c->inputs || !c->outputs || !c->slots || !c->params) return false;
    c->n_inputs = c->cap_inputs = g->n_inputs;
    c->n_outputs = c->cap_outputs = g->n_outputs;
    c->n_slots = c->cap_slots = g->n_slots;
    c->n_params = c->cap_params = g->n_params;
    for (int i = 0; i < c->n_inputs; i++) c->inputs[i].value = c->values[g->inputs[i].value->id];
    for (int i = 0; i < c->n_outputs; i++) c->outputs[i].value = c->values[g->outputs[i].value->id];
    for (int i = 0; i < c->n_slots; i++)
        if (g->slots[i].value) c->slots[i].value = c->values[g->slots[i].value->id];
    for (int i = 0; i < c->n_params; i++) {
        Param *p = &c->params[i];
        if (p->value) p->value = c->values[p->value->id];
        p->copies = copy_rows(c->arena, p->copies, p->n_copies, sizeof *p->copies);
        if (!p->copies) return false;
    }
    return true;
}

Graph *mpri_graph_clone(const Graph *g, Arena *arena)
{
    Intern *names = mpri_intern_child(arena, g->names);
    Graph *c = names ? mpri_graph_create(arena, names, g->ops) : NULL;
    if (!c) return NULL;
    c->name = g->name;
    c->sym = mpri_symtab_clone(g->sym, arena, names);
    if (!c->sym || !clone_values(c, g) || !clone_tables(c, g)) return NULL;
    for (const Node *n = g->first; n; n = n->next) {
        Node *m = clone_node(c, n);
        if (!m) return NULL;
        mpri_graph_adopt_node(c, m);
    }
    c->next_node_id = g->next_node_id;
    c->next_value_id = g->next_value_id;
    return c;
}
