/* BatchNormalization in training: losses, evaluation losses and running statistics against values
 * that PyTorch gave in double (tests/data/batch_norm: an eval-mode model, its rows, ten steps of
 * SGD), losses in 16 bits against PyTorch's under autocast; the same bits for any number of threads
 * and after a resume; frozen without the option. */
#include "tests/train/digits.h"

#include <math.h>
#include <unistd.h>

enum { STEPS = 10 };

static const char *const statistics[] = {"bn1.running_mean", "bn1.running_var", "bn2.running_mean",
                                         "bn2.running_var"};

typedef struct Run {
    char out[64];
    float loss[2 * STEPS];
    int steps;
    char log[1 << 16]; /* what on_log received, line by line */
} Run;

static int on_step(void *user, int64_t step, int64_t max_steps, const mpr_step_result *r)
{
    Run *run = user;
    (void)step, (void)max_steps;
    run->loss[run->steps++] = r->loss;
    return MPR_CONTINUE;
}

static int on_log(void *user, const char *json)
{
    Run *run = user;
    snprintf(run->log + strlen(run->log), sizeof run->log - strlen(run->log), "%s\n", json);
    return MPR_CONTINUE;
}

static void train(Run *run, const char *model, int threads, const char *const *flags)
{
    static const char *const common[] = {
        "loss", "cross-entropy", "optim", "sgd", "learning-rate", "0.05", "momentum", "0.9",
        "lr-scheduler-type", "constant", "max-grad-norm", "0", "train-sampling-strategy",
        "sequential", "per-device-train-batch-size", "8", "per-device-eval-batch-size", "16",
        "logging-steps", "1", "report-to", "none", "eval-on-start", "true", "eval-strategy",
        "steps", "eval-steps", "10", NULL};
    mpr_context_options co = {.size = sizeof(co), .device = TEST_DEVICE, .threads = threads};
    mpr_context *ctx;
    mpr_model *m;
    mpr_trainer_options *o;
    mpr_trainer *t;
    assert_int_equal(mpr_context_create(&co, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, test_data(model), NULL, &m), ctx);
    assert_call(mpr_trainer_options_create(ctx, &o), ctx);
    assert_call(mpr_trainer_options_set(o, "train-data", test_data("batch_norm/train.npz")), o);
    assert_call(mpr_trainer_options_set(o, "eval-data", test_data("batch_norm/eval.npz")), o);
    assert_call(mpr_trainer_options_set(o, "output-dir", run->out), o);
    for (const char *const *f = common; *f; f += 2)
        assert_call(mpr_trainer_options_set(o, f[0], f[1]), o);
    for (; flags && *flags; flags += 2)
        assert_call(mpr_trainer_options_set(o, flags[0], flags[1]), o);
    mpr_trainer_callbacks cb = {
        .size = sizeof(cb), .user = run, .on_step = on_step, .on_log = on_log};
    mpr_trainer_result result = {.size = sizeof(result)};
    run->steps = 0;
    run->log[0] = 0;
    assert_call(mpr_trainer_create(m, o, &cb, &t), m);
    assert_call(mpr_trainer_run(t, &result), t);
    mpr_trainer_destroy(t);
    mpr_trainer_options_destroy(o);
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

static void name_run(Run *run, const char *name)
{
    memset(run, 0, sizeof(*run));
    snprintf(run->out, sizeof(run->out), "/tmp/mpr-bn-%s-%ld", name, (long)getpid());
}

static double logged(const Run *run, const char *key, bool last)
{
    char quoted[64];
    snprintf(quoted, sizeof(quoted), "\"%s\"", key);
    const char *at = strstr(run->log, quoted);
    for (const char *next = at; last && next; next = strstr(next + 1, quoted)) at = next;
    if (!at) fail_msg("no %s in the log", key);
    return strtod(strchr(at, ':') + 1, NULL);
}

/* An array of doubles of an npz file. */
static void tensor(mpr_context *ctx, const char *path, const char *name, double *v, int n)
{
    mpr_tensors *all;
    mpr_tensor t;
    assert_call(mpr_tensors_load(ctx, path, &all), ctx);
    assert_call(mpr_tensors_get(all, name, &t), all);
    for (int i = 0; i < n; i++) v[i] = ((const double *)t.data)[i];
    mpr_tensors_destroy(all);
}

/* The raw data of an initializer of the exported file. */
static void exported(const char *folder, const char *name, float *v, int n)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/model.onnx", folder);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    static unsigned char bytes[1 << 16];
    size_t size = fread(bytes, 1, sizeof(bytes), f), len = strlen(name);
    fclose(f);
    /* TensorProto: field 8 (name), then field 9 (raw_data) of 4 n bytes, in either order */
    for (size_t i = 0; i + len + 4 < size; i++) {
        if (bytes[i] != 0x42 || bytes[i + 1] != len || memcmp(bytes + i + 2, name, len)) continue;
        const unsigned char *raw = bytes + i + 2 + len;
        if (raw[0] == 0x4a && raw[1] == 4 * n) {
            memcpy(v, raw + 2, (size_t)n * 4);
            return;
        }
    }
    fail_msg("%s holds no initializer %s", path, name);
}

static const char *const on[] = {"bn-train", "true", "num-train-epochs", "2", "save-strategy", "no",
                                 NULL};

static void as_pytorch(void **state)
{
    (void)state;
    static Run run;
    double want[STEPS], evals[2];
    mpr_context *ctx;
    assert_int_equal(mpr_context_create(NULL, &ctx), MPR_OK);
    const char *expected = test_data("batch_norm/expected.npz");
    name_run(&run, "torch");
    train(&run, "batch_norm/model.onnx", 2, on);
    tensor(ctx, expected, "losses", want, STEPS);
    tensor(ctx, expected, "eval_loss", evals, 2);
    assert_int_equal(run.steps, STEPS);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs((double)run.loss[i] - want[i]) < 2e-5))
            fail_msg("step %d: loss %g, expected %g", i, (double)run.loss[i], want[i]);
    assert_true(fabs(logged(&run, "eval_loss", false) - evals[0]) < 2e-6);
    assert_true(fabs(logged(&run, "eval_loss", true) - evals[1]) < 5e-5);
    for (int k = 0; k < 4; k++) {
        double w[4];
        float have[4];
        tensor(ctx, expected, statistics[k], w, 4);
        exported(run.out, statistics[k], have, 4);
        for (int i = 0; i < 4; i++)
            if (!(fabs((double)have[i] - w[i]) < 2e-5 * (1 + fabs(w[i]))))
                fail_msg("%s[%d] is %g, expected %g", statistics[k], i, (double)have[i], w[i]);
    }
    test_remove_folder(run.out);
    mpr_context_destroy(ctx);
}

/* Where PyTorch rounds to 16 bits (products, normalised values, gradients of activations, weights
 * and the biases of products) and where it does not (statistics, gradients of a normalisation's
 * scale and bias, the loss): losses of ten steps under torch.autocast, in f16 with GradScaler.
 * PyTorch's two lists agree on these operators. f32 training is up to 2e-2 away, and with the
 * convolution alone in f32 bf16 is up to 2e-3 away. */
static void autocast_as_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *flag;
        double loss[STEPS];
    } want[] = {
        {"bf16",
         {1.14296722, 1.14414835, 0.967220783, 1.22872424, 1.08039856, 0.911412776, 0.945710659,
          0.935585856, 1.06324208, 0.878037035}},
        {"fp16",
         {1.14323914, 1.14417303, 0.967546582, 1.22914052, 1.08287144, 0.911994934, 0.94467175,
          0.936530888, 1.0631144, 0.878858149}},
    };
    static const char *const profiles[] = {"torch-cpu", "torch-cuda"};
    static Run run;
    for (int k = 0; k < 4; k++) {
        const char *flags[] = {"bn-train", "true", want[k / 2].flag, "true", "num-train-epochs",
                               "2", "save-strategy", "no", "autocast-profile", profiles[k % 2],
                               NULL};
        name_run(&run, want[k / 2].flag);
        train(&run, "batch_norm/model.onnx", 2, flags);
        assert_int_equal(run.steps, STEPS);
        for (int i = 0; i < STEPS; i++)
            if (!(fabs((double)run.loss[i] - want[k / 2].loss[i]) < 1e-6))
                fail_msg("%s, %s, step %d: loss %.9g, expected %.9g", want[k / 2].flag,
                         profiles[k % 2], i, (double)run.loss[i], want[k / 2].loss[i]);
        test_remove_folder(run.out);
    }
}

/* Zeros and ones that an exporter merged become each node's own. */
static void merged(void **state)
{
    (void)state;
    static Run plain, shared;
    name_run(&plain, "plain");
    name_run(&shared, "merged");
    train(&plain, "batch_norm/model.onnx", 1, on);
    train(&shared, "batch_norm/model_merged.onnx", 1, on);
    assert_memory_equal(plain.loss, shared.loss, sizeof plain.loss);
    assert_true(logged(&plain, "eval_loss", true) == logged(&shared, "eval_loss", true));
    test_remove_folder(plain.out);
    test_remove_folder(shared.out);
}

static void same_bytes(const Run *a, const Run *b)
{
    static unsigned char x[1 << 16], y[1 << 16];
    const Run *runs[2] = {a, b};
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        char path[160];
        snprintf(path, sizeof(path), "%s/model.onnx", runs[i]->out);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        n[i] = fread(i ? y : x, 1, sizeof x, f);
        fclose(f);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(x, y, n[0]);
}

static void threads_and_resume(void **state)
{
    (void)state;
    static Run one, four, parts;
    static const char *const first[] = {"bn-train", "true", "num-train-epochs", "2", "max-steps",
                                        "10", "save-strategy", "steps", "save-steps", "4", NULL};
    static const char *const rest[] = {"bn-train", "true", "num-train-epochs", "2", "max-steps",
                                       "10", "save-strategy", "no", "resume-from-checkpoint", NULL,
                                       NULL};
    name_run(&one, "one");
    name_run(&four, "four");
    name_run(&parts, "parts");
    train(&one, "batch_norm/model.onnx", 1, first);
    train(&four, "batch_norm/model.onnx", 4, on);
    same_bytes(&one, &four);
    char checkpoint[128];
    const char *flags[sizeof rest / sizeof *rest];
    memcpy(flags, rest, sizeof flags);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-4", one.out);
    flags[9] = checkpoint;
    train(&parts, "batch_norm/model.onnx", 2, flags);
    same_bytes(&one, &parts);
    test_remove_folder(one.out);
    test_remove_folder(four.out);
    test_remove_folder(parts.out);
}

static void frozen(void **state)
{
    (void)state;
    static Run run;
    static const char *const off[] = {"num-train-epochs", "1", "save-strategy", "no", NULL};
    float v[4];
    name_run(&run, "frozen");
    train(&run, "batch_norm/model.onnx", 1, off);
    for (int k = 0; k < 4; k++) {
        exported(run.out, statistics[k], v, 4);
        for (int i = 0; i < 4; i++) assert_true(v[i] == (float)(k % 2));
    }
    test_remove_folder(run.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_pytorch),
        cmocka_unit_test(autocast_as_pytorch),
        cmocka_unit_test(merged),
        cmocka_unit_test(threads_and_resume),
        cmocka_unit_test(frozen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
