/* What is in a model: inputs and outputs, parameters with the reason why each is trained or not,
 * operators with their support. Without a model: the operators of the program. */
#include "runtime/train/inspect.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/train/json.h"

/* ---- summary ---- */

static void put_shape(Inspect *i, const Graph *g, const Shape *s)
{
    char text[256];
    mpri_shape_print(g->sym, s, text, sizeof(text));
    mpri_text_put(&i->out, text);
}

static void put_value(Inspect *i, const Graph *g, const char *name, const Value *v, bool first)
{
    if (!i->o.json) {
        mpri_text_add(&i->out, "  %-28s %s", mpri_err_name(name), mpri_dtype_long(v->dtype));
        put_shape(i, g, &v->shape);
        mpri_text_put(&i->out, "\n");
        return;
    }
    mpri_text_put(&i->out, first ? "{\"name\": " : ", {\"name\": ");
    mpri_json_string(&i->out, name);
    mpri_text_add(&i->out, ", \"dtype\": \"%s\", \"shape\": ", mpri_dtype_long(v->dtype));
    char text[256];
    mpri_shape_print(g->sym, &v->shape, text, sizeof(text));
    mpri_json_string(&i->out, text);
    mpri_text_put(&i->out, "}");
}

typedef struct OpCount {
    const char *name;
    const OpDef *op;
    int n;
} OpCount;

static int by_count(const void *a, const void *b)
{
    const OpCount *x = a, *y = b;
    return x->n != y->n ? y->n - x->n : strcmp(x->name, y->name);
}

static const char *type_of(const Node *n)
{
    return n->opaque_type ? n->opaque_type : n->op->name;
}

/* Operator types of the graph, most frequent first. */
static mpr_status count_ops(Inspect *i, Arena *arena, OpCount **out, int *n_out)
{
    const Graph *g = i->model->m->graph;
    OpCount *list = ARENA_ARRAY(arena, OpCount, g->n_nodes + 1);
    int n = 0;
    if (!list) return mpri_err_nomem(i->err, 0);
    for (const Node *node = g->first; node; node = node->next) {
        int k = 0;
        while (k < n && strcmp(list[k].name, type_of(node))) k++;
        if (k == n) list[n++] = (OpCount){.name = type_of(node), .op = node->op};
        list[k].n++;
    }
    qsort(list, (size_t)n, sizeof(*list), by_count);
    *out = list;
    *n_out = n;
    return MPR_OK;
}

static void put_totals(Inspect *i, const Graph *g)
{
    int trained = 0;
    int64_t elements = 0, trained_elements = 0;
    for (int k = 0; k < g->n_params; k++) {
        const Param *p = &g->params[k];
        int64_t n = p->value ? mpri_shape_elements(&p->value->shape) : 0;
        if (n > 0) elements += n;
        if (p->trained) trained++, trained_elements += n;
    }
    if (i->o.json)
        mpri_text_add(&i->out,
                      "\"parameters\": {\"tensors\": %d, \"elements\": %lld, \"trained\": %d, "
                      "\"trained_elements\": %lld}",
                      g->n_params, (long long)elements, trained, (long long)trained_elements);
    else
        mpri_text_add(
            &i->out,
            "parameters\n  %d tensors with %lld elements, of which %d with %lld are trained\n",
            g->n_params, (long long)elements, trained, (long long)trained_elements);
}

static mpr_status summary(Inspect *i)
{
    const Graph *g = i->model->m->graph;
    Text *t = &i->out;
    bool json = i->o.json;
    mpri_text_put(t, json ? "{\"inputs\": [" : "inputs\n");
    for (int k = 0; k < g->n_inputs; k++)
        put_value(i, g, g->inputs[k].value->name, g->inputs[k].value, !k);
    mpri_text_put(t, json ? "], \"outputs\": [" : "outputs\n");
    for (int k = 0; k < g->n_outputs; k++)
        put_value(i, g, g->outputs[k].name, g->outputs[k].value, !k);
    if (json) mpri_text_put(t, "], ");
    put_totals(i, g);
    Arena arena;
    OpCount *ops;
    int n;
    mpri_arena_init(&arena, &i->ctx->alloc, 0);
    mpr_status status = count_ops(i, &arena, &ops, &n);
    if (status == MPR_OK) {
        if (json) mpri_text_add(t, ", \"nodes\": %d, \"operators\": {", g->n_nodes);
        else mpri_text_add(t, "operators (%d nodes)\n", g->n_nodes);
        for (int k = 0; k < n; k++) {
            if (!json) {
                mpri_text_add(t, "  %6d  %s\n", ops[k].n, mpri_err_name(ops[k].name));
                continue;
            }
            mpri_text_put(t, k ? ", " : "");
            mpri_json_string(t, ops[k].name);
            mpri_text_add(t, ": %d", ops[k].n);
        }
        if (json) mpri_text_put(t, "}}\n");
    }
    mpri_arena_destroy(&arena);
    return status;
}

/* ---- parameters ---- */

static mpr_status params(Inspect *i)
{
    const Graph *g = i->model->m->graph;
    Text *t = &i->out;
    bool json = i->o.json;
    mpri_text_put(t, json ? "[" : "trained  type      consumers  shape            name: reason\n");
    for (int k = 0; k < g->n_params; k++) {
        const Param *p = &g->params[k];
        const char *reason = p->reason ? p->reason : "";
        int consumers = p->value ? p->value->n_uses : 0;
        char shape[256] = "[]";
        if (p->value) mpri_shape_print(g->sym, &p->value->shape, shape, sizeof(shape));
        if (!json) {
            mpri_text_add(t, "%-8s %-9s %9d  %-16s %s: %s\n", p->trained ? "yes" : "no",
                          mpri_dtype_long(p->file_dtype), consumers, shape,
                          mpri_err_name(p->public_name ? p->public_name : p->name), reason);
            continue;
        }
        mpri_text_put(t, k ? ",\n {\"name\": " : "{\"name\": ");
        mpri_json_string(t, p->name);
        mpri_text_put(t, ", \"public_name\": ");
        mpri_json_string(t, p->public_name ? p->public_name : p->name);
        mpri_text_add(t, ", \"dtype\": \"%s\", \"shape\": [", mpri_dtype_long(p->file_dtype));
        for (int d = 0; p->value && d < p->value->shape.rank; d++)
            mpri_text_add(t, "%s%lld", d ? ", " : "", (long long)p->value->shape.d[d]);
        mpri_text_add(t, "], \"consumers\": %d, \"trained\": %s, \"reason\": ", consumers,
                      p->trained ? "true" : "false");
        mpri_json_string(t, reason);
        mpri_text_put(t, "}");
    }
    if (json) mpri_text_put(t, "]\n");
    return MPR_OK;
}

/* ---- operators ---- */

static const char *gradient_text(const OpDef *op)
{
    switch (op->grad_state) {
    case GRAD_FUNCTION: return "yes";
    case GRAD_ZERO: return "zero";
    default: return "no";
    }
}

static void put_op(Inspect *i, const char *name, const OpDef *op, int n, bool first)
{
    Text *t = &i->out;
    bool runs = !(op->flags & OPF_OPAQUE);
    const char *grad = runs ? gradient_text(op) : "no";
    const char *note = !runs ? "unknown operator: it can be kept by mpr-convert, not run"
                       : op->grad_reason ? op->grad_reason
                       : op->help        ? op->help
                                         : "";
    if (!i->o.json) {
        if (n) mpri_text_add(t, "%6d  ", n);
        mpri_text_add(t, "%-28s %-5s %-9s %s\n", mpri_err_name(name), runs ? "yes" : "no", grad,
                      note);
        return;
    }
    mpri_text_put(t, first ? "{\"op\": " : ",\n {\"op\": ");
    mpri_json_string(t, name);
    if (n) mpri_text_add(t, ", \"count\": %d", n);
    else mpri_text_add(t, ", \"since\": %d, \"family\": \"%s\"", op->since, op->family);
    mpri_text_add(t, ", \"runs\": %s, \"gradient\": \"%s\", \"note\": ", runs ? "true" : "false",
                  grad);
    mpri_json_string(t, note);
    mpri_text_put(t, "}");
}

static mpr_status operators(Inspect *i)
{
    Text *t = &i->out;
    const OpTable *table = mpri_op_table();
    bool first = true;
    mpri_text_put(t, i->o.json  ? "["
                     : i->model ? " count  operator                     runs  gradient  note\n"
                                : "operator                     runs  gradient  note\n");
    if (i->model) {
        Arena arena;
        OpCount *ops;
        int n;
        mpri_arena_init(&arena, &i->ctx->alloc, 0);
        mpr_status status = count_ops(i, &arena, &ops, &n);
        for (int k = 0; status == MPR_OK && k < n; k++)
            put_op(i, ops[k].name, ops[k].op, ops[k].n, !k);
        mpri_arena_destroy(&arena);
        TRY(status);
    } else {
        for (int k = 0; k < table->count; k++) {
            const OpDef *op = table->defs[k];
            if (!op || (op->flags & (OPF_INTERNAL | OPF_OPAQUE))) continue;
            put_op(i, op->name, op, 0, first);
            first = false;
        }
    }
    if (i->o.json) mpri_text_put(t, "]\n");
    return MPR_OK;
}

mpr_status mpri_inspect(mpr_context *ctx, mpr_model *model, mpr_inspect_what what,
                        const mpr_inspect_options *options, char **text, Err *err)
{
    Inspect i = {.ctx = ctx, .model = model, .err = err};
    *text = NULL;
    TRY(mpri_take_options(&i.o, sizeof(i.o), options, "mpr_inspect_options", err));
    if (!model && what != MPR_INSPECT_OPS) {
        mpri_err_set(err, MPR_E_USAGE, "this report needs a model");
        return mpri_err_advice(
            err, "pass a model; only the operators of the program can be listed without one");
    }
    mpri_text_init(&i.out, &ctx->alloc);
    mpr_status status = MPR_OK;
    switch (what) {
    case MPR_INSPECT_SUMMARY: status = summary(&i); break;
    case MPR_INSPECT_PARAMS: status = params(&i); break;
    case MPR_INSPECT_OPS: status = operators(&i); break;
    case MPR_INSPECT_PRECISION: status = mpri_inspect_precision(&i); break;
    case MPR_INSPECT_PLAN: status = mpri_inspect_plan(&i); break;
    case MPR_INSPECT_MEMORY: status = mpri_inspect_memory(&i); break;
    }
    if (status == MPR_OK && i.out.failed) status = mpri_err_nomem(err, i.out.cap);
    if (status != MPR_OK) {
        mpri_text_free(&i.out);
        return status;
    }
    *text = i.out.text;
    return MPR_OK;
}
