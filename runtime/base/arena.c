/* Arenas: a list of blocks, the newest first. Small requests are cut from the head block; a request
 * that would waste most of a new block gets a block of its own behind the head. */
#include "runtime/base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/size.h"

enum { BLOCK_ALIGN = 64, FIRST_BLOCK = 8 << 10, LARGEST_BLOCK = 1 << 20, LARGE_REQUEST = 4096 };

struct ArenaBlock { /* the header fills one cache line, data follow */
    ArenaBlock *next;
    size_t size, used; /* bytes of data */
    char pad[BLOCK_ALIGN - 3 * sizeof(size_t)];
};

static char *block_data(ArenaBlock *b)
{
    return (char *)(b + 1);
}

void mpri_arena_init(Arena *a, const Alloc *alloc, size_t limit)
{
    a->alloc = alloc ? alloc : mpri_alloc_default();
    a->head = NULL;
    a->used = 0;
    a->limit = limit;
}

static ArenaBlock *block_create(const Alloc *alloc, size_t size)
{
    size_t bytes;
    if (!mpri_size_add(size, sizeof(ArenaBlock), &bytes)) return NULL;
    ArenaBlock *b = mpri_alloc(alloc, bytes, BLOCK_ALIGN);
    if (b) *b = (ArenaBlock){.size = size};
    return b;
}

/* Offset at which a request fits into the block, or SIZE_MAX. */
static size_t block_fit(const ArenaBlock *b, size_t size, size_t align)
{
    size_t at = (b->used + align - 1) & ~(align - 1);
    return at <= b->size && size <= b->size - at ? at : SIZE_MAX;
}

static ArenaBlock *block_for(Arena *a, size_t size)
{
    size_t want = a->head ? a->head->size * 2 : FIRST_BLOCK;
    if (want > LARGEST_BLOCK) want = LARGEST_BLOCK;
    if (want < FIRST_BLOCK) want = FIRST_BLOCK;
    bool own = size > want / 4;
    ArenaBlock *b = block_create(a->alloc, own ? size : want);
    if (!b) return NULL;
    if (own && a->head) {
        b->next = a->head->next;
        a->head->next = b;
    } else {
        b->next = a->head;
        a->head = b;
    }
    return b;
}

void *mpri_arena_alloc(Arena *a, size_t size)
{
    size_t align = size >= LARGE_REQUEST ? BLOCK_ALIGN : 16;
    size_t rounded;
    if (!mpri_size_align(size ? size : 1, 16, &rounded)) return NULL;
    if (a->limit && (a->used > a->limit || rounded > a->limit - a->used)) return NULL;
    ArenaBlock *b = a->head;
    size_t at = b ? block_fit(b, rounded, align) : SIZE_MAX;
    if (at == SIZE_MAX) {
        b = block_for(a, rounded);
        if (!b) return NULL;
        at = 0;
    }
    b->used = at + rounded;
    a->used += rounded;
    return memset(block_data(b) + at, 0, rounded);
}

void *mpri_arena_array(Arena *a, size_t count, size_t size)
{
    size_t bytes;
    return mpri_size_mul(count, size, &bytes) ? mpri_arena_alloc(a, bytes) : NULL;
}

void *mpri_arena_dup(Arena *a, const void *src, size_t size)
{
    void *p = mpri_arena_alloc(a, size);
    if (p && size) memcpy(p, src, size);
    return p;
}

char *mpri_arena_strdup(Arena *a, const char *s)
{
    return mpri_arena_dup(a, s, strlen(s) + 1);
}

char *mpri_arena_printf(Arena *a, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *p = n < 0 ? NULL : mpri_arena_alloc(a, (size_t)n + 1);
    if (!p) return NULL;
    va_start(args, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, args);
    va_end(args);
    return p;
}

/* Free all blocks but `keep`. */
static void free_blocks(Arena *a, const ArenaBlock *keep)
{
    for (ArenaBlock *b = a->head, *next; b; b = next) {
        next = b->next;
        if (b != keep) mpri_free(a->alloc, b);
    }
}

void mpri_arena_reset(Arena *a)
{
    ArenaBlock *first = a->head;
    while (first && first->next) first = first->next;
    free_blocks(a, first);
    a->head = first;
    a->used = 0;
    if (first) {
        first->next = NULL;
        first->used = 0;
    }
}

void mpri_arena_destroy(Arena *a)
{
    if (!a) return;
    free_blocks(a, NULL);
    a->head = NULL;
    a->used = 0;
}
