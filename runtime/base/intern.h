/* String interning: equal strings have one address, so names compare by pointer. Owned by an
 * arena. */
#ifndef MPRI_BASE_INTERN_H
#define MPRI_BASE_INTERN_H

#include <stddef.h>
#include "runtime/base/arena.h"

typedef struct Intern Intern;

Intern *mpri_intern_create(Arena *arena); /* NULL when out of memory; dies with the arena */
/* A table that also knows every string of parent (same addresses) and leaves parent untouched. The
 * parent must live as long, and must not grow meanwhile in another thread. */
Intern *mpri_intern_child(Arena *arena, const Intern *parent);
/* The Arena struct moved to another address; nothing happens when the table's arena is not
 * `from`. */
void mpri_intern_move(Intern *in, const Arena *from, Arena *to);
const char *mpri_intern(Intern *in, const char *s);             /* NULL when out of memory */
const char *mpri_intern_n(Intern *in, const char *s, size_t n);
const char *mpri_intern_find(const Intern *in, const char *s); /* NULL when it never was */

#endif
