/* The reader of small JSON objects: what it takes and refuses, and that it stays in the text. */
#include "runtime/train/json_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

static void test_values(void **state)
{
    (void)state;
    JsonObject o;
    assert_true(mpri_json_read(&o,
                               " {\"a\": 12, \"b\":-0.5e1 ,\"c\":\"inf\",\"d\":true,\n"
                               "\"e\":null,\"f\":[1,{\"a\":[]}],\"g\":\"\\\"\\u00e9\",\"h\":1e2} "));
    assert_int_equal(o.n, 8);
    assert_int_equal(mpri_json_find(&o, "a")->kind, JSON_KIND_WHOLE);
    assert_int_equal(mpri_json_find(&o, "a")->whole, 12);
    assert_int_equal(mpri_json_find(&o, "b")->kind, JSON_KIND_NUMBER);
    assert_true(mpri_json_find(&o, "b")->number == -5.0);
    assert_int_equal(mpri_json_find(&o, "c")->size, 3);
    assert_memory_equal(mpri_json_find(&o, "c")->text, "inf", 3);
    assert_int_equal(mpri_json_find(&o, "d")->kind, JSON_KIND_TRUE);
    assert_int_equal(mpri_json_find(&o, "f")->kind, JSON_KIND_OTHER);
    assert_int_equal(mpri_json_find(&o, "h")->kind, JSON_KIND_NUMBER);
    assert_null(mpri_json_find(&o, "z"));
    assert_true(mpri_json_read(&o, "{}"));
    assert_int_equal(o.n, 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "[]", "1", "{", "{}x", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1 \"b\":2}",
        "{a:1}", "{\"a\":01}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":+1}", "{\"a\":1e}",
        "{\"a\":nan}", "{\"a\":0x1}", "{\"a\":1e999}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\n\"}", "{\"a\":[1,]}", "{\"a\":tru}", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\"}}"};
    JsonObject o;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (mpri_json_read(&o, bad[i])) fail_msg("taken: %s", bad[i]);
    char deep[512] = "{\"a\":";
    memset(deep + 5, '[', 200);
    memset(deep + 205, ']', 200);
    strcpy(deep + 405, "}");
    assert_false(mpri_json_read(&o, deep));
}

/* Every prefix lies at the end of a block of its own size: a sanitizer sees a step beyond it. */
static void test_prefixes(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\\u00e9\": [1, {\"b\": \"\\n\"}], \"c\": -1.5e+3, \"d\": false}";
    JsonObject o;
    assert_true(mpri_json_read(&o, text));
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        char *part = malloc(n + 1);
        assert_non_null(part);
        memcpy(part, text, n);
        part[n] = '\0';
        assert_false(mpri_json_read(&o, part));
        free(part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_prefixes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
