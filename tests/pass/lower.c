/* Matrix products in one form, with transposes and scalar factors inside. Left: before, right:
 * after. */
#include "tests/support/graphs.h"

static void lowers(const char *before, const char *after)
{
    TestGraph t;
    test_graph_open(&t, before);
    test_graph_pass(&t, mpri_pass_lower);
    test_graph_expect(&t, after);
    test_graph_close(&t);
}

static void plain_products(void **state)
{
    (void)state;
    lowers("graph \"g\" {\n"
           "input x: f32[2,5,3]\n"
           "input w: f32[3,4]\n"
           "input b: f32[4]\n"
           "input v: f32[4]\n"
           "y = MatMul(x, w) @ \"/a\"\n"
           "z = Linear(x, w, b) @ \"/b\"\n"
           "u = MatMul(z, v) @ \"/c\"\n"
           "output y = y\n"
           "output u = u\n}\n",
           "graph \"g\" {\n"
           "input x: f32[2,5,3]\n"
           "input w: f32[3,4]\n"
           "input b: f32[4]\n"
           "input v: f32[4]\n"
           "const i64s: i64[2] = [4,1]\n"
           "const i64s_1: i64[2] = [2,5]\n"
           "y: f32[2,5,4] = FusedMatMul(x, w) @ \"/a\"\n"
           "z: f32[2,5,4] = FusedMatMul(x, w, b) @ \"/b\"\n"
           "/c/Reshape: f32[4,1] = Reshape(v, i64s) @ \"/c/Reshape\"\n"
           "/c/FusedMatMul: f32[2,5,1] = FusedMatMul(z, /c/Reshape) @ \"/c/FusedMatMul\"\n"
           "u: f32[2,5] = Reshape(/c/FusedMatMul, i64s_1) @ \"/c\"\n"
           "output y = y\n"
           "output u = u\n"
           "}\n");
}

static void gemm_forms(void **state)
{
    (void)state;
    lowers("graph \"g\" {\n"
           "input x: f16[3,2]\n"
           "input w: f16[4,3]\n"
           "input row: f16[1,4]\n"
           "input one: f16[]\n"
           "input col: f16[2,1]\n"
           "a = Gemm(x, w, row) {transA=1, transB=1, alpha=2} @ \"/a\"\n"
           "b = Gemm(x, w, row) {transA=1, transB=1, beta=0.5} @ \"/b\"\n"
           "c = Gemm(x, w, one) {transA=1, transB=1} @ \"/c\"\n"
           "d = Gemm(x, w, col) {transA=1, transB=1} @ \"/d\"\n"
           "e = Gemm(x, w, col) {transA=1, transB=1, beta=0} @ \"/e\"\n"
           "output a = a\noutput b = b\noutput c = c\noutput d = d\noutput e = e\n}\n",
           "graph \"g\" {\n"
           "input x: f16[3,2]\n"
           "input w: f16[4,3]\n"
           "input row: f16[1,4]\n"
           "input one: f16[]\n"
           "input col: f16[2,1]\n"
           "const i64s: i64[1] = [4]\n"
           "const i64s_1: i64[1] = [4]\n"
           "const f32:0.5: f32[] = 0.5\n"
           "const i64s_2: i64[1] = [4]\n"
           "/a/Reshape: f16[4] = Reshape(row, i64s) @ \"/a/Reshape\"\n"
           "a: f16[2,4] = FusedMatMul(x, w, /a/Reshape) {trans_a=1, trans_b=1, alpha=2} @ \"/a\"\n"
           "/b/Reshape: f16[4] = Reshape(row, i64s_1) @ \"/b/Reshape\"\n"
           "/b/Cast: f32[4] = Cast(/b/Reshape) {to=f32} @ \"/b/Cast\"\n"
           "/b/Mul: f32[4] = Mul(/b/Cast, f32:0.5) @ \"/b/Mul\"\n"
           "b: f16[2,4] = FusedMatMul(x, w, /b/Mul) {trans_a=1, trans_b=1} @ \"/b\"\n"
           "/c/Expand: f16[4] = Expand(one, i64s_2) @ \"/c/Expand\"\n"
           "c: f16[2,4] = FusedMatMul(x, w, /c/Expand) {trans_a=1, trans_b=1} @ \"/c\"\n"
           "/d/FusedMatMul: f32[2,4] = FusedMatMul(x, w) {trans_a=1, trans_b=1, out_dtype=f32} @ "
           "\"/d/FusedMatMul\"\n"
           "/d/Cast: f32[2,1] = Cast(col) {to=f32} @ \"/d/Cast\"\n"
           "/d/Add: f32[2,4] = Add(/d/FusedMatMul, /d/Cast) @ \"/d/Add\"\n"
           "d: f16[2,4] = Cast(/d/Add) {to=f16} @ \"/d\"\n"
           "e: f16[2,4] = FusedMatMul(x, w) {trans_a=1, trans_b=1} @ \"/e\"\n"
           "output a = a\n"
           "output b = b\n"
           "output c = c\n"
           "output d = d\n"
           "output e = e\n"
           "}\n");
}

static void integers_stay(void **state)
{
    (void)state;
    static const char text[] = "graph \"g\" {\n"
                               "input  x: i32[2,3]\n"
                               "input  w: i32[3,4]\n"
                               "y: i32[2,4] = MatMul(x, w)\n"
                               "output y = y\n}\n";
    lowers(text, text);
}

static void transposes_become_flags(void **state)
{
    (void)state;
    lowers("graph \"g\" {\n"
           "input x: f32[2,3]\n"
           "input w: f32[4,3]\n"
           "wt = Transpose(w)\n"
           "y = MatMul(x, wt) @ \"/y\"\n"
           "xt = Transpose(x) {perm=[1,0]}\n"
           "z = MatMul(xt, y) @ \"/z\"\n"
           "output wt = wt\n"
           "output z = z\n}\n",
           "graph \"g\" {\n"
           "input x: f32[2,3]\n"
           "input w: f32[4,3]\n"
           "wt: f32[3,4] = Transpose(w)\n"
           "y: f32[2,4] = FusedMatMul(x, w) {trans_b=1} @ \"/y\"\n"
           "z: f32[3,4] = FusedMatMul(x, y) {trans_a=1} @ \"/z\"\n"
           "output wt = wt\n"
           "output z = z\n"
           "}\n");
}

/* Scores of attention: the key's transpose keeps its rows. */
static void attention_transposes(void **state)
{
    (void)state;
    lowers("graph \"g\" {\n"
           "input q: f32[2,5,3,4]\n"
           "input k: f32[2,5,3,4]\n"
           "input ds: f32[2,3,5,5]\n"
           "const c: f32[] = 0.5\n"
           "qt = Transpose(q) {perm=[0,2,1,3]} @ \"/qt\"\n"
           "kt = Transpose(k) {perm=[0,2,3,1]} @ \"/kt\"\n"
           "s = MatMul(qt, kt) @ \"/s\"\n"
           "y = Mul(s, c) @ \"/scale\"\n"
           "dkt = FusedMatMul(qt, ds) {trans_a=1} @ \"grad:/s\"\n"
           "dk = Transpose(dkt) {perm=[0,3,1,2]} @ \"grad:/kt\"\n"
           "output y = y\n"
           "output dk = dk\n}\n",
           "graph \"g\" {\n"
           "input q: f32[2,5,3,4]\n"
           "input k: f32[2,5,3,4]\n"
           "input ds: f32[2,3,5,5]\n"
           "qt: f32[2,3,5,4] = Transpose(q) {perm=[0,2,1,3]} @ \"/qt\"\n"
           "kt: f32[2,3,5,4] = Transpose(k) {perm=[0,2,1,3]} @ \"/kt\"\n"
           "s: f32[2,3,5,5] = FusedMatMul(qt, kt) {trans_b=1, alpha=0.5} @ \"/s\"\n"
           "grad:/s/FusedMatMul: f32[2,3,5,4] = FusedMatMul(ds, qt) {trans_a=1} @ "
           "\"grad:/s/FusedMatMul\"\n"
           "dk: f32[2,5,3,4] = Transpose(grad:/s/FusedMatMul) {perm=[0,2,1,3]} @ \"grad:/kt\"\n"
           "output y = s\n"
           "output dk = dk\n"
           "}\n");
}

static void factors(void **state)
{
    (void)state;
    lowers("graph \"g\" {\n"
           "input x: f16[2,3]\n"
           "input w: f16[3,4]\n"
           "input f: f32[2,3]\n"
           "const eight: f16[] = 8\n"
           "const three: f16[] = 3\n"
           "const third: f32[1] = [3]\n"
           "a = MatMul(x, w) @ \"/a\"\n"
           "ad = Div(a, eight) @ \"/ad\"\n"
           "b = MatMul(x, w) @ \"/b\"\n"
           "bm = Mul(b, three) @ \"/bm\"\n"
           "fm = Mul(third, f) @ \"/fm\"\n"
           "ft = Transpose(f)\n"
           "p = MatMul(fm, ft) @ \"/p\"\n"
           "output ad = ad\noutput bm = bm\noutput p = p\n}\n",
           "graph \"g\" {\n"
           "input x: f16[2,3]\n"
           "input w: f16[3,4]\n"
           "input f: f32[2,3]\n"
           "const three: f16[] = 3\n"
           "a: f16[2,4] = FusedMatMul(x, w) {alpha=0.125} @ \"/a\"\n"
           "b: f16[2,4] = FusedMatMul(x, w) @ \"/b\"\n"
           "bm: f16[2,4] = Mul(b, three) @ \"/bm\"\n"
           "p: f32[2,2] = FusedMatMul(f, f) {trans_b=1, alpha=3} @ \"/p\"\n"
           "output ad = a\n"
           "output bm = bm\n"
           "output p = p\n"
           "}\n");
}

static void named_values_stay_when_asked(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[2,3]\n"
                        "input w: f32[4,3]\n"
                        "wt = Transpose(w)\n"
                        "y = MatMul(x, wt) @ \"/y\"\n"
                        "output y = y\n}\n");
    t.o.no_fuse = true;
    test_graph_pass(&t, mpri_pass_lower);
    assert_non_null(mpri_graph_find_value(t.g, "wt")->def);
    assert_int_equal(mpri_graph_find_value(t.g, "y")->def->op->id, OP_FusedMatMul);
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_products),
        cmocka_unit_test(gemm_forms),
        cmocka_unit_test(integers_stay),
        cmocka_unit_test(transposes_become_flags),
        cmocka_unit_test(attention_transposes),
        cmocka_unit_test(factors),
        cmocka_unit_test(named_values_stay_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
