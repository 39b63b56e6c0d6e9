/* What a conversion refuses, and that nothing is left behind: the target, the opset, rules, dry
 * runs, external data. */
#include "tests/convert/models.h"

#include "convert/schema.h"

static void copy(const char *from, const char *to)
{
    size_t n;
    char *bytes = read_file(from, &n);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

/* A failing conversion: its status; the words are in the error's text. */
static void fails(Fixture *f, const char *from, const char *to, const mpr_convert_options *o,
                  mpr_status status, const char *word, const char *advice)
{
    mpr_model *model;
    assert_call(mpr_model_load(f->ctx, from, NULL, &model), f->ctx);
    assert_int_equal(mpr_convert(model, to, o, NULL), status);
    mpr_error e = mpr_last_error(model);
    if (!strstr(e.message, word)) fail_msg("no '%s' in: %s", word, e.message);
    if (!strstr(e.advice, advice)) fail_msg("no '%s' in: %s", advice, e.advice);
    mpr_model_destroy(model);
}

static mpr_convert_options options(void)
{
    return (mpr_convert_options){.size = sizeof(mpr_convert_options), .to = MPR_FLOAT16};
}

static void target_is_the_model(void **state)
{
    Fixture *f = *state;
    mpr_convert_options o = options();
    const char *model = in_folder(f->folder, "m.onnx"), *link = in_folder(f->folder, "l.onnx");
    copy(test_data("convert/tail.onnx"), model);
    assert_int_equal(symlink("m.onnx", link), 0);
    fails(f, model, model, &o, MPR_E_USAGE, "the same file as the input model", "another file");
    fails(f, model, link, &o, MPR_E_USAGE, "the same file as the input model", "another file");
    assert_same_file(test_data("convert/tail.onnx"), model);
    assert_int_equal(files_in(f->folder), 2);
}

static void target_cannot_be_written(void **state)
{
    Fixture *f = *state;
    mpr_convert_options o = options();
    const char *from = test_data("convert/tail.onnx");
    fails(f, from, in_folder(f->folder, "no/such.onnx"), &o, MPR_E_IO, "folder", "exists");
    fails(f, from, f->folder, &o, MPR_E_IO, "is a folder", "");
    assert_int_equal(files_in(f->folder), 0);
}

static void options_are_checked(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/tail.onnx"), *to = in_folder(f->folder, "x.onnx");
    mpr_convert_options o = options();
    o.autocast_profile = "torch-cude";
    fails(f, from, to, &o, MPR_E_USAGE, "torch-cude", "torch-cuda");
    o = options();
    o.keep_fp32 = (const char *const[]){"Gemn", NULL};
    fails(f, from, to, &o, MPR_E_USAGE, "Gemn", "Gemm");
    o = options();
    o.to = MPR_INT8;
    fails(f, from, to, &o, MPR_E_USAGE, "int8", "--to");
    o = options();
    o.mode = "inference";
    fails(f, from, to, &o, MPR_E_USAGE, "inference", "train");
    o = options();
    o.autocast_profile = "torch-cuda";
    o.weights_oor = "saturate";
    fails(f, from, to, &o, MPR_E_USAGE, "weights-oor", "paint");
    o = options();
    o.to = MPR_BFLOAT16;
    fails(f, test_data("convert/opset10.onnx"), to, &o, MPR_E_OPSET, "opset", "--opset 13");
    o.autocast_profile = "torch-cuda";
    fails(f, test_data("convert/opset10.onnx"), to, &o, MPR_E_OPSET, "opset", "--opset 13");
    assert_int_equal(files_in(f->folder), 0);
}

static void rule_without_a_match(void **state)
{
    Fixture *f = *state;
    const char *profile = in_folder(f->folder, "p.yaml"), *to = in_folder(f->folder, "x.onnx");
    FILE *y = fopen(profile, "w");
    assert_non_null(y);
    fputs("base: torch-cuda\nrules:\n  - {node: '/nothing*', class: fp32}\n", y);
    fclose(y);
    mpr_convert_result r;
    assert_int_equal(convert(f->ctx, test_data("convert/tail.onnx"), to, MPR_FLOAT16, profile, &r),
                     MPR_OK);
    assert_non_null(strstr(f->warning, "/nothing*"));
    assert_non_null(strstr(f->warning, "no node"));
}

/* With --strict the same rule is an error, on every base, as a flag too; nothing is written. */
static void strict(void **state)
{
    Fixture *f = *state;
    static const char *const bases[] = {"torch-cuda", "torch-cpu", "paint"};
    const char *to = in_folder(f->folder, "x.onnx");
    for (int b = 0; b < 3; b++) {
        const char *profile = in_folder(f->folder, "p.yaml");
        FILE *y = fopen(profile, "w");
        assert_non_null(y);
        fprintf(y, "base: %s\nrules:\n  - {tensor: 'nothing*', class: fp32}\n", bases[b]);
        fclose(y);
        mpr_convert_options o = options();
        o.autocast_profile = profile;
        o.strict = true;
        fails(f, test_data("convert/tail.onnx"), to, &o, MPR_E_USAGE, "nothing*", "");
        unlink(profile);
    }
    mpr_convert_options o = options();
    o.rules = (const char *const[]){"exclude node:nothing.*", NULL};
    o.autocast_profile = "paint";
    o.strict = true;
    fails(f, test_data("convert/tail.onnx"), to, &o, MPR_E_USAGE, "nothing", "");
    assert_int_equal(files_in(f->folder), 0);
}

static void rules_of_a_file(void **state)
{
    Fixture *f = *state;
    const char *profile = in_folder(f->folder, "p.yaml"), *to = in_folder(f->folder, "x.onnx");
    FILE *y = fopen(profile, "w");
    assert_non_null(y);
    fputs("base: torch-cpu\nrules:\n  - {op: Gemm, class: fp32}\n", y);
    fclose(y);
    mpr_convert_result r;
    const char *from = test_data("convert/tail.onnx");
    assert_int_equal(convert(f->ctx, from, to, MPR_FLOAT16, profile, &r), MPR_OK);
    assert_false(r.changed);
    assert_int_equal(r.casts, 0);
    assert_same_file(from, to);
}

static void dry_run(void **state)
{
    Fixture *f = *state;
    const char *to = in_folder(f->folder, "x.onnx");
    mpr_convert_options o = options();
    mpr_convert_result r = {.size = sizeof r};
    mpr_model *model;
    o.dry_run = true;
    assert_call(mpr_model_load(f->ctx, test_data("convert/stream.onnx"), NULL, &model), f->ctx);
    assert_call(mpr_convert(model, NULL, &o, &r), model);
    assert_true(r.changed && r.casts > 0);
    assert_int_equal(files_in(f->folder), 0);
    o.dry_run = false;
    assert_call(mpr_convert(model, to, &o, &r), model);
    mpr_model_destroy(model);
    o.dry_run = true;
    assert_call(mpr_model_load(f->ctx, to, NULL, &model), f->ctx);
    assert_call(mpr_convert(model, NULL, &o, &r), model);
    assert_false(r.changed);
    mpr_model_destroy(model);
    assert_int_equal(files_in(f->folder), 1);
}

/* Data files go with the model; one of another model in the way is left alone. */
static void external_data(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/external.onnx");
    const char *to = in_folder(f->folder, "x.onnx"), *data = in_folder(f->folder, "external.data");
    mpr_convert_result r;
    assert_int_equal(convert(f->ctx, from, to, MPR_FLOAT16, "torch-cuda", &r), MPR_OK);
    assert_same_file(test_data("convert/external.data"), data);
    assert_int_equal(files_in(f->folder), 2);
    FILE *other = fopen(data, "w");
    assert_non_null(other);
    fputs("another model's", other);
    fclose(other);
    assert_int_equal(convert(f->ctx, from, to, MPR_FLOAT16, "torch-cuda", &r), MPR_OK);
    assert_true(file_holds(data, "another model's"));
    assert_same_file(test_data("convert/external.data"), in_folder(f->folder, "x.onnx.data"));
    assert_true(file_holds(to, "x.onnx.data"));
    assert_int_equal(files_in(f->folder), 3);
    mpr_model *model;
    assert_call(mpr_model_load(f->ctx, to, NULL, &model), f->ctx);
    mpr_model_destroy(model);
}

/* ---- type table: rows of the standard's changelog ---- */

static void types_by_opset(void **state)
{
    static const struct {
        const char *op;
        int opset;
        bool f16, bf16;
    } rows[] = {
        {"MatMul", 7, true, false},   {"MatMul", 13, true, true},  {"Conv", 21, true, false},
        {"Conv", 22, true, true},     {"CumSum", 13, false, false}, {"CumSum", 14, true, true},
        {"Where", 15, true, false},   {"Where", 16, true, true},   {"Range", 26, false, false},
        {"Einsum", 27, true, false},  {"Clip", 15, true, false},   {"Clip", 16, true, true},
        {"Celu", 12, false, false},   {"TopK", 23, true, false},   {"IsInf", 20, true, true},
        {"LayerNormalization", 17, true, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *op = rows[i].op;
        assert_int_equal(mpri_schema_takes(op, rows[i].opset, MPR_FLOAT16), rows[i].f16);
        assert_int_equal(mpri_schema_takes(op, rows[i].opset, MPR_BFLOAT16), rows[i].bf16);
        assert_true(mpri_schema_takes(op, rows[i].opset, MPR_FLOAT32));
    }
    assert_int_equal(mpri_schema_own("BatchNormalization", 13), 0);
    assert_int_equal(mpri_schema_own("BatchNormalization", 14), 1 << 3 | 1 << 4);
    assert_int_equal(mpri_schema_own("BatchNormalization", 15), 0x1e);
    assert_int_equal(mpri_schema_own("Pow", 11), 0);
    assert_int_equal(mpri_schema_refuses("Pow", 13, MPR_BFLOAT16), 1 << 1);
    assert_int_equal(mpri_schema_refuses("Pow", 15, MPR_BFLOAT16), 0);
    assert_int_equal(mpri_schema_refuses("Resize", 13, MPR_FLOAT16), 1 << 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(target_is_the_model, setup, teardown),
        cmocka_unit_test_setup_teardown(target_cannot_be_written, setup, teardown),
        cmocka_unit_test_setup_teardown(options_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(rule_without_a_match, setup, teardown),
        cmocka_unit_test_setup_teardown(strict, setup, teardown),
        cmocka_unit_test_setup_teardown(rules_of_a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(dry_run, setup, teardown),
        cmocka_unit_test_setup_teardown(external_data, setup, teardown),
        cmocka_unit_test(types_by_opset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
