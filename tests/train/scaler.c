/* The loss scaler against recorded scenarios (tests/support/vectors.h): events and one expected
 * result per event; a list ends at its first error. Every scenario runs through a real session,
 * optimizer and executor, with the reference kernels and with the CPU's of every instruction set of
 * this machine: all give the same bits. */
#include "tests/support/vectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/scaler.h"

enum { MAX_PARAMS = 64, MAX_OPTIMIZERS = 16, MAX_SLOTS = 16, MAX_ELEMENTS = 4096 };

typedef struct World {
    const json_t *scenario;
    const char *id;
    const char *kernels; /* "ref", or NULL */
    mpr_context *ctx;
    ImportedModel imported;
    mpr_model model;
    mpr_session *s;
    int n_opts;
    const char *opt_name[MAX_OPTIMIZERS];
    mpr_optimizer *opt[MAX_OPTIMIZERS];
    mpr_scaler *sc;
    const char *slot_name[MAX_SLOTS];
    char *slot[MAX_SLOTS];
    Err err;
} World;

/* ---- values ---- */

static double number(const json_t *v)
{
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        if (!strcmp(s, "inf")) return INFINITY;
        if (!strcmp(s, "-inf")) return -INFINITY;
        if (!strcmp(s, "nan")) return NAN;
        fail_msg("'%s' is no number", s);
    }
    if (!json_is_number(v)) fail_msg("a number is missing");
    return json_number_value(v);
}

static size_t length_of(const char *id, const json_t *list)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > MAX_ELEMENTS) fail_msg("%s: a bad list of values", id);
    return n;
}

static float from_bits(const char *hex)
{
    uint32_t bits = (uint32_t)strtoul(hex, NULL, 16);
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static DType dtype_of(const json_t *v)
{
    const char *s = json_string_value(v);
    return s ? mpri_dtype_parse(s) : MPR_FLOAT32;
}

static json_t *typed_bits_of(DType t, const float *v, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        char text[24] = "nan";
        uint64_t bits = 0;
        mpri_store_f64(t, &bits, 0, (double)v[i]);
        if (!isnan(v[i]))
            snprintf(text, sizeof(text), "%0*llx", (int)mpri_dtype_size(t) * 2,
                     (unsigned long long)bits);
        json_array_append_new(list, json_string(text));
    }
    return list;
}

static json_t *bits_of(const float *v, int64_t n) { return typed_bits_of(MPR_FLOAT32, v, n); }

static json_t *scale_number(float v)
{
    return isnan(v) ? json_string("nan") : isinf(v) ? json_string("inf") : json_real((double)v);
}

/* ---- the world of a scenario ---- */

static void make_graph(World *w)
{
    const char *name;
    json_t *p;
    mpri_arena_init(&w->imported.arena, mpri_alloc_default(), 0);
    w->imported.names = mpri_intern_create(&w->imported.arena);
    Graph *g = mpri_graph_create(&w->imported.arena, w->imported.names, mpri_op_table());
    json_object_foreach(json_object_get(w->scenario, "params"), name, p)
    {
        const json_t *x = json_object_get(p, "x");
        DType dtype = dtype_of(json_object_get(p, "dtype"));
        float init[MAX_ELEMENTS] = {0};
        Shape shape = {.rank = 1, .d = {(Dim)length_of(w->id, x)}};
        for (size_t i = 0; dtype == MPR_FLOAT32 && i < json_array_size(x); i++)
            init[i] = from_bits(json_string_value(json_array_get(x, i)));
        Value *v = mpri_value_const_copy(g, mpri_intern(w->imported.names, name), MPR_FLOAT32,
                                         &shape, init);
        Param *row = mpri_graph_add_param(g);
        *row = (Param){.name = v->name,
                       .public_name = v->name,
                       .value = v,
                       .file_dtype = MPR_FLOAT32,
                       .trained = true,
                       .reason = "test"};
        v->param = g->n_params - 1;
    }
    w->imported.graph = g;
}

static mpr_scaler_options options_of(const World *w, const json_t *config)
{
    mpr_scaler_options o = {.size = sizeof(o)};
    const char *preset = json_string_value(json_object_get(w->scenario, "preset"));
    o.torch_preset = !preset || !strcmp(preset, "torch");
    o = mpri_scaler_fill(&o);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)config, key, v)
    {
        if (!strcmp(key, "init_scale")) o.init_scale = (float)number(v);
        else if (!strcmp(key, "growth_factor")) o.growth_factor = number(v);
        else if (!strcmp(key, "backoff_factor")) o.backoff_factor = number(v);
        else if (!strcmp(key, "growth_interval"))
            o.growth_interval = (int32_t)json_integer_value(v);
        else if (!strcmp(key, "min_scale")) o.min_scale = (float)number(v);
        else if (!strcmp(key, "max_scale"))
            o.max_scale = json_is_null(v) ? INFINITY : (float)number(v);
        else if (!strcmp(key, "hysteresis")) o.hysteresis = (int32_t)json_integer_value(v);
        else if (!strcmp(key, "max_consecutive_skips"))
            o.max_consecutive_skips = (int32_t)json_integer_value(v);
        else if (!strcmp(key, "enabled")) o.disabled = json_is_false(v);
        else fail_msg("%s: unknown option %s", w->id, key);
    }
    return o;
}

static mpr_status make_optimizers(World *w)
{
    const char *name, *globs[MAX_PARAMS + 1];
    json_t *o;
    json_object_foreach(json_object_get(w->scenario, "optimizers"), name, o)
    {
        const json_t *params = json_object_get(o, "params"), *lr = json_object_get(o, "lr");
        size_t n = json_array_size(params);
        if (n > MAX_PARAMS || w->n_opts == MAX_OPTIMIZERS)
            fail_msg("%s: too many parameters or optimizers", w->id);
        for (size_t i = 0; i < n; i++) globs[i] = json_string_value(json_array_get(params, i));
        globs[n] = NULL;
        mpr_sgd sgd = {
            .size = sizeof(sgd), .learning_rate = lr ? (float)number(lr) : 1, .parameters = globs};
        w->opt_name[w->n_opts] = name;
        TRY(mpri_optimizer_sgd(w->s, &sgd, &w->opt[w->n_opts], &w->err));
        w->n_opts++;
    }
    return MPR_OK;
}

/* Gradient buffers of another type cannot arise in a session; they are made by hand to see them
 * refused. */
static void make_odd_gradients(World *w)
{
    const char *name;
    json_t *p;
    json_object_foreach(json_object_get(w->scenario, "params"), name, p)
    {
        DType t = dtype_of(json_object_get(p, "dtype"));
        SessionParam *sp;
        StoreSlot *slot;
        assert_ok(mpri_session_find_param(w->s, name, &sp, &w->err), &w->err);
        if (t != MPR_FLOAT32)
            assert_ok(mpri_session_slot(w->s, sp->grad_slot, SLOT_GRAD, t, &sp->shape, sp->index,
                                        &slot, &w->err),
                      &w->err);
    }
}

static mpr_status world_begin(World *w, const json_t *scenario, const char *kernels)
{
    *w = (World){.scenario = scenario,
                 .id = json_string_value(json_object_get(scenario, "id")),
                 .kernels = kernels};
    if (!w->id) fail_msg("a scenario without an id");
    mpri_err_clear(&w->err);
    mpr_context_options co = {.size = sizeof(co), .device = TEST_DEVICE, .threads = 1};
    assert_int_equal(mpr_context_create(&co, &w->ctx), MPR_OK);
    make_graph(w);
    mpri_handle_init(&w->model.h, HANDLE_MODEL, NULL);
    w->model.ctx = w->ctx;
    w->model.m = &w->imported;
    mpr_session_options so = {.size = sizeof(so), .kernels = kernels};
    assert_ok(mpri_session_open(&w->model, &so, &w->s, &w->err), &w->err);
    make_odd_gradients(w);
    TRY(make_optimizers(w));
    mpr_scaler_options o = options_of(w, json_object_get(scenario, "config"));
    return mpri_scaler_create(w->s, &o, &w->sc, &w->err);
}

static void world_end(World *w)
{
    for (int i = 0; i < MAX_SLOTS; i++) mpr_free_text(w->ctx, w->slot[i]);
    mpri_scaler_destroy(w->sc);
    for (int i = 0; i < w->n_opts; i++) mpri_optimizer_destroy(w->opt[i]);
    mpri_session_close(w->s);
    mpri_arena_destroy(&w->imported.arena);
    mpr_context_destroy(w->ctx);
}

/* ---- events ---- */

static mpr_optimizer *opt_of(const World *w, const json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "opt"));
    for (int i = 0; i < w->n_opts; i++)
        if (!strcmp(w->opt_name[i], name)) return w->opt[i];
    fail_msg("%s: no optimizer %s", w->id, name);
    return NULL;
}

static json_t *grads_of(World *w, const mpr_optimizer *opt)
{
    json_t *all = json_object();
    float v[MAX_ELEMENTS];
    for (int i = 0; i < opt->n_params; i++) {
        const SessionParam *p = opt->params[i].p;
        if (!p->present) continue;
        assert_ok(mpri_session_grad_get(w->s, p->name, v, p->n, &w->err), &w->err);
        json_object_set_new(all, p->name, bits_of(v, p->n));
    }
    return all;
}

static json_t *params_of(World *w, const mpr_optimizer *opt)
{
    json_t *all = json_object();
    float v[MAX_ELEMENTS];
    for (int i = 0; i < opt->n_params; i++) {
        const SessionParam *p = opt->params[i].p;
        assert_ok(mpri_session_param_get(w->s, p->name, v, p->n, &w->err), &w->err);
        json_object_set_new(all, p->name, bits_of(v, p->n));
    }
    return all;
}

static json_t *state_of(World *w)
{
    mpr_scaler_state st = {.size = sizeof(st)};
    assert_ok(mpri_scaler_state(w->sc, &st, &w->err), &w->err);
    return json_pack("{s:o,s:i,s:i,s:I,s:I}", "scale", scale_number(st.scale), "tracker",
                     st.growth_tracker, "skips_in_row", st.skips_in_row, "skips",
                     (json_int_t)st.skips, "empty", (json_int_t)st.empty);
}

static mpr_status do_scale(World *w, const json_t *e, json_t **out)
{
    const json_t *x = json_object_get(e, "x");
    DType t = dtype_of(json_object_get(e, "dtype"));
    float y[MAX_ELEMENTS], scale = mpri_scaler_enabled(w->sc) ? w->sc->scale : 1;
    mpri_scaler_begin(w->sc);
    size_t n = length_of(w->id, x);
    for (size_t i = 0; i < n; i++) {
        uint64_t stored;
        mpri_store_f64(t, &stored, 0, (double)(float)number(json_array_get(x, i)));
        y[i] = (float)mpri_load_f64(t, &stored, 0) * scale;
    }
    if (mpri_scaler_enabled(w->sc)) t = MPR_FLOAT32; /* a disabled one hands on what it gets */
    *out = json_pack("{s:s,s:o}", "dtype", mpri_dtype_name(t), "bits",
                     typed_bits_of(t, y, (int64_t)n));
    return MPR_OK;
}

static mpr_status do_grad(World *w, const json_t *e, bool add, json_t **out)
{
    const json_t *x = json_object_get(e, "x");
    const char *name = json_string_value(json_object_get(e, "param"));
    float v[MAX_ELEMENTS];
    SessionParam *p;
    int64_t n = (int64_t)length_of(w->id, x);
    for (int64_t i = 0; i < n; i++) v[i] = (float)number(json_array_get(x, (size_t)i));
    TRY(mpri_session_find_param(w->s, name, &p, &w->err));
    const StoreSlot *slot = mpri_store_find(&w->s->store, p->grad_slot);
    if (slot && slot->dtype != MPR_FLOAT32) {
        p->present = true;
        p->generation = w->s->generation;
        return MPR_OK;
    }
    if (!add) return mpri_session_grad_set(w->s, name, v, n, &w->err);
    TRY(mpri_session_grad_add(w->s, name, v, n, &w->err));
    TRY(mpri_session_grad_get(w->s, name, v, n, &w->err));
    *out = json_pack("{s:{s:o}}", "grads", name, bits_of(v, n));
    return MPR_OK;
}

static bool found(World *w, mpr_optimizer *opt)
{
    bool flag = false;
    if (mpri_scaler_checked(w->s, opt))
        assert_ok(mpri_optimizer_found(opt, &flag, &w->err), &w->err);
    return flag;
}

static mpr_status do_unscale(World *w, const json_t *e, json_t **out)
{
    mpr_optimizer *opt = opt_of(w, e);
    TRY(mpri_scaler_unscale(w->sc, opt, &w->err));
    bool checked = false;
    for (int i = 0; i < w->sc->n_entries; i++)
        checked |= w->sc->entries[i].opt == opt && w->sc->entries[i].checked;
    *out = json_pack("{s:b,s:b,s:o}", "found_inf", found(w, opt), "checked", checked,
                     "grads", grads_of(w, opt));
    return MPR_OK;
}

static mpr_status do_clip(World *w, const json_t *e, json_t **out)
{
    mpr_optimizer *opt = opt_of(w, e);
    float norm;
    TRY(mpri_optimizer_clip(opt, (float)number(json_object_get(e, "max_norm")), &norm, &w->err));
    *out = json_pack("{s:o}", "norm", scale_number(norm));
    if (!found(w, opt)) json_object_set_new(*out, "grads", grads_of(w, opt));
    return MPR_OK;
}

static mpr_status do_step(World *w, const json_t *e, json_t **out)
{
    static const char *const words[] = {"UPDATED", "SKIPPED", "NOTHING"};
    mpr_optimizer *opt = opt_of(w, e);
    mpr_step_outcome outcome;
    TRY(mpri_scaler_step(w->sc, opt, &outcome, &w->err));
    *out = json_pack("{s:s,s:o}", "result", words[outcome], "params", params_of(w, opt));
    return MPR_OK;
}

static int slot_index(World *w, const json_t *e)
{
    const char *name = json_string_value(json_object_get(e, "slot"));
    for (int i = 0; i < MAX_SLOTS; i++) {
        if (!w->slot_name[i]) w->slot_name[i] = name;
        if (!strcmp(w->slot_name[i], name)) return i;
    }
    fail_msg("%s: too many slots", w->id);
    return 0;
}

/* Saving, loading into the same scaler and saving again must give the same bytes. */
static mpr_status do_save(World *w, const json_t *e, json_t **out)
{
    int i = slot_index(w, e);
    char *again;
    mpr_free_text(w->ctx, w->slot[i]);
    w->slot[i] = NULL;
    TRY(mpri_scaler_save(w->sc, &w->slot[i], &w->err));
    TRY(mpri_scaler_load(w->sc, w->slot[i], &w->err));
    TRY(mpri_scaler_save(w->sc, &again, &w->err));
    assert_string_equal(w->slot[i], again);
    mpr_free_text(w->ctx, again);
    *out = json_pack("{s:o}", "state", json_loads(w->slot[i], 0, NULL));
    return MPR_OK;
}

static mpr_status do_load_state(World *w, const json_t *e, json_t **out)
{
    char *text = json_dumps(json_object_get(e, "state"), JSON_REAL_PRECISION(17));
    mpr_status status = mpri_scaler_load(w->sc, text, &w->err);
    free(text);
    TRY(status);
    *out = state_of(w);
    return MPR_OK;
}

static mpr_status do_update(World *w, const json_t *e, json_t **out)
{
    const json_t *to = json_object_get(e, "new_scale");
    mpr_status status = to ? mpri_scaler_update_to(w->sc, (float)number(to), &w->err)
                           : mpri_scaler_update(w->sc, &w->err);
    *out = state_of(w);
    return status;
}

static mpr_status do_new(World *w, const json_t *e)
{
    mpri_scaler_destroy(w->sc);
    w->sc = NULL;
    mpr_scaler_options o = options_of(w, json_object_get(e, "config"));
    return mpri_scaler_create(w->s, &o, &w->sc, &w->err);
}

static void do_zero(World *w, const json_t *e)
{
    mpr_optimizer *opt = opt_of(w, e);
    for (int i = 0; i < opt->n_params; i++)
        opt->params[i].p->present = opt->params[i].p->scaled = opt->params[i].p->unscaled = false;
}

static mpr_status run_event(World *w, const json_t *e, json_t **out);

static const char *error_word(mpr_status status)
{
    switch (status) {
    case MPR_E_ORDER: return "ORDER";
    case MPR_E_USAGE: return "ARGUMENT";
    case MPR_E_TYPE: return "DTYPE";
    case MPR_E_CHECKPOINT: return "STATE";
    case MPR_E_NONFINITE: return "DIVERGED";
    default: return mpr_status_text(status);
    }
}

/* The result of one event, or {"error": word}; *ok false then. */
static json_t *event_result(World *w, const json_t *e, bool *ok)
{
    json_t *out = NULL;
    mpri_err_clear(&w->err);
    mpr_status status = run_event(w, e, &out);
    *ok = status == MPR_OK;
    if (*ok) return out ? out : json_object();
    if (json_object_get(out, "scales")) return out; /* an error inside a repeat */
    json_t *error = json_pack("{s:s}", "error", error_word(status));
    if (status == MPR_E_NONFINITE && out) json_object_set(error, "after", out);
    json_decref(out);
    return error;
}

static mpr_status do_repeat(World *w, const json_t *e, json_t **out)
{
    json_t *runs = json_array(), *last = NULL;
    const json_t *events = json_object_get(e, "events");
    bool ok = true;
    for (json_int_t i = 0; ok && i < json_integer_value(json_object_get(e, "n")); i++) {
        for (size_t k = 0; ok && k < json_array_size(events); k++) {
            json_decref(last);
            last = event_result(w, json_array_get(events, k), &ok);
        }
        json_t *scale = json_object_get(last, "scale"),
               *open = json_array_get(runs, json_array_size(runs) - 1);
        if (!scale) break;
        if (open && json_equal(json_array_get(open, 0), scale))
            json_array_set_new(open, 1,
                               json_integer(json_integer_value(json_array_get(open, 1)) + 1));
        else json_array_append_new(runs, json_pack("[O,i]", scale, 1));
    }
    *out = json_pack("{s:o}", "scales", runs);
    json_t *tracker = json_object_get(last, "tracker");
    if (tracker) json_object_set(*out, "tracker", tracker);
    if (!ok) json_object_set(*out, "error", json_object_get(last, "error"));
    if (json_object_get(last, "after"))
        json_object_set(*out, "after", json_object_get(last, "after"));
    json_decref(last);
    return ok ? MPR_OK : MPR_E_ORDER;
}

static mpr_status run_event(World *w, const json_t *e, json_t **out)
{
    const char *k = json_string_value(json_object_get(e, "do"));
    if (!k) fail_msg("%s: an event without a word", w->id);
    if (!strcmp(k, "scale")) return do_scale(w, e, out);
    if (!strcmp(k, "grad")) return do_grad(w, e, false, out);
    if (!strcmp(k, "add")) return do_grad(w, e, true, out);
    if (!strcmp(k, "unscale")) return do_unscale(w, e, out);
    if (!strcmp(k, "clip")) return do_clip(w, e, out);
    if (!strcmp(k, "step")) return do_step(w, e, out);
    if (!strcmp(k, "update")) return do_update(w, e, out);
    if (!strcmp(k, "save")) return do_save(w, e, out);
    if (!strcmp(k, "load_state")) return do_load_state(w, e, out);
    if (!strcmp(k, "repeat")) return do_repeat(w, e, out);
    if (!strcmp(k, "new")) return do_new(w, e);
    if (!strcmp(k, "mark_serialise")) return mpri_scaler_check_idle(w->sc, &w->err);
    if (!strcmp(k, "set")) {
        return mpri_scaler_set(w->sc, json_string_value(json_object_get(e, "what")),
                               number(json_object_get(e, "value")), &w->err);
    }
    if (!strcmp(k, "zero")) {
        do_zero(w, e);
        return MPR_OK;
    }
    if (!strcmp(k, "abandon")) TRY(mpri_scaler_abandon(w->sc, &w->err));
    else if (!strcmp(k, "load")) TRY(mpri_scaler_load(w->sc, w->slot[slot_index(w, e)], &w->err));
    else if (strcmp(k, "read")) fail_msg("%s: unknown event %s", w->id, k);
    *out = state_of(w);
    return MPR_OK;
}

/* ---- comparison ---- */

static bool near_bits(const char *a, const char *b)
{
    if (!strcmp(a, "nan") || !strcmp(b, "nan")) return !strcmp(a, b);
    long long x = strtoll(a, NULL, 16), y = strtoll(b, NULL, 16);
    return llabs(x - y) <= 2;
}

static bool same_value(const char *key, const json_t *want, const json_t *have, bool clip);

static bool same_members(const json_t *want, const json_t *have, bool clip)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)want, key, v)
    {
        if (!strcmp(key, "optimizer_called") || !strcmp(key, "message") || json_is_null(v))
            continue;
        if (!same_value(key, v, json_object_get(have, key), clip)) return false;
    }
    return true;
}

static bool same_value(const char *key, const json_t *want, const json_t *have, bool clip)
{
    if (!have) return false;
    if (!strcmp(key, "error")) {
        const char *a = json_string_value(want), *b = json_string_value(have);
        return !strncmp(a, b, strlen(b));
    }
    if (json_is_object(want)) return same_members(want, have, clip);
    if (json_is_array(want)) {
        if (json_array_size(want) != json_array_size(have)) return false;
        for (size_t i = 0; i < json_array_size(want); i++)
            if (!same_value(key, json_array_get(want, i), json_array_get(have, i), clip))
                return false;
        return true;
    }
    if (clip && json_is_string(want) && strcmp(key, "norm"))
        return near_bits(json_string_value(want), json_string_value(have));
    if (json_is_number(want) && json_is_number(have)) {
        double a = json_number_value(want), b = json_number_value(have);
        return a == b || (!strcmp(key, "norm") && fabs(a - b) <= 1e-6 * fabs(a));
    }
    return json_equal(want, have);
}

static bool check(const World *w, size_t index, const json_t *want, const json_t *have)
{
    if (same_members(want, have, json_object_get(want, "norm") != NULL)) return true;
    char *a = json_dumps(want, JSON_SORT_KEYS), *b = json_dumps(have, JSON_SORT_KEYS);
    print_error("%s, event %zu: expected %s\n  found %s (%s)\n", w->id, index, a, b,
                w->err.message);
    free(a);
    free(b);
    return false;
}

static bool run_scenario(const json_t *scenario, const char *kernels)
{
    World w;
    const json_t *want = json_object_get(scenario, "mpr"),
                 *events = json_object_get(scenario, "events");
    if (!json_is_array(want)) want = json_object_get(scenario, "torch");
    bool good = true, ok = true;
    mpr_status status = world_begin(&w, scenario, kernels);
    if (status != MPR_OK) {
        json_t *error = json_pack("{s:s}", "error", error_word(status));
        good = json_array_size(want) == 1 && check(&w, 0, json_array_get(want, 0), error);
        json_decref(error);
        world_end(&w);
        return good;
    }
    size_t i = 0;
    for (; ok && i < json_array_size(events) && i < json_array_size(want); i++) {
        json_t *have = event_result(&w, json_array_get(events, i), &ok);
        const json_t *expected = json_array_get(want, i);
        good &= check(&w, i, expected, have);
        if (!ok && !json_object_get(expected, "error")) good = false;
        json_decref(have);
    }
    if (i != json_array_size(want)) {
        print_error("%s: ended after %zu of %zu results\n", w.id, i, json_array_size(want));
        good = false;
    }
    world_end(&w);
    return good;
}

typedef struct Count {
    const char *kernels, *isa;
    int failed;
} Count;

static void one_scenario(void *user, const json_t *scenario)
{
    Count *c = user;
    if (run_scenario(scenario, c->kernels)) return;
    print_error("    with kernels %s\n", c->isa);
    c->failed++;
}

static void all_vectors(void **state)
{
    (void)state;
    Count c = {"ref", "ref", 0};
    int n = test_vectors_each("scenarios", one_scenario, &c);
    assert_true(n > 50 || !test_vectors_own());
    const char *was = getenv("MPR_CPU_ISA");
    char kept[32];
    snprintf(kept, sizeof(kept), "%s", was ? was : "");
    for (int isa = MPRI_ISA_GENERIC; !TEST_DEVICE && isa <= mpri_cpu_isa(); isa++) {
        c.kernels = NULL;
        c.isa = mpri_isa_name(isa);
        assert_int_equal(setenv("MPR_CPU_ISA", c.isa, 1), 0);
        (void)test_vectors_each("scenarios", one_scenario, &c);
    }
    assert_int_equal(was ? setenv("MPR_CPU_ISA", kept, 1) : unsetenv("MPR_CPU_ISA"), 0);
    if (c.failed) fail_msg("%d runs of %d scenarios", c.failed, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
