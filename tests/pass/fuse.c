/* Activations in the epilogue, casts in loads and stores. */
#include "tests/support/graphs.h"

static void fuses(const char *before, const char *after)
{
    TestGraph t;
    test_graph_open(&t, before);
    test_graph_pass(&t, mpri_pass_fuse);
    test_graph_expect(&t, after);
    test_graph_close(&t);
}

static void relu_needs_its_output_only(void **state)
{
    (void)state;
    fuses("graph \"g\" {\n"
          "input x: f16[2,3]\n"
          "input w: f16[3,4]\n"
          "input b: f16[4]\n"
          "input dy: f16[2,4]\n"
          "p = FusedMatMul(x, w, b) @ \"/fc\"\n"
          "y = Relu(p) @ \"/relu\"\n"
          "--- backward\n"
          "dp = ReluGrad(dy, y)\n"
          "output y = y\n"
          "output dp = dp\n}\n",
          "graph \"g\" {\n"
          "input x: f16[2,3]\n"
          "input w: f16[3,4]\n"
          "input b: f16[4]\n"
          "input dy: f16[2,4]\n"
          "y: f16[2,4] = FusedMatMul(x, w, b) {activation=\"relu\"} @ \"/fc\"\n"
          "--- backward\n"
          "dp: f16[2,4] = ReluGrad(dy, y)\n"
          "output y = y\n"
          "output dp = dp\n}\n");
}

static void gelu_keeps_its_input(void **state)
{
    (void)state;
    fuses("graph \"g\" {\n"
          "input x: f16[2,3]\n"
          "input w: f16[3,4]\n"
          "input dy: f16[2,4]\n"
          "p = FusedMatMul(x, w) @ \"/fc\"\n"
          "y = Gelu(p) {approximate=\"tanh\"} @ \"/gelu\"\n"
          "--- backward\n"
          "dp = GeluGrad(dy, p) {approximate=\"tanh\"}\n"
          "output y = y\n"
          "output dp = dp\n}\n",
          "graph \"g\" {\n"
          "input x: f16[2,3]\n"
          "input w: f16[3,4]\n"
          "input dy: f16[2,4]\n"
          "y: f16[2,4], p: f16[2,4] = FusedMatMul(x, w) {activation=\"gelu_tanh\"} @ \"/fc\"\n"
          "--- backward\n"
          "dp: f16[2,4] = GeluGrad(dy, p) {approximate=\"tanh\"}\n"
          "output y = y\n"
          "output dp = dp\n}\n");
}

static void a_reshape_between_moves_behind(void **state)
{
    (void)state;
    fuses("graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "input w: f32[3,4]\n"
          "input dy: f32[1,2,4]\n"
          "const s: i64[3] = [1,2,4]\n"
          "p = FusedMatMul(x, w) @ \"/fc\"\n"
          "r = Reshape(p, s) @ \"/view\"\n"
          "y = Gelu(r) @ \"/gelu\"\n"
          "--- backward\n"
          "dr = GeluGrad(dy, r)\n"
          "output y = y\n"
          "output dr = dr\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "input w: f32[3,4]\n"
          "input dy: f32[1,2,4]\n"
          "const s: i64[3] = [1,2,4]\n"
          "const i64s: i64[3] = [1,2,4]\n"
          "/fc_1: f32[2,4], p: f32[2,4] = FusedMatMul(x, w) {activation=\"gelu\"} @ \"/fc\"\n"
          "r: f32[1,2,4] = Reshape(p, s) @ \"/view\"\n"
          "y: f32[1,2,4] = Reshape(/fc_1, i64s) @ \"/gelu/Reshape\"\n"
          "--- backward\n"
          "dr: f32[1,2,4] = GeluGrad(dy, r)\n"
          "output y = y\n"
          "output dr = dr\n"
          "}\n");
}

/* One activation per product; the product of another segment is not touched. */
static void second_activation_stays(void **state)
{
    (void)state;
    fuses("graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "input w: f32[3,4]\n"
          "p = FusedMatMul(x, w) @ \"/fc\"\n"
          "a = Relu(p)\n"
          "b = Gelu(p)\n"
          "c = Relu(a)\n"
          "output b = b\n"
          "output c = c\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "input w: f32[3,4]\n"
          "a: f32[2,4], p: f32[2,4] = FusedMatMul(x, w) {activation=\"relu\"} @ \"/fc\"\n"
          "b: f32[2,4] = Gelu(p)\n"
          "c: f32[2,4] = Relu(a)\n"
          "output b = b\n"
          "output c = c\n"
          "}\n");
}

static void casts_go_into_kernels(void **state)
{
    (void)state;
    fuses("graph \"g\" {\n"
          "input x: f16[2,4]\n"
          "input r: f32[2,4]\n"
          "input s: f32[4]\n"
          "input dy: f16[2,4]\n"
          "xf = Cast(x) {to=f32}\n"
          "h = Add(xf, r)\n"
          "n, m, i = LayerNormalization(xf, s)\n"
          "y = Cast(n) {to=f16}\n"
          "--- backward\n"
          "df = Cast(dy) {to=f32}\n"
          "dx, ds, db = LayerNormGrad(df, xf, s, m, i)\n"
          "dl = Cast(dx) {to=f16}\n"
          "output h = h\n"
          "output y = y\n"
          "output dl = dl\n"
          "output ds = ds\n}\n",
          "graph \"g\" {\n"
          "input x: f16[2,4]\n"
          "input r: f32[2,4]\n"
          "input s: f32[4]\n"
          "input dy: f16[2,4]\n"
          "h: f32[2,4] = Add(x, r) {out_dtype=f32}\n"
          "y: f16[2,4], m: f32[2,1], i: f32[2,1] = LayerNormalization(x, s) {out_dtype=f16}\n"
          "--- backward\n"
          "dl: f16[2,4], ds: f32[4], db: f32[4] = LayerNormGrad(dy, x, s, m, i) {out_dtype=f16}\n"
          "output h = h\n"
          "output y = y\n"
          "output dl = dl\n"
          "output ds = ds\n"
          "}\n");
}

static void casts_that_others_need_stay(void **state)
{
    (void)state;
    static const char text[] = "graph \"g\" {\n"
                               "input  x: f16[2,4]\n"
                               "input  w: f32[4,4]\n"
                               "input  i: i64[2]\n"
                               "xf: f32[2,4] = Cast(x) {to=f32}\n"
                               "a: f32[2,4] = Exp(xf)\n"
                               "b: f32[2,4] = FusedMatMul(xf, w)\n"
                               "c: f16[2,4] = Cast(a) {to=f16}\n"
                               "e: f64[2,4] = Cast(a) {to=f64}\n"
                               "output c = c\n"
                               "output b = b\n"
                               "output e = e\n}\n";
    fuses(text, text);
}

static void off(void **state)
{
    (void)state;
    static const char text[] = "graph \"g\" {\n"
                               "input  x: f32[2,3]\n"
                               "input  w: f32[3,4]\n"
                               "p: f32[2,4] = FusedMatMul(x, w)\n"
                               "y: f32[2,4] = Relu(p)\n"
                               "output y = y\n}\n";
    TestGraph t;
    test_graph_open(&t, text);
    t.o.no_fuse = true;
    assert_false(test_graph_pass(&t, mpri_pass_fuse));
    test_graph_expect(&t, text);
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(relu_needs_its_output_only),
        cmocka_unit_test(gelu_keeps_its_input),
        cmocka_unit_test(a_reshape_between_moves_behind),
        cmocka_unit_test(second_activation_stays),
        cmocka_unit_test(casts_go_into_kernels),
        cmocka_unit_test(casts_that_others_need_stay),
        cmocka_unit_test(off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
