/* Folding, lowering, fusing and scheduling do not change what is computed: both graphs are
 * evaluated with the reference kernels, forward and backward, and outputs and gradient slots are
 * compared. The reference kernels round once from double, so a fused cast may differ in the last
 * bit of its type where the two operators would have rounded twice. */
#include "tests/support/graphs.h"

#include <math.h>
#include <string.h>

static void open_one(TestGraph *t, TestValues *v, const char *text, bool optimised)
{
    static const PassFn passes[] = {mpri_pass_fold, mpri_pass_lower, mpri_pass_fuse,
                                    mpri_pass_schedule};
    test_graph_open(t, text);
    t->o.grads = GRADS_TO_SLOTS;
    t->o.training = true;
    test_graph_pass(t, mpri_pass_autodiff);
    for (size_t i = 0; optimised && i < sizeof passes / sizeof *passes; i++)
        test_graph_pass(t, passes[i]);
    test_values_open(v, t);
    for (int i = 0; i < t->g->n_inputs; i++) test_values_fill(v, t->g->inputs[i].value, -1, 1);
    for (int i = 0; i < t->g->n_slots; i++)
        if (t->g->slots[i].cls == SLOT_PARAM) test_values_fill(v, t->g->slots[i].value, -1, 1);
    test_values_run(v, true);
}

static double unit(DType t)
{
    return t == MPR_FLOAT16 ? 0x1p-10 : t == MPR_BFLOAT16 ? 0x1p-7 : 1e-6;
}

static void same(const Tensor *a, const Tensor *b, const char *name, double tolerance)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->dtype, b->dtype);
    double largest = 0;
    for (int64_t k = 0; k < a->n; k++)
        largest = fmax(largest, fabs(mpri_load_f64(a->dtype, a->data, k)));
    for (int64_t k = 0; k < a->n; k++) {
        double x = mpri_load_f64(a->dtype, a->data, k), y = mpri_load_f64(b->dtype, b->data, k);
        if (!(fabs(x - y) <= tolerance * largest))
            fail_msg("%s[%d]: %.9g, optimised %.9g", name, (int)k, x, y);
    }
}

static void equal(const char *text, DType compute)
{
    TestGraph a, b;
    TestValues va, vb;
    open_one(&a, &va, text, false);
    open_one(&b, &vb, text, true);
    assert_true(b.g->n_nodes < a.g->n_nodes);
    int compared = 0;
    for (int i = 0; i < a.g->n_outputs; i++, compared++)
        same(&va.at[a.g->outputs[i].value->id], &vb.at[b.g->outputs[i].value->id],
             a.g->outputs[i].name, unit(compute));
    for (int i = 0; i < a.g->n_slots; i++) {
        if (a.g->slots[i].cls != SLOT_GRAD) continue;
        const Value *other = mpri_graph_find_value(b.g, a.g->slots[i].name);
        assert_non_null(other);
        same(&va.at[a.g->slots[i].value->id], &vb.at[other->id], a.g->slots[i].name,
             4 * unit(compute));
        compared++;
    }
    assert_true(compared > 2);
    test_graph_close(&a);
    test_graph_close(&b);
}

#define MLP(low)                                                                                   \
    "graph \"mlp\" {\n"                                                                            \
    "input x: f32[4,6]\n"                                                                          \
    "input t: f32[4,2]\n"                                                                          \
    "param w: f32[5,6] trained\n"                                                                  \
    "param b: f32[5] trained\n"                                                                    \
    "param v: f32[5,5] trained\n"                                                                  \
    "param u: f32[5,2] trained\n"                                                                  \
    "const half: " low "[] = 0.5\n"                                                                \
    "xl = Cast(x) {to=" low "}\n"                                                                  \
    "wl = Cast(w) {to=" low "}\n"                                                                  \
    "bl = Cast(b) {to=" low "}\n"                                                                  \
    "vl = Cast(v) {to=" low "}\n"                                                                  \
    "ul = Cast(u) {to=" low "}\n"                                                                  \
    "h = Linear(xl, wl, bl) {trans_w=1}\n"                                                         \
    "r = Relu(h)\n"                                                                                \
    "g = MatMul(r, vl)\n"                                                                          \
    "gs = Mul(g, half)\n"                                                                          \
    "a = Gelu(gs)\n"                                                                               \
    "y = Gemm(a, ul)\n"                                                                            \
    "yf = Cast(y) {to=f32}\n"                                                                      \
    "l, n = MseLoss(yf, t)\n"                                                                      \
    "output loss = l\n"                                                                            \
    "output y = yf\n}\n"

#define ATTENTION(low)                                                                             \
    "graph \"attention\" {\n"                                                                      \
    "input x: f32[2,4,6]\n"                                                                        \
    "input t: f32[2,4,6]\n"                                                                        \
    "param s: f32[6] trained\n"                                                                    \
    "param b: f32[6] trained\n"                                                                    \
    "param wq: f32[6,6] trained\n"                                                                 \
    "param wk: f32[6,6] trained\n"                                                                 \
    "param wv: f32[6,6] trained\n"                                                                 \
    "const heads: i64[4] = [2,4,2,3]\n"                                                            \
    "const flat: i64[3] = [2,4,6]\n"                                                               \
    "const scale: " low "[] = 0.5\n"                                                               \
    "const mask: f32[4,4] = [0,-9,-9,-9,0,0,-9,-9,0,0,0,-9,0,0,0,0]\n"                             \
    "n = LayerNormalization(x, s, b)\n"                                                            \
    "nl = Cast(n) {to=" low "}\n"                                                                  \
    "ql = Cast(wq) {to=" low "}\n"                                                                 \
    "kl = Cast(wk) {to=" low "}\n"                                                                 \
    "vl = Cast(wv) {to=" low "}\n"                                                                 \
    "q = MatMul(nl, ql)\n"                                                                         \
    "k = MatMul(nl, kl)\n"                                                                         \
    "v = MatMul(nl, vl)\n"                                                                         \
    "qh = Reshape(q, heads)\n"                                                                     \
    "kh = Reshape(k, heads)\n"                                                                     \
    "vh = Reshape(v, heads)\n"                                                                     \
    "qt = Transpose(qh) {perm=[0,2,1,3]}\n"                                                        \
    "kt = Transpose(kh) {perm=[0,2,3,1]}\n"                                                        \
    "vt = Transpose(vh) {perm=[0,2,1,3]}\n"                                                        \
    "sc = MatMul(qt, kt)\n"                                                                        \
    "ss = Mul(sc, scale)\n"                                                                        \
    "sf = Cast(ss) {to=f32}\n"                                                                     \
    "sm = Add(sf, mask)\n"                                                                         \
    "p = Softmax(sm)\n"                                                                            \
    "pl = Cast(p) {to=" low "}\n"                                                                  \
    "c = MatMul(pl, vt)\n"                                                                         \
    "ct = Transpose(c) {perm=[0,2,1,3]}\n"                                                         \
    "cf = Reshape(ct, flat)\n"                                                                     \
    "o = MatMul(cf, ql)\n"                                                                         \
    "of = Cast(o) {to=f32}\n"                                                                      \
    "y = Add(x, of)\n"                                                                             \
    "l, m = MseLoss(y, t)\n"                                                                       \
    "output loss = l\n"                                                                            \
    "output y = y\n}\n"

static void mlp(void **state)
{
    (void)state;
    equal(MLP("f32"), MPR_FLOAT32);
    equal(MLP("f16"), MPR_FLOAT16);
    equal(MLP("bf16"), MPR_BFLOAT16);
}

static void attention(void **state)
{
    (void)state;
    equal(ATTENTION("f32"), MPR_FLOAT32);
    equal(ATTENTION("f16"), MPR_FLOAT16);
    equal(ATTENTION("bf16"), MPR_BFLOAT16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mlp), cmocka_unit_test(attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
