/* Casts of trained parameters become slots that the optimizer writes: one for all readers of a type. */
#include "tests/support/graphs.h"

#include <string.h>

#define BEFORE                                                        \
    "graph \"g\" {\n"                                                 \
    "input x: f16[4,8]\n"                                             \
    "param w: f32[8,8] trained\n"                                     \
    "param b: f32[8] trained\n"                                       \
    "wl: f16[8,8] = Cast(w) {to=float16}\n"                           \
    "h: f16[4,8] = MatMul(x, wl)\n"                                   \
    "wt: f16[8,8] = Cast(w) {to=float16}\n"                           \
    "y: f16[4,8] = MatMul(h, wt)\n"                                   \
    "wb: bf16[8,8] = Cast(w) {to=bfloat16}\n"                         \
    "hw: f32[4,8] = Cast(y) {to=float32}\n"                           \
    "z: f32[4,8] = Add(hw, b)\n"                                      \
    "output z = z\noutput wb = wb\noutput wl = wl\n}\n"

static const Slot *slot_named(const Graph *g, const char *name)
{
    for (int i = 0; i < g->n_slots; i++)
        if (!strcmp(g->slots[i].name, name)) return &g->slots[i];
    return NULL;
}

static void casts_become_slots(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, BEFORE);
    t.o.keep_copies = true;
    assert_true(test_graph_pass(&t, mpri_pass_copies));
    int slots = t.g->n_slots, casts = 0;
    for (const Node *n = t.g->first; n; n = n->next) casts += mpri_is(n, OP_Cast);
    assert_int_equal(casts, 1); /* that of an activation */
    assert_int_equal(slots, 4); /* w, b, and w in two types; b is read in float32 */
    const Slot *low = slot_named(t.g, "copy:f16:w"), *other = slot_named(t.g, "copy:bf16:w");
    assert_non_null(low);
    assert_non_null(other);
    assert_int_equal(low->cls, SLOT_COPY);
    assert_int_equal(low->dtype, MPR_FLOAT16);
    assert_int_equal(other->dtype, MPR_BFLOAT16);
    assert_int_equal(low->value->n_uses, 2);
    assert_ptr_equal(t.g->outputs[1].value, other->value);
    assert_ptr_equal(t.g->outputs[2].value, low->value);
    assert_false(test_graph_pass(&t, mpri_pass_copies));
    test_graph_close(&t);
}

static void casts_stay(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, BEFORE);
    assert_false(test_graph_pass(&t, mpri_pass_copies));
    t.o.keep_copies = t.o.no_fuse = true;
    assert_false(test_graph_pass(&t, mpri_pass_copies));
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_become_slots),
        cmocka_unit_test(casts_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
