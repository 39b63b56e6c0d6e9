/* The first non-finite tensor by name: every construct of the table goes through a session as users
 * make it, and the answer names node, tensor and direction as the file does. */
#include "tests/support/little_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/wire_model.h"

enum { ROWS = 4, WIDE = 8 };

typedef struct Bench {
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_scaler *sc;
} Bench;

static void open_bench(Bench *b, const LittleModel *m, const mpr_session_options *given,
                       const mpr_scaler_options *scaler)
{
    mpr_context_options co = {.size = sizeof co, .device = TEST_DEVICE, .threads = 1};
    mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse"};
    if (given) o = *given;
    mpr_sgd sgd = {.size = sizeof sgd, .learning_rate = 1e-3};
    mpr_scaler_options plain = {.size = sizeof plain, .init_scale = 1024};
    assert_int_equal(mpr_context_create(&co, &b->ctx), MPR_OK);
    assert_call(mpr_model_load(b->ctx, test_little_file("m.onnx", m), NULL, &b->model), b->ctx);
    assert_call(mpr_session_open(b->model, &o, &b->s), b->model);
    assert_call(mpr_optimizer_sgd(b->s, &sgd, &b->opt), b->s);
    assert_call(mpr_scaler_create(b->s, scaler ? scaler : &plain, &b->sc), b->s);
}

static void close_bench(Bench *b)
{
    mpr_scaler_destroy(b->sc);
    mpr_optimizer_destroy(b->opt);
    mpr_session_close(b->s);
    mpr_model_destroy(b->model);
    mpr_context_destroy(b->ctx);
}

static void bind(Bench *b, const char *name, int64_t cols, float spread)
{
    float *v = malloc(sizeof(float) * (size_t)(ROWS * cols));
    assert_non_null(v);
    test_little_fill(v, ROWS * cols, spread);
    assert_call(mpr_session_bind(b->s, name, v, MPR_FLOAT32, (int64_t[]){ROWS, cols}, 2), b->s);
    free(v);
}

/* One step of the manual loop. */
static mpr_step_outcome step(Bench *b)
{
    float loss;
    mpr_step_outcome outcome;
    assert_call(mpr_session_forward(b->s, &loss), b->s);
    assert_call(mpr_session_backward(b->s, b->sc), b->s);
    assert_call(mpr_scaler_step(b->sc, b->opt, &outcome), b->sc);
    return outcome;
}

/* Every word is in the sentence. */
static void says(const mpr_nonfinite *f, const char *const *words)
{
    assert_true(f->found);
    for (; *words; words++)
        if (!strstr(f->text, *words)) fail_msg("no '%s' in: %s", *words, f->text);
}

#define SAYS(f, ...) says(f, (const char *const[]){__VA_ARGS__, NULL})

/* x -> fc1 -> Relu -> fc2 -> y, with torch's names of nodes */
static LittleModel ffn(float scale1, float scale2)
{
    return (LittleModel){
        .nodes = {{"MatMul", "/ffn/fc1/MatMul", "x w1", "h", NULL},
                  {"Relu", "/ffn/act/Relu", "h", "a", NULL},
                  {"MatMul", "/ffn/fc2/MatMul", "a w2", "y", NULL}},
        .tensors = {{"w1", {WIDE, 16, -1}, 0, scale1}, {"w2", {16, WIDE, -1}, 0, scale2}},
        .inputs = {{"x", MPR_FLOAT32, {-1, WIDE, -99}}},
        .output = "y"};
}

static mpr_nonfinite find(Bench *b)
{
    mpr_nonfinite f = {.size = sizeof f};
    assert_call(mpr_session_find_nonfinite(b->s, &f), b->s);
    return f;
}

/* ---- the table ---- */

static void nan_in_one_weight(void **state)
{
    (void)state;
    Bench b;
    LittleModel m = ffn(0.3f, 0.3f);
    float w[16 * WIDE];
    open_bench(&b, &m, NULL, NULL);
    bind(&b, "x", WIDE, 1);
    bind(&b, "labels", WIDE, 1);
    assert_int_equal(step(&b), MPR_STEP_UPDATED);
    assert_call(mpr_scaler_update(b.sc), b.sc);
    assert_call(mpr_session_zero_grad(b.s), b.s);
    assert_false(find(&b).found);
    assert_call(mpr_session_parameter_get(b.s, "w2", w, 16 * WIDE), b.s);
    w[37] = NAN;
    assert_call(mpr_session_parameter_set(b.s, "w2", w, 16 * WIDE), b.s);
    assert_int_equal(step(&b), MPR_STEP_SKIPPED);
    mpr_nonfinite f = find(&b);
    SAYS(&f, "parameter 'w2' is NaN at element 37", "1 of 128 elements");
    assert_true(f.is_nan && f.nans == 1 && f.first == 37 && f.elements == 128);
    assert_non_null(strstr(f.advice, "checkpoint"));
    close_bench(&b);
}

static void overflow_in_ffn(void **state)
{
    (void)state;
    static const struct {
        float w1, w2;
        const char *node, *tensor;
    } rows[] = {
        {6e4f, 0.1f, "/ffn/fc1/MatMul", "'h' is "},   /* though the Relu is in its epilogue */
        {100, 6e4f, "/ffn/fc2/MatMul", "'y' is "},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Bench b;
        LittleModel m = ffn(rows[i].w1, rows[i].w2);
        open_bench(&b, &m, NULL, NULL);
        bind(&b, "x", WIDE, 3);
        bind(&b, "labels", WIDE, 1);
        assert_int_equal(step(&b), MPR_STEP_SKIPPED);
        mpr_nonfinite f = find(&b);
        SAYS(&f, "forward of node", rows[i].tensor, rows[i].node, "; inputs: ");
        assert_string_equal(f.node, rows[i].node);
        assert_string_equal(f.op, "MatMul");
        assert_false(f.backward || f.is_nan);
        assert_true(f.infs > 0 && f.nans == 0);
        assert_non_null(strstr(f.advice, rows[i].node));
        close_bench(&b);
        /* pinned to float32 by that name, the same step is finite */
        const char *keep[] = {rows[i].node, NULL};
        mpr_session_options o = {.size = sizeof o,
                                 .autocast = MPR_FLOAT16,
                                 .loss = "mse",
                                 .keep_fp32 = keep};
        mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p-30f, .min_scale = 0x1p-40f};
        m = ffn(rows[i].w1, rows[i].w2);
        if (i) continue; /* the gradient of so large a loss is beyond float16 again */
        open_bench(&b, &m, &o, &so);
        bind(&b, "x", WIDE, 3);
        bind(&b, "labels", WIDE, 1);
        float loss;
        assert_call(mpr_session_forward(b.s, &loss), b.s);
        mpr_nonfinite g = find(&b);
        assert_true(!g.found || strcmp(g.node, rows[i].node) != 0);
        close_bench(&b);
    }
}

/* Scores and a bool mask; row `hidden` of the mask has no key at all. */
static LittleModel attention(bool by_hand)
{
    LittleModel m = {
        .nodes = {{"MatMul", "/attn/q/MatMul", "x wq", "q", NULL},
                  {"MatMul", "/attn/k/MatMul", "x wk", "k", NULL},
                  {"Transpose", "/attn/Transpose", "k", "kt", "perm=1,0"},
                  {"MatMul", "/attn/MatMul", "q kt", "s", NULL},
                  {"Where", "/attn/Where", "mask s hidden", "z", NULL},
                  {"Softmax", "/attn/Softmax", "z", "p", "axis=-1"},
                  {"MatMul", "/attn/MatMul_1", "p x", "y", NULL}},
        .tensors = {{"wq", {WIDE, WIDE, -1}, 0, 0.3f},
                    {"wk", {WIDE, WIDE, -1}, 0, 0.31f},
                    {"hidden", {-1}, -INFINITY, 0}},
        .inputs = {{"x", MPR_FLOAT32, {-1, WIDE, -99}}, {"mask", MPR_BOOL, {-1, -2, -99}}},
        .output = "y"};
    if (!by_hand) return m;
    static const LittleNode rest[] = {{"Exp", "/attn/Exp", "z", "e", NULL},
                                      {"ReduceMean", "/attn/ReduceMean", "e", "t", "keepdims=1"},
                                      {"Div", "/attn/Div", "e t", "p", NULL},
                                      {"MatMul", "/attn/MatMul_1", "p x", "y", NULL}};
    memcpy(&m.nodes[5], rest, sizeof rest);
    return m;
}

static void masked_row(void **state)
{
    (void)state;
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        Bench b;
        bool mask[ROWS * ROWS];
        LittleModel m = attention(by_hand);
        open_bench(&b, &m, NULL, NULL);
        for (int i = 0; i < ROWS * ROWS; i++) mask[i] = i / ROWS != 2 && i % ROWS < 3;
        for (int i = 0; by_hand && i < ROWS * ROWS; i++) mask[i] = false;
        bind(&b, "x", WIDE, 1);
        bind(&b, "labels", WIDE, 1);
        assert_call(mpr_session_bind(b.s, "mask", mask, MPR_BOOL, (int64_t[]){ROWS, ROWS}, 2), b.s);
        if (!by_hand) { /* the row gives zeros, its gradient is zero */
            assert_int_equal(step(&b), MPR_STEP_UPDATED);
            assert_false(find(&b).found);
        } else { /* 0/0 by construction: the division is named, not the mask of -inf */
            float loss;
            assert_call(mpr_session_forward(b.s, &loss), b.s);
            assert_true(isnan(loss));
            mpr_nonfinite f = find(&b);
            SAYS(&f, "forward of node '/attn/Div' (Div)", "'p' is NaN");
            assert_true(f.is_nan);
        }
        close_bench(&b);
    }
}

/* A product whose transpose was taken into it goes by its own name. */
static void moved_product(void **state)
{
    (void)state;
    Bench b;
    bool mask[ROWS * ROWS];
    LittleModel m = attention(false);
    open_bench(&b, &m, NULL, NULL);
    float w[WIDE * WIDE];
    test_little_fill(w, WIDE * WIDE, 6e4f);
    assert_call(mpr_session_parameter_set(b.s, "wk", w, WIDE * WIDE), b.s);
    memset(mask, 1, sizeof mask);
    bind(&b, "x", WIDE, 4);
    bind(&b, "labels", WIDE, 1);
    assert_call(mpr_session_bind(b.s, "mask", mask, MPR_BOOL, (int64_t[]){ROWS, ROWS}, 2), b.s);
    assert_int_equal(step(&b), MPR_STEP_SKIPPED);
    mpr_nonfinite f = find(&b);
    SAYS(&f, "forward of node '/attn/k/MatMul' (MatMul)", "'wk' -59104");
    close_bench(&b);
}

/* A norm written out, whose epsilon a rule file pushes into float16, where it is 0. */
static void lost_epsilon(void **state)
{
    (void)state;
    static const char rules[] = "base: torch-cuda\nrules:\n  - {node: '/norm/*', class: low}\n";
    Bench b;
    const LittleModel m = {
        .nodes = {{"MatMul", "/in/MatMul", "x w", "h", NULL},
                  {"Mul", "/norm/Mul", "h h", "q", NULL},
                  {"ReduceMax", "/norm/ReduceMax", "q", "v", NULL},
                  {"Mul", "/norm/Mul_1", "v eps", "ve", NULL},
                  {"Sqrt", "/norm/Sqrt", "ve", "d", NULL},
                  {"Div", "/norm/Div", "h d", "y", NULL}},
        .tensors = {{"w", {WIDE, WIDE, -1}, 0, 0.3f}, {"eps", {WIDE, -1}, 1e-12f, 0}},
        .inputs = {{"x", MPR_FLOAT32, {-1, WIDE, -99}}},
        .output = "y"};
    mpr_session_options o = {.size = sizeof o,
                             .autocast = MPR_FLOAT16,
                             .loss = "mse",
                             .autocast_profile = wm_write("rules.yaml", rules, strlen(rules)),
                             .train_only = (const char *const[]){"w", NULL}};
    open_bench(&b, &m, &o, NULL);
    bind(&b, "x", WIDE, 1);
    bind(&b, "labels", WIDE, 1);
    assert_int_equal(step(&b), MPR_STEP_SKIPPED);
    mpr_nonfinite f = find(&b);
    SAYS(&f, "forward of node '/norm/Div' (Div)", "'y' is ", "'d' 0 to 0");
    close_bench(&b);
}

/* ---- backward ---- */

/* The output is divided by a large number, so only the scaled gradient leaves float16. */
static LittleModel steep(void)
{
    return (LittleModel){
        .nodes = {{"MatMul", "/a/MatMul", "x w1", "h", NULL},
                  {"BatchNormalization", "/bn/BatchNormalization", "h scale bias mean var", "n",
                   NULL},
                  {"MatMul", "/b/MatMul", "n w2", "z", NULL},
                  {"Mul", "/gain/Mul", "z gain", "y", NULL}},
        .tensors = {{"w1", {WIDE, WIDE, -1}, 0, 0.3f},
                    {"w2", {WIDE, WIDE, -1}, 0, 0.31f},
                    {"scale", {WIDE, -1}, 1, 0},
                    {"bias", {WIDE, -1}, 0, 0},
                    {"mean", {WIDE, -1}, 0, 0},
                    {"var", {WIDE, -1}, 1, 0},
                    {"gain", {WIDE, -1}, 30, 0}},
        .inputs = {{"x", MPR_FLOAT32, {-1, WIDE, -99}}},
        .output = "y"};
}

static void overflow_in_backward(void **state)
{
    (void)state;
    Bench b;
    LittleModel m = steep();
    mpr_session_options o = {
        .size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse", .bn_train = true};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 65536};
    float mean[2][WIDE], loss;
    open_bench(&b, &m, &o, &so);
    bind(&b, "x", WIDE, 1);
    bind(&b, "labels", WIDE, 100);
    assert_call(mpr_session_forward(b.s, &loss), b.s);
    assert_true(isfinite(loss));
    assert_false(find(&b).found);
    assert_int_equal(step(&b), MPR_STEP_SKIPPED);
    mpr_nonfinite f = find(&b);
    SAYS(&f, "gradient of node '/");
    assert_true(f.backward);
    (void)mean;
    close_bench(&b);
}


/* A window of three micro-batches, the second with labels far away: named by its number. */
static void which_micro_batch(void **state)
{
    (void)state;
    for (int fits = 0; fits < 2; fits++) {
        Bench b;
        LittleModel m = steep();
        mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse"};
        mpr_scaler_options so = {
            .size = sizeof so, .init_scale = 1024, .constant = true, .max_consecutive_skips = -1};
        mpr_prepare_options po = {
            .size = sizeof po, .gradient_accumulation_steps = 3, .scaler = &so};
        mpr_prepared *p;
        mpr_step_result r;
        open_bench(&b, &m, &o, NULL);
        mpr_scaler_destroy(b.sc);
        b.sc = NULL;
        assert_call(mpr_prepare(b.s, b.opt, NULL, NULL, &po, &p), b.s);
        for (int i = 0; i < 3; i++) {
            bind(&b, "x", WIDE, 1);
            bind(&b, "labels", WIDE, i == 1 && !fits ? 1e5f : 1);
            assert_call(mpr_prepared_backward(p, NULL), p);
            assert_call(mpr_prepared_step(p, &r), p);
        }
        assert_false(r.window_open);
        if (fits) {
            assert_int_equal(r.outcome, MPR_STEP_UPDATED);
            assert_null(r.first_bad);
        } else {
            assert_int_equal(r.outcome, MPR_STEP_SKIPPED);
            assert_non_null(r.first_bad);
            if (strncmp(r.first_bad, "micro-batch 2 of 3: gradient of node '", 38))
                fail_msg("%s", r.first_bad);
        }
        mpr_prepared_destroy(p);
        close_bench(&b);
    }
}

/* The manual loop: the batch that is bad has given way to others before the step is skipped. */
static void manual_window(void **state)
{
    (void)state;
    for (int bad = 0; bad < 4; bad++) { /* 3: none */
        for (int late = 0; late < 2; late++) {
            Bench b;
            LittleModel m = steep();
            mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse"};
            mpr_scaler_options so = {.size = sizeof so, .init_scale = 1024, .constant = true};
            mpr_step_outcome outcome;
            char front[64];
            open_bench(&b, &m, &o, &so);
            for (int window = 0; window < 2; window++) { /* the buffers serve again */
                for (int i = 0; i < 3; i++) {
                    bind(&b, "x", WIDE, 1);
                    bind(&b, "labels", WIDE, window == 1 && i == bad ? 1e5f : 1);
                    assert_call(mpr_session_forward(b.s, NULL), b.s);
                    assert_call(mpr_session_backward(b.s, b.sc), b.s);
                }
                assert_call(mpr_scaler_step(b.sc, b.opt, &outcome), b.sc);
                bool skipped = window == 1 && bad < 3;
                assert_int_equal(outcome, skipped ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED);
                if (late) assert_call(mpr_scaler_update(b.sc), b.sc);
                if (late) assert_call(mpr_session_zero_grad(b.s), b.s);
                mpr_nonfinite f = find(&b);
                assert_int_equal(f.found, skipped);
                snprintf(front, sizeof front, "micro-batch %d of 3: gradient of node '/", bad + 1);
                if (skipped) SAYS(&f, front);
                if (skipped) assert_true(f.micro_batch == bad + 1 && f.micro_batches == 3);
                if (!late) assert_call(mpr_scaler_update(b.sc), b.sc);
                if (!late) assert_call(mpr_session_zero_grad(b.s), b.s);
            }
            /* a batch alone has no number, and what went before is forgotten */
            bind(&b, "x", WIDE, 1);
            bind(&b, "labels", WIDE, 1e5f);
            assert_int_equal(step(&b), MPR_STEP_SKIPPED);
            mpr_nonfinite f = find(&b);
            SAYS(&f, "gradient of node '/");
            assert_true(f.text[0] == 'g' && f.micro_batches == 1);
            close_bench(&b);
        }
    }
}

/* A kernel that does the work of several nodes: the one that is bad first is named, with its own
 * tensor; what stands for several nodes even alone is told with all of them. */
static void inside_a_kernel(void **state)
{
    (void)state;
    const LittleModel m = {
        .nodes = {{"MatMul", "/fc/MatMul", "x w", "h", NULL},
                  {"Add", "/fc/Add", "h b", "z", NULL},
                  {"Relu", "/act/Relu", "z", "a", NULL},
                  {"MatMul", "/out/MatMul", "a w2", "y", NULL}},
        .tensors = {{"w", {WIDE, WIDE, -1}, 0, 6e4f},
                    {"b", {WIDE, -1}, 1, 0},
                    {"w2", {WIDE, WIDE, -1}, 0, 0.3f}},
        .inputs = {{"x", MPR_FLOAT32, {-1, WIDE, -99}}},
        .output = "y"};
    static const char *const profiles[] = {"torch-cuda", "torch-cpu", "paint"};
    for (int i = 0; i < 3; i++) {
        Bench b;
        mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse",
                                 .autocast_profile = profiles[i]};
        open_bench(&b, &m, &o, NULL);
        bind(&b, "x", WIDE, 3);
        bind(&b, "labels", WIDE, 1);
        assert_int_equal(step(&b), MPR_STEP_SKIPPED);
        mpr_nonfinite f = find(&b);
        SAYS(&f, "forward of node '/fc/MatMul' (MatMul), computed with '/fc/Add' (Add): tensor 'z' is ");
        assert_null(strstr(f.text, "Relu"));
        close_bench(&b);
    }
}

/* The replay leaves gradients and running statistics alone. */
static void leaves_no_trace(void **state)
{
    (void)state;
    Bench b;
    LittleModel m = steep();
    mpr_session_options o = {
        .size = sizeof o, .autocast = MPR_FLOAT16, .loss = "mse", .bn_train = true};
    float before[WIDE * WIDE], after[WIDE * WIDE], x, y;
    open_bench(&b, &m, &o, NULL);
    bind(&b, "x", WIDE, 1);
    bind(&b, "labels", WIDE, 1);
    assert_call(mpr_session_forward(b.s, NULL), b.s);
    assert_call(mpr_session_backward(b.s, b.sc), b.s);
    assert_call(mpr_session_gradient_get(b.s, "w1", before, WIDE * WIDE), b.s);
    assert_call(mpr_session_evaluate(b.s, &x), b.s);
    assert_false(find(&b).found);
    assert_call(mpr_session_gradient_get(b.s, "w1", after, WIDE * WIDE), b.s);
    assert_call(mpr_session_evaluate(b.s, &y), b.s);
    assert_memory_equal(before, after, sizeof before);
    assert_true(x == y);
    close_bench(&b);
}

/* The hard stop of a manual loop: step, number in a row, scales, node, advice. */
static void manual_divergence(void **state)
{
    (void)state;
    Bench b;
    LittleModel m = ffn(0.3f, 6e4f);
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 8, .max_consecutive_skips = 3};
    mpr_status status = MPR_OK;
    int steps = 0;
    open_bench(&b, &m, NULL, &so);
    bind(&b, "x", WIDE, 40);
    bind(&b, "labels", WIDE, 1);
    for (; status == MPR_OK && steps < 10; steps++) {
        assert_int_equal(step(&b), MPR_STEP_SKIPPED);
        status = mpr_scaler_update(b.sc);
        assert_call(mpr_session_zero_grad(b.s), b.s);
    }
    assert_int_equal(steps, 3);
    assert_int_equal(status, MPR_E_NONFINITE);
    mpr_error e = mpr_last_error(b.sc);
    static const char *const words[] = {"at step 3", "3 steps in a row", "last loss scales 8, 4, 2",
                                        "now 1", "first bad tensor: forward of node",
                                        "/ffn/fc2/MatMul", "inputs: ", NULL};
    for (const char *const *w = words; *w; w++)
        if (!strstr(e.message, *w)) fail_msg("no '%s' in: %s", *w, e.message);
    assert_non_null(strstr(e.advice, "--keep-fp32 '/ffn/fc2/MatMul'"));
    close_bench(&b);
}

/* An outcome that the step did not wait for can be read later. */
static void lagged_outcome(void **state)
{
    (void)state;
    Bench b;
    LittleModel m = ffn(0.3f, 0.3f);
    mpr_step_outcome outcome;
    open_bench(&b, &m, NULL, NULL);
    assert_int_equal(mpr_scaler_outcome(b.sc, b.opt, &outcome), MPR_E_ORDER);
    for (int bad = 0; bad < 2; bad++) {
        bind(&b, "x", WIDE, 1);
        bind(&b, "labels", WIDE, bad ? 1e38f : 1);
        assert_call(mpr_session_forward(b.s, NULL), b.s);
        assert_call(mpr_session_backward(b.s, b.sc), b.s);
        assert_call(mpr_scaler_unscale(b.sc, b.opt), b.sc);
        assert_call(mpr_optimizer_clip_grad_norm(b.opt, 1, NULL), b.opt);
        assert_call(mpr_scaler_step(b.sc, b.opt, NULL), b.sc);
        assert_call(mpr_scaler_update(b.sc), b.sc);
        assert_call(mpr_session_zero_grad(b.s), b.s);
        assert_call(mpr_scaler_outcome(b.sc, b.opt, &outcome), b.sc);
        assert_int_equal(outcome, bad ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED);
    }
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_in_one_weight), cmocka_unit_test(overflow_in_ffn),
        cmocka_unit_test(masked_row),        cmocka_unit_test(lost_epsilon),
        cmocka_unit_test(moved_product),
        cmocka_unit_test(overflow_in_backward), cmocka_unit_test(which_micro_batch),
        cmocka_unit_test(manual_window),     cmocka_unit_test(inside_a_kernel),
        cmocka_unit_test(leaves_no_trace),   cmocka_unit_test(manual_divergence),
        cmocka_unit_test(lagged_outcome),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
