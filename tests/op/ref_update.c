/* The update family: unscale and its flag, clipping, SGD and Adam against formulas by hand, skipped
 * steps, accumulation; every row of every instruction set to the same bits. */
#include "tests/op/update_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/update_rule.h"
#include "runtime/base/rng.h"

static void add_random(World *w, int64_t n, uint64_t stream, float size)
{
    Tensor t = test_tensor_new(&w->arena, MPR_FLOAT32, 1, &n);
    for (int64_t i = 0; i < n; i++)
        ((float *)t.data)[i] = size * (float)mpri_rng_normal(1, stream, (uint64_t)i);
    w->in[w->n++] = t;
}

#define STATE "f64[8]="

static void overwrite(World *w)
{
    add(w, "f32[3]=1 2 3");
    add(w, "f16[3]=0.5 0.25 inf");
    add(w, "i32[]=0");
}
static void accumulate(World *w)
{
    add(w, "f32[3]=1 2 3");
    add(w, "bf16[3]=0.5 0.25 -inf");
    add(w, "i32[]=1");
}

static void accumulation(void **state)
{
    (void)state;
    World w = run(OP_AccumulateGrad, NULL, overwrite, 1);
    assert_true(value(&w, 0, 0) == 0.5 && value(&w, 0, 1) == 0.25 && value(&w, 0, 2) == INFINITY);
    mpri_arena_destroy(&w.arena);
    w = run(OP_AccumulateGrad, NULL, accumulate, 1);
    assert_true(value(&w, 0, 0) == 1.5 && value(&w, 0, 1) == 2.25 && value(&w, 0, 2) == -INFINITY);
    mpri_arena_destroy(&w.arena);
}

static void clean(World *w)
{
    add(w, STATE);
    add(w, "f32[]=4");
    add(w, "f32[2]=12 16");
    add(w, "f32[0]=");
    add(w, "f32[]=0");
}
static void largest(World *w)
{
    add(w, STATE);
    add(w, "f32[]=1");
    add(w, "f32[3]=3.4028234e38 -0 1e-45");
}
static void with_nan(World *w)
{
    add(w, STATE);
    add(w, "f32[]=2");
    add(w, "f32[20]=0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 nan");
}
static void with_inf(World *w) { add(w, STATE); add(w, "f32[]=2"); add(w, "f32[2]=1 -inf"); }
/* scale 2^-120, gradient 2^10: finite before, infinite after */
static void overflow(World *w)
{
    add(w, STATE);
    add(w, "f32[]=7.52316384526264e-37");
    add(w, "f32[1]=1024");
}
/* scale 2^127: inv is subnormal, and so is the result */
static void subnormal(World *w)
{
    add(w, STATE);
    add(w, "f32[]=1.7014118346046923e38");
    add(w, "f32[1]=1");
}
static void big(World *w) { add(w, STATE); add(w, "f32[]=1"); add(w, "f32[2]=3e25 4e25"); }

static void unscale(void **state)
{
    (void)state;
    World w = run(OP_UnscaleCheck, NULL, clean, 1);
    assert_true(value(&w, 2, 0) == 3 && value(&w, 2, 1) == 4);
    assert_true(value(&w, 0, STATE_FOUND) == 0 && value(&w, 0, STATE_SQUARES) == 25 &&
                value(&w, 0, STATE_NORM) == 5);
    mpri_arena_destroy(&w.arena);
    w = run(OP_UnscaleCheck, NULL, largest, 1);
    assert_true(value(&w, 0, STATE_FOUND) == 0 && signbit(value(&w, 2, 1)) && value(&w, 2, 2) > 0);
    mpri_arena_destroy(&w.arena);
    const Fill bad[] = {with_nan, with_inf, overflow};
    for (int i = 0; i < 3; i++) {
        w = run(OP_UnscaleCheck, NULL, bad[i], 1);
        assert_true(value(&w, 0, STATE_FOUND) == 1);
        mpri_arena_destroy(&w.arena);
    }
    w = run(OP_UnscaleCheck, NULL, subnormal, 1);
    assert_true(value(&w, 0, STATE_FOUND) == 0 && value(&w, 2, 0) == 0x1p-127);
    mpri_arena_destroy(&w.arena);
    w = run(OP_UnscaleCheck, NULL, big, 1); /* f32 squares would overflow */
    assert_true(fabs(value(&w, 0, STATE_NORM) - 5e25) < 1e19);
    mpri_arena_destroy(&w.arena);
}

static void large(World *w)
{
    add(w, STATE);
    add(w, "f32[]=1024");
    add_random(w, 200001, 3, 100);
    add_random(w, 17, 4, 1);
    add_random(w, 65536, 5, 1e-3f);
}

static void unscale_large(void **state)
{
    (void)state;
    World w = run(OP_UnscaleCheck, NULL, large, 1);
    double sum = 0;
    for (int k = 2; k < w.n; k++)
        for (int64_t i = 0; i < w.in[k].n; i++) sum += value(&w, k, i) * value(&w, k, i);
    assert_true(fabs(value(&w, 0, STATE_SQUARES) - sum) < 1e-12 * sum);
    mpri_arena_destroy(&w.arena);
}

static void clip_over(World *w)
{
    add(w, "f64[8]=0 25 0 0 0 0 0 0");
    add(w, "f32[]=2.5");
    add(w, "f32[2]=3 4");
}
static void clip_under(World *w)
{
    add(w, "f64[8]=0 25 0 0 0 0 0 0");
    add(w, "f32[]=6");
    add(w, "f32[2]=3 4");
}
static void clip_off(World *w)
{
    add(w, "f64[8]=0 25 0 0 0 0 0 0");
    add(w, "f32[]=0");
    add(w, "f32[2]=3 4");
}
static void clip_found(World *w)
{
    add(w, "f64[8]=1 inf 0 0 0 0 0 0");
    add(w, "f32[]=1");
    add(w, "f32[2]=3 inf");
}

static void clipping(void **state)
{
    (void)state;
    float factor = 2.5f / (5.0f + 1e-6f);
    World w = run(OP_ClipGradNorm, NULL, clip_over, 1);
    assert_true(value(&w, 2, 0) == 3 * factor && value(&w, 2, 1) == 4 * factor &&
                value(&w, 0, STATE_NORM) == 5);
    mpri_arena_destroy(&w.arena);
    const Fill same[] = {clip_under, clip_off, clip_found};
    for (int i = 0; i < 3; i++) {
        w = run(OP_ClipGradNorm, NULL, same[i], 1);
        assert_true(value(&w, 2, 0) == 3 && value(&w, 2, 1) == (i == 2 ? INFINITY : 4));
        mpri_arena_destroy(&w.arena);
    }
    w = run(OP_ClipGradNorm, NULL, clip_found, 1);
    assert_true(value(&w, 0, STATE_NORM) == INFINITY);
    mpri_arena_destroy(&w.arena);
}

static void sgd_plain(World *w)
{
    add(w, STATE);
    add(w, "f64[8]=0.5 0 0 0 0 0 0 0");
    add(w, "f32[2]=1 2");
    add(w, "f32[2]=2 -2");
    w->n++;
}
static void sgd_buffer(World *w)
{
    add(w, STATE);
    add(w, "f64[8]=0.5 0.25 0.5 0.25 0 0 0 0");
    for (int i = 0; i < 2; i++) {
        add(w, "f32[1]=1");
        add(w, "f32[1]=2");
        add(w, "f32[1]=9");
    }
}
static void sgd_found(World *w) { sgd_buffer(w); ((double *)w->in[0].data)[0] = 1; }
static void sgd_large(World *w)
{
    add(w, STATE);
    add(w, "f64[8]=0.01 0.1 0.5 0.25 0 0 0 0");
    add_random(w, 150001, 1, 1);
    add_random(w, 150001, 2, 1);
    add_random(w, 150001, 3, 1);
}

static void sgd(void **state)
{
    (void)state;
    World w = run(OP_SgdStep, &(SgdParams){0}, sgd_plain, 1);
    assert_true(value(&w, 2, 0) == 0 && value(&w, 2, 1) == 3 && value(&w, 0, STATE_STEP) == 1);
    mpri_arena_destroy(&w.arena);
    const float scale[] = {1, 0}, lr[] = {1, 2};
    SgdParams p = {.decay_scale = {2, scale}, .lr_scale = {2, lr}};
    w = run(OP_SgdStep, &p, sgd_buffer, 2);
    /* first: d = 2.25, buf = 2.25, p = -0.125; then d = 1.96875, buf = 1.125 + 1.4765625, p - 0.5
     * buf */
    assert_true(value(&w, 4, 0) == 2.6015625 && value(&w, 2, 0) == -0.125 - 1.30078125);
    /* without decay, twice the rate: buf = 2, p = -1; buf = 1 + 1.5, p = -3.5 */
    assert_true(value(&w, 7, 0) == 2.5 && value(&w, 5, 0) == -3.5);
    mpri_arena_destroy(&w.arena);
    p.nesterov = 1;
    w = run(OP_SgdStep, &p, sgd_buffer, 1);
    assert_true(value(&w, 2, 0) == 1 - 0.5 * (2.25 + 0.5 * 2.25));
    mpri_arena_destroy(&w.arena);
    w = run(OP_SgdStep, &p, sgd_found, 1);
    assert_true(value(&w, 2, 0) == 1 && value(&w, 4, 0) == 9 && value(&w, 0, STATE_STEP) == 0);
    mpri_arena_destroy(&w.arena);
    w = run(OP_SgdStep, &p, sgd_large, 3);
    mpri_arena_destroy(&w.arena);
}

static void adam_small(World *w)
{
    add(w, STATE);
    add(w, "f64[8]=0.125 0.5 0.5 0.75 1e-8 0 0 0");
    add(w, "f32[2]=1 1");
    add(w, "f32[2]=4 0");
    add(w, "f32[2]=");
    add(w, "f32[2]=");
}
static void adam_found(World *w) { adam_small(w); ((double *)w->in[0].data)[0] = 1; }
static void adam_large(World *w)
{
    add(w, STATE);
    add(w, "f64[8]=0.001 0.01 0.9 0.999 1e-8 0 0 0");
    for (int i = 0; i < 2; i++) {
        int64_t n = i ? 70001 : 31;
        add_random(w, n, 1, 1);
        add_random(w, n, 2, 1);
        add_random(w, n, 3, 0);
        add_random(w, n, 4, 0);
    }
}

static void adam(void **state)
{
    (void)state;
    AdamParams p = {.decoupled = 1};
    World w = run(OP_AdamStep, &p, adam_small, 1);
    /* first step: the corrected moments are g and g^2, so the update is lr; zero gradient: decay
     * only */
    assert_true(fabs(value(&w, 2, 0) - (0.9375 - 0.125)) < 1e-7 && value(&w, 2, 1) == 0.9375);
    assert_true(value(&w, 4, 0) == 2 && value(&w, 5, 0) == 4);
    mpri_arena_destroy(&w.arena);
    p.decoupled = 0;
    w = run(OP_AdamStep, &p, adam_small, 1);
    assert_true(value(&w, 4, 0) == 2.25 && fabs(value(&w, 2, 1) - 0.875) < 1e-7);
    mpri_arena_destroy(&w.arena);
    w = run(OP_AdamStep, &p, adam_found, 1);
    assert_true(value(&w, 2, 0) == 1 && value(&w, 4, 0) == 0 && value(&w, 0, STATE_STEP) == 0);
    mpri_arena_destroy(&w.arena);
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        p = (AdamParams){.decoupled = decoupled};
        w = run(OP_AdamStep, &p, adam_large, 3);
        mpri_arena_destroy(&w.arena);
    }
}

/* A weight that float16 cannot hold, one half way between two neighbours; a second parameter without a
 * copy; chunks of the fast rows. */
static void with_copies(World *w, bool sgd)
{
    add(w, STATE);
    add(w, sgd ? "f64[8]=0.5 0 0 0 0 0 0 0" : "f64[8]=0.01 0 0.9 0.999 1e-8 0 0 0");
    for (int i = 0; i < 3; i++) {
        static const int64_t sizes[] = {3, 5, 70001};
        if (i == 0) add(w, "f32[3]=70000 1.00048828125 -0.3");
        else add_random(w, sizes[i], (uint64_t)i, 1);
        if (i == 0) add(w, "f32[3]=0 0 2");
        else add_random(w, sizes[i], 9, 1);
        add_random(w, sizes[i], 3, 0);
        if (!sgd) add_random(w, sizes[i], 4, 0);
    }
    add(w, "f16[3]=7 7 7");
    add(w, "bf16[3]=7 7 7");
    w->in[w->n++] = test_tensor_new(&w->arena, MPR_FLOAT16, 1, &(int64_t){70001});
}
static void adam_copies(World *w) { with_copies(w, false); }
static void sgd_copies(World *w) { with_copies(w, true); }
static void adam_copies_found(World *w)
{
    adam_copies(w);
    ((double *)w->in[0].data)[0] = 1;
}

/* Input `copy` is what a Cast makes of input `p`. */
static void assert_copy(const World *w, int p, int copy)
{
    for (int64_t i = 0; i < w->in[p].n; i++) {
        unsigned char raw[2];
        mpri_store_f64(w->in[copy].dtype, raw, 0, value(w, p, i));
        assert_memory_equal(raw, (const char *)w->in[copy].data + 2 * i, 2);
    }
}

static void copies(void **state)
{
    (void)state;
    const int64_t of[] = {0, 0, 2};
    AdamParams a = {.copy_of = {3, of}, .decoupled = 1};
    World w = run(OP_AdamStep, &a, adam_copies, 3);
    assert_copy(&w, 2, 14);
    assert_copy(&w, 2, 15);
    assert_copy(&w, 10, 16);
    assert_true(value(&w, 14, 0) == INFINITY && value(&w, 15, 0) != INFINITY);
    mpri_arena_destroy(&w.arena);
    w = run(OP_AdamStep, &a, adam_copies_found, 1);
    assert_true(value(&w, 14, 1) == 7 && value(&w, 15, 2) == 7); /* nothing was done */
    mpri_arena_destroy(&w.arena);
    SgdParams s = {.copy_of = {3, of}};
    w = run(OP_SgdStep, &s, sgd_copies, 2);
    assert_copy(&w, 2, 11);
    assert_copy(&w, 2, 12);
    assert_copy(&w, 8, 13);
    mpri_arena_destroy(&w.arena);
}

static void all_copies(World *w)
{
    add(w, "f32[3]=1 1e-8 70000");
    add(w, "f16[3]=7 7 7");
    add(w, "f32[2]=-0 nan");
    add(w, "bf16[2]=7 7");
}

static void copies_alone(void **state)
{
    (void)state;
    World w = run(OP_CopyParams, NULL, all_copies, 1);
    assert_copy(&w, 0, 1);
    assert_true(isnan(value(&w, 3, 1)) && signbit(value(&w, 3, 0)));
    mpri_arena_destroy(&w.arena);
}

/* state, scale, gradients, and what a step wants of them. */
static void kept_gradients(World *w)
{
    add(w, STATE);
    add(w, "f32[]=3");
    add_random(w, 9001, 1, 3);
    add_random(w, 31, 2, 3);
}

static World after(int op, const void *params, World *before)
{
    const KernelRow *rows[16];
    int count = test_kernel_rows(op, rows, 16);
    assert_int_equal(test_kernel_run(&before->arena, rows[count - 1], params, before->n, before->in, 0, NULL,
                                     NULL, NULL), MPR_OK);
    return *before;
}

/* Unscaled and clipped at once, or kept for later: the same gradients, norm and flag. */
static void kept_factors(void **state)
{
    (void)state;
    KeepParams now = {.keep = 0}, later = {.keep = 1};
    World a = run(OP_UnscaleCheck, &now, kept_gradients, 1), b = run(OP_UnscaleCheck, &later, kept_gradients, 1);
    World raw = {0};
    mpri_arena_init(&raw.arena, mpri_alloc_default(), 0);
    kept_gradients(&raw);
    assert_memory_equal(raw.in[2].data, b.in[2].data, (size_t)raw.in[2].n * 4);
    assert_memory_equal(a.in[0].data, b.in[0].data, 5 * sizeof(double));
    assert_true(value(&a, 0, STATE_INVERSE) == 0 && value(&b, 0, STATE_INVERSE) == (double)(1.0f / 3));
    *(float *)a.in[1].data = *(float *)b.in[1].data = 0.7f; /* the largest norm */
    after(OP_ClipGradNorm, &now, &a);
    after(OP_ClipGradNorm, &later, &b);
    assert_memory_equal(raw.in[2].data, b.in[2].data, (size_t)raw.in[2].n * 4);
    assert_true(value(&b, 0, STATE_FACTOR) < 1);
    after(OP_ScaleGrads, NULL, &b);
    for (int k = 2; k < 4; k++)
        assert_memory_equal(a.in[k].data, b.in[k].data, (size_t)a.in[k].n * 4);
    assert_memory_equal(a.in[0].data, b.in[0].data, 8 * sizeof(double));
    mpri_arena_destroy(&raw.arena);
    mpri_arena_destroy(&a.arena);
    mpri_arena_destroy(&b.arena);
}

static void adam_kept(World *w)
{
    adam_large(w);
    ((double *)w->in[0].data)[STATE_INVERSE] = 0.25;
    ((double *)w->in[0].data)[STATE_FACTOR] = (double)0.3f;
}
static void sgd_kept(World *w)
{
    sgd_large(w);
    ((double *)w->in[0].data)[STATE_FACTOR] = -0.0; /* that is 0 */
}

/* A step multiplies by what was kept, and leaves the gradients. */
static void steps_of_kept(void **state)
{
    (void)state;
    AdamParams p = {.decoupled = 0};
    World w = run(OP_AdamStep, &p, adam_kept, 1), plain = {0};
    mpri_arena_init(&plain.arena, mpri_alloc_default(), 0);
    adam_large(&plain);
    assert_memory_equal(plain.in[3].data, w.in[3].data, (size_t)w.in[3].n * 4);
    for (int k = 3; k < plain.n; k += 4)
        for (int64_t i = 0; i < plain.in[k].n; i++) {
            float *g = (float *)plain.in[k].data + i;
            *g *= 0.25f;
            *g *= 0.3f;
        }
    after(OP_AdamStep, &p, &plain);
    for (int k = 2; k < plain.n; k += 4)
        assert_memory_equal(plain.in[k].data, w.in[k].data, (size_t)w.in[k].n * 4);
    mpri_arena_destroy(&w.arena);
    mpri_arena_destroy(&plain.arena);
    SgdParams s = {0};
    w = run(OP_SgdStep, &s, sgd_kept, 2);
    mpri_arena_destroy(&w.arena);
}

#define ZEROS " 0 0 0 0 0 0 0 0 "

static void seed(World *w)
{
    add(w, "f32[]=0");
    add(w, "f64[16]=65536" ZEROS "0 0 0 0 0 0 0");
    add(w, "f64[]=3");
}

#define RULE "f64[8]=2 0.5 2 1 1024 2 0 0" /* growth, back-off, interval, min, max, hysteresis */
static void scale_clean(World *w)
{
    add(w, "f64[16]=512 0 2" ZEROS "0 0 0 0 0");
    add(w, RULE);
    add(w, STATE);
}
static void scale_found(World *w)
{
    add(w, "f64[16]=1.5 1 2" ZEROS "0 0 0 0 0");
    add(w, RULE);
    add(w, STATE);
    add(w, "f64[8]=1 0 0 0 0 0 0 0");
}
static void scale_empty(World *w) { add(w, "f64[16]=512 1 2" ZEROS "0 0 0 0 0"); add(w, RULE); }
static void scale_top(World *w)
{
    add(w, "f64[16]=1.7014118346046923e38 0 1" ZEROS "0 0 0 0 0");
    add(w, "f64[8]=2 0.5 1 1 inf 1 0 0");
    add(w, STATE);
}

static void loss_scale(void **state)
{
    (void)state;
    World w = run(OP_LossScale, NULL, seed, 1);
    assert_true(value(&w, 0, 0) == (double)(65536.0f / 3));
    mpri_arena_destroy(&w.arena);
    static const double clean_scale[] = {512, 1024, 1024, 1024}; /* then the cap */
    for (int i = 1; i <= 4; i++) {
        w = run(OP_ScaleUpdate, NULL, scale_clean, i);
        assert_true(value(&w, 0, SCALER_SCALE) == clean_scale[i - 1]);
        assert_true(value(&w, 0, SCALER_TRACKER) == i % 2 && value(&w, 0, SCALER_UPDATES) == i);
        mpri_arena_destroy(&w.arena);
    }
    static const double found_scale[] = {1.5, 1, 1}; /* one of two in hand, then the floor */
    for (int i = 1; i <= 3; i++) {
        w = run(OP_ScaleUpdate, NULL, scale_found, i);
        assert_true(value(&w, 0, SCALER_SCALE) == found_scale[i - 1]);
        assert_true(value(&w, 0, SCALER_TRACKER) == 0 && value(&w, 0, SCALER_ROW) == i);
        assert_true(value(&w, 0, SCALER_FALLS) == (i > 1) && value(&w, 0, SCALER_SKIPS) == i);
        mpri_arena_destroy(&w.arena);
    }
    w = run(OP_ScaleUpdate, NULL, scale_empty, 2);
    assert_true(value(&w, 0, SCALER_EMPTY) == 2 && value(&w, 0, SCALER_TRACKER) == 1);
    mpri_arena_destroy(&w.arena);
    w = run(OP_ScaleUpdate, NULL, scale_top, 2); /* never infinite */
    assert_true(value(&w, 0, SCALER_SCALE) == 0x1p127 && value(&w, 0, SCALER_TRACKER) == 0);
    mpri_arena_destroy(&w.arena);
}

static void running(World *w)
{
    add(w, "f32[2]=1 2");
    add(w, "f32[2]=1 4");
    add(w, "f32[2]=3 2");
    add(w, "f32[2]=6 0");
}

/* momentum weighs the old value; the running variance takes the unbiased one: 6 * 4 / 3 = 8 */
static void running_statistics(void **state)
{
    (void)state;
    World w = run(OP_BatchNormUpdate, &(BatchNormUpdateParams){.momentum = 0.75f, .count = 4},
                  running, 1);
    assert_true(value(&w, 0, 0) == 1.5 && value(&w, 0, 1) == 2);
    assert_true(value(&w, 1, 0) == 2.75 && value(&w, 1, 1) == 3);
    mpri_arena_destroy(&w.arena);
    w = run(OP_BatchNormUpdate, &(BatchNormUpdateParams){.momentum = 0.5f, .count = 1}, running, 1);
    assert_true(value(&w, 1, 0) == 3.5);
    mpri_arena_destroy(&w.arena);
    w = run(OP_BatchNormUpdate, &(BatchNormUpdateParams){.momentum = 0.5f}, running, 1);
    assert_true(value(&w, 0, 0) == 1 && value(&w, 1, 1) == 4);
    mpri_arena_destroy(&w.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation), cmocka_unit_test(unscale), cmocka_unit_test(unscale_large),
        cmocka_unit_test(clipping),     cmocka_unit_test(sgd),     cmocka_unit_test(adam),
        cmocka_unit_test(running_statistics), cmocka_unit_test(loss_scale), cmocka_unit_test(copies), cmocka_unit_test(copies_alone),
        cmocka_unit_test(kept_factors), cmocka_unit_test(steps_of_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
