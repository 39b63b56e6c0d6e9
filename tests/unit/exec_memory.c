/* The memory planner: live items never overlap, the peak is at least the bound, near it on
 * realistic lifetimes, independent of what came before, and fast. */
#include "tests/support/support.h"

#include <string.h>
#include <time.h>

#include "runtime/base/rng.h"
#include "runtime/exec/plan.h"

static size_t aligned(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static void check(const MemItem *items, int n, size_t peak, size_t bound)
{
    assert_true(peak >= bound);
    for (int i = 0; i < n; i++) {
        assert_int_equal(items[i].offset % 64, 0);
        assert_true(items[i].offset + items[i].bytes <= peak || items[i].bytes == 0);
        for (int j = 0; j < i; j++) {
            const MemItem *a = &items[i], *b = &items[j];
            bool together = a->first <= b->last && b->first <= a->last;
            bool overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            if (together && overlap && a->bytes && b->bytes)
                fail_msg("items %d and %d overlap", i, j);
        }
    }
}

static size_t true_bound(const MemItem *items, int n, int steps)
{
    size_t most = 0;
    for (int t = -1; t <= steps; t++) {
        size_t now = 0;
        for (int i = 0; i < n; i++)
            if (items[i].first <= t && t <= items[i].last) now += aligned(items[i].bytes);
        if (now > most) most = now;
    }
    return most;
}

static void test_random(void **state)
{
    (void)state;
    enum { MOST = 200 };
    MemItem items[MOST];
    for (uint64_t seed = 0; seed < 300; seed++) {
        int n = (int)mpri_rng_below(seed, 0, 0, MOST) + 1,
            steps = 1 + (int)mpri_rng_below(seed, 0, 1, 60);
        for (int i = 0; i < n; i++) {
            uint64_t k = (uint64_t)i;
            int a = (int)mpri_rng_below(seed, 1, k, (uint64_t)steps) - 1,
                b = a + (int)mpri_rng_below(seed, 2, k, 8);
            size_t bytes =
                (size_t)mpri_rng_below(seed, 3, k, 5) * (size_t)mpri_rng_below(seed, 4, k, 1000);
            items[i] =
                (MemItem){.bytes = bytes, .first = a, .last = b > steps ? steps : b, .offset = 77};
        }
        Arena a;
        Err err = {0};
        size_t peak, bound;
        mpri_arena_init(&a, NULL, 0);
        assert_ok(mpri_memory_plan(items, n, &a, &peak, &bound, &err), &err);
        assert_int_equal(bound, true_bound(items, n, steps));
        check(items, n, peak, bound);
        mpri_arena_destroy(&a);
    }
}

/* Forward activations that live until their backward step: nested lifetimes, as training has them.
 */
static void test_nested_lifetimes_reach_the_bound(void **state)
{
    (void)state;
    enum { LAYERS = 100 };
    MemItem items[2 * LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        size_t bytes = 4096 * (size_t)(1 + i % 4);
        items[2 * i] = (MemItem){.bytes = bytes, .first = i, .last = 2 * LAYERS - i};
        items[2 * i + 1] =
            (MemItem){.bytes = bytes, .first = 2 * LAYERS - i, .last = 2 * LAYERS - i + 1};
    }
    Arena a;
    Err err = {0};
    size_t peak, bound;
    mpri_arena_init(&a, NULL, 0);
    assert_ok(mpri_memory_plan(items, 2 * LAYERS, &a, &peak, &bound, &err), &err);
    check(items, 2 * LAYERS, peak, bound);
    assert_true((double)peak <= 1.03 * (double)bound);
    mpri_arena_destroy(&a);
}

static void test_many(void **state)
{
    (void)state;
    enum { N = 10000 };
    static MemItem items[N], again[N];
    for (int i = 0; i < N; i++) {
        uint64_t k = (uint64_t)i;
        int first = i, last = mpri_rng_below(1, 0, k, 4) ? i + 2 : 2 * N - i;
        items[i] = (MemItem){.bytes = 64 * (size_t)mpri_rng_below(1, 1, k, 5000),
                             .first = first,
                             .last = last};
    }
    memcpy(again, items, sizeof items);
    Arena a;
    Err err = {0};
    size_t peak, bound, peak2, bound2;
    struct timespec t0, t1;
    mpri_arena_init(&a, NULL, 0);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    assert_ok(mpri_memory_plan(items, N, &a, &peak, &bound, &err), &err);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double seconds = (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec);
    print_message("%d items: %.3f s, peak / bound %.4f\n", N, seconds,
                  (double)peak / (double)bound);
    assert_true(seconds < 3); /* a loose gate for loaded machines */
    assert_ok(mpri_memory_plan(again, N, &a, &peak2, &bound2, &err), &err);
    assert_memory_equal(items, again, sizeof items);
    assert_true((double)peak <= 1.10 * (double)bound);
    mpri_arena_destroy(&a);
}

static void test_edges(void **state)
{
    (void)state;
    Arena a;
    Err err = {0};
    size_t peak, bound;
    mpri_arena_init(&a, NULL, 0);
    assert_ok(mpri_memory_plan(NULL, 0, &a, &peak, &bound, &err), &err);
    assert_int_equal(peak, 0);
    MemItem empty = {.bytes = 0, .first = -1, .last = 3};
    assert_ok(mpri_memory_plan(&empty, 1, &a, &peak, &bound, &err), &err);
    assert_int_equal(peak, 0);
    MemItem huge[2] = {{.bytes = SIZE_MAX / 2 - 10, .first = 0, .last = 0},
                       {.bytes = SIZE_MAX - 3, .first = 0, .last = 0}};
    assert_int_equal(mpri_memory_plan(huge, 2, &a, &peak, &bound, &err), MPR_E_LIMIT);
    mpri_arena_destroy(&a);
    mpri_err_clear(&err);
    mpri_arena_init(&a, NULL, 64);
    MemItem some[4] = {{.bytes = 1, .first = 0, .last = 9}};
    assert_int_equal(mpri_memory_plan(some, 4, &a, &peak, &bound, &err), MPR_E_NOMEM);
    mpri_arena_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_nested_lifetimes_reach_the_bound),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
