/* Accumulation windows whose micro-batches count unequal numbers of labels: with the mean over all
 * labels the window is one large batch; equal numbers, a window that ends early, a save inside it. */
#include "tests/support/little_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 8, WIDE = 6, CLASSES = 4 };

typedef struct Net {
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_prepared *p;
} Net;

/* Labels of the eight rows: 3, 1, 0 and 2 counted ones in rows 0-2, 3-4, 5, 6-7. */
static const int64_t uneven[ROWS] = {1, 0, 3, -100, 2, -100, 1, 3};
static const int64_t even[ROWS] = {1, -100, 3, -100, 2, -100, 1, -100};

/* own: the loss is in the file, with class weights, behind an Identity of the labels. */
static LittleModel classifier(bool own)
{
    LittleModel m = {.nodes = {{"MatMul", "/a/MatMul", "x w1", "h", NULL},
                               {"Relu", "/act/Relu", "h", "r", NULL},
                               {"MatMul", "/b/MatMul", "r w2", "logits", NULL}},
                     .tensors = {{"w1", {WIDE, 16, -1}, 0, 0.5f},
                                 {"w2", {16, CLASSES, -1}, 0, 0.45f}},
                     .inputs = {{"x", MPR_FLOAT32, {-1, WIDE, -99}}},
                     .output = "logits"};
    if (!own) return m;
    m.nodes[3] = (LittleNode){"Identity", "/Identity", "labels", "flat", NULL};
    m.nodes[4] = (LittleNode){"Add", "/cw", "half one", "cw", NULL};
    m.nodes[5] = (LittleNode){"SoftmaxCrossEntropyLoss", "/ce", "logits flat cw", "loss",
                              "ignore_index=-100"};
    m.tensors[2] = (LittleTensor){"half", {CLASSES, -1}, 0, 0.4f}; /* weights 1 + …: all above 0 */
    m.tensors[3] = (LittleTensor){"one", {CLASSES, -1}, 1, 0};
    m.inputs[1] = (LittleInput){"labels", MPR_INT64, {-1, -99}};
    m.output = "loss";
    return m;
}

static void open_net(Net *n, mpr_dtype low, bool own, int window, bool over_labels)
{
    mpr_context_options co = {.size = sizeof co, .device = TEST_DEVICE, .threads = 1};
    LittleModel m = classifier(own);
    const char *frozen[] = {"half", "one", NULL};
    mpr_session_options o = {.size = sizeof o,
                             .autocast = low,
                             .loss = own ? "output:loss" : "cross-entropy",
                             .freeze = own ? frozen : NULL,
                             .count_labels = over_labels};
    mpr_sgd sgd = {.size = sizeof sgd, .learning_rate = 0.5};
    mpr_prepare_options po = {.size = sizeof po,
                              .gradient_accumulation_steps = window,
                              .mean_over_labels = over_labels};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 64};
    if (low) po.scaler = &so;
    assert_int_equal(mpr_context_create(&co, &n->ctx), MPR_OK);
    assert_call(mpr_model_load(n->ctx, test_little_file("w.onnx", &m), NULL, &n->model), n->ctx);
    assert_call(mpr_session_open(n->model, &o, &n->s), n->model);
    assert_call(mpr_optimizer_sgd(n->s, &sgd, &n->opt), n->s);
    assert_call(mpr_prepare(n->s, n->opt, NULL, NULL, &po, &n->p), n->s);
}

static void close_net(Net *n)
{
    mpr_prepared_destroy(n->p);
    mpr_optimizer_destroy(n->opt);
    mpr_session_close(n->s);
    mpr_model_destroy(n->model);
    mpr_context_destroy(n->ctx);
}

static void bind_rows(Net *n, const int64_t *labels, int from, int to)
{
    float x[ROWS * WIDE];
    test_little_fill(x, ROWS * WIDE, 1);
    assert_call(mpr_session_bind(n->s, "x", x + from * WIDE, MPR_FLOAT32,
                                 (int64_t[]){to - from, WIDE}, 2), n->s);
    assert_call(mpr_session_bind(n->s, "labels", labels + from, MPR_INT64,
                                 (int64_t[]){to - from}, 1), n->s);
}

typedef struct Step {
    mpr_step_result r;
    float w[WIDE * 16 + 16 * CLASSES];
} Step;

static void take_weights(Net *n, Step *out)
{
    assert_call(mpr_session_parameter_get(n->s, "w1", out->w, WIDE * 16), n->s);
    assert_call(mpr_session_parameter_get(n->s, "w2", out->w + WIDE * 16, 16 * CLASSES), n->s);
}

/* Micro-batches [cut[0], cut[1]), [cut[1], cut[2]) …, which end with ROWS. */
static void micro_batches(Net *n, const int64_t *labels, const int *cut, Step *out)
{
    for (; *cut < ROWS; cut++) {
        bind_rows(n, labels, cut[0], cut[1]);
        assert_call(mpr_prepared_backward(n->p, NULL), n->p);
        assert_call(mpr_prepared_step(n->p, &out->r), n->p);
    }
    take_weights(n, out);
}

static Step one_window(const int64_t *labels, mpr_dtype low, bool own, const int *cut,
                       bool over_labels)
{
    Net n;
    Step out;
    int window = 0;
    while (cut[window] < ROWS) window++;
    open_net(&n, low, own, window, over_labels);
    micro_batches(&n, labels, cut, &out);
    assert_false(out.r.window_open);
    close_net(&n);
    return out;
}

static float apart(const Step *a, const Step *b)
{
    float worst = 0;
    for (size_t i = 0; i < sizeof a->w / sizeof *a->w; i++)
        worst = fmaxf(worst, fabsf(a->w[i] - b->w[i]));
    return worst;
}

static const int whole[] = {0, ROWS}, parts[] = {0, 3, 5, 6, ROWS}, late[] = {0, 2, 3, 6, ROWS},
                 empty_first[] = {0, 1, 3, 6, ROWS};

/* ---- tests ---- */

static void equal_to_one_batch(void **state)
{
    (void)state;
    static const int64_t blank_first[ROWS] = {-100, 0, 3, -100, 2, -100, 1, 3};
    static const struct {
        const int64_t *labels;
        const int *cut;
    } rows[] = {{uneven, parts}, {uneven, late}, {blank_first, empty_first}};
    for (int own = 0; own < 2; own++)
        for (int low = 0; low < 2; low++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                mpr_dtype t = low ? MPR_FLOAT16 : MPR_DTYPE_NONE;
                float limit = low ? 2e-3f : 2e-6f;
                Step one = one_window(rows[i].labels, t, own, whole, true);
                Step many = one_window(rows[i].labels, t, own, rows[i].cut, true);
                Step plain = one_window(rows[i].labels, t, own, rows[i].cut, false);
                assert_int_equal(one.r.outcome, MPR_STEP_UPDATED);
                assert_int_equal(many.r.outcome, MPR_STEP_UPDATED);
                assert_true(fabsf(one.r.loss - many.r.loss) <= limit * fabsf(one.r.loss));
                assert_true(fabsf(one.r.grad_norm - many.r.grad_norm) <=
                            10 * limit * one.r.grad_norm);
                if (apart(&one, &many) > limit) fail_msg("%g", (double)apart(&one, &many));
                if (!low) assert_true(apart(&one, &plain) > 1e-3f);
            }
}

static void same_bits_where_counts_are_equal(void **state)
{
    (void)state;
    static const int cut[] = {0, 2, 4, 6, ROWS};
    for (int low = 0; low < 2; low++) {
        mpr_dtype t = low ? MPR_FLOAT16 : MPR_DTYPE_NONE;
        Step a = one_window(even, t, false, cut, false), b = one_window(even, t, false, cut, true);
        assert_memory_equal(a.w, b.w, sizeof a.w);
        assert_true(a.r.loss == b.r.loss && a.r.grad_norm == b.r.grad_norm);
    }
}

static void no_label_at_all(void **state)
{
    (void)state;
    static const int64_t none[ROWS] = {-100, -100, -100, -100, -100, -100, -100, -100};
    Net n;
    Step before, after;
    open_net(&n, MPR_FLOAT16, false, 2, true);
    take_weights(&n, &before);
    micro_batches(&n, none, (const int[]){0, 4, ROWS}, &after);
    assert_int_equal(after.r.outcome, MPR_STEP_SKIPPED);
    assert_true(isnan(after.r.loss));
    assert_string_equal(after.r.first_bad, "no label of the window counts");
    assert_memory_equal(before.w, after.w, sizeof before.w);
    micro_batches(&n, uneven, (const int[]){0, 4, ROWS}, &after); /* and on it goes */
    assert_int_equal(after.r.outcome, MPR_STEP_UPDATED);
    close_net(&n);
}

/* Saved after two of four micro-batches and loaded into another session: the same bits. */
static void saved_inside_a_window(void **state)
{
    (void)state;
    char folder[64];
    Step want = one_window(uneven, MPR_FLOAT16, false, parts, true), got;
    Net n, m, other;
    snprintf(folder, sizeof folder, "/tmp/mpr-windows-%ld", (long)getpid());
    open_net(&n, MPR_FLOAT16, false, 4, true);
    for (int i = 0; i < 2; i++) {
        bind_rows(&n, uneven, parts[i], parts[i + 1]);
        assert_call(mpr_prepared_backward(n.p, NULL), n.p);
        assert_call(mpr_prepared_step(n.p, &got.r), n.p);
        assert_true(got.r.window_open);
    }
    assert_call(mpr_prepared_save(n.p, folder), n.p);
    close_net(&n);
    open_net(&m, MPR_FLOAT16, false, 4, true);
    assert_call(mpr_prepared_load(m.p, folder), m.p);
    micro_batches(&m, uneven, parts + 2, &got);
    assert_false(got.r.window_open);
    assert_memory_equal(got.w, want.w, sizeof want.w);
    assert_true(got.r.loss == want.r.loss && got.r.grad_norm == want.r.grad_norm);
    close_net(&m);
    open_net(&other, MPR_FLOAT16, false, 4, false);
    assert_int_equal(mpr_prepared_load(other.p, folder), MPR_E_CHECKPOINT);
    assert_non_null(strstr(mpr_last_error(other.p).advice, "accumulation-mean"));
    close_net(&other);
    test_remove_folder(folder);
}

static void what_is_refused(void **state)
{
    (void)state;
    Net n;
    mpr_prepared *p;
    mpr_scaler_options off = {.size = sizeof off, .disabled = true};
    mpr_prepare_options po = {.size = sizeof po, .mean_over_labels = true, .scaler = &off};
    open_net(&n, MPR_FLOAT16, true, 2, false);
    assert_int_equal(mpr_prepare(n.s, n.opt, NULL, NULL, &po, &p), MPR_E_USAGE);
    po.scaler = NULL;
    assert_int_equal(mpr_prepare(n.s, n.opt, NULL, NULL, &po, &p), MPR_E_USAGE);
    assert_non_null(strstr(mpr_last_error(n.s).advice, "count_labels"));
    close_net(&n);
    /* a loss with a further term has no number of labels */
    mpr_context_options co = {.size = sizeof co, .device = TEST_DEVICE, .threads = 1};
    LittleModel m = classifier(true);
    m.nodes[6] = (LittleNode){"ReduceMean", "/reg", "r", "reg", "keepdims=0"};
    m.nodes[7] = (LittleNode){"Add", "/sum", "loss reg", "total", NULL};
    m.output = "total";
    mpr_session_options o = {.size = sizeof o, .loss = "output:total", .count_labels = true};
    assert_int_equal(mpr_context_create(&co, &n.ctx), MPR_OK);
    assert_call(mpr_model_load(n.ctx, test_little_file("t.onnx", &m), NULL, &n.model), n.ctx);
    assert_int_equal(mpr_session_open(n.model, &o, &n.s), MPR_E_USAGE);
    assert_non_null(strstr(mpr_last_error(n.model).message, "'total'"));
    mpr_model_destroy(n.model);
    mpr_context_destroy(n.ctx);
}

/* Level 1: the divisor of each backward is N / count. */
static void by_hand(void **state)
{
    (void)state;
    for (int own = 0; own < 2; own++) {
        Step one = one_window(uneven, MPR_DTYPE_NONE, own, whole, true), many;
        Net n;
        double total, count;
        mpr_step_outcome outcome;
        open_net(&n, MPR_DTYPE_NONE, own, 1, true);
        bind_rows(&n, uneven, 0, ROWS);
        assert_call(mpr_session_forward(n.s, NULL), n.s);
        assert_call(mpr_session_label_count(n.s, &total), n.s);
        for (int i = 0; parts[i] < ROWS; i++) {
            bind_rows(&n, uneven, parts[i], parts[i + 1]);
            assert_call(mpr_session_forward(n.s, NULL), n.s);
            assert_call(mpr_session_label_count(n.s, &count), n.s);
            if (count == 0) continue;
            assert_call(mpr_session_set_loss_divisor(n.s, (float)(total / count)), n.s);
            assert_call(mpr_session_backward(n.s, NULL), n.s);
        }
        assert_call(mpr_optimizer_step(n.opt, &outcome), n.opt);
        assert_int_equal(outcome, MPR_STEP_UPDATED);
        take_weights(&n, &many);
        assert_true(apart(&one, &many) <= 2e-6f);
        close_net(&n);
    }
}

/* ---- the trainer: windows of two, the last of an epoch holds one micro-batch ---- */

typedef struct Feed {
    const int *cut;
    mpr_step_result step[8];
    int steps;
} Feed;

static int64_t on_batch(void *user, mpr_session *s, int64_t epoch, int64_t batch)
{
    Feed *f = user;
    (void)epoch;
    Net n = {.s = s};
    if (f->cut[batch] >= ROWS) return 0;
    bind_rows(&n, uneven, f->cut[batch], f->cut[batch + 1]);
    return f->cut[batch + 1] - f->cut[batch];
}

static int on_step(void *user, int64_t step, int64_t max_steps, const mpr_step_result *r)
{
    Feed *f = user;
    (void)step, (void)max_steps;
    if (f->steps < 8) f->step[f->steps++] = *r;
    return MPR_CONTINUE;
}

static void train(Feed *f, const int *cut, const char *window, const char *mean)
{
    mpr_context_options co = {.size = sizeof co, .device = TEST_DEVICE, .threads = 1};
    mpr_context *ctx;
    mpr_model *model;
    mpr_trainer_options *o;
    mpr_trainer *t;
    char out[64];
    LittleModel m = classifier(false);
    *f = (Feed){.cut = cut};
    snprintf(out, sizeof out, "/tmp/mpr-windows-%ld", (long)getpid());
    const char *const flags[] = {"output-dir", out, "loss", "cross-entropy", "max-steps",
                                 "4", "learning-rate", "0", "save-strategy", "no",
                                 "gradient-accumulation-steps", window,
                                 "accumulation-mean", mean, NULL};
    assert_int_equal(mpr_context_create(&co, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, test_little_file("tr.onnx", &m), NULL, &model), ctx);
    assert_call(mpr_trainer_options_create(ctx, &o), ctx);
    for (int i = 0; flags[i]; i += 2)
        assert_call(mpr_trainer_options_set(o, flags[i], flags[i + 1]), o);
    mpr_trainer_callbacks cb = {
        .size = sizeof cb, .user = f, .on_batch = on_batch, .on_step = on_step};
    assert_call(mpr_trainer_create(model, o, &cb, &t), model);
    assert_call(mpr_trainer_run(t, NULL), t);
    mpr_trainer_destroy(t);
    mpr_trainer_options_destroy(o);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    test_remove_folder(out);
}

static bool near(float a, float b) { return fabsf(a - b) <= 1e-5f * fabsf(b); }

static void in_the_trainer(void **state)
{
    (void)state;
    static const int pairs[] = {0, 3, 5, ROWS}, joined[] = {0, 5, ROWS};
    Feed a, b, plain;
    train(&a, pairs, "2", "labels");
    train(&b, joined, "1", "labels");
    train(&plain, pairs, "2", "batches");
    for (int i = 0; i < 4; i++) {
        assert_true(near(a.step[i].loss, b.step[i].loss));
        assert_true(near(a.step[i].grad_norm, b.step[i].grad_norm));
    }
    assert_false(near(plain.step[0].grad_norm, b.step[0].grad_norm));
    assert_true(near(plain.step[1].grad_norm, b.step[1].grad_norm)); /* one micro-batch */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_one_batch),
        cmocka_unit_test(same_bits_where_counts_are_equal),
        cmocka_unit_test(no_label_at_all),
        cmocka_unit_test(saved_inside_a_window),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(in_the_trainer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
