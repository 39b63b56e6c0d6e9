/* Bug reports against loss scaling elsewhere, as tests: each row of the table at the end is one
 * construct that went wrong in some framework, with what must happen here. Scenarios of events
 * stand in tests/data/amp (scaler.c); here are the ones that need a model, a loop or a checkpoint. */
#include "tests/train/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- rows ---- */

static void infinite_for_ever(void)
{
    Net n;
    mpr_scaler_options so = {
        .size = sizeof so, .init_scale = 16, .min_scale = 2, .max_consecutive_skips = 6};
    mpr_status status = MPR_OK;
    int steps = 0;
    open_net(&n, 6e4f, MPR_FLOAT16, &so);
    for (; status == MPR_OK; steps++) {
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        mpr_step_outcome outcome;
        assert_call(mpr_scaler_step(n.sc, n.opt, &outcome), n.sc);
        assert_int_equal(outcome, MPR_STEP_SKIPPED);
        status = mpr_scaler_update(n.sc);
        assert_true(mpr_scaler_scale(n.sc) >= 2);
        assert_call(mpr_session_zero_grad(n.s), n.s);
    }
    assert_int_equal(status, MPR_E_NONFINITE);
    assert_int_equal(steps, 6);
    assert_true(mpr_scaler_scale(n.sc) == 2);
    assert_non_null(strstr(mpr_last_error(n.sc).message, "/b/MatMul"));
    close_net(&n);
}

static void never_below_the_floor(void)
{
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 4, .max_consecutive_skips = -1};
    open_net(&n, 6e4f, MPR_FLOAT16, &so);
    for (int i = 0; i < 200; i++) {
        bind_rows(&n, 0, 1, 1);
        pass(&n, NULL);
        finish(&n, MPR_STEP_SKIPPED);
    }
    assert_true(mpr_scaler_scale(n.sc) == 1);
    assert_int_equal(state_of(&n).skips, 200);
    close_net(&n);
}

/* The gradient is finite while it is scaled by a small number, and not after. */
static void overflow_on_unscale(void)
{
    Net n;
    mpr_scaler_options so = {
        .size = sizeof so, .init_scale = 0x1p-120f, .torch_preset = true};
    float g[D * D], before[2 * D * D], after[2 * D * D];
    open_net(&n, 0.5f, MPR_DTYPE_NONE, &so);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    for (int i = 0; i < D * D; i++) g[i] = 1024;
    assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
    weights(&n, before);
    finish(&n, MPR_STEP_SKIPPED);
    weights(&n, after);
    assert_memory_equal(before, after, sizeof before);
    close_net(&n);
}

static void large_norm(void)
{
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 1};
    float g[D * D], norm;
    open_net(&n, 0.5f, MPR_DTYPE_NONE, &so);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    for (int i = 0; i < D * D; i++) g[i] = 1e25f;
    assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
    for (int i = 0; i < D * D; i++) g[i] = 0;
    assert_call(mpr_session_gradient_set(n.s, "w2", g, D * D), n.s);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    assert_call(mpr_optimizer_clip_grad_norm(n.opt, 1, &norm), n.opt);
    assert_true(fabsf(norm - 4e25f) <= 1e-6f * 4e25f);
    assert_call(mpr_session_gradient_get(n.s, "w1", g, D * D), n.s);
    assert_true(fabsf(g[3] - 0.25f) < 1e-6f);
    finish(&n, MPR_STEP_UPDATED);
    close_net(&n);
}

/* The same for gradients that are large because they are scaled. */
static void large_scale(void)
{
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p60f, .torch_preset = true};
    float g[D * D], norm;
    open_net(&n, 0.5f, MPR_DTYPE_NONE, &so);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    for (int i = 0; i < D * D; i++) g[i] = 3 * 0x1p60f;
    assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
    for (int i = 0; i < D * D; i++) g[i] = 0;
    assert_call(mpr_session_gradient_set(n.s, "w2", g, D * D), n.s);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    assert_call(mpr_optimizer_clip_grad_norm(n.opt, 1, &norm), n.opt);
    assert_true(norm == 12);
    assert_call(mpr_session_gradient_get(n.s, "w1", g, D * D), n.s);
    assert_true(fabsf(g[3] - 0.25f) < 1e-6f);
    finish(&n, MPR_STEP_UPDATED);
    close_net(&n);
}

/* What a state may not hold; the scaler stays as it was. */
static void states_that_are_refused(void)
{
    static const char *const bad[] = {
        "\"scale\": \"inf\"", "\"scale\": 0", "\"scale\": -2.0", "\"scale\": 1e60",
        "\"scale\": 1e-50", "\"scale\": \"nan\"", "\"scale\": NaN", "\"scale\": null",
        "\"growth_interval\": 0", "\"growth_interval\": -1", "\"growth_interval\": 2.5",
        "\"growth_interval\": 4294967297", "\"growth_factor\": 1", "\"growth_factor\": \"inf\"",
        "\"backoff_factor\": 1", "\"backoff_factor\": 0", "\"_growth_tracker\": -1",
        "\"min_scale\": 0", "\"min_scale\": 1e30", "\"max_scale\": 8", "\"hysteresis\": 0",
        "\"hysteresis_left\": 3", "\"hysteresis_left\": -1", "\"skips\": 1e300",
        "\"constant\": 1"};
    Net n;
    char *before, *after, text[512];
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    assert_call(mpr_scaler_save(n.sc, &before), n.sc);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        static const char *const good[] = {
            "\"scale\": 16.0", "\"growth_factor\": 2.0", "\"backoff_factor\": 0.5",
            "\"growth_interval\": 5", "\"_growth_tracker\": 4"};
        int used = snprintf(text, sizeof text, "{%s", bad[i]);
        for (int k = 0; k < 5; k++) /* without the member that is bad */
            if (strncmp(good[k], bad[i], strcspn(bad[i], ":")))
                used += snprintf(text + used, sizeof text - (size_t)used, ", %s", good[k]);
        snprintf(text + used, sizeof text - (size_t)used, "}");
        if (mpr_scaler_load(n.sc, text) != MPR_E_CHECKPOINT) fail_msg("%s", text);
        assert_call(mpr_scaler_save(n.sc, &after), n.sc);
        assert_string_equal(before, after);
        mpr_free_text(n.ctx, after);
    }
    mpr_free_text(n.ctx, before);
    close_net(&n);
}

/* At the cap a growth event is one like any other: the tracker starts anew, the scale stays. */
static void growth_at_the_cap(void)
{
    Net n;
    mpr_scaler_options so = {
        .size = sizeof so, .init_scale = 96, .max_scale = 100, .growth_interval = 2};
    const float want[] = {96, 100, 100, 100, 100};
    const int tracker[] = {1, 0, 1, 0, 1};
    open_net(&n, 0.5f, MPR_FLOAT16, &so);
    for (int i = 0; i < 5; i++) {
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        finish(&n, MPR_STEP_UPDATED);
        assert_true(mpr_scaler_scale(n.sc) == want[i]);
        assert_int_equal(state_of(&n).growth_tracker, tracker[i]);
    }
    close_net(&n);
}

/* Lowered in the middle, hysteresis leaves no more units than it has now. */
static void hysteresis_lowered(void)
{
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 64, .hysteresis = 4};
    float g[D * D] = {NAN};
    open_net(&n, 0.5f, MPR_FLOAT16, &so);
    assert_call(mpr_scaler_set(n.sc, "hysteresis", 2), n.sc);
    for (int i = 0; i < 3; i++) {
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
        finish(&n, MPR_STEP_SKIPPED);
        assert_true(mpr_scaler_scale(n.sc) == (i == 0 ? 64 : i == 1 ? 32 : 16));
    }
    close_net(&n);
}

/* A scale set by hand in the middle: from the next loss on, tracker kept; a bad one changes nothing. */
static void scale_set_by_hand(void)
{
    Net n;
    const float bad[] = {0, -1, NAN, INFINITY, 0.5f, 0x1p25f};
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    for (int i = 0; i < 2; i++) {
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        finish(&n, MPR_STEP_UPDATED);
    }
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(mpr_scaler_update_to(n.sc, bad[i]), MPR_E_USAGE);
    assert_call(mpr_scaler_update_to(n.sc, 1000), n.sc); /* the window is given up */
    assert_true(mpr_scaler_scale(n.sc) == 1000 && state_of(&n).growth_tracker == 2);
    assert_int_equal(mpr_scaler_step(n.sc, n.opt, NULL), MPR_E_ORDER); /* its gradients are old */
    assert_call(mpr_session_zero_grad(n.s), n.s);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    finish(&n, MPR_STEP_UPDATED);
    assert_true(state_of(&n).growth_tracker == 3 && state_of(&n).updates == 3);
    close_net(&n);
}

static void clip_before_unscale(void)
{
    Net n, f;
    float a, b;
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    open_net(&f, 0.5f, MPR_DTYPE_NONE, NULL);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_int_equal(mpr_optimizer_clip_grad_norm(n.opt, 1, &a), MPR_E_ORDER);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    assert_call(mpr_optimizer_clip_grad_norm(n.opt, 1, &a), n.opt);
    bind_rows(&f, 0, N, 1);
    pass(&f, NULL);
    assert_call(mpr_scaler_unscale(f.sc, f.opt), f.sc);
    assert_call(mpr_optimizer_clip_grad_norm(f.opt, 1, &b), f.opt);
    assert_true(fabsf(a - b) < 0.01f * b);
    close_net(&n);
    close_net(&f);
}

static void explicit_or_implied_unscale(void)
{
    float w[2][2 * D * D];
    for (int k = 0; k < 2; k++) {
        Net n;
        open_net(&n, 0.5f, MPR_FLOAT16, NULL);
        for (int i = 0; i < 3; i++) {
            bind_rows(&n, 0, N, 1);
            pass(&n, NULL);
            if (k) assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
            finish(&n, MPR_STEP_UPDATED);
        }
        weights(&n, w[k]);
        close_net(&n);
    }
    assert_memory_equal(w[0], w[1], sizeof w[0]);
}

static void no_gradients(void)
{
    Net n;
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_call(mpr_scaler_abandon(n.sc), n.sc);
    assert_call(mpr_session_zero_grad(n.s), n.s);
    finish(&n, MPR_STEP_NOTHING);
    assert_int_equal(state_of(&n).empty, 1);
    assert_int_equal(state_of(&n).growth_tracker, 0);
    assert_true(mpr_scaler_scale(n.sc) == 256);
    close_net(&n);
}

static void own_decision_to_skip(void)
{
    Net n;
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    for (int k = 0; k < 2; k++) {
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
        if (k) assert_call(mpr_scaler_update(n.sc), n.sc);
        else assert_call(mpr_scaler_abandon(n.sc), n.sc);
        assert_call(mpr_session_zero_grad(n.s), n.s);
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        finish(&n, MPR_STEP_UPDATED);
    }
    close_net(&n);
}

static void two_optimizers(void)
{
    Net n;
    mpr_optimizer *one, *two;
    const char *first[] = {"w1", NULL}, *second[] = {"w2", NULL};
    mpr_sgd a = {.size = sizeof a, .learning_rate = 1, .parameters = first};
    mpr_sgd b = {.size = sizeof b, .learning_rate = 1, .parameters = second};
    float g[D * D], before[2 * D * D], after[2 * D * D], norm;
    mpr_step_outcome x, y;
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    mpr_optimizer_destroy(n.opt);
    assert_call(mpr_optimizer_sgd(n.s, &a, &one), n.s);
    assert_call(mpr_optimizer_sgd(n.s, &b, &two), n.s);
    assert_int_equal(mpr_optimizer_sgd(n.s, &b, &n.opt), MPR_E_USAGE); /* a second owner */
    n.opt = NULL;
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_call(mpr_session_gradient_get(n.s, "w1", g, D * D), n.s);
    g[5] = NAN;
    assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
    weights(&n, before);
    assert_call(mpr_scaler_unscale(n.sc, one), n.sc);
    assert_call(mpr_scaler_unscale(n.sc, two), n.sc);
    assert_call(mpr_optimizer_clip_grad_norm(one, 1, &norm), one);
    assert_true(isnan(norm));
    assert_call(mpr_optimizer_clip_grad_norm(two, 1, &norm), two);
    assert_true(isfinite(norm));
    assert_int_equal(mpr_scaler_unscale(n.sc, two), MPR_E_ORDER); /* not a second time */
    assert_call(mpr_scaler_step(n.sc, one, &x), n.sc);
    assert_call(mpr_scaler_step(n.sc, two, &y), n.sc);
    assert_call(mpr_scaler_update(n.sc), n.sc);
    assert_int_equal(x, MPR_STEP_SKIPPED);
    assert_int_equal(y, MPR_STEP_UPDATED);
    assert_true(mpr_scaler_scale(n.sc) == 128);
    weights(&n, after);
    assert_memory_equal(before, after, D * D * sizeof(float));
    assert_memory_not_equal(before + D * D, after + D * D, D * D * sizeof(float));
    mpr_optimizer_destroy(one);
    mpr_optimizer_destroy(two);
    close_net(&n);
}

static void state_both_ways(void)
{
    static const char torch[] = "{\"scale\": 256.0, \"growth_factor\": 2.0, \"backoff_factor\": "
                                "0.5, \"growth_interval\": 5, \"_growth_tracker\": 4}";
    Net n;
    char *one, *two;
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    assert_call(mpr_scaler_load(n.sc, torch), n.sc);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    assert_int_equal(mpr_scaler_save(n.sc, &one), MPR_E_ORDER);
    finish(&n, MPR_STEP_UPDATED);
    assert_true(mpr_scaler_scale(n.sc) == 512); /* the fifth clean one */
    assert_call(mpr_scaler_save(n.sc, &one), n.sc);
    assert_call(mpr_scaler_load(n.sc, one), n.sc);
    assert_call(mpr_scaler_save(n.sc, &two), n.sc);
    assert_string_equal(one, two);
    assert_int_equal(mpr_scaler_load(n.sc, "{}"), MPR_E_CHECKPOINT);
    assert_int_equal(mpr_scaler_load(n.sc, "{\"scale\": 1e30, \"growth_factor\": 2.0, "
                                           "\"backoff_factor\": 0.5, \"growth_interval\": 5, "
                                           "\"_growth_tracker\": 4}"),
                     MPR_E_CHECKPOINT);
    assert_true(mpr_scaler_scale(n.sc) == 512);
    mpr_free_text(n.ctx, one);
    mpr_free_text(n.ctx, two);
    close_net(&n);
}

/* A loss of a million in float16: only a scale below 1 lets its gradient through. */
static void floor_below_one(void)
{
    for (int low = 0; low < 2; low++) {
        Net n;
        mpr_scaler_options so = {.size = sizeof so,
                                 .init_scale = 1,
                                 .min_scale = low ? 0x1p-20f : 1,
                                 .max_consecutive_skips = -1};
        open_net(&n, 0.5f, MPR_FLOAT16, &so);
        int updated = 0;
        for (int i = 0; i < 24; i++) {
            mpr_step_outcome outcome;
            bind_rows(&n, 0, N, 2e6f);
            pass(&n, NULL);
            assert_call(mpr_scaler_step(n.sc, n.opt, &outcome), n.sc);
            assert_call(mpr_scaler_update(n.sc), n.sc);
            assert_call(mpr_session_zero_grad(n.s), n.s);
            updated += outcome == MPR_STEP_UPDATED;
        }
        assert_int_equal(updated > 0, low);
        close_net(&n);
    }
}

/* The same eight samples in windows of 1 x 8, 2 x 4, 4 x 2 and 8 x 1. */
static void windows_of_one_batch(void)
{
    float first_loss = 0, first[2 * D * D], w[2 * D * D];
    for (int micro = 1; micro <= N; micro *= 2) {
        Net n;
        mpr_prepare_options po = {.size = sizeof po, .gradient_accumulation_steps = micro};
        mpr_prepared *p;
        mpr_step_result r = {0};
        open_net(&n, 0.5f, MPR_DTYPE_NONE, NULL);
        mpr_scaler_destroy(n.sc);
        n.sc = NULL;
        assert_call(mpr_prepare(n.s, n.opt, NULL, NULL, &po, &p), n.s);
        for (int i = 0; i < micro; i++) {
            bind_rows(&n, i * N / micro, N / micro, 1);
            assert_call(mpr_prepared_backward(p, NULL), p);
            assert_call(mpr_prepared_step(p, &r), p);
        }
        assert_false(r.window_open);
        assert_int_equal(r.outcome, MPR_STEP_UPDATED);
        weights(&n, w);
        if (micro == 1) first_loss = r.loss, memcpy(first, w, sizeof w);
        assert_true(fabsf(r.loss - first_loss) <= 1e-6f * first_loss);
        for (int i = 0; i < 2 * D * D; i++) assert_true(fabsf(w[i] - first[i]) < 1e-6f);
        mpr_prepared_destroy(p);
        close_net(&n);
    }
}

/* A product whose sum is 66250: named, and finite once its node is kept in float32. */
static void product_of_66250(void)
{
    for (int kept = 0; kept < 2; kept++) {
        const LittleModel m = {.nodes = {{"MatMul", "/attn/MatMul", "x w", "y", NULL}},
                               .tensors = {{"w", {2, 2, -1}, 182, 0}},
                               .inputs = {{"x", MPR_FLOAT32, {-1, 2, -99}}},
                               .output = "y"};
        const char *keep[] = {"/attn/MatMul", NULL};
        mpr_session_options o = {.size = sizeof o,
                                 .autocast = MPR_FLOAT16,
                                 .loss = "mse",
                                 .keep_fp32 = kept ? keep : NULL};
        mpr_context_options co = {.size = sizeof co, .device = TEST_DEVICE, .threads = 1};
        float x[2] = {182, 182}, y[2] = {0, 0}, loss;
        Net n = {0};
        assert_int_equal(mpr_context_create(&co, &n.ctx), MPR_OK);
        assert_call(mpr_model_load(n.ctx, test_little_file("p.onnx", &m), NULL, &n.model), n.ctx);
        assert_call(mpr_session_open(n.model, &o, &n.s), n.model);
        assert_call(mpr_session_bind(n.s, "x", x, MPR_FLOAT32, (int64_t[]){1, 2}, 2), n.s);
        assert_call(mpr_session_bind(n.s, "labels", y, MPR_FLOAT32, (int64_t[]){1, 2}, 2), n.s);
        assert_call(mpr_session_forward(n.s, &loss), n.s);
        mpr_nonfinite f = {.size = sizeof f};
        assert_call(mpr_session_find_nonfinite(n.s, &f), n.s);
        assert_int_equal(isfinite(loss) != 0, kept);
        assert_int_equal(f.found, !kept);
        if (!kept) assert_string_equal(f.node, "/attn/MatMul");
        close_net(&n);
    }
}

/* ---- the table ---- */

static const struct {
    const char *construct;
    void (*run)(void);
} rows[] = {
    {"logits infinite in every step: stop after N with the node, scale at its floor",
     infinite_for_ever},
    {"200 steps of overflow: never below the floor", never_below_the_floor},
    {"scale 2^-120, gradient 2^10: flagged, skipped", overflow_on_unscale},
    {"gradients of 1e25: finite norm, right clip", large_norm},
    {"gradients scaled by 2^60: finite norm, right clip", large_scale},
    {"states with values that no scaler has: refused, nothing changes", states_that_are_refused},
    {"growth at the cap: the tracker starts anew", growth_at_the_cap},
    {"hysteresis lowered while it runs: no more units than it has", hysteresis_lowered},
    {"a scale set by hand within a window", scale_set_by_hand},
    {"clip before unscale: an order error; the right order gives the norm of float32",
     clip_before_unscale},
    {"explicit unscale and step, or step alone: the same parameters", explicit_or_implied_unscale},
    {"optimizer of parameters without gradients: nothing done, counted", no_gradients},
    {"unscale, then an own decision not to step", own_decision_to_skip},
    {"two optimizers, NaN in one: one skips, one update, unscaled once", two_optimizers},
    {"state from torch; save, load, save: the same bytes; {} and bad values refused",
     state_both_ways},
    {"a loss of a million in float16: the floor may lie below 1", floor_below_one},
    {"8 samples as 1x8, 2x4, 4x2, 8x1: the same loss and update", windows_of_one_batch},
    {"a product of 66250 in float16: its node is named and can be pinned", product_of_66250},
};

static void all_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        print_message("%s\n", rows[i].construct);
        rows[i].run();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
