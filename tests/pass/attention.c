/* Attention written out becomes one operator on bound shapes: the forms that exporters write, what
 * is left alone, and that both sides compute the same values and gradients. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/support/graphs.h"

#define HEAD(low)                                                                                  \
    "graph \"g\" {\n"                                                                              \
    "input x: f32[2,4,6]\n"                                                                        \
    "input t: f32[2,4,6]\n"                                                                        \
    "param wq: f32[6,6] trained\n"                                                                 \
    "param wk: f32[6,6] trained\n"                                                                 \
    "param wv: f32[6,6] trained\n"                                                                 \
    "const heads: i64[4] = [2,4,2,3]\n"                                                            \
    "const flat: i64[3] = [2,4,6]\n"                                                               \
    "const scale: " low "[] = 0.5\n"                                                               \
    "const root: f32[] = 0.70710677\n"                                                             \
    "const shift: f32[4] = [0,-1,2,-3]\n"                                                          \
    "const hide: f32[] = -inf\n"                                                                   \
    "const tril: bool[4,4] = [1,0,0,0,1,1,0,0,1,1,1,0,1,1,1,1]\n"                                  \
    "const some: bool[4,4] = [1,0,1,0,1,1,0,0,1,1,1,0,1,1,1,1]\n"                                  \
    "xl = Cast(x) {to=" low "}\nql = Cast(wq) {to=" low "}\n"                                      \
    "kl = Cast(wk) {to=" low "}\nvl = Cast(wv) {to=" low "}\n"                                     \
    "q = MatMul(xl, ql)\nk = MatMul(xl, kl)\nv = MatMul(xl, vl)\n"                                 \
    "qh = Reshape(q, heads)\nkh = Reshape(k, heads)\nvh = Reshape(v, heads)\n"                     \
    "qt = Transpose(qh) {perm=[0,2,1,3]}\nvt = Transpose(vh) {perm=[0,2,1,3]}\n"
#define TAIL(low)                                                                                  \
    "ct = Transpose(c) {perm=[0,2,1,3]}\ncf = Reshape(ct, flat)\n"                                 \
    "of = Cast(cf) {to=f32}\ny = Add(x, of)\nl, m = MseLoss(y, t)\n"                               \
    "output loss = l\noutput y = y\n}\n"

static const Node *find(const Graph *g, int op)
{
    for (const Node *n = g->first; n; n = n->next)
        if (mpri_is(n, op)) return n;
    return NULL;
}

static void open_one(TestGraph *t, TestValues *v, const char *text, bool fused)
{
    test_graph_open(t, text);
    t->o.grads = GRADS_TO_SLOTS;
    t->o.training = true;
    if (fused) assert_true(test_graph_pass(t, mpri_pass_attention));
    test_graph_pass(t, mpri_pass_autodiff);
    test_values_open(v, t);
    for (int i = 0; i < t->g->n_inputs; i++) test_values_fill(v, t->g->inputs[i].value, -1, 1);
    for (int i = 0; i < t->g->n_slots; i++)
        if (t->g->slots[i].cls == SLOT_PARAM) test_values_fill(v, t->g->slots[i].value, -1, 1);
    test_values_run(v, true);
}

static void same(const Tensor *a, const Tensor *b, const char *name, double tolerance)
{
    double largest = 0;
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->dtype, b->dtype);
    for (int64_t k = 0; k < a->n; k++)
        largest = fmax(largest, fabs(mpri_load_f64(a->dtype, a->data, k)));
    for (int64_t k = 0; k < a->n; k++) {
        double x = mpri_load_f64(a->dtype, a->data, k), y = mpri_load_f64(b->dtype, b->data, k);
        if (!(fabs(x - y) <= tolerance * largest))
            fail_msg("%s[%d]: %.9g, as one operator %.9g", name, (int)k, x, y);
    }
}

/* Both sides train alike, and the operator has these attributes and inputs. */
static void check(const char *text, double tolerance, float scale, int n_in, int causal)
{
    TestGraph a, b;
    TestValues va, vb;
    open_one(&a, &va, text, false);
    open_one(&b, &vb, text, true);
    const Node *n = find(b.g, OP_Attention);
    assert_non_null(n);
    assert_null(find(b.g, OP_Softmax));
    const AttentionParams *p = n->params;
    assert_true(fabsf(p->scale - scale) < 1e-6f);
    assert_int_equal(n->n_in, n_in);
    assert_int_equal(p->is_causal, causal);
    for (int k = 1; k < 4; k++) assert_true(k >= n->n_out || !n->out[k]);
    for (int i = 0; i < a.g->n_outputs; i++)
        same(&va.at[a.g->outputs[i].value->id], &vb.at[b.g->outputs[i].value->id],
             a.g->outputs[i].name, tolerance);
    for (int i = 0; i < a.g->n_slots; i++) {
        if (a.g->slots[i].cls != SLOT_GRAD) continue;
        const Value *other = mpri_graph_find_value(b.g, a.g->slots[i].name);
        assert_non_null(other);
        same(&va.at[a.g->slots[i].value->id], &vb.at[other->id], a.g->slots[i].name,
             8 * tolerance);
    }
    test_graph_close(&a);
    test_graph_close(&b);
}

static void forms(void **state)
{
    (void)state;
    /* k transposed at once, scale behind, no mask */
    check(HEAD("f32") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\n"
                      "ss = Mul(s, scale)\np = Softmax(ss)\nc = MatMul(p, vt)\n" TAIL("f32"),
          1e-6, 0.5f, 3, 0);
    /* two transpositions, the root of the scale on both sides, an added mask */
    check(HEAD("f32") "k2 = Transpose(kh) {perm=[0,2,1,3]}\nkt = Transpose(k2) {perm=[0,1,3,2]}\n"
                      "qs = Mul(qt, root)\nks = Mul(kt, root)\ns = MatMul(qs, ks)\n"
                      "sm = Add(s, shift)\np = Softmax(sm)\nc = MatMul(p, vt)\n" TAIL("f32"),
          1e-6, 0.5f, 4, 0);
    /* a causal Where */
    check(HEAD("f32") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\n"
                      "sm = Where(tril, s, hide)\np = Softmax(sm)\nc = MatMul(p, vt)\n" TAIL("f32"),
          1e-6, 1.0f, 3, 1);
    /* another Where */
    check(HEAD("f32") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\n"
                      "sm = Where(some, s, hide)\np = Softmax(sm)\nc = MatMul(p, vt)\n" TAIL("f32"),
          1e-6, 1.0f, 4, 0);
}

/* Keys and values repeated for two query heads each are read as they were. */
static void groups(void **state)
{
    (void)state;
    check("graph \"g\" {\n"
          "input x: f32[1,4,8]\ninput t: f32[1,4,8]\n"
          "param wq: f32[8,8] trained\nparam wk: f32[8,4] trained\n"
          "const heads: i64[4] = [1,4,4,2]\nconst few: i64[4] = [1,4,2,2]\n"
          "const flat: i64[3] = [1,4,8]\nconst two: i64[1] = [2]\n"
          "const wide: i64[5] = [1,2,2,4,2]\nconst all: i64[4] = [1,4,4,2]\n"
          "q = MatMul(x, wq)\nk = MatMul(x, wk)\n"
          "qh = Reshape(q, heads)\nkh = Reshape(k, few)\n"
          "qt = Transpose(qh) {perm=[0,2,1,3]}\nk2 = Transpose(kh) {perm=[0,2,1,3]}\n"
          "ku = Unsqueeze(k2, two)\nke = Expand(ku, wide)\nkr = Reshape(ke, all)\n"
          "kt = Transpose(kr) {perm=[0,1,3,2]}\n"
          "s = MatMul(qt, kt)\np = Softmax(s)\nc = MatMul(p, kr)\n" TAIL("f32"),
          1e-6, 1.0f, 3, 0);
}

static void left_alone(void **state)
{
    (void)state;
    static const char *const texts[] = {
        /* the probabilities are an output */
        HEAD("f32") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\np = Softmax(s)\n"
                    "c = MatMul(p, vt)\noutput p = p\n" TAIL("f32"),
        /* another axis */
        HEAD("f32") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\n"
                    "p = Softmax(s) {axis=2}\nc = MatMul(p, vt)\n" TAIL("f32"),
        /* a trained mask */
        HEAD("f32") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\nsm = Add(s, b)\n"
                    "p = Softmax(sm)\nc = MatMul(p, vt)\n" TAIL("f32"),
        /* rounded to 16 bits in between */
        HEAD("f16") "kt = Transpose(kh) {perm=[0,2,3,1]}\ns = MatMul(qt, kt)\n"
                    "sf = Cast(s) {to=f32}\np = Softmax(sf)\npl = Cast(p) {to=f16}\n"
                    "c = MatMul(pl, vt)\n" TAIL("f16"),
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        TestGraph t;
        char text[4096];
        snprintf(text, sizeof text, "graph \"g\" {\nparam b: f32[4] trained\n%s",
                 strchr(texts[i], '\n') + 1);
        test_graph_open(&t, text);
        t.o.training = true;
        t.o.grads = GRADS_TO_SLOTS;
        test_graph_pass(&t, mpri_pass_bind);
        assert_false(test_graph_pass(&t, mpri_pass_attention));
        test_graph_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms), cmocka_unit_test(groups),
                                       cmocka_unit_test(left_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
