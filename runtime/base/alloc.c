/* The default allocator, and the two calls that everything else uses. */
#include "runtime/base/alloc.h"

#include <stdlib.h>

static void *default_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    void *p;
    if (align < sizeof(void *)) align = sizeof(void *);
    return posix_memalign(&p, align, size ? size : 1) == 0 ? p : NULL;
}

static void default_free(void *user, void *p)
{
    (void)user;
    free(p);
}

const Alloc *mpri_alloc_default(void)
{
    static const Alloc a = {default_alloc, default_free, NULL};
    return &a;
}

void *mpri_alloc(const Alloc *a, size_t size, size_t align)
{
    return a->alloc(a->user, size, align);
}

void mpri_free(const Alloc *a, void *p)
{
    if (p) a->free(a->user, p);
}
