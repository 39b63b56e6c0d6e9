/* The list of kernel families. A family `x` is kernels/cuda/x.cu, which defines its rows as
 *   extern "C" const KernelTable mpri_cuda_x = CUDA_TABLE(rows);
 * Where two families take one operator, the one that takes fewer cases stands first. */
#include <pthread.h>

#include "kernels/cuda/cuda.h"

#define CUDA_FAMILIES(X) \
    X(elementwise)       \
    X(cast)              \
    X(matmul)            \
    X(reduce)            \
    X(loss)              \
    X(layout)            \
    X(index)             \
    X(scatter)           \
    X(integer)           \
    X(compare)           \
    X(cast_number)       \
    X(tile_pad)          \
    X(space)             \
    X(onehot)            \
    X(reduce_arg)        \
    X(topk)              \
    X(cumulative)        \
    X(activation)        \
    X(math)              \
    X(reduce_norms)      \
    X(loss_nll)          \
    X(select)            \
    X(norm)              \
    X(norm_group)        \
    X(norm_batch)        \
    X(norm_lp)           \
    X(dropout)           \
    X(random)            \
    X(pool)              \
    X(softmax)           \
    X(rotary)            \
    X(resize)            \
    X(conv)              \
    X(attention)         \
    X(attention_grad)    \
    X(update_scale)      \
    X(update)

#define DECLARE(family) extern const KernelTable mpri_cuda_##family;
CUDA_FAMILIES(DECLARE)

#define ADDRESS(family) &mpri_cuda_##family,
static const KernelTable *const sources[] = {CUDA_FAMILIES(ADDRESS)};
enum { TABLES = sizeof sources / sizeof sources[0], MOST_TABLES = 192 };

static KernelTable tables[MOST_TABLES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static KernelSet host_set;
static int n_tables;

static void gather(void)
{
    for (; n_tables < TABLES; n_tables++) tables[n_tables] = *sources[n_tables];
    for (int i = 0; i < host_set.n && n_tables < MOST_TABLES; i++)
        tables[n_tables++] = host_set.tables[i];
}

KernelSet mpri_cuda_kernels(const Device *host)
{
    host_set = host->kernels; /* the same static tables for every device */
    pthread_once(&once, gather);
    return (KernelSet){tables, n_tables, TABLES};
}
