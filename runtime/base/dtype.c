/* Element types and their conversions.
 *
 * Narrowing rounds once, to nearest even, in integer arithmetic on the bits of the wider number
 * (IEEE 754 binary formats; bfloat16 is the upper half of binary32). The trap: narrowing a double
 * by way of float rounds twice and gets some ties wrong, so every format has its own way from
 * double. */
#include "runtime/base/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

size_t mpri_dtype_size(DType t)
{
    switch ((int)t) {
#define X(constant, number, text, bytes, kind)                                                     \
    case number: return bytes;
        MPRI_DTYPES(X)
#undef X
    }
    return 0;
}

static char dtype_kind(DType t)
{
    switch ((int)t) {
#define X(constant, number, text, bytes, kind)                                                     \
    case number: return kind;
        MPRI_DTYPES(X)
#undef X
    }
    return 'o';
}

const char *mpri_dtype_name(DType t)
{
    static const char *const beyond[] = {
        "type17", "type18", "type19", "type20", "type21", "type22", "type23", "type24",
        "type25", "type26", "type27", "type28", "type29", "type30", "type31", "type32",
    };
    switch ((int)t) {
    case MPR_DTYPE_NONE: return "undefined";
#define X(constant, number, text, bytes, kind)                                                     \
    case number: return text;
        MPRI_DTYPES(X)
#undef X
    }
    int k = (int)t - 17;
    return k >= 0 && k < (int)(sizeof beyond / sizeof *beyond) ? beyond[k] : "unknown type";
}

static const char *const long_names[] = {
    "undefined", "float32", "uint8",     "int8",       "uint16",   "int16",
    "int32",     "int64",   "string",    "bool",       "float16",  "float64",
    "uint32",    "uint64",  "complex64", "complex128", "bfloat16",
};

const char *mpri_dtype_long(DType t)
{
    unsigned k = (unsigned)t;
    return k < sizeof long_names / sizeof *long_names ? long_names[k] : mpri_dtype_name(t);
}

DType mpri_dtype_parse(const char *text)
{
#define X(constant, number, name, bytes, kind)                                                     \
    if (!strcmp(text, name) || !strcmp(text, long_names[number])) return constant;
    MPRI_DTYPES(X)
#undef X
    return MPR_DTYPE_NONE;
}

bool mpri_dtype_is_float(DType t)
{
    return dtype_kind(t) == 'f';
}

bool mpri_dtype_is_low(DType t)
{
    return t == MPR_FLOAT16 || t == MPR_BFLOAT16;
}

bool mpri_dtype_is_int(DType t)
{
    return dtype_kind(t) == 'i' || dtype_kind(t) == 'u';
}

DType mpri_dtype_wider(DType a, DType b)
{
    if (a == b) return a;
    if (a == MPR_FLOAT64 || b == MPR_FLOAT64) return MPR_FLOAT64;
    return MPR_FLOAT32;
}

/* ---- floats of 16 bits ---- */

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Round a double to a 16-bit format with `mant` fraction bits and exponent bias `bias`. */
static uint16_t narrow(double d, int mant, int bias)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    unsigned sign = (unsigned)(u >> 63) << 15;
    int exponent = (int)(u >> 52 & 0x7FF);
    uint64_t fraction = u & 0xFFFFFFFFFFFFF;
    unsigned infinity = (unsigned)(2 * bias + 1) << mant;
    if (exponent == 0x7FF) {
        unsigned payload = fraction ? (unsigned)(fraction >> (52 - mant)) | 1u << (mant - 1) : 0;
        return (uint16_t)(sign | infinity | payload);
    }
    if (exponent == 0) return (uint16_t)sign; /* below 2^-1022: far under half of any subnormal */
    uint64_t significand = fraction | 1ull << 52;
    int e = exponent - 1023 + bias;
    int shift = 52 - mant;
    if (e < 1) { /* subnormal: the unit stays, the significand moves */
        shift += 1 - e;
        e = 1;
    }
    if (shift > 53) return (uint16_t)sign;
    uint64_t q = significand >> shift, rest = significand & ((1ull << shift) - 1),
             half = 1ull << (shift - 1);
    if (rest > half || (rest == half && (q & 1))) q++;
    /* q holds the implicit bit; adding lets a carry move into the exponent by itself. */
    uint64_t bits = ((uint64_t)(e - 1) << mant) + q;
    return (uint16_t)(sign | (bits < infinity ? (unsigned)bits : infinity));
}

float mpri_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 0x1F, fraction = h & 0x3FF;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, which float holds exactly */
        float v = (float)fraction * 0x1p-24f;
        return f32_from_bits(sign | f32_bits(v));
    }
    if (exponent == 31)
        return f32_from_bits(sign | 0x7F800000 | fraction << 13 | (fraction ? 1u << 22 : 0));
    return f32_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t mpri_f64_to_f16(double f)
{
    return narrow(f, 10, 15);
}

uint16_t mpri_f32_to_f16(float f)
{
    return narrow((double)f, 10, 15); /* widening is exact */
}

float mpri_bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

uint16_t mpri_f64_to_bf16(double f)
{
    return narrow(f, 7, 127);
}

uint16_t mpri_f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* ---- elements of typed buffers ---- */

double mpri_load_f64(DType t, const void *p, int64_t i)
{
    switch ((int)t) {
    case MPR_FLOAT32: return ((const float *)p)[i];
    case MPR_FLOAT64: return ((const double *)p)[i];
    case MPR_FLOAT16: return mpri_f16_to_f32(((const uint16_t *)p)[i]);
    case MPR_BFLOAT16: return mpri_bf16_to_f32(((const uint16_t *)p)[i]);
    case MPR_UINT64: return (double)((const uint64_t *)p)[i];
    default: return (double)mpri_load_i64(t, p, i);
    }
}

/* Truncation toward zero, saturating; NaN gives 0. low and high are powers of two or their
 * neighbours. */
static int64_t saturate(double v, int64_t low, int64_t high)
{
    if (isnan(v)) return 0;
    if (v <= (double)low) return low;
    if (v >= (double)high) return high;
    return (int64_t)v;
}

void mpri_store_f64(DType t, void *p, int64_t i, double v)
{
    switch ((int)t) {
    case MPR_FLOAT32: ((float *)p)[i] = (float)v; break;
    case MPR_FLOAT64: ((double *)p)[i] = v; break;
    case MPR_FLOAT16: ((uint16_t *)p)[i] = mpri_f64_to_f16(v); break;
    case MPR_BFLOAT16: ((uint16_t *)p)[i] = mpri_f64_to_bf16(v); break;
    case MPR_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    case MPR_INT8: ((int8_t *)p)[i] = (int8_t)saturate(v, INT8_MIN, INT8_MAX); break;
    case MPR_INT16: ((int16_t *)p)[i] = (int16_t)saturate(v, INT16_MIN, INT16_MAX); break;
    case MPR_INT32: ((int32_t *)p)[i] = (int32_t)saturate(v, INT32_MIN, INT32_MAX); break;
    case MPR_INT64: ((int64_t *)p)[i] = saturate(v, INT64_MIN, INT64_MAX); break;
    case MPR_UINT8: ((uint8_t *)p)[i] = (uint8_t)saturate(v, 0, UINT8_MAX); break;
    case MPR_UINT16: ((uint16_t *)p)[i] = (uint16_t)saturate(v, 0, UINT16_MAX); break;
    case MPR_UINT32: ((uint32_t *)p)[i] = (uint32_t)saturate(v, 0, UINT32_MAX); break;
    case MPR_UINT64:
        ((uint64_t *)p)[i] = !(v > 0) ? 0 : v >= 0x1p64 ? UINT64_MAX : (uint64_t)v;
        break;
    }
}

int64_t mpri_load_i64(DType t, const void *p, int64_t i)
{
    switch ((int)t) {
    case MPR_BOOL: return ((const uint8_t *)p)[i] != 0;
    case MPR_INT8: return ((const int8_t *)p)[i];
    case MPR_INT16: return ((const int16_t *)p)[i];
    case MPR_INT32: return ((const int32_t *)p)[i];
    case MPR_INT64: return ((const int64_t *)p)[i];
    case MPR_UINT8: return ((const uint8_t *)p)[i];
    case MPR_UINT16: return ((const uint16_t *)p)[i];
    case MPR_UINT32: return ((const uint32_t *)p)[i];
    case MPR_UINT64: return (int64_t)((const uint64_t *)p)[i];
    case MPR_FLOAT32:
    case MPR_FLOAT64:
    case MPR_FLOAT16:
    case MPR_BFLOAT16: return saturate(mpri_load_f64(t, p, i), INT64_MIN, INT64_MAX);
    }
    return 0;
}

void mpri_store_i64(DType t, void *p, int64_t i, int64_t v)
{
    switch ((int)t) {
    case MPR_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    case MPR_INT8:
    case MPR_UINT8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case MPR_INT16:
    case MPR_UINT16: ((uint16_t *)p)[i] = (uint16_t)v; break;
    case MPR_INT32:
    case MPR_UINT32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    case MPR_INT64:
    case MPR_UINT64: ((uint64_t *)p)[i] = (uint64_t)v; break;
    case MPR_FLOAT32: ((float *)p)[i] = (float)v; break;
    default: mpri_store_f64(t, p, i, (double)v); break;
    }
}
