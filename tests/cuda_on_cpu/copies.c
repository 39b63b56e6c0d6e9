/* 16-bit copies of parameters on a device that keeps them: at every time what a Cast would give, whoever
 * wrote the master, and the same training bits as with the Casts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/train/session.h"
#include "tests/cuda_on_cpu/control.h"
#include "tests/train/net.h"

/* Trained in float16, evaluated in bfloat16. */
static void open_two(Net *n, bool keep)
{
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = "cuda"};
    LittleModel m = linear(0.5f);
    mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .eval_autocast = MPR_BFLOAT16,
                             .loss = "mse", .logits = "y"};
    mpr_adamw ad = {.size = sizeof ad, .learning_rate = 1e-2};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p22f, .growth_interval = 3};
    assert_int_equal(mpr_context_create(&co, &n->ctx), MPR_OK);
    assert_call(mpr_model_load(n->ctx, test_little_file("c.onnx", &m), NULL, &n->model), n->ctx);
    assert_call(mpr_session_open(n->model, &o, &n->s), n->model);
    if (!keep) n->s->pass[MODE_TRAIN].keep_copies = n->s->pass[MODE_EVAL].keep_copies = false;
    assert_call(mpr_optimizer_adamw(n->s, &ad, &n->opt), n->s);
    assert_call(mpr_scaler_create(n->s, &so, &n->sc), n->s);
}

static mpr_step_outcome step(Net *n, float *loss)
{
    mpr_step_outcome outcome;
    bind_rows(n, 0, N, 1);
    pass(n, loss);
    assert_call(mpr_scaler_step(n->sc, n->opt, &outcome), n->sc);
    assert_call(mpr_scaler_update(n->sc), n->sc);
    assert_call(mpr_session_zero_grad(n->s), n->s);
    return outcome;
}

static void bytes_of(const Net *n, const char *slot, void *to)
{
    const StoreSlot *s = mpri_store_find(&n->s->store, slot);
    Err err;
    mpri_err_clear(&err);
    assert_non_null(s);
    assert_int_equal(n->s->device->copy_out(n->s->device, to, s->data, s->bytes, &err), MPR_OK);
}

static void assert_fresh(const Net *n, const char *name, const char *type, DType t)
{
    float w[D * D];
    unsigned char have[2 * D * D], want[2 * D * D];
    char slot[64];
    snprintf(slot, sizeof slot, "param:%s", name);
    bytes_of(n, slot, w);
    snprintf(slot, sizeof slot, "copy:%s:%s", type, name);
    bytes_of(n, slot, have);
    for (int i = 0; i < D * D; i++) mpri_store_f64(t, want, i, (double)w[i]);
    assert_memory_equal(have, want, sizeof want);
}

static void all_fresh(const Net *n)
{
    assert_fresh(n, "w1", "f16", MPR_FLOAT16);
    assert_fresh(n, "w2", "f16", MPR_FLOAT16);
    if (n->s->n_copies < 4) return;
    assert_fresh(n, "w1", "bf16", MPR_BFLOAT16);
    assert_fresh(n, "w2", "bf16", MPR_BFLOAT16);
}

static void fresh_after_steps(void **state)
{
    (void)state;
    Net n;
    float loss;
    int skipped = 0, done = 0;
    mpr_memory_bill bill = {.size = sizeof bill};
    open_two(&n, true);
    for (int i = 0; i < 12; i++) {
        if (step(&n, NULL) == MPR_STEP_SKIPPED) skipped++;
        else done++;
        all_fresh(&n);
        if (i == 5) { /* the evaluation brings its own copies, which the optimizer writes from now on */
            assert_call(mpr_session_evaluate(n.s, &loss), n.s);
            assert_int_equal(n.s->n_copies, 4);
            all_fresh(&n);
        }
    }
    assert_true(skipped > 0 && done > 3);
    assert_call(mpr_session_memory(n.s, &bill), n.s);
    assert_int_equal(bill.copies, 4 * D * D * 2);
    assert_int_equal(bill.parameters, 2 * D * D * 4);
    close_net(&n);
    assert_int_equal(shim_counts()->live, 0);
}

/* Losses and weights with copies and with Casts. */
static void same_bits_as_casts(void **state)
{
    (void)state;
    float loss[2][16], eval[2][16], w[2][2 * D * D];
    for (int keep = 0; keep < 2; keep++) {
        Net n;
        open_two(&n, keep);
        for (int i = 0; i < 16; i++) {
            step(&n, &loss[keep][i]);
            assert_call(mpr_session_evaluate(n.s, &eval[keep][i]), n.s);
        }
        assert_int_equal(n.s->n_copies, keep ? 4 : 0);
        weights(&n, w[keep]);
        close_net(&n);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    assert_memory_equal(eval[0], eval[1], sizeof eval[0]);
    assert_memory_equal(w[0], w[1], sizeof w[0]);
}

/* A parameter that is set before the first pass, between steps, and after an evaluation. */
static void fresh_after_set(void **state)
{
    (void)state;
    float loss[2][3], v[D * D];
    for (int keep = 0; keep < 2; keep++) {
        Net n;
        open_two(&n, keep);
        for (int i = 0; i < 3; i++) {
            test_little_fill(v, D * D, 0.3f + 0.2f * (float)i);
            assert_call(mpr_session_parameter_set(n.s, i ? "w2" : "w1", v, D * D), n.s);
            step(&n, &loss[keep][i]);
            if (keep) all_fresh(&n);
            if (i == 1) assert_call(mpr_session_evaluate(n.s, NULL), n.s);
        }
        close_net(&n);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
}

/* Gradients as the caller sees them: scaled, unscaled, clipped once and again, after the step; with a
 * scaler; and what is written by hand between. The same on both devices. */
enum { LOOKS = 8 };

static void look(Net *n, float (*g)[2 * D * D], int *at)
{
    assert_call(mpr_session_gradient_get(n->s, "w1", g[*at], D * D), n->s);
    assert_call(mpr_session_gradient_get(n->s, "w2", g[*at] + D * D, D * D), n->s);
    ++*at;
}

static void gradients_at(const char *device, bool looks, float g[LOOKS][2 * D * D], float *w)
{
    Net n;
    float v[D * D], norm;
    int at = 0;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 24};
    setenv("MPR_TEST_DEVICE", device, 1);
    open_net(&n, 0.5f, MPR_DTYPE_NONE, &so);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    if (looks) look(&n, g, &at);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    if (looks) look(&n, g, &at);
    assert_call(mpr_optimizer_clip_grad_norm(n.opt, 0.01f, &norm), n.opt);
    if (looks) look(&n, g, &at);
    assert_call(mpr_optimizer_clip_grad_norm(n.opt, 0.002f, &norm), n.opt);
    if (looks) look(&n, g, &at);
    assert_call(mpr_scaler_step(n.sc, n.opt, NULL), n.sc);
    if (looks) look(&n, g, &at);
    assert_call(mpr_scaler_update(n.sc), n.sc);
    assert_call(mpr_session_zero_grad(n.s), n.s);
    pass(&n, NULL);
    test_little_fill(v, D * D, 0.1f);
    assert_call(mpr_session_gradient_set(n.s, "w1", v, D * D), n.s);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    if (looks) look(&n, g, &at);
    assert_call(mpr_scaler_step(n.sc, n.opt, NULL), n.sc);
    assert_call(mpr_scaler_update(n.sc), n.sc);
    if (looks) look(&n, g, &at);
    assert_call(mpr_session_zero_grad(n.s), n.s);
    if (looks) look(&n, g, &at);
    assert_true(!looks || at == LOOKS);
    weights(&n, w);
    close_net(&n);
}

static void gradients_are_seen_as_meant(void **state)
{
    (void)state;
    float g[2][LOOKS][2 * D * D], w[3][2 * D * D];
    gradients_at("cpu", true, g[0], w[0]);
    gradients_at("cuda", true, g[1], w[1]);
    gradients_at("cuda", false, NULL, w[2]);
    for (int i = 0; i < LOOKS; i++)
        for (int k = 0; k < 2 * D * D; k++)
            assert_true(fabsf(g[0][i][k] - g[1][i][k]) <= 1e-6f * (fabsf(g[0][i][k]) + 1e-3f));
    for (int k = 0; k < 2 * D * D; k++) assert_true(fabsf(w[0][k] - w[1][k]) < 1e-5f);
    assert_memory_equal(w[1], w[2], sizeof w[1]); /* looking changes nothing */
    assert_int_equal(shim_counts()->live, 0);
}

/* Without autocast nothing is kept. */
static void none_in_float32(void **state)
{
    (void)state;
    Net n;
    mpr_memory_bill bill = {.size = sizeof bill};
    setenv("MPR_TEST_DEVICE", "cuda", 1);
    open_net(&n, 0.5f, MPR_DTYPE_NONE, NULL);
    step(&n, NULL);
    assert_int_equal(n.s->n_copies, 0);
    assert_call(mpr_session_memory(n.s, &bill), n.s);
    assert_int_equal(bill.copies, 0);
    close_net(&n);
}

/* The plan has no Cast of a weight, and says what the copies take. */
static void plan_shows_them(void **state)
{
    (void)state;
    Net n;
    char *text;
    open_two(&n, true);
    bind_rows(&n, 0, N, 1);
    assert_call(mpr_session_plan_print(n.s, &text), n.s);
    assert_non_null(strstr(text, "copy:f16:w1"));
    assert_non_null(strstr(text, "16-bit copies"));
    assert_null(strstr(text, "@ param:w"));
    mpr_free_text(n.ctx, text);
    close_net(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fresh_after_steps), cmocka_unit_test(same_bits_as_casts),
        cmocka_unit_test(fresh_after_set),   cmocka_unit_test(none_in_float32),
        cmocka_unit_test(gradients_are_seen_as_meant),
        cmocka_unit_test(plan_shows_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
