/* The vector functions, through the elementwise rows of every instruction set that use them: over
 * all floats (every STRIDE-th bit pattern, and many near the places where a formula changes)
 * against double, in units of the last place; what NaN, infinities, zeros and subnormals give; and
 * conversions to and from 16 bits against the scalar ones, all 65,536 halves and a sweep of the
 * floats. */
#include <float.h>
#include <math.h>
#include <string.h>
#include "kernels/cpu/isa.h"
#include "tests/support/kernels.h"

enum { LANES = 1 << 14 };
#define STRIDE 4001u

static double normal(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
static double density(double x) { return 0.39894228040143267794 * exp(-0.5 * x * x); }
static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }
static double twice_u(double x) { return 1.59576912160573071176 * x * (1 + 0.044715 * x * x); }
static double gelu(double x) { return x * normal(x); }
static double gelu_tanh(double x) { return x * sigmoid(twice_u(x)); }
static double gelu_grad(double x) { return normal(x) + (fabs(x) < 40 ? x * density(x) : 0); }
static double gelu_tanh_grad(double x)
{
    double s = sigmoid(twice_u(x)), slope = 1.59576912160573071176 * (1 + 3 * 0.044715 * x * x);
    return s + (fabs(x) < 40 ? x * s * sigmoid(-twice_u(x)) * slope : 0);
}
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double swish(double x) { return x * sigmoid(x); }
static double swish_grad(double x) { return sigmoid(x) * (1 + x * sigmoid(-x)); }
static double tanh_softplus(double x)
{
    double e = exp(fmin(x, 300)), n = e * (e + 2);
    return n / (n + 2);
}
static double mish(double x) { return x * tanh_softplus(x); }
static double mish_grad(double x)
{
    double w = tanh_softplus(x);
    return w + (x < 300 ? x * (1 - w) * (1 + w) * sigmoid(x) : 0);
}
static double selu_like(double x) { return x > 0 ? x : 1.5 * expm1(x); }
static double elu_grad(double x) { return x > 0 ? 1.25 : 1.25 * 1.5 * exp(x); }
/* Before the product or quotient there may be a subnormal number. */
static double scale_swish(double x) { return fmax(fabs(swish(x)), fabs(x) * 0x1p-123); }
static double scale_mish(double x) { return fmax(fabs(mish(x)), fabs(x) * 0x1p-123); }
static double scale_swish_grad(double x)
{
    return fmax(fmax(sigmoid(x), fabs(swish_grad(x))), fabs(x) * 0x1p-123);
}
static double scale_mish_grad(double x)
{
    return fmax(fmax(tanh_softplus(x), fabs(mish_grad(x))), fabs(x) * 0x1p-123);
}
/* The larger of the terms that cancel in a derivative: what 1 ulp is measured by. */
static double scale_normal(double x) { return fmax(normal(x), fabs(gelu_grad(x))); }
static double scale_sigmoid(double x) { return fmax(sigmoid(twice_u(x)), fabs(gelu_tanh_grad(x))); }
static double scale_sigmoid_16(double x) { return fmax(scale_sigmoid(x), 1.0 / 16); }
static double scale_eighth(double x) { return fmax(fabs(gelu_tanh(x)), fabs(x) / 8); }

typedef struct Function {
    const char *name;
    int op;
    const void *params;
    double (*exact)(double);
    double (*scale)(double);         /* NULL: the result itself */
    double (*scale_generic)(double); /* the same without fused multiply-add */
    double ulp;
    bool grad;       /* inputs dy = 1, x */
    float low, high; /* tested on; 0, 0: everywhere */
} Function;

static const GeluParams erf_form = {.approximate = "none"}, tanh_form = {.approximate = "tanh"};
static const ElementwiseParams none = {0};
static const AlphaParams alpha_1 = {.alpha = 1}, alpha_15 = {.alpha = 1.5f};
static const EluGradParams elu_form = {.alpha = 1.5f, .gamma = 1.25f, .divisor = 1};

static const Function functions[] = {
    {"exp", OP_Exp, &none, exp, NULL, NULL, 1, false, 0, 0},
    {"log", OP_Log, &none, log, NULL, NULL, 1, false, 0, 0},
    {"tanh", OP_Tanh, &none, tanh, NULL, NULL, 1.5, false, 0, 0},
    {"erf", OP_Erf, &none, erf, NULL, NULL, 1.5, false, 0, 0},
    {"sigmoid", OP_Sigmoid, &none, sigmoid, NULL, NULL, 2.2, false, 0, 0},
    {"sin", OP_Sin, &none, sin, NULL, NULL, 2, false, 0, 0},
    {"cos", OP_Cos, &none, cos, NULL, NULL, 2, false, 0, 0},
    {"gelu", OP_Gelu, &erf_form, gelu, NULL, NULL, 2.6, false, 0, 0},
    {"gelu tanh", OP_Gelu, &tanh_form, gelu_tanh, NULL, scale_eighth, 2.6, false, 0, 0},
    {"gelu'", OP_GeluGrad, &erf_form, gelu_grad, scale_normal, scale_normal, 5, true, -13, 1e18f},
    {"gelu' tanh", OP_GeluGrad, &tanh_form, gelu_tanh_grad, scale_sigmoid, scale_sigmoid_16, 8,
     true, -9, 1e18f},
    {"elu", OP_Elu, &alpha_15, selu_like, NULL, NULL, 3, false, 0, 0},
    {"elu'", OP_EluGrad, &elu_form, elu_grad, NULL, NULL, 3, true, -100, 1e18f},
    {"softplus", OP_Softplus, &none, softplus, NULL, NULL, 3, false, 0, 0},
    {"softplus'", OP_SoftplusGrad, &none, sigmoid, NULL, NULL, 2.2, true, -1e18f, 1e18f},
    {"swish", OP_Swish, &alpha_1, swish, scale_swish, scale_swish, 3, false, 0, 0},
    {"swish'", OP_SwishGrad, &alpha_1, swish_grad, scale_swish_grad, scale_swish_grad, 6, true,
     -1e18f, 1e18f},
    {"mish", OP_Mish, &none, mish, scale_mish, scale_mish, 5, false, 0, 0},
    {"mish'", OP_MishGrad, &none, mish_grad, scale_mish_grad, scale_mish_grad, 8, true, -1e18f,
     1e18f},
};

static double unit(double v)
{
    int e;
    frexp(v, &e);
    return ldexp(1, e - 24 > -149 ? e - 24 : -149);
}

/* Formulas with a subnormal in the middle lose bits there: such results count in units of 2^-146.
 */
static double error_of(const Function *f, const KernelRow *row, float x, float found)
{
    double exact = f->exact((double)x);
    if (isnan(exact)) return isnan(found) ? 0 : INFINITY;
    if (isinf((float)exact))
        return fabsf(found) >= FLT_MAX && (found > 0) == (exact > 0) ? 0 : INFINITY;
    if (isinf(found)) return fabs(exact) > FLT_MAX * (1 - 0x1p-22) ? 0 : INFINITY;
    double (*scale)(double) =
        row->isa == MPRI_ISA_GENERIC && f->scale_generic ? f->scale_generic : f->scale;
    double size = fmax(scale ? scale((double)x) : fabs(exact), 0x1p-123);
    return fabs((double)found - exact) / unit(size);
}

typedef struct Batch {
    Arena *arena;
    const Function *f;
    const KernelRow *row;
    Tensor in[2], out;
    int n;
} Batch;

static void flush(Batch *b)
{
    float *x = b->in[b->f->grad].data, *y = b->out.data;
    for (int i = b->n; i < LANES; i++) x[i] = 0;
    KernelCall call = {.params = b->f->params,
                       .n_in = 1 + b->f->grad,
                       .n_out = 1,
                       .in = b->in,
                       .out = &b->out};
    assert_int_equal(b->row->fn(&call), MPR_OK);
    for (int i = 0; i < b->n; i++) {
        double error = error_of(b->f, b->row, x[i], y[i]);
        if (!(error <= b->f->ulp))
            fail_msg("%s by %s at %.9g: %.9g, exactly %.17g: %.2f ulp", b->f->name, b->row->name,
                     (double)x[i], (double)y[i], b->f->exact((double)x[i]), error);
    }
    b->n = 0;
}

static void try_bits(Batch *b, uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    if (b->f->low < b->f->high && !(x >= b->f->low && x <= b->f->high)) return;
    ((float *)b->in[b->f->grad].data)[b->n++] = x;
    if (b->n == LANES) flush(b);
}

static void try_near(Batch *b, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (uint32_t d = 0; d < 600; d++) {
        try_bits(b, bits + d - 300);
        try_bits(b, (bits + d - 300) ^ 0x80000000u);
    }
}

static void sweep(Arena *arena, const Function *f, const KernelRow *row)
{
    static const float corners[] = {1.0f,        0.5f,        2.0f,
                                    0.625f,      0.7f,        0.95f,
                                    0.70710677f, 1.4142135f,  1.17549435e-38f,
                                    1.57079637f, 3.14159274f, 88.72284f,
                                    87.33655f,   103.97208f,  14.4f,
                                    10.0f,       8192.0f,     5.5f,
                                    0.75f};
    int64_t dims[1] = {LANES};
    Batch b = {.arena = arena, .f = f, .row = row};
    for (int k = 0; k < 2; k++) b.in[k] = test_tensor_new(arena, MPR_FLOAT32, 1, dims);
    b.out = test_tensor_new(arena, MPR_FLOAT32, 1, dims);
    for (int i = 0; i < LANES; i++) ((float *)b.in[0].data)[i] = 1.0f;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += STRIDE) try_bits(&b, (uint32_t)bits);
    for (size_t i = 0; i < sizeof corners / sizeof corners[0]; i++) try_near(&b, corners[i]);
    for (uint32_t i = 0; i < 1000; i++) { /* zeros, subnormals, infinities, NaNs */
        try_bits(&b, i);
        try_bits(&b, i ^ 0x80000000u);
        if (f->low == f->high && !f->grad) {
            try_bits(&b, 0x7f800000u + i);
            try_bits(&b, 0xff800000u + i);
        }
    }
    flush(&b);
}

static void against_double(void **state)
{
    (void)state;
    Arena arena;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        const KernelRow *rows[16];
        int n = test_kernel_rows(functions[i].op, rows, 16);
        assert_true(n > 1);
        for (int r = 0; r < n - 1; r++) {
            sweep(&arena, &functions[i], rows[r]);
            mpri_arena_reset(&arena);
        }
    }
    mpri_arena_destroy(&arena);
}

/* NaN comes out of everything, and of the gradients by either input. */
static void nan_stays(void **state)
{
    (void)state;
    static const int ops[] = {OP_Exp, OP_Log,  OP_Tanh, OP_Erf, OP_Sigmoid, OP_Sin,
                              OP_Cos, OP_Relu, OP_Sqrt, OP_Neg, OP_Abs,     OP_Reciprocal,
                              OP_Softplus, OP_Mish, OP_HardSwish};
    static const int pairs[] = {OP_TanhGrad, OP_SigmoidGrad, OP_Max, OP_Min,
                                OP_Add,      OP_Mul,         OP_Div, OP_Pow,
                                OP_SoftplusGrad, OP_MishGrad, OP_HardSwishGrad};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        test_kernel_cases(
            &(KernelCase){ops[i], &none, {"f32[2]=nan nan"}, {"f32[2]=nan nan"}, 0, MPR_OK}, 1);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        test_kernel_cases(&(KernelCase){pairs[i],
                                        &none,
                                        {"f32[2]=nan 0.5", "f32[2]=0.5 nan"},
                                        {"f32[2]=nan nan"},
                                        0,
                                        MPR_OK},
                          1);
    for (int form = 0; form < 2; form++) {
        const GeluParams *p = form ? &tanh_form : &erf_form;
        test_kernel_cases(&(KernelCase){OP_Gelu, p, {"f32[1]=nan"}, {"f32[1]=nan"}, 0, MPR_OK}, 1);
        test_kernel_cases(&(KernelCase){OP_GeluGrad,
                                        p,
                                        {"f32[2]=nan 1", "f32[2]=1 nan"},
                                        {"f32[2]=nan nan"},
                                        0,
                                        MPR_OK},
                          1);
    }
}

/* ---- 16-bit storage ---- */

typedef struct Low {
    DType t;
    float (*load)(uint16_t);
    uint16_t (*store)(float);
} Low;
static const Low lows[] = {{MPR_FLOAT16, mpri_f16_to_f32, mpri_f32_to_f16},
                           {MPR_BFLOAT16, mpri_bf16_to_f32, mpri_f32_to_bf16}};

static void run_cast(const KernelRow *row, const Tensor *in, Tensor *out)
{
    const CastParams p = {.to = out->dtype};
    KernelCall call = {.params = &p, .n_in = 1, .n_out = 1, .in = in, .out = out};
    assert_int_equal(row->fn(&call), MPR_OK);
}

/* All halves, and back. The count is not a multiple of any vector. */
static void all_halves(void **state)
{
    (void)state;
    Arena arena;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    const KernelRow *rows[16];
    int n = test_kernel_rows(OP_Cast, rows, 16);
    int64_t dims[1] = {65536 + 7};
    for (size_t l = 0; l < 2; l++)
        for (int r = 0; r < n - 1; r++) {
            Tensor half = test_tensor_new(&arena, lows[l].t, 1, dims),
                   back = test_tensor_new(&arena, lows[l].t, 1, dims);
            Tensor wide = test_tensor_new(&arena, MPR_FLOAT32, 1, dims);
            uint16_t *h = half.data, *b = back.data;
            for (int i = 0; i < dims[0]; i++) h[i] = (uint16_t)i;
            run_cast(rows[r], &half, &wide);
            run_cast(rows[r], &wide, &back);
            for (int i = 0; i < dims[0]; i++) {
                float v = ((float *)wide.data)[i], scalar = lows[l].load(h[i]);
                if (isnan(scalar)) assert_true(isnan(v) && isnan(lows[l].load(b[i])));
                else if (memcmp(&v, &scalar, sizeof v) || h[i] != b[i])
                    fail_msg("%s: half %04x", rows[r]->name, h[i]);
            }
            mpri_arena_reset(&arena);
        }
    mpri_arena_destroy(&arena);
}

/* Floats at a stride, and all around every boundary between two halves (ties to even). */
static void to_halves(void **state)
{
    (void)state;
    Arena arena;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    const KernelRow *rows[16];
    int n = test_kernel_rows(OP_Cast, rows, 16);
    enum { N = 65536 * 3 };
    int64_t dims[1] = {N};
    for (size_t l = 0; l < 2; l++)
        for (int r = 0; r < n - 1; r++)
            for (int round = 0; round < 2; round++) {
                Tensor wide = test_tensor_new(&arena, MPR_FLOAT32, 1, dims),
                       half = test_tensor_new(&arena, lows[l].t, 1, dims);
                for (uint32_t i = 0; i < N; i++) {
                    uint32_t bits = i * 21859u + (uint32_t)round; /* steps through all exponents */
                    if (round) { /* half way between neighbours, and one bit to either side */
                        float a = lows[l].load((uint16_t)(i / 3)),
                              b = lows[l].load((uint16_t)(i / 3 + 1)), middle = a + (b - a) / 2;
                        memcpy(&bits, &middle, sizeof bits);
                        bits += i % 3 - 1;
                    }
                    memcpy((float *)wide.data + i, &bits, sizeof bits);
                }
                run_cast(rows[r], &wide, &half);
                for (int i = 0; i < N; i++) {
                    float v = ((float *)wide.data)[i];
                    uint16_t found = ((uint16_t *)half.data)[i], want = lows[l].store(v);
                    if (isnan(v)) assert_true(isnan(lows[l].load(found)));
                    else if (found != want)
                        fail_msg("%s: %a gives %04x, not %04x", rows[r]->name, (double)v, found,
                                 want);
                }
                mpri_arena_reset(&arena);
            }
    mpri_arena_destroy(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_double),
        cmocka_unit_test(nan_stays),
        cmocka_unit_test(all_halves),
        cmocka_unit_test(to_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
