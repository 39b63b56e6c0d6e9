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

/* ---- versions of a value ---- */

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

const char *mpri_rewrite_version(const MixValue *v, const MixScope *s, DType type)
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
        if (mpri_rewrite_version(v, u->scope, type)) continue;
        MixScope *s = scope_of_need(v, u, type);
        const MixValue *past = mpri_cast_source(v, type), *from = past ? past : v;
        const char *name = mpri_rewrite_fresh(w, v, type);
        const char *read = from->fresh ? from->fresh : from->name;
        mpri_rewrite_insert(w, s, v, mpri_rewrite_cast(w, s, read, name, name, type));
        mpri_rewrite_note(w, s, v, name, from->now, type);
        w->merged += past != NULL;
        mpri_rewrite_declare(w, s, v, name, type);
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

DType mpri_rewrite_public(const Rewrite *w, const MixValue *v)
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
        v->now = v->held = mpri_rewrite_public(w, v);
        if (v->now != v->type.elem) mark_io(w, v);
    }
    if (!v->output || !v->maker) return;
    DType type = mpri_rewrite_public(w, v);
    if (type != v->type.elem) mark_io(w, v);
    if (type == v->now) return;
    v->held = type;
    v->fresh = mpri_rewrite_fresh(w, v, v->now);
    mpri_rewrite_insert(w, v->scope, v, mpri_rewrite_cast(w, v->scope, v->fresh, v->name, v->fresh, type));
    mpri_rewrite_note(w, v->scope, v, v->fresh, v->now, type);
    for (const MixUse *u = v->uses; u; u = u->next) /* the public output and who reads it */
        w->last->consumers += mpri_rewrite_wanted(v, u) == type || (!u->node && !u->scope->outer);
    mpri_rewrite_declare(w, v->scope, v, v->fresh, v->now);
}

/* A Cast of the model that reads a low value without one of ours in between. */
static bool passes_low(const MixNode *n)
{
    const MixUnit *u = n->n_in ? n->in_unit[0] : NULL;
    return u && u->follows && u->is != u->was.elem;
}

mpr_status mpri_rewrite(Rewrite *w)
{
    Mix *m = w->m;
    w->lines = "";
    TRY(check_io(w));
    if (w->drop) mpri_rounding_off(w);
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
        mpri_rename_node(m->nodes[i]);
        mpri_rewrite_retarget(w, m->nodes[i]);
        w->merged += passes_low(m->nodes[i]);
    }
    for (int i = 0; i < m->n_scopes; i++)
        if (m->scopes[i]->original) mpri_retype_function(w, m->scopes[i]);
        else mpri_retype_graph(w, m->scopes[i]);
    mpri_rewrite_put_nodes(w);
    mpri_rewrite_calls(w);
    mpri_rewrite_put_marks(w);
    mpri_rounding_remove(w);
    return MPR_OK;
}
