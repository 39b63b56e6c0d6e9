/* String interning: equal strings have one address, so names compare by pointer. Owned by an arena. */
#ifndef MPRI_BASE_INTERN_H
#define MPRI_BASE_INTERN_H

#include <stddef.h>
#include "runtime/base/arena.h"

typedef struct Intern Intern;

Intern *mpri_intern_create(Arena *arena); /* NULL when out of memory; dies with the arena */
const char *mpri_intern(Intern *in, const char *s);             /* NULL when out of memory */
const char *mpri_intern_n(Intern *in, const char *s, size_t n);
const char *mpri_intern_find(const Intern *in, const char *s);  /* NULL when it was never interned */

#endif
