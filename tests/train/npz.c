/* npy headers and npz archives: every numeric type and layout gives the same numbers, everything
 * else is refused by name. */
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/dtype.h"
#include "runtime/train/npz.h"

/* ---- headers ---- */

static mpr_status parse(int version, const char *literal, uint64_t data_bytes, NpyHeader *h,
                        Err *err)
{
    uint8_t bytes[4096] = {0x93, 'N', 'U', 'M', 'P', 'Y', (uint8_t)version, 0};
    size_t n = strlen(literal), start = version > 1 ? 12 : 10;
    bytes[8] = (uint8_t)n;
    bytes[9] = (uint8_t)(n >> 8);
    memcpy(bytes + start, literal, n);
    uint64_t end, member = start + n + data_bytes;
    mpri_err_clear(err);
    TRY(mpri_npy_prefix(bytes, 12, member, &end, err));
    return mpri_npy_parse(bytes, end, member, h, err);
}

static void good_headers(void **state)
{
    static const struct {
        int version;
        const char *literal;
        mpr_dtype dtype;
        int rank;
        bool swapped, fortran;
        uint64_t bytes;
    } rows[] = {
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", MPR_FLOAT32, 2, false,
         false, 24},
        {2, "{\"shape\":(6,),\"descr\":\">f8\",\"fortran_order\":True}", MPR_FLOAT64, 1, true, true,
         48},
        {3, "{'descr': '|b1', 'fortran_order': False, 'shape': ()}", MPR_BOOL, 0, false, false, 1},
        {1, "  { 'fortran_order' : False , 'descr' : '|V2' , 'shape' : ( 0 , 4 , ) , } ",
         MPR_BFLOAT16, 2, false, false, 0},
        {1, "{'descr': '=u2', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 2)}",
         MPR_UINT16, 8, false, false, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        NpyHeader h;
        Err err;
        assert_ok(parse(rows[i].version, rows[i].literal, rows[i].bytes, &h, &err), &err);
        assert_true(h.numeric);
        assert_int_equal(h.dtype, rows[i].dtype);
        assert_int_equal(h.rank, rows[i].rank);
        assert_int_equal(h.swapped, rows[i].swapped);
        assert_int_equal(h.fortran, rows[i].fortran);
    }
}

static void bad_headers(void **state)
{
    static const struct {
        int version;
        const char *literal, *word;
        uint64_t bytes;
    } rows[] = {
        {9, "{}", "9", 0},
        {1, "[]", "dictionary", 0},
        {1, "{'descr': '<f4'", "close", 0},
        {1, "{'descr': '<f4', 'fortran_order': False}", "shape", 0},
        {1, "{'fortran_order': False, 'shape': ()}", "descr", 0},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "more", 4},
        {1, "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "twice", 4},
        {1, "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "True nor False", 4},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (-6, 4)}", "-6", 96},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (6.0, 4)}", "6.0", 96},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616,)}",
         "18446744073709551616", 4},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 16)}",
         "overflows", 0},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 4)}", "112", 96},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "8 dims", 4},
        {1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "text after", 4},
        {1, "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (1,)}", "escape", 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        NpyHeader h;
        Err err;
        if (parse(rows[i].version, rows[i].literal, rows[i].bytes, &h, &err) == MPR_OK)
            fail_msg("accepted: %s", rows[i].literal);
        assert_error(MPR_E_DATA, &err, rows[i].word);
    }
    static const char *const foreign[] = {"|O", "<U4", "|S4", "<M8[ns]", "<c8", "|V4", "<f3", ""};
    for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++) {
        char literal[128];
        NpyHeader h;
        Err err;
        snprintf(literal, sizeof(literal), "{'descr': '%s', 'fortran_order': False, 'shape': (1,)}",
                 foreign[i]);
        assert_ok(parse(1, literal, 4, &h, &err), &err);
        assert_false(h.numeric);
    }
}

static void layouts(void **state)
{
    (void)state;
    Err err;
    mpri_err_clear(&err);
    NpyHeader h = {.dtype = MPR_FLOAT32,
                   .fortran = true,
                   .rank = 3,
                   .dims = {2, 3, 2},
                   .n = 12,
                   .numeric = true};
    float *data = malloc(sizeof(float) * 12);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 2; k++) data[i + 2 * j + 6 * k] = (float)(i * 6 + j * 2 + k);
    void *p = data;
    assert_ok(mpri_npy_normalise(mpri_alloc_default(), &h, &p, &err), &err);
    for (int i = 0; i < 12; i++) assert_true(((float *)p)[i] == (float)i);
    mpri_free(mpri_alloc_default(), p);
    h = (NpyHeader){
        .dtype = MPR_INT32, .swapped = true, .rank = 1, .dims = {1}, .n = 1, .numeric = true};
    uint8_t big[4] = {1, 2, 3, 4};
    p = big;
    assert_ok(mpri_npy_normalise(mpri_alloc_default(), &h, &p, &err), &err);
    assert_int_equal(mpri_load_i64(MPR_INT32, p, 0), 0x01020304);
}

/* ---- archives ---- */

static void archive_round_trip(void **state)
{
    static const mpr_dtype types[] = {MPR_FLOAT32, MPR_FLOAT64, MPR_FLOAT16, MPR_INT8,   MPR_INT16,
                                      MPR_INT32,   MPR_INT64,   MPR_UINT8,   MPR_UINT16, MPR_UINT32,
                                      MPR_UINT64,  MPR_BOOL,    MPR_BFLOAT16};
    enum { N = sizeof(types) / sizeof(*types) };
    (void)state;
    mpr_context *ctx;
    mpr_tensors *t, *back;
    char path[64];
    unsigned char data[6 * 8];
    snprintf(path, sizeof(path), "/tmp/mpr-npz-%ld.npz", (long)getpid());
    assert_int_equal(mpr_context_create(NULL, &ctx), MPR_OK);
    assert_int_equal(mpr_tensors_create(ctx, &t), MPR_OK);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 6; k++) mpri_store_f64(types[i], data, k, k);
        mpr_tensor x = {.data = data, .dtype = types[i], .rank = 2, .dims = {2, 3}};
        assert_int_equal(mpr_tensors_put(t, mpri_dtype_name(types[i]), &x), MPR_OK);
    }
    mpr_tensor empty = {.dtype = MPR_FLOAT32, .rank = 2, .dims = {0, 4}},
               scalar = {.data = data, .dtype = MPR_INT8};
    assert_int_equal(mpr_tensors_put(t, "/strange name:0", &empty), MPR_OK);
    assert_int_equal(mpr_tensors_put(t, "scalar", &scalar), MPR_OK);
    if (mpr_tensors_save(t, path) != MPR_OK) fail_msg("%s", mpr_last_error(t).message);
    if (mpr_tensors_load(ctx, path, &back) != MPR_OK) fail_msg("%s", mpr_last_error(ctx).message);
    assert_int_equal(mpr_tensors_count(back), N + 2);
    for (int i = 0; i < N; i++) {
        mpr_tensor x;
        assert_int_equal(mpr_tensors_get(back, mpri_dtype_name(types[i]), &x), MPR_OK);
        assert_int_equal(x.dtype, types[i] == MPR_BFLOAT16 ? MPR_FLOAT32 : types[i]);
        assert_int_equal(x.rank, 2);
        for (int k = 0; k < 6; k++)
            assert_true(mpri_load_f64(x.dtype, x.data, k) == (types[i] == MPR_BOOL ? k != 0 : k));
    }
    assert_int_equal(mpr_tensors_get(back, "nothing", &scalar), MPR_E_DATA);
    assert_non_null(strstr(mpr_last_error(back).message, "scalar"));
    mpr_tensors_destroy(back);
    mpr_tensors_destroy(t);
    unlink(path);
    assert_int_equal(mpr_tensors_load(ctx, path, &back), MPR_E_IO);
    mpr_context_destroy(ctx);
}

/* Any flipped or missing byte of an archive gives an error or the whole, unchanged array. */
static void damaged_archives(void **state)
{
    (void)state;
    Err err;
    char path[64];
    float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const char *names[1] = {"x"};
    mpr_tensor x = {.data = data, .dtype = MPR_FLOAT32, .rank = 1, .dims = {8}};
    snprintf(path, sizeof(path), "/tmp/mpr-npz-%ld.npz", (long)getpid());
    mpri_err_clear(&err);
    assert_ok(mpri_npz_write(mpri_alloc_default(), path, 1, names, &x, &err), &err);
    unsigned char bytes[2048];
    FILE *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof(bytes), f);
    fclose(f);
    for (size_t i = 0; i < 2 * n; i++) {
        size_t length = i < n ? n : i - n;
        if (i < n) bytes[i] ^= 1 << i % 8;
        f = fopen(path, "wb");
        fwrite(bytes, 1, length, f);
        fclose(f);
        if (i < n) bytes[i] ^= 1 << i % 8;
        Npz *z;
        mpri_err_clear(&err);
        if (mpri_npz_open(mpri_alloc_default(), path, &z, &err) != MPR_OK) continue;
        mpr_tensor got;
        bool foreign;
        int at = mpri_npz_find(z, "x");
        if (at >= 0 && mpri_npz_read(z, at, &got, &foreign, &err) == MPR_OK) {
            if (got.dtype == MPR_FLOAT32) assert_memory_equal(got.data, data, sizeof(data));
            mpri_free(mpri_alloc_default(), (void *)(uintptr_t)got.data);
        }
        mpri_npz_close(z);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_headers), cmocka_unit_test(bad_headers), cmocka_unit_test(layouts),
        cmocka_unit_test(archive_round_trip), cmocka_unit_test(damaged_archives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
