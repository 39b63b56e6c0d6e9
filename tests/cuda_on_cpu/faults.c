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

/* Recorded or launched one by one: the same bits, and a refused recording is no failure. */
static void recorded_or_not(void **state)
{
    (void)state;
    float w[3][2 * D * D];
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    for (int kind = 0; kind < 3; kind++) {
        Net n;
        mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p22f, .growth_interval = 3};
        open_net(&n, 0.5f, MPR_FLOAT16, &so);
        n.s->device->graphs = kind != 0;
        if (kind == 2) shim_fail(SHIM_FAIL_CAPTURE, -1);
        for (int i = 0; i < 24; i++) step(&n);
        shim_reset_counts();
        step(&n);
        assert_int_equal(shim_counts()->graphs, kind == 1 ? 1 : 0);
        shim_fail(SHIM_FAIL_CAPTURE, 0);
        weights(&n, w[kind]);
        close_net(&n);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
    assert_memory_equal(w[0], w[2], sizeof w[0]);
    assert_int_equal(shim_counts()->live, 0);
}

static void step_reads_nothing(void **state)
{
    (void)state;
    Net n;
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    for (int i = 0; i < 4; i++) step(&n);
    shim_reset_counts();
    for (int i = 0; i < 10; i++) step(&n);
    assert_int_equal(shim_counts()->host_reads, 0);
    assert_int_equal(shim_counts()->allocations, 0);
    assert_int_equal(shim_counts()->graphs, 10); /* forward, backward and update are one */
    assert_int_equal(shim_counts()->launches, 10);
    close_net(&n);
    assert_int_equal(shim_counts()->live, 0);
}

/* One step without an assertion: the first status that is not MPR_OK. */
static mpr_status try_step(Net *n, float *loss)
{
    float x[N * D] = {0}, norm;
    int64_t shape[2] = {N, D};
    test_little_fill(x, N * D, 1);
    mpr_status st = mpr_session_bind(n->s, "x", x, MPR_FLOAT32, shape, 2);
    if (st == MPR_OK) st = mpr_session_bind(n->s, "labels", x, MPR_FLOAT32, shape, 2);
    if (st == MPR_OK) st = mpr_session_forward(n->s, loss);
    if (st == MPR_OK) st = mpr_session_backward(n->s, n->sc);
    if (st == MPR_OK) st = mpr_scaler_unscale(n->sc, n->opt);
    if (st == MPR_OK) st = mpr_optimizer_clip_grad_norm(n->opt, 1, &norm);
    if (st == MPR_OK) st = mpr_scaler_step(n->sc, n->opt, NULL);
    if (st == MPR_OK) st = mpr_scaler_update(n->sc);
    if (st == MPR_OK) st = mpr_session_zero_grad(n->s);
    return st;
}

/* After an update that failed half way: what is open is given up, then the next step is a whole one. */
static void goes_on(Net *n)
{
    float loss = NAN;
    assert_int_equal(mpr_scaler_abandon(n->sc), MPR_OK);
    assert_int_equal(mpr_session_zero_grad(n->s), MPR_OK);
    assert_int_equal(try_step(n, &loss), MPR_OK);
    assert_true(isfinite(loss));
}

/* Opening and five steps, recorded from the second on, with allocation k refused: NOMEM or DEVICE, the
 * session lives where there is one, and all is given back. */
static mpr_status try_net(long k)
{
    Net n = {0};
    LittleModel m = linear(0.5f);
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = "cuda"};
    mpr_session_options o = {
        .size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse", .logits = "y"};
    mpr_adamw ad = {.size = sizeof ad, .learning_rate = 1e-2};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 256};
    float loss;
    shim_fail(SHIM_FAIL_ALLOC, k);
    mpr_status st = mpr_context_create(&co, &n.ctx);
    if (st == MPR_OK) st = mpr_model_load(n.ctx, test_little_file("b.onnx", &m), NULL, &n.model);
    if (st == MPR_OK) st = mpr_session_open(n.model, &o, &n.s);
    if (st == MPR_OK) st = mpr_optimizer_adamw(n.s, &ad, &n.opt);
    if (st == MPR_OK) st = mpr_scaler_create(n.s, &so, &n.sc);
    for (int i = 0; i < 5 && st == MPR_OK; i++) st = try_step(&n, &loss);
    if (st == MPR_E_NOMEM && n.sc) goes_on(&n);
    close_net(&n);
    return st;
}

static void allocation_fails(void **state)
{
    (void)state;
    int failed = 0;
    for (long k = 1; k < 400; k++) {
        mpr_status st = try_net(k);
        assert_string_equal(shim_report(), "");
        shim_revive();
        assert_int_equal(shim_counts()->live, 0);
        if (st == MPR_OK) break;
        assert_true(st == MPR_E_NOMEM || st == MPR_E_DEVICE);
        failed++;
    }
    assert_true(failed > 15);
}

/* The measurements of mpr-bench touch no memory of the device, and little products need little workspace. */
static void rates_and_bill(void **state)
{
    (void)state;
    Net n;
    double seconds = 0;
    mpr_memory_bill bill = {.size = sizeof bill};
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    assert_call(mpr_bench_gemm(n.ctx, 24, 16, 32, MPR_FLOAT16, true, false, 2, &seconds), n.ctx);
    assert_true(seconds > 0);
    bind_rows(&n, 0, N, 1);
    assert_call(mpr_session_forward(n.s, NULL), n.s);
    assert_call(mpr_session_memory(n.s, &bill), n.s);
    assert_true(bill.activations < 65536);
    close_net(&n);
    assert_int_equal(shim_counts()->live, 0);
}

static void out_of_memory_says_how_much(void **state)
{
    (void)state;
    Net n;
    float loss;
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_DTYPE_NONE, NULL);
    bind_rows(&n, 0, N, 1);
    shim_memory(shim_counts()->live_bytes + 1000);
    assert_int_equal(mpr_session_forward(n.s, &loss), MPR_E_NOMEM);
    assert_non_null(strstr(mpr_last_error(n.s).message, "are free"));
    shim_memory(0);
    assert_call(mpr_session_forward(n.s, &loss), n.s);
    close_net(&n);
}

/* False: the training ended before it came to k. */
static bool lost(ShimFailure what, long k, int before)
{
    Net n;
    float loss = 0;
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    for (int i = 0; i < before; i++) step(&n);
    shim_fail(what, k);
    mpr_status st = MPR_OK;
    for (int i = 0; i < 3 && st == MPR_OK; i++) st = try_step(&n, &loss);
    bool came = st != MPR_OK;
    if (came) {
        char first[512];
        assert_int_equal(st, MPR_E_DEVICE);
        assert_int_equal(mpr_session_forward(n.s, &loss), MPR_E_DEVICE);
        snprintf(first, sizeof first, "%s", mpr_last_error(n.s).message);
        assert_non_null(strstr(first, "is lost"));
        bind_rows(&n, 0, N, 1);
        assert_int_equal(mpr_session_forward(n.s, &loss), MPR_E_DEVICE);
        assert_string_equal(first, mpr_last_error(n.s).message);
    }
    shim_fail(what, 0);
    close_net(&n);
    shim_revive();
    return came;
}

static void device_is_lost(void **state)
{
    (void)state;
    shim_quiet(true);
    for (int before = 1; before < 6; before += 4) { /* step by step, and as one graph */
        long calls = 1, kernels = 1;
        while (lost(SHIM_FAIL_LOST, calls, before)) calls += before == 1 ? 5 : 1;
        while (lost(SHIM_FAIL_LAUNCH, kernels, before)) kernels++;
        assert_true(calls > 20 && kernels > 8);
    }
    shim_quiet(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_cpu),      cmocka_unit_test(step_reads_nothing),
        cmocka_unit_test(recorded_or_not),  cmocka_unit_test(rates_and_bill),
        cmocka_unit_test(allocation_fails), cmocka_unit_test(out_of_memory_says_how_much),
        cmocka_unit_test(device_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
