/* The loss scaler. Source: PyTorch's torch.amp.GradScaler and its kernels amp_update_scale and
 * amp_non_finite_check_and_unscale; differences are marked where they are.
 *
 * The traps: the product scale * factor is rounded once, from double; growth never makes the scale
 * infinite; the floor and the cap are applied after the rounding. */
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
    TRY(mpri_scaler_validate(&o, sc->scale, err));
    sc->o = o;
    return MPR_OK;
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
    s->children--;
    mpri_free(&s->ctx->alloc, sc->entries);
    mpri_handle_end(&sc->h);
    mpri_free(&s->ctx->alloc, sc);
}

bool mpri_scaler_enabled(const mpr_scaler *sc)
{
    return !sc->o.disabled;
}

float mpri_scaler_begin(mpr_scaler *sc)
{
    sc->started = true;
    return sc->o.disabled ? 1 : sc->scale;
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
        if (e) *e = sc->entries[--sc->n_entries];
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

mpr_status mpri_scaler_check_add(mpr_session *s, const SessionParam *p, Err *err)
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

/* What the device found, and for a skip which gradient it was. */
static mpr_status read_flag(mpr_scaler *sc, ScalerEntry *e, Err *err)
{
    if (!e->pending) return MPR_OK;
    TRY(mpri_optimizer_found(e->opt, &e->found, err));
    e->pending = false;
    if (e->stepped) e->last = e->found ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED;
    if (!e->found) return MPR_OK;
    sc->searched = false;
    sc->advice[0] = 0;
    if (!mpri_session_first_bad_gradient(sc->s, sc->first_bad, sizeof(sc->first_bad)))
        strcpy(sc->first_bad, "a gradient overflowed when it was unscaled");
    return MPR_OK;
}

bool mpri_scaler_found(mpr_session *s, mpr_optimizer *opt)
{
    for (mpr_scaler *sc = s->scalers; sc; sc = sc->next) {
        ScalerEntry *e = find_entry(sc, opt);
        Err err;
        mpri_err_clear(&err);
        if (e && e->checked && read_flag(sc, e, &err) == MPR_OK && e->found) return true;
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

static mpr_status unscale(mpr_scaler *sc, ScalerEntry *e, Err *err)
{
    float scale = sc->extra > 0 ? (float)((double)sc->scale / sc->extra) : sc->scale;
    sc->extra = 0;
    bool checked = false;
    TRY(mpri_optimizer_unscale(e->opt, scale, &checked, err));
    if (checked) e->checked = e->pending = true;
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
    e->checked = e->found = true;
    e->pending = false;
    return mpri_optimizer_flag(opt, true, err);
}

static mpr_status step_disabled(mpr_optimizer *opt, mpr_step_outcome *outcome, Err *err)
{
    bool present = mpri_optimizer_any_present(opt);
    if (present) {
        TRY(mpri_optimizer_flag(opt, false, err));
        TRY(mpri_optimizer_apply(opt, err));
    }
    if (outcome) *outcome = present ? MPR_STEP_UPDATED : MPR_STEP_NOTHING;
    return MPR_OK;
}

mpr_status mpri_scaler_step(mpr_scaler *sc, mpr_optimizer *opt, mpr_step_outcome *outcome, Err *err)
{
    if (sc->o.disabled) return step_disabled(opt, outcome, err);
    ScalerEntry *e;
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
    e->last = !e->checked ? MPR_STEP_NOTHING : e->found ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED;
    return outcome ? mpri_scaler_outcome(sc, opt, outcome, err) : MPR_OK;
}

mpr_status mpri_scaler_outcome(mpr_scaler *sc, mpr_optimizer *opt, mpr_step_outcome *outcome,
                               Err *err)
{
    ScalerEntry *e = find_entry(sc, opt);
    if (!e || !e->stepped)
        return order(err, "there is no outcome: this optimizer was not stepped by this scaler",
                     "call mpr_scaler_step first");
    TRY(read_flag(sc, e, err));
    *outcome = e->last;
    return MPR_OK;
}

/* ---- update ---- */

static void next_window(mpr_scaler *sc)
{
    for (int i = 0; i < sc->n_entries; i++) {
        ScalerEntry *e = &sc->entries[i];
        e->stage = OPT_READY;
        e->checked = e->found = false; /* the outcome may still be asked for */
    }
    sc->generation++;
    sc->s->generation++;
}

static void back_off(mpr_scaler *sc)
{
    sc->tracker = 0;
    sc->skips_in_row++;
    sc->skips++;
    if (sc->hysteresis_left > 0) sc->hysteresis_left--;
    if (sc->hysteresis_left > 0 || sc->o.constant) return;
    float lower = (float)((double)sc->scale * sc->o.backoff_factor);
    if (lower < sc->o.min_scale) lower = sc->o.min_scale;
    if (lower == sc->scale) return;
    if (sc->n_history == SCALER_HISTORY)
        memmove(sc->history, sc->history + 1, sizeof(float) * --sc->n_history);
    sc->history[sc->n_history++] = sc->scale;
    sc->scale = lower;
}

static void grow(mpr_scaler *sc)
{
    sc->first_bad[0] = sc->advice[0] = 0;
    sc->searched = false;
    sc->skips_in_row = 0;
    sc->updates++;
    if (++sc->tracker < sc->o.growth_interval) return;
    float higher = (float)((double)sc->scale * sc->o.growth_factor);
    if (isfinite(higher) && !sc->o.constant)
        sc->scale = higher < sc->o.max_scale ? higher : sc->o.max_scale;
    sc->tracker = 0;
    sc->hysteresis_left = sc->o.hysteresis;
}

/* The manual loop has not looked for the culprit yet; the last batch is still bound. */
static void search(mpr_scaler *sc)
{
    NonFinite found;
    mpr_session *s = sc->s;
    if (sc->searched || !s->forward_count ||
        !mpri_forensics_find(s, s->forward_count - 1, true, &found))
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

mpr_status mpri_scaler_update(mpr_scaler *sc, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    TRY(need_start(sc, "update", err));
    bool checked = false, found = false, idle = true;
    for (int i = 0; i < sc->n_entries; i++) {
        TRY(read_flag(sc, &sc->entries[i], err));
        checked |= sc->entries[i].checked;
        found |= sc->entries[i].checked && sc->entries[i].found;
        idle &= sc->entries[i].stage == OPT_READY;
    }
    if (!checked && idle)
        return order(err, "update without an unscale or step since the last one",
                     "call mpr_scaler_step before mpr_scaler_update");
    if (!checked) sc->empty++;
    else if (found) back_off(sc);
    else grow(sc);
    next_window(sc);
    if (found && sc->o.max_consecutive_skips && sc->skips_in_row >= sc->o.max_consecutive_skips)
        return diverged(sc, err);
    return MPR_OK;
}

mpr_status mpri_scaler_update_to(mpr_scaler *sc, float scale, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    TRY(need_start(sc, "update", err));
    TRY(mpri_scaler_validate(&sc->o, scale, err));
    sc->scale = scale;
    next_window(sc);
    return MPR_OK;
}

mpr_status mpri_scaler_abandon(mpr_scaler *sc, Err *err)
{
    (void)err;
    next_window(sc);
    return MPR_OK;
}

void mpri_scaler_state(const mpr_scaler *sc, mpr_scaler_state *out)
{
    size_t size = out->size;
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
}
