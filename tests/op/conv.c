/* Convolution and its two gradients on the tuned rows against the reference in f64: strides,
 * dilations, padding, groups, one and two spatial dims, patch embeddings, all types; the same bits
 * for no pool and for 2 and 3 threads. */
#include <float.h>
#include <math.h>
#include <string.h>
#include "runtime/base/rng.h"
#include "runtime/exec/threads.h"
#include "tests/support/kernels.h"

static const DType types[] = {MPR_FLOAT32, MPR_FLOAT16, MPR_BFLOAT16};
static Threads *pools[3];

typedef struct Case { /* h = 0: one spatial dim */
    int64_t n, c, h, w, out, kh, kw, stride_h, stride_w, dilation, group;
    int64_t pad[4]; /* begin h, begin w, end h, end w */
    const char *auto_pad;
} Case;

static const Case cases[] = {
    {2, 3, 32, 48, 20, 16, 16, 16, 16, 1, 1, {0}, NULL}, /* patch embedding */
    {3, 4, 9, 11, 5, 3, 3, 1, 1, 1, 1, {1, 1, 1, 1}, NULL},
    {2, 4, 9, 11, 6, 3, 2, 2, 3, 1, 2, {1, 0, 0, 2}, NULL},
    {1, 4, 9, 40, 6, 3, 3, 1, 1, 2, 1, {2, 2, 2, 2}, NULL},
    {2, 6, 7, 21, 6, 3, 3, 1, 1, 1, 6, {1, 1, 1, 1}, NULL}, /* depthwise */
    {2, 6, 8, 8, 12, 3, 3, 2, 2, 1, 6, {1, 1, 1, 1}, NULL},
    {2, 3, 0, 2100, 6, 1, 5, 1, 1, 2, 3, {0, 4, 0, 4}, NULL},
    {2, 5, 6, 7, 9, 1, 1, 1, 1, 1, 1, {0}, NULL}, /* no gathering */
    {2, 5, 6, 7, 9, 1, 1, 2, 2, 1, 1, {0}, NULL},
    {2, 40, 0, 30, 24, 1, 3, 1, 1, 1, 1, {0, 1, 0, 1}, NULL}, /* one dim, as in front of a speech
                                                                 model */
    {2, 24, 0, 50, 24, 1, 3, 1, 2, 1, 1, {0, 1, 0, 1}, NULL},
    {1, 2, 10, 10, 3, 4, 4, 3, 3, 1, 1, {0}, "SAME_UPPER"},
    {1, 2, 10, 10, 3, 4, 4, 3, 3, 1, 1, {0}, "SAME_LOWER"},
    {1, 2, 10, 10, 3, 4, 4, 2, 2, 1, 1, {0}, "VALID"},
    {1, 1, 3, 3, 1, 3, 3, 1, 1, 1, 1, {5, 5, 5, 5}, NULL}, /* outputs that see padding only */
    {0, 2, 5, 5, 3, 3, 3, 1, 1, 1, 1, {0}, NULL},
    {1, 1, 4, 600, 2, 3, 3, 1, 1, 1, 1, {1, 1, 1, 1}, NULL}, /* rows longer than a scatter run */
    /* several bands of output rows: overlapping windows, gaps between them, rows that none sees */
    {3, 3, 70, 150, 20, 7, 7, 2, 2, 1, 1, {3, 3, 3, 3}, NULL},
    {2, 20, 40, 100, 6, 3, 3, 2, 2, 2, 1, {2, 2, 2, 2}, NULL},
    {2, 32, 40, 80, 6, 3, 3, 2, 1, 1, 2, {1, 0, 0, 2}, NULL},
    {3, 64, 42, 103, 7, 1, 1, 2, 2, 1, 1, {0}, NULL},
    {4, 15, 37, 80, 9, 3, 3, 5, 1, 1, 1, {4, 1, 4, 1}, NULL},
    {2, 24, 30, 70, 18, 3, 3, 1, 1, 1, 1, {1, 1, 1, 1}, NULL},
};

static int64_t extent(const Case *c, int64_t in, int64_t k, int64_t stride, int64_t pads)
{
    int64_t reach = (k - 1) * c->dilation + 1;
    if (c->auto_pad && strncmp(c->auto_pad, "SAME", 4) == 0) return (in + stride - 1) / stride;
    return (in + pads - reach) / stride + 1;
}

typedef struct Built {
    ConvParams params;
    int64_t lists[3][4];
    Tensor x, w, bias, y, dy; /* y, dy: shape of the output */
} Built;

static Tensor tensor(Arena *a, DType t, bool two, int64_t d0, int64_t d1, int64_t d2, int64_t d3,
                     uint64_t stream)
{
    int64_t dims[4] = {d0, d1, two ? d2 : d3, d3};
    Tensor r = test_tensor_new(a, t, two ? 4 : 3, dims);
    for (int64_t i = 0; i < r.n; i++)
        mpri_store_f64(t, r.data, i, 2.0 * (double)mpri_rng_uniform(7, stream, (uint64_t)i) - 1);
    return r;
}

static void build(Arena *a, const Case *c, DType t, Built *b)
{
    bool two = c->h > 0;
    int64_t h = two ? c->h : 1, kh = two ? c->kh : 1;
    int64_t oh = two ? extent(c, h, kh, c->stride_h, c->pad[0] + c->pad[2]) : 1;
    int64_t ow = extent(c, c->w, c->kw, c->stride_w, c->pad[1] + c->pad[3]);
    memset(b, 0, sizeof *b);
    int n = two ? 2 : 1;
    int64_t lists[3][4] = {{c->stride_h, c->stride_w},
                           {c->dilation, c->dilation},
                           {c->pad[0], c->pad[1], c->pad[2], c->pad[3]}};
    memcpy(b->lists, lists, sizeof lists);
    if (!two) {
        b->lists[0][0] = c->stride_w;
        b->lists[2][0] = c->pad[1];
        b->lists[2][1] = c->pad[3];
    }
    b->params = (ConvParams){.auto_pad = c->auto_pad ? c->auto_pad : "NOTSET",
                             .strides = {n, b->lists[0]},
                             .dilations = {n, b->lists[1]},
                             .group = c->group};
    if (!c->auto_pad) b->params.pads = (Ints){2 * n, b->lists[2]};
    b->x = tensor(a, t, two, c->n, c->c, h, c->w, 1);
    b->w = tensor(a, t, two, c->out, c->c / c->group, kh, c->kw, 2);
    b->dy = tensor(a, t, two, c->n, c->out, oh, ow, 3);
    int64_t out[1] = {c->out};
    b->bias = test_tensor_new(a, MPR_FLOAT32, 1, out);
    for (int64_t i = 0; i < c->out; i++) ((float *)b->bias.data)[i] = (float)i * 0.25f - 1;
}

static void check(Arena *a, int op, const Built *b, const Tensor *in, int n_in, const Tensor *like,
                  int index)
{
    const KernelRow *rows[16];
    int n = test_kernel_rows(op, rows, 16);
    assert_true(n > 1);
    Tensor exact = test_tensor_new(a, MPR_FLOAT64, like->rank, like->dims);
    assert_int_equal(test_kernel_run(a, rows[n - 1], &b->params, n_in, in, 1, &exact, NULL, NULL),
                     MPR_OK);
    double unit = like->dtype == MPR_FLOAT32   ? 0
                  : like->dtype == MPR_FLOAT16 ? 0x1p-11
                                               : 0x1p-8,
           largest = 1;
    for (int64_t i = 0; i < exact.n; i++)
        largest = fmax(largest, fabs(mpri_load_f64(MPR_FLOAT64, exact.data, i)));
    int taken = 0;
    for (int r = 0; r < n - 1; r++) {
        Tensor first = test_tensor_new(a, like->dtype, like->rank, like->dims);
        KernelSig sig = {op, &b->params, n_in, 1, in, &first, 0, 0};
        if (rows[r]->refuse(&sig)) continue;
        taken++;
        for (int t = 0; t < 3; t++) {
            Tensor out = test_tensor_new(a, like->dtype, like->rank, like->dims);
            assert_int_equal(test_kernel_run(a, rows[r], &b->params, n_in, in, 1, &out, pools[t],
                                             NULL),
                             MPR_OK);
            assert_true(test_tensor_guard(&out));
            if (t == 0)
                first = out;
            else
                assert_memory_equal(first.data, out.data,
                                    (size_t)out.n * mpri_dtype_size(out.dtype));
        }
        for (int64_t i = 0; i < exact.n; i++) {
            double e = mpri_load_f64(MPR_FLOAT64, exact.data, i),
                   f = mpri_load_f64(first.dtype, first.data, i);
            if (!(fabs(f - e) <= largest * 16 * FLT_EPSILON + fabs(e) * unit))
                fail_msg("case %d, %s, type %d at %d of %d: %.9g, exactly %.9g", index,
                         rows[r]->name, (int)like->dtype, (int)i, (int)exact.n, f, e);
        }
    }
    assert_true(taken > 0);
}

static void all_three(void **state)
{
    (void)state;
    Arena a;
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int t = 0; t < 3; t++) {
            Built b;
            build(&a, &cases[i], types[t], &b);
            Tensor forward[3] = {b.x, b.w, b.bias}, to_input[2] = {b.dy, b.w},
                   to_weight[2] = {b.dy, b.x};
            check(&a, OP_Conv, &b, forward, 3, &b.dy, (int)i);
            check(&a, OP_Conv, &b, forward, 2, &b.dy, (int)i);
            check(&a, OP_ConvGradInput, &b, to_input, 2, &b.x, (int)i);
            check(&a, OP_ConvGradWeight, &b, to_weight, 2, &b.w, (int)i);
            mpri_arena_reset(&a);
        }
    mpri_arena_destroy(&a);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_three)};
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
