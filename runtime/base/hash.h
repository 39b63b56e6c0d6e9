/* uthash with all memory from an arena: include this instead of <uthash.h>. A function that adds to
 * a table has an `Arena *hash_arena` in scope. An entry that found no memory gets `lost` set and is
 * not in the table. */
#ifndef MPRI_BASE_HASH_H
#define MPRI_BASE_HASH_H

#include "runtime/base/arena.h"

#define uthash_malloc(size) mpri_arena_alloc(hash_arena, (size))
#define uthash_free(p, size) ((void)(p), (void)(size))
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(entry) ((entry)->lost = true)
#include <uthash.h>

#endif
