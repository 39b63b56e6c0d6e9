/* Raising opset by opset: a row changes a node from the form before its opset to the one since; so
 * an operator that became another one goes on with the rows of that.
 *
 * The trap: a function has imports of its own, and the checker wants a function's operators to mean
 * at its opset what they mean at the model's. So functions go along. */
#include "convert/raise.h"

#include <inttypes.h>
#include <string.h>

#include "importer/wire.h"

enum { M_GRAPH = 7, M_OPSET = 8, M_FUNCTION = 25, G_NODE = 1, F_NODE = 7, F_OPSET = 9 };

static bool is_main(Pool *p, const Tree *t, uint32_t number)
{
    const char *domain = mpri_tree_text(p, t, number);
    return !*domain || !strcmp(domain, "ai.onnx");
}

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *w = words; (w = strstr(w, word)); w += n)
        if ((w == words || w[-1] == ' ') && (w[n] == ' ' || !w[n])) return true;
    return false;
}

static const char *op_of(const Raise *r)
{
    return mpri_tree_text(r->m->pool, r->node, 4);
}

static mpr_status refuse(const Raise *r, const char *op, const char *why, Err *err)
{
    const char *name = mpri_tree_text(r->m->pool, r->node, 3);
    mpri_err_set(err, MPR_E_OPSET,
                 "node '%s' (%s) cannot be raised from opset %" PRId64 " to %" PRId64 ": %s",
                 mpri_err_name(*name ? name : mpri_raise_output(r, 0)), mpri_err_name(op), r->from,
                 r->to, why);
    return mpri_err_advice(err, "choose an older opset, or leave out --opset");
}

static mpr_status raise_node(Raise *r, Err *err)
{
    const char *op = op_of(r);
    bool known = mpri_ports_find(op, r->from);
    for (int64_t v = r->from + 1; v <= r->to && known; v++)
        for (const RaiseRow *row = mpri_raise_rows; row->ops; row++) {
            if (row->opset != v || !has_word(row->ops, op_of(r))) continue;
            row->fn(r);
            if (r->why) return refuse(r, op, r->why, err);
        }
    if (known && !mpri_ports_find(op_of(r), r->to))
        return refuse(r, op, "the operator does not exist there", err);
    return MPR_OK;
}

static bool is_function(const Mix *m, const Tree *node)
{
    Pool *p = m->pool;
    for (int i = 0; i < m->model->n; i++) {
        const Tree *f = m->model->f[i].number == M_FUNCTION ? m->model->f[i].tree : NULL;
        if (f && is_main(p, f, 10) && is_main(p, node, 7) &&
            !strcmp(mpri_tree_text(p, f, 1), mpri_tree_text(p, node, 4)))
            return true;
    }
    return false;
}

typedef struct Walk {
    Mix *m;
    int64_t from, to;
    int next; /* of m's nodes, which come in this order; -1: a function, whose nodes m lacks */
    Err *err;
} Walk;

static mpr_status raise_all(Walk *w, Tree *holder, uint32_t number);

static mpr_status raise_bodies(Walk *w, Tree *node)
{
    for (int a = 0; a < node->n; a++) {
        Tree *attribute = node->f[a].number == 5 ? node->f[a].tree : NULL;
        for (int k = 0; attribute && k < attribute->n; k++)
            if ((attribute->f[k].number == 6 || attribute->f[k].number == 11) &&
                attribute->f[k].tree)
                TRY(raise_all(w, attribute->f[k].tree, G_NODE));
    }
    return MPR_OK;
}

static mpr_status raise_all(Walk *w, Tree *holder, uint32_t number)
{
    Mix *m = w->m;
    for (int i = 0; i < holder->n; i++) {
        Tree *node = holder->f[i].number == number ? holder->f[i].tree : NULL;
        if (!node) continue;
        Raise r = {.m = m, .holder = holder, .number = number, .at = i, .node = node,
                   .from = w->from, .to = w->to};
        if (w->next >= 0 && w->next < m->n_nodes && m->nodes[w->next]->tree == node)
            r.known = m->nodes[w->next++];
        int before = holder->n;
        if (is_main(m->pool, node, 7) && !is_function(m, node)) TRY(raise_node(&r, w->err));
        i += holder->n - before;
        TRY(raise_bodies(w, node));
    }
    return MPR_OK;
}

/* Version of ai.onnx among the imports, 0: none; set when `to` is not 0. */
static int64_t opset_of(Pool *p, Tree *t, uint32_t number, int64_t to)
{
    int64_t found = 0;
    for (int i = 0; i < t->n; i++) {
        Tree *o = t->f[i].number == number ? t->f[i].tree : NULL;
        if (!o || !is_main(p, o, 1)) continue;
        TreeField *v = mpri_tree_find(o, 2);
        found = v ? (int64_t)v->value : 1;
        if (to && v) v->value = (uint64_t)to;
        else if (to) mpri_tree_put_int(p, o, 2, to);
    }
    return found;
}

mpr_status mpri_raise_function(Mix *m, Tree *function, int64_t opset, Err *err)
{
    int64_t from = opset_of(m->pool, function, F_OPSET, 0);
    if (!from || from >= opset) return MPR_OK;
    Walk w = {.m = m, .from = from, .to = opset, .next = -1, .err = err};
    TRY(raise_all(&w, function, F_NODE));
    opset_of(m->pool, function, F_OPSET, opset);
    return MPR_OK;
}

mpr_status mpri_raise(Mix *m, int64_t opset, Err *err)
{
    TreeField *g = mpri_tree_find(m->model, M_GRAPH);
    int64_t from = opset_of(m->pool, m->model, M_OPSET, 0);
    if (opset > RAISE_NEWEST || opset < from) {
        mpri_err_set(err, MPR_E_USAGE, "--opset %" PRId64 ": the model has opset %" PRId64
                     ", the newest one known is %d", opset, from, RAISE_NEWEST);
        return mpri_err_advice(err, "an opset can only be raised");
    }
    if (opset == from || !from) return MPR_OK;
    Walk w = {.m = m, .from = from, .to = opset, .err = err};
    if (g && g->tree) TRY(raise_all(&w, g->tree, G_NODE));
    for (int i = 0; i < m->model->n; i++)
        if (m->model->f[i].number == M_FUNCTION && m->model->f[i].tree)
            TRY(mpri_raise_function(m, m->model->f[i].tree, opset, err));
    opset_of(m->pool, m->model, M_OPSET, opset);
    return MPR_OK;
}

mpr_status mpri_raise_image(Source *s, Arena *arena, int64_t opset, void **bytes, size_t *size,
                            Err *err)
{
    Pool pool = {.arena = arena};
    if (setjmp(pool.full)) return mpri_err_nomem(err, 0);
    Mix m = {.pool = &pool, .source = s};
    m.model = mpri_tree_parse(&pool, TREE_MODEL, s->bytes, s->size);
    mpri_mix_read(&m);
    TRY(mpri_raise(&m, opset, err));
    *bytes = mpri_tree_image(&pool, m.model, size);
    return MPR_OK;
}
