/* Bug reports against training loops elsewhere, as tests: skipped steps and the schedule, windows
 * at the end of an epoch, NaN in the log, and resuming across precisions. See also bugs_scaler.c. */
#include "tests/train/digits.h"

#include <math.h>
#include <unistd.h>

enum { STEPS = 64 };

typedef struct Run {
    char out[64], log[1 << 16], lines[1 << 16], error[2048];
    mpr_step_result step[STEPS];
    int n, poison_from;
    int64_t rows[16]; /* own data source: rows of each batch of an epoch, ends with 0 */
    mpr_trainer_result result;
    mpr_status status;
    Digits d;
} Run;

static void on_message(void *user, mpr_log_level level, const char *text)
{
    Run *run = user;
    size_t used = strlen(run->log);
    if (level >= MPR_LOG_INFO)
        snprintf(run->log + used, sizeof run->log - used, "%s\n", text);
}

static int on_log(void *user, const char *json)
{
    Run *run = user;
    size_t used = strlen(run->lines);
    snprintf(run->lines + used, sizeof run->lines - used, "%s\n", json);
    return MPR_CONTINUE;
}

static int on_step(void *user, int64_t step, int64_t max_steps, const mpr_step_result *r)
{
    Run *run = user;
    (void)step, (void)max_steps;
    if (run->n < STEPS) run->step[run->n++] = *r;
    return MPR_CONTINUE;
}

static int64_t on_batch(void *user, mpr_session *s, int64_t epoch, int64_t batch)
{
    Run *run = user;
    static float bad[16 * 64];
    (void)epoch;
    int64_t rows = run->rows[batch];
    if (!rows) return 0;
    digits_bind(&run->d, s, 8 * batch, rows);
    if (!run->poison_from || run->n + 1 < run->poison_from) return rows;
    memcpy(bad, run->d.x.data, (size_t)rows * 64 * sizeof(float));
    bad[7] = NAN;
    assert_call(mpr_session_bind(s, "x", bad, MPR_FLOAT32, (int64_t[]){rows, 64}, 2), s);
    return rows;
}

static void train(Run *run, const char *model_file, const char *data, const char *const *flags)
{
    mpr_context_options co = {
        .size = sizeof(co), .device = TEST_DEVICE, .threads = 1, .log = on_message, .log_user = run};
    mpr_context *ctx;
    mpr_model *model;
    mpr_trainer_options *o;
    mpr_trainer *t;
    if (!run->out[0]) snprintf(run->out, sizeof(run->out), "/tmp/mpr-bugs-%ld", (long)getpid());
    run->log[0] = run->lines[0] = run->error[0] = 0;
    run->n = 0;
    digits_open(&run->d, 1);
    assert_int_equal(mpr_context_create(&co, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, test_data(model_file), NULL, &model), ctx);
    assert_call(mpr_trainer_options_create(ctx, &o), ctx);
    assert_call(mpr_trainer_options_set(o, "output-dir", run->out), o);
    assert_call(mpr_trainer_options_set(o, "loss", "cross-entropy"), o);
    assert_call(mpr_trainer_options_set(o, "logging-steps", "1"), o);
    if (data) assert_call(mpr_trainer_options_set(o, "train-data", test_data(data)), o);
    for (; *flags; flags += 2) assert_call(mpr_trainer_options_set(o, flags[0], flags[1]), o);
    mpr_trainer_callbacks cb = {.size = sizeof(cb),
                                .user = run,
                                .on_log = on_log,
                                .on_step = on_step,
                                .on_batch = data ? NULL : on_batch};
    run->result = (mpr_trainer_result){.size = sizeof(run->result)};
    run->status = mpr_trainer_create(model, o, &cb, &t);
    if (run->status == MPR_OK) {
        run->status = mpr_trainer_run(t, &run->result);
        if (run->status != MPR_OK)
            snprintf(run->error, sizeof(run->error), "%s", mpr_last_error(t).message);
        mpr_trainer_destroy(t);
    }
    mpr_trainer_options_destroy(o);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    digits_close(&run->d);
}

#define TRAIN(run, model, data, ...) \
    train(run, model, data, (const char *const[]){__VA_ARGS__, NULL})

/* ---- rows ---- */

/* Skips at a start scale far too high do not advance the schedule; by updates it ends at 0. */
static void schedule_follows_updates(void **state)
{
    (void)state;
    static Run run;
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "fp16", "true", "init-scale",
          "16777216", "learning-rate", "0.001", "max-steps", "20", "max-steps-count", "updates",
          "save-strategy", "no");
    assert_int_equal(run.status, MPR_OK);
    assert_true(run.result.skipped > 0);
    assert_int_equal(run.result.updates, 20);
    assert_int_equal(run.result.steps, 20 + run.result.skipped);
    int updates = 0;
    for (int i = 0; i < run.n; i++) { /* the rate of a step: by the updates before it */
        double want = 0.001 * (1 - updates / 20.0);
        assert_true(fabs(run.step[i].learning_rate - want) < 1e-12);
        updates += run.step[i].outcome == MPR_STEP_UPDATED;
        assert_true(run.step[i].outcome != MPR_STEP_SKIPPED || run.step[i].first_bad != NULL);
    }
    assert_non_null(strstr(run.log, "loss scale found: "));
    test_remove_folder(run.out);
}

/* 5 batches in windows of 2, 2 epochs: three updates an epoch, the last is one batch's mean. */
static void window_ends_with_the_epoch(void **state)
{
    (void)state;
    static Run run, single;
    const int64_t rows[] = {8, 8, 8, 8, 8, 0};
    memcpy(run.rows, rows, sizeof rows);
    TRAIN(&run, "digits/model_ts.onnx", NULL, "gradient-accumulation-steps", "2", "max-steps", "6",
          "learning-rate", "0", "max-grad-norm", "0", "save-strategy", "no");
    assert_int_equal(run.status, MPR_OK);
    assert_int_equal(run.result.updates, 6);
    const int64_t last[] = {8, 8, 8, 8, 8, 0};
    memcpy(single.rows, last, sizeof last);
    TRAIN(&single, "digits/model_ts.onnx", NULL, "max-steps", "5", "learning-rate", "0",
          "max-grad-norm", "0", "save-strategy", "no");
    assert_true(fabsf(run.step[2].loss - single.step[4].loss) < 1e-6f);
    assert_true(fabsf(run.step[2].grad_norm - single.step[4].grad_norm) <
                1e-5f * single.step[4].grad_norm);
    assert_true(fabsf(run.step[5].grad_norm - run.step[2].grad_norm) <
                1e-5f * run.step[2].grad_norm);
    test_remove_folder(run.out);
}

/* NaN from step 5 on: shown as NaN, counted, the first one named; --nan-forward stop ends there. */
static void nan_is_shown(void **state)
{
    (void)state;
    static Run run;
    const int64_t rows[] = {8, 8, 8, 8, 8, 8, 8, 8, 0};
    memcpy(run.rows, rows, sizeof rows);
    run.poison_from = 5;
    TRAIN(&run, "digits/model_ts.onnx", NULL, "fp16", "true", "max-steps", "8", "save-strategy",
          "no", "init-scale", "1024");
    assert_int_equal(run.status, MPR_OK);
    assert_int_equal(run.result.skipped, 4);
    assert_non_null(strstr(run.lines, "\"loss\": \"nan\""));
    assert_null(strstr(run.lines, "\"loss\": 0,"));
    assert_non_null(strstr(run.lines, "\"nonfinite\": \"input 'x' is NaN at element 7"));
    assert_non_null(strstr(run.log, "step 5: the loss is not finite: input 'x' is NaN"));
    assert_null(strstr(run.log, "step 6: the loss")); /* once in a row */
    TRAIN(&run, "digits/model_ts.onnx", NULL, "fp16", "true", "max-steps", "8", "save-strategy",
          "no", "init-scale", "1024", "nan-forward", "stop");
    assert_int_equal(run.status, MPR_E_NONFINITE);
    assert_non_null(strstr(run.error, "step 5"));
    assert_int_equal(run.n, 4);
    test_remove_folder(run.out);
}

/* float32 -> float16 -> float32: a fresh scaler with a notice, then its state ignored with one. */
static void precision_changes_on_resume(void **state)
{
    (void)state;
    static Run run;
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "max-steps", "4", "save-strategy",
          "steps", "save-steps", "4");
    assert_int_equal(run.status, MPR_OK);
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "max-steps", "8", "save-strategy",
          "steps", "save-steps", "4", "resume-from-checkpoint", "last", "fp16", "true",
          "init-scale", "512");
    assert_int_equal(run.status, MPR_OK);
    assert_true(run.step[0].scale == 512);
    assert_non_null(strstr(run.log, "the loss scaler starts afresh"));
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "max-steps", "12", "save-strategy",
          "steps", "save-steps", "4", "resume-from-checkpoint", "last");
    assert_int_equal(run.status, MPR_OK);
    assert_true(run.step[0].scale == 1);
    assert_non_null(strstr(run.log, "the saved dynamic loss scale is ignored"));
    test_remove_folder(run.out);
}

/* A checkpoint at the end of an epoch of a net with dropout: the run that goes on from it is the
 * run that was never interrupted. */
static void dropout_at_an_epoch_end(void **state)
{
    (void)state;
    static Run whole, part;
    static const char *const common[] = {"fp16", "true", "dropout", "0.2", "init-scale", "512",
                                         "num-train-epochs", "2", "per-device-train-batch-size",
                                         "64", "learning-rate", "0.01"};
    const char *flags[20] = {0};
    memcpy(flags, common, sizeof common);
    snprintf(whole.out, sizeof(whole.out), "/tmp/mpr-bugs-w-%ld", (long)getpid());
    train(&whole, "digits_vit/model_ts.onnx", "digits_vit/train.npz", flags);
    assert_int_equal(whole.status, MPR_OK);
    char from[128];
    int half = whole.n / 2;
    snprintf(from, sizeof(from), "%s/checkpoint-%d", whole.out, half);
    flags[12] = "resume-from-checkpoint";
    flags[13] = from;
    train(&part, "digits_vit/model_ts.onnx", "digits_vit/train.npz", flags);
    assert_int_equal(part.status, MPR_OK);
    assert_int_equal(part.n, whole.n - half);
    for (int i = 0; i < part.n; i++)
        assert_true(part.step[i].loss == whole.step[half + i].loss &&
                    part.step[i].scale == whole.step[half + i].scale);
    test_remove_folder(whole.out);
    test_remove_folder(part.out);
}

static int stats_lines(const char *folder, int from[16])
{
    char path[128], *line = NULL;
    size_t room = 0;
    int n = 0;
    snprintf(path, sizeof(path), "%s/log.jsonl", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (getline(&line, &room, f) > 0) {
        const char *step = NULL;
        for (const char *p = line; (p = strstr(p, "\"step\": ")); p++) step = p + 8;
        assert_non_null(step);
        if (!strncmp(line, "{\"tensor_stats\"", 15) && n < 16) from[n++] = atoi(step);
    }
    free(line);
    fclose(f);
    return n;
}

/* A run that goes on keeps the statistics written before: no checkpoint holds them, the log does. */
static void statistics_survive_a_resume(void **state)
{
    (void)state;
    static Run run;
    int step[16];
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "fp16", "true", "init-scale", "512",
          "max-steps", "7", "save-strategy", "steps", "save-steps", "4", "tensor-stats", "1",
          "logging-steps", "2");
    assert_int_equal(run.status, MPR_OK);
    assert_int_equal(stats_lines(run.out, step), 7);
    char from[128];
    snprintf(from, sizeof(from), "%s/checkpoint-4", run.out);
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "fp16", "true", "init-scale", "512",
          "max-steps", "8", "save-strategy", "no", "tensor-stats", "2", "logging-steps", "2",
          "resume-from-checkpoint", from);
    assert_int_equal(run.status, MPR_OK);
    static const int want[] = {1, 2, 3, 4, 6, 8};
    assert_int_equal(stats_lines(run.out, step), 6);
    for (int i = 0; i < 6; i++) assert_int_equal(step[i], want[i]);
    /* a log of another run is written anew from what the checkpoint remembers */
    char other[128];
    snprintf(other, sizeof(other), "%s/log.jsonl", run.out);
    FILE *f = fopen(other, "w");
    assert_non_null(f);
    fputs("{\"loss\": 1, \"epoch\": 0.1, \"step\": 1}\n", f);
    fclose(f);
    TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "fp16", "true", "init-scale", "512",
          "max-steps", "8", "save-strategy", "no", "tensor-stats", "2", "logging-steps", "2",
          "resume-from-checkpoint", from);
    assert_int_equal(run.status, MPR_OK);
    assert_int_equal(stats_lines(run.out, step), 2);
    test_remove_folder(run.out);
}

/* A number that is 0 in float32 is refused, not taken for a default. */
static void scale_too_small_for_float32(void **state)
{
    (void)state;
    static Run run;
    static const char *const names[] = {"min-scale", "init-scale", "max-scale", "loss-scale"};
    for (int i = 0; i < 4; i++) {
        TRAIN(&run, "digits/model_ts.onnx", "digits/train.npz", "fp16", "true", "max-steps", "1",
              "save-strategy", "no", names[i], "1e-50");
        assert_int_equal(run.status, MPR_E_USAGE);
    }
    test_remove_folder(run.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_follows_updates),   cmocka_unit_test(window_ends_with_the_epoch),
        cmocka_unit_test(nan_is_shown),               cmocka_unit_test(precision_changes_on_resume),
        cmocka_unit_test(dropout_at_an_epoch_end),
        cmocka_unit_test(statistics_survive_a_resume),
        cmocka_unit_test(scale_too_small_for_float32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
