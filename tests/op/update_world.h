/* Slots for an operator of the update family, written as text; every row of the operator runs on its own. */
#ifndef MPRI_TESTS_UPDATE_WORLD_H
#define MPRI_TESTS_UPDATE_WORLD_H

#include "tests/support/kernels.h"

typedef struct World { /* one row's private copy of all slots */
    Arena arena;
    Tensor in[20];
    int n;
} World;

typedef void (*Fill)(World *w);

static inline void add(World *w, const char *text) { w->in[w->n++] = test_tensor(&w->arena, text); }

/* Runs every row for op on its own world; all must agree to the bit. Returns the world of `ref`. */
static inline World run(int op, const void *params, Fill fill, int times)
{
    const KernelRow *rows[16];
    int count = test_kernel_rows(op, rows, 16);
    World ref = {0};
    for (int r = count - 1; r >= 0; r--) {
        World w = {0};
        mpri_arena_init(&w.arena, mpri_alloc_default(), 0);
        fill(&w);
        for (int i = 0; i < times; i++)
            assert_int_equal(
                test_kernel_run(&w.arena, rows[r], params, w.n, w.in, 0, NULL, NULL, NULL), MPR_OK);
        if (r == count - 1) {
            ref = w;
            continue;
        }
        for (int k = 0; k < w.n; k++) {
            if (!mpri_tensor_here(&w.in[k])) continue;
            assert_memory_equal(w.in[k].data, ref.in[k].data,
                                (size_t)w.in[k].n * mpri_dtype_size(w.in[k].dtype));
            assert_true(test_tensor_guard(&w.in[k]));
        }
        mpri_arena_destroy(&w.arena);
    }
    return ref;
}

static inline double value(const World *w, int k, int64_t i)
{
    return mpri_load_f64(w->in[k].dtype, w->in[k].data, i);
}

#endif
