/* Why a node of the file computes in which type under a torch profile: what the base says of it,
 * which rules match, what the pass found, and the casts in front of it. */
#include <string.h>

#include "passes/prepare.h"
#include "passes/profile.h"

/* Node of the imported graph by name, "=VALUE", or "#INDEX" in the file; -1: none. *value: what it
 * makes. */
static int file_index(const Graph *imported, const char *ref, const char **value)
{
    int64_t index = -1;
    if (*ref == '#' && mpri_parse_i64(ref + 1, &index)) return (int)index;
    for (const Node *n = imported->first; n; n = n->next) {
        bool hit = !strcmp(ref, n->name);
        for (int k = 0; k < n->n_out && !hit; k++)
            hit = *ref == '=' && n->out[k] && !strcmp(ref + 1, n->out[k]->name);
        if (!hit) continue;
        if (n->n_out && n->out[0]) *value = n->out[0]->name;
        return n->origin.n ? n->origin.v[0] : -1;
    }
    return -1;
}

static bool stands_for(const Node *n, int index, const char *value, const char *ref)
{
    for (int i = 0; index >= 0 && i < n->origin.n; i++)
        if (n->origin.v[i] == index) return true;
    if (!strcmp(n->name, ref)) return true;
    return value && n->n_out && n->out[0] && !strcmp(n->out[0]->name, value);
}

static void put_input(Text *t, const Node *n, int k)
{
    const Value *v = n->in[k];
    const Node *d = mpri_def(v);
    if (!v || !mpri_dtype_is_float(v->dtype)) return;
    mpri_text_add(t, "    input %d '%s' is %s", k, mpri_err_name(v->name),
                  mpri_dtype_long(v->dtype));
    if (mpri_is(d, OP_Cast) && d->why)
        mpri_text_add(t, ", cast from %s: %s", mpri_dtype_long(d->in[0]->dtype), d->why);
    mpri_text_put(t, "\n");
}

static void put_chain(Text *t, const Profile *p, const Node *n)
{
    const char *last = "";
    for (int i = -1; i < p->n; i++) {
        const char *why = mpri_profile_step(p, n, i);
        if (!why) continue;
        mpri_text_add(t, "    %s%s\n", i < 0 ? "" : "then ", why);
        last = why;
    }
    if (n->why && strcmp(n->why, last)) mpri_text_add(t, "    but %s\n", n->why);
}

bool mpri_autocast_explain(const Graph *imported, const Graph *prepared, const Profile *p,
                           const char *ref, Text *t)
{
    const char *value = NULL;
    int index = file_index(imported, ref, &value);
    bool any = false;
    for (const Node *n = prepared->first; n; n = n->next) {
        if (mpri_is(n, OP_Cast) || !stands_for(n, index, value, ref)) continue;
        const Value *out = n->n_out ? n->out[0] : NULL;
        mpri_text_add(t, "%s (%s) under %s: makes %s\n", mpri_err_name(n->name), n->op->name,
                      mpri_err_name(p->name), out ? mpri_dtype_long(out->dtype) : "nothing");
        if (n->origin.n > 1)
            mpri_text_add(t, "    stands for %d nodes of the file\n", n->origin.n);
        put_chain(t, p, n);
        for (int k = 0; k < n->n_in; k++) put_input(t, n, k);
        any = true;
    }
    if (!any && index >= 0) {
        mpri_text_add(t, "%s under %s: a part of what was recovered or folded, or a cast\n",
                      mpri_err_name(ref), mpri_err_name(p->name));
        any = true;
    }
    return any;
}
