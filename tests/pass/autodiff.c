/* The backward segment: where gradients start and end, how contributions are added, what is
 * refused. */
#include "tests/support/graphs.h"

static void open_training(TestGraph *t, const char *text)
{
    test_graph_open(t, text);
    t->o.grads = GRADS_TO_SLOTS;
    t->o.training = true;
}

static void open_vjp(TestGraph *t, const char *text, const char *const *seeds, int n)
{
    test_graph_open(t, text);
    t->o.grads = GRADS_TO_OUTPUTS;
    t->o.seeds = seeds;
    t->o.n_seeds = n;
    t->o.grads_of_inputs = true;
}

static void off_changes_nothing(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n input x: f32[2]\n y = Relu(x)\n output y = y\n}\n");
    assert_false(test_graph_pass(&t, mpri_pass_autodiff));
    test_graph_close(&t);
}

/* No gradient of x, none of the frozen weight; the bias gradient is summed over the rows. */
static void training_ends_in_slots(void **state)
{
    (void)state;
    TestGraph t;
    open_training(&t, "graph \"g\" {\n"
                      "input x: f32[4,3]\n"
                      "input t: f32[4,2]\n"
                      "param w: f32[3,3] = splat(1)\n"
                      "param v: f32[3,2] trained init splat(1)\n"
                      "param b: f32[2] trained init [0,0]\n"
                      "h = MatMul(x, w) @ \"/a\"\n"
                      "y = Linear(h, v, b) @ \"/b\"\n"
                      "l, n = MseLoss(y, t) {reduction=\"mean\"} @ \"/loss\"\n"
                      "output loss = l\n}\n");
    test_graph_pass(&t, mpri_pass_autodiff);
    test_graph_expect(
        &t, "graph \"g\" {\n"
            "input x: f32[4,3]\n"
            "input t: f32[4,2]\n"
            "param w: f32[3,3] = [1,1,1,1,1,1,1,1,1]\n"
            "param v: f32[3,2] trained init [1,1,1,1,1,1]\n"
            "param b: f32[2] trained init [0,0]\n"
            "slot loss_seed: f32[] state init 1\n"
            "slot grad_accumulate: i32[] state\n"
            "slot grad:v: f32[3,2] grad of v\n"
            "slot grad:b: f32[2] grad of b\n"
            "h: f32[4,3] = MatMul(x, w) @ \"/a\"\n"
            "y: f32[4,2] = Linear(h, v, b) @ \"/b\"\n"
            "l: f32[], n: f32[] = MseLoss(y, t) @ \"/loss\"\n"
            "--- backward\n"
            "grad:/loss/MseLossGrad: f32[4,2] = MseLossGrad(loss_seed, y, t, n) @ "
            "\"grad:/loss/MseLossGrad\"\n"
            "grad:/b/FusedMatMul: f32[3,2] = FusedMatMul(h, grad:/loss/MseLossGrad) {trans_a=1} @ "
            "\"grad:/b/FusedMatMul\"\n"
            "!AccumulateGrad(grad:v, grad:/b/FusedMatMul, grad_accumulate) @ "
            "\"grad:/b/AccumulateGrad\"\n"
            "grad:/b/SumTo: f32[2] = SumTo(grad:/loss/MseLossGrad) {dims=[2]} @ \"grad:/b/SumTo\"\n"
            "!AccumulateGrad(grad:b, grad:/b/SumTo, grad_accumulate) @ \"grad:/b/AccumulateGrad\"\n"
            "output loss = l\n"
            "}\n");
    test_graph_close(&t);
}

/* f16 uses of one weight are never added in f16. */
static void uses_of_a_weight_are_added_in_f32(void **state)
{
    (void)state;
    TestGraph t;
    open_training(&t, "graph \"g\" {\n"
                      "input x: f16[4,3]\n"
                      "param w: f32[3,3] trained init splat(1)\n"
                      "wl = Cast(w) {to=f16} @ \"/cast\"\n"
                      "wt = Transpose(wl) @ \"/t\"\n"
                      "a = MatMul(x, wl) @ \"/a\"\n"
                      "b = MatMul(a, wl) @ \"/b\"\n"
                      "c = MatMul(b, wt) @ \"/c\"\n"
                      "f = Cast(c) {to=f32}\n"
                      "l = ReduceMean(f) {keepdims=0}\n"
                      "output loss = l\n}\n");
    test_graph_pass(&t, mpri_pass_autodiff);
    int accumulations = 0;
    for (const Node *n = t.g->first; n; n = n->next) {
        if (mpri_is(n, OP_AccumulateGrad)) accumulations++;
        assert_false(mpri_is(n, OP_Add));
    }
    assert_int_equal(accumulations, 3);
    test_graph_close(&t);
}

/* 4000 uses with gradient 1 give 4000; added in f16 they would stop at 2048. */
static void four_thousand_uses(void **state)
{
    (void)state;
    enum { USES = 4000, WAYS = 16 };
    Text text;
    mpri_text_init(&text, mpri_alloc_default());
    mpri_text_put(&text, "graph \"g\" {\nparam w: f32[] trained init 0\nconst x: f16[] = 1\n"
                         "wl = Cast(w) {to=f16}\n");
    for (int i = 0; i < USES; i++) mpri_text_add(&text, "a%d = Mul(x, wl)\n", i);
    int n = USES;
    for (char level = 'a'; n > 1; level++) {
        int sums = (n + WAYS - 1) / WAYS;
        for (int i = 0; i < sums; i++) {
            mpri_text_add(&text, "%c%d = Sum(", level + 1, i);
            for (int k = i * WAYS; k < n && k < (i + 1) * WAYS; k++)
                mpri_text_add(&text, "%s%c%d", k > i * WAYS ? ", " : "", level, k);
            mpri_text_put(&text, ")\n");
        }
        n = sums;
        if (n == 1) mpri_text_add(&text, "l = Cast(%c0) {to=f32}\noutput loss = l\n}\n", level + 1);
    }
    TestGraph t;
    TestValues v;
    open_training(&t, text.text);
    mpri_text_free(&text);
    test_graph_pass(&t, mpri_pass_autodiff);
    test_values_open(&v, &t);
    test_values_run(&v, true);
    const Value *grad = mpri_graph_find_value(t.g, "grad:w");
    assert_non_null(grad);
    assert_true(*(const float *)v.at[grad->id].data == 4000);
    test_graph_close(&t);
}

static void cotangents_have_the_type_of_their_value(void **state)
{
    (void)state;
    static const char *const seeds[] = {"y"};
    TestGraph t;
    open_vjp(&t, "graph \"g\" {\n"
                 "input a: f16[2,3]\n"
                 "input b: f32[3]\n"
                 "c = Cast(a) {to=f32} @ \"/c\"\n"
                 "y = Mul(c, b) @ \"/m\"\n"
                 "output y = y\n}\n", seeds, 1);
    test_graph_pass(&t, mpri_pass_autodiff);
    test_graph_expect(
        &t, "graph \"g\" {\n"
            "input a: f16[2,3]\n"
            "input b: f32[3]\n"
            "input cotangent:y: f32[2,3]\n"
            "c: f32[2,3] = Cast(a) {to=f32} @ \"/c\"\n"
            "y: f32[2,3] = Mul(c, b) @ \"/m\"\n"
            "--- backward\n"
            "grad:/m/Mul: f32[2,3] = Mul(cotangent:y, b) @ \"grad:/m/Mul\"\n"
            "grad:/m/Mul_1: f32[2,3] = Mul(cotangent:y, c) @ \"grad:/m/Mul\"\n"
            "grad:/m/SumTo: f32[3] = SumTo(grad:/m/Mul_1) {dims=[3]} @ \"grad:/m/SumTo\"\n"
            "grad:/c/Cast: f16[2,3] = Cast(grad:/m/Mul) {to=f16} @ \"grad:/c/Cast\"\n"
            "output y = y\n"
            "output grad:a = grad:/c/Cast\n"
            "output grad:b = grad:/m/SumTo\n"
            "}\n");
    test_graph_close(&t);
}

/* As in PyTorch, where each use has its own cast: f16 contributions are added in f32. */
static void uses_of_a_narrowed_activation_meet_in_f32(void **state)
{
    (void)state;
    static const char *const seeds[] = {"a", "b"};
    TestGraph t;
    open_vjp(&t, "graph \"g\" {\n"
                 "input x: f32[3]\n"
                 "c = Cast(x) {to=f16} @ \"/c\"\n"
                 "a = Exp(c) @ \"/a\"\n"
                 "b = Neg(c) @ \"/b\"\n"
                 "output a = a\n"
                 "output b = b\n}\n", seeds, 2);
    test_graph_pass(&t, mpri_pass_autodiff);
    test_graph_expect(&t,
                      "graph \"g\" {\n"
                      "input x: f32[3]\n"
                      "input cotangent:a: f16[3]\n"
                      "input cotangent:b: f16[3]\n"
                      "c: f16[3] = Cast(x) {to=f16} @ \"/c\"\n"
                      "a: f16[3] = Exp(c) @ \"/a\"\n"
                      "b: f16[3] = Neg(c) @ \"/b\"\n"
                      "--- backward\n"
                      "grad:/b/Neg: f16[3] = Neg(cotangent:b) @ \"grad:/b/Neg\"\n"
                      "grad:/b/Cast: f32[3] = Cast(grad:/b/Neg) {to=f32} @ \"grad:/b/Cast\"\n"
                      "grad:/a/Mul: f16[3] = Mul(cotangent:a, a) @ \"grad:/a/Mul\"\n"
                      "grad:/a/Cast: f32[3] = Cast(grad:/a/Mul) {to=f32} @ \"grad:/a/Cast\"\n"
                      "grad:/a/Add: f32[3] = Add(grad:/b/Cast, grad:/a/Cast) @ \"grad:/a/Add\"\n"
                      "output a = a\n"
                      "output b = b\n"
                      "output grad:x = grad:/a/Add\n"
                      "}\n");
    test_graph_close(&t);
}

static void no_path_gives_zeros(void **state)
{
    (void)state;
    static const char *const seeds[] = {"y"};
    TestGraph t;
    open_vjp(&t, "graph \"g\" {\n"
                 "input a: f32[2]\n"
                 "input b: f16[3,1]\n"
                 "input i: i64[3]\n"
                 "y = Neg(a) @ \"/n\"\n"
                 "z = Relu(b)\n"
                 "output y = y\n"
                 "output z = z\n}\n", seeds, 1);
    test_graph_pass(&t, mpri_pass_autodiff);
    test_graph_expect(&t, "graph \"g\" {\n"
                          "input a: f32[2]\n"
                          "input b: f16[3,1]\n"
                          "input i: i64[3]\n"
                          "input cotangent:y: f32[2]\n"
                          "const f16:0: f16[] = 0\n"
                          "const i64s: i64[2] = [3,1]\n"
                          "y: f32[2] = Neg(a) @ \"/n\"\n"
                          "z: f16[3,1] = Relu(b)\n"
                          "--- backward\n"
                          "grad:/n/Neg: f32[2] = Neg(cotangent:y) @ \"grad:/n/Neg\"\n"
                          "grad:b/Expand: f16[3,1] = Expand(f16:0, i64s) @ \"grad:b/Expand\"\n"
                          "output y = y\n"
                          "output z = z\n"
                          "output grad:a = grad:/n/Neg\n"
                          "output grad:b = grad:b/Expand\n"
                          "}\n");
    test_graph_close(&t);
}

static void parameters_as_outputs(void **state)
{
    (void)state;
    static const char *const seeds[] = {"y"};
    TestGraph t;
    open_vjp(&t, "graph \"g\" {\n"
                 "input x: f16[2]\n"
                 "param p: f32[2] trained init [1,2]\n"
                 "c = Cast(p) {to=f16} @ \"/c\"\n"
                 "a = Mul(x, c) @ \"/a\"\n"
                 "y = Mul(a, c) @ \"/y\"\n"
                 "output y = y\n}\n", seeds, 1);
    t.o.grads_of_inputs = false;
    t.o.grads_of_params = true;
    test_graph_pass(&t, mpri_pass_autodiff);
    test_graph_expect(&t,
                      "graph \"g\" {\n"
                      "input x: f16[2]\n"
                      "input cotangent:y: f16[2]\n"
                      "param p: f32[2] trained init [1,2]\n"
                      "c: f16[2] = Cast(p) {to=f16} @ \"/c\"\n"
                      "a: f16[2] = Mul(x, c) @ \"/a\"\n"
                      "y: f16[2] = Mul(a, c) @ \"/y\"\n"
                      "--- backward\n"
                      "grad:/y/Mul: f16[2] = Mul(cotangent:y, c) @ \"grad:/y/Mul\"\n"
                      "grad:/y/Mul_1: f16[2] = Mul(cotangent:y, a) @ \"grad:/y/Mul\"\n"
                      "grad:/y/Cast: f32[2] = Cast(grad:/y/Mul_1) {to=f32} @ \"grad:/y/Cast\"\n"
                      "grad:/a/Mul: f16[2] = Mul(grad:/y/Mul, x) @ \"grad:/a/Mul\"\n"
                      "grad:/a/Cast: f32[2] = Cast(grad:/a/Mul) {to=f32} @ \"grad:/a/Cast\"\n"
                      "grad:/a/Add: f32[2] = Add(grad:/y/Cast, grad:/a/Cast) @ \"grad:/a/Add\"\n"
                      "output y = y\n"
                      "output grad:p = grad:/a/Add\n"
                      "}\n");
    test_graph_close(&t);
}

static void unknown_seed(void **state)
{
    (void)state;
    static const char *const seeds[] = {"z"};
    TestGraph t;
    open_vjp(&t, "graph \"g\" {\n input x: f32[2]\n y = Relu(x)\n output y = y\n}\n", seeds, 1);
    test_graph_refuses(&t, mpri_pass_autodiff, MPR_E_USAGE, "'z'", "'y'");
    test_graph_close(&t);
}

static void blocking_nodes_are_named(void **state)
{
    (void)state;
    TestGraph t;
    open_training(&t, "graph \"g\" {\n"
                      "input x: f32[2]\n"
                      "param w: f32[2] trained init [1,2]\n"
                      "param v: f32[2] trained init [1,2]\n"
                      "a = Mul(x, w) @ \"/mul\"\n"
                      "b = Greater(a, v) @ \"/greater\"\n"
                      "c = Cast(b) {to=f32} @ \"/cast\"\n"
                      "l = ReduceSum(c) {keepdims=0}\n"
                      "output loss = l\n}\n");
    test_graph_refuses(&t, mpri_pass_autodiff, MPR_E_NOT_DIFFERENTIABLE, "'/greater'", "'w', 'v'");
    test_graph_close(&t);
}

static void operators_without_gradient_are_listed_together(void **state)
{
    (void)state;
    TestGraph t;
    open_training(&t, "graph \"g\" {\n"
                      "input x: f32[2]\n"
                      "param w: f32[2] trained init [1,2]\n"
                      "a = Mul(x, w)\n"
                      "b: f32[2] = com.acme:Thing(a) @ \"/t1\"\n"
                      "c: f32[2] = com.acme:Other(b) @ \"/o\"\n"
                      "d: f32[2] = com.acme:Thing(c) @ \"/t2\"\n"
                      "e: f32[2] = com.acme:Aside(x) @ \"/aside\"\n"
                      "f = Add(d, e)\n"
                      "l = ReduceSum(f) {keepdims=0}\n"
                      "output loss = l\n}\n");
    test_graph_refuses(&t, mpri_pass_autodiff, MPR_E_UNSUPPORTED_OP, "com.acme:Thing",
                       "'/t1', '/t2'", "com.acme:Other");
    assert_int_equal(t.err.findings, 2);
    test_graph_close(&t);
}

static void nothing_to_train(void **state)
{
    (void)state;
    TestGraph t;
    open_training(&t, "graph \"g\" {\n"
                      "input x: f32[2]\n"
                      "param w: f32[2] = [1,2]\n"
                      "a = Mul(x, w)\n"
                      "l = ReduceSum(a) {keepdims=0}\n"
                      "output loss = l\n}\n");
    test_graph_refuses(&t, mpri_pass_autodiff, MPR_E_NOT_DIFFERENTIABLE, "no parameter");
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_changes_nothing),
        cmocka_unit_test(training_ends_in_slots),
        cmocka_unit_test(uses_of_a_weight_are_added_in_f32),
        cmocka_unit_test(four_thousand_uses),
        cmocka_unit_test(cotangents_have_the_type_of_their_value),
        cmocka_unit_test(uses_of_a_narrowed_activation_meet_in_f32),
        cmocka_unit_test(no_path_gives_zeros),
        cmocka_unit_test(parameters_as_outputs),
        cmocka_unit_test(unknown_seed),
        cmocka_unit_test(blocking_nodes_are_named),
        cmocka_unit_test(operators_without_gradient_are_listed_together),
        cmocka_unit_test(nothing_to_train),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
