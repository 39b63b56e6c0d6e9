/* The text form: print -> parse -> print is the identity; errors name the line. */
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/ir/text_form.h"
#include "tests/unit/test_ops.h"

static const char whole[] =
    "graph \"net\" {\n"
    "  input  x: f32[batch,4*seq+1]\n"
    "  input  \"odd name \\\"q\\\"\\n\": i64[(seq/2),\"dim 1\",min(batch,seq)]\n"
    "  input  u: f16[?]\n"
    "  input  v: u8[?7,3]\n"
    "  param  fc.weight: f32[3,2] = [1,0.1,-1e-05,3,nan,inf]\n"
    "  param  big: f16[100] trained = splat(0.5)\n"
    "  param  w: f32[2] trained\n"
    "  param  w2: f32[2] trained name \"orig/w2\" init f16 [0.25,1]\n"
    "  slot   grad_w: f32[2] grad of w\n"
    "  slot   scale: f32[] state key \"loss scale\" init 65536\n"
    "  const  axes: i64[2] = [0,-1]\n"
    "  const  flag: bool[] = 1\n"
    "  const  none: i64[0] = []\n"
    "  h: f32[3,2] = Gemm(fc.weight, fc.weight, _) {alpha=0.5, trans=0, mode=\"tanh\", "
    "pads=[1,-2], scales=[0.1]} @ \"/fc/Gemm\"\n"
    "  a: f32[3,2], _, \"_\": f32[3,2] = Split(h, axes)\n"
    "  c: f16[3,2] = Cast(\"_\") {to=f16}\n"
    "  k: f32[2] = Constant() {value=f32[2] [1,2]}\n"
    "  y: undefined[?], z: f32[batch] = com.acme:Thing(none, flag, x) @ \"n1\"\n"
    "  --- backward\n"
    "  r: f32[2] = Relu(w)\n"
    "  --- update\n"
    "  !Step(grad_w, r)\n"
    "  output logits = c\n"
    "  output \"in put\" = x\n"
    "}\n";

static void print(const Graph *g, Text *t)
{
    Err err = {0};
    mpri_text_init(t, NULL);
    assert_ok(mpri_graph_print(g, t, &err), &err);
}

static Graph *parse(Arena *a, const char *text, Err *err)
{
    Graph *g = NULL;
    if (mpri_graph_parse(text, a, mpri_intern_create(a), test_table(), &g, err) != MPR_OK)
        return NULL;
    return g;
}

static void test_identity(void **state)
{
    (void)state;
    Arena a;
    Err err = {0};
    Text t, t2, t3;
    mpri_arena_init(&a, NULL, 0);
    Graph *g = parse(&a, whole, &err);
    assert_ok(err.code, &err);
    print(g, &t);
    char *expect = strdup(whole);
    char *at = strstr(expect, "trans=0, "); /* a default: not printed */
    memmove(at, at + 9, strlen(at + 9) + 1);
    assert_string_equal(t.text, expect);
    free(expect);
    assert_ok(mpri_graph_validate(g, "parse", &err), &err);
    Graph *g2 = parse(&a, t.text, &err);
    assert_ok(err.code, &err);
    print(g2, &t2);
    assert_string_equal(t.text, t2.text);
    Arena b;
    mpri_arena_init(&b, NULL, 0);
    Graph *c = mpri_graph_clone(g2, &b);
    assert_non_null(c);
    print(c, &t3);
    assert_string_equal(t.text, t3.text);
    assert_ok(mpri_graph_validate(c, "clone", &err), &err);
    mpri_text_free(&t);
    mpri_text_free(&t2);
    mpri_text_free(&t3);
    mpri_arena_destroy(&b);
    mpri_arena_destroy(&a);
}

static void test_inferred_types(void **state)
{
    (void)state;
    Arena a;
    Err err = {0};
    mpri_arena_init(&a, NULL, 0);
    Graph *g = parse(&a,
                     "graph {\n\n # a comment\n input x: f32[batch,3]\n input input: f32[3]\n"
                     " s = Shape(x)\n const two: i64[1] = [2]\n c = Concat(s, two)\n input2 = "
                     "Relu(input) # end\n"
                     " output c = c\n}",
                     &err);
    assert_ok(err.code, &err);
    Value *c = mpri_graph_find_value(g, "c");
    assert_int_equal(c->dtype, MPR_INT64);
    assert_int_equal(c->shape.d[0], 3);
    assert_non_null(c->content);
    assert_true(c->content[0] == mpri_dim_named(g->sym, "batch"));
    assert_int_equal(c->content[2], 2);
    mpri_arena_destroy(&a);
}

/* In a block of its own size, so that reading behind the end is seen. */
static char *test_copy(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = test_malloc(n);
    memcpy(copy, text, n);
    return copy;
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"graph {\n x = Foo()\n}", "unknown operator 'Foo'"},
        {"graph {\n input x: f33[2]\n}", "unknown type 'f33'"},
        {"graph {\n input x: f32[2]\n input x: f32[2]\n}", "line 3: 'x' is defined twice"},
        {"graph {\n y = Relu(x)\n}", "'x' is not defined"},
        {"graph {\n const x: f32[3] = [1,2]\n}", "expected ','"},
        {"graph {\n const x: f32[2] = <8 bytes, hash 1>\n}", "not in the text"},
        {"graph {\n input x: f32[2] y\n}", "end of the line"},
        {"graph {\n input x: f32[2*]\n}", "expected a dim"},
        {"graph {\n input x: f32[2]\n", "does not end"},
        {"graph {\n input x: f32[2]\n y: f16[2] = Relu(x)\n}", "its operator gives f32[2]"},
        {"graph {\n input x: f32[2]\n y: f32[3] = Relu(x)\n}", "written as f32[3]"},
        {"graph {\n input x: f32[2]\n y = Gemm(x, x) {beta=1}\n}", "no attribute 'beta'"},
        {"graph {\n input x: f32[2]\n y = Gemm(x, x) {trans=2}\n}", "attribute 'trans' of Gemm is 2, allowed 0 to 1"},
        {"graph {\n input x: f32[2]\n y = Gemm(x, x) {mode=\"tan\"}\n}", "attribute 'mode' of Gemm is 'tan', allowed none|tanh"},
        {"graph {\n input x: f32[2]\n y = Gemm(x, x) @ \"nn\"\n}", "nn"},
        {"graph {\n input x: f32[2]\n output y = x\n output y = x\n}", "twice"},
        {"graph {\n slot x: f32[2] thing\n}", "expected param"},
        {"graph {\n input \"x: f32[2]\n}", "does not end"},
        {"graph \"\\uf", "unknown escape"},
        {"graph \"\\u004", "unknown escape"},
        {"graph \"\\u 41\"", "unknown escape"},
        {"graph \"\\u0041", "does not end"},
        {"graph \"\\", "unknown escape"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Arena a;
        Err err = {0};
        mpri_arena_init(&a, NULL, 0);
        char *text = test_copy(bad[i].text);
        assert_null(parse(&a, text, &err));
        test_free(text);
        if (!strstr(err.message, bad[i].word) && !strstr(err.where, bad[i].word))
            fail_msg("no '%s' in: %s | %s", bad[i].word, err.message, err.where);
        mpri_arena_destroy(&a);
    }
}

/* No prefix of a text, and no text with one byte changed, may crash. */
static void test_broken_texts(void **state)
{
    (void)state;
    char text[sizeof whole];
    for (size_t i = 0; i < sizeof whole - 1; i++) {
        Arena a;
        Err err = {0};
        mpri_arena_init(&a, NULL, 0);
        memcpy(text, whole, sizeof whole);
        text[i] = '\0';
        char *copy = test_copy(text);
        parse(&a, copy, &err);
        test_free(copy);
        mpri_arena_reset(&a);
        memcpy(text, whole, sizeof whole);
        text[i] = "x\"[(:\n,?9"[i % 9];
        mpri_err_clear(&err);
        Graph *g = parse(&a, text, &err);
        if (g && mpri_graph_validate(g, "parse", &err) != MPR_OK)
            assert_non_null(strstr(err.message, "attribute"));
        mpri_arena_destroy(&a);
    }
}

static void test_large_constants(void **state)
{
    (void)state;
    Arena a;
    Err err = {0};
    mpri_arena_init(&a, NULL, 0);
    Graph *g = mpri_graph_create(&a, mpri_intern_create(&a), test_table());
    float data[80];
    for (int i = 0; i < 80; i++) data[i] = (float)i;
    Shape shape = {.rank = 1, .d = {80}};
    Value *v = mpri_value_const_copy(g, "c", MPR_FLOAT32, &shape, data);
    assert_ok(mpri_graph_add_output(g, "o", v, &err), &err);
    Text t;
    print(g, &t);
    assert_non_null(strstr(t.text, "= <320 bytes, hash "));
    mpri_text_free(&t);
    mpri_arena_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),        cmocka_unit_test(test_inferred_types),
        cmocka_unit_test(test_errors),          cmocka_unit_test(test_broken_texts),
        cmocka_unit_test(test_large_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
