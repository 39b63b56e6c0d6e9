/* Vector primitives in plain GNU C: four lanes, no instruction set assumed, no fused multiply-add.
 * Included by simd.h only. Results are exact where the others are exact (conversions, rounding). */
#ifndef MPRI_CPU_SIMD_GENERIC_H
#define MPRI_CPU_SIMD_GENERIC_H

#define VF_LANES 4
#define VF_HAS_FMA 0
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu_ __attribute__((vector_size(16)));
typedef uint16_t vh __attribute__((vector_size(8)));
typedef vi vm;
typedef int16_t vw __attribute__((vector_size(16)));
typedef vw vwm;

VF_FN vf vf_set1(float x) { return (vf){x, x, x, x}; }
VF_FN vi vi_set1(int32_t x) { return (vi){x, x, x, x}; }
VF_FN vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
VF_FN void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
VF_FN vf vf_load_n(const float *p, int n)
{
    vf v = vf_set1(0);
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
}
VF_FN void vf_store_n(float *p, vf v, int n)
{
    for (int i = 0; i < n; i++) p[i] = v[i];
}
VF_FN vh vh_load(const uint16_t *p) { vh v; memcpy(&v, p, sizeof v); return v; }
VF_FN void vh_store(uint16_t *p, vh v) { memcpy(p, &v, sizeof v); }
VF_FN vh vh_load_n(const uint16_t *p, int n)
{
    vh v = {0, 0, 0, 0};
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
}
VF_FN void vh_store_n(uint16_t *p, vh v, int n)
{
    for (int i = 0; i < n; i++) p[i] = v[i];
}

VF_FN vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
VF_FN vf vf_sqrt(vf a)
{
    for (int i = 0; i < VF_LANES; i++) a[i] = __builtin_sqrtf(a[i]);
    return a;
}

VF_FN vm vm_lt(vf a, vf b) { return (vm)(a < b); }
VF_FN vm vm_le(vf a, vf b) { return (vm)(a <= b); }
VF_FN vm vm_gt(vf a, vf b) { return (vm)(a > b); }
VF_FN vm vm_ge(vf a, vf b) { return (vm)(a >= b); }
VF_FN vm vm_eq(vf a, vf b) { return (vm)(a == b); }
VF_FN vm vm_ne(vf a, vf b) { return (vm)(a != b); }
VF_FN vm vm_and(vm a, vm b) { return a & b; }
VF_FN vm vm_or(vm a, vm b) { return a | b; }
VF_FN vm vm_not(vm a) { return ~a; }
VF_FN bool vm_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
VF_FN vf vf_blend(vm m, vf a, vf b) { return (vf)(((vi)a & m) | ((vi)b & ~m)); }
VF_FN vi vi_blend(vm m, vi a, vi b) { return (a & m) | (b & ~m); }

/* W bytes, not 0 = true. */
VF_FN vm vm_load_bool(const uint8_t *p)
{
    return (vm)((vi){p[0], p[1], p[2], p[3]} != vi_set1(0));
}

/* 1 or 0 to W bytes. */
VF_FN void vm_store_bool(uint8_t *p, vm m)
{
    for (int i = 0; i < VF_LANES; i++) p[i] = m[i] != 0;
}
/* High and low halves of the unsigned products a * k. */
VF_FN void vi_mul_wide(vi a, uint32_t k, vi *high, vi *low)
{
    vi h = a;
    for (int i = 0; i < VF_LANES; i++) h[i] = (int32_t)((uint64_t)k * (uint32_t)a[i] >> 32);
    *high = h;
    *low = (vi)((vu_)a * k);
}

VF_FN vf vf_max(vf a, vf b) { return vf_blend(vm_gt(a, b), a, b); }
VF_FN vf vf_min(vf a, vf b) { return vf_blend(vm_lt(a, b), a, b); }

VF_FN vf vf_from_vi(vi a) { return __builtin_convertvector(a, vf); }
/* Adding 1.5 * 2^23 rounds to an integer in the low bits of the sum. */
VF_FN vi vi_round(vf a)
{
    const vf magic = vf_set1(12582912.0f);
    return (vi)(a + magic) - (vi)magic;
}
VF_FN vf vf_round(vf a)
{
    vi sign = (vi)a & vi_set1(INT32_MIN);
    vf mag = (vf)((vi)a ^ sign), magic = vf_set1(8388608.0f);
    vf r = (vf)((vi)((mag + magic) - magic) | sign);
    return vf_blend(vm_lt(mag, magic), r, a);
}
VF_FN vf vf_floor(vf a)
{
    vf r = vf_round(a);
    vf down = vf_blend(vm_gt(r, a), r - vf_set1(1.0f), r);
    return (vf)((vi)down | ((vi)a & vi_set1(INT32_MIN))); /* keeps -0 */
}
/* 2^n for n in -126 .. 127. */
VF_FN vf vf_exp2i_(vi n) { return (vf)((n + vi_set1(127)) << 23); }
/* x * 2^n for n in -252 .. 254, rounding once more only where the result is subnormal. */
VF_FN vf vf_ldexp(vf x, vi n)
{
    vi half = n >> 1;
    return x * vf_exp2i_(half) * vf_exp2i_(n - half);
}
VF_FN vf vf_scale2(vf x, vf n) { return vf_ldexp(x, vi_round(n)); } /* n a whole number */

VF_FN vf vf_from_f16(vh h)
{
    vi u = __builtin_convertvector(h, vi);
    vi sign = (u & vi_set1(0x8000)) << 16, mag = (u & vi_set1(0x7fff)) << 13;
    vi exp = mag & vi_set1(0x0f800000);
    vi normal = mag + vi_set1((127 - 15) << 23);
    vi special = mag + vi_set1((255 - 31) << 23);
    vi tiny = (vi)((vf)(mag + vi_set1(113 << 23)) - vf_set1(6.103515625e-05f));
    vi r = vi_blend((vm)(exp == vi_set1(0x0f800000)), special, normal);
    r = vi_blend((vm)(exp == vi_set1(0)), tiny, r);
    vi nan = (vi)(mag > vi_set1(0x0f800000)) & vi_set1(0x00400000); /* hardware makes NaN quiet */
    return (vf)(r | sign | nan);
}
VF_FN vh vf_to_f16(vf x)
{
    vi u = (vi)x, sign = (u >> 16) & vi_set1(0x8000), mag = u & vi_set1(INT32_MAX);
    vi odd = (mag >> 13) & vi_set1(1);
    vi normal = (mag - vi_set1((127 - 15) << 23) + vi_set1(0xfff) + odd) >> 13;
    const vf half = vf_set1(0.5f); /* adding it leaves a subnormal half, rounded, in the low bits */
    vi tiny = (vi)((vf)mag + half) - (vi)half;
    vi nan = vi_set1(0x7e00) | ((mag >> 13) & vi_set1(0x03ff));
    vi r = vi_blend((vm)(mag < vi_set1(113 << 23)), tiny, normal);
    r = vi_blend((vm)(mag >= vi_set1((127 + 16) << 23)), vi_set1(0x7c00), r);
    r = vi_blend((vm)(mag > vi_set1(0x7f800000)), nan, r);
    return __builtin_convertvector(r | sign, vh);
}
VF_FN vf vf_from_bf16(vh h) { return (vf)(__builtin_convertvector(h, vi) << 16); }
VF_FN vh vf_to_bf16(vf x)
{
    vu_ u = (vu_)x;
    vu_ r = (u + (vu_)vi_set1(0x7fff) + ((u >> 16) & (vu_)vi_set1(1))) >> 16;
    vi nan = (vi)((u >> 16) | (vu_)vi_set1(0x40));
    return __builtin_convertvector(vi_blend(vm_ne(x, x), nan, (vi)r), vh);
}

VF_FN float vf_hsum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }

/* No lane is NaN. */
VF_FN float vf_hmax(vf a)
{
    float b = a[0] > a[2] ? a[0] : a[2], c = a[1] > a[3] ? a[1] : a[3];
    return b > c ? b : c;
}

/* r[i][j] and r[j][i] change places. */
VF_FN void vf_transpose(vf r[VF_LANES])
{
    vf a = r[0], b = r[1], c = r[2], d = r[3];
    r[0] = (vf){a[0], b[0], c[0], d[0]};
    r[1] = (vf){a[1], b[1], c[1], d[1]};
    r[2] = (vf){a[2], b[2], c[2], d[2]};
    r[3] = (vf){a[3], b[3], c[3], d[3]};
}

/* a0 b0 a1 b1 …: the first W of them and the others. */
VF_FN void vf_zip(vf a, vf b, vf *first, vf *second)
{
    *first = (vf){a[0], b[0], a[1], b[1]};
    *second = (vf){a[2], b[2], a[3], b[3]};
}

VF_FN void vf_unzip(vf a, vf b, vf *even, vf *odd)
{
    *even = (vf){a[0], a[2], b[0], b[2]};
    *odd = (vf){a[1], a[3], b[1], b[3]};
}

/* ---- int16 ---- */

VF_FN vw vw_set1(int16_t x) { return (vw){x, x, x, x, x, x, x, x}; }
VF_FN vw vw_load(const int16_t *p) { vw v; memcpy(&v, p, sizeof v); return v; }
VF_FN vw vw_load_n(const int16_t *p, int n)
{
    vw v = vw_set1(0);
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
}
VF_FN void vw_store(int16_t *p, vw v) { memcpy(p, &v, sizeof v); }
VF_FN vwm vwm_gt(vw a, vw b) { return (vwm)(a > b); }
VF_FN vwm vwm_eq(vw a, vw b) { return (vwm)(a == b); }
VF_FN vw vw_blend(vwm m, vw a, vw b) { return (a & m) | (b & ~m); }
VF_FN vw vw_max(vw a, vw b) { return vw_blend(vwm_gt(a, b), a, b); }
VF_FN vm vwm_first(vwm m) { return (vm){m[0], m[1], m[2], m[3]}; }
VF_FN vm vwm_second(vwm m) { return (vm){m[4], m[5], m[6], m[7]}; }
/* Of the 4 W lanes of a and b, those of even number and those of odd number. */
VF_FN void vw_unzip(vw a, vw b, vw *even, vw *odd)
{
    *even = (vw){a[0], a[2], a[4], a[6], b[0], b[2], b[4], b[6]};
    *odd = (vw){a[1], a[3], a[5], a[7], b[1], b[3], b[5], b[7]};
}

#endif
