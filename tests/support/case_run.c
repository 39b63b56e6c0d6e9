/* Rows as graphs; see case_run.h. The trap: random values that nearly meet would put a kink or a
 * tie inside a difference quotient, so each tensor gets values that keep their distance. */
#include "tests/support/case_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ref/ref.h"
#include "runtime/base/rng.h"
#include "runtime/exec/plan_private.h"
#include "runtime/ir/text_form.h"

/* ---- text ---- */

static void put_shape(Text *t, DType type, int rank, const int64_t *dims)
{
    mpri_text_add(t, "%s[", mpri_dtype_name(type));
    for (int i = 0; i < rank; i++) mpri_text_add(t, "%s%lld", i ? "," : "", (long long)dims[i]);
    mpri_text_put(t, "]");
}

static void put_values(Text *t, const Tensor *v)
{
    char buf[32];
    mpri_text_put(t, " = [");
    for (int64_t i = 0; i < v->n; i++) {
        if (i) mpri_text_put(t, ",");
        if (mpri_dtype_is_float(v->dtype))
            mpri_text_put(t, mpri_print_f64(buf, mpri_load_f64(v->dtype, v->data, i)));
        else
            mpri_text_add(t, "%lld", (long long)mpri_load_i64(v->dtype, v->data, i));
    }
    mpri_text_put(t, "]");
}

static DType in_type(DType t, DType real) { return t == MPR_FLOAT64 ? real : t; }

static void put_argument(Text *t, const CaseArg *a, int k, DType real, bool fed,
                         const CaseShape *shape)
{
    if (a->absent || a->same) return;
    mpri_text_add(t, " %s a%d: ", a->valued && !fed ? "const" : "input", k);
    if (shape) put_shape(t, in_type(a->dtype, real), shape->rank, shape->dims);
    else put_shape(t, in_type(a->dtype, real), a->rank, a->dims);
    if (a->valued && !fed) put_values(t, &a->t);
    mpri_text_put(t, "\n");
}

/* Outputs of the node: as many as the row names, or as the operator must have. */
static int outputs_of(const CaseRow *r)
{
    if (r->n_out && (r->kind == ROW_VALUE || r->kind == ROW_GRAD)) return r->n_out;
    return r->op->min_out > 1 ? r->op->min_out : 1;
}

static bool is_absent(const CaseRow *r, int k)
{
    return r->n_out && (r->kind == ROW_VALUE || r->kind == ROW_GRAD) && r->out[k].absent;
}

static void put_node(Text *t, const CaseRow *r)
{
    int n = outputs_of(r);
    for (int k = 0; k < n; k++)
        if (is_absent(r, k)) mpri_text_add(t, "%s_", k ? ", " : " ");
        else mpri_text_add(t, "%sy%d", k ? ", " : " ", k);
    mpri_text_add(t, " = %s(", r->type);
    for (int k = 0; k < r->n_in; k++)
        if (r->in[k].absent) mpri_text_add(t, "%s_", k ? ", " : "");
        else mpri_text_add(t, "%sa%d", k ? ", " : "", r->in[k].same ? r->in[k].same - 1 : k);
    mpri_text_add(t, ") %s\n", r->attrs);
    for (int k = 0; k < n; k++)
        if (!is_absent(r, k) && !r->out[k].same) mpri_text_add(t, " output y%d = y%d\n", k, k);
}

/* "f64[" becomes "<real>[" */
static void put_body(Text *t, const char *body, DType real)
{
    for (const char *p = body; *p;) {
        const char *next = strstr(p, "f64[");
        size_t n = next ? (size_t)(next - p) : strlen(p);
        mpri_text_bytes(t, p, n);
        p += n;
        if (!next) break;
        mpri_text_add(t, "%s[", mpri_dtype_name(real));
        p += 4;
    }
}

void test_case_text(const CaseRow *r, DType real, int fed, const CaseShape *shapes, Text *out)
{
    mpri_text_init(out, mpri_alloc_default());
    mpri_text_put(out, "graph \"case\" {\n");
    if (r->body) put_body(out, r->body, real);
    for (int k = 0; k < r->n_in && !r->body; k++) {
        const CaseArg *a = &r->in[k];
        const CaseShape *shape = a->absent || a->same || a->valued || !shapes ? NULL : shapes++;
        put_argument(out, a, k, real, a->valued && k < fed, shape);
    }
    if (!r->body) put_node(out, r);
    mpri_text_put(out, "}\n");
}

/* ---- graphs ---- */

mpr_status test_case_open(CaseRun *x, const char *text)
{
    memset(x, 0, sizeof *x);
    mpri_arena_init(&x->arena, mpri_alloc_default(), 0);
    mpri_arena_init(&x->scratch, mpri_alloc_default(), 0);
    x->ref.tables = mpri_ref_tables(&x->ref.n);
    Intern *names = mpri_intern_create(&x->arena);
    if (!names) return mpri_err_nomem(&x->err, 0);
    return mpri_graph_parse(text, &x->arena, names, mpri_op_table(), &x->g, &x->err);
}

void test_case_close(CaseRun *x)
{
    mpri_arena_destroy(&x->scratch);
    mpri_arena_destroy(&x->arena);
}

void test_case_round(CaseRun *x, DType to)
{
    for (int i = 0; i < x->g->n_values; i++) {
        const Value *v = x->g->values[i];
        if (v->kind != VAL_CONST || v->dtype != MPR_FLOAT64) continue;
        double *data = (double *)v->data; /* the parser made it in the arena */
        for (int64_t k = mpri_shape_elements(&v->shape) - 1; k >= 0; k--) {
            uint64_t bits;
            mpri_store_f64(to, &bits, 0, data[k]);
            data[k] = mpri_load_f64(to, &bits, 0);
        }
    }
}

mpr_status test_case_differentiate(CaseRun *x, bool plan)
{
    Graph *g = x->g;
    bool changed = false;
    x->o = (PassOptions){.grads = GRADS_TO_OUTPUTS, .grads_of_inputs = true, .training = true,
                         .seeds = x->seeds};
    for (int i = 0; i < g->n_outputs; i++)
        if (mpri_dtype_is_float(g->outputs[i].value->dtype) && x->o.n_seeds < CASE_RESULTS)
            x->seeds[x->o.n_seeds++] = g->outputs[i].name;
    PassCtx ctx = {
        .scratch = &x->scratch, .alloc = mpri_alloc_default(), .o = &x->o, .ref = &x->ref};
    ctx.binding = mpri_binding_create(&x->arena, g->sym);
    if (!ctx.binding) return mpri_err_nomem(&x->err, 0);
    if (plan) return mpri_passes_run(&ctx, STAGE_BIND, g, &x->err);
    TRY(mpri_pass_autodiff(&ctx, g, &changed, &x->err));
    mpri_arena_reset(&x->scratch);
    TRY(mpri_infer_graph(g, &x->err));
    return mpri_graph_validate(g, "autodiff", &x->err);
}

bool test_case_is_cotangent(const Value *v) { return strncmp(v->name, "cotangent:", 10) == 0; }

/* ---- values ---- */

mpr_status test_case_memory(CaseRun *x)
{
    x->at = ARENA_ARRAY(&x->arena, Tensor, x->g->n_values);
    if (!x->at) return mpri_err_nomem(&x->err, 0);
    for (int i = 0; i < x->g->n_values; i++) {
        const Value *v = x->g->values[i];
        if (v->kind == VAL_NODE) continue;
        size_t bytes;
        TRY(mpri_tensor_of_value(v, &x->at[i], &bytes, &x->err));
        x->at[i].data = v->kind == VAL_CONST ? (void *)v->data
                                             : mpri_arena_alloc(&x->arena, bytes + 1);
        if (!x->at[i].data) return mpri_err_nomem(&x->err, bytes);
    }
    return MPR_OK;
}

double test_case_random(const char *name, int64_t i, int64_t n, double low, double high)
{
    uint64_t stream = 0;
    int64_t order[256];
    for (const char *c = name; *c; c++) stream = stream * 31 + (unsigned char)*c;
    double u = mpri_rng_uniform(7, stream, (uint64_t)i);
    if (n > 256) return low + (high - low) * u;
    mpri_rng_permutation(7, stream, n, order);
    return low + (high - low) * ((double)order[i] + 0.25 + 0.5 * u) / (double)n;
}

mpr_status test_case_evaluate(CaseRun *x, bool backward)
{
    for (Node *n = x->g->first; n; n = n->next) {
        if (n->segment == SEG_BACKWARD && !backward) break;
        Tensor in[32] = {{0}}, out[16] = {{0}};
        if (n->n_in > 32 || n->n_out > 16)
            return mpri_err_set(&x->err, MPR_E_LIMIT, "a node of a case has too many operands");
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) in[k] = x->at[n->in[k]->id];
        TRY(mpri_eval_node(&x->ref, n, in, out, &x->scratch, &x->err));
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i]) x->at[n->out[i]->id] = out[i];
    }
    return MPR_OK;
}

/* ---- on the device ---- */

static mpr_status feed(CaseRun *x, const Plan *p, const CaseRun *from)
{
    Device *d = p->device;
    for (int i = 0; i < from->g->n_inputs; i++) {
        const Value *v = from->g->inputs[i].value, *to = mpri_plan_input(p, v->name);
        void *at = to ? mpri_plan_value_data(p, to) : NULL;
        const Tensor *t = &from->at[v->id];
        size_t bytes = at ? (size_t)t->n * mpri_dtype_size(to->dtype) : 0;
        void *data = mpri_arena_alloc(&x->scratch, bytes + 1);
        if (!data) return mpri_err_nomem(&x->err, bytes);
        for (int64_t k = 0; bytes && k < t->n; k++)
            if (mpri_dtype_is_float(t->dtype))
                mpri_store_f64(to->dtype, data, k, mpri_load_f64(t->dtype, t->data, k));
            else mpri_store_i64(to->dtype, data, k, mpri_load_i64(t->dtype, t->data, k));
        if (bytes) TRY(d->copy_in(d, at, data, bytes, &x->err));
    }
    return MPR_OK;
}

static mpr_status take(CaseRun *x, const Plan *p, int i, Tensor *out)
{
    const GraphOutput *o = &p->graph->outputs[i];
    size_t bytes;
    TRY(mpri_tensor_of_value(o->value, out, &bytes, &x->err));
    const void *data = mpri_plan_view(p, o->value);
    out->data = mpri_arena_alloc(&x->scratch, bytes + 1);
    if (!out->data) return mpri_err_nomem(&x->err, bytes);
    if (bytes && data) memcpy(out->data, data, bytes);
    return MPR_OK;
}

/* For those who write kernels of a device: which steps have none. */
static void tell_host_steps(const Plan *p)
{
    if (!getenv("MPR_TEST_SHOW_HOST")) return;
    for (int i = 0; i < p->n_steps; i++)
        if (p->steps[i].on_host)
            fprintf(stderr, "on host: %s (%s)\n", p->steps[i].row->name, p->steps[i].skipped);
}

mpr_status test_case_plan(CaseRun *x, Device *device, const CaseRun *from, Tensor *outputs)
{
    Store store;
    Plan *p = NULL;
    int n = x->g->n_outputs;
    TRY(mpri_store_init(&store, device, &x->err));
    Arena graph = x->arena; /* the plan takes it */
    mpri_arena_init(&x->arena, mpri_alloc_default(), 0);
    mpr_status status = mpri_plan_create(device, &store, x->g, graph, NULL, &p, &x->err);
    x->g = NULL;
    if (status == MPR_OK) tell_host_steps(p);
    if (status == MPR_OK) status = mpri_plan_bind_memory(p, NULL, &x->err);
    if (status == MPR_OK) status = feed(x, p, from);
    if (status == MPR_OK) status = mpri_plan_run(p, -1, 7, 3, &x->err);
    if (status == MPR_OK) status = mpri_plan_check(p, &x->err);
    for (int i = 0; status == MPR_OK && i < n; i++) status = take(x, p, i, &outputs[i]);
    mpri_plan_destroy(p);
    mpri_store_destroy(&store);
    return status;
}
