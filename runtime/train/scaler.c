/* The loss scaler: options, stages and the order of calls. Source: PyTorch's torch.amp.GradScaler.
 * The arithmetic of the scale is in kernels/update_rule.h, its place in scaler_device.c. */
#include "runtime/train/scaler.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/forensics.h"
#include "runtime/train/optimizer.h"

#define TORCH_MIN_SCALE 0x1p-126f

/* ---- options ---- */

mpr_scaler_options mpri_scaler_fill(const mpr_scaler_options *given)
{
    mpr_scaler_options o = *given;
    if (o.init_scale == 0) o.init_scale = 65536;
    if (o.growth_factor == 0) o.growth_factor = 2;
    if (o.backoff_factor == 0) o.backoff_factor = 0.5;
    if (o.growth_interval == 0) o.growth_interval = 2000;
    if (o.min_scale == 0) o.min_scale = o.torch_preset ? TORCH_MIN_SCALE : 1;
    if (o.max_scale == 0) o.max_scale = o.torch_preset ? INFINITY : 0x1p24f;
    if (o.hysteresis == 0) o.hysteresis = 1;
    if (o.max_consecutive_skips == 0) o.max_consecutive_skips = o.torch_preset ? 0 : 50;
    else if (o.max_consecutive_skips == -1) o.max_consecutive_skips = 0;
    if (o.constant) o.min_scale = o.max_scale = o.init_scale;
    return o;
}

static mpr_status refuse(Err *err, const char *field, double value, const char *allowed)
{
    char text[32];
    mpri_err_set(err, MPR_E_USAGE, "loss scaler: %s is %s; allowed: %s", field,
                 mpri_print_f64(text, value), allowed);
    return mpri_err_advice(err, "the defaults are those of torch.amp.GradScaler");
}

mpr_status mpri_scaler_validate(const mpr_scaler_options *o, double scale, Err *err)
{
    if (!(o->growth_factor > 1 && isfinite(o->growth_factor)))
        return refuse(err, "growth_factor", o->growth_factor, "finite and > 1");
    if (!(o->backoff_factor > 0 && o->backoff_factor < 1))
        return refuse(err, "backoff_factor", o->backoff_factor, "> 0 and < 1");
    if (o->growth_interval < 1) return refuse(err, "growth_interval", o->growth_interval, ">= 1");
    if (!(o->min_scale >= TORCH_MIN_SCALE))
        return refuse(err, "min_scale", o->min_scale, ">= 2^-126");
    if (!(o->max_scale >= o->min_scale))
        return refuse(err, "max_scale", o->max_scale, ">= min_scale");
    if (o->hysteresis < 1) return refuse(err, "hysteresis", o->hysteresis, ">= 1");
    if (o->max_consecutive_skips < 0)
        return refuse(err, "max_consecutive_skips", o->max_consecutive_skips, ">= 0");
    if (!isfinite((float)scale) || !((float)scale >= o->min_scale && (float)scale <= o->max_scale))
        return refuse(err, "the scale", scale, "finite, from min_scale to max_scale");
    return MPR_OK;
}

mpr_status mpri_scaler_set(mpr_scaler *sc, const char *option, double value, Err *err)
{
    mpr_scaler_options o = sc->o;
    bool whole = value == floor(value) && fabs(value) <= INT32_MAX;
    static const char *const names[] = {
        "growth_factor", "backoff_factor", "growth_interval",      "min_scale",
        "max_scale",     "hysteresis",     "max_consecutive_skips"};
    if (!strcmp(option, "growth_factor")) o.growth_factor = value;
    else if (!strcmp(option, "backoff_factor")) o.backoff_factor = value;
    else if (!strcmp(option, "min_scale")) o.min_scale = (float)value;
    else if (!strcmp(option, "max_scale")) o.max_scale = (float)value;
    else if (!whole) return refuse(err, option, value, "a whole number");
    else if (!strcmp(option, "growth_interval")) o.growth_interval = (int32_t)value;
    else if (!strcmp(option, "hysteresis")) o.hysteresis = (int32_t)value;
    else if (!strcmp(option, "max_consecutive_skips")) o.max_consecutive_skips = (int32_t)value;
    else {
        const char *near = mpri_nearest(option, names, sizeof(names) / sizeof(*names));
        mpri_err_set(err, MPR_E_USAGE, "the loss scaler has no option '%s'", mpri_err_name(option));
        return mpri_err_advice(err, "%s '%s'", near ? "did you mean" : "there is, for one,",
                               near ? near : names[0]);
    }
    TRY(mpri_scaler_read(sc, err));
    TRY(mpri_scaler_validate(&o, sc->scale, err));
    sc->o = o;
    if (sc->hysteresis_left > o.hysteresis) sc->hysteresis_left = o.hysteresis;
    return mpri_scaler_write(sc, err);
}

/* ---- life ---- */

mpr_status mpri_scaler_create(mpr_session *s, const mpr_scaler_options *filled, mpr_scaler **out,
                              Err *err)
{
    *out = NULL;
    TRY(mpri_scaler_validate(filled, filled->init_scale, err));
    mpr_scaler *sc = CONTEXT_NEW(s->ctx, mpr_scaler);
    if (!sc) return mpri_err_nomem(err, sizeof(*sc));
    mpri_handle_init(&sc->h, HANDLE_SCALER, &s->h);
    sc->s = s;
    sc->o = *filled;
    sc->scale = filled->init_scale;
    sc->hysteresis_left = filled->hysteresis;
    sc->next = s->scalers;
    s->scalers = sc;
    s->children++;
    mpr_status status = mpri_scaler_slots(sc, err);
    if (status != MPR_OK) {
        mpri_scaler_destroy(sc);
        return status;
    }
    *out = sc;
    return MPR_OK;
}

void mpri_scaler_destroy(mpr_scaler *sc)
{
    if (!sc) return;
    mpr_session *s = sc->s;
    for (mpr_scaler **p = &s->scalers; *p; p = &(*p)->next)
        if (*p == sc) {
            *p = sc->next;
            break;
        }
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].by == sc) s->params[i].by = NULL;
    s->children--;
    mpri_scaler_plans_free(sc);
    mpri_arena_destroy(&sc->arena);
    mpri_free(&s->ctx->alloc, sc->entries);
    mpri_handle_end(&sc->h);
    mpri_free(&s->ctx->alloc, sc);
}

bool mpri_scaler_enabled(const mpr_scaler *sc)
{
    return !sc->o.disabled;
}

void mpri_scaler_begin(mpr_scaler *sc)
{
    sc->started = true;
}

mpr_status mpri_scaler_seed(mpr_scaler *sc, const char *slot, float divisor, Err *err)
{
    mpri_scaler_begin(sc);
    if (!mpri_store_find(&sc->s->store, slot)) return MPR_OK; /* nothing reads it */
    return mpri_scaler_over(sc, slot, (double)divisor, &sc->seed_plan, err);
}

/* ---- stages ---- */

static ScalerEntry *find_entry(const mpr_scaler *sc, const mpr_optimizer *opt)
{
    for (int i = 0; i < sc->n_entries; i++)
        if (sc->entries[i].opt == opt) return &sc->entries[i];
    return NULL;
}

static mpr_status need_entry(mpr_scaler *sc, mpr_optimizer *opt, ScalerEntry **out, Err *err)
{
    *out = find_entry(sc, opt);
    if (*out) return MPR_OK;
    if (sc->n_entries == sc->cap_entries) {
        int cap = sc->cap_entries ? 2 * sc->cap_entries : 4;
        ScalerEntry *grown = mpri_context_alloc(sc->s->ctx, (size_t)cap * sizeof(*grown));
        if (!grown) return mpri_err_nomem(err, (size_t)cap * sizeof(*grown));
        if (sc->n_entries) memcpy(grown, sc->entries, (size_t)sc->n_entries * sizeof(*grown));
        mpri_free(&sc->s->ctx->alloc, sc->entries);
        sc->entries = grown;
        sc->cap_entries = cap;
    }
    *out = &sc->entries[sc->n_entries++];
    **out = (ScalerEntry){.opt = opt};
    return MPR_OK;
}

void mpri_scaler_forget(mpr_session *s, const mpr_optimizer *opt)
{
    for (mpr_scaler *sc = s->scalers; sc; sc = sc->next) {
        ScalerEntry *e = find_entry(sc, opt);
        if (!e) continue;
        mpri_plan_destroy(e->scale_plan);
        *e = sc->entries[--sc->n_entries];
        mpri_plan_destroy(sc->update_plan);
        sc->update_plan = NULL;
    }
}

static mpr_status order(Err *err, const char *what, const char *advice)
{
    mpri_err_set(err, MPR_E_ORDER, "%s", what);
    return mpri_err_advice(err, "%s", advice);
}

static mpr_status need_start(const mpr_scaler *sc, const char *call, Err *err)
{
    if (sc->started) return MPR_OK;
    mpri_err_set(err, MPR_E_ORDER, "%s before any loss was scaled", call);
    return mpri_err_advice(err, "call mpr_session_backward with this scaler first");
}

mpr_status mpri_scaler_check_write(mpr_session *s, const SessionParam *p, Err *err)
{
    if (!s->scalers) return MPR_OK;
    if (p->unscaled) {
        mpri_err_set(err, MPR_E_ORDER,
                     "gradient of '%s' is unscaled already; a scaled one cannot be added",
                     mpri_err_name(p->public_name));
        return mpri_err_advice(err, "unscale once, after the last backward of the window");
    }
    if (p->scaled && p->generation != s->generation) {
        mpri_err_set(err, MPR_E_ORDER,
                     "gradient of '%s' was written before the last update of the loss scale",
                     mpri_err_name(p->public_name));
        return mpri_err_advice(
            err, "call mpr_session_zero_grad after each update; use one scale for a whole window");
    }
    return MPR_OK;
}

/* How the contents of a gradient buffer and what is added to it differ. */
static mpr_status mixed(const SessionParam *p, const char *held, const char *added, Err *err)
{
    mpri_err_set(err, MPR_E_ORDER, "gradient of '%s' is %s; %s cannot be added",
                 mpri_err_name(p->public_name), held, added);
    return mpri_err_advice(err, "pass the same scaler to every backward of a window");
}

mpr_status mpri_scaler_check_add(mpr_session *s, const SessionParam *p, const mpr_scaler *by,
                                 Err *err)
{
    TRY(mpri_scaler_check_write(s, p, err));
    if (by && !p->scaled) return mixed(p, "not scaled", "a scaled one", err);
    if (p->by && !by) return mixed(p, "scaled", "one that is not", err);
    if (p->by && p->by != by) return mixed(p, "scaled by another scaler", "this one", err);
    return MPR_OK;
}

mpr_status mpri_scaler_check_clip(mpr_session *s, mpr_optimizer *opt, Err *err)
{
    for (mpr_scaler *sc = s->scalers; sc; sc = sc->next) {
        const ScalerEntry *e = find_entry(sc, opt);
        if (sc->o.disabled || (e && e->stage == OPT_UNSCALED)) continue;
        if (mpri_optimizer_any_scaled(opt) || (e && e->stage == OPT_STEPPED))
            return order(err, "clip_grad_norm while the gradients are not unscaled",
                         "call mpr_scaler_unscale before clipping");
    }
    return MPR_OK;
}

/* Which gradient a skip was for, while it is there. */
static void describe(mpr_scaler *sc)
{
    if (sc->described) return;
    sc->described = true;
    sc->searched = false;
    sc->advice[0] = 0;
    if (!mpri_session_first_bad_gradient(sc->s, sc->first_bad, sizeof(sc->first_bad)))
        strcpy(sc->first_bad, "a gradient overflowed when it was unscaled");
}

bool mpri_scaler_checked(const mpr_session *s, const mpr_optimizer *opt)
{
    for (const mpr_scaler *sc = s->scalers; sc; sc = sc->next) {
        const ScalerEntry *e = find_entry(sc, opt);
        if (e && e->checked) return true;
    }
    return false;
}

mpr_status mpri_scaler_check_idle(const mpr_scaler *sc, Err *err)
{
    for (int i = 0; i < sc->n_entries; i++)
        if (sc->entries[i].stage != OPT_READY)
            return order(err, "the loss scaler is between unscale and update",
                         "save after mpr_scaler_update or mpr_scaler_abandon");
    return MPR_OK;
}

/* ---- unscale, step ---- */

static mpr_status check_scaled(const mpr_scaler *sc, const mpr_optimizer *opt, Err *err)
{
    for (int i = 0; i < opt->n_params; i++) {
        const SessionParam *p = opt->params[i].p;
        if (!p->present || p->unscaled || (p->scaled && (!p->by || p->by == sc))) continue;
        mpri_err_set(err, MPR_E_ORDER, "gradient of '%s' was not scaled by this scaler",
                     mpri_err_name(p->public_name));
        return mpri_err_advice(err, "pass the scaler to mpr_session_backward");
    }
    return MPR_OK;
}

static mpr_status unscale(mpr_scaler *sc, ScalerEntry *e, Err *err)
{
    TRY(mpri_optimizer_check_unscale(e->opt, err));
    TRY(check_scaled(sc, e->opt, err));
    double extra = sc->extra > 0 ? sc->extra : 1;
    sc->extra = 0;
    if (!mpri_optimizer_any_present(e->opt)) return MPR_OK;
    TRY(mpri_scaler_over(sc, e->opt->scale.name, extra, &e->scale_plan, err));
    TRY(mpri_optimizer_unscale(e->opt, err));
    e->checked = true;
    return MPR_OK;
}

mpr_status mpri_scaler_unscale(mpr_scaler *sc, mpr_optimizer *opt, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    ScalerEntry *e;
    TRY(need_start(sc, "unscale", err));
    TRY(need_entry(sc, opt, &e, err));
    if (e->stage == OPT_UNSCALED)
        return order(err, "unscale was already called for this optimizer since the last update",
                     "unscale once per window");
    if (e->stage == OPT_STEPPED)
        return order(err, "unscale is called after step", "call unscale before step, then update");
    TRY(unscale(sc, e, err));
    e->stage = OPT_UNSCALED;
    return MPR_OK;
}

mpr_status mpri_scaler_poison(mpr_scaler *sc, mpr_optimizer *opt, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    ScalerEntry *e;
    TRY(need_entry(sc, opt, &e, err));
    if (e->stage == OPT_READY)
        return order(err, "a window is marked as not finite before unscale", "unscale first");
    e->checked = true;
    return mpri_optimizer_flag(opt, true, err);
}

static mpr_status step_disabled(ScalerEntry *e, Err *err)
{
    e->stepped = true;
    e->nothing = !mpri_optimizer_any_present(e->opt);
    if (e->nothing) return MPR_OK;
    TRY(mpri_optimizer_flag(e->opt, false, err));
    return mpri_optimizer_apply(e->opt, err);
}

mpr_status mpri_scaler_step(mpr_scaler *sc, mpr_optimizer *opt, mpr_step_outcome *outcome, Err *err)
{
    ScalerEntry *e;
    if (sc->o.disabled) {
        TRY(need_entry(sc, opt, &e, err));
        TRY(step_disabled(e, err));
        return outcome ? mpri_scaler_outcome(sc, opt, outcome, err) : MPR_OK;
    }
    TRY(need_start(sc, "step", err));
    TRY(need_entry(sc, opt, &e, err));
    if (e->stage == OPT_STEPPED)
        return order(err, "step was already called for this optimizer since the last update",
                     "call mpr_scaler_update between two steps");
    if (e->stage == OPT_READY) TRY(unscale(sc, e, err));
    else TRY(mpri_optimizer_check_generation(opt, err));
    if (e->checked) TRY(mpri_optimizer_apply(opt, err));
    e->stage = OPT_STEPPED;
    e->stepped = true;
    e->nothing = !e->checked;
    return outcome ? mpri_scaler_outcome(sc, opt, outcome, err) : MPR_OK;
}

mpr_status mpri_scaler_outcome(mpr_scaler *sc, mpr_optimizer *opt, mpr_step_outcome *outcome,
                               Err *err)
{
    const ScalerEntry *e = find_entry(sc, opt);
    bool skipped = false;
    if (!e || !e->stepped)
        return order(err, "there is no outcome: this optimizer was not stepped by this scaler",
                     "call mpr_scaler_step first");
    if (!e->nothing) TRY(mpri_optimizer_skipped(opt, &skipped, err));
    if (skipped && e->stage == OPT_STEPPED) {
        sc->waited = true;
        describe(sc);
    }
    *outcome = e->nothing ? MPR_STEP_NOTHING : skipped ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED;
    return MPR_OK;
}

/* ---- update ---- */

static void next_window(mpr_scaler *sc)
{
    for (int i = 0; i < sc->n_entries; i++) {
        ScalerEntry *e = &sc->entries[i];
        e->stage = OPT_READY;
        e->checked = false; /* the outcome may still be asked for */
    }
    sc->described = sc->waited = false;
    sc->generation++;
    sc->s->generation++;
}

/* The manual loop has not looked for the culprit yet; the window is still there. */
static void search(mpr_scaler *sc)
{
    NonFinite found;
    mpr_session *s = sc->s;
    if (sc->searched || !s->forward_count ||
        !mpri_forensics_window(s, &found))
        return;
    sc->searched = true;
    snprintf(sc->first_bad, sizeof(sc->first_bad), "%s", found.text);
    snprintf(sc->advice, sizeof(sc->advice), "%s", found.advice);
}

static mpr_status diverged(mpr_scaler *sc, Err *err)
{
    char scales[SCALER_HISTORY * 34] = "", number[32];
    for (int i = 0; i < sc->n_history; i++) {
        strcat(scales, i ? ", " : "");
        strcat(scales, mpri_print_f32(number, sc->history[i]));
    }
    search(sc);
    mpri_err_set(err, MPR_E_NONFINITE,
                 "training diverged at step %lld: %d steps in a row were skipped for gradients "
                 "that are not finite (allowed %d); %s%s%s %s%s%s",
                 (long long)(sc->updates + sc->skips + sc->empty), sc->skips_in_row,
                 sc->o.max_consecutive_skips, sc->n_history ? "last loss scales " : "", scales,
                 sc->n_history ? ", now" : "the loss scale is", mpri_print_f32(number, sc->scale),
                 sc->first_bad[0] ? "; first bad tensor: " : "", sc->first_bad);
    return mpri_err_advice(err, "%s; the weights are those of the last good step",
                           sc->advice[0] ? sc->advice
                                         : "lower the learning rate, look at the data, or keep the "
                                           "named operator in fp32");
}

/* What the update found, where the host sees it without waiting or has waited for this skip already: the
 * culprit is described while its gradient is there. Elsewhere the update after the next mpri_scaler_read
 * tells of a run of skips. */
static mpr_status look(mpr_scaler *sc, int64_t skips, int64_t updates, bool *news, Err *err)
{
    *news = !sc->s->device->shared && !sc->waits && !sc->waited;
    if (*news) return MPR_OK;
    TRY(mpri_scaler_read(sc, err));
    *news = sc->skips > skips;
    if (*news) describe(sc);
    if (sc->updates > updates) {
        sc->first_bad[0] = sc->advice[0] = 0;
        sc->searched = false;
    }
    return MPR_OK;
}

mpr_status mpri_scaler_update(mpr_scaler *sc, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    TRY(need_start(sc, "update", err));
    bool checked = false, idle = true, known = !sc->stale, news;
    for (int i = 0; i < sc->n_entries; i++) {
        checked |= sc->entries[i].checked;
        idle &= sc->entries[i].stage == OPT_READY;
    }
    if (!checked && idle)
        return order(err, "update without an unscale or step since the last one",
                     "call mpr_scaler_step before mpr_scaler_update");
    int64_t skips = sc->skips, updates = sc->updates;
    TRY(mpri_scaler_next(sc, err));
    if (sc->s->device->submit) TRY(sc->s->device->submit(sc->s->device, err));
    TRY(look(sc, skips, updates, &news, err));
    next_window(sc);
    bool over = sc->o.max_consecutive_skips && sc->skips_in_row >= sc->o.max_consecutive_skips;
    return over && news && (known || !sc->stale) ? diverged(sc, err) : MPR_OK;
}

mpr_status mpri_scaler_update_to(mpr_scaler *sc, float scale, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    TRY(need_start(sc, "update", err));
    TRY(mpri_scaler_validate(&sc->o, scale, err));
    TRY(mpri_scaler_write_scale(sc, scale, err));
    next_window(sc);
    return MPR_OK;
}

mpr_status mpri_scaler_abandon(mpr_scaler *sc, Err *err)
{
    (void)err;
    next_window(sc);
    return MPR_OK;
}

mpr_status mpri_scaler_state(mpr_scaler *sc, mpr_scaler_state *out, Err *err)
{
    size_t size = out->size;
    TRY(mpri_scaler_read(sc, err));
    mpr_scaler_state st = {
        .size = sizeof(st),
        .scale = sc->o.disabled ? 1 : sc->scale,
        .growth_tracker = sc->o.disabled ? 0 : sc->tracker,
        .hysteresis_left = sc->hysteresis_left,
        .skips_in_row = sc->skips_in_row,
        .skips = sc->skips,
        .updates = sc->updates,
        .empty = sc->empty,
        .generation = sc->generation,
    };
    memcpy(out, &st, size && size < sizeof(st) ? size : sizeof(st));
    out->size = size && size < sizeof(st) ? size : sizeof(st);
    return MPR_OK;
}
