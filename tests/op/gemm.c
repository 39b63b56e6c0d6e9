/* The packed product of every instruction set against a plain double loop: ragged shapes, all
 * transposes, mixed storage types, epilogues, batches, empty sides; the same bits for no pool and
 * for 2 and 3 threads; nothing written behind the workspace or the result. Then the same through
 * operator rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"
#include "runtime/base/rng.h"
#include "runtime/exec/threads.h"
#include "tests/support/kernels.h"

static const DType types[] = {MPR_FLOAT32, MPR_FLOAT16, MPR_BFLOAT16};
static Threads *pools[4];

/* ---- one random case ---- */

typedef struct Case {
    Gemm g;
    void *a, *b, *bias;
    int64_t items; /* elements of C */
    uint64_t stream;
} Case;

static int64_t pick(const Case *c, int k, int64_t n)
{
    return (int64_t)mpri_rng_below(3, c->stream, (uint64_t)k, (uint64_t)n);
}

static void *random_values(Arena *arena, DType t, int64_t n, uint64_t stream)
{
    int64_t dims[1] = {n};
    Tensor x = test_tensor_new(arena, t, 1, dims);
    for (int64_t i = 0; i < n; i++)
        mpri_store_f64(t, x.data, i, 2.0 * (double)mpri_rng_uniform(17, stream, (uint64_t)i) - 1);
    return x.data;
}

static int64_t side(const Case *c, int k)
{
    static const int64_t sizes[] = {1,  1,  2,  3,  4,  5,  7,  8,  10,  13,  14,  15,
                                    16, 17, 29, 31, 32, 33, 47, 64, 100, 129, 197, 300};
    return sizes[pick(c, k, sizeof sizes / sizeof sizes[0])];
}

static Case make_case(Arena *arena, uint64_t stream)
{
    Case c = {.stream = stream};
    int64_t m = side(&c, 0), n = side(&c, 1), k = side(&c, 2), batch = 1;
    switch (pick(&c, 3, 12)) {
    case 0: k = 500 + pick(&c, 4, 1800); break; /* several k blocks */
    case 1: n = 400 + pick(&c, 4, 1500); break;
    case 2: m = 400 + pick(&c, 4, 1500); break;
    case 3: batch = 1 + pick(&c, 4, 20); break;
    case 4: k = 0; break;
    }
    Gemm *g = &c.g;
    *g = (Gemm){.m = m,
                .n = n,
                .k = k,
                .ta = types[pick(&c, 5, 3)],
                .tb = types[pick(&c, 6, 3)],
                .tc = types[pick(&c, 7, 3)],
                .tbias = types[pick(&c, 8, 3)],
                .trans_a = pick(&c, 9, 2),
                .trans_b = pick(&c, 10, 2),
                .alpha = pick(&c, 11, 2) ? 1.0f : 0.375f,
                .act = (GemmAct)pick(&c, 12, 4),
                .batch = batch,
                .c_step = m * n,
                .batch_rank = 1,
                .batch_dims = {batch},
                .a_step = {m * k}};
    g->b_step[0] = pick(&c, 13, 2) ? n * k : 0;
    g->lda = g->trans_a ? m : k;
    g->ldb = g->trans_b ? k : n;
    g->ldc = n;
    g->bias_rows = pick(&c, 14, 4) == 0;
    if (pick(&c, 15, 2)) c.bias = random_values(arena, g->tbias, g->bias_rows ? m : n, stream * 8);
    if (pick(&c, 16, 3) == 0 && !c.bias) {
        g->act = GEMM_NONE;
        g->add = g->tc == MPR_FLOAT32 && g->alpha == 1.0f;
    }
    g->bias = c.bias;
    g->a = c.a = random_values(arena, g->ta, m * k * batch, stream * 8 + 1);
    g->b = c.b = random_values(arena, g->tb, n * k * batch, stream * 8 + 2);
    c.items = m * n * batch;
    return c;
}

static double activation(GemmAct act, double x)
{
    switch (act) {
    case GEMM_RELU: return x > 0 ? x : 0;
    case GEMM_GELU: return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case GEMM_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    default: return x;
    }
}

static double half_unit(DType t)
{
    return t == MPR_FLOAT32 ? 0x1p-24 : t == MPR_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

/* Element (item, i, j) of the product, and the sum of the magnitudes of its terms. */
static double exact(const Gemm *g, int64_t item, int64_t i, int64_t j, double *magnitude)
{
    double sum = 0, size = 0;
    for (int64_t q = 0; q < g->k; q++) {
        int64_t ia = item * g->a_step[0] + (g->trans_a ? q * g->lda + i : i * g->lda + q);
        int64_t ib = item * g->b_step[0] + (g->trans_b ? j * g->ldb + q : q * g->ldb + j);
        double v = mpri_load_f64(g->ta, g->a, ia) * mpri_load_f64(g->tb, g->b, ib);
        sum += v;
        size += fabs(v);
    }
    *magnitude = size;
    sum *= g->alpha;
    if (g->add) sum += 0.5;
    if (g->bias) sum += mpri_load_f64(g->tbias, g->bias, g->bias_rows ? i : j);
    return sum;
}

static void compare(const Case *c, int isa, const Tensor *out, const Tensor *pre)
{
    const Gemm *g = &c->g;
    for (int64_t at = 0; at<c->items; at += c->items> 4000
                             ? 1 + (int64_t)mpri_rng_below(5, c->stream, (uint64_t)at, 61)
                             : 1) {
        int64_t item = at / (g->m * g->n), i = at / g->n % g->m, j = at % g->n;
        double size, v = exact(g, item, i, j, &size), e = half_unit(g->tc);
        double slack = (size + 2) * 0x1p-24 * (2 + 0.5 * sqrt((double)g->k)) + 0x1p-25;
        double bound = slack + fabs(v) * e * 1.01, found;
        if (pre) {
            found = mpri_load_f64(g->tc, pre->data, at);
            if (!(fabs(found - v) <= bound))
                fail_msg("case %d: pre %g, exactly %g", (int)c->stream, found, v);
            v = found; /* the activation works on what was stored */
            bound = 0;
        }
        double y = activation(g->act, v);
        bound = bound * 1.2 + fabs(y) * e * 1.01 + fabs(v) * 0x1p-21;
        found = mpri_load_f64(g->tc, out->data, at);
        if (!(fabs(found - y) <= bound))
            fail_msg("case %d, %s: m %d n %d k %d types %d %d %d trans %d %d act %d at %d %d %d: "
                     "%.9g, exactly %.9g",
                     (int)c->stream, mpri_isa_name(isa), (int)g->m, (int)g->n, (int)g->k,
                     (int)g->ta, (int)g->tb, (int)g->tc, g->trans_a, g->trans_b, (int)g->act,
                     (int)item, (int)i, (int)j, found, y);
    }
}

static void run_once(Arena *arena, const Case *c, int isa, int workers, Tensor *out, Tensor *pre)
{
    Gemm g = c->g;
    int64_t dims[1] = {c->items};
    *out = test_tensor_new(arena, g.tc, 1, dims);
    for (int64_t i = 0; i < c->items && g.add; i++) mpri_store_f64(g.tc, out->data, i, 0.5);
    g.c = out->data;
    if (pre) {
        *pre = test_tensor_new(arena, g.tc, 1, dims);
        g.pre = pre->data;
    }
    const GemmApi *api = mpri_gemm_api(isa);
    int64_t bytes[1] = {(int64_t)api->workspace(&g, workers)};
    Tensor workspace = test_tensor_new(arena, MPR_UINT8, 1, bytes);
    api->run(&g, workspace.data, pools[workers]);
    assert_true(test_tensor_guard(&workspace));
    assert_true(test_tensor_guard(out));
    if (pre) assert_true(test_tensor_guard(pre));
}

static void against_loop(void **state)
{
    (void)state;
    Arena arena;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    for (uint64_t n = 0; n < 250; n++) {
        Case c = make_case(&arena, n);
        bool with_pre = !c.g.add && pick(&c, 20, 3) == 0;
        for (int isa = MPRI_ISA_GENERIC; isa <= mpri_cpu_isa(); isa++) {
            Tensor out[4], pre[4];
            for (int w = 1; w <= 3; w++) {
                run_once(&arena, &c, isa, w, &out[w], with_pre ? &pre[w] : NULL);
                assert_memory_equal(out[1].data, out[w].data,
                                    (size_t)c.items * mpri_dtype_size(c.g.tc));
                if (with_pre)
                    assert_memory_equal(pre[1].data, pre[w].data,
                                        (size_t)c.items * mpri_dtype_size(c.g.tc));
            }
            compare(&c, isa, &out[1], with_pre ? &pre[1] : NULL);
        }
        mpri_arena_reset(&arena);
    }
    mpri_arena_destroy(&arena);
}

/* An element does not depend on what else is computed: the same row alone, and within a larger
 * product. */
static void rows_alone(void **state)
{
    (void)state;
    Arena arena;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    enum { M = 300, N = 45, K = 700 };
    Case c = {.items = M * N,
              .g = {.m = M,
                    .n = N,
                    .k = K,
                    .ta = MPR_FLOAT16,
                    .tb = MPR_FLOAT32,
                    .tc = MPR_FLOAT32,
                    .lda = K,
                    .ldb = N,
                    .ldc = N,
                    .alpha = 1,
                    .batch = 1}};
    c.g.a = random_values(&arena, MPR_FLOAT16, M * K, 1);
    c.g.b = random_values(&arena, MPR_FLOAT32, N * K, 2);
    for (int isa = MPRI_ISA_GENERIC; isa <= mpri_cpu_isa(); isa++) {
        Tensor all, one;
        run_once(&arena, &c, isa, 1, &all, NULL);
        for (int64_t i = 0; i < M; i += 37) {
            Case row = c;
            row.items = N;
            row.g.m = 1;
            row.g.a = (const uint16_t *)c.g.a + i * K;
            run_once(&arena, &row, isa, 1, &one, NULL);
            assert_memory_equal((const float *)all.data + i * N, one.data, N * sizeof(float));
        }
    }
    mpri_arena_destroy(&arena);
}

/* NaN and infinity reach the result, also through relu and the padding of ragged panels. */
static void not_finite(void **state)
{
    (void)state;
    Arena arena;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    enum { M = 17, N = 35, K = 33 };
    for (int isa = MPRI_ISA_GENERIC; isa <= mpri_cpu_isa(); isa++) {
        Case c = {.items = M * N,
                  .g = {.m = M,
                        .n = N,
                        .k = K,
                        .ta = MPR_FLOAT16,
                        .tb = MPR_FLOAT16,
                        .tc = MPR_FLOAT16,
                        .lda = K,
                        .ldb = K,
                        .ldc = N,
                        .trans_b = true,
                        .alpha = 1,
                        .batch = 1,
                        .act = GEMM_RELU}};
        c.g.a = c.a = random_values(&arena, MPR_FLOAT16, M * K, 1);
        c.g.b = c.b = random_values(&arena, MPR_FLOAT16, N * K, 2);
        mpri_store_f64(MPR_FLOAT16, c.a, 16 * K + 32, NAN);
        mpri_store_f64(MPR_FLOAT16, c.b, 34 * K, INFINITY);
        Tensor out;
        run_once(&arena, &c, isa, 1, &out, NULL);
        for (int64_t i = 0; i < M * N; i++) {
            double v = mpri_load_f64(MPR_FLOAT16, out.data, i);
            bool row = i / N == 16, column = i % N == 34;
            if (row) assert_true(isnan(v));
            else if (column)
                assert_true(v == (mpri_load_f64(MPR_FLOAT16, c.a, i / N * K) > 0 ? INFINITY : 0));
            else assert_true(isfinite(v));
        }
    }
    mpri_arena_destroy(&arena);
}

/* 65520 rounds to infinity in f16; a sum that passes 65504 on the way does not (f32 accumulation).
 */
static void f16_range(void **state)
{
    (void)state;
    const FusedMatMulParams p = {.alpha = 1, .activation = ""};
    const KernelCase cases[] = {
        {OP_FusedMatMul, &p, {"f16[1,2]=32752 32768", "f16[2,1]=1 1"}, {"f16[1,1]=inf"}, 0, MPR_OK},
        {OP_FusedMatMul,
         &p,
         {"f16[1,2]=32736 32768", "f16[2,1]=1 1"},
         {"f16[1,1]=65504"},
         0,
         MPR_OK},
        {OP_FusedMatMul,
         &p,
         {"f16[1,3]=60000 60000 -60000", "f16[3,1]=1 1 1"},
         {"f16[1,1]=60000"},
         0,
         MPR_OK},
        {OP_FusedMatMul,
         &p,
         {"f16[1,1]=5.9604645e-8", "f16[1,1]=1"},
         {"f16[1,1]=5.9604645e-8"},
         0,
         MPR_OK},
    };
    test_kernel_cases(cases, sizeof cases / sizeof cases[0]);
}

static void operators(void **state)
{
    (void)state;
    const FusedMatMulParams plain = {.alpha = 1, .activation = ""},
                            relu = {.alpha = 1, .activation = "relu"};
    const FusedMatMulParams ta = {.trans_a = 1, .alpha = 2, .activation = ""},
                            tb = {.trans_b = 1, .alpha = 1, .activation = ""};
    const GemmParams gemm = {.alpha = 1, .beta = 1},
                     half = {.alpha = 1, .beta = 0.5f, .trans_b = 1};
    const LinearParams linear = {.trans_w = 1};
    const KernelCase cases[] = {
        {OP_MatMul, NULL, {"f32[2]=1 2", "f32[2]=3 4"}, {"f32[]=11"}, 0, MPR_OK},
        {OP_MatMul, NULL, {"f32[2]=1 2", "f32[2,2]=1 2 3 4"}, {"f32[2]=7 10"}, 0, MPR_OK},
        {OP_MatMul, NULL, {"f32[2,2]=1 2 3 4", "f32[2]=1 2"}, {"f32[2]=5 11"}, 0, MPR_OK},
        {OP_MatMul, NULL, {"f32[2,1,2]=1 2 3 4", "f32[2,1]=1 10"}, {"f32[2,1,1]=21 43"}, 0, MPR_OK},
        {OP_MatMul,
         NULL,
         {"f32[2,1,1,2]=1 2 3 4", "f32[3,2,1]=1 0 0 1 1 1"},
         {"f32[2,3,1,1]=1 2 3 3 4 7"},
         0,
         MPR_OK},
        {OP_MatMul, NULL, {"f32[1,2]=1 2", "f32[2,2,1]=1 0 0 1"}, {"f32[2,1,1]=1 2"}, 0, MPR_OK},
        {OP_MatMul, NULL, {"f32[2,0]=", "f32[0,2]="}, {"f32[2,2]="}, 0, MPR_OK},
        {OP_MatMul, NULL, {"f32[0,3]=", "f32[3,2]="}, {"f32[0,2]="}, 0, MPR_OK},
        {OP_MatMul, NULL, {"i64[1,2]=3 4", "i64[2,1]=5 6"}, {"i64[1,1]=39"}, 0, MPR_OK},
        {OP_FusedMatMul,
         &plain,
         {"f16[2,2]=1 2 3 4", "f16[2,1]=1 2", "f32[1]=0.5"},
         {"f16[2,1]=5.5 11.5"},
         0,
         MPR_OK},
        {OP_FusedMatMul,
         &relu,
         {"f32[1,2]=1 -2", "f32[2,2]=1 2 3 0", "f32[2]=1 -1"},
         {"f32[1,2]=0 1", "f32[1,2]=-4 1"},
         0,
         MPR_OK},
        {OP_FusedMatMul,
         &ta,
         {"f32[2,1,2]=1 2 3 4", "f32[1,2]=1 2"},
         {"f32[2,2,2]=2 4 4 8 6 12 8 16"},
         0,
         MPR_OK},
        {OP_FusedMatMul,
         &tb,
         {"bf16[1,2,2]=1 2 3 4", "bf16[1,2]=1 2"},
         {"bf16[1,2,1]=5 11"},
         0,
         MPR_OK},
        {OP_Gemm,
         &gemm,
         {"f32[1,2]=1 2", "f32[2,2]=1 2 3 4", "f32[2]=1 2"},
         {"f32[1,2]=8 12"},
         0,
         MPR_OK},
        {OP_Gemm,
         &gemm,
         {"f32[2,1]=1 2", "f32[1,2]=1 2", "f32[2,1]=1 2"},
         {"f32[2,2]=2 3 4 6"},
         0,
         MPR_OK},
        {OP_Gemm,
         &half,
         {"f32[1,2]=1 2", "f32[2,2]=1 2 3 4", "f32[]=2"},
         {"f32[1,2]=6 12"},
         0,
         MPR_OK},
        {OP_Linear,
         &linear,
         {"f32[2,1,2]=1 2 3 4", "f32[1,2]=1 2", "f32[1]=1"},
         {"f32[2,1,1]=6 12"},
         0,
         MPR_OK},
    };
    test_kernel_cases(cases, sizeof cases / sizeof cases[0]);
}

static int open_pools(void **state)
{
    (void)state;
    Err err = {0};
    for (int i = 2; i < 4; i++)
        if (mpri_threads_create(mpri_alloc_default(), i, &pools[i], &err) != MPR_OK) return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 2; i < 4; i++) mpri_threads_destroy(pools[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_loop), cmocka_unit_test(rows_alone), cmocka_unit_test(not_finite),
        cmocka_unit_test(f16_range),    cmocka_unit_test(operators),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
