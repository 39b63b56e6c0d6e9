/* Dropout: kept elements are scaled by 1 / (1 - ratio). See kernels/dropout_mask.h for the draw. */
#include "kernels/dropout_mask.h"
#include "kernels/ref/util.h"

/* Inputs x, ratio, training_mode; outputs y, mask (optional). */
static mpr_status k_dropout(const KernelCall *c)
{
    DropoutDraw d = mpri_dropout_draw(c, 1);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        bool keep = !d.threshold || mpri_dropout_kept(&d, i);
        mpri_ref_store(&c->out[0], i, keep ? mpri_ref_load(&c->in[0], i) * d.scale : 0);
        if (c->n_out > 1 && mpri_tensor_here(&c->out[1]))
            mpri_store_i64(c->out[1].dtype, c->out[1].data, i, keep);
    }
    return MPR_OK;
}

/* Inputs dy, mask, ratio, training_mode. */
static mpr_status k_dropout_grad(const KernelCall *c)
{
    DropoutDraw d = mpri_dropout_draw(c, 2);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        bool keep = mpri_load_i64(c->in[1].dtype, c->in[1].data, i) != 0;
        mpri_ref_store(&c->out[0], i, keep ? mpri_ref_load(&c->in[0], i) * d.scale : 0);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Dropout, "dropout", k_dropout),
    REF_ROW(DropoutGrad, "dropoutgrad", k_dropout_grad),
};
const KernelTable mpri_ref_dropout = REF_TABLE(rows);
