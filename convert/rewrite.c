/* One Cast for a value, a type and the scope of the first need, right behind the producer; inputs,
 * initializers and values of outer scopes are cast at the start of the scope.
 *
 * A graph output in low precision: the producer writes a fresh name and a Cast the public one. */
#include "convert/rewrite.h"

#include <stdlib.h>
#include <string.h>

#include "convert/casts.h"
#include "convert/file.h"
#include "convert/marks.h"
#include "convert/rewrite_parts.h"
#include "importer/wire.h"

enum { G_NODE = 1, G_INIT = 5, G_IN = 11, G_OUT = 12, G_INFO = 13 };

typedef struct Insertion {
    MixScope *scope;
    int after; /* node of the scope; -1: before all */
    int order;
    Tree *node;
} Insertion;

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

static TreeField *info_elem(Tree *info)
{
    TreeField *type = mpri_tree_find(info, 2);
    Tree *holder = type && type->tree ? elem_holder(type->tree) : NULL;
    return holder ? mpri_tree_find(holder, 1) : NULL;
}

void mpri_info_set(Tree *info, DType elem)
{
    TreeField *f = info_elem(info);
    if (f && f->type == WIRE_VARINT && mpri_mix_castable((DType)f->value))
        f->value = (uint64_t)elem;
}

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

static void set_text(TreeField *f, const char *text)
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
        if (name && name->len) set_text(name, type_word(to));
        else if (number) number->value = (uint64_t)to;
    }
}

static Tree *make_cast(Rewrite *w, const MixScope *s, const char *from, const char *to, const char *name, DType type)
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
static void declare(Rewrite *w, MixScope *s, const MixValue *v, const char *name, DType type)
{
    TreeField *t = v->info ? mpri_tree_find(v->info, 2) : NULL;
    if (!t || !t->tree || !info_elem((Tree *)v->info)) {
        if (w->m->opset < 6) declare_type(w, s, name, type);
        return;
    }
    Tree *info = mpri_tree_put_tree(w->m->pool, s->graph, s->info_field);
    mpri_tree_put_text(w->m->pool, info, 1, name);
    mpri_tree_add(w->m->pool, info, 2, WIRE_BYTES)->tree =
        mpri_tree_copy(w->m->pool, t->tree);
    mpri_info_set(info, type);
}

static void note_cast(Rewrite *w, MixScope *s, const MixValue *v, const char *name, DType from,
                      DType to)
{
    RewriteCast *c = mpri_pool_take(w->m->pool, sizeof *c);
    *c = (RewriteCast){.name = name, .value = v->name, .scope = s->path, .from = from, .to = to};
    if (w->last) w->last->next = c;
    else w->list = c;
    w->last = c;
    w->casts++;
}

void mpri_rewrite_as(Rewrite *w, MixValue *v, MixScope *s, DType type, const char *name,
                   RewriteCast *cast)
{
    MixAs *a = mpri_pool_take(w->m->pool, sizeof *a);
    *a = (MixAs){.type = type, .scope = s, .name = name, .cast = cast, .next = v->as};
    v->as = a;
}

static bool sees(const MixScope *in, const MixScope *made)
{
    for (; in; in = in->outer)
        if (in == made) return true;
    return false;
}

static const char *version(const MixValue *v, const MixScope *s, DType type)
{
    if (v->now == type) return v->fresh ? v->fresh : v->name;
    if (v->held == type) return v->name;
    for (const MixAs *a = v->as; a; a = a->next)
        if (a->type == type && sees(s, a->scope)) return a->name;
    return NULL;
}

/* ---- what every use wants ---- */

DType mpri_rewrite_wanted(const MixValue *v, const MixUse *u)
{
    if (u->unit) return u->unit->is;
    if (u->node && u->node->any) return v->now;
    if (!u->node && !u->scope->outer) return MPR_DTYPE_NONE; /* the output of the model itself */
    return v->type.elem;
}

const char *mpri_rewrite_fresh(Rewrite *w, const MixValue *v, DType type)
{
    return mpri_mix_fresh_in(w->m, v->scope, mpri_pool_print(w->m->pool, "%s__mpr_%s", v->name,
                                                             mpri_file_suffix(type)));
}

static MixScope *scope_of_need(const MixValue *v, const MixUse *use, DType type)
{
    MixScope *best = use->scope;
    for (const MixUse *u = v->uses; u; u = u->next)
        if (mpri_rewrite_wanted(v, u) == type && sees(use->scope, u->scope) && sees(best, u->scope))
            best = u->scope;
    return best;
}

static void cast_uses(Rewrite *w, MixValue *v)
{
    for (MixUse *u = v->uses; u; u = u->next) {
        DType type = mpri_rewrite_wanted(v, u);
        if (type == MPR_DTYPE_NONE || !mpri_mix_castable(type)) continue;
        if (version(v, u->scope, type)) continue;
        MixScope *s = scope_of_need(v, u, type);
        const MixValue *past = mpri_cast_source(v, type), *from = past ? past : v;
        const char *name = mpri_rewrite_fresh(w, v, type);
        const char *read = from->fresh ? from->fresh : from->name;
        mpri_rewrite_insert(w, s, v, make_cast(w, s, read, name, name, type));
        note_cast(w, s, v, name, from->now, type);
        w->merged += past != NULL;
        declare(w, s, v, name, type);
        mpri_rewrite_as(w, v, s, type, name, w->last);
    }
}

/* ---- graph inputs and outputs ---- */

static DType io_type(const char *text)
{
    static const struct { const char *word; DType type; } words[] = {
        {"fp16", MPR_FLOAT16}, {"f16", MPR_FLOAT16}, {"float16", MPR_FLOAT16},
        {"bf16", MPR_BFLOAT16}, {"bfloat16", MPR_BFLOAT16}, {"fp32", MPR_FLOAT32},
        {"f32", MPR_FLOAT32}, {"float32", MPR_FLOAT32}, {"float", MPR_FLOAT32},
        {"keep", MPR_DTYPE_NONE},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, text)) return words[i].type;
    return MPR_STRING;
}

static DType public_type(const Rewrite *w, const MixValue *v)
{
    DType found = v->type.elem, all = v->type.elem;
    bool named = false;
    if (!mpri_mix_castable(v->type.elem) || v->type.wrap != WRAP_TENSOR) return v->type.elem;
    for (int i = 0; w->io && w->io[i]; i++) {
        const char *eq = strrchr(w->io[i], '=');
        size_t n = (size_t)(eq - w->io[i]);
        DType t = io_type(eq + 1);
        t = t == MPR_DTYPE_NONE ? v->type.elem : t;
        if (n == strlen(v->name) && !strncmp(v->name, w->io[i], n)) {
            found = t;
            named = true;
        } else if (n == 3 && !strncmp("all", w->io[i], n)) {
            all = t;
        }
    }
    return named ? found : all;
}

static mpr_status check_io(Rewrite *w)
{
    for (int i = 0; w->io && w->io[i]; i++) {
        const char *eq = strrchr(w->io[i], '='), *item = w->io[i];
        if (!eq || io_type(eq + 1) == MPR_STRING) {
            mpri_err_set(w->err, MPR_E_USAGE, "--io %s: expected NAME=TYPE", mpri_err_name(item));
            return mpri_err_advice(w->err, "TYPE is keep, fp16, bf16 or fp32");
        }
        const char *name = mpri_pool_text(w->m->pool, item, (size_t)(eq - item));
        const MixValue *v = mpri_mix_find(w->m->top, name);
        if (strcmp(name, "all") && !(v && (v->input || v->output))) {
            mpri_err_set(w->err, MPR_E_USAGE, "--io %s: the model has no input or output '%s'",
                         mpri_err_name(item), mpri_err_name(name));
            return mpri_err_advice(w->err, "name a graph input or output, or use all=TYPE");
        }
    }
    return MPR_OK;
}

static void mark_io(Rewrite *w, const MixValue *v)
{
    mpri_rewrite_mark(w, mpri_pool_print(w->m->pool, "\\i%d:", (int)v->type.elem), v->name);
}

static void settle(Rewrite *w, MixValue *v)
{
    v->now = v->held = v->unit ? v->unit->is : v->type.elem;
    if (v->scope->outer || !mpri_mix_castable(v->type.elem) || v->type.wrap != WRAP_TENSOR) return;
    if (v->input && !v->initializer) {
        v->now = v->held = public_type(w, v);
        if (v->now != v->type.elem) mark_io(w, v);
    }
    if (!v->output || !v->maker) return;
    DType type = public_type(w, v);
    if (type != v->type.elem) mark_io(w, v);
    if (type == v->now) return;
    v->held = type;
    v->fresh = mpri_rewrite_fresh(w, v, v->now);
    mpri_rewrite_insert(w, v->scope, v, make_cast(w, v->scope, v->fresh, v->name, v->fresh, type));
    note_cast(w, v->scope, v, v->fresh, v->now, type);
    for (const MixUse *u = v->uses; u; u = u->next) /* the public output and who reads it */
        w->last->consumers += mpri_rewrite_wanted(v, u) == type || (!u->node && !u->scope->outer);
    declare(w, v->scope, v, v->fresh, v->now);
}

/* ---- names into the tree ---- */

static void count_reader(const MixValue *v, const char *name, const MixNode *n)
{
    for (MixAs *a = v->as; a; a = a->next) {
        if (a->name != name || !a->cast) continue;
        a->cast->consumers++;
        if (!a->cast->reader) a->cast->reader = n;
    }
}

static void rename_node(MixNode *n)
{
    int in = 0, out = 0;
    for (int i = 0; i < n->tree->n; i++) {
        TreeField *f = &n->tree->f[i];
        if (f->number == 1) {
            MixValue *v = n->in[in];
            MixUse use = {.node = n, .scope = n->scope, .at = in, .unit = n->in_unit[in]};
            DType want = v ? mpri_rewrite_wanted(v, &use) : MPR_DTYPE_NONE;
            const char *name = v && mpri_mix_castable(want) ? version(v, n->scope, want) : NULL;
            if (name && strcmp(name, v->name)) {
                set_text(f, name);
                count_reader(v, name, n);
            }
            in++;
        } else if (f->number == 2) {
            if (n->out[out] && n->out[out]->fresh) set_text(f, n->out[out]->fresh);
            out++;
        }
    }
}

/* A Cast of the model that reads a low value without one of ours in between. */
static bool passes_low(const MixNode *n)
{
    const MixUnit *u = n->n_in ? n->in_unit[0] : NULL;
    return u && u->follows && u->is != u->was.elem;
}

static void retarget(Rewrite *w, const MixNode *n)
{
    const MixUnit *u = n->n_out ? n->out_unit[0] : NULL;
    if (!u || !u->follows || u->is == u->was.elem || w->m->widen) return;
    mpri_cast_retarget(n->tree, u->is);
    if (n->scope->home) return;
    mpri_rewrite_mark(w, mpri_pool_print(w->m->pool, "\\r%d:", n->scope->id), n->out[0]->name);
}

/* Result k of a body in the type that its node gives: the name that holds it. */
static const char *result_name(const MixScope *s, int k, MixValue *v, DType *type)
{
    *type = mpri_rewrite_wanted(v, s->output_uses[k]);
    const char *to = mpri_mix_castable(*type) ? version(v, s, *type) : NULL;
    if (to && strcmp(to, v->name)) count_reader(v, to, NULL);
    return to;
}

static void retype_graph(Rewrite *w, MixScope *s)
{
    int out = 0, given = s->graph->n;
    for (int i = 0; i < given; i++) {
        TreeField *f = &s->graph->f[i];
        if ((f->number != G_IN && f->number != G_OUT && f->number != G_INFO) || !f->tree) continue;
        TreeField *name = mpri_tree_find(f->tree, 1), *elem = info_elem(f->tree);
        MixValue *v = mpri_mix_find(s, mpri_tree_text(w->m->pool, f->tree, 1));
        int k = f->number == G_OUT ? out++ : 0;
        if (!v) continue;
        DType type = v->held;
        if (f->number == G_OUT && s->outer && s->output_uses[k]) {
            const char *to = result_name(s, k, v, &type);
            if (to && name) set_text(name, to);
        }
        if (elem && (DType)elem->value == v->type.elem && type != v->type.elem)
            mpri_info_set(f->tree, type);
    }
}

/* Formals and results of a function are mere names. */
static void retype_function(Rewrite *w, MixScope *s)
{
    enum { F_OUT = 5 };
    int out = 0, given = s->graph->n;
    DType type;
    for (int i = 0; i < given; i++) {
        TreeField *f = &s->graph->f[i];
        if (f->number == s->info_field && f->tree) {
            const MixValue *v = mpri_mix_find(s, mpri_tree_text(w->m->pool, f->tree, 1));
            const TreeField *elem = info_elem(f->tree);
            if (v && elem && (DType)elem->value == v->type.elem) mpri_info_set(f->tree, v->held);
        } else if (f->number == F_OUT) {
            int k = out++;
            const char *to = s->outputs[k] ? result_name(s, k, s->outputs[k], &type) : NULL;
            if (to) set_text(f, to);
        }
    }
}

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

static void put_all(Rewrite *w)
{
    if (w->n_insertions)
        qsort(w->insertions, (size_t)w->n_insertions, sizeof(Insertion), by_place);
    for (int i = 0, k; i < w->n_insertions; i = k) {
        for (k = i; k < w->n_insertions && w->insertions[k].scope == w->insertions[i].scope; k++) {}
        put_insertions(w, w->insertions[i].scope, i, k - i);
    }
}

static void put_marks(Rewrite *w)
{
    if (!*w->lines) return;
    Tree *entry = mpri_tree_put_tree(w->m->pool, w->m->model, 14);
    mpri_tree_put_text(w->m->pool, entry, 1, MPRI_MARK_MODEL);
    mpri_tree_put_text(w->m->pool, entry, 2, w->lines);
}

mpr_status mpri_rewrite(Rewrite *w)
{
    Mix *m = w->m;
    w->lines = "";
    TRY(check_io(w));
    for (int i = 0; i < m->n_values; i++) settle(w, m->values[i]);
    for (int i = 0; i < m->n_values; i++) {
        MixValue *v = m->values[i];
        if (v->type.wrap != WRAP_TENSOR || !mpri_mix_castable(v->type.elem)) continue;
        bool stored = w->infer && v->initializer;
        if ((stored || v->saturate) && v->tensor && !v->maker && !v->input &&
            v->type.elem != m->to)
            mpri_rewrite_tensor(w, v);
        if ((w->infer || v->saturate) && v->maker) mpri_rewrite_twin(w, v);
        cast_uses(w, v);
    }
    for (int i = 0; i < m->n_nodes; i++) {
        rename_node(m->nodes[i]);
        retarget(w, m->nodes[i]);
        w->merged += passes_low(m->nodes[i]);
    }
    for (int i = 0; i < m->n_scopes; i++)
        if (m->scopes[i]->original) retype_function(w, m->scopes[i]);
        else retype_graph(w, m->scopes[i]);
    put_all(w);
    mpri_rewrite_calls(w);
    put_marks(w);
    return MPR_OK;
}
