/* The trainer: learns digits in every precision, resumes to the same bits, skips what is not
 * finite, stops when nothing but skips is left. */
#include "tests/train/digits.h"

#include <dirent.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- runs ---- */

typedef struct Run {
    char out[64];
    mpr_status status;
    mpr_trainer_result result;
    char error[2048];
    int stop_at;   /* step at which the callback asks to stop, 0 never */
    int poison_at; /* own data source: step with a NaN feature */
    Digits *d;
    int logs, saves;
} Run;

static int on_step(void *user, int64_t step, int64_t max_steps, const mpr_step_result *r)
{
    Run *run = user;
    (void)max_steps;
    (void)r;
    return run->stop_at && step >= run->stop_at ? MPR_STOP : MPR_CONTINUE;
}

static int on_log(void *user, const char *json)
{
    ((Run *)user)->logs++;
    assert_true(json[0] == '{');
    return MPR_CONTINUE;
}

static int on_save(void *user, const char *directory)
{
    ((Run *)user)->saves++;
    assert_non_null(strstr(directory, "checkpoint-"));
    return MPR_CONTINUE;
}

static int64_t on_batch(void *user, mpr_session *s, int64_t epoch, int64_t batch)
{
    Run *run = user;
    static float bad[8 * 64];
    if (batch == 5) return 0; /* epochs of five batches */
    digits_bind(run->d, s, 8 * batch, 8);
    if (epoch * 5 + batch + 1 != run->poison_at) return 8;
    memcpy(bad, run->d->x.data, sizeof(bad));
    bad[100] = NAN;
    int64_t shape[2] = {8, 64};
    assert_call(mpr_session_bind(s, "x", bad, MPR_FLOAT32, shape, 2), s);
    return 8;
}

static void run_named(Run *run, const char *name)
{
    snprintf(run->out, sizeof(run->out), "/tmp/mpr-%s-%ld", name, (long)getpid());
}

/* flags: name, value … NULL. own: batches come from on_batch. */
static void train(Run *run, int threads, bool own, const char *const *flags)
{
    Digits d;
    mpr_trainer_options *o;
    mpr_trainer *t;
    digits_open(&d, threads);
    run->d = &d;
    assert_call(mpr_trainer_options_create(d.ctx, &o), d.ctx);
    assert_call(mpr_trainer_options_set(o, "output-dir", run->out), o);
    assert_call(mpr_trainer_options_set(o, "loss", "cross-entropy"), o);
    if (!own)
        assert_call(mpr_trainer_options_set(o, "train-data", test_data("digits/train.npz")), o);
    for (; flags && *flags; flags += 2)
        assert_call(mpr_trainer_options_set(o, flags[0], flags[1]), o);
    mpr_trainer_callbacks cb = {.size = sizeof(cb),
                                .user = run,
                                .on_step = on_step,
                                .on_log = on_log,
                                .on_save = on_save,
                                .on_batch = own ? on_batch : NULL};
    run->error[0] = 0;
    run->result = (mpr_trainer_result){.size = sizeof(run->result)};
    run->status = mpr_trainer_create(d.model, o, &cb, &t);
    if (run->status == MPR_OK) {
        run->status = mpr_trainer_run(t, &run->result);
        if (run->status != MPR_OK)
            snprintf(run->error, sizeof(run->error), "%s", mpr_last_error(t).message);
        mpr_trainer_destroy(t);
    } else {
        snprintf(run->error, sizeof(run->error), "%s", mpr_last_error(d.model).message);
    }
    mpr_trainer_options_destroy(o);
    digits_close(&d);
}

static char *slurp(const char *folder, const char *name, size_t *n)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("no %s", path);
    char *bytes = calloc(1, 1 << 21);
    *n = fread(bytes, 1, (1 << 21) - 1, f);
    fclose(f);
    return bytes;
}

static void same_file(const char *a, const char *b, const char *name)
{
    size_t n, m;
    char *x = slurp(a, name, &n), *y = slurp(b, name, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void succeeded(const Run *run)
{
    if (run->status != MPR_OK) fail_msg("%s: %s", mpr_status_text(run->status), run->error);
}

/* ---- tests ---- */

static void learns(void **state)
{
    (void)state;
    static const char *const precisions[] = {NULL, "fp16", "bf16"};
    for (int i = 0; i < 3; i++) {
        Run run = {0};
        char eval[600];
        run_named(&run, "learns");
        snprintf(eval, sizeof(eval), "%s", test_data("digits/eval.npz"));
        const char *flags[] = {"eval-data",
                               eval,
                               "eval-strategy",
                               "epoch",
                               "metrics",
                               "accuracy,f1",
                               "num-train-epochs",
                               "4",
                               "learning-rate",
                               "3e-3",
                               "metric-for-best-model",
                               "accuracy",
                               "load-best-model-at-end",
                               "true",
                               "save-total-limit",
                               "1",
                               precisions[i],
                               "true",
                               NULL};
        train(&run, 1, false, flags);
        succeeded(&run);
        assert_int_equal(run.result.steps, 704);
        assert_true(run.result.best_metric > 0.9);
        assert_int_equal(run.saves, 4);
        size_t n;
        char *log = slurp(run.out, "log.jsonl", &n);
        assert_non_null(strstr(log, "\"eval_f1\": "));
        assert_non_null(strstr(log, "\"train_runtime\": "));
        free(log);
        test_remove_folder(run.out);
    }
}

/* Interrupted at a step and resumed, and with another number of threads: the same weights, the same
 * log. */
static void same_bits(void **state)
{
    (void)state;
    const char *base[] = {"fp16",
                          "true",
                          "init-scale",
                          "4194304",
                          "growth-interval",
                          "4",
                          "per-device-train-batch-size",
                          "64",
                          "gradient-accumulation-steps",
                          "3",
                          "max-steps",
                          "20",
                          "save-strategy",
                          "steps",
                          "save-steps",
                          "7",
                          "logging-steps",
                          "2",
                          "lr-scheduler-type",
                          "cosine",
                          "learning-rate",
                          "5e-3",
                          NULL};
    const char *resumed[] = {"fp16",
                             "true",
                             "init-scale",
                             "4194304",
                             "growth-interval",
                             "4",
                             "per-device-train-batch-size",
                             "64",
                             "gradient-accumulation-steps",
                             "3",
                             "max-steps",
                             "20",
                             "save-strategy",
                             "steps",
                             "save-steps",
                             "7",
                             "logging-steps",
                             "2",
                             "lr-scheduler-type",
                             "cosine",
                             "learning-rate",
                             "5e-3",
                             "resume-from-checkpoint",
                             "last",
                             NULL};
    Run whole = {0}, parts = {.stop_at = 9};
    run_named(&whole, "whole");
    run_named(&parts, "parts");
    train(&whole, 1, false, base);
    succeeded(&whole);
    assert_true(whole.result.skipped > 0);
    train(&parts, 2, false, base);
    succeeded(&parts);
    assert_true(parts.result.stopped);
    parts.stop_at = 0;
    train(&parts, 1, false, resumed);
    succeeded(&parts);
    assert_int_equal(parts.result.skipped, whole.result.skipped);
    same_file(whole.out, parts.out, "model.onnx");
    same_file(whole.out, parts.out, "checkpoint-20/optimizer.safetensors");
    test_remove_folder(whole.out);
    test_remove_folder(parts.out);
}

/* A batch with a NaN is skipped; the run ends as one that never saw it. */
static void poisoned_batch(void **state)
{
    (void)state;
    const char *flags[] = {"max-steps",
                           "12",
                           "save-strategy",
                           "no",
                           "max-steps-count",
                           "updates",
                           "lr-scheduler-type",
                           "constant",
                           "fp16",
                           "true",
                           "growth-interval",
                           "1000",
                           "logging-steps",
                           "1",
                           NULL};
    Run bad = {.poison_at = 7};
    run_named(&bad, "poisoned");
    train(&bad, 1, true, flags);
    succeeded(&bad);
    assert_int_equal(bad.result.skipped, 1);
    assert_int_equal(bad.result.updates, 12);
    assert_int_equal(bad.result.steps, 13);
    size_t n;
    char *log = slurp(bad.out, "log.jsonl", &n);
    assert_non_null(strstr(log, "\"loss\": \"nan\""));
    assert_non_null(strstr(log, "input 'x' is NaN at element 100"));
    free(log);
    test_remove_folder(bad.out);
}

static void diverges(void **state)
{
    (void)state;
    const char *flags[] = {"max-steps",
                           "40",
                           "optim",
                           "sgd",
                           "learning-rate",
                           "1e30",
                           "lr-scheduler-type",
                           "constant",
                           "max-grad-norm",
                           "0",
                           "max-skipped-steps",
                           "3",
                           "save-strategy",
                           "steps",
                           "save-steps",
                           "1",
                           NULL};
    Run run = {0};
    run_named(&run, "diverges");
    train(&run, 1, false, flags);
    assert_int_equal(run.status, MPR_E_NONFINITE);
    assert_non_null(strstr(run.error, "3 steps in a row"));
    assert_non_null(strstr(run.error, "first bad tensor: "));
    char path[100];
    snprintf(path, sizeof(path), "%s/checkpoint-1/state.json", run.out);
    assert_int_equal(access(path, R_OK), 0); /* what was saved stays */
    const char *stop[] = {"max-steps",
                          "40",
                          "optim",
                          "sgd",
                          "learning-rate",
                          "1e30",
                          "lr-scheduler-type",
                          "constant",
                          "max-grad-norm",
                          "0",
                          "nan-forward",
                          "stop",
                          NULL};
    train(&run, 1, false, stop);
    assert_int_equal(run.status, MPR_E_NONFINITE);
    test_remove_folder(run.out);
}

static void refuses_contradictions(void **state)
{
    (void)state;
    static const char *const cases[][5] = {
        {"fp16", "true", "bf16", "true", NULL},
        {"load-best-model-at-end", "true", NULL, NULL, NULL},
        {"eval-strategy", "epoch", NULL, NULL, NULL},
        {"nesterov", "true", NULL, NULL, NULL},
        {"synthetic", "5", NULL, NULL, NULL},
        {"early-stopping-patience", "2", NULL, NULL, NULL},
        {"fp16", "true", "init-scale", "1e30", NULL},
        {"input", "z=x", NULL, NULL, NULL},
        {"output-dir", "/proc/nowhere", NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        Run run = {0};
        run_named(&run, "refused");
        train(&run, 1, false, cases[i]);
        if (run.status != MPR_E_USAGE && run.status != MPR_E_IO)
            fail_msg("case %zu: %s", i, mpr_status_text(run.status));
        assert_int_not_equal(access(run.out, F_OK), 0); /* nothing was written */
    }
}

/* save-total-limit keeps the newest; early stopping ends a run whose metric does not move. */
static void pruning_and_patience(void **state)
{
    (void)state;
    char eval[600];
    snprintf(eval, sizeof(eval), "%s", test_data("digits/eval.npz"));
    const char *flags[] = {"eval-data",
                           eval,
                           "eval-strategy",
                           "steps",
                           "eval-steps",
                           "2",
                           "save-strategy",
                           "steps",
                           "save-steps",
                           "2",
                           "save-total-limit",
                           "2",
                           "early-stopping-patience",
                           "3",
                           "learning-rate",
                           "0",
                           "max-steps",
                           "50",
                           NULL};
    Run run = {0};
    run_named(&run, "patience");
    train(&run, 1, false, flags);
    succeeded(&run);
    assert_int_equal(run.result.steps, 8);
    int n = 0;
    DIR *dir = opendir(run.out);
    for (struct dirent *e; (e = readdir(dir));) n += !strncmp(e->d_name, "checkpoint-", 11);
    closedir(dir);
    assert_int_equal(n, 2);
    test_remove_folder(run.out);
}

/* The export comes last, so that it would fall on an input is found before the first step. */
static void export_spares_inputs(void **state)
{
    (void)state;
    char path[600];
    snprintf(path, sizeof(path), "%s", test_data("digits/train.npz"));
    const char *flags[] = {"export", path, NULL};
    Run run = {0};
    run_named(&run, "export");
    train(&run, 1, false, flags);
    assert_int_equal(run.status, MPR_E_USAGE);
    assert_non_null(strstr(run.error, "same file as the input"));
    assert_int_not_equal(access(run.out, F_OK), 0);
}

/* A save that fails (its place is taken by a file) costs that checkpoint and nothing else. */
static void failed_save_goes_on(void **state)
{
    (void)state;
    static const char *const flags[] = {"save-strategy", "steps", "save-steps", "2",
                                        "max-steps",     "6",     NULL};
    char path[128];
    Run run = {0};
    run_named(&run, "nosave");
    assert_int_equal(mkdir(run.out, 0777), 0);
    snprintf(path, sizeof(path), "%s/checkpoint-4", run.out);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    train(&run, 1, false, flags);
    succeeded(&run);
    assert_int_equal(run.result.steps, 6);
    assert_int_equal(run.saves, 2);
    snprintf(path, sizeof(path), "%s/checkpoint-6/state.json", run.out);
    assert_int_equal(access(path, F_OK), 0);
    test_remove_folder(run.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(poisoned_batch),
        cmocka_unit_test(diverges),
        cmocka_unit_test(refuses_contradictions),
        cmocka_unit_test(pruning_and_patience),
        cmocka_unit_test(export_spares_inputs),
        cmocka_unit_test(failed_save_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
