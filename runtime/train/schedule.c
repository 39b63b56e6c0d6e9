/* The schedules of Hugging Face's get_scheduler, with its defaults: cosine over half a wave, one
 * cycle with restarts, polynomial of power 1 down to 1e-7, inverse square root with the warm-up as
 * time scale. */
#include "runtime/train/schedule.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[SCHEDULE_KINDS] = {
    [SCHEDULE_LINEAR] = "linear",
    [SCHEDULE_COSINE] = "cosine",
    [SCHEDULE_COSINE_RESTARTS] = "cosine_with_restarts",
    [SCHEDULE_POLYNOMIAL] = "polynomial",
    [SCHEDULE_CONSTANT] = "constant",
    [SCHEDULE_CONSTANT_WARMUP] = "constant_with_warmup",
    [SCHEDULE_INVERSE_SQRT] = "inverse_sqrt",
    [SCHEDULE_PLATEAU] = "reduce_lr_on_plateau",
};

static mpr_status parse_kind(const char *type, ScheduleKind *out, Err *err)
{
    for (int k = 0; k < SCHEDULE_KINDS; k++)
        if (!strcmp(type, kind_names[k])) {
            *out = (ScheduleKind)k;
            return MPR_OK;
        }
    const char *near = mpri_nearest(type, kind_names, SCHEDULE_KINDS);
    mpri_err_set(err, MPR_E_USAGE,
                 "schedule '%s' is unknown; allowed are linear, cosine, cosine_with_restarts, "
                 "polynomial, constant, "
                 "constant_with_warmup, inverse_sqrt, reduce_lr_on_plateau",
                 mpri_err_name(type));
    return near ? mpri_err_advice(err, "did you mean '%s'?", near)
                : mpri_err_advice(err, "linear is the default");
}

mpr_status mpri_schedule_create(mpr_session *s, const mpr_schedule_options *options,
                                mpr_schedule **out, Err *err)
{
    *out = NULL;
    mpr_schedule_options o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_schedule_options", err));
    ScheduleKind kind = SCHEDULE_LINEAR;
    TRY(parse_kind(o.type && *o.type ? o.type : "linear", &kind, err));
    if (!(o.warmup_steps >= 0) || !isfinite(o.warmup_steps) || o.total_steps < 0) {
        mpri_err_set(err, MPR_E_USAGE,
                     "schedule: warmup_steps is %g and total_steps %lld; both must be >= 0",
                     o.warmup_steps, (long long)o.total_steps);
        return mpri_err_advice(err, "a warmup_steps below 1 is a share of total_steps");
    }
    mpr_schedule *p = CONTEXT_NEW(s->ctx, mpr_schedule);
    if (!p) return mpri_err_nomem(err, sizeof(*p));
    mpri_handle_init(&p->h, HANDLE_SCHEDULE, &s->h);
    p->s = s;
    p->kind = kind;
    p->total = (double)o.total_steps;
    p->warmup = o.warmup_steps >= 1 ? floor(o.warmup_steps) : ceil(o.warmup_steps * p->total);
    p->base = o.learning_rate > 0 ? o.learning_rate : 5e-5;
    p->plateau.factor = 1;
    s->children++;
    *out = p;
    return MPR_OK;
}

void mpri_schedule_destroy(mpr_schedule *p)
{
    if (!p) return;
    mpr_session *s = p->s;
    s->children--;
    mpri_handle_end(&p->h);
    mpri_free(&s->ctx->alloc, p);
}

static double at_least(double v, double low)
{
    return v > low ? v : low;
}

double mpri_schedule_factor(const mpr_schedule *p, int64_t updates)
{
    double t = (double)updates;
    if (p->kind == SCHEDULE_CONSTANT) return 1;
    if (p->kind == SCHEDULE_PLATEAU) return p->plateau.factor;
    if (t < p->warmup) return t / at_least(p->warmup, 1);
    double progress = (t - p->warmup) / at_least(p->total - p->warmup, 1);
    switch (p->kind) {
    case SCHEDULE_COSINE: return at_least(0.5 * (1 + cos(M_PI * progress)), 0);
    case SCHEDULE_COSINE_RESTARTS:
        return progress >= 1 ? 0 : at_least(0.5 * (1 + cos(M_PI * fmod(progress, 1))), 0);
    case SCHEDULE_POLYNOMIAL: {
        double end = 1e-7;
        if (t > p->total) return end / p->base;
        return ((p->base - end) * (1 - (t - p->warmup) / (p->total - p->warmup)) + end) / p->base;
    }
    case SCHEDULE_CONSTANT_WARMUP: return 1;
    case SCHEDULE_INVERSE_SQRT: {
        double scale = p->warmup > 0 ? p->warmup : 10000;
        return 1 / sqrt((t + scale - p->warmup) / scale);
    }
    default: return at_least((p->total - t) / at_least(p->total - p->warmup, 1), 0);
    }
}

void mpri_schedule_metric(mpr_schedule *p, double metric, bool greater)
{
    if (p->kind != SCHEDULE_PLATEAU) return;
    Plateau *q = &p->plateau;
    double m = greater ? -metric : metric;
    double best = greater ? -q->best : q->best;
    if (!q->seen || m < best - fabs(best) * 1e-4) {
        q->best = metric;
        q->seen = true;
        q->bad = 0;
        return;
    }
    if (++q->bad <= 10) return;
    q->factor *= 0.1;
    q->bad = 0;
}
