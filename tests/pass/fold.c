/* Constants are computed, shape code vanishes, operators that change nothing go. Left: the graph,
 * right: what remains. */
#include "tests/support/graphs.h"

static void folds(const char *before, const char *after)
{
    TestGraph t;
    test_graph_open(&t, before);
    test_graph_pass(&t, mpri_pass_fold);
    test_graph_expect(&t, after);
    test_graph_close(&t);
}

static void constants_are_computed(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "const a: f32[3] = [1,2,3]\n"
          "const b: f32[] = 2\n"
          "c = Mul(a, b)\n"
          "d = Add(c, b)\n"
          "y = Add(x, d)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "const d: f32[3] = [4,6,8]\n"
          "y: f32[2,3] = Add(x, d)\n"
          "output y = y\n}\n");
}

static void shape_code_goes(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[2,6]\n"
          "const one: i64[1] = [3]\n"
          "const m: i64[1] = [-1]\n"
          "s = Shape(x) {start=0, end=1}\n"
          "r = Concat(s, one, m) {axis=0}\n"
          "v = Reshape(x, r)\n"
          "y = Transpose(v) {perm=[1,0,2]}\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,6]\n"
          "const r: i64[3] = [2,3,-1]\n"
          "v: f32[2,3,2] = Reshape(x, r)\n"
          "y: f32[3,2,2] = Transpose(v) {perm=[1,0,2]}\n"
          "output y = y\n}\n");
}

static void causal_mask_becomes_constant(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[1,3]\n"
          "const zero: i64[] = 0\n"
          "const one: i64[] = 1\n"
          "const ax: i64[1] = [1]\n"
          "const low: f32[] = -100\n"
          "const fzero: f32[] = 0\n"
          "s = Shape(x)\n"
          "n = Gather(s, one)\n"
          "r = Range(zero, n, one)\n"
          "c = Unsqueeze(r, ax)\n"
          "later = Greater(r, c)\n"
          "mask = Where(later, low, fzero)\n"
          "y = Add(x, mask)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f32[1,3]\n"
          "const mask: f32[3,3] = [0,-100,-100,0,0,-100,0,0,0]\n"
          "y: f32[3,3] = Add(x, mask)\n"
          "output y = y\n}\n");
}

static void parameters_stay(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[2,2]\n"
          "param w: f32[2,3] trained name \"w0\" init [1,2,3,4,5,6]\n"
          "param f: f32[3,2] = [1,2,3,4,5,6]\n"
          "const two: f32[] = 2\n"
          "ws = Mul(w, two)\n"
          "ft = Transpose(f)\n"
          "fs = Add(ft, ws)\n"
          "y = MatMul(x, fs)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,2]\n"
          "param w: f32[2,3] trained name \"w0\" init [1,2,3,4,5,6]\n"
          "param f: f32[3,2] = [1,2,3,4,5,6]\n"
          "const two: f32[] = 2\n"
          "ws: f32[2,3] = Mul(w, two)\n"
          "ft: f32[2,3] = Transpose(f)\n"
          "fs: f32[2,3] = Add(ft, ws)\n"
          "y: f32[2,3] = MatMul(x, fs)\n"
          "output y = y\n}\n");
}

static void identities_go(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "const one: f32[] = 1\n"
          "const ones: f32[3] = [1,1,1]\n"
          "const zero: f32[] = 0\n"
          "const s: i64[2] = [2,3]\n"
          "const from: i64[2] = [0,0]\n"
          "const cond: bool[3] = [1,1,1]\n"
          "a = Mul(x, one)\n"
          "b = Div(a, ones)\n"
          "c = Add(zero, b)\n"
          "d = Sub(c, zero)\n"
          "e = Expand(d, s)\n"
          "f = Slice(e, from, s)\n"
          "g = Transpose(f) {perm=[0,1]}\n"
          "h = Concat(g) {axis=0}\n"
          "i = Where(cond, h, zero)\n"
          "j = Reshape(i, s)\n"
          "k = Cast(j) {to=f32}\n"
          "y = Relu(k)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "y: f32[2,3] = Relu(x)\n"
          "output y = y\n}\n");
}

static void what_is_no_identity_stays(void **state)
{
    (void)state;
    static const char text[] = "graph \"g\" {\n"
                               "input x: f32[2,2]\n"
                               "input i: i64[2,2]\n"
                               "const a: i64[1] = [-1]\n"
                               "const b: i64[1] = [-9]\n"
                               "const k: i64[1] = [0]\n"
                               "const ones: f32[2,1,1] = [1,1]\n"
                               "const zero: f32[] = 0\n"
                               "r: f32[2,2] = Slice(x, a, b, k, a)\n"
                               "t: f32[2,2] = Transpose(r)\n"
                               "m: f32[2,2,2] = Mul(t, ones)\n"
                               "n: f32[2,2,2] = Sub(zero, m)\n"
                               "output n = n\n}\n";
    folds(text, "graph \"g\" {\n"
                "input x: f32[2,2]\n"
                "input i: i64[2,2]\n"
                "const a: i64[1] = [-1]\n"
                "const b: i64[1] = [-9]\n"
                "const k: i64[1] = [0]\n"
                "const ones: f32[2,1,1] = [1,1]\n"
                "const zero: f32[] = 0\n"
                "r: f32[2,2] = Slice(x, a, b, k, a)\n"
                "t: f32[2,2] = Transpose(r)\n"
                "m: f32[2,2,2] = Mul(t, ones)\n"
                "n: f32[2,2,2] = Sub(zero, m)\n"
                "output n = n\n}\n");
}

static void chains_merge(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f16[2,3,4]\n"
          "const s: i64[2] = [6,4]\n"
          "const k: i64[1] = [0]\n"
          "a = Reshape(x, s)\n"
          "b = Unsqueeze(a, k)\n"
          "c = Transpose(b) {perm=[2,0,1]}\n"
          "d = Transpose(c) {perm=[2,1,0]}\n"
          "e = Cast(d) {to=f32}\n"
          "f = Cast(e) {to=f64}\n"
          "y = Relu(f)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f16[2,3,4]\n"
          "const i64s_2: i64[3] = [6,1,4]\n"
          "Transpose/Reshape/Reshape: f16[6,1,4] = Reshape(x, i64s_2) @ "
          "\"Transpose/Reshape/Reshape\"\n"
          "Cast: f64[6,1,4] = Cast(Transpose/Reshape/Reshape) {to=f64} @ \"Cast\"\n"
          "y: f64[6,1,4] = Relu(Cast)\n"
          "output y = y\n}\n");
}

/* Narrow and back rounds: it stays. */
static void rounding_casts_stay(void **state)
{
    (void)state;
    static const char text[] = "graph \"g\" {\n"
                               "input  x: f32[2]\n"
                               "input  i: i64[2]\n"
                               "a: f16[2] = Cast(x) {to=f16}\n"
                               "b: f32[2] = Cast(a) {to=f32}\n"
                               "c: f32[2] = Cast(i) {to=f32}\n"
                               "d: f64[2] = Cast(c) {to=f64}\n"
                               "output b = b\n"
                               "output d = d\n}\n";
    folds(text, text);
}

static void expand_before_elementwise_goes(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "input m: f32[1,3]\n"
          "const s: i64[2] = [2,3]\n"
          "const s3: i64[3] = [4,2,3]\n"
          "e = Expand(m, s)\n"
          "y = Add(x, e)\n"
          "u = Expand(m, s3)\n"
          "z = Add(x, u)\n"
          "output y = y\n"
          "output z = z\n}\n",
          "graph \"g\" {\n"
          "input x: f32[2,3]\n"
          "input m: f32[1,3]\n"
          "const s3: i64[3] = [4,2,3]\n"
          "y: f32[2,3] = Add(x, m)\n"
          "u: f32[4,2,3] = Expand(m, s3)\n"
          "z: f32[4,2,3] = Add(x, u)\n"
          "output y = y\n"
          "output z = z\n}\n");
}

static void masks_are_computed_before_they_are_expanded(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input ids: i64[2,3]\n"
          "input x: f32[2,4,3,3]\n"
          "const k: i64[2] = [1,2]\n"
          "const all: bool[1,1,3,1] = [1,1,1]\n"
          "const low: f32[] = -9\n"
          "const zero: f32[] = 0\n"
          "b = Cast(ids) {to=bool}\n"
          "u = Unsqueeze(b, k)\n"
          "a = And(all, u)\n"
          "m = Where(a, zero, low)\n"
          "y = Add(x, m)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input ids: i64[2,3]\n"
          "input x: f32[2,4,3,3]\n"
          "const k: i64[2] = [1,2]\n"
          "const low: f32[] = -9\n"
          "const zero: f32[] = 0\n"
          "b: bool[2,3] = Cast(ids) {to=bool}\n"
          "u: bool[2,1,1,3] = Unsqueeze(b, k)\n"
          "Where: f32[2,1,1,3] = Where(u, zero, low) @ \"Where\"\n"
          "y: f32[2,4,3,3] = Add(x, Where)\n"
          "output y = y\n"
          "}\n");
}

static void slices_that_cut_all_become_a_split(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[3,2,4]\n"
          "const zero: i64[1] = [0]\n"
          "const two: i64[1] = [2]\n"
          "const far: i64[1] = [9223372036854775807]\n"
          "const minus: i64[1] = [-1]\n"
          "const i0: i64[] = 0\n"
          "const i1: i64[] = -2\n"
          "const i2: i64[] = 2\n"
          "a = Slice(x, two, far, minus) @ \"/second\"\n"
          "b = Slice(x, zero, two, minus) @ \"/first\"\n"
          "r = Sub(a, b)\n"
          "q = Gather(x, i0) @ \"/q\"\n"
          "k = Gather(x, i1) @ \"/k\"\n"
          "v = Gather(x, i2) @ \"/v\"\n"
          "s = Sum(q, k, v)\n"
          "output r = r\n"
          "output s = s\n}\n",
          "graph \"g\" {\n"
          "input x: f32[3,2,4]\n"
          "const i64s_3: i64[2] = [2,4]\n"
          "const i64s_7: i64[2] = [2,4]\n"
          "const i64s_11: i64[2] = [2,4]\n"
          "const i64s_12: i64[3] = [1,1,1]\n"
          "const i64s_13: i64[2] = [2,2]\n"
          "b: f32[3,2,2], a: f32[3,2,2] = Split(x, i64s_13) {axis=2} @ \"/first\"\n"
          "/q/Slice: f32[1,2,4], /k/Slice: f32[1,2,4], /v/Slice: f32[1,2,4] = Split(x, i64s_12) @ "
          "\"/q/Slice\"\n"
          "r: f32[3,2,2] = Sub(a, b)\n"
          "/q/Reshape: f32[2,4] = Reshape(/q/Slice, i64s_3) @ \"/q/Reshape\"\n"
          "/k/Reshape: f32[2,4] = Reshape(/k/Slice, i64s_7) @ \"/k/Reshape\"\n"
          "/v/Reshape: f32[2,4] = Reshape(/v/Slice, i64s_11) @ \"/v/Reshape\"\n"
          "s: f32[2,4] = Sum(/q/Reshape, /k/Reshape, /v/Reshape)\n"
          "output r = r\n"
          "output s = s\n"
          "}\n");
}

static void factors_on_query_and_key_become_one(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input q: f16[2,3,16]\n"
          "input k: f16[2,16,3]\n"
          "const c: f32[1] = [0.5]\n"
          "const d: f16[] = 0.25\n"
          "const three: f16[] = 3\n"
          "qf = Cast(q) {to=f32}\n"
          "qm = Mul(qf, c)\n"
          "ql = Cast(qm) {to=f16}\n"
          "km = Mul(d, k)\n"
          "s = MatMul(ql, km) @ \"/scores\"\n"
          "k3 = Mul(three, k)\n"
          "q3 = Mul(q, d)\n"
          "t = MatMul(q3, k3)\n"
          "output s = s\n"
          "output t = t\n}\n",
          "graph \"g\" {\n"
          "input q: f16[2,3,16]\n"
          "input k: f16[2,16,3]\n"
          "const d: f16[] = 0.25\n"
          "const three: f16[] = 3\n"
          "const f16:0.125: f16[] = 0.125\n"
          "/scores/MatMul: f16[2,3,3] = MatMul(q, k) @ \"/scores\"\n"
          "s: f16[2,3,3] = Mul(/scores/MatMul, f16:0.125) @ \"/scores\"\n"
          "k3: f16[2,16,3] = Mul(three, k)\n"
          "q3: f16[2,3,16] = Mul(q, d)\n"
          "t: f16[2,3,3] = MatMul(q3, k3)\n"
          "output s = s\n"
          "output t = t\n"
          "}\n");
}

/* A large mask stays as small as it was before it was expanded. */
static void large_expands_are_not_computed(void **state)
{
    (void)state;
    folds("graph \"g\" {\n"
          "input x: f32[128,8,4,4]\n"
          "const s: i64[4] = [128,1,4,4]\n"
          "const m: bool[4,4] = [1,0,0,0,1,1,0,0,1,1,1,0,1,1,1,1]\n"
          "const low: f32[] = -9\n"
          "zeros = ConstantOfShape(s)\n"
          "e = Expand(m, s)\n"
          "w = Where(e, zeros, low)\n"
          "y = Add(x, w)\n"
          "output y = y\n}\n",
          "graph \"g\" {\n"
          "input x: f32[128,8,4,4]\n"
          "const Where: f32[4,4] = [0,-9,-9,-9,0,0,-9,-9,0,0,0,-9,0,0,0,0]\n"
          "y: f32[128,8,4,4] = Add(x, Where)\n"
          "output y = y\n"
          "}\n");
}

static void bad_constant_index_is_named(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "const a: f32[3] = [1,2,3]\n"
                        "const i: i64[1] = [5]\n"
                        "y = Gather(a, i) @ \"/pick\"\n"
                        "output y = y\n}\n");
    test_graph_refuses(&t, mpri_pass_fold, MPR_E_INDEX, "/pick", "5");
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_are_computed),
        cmocka_unit_test(shape_code_goes),
        cmocka_unit_test(causal_mask_becomes_constant),
        cmocka_unit_test(parameters_stay),
        cmocka_unit_test(identities_go),
        cmocka_unit_test(what_is_no_identity_stays),
        cmocka_unit_test(chains_merge),
        cmocka_unit_test(rounding_casts_stay),
        cmocka_unit_test(expand_before_elementwise_goes),
        cmocka_unit_test(masks_are_computed_before_they_are_expanded),
        cmocka_unit_test(slices_that_cut_all_become_a_split),
        cmocka_unit_test(factors_on_query_and_key_become_one),
        cmocka_unit_test(large_expands_are_not_computed),
        cmocka_unit_test(bad_constant_index_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
