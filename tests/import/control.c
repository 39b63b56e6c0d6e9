/* Loops, branches and sequences become plain nodes as soon as their numbers are known; until then
 * the importer tells what it waits for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/op/ops.h"
#include "tests/support/wire_model.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})
static const int64_t scalar[] = {-99};

static void add_graph(Wire *node, const char *name, Wire *graph)
{
    Wire a = wm_begin();
    wm_str(&a, 1, name);
    wm_end(&a, 6, graph);
    wm_int(&a, 20, 5);
    wm_end(node, 5, &a);
}

/* Loop body: s2 = s + x; the condition is the one that comes in, or computed: i < last. */
static Wire loop_body(bool computed)
{
    static const int64_t last = 2;
    Wire b = wm_begin();
    wm_value(&b, 11, "i", MPR_INT64, scalar);
    wm_value(&b, 11, "c", MPR_BOOL, scalar);
    wm_value(&b, 11, "s", MPR_FLOAT32, D(2));
    if (computed) {
        Wire t = wm_tensor("last", MPR_INT64, (const int64_t[]){-1}, &last, sizeof last);
        wm_end(&b, 5, &t);
        wm_add_node(&b, "Less", "less", "i last", "c2");
    } else {
        wm_add_node(&b, "Identity", "same", "c", "c2");
    }
    wm_add_node(&b, "Add", "add", "s x", "s2");
    wm_add_node(&b, "Relu", "each", "s2", "e");
    wm_value(&b, 12, "c2", MPR_BOOL, scalar);
    wm_value(&b, 12, "s2", MPR_FLOAT32, D(2));
    wm_value(&b, 12, "e", MPR_FLOAT32, D(2));
    return b;
}

static const char *loop_model(const char *limit, bool computed)
{
    static const int64_t three = 3;
    Wire g = wm_begin(), n, body = loop_body(computed);
    static const uint8_t yes = 1;
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2));
    wm_value(&g, 11, "m", MPR_INT64, scalar);
    Wire t = wm_tensor("three", MPR_INT64, (const int64_t[]){-1}, &three, sizeof three);
    wm_end(&g, 5, &t);
    t = wm_tensor("yes", MPR_BOOL, (const int64_t[]){-1}, &yes, 1);
    wm_end(&g, 5, &t);
    char inputs[64];
    snprintf(inputs, sizeof inputs, "%s yes x", limit);
    n = wm_node("Loop", "loop", inputs, "y all");
    add_graph(&n, "body", &body);
    GRAPH_ADD_NODE(&g, &n);
    wm_value(&g, 12, "y", MPR_FLOAT32, D(2));
    wm_value(&g, 12, "all", MPR_FLOAT32, D(-1, 2));
    Wire model = wm_model(&g, 8, 17);
    return wm_write_model("loop.onnx", &model);
}

static int count(const ImportedModel *m, int op)
{
    int n = 0;
    for (const Node *p = m->graph->first; p; p = p->next) n += p->op->id == op;
    return n;
}

static bool has_opaque(const ImportedModel *m)
{
    for (const Node *p = m->graph->first; p; p = p->next)
        if (p->op->flags & OPF_OPAQUE) return true;
    return false;
}

static void constant_trips(void **state)
{
    (void)state;
    ImportedModel *m = wm_import_ok(loop_model("three", false));
    assert_int_equal(m->n_open, 0);
    assert_false(has_opaque(m));
    assert_int_equal(count(m, OP_Add), 3);
    const Shape *all = &m->graph->outputs[1].value->shape;
    assert_int_equal(all->rank, 2);
    assert_int_equal(all->d[0], 3);
    mpri_import_destroy(m, mpri_alloc_default());
}

static void trips_that_are_told(void **state)
{
    (void)state;
    const char *path = loop_model("m", false);
    ImportedModel *m = wm_import_ok(path);
    assert_int_equal(m->n_open, 1);
    assert_string_equal(m->open[0].name, "m");
    assert_int_equal(m->open[0].axis, FACT_VALUE);
    Err err;
    mpri_err_clear(&err);
    assert_true(has_opaque(m));
    assert_int_equal(mpri_import_check_supported(m->graph, &err), MPR_E_UNSUPPORTED_OP);
    assert_non_null(strstr(err.message, "Loop"));
    mpri_import_destroy(m, mpri_alloc_default());
    const Fact fact = {"m", FACT_VALUE, 2};
    ImportOptions o = {.facts = &fact, .n_facts = 1};
    mpri_err_clear(&err);
    m = wm_import(path, &o, &err);
    assert_non_null(m);
    assert_int_equal(m->n_open, 0);
    assert_int_equal(count(m, OP_Add), 2);
    mpri_import_destroy(m, mpri_alloc_default());
}

/* Turn by turn: every import knows one condition more, under the name it had when it was asked for.
 */
static void condition_of_each_turn(void **state)
{
    (void)state;
    const char *path = loop_model("three", true);
    Fact facts[8];
    int n = 0, adds = 0;
    for (bool open = true; open && n < 8;) {
        Err err;
        mpri_err_clear(&err);
        ImportOptions o = {.facts = facts, .n_facts = n};
        ImportedModel *m = wm_import(path, &o, &err);
        assert_non_null(m);
        open = m->n_open > 0;
        adds = count(m, OP_Add);
        if (open) {
            assert_int_equal(m->n_open, 1);
            assert_non_null(mpri_graph_find_value(m->graph, m->open[0].name));
            facts[n] = m->open[0];
            facts[n].name = strdup(m->open[0].name);
            facts[n].value = n < 1;
            n++;
        } else {
            assert_false(has_opaque(m));
        }
        mpri_import_destroy(m, mpri_alloc_default());
    }
    assert_int_equal(n, 2);
    assert_int_equal(adds, 2);
    for (int i = 0; i < n; i++) free((char *)(uintptr_t)facts[i].name);
}

static void limit_of_turns(void **state)
{
    (void)state;
    Err err;
    mpri_err_clear(&err);
    const mpr_limits limits = {.size = sizeof limits, .trips = 2};
    ImportOptions o = {.limits = &limits};
    assert_null(wm_import(loop_model("three", false), &o, &err));
    assert_error(MPR_E_LIMIT, &err, "'loop'", "2 turns");
}

/* A sequence that is built, changed and joined leaves a Concat; what leaves the model stays. */
static void sequences(void **state)
{
    (void)state;
    static const int64_t zero = 0;
    for (int leave = 0; leave < 2; leave++) {
        Wire g = wm_begin(), n;
        wm_value(&g, 11, "x", MPR_FLOAT32, D(2));
        wm_value(&g, 11, "z", MPR_FLOAT32, D(3));
        Wire t = wm_tensor("zero", MPR_INT64, (const int64_t[]){-1}, &zero, sizeof zero);
        wm_end(&g, 5, &t);
        wm_add_node(&g, "SequenceEmpty", "empty", "", "s0");
        wm_add_node(&g, "SequenceInsert", "one", "s0 x", "s1");
        wm_add_node(&g, "SequenceInsert", "two", "s1 z zero", "s2");
        wm_add_node(&g, "SequenceAt", "at", "s2 zero", "first");
        wm_add_node(&g, "SequenceLength", "length", "s2", "count");
        n = wm_node("ConcatFromSequence", "join", "s2", "y");
        wm_attr_int(&n, "axis", 0);
        GRAPH_ADD_NODE(&g, &n);
        wm_value(&g, 12, "y", MPR_FLOAT32, D(5));
        wm_value(&g, 12, "first", MPR_FLOAT32, D(3));
        if (leave) wm_value(&g, 12, "s2", MPR_FLOAT32, NULL);
        Wire model = wm_model(&g, 8, 17);
        ImportedModel *m = wm_import_ok(wm_write_model("sequence.onnx", &model));
        assert_int_equal(has_opaque(m), leave);
        assert_int_equal(count(m, OP_Concat), 1);
        mpri_import_destroy(m, mpri_alloc_default());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_trips),
        cmocka_unit_test(trips_that_are_told),
        cmocka_unit_test(condition_of_each_turn),
        cmocka_unit_test(limit_of_turns),
        cmocka_unit_test(sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
