/* Names resolve lexically: a value of an outer scope that a body reads counts as a use in the body.
 * Types are solved forward only; what a consumer demands proves nothing about its producer. */
#include <string.h>

#include "convert/mix_parts.h"
#include "importer/wire.h"

enum { G_NODE = 1, G_INIT = 5, G_IN = 11, G_OUT = 12, G_INFO = 13, G_SPARSE = 15 };

const char *mpri_mix_domain(const char *domain)
{
    return strcmp(domain, "ai.onnx") ? domain : "";
}

/* ---- names ---- */

const MixName *mpri_mix_name(const MixName *names, const char *name)
{
    const MixName *e;
    HASH_FIND(hh, names, name, strlen(name), e);
    return e;
}

void mpri_mix_add_name(Pool *pool, MixName **names, const char *name, Tree *function)
{
    Arena *hash_arena = pool->arena;
    if (!*name || mpri_mix_name(*names, name)) return;
    MixName *e = mpri_pool_take(pool, sizeof *e);
    *e = (MixName){.name = name, .function = function};
    HASH_ADD_KEYPTR(hh, *names, e->name, strlen(e->name), e);
    if (e->lost) longjmp(pool->full, 1);
}

/* Names of a function are its own. */
static MixName **names_of(Mix *m, const MixScope *s)
{
    return s && s->home ? &s->home->names : &m->names;
}

const char *mpri_mix_fresh_in(Mix *m, const MixScope *s, const char *base)
{
    MixName **names = names_of(m, s);
    const char *name = mpri_pool_text(m->pool, base, strlen(base));
    for (int i = 1; mpri_mix_name(*names, name); i++)
        name = mpri_pool_print(m->pool, "%s_%d", base, i);
    mpri_mix_add_name(m->pool, names, name, NULL);
    return name;
}

const char *mpri_mix_fresh(Mix *m, const char *base)
{
    return mpri_mix_fresh_in(m, NULL, base);
}

MixValue *mpri_mix_find(const MixScope *s, const char *name)
{
    MixValue *v = NULL;
    if (!*name) return NULL;
    for (; s && !v; s = s->original ? NULL : s->outer)
        HASH_FIND(hh, s->values, name, strlen(name), v);
    return v;
}

MixValue *mpri_mix_define(Mix *m, MixScope *s, const char *name)
{
    Arena *hash_arena = m->pool->arena;
    MixValue *v;
    HASH_FIND(hh, s->values, name, strlen(name), v);
    if (v) return v;
    v = mpri_pool_take(m->pool, sizeof *v);
    *v = (MixValue){.name = name, .scope = s, .order = m->n_values, .known_as = name};
    HASH_ADD_KEYPTR(hh, s->values, v->known_as, strlen(v->known_as), v);
    if (v->lost) longjmp(m->pool->full, 1);
    mpri_pool_grow(m->pool, &m->values, m->n_values, &m->cap_values, sizeof(void *));
    m->values[m->n_values++] = v;
    mpri_mix_add_name(m->pool, names_of(m, s), name, NULL);
    return v;
}

/* ---- scopes ---- */

static MixScope *read_scope(Mix *m, Tree *graph, MixScope *outer, MixNode *owner,
                            const char *attribute);

void mpri_mix_add_use(Mix *m, MixValue *v, MixUse use)
{
    MixUse *u = mpri_pool_take(m->pool, sizeof *u);
    *u = use;
    if (v->last_use) v->last_use->next = u;
    else v->uses = u;
    v->last_use = u;
}

void mpri_mix_read_names(Mix *m, const Tree *t, uint32_t number, const char ***names, int *n)
{
    *n = 0;
    for (int i = 0; i < t->n; i++) *n += t->f[i].number == number;
    *names = mpri_pool_take(m->pool, sizeof(char *) * (size_t)*n);
    for (int i = 0, k = 0; i < t->n; i++)
        if (t->f[i].number == number)
            (*names)[k++] = mpri_pool_text(m->pool, t->f[i].bytes, t->f[i].len);
}

static void read_node(Mix *m, MixScope *s, MixNode *n, Tree *tree, int index)
{
    Pool *p = m->pool;
    *n = (MixNode){.scope = s, .tree = tree, .index = index};
    n->op = mpri_tree_text(p, tree, 4);
    n->name = mpri_tree_text(p, tree, 3);
    n->domain = mpri_mix_domain(mpri_tree_text(p, tree, 7));
    mpri_mix_add_name(p, names_of(m, s), n->name, NULL);
    const char *label = *n->name ? n->name : mpri_pool_print(p, "#%d", index);
    n->path = *s->path ? mpri_pool_print(p, "%s/%s", s->path, label) : label;
    mpri_mix_read_names(m, tree, 1, &n->in_name, &n->n_in);
    mpri_mix_read_names(m, tree, 2, &n->out_name, &n->n_out);
    n->in = mpri_pool_take(p, sizeof(void *) * (size_t)n->n_in);
    n->out = mpri_pool_take(p, sizeof(void *) * (size_t)n->n_out);
    n->in_unit = mpri_pool_take(p, sizeof(void *) * (size_t)n->n_in);
    n->out_unit = mpri_pool_take(p, sizeof(void *) * (size_t)n->n_out);
    n->call = mpri_mix_function(m, n);
    if (!*n->domain && !n->call) n->row = mpri_ports_find(n->op, s->opset);
    for (int k = 0; k < n->n_out; k++) {
        if (!*n->out_name[k]) continue;
        n->out[k] = mpri_mix_define(m, s, n->out_name[k]);
        n->out[k]->maker = n;
    }
}

static void read_bodies(Mix *m, MixNode *n)
{
    int count = 0;
    for (int i = 0; i < n->tree->n; i++) {
        const Tree *a = n->tree->f[i].number == 5 ? n->tree->f[i].tree : NULL;
        for (int k = 0; a && k < a->n; k++) count += a->f[k].number == 6 || a->f[k].number == 11;
    }
    if (!count) return;
    n->bodies = mpri_pool_take(m->pool, sizeof(void *) * (size_t)count);
    for (int i = 0; i < n->tree->n; i++) {
        const Tree *a = n->tree->f[i].number == 5 ? n->tree->f[i].tree : NULL;
        for (int k = 0; a && k < a->n; k++)
            if ((a->f[k].number == 6 || a->f[k].number == 11) && a->f[k].tree)
                n->bodies[n->n_bodies++] = read_scope(m, a->f[k].tree, n->scope, n,
                                                      mpri_tree_text(m->pool, a, 1));
    }
}

/* First input of the node that is an input of the body, and what stands for it in there. */
static int formal_of(const MixNode *n, int k)
{
    if (!strcmp(n->op, "Scan") && n->scope->opset < 9) return k - 1;
    return k;
}

static void solve_formals(MixScope *s)
{
    const MixNode *n = s->owner;
    if (!n || *n->domain) return;
    bool map = !strcmp(n->op, "SequenceMap");
    for (int k = 0; k < n->n_in; k++) {
        int f = formal_of(n, k);
        MixType t = mpri_mix_in_type(n, k);
        if (f < 0 || f >= s->n_inputs || !t.elem) continue;
        if (map && t.wrap == WRAP_SEQUENCE) t.wrap = WRAP_TENSOR;
        if (strcmp(n->op, "Loop") || k >= 2) s->inputs[f]->type = t;
    }
}

static void read_tensor_value(Mix *m, MixScope *s, Tree *tensor, bool sparse)
{
    const TreeField *values = sparse ? mpri_tree_find(tensor, 1) : NULL;
    const Tree *named = sparse ? (values ? values->tree : NULL) : tensor;
    if (!named) return;
    MixValue *v = mpri_mix_define(m, s, mpri_tree_text(m->pool, named, 8));
    v->initializer = true;
    v->sparse = sparse;
    v->pinned = v->pinned || v->input;
    if (!sparse) v->tensor = tensor;
    v->type = (MixType){(DType)mpri_tree_int(named, 2, 0), WRAP_TENSOR};
}

static void read_ends(Mix *m, MixScope *s)
{
    Tree *g = s->graph;
    for (int i = 0; i < g->n; i++) {
        s->n_inputs += g->f[i].number == G_IN;
        s->n_outputs += g->f[i].number == G_OUT;
        s->n_nodes += g->f[i].number == G_NODE;
    }
    s->inputs = mpri_pool_take(m->pool, sizeof(void *) * (size_t)s->n_inputs);
    s->outputs = mpri_pool_take(m->pool, sizeof(void *) * (size_t)s->n_outputs);
    s->output_uses = mpri_pool_take(m->pool, sizeof(void *) * (size_t)s->n_outputs);
    for (int i = 0, k = 0; i < g->n; i++) {
        if (g->f[i].number != G_IN || !g->f[i].tree) continue;
        MixValue *v = mpri_mix_define(m, s, mpri_tree_text(m->pool, g->f[i].tree, 1));
        v->input = true;
        v->info = g->f[i].tree;
        v->type = mpri_mix_info_type(v->info);
        s->inputs[k++] = v;
    }
    solve_formals(s);
    for (int i = 0; i < g->n; i++)
        if ((g->f[i].number == G_INIT || g->f[i].number == G_SPARSE) && g->f[i].tree)
            read_tensor_value(m, s, g->f[i].tree, g->f[i].number == G_SPARSE);
}

void mpri_mix_read_infos(Mix *m, MixScope *s)
{
    for (int i = 0; i < s->graph->n; i++) {
        const TreeField *f = &s->graph->f[i];
        bool end = f->number == G_OUT && !s->original;
        if ((f->number != s->info_field && !end) || !f->tree) continue;
        MixValue *v = mpri_mix_find(s, mpri_tree_text(m->pool, f->tree, 1));
        if (v && v->scope == s && !v->info) v->info = f->tree;
    }
}

static void read_outputs(Mix *m, MixScope *s)
{
    for (int i = 0, k = 0; i < s->graph->n; i++) {
        if (s->graph->f[i].number != G_OUT || !s->graph->f[i].tree) continue;
        MixValue *v = mpri_mix_find(s, mpri_tree_text(m->pool, s->graph->f[i].tree, 1));
        s->outputs[k] = v;
        if (v) {
            mpri_mix_add_use(m, v, (MixUse){.scope = s, .at = k});
            s->output_uses[k] = v->last_use;
            if (!s->outer) v->output = true;
        }
        k++;
    }
}

void mpri_mix_list_nodes(Mix *m, MixScope *s)
{
    int count = 0;
    for (int i = 0; i < s->graph->n; i++) count += s->graph->f[i].number == s->node_field;
    s->nodes = mpri_pool_take(m->pool, sizeof(void *) * (size_t)count);
    s->n_nodes = 0;
    for (int i = 0; i < s->graph->n; i++)
        if (s->graph->f[i].number == s->node_field && s->graph->f[i].tree) {
            s->nodes[s->n_nodes] = mpri_pool_take(m->pool, sizeof(MixNode));
            read_node(m, s, s->nodes[s->n_nodes], s->graph->f[i].tree, s->n_nodes);
            s->n_nodes++;
        }
}

void mpri_mix_solve_nodes(Mix *m, MixScope *s)
{
    for (int i = 0; i < s->n_nodes; i++) {
        MixNode *n = s->nodes[i];
        mpri_pool_grow(m->pool, &m->nodes, m->n_nodes, &m->cap_nodes, sizeof(void *));
        n->number = m->n_nodes;
        m->nodes[m->n_nodes++] = n;
        for (int j = 0; j < n->n_in; j++) {
            n->in[j] = mpri_mix_find(s, n->in_name[j]);
            if (n->in[j]) mpri_mix_add_use(m, n->in[j], (MixUse){.node = n, .scope = s, .at = j});
        }
        read_bodies(m, n);
        MixType *given = n->call ? mpri_mix_call(m, n) : NULL;
        for (int j = 0; j < n->n_out; j++) {
            if (!n->out[j]) continue;
            MixType t = given ? given[j] : mpri_mix_output_type(m, n, j);
            n->out[j]->type = t.elem ? t : mpri_mix_info_type(n->out[j]->info);
        }
        if (!strcmp(n->op, "Constant") && !*n->domain && n->n_out && n->out[0])
            n->out[0]->tensor = mpri_mix_attribute_tensor(n, "value");
    }
}

void mpri_mix_list_scope(Mix *m, MixScope *s)
{
    s->number = m->n_scopes;
    s->id = s->home ? -1 : m->n_graphs++;
    mpri_pool_grow(m->pool, &m->scopes, m->n_scopes, &m->cap_scopes, sizeof(void *));
    m->scopes[m->n_scopes++] = s;
}

static MixScope *read_scope(Mix *m, Tree *graph, MixScope *outer, MixNode *owner,
                            const char *attribute)
{
    MixScope *s = mpri_pool_take(m->pool, sizeof *s);
    *s = (MixScope){.graph = graph, .outer = outer, .owner = owner, .attribute = attribute,
                    .node_field = G_NODE, .info_field = G_INFO};
    s->home = outer ? outer->home : NULL;
    s->opset = outer ? outer->opset : m->opset;
    s->path = owner ? mpri_pool_print(m->pool, "%s.%s", owner->path, attribute) : "";
    mpri_mix_list_scope(m, s);
    read_ends(m, s);
    mpri_mix_list_nodes(m, s);
    mpri_mix_read_infos(m, s);
    mpri_mix_solve_nodes(m, s);
    read_outputs(m, s);
    return s;
}

/* ---- the model ---- */

/* Names that training_info and annotations use keep their contents. */
static void pin_named(Mix *m, const Tree *t, uint32_t number)
{
    for (int i = 0; i < t->n; i++) {
        const TreeField *f = &t->f[i];
        if (f->number != number || f->tree) continue;
        for (int k = 0; k < m->n_values; k++) {
            MixValue *v = m->values[k];
            size_t n = strlen(v->name);
            if (v->initializer && n && n <= f->len && memmem(f->bytes, f->len, v->name, n))
                v->pinned = true;
        }
    }
}

void mpri_mix_read(Mix *m)
{
    m->ir_version = mpri_tree_int(m->model, 1, 0);
    for (int i = 0; i < m->model->n; i++) {
        const TreeField *f = &m->model->f[i];
        if (f->number == 8 && f->tree && !*mpri_mix_domain(mpri_tree_text(m->pool, f->tree, 1)))
            m->opset = mpri_tree_int(f->tree, 2, 1);
        if (f->number == 25 && f->tree)
            mpri_mix_add_function(m, f->tree);
    }
    TreeField *g = mpri_tree_find(m->model, 7);
    m->top = read_scope(m, g && g->tree ? g->tree : mpri_tree_new(m->pool), NULL, NULL, "");
    pin_named(m, m->model, 20);
    pin_named(m, m->top->graph, 14);
    for (int i = 0; i < m->top->n_outputs; i++)
        if (m->top->outputs[i]) m->top->outputs[i]->pinned = true;
}
