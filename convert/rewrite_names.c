/* New names and types into the tree: what nodes read and write, results of bodies, declarations. */
#include <string.h>

#include "convert/rewrite_parts.h"
#include "importer/wire.h"

enum { G_IN = 11, G_OUT = 12, G_INFO = 13 };

/* ---- declared types ---- */

static Tree *elem_holder(Tree *type)
{
    for (int i = type->n - 1; i >= 0; i--) {
        TreeField *f = &type->f[i];
        if (!f->tree) continue;
        if (f->number == 1) return f->tree;
        TreeField *inner = mpri_tree_find(f->tree, 1);
        return inner && inner->tree ? elem_holder(inner->tree) : NULL;
    }
    return NULL;
}

TreeField *mpri_info_elem(Tree *info)
{
    TreeField *type = mpri_tree_find(info, 2);
    Tree *holder = type && type->tree ? elem_holder(type->tree) : NULL;
    return holder ? mpri_tree_find(holder, 1) : NULL;
}

void mpri_info_set(Tree *info, DType elem)
{
    TreeField *f = mpri_info_elem(info);
    if (f && f->type == WIRE_VARINT && mpri_mix_castable((DType)f->value))
        f->value = (uint64_t)elem;
}

static void count_reader(const MixValue *v, const char *name, const MixNode *n)
{
    for (MixAs *a = v->as; a; a = a->next) {
        if (a->name != name || !a->cast) continue;
        a->cast->consumers++;
        if (!a->cast->reader) a->cast->reader = n;
    }
}

void mpri_rename_node(MixNode *n)
{
    int in = 0, out = 0;
    for (int i = 0; i < n->tree->n; i++) {
        TreeField *f = &n->tree->f[i];
        if (f->number == 1) {
            MixValue *v = n->in[in];
            MixUse use = {.node = n, .scope = n->scope, .at = in, .unit = n->in_unit[in]};
            DType want = v ? mpri_rewrite_wanted(v, &use) : MPR_DTYPE_NONE;
            const char *name = v && mpri_mix_castable(want) ? mpri_rewrite_version(v, n->scope, want) : NULL;
            if (name && strcmp(name, v->name)) {
                mpri_rewrite_text(f, name);
                count_reader(v, name, n);
            }
            in++;
        } else if (f->number == 2) {
            if (n->out[out] && n->out[out]->fresh) mpri_rewrite_text(f, n->out[out]->fresh);
            out++;
        }
    }
}

void mpri_rewrite_retarget(Rewrite *w, const MixNode *n)
{
    const MixUnit *u = n->n_out ? n->out_unit[0] : NULL;
    if (!u || !u->follows || u->is == u->was.elem) return;
    mpri_cast_retarget(n->tree, u->is);
    if (n->scope->home || w->m->widen) return;
    mpri_rewrite_mark(w, mpri_pool_print(w->m->pool, "\\r%d:", n->scope->id), n->out[0]->name);
}

/* Result k of a body in the type that its node gives: the name that holds it. */
static const char *result_name(const MixScope *s, int k, MixValue *v, DType *type)
{
    *type = mpri_rewrite_wanted(v, s->output_uses[k]);
    const char *to = mpri_mix_castable(*type) ? mpri_rewrite_version(v, s, *type) : NULL;
    if (to && strcmp(to, v->name)) count_reader(v, to, NULL);
    return to;
}

void mpri_retype_graph(Rewrite *w, MixScope *s)
{
    int out = 0, given = s->graph->n;
    for (int i = 0; i < given; i++) {
        TreeField *f = &s->graph->f[i];
        if ((f->number != G_IN && f->number != G_OUT && f->number != G_INFO) || !f->tree) continue;
        TreeField *name = mpri_tree_find(f->tree, 1), *elem = mpri_info_elem(f->tree);
        MixValue *v = mpri_mix_find(s, mpri_tree_text(w->m->pool, f->tree, 1));
        int k = f->number == G_OUT ? out++ : 0;
        if (!v) continue;
        DType type = v->held;
        if (f->number == G_OUT && s->outer && s->output_uses[k]) {
            const char *to = result_name(s, k, v, &type);
            if (to && name) mpri_rewrite_text(name, to);
        }
        if (elem && (DType)elem->value == v->type.elem && type != v->type.elem)
            mpri_info_set(f->tree, type);
    }
}

/* Formals and results of a function are mere names. */
void mpri_retype_function(Rewrite *w, MixScope *s)
{
    enum { F_OUT = 5 };
    int out = 0, given = s->graph->n;
    DType type;
    for (int i = 0; i < given; i++) {
        TreeField *f = &s->graph->f[i];
        if (f->number == s->info_field && f->tree) {
            const MixValue *v = mpri_mix_find(s, mpri_tree_text(w->m->pool, f->tree, 1));
            const TreeField *elem = mpri_info_elem(f->tree);
            if (v && elem && (DType)elem->value == v->type.elem) mpri_info_set(f->tree, v->held);
        } else if (f->number == F_OUT) {
            int k = out++;
            const char *to = s->outputs[k] ? result_name(s, k, s->outputs[k], &type) : NULL;
            if (to) mpri_rewrite_text(f, to);
        }
    }
}
