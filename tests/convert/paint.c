/* Painting: valid and stable files in training and inference, the way back, rules, reports. */
#include "tests/convert/models.h"

#include "importer/importer.h"

static const char *const models[] = {
    "convert/constants.onnx", "convert/function.onnx", "convert/if_capture.onnx",
    "convert/names_taken.onnx", "convert/opset13.onnx", "convert/shared_weight.onnx",
    "convert/stream.onnx", "convert/tail.onnx", "oracle/vit/model_ts.onnx",
};
enum { N_MODELS = sizeof models / sizeof *models };

static mpr_convert_result paint(Fixture *f, const char *from, const char *to,
                                mpr_convert_options o)
{
    mpr_model *model;
    mpr_convert_result r = {.size = sizeof r};
    o.size = sizeof o;
    assert_call(mpr_model_load(f->ctx, from, NULL, &model), f->ctx);
    assert_call(mpr_convert(model, to, &o, &r), model);
    mpr_model_destroy(model);
    return r;
}

/* Loading checks names, types and shapes. */
static void assert_loads(Fixture *f, const char *path)
{
    mpr_model *model;
    assert_call(mpr_model_load(f->ctx, path, NULL, &model), f->ctx);
    mpr_model_destroy(model);
}

static void stable(void **state)
{
    static const mpr_dtype types[] = {MPR_FLOAT16, MPR_BFLOAT16};
    static const char *const modes[] = {"train", "infer"};
    Fixture *f = *state;
    for (int i = 0; i < N_MODELS * 4; i++) {
        const char *from = test_data(models[i / 4]), *once = in_folder(f->folder, "once.onnx");
        const char *twice = in_folder(f->folder, "twice.onnx");
        const char *back = in_folder(f->folder, "back.onnx");
        mpr_convert_options o = {.to = types[i % 2], .mode = modes[i / 2 % 2]};
        mpr_convert_result r = paint(f, from, once, o);
        assert_true(r.changed && r.nodes_low > 0);
        assert_loads(f, once);
        r = paint(f, once, twice, o);
        assert_false(r.changed);
        assert_same_file(once, twice);
        o.to = MPR_FLOAT32;
        paint(f, once, back, o);
        assert_loads(f, back);
        if (i / 2 % 2 == 0) assert_same_file(from, back);
    }
}

static void rules_and_report(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/tail.onnx"), *to = in_folder(f->folder, "x.onnx");
    const char *report = in_folder(f->folder, "r.json");
    char *text = NULL;
    mpr_convert_options o = {.to = MPR_FLOAT16, .mode = "infer", .report = report,
                             .rules = (const char *const[]){"exclude op:.*", NULL}};
    mpr_convert_result r = paint(f, from, to, o);
    assert_false(r.changed);
    assert_int_equal(r.nodes_low, 0);
    assert_same_file(from, to);
    assert_true(file_holds(report, "\"reason\": \"user-op\""));
    o.rules = (const char *const[]){"exclude op:.*", "include op:Gemm|MatMul", NULL};
    o.explain = "#0";
    o.explained = &text;
    o.report = NULL;
    mpr_model *model;
    mpr_convert_result again = {.size = sizeof again};
    o.size = sizeof o;
    assert_call(mpr_model_load(f->ctx, from, NULL, &model), f->ctx);
    mpr_status status = mpr_convert(model, to, &o, &again);
    assert_true(status == MPR_E_USAGE || (status == MPR_OK && again.nodes_low > 0));
    mpr_free_text(f->ctx, text);
    o.explain = NULL;
    o.rules = (const char *const[]){"exclude op:(", NULL};
    assert_int_equal(mpr_convert(model, to, &o, NULL), MPR_E_USAGE);
    o.rules = (const char *const[]){"exclude op:Nothing", NULL};
    o.strict = true;
    assert_int_equal(mpr_convert(model, to, &o, NULL), MPR_E_USAGE);
    mpr_model_destroy(model);
}

/* What was decided operator by operator is told in the same form. */
static void reports_of_profiles(void **state)
{
    static const char *const profiles[] = {"torch-cuda", "torch-cpu", "paint"};
    Fixture *f = *state;
    const char *from = test_data("oracle/vit/model_ts.onnx");
    for (int i = 0; i < 3; i++) {
        const char *to = in_folder(f->folder, "x.onnx"), *json = in_folder(f->folder, "r.json");
        const char *svg = in_folder(f->folder, "r.svg"), *dot = in_folder(f->folder, "r.dot");
        const char *const keep[] = {"Conv", NULL};
        mpr_convert_options o = {.to = MPR_FLOAT16, .autocast_profile = profiles[i], .report = json,
                                 .svg = svg, .dot = dot, .keep_fp32 = keep};
        mpr_convert_result r = paint(f, from, to, o);
        assert_true(r.nodes_low > 0);
        static const char *const words[] = {
            "\"reason\": \"allow-list\"", "\"reason\": \"deny-list\"", "\"reason\": \"user-op\"",
            "\"result\": \"converted\"", "__mpr_f16\", \"scope\": \"\", \"to\": \"float16\"",
        };
        for (size_t k = 0; k < sizeof words / sizeof *words; k++)
            if ((i != 1 || k != 1) && !file_holds(json, words[k])) /* nothing on that list there */
                fail_msg("%s: no %s", profiles[i], words[k]);
        assert_false(file_holds(json, "\"consumers\": 0"));
        assert_true(file_holds(svg, "</svg>") && file_holds(dot, "digraph"));
    }
}

/* A refused model has its report as well, and nothing else. */
static void report_of_a_refusal(void **state)
{
    Fixture *f = *state;
    const char *to = in_folder(f->folder, "x.onnx"), *json = in_folder(f->folder, "r.json");
    mpr_convert_options o = {.size = sizeof o, .to = MPR_FLOAT16, .weights_oor = "error",
                             .report = json};
    mpr_model *model;
    assert_call(mpr_model_load(f->ctx, test_data("convert/check/guard_constant_float.onnx"), NULL,
                               &model), f->ctx);
    assert_int_equal(mpr_convert(model, to, &o, NULL), MPR_E_DATA);
    mpr_model_destroy(model);
    assert_false(exists(to));
    assert_true(file_holds(json, "\"result\": \"refused\""));
    assert_true(file_holds(json, "\"error\": \"1 values of 'm' do not fit float16\""));
}

/* However long a chain is, it ends at its root; keys are sorted. */
static void chains_and_keys(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/check/long_chain.onnx");
    const char *json = in_folder(f->folder, "r.json");
    char *text = NULL;
    static const char *const echo[] = {"to", "fp16", "io", "all=keep", "exclude", "op:Tanh",
                                       "exclude", "op:Abs", NULL};
    mpr_convert_options o = {.to = MPR_FLOAT16, .report = json, .explain = "r99",
                             .explained = &text, .echo = echo, .dry_run = true};
    paint(f, from, NULL, o);
    assert_non_null(text);
    if (!strstr(text, "because of soft:T: deny-list")) fail_msg("%s", text);
    mpr_free_text(f->ctx, text);
    assert_true(file_holds(json, "{\"reason\": \"deny-list\", \"unit\": \"soft:T\"}], \"is\": "
                                 "\"float\", \"reason\": \"deny-from\""));
    assert_true(file_holds(json, "\"options\": {\"exclude\": [\"op:Tanh\", \"op:Abs\"], "
                                 "\"io\": [\"all=keep\"], \"to\": \"fp16\"}"));
}

/* What a list says of one of several joined operators is told at all of them. */
static void joined_lists(void **state)
{
    Fixture *f = *state;
    const char *lists = in_folder(f->folder, "l.yaml"), *json = in_folder(f->folder, "r.json");
    FILE *file = fopen(lists, "w");
    assert_non_null(file);
    fputs("deny: [+SequenceAt]\n", file);
    fclose(file);
    paint(f, test_data("convert/check/sequence.onnx"), NULL,
          (mpr_convert_options){.to = MPR_FLOAT16, .lists = lists, .report = json, .dry_run = true});
    assert_true(file_holds(json, "{\"reason\": \"deny-list\", \"unit\": \"make:T\"}, {\"reason\": "
                                 "\"deny-list\", \"unit\": \"at:T\"}], \"is\": \"float\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stable, setup, teardown),
        cmocka_unit_test_setup_teardown(rules_and_report, setup, teardown),
        cmocka_unit_test_setup_teardown(reports_of_profiles, setup, teardown),
        cmocka_unit_test_setup_teardown(report_of_a_refusal, setup, teardown),
        cmocka_unit_test_setup_teardown(chains_and_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(joined_lists, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
