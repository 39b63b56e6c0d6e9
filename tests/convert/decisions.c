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

/* Converting at once, by sidecar and from the annotated model gives the same file. */
static void all_ways(Fixture *f, const char *from, mpr_convert_options o, bool undone_same)
{
    char painted[256], side[256], again[256], annotated[256], twice[256];
    snprintf(painted, sizeof painted, "%s/painted.onnx", f->folder);
    snprintf(side, sizeof side, "%s/side.json", f->folder);
    snprintf(again, sizeof again, "%s/again.onnx", f->folder);
    snprintf(annotated, sizeof annotated, "%s/annotated.onnx", f->folder);
    snprintf(twice, sizeof twice, "%s/twice.json", f->folder);
    mpr_convert_options a = o, s = o, c = o, own = o;
    a.annotations = side;
    run(f, from, painted, a, NULL);
    s.autocast_profile = side;
    s.keep_fp32 = own.keep_fp32 = NULL; /* they are among the decisions */
    s.annotations = twice;
    run(f, from, again, s, NULL);
    assert_same_file(painted, again);
    assert_same_file(side, twice);
    c.annotate = true;
    run(f, from, annotated, c, NULL);
    own.autocast_profile = NULL;
    run(f, annotated, again, own, NULL);
    assert_same_file(painted, again);
    run(f, annotated, again, c, NULL); /* once more */
    assert_same_file(annotated, again);
    if (undone_same) { /* of what is converted already: weights are as they were */
        run(f, painted, again, c, NULL);
        assert_same_file(annotated, again);
    }
    run(f, annotated, again, s, NULL); /* the sidecar is that of the model inside */
    assert_same_file(painted, again);
    run(f, annotated, again, (mpr_convert_options){.to = MPR_FLOAT32}, NULL);
    run(f, from, twice, (mpr_convert_options){.no_passes = true}, NULL);
    assert_same_file(twice, again);
}

static void same_file(void **state)
{
    Fixture *f = *state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *from = test_model(models[i]);
        if (!from) fail_msg("no %s", models[i]);
        for (int infer = 0; infer < 2; infer++)
            all_ways(f, from, (mpr_convert_options){.mode = infer ? "infer" : "train"}, !infer);
    }
}

/* The same under the profiles of torch, and under a file of rules on one of them. What was converted
 * with its calls taken apart keeps none that could be annotated. */
static void same_file_by_operators(void **state)
{
    Fixture *f = *state;
    static const char *const more[] = {"convert/bodies.onnx", "convert/forced.onnx",
                                       "convert/forced_ir10.onnx", "convert/check/loop.onnx",
                                       "convert/external.onnx"};
    enum { N = sizeof models / sizeof *models, ALL = N + sizeof more / sizeof *more };
    char rules[256];
    snprintf(rules, sizeof rules, "%s/rules.yaml", f->folder);
    FILE *out = fopen(rules, "w");
    assert_non_null(out);
    fprintf(out, "base: torch-cpu\nrules:\n  - {op: Gemm, class: low}\n  - {op: Relu, class: fp32}\n"
            "  - {subgraph: '/net*', class: keep}\n  - {tensor: logits, class: fp32}\n");
    fclose(out);
    const char *profiles[] = {"torch-cuda", "torch-cpu", rules};
    for (int i = 0; i < 3 * ALL; i++) {
        const char *from = i / 3 < N ? models[i / 3] : more[i / 3 - N];
        bool bf16 = strstr(from, "forced") || i & 1;
        all_ways(f, test_data(from),
                 (mpr_convert_options){.autocast_profile = profiles[i % 3],
                                       .to = bf16 ? MPR_BFLOAT16 : MPR_FLOAT16},
                 !strstr(from, "function"));
    }
    all_ways(f, test_data("convert/forced.onnx"),
             (mpr_convert_options){.autocast_profile = "torch-cpu"}, true);
    all_ways(f, test_data("convert/function.onnx"),
             (mpr_convert_options){.autocast_profile = "torch-cuda",
                                   .keep_fp32 = (const char *const[]){"Gemm", NULL}}, false);
}

/* The graph of an annotated model is that of the file, byte by byte. */
static void graph_stays_under(Fixture *f, const char *from, const char *profile)
{
    const char *to = in_folder(f->folder, "a.onnx");
    run(f, from, to, (mpr_convert_options){.annotate = true, .autocast_profile = profile}, NULL);
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

static void graph_stays(void **state)
{
    Fixture *f = *state;
    graph_stays_under(f, test_data(models[1]), "paint");
    graph_stays_under(f, test_data(models[1]), "torch-cuda");
    graph_stays_under(f, test_data("convert/function.onnx"), "torch-cuda");
    graph_stays_under(f, test_data("convert/forced.onnx"), "torch-cpu");
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
    run(f, test_data(models[1]), to, (mpr_convert_options){.autocast_profile = side}, "another model");
}

/* Decisions of a profile of torch: what does not fit is told as it is under paint. */
static void refused_by_operators(void **state)
{
    Fixture *f = *state;
    char side[256], to[256];
    const char *from = test_data("oracle/mlp/model_ts.onnx");
    snprintf(side, sizeof side, "%s/side.json", f->folder);
    snprintf(to, sizeof to, "%s/x.onnx", f->folder);
    const char *const keep[] = {"Relu", NULL};
    run(f, from, to, (mpr_convert_options){.annotations = side, .autocast_profile = "torch-cuda",
                                           .keep_fp32 = keep}, NULL);
    unlink(to);
    static const struct { const char *from, *to, *words; } rows[] = {
        {"\"sha256\": \"", "\"sha256\": \"0", "another model"},
        {"\"sha256\"", "\"sha\"", "sha256 is missing"},
        {"\"path\": \"/net/net.1/Relu\"", "\"path\": \"/net/nothing\"", "no node '/net/nothing'"},
        {"\"op\": \"Relu\"", "\"op\": \"Tanh\"", "(Tanh)"},
        {"\"units\": {\"T\"", "\"units\": {\"Q\"", "no unit 'Q'"},
        {"\"is\": \"float16\"", "\"is\": \"float8\"", "unknown type: float8"},
        {"\"is\": \"float16\"", "\"is\": \"bfloat16\"", "asked for is float16"},
        {"\"is\": \"float16\"", "\"is\": \"float\"", "is float there, their profile decides float16"},
        {"\"reason\": \"allow-list\", \"was\"", "\"reason\": \"mood\", \"was\"", "unknown reason: mood"},
        {"\"schema\": 1", "\"schema\": 2", "schema 1"},
        {"\"schema\": 1", "\"schema\": 1, \"schema\": 1", "duplicate"},
        {"\"schema\": 1}", "\"schema\": 1", "line"},
        {"\"base\": \"torch-cuda\"", "\"base\": \"torch-tpu\"", "unknown base profile 'torch-tpu'"},
        {"\"base\": \"torch-cuda\"", "\"base\": \"paint\"", "unknown base profile 'paint'"},
        {"\"class\": \"fp32\"", "\"class\": \"low8\"", "the class 'low8'"},
        {"\"op\": \"Relu\", \"where\"", "\"ops\": \"Relu\", \"where\"", "names nothing"},
        {"\"class\": \"fp32\", \"op\": \"Relu\"", "\"class\": \"fp32\", \"op\": \"Gemm\"",
         "their profile decides float"},
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
    run(f, test_data(models[1]), to, (mpr_convert_options){.autocast_profile = side}, "another model");
    run(f, from, to, (mpr_convert_options){.autocast_profile = side, .opset = 20},
        "opset: the decisions are for the model as it is");
    run(f, from, to, (mpr_convert_options){.autocast_profile = "torch-cuda", .opset = 20,
                                           .annotate = true}, "opset: an annotated model");
    run(f, from, to, (mpr_convert_options){.autocast_profile = "torch-cpu", .external = "always"},
        "external: only with the profile paint");
    assert_false(exists(to));
    /* more may be kept in float32 */
    const char *const both[] = {"/net/net.2*", NULL};
    const char *path = in_folder(f->folder, "more.json");
    run(f, from, to, (mpr_convert_options){.autocast_profile = side, .keep_fp32 = both,
                                           .annotations = path}, NULL);
    assert_true(file_holds(path, "\"node\": \"/net/net.2*\""));
    assert_true(file_holds(path, "\"op\": \"Relu\", \"where\": \"keep-fp32\""));
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
        cmocka_unit_test_setup_teardown(same_file_by_operators, setup, teardown),
        cmocka_unit_test_setup_teardown(graph_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(refused, setup, teardown),
        cmocka_unit_test_setup_teardown(refused_by_operators, setup, teardown),
        cmocka_unit_test_setup_teardown(incomplete, setup, teardown),
        cmocka_unit_test_setup_teardown(kept, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
