/* Old opsets become the newest meaning: the imported graph as text. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/wire_model.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})
#define I(...)                                                                         \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) \
    {                                                                                  \
        __VA_ARGS__                                                                    \
    }

/* Imports the graph (x: f32[2,3,4] unless it has inputs of its own) and looks for lines of the text
 * form. */
static void expect_lines(Wire *graph, int64_t opset, const char *const *lines)
{
    Wire model = wm_model(graph, 8, opset);
    ImportedModel *m = wm_import_ok(wm_write_model("adapt.onnx", &model));
    char *text = wm_graph_text(m);
    for (; *lines; lines++) {
        if (!strstr(text, *lines)) print_error("no '%s' in:\n%s\n", *lines, text);
        assert_non_null(strstr(text, *lines));
    }
    free(text);
    mpri_import_destroy(m, mpri_alloc_default());
}
#define EXPECT(graph, opset, ...) \
    expect_lines((graph), (opset), (const char *const[]){__VA_ARGS__, NULL})

static Wire begin(const int64_t *out)
{
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2, 3, 4));
    wm_value(&g, 12, "y", MPR_FLOAT32, out);
    return g;
}

static void expect_error(Wire *graph, int64_t opset, mpr_status code, const char *a, const char *b)
{
    Err err;
    Wire model = wm_model(graph, 8, opset);
    ImportedModel *m = wm_import(wm_write_model("adapt.onnx", &model), NULL, &err);
    assert_null(m);
    assert_error(code, &err, a, b);
}

static void test_axes_become_inputs(void **state)
{
    (void)state;
    static const char *const ops[] = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceProd"};
    for (size_t i = 0; i < 4; i++) {
        Wire g = begin(D(2, 4)), n = wm_node(ops[i], "r", "x", "y");
        wm_attr_ints(&n, "axes", I(1));
        wm_attr_int(&n, "keepdims", 0);
        GRAPH_ADD_NODE(&g, &n);
        EXPECT(&g, 11, "y: f32[2,4] = Reduce", "(x, y:axes) {keepdims=0}",
               "const  y:axes: i64[1] = [1]");
    }
    Wire g = begin(D(2, 1, 3, 4)), n = wm_node("Unsqueeze", "u", "x", "y");
    wm_attr_ints(&n, "axes", I(1));
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 12, "y: f32[2,1,3,4] = Unsqueeze(x, y:axes)");
}

static void test_slice_split_clip(void **state)
{
    (void)state;
    Wire g = begin(D(2, 1, 4)), n = wm_node("Slice", "s", "x", "y");
    wm_attr_ints(&n, "starts", I(1));
    wm_attr_ints(&n, "ends", I(2));
    wm_attr_ints(&n, "axes", I(1));
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 9, "y: f32[2,1,4] = Slice(x, y:starts, y:ends, y:axes)");

    g = begin(D(2, 3, 1));
    n = wm_node("Split", "s", "x", "y z");
    wm_attr_int(&n, "axis", 2);
    wm_attr_ints(&n, "split", I(1, 3));
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 11, "y: f32[2,3,1], z: f32[2,3,3] = Split(x, y:split) {axis=2}");

    g = begin(D(2, 3, 2));
    n = wm_node("Split", "s", "x", "y z");
    wm_attr_int(&n, "axis", 2);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 13, "y: f32[2,3,2], z: f32[2,3,2] = Split(x", "num_outputs=2");

    g = begin(D(2, 3, 4));
    n = wm_node("Clip", "c", "x", "y");
    wm_attr_float(&n, "min", 0);
    wm_attr_float(&n, "max", 6);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 6, "y: f32[2,3,4] = Clip(x, y:min, y:max)", "const  y:max: f32[] = 6");
}

static void test_softmax_before_13_flattens(void **state)
{
    (void)state;
    Wire g = begin(D(2, 3, 4)), n = wm_node("Softmax", "s", "x", "y");
    GRAPH_ADD_NODE(&g, &n); /* axis 1: normalises over the last two dims together */
    EXPECT(&g, 11, "Flatten(x)", "y:normalised: f32[2,12] = Softmax(y:flat)",
           "y: f32[2,3,4] = Reshape(y:normalised, y:shape)");
    g = begin(D(2, 3, 4));
    n = wm_node("LogSoftmax", "s", "x", "y");
    wm_attr_int(&n, "axis", 2);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 11, "y: f32[2,3,4] = LogSoftmax(x)");
    g = begin(D(2, 3, 4));
    n = wm_node("Softmax", "s", "x", "y");
    wm_attr_int(&n, "axis", 1);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 13, "y: f32[2,3,4] = Softmax(x) {axis=1}");
}

static void test_broadcast_before_7(void **state)
{
    (void)state;
    Wire g = begin(D(2, 3, 4));
    wm_add_f32(&g, "b", (const int64_t[]){3, -1}, (const float[]){1, 2, 3});
    Wire n = wm_node("Add", "a", "x b", "y");
    wm_attr_int(&n, "broadcast", 1);
    wm_attr_int(&n, "axis", 1);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 6, "y:wide: f32[3,1] = Unsqueeze(b, y:axes)", "y: f32[2,3,4] = Add(x, y:wide)");
    g = begin(D(2, 3, 4));
    wm_add_f32(&g, "b", (const int64_t[]){3, -1}, (const float[]){1, 2, 3});
    n = wm_node("Add", "a", "x b", "y");
    wm_attr_int(&n, "axis", 1);
    GRAPH_ADD_NODE(&g, &n);
    expect_error(&g, 7, MPR_E_INVALID_MODEL, "axis", "'a'");
}

static void test_dropout_cast_constants(void **state)
{
    (void)state;
    Wire g = begin(D(2, 3, 4)), n = wm_node("Dropout", "d", "x", "y");
    wm_attr_float(&n, "ratio", 0.25f);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 10, "y: f32[2,3,4] = Dropout(x, y:ratio)", "const  y:ratio: f32[] = 0.25");

    g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2));
    wm_value(&g, 12, "y", MPR_FLOAT16, D(2));
    n = wm_node("Cast", "c", "x", "y");
    wm_attr_str(&n, "to", "FLOAT16");
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 5, "y: f16[2] = Cast(x) {to=f16}");

    g = begin(D(2, 3, 4));
    n = wm_node("Constant", "k", "", "two");
    wm_attr_float(&n, "value_float", 2);
    GRAPH_ADD_NODE(&g, &n);
    wm_add_node(&g, "Mul", "m", "x two", "y");
    EXPECT(&g, 13, "const  two: f32[] = 2", "y: f32[2,3,4] = Mul(x, two)");
}

static void test_unknown_things_are_opaque(void **state)
{
    (void)state;
    Wire g = begin(D(2, 3, 4));
    wm_add_node(&g, "Frob", "f", "x", "h");
    wm_add_node(&g, "Frob", "f2", "h", "k");
    wm_value(&g, 13, "h", MPR_FLOAT32, D(2, 3, 4));
    wm_add_node(&g, "Relu", "r", "k", "y");
    Wire model = wm_model(&g, 8, 17);
    ImportedModel *m = wm_import_ok(wm_write_model("opaque.onnx", &model));
    Err err;
    mpri_err_clear(&err);
    assert_int_equal(mpri_import_check_supported(m->graph, &err), MPR_E_UNSUPPORTED_OP);
    assert_error(MPR_E_UNSUPPORTED_OP, &err, "Frob", "2 nodes", "'f', 'f2'");
    const Value *h = mpri_graph_find_value(m->graph, "h");
    assert_int_equal(h->dtype, MPR_FLOAT32);
    assert_true(h->def->op->flags & OPF_OPAQUE);
    assert_int_equal(h->def->origin.v[0], 0);
    mpri_import_destroy(m, mpri_alloc_default());
}

/* A branch reads h of the main graph: the If gets it as an input, so that order and liveness see
 * it. */
static void test_captures_are_inputs(void **state)
{
    (void)state;
    Wire g = begin(D(2, 3, 4));
    wm_value(&g, 11, "c", MPR_BOOL, (const int64_t[]){-99});
    Wire n = wm_node("If", "if", "c", "y");
    for (int i = 0; i < 2; i++) {
        Wire branch = wm_begin(), a = wm_begin();
        wm_add_node(&branch, i ? "Relu" : "Neg", "inner", "h", i ? "r" : "q");
        wm_value(&branch, 12, i ? "r" : "q", MPR_FLOAT32, NULL);
        wm_str(&a, 1, i ? "else_branch" : "then_branch");
        wm_int(&a, 20, 5);
        wm_end(&a, 6, &branch);
        wm_end(&n, 5, &a);
    }
    GRAPH_ADD_NODE(&g, &n);
    wm_add_node(&g, "Relu", "late", "x", "h"); /* listed behind its reader */
    Wire model = wm_model(&g, 8, 17);
    ImportedModel *m = wm_import_ok(wm_write_model("if.onnx", &model));
    const Node *node = mpri_graph_find_value(m->graph, "y")->def;
    assert_int_equal(node->n_in, 2);
    assert_string_equal(node->in[1]->name, "h");
    assert_string_equal(m->graph->first->name, "late");
    mpri_import_destroy(m, mpri_alloc_default());
}

/* Tile, Pad, Concat, Scatter and Dropout of the first opsets. */
static void test_first_opsets(void **state)
{
    (void)state;
    Wire g = begin(D(2, 6, 4)), n = wm_node("Tile", "t", "x tiles axis", "y");
    wm_add_f32(&g, "tiles", (const int64_t[]){1, -1}, (const float[]){2});
    wm_add_f32(&g, "axis", (const int64_t[]){1, -1}, (const float[]){1});
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 5, "y: f32[2,6,4] = Tile(x, y:repeats)", "const  y:repeats: i64[3] = [1,2,1]");

    g = begin(D(2, 3, 6));
    n = wm_node("Pad", "p", "x", "y");
    wm_attr_ints(&n, "pads", I(0, 0, 1, 0, 0, 1));
    wm_attr_str(&n, "mode", "edge");
    wm_attr_float(&n, "value", 2);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 10, "y: f32[2,3,6] = Pad(x, y:pads, y:value) {mode=\"edge\"}");

    g = begin(D(2, 6, 4));
    n = wm_node("Concat", "c", "x x", "y");
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 3, "y: f32[2,6,4] = Concat(x, x) {axis=1}");

    g = begin(D(2, 3, 4));
    n = wm_node("Scatter", "s", "x i u", "y");
    wm_add_i64(&g, "i", (const int64_t[]){1, 1, 1, -1}, (const int64_t[]){-1});
    wm_add_f32(&g, "u", (const int64_t[]){1, 1, 1, -1}, (const float[]){2});
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, 9, "y: f32[2,3,4] = Scatter(x, i, u)");

    for (int test = 0; test < 2; test++) {
        g = begin(D(2, 3, 4));
        n = wm_node("Dropout", "d", "x", "y");
        wm_attr_float(&n, "ratio", 0.25f);
        wm_attr_int(&n, "is_test", test);
        GRAPH_ADD_NODE(&g, &n);
        EXPECT(&g, 6, test ? "Dropout(x, y:ratio)" : "Dropout(x, y:ratio, y:training)");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_axes_become_inputs),
        cmocka_unit_test(test_slice_split_clip),
        cmocka_unit_test(test_softmax_before_13_flattens),
        cmocka_unit_test(test_first_opsets),
        cmocka_unit_test(test_broadcast_before_7),
        cmocka_unit_test(test_dropout_cast_constants),
        cmocka_unit_test(test_unknown_things_are_opaque),
        cmocka_unit_test(test_captures_are_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
