/* Every legal storage form loads to the same numbers; external data stays in its folder and range.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/wire_model.h"

enum { N = 4 };
static const double numbers[N] = {1, -2, 0.5, 96};
static const int64_t integers[N] = {1, -2, 100, 7};

static void put_packed(Wire *t, uint32_t field, int type, bool packed)
{
    Wire list = wm_begin();
    for (int i = 0; i < N; i++) {
        float f = (float)numbers[i];
        double d = numbers[i];
        int64_t v = type == MPR_FLOAT16    ? mpri_f32_to_f16(f)
                    : type == MPR_BFLOAT16 ? mpri_f32_to_bf16(f)
                                           : integers[i];
        if (field == 4 && !packed) wm_f32(t, 4, f);
        else if (field == 4) mpri_text_bytes(&list, &f, 4);
        else if (field == 10) mpri_text_bytes(&list, &d, 8);
        else if (packed) mpri_wire_put_varint(&list, (uint64_t)v);
        else wm_int(t, field, v);
    }
    if (packed || field == 10) wm_end(t, field, &list);
    else mpri_text_free(&list);
}

static void put_raw(Wire *t, int type)
{
    uint8_t raw[N * 8];
    for (int i = 0; i < N; i++) {
        if (mpri_dtype_is_float((DType)type)) mpri_store_f64((DType)type, raw, i, numbers[i]);
        else mpri_store_i64((DType)type, raw, i, integers[i]);
    }
    mpri_wire_put_bytes(t, 9, raw, N * mpri_dtype_size((DType)type));
}

/* A model whose only output is the tensor under test. */
static const char *model_of(Wire *t)
{
    Wire g = wm_begin();
    wm_end(&g, 5, t);
    wm_add_node(&g, "Identity", "id", "w", "y");
    wm_value(&g, 12, "y", MPR_DTYPE_NONE, NULL);
    Wire m = wm_model(&g, 8, 17);
    return wm_write_model("storage.onnx", &m);
}

static void check_numbers(Wire *t, int type)
{
    ImportedModel *m = wm_import_ok(model_of(t));
    const Value *w = mpri_graph_find_value(m->graph, "w");
    assert_int_equal(w->dtype, type);
    for (int i = 0; i < N; i++) {
        if (mpri_dtype_is_float((DType)type))
            assert_true(mpri_load_f64(w->dtype, w->data, i) == numbers[i]);
        else assert_int_equal(mpri_load_i64(w->dtype, w->data, i), integers[i]);
    }
    mpri_import_destroy(m, mpri_alloc_default());
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        int type;
        uint32_t field;
    } forms[] = {
        {MPR_FLOAT32, 4}, {MPR_FLOAT64, 10}, {MPR_FLOAT16, 5}, {MPR_BFLOAT16, 5},
        {MPR_INT64, 7},   {MPR_INT32, 5},    {MPR_INT16, 5},   {MPR_INT8, 5},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int how = 0; how < 3; how++) {
            Wire t = wm_tensor("w", forms[i].type, (const int64_t[]){2, 2, -1}, NULL, 0);
            if (how == 2) put_raw(&t, forms[i].type);
            else put_packed(&t, forms[i].field, forms[i].type, how == 0);
            check_numbers(&t, forms[i].type);
        }
}

static void refuse(Wire *t, mpr_status code, const char *a, const char *b)
{
    Err err;
    assert_null(wm_import(model_of(t), NULL, &err));
    assert_error(code, &err, "w", a, b);
}

static void test_faults(void **state)
{
    (void)state;
    Wire t = wm_tensor("w", MPR_FLOAT32, (const int64_t[]){3, -1}, "12345678", 8);
    refuse(&t, MPR_E_INVALID_MODEL, "8 bytes", "12");
    t = wm_tensor("w", MPR_FLOAT32, (const int64_t[]){4, -1}, NULL, 0);
    put_packed(&t, 7, MPR_INT64, true);
    refuse(&t, MPR_E_INVALID_MODEL, "int64_data", "float_data");
    t = wm_tensor("w", MPR_UINT8, (const int64_t[]){4, -1}, NULL, 0);
    put_packed(&t, 5, MPR_INT32, true);
    refuse(&t, MPR_E_INVALID_MODEL, "-2", "uint8");
    t = wm_tensor("w", 31, (const int64_t[]){4, -1}, "1234", 4);
    refuse(&t, MPR_E_TYPE, "31", "28");
    t = wm_tensor("w", MPR_FLOAT32, (const int64_t[]){INT64_MAX, 8, -1}, "1234", 4);
    refuse(&t, MPR_E_SHAPE, "64 bits", "float");
    t = wm_tensor("w", MPR_FLOAT32, (const int64_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1, -1}, "1234", 4);
    refuse(&t, MPR_E_LIMIT, "rank 9", "8");
}

static void test_sparse(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        Wire g = wm_begin(), s = wm_begin();
        Wire v = wm_tensor("w", MPR_FLOAT32, (const int64_t[]){2, -1}, (const float[]){5, 7}, 8);
        static const int64_t flat[2] = {1, 5}, pairs[4] = {0, 1, 1, 2};
        Wire i = full ? wm_tensor("", MPR_INT64, (const int64_t[]){2, 2, -1}, pairs, 32)
                      : wm_tensor("", MPR_INT64, (const int64_t[]){2, -1}, flat, 16);
        wm_end(&s, 1, &v);
        wm_end(&s, 2, &i);
        wm_int(&s, 3, 2);
        wm_int(&s, 3, 3);
        wm_end(&g, 15, &s);
        wm_add_node(&g, "Identity", "id", "w", "y");
        wm_value(&g, 12, "y", MPR_FLOAT32, NULL);
        Wire m = wm_model(&g, 8, 17);
        ImportedModel *im = wm_import_ok(wm_write_model("sparse.onnx", &m));
        const float *data = mpri_graph_find_value(im->graph, "w")->data;
        const float want[6] = {0, 5, 0, 0, 0, 7};
        assert_memory_equal(data, want, sizeof want);
        mpri_import_destroy(im, mpri_alloc_default());
    }
}

/* ---- external data */

static Wire external(const char *location, const char *offset, const char *length)
{
    const char *pairs[3][2] = {{"location", location}, {"offset", offset}, {"length", length}};
    Wire t = wm_tensor("w", MPR_FLOAT32, (const int64_t[]){4, -1}, NULL, 0);
    wm_int(&t, 14, 1);
    for (int i = 0; i < 3; i++) {
        Wire e = wm_begin();
        if (!pairs[i][1]) continue;
        wm_str(&e, 1, pairs[i][0]);
        wm_str(&e, 2, pairs[i][1]);
        wm_end(&t, 13, &e);
    }
    return t;
}

static void test_external(void **state)
{
    (void)state;
    float data[8] = {9, 9, 1, -2, 0.5f, 96, 9, 9};
    char path[300], target[300];
    wm_write("w.bin", data, sizeof data);
    Wire t = external("w.bin", "8", "16");
    check_numbers(&t, MPR_FLOAT32);
    snprintf(path, sizeof path, "%s/sub", wm_folder());
    assert_int_equal(mkdir(path, 0700), 0);
    wm_write("sub/odd.bin", (const char *)data + 5,
             19); /* begins 3 bytes before the tensor: unaligned */
    t = external("sub/odd.bin", "3", NULL);
    check_numbers(&t, MPR_FLOAT32);

    static const char *const paths[] = {"",     "/etc/passwd", "../w.bin", "sub/../../w.bin",
                                        "a\\b", "c:w.bin",     ".",        "sub",
                                        "sub/", "link.bin",    "hard.bin", "pipe"};
    snprintf(path, sizeof path, "%s/link.bin", wm_folder());
    assert_int_equal(symlink("w.bin", path), 0);
    snprintf(path, sizeof path, "%s/pipe", wm_folder());
    assert_int_equal(mkfifo(path, 0600), 0);
    wm_write("one.bin", data, sizeof data);
    snprintf(path, sizeof path, "%s/one.bin", wm_folder());
    snprintf(target, sizeof target, "%s/hard.bin", wm_folder());
    assert_int_equal(link(path, target), 0);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        t = external(paths[i], "8", "16");
        refuse(&t, MPR_E_EXTDATA_PATH, "w", "location");
    }
    t = external("absent.bin", "0", "16");
    refuse(&t, MPR_E_EXTDATA_OPEN, "absent.bin", wm_folder());

    static const char *const ranges[][2] = {{"-4", "16"},
                                            {"0x3", "16"},
                                            {"3 ", "16"},
                                            {"", "16"},
                                            {"99999999999999999999", "16"},
                                            {"24", "16"},
                                            {"0", "12"},
                                            {"9223372036854775800", "16"},
                                            {"0", "9223372036854775808"},
                                            {"40", "16"},
                                            {"0", NULL}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        t = external("w.bin", ranges[i][0], ranges[i][1]);
        refuse(&t, MPR_E_EXTDATA_RANGE, "tensor w", "w");
    }
}

/* A download cache: the model and its data are links into one folder. */
static void test_external_beside_the_links_target(void **state)
{
    (void)state;
    float data[4] = {1, -2, 0.5f, 96};
    char path[300], link_path[300];
    snprintf(path, sizeof path, "%s/blobs", wm_folder());
    assert_int_equal(mkdir(path, 0700), 0);
    wm_write("blobs/bb22", data, sizeof data);
    Wire t = external("model.data", "0", "16");
    const char *model = model_of(&t);
    snprintf(path, sizeof path, "%s/blobs/aa11", wm_folder());
    assert_int_equal(rename(model, path), 0);
    snprintf(link_path, sizeof link_path, "%s/hub.onnx", wm_folder());
    assert_int_equal(symlink("blobs/aa11", link_path), 0);
    snprintf(path, sizeof path, "%s/model.data", wm_folder());
    assert_int_equal(symlink("blobs/bb22", path), 0);
    ImportedModel *m = wm_import_ok(link_path);
    const float *w = mpri_graph_find_value(m->graph, "w")->data;
    assert_memory_equal(w, data, sizeof data);
    mpri_import_destroy(m, mpri_alloc_default());
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    Err err;
    assert_null(wm_import(link_path, NULL, &err));
    assert_error(MPR_E_EXTDATA_PATH, &err, "link");
}

static void test_what_is_no_file(void **state)
{
    (void)state;
    char path[300];
    Err err;
    assert_null(wm_import(wm_folder(), NULL, &err));
    assert_error(MPR_E_IO, &err, "directory");
    snprintf(path, sizeof path, "%s/fifo.onnx", wm_folder());
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_null(wm_import(path, NULL, &err)); /* must not wait for a writer */
    assert_error(MPR_E_IO, &err, "pipe");
    assert_null(wm_import("/dev/null", NULL, &err));
    assert_error(MPR_E_IO, &err, "device");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_external),
        cmocka_unit_test(test_external_beside_the_links_target),
        cmocka_unit_test(test_what_is_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
