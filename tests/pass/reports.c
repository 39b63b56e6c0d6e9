/* Precision faults that people reported against other programs, each as the graph that showed it:
 * what the autocast pass makes of it, and what comes out. Reports that need a session are in
 * tests/train/reports.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "passes/profile.h"
#include "tests/support/evaluate.h"
#include "tests/support/graphs.h"

typedef struct Heard {
    char text[2048];
} Heard;

static void hear(void *user, mpr_log_level level, const char *message)
{
    Heard *h = user;
    size_t len = strlen(h->text);
    if (level >= MPR_LOG_NOTICE) snprintf(h->text + len, sizeof h->text - len, "%s\n", message);
}

static Heard heard;
static Log log_to = {hear, &heard};

static void open_graph(TestGraph *t, const char *text, const char *profile, DType low)
{
    Profile *p;
    heard = (Heard){""};
    test_graph_open(t, text);
    t->ctx.log = &log_to;
    if (!profile) return;
    assert_ok(mpri_profile_load(profile, NULL, &t->arena, &p, &t->err), &t->err);
    t->o.autocast = low;
    t->o.profile = p;
    (void)test_graph_pass(t, mpri_pass_autocast);
}

static const Value *value(const TestGraph *t, const char *name)
{
    const Value *v = mpri_graph_find_value(t->g, name);
    if (!v) fail_msg("no value '%s'", name);
    return v;
}

static double at(const Tensor *x, int64_t i)
{
    return mpri_load_f64(x->dtype, x->data, i);
}

static int casts(const Graph *g)
{
    int k = 0;
    for (const Node *n = g->first; n; n = n->next) k += mpri_is(n, OP_Cast);
    return k;
}

/* An additive mask of the least float and a score of -16 in float16 gave -inf
 * for all keys, and NaN. The sum and the softmax are float32. */
static void least_float_mask(void **state)
{
    (void)state;
    static const char *const profiles[] = {"torch-cuda", "torch-cpu"};
    for (int i = 0; i < 2; i++) {
        TestGraph t;
        open_graph(&t, "graph \"g\" {\nconst x: f32[1,2] = [4,4]\nconst w: f32[2,3] = splat(-2)\n"
                       "const mask: f32[1,3] = [-3.4028235e+38,-3.4028235e+38,-3.4028235e+38]\n"
                       "s = MatMul(x, w)\nm = Add(s, mask)\np = Softmax(m)\noutput p = p\n}\n",
                   profiles[i], MPR_FLOAT16);
        assert_int_equal(value(&t, "s")->dtype, MPR_FLOAT16);
        assert_int_equal(value(&t, "m")->dtype, MPR_FLOAT32);
        Tensor p = test_evaluate(&t, 0);
        for (int k = 0; k < 3; k++) assert_true(fabs(at(&p, k) - 1.0 / 3) < 1e-6);
        test_graph_close(&t);
    }
}

/* A row without any key. */
static void no_key_at_all(void **state)
{
    (void)state;
    TestGraph t;
    open_graph(&t, "graph \"g\" {\nconst x: f32[1,2] = [1,1]\nconst w: f32[2,3] = splat(1)\n"
                   "const mask: f32[1,3] = [-inf,-inf,-inf]\n"
                   "s = MatMul(x, w)\nm = Add(s, mask)\np = Softmax(m)\noutput p = p\n}\n",
               "torch-cuda", MPR_FLOAT16);
    Tensor p = test_evaluate(&t, 0);
    for (int k = 0; k < 3; k++) assert_true(at(&p, k) == 0);
    test_graph_close(&t);
}

/* Where and Add with -1e9 or -1e15. */
static void large_negative_constants(void **state)
{
    (void)state;
    static const char *const numbers[] = {"-1e9", "-1e15"};
    static const char *const ops[] = {"y = Where(m, h, c)", "y = Add(h, c)"};
    for (int i = 0; i < 4; i++) {
        TestGraph t;
        char text[512];
        snprintf(text, sizeof text,
                 "graph \"g\" {\ninput x: f32[2,4]\ninput m: bool[2,4]\nparam w: f32[4,4] trained\n"
                 "const c: f32[] = %s\nh = MatMul(x, w)\n%s @ \"/mask\"\noutput y = y\n}\n",
                 numbers[i % 2], ops[i / 2]);
        open_graph(&t, text, "torch-cuda", MPR_FLOAT16);
        assert_int_equal(value(&t, "y")->dtype, MPR_FLOAT32);
        assert_non_null(strstr(heard.text, "/mask"));
        assert_non_null(strstr(heard.text, "becomes -inf in f16"));
        test_graph_close(&t);
    }
}

#define NORM(type, first, eps)                                                                     \
    "graph \"g\" {\nconst x: " type "[2,4] = " first "\nconst w: f32[4] = [1,2,0.5,1]\n"            \
    "const b: f32[4] = [0,0.25,0,-1]\ny = LayerNormalization(x, w, b) {epsilon=" eps "}\n"          \
    "output y = y\n}\n"

#define ROW "[1000,1001,1002.5,998,0.001,0.002,-0.003,65504]"

/* The float16 result is the float32 one, rounded once. */
static void norm_rounds_once(void **state)
{
    (void)state;
    static const char f16[] = NORM("f16", ROW, "1e-5");
    static const char f32[] =
        "graph \"g\" {\nconst h: f16[2,4] = " ROW "\nconst w: f32[4] = [1,2,0.5,1]\n"
        "const b: f32[4] = [0,0.25,0,-1]\nx = Cast(h) {to=f32}\n"
        "z = LayerNormalization(x, w, b) {epsilon=1e-5}\ny = Cast(z) {to=f16}\n"
        "output y = y\n}\n";
    TestGraph a, b;
    open_graph(&a, f16, NULL, MPR_FLOAT16);
    open_graph(&b, f32, NULL, MPR_FLOAT16);
    Tensor y = test_evaluate(&a, 0), z = test_evaluate(&b, 0);
    assert_int_equal(y.dtype, MPR_FLOAT16);
    assert_int_equal(z.dtype, MPR_FLOAT16);
    assert_memory_equal(y.data, z.data, 8 * 2);
    test_graph_close(&a);
    test_graph_close(&b);
}

/* An epsilon of 1e-12, which float16 cannot hold, and a row of zeros. */
static void small_epsilon(void **state)
{
    (void)state;
    TestGraph t;
    open_graph(&t, NORM("f16", "[0,0,0,0,1,2,3,4]", "1e-12"), NULL, MPR_FLOAT16);
    Tensor y = test_evaluate(&t, 0);
    static const double bias[] = {0, 0.25, 0, -1};
    for (int k = 0; k < 4; k++) assert_true(at(&y, k) == bias[k]);
    for (int k = 4; k < 8; k++) assert_true(isfinite(at(&y, k)));
    test_graph_close(&t);
}

/* The same written operator by operator with the epsilon in float16: the constant has become 0. */
static void epsilon_lost_in_the_file(void **state)
{
    (void)state;
    TestGraph t;
    open_graph(&t, "graph \"g\" {\ninput x: f16[2,4]\nconst two: f16[] = 2\nconst eps: f16[] = 0\n"
                   "const w: f16[4] = [1,1,1,1]\nconst b: f16[4] = [0,0,0,0]\n"
                   "const last: i64[1] = [-1]\nm = ReduceMean(x, last)\nd = Sub(x, m)\np = Pow(d, two)\n"
                   "v = ReduceMean(p, last)\ne = Add(v, eps)\ns = Sqrt(e)\n"
                   "n = Div(d, s) @ \"/norm/Div\"\nnw = Mul(n, w)\ny = Add(nw, b)\n"
                   "output y = y\n}\n", NULL, MPR_FLOAT16);
    (void)test_graph_pass(&t, mpri_pass_recover);
    assert_non_null(strstr(heard.text, "epsilon 0"));
    test_graph_close(&t);
}

/* The mean of 100000 ones in float16. Their sum is float32 under autocast. */
static void mean_of_many(void **state)
{
    (void)state;
    TestGraph t;
    open_graph(&t, "graph \"g\" {\nconst x: f16[1,100000] = splat(1)\n"
                   "y = ReduceMean(x)\ns = ReduceSum(x)\n"
                   "output y = y\noutput s = s\n}\n", "torch-cpu", MPR_FLOAT16);
    Tensor y = test_evaluate(&t, 0);
    assert_int_equal(y.dtype, MPR_FLOAT16);
    assert_true(at(&y, 0) == 1);
    test_graph_close(&t);
    open_graph(&t, "graph \"g\" {\nconst x: f16[1,100000] = splat(1)\n"
                   "h = ReduceSum(x)\ns = Mul(h, h)\noutput s = s\n}\n", "torch-cuda",
               MPR_FLOAT16);
    assert_int_equal(value(&t, "h")->dtype, MPR_FLOAT32);
    test_graph_close(&t);
}

/* Cross-entropy on probabilities. It stays float32 on both lists, and is told. */
static void sigmoid_and_bce(void **state)
{
    (void)state;
    static const char *const profiles[] = {"torch-cuda", "torch-cpu"};
    for (int i = 0; i < 2; i++) {
        TestGraph t;
        open_graph(&t, "graph \"g\" {\ninput x: f32[2,4]\ninput t: f32[2,4]\n"
                       "param w: f32[4,4] trained\nconst one: f32[] = 1\nz = MatMul(x, w)\n"
                       "p = Sigmoid(z)\nlp = Log(p)\na = Mul(t, lp)\nn = Sub(one, p)\nln = Log(n)\n"
                       "u = Sub(one, t)\nb = Mul(u, ln)\ns = Add(a, b)\n"
                       "m = ReduceMean(s) {keepdims=0}\nl = Neg(m)\noutput loss = l\n}\n",
                   profiles[i], MPR_FLOAT16);
        assert_int_equal(value(&t, "z")->dtype, MPR_FLOAT16);
        assert_int_equal(value(&t, "p")->dtype, MPR_FLOAT32);
        assert_non_null(strstr(heard.text, "logarithm of a Sigmoid"));
        test_graph_close(&t);
    }
}

/* A block computed twice, as recomputation does, has the types and bits of the
 * first time. */
static void recomputed_block(void **state)
{
    (void)state;
    TestGraph t;
    open_graph(&t, "graph \"g\" {\nconst x: f32[2,4] = [1,2,3,4,5,6,7,8.5]\n"
                   "const w: f32[4,4] = splat(0.3)\nconst v: f32[4,4] = splat(0.7)\n"
                   "a = MatMul(x, w)\nb = Gelu(a)\nc = MatMul(b, v)\nd = Softmax(c)\n"
                   "a2 = MatMul(x, w)\nb2 = Gelu(a2)\nc2 = MatMul(b2, v)\nd2 = Softmax(c2)\n"
                   "output d = d\noutput d2 = d2\noutput c = c\noutput c2 = c2\n}\n",
               "torch-cuda", MPR_FLOAT16);
    static const char *const pairs[][2] = {{"a", "a2"}, {"b", "b2"}, {"c", "c2"}, {"d", "d2"}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(value(&t, pairs[i][0])->dtype, value(&t, pairs[i][1])->dtype);
    for (int i = 0; i < 4; i += 2) {
        Tensor once = test_evaluate(&t, i), again = test_evaluate(&t, i + 1);
        assert_memory_equal(once.data, again.data, 8 * mpri_dtype_size(once.dtype));
    }
    test_graph_close(&t);
}

/* RMSNorm of float16 with a float16 weight: no casts, float32 inside. */
static void rms_norm_in_16_bits(void **state)
{
    (void)state;
    TestGraph t;
    open_graph(&t, "graph \"g\" {\nconst x: f16[1,4] = [300,400,300,400]\n"
                   "const w: f16[4] = [1,1,1,2]\ny = RMSNormalization(x, w)\noutput y = y\n}\n",
               "torch-cpu", MPR_FLOAT16);
    assert_int_equal(casts(t.g), 0);
    Tensor y = test_evaluate(&t, 0); /* squares of 400 do not fit float16 */
    assert_true(fabs(at(&y, 0) - 300 / 353.5534) < 1e-3);
    assert_true(fabs(at(&y, 3) - 800 / 353.5534) < 2e-3);
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_float_mask),        cmocka_unit_test(no_key_at_all),
        cmocka_unit_test(large_negative_constants), cmocka_unit_test(norm_rounds_once),
        cmocka_unit_test(small_epsilon),           cmocka_unit_test(epsilon_lost_in_the_file),
        cmocka_unit_test(mean_of_many),            cmocka_unit_test(sigmoid_and_bce),
        cmocka_unit_test(recomputed_block),        cmocka_unit_test(rms_norm_in_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
