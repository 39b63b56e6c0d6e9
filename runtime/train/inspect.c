/* What is in a model: inputs and outputs, how many operators of each kind, parameters with the
 * reason why each is trained or not. */
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

static int by_count(const void *a, const void *b)
{
    const OpCount *x = a, *y = b;
    return x->n != y->n ? y->n - x->n : strcmp(x->name, y->name);
}

static const char *type_of(const Node *n)
{
    return n->opaque_type ? n->opaque_type : n->op->name;
}

mpr_status mpri_inspect_count_ops(Inspect *i, Arena *arena, OpCount **out, int *n_out)
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
    mpr_status status = mpri_inspect_count_ops(i, &arena, &ops, &n);
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
    case MPR_INSPECT_OPS: status = mpri_inspect_ops(&i); break;
    case MPR_INSPECT_PRECISION: status = mpri_inspect_precision(&i); break;
    case MPR_INSPECT_EXPLAIN: status = mpri_inspect_explain(&i); break;
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
