/* The host's allocator. Everything the library allocates for itself comes through one of these, so
 * a program can supply its own and tests can let allocation k fail. */
#ifndef MPRI_BASE_ALLOC_H
#define MPRI_BASE_ALLOC_H

#include <stddef.h>

typedef struct Alloc {
    void *(*alloc)(void *user, size_t size, size_t align); /* NULL when there is none; not zeroed */
    void (*free)(void *user, void *p);                     /* NULL-safe */
    void *user;
} Alloc;

const Alloc *mpri_alloc_default(void); /* posix_memalign and free */
void *mpri_alloc(const Alloc *a, size_t size, size_t align);
void mpri_free(const Alloc *a, void *p);

#endif
