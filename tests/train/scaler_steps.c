/* What a training step may do with the loss scale: nothing is read back inside a step, gradients of
 * different scales are never added, and numbers on the edge come out right. */
#include "tests/train/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/train/optimizer.h"
#include "runtime/train/scaler.h"

/* ---- a device whose memory the host cannot look into ---- */

static int reads;
static mpr_status (*plain_copy)(Device *d, void *dst, const void *src, size_t bytes, Err *err);

static mpr_status counted_copy(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    reads++;
    return plain_copy(d, dst, src, bytes, err);
}

static void make_remote(const Net *n)
{
    Device *d = n->s->device;
    plain_copy = d->copy_out;
    d->copy_out = counted_copy;
    d->shared = false;
    reads = 0;
}

static void blind_step(Net *n)
{
    bind_rows(n, 0, N, 1);
    pass(n, NULL);
    assert_call(mpr_scaler_unscale(n->sc, n->opt), n->sc);
    assert_call(mpr_optimizer_clip_grad_norm(n->opt, 1, NULL), n->opt);
    assert_call(mpr_scaler_step(n->sc, n->opt, NULL), n->sc);
    assert_call(mpr_scaler_update(n->sc), n->sc);
    assert_call(mpr_session_zero_grad(n->s), n->s);
}

/* The same scales, counters and weights as where every number is looked at. */
static void nothing_read_in_a_step(void **state)
{
    (void)state;
    float w[2][2 * D * D];
    mpr_scaler_state st[2];
    for (int remote = 0; remote < 2; remote++) {
        Net n;
        mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p22f, .growth_interval = 3};
        open_net(&n, 0.5f, MPR_FLOAT16, &so);
        if (remote) make_remote(&n);
        for (int i = 0; i < 24; i++) blind_step(&n);
        assert_true(!remote || reads == 0);
        st[remote] = state_of(&n);
        mpr_step_outcome outcome;
        assert_call(mpr_scaler_outcome(n.sc, n.opt, &outcome), n.sc);
        assert_true(outcome == MPR_STEP_UPDATED || outcome == MPR_STEP_SKIPPED);
        assert_true(!remote || reads == 2);
        weights(&n, w[remote]);
        close_net(&n);
    }
    assert_true(st[0].skips > 0 && st[0].updates > 3 && st[0].skips + st[0].updates == 24);
    assert_memory_equal(&st[0], &st[1], sizeof st[0]);
    assert_memory_equal(w[0], w[1], sizeof w[0]);
}

/* A run of skips is told by the first update after the numbers were read. */
static void divergence_is_told_later(void **state)
{
    (void)state;
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 8, .max_consecutive_skips = 3};
    open_net(&n, 6e4f, MPR_FLOAT16, &so);
    make_remote(&n);
    for (int i = 0; i < 4; i++) blind_step(&n);
    assert_int_equal(state_of(&n).skips_in_row, 4);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_call(mpr_scaler_step(n.sc, n.opt, NULL), n.sc);
    assert_int_equal(mpr_scaler_update(n.sc), MPR_E_NONFINITE);
    assert_non_null(strstr(mpr_last_error(n.sc).message, "last loss scales 8, 4, 2"));
    close_net(&n);
}

static void outcome_of_a_disabled_scaler(void **state)
{
    (void)state;
    Net n;
    mpr_scaler_options so = {.size = sizeof so, .disabled = true};
    mpr_step_outcome outcome;
    open_net(&n, 0.5f, MPR_DTYPE_NONE, &so);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_call(mpr_scaler_step(n.sc, n.opt, NULL), n.sc);
    assert_call(mpr_scaler_outcome(n.sc, n.opt, &outcome), n.sc);
    assert_int_equal(outcome, MPR_STEP_UPDATED);
    assert_call(mpr_session_zero_grad(n.s), n.s);
    assert_call(mpr_scaler_step(n.sc, n.opt, NULL), n.sc);
    assert_call(mpr_scaler_outcome(n.sc, n.opt, &outcome), n.sc);
    assert_int_equal(outcome, MPR_STEP_NOTHING);
    close_net(&n);
}

/* An outcome is that of its own step, also after the next window was unscaled and given up. */
static void outcome_outlives_the_next_unscale(void **state)
{
    (void)state;
    Net n;
    mpr_step_outcome outcome;
    float g[D * D] = {NAN};
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    blind_step(&n);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
    assert_call(mpr_scaler_unscale(n.sc, n.opt), n.sc);
    assert_call(mpr_scaler_outcome(n.sc, n.opt, &outcome), n.sc);
    assert_int_equal(outcome, MPR_STEP_UPDATED);
    assert_call(mpr_scaler_abandon(n.sc), n.sc);
    assert_call(mpr_session_zero_grad(n.s), n.s);
    bind_rows(&n, 0, N, 1);
    pass(&n, NULL);
    finish(&n, MPR_STEP_UPDATED);
    assert_int_equal(state_of(&n).skips, 0);
    close_net(&n);
}

/* ---- what may be added to a gradient ---- */

static mpr_status backward(Net *n, mpr_scaler *by)
{
    bind_rows(n, 0, N, 1);
    assert_call(mpr_session_forward(n->s, NULL), n->s);
    return mpr_session_backward(n->s, by);
}

static void one_scale_for_a_window(void **state)
{
    (void)state;
    Net n;
    mpr_scaler *other;
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 4};
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    assert_call(mpr_scaler_create(n.s, &so, &other), n.s);
    mpr_scaler *const by[] = {NULL, n.sc, other};
    for (int first = 0; first < 3; first++)
        for (int second = 0; second < 3; second++) {
            assert_int_equal(backward(&n, by[first]), MPR_OK);
            mpr_status status = backward(&n, by[second]);
            assert_int_equal(status, first == second ? MPR_OK : MPR_E_ORDER);
            if (status != MPR_OK) assert_non_null(strstr(mpr_last_error(n.s).message, "'w"));
            assert_call(mpr_session_zero_grad(n.s), n.s);
        }
    for (int k = 0; k < 3; k += 2) { /* not scaled, or by another one */
        assert_int_equal(backward(&n, n.sc), MPR_OK); /* it has scaled a loss before */
        assert_call(mpr_session_zero_grad(n.s), n.s);
        assert_int_equal(backward(&n, by[k]), MPR_OK);
        assert_int_equal(mpr_scaler_unscale(n.sc, n.opt), MPR_E_ORDER);
        assert_int_equal(mpr_scaler_step(n.sc, n.opt, NULL), MPR_E_ORDER);
        assert_call(mpr_session_zero_grad(n.s), n.s);
    }
    assert_int_equal(backward(&n, n.sc), MPR_OK);
    finish(&n, MPR_STEP_UPDATED);
    mpr_scaler_destroy(other);
    close_net(&n);
}

/* A gradient that is not float32 cannot arise in a session; one made by hand is refused by name. */
static void gradient_of_another_type(void **state)
{
    (void)state;
    static const mpr_dtype types[] = {MPR_FLOAT16, MPR_BFLOAT16, MPR_FLOAT64};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        Net n;
        Err err;
        StoreSlot *slot;
        float before[2 * D * D], after[2 * D * D];
        mpri_err_clear(&err);
        open_net(&n, 0.5f, MPR_DTYPE_NONE, NULL);
        SessionParam *p = &n.s->params[1];
        assert_ok(mpri_session_slot(n.s, p->grad_slot, SLOT_GRAD, types[i], &p->shape, p->index,
                                    &slot, &err),
                  &err);
        p->present = true;
        weights(&n, before);
        mpri_scaler_begin(n.sc);
        mpr_status got[] = {mpr_scaler_unscale(n.sc, n.opt), mpr_scaler_step(n.sc, n.opt, NULL),
                            mpr_optimizer_clip_grad_norm(n.opt, 1, NULL),
                            mpr_optimizer_step(n.opt, NULL)};
        for (size_t k = 0; k < sizeof got / sizeof *got; k++)
            assert_int_equal(got[k], MPR_E_TYPE);
        assert_non_null(strstr(mpr_last_error(n.sc).message, "'w2'"));
        assert_non_null(strstr(mpr_last_error(n.opt).message, "'w2'"));
        weights(&n, after);
        assert_memory_equal(before, after, sizeof before);
        close_net(&n);
    }
}

/* ---- numbers ---- */

static void adam_without_gradient(void **state)
{
    (void)state;
    Net n;
    const float zero[D * D] = {0};
    float before[2 * D * D], after[2 * D * D];
    open_net(&n, 0.5f, MPR_FLOAT16, NULL);
    weights(&n, before);
    for (int i = 0; i < 3; i++) {
        bind_rows(&n, 0, N, 1);
        pass(&n, NULL);
        assert_call(mpr_session_gradient_set(n.s, "w1", zero, D * D), n.s);
        assert_call(mpr_session_gradient_set(n.s, "w2", zero, D * D), n.s);
        finish(&n, MPR_STEP_UPDATED);
    }
    weights(&n, after);
    assert_memory_equal(before, after, sizeof before);
    close_net(&n);
}

static void open_model(Net *n, const LittleModel *m, const char *loss)
{
    mpr_context_options co = {.size = sizeof co, .device = TEST_DEVICE, .threads = 1};
    mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .loss = loss};
    mpr_sgd sgd = {.size = sizeof sgd, .learning_rate = 1};
    *n = (Net){0};
    assert_int_equal(mpr_context_create(&co, &n->ctx), MPR_OK);
    assert_call(mpr_model_load(n->ctx, test_little_file("e.onnx", m), NULL, &n->model), n->ctx);
    assert_call(mpr_session_open(n->model, &o, &n->s), n->model);
    assert_call(mpr_optimizer_sgd(n->s, &sgd, &n->opt), n->s);
    assert_call(mpr_scaler_create(n->s, NULL, &n->sc), n->s);
}

/* One row of a table read 12500 times, 0.01 in float16 flowing back each time: summed in float32. */
static void embedding_of_many_repeats(void **state)
{
    (void)state;
    enum { REPEATS = 12500 };
    const LittleModel m = {.nodes = {{"Gather", "/e/Gather", "w ids", "h", NULL},
                                     {"MatMul", "/e/MatMul", "h v", "y", NULL}},
                           .tensors = {{"w", {3, 1, -1}, 0, 0}, {"v", {1, 1, -1}, 1, 0}},
                           .inputs = {{"ids", MPR_INT64, {-1, -99}}},
                           .output = "y"};
    static int64_t ids[REPEATS];
    static float labels[REPEATS];
    float g[3];
    Net n;
    open_model(&n, &m, "mse");
    for (int i = 0; i < REPEATS; i++) ids[i] = 1, labels[i] = -0.01f * REPEATS / 2;
    assert_call(mpr_session_bind(n.s, "ids", ids, MPR_INT64, (int64_t[]){REPEATS}, 1), n.s);
    assert_call(mpr_session_bind(n.s, "labels", labels, MPR_FLOAT32, (int64_t[]){REPEATS, 1}, 2),
                n.s);
    assert_call(mpr_session_forward(n.s, NULL), n.s);
    assert_call(mpr_session_backward(n.s, NULL), n.s);
    assert_call(mpr_session_gradient_get(n.s, "w", g, 3), n.s);
    if (!(fabsf(g[1] - 125.027f) < 5e-3f)) fail_msg("%g", (double)g[1]);
    assert_true(g[0] == 0 && g[2] == 0);
    close_net(&n);
}

/* One token under scale 65536: its gradient 1 - p rounds to infinity in float16 at p = 1e-4, and to
 * 65504 at p = 3e-4. */
static void one_token(void **state)
{
    (void)state;
    static const double ps[] = {1e-4, 3e-4};
    const LittleModel m = {.nodes = {{"MatMul", "/head/MatMul", "x w", "y", NULL}},
                           .tensors = {{"w", {1, 2, -1}, 1, 0}},
                           .inputs = {{"x", MPR_FLOAT32, {-1, 1, -99}}},
                           .output = "y"};
    for (int i = 0; i < 2; i++) {
        Net n;
        const float half = (float)(log((1 - ps[i]) / ps[i]) / 2), w[2] = {half, -half}, x = 1;
        const int64_t label = 1;
        mpr_step_outcome outcome;
        open_model(&n, &m, "cross-entropy");
        assert_call(mpr_session_parameter_set(n.s, "w", w, 2), n.s);
        assert_call(mpr_session_bind(n.s, "x", &x, MPR_FLOAT32, (int64_t[]){1, 1}, 2), n.s);
        assert_call(mpr_session_bind(n.s, "labels", &label, MPR_INT64, (int64_t[]){1}, 1), n.s);
        pass(&n, NULL);
        assert_call(mpr_scaler_step(n.sc, n.opt, &outcome), n.sc);
        assert_call(mpr_scaler_update(n.sc), n.sc);
        assert_int_equal(outcome, i ? MPR_STEP_UPDATED : MPR_STEP_SKIPPED);
        assert_true(mpr_scaler_scale(n.sc) == (i ? 65536 : 32768));
        close_net(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_read_in_a_step),
        cmocka_unit_test(divergence_is_told_later),
        cmocka_unit_test(outcome_of_a_disabled_scaler),
        cmocka_unit_test(outcome_outlives_the_next_unscale),
        cmocka_unit_test(one_scale_for_a_window),
        cmocka_unit_test(gradient_of_another_type),
        cmocka_unit_test(adam_without_gradient),
        cmocka_unit_test(embedding_of_many_repeats),
        cmocka_unit_test(one_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
