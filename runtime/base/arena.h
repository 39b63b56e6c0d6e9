/* Arenas: memory owned by a lifetime (model, plan, scratch of one pass, one call).
 *
 *   model    lives as long as mpr_model: names, graph, parameter table
 *   plan     lives as long as one bound plan
 *   scratch  reset after every pass
 *   call     reset at the end of one API call
 *
 * Nothing inside an arena is freed singly. Memory is zeroed. A limit (bytes, 0 = none) makes the
 * arena fail instead of growing. All blocks come from the host allocator given at init. */
#ifndef MPRI_BASE_ARENA_H
#define MPRI_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>
#include "runtime/base/alloc.h"
#include "runtime/base/err.h"

typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    const Alloc *alloc;
    ArenaBlock *head;
    size_t used, limit; /* bytes handed out / allowed (0 = no limit) */
} Arena;

void mpri_arena_init(Arena *a, const Alloc *alloc, size_t limit);
/* Zeroed memory aligned to 16 bytes (64 when size >= 4096), or NULL. Size 0 gives a valid
 * pointer. */
void *mpri_arena_alloc(Arena *a, size_t size);
/* count * size with overflow check. */
void *mpri_arena_array(Arena *a, size_t count, size_t size);
char *mpri_arena_strdup(Arena *a, const char *s);
void *mpri_arena_dup(Arena *a, const void *src, size_t size);
char *mpri_arena_printf(Arena *a, const char *fmt, ...) MPRI_PRINTF(2, 3);
void mpri_arena_reset(Arena *a);   /* keep the first block, free the rest */
void mpri_arena_destroy(Arena *a); /* NULL-safe; the arena may be initialised again */

#define ARENA_NEW(a, T) ((T *)mpri_arena_alloc((a), sizeof(T)))
#define ARENA_ARRAY(a, T, n) ((T *)mpri_arena_array((a), (size_t)(n), sizeof(T)))

#endif
