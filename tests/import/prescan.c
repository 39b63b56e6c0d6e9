/* Bytes before they are a model: limits, wire faults, cuts and flipped bits, small stacks, failing
 * memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "importer/prescan.h"
#include "tests/support/wire_model.h"

static mpr_status scan(const Wire *w, Err *err)
{
    mpr_limits limits = mpri_limits_fill(NULL);
    mpri_err_clear(err);
    return mpri_prescan((const uint8_t *)w->text, w->len, &limits, mpri_alloc_default(), err);
}

/* graph > node > attribute > graph …, from the inside out. */
static Wire nested(int levels)
{
    Wire inner = wm_begin();
    wm_str(&inner, 2, "g");
    for (int i = 0; i < levels; i++) {
        Wire a = wm_begin(), n = wm_begin(), g = wm_begin();
        wm_str(&a, 1, "then_branch");
        wm_end(&a, 6, &inner);
        wm_str(&n, 3, "deep");
        wm_end(&n, 5, &a);
        wm_end(&g, 1, &n);
        inner = g;
    }
    Wire m = wm_begin();
    wm_int(&m, 1, 8);
    wm_end(&m, 7, &inner);
    return m;
}

static void test_nesting(void **state)
{
    (void)state;
    Err err;
    Wire ok = nested(20), deep = nested(3000);
    assert_ok(scan(&ok, &err), &err);
    assert_int_equal(scan(&deep, &err), MPR_E_LIMIT);
    assert_error(MPR_E_LIMIT, &err, "nesting", "64", "'deep'", "byte offset", "mpr_limits.nesting");
    mpri_text_free(&ok);
    mpri_text_free(&deep);
}

static Wire around(Wire *graph)
{
    Wire m = wm_begin();
    wm_int(&m, 1, 8);
    wm_end(&m, 7, graph);
    return m;
}

static void test_counts_and_names(void **state)
{
    (void)state;
    Err err;
    Wire g = wm_begin();
    for (int i = 0; i < 1000001; i++) mpri_text_bytes(&g, "\x0a\0", 2);
    Wire m = around(&g);
    assert_int_equal(scan(&m, &err), MPR_E_LIMIT);
    assert_error(MPR_E_LIMIT, &err, "1000001", "node");
    mpri_text_free(&m);

    g = wm_begin();
    Wire n = wm_begin();
    wm_str(&n, 3, "many");
    for (int i = 0; i < 4097; i++) mpri_text_bytes(&n, "\x2a\0", 2);
    wm_end(&g, 1, &n);
    m = around(&g);
    assert_int_equal(scan(&m, &err), MPR_E_LIMIT);
    assert_error(MPR_E_LIMIT, &err, "4097", "4096", "attribute", "'many'");
    mpri_text_free(&m);

    static const struct {
        const char *name;
        size_t n;
        const char *word;
    } bad[] = {{"a\0b", 3, "NUL"}, {"\xc0\xaf", 2, "UTF-8"}, {"\xff", 1, "UTF-8"}};
    for (size_t i = 0; i < 3; i++) {
        g = wm_begin();
        n = wm_begin();
        mpri_wire_put_bytes(&n, 1, bad[i].name, bad[i].n);
        wm_end(&g, 1, &n);
        m = around(&g);
        assert_int_equal(scan(&m, &err), MPR_E_INVALID_MODEL);
        assert_error(MPR_E_INVALID_MODEL, &err, bad[i].word, "input");
        mpri_text_free(&m);
    }
}

static void test_wire_faults(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        mpr_status code;
        const char *word;
    } rows[] = {
        {"\x3b", 1, MPR_E_PROTO, "group"},
        {"\x3c", 1, MPR_E_PROTO, "group"},
        {"\x16\x01", 2, MPR_E_PROTO, "wire type"},
        {"\x02\x00", 2, MPR_E_PROTO, "field number 0"},
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, MPR_E_PROTO, "ten bytes"},
        {"\x08\x80", 2, MPR_E_PROTO, "cut"},
        {"\x3a\x05"
         "abc",
         5, MPR_E_PROTO, "past the end"},
        {"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, MPR_E_PROTO, "past the end"},
        {"\x38\x05", 2, MPR_E_PROTO, "graph"},
        {"\x0a\x01\x08", 3, MPR_E_PROTO, "ir_version"},
        {"\x08\x08\x08\x08", 4, MPR_E_INVALID_MODEL, "twice"},
        {"\x3a\x00\x3a\x00", 4, MPR_E_INVALID_MODEL, "graph"},
        {"\x80\x80\x80\x80\x80\x20\x01", 7, MPR_E_PROTO, "field number above"},
    };
    Err err;
    mpr_limits limits = mpri_limits_fill(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mpri_err_clear(&err);
        mpr_status status = mpri_prescan((const uint8_t *)rows[i].bytes, rows[i].n, &limits,
                                         mpri_alloc_default(), &err);
        if (status != rows[i].code) print_error("row %zu: %s\n", i, err.message);
        assert_int_equal(status, rows[i].code);
        assert_error(rows[i].code, &err, rows[i].word, "byte offset");
    }
    /* padded varints, unknown fields, packed and unpacked lists are legal */
    mpri_err_clear(&err);
    static const char legal[] = "\x08\x88\x80\x80\x00\xf8\x07\x01\xf2\x07\x02zz\x3a\x0c\x2a\x0a\x0a"
                                "\x02\x01\x02\x08\x03\x08\x04\x10\x01";
    assert_ok(
        mpri_prescan((const uint8_t *)legal, sizeof legal - 1, &limits, mpri_alloc_default(), &err),
        &err);
}

/* ---- damaged files */

static Wire small_model(void)
{
    Wire g = wm_begin();
    wm_str(&g, 2, "small");
    wm_value(&g, 11, "x", MPR_FLOAT32, (const int64_t[]){-1, 4, -99});
    wm_add_f32(&g, "fc.weight", (const int64_t[]){4, 3, -1},
               (const float[12]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
    wm_add_f32(&g, "fc.bias", (const int64_t[]){3, -1}, (const float[3]){1, 2, 3});
    Wire n = wm_node("Gemm", "fc", "x fc.weight fc.bias", "h");
    wm_attr_float(&n, "alpha", 1);
    wm_attr_int(&n, "transB", 0);
    GRAPH_ADD_NODE(&g, &n);
    n = wm_node("Softmax", "soft", "h", "y");
    wm_attr_int(&n, "axis", 1);
    GRAPH_ADD_NODE(&g, &n);
    wm_value(&g, 12, "y", MPR_FLOAT32, (const int64_t[]){-1, 3, -99});
    return wm_model(&g, 8, 17);
}

/* An error with a text, or a model that passes the validator. */
static void try_bytes(const char *bytes, size_t n, int *accepted)
{
    Err err;
    ImportedModel *m = wm_import(wm_write("damaged.onnx", bytes, n), NULL, &err);
    if (!m) {
        assert_true(err.message[0] != '\0');
        assert_true(err.code != MPR_E_INTERNAL && err.code != MPR_E_NOMEM);
        return;
    }
    mpri_err_clear(&err);
    mpr_status valid = mpri_import_check_supported(m->graph, &err)
                           ? MPR_OK
                           : mpri_graph_validate(m->graph, "import", &err);
    assert_ok(valid, &err);
    mpri_import_destroy(m, mpri_alloc_default());
    ++*accepted;
}

static void test_cuts_and_flips(void **state)
{
    (void)state;
    Wire m = small_model();
    int accepted = 0;
    for (size_t n = 0; n < m.len; n++) try_bytes(m.text, n, &accepted);
    assert_true(accepted < 8); /* a cut between whole fields of the model may be a model */
    accepted = 0;
    for (size_t i = 0; i < m.len; i++)
        for (int bit = 0; bit < 8; bit++) {
            m.text[i] ^= (char)(1 << bit);
            try_bytes(m.text, m.len, &accepted);
            m.text[i] ^= (char)(1 << bit);
        }
    assert_true(accepted > 0);
    mpri_text_free(&m);
}

/* ---- hosts */

static void *import_in_thread(void *path)
{
    Err *err = malloc(sizeof *err);
    ImportedModel *m = NULL;
    mpri_err_clear(err);
    mpri_import_file(path, NULL, &m, err);
    mpri_import_destroy(m, mpri_alloc_default());
    return err;
}

static void test_small_stack(void **state)
{
    (void)state;
    Wire deep = nested(3000), plain = small_model();
    const char *paths[2] = {wm_write_model("deep.onnx", &deep),
                            wm_write_model("plain.onnx", &plain)};
    static const mpr_status want[2] = {MPR_E_LIMIT, MPR_OK};
    for (int i = 0; i < 2; i++) {
        pthread_attr_t attr;
        pthread_t thread;
        void *err;
        pthread_attr_init(&attr);
        assert_int_equal(pthread_attr_setstacksize(&attr, 128 << 10), 0);
        assert_int_equal(
            pthread_create(&thread, &attr, import_in_thread, (void *)(uintptr_t)paths[i]), 0);
        assert_int_equal(pthread_join(thread, &err), 0);
        assert_int_equal(((Err *)err)->code, want[i]);
        free(err);
        pthread_attr_destroy(&attr);
    }
}

typedef struct Faults {
    int calls, fail_at; /* fails at call fail_at and after it when `stays` */
    bool stays;
    int live;
} Faults;

static void *faulty_alloc(void *user, size_t size, size_t align)
{
    Faults *f = user;
    int call = f->calls++;
    if (f->fail_at >= 0 && (call == f->fail_at || (f->stays && call > f->fail_at))) return NULL;
    f->live++;
    return mpri_alloc(mpri_alloc_default(), size, align);
}

static void faulty_free(void *user, void *p)
{
    Faults *f = user;
    f->live -= p != NULL;
    mpri_free(mpri_alloc_default(), p);
}

static void test_failing_memory(void **state)
{
    (void)state;
    Wire plain = small_model();
    char path[300], out[300];
    snprintf(path, sizeof path, "%s", wm_write_model("plain.onnx", &plain));
    snprintf(out, sizeof out, "%s/out.onnx", wm_folder());
    const float bias[3] = {4, 5, 6};
    WeightPatch w = {"fc.bias", bias, 3};
    for (int stays = 0; stays < 2; stays++)
        for (int k = 0;; k++) {
            Faults f = {.fail_at = k, .stays = stays};
            Alloc alloc = {faulty_alloc, faulty_free, &f};
            ImportOptions o = {.alloc = &alloc};
            ImportedModel *m = NULL;
            Err err;
            mpri_err_clear(&err);
            mpr_status status = mpri_import_file(path, &o, &m, &err);
            if (status == MPR_OK) status = mpri_export_file(m, out, &w, 1, &alloc, &err);
            mpri_import_destroy(m, &alloc);
            assert_int_equal(f.live, 0);
            if (status == MPR_OK && f.calls <= k) break;
            if (status != MPR_OK) assert_error(MPR_E_NOMEM, &err, "memory");
            assert_true(k < 1000);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting),     cmocka_unit_test(test_counts_and_names),
        cmocka_unit_test(test_wire_faults), cmocka_unit_test(test_cuts_and_flips),
        cmocka_unit_test(test_small_stack), cmocka_unit_test(test_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
