/* Einsum lowered to matrix products against its definition: the same equation before and after, in
 * double, on the reference kernels. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/support/graphs.h"

static double results[2][512];

static int evaluate(const char *text, bool lowered, double *out)
{
    TestGraph t;
    TestValues v;
    test_graph_open(&t, text);
    if (lowered) {
        assert_true(test_graph_pass(&t, mpri_pass_lower));
        for (const Node *n = t.g->first; n; n = n->next) assert_false(mpri_is(n, OP_Einsum));
    }
    test_values_open(&v, &t);
    for (int i = 0; i < t.g->n_inputs; i++) test_values_fill(&v, t.g->inputs[i].value, -1, 1);
    test_values_run(&v, false);
    const Value *y = t.g->outputs[0].value;
    const Tensor *r = &v.at[y->id];
    assert_true(r->n <= 512);
    int n = (int)r->n;
    for (int i = 0; i < n; i++) out[i] = mpri_load_f64(r->dtype, r->data, i);
    test_graph_close(&t);
    return n;
}

/* inputs: "a: f64[2,3]\ninput b: …"; call: "a, b" */
static void same(const char *inputs, const char *call, const char *equation)
{
    char text[512];
    snprintf(text, sizeof text,
             "graph \"g\" {\ninput %s\ny = Einsum(%s) {equation=\"%s\"}\noutput y = y\n}\n", inputs,
             call, equation);
    int n = evaluate(text, false, results[0]);
    assert_int_equal(evaluate(text, true, results[1]), n);
    for (int i = 0; i < n; i++)
        if (fabs(results[0][i] - results[1][i]) > 1e-12)
            fail_msg("%s: element %d is %g, expected %g", equation, i, results[1][i],
                     results[0][i]);
}

static void equations(void **state)
{
    (void)state;
    const char *ab = "a: f64[2,3]\ninput b: f64[3,4]";
    same(ab, "a, b", "ij,jk->ik");
    same(ab, "a, b", "ij,jk->ki");
    same(ab, "a, b", "ij,jk");
    same(ab, "a, b", "ij,jk->");
    same(ab, "b, a", "jk,ij->ik");
    same(ab, "a, b", "ij,kl->kjil");
    same("a: f64[2,3,4]\ninput b: f64[2,5,4]", "a, b", "bqd,bkd->bqk");
    same("a: f64[2,3,2,4]\ninput b: f64[2,5,2,4]", "a, b", "bqhd,bkhd->bhqk");
    same("a: f64[2,2,3,5]\ninput b: f64[2,5,2,4]", "a, b", "bhqk,bkhd->bqhd");
    same("a: f64[3,3]", "a", "ii->i");
    same("a: f64[3,3]", "a", "ii");
    same("a: f64[2,3,2]", "a", "iji->j");
    same("a: f64[2,3,4]", "a", "ijk->ki");
    same("a: f64[2,3]\ninput b: f64[2,3]", "a, b", "ij,ij->");
    same("a: f64[2,3]\ninput b: f64[2,3]", "a, b", "ij,ij->ij");
    same("a: f64[3]\ninput b: f64[4]", "a, b", "i,j->ji");
    same("a: f64[2,1,3,2]\ninput b: f64[4,2,3]", "a, b", "...ij,...jk->...ik");
    same("a: f64[1,3]\ninput b: f64[4,3]", "a, b", "ij,ij->i");
    same("a: f64[2,3]\ninput b: f64[3,4]\ninput c: f64[4,2]", "a, b, c", "ij,jk,ki->i");
    same("a: f64[]\ninput b: f64[3]", "a, b", ",i->i");
    same("a: f64[2,0]\ninput b: f64[0,3]", "a, b", "ij,jk->ik");
}

/* A plain product needs nothing but the product. */
static void one_product(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\ninput a: f32[2,3,4]\ninput b: f32[2,5,4]\n"
                        "y = Einsum(a, b) {equation=\"bqd,bkd->bqk\"}\noutput y = y\n}\n");
    assert_true(test_graph_pass(&t, mpri_pass_lower));
    assert_int_equal(t.g->n_nodes, 1);
    assert_true(mpri_is(t.g->first, OP_FusedMatMul));
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equations), cmocka_unit_test(one_product)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
