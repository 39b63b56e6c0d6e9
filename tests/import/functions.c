/* Functions and constant branches become plain nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/wire_model.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})

static void add_names(Wire *w, uint32_t number, const char *const *names)
{
    for (; *names; names++) wm_str(w, number, *names);
}
#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A function of domain "local"; the caller adds nodes as field 7. */
static Wire begin_function(const char *name, const char *const *in, const char *const *out,
                           int64_t opset)
{
    Wire f = wm_begin(), set = wm_begin();
    wm_str(&f, 1, name);
    add_names(&f, 4, in);
    add_names(&f, 5, out);
    wm_str(&f, 10, "local");
    wm_int(&set, 2, opset);
    wm_end(&f, 9, &set);
    return f;
}

static void add_node(Wire *f, Wire *node)
{
    wm_end(f, 7, node);
}

static Wire model_with(Wire *graph, Wire *functions, int n)
{
    Wire m = wm_model(graph, 9, 17), set = wm_begin();
    wm_str(&set, 1, "local");
    wm_int(&set, 2, 1);
    wm_end(&m, 8, &set);
    for (int i = 0; i < n; i++) wm_end(&m, 25, &functions[i]);
    return m;
}

static char *import_text(Wire *model)
{
    ImportedModel *m = wm_import_ok(wm_write_model("functions.onnx", model));
    char *text = wm_graph_text(m);
    mpri_import_destroy(m, mpri_alloc_default());
    return text;
}

static void expect(char *text, const char *const *lines)
{
    for (; *lines; lines++) {
        if (!strstr(text, *lines)) print_error("no '%s' in:\n%s\n", *lines, text);
        assert_non_null(strstr(text, *lines));
    }
    free(text);
}

/* Outer calls Inner twice; the inner names are kept apart; attributes are handed down, or
 * defaulted. */
static void test_nested_calls(void **state)
{
    (void)state;
    Wire f[2] = {begin_function("Outer", NAMES("a"), NAMES("b"), 17),
                 begin_function("Inner", NAMES("p"), NAMES("q"), 17)};
    Wire n = wm_node("local:Inner", "one", "a", "t"), a = wm_begin();
    wm_attr_int(&n, "way", 0);
    add_node(&f[0], &n);
    n = wm_node("local:Inner", "two", "t", "b");
    add_node(&f[0], &n);
    n = wm_node("Relu", "relu", "p", "r");
    add_node(&f[1], &n);
    n = wm_node("Softmax", "soft", "r", "q");
    wm_str(&a, 1, "axis");
    wm_int(&a, 20, 2);
    wm_str(&a, 21, "way");
    wm_end(&n, 5, &a);
    add_node(&f[1], &n);
    a = wm_begin();
    wm_str(&a, 1, "way");
    wm_int(&a, 20, 2);
    wm_int(&a, 3, 1);
    wm_end(&f[1], 11, &a); /* default of `way` */
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2, 3));
    wm_add_node(&g, "local:Outer", "call", "x", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(2, 3));
    Wire m = model_with(&g, f, 2);
    expect(import_text(&m),
           NAMES("call/Outer/one/Inner/r: f32[2,3] = Relu(x)",
                 "call/Outer/t: f32[2,3] = Softmax(call/Outer/one/Inner/r) {axis=0}",
                 "call/Outer/two/Inner/r: f32[2,3] = Relu(call/Outer/t)",
                 "y: f32[2,3] = Softmax(call/Outer/two/Inner/r) {axis=1}"));
}

/* The body's own opset decides what its nodes mean. */
static void test_opset_of_the_body(void **state)
{
    (void)state;
    Wire f = begin_function("Old", NAMES("a"), NAMES("b"), 11),
         n = wm_node("Softmax", "s", "a", "b");
    add_node(&f, &n);
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2, 3, 4));
    wm_add_node(&g, "local:Old", "call", "x", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(2, 3, 4));
    Wire m = model_with(&g, &f, 1);
    expect(import_text(&m), NAMES("Flatten(x)", "y: f32[2,3,4] = Reshape("));
}

/* A function that only passes its input on still writes the caller's name. */
static void test_pass_through(void **state)
{
    (void)state;
    Wire f = begin_function("Same", NAMES("a"), NAMES("a"), 17), g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2));
    wm_add_node(&g, "local:Same", "call", "x", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(2));
    Wire m = model_with(&g, &f, 1);
    expect(import_text(&m), NAMES("y: f32[2] = Identity(x)"));
}

/* Of an If with a constant condition the taken branch remains, its weights included. */
static void test_constant_branch(void **state)
{
    (void)state;
    for (int taken = 0; taken < 2; taken++) {
        Wire g = wm_begin();
        wm_value(&g, 11, "x", MPR_FLOAT32, D(2));
        Wire t = wm_tensor("c", MPR_BOOL, (const int64_t[]){-1}, taken ? "\1" : "\0", 1);
        wm_end(&g, 5, &t);
        Wire n = wm_node("If", "if", "c", "y");
        for (int i = 0; i < 2; i++) {
            Wire branch = wm_begin(), a = wm_begin();
            wm_add_f32(&branch, "w", (const int64_t[]){2, -1}, (const float[]){1, 2});
            wm_add_node(&branch, i ? "Sub" : "Add", "inner", "x w", "r");
            wm_value(&branch, 12, "r", MPR_FLOAT32, NULL);
            wm_str(&a, 1, i ? "else_branch" : "then_branch");
            wm_int(&a, 20, 5);
            wm_end(&a, 6, &branch);
            wm_end(&n, 5, &a);
        }
        GRAPH_ADD_NODE(&g, &n);
        wm_value(&g, 12, "y", MPR_FLOAT32, D(2));
        Wire m = wm_model(&g, 8, 17);
        expect(import_text(&m), NAMES(taken ? "y: f32[2] = Add(x, if/then_branch/w)"
                                            : "y: f32[2] = Sub(x, if/else_branch/w)"));
    }
}

static void test_builtin_wins(void **state)
{
    (void)state;
    Wire f = wm_begin(), n = wm_node("Neg", "n", "a", "b"), g = wm_begin();
    wm_str(&f, 1, "Relu");
    wm_str(&f, 4, "a");
    wm_str(&f, 5, "b");
    add_node(&f, &n);
    wm_value(&g, 11, "x", MPR_FLOAT32, D(2));
    wm_add_node(&g, "Relu", "r", "x", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, D(2));
    Wire m = model_with(&g, &f, 1);
    expect(import_text(&m), NAMES("y: f32[2] = Relu(x)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nested_calls), cmocka_unit_test(test_opset_of_the_body),
        cmocka_unit_test(test_pass_through), cmocka_unit_test(test_constant_branch),
        cmocka_unit_test(test_builtin_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
