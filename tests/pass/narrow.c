/* Nodes whose rounding is marked become nodes of 16-bit tensors, and nothing else does. */
#include "tests/support/graphs.h"

/* Marks what makes y, z … as mpr-convert does. */
static void mark(TestGraph *t, const char *names)
{
    for (; *names; names++) {
        const Value *v = mpri_graph_find_value(t->g, (char[]){*names, '\0'});
        assert_non_null(v);
        mpri_def(v)->rounds = true;
    }
}

static void narrows(const char *before, const char *marked, const char *after)
{
    TestGraph t;
    test_graph_open(&t, before);
    mark(&t, marked);
    assert_true(test_graph_pass(&t, mpri_pass_narrow));
    test_graph_expect(&t, after);
    test_graph_close(&t);
}

#define HEAD \
    "graph \"g\" {\n" \
    "input x: bf16[1,2,5,5]\n" \
    "param w: f32[3,2,3,3]\n"
#define CAST_UP "wl = Cast(w) {to=bf16}\nww = Cast(wl) {to=f32}\nxw = Cast(x) {to=f32}\n"

static void between_casts(void **state)
{
    (void)state;
    narrows(HEAD CAST_UP
            "c = Conv(xw, ww)\n"
            "y = Cast(c) {to=bf16}\n"
            "z = Relu(y)\n"
            "output z = z\n}\n",
            "y",
            HEAD "wl: bf16[3,2,3,3] = Cast(w) {to=bf16}\n"
                 "ww: f32[3,2,3,3] = Cast(wl) {to=f32}\n"
                 "xw: f32[1,2,5,5] = Cast(x) {to=f32}\n"
                 "c: bf16[1,3,3,3] = Conv(x, wl)\n"
                 "z: bf16[1,3,3,3] = Relu(c)\n"
                 "output z = z\n}\n");
}

/* Several roundings, outputs of the graph and a chain: every reader reads the one 16-bit value. */
static void many_readers(void **state)
{
    (void)state;
    narrows("graph \"g\" {\n"
            "input x: bf16[2,4]\n"
            "xw = Cast(x) {to=f32}\n"
            "a = HardSwish(xw)\n"
            "p = Cast(a) {to=bf16}\n"
            "q = Cast(a) {to=bf16}\n"
            "pw = Cast(p) {to=f32}\n"
            "b = Elu(pw)\n"
            "r = Cast(b) {to=bf16}\n"
            "s = Add(q, r)\n"
            "output o = p\noutput s = s\noutput w = pw\n}\n",
            "pqr",
            "graph \"g\" {\n"
            "input x: bf16[2,4]\n"
            "xw: f32[2,4] = Cast(x) {to=f32}\n"
            "a: bf16[2,4] = HardSwish(x)\n"
            "pw: f32[2,4] = Cast(a) {to=f32}\n"
            "b: bf16[2,4] = Elu(a)\n"
            "s: bf16[2,4] = Add(a, b)\n"
            "output o = a\noutput s = s\noutput w = pw\n}\n");
}

/* Scales stay as training has them, small constants that 16 bits hold take the data's type. */
static void scales_and_constants(void **state)
{
    (void)state;
    narrows("graph \"g\" {\n"
            "input x: f16[2,4]\n"
            "param s: f32[4]\n"
            "const k: f32[1] = 0.5\n"
            "xw = Cast(x) {to=f32}\n"
            "n = LayerNormalization(xw, s)\n"
            "y = Cast(n) {to=f16}\n"
            "yw = Cast(y) {to=f32}\n"
            "m = PRelu(yw, k)\n"
            "z = Cast(m) {to=f16}\n"
            "output z = z\n}\n",
            "yz",
            "graph \"g\" {\n"
            "input x: f16[2,4]\n"
            "param s: f32[4]\n"
            "const k__mpr_f16: f16[1] = [0.5]\n"
            "xw: f32[2,4] = Cast(x) {to=f32}\n"
            "n: f16[2,4] = LayerNormalization(x, s)\n"
            "yw: f32[2,4] = Cast(n) {to=f32}\n"
            "m: f16[2,4] = PRelu(n, k__mpr_f16)\n"
            "output z = m\n}\n");
}

/* No mark, an f32 result that somebody reads, an f32 input or a constant that 16 bits do not hold,
 * another type behind: as they are. */
static void stays(void **state)
{
    (void)state;
    static const struct { const char *graph, *marked; } rows[] = {
        {HEAD CAST_UP "c = Conv(xw, ww)\ny = Cast(c) {to=bf16}\noutput y = y\n}\n", ""},
        {HEAD CAST_UP "c = Conv(xw, ww)\ny = Cast(c) {to=bf16}\nz = Relu(c)\noutput y = y\n"
                      "output z = z\n}\n", "y"},
        {HEAD CAST_UP "c = Conv(xw, ww)\ny = Cast(c) {to=bf16}\n"
                      "output y = y\noutput c = c\n}\n", "y"},
        {HEAD CAST_UP "c = Conv(xw, ww)\ny = Cast(c) {to=bf16}\nz = Cast(c) {to=bf16}\n"
                      "output y = y\noutput z = z\n}\n", "y"},
        {HEAD "xw = Cast(x) {to=f32}\nc = Conv(xw, w)\ny = Cast(c) {to=bf16}\n"
              "output y = y\n}\n", "y"},
        {HEAD CAST_UP "c = Conv(xw, ww)\ny = Cast(c) {to=f16}\noutput y = y\n}\n", "y"},
        {HEAD "const k: f32[1] = 0.1\nxw = Cast(x) {to=f32}\nc = PRelu(xw, k)\n"
              "y = Cast(c) {to=bf16}\noutput y = y\n}\n", "y"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TestGraph t;
        test_graph_open(&t, rows[i].graph);
        mark(&t, rows[i].marked);
        assert_false(test_graph_pass(&t, mpri_pass_narrow));
        test_graph_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(between_casts),
        cmocka_unit_test(many_readers),
        cmocka_unit_test(scales_and_constants),
        cmocka_unit_test(stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
