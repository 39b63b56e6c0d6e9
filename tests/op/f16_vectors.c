/* Recorded 16-bit values: conversions, and small computations through the real kernels: the
 * reference, and the CPU's of every instruction set of this machine after all passes of the bind
 * stage. A row becomes a graph in the text form. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/isa.h"
#include "passes/autocast.h"
#include "runtime/ir/text_form.h"
#include "tests/support/case_run.h"
#include "tests/support/graphs.h"
#include "tests/support/kernels.h"
#include "tests/support/vectors.h"

/* ---- reading rows ---- */

static const char *word(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));
    const char *name = json_string_value(json_object_get(row, "case"));
    if (!s) fail_msg("%s: no '%s'", name ? name : "row", key);
    return s;
}

static double number(const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        return !strcmp(s, "inf") ? INFINITY : !strcmp(s, "-inf") ? -INFINITY : NAN;
    }
    if (!json_is_number(v)) fail_msg("%s: no number '%s'", word(row, "case"), key);
    return json_number_value(v);
}

static DType dtype_of(const json_t *row)
{
    DType t = mpri_dtype_parse(word(row, "dtype"));
    if (!mpri_dtype_is_low(t)) fail_msg("%s: type '%s'", word(row, "case"), word(row, "dtype"));
    return t;
}

static uint64_t bits_of(const char *hex, DType t)
{
    if (!strcmp(hex, "nan"))
        return t == MPR_FLOAT32 ? 0x7fc00000 : t == MPR_FLOAT16 ? 0x7e00 : 0x7fc0;
    if (strlen(hex) != 2 * mpri_dtype_size(t)) fail_msg("'%s' is no %s", hex, mpri_dtype_name(t));
    return strtoull(hex, NULL, 16);
}

static double value_of(const char *hex, DType t)
{
    uint64_t bits = bits_of(hex, t);
    return mpri_load_f64(t, &bits, 0);
}

/* Element i of a list of patterns; {"fill", "count"} and one pattern stand for many. */
static const char *element(const json_t *list, int64_t i)
{
    const json_t *fill = json_object_get(list, "fill");
    const char *s = json_string_value(fill                   ? fill
                                      : json_is_string(list) ? list
                                                             : json_array_get(list, (size_t)i));
    if (!s) fail_msg("too few values in a row");
    return s;
}

static int64_t length(const json_t *list)
{
    return json_is_object(list) ? (int64_t)json_integer_value(json_object_get(list, "count"))
                                : (int64_t)json_array_size(list);
}

/* Distance in units in the last place: patterns as ordered integers. */
static int64_t ordered(uint64_t bits, DType t)
{
    uint64_t sign = t == MPR_FLOAT32 ? 1ull << 31 : 1ull << 15;
    return bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
}

static bool near(uint64_t found, const char *want, DType t, double ulp)
{
    bool nan = isnan(mpri_load_f64(t, &found, 0));
    if (nan || !strcmp(want, "nan")) return nan && !strcmp(want, "nan");
    if (ulp == 0) return found == bits_of(want, t);
    return fabs((double)(ordered(found, t) - ordered(bits_of(want, t), t))) <= ulp;
}

/* ---- a graph on every device ---- */

typedef struct Want { /* what an output must hold */
    const char *output;
    const json_t *bits; /* patterns, or one for all elements */
    double ulp, abs, rel; /* ulp for 16 bits; abs or rel for float32 */
} Want;

typedef struct Feed {
    const char *input;
    const json_t *bits;
} Feed;

typedef struct Job {
    const char *name;
    Text text;
    bool differentiate;
    Feed feed[8];
    int n_feed;
    Want want[4];
    int n_want;
} Job;

static void job_open(Job *j, const json_t *row)
{
    *j = (Job){.name = word(row, "case")};
    mpri_text_init(&j->text, mpri_alloc_default());
    mpri_text_put(&j->text, "graph \"g\" {\n");
}

static void job_feed(Job *j, const char *input, const json_t *bits)
{
    assert_true(bits && j->n_feed < 8);
    j->feed[j->n_feed++] = (Feed){input, bits};
}

static void job_want(Job *j, Want w)
{
    assert_true(w.bits && j->n_want < 4);
    j->want[j->n_want++] = w;
}

static void fill_inputs(const Job *j, CaseRun *x)
{
    for (int i = 0; i < x->g->n_inputs; i++) {
        const Value *v = x->g->inputs[i].value;
        const Tensor *t = &x->at[v->id];
        const json_t *bits = NULL;
        for (int k = 0; k < j->n_feed; k++)
            if (!strcmp(j->feed[k].input, v->name)) bits = j->feed[k].bits;
        if (!bits) fail_msg("%s: nothing feeds '%s'", j->name, v->name);
        if (!json_is_string(bits) && length(bits) != t->n)
            fail_msg("%s: '%s' has %lld elements", j->name, v->name, (long long)t->n);
        for (int64_t k = 0; k < t->n; k++) {
            if (!mpri_dtype_is_float(t->dtype)) {
                mpri_store_i64(t->dtype, t->data, k, atoll(element(bits, k)));
                continue;
            }
            uint64_t raw = bits_of(element(bits, k), t->dtype);
            memcpy((char *)t->data + (size_t)k * mpri_dtype_size(t->dtype), &raw,
                   mpri_dtype_size(t->dtype));
        }
    }
}

static void check_output(const Job *j, const char *by, const Want *w, const Tensor *t)
{
    if (!json_is_string(w->bits) && length(w->bits) != t->n)
        fail_msg("%s, %s: '%s' has %lld elements", j->name, by, w->output, (long long)t->n);
    for (int64_t i = 0; i < t->n; i++) {
        const char *want = element(w->bits, i);
        uint64_t raw = 0;
        memcpy(&raw, (char *)t->data + (size_t)i * mpri_dtype_size(t->dtype),
               mpri_dtype_size(t->dtype));
        double a = mpri_load_f64(t->dtype, &raw, 0), b = value_of(want, t->dtype);
        bool good = near(raw, want, t->dtype, w->ulp);
        if (w->abs > 0) good = good || fabs(a - b) <= w->abs;
        if (w->rel > 0) good = good || fabs(a - b) <= w->rel * fabs(b);
        if (!good)
            fail_msg("%s, %s: element %lld of '%s' is %.9g (%llx), expected %.9g (%s)", j->name, by,
                     (long long)i, w->output, a, (unsigned long long)raw, b, want);
    }
}

static int output_of(const Graph *g, const char *name)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (!strcmp(g->outputs[i].name, name)) return i;
    fail_msg("the graph has no output '%s'", name);
    return -1;
}

static void open_graph(const Job *j, CaseRun *x, bool passes)
{
    mpr_status status = test_case_open(x, j->text.text);
    if (status == MPR_OK) status = mpri_infer_graph(x->g, &x->err);
    if (status == MPR_OK && j->differentiate) status = test_case_differentiate(x, passes);
    if (status == MPR_OK && !j->differentiate && passes) {
        PassCtx ctx = {
            .scratch = &x->scratch, .alloc = mpri_alloc_default(), .o = &x->o, .ref = &x->ref};
        ctx.binding = mpri_binding_create(&x->arena, x->g->sym);
        status = mpri_passes_run(&ctx, STAGE_BIND, x->g, &x->err);
    }
    if (status != MPR_OK)
        fail_msg("%s: %s | %s\n%s", j->name, x->err.message, x->err.where, j->text.text);
}

static void run_on_cpu(const Job *j, const CaseRun *from, int isa)
{
    CaseRun x;
    Device *device;
    Tensor out[CASE_RESULTS];
    int index[4];
    assert_int_equal(setenv("MPR_CPU_ISA", mpri_isa_name(isa), 1), 0);
    open_graph(j, &x, true);
    assert_ok(mpri_device_cpu(mpri_alloc_default(), 1, &device, &x.err), &x.err);
    for (int i = 0; i < j->n_want; i++) index[i] = output_of(x.g, j->want[i].output);
    assert_true(x.g->n_outputs <= CASE_RESULTS);
    assert_ok(test_case_plan(&x, device, from, out), &x.err);
    for (int i = 0; i < j->n_want; i++)
        check_output(j, mpri_isa_name(isa), &j->want[i], &out[index[i]]);
    mpri_device_destroy(device);
    test_case_close(&x);
}

static void job_run(Job *j)
{
    CaseRun x;
    mpri_text_put(&j->text, "}\n");
    open_graph(j, &x, false);
    assert_ok(test_case_memory(&x), &x.err);
    fill_inputs(j, &x);
    assert_ok(test_case_evaluate(&x, true), &x.err);
    for (int i = 0; i < j->n_want; i++) {
        const Value *v = x.g->outputs[output_of(x.g, j->want[i].output)].value;
        check_output(j, "ref", &j->want[i], &x.at[v->id]);
    }
    const char *was = getenv("MPR_CPU_ISA");
    char kept[32];
    snprintf(kept, sizeof kept, "%s", was ? was : "");
    for (int isa = MPRI_ISA_GENERIC; isa <= mpri_cpu_isa(); isa++) run_on_cpu(j, &x, isa);
    assert_int_equal(was ? setenv("MPR_CPU_ISA", kept, 1) : unsetenv("MPR_CPU_ISA"), 0);
    test_case_close(&x);
    mpri_text_free(&j->text);
}

/* ---- kinds of arithmetic ---- */

static const char *low_name(const json_t *row) { return mpri_dtype_name(dtype_of(row)); }

static void do_sum(const json_t *row)
{
    Job j;
    const char *t = low_name(row);
    long long n = (long long)number(row, "n");
    job_open(&j, row);
    mpri_text_add(&j.text,
                  "input x: %s[%lld]\nw = Cast(x) {to=f32}\n"
                  "s = ReduceSum(w) {keepdims=0}\nsl = ReduceSum(x) {keepdims=0}\n"
                  "m = ReduceMean(w) {keepdims=0}\nml = ReduceMean(x) {keepdims=0}\n"
                  "output s = s\noutput sl = sl\noutput m = m\noutput ml = ml\n",
                  t, n);
    job_feed(&j, "x", json_object_get(row, "x"));
    double rel = number(row, "rel");
    job_want(&j, (Want){"s", json_object_get(row, "sum_f32"), .rel = rel});
    job_want(&j, (Want){"sl", json_object_get(row, "sum_stored"), .ulp = 0});
    job_want(&j, (Want){"m", json_object_get(row, "mean_f32"), .rel = rel});
    job_want(&j, (Want){"ml", json_object_get(row, "mean_stored"), .ulp = 0});
    job_run(&j);
}

/* The mask as exporters write it: hidden scores become -inf before the softmax. */
static void do_softmax(const json_t *row)
{
    Job j;
    const json_t *mask = json_object_get(row, "mask");
    long long n = (long long)length(json_object_get(row, "x"));
    job_open(&j, row);
    mpri_text_add(&j.text, "input x: %s[%lld]\n", low_name(row), n);
    if (mask) {
        mpri_text_add(&j.text, "const seen: bool[%lld] = [", n);
        for (long long i = 0; i < n; i++)
            mpri_text_add(&j.text, "%s%d", i ? "," : "",
                          json_integer_value(json_array_get(mask, (size_t)i)) != 0);
        mpri_text_add(&j.text,
                      "]\nconst hidden: %s[] = [-inf]\nz = Where(seen, x, hidden)\n"
                      "w = Cast(z) {to=f32}\np = Softmax(w)\npl = Softmax(z)\n",
                      low_name(row));
    } else {
        mpri_text_put(&j.text, "w = Cast(x) {to=f32}\np = Softmax(w)\npl = Softmax(x)\n");
    }
    mpri_text_put(&j.text, "output p = p\noutput pl = pl\n");
    job_feed(&j, "x", json_object_get(row, "x"));
    job_want(&j, (Want){"p", json_object_get(row, "p_f32"), .abs = number(row, "abs")});
    job_want(&j, (Want){"pl", json_object_get(row, "p_stored"), .ulp = number(row, "ulp")});
    job_run(&j);
}

static void do_layernorm(const json_t *row)
{
    Job j;
    char eps[32];
    const json_t *x = json_object_get(row, "x");
    long long n = (long long)length(x);
    job_open(&j, row);
    mpri_print_f64(eps, number(row, "eps"));
    mpri_text_add(&j.text,
                  "input x: %s[1,%lld]\ninput g: f32[%lld]\nw = Cast(x) {to=f32}\n"
                  "y = LayerNormalization(w, g) {epsilon=%s}\n"
                  "yl = LayerNormalization(x, g) {epsilon=%s}\noutput y = y\noutput yl = yl\n",
                  low_name(row), n, n, eps, eps);
    job_feed(&j, "x", x);
    job_feed(&j, "g", json_object_get(row, "gamma"));
    double abs = number(row, "abs");
    job_want(&j, (Want){"y", json_object_get(row, "y_f32"), .abs = abs});
    job_want(&j, (Want){"yl", json_object_get(row, "y_stored"), .ulp = number(row, "ulp")});
    job_run(&j);
}

/* Look-ups of one row of an f32 table, each with the same 16-bit gradient. */
static void do_embedding_grad(const json_t *row)
{
    Job j;
    long long rows = (long long)number(row, "rows"), n = (long long)number(row, "repeats"),
              at = (long long)number(row, "index");
    char index[24];
    json_t *want = json_array(), *ids;
    job_open(&j, row);
    j.differentiate = true;
    mpri_text_add(&j.text,
                  "input table: f32[%lld,1]\ninput ids: i64[%lld]\ne = Gather(table, ids)\n"
                  "y = Cast(e) {to=%s}\noutput y = y\n",
                  rows, n, low_name(row));
    snprintf(index, sizeof index, "%lld", at);
    ids = json_string(index);
    json_t *zero = json_string("00000000");
    job_feed(&j, "table", zero);
    job_feed(&j, "ids", ids);
    job_feed(&j, "cotangent:y", json_object_get(row, "dy"));
    for (long long i = 0; i < rows; i++)
        if (i == at) json_array_append(want, json_object_get(row, "dw_row_f32"));
        else json_array_append_new(want, json_string("00000000"));
    job_want(&j, (Want){"grad:table", want, .rel = number(row, "rel")});
    job_run(&j);
    json_decref(zero);
    json_decref(ids);
    json_decref(want);
}

static void do_gemm(const json_t *row)
{
    Job j;
    const json_t *bias = json_object_get(row, "bias");
    const char *t = low_name(row);
    long long m = (long long)number(row, "m"), k = (long long)number(row, "k"),
              n = (long long)number(row, "n");
    if (!json_is_true(json_object_get(row, "exact"))) fail_msg("%s: not exact", word(row, "case"));
    job_open(&j, row);
    mpri_text_add(&j.text, "input a: %s[%lld,%lld]\ninput b: %s[%lld,%lld]\n", t, m, k, t, k, n);
    job_feed(&j, "a", json_object_get(row, "a"));
    job_feed(&j, "b", json_object_get(row, "b"));
    if (bias) {
        mpri_text_add(&j.text, "input c: %s[%lld]\n", t, (long long)length(bias));
        job_feed(&j, "c", bias);
    }
    mpri_text_add(&j.text, "y = %s\nz = %s\noutput y = y\noutput z = z\n",
                  bias ? "Gemm(a, b, c)" : "MatMul(a, b)",
                  bias ? "Linear(a, b, c)" : "Gemm(a, b)");
    job_want(&j, (Want){"y", json_object_get(row, "y_stored"), .ulp = 0});
    job_want(&j, (Want){"z", json_object_get(row, "y_stored"), .ulp = 0});
    job_run(&j);
}

/* Attributes travel as the graph's text has them: {"axis": 1, "mode": "reflect"}. */
static void put_attrs(Text *t, const json_t *attrs)
{
    const char *key, *sep = " {";
    json_t *v;
    json_object_foreach((json_t *)attrs, key, v)
    {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        mpri_text_add(t, "%s%s=%s", sep, key, text);
        sep = ", ";
        free(text);
    }
    if (json_object_size(attrs)) mpri_text_put(t, "}");
}

static void do_elementwise(const json_t *row)
{
    static const char *const names[] = {"x", "y", "z", "w"};
    Job j;
    int n_in = 0;
    job_open(&j, row);
    for (int i = 0; i < 4; i++) {
        const json_t *bits = json_object_get(row, names[i]);
        if (!bits) break;
        mpri_text_add(&j.text, "input %s: %s[%lld]\n", names[i], low_name(row),
                      (long long)length(bits));
        job_feed(&j, names[i], bits);
        n_in++;
    }
    mpri_text_add(&j.text, "out = %s(", word(row, "op"));
    for (int i = 0; i < n_in; i++) mpri_text_add(&j.text, "%s%s", i ? ", " : "", names[i]);
    mpri_text_put(&j.text, ")");
    put_attrs(&j.text, json_object_get(row, "attrs"));
    mpri_text_put(&j.text, "\noutput out = out\n");
    job_want(&j, (Want){"out", json_object_get(row, "out_stored"), .ulp = number(row, "ulp")});
    job_run(&j);
}

/* One step of the optimizer from the given moments, by every row of the kernel. */
static void do_adam(const json_t *row)
{
    Arena a;
    AdamParams params = {.decoupled = 1};
    const KernelRow *rows[16];
    double b1 = json_object_get(row, "beta1") ? number(row, "beta1") : 0.9,
           b2 = json_object_get(row, "beta2") ? number(row, "beta2") : 0.999,
           step = json_object_get(row, "step") ? number(row, "step") : 1;
    const double hyper[8] = {number(row, "lr"), 0, b1, b2, number(row, "eps")};
    int n = test_kernel_rows(OP_AdamStep, rows, 16);
    assert_true(n > 0);
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    for (int i = 0; i < n; i++) {
        double state[8] = {0, 0, 0, step - 1}, h[8];
        float p = json_object_get(row, "p") ? (float)value_of(word(row, "p"), MPR_FLOAT32) : 0;
        float g = (float)value_of(word(row, "g"), MPR_FLOAT32),
              m = (float)value_of(word(row, "m"), MPR_FLOAT32),
              v = (float)value_of(word(row, "v"), MPR_FLOAT32), before = p;
        memcpy(h, hyper, sizeof h);
        int64_t eight[1] = {8}, one[1] = {1};
        Tensor in[6];
        void *data[6] = {state, h, &p, &g, &m, &v};
        for (int k = 0; k < 6; k++) {
            in[k] = test_tensor_new(&a, k < 2 ? MPR_FLOAT64 : MPR_FLOAT32, 1, k < 2 ? eight : one);
            memcpy(in[k].data, data[k], k < 2 ? sizeof state : sizeof p);
        }
        assert_int_equal(test_kernel_run(&a, rows[i], &params, 6, in, 0, NULL, NULL, NULL), MPR_OK);
        double update = (double)before - (double)*(float *)in[2].data,
               want = value_of(word(row, "update"), MPR_FLOAT32);
        double rel = json_object_get(row, "rel") ? number(row, "rel") : 1e-6;
        if (!(fabs(update - want) <= rel * fabs(want)))
            fail_msg("%s, %s: update %.9g, expected %.9g", word(row, "case"), rows[i]->name, update,
                     want);
    }
    mpri_arena_destroy(&a);
}

/* A gradient in double, scaled, then stored in 16 bits: as a backward pass does first. */
static void do_scaled_grad(const json_t *row)
{
    static const char *const keys[] = {"stored", "stored_without_scale"};
    for (int i = 0; i < 2; i++) {
        Job j;
        char bits[2][16];
        float g = (float)number(row, "true_gradient"),
              s = i ? 1 : (float)number(row, "scale");
        if (i && !json_object_get(row, keys[i])) continue;
        uint32_t raw[2];
        memcpy(&raw[0], &g, 4);
        memcpy(&raw[1], &s, 4);
        for (int k = 0; k < 2; k++) snprintf(bits[k], sizeof bits[k], "%08x", raw[k]);
        json_t *x = json_string(bits[0]), *scale = json_string(bits[1]);
        job_open(&j, row);
        mpri_text_add(&j.text,
                      "input g: f32[5]\ninput s: f32[]\nm = Mul(g, s)\ny = Cast(m) {to=%s}\n"
                      "output y = y\n",
                      low_name(row));
        job_feed(&j, "g", x);
        job_feed(&j, "s", scale);
        job_want(&j, (Want){"y", json_object_get(row, keys[i]), .ulp = 0});
        job_run(&j);
        json_decref(x);
        json_decref(scale);
    }
}

/* A weight that is read in 16 bits by many nodes: its gradient is their sum in float32. */
static void do_weight_grad_sum(const json_t *row)
{
    Job j;
    int uses = (int)number(row, "uses");
    const char *t = low_name(row);
    job_open(&j, row);
    j.differentiate = true;
    mpri_text_add(&j.text, "input w: f32[1]\ninput x: %s[1]\ninput one: f32[1]\n"
                           "c = Cast(w) {to=%s}\n", t, t);
    for (int i = 0; i < uses; i++)
        mpri_text_add(&j.text, "m%d = Mul(c, x)\nf%d = Cast(m%d) {to=f32}\ns%d = Add(%s%d, f%d)\n",
                      i, i, i, i, i ? "s" : "f", i ? i - 1 : 0, i);
    mpri_text_add(&j.text, "y = Sub(s%d, f0)\noutput y = y\n", uses - 1);
    json_t *one = json_string("3f800000");
    job_feed(&j, "w", one);
    job_feed(&j, "one", one);
    job_feed(&j, "x", json_object_get(row, "each"));
    job_feed(&j, "cotangent:y", one);
    job_want(&j, (Want){"grad:w", json_object_get(row, "sum_f32"), .ulp = 0});
    job_run(&j);
    json_decref(one);
}

/* A constant beside a 16-bit tensor, through the autocast pass: what 16 bits cannot hold must not
 * be cast in silence: the node computes in float32, or the constant is limited, with a reason. */
static void check_constant(const json_t *row, const char *node)
{
    TestGraph t;
    char value[32], text[600];
    Profile *p;
    bool safe = json_is_true(json_object_get(row, "safe"));
    mpri_print_f64(value, number(row, "value"));
    snprintf(text, sizeof text,
             "graph \"g\" {\ninput x: f32[4,4]\ninput seen: bool[4,4]\nparam w: f32[4,4] trained\n"
             "const c: f32[] = [%s]\nh = MatMul(x, w)\ny = %s\noutput y = y\n}\n", value, node);
    test_graph_open(&t, text);
    assert_ok(mpri_profile_load("torch-cuda", NULL, &t.arena, &p, &t.err), &t.err);
    t.o.autocast = MPR_FLOAT16;
    t.o.profile = p;
    (void)test_graph_pass(&t, mpri_pass_autocast);
    Node *n = mpri_graph_find_value(t.g, "y")->def;
    while (n && n->op->id == OP_Cast && n->in[0]->def) n = n->in[0]->def;
    const Value *h = NULL, *c = NULL;
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = n->in[k];
        const Node *d = v->def;
        while (d && d->op->id == OP_Cast && d->in[0]) v = d->in[0], d = v->def;
        if (d && d->op->id == OP_MatMul) h = n->in[k];
        else if (v->kind == VAL_CONST) c = n->in[k];
    }
    assert_true(h && c);
    bool low = c->dtype == MPR_FLOAT16 || h->dtype == MPR_FLOAT16;
    if (!safe && low && n->why == NULL)
        fail_msg("%s: cast to float16 in silence in %s", word(row, "case"), node);
    if (!safe && low) { /* limited: the constant itself is representable now */
        const Value *v = c;
        for (const Node *d = v->def; d && d->op->id == OP_Cast; d = v->def) v = d->in[0];
        double now = mpri_load_f64(v->dtype, v->data, 0);
        if (!(fabs(now) <= 65504) || now == 0)
            fail_msg("%s: float16 in %s holds %g", word(row, "case"), node, now);
    }
    test_graph_close(&t);
}

static void do_constant(const json_t *row)
{
    Job j;
    char bits[16];
    float v = (float)number(row, "value");
    uint32_t raw;
    memcpy(&raw, &v, 4);
    snprintf(bits, sizeof bits, "%08x", raw);
    json_t *x = json_string(bits);
    job_open(&j, row);
    mpri_text_put(&j.text, "input x: f32[1]\ny = Cast(x) {to=f16}\noutput y = y\n");
    job_feed(&j, "x", x);
    job_want(&j, (Want){"y", json_object_get(row, "f16"), .ulp = 0});
    job_run(&j);
    json_decref(x);
    check_constant(row, "Add(h, c)");
    check_constant(row, "Mul(h, c)");
    check_constant(row, "Where(seen, h, c)");
}

static const struct {
    const char *kind;
    void (*run)(const json_t *row);
} kinds[] = {
    {"sum", do_sum},
    {"softmax", do_softmax},
    {"layernorm", do_layernorm},
    {"embedding_grad", do_embedding_grad},
    {"gemm", do_gemm},
    {"elementwise", do_elementwise},
    {"adam", do_adam},
    {"scaled_grad", do_scaled_grad},
    {"weight_grad_sum", do_weight_grad_sum},
    {"constant", do_constant},
};

static void run_arithmetic(void *user, const json_t *row)
{
    (void)user;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].kind, word(row, "kind"))) {
            kinds[i].run(row);
            return;
        }
    fail_msg("%s: unknown kind '%s'", word(row, "case"), word(row, "kind"));
}

static void arithmetic(void **state)
{
    (void)state;
    int n = test_vectors_each("arithmetic", run_arithmetic, NULL);
    assert_true(n > 0 || !test_vectors_own());
}

/* ---- conversions ---- */

typedef struct Column { /* one conversion of all rows: patterns in and out */
    DType from, to;
    const char *in_key, *out_key;
    json_t *in, *out;
} Column;

static void add_row(void *user, const json_t *row)
{
    Column *c = user;
    const json_t *in = json_object_get(row, c->in_key), *out = json_object_get(row, c->out_key);
    if (!json_is_string(in) || !json_is_string(out)) fail_msg("a row without %s", c->out_key);
    json_array_append(c->in, (json_t *)in);
    json_array_append(c->out, (json_t *)out);
    uint64_t raw = bits_of(json_string_value(in), c->from), got = 0;
    mpri_store_f64(c->to, &got, 0, mpri_load_f64(c->from, &raw, 0));
    if (!near(got, json_string_value(out), c->to, 0))
        fail_msg("%s -> %s: %s gives %llx", json_string_value(in), c->out_key,
                 json_string_value(out), (unsigned long long)got);
}

/* One element at a time, then all in one Cast, whose vectors end in a tail. */
static void check_column(const char *list, Column c)
{
    Job j;
    c.in = json_array();
    c.out = json_array();
    int n = test_vectors_each(list, add_row, &c);
    assert_true(n > 0 || !test_vectors_own());
    json_t *name = json_pack("{s:s}", "case", c.out_key);
    if (n) {
        job_open(&j, name);
        mpri_text_add(&j.text, "input x: %s[%d]\ny = Cast(x) {to=%s}\noutput y = y\n",
                      mpri_dtype_name(c.from), n, mpri_dtype_name(c.to));
        job_feed(&j, "x", c.in);
        job_want(&j, (Want){"y", c.out, .ulp = 0});
        job_run(&j);
    }
    json_decref(name);
    json_decref(c.in);
    json_decref(c.out);
}

static void conversions(void **state)
{
    (void)state;
    check_column("narrow", (Column){MPR_FLOAT32, MPR_FLOAT16, "f32", "f16", NULL, NULL});
    check_column("narrow", (Column){MPR_FLOAT32, MPR_BFLOAT16, "f32", "bf16", NULL, NULL});
    check_column("widen", (Column){MPR_FLOAT16, MPR_FLOAT32, "bits", "f16_as_f32", NULL, NULL});
    check_column("widen", (Column){MPR_BFLOAT16, MPR_FLOAT32, "bits", "bf16_as_f32", NULL, NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(conversions), cmocka_unit_test(arithmetic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
