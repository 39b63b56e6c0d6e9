/* Constants in the prepare stage: which are small enough to be looked at and converted. */
#include "passes/prepare.h"

#include <float.h>
#include <math.h>

bool mpri_prepare_small_const(const Value *v)
{
    if (!v || v->kind != VAL_CONST || v->param >= 0 || !v->data || !mpri_dtype_size(v->dtype))
        return false;
    int64_t n = mpri_shape_elements(&v->shape);
    return n >= 0 && n <= MPRI_SMALL_CONST;
}

bool mpri_prepare_scalar(const Value *v, double *x)
{
    if (!mpri_prepare_small_const(v) || mpri_shape_elements(&v->shape) != 1) return false;
    *x = mpri_load_f64(v->dtype, v->data, 0);
    return true;
}

/* Bits of an integer type's values, sign not counted; of a float type's significand. */
static int digits(DType t)
{
    switch (t) {
    case MPR_BOOL: return 1;
    case MPR_INT8: return 7;
    case MPR_UINT8: return 8;
    case MPR_INT16: return 15;
    case MPR_UINT16: return 16;
    case MPR_INT32: return 31;
    case MPR_UINT32: return 32;
    case MPR_INT64: return 63;
    case MPR_UINT64: return 64;
    case MPR_BFLOAT16: return 8;
    case MPR_FLOAT16: return 11;
    case MPR_FLOAT32: return 24;
    case MPR_FLOAT64: return 53;
    default: return 0;
    }
}

static bool is_signed(DType t)
{
    return t == MPR_INT8 || t == MPR_INT16 || t == MPR_INT32 || t == MPR_INT64;
}

bool mpri_prepare_exact(DType from, DType to)
{
    int a = digits(from), b = digits(to);
    if (from == to) return true;
    if (!a || !b || to == MPR_BOOL) return false;
    if (mpri_dtype_is_float(from)) return (to == MPR_FLOAT32 || to == MPR_FLOAT64) && a <= b;
    if (mpri_dtype_is_float(to)) return a <= b && (to != MPR_FLOAT16 || a <= 8);
    return a <= b && (!is_signed(from) || is_signed(to));
}

double mpri_prepare_max(DType t)
{
    switch (t) {
    case MPR_FLOAT16: return 65504;
    case MPR_BFLOAT16: return 0x1.FEp127;
    case MPR_FLOAT32: return FLT_MAX;
    default: return DBL_MAX;
    }
}

Value *mpri_prepare_convert(Graph *g, const Value *v, DType to, bool saturate)
{
    int64_t n = mpri_shape_elements(&v->shape);
    size_t size = mpri_dtype_size(to);
    void *data = n < 0 ? NULL : mpri_arena_array(g->arena, (size_t)n, size);
    char *name = mpri_arena_printf(g->arena, "%s__mpr_%s", v->name, mpri_dtype_name(to));
    if (!data || !name) return NULL;
    double top = mpri_prepare_max(to);
    bool ints = !mpri_dtype_is_float(v->dtype) && !mpri_dtype_is_float(to);
    for (int64_t i = 0; i < n; i++) {
        if (ints) {
            mpri_store_i64(to, data, i, mpri_load_i64(v->dtype, v->data, i));
            continue;
        }
        double x = mpri_load_f64(v->dtype, v->data, i);
        if (saturate && isfinite(x)) x = fmax(-top, fmin(top, x));
        mpri_store_f64(to, data, i, x);
    }
    return mpri_value_const(g, name, to, &v->shape, data);
}
