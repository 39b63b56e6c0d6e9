/* The user's own narrowing Casts, taken out on the way back to float32: their readers get what they
 * read. A Cast that makes an output of a graph stays, as one to float32 in a body, and as it is
 * where the model's interface says its type. */
#include <string.h>

#include "convert/rewrite.h"

static bool narrows(const MixNode *n)
{
    if (strcmp(n->op, "Cast") || *n->domain || n->n_in != 1 || n->n_out != 1) return false;
    const MixValue *x = n->in[0], *y = n->out[0];
    if (!x || !y || !mpri_dtype_is_low(y->type.elem) || y->output) return false;
    return mpri_dtype_is_float(x->type.elem) && x->type.elem != y->type.elem;
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

static bool can_go(const MixNode *n)
{
    if (n->in[0]->type.elem == MPR_FLOAT64) return false;
    for (const MixUse *u = n->out[0]->uses; u; u = u->next)
        if (!u->node) return false;
    return true;
}

int mpri_drop_rounding(Mix *m)
{
    int count = 0;
    for (int i = 0; i < m->n_nodes; i++) {
        const MixNode *n = m->nodes[i];
        if (!narrows(n)) continue;
        count++;
        if (n->out[0]->info) mpri_info_set((Tree *)n->out[0]->info, MPR_FLOAT32);
        if (!can_go(n)) {
            mpri_cast_retarget(n->tree, MPR_FLOAT32);
            continue;
        }
        const TreeField *from = input_field(n, 0); /* behind another one: what that read */
        for (const MixUse *u = n->out[0]->uses; u; u = u->next) {
            TreeField *f = input_field(u->node, u->at);
            f->bytes = from->bytes;
            f->len = from->len;
        }
        remove_tree(n->scope->graph, n->tree);
        remove_tree(n->scope->graph, n->out[0]->info);
    }
    return count;
}
