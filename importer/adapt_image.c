/* Old opsets of image operators: pools, Resize and Upsample, GridSample. */
#include <string.h>

#include "importer/adapt.h"

/* LpPool-1 and GlobalLpPool-1 had p as a float. */
static mpr_status adapt_lp(Draft *d, Err *err)
{
    float p;
    if (!mpri_adapt_take_float(d, "p", &p, err)) return MPR_OK;
    if (p != (float)(int)p || p < 1) d->opaque_why = "a p-norm whose p is not a whole number";
    else if (!strcmp(d->op->name, "LpPool")) ((LpPoolParams *)d->params)->p = (int)p;
    else ((GlobalLpPoolParams *)d->params)->p = (int)p;
    return MPR_OK;
}

/* Resize-10 is Upsample with the power to shrink. */
static mpr_status adapt_resize_10(Draft *d, Err *err)
{
    ResizeParams *p = d->params;
    p->coordinate_transformation_mode = "asymmetric";
    p->nearest_mode = "floor";
    if (d->n_in != 2) return MPR_OK;
    Value *scales = d->in[1];
    d->in[1] = NULL;
    return scales ? mpri_adapt_set_input(d, 2, scales, err) : MPR_OK;
}

static mpr_status set_scales(Draft *d, int64_t n, const float *v, Err *err)
{
    Shape shape = {.rank = 1, .d = {n}};
    const char *name = mpri_arena_printf(&d->im->scratch, "%s:scales", d->base);
    Value *scales = name ? mpri_value_const_copy(d->g, name, MPR_FLOAT32, &shape, v) : NULL;
    return mpri_adapt_set_input(d, 1, scales, err);
}

/* Before 9 the factors were attributes, before 7 two of them; "bilinear" was another word. */
static mpr_status adapt_upsample(Draft *d, Err *err)
{
    enum { FLOATS = 6 };
    const AttributeProto *a = mpri_adapt_take(d, "scales"), *mode = mpri_import_attr(d->node->p, "mode");
    float v[4] = {1, 1, 1, 1};
    if (mode && mode->has_s && mode->s.len == 8 && !memcmp(mode->s.data, "bilinear", 8)) {
        mpri_adapt_take(d, "mode");
        ((ResizeParams *)d->params)->mode = "linear";
    }
    if (a && (int)a->type != FLOATS)
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute scales must be a list of floats",
                         d->label);
    else if (a) return set_scales(d, (int64_t)a->n_floats, a->floats, err);
    bool high = mpri_adapt_take_float(d, "height_scale", &v[2], err);
    bool wide = mpri_adapt_take_float(d, "width_scale", &v[3], err);
    return high || wide ? set_scales(d, 4, v, err) : MPR_OK;
}

/* Before 20 the modes were named after two dims. */
static mpr_status adapt_grid_sample(Draft *d, Err *err)
{
    GridSampleParams *p = d->params;
    const AttributeProto *a = mpri_import_attr(d->node->p, "mode");
    (void)err;
    if (!a || !a->has_s) return MPR_OK;
    bool linear = a->s.len == 8 && !memcmp(a->s.data, "bilinear", 8);
    bool cubic = a->s.len == 7 && !memcmp(a->s.data, "bicubic", 7);
    if (!linear && !cubic) return MPR_OK;
    mpri_adapt_take(d, "mode");
    p->mode = linear ? "linear" : "cubic";
    return MPR_OK;
}

const AdaptRow mpri_adapt_image[] = {
    {"LpPool", 1, 1, adapt_lp},
    {"GlobalLpPool", 1, 1, adapt_lp},
    {"Resize", 10, 10, adapt_resize_10},
    {"Upsample", 1, 8, adapt_upsample},
    {"GridSample", 16, 19, adapt_grid_sample},
    {NULL, 0, 0, NULL},
};
