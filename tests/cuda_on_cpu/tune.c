/* How the algorithms of products are chosen, and what the plan says about it. */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/train/session.h"
#include "tests/cuda_on_cpu/control.h"
#include "tests/train/net.h"

/* y = relu(x w1) w2: evaluated in float16 the first product has the relu behind it. */
static void open_relu(Net *n, int tune)
{
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = "cuda", .cuda_tune = tune};
    LittleModel m = {
        .nodes = {{"MatMul", "/a/MatMul", "x w1", "h", NULL}, {"Relu", "/r/Relu", "h", "r", NULL},
                  {"MatMul", "/b/MatMul", "r w2", "y", NULL}},
        .tensors = {{"w1", {D, D, -1}, 0, 0.5f}, {"w2", {D, D, -1}, 0, 0.4f}},
        .inputs = {{"x", MPR_FLOAT32, {-1, D, -99}}},
        .output = "y"};
    mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .eval_autocast = MPR_FLOAT16,
                             .loss = "mse", .logits = "y"};
    mpr_adamw ad = {.size = sizeof ad, .learning_rate = 1e-2};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 256};
    assert_int_equal(mpr_context_create(&co, &n->ctx), MPR_OK);
    assert_call(mpr_model_load(n->ctx, test_little_file("t.onnx", &m), NULL, &n->model), n->ctx);
    assert_call(mpr_session_open(n->model, &o, &n->s), n->model);
    assert_call(mpr_optimizer_adamw(n->s, &ad, &n->opt), n->s);
    assert_call(mpr_scaler_create(n->s, &so, &n->sc), n->s);
}

static int times(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++) n++;
    return n;
}

/* The plan of the evaluation. */
static char *text_of(Net *n)
{
    SessionPlan *sp;
    Text t;
    Err err;
    mpri_err_clear(&err);
    mpri_text_init(&t, mpri_alloc_default());
    assert_int_equal(mpri_session_plan(n->s, MODE_EVAL, &sp, &err), MPR_OK);
    assert_int_equal(mpri_plan_print(sp->plan, &t), MPR_OK);
    return t.text;
}

static void plans_say_how(void **state)
{
    (void)state;
    float loss[2], eval[2];
    for (int tune = 0; tune < 2; tune++) {
        Net n;
        open_relu(&n, tune);
        bind_rows(&n, 0, N, 1);
        for (int i = 0; i < 3; i++) {
            pass(&n, &loss[tune]);
            finish(&n, MPR_STEP_UPDATED);
        }
        assert_call(mpr_session_evaluate(n.s, &eval[tune]), n.s);
        char *text = text_of(&n);
        assert_int_equal(times(text, "by: cuBLASLt algorithm 20"), 2);
        assert_int_equal(times(text, ", number 1 of 3: 1.0 us, the first takes 1.0 us"), tune ? 2 : 0);
        assert_int_equal(times(text, "with relu"), tune);
        assert_int_equal(times(text, "two kernels 2.0 us"), tune);
        mpri_free(mpri_alloc_default(), text);
        close_net(&n);
    }
    assert_true(loss[0] == loss[1] && eval[0] == eval[1]);
    assert_int_equal(shim_counts()->live, 0);
}

/* A shape that was timed is not timed again in another plan. */
static void shapes_are_remembered(void **state)
{
    (void)state;
    Net n;
    SessionPlan *sp;
    Err err;
    long timed[2];
    mpri_err_clear(&err);
    open_relu(&n, 1);
    bind_rows(&n, 0, N, 1);
    for (int i = 0; i < 2; i++) {
        shim_reset_counts();
        assert_int_equal(mpri_session_plan(n.s, MODE_EVAL, &sp, &err), MPR_OK);
        timed[i] = shim_counts()->launches;
        mpri_session_plans_free(n.s);
        n.s->current = NULL;
    }
    assert_true(timed[0] > timed[1] && timed[1] > 0); /* the activation's kernel and the look at NaN remain */
    close_net(&n);
}

/* Without memory to time in, the heuristic's first is taken. */
static void no_memory_to_time_in(void **state)
{
    (void)state;
    Net n;
    open_relu(&n, 1);
    bind_rows(&n, 0, N, 1);
    shim_memory(shim_counts()->live_bytes + (16 << 10));
    Err err;
    SessionPlan *sp;
    mpri_err_clear(&err);
    mpr_status status = mpri_session_plan(n.s, MODE_EVAL, &sp, &err);
    shim_memory(0);
    assert_true(status == MPR_OK || status == MPR_E_NOMEM);
    assert_call(mpr_session_evaluate(n.s, NULL), n.s);
    close_net(&n);
    assert_int_equal(shim_counts()->live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_say_how),
        cmocka_unit_test(shapes_are_remembered),
        cmocka_unit_test(no_memory_to_time_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
