/* One policy, one graph: a converted file trained as it is, and the plain file trained under the
 * same profile, give the same losses and the same weights, bit by bit. */
#include "tests/convert/models.h"

#include <jansson.h>

#include "importer/importer.h"

enum { STEPS = 6, MAX_STEPS_KEPT = 16 };

typedef struct Case {
    const char *model;
    const char *train;  /* data; NULL: random rows */
    const char *bind;   /* sizes of symbolic dims for random rows, or NULL */
    const char *loss;
    const char *logits; /* NULL: the only output */
} Case;

static const Case cases[] = {
    {"oracle/mlp/model_ts.onnx", "digits/train.npz", NULL, "cross-entropy", NULL},
    {"oracle/mlp/model_dynamo.onnx", "digits/train.npz", NULL, "cross-entropy", NULL},
    {"oracle/vit/model_ts.onnx", "digits_vit/train.npz", NULL, "cross-entropy", NULL},
    {"oracle/vit/model_ts_op13.onnx", "digits_vit/train.npz", NULL, "cross-entropy", NULL},
    {"oracle/vit/model_dynamo.onnx", "digits_vit/train.npz", NULL, "cross-entropy", NULL},
    {"oracle/bert_mlm/model_ts.onnx", NULL, "seq=8", "cross-entropy", NULL},
    {"oracle/bert_mlm/model_dynamo.onnx", NULL, "seq=8", "cross-entropy", NULL},
    {"oracle/llama_lm/model_dynamo.onnx", NULL, "seq=8", "cross-entropy", NULL},
    {"convert/gpt2_lm_dynamo.onnx", NULL, "seq=8", "cross-entropy", NULL},
    {"oracle/autoenc/model_sigmoid_ts.onnx", NULL, NULL, "bce-with-logits", NULL},
    {"convert/one_bias.onnx", NULL, NULL, "mse", NULL},
    {"convert/tail.onnx", NULL, NULL, "l1", NULL},
    {"convert/tail.onnx", NULL, NULL, "mse", NULL},
    {"convert/shared_zero.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/shared_weight.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/dropout.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/constants.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/stream.onnx", NULL, NULL, "cross-entropy", "y"},
    {"convert/if_constant.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/function.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/bodies.onnx", NULL, NULL, "cross-entropy", NULL},
    {"oracle/cnn/model_ts_op14.onnx", "oracle/cnn/train.npz", NULL, "cross-entropy", NULL},
    {"convert/opset13.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/forced.onnx", NULL, NULL, "cross-entropy", "y"},
    {"convert/forced.onnx", NULL, NULL, "mse", "h"},
    {"convert/forced_ir10.onnx", NULL, NULL, "cross-entropy", "y"},
    {"convert/scan.onnx", NULL, NULL, "cross-entropy", NULL},
    {"convert/user_casts.onnx", NULL, NULL, "cross-entropy", NULL},
};
enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct Run {
    char out[128];
    double loss[MAX_STEPS_KEPT], norm[MAX_STEPS_KEPT], scale[MAX_STEPS_KEPT];
    int n;
} Run;

static int on_log(void *user, const char *text)
{
    Run *r = user;
    json_t *o = json_loads(text, 0, NULL);
    assert_non_null(o);
    if (json_object_get(o, "loss") && r->n < MAX_STEPS_KEPT) {
        r->loss[r->n] = json_number_value(json_object_get(o, "loss"));
        r->norm[r->n] = json_number_value(json_object_get(o, "grad_norm"));
        r->scale[r->n++] = json_number_value(json_object_get(o, "loss_scale"));
    }
    json_decref(o);
    return MPR_CONTINUE;
}

/* precision: option and value pairs, NULL at the end. */
static void train(const Case *c, const char *model, const char *const *precision, Run *run)
{
    mpr_context *ctx;
    mpr_model *m;
    mpr_trainer_options *o;
    mpr_trainer *t;
    mpr_context_options co = {.size = sizeof co, .threads = 1};
    mpr_trainer_callbacks cb = {.size = sizeof cb, .user = run, .on_log = on_log};
    mpr_trainer_result r = {.size = sizeof r};
    const char *const flags[] = {
        "loss", c->loss, "max-steps", "6", "per-device-train-batch-size", "4",
        "logging-steps", "1", "report-to", "none", "save-strategy", "no",
        "train-sampling-strategy", "sequential", "learning-rate", "1e-2", NULL,
    };
    assert_int_equal(mpr_context_create(&co, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, model, NULL, &m), ctx);
    assert_call(mpr_trainer_options_create(ctx, &o), ctx);
    for (int i = 0; flags[i]; i += 2) assert_call(mpr_trainer_options_set(o, flags[i], flags[i + 1]), o);
    for (; *precision; precision += 2)
        assert_call(mpr_trainer_options_set(o, precision[0], precision[1]), o);
    assert_call(mpr_trainer_options_set(o, "output-dir", run->out), o);
    if (c->train) assert_call(mpr_trainer_options_set(o, "train-data", test_data(c->train)), o);
    else assert_call(mpr_trainer_options_set(o, "synthetic", "24"), o);
    if (c->bind) assert_call(mpr_trainer_options_set(o, "bind", c->bind), o);
    if (c->logits) assert_call(mpr_trainer_options_set(o, "logits", c->logits), o);
    run->n = 0;
    assert_call(mpr_trainer_create(m, o, &cb, &t), m);
    assert_call(mpr_trainer_run(t, &r), t);
    mpr_trainer_destroy(t);
    mpr_trainer_options_destroy(o);
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

static const SourceTensor *tensor(const Source *s, const char *name)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (!strcmp(s->tensors[i].name, name)) return &s->tensors[i];
    fail_msg("no weights '%s'", name);
    return NULL;
}

static ImportedModel *trained(const Run *r)
{
    ImportedModel *m = NULL;
    Err err = {0};
    assert_ok(mpri_import_file(in_folder(r->out, "model.onnx"), NULL, &m, &err), &err);
    return m;
}

static void assert_same_weights(const Run *a, const Run *b)
{
    ImportedModel *x = trained(a), *y = trained(b);
    assert_int_equal(x->source->n_tensors, y->source->n_tensors);
    for (int i = 0; i < x->source->n_tensors; i++) {
        const SourceTensor *t = &x->source->tensors[i], *u = tensor(y->source, t->name);
        int64_t n = 1;
        for (int k = 0; k < t->rank; k++) n *= t->dims[k];
        assert_int_equal(t->data_type, u->data_type);
        size_t size = mpri_dtype_size((DType)t->data_type);
        if (memcmp(t->data, u->data, (size_t)n * size) != 0) fail_msg("weights '%s'", t->name);
    }
    mpri_import_destroy(x, mpri_alloc_default());
    mpri_import_destroy(y, mpri_alloc_default());
}

static void compare(const Case *c, const char *profile, mpr_dtype type)
{
    char folder[64];
    make_folder(folder);
    Run plain, mixed;
    bool f16 = type == MPR_FLOAT16;
    const char *converted = in_folder(folder, "converted.onnx");
    snprintf(plain.out, sizeof plain.out, "%s/plain", folder);
    snprintf(mixed.out, sizeof mixed.out, "%s/mixed", folder);
    mpr_context *ctx;
    mpr_convert_result r;
    assert_int_equal(mpr_context_create(NULL, &ctx), MPR_OK);
    assert_int_equal(convert(ctx, test_data(c->model), converted, type, profile, &r), MPR_OK);
    mpr_context_destroy(ctx);
    /* the scale starts so high that steps are skipped */
    const char *under_profile[] = {f16 ? "fp16" : "bf16", "true", "autocast-profile", profile,
                                   f16 ? "init-scale" : NULL, "16777216", NULL};
    const char *as_it_is[] = {f16 ? "loss-scale" : NULL, "dynamic", "init-scale", "16777216", NULL};
    train(c, test_data(c->model), under_profile, &plain);
    train(c, converted, as_it_is, &mixed);
    assert_int_equal(plain.n, STEPS);
    assert_int_equal(mixed.n, STEPS);
    for (int i = 0; i < STEPS; i++)
        if (memcmp(&plain.loss[i], &mixed.loss[i], sizeof(double)) ||
            memcmp(&plain.norm[i], &mixed.norm[i], sizeof(double)) ||
            plain.scale[i] != mixed.scale[i])
            fail_msg("%s, %s, step %d: loss %.9g and %.9g, norm %.9g and %.9g, scale %g and %g",
                     c->model, profile, i, plain.loss[i], mixed.loss[i], plain.norm[i],
                     mixed.norm[i], plain.scale[i], mixed.scale[i]);
    assert_same_weights(&plain, &mixed);
    test_remove_folder(folder);
}

static void f16_torch_cuda(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) compare(&cases[i], "torch-cuda", MPR_FLOAT16);
}

static void f16_torch_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) compare(&cases[i], "torch-cpu", MPR_FLOAT16);
}

static void bf16(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        bool forced = strstr(cases[i].model, "forced");
        if (forced || i % 2) compare(&cases[i], "torch-cpu", MPR_BFLOAT16);
        if (forced || i % 2 == 0) compare(&cases[i], "torch-cuda", MPR_BFLOAT16);
    }
}

/* The four ways to one graph: rewritten, decided by the session, read from a sidecar file, carried
 * by the model. The trained file is the plain one with other weights. */
static void four_ways(const Case *c, const char *profile, mpr_dtype type)
{
    char folder[64], sidecar[96], annotated[96], rewritten[96];
    make_folder(folder);
    snprintf(sidecar, sizeof sidecar, "%s/d.json", folder);
    snprintf(annotated, sizeof annotated, "%s/annotated.onnx", folder);
    snprintf(rewritten, sizeof rewritten, "%s/rewritten.onnx", folder);
    bool f16 = type == MPR_FLOAT16;
    mpr_context *ctx;
    mpr_model *model;
    mpr_convert_options o = {.size = sizeof o, .to = type, .mode = "train", .annotations = sidecar,
                             .autocast_profile = profile};
    assert_int_equal(mpr_context_create(NULL, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, test_data(c->model), NULL, &model), ctx);
    assert_call(mpr_convert(model, rewritten, &o, NULL), model);
    o.annotate = true;
    o.annotations = NULL;
    assert_call(mpr_convert(model, annotated, &o, NULL), model);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    const char *low = f16 ? "fp16" : "bf16", *scale = f16 ? "loss-scale" : NULL;
    const char *high = "16777216";
    const struct { const char *model, *flags[8]; } ways[] = {
        {rewritten, {scale, "dynamic", "init-scale", high, NULL}},
        {test_data(c->model), {low, "true", "autocast-profile", profile, f16 ? "init-scale" : NULL, high}},
        {test_data(c->model), {low, "true", "autocast-profile", sidecar, f16 ? "init-scale" : NULL, high}},
        {annotated, {low, "true", f16 ? "init-scale" : NULL, high}},
        {annotated, {scale, "dynamic", "init-scale", high, NULL}},
    };
    Run first, other;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        Run *run = i ? &other : &first;
        snprintf(run->out, sizeof run->out, "%s/%zu", folder, i);
        train(c, ways[i].model, ways[i].flags, run);
        assert_int_equal(run->n, STEPS);
        if (!i) continue;
        for (int k = 0; k < STEPS; k++)
            if (memcmp(&first.loss[k], &other.loss[k], sizeof(double)) ||
                memcmp(&first.norm[k], &other.norm[k], sizeof(double)))
                fail_msg("%s, %s, way %zu, step %d: loss %.9g and %.9g", c->model, profile, i, k,
                         first.loss[k], other.loss[k]);
        ImportedModel *a = trained(&first), *b = trained(&other);
        for (int k = 0; k < b->source->n_tensors; k++) { /* the plain file has no copies */
            const SourceTensor *t = &b->source->tensors[k], *u = tensor(a->source, t->name);
            size_t n = mpri_dtype_size((DType)t->data_type);
            for (int d = 0; d < t->rank; d++) n *= (size_t)t->dims[d];
            if (memcmp(t->data, u->data, n)) fail_msg("%s: weights '%s'", c->model, t->name);
        }
        assert_false(file_holds(in_folder(other.out, "model.onnx"), "__mpr_"));
        mpri_import_destroy(a, mpri_alloc_default());
        mpri_import_destroy(b, mpri_alloc_default());
    }
    test_remove_folder(folder);
}

static void painted(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++)
        four_ways(&cases[i], "paint", i % 3 == 2 ? MPR_BFLOAT16 : MPR_FLOAT16);
}

/* Decisions of the profiles of torch, and of a file of rules on one. */
static void decided(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        bool forced = strstr(cases[i].model, "forced");
        four_ways(&cases[i], i % 2 ? "torch-cpu" : "torch-cuda",
                  i % 3 == 2 ? MPR_BFLOAT16 : MPR_FLOAT16);
        if (forced) four_ways(&cases[i], "torch-cpu", MPR_FLOAT16);
        if (forced) four_ways(&cases[i], "torch-cuda", MPR_BFLOAT16);
    }
}

/* Rules on each base, of every kind, in the trainer and in the converter. A rule that matches nothing
 * ends a training before it begins. */
static void rules_of_a_file(void **state)
{
    (void)state;
    static const char *const bases[] = {"torch-cuda", "torch-cpu", "paint"};
    char folder[64];
    make_folder(folder);
    for (int b = 0; b < 3; b++) {
        char path[96];
        snprintf(path, sizeof path, "%s/%s.yaml", folder, bases[b]);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "base: %s\nrules:\n  - {op: Gemm, class: low}\n  - {op: Relu, class: fp32}\n"
                "  - {node: '/*', class: keep}\n  - {tensor: logits, class: fp32}\n", bases[b]);
        fclose(f);
        compare(&cases[0], path, MPR_FLOAT16);
        compare(&cases[0], path, MPR_BFLOAT16);
        four_ways(&cases[0], path, MPR_FLOAT16);
    }
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    char path[96];
    snprintf(path, sizeof path, "%s/none.yaml", folder);
    for (int b = 0; b < 3; b++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "base: %s\nrules:\n  - {tensor: nothing_of_that_name, class: fp32}\n", bases[b]);
        fclose(f);
        mpr_session_options o = {.size = sizeof o, .autocast = MPR_FLOAT16,
                                 .autocast_profile = path, .loss = "cross-entropy"};
        assert_int_equal(mpr_context_create(NULL, &ctx), MPR_OK);
        assert_call(mpr_model_load(ctx, test_data(cases[0].model), NULL, &model), ctx);
        assert_int_equal(mpr_session_open(model, &o, &s), MPR_E_USAGE);
        mpr_error e = mpr_last_error(model);
        if (!strstr(e.message, "nothing_of_that_name")) fail_msg("%s: %s", bases[b], e.message);
        mpr_model_destroy(model);
        mpr_context_destroy(ctx);
    }
    test_remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_torch_cuda),
        cmocka_unit_test(f16_torch_cpu),
        cmocka_unit_test(bf16),
        cmocka_unit_test(painted),
        cmocka_unit_test(decided),
        cmocka_unit_test(rules_of_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
