/* Operators in 16 bits that only a plain reference kernel computes: right, but slow. Told once for
 * each operator, with the number of its nodes. */
#include <string.h>

#include "convert/paint.h"
#include "runtime/ir/graph.h"

static bool is_low(const MixNode *n, DType to)
{
    for (int k = 0; k < n->n_units; k++)
        if (n->units[k]->is == to) return true;
    return false;
}

/* Views run no kernel, losses become other operators, and shapes are known before a step. */
static bool runs(const OpDef *op)
{
    return !(op->flags & (OPF_VIEW | OPF_LOSS)) && strcmp(op->name, "Shape") &&
           strcmp(op->name, "Size");
}

static bool only_reference(const KernelSet *set, int op)
{
    bool any = false;
    for (int t = 0; t < set->n; t++)
        for (int i = 0; i < set->tables[t].n; i++) {
            const KernelRow *row = &set->tables[t].rows[i];
            if (row->op != op) continue;
            if (strncmp(row->name, "ref.", 4)) return false;
            any = true;
        }
    return any;
}

void mpri_paint_kernels(Paint *p, const OpTable *ops, const KernelSet *set)
{
    Mix *m = p->m;
    int *count = mpri_pool_take(m->pool, sizeof *count * (size_t)(ops->count + 1));
    for (int i = 0; i < m->n_nodes; i++) {
        const MixNode *n = m->nodes[i];
        const OpDef *op = n->row && !n->n_bodies && is_low(n, m->to) ? ops->find("", n->op) : NULL;
        if (op && runs(op)) count[op->id]++;
    }
    for (int id = 0; id < ops->count; id++)
        if (count[id] && only_reference(set, id))
            mpri_paint_warn(p, "kernel", ops->defs[id]->name, count[id],
                            "has no fast kernel: in 16 bits it is not faster than in float32");
}
