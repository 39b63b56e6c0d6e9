/* The table of torch's types (data/amp/autocast_vectors.json, see its README in the spec) through
 * the real pass: every row of an operator that the table of operators has, and every small graph.
 * Rows of other operators are counted and skipped. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "runtime/ir/text_form.h"
#include "tests/support/graphs.h"

static DType type_of(const char *word, DType low)
{
    return strcmp(word, "low") ? mpri_dtype_parse(word) : low;
}

static json_t *load(void)
{
    json_error_t e;
    json_t *root = json_load_file(test_data("amp/autocast_vectors.json"), 0, &e);
    if (!root) fail_msg("%s: %s", e.source, e.text);
    return root;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    assert_non_null(s);
    return s;
}

static Profile *profile_of(TestGraph *t, const char *name)
{
    Profile *p;
    assert_ok(mpri_profile_load(name, NULL, &t->arena, &p, &t->err), &t->err);
    return p;
}

static void autocast(TestGraph *t, const char *profile, DType low)
{
    t->o.autocast = low;
    t->o.profile = profile_of(t, profile);
    (void)test_graph_pass(t, mpri_pass_autocast);
}

/* ---- single operators ---- */

/* Operators of float inputs alone need no line here where squares or images are shapes for them. */
typedef struct OpCase {
    const char *op, *text; /* inputs in the order of the row, then one node with the output y */
} OpCase;

#define M(n) "input " n ": f32[4,4]\n"
#define AXIS "const axis: i64[1] = [1]\n"
#define REDUCE(name) \
    { \
        name, M("a") AXIS "y = " name "(a, axis) {keepdims=0}\n" \
    }

static const OpCase op_cases[] = {
    {"MatMul.batched", "input a: f32[2,4,4]\ninput b: f32[2,4,4]\ny = MatMul(a, b)\n"},
    {"Gemm", M("a") M("b") "input c: f32[4]\ny = Gemm(a, b, c)\n"},
    {"Linear", M("a") M("b") "input c: f32[4]\ny = Linear(a, b, c)\n"},
    {"Conv.1d", "input a: f32[1,2,8]\ninput b: f32[3,2,3]\ninput c: f32[3]\ny = Conv(a, b, c)\n"},
    {"Conv.2d",
     "input a: f32[1,2,8,8]\ninput b: f32[3,2,3,3]\ninput c: f32[3]\ny = Conv(a, b, c)\n"},
    {"MaxPool.2d", "input a: f32[1,2,4,4]\ny = MaxPool(a) {kernel_shape=[2,2]}\n"},
    {"AveragePool.2d", "input a: f32[1,2,4,4]\ny = AveragePool(a) {kernel_shape=[2,2]}\n"},
    {"AveragePool.3d", "input a: f32[1,2,4,4,4]\ny = AveragePool(a) {kernel_shape=[2,2,2]}\n"},
    {"Resize.nearest",
     "input a: f32[1,2,4,4]\nconst s: f32[4] = [1,1,2,2]\ny = Resize(a, _, s)\n"},
    {"Resize.linear",
     "input a: f32[1,2,4,4]\nconst s: f32[4] = [1,1,2,2]\n"
     "y = Resize(a, _, s) {mode=\"linear\"}\n"},
    {"GridSample", "input a: f32[1,2,4,4]\ninput b: f32[1,4,4,2]\ny = GridSample(a, b)\n"},
    {"Pow.const", M("a") "const two: f32[] = 2\ny = Pow(a, two)\n"},
    {"Div.const_by_x", M("a") "const one: f32[] = 1\ny = Div(one, a)\n"},
    {"Rsqrt", M("a") "s = Sqrt(a)\ny = Reciprocal(s)\n"},
    {"LayerNormalization",
     M("a") "input b: f32[4]\ninput c: f32[4]\ny = LayerNormalization(a, b, c)\n"},
    {"RMSNormalization", M("a") "input b: f32[4]\ny = RMSNormalization(a, b)\n"},
    {"BatchNormalization", "input a: f32[4,4,4]\ninput b: f32[4]\ninput c: f32[4]\n"
                           "input m: f32[4]\ninput v: f32[4]\n"
                           "y = BatchNormalization(a, b, c, m, v)\n"},
    {"InstanceNormalization", "input a: f32[2,4,4]\ninput b: f32[4]\ninput c: f32[4]\n"
                              "y = InstanceNormalization(a, b, c)\n"},
    {"CumSum", M("a") "const k: i64[] = 0\ny = CumSum(a, k)\n"},
    REDUCE("ReduceSum"),
    {"ReduceSum.all", M("a") "y = ReduceSum(a) {keepdims=0}\n"},
    REDUCE("ReduceProd"),
    REDUCE("ReduceL2"),
    REDUCE("ReduceSumSquare"),
    REDUCE("ReduceMean"),
    REDUCE("ReduceMax"),
    REDUCE("ReduceMin"),
    {"Clip", M("a") "const lo: f32[] = 0\nconst hi: f32[] = 1\ny = Clip(a, lo, hi)\n"},
    {"Mod", M("a") M("b") "y = Mod(a, b) {fmod=1}\n"},
    {"Add.scalar", M("a") "const c: f32[] = 0.001\ny = Add(a, c)\n"},
    {"Add.rank0", M("a") "input b: f32[]\ny = Add(a, b)\n"},
    {"Where", "input m: bool[4,4]\n" M("a") M("b") "y = Where(m, a, b)\n"},
    {"Concat", M("a") M("b") "y = Concat(a, b) {axis=0}\n"},
    {"Gather", M("a") "input i: i64[4]\ny = Gather(a, i)\n"},
    {"Einsum", M("a") M("b") "y = Einsum(a, b) {equation=\"ij,jk->ik\"}\n"},
    {"ScatterElements", M("a") "input i: i64[4,4]\n" M("b") "y = ScatterElements(a, i, b)\n"},
    {"ScatterElements.add", M("a") "input i: i64[4,4]\n" M("b")
     "y = ScatterElements(a, i, b) {reduction=\"add\"}\n"},
    {"ScatterND", M("a") "input i: i64[4,1]\n" M("b") "y = ScatterND(a, i, b)\n"},
    {"Pad.constant", M("a") "const p: i64[4] = [1,0,0,2]\ny = Pad(a, p)\n"},
    {"Pad.reflect", M("a") "const p: i64[4] = [1,0,0,2]\ny = Pad(a, p) {mode=\"reflect\"}\n"},
    {"Tile", M("a") "const r: i64[2] = [2,1]\ny = Tile(a, r)\n"},
    {"Reshape", M("a") "const s: i64[2] = [2,8]\ny = Reshape(a, s)\n"},
    {"Squeeze", "input a: f32[1,4]\nconst s: i64[1] = [0]\ny = Squeeze(a, s)\n"},
    {"Unsqueeze", M("a") "const s: i64[1] = [0]\ny = Unsqueeze(a, s)\n"},
    {"Slice", M("a") "const s: i64[1] = [1]\nconst e: i64[1] = [3]\ny = Slice(a, s, e)\n"},
    {"Expand", M("a") "const s: i64[3] = [2,4,4]\ny = Expand(a, s)\n"},
    {"Split", M("a") "y, z = Split(a) {num_outputs=2}\n"},
    {"SoftmaxCrossEntropyLoss", M("a") "input i: i64[4]\ny = SoftmaxCrossEntropyLoss(a, i)\n"},
    {"NegativeLogLikelihoodLoss",
     M("a") "input i: i64[4]\ny = NegativeLogLikelihoodLoss(a, i)\n"},
    {"MSELoss", M("a") M("b") "d = Sub(a, b)\nq = Mul(d, d)\ny = ReduceMean(q) {keepdims=0}\n"},
    {"L1Loss", M("a") M("b") "d = Sub(a, b)\nq = Abs(d)\ny = ReduceMean(q) {keepdims=0}\n"},
    {"BCE", M("a") M("b") "p = Log(a)\nq = Mul(p, b)\ny = ReduceMean(q) {keepdims=0}\n"},
    {"Cast.f32", M("a") "y = Cast(a) {to=f32}\n"},
};

static bool parses(const char *lines)
{
    Arena arena;
    Graph *g;
    Err err = {0};
    char text[1200];
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    snprintf(text, sizeof text, "graph \"g\" {\n%s}\n", lines);
    Intern *names = mpri_intern_create(&arena);
    assert_non_null(names);
    bool ok = mpri_graph_parse(text, &arena, names, mpri_op_table(), &g, &err) == MPR_OK;
    mpri_arena_destroy(&arena);
    return ok;
}

/* Any operator of float inputs alone: y = Op(a, b, ...) on squares, or on images. */
static const OpCase *plain_case(const json_t *row)
{
    static const char *const shapes[] = {"4,4", "1,2,4,4"};
    static char name[64], text[1024];
    static const OpCase plain = {name, text};
    json_t *in = json_object_get(row, "in"), *x;
    size_t i, n = json_array_size(in);
    snprintf(name, sizeof name, "%s", text_of(row, "op"));
    json_array_foreach(in, i, x) if (!mpri_dtype_is_float(
        type_of(json_string_value(x), MPR_FLOAT16))) return NULL;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int at = 0;
        for (size_t k = 0; k < n; k++)
            at += snprintf(text + at, sizeof text - (size_t)at, "input %c: f32[%s]\n",
                           (char)('a' + k), shapes[s]);
        at += snprintf(text + at, sizeof text - (size_t)at, "y = %s(", name);
        for (size_t k = 0; k < n; k++)
            at += snprintf(text + at, sizeof text - (size_t)at, k ? ", %c" : "%c", (char)('a' + k));
        snprintf(text + at, sizeof text - (size_t)at, ")\n");
        if (parses(text)) return &plain;
    }
    return NULL;
}

static const OpCase *find_case(const json_t *row)
{
    const char *op = text_of(row, "op");
    for (size_t i = 0; i < sizeof op_cases / sizeof *op_cases; i++)
        if (!strcmp(op_cases[i].op, op)) return &op_cases[i];
    return plain_case(row);
}

/* The row in words, for messages. */
static const char *describe(const json_t *row, DType low)
{
    static char text[256];
    char *in = json_dumps(json_object_get(row, "in"), JSON_COMPACT);
    snprintf(text, sizeof text, "%s (%s, %s, %s)", text_of(row, "op"), text_of(row, "profile"), in,
             mpri_dtype_name(low));
    free(in);
    return text;
}

static void check_row(const json_t *row, const OpCase *c, DType low)
{
    TestGraph t;
    char text[1024];
    bool is_loss = strstr(c->op, "Loss") || !strcmp(c->op, "BCE");
    snprintf(text, sizeof text, "graph \"g\" {\n%soutput %s = y\n}\n", c->text,
             is_loss ? "loss" : "y");
    test_graph_open(&t, text);
    if (!strcmp(c->op, "SoftmaxCrossEntropyLoss")) (void)test_graph_pass(&t, mpri_pass_loss);
    json_t *in = json_object_get(row, "in");
    assert_int_equal(json_array_size(in), t.g->n_inputs);
    for (int k = 0; k < t.g->n_inputs; k++) /* ill-typed until the pass has run: that is its job */
        t.g->inputs[k].value->dtype = type_of(json_string_value(json_array_get(in, (size_t)k)),
                                              low);
    Value *y =
        mpri_graph_find_value(t.g,
                              "y"); /* a Cast that becomes idle goes: its input stands for it */
    Node *n = y->def;
    autocast(&t, text_of(row, "profile"), low);
    const char *want = text_of(row, "out");
    if (!strcmp(want, "error")) want = json_string_value(json_object_get(row, "mpr"));
    if (!want) want = "f32"; /* the hand-written cross-entropy: kept in f32 */
    const Value *named = mpri_graph_find_value(t.g, "y"); /* behind the Cast that rounds it, where there is one */
    DType found = n->linked && named ? named->dtype : t.g->outputs[0].value->dtype;
    if (found != type_of(want, low))
        fail_msg("%s: output %s, expected %s", describe(row, low), mpri_dtype_name(found), want);
    const char *compute = json_string_value(json_object_get(row, "compute"));
    /* with a scalar that the low type cannot hold: low in, low out, f32 between two casts */
    bool computes = compute && strcmp(compute, "bool") && strcmp(c->op, "Cast.f32") && n->why != mpri_autocast_inside;
    for (int k = 0; computes && n->linked && k < n->n_in; k++) {
        if (!n->in[k] || !mpri_dtype_is_float(n->in[k]->dtype) ||
            mpri_op_mask(n->op->fixed_in, k)) /* keeps its type */
            continue;
        if (n->in[k]->dtype != type_of(compute, low))
            fail_msg("%s: input %d is %s, computes in %s", describe(row, low), k,
                     mpri_dtype_name(n->in[k]->dtype), compute);
    }
    test_graph_close(&t);
}

static void test_ops(void **state)
{
    (void)state;
    json_t *root = load(), *row;
    size_t i, k;
    int run = 0, skipped = 0;
    json_array_foreach(json_object_get(root, "ops"), i, row)
    {
        const OpCase *c = find_case(row);
        char base[64];
        snprintf(base, sizeof base, "%s", text_of(row, "op"));
        base[strcspn(base, ".")] = 0;
        if (!c && mpri_op_table()->find("", base))
            fail_msg("no case for operator %s", text_of(row, "op"));
        if (!c) {
            skipped++;
            continue;
        }
        json_t *lows = json_object_get(row, "low"), *low;
        json_array_foreach(lows, k, low)
            check_row(row, c, mpri_dtype_parse(json_string_value(low)));
        run++;
    }
    print_message("%d rows checked, %d rows of operators without a definition skipped\n", run,
                  skipped);
    assert_true(run > 200);
    json_decref(root);
}

/* ---- graphs ---- */

/* The second operand that a row leaves out, by graph and node, or by operator. */
static const struct {
    const char *graph, *node, *value;
} constants[] = {
    {"ffn-gelu-erf", "d", "1.4142135"}, {"ffn-gelu-erf", "e1", "1"},
    {"ffn-gelu-erf", "m2", "0.5"},      {"gelu-tanh-pow", "p3", "3"},
    {"gelu-tanh-pow", "c", "0.044715"}, {"gelu-tanh-pow", "j", "0.7978846"},
    {"gelu-tanh-pow", "t1", "1"},       {"gelu-tanh-pow", "y", "0.5"},
    {"decomposed-layernorm", "q", "2"}, {"decomposed-layernorm", "ve", "1e-05"},
    {NULL, NULL, "2.8284271"},
};

static const char *constant_of(const char *graph, const char *node)
{
    size_t i = 0;
    while (constants[i].graph &&
           (strcmp(constants[i].graph, graph) || strcmp(constants[i].node, node)))
        i++;
    return constants[i].value;
}

/* What the rows leave to the reader: axes, shapes and attributes. */
static const struct {
    const char *graph, *node, *extra, *attrs;
} details[] = {
    {"tied-embedding", "zr", "rows", ""},
    {"tied-embedding", "tt", "", "{perm=[1,0]}"},
    {"move-through", "r", "square", ""},
    {"move-through", "t", "", "{perm=[1,0]}"},
    {"move-through", "s", "start, end", ""},
    {"move-through", "u", "start", ""},
    {"pre-ln-attention-f32mask", "kt", "", "{perm=[0,2,1]}"},
    {"pre-ln-attention-lowmask", "kt", "", "{perm=[0,2,1]}"},
    {"concat-mixed", "c", "", "{axis=0}"},
    {"concat-mixed", "c2", "", "{axis=0}"},
};

static void put_node(Text *t, const char *graph, const json_t *node)
{
    const char *name = text_of(node, "name"), *op = text_of(node, "op"), *extra = "", *attrs = "";
    json_t *in = json_object_get(node, "in"), *x;
    size_t i;
    bool binary = !strcmp(op, "Add") || !strcmp(op, "Mul") || !strcmp(op, "Div") ||
                  !strcmp(op, "Pow");
    bool lone = binary && json_array_size(in) == 1;
    if (lone) mpri_text_add(t, "const k.%s: f32[] = %s\n", name, constant_of(graph, name));
    if (!strncmp(op, "Reduce", 6) && strcmp(name, "loss")) extra = "last";
    if (!strncmp(op, "Reduce", 6) && !strcmp(name, "loss")) attrs = "{keepdims=0}";
    for (size_t k = 0; k < sizeof details / sizeof *details; k++)
        if (!strcmp(details[k].graph, graph) && !strcmp(details[k].node, name)) {
            extra = details[k].extra;
            attrs = details[k].attrs;
        }
    mpri_text_add(t, "%s = %s(", name, op);
    json_array_foreach(in, i, x) mpri_text_add(t, "%s%s", i ? ", " : "", json_string_value(x));
    if (lone) mpri_text_add(t, ", k.%s", name);
    if (extra[0]) mpri_text_add(t, ", %s", extra);
    mpri_text_add(t, ") %s @ \"/%s/%s\"\n", attrs, graph, name);
}

static bool is_read(const json_t *nodes, const char *name)
{
    size_t i, k;
    json_t *node, *x;
    json_array_foreach(nodes, i, node)
        json_array_foreach(json_object_get(node, "in"), k,
                           x) if (!strcmp(json_string_value(x), name)) return true;
    return false;
}

static void put_input(Text *t, const json_t *in)
{
    const char *name = text_of(in, "name"), *dtype = text_of(in, "dtype");
    static const char *const data[] = {"x", "t", "y", "m", "ids", "pos", "mask", "neg"};
    bool fed = false;
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) fed = fed || !strcmp(name, data[i]);
    char *shape = json_dumps(json_object_get(in, "shape"), JSON_COMPACT);
    mpri_text_add(t, "%s %s: %s%s%s\n", fed ? "input" : "param", name,
                  strcmp(dtype, "low") ? dtype : "f32", shape, fed ? "" : " trained");
    free(shape);
}

static void graph_text(const json_t *row, Text *t)
{
    json_t *nodes = json_object_get(row, "nodes"), *x;
    size_t i;
    mpri_text_put(t, "graph \"g\" {\n");
    json_array_foreach(json_object_get(row, "inputs"), i, x) put_input(t, x);
    mpri_text_put(
        t, "const last: i64[1] = [-1]\nconst rows: i64[2] = [8,16]\nconst square: i64[2] = [8,8]\n"
           "const start: i64[1] = [0]\nconst end: i64[1] = [4]\n");
    json_array_foreach(nodes, i, x) put_node(t, text_of(row, "graph"), x);
    json_array_foreach(nodes, i, x) if (!is_read(nodes, text_of(x, "name")))
        mpri_text_add(t, "output %s = %s\n", text_of(x, "name"), text_of(x, "name"));
    mpri_text_put(t, "}\n");
}

static void check_graph(const json_t *row, const char *profile, DType low)
{
    static int origin[64];
    TestGraph t;
    Text text;
    mpri_text_init(&text, mpri_alloc_default());
    graph_text(row, &text);
    test_graph_open(&t, text.text);
    mpri_text_free(&text);
    int n = 0;
    for (Node *x = t.g->first; x; x = x->next, n++) {
        origin[n] = n;
        x->origin = (Origin){&origin[n], 1};
    }
    (void)test_graph_pass(&t, mpri_pass_simplify);
    (void)test_graph_pass(&t, mpri_pass_recover);
    (void)test_graph_pass(&t, mpri_pass_loss);
    json_t *in, *node, *mpr = json_object_get(row, "mpr");
    size_t i;
    json_array_foreach(json_object_get(row, "inputs"), i, in)
        mpri_graph_find_value(t.g, text_of(in, "name"))
            ->dtype = type_of(text_of(in, "dtype"), low);
    autocast(&t, profile, low);
    int checked = 0;
    json_array_foreach(json_object_get(row, "nodes"), i, node)
    {
        const char *name = text_of(node, "name");
        const char *want = json_string_value(json_object_get(mpr, name));
        if (!want) want = text_of(json_object_get(json_object_get(row, "out"), profile), name);
        const Value *v = mpri_graph_find_value(t.g, name);
        if (!v) continue; /* inside a recovered group */
        checked++;
        if (v->dtype != type_of(want, low))
            fail_msg("graph %s, %s, %s: '%s' is %s, expected %s", text_of(row, "graph"), profile,
                     mpri_dtype_name(low), name, mpri_dtype_name(v->dtype), want);
    }
    assert_true(checked > 0);
    assert_false(test_graph_pass(&t, mpri_pass_autocast));
    test_graph_close(&t);
}

static void test_graphs(void **state)
{
    (void)state;
    json_t *root = load(), *row;
    size_t i;
    json_array_foreach(json_object_get(root, "graphs"), i, row)
    {
        check_graph(row, "torch-cuda", MPR_FLOAT16);
        check_graph(row, "torch-cuda", MPR_BFLOAT16);
        check_graph(row, "torch-cpu", MPR_FLOAT16);
        check_graph(row, "torch-cpu", MPR_BFLOAT16);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops), cmocka_unit_test(test_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
