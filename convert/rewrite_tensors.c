/* Weights and Constants in 16 bits, see rewrite.h: in place where nobody reads them as float32, else
 * as a copy beside the original. */
#include <string.h>

#include "convert/rewrite_parts.h"
#include "importer/wire.h"

enum { G_INIT = 5 };
enum { T_DIMS = 1, T_TYPE = 2, T_FLOATS = 4, T_NAME = 8 };
enum { A_NAME = 1, A_FLOAT = 2, A_TENSOR = 5, A_FLOATS = 7, A_TYPE = 20 };

static int field_of(const Tree *graph, const Tree *tensor)
{
    for (int i = 0; i < graph->n; i++)
        if (graph->f[i].tree == tensor) return i;
    return -1;
}

void mpri_rewrite_tensor(Rewrite *w, MixValue *v)
{
    DType to = w->m->to;
    MixTensor t;
    bool low = false, other = false;
    for (const MixUse *u = v->uses; u; u = u->next) {
        bool any = u->node && u->node->any;
        DType type = mpri_rewrite_wanted(v, u);
        low = low || any || type == to;
        other = other || (!any && type != to);
    }
    if (!low || !mpri_mix_tensor(w->m, v->tensor, &t)) return;
    if (!other && !v->pinned && w->infer && v->initializer) {
        mpri_mix_store(w->m, v->tensor, to, w->saturate || v->saturate);
        if (!v->scope->home)
            mpri_rewrite_mark(w, mpri_pool_print(w->m->pool, "\\w%d:", v->scope->id), v->name);
        v->now = v->held = to;
        return;
    }
    if (v->pinned && !v->output) return;
    Tree *graph = v->scope->graph, *copy = mpri_tree_copy(w->m->pool, v->tensor);
    const char *name = mpri_rewrite_fresh(w, v, to);
    mpri_mix_store(w->m, copy, to, w->saturate || v->saturate);
    TreeField *f = mpri_tree_find(copy, T_NAME);
    if (!f) f = mpri_tree_add(w->m->pool, copy, T_NAME, WIRE_BYTES);
    f->bytes = (const uint8_t *)name;
    f->len = strlen(name);
    mpri_tree_insert(w->m->pool, graph, field_of(graph, v->tensor) + 1, G_INIT, WIRE_BYTES)->tree =
        copy;
    if (!v->scope->home) mpri_rewrite_mark(w, "\\c", name);
    mpri_rewrite_as(w, v, v->scope, to, name, NULL);
}

/* The contents of a Constant in whatever form, as a tensor of its own; NULL: they are no floats. */
static Tree *tensor_of(Pool *p, const MixNode *n)
{
    const Tree *one = mpri_mix_attribute(n, "value_float");
    const Tree *many = mpri_mix_attribute(n, "value_floats");
    const Tree *a = mpri_mix_attribute(n, "value");
    const TreeField *whole = a ? mpri_tree_find(a, A_TENSOR) : NULL;
    if (whole && whole->tree) return mpri_tree_copy(p, whole->tree);
    if (!one && !many) return NULL;
    Tree *t = mpri_tree_new(p);
    int64_t count = 0;
    for (int i = 0; many && i < many->n; i++) {
        const TreeField *f = &many->f[i];
        if (f->number != A_FLOATS) continue;
        count += f->type == WIRE_BYTES ? (int64_t)f->len / 4 : 1;
        *mpri_tree_add(p, t, T_FLOATS, f->type) = *f;
        t->f[t->n - 1].number = T_FLOATS;
    }
    if (many) mpri_tree_put_int(p, t, T_DIMS, count);
    mpri_tree_put_int(p, t, T_TYPE, MPR_FLOAT32);
    const TreeField *f = one ? mpri_tree_find(one, A_FLOAT) : NULL;
    if (one) mpri_tree_add(p, t, T_FLOATS, WIRE_FIXED32)->value = f ? f->value : 0;
    return t;
}

/* A Constant or ConstantOfShape in 16 bits that nobody reads as such, on the way to float32. */
static void widen_constant(Rewrite *w, MixValue *v)
{
    const Tree *a = mpri_mix_attribute(v->maker, "value");
    const TreeField *f = a ? mpri_tree_find(a, A_TENSOR) : NULL;
    MixTensor t;
    if (!f || !f->tree || v->output || !mpri_dtype_is_low(v->now)) return;
    for (const MixUse *u = v->uses; u; u = u->next)
        if (!(u->node && u->node->any) && mpri_rewrite_wanted(v, u) != MPR_FLOAT32) return;
    if (!mpri_mix_tensor(w->m, f->tree, &t)) return;
    mpri_mix_store(w->m, f->tree, MPR_FLOAT32, false);
    v->now = v->held = MPR_FLOAT32;
    if (v->unit) v->unit->is = MPR_FLOAT32;
}

void mpri_rewrite_twin(Rewrite *w, MixValue *v)
{
    enum { ATTRIBUTE_IS_TENSOR = 4 };
    Pool *p = w->m->pool;
    const MixNode *n = v->maker;
    MixTensor contents;
    bool low = false;
    if (*n->domain || n->call) return;
    if (w->m->widen && !strncmp(n->op, "Constant", 8)) widen_constant(w, v);
    if (strcmp(n->op, "Constant") || v->now != MPR_FLOAT32 || w->m->to == MPR_FLOAT32) return;
    for (const MixUse *u = v->uses; u; u = u->next)
        low = low || mpri_rewrite_wanted(v, u) == w->m->to;
    Tree *tensor = low ? tensor_of(p, n) : NULL;
    if (!tensor || !mpri_mix_tensor(w->m, tensor, &contents)) return;
    mpri_mix_store(w->m, tensor, w->m->to, w->saturate || v->saturate);
    const char *name = mpri_rewrite_fresh(w, v, w->m->to);
    Tree *twin = mpri_tree_new(p), *a;
    mpri_tree_put_text(p, twin, 2, name);
    mpri_tree_put_text(p, twin, 3, name);
    mpri_tree_put_text(p, twin, 4, "Constant");
    a = mpri_tree_put_tree(p, twin, 5);
    mpri_tree_put_text(p, a, A_NAME, "value");
    mpri_tree_add(p, a, A_TENSOR, WIRE_BYTES)->tree = tensor;
    mpri_tree_put_int(p, a, A_TYPE, ATTRIBUTE_IS_TENSOR);
    mpri_rewrite_mark_node(w, v->scope, twin, name, w->m->to);
    mpri_rewrite_insert(w, v->scope, v, twin);
    mpri_rewrite_as(w, v, v->scope, w->m->to, name, NULL);
}
