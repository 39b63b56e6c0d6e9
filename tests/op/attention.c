/* The blocked attention kernels of every instruction set against the reference kernels: ragged
 * blocks, grouped heads, masks, windows, softcap, all three types; the same bits for 1, 2 and 3
 * threads. */
#include <float.h>
#include <math.h>
#include <string.h>
#include "runtime/base/rng.h"
#include "runtime/exec/threads.h"
#include "tests/support/kernels.h"

typedef enum Mask { NO_MASK, ADDED, SEEN, ALL_HIDDEN } Mask;

typedef struct Case {
    bool packed;
    int64_t batch, heads, kv_heads, queries, keys, size, v_size;
    Mask mask;
    int64_t mask_heads, mask_keys; /* 1 or heads; at most keys */
    AttentionParams p;
    bool lengths;
} Case;

#define WINDOW(l, r) .left_window = (l), .right_window = (r)

static const Case cases[] = {
    {false, 2, 3, 3, 70, 70, 16, 16, NO_MASK, 0, 0, {WINDOW(-1, -1)}, false},
    {true, 2, 4, 2, 131, 131, 24, 24, NO_MASK, 0, 0, {.is_causal = 1, WINDOW(-1, -1)}, false},
    {false, 1, 4, 1, 5, 300, 7, 9, ADDED, 4, 300, {.softcap = 2, WINDOW(-1, -1)}, false},
    {true, 2, 2, 2, 65, 129, 64, 40, SEEN, 1, 129, {.scale = 0.3f, WINDOW(-1, -1)}, false},
    {false, 2, 2, 1, 66, 260, 8, 8, SEEN, 2, 200, {.is_causal = 1, WINDOW(-1, -1)}, true},
    {false, 1, 2, 2, 200, 200, 33, 17, NO_MASK, 0, 0, {WINDOW(20, 3)}, false},
    {false, 1, 2, 2, 9, 140, 8, 8, ALL_HIDDEN, 1, 140, {WINDOW(-1, -1)}, false},
    {false, 2, 1, 1, 1, 1, 1, 1, NO_MASK, 0, 0, {WINDOW(-1, -1)}, false},
    {false, 1, 2, 2, 3, 0, 4, 4, NO_MASK, 0, 0, {WINDOW(-1, -1)}, false},
};

static Threads *pools[3];

static Tensor random_tensor(Arena *a, DType t, int rank, const int64_t *dims, uint64_t stream)
{
    Tensor r = test_tensor_new(a, t, rank, dims);
    for (int64_t i = 0; i < r.n; i++)
        mpri_store_f64(t, r.data, i, 3.0 * (double)mpri_rng_uniform(7, stream, (uint64_t)i) - 1.5);
    return r;
}

static Tensor operand(Arena *a, const Case *c, DType t, int64_t heads, int64_t n, int64_t size,
                      uint64_t stream)
{
    if (c->packed) return random_tensor(a, t, 3, (int64_t[]){c->batch, n, heads * size}, stream);
    return random_tensor(a, t, 4, (int64_t[]){c->batch, heads, n, size}, stream);
}

static Tensor mask_of(Arena *a, const Case *c, DType t)
{
    int64_t dims[4] = {1, c->mask_heads, c->queries, c->mask_keys};
    if (c->mask == NO_MASK) return (Tensor){0};
    Tensor m = random_tensor(a, c->mask == ADDED ? t : MPR_BOOL, 4, dims, 4);
    for (int64_t i = 0; i < m.n; i++) {
        bool hide = c->mask == ALL_HIDDEN || mpri_rng_uniform(3, 1, (uint64_t)i) < 0.3f ||
                    i / c->mask_keys == 1; /* query 1 sees nothing */
        if (c->mask != ADDED) mpri_store_i64(MPR_BOOL, m.data, i, !hide);
        else if (hide) mpri_store_f64(t, m.data, i, -HUGE_VAL);
    }
    return m;
}

/* Every fast row of op against what the reference gives in f64. The gradient takes its row sums
 * from the output, which was rounded to the type. */
static void check(Arena *a, int op, const Case *c, int n_in, const Tensor *in, int n_out,
                  const Tensor *like, int index)
{
    const KernelRow *rows[16];
    Tensor exact[6] = {{0}};
    int n = test_kernel_rows(op, rows, 16), taken = 0;
    for (int k = 0; k < n_out; k++)
        if (mpri_tensor_here(&like[k]))
            exact[k] = test_tensor_new(a, MPR_FLOAT64, like[k].rank, like[k].dims);
    assert_int_equal(
        test_kernel_run(a, rows[n - 1], &c->p, n_in, in, n_out, exact, NULL, NULL), MPR_OK);
    for (int r = 0; r < n - 1; r++) {
        Tensor first[6] = {{0}};
        KernelSig sig = {op, &c->p, n_in, n_out, in, like, 0, 0};
        assert_null(rows[r]->refuse(&sig));
        taken++;
        for (int t = 0; t < 3; t++) {
            Tensor out[6] = {{0}};
            for (int k = 0; k < n_out; k++)
                if (mpri_tensor_here(&like[k]))
                    out[k] = test_tensor_new(a, like[k].dtype, like[k].rank, like[k].dims);
            assert_int_equal(
                test_kernel_run(a, rows[r], &c->p, n_in, in, n_out, out, pools[t], NULL), MPR_OK);
            for (int k = 0; k < n_out; k++) {
                if (!mpri_tensor_here(&like[k])) continue;
                assert_true(test_tensor_guard(&out[k]));
                if (t)
                    assert_memory_equal(first[k].data, out[k].data,
                                        (size_t)out[k].n * mpri_dtype_size(out[k].dtype));
                else first[k] = out[k];
            }
        }
        for (int k = 0; k < n_out; k++) {
            double largest = 1;
            DType t = like[k].dtype;
            double unit = t == MPR_FLOAT32 ? 0 : t == MPR_FLOAT16 ? 0x1p-11 : 0x1p-8;
            for (int64_t i = 0; i < exact[k].n; i++) {
                double e = mpri_load_f64(MPR_FLOAT64, exact[k].data, i);
                if (isfinite(e)) largest = fmax(largest, fabs(e));
            }
            for (int64_t i = 0; i < exact[k].n; i++) {
                double e = mpri_load_f64(MPR_FLOAT64, exact[k].data, i),
                       f = mpri_load_f64(t, first[k].data, i);
                double allowed = largest * (64 * FLT_EPSILON + (op == OP_AttentionGrad ? unit : 0));
                if (e != f && !(fabs(f - e) <= allowed + fabs(e) * unit))
                    fail_msg("case %d, %s, type %d, output %d, element %d of %d: %.9g, exactly "
                             "%.9g",
                             index, rows[r]->name, (int)t, k, (int)i, (int)exact[k].n, f, e);
            }
        }
    }
    assert_true(taken > 0);
}

static void run_case(Arena *a, const Case *c, DType t, int index)
{
    AttentionParams p = c->p;
    Case full = *c;
    p.q_num_heads = c->packed ? c->heads : 0;
    p.kv_num_heads = c->packed ? c->kv_heads : 0;
    full.p = p;
    Tensor in[10] = {operand(a, c, t, c->heads, c->queries, c->size, 1),
                     operand(a, c, t, c->kv_heads, c->keys, c->size, 2),
                     operand(a, c, t, c->kv_heads, c->keys, c->v_size, 3), mask_of(a, c, t)};
    if (c->lengths) {
        in[6] = test_tensor_new(a, MPR_INT64, 1, (int64_t[]){c->batch});
        for (int64_t i = 0; i < c->batch; i++)
            mpri_store_i64(MPR_INT64, in[6].data, i, i == 0 ? c->queries - 7 : c->keys - 30);
    }
    Tensor out[5] = {operand(a, c, t, c->heads, c->queries, c->v_size, 5)};
    out[4] = test_tensor_new(a, MPR_FLOAT32, 3, (int64_t[]){c->batch, c->heads, c->queries});
    check(a, OP_Attention, &full, 7, in, 5, out, index);

    const KernelRow *rows[16];
    int n = test_kernel_rows(OP_Attention, rows, 16);
    in[7] = operand(a, c, t, c->heads, c->queries, c->v_size, 6);
    in[8] = out[0];
    in[9] = out[4];
    assert_int_equal(test_kernel_run(a, rows[n - 1], &full.p, 7, in, 5, out, NULL, NULL), MPR_OK);
    check(a, OP_AttentionGrad, &full, 10, in, 3, in, index);
}

static void blocked(void **state)
{
    static const DType types[] = {MPR_FLOAT32, MPR_FLOAT16, MPR_BFLOAT16};
    (void)state;
    Arena a;
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int t = 0; t < 3; t++) {
            run_case(&a, &cases[i], types[t], (int)i);
            mpri_arena_reset(&a);
        }
    mpri_arena_destroy(&a);
}

/* NaN and inf behind a mask, and a query that sees no key, leave finite numbers. */
static void robust(void **state)
{
    static const AttentionParams p = {WINDOW(-1, -1)};
    static const KernelCase rows[] = {
        {.op = OP_Attention, .params = &p,
         .in = {"f32[1,1,2,1]=1 1", "f32[1,1,2,1]=0 inf", "f32[1,1,2,1]=5 7", "bool[2,2]=1 0 0 0"},
         .out = {"f32[1,1,2,1]=5 0"}, .tolerance = 1e-6},
        {.op = OP_Attention, .params = &p,
         .in = {"f32[1,1,1,1]=1", "f32[1,1,2,1]=0 inf", "f32[1,1,2,1]=5 7", "f32[1,2]=0 -inf"},
         .out = {"f32[1,1,1,1]=5"}, .tolerance = 1e-6},
    };
    (void)state;
    test_kernel_cases(rows, 2);
}

static int open_pools(void **state)
{
    (void)state;
    Err err = {0};
    for (int i = 1; i < 3; i++)
        if (mpri_threads_create(mpri_alloc_default(), i + 1, &pools[i], &err) != MPR_OK) return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 1; i < 3; i++) mpri_threads_destroy(pools[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocked), cmocka_unit_test(robust)};
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
