/* The loss pass: losses attached, losses of the model found and rewritten, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/support/evaluate.h"

static void run(TestGraph *t, const char *text, const char *loss)
{
    test_graph_open(t, text);
    t->o.loss = loss;
    t->o.labels = "labels";
    t->o.ignore_index = -100;
}

#define NET \
    "graph \"g\" {\n  input  x: f32[batch,4]\n  param  w: f32[4,10] trained\nlogits: " \
    "f32[batch,10] = MatMul(x, w)\n"

static void test_cross_entropy(void **state)
{
    (void)state;
    TestGraph t;
    run(&t, NET "output y = logits\n}\n", "cross-entropy");
    t.o.label_smoothing = 0.125f;
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    test_graph_expect(&t, "graph \"g\" {\n  input  x: f32[batch,4]\n  input  labels: i64[batch]\n  "
                          "param  w: f32[4,10] trained\n"
                          "logits: f32[batch,10] = MatMul(x, w)\n"
                          "loss/CrossEntropy: f32[] = CrossEntropy(logits, labels) "
                          "{ignore_index=-100, label_smoothing=0.125} "
                          "@ \"loss/CrossEntropy\"\n"
                          "output y = logits\noutput loss = loss/CrossEntropy\n}\n");
    test_graph_close(&t);
}

/* Sequences: labels have every dim but the classes. */
static void test_cross_entropy_tokens(void **state)
{
    (void)state;
    TestGraph t;
    run(&t,
        "graph \"g\" {\ninput logits: f32[batch,seq,10]\noutput a = logits\noutput logits = "
        "logits\n}\n",
        "cross-entropy");
    t.o.labels = "targets";
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    assert_string_equal(t.g->inputs[1].value->name, "targets");
    assert_int_equal(t.g->inputs[1].value->shape.rank, 2);
    assert_true(t.g->inputs[1].value->shape.d[1] == t.g->inputs[0].value->shape.d[1]);
    assert_string_equal(t.g->outputs[2].name, "loss");
    test_graph_close(&t);
}

static void test_mse(void **state)
{
    (void)state;
    TestGraph t;
    run(&t, NET "output y = logits\n}\n", "mse");
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    test_graph_expect(&t, "graph \"g\" {\n  input  x: f32[batch,4]\n  input  labels: "
                          "f32[batch,10]\n  param  w: f32[4,10] trained\n"
                          "logits: f32[batch,10] = MatMul(x, w)\n"
                          "loss/MseLoss: f32[] = MseLoss(logits, labels) @ \"loss/MseLoss\"\n"
                          "output y = logits\noutput loss = loss/MseLoss\n}\n");
    test_graph_close(&t);
}

/* Losses made of single operators, against their formulas. */
static void test_written_losses(void **state)
{
    (void)state;
    static const char *const names[] = {"mse", "l1", "bce-with-logits"};
    for (int k = 0; k < 3; k++) {
        TestGraph t;
        run(&t, "graph \"g\" {\ninput z: f32[5,7]\noutput z = z\n}\n", names[k]);
        assert_true(test_graph_pass(&t, mpri_pass_loss));
        Tensor loss = test_evaluate(&t, 1);
        assert_int_equal(loss.rank, 0);
        double found = mpri_load_f64(loss.dtype, loss.data, 0);
        test_graph_close(&t);
        run(&t,
            "graph \"g\" {\ninput z: f32[5,7]\ninput labels: f32[5,7]\noutput z = z\noutput l = "
            "labels\n}\n",
            NULL);
        Tensor z = test_evaluate(&t, 0), y = test_evaluate(&t, 1);
        double sum = 0;
        for (int64_t i = 0; i < z.n; i++) {
            double a = mpri_load_f64(z.dtype, z.data, i), b = mpri_load_f64(y.dtype, y.data, i);
            double p = 1 / (1 + exp(-a));
            sum += k == 0   ? (a - b) * (a - b)
                   : k == 1 ? fabs(a - b)
                            : -b * log(p) - (1 - b) * log(1 - p);
        }
        test_graph_close(&t);
        assert_true(fabs(found - sum / (double)z.n) < 1e-6);
    }
}

static void hear(void *user, mpr_log_level level, const char *message)
{
    (void)level;
    strncat(user, message, 255 - strlen(user));
}

/* Probabilities where logits are meant: a Sigmoid is looked through, a Softmax is warned of. */
static void test_probabilities(void **state)
{
    (void)state;
    TestGraph t;
    char said[256] = "";
    Log log = {hear, said};
    run(&t, "graph \"g\" {\ninput z: f32[5,7]\np = Sigmoid(z)\noutput p = p\n}\n",
        "bce-with-logits");
    t.ctx.log = &log;
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    assert_int_equal(mpri_graph_find_value(t.g, "p")->n_uses, 0);
    assert_non_null(strstr(said, "'p' is a Sigmoid"));
    test_graph_close(&t);
    run(&t, "graph \"g\" {\ninput z: f32[5,7]\np = Softmax(z)\noutput p = p\n}\n", "cross-entropy");
    t.ctx.log = &log;
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    assert_int_equal(mpri_graph_find_value(t.g, "p")->n_uses, 1);
    assert_non_null(strstr(said, "'p' is a Softmax"));
    test_graph_close(&t);
}

static void test_output(void **state)
{
    (void)state;
    TestGraph t;
    run(&t,
        NET "m: f32[] = ReduceMean(logits) {keepdims=0}\noutput y = logits\noutput total = m\n}\n",
        "output:total");
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    assert_string_equal(t.g->outputs[2].name, "loss");
    assert_ptr_equal(t.g->outputs[2].value, mpri_graph_find_value(t.g, "m"));
    test_graph_close(&t);
    /* named loss already; f16; one element instead of a scalar */
    run(&t, NET "h = Cast(logits) {to=f16}\nm = ReduceMean(h) {keepdims=1}\noutput loss = m\n}\n",
        "output:loss");
    assert_int_equal(t.g->outputs[0].value->shape.rank, 2);
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    assert_int_equal(t.g->n_outputs, 1);
    assert_int_equal(t.g->outputs[0].value->dtype, MPR_FLOAT32);
    assert_int_equal(t.g->outputs[0].value->shape.rank, 0);
    test_graph_close(&t);
}

static void test_existing_labels(void **state)
{
    (void)state;
    TestGraph t;
    run(&t,
        "graph \"g\" {\ninput z: f32[batch,10]\ninput labels: i32[batch]\noutput logits = "
        "z\noutput l2 = labels\n}\n",
        "cross-entropy");
    assert_true(test_graph_pass(&t, mpri_pass_loss));
    assert_int_equal(t.g->n_inputs, 2);
    test_graph_close(&t);
    run(&t,
        "graph \"g\" {\ninput z: f32[batch,10]\ninput labels: f32[batch]\noutput logits = "
        "z\noutput l2 = labels\n}\n",
        "cross-entropy");
    test_graph_refuses(&t, mpri_pass_loss, MPR_E_USAGE, "labels", "i64[batch]", "f32[batch]");
    test_graph_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char two[] = NET "i = Cast(logits) {to=i64}\noutput a = logits\noutput b = i\n}\n";
    static const struct {
        const char *text, *loss, *logits;
        mpr_status code;
        const char *word1, *word2;
    } rows[] = {
        {two, "cross-entropy", NULL, MPR_E_USAGE, "2 outputs", "a, b"},
        {two, "cross-entropy", "c", MPR_E_USAGE, "'c'", "a, b"},
        {two, "cross-entropy", "b", MPR_E_NOT_DIFFERENTIABLE, "'b'", "i64"},
        {two, "output:c", NULL, MPR_E_USAGE, "'c'", "a, b"},
        {two, "output:a", NULL, MPR_E_NOT_DIFFERENTIABLE, "'a'", "f32[batch,10]"},
        {two, "output:b", NULL, MPR_E_NOT_DIFFERENTIABLE, "'b'", "i64"},
        {two, "cross-entropi", NULL, MPR_E_USAGE, "'cross-entropi'", "'cross-entropy'"},
        {two, "hinge", NULL, MPR_E_USAGE, "'hinge'", "cross-entropy, mse"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TestGraph t;
        run(&t, rows[i].text, rows[i].loss);
        t.o.logits = rows[i].logits;
        test_graph_refuses(&t, mpri_pass_loss, rows[i].code, rows[i].word1, rows[i].word2);
        test_graph_close(&t);
    }
}

/* ONNX's own loss becomes the internal one, with and without its second output, and computes the
 * same. */
static void test_rewrite(void **state)
{
    (void)state;
    static const struct {
        const char *node, *ops;
    } rows[] = {
        {"l = SoftmaxCrossEntropyLoss(z, t)\noutput l = l\n", "CrossEntropy"},
        {"l = SoftmaxCrossEntropyLoss(z, t) {ignore_index=1, reduction=\"sum\"}\noutput l = l\n",
         "CrossEntropy"},
        {"l = SoftmaxCrossEntropyLoss(z, t) {reduction=\"none\"}\noutput l = l\n", "CrossEntropy"},
        {"l = SoftmaxCrossEntropyLoss(z, t, cw)\noutput l = l\n", "CrossEntropy"},
        {"l, p = SoftmaxCrossEntropyLoss(z, t)\noutput p = p\noutput l = l\n",
         "LogSoftmax CrossEntropy"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        TestGraph a, b;
        char text[512], ops[256] = "";
        snprintf(text, sizeof text,
                 "graph \"g\" {\ninput z: f32[2,3,4]\ninput t: i64[2,4]\nconst cw: f32[3] = "
                 "[0.5,1,2]\n%s}\n",
                 rows[i].node);
        run(&a, text, NULL);
        run(&b, text, NULL);
        assert_true(test_graph_pass(&b, mpri_pass_loss));
        for (const Node *n = b.g->first; n; n = n->next)
            strcat(strcat(ops, ops[0] ? " " : ""), n->op->name);
        assert_string_equal(ops, rows[i].ops);
        assert_string_equal(b.g->outputs[0].value->name, a.g->outputs[0].value->name);
        for (int k = 0; k < a.g->n_outputs; k++) {
            Tensor x = test_evaluate(&a, k), y = test_evaluate(&b, k);
            assert_true(test_difference(&x, &y) < 1e-6);
        }
        test_graph_close(&a);
        test_graph_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_tokens),
        cmocka_unit_test(test_mse),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_existing_labels),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_rewrite),
        cmocka_unit_test(test_written_losses),
        cmocka_unit_test(test_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
