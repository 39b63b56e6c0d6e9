/* A call becomes copies of the function's nodes: formal names give way to those of the call, inner
 * ones get fresh names, attribute references the attributes of the call or the function's defaults.
 * Copies are looked at again, so calls inside functions go the same way; the importer has refused
 * functions that call themselves. */
#include "convert/calls.h"

#include <inttypes.h>
#include <string.h>

#include "convert/raise.h"
#include "importer/wire.h"

enum { M_GRAPH = 7, M_OPSET = 8, M_TRAINING = 20, M_FUNCTION = 25 };
enum { F_NAME = 1, F_IN = 4, F_OUT = 5, F_NODE = 7, F_OPSET = 9, F_DOMAIN = 10, F_DEFAULT = 11,
       F_INFO = 12, F_OVERLOAD = 13 };
enum { G_NODE = 1, G_INIT = 5, G_IN = 11, G_OUT = 12, G_INFO = 13, G_SPARSE = 15 };
enum { N_IN = 1, N_OUT = 2, N_NAME = 3, N_OP = 4, N_ATTRIBUTE = 5, N_DOMAIN = 7, N_OVERLOAD = 8 };
enum { A_NAME = 1, A_GRAPH = 6, A_GRAPHS = 11, A_REF = 21 };

typedef struct Way { const char *from, *to; bool lost; UT_hash_handle hh; } Way;

typedef struct Env { /* names of a function, or of a graph in it */
    Way *ways;
    struct Env *outer;
} Env;

typedef struct Calls {
    Mix *m;
    int n;
    const Tree *call, *function; /* being taken apart */
    const char *label;           /* in front of new names */
    Err *err;
} Calls;

static Pool *pool(const Calls *c)
{
    return c->m->pool;
}

static const char *text(const Calls *c, const Tree *t, uint32_t number)
{
    return mpri_tree_text(pool(c), t, number);
}

static const char *domain(const Calls *c, const Tree *t, uint32_t number)
{
    const char *d = text(c, t, number);
    return strcmp(d, "ai.onnx") ? d : "";
}

static Tree *function_of(const Calls *c, const Tree *node)
{
    for (int i = 0; i < c->m->model->n; i++) {
        Tree *f = c->m->model->f[i].number == M_FUNCTION ? c->m->model->f[i].tree : NULL;
        if (f && !strcmp(text(c, f, F_NAME), text(c, node, N_OP)) &&
            !strcmp(domain(c, f, F_DOMAIN), domain(c, node, N_DOMAIN)) &&
            !strcmp(text(c, f, F_OVERLOAD), text(c, node, N_OVERLOAD)))
            return f;
    }
    return NULL;
}

/* ---- names ---- */

static const char *look(const Env *e, const char *name)
{
    for (; e; e = e->outer) {
        Way *w;
        HASH_FIND(hh, e->ways, name, strlen(name), w);
        if (w) return w->to;
    }
    return NULL;
}

static void put(Calls *c, Env *e, const char *from, const char *to)
{
    Arena *hash_arena = pool(c)->arena;
    Way *w = mpri_pool_take(pool(c), sizeof *w);
    *w = (Way){.from = from, .to = to};
    HASH_ADD_KEYPTR(hh, e->ways, w->from, strlen(w->from), w);
    if (w->lost) longjmp(pool(c)->full, 1);
}

static const char *fresh(Calls *c, const char *name)
{
    return mpri_mix_fresh(c->m, mpri_pool_print(pool(c), "%s/%s", c->label, name));
}

static void define(Calls *c, Env *e, const char *name)
{
    Way *w;
    HASH_FIND(hh, e->ways, name, strlen(name), w);
    if (*name && !w) put(c, e, name, fresh(c, name));
}

static void rename_field(Calls *c, const Env *e, TreeField *f)
{
    const char *to = look(e, mpri_pool_text(pool(c), f->bytes, f->len));
    if (!to) return;
    f->bytes = (const uint8_t *)to;
    f->len = strlen(to);
}

static const char *nth(const Calls *c, const Tree *t, uint32_t number, int k)
{
    for (int i = 0; i < t->n; i++)
        if (t->f[i].number == number && k-- == 0)
            return t->f[i].len ? mpri_pool_text(pool(c), t->f[i].bytes, t->f[i].len) : "";
    return NULL;
}

/* ---- nodes ---- */

static void rename_node(Calls *c, Env *e, Tree *node);

static void rename_named(Calls *c, const Env *e, Tree *t, uint32_t number)
{
    TreeField *f = t ? mpri_tree_find(t, number) : NULL;
    if (f && f->len) rename_field(c, e, f);
}

static void rename_graph(Calls *c, Env *outer, Tree *g)
{
    Env e = {.outer = outer};
    const char *name;
    for (int i = 0; i < g->n; i++) {
        Tree *t = g->f[i].tree;
        if (t && g->f[i].number == G_IN) define(c, &e, text(c, t, 1));
        if (t && g->f[i].number == G_INIT) define(c, &e, text(c, t, 8));
        TreeField *values = t && g->f[i].number == G_SPARSE ? mpri_tree_find(t, 1) : NULL;
        if (values && values->tree) define(c, &e, text(c, values->tree, 8));
        for (int k = 0; t && g->f[i].number == G_NODE && (name = nth(c, t, N_OUT, k)); k++)
            define(c, &e, name);
    }
    for (int i = 0; i < g->n; i++) {
        Tree *t = g->f[i].tree;
        TreeField *values = t && g->f[i].number == G_SPARSE ? mpri_tree_find(t, 1) : NULL;
        switch (g->f[i].number) {
        case G_IN: case G_OUT: case G_INFO: rename_named(c, &e, t, 1); break;
        case G_INIT: rename_named(c, &e, t, 8); break;
        case G_SPARSE: rename_named(c, &e, values ? values->tree : NULL, 8); break;
        case G_NODE: if (t) rename_node(c, &e, t); break;
        default: break;
        }
    }
}

/* What the call says, else the default of the function; NULL: nothing. */
static const Tree *attribute_of_call(const Calls *c, const char *name)
{
    const Tree *const places[2] = {c->call, c->function};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < places[k]->n; i++) {
            const TreeField *f = &places[k]->f[i];
            if (f->number == (k ? (uint32_t)F_DEFAULT : (uint32_t)N_ATTRIBUTE) && f->tree &&
                !strcmp(text(c, f->tree, A_NAME), name))
                return f->tree;
        }
    return NULL;
}

/* False: the attribute goes. */
static bool fill_attribute(Calls *c, Env *e, TreeField *f)
{
    Tree *a = f->tree;
    const char *ref = text(c, a, A_REF), *name = text(c, a, A_NAME);
    if (*ref) {
        const Tree *given = attribute_of_call(c, ref);
        if (!given) return false;
        f->tree = mpri_tree_copy(pool(c), given);
        TreeField *key = mpri_tree_find(f->tree, A_NAME);
        key->bytes = (const uint8_t *)name;
        key->len = strlen(name);
        return true;
    }
    for (int i = 0; i < a->n; i++)
        if ((a->f[i].number == A_GRAPH || a->f[i].number == A_GRAPHS) && a->f[i].tree)
            rename_graph(c, e, a->f[i].tree);
    return true;
}

static void rename_node(Calls *c, Env *e, Tree *node)
{
    for (int i = 0; i < node->n; i++) {
        TreeField *f = &node->f[i];
        if ((f->number == N_IN || f->number == N_OUT) && f->len) {
            rename_field(c, e, f);
        } else if (f->number == N_NAME && f->len) {
            const char *name = fresh(c, mpri_pool_text(pool(c), f->bytes, f->len));
            f->bytes = (const uint8_t *)name;
            f->len = strlen(name);
        } else if (f->number == N_ATTRIBUTE && f->tree && !fill_attribute(c, e, f)) {
            mpri_tree_remove(node, i--);
        }
    }
}

/* ---- one call ---- */

static Tree *identity(Calls *c, const char *from, const char *to)
{
    Tree *node = mpri_tree_new(pool(c));
    mpri_tree_put_text(pool(c), node, N_IN, from);
    mpri_tree_put_text(pool(c), node, N_OUT, to);
    mpri_tree_put_text(pool(c), node, N_OP, "Identity");
    return node;
}

static void insert(Calls *c, Tree *graph, int *at, Tree *node)
{
    mpri_tree_insert(pool(c), graph, (*at)++, G_NODE, WIRE_BYTES)->tree = node;
}

static void name_formals(Calls *c, Env *e)
{
    const char *formal, *actual;
    for (int k = 0; (formal = nth(c, c->function, F_IN, k)); k++) {
        actual = nth(c, c->call, N_IN, k);
        if (!look(e, formal)) put(c, e, formal, actual ? actual : "");
    }
    for (int k = 0; (formal = nth(c, c->function, F_OUT, k)); k++) {
        actual = nth(c, c->call, N_OUT, k);
        if (actual && *actual && !look(e, formal)) put(c, e, formal, actual);
    }
    for (int i = 0; i < c->function->n; i++) {
        const Tree *t = c->function->f[i].number == F_NODE ? c->function->f[i].tree : NULL;
        for (int k = 0; t && (formal = nth(c, t, N_OUT, k)); k++) define(c, e, formal);
    }
}

/* Behind the nodes: outputs that are inputs or other outputs, too. */
static void copy_outputs(Calls *c, const Env *e, Tree *graph, int *at)
{
    const char *formal, *actual;
    for (int k = 0; (formal = nth(c, c->function, F_OUT, k)); k++) {
        actual = nth(c, c->call, N_OUT, k);
        const char *made = look(e, formal);
        if (actual && *actual && made && strcmp(made, actual))
            insert(c, graph, at, identity(c, made, actual));
    }
}

static void declare(Calls *c, const Env *e, Tree *graph)
{
    for (int i = 0; i < c->function->n; i++) {
        const TreeField *f = &c->function->f[i];
        if (f->number != F_INFO || !f->tree) continue;
        const char *to = look(e, text(c, f->tree, 1));
        bool inner = to && !strncmp(to, c->label, strlen(c->label));
        if (!inner) continue;
        Tree *info = mpri_tree_copy(pool(c), f->tree);
        rename_named(c, e, info, 1);
        mpri_tree_add(pool(c), graph, G_INFO, WIRE_BYTES)->tree = info;
    }
}

static void take_apart(Calls *c, Tree *graph, int at)
{
    Env e = {0};
    const char *name = text(c, c->call, N_NAME);
    const char *first = nth(c, c->call, N_OUT, 0);
    c->label = *name ? name : first && *first ? first : text(c, c->call, N_OP);
    name_formals(c, &e);
    mpri_tree_remove(graph, at);
    for (int i = 0; i < c->function->n; i++) {
        if (c->function->f[i].number != F_NODE || !c->function->f[i].tree) continue;
        Tree *node = mpri_tree_copy(pool(c), c->function->f[i].tree);
        rename_node(c, &e, node);
        insert(c, graph, &at, node);
    }
    copy_outputs(c, &e, graph, &at);
    declare(c, &e, graph);
    c->n++;
}

/* ---- imports ---- */

static TreeField *import_of(const Calls *c, Tree *t, uint32_t number, const char *d)
{
    for (int i = 0; i < t->n; i++)
        if (t->f[i].number == number && t->f[i].tree && !strcmp(domain(c, t->f[i].tree, 1), d))
            return &t->f[i];
    return NULL;
}

/* The function's operators have to mean in the model what they mean in the function. */
static mpr_status meet_imports(Calls *c, Tree *f)
{
    Tree *model = c->m->model;
    TreeField *own = import_of(c, model, M_OPSET, "");
    if (own) TRY(mpri_raise_function(c->m, f, mpri_tree_int(own->tree, 2, 1), c->err));
    for (int i = 0; i < f->n; i++) {
        const Tree *need = f->f[i].number == F_OPSET ? f->f[i].tree : NULL;
        if (!need) continue;
        own = import_of(c, model, M_OPSET, domain(c, need, 1));
        int64_t wanted = mpri_tree_int(need, 2, 1), have = own ? mpri_tree_int(own->tree, 2, 1) : 0;
        if (!own) {
            mpri_tree_add(pool(c), model, M_OPSET, WIRE_BYTES)->tree =
                mpri_tree_copy(pool(c), need);
        } else if (have != wanted) {
            mpri_err_set(c->err, MPR_E_OPSET,
                         "function '%s' needs opset %" PRId64 " of '%s', the model has %" PRId64,
                         mpri_err_name(text(c, f, F_NAME)), wanted,
                         mpri_err_name(text(c, need, 1)), have);
            return mpri_err_advice(c->err, "raise the model's with --opset, or leave out --inline");
        }
    }
    return MPR_OK;
}

/* ---- all calls ---- */

static mpr_status walk(Calls *c, Tree *graph)
{
    for (int i = 0; i < graph->n; i++) {
        Tree *node = graph->f[i].number == G_NODE ? graph->f[i].tree : NULL;
        if (!node) continue;
        const Tree *f = function_of(c, node);
        if (f) {
            c->call = node;
            c->function = f;
            take_apart(c, graph, i--);
            continue;
        }
        for (int a = 0; a < node->n; a++) {
            const Tree *t = node->f[a].number == N_ATTRIBUTE ? node->f[a].tree : NULL;
            for (int k = 0; t && k < t->n; k++)
                if ((t->f[k].number == A_GRAPH || t->f[k].number == A_GRAPHS) && t->f[k].tree)
                    TRY(walk(c, t->f[k].tree));
        }
    }
    return MPR_OK;
}

mpr_status mpri_calls_inline(Mix *m, int *n, Err *err)
{
    Calls c = {.m = m, .err = err};
    TreeField *g = mpri_tree_find(m->model, M_GRAPH);
    bool training = mpri_tree_find(m->model, M_TRAINING);
    *n = 0;
    if (!g || !g->tree || !mpri_tree_find(m->model, M_FUNCTION)) return MPR_OK;
    for (int i = 0; i < m->model->n; i++)
        if (m->model->f[i].number == M_FUNCTION && m->model->f[i].tree)
            TRY(meet_imports(&c, m->model->f[i].tree));
    g = mpri_tree_find(m->model, M_GRAPH); /* imports may have moved it */
    TRY(walk(&c, g->tree));
    for (int i = m->model->n - 1; i >= 0 && !training; i--)
        if (m->model->f[i].number == M_FUNCTION) mpri_tree_remove(m->model, i);
    *n = c.n;
    return MPR_OK;
}

mpr_status mpri_calls_image(Source *s, Arena *arena, void **bytes, size_t *size, int *n, Err *err)
{
    Pool pool = {.arena = arena};
    *bytes = NULL;
    if (setjmp(pool.full)) return mpri_err_nomem(err, 0);
    Mix m = {.pool = &pool, .source = s};
    m.model = mpri_tree_parse(&pool, TREE_MODEL, s->bytes, s->size);
    mpri_mix_read(&m);
    TRY(mpri_calls_inline(&m, n, err));
    if (*n == 0) return MPR_OK;
    *bytes = mpri_tree_image(&pool, m.model, size);
    return MPR_OK;
}
