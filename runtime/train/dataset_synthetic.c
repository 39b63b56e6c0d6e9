/* Random rows in the model's types: floats are normal, ids and labels uniform in their range,
 * integers without a known range are 1 (attention masks). A function of the seed only. */
#include "runtime/train/dataset.h"

#include "runtime/base/rng.h"
#include "runtime/train/binding.h"

#define SYNTHETIC_STREAM UINT64_C(0x73796e7468) /* plus the number of the array */

static mpr_status resolve_dims(mpr_dataset *d, DimBinding *b, DataArray *a, Err *err)
{
    const Shape *s = &a->input->declared;
    if (s->rank < 1) {
        mpri_err_set(err, MPR_E_SHAPE,
                     "input '%s' has no batch dim: synthetic rows cannot be made for it",
                     mpri_err_name(a->input->name));
        return mpri_err_advice(err, "give the data as a file");
    }
    a->t.rank = s->rank;
    for (int i = 0; i < s->rank; i++) {
        Dim dim = i ? mpri_dim_eval(b, s->d[i]) : d->o.synthetic_rows;
        if (!mpri_dim_const(dim)) {
            char text[128];
            mpri_dim_print(d->s->graph[MODE_TRAIN]->sym, s->d[i], text, sizeof(text));
            mpri_err_set(err, MPR_E_USAGE,
                         "synthetic rows: dim %d of input '%s' is '%s', whose size is not known", i,
                         mpri_err_name(a->input->name), mpri_err_name(text));
            return mpri_err_advice(err, "give it with --bind %s=N", mpri_err_name(text));
        }
        a->t.dims[i] = dim;
    }
    return MPR_OK;
}

static mpr_status fill(mpr_dataset *d, DataArray *a, uint64_t stream, Err *err)
{
    int64_t n = mpri_tensor_elements(&a->t);
    size_t bytes;
    a->t.dtype = a->input->dtype;
    if (n < 0 || !mpri_size_mul((size_t)n, mpri_dtype_size(a->t.dtype), &bytes))
        return mpri_err_nomem(err, SIZE_MAX);
    void *data = mpri_context_alloc(d->s->ctx, bytes + 1);
    if (!data) return mpri_err_nomem(err, bytes);
    a->t.data = data;
    InputRange r = mpri_input_range(d->s->graph[MODE_TRAIN], a->input->name);
    int64_t low = r.low < 0 ? 0 : r.low;
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)i;
        if (mpri_dtype_is_float(a->t.dtype))
            mpri_store_f64(a->t.dtype, data, i, mpri_rng_normal(d->o.seed, stream, at));
        else if (!r.limited || r.high <= low) mpri_store_i64(a->t.dtype, data, i, 1);
        else
            mpri_store_i64(
                a->t.dtype, data, i,
                low + (int64_t)mpri_rng_below(d->o.seed, stream, at, (uint64_t)(r.high - low)));
    }
    return MPR_OK;
}

mpr_status mpri_dataset_synthetic(mpr_dataset *d, Err *err)
{
    const Graph *g = d->s->graph[MODE_TRAIN];
    DimBinding *b = mpri_binding_create(&d->arena, g->sym);
    if (!b) return mpri_err_nomem(err, 0);
    TRY(mpri_bind_options(g, b, d->o.bind, err));
    for (int i = 0; i < d->n_arrays; i++) {
        const Shape *s = &d->arrays[i].input->declared;
        if (s->rank > 0 && !mpri_dim_const(s->d[0])) mpri_dim_bind(b, s->d[0], d->o.synthetic_rows);
        d->arrays[i].key = d->arrays[i].input->name;
    }
    for (int i = 0; i < d->n_arrays; i++) {
        TRY(resolve_dims(d, b, &d->arrays[i], err));
        TRY(fill(d, &d->arrays[i], SYNTHETIC_STREAM + (uint64_t)i, err));
    }
    return MPR_OK;
}
