/* Vector primitives for AVX2 + FMA + F16C: eight lanes. Included by simd.h only. */
#ifndef MPRI_CPU_SIMD_AVX2_H
#define MPRI_CPU_SIMD_AVX2_H

#include <immintrin.h>

#define VF_LANES 8
#define VF_HAS_FMA 1
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
typedef __m128i vh;
typedef __m256 vm; /* all bits of a lane set or clear */
typedef int16_t vw __attribute__((vector_size(32)));
typedef __m256i vwm;

static const int32_t vf_tail_[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
VF_FN __m256i vf_mask_n_(int n) { return _mm256_loadu_si256((const __m256i *)(vf_tail_ + 8 - n)); }

VF_FN vf vf_set1(float x) { return _mm256_set1_ps(x); }
VF_FN vi vi_set1(int32_t x) { return (vi)_mm256_set1_epi32(x); }
VF_FN vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
VF_FN void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
VF_FN vf vf_load_n(const float *p, int n) { return _mm256_maskload_ps(p, vf_mask_n_(n)); }
VF_FN void vf_store_n(float *p, vf v, int n) { _mm256_maskstore_ps(p, vf_mask_n_(n), v); }
VF_FN vh vh_load(const uint16_t *p) { return _mm_loadu_si128((const __m128i *)p); }
VF_FN void vh_store(uint16_t *p, vh v) { _mm_storeu_si128((__m128i *)p, v); }
VF_FN vh vh_load_n(const uint16_t *p, int n)
{
    uint16_t t[8] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return vh_load(t);
}
VF_FN void vh_store_n(uint16_t *p, vh v, int n)
{
    uint16_t t[8];
    vh_store(t, v);
    for (int i = 0; i < n; i++) p[i] = t[i];
}

VF_FN vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
VF_FN vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }

VF_FN vm vm_lt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
VF_FN vm vm_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
VF_FN vm vm_gt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
VF_FN vm vm_ge(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
VF_FN vm vm_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
VF_FN vm vm_ne(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); }
VF_FN vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
VF_FN vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
VF_FN vm vm_not(vm a) { return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1))); }
VF_FN bool vm_any(vm a) { return _mm256_movemask_ps(a) != 0; }
VF_FN vf vf_blend(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
VF_FN vi vi_blend(vm m, vi a, vi b) { return (vi)_mm256_blendv_ps((vf)b, (vf)a, m); }

/* W bytes, not 0 = true. */
VF_FN vm vm_load_bool(const uint8_t *p)
{
    __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return vm_ne(_mm256_cvtepi32_ps(v), _mm256_setzero_ps());
}

/* 1 or 0 to W bytes. */
VF_FN void vm_store_bool(uint8_t *p, vm m)
{
    __m256i one = _mm256_srli_epi32((__m256i)m, 31);
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(one), _mm256_extracti128_si256(one, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(w, w));
}
/* High and low halves of the unsigned products a * k. */
VF_FN void vi_mul_wide(vi a, uint32_t k, vi *high, vi *low)
{
    __m256i f = _mm256_set1_epi32((int32_t)k), even = _mm256_mul_epu32((__m256i)a, f);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), f);
    *high = (vi)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = (vi)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

VF_FN vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
VF_FN vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }

VF_FN vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps((__m256i)a); }
VF_FN vi vi_round(vf a) { return (vi)_mm256_cvtps_epi32(a); }
VF_FN vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VF_FN vf vf_floor(vf a) { return _mm256_floor_ps(a); }
/* 2^n for n in -126 .. 127. */
VF_FN vf vf_exp2i_(vi n) { return (vf)((n + vi_set1(127)) << 23); }
/* x * 2^n for n in -252 .. 254, rounding once more only where the result is subnormal. */
VF_FN vf vf_ldexp(vf x, vi n)
{
    vi half = n >> 1;
    return x * vf_exp2i_(half) * vf_exp2i_(n - half);
}
VF_FN vf vf_scale2(vf x, vf n) { return vf_ldexp(x, vi_round(n)); } /* n a whole number */

VF_FN vf vf_from_f16(vh h) { return _mm256_cvtph_ps(h); }
VF_FN vh vf_to_f16(vf x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VF_FN vf vf_from_bf16(vh h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
VF_FN vh vf_to_bf16(vf x)
{
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    r = (__m256i)vi_blend(vm_ne(x, x), (vi)nan, (vi)_mm256_srli_epi32(r, 16));
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

VF_FN float vf_hsum(vf a)
{
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* No lane is NaN. */
VF_FN float vf_hmax(vf a)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/* r[i][j] and r[j][i] change places: pairs, then fours within 128 bits, then the halves. */
VF_FN void vf_transpose(vf r[VF_LANES])
{
    vf t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* a0 b0 a1 b1 …: the first W of them and the others. */
VF_FN void vf_zip(vf a, vf b, vf *first, vf *second)
{
    vf low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    *first = _mm256_permute2f128_ps(low, high, 0x20);
    *second = _mm256_permute2f128_ps(low, high, 0x31);
}

VF_FN void vf_unzip(vf a, vf b, vf *even, vf *odd)
{
    vf low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(low, high, 0x88);
    *odd = _mm256_shuffle_ps(low, high, 0xdd);
}

/* ---- int16 ---- */

VF_FN vw vw_set1(int16_t x) { return (vw)_mm256_set1_epi16(x); }
VF_FN vw vw_load(const int16_t *p) { return (vw)_mm256_loadu_si256((const __m256i *)p); }
VF_FN vw vw_load_n(const int16_t *p, int n)
{
    int16_t t[16] = {0};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return vw_load(t);
}
VF_FN void vw_store(int16_t *p, vw v) { _mm256_storeu_si256((__m256i *)p, (__m256i)v); }
VF_FN vwm vwm_gt(vw a, vw b) { return _mm256_cmpgt_epi16((__m256i)a, (__m256i)b); }
VF_FN vwm vwm_eq(vw a, vw b) { return _mm256_cmpeq_epi16((__m256i)a, (__m256i)b); }
VF_FN vw vw_blend(vwm m, vw a, vw b) { return (vw)_mm256_blendv_epi8((__m256i)b, (__m256i)a, m); }
VF_FN vw vw_max(vw a, vw b) { return (vw)_mm256_max_epi16((__m256i)a, (__m256i)b); }
VF_FN vm vwm_first(vwm m)
{
    return _mm256_castsi256_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(m)));
}
VF_FN vm vwm_second(vwm m)
{
    return _mm256_castsi256_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(m, 1)));
}
/* Of the 4 W lanes of a and b, those of even number and those of odd number. */
VF_FN void vw_unzip(vw a, vw b, vw *even, vw *odd)
{
    __m256i low = _mm256_set1_epi32(0xffff), p = (__m256i)a, q = (__m256i)b;
    __m256i e = _mm256_packus_epi32(_mm256_and_si256(p, low), _mm256_and_si256(q, low));
    __m256i o = _mm256_packus_epi32(_mm256_srli_epi32(p, 16), _mm256_srli_epi32(q, 16));
    *even = (vw)_mm256_permute4x64_epi64(e, 0xd8); /* packing works on halves */
    *odd = (vw)_mm256_permute4x64_epi64(o, 0xd8);
}

#endif
