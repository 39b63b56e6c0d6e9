/* How a model would run: the frozen plan and its bytes. Shapes come from --bind; nothing is run and no data are needed. */
#include "runtime/train/inspect.h"

#include <stdio.h>
#include <string.h>

#include "runtime/train/binding.h"
#include "runtime/train/json.h"

/* ---- a session for the report ---- */

mpr_status mpri_inspect_open(Inspect *i, const char *loss, mpr_session **s, Err *err)
{
    mpr_session_options so = {
        .size = sizeof(so),
        .autocast = i->o.autocast,
        .autocast_profile = i->o.autocast_profile,
        .eval_autocast = i->o.autocast,
        .loss = i->o.forward_only ? NULL : loss,
        .logits = i->o.logits,
        .keep_fp32 = i->o.keep_fp32,
    };
    return mpri_session_open(i->model, &so, s, err);
}

/* Shapes without data: only plans may be made from them. */
static mpr_status bind_shapes(mpr_session *s, const char *const *bind, Err *err)
{
    const Graph *g = s->graph[MODE_TRAIN];
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    DimBinding *b = mpri_binding_create(&arena, g->sym);
    mpr_status status = b ? mpri_bind_options(g, b, bind, err) : mpri_err_nomem(err, 0);
    for (int k = 0; status == MPR_OK && k < s->n_inputs; k++) {
        SessionInput *in = &s->inputs[k];
        in->rank = in->declared.rank;
        in->bound = true;
        if (in->rank < 0) {
            mpri_err_set(err, MPR_E_SHAPE, "the rank of input '%s' is not known",
                         mpri_err_name(in->name));
            status = mpri_err_advice(err, "export the model with shapes");
        }
        for (int d = 0; status == MPR_OK && d < in->rank; d++) {
            Dim dim = mpri_dim_eval(b, in->declared.d[d]);
            in->dims[d] = dim;
            if (mpri_dim_const(dim)) continue;
            char text[128];
            mpri_dim_print(g->sym, in->declared.d[d], text, sizeof(text));
            mpri_err_set(err, MPR_E_USAGE, "dim %d of input '%s' is '%s', which has no size yet", d,
                         mpri_err_name(in->name), mpri_err_name(text));
            status = mpri_err_advice(err, "give it with --bind %s=N", mpri_err_name(text));
        }
    }
    mpri_arena_destroy(&arena);
    return status;
}

/* ---- plan ---- */

static void put_step(Text *t, const PlanStep *step, int index, bool first)
{
    static const char *const segments[] = {"forward", "backward", "update"};
    mpri_text_add(t, "%s{\"step\": %d, \"segment\": \"%s\", \"op\": \"%s\", \"node\": ",
                  first ? "" : ",\n ", index, segments[step->segment], step->node->op->name);
    mpri_json_string(t, step->node->name);
    mpri_text_add(t, ", \"kernel\": \"%s\", \"skipped\": ", step->row->name);
    mpri_json_string(t, step->skipped ? step->skipped : "");
    mpri_text_put(t, ", \"flops\": ");
    mpri_json_f64(t, step->flops);
    mpri_text_put(t, "}");
}

static mpr_status print_plan(Inspect *i, mpr_session *s)
{
    SessionPlan *sp;
    TRY(bind_shapes(s, i->o.bind, i->err));
    TRY(mpri_session_plan(s, MODE_TRAIN, &sp, i->err));
    const Plan *p = sp->plan;
    if (!i->o.json) {
        if (mpri_plan_print(p, &i->out) != MPR_OK) return mpri_err_nomem(i->err, 0);
        SessionForecast f;
        TRY(mpri_session_forecast(s, &f, i->err));
        mpri_session_forecast_print(s, &f, &i->out);
        return MPR_OK;
    }
    mpri_text_put(&i->out, "{\"steps\": [");
    for (int k = 0; k < p->n_steps; k++) put_step(&i->out, &p->steps[k], k, !k);
    mpri_text_add(&i->out, "], \"arena_bytes\": %zu, \"arena_lower_bound_bytes\": %zu",
                  p->arena_bytes, p->live_bound_bytes);
    SessionForecast f;
    TRY(mpri_session_forecast(s, &f, i->err));
    if (f.known)
        mpri_text_add(&i->out, ", \"forecast\": {\"arena_bytes_float32\": %zu, \"moved_bytes\": "
                      "%.0f, \"moved_bytes_float32\": %.0f}", f.memory_f32, f.bytes,
                      f.bytes_f32);
    mpri_text_put(&i->out, "}\n");
    return MPR_OK;
}

mpr_status mpri_inspect_plan(Inspect *i)
{
    mpr_session *s;
    TRY(mpri_inspect_open(i, i->o.loss, &s, i->err));
    mpr_status status = print_plan(i, s);
    mpri_session_close(s);
    return status;
}

/* ---- memory ---- */

enum { MAX_BIND = 16 };

/* Item `pick[k]` of each comma list: "batch=1,8,64" -> "batch=8". False when a list has no such
 * item. */
static bool pick_items(Arena *arena, const char *const *bind, const int *pick, const char **out)
{
    int n = 0;
    for (; bind && bind[n] && n < MAX_BIND; n++) {
        const char *equal = strchr(bind[n], '='), *item = equal ? equal + 1 : bind[n];
        for (int k = 0; k < pick[n] && item; k++) {
            item = strchr(item, ',');
            if (item) item++;
        }
        if (!item) return false;
        out[n] = equal ? mpri_arena_printf(arena, "%.*s=%.*s", (int)(equal - bind[n]), bind[n],
                                           (int)strcspn(item, ","), item)
                       : bind[n];
    }
    out[n] = NULL;
    return true;
}

static mpr_status put_bill(Inspect *i, const char *const *bind, bool first)
{
    mpr_session *s;
    mpr_memory_bill b = {.size = sizeof(b)};
    char label[512] = "";
    for (int k = 0; bind[k]; k++)
        snprintf(label + strlen(label), sizeof(label) - strlen(label), "%s%s", k ? " " : "",
                 bind[k]);
    TRY(mpri_inspect_open(i, i->o.loss, &s, i->err));
    mpr_status status = bind_shapes(s, bind, i->err);
    if (status == MPR_OK) status = mpri_session_memory(s, &b, i->err);
    if (status == MPR_OK && i->o.json) {
        mpri_text_put(&i->out, first ? "{\"bind\": " : ",\n {\"bind\": ");
        mpri_json_string(&i->out, label);
        mpri_text_add(&i->out,
                      ", \"parameters\": %zu, \"gradients\": %zu, \"activations\": %zu, "
                      "\"activations_lower_bound\": %zu, \"constants\": %zu, \"inputs\": %zu, "
                      "\"copies\": %zu}",
                      b.parameters, b.gradients, b.activations, b.activations_lower_bound,
                      b.constants, b.inputs, b.copies);
    } else if (status == MPR_OK) {
        mpri_text_add(&i->out, "%-24s %12zu %12zu %12zu %12zu %12zu %13zu\n",
                      *label ? label : "as in the file", b.parameters, b.gradients, b.activations,
                      b.activations_lower_bound, b.constants, b.copies);
    }
    if (status != MPR_OK && *label) mpri_err_where(i->err, "--bind %s", label);
    mpri_session_close(s);
    return status;
}

mpr_status mpri_inspect_memory(Inspect *i)
{
    Arena arena;
    const char *picked[MAX_BIND + 1];
    int pick[MAX_BIND] = {0};
    bool first = true;
    mpr_status status = MPR_OK;
    mpri_arena_init(&arena, &i->ctx->alloc, 0);
    mpri_text_put(&i->out, i->o.json ? "["
                                     : "bytes                      parameters    gradients  "
                                       "activations  lower bound    constants  16-bit copies\n");
    for (;;) { /* the cross product of the lists, first list slowest */
        if (pick_items(&arena, i->o.bind, pick, picked)) {
            status = put_bill(i, picked, first);
            if (status != MPR_OK) break;
            first = false;
        }
        int k = 0;
        while (i->o.bind && i->o.bind[k] && k < MAX_BIND) k++;
        while (--k >= 0) {
            pick[k]++;
            if (pick_items(&arena, i->o.bind, pick, picked)) break;
            pick[k] = 0;
        }
        if (k < 0) break;
    }
    if (i->o.json) mpri_text_put(&i->out, "]\n");
    mpri_arena_destroy(&arena);
    return status;
}
