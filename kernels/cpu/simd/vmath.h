/* Elementary functions on vectors of floats, within 2 ulp of the exact value, 2.6 where it takes
 * several of them (sigmoid, GELU), unless stated (tests/op/vmath.c measures them against double);
 * NaN in gives NaN out; subnormal results are kept.
 *
 * Range reduction by Cody and Waite (Software Manual for the Elementary Functions, 1980);
 * polynomials are minimax fits of our own (Lawson's weights on Chebyshev nodes). The normal
 * distribution function is exp(-t^2/2) q(t), q a ratio of polynomials: relative accuracy holds far
 * into the lower tail, which 1 + erf(x) loses.
 *
 * Trap: without a fused multiply-add (VF_HAS_FMA 0) products are rounded, so the constants of the
 * reductions have few bits and squares are split. */
#ifndef MPRI_CPU_VMATH_H
#define MPRI_CPU_VMATH_H

#include "kernels/cpu/simd/simd.h"

/* c[0] + c[1] x + ... + c[n-1] x^(n-1) */
VF_FN vf vf_poly_(vf x, const float *c, int n)
{
    vf r = vf_set1(c[n - 1]);
    for (int i = n - 2; i >= 0; i--) r = vf_fma(r, x, vf_set1(c[i]));
    return r;
}

/* exp(x + low), |low| < 0.06, x already clamped to [-104, 89]; 0.6 ulp. */
VF_FN vf vf_exp_core_(vf x, vf low)
{
    static const float c[] = {0.5f, 0.166666641831398f, 0.041665878146886826f,
                              0.008333690464496613f, 0.001397024025209248f,
                              0.00019764436001423746f};
    vf n = vf_round(x * vf_set1(1.44269504f));
    /* ln 2 in two parts, the first of 10 bits: high is exact */
    vf high = vf_fnma(n, vf_set1(0.693359375f), x);
    vf rest = vf_fma(n, vf_set1(2.12194440e-4f), low);
    vf r = high + rest;
    vf sum = vf_set1(1.0f) + high;
    rest = rest + (high - (sum - vf_set1(1.0f))); /* what the sum lost */
    return vf_scale2(sum + vf_fma(r * r, vf_poly_(r, c, 6), rest), n);
}

/* exp(x), x already clamped to [-104, 89]; the short way where products are fused, 0.9 ulp. */
VF_FN vf vf_exp_within_(vf x)
{
#if VF_HAS_FMA
    static const float c[] = {1.0f, 1.0f, 0.4999999403953552f, 0.1666652113199234f,
                              0.04166838899254799f, 0.00836874544620514f, 0.0013814539415761828f};
    vf n = vf_round(x * vf_set1(1.44269504f));
    vf r = vf_fma(n, vf_set1(-0.69314575f), x);
    r = vf_fma(n, vf_set1(-1.4286068e-06f), r);
    return vf_scale2(vf_poly_(r, c, 7), n);
#else
    return vf_exp_core_(x, vf_zero());
#endif
}

VF_FN vf vf_exp(vf x)
{
    return vf_exp_within_(vf_clamp(x, vf_set1(-104.0f), vf_set1(89.0f)));
}

/* The same where a result below the normal numbers may be 0: a share of a softmax. Making a
 * subnormal number, or 0 out of one, takes a processor a hundred times as long. */
VF_FN vf vf_exp_share(vf x)
{
    const vf low = vf_set1(-87.33f);
    vf e = vf_exp_within_(vf_clamp(x, low, vf_set1(89.0f)));
    return vf_blend(vm_lt(x, low), vf_zero(), e);
}

/* log 0 = -inf, log of a negative number is NaN. */
VF_FN vf vf_log(vf x)
{
    static const float c[] = {0.3333331346511841f, -0.25000008940696716f, 0.2000211924314499f,
                              -0.1666799634695053f, 0.14219552278518677f, -0.1240558922290802f,
                              0.11888162791728973f, -0.11675651371479034f, 0.0674663856625557f};
    const vf inf = vf_set1(INFINITY);
    vm tiny = vm_lt(x, vf_set1(1.17549435e-38f));
    vf y = vf_blend(tiny, x * vf_set1(8388608.0f), x);
    /* y = m 2^n with m in [sqrt 1/2, sqrt 2); |y|, as the bits of a negative y would overflow */
    vi u = (vi)vf_abs(y) - vi_set1(0x3f3504f3);
    vf n = vf_from_vi(u >> 23) - vf_blend(tiny, vf_set1(23.0f), vf_zero());
    vf f = (vf)((u & vi_set1(0x007fffff)) + vi_set1(0x3f3504f3)) - vf_set1(1.0f);
    vf z = f * f;
    vf r = f * z * vf_poly_(f, c, 9);
    r = vf_fma(n, vf_set1(-2.12194440e-4f), r);
    r = vf_fma(z, vf_set1(-0.5f), r);
    r = vf_fma(n, vf_set1(0.693359375f), f + r);
    r = vf_blend(vm_eq(x, inf), inf, r);
    r = vf_blend(vm_eq(x, vf_zero()), vf_set1(-INFINITY), r);
    return vf_blend(vm_ge(x, vf_zero()), r, vf_blend(vm_nan(x), x, vf_set1(NAN)));
}

VF_FN vf vf_tanh(vf x)
{
    static const float c[] = {-0.3333333134651184f, 0.13333210349082947f, -0.05394720286130905f,
                              0.021702969446778297f, -0.008182677440345287f,
                              0.0021475397516041994f};
    const vf one = vf_set1(1.0f);
    vf t = vf_abs(x), z = x * x;
    vf small = vf_fma(x * z, vf_poly_(z, c, 6), x);
    vf u = vf_min(vf_set1(20.0f), t + t); /* NaN stays: vf_min gives its second operand */
    vf large = one - vf_set1(2.0f) / (vf_exp_core_(u, vf_zero()) + one);
    return vf_blend(vm_lt(t, vf_set1(0.625f)), small, vf_copysign(large, x));
}

VF_FN vf vf_sigmoid(vf x)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp(vf_neg(vf_abs(x)));
    return vf_blend(vm_lt(x, vf_zero()), e, one) / (one + e);
}

/* e^x - 1: a series around 0. */
VF_FN vf vf_expm1(vf x)
{
    static const float c[] = {1.0f / 2,   1.0f / 6,    1.0f / 24,   1.0f / 120,
                              1.0f / 720, 1.0f / 5040, 1.0f / 40320};
    vf small = vf_fma(x * x, vf_poly_(x, c, 7), x);
    return vf_blend(vm_lt(vf_abs(x), vf_set1(0.5f)), small, vf_exp(x) - vf_set1(1.0f));
}

/* max(x, 0) + log(1 + e), e = e^-|x|: where u = 1 + e was rounded, log(u) e / (u - 1) makes up for
 * it. */
VF_FN vf vf_softplus(vf x)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp(vf_neg(vf_abs(x))), u = one + e, d = u - one;
    vf tail = vf_blend(vm_eq(d, vf_zero()), e, vf_log(u) * (e / d));
    return vf_max_nan(x, vf_zero()) + tail;
}

/* x sigmoid(z), z = alpha x; -inf gives -inf * 0 = NaN, as PyTorch. */
VF_FN vf vf_swish(vf x, vf z)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp(vf_neg(vf_abs(z)));
    return x * vf_blend(vm_lt(z, vf_zero()), e, one) / (one + e);
}
/* s + z s (1 - s), s = sigmoid(z), to 6 ulp of the larger of the result and s: there is a zero near
 * -1.28. Infinities give NaN. */
VF_FN vf vf_swish_grad(vf z)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp(vf_neg(vf_abs(z))), d = one / (one + e);
    vf s = d * vf_blend(vm_lt(z, vf_zero()), e, one);
    return vf_fma(z, e * d * d, s);
}

/* x tanh(log(1 + e^x)) = x n / (n + 2) with e = e^x, n = e (e + 2); from 20 on that is x. */
VF_FN vf vf_mish(vf x)
{
    const vf two = vf_set1(2.0f);
    vf e = vf_exp(vf_min(vf_set1(20.0f), x)), n = e * (e + two); /* NaN stays */
    return x * (n / (n + two));
}
/* n / (n + 2) + 4 x e (1 + e) / (n + 2)^2, to 8 ulp of the larger of the result and n / (n + 2):
 * there is a zero near -1.19. Infinities give NaN. */
VF_FN vf vf_mish_grad(vf x)
{
    const vf one = vf_set1(1.0f), two = vf_set1(2.0f);
    vf e = vf_exp(vf_min(vf_set1(20.0f), x)), n = e * (e + two), d = one / (n + two);
    vf slope = vf_set1(4.0f) * (e * d) * ((one + e) * d);
    return vf_fma(x, vf_blend(vm_lt(x, vf_set1(20.0f)), slope, vf_zero()), n * d);
}

/* exp(-t^2 / 2): the square is carried in two parts, since its rounding error grows with t. */
VF_FN vf vf_exp_half_square_(vf t)
{
#if VF_HAS_FMA
    vf s = t * t, low = vf_fma(t, t, vf_neg(s));
#else
    vf high = (vf)((vi)t & vi_set1((int32_t)0xfffff000));
    vf s = high * high, low = (t - high) * (t + high);
#endif
    return vf_exp_core_(s * vf_set1(-0.5f), low * vf_set1(-0.5f));
}

/* For t in [0, 14.4], exp(t^2 / 2) (1 - Phi(t)) is the result over *below; all terms are
 * positive. */
VF_FN vf vf_tail_ratio_(vf t, vf *below)
{
    static const float n[] = {0.5f, 0.4384971559047699f, 0.18338516354560852f,
                              0.04068386182188988f, 0.004123841878026724f};
    static const float d[] = {1.0f, 1.6748793125152588f, 1.2031258344650269f, 0.46986672282218933f,
                              0.10198569297790527f, 0.010336820967495441f};
    *below = vf_poly_(t, d, 6);
    return vf_poly_(t, n, 5);
}

VF_FN vf vf_erf(vf x)
{
    static const float c[] = {0.12837916612625122f, -0.37612631916999817f, 0.11283663660287857f,
                              -0.026857705786824226f, 0.005196952261030674f,
                              -0.0008097703685052693f, 8.185093611245975e-05f};
    const vf one = vf_set1(1.0f);
    vf a = vf_abs(x), z = x * x;
    vf small = vf_fma(x, vf_poly_(z, c, 7), x);
    vf t = vf_min(vf_set1(6.0f), a * vf_set1(1.41421356f));
    vf below, above = vf_tail_ratio_(t, &below);
    vf tail = vf_exp_core_(t * t * vf_set1(-0.5f), vf_zero()) * (above + above) / below;
    vf large = vf_copysign(one - tail, x);
    return vf_blend(vm_lt(a, vf_set1(0.95f)), small, large);
}

/* x Phi(x): a series around 0; from |x| = 0.7 on max(x, 0) - |x| Phi(-|x|), where
 * t Phi(-t) exp(t^2 / 2) = 1/sqrt(2 pi) - n(t) / d(t). A subnormal result may be
 * off by 8 units of its last place. -inf gives -inf * 0 = NaN, as PyTorch. */
VF_FN vf vf_gelu(vf x)
{
    static const float c[] = {0.3989422917366028f, -0.06649025529623032f, 0.009972197003662586f,
                              -0.0011812129523605108f, 0.0001031344581861049f};
    static const float n[] = {0.3989749550819397f, 0.23136645555496216f, 0.06570520997047424f,
                              0.008992493152618408f};
    static const float d[] = {1.0f, 1.833854079246521f, 1.4611574411392212f, 0.6505257487297058f,
                              0.16455315053462982f, 0.02254357933998108f};
    vf t = vf_min(vf_set1(14.4f), vf_abs(x)); /* NaN stays: vf_min gives its second operand */
    vf center = x * vf_fma(x, vf_poly_(x * x, c, 5), vf_set1(0.5f));
    vf g = vf_set1(0.398942280f) - vf_poly_(t, n, 4) / vf_poly_(t, d, 6);
    vf outer = vf_max(x, vf_zero()) - g * vf_exp_half_square_(t);
    outer = vf_blend(vm_eq(x, vf_set1(-INFINITY)), vf_set1(NAN), outer);
    return vf_blend(vm_lt(t, vf_set1(0.7f)), center, outer);
}
/* Phi(x) + x phi(x), to 2 ulp of Phi(x) or of the result, whichever is larger (there is a zero near
 * -0.75). Infinities give NaN, as PyTorch. */
VF_FN vf vf_gelu_grad(vf x)
{
    const vf one = vf_set1(1.0f);
    vf t = vf_min(vf_set1(14.4f), vf_abs(x)), e = vf_exp_half_square_(t);
    vf below, above = vf_tail_ratio_(t, &below);
    vf low = e * vf_fnma(t, vf_set1(0.398942280f), above / below); /* the value at -t */
    return vf_fma(x, vf_zero(), vf_blend(vm_lt(x, vf_zero()), low, one - low));
}

/* exp(-2 u), u = sqrt(2 / pi) (t + 0.044715 t^3), the rounding of u carried along. */
VF_FN vf vf_exp_tanh_arg_(vf t)
{
    t = vf_min(vf_set1(11.0f), t);
#if VF_HAS_FMA
    vf z = t * t, zl = vf_fma(t, t, vf_neg(z));
    vf p = z * vf_set1(0.0713548163f), pl = vf_fma(z, vf_set1(0.0713548163f), vf_neg(p));
    vf k = p + vf_set1(1.59576912f), back = k - p; /* Knuth's exact sum of two */
    vf kl = (p - (k - back)) + (vf_set1(1.59576912f) - back);
    kl = kl + pl + vf_fma(z, vf_set1(2.3988324e-09f), vf_set1(-4.53406804e-08f));
    vf u = t * k, ul = vf_fma(t, k, vf_neg(u));
    ul = vf_fma(t, vf_fma(zl, vf_set1(0.0713548163f), kl), ul);
    return vf_exp_core_(vf_neg(u), vf_neg(ul));
#else
    return vf_exp_core_(vf_neg(t * (t * t * vf_set1(0.0713548163f) + vf_set1(1.59576912f))),
                        vf_zero());
#endif
}

/* x sigmoid(2 u) = x (1 + tanh u) / 2. Without fused multiply-add the rounding of u shows in the
 * lower tail: the error is then below 3 ulp of max(|y|, |x| / 8). */
VF_FN vf vf_gelu_tanh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf e = vf_exp_tanh_arg_(vf_abs(x));
    vf low = vf_max(vf_set1(-11.0f), x) * e;
    low = vf_blend(vm_eq(x, vf_set1(-INFINITY)), vf_set1(NAN), low);
    return vf_blend(vm_lt(x, vf_zero()), low, x) / (one + e);
}
VF_FN vf vf_gelu_tanh_grad(vf x)
{
    const vf one = vf_set1(1.0f);
    vf t = vf_min(vf_set1(11.0f), vf_abs(x));
    vf e = vf_exp_tanh_arg_(t), d = one / (one + e);
    vf du = vf_fma(t * t, vf_set1(0.214064449f), vf_set1(1.59576912f));
    vf low = e * d * vf_fnma(t * d, du, one); /* the value at -t */
    return vf_fma(x, vf_zero(), vf_blend(vm_lt(x, vf_zero()), low, one - low));
}

/* ---- by the C library where a vector form would not pay ---- */

VF_FN vf vf_lanes_(vf x, float (*fn)(float))
{
    float t[VF_LANES];
    vf_store(t, x);
    for (int i = 0; i < VF_LANES; i++) t[i] = fn(t[i]);
    return vf_load(t);
}
VF_FN vf vf_pow(vf x, vf y)
{
    float a[VF_LANES], b[VF_LANES];
    vf_store(a, x);
    vf_store(b, y);
    for (int i = 0; i < VF_LANES; i++) a[i] = powf(a[i], b[i]);
    return vf_load(a);
}

#if VF_HAS_FMA
/* sin (quarter 0) or cos (quarter 1): n quarter turns are taken off in three parts of pi / 2. */
VF_FN vf vf_sincos_(vf x, int quarter)
{
    static const float s[] = {-0.1666666716337204f, 0.008333329111337662f,
                              -0.00019839162996504456f, 2.716712060646387e-06f};
    static const float c[] = {0.0416666679084301f, -0.0013888883404433727f,
                              2.4799295715638436e-05f, -2.7192444918000547e-07f};
    vf n = vf_round(x * vf_set1(0.636619772f));
    vf r = vf_fnma(n, vf_set1(1.57079637f), x);
    r = vf_fnma(n, vf_set1(-4.37113883e-8f), r);
    r = vf_fnma(n, vf_set1(-1.71512489e-15f), r);
    vi q = vi_round(n) + vi_set1(quarter);
    vf z = r * r;
    vf sine = vf_fma(r * z, vf_poly_(z, s, 4), r);
    vf cosine = vf_fma(z * z, vf_poly_(z, c, 4), vf_fma(z, vf_set1(-0.5f), vf_set1(1.0f)));
    vm odd = vm_ne(vf_from_vi(q & vi_set1(1)), vf_zero());
    return (vf)((vi)vf_blend(odd, cosine, sine) ^ ((q & vi_set1(2)) << 30));
}
VF_FN vf vf_sin(vf x)
{
    if (vm_any(vm_not(vm_lt(vf_abs(x), vf_set1(8192.0f))))) return vf_lanes_(x, sinf);
    return vf_blend(vm_eq(x, vf_zero()), x, vf_sincos_(x, 0));
}
VF_FN vf vf_cos(vf x)
{
    if (vm_any(vm_not(vm_lt(vf_abs(x), vf_set1(8192.0f))))) return vf_lanes_(x, cosf);
    return vf_sincos_(x, 1);
}
#else
VF_FN vf vf_sin(vf x) { return vf_lanes_(x, sinf); }
VF_FN vf vf_cos(vf x) { return vf_lanes_(x, cosf); }
#endif

#endif
