/* The simplify pass, the list of passes and their runner. */
#include <stdio.h>
#include <string.h>
#include "tests/support/graphs.h"

/* Text before and after simplify. */
static void simplified(bool training, const char *before, const char *after)
{
    TestGraph t;
    test_graph_open(&t, before);
    t.o.training = training;
    bool changed = test_graph_pass(&t, mpri_pass_simplify);
    test_graph_expect(&t, after);
    assert_true(changed == (strcmp(before, after) != 0));
    assert_false(test_graph_pass(&t, mpri_pass_simplify));
    test_graph_close(&t);
}

/* Shorthand: a body after the same inputs. */
#define HEAD "graph \"g\" {\n  input  x: f32[4]\n  input  h: f16[4]\n  input  i: i32[4]\n"
#define BODY(text) HEAD text "}\n"

static void test_identity(void **state)
{
    (void)state;
    simplified(false,
               BODY("a: f32[4] = Identity(x)\nb: f32[4] = Relu(a)\nc: f32[4] = Identity(b)\noutput "
                    "y = c\noutput z = a\n"),
               BODY("b: f32[4] = Relu(x)\noutput y = b\noutput z = x\n"));
}

static void test_dead_code(void **state)
{
    (void)state;
    simplified(false,
               BODY("a: f32[4] = Exp(x)\nb: f32[4] = Log(a)\nc: f32[4] = Relu(x)\noutput y = c\n"),
               BODY("c: f32[4] = Relu(x)\noutput y = c\n"));
}

static void test_casts(void **state)
{
    (void)state;
    /* to its own type */
    simplified(false, BODY("a: f32[4] = Cast(x) {to=f32}\nb: f32[4] = Relu(a)\noutput y = b\n"),
               BODY("b: f32[4] = Relu(x)\noutput y = b\n"));
    /* wide and back */
    simplified(false,
               BODY("a: f32[4] = Cast(h) {to=f32}\nb: f16[4] = Cast(a) {to=f16}\nc: f16[4] = "
                    "Relu(b)\noutput y = c\n"),
               BODY("c: f16[4] = Relu(h)\noutput y = c\n"));
    /* narrow and back rounds: it stays */
    const char *rounds = BODY(
        "  a: f16[4] = Cast(x) {to=f16}\n  b: f32[4] = Cast(a) {to=f32}\n  output y = b\n");
    simplified(false, rounds, rounds);
    /* a longer chain reads from before the exact part */
    simplified(false,
               BODY("a: f32[4] = Cast(h) {to=f32}\nb: f64[4] = Cast(a) {to=f64}\noutput y = b\n"),
               BODY("b: f64[4] = Cast(h) {to=f64}\noutput y = b\n"));
    /* i32 does not fit f32 */
    const char *ints = BODY(
        "  a: f32[4] = Cast(i) {to=f32}\n  b: i32[4] = Cast(a) {to=i32}\n  output y = b\n");
    simplified(false, ints, ints);
    /* the same cast twice */
    simplified(false,
               BODY("a: f16[4] = Cast(x) {to=f16}\nb: f16[4] = Cast(x) {to=f16}\nc: f16[4] = "
                    "Add(a, b)\noutput y = c\n"),
               BODY("a: f16[4] = Cast(x) {to=f16}\nc: f16[4] = Add(a, a)\noutput y = c\n"));
}

static void test_cast_of_constant(void **state)
{
    (void)state;
    simplified(
        false,
        BODY("const  c: f32[2] = [1.5,1e-08]\na: f16[2] = Cast(c) {to=f16}\nb: f16[2] = "
             "Relu(a)\noutput y = b\n"),
        BODY("const  c__mpr_f16: f16[2] = [1.5,0]\nb: f16[2] = Relu(c__mpr_f16)\noutput y = b\n"));
    const char *param = "graph \"g\" {\n  param  w: f32[2] trained = [1,2]\n  a: f16[2] = Cast(w) "
                        "{to=f16}\n  output y = a\n}\n";
    simplified(false, param, param);
}

#define DROP "const  r: f32[] = 0.1\nconst  on: bool[] = 1\nconst  off: bool[] = 0\n"

static void test_dropout(void **state)
{
    (void)state;
    simplified(false,
               BODY(DROP "a: f32[4] = Dropout(x, r, on)\nb: f32[4] = Relu(a)\noutput y = b\n"),
               BODY("b: f32[4] = Relu(x)\noutput y = b\n"));
    simplified(false,
               BODY(DROP "a: f32[4], m: bool[4] = Dropout(x, r, on)\nb: f32[4] = Relu(a)\noutput y "
                         "= b\noutput m = m\n"),
               BODY("const  r: f32[] = 0.1\na: f32[4], m: bool[4] = Dropout(x, r, _) "
                    "{stream=1}\nb: f32[4] = Relu(a)\noutput y = b\noutput m = m\n"));
    TestGraph t;
    test_graph_open(&t, BODY(DROP
                             "a: f32[4] = Dropout(x, r, on)\nb: f32[4] = Relu(a)\noutput y = b\n"));
    t.o.training = true;
    assert_false(test_graph_pass(&t, mpri_pass_simplify));
    test_graph_close(&t);
}

static void test_constant_node(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, BODY("output y = x\n"));
    static const float data[2] = {1, 2};
    ConstantParams p = {.value = {MPR_FLOAT32, {.rank = 1, .d = {2}}, data}};
    Node *n = mpri_node_create(t.g, NULL, &mpri_op_Constant, "c", &p, 0, NULL, 1);
    assert_non_null(n);
    mpri_value_rename(t.g, n->out[0], "c");
    assert_ok(mpri_infer_graph(t.g, &t.err), &t.err);
    assert_ok(mpri_graph_add_output(t.g, "z", n->out[0], &t.err), &t.err);
    assert_true(test_graph_pass(&t, mpri_pass_simplify));
    test_graph_expect(&t, BODY("const  c: f32[2] = [1,2]\noutput y = x\noutput z = c\n"));
    test_graph_close(&t);
}

static void collect(void *user, mpr_log_level level, const char *message)
{
    (void)level;
    size_t len = strlen(user);
    snprintf((char *)user + len, 8192 - len, "%s\n", message);
}

static void test_runner(void **state)
{
    (void)state;
    int n;
    const PassRow *rows = mpri_passes(&n);
    assert_true(n >= 8);
    for (int i = 0; i < n; i++) assert_true(rows[i].name[0] && rows[i].help[0] && rows[i].fn);
    TestGraph t;
    char said[8192] = "";
    Log log = {collect, said};
    test_graph_open(&t, BODY("a: f32[4] = Identity(x)\nb: f32[4] = Relu(a)\noutput y = b\n"));
    t.ctx.log = &log;
    t.o.dump_after = "simplify";
    assert_ok(mpri_passes_run(&t.ctx, STAGE_PREPARE, t.g, &t.err), &t.err);
    assert_non_null(strstr(said, "after pass simplify:\ngraph"));
    assert_null(strstr(said, "after pass recover:"));
    assert_non_null(strstr(said, "pass autocast: no change"));
    t.o.dump_after = "recovr";
    assert_int_equal(mpri_passes_run(&t.ctx, STAGE_PREPARE, t.g, &t.err), MPR_E_USAGE);
    assert_error(MPR_E_USAGE, &t.err, "recovr", "'recover'");
    test_graph_close(&t);
}

/* --dtype f64: inputs, constants, parameters and casts. */
static void test_widen(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n  input  x: f32[4]\n  input  i: i32[4]\n  param  w: f32[4] "
                        "trained = [1,2,3,4]\n"
                        "const  c: f32[] = 0.5\na: f32[4] = Mul(x, w)\nb: f16[4] = Cast(a) "
                        "{to=f16}\nd: f32[4] = Cast(b) {to=f32}\n"
                        "e: f32[4] = Cast(i) {to=f32}\nf: f32[4] = Add(d, e)\ng: f32[4] = Mul(f, "
                        "c)\noutput y = g\n}\n");
    t.o.force = MPR_FLOAT64;
    assert_true(test_graph_pass(&t, mpri_pass_widen));
    test_graph_expect(&t, "graph \"g\" {\n  input  x: f64[4]\n  input  i: i32[4]\n  param  w: "
                          "f64[4] trained = [1,2,3,4]\n"
                          "const  c: f64[] = 0.5\na: f64[4] = Mul(x, w)\nb: f64[4] = Cast(a) "
                          "{to=f64}\nd: f64[4] = Cast(b) {to=f64}\n"
                          "e: f64[4] = Cast(i) {to=f64}\nf: f64[4] = Add(d, e)\ng: f64[4] = Mul(f, "
                          "c)\noutput y = g\n}\n");
    test_graph_close(&t);
}

/* Casts of transposed weights move to the weight; of sliced ones they stay. */
static void test_slide(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n  input  x: f32[2,3,4]\n  const  s: i64[2] = [6,4]\n"
                        "a: f32[6,4] = Reshape(x, s)\nb: f32[4,6] = Transpose(a) {perm=[1,0]}\n"
                        "c: f16[4,6] = Cast(b) {to=f16}\noutput y = c\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_slide));
    test_graph_expect(&t, "graph \"g\" {\n  input  x: f32[2,3,4]\n  const  s: i64[2] = [6,4]\n"
                          "Cast_1: f16[2,3,4] = Cast(x) {to=f16} @ \"Cast\"\n"
                          "a: f16[6,4] = Reshape(Cast_1, s)\n"
                          "b: f16[4,6] = Transpose(a) {perm=[1,0]}\noutput y = b\n}\n");
    assert_false(test_graph_pass(&t, mpri_pass_slide));
    test_graph_close(&t);
    test_graph_open(&t,
                    "graph \"g\" {\ninput x: f32[4]\nconst s: i64[1] = [1]\nconst e: i64[1] = [3]\n"
                    "a = Slice(x, s, e)\nb = Cast(a) {to=f16}\noutput y = b\n}\n");
    assert_false(test_graph_pass(&t, mpri_pass_slide));
    test_graph_close(&t);
    /* the border of Pad has the type of what it surrounds */
    test_graph_open(&t,
                    "graph \"g\" {\ninput x: f32[4]\nconst p: i64[2] = [1,1]\n"
                    "const v: f32[] = [5]\na = Pad(x, p, v)\nb = Cast(a) {to=f16}\noutput y = b\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_slide));
    assert_int_equal(t.g->outputs[0].value->dtype, MPR_FLOAT16);
    assert_true(mpri_is(mpri_def(t.g->outputs[0].value), OP_Pad));
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity), cmocka_unit_test(test_dead_code),
        cmocka_unit_test(test_casts),    cmocka_unit_test(test_cast_of_constant),
        cmocka_unit_test(test_dropout),  cmocka_unit_test(test_constant_node),
        cmocka_unit_test(test_runner),   cmocka_unit_test(test_widen),
        cmocka_unit_test(test_slide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
