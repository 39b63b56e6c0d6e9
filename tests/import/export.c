/* The way out: unchanged runs give the same bytes, changed weights read back, the rest of the file
 * stays. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <dirent.h>
#include <unistd.h>

#include "tests/support/wire_model.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, -1})

static const char *out_path(void)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/out.onnx", wm_folder());
    return path;
}

static ImportedModel *export_and_read(const ImportedModel *m, const WeightPatch *w, int n)
{
    Err err;
    mpri_err_clear(&err);
    assert_ok(mpri_export_file(m, out_path(), w, n, NULL, &err), &err);
    return wm_import_ok(out_path());
}

static void close_both(ImportedModel *a, ImportedModel *b)
{
    mpri_import_destroy(a, mpri_alloc_default());
    mpri_import_destroy(b, mpri_alloc_default());
}

static bool same_bytes(const char *a, const char *b)
{
    size_t n, k;
    void *x = wm_read(a, &n), *y = wm_read(b, &k);
    bool same = n == k && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

static void expect_values(const ImportedModel *m, const char *name, const float *want, int n)
{
    const Value *v = mpri_graph_find_value(m->graph, name);
    assert_non_null(v);
    for (int i = 0; i < n; i++) assert_true(mpri_load_f64(v->dtype, v->data, i) == (double)want[i]);
}

/* Two weights of every float type, raw and typed, an unknown field behind each, and one in a
 * Constant. */
static const char *all_types(void)
{
    static const int types[] = {MPR_FLOAT32, MPR_FLOAT16, MPR_BFLOAT16, MPR_FLOAT64};
    static const char *const names[] = {"f32", "f16", "bf16", "f64"};
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(4));
    for (int i = 0; i < 4; i++)
        for (int typed = 0; typed < 2; typed++) {
            char name[16];
            uint8_t raw[32];
            snprintf(name, sizeof name, "%s.%s", names[i], typed ? "typed" : "raw");
            for (int k = 0; k < 4; k++)
                mpri_store_f64((DType)types[i], raw, k,
                               types[i] == MPR_FLOAT64 ? k + 0.1 : k + 0.5);
            Wire t = wm_tensor(name, types[i], DIMS(4), typed ? NULL : raw,
                               4 * mpri_dtype_size((DType)types[i]));
            for (int k = 0; typed && k < 4; k++) {
                uint16_t half;
                memcpy(&half, raw + 2 * k, 2);
                if (i == 0) wm_f32(&t, 4, (float)k + 0.5f);
                else if (i < 3) wm_int(&t, 5, half);
            }
            if (typed && i == 3) mpri_wire_put_bytes(&t, 10, raw, 32);
            wm_int(&t, 99, 7);
            wm_end(&g, 5, &t);
        }
    Wire n = wm_node("Constant", "k", "", "constant.w"), a = wm_begin();
    Wire t = wm_tensor("", MPR_FLOAT32, DIMS(4), (const float[]){1, 2, 3, 4}, 16);
    wm_str(&a, 1, "value");
    wm_end(&a, 5, &t);
    wm_int(&a, 20, 4);
    wm_end(&n, 5, &a);
    wm_end(&g, 1, &n);
    n = wm_node("Constant", "k2", "", "constant.floats");
    a = wm_begin();
    wm_str(&a, 1, "value_floats");
    for (int i = 0; i < 4; i++) wm_f32(&a, 7, (float)i);
    wm_int(&a, 20, 6);
    wm_end(&n, 5, &a);
    wm_end(&g, 1, &n);
    wm_add_node(&g, "Relu", "r", "x", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(4));
    Wire m = wm_model(&g, 8, 17);
    return wm_write_model("types.onnx", &m);
}

static void test_every_type_rounds_back(void **state)
{
    (void)state;
    static const char *const names[] = {"f32.raw",    "f32.typed",      "f16.raw", "f16.typed",
                                        "bf16.raw",   "bf16.typed",     "f64.raw", "f64.typed",
                                        "constant.w", "constant.floats"};
    const char *path = all_types();
    ImportedModel *m = wm_import_ok(path);
    float same[10][4], other[10][4];
    WeightPatch w[10];
    for (int i = 0; i < 10; i++) {
        const Value *v = mpri_graph_find_value(m->graph, names[i]);
        for (int k = 0; k < 4; k++) {
            same[i][k] = (float)mpri_load_f64(v->dtype, v->data, k);
            other[i][k] = k == 2 ? -3.25f : same[i][k];
        }
        w[i] = (WeightPatch){names[i], same[i], 4};
    }
    ImportedModel *back = export_and_read(m, w, 10);
    assert_true(
        same_bytes(path, out_path())); /* also where the master is narrower than the file: f64 */
    mpri_import_destroy(back, mpri_alloc_default());
    for (int i = 0; i < 10; i++) w[i].data = other[i];
    back = export_and_read(m, w, 10);
    for (int i = 0; i < 10; i++) {
        const Value *v = mpri_graph_find_value(back->graph, names[i]),
                    *before = mpri_graph_find_value(m->graph, names[i]);
        assert_int_equal(v->dtype, before->dtype);
        for (int k = 0; k < 4; k++)
            assert_true(mpri_load_f64(v->dtype, v->data, k) ==
                        (k == 2 ? -3.25 : mpri_load_f64(v->dtype, before->data, k)));
    }
    size_t n;
    uint8_t *bytes = wm_read(out_path(), &n);
    int unknown = 0;
    for (size_t i = 0; i + 2 < n; i++)
        unknown += bytes[i] == 0x98 && bytes[i + 1] == 0x06 && bytes[i + 2] == 7;
    assert_int_equal(unknown, 8); /* field 99 survived everywhere */
    free(bytes);
    close_both(m, back);
}

/* ---- ties and merged values */

static Wire two_norms(bool identity, int64_t ir)
{
    static const float ones[4] = {1, 1, 1, 1}, zeros[4];
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2, 4));
    wm_add_f32(&g, "n1.weight", DIMS(4), ones);
    wm_add_f32(&g, "n1.bias", DIMS(4), zeros);
    if (ir < 4) {
        wm_value(&g, 11, "n1.weight", MPR_FLOAT32, D(4));
        wm_value(&g, 11, "n1.bias", MPR_FLOAT32, D(4));
    }
    if (identity) wm_add_node(&g, "Identity", "id", "n1.weight", "n2.weight");
    wm_add_node(&g, "LayerNormalization", "norm1", "x n1.weight n1.bias", "h");
    wm_add_node(&g, "LayerNormalization", "norm2", identity ? "h n2.weight" : "h n1.weight", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(2, 4));
    return wm_model(&g, ir, 17);
}

static void test_merged_by_value(void **state)
{
    (void)state;
    const float changed[4] = {2, 1, 1, 1};
    for (int how = 0; how < 3; how++) {
        Wire model = two_norms(how == 0, how == 2 ? 3 : 8);
        const char *path = wm_write_model("norms.onnx", &model),
                   *copy = how == 0 ? "n2.weight" : "norm2.weight";
        ImportedModel *m = wm_import_ok(path);
        const Param *p = wm_param(m, copy);
        assert_true(p->trained);
        assert_string_equal(p->identity_of, "n1.weight");
        assert_ptr_not_equal(p->value, wm_param(m, "n1.weight")->value);
        WeightPatch same = {copy, p->value->data, 4}, other = {copy, changed, 4},
                    source = {"n1.weight", changed, 4};
        ImportedModel *back = export_and_read(m, &same, 1);
        assert_true(same_bytes(path, out_path()));
        mpri_import_destroy(back, mpri_alloc_default());
        back = export_and_read(m, &other, 1);
        expect_values(back, copy, changed, 4);
        expect_values(back, "n1.weight", (const float[]){1, 1, 1, 1}, 4);
        const Node *norm2 = mpri_graph_find_value(back->graph, "y")->def;
        assert_string_equal(norm2->in[1]->name, copy);
        assert_int_equal(back->source->n_nodes, 2); /* the Identity is gone */
        assert_int_equal(back->n_overridable, how == 2 ? 3 : 0);
        mpri_import_destroy(back, mpri_alloc_default());
        back = export_and_read(m, &source,
                               1); /* the copy stays as it was, although its source moved */
        expect_values(back, copy, (const float[]){1, 1, 1, 1}, 4);
        expect_values(back, "n1.weight", changed, 4);
        close_both(m, back);
    }
}

static void test_tie_options(void **state)
{
    (void)state;
    Err err;
    Wire model = two_norms(true, 8);
    const char *path = wm_write_model("norms.onnx", &model);
    ImportOptions o = {.tie = (const char *const[]){"n1.weight", "n2.weight", NULL}};
    ImportedModel *m = wm_import(path, &o, &err);
    assert_ok(err.code, &err);
    assert_int_equal(mpri_graph_param_of(m->graph, "n2.weight"), -1);
    assert_int_equal(wm_param(m, "n1.weight")->value->n_uses, 2);
    mpri_import_destroy(m, mpri_alloc_default());
    o = (ImportOptions){.tie = (const char *const[]){"n1.weight", "n3.weight", NULL}};
    assert_null(wm_import(path, &o, &err));
    assert_error(MPR_E_USAGE, &err, "n3.weight");
}

/* A matrix and its transpose, as exporters write tied heads. */
static void test_split_matrix(void **state)
{
    (void)state;
    enum { R = 5, C = 7 };
    float a[R * C], b[C * R], changed[R * C];
    for (int i = 0; i < R * C; i++) {
        a[i] = (float)i;
        b[i % C * R + i / C] = (float)i;
        changed[i] = i == 9 ? -1 : (float)i;
    }
    Wire g = wm_begin();
    wm_value(&g, 11, "ids", MPR_INT64, D(3));
    wm_add_f32(&g, "table", DIMS(R, C), a);
    wm_add_f32(&g, "onnx::MatMul_9", DIMS(C, R), b);
    wm_add_node(&g, "Gather", "g", "table ids", "h");
    wm_add_node(&g, "MatMul", "head/MatMul", "h onnx::MatMul_9", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(3, R));
    Wire model = wm_model(&g, 8, 17);
    const char *path = wm_write_model("tied.onnx", &model);
    ImportedModel *m = wm_import_ok(path);
    const Param *p = wm_param(m, "table");
    assert_int_equal(m->graph->n_params, 1);
    assert_int_equal(p->n_copies, 1);
    assert_true(p->copies[0].transposed);
    assert_string_equal(p->copies[0].name, "onnx::MatMul_9");
    WeightPatch w = {"table", changed, R * C};
    ImportedModel *back = export_and_read(m, &w, 1);
    assert_int_equal(wm_param(back, "table")->n_copies,
                     1); /* still tied: both storages were written */
    expect_values(back, "table", changed, R * C);
    close_both(m, back);
    Err err;
    ImportOptions o = {.untie = (const char *const[]){"onnx::MatMul_9", NULL}};
    m = wm_import(path, &o, &err);
    assert_ok(err.code, &err);
    assert_int_equal(m->graph->n_params, 2);
    assert_string_equal(wm_param(m, "onnx::MatMul_9")->public_name, "head.weight");
    mpri_import_destroy(m, mpri_alloc_default());
}

/* Two layers made from one seed: one parameter, unless the user wants one of them alone. The name
 * that an exporter made up follows the table. */
static void test_parted_by_request(void **state)
{
    (void)state;
    enum { N = 5 };
    float a[N * N];
    for (int i = 0; i < N * N; i++) a[i] = (float)i;
    static const char *const second[] = {"l2.weight", "val_7"};
    static const struct {
        const char *train_only, *freeze;
        int parameters[2]; /* with each of the second names */
    } rows[] = {
        {NULL, NULL, {1, 1}},     {"l1.weight", NULL, {2, 1}}, {"l2.weight", NULL, {2, 1}},
        {"l*.weight", NULL, {1, 1}}, {NULL, "l1.*", {2, 1}},   {NULL, "l?.*", {1, 1}},
    };
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        Wire g = wm_begin();
        wm_value(&g, 11, "x", MPR_FLOAT32, D(3, N));
        wm_add_f32(&g, "l1.weight", DIMS(N, N), a);
        wm_add_f32(&g, second[i % 2], DIMS(N, N), a);
        wm_add_node(&g, "MatMul", "l1/MatMul", "x l1.weight", "h");
        wm_add_node(&g, "MatMul", "l2/MatMul", i % 2 ? "h val_7" : "h l2.weight", "y");
        wm_value(&g, 12, "y", MPR_FLOAT32, D(3, N));
        Wire model = wm_model(&g, 8, 17);
        const char *train_only[] = {rows[i / 2].train_only, NULL};
        const char *freeze[] = {rows[i / 2].freeze, NULL};
        ImportOptions o = {.train_only = train_only[0] ? train_only : NULL,
                           .freeze = freeze[0] ? freeze : NULL};
        Err err;
        ImportedModel *m = wm_import(wm_write_model("parted.onnx", &model), &o, &err);
        assert_ok(err.code, &err);
        assert_int_equal(m->graph->n_params, rows[i / 2].parameters[i % 2]);
        mpri_import_destroy(m, mpri_alloc_default());
    }
}

/* ---- external data */

static const char *external_model(void)
{
    float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const char *const names[] = {"a", "b"}, *const offsets[] = {"0", "16"};
    wm_write("weights.bin", data, sizeof data);
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(4));
    for (int i = 0; i < 2; i++) {
        Wire t = wm_tensor(names[i], MPR_FLOAT32, DIMS(4), NULL, 0);
        const char *pairs[4][2] = {{"location", "weights.bin"},
                                   {"offset", offsets[i]},
                                   {"length", "16"},
                                   {"checksum", "abc"}};
        for (int k = 0; k < 4; k++) {
            Wire e = wm_begin();
            wm_str(&e, 1, pairs[k][0]);
            wm_str(&e, 2, pairs[k][1]);
            wm_end(&t, 13, &e);
        }
        wm_int(&t, 14, 1);
        wm_end(&g, 5, &t);
    }
    wm_add_node(&g, "Add", "s", "x a", "h");
    wm_add_node(&g, "Mul", "m", "h b", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(4));
    Wire m = wm_model(&g, 8, 17);
    return wm_write_model("external.onnx", &m);
}

static void test_external_data(void **state)
{
    (void)state;
    const float changed[4] = {-1, 2, 3, 4};
    const char *path = external_model();
    char data[300], other[300], folder[300];
    ImportedModel *m = wm_import_ok(path);
    WeightPatch w = {"a", changed, 4};
    snprintf(data, sizeof data, "%s/weights.bin", wm_folder());

    /* beside the source: unchanged weights share its data, changed ones get a file of their own */
    ImportedModel *back = export_and_read(m, NULL, 0);
    assert_true(same_bytes(path, out_path()));
    mpri_import_destroy(back, mpri_alloc_default());
    back = export_and_read(m, &w, 1);
    expect_values(back, "a", changed, 4);
    expect_values(back, "b", (const float[]){5, 6, 7, 8}, 4);
    assert_string_equal(back->source->tensors[1].location, "out.onnx.data");
    size_t n;
    float *source = wm_read(data, &n);
    assert_true(source[0] == 1 && n == 32); /* the source's data is untouched */
    free(source);
    mpri_import_destroy(back, mpri_alloc_default());

    /* another folder: the same location, patched there */
    Err err;
    mpri_err_clear(&err);
    snprintf(folder, sizeof folder, "%s/elsewhere", wm_folder());
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(other, sizeof other, "%s/elsewhere/m.onnx", wm_folder());
    assert_ok(mpri_export_file(m, other, NULL, 0, NULL, &err), &err);
    assert_true(same_bytes(path, other));
    assert_ok(mpri_export_file(m, other, &w, 1, NULL, &err), &err);
    back = wm_import_ok(other);
    expect_values(back, "a", changed, 4);
    close_both(m, back);
}

/* ---- writing */

static int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static void test_refusals(void **state)
{
    (void)state;
    Err err;
    mpri_err_clear(&err);
    Wire model = two_norms(true, 8);
    const char *path = wm_write_model("norms.onnx", &model);
    ImportedModel *m = wm_import_ok(path);
    char link_path[300];
    snprintf(link_path, sizeof link_path, "%s/same.onnx", wm_folder());
    assert_int_equal(link(path, link_path), 0);
    assert_int_equal(mpri_export_file(m, path, NULL, 0, NULL, &err), MPR_E_USAGE);
    mpri_err_clear(&err);
    assert_int_equal(mpri_export_file(m, link_path, NULL, 0, NULL, &err), MPR_E_USAGE);
    mpri_err_clear(&err);
    assert_int_equal(mpri_export_file(m, wm_folder(), NULL, 0, NULL, &err), MPR_E_IO);
    mpri_err_clear(&err);
    assert_int_equal(mpri_export_file(m, "/absent-folder/x.onnx", NULL, 0, NULL, &err), MPR_E_IO);
    assert_error(MPR_E_IO, &err, "absent-folder", "No such file");
    mpri_err_clear(&err);
    assert_int_equal(truncate(path, 10), 0); /* the mapped file shrinks: noticed, not read */
    assert_int_equal(mpri_export_file(m, out_path(), NULL, 0, NULL, &err), MPR_E_IO);
    assert_error(MPR_E_IO, &err, "norms.onnx", "changed");
    mpri_import_destroy(m, mpri_alloc_default());
    model = two_norms(true, 8);
    m = wm_import_ok(wm_write_model("norms.onnx", &model));
    mpri_err_clear(&err);
    WeightPatch w = {"nobody", (const float[]){1}, 1};
    assert_int_equal(mpri_export_file(m, out_path(), &w, 1, NULL, &err), MPR_E_INTERNAL);
    assert_error(MPR_E_INTERNAL, &err, "nobody");
    mpri_import_destroy(m, mpri_alloc_default());
}

static void test_full_disk(void **state)
{
    (void)state;
    Err err;
    mpri_err_clear(&err);
    struct rlimit old, small = {4096, 0};
    char *bytes = calloc(1, 65536);
    const char *before = wm_write("full.bin", "old", 3);
    char path[300];
    snprintf(path, sizeof path, "%s", before);
    int n = entries(wm_folder());
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    mpr_status status = mpri_write_file_atomic(path, bytes, 65536, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(status, MPR_E_IO);
    assert_error(MPR_E_IO, &err, "full.bin", "File too large", "65536");
    assert_int_equal(entries(wm_folder()), n); /* no temporary stays behind */
    size_t size;
    char *now = wm_read(path, &size);
    assert_int_equal(size, 3);
    assert_memory_equal(now, "old", 3);
    free(now);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_rounds_back),
        cmocka_unit_test(test_merged_by_value),
        cmocka_unit_test(test_tie_options),
        cmocka_unit_test(test_split_matrix), cmocka_unit_test(test_parted_by_request),
        cmocka_unit_test(test_external_data),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
