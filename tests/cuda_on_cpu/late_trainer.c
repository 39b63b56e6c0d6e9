/* The trainer where the host looks late: lean between two log lines; steps, words and bits of every step are
 * those of a trainer whose callback is waited for, with data of a file and with batches by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda_on_cpu/trail.h"

typedef struct Watcher {
    int from, to;   /* steps between which it must be lean; 0: none */
    bool lean;
    int64_t last;
    Trail trail;
    char log[1 << 15];
} Watcher;

static int on_step(void *user, int64_t step, int64_t max_steps, const mpr_step_result *r)
{
    Watcher *w = user;
    Told *t = &w->trail.told[w->trail.n++];
    (void)max_steps;
    assert_int_equal(step, ++w->last);
    *t = (Told){.step = step, .outcome = r->outcome, .loss = r->loss, .norm = r->grad_norm, .scale = r->scale,
                .rate = r->learning_rate};
    if (step == w->from) shim_reset_counts();
    if (w->to && step == w->to) {
        is_lean(w->to - w->from);
        w->lean = true;
    }
    return MPR_CONTINUE;
}

static int on_log(void *user, const char *json)
{
    Watcher *w = user;
    if (!strstr(json, "train_runtime")) strncat(w->log, json, sizeof w->log - strlen(w->log) - 1);
    return MPR_CONTINUE;
}

/* Epochs of five batches: the second window of three is closed early. */
static int64_t on_batch(void *user, mpr_session *s, int64_t epoch, int64_t batch)
{
    float x[8 * 64];
    int64_t labels[8], shape[2] = {8, 64};
    (void)user;
    if (batch == 5) return 0;
    for (int i = 0; i < 8 * 64; i++) x[i] = (float)((i * 7 + (int)(epoch * 5 + batch) * 11) % 17) / 17;
    for (int i = 0; i < 8; i++) labels[i] = (i + epoch + batch) % 10;
    assert_call(mpr_session_bind(s, "x", x, MPR_FLOAT32, shape, 2), s);
    assert_call(mpr_session_bind(s, "labels", labels, MPR_INT64, shape, 1), s);
    return 8;
}

static void train(Watcher *w, int window, bool late, bool own, const char *scale, const char *logging)
{
    mpr_trainer_callbacks cb = {.size = sizeof cb,
                                .user = w,
                                .on_step = on_step,
                                .on_log = on_log,
                                .on_batch = own ? on_batch : NULL,
                                .on_step_late = late};
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = "cuda"};
    char out[64], number[8], command[100];
    mpr_context *ctx;
    mpr_model *model;
    mpr_trainer_options *o;
    mpr_trainer *t;
    snprintf(out, sizeof out, "/tmp/mpr-late-%ld", (long)getpid());
    snprintf(number, sizeof number, "%d", window);
    const char *const flags[] = {"output-dir", out, "loss", "cross-entropy", "fp16", "true", "max-steps",
                                 "50", "logging-steps", logging, "save-strategy", "no", "warmup-steps", "5",
                                 "init-scale", scale, "max-scale", "none", "growth-interval", "6",
                                 "gradient-accumulation-steps", number, NULL};
    assert_int_equal(mpr_context_create(&co, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, test_data("digits/model_ts.onnx"), NULL, &model), ctx);
    assert_call(mpr_trainer_options_create(ctx, &o), ctx);
    for (const char *const *f = flags; *f; f += 2) assert_call(mpr_trainer_options_set(o, f[0], f[1]), o);
    if (!own) assert_call(mpr_trainer_options_set(o, "train-data", test_data("digits/train.npz")), o);
    assert_call(mpr_trainer_create(model, o, &cb, &t), model);
    assert_call(mpr_trainer_run(t, NULL), t);
    assert_int_equal(w->last, 50);
    mpr_trainer_destroy(t);
    mpr_trainer_options_destroy(o);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    snprintf(command, sizeof command, "rm -rf %s", out);
    assert_int_equal(system(command), 0);
}

static void the_trainer_too(void **state)
{
    (void)state;
    static Watcher w[2];
    for (int window = 1; window < 4; window += 2) {
        w[0] = (Watcher){.from = 12, .to = 42};
        train(&w[0], window, true, false, "16", "100");
        assert_true(w[0].lean);
        for (int own = 0; own < 2; own++) {
            for (int late = 0; late < 2; late++) {
                w[late] = (Watcher){.from = 0};
                train(&w[late], window, late != 0, own != 0, "1e9", "7");
            }
            same_bits(&w[0].trail, &w[1].trail);
            assert_string_equal(w[0].log, w[1].log);
            assert_true(skips(&w[1].trail, false) > 6);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_trainer_too)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
