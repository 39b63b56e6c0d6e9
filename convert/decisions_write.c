/* Decisions as text, and where a model carries them. */
#include <string.h>

#include "convert/decisions.h"
#include "convert/report.h"
#include "importer/wire.h"
#include "passes/profile.h"

const char *mpri_decisions_word(DType t)
{
    return t == MPR_FLOAT32 ? "float" : mpri_dtype_long(t);
}

const char *mpri_decisions_unit(Pool *pool, const MixUnit *u)
{
    return mpri_pool_print(pool, "%s:%s", u->node->path, u->name);
}

static void put_unit(Pool *pool, Text *t, const MixUnit *u, bool first)
{
    mpri_text_put(t, first ? "" : ", ");
    mpri_report_string(t, u->name);
    mpri_text_put(t, ": {");
    if (u->detail) {
        mpri_text_put(t, "\"detail\": ");
        mpri_report_string(t, u->detail);
        mpri_text_put(t, ", ");
    }
    if (u->from && u->from != u) {
        mpri_text_put(t, "\"from\": ");
        mpri_report_string(t, mpri_decisions_unit(pool, u->from));
        mpri_text_put(t, ", ");
    }
    mpri_text_add(t, "\"is\": \"%s\", \"reason\": \"%s\"}", mpri_decisions_word(u->is),
                  mpri_reason_text(u->why));
}

void mpri_decisions_profile(Text *t, const Profile *p)
{
    static const char *const kinds[] = {
        [PROFILE_OP] = "op", [PROFILE_NODE] = "node", [PROFILE_SUBGRAPH] = "subgraph",
        [PROFILE_TENSOR] = "tensor"};
    mpri_text_add(t, "\"profile\": {\"base\": \"%s\", \"rules\": [", mpri_profile_base_name(p));
    for (int i = 0; i < p->n; i++) {
        const ProfileRule *r = &p->rules[i];
        mpri_text_add(t, "%s{\"class\": \"%s\", \"%s\": ", i ? ", " : "",
                      mpri_profile_class_name(r->cls), kinds[r->kind]);
        mpri_report_string(t, r->pattern);
        mpri_text_put(t, ", \"where\": ");
        mpri_report_string(t, r->where);
        mpri_text_put(t, "}");
    }
    mpri_text_put(t, "]},\n");
}

const char *mpri_decisions_text(Mix *m, const Profile *profile)
{
    Text t;
    bool first = true;
    mpri_text_init(&t, m->pool->arena->alloc);
    mpri_text_add(&t, "{\"for\": \"%s\", \"nodes\": [", mpri_decisions_word(m->to));
    for (int i = 0; i < m->n_nodes; i++) {
        const MixNode *n = m->nodes[i];
        if (!n->n_units) continue;
        mpri_text_put(&t, first ? "\n {\"op\": " : ",\n {\"op\": ");
        mpri_report_string(&t, n->op);
        mpri_text_put(&t, ", \"path\": ");
        mpri_report_string(&t, n->path);
        mpri_text_put(&t, ", \"units\": {");
        for (int k = 0; k < n->n_units; k++) put_unit(m->pool, &t, n->units[k], !k);
        mpri_text_put(&t, "}}");
        first = false;
    }
    mpri_text_put(&t, "],\n");
    if (profile) mpri_decisions_profile(&t, profile);
    mpri_text_put(&t, "\"schema\": 1}\n");
    char *copy = t.failed ? NULL : mpri_arena_strdup(m->pool->arena, t.text);
    mpri_text_free(&t);
    if (!copy) longjmp(m->pool->full, 1);
    return copy;
}

void mpri_decisions_put(Mix *m)
{
    const char *text = mpri_decisions_text(m, NULL);
    Tree *entry = mpri_tree_put_tree(m->pool, m->model, 14);
    mpri_tree_put_text(m->pool, entry, 1, MPRI_DECISIONS_KEY);
    mpri_tree_put_text(m->pool, entry, 2, text);
}

/* ---- finding ---- */

const char *mpri_decisions_take(Mix *m)
{
    const char *text = NULL;
    for (int i = m->model->n - 1; i >= 0; i--) {
        const TreeField *f = &m->model->f[i];
        if (f->number != 14 || !f->tree ||
            strcmp(mpri_tree_text(m->pool, f->tree, 1), MPRI_DECISIONS_KEY))
            continue;
        if (!text) text = mpri_tree_text(m->pool, f->tree, 2);
        mpri_tree_remove(m->model, i);
    }
    return text;
}

mpr_status mpri_decisions_find(const Source *s, Arena *arena, const char **text, Err *err)
{
    static const char key[] = MPRI_DECISIONS_KEY;
    WireField f, k, v;
    size_t pos = 0;
    *text = NULL;
    while (mpri_wire_next(s->bytes, s->size, &pos, &f) == WIRE_OK) {
        if (f.number != 14 || f.type != WIRE_BYTES ||
            !mpri_wire_find(s->bytes, f.body, 1, &k) || k.body.len != sizeof key - 1 ||
            memcmp(s->bytes + k.body.at, key, sizeof key - 1) ||
            !mpri_wire_find(s->bytes, f.body, 2, &v))
            continue;
        char *copy = mpri_arena_alloc(arena, v.body.len + 1);
        if (!copy) return mpri_err_nomem(err, v.body.len + 1);
        memcpy(copy, s->bytes + v.body.at, v.body.len);
        copy[v.body.len] = '\0';
        *text = copy;
    }
    return MPR_OK;
}
