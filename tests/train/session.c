/* Sessions through the public header: handles and arguments, order of calls, accumulation, outputs,
 * export. */
#include "tests/train/digits.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static void wrong_handles(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    assert_int_equal(mpr_last_error(NULL).code, MPR_E_USAGE);
    assert_int_equal(mpr_session_forward(NULL, NULL), MPR_E_USAGE);
    assert_int_equal(mpr_session_forward((mpr_session *)(void *)d.model, NULL), MPR_E_USAGE);
    assert_non_null(strstr(mpr_last_error(d.model).message, "session"));
    assert_int_equal(mpr_scaler_unscale(NULL, NULL), MPR_E_USAGE);
    assert_int_equal(mpr_session_bind(s, NULL, NULL, MPR_FLOAT32, NULL, 0), MPR_E_USAGE);
    assert_int_equal(mpr_session_open(d.model, NULL, NULL), MPR_E_USAGE);
    mpr_scaler *sc;
    assert_call(mpr_scaler_create(s, NULL, &sc), s);
    assert_int_equal(mpr_scaler_unscale(sc, NULL), MPR_E_USAGE);
    assert_int_equal(mpr_scaler_unscale(sc, (mpr_optimizer *)(void *)s), MPR_E_USAGE);
    mpr_session *other = digits_session(&d, MPR_DTYPE_NONE);
    assert_int_equal(mpr_session_backward(other, sc), MPR_E_USAGE);
    mpr_session_options o = {.size = 3};
    mpr_session *bad;
    assert_int_equal(mpr_session_open(d.model, &o, &bad), MPR_E_USAGE);
    struct {
        mpr_session_options o;
        char more[64];
    } newer;
    memset(&newer, 0, sizeof(newer));
    newer.o.size = sizeof(newer);
    assert_call(mpr_session_open(d.model, &newer.o, &bad),
                d.model); /* unknown fields that are zero */
    mpr_session_close(bad);
    newer.more[5] = 1;
    assert_int_equal(mpr_session_open(d.model, &newer.o, &bad), MPR_E_USAGE);
    mpr_session_close(NULL);
    mpr_scaler_destroy(sc);
    mpr_session_close(other);
    mpr_session_close(s);
    digits_close(&d);
}

static void bind_errors(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    int64_t xs[2] = {2, 64}, wide[2] = {2, 65}, ys[1] = {2}, three[1] = {3};
    int64_t bad_label[2] = {3, 10};
    int32_t labels32[3] = {1, 2, 3};
    float loss;
    assert_int_equal(mpr_session_bind(s, "z", d.x.data, MPR_FLOAT32, xs, 2), MPR_E_DATA);
    assert_non_null(strstr(mpr_last_error(s).message, "'x', 'labels'"));
    assert_int_equal(mpr_session_bind(s, "x", d.x.data, MPR_FLOAT32, wide, 2), MPR_E_SHAPE);
    assert_non_null(strstr(mpr_last_error(s).message, "65"));
    assert_int_equal(mpr_session_bind(s, "x", d.x.data, MPR_FLOAT32, xs, 1), MPR_E_SHAPE);
    assert_int_equal(mpr_session_bind(s, "x", d.x.data, MPR_FLOAT64, xs, 2), MPR_E_TYPE);
    assert_int_equal(mpr_session_forward(s, NULL), MPR_E_DATA);
    assert_non_null(strstr(mpr_last_error(s).message, "'x'"));
    assert_call(mpr_session_bind(s, "x", d.x.data, MPR_FLOAT32, xs, 2), s);
    assert_call(mpr_session_bind(s, "labels", labels32, MPR_INT32, three, 1), s);
    assert_int_equal(mpr_session_forward(s, NULL), MPR_E_SHAPE);
    assert_call(mpr_session_bind(s, "labels", labels32, MPR_INT32, ys, 1), s);
    assert_call(mpr_session_forward(s, NULL), s);
    assert_call(mpr_session_bind(s, "labels", bad_label, MPR_INT64, ys, 1), s);
    /* a GPU says it where somebody asks for a value */
    assert_int_equal(mpr_session_forward(s, TEST_DEVICE ? &loss : NULL), MPR_E_INDEX);
    assert_non_null(strstr(mpr_last_error(s).message, "10"));
    mpr_session_close(s);
    digits_close(&d);
}

static void call_order(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_FLOAT16);
    mpr_optimizer *opt, *second;
    mpr_scaler *sc;
    mpr_step_outcome outcome;
    float norm;
    assert_call(mpr_optimizer_adamw(s, NULL, &opt), s);
    assert_int_equal(mpr_optimizer_sgd(s, NULL, &second), MPR_E_USAGE); /* owned already */
    assert_non_null(strstr(mpr_last_error(s).message, "net.0"));
    assert_call(mpr_scaler_create(s, NULL, &sc), s);
    assert_int_equal(mpr_session_backward(s, sc), MPR_E_ORDER);
    digits_bind(&d, s, 0, 8);
    assert_call(mpr_session_forward(s, NULL), s);
    assert_call(mpr_session_backward(s, sc), s);
    assert_int_equal(mpr_session_backward(s, sc), MPR_E_ORDER);
    assert_int_equal(mpr_optimizer_clip_grad_norm(opt, 1, &norm), MPR_E_ORDER);
    assert_int_equal(mpr_optimizer_step(opt, &outcome), MPR_E_ORDER);
    assert_call(mpr_scaler_unscale(sc, opt), sc);
    assert_int_equal(mpr_scaler_unscale(sc, opt), MPR_E_ORDER);
    char *json;
    assert_int_equal(mpr_scaler_save(sc, &json), MPR_E_ORDER);
    assert_call(mpr_session_forward(s, NULL), s);
    assert_int_equal(mpr_session_backward(s, sc), MPR_E_ORDER); /* adding to unscaled gradients */
    assert_call(mpr_optimizer_clip_grad_norm(opt, 1, &norm), opt);
    assert_true(norm > 0 && isfinite(norm));
    assert_call(mpr_scaler_step(sc, opt, &outcome), sc);
    assert_int_equal(outcome, MPR_STEP_UPDATED);
    assert_int_equal(mpr_scaler_step(sc, opt, &outcome), MPR_E_ORDER);
    assert_call(mpr_scaler_update(sc), sc);
    assert_int_equal(mpr_scaler_update(sc), MPR_E_ORDER);
    assert_int_equal(mpr_scaler_step(sc, opt, &outcome),
                     MPR_E_ORDER); /* gradients of the old window */
    assert_call(mpr_session_zero_grad(s), s);
    assert_call(mpr_scaler_step(sc, opt, &outcome), sc);
    assert_int_equal(outcome, MPR_STEP_NOTHING);
    mpr_scaler_destroy(sc);
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    digits_close(&d);
}

/* The same eight rows as 1x8, 2x4, 4x2 and 8x1 give the same update. */
static void accumulation(void **state)
{
    (void)state;
    static float first[128 * 64], other[128 * 64];
    Digits d;
    digits_open(&d, 1);
    for (int window = 1; window <= 8; window *= 2) {
        mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
        mpr_optimizer *opt;
        mpr_step_outcome outcome;
        assert_call(
            mpr_optimizer_sgd(s, &(mpr_sgd){.size = sizeof(mpr_sgd), .learning_rate = 0.1}, &opt),
            s);
        assert_call(mpr_session_set_loss_divisor(s, (float)window), s);
        for (int k = 0; k < window; k++) {
            digits_bind(&d, s, k * 8 / window, 8 / window);
            assert_call(mpr_session_forward(s, NULL), s);
            assert_call(mpr_session_backward(s, NULL), s);
        }
        assert_call(mpr_optimizer_step(opt, &outcome), opt);
        assert_int_equal(outcome, MPR_STEP_UPDATED);
        digits_weight(s, window == 1 ? first : other);
        for (int i = 0; window > 1 && i < 128 * 64; i++)
            assert_true(fabsf(first[i] - other[i]) <= 1e-7f);
        mpr_optimizer_destroy(opt);
        mpr_session_close(s);
    }
    digits_close(&d);
}

static void non_finite_gradient(void **state)
{
    (void)state;
    static float before[128 * 64], after[128 * 64], grad[128 * 64];
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    mpr_optimizer *opt;
    mpr_step_outcome outcome;
    assert_call(mpr_optimizer_adamw(s, NULL, &opt), s);
    digits_bind(&d, s, 0, 8);
    assert_call(mpr_session_forward(s, NULL), s);
    assert_call(mpr_session_backward(s, NULL), s);
    assert_call(mpr_session_gradient_get(s, "net.0.weight", grad, 128 * 64), s);
    grad[77] = NAN;
    assert_call(mpr_session_gradient_set(s, "net.0.weight", grad, 128 * 64), s);
    digits_weight(s, before);
    assert_call(mpr_optimizer_step(opt, &outcome), opt);
    assert_int_equal(outcome, MPR_STEP_SKIPPED);
    digits_weight(s, after);
    assert_memory_equal(before, after, sizeof(before));
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    digits_close(&d);
}

static void selection(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s;
    const char *freeze[] = {"net.0.*", NULL}, *nothing[] = {"net.9.*", NULL}, *all[] = {"*", NULL};
    mpr_session_options o = {.size = sizeof(o), .loss = "cross-entropy", .freeze = freeze};
    assert_call(mpr_session_open(d.model, &o, &s), d.model);
    assert_int_equal(mpr_session_parameter_count(s), 4);
    mpr_parameter_info info;
    assert_call(mpr_session_parameter(s, 0, &info), s);
    assert_string_equal(info.public_name, "net.2.weight");
    float w[4];
    assert_int_equal(mpr_session_parameter_get(s, "net.2.weight", w, 4), MPR_E_SHAPE);
    assert_int_equal(mpr_session_parameter_get(s, "net.2.wait", w, 4), MPR_E_USAGE);
    assert_non_null(strstr(mpr_last_error(s).advice, "net.2.weight"));
    mpr_session_close(s);
    o.freeze = nothing;
    assert_int_equal(mpr_session_open(d.model, &o, &s), MPR_E_USAGE);
    o.freeze = all;
    assert_int_equal(mpr_session_open(d.model, &o, &s), MPR_E_NOT_DIFFERENTIABLE);
    o.freeze = NULL;
    o.loss = "cross-entrpy";
    assert_int_equal(mpr_session_open(d.model, &o, &s), MPR_E_USAGE);
    digits_close(&d);
}

/* What is trained, exported and loaded again computes the same. */
static void export_and_reload(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE), *again;
    mpr_optimizer *opt;
    mpr_model *model;
    mpr_step_outcome outcome;
    float loss, reloaded, start;
    char path[64];
    snprintf(path, sizeof(path), "/tmp/mpr-export-%ld.onnx", (long)getpid());
    assert_call(mpr_optimizer_adamw(s, NULL, &opt), s);
    digits_bind(&d, s, 0, 32);
    assert_call(mpr_session_evaluate(s, &start), s);
    assert_int_equal(mpr_session_backward(s, NULL), MPR_E_ORDER); /* evaluation has no backward */
    for (int i = 0; i < 5; i++) {
        assert_call(mpr_session_forward(s, NULL), s);
        assert_call(mpr_session_backward(s, NULL), s);
        assert_call(mpr_optimizer_step(opt, &outcome), opt);
        assert_call(mpr_session_zero_grad(s), s);
    }
    assert_call(mpr_session_evaluate(s, &loss), s);
    assert_true(loss < start);
    assert_call(mpr_session_export(s, path), s);
    assert_int_equal(mpr_session_export(s, test_data("digits/model_ts.onnx")), MPR_E_USAGE);
    assert_call(mpr_model_load(d.ctx, path, NULL, &model), d.ctx);
    mpr_session_options o = {.size = sizeof(o), .loss = "cross-entropy"};
    assert_call(mpr_session_open(model, &o, &again), model);
    digits_bind(&d, again, 0, 32);
    assert_call(mpr_session_evaluate(again, &reloaded), again);
    assert_true(loss == reloaded);
    mpr_session_close(again);
    mpr_model_destroy(model);
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    digits_close(&d);
    unlink(path);
}

static void forked_child(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    digits_bind(&d, s, 0, 8);
    pid_t child = fork();
    if (!child) _exit(mpr_session_forward(s, NULL) == MPR_E_ORDER ? 0 : 1);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_call(mpr_session_forward(s, NULL), s);
    mpr_session_close(s);
    digits_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_handles),       cmocka_unit_test(bind_errors),
        cmocka_unit_test(call_order),          cmocka_unit_test(accumulation),
        cmocka_unit_test(non_finite_gradient), cmocka_unit_test(selection),
        cmocka_unit_test(export_and_reload),   cmocka_unit_test(forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
