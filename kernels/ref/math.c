/* Trigonometric and hyperbolic functions, Mean, rounding, sign, and tests for NaN and infinity, in
 * double. */
#include "kernels/ref/util.h"

static mpr_status each(const KernelCall *c, double (*f)(double))
{
    for (int64_t i = 0; i < c->out[0].n; i++)
        mpri_ref_store(&c->out[0], i, f(mpri_ref_load(&c->in[0], i)));
    return MPR_OK;
}

static mpr_status k_tan(const KernelCall *c) { return each(c, tan); }
static mpr_status k_asin(const KernelCall *c) { return each(c, asin); }
static mpr_status k_acos(const KernelCall *c) { return each(c, acos); }
static mpr_status k_atan(const KernelCall *c) { return each(c, atan); }
static mpr_status k_sinh(const KernelCall *c) { return each(c, sinh); }
static mpr_status k_cosh(const KernelCall *c) { return each(c, cosh); }
static mpr_status k_asinh(const KernelCall *c) { return each(c, asinh); }
static mpr_status k_acosh(const KernelCall *c) { return each(c, acosh); }
static mpr_status k_atanh(const KernelCall *c) { return each(c, atanh); }
static mpr_status k_floor(const KernelCall *c) { return each(c, floor); }
static mpr_status k_ceil(const KernelCall *c) { return each(c, ceil); }

/* To the nearest integer, halves to even, whatever the rounding mode of the caller. */
static double round_even(double x)
{
    double down = floor(x), rest = x - down;
    if (!isfinite(x) || rest == 0) return x;
    double r = rest < 0.5 || (rest == 0.5 && fmod(down, 2) == 0) ? down : down + 1;
    return copysign(r, x);
}
static mpr_status k_round(const KernelCall *c) { return each(c, round_even); }

static double sign(double x) { return isnan(x) ? x : (x > 0) - (x < 0); }
static mpr_status k_sign(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    if (mpri_dtype_is_float(x->dtype)) return each(c, sign);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t v = mpri_load_i64(x->dtype, x->data, i);
        bool negative = v < 0 && x->dtype != MPR_UINT64;
        mpri_store_i64(y->dtype, y->data, i, negative ? -1 : v != 0);
    }
    return MPR_OK;
}

static mpr_status k_mean(const KernelCall *c)
{
    Tensor *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++) {
        double sum = 0;
        for (int k = 0; k < c->n_in; k++)
            sum += mpri_ref_load(&c->in[k], mpri_ref_broadcast(&c->in[k], y, i));
        mpri_ref_store(y, i, sum / c->n_in);
    }
    return MPR_OK;
}

static mpr_status k_is_nan(const KernelCall *c)
{
    uint8_t *y = c->out[0].data;
    for (int64_t i = 0; i < c->out[0].n; i++) y[i] = isnan(mpri_ref_load(&c->in[0], i)) != 0;
    return MPR_OK;
}

static mpr_status k_is_inf(const KernelCall *c)
{
    const IsInfParams *p = c->params;
    uint8_t *y = c->out[0].data;
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double x = mpri_ref_load(&c->in[0], i);
        y[i] = isinf(x) && (x > 0 ? p->detect_positive : p->detect_negative);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Tan, "tan", k_tan),       REF_ROW(Asin, "asin", k_asin),
    REF_ROW(Acos, "acos", k_acos),    REF_ROW(Atan, "atan", k_atan),
    REF_ROW(Sinh, "sinh", k_sinh),    REF_ROW(Cosh, "cosh", k_cosh),
    REF_ROW(Asinh, "asinh", k_asinh), REF_ROW(Acosh, "acosh", k_acosh),
    REF_ROW(Atanh, "atanh", k_atanh), REF_ROW(Mean, "mean", k_mean),
    REF_ROW(Floor, "floor", k_floor), REF_ROW(Ceil, "ceil", k_ceil),
    REF_ROW(Round, "round", k_round), REF_ROW(Sign, "sign", k_sign),
    REF_ROW(IsNaN, "isnan", k_is_nan), REF_ROW(IsInf, "isinf", k_is_inf),
};
const KernelTable mpri_ref_math = REF_TABLE(rows);
