/* A call whose body was painted calls a copy of the function, NAME__mpr_f16. Calls that were painted
 * alike share one; the function itself stays as it was. Inner calls come first, since their new
 * names are part of the body around them. */
#include <string.h>

#include "convert/file.h"
#include "convert/rewrite_parts.h"
#include "importer/wire.h"

enum { M_FUNCTION = 25, F_NAME = 1, N_OP = 4 };

typedef struct Body {
    const uint8_t *bytes;
    size_t size;
} Body;

typedef struct FunctionCopy { /* a function that was added */
    const Tree *original;
    Body body; /* under the name of the original */
    const char *name;
} FunctionCopy;

typedef struct Copies {
    Rewrite *w;
    FunctionCopy *made;
    int n, cap;
} Copies;

static Pool *pool(const Copies *c)
{
    return c->w->m->pool;
}

static Body body_of(const Copies *c, Tree *t)
{
    int n;
    Body b = {.size = 0};
    const Piece *pieces = mpri_tree_pieces(pool(c), t, &n);
    for (int i = 0; i < n; i++) b.size += pieces[i].n;
    uint8_t *bytes = mpri_pool_take(pool(c), b.size);
    mpri_pieces_copy(pieces, n, bytes);
    b.bytes = bytes;
    return b;
}

static bool same(const Body *a, const Body *b)
{
    return a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

static void set_name(Tree *t, uint32_t number, const char *name)
{
    TreeField *f = mpri_tree_find(t, number);
    f->bytes = (const uint8_t *)name;
    f->len = strlen(name);
}

static void append(Copies *c, Tree *function)
{
    Tree *model = c->w->m->model;
    int at = model->n;
    while (at > 0 && model->f[at - 1].number != M_FUNCTION) at--;
    mpri_tree_insert(pool(c), model, at, M_FUNCTION, WIRE_BYTES)->tree = function;
}

static const char *copy_for(Copies *c, const MixNode *n, const Body *body)
{
    const MixScope *s = n->function;
    for (int i = 0; i < c->n; i++)
        if (c->made[i].original == s->original && same(&c->made[i].body, body))
            return c->made[i].name;
    const char *suffix = mpri_file_suffix(c->w->m->to);
    const char *name = mpri_mix_fresh_function(
        c->w->m, n->domain, mpri_pool_print(pool(c), "%s__mpr_%s", n->op, suffix));
    mpri_pool_grow(pool(c), &c->made, c->n, &c->cap, sizeof *c->made);
    c->made[c->n++] = (FunctionCopy){.original = s->original, .body = *body, .name = name};
    set_name(s->graph, F_NAME, name);
    append(c, s->graph);
    mpri_rewrite_mark(c->w, "\\m", mpri_pool_print(pool(c), "%s:%s", n->domain, name));
    return name;
}

static void walk(Copies *c, const MixScope *s)
{
    for (int i = 0; i < s->n_nodes; i++) {
        const MixNode *n = s->nodes[i];
        for (int b = 0; b < n->n_bodies; b++) walk(c, n->bodies[b]);
        if (!n->function) continue;
        Body body = body_of(c, n->function->graph), before = body_of(c, n->function->original);
        if (!same(&body, &before)) set_name(n->tree, N_OP, copy_for(c, n, &body));
    }
}

void mpri_rewrite_calls(Rewrite *w)
{
    Copies c = {.w = w};
    walk(&c, w->m->top);
}
