/* Type and shape rules of the operators that move, look up and make tensors, and the contents of small
 * integer tensors that exporters compute shapes with. */
#include "tests/op/infer_rows.h"

static void reshape(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f32[2,3,4]\n const s: i64[2] = [6,-1]\n y = Reshape(x, s)", "f32[6,4]"},
        {"input x: f32[2,3,4]\n const s: i64[3] = [0,-1,2]\n y = Reshape(x, s)", "f32[2,6,2]"},
        {"input x: f32[2,3]\n const s: i64[0] = []\n const r: i64[1] = [1]\n z = ReduceSum(x) {keepdims=0}\n y = Reshape(z, s)", "f32[]"},
        {"input x: f32[0,3]\n const s: i64[2] = [3,0]\n y = Reshape(x, s) {allowzero=1}", "f32[3,0]"},
        {"input x: f32[0,4,8]\n const s: i64[2] = [0,-1]\n y = Reshape(x, s)", "f32[0,32]"},
        {"input x: f32[b,s,12]\n const s: i64[4] = [0,0,3,4]\n y = Reshape(x, s)", "f32[b,s,3,4]"},
        {"input x: f32[b,s,12]\n const s: i64[4] = [0,0,3,-1]\n y = Reshape(x, s)", "f32[b,s,3,4]"},
        {"input x: f32[b,s,12]\n const s: i64[2] = [-1,12]\n y = Reshape(x, s)", "f32[b*s,12]"},
        {"input x: f32[b,s,12]\n const s: i64[1] = [-1]\n y = Reshape(x, s)", "f32[12*b*s]"},
        {"input x: f32[?]\n const s: i64[2] = [3,4]\n y = Reshape(x, s)", "f32[3,4]"},
        {"input x: f32[2,1,3,1]\n const a: i64[2] = [1,-1]\n y = Squeeze(x, a)", "f32[2,3]"},
        {"input x: f32[2,1,3,1]\n y = Squeeze(x)", "f32[2,3]"},
        {"input x: f32[1]\n y = Squeeze(x)", "f32[]"},
        {"input x: f32[b,1]\n y = Squeeze(x)", "f32[?]"},
        {"input x: f32[b,1]\n const a: i64[1] = [0]\n y = Squeeze(x, a)", "f32[1]"},
        {"input x: f32[2,3]\n const a: i64[2] = [-1,0]\n y = Unsqueeze(x, a)", "f32[1,2,3,1]"},
        {"input x: f32[]\n const a: i64[1] = [0]\n y = Unsqueeze(x, a)", "f32[1]"},
        {"input x: f32[2,s,4]\n y = Flatten(x)", "f32[2,4*s]"},
        {"input x: f32[2,3,4]\n y = Flatten(x) {axis=0}", "f32[1,24]"},
        {"input x: f32[2,3,4]\n y = Flatten(x) {axis=3}", "f32[24,1]"},
        {"input x: f32[2,3,4]\n y = Flatten(x) {axis=-1}", "f32[6,4]"},
        {"input x: f32[]\n y = Flatten(x) {axis=0}", "f32[1,1]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[2,3]\n const s: i64[2] = [4,-1]\n y = Reshape(x, s)", MPR_E_SHAPE, {"[2,3]", "[4,-1]", "6"}},
        {"input x: f32[2,3]\n const s: i64[1] = [5]\n y = Reshape(x, s)", MPR_E_SHAPE, {"[2,3]", "[5]"}},
        {"input x: f32[2,3]\n const s: i64[2] = [-1,-1]\n y = Reshape(x, s)", MPR_E_SHAPE, {"second -1"}},
        {"input x: f32[2,3]\n const s: i64[2] = [-2,3]\n y = Reshape(x, s)", MPR_E_SHAPE, {"-2"}},
        {"input x: f32[2]\n const s: i64[2] = [2,0]\n y = Reshape(x, s)", MPR_E_SHAPE, {"no dim to copy", "1"}},
        {"input x: f32[0,3]\n const s: i64[2] = [0,-1]\n y = Reshape(x, s) {allowzero=1}", MPR_E_SHAPE, {"[0,3]"}},
        {"input x: f32[2]\n const s: i32[1] = [2]\n y = Reshape(x, s)", MPR_E_TYPE, {"i32", "i64"}},
        {"input x: f32[2,3]\n const a: i64[1] = [0]\n y = Squeeze(x, a)", MPR_E_SHAPE, {"2", "[2,3]"}},
        {"input x: f32[2,3]\n const a: i64[1] = [4]\n y = Unsqueeze(x, a)", MPR_E_SHAPE, {"4"}},
        {"input x: f32[2,3]\n const a: i64[2] = [0,0]\n y = Unsqueeze(x, a)", MPR_E_SHAPE, {"twice"}},
        {"input x: f32[2,3]\n y = Flatten(x) {axis=3}", MPR_E_SHAPE, {"3", "[2,3]"}},
    };
    INFER_FAULTS(faults);
}

static void move(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f32[2,b,4]\n y = Transpose(x)", "f32[4,b,2]"},
        {"input x: f32[2,b,4]\n y = Transpose(x) {perm=[1,0,2]}", "f32[b,2,4]"},
        {"input x: string[2,3]\n y = Transpose(x)", "string[3,2]"},
        {"input x: f32[2,b]\n input z: f32[2,3]\n y = Concat(x, z, x) {axis=-1}", "f32[2,2*b+3]"},
        {"input x: f32[n,2]\n input z: f32[4,3]\n y = Concat(x, z) {axis=1}", "f32[4,5]"},
        {"input x: f32[2,1]\n const s: i64[3] = [5,1,3]\n y = Expand(x, s)", "f32[5,2,3]"},
        {"input x: f32[b,3]\n const s: i64[2] = [1,1]\n y = Expand(x, s)", "f32[b,3]"},
        {"input x: f32[]\n input s: i64[2]\n y = Cast(x) {to=f16}", "f16[]"},
        {"input x: f32[6,4]\n z, y = Split(x)", "f32[3,4]"},
        {"input x: f32[7,4]\n z, u, y = Split(x) {num_outputs=3}", "f32[1,4]"},
        {"input x: f32[3*h,4]\n z, u, y = Split(x)", "f32[h,4]"},
        {"input x: f32[7,4]\n const s: i64[2] = [1,3]\n z, y = Split(x, s) {axis=-1}", "f32[7,3]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[2,3]\n y = Transpose(x) {perm=[0,0]}", MPR_E_SHAPE, {"permutation", "[2,3]"}},
        {"input x: f32[2,3]\n y = Transpose(x) {perm=[0]}", MPR_E_SHAPE, {"perm", "[2,3]"}},
        {"input x: f32[2,3]\n input z: f32[4,3]\n y = Concat(x, z) {axis=1}", MPR_E_SHAPE, {"[2,3]", "[4,3]"}},
        {"input x: f32[2,3]\n input z: f32[4]\n y = Concat(x, z) {axis=0}", MPR_E_SHAPE, {"[4]"}},
        {"input x: f32[2,3]\n input z: f16[2,3]\n y = Concat(x, z) {axis=0}", MPR_E_TYPE, {"f32", "f16"}},
        {"input x: f32[2,3]\n const s: i64[1] = [4]\n y = Expand(x, s)", MPR_E_SHAPE, {"[2,3]", "[4]"}},
        {"input x: f32[2,3]\n const s: i64[2] = [2,-1]\n y = Expand(x, s)", MPR_E_SHAPE, {"-1"}},
        {"input x: f32[7,4]\n const s: i64[2] = [1,3]\n z, y = Split(x, s)", MPR_E_SHAPE, {"4", "[7,4]"}},
        {"input x: f32[5,4]\n z, u, v, y = Split(x) {num_outputs=4}", MPR_E_SHAPE, {"6", "[5,4]"}},
        {"input x: f32[7,4]\n const s: i64[3] = [1,3,3]\n z, y = Split(x, s)", MPR_E_SHAPE, {"3"}},
    };
    INFER_FAULTS(faults);
}

static void slice(void **state)
{
    (void)state;
#define SLICE(X, S, E, A, K) \
    "input x: f32[" X "]\n const s: i64[1] = [" S "]\n const e: i64[1] = [" E "]\n const a: i64[1] = [" A "]\n" \
    "const k: i64[1] = [" K "]\n y = Slice(x, s, e, a, k)"
    static const InferRow rows[] = {
        {SLICE("10,4", "2", "5", "0", "1"), "f32[3,4]"},
        {SLICE("10,4", "-3", "9223372036854775807", "0", "1"), "f32[3,4]"},
        {SLICE("10,4", "0", "2147483647", "0", "3"), "f32[4,4]"},
        {SLICE("10,4", "9", "-11", "0", "-3"), "f32[4,4]"},
        {SLICE("10,4", "-1", "-9223372036854775808", "0", "-1"), "f32[10,4]"},
        {SLICE("10,4", "9223372036854775807", "0", "0", "-2"), "f32[5,4]"},
        {SLICE("10,4", "8", "3", "0", "1"), "f32[0,4]"},
        {SLICE("10,4", "20", "30", "0", "1"), "f32[0,4]"},
        {SLICE("10,4", "1", "3", "-1", "1"), "f32[10,2]"},
        {SLICE("0,4", "0", "3", "0", "1"), "f32[0,4]"},
        {SLICE("0,4", "-1", "-5", "0", "-1"), "f32[0,4]"},
        {SLICE("b,s", "0", "-1", "1", "1"), "f32[b,s-1]"},
        {SLICE("b,s", "1", "9223372036854775807", "1", "1"), "f32[b,s-1]"},
        {SLICE("b,s", "0", "9223372036854775807", "1", "1"), "f32[b,s]"},
        {SLICE("b,s", "-1", "9223372036854775807", "1", "1"), "f32[b,min(s,1)]"},
        {SLICE("b,s", "-9223372036854775808", "9223372036854775807", "1", "1"), "f32[b,s]"},
        {SLICE("b,s", "0", "5", "1", "1"), "f32[b,min(s,5)]"},
        {"input x: f32[10,4]\n const s: i32[2] = [1,1]\n const e: i32[2] = [9,4]\n y = Slice(x, s, e)", "f32[8,3]"},
        {"input x: f32[512,4]\n input t: i64[b,n]\n z = Shape(t) {start=1}\n const s: i64[1] = [0]\n y = Slice(x, s, z)",
         "f32[min(n,512),4]"},
        {"input d: f32[3,4]\n y = SliceGrad(d) {dims=[10,4], starts=[9], axes=[0], steps=[-3]}", "f32[10,4]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {SLICE("10,4", "0", "5", "0", "0"), MPR_E_SHAPE, {"step", "0"}},
        {SLICE("10,4", "0", "5", "2", "1"), MPR_E_SHAPE, {"axis 2"}},
        {"input x: f32[4]\n const s: i64[2] = [0,0]\n const e: i64[2] = [1,1]\n y = Slice(x, s, e)", MPR_E_SHAPE, {"2", "[4]"}},
        {"input x: f32[4]\n const s: f32[1] = [0]\n y = Slice(x, s, s)", MPR_E_TYPE, {"f32", "i64"}},
        {"input d: f32[5,4]\n y = SliceGrad(d) {dims=[10,4], starts=[9], axes=[0], steps=[-3]}", MPR_E_SHAPE, {"outside", "-3"}},
    };
    INFER_FAULTS(faults);
}

static void lookup(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f32[v,8]\n input i: i64[b,s]\n y = Gather(x, i)", "f32[b,s,8]"},
        {"input x: f32[2,3,4]\n input i: i32[]\n y = Gather(x, i) {axis=-2}", "f32[2,4]"},
        {"input x: f32[2,3,4]\n input i: i64[0]\n y = Gather(x, i) {axis=2}", "f32[2,3,0]"},
        {"input x: f32[n,v]\n input i: i64[n,1]\n y = GatherElements(x, i) {axis=1}", "f32[n,1]"},
        {"input x: f32[2,3,4]\n input i: i64[5,2]\n y = GatherND(x, i)", "f32[5,4]"},
        {"input x: f32[2,3,4]\n input i: i64[2,5,1]\n y = GatherND(x, i) {batch_dims=1}", "f32[2,5,4]"},
        {"input d: f16[b,s,8]\n input i: i64[b,s]\n y = GatherGrad(d, i) {dims=[100,8]}", "f32[100,8]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[2,3]\n input i: f32[2]\n y = Gather(x, i)", MPR_E_TYPE, {"f32", "i64"}},
        {"input x: f32[2,3]\n input i: i64[2]\n y = Gather(x, i) {axis=2}", MPR_E_SHAPE, {"axis 2"}},
        {"input x: f32[]\n input i: i64[2]\n y = Gather(x, i)", MPR_E_SHAPE, {"[]"}},
        {"input x: f32[2,3]\n input i: i64[2]\n y = GatherElements(x, i)", MPR_E_SHAPE, {"[2]", "rank: 2"}},
        {"input x: f32[2,3]\n input i: i64[5,3]\n y = GatherND(x, i)", MPR_E_SHAPE, {"3", "[2,3]"}},
        {"input x: f32[2,3]\n input i: i64[3,1]\n y = GatherND(x, i) {batch_dims=1}", MPR_E_SHAPE, {"batch", "[3,1]"}},
    };
    INFER_FAULTS(faults);
}

static void make(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f32[2,b]\n y = Shape(x)", "i64[2] = 2,b"},
        {"input x: f32[2,b,4]\n y = Shape(x) {start=1}", "i64[2] = b,4"},
        {"input x: f32[2,b,4]\n y = Shape(x) {start=-9, end=-1}", "i64[2] = 2,b"},
        {"input x: f32[2,b,4]\n y = Shape(x) {start=2, end=1}", "i64[0]"},
        {"input x: f32[]\n y = Shape(x)", "i64[0]"},
        {"input x: f32[2,b]\n y = Size(x)", "i64[] = 2*b"},
        {"const s: i64[2] = [2,3]\n y = ConstantOfShape(s)", "f32[2,3]"},
        {"const s: i64[1] = [3]\n y = ConstantOfShape(s) {value=i64[1] [7]}", "i64[3] = 7,7,7"},
        {"const s: i64[0] = []\n y = ConstantOfShape(s) {value=bool[1] [1]}", "bool[] = 1"},
        {"input x: f32[b,4]\n s = Shape(x)\n y = ConstantOfShape(s)", "f32[b,4]"},
        {"input s: i64[2]\n z = ConstantOfShape(s)\n y = Shape(z) {start=2}", "i64[0]"},
        {"y = Constant() {value=i64[2] [3,-1]}", "i64[2] = 3,-1"},
        {"y = Constant() {value=f32[2,2] [1,2,3,4]}", "f32[2,2]"},
        {"const a: i64[] = 1\n const b: i64[] = 10\n const d: i64[] = 3\n y = Range(a, b, d)", "i64[3] = 1,4,7"},
        {"const a: i64[] = 5\n const b: i64[] = 0\n const d: i64[] = -2\n y = Range(a, b, d)", "i64[3] = 5,3,1"},
        {"const a: i64[] = 5\n const b: i64[] = 0\n const d: i64[] = 2\n y = Range(a, b, d)", "i64[0]"},
        {"const a: i64[] = -6917529027641081856\n const b: i64[] = 6917529027641081856\n const d: i64[] = 4611686018427387904\n "
         "y = Range(a, b, d)", "i64[3] = -6917529027641081856,-2305843009213693952,2305843009213693952"},
        {"const a: f32[] = 0\n const b: f32[] = 1\n const d: f32[] = 0.25\n y = Range(a, b, d)", "f32[4]"},
        {"input x: f32[b,s]\n const i: i64[] = 1\n n = Shape(x)\n l = Gather(n, i)\n const z: i64[] = 0\n const o: i64[] = 1\n"
         "y = Range(z, l, o)", "i64[s]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"const s: i64[1] = [-3]\n y = ConstantOfShape(s)", MPR_E_SHAPE, {"-3"}},
        {"const s: i64[1] = [3]\n y = ConstantOfShape(s) {value=i64[2] [7,8]}", MPR_E_SHAPE, {"2"}},
        {"input x: f32[4611686018427387904,n,2]\n y = Relu(x)", MPR_E_LIMIT, {"'x'", "[4611686018427387904,n,2]", "2^56"}},
        {"input x: f32[2,2]\n const r: i64[2] = [36028797018963968,1]\n y = Tile(x, r)", MPR_E_LIMIT, {"'y'", "2^56"}},
        {"input x: f32[2,0]\n const r: i64[2] = [1,4611686018427387904]\n y = Tile(x, r)", MPR_E_SHAPE, {"repeats", "2^56"}},
        {"input x: f32[2,-3]\n y = Relu(x)", MPR_E_SHAPE, {"'x'", "[2,-3]", "0 or more"}},
        {"const a: i64[] = 1\n const d: i64[] = 0\n y = Range(a, a, d)", MPR_E_SHAPE, {"step"}},
        {"const a: i64[] = 1\n const d: i32[] = 1\n y = Range(a, a, d)", MPR_E_TYPE, {"i64", "i32"}},
        {"const a: i64[2] = [1,2]\n y = Range(a, a, a)", MPR_E_SHAPE, {"[2]"}},
    };
    INFER_FAULTS(faults);
}

/* Chains as exporters write them. */
static void contents(void **state)
{
    (void)state;
#define DIMS "input x: f32[b,s,12]\n n = Shape(x)\n"
    static const InferRow rows[] = {
        {DIMS "const i: i64[] = 1\n y = Gather(n, i)", "i64[] = s"},
        {DIMS "const i: i64[2] = [-1,0]\n y = Gather(n, i)", "i64[2] = 12,b"},
        {DIMS "const f: i64[1] = [-2]\n const e: i64[1] = [3]\n y = Slice(n, f, e)", "i64[2] = s,12"},
        {DIMS "const f: i64[1] = [2]\n const e: i64[1] = [-9]\n const k: i64[1] = [-1]\n const a: i64[1] = [0]\n"
              "y = Slice(n, f, e, a, k)", "i64[3] = 12,s,b"},
        {DIMS "p, q = Split(n) {num_outputs=2}\n y = Concat(q, p) {axis=0}", "i64[3] = 12,b,s"},
        {DIMS "const i: i64[1] = [0]\n g = Gather(n, i)\n const m: i64[2] = [-1,8]\n y = Concat(g, m) {axis=0}",
         "i64[3] = b,-1,8"},
        {DIMS "const two: i64[] = 2\n y = Mul(n, two)", "i64[3] = 2*b,2*s,24"},
        {DIMS "const two: i64[] = 2\n m = Mul(n, two)\n y = Div(m, two)", "i64[3] = b,s,12"},
        {DIMS "const k: i64[1] = [5]\n y = Mod(n, k)", "i64[3] = (b%5),(s%5),2"},
        {DIMS "const k: i64[1] = [7]\n m = Min(n, k)\n const j: i64[3] = [1,2,3]\n y = Max(m, j)",
         "i64[3] = max(min(b,7),1),max(min(s,7),2),7"},
        {DIMS "m = Neg(n)\n y = Sub(n, m)", "i64[3] = 2*b,2*s,24"},
        {"const a: i64[2] = [-7,7]\n const b: i64[] = 2\n y = Div(a, b)", "i64[2] = -3,3"},
        {"const a: i64[2] = [-7,7]\n const b: i64[2] = [3,-3]\n y = Mod(a, b)", "i64[2] = 2,-2"},
        {"const a: i64[2,1] = [1,2]\n const b: i64[2] = [10,20]\n y = Add(a, b)", "i64[2,2] = 11,21,12,22"},
        {DIMS "y = ReduceProd(n) {keepdims=0}", "i64[] = 12*b*s"},
        {DIMS "y = ReduceProd(n)", "i64[1] = 12*b*s"},
        {DIMS "c = Cast(n) {to=i32}\n y = Cast(c) {to=i64}", "i64[3] = b,s,12"},
        {"const a: i64[3] = [0,5,-1]\n c = Cast(a) {to=bool}\n d = Not(c)\n y = Cast(d) {to=i64}", "i64[3] = 1,0,0"},
        {DIMS "const k: i64[1] = [1]\n u = Unsqueeze(n, k)\n const z: i64[1] = [-1]\n v = Reshape(u, z)\n w = Identity(v)\n"
              "y = Squeeze(w)", "i64[3] = b,s,12"},
        {DIMS "const t: i64[3] = [-1,4,12]\n const m: i64[] = -1\n e = Equal(t, m)\n y = Where(e, n, t)", "i64[3] = b,4,12"},
        {DIMS "const m: i64[] = -1\n e = Equal(n, m)\n const o: i64[1] = [1]\n f = ConstantOfShape(o) {value=i64[1] [1]}\n"
              "y = Where(e, f, n)", "i64[3] = b,s,12"},
        {DIMS "const m: i64[] = 0\n e = Less(m, n)\n c = Cast(e) {to=i64}\n const k: i64[] = 2\n"
              "y = Gather(c, k)", "i64[] = 1"},
        {DIMS "const i: i64[1] = [0]\n g = Gather(n, i)\n const t: i64[1] = [3]\n y = Expand(g, t)", "i64[3] = b,b,b"},
        {DIMS "const i: i64[1] = [1]\n g = Gather(n, i)\n const h: i64[3] = [0,-1,4]\n r = Reshape(x, h)\n q = Shape(r)\n"
              "const k: i64[] = 1\n y = Gather(q, k)", "i64[] = 3*s"},
        {DIMS "const i: i64[1] = [0]\n g = Gather(n, i)\n const j: i64[1] = [1]\n f = Gather(n, j)\n const h: i64[2] = [3,4]\n"
              "t = Concat(g, f, h) {axis=0}\n r = Reshape(x, t)\n z = Transpose(r) {perm=[0,2,1,3]}\n y = Shape(z)",
         "i64[4] = b,3,s,4"},
        {"input u: i64[1]\n const h: i64[1] = [4]\n t = Concat(u, h) {axis=0}\n z = ConstantOfShape(t)\n"
         "const k: i64[1] = [1]\n q = Shape(z)\n y = Gather(q, k)", "i64[1] = 4"},
    };
    INFER_ROWS(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reshape), cmocka_unit_test(move), cmocka_unit_test(slice),
        cmocka_unit_test(lookup), cmocka_unit_test(make), cmocka_unit_test(contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
