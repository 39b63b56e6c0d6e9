/* Mask constants that the user forces into 16 bits. A Cast would make -1e9 infinite, and a row
 * in which all is masked NaN; the largest finite value masks as well, but only where it is added
 * once: two of them are infinite again, and so is a multiple. What cannot be shown to be so is
 * refused. */
#include <stdio.h>
#include <string.h>

#include "convert/paint.h"

typedef struct Sentinels {
    Paint *p;
    bool *tainted; /* by order of the value: holds a mask constant, or a sum with one */
} Sentinels;

static bool passes_on(const MixNode *n)
{
    return mpri_node_is(n, "Add Sub Sum Mul Div Cast Trilu") ||
           mpri_node_is(n, mpri_list_words(LIST_CLEAR));
}

/* File order is an order of execution. */
static void find_tainted(Sentinels *s)
{
    const Mix *m = s->p->m;
    for (int i = 0; i < m->n_values; i++)
        s->tainted[m->values[i]->order] = m->values[i]->range.over > 0;
    for (int i = 0; i < m->n_nodes; i++) {
        const MixNode *n = m->nodes[i];
        bool any = false;
        for (int k = 0; k < n->n_in; k++) any = any || (n->in[k] && s->tainted[n->in[k]->order]);
        for (int k = 0; n->function && k < n->n_in && k < n->function->n_inputs; k++)
            if (n->in[k] && s->tainted[n->in[k]->order])
                s->tainted[n->function->inputs[k]->order] = true;
        for (int k = 0; k < n->n_out && any && passes_on(n); k++)
            if (n->out[k]) s->tainted[n->out[k]->order] = true;
    }
}

/* From `by` on to every end: at most one addend of a sum is a mask, and nothing scales it. */
static bool once(const Sentinels *s, const MixNode *n, int depth)
{
    int masks = 0;
    if (mpri_node_is(n, "Softmax LogSoftmax Exp")) return true;
    if (depth > 200 || !passes_on(n) || mpri_node_is(n, "Mul Div")) return false;
    for (int k = 0; k < n->n_in; k++) masks += n->in[k] && s->tainted[n->in[k]->order];
    if (mpri_node_is(n, "Add Sub Sum") && masks > 1) return false;
    for (int k = 0; k < n->n_out; k++)
        for (const MixUse *u = n->out[k] ? n->out[k]->uses : NULL; u; u = u->next)
            if (!u->node || !once(s, u->node, depth + 1)) return false;
    return true;
}

static mpr_status refuse(Paint *p, const MixValue *v, const MixNode *n)
{
    char most[48] = "a mask";
    if (v->range.over) snprintf(most, sizeof most, "%g", v->range.most);
    mpri_err_set(p->err, MPR_E_DATA,
                 "'%s' holds %s, beyond %s, and cannot be shown to be added just "
                 "once from node '%s' (%s) on",
                 mpri_err_name(v->name), most, mpri_dtype_long(p->m->to),
                 mpri_err_name(n->path), mpri_err_name(n->op));
    return mpri_err_advice(p->err, "leave the node out of --force-include");
}

void mpri_paint_sentinels(Paint *p)
{
    Mix *m = p->m;
    Sentinels s = {.p = p, .tainted = mpri_pool_take(m->pool, (size_t)m->n_values + 1)};
    if (m->to != MPR_FLOAT16) return;
    find_tainted(&s);
    for (int i = 0; i < m->n_values; i++) {
        MixValue *v = m->values[i];
        /* what a forced node makes is finite already; other masks are cast */
        if (!s.tainted[v->order] || (v->unit && v->unit->forced)) continue;
        for (const MixUse *u = v->uses; u; u = u->next) {
            if (!u->node || !u->unit || !u->unit->forced || u->unit->pinned) continue;
            if (!mpri_node_is(u->node, "Add Sub Sum Where Mul Div")) continue; /* a weight */
            if (!v->range.over || !v->tensor || v->input || !once(&s, u->node, 0)) {
                (void)refuse(p, v, u->node);
                return;
            }
            v->saturate = true;
        }
    }
}
