/* Old opsets of operators that move data: attributes that became inputs. */

#include "importer/adapt.h"

/* A list attribute becomes input k, when it is there. */
static mpr_status list_to_input(Draft *d, const char *name, int k, Err *err)
{
    Ints v;
    if (!mpri_adapt_take_ints(d, name, &v, err)) return MPR_OK;
    return mpri_adapt_set_input(d, k, mpri_adapt_ints(d, name, v.n, v.v), err);
}

static bool constant_int(const Value *v, int64_t *x)
{
    if (!v || v->kind != VAL_CONST || !v->data || mpri_shape_elements(&v->shape) != 1 ||
        !mpri_dtype_size(v->dtype))
        return false;
    *x = (int64_t)mpri_load_f64(v->dtype, v->data, 0);
    return true;
}

static mpr_status adapt_axes(Draft *d, Err *err)
{
    return list_to_input(d, "axes", 1, err);
}

static mpr_status adapt_reshape_1(Draft *d, Err *err)
{
    return list_to_input(d, "shape", 1, err);
}

static mpr_status adapt_split(Draft *d, Err *err)
{
    SplitParams *p = d->params;
    if (d->opset < 13) TRY(list_to_input(d, "split", 1, err));
    bool sizes = d->n_in > 1 && d->in[1];
    if (!sizes && d->opset < 18) p->num_outputs = d->n_out;
    return MPR_OK;
}

static mpr_status adapt_slice_1(Draft *d, Err *err)
{
    Ints starts = {0}, axes = {0};
    TRY(list_to_input(d, "ends", 2, err));
    if (mpri_adapt_take_ints(d, "starts", &starts, err))
        TRY(mpri_adapt_set_input(d, 1, mpri_adapt_ints(d, "starts", starts.n, starts.v), err));
    if (mpri_adapt_take_ints(d, "axes", &axes, err))
        TRY(mpri_adapt_set_input(d, 3, mpri_adapt_ints(d, "axes", axes.n, axes.v), err));
    return MPR_OK;
}

static mpr_status adapt_concat_1(Draft *d, Err *err)
{
    AxisParams *p = d->params;
    p->axis = 1;
    d->lenient = true;
    (void)err;
    return MPR_OK;
}

static mpr_status adapt_pad(Draft *d, Err *err)
{
    float value = 0;
    TRY(list_to_input(d, d->opset < 2 ? "paddings" : "pads", 1, err));
    if (mpri_adapt_take_float(d, "value", &value, err) && d->n_in > 0 && d->in[0])
        TRY(mpri_adapt_set_input(
            d, 2,
            mpri_adapt_scalar(d, "value", d->in[0]->dtype ? d->in[0]->dtype : MPR_FLOAT32, value),
            err));
    return MPR_OK;
}

/* Before 6 every input was a scalar: how often, along which axis. */
static mpr_status adapt_tile(Draft *d, Err *err)
{
    const Value *x = d->n_in == 3 ? d->in[0] : NULL;
    int64_t tiles, axis, repeats[MPRI_MAX_RANK];
    if (!x) return MPR_OK;
    if (x->shape.rank < 0 || !constant_int(d->in[1], &tiles) || !constant_int(d->in[2], &axis)) {
        d->opaque_why = "Tile before opset 6 with a computed count or axis";
        return MPR_OK;
    }
    if (axis < 0 || axis >= x->shape.rank) {
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: axis %lld of a tensor of rank %d", d->label,
                         (long long)axis, x->shape.rank);
        return MPR_OK;
    }
    for (int k = 0; k < x->shape.rank; k++) repeats[k] = k == axis ? tiles : 1;
    d->n_in = 1;
    return mpri_adapt_set_input(d, 1, mpri_adapt_ints(d, "repeats", x->shape.rank, repeats), err);
}

static mpr_status adapt_topk(Draft *d, Err *err)
{
    int64_t k;
    if (!mpri_adapt_take_int(d, "k", &k, err)) return MPR_OK;
    return mpri_adapt_set_input(d, 1, mpri_adapt_ints(d, "k", 1, &k), err);
}

const AdaptRow mpri_adapt_layout[] = {
    {"Reshape", 1, 4, adapt_reshape_1},
    {"Squeeze", 1, 12, adapt_axes},
    {"Unsqueeze", 1, 12, adapt_axes},
    {"Split", 1, 17, adapt_split},
    {"Slice", 1, 9, adapt_slice_1},
    {"Concat", 1, 3, adapt_concat_1},
    {"Pad", 1, 10, adapt_pad},
    {"Tile", 1, 5, adapt_tile},
    {"TopK", 1, 9, adapt_topk},
    {NULL, 0, 0, NULL},
};
