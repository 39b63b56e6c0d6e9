/* One small vector abstraction over the instruction sets, chosen at compile time.
 *
 * Every .c file of this folder is compiled once per instruction set (cmake/mpr.cmake) with MPRI_ISA
 * set to generic, avx2 or avx512; MPRI_NAME keeps the symbols apart. Types of VF_LANES (W) lanes:
 *
 *   vf  floats          + - * / work as on scalars
 *   vi  int32           + - & | ^ << >> work lane by lane; (vi)x and (vf)x keep the bits
 *   vm  a mask          made by vm_lt ..., used by vf_blend
 *   vh  16-bit lanes    f16 or bf16 as stored
 *   vw  int16, 2 W lanes, as vi; vwm its mask, vwm_first and vwm_second halves of it as vm
 *
 * Names ending in _n take the first n lanes, 0 <= n <= W: what is beyond is not read (0) or not
 * written. Arithmetic is f32, one rounding at the store. Results depend on the instruction set
 * (lane count, fused multiply-add), never on threads or addresses: no peeling for alignment.
 *
 * Trap: vf_min and vf_max return b when either operand is NaN; use vf_min_nan and vf_max_nan where
 * a NaN must survive. */
#ifndef MPRI_CPU_SIMD_H
#define MPRI_CPU_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "kernels/cpu/isa.h"
#include "runtime/base/dtype.h"

#define VF_FN static inline __attribute__((always_inline, unused))

#if defined(MPRI_ISA_avx512)
#include "kernels/cpu/simd/simd_avx512.h"
#define MPRI_ISA_ID MPRI_ISA_AVX512
#elif defined(MPRI_ISA_avx2)
#include "kernels/cpu/simd/simd_avx2.h"
#define MPRI_ISA_ID MPRI_ISA_AVX2
#else
#include "kernels/cpu/simd/simd_generic.h"
#define MPRI_ISA_ID MPRI_ISA_GENERIC
#ifndef MPRI_ISA
#define MPRI_ISA generic
#endif
#endif

/* MPRI_NAME(gemm) is mpri_gemm_avx2 and so on; MPRI_ROW("matmul") is "cpu.avx2.matmul". */
#define MPRI_NAME3_(name, isa) mpri_##name##_##isa
#define MPRI_NAME2_(name, isa) MPRI_NAME3_(name, isa)
#define MPRI_NAME(name) MPRI_NAME2_(name, MPRI_ISA)
#define MPRI_TEXT2_(x) #x
#define MPRI_TEXT_(x) MPRI_TEXT2_(x)
#define MPRI_ROW(name) "cpu." MPRI_TEXT_(MPRI_ISA) "." name

/* ---- in terms of the primitives ---- */

VF_FN vf vf_zero(void) { return vf_set1(0.0f); }
VF_FN vf vf_abs(vf a) { return (vf)((vi)a & vi_set1(INT32_MAX)); }
VF_FN vf vf_neg(vf a) { return (vf)((vi)a ^ vi_set1(INT32_MIN)); }
VF_FN vf vf_copysign(vf mag, vf sign)
{
    return (vf)(((vi)mag & vi_set1(INT32_MAX)) | ((vi)sign & vi_set1(INT32_MIN)));
}
VF_FN vm vm_nan(vf a) { return vm_ne(a, a); }
/* c - a * b */
VF_FN vf vf_fnma(vf a, vf b, vf c) { return vf_fma(vf_neg(a), b, c); }
VF_FN vf vf_max_nan(vf a, vf b) { return vf_blend(vm_nan(a), a, vf_max(a, b)); }
VF_FN vf vf_min_nan(vf a, vf b) { return vf_blend(vm_nan(a), a, vf_min(a, b)); }
VF_FN vf vf_clamp(vf a, vf low, vf high) { return vf_min(high, vf_max(low, a)); } /* NaN stays */

VF_FN vm vm_load_bool_n(const uint8_t *p, int n)
{
    uint8_t b[VF_LANES] = {0};
    for (int i = 0; i < n; i++) b[i] = p[i];
    return vm_load_bool(b);
}

VF_FN void vm_store_bool_n(uint8_t *p, vm m, int n)
{
    uint8_t b[VF_LANES];
    vm_store_bool(b, m);
    memcpy(p, b, (size_t)n);
}

/* The first n lanes. */
VF_FN vm vm_first(int n)
{
    static const float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vm_lt(vf_load(lane), vf_set1((float)n));
}

/* Halves joined in a fixed order; NaN wins. */
VF_FN float vf_hmax_nan(vf a)
{
    return vm_any(vm_nan(a)) ? NAN : vf_hmax(a);
}
VF_FN float vf_hmin_nan(vf a) { return -vf_hmax_nan(vf_neg(a)); }

/* ---- typed memory: element i of a buffer of type t (f32, f16 or bf16). With a constant t the
 * switch vanishes; with a variable one it is a well-predicted branch per vector. ---- */

VF_FN vf vf_ld(DType t, const void *p, int64_t i)
{
    if (t == MPR_FLOAT32) return vf_load((const float *)p + i);
    vh h = vh_load((const uint16_t *)p + i);
    return t == MPR_FLOAT16 ? vf_from_f16(h) : vf_from_bf16(h);
}
VF_FN vf vf_ld_n(DType t, const void *p, int64_t i, int n)
{
    if (t == MPR_FLOAT32) return vf_load_n((const float *)p + i, n);
    vh h = vh_load_n((const uint16_t *)p + i, n);
    return t == MPR_FLOAT16 ? vf_from_f16(h) : vf_from_bf16(h);
}
VF_FN void vf_st(DType t, void *p, int64_t i, vf v)
{
    if (t == MPR_FLOAT32) vf_store((float *)p + i, v);
    else vh_store((uint16_t *)p + i, t == MPR_FLOAT16 ? vf_to_f16(v) : vf_to_bf16(v));
}
VF_FN void vf_st_n(DType t, void *p, int64_t i, vf v, int n)
{
    if (t == MPR_FLOAT32) vf_store_n((float *)p + i, v, n);
    else vh_store_n((uint16_t *)p + i, t == MPR_FLOAT16 ? vf_to_f16(v) : vf_to_bf16(v), n);
}
typedef uint32_t vu __attribute__((vector_size(sizeof(vi))));
/* x rounded to bf16, which are the high halves; the low ones are not set. */
VF_FN vu vf_high_bf16(vf x)
{
    vu u = (vu)x, r = u + (vu)vi_set1(0x7fff) + (u >> 16 & (vu)vi_set1(1));
    return (vu)vi_blend(vm_nan(x), (vi)(u | (vu)vi_set1(0x400000)), (vi)r);
}
/* a0 b0 a1 b1 ... as bf16 in memory. */
VF_FN vu vf_zip_bf16(vf a, vf b)
{
    return vf_high_bf16(a) >> 16 | (vf_high_bf16(b) & (vu)vi_set1((int32_t)0xffff0000));
}
/* v as it would read back after a store of type t. */
VF_FN vf vf_quantize(DType t, vf v)
{
    if (t == MPR_FLOAT16) return vf_from_f16(vf_to_f16(v));
    return t == MPR_BFLOAT16 ? vf_from_bf16(vf_to_bf16(v)) : v;
}
VF_FN float vf_ld1(DType t, const void *p, int64_t i)
{
    if (t == MPR_FLOAT32) return ((const float *)p)[i];
    return t == MPR_FLOAT16 ? mpri_f16_to_f32(((const uint16_t *)p)[i])
                            : mpri_bf16_to_f32(((const uint16_t *)p)[i]);
}
VF_FN void vf_st1(DType t, void *p, int64_t i, float v)
{
    if (t == MPR_FLOAT32) ((float *)p)[i] = v;
    else ((uint16_t *)p)[i] = t == MPR_FLOAT16 ? mpri_f32_to_f16(v) : mpri_f32_to_bf16(v);
}
/* The types these kernels read and write; others are left to the reference kernels. */
VF_FN bool vf_can(DType t) { return t == MPR_FLOAT32 || t == MPR_FLOAT16 || t == MPR_BFLOAT16; }

#endif
