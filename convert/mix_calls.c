/* Functions of the model. Every call gets the body solved with its own types, and, where the model
 * is painted, a copy of the function as a scope of its own: what two calls decide differently makes
 * two functions of one (rewrite_calls.c). A formal has one type with what the call gives for it.
 *
 * Opsets are those of the function, names of a function are its own, and attributes may refer to
 * those of the call. */
#include <string.h>

#include "convert/mix_parts.h"

enum { F_NAME = 1, F_IN = 4, F_OUT = 5, F_NODE = 7, F_OPSET = 9, F_DOMAIN = 10, F_INFO = 12,
       F_OVERLOAD = 13 };
enum { N_OVERLOAD = 8 };

static const char *key_of(const Mix *m, const char *domain, const char *name, const char *overload)
{
    return mpri_pool_print(m->pool, "%s:%s:%s", domain, name, overload);
}

void mpri_mix_add_function(Mix *m, Tree *f)
{
    const char *domain = mpri_mix_domain(mpri_tree_text(m->pool, f, F_DOMAIN));
    const char *name = mpri_tree_text(m->pool, f, F_NAME);
    mpri_mix_add_name(m->pool, &m->functions,
                      key_of(m, domain, name, mpri_tree_text(m->pool, f, F_OVERLOAD)), f);
    mpri_mix_add_name(m->pool, &m->functions, mpri_pool_print(m->pool, "%s:%s", domain, name), f);
}

const char *mpri_mix_fresh_function(Mix *m, const char *domain, const char *base)
{
    const char *name = base, *key = mpri_pool_print(m->pool, "%s:%s", domain, name);
    for (int i = 1; mpri_mix_name(m->functions, key); i++) {
        name = mpri_pool_print(m->pool, "%s_%d", base, i);
        key = mpri_pool_print(m->pool, "%s:%s", domain, name);
    }
    mpri_mix_add_name(m->pool, &m->functions, key, NULL);
    return name;
}

Tree *mpri_mix_function(const Mix *m, const MixNode *n)
{
    if (!m->functions) return NULL;
    const MixName *e = mpri_mix_name(
        m->functions, key_of(m, n->domain, n->op, mpri_tree_text(m->pool, n->tree, N_OVERLOAD)));
    return e ? e->function : NULL;
}

static int64_t opset_of(const Mix *m, const Tree *f)
{
    int64_t opset = m->opset;
    for (int i = 0; i < f->n; i++)
        if (f->f[i].number == F_OPSET && f->f[i].tree &&
            !*mpri_mix_domain(mpri_tree_text(m->pool, f->f[i].tree, 1)))
            opset = mpri_tree_int(f->f[i].tree, 2, opset);
    return opset;
}

static void read_formals(Mix *m, MixScope *s)
{
    const char **names;
    mpri_mix_read_names(m, s->graph, F_IN, &names, &s->n_inputs);
    s->inputs = mpri_pool_take(m->pool, sizeof(void *) * (size_t)s->n_inputs);
    for (int k = 0; k < s->n_inputs; k++) {
        s->inputs[k] = mpri_mix_define(m, s, names[k]);
        s->inputs[k]->input = true;
        s->inputs[k]->type = mpri_mix_in_type(s->owner, k);
    }
}

static void read_results(Mix *m, MixScope *s)
{
    const char **names;
    mpri_mix_read_names(m, s->graph, F_OUT, &names, &s->n_outputs);
    s->outputs = mpri_pool_take(m->pool, sizeof(void *) * (size_t)s->n_outputs);
    s->output_uses = mpri_pool_take(m->pool, sizeof(void *) * (size_t)s->n_outputs);
    for (int k = 0; k < s->n_outputs; k++) {
        MixValue *v = s->outputs[k] = mpri_mix_find(s, names[k]);
        if (!v) continue;
        mpri_mix_add_use(m, v, (MixUse){.scope = s, .at = k});
        s->output_uses[k] = v->last_use;
    }
}

static MixScope *read_body(Mix *m, MixNode *n, Tree *f, Tree *copy)
{
    MixScope *s = mpri_pool_take(m->pool, sizeof *s);
    *s = (MixScope){.graph = copy, .outer = n->scope, .owner = n, .original = f, .home = s,
                    .attribute = "function", .opset = opset_of(m, f), .node_field = F_NODE,
                    .info_field = F_INFO};
    s->path = mpri_pool_print(m->pool, "%s:%s", n->path, n->op);
    mpri_mix_list_scope(m, s);
    read_formals(m, s);
    mpri_mix_list_nodes(m, s);
    mpri_mix_read_infos(m, s);
    mpri_mix_solve_nodes(m, s);
    read_results(m, s);
    return s;
}

/* Graphs as attributes of a call cannot be followed, and Cast knows bfloat16 from opset 13 on. */
static bool is_painted(const Mix *m, const MixNode *n, const Tree *f)
{
    return mpri_dtype_is_low(m->to) && !n->n_bodies &&
           (m->to != MPR_BFLOAT16 || opset_of(m, f) >= 13);
}

MixType *mpri_mix_call(Mix *m, MixNode *n)
{
    enum { DEEPEST = 16, MOST_CALLS = 10000 };
    Tree *f = mpri_mix_function(m, n);
    MixScope *s;
    if (!f || m->depth == DEEPEST || m->calls >= MOST_CALLS) return NULL;
    m->calls++;
    if (is_painted(m, n, f)) {
        m->depth++;
        s = n->function = read_body(m, n, f, mpri_tree_copy(m->pool, f));
        m->depth--;
        n->bodies = mpri_pool_take(m->pool, sizeof(void *));
        n->bodies[n->n_bodies++] = s;
    } else {
        Mix inner = {.pool = m->pool, .model = m->model, .functions = m->functions,
                     .opset = m->opset, .depth = m->depth + 1, .calls = m->calls};
        s = read_body(&inner, n, f, f);
        m->calls = inner.calls;
    }
    MixType *types = mpri_pool_take(m->pool, sizeof *types * (size_t)(n->n_out + 1));
    for (int k = 0; k < n->n_out; k++)
        types[k] = k < s->n_outputs && s->outputs[k] ? s->outputs[k]->type
                                                     : (MixType){MPR_DTYPE_NONE, WRAP_TENSOR};
    return types;
}

MixValue *mpri_mix_given(MixValue *v)
{
    while (v && v->input && v->scope->original) {
        const MixNode *call = v->scope->owner;
        int k = 0;
        while (k < v->scope->n_inputs && v->scope->inputs[k] != v) k++;
        if (k >= call->n_in || !call->in[k]) break;
        v = call->in[k];
    }
    return v;
}

void mpri_mix_call_units(Mix *m, MixNode *n)
{
    for (int k = 0; k < n->n_in; k++)
        mpri_mix_flow_unit(m, n, mpri_pool_print(m->pool, "I%d", k), k, k, -1, -1);
    for (int k = 0; k < n->n_out; k++)
        mpri_mix_flow_unit(m, n, mpri_pool_print(m->pool, "O%d", k), -1, -1, k, k);
}
