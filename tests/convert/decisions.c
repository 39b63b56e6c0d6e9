/* Decisions in a sidecar file and inside a model: made once, they are made again from there, and
 * what does not fit is refused by name. */
#include "tests/convert/models.h"

#include "importer/importer.h"

static const char *const models[] = {
    "oracle/mlp/model_ts.onnx",      "oracle/bert_mlm/model_ts.onnx",
    "oracle/vit/model_dynamo.onnx",  "convert/gpt2_lm_dynamo.onnx",
    "convert/if_constant.onnx",      "convert/if_capture.onnx",
    "convert/constants.onnx",        "convert/names_taken.onnx",
    "convert/function.onnx",         "convert/dropout.onnx",
};

static mpr_status run(Fixture *f, const char *from, const char *to, mpr_convert_options o,
                      const char *words)
{
    mpr_model *model;
    mpr_convert_result r = {.size = sizeof r};
    o.size = sizeof o;
    if (!o.to) o.to = MPR_FLOAT16;
    assert_call(mpr_model_load(f->ctx, from, NULL, &model), f->ctx);
    mpr_status st = mpr_convert(model, to, &o, &r);
    mpr_error e = mpr_last_error(model);
    if (!words && st != MPR_OK) fail_msg("%s: %s | %s", from, e.message, e.where);
    if (words && (st == MPR_OK || !strstr(e.message, words)))
        fail_msg("%s: '%s' without '%s'", from, e.message, words);
    mpr_model_destroy(model);
    return st;
}

static const char *test_model(const char *name)
{
    const char *path = test_data(name);
    return exists(path) ? path : NULL;
}

/* Converting by painting, by sidecar and from the annotated model gives the same file. */
static void same_file(void **state)
{
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *from = test_model(models[i]);
        if (!from) fail_msg("no %s", models[i]);
        for (int infer = 0; infer < 2; infer++) {
            char painted[256], side[256], again[256], annotated[256], twice[256];
            snprintf(painted, sizeof painted, "%s/painted.onnx", f->folder);
            snprintf(side, sizeof side, "%s/side.json", f->folder);
            snprintf(again, sizeof again, "%s/again.onnx", f->folder);
            snprintf(annotated, sizeof annotated, "%s/annotated.onnx", f->folder);
            snprintf(twice, sizeof twice, "%s/twice.json", f->folder);
            mpr_convert_options o = {.mode = infer ? "infer" : "train"};
            mpr_convert_options a = o, s = o, c = o;
            a.annotations = side;
            run(f, from, painted, a, NULL);
            s.autocast_profile = side;
            s.annotations = twice;
            run(f, from, again, s, NULL);
            assert_same_file(painted, again);
            assert_same_file(side, twice);
            c.annotate = true;
            run(f, from, annotated, c, NULL);
            run(f, annotated, again, o, NULL);
            assert_same_file(painted, again);
            run(f, annotated, again, c, NULL); /* once more */
            assert_same_file(annotated, again);
            if (!infer) { /* of what is converted already: weights are as they were */
                run(f, painted, again, c, NULL);
                assert_same_file(annotated, again);
            }
            run(f, annotated, again, s, NULL); /* the sidecar is that of the model inside */
            assert_same_file(painted, again);
            run(f, annotated, again, (mpr_convert_options){.to = MPR_FLOAT32}, NULL);
            run(f, from, twice, (mpr_convert_options){.no_passes = true}, NULL);
            assert_same_file(twice, again);
        }
    }
}

/* The graph of an annotated model is that of the file, byte by byte. */
static void graph_stays(void **state)
{
    Fixture *f = *state;
    const char *to = in_folder(f->folder, "a.onnx"), *from = test_data(models[1]);
    run(f, from, to, (mpr_convert_options){.annotate = true}, NULL);
    ImportedModel *a = NULL, *b = NULL;
    Err err = {0};
    assert_ok(mpri_import_file(from, NULL, &a, &err), &err);
    assert_ok(mpri_import_file(to, NULL, &b, &err), &err);
    const SourceField *x = &a->source->graph, *y = &b->source->graph;
    assert_int_equal(x->body.len, y->body.len);
    assert_memory_equal(a->source->bytes + x->body.at, b->source->bytes + y->body.at, x->body.len);
    mpri_import_destroy(a, mpri_alloc_default());
    mpri_import_destroy(b, mpri_alloc_default());
}

/* The sidecar with one text in place of another. */
static const char *changed(Fixture *f, const char *side, const char *from, const char *to)
{
    size_t n;
    char *text = read_file(side, &n), *at = strstr(text, from);
    if (!at) fail_msg("no '%s'", from);
    const char *path = in_folder(f->folder, "changed.json");
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    fwrite(text, 1, (size_t)(at - text), out);
    fputs(to, out);
    fputs(at + strlen(from), out);
    fclose(out);
    free(text);
    return path;
}

static void refused(void **state)
{
    Fixture *f = *state;
    char side[256], to[256];
    const char *from = test_data("oracle/mlp/model_ts.onnx");
    snprintf(side, sizeof side, "%s/side.json", f->folder);
    snprintf(to, sizeof to, "%s/x.onnx", f->folder);
    run(f, from, to, (mpr_convert_options){.annotations = side}, NULL);
    unlink(to);
    static const struct { const char *from, *to, *words; } rows[] = {
        {"\"sha256\": \"", "\"sha256\": \"0", "another model"},
        {"\"sha256\"", "\"sha\"", "sha256 is missing"},
        {"\"path\": \"/net/net.1/Relu\"", "\"path\": \"/net/nothing\"", "no node '/net/nothing'"},
        {"\"op\": \"Relu\"", "\"op\": \"Tanh\"", "(Tanh)"},
        {"\"units\": {\"T\"", "\"units\": {\"Q\"", "no unit 'Q'"},
        {"\"is\": \"float16\"", "\"is\": \"float8\"", "unknown type: float8"},
        {"\"is\": \"float16\"", "\"is\": \"bfloat16\"", "asked for is float16"},
        {"\"reason\": \"allow-list\", \"was\"", "\"reason\": \"mood\", \"was\"", "unknown reason: mood"},
        {"\"schema\": 1", "\"schema\": 2", "schema 1"},
        {"\"schema\": 1", "\"schema\": 1, \"schema\": 1", "duplicate"},
        {"\"schema\": 1}", "\"schema\": 1", "line"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *path = changed(f, side, rows[i].from, rows[i].to);
        run(f, from, to, (mpr_convert_options){.autocast_profile = path}, rows[i].words);
        assert_false(exists(to));
    }
    const char *const rules[] = {"exclude op:Relu", NULL};
    run(f, from, to, (mpr_convert_options){.autocast_profile = side, .rules = rules}, "final");
    run(f, from, to, (mpr_convert_options){.autocast_profile = side, .to = MPR_FLOAT32}, "way back");
    run(f, from, to, (mpr_convert_options){.autocast_profile = side, .to = MPR_BFLOAT16},
        "asked for is bfloat16");
    run(f, from, to, (mpr_convert_options){.autocast_profile = "torch-cuda", .annotate = true},
        "only with the profile paint");
    run(f, test_data(models[1]), to, (mpr_convert_options){.autocast_profile = side}, "another model");
}

/* A unit that is left out, and a type that joined units do not share. */
static void incomplete(void **state)
{
    Fixture *f = *state;
    char side[256], to[256];
    const char *from = test_data("convert/if_constant.onnx");
    snprintf(side, sizeof side, "%s/side.json", f->folder);
    snprintf(to, sizeof to, "%s/x.onnx", f->folder);
    run(f, from, to, (mpr_convert_options){.annotations = side}, NULL);
    size_t n;
    char *text = read_file(side, &n), *at = strstr(text, "\"units\": {\""), *end;
    assert_non_null(at);
    at += strlen("\"units\": {");
    end = strstr(at, "}}");
    assert_non_null(end);
    memset(at, ' ', (size_t)(end + 1 - at)); /* "units": {   } */
    FILE *out = fopen(side, "wb");
    assert_non_null(out);
    fwrite(text, 1, n, out);
    fclose(out);
    free(text);
    run(f, from, to, (mpr_convert_options){.autocast_profile = side}, "is missing");
}

/* --keep-fp32 keeps more of the decisions in float32. */
static void kept(void **state)
{
    Fixture *f = *state;
    char side[256], a[256], b[256];
    const char *from = test_data("oracle/mlp/model_ts.onnx");
    const char *const keep[] = {"/net/net.2*", NULL};
    snprintf(side, sizeof side, "%s/side.json", f->folder);
    snprintf(a, sizeof a, "%s/a.onnx", f->folder);
    snprintf(b, sizeof b, "%s/b.onnx", f->folder);
    run(f, from, a, (mpr_convert_options){.annotations = side}, NULL);
    run(f, from, b, (mpr_convert_options){.autocast_profile = side, .keep_fp32 = keep,
                                          .annotations = a}, NULL);
    assert_true(file_holds(a, "\"reason\": \"user-name\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(same_file, setup, teardown),
        cmocka_unit_test_setup_teardown(graph_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(refused, setup, teardown),
        cmocka_unit_test_setup_teardown(incomplete, setup, teardown),
        cmocka_unit_test_setup_teardown(kept, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
