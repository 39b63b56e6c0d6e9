/* The user's own narrowing Casts, taken out on the way back to float32: they make float32, as the
 * nodes around them do, and where that changes nothing any more their readers get what they read.
 * One that makes an output of a graph stays, as a Cast to float32; and as it is where nothing but its
 * type will do. */
#include <stdlib.h>
#include <string.h>

#include "convert/casts.h"
#include "convert/rewrite_parts.h"

/* By the interface of the model, or by a reader that takes nothing else. */
static bool has_to_stay(const Rewrite *w, const MixValue *v)
{
    for (const MixUse *u = v->uses; u; u = u->next)
        if (u->unit && mpri_dtype_is_low(u->unit->is)) return true;
    return v->output && mpri_dtype_is_low(mpri_rewrite_public(w, v));
}

void mpri_rounding_off(Rewrite *w)
{
    Mix *m = w->m;
    for (int i = 0; i < m->n_nodes; i++) {
        MixNode *n = m->nodes[i];
        MixUnit *u = n->n_out ? n->out_unit[0] : NULL;
        if (!mpri_cast_is(n) || !u || !mpri_dtype_is_low(n->out[0]->type.elem)) continue;
        if (has_to_stay(w, n->out[0])) continue;
        u->is = MPR_FLOAT32;
        u->follows = true;
        mpri_pool_grow(m->pool, &w->off, w->n_off, &w->cap_off, sizeof(void *));
        w->off[w->n_off++] = n->tree;
    }
}

static int by_address(const void *a, const void *b)
{
    const Tree *x = *(Tree *const *)a, *y = *(Tree *const *)b;
    return (x > y) - (x < y);
}

static TreeField *input_field(const MixNode *n, int k)
{
    for (int i = 0; i < n->tree->n; i++)
        if (n->tree->f[i].number == 1 && k-- == 0) return &n->tree->f[i];
    return NULL;
}

static void remove_tree(Tree *graph, const Tree *t)
{
    for (int i = graph->n - 1; i >= 0 && t; i--)
        if (graph->f[i].tree == t) mpri_tree_remove(graph, i);
}

static bool can_go(const Rewrite *w, const MixNode *n)
{
    const Tree *tree = n->tree;
    if (!mpri_cast_is(n) || n->out[0]->output || n->in[0]->type.elem != MPR_FLOAT32 ||
        n->out[0]->type.elem != MPR_FLOAT32)
        return false;
    for (const MixUse *u = n->out[0]->uses; u; u = u->next)
        if (!u->node) return false;
    return bsearch(&tree, w->off, (size_t)w->n_off, sizeof *w->off, by_address);
}

void mpri_rounding_remove(Rewrite *w)
{
    Mix m = {.pool = w->m->pool, .model = w->m->model, .source = w->m->source};
    if (!w->n_off) return;
    qsort(w->off, (size_t)w->n_off, sizeof *w->off, by_address);
    mpri_mix_read(&m);
    for (int i = 0; i < m.n_nodes; i++) {
        const MixNode *n = m.nodes[i];
        if (!can_go(w, n)) continue;
        const TreeField *from = input_field(n, 0); /* behind another one: what that read */
        for (const MixUse *u = n->out[0]->uses; u; u = u->next) {
            TreeField *f = input_field(u->node, u->at);
            f->bytes = from->bytes;
            f->len = from->len;
        }
        remove_tree(n->scope->graph, n->tree);
        remove_tree(n->scope->graph, n->out[0]->info);
    }
}
