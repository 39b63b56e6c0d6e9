/* One forward run that keeps the inner values. A model that cannot be run cannot be calibrated,
 * and says why. */
#include "runtime/train/calibrate.h"

#include <math.h>

#include "runtime/train/run.h"

static mpr_status names_to_keep(const Graph *g, Arena *arena, const char *const **out, Err *err)
{
    int n = 0;
    const char **names = ARENA_ARRAY(arena, const char *, g->n_values + 1);
    if (!names) return mpri_err_nomem(err, sizeof *names * (size_t)g->n_values);
    for (const Node *node = g->first; node; node = node->next)
        for (int k = 0; k < node->n_out; k++) {
            const Value *v = node->out[k];
            if (v && v->n_outputs == 0 && mpri_dtype_is_float(v->dtype) && v->name && *v->name)
                names[n++] = v->name;
        }
    *out = names;
    return MPR_OK;
}

mpr_status mpri_calibrate(mpr_model *model, const char *npz, Arena *arena, mpr_tensors **values,
                          Err *err)
{
    mpr_run_options o = {.size = sizeof o};
    mpr_tensors *inputs = NULL;
    TRY(names_to_keep(model->m->graph, arena, &o.keep, err));
    TRY(mpri_tensors_load(model->ctx, npz, &inputs, err));
    mpr_status st = mpri_run_vjp(model, inputs, NULL, &o, values, NULL, err);
    for (int i = 0; st == MPR_OK && i < inputs->n; i++)
        st = mpri_tensors_put(*values, inputs->v[i].name, &inputs->v[i].t, err);
    mpri_tensors_destroy(inputs);
    return st == MPR_OK ? MPR_OK : mpri_err_where(err, "calibration");
}

bool mpri_calibrate_range(void *user, const char *value, double *most, double *tiny_share,
                          bool *finite)
{
    const TensorEntry *e = mpri_tensors_find(user, value);
    int64_t n = e && mpri_dtype_is_float(e->t.dtype) ? mpri_tensor_elements(&e->t) : -1;
    int64_t nonzero = 0, tiny = 0;
    *most = *tiny_share = 0;
    *finite = true;
    if (n < 0) return false;
    for (int64_t i = 0; i < n; i++) {
        double x = fabs(mpri_load_f64(e->t.dtype, e->t.data, i));
        if (!isfinite(x)) *finite = false;
        if (x > *most) *most = x;
        nonzero += x != 0;
        tiny += x != 0 && x < 6e-8;
    }
    if (nonzero) *tiny_share = (double)tiny / (double)nonzero;
    return true;
}
