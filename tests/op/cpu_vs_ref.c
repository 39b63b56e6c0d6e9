/* Every tuned CPU row against the reference kernel: over shapes, types and instruction sets, within
 * an ulp budget; the same bits for no pool and for 1, 2 and 3 threads, and in place.
 *
 * The reference computes from the same inputs into f64, so the distance is that to the exact
 * result. A row of the table names tensors as in kernels.h, with F for the type of the mode and a
 * kind instead of values:
 *   n normal, + positive, u in (-1, 1), p in (0, 1), b bool, =v all v,
 *   <N integers 0 ... N-1, ~N integers -N ... N-1 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "runtime/base/rng.h"
#include "runtime/exec/threads.h"
#include "tests/support/kernels.h"

#define INTS(...) {sizeof((const int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__}}

typedef struct Mode {
    const char *name;
    DType in, out;
} Mode;

static const Mode modes[] = {
    {"f32", MPR_FLOAT32, MPR_FLOAT32},      {"f16", MPR_FLOAT16, MPR_FLOAT16},
    {"bf16", MPR_BFLOAT16, MPR_BFLOAT16},   {"f16 to f32", MPR_FLOAT16, MPR_FLOAT32},
    {"f32 to f16", MPR_FLOAT32, MPR_FLOAT16}, {"bf16 to f32", MPR_BFLOAT16, MPR_FLOAT32},
};

enum { BITS = -1 };  /* moves elements: equal bytes */

typedef struct Case {
    int op;
    const void *params;
    const char *in[6], *out[3];
    double ulp;      /* in f32 units of the exact value, besides the rounding to 16 bits; or BITS */
    double absolute; /* allowed besides, in units of FLT_EPSILON */
    int inplace;     /* bit k: output 0 may take input k */
} Case;

/* ---- tensors ---- */

static double draw(char kind, uint64_t stream, int64_t i)
{
    uint32_t w[4];
    mpri_philox(11, stream, (uint64_t)i, w);
    double u = w[0] * 0x1p-32,
           n = ((double)w[0] + w[1] + w[2] + w[3]) * 0x1p-32 * 1.7320508 - 3.4641016;
    switch (kind) {
    case '+': return fabs(n) + 0.1;
    case 'u': return 2 * u - 1;
    case 'p': return u;
    default: return 2 * n;
    }
}

static Tensor make(Arena *a, const char *text, DType mode, uint64_t stream)
{
    char name[16];
    int64_t dims[MPRI_TENSOR_RANK];
    int rank = 0, at = 0;
    if (sscanf(text, "%15[^[][%n", name, &at) != 1) fail_msg("tensor text: %s", text);
    const char *s = text + at;
    while (*s != ']') {
        char *end;
        dims[rank++] = strtoll(s, &end, 10);
        s = *end == ',' ? end + 1 : end;
    }
    s++;
    Tensor t = test_tensor_new(a, strcmp(name, "F") ? mpri_dtype_parse(name) : mode, rank, dims);
    for (int64_t i = 0; i < t.n; i++) {
        if (*s == '=') { /* one value for all */
            mpri_store_f64(t.dtype, t.data, i, strtod(s + 1, NULL));
        } else if (*s == '<' || *s == '~') {
            int64_t n = strtoll(s + 1, NULL, 10), low = *s == '~' ? n : 0;
            int64_t v = (int64_t)mpri_rng_below(5, stream, (uint64_t)i, (uint64_t)(n + low)) - low;
            mpri_store_i64(t.dtype, t.data, i, v);
        } else if (*s == 'b') {
            mpri_store_i64(t.dtype, t.data, i, mpri_rng_uniform(5, stream, (uint64_t)i) < 0.5f);
        } else {
            mpri_store_f64(t.dtype, t.data, i, draw(*s, stream, i));
        }
    }
    return t;
}

static double unit(DType t, double v)
{
    int mantissa = t == MPR_FLOAT32 ? 24 : t == MPR_FLOAT16 ? 11 : 8;
    int lowest = t == MPR_FLOAT32 ? -149 : t == MPR_FLOAT16 ? -24 : -133, e;
    frexp(v, &e);
    return ldexp(1, e - mantissa > lowest ? e - mantissa : lowest);
}

/* ---- comparison ---- */

typedef struct Place {
    const Case *c;
    int index;
    const Mode *mode;
    const KernelRow *row;
} Place;

static void compare(const Place *p, int k, const Tensor *found, const Tensor *exact)
{
    if (found->dtype == exact->dtype) {
        assert_memory_equal(found->data, exact->data,
                            (size_t)found->n * mpri_dtype_size(found->dtype));
        return;
    }
    for (int64_t i = 0; i < found->n; i++) {
        double f = mpri_load_f64(found->dtype, found->data, i),
               e = mpri_load_f64(exact->dtype, exact->data, i);
        if (isnan(e) ? isnan(f) : f == e) continue;
        double u = unit(found->dtype, e), error = fabs(f - e);
        double budget = p->c->ulp * unit(MPR_FLOAT32, e) + p->c->absolute * FLT_EPSILON;
        if (found->dtype != MPR_FLOAT32) budget += 0.5 * u * (1 + 1e-6);
        if (error > budget || isnan(error))
            fail_msg("case %d (%s), %s, output %d, element %lld of %lld: %.9g, exactly %.17g: %.2f "
                     "units",
                     p->index, p->mode->name, p->row->name, k, (long long)i, (long long)found->n, f,
                     e, error / u);
    }
    if (!test_tensor_guard(found)) fail_msg("%s writes behind output %d", p->row->name, k);
}

static void same_bits(const Place *p, int n, const Tensor *a, const Tensor *b, const char *what)
{
    for (int k = 0; k < n; k++)
        if (mpri_tensor_here(&a[k]) &&
            memcmp(a[k].data, b[k].data, (size_t)a[k].n * mpri_dtype_size(a[k].dtype)))
            fail_msg("case %d (%s), %s: other bits %s", p->index, p->mode->name, p->row->name,
                     what);
}

static int copies(Arena *a, int n, const Tensor *like, Tensor *out)
{
    for (int k = 0; k < n; k++)
        out[k] = mpri_tensor_here(&like[k])
                     ? test_tensor_new(a, like[k].dtype, like[k].rank, like[k].dims)
                     : like[k];
    return n;
}

static void in_place(Arena *a, const Place *p, int n_in, const Tensor *in, int n_out,
                     const Tensor *first)
{
    for (int k = 0; k < n_in; k++) {
        Tensor args[6], out[3];
        if (!(p->c->inplace >> k & 1) || in[k].n != first[0].n ||
            mpri_dtype_size(in[k].dtype) != mpri_dtype_size(first[0].dtype))
            continue;
        memcpy(args, in, sizeof args);
        copies(a, n_out, first, out);
        memcpy(out[0].data, in[k].data, (size_t)in[k].n * mpri_dtype_size(in[k].dtype));
        args[k].data = out[0].data;
        assert_int_equal(
            test_kernel_run(a, p->row, p->c->params, n_in, args, n_out, out, NULL, NULL), MPR_OK);
        same_bits(p, n_out, first, out, "in place");
    }
}

static Threads *pools[3];

static void run_row(Arena *a, const Place *p, int n_in, const Tensor *in, int n_out,
                    const Tensor *shape, const Tensor *exact)
{
    Tensor first[3];
    copies(a, n_out, shape, first);
    assert_int_equal(test_kernel_run(a, p->row, p->c->params, n_in, in, n_out, first, NULL, NULL),
                     MPR_OK);
    for (int k = 0; k < n_out; k++)
        if (mpri_tensor_here(&first[k])) compare(p, k, &first[k], &exact[k]);
    for (int t = 0; t < 3 && p->mode == modes; t++) { /* tiles do not depend on types */
        Tensor out[3];
        copies(a, n_out, shape, out);
        assert_int_equal(
            test_kernel_run(a, p->row, p->c->params, n_in, in, n_out, out, pools[t], NULL), MPR_OK);
        same_bits(p, n_out, first, out,
                  t == 0   ? "with 1 thread"
                  : t == 1 ? "with 2 threads"
                           : "with 3 threads");
    }
    in_place(a, p, n_in, in, n_out, first);
}

/* How many rows took the case. */
static int run_case(Arena *a, const Case *c, int index, const Mode *mode)
{
    Tensor in[6] = {{0}}, shape[3] = {{0}}, exact[3] = {{0}};
    int n_in = 0, n_out = 0, taken = 0;
    for (int k = 0; k < 6; k++)
        if (c->in[k]) {
            in[k] = make(a, c->in[k], mode->in, (uint64_t)(index * 8 + k));
            n_in = k + 1;
        }
    for (int k = 0; k < 3; k++)
        if (c->out[k]) {
            shape[k] = make(a, c->out[k], mode->out, 0);
            bool real = c->ulp >= 0 && mpri_dtype_is_float(shape[k].dtype);
            exact[k] = test_tensor_new(a, real ? MPR_FLOAT64 : shape[k].dtype, shape[k].rank,
                                       shape[k].dims);
            n_out = k + 1;
        }
    const KernelRow *rows[16];
    int count = test_kernel_rows(c->op, rows, 16);
    assert_int_equal(
        test_kernel_run(a, rows[count - 1], c->params, n_in, in, n_out, exact, NULL, NULL), MPR_OK);
    for (int r = 0; r < count - 1; r++) {
        KernelSig sig = {c->op, c->params, n_in, n_out, in, shape, ~(uint64_t)0, 0};
        Place p = {c, index, mode, rows[r]};
        if (rows[r]->refuse && rows[r]->refuse(&sig)) continue;
        run_row(a, &p, n_in, in, n_out, shape, exact);
        taken++;
    }
    return taken;
}

static void run_cases(const Case *cases, int n)
{
    Arena a;
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    for (int i = 0; i < n; i++) {
        bool typed = false;
        for (int k = 0; k < 6; k++) typed |= cases[i].in[k] && cases[i].in[k][0] == 'F';
        for (int m = 0; m < (typed ? (int)(sizeof modes / sizeof modes[0]) : 1); m++) {
            if (!run_case(&a, &cases[i], i, &modes[m]))
                fail_msg("case %d (%s): every row refused", i, modes[m].name);
            mpri_arena_reset(&a);
        }
    }
    mpri_arena_destroy(&a);
}
#define RUN(cases) run_cases((cases), (int)(sizeof(cases) / sizeof((cases)[0])))

/* ---- the tables ---- */

static const ElementwiseParams plain = {0};
static const AlphaParams alpha_form = {.alpha = 0.7f};
static const HardSigmoidParams hard_form = {.alpha = 0.3f, .beta = 0.45f};
static const GeluParams erf_form = {.approximate = "none"}, tanh_form = {.approximate = "tanh"};

static void unary(void **state)
{
    (void)state;
#define UNARY(Op, kind, ulp_)                                             \
    {OP_##Op, &plain, {"F[5]" kind}, {"F[5]"}, ulp_, 0, 1},               \
    {OP_##Op, &plain, {"F[3,6411]" kind}, {"F[3,6411]"}, ulp_, 0, 1},     \
    {OP_##Op, &plain, {"F[0]" kind}, {"F[0]"}, ulp_, 0, 1}
    const Case cases[] = {
        UNARY(Neg, "n", 0), UNARY(Abs, "n", 0), UNARY(Relu, "n", 0), UNARY(Reciprocal, "n", 0.51),
        UNARY(Sqrt, "+", 0.51), UNARY(Exp, "n", 2), UNARY(Log, "+", 2), UNARY(Sin, "n", 2),
            UNARY(Cos, "n", 2),
        UNARY(Erf, "n", 2), UNARY(Tanh, "n", 2), UNARY(Sigmoid, "n", 2.5),
        {OP_LeakyRelu, &alpha_form, {"F[40001]n"}, {"F[40001]"}, 0.51, 0, 1},
        {OP_Elu, &alpha_form, {"F[40001]n"}, {"F[40001]"}, 3, 0, 1},
        {OP_Celu, &alpha_form, {"F[40001]n"}, {"F[40001]"}, 6, 0, 1},
        {OP_Selu, &(SeluParams){0, 1.6732632f, 1.050701f}, {"F[40001]n"}, {"F[40001]"}, 3.5, 0, 1},
        {OP_HardSigmoid, &hard_form, {"F[40001]n"}, {"F[40001]"}, 2, 1, 1},
        {OP_HardSwish, &plain, {"F[40001]n"}, {"F[40001]"}, 2, 4, 1},
        UNARY(Softplus, "n", 3), UNARY(Mish, "n", 5),
        {OP_Swish, &alpha_form, {"F[40001]n"}, {"F[40001]"}, 7, 0, 1}, /* rounding of alpha x */
        {OP_Swish, &alpha_form, {"F[]n"}, {"F[]"}, 7, 0, 1},
        {OP_Gelu, &erf_form, {"F[40001]n"}, {"F[40001]"}, 6, 0, 1},
        {OP_Gelu, &tanh_form, {"F[40001]n"}, {"F[40001]"}, 6, 0.1, 1},
        {OP_Clip, &plain, {"F[40001]n", "F[]=-1", "F[]=0.5"}, {"F[40001]"}, 0, 0, 1},
        {OP_Clip, &plain, {"F[33]n", NULL, "F[]=0.5"}, {"F[33]"}, 0, 0, 1},
        {OP_Cast, &(CastParams){.to = MPR_FLOAT16}, {"F[40001]n"}, {"F[40001]"}, 0.51, 0, 1},
        {OP_Cast, &(CastParams){.to = MPR_FLOAT32}, {"bool[40001]b"}, {"f32[40001]"}, 0, 0, 0},
        {OP_Cast, &(CastParams){.to = MPR_FLOAT16}, {"F[]n"}, {"F[]"}, 0.51, 0, 1},
    };
    RUN(cases);
}

static void binary(void **state)
{
    (void)state;
#define BINARY(Op, kind, ulp_)                                                              \
    {OP_##Op, &plain, {"F[7,4801]" kind, "F[7,4801]" kind}, {"F[7,4801]"}, ulp_, 0, 3},     \
    {OP_##Op, &plain, {"F[70,481]" kind, "F[481]" kind}, {"F[70,481]"}, ulp_, 0, 3},        \
    {OP_##Op, &plain, {"F[70,1]" kind, "F[70,481]" kind}, {"F[70,481]"}, ulp_, 0, 3},       \
    {OP_##Op, &plain, {"F[]" kind, "F[70,3]" kind}, {"F[70,3]"}, ulp_, 0, 3},               \
    {OP_##Op, &plain, {"F[3,1,5,1]" kind, "F[4,1,33]" kind}, {"F[3,4,5,33]"}, ulp_, 0, 3},  \
    {OP_##Op, &plain, {"F[3,1]" kind, "F[1,5]" kind}, {"F[3,5]"}, ulp_, 0, 3}
#define BINARY_INTO_FIRST(Op, kind, ulp_)                                                   \
    {OP_##Op, &plain, {"F[7,4801]" kind, "F[7,4801]" kind}, {"F[7,4801]"}, ulp_, 0, 1},     \
    {OP_##Op, &plain, {"F[70,481]" kind, "F[70,1]" kind}, {"F[70,481]"}, ulp_, 0, 1},       \
    {OP_##Op, &plain, {"F[70,33]" kind, "F[33]" kind}, {"F[70,33]"}, ulp_, 0, 1},           \
    {OP_##Op, &plain, {"F[70,33]" kind, "F[1]" kind}, {"F[70,33]"}, ulp_, 0, 1}
    const Case cases[] = {
        BINARY(Add, "n", 0.51), BINARY(Sub, "n", 0.51), BINARY(Mul, "n", 0.51),
            BINARY(Div, "+", 0.51),
        BINARY(Max, "n", 0), BINARY(Min, "n", 0), BINARY(Pow, "+", 2),
        {OP_Pow, &plain, {"F[20001]n", "F[]=2"}, {"F[20001]"}, 1, 0, 1},
        {OP_Pow, &plain, {"F[20001]n", "F[1]=3"}, {"F[20001]"}, 2, 0, 1},
        {OP_Sum, &plain, {"F[5,3001]n", "F[3001]n", "F[5,1]n", "F[]n"}, {"F[5,3001]"}, 1, 16, 1},
        {OP_Sum, &plain, {"F[5]n"}, {"F[5]"}, 0, 0, 1},
        {OP_ReluGrad, &plain, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 0, 0, 3},
        {OP_TanhGrad, &plain, {"F[40001]n", "F[40001]u"}, {"F[40001]"}, 2, 0, 3},
        {OP_SigmoidGrad, &plain, {"F[40001]n", "F[40001]p"}, {"F[40001]"}, 2, 0, 3},
        {OP_GeluGrad, &erf_form, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 4, 4, 3},
        {OP_GeluGrad, &tanh_form, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 4, 4, 3},
        BINARY_INTO_FIRST(PRelu, "n", 0.51),
        {OP_SwiGLU, &alpha_form, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 7, 0, 3},
        {OP_LeakyReluGrad, &alpha_form, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 0.51, 0, 3},
        {OP_EluGrad, &(EluGradParams){0, 1.5f, 1.25f, 0.75f}, {"F[40001]n", "F[40001]n"},
         {"F[40001]"}, 10, 0, 3}, /* rounding of x / divisor */
        {OP_HardSigmoidGrad, &hard_form, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 0.51, 0, 3},
        {OP_HardSwishGrad, &plain, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 2, 4, 3},
        {OP_SoftplusGrad, &plain, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 4, 0, 3},
        {OP_MishGrad, &plain, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 6, 8, 3},
        {OP_SwishGrad, &alpha_form, {"F[40001]n", "F[40001]n"}, {"F[40001]"}, 6, 8, 3},
        {OP_Equal, &plain, {"F[33,1001]n", "F[1001]n"}, {"bool[33,1001]"}, 0, 0, 0},
        {OP_Less, &plain, {"F[33,1001]n", "F[]=0"}, {"bool[33,1001]"}, 0, 0, 0},
        {OP_Greater, &plain, {"F[33,1]n", "F[33,5]n"}, {"bool[33,5]"}, 0, 0, 0},
        {OP_LessOrEqual, &plain, {"F[40001]n", "F[40001]n"}, {"bool[40001]"}, 0, 0, 0},
        {OP_GreaterOrEqual, &plain, {"F[]=nan", "F[7]n"}, {"bool[7]"}, 0, 0, 0},
        {OP_Where, &plain, {"bool[5,3001]b", "F[5,3001]n", "F[]=-1"}, {"F[5,3001]"}, 0.51, 0, 6},
        {OP_Where, &plain, {"bool[4,1,1,33]b", "F[4,3,9,33]n", "F[33]n"}, {"F[4,3,9,33]"}, 0.51, 0,
         6},
        {OP_Where, &plain, {"bool[5,1]b", "F[5,1]n", "F[1,7]n"}, {"F[5,7]"}, 0.51, 0, 6},
    };
    RUN(cases);
}

static void reductions(void **state)
{
    (void)state;
    const ReduceParams keep = {.keepdims = 1}, drop = {0};
    const Case cases[] = {
        {OP_ReduceSum, &keep, {"F[37,513]n", "i64[1]=1"}, {"F[37,1]"}, 1, 512, 0},
        {OP_ReduceSum, &drop, {"F[513,37]n", "i64[1]=0"}, {"F[37]"}, 1, 512, 0},
        {OP_ReduceSum, &drop, {"F[5,600,7]n", "i64[1]=1"}, {"F[5,7]"}, 1, 512, 0},
        {OP_ReduceSum, &drop, {"F[300,200]n"}, {"F[]"}, 1, 4096, 0},
        {OP_ReduceSum, &drop, {"F[3,70001]n", "i64[1]=-1"}, {"F[3]"}, 1, 4096, 0},
        {OP_ReduceSum, &drop, {"F[2,0]n", "i64[1]=1"}, {"F[2]"}, 0, 0, 0},
        {OP_ReduceMean, &keep, {"F[9,5,64]n", "i64[1]=-1"}, {"F[9,5,1]"}, 1, 4, 0},
        {OP_ReduceMean, &drop, {"F[100000]=1"}, {"F[]"}, 0, 0, 0},
        {OP_ReduceMean, &drop, {"F[0]n"}, {"F[]"}, 0, 0, 0},
        {OP_ReduceMax, &keep, {"F[37,513]n", "i64[1]=1"}, {"F[37,1]"}, 0, 0, 0},
        {OP_ReduceMax, &drop, {"F[5,60,1031]n", "i64[1]=1"}, {"F[5,1031]"}, 0, 0, 0},
        {OP_ReduceMin, &drop, {"F[300,201]n"}, {"F[]"}, 0, 0, 0},
        {OP_ReduceMin, &drop, {"F[2,0]n", "i64[1]=1"}, {"F[2]"}, 0, 0, 0},
        {OP_CumSum, &(CumulativeParams){0}, {"F[37,513]n", "i64[]=1"}, {"F[37,513]"}, 1, 512, 0},
        {OP_CumSum, &(CumulativeParams){1, 1}, {"F[3,50,70]n", "i64[]=-2"}, {"F[3,50,70]"}, 1, 64,
         0},
        {OP_SumTo, &(SumToParams){.dims = INTS(768)}, {"F[130,768]n"}, {"F[768]"}, 1, 512, 0},
        {OP_SumTo, &(SumToParams){.dims = INTS(5000)}, {"F[9,5000]n"}, {"F[5000]"}, 1, 64, 0},
        {OP_SumTo, &(SumToParams){.dims = INTS(1, 24, 1, 1)}, {"F[6,24,13,11]n"}, {"F[1,24,1,1]"},
         1, 1024, 0},
        {OP_SumTo, &(SumToParams){.dims = INTS(4, 1, 33)}, {"F[4,300,33]n"}, {"F[4,1,33]"}, 1, 512,
         0},
        {OP_SumTo, &(SumToParams){.dims = INTS(3)}, {"F[3]n"}, {"F[3]"}, 0, 0, 0},
        {OP_SumTo, &(SumToParams){.dims = {0, NULL}}, {"F[]n"}, {"F[]"}, 0, 0, 0},
    };
    RUN(cases);
}

static void softmaxes(void **state)
{
    (void)state;
    const SoftmaxParams last = {.axis = -1};
    const Case cases[] = {
        {OP_Softmax, &last, {"F[70,481]n"}, {"F[70,481]"}, 16, 0, 1},
        {OP_Softmax, &last, {"F[3,50257]n"}, {"F[3,50257]"}, 24, 0, 1},
        {OP_Softmax, &last, {"F[2,3,5]n"}, {"F[2,3,5]"}, 16, 0, 1},
        {OP_Softmax, &last, {"F[9,1]n"}, {"F[9,1]"}, 0, 0, 1},
        {OP_Softmax, &last, {"F[2,33]=-inf"}, {"F[2,33]"}, 0, 0, 1},
        {OP_LogSoftmax, &last, {"F[70,481]n"}, {"F[70,481]"}, 6, 8, 1},
        {OP_SoftmaxGrad, &last, {"F[70,481]n", "F[70,481]p"}, {"F[70,481]"}, 4, 256, 3},
        {OP_SoftmaxGrad, &last, {"F[3,5]n", "F[3,5]p"}, {"F[3,5]"}, 4, 16, 3},
        {OP_LogSoftmaxGrad, &last, {"F[70,481]n", "F[70,481]u"}, {"F[70,481]"}, 4, 256, 3},
    };
    RUN(cases);
}

static void norms(void **state)
{
    (void)state;
    const LayerNormParams p = {.axis = -1, .epsilon = 1e-5f}, two = {.axis = 1, .epsilon = 1e-12f};
    /* A bias may cancel a product of up to 24, whose last bit is 16 of the absolute units. */
    const Case cases[] = {
        {OP_LayerNormalization, &p, {"F[70,768]n", "f32[768]n", "f32[768]n"},
         {"F[70,768]", "f32[70,1]", "f32[70,1]"}, 3, 32, 1},
        {OP_LayerNormalization, &p, {"F[70,768]n", "f32[768]=1"}, {"F[70,768]", "f32[70,1]"},
         2.5, 4, 1},
        {OP_LayerNormalization, &p, {"F[70,37]n", "F[37]n"}, {"F[70,37]"}, 3, 2, 1},
        {OP_LayerNormalization, &two, {"F[5,3,7]n", "F[3,7]n", "F[3,7]n"},
         {"F[5,3,7]", NULL, "f32[5,1,1]"}, 3, 16, 1},
        {OP_LayerNormalization, &p, {"F[3,1024]=1000", "f32[1024]n", "f32[1024]n"}, {"F[3,1024]"},
         3, 16, 1},
        {OP_LayerNormGrad, &p, {"F[131,768]n", "F[131,768]n", "f32[768]n", "f32[131,1]u",
         "f32[131,1]+"},
         {"F[131,768]", "f32[768]", "f32[768]"}, 4, 256, 3},
        {OP_LayerNormGrad, &p, {"F[4000,37]n", "F[4000,37]n", "f32[37]n", "f32[4000,1]u",
         "f32[4000,1]+"},
         {"F[4000,37]", "f32[37]", "f32[37]"}, 4, 4096, 3},
        {OP_LayerNormGrad, &p, {"F[9,5]n", "F[9,5]n", "F[5]n", "f32[9,1]u", "f32[9,1]+"},
         {"F[9,5]"}, 4, 64, 3},
        {OP_LayerNormGrad, &p, {"F[9,5]n", "F[9,5]n", "F[5]n", "f32[9,1]u", "f32[9,1]+"},
         {NULL, "f32[5]", "f32[5]"}, 4, 64, 0},
        {OP_RMSNormalization, &p, {"F[70,768]n", "f32[768]n"}, {"F[70,768]"}, 3, 16, 1},
        {OP_RMSNormalization, &two, {"F[5,3,7]n", "F[3,7]n"}, {"F[5,3,7]"}, 3, 16, 1},
        {OP_RmsNormGrad, &p, {"F[131,768]n", "F[131,768]n", "f32[768]n"},
         {"F[131,768]", "f32[768]"}, 4, 256, 3},
        {OP_RmsNormGrad, &p, {"F[4000,37]n", "F[4000,37]n", "F[37]n"}, {"F[4000,37]", "f32[37]"}, 4,
         4096, 3},
        {OP_RmsNormGrad, &p, {"F[9,5]n", "F[9,5]n", "F[5]n"}, {NULL, "f32[5]"}, 4, 64, 0},
    };
    RUN(cases);
}

static void batch_norms(void **state)
{
    (void)state;
    const BatchNormParams batch = {.epsilon = 1e-5f, .momentum = 0.9f, .training_mode = 1},
                          fixed = {.epsilon = 1e-3f, .momentum = 0.9f};
    const Case cases[] = {
        {OP_BatchNormalization, &fixed, {"F[9,70]n", "f32[70]n", "f32[70]n", "f32[70]u",
         "f32[70]+"}, {"F[9,70]"}, 3, 16, 1},
        {OP_BatchNormalization, &fixed, {"F[3,5,7,9]n", "F[5]n", "F[5]n", "f32[5]u", "f32[5]+"},
         {"F[3,5,7,9]"}, 3, 16, 1},
        {OP_BatchNormalization, &batch, {"F[600,70]n", "f32[70]n", "f32[70]n", "f32[70]u",
         "f32[70]+"}, {"F[600,70]"}, 3, 64, 1},
        {OP_BatchNormalization, &batch, {"F[3,70,33,5]n", "f32[70]n", "f32[70]n", "f32[70]u",
         "f32[70]+"}, {"F[3,70,33,5]"}, 3, 64, 1},
        {OP_BatchNormGrad, &batch, {"F[600,70]n", "F[600,70]n", "f32[70]n", "f32[70]u",
         "f32[70]+"}, {"F[600,70]", "f32[70]", "f32[70]"}, 4, 4096, 3},
        {OP_BatchNormGrad, &batch, {"F[3,7,33,5]n", "F[3,7,33,5]n", "f32[7]n", "f32[7]u",
         "f32[7]+"}, {"F[3,7,33,5]", "f32[7]", "f32[7]"}, 4, 4096, 3},
        {OP_BatchNormGrad, &fixed, {"F[3,7,33,5]n", "F[3,7,33,5]n", "f32[7]n", "f32[7]u",
         "f32[7]+"}, {"F[3,7,33,5]", NULL, "f32[7]"}, 4, 4096, 3},
    };
    RUN(cases);
}

static void rotary(void **state)
{
    (void)state;
    const RotaryParams whole = {0}, part = {.num_heads = 3, .dim = 10},
                       pairs = {.interleaved = 1};
    const Case cases[] = {
        {OP_RotaryEmbedding, &whole, {"F[2,3,70,64]n", "f32[1,70,32]u", "f32[1,70,32]u"},
         {"F[2,3,70,64]"}, 4, 16, 0},
        {OP_RotaryEmbedding, &part, {"F[2,70,42]n", "F[9,5]u", "F[9,5]u", "i64[1,70]<9"},
         {"F[2,70,42]"}, 4, 16, 0},
        {OP_RotaryEmbedding, &pairs, {"F[2,3,7,6]n", "f32[2,7,3]u", "f32[2,7,3]u"},
         {"F[2,3,7,6]"}, 4, 16, 0},
    };
    RUN(cases);
}

static void losses(void **state)
{
    (void)state;
    const CrossEntropyParams mean = {.axis = -1, .ignore_index = 3, .reduction = "mean"};
    const CrossEntropyParams none = {.axis = 1, .ignore_index = MPRI_NO_IGNORE,
        .reduction = "none"};
    const CrossEntropyParams smooth = {.axis = -1, .ignore_index = 3, .label_smoothing = 0.1f,
        .reduction = "sum"};
    const Case cases[] = {
        {OP_CrossEntropy, &mean, {"F[300,1001]n", "i64[300]<1001"}, {"f32[]", "f32[300]", "f32[]"},
         4, 8, 0},
        {OP_CrossEntropy, &mean, {"F[4,9,10]n", "i32[4,9]<10", "f32[10]+"},
         {"f32[]", "f32[4,9]", "f32[]"}, 4, 8, 0},
        {OP_CrossEntropy, &none, {"F[70,37]n", "i64[70]<37"}, {"f32[70]"}, 4, 8, 0},
        {OP_CrossEntropy, &smooth, {"F[70,37]n", "i64[70]<37"}, {"f32[]"}, 4, 64, 0},
        {OP_CrossEntropyGrad, &mean, {"f32[]=1024", "F[300,1001]n", "i64[300]<1001", "f32[300]=8",
         "f32[]=290"}, {"F[300,1001]"}, 16, 64, 2},
        {OP_CrossEntropyGrad, &mean, {"f32[]=2", "F[300,10]n", "i64[300]<10", "f32[300]=4",
         "f32[]=290", "f32[10]+"}, {"F[300,10]"}, 16, 8, 2},
        {OP_CrossEntropyGrad, &none, {"f32[70]n", "F[70,37]n", "i32[70]<37", "f32[70]=5", NULL},
         {"F[70,37]"}, 16, 32, 2},
        {OP_CrossEntropyGrad, &smooth, {"f32[]=3", "F[70,37]n", "i64[70]<37", "f32[70]=5",
         "f32[]=70"}, {"F[70,37]"}, 16, 32, 2},
        {OP_MseLoss, &(MseLossParams){.reduction = "mean"}, {"F[70,481]n", "f32[70,481]n"},
         {"f32[]", "f32[]"}, 4, 64, 0},
        {OP_MseLoss, &(MseLossParams){.reduction = "sum"}, {"F[33]n", "F[33]n"}, {"f32[]"}, 4, 64,
         0},
        {OP_MseLossGrad, &(MseLossParams){.reduction = "mean"},
         {"f32[]=512", "F[70,481]n", "F[70,481]n", "f32[]=33670"},
         {"F[70,481]"}, 3, 1, 6},
    };
    RUN(cases);
}

static void moves(void **state)
{
    (void)state;
#define TRANSPOSE(type, in, out, ...)                                                       \
    {OP_Transpose, &(TransposeParams){INTS(__VA_ARGS__)}, {type in "<100"}, {type out}, BITS, 0, 0}
#define TRANSPOSES(type)                                                                    \
    TRANSPOSE(type, "[300,217]", "[217,300]", 1, 0),                                        \
    TRANSPOSE(type, "[64,96]", "[96,64]", 1, 0),                                            \
    TRANSPOSE(type, "[2,33,4,16]", "[2,4,33,16]", 0, 2, 1, 3),                              \
    TRANSPOSE(type, "[3,5,70,80]", "[3,5,80,70]", 0, 1, 3, 2),                              \
    TRANSPOSE(type, "[3,40,5,60]", "[60,3,5,40]", 3, 0, 2, 1),                              \
    TRANSPOSE(type, "[9,1,5]", "[5,9,1]", 2, 0, 1),                                         \
    TRANSPOSE(type, "[7,20000]", "[20000,7]", 1, 0),                                        \
    TRANSPOSE(type, "[20000,7]", "[7,20000]", 1, 0),                                        \
    TRANSPOSE(type, "[40,2,50]", "[50,40,2]", 2, 0, 1)
    const Case cases[] = {
        TRANSPOSES("u8"), TRANSPOSES("f16"), TRANSPOSES("f32"), TRANSPOSES("i64"),
        {OP_Concat, &(AxisParams){1}, {"i32[300,70]<9", "i32[300,1]<9", "i32[300,0]<9",
         "i32[300,200]<9"}, {"i32[300,271]"}, BITS, 0, 0},
        {OP_Concat, &(AxisParams){0}, {"f16[30]<9", "f16[40]<9"}, {"f16[70]"}, BITS, 0, 0},
        {OP_Split, &(SplitParams){.axis = -1}, {"f16[300,271]<99", "i64[3]<9"},
         {"f16[300,70]", "f16[300,1]", "f16[300,200]"}, BITS, 0, 0},
        {OP_Split, &(SplitParams){.axis = 0}, {"i64[9,2]<99"}, {"i64[4,2]", "i64[5,2]"}, BITS, 0,
         0},
        {OP_Slice, NULL, {"f32[200,300]<999", "i64[2]=3", "i64[2]=150"}, {"f32[147,147]"}, BITS, 0,
         0},
        {OP_Slice, NULL, {"f16[200,300]<999", "i64[2]=-1", "i64[2]=-999", "i64[2]<2", "i64[2]=-2"},
         {"f16[100,150]"}, BITS, 0, 0},
        {OP_SliceGrad, &(SliceGradParams){INTS(200, 300), INTS(5, 199), INTS(1, 0), INTS(3, -1)},
         {"f32[200,98]n"}, {"f32[200,300]"}, BITS, 0, 0},
        {OP_SliceGrad, &(SliceGradParams){INTS(5, 9), INTS(0), INTS(1), INTS(1)}, {"f16[5,0]n"},
         {"f16[5,9]"}, BITS, 0, 0},
        {OP_Expand, NULL, {"f32[1,300]n", "i64[2]<9"}, {"f32[200,300]"}, BITS, 0, 0},
        {OP_Expand, NULL, {"bool[5,1,7,1]b", "i64[2]<9"}, {"bool[5,6,7,900]"}, BITS, 0, 0},
        {OP_Expand, NULL, {"i64[]<9", "i64[2]<9"}, {"i64[40000]"}, BITS, 0, 0},
        {OP_Gather, &(AxisParams){0}, {"f32[500,77]n", "i64[9,40]~500"}, {"f32[9,40,77]"}, BITS, 0,
         0},
        {OP_Gather, &(AxisParams){1}, {"f16[5,60,7]n", "i32[400]~60"}, {"f16[5,400,7]"}, BITS, 0,
         0},
        {OP_Gather, &(AxisParams){0}, {"i64[50]<999", "i64[]<50"}, {"i64[]"}, BITS, 0, 0},
        {OP_GatherGrad, &(GatherGradParams){0, INTS(50, 200)}, {"F[300,200]n", "i64[300]~50"},
         {"f32[50,200]"}, 1, 32, 0},
        {OP_GatherGrad, &(GatherGradParams){0, INTS(7)}, {"F[3,4]n", "i32[3,4]~7"}, {"f32[7]"}, 1,
         16, 0},
        {OP_GatherGrad, &(GatherGradParams){1, INTS(3, 7, 90)}, {"F[3,40,90]n", "i64[40]~7"},
         {"f32[3,7,90]"}, 1, 16, 0},
        {OP_GatherElements, &(AxisParams){1}, {"f16[30,70,9]n", "i64[30,300,9]~70"},
         {"f16[30,300,9]"}, BITS, 0, 0},
        {OP_GatherElements, &(AxisParams){-1}, {"i64[30,70]<999", "i32[20,300]~70"},
         {"i64[20,300]"}, BITS, 0, 0},
        {OP_ScatterElements, &(ScatterParams){0, "add"},
         {"f32[30,500]n", "i64[90,500]~30", "f32[90,500]n"}, {"f32[30,500]"}, 2, 16, 0},
        {OP_ScatterElements, &(ScatterParams){-1, "add"},
         {"f16[30,50]n", "i32[20,90]~50", "f16[20,90]n"}, {"f16[30,50]"}, 2, 16, 0},
        {OP_ScatterElements, &(ScatterParams){1, "none"},
         {"u8[30,500]<99", "i32[20,1]~500", "u8[20,1]<99"}, {"u8[30,500]"}, BITS, 0, 0},
        {OP_ScatterND, &(ScatterNDParams){"add"},
         {"bf16[9,8,170]n", "i64[60,1]~9", "bf16[60,8,170]n"}, {"bf16[9,8,170]"}, 2, 16, 0},
        {OP_ScatterND, &(ScatterNDParams){"none"}, {"f32[9,8,170]n", "i64[60,2]~8", "f32[60,170]n"},
         {"f32[9,8,170]"}, BITS, 0, 0},
        {OP_Tile, NULL, {"f32[3,70,5]n", "i64[3]<9"}, {"f32[9,70,200]"}, BITS, 0, 0},
        {OP_Tile, NULL, {"i64[1,2,1,3]<99", "i64[4]<9"}, {"i64[500,2,7,9]"}, BITS, 0, 0},
        {OP_Pad, &(PadParams){"constant"}, {"f16[30,70]n", "i64[4]=2", "f16[]=1.5"}, {"f16[34,74]"},
         BITS, 0, 0},
        {OP_Pad, &(PadParams){"constant"}, {"f32[30,70]n", "i64[2]=-3", NULL, "i64[1]=0"},
         {"f32[24,70]"}, BITS, 0, 0},
        {OP_Pad, &(PadParams){"reflect"}, {"u8[5,300]<99", "i64[4]=9"}, {"u8[23,318]"}, BITS, 0, 0},
        {OP_Pad, &(PadParams){"edge"}, {"f32[7,5,30]n", "i64[6]=3"}, {"f32[13,11,36]"}, BITS, 0, 0},
        {OP_Pad, &(PadParams){"wrap"}, {"i64[7,5]<99", "i64[4]=13"}, {"i64[33,31]"}, BITS, 0, 0},
        {OP_Dropout, &(DropoutParams){3, 9}, {"F[33,1001]n", "f32[]=0.3", "bool[]=1"},
         {"F[33,1001]", "bool[33,1001]"}, 2, 0, 1},
        {OP_Dropout, &(DropoutParams){3, 9}, {"F[33]n", "f32[]=1", "bool[]=1"}, {"F[33]"}, 0, 0, 1},
        {OP_Dropout, &(DropoutParams){3, 9}, {"F[33]n"}, {"F[33]", "bool[33]"}, 0, 0, 1},
        {OP_DropoutGrad, &(DropoutParams){3, 9},
         {"F[33,1001]n", "bool[33,1001]b", "f32[]=0.3", "bool[]=1"}, {"F[33,1001]"}, 2, 0, 1},
    };
    RUN(cases);
}

/* Windows over planes: strides that deal a row into phases, padding, dilations, few and many taps. */
static void windows(void **state)
{
    (void)state;
    const PoolWindow stem = {.kernel_shape = INTS(3, 3), .strides = INTS(2, 2),
                             .pads = INTS(1, 1, 1, 1)};
    const PoolWindow tiled = {.kernel_shape = INTS(2, 2), .strides = INTS(2, 2)};
    const PoolWindow pairs = {.kernel_shape = INTS(3, 2), .strides = INTS(3, 2),
                              .pads = INTS(1, 0, 1, 0), .ceil_mode = 1};
    const PoolWindow wide = {.kernel_shape = INTS(2, 3), .strides = INTS(1, 3), .ceil_mode = 1,
                             .dilations = INTS(2, 2), .auto_pad = "SAME_LOWER"};
    const PoolWindow row = {.kernel_shape = INTS(5), .pads = INTS(2, 2)};
    const PoolWindow plane = {.kernel_shape = INTS(19, 23)};
    const PoolWindow apart = {.kernel_shape = INTS(2, 2), .strides = INTS(3, 3)};
    const PoolWindow close = {.kernel_shape = INTS(3, 5), .strides = INTS(1, 2),
                              .pads = INTS(1, 2, 1, 2)};
    const PoolWindow beyond = {.kernel_shape = INTS(2, 3), .strides = INTS(2, 2),
                               .dilations = INTS(1, 3), .pads = INTS(1, 1, 1, 2),
                               .ceil_mode = 1};
    const PoolWindow volume = {.kernel_shape = INTS(2, 1, 3), .strides = INTS(1, 2, 2)};
#define WINDOW(window_, x, y, sum)                                                                 \
    {OP_MaxPool, &(MaxPoolParams){.window = window_}, {x "n"}, {y}, 0, 0, 0},                      \
    {OP_MaxPool, &(MaxPoolParams){.window = window_, .storage_order = 1}, {x "~9"}, {y, "i64" sum}, 0, 0, 0},                 \
    {OP_MaxPoolGrad, &(MaxPoolParams){.window = window_}, {y "n", x "n"}, {x}, 1, 64, 0},          \
    {OP_MaxPoolGrad, &(MaxPoolParams){.window = window_}, {y "n", x "~2"}, {x}, 1, 512, 0},        \
    {OP_AveragePool, &(AveragePoolParams){.window = window_}, {x "n"}, {y}, 2, 16, 0},             \
    {OP_AveragePool, &(AveragePoolParams){.window = window_, .count_include_pad = 1}, {x "n"}, {y}, 2, 16, 0},                    \
    {OP_AveragePoolGrad, &(AveragePoolParams){.window = window_, .count_include_pad = 1}, {y "n"}, {x}, 2, 16, 0}
    const Case cases[] = {
        WINDOW(stem, "F[2,3,30,41]", "F[2,3,15,21]", "[2,3,15,21]"),
        WINDOW(tiled, "F[3,70,8,8]", "F[3,70,4,4]", "[3,70,4,4]"),
        WINDOW(tiled, "F[2,3,7,67]", "F[2,3,3,33]", "[2,3,3,33]"),
        WINDOW(pairs, "F[2,3,10,71]", "F[2,3,4,36]", "[2,3,4,36]"),
        WINDOW(wide, "F[1,2,9,50]", "F[1,2,9,17]", "[1,2,9,17]"),
        WINDOW(row, "F[2,2,1001]", "F[2,2,1001]", "[2,2,1001]"),
        WINDOW(plane, "F[2,5,19,23]", "F[2,5,1,1]", "[2,5,1,1]"),
        WINDOW(apart, "F[2,3,11,100]", "F[2,3,4,33]", "[2,3,4,33]"),
        WINDOW(close, "F[1,3,6,77]", "F[1,3,6,39]", "[1,3,6,39]"),
        WINDOW(beyond, "F[1,2,7,68]", "F[1,2,4,33]", "[1,2,4,33]"),
        WINDOW(volume, "F[2,1,3,4,15]", "F[2,1,2,2,7]", "[2,1,2,2,7]"),
        {OP_MaxPool, &(MaxPoolParams){.window = stem}, {"F[1,1,6,6]=nan"}, {"F[1,1,3,3]"}, 0, 0, 0},
        {OP_GlobalMaxPool, NULL, {"F[3,7,19,23]n"}, {"F[3,7,1,1]"}, 0, 0, 0},
        {OP_GlobalAveragePool, NULL, {"F[3,7,19,23]n"}, {"F[3,7,1,1]"}, 2, 16, 0},
        {OP_GlobalAveragePool, NULL, {"F[300,7,3]n"}, {"F[300,7,1]"}, 2, 16, 0},
    };
    RUN(cases);
}

/* 12500 gradients of 0.01 on one row: an f16 sum would stick at 32. */
static void repeated_row(void **state)
{
    (void)state;
    Arena a;
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    Tensor in[2] = {make(&a, "f16[12500,3]=0.01", MPR_FLOAT16, 0),
                    make(&a, "i64[12500]=1", MPR_FLOAT16, 0)};
    const KernelRow *rows[16];
    int count = test_kernel_rows(OP_GatherGrad, rows, 16);
    for (int r = 0; r < count; r++) {
        Tensor out = test_tensor(&a, "f32[2,3]=");
        assert_int_equal(test_kernel_run(&a, rows[r], &(GatherGradParams){0, INTS(2, 3)}, 2, in, 1,
                                         &out, NULL, NULL),
                         MPR_OK);
        assert_true(fabs(mpri_load_f64(out.dtype, out.data, 4) - 125.027) < 0.01);
    }
    mpri_arena_destroy(&a);
}

static int open_pools(void **state)
{
    (void)state;
    Err err = {0};
    for (int i = 0; i < 3; i++)
        if (mpri_threads_create(mpri_alloc_default(), i + 1, &pools[i], &err) != MPR_OK) return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) mpri_threads_destroy(pools[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary),     cmocka_unit_test(binary), cmocka_unit_test(reductions),
        cmocka_unit_test(softmaxes), cmocka_unit_test(norms), cmocka_unit_test(batch_norms),  cmocka_unit_test(rotary), cmocka_unit_test(losses),
        cmocka_unit_test(moves),     cmocka_unit_test(repeated_row),
        cmocka_unit_test(windows),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
