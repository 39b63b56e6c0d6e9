/* Element types: one X-macro names them all; numbers are those of onnx.TensorProto.DataType.
 * Conversions round to nearest even, keep NaN, and never flush subnormals. */
#ifndef MPRI_BASE_DTYPE_H
#define MPRI_BASE_DTYPE_H

#include <mpr.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef mpr_dtype DType;

/* X(constant, ONNX number, text name, bytes per element (0 = not a computable type), kind)
 * kind: f float, i signed, u unsigned, b bool, o opaque (may only pass through opaque nodes) */
#define MPRI_DTYPES(X)                      \
    X(MPR_FLOAT32, 1, "f32", 4, 'f')        \
    X(MPR_UINT8, 2, "u8", 1, 'u')           \
    X(MPR_INT8, 3, "i8", 1, 'i')            \
    X(MPR_UINT16, 4, "u16", 2, 'u')         \
    X(MPR_INT16, 5, "i16", 2, 'i')          \
    X(MPR_INT32, 6, "i32", 4, 'i')          \
    X(MPR_INT64, 7, "i64", 8, 'i')          \
    X(MPR_STRING, 8, "string", 0, 'o')      \
    X(MPR_BOOL, 9, "bool", 1, 'b')          \
    X(MPR_FLOAT16, 10, "f16", 2, 'f')       \
    X(MPR_FLOAT64, 11, "f64", 8, 'f')       \
    X(MPR_UINT32, 12, "u32", 4, 'u')        \
    X(MPR_UINT64, 13, "u64", 8, 'u')        \
    X(MPR_COMPLEX64, 14, "c64", 8, 'o')     \
    X(MPR_COMPLEX128, 15, "c128", 16, 'o')  \
    X(MPR_BFLOAT16, 16, "bf16", 2, 'f')

size_t mpri_dtype_size(DType t);       /* bytes per element; 0 for strings and unknown types */
const char *mpri_dtype_name(DType t);  /* "f32"; "undefined" for none, "type17" beyond the table */
const char *mpri_dtype_long(DType t);  /* "float32", "int64" … for people */
DType mpri_dtype_parse(const char *text); /* either name; MPR_DTYPE_NONE when unknown */
bool mpri_dtype_is_float(DType t);     /* f16 bf16 f32 f64 */
bool mpri_dtype_is_low(DType t);       /* f16 bf16 */
bool mpri_dtype_is_int(DType t);       /* signed or unsigned, not bool */
/* Wider float of two: f64 > f32 > (f16 | bf16); f16 with bf16 gives f32. */
DType mpri_dtype_wider(DType a, DType b);

float mpri_f16_to_f32(uint16_t h);
uint16_t mpri_f32_to_f16(float f);
uint16_t mpri_f64_to_f16(double f); /* one rounding */
float mpri_bf16_to_f32(uint16_t h);
uint16_t mpri_f32_to_bf16(float f);
uint16_t mpri_f64_to_bf16(double f); /* one rounding */

/* Element i of a typed buffer as double / int64, and back with one rounding (ints: C conversion,
 * saturating from float; bool: x != 0). */
double mpri_load_f64(DType t, const void *p, int64_t i);
void mpri_store_f64(DType t, void *p, int64_t i, double v);
int64_t mpri_load_i64(DType t, const void *p, int64_t i);
void mpri_store_i64(DType t, void *p, int64_t i, int64_t v);

#endif
