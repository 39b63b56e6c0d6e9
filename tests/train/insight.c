/* What --tensor-stats and --debug underflow_overflow show, and that looking changes no bit. */
#include "tests/train/digits.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

typedef struct Run {
    char out[64];
    char log[1 << 16]; /* messages */
    char error[2048];
    int stats;         /* lines with tensor statistics */
    mpr_status status;
    Digits d;
    bool poison;
} Run;

static void on_message(void *user, mpr_log_level level, const char *text)
{
    Run *run = user;
    size_t used = strlen(run->log);
    if (level >= MPR_LOG_NOTICE)
        snprintf(run->log + used, sizeof run->log - used, "%s\n", text);
}

static void check_tensor(const json_t *t)
{
    const json_t *counts = json_object_get(t, "counts"), *count;
    json_int_t n = json_integer_value(json_object_get(t, "elements")), sum = 0;
    size_t i;
    json_array_foreach((json_t *)counts, i, count) sum += json_integer_value(count);
    double zero = json_number_value(json_object_get(t, "zero"));
    sum += json_integer_value(json_object_get(t, "nonfinite"));
    assert_true(n > 0);
    assert_true(fabs((double)sum + zero * (double)n - (double)n) < 0.5);
    assert_true(json_number_value(json_object_get(t, "subnormal")) <= 1);
    assert_non_null(json_string_value(json_object_get(t, "node")));
}

static int on_log(void *user, const char *text)
{
    Run *run = user;
    json_t *line = json_loads(text, 0, NULL), *t;
    assert_non_null(line);
    const json_t *stats = json_object_get(line, "tensor_stats");
    size_t i;
    int kinds[3] = {0};
    json_array_foreach(json_object_get(stats, "tensors"), i, t)
    {
        const char *kind = json_string_value(json_object_get(t, "kind"));
        kinds[0] += !strcmp(kind, "activation");
        kinds[1] += !strcmp(kind, "activation_gradient");
        kinds[2] += !strcmp(kind, "weight_gradient");
        if (!strcmp(kind, "weight_gradient"))
            assert_true(!strncmp(json_string_value(json_object_get(t, "tensor")), "net.", 4));
        check_tensor(t);
    }
    if (stats) {
        run->stats++;
        assert_true(kinds[0] > 0 && kinds[1] > 0 && kinds[2] >= 4);
        assert_int_equal(json_integer_value(json_object_get(line, "step")) % 2, 0);
        assert_true(json_number_value(json_object_get(stats, "loss_scale")) > 0);
        assert_non_null(strstr(json_string_value(json_object_get(stats, "advice")), "loss scale"));
    }
    json_decref(line);
    return MPR_CONTINUE;
}

static int64_t on_batch(void *user, mpr_session *s, int64_t epoch, int64_t batch)
{
    Run *run = user;
    static float bad[8 * 64];
    (void)epoch;
    if (batch == 6) return 0;
    digits_bind(&run->d, s, 8 * batch, 8);
    if (!run->poison || batch != 3) return 8;
    memcpy(bad, run->d.x.data, sizeof(bad));
    for (int i = 0; i < 64; i++) bad[i] = 6e4f; /* 64 of them overflow a product in float16 */
    assert_call(mpr_session_bind(s, "x", bad, MPR_FLOAT32, (int64_t[]){8, 64}, 2), s);
    return 8;
}

static void train(Run *run, const char *scale, const char *option, const char *value)
{
    mpr_context_options co = {
        .size = sizeof(co), .device = TEST_DEVICE, .threads = 1, .log = on_message, .log_user = run};
    mpr_trainer_options *o;
    mpr_trainer *t;
    snprintf(run->out, sizeof(run->out), "/tmp/mpr-insight-%ld", (long)getpid());
    run->log[0] = run->error[0] = 0;
    run->stats = 0;
    digits_open(&run->d, 1);
    mpr_context *ctx;
    mpr_model *model;
    assert_int_equal(mpr_context_create(&co, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, test_data("digits/model_ts.onnx"), NULL, &model), ctx);
    assert_call(mpr_trainer_options_create(ctx, &o), ctx);
    const char *flags[] = {"output-dir", run->out,    "loss",      "cross-entropy", "fp16",
                           "true",       "max-steps", "6",         "init-scale",    scale,
                           "logging-steps", "1",      "save-strategy", "no",        option,
                           value,        NULL};
    for (const char **f = flags; *f; f += 2) assert_call(mpr_trainer_options_set(o, f[0], f[1]), o);
    mpr_trainer_callbacks cb = {
        .size = sizeof(cb), .user = run, .on_log = on_log, .on_batch = on_batch};
    assert_call(mpr_trainer_create(model, o, &cb, &t), model);
    run->status = mpr_trainer_run(t, NULL);
    if (run->status != MPR_OK)
        snprintf(run->error, sizeof(run->error), "%s", mpr_last_error(t).message);
    mpr_trainer_destroy(t);
    mpr_trainer_options_destroy(o);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    digits_close(&run->d);
}

static void *model_of(const Run *run, size_t *n)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/model.onnx", run->out);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *bytes = calloc(1, 1 << 20);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void statistics(void **state)
{
    (void)state;
    static Run run;
    size_t n, m;
    train(&run, "1024", "seed", "42");
    assert_int_equal(run.status, MPR_OK);
    assert_int_equal(run.stats, 0);
    void *plain = model_of(&run, &n);
    train(&run, "1024", "tensor-stats", "2");
    assert_int_equal(run.status, MPR_OK);
    assert_int_equal(run.stats, 3);
    assert_non_null(strstr(run.log, "step 2, tensors: the loss scale 1024"));
    void *seen = model_of(&run, &m);
    assert_int_equal(n, m);
    assert_memory_equal(plain, seen, n);
    free(plain);
    free(seen);
    /* too low a scale is told, with the room and the tensors that lose; and too high a one */
    train(&run, "1", "tensor-stats", "2");
    assert_non_null(strstr(run.log, "the loss scale 1 is low"));
    assert_non_null(strstr(run.log, "% subnormal"));
    train(&run, "16777216", "tensor-stats", "2");
    assert_non_null(strstr(run.log, "is too high"));
    test_remove_folder(run.out);
}

static void frames(void **state)
{
    (void)state;
    static Run run;
    train(&run, "1024", "debug", "underflow_overflow");
    assert_int_equal(run.status, MPR_OK);
    assert_null(strstr(run.log, "Detected"));
    run.poison = true;
    train(&run, "1024", "debug", "underflow_overflow");
    assert_int_equal(run.status, MPR_E_NONFINITE);
    assert_non_null(strstr(run.log, "Detected inf/nan during step 4"));
    assert_non_null(strstr(run.log, "abs min  abs max  metadata"));
    assert_non_null(strstr(run.log, "6.00e+04 input  x"));
    assert_non_null(strstr(run.log, "inf output"));
    assert_non_null(strstr(run.error, "step 4: the forward pass is not finite from node '/net/"));
    test_remove_folder(run.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(statistics), cmocka_unit_test(frames)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
