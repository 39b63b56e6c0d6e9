/* The validator: what every pass may rely on. A finding is a bug of the pass named `after`, hence
 * MPR_E_INTERNAL; all findings are collected. */
#include <stdio.h>
#include <string.h>

#include "runtime/ir/graph.h"

typedef struct Check {
    const Graph *g;
    const char *after;
    Err *err;
    const Node *n; /* node being checked, or NULL */
} Check;

static void fault(Check *c, const char *fmt, ...) MPRI_PRINTF(2, 3);
static void fault(Check *c, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->n)
        mpri_err_finding(c->err, MPR_E_INTERNAL, "after %s: node '%s' (%s): %s", c->after,
                         mpri_err_name(c->n->name), c->n->op->name, text);
    else
        mpri_err_finding(c->err, MPR_E_INTERNAL, "after %s: %s", c->after, text);
}

static bool known_value(const Graph *g, const Value *v)
{
    return v->id >= 0 && v->id < g->n_values && g->values[v->id] == v;
}

static void check_arity(Check *c)
{
    const OpDef *op = c->n->op;
    int n_in = c->n->n_in, n_out = c->n->n_out;
    if (n_in < op->min_in || (op->max_in >= 0 && n_in > op->max_in))
        fault(c, "%d inputs, allowed %d to %d", n_in, op->min_in, op->max_in);
    if (n_out < op->min_out || (op->max_out >= 0 && n_out > op->max_out))
        fault(c, "%d outputs, allowed %d to %d", n_out, op->min_out, op->max_out);
    for (int i = 0; i < n_in && i < op->min_in; i++)
        if (!c->n->in[i] && !mpri_op_mask(op->optional_in, i))
            fault(c, "required input %d is absent", i);
}

/* The neighbours in the list agree; check_values counts the whole list. */
static bool in_use_list(const Value *v, const Use *u)
{
    bool head = u->prev ? u->prev->next == u : v->uses == u;
    return head && (!u->next || u->next->prev == u);
}

/* `seen[id]`: the value is defined before this node. */
static void check_inputs(Check *c, const bool *seen)
{
    for (int i = 0; i < c->n->n_in; i++) {
        const Value *v = c->n->in[i];
        const Use *u = &c->n->use[i];
        if (!v) continue;
        if (!known_value(c->g, v)) {
            fault(c, "input %d is a value of another graph", i);
            continue;
        }
        if (v->kind == VAL_NODE && !seen[v->id])
            fault(c, "input %d '%s' is used before its definition", i, mpri_err_name(v->name));
        if (u->user != c->n || u->index != i || !in_use_list(v, u))
            fault(c, "input %d '%s' is not in the value's use list", i, mpri_err_name(v->name));
        if ((c->n->op->flags & OPF_EFFECT) && mpri_op_mask(c->n->op->writes, i) &&
            v->kind != VAL_SLOT)
            fault(c, "input %d '%s' is written but is no slot", i, mpri_err_name(v->name));
    }
}

/* What an unknown operator makes may have no type, and so may what is computed from it. */
static bool may_be_untyped(const Node *n)
{
    if (n->op->flags & OPF_OPAQUE) return true;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->dtype == MPR_DTYPE_NONE) return true;
    return false;
}

static void check_outputs(Check *c, bool *seen)
{
    for (int i = 0; i < c->n->n_out; i++) {
        const Value *v = c->n->out[i];
        if (!v) continue;
        if (!known_value(c->g, v)) {
            fault(c, "output %d is a value of another graph", i);
            continue;
        }
        if (v->kind != VAL_NODE || v->def != c->n || v->def_index != i)
            fault(c, "output %d '%s' does not point back to the node", i, mpri_err_name(v->name));
        if (seen[v->id]) fault(c, "output %d '%s' is defined twice", i, mpri_err_name(v->name));
        if (v->dtype == MPR_DTYPE_NONE && !may_be_untyped(c->n))
            fault(c, "output %d '%s' has no type", i, mpri_err_name(v->name));
        seen[v->id] = true;
    }
}

static void check_attributes(Check *c)
{
    const OpDef *op = c->n->op;
    if (op->params_size && !c->n->params) {
        fault(c, "no attributes, although the operator has %zu bytes of them", op->params_size);
        return;
    }
    for (const AttrRow *r = op->attrs; r && r->name; r++) {
        const char *field = (const char *)c->n->params + r->offset;
        if (mpri_params_row_allows(r, field)) continue;
        if (r->kind == ATTR_INT)
            fault(c, "attribute %s is %lld, allowed %lld to %lld", r->name, (long long)*(const int64_t *)field,
                  (long long)r->min_int, (long long)r->max_int);
        else
            fault(c, "attribute %s is '%s', allowed %s", r->name, mpri_err_name(*(const char *const *)field), r->choices);
    }
}

static void check_list(Check *c)
{
    int count = 0;
    const Node *prev = NULL;
    for (const Node *n = c->g->first; n && count <= c->g->n_nodes; n = n->next, count++) {
        if (n->prev != prev || !n->linked) fault(c, "the node list is broken at node %d", n->id);
        prev = n;
    }
    if (count != c->g->n_nodes || c->g->last != prev)
        fault(c, "the node list has %d nodes, counted %d", c->g->n_nodes, count);
}

/* Counts of uses and outputs, by value; names point to their value. */
static void check_values(Check *c, const int *n_outputs)
{
    for (int i = 0; i < c->g->n_values; i++) {
        const Value *v = c->g->values[i];
        int uses = 0;
        for (const Use *u = v->uses; u && uses <= v->n_uses; u = u->next, uses++)
            if (!u->user->linked || u->index >= u->user->n_in || u->user->in[u->index] != v)
                fault(c, "value '%s' has a use that is none", mpri_err_name(v->name));
        if (uses != v->n_uses)
            fault(c, "value '%s' counts %d uses, has %d", mpri_err_name(v->name), v->n_uses, uses);
        if (n_outputs[i] != v->n_outputs)
            fault(c, "value '%s' counts %d graph outputs, has %d", mpri_err_name(v->name),
                  v->n_outputs, n_outputs[i]);
        bool live = v->kind != VAL_NODE || (v->def && v->def->linked);
        if (live && mpri_graph_find_value(c->g, v->name) != v)
            fault(c, "the name '%s' belongs to another value", mpri_err_name(v->name));
    }
}

static void check_tables(Check *c, const bool *seen)
{
    const Graph *g = c->g;
    for (int i = 0; i < g->n_outputs; i++) {
        const Value *v = g->outputs[i].value;
        if (!v || !known_value(g, v))
            fault(c, "graph output '%s' has no value", mpri_err_name(g->outputs[i].name));
        else if (v->kind == VAL_NODE && !seen[v->id])
            fault(c, "graph output '%s' has no definition", mpri_err_name(g->outputs[i].name));
    }
    for (int i = 0; i < g->n_inputs; i++)
        if (!g->inputs[i].value || g->inputs[i].value->kind != VAL_INPUT)
            fault(c, "graph input %d has no value", i);
    for (int i = 0; i < g->n_slots; i++) {
        const Slot *s = &g->slots[i];
        if (!s->value || s->value->kind != VAL_SLOT || s->value->slot != i ||
            s->value->dtype != s->dtype || !mpri_shape_equal(&s->value->shape, &s->shape))
            fault(c, "slot '%s' and its value disagree", mpri_err_name(s->name));
    }
    for (int i = 0; i < g->n_params; i++)
        if (g->params[i].value && !known_value(g, g->params[i].value))
            fault(c, "parameter '%s' has a value of another graph",
                  mpri_err_name(g->params[i].name));
}

mpr_status mpri_graph_validate(const Graph *g, const char *after, Err *err)
{
    Arena scratch;
    mpri_arena_init(&scratch, g->arena->alloc, 0);
    Check c = {g, after ? after : "construction", err, NULL};
    bool *seen = ARENA_ARRAY(&scratch, bool, g->n_values + 1);
    int *n_outputs = ARENA_ARRAY(&scratch, int, g->n_values + 1);
    if (!seen || !n_outputs) {
        mpri_arena_destroy(&scratch);
        return mpri_err_nomem(err, (size_t)g->n_values * sizeof(int));
    }
    check_list(&c);
    if (err->code == MPR_OK) {
        for (const Node *n = g->first; n; n = n->next) {
            c.n = n;
            check_arity(&c);
            check_inputs(&c, seen);
            check_outputs(&c, seen);
            check_attributes(&c);
        }
        c.n = NULL;
        check_tables(&c, seen);
        for (int i = 0; i < g->n_outputs; i++)
            if (g->outputs[i].value && known_value(g, g->outputs[i].value))
                n_outputs[g->outputs[i].value->id]++;
        check_values(&c, n_outputs);
    }
    mpri_arena_destroy(&scratch);
    return err->code;
}
