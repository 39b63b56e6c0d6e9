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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(stable, setup, teardown),
        cmocka_unit_test_setup_teardown(rules_and_report, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
