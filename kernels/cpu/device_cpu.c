/* The CPU device: kernels of this folder, then the reference kernels, on one thread pool.
 * MPR_CPU_ISA may lower the instruction set, so that tests run all of them on one machine. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/ref/ref.h"
#include "runtime/exec/device.h"
#include "runtime/exec/threads.h"

enum { MAX_TABLES = 128 };
static KernelTable all_tables[MAX_TABLES];
static int n_tables;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void gather(void)
{
    int n;
    const KernelTable *cpu = mpri_cpu_tables(&n);
    for (int i = 0; i < n && n_tables < MAX_TABLES; i++) all_tables[n_tables++] = cpu[i];
    const KernelTable *ref = mpri_ref_tables(&n);
    for (int i = 0; i < n && n_tables < MAX_TABLES; i++) all_tables[n_tables++] = ref[i];
}

static KernelSet cpu_kernels(void)
{
    pthread_once(&once, gather);
    return (KernelSet){all_tables, n_tables, n_tables};
}

static mpr_status choose_isa(int *isa, Err *err)
{
    const char *name = getenv("MPR_CPU_ISA");
    *isa = mpri_cpu_isa();
    if (!name || !*name) return MPR_OK;
    int wanted = mpri_isa_parse(name);
    if (wanted >= MPRI_ISA_GENERIC && wanted <= *isa) {
        *isa = wanted;
        return MPR_OK;
    }
    char allowed[64] = "";
    for (int i = MPRI_ISA_GENERIC; i <= *isa; i++) {
        if (*allowed) strcat(allowed, ", ");
        strcat(allowed, mpri_isa_name(i));
    }
    mpri_err_set(err, MPR_E_USAGE, "MPR_CPU_ISA is '%s'; this processor runs %s",
                 mpri_err_name(name), allowed);
    return mpri_err_advice(err, "unset MPR_CPU_ISA, or take one of these");
}

/* Touch every page now: the first touch of a page costs microseconds, and belongs before step 1. Large
 * blocks ask for huge pages: a GEMM that streams through 4 KiB pages waits for address translation. */
static mpr_status cpu_alloc(Device *d, size_t bytes, void **out, Err *err)
{
    const size_t huge = (size_t)1 << 21;
    *out = mpri_alloc(d->alloc, bytes ? bytes : 64, bytes >= huge ? huge : 64);
    if (!*out) return mpri_err_nomem(err, bytes);
    if (bytes >= huge) (void)madvise(*out, bytes & ~(huge - 1), MADV_HUGEPAGE); /* a hint: may be refused */
    memset(*out, 0, bytes);
    return MPR_OK;
}

static void cpu_free(Device *d, void *p)
{
    mpri_free(d->alloc, p);
}

static mpr_status cpu_copy(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    (void)d;
    (void)err;
    if (bytes) memcpy(dst, src, bytes);
    return MPR_OK;
}

static mpr_status cpu_zero(Device *d, void *dst, size_t bytes, Err *err)
{
    (void)d;
    (void)err;
    if (bytes) memset(dst, 0, bytes);
    return MPR_OK;
}

static void cpu_destroy(Device *d)
{
    mpri_threads_destroy(d->threads);
    mpri_free(d->alloc, d);
}

mpr_status mpri_device_cpu(const Alloc *alloc, int threads, Device **out, Err *err)
{
    int isa;
    *out = NULL;
    TRY(choose_isa(&isa, err));
    Threads *pool;
    TRY(mpri_threads_create(alloc, threads, &pool, err));
    Device *d = mpri_alloc(alloc, sizeof *d, 64);
    if (!d) {
        mpri_threads_destroy(pool);
        return mpri_err_nomem(err, sizeof *d);
    }
    *d = (Device){.name = "cpu",
                  .kernels = cpu_kernels(),
                  .isa = isa,
                  .isa_name = mpri_isa_name(isa),
                  .threads = pool,
                  .alloc = alloc,
                  .shared = true,
                  .mem_alloc = cpu_alloc,
                  .mem_free = cpu_free,
                  .copy_in = cpu_copy,
                  .copy_out = cpu_copy,
                  .zero = cpu_zero,
                  .destroy = cpu_destroy};
    *out = d;
    return MPR_OK;
}

mpr_status mpri_device_null(const Alloc *alloc, Device **out, Err *err)
{
    int isa;
    TRY(choose_isa(&isa, err));
    return mpri_device_null_for(alloc, cpu_kernels(), isa, out, err);
}
