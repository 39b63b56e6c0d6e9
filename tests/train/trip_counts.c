/* A loop over a dim of the input: a session unrolls it as often as the bound batch says. */
#include "tests/support/wire_model.h"
#include "tests/train/digits.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})
static const int64_t scalar[] = {-99};
static const float weights[2] = {3, 5};

/* loss = mean over 2 of (turns * w); `limit` names the number of turns. */
static const char *loop_model(const char *limit)
{
    static const int64_t zero = 0;
    static const float zeros[2] = {0, 0};
    static const uint8_t yes = 1;
    Wire g = wm_begin(), b = wm_begin(), a = wm_begin();
    wm_value(&b, 11, "i", MPR_INT64, scalar);
    wm_value(&b, 11, "c", MPR_BOOL, scalar);
    wm_value(&b, 11, "s", MPR_FLOAT32, D(2));
    wm_add_node(&b, "Identity", "same", "c", "c2");
    wm_add_node(&b, "Add", "add", "s w", "s2");
    wm_value(&b, 12, "c2", MPR_BOOL, scalar);
    wm_value(&b, 12, "s2", MPR_FLOAT32, D(2));
    wm_value(&g, 11, "x", MPR_FLOAT32, D(-1, 2));
    wm_value(&g, 11, "m", MPR_INT64, scalar);
    Wire t = wm_tensor("zero", MPR_INT64, (const int64_t[]){-1}, &zero, sizeof zero);
    wm_end(&g, 5, &t);
    t = wm_tensor("yes", MPR_BOOL, (const int64_t[]){-1}, &yes, 1);
    wm_end(&g, 5, &t);
    wm_add_f32(&g, "z", (const int64_t[]){2, -1}, zeros);
    wm_add_f32(&g, "w", (const int64_t[]){2, -1}, weights);
    wm_add_node(&g, "Shape", "shape", "x", "sizes");
    wm_add_node(&g, "Gather", "rows", "sizes zero", "n");
    char inputs[64];
    snprintf(inputs, sizeof inputs, "%s yes z", limit);
    Wire n = wm_node("Loop", "loop", inputs, "y");
    wm_str(&a, 1, "body");
    wm_end(&a, 6, &b);
    wm_int(&a, 20, 5);
    wm_end(&n, 5, &a);
    GRAPH_ADD_NODE(&g, &n);
    n = wm_node("ReduceMean", "mean", "y", "loss");
    wm_attr_int(&n, "keepdims", 0);
    GRAPH_ADD_NODE(&g, &n);
    wm_value(&g, 12, "loss", MPR_FLOAT32, scalar);
    Wire model = wm_model(&g, 8, 17);
    return wm_write_model("turns.onnx", &model);
}

static mpr_context *open_context(void)
{
    mpr_context *ctx;
    mpr_context_options o = {.size = sizeof o, .device = TEST_DEVICE, .threads = 1};
    assert_int_equal(mpr_context_create(&o, &ctx), MPR_OK);
    return ctx;
}

static void turns_from_rows(void **state)
{
    (void)state;
    static const float x[16];
    mpr_context *ctx = open_context();
    mpr_model *m;
    mpr_session *s;
    mpr_session_options o = {.size = sizeof o, .loss = "output:loss"};
    assert_call(mpr_model_load(ctx, loop_model("n"), NULL, &m), ctx);
    assert_call(mpr_session_open(m, &o, &s), m);
    assert_int_equal(mpr_session_parameter_count(s), 2); /* w, and what the loop begins with */
    for (int turn = 0; turn < 8; turn++) {
        int64_t rows = turn % 4 + 1;
        float loss, grad[2];
        assert_call(mpr_session_bind(s, "x", x, MPR_FLOAT32, (const int64_t[]){rows, 2}, 2), s);
        assert_call(mpr_session_zero_grad(s), s);
        assert_call(mpr_session_forward(s, &loss), s);
        assert_float_equal(loss, 4 * (float)rows, 1e-6);
        assert_call(mpr_session_backward(s, NULL), s);
        assert_call(mpr_session_gradient_get(s, "w", grad, 2), s);
        assert_float_equal(grad[0], (float)rows / 2, 1e-6);
        assert_float_equal(grad[1], (float)rows / 2, 1e-6);
        assert_call(mpr_session_evaluate(s, &loss), s);
        assert_float_equal(loss, 4 * (float)rows, 1e-6);
    }
    mpr_session_close(s);
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

/* A count that stands in the contents of an input is not known to a session. */
static void turns_from_contents(void **state)
{
    (void)state;
    mpr_context *ctx = open_context();
    mpr_model *m;
    mpr_session *s;
    mpr_session_options o = {.size = sizeof o, .loss = "output:loss"};
    assert_call(mpr_model_load(ctx, loop_model("m"), NULL, &m), ctx);
    assert_int_equal(mpr_session_open(m, &o, &s), MPR_E_UNSUPPORTED_OP);
    assert_non_null(strstr(mpr_last_error(m).message, "Loop"));
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_from_rows),
        cmocka_unit_test(turns_from_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
