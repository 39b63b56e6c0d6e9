/* Recorded types of torch's autocast (tests/support/vectors.h) through the real pass: every row of
 * an operator and every small graph. The rows leave out what does not matter for types (shapes,
 * axes, attributes): for an operator the first legal node is taken, for a graph the first choice
 * with which all its nodes are legal. A row that finds none fails. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "runtime/ir/text_form.h"
#include "tests/support/graphs.h"
#include "tests/support/vectors.h"

static DType type_of(const char *word, DType low)
{
    return strcmp(word, "low") ? mpri_dtype_parse(word) : low;
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

#define SMOOTH_L1 \
    M("a") M("b") "const h: f32[] = 0.5\nconst o: f32[] = 1\nd = Sub(a, b)\nw = Abs(d)\n" \
    "q = Mul(d, d)\np = Mul(q, h)\nk = Sub(w, h)\nc = Less(w, o)\nz = Where(c, p, k)\n" \
    "y = ReduceMean(z) {keepdims=0}\n"

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
    {"BCEWithLogits", M("a") M("b") "const z: f32[] = 0\nconst o: f32[] = 1\nr = Max(a, z)\n"
                      "m = Mul(a, b)\nd = Sub(r, m)\ns = Abs(a)\nn = Neg(s)\ne = Exp(n)\n"
                      "f = Add(e, o)\nl = Log(f)\nq = Add(d, l)\n"
                      "y = ReduceMean(q) {keepdims=0}\n"},
    {"SmoothL1Loss", SMOOTH_L1},
    {"HuberLoss", SMOOTH_L1},
    {"KLDivLoss", M("a") M("b") "l = Log(b)\nd = Sub(l, a)\nq = Mul(b, d)\n"
                  "y = ReduceMean(q) {keepdims=0}\n"},
    {"Cast.f32", M("a") "y = Cast(a) {to=f32}\n"},
    {"Cast.f16", M("a") "y = Cast(a) {to=f16}\n"},
    {"Cast.bf16", M("a") "y = Cast(a) {to=bf16}\n"},
    {"Where.scalar", "input m: bool[4,4]\n" M("a") "const c: f32[] = 0\ny = Where(m, a, c)\n"},
    {"Gelu.tanh", M("a") "y = Gelu(a) {approximate=\"tanh\"}\n"},
    {"Resize.cubic",
     "input a: f32[1,2,4,4]\nconst s: f32[4] = [1,1,2,2]\n"
     "y = Resize(a, _, s) {mode=\"cubic\"}\n"},
    {"Pad.edge", M("a") "const p: i64[4] = [1,0,0,2]\ny = Pad(a, p) {mode=\"edge\"}\n"},
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
    bool ok = mpri_graph_parse(text, &arena, names, mpri_op_table(), &g, &err) == MPR_OK &&
              mpri_graph_validate(g, "row", &err) == MPR_OK;
    mpri_arena_destroy(&arena);
    return ok;
}

/* What a row leaves open, tried in turn: shapes by kind of input, constants behind the inputs,
 * attributes. */
static const char *const float_shapes[] = {"4,4", "4", "1,2,4,4", "2", "1,2,8", "1,4,4,4",
                                           "1,2,4,4,4", "2,4,4", "1,2,4,8", "2,2,3", "2,2,3,3",
                                           "3,2,3,3", "2", "1", "", "3,2,3,3,3", NULL};
static const char *const index_shapes[] = {"4", "4,4", "4,1", "2", "1", NULL};
static const char *const bool_shapes[] = {"4,4", "1,1,4,4", "4", NULL};
static const char *const tails[] = {"",           "i64[1] = [1]",   "i64[] = [0]",
                                    "i64[2] = [2,1]", "i64[2] = [2,8]", "i64[4] = [1,0,0,2]",
                                    "f32[] = [3]", NULL};
static const char *const attributes[] = {
    "",
    "{axis=1}",
    "{kernel_shape=[2]}",
    "{kernel_shape=[2,2]}",
    "{kernel_shape=[2,2,2]}",
    "{blocksize=2}",
    "{num_groups=2}",
    "{num_outputs=2}",
    "{equation=\"ij,jk->ik\"}",
    "{equation=\"bij,bjk->bik\"}",
    "{size=1}",
    NULL};

typedef struct Search {
    const json_t *in;
    const char *op;
    char base[64];
    const char *shape[8];
    size_t n;
    bool same; /* all float inputs have one shape: tried first, so that nothing is broadcast */
} Search;

static char found_text[1000];

static int rank_of(const char *shape)
{
    int rank = *shape != 0;
    for (; *shape; shape++) rank += *shape == ',';
    return rank;
}

/* ".3d" behind a name: the spatial dims of images, else the rank. */
static bool rank_fits(const Search *s)
{
    const char *dot = strchr(s->op, '.');
    if (!dot || !(dot[1] >= '1' && dot[1] <= '3') || strcmp(dot + 2, "d")) return true;
    bool image = strstr(s->base, "Conv") || strstr(s->base, "Pool") || strstr(s->base, "Norm") ||
                 !strcmp(s->base, "Resize") || !strcmp(s->base, "GridSample");
    return rank_of(s->shape[0]) == dot[1] - '0' + (image ? 2 : 0);
}

static bool try_text(const Search *s, const char *tail, const char *attrs)
{
    int at = 0, room = (int)sizeof found_text;
    if (!rank_fits(s)) return false;
    for (size_t k = 0; k < s->n; k++) {
        DType t = type_of(json_string_value(json_array_get(s->in, k)), MPR_FLOAT32);
        at += snprintf(found_text + at, (size_t)(room - at), "input %c: %s[%s]\n",
                       (char)('a' + k), mpri_dtype_is_float(t) ? "f32" : mpri_dtype_name(t),
                       s->shape[k]);
    }
    if (*tail) at += snprintf(found_text + at, (size_t)(room - at), "const t: %s\n", tail);
    bool outputs = strstr(attrs, "num_outputs") || !strcmp(s->base, "TopK");
    at += snprintf(found_text + at, (size_t)(room - at), "%s = %s(", outputs ? "y, z" : "y",
                   s->base);
    for (size_t k = 0; k < s->n; k++)
        at += snprintf(found_text + at, (size_t)(room - at), k ? ", %c" : "%c", (char)('a' + k));
    snprintf(found_text + at, (size_t)(room - at), "%s) %s\n", *tail ? ", t" : "", attrs);
    return parses(found_text);
}

static bool try_shapes(Search *s, size_t k, const char *tail, const char *attrs)
{
    if (k == s->n) return try_text(s, tail, attrs);
    DType t = type_of(json_string_value(json_array_get(s->in, k)), MPR_FLOAT32);
    bool is_float = mpri_dtype_is_float(t);
    const char *const *list = is_float ? float_shapes : t == MPR_BOOL ? bool_shapes : index_shapes;
    for (size_t i = 0; s->same && is_float && i < k && !strstr(s->op, ".rank0"); i++)
        if (mpri_dtype_is_float(
                type_of(json_string_value(json_array_get(s->in, i)), MPR_FLOAT32))) {
            s->shape[k] = s->shape[i];
            return try_shapes(s, k + 1, tail, attrs);
        }
    if (k > 0 && is_float && strstr(s->op, ".rank0")) {
        s->shape[k] = "";
        return try_shapes(s, k + 1, tail, attrs);
    }
    for (; *list; list++) {
        s->shape[k] = *list;
        if (try_shapes(s, k + 1, tail, attrs)) return true;
    }
    return false;
}

/* The first legal node y = Op(a, b, ...) for the input types of the row. */
static const OpCase *plain_case(const json_t *row)
{
    static OpCase plain;
    static char name[64];
    Search s = {.in = json_object_get(row, "in"), .op = name, .same = true};
    s.n = json_array_size(s.in);
    snprintf(name, sizeof name, "%s", text_of(row, "op"));
    snprintf(s.base, sizeof s.base, "%s", name);
    s.base[strcspn(s.base, ".")] = 0;
    if (s.n > 8 || !mpri_op_table()->find("", s.base)) return NULL;
    bool scalar = strstr(name, ".scalar") != NULL;
    for (int pass = 0; pass < 2; pass++, s.same = false)
        for (const char *const *tail = scalar ? tails + 6 : tails; *tail; tail++)
            for (const char *const *attrs = attributes; *attrs; attrs++)
                if (try_shapes(&s, 0, *tail, *attrs)) {
                    plain = (OpCase){name, found_text};
                    return &plain;
                }
    return NULL;
}

static size_t inputs_of(const OpCase *c)
{
    size_t n = 0;
    for (const char *at = c->text; (at = strstr(at, "input ")); at++) n++;
    return n;
}

static const OpCase *find_case(const json_t *row)
{
    const char *op = text_of(row, "op");
    for (size_t i = 0; i < sizeof op_cases / sizeof *op_cases; i++)
        if (!strcmp(op_cases[i].op, op)) return &op_cases[i];
    const OpCase *plain = plain_case(row);
    char base[64];
    snprintf(base, sizeof base, "%s", op);
    base[strcspn(base, ".")] = 0;
    for (size_t i = 0; !plain && i < sizeof op_cases / sizeof *op_cases; i++)
        if (!strncmp(op_cases[i].op, base, strlen(base)) &&
            strchr(". ", op_cases[i].op[strlen(base)]) &&
            inputs_of(&op_cases[i]) == json_array_size(json_object_get(row, "in")))
            return &op_cases[i];
    return plain;
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

static bool is_loss_case(const OpCase *c)
{
    return strstr(c->op, "Loss") || !strncmp(c->op, "BCE", 3);
}

/* What mpr must give: torch's type, its own where torch has none, f32 for the hand-written
 * cross-entropy. */
static const char *wanted_output(const json_t *row)
{
    const char *out = text_of(row, "out");
    const char *own = json_string_value(json_object_get(row, "mpr"));
    if (own) return own;
    return strcmp(out, "error") && strcmp(out, "unverified") ? out : "f32";
}

static bool check_row(const json_t *row, const OpCase *c, DType low)
{
    TestGraph t;
    char text[1400];
    bool good = true;
    snprintf(text, sizeof text, "graph \"g\" {\n%soutput %s = y\n}\n", c->text,
             is_loss_case(c) ? "loss" : "y");
    test_graph_open(&t, text);
    if (!strcmp(c->op, "SoftmaxCrossEntropyLoss")) (void)test_graph_pass(&t, mpri_pass_loss);
    json_t *in = json_object_get(row, "in");
    if ((int)json_array_size(in) != t.g->n_inputs)
        fail_msg("%s: the case has %d inputs", describe(row, low), t.g->n_inputs);
    for (int k = 0; k < t.g->n_inputs; k++) /* ill-typed until the pass has run: that is its job */
        t.g->inputs[k].value->dtype = type_of(json_string_value(json_array_get(in, (size_t)k)),
                                              low);
    Value *y = mpri_graph_find_value(t.g, "y");
    Node *n = y->def; /* a Cast that becomes idle goes: its input stands for it */
    autocast(&t, text_of(row, "profile"), low);
    /* behind the Cast that rounds it, where there is one */
    const Value *named = mpri_graph_find_value(t.g, "y");
    DType found = n->linked && named ? named->dtype : t.g->outputs[0].value->dtype;
    if (found != type_of(wanted_output(row), low)) {
        print_error("%s: output %s, expected %s\n", describe(row, low), mpri_dtype_name(found),
                    wanted_output(row));
        good = false;
    }
    const char *compute = json_string_value(json_object_get(row, "compute"));
    /* with a scalar that the low type cannot hold: low in, low out, f32 between two casts */
    bool computes = compute && strcmp(compute, "bool") && strcmp(compute, "error") &&
                    strcmp(compute, "unverified") && n->op->id != OP_Cast &&
                    n->why != mpri_autocast_inside;
    for (int k = 0; computes && n->linked && k < n->n_in; k++) {
        if (!n->in[k] || !mpri_dtype_is_float(n->in[k]->dtype) ||
            mpri_op_mask(n->op->fixed_in, k)) /* keeps its type */
            continue;
        if (n->in[k]->dtype == type_of(compute, low)) continue;
        print_error("%s: input %d is %s, computes in %s\n", describe(row, low), k,
                    mpri_dtype_name(n->in[k]->dtype), compute);
        good = false;
    }
    test_graph_close(&t);
    return good;
}

static void run_row(void *user, const json_t *row)
{
    int *failed = user;
    const OpCase *c = find_case(row);
    json_t *lows = json_object_get(row, "low"), *low;
    size_t k;
    if (!c) fail_msg("%s: no legal node of this operator was found", text_of(row, "op"));
    if (!json_array_size(lows)) fail_msg("%s: no low type", text_of(row, "op"));
    json_array_foreach(lows, k, low)
        *failed += !check_row(row, c, mpri_dtype_parse(json_string_value(low)));
}

static void test_ops(void **state)
{
    (void)state;
    int failed = 0, n = test_vectors_each("ops", run_row, &failed);
    assert_true(n > 200 || !test_vectors_own());
    if (failed) fail_msg("%d of %d rows", failed, n);
}

/* ---- graphs ---- */

typedef struct GraphRow {
    const json_t *nodes;
    const char *graph;
} GraphRow;

static const json_t *producer(const GraphRow *g, const char *name)
{
    size_t i;
    json_t *node;
    json_array_foreach((json_t *)g->nodes, i, node) if (!strcmp(text_of(node, "name"), name))
        return node;
    return NULL;
}

static bool node_reads(const json_t *node, const char *name)
{
    size_t k;
    json_t *x;
    json_array_foreach(json_object_get(node, "in"), k, x) if (!strcmp(json_string_value(x), name))
        return true;
    return false;
}

static bool is_binary(const char *op)
{
    static const char *const list[] = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", NULL};
    const char *const *at = list;
    while (*at && strcmp(*at, op)) at++;
    return *at != NULL;
}

/* A binary node of one input: its other operand is a constant that the row leaves out. */
static bool is_lone(const json_t *node)
{
    return is_binary(text_of(node, "op")) && json_array_size(json_object_get(node, "in")) == 1;
}

static bool produced_by(const GraphRow *g, const json_t *node, const char *op)
{
    const json_t *in = json_object_get(node, "in");
    const json_t *p = producer(g, json_string_value(json_array_get(in, 0)));
    return p && !strcmp(text_of(p, "op"), op);
}

static bool read_by(const GraphRow *g, const json_t *node, const char *op)
{
    size_t i;
    json_t *x;
    json_array_foreach((json_t *)g->nodes, i, x) if (node_reads(x, text_of(node, "name")) &&
                                                     !strcmp(text_of(x, "op"), op)) return true;
    return false;
}

/* The constants by which exported GELU, norms and attention are recognised. */
static const char *constant_of(const GraphRow *g, const json_t *node)
{
    const char *op = text_of(node, "op");
    bool gate = false;
    size_t i;
    json_t *x;
    json_array_foreach((json_t *)g->nodes, i, x) gate = gate || !strcmp(text_of(x, "op"), "Erf") ||
                                                        !strcmp(text_of(x, "op"), "Tanh");
    if (!strcmp(op, "Pow")) return read_by(g, node, "Mul") && gate ? "3" : "2";
    if (!strcmp(op, "Div")) return read_by(g, node, "Erf") ? "1.4142135" : "2.8284271";
    if (!strcmp(op, "Mul")) {
        if (read_by(g, node, "Erf")) return "0.70710678";
        if (produced_by(g, node, "Pow")) return "0.044715";
        if (read_by(g, node, "Tanh")) return "0.7978846";
        if (read_by(g, node, "Sigmoid")) return "1.702";
        return gate ? "0.5" : "0.35355339";
    }
    if (!strcmp(op, "Add")) return produced_by(g, node, "ReduceMean") ? "1e-05" : "1";
    return "1";
}

/* What the rows leave to the reader: axes, shapes and attributes, tried in turn. */
typedef struct Detail {
    const char *op, *extra[10], *attrs[6];
} Detail;

static const Detail details[] = {
    {"Transpose", {""}, {"{perm=[1,0]}", "{perm=[0,2,1]}", "{perm=[0,2,1,3]}", "{perm=[0,1,3,2]}"}},
    {"Reshape",
     {", to.8.8", ", to.8.16", ", to.x.8", ", to.x.16", ", to.2.4.8", ", to.2.4.2.4",
      ", to.2.4.4.2", ", to.x"},
     {""}},
    {"Slice", {", start, end"}, {""}},
    {"Unsqueeze", {", start", ", last"}, {""}},
    {"Squeeze", {", start", ", last", ""}, {""}},
    {"Concat", {""}, {"{axis=-1}", "{axis=0}", "{axis=1}"}},
    {"Split", {""}, {"{axis=-1, num_outputs=2}", "{num_outputs=2}"}},
    {"Gather", {""}, {"", "{axis=1}"}},
    {"CumSum", {", zero"}, {""}},
    {"Expand", {", to.2.4.8", ", to.8.8"}, {""}},
    {"Tile", {", two"}, {""}},
    {"Clip", {", zero.f, one.f", ""}, {""}},
    {"Softmax", {""}, {"", "{axis=-1}"}},
    {"MaxPool", {""}, {"{kernel_shape=[2,2]}", "{kernel_shape=[2]}"}},
    {"AveragePool", {""}, {"{kernel_shape=[2,2]}", "{kernel_shape=[2]}"}},
};

static const char constants_text[] =
    "const last: i64[1] = [-1]\nconst start: i64[1] = [0]\nconst end: i64[1] = [4]\n"
    "const to.8.8: i64[2] = [8,8]\nconst to.8.16: i64[2] = [8,16]\n"
    "const to.x.8: i64[2] = [-1,8]\nconst to.x.16: i64[2] = [-1,16]\nconst to.x: i64[1] = [-1]\n"
    "const to.2.4.8: i64[3] = [2,4,8]\nconst to.2.4.2.4: i64[4] = [2,4,2,4]\n"
    "const to.2.4.4.2: i64[4] = [2,4,4,2]\nconst zero: i64[] = [0]\nconst two: i64[2] = [2,1]\n"
    "const zero.f: f32[] = [0]\nconst one.f: f32[] = [1]\n";

static void put_node(Text *t, const GraphRow *g, const json_t *node, const char *extra,
                     const char *attrs)
{
    const char *name = text_of(node, "name"), *op = text_of(node, "op");
    json_t *x;
    size_t i;
    if (is_lone(node))
        mpri_text_add(t, "const k.%s: f32[] = %s\n", name, constant_of(g, node));
    mpri_text_add(t, "%s%s = %s(", name, strstr(attrs, "num_outputs") ? ", _" : "", op);
    json_array_foreach(json_object_get(node, "in"), i, x)
        mpri_text_add(t, "%s%s", i ? ", " : "", json_string_value(x));
    if (is_lone(node)) mpri_text_add(t, ", k.%s", name);
    mpri_text_add(t, "%s) %s @ \"/%s/%s\"\n", extra, attrs, g->graph, name);
}

static bool legal(const Text *t)
{
    Arena arena;
    Graph *g;
    Err err = {0};
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    Intern *names = mpri_intern_create(&arena);
    assert_non_null(names);
    bool ok = mpri_graph_parse(t->text, &arena, names, mpri_op_table(), &g, &err) == MPR_OK &&
              mpri_infer_graph(g, &err) == MPR_OK;
    mpri_arena_destroy(&arena);
    return ok;
}

/* Depth first over the choices of all nodes; *t is the text of the graph when it succeeds. */
static bool put_nodes(Text *t, const GraphRow *g, size_t i)
{
    const json_t *node = json_array_get(g->nodes, i);
    static const Detail any = {.extra = {""}, .attrs = {""}},
                        sum = {.extra = {", last"}, .attrs = {"", "{keepdims=0}"}},
                        all = {.extra = {""}, .attrs = {"{keepdims=0}"}};
    const Detail *d = &any;
    if (!node) return true;
    const char *op = text_of(node, "op");
    for (size_t k = 0; k < sizeof details / sizeof *details; k++)
        if (!strcmp(details[k].op, op)) d = &details[k];
    if (!strncmp(op, "Reduce", 6)) d = strcmp(text_of(node, "name"), "loss") ? &sum : &all;
    size_t length = t->len;
    for (int e = 0; e < 10 && d->extra[e]; e++)
        for (int a = 0; a < 6 && d->attrs[a]; a++) {
            put_node(t, g, node, d->extra[e], d->attrs[a]);
            size_t end = t->len;
            mpri_text_put(t, "}\n");
            bool ok = legal(t);
            t->len = end;
            t->text[end] = 0;
            if (ok && put_nodes(t, g, i + 1)) return true;
            t->len = length;
            t->text[length] = 0;
        }
    return false;
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
    bool fed = strcmp(dtype, "f32") != 0;
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) fed = fed || !strcmp(name, data[i]);
    char *shape = json_dumps(json_object_get(in, "shape"), JSON_COMPACT);
    mpri_text_add(t, "%s %s: %s%s%s\n", fed ? "input" : "param", name,
                  strcmp(dtype, "low") ? dtype : "f32", shape, fed ? "" : " trained");
    free(shape);
}

static void graph_text(const json_t *row, Text *t)
{
    json_t *x;
    GraphRow g = {json_object_get(row, "nodes"), text_of(row, "graph")};
    size_t i;
    mpri_text_put(t, "graph \"g\" {\n");
    json_array_foreach(json_object_get(row, "inputs"), i, x) put_input(t, x);
    mpri_text_put(t, constants_text);
    if (!put_nodes(t, &g, 0)) fail_msg("graph %s: no legal reading found\n%s", g.graph, t->text);
    json_array_foreach((json_t *)g.nodes, i, x) if (!is_read(g.nodes, text_of(x, "name")))
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

static void run_graph(void *user, const json_t *row)
{
    const char *profile;
    json_t *out;
    (void)user;
    if (!json_object_size(json_object_get(row, "out"))) fail_msg("a graph without results");
    json_object_foreach(json_object_get(row, "out"), profile, out)
    {
        check_graph(row, profile, MPR_FLOAT16);
        check_graph(row, profile, MPR_BFLOAT16);
    }
}

static void test_graphs(void **state)
{
    (void)state;
    int n = test_vectors_each("graphs", run_graph, NULL);
    assert_true(n > 0 || !test_vectors_own());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ops), cmocka_unit_test(test_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
