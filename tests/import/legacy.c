/* Real files of the first exporters (opset 1 to 12), as Debian's libonnx-testdata has them: every
 * output equals the stored one, or the model is refused for an operator that is named. */
#include <dirent.h>
#include <math.h>
#include <mpr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "importer/onnx.pb-c.h"
#include "runtime/base/dtype.h"
#include "tests/support/wire_model.h"

#define ROOT "/usr/share/libonnx-testdata/data"

typedef struct Tally {
    int passed, refused, failed;
} Tally;

static void store_fields(const Onnx__TensorProto *p, DType t, void *data)
{
    size_t size = mpri_dtype_size(t);
    for (size_t i = 0; i < p->n_float_data; i++) ((float *)data)[i] = p->float_data[i];
    for (size_t i = 0; i < p->n_double_data; i++) ((double *)data)[i] = p->double_data[i];
    for (size_t i = 0; i < p->n_int64_data; i++)
        mpri_store_i64(t, data, (int64_t)i, p->int64_data[i]);
    for (size_t i = 0; i < p->n_int32_data; i++) {
        if (mpri_dtype_is_low(t)) memcpy((char *)data + i * size, &p->int32_data[i], 2);
        else mpri_store_i64(t, data, (int64_t)i, p->int32_data[i]);
    }
}

/* A tensor file; its data are malloc'ed. False when it holds no numbers. */
static bool read_tensor(const char *path, mpr_tensor *t)
{
    size_t n;
    void *bytes = wm_read(path, &n);
    Onnx__TensorProto *p = bytes ? onnx__tensor_proto__unpack(NULL, n, bytes) : NULL;
    free(bytes);
    *t = (mpr_tensor){.data = NULL};
    int64_t count = 1;
    bool good = p && p->has_data_type && mpri_dtype_size((DType)p->data_type) && p->n_dims <= 8;
    for (size_t i = 0; good && i < p->n_dims; i++) count *= t->dims[i] = p->dims[i];
    if (good) {
        t->dtype = (mpr_dtype)p->data_type;
        t->rank = (int)p->n_dims;
        size_t size = (size_t)count * mpri_dtype_size(t->dtype);
        void *data = calloc(size + 8, 1);
        if (p->has_raw_data && p->raw_data.len <= size) {
            if (p->raw_data.len) memcpy(data, p->raw_data.data, p->raw_data.len);
        } else store_fields(p, t->dtype, data);
        t->data = data;
    }
    if (p) onnx__tensor_proto__free_unpacked(p, NULL);
    return good;
}

static bool equal(const mpr_tensor *a, const mpr_tensor *b, double *worst)
{
    int64_t n = 1;
    bool same = a->dtype == b->dtype && a->rank == b->rank;
    for (int i = 0; same && i < a->rank; n *= a->dims[i++]) same = a->dims[i] == b->dims[i];
    for (int64_t i = 0; same && i < n; i++) {
        double x = mpri_load_f64(a->dtype, a->data, i), y = mpri_load_f64(b->dtype, b->data, i);
        if (x == y || (isnan(x) && isnan(y))) continue;
        *worst = fabs(x - y) / (1e-7 + 1e-3 * fabs(y));
        same = *worst <= 1;
    }
    return same;
}

static bool feed(mpr_model *m, mpr_tensors *in, const char *folder)
{
    for (int i = 0; i < mpr_model_input_count(m); i++) {
        mpr_value_info info;
        char path[1000];
        mpr_tensor t;
        snprintf(path, sizeof path, "%s/test_data_set_0/input_%d.pb", folder, i);
        if (mpr_model_input(m, i, &info) != MPR_OK || !read_tensor(path, &t)) return false;
        mpr_status status = mpr_tensors_put(in, info.name, &t);
        free((void *)(uintptr_t)t.data);
        if (status != MPR_OK) return false;
    }
    return true;
}

static bool outputs_equal(mpr_model *m, const mpr_tensors *out, const char *folder)
{
    for (int i = 0; i < mpr_model_output_count(m); i++) {
        mpr_value_info info;
        char path[1000];
        double worst = 0;
        mpr_tensor want, found;
        snprintf(path, sizeof path, "%s/test_data_set_0/output_%d.pb", folder, i);
        assert_true(read_tensor(path, &want));
        bool same = mpr_model_output(m, i, &info) == MPR_OK &&
                    mpr_tensors_get(out, info.name, &found) == MPR_OK &&
                    equal(&found, &want, &worst);
        if (!same) print_error("%s: output '%s' differs by %g bounds\n", folder, info.name, worst);
        free((void *)(uintptr_t)want.data);
        if (!same) return false;
    }
    return true;
}

static void check_case(mpr_context *ctx, const char *folder, Tally *tally)
{
    char path[1000];
    mpr_model *m = NULL;
    mpr_tensors *in, *out = NULL;
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    assert_int_equal(mpr_tensors_create(ctx, &in), MPR_OK);
    mpr_status status = mpr_model_load(ctx, path, NULL, &m);
    const void *handle = status == MPR_OK ? (void *)m : (void *)ctx;
    if (status == MPR_OK && !feed(m, in, folder)) status = MPR_E_UNSUPPORTED_OP; /* strings */
    else if (status == MPR_OK) status = mpr_session_vjp(m, in, NULL, NULL, &out, NULL);
    if (status == MPR_E_UNSUPPORTED_OP) {
        tally->refused++;
    } else if (status == MPR_OK && outputs_equal(m, out, folder)) {
        tally->passed++;
    } else {
        if (status != MPR_OK) print_error("%s: %s\n", folder, mpr_last_error(handle).message);
        tally->failed++;
    }
    mpr_tensors_destroy(in);
    mpr_tensors_destroy(out);
    mpr_model_destroy(m);
}

static void check_group(const char *group, int at_least)
{
    char folder[400], path[700];
    Tally tally = {0};
    mpr_context *ctx;
    mpr_context_options o = {.size = sizeof o, .threads = 1};
    snprintf(folder, sizeof folder, "%s/%s", ROOT, group);
    DIR *dir = opendir(folder);
    if (!dir) {
        print_message("%s is absent: install libonnx-testdata\n", folder);
        skip();
    }
    assert_int_equal(mpr_context_create(&o, &ctx), MPR_OK);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, "test_", 5)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        check_case(ctx, path, &tally);
    }
    closedir(dir);
    mpr_context_destroy(ctx);
    print_message("%s: %d equal, %d refused by name\n", group, tally.passed, tally.refused);
    assert_int_equal(tally.failed, 0);
    assert_true(tally.passed >= at_least);
}

static void simple(void **state)
{
    (void)state;
    check_group("simple", 14);
}

static void operators(void **state)
{
    (void)state;
    check_group("pytorch-operator", 35);
}

static void converted(void **state)
{
    (void)state;
    check_group("pytorch-converted", 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple),
        cmocka_unit_test(operators),
        cmocka_unit_test(converted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
