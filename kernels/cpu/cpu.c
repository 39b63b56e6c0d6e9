/* The list of kernel families. A family `x` is kernels/cpu/simd/x.c, which defines its rows as
 *   const KernelTable MPRI_NAME(cpu_x) = { rows, count };
 * once per instruction set. Order: fastest instruction set first; within one, the family
 * that takes fewer cases stands first. */
#include "kernels/cpu/cpu.h"

#include <pthread.h>

#define CPU_FAMILIES(X, isa)                                                                  \
    X(matmul, isa) X(conv_depthwise, isa) X(conv, isa) X(elementwise, isa) X(activation, isa) \
    X(cast, isa)                                                                              \
    X(reduce, isa) X(softmax, isa) X(norm, isa) X(loss, isa) X(layout, isa) X(index, isa)     \
    X(dropout, isa) X(update, isa) X(tile_pad, isa) X(scatter, isa) X(attention, isa) X(rotary, isa) \
    X(pool, isa) X(pool_grad_low, isa) X(pool_grad_apart, isa) X(pool_grad, isa)              \
    X(norm_rms, isa) X(norm_batch, isa) X(reduce_extremum, isa) X(cumulative, isa)

#if defined(__x86_64__)
#define CPU_ALL(X) CPU_FAMILIES(X, avx512) CPU_FAMILIES(X, avx2) CPU_FAMILIES(X, generic)
#else
#define CPU_ALL(X) CPU_FAMILIES(X, generic)
#endif

#define DECLARE(family, isa) extern const KernelTable mpri_cpu_##family##_##isa;
CPU_ALL(DECLARE)

#define ADDRESS(family, isa) &mpri_cpu_##family##_##isa,
static const KernelTable *const sources[] = {CPU_ALL(ADDRESS) NULL};
enum { TABLES = sizeof sources / sizeof sources[0] - 1 };

static KernelTable tables[TABLES + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void gather(void)
{
    for (int i = 0; i < TABLES; i++) tables[i] = *sources[i];
}

const KernelTable *mpri_cpu_tables(int *n)
{
    pthread_once(&once, gather);
    *n = TABLES;
    return tables;
}
