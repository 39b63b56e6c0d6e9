/* Nodes that a conversion adds, their marks, and the declarations of what they make. */
#include <stdlib.h>
#include <string.h>

#include "convert/file.h"
#include "convert/marks.h"
#include "convert/rewrite_parts.h"
#include "importer/wire.h"

typedef struct Insertion {
    MixScope *scope;
    int after; /* node of the scope; -1: before all */
    int order;
    Tree *node;
} Insertion;

/* ---- marks ---- */

static const char *escaped(Pool *p, const char *name)
{
    Text t;
    mpri_text_init(&t, p->arena->alloc);
    mpri_marks_list(&t, name, false);
    char *copy = t.failed ? NULL : mpri_arena_strdup(p->arena, t.text ? t.text : "");
    mpri_text_free(&t);
    if (!copy) longjmp(p->full, 1);
    return copy;
}

/* A model that has been widened is as good as one that never was narrow: it has no marks. */
void mpri_rewrite_mark(Rewrite *w, const char *prefix, const char *name)
{
    if (w->m->widen) return;
    w->lines = mpri_pool_print(w->m->pool, "%s%s%s", w->lines, prefix,
                               escaped(w->m->pool, name));
}

void mpri_rewrite_mark_node(Rewrite *w, const MixScope *s, Tree *node, const char *name, DType type)
{
    if (s->home) return;
    if (w->m->ir_version >= MPRI_MARK_IR && !w->m->widen) {
        Tree *entry = mpri_tree_put_tree(w->m->pool, node, 9);
        mpri_tree_put_text(w->m->pool, entry, 1, MPRI_MARK_NODE);
        mpri_tree_put_text(w->m->pool, entry, 2, mpri_file_suffix(type));
    } else {
        mpri_rewrite_mark(w, "", name);
    }
}

/* ---- added nodes ---- */

void mpri_rewrite_text(TreeField *f, const char *text)
{
    f->bytes = (const uint8_t *)text;
    f->len = strlen(text);
}

static const char *type_word(DType t)
{
    return t == MPR_FLOAT16 ? "FLOAT16" : "FLOAT";
}

/* The target is a number from opset 6 on, before that its name. */
static void put_target(const Mix *m, Tree *attribute, DType type)
{
    bool named = m->opset < 6;
    mpri_tree_put_text(m->pool, attribute, 1, "to");
    if (named) mpri_tree_put_text(m->pool, attribute, 4, type_word(type));
    else mpri_tree_put_int(m->pool, attribute, 3, type);
    mpri_tree_put_int(m->pool, attribute, 20, named ? 3 : 2);
}

void mpri_cast_retarget(Tree *cast, DType to)
{
    for (int i = 0; i < cast->n; i++) {
        Tree *a = cast->f[i].number == 5 ? cast->f[i].tree : NULL;
        const TreeField *key = a ? mpri_tree_find(a, 1) : NULL;
        if (!key || !mpri_field_is(key, "to")) continue;
        TreeField *number = mpri_tree_find(a, 3), *name = mpri_tree_find(a, 4);
        if (name && name->len) mpri_rewrite_text(name, type_word(to));
        else if (number) number->value = (uint64_t)to;
    }
}

Tree *mpri_rewrite_cast(Rewrite *w, const MixScope *s, const char *from, const char *to, const char *name, DType type)
{
    Pool *p = w->m->pool;
    Tree *n = mpri_tree_new(p);
    mpri_tree_put_text(p, n, 1, from);
    mpri_tree_put_text(p, n, 2, to);
    mpri_tree_put_text(p, n, 3, name);
    mpri_tree_put_text(p, n, 4, "Cast");
    put_target(w->m, mpri_tree_put_tree(p, n, 5), type);
    mpri_rewrite_mark_node(w, s, n, name, type);
    return n;
}

void mpri_rewrite_insert(Rewrite *w, MixScope *s, const MixValue *v, Tree *node)
{
    Pool *p = w->m->pool;
    mpri_pool_grow(p, &w->insertions, w->n_insertions, &w->cap_insertions, sizeof(Insertion));
    int after = v->maker && v->scope == s ? v->maker->index : -1;
    w->insertions[w->n_insertions] =
        (Insertion){.scope = s, .after = after, .order = w->n_insertions, .node = node};
    w->n_insertions++;
}

/* Before opset 6 nothing tells the type of a Cast's output but its declaration. */
static void declare_type(Rewrite *w, MixScope *s, const char *name, DType type)
{
    Pool *p = w->m->pool;
    Tree *info = mpri_tree_put_tree(p, s->graph, s->info_field);
    mpri_tree_put_text(p, info, 1, name);
    Tree *tensor = mpri_tree_put_tree(p, mpri_tree_put_tree(p, info, 2), 1);
    mpri_tree_put_int(p, tensor, 1, type);
}

/* A new value is declared with the shape of its origin. */
void mpri_rewrite_declare(Rewrite *w, MixScope *s, const MixValue *v, const char *name, DType type)
{
    TreeField *t = v->info ? mpri_tree_find(v->info, 2) : NULL;
    if (!t || !t->tree || !mpri_info_elem((Tree *)v->info)) {
        if (w->m->opset < 6) declare_type(w, s, name, type);
        return;
    }
    Tree *info = mpri_tree_put_tree(w->m->pool, s->graph, s->info_field);
    mpri_tree_put_text(w->m->pool, info, 1, name);
    mpri_tree_add(w->m->pool, info, 2, WIRE_BYTES)->tree =
        mpri_tree_copy(w->m->pool, t->tree);
    mpri_info_set(info, type);
}

void mpri_rewrite_note(Rewrite *w, MixScope *s, const MixValue *v, const char *name, DType from,
                      DType to)
{
    RewriteCast *c = mpri_pool_take(w->m->pool, sizeof *c);
    *c = (RewriteCast){.name = name, .value = v->name, .scope = s->path, .from = from, .to = to};
    if (w->last) w->last->next = c;
    else w->list = c;
    w->last = c;
    w->casts++;
}

/* ---- into the tree ---- */

static int by_place(const void *a, const void *b)
{
    const Insertion *x = a, *y = b;
    if (x->scope != y->scope) return x->scope->number - y->scope->number;
    if (x->after != y->after) return x->after - y->after;
    return x->order - y->order;
}

/* The node list of a scope with the new nodes in it. */
static void put_insertions(Rewrite *w, MixScope *s, int first, int n)
{
    Tree *old = s->graph, new = {0};
    uint32_t field = s->node_field;
    int node = 0, at = first;
    bool any = false;
    for (int i = 0; i < old->n; i++) any = any || old->f[i].number == field;
    for (int i = 0; i <= old->n; i++) {
        bool is_node = i < old->n && old->f[i].number == field;
        if ((is_node && node == 0) || (i == old->n && !any))
            for (; at < first + n && w->insertions[at].after < 0; at++)
                mpri_tree_add(w->m->pool, &new, field, WIRE_BYTES)->tree = w->insertions[at].node;
        if (i == old->n) break;
        *mpri_tree_add(w->m->pool, &new, 0, 0) = old->f[i];
        for (; is_node && at < first + n && w->insertions[at].after == node; at++)
            mpri_tree_add(w->m->pool, &new, field, WIRE_BYTES)->tree = w->insertions[at].node;
        node += is_node;
    }
    *old = new;
}

void mpri_rewrite_put_nodes(Rewrite *w)
{
    if (w->n_insertions)
        qsort(w->insertions, (size_t)w->n_insertions, sizeof(Insertion), by_place);
    for (int i = 0, k; i < w->n_insertions; i = k) {
        for (k = i; k < w->n_insertions && w->insertions[k].scope == w->insertions[i].scope; k++) {}
        put_insertions(w, w->insertions[i].scope, i, k - i);
    }
}

void mpri_rewrite_put_marks(Rewrite *w)
{
    if (!*w->lines) return;
    Tree *entry = mpri_tree_put_tree(w->m->pool, w->m->model, 14);
    mpri_tree_put_text(w->m->pool, entry, 1, MPRI_MARK_MODEL);
    mpri_tree_put_text(w->m->pool, entry, 2, w->lines);
}
