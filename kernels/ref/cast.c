/* Cast between any two computable types (CastLike reads input 0 only), and Identity. Floats convert
 * with one rounding, float to integer truncates, integers drop their upper bits, anything non-zero
 * is true. A float that an integer type cannot hold is undefined in ONNX; here it gives what
 * onnxruntime and PyTorch give on x86, see to_integer. A 64-bit integer reaches a narrow float
 * through a double that was rounded to odd, so that the second rounding decides as a single one
 * would (Boldo and Melquiond, "When double rounding is odd", 2005). */
#include "kernels/ref/util.h"

static double wide_to_odd(DType t, const void *p, int64_t i)
{
    double d = mpri_load_f64(t, p, i);
    int64_t v = mpri_load_i64(t, p, i);
    bool negative = t != MPR_UINT64 && v < 0;
    uint64_t magnitude = negative ? 0 - (uint64_t)v : (uint64_t)v;
    double m = fabs(d);
    bool exact = m < 18446744073709551616.0 && (uint64_t)m == magnitude;
    if (exact) return d;
    bool above = m >= 18446744073709551616.0 || (uint64_t)m > magnitude;
    if (above) m = nextafter(m, 0);
    uint64_t bits;
    memcpy(&bits, &m, sizeof bits);
    bits |= 1; /* m is now the truncated value */
    memcpy(&m, &bits, sizeof bits);
    return negative ? -m : m;
}

/* A whole v of width bits, signed; other numbers and NaN give the least of them. */
static int64_t in_signed(double v, int width)
{
    double limit = ldexp(1, width - 1);
    return v >= -limit && v < limit ? (int64_t)v : -1 - (int64_t)((1ull << (width - 1)) - 1);
}

/* Types of up to 16 bits keep the low bits of an int32, so -1 to u8 is 255. i32 and i64 have one
 * value for all that they cannot hold, the least. u32 and u64 wrap negative numbers that the signed
 * type of their width holds. */
static int64_t to_integer(DType t, double x)
{
    double v = trunc(x);
    bool is_wide = mpri_dtype_size(t) == 8, is_unsigned = t == MPR_UINT64 || t == MPR_UINT32;
    int width = is_wide ? 64 : 32;
    if (is_unsigned && v >= ldexp(1, width - 1))
        return v < ldexp(1, width) ? (int64_t)(uint64_t)v : 0;
    return in_signed(v, width);
}

static mpr_status k_cast(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    bool from_float = mpri_dtype_is_float(x->dtype), to_float = mpri_dtype_is_float(y->dtype);
    bool wide = !from_float && mpri_dtype_size(x->dtype) == 8;
    if (x->dtype == y->dtype) {
        if (y->n) memmove(y->data, x->data, (size_t)y->n * mpri_dtype_size(y->dtype));
        return MPR_OK;
    }
    for (int64_t i = 0; i < y->n; i++) {
        if (wide && to_float && y->dtype != MPR_FLOAT64)
            mpri_ref_store(y, i, wide_to_odd(x->dtype, x->data, i));
        else if (from_float && mpri_dtype_is_int(y->dtype))
            mpri_store_i64(y->dtype, y->data, i, to_integer(y->dtype, mpri_ref_load(x, i)));
        else if (from_float || to_float)
            mpri_ref_store(y, i, mpri_ref_load(x, i));
        else
            mpri_store_i64(y->dtype, y->data, i, mpri_load_i64(x->dtype, x->data, i));
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Cast, "cast", k_cast),
    REF_ROW(CastLike, "castlike", k_cast),
    REF_ROW(Identity, "identity", k_cast),
};
const KernelTable mpri_ref_cast = REF_TABLE(rows);
