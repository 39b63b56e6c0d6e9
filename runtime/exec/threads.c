/* One pool per context. Tiles are handed out dynamically: every worker takes the next number of a
 * shared counter, so an uneven machine does not wait for its slowest core, and a kernel learns
 * which worker it runs on (for per-worker workspace). Results cannot depend on the hand-out because
 * tiles do not. */
#include "runtime/exec/threads.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/exec/device.h"

#if !MPR_MINIMAL
#include <pthreadpool.h>
#endif

enum { MOST_THREADS = 1024 };

struct Threads {
    const Alloc *alloc;
    int count;
    struct pthreadpool *pool; /* NULL with one thread */
};

/* Processors that the control group's quota is worth, rounded up; 0 without a quota. Affinity does
 * not show it, and threads beyond it only wait for each other. */
static long quota(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) return 0;
    long amount, period, n = 0;
    if (fscanf(f, "%ld %ld", &amount, &period) == 2 && amount > 0 && period > 0)
        n = (amount + period - 1) / period;
    fclose(f);
    return n;
}

int mpri_threads_available(void)
{
    cpu_set_t set;
    bool known = sched_getaffinity(0, sizeof set, &set) == 0; /* fails beyond 1024 processors */
    long n = known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    long limit = quota();
    if (limit > 0 && limit < n) n = limit;
    return n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : (int)n;
}

mpr_status mpri_threads_create(const Alloc *alloc, int count, Threads **out, Err *err)
{
    *out = NULL;
    if (count > MOST_THREADS)
        return mpri_err_set(err, MPR_E_USAGE, "%d threads, at most %d are possible", count,
                            MOST_THREADS);
    if (count <= 0) count = mpri_threads_available();
    Threads *t = mpri_alloc(alloc, sizeof *t, 16);
    if (!t) return mpri_err_nomem(err, sizeof *t);
    *t = (Threads){.alloc = alloc, .count = count};
#if MPR_MINIMAL
    t->count = 1;
#else
    if (count > 1) {
        t->pool = pthreadpool_create((size_t)count);
        if (!t->pool) {
            mpri_free(alloc, t);
            mpri_err_set(err, MPR_E_NOMEM, "cannot start %d threads", count);
            return mpri_err_advice(err, "use --threads with a smaller number");
        }
        t->count = (int)pthreadpool_get_threads_count(t->pool);
    }
#endif
    *out = t;
    return MPR_OK;
}

void mpri_threads_destroy(Threads *t)
{
    if (!t) return;
#if !MPR_MINIMAL
    if (t->pool) pthreadpool_destroy(t->pool);
#endif
    mpri_free(t->alloc, t);
}

int mpri_threads_count(const Threads *t)
{
    return t ? t->count : 1;
}

typedef struct Share {
    void (*fn)(void *ctx, int64_t tile, int worker);
    void *ctx;
    int64_t tiles;
    atomic_llong next;
} Share;

#if !MPR_MINIMAL
static void take_tiles(void *p, size_t worker)
{
    Share *s = p;
    FpMode mode = mpri_fpmode_enter(); /* a worker has the mode of whoever made the pool */
    for (;;) {
        int64_t tile = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (tile >= s->tiles) break;
        s->fn(s->ctx, tile, (int)worker);
    }
    mpri_fpmode_leave(mode);
}
#endif

void mpri_parallel_worker(Threads *t, int64_t tiles,
                          void (*fn)(void *ctx, int64_t tile, int worker), void *ctx)
{
#if !MPR_MINIMAL
    if (t && t->pool && tiles > 1) {
        Share share = {.fn = fn, .ctx = ctx, .tiles = tiles};
        atomic_init(&share.next, 0);
        size_t workers = tiles < t->count ? (size_t)tiles : (size_t)t->count;
        pthreadpool_parallelize_1d(t->pool, take_tiles, &share, workers, 0);
        return;
    }
#else
    (void)t;
#endif
    for (int64_t i = 0; i < tiles; i++) fn(ctx, i, 0);
}

typedef struct Plain {
    void (*fn)(void *ctx, int64_t tile);
    void *ctx;
} Plain;

static void run_plain(void *p, int64_t tile, int worker)
{
    (void)worker;
    const Plain *q = p;
    q->fn(q->ctx, tile);
}

void mpri_parallel(Threads *t, int64_t tiles, void (*fn)(void *ctx, int64_t tile), void *ctx)
{
    Plain plain = {fn, ctx};
    mpri_parallel_worker(t, tiles, run_plain, &plain);
}
