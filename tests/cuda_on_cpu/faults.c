/* A session on a CUDA device that fails: allocation k, a kernel, the whole device. The error is the right
 * one, nothing leaks, and what can be used afterwards is. And what a good step does: the same numbers as on
 * the CPU, nothing read by the host, nothing allocated. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/train/session.h"
#include "tests/cuda_on_cpu/control.h"
#include "tests/train/net.h"

static void step(Net *n)
{
    bind_rows(n, 0, N, 1);
    pass(n, NULL);
    assert_call(mpr_scaler_unscale(n->sc, n->opt), n->sc);
    assert_call(mpr_optimizer_clip_grad_norm(n->opt, 1, NULL), n->opt);
    assert_call(mpr_scaler_step(n->sc, n->opt, NULL), n->sc);
    assert_call(mpr_scaler_update(n->sc), n->sc);
    assert_call(mpr_session_zero_grad(n->s), n->s);
}

/* 24 steps in f16 with a scale that overflows at first. */
static void train(const char *device, float *w, mpr_scaler_state *st)
{
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p22f, .growth_interval = 3};
    setenv("MPR_TEST_DEVICE", device, 1);
    open_net(&n, 0.5f, MPR_FLOAT16, &so);
    for (int i = 0; i < 24; i++) step(&n);
    *st = state_of(&n);
    weights(&n, w);
    close_net(&n);
}

static void same_as_cpu(void **state)
{
    (void)state;
    float w[3][2 * D * D];
    mpr_scaler_state st[3];
    train("cpu", w[0], &st[0]);
    train("cuda", w[1], &st[1]);
    train("cuda", w[2], &st[2]);
    assert_true(st[0].skips > 0 && st[0].updates > 3);
    assert_memory_equal(&st[0], &st[1], sizeof st[0]);
    assert_memory_equal(w[1], w[2], sizeof w[1]);
    for (int i = 0; i < 2 * D * D; i++) assert_true(fabsf(w[0][i] - w[1][i]) < 1e-4f);
    assert_int_equal(shim_counts()->live, 0);
}

static void step_reads_nothing(void **state)
{
    (void)state;
    Net n;
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    for (int i = 0; i < 3; i++) step(&n);
    shim_reset_counts();
    for (int i = 0; i < 10; i++) step(&n);
    assert_int_equal(shim_counts()->host_reads, 0);
    assert_int_equal(shim_counts()->allocations, 0);
    assert_true(shim_counts()->launches > 100);
    close_net(&n);
    assert_int_equal(shim_counts()->live, 0);
}

/* Opening and one step, with allocation k refused: NOMEM or DEVICE, and all is given back. */
static mpr_status try_net(long k)
{
    mpr_context *ctx = NULL;
    mpr_model *model = NULL;
    mpr_session *s = NULL;
    LittleModel m = linear(0.5f);
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = "cuda"};
    mpr_session_options o = {.size = sizeof o, .loss = "mse", .logits = "y"};
    float x[N * D] = {0}, loss;
    int64_t shape[2] = {N, D};
    shim_fail(SHIM_FAIL_ALLOC, k);
    mpr_status st = mpr_context_create(&co, &ctx);
    if (st == MPR_OK) st = mpr_model_load(ctx, test_little_file("b.onnx", &m), NULL, &model);
    if (st == MPR_OK) st = mpr_session_open(model, &o, &s);
    if (st == MPR_OK) st = mpr_session_bind(s, "x", x, MPR_FLOAT32, shape, 2);
    if (st == MPR_OK) st = mpr_session_bind(s, "labels", x, MPR_FLOAT32, shape, 2);
    if (st == MPR_OK) st = mpr_session_forward(s, &loss);
    if (st == MPR_E_NOMEM && s) { /* the session lives */
        assert_int_equal(mpr_session_forward(s, &loss), MPR_OK);
        assert_int_equal(mpr_session_backward(s, NULL), MPR_OK);
    }
    mpr_session_close(s);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    return st;
}

static void allocation_fails(void **state)
{
    (void)state;
    int failed = 0;
    for (long k = 1; k < 200; k++) {
        mpr_status st = try_net(k);
        shim_revive();
        assert_int_equal(shim_counts()->live, 0);
        if (st == MPR_OK) break;
        assert_true(st == MPR_E_NOMEM || st == MPR_E_DEVICE);
        failed++;
    }
    assert_true(failed > 3);
}

static void out_of_memory_says_how_much(void **state)
{
    (void)state;
    Net n;
    float loss;
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_DTYPE_NONE, NULL);
    bind_rows(&n, 0, N, 1);
    shim_memory((size_t)1 << 20);
    assert_int_equal(mpr_session_forward(n.s, &loss), MPR_E_NOMEM);
    assert_non_null(strstr(mpr_last_error(n.s).message, "are free"));
    shim_memory(0);
    assert_call(mpr_session_forward(n.s, &loss), n.s);
    close_net(&n);
}

static void lost(ShimFailure what, long k)
{
    Net n;
    float loss = 0;
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_DTYPE_NONE, NULL);
    step(&n);
    shim_fail(what, k);
    mpr_status st = MPR_OK;
    for (int i = 0; i < 3 && st == MPR_OK; i++) {
        bind_rows(&n, 0, N, 1);
        st = mpr_session_forward(n.s, &loss);
        if (st == MPR_OK) st = mpr_session_backward(n.s, NULL);
        if (st == MPR_OK) st = mpr_session_zero_grad(n.s);
    }
    assert_int_equal(st, MPR_E_DEVICE);
    char first[512];
    snprintf(first, sizeof first, "%s", mpr_last_error(n.s).message);
    assert_non_null(strstr(first, "is lost"));
    bind_rows(&n, 0, N, 1);
    assert_int_equal(mpr_session_forward(n.s, &loss), MPR_E_DEVICE);
    assert_string_equal(first, mpr_last_error(n.s).message);
    close_net(&n);
    shim_revive();
}

static void device_is_lost(void **state)
{
    (void)state;
    shim_quiet(true);
    for (long k = 1; k < 40; k += 3) lost(SHIM_FAIL_LOST, k);
    for (long k = 1; k < 8; k++) lost(SHIM_FAIL_LAUNCH, k);
    shim_quiet(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_cpu),      cmocka_unit_test(step_reads_nothing),
        cmocka_unit_test(allocation_fails), cmocka_unit_test(out_of_memory_says_how_much),
        cmocka_unit_test(device_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
