/* Precision faults that people reported against other programs, where a session shows them; see
 * tests/pass/reports.c for those that a graph shows. The models are made here. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/session.h"
#include "tests/support/wire_model.h"
#include "tests/train/digits.h"

typedef struct Bench {
    mpr_context *ctx;
    mpr_model *model;
    char said[4096];
} Bench;

static void hear(void *user, mpr_log_level level, const char *message)
{
    Bench *b = user;
    size_t len = strlen(b->said);
    if (level >= MPR_LOG_NOTICE) snprintf(b->said + len, sizeof b->said - len, "%s\n", message);
}

static void open_bench(Bench *b, const char *path)
{
    mpr_context_options o = {.size = sizeof o, .device = TEST_DEVICE, .threads = 1, .log = hear, .log_user = b};
    *b = (Bench){0};
    assert_int_equal(mpr_context_create(&o, &b->ctx), MPR_OK);
    assert_call(mpr_model_load(b->ctx, path, NULL, &b->model), b->ctx);
}

static void close_bench(Bench *b)
{
    mpr_model_destroy(b->model);
    mpr_context_destroy(b->ctx);
}

static mpr_session *session(Bench *b, mpr_session_options o)
{
    mpr_session *s;
    o.size = sizeof o;
    assert_call(mpr_session_open(b->model, &o, &s), b->model);
    return s;
}

static void bind_f32(mpr_session *s, const char *name, const float *x, int64_t rows, int64_t cols)
{
    int64_t shape[2] = {rows, cols};
    assert_call(mpr_session_bind(s, name, x, MPR_FLOAT32, shape, 2), s);
}

/* loss = mean over all of y * y, behind whatever made y. */
static const char *square_loss(Wire *g, const char *file, int64_t opset)
{
    wm_add_node(g, "Mul", "sq", "y y", "yy");
    Wire n = wm_node("ReduceMean", "mean", "yy", "loss");
    wm_attr_int(&n, "keepdims", 0);
    GRAPH_ADD_NODE(g, &n);
    wm_value(g, 12, "loss", MPR_FLOAT32, (int64_t[]){-99});
    wm_value(g, 12, "y", MPR_FLOAT32, NULL);
    Wire m = wm_model(g, 8, opset);
    return wm_write_model(file, &m);
}

/* y = x W, W[rows,cols] of float32 or float16. */
static const char *product_model(const char *file, int type, int64_t rows, int64_t cols,
                                 const void *w)
{
    Wire g = wm_begin();
    const int64_t dims[] = {rows, cols, -1};
    size_t n = (size_t)(rows * cols) * mpri_dtype_size((DType)type);
    Wire t = wm_tensor("W", type, dims, w, n);
    wm_end(&g, 5, &t);
    wm_value(&g, 11, "x", MPR_FLOAT32, (int64_t[]){-1, rows, -99});
    if (type == MPR_FLOAT16) {
        Wire up = wm_node("Cast", "up", "W", "Wf");
        wm_attr_int(&up, "to", MPR_FLOAT32);
        GRAPH_ADD_NODE(&g, &up);
    }
    wm_add_node(&g, "MatMul", "/big/MatMul", type == MPR_FLOAT16 ? "x Wf" : "x W", "y");
    return square_loss(&g, file, 17);
}

/* Weights of float16 in the file. They are trained as float32: updates that float16
 * could not hold are kept. */
static void float16_weights(void **state)
{
    (void)state;
    const uint16_t one[2] = {0x3C00, 0x3C00};
    Bench b;
    open_bench(&b, product_model("f16w.onnx", MPR_FLOAT16, 2, 1, one));
    mpr_session *s = session(&b, (mpr_session_options){.loss = "output:loss"});
    assert_non_null(strstr(b.said, "trained tensors are float16 in the file"));
    mpr_sgd o = {.size = sizeof o, .learning_rate = 1e-5};
    mpr_optimizer *opt;
    assert_call(mpr_optimizer_sgd(s, &o, &opt), s);
    const float x[2] = {1, 1};
    float w[2];
    bind_f32(s, "x", x, 1, 2);
    assert_call(mpr_session_forward(s, NULL), s);
    assert_call(mpr_session_backward(s, NULL), s);
    assert_call(mpr_optimizer_step(opt, NULL), s);
    assert_call(mpr_session_parameter_get(s, "W", w, 2), s);
    assert_true(w[0] < 1 && w[0] > 0.9999f); /* 1 - 4e-5, which float16 rounds to 1 */
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    close_bench(&b);
}

/* A product that float16 cannot hold is named, and can be kept in float32 by name. */
static void product_overflows(void **state)
{
    (void)state;
    const float w = 265, x = 250;
    const char *const keep[] = {"/big/*", NULL};
    Bench b;
    char bad[512] = "";
    open_bench(&b, product_model("big.onnx", MPR_FLOAT32, 1, 1, &w));
    mpr_session *s = session(&b, (mpr_session_options){.loss = "output:loss",
                                                       .autocast = MPR_FLOAT16});
    bind_f32(s, "x", &x, 1, 1);
    assert_call(mpr_session_forward(s, NULL), s);
    assert_true(mpri_session_first_bad(s, false, bad, sizeof bad));
    assert_non_null(strstr(bad, "/big/MatMul"));
    mpr_session_close(s);
    float loss;
    s = session(&b, (mpr_session_options){.loss = "output:loss", .autocast = MPR_FLOAT16,
                                          .keep_fp32 = keep});
    bind_f32(s, "x", &x, 1, 1);
    assert_call(mpr_session_forward(s, &loss), s);
    assert_true(isfinite(loss));
    mpr_session_close(s);
    close_bench(&b);
}

/* A query that may look at nothing gives zeros, and finite gradients. */
static void attention_without_keys(void **state)
{
    (void)state;
    Wire g = wm_begin();
    static const float eye[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    static const uint8_t mask[4] = {1, 1, 0, 0};
    static const int64_t square[] = {4, 4, -1}, two[] = {2, 2, -1};
    wm_value(&g, 11, "x", MPR_FLOAT32, (int64_t[]){1, 2, 4, -99});
    wm_add_f32(&g, "Wq", square, eye);
    wm_add_f32(&g, "Wk", square, eye);
    wm_add_f32(&g, "Wv", square, eye);
    Wire m = wm_tensor("mask", MPR_BOOL, two, mask, sizeof mask);
    wm_end(&g, 5, &m);
    wm_add_node(&g, "MatMul", "q", "x Wq", "Q");
    wm_add_node(&g, "MatMul", "k", "x Wk", "K");
    wm_add_node(&g, "MatMul", "v", "x Wv", "V");
    Wire n = wm_node("Attention", "attention", "Q K V mask", "y");
    wm_attr_int(&n, "q_num_heads", 1);
    wm_attr_int(&n, "kv_num_heads", 1);
    GRAPH_ADD_NODE(&g, &n);
    Bench b;
    open_bench(&b, square_loss(&g, "attention.onnx", 23));
    static const float x[8] = {1, 2, 3, 4, -1, 0, 1, 2};
    static const int64_t shape[] = {1, 2, 4};
    static const char *const weights[] = {"Wq", "Wk", "Wv"};
    for (int low = 0; low < 2; low++) {
        mpr_session *s = session(&b, (mpr_session_options){
            .loss = "output:loss", .autocast = low ? MPR_FLOAT16 : MPR_DTYPE_NONE});
        mpr_tensor y;
        assert_call(mpr_session_bind(s, "x", x, MPR_FLOAT32, shape, 3), s);
        assert_call(mpr_session_forward(s, NULL), s);
        assert_call(mpr_session_backward(s, NULL), s);
        assert_call(mpr_session_output(s, "y", &y), s);
        for (int k = 4; k < 8; k++) assert_true(((const float *)y.data)[k] == 0);
        for (int i = 0; i < 3; i++) {
            float grad[16];
            assert_call(mpr_session_gradient_get(s, weights[i], grad, 16), s);
            for (int k = 0; k < 16; k++) assert_true(isfinite(grad[k]));
        }
        mpr_session_close(s);
    }
    close_bench(&b);
}

static float gradient(mpr_session *s)
{
    float g;
    assert_call(mpr_session_forward(s, NULL), s);
    assert_call(mpr_session_backward(s, NULL), s);
    assert_call(mpr_session_gradient_get(s, "W", &g, 1), s);
    return g;
}

/* A cached 16-bit copy of a weight hid its gradient after an evaluation, and
 * was served when the weight had changed. */
static void casts_of_weights_are_fresh(void **state)
{
    (void)state;
    const float w = 1.5f, x = 2, changed = 3;
    Bench b;
    open_bench(&b, product_model("fresh.onnx", MPR_FLOAT32, 1, 1, &w));
    mpr_session_options o = {.loss = "output:loss", .autocast = MPR_FLOAT16,
                             .eval_autocast = MPR_FLOAT16};
    float loss, expected = 4 * changed * changed;
    mpr_session *plain = session(&b, o), *s = session(&b, o);
    bind_f32(plain, "x", &x, 1, 1);
    bind_f32(s, "x", &x, 1, 1);
    assert_call(mpr_session_evaluate(s, &loss), s);
    float g = gradient(s);
    assert_true(g == gradient(plain) && g == 2 * w * x * x);
    assert_call(mpr_session_parameter_set(s, "W", &changed, 1), s);
    assert_call(mpr_session_forward(s, &loss), s);
    assert_true(loss == expected);
    assert_call(mpr_session_evaluate(s, &loss), s);
    assert_true(loss == expected);
    mpr_session_close(plain);
    mpr_session_close(s);
    close_bench(&b);
}

/* A deep MLP with a small batch: 16-bit copies of the weights cost more than the activations save,
 * and the plan says so. A large batch is worth it. */
static void small_batches_do_not_pay(void **state)
{
    (void)state;
    enum { LAYERS = 12, N = 64 };
    static float w[N * N];
    const int64_t dims[] = {N, N, -1};
    Wire g = wm_begin();
    char name[16] = "x";
    wm_value(&g, 11, "x", MPR_FLOAT32, (int64_t[]){-1, N, -99});
    for (int i = 0; i < LAYERS; i++) {
        char weight[16], in[48], out[16];
        snprintf(weight, sizeof weight, "W%d", i);
        snprintf(in, sizeof in, "%s %s", name, weight);
        snprintf(out, sizeof out, i + 1 < LAYERS ? "h%d" : "z%d", i);
        for (int k = 0; k < N * N; k++) w[k] = (float)((k * 7 + i) % 13 - 6) * 0.02f;
        wm_add_f32(&g, weight, dims, w);
        wm_add_node(&g, "MatMul", out, in, out);
        snprintf(name, sizeof name, i + 1 < LAYERS ? "r%d" : "y", i);
        wm_add_node(&g, "Relu", name, out, name);
    }
    Bench b;
    open_bench(&b, square_loss(&g, "deep.onnx", 17));
    static const char *const batches[] = {"d1=8", "d1=4096"};
    for (int i = 0; i < 2; i++) {
        const char *const bind[] = {batches[i], NULL};
        mpr_inspect_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .loss = "output:loss",
                                 .bind = bind};
        char *text;
        assert_call(mpr_inspect(b.ctx, b.model, MPR_INSPECT_PLAN, &o, &text), b.ctx);
        bool warned = strstr(text, "warning: float16 needs more memory") != NULL;
        assert_non_null(strstr(text, "forecast"));
        assert_true(warned == (i == 0));
        mpr_free_text(b.ctx, text);
    }
    close_bench(&b);
}

/* The sum of label smoothing over 50000 classes, evaluated in float16. */
static void smoothing_over_many_classes(void **state)
{
    (void)state;
    enum { CLASSES = 50000 };
    static float w[CLASSES];
    for (int i = 0; i < CLASSES; i++) w[i] = (float)(i % 7) - 3;
    Wire g = wm_begin();
    wm_add_f32(&g, "W", (int64_t[]){1, CLASSES, -1}, w);
    wm_value(&g, 11, "x", MPR_FLOAT32, (int64_t[]){-1, 1, -99});
    wm_value(&g, 12, "logits", MPR_FLOAT32, (int64_t[]){-1, CLASSES, -99});
    wm_add_node(&g, "MatMul", "head", "x W", "logits");
    Wire m = wm_model(&g, 8, 17);
    Bench b;
    open_bench(&b, wm_write_model("classes.onnx", &m));
    const float x = 1;
    const int64_t label = 4, one[] = {1};
    float loss[2];
    for (int low = 0; low < 2; low++) {
        mpr_session *s = session(&b, (mpr_session_options){
            .loss = "cross-entropy", .label_smoothing = 0.1f,
            .eval_autocast = low ? MPR_FLOAT16 : MPR_DTYPE_NONE});
        bind_f32(s, "x", &x, 1, 1);
        assert_call(mpr_session_bind(s, "labels", &label, MPR_INT64, one, 1), s);
        assert_call(mpr_session_evaluate(s, &loss[low]), s);
        mpr_session_close(s);
    }
    assert_true(isfinite(loss[1]) && fabsf(loss[1] - loss[0]) < 1e-4f * fabsf(loss[0]));
    close_bench(&b);
}

/* float16 asked for: it is float16, and the summary says it and the device. */
static void float16_is_told(void **state)
{
    (void)state;
    const float w[4] = {1, 2, 3, 4};
    Bench b;
    open_bench(&b, product_model("cpu.onnx", MPR_FLOAT32, 2, 2, w));
    mpr_trainer_options *o;
    mpr_trainer *t;
    char *text;
    assert_call(mpr_trainer_options_create(b.ctx, &o), b.ctx);
    assert_call(mpr_trainer_options_set(o, "fp16", NULL), o);
    assert_call(mpr_trainer_options_set(o, "loss", "output:loss"), o);
    assert_call(mpr_trainer_options_set(o, "synthetic", "8"), o);
    assert_call(mpr_trainer_options_set(o, "max-steps", "1"), o);
    assert_call(mpr_trainer_options_set(o, "output-dir", wm_folder()), o);
    assert_call(mpr_trainer_create(b.model, o, NULL, &t), b.model);
    assert_call(mpr_trainer_summary(t, &text), t);
    assert_non_null(strstr(text, "float16 autocast (torch-cuda)"));
    assert_non_null(strstr(text, "computed in  float16: 1 operators"));
    assert_non_null(strstr(text, TEST_DEVICE ? "device       cuda" : "device       cpu"));
    mpr_free_text(b.ctx, text);
    mpr_trainer_destroy(t);
    mpr_trainer_options_destroy(o);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float16_weights),
        cmocka_unit_test(product_overflows),
        cmocka_unit_test(attention_without_keys),
        cmocka_unit_test(casts_of_weights_are_fresh),
        cmocka_unit_test(small_batches_do_not_pay),
        cmocka_unit_test(smoothing_over_many_classes),
        cmocka_unit_test(float16_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
