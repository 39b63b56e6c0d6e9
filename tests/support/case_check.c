/* What each kind of row asks for; see case_check.h.
 *
 * Budget of the narrow types: a result that depends on n nodes may be off by n + 1 units of the
 * largest magnitude that any of them gives (a unit is 2^-10 of it in f16, 2^-7 in bf16): every node
 * rounds once, by half a unit of its own result, and the other half is for what later nodes make of
 * it. Kernels in f32 are allowed eight units a node for their polynomials and sums. */
#include "tests/support/case_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/case_run.h"
#include "tests/support/kernels.h"

static void wrong(const CaseRow *r, const char *fmt, ...)
    MPRI_PRINTF(2, 3) __attribute__((noreturn));
static void wrong(const CaseRow *r, const char *fmt, ...)
{
    char path[300];
    va_list args;
    fprintf(stderr, "tests/op/cases/%s:%d: ", r->file, r->line);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n    %s\n", r->text);
    snprintf(path, sizeof path, "tests/op/cases/%s", r->file);
    _fail(path, r->line);
    abort();
}

static void need(const CaseRow *r, mpr_status status, const Err *err, const char *when)
{
    if (status != MPR_OK)
        wrong(r, "%s: %s: %s | %s | %s", when, mpr_status_text(status), err->message, err->where,
              err->advice);
}

static mpr_status open_row(const CaseRow *r, DType real, int fed, const CaseShape *shapes,
                           CaseRun *x)
{
    Text text;
    test_case_text(r, real, fed, shapes, &text);
    mpr_status status = test_case_open(x, text.text);
    mpri_text_free(&text);
    return status;
}

/* Operators in the graphs whose gradients agree with differences. */
static bool reached[OP_COUNT];

bool test_case_reached(int op) { return reached[op]; }

/* ---- inputs ---- */

static const CaseArg *argument_of(const CaseRow *r, const CaseRun *x, int input)
{
    static const CaseArg none;
    const Value *v = x->g->inputs[input].value;
    int k = r->body ? input : atoi(v->name + 1);
    return test_case_is_cotangent(v) || k >= r->n_in ? &none : &r->in[k];
}

/* Stated values, random ones, and cotangents (all 1 for ties), rounded to a type. */
static void fill(const CaseRow *r, CaseRun *x, DType to)
{
    for (int i = 0; i < x->g->n_inputs; i++) {
        const Value *v = x->g->inputs[i].value;
        const CaseArg *a = argument_of(r, x, i);
        Tensor *t = &x->at[v->id];
        bool seed = test_case_is_cotangent(v);
        double low = seed ? -1 : a->ranged ? a->low : r->low;
        double high = seed ? 1 : a->ranged ? a->high : r->high;
        if (a->valued && a->t.n != t->n)
            wrong(r, "input '%s' has %lld elements", v->name, (long long)t->n);
        for (int64_t k = 0; k < t->n; k++) {
            uint64_t bits;
            if (a->valued && !mpri_dtype_is_float(t->dtype)) {
                mpri_store_i64(t->dtype, t->data, k, mpri_load_i64(a->dtype, a->t.data, k));
                continue;
            }
            double u = test_case_random(v->name, k, t->n, low, high);
            if (seed && r->kind == ROW_TIE) u = 1;
            if (a->valued) u = mpri_load_f64(a->dtype, a->t.data, k);
            mpri_store_f64(to, &bits, 0, u);
            mpri_store_f64(t->dtype, t->data, k, mpri_load_f64(to, &bits, 0));
        }
    }
}

static void prepare(const CaseRow *r, CaseRun *x, DType to)
{
    test_case_round(x, to);
    need(r, test_case_differentiate(x, false), &x->err, "gradient");
    need(r, test_case_memory(x), &x->err, "memory");
    fill(r, x, to);
}

static void evaluate(const CaseRow *r, CaseRun *x, bool backward)
{
    need(r, test_case_evaluate(x, backward), &x->err, "evaluation");
}

/* ---- value ---- */

static bool close_enough(double found, double expected, double tolerance)
{
    if (isnan(expected)) return isnan(found);
    if (found == expected) return true;
    return fabs(found - expected) <= tolerance * (1 + fabs(expected));
}

static void compare(const CaseRow *r, const char *by, int k, const Tensor *found,
                    const Tensor *expected, double tolerance)
{
    for (int64_t i = 0; i < found->n; i++) {
        double f = mpri_load_f64(found->dtype, found->data, i);
        double e = mpri_load_f64(expected->dtype, expected->data, i);
        bool same = mpri_dtype_is_float(found->dtype)
                        ? close_enough(f, e, tolerance)
                        : mpri_load_i64(found->dtype, found->data, i) ==
                              mpri_load_i64(expected->dtype, expected->data, i);
        if (!same)
            wrong(r, "%s, result %d, element %lld: %.17g, expected %.17g", by, k, (long long)i, f,
                  e);
    }
}

/* Type and shape of the results follow from the rule. */
static void check_inference(const CaseRow *r, CaseRun *x)
{
    bool changed = false;
    PassOptions o = {0};
    PassCtx ctx = {.scratch = &x->scratch, .alloc = mpri_alloc_default(), .o = &o, .ref = &x->ref};
    ctx.binding = mpri_binding_create(&x->arena, x->g->sym);
    /* sizes behind float arithmetic are open until constants have been computed */
    need(r, mpri_pass_bind(&ctx, x->g, &changed, &x->err), &x->err, "shapes");
    for (int k = 0, i = 0; k < r->n_out; k++) {
        char a[128], b[128];
        if (!r->body && r->out[k].absent) continue;
        if (i == x->g->n_outputs) wrong(r, "the graph has only %d outputs", i);
        const Value *v = x->g->outputs[i++].value;
        Shape want = {.rank = r->out[k].rank};
        memcpy(want.d, r->out[k].dims, sizeof r->out[k].dims);
        if (r->out[k].absent || (v->dtype == r->out[k].dtype && mpri_shape_equal(&v->shape, &want)))
            continue;
        mpri_shape_print(x->g->sym, &v->shape, a, sizeof a);
        mpri_shape_print(x->g->sym, &want, b, sizeof b);
        wrong(r, "the shape rule gives result %d as %s%s, expected %s%s", k,
              mpri_dtype_name(v->dtype), a, mpri_dtype_name(r->out[k].dtype), b);
    }
}

static bool run_row(const CaseRow *r, CaseRun *x, const KernelRow *row, const void *params)
{
    Tensor in[CASE_ARGS] = {{0}}, out[CASE_RESULTS] = {{0}};
    for (int k = 0; k < r->n_in; k++) in[k] = r->in[k].t;
    for (int k = 0; k < r->n_out; k++)
        if (!r->out[k].absent)
            out[k] = test_tensor_new(&x->scratch, r->out[k].dtype, r->out[k].rank, r->out[k].dims);
    KernelSig sig = {row->op, params, r->n_in, r->n_out, in, out, ~(uint64_t)0, 0};
    if (row->refuse && row->refuse(&sig)) return false;
    KernelFault fault = {.input = -1};
    mpr_status status = test_kernel_run(&x->scratch, row, params, r->n_in, in, r->n_out, out, NULL,
                                        &fault);
    if (status != MPR_OK) wrong(r, "%s: %s", row->name, mpr_status_text(status));
    double unit = mpri_dtype_is_low(out[0].dtype) ? 0x1p-8 : 1e-6;
    double tolerance = row->isa && r->tolerance < unit ? unit : r->tolerance;
    for (int k = 0; k < r->n_out; k++) {
        if (r->out[k].absent) continue;
        compare(r, row->name, k, &out[k], &r->out[k].t, tolerance);
        if (!test_tensor_guard(&out[k])) wrong(r, "%s writes behind result %d", row->name, k);
    }
    return true;
}

static void check_value(const CaseRow *r)
{
    CaseRun x;
    need(r, open_row(r, MPR_FLOAT64, 0, NULL, &x), &x.err, "inference");
    check_inference(r, &x);
    if (r->body) {
        need(r, test_case_memory(&x), &x.err, "memory");
        fill(r, &x, MPR_FLOAT64);
        evaluate(r, &x, false);
        for (int k = 0; k < r->n_out; k++)
            if (!r->out[k].absent)
                compare(r, "reference kernels", k, &x.at[x.g->outputs[k].value->id], &r->out[k].t,
                        r->tolerance);
    } else {
        const KernelRow *rows[16];
        int n = test_kernel_rows(r->op->id, rows, 16), taken = 0;
        for (int i = 0; i < n; i++) taken += run_row(r, &x, rows[i], x.g->last->params);
        if (!taken) wrong(r, n ? "every kernel refused" : "there is no kernel");
    }
    test_case_close(&x);
}

/* The graph of the row by the device's plan. False: it cannot be planned, its shapes depend on data. */
static bool plan_value(const CaseRow *r, Device *device, CaseRun *from, CaseRun *x, Tensor *found,
                       mpr_status *status)
{
    bool changed = false;
    PassOptions o = {0};
    need(r, open_row(r, MPR_FLOAT64, 0, NULL, from), &from->err, "inference");
    need(r, open_row(r, MPR_FLOAT64, 0, NULL, x), &x->err, "inference");
    PassCtx ctx = {.scratch = &x->scratch, .alloc = mpri_alloc_default(), .o = &o, .ref = &x->ref};
    ctx.binding = mpri_binding_create(&x->arena, x->g->sym);
    need(r, mpri_pass_bind(&ctx, x->g, &changed, &x->err), &x->err, "shapes");
    for (int i = 0; i < x->g->n_values; i++)
        if (!mpri_shape_const(&x->g->values[i]->shape)) return false;
    need(r, test_case_memory(from), &from->err, "memory");
    fill(r, from, MPR_FLOAT64);
    *status = test_case_plan(x, device, from, found);
    return true;
}

static void check_value_planned(const CaseRow *r, Device *device)
{
    CaseRun from, x;
    Tensor found[CASE_RESULTS] = {{0}};
    mpr_status status;
    if (plan_value(r, device, &from, &x, found, &status)) {
        need(r, status, &x.err, device->name);
        for (int k = 0, i = 0; k < r->n_out; k++) {
            if (!r->body && r->out[k].absent) continue;
            double unit = mpri_dtype_is_low(found[i].dtype) ? 0x1p-8 : 1e-6;
            if (!r->out[k].absent)
                compare(r, device->name, k, &found[i], &r->out[k].t,
                        r->tolerance < unit ? unit : r->tolerance);
            i++;
        }
    }
    test_case_close(&x);
    test_case_close(&from);
}

static void check_fault_planned(const CaseRow *r, Device *device)
{
    CaseRun from, x;
    Tensor found[CASE_RESULTS] = {{0}};
    mpr_status status;
    if (plan_value(r, device, &from, &x, found, &status) && status != r->code)
        wrong(r, "%s: %s, expected %s", device->name, mpr_status_text(status),
              mpr_status_text(r->code));
    test_case_close(&x);
    test_case_close(&from);
}

/* ---- fault ---- */

static void check_words(const CaseRow *r, mpr_status status, const Err *err)
{
    if (status != r->code)
        wrong(r, "%s: %s, expected %s", mpr_status_text(status),
              status == MPR_OK ? "nothing is refused" : err->message, mpr_status_text(r->code));
    char *words = strdup(r->words), *at = words;
    for (char *w; (w = strtok_r(at, " \t\n", &at));)
        if (!strstr(err->message, w) && !strstr(err->where, w) && !strstr(err->advice, w))
            wrong(r, "no '%s' in: %s | %s | %s", w, err->message, err->where, err->advice);
    free(words);
}

/* Every kernel that takes the case refuses these data and says where. */
static void check_kernel_faults(const CaseRow *r, CaseRun *x)
{
    const Node *node = x->g->last;
    const KernelRow *rows[16];
    int n = test_kernel_rows(r->op->id, rows, 16);
    for (int i = 0; i < n; i++) {
        Tensor in[CASE_ARGS] = {{0}}, out[CASE_RESULTS] = {{0}};
        for (int k = 0; k < node->n_in && k < CASE_ARGS; k++)
            if (node->in[k]) in[k] = x->at[node->in[k]->id];
        for (int k = 0; k < node->n_out && k < CASE_RESULTS; k++) {
            const Value *v = node->out[k];
            out[k] = test_tensor_new(&x->scratch, v->dtype, v->shape.rank, v->shape.d);
        }
        KernelSig sig = {r->op->id, node->params, node->n_in, node->n_out, in, out, ~(uint64_t)0, 0};
        KernelFault fault = {.input = -1};
        if (rows[i]->refuse && rows[i]->refuse(&sig)) continue;
        mpr_status found = test_kernel_run(&x->scratch, rows[i], node->params, node->n_in, in,
                                           node->n_out, out, NULL, &fault);
        if (found != r->code || fault.input < 0)
            wrong(r, "%s: %s, expected %s with the fault filled", rows[i]->name,
                  mpr_status_text(found), mpr_status_text(r->code));
    }
}

static void check_fault(const CaseRow *r, Device *device)
{
    CaseRun x;
    mpr_status status = open_row(r, MPR_FLOAT64, 0, NULL, &x);
    if (status == MPR_OK) status = test_case_memory(&x);
    if (status == MPR_OK) {
        fill(r, &x, MPR_FLOAT64);
        status = test_case_evaluate(&x, false);
        if (status != MPR_OK && !r->body) check_kernel_faults(r, &x);
        if (status != MPR_OK && !device->shared) check_fault_planned(r, device);
    }
    check_words(r, status, &x.err);
    test_case_close(&x);
}

/* ---- grad ---- */

static Tensor *output(const CaseRow *r, CaseRun *x, const char *name)
{
    for (int i = 0; i < x->g->n_outputs; i++)
        if (strcmp(x->g->outputs[i].name, name) == 0) return &x->at[x->g->outputs[i].value->id];
    wrong(r, "the graph has no output '%s'", name);
}

static double objective(const CaseRow *r, CaseRun *x)
{
    double sum = 0;
    evaluate(r, x, false);
    for (int s = 0; s < x->o.n_seeds; s++) {
        char name[128];
        snprintf(name, sizeof name, "cotangent:%s", x->seeds[s]);
        const Tensor *dy = &x->at[mpri_graph_find_value(x->g, name)->id];
        const Tensor *y = output(r, x, x->seeds[s]);
        for (int64_t k = 0; k < y->n; k++)
            sum += mpri_load_f64(dy->dtype, dy->data, k) * mpri_load_f64(y->dtype, y->data, k);
    }
    mpri_arena_reset(&x->scratch);
    return sum;
}

static double difference(const CaseRow *r, CaseRun *x, double *v)
{
    const double h = 1e-3, at = *v;
    static const double step[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *v = at + step[i] * h;
        sum += weight[i] * objective(r, x);
    }
    *v = at;
    return sum / (12 * h);
}

static Tensor gradient_of(const CaseRow *r, CaseRun *x, const Value *v)
{
    char name[128];
    snprintf(name, sizeof name, "grad:%s", v->name);
    Tensor dx = *output(r, x, name), *in = &x->at[v->id];
    if (dx.dtype != v->dtype || dx.rank != in->rank ||
        memcmp(dx.dims, in->dims, (size_t)dx.rank * sizeof *dx.dims))
        wrong(r, "the gradient of '%s' has another type or shape", v->name);
    return dx;
}

/* False when the shapes do not go together. */
static bool check_differences(const CaseRow *r, const CaseShape *shapes)
{
    CaseRun x;
    mpr_status status = open_row(r, MPR_FLOAT64, 0, shapes, &x);
    if (status == MPR_E_SHAPE && shapes) {
        test_case_close(&x);
        return false;
    }
    need(r, status, &x.err, "inference");
    prepare(r, &x, MPR_FLOAT64);
    int inputs = 0;
    for (int i = 0; i < x.g->n_inputs; i++) {
        const Value *v = x.g->inputs[i].value;
        if (v->dtype != MPR_FLOAT64 || test_case_is_cotangent(v)) continue;
        inputs++;
        for (int64_t k = 0; k < x.at[v->id].n; k++) {
            double want = difference(r, &x, (double *)x.at[v->id].data + k);
            evaluate(r, &x, true);
            double got = ((const double *)gradient_of(r, &x, v).data)[k];
            if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
                wrong(r, "d%s[%d] = %.9g, differences give %.9g", v->name, (int)k, got, want);
            mpri_arena_reset(&x.scratch);
        }
        evaluate(r, &x, true);
        gradient_of(r, &x, v); /* type and shape, also of empty tensors */
        mpri_arena_reset(&x.scratch);
    }
    if (!inputs) wrong(r, "no f64 input without values: nothing is differentiated");
    for (const Node *n = x.g->first; n; n = n->next) reached[n->op->id] = true;
    test_case_close(&x);
    return true;
}

/* ---- the narrow types ---- */

typedef struct Reach { /* what a value depends on */
    const CaseRun *x;
    bool *seen; /* by node id */
    int nodes;
    double largest;
} Reach;

static void reach(Reach *w, const Value *v)
{
    const Node *n = mpri_def(v);
    if (!n || w->seen[n->id]) return;
    w->seen[n->id] = true;
    w->nodes++;
    for (int i = 0; i < n->n_out; i++) {
        const Tensor *t = n->out[i] ? &w->x->at[n->out[i]->id] : NULL;
        for (int64_t k = 0; t && mpri_dtype_is_float(t->dtype) && k < t->n; k++) {
            double u = fabs(mpri_load_f64(t->dtype, t->data, k));
            if (u > w->largest && isfinite(u)) w->largest = u;
        }
    }
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k]) reach(w, n->in[k]);
}

/* Outputs of the same graph in a narrow type against those in double. */
static void compare_narrow(const CaseRow *r, CaseRun *exact, DType type, const Tensor *found)
{
    double unit = type == MPR_FLOAT16 ? 0x1p-10 : type == MPR_BFLOAT16 ? 0x1p-7 : 0x1p-20;
    double least = type == MPR_FLOAT16 ? 0x1p-24 : 0x1p-126;
    for (int i = 0; i < exact->g->n_outputs; i++) {
        const GraphOutput *o = &exact->g->outputs[i];
        const Tensor *e = &exact->at[o->value->id];
        if (found[i].n != e->n)
            wrong(r, "'%s' in %s has another size", o->name, mpri_dtype_name(type));
        Reach w = {.x = exact, .seen = calloc((size_t)exact->g->next_node_id + 1, 1)};
        assert_non_null(w.seen);
        reach(&w, o->value);
        free(w.seen);
        double budget = (r->ulp > 0 ? r->ulp : w.nodes + 1) * (unit * w.largest + least);
        for (int64_t k = 0; k < e->n; k++) {
            double want = mpri_load_f64(e->dtype, e->data, k);
            double got = mpri_load_f64(found[i].dtype, found[i].data, k);
            if (isnan(want) ? isnan(got) : got == want || fabs(got - want) <= budget) continue;
            wrong(r, "'%s'[%lld] in %s is %.9g, in double %.9g: %.3g units of %.3g, allowed %g",
                  o->name, (long long)k, mpri_dtype_name(type), got, want,
                  fabs(got - want) / (unit * w.largest + least), w.largest,
                  budget / (unit * w.largest + least));
        }
    }
}

/* Reference kernels in a 16-bit type, or a plan in f32 (on a GPU in every type), against double on the
 * same data. */
static void check_narrow(const CaseRow *r, Device *device, DType type, int fed,
                         const CaseShape *shapes)
{
    CaseRun exact, narrow;
    Tensor found[2 * CASE_ARGS];
    bool passes = type == MPR_FLOAT32, plan = passes || !device->shared;
    mpr_status status = open_row(r, type, fed, shapes, &narrow);
    if (status == MPR_E_TYPE) { /* not a type of this operator */
        test_case_close(&narrow);
        return;
    }
    need(r, status, &narrow.err, mpri_dtype_name(type));
    need(r, open_row(r, MPR_FLOAT64, fed, shapes, &exact), &exact.err, "inference");
    prepare(r, &exact, type);
    evaluate(r, &exact, true);
    need(r, test_case_differentiate(&narrow, passes), &narrow.err, mpri_dtype_name(type));
    int n = narrow.g->n_outputs;
    if (n != exact.g->n_outputs || n > 2 * CASE_ARGS) wrong(r, "%d outputs", n);
    if (plan) {
        need(r, test_case_plan(&narrow, device, &exact, found), &narrow.err, device->name);
    } else {
        need(r, test_case_memory(&narrow), &narrow.err, "memory");
        fill(r, &narrow, type);
        evaluate(r, &narrow, true);
        for (int i = 0; i < n; i++) found[i] = narrow.at[narrow.g->outputs[i].value->id];
    }
    compare_narrow(r, &exact, type, found);
    test_case_close(&narrow);
    test_case_close(&exact);
}

static bool shapes_meet(const CaseRow *r, const CaseShape *shapes)
{
    CaseRun x;
    mpr_status status = open_row(r, MPR_FLOAT64, 0, shapes, &x);
    test_case_close(&x);
    return status == MPR_OK;
}

static void check_shapes(const CaseRow *r, Device *device, const CaseShape *shapes)
{
    if (device->shared ? !check_differences(r, shapes) : !shapes_meet(r, shapes)) return;
    check_narrow(r, device, MPR_FLOAT16, 0, shapes);
    check_narrow(r, device, MPR_BFLOAT16, 0, shapes);
    check_narrow(r, device, MPR_FLOAT32, 0, shapes);
}

/* Memory that ends anywhere in the making of the backward pass is an error, never a fault and never
 * another graph. (What is only useful, such as known contents, may go without.) */
static void check_memory(const CaseRow *r)
{
    enum { POINTS = 200 };
    size_t grown = 0;
    int nodes = 0;
    for (int i = 0; i <= POINTS; i++) {
        CaseRun x;
        mpr_status status = open_row(r, MPR_FLOAT16, 0, NULL, &x);
        size_t used = x.arena.used;
        if (status == MPR_E_TYPE) { /* not a type of this operator */
            test_case_close(&x);
            return;
        }
        if (i) x.arena.limit = used + grown * (size_t)(i - 1) / POINTS + 1;
        need(r, status, &x.err, "f16");
        status = test_case_differentiate(&x, false);
        if (i == 0) {
            grown = x.arena.used - used;
            nodes = x.g ? x.g->n_nodes : 0;
        } else if (status == MPR_OK ? x.g->n_nodes != nodes : status != MPR_E_NOMEM) {
            wrong(r, "status %d with %zu of %zu bytes", (int)status, x.arena.limit - used, grown);
        }
        test_case_close(&x);
    }
}

static void check_grad(const CaseRow *r, Device *device)
{
    static const CaseShape alone[] = {{0}, {2, {0, 3}}, {3, {1, 1, 4}}};
    static const CaseShape pairs[][2] = {
        {{2, {2, 3}}, {2, {2, 3}}}, {{2, {2, 3}}, {1, {3}}}, {{2, {2, 1}}, {2, {1, 3}}},
        {{1, {3}}, {2, {2, 3}}},    {{0}, {2, {2, 3}}},      {{2, {2, 3}}, {0}},
        {{0}, {0}},                 {{2, {0, 3}}, {1, {3}}}, {{1, {3}}, {2, {0, 3}}},
        {{3, {4, 1, 3}}, {2, {2, 1}}},
    };
    check_shapes(r, device, NULL);
    if (device->shared) check_memory(r);
    if (r->body || !(r->op->flags & OPF_ELEMENTWISE)) return;
    int inputs = 0;
    for (int k = 0; k < r->n_in; k++) 
        inputs += !r->in[k].absent && !r->in[k].same && !r->in[k].valued;
    for (size_t i = 0; inputs == 1 && i < sizeof alone / sizeof *alone; i++)
        check_shapes(r, device, &alone[i]);
    for (size_t i = 0; inputs > 1 && i < sizeof pairs / sizeof *pairs; i++) {
        CaseShape shapes[CASE_ARGS];
        for (int k = 0; k < inputs; k++) shapes[k] = pairs[i][k % 2];
        check_shapes(r, device, shapes);
    }
}

/* ---- tie ---- */

static void check_tie(const CaseRow *r, Device *device)
{
    CaseRun x;
    int fed = r->n_out;
    need(r, open_row(r, MPR_FLOAT64, fed, NULL, &x), &x.err, "inference");
    prepare(r, &x, MPR_FLOAT64);
    evaluate(r, &x, true);
    for (int k = 0; k < r->n_out; k++) {
        if (r->out[k].absent) continue;
        const Value *v = x.g->inputs[k].value;
        if (test_case_is_cotangent(v)) wrong(r, "the graph has no input %d", k);
        Tensor dx = gradient_of(r, &x, v);
        if (dx.n != r->out[k].t.n) wrong(r, "the gradient has %lld elements", (long long)dx.n);
        compare(r, "reference kernels", k, &dx, &r->out[k].t, r->tolerance);
    }
    test_case_close(&x);
    check_narrow(r, device, MPR_FLOAT32, fed, NULL);
}

void test_case_check(const CaseRow *r, Device *device)
{
    if (r->broken) wrong(r, "%s", r->broken);
    switch (r->kind) {
    case ROW_VALUE:
        if (device->shared) check_value(r);
        else check_value_planned(r, device);
        break;
    case ROW_GRAD: check_grad(r, device); break;
    case ROW_TIE: check_tie(r, device); break;
    case ROW_FAULT: check_fault(r, device); break;
    }
}

void test_case_mark(const CaseRow *r, bool seen[OP_COUNT])
{
    CaseRun x;
    if (r->broken) return;
    if (r->body && open_row(r, MPR_FLOAT64, 0, NULL, &x) == MPR_OK)
        for (const Node *n = x.g->first; n; n = n->next) seen[n->op->id] = true;
    if (r->body) test_case_close(&x);
    else seen[r->op->id] = true;
}
