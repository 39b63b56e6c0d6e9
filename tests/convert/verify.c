/* The check by numbers: what is compared and reported, where it fails, data that do not fit, and
 * the search for nodes that have to stay in float32. */
#include "tests/convert/models.h"

#include "convert/auto.h"

static mpr_convert_options options(const char *data)
{
    return (mpr_convert_options){.size = sizeof(mpr_convert_options), .to = MPR_FLOAT16,
                                 .verify = data};
}

/* n elements between -1 and 1 times `scale`, in an npz under `key`. */
static const char *put_data(Fixture *f, const char *file, const char *key, int rank,
                            const int64_t *dims, float scale)
{
    const char *path = in_folder(f->folder, file);
    mpr_tensors *t;
    int64_t n = 1;
    for (int k = 0; k < rank; k++) n *= dims[k];
    float *x = malloc(sizeof *x * (size_t)(n + 1));
    assert_non_null(x);
    uint32_t state = 7;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = scale * ((float)(state >> 8) / 8388608.0f - 1);
    }
    mpr_tensor tensor = {.data = x, .dtype = MPR_FLOAT32, .rank = rank};
    for (int k = 0; k < rank; k++) tensor.dims[k] = dims[k];
    assert_call(mpr_tensors_create(f->ctx, &t), f->ctx);
    assert_call(mpr_tensors_put(t, key, &tensor), t);
    assert_call(mpr_tensors_save(t, path), t);
    mpr_tensors_destroy(t);
    free(x);
    return path;
}

static const int64_t plain_dims[] = {5, 8};

static mpr_status run(Fixture *f, const char *from, const char *to, const mpr_convert_options *o,
                      mpr_error *error)
{
    mpr_model *model;
    assert_call(mpr_model_load(f->ctx, from, NULL, &model), f->ctx);
    mpr_status st = mpr_convert(model, to, o, NULL);
    static mpr_error last;
    last = mpr_last_error(model);
    static char texts[3][1024];
    snprintf(texts[0], sizeof texts[0], "%s", last.message);
    snprintf(texts[1], sizeof texts[1], "%s", last.where);
    snprintf(texts[2], sizeof texts[2], "%s", last.advice);
    *error =
        (mpr_error){.code = last.code, .message = texts[0], .where = texts[1], .advice = texts[2]};
    mpr_model_destroy(model);
    return st;
}

static void passes(Fixture *f, const char *from, const char *to, const mpr_convert_options *o)
{
    mpr_error e;
    if (run(f, from, to, o, &e) != MPR_OK) fail_msg("%s: %s | %s", from, e.message, e.where);
}

static void fails(Fixture *f, const char *from, const char *to, const mpr_convert_options *o,
                  mpr_status status, const char *word)
{
    mpr_error e;
    assert_int_equal(run(f, from, to, o, &e), status);
    if (!strstr(e.message, word) && !strstr(e.where, word))
        fail_msg("no '%s' in: %s | %s", word, e.message, e.where);
    if (!*e.advice) fail_msg("no advice for: %s", e.message);
}

static const char *const all_models[] = {
    "convert/constants.onnx", "convert/dropout.onnx", "convert/function.onnx",
    "convert/if_capture.onnx", "convert/if_constant.onnx", "convert/names_taken.onnx",
    "convert/one_bias.onnx", "convert/opset13.onnx", "convert/shared_weight.onnx",
    "convert/stream.onnx", "convert/tail.onnx", "convert/external.onnx",
    "convert/check/loop.onnx", "convert/check/scan.onnx", "convert/check/batch2.onnx",
};

static void within_under(Fixture *f, const char *profile)
{
    for (size_t i = 0; i < 4 * sizeof all_models / sizeof *all_models; i++) {
        bool two = strstr(all_models[i / 4], "batch2") || strstr(all_models[i / 4], "loop") ||
                   strstr(all_models[i / 4], "scan");
        const int64_t dims[] = {two ? 2 : 5, 8};
        const char *to = in_folder(f->folder, "y.onnx"), *report = in_folder(f->folder, "r.json");
        mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, dims, 1));
        char *table = NULL;
        o.to = i & 1 ? MPR_BFLOAT16 : MPR_FLOAT16;
        o.mode = i & 2 ? "infer" : "train";
        o.autocast_profile = profile;
        o.rtol = 0.2;
        o.report = report;
        o.per_node = true;
        o.verified = &table;
        passes(f, test_data(all_models[i / 4]), to, &o);
        assert_true(exists(to));
        assert_true(file_holds(report, "\"verify\": {\"atol\": "));
        assert_true(file_holds(report, "\"rtol\": 0.2}"));
        assert_true(file_holds(report, "{\"accumulated\": {\"max_abs\": "));
        assert_true(file_holds(report, "\"born\": \"none\", \"local\": {\"max_abs\": "));
        assert_non_null(table);
        if (!strstr(table, "verified: within the tolerance: rtol 0.2"))
            fail_msg("%s: %s", all_models[i / 4], table);
        assert_non_null(strstr(table, "born"));
        mpr_free_text(f->ctx, table);
        remove(to);
    }
}

/* Every model within a generous tolerance, in both types and modes; the report has all parts. */
static void within(void **state)
{
    within_under(*state, "paint");
    within_under(*state, "torch-cuda");
    within_under(*state, "torch-cpu");
}

/* A breach: nothing is written but the report, what was there stays. */
static void breach(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/tail.onnx"), *to = in_folder(f->folder, "y.onnx");
    mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 1));
    char *table = NULL;
    o.rtol = 1e-9;
    o.atol = -1;
    o.report = in_folder(f->folder, "r.json");
    o.verified = &table;
    fails(f, from, to, &o, MPR_E_TOLERANCE, "are above rtol 1e-09, atol 0");
    assert_int_equal(mpr_status_exit_code(MPR_E_TOLERANCE), 3);
    assert_false(exists(to));
    assert_true(file_holds(o.report, "\"result\": \"breach\""));
    assert_non_null(strstr(table, "above the tolerance"));
    mpr_free_text(f->ctx, table);
    o.verified = NULL;
    FILE *old = fopen(to, "wb");
    assert_int_equal(fwrite("old", 1, 3, old), 3);
    fclose(old);
    fails(f, from, to, &o, MPR_E_TOLERANCE, "has the largest error of its own");
    assert_true(file_holds(to, "old"));
    assert_int_equal(files_in(f->folder), 3);
    o.dry_run = true;
    fails(f, from, NULL, &o, MPR_E_TOLERANCE, "output 'y'");
}

/* With every node in float32 there is no difference at all, also at no tolerance. */
static void nothing_low(void **state)
{
    Fixture *f = *state;
    const char *to = in_folder(f->folder, "y.onnx");
    for (size_t i = 0; i < sizeof all_models / sizeof *all_models - 3; i++) {
        mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 3));
        o.rules = (const char *const[]){"exclude op:.*", NULL};
        o.rtol = o.atol = -1;
        passes(f, test_data(all_models[i]), to, &o);
    }
}

/* The same under a profile of torch, by a rule for each node. */
static void nothing_low_by_rules(void **state)
{
    Fixture *f = *state;
    const char *to = in_folder(f->folder, "y.onnx");
    for (size_t i = 0; i < sizeof all_models / sizeof *all_models - 3; i++) {
        mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 3));
        o.autocast_profile = i & 1 ? "torch-cpu" : "torch-cuda";
        o.keep_fp32 = (const char *const[]){"*", NULL};
        o.rtol = o.atol = -1;
        passes(f, test_data(all_models[i]), to, &o);
    }
}

/* Operators that the opset knows in float32 alone stand between Casts: the values around them are
 * found, and what rounds is no node of the model. */
static void forced(void **state)
{
    Fixture *f = *state;
    static const char *const files[] = {"convert/forced.onnx", "convert/forced_ir10.onnx"};
    for (int i = 0; i < 8; i++) {
        const char *to = in_folder(f->folder, "y.onnx"), *again = in_folder(f->folder, "z.onnx");
        mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 1));
        char *table = NULL, *second = NULL;
        o.to = i & 1 ? MPR_BFLOAT16 : MPR_FLOAT16;
        o.autocast_profile = i & 2 ? "torch-cpu" : "torch-cuda";
        o.rtol = 0.2;
        o.per_node = true;
        o.verified = &table;
        passes(f, test_data(files[i / 4]), to, &o);
        assert_null(strstr(table, "__mpr_"));
        o.verified = &second;
        passes(f, to, again, &o); /* of what is converted already */
        assert_string_equal(table, second);
        assert_same_file(to, again);
        mpr_free_text(f->ctx, table);
        mpr_free_text(f->ctx, second);
    }
}

/* A breach and an overflow under a profile of torch: nothing is written but the report. */
static void breach_by_operators(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/check/long_sum.onnx");
    const char *to = in_folder(f->folder, "y.onnx"), *report = in_folder(f->folder, "r.json");
    const int64_t dims[] = {2, 4096};
    mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, dims, 1));
    o.autocast_profile = "torch-cuda";
    o.rtol = 0.004;
    passes(f, from, to, &o);
    remove(to);
    o.accumulate = "fp16";
    o.report = report;
    fails(f, from, to, &o, MPR_E_TOLERANCE, "output 'y' differs");
    assert_false(exists(to));
    assert_true(file_holds(report, "\"result\": \"breach\""));
    assert_int_equal(files_in(f->folder), 2);
    o.accumulate = NULL;
    o.rtol = 0.5;
    o.verify = put_data(f, "big.npz", "x", 2, dims, 60000);
    fails(f, from, to, &o, MPR_E_TOLERANCE, "node 'mm' (MatMul), where the first Inf is born");
    o.dry_run = true;
    fails(f, from, NULL, &o, MPR_E_TOLERANCE, "output 'y'");
    o.dry_run = false;
    o.annotate = true;
    fails(f, from, to, &o, MPR_E_USAGE, "an annotated model computes as it did");
}

/* What goes back is compared with itself, whatever profile decided. */
static void way_back(void **state)
{
    Fixture *f = *state;
    static const char *const profiles[] = {"paint", "torch-cuda", "torch-cpu"};
    char low[256], back[256], plain[256], report[256];
    snprintf(low, sizeof low, "%s/low.onnx", f->folder);
    snprintf(back, sizeof back, "%s/back.onnx", f->folder);
    snprintf(plain, sizeof plain, "%s/plain.onnx", f->folder);
    snprintf(report, sizeof report, "%s/r.json", f->folder);
    for (int i = 0; i < 3; i++) {
        const char *from = test_data("convert/stream.onnx");
        mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 1));
        o.autocast_profile = profiles[i];
        passes(f, from, low, &o);
        o.to = MPR_FLOAT32;
        o.rtol = 0.2;
        o.report = report;
        passes(f, low, back, &o);
        assert_true(file_holds(report, "\"verify\": {\"atol\": "));
        mpr_convert_options none = {.size = sizeof none, .to = MPR_FLOAT16, .no_passes = true,
                                    .autocast_profile = profiles[i]};
        passes(f, from, plain, &none);
        assert_same_file(plain, back);
        o.annotate = true;
        o.verify = NULL;
        fails(f, low, back, &o, MPR_E_USAGE, "annotate: the way back");
        o.annotate = false;
        o.annotations = report;
        fails(f, low, back, &o, MPR_E_USAGE, "annotations: the way back");
    }
}

/* Data files stay away when the numbers do not hold. */
static void breach_beside_data(void **state)
{
    Fixture *f = *state;
    const char *to = in_folder(f->folder, "y.onnx");
    mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 1));
    o.autocast_profile = "torch-cuda";
    o.rtol = o.atol = -1;
    fails(f, test_data("convert/external.onnx"), to, &o, MPR_E_TOLERANCE, "differs");
    assert_int_equal(files_in(f->folder), 1);
    o.rtol = o.atol = 0;
    passes(f, test_data("convert/external.onnx"), to, &o);
    assert_int_equal(files_in(f->folder), 3);
}

/* The same numbers for a model and for its conversion, converted again. */
static void verified_again(void **state)
{
    Fixture *f = *state;
    const char *once = in_folder(f->folder, "1.onnx"), *twice = in_folder(f->folder, "2.onnx");
    const char *first = in_folder(f->folder, "1.json");
    mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, plain_dims, 1));
    char *a = NULL, *b = NULL;
    o.mode = "train";
    o.per_node = true;
    o.verified = &a;
    o.report = first;
    passes(f, test_data("convert/if_capture.onnx"), once, &o);
    o.verified = &b;
    passes(f, once, twice, &o);
    assert_string_equal(a, b);
    assert_same_file(once, twice);
    mpr_free_text(f->ctx, a);
    mpr_free_text(f->ctx, b);
}

/* Sums in 16 bits are worse than one rounding; an overflow is named where it is born. */
static void sums_and_births(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/check/long_sum.onnx"),
               *to = in_folder(f->folder, "y.onnx");
    const int64_t dims[] = {2, 4096};
    mpr_convert_options o = options(put_data(f, "x.npz", "x", 2, dims, 1));
    o.rtol = 0.004;
    o.mode = "infer";
    passes(f, from, to, &o);
    o.accumulate = "fp16";
    fails(f, from, to, &o, MPR_E_TOLERANCE, "output 'y' differs");
    o.accumulate = "fp8";
    fails(f, from, to, &o, MPR_E_USAGE, "allowed are fp32 and fp16");
    o.accumulate = NULL;
    o.rtol = 0.5;
    o.verify = put_data(f, "big.npz", "x", 2, dims, 60000);
    fails(f, from, to, &o, MPR_E_TOLERANCE, "node 'mm' (MatMul), where the first Inf is born");
}

/* In bodies and functions the node inside is named, also where its output is called differently
 * outside. */
static void births_inside(void **state)
{
    static const char *const rows[][3] = {
        {"range_if", ".*", "'if.then_branch/it'"},
        {"range_if_same", ".*", "'if.then_branch/it'"},
        {"range_if_out", ".*", "'if.then_branch/it'"},
        {"range_if_out", "it", "'if.then_branch/it'"},
        {"range_if_unnamed", ".*", "'if.then_branch/#0.then_branch/it'"},
        {"range_loop", ".*", "'loop.body/it'"},
        {"range_nested", ".*", "'loop.body/if.then_branch/it'"},
        {"range_scan", ".*", "'scan.body/it'"},
        {"range_call", ".*", "'call:Swell/it'"},
        {"range_call_out", ".*", "'call:Scale/it'"},
        {"range_call_out", "it", "'call:Scale/it'"},
        {"range_calls", ".*", "'#2:Swell/it'"},
    };
    Fixture *f = *state;
    const int64_t dims[] = {2, 8};
    const char *data = put_data(f, "big.npz", "x", 2, dims, 900);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char from[64], rule[64], where[80];
        snprintf(from, sizeof from, "convert/check/guard_%s.onnx", rows[i][0]);
        snprintf(rule, sizeof rule, "force-include node:%s", rows[i][1]);
        snprintf(where, sizeof where, "node %s (Mul), where the first Inf is born", rows[i][2]);
        mpr_convert_options o = options(data);
        o.rtol = 0.5;
        o.rules = (const char *const[]){rule, NULL};
        fails(f, test_data(from), in_folder(f->folder, "y.onnx"), &o, MPR_E_TOLERANCE, where);
        mpr_error e;
        run(f, test_data(from), in_folder(f->folder, "y.onnx"), &o, &e);
        assert_null(strstr(e.message, "-nan"));
    }
}

static void data_are_checked(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/check/batch2.onnx"), *to = in_folder(f->folder, "y.onnx");
    const int64_t one[] = {2, 8}, stacked[] = {3, 2, 8}, rows[] = {6, 8}, odd[] = {5, 8};
    const int64_t wide[] = {2, 9}, flat[] = {8};
    mpr_convert_options o = options(put_data(f, "1.npz", "x", 2, one, 1));
    passes(f, from, to, &o);
    o.verify = put_data(f, "2.npz", "x", 3, stacked, 1);
    passes(f, from, to, &o);
    o.verify = put_data(f, "3.npz", "x", 2, rows, 1);
    passes(f, from, to, &o);
    o.verify = put_data(f, "4.npz", "x", 2, odd, 1);
    fails(f, from, to, &o, MPR_E_SHAPE, "'x' has shape [5,8], the model reads [2,8]");
    o.verify = put_data(f, "5.npz", "x", 2, wide, 1);
    fails(f, from, to, &o, MPR_E_SHAPE, "'x' has shape [2,9]");
    o.verify = put_data(f, "6.npz", "x", 1, flat, 1);
    fails(f, from, to, &o, MPR_E_SHAPE, "verification data");
    o.verify = put_data(f, "7.npz", "z", 2, one, 1);
    fails(f, from, to, &o, MPR_E_DATA, "no tensor 'x'; there are 'z'");
    o.verify = in_folder(f->folder, "none.npz");
    fails(f, from, to, &o, MPR_E_IO, "none.npz");
    o.verify = NULL;
    o.calib = in_folder(f->folder, "5.npz");
    fails(f, from, to, &o, MPR_E_SHAPE, "calibration data");
    mpr_tensors *t;
    double x[16] = {0};
    mpr_tensor wrong = {.data = x, .dtype = MPR_FLOAT64, .rank = 2, .dims = {2, 8}};
    assert_call(mpr_tensors_create(f->ctx, &t), f->ctx);
    assert_call(mpr_tensors_put(t, "x", &wrong), t);
    o.verify = in_folder(f->folder, "8.npz");
    o.calib = NULL;
    assert_call(mpr_tensors_save(t, o.verify), t);
    mpr_tensors_destroy(t);
    fails(f, from, to, &o, MPR_E_TYPE, "'x' is float64, the model reads float32");
}

/* ---- the search ---- */

typedef struct Needs { int least; int tried[64]; int n; } Needs;

static mpr_status enough(void *user, int k, bool *is, Err *err)
{
    Needs *needs = user;
    (void)err;
    needs->tried[needs->n++] = k;
    *is = k >= needs->least;
    return MPR_OK;
}

static void search_is_short(void **state)
{
    (void)state;
    for (int n = 0; n <= 300; n++)
        for (int least = 0; least <= n + 1; least++) {
            Needs needs = {.least = least};
            AutoSearch s = {.n = n, .probe = enough, .user = &needs};
            Err err = {0};
            int log = 0;
            while (1 << log < n) log++;
            assert_int_equal(mpri_auto_search(&s, &err), MPR_OK);
            assert_int_equal(s.possible, least <= n);
            if (s.possible) assert_int_equal(s.raised, least);
            assert_true(s.runs <= 2 * log + 3);
            assert_int_equal(s.runs, needs.n);
        }
}

static void found(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/stream.onnx"), *to = in_folder(f->folder, "y.onnx");
    const char *data = put_data(f, "x.npz", "x", 2, plain_dims, 1);
    const char *report = in_folder(f->folder, "r.json");
    int low_before = 1 << 30;
    for (double rtol = 0.1; rtol > 1e-8; rtol /= 8) {
        mpr_convert_options o = options(data);
        mpr_convert_result r = {.size = sizeof r};
        mpr_model *model;
        o.auto_rtol = rtol;
        o.report = report;
        assert_call(mpr_model_load(f->ctx, from, NULL, &model), f->ctx);
        assert_call(mpr_convert(model, to, &o, &r), model);
        mpr_model_destroy(model);
        assert_true(r.nodes_low <= low_before);
        low_before = (int)r.nodes_low;
    }
    assert_int_equal(low_before, 0);
    assert_true(file_holds(report, "\"reason\": \"auto\""));
    assert_true(file_holds(report, "of its largest value"));
    mpr_convert_options o = options(data);
    o.auto_rtol = 1e-7;
    o.rules = (const char *const[]){"force-include op:Gemm", NULL};
    fails(f, from, in_folder(f->folder, "n.onnx"), &o, MPR_E_TOLERANCE, "even with all");
    assert_false(exists(in_folder(f->folder, "n.onnx")));
    o.verify = NULL;
    fails(f, from, to, &o, MPR_E_USAGE, "auto needs data");
    o.calib = data;
    o.rules = NULL;
    passes(f, from, to, &o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(within, setup, teardown),
        cmocka_unit_test_setup_teardown(breach, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_low, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_low_by_rules, setup, teardown),
        cmocka_unit_test_setup_teardown(forced, setup, teardown),
        cmocka_unit_test_setup_teardown(breach_by_operators, setup, teardown),
        cmocka_unit_test_setup_teardown(way_back, setup, teardown),
        cmocka_unit_test_setup_teardown(breach_beside_data, setup, teardown),
        cmocka_unit_test_setup_teardown(verified_again, setup, teardown),
        cmocka_unit_test_setup_teardown(sums_and_births, setup, teardown),
        cmocka_unit_test_setup_teardown(births_inside, setup, teardown),
        cmocka_unit_test_setup_teardown(data_are_checked, setup, teardown),
        cmocka_unit_test(search_is_short),
        cmocka_unit_test_setup_teardown(found, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
