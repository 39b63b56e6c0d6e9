/* Threads, floating-point mode, choice of kernels and instruction set. */
#include "tests/support/support.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/exec/device.h"
#include "runtime/exec/threads.h"

enum { TILES = 1000 };

typedef struct Job {
    atomic_int done[TILES];
    atomic_int worst_worker;
    atomic_int flushed;
} Job;

static void tile(void *ctx, int64_t i, int worker)
{
    Job *job = ctx;
    atomic_fetch_add(&job->done[i], 1);
    int seen = atomic_load(&job->worst_worker);
    while (worker > seen && !atomic_compare_exchange_weak(&job->worst_worker, &seen, worker))
        continue;
    volatile float tiny = 0x1p-126f; /* the smallest normal: half of it is a subnormal */
    if (tiny * 0.5f == 0) atomic_store(&job->flushed, 1);
}

static void plain_tile(void *ctx, int64_t i)
{
    tile(ctx, i, 0);
}

static void check(Threads *t, int64_t tiles)
{
    static Job job;
    memset(&job, 0, sizeof job);
    mpri_parallel_worker(t, tiles, tile, &job);
    mpri_parallel(t, tiles, plain_tile, &job);
    for (int64_t i = 0; i < TILES; i++) assert_int_equal(job.done[i], i < tiles ? 2 : 0);
    assert_true(job.worst_worker < mpri_threads_count(t));
    assert_false(job.flushed);
}

static void test_tiles(void **state)
{
    (void)state;
    Err err = {0};
    for (int count = 1; count <= 3; count++) {
        Threads *t;
        assert_ok(mpri_threads_create(mpri_alloc_default(), count, &t, &err), &err);
        assert_int_equal(mpri_threads_count(t), count);
        for (int round = 0; round < 10; round++) {
            check(t, 0);
            check(t, 1);
            check(t, 7);
            check(t, TILES);
        }
        mpri_threads_destroy(t);
    }
    check(NULL, TILES);
    mpri_threads_destroy(NULL);
    Threads *t;
    assert_int_equal(mpri_threads_create(mpri_alloc_default(), 1000000, &t, &err), MPR_E_USAGE);
    mpri_err_clear(&err);
    assert_ok(mpri_threads_create(mpri_alloc_default(), 0, &t, &err), &err);
    assert_int_equal(mpri_threads_count(t), mpri_threads_available());
    mpri_threads_destroy(t);
}

/* A host that flushes subnormals: ours are kept, and the host gets its mode back. */
static void test_fpmode(void **state)
{
    (void)state;
#if defined(__x86_64__)
    Err err = {0};
    unsigned host = _mm_getcsr();
    _mm_setcsr(host | 0x8040 | 0x2000); /* flush, denormals are zero, round down */
    unsigned set = _mm_getcsr();
    Threads *t;
    assert_ok(mpri_threads_create(mpri_alloc_default(), 3, &t, &err), &err);
    FpMode mode = mpri_fpmode_enter();
    volatile float third = 3;
    assert_true(1 / third == 0x1.555556p-2f); /* to nearest: up */
    for (int round = 0; round < 5; round++) check(t, TILES);
    mpri_fpmode_leave(mode);
    assert_int_equal(_mm_getcsr() & ~0x3Fu, set & ~0x3Fu);
    mpri_threads_destroy(t);
    _mm_setcsr(host);
#endif
}

static mpr_status nothing(const KernelCall *call)
{
    (void)call;
    return MPR_OK;
}

static const char *refuses(const KernelSig *sig)
{
    return sig->n_in > 1 ? "takes one input" : NULL;
}

static void test_choose(void **state)
{
    (void)state;
    static const KernelRow fast[] = {
        {.op = 3, .name = "cpu.avx512.x", .isa = 3, .fn = nothing},
        {.op = 3, .name = "cpu.avx2.x", .isa = 2, .fn = nothing, .refuse = refuses},
    };
    static const KernelRow ref[] = {{.op = 3, .name = "ref.x", .fn = nothing}};
    static const KernelTable tables[] = {{fast, 2}, {ref, 1}};
    KernelSet set = {tables, 2, 2};
    KernelSig sig = {.op = 3, .n_in = 1};
    KernelChoice c;
    assert_true(mpri_kernel_choose(&set, &sig, 3, NULL, &c));
    assert_string_equal(c.row->name, "cpu.avx512.x");
    assert_true(mpri_kernel_choose(&set, &sig, 2, NULL, &c));
    assert_string_equal(c.row->name, "cpu.avx2.x");
    sig.n_in = 2;
    assert_true(mpri_kernel_choose(&set, &sig, 2, NULL, &c));
    assert_string_equal(c.row->name, "ref.x");
    assert_string_equal(c.skipped, "cpu.avx2.x: takes one input");
    assert_true(mpri_kernel_choose(&set, &sig, 3, "ref", &c));
    assert_string_equal(c.row->name, "ref.x");
    sig.op = 4;
    assert_false(mpri_kernel_choose(&set, &sig, 3, NULL, &c));
    assert_null(c.row);
}

static void test_instruction_set(void **state)
{
    (void)state;
    Err err = {0};
    Device *d;
    const char *old = getenv("MPR_CPU_ISA");
    char *saved = old ? strdup(old) : NULL;
    setenv("MPR_CPU_ISA", "generic", 1);
    assert_ok(mpri_device_cpu(mpri_alloc_default(), 1, &d, &err), &err);
    assert_string_equal(d->isa_name, "generic");
    void *p;
    assert_ok(d->mem_alloc(d, 3 << 20, &p, &err), &err);
    assert_int_equal((uintptr_t)p % 64, 0);
    d->mem_free(d, p);
    mpri_device_destroy(d);
    const char *bad[] = {"sse9", "none", "AVX2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("MPR_CPU_ISA", bad[i], 1);
        assert_int_equal(mpri_device_cpu(mpri_alloc_default(), 1, &d, &err), MPR_E_USAGE);
        assert_error(MPR_E_USAGE, &err, bad[i], "generic");
        mpri_err_clear(&err);
    }
    setenv("MPR_CPU_ISA", "", 1);
    assert_ok(mpri_device_cpu(mpri_alloc_default(), 1, &d, &err), &err);
    mpri_device_destroy(d);
    if (saved)
        setenv("MPR_CPU_ISA", saved, 1);
    else
        unsetenv("MPR_CPU_ISA");
    free(saved);
    mpri_device_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_fpmode),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
