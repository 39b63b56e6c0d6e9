/* The loop of Hugging Face Accelerate, with its holes closed: a window that ends early divides by
 * its real length, a skipped step is visible on every path, and the schedule follows real
 * updates. */
#include "runtime/train/prepare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/forensics.h"

/* Without scaling a constant scale of 1: gradients are checked and skips counted in every
 * precision. */
static mpr_scaler_options scaler_options(const mpr_session *s, const mpr_prepare_options *o)
{
    if (o->scaler) return mpri_scaler_fill(o->scaler);
    mpr_scaler_options so = {.size = sizeof(so)};
    if (s->o.autocast != MPR_FLOAT16) {
        so.constant = true;
        so.init_scale = 1;
    }
    return mpri_scaler_fill(&so);
}

/* A mean over the labels of a window needs their number, and a scaler that takes part. */
static mpr_status check_mean(const mpr_session *s, const mpr_prepare_options *o,
                             const mpr_scaler_options *scaler, Err *err)
{
    if (!o->mean_over_labels) return MPR_OK;
    if (scaler->disabled) {
        mpri_err_set(err, MPR_E_USAGE, "mean_over_labels together with a disabled scaler");
        return mpri_err_advice(err, "use a constant scale of 1");
    }
    if (s->o.count_labels || strncmp(s->loss, "output:", 7)) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "mean_over_labels: the loss '%s' is the model's own, and the "
                 "session does not count its labels", mpri_err_name(s->loss + 7));
    return mpri_err_advice(err, "open the session with count_labels");
}

mpr_status mpri_prepare(mpr_session *s, mpr_optimizer *opt, mpr_dataset *data,
                        mpr_schedule *schedule, const mpr_prepare_options *options,
                        mpr_prepared **out, Err *err)
{
    *out = NULL;
    mpr_prepare_options o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_prepare_options", err));
    if (!o.gradient_accumulation_steps) o.gradient_accumulation_steps = 1;
    if (o.gradient_accumulation_steps < 1 || !(o.max_grad_norm >= 0) || o.epochs < 0) {
        mpri_err_set(err, MPR_E_USAGE,
                     "prepare: gradient_accumulation_steps %d, max_grad_norm %g, epochs %lld",
                     o.gradient_accumulation_steps, (double)o.max_grad_norm, (long long)o.epochs);
        return mpri_err_advice(err, "steps must be >= 1, the others >= 0");
    }
    if (!s->loss) {
        mpri_err_set(err, MPR_E_USAGE, "the session has no loss to train");
        return mpri_err_advice(err, "open the session with a loss");
    }
    mpr_prepared *p = CONTEXT_NEW(s->ctx, mpr_prepared);
    if (!p) return mpri_err_nomem(err, sizeof(*p));
    mpri_handle_init(&p->h, HANDLE_PREPARED, &s->h);
    s->children++;
    p->s = s;
    p->opt = opt;
    p->data = data;
    p->schedule = schedule;
    p->o = o;
    p->base_rate = mpri_optimizer_rate(opt);
    mpr_scaler_options so = scaler_options(s, &o);
    p->o.scaler = NULL;
    mpr_status status = check_mean(s, &o, &so, err);
    s->window_elsewhere = data != NULL;
    if (status == MPR_OK) status = mpri_scaler_create(s, &so, &p->scaler, err);
    if (status != MPR_OK) {
        mpri_prepared_destroy(p);
        return status;
    }
    p->scaler->waits = true; /* close_window reads its numbers anyway */
    if (s->device->late_copy) s->h.settle = mpri_session_settle;
    *out = p;
    return MPR_OK;
}

void mpri_prepared_destroy(mpr_prepared *p)
{
    if (!p) return;
    mpr_session *s = p->s;
    Err why;
    mpri_err_clear(&why);
    p->sink = (PreparedSink){.user = NULL};
    if (mpri_prepared_settle(p, &why) != MPR_OK)
        mpri_log(&s->ctx->log, MPR_LOG_WARNING, "the last steps of the training: %s", why.message);
    mpri_late_free(p);
    mpri_scaler_destroy(p->scaler);
    s->window_elsewhere = false;
    s->children--;
    mpri_handle_end(&p->h);
    mpri_free(&s->ctx->alloc, p);
}

static void open_window(mpr_prepared *p)
{
    p->length = p->o.gradient_accumulation_steps;
    p->micro = 0;
    p->loss_sum = p->weight = p->labels = 0;
    p->loss_bad = false;
    if (p->data) {
        int64_t left = mpri_dataset_batches(p->data) - p->batch;
        if (left < p->length) p->length = (int)left;
    }
    p->divisor = p->length;
}

/* Weight of the micro-batch that went forward: with mean_over_labels its labels, in units of the
 * first micro-batch's, so that equal numbers give the bits of the plain mean. */
static mpr_status weigh(mpr_prepared *p, double *weight, Err *err)
{
    double labels;
    *weight = 1;
    if (!p->o.mean_over_labels) return MPR_OK;
    TRY(mpri_session_label_count(p->s, &labels, err));
    if (p->labels == 0) p->labels = labels;
    *weight = labels > 0 ? labels / p->labels : 0;
    return MPR_OK;
}

mpr_status mpri_prepared_next(mpr_prepared *p, bool *more, Err *err)
{
    *more = false;
    if (!p->data) {
        mpri_err_set(err, MPR_E_USAGE, "there is no data set to take the next batch from");
        return mpri_err_advice(err, "pass one to mpr_prepare, or bind the batches yourself");
    }
    if (p->s->late && p->s->late != p) TRY(mpri_prepared_settle(p->s->late, err));
    if (p->batch >= mpri_dataset_batches(p->data)) {
        if (p->o.epochs && p->epoch + 1 >= p->o.epochs) TRY(mpri_prepared_settle(p, err));
        p->epoch++;
        p->batch = 0;
    }
    if (p->o.epochs && p->epoch >= p->o.epochs) return MPR_OK;
    TRY(mpri_dataset_bind(p->data, p->epoch, p->batch, &p->bound_rows, err));
    p->bound = true;
    *more = true;
    return MPR_OK;
}

/* One more skip reaches the limit. */
static bool ends_run(const mpr_prepared *p)
{
    const mpr_scaler *sc = p->scaler;
    return sc->o.max_consecutive_skips && sc->skips_in_row + 1 >= sc->o.max_consecutive_skips;
}

/* The text begins with the number of the micro-batch unless there is only one. */
static void tell(mpr_prepared *p, const NonFinite *found)
{
    mpr_scaler *sc = p->scaler;
    snprintf(p->first_bad, sizeof(p->first_bad), "%s", found->text);
    snprintf(sc->advice, sizeof(sc->advice), "%s", found->advice);
    sc->searched = true;
}

/* The loss of the last micro-batch is not finite: at once, but only for the first of several bad
 * steps in a row and for the last. */
static void look_at_loss(mpr_prepared *p, float loss)
{
    char text[32];
    NonFinite found;
    p->loss_bad = true;
    snprintf(p->first_bad, sizeof(p->first_bad), "the loss is %s", mpri_print_f32(text, loss));
    if ((!p->scaler->skips_in_row || ends_run(p)) &&
        mpri_forensics_find(p->s, p->s->forward_count - 1, false, &found)) {
        mpri_forensics_number(&found, p->micro + 1, p->length);
        tell(p, &found);
    }
}

mpr_status mpri_prepared_backward(mpr_prepared *p, float *loss, Err *err)
{
    if (p->data && !p->bound) {
        mpri_err_set(err, MPR_E_ORDER, "backward without a new batch");
        return mpri_err_advice(err, "call mpr_prepared_next before each backward");
    }
    if (p->length && p->micro >= p->length) {
        mpri_err_set(err, MPR_E_ORDER, "the window of %d micro-batches is full", p->length);
        return mpri_err_advice(err, "call mpr_prepared_step after each backward");
    }
    if (p->micro && loss) TRY(mpri_prepared_settle(p, err));
    if (!p->micro) TRY(mpri_late_begin(p, loss != NULL, err));
    if (!p->length) open_window(p);
    bool late = p->late.open, bad = false;
    if (late) TRY(mpri_late_keep(p, err));
    float value = 0;
    double weight;
    TRY(mpri_session_forward(p->s, late ? NULL : &value, err));
    TRY(weigh(p, &weight, err));
    if (late) TRY(mpri_late_loss(p, weight, err));
    /* without labels the gradient is zero, whatever it is divided by */
    p->s->loss_divisor = (float)(weight > 0 ? p->divisor / weight : p->divisor);
    mpr_status status = mpri_session_backward(p->s, p->scaler, err);
    p->s->loss_divisor = 1;
    TRY(status);
    bad = !isfinite(value) && weight > 0 && !p->loss_bad;
    if (bad) look_at_loss(p, value);
    if (weight > 0) p->loss_sum += weight * (double)value;
    p->weight += weight;
    p->micro++;
    p->batch++;
    p->samples += p->bound_rows;
    p->bound = false;
    if (loss) *loss = value;
    return bad && p->sink.bad_loss ? p->sink.bad_loss(p->sink.user, err) : MPR_OK;
}

void mpri_prepared_close_window(mpr_prepared *p)
{
    if (p->length && p->micro && p->micro < p->length) p->length = p->micro;
}

/* Micro-batch i of the window once more. False: it is finite, or cannot be run again. */
static bool search_micro(mpr_prepared *p, int i, NonFinite *found)
{
    mpr_session *s = p->s;
    Err quiet;
    mpri_err_clear(&quiet);
    if (p->micro > 1 &&
        mpri_dataset_bind(p->data, p->epoch, p->batch - p->micro + i, NULL, &quiet) != MPR_OK)
        return false;
    return mpri_forensics_micro(s, s->forward_count - (uint64_t)(p->micro - i), i + 1, p->length,
                                found);
}

/* Name the culprit of a window that was skipped. The search for the start-up scale is no news, nor
 * are further skips in a row: there the gradient is named that is not finite. */
static void find_bad(mpr_prepared *p)
{
    mpr_scaler *sc = p->scaler;
    NonFinite found;
    if (p->loss_bad) return;
    snprintf(p->first_bad, sizeof(p->first_bad), "%s", sc->first_bad);
    bool news = !sc->skips_in_row && (p->updates || sc->o.constant);
    if (!news && !ends_run(p)) return;
    bool bad = !p->data && mpri_forensics_window(p->s, &found);
    for (int i = 0; p->data && i < p->micro && !bad; i++) bad = search_micro(p, i, &found);
    if (bad) {
        tell(p, &found);
        return;
    }
    if (p->micro > 1)
        snprintf(p->first_bad, sizeof(p->first_bad),
                 "%.1200s; each of the %d micro-batches is finite by itself", sc->first_bad,
                 p->micro);
}

/* The mean of the window, and what turns the sum of its gradients into that of this mean. */
static float take_mean(mpr_prepared *p)
{
    if (p->weight > 0) {
        p->scaler->extra = p->divisor / p->weight;
        return (float)(p->loss_sum / p->weight);
    }
    p->loss_bad = true;
    snprintf(p->first_bad, sizeof(p->first_bad), "no label of the window counts");
    return NAN;
}

mpr_status mpri_prepared_tell(mpr_prepared *p, int64_t step, const mpr_step_result *r,
                              mpr_status status, Err *err)
{
    p->last = *r;
    return p->sink.stepped ? p->sink.stepped(p->sink.user, step, r, status, err) : status;
}

static mpr_status close_window(mpr_prepared *p, mpr_step_result *r, Err *err)
{
    mpr_scaler *sc = p->scaler;
    p->late.fresh = false;
    TRY(mpri_scaler_read(sc, err));
    double factor = p->schedule ? mpri_schedule_factor(p->schedule, p->updates) : 1;
    r->learning_rate = p->base_rate * factor;
    r->scale = sc->o.disabled ? 1 : sc->scale;
    r->loss = take_mean(p);
    TRY(mpri_optimizer_set_rate(p->opt, r->learning_rate, err));
    TRY(mpri_scaler_unscale(sc, p->opt, err));
    TRY(mpri_optimizer_clip(p->opt, p->o.max_grad_norm, &r->grad_norm, err));
    if (p->loss_bad) TRY(mpri_scaler_poison(sc, p->opt, err));
    TRY(mpri_scaler_step(sc, p->opt, &r->outcome, err));
    if (r->outcome == MPR_STEP_SKIPPED) {
        find_bad(p);
        snprintf(sc->first_bad, sizeof(sc->first_bad), "%s", p->first_bad);
        r->first_bad = p->first_bad;
    }
    mpr_status status = mpri_scaler_update(sc, err);
    if (status == MPR_OK) status = mpri_scaler_read(sc, err); /* result and log tell its numbers */
    p->steps++;
    if (r->outcome == MPR_STEP_UPDATED) p->updates++;
    p->length = p->micro = 0;
    mpr_status zeroed = mpri_session_zero_grad(p->s, err);
    return status != MPR_OK ? status : zeroed;
}

mpr_status mpri_prepared_step(mpr_prepared *p, mpr_step_result *result, Err *err)
{
    if (!p->micro) {
        mpri_err_set(err, MPR_E_ORDER, "step without a backward before it");
        return mpri_err_advice(err, "call mpr_prepared_next and mpr_prepared_backward first");
    }
    mpr_step_result r = {.outcome = MPR_STEP_NOTHING};
    mpr_status status = MPR_OK;
    bool done = false;
    if (p->late.open && p->micro == p->length)
        status = mpri_late_step(p, result, &done, err);
    else if (p->late.open && result)
        status = mpri_prepared_settle(p, err);
    if (done || status != MPR_OK) return status;
    if (p->micro < p->length) {
        r.window_open = true;
        r.loss = (float)(p->loss_sum / p->weight);
    } else {
        status = close_window(p, &r, err);
        if (status == MPR_OK || status == MPR_E_NONFINITE)
            status = mpri_prepared_tell(p, p->steps, &r, status, err);
    }
    if (result) *result = r;
    return status;
}
