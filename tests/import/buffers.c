/* Tensors that a gradient reaches and that are no parameters: each rule once where it holds, and
 * once where one thing is different and the tensor must be trained. */
#include <math.h>
#include <stdio.h>

#include "tests/support/wire_model.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, -1})

enum { MOST = 256, SIDE = 8 };

/* ---- contents, by index and width of a row */

typedef double Content(int64_t i, int64_t width);

static double varied(int64_t i, int64_t width)
{
    (void)width;
    return 0.01 * (double)(i * 37 % 64) - 0.3;
}
static double weights(int64_t i, int64_t width)
{
    (void)width;
    return 0.02 * (double)(i * 29 % 61) - 0.5;
}
static double zeros(int64_t i, int64_t width) { (void)i; (void)width; return 0; }
static double ones(int64_t i, int64_t width) { (void)i; (void)width; return 1; }
static double causal(int64_t i, int64_t width) { return i % width <= i / width % width ? 0 : -1e9; }
static double padding(int64_t i, int64_t width) { return i % width < width - 2 ? 0 : -65504; }
static double windows(int64_t i, int64_t width) { return (i / width + i) % 3 ? 0 : -100; }
static double hidden(int64_t i, int64_t width) { return i % width ? 0 : (double)-INFINITY; }
static double small(int64_t i, int64_t width) { return i % width < width - 2 ? 0 : -2; }
static double bits(int64_t i, int64_t width) { (void)width; return i % 3 == 0; }
static double half_bits(int64_t i, int64_t width) { (void)width; return i % 3 == 0 ? 1 : 0.5; }

static double angle(int64_t i, int64_t width)
{
    return (double)(i / width) * pow(10, -(double)(i % (width / 2)));
}
static double cosines(int64_t i, int64_t width) { return cos(angle(i, width)); }
static double sines(int64_t i, int64_t width) { return sin(angle(i, width)); }
static double yarn(int64_t i, int64_t width) { return 1.2 * cos(angle(i, width)); }
static double yarn_sines(int64_t i, int64_t width) { return 1.2 * sin(angle(i, width)); }
static double off_sines(int64_t i, int64_t width)
{
    return sin(angle(i, width)) + (i == 9 ? 0.1 : 0);
}
static double positions_halves(int64_t i, int64_t width)
{
    return i % width < width / 2 ? sin(angle(i, width)) : cos(angle(i, width));
}
static double positions_turns(int64_t i, int64_t width)
{
    double a = (double)(i / width) * pow(10, -(double)(i % width / 2));
    return i % 2 ? cos(a) : sin(a);
}
static double positions_padded(int64_t i, int64_t width)
{
    return i / width == 1 ? 0 : positions_halves(i, width);
}
static double positions_trained(int64_t i, int64_t width)
{
    return positions_halves(i, width) + 0.02 * varied(i, width);
}
static double slopes(int64_t i, int64_t width)
{
    return (double)(i % width) * pow(2, -1 - (double)(i / width % 4));
}
static double bent(int64_t i, int64_t width)
{
    return slopes(i, width) + (i % width == 3 ? 0.5 : 0);
}

/* ---- places */

typedef void Place(Wire *g, const char *c);

static void operand(Wire *g, const char *op, const char *a, const char *b, const char *out)
{
    char in[300];
    snprintf(in, sizeof in, "%s %s", a, b);
    wm_add_node(g, op, op, in, out);
}

static void on_scores(Wire *g, const char *c)
{
    wm_add_node(g, "MatMul", "product", "x w", "q");
    wm_add_node(g, "MatMul", "scores", "q x", "s");
    operand(g, "Add", "s", c, "t");
    wm_add_node(g, "Softmax", "soft", "t", "y");
}

static void on_weight(Wire *g, const char *c)
{
    operand(g, "Mul", "w", c, "m");
    wm_add_node(g, "MatMul", "product", "x m", "y");
}

static void on_product(Wire *g, const char *c)
{
    wm_add_node(g, "MatMul", "product", "x w", "s");
    operand(g, "Add", "s", c, "y");
}

static void on_hidden(Wire *g, const char *c)
{
    wm_add_node(g, "MatMul", "product", "x w", "s");
    wm_add_node(g, "Relu", "relu", "s", "r");
    operand(g, "Add", "r", c, "y");
}

static void rotary(Wire *g, const char *c)
{
    wm_add_node(g, "MatMul", "product", "x w", "q");
    wm_add_node(g, "Neg", "turn", "q", "r");
    operand(g, "Mul", "q", c, "a");
    operand(g, "Mul", "r", "partner", "b");
    wm_add_node(g, "Add", "sum", "a b", "y");
}

static void as_matrix(Wire *g, const char *c)
{
    operand(g, "MatMul", "x", c, "y");
}

static void on_input(Wire *g, const char *c)
{
    operand(g, "Sub", "x", c, "s");
    wm_add_node(g, "MatMul", "product", "s w", "y");
}

static void divides_input(Wire *g, const char *c)
{
    operand(g, "Sub", "x", "w", "s");
    operand(g, "Div", "s", c, "y");
}

static void off_hidden(Wire *g, const char *c)
{
    wm_add_node(g, "MatMul", "product", "x w", "s");
    operand(g, "Sub", "s", c, "y");
}

static void in_norm(Wire *g, const char *c)
{
    char in[300];
    wm_add_node(g, "MatMul", "product", "x w", "s");
    snprintf(in, sizeof in, "s scale %s", c);
    wm_add_node(g, "LayerNormalization", "net/norm/LayerNormalization", in, "y");
}

/* ---- */

typedef struct Row {
    Place *place;
    Content *content;
    bool trained;
    const char *name; /* NULL: net.c */
    const int64_t *dims; /* NULL: SIDE x SIDE */
    Content *partner; /* NULL: none */
    bool constant; /* in a Constant node */
} Row;

#define ROW(Place, Content, Trained, ...) \
    {.place = Place, .content = Content, .trained = Trained, __VA_ARGS__}

static const Row rows[] = {
    ROW(on_scores, causal, false),
    ROW(on_scores, padding, false),
    ROW(on_scores, windows, false),
    ROW(on_scores, hidden, false),
    ROW(on_scores, small, true),
    ROW(on_scores, varied, true),
    ROW(on_scores, zeros, true), /* a bias of positions that starts at zero */
    ROW(on_scores, zeros, false, .name = "val_7"),
    ROW(on_scores, zeros, false, .constant = true),
    ROW(on_product, zeros, true, .name = "val_7", .dims = DIMS(SIDE)),
    ROW(on_product, zeros, true, .dims = DIMS(SIDE), .constant = true),
    ROW(on_product, padding, true, .dims = DIMS(SIDE)),
    ROW(on_weight, bits, false),
    ROW(on_weight, half_bits, true),
    ROW(on_weight, zeros, true),
    ROW(rotary, cosines, false, .partner = sines),
    ROW(rotary, yarn, false, .partner = yarn_sines),
    ROW(rotary, yarn, true, .partner = sines),
    ROW(rotary, cosines, true, .partner = off_sines),
    ROW(rotary, ones, true, .partner = zeros),
    ROW(as_matrix, cosines, true, .partner = sines),
    ROW(on_hidden, positions_halves, false),
    ROW(on_hidden, positions_turns, false),
    ROW(on_hidden, positions_padded, false),
    ROW(on_hidden, positions_trained, true),
    ROW(on_hidden, slopes, false, .dims = DIMS(1, SIDE, SIDE)),
    ROW(on_hidden, bent, true, .dims = DIMS(1, SIDE, SIDE)),
    ROW(as_matrix, slopes, true),
    ROW(on_input, varied, false, .dims = DIMS(SIDE)),
    ROW(divides_input, varied, false, .dims = DIMS(SIDE)),
    ROW(off_hidden, varied, true, .dims = DIMS(SIDE)),
    ROW(in_norm, zeros, false, .dims = DIMS(SIDE), .constant = true),
    ROW(in_norm, zeros, false, .name = "val_7", .dims = DIMS(SIDE)),
    ROW(in_norm, zeros, true, .dims = DIMS(SIDE)),
    ROW(in_norm, varied, true, .name = "val_7", .dims = DIMS(SIDE)),
};

static void add_filled(Wire *g, const char *name, const int64_t *dims, Content *content,
                       bool constant)
{
    float v[MOST];
    int64_t n = 1, width = 0;
    for (const int64_t *d = dims; *d >= 0; d++) n *= width = *d;
    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++) v[i] = (float)content(i, width);
    if (!constant) {
        wm_add_f32(g, name, dims, v);
        return;
    }
    Wire node = wm_node("Constant", "net/norm/Constant", "", name), a = wm_begin();
    Wire t = wm_tensor("value", MPR_FLOAT32, dims, v, (size_t)n * sizeof *v);
    wm_str(&a, 1, "value");
    wm_int(&a, 20, 4);
    wm_end(&a, 5, &t);
    wm_end(&node, 5, &a);
    GRAPH_ADD_NODE(g, &node);
}

static const char *write_row(const Row *r, const char *name)
{
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(SIDE, SIDE));
    add_filled(&g, "w", DIMS(SIDE, SIDE), weights, false);
    add_filled(&g, "scale", DIMS(SIDE), varied, false);
    if (r->partner) add_filled(&g, "partner", DIMS(SIDE, SIDE), r->partner, false);
    add_filled(&g, name, r->dims ? r->dims : DIMS(SIDE, SIDE), r->content, r->constant);
    r->place(&g, name);
    wm_value(&g, 12, "y", MPR_FLOAT32, NULL);
    Wire m = wm_model(&g, 8, 17);
    return wm_write_model("buffer.onnx", &m);
}

static void test_rules(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const Row *r = &rows[i];
        const char *name = r->name ? r->name : r->constant ? "/net/Constant_output_0" : "net.c";
        ImportedModel *m = wm_import_ok(write_row(r, name));
        const Param *p = wm_param(m, name);
        if (p->trained != r->trained || p->buffer == r->trained) {
            print_error("row %zu: %s\n", i, p->reason);
            wrong++;
        }
        mpri_import_destroy(m, mpri_alloc_default());
    }
    assert_int_equal(wrong, 0);
}

/* Where all weights stand in Constant nodes, one of equal values is a fresh parameter. */
static void test_all_in_constants(void **state)
{
    (void)state;
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(SIDE, SIDE));
    add_filled(&g, "/w_output_0", DIMS(SIDE, SIDE), varied, true);
    add_filled(&g, "/scale_output_0", DIMS(SIDE), ones, true);
    wm_add_node(&g, "MatMul", "product", "x /w_output_0", "s");
    wm_add_node(&g, "LayerNormalization", "norm", "s /scale_output_0", "y");
    wm_value(&g, 12, "y", MPR_FLOAT32, NULL);
    Wire model = wm_model(&g, 8, 17);
    ImportedModel *m = wm_import_ok(wm_write_model("constants.onnx", &model));
    assert_true(wm_param(m, "/scale_output_0")->trained);
    mpri_import_destroy(m, mpri_alloc_default());
}

/* Its full name in --train-only trains a buffer; a pattern does not. */
static void test_named_buffers(void **state)
{
    (void)state;
    static const struct {
        const char *only;
        int trained;
    } asked[] = {{NULL, 1}, {"net.c", 1}, {"*", 1}, {"net.*", -1}};
    const Row masked = ROW(on_weight, bits, false);
    mpr_context *ctx;
    mpr_model *m;
    mpr_session *s;
    mpr_context_options o = {.size = sizeof o, .threads = 1};
    assert_int_equal(mpr_context_create(&o, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, write_row(&masked, "net.c"), NULL, &m), ctx);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const char *only[] = {asked[i].only, NULL};
        mpr_session_options so = {
            .size = sizeof so, .loss = "mse", .train_only = only[0] ? only : NULL};
        if (asked[i].trained < 0) {
            assert_int_equal(mpr_session_open(m, &so, &s), MPR_E_NOT_DIFFERENTIABLE);
            continue;
        }
        mpr_parameter_info info;
        assert_call(mpr_session_open(m, &so, &s), m);
        assert_int_equal(mpr_session_parameter_count(s), asked[i].trained);
        assert_call(mpr_session_parameter(s, 0, &info), s);
        assert_string_equal(info.name, i == 1 ? "net.c" : "w");
        mpr_session_close(s);
    }
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_all_in_constants),
        cmocka_unit_test(test_named_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
