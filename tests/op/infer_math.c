/* Type and shape rules of the operators that compute: elementwise, matmul, reduce, softmax, norm, loss,
 * conv, dropout. */
#include "tests/op/infer_rows.h"

static void elementwise(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input a: f32[2,3]\n input b: f32[3]\n y = Add(a, b)", "f32[2,3]"},
        {"input a: f32[]\n input b: f32[]\n y = Mul(a, b)", "f32[]"},
        {"input a: f32[0,3]\n input b: f32[1]\n y = Sub(a, b)", "f32[0,3]"},
        {"input a: i32[2,1]\n input b: i32[1,3]\n y = Div(a, b)", "i32[2,3]"},
        {"input a: u8[4]\n input b: u8[]\n y = Max(a, b, a)", "u8[4]"},
        {"input a: f32[batch,1]\n input b: f32[seq]\n y = Add(a, b)", "f32[batch,seq]"},
        {"input a: f32[batch,seq]\n input b: f32[batch,seq]\n y = Add(a, b)", "f32[batch,seq]"},
        {"input a: f32[?]\n input b: f32[3]\n y = Add(a, b)", "f32[?]"},
        {"input a: f16[2]\n input b: i64[]\n y = Pow(a, b)", "f16[2]"},
        {"input a: i32[2]\n input b: f32[]\n y = Pow(a, b)", "i32[2]"},
        {"input a: f16[2]\n input b: f32[2]\n y = Add(a, b) {out_dtype=f32}", "f32[2]"},
        {"input a: f32[2]\n y = Relu(a) {out_dtype=bf16}", "bf16[2]"},
        {"input a: f32[2]\n y = Gelu(a) {out_dtype=f16, approximate=\"tanh\"}", "f16[2]"},
        {"input a: f16[2,3]\n y = Clip(a)", "f16[2,3]"},
        {"input a: f32[2,3]\n input m: f32[]\n y = Clip(a, _, m)", "f32[2,3]"},
        {"input a: f32[2]\n input b: f32[2]\n y = Mod(a, b) {fmod=1}", "f32[2]"},
        {"input c: bool[3,1]\n input a: i64[4]\n input b: i64[]\n y = Where(c, a, b)", "i64[3,4]"},
        {"input a: f32[2,3]\n input b: f32[3]\n y = LessOrEqual(a, b)", "bool[2,3]"},
        {"input a: bool[2]\n input b: bool[]\n y = Equal(a, b)", "bool[2]"},
        {"input a: bool[2]\n y = Not(a)", "bool[2]"},
        {"input a: bool[2]\n input b: bool[3,1]\n y = And(a, b)", "bool[3,2]"},
        {"input a: i64[2]\n y = Neg(a)", "i64[2]"},
        {"input a: i8[2]\n y = Relu(a)", "i8[2]"},
        {"input a: u16[2]\n y = Abs(a)", "u16[2]"},
        {"input a: f32[batch]\n y = Cast(a) {to=bool}", "bool[batch]"},
        {"input a: f16[2,2]\n input b: f16[2,2]\n y = ReluGrad(a, b)", "f16[2,2]"},
        {"input a: f16[2,2]\n input b: f32[2,2]\n y = GeluGrad(a, b) {out_dtype=f32}", "f32[2,2]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input a: f32[2,3]\n input b: f32[2]\n y = Add(a, b)", MPR_E_SHAPE, {"[2,3]", "[2]"}},
        {"input a: f32[2]\n input b: f16[2]\n y = Add(a, b)", MPR_E_TYPE, {"f32", "f16", "'b'"}},
        {"input a: f32[2]\n input b: i64[2]\n y = Mul(a, b)", MPR_E_TYPE, {"f32", "i64"}},
        {"input a: i64[2]\n input b: f32[2]\n y = Add(a, b) {out_dtype=f32}", MPR_E_TYPE, {"i64"}},
        {"input a: bool[2]\n input b: bool[2]\n y = Add(a, b)", MPR_E_TYPE, {"bool", "allowed"}},
        {"input a: i64[2]\n y = Exp(a)", MPR_E_TYPE, {"i64", "f32"}},
        {"input a: u8[2]\n y = Neg(a)", MPR_E_TYPE, {"u8"}},
        {"input a: f32[2]\n y = Not(a)", MPR_E_TYPE, {"f32", "bool"}},
        {"input a: f32[2]\n input b: f32[2]\n y = Or(a, b)", MPR_E_TYPE, {"f32", "bool"}},
        {"input a: f32[2]\n input b: f32[2]\n y = Mod(a, b)", MPR_E_TYPE, {"fmod"}},
        {"input c: f32[2]\n input a: f32[2]\n y = Where(c, a, a)", MPR_E_TYPE, {"f32", "bool"}},
        {"input a: f32[2]\n input m: f32[2]\n y = Clip(a, m)", MPR_E_SHAPE, {"bound", "[2]"}},
        {"input a: f32[2]\n input b: f32[3]\n y = TanhGrad(a, b)", MPR_E_SHAPE, {"[2]", "[3]"}},
    };
    INFER_FAULTS(faults);
}

static void matmul(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input a: f32[2,3]\n input b: f32[3,4]\n y = MatMul(a, b)", "f32[2,4]"},
        {"input a: f32[3]\n input b: f32[3]\n y = MatMul(a, b)", "f32[]"},
        {"input a: f32[3]\n input b: f32[3,4]\n y = MatMul(a, b)", "f32[4]"},
        {"input a: f32[3]\n input b: f32[5,3,4]\n y = MatMul(a, b)", "f32[5,4]"},
        {"input a: f32[2,3]\n input b: f32[3]\n y = MatMul(a, b)", "f32[2]"},
        {"input a: f32[6,2,3]\n input b: f32[3]\n y = MatMul(a, b)", "f32[6,2]"},
        {"input a: f32[b,h,s,3]\n input b: f32[3,4]\n y = MatMul(a, b)", "f32[b,h,s,4]"},
        {"input a: f32[5,1,2,3]\n input b: f32[7,3,4]\n y = MatMul(a, b)", "f32[5,7,2,4]"},
        {"input a: f32[0,3]\n input b: f32[3,4]\n y = MatMul(a, b)", "f32[0,4]"},
        {"input a: i64[2,3]\n input b: i64[3,4]\n y = MatMul(a, b)", "i64[2,4]"},
        {"input a: f32[?]\n input b: f32[3,4]\n y = MatMul(a, b)", "f32[?]"},
        {"input a: f32[n,k]\n input b: f32[3,4]\n y = MatMul(a, b)", "f32[n,4]"},
        {"input a: f32[3,2]\n input b: f32[4,3]\n input c: f32[4]\n y = Gemm(a, b, c) {transA=1, transB=1}", "f32[2,4]"},
        {"input a: f32[2,3]\n input b: f32[3,4]\n input c: f32[2,1]\n y = Gemm(a, b, c)", "f32[2,4]"},
        {"input a: f32[2,3]\n input b: f32[3,4]\n y = Gemm(a, b)", "f32[2,4]"},
        {"input a: f16[n,s,3]\n input w: f16[4,3]\n input b: f16[4]\n y = Linear(a, w, b) {trans_w=1}", "f16[n,s,4]"},
        {"input a: f32[3]\n input w: f32[3,4]\n y = Linear(a, w)", "f32[4]"},
        {"input a: f16[2,3]\n input b: f16[4,3]\n input c: f32[4]\n y = FusedMatMul(a, b, c) {trans_b=1, out_dtype=f32}",
         "f32[2,4]"},
        {"input a: f16[5,3,2]\n input b: f16[5,3,4]\n y, z = FusedMatMul(a, b) {trans_a=1, activation=\"relu\"}", "f16[5,2,4]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input a: f32[2,3]\n input b: f32[4,5]\n y = MatMul(a, b)", MPR_E_SHAPE, {"[2,3]", "[4,5]", "inner"}},
        {"input a: f32[2,2,3]\n input b: f32[3,3,4]\n y = MatMul(a, b)", MPR_E_SHAPE, {"2", "3"}},
        {"input a: f32[]\n input b: f32[3]\n y = MatMul(a, b)", MPR_E_SHAPE, {"'a'", "[]"}},
        {"input a: f32[2,3]\n input b: f16[3,4]\n y = MatMul(a, b)", MPR_E_TYPE, {"f32", "f16"}},
        {"input a: f32[2,3]\n input b: f32[3,4]\n input c: f32[3]\n y = Gemm(a, b, c)", MPR_E_SHAPE, {"[3]", "[2,4]"}},
        {"input a: f32[1,3]\n input b: f32[3,4]\n input c: f32[2,4]\n y = Gemm(a, b, c)", MPR_E_SHAPE, {"[2,4]", "[1,4]"}},
        {"input a: f32[1,2,3]\n input b: f32[3,4]\n y = Gemm(a, b)", MPR_E_SHAPE, {"[1,2,3]", "rank: 2"}},
        {"input a: f32[2,3]\n input w: f32[3,4]\n input b: f32[3]\n y = Linear(a, w, b)", MPR_E_SHAPE, {"bias", "[3]", "[4]"}},
        {"input a: f32[2,3]\n input b: f32[3,4]\n input c: f16[4]\n y = FusedMatMul(a, b, c)", MPR_E_TYPE, {"f16"}},
    };
    INFER_FAULTS(faults);
}

static void reduce(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f32[2,3,4]\n const a: i64[1] = [-1]\n y = ReduceMean(x, a)", "f32[2,3,1]"},
        {"input x: f32[2,3,4]\n const a: i64[2] = [0,-1]\n y = ReduceSum(x, a) {keepdims=0}", "f32[3]"},
        {"input x: f32[2,3]\n y = ReduceMax(x)", "f32[1,1]"},
        {"input x: f32[2,3]\n y = ReduceMax(x) {keepdims=0}", "f32[]"},
        {"input x: f32[2,3]\n const a: i64[0] = []\n y = ReduceSum(x, a) {keepdims=0}", "f32[]"},
        {"input x: f32[2,3]\n const a: i64[0] = []\n y = ReduceSum(x, a) {noop_with_empty_axes=1}", "f32[2,3]"},
        {"input x: f32[]\n y = ReduceSum(x)", "f32[]"},
        {"input x: f32[0,3]\n const a: i64[1] = [0]\n y = ReduceSum(x, a)", "f32[1,3]"},
        {"input x: f32[b,s]\n const a: i64[1] = [1]\n y = ReduceSum(x, a) {keepdims=0}", "f32[b]"},
        {"input x: bool[2,3]\n y = ReduceMin(x)", "bool[1,1]"},
        {"input x: f32[2,3]\n input a: i64[2]\n y = ReduceSum(x, a) {keepdims=0}", "f32[]"},
        {"input x: f32[?]\n y = ReduceSum(x)", "f32[?]"},
        {"input x: f16[2,3]\n y = ReduceSum(x) {keepdims=0, out_dtype=f32}", "f32[]"},
        {"input x: f16[5,2,3]\n y = SumTo(x) {dims=[1,3], out_dtype=f32}", "f32[1,3]"},
        {"input x: f16[5,2,3]\n y = SumTo(x) {dims=[]}", "f16[]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[2,3]\n const a: i64[1] = [2]\n y = ReduceSum(x, a)", MPR_E_SHAPE, {"2", "[-2, 2)"}},
        {"input x: f32[2,3]\n const a: i64[2] = [1,-1]\n y = ReduceSum(x, a)", MPR_E_SHAPE, {"twice"}},
        {"input x: bool[2,3]\n y = ReduceSum(x)", MPR_E_TYPE, {"bool"}},
        {"input x: f32[2,3]\n y = SumTo(x) {dims=[2]}", MPR_E_SHAPE, {"[2,3]", "2"}},
    };
    INFER_FAULTS(faults);
}

static void normalise(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f16[b,3]\n y = Softmax(x)", "f16[b,3]"},
        {"input x: f16[b,3]\n y = Softmax(x) {axis=0, out_dtype=f32}", "f32[b,3]"},
        {"input x: f32[]\n y = LogSoftmax(x)", "f32[]"},
        {"input a: f32[2,3]\n input b: f16[2,3]\n y = SoftmaxGrad(a, b) {out_dtype=f16}", "f16[2,3]"},
        {"input x: f32[b,s,8]\n input w: f32[8]\n y = LayerNormalization(x, w)", "f32[b,s,8]"},
        {"input x: f16[b,s,8]\n input w: f32[8]\n z, y, u = LayerNormalization(x, w, w)", "f32[b,s,1]"},
        {"input x: f64[2,3,4]\n input w: f64[3,4]\n z, _, y = LayerNormalization(x, w) {axis=1}", "f64[2,1,1]"},
        {"input x: f16[2,8]\n input w: f32[1,8]\n y = LayerNormalization(x, w)", "f16[2,8]"},
        {"input x: f32[2,8]\n input w: f32[8]\n y = LayerNormalization(x, w) {out_dtype=f16}", "f16[2,8]"},
        {"input d: f16[2,8]\n input x: f16[2,8]\n input w: f32[8]\n input m: f32[2,1]\n z, y, b = LayerNormGrad(d, x, w, m, m)",
         "f32[8]"},
        {"input x: f32[2,4,8]\n input w: f32[8]\n input b: f32[4,1]\n y = LayerNormalization(x, w, b) {axis=1}",
         "f32[2,4,8]"},
        {"input d: f16[2,4,8]\n input w: f32[8]\n input m: f32[2,1,1]\n z, y, b = LayerNormGrad(d, d, w, m, m) {axis=1}",
         "f32[4,8]"},
        {"input x: f16[2,8]\n y, m = Dropout(x)", "f16[2,8]"},
        {"input x: f16[2,8]\n const r: f32[] = 0.5\n const t: bool[] = 1\n z, y = Dropout(x, r, t)", "bool[2,8]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[2,3]\n y = Softmax(x) {axis=2}", MPR_E_SHAPE, {"2"}},
        {"input x: i64[2,3]\n y = Softmax(x)", MPR_E_TYPE, {"i64"}},
        {"input x: f32[2,8]\n input w: f32[4]\n y = LayerNormalization(x, w)", MPR_E_SHAPE, {"scale", "[4]", "[8]"}},
        {"input x: f32[2,8]\n input w: f16[8]\n y = LayerNormalization(x, w)", MPR_E_TYPE, {"f16", "f32"}},
        {"input x: f32[2,8]\n input w: f32[8]\n input b: f32[2]\n y = LayerNormalization(x, w, b)", MPR_E_SHAPE, {"bias"}},
        {"input x: f32[2,8]\n input r: f32[2]\n y = Dropout(x, r)", MPR_E_SHAPE, {"ratio"}},
    };
    INFER_FAULTS(faults);
}

static void loss(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f16[b,s,10]\n input t: i64[b,s]\n y, l, n = CrossEntropy(x, t)", "f32[]"},
        {"input x: f16[b,s,10]\n input t: i32[b,s]\n z, y, n = CrossEntropy(x, t)", "f32[b,s]"},
        {"input x: f64[4,10]\n input t: i64[4]\n z, l, y = CrossEntropy(x, t)", "f64[]"},
        {"input x: f32[4,10]\n input t: i64[4]\n y = CrossEntropy(x, t) {reduction=\"none\"}", "f32[4]"},
        {"input x: f32[4,10,5,6]\n input t: i64[4,5,6]\n input w: f32[10]\n y = SoftmaxCrossEntropyLoss(x, t, w)", "f32[]"},
        {"input x: f32[4,10,5]\n input t: i64[4,5]\n y = SoftmaxCrossEntropyLoss(x, t) {reduction=\"none\"}", "f32[4,5]"},
        {"input x: f32[4,10]\n input t: i64[4]\n z, y = SoftmaxCrossEntropyLoss(x, t)", "f32[4,10]"},
        {"input d: f32[]\n input x: f16[4,10]\n input t: i64[4]\n input l: f32[4]\n y = CrossEntropyGrad(d, x, t, l, d)",
         "f16[4,10]"},
        {"input p: f16[4,2]\n input t: f32[4,2]\n y, n = MseLoss(p, t)", "f32[]"},
        {"input d: f32[]\n input p: f16[4,2]\n input t: f32[4,2]\n y = MseLossGrad(d, p, t, d)", "f16[4,2]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[4,10]\n input t: i64[4,1]\n y = CrossEntropy(x, t)", MPR_E_SHAPE, {"[4,1]", "[4]", "labels"}},
        {"input x: f32[4,10]\n input t: f32[4]\n y = CrossEntropy(x, t)", MPR_E_TYPE, {"f32", "i64"}},
        {"input x: f32[4,10]\n input t: i64[4]\n input w: f32[9]\n y = SoftmaxCrossEntropyLoss(x, t, w)", MPR_E_SHAPE, {"[9]", "[10]"}},
        {"input p: f32[4,2]\n input t: f32[4]\n y, n = MseLoss(p, t)", MPR_E_SHAPE, {"[4]", "[4,2]"}},
    };
    INFER_FAULTS(faults);
}

static void conv(void **state)
{
    (void)state;
    static const InferRow rows[] = {
        {"input x: f32[n,3,32,32]\n input w: f32[8,3,3,3]\n input b: f32[8]\n y = Conv(x, w, b)", "f32[n,8,30,30]"},
        {"input x: f32[n,3,32,32]\n input w: f32[8,3,4,4]\n y = Conv(x, w) {strides=[4,4]}", "f32[n,8,8,8]"},
        {"input x: f32[1,4,7]\n input w: f32[8,2,3]\n y = Conv(x, w) {group=2, pads=[1,2], dilations=[2]}", "f32[1,8,6]"},
        {"input x: f32[1,1,7,8]\n input w: f32[1,1,3,3]\n y = Conv(x, w) {auto_pad=\"SAME_UPPER\", strides=[2,2]}", "f32[1,1,4,4]"},
        {"input x: f32[1,1,7,8]\n input w: f32[1,1,3,3]\n y = Conv(x, w) {auto_pad=\"VALID\", pads=[1,1,1,1]}", "f32[1,1,5,6]"},
        {"input x: f32[1,3,h,32]\n input w: f32[8,3,3,3]\n y = Conv(x, w) {pads=[1,1,1,1]}", "f32[1,8,h,32]"},
        {"input x: f32[?]\n input w: f32[8,3,3,3]\n y = Conv(x, w)", "f32[?]"},
        {"input d: f32[2,8,30,30]\n input w: f32[8,3,3,3]\n y = ConvGradInput(d, w) {dims=[2,3,32,32]}", "f32[2,3,32,32]"},
        {"input d: f32[2,8,30,30]\n input x: f32[2,3,32,32]\n y = ConvGradWeight(d, x) {dims=[8,3,3,3]}", "f32[8,3,3,3]"},
    };
    INFER_ROWS(rows);
    static const InferFault faults[] = {
        {"input x: f32[1,3,8,8]\n input w: f32[8,4,3,3]\n y = Conv(x, w)", MPR_E_SHAPE, {"channels", "3"}},
        {"input x: f32[1,3,2,8]\n input w: f32[8,3,3,3]\n y = Conv(x, w)", MPR_E_SHAPE, {"kernel", "larger"}},
        {"input x: f32[1,3,8,8]\n input w: f32[8,3,3,3]\n y = Conv(x, w) {pads=[1,1]}", MPR_E_SHAPE, {"pads", "2"}},
        {"input x: f32[1,3,8,8]\n input w: f32[8,3,3,3]\n y = Conv(x, w) {strides=[0,1]}", MPR_E_SHAPE, {"strides", "0"}},
        {"input x: f32[1,3,8,8]\n input w: f32[8,3,3,3]\n input b: f32[4]\n y = Conv(x, w, b)", MPR_E_SHAPE, {"bias", "[4]", "[8]"}},
    };
    INFER_FAULTS(faults);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise), cmocka_unit_test(matmul), cmocka_unit_test(reduce),
        cmocka_unit_test(normalise), cmocka_unit_test(loss), cmocka_unit_test(conv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
