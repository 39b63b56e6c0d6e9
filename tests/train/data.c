/* Data sets: shards, orders, conversions, CSV and safetensors; what does not fit is named before
 * the first step. */
#include "tests/train/digits.h"

#include <math.h>
#include <unistd.h>

#include "runtime/train/csv.h"
#include "runtime/train/dataset.h"
#include "runtime/train/safetensors.h"

static char path[64];

static void save(Digits *d, const mpr_tensor *x, const char *key, const mpr_tensor *y)
{
    mpr_tensors *t;
    snprintf(path, sizeof(path), "/tmp/mpr-data-%ld.npz", (long)getpid());
    assert_call(mpr_tensors_create(d->ctx, &t), d->ctx);
    assert_call(mpr_tensors_put(t, "x", x), t);
    assert_call(mpr_tensors_put(t, key, y), t);
    assert_call(mpr_tensors_save(t, path), t);
    mpr_tensors_destroy(t);
}

static mpr_status try_open(mpr_session *s, mpr_dataset **out, int64_t batch)
{
    const char *file = path;
    return mpr_dataset_open(
        s, &file, 1,
        &(mpr_dataset_options){.size = sizeof(mpr_dataset_options), .batch_size = batch}, out);
}

/* Every row once per epoch, in another order, the last batch with its true size. */
static void orders(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    mpr_dataset *a;
    int64_t rows, total = 0, moved = 0;
    float x[10 * 64], y[10];
    int64_t labels[10];
    for (int i = 0; i < 10 * 64; i++) x[i] = (float)(i / 64);
    for (int i = 0; i < 10; i++) labels[i] = i;
    save(&d, &(mpr_tensor){.data = x, .dtype = MPR_FLOAT32, .rank = 2, .dims = {10, 64}}, "y",
         &(mpr_tensor){.data = labels, .dtype = MPR_INT64, .rank = 1, .dims = {10}});
    const char *files[2] = {path, path};
    mpr_dataset_options o = {.size = sizeof(o), .batch_size = 3, .shuffle = true, .seed = 9};
    assert_call(mpr_dataset_open(s, files, 2, &o, &a), s);
    assert_int_equal(mpr_dataset_rows(a), 20);
    assert_int_equal(mpr_dataset_batches(a), 7);
    for (int epoch = 0; epoch < 2; epoch++) {
        int seen[10] = {0};
        for (int b = 0; b < 7; b++) {
            assert_call(mpr_dataset_bind(a, epoch, b, &rows), a);
            assert_int_equal(rows, b < 6 ? 3 : 2);
            const SessionInput *in = mpri_session_find_input(s, "x"),
                               *l = mpri_session_find_input(s, "labels");
            for (int r = 0; r < rows; r++) {
                y[r] = ((const float *)in->data)[r * 64 + 5];
                assert_true((int64_t)y[r] ==
                            ((const int64_t *)l->data)[r]); /* features and labels move together */
                seen[(int)y[r]]++;
                moved += (int)y[r] != total++ % 10;
            }
        }
        for (int i = 0; i < 10; i++) assert_int_equal(seen[i], 2);
    }
    assert_true(moved > 10);
    assert_int_equal(mpr_dataset_bind(a, 0, 7, NULL), MPR_E_USAGE);
    mpr_dataset_close(a);
    mpr_session_close(s);
    digits_close(&d);
    unlink(path);
}

static void conversions(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    mpr_dataset *a;
    uint8_t pixels[4 * 64] = {7}, labels[4] = {1, 2, 3, 9};
    save(&d, &(mpr_tensor){.data = pixels, .dtype = MPR_UINT8, .rank = 2, .dims = {4, 64}}, "label",
         &(mpr_tensor){.data = labels, .dtype = MPR_UINT8, .rank = 2, .dims = {4, 1}});
    if (try_open(s, &a, 4) != MPR_OK) fail_msg("%s", mpr_last_error(s).message);
    assert_call(mpr_dataset_bind(a, 0, 0, NULL), a);
    assert_call(mpr_session_forward(s, NULL), s);
    mpr_dataset_close(a);
    mpr_session_close(s);
    digits_close(&d);
    unlink(path);
}

static void faults(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    mpr_dataset *a;
    static float x[4 * 64];
    static double big[4 * 64];
    int64_t good[4] = {0, 1, 2, 3}, high[4] = {0, 1, 10, 3}, low[4] = {0, -1, 2, 3};
    float fraction[4] = {0, 1.5f, 2, 3};
    mpr_tensor rows = {.data = x, .dtype = MPR_FLOAT32, .rank = 2, .dims = {4, 64}};
    mpr_tensor y = {.data = good, .dtype = MPR_INT64, .rank = 1, .dims = {4}};
    struct {
        mpr_tensor x;
        const char *key;
        mpr_tensor y;
        mpr_status code;
        const char *word, *word2;
    } cases[] = {
        {rows, "target", y, MPR_E_DATA, "labels", "'target'"},
        {rows, "labels", y, MPR_E_INDEX, "row 2", "10"},
        {rows, "labels", y, MPR_E_INDEX, "row 1", "-1"},
        {rows, "labels", y, MPR_E_DATA, "4", "3"},
        {rows, "labels", y, MPR_E_TYPE, "labels", "float32"},
        {rows, "labels", y, MPR_E_SHAPE, "x", "64"},
        {rows, "labels", y, MPR_E_SHAPE, "labels", "[2,2]"},
        {rows, "labels", y, MPR_E_DATA, "x", "row 3"},
        {rows, "labels", y, MPR_E_DATA, "0 rows", ""},
        {rows, "labels", y, MPR_E_TYPE, "int64", "float32"},
    };
    cases[1].y.data = high;
    cases[2].y.data = low;
    cases[3].y.dims[0] = 3;
    cases[4].y.data = fraction;
    cases[4].y.dtype = MPR_FLOAT32;
    cases[5].x.dims[1] = 32;
    cases[6].y.rank = 2;
    cases[6].y.dims[0] = cases[6].y.dims[1] = 2;
    big[3 * 64 + 1] = 1e300;
    cases[7].x.data = big;
    cases[7].x.dtype = MPR_FLOAT64;
    cases[8].x.dims[0] = cases[8].y.dims[0] = 0;
    cases[9].x.data = big;
    cases[9].x.dtype = MPR_INT64;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        save(&d, &cases[i].x, cases[i].key, &cases[i].y);
        mpr_status status = try_open(s, &a, 2);
        mpr_error e = mpr_last_error(s);
        if (status != cases[i].code || !strstr(e.message, cases[i].word) ||
            !strstr(e.message, cases[i].word2))
            fail_msg("case %zu: %s: %s", i, mpr_status_text(status), e.message);
        assert_true(i == 8 || strstr(e.where, path));
    }
    x[70] = NAN;
    save(&d, &rows, "labels", &y);
    assert_int_equal(try_open(s, &a, 2), MPR_E_DATA);
    assert_non_null(strstr(mpr_last_error(s).message, "row 1"));
    const char *file = path;
    mpr_dataset_options o = {.size = sizeof(o), .allow_nonfinite = true};
    assert_call(mpr_dataset_open(s, &file, 1, &o, &a), s);
    mpr_dataset_close(a);
    mpr_session_close(s);
    digits_close(&d);
    unlink(path);
}

static void synthetic(void **state)
{
    (void)state;
    Digits d;
    digits_open(&d, 1);
    mpr_session *s = digits_session(&d, MPR_DTYPE_NONE);
    mpr_dataset *a;
    mpr_dataset_options o = {.size = sizeof(o), .synthetic_rows = 10, .batch_size = 4, .seed = 1};
    assert_call(mpr_dataset_open(s, NULL, 0, &o, &a), s);
    assert_int_equal(mpr_dataset_batches(a), 3);
    assert_call(mpr_dataset_bind(a, 0, 2, NULL), a);
    float loss;
    assert_call(mpr_session_forward(s, &loss), s);
    assert_true(isfinite(loss));
    mpr_dataset_close(a);
    const char *bind[] = {"seq=4", NULL};
    o.bind = bind;
    assert_int_equal(mpr_dataset_open(s, NULL, 0, &o, &a), MPR_E_USAGE);
    assert_non_null(strstr(mpr_last_error(s).message, "batch"));
    mpr_session_close(s);
    digits_close(&d);
}

/* ---- formats ---- */

static void csv_tables(void **state)
{
    (void)state;
    Arena arena;
    Csv c;
    Err err;
    int group[8];
    mpri_err_clear(&err);
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    static const char good[] = "\xef\xbb\xbf"
                               "x2,labels,x10,\"x_1\"\r\n1.5,0,-2e3,4\r\n\"3\",1,0,.5";
    assert_ok(mpri_csv_parse(good, sizeof(good) - 1, &arena, &c, &err), &err);
    assert_int_equal(c.columns, 4);
    assert_int_equal(c.rows, 2);
    assert_true(c.values[2] == -2000 && c.values[4] == 3 && c.values[7] == 0.5);
    assert_true(c.whole[1] && !c.whole[0]);
    assert_int_equal(mpri_csv_group(&c, "x", group), 3);
    assert_true(group[0] == 3 && group[1] == 0 && group[2] == 2);
    assert_int_equal(mpri_csv_group(&c, "labels", group), 1);
    assert_int_equal(mpri_csv_group(&c, "z", group), 0);
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"x,y\n", "no row"},
        {"", "empty"},
        {"a,a\n", "twice"},
        {"a,\n1,2\n", "column 2"},
        {"a,b\n1\n", "1 fields"},
        {"a,b\n1,2,3\n", "3 fields"},
        {"a\n\"1\n", "never closes"},
        {"a\ntwo\n", "'two'"},
        {"a,b\n1,\n", "empty"},
        {"a\n\"1,5\"\n", "1,5"},
        {"a\n1e999\n", "1e999"},
        {"a\n2abc\n", "line 2"},
        {"a\n0x10\n", "0x10"},
        {"a\nnan\n", "nan"},
        {"a\n 1\n", "' 1'"},
        {"a\n\"1\"2\n", "behind a quote"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        mpri_err_clear(&err);
        if (mpri_csv_parse(bad[i].text, strlen(bad[i].text), &arena, &c, &err) == MPR_OK)
            fail_msg("accepted: %s", bad[i].text);
        assert_error(MPR_E_DATA, &err, bad[i].word);
    }
    mpri_arena_destroy(&arena);
}

static mpr_status parse_safetensors(Arena *arena, const char *header, size_t data, int *count,
                                    Err *err)
{
    static uint8_t bytes[4096];
    SafeTensor *t;
    size_t n = strlen(header);
    memset(bytes, 0, sizeof(bytes));
    bytes[0] = (uint8_t)n;
    bytes[1] = (uint8_t)(n >> 8);
    memcpy(bytes + 8, header, n);
    mpri_err_clear(err);
    return mpri_safetensors_parse(bytes, 8 + n + data, arena, &t, count, err);
}

static void safetensors_files(void **state)
{
    (void)state;
    Arena arena;
    Err err;
    int n;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    static const char two[] = "{\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[8,16]},"
                              "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                              "\"e\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[16,16]},"
                              "\"__metadata__\":{\"k\":\"v\"}}   ";
    assert_ok(parse_safetensors(&arena, two, 16, &n, &err), &err);
    assert_int_equal(n, 3);
    static const struct {
        const char *header;
        size_t data;
        const char *word;
    } bad[] = {
        {"[]", 0, "'{'"},
        {"{\"a\":", 0, "JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 12, "holds 12"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "ends at byte 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "gap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "begin"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "F33"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, "dim"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1,-2],\"data_offsets\":[0,8]}}", 8, "dim"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "12 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}", 8,
         "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"a\":{}}", 8,
         "duplicate"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "metadata"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "pair"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (parse_safetensors(&arena, bad[i].header, bad[i].data, &n, &err) == MPR_OK)
            fail_msg("accepted: %s", bad[i].header);
        assert_error(MPR_E_DATA, &err, bad[i].word);
    }
    float v[2] = {1, 2};
    const char *names[2] = {"a \"quoted\" name", "b"};
    mpr_tensor t[2] = {{.data = v, .dtype = MPR_FLOAT32, .rank = 1, .dims = {2}},
                       {.data = v, .dtype = MPR_FLOAT32}};
    Text out;
    SafeTensor *back;
    mpri_text_init(&out, mpri_alloc_default());
    mpri_err_clear(&err);
    assert_ok(mpri_safetensors_write(&out, 2, names, t, &err), &err);
    assert_ok(mpri_safetensors_parse((const uint8_t *)out.text, out.len, &arena, &back, &n, &err),
              &err);
    assert_int_equal(n, 2);
    assert_string_equal(back[0].name, names[0]);
    assert_memory_equal(back[0].data, v, sizeof(v));
    mpri_text_free(&out);
    mpri_arena_destroy(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders),     cmocka_unit_test(conversions),
        cmocka_unit_test(faults),     cmocka_unit_test(synthetic),
        cmocka_unit_test(csv_tables), cmocka_unit_test(safetensors_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
