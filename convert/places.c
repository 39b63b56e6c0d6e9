/* Paths are those that importer/inline.c and importer/unroll.c make. */
#include "convert/places.h"

#include <string.h>

static const char *name_of(Pool *pool, const MixScope *s)
{
    return s->original ? s->owner->op : mpri_tree_text(pool, s->graph, 2);
}

/* A branch without a name of its own goes by the attribute. */
static const char *branch_of(Pool *pool, const MixScope *s)
{
    const char *name = name_of(pool, s);
    for (int b = 0; b < s->owner->n_bodies; b++)
        if (s->owner->bodies[b] != s && !strcmp(name_of(pool, s->owner->bodies[b]), name))
            return s->attribute;
    return *name ? name : s->attribute;
}

/* "OWNER/WHAT/" of every scope around, outermost first. */
static const char *path_of(Pool *pool, const MixScope *s)
{
    const MixNode *n = s->owner;
    if (!n) return "";
    const char *around = path_of(pool, n->scope);
    const char *owner = *n->name ? n->name : n->n_out ? n->out_name[0] : "";
    bool branch = !s->original && !strcmp(n->op, "If"), turns = !s->original && !branch;
    return mpri_pool_print(pool, "%s%s/%s/%s", around, owner,
                           branch ? branch_of(pool, s) : n->op, turns ? "*/" : "");
}

const char *mpri_place_imported(Pool *pool, const char *name)
{
    static const char *const loops[] = {"/Loop/", "/Scan/", "/SequenceMap/"};
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
        for (const char *at = name; (at = strstr(at, loops[i]));) {
            at += strlen(loops[i]);
            size_t digits = strspn(at, "0123456789.");
            if (!digits || at[digits] != '/') continue;
            int head = (int)(at - name);
            name = mpri_pool_print(pool, "%.*s*%s", head, name, at + digits);
            at = name + head;
        }
    }
    return name;
}

const char *mpri_place(Pool *pool, const MixScope *s, const char *name)
{
    const char *path = path_of(pool, s);
    if (*path) name = mpri_pool_print(pool, "%s%s", path, name);
    return mpri_place_imported(pool, name);
}
