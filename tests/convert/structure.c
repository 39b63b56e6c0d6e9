/* What happens to the file around the precision: data files, newer opsets, functions, roundings. */
#include "tests/convert/models.h"
#include "tests/support/wire_model.h"

#include "convert/mixed.h"
#include "runtime/base/text.h"

enum { F32 = 1, F16 = 10, SIDE = 64 };

static float numbers[SIDE * SIDE];

static void value(Wire *g, uint32_t number, const char *name, int type)
{
    wm_value(g, number, name, type, (const int64_t[]){-1, SIDE, -99});
}

/* y = MatMul(Clip(x), W), at an old opset */
static const char *old_model(const char *name, int64_t opset)
{
    Wire g = wm_begin(), n = wm_node("Clip", "limit", "x", "c");
    wm_attr_float(&n, "max", 6);
    wm_attr_float(&n, "min", 0);
    GRAPH_ADD_NODE(&g, &n);
    wm_add_node(&g, "MatMul", "mm", "c W", "y");
    wm_str(&g, 2, "g");
    wm_add_f32(&g, "W", (const int64_t[]){SIDE, SIDE, -1}, numbers);
    value(&g, 11, "x", F32);
    value(&g, 12, "y", F32);
    Wire m = wm_model(&g, 7, opset);
    return wm_write_model(name, &m);
}

static mpr_status mixed(const char *from, const char *to, MixedOptions o, Err *err)
{
    ImportedModel *m = wm_import_ok(from);
    ConvertResult r;
    o.alloc = mpri_alloc_default();
    mpr_status st = mpri_mixed_file(m, to, &o, &r, err);
    mpri_import_destroy(m, mpri_alloc_default());
    return st;
}

static const char *beside(const char *name)
{
    static char path[2][512];
    static int next;
    char *p = path[next++ % 2];
    snprintf(p, sizeof path[0], "%s/%s", wm_folder(), name);
    return p;
}

static bool holds(const char *path, const char *text)
{
    size_t n;
    void *bytes = wm_read(path, &n);
    bool found = memmem(bytes, n, text, strlen(text));
    free(bytes);
    return found;
}

static size_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
}

static void large_data_leave_the_file(void **state)
{
    const char *from = old_model("in.onnx", 9);
    static const char *const modes[] = {"train", "infer"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Err err;
    mpri_err_clear(&err);
        const char *out = beside("out.onnx"), *data = beside("out.onnx.data");
        MixedOptions o = {.to = MPR_FLOAT16, .mode = modes[i], .most_inline = 4000};
        assert_int_equal(mixed(from, out, o, &err), MPR_OK);
        assert_int_equal(size_of(data), sizeof numbers / (i ? 2 : 1));
        assert_true(holds(out, "out.onnx.data") && size_of(out) < 4000);
        mpri_import_destroy(wm_import_ok(out), mpri_alloc_default());
        o.external = "never";
        assert_int_equal(mixed(from, beside("never.onnx"), o, &err), MPR_E_USAGE);
        assert_false(exists(beside("never.onnx")));
        mpri_err_clear(&err);
        unlink(data);
        unlink(out);
    }
}

static void weights_are_made_while_they_are_written(void **state)
{
    enum { MANY = 300 };
    static float big[MANY * MANY];
    (void)state;
    for (int i = 0; i < MANY * MANY; i++) big[i] = (float)(i % 1000) / 512 - 1;
    Wire g = wm_begin();
    wm_add_node(&g, "MatMul", "mm", "x W", "y");
    wm_str(&g, 2, "g");
    wm_add_f32(&g, "W", (const int64_t[]){MANY, MANY, -1}, big);
    wm_value(&g, 11, "x", F32, (const int64_t[]){-1, MANY, -99});
    wm_value(&g, 12, "y", F32, (const int64_t[]){-1, MANY, -99});
    Wire m = wm_model(&g, 8, 17);
    const char *from = wm_write_model("big.onnx", &m), *once = beside("once.onnx");
    Err err;
    mpri_err_clear(&err);
    MixedOptions o = {.to = MPR_FLOAT16, .mode = "infer"};
    assert_int_equal(mixed(from, once, o, &err), MPR_OK);
    uint16_t low[MANY];
    for (int i = 0; i < MANY; i++) low[i] = mpri_f32_to_f16(big[MANY * (MANY - 1) + i]);
    size_t n;
    void *bytes = wm_read(once, &n);
    assert_non_null(memmem(bytes, n, low, sizeof low));
    free(bytes);
    assert_int_equal(mixed(once, beside("twice.onnx"), o, &err), MPR_OK);
    assert_same_file(once, beside("twice.onnx"));
}

static void opset_is_raised(void **state)
{
    Err err;
    mpri_err_clear(&err);
    (void)state;
    const char *from = old_model("in.onnx", 9), *out = beside("out.onnx");
    MixedOptions o = {.to = MPR_FLOAT16, .mode = "train", .opset = 18};
    assert_int_equal(mixed(from, out, o, &err), MPR_OK);
    ImportedModel *m = wm_import_ok(out);
    char *text = wm_graph_text(m);
    assert_non_null(strstr(text, "Clip"));
    free(text);
    mpri_import_destroy(m, mpri_alloc_default());
    assert_true(holds(out, "c_min") && holds(out, "c_max"));
    assert_int_equal(mixed(out, beside("twice.onnx"), o, &err), MPR_OK);
    assert_same_file(out, beside("twice.onnx"));
    o.opset = 8;
    assert_int_equal(mixed(from, beside("older.onnx"), o, &err), MPR_E_USAGE);
    assert_false(exists(beside("older.onnx")));
    mpri_err_clear(&err);
    o.opset = 99;
    assert_int_equal(mixed(from, beside("newer.onnx"), o, &err), MPR_E_USAGE);
    mpri_err_clear(&err);
}

static void what_cannot_be_raised_is_named(void **state)
{
    Err err;
    mpri_err_clear(&err);
    (void)state;
    Wire g = wm_begin(), n = wm_node("BatchNormalization", "odd one", "x s s s s", "y");
    wm_attr_int(&n, "spatial", 0);
    GRAPH_ADD_NODE(&g, &n);
    wm_str(&g, 2, "g");
    wm_add_f32(&g, "s", (const int64_t[]){SIDE, -1}, numbers);
    value(&g, 11, "x", F32);
    value(&g, 12, "y", F32);
    Wire m = wm_model(&g, 7, 8);
    const char *from = wm_write_model("odd.onnx", &m);
    MixedOptions o = {.to = MPR_FLOAT16, .mode = "train", .opset = 13};
    assert_int_equal(mixed(from, beside("no.onnx"), o, &err), MPR_E_OPSET);
    assert_non_null(strstr(err.message, "odd one"));
    assert_non_null(strstr(err.message, "spatial"));
    mpri_err_clear(&err);
}

static void calls_are_taken_apart(void **state)
{
    Err err;
    mpri_err_clear(&err);
    (void)state;
    const char *from = test_data("convert/function.onnx"), *out = beside("flat.onnx");
    MixedOptions o = {.to = MPR_FLOAT16, .mode = "train", .inline_calls = true};
    assert_int_equal(mixed(from, out, o, &err), MPR_OK);
    assert_int_equal(mixed(out, beside("twice.onnx"), o, &err), MPR_OK);
    assert_same_file(out, beside("twice.onnx"));
    mpri_import_destroy(wm_import_ok(out), mpri_alloc_default());
}

/* x (f32) -> Cast -> MatMul in 16 bits -> Cast -> y (f32) */
static const char *foreign_model(const char *name)
{
    static uint16_t low[SIDE * SIDE];
    Wire g = wm_begin(), n = wm_node("Cast", "down", "x", "h");
    wm_attr_int(&n, "to", F16);
    GRAPH_ADD_NODE(&g, &n);
    wm_add_node(&g, "MatMul", "mm", "h W", "p");
    n = wm_node("Cast", "up", "p", "y");
    wm_attr_int(&n, "to", F32);
    GRAPH_ADD_NODE(&g, &n);
    wm_str(&g, 2, "g");
    Wire t = wm_tensor("W", F16, (const int64_t[]){SIDE, SIDE, -1}, low, sizeof low);
    wm_end(&g, 5, &t);
    value(&g, 11, "x", F32);
    value(&g, 12, "y", F32);
    value(&g, 13, "p", F16);
    Wire m = wm_model(&g, 8, 17);
    return wm_write_model(name, &m);
}

static void foreign_models_become_float(void **state)
{
    (void)state;
    const char *from = foreign_model("foreign.onnx");
    for (int drop = 0; drop < 2; drop++) {
        Err err;
    mpri_err_clear(&err);
        const char *out = beside("wide.onnx");
        MixedOptions o = {.to = MPR_FLOAT32, .drop_rounding = drop};
        assert_int_equal(mixed(from, out, o, &err), MPR_OK);
        assert_int_equal(holds(out, "down"), !drop);
        assert_false(holds(out, "mpr.precision"));
        ImportedModel *m = wm_import_ok(out);
        char *text = wm_graph_text(m);
        if (drop) assert_null(strstr(text, "f16"));
        free(text);
        mpri_import_destroy(m, mpri_alloc_default());
        assert_int_equal(mixed(out, beside("again.onnx"), o, &err), MPR_OK);
        assert_same_file(out, beside("again.onnx"));
    }
}

static void pictures_are_well_formed(void **state)
{
    Err err;
    mpri_err_clear(&err);
    (void)state;
    Wire g = wm_begin();
    wm_add_node(&g, "MatMul", "a<b>&\"c\"\\\x01", "x W", "y");
    wm_str(&g, 2, "g");
    wm_add_f32(&g, "W", (const int64_t[]){SIDE, SIDE, -1}, numbers);
    value(&g, 11, "x", F32);
    value(&g, 12, "y", F32);
    Wire m = wm_model(&g, 8, 17);
    const char *from = wm_write_model("names.onnx", &m);
    MixedOptions o = {.to = MPR_FLOAT16, .mode = "train", .dry_run = true,
                      .svg = beside("p.svg"), .dot = beside("p.dot")};
    assert_int_equal(mixed(from, NULL, o, &err), MPR_OK);
    assert_true(holds(o.svg, "a&lt;b&gt;&amp;&quot;c&quot;\\</text>") && holds(o.svg, "</svg>"));
    assert_false(holds(o.svg, "\x01"));
    assert_true(holds(o.dot, "a<b>&\\\"c\\\"\\\\") && holds(o.dot, "2 casts"));
}

int main(void)
{
    for (int i = 0; i < SIDE * SIDE; i++) numbers[i] = (float)(i % 13 + 1) / 16;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_data_leave_the_file),
        cmocka_unit_test(weights_are_made_while_they_are_written),
        cmocka_unit_test(opset_is_raised),
        cmocka_unit_test(what_cannot_be_raised_is_named),
        cmocka_unit_test(calls_are_taken_apart),
        cmocka_unit_test(foreign_models_become_float),
        cmocka_unit_test(pictures_are_well_formed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
