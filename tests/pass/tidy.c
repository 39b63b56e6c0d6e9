/* Casts are shared, idle ones go, and each stands behind what it reads. */
#include "tests/support/graphs.h"

static void casts_move_and_merge(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[4]\n"
                        "a = Cast(x) {to=f16}\n"
                        "b = Neg(a)\n"
                        "c = Abs(b)\n"
                        "d = Cast(b) {to=f32}\n"
                        "e = Cast(b) {to=f16}\n"
                        "f = Cast(e) {to=f32}\n"
                        "g = Add(d, f)\n"
                        "h = Cast(x) {to=f16}\n"
                        "i = Mul(c, h)\n"
                        "output g = g\noutput i = i\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_tidy));
    test_graph_expect(&t, "graph \"g\" {\n"
                          "input x: f32[4]\n"
                          "a: f16[4] = Cast(x) {to=f16}\n"
                          "b: f16[4] = Neg(a)\n"
                          "d: f32[4] = Cast(b) {to=f32}\n"
                          "c: f16[4] = Abs(b)\n"
                          "g: f32[4] = Add(d, d)\n"
                          "i: f16[4] = Mul(c, a)\n"
                          "output g = g\noutput i = i\n}\n");
    assert_false(test_graph_pass(&t, mpri_pass_tidy));
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_move_and_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
