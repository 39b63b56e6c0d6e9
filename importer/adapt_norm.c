/* Old opsets of the normalisations. */
#include "importer/adapt.h"

/* Before 14 a node in training mode is known by its outputs: running mean and variance, and the two
 * statistics that were used. From 14 on there are three outputs. spatial = 0 (before 9) normalises
 * every element by itself over the batch. */
static mpr_status adapt_batch_norm(Draft *d, Err *err)
{
    BatchNormParams *p = d->params;
    int64_t spatial = 1;
    if (d->opset >= 14) {
        if (d->n_out > 3)
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s has %d outputs, it has 1 to 3", d->label,
                             d->n_out);
        return MPR_OK;
    }
    p->training_mode = d->n_out > 1;
    if (d->opset < 9 && mpri_adapt_take_int(d, "spatial", &spatial, err) && !spatial)
        d->opaque_why = "spatial=0, statistics per element";
    return MPR_OK;
}

static mpr_status adapt_group_norm(Draft *d, Err *err)
{
    GroupNormParams *p = d->params;
    p->per_group = 1;
    (void)err;
    return MPR_OK;
}

/* The result has the type of the scale. */
static mpr_status adapt_rms_norm(Draft *d, Err *err)
{
    LayerNormParams *p = d->params;
    const Value *x = d->n_in > 0 ? d->in[0] : NULL, *scale = d->n_in > 1 ? d->in[1] : NULL;
    if (x && scale && x->dtype && scale->dtype && x->dtype != scale->dtype)
        p->out_dtype = scale->dtype;
    (void)err;
    return MPR_OK;
}

const AdaptRow mpri_adapt_norm[] = {
    {"BatchNormalization", 1, 1000, adapt_batch_norm},
    {"GroupNormalization", 18, 20, adapt_group_norm},
    {"RMSNormalization", 1, 1000, adapt_rms_norm},
    {NULL, 0, 0, NULL},
};
