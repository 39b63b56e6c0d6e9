/* Vector primitives for AVX-512 (F, BW, VL, DQ): sixteen lanes, masks in their own registers.
 * Included by simd.h only. */
#ifndef MPRI_CPU_SIMD_AVX512_H
#define MPRI_CPU_SIMD_AVX512_H

#include <immintrin.h>

#define VF_LANES 16
#define VF_HAS_FMA 1
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
typedef __m256i vh;
typedef __mmask16 vm;
typedef int16_t vw __attribute__((vector_size(64)));
typedef __mmask32 vwm;

VF_FN __mmask16 vf_mask_n_(int n) { return (__mmask16)((1u << n) - 1u); }

VF_FN vf vf_set1(float x) { return _mm512_set1_ps(x); }
VF_FN vi vi_set1(int32_t x) { return (vi)_mm512_set1_epi32(x); }
VF_FN vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_FN void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
VF_FN vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(vf_mask_n_(n), p); }
VF_FN void vf_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, vf_mask_n_(n), v); }
VF_FN vh vh_load(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
VF_FN void vh_store(uint16_t *p, vh v) { _mm256_storeu_si256((__m256i *)p, v); }
VF_FN vh vh_load_n(const uint16_t *p, int n) { return _mm256_maskz_loadu_epi16(vf_mask_n_(n), p); }
VF_FN void vh_store_n(uint16_t *p, vh v, int n) { _mm256_mask_storeu_epi16(p, vf_mask_n_(n), v); }

VF_FN vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_FN vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }

VF_FN vm vm_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VF_FN vm vm_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
VF_FN vm vm_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
VF_FN vm vm_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
VF_FN vm vm_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
VF_FN vm vm_ne(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
VF_FN vm vm_and(vm a, vm b) { return (vm)(a & b); }
VF_FN vm vm_or(vm a, vm b) { return (vm)(a | b); }
VF_FN vm vm_not(vm a) { return (vm)~a; }
VF_FN bool vm_any(vm a) { return a != 0; }
VF_FN vf vf_blend(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
VF_FN vi vi_blend(vm m, vi a, vi b)
{
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a);
}

/* W bytes, not 0 = true. */
VF_FN vm vm_load_bool(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return _mm_test_epi8_mask(b, b);
}

/* 1 or 0 to W bytes. */
VF_FN void vm_store_bool(uint8_t *p, vm m)
{
    _mm_storeu_si128((__m128i *)p, _mm_maskz_set1_epi8(m, 1));
}
/* High and low halves of the unsigned products a * k. */
VF_FN void vi_mul_wide(vi a, uint32_t k, vi *high, vi *low)
{
    __m512i f = _mm512_set1_epi32((int32_t)k), even = _mm512_mul_epu32((__m512i)a, f);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), f);
    *high = (vi)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = (vi)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

VF_FN vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VF_FN vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }

VF_FN vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps((__m512i)a); }
VF_FN vi vi_round(vf a) { return (vi)_mm512_cvtps_epi32(a); }
VF_FN vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VF_FN vf vf_floor(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
/* x * 2^n, one rounding. */
VF_FN vf vf_ldexp(vf x, vi n) { return _mm512_scalef_ps(x, vf_from_vi(n)); }
VF_FN vf vf_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); } /* n a whole number */

VF_FN vf vf_from_f16(vh h) { return _mm512_cvtph_ps(h); }
VF_FN vh vf_to_f16(vf x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VF_FN vf vf_from_bf16(vh h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
VF_FN vh vf_to_bf16(vf x)
{
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(_mm512_srli_epi32(r, 16), vm_ne(x, x), high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(r);
}

VF_FN float vf_hsum(vf a)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* No lane is NaN. */
VF_FN float vf_hmax(vf a)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* r[i][j] and r[j][i] change places: pairs, then fours within 128 bits, then the quarters. */
VF_FN void vf_transpose(vf r[VF_LANES])
{
    vf t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) { /* u[4 g + i]: column i of each quarter, rows 4 g .. 4 g + 3 */
        vf a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88),
           b = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
        vf c = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        vf d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

/* a0 b0 a1 b1 …: the first W of them and the others. */
VF_FN void vf_zip(vf a, vf b, vf *first, vf *second)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    *first = _mm512_permutex2var_ps(a, low, b);
    *second = _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b);
}

/* Of the 2 W lanes of a and b, those of even number and those of odd number. */
VF_FN void vf_unzip(vf a, vf b, vf *even, vf *odd)
{
    const __m512i at = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = _mm512_permutex2var_ps(a, at, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(at, _mm512_set1_epi32(1)), b);
}

/* ---- int16 ---- */

VF_FN vw vw_set1(int16_t x) { return (vw)_mm512_set1_epi16(x); }
VF_FN vw vw_load(const int16_t *p) { return (vw)_mm512_loadu_si512(p); }
VF_FN vw vw_load_n(const int16_t *p, int n)
{
    return (vw)_mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
}
VF_FN void vw_store(int16_t *p, vw v) { _mm512_storeu_si512(p, (__m512i)v); }
VF_FN vwm vwm_gt(vw a, vw b) { return _mm512_cmpgt_epi16_mask((__m512i)a, (__m512i)b); }
VF_FN vwm vwm_eq(vw a, vw b) { return _mm512_cmpeq_epi16_mask((__m512i)a, (__m512i)b); }
VF_FN vw vw_blend(vwm m, vw a, vw b)
{
    return (vw)_mm512_mask_blend_epi16(m, (__m512i)b, (__m512i)a);
}
VF_FN vw vw_max(vw a, vw b) { return (vw)_mm512_max_epi16((__m512i)a, (__m512i)b); }
VF_FN vm vwm_first(vwm m) { return (vm)m; }
VF_FN vm vwm_second(vwm m) { return (vm)(m >> 16); }
/* Of the 4 W lanes of a and b, those of even number and those of odd number. */
VF_FN void vw_unzip(vw a, vw b, vw *even, vw *odd)
{
    __m512i at = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32,
                                  30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = (vw)_mm512_permutex2var_epi16((__m512i)a, at, (__m512i)b);
    at = _mm512_add_epi16(at, _mm512_set1_epi16(1));
    *odd = (vw)_mm512_permutex2var_epi16((__m512i)a, at, (__m512i)b);
}

#endif
