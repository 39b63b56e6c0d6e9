/* The list of reference families, in the order of ops.def. */
#include "kernels/ref/ref.h"

#include "kernels/ref/util.h"

#include <pthread.h>

static const KernelTable *const families[] = {
    &mpri_ref_elementwise, &mpri_ref_cast, &mpri_ref_matmul,  &mpri_ref_reduce,
    &mpri_ref_softmax,     &mpri_ref_norm, &mpri_ref_loss,    &mpri_ref_layout,
    &mpri_ref_index,       &mpri_ref_conv, &mpri_ref_dropout, &mpri_ref_update,
    &mpri_ref_attention,   &mpri_ref_rotary, &mpri_ref_recurrent,
    &mpri_ref_tile_pad,    &mpri_ref_scatter, &mpri_ref_select, &mpri_ref_onehot,
    &mpri_ref_activation,  &mpri_ref_math, &mpri_ref_bitwise,
    &mpri_ref_reduce_norms, &mpri_ref_reduce_arg, &mpri_ref_cumulative, &mpri_ref_topk,
    &mpri_ref_norm_rms, &mpri_ref_norm_group, &mpri_ref_norm_batch,
    &mpri_ref_norm_lp, &mpri_ref_det, &mpri_ref_loss_nll,
    &mpri_ref_einsum,      &mpri_ref_random,
    &mpri_ref_pool,        &mpri_ref_resize, &mpri_ref_conv_transpose,
    &mpri_ref_grid_sample, &mpri_ref_space,    &mpri_ref_quantize,
};
enum { FAMILIES = sizeof families / sizeof families[0] };

static KernelTable tables[FAMILIES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void gather(void)
{
    for (int i = 0; i < FAMILIES; i++) tables[i] = *families[i];
}

const KernelTable *mpri_ref_tables(int *n)
{
    pthread_once(&once, gather);
    *n = FAMILIES;
    return tables;
}
