/* What backward makes again: Softmax of 16-bit scores, GELU, copies of weights; what is kept. */
#include "tests/support/graphs.h"

#include <string.h>
#include "runtime/ir/text_form.h"

/* One layer of attention and GELU, as the passes before leave it: products large enough to pay for
 * copies. */
#define LAYER                                                                                      \
    "graph \"g\" {\n"                                                                              \
    "input q: f16[512,512]\n"                                                                      \
    "input k: f16[512,512]\n"                                                                      \
    "input dc: f16[512,512]\n"                                                                     \
    "param w: f32[512,512] trained\n"                                                              \
    "wl: f16[512,512] = Cast(w) {to=float16} @ \"/w\"\n"                                           \
    "s: f16[512,512] = FusedMatMul(q, k) {trans_b=1} @ \"/scores\"\n"                              \
    "sf: f32[512,512] = Cast(s) {to=float32} @ \"/wide\"\n"                                        \
    "p: f32[512,512] = Softmax(sf) @ \"/softmax\"\n"                                               \
    "pl: f16[512,512] = Cast(p) {to=float16} @ \"/narrow\"\n"                                      \
    "h: f16[512,512] = FusedMatMul(pl, wl) @ \"/fc\"\n"                                            \
    "y: f16[512,512] = Gelu(h) @ \"/gelu\"\n"                                                      \
    "--- backward\n"

static void computes_again(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, LAYER "dw: f16[512,512] = FusedMatMul(y, dc) {trans_a=1} @ \"dw\"\n"
                              "dh: f16[512,512] = GeluGrad(dc, h) @ \"dh\"\n"
                              "dv: f16[512,512] = FusedMatMul(pl, dh) {trans_a=1} @ \"dv\"\n"
                              "dp: f16[512,512] = FusedMatMul(dh, wl) {trans_b=1} @ \"dp\"\n"
                              "dpf: f32[512,512] = Cast(dp) {to=float32} @ \"dpf\"\n"
                              "ds: f32[512,512] = SoftmaxGrad(dpf, p) @ \"ds\"\n"
                              "output dw = dw\noutput dv = dv\noutput ds = ds\n}\n");
    t.o.grads = GRADS_TO_OUTPUTS;
    assert_true(test_graph_pass(&t, mpri_pass_recompute));
    static const char *const order[] = {"/w",     "/scores", "/wide", "/softmax", "/narrow",
                                        "/fc",    "/gelu",   NULL,    NULL,       NULL,
                                        NULL,     NULL,      "dw",    "dh",       "dv",
                                        "dp",     "dpf",     "ds"};
    static const int copies[] = {OP_Cast, OP_Cast, OP_Softmax, OP_Cast, OP_Gelu};
    const Node *n = t.g->first, *copy[5];
    for (size_t i = 0; i < sizeof order / sizeof *order; i++, n = n->next) {
        assert_non_null(n);
        assert_int_equal(n->segment, i < 7 ? SEG_FORWARD : SEG_BACKWARD);
        if (order[i]) {
            assert_string_equal(n->name, order[i]);
            continue;
        }
        copy[i - 7] = n;
        assert_true(mpri_is(n, copies[i - 7]));
        assert_true(strncmp(n->name, "again:", 6) == 0);
    }
    assert_null(n);
    /* the chain starts at the scores, and its readers share it */
    assert_string_equal(copy[0]->in[0]->name, "w");
    assert_string_equal(copy[1]->in[0]->name, "s");
    assert_ptr_equal(copy[2]->in[0], copy[1]->out[0]);
    assert_ptr_equal(copy[3]->in[0], copy[2]->out[0]);
    assert_string_equal(copy[4]->in[0]->name, "h");
    for (n = copy[4]->next; n; n = n->next)
        for (int k = 0; k < n->n_in; k++)
            assert_true(n->in[k]->kind != VAL_NODE || n->in[k]->def->segment == SEG_BACKWARD ||
                        strcmp(n->in[k]->name, "h") == 0);
    test_graph_close(&t);
}

/* The same bits, node by node. */
static void same_values(void **state)
{
    (void)state;
    static const char text[] = LAYER
        "dw = FusedMatMul(y, dc) {trans_a=1}\n"
        "dh = GeluGrad(dc, h)\n"
        "dv = FusedMatMul(pl, dh) {trans_a=1}\n"
        "dp = FusedMatMul(dh, wl) {trans_b=1}\n"
        "dpf = Cast(dp) {to=float32}\n"
        "ds = SoftmaxGrad(dpf, p)\n"
        "output dw = dw\noutput dv = dv\noutput ds = ds\n}\n";
    TestGraph t[2];
    TestValues v[2];
    for (int i = 0; i < 2; i++) {
        test_graph_open(&t[i], text);
        t[i].o.grads = GRADS_TO_OUTPUTS;
        if (i) assert_true(test_graph_pass(&t[i], mpri_pass_recompute));
        if (i) test_graph_pass(&t[i], mpri_pass_schedule);
        test_values_open(&v[i], &t[i]);
        for (int k = 0; k < t[i].g->n_inputs; k++)
            test_values_fill(&v[i], t[i].g->inputs[k].value, -1, 1);
        test_values_fill(&v[i], mpri_graph_find_value(t[i].g, "w"), -1, 1);
        test_values_run(&v[i], true);
    }
    for (int i = 0; i < t[0].g->n_outputs; i++) {
        const Tensor *a = &v[0].at[t[0].g->outputs[i].value->id];
        const Tensor *b = &v[1].at[t[1].g->outputs[i].value->id];
        assert_int_equal(a->n, 512 * 512);
        assert_memory_equal(a->data, b->data, (size_t)a->n * mpri_dtype_size(a->dtype));
    }
    test_graph_close(&t[0]);
    test_graph_close(&t[1]);
}

/* ---- what is kept ---- */

static void keeps(const char *text)
{
    TestGraph t;
    test_graph_open(&t, text);
    t.o.grads = GRADS_TO_OUTPUTS;
    assert_false(test_graph_pass(&t, mpri_pass_recompute));
    test_graph_close(&t);
}

#define WORK /* a product that pays for many copies */                                             \
    "input a: f16[2048,2048]\n"                                                                    \
    "aa = FusedMatMul(a, a)\noutput aa = aa\n"

static void f32_stays(void **state)
{
    (void)state;
    keeps("graph \"g\" {\n" WORK "input x: f32[512,512]\ninput dy: f32[512,512]\n"
          "h = FusedMatMul(x, x)\ny = Gelu(h)\nz = FusedMatMul(y, y)\noutput z = z\n--- backward\n"
          "dw = FusedMatMul(y, dy)\ndh = GeluGrad(dy, h)\noutput dw = dw\noutput dh = dh\n}\n");
}

/* The input of GELU is as large as its output, and nobody else keeps it. */
static void nothing_saved(void **state)
{
    (void)state;
    keeps("graph \"g\" {\n" WORK "input x: f16[512,512]\n"
          "h = FusedMatMul(x, x)\ny = Gelu(h)\n--- backward\n"
          "dw = FusedMatMul(y, x)\noutput dw = dw\n}\n");
    keeps("graph \"g\" {\n" WORK "input x: f16[512,512]\ninput dy: f16[512,512]\n"
          "h = FusedMatMul(x, x)\ny = Gelu(h)\n--- backward\n"
          "dh = GeluGrad(dy, h)\ndw = FusedMatMul(y, dh)\noutput dw = dw\n}\n");
}

static void outputs_stay(void **state)
{
    (void)state;
    keeps("graph \"g\" {\n" WORK "input x: f16[512,512]\ninput dy: f16[512,512]\n"
          "h = FusedMatMul(x, x)\ny = Gelu(h)\noutput y = y\n--- backward\n"
          "dw = FusedMatMul(y, dy)\ndh = GeluGrad(dy, h)\noutput dw = dw\noutput dh = dh\n}\n");
}

/* With 8 rows the cast costs as much as the product. */
static void few_rows(void **state)
{
    (void)state;
    keeps("graph \"g\" {\ninput x: f16[8,512]\ninput dy: f16[8,512]\n"
          "param w: f32[512,512] trained\nwl = Cast(w) {to=float16}\ny = FusedMatMul(x, wl)\n"
          "output y = y\n--- backward\ndx = FusedMatMul(dy, wl) {trans_b=1}\noutput dx = dx\n}\n");
}

/* What a slot holds may have changed. */
static void written_slots(void **state)
{
    (void)state;
    keeps("graph \"g\" {\n" WORK "input x: f16[512,512]\n"
          "slot sum: f32[512,512] grad\nslot flag: i32[] state\n"
          "l = Cast(sum) {to=float16}\ny = FusedMatMul(x, l)\noutput y = y\n--- backward\n"
          "!AccumulateGrad(sum, x, flag)\nd = FusedMatMul(x, l)\noutput d = d\n}\n");
}

static void random_numbers(void **state)
{
    (void)state;
    keeps("graph \"g\" {\n" WORK "input x: f32[512,512]\n"
          "const ratio: f32[] = 0.5\nconst on: bool[] = 1\n"
          "d, m = Dropout(x, ratio, on)\nl = Cast(d) {to=float16}\ny = FusedMatMul(l, l)\n"
          "output y = y\noutput d = m\n--- backward\nz = FusedMatMul(l, l)\noutput z = z\n}\n");
}

static void memory_runs_out(void **state)
{
    (void)state;
    static const char text[] = LAYER
        "dw = FusedMatMul(y, dc)\ndh = GeluGrad(dc, h)\noutput dw = dw\noutput dh = dh\n}\n";
    int failures = 0;
    mpr_status status = MPR_E_NOMEM;
    for (int which = 0; which < 2; which++, status = MPR_E_NOMEM)
        for (size_t limit = 16; status != MPR_OK; limit += 48) {
            TestGraph t;
            bool changed = false;
            test_graph_open(&t, text);
            t.o.grads = GRADS_TO_OUTPUTS;
            Arena *a = which ? &t.arena : &t.scratch;
            a->limit = a->used + limit;
            status = mpri_pass_recompute(&t.ctx, t.g, &changed, &t.err);
            if (status != MPR_OK) assert_int_equal(status, MPR_E_NOMEM);
            failures += status != MPR_OK;
            a->limit = 0;
            test_graph_close(&t);
        }
    assert_true(failures > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes_again), cmocka_unit_test(same_values),
        cmocka_unit_test(f32_stays),      cmocka_unit_test(nothing_saved),
        cmocka_unit_test(outputs_stay),   cmocka_unit_test(few_rows),
        cmocka_unit_test(written_slots),  cmocka_unit_test(random_numbers),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
