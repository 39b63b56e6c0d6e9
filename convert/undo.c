/* Taking out what an earlier run added and changed: marked Casts and copies go, names lead back,
 * converted tensors are widened, declared types follow the solved ones.
 *
 * A Cast that only looks like one of ours has no mark and stays. An added node is called by the new
 * name that it brought: its output when readers were given that (they get the input back), its
 * input when a producer was (it writes the output again). */
#include <string.h>

#include "convert/marks.h"
#include "convert/rewrite.h"
#include "importer/wire.h"

enum { G_NODE = 1, G_INIT = 5, G_IN = 11, G_OUT = 12, G_INFO = 13 };

typedef struct Way { const char *from, *to; bool lost; UT_hash_handle hh; } Way;
typedef struct Line { const char *key; bool lost; UT_hash_handle hh; } Line;

typedef struct Undo {
    Mix *m;
    Line *lines; /* of the list: plain names, "\cNAME", "\wID:NAME", "\rID:NAME", "\iTYPE:NAME",
                    "\fNAME", "\mDOMAIN:NAME" */
    Way *ways;
    Tree *top;
    int n, scopes;
    bool entry;
} Undo;

static Pool *pool(Undo *u)
{
    return u->m->pool;
}

/* ---- the list ---- */

static void unescape(char *s)
{
    bool own = s[0] == '\\' && s[1] && strchr("cwirm", s[1]);
    bool rounds = s[0] == '\\' && s[1] == 'f'; /* a node like the others */
    char *to = s + (own ? 2 : 0);
    for (s = rounds ? s + 2 : to; *s; s++) {
        if (*s == '\\' && s[1]) *to++ = *++s == 'n' ? '\n' : *s;
        else *to++ = *s;
    }
    *to = '\0';
}

static bool listed(const Undo *u, const char *key)
{
    Line *l;
    HASH_FIND(hh, u->lines, key, strlen(key), l);
    return l;
}

static void read_list(Undo *u)
{
    Arena *hash_arena = pool(u)->arena;
    for (int i = u->m->model->n - 1; i >= 0; i--) {
        TreeField *f = &u->m->model->f[i];
        if (f->number != 14 || !f->tree ||
            strcmp(mpri_tree_text(pool(u), f->tree, 1), MPRI_MARK_MODEL))
            continue;
        char *line = (char *)mpri_tree_text(pool(u), f->tree, 2);
        for (char *end; *line; line = end) {
            end = line + strcspn(line, "\n");
            if (*end) *end++ = '\0';
            unescape(line);
            if (listed(u, line)) continue;
            Line *l = mpri_pool_take(pool(u), sizeof *l);
            l->key = line;
            HASH_ADD_KEYPTR(hh, u->lines, l->key, strlen(l->key), l);
            if (l->lost) longjmp(pool(u)->full, 1);
        }
        mpri_tree_remove(u->m->model, i);
        u->entry = true;
    }
}

/* ---- ways back ---- */

static const char *way_back(const Undo *u, const char *name)
{
    const char *to = NULL;
    Way *w;
    HASH_FIND(hh, u->ways, name, strlen(name), w);
    while (w) {
        to = w->to;
        HASH_FIND(hh, u->ways, to, strlen(to), w);
    }
    return to;
}

static bool add_way(Undo *u, const char *from, const char *to)
{
    Arena *hash_arena = pool(u)->arena;
    Way *old;
    HASH_FIND(hh, u->ways, from, strlen(from), old);
    const char *end = way_back(u, to);
    if (old || !strcmp(from, end ? end : to)) return false; /* not written by us */
    Way *w = mpri_pool_take(pool(u), sizeof *w);
    *w = (Way){.from = from, .to = to};
    HASH_ADD_KEYPTR(hh, u->ways, w->from, strlen(w->from), w);
    if (w->lost) longjmp(pool(u)->full, 1);
    return true;
}

/* The part of a made name before our suffix. */
static const char *origin(Undo *u, const char *made)
{
    const char *last = NULL;
    for (const char *p = strstr(made, "__mpr_"); p; p = strstr(p + 1, "__mpr_")) last = p;
    return last ? mpri_pool_text(pool(u), made, (size_t)(last - made)) : NULL;
}

/* The exporter copies a listed Cast when readers of a tensor part, and cannot list the copy. */
static bool is_copy(const char *name)
{
    static const char ending[] = "__mpr_cast";
    size_t n = strlen(name), k = sizeof ending - 1;
    return n > k && !strcmp(name + n - k, ending);
}

static bool is_marked(Undo *u, const Tree *node, const char *name)
{
    if (listed(u, name) || (u->lines && is_copy(name))) return true;
    for (int i = 0; i < node->n; i++)
        if (node->f[i].number == 9 && node->f[i].tree &&
            !strcmp(mpri_tree_text(pool(u), node->f[i].tree, 1), MPRI_MARK_NODE))
            return true;
    return false;
}

static bool is_output(Undo *u, const char *name)
{
    for (int i = 0; i < u->top->n; i++)
        if (u->top->f[i].number == G_OUT && u->top->f[i].tree &&
            !strcmp(mpri_tree_text(pool(u), u->top->f[i].tree, 1), name))
            return true;
    return false;
}

static bool is_ours(Undo *u, const Tree *node)
{
    const char *op = mpri_tree_text(pool(u), node, 4), *name = mpri_tree_text(pool(u), node, 3);
    bool cast = !strcmp(op, "Cast");
    if ((!cast && strcmp(op, "Constant")) || !*name || !is_marked(u, node, name)) return false;
    const char *to = mpri_tree_text(pool(u), node, 2);
    const char *from = cast ? mpri_tree_text(pool(u), node, 1) : NULL, *of = origin(u, name);
    bool read = !strcmp(name, to); /* instead of what it is named after, whatever it reads itself */
    if (of && !is_copy(name) && (read || !cast)) from = of;
    if (!from) return false;
    if (read) return !is_output(u, to) && add_way(u, to, from);
    return !strcmp(name, from) && add_way(u, from, to);
}

/* ---- first walk: what goes ---- */

static void walk_bodies(Undo *u, Tree *node, void (*visit)(Undo *, Tree *))
{
    for (int i = 0; i < node->n; i++) {
        Tree *a = node->f[i].number == 5 ? node->f[i].tree : NULL;
        for (int k = 0; a && k < a->n; k++)
            if ((a->f[k].number == 6 || a->f[k].number == 11) && a->f[k].tree)
                visit(u, a->f[k].tree);
    }
}

/* ---- functions ---- */

static bool is_copy_of_function(Undo *u, const char *domain, const char *name)
{
    if (!strcmp(domain, "ai.onnx")) domain = "";
    return u->lines && listed(u, mpri_pool_print(pool(u), "\\m%s:%s", domain, name));
}

static void call_back(Undo *u, Tree *node)
{
    enum { N_OP = 4, N_DOMAIN = 7 };
    const char *op = mpri_tree_text(pool(u), node, N_OP), *to = origin(u, op);
    if (!to || !is_copy_of_function(u, mpri_tree_text(pool(u), node, N_DOMAIN), op)) return;
    TreeField *f = mpri_tree_find(node, N_OP);
    f->bytes = (const uint8_t *)to;
    f->len = strlen(to);
}

static void take_functions_out(Undo *u)
{
    enum { M_FUNCTION = 25, F_NAME = 1, F_DOMAIN = 10 };
    Tree *model = u->m->model;
    for (int i = model->n - 1; i >= 0; i--) {
        const Tree *f = model->f[i].number == M_FUNCTION ? model->f[i].tree : NULL;
        if (!f || !is_copy_of_function(u, mpri_tree_text(pool(u), f, F_DOMAIN),
                                       mpri_tree_text(pool(u), f, F_NAME)))
            continue;
        mpri_tree_remove(model, i);
        u->n++;
    }
}

static void take_out(Undo *u, Tree *g)
{
    int id = u->scopes++;
    for (int i = 0; i < g->n; i++) {
        Tree *t = g->f[i].tree;
        if (g->f[i].number == G_INIT && t) {
            const char *name = mpri_tree_text(pool(u), t, 8);
            if (listed(u, mpri_pool_print(pool(u), "\\w%d:%s", id, name))) {
                mpri_mix_store(u->m, t, MPR_FLOAT32, false);
                u->n++;
            }
            const char *base = origin(u, name);
            if (base && listed(u, mpri_pool_print(pool(u), "\\c%s", name)) &&
                add_way(u, name, base)) {
                mpri_tree_remove(g, i--);
                u->n++;
            }
        }
    }
    for (int i = 0; i < g->n; i++) {
        Tree *t = g->f[i].tree;
        if (g->f[i].number != G_NODE || !t) continue;
        if (is_ours(u, t)) {
            mpri_tree_remove(g, i--);
            u->n++;
        } else {
            call_back(u, t);
            const char *made = mpri_tree_text(pool(u), t, 2);
            if (u->lines && !strcmp(mpri_tree_text(pool(u), t, 4), "Cast") &&
                listed(u, mpri_pool_print(pool(u), "\\r%d:%s", id, made)))
                mpri_cast_retarget(t, MPR_FLOAT32);
            walk_bodies(u, t, take_out);
        }
    }
}

/* ---- second walk: names ---- */

static void lead_back(Undo *u, Tree *t, uint32_t number)
{
    for (int i = 0; i < t->n; i++) {
        if (t->f[i].number != number) continue;
        const char *to = way_back(u, mpri_pool_text(pool(u), t->f[i].bytes, t->f[i].len));
        if (!to) continue;
        t->f[i].bytes = (const uint8_t *)to;
        t->f[i].len = strlen(to);
    }
}

static void rename_back(Undo *u, Tree *g)
{
    for (int i = 0; i < g->n; i++) {
        Tree *t = g->f[i].tree;
        if (!t) continue;
        if (g->f[i].number == G_INFO && way_back(u, mpri_tree_text(pool(u), t, 1))) {
            mpri_tree_remove(g, i--);
        } else if (g->f[i].number == G_OUT && g != u->top) {
            lead_back(u, t, 1);
        } else if (g->f[i].number == G_NODE) {
            lead_back(u, t, 1);
            lead_back(u, t, 2);
            walk_bodies(u, t, rename_back);
        }
    }
}

/* ---- declared types ---- */

static void io_back(Undo *u)
{
    for (int i = 0; i < u->top->n; i++) {
        TreeField *f = &u->top->f[i];
        if ((f->number != G_IN && f->number != G_OUT) || !f->tree) continue;
        const char *name = mpri_tree_text(pool(u), f->tree, 1);
        static const DType types[] = {MPR_FLOAT32, MPR_FLOAT16, MPR_BFLOAT16};
        for (int k = 0; k < 3; k++)
            if (listed(u, mpri_pool_print(pool(u), "\\i%d:%s", (int)types[k], name)))
                mpri_info_set(f->tree, types[k]);
    }
}

void mpri_rewrite_retype(const Mix *m)
{
    Mix solved = {.pool = m->pool, .model = m->model, .source = m->source};
    mpri_mix_read(&solved);
    for (int i = 0; i < solved.n_scopes; i++) {
        const MixScope *s = solved.scopes[i];
        for (int k = 0; k < s->graph->n; k++) {
            const TreeField *f = &s->graph->f[k];
            bool end = f->number == G_IN || f->number == G_OUT;
            if (!f->tree || (f->number != G_INFO && !(end && s->outer))) continue;
            const MixValue *v = mpri_mix_find(s, mpri_tree_text(m->pool, f->tree, 1));
            if (v && mpri_mix_castable(v->type.elem)) mpri_info_set(f->tree, v->type.elem);
        }
    }
}

void mpri_rewrite_undo(Mix *m, int *n)
{
    Undo u = {.m = m};
    TreeField *g = mpri_tree_find(m->model, 7);
    *n = 0;
    if (!g || !g->tree) return;
    u.top = g->tree;
    read_list(&u);
    take_out(&u, u.top);
    take_functions_out(&u);
    *n = u.n;
    if (!u.n && !u.entry) return;
    rename_back(&u, u.top);
    io_back(&u);
    mpri_rewrite_retype(m);
    *n += u.n == 0;
}
