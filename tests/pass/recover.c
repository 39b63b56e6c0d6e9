/* Recovery of Linear, LayerNormalization, Gelu, x * gate(x) and Softmax: every form that exporters write, what
 * must not be recovered, and that both sides compute the same. */
#include <stdio.h>
#include <string.h>
#include "tests/support/evaluate.h"

typedef struct Case {
    const char *name, *text;
    const char *ops;  /* operators that are left, in order */
    double tolerance; /* of the comparison of both sides; 0: not compared */
} Case;

static void list_ops(const Graph *g, char *text, size_t size)
{
    size_t len = 0;
    text[0] = 0;
    for (const Node *n = g->first; n; n = n->next) {
        size_t left = size - len;
        int k = snprintf(text + len, left, "%s%s", len ? " " : "", n->op->name);
        assert_true(k > 0 && (size_t)k < left);
        len += (size_t)k;
    }
}

static void check(const Case *c)
{
    TestGraph before, after;
    char ops[1024];
    test_graph_open(&before, c->text);
    test_graph_open(&after, c->text);
    (void)test_graph_pass(&after, mpri_pass_simplify);
    const char *output = after.g->outputs[0].value->name;
    bool changed = test_graph_pass(&after, mpri_pass_recover);
    list_ops(after.g, ops, sizeof ops);
    if (strcmp(ops, c->ops)) fail_msg("%s: found '%s', expected '%s'", c->name, ops, c->ops);
    assert_string_equal(after.g->outputs[0].value->name, output);
    assert_false(test_graph_pass(&after, mpri_pass_recover));
    if (changed && c->tolerance > 0) {
        Tensor a = test_evaluate(&after, 0), b = test_evaluate(&before, 0);
        double d = test_difference(&a, &b);
        if (!(d <= c->tolerance)) fail_msg("%s: outputs differ by %g", c->name, d);
    }
    test_graph_close(&before);
    test_graph_close(&after);
}

#define RUN(cases) \
    for (size_t i_ = 0; i_ < sizeof(cases) / sizeof *(cases); i_++) check(&(cases)[i_])

/* ---- Linear ---- */

#define LINEAR_HEAD \
    "graph \"g\" {\n" \
    "input  x: f32[2,3,4]\n" \
    "param  w: f32[4,5] trained\n" \
    "param  wt: f32[5,4] trained\n" \
    "param  b: f32[5] trained\n" \
    "param  b1: f32[1] trained\n" \
    "param  bb: f32[3,5] trained\n"
#define TAIL "output out = y\n}\n"

static const Case linear_cases[] = {
    {"bias right", LINEAR_HEAD "h = MatMul(x, w)\ny = Add(h, b)\n" TAIL, "Linear", 1e-6},
    {"bias left", LINEAR_HEAD "h = MatMul(x, w)\ny = Add(b, h)\n" TAIL, "Linear", 1e-6},
    {"weight transposed first",
     LINEAR_HEAD "t = Transpose(wt) {perm=[1,0]}\nh = MatMul(x, t)\ny = Add(h, b)\n" TAIL, "Linear",
     1e-6},
    {"transpose with a second user",
     LINEAR_HEAD
     "t = Transpose(wt)\nh = MatMul(x, t)\ny = Add(h, b)\noutput t2 = t\noutput out = y\n}\n",
     "Transpose Linear", 0},
    {"no bias", LINEAR_HEAD "y = MatMul(x, w)\n" TAIL, "MatMul", 0},
    {"bias broadcast from one element", LINEAR_HEAD "h = MatMul(x, w)\ny = Add(h, b1)\n" TAIL,
     "MatMul Add", 0},
    {"bias of rank 2", LINEAR_HEAD "h = MatMul(x, w)\ny = Add(h, bb)\n" TAIL, "MatMul Add", 0},
    {"bias that is computed", LINEAR_HEAD "e = Exp(b)\nh = MatMul(x, w)\ny = Add(h, e)\n" TAIL,
     "Exp MatMul Add", 0},
    {"product used twice", LINEAR_HEAD "h = MatMul(x, w)\na = Add(h, b)\ny = Mul(a, h)\n" TAIL,
     "MatMul Add Mul", 0},
    {"product is an output",
     LINEAR_HEAD "h = MatMul(x, w)\ny = Add(h, b)\noutput out = y\noutput h2 = h\n}\n",
     "MatMul Add", 0},
    {"16-bit with cast bias",
     LINEAR_HEAD "xl = Cast(x) {to=f16}\nwl = Cast(w) {to=f16}\nbl = Cast(b) {to=f16}\n"
                 "h = MatMul(xl, wl)\ny = Add(h, bl)\n" TAIL,
     "Cast Cast Cast Linear", 2e-3},
};

static const Case gemm_cases[] = {
    {"transB",
     "graph \"g\" {\ninput x: f32[2,4]\nparam w: f32[5,4] trained\nparam b: f32[5] trained\n"
     "y = Gemm(x, w, b) {transB=1}\n" TAIL,
     "Linear", 1e-6},
    {"no bias",
     "graph \"g\" {\ninput x: f32[2,4]\nparam w: f32[4,5] trained\ny = Gemm(x, w)\n" TAIL, "Linear",
     1e-6},
    {"alpha",
     "graph \"g\" {\ninput x: f32[2,4]\nparam w: f32[4,5] trained\ny = Gemm(x, w) "
     "{alpha=0.5}\n" TAIL,
     "Gemm", 0},
    {"transA",
     "graph \"g\" {\ninput x: f32[4,2]\nparam w: f32[4,5] trained\ny = Gemm(x, w) "
     "{transA=1}\n" TAIL,
     "Gemm", 0},
    {"bias of rank 2",
     "graph \"g\" {\ninput x: f32[2,4]\nparam w: f32[4,5] trained\nparam c: f32[2,5] trained\n"
     "y = Gemm(x, w, c)\n" TAIL,
     "Gemm", 0},
};

static void test_linear(void **state)
{
    (void)state;
    RUN(linear_cases);
    RUN(gemm_cases);
}

/* ---- LayerNormalization ---- */

#define NORM_HEAD \
    "graph \"g\" {\n" \
    "input x: f32[2,3,8]\n" \
    "input xl: f16[2,3,8]\n" \
    "param s: f32[8] trained\n" \
    "param b: f32[8] trained\n" \
    "const last: i64[1] = [-1]\n" \
    "const mid: i64[1] = [1]\n" \
    "const two: f32[] = 2\n" \
    "const twol: f16[] = 2\n" \
    "const eps: f32[] = 1e-05\n" \
    "const epsl: f16[] = 0\n"

#define CORE \
    "u = ReduceMean(x, last)\nd = Sub(x, u)\nq = Pow(d, two)\nv = ReduceMean(q, last)\n" \
    "ve = Add(v, eps)\nr = Sqrt(ve)\n"

static const Case norm_cases[] = {
    {"torch", NORM_HEAD CORE "n = Div(d, r)\nm = Mul(n, s)\ny = Add(m, b)\n" TAIL,
     "LayerNormalization", 1e-5},
    {"scale and bias left, two differences, eps left",
     NORM_HEAD
     "u = ReduceMean(x, last)\nd = Sub(x, u)\nq = Pow(d, two)\nv = ReduceMean(q, last)\nd2 = "
     "Sub(x, u)\n"
     "ve = Add(eps, v)\nr = Sqrt(ve)\nn = Div(d2, r)\nm = Mul(s, n)\ny = Add(b, m)\n" TAIL,
     "LayerNormalization", 1e-5},
    {"square by Mul, quotient by Reciprocal",
     NORM_HEAD "u = ReduceMean(x, last)\nd = Sub(x, u)\nq = Mul(d, d)\nv = ReduceMean(q, last)\n"
               "ve = Add(v, eps)\nr = Sqrt(ve)\ni = Reciprocal(r)\nn = Mul(d, i)\nm = Mul(n, s)\ny "
               "= Add(m, b)\n" TAIL,
     "LayerNormalization", 1e-5},
    {"no scale, no bias", NORM_HEAD CORE "y = Div(d, r)\n" TAIL, "LayerNormalization", 1e-5},
    {"no bias", NORM_HEAD CORE "n = Div(d, r)\ny = Mul(n, s)\n" TAIL, "LayerNormalization", 1e-5},
    {"no scale", NORM_HEAD CORE "n = Div(d, r)\ny = Add(n, b)\n" TAIL, "LayerNormalization", 1e-5},
    {"casts around, f16 in the middle as Megatron exports",
     NORM_HEAD
     "xw = Cast(xl) {to=f32}\nu = ReduceMean(xw, last)\nd = Sub(xw, u)\nq = Pow(d, two)\n"
     "v = ReduceMean(q, last)\nve = Add(v, eps)\nr = Sqrt(ve)\nn = Div(d, r)\nnl = Cast(n) "
     "{to=f16}\n"
     "sl = Cast(s) {to=f16}\nbl = Cast(b) {to=f16}\nm = Mul(sl, nl)\ny = Add(m, bl)\n" TAIL,
     "Cast Cast Cast Cast Cast LayerNormalization Cast", 4e-3},
    {"only the square in f32",
     NORM_HEAD "u = ReduceMean(xl, last)\nd = Sub(xl, u)\ndw = Cast(d) {to=f32}\nq = Pow(dw, two)\n"
               "v = ReduceMean(q, last)\nve = Add(v, eps)\nr = Sqrt(ve)\nn = Div(dw, r)\nm = "
               "Mul(n, s)\ny = Add(m, b)\n" TAIL,
     "LayerNormalization Cast", 1e-2},
    {"normalised over a middle axis",
     NORM_HEAD "u = ReduceMean(x, mid)\nd = Sub(x, u)\nq = Pow(d, two)\nv = ReduceMean(q, mid)\nve "
               "= Add(v, eps)\n"
               "r = Sqrt(ve)\ny = Div(d, r)\n" TAIL,
     "ReduceMean Sub Pow ReduceMean Add Sqrt Div", 0},
    {"difference is an output", NORM_HEAD CORE "y = Div(d, r)\noutput out = y\noutput d2 = d\n}\n",
     "ReduceMean Sub Pow ReduceMean Add Sqrt Div", 0},
    {"mean used outside", NORM_HEAD CORE "n = Div(d, r)\ny = Add(n, u)\n" TAIL,
     "ReduceMean Sub Pow ReduceMean Add Sqrt Div Add", 0},
};

#define SQUARES "q = Pow(x, two)\nv = ReduceMean(q, last)\nve = Add(v, eps)\nr = Sqrt(ve)\n"

static const Case rms_cases[] = {
    {"torch", NORM_HEAD SQUARES "i = Reciprocal(r)\nn = Mul(x, i)\ny = Mul(s, n)\n" TAIL,
     "RMSNormalization", 1e-5},
    {"one over the root",
     NORM_HEAD "const one: f32[] = 1\n" SQUARES
               "i = Div(one, r)\nn = Mul(x, i)\ny = Mul(s, n)\n" TAIL,
     "RMSNormalization", 1e-5},
    {"quotient, no scale", NORM_HEAD SQUARES "y = Div(x, r)\n" TAIL, "RMSNormalization", 1e-5},
    {"a sum times 1 / N",
     NORM_HEAD "const part: f32[] = 0.125\nq = Mul(x, x)\nt = ReduceSum(q, last)\n"
               "v = Mul(t, part)\nve = Add(v, eps)\nr = Sqrt(ve)\ni = Reciprocal(r)\n"
               "n = Mul(x, i)\ny = Mul(n, s)\n" TAIL,
     "RMSNormalization", 1e-5},
    {"a sum times another number",
     NORM_HEAD "const part: f32[] = 0.25\nq = Mul(x, x)\nt = ReduceSum(q, last)\n"
               "v = Mul(t, part)\nve = Add(v, eps)\nr = Sqrt(ve)\ny = Div(x, r)\n" TAIL,
     "Mul ReduceSum Mul Add Sqrt Div", 0},
    {"another x is divided", NORM_HEAD SQUARES "z = Exp(x)\ny = Div(z, r)\n" TAIL,
     "Pow ReduceMean Add Sqrt Exp Div", 0},
    {"16-bit x widened, 16-bit result",
     NORM_HEAD "xw = Cast(xl) {to=f32}\nq = Pow(xw, two)\nv = ReduceMean(q, last)\n"
               "ve = Add(v, eps)\nr = Sqrt(ve)\ni = Reciprocal(r)\nn = Mul(xw, i)\n"
               "nl = Cast(n) {to=f16}\nsl = Cast(s) {to=f16}\ny = Mul(sl, nl)\n" TAIL,
     "Cast Cast Cast RMSNormalization Cast", 4e-3},
};

static void test_layernorm(void **state)
{
    (void)state;
    RUN(norm_cases);
    RUN(rms_cases);
}

static void collect(void *user, mpr_log_level level, const char *message)
{
    if (level == MPR_LOG_WARNING) strncat(user, message, 511 - strlen(user));
}

/* An epsilon that the file's 16 bits turned into 0 is said aloud. */
static void test_layernorm_zero_epsilon(void **state)
{
    (void)state;
    TestGraph t;
    char said[512] = "";
    Log log = {collect, said};
    test_graph_open(
        &t, NORM_HEAD
        "u = ReduceMean(xl, last)\nd = Sub(xl, u)\nq = Pow(d, twol)\nv = ReduceMean(q, last)\n"
        "ve = Add(v, epsl)\nr = Sqrt(ve)\ny = Div(d, r) @ \"/ln/Div\"\n" TAIL);
    t.ctx.log = &log;
    assert_true(test_graph_pass(&t, mpri_pass_recover));
    assert_non_null(strstr(said, "/ln/Div"));
    assert_non_null(strstr(said, "epsilon 0"));
    test_graph_close(&t);
}

/* ---- Gelu ---- */

#define GELU_HEAD \
    "graph \"g\" {\n" \
    "input x: f32[3,8]\n" \
    "input xl: f16[3,8]\n" \
    "const root2: f32[] = 1.4142135\n" \
    "const inv: f32[1] = [0.70710677]\n" \
    "const half: f32[] = 0.5\n" \
    "const one: f32[] = 1\n" \
    "const two: f32[] = 2\n" \
    "const three: f32[] = 3\n" \
    "const c: f32[] = 0.044715\n" \
    "const k: f32[] = 0.7978846\n" \
    "const kl: f32[] = 0.79785156\n" \
    "const quick: f32[] = 1.4\n"
#define ERF "d = Div(x, root2)\ne = Erf(d)\ne1 = Add(e, one)\n"
#define CUBE \
    "p = Pow(x, three)\nq = Mul(p, c)\ns = Add(x, q)\ni = Mul(s, k)\nt = Tanh(i)\nt1 = Add(t, " \
    "one)\n"

static const Case gelu_cases[] = {
    {"erf, torch order", GELU_HEAD ERF "m = Mul(x, e1)\ny = Mul(m, half)\n" TAIL, "Gelu", 1e-6},
    {"erf, half of x first", GELU_HEAD "h = Mul(x, half)\n" ERF "y = Mul(h, e1)\n" TAIL, "Gelu",
     1e-6},
    {"erf, half of the sum first", GELU_HEAD ERF "h = Mul(half, e1)\ny = Mul(h, x)\n" TAIL, "Gelu",
     1e-6},
    {"erf, multiplied by 0.7071",
     GELU_HEAD
     "d = Mul(inv, x)\ne = Erf(d)\ne1 = Add(one, e)\nm = Mul(e1, x)\ny = Mul(half, m)\n" TAIL,
     "Gelu", 1e-6},
    {"erf, halved by Div", GELU_HEAD ERF "m = Mul(x, e1)\ny = Div(m, two)\n" TAIL, "Gelu", 1e-6},
    {"erf between casts",
     GELU_HEAD "x32 = Cast(xl) {to=f32}\nd = Div(x32, root2)\ne = Erf(d)\ne1 = Add(e, one)\nm = "
               "Mul(x32, e1)\n"
               "y = Mul(m, half)\n" TAIL,
     "Cast Gelu", 1e-6},
    {"erf of something else",
     GELU_HEAD "d = Div(x, quick)\ne = Erf(d)\ne1 = Add(e, one)\nm = Mul(x, e1)\n"
               "y = Mul(m, half)\n" TAIL,
     "Div Erf Add Mul Mul", 0},
    {"not halved", GELU_HEAD ERF "y = Mul(x, e1)\n" TAIL, "Div Erf Add Mul", 0},
    {"erf used outside", GELU_HEAD ERF "m = Mul(x, e1)\nz = Mul(m, half)\ny = Add(z, e)\n" TAIL,
     "Div Erf Add Mul Mul Add", 0},
    {"tanh, cube by Pow", GELU_HEAD CUBE "m = Mul(x, t1)\ny = Mul(m, half)\n" TAIL, "Gelu", 1e-6},
    {"tanh, half first", GELU_HEAD CUBE "m = Mul(x, half)\ny = Mul(m, t1)\n" TAIL, "Gelu", 1e-6},
    {"tanh, cube by Mul",
     GELU_HEAD
     "x2 = Mul(x, x)\nx3 = Mul(x2, x)\nq = Mul(c, x3)\ns = Add(q, x)\ni = Mul(k, s)\nt = Tanh(i)\n"
     "t1 = Add(one, t)\nm = Mul(half, x)\ny = Mul(m, t1)\n" TAIL,
     "Gelu", 1e-6},
    {"tanh, factored as Megatron does",
     GELU_HEAD "h = Mul(x, half)\na = Mul(x, k)\nb = Mul(x, c)\nb2 = Mul(b, x)\nb3 = Add(b2, "
               "one)\ni = Mul(a, b3)\n"
               "t = Tanh(i)\nt1 = Add(t, one)\ny = Mul(h, t1)\n" TAIL,
     "Gelu", 1e-6},
    {"tanh, constants rounded to 16 bits",
     GELU_HEAD "p = Pow(x, three)\nq = Mul(p, c)\ns = Add(x, q)\ni = Mul(s, kl)\nt = Tanh(i)\nt1 = "
               "Add(t, one)\n"
               "m = Mul(x, t1)\ny = Mul(m, half)\n" TAIL,
     "Gelu", 1e-3},
    {"plain tanh",
     GELU_HEAD "t = Tanh(x)\nt1 = Add(t, one)\nm = Mul(x, t1)\ny = Mul(m, half)\n" TAIL,
     "Tanh Add Mul Mul", 0},
};

static void test_gelu(void **state)
{
    (void)state;
    RUN(gelu_cases);
}

/* ---- x * gate(x) ---- */

#define GATED_HEAD \
    "graph \"g\" {\n" \
    "input  x: f32[2,5]\n" \
    "input  z: f32[2,5]\n" \
    "const  quick: f32[] = 1.702\n"

static const Case gated_cases[] = {
    {"swish", GATED_HEAD "s = Sigmoid(x)\ny = Mul(x, s)\n" TAIL, "Swish", 1e-6},
    {"gate left", GATED_HEAD "s = Sigmoid(x)\ny = Mul(s, x)\n" TAIL, "Swish", 1e-6},
    {"quick gelu", GATED_HEAD "a = Mul(x, quick)\ns = Sigmoid(a)\ny = Mul(x, s)\n" TAIL, "Swish",
     1e-6},
    {"of the scaled value", GATED_HEAD "a = Mul(quick, x)\ns = Sigmoid(a)\ny = Mul(a, s)\n" TAIL,
     "Mul Swish", 1e-6},
    {"between casts",
     GATED_HEAD "c = Cast(x) {to=f16}\nd = Cast(c) {to=f32}\ns = Sigmoid(d)\n"
                "e = Cast(s) {to=f16}\ny = Mul(c, e)\n" TAIL,
     "Cast Swish", 1e-2},
    {"mish", GATED_HEAD "p = Softplus(x)\nt = Tanh(p)\ny = Mul(x, t)\n" TAIL, "Mish", 1e-6},
    {"hard swish", GATED_HEAD "h = HardSigmoid(x) {alpha=0.16666667}\ny = Mul(x, h)\n" TAIL,
     "HardSwish", 1e-6},
    {"another hard sigmoid", GATED_HEAD "h = HardSigmoid(x)\ny = Mul(x, h)\n" TAIL,
     "HardSigmoid Mul", 0},
    {"gate of another value", GATED_HEAD "s = Sigmoid(z)\ny = Mul(x, s)\n" TAIL, "Sigmoid Mul", 0},
    {"gate used twice", GATED_HEAD "s = Sigmoid(x)\na = Mul(x, s)\ny = Add(a, s)\n" TAIL,
     "Sigmoid Mul Add", 0},
    {"square of the gate", GATED_HEAD "s = Sigmoid(x)\ny = Mul(s, s)\n" TAIL, "Sigmoid Mul", 0},
    {"gate is an output", GATED_HEAD "s = Sigmoid(x)\ny = Mul(x, s)\noutput s = s\n" TAIL,
     "Sigmoid Mul", 0},
};

static void test_gated(void **state)
{
    (void)state;
    RUN(gated_cases);
}

/* ---- Softmax ---- */

#define SOFT_HEAD \
    "graph \"g\" {\ninput x: f32[3,8]\nconst last: i64[1] = [-1]\nconst first: i64[1] = [0]\n"

static const Case softmax_cases[] = {
    {"plain",
     SOFT_HEAD "m = ReduceMax(x, last)\nd = Sub(x, m)\ne = Exp(d)\ns = ReduceSum(e, last)\ny = "
               "Div(e, s)\n" TAIL,
     "Softmax", 1e-6},
    {"two axes",
     SOFT_HEAD "m = ReduceMax(x, last)\nd = Sub(x, m)\ne = Exp(d)\ns = ReduceSum(e, first)\ny = "
               "Div(e, s)\n" TAIL,
     "ReduceMax Sub Exp ReduceSum Div", 0},
    {"no maximum", SOFT_HEAD "e = Exp(x)\ns = ReduceSum(e, last)\ny = Div(e, s)\n" TAIL,
     "Exp ReduceSum Div", 0},
};

static void test_softmax(void **state)
{
    (void)state;
    RUN(softmax_cases);
}

/* Names and origins survive: the new node stands for all it replaces. */
static void test_names(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, LINEAR_HEAD
                    "h = MatMul(x, w) @ \"/fc/MatMul\"\ny = Add(h, b) @ \"/fc/Add\"\n" TAIL);
    int origins[] = {3, 4}, i = 0;
    for (Node *n = t.g->first; n; n = n->next, i++) n->origin = (Origin){&origins[i], 1};
    assert_true(test_graph_pass(&t, mpri_pass_recover));
    test_graph_expect(&t, LINEAR_HEAD "y: f32[2,3,5] = Linear(x, w, b) @ \"/fc/MatMul\"\n" TAIL);
    assert_int_equal(t.g->first->origin.n, 2);
    assert_int_equal(t.g->first->origin.v[0] + t.g->first->origin.v[1], 7);
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_layernorm_zero_epsilon),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_gated),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
