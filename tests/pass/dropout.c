/* --dropout: nodes of the file get the ratio; a file without any gets Dropout where the recipes
 * have it; nothing happens outside training. */
#include "tests/support/graphs.h"

static void open(TestGraph *t, const char *text)
{
    test_graph_open(t, text);
    t->o.training = true;
    t->o.has_dropout = true;
    t->o.dropout = 0.25f;
}

/* How many Dropouts there are, all with the ratio and in training. */
static int count(const TestGraph *t)
{
    int n = 0;
    for (const Node *node = t->g->first; node; node = node->next) {
        if (!mpri_is(node, OP_Dropout)) continue;
        assert_int_equal(node->n_in, 3);
        assert_true(mpri_load_f64(node->in[1]->dtype, node->in[1]->data, 0) == 0.25);
        assert_int_equal(mpri_load_i64(node->in[2]->dtype, node->in[2]->data, 0), 1);
        n++;
    }
    return n;
}

static void of_the_file(void **state)
{
    (void)state;
    TestGraph t;
    open(&t, "graph \"g\" {\ninput x: f32[4]\nconst r: f32[] = 0.5\na = Dropout(x)\n"
             "b = Dropout(a, r)\noutput y = b\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_dropout));
    assert_int_equal(count(&t), 2);
    test_graph_close(&t);
}

static void transformer(void **state)
{
    (void)state;
    TestGraph t;
    open(&t, "graph \"g\" {\ninput x: f32[2,4,4]\nparam w: f32[4,4] trained\n"
             "h = Abs(x)\ns = Softmax(h)\na = MatMul(s, h)\no = MatMul(a, w)\nr = Add(o, h)\n"
             "const s2: i64[2] = [8,4]\nconst s3: i64[3] = [2,4,4]\nf = MatMul(r, w)\ng = Relu(f)\n"
             "q = Reshape(g, s2)\nm = MatMul(q, w)\nk = Reshape(m, s3)\ny = Add(r, k)\n"
             "output y = y\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_dropout));
    assert_int_equal(count(&t), 3);
    assert_true(mpri_is(mpri_def(mpri_graph_find_value(t.g, "a")->def->in[0]), OP_Dropout));
    assert_true(mpri_is(mpri_def(mpri_graph_find_value(t.g, "y")->def->in[1]), OP_Dropout));
    test_graph_close(&t);
}

static void mlp(void **state)
{
    (void)state;
    TestGraph t;
    open(&t, "graph \"g\" {\ninput x: f32[2,4]\nparam w: f32[4,4] trained\n"
             "h = MatMul(x, w)\na = Relu(h)\ny = MatMul(a, w)\noutput y = y\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_dropout));
    assert_int_equal(count(&t), 1);
    assert_true(mpri_is(mpri_def(mpri_graph_find_value(t.g, "y")->def->in[0]), OP_Dropout));
    test_graph_close(&t);
}

static void nowhere(void **state)
{
    (void)state;
    TestGraph t;
    open(&t, "graph \"g\" {\ninput x: f32[4]\ny = Abs(x)\noutput y = y\n}\n");
    test_graph_refuses(&t, mpri_pass_dropout, MPR_E_USAGE, "no Dropout found");
    test_graph_close(&t);
    open(&t, "graph \"g\" {\ninput x: f32[4]\ny = Abs(x)\noutput y = y\n}\n");
    t.o.training = false;
    assert_false(test_graph_pass(&t, mpri_pass_dropout));
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_the_file),
        cmocka_unit_test(transformer),
        cmocka_unit_test(mlp),
        cmocka_unit_test(nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
