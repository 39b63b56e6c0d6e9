/* The base room: errors, arenas, text, interning, random numbers. */
#include "tests/support/support.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/arena.h"
#include "runtime/base/intern.h"
#include "runtime/base/log.h"
#include "runtime/base/rng.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"

/* ---- errors ---- */

static void test_err(void **state)
{
    (void)state;
    Err e;
    mpri_err_clear(&e);
    assert_int_equal(mpri_err_set(&e, MPR_E_SHAPE, "found %d", 3), MPR_E_SHAPE);
    assert_int_equal(mpri_err_set(&e, MPR_E_TYPE, "later"), MPR_E_SHAPE);
    assert_string_equal(e.message, "found 3");
    mpri_err_where(&e, "node '%s'", "n");
    mpri_err_where(&e, "file.onnx");
    assert_string_equal(e.where, "file.onnx, node 'n'");
    mpri_err_advice(&e, "do this");
    mpri_err_advice(&e, "or that");
    assert_string_equal(e.advice, "do this");
    mpri_err_clear(&e);
    assert_int_equal(mpri_err_nomem(&e, 12345), MPR_E_NOMEM);
    assert_non_null(strstr(e.message, "12345"));
}

static void test_findings(void **state)
{
    (void)state;
    Err e;
    mpri_err_clear(&e);
    for (int i = 0; i < 120; i++) mpri_err_finding(&e, MPR_E_UNSUPPORTED_OP, "finding %d", i);
    assert_int_equal(e.findings, 120);
    assert_non_null(strstr(e.message, "finding 0\nfinding 1\n"));
    assert_non_null(strstr(e.message, "finding 49\n"));
    assert_null(strstr(e.message, "finding 50"));
    assert_non_null(strstr(e.message, "and 70 more"));
    mpri_err_clear(&e);
    char big[1000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    for (int i = 0; i < 30; i++) mpri_err_finding(&e, MPR_E_TYPE, "%s", big);
    assert_int_equal(e.findings, 30);
    const char *more = strstr(e.message, "and ");
    assert_non_null(more);
    int kept = 0;
    for (const char *p = e.message; (p = strchr(p, '\n')); p++) kept++;
    assert_int_equal(atoi(more + 4), 30 - kept);
}

static void test_err_name(void **state)
{
    (void)state;
    assert_string_equal(mpri_err_name("/fc/W\xC3\xA4rme"), "/fc/W\xC3\xA4rme");
    assert_string_equal(mpri_err_name("a\nb\x1b[0m\xff"), "a\\x0ab\\x1b[0m\\xff");
    char longer[1000];
    memset(longer, 'y', 999);
    longer[999] = '\0';
    const char *cut = mpri_err_name(longer);
    assert_int_equal(strlen(cut), 203);
    assert_string_equal(cut + 200, "\xE2\x80\xA6");
    const char *first = mpri_err_name("first");
    for (int i = 0; i < 7; i++) mpri_err_name("other");
    assert_string_equal(first, "first");
}

static void test_long_messages(void **state)
{
    (void)state;
    static char text[20000];
    for (size_t i = 0; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xC3\xA4", 3);
    Err e;
    for (size_t shift = 0; shift < 2; shift++) {
        mpri_err_clear(&e);
        mpri_err_set(&e, MPR_E_IO, "%s%s", shift ? "." : "", text);
        assert_true(mpri_utf8_valid(e.message, strlen(e.message)));
        mpri_err_where(&e, "%s%s", shift ? "." : "", text);
        mpri_err_where(&e, "outer");
        assert_true(mpri_utf8_valid(e.where, strlen(e.where)));
        assert_memory_equal(e.where, "outer, ", 7);
    }
}

static void test_status(void **state)
{
    (void)state;
    assert_string_equal(mpr_status_text(MPR_E_SHAPE), "MPR_E_SHAPE");
    assert_string_equal(mpr_status_text((mpr_status)999), "MPR_E_UNKNOWN");
    assert_int_equal(mpr_status_exit_code(MPR_E_IO), 5);
    assert_string_equal(mpr_version(), "0.1.0");
}

/* ---- memory ---- */

typedef struct Counter {
    int live, left; /* allocations that still succeed */
} Counter;

static void *counting_alloc(void *user, size_t size, size_t align)
{
    Counter *c = user;
    if (c->left-- <= 0) return NULL;
    c->live++;
    return mpri_alloc(mpri_alloc_default(), size, align);
}

static void counting_free(void *user, void *p)
{
    ((Counter *)user)->live--;
    mpri_free(mpri_alloc_default(), p);
}

static void test_arena(void **state)
{
    (void)state;
    Counter c = {.left = 1000};
    Alloc alloc = {counting_alloc, counting_free, &c};
    Arena a;
    mpri_arena_init(&a, &alloc, 0);
    for (int round = 0; round < 3; round++) {
        size_t sum = 0;
        for (size_t i = 0; i < 400; i++) {
            size_t n = i * 37 % 9000;
            unsigned char *p = mpri_arena_alloc(&a, n);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % (n >= 4096 ? 64 : 16), 0);
            for (size_t k = 0; k < n; k++) assert_int_equal(p[k], 0);
            memset(p, 0xAA, n);
            sum += n;
        }
        assert_true(a.used >= sum);
        mpri_arena_reset(&a);
        assert_int_equal(c.live, 1);
        assert_int_equal(a.used, 0);
    }
    assert_null(mpri_arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(mpri_arena_alloc(&a, SIZE_MAX));
    assert_null(mpri_arena_alloc(&a, SIZE_MAX - 20));
    assert_string_equal(mpri_arena_printf(&a, "%s-%d", "x", 7), "x-7");
    assert_string_equal(mpri_arena_strdup(&a, "dup"), "dup");
    mpri_arena_destroy(&a);
    assert_int_equal(c.live, 0);
    mpri_arena_destroy(&a);
    c.left = 0;
    assert_null(mpri_arena_alloc(&a, 1));
    Arena limited;
    mpri_arena_init(&limited, NULL, 100);
    assert_non_null(mpri_arena_alloc(&limited, 90));
    assert_null(mpri_arena_alloc(&limited, 16));
    mpri_arena_destroy(&limited);
}

static void test_intern(void **state)
{
    (void)state;
    Arena a, b;
    mpri_arena_init(&a, NULL, 0);
    mpri_arena_init(&b, NULL, 0);
    Intern *in = mpri_intern_create(&a);
    char text[32];
    const char *first[2000];
    for (int i = 0; i < 2000; i++) {
        snprintf(text, sizeof text, "name %d", i);
        first[i] = mpri_intern(in, text);
    }
    Intern *child = mpri_intern_child(&b, in);
    for (int i = 0; i < 2000; i++) {
        snprintf(text, sizeof text, "name %d", i);
        assert_ptr_equal(mpri_intern(in, text), first[i]);
        assert_ptr_equal(mpri_intern(child, text), first[i]);
    }
    assert_ptr_equal(mpri_intern_n(in, "name 12345", 7), first[12]);
    assert_null(mpri_intern_find(in, "other"));
    assert_string_equal(mpri_intern(child, "other"), "other");
    assert_null(mpri_intern_find(in, "other"));
    mpri_arena_destroy(&b);
    mpri_arena_destroy(&a);
    for (int k = 0; k < 60; k++) { /* memory fails at every point */
        Counter c = {.left = k};
        Alloc alloc = {counting_alloc, counting_free, &c};
        mpri_arena_init(&a, &alloc, 0);
        in = mpri_intern_create(&a);
        for (int i = 0; in && i < 3000; i++) {
            snprintf(text, sizeof text, "a rather long name %d", i);
            const char *s = mpri_intern(in, text);
            if (s) assert_ptr_equal(mpri_intern_find(in, text), s);
        }
        mpri_arena_destroy(&a);
        assert_int_equal(c.live, 0);
    }
}

static void test_size(void **state)
{
    (void)state;
    size_t r = 5;
    assert_false(mpri_size_mul(SIZE_MAX, 2, &r));
    assert_int_equal(r, 5);
    assert_true(mpri_size_align(65, 64, &r));
    assert_int_equal(r, 128);
    assert_false(mpri_size_align(SIZE_MAX - 3, 64, &r));
    int64_t n;
    assert_true(mpri_size_elements(3, (int64_t[]){INT64_MAX, 0, INT64_MAX}, &n));
    assert_int_equal(n, 0);
    assert_false(mpri_size_elements(2, (int64_t[]){INT64_MAX, 2}, &n));
    assert_false(mpri_size_elements(1, (int64_t[]){-1}, &n));
}

/* ---- text ---- */

static void check_numbers(void)
{
    static const struct {
        float v;
        const char *text;
    } f32[] = {
        {0.1f, "0.1"},
        {1e-5f, "1e-05"},
        {100, "100"},
        {16777216, "16777216"},
        {65504, "65504"},
        {1.0f / 3, "0.33333334"},
        {-0.0f, "-0"},
        {NAN, "nan"},
        {INFINITY, "inf"},
        {-INFINITY, "-inf"},
        {3.4028235e38f, "3.4028235e+38"},
        {1e-45f, "1.4013e-45"},
    };
    char buf[32];
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++)
        assert_string_equal(mpri_print_f32(buf, f32[i].v), f32[i].text);
    assert_string_equal(mpri_print_f64(buf, 0.1), "0.1");
    assert_string_equal(mpri_print_f64(buf, 1.0 / 3), "0.3333333333333333");
    assert_string_equal(mpri_print_f64(buf, 5e-324), "4.94065645841247e-324");
    double v;
    assert_true(mpri_parse_f64("1.5", &v) && v == 1.5);
    assert_true(mpri_parse_f64("-1.5e-3", &v) && v == -1.5e-3);
    assert_true(mpri_parse_f64("inf", &v) && isinf(v));
    assert_true(mpri_parse_f64("-inf", &v) && v < 0 && isinf(v));
    assert_true(mpri_parse_f64("nan", &v) && isnan(v));
    assert_true(mpri_parse_f64(".5", &v) && v == 0.5);
    const char *bad[] = {"", " 1", "1 ", "1,5", "0x10", "nan(1)", "one", "1e", "--1", "+"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(mpri_parse_f64(bad[i], &v));
}

static void test_numbers(void **state)
{
    (void)state;
    check_numbers();
    const char *comma[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
    const char *set = NULL;
    for (size_t i = 0; i < sizeof comma / sizeof *comma && !set; i++)
        set = setlocale(LC_ALL, comma[i]);
    if (!set) print_message("no locale with a decimal comma here: checked in the C locale only\n");
    check_numbers();
    setlocale(LC_ALL, "C");
    char buf[32];
    for (uint64_t i = 0; i < 20000; i++) { /* any bits read back as they were */
        uint32_t r[4];
        double v;
        float f, g;
        mpri_philox(1, 2, i, r);
        memcpy(&f, r, 4);
        if (isnan(f)) continue;
        assert_true(mpri_parse_f64(mpri_print_f32(buf, f), &v));
        g = strtof(buf, NULL);
        assert_memory_equal(&f, &g, 4);
        double d, e;
        memcpy(&d, r + 1, 8);
        if (isnan(d)) continue;
        assert_true(mpri_parse_f64(mpri_print_f64(buf, d), &e));
        assert_memory_equal(&d, &e, 8);
    }
}

static void test_integers(void **state)
{
    (void)state;
    int64_t v;
    assert_true(mpri_parse_i64("-9223372036854775808", &v) && v == INT64_MIN);
    assert_true(mpri_parse_i64("9223372036854775807", &v) && v == INT64_MAX);
    assert_true(mpri_parse_i64("+12", &v) && v == 12);
    const char *bad[] =
        {"9223372036854775808", "-9223372036854775809", "", "-", "1.0", " 1", "1 ", "0x1",
         "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(mpri_parse_i64(bad[i], &v));
}

static void test_text(void **state)
{
    (void)state;
    Text t;
    mpri_text_init(&t, NULL);
    assert_string_equal(t.text, "");
    for (int i = 0; i < 1000; i++) mpri_text_add(&t, "%d,", i);
    assert_false(t.failed);
    assert_int_equal(t.len, strlen(t.text));
    mpri_text_free(&t);
    assert_string_equal(t.text, "");
    Counter c = {.left = 1};
    Alloc alloc = {counting_alloc, counting_free, &c};
    mpri_text_init(&t, &alloc);
    mpri_text_put(&t, "abc");
    for (int i = 0; i < 1000; i++) mpri_text_put(&t, "def");
    assert_true(t.failed);
    assert_int_equal(t.text[t.len], 0);
    mpri_text_free(&t);
    assert_int_equal(c.live, 0);
}

static void test_words(void **state)
{
    (void)state;
    const char *ops[] = {"MatMul", "Gemm", "LayerNormalization", "Relu"};
    assert_string_equal(mpri_nearest("Matmul", ops, 4), "MatMul");
    assert_string_equal(mpri_nearest("Reluu", ops, 4), "Relu");
    assert_null(mpri_nearest("Softmax", ops, 4));
    assert_null(mpri_nearest("", ops, 4));
    assert_true(mpri_glob("*.weight", "h.0.attn.weight"));
    assert_true(mpri_glob("/enc/*/Mat?ul", "/enc/a/b/MatMul"));
    assert_true(mpri_glob("[a-c]x[!0-9]", "bxy"));
    assert_false(mpri_glob("[a-c]x[!0-9]", "bx5"));
    assert_false(mpri_glob("*.weight", "h.0.bias"));
    assert_true(mpri_glob("*", ""));
    assert_false(mpri_glob("?", ""));
    assert_true(mpri_glob("a[", "a["));
    assert_true(mpri_glob("[]]", "]"));
    assert_true(mpri_glob("*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
    assert_false(mpri_glob("*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

static void test_utf8(void **state)
{
    (void)state;
    const char *good[] =
        {"", "plain", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"};
    const char *bad[] = {"\x80",
                         "\xC3",
                         "\xC0\xAF",
                         "\xE0\x80\xAF",
                         "\xED\xA0\x80",
                         "\xF5\x80\x80\x80",
                         "\xF4\x90\x80\x80",
                         "\xFF",
                         "a\xE2\x82"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(mpri_utf8_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(mpri_utf8_valid(bad[i], strlen(bad[i])));
    assert_false(mpri_utf8_valid("a\0b", 3));
}

/* ---- random numbers ---- */

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 10). */
static void test_philox(void **state)
{
    (void)state;
    uint32_t r[4];
    mpri_philox(0, 0, 0, r);
    assert_memory_equal(r, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), 16);
    mpri_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX, r);
    assert_memory_equal(r, ((uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), 16);
    mpri_philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, r);
    assert_memory_equal(r, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), 16);
}

static void test_distributions(void **state)
{
    (void)state;
    enum { N = 200000 };
    double sum = 0, square = 0, uniform = 0;
    int hist[7] = {0};
    for (uint64_t i = 0; i < N; i++) {
        float u = mpri_rng_uniform(3, 1, i);
        assert_true(u >= 0 && u < 1);
        uniform += (double)u;
        double z = mpri_rng_normal(3, 2, i);
        sum += z;
        square += z * z;
        uint64_t k = mpri_rng_below(3, 4, i, 7);
        assert_true(k < 7);
        hist[k]++;
    }
    assert_true(fabs(uniform / N - 0.5) < 0.003);
    assert_true(fabs(sum / N) < 0.01 && fabs(square / N - 1) < 0.02);
    for (int i = 0; i < 7; i++) assert_true(abs(hist[i] - N / 7) < 800);
    assert_int_equal(mpri_rng_below(1, 1, 1, 0), 0);
    uint64_t most = 3ull << 62; /* a quarter of all draws is rejected */
    for (uint64_t i = 0; i < 1000; i++) assert_true(mpri_rng_below(9, 9, i, most) < most);
}

static void test_permutation(void **state)
{
    (void)state;
    int64_t p[1000], q[1000];
    bool seen[1000] = {false};
    mpri_rng_permutation(5, 1, 1000, p);
    mpri_rng_permutation(5, 1, 1000, q);
    assert_memory_equal(p, q, sizeof p);
    int fixed = 0;
    for (int i = 0; i < 1000; i++) {
        assert_true(p[i] >= 0 && p[i] < 1000 && !seen[p[i]]);
        seen[p[i]] = true;
        fixed += p[i] == i;
    }
    assert_true(fixed < 10);
    mpri_rng_permutation(5, 1, 0, p);
}

static void remember(void *user, mpr_log_level level, const char *message)
{
    assert_int_equal(level, MPR_LOG_WARNING);
    snprintf(user, 64, "%s", message);
}

static void test_log(void **state)
{
    (void)state;
    char text[64] = "";
    Log log = {remember, text}, none = {NULL, NULL};
    mpri_log(&log, MPR_LOG_WARNING, "%d of %d", 1, 2);
    assert_string_equal(text, "1 of 2");
    mpri_log(&none, MPR_LOG_WARNING, "dropped");
    mpri_log(NULL, MPR_LOG_WARNING, "dropped");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err),           cmocka_unit_test(test_findings),
        cmocka_unit_test(test_err_name),      cmocka_unit_test(test_long_messages),
        cmocka_unit_test(test_status),        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_intern),        cmocka_unit_test(test_size),
        cmocka_unit_test(test_numbers),       cmocka_unit_test(test_integers),
        cmocka_unit_test(test_text),          cmocka_unit_test(test_words),
        cmocka_unit_test(test_utf8),          cmocka_unit_test(test_philox),
        cmocka_unit_test(test_distributions), cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
