/* Order: dW and its accumulation before dX, what is made from weights next to its reader. */
#include "tests/support/graphs.h"

#include <stdio.h>
#include <string.h>

/* The names of the nodes in order. */
static void schedules(const char *before, const char *order)
{
    TestGraph t;
    test_graph_open(&t, before);
    test_graph_pass(&t, mpri_pass_schedule);
    char got[512] = "";
    for (const Node *n = t.g->first; n; n = n->next)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", *got ? " " : "", n->name);
    assert_string_equal(got, order);
    test_graph_close(&t);
}

static void weight_gradients_come_first(void **state)
{
    (void)state;
    schedules("graph \"g\" {\n"
              "input x: f32[4,3]\n"
              "input cotangent:y: f32[4,3]\n"
              "param w: f32[3,3] trained init splat(1)\n"
              "param v: f32[3,3] trained init splat(1)\n"
              "slot gw: f32[3,3] grad of w\n"
              "slot gv: f32[3,3] grad of v\n"
              "slot gb: f32[3] grad\n"
              "slot flag: i32[] state\n"
              "h = FusedMatMul(x, w) @ \"h\"\n"
              "--- backward\n"
              "dh = FusedMatMul(cotangent:y, v) {trans_b=1} @ \"dh\"\n"
              "ht = Transpose(h) @ \"ht\"\n"
              "db = SumTo(cotangent:y) {dims=[3]} @ \"db\"\n"
              "dv = FusedMatMul(ht, cotangent:y) @ \"dv\"\n"
              "!AccumulateGrad(gv, dv, flag) @ \"av\"\n"
              "!AccumulateGrad(gb, db, flag) @ \"ab\"\n"
              "dx = FusedMatMul(dh, w) {trans_b=1} @ \"dx\"\n"
              "dw = FusedMatMul(x, dh) {trans_a=1} @ \"dw\"\n"
              "!AccumulateGrad(gw, dw, flag) @ \"aw\"\n"
              "output dx = dx\n}\n",
              "h db ab ht dv av dh dw aw dx");
}

/* Two contributions to one slot keep their order: the first one overwrites. */
static void writes_of_one_slot_stay_in_order(void **state)
{
    (void)state;
    schedules("graph \"g\" {\n"
              "input cotangent:a: f32[3]\n"
              "input cotangent:b: f32[3]\n"
              "slot g: f32[3] grad\n"
              "slot flag: i32[] state\n"
              "const one: i32[] = 1\n"
              "--- backward\n"
              "x = Neg(cotangent:a) @ \"x\"\n"
              "y = Neg(x) @ \"y\"\n"
              "z = Neg(cotangent:b) @ \"z\"\n"
              "!AccumulateGrad(g, y, flag) @ \"first\"\n"
              "!AccumulateGrad(g, z, one) @ \"second\"\n"
              "output x = x\n}\n",
              "z x y first second");
}

static void weight_casts_move_to_their_reader(void **state)
{
    (void)state;
    schedules("graph \"g\" {\n"
              "input x: f16[2,3]\n"
              "param w: f32[3,3] trained init splat(1)\n"
              "param v: f32[3,3] trained init splat(1)\n"
              "wl = Cast(w) {to=f16} @ \"wl\"\n"
              "vl = Cast(v) {to=f16} @ \"vl\"\n"
              "xr = Relu(x) @ \"xr\"\n"
              "a = MatMul(xr, wl) @ \"a\"\n"
              "b = MatMul(a, vl) @ \"b\"\n"
              "output b = b\n}\n",
              "xr wl a vl b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weight_gradients_come_first),
        cmocka_unit_test(writes_of_one_slot_stay_in_order),
        cmocka_unit_test(weight_casts_move_to_their_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
