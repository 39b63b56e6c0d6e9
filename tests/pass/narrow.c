/* Products between casts become products of 16-bit tensors, and nothing else does. */
#include "tests/support/graphs.h"

static void narrows(const char *before, const char *after)
{
    TestGraph t;
    test_graph_open(&t, before);
    test_graph_pass(&t, mpri_pass_narrow);
    test_graph_expect(&t, after);
    test_graph_close(&t);
}

#define HEAD \
    "graph \"g\" {\n" \
    "input x: bf16[1,2,5,5]\n" \
    "param w: f32[3,2,3,3]\n"

static void between_casts(void **state)
{
    (void)state;
    narrows(HEAD "wl = Cast(w) {to=bf16}\n"
                 "ww = Cast(wl) {to=f32}\n"
                 "xw = Cast(x) {to=f32}\n"
                 "c = Conv(xw, ww)\n"
                 "y = Cast(c) {to=bf16}\n"
                 "z = Relu(y)\n"
                 "output z = z\n}\n",
            HEAD "wl: bf16[3,2,3,3] = Cast(w) {to=bf16}\n"
                 "ww: f32[3,2,3,3] = Cast(wl) {to=f32}\n"
                 "xw: f32[1,2,5,5] = Cast(x) {to=f32}\n"
                 "c: bf16[1,3,3,3] = Conv(x, wl)\n"
                 "z: bf16[1,3,3,3] = Relu(c)\n"
                 "output z = z\n}\n");
}

/* An f32 result that somebody reads, an f32 input, another type behind: as they are. */
static void stays(void **state)
{
    (void)state;
    static const char *const graphs[] = {
        HEAD "wl = Cast(w) {to=bf16}\nww = Cast(wl) {to=f32}\nxw = Cast(x) {to=f32}\n"
             "c = Conv(xw, ww)\ny = Cast(c) {to=bf16}\nz = Relu(c)\noutput y = y\noutput z = z\n}\n",
        HEAD "xw = Cast(x) {to=f32}\nc = Conv(xw, w)\ny = Cast(c) {to=bf16}\noutput y = y\n}\n",
        HEAD "wl = Cast(w) {to=bf16}\nww = Cast(wl) {to=f32}\nxw = Cast(x) {to=f32}\n"
             "c = Conv(xw, ww)\ny = Cast(c) {to=f16}\noutput y = y\n}\n",
    };
    for (size_t i = 0; i < sizeof graphs / sizeof *graphs; i++) {
        TestGraph t;
        test_graph_open(&t, graphs[i]);
        assert_false(test_graph_pass(&t, mpri_pass_narrow));
        test_graph_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_casts),
        cmocka_unit_test(stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
