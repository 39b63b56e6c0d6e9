/* Operators of onnxruntime's optimiser become the standard's: the imported graph as text, and the
 * forms that are left opaque with a reason. */
#include <stdlib.h>
#include <string.h>

#include "runtime/op/ops.h"
#include "tests/support/wire_model.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})

static ImportedModel *import(Wire *graph)
{
    Wire model = wm_model(graph, 8, 17), opset = wm_begin();
    wm_str(&opset, 1, "com.microsoft");
    wm_int(&opset, 2, 1);
    wm_end(&model, 8, &opset);
    return wm_import_ok(wm_write_model("microsoft.onnx", &model));
}

static void expect_lines(Wire *graph, const char *const *lines)
{
    ImportedModel *m = import(graph);
    char *text = wm_graph_text(m);
    for (; *lines; lines++) {
        if (!strstr(text, *lines)) print_error("no '%s' in:\n%s\n", *lines, text);
        assert_non_null(strstr(text, *lines));
    }
    free(text);
    mpri_import_destroy(m, mpri_alloc_default());
}
#define EXPECT(graph, ...) expect_lines((graph), (const char *const[]){__VA_ARGS__, NULL})

static Wire begin(void)
{
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2, 3, 4));
    wm_value(&g, 12, "y", MPR_FLOAT32, NULL);
    return g;
}

static Wire node(const char *op, const char *inputs, const char *outputs)
{
    Wire n = wm_node(op, "n", inputs, outputs);
    wm_str(&n, 7, "com.microsoft");
    return n;
}

static void test_activations_and_products(void **state)
{
    (void)state;
    Wire g = begin(), n = node("FastGelu", "x x", "y");
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, "Add(x, x)", "y: f32[2,3,4] = Gelu(", "approximate=\"tanh\"");

    g = begin();
    n = node("FusedMatMul", "x x", "y");
    wm_attr_int(&n, "transB", 1);
    wm_attr_float(&n, "alpha", 0.5f);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, "Transpose(x) {perm=[0,2,1]}", "MatMul(x, ", "y: f32[2,3,3] = Mul(");
}

static void test_skip_gives_its_sum(void **state)
{
    (void)state;
    Wire g = begin(), n = node("SkipLayerNormalization", "x x s", "y _ _ sum");
    wm_value(&g, 11, "s", MPR_FLOAT32, D(4));
    wm_value(&g, 12, "z", MPR_FLOAT32, NULL);
    wm_attr_float(&n, "epsilon", 0.25f);
    GRAPH_ADD_NODE(&g, &n);
    wm_add_node(&g, "Relu", "r", "sum", "z");
    EXPECT(&g, "sum: f32[2,3,4] = Add(x, x)", "y: f32[2,3,4] = LayerNormalization(sum, s)",
           "epsilon=0.25", "= Relu(sum)");
}

static void test_attention(void **state)
{
    (void)state;
    Wire g = begin(), n = node("Attention", "x w b m", "y");
    wm_value(&g, 11, "w", MPR_FLOAT32, D(4, 12));
    wm_value(&g, 11, "b", MPR_FLOAT32, D(12));
    wm_value(&g, 11, "m", MPR_INT32, D(2, 3));
    wm_attr_int(&n, "num_heads", 2);
    wm_attr_int(&n, "unidirectional", 1);
    GRAPH_ADD_NODE(&g, &n);
    EXPECT(&g, "MatMul(x, w)", "= Split(", "bool[2,3] = Cast(m)", "= Where(",
           "y: f32[2,3,4] = Attention(", "is_causal=1", "q_num_heads=2");
}

static void test_unknown_forms_are_opaque(void **state)
{
    (void)state;
    Wire g = begin(), n = node("Gelu", "x", "y");
    wm_attr_int(&n, "shape_of_things", 1);
    GRAPH_ADD_NODE(&g, &n);
    ImportedModel *m = import(&g);
    const Node *made = mpri_graph_find_value(m->graph, "y")->def;
    assert_true(made->op->flags & OPF_OPAQUE);
    assert_non_null(strstr(made->why, "shape_of_things"));
    Err err = {0};
    assert_int_equal(mpri_import_check_supported(m->graph, &err), MPR_E_UNSUPPORTED_OP);
    mpri_import_destroy(m, mpri_alloc_default());
}

static void test_quantised_advice(void **state)
{
    (void)state;
    Wire g = begin(), n = node("QGemm", "x x", "y");
    GRAPH_ADD_NODE(&g, &n);
    ImportedModel *m = import(&g);
    Err err = {0};
    assert_int_equal(mpri_import_check_supported(m->graph, &err), MPR_E_UNSUPPORTED_OP);
    assert_non_null(strstr(err.advice, "quantised"));
    mpri_import_destroy(m, mpri_alloc_default());
}

/* QuantizeLinear can be run but not trained; its 8-bit floats stay opaque. */
static void test_quantised_in_training(void **state)
{
    (void)state;
    Wire g = begin(), n;
    static const float two = 2;
    wm_add_f32(&g, "scale", (const int64_t[]){-1}, &two);
    n = wm_node("QuantizeLinear", "quantise", "x scale", "q");
    GRAPH_ADD_NODE(&g, &n);
    n = wm_node("DequantizeLinear", "back", "q scale", "y");
    GRAPH_ADD_NODE(&g, &n);
    ImportedModel *m = import(&g);
    Err err = {0};
    assert_int_equal(mpri_import_check_supported(m->graph, &err), MPR_OK);
    assert_int_equal(mpri_import_check_trainable(m->graph, &err), MPR_E_UNSUPPORTED_OP);
    assert_non_null(strstr(err.message, "DequantizeLinear"));
    assert_non_null(strstr(err.message, "'back'"));
    assert_non_null(strstr(err.advice, "float model"));
    mpri_import_destroy(m, mpri_alloc_default());
}

static void test_eight_bit_floats(void **state)
{
    (void)state;
    Wire g = begin(), n;
    static const float two = 2;
    static const uint8_t zero = 0;
    wm_add_f32(&g, "scale", (const int64_t[]){-1}, &two);
    Wire t = wm_tensor("zero", 17, (const int64_t[]){-1}, &zero, 1);
    wm_end(&g, 5, &t);
    n = wm_node("QuantizeLinear", "quantise", "x scale zero", "y");
    GRAPH_ADD_NODE(&g, &n);
    ImportedModel *m = import(&g);
    Err err = {0};
    assert_int_equal(mpri_import_check_supported(m->graph, &err), MPR_E_UNSUPPORTED_OP);
    assert_non_null(strstr(err.message, "data type"));
    mpri_import_destroy(m, mpri_alloc_default());
}

/* What importing takes apart has no row of its own. */
static void test_table_of_expanded(void **state)
{
    (void)state;
    int foreign = 0;
    ExpandedOp op;
    for (int i = 0; mpri_import_expanded(i, &op); i++) {
        foreign += op.foreign;
        if (!op.domain[0] && mpri_op_table()->find("", op.name)) fail_msg("%s has a row", op.name);
    }
    assert_int_equal(foreign, 19);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations_and_products),
        cmocka_unit_test(test_skip_gives_its_sum),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_unknown_forms_are_opaque),
        cmocka_unit_test(test_quantised_advice),
        cmocka_unit_test(test_quantised_in_training),
        cmocka_unit_test(test_eight_bit_floats), cmocka_unit_test(test_table_of_expanded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
