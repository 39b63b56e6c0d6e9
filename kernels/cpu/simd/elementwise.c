/* Elementwise operators: load converts to f32, one operation, one rounding at the store. Any mix of
 * f32, f16 and bf16 among inputs and output; integers are left to the reference kernels.
 *
 * Each operator is an inlined function of vectors; the walk over runs is elementwise.h. Tiles are
 * ranges of TILE output elements. The output may be an input's buffer: every element is read before
 * it is written. */
#include "kernels/cpu/simd/elementwise.h"

#include "kernels/cpu/simd/vmath.h"

/* ---- loops over the runs of one tile ---- */

typedef vf (*Fn1)(vf a);
typedef vf (*Fn2)(vf a, vf b);

VF_FN void tile1(const Sweep *s, int64_t tile, Fn1 f)
{
    int64_t i = tile * TILE, end = least(s->n, i + TILE);
    const void *x = s->in[0].p;
    DType tx = s->in[0].t, ty = s->ty;
    for (; i + VF_LANES <= end; i += VF_LANES) vf_st(ty, s->y, i, f(vf_ld(tx, x, i)));
    int rest = (int)(end - i);
    if (rest) vf_st_n(ty, s->y, i, f(vf_ld_n(tx, x, i, rest)), rest);
}

VF_FN void run2(const Sweep *s, const Run *r, Fn2 f)
{
    int64_t i = 0;
    vf a = run_fixed(s, r, 0), b = run_fixed(s, r, 1);
    for (; i + VF_LANES <= r->n; i += VF_LANES)
        vf_st(s->ty, s->y, r->at + i, f(run_load(s, r, 0, i, a), run_load(s, r, 1, i, b)));
    int rest = (int)(r->n - i);
    if (rest)
        vf_st_n(s->ty, s->y, r->at + i,
                f(run_load_n(s, r, 0, i, rest, a), run_load_n(s, r, 1, i, rest, b)), rest);
}

/* The usual case: both inputs move, all types equal. A constant type lets the compiler drop the
 * choices. */
VF_FN void run2_same(const Sweep *s, const Run *r, DType t, Fn2 f)
{
    int64_t i = 0;
    const void *a = s->in[0].p, *b = s->in[1].p;
    for (; i + VF_LANES <= r->n; i += VF_LANES)
        vf_st(t, s->y, r->at + i, f(vf_ld(t, a, r->base[0] + i), vf_ld(t, b, r->base[1] + i)));
    int rest = (int)(r->n - i);
    if (rest)
        vf_st_n(t, s->y, r->at + i,
                f(vf_ld_n(t, a, r->base[0] + i, rest), vf_ld_n(t, b, r->base[1] + i, rest)), rest);
}

VF_FN void tile2(const Sweep *s, int64_t tile, Fn2 f)
{
    int64_t end = least(s->n, (tile + 1) * TILE);
    bool same = s->in[0].t == s->ty && s->in[1].t == s->ty;
    for (int64_t at = tile * TILE; at < end;) {
        Run r = run_at(s, at, end);
        bool both = same && r.step[0] && r.step[1];
        if (both && s->ty == MPR_FLOAT32) run2_same(s, &r, MPR_FLOAT32, f);
        else if (both && s->ty == MPR_FLOAT16) run2_same(s, &r, MPR_FLOAT16, f);
        else run2(s, &r, f);
        at += r.n;
    }
}

/* Folds any number of inputs from left to right, rounding once. */
VF_FN void tile_fold(const Sweep *s, int64_t tile, Fn2 f)
{
    int64_t end = least(s->n, (tile + 1) * TILE);
    for (int64_t at = tile * TILE; at < end;) {
        Run r = run_at(s, at, end);
        vf fixed[ELEMENTWISE_IN];
        for (int k = 0; k < s->n_in; k++) fixed[k] = run_fixed(s, &r, k);
        for (int64_t i = 0; i < r.n; i += VF_LANES) {
            int n = (int)least(VF_LANES, r.n - i);
            vf v = run_load_n(s, &r, 0, i, n, fixed[0]);
            for (int k = 1; k < s->n_in; k++) v = f(v, run_load_n(s, &r, k, i, n, fixed[k]));
            vf_st_n(s->ty, s->y, r.at + i, v, n);
        }
        at += r.n;
    }
}

static mpr_status sweep(const KernelCall *c, void (*tile)(void *ctx, int64_t tile))
{
    Sweep s;
    sweep_init(&s, c);
    mpri_parallel(c->threads, tiles_of(s.n, TILE), tile, &s);
    return MPR_OK;
}

/* ---- the operators: a kernel is a tile function and a call of sweep ---- */

#define KERNEL(name, body)                                                                   \
    static void name##_tile(void *ctx, int64_t tile) { body; }                               \
    static mpr_status k_##name(const KernelCall *c) { return sweep(c, name##_tile); }

VF_FN vf f_reciprocal(vf x) { return vf_set1(1.0f) / x; }
VF_FN vf f_relu(vf x) { return vf_max_nan(x, vf_zero()); }

KERNEL(neg, tile1(ctx, tile, vf_neg))
KERNEL(abs, tile1(ctx, tile, vf_abs))
KERNEL(reciprocal, tile1(ctx, tile, f_reciprocal))
KERNEL(sqrt, tile1(ctx, tile, vf_sqrt))
KERNEL(exp, tile1(ctx, tile, vf_exp))
KERNEL(log, tile1(ctx, tile, vf_log))
KERNEL(sin, tile1(ctx, tile, vf_sin))
KERNEL(cos, tile1(ctx, tile, vf_cos))
KERNEL(erf, tile1(ctx, tile, vf_erf))
KERNEL(tanh, tile1(ctx, tile, vf_tanh))
KERNEL(sigmoid, tile1(ctx, tile, vf_sigmoid))
KERNEL(relu, tile1(ctx, tile, f_relu))
KERNEL(gelu_erf, tile1(ctx, tile, vf_gelu))
KERNEL(gelu_tanh, tile1(ctx, tile, vf_gelu_tanh))

VF_FN vf f_add(vf a, vf b) { return a + b; }
VF_FN vf f_sub(vf a, vf b) { return a - b; }
VF_FN vf f_mul(vf a, vf b) { return a * b; }
VF_FN vf f_div(vf a, vf b) { return a / b; }
VF_FN vf f_relu_grad(vf dy, vf y) { return vf_blend(vm_le(y, vf_zero()), vf_zero(), dy); }
/* (1 - y)(1 + y) keeps the digits that 1 - y^2 loses near saturation. */
VF_FN vf f_tanh_grad(vf dy, vf y) { return dy * ((vf_set1(1.0f) - y) * (vf_set1(1.0f) + y)); }
VF_FN vf f_sigmoid_grad(vf dy, vf y) { return dy * (y * (vf_set1(1.0f) - y)); }
VF_FN vf f_gelu_erf_grad(vf dy, vf x) { return dy * vf_gelu_grad(x); }
VF_FN vf f_gelu_tanh_grad(vf dy, vf x) { return dy * vf_gelu_tanh_grad(x); }

KERNEL(add, tile2(ctx, tile, f_add))
KERNEL(sub, tile2(ctx, tile, f_sub))
KERNEL(mul, tile2(ctx, tile, f_mul))
KERNEL(div, tile2(ctx, tile, f_div))
KERNEL(pow_any, tile2(ctx, tile, vf_pow))
KERNEL(relu_grad, tile2(ctx, tile, f_relu_grad))
KERNEL(tanh_grad, tile2(ctx, tile, f_tanh_grad))
KERNEL(sigmoid_grad, tile2(ctx, tile, f_sigmoid_grad))
KERNEL(gelu_erf_grad, tile2(ctx, tile, f_gelu_erf_grad))
KERNEL(gelu_tanh_grad, tile2(ctx, tile, f_gelu_tanh_grad))

KERNEL(sum, tile_fold(ctx, tile, f_add))
KERNEL(max, tile_fold(ctx, tile, vf_max_nan))
KERNEL(min, tile_fold(ctx, tile, vf_min_nan))

static bool is_tanh(const KernelCall *c)
{
    const GeluParams *p = c->params;
    return p->approximate && strcmp(p->approximate, "tanh") == 0;
}

static mpr_status k_gelu(const KernelCall *c)
{
    return is_tanh(c) ? k_gelu_tanh(c) : k_gelu_erf(c);
}
static mpr_status k_gelu_grad(const KernelCall *c)
{
    return is_tanh(c) ? k_gelu_tanh_grad(c) : k_gelu_erf_grad(c);
}

VF_FN vf f_square(vf a) { return a * a; }
VF_FN vf f_cube(vf a) { return a * a * a; }
KERNEL(square, tile1(ctx, tile, f_square))
KERNEL(cube, tile1(ctx, tile, f_cube))

/* Squares and cubes, the usual powers, need no powf. */
static mpr_status k_pow(const KernelCall *c)
{
    float e = c->in[1].n == 1 ? vf_ld1(c->in[1].dtype, c->in[1].data, 0) : 0;
    if (c->in[0].n != c->out[0].n || (e != 2 && e != 3)) return k_pow_any(c);
    KernelCall one = *c;
    one.n_in = 1;
    return e == 2 ? k_square(&one) : k_cube(&one);
}

/* ---- Clip: two optional scalars ---- */

typedef struct Clip {
    Sweep s;
    float low, high;
} Clip;

static void clip_tile(void *ctx, int64_t tile)
{
    const Clip *c = ctx;
    vf low = vf_set1(c->low), high = vf_set1(c->high);
    for (int64_t i = tile * TILE, end = least(c->s.n, i + TILE); i < end; i += VF_LANES) {
        int n = (int)least(VF_LANES, end - i);
        vf_st_n(c->s.ty, c->s.y, i, vf_clamp(vf_ld_n(c->s.in[0].t, c->s.in[0].p, i, n), low, high),
                n);
    }
}

static mpr_status k_clip(const KernelCall *c)
{
    const Tensor *low = input_or_null(c, 1), *high = input_or_null(c, 2);
    KernelCall one = *c;
    Clip clip = {.low = low ? vf_ld1(low->dtype, low->data, 0) : -INFINITY,
                 .high = high ? vf_ld1(high->dtype, high->data, 0) : INFINITY};
    one.n_in = 1;
    sweep_init(&clip.s, &one);
    mpri_parallel(c->threads, tiles_of(clip.s.n, TILE), clip_tile, &clip);
    return MPR_OK;
}

/* ---- Where: the condition is bytes ---- */

VF_FN vm condition(const Sweep *s, const Run *r, int64_t i, int n)
{
    const uint8_t *p = (const uint8_t *)s->in[0].p + r->base[0];
    if (!r->step[0]) return vm_ne(vf_set1(*p), vf_zero());
    return n == VF_LANES ? vm_load_bool(p + i) : vm_load_bool_n(p + i, n);
}

static void where_tile(void *ctx, int64_t tile)
{
    const Sweep *s = ctx;
    int64_t end = least(s->n, (tile + 1) * TILE);
    for (int64_t at = tile * TILE; at < end;) {
        Run r = run_at(s, at, end);
        vf a = run_fixed(s, &r, 1), b = run_fixed(s, &r, 2);
        int64_t i = 0;
        for (; i + VF_LANES <= r.n; i += VF_LANES) {
            vm first = condition(s, &r, i, VF_LANES);
            vf_st(s->ty, s->y, at + i,
                  vf_blend(first, run_load(s, &r, 1, i, a), run_load(s, &r, 2, i, b)));
        }
        int n = (int)(r.n - i);
        if (n) {
            vm first = condition(s, &r, i, n);
            vf v = vf_blend(first, run_load_n(s, &r, 1, i, n, a), run_load_n(s, &r, 2, i, n, b));
            vf_st_n(s->ty, s->y, at + i, v, n);
        }
        at += r.n;
    }
}

static mpr_status k_where(const KernelCall *c) { return sweep(c, where_tile); }

/* ---- comparisons of floats: bytes out ---- */

typedef vm (*Test)(vf a, vf b);

VF_FN void tile_test(const Sweep *s, int64_t tile, Test f)
{
    int64_t end = least(s->n, (tile + 1) * TILE);
    for (int64_t at = tile * TILE; at < end;) {
        Run r = run_at(s, at, end);
        vf a = run_fixed(s, &r, 0), b = run_fixed(s, &r, 1);
        for (int64_t i = 0; i < r.n; i += VF_LANES) {
            int n = (int)least(VF_LANES, r.n - i);
            vm m = f(run_load_n(s, &r, 0, i, n, a), run_load_n(s, &r, 1, i, n, b));
            vm_store_bool_n((uint8_t *)s->y + at + i, m, n);
        }
        at += r.n;
    }
}

KERNEL(equal, tile_test(ctx, tile, vm_eq))
KERNEL(less, tile_test(ctx, tile, vm_lt))
KERNEL(greater, tile_test(ctx, tile, vm_gt))
KERNEL(less_equal, tile_test(ctx, tile, vm_le))
KERNEL(greater_equal, tile_test(ctx, tile, vm_ge))

/* ---- refusals and rows ---- */

static const char *floats(const KernelSig *s)
{
    if (!sig_floats(s, 0, 0)) return NOT_FLOAT;
    return s->n_in > ELEMENTWISE_IN ? "takes at most 8 inputs" : NULL;
}

static const char *floats_to_bool(const KernelSig *s)
{
    return vf_can(s->in[0].dtype) && vf_can(s->in[1].dtype) ? NULL : NOT_FLOAT;
}

static const char *floats_after_condition(const KernelSig *s)
{
    return sig_floats(s, 1, 0) ? NULL : NOT_FLOAT;
}

#define ELEMENTWISE(Op, lower, function) \
    {.op = OP_##Op, .name = MPRI_ROW(lower), .isa = MPRI_ISA_ID, .fn = (function), .refuse = floats}

#define COMPARISON(Op, lower, function)                                          \
    {.op = OP_##Op, .name = MPRI_ROW(lower), .isa = MPRI_ISA_ID, .fn = (function), \
     .refuse = floats_to_bool}

static const KernelRow rows[] = {
    ELEMENTWISE(Add, "add", k_add),
    ELEMENTWISE(Sub, "sub", k_sub),
    ELEMENTWISE(Mul, "mul", k_mul),
    ELEMENTWISE(Div, "div", k_div),
    ELEMENTWISE(Pow, "pow", k_pow),
    ELEMENTWISE(Max, "max", k_max),
    ELEMENTWISE(Min, "min", k_min),
    ELEMENTWISE(Sum, "sum", k_sum),
    ELEMENTWISE(Neg, "neg", k_neg),
    ELEMENTWISE(Abs, "abs", k_abs),
    ELEMENTWISE(Reciprocal, "reciprocal", k_reciprocal),
    ELEMENTWISE(Sqrt, "sqrt", k_sqrt),
    ELEMENTWISE(Exp, "exp", k_exp),
    ELEMENTWISE(Log, "log", k_log),
    ELEMENTWISE(Sin, "sin", k_sin),
    ELEMENTWISE(Cos, "cos", k_cos),
    ELEMENTWISE(Erf, "erf", k_erf),
    ELEMENTWISE(Tanh, "tanh", k_tanh),
    ELEMENTWISE(Sigmoid, "sigmoid", k_sigmoid),
    ELEMENTWISE(Relu, "relu", k_relu),
    ELEMENTWISE(Gelu, "gelu", k_gelu),
    ELEMENTWISE(Clip, "clip", k_clip),
    ELEMENTWISE(ReluGrad, "relugrad", k_relu_grad),
    ELEMENTWISE(TanhGrad, "tanhgrad", k_tanh_grad),
    ELEMENTWISE(SigmoidGrad, "sigmoidgrad", k_sigmoid_grad),
    ELEMENTWISE(GeluGrad, "gelugrad", k_gelu_grad),
    COMPARISON(Equal, "equal", k_equal),
    COMPARISON(Less, "less", k_less),
    COMPARISON(Greater, "greater", k_greater),
    COMPARISON(LessOrEqual, "lessorequal", k_less_equal),
    COMPARISON(GreaterOrEqual, "greaterorequal", k_greater_equal),
    {.op = OP_Where,
     .name = MPRI_ROW("where"),
     .isa = MPRI_ISA_ID,
     .fn = k_where,
     .refuse = floats_after_condition},
};

const KernelTable MPRI_NAME(cpu_elementwise) = {rows, sizeof rows / sizeof rows[0]};
