/* String interning over uthash, with all memory from the arena. A child table looks into its parent
 * first and never writes to it, so clones of one graph may grow names in several threads. */
#include "runtime/base/intern.h"

#include <stdbool.h>
#include <string.h>

#include "runtime/base/hash.h"

typedef struct Entry {
    UT_hash_handle hh;
    bool lost;
    char text[];
} Entry;

struct Intern {
    Arena *arena;
    const Intern *parent;
    Entry *entries;
};

Intern *mpri_intern_create(Arena *arena)
{
    Intern *in = ARENA_NEW(arena, Intern);
    if (in) in->arena = arena;
    return in;
}

Intern *mpri_intern_child(Arena *arena, const Intern *parent)
{
    Intern *in = mpri_intern_create(arena);
    if (in) in->parent = parent;
    return in;
}

void mpri_intern_move(Intern *in, const Arena *from, Arena *to)
{
    if (in->arena == from) in->arena = to;
}

static const char *find(const Intern *in, const char *s, size_t n)
{
    for (; in; in = in->parent) {
        Entry *e;
        HASH_FIND(hh, in->entries, s, n, e);
        if (e) return e->text;
    }
    return NULL;
}

const char *mpri_intern_n(Intern *in, const char *s, size_t n)
{
    const char *known = find(in, s, n);
    if (known) return known;
    Arena *hash_arena = in->arena;
    Entry *e = mpri_arena_alloc(hash_arena, sizeof(Entry) + n + 1);
    if (!e) return NULL;
    memcpy(e->text, s, n);
    HASH_ADD_KEYPTR(hh, in->entries, e->text, n, e);
    return e->lost ? NULL : e->text;
}

const char *mpri_intern(Intern *in, const char *s)
{
    return mpri_intern_n(in, s, strlen(s));
}

const char *mpri_intern_find(const Intern *in, const char *s)
{
    return find(in, s, strlen(s));
}
