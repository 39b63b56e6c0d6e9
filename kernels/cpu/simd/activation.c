/* Activations with parameters and their gradients: load converts to f32, one formula, one rounding
 * at the store. Tiles are ranges of TILE elements; inputs and output have one shape, except the slope
 * of PRelu. The constants of a kernel, at most three, are broadcast once per tile. */
#include "kernels/cpu/simd/elementwise.h"
#include "kernels/cpu/simd/vmath.h"

enum { CONSTANTS = 3 };

typedef struct Job {
    Sweep s;
    float k[CONSTANTS];
} Job;

typedef vf (*Fn1)(vf x, const vf *k);
typedef vf (*Fn2)(vf a, vf b, const vf *k);

VF_FN void constants(const Job *j, vf *k)
{
    for (int i = 0; i < CONSTANTS; i++) k[i] = vf_set1(j->k[i]);
}

VF_FN void tile1(const Job *j, int64_t tile, Fn1 f)
{
    const Sweep *s = &j->s;
    int64_t i = tile * TILE, end = least(s->n, i + TILE);
    vf k[CONSTANTS];
    constants(j, k);
    for (; i + VF_LANES <= end; i += VF_LANES)
        vf_st(s->ty, s->y, i, f(vf_ld(s->in[0].t, s->in[0].p, i), k));
    int rest = (int)(end - i);
    if (rest) vf_st_n(s->ty, s->y, i, f(vf_ld_n(s->in[0].t, s->in[0].p, i, rest), k), rest);
}

VF_FN void tile2(const Job *j, int64_t tile, Fn2 f)
{
    const Sweep *s = &j->s;
    const Operand *a = &s->in[0], *b = &s->in[1];
    int64_t i = tile * TILE, end = least(s->n, i + TILE);
    vf k[CONSTANTS];
    constants(j, k);
    for (; i + VF_LANES <= end; i += VF_LANES)
        vf_st(s->ty, s->y, i, f(vf_ld(a->t, a->p, i), vf_ld(b->t, b->p, i), k));
    int rest = (int)(end - i);
    if (rest)
        vf_st_n(s->ty, s->y, i, f(vf_ld_n(a->t, a->p, i, rest), vf_ld_n(b->t, b->p, i, rest), k),
                rest);
}

static mpr_status run(const KernelCall *c, const float *k, int n_k,
                      void (*tile)(void *ctx, int64_t tile))
{
    Job j = {.k = {0}};
    sweep_init(&j.s, c);
    for (int i = 0; i < n_k; i++) j.k[i] = k[i];
    mpri_parallel(c->threads, tiles_of(j.s.n, TILE), tile, &j);
    return MPR_OK;
}

/* A kernel is a tile function and a call of run with the constants that the formula reads. */
#define KERNEL(name, Params, body, ...)                                                            \
    static void name##_tile(void *ctx, int64_t tile) { body; }                                     \
    static mpr_status k_##name(const KernelCall *c)                                                \
    {                                                                                              \
        const Params *p = c->params;                                                               \
        const float k[] = {__VA_ARGS__};                                                           \
        (void)p;                                                                                   \
        return run(c, k, (int)(sizeof k / sizeof k[0]), name##_tile);                              \
    }

/* ---- forward ---- */

VF_FN vm positive(vf x) { return vm_gt(x, vf_zero()); }
VF_FN vf clamp01(vf x) { return vf_clamp(x, vf_zero(), vf_set1(1.0f)); }

VF_FN vf f_leaky_relu(vf x, const vf *k) { return vf_blend(positive(x), x, k[0] * x); }
/* alpha, gamma, divisor */
VF_FN vf f_elu(vf x, const vf *k)
{
    return k[1] * vf_blend(positive(x), x, k[0] * vf_expm1(x / k[2]));
}
VF_FN vf f_hard_sigmoid(vf x, const vf *k) { return clamp01(vf_fma(k[0], x, k[1])); }
VF_FN vf f_hard_swish(vf x, const vf *k)
{
    (void)k;
    return x * (clamp01(vf_fma(x, vf_set1(1.0f / 6), vf_set1(0.5f))));
}
VF_FN vf f_softplus(vf x, const vf *k) { (void)k; return vf_softplus(x); }
VF_FN vf f_mish(vf x, const vf *k) { (void)k; return vf_mish(x); }
VF_FN vf f_swish(vf x, const vf *k) { return vf_swish(x, k[0] * x); }
VF_FN vf f_swiglu(vf a, vf b, const vf *k) { return vf_swish(a, k[0] * a) * b; }

KERNEL(leaky_relu, AlphaParams, tile1(ctx, tile, f_leaky_relu), p->alpha)
KERNEL(elu, AlphaParams, tile1(ctx, tile, f_elu), p->alpha, 1.0f, 1.0f)
KERNEL(celu, AlphaParams, tile1(ctx, tile, f_elu), p->alpha, 1.0f, p->alpha)
KERNEL(selu, SeluParams, tile1(ctx, tile, f_elu), p->alpha, p->gamma, 1.0f)
KERNEL(hard_sigmoid, HardSigmoidParams, tile1(ctx, tile, f_hard_sigmoid), p->alpha, p->beta)
KERNEL(hard_swish, ElementwiseParams, tile1(ctx, tile, f_hard_swish), 0.0f)
KERNEL(softplus, ElementwiseParams, tile1(ctx, tile, f_softplus), 0.0f)
KERNEL(mish, ElementwiseParams, tile1(ctx, tile, f_mish), 0.0f)
KERNEL(swish, AlphaParams, tile1(ctx, tile, f_swish), p->alpha)
KERNEL(swiglu, AlphaParams, tile2(ctx, tile, f_swiglu), p->alpha)

/* ---- gradients: (dy, x) ---- */

VF_FN vf f_leaky_relu_grad(vf dy, vf x, const vf *k)
{
    return vf_blend(positive(x), dy, k[0] * dy);
}
VF_FN vf f_elu_grad(vf dy, vf x, const vf *k)
{
    vf slope = vf_blend(positive(x), vf_set1(1.0f), k[0] / k[2] * vf_exp(x / k[2]));
    return dy * (k[1] * slope);
}
/* A comparison with NaN fails: NaN is kept by the last blend. */
VF_FN vf f_hard_sigmoid_grad(vf dy, vf x, const vf *k)
{
    vf y = vf_fma(k[0], x, k[1]);
    vm inside = vm_and(positive(y), vm_lt(y, vf_set1(1.0f)));
    return vf_blend(vm_nan(y), y, vf_blend(inside, dy * k[0], vf_zero()));
}
VF_FN vf f_hard_swish_grad(vf dy, vf x, const vf *k)
{
    (void)k;
    vf slope = dy * vf_fma(x, vf_set1(1.0f / 3), vf_set1(0.5f));
    slope = vf_blend(vm_ge(x, vf_set1(3.0f)), dy, slope);
    return vf_blend(vm_le(x, vf_set1(-3.0f)), vf_zero(), slope);
}
VF_FN vf f_softplus_grad(vf dy, vf x, const vf *k) { (void)k; return dy * vf_sigmoid(x); }
VF_FN vf f_mish_grad(vf dy, vf x, const vf *k) { (void)k; return dy * vf_mish_grad(x); }
VF_FN vf f_swish_grad(vf dy, vf x, const vf *k) { return dy * vf_swish_grad(k[0] * x); }

KERNEL(leaky_relu_grad, AlphaParams, tile2(ctx, tile, f_leaky_relu_grad), p->alpha)
KERNEL(elu_grad, EluGradParams, tile2(ctx, tile, f_elu_grad), p->alpha, p->gamma, p->divisor)
KERNEL(hard_sigmoid_grad, HardSigmoidParams, tile2(ctx, tile, f_hard_sigmoid_grad), p->alpha,
       p->beta)
KERNEL(hard_swish_grad, ElementwiseParams, tile2(ctx, tile, f_hard_swish_grad), 0.0f)
KERNEL(softplus_grad, ElementwiseParams, tile2(ctx, tile, f_softplus_grad), 0.0f)
KERNEL(mish_grad, ElementwiseParams, tile2(ctx, tile, f_mish_grad), 0.0f)
KERNEL(swish_grad, AlphaParams, tile2(ctx, tile, f_swish_grad), p->alpha)

/* ---- PRelu: the slope is broadcast ---- */

static void prelu_tile(void *ctx, int64_t tile)
{
    const Sweep *s = &((const Job *)ctx)->s;
    int64_t end = least(s->n, (tile + 1) * TILE);
    for (int64_t at = tile * TILE; at < end;) {
        Run r = run_at(s, at, end);
        vf x1 = run_fixed(s, &r, 0), slope1 = run_fixed(s, &r, 1);
        for (int64_t i = 0; i < r.n; i += VF_LANES) {
            int n = (int)least(VF_LANES, r.n - i);
            vf x = run_load_n(s, &r, 0, i, n, x1), slope = run_load_n(s, &r, 1, i, n, slope1);
            vf_st_n(s->ty, s->y, at + i, vf_blend(vm_ge(x, vf_zero()), x, slope * x), n);
        }
        at += r.n;
    }
}

static mpr_status k_prelu(const KernelCall *c) { return run(c, NULL, 0, prelu_tile); }

/* ---- rows ---- */

static const char *floats(const KernelSig *s) { return sig_floats(s, 0, 0) ? NULL : NOT_FLOAT; }

#define ROW(Op, lower, function)                                                                   \
    {.op = OP_##Op, .name = MPRI_ROW(lower), .isa = MPRI_ISA_ID, .fn = (function), .refuse = floats}

static const KernelRow rows[] = {
    ROW(LeakyRelu, "leakyrelu", k_leaky_relu),
    ROW(PRelu, "prelu", k_prelu),
    ROW(Elu, "elu", k_elu),
    ROW(Selu, "selu", k_selu),
    ROW(Celu, "celu", k_celu),
    ROW(HardSigmoid, "hardsigmoid", k_hard_sigmoid),
    ROW(HardSwish, "hardswish", k_hard_swish),
    ROW(Softplus, "softplus", k_softplus),
    ROW(Mish, "mish", k_mish),
    ROW(Swish, "swish", k_swish),
    ROW(SwiGLU, "swiglu", k_swiglu),
    ROW(LeakyReluGrad, "leakyrelugrad", k_leaky_relu_grad),
    ROW(EluGrad, "elugrad", k_elu_grad),
    ROW(HardSigmoidGrad, "hardsigmoidgrad", k_hard_sigmoid_grad),
    ROW(HardSwishGrad, "hardswishgrad", k_hard_swish_grad),
    ROW(SoftplusGrad, "softplusgrad", k_softplus_grad),
    ROW(MishGrad, "mishgrad", k_mish_grad),
    ROW(SwishGrad, "swishgrad", k_swish_grad),
};

const KernelTable MPRI_NAME(cpu_activation) = {rows, sizeof rows / sizeof rows[0]};
