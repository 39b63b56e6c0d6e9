/* Attention by tensor cores and by float kernels, on a GPU or the CUDA that runs on the CPU: both against the
 * reference kernels in double on tiles that are ragged, masked and wide; numbers that 16 bits hold badly; numbers that
 * are not finite; and which of the two a GPU gets. Exit status 77: no GPU of compute capability 8.0. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "runtime/base/rng.h"
#include "tests/support/kernels.h"

enum { BATCH = 2, HEADS = 2, MOST = 10 };

typedef struct Case {
    int64_t kv_heads, queries, keys, size, v_size;
    bool mask; /* added, of every batch item and head */
    AttentionParams p;
} Case;

#define WINDOW(l, r) .left_window = (l), .right_window = (r)

static const Case cases[] = {
    {2, 130, 130, 64, 64, false, {.is_causal = 1, WINDOW(-1, -1)}},
    {1, 67, 150, 128, 128, false, {WINDOW(-1, -1)}},
    {2, 70, 33, 80, 96, true, {.softcap = 3, WINDOW(-1, -1)}},
    {1, 100, 100, 128, 40, true, {.is_causal = 1, WINDOW(-1, -1)}},
    {2, 200, 200, 16, 24, false, {WINDOW(20, 3)}},
    {1, 65, 64, 7, 9, false, {.scale = 0.7f, WINDOW(-1, -1)}},
};

static Arena arena;
static Device *host; /* gives the device its set of kernels */
static KernelSet kernels;

static Tensor tensor(DType t, int64_t heads, int64_t n, int64_t size, uint64_t stream, double scale)
{
    Tensor x = test_tensor_new(&arena, t, 4, (int64_t[]){BATCH, heads, n, size});
    for (int64_t i = 0; i < x.n; i++)
        mpri_store_f64(t, x.data, i, scale * (3.0 * (double)mpri_rng_uniform(7, stream, (uint64_t)i) - 1.5));
    return x;
}

static Tensor like(const Tensor *x, DType t) { return test_tensor_new(&arena, t, x->rank, x->dims); }

/* ---- kernels ---- */

static const KernelRow *row_named(const char *name)
{
    for (int i = 0; i < kernels.n_own; i++)
        for (int k = 0; k < kernels.tables[i].n; k++)
            if (!strcmp(kernels.tables[i].rows[k].name, name)) return &kernels.tables[i].rows[k];
    fail_msg("no kernel '%s'", name);
    return NULL;
}

static void reference(int op, const void *params, int n_in, const Tensor *in, int n_out, Tensor *out)
{
    const KernelRow *rows[16];
    int n = test_kernel_rows(op, rows, 16);
    assert_int_equal(test_kernel_run(&arena, rows[n - 1], params, n_in, in, n_out, out, NULL, NULL), MPR_OK);
}

static void *to_device(const Tensor *t)
{
    void *p = NULL;
    size_t bytes = (size_t)t->n * mpri_dtype_size(t->dtype);
    if (!mpri_tensor_here(t)) return NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(p, t->data, bytes, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    return p;
}

static void on_device(const char *name, const void *params, int n_in, const Tensor *in, int n_out, Tensor *out)
{
    const KernelRow *row = row_named(name);
    Tensor at[2 * MOST];
    KernelSig sig = {row->op, params, n_in, n_out, in, out, 0, 80}; /* at least */
    KernelCall call = {.params = params, .n_in = n_in, .n_out = n_out, .in = at, .out = at + MOST};
    const char *why = row->refuse(&sig);
    if (why) fail_msg("%s: %s", name, why);
    memcpy(at, in, (size_t)n_in * sizeof *in);
    memcpy(at + MOST, out, (size_t)n_out * sizeof *out);
    for (int k = 0; k < n_in; k++) at[k].data = to_device(&in[k]);
    for (int k = 0; k < n_out; k++) at[MOST + k].data = to_device(&out[k]);
    size_t workspace = row->workspace(&sig, 1);
    if (workspace) assert_int_equal(cudaMalloc(&call.workspace, workspace), cudaSuccess);
    assert_int_equal(row->fn(&call), MPR_OK);
    for (int k = 0; k < n_out; k++)
        if (at[MOST + k].data)
            assert_int_equal(cudaMemcpyAsync(out[k].data, at[MOST + k].data,
                                             (size_t)out[k].n * mpri_dtype_size(out[k].dtype), cudaMemcpyDeviceToHost,
                                             NULL), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    for (int k = 0; k < n_in; k++) assert_int_equal(cudaFree(at[k].data), cudaSuccess);
    for (int k = 0; k < n_out; k++) assert_int_equal(cudaFree(at[MOST + k].data), cudaSuccess);
    assert_int_equal(cudaFree(call.workspace), cudaSuccess);
}

/* Within a rounding of the exact number and `noise` of the largest; not finite where that is not. */
static void compare(const char *name, int output, const Tensor *found, const Tensor *exact, double noise)
{
    double largest = 0, unit = 0x1p-24, least = 0;
    if (found->dtype == MPR_FLOAT16) unit = 0x1p-11, least = 0x1p-25;
    if (found->dtype == MPR_BFLOAT16) unit = 0x1p-8;
    for (int64_t i = 0; i < exact->n; i++) {
        double e = mpri_load_f64(exact->dtype, exact->data, i);
        if (isfinite(e)) largest = fmax(largest, fabs(e));
    }
    for (int64_t i = 0; i < exact->n; i++) {
        double e = mpri_load_f64(exact->dtype, exact->data, i), f = mpri_load_f64(found->dtype, found->data, i);
        bool right = isfinite(e) ? fabs(f - e) <= largest * noise + fabs(e) * unit * 1.0001 + least : !isfinite(f);
        if (!right)
            fail_msg("%s, output %d, element %d of %d: %.9g, exactly %.9g, largest %g", name, output, (int)i,
                     (int)exact->n, f, e, largest);
    }
}

/* ---- against double ---- */

/* in: q k v mask past past lengths dy y lse; the last two are made here. noise: of both kernels. */
static void check(const AttentionParams *p, Tensor *in, const char *what, double noise)
{
    DType t = in[0].dtype;
    Tensor lse = test_tensor_new(&arena, MPR_FLOAT32, 3, in[0].dims);
    Tensor exact[5] = {like(&in[7], MPR_FLOAT64), {0}, {0}, {0}, lse}, y[5] = {like(&in[7], t), {0}, {0}, {0}, lse};
    Tensor grads[3];
    for (int k = 0; k < 3; k++) grads[k] = like(&in[k], MPR_FLOAT64);
    reference(OP_Attention, p, 7, in, 5, exact);
    for (int mma = 0; mma < 2; mma++) {
        const char *name = mma ? "cuda.attention.mma" : "cuda.attention";
        on_device(name, p, 7, in, 5, y);
        compare(name, 0, &y[0], &exact[0], noise);
    }
    y[0] = like(&in[7], MPR_FLOAT32); /* delta comes from it: not rounded to 16 bits here */
    reference(OP_Attention, p, 7, in, 5, y);
    in[8] = y[0];
    in[9] = lse;
    reference(OP_AttentionGrad, p, 10, in, 3, grads);
    for (int mma = 0; mma < 2; mma++) {
        const char *name = mma ? "cuda.attentiongrad.mma" : "cuda.attentiongrad";
        Tensor found[3];
        for (int k = 0; k < 3; k++) found[k] = like(&in[k], t);
        on_device(name, p, 10, in, 3, found);
        for (int k = 0; k < 3; k++) compare(what ? what : name, k, &found[k], &grads[k], noise);
    }
    mpri_arena_reset(&arena);
}

static void fill(const Case *c, DType t, double scale_dy, Tensor *in)
{
    memset(in, 0, MOST * sizeof *in);
    in[0] = tensor(t, HEADS, c->queries, c->size, 1, 1);
    in[1] = tensor(t, c->kv_heads, c->keys, c->size, 2, 1);
    in[2] = tensor(t, c->kv_heads, c->keys, c->v_size, 3, 1);
    if (c->mask) in[3] = tensor(t, HEADS, c->queries, c->keys, 4, 1);
    for (int64_t i = 0; c->mask && i < in[3].n; i++)
        if (i % 7 == 2 || i / c->keys == 1) mpri_store_f64(t, in[3].data, i, -HUGE_VAL);
    in[7] = tensor(t, HEADS, c->queries, c->v_size, 5, scale_dy);
}

static const DType types[] = {MPR_FLOAT16, MPR_BFLOAT16};
/* A weight has 22 and 16 bits; float adds the rest. */
static const double noise[] = {64 * FLT_EPSILON, 0x1p-15};

static void tiles(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int t = 0; t < 2; t++) {
            Tensor in[MOST];
            fill(&cases[i], types[t], 1, in);
            check(&cases[i].p, in, NULL, noise[t]);
        }
}

/* ---- numbers that 16 bits hold badly ---- */

/* Gradients scaled up until ds has no place in float16 but dq has, and down to the last bits. */
static void scaled(void **state)
{
    static const Case c = {2, 70, 70, 64, 64, false, {.scale = 0.02f, WINDOW(-1, -1)}};
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int big = 0; big < 2; big++) {
            Tensor in[MOST];
            fill(&c, types[t], big ? 40000 : 0x1p-14, in);
            for (int k = 1; k < 2; k++)
                for (int64_t i = 0; i < in[k].n; i++)
                    mpri_store_f64(types[t], in[k].data, i, mpri_load_f64(types[t], in[k].data, i) * 0x1p-5);
            check(&c.p, in, big ? "large" : "small", noise[t]);
        }
}

/* One key with nearly all, the others' sum is what y is: none of them may be lost. */
static void tails(void **state)
{
    static const Case c = {2, 64, 400, 16, 16, false, {.scale = 1, WINDOW(-1, -1)}};
    (void)state;
    for (int t = 0; t < 2; t++) {
        Tensor in[MOST];
        fill(&c, types[t], 1, in);
        for (int64_t i = 0; i < in[0].n; i++) mpri_store_f64(types[t], in[0].data, i, i % 16 == 0);
        for (int64_t i = 0; i < in[1].n; i++)
            mpri_store_f64(types[t], in[1].data, i, i / 16 % 400 == 0 && i % 16 == 0 ? 17.5 : 0);
        for (int64_t i = 0; i < in[2].n; i++)
            mpri_store_f64(types[t], in[2].data, i, i / 16 % 400 == 0 ? 0 : 1);
        check(&c.p, in, "tails", noise[t]);
    }
}

/* ---- numbers that are not finite ---- */

static double odd_numbers[] = {INFINITY, -INFINITY, NAN};

/* Where `input` has one, both kernels give what is finite and what is not as the other does. */
static void odd_input(int input, double value, bool causal, DType t)
{
    Case c = {2, 70, 70, 64, 64, false, {.is_causal = causal, WINDOW(-1, -1)}};
    Tensor in[MOST], y[2], found[2][3], lse = test_tensor_new(&arena, MPR_FLOAT32, 3, (int64_t[]){BATCH, HEADS, 70});
    char what[80];
    snprintf(what, sizeof what, "input %d has %g%s", input, value, causal ? ", causal" : "");
    fill(&c, t, 1, in);
    Tensor exact[5] = {like(&in[7], t), {0}, {0}, {0}, lse};
    reference(OP_Attention, &c.p, 7, in, 5, exact);
    mpri_store_f64(t, in[input].data, 40 * 64 + 5, value);
    in[8] = exact[0];
    in[9] = lse;
    for (int mma = 0; mma < 2; mma++) {
        Tensor out[5] = {like(&in[7], t), {0}, {0}, {0}, like(&lse, MPR_FLOAT32)};
        on_device(mma ? "cuda.attention.mma" : "cuda.attention", &c.p, 7, in, 5, out);
        y[mma] = out[0];
        for (int k = 0; k < 3; k++) found[mma][k] = like(&in[k], t);
        on_device(mma ? "cuda.attentiongrad.mma" : "cuda.attentiongrad", &c.p, 10, in, 3, found[mma]);
    }
    double rough = t == MPR_FLOAT16 ? 0x1p-10 : 0x1p-7;
    compare(what, -1, &y[1], &y[0], rough);
    for (int k = 0; k < 3; k++) compare(what, k, &found[1][k], &found[0][k], rough);
    mpri_arena_reset(&arena);
}

static void odd(void **state)
{
    static const int inputs[] = {0, 1, 2, 7};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int v = 0; v < 3; v++)
            for (int t = 0; t < 2; t++) odd_input(inputs[i], odd_numbers[v], (i + v) % 2, types[t]);
}

/* ---- which kernel ---- */

static const char *chosen(int capability, DType t, const char **why)
{
    static KernelChoice choice;
    Tensor in[MOST], out[5] = {{0}};
    fill(&cases[0], t, 1, in);
    out[0] = like(&in[7], t);
    KernelSig sig = {OP_Attention, &cases[0].p, 7, 5, in, out, 0, capability};
    assert_true(mpri_kernel_choose(&kernels, &sig, 0, NULL, &choice));
    *why = choice.skipped;
    mpri_arena_reset(&arena);
    return choice.row->name;
}

static void choice(void **state)
{
    const char *why;
    (void)state;
    assert_string_equal(chosen(75, MPR_FLOAT16, &why), "cuda.attention");
    assert_non_null(strstr(why, "compute capability 8.0"));
    assert_string_equal(chosen(80, MPR_FLOAT32, &why), "cuda.attention");
    assert_non_null(strstr(why, "only float16 and bfloat16"));
    assert_string_equal(chosen(80, MPR_FLOAT16, &why), "cuda.attention.mma");
    assert_string_equal(chosen(120, MPR_BFLOAT16, &why), "cuda.attention.mma");
}

static int open_arena(void **state)
{
    (void)state;
    Err err = {0};
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    if (mpri_device_cpu(mpri_alloc_default(), 1, &host, &err) != MPR_OK) return -1;
    kernels = mpri_cuda_kernels(host);
    return 0;
}
static int close_arena(void **state)
{
    (void)state;
    mpri_arena_destroy(&arena);
    mpri_device_destroy(host);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles), cmocka_unit_test(scaled), cmocka_unit_test(tails),
        cmocka_unit_test(odd),   cmocka_unit_test(choice),
    };
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major < 8) {
        printf("skipped: no GPU of compute capability 8.0\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, open_arena, close_arena);
}
