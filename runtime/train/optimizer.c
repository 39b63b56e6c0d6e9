/* Optimizers as objects: which parameters they own, with which rate and decay, and when they may
 * run. The arithmetic is in the kernels of the update family. */
#include "runtime/train/optimizer.h"

#include <math.h>
#include <string.h>

#include "kernels/update_rule.h"
#include "runtime/train/scaler.h"

/* ---- making one ---- */

typedef struct OptimizerSetup { /* what both kinds have in common */
    double rate, decay;
    bool no_decay_rank01;
    const mpr_param_group *groups;
    int n_groups;
    const char *const *globs;
} OptimizerSetup;

static mpr_status bad_number(Err *err, const char *name, double value, const char *allowed)
{
    char text[32];
    mpri_err_set(err, MPR_E_USAGE, "optimizer: %s is %s; allowed: %s", name,
                 mpri_print_f64(text, value), allowed);
    return mpri_err_advice(
        err, "the usual values are learning_rate 1e-3, beta1 0.9, beta2 0.999, epsilon 1e-8");
}

static mpr_status check_rate(const char *name, double v, Err *err)
{
    return v >= 0 && isfinite(v) ? MPR_OK : bad_number(err, name, v, "finite and >= 0");
}

static bool owns(const SessionParam *p, const char *const *globs)
{
    if (!globs) return true;
    for (; *globs; globs++)
        if (mpri_glob(*globs, p->name) || mpri_glob(*globs, p->public_name)) return true;
    return false;
}

static mpr_status check_globs(const mpr_session *s, const char *const *globs, Err *err)
{
    for (; globs && *globs; globs++) {
        const char *const one[2] = {*globs, NULL};
        bool hit = false;
        for (int i = 0; i < s->n_params && !hit; i++) hit = owns(&s->params[i], one);
        if (hit) continue;
        mpri_err_set(err, MPR_E_USAGE, "optimizer: '%s' matches none of the %d trained parameters",
                     mpri_err_name(*globs), s->n_params);
        return mpri_err_advice(err, "list the parameters with mpr-inspect --params");
    }
    return MPR_OK;
}

/* Without a base decay the groups' own values stand for themselves. */
static void apply_group(OptimizerParam *op, const OptimizerSetup *u)
{
    double base = u->decay > 0 ? u->decay : 1;
    op->rate_ratio = 1;
    op->decay_ratio = u->decay > 0 ? 1 : 0;
    for (int g = 0; g < u->n_groups; g++) {
        const mpr_param_group *group = &u->groups[g];
        if (!mpri_glob(group->glob, op->p->name) && !mpri_glob(group->glob, op->p->public_name))
            continue;
        op->rate_ratio = (float)(group->learning_rate / u->rate);
        op->decay_ratio = (float)(group->weight_decay / base);
        return;
    }
    if (u->no_decay_rank01 && op->p->shape.rank < 2) op->decay_ratio = 0;
}

static mpr_status take_params(mpr_optimizer *opt, const OptimizerSetup *u, Err *err)
{
    mpr_session *s = opt->s;
    TRY(check_rate("learning_rate", u->rate, err));
    TRY(check_rate("weight_decay", u->decay, err));
    TRY(check_globs(s, u->globs, err));
    for (int g = 0; g < u->n_groups; g++) {
        const char *const one[2] = {u->groups[g].glob, NULL};
        TRY(mpri_api_pointer(one[0], "groups[].glob", err));
        TRY(check_globs(s, one, err));
        TRY(check_rate("learning_rate of a group", u->groups[g].learning_rate, err));
        TRY(check_rate("weight_decay of a group", u->groups[g].weight_decay, err));
    }
    if (u->n_groups && u->rate == 0)
        return bad_number(err, "learning_rate", 0,
                          "> 0 when there are groups, which keep their ratio to it");
    for (int i = 0; i < s->n_params; i++) {
        if (!owns(&s->params[i], u->globs) || !s->params[i].owner) continue;
        mpri_err_set(err, MPR_E_USAGE, "parameter '%s' belongs to another optimizer already (%s)",
                     mpri_err_name(s->params[i].public_name),
                     mpri_optimizer_name(s->params[i].owner));
        return mpri_err_advice(err,
                               "give each optimizer its own parameters, or destroy the other one");
    }
    opt->params = ARENA_ARRAY(&opt->arena, OptimizerParam, s->n_params + 1);
    opt->planned = ARENA_ARRAY(&opt->arena, bool, s->n_params + 1);
    if (!opt->params || !opt->planned) return mpri_err_nomem(err, 0);
    for (int i = 0; i < s->n_params; i++) {
        if (!owns(&s->params[i], u->globs)) continue;
        OptimizerParam *op = &opt->params[opt->n_params++];
        op->p = &s->params[i];
        apply_group(op, u);
        op->p->owner = opt;
    }
    opt->rate = u->rate;
    opt->decay = u->decay > 0 ? u->decay : 1;
    return MPR_OK;
}

/* model: kind and numbers, the rest is filled in. */
static mpr_status make(mpr_session *s, const mpr_optimizer *model, const OptimizerSetup *u,
                       mpr_optimizer **out, Err *err)
{
    mpr_optimizer *opt = CONTEXT_NEW(s->ctx, mpr_optimizer);
    if (!opt) return mpri_err_nomem(err, sizeof(*opt));
    *opt = *model;
    mpri_handle_init(&opt->h, HANDLE_OPTIMIZER, &s->h);
    mpri_arena_init(&opt->arena, &s->ctx->alloc, 0);
    opt->s = s;
    s->children++;
    mpr_status status = take_params(opt, u, err);
    if (status == MPR_OK) status = mpri_optimizer_make_slots(opt, err);
    if (status != MPR_OK) {
        mpri_optimizer_destroy(opt);
        return status;
    }
    *out = opt;
    return MPR_OK;
}

mpr_status mpri_optimizer_adamw(mpr_session *s, const mpr_adamw *options, mpr_optimizer **out,
                                Err *err)
{
    *out = NULL;
    mpr_adamw o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_adamw", err));
    if (!o.zero_is_zero) {
        if (o.learning_rate == 0) o.learning_rate = 1e-3;
        if (o.beta1 == 0) o.beta1 = 0.9;
        if (o.beta2 == 0) o.beta2 = 0.999;
        if (o.epsilon == 0) o.epsilon = 1e-8;
    }
    if (!(o.beta1 >= 0 && o.beta1 < 1)) return bad_number(err, "beta1", o.beta1, "0 <= beta1 < 1");
    if (!(o.beta2 >= 0 && o.beta2 < 1)) return bad_number(err, "beta2", o.beta2, "0 <= beta2 < 1");
    TRY(check_rate("epsilon", o.epsilon, err));
    mpr_optimizer model = {
        .kind = OPTIMIZER_ADAM,
        .factors = {o.beta1, o.beta2, o.epsilon},
        .decoupled = !o.l2,
    };
    OptimizerSetup u = {
        o.learning_rate, o.weight_decay, o.no_decay_rank01, o.groups, o.groups ? o.group_count : 0,
        o.parameters};
    return make(s, &model, &u, out, err);
}

mpr_status mpri_optimizer_sgd(mpr_session *s, const mpr_sgd *options, mpr_optimizer **out, Err *err)
{
    *out = NULL;
    mpr_sgd o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_sgd", err));
    if (!(o.momentum >= 0 && o.momentum < 1))
        return bad_number(err, "momentum", o.momentum, "0 <= momentum < 1");
    if (o.nesterov && o.momentum == 0) return bad_number(err, "momentum", 0, "> 0 with nesterov");
    mpr_optimizer model = {.kind = OPTIMIZER_SGD, .factors = {o.momentum}, .nesterov = o.nesterov};
    OptimizerSetup u = {
        o.learning_rate, o.weight_decay, o.no_decay_rank01, o.groups, o.groups ? o.group_count : 0,
        o.parameters};
    return make(s, &model, &u, out, err);
}

void mpri_optimizer_destroy(mpr_optimizer *opt)
{
    if (!opt) return;
    mpr_session *s = opt->s;
    Err quiet;
    mpri_err_clear(&quiet);
    (void)mpri_optimizer_settle(opt, &quiet); /* who owns the gradients' factors goes */
    mpri_optimizer_plans_free(opt);
    mpri_scaler_forget(s, opt);
    for (int i = 0; i < opt->n_params; i++) opt->params[i].p->owner = NULL;
    s->children--;
    mpri_arena_destroy(&opt->arena);
    mpri_handle_end(&opt->h);
    mpri_free(&s->ctx->alloc, opt);
}

const char *mpri_optimizer_name(const mpr_optimizer *opt)
{
    return opt->kind == OPTIMIZER_SGD ? "sgd" : opt->decoupled ? "adamw" : "adam";
}

mpr_status mpri_optimizer_set_rate(mpr_optimizer *opt, double rate, Err *err)
{
    TRY(check_rate("learning_rate", rate, err));
    opt->rate = rate;
    return MPR_OK;
}

double mpri_optimizer_rate(const mpr_optimizer *opt)
{
    return opt->rate;
}

int mpri_optimizer_slots(const mpr_optimizer *opt, Arena *arena, const char *const **names,
                         Err *err)
{
    const char **list = ARENA_ARRAY(arena, const char *, 2 * opt->n_params + 2);
    int n = 0;
    if (!list) {
        (void)!mpri_err_nomem(err, 0);
        return -1;
    }
    list[n++] = opt->state.name;
    for (int i = 0; i < opt->n_params; i++)
        for (int k = 0; k < 2; k++)
            if (opt->params[i].moment[k]) list[n++] = opt->params[i].moment[k];
    *names = list;
    return n;
}

/* ---- its gradients ---- */

bool mpri_optimizer_any_present(const mpr_optimizer *opt)
{
    for (int i = 0; i < opt->n_params; i++)
        if (opt->params[i].p->present) return true;
    return false;
}

bool mpri_optimizer_any_scaled(const mpr_optimizer *opt)
{
    for (int i = 0; i < opt->n_params; i++)
        if (opt->params[i].p->present && opt->params[i].p->scaled) return true;
    return false;
}

mpr_status mpri_optimizer_check_generation(const mpr_optimizer *opt, Err *err)
{
    for (int i = 0; i < opt->n_params; i++) {
        const SessionParam *p = opt->params[i].p;
        if (!p->present || p->generation == opt->s->generation) continue;
        mpri_err_set(err, MPR_E_ORDER,
                     "gradient of '%s' was written before the last update of the loss scale",
                     mpri_err_name(p->public_name));
        return mpri_err_advice(
            err, "call mpr_session_zero_grad after each update, then run backward again");
    }
    return MPR_OK;
}

/* Gradient buffers are f32: anything else in the store is refused with the parameter's name. */
static mpr_status check_types(const mpr_optimizer *opt, Err *err)
{
    for (int i = 0; i < opt->n_params; i++) {
        const SessionParam *p = opt->params[i].p;
        const StoreSlot *slot = p->present ? mpri_store_find(&opt->s->store, p->grad_slot) : NULL;
        if (!slot || slot->dtype == MPR_FLOAT32) continue;
        mpri_err_set(err, MPR_E_TYPE,
                     "attempting to unscale the %s gradient of '%s'; gradients must be float32",
                     mpri_dtype_long(slot->dtype), mpri_err_name(p->public_name));
        return mpri_err_advice(err, "keep FP32 master weights");
    }
    return MPR_OK;
}

/* ---- running ---- */

static mpr_status put(mpr_optimizer *opt, const StoreSlot *slot, size_t at, const void *value,
                      size_t bytes, Err *err)
{
    Device *d = opt->s->device;
    return d->copy_in(d, (char *)slot->data + at, value, bytes, err);
}

static mpr_status get_state(mpr_optimizer *opt, double state[8], Err *err)
{
    Device *d = opt->s->device;
    return d->copy_out(d, state, opt->state.data, 8 * sizeof(double), err);
}

static mpr_status run(mpr_optimizer *opt, UpdatePart part, Err *err)
{
    Plan *plan;
    TRY(mpri_optimizer_plan(opt, part, &plan, err));
    return mpri_plan_run(plan, -1, 0, 0, err);
}

/* Multiplies by 1/scale, checks, adds the squares up. What was found is read apart:
 * mpri_optimizer_found. */
static mpr_status measure(mpr_optimizer *opt, Err *err)
{
    TRY(mpri_optimizer_settle(opt, err));
    TRY(run(opt, UPDATE_UNSCALE, err));
    opt->kept = opt->s->device->fused_update;
    opt->measured = true;
    return MPR_OK;
}

mpr_status mpri_optimizer_settle(mpr_optimizer *opt, Err *err)
{
    if (!opt->kept) return MPR_OK;
    opt->kept = false;
    return run(opt, UPDATE_SETTLE, err);
}

static mpr_status measure_as_is(mpr_optimizer *opt, Err *err)
{
    const float one = 1;
    TRY(put(opt, &opt->scale, 0, &one, sizeof(one), err));
    return measure(opt, err);
}

mpr_status mpri_optimizer_found(mpr_optimizer *opt, bool *found, Err *err)
{
    double state[8];
    TRY(get_state(opt, state, err));
    *found = state[STATE_FOUND] != 0;
    return MPR_OK;
}

mpr_status mpri_optimizer_skipped(mpr_optimizer *opt, bool *skipped, Err *err)
{
    double state[8];
    TRY(get_state(opt, state, err));
    *skipped = state[STATE_SKIPPED] != 0;
    return MPR_OK;
}

mpr_status mpri_optimizer_flag(mpr_optimizer *opt, bool found, Err *err)
{
    const double flag = found;
    return put(opt, &opt->state, 0, &flag, sizeof(flag), err);
}

mpr_status mpri_optimizer_check_unscale(const mpr_optimizer *opt, Err *err)
{
    TRY(check_types(opt, err));
    return mpri_optimizer_check_generation(opt, err);
}

mpr_status mpri_optimizer_unscale(mpr_optimizer *opt, Err *err)
{
    TRY(mpri_optimizer_flag(opt, false, err));
    TRY(measure(opt, err));
    for (int i = 0; i < opt->n_params; i++) {
        SessionParam *p = opt->params[i].p;
        if (!p->present) continue;
        p->unscaled = true;
        p->scaled = false;
    }
    return MPR_OK;
}

mpr_status mpri_optimizer_clip(mpr_optimizer *opt, float max_norm, float *norm, Err *err)
{
    if (!(max_norm >= 0)) return bad_number(err, "max_norm", max_norm, ">= 0 (0 measures only)");
    TRY(mpri_scaler_check_clip(opt->s, opt, err));
    if (norm) *norm = 0;
    TRY(check_types(opt, err));
    if (!mpri_optimizer_any_present(opt)) return MPR_OK;
    bool current = opt->measured;
    for (int i = 0; i < opt->n_params; i++)
        current &= !opt->params[i].p->present || opt->params[i].p->unscaled;
    if (!current) {
        TRY(measure_as_is(opt, err));
        /* the flag is a scaler's; without one all is clipped as torch clips */
        if (!mpri_scaler_checked(opt->s, opt)) TRY(mpri_optimizer_flag(opt, false, err));
    }
    TRY(put(opt, &opt->max_norm, 0, &max_norm, sizeof(max_norm), err));
    TRY(run(opt, UPDATE_CLIP, err));
    opt->kept = opt->s->device->fused_update; /* gradients that were looked at between are unscaled by now */
    opt->measured = false; /* which a second call sees, and measures anew */
    if (!norm) return MPR_OK;
    double state[8];
    TRY(get_state(opt, state, err));
    *norm = (float)state[STATE_NORM];
    return MPR_OK;
}

mpr_status mpri_optimizer_apply(mpr_optimizer *opt, Err *err)
{
    const double hyper[5] = {opt->rate, opt->decay, opt->factors[0], opt->factors[1],
                             opt->factors[2]};
    int from = opt->rate_there ? HYPER_DECAY : HYPER_RATE;
    TRY(put(opt, &opt->hyper, (size_t)from * sizeof(*hyper), hyper + from,
            sizeof(hyper) - (size_t)from * sizeof(*hyper), err));
    return run(opt, UPDATE_STEP, err);
}

mpr_status mpri_optimizer_step(mpr_optimizer *opt, mpr_step_outcome *outcome, Err *err)
{
    mpr_step_outcome result = MPR_STEP_NOTHING;
    bool found = false;
    if (mpri_optimizer_any_scaled(opt)) {
        mpri_err_set(err, MPR_E_ORDER, "step while the gradients are scaled");
        return mpri_err_advice(err, "use mpr_scaler_step, or unscale before");
    }
    TRY(check_types(opt, err));
    if (mpri_optimizer_any_present(opt)) {
        TRY(mpri_optimizer_flag(opt, false, err));
        TRY(measure_as_is(opt, err));
        TRY(mpri_optimizer_apply(opt, err));
        TRY(mpri_optimizer_found(opt, &found, err));
        result = found ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED;
    }
    if (outcome) *outcome = result;
    return MPR_OK;
}
