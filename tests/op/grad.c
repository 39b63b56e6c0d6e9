/* Gradients of every differentiable operator against central differences, in double through the
 * reference kernels. The function differentiated is sum(cotangent * output) with random cotangents
 * for all float outputs; the difference formula is of fourth order, so agreement to 1e-6 is a check
 * of the rule and not of the step. Ties and kinks have no difference quotient: their rows state the
 * result. */
#include "tests/support/graphs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "runtime/ir/text_form.h"

#define MAX_OUTPUTS 4

typedef struct Case {
    TestGraph t;
    TestValues v;
    const char *names[MAX_OUTPUTS];
    char text[4096];
} Case;

static bool operator_seen[OP_COUNT];

/* Parse, differentiate every float output with respect to every float input. */
static void open_case(Case *c, const char *text, double low, double high)
{
    memset(c, 0, sizeof *c);
    snprintf(c->text, sizeof c->text, "%s", text);
    test_graph_open(&c->t, text);
    Graph *g = c->t.g;
    PassOptions *o = &c->t.o;
    o->grads = GRADS_TO_OUTPUTS;
    o->grads_of_inputs = true;
    o->training = true;
    o->seeds = c->names;
    for (int i = 0; i < g->n_outputs; i++)
        if (mpri_dtype_is_float(g->outputs[i].value->dtype))
            c->names[o->n_seeds++] = g->outputs[i].name;
    for (Node *n = g->first; n; n = n->next) operator_seen[n->op->id] = true;
    test_graph_pass(&c->t, mpri_pass_autodiff);
    test_values_open(&c->v, &c->t);
    for (int i = 0; i < g->n_inputs; i++) {
        const Value *x = g->inputs[i].value;
        bool seed = strncmp(x->name, "cotangent:", 10) == 0;
        test_values_fill(&c->v, x, seed ? -1 : low, seed ? 1 : high);
    }
}

static double objective(Case *c)
{
    double sum = 0;
    test_values_run(&c->v, false);
    for (int s = 0; s < c->t.o.n_seeds; s++) {
        char name[64];
        snprintf(name, sizeof name, "cotangent:%s", c->names[s]);
        const Tensor *dy = &c->v.at[mpri_graph_find_value(c->t.g, name)->id], *y = NULL;
        for (int i = 0; i < c->t.g->n_outputs; i++)
            if (strcmp(c->t.g->outputs[i].name, c->names[s]) == 0)
                y = &c->v.at[c->t.g->outputs[i].value->id];
        for (int64_t k = 0; k < y->n; k++)
            sum += mpri_load_f64(dy->dtype, dy->data, k) * mpri_load_f64(y->dtype, y->data, k);
    }
    mpri_arena_reset(&c->t.scratch);
    return sum;
}

static Tensor gradient_of(Case *c, const Value *x)
{
    char name[64];
    snprintf(name, sizeof name, "grad:%s", x->name);
    for (int i = 0; i < c->t.g->n_outputs; i++)
        if (strcmp(c->t.g->outputs[i].name, name) == 0) {
            const Value *dx = c->t.g->outputs[i].value;
            assert_int_equal(dx->dtype, x->dtype);
            assert_true(mpri_shape_equal(&dx->shape, &x->shape));
            return c->v.at[dx->id];
        }
    fail_msg("no gradient of %s", x->name);
    return (Tensor){0};
}

static double difference(Case *c, double *x)
{
    const double h = 1e-3, at = *x;
    static const double step[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *x = at + step[i] * h;
        sum += weight[i] * objective(c);
    }
    *x = at;
    return sum / (12 * h);
}

static void check_range(const char *text, double low, double high)
{
    Case *c = test_malloc(sizeof *c);
    open_case(c, text, low, high);
    for (int i = 0; i < c->t.g->n_inputs; i++) {
        const Value *v = c->t.g->inputs[i].value;
        if (v->dtype != MPR_FLOAT64 || strncmp(v->name, "cotangent:", 10) == 0) continue;
        for (int64_t k = 0; k < c->v.at[v->id].n; k++) {
            double want = difference(c, (double *)c->v.at[v->id].data + k);
            test_values_run(&c->v, true);
            Tensor dx = gradient_of(c, v);
            double got = ((const double *)dx.data)[k];
            if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want)))) {
                print_error("d%s[%d] = %.9g, differences give %.9g in\n%s\n", v->name, (int)k, got,
                            want, c->text);
                fail();
            }
            mpri_arena_reset(&c->t.scratch);
        }
        test_values_run(&c->v, true);
        gradient_of(c, v); /* type and shape, also of empty tensors */
        mpri_arena_reset(&c->t.scratch);
    }
    test_graph_close(&c->t);
    test_free(c);
}

static void unary(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        double low, high;
    } rows[] = {
        {"Neg(x)", -2, 2}, {"Abs(x)", 0.1, 2}, {"Abs(x)", -2, -0.1}, {"Reciprocal(x)", 0.5, 2},
        {"Sqrt(x)", 0.5, 3}, {"Exp(x)", -2, 2}, {"Log(x)", 0.5, 3}, {"Sin(x)", -3, 3},
        {"Cos(x)", -3, 3}, {"Erf(x)", -2, 2}, {"Tanh(x)", -2, 2}, {"Sigmoid(x)", -3, 3},
        {"Softsign(x)", 0.1, 3}, {"Softsign(x)", -3, -0.1},
        {"Relu(x)", 0.1, 2}, {"Relu(x)", -2, -0.1}, {"Gelu(x)", -3, 3},
        {"Gelu(x) {approximate=\"tanh\"}", -3, 3}, {"Identity(x)", -1, 1},
        {"Cast(x) {to=f64}", -1, 1}, {"Clip(x)", -1, 1}, {"Mul(x, x)", -1, 1},
        {"Sum(x, x, x)", -1, 1}, {"Max(x, x)", -1, 1}, {"Div(x, x)", 1, 2}, {"Dropout(x)", -1, 1},
        {"LeakyRelu(x)", 0.1, 2}, {"LeakyRelu(x) {alpha=0.3}", -2, -0.1},
        {"ThresholdedRelu(x)", 1.1, 2}, {"ThresholdedRelu(x)", -1, 0.9},
        {"Elu(x) {alpha=1.5}", 0.1, 2}, {"Elu(x) {alpha=1.5}", -3, -0.1},
        {"Selu(x)", 0.1, 2}, {"Selu(x)", -3, -0.1},
        {"Celu(x) {alpha=0.7}", 0.1, 2}, {"Celu(x) {alpha=0.7}", -3, -0.1},
        {"HardSigmoid(x)", -2.4, 2.4}, {"HardSigmoid(x)", 3, 4},
        {"HardSwish(x)", -2.9, 2.9}, {"HardSwish(x)", 3.1, 5}, {"HardSwish(x)", -5, -3.1},
        {"Softplus(x)", -5, 5}, {"Mish(x)", -5, 5}, {"Mish(x)", 20, 40},
        {"Swish(x)", -5, 5}, {"Swish(x) {alpha=-1.25}", -3, 3}, {"SwiGLU(x, x)", -3, 3},
        {"Shrink(x) {bias=0.25}", 0.6, 2}, {"Shrink(x) {bias=0.25}", -2, -0.6},
        {"Shrink(x)", -0.4, 0.4}, {"CastLike(x, x)", -1, 1},
        {"Tan(x)", -1.2, 1.2}, {"Asin(x)", -0.9, 0.9}, {"Acos(x)", -0.9, 0.9}, {"Atan(x)", -3, 3},
        {"Sinh(x)", -2, 2}, {"Cosh(x)", -2, 2}, {"Asinh(x)", -3, 3}, {"Acosh(x)", 1.5, 4},
        {"Atanh(x)", -0.9, 0.9}, {"Mean(x, x, x)", -1, 1},
    };
    static const char *const shapes[] = {"2,3", "", "0,3", "1,1,4"};
    char text[512];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            snprintf(text, sizeof text,
                     "graph \"unary\" {\n input x: f64[%s]\n y = %s\n output y = y\n}\n", shapes[s],
                     rows[i].call);
            check_range(text, rows[i].low, rows[i].high);
        }
}

static void binary(void **state)
{
    (void)state;
    static const struct {
        const char *call;
        double low, high;
    } rows[] = {
        {"Add(a, b)", -2, 2},           {"Sub(a, b)", -2, 2},
        {"Mul(a, b)", -2, 2},           {"Div(a, b)", 0.5, 2},
        {"Pow(a, two)", -2, 2},         {"Pow(a, half)", 0.5, 2},
        {"Pow(a, three)", -2, 2},       {"Max(a, b)", -2, 2},
        {"Min(a, b)", -2, 2},           {"Max(a, b, a)", -2, 2},
        {"Sum(a, b, b)", -2, 2},        {"Where(cond, a, b)", -2, 2},
        {"Where(cond, b, a)", -2, 2},   {"Mod(a, b) {fmod=1}", 0.5, 2},
        {"Clip(a, zero, half)", -2, 2}, {"Mean(a, b, b)", -2, 2},
    };
    static const char *const shapes[][2] = {
        {"2,3", "2,3"}, {"2,3", "3"}, {"2,1", "1,3"}, {"3", "2,3"}, {"", "2,3"},
        {"2,3", ""}, {"", ""}, {"0,3", "3"}, {"3", "0,3"}, {"4,1,3", "2,1"},
    };
    char text[1024];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            snprintf(text, sizeof text,
                     "graph \"binary\" {\n input a: f64[%s]\n input b: f64[%s]\n"
                     "const two: f64[] = 2\n const three: f64[] = 3\n const half: f64[] = 0.5\n"
                     "const zero: f64[] = 0\n const cond: bool[3] = [1,0,1]\n"
                     "y = %s\n output y = y\n}\n",
                     shapes[s][0], shapes[s][1], rows[i].call);
            check_range(text, rows[i].low, rows[i].high);
        }
}

/* x and w are inputs of the given shapes, c further lines. */
typedef struct Row {
    const char *x, *w, *lines;
    double low, high; /* 0, 0 = -1 .. 1 */
} Row;

static void run_rows(const Row *rows, size_t n)
{
    char text[2048];
    for (size_t i = 0; i < n; i++) {
        char w[64] = "";
        if (rows[i].w) snprintf(w, sizeof w, "input w: f64[%s]\n", rows[i].w);
        snprintf(text, sizeof text, "graph \"row\" {\n input x: f64[%s]\n%s%s\n output y = y\n}\n",
                 rows[i].x, w, rows[i].lines);
        bool given = rows[i].low != 0 || rows[i].high != 0;
        check_range(text, given ? rows[i].low : -1, given ? rows[i].high : 1);
    }
}
#define RUN(rows) run_rows(rows, sizeof(rows) / sizeof *(rows))

/* The slope of PRelu is broadcast to x. */
static void slopes(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"2,3", "3", "y = PRelu(x, w)", 0.1, 2},       {"2,3", "3", "y = PRelu(x, w)", -2, -0.1},
        {"2,2,3", "2,1", "y = PRelu(x, w)", -2, -0.1}, {"2,3", "", "y = PRelu(x, w)", -2, -0.1},
        {"0,3", "3", "y = PRelu(x, w)", -2, -0.1},     {"2,3", "2,3", "y = SwiGLU(x, w)", -3, 3},
    };
    RUN(rows);
}

static void matmul(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"2,3", "3,4", "y = MatMul(x, w)", 0, 0},
        {"2,2,3", "3,4", "y = MatMul(x, w)", 0, 0},
        {"2,2,3", "2,3,2", "y = MatMul(x, w)", 0, 0},
        {"1,2,3", "4,3,2", "y = MatMul(x, w)", 0, 0},
        {"2,1,2,3", "3,3,2", "y = MatMul(x, w)", 0, 0},
        {"2,3", "2,3,2", "y = MatMul(x, w)", 0, 0},
        {"3", "3,4", "y = MatMul(x, w)", 0, 0},
        {"2,3", "3", "y = MatMul(x, w)", 0, 0},
        {"3", "3", "y = MatMul(x, w)", 0, 0},
        {"2,2,3", "3", "y = MatMul(x, w)", 0, 0},
        {"3", "2,3,2", "y = MatMul(x, w)", 0, 0},
        {"0,3", "3,4", "y = MatMul(x, w)", 0, 0},
        {"2,0", "0,4", "y = MatMul(x, w)", 0, 0},
        {"2,3", "3,4", "y = Gemm(x, w) {alpha=0.5}", 0, 0},
        {"3,2", "4,3", "input c: f64[4]\n y = Gemm(x, w, c) {transA=1, transB=1, alpha=2, beta=3}",
         0, 0},
        {"2,3", "3,4", "input c: f64[2,1]\n y = Gemm(x, w, c)", 0, 0},
        {"2,3", "3,4", "input c: f64[2,4]\n y = Gemm(x, w, c) {beta=0.5}", 0, 0},
        {"2,3", "3,4", "input c: f64[]\n y = Gemm(x, w, c)", 0, 0},
        {"3,2", "3,4", "y = Gemm(x, w) {transA=1}", 0, 0},
        {"2,3", "4,3", "y = Gemm(x, w) {transB=1}", 0, 0},
        {"2,2,3", "4,3", "input b: f64[4]\n y = Linear(x, w, b) {trans_w=1}", 0, 0},
        {"2,3", "3,4", "input b: f64[4]\n y = Linear(x, w, b) {trans_w=0}", 0, 0},
        {"2,3", "4,3", "y = Linear(x, w) {trans_w=1}", 0, 0},
    };
    RUN(rows);
}

static void reduce(void **state)
{
    (void)state;
    static const char *const ops[] = {"ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax",
                                      "ReduceMin"};
    static const char *const forms[][2] = {
        {"2,3,2", "const axes: i64[1] = [1]\n y = %s(x, axes) {keepdims=1}"},
        {"2,3,2", "const axes: i64[2] = [-1,0]\n y = %s(x, axes) {keepdims=0}"},
        {"2,3", "y = %s(x) {keepdims=0}"},
        {"2,3", "y = %s(x) {keepdims=1}"},
        {"2,3", "const axes: i64[0] = []\n y = %s(x, axes) {noop_with_empty_axes=1}"},
        {"", "y = %s(x)"},
        {"2,1,3", "const axes: i64[1] = [-2]\n y = %s(x, axes) {keepdims=0}"},
    };
    char lines[256];
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            snprintf(lines, sizeof lines, forms[k][1], ops[i]);
            run_rows(&(Row){forms[k][0], NULL, lines, 0, 0}, 1);
        }
    static const Row rows[] = {
        {"0,3", NULL, "const axes: i64[1] = [0]\n y = ReduceSum(x, axes)", 0, 0},
        {"2,0", NULL, "const axes: i64[1] = [0]\n y = ReduceMean(x, axes)", 0, 0},
    };
    RUN(rows);
}

static void softmax_norm_loss(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"2,4", NULL, "y = Softmax(x)", -3, 3},
        {"2,3,2", NULL, "y = Softmax(x) {axis=1}", -3, 3},
        {"2,3,2", NULL, "y = Softmax(x) {axis=-3}", -3, 3},
        {"0,3", NULL, "y = Softmax(x)", 0, 0},
        {"2,4", NULL, "y = LogSoftmax(x) {axis=-1}", -3, 3},
        {"2,3,2", NULL, "y = LogSoftmax(x) {axis=0}", -3, 3},
        {"3,4", "4", "input b: f64[4]\n y = LayerNormalization(x, w, b)", 0, 0},
        {"3,4", "4", "y = LayerNormalization(x, w) {axis=-1, epsilon=0.01}", 0, 0},
        {"2,3,4", "3,4", "input b: f64[3,4]\n y = LayerNormalization(x, w, b) {axis=1}", 0, 0},
        {"0,4", "4", "y = LayerNormalization(x, w)", 0, 0},
        {"3,4", NULL, "const t: i64[3] = [0,3,1]\n y = SoftmaxCrossEntropyLoss(x, t)", -2, 2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,1]\n y = SoftmaxCrossEntropyLoss(x, t) {reduction=\"sum\"}", -2,
         2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,1]\n y = SoftmaxCrossEntropyLoss(x, t) {reduction=\"none\"}", -2,
         2},
        {"2,3,2", NULL,
         "const t: i64[2,2] = [0,2,1,1]\n y = SoftmaxCrossEntropyLoss(x, t) {ignore_index=1}", -2,
         2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,-100]\n const k: f64[4] = [1,2,0.5,3]\n"
         "y = SoftmaxCrossEntropyLoss(x, t, k) {ignore_index=-100}",
         -2, 2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,1]\n y, l, n = CrossEntropy(x, t) {axis=-1, reduction=\"mean\"}",
         -2, 2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,1]\n y, l, n = CrossEntropy(x, t) "
         "{axis=-1, reduction=\"mean\", label_smoothing=0.1}",
         -2, 2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,-1]\n const k: f64[4] = [1,2,0.5,3]\n y, l, n = CrossEntropy(x, "
         "t, k) "
         "{axis=1, reduction=\"sum\", ignore_index=-1, label_smoothing=0.25}",
         -2, 2},
        {"3,4", NULL,
         "const t: i64[3] = [0,3,-1]\n const k: f64[4] = [1,2,0.5,3]\n y, l, n = CrossEntropy(x, "
         "t, k) "
         "{axis=1, reduction=\"none\", ignore_index=-1}",
         -2, 2},
        {"3,2", "3,2", "y, n = MseLoss(x, w) {reduction=\"mean\"}", -2, 2},
        {"3,2", "3,2", "y, n = MseLoss(x, w) {reduction=\"sum\"}", -2, 2},
    };
    RUN(rows);
}

static void layout(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"2,3", NULL, "const s: i64[2] = [3,-1]\n y = Reshape(x, s)", 0, 0},
        {"0,3", NULL, "const s: i64[2] = [3,0]\n y = Reshape(x, s) {allowzero=1}", 0, 0},
        {"1", NULL, "const s: i64[0] = []\n y = Reshape(x, s)", 0, 0},
        {"2,3,4", NULL, "y = Trilu(x)", 0, 0},
        {"3,3", NULL, "const k: i64[] = -1\n y = Trilu(x, k) {upper=0}", 0, 0},
        {"2,3,1", NULL, "const r: i64[3] = [2,1,3]\n y = Tile(x, r)", 0, 0},
        {"2,3", NULL, "const r: i64[2] = [2,0]\n y = Tile(x, r)", 0, 0},
        {"2,3", "", "const p: i64[4] = [1,-1,0,2]\n y = Pad(x, p, w)", 0, 0},
        {"2,3", "1", "const p: i64[2] = [2,-1]\n const a: i64[1] = [-1]\n y = Pad(x, p, w, a)", 0,
         0},
        {"3,2", NULL, "const p: i64[4] = [3,1,2,0]\n y = Pad(x, p) {mode=\"reflect\"}", 0, 0},
        {"3,2", NULL, "const p: i64[4] = [3,-1,2,2]\n y = Pad(x, p) {mode=\"edge\"}", 0, 0},
        {"3,2", NULL, "const p: i64[4] = [4,1,0,3]\n y = Pad(x, p) {mode=\"wrap\"}", 0, 0},
        {"2,3,4", NULL, "y = Transpose(x)", 0, 0},
        {"2,3,4", NULL, "y = Transpose(x) {perm=[1,2,0]}", 0, 0},
        {"", NULL, "y = Transpose(x)", 0, 0},
        {"2,3", "2,1", "y = Concat(x, w, x) {axis=-1}", 0, 0},
        {"2,3", "0,3", "y = Concat(x, w) {axis=0}", 0, 0},
        {"2,5", NULL, "const s: i64[2] = [2,3]\n y, z = Split(x, s) {axis=1}\n output z = z", 0, 0},
        {"2,5", NULL, "const s: i64[2] = [2,3]\n y, z = Split(x, s) {axis=-1}", 0, 0},
        {"5", NULL, "y, z, u = Split(x) {axis=0, num_outputs=3}\n output u = u", 0, 0},
        {"4,5", NULL, "const a: i64[1] = [1]\n const b: i64[1] = [4]\n y = Slice(x, a, b)", 0, 0},
        {"4,5", NULL,
         "const a: i64[2] = [-1,0]\n const b: i64[2] = [-9,9]\n const k: i64[2] = [1,0]\n"
         "const s: i64[2] = [-2,3]\n y = Slice(x, a, b, k, s)",
         0, 0},
        {"4,5", NULL,
         "const a: i64[1] = [3]\n const b: i64[1] = [3]\n const k: i64[1] = [-1]\n"
         "y = Slice(x, a, b, k)",
         0, 0},
        {"1,3,1", NULL, "const k: i64[1] = [-1]\n y = Squeeze(x, k)", 0, 0},
        {"1,3,1", NULL, "y = Squeeze(x)", 0, 0},
        {"3", NULL, "const k: i64[2] = [0,-1]\n y = Unsqueeze(x, k)", 0, 0},
        {"", NULL, "const k: i64[1] = [0]\n y = Unsqueeze(x, k)", 0, 0},
        {"2,3,4", NULL, "y = Flatten(x) {axis=-1}", 0, 0},
        {"2,3", NULL, "y = Flatten(x) {axis=0}", 0, 0},
        {"3,4", NULL, "y = Trilu(x)", 0, 0},
        {"2,3,4", NULL, "const k: i64[] = -1\n y = Trilu(x, k) {upper=0}", 0, 0},
        {"2,1", NULL, "const s: i64[3] = [2,1,3]\n y = Expand(x, s)", 0, 0},
        {"", NULL, "const s: i64[2] = [2,3]\n y = Expand(x, s)", 0, 0},
        {"1,3", NULL, "const s: i64[2] = [0,3]\n y = Expand(x, s)", 0, 0},
    };
    RUN(rows);
}

static void indexing(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"4,3", NULL, "const i: i64[2,2] = [0,3,3,-1]\n y = Gather(x, i)", 0, 0},
        {"2,4,3", NULL, "const i: i64[3] = [1,1,0]\n y = Gather(x, i) {axis=-2}", 0, 0},
        {"4,3", NULL, "const i: i64[] = 2\n y = Gather(x, i)", 0, 0},
        {"4,3", NULL, "const i: i64[0] = []\n y = Gather(x, i) {axis=1}", 0, 0},
        {"2,3", NULL, "const i: i64[2,2] = [0,0,2,-1]\n y = GatherElements(x, i) {axis=1}", 0, 0},
        {"3,2,2", NULL, "const i: i64[3,2] = [0,1,2,0,0,1]\n y = GatherND(x, i)", 0, 0},
        {"2,3,2", NULL, "const i: i64[2,1] = [2,-1]\n y = GatherND(x, i) {batch_dims=1}", 0, 0},
        {"3,4", "2,2", "const i: i64[2,2] = [0,2,-1,0]\n y = Scatter(x, i, w)", 0, 0},
        {"3,4", "2,2", "const i: i64[2,2] = [0,2,-1,0]\n y = ScatterElements(x, i, w) {axis=1}", 0,
         0},
        {"3,4", "2,3", "const i: i64[2,3] = [1,1,0,-1,2,2]\n"
                       " y = ScatterElements(x, i, w) {axis=1, reduction=\"add\"}", 0, 0},
        {"3,4", "2,3", "const i: i64[2,3] = [1,1,1,-1,2,2]\n"
                       " y = ScatterElements(x, i, w) {axis=1, reduction=\"mul\"}", -2, 2},
        {"3,4", "2,3", "const i: i64[2,3] = [1,1,0,-1,2,2]\n"
                       " y = ScatterElements(x, i, w) {axis=1, reduction=\"max\"}", -2, 2},
        {"3,4", "2,4", "const i: i64[2,1] = [2,-1]\n y = ScatterND(x, i, w) {reduction=\"add\"}", 0,
         0},
        {"3,4", "2", "const i: i64[2,2] = [2,1,0,3]\n y = ScatterND(x, i, w)", 0, 0},
        {"3,4", "2", "const i: i64[2,2] = [2,1,2,1]\n y = ScatterND(x, i, w) {reduction=\"min\"}",
         -2, 2},
        {"2,4,3", "2,2,3", "const i: i64[2] = [3,0]\n"
                           " y = TensorScatter(x, w, i) {mode=\"circular\"}", 0, 0},
        {"2,4,3", "2,2,3", "y = TensorScatter(x, w)", 0, 0},
        {"3,4", NULL, "const m: bool[3] = [0,1,1]\n y = Compress(x, m) {axis=1}", 0, 0},
        {"3,2", NULL, "const m: bool[5] = [1,0,0,1,1]\n y = Compress(x, m)", 0, 0},
        {"4,2,3", NULL, "const n: i64[2] = [3,1]\n y = ReverseSequence(x, n)", 0, 0},
        {"2", NULL, "const i: i64[2,2] = [0,-1,5,2]\n const d: i64[] = 3\n"
                    " y = OneHot(i, d, x) {axis=1}", 0, 0},
    };
    RUN(rows);
}

static void conv(void **state)
{
    (void)state;
    static const Row rows[] = {
        {"1,2,5,5", "3,2,3,3", "input b: f64[3]\n y = Conv(x, w, b)", 0, 0},
        {"2,2,5,4", "2,1,3,3",
         "y = Conv(x, w) {group=2, pads=[1,0,2,1], strides=[2,1], dilations=[1,1]}", 0, 0},
        {"1,1,7,7", "1,1,2,3", "y = Conv(x, w) {dilations=[2,2], auto_pad=\"SAME_UPPER\"}", 0, 0},
        {"1,2,6", "2,2,3", "y = Conv(x, w) {strides=[2]}", 0, 0},
        {"2,3,8,8", "4,3,4,4", "y = Conv(x, w) {strides=[4,4]}", 0, 0},
    };
    RUN(rows);
}

/* ---- ties and kinks: the result is stated ---- */

static void stated(const char *call, int n, const double *x, const double *want)
{
    char text[512];
    snprintf(text, sizeof text,
             "graph \"tie\" {\n input x: f64[%d]\n const b: f64[%d] = splat(1)\n"
             "const lo: f64[] = -1\n const hi: f64[] = 1\n y = %s\n output y = y\n}\n",
             n, n, call);
    Case *c = test_malloc(sizeof *c);
    open_case(c, text, 0, 1);
    const Value *v = mpri_graph_find_value(c->t.g, "x");
    const Value *dy = mpri_graph_find_value(c->t.g, "cotangent:y");
    memcpy(c->v.at[v->id].data, x, (size_t)n * sizeof *x);
    for (int64_t k = 0; k < c->v.at[dy->id].n; k++) ((double *)c->v.at[dy->id].data)[k] = 1;
    test_values_run(&c->v, true);
    Tensor dx = gradient_of(c, v);
    for (int k = 0; k < n; k++)
        if (((const double *)dx.data)[k] != want[k])
            fail_msg("%s: dx[%d] = %g, expected %g", call, k, ((const double *)dx.data)[k],
                     want[k]);
    test_graph_close(&c->t);
    test_free(c);
}

static void ties_and_kinks(void **state)
{
    (void)state;
    const double x[3] = {-1, 0, 1};
    stated("Relu(x)", 3, x, (const double[]){0, 0, 1});
    stated("Abs(x)", 3, x, (const double[]){-1, 0, 1});
    stated("Max(x, b)", 3, x, (const double[]){0, 0, 0.5});
    stated("Min(x, b)", 3, x, (const double[]){1, 1, 0.5});
    stated("Max(x, x)", 3, x, (const double[]){1, 1, 1});
    stated("Clip(x, lo, hi)", 3, x, (const double[]){1, 1, 1});
    stated("ReduceMax(x)", 3, (const double[]){2, 1, 2}, (const double[]){0.5, 0, 0.5});
    stated("ReduceMin(x)", 3, (const double[]){1, 1, 1},
           (const double[]){1.0 / 3, 1.0 / 3, 1.0 / 3});
    stated("ReduceProd(x)", 3, (const double[]){0, 2, 3}, (const double[]){6, 0, 0});
    stated("ReduceProd(x)", 3, (const double[]){0, 2, 0}, (const double[]){0, 0, 0});
}

/* Every operator that claims a gradient appears above. */
static void complete(void **state)
{
    (void)state;
    const OpTable *ops = mpri_op_table();
    for (int i = 0; i < ops->count; i++)
        if (ops->defs[i]->grad_state == GRAD_FUNCTION && !operator_seen[i])
            fail_msg("no gradient case for %s", ops->defs[i]->name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary), cmocka_unit_test(binary), cmocka_unit_test(slopes), cmocka_unit_test(matmul),
        cmocka_unit_test(reduce), cmocka_unit_test(softmax_norm_loss), cmocka_unit_test(layout),
        cmocka_unit_test(indexing), cmocka_unit_test(conv), cmocka_unit_test(ties_and_kinks),
        cmocka_unit_test(complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
