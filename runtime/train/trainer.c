/* The training loop. Order at the end of a step, as in transformers' Trainer: count, log, evaluate,
 * save; then the same for the end of the epoch. A step is one window of micro-batches. */
#include "runtime/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/folder.h"
#include "runtime/train/json.h"

double mpri_trainer_epoch(const mpr_trainer *t)
{
    const mpr_prepared *p = t->p;
    return (double)p->epoch + (t->batches ? (double)p->batch / (double)t->batches : 0);
}

static bool finished(const mpr_trainer *t)
{
    return (t->count_updates ? t->p->updates : t->p->steps) >= t->max_steps;
}

static bool due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

/* ---- one step ---- */

/* One micro-batch; *ended when the epoch (of an own data source) is over, *stop when the caller
 * asks. */
static mpr_status next_batch(mpr_trainer *t, bool *ended, Err *err)
{
    *ended = false;
    if (t->train) {
        bool more;
        return mpri_prepared_next(t->p, &more, err);
    }
    int64_t rows = t->call.on_batch(t->call.user, t->s, t->p->epoch, t->p->batch);
    if (rows < 0) t->requests |= MPR_STOP;
    *ended = rows <= 0;
    t->p->bound_rows = rows > 0 ? rows : 0;
    return MPR_OK;
}

/* Told at once, but only for the first of several bad steps in a row. */
static mpr_status tell_forward(void *user, Err *err)
{
    mpr_trainer *t = user;
    if (t->p->scaler->skips_in_row) return MPR_OK;
    mpri_log(&t->ctx->log, MPR_LOG_WARNING, "step %lld: the loss is not finite: %s",
             (long long)t->p->steps + 1, t->p->first_bad);
    Text m;
    mpri_text_init(&m, &t->ctx->alloc);
    mpri_text_put(&m, "\"nonfinite\": ");
    mpri_json_string(&m, t->p->first_bad);
    mpr_status status = m.failed ? mpri_err_nomem(err, 0) : mpri_trainer_log(t, m.text, err);
    mpri_text_free(&m);
    TRY(status);
    if (!mpri_option_is(t->o, OPT_NAN_FORWARD, "stop")) return MPR_OK;
    mpri_err_set(err, MPR_E_NONFINITE, "step %lld: the loss is not finite: %s",
                 (long long)t->p->steps + 1, t->p->first_bad);
    return mpri_err_advice(
        err, "lower the learning rate or look at the data; --nan-forward skip goes on");
}

/* A whole window. *ran is false when the data ended before its first micro-batch. What came of it is told
 * to step_ended. */
static mpr_status run_window(mpr_trainer *t, bool *ran, bool *epoch_over, Err *err)
{
    *ran = *epoch_over = false;
    do {
        bool ended;
        TRY(next_batch(t, &ended, err));
        if (ended) {
            *epoch_over = true;
            if (!t->p->micro) return MPR_OK;
            mpri_prepared_close_window(t->p);
        } else {
            if (!t->p->micro) TRY(mpri_trainer_stats_begin(t, err));
            TRY(mpri_prepared_backward(t->p, NULL, err));
            mpri_trainer_stats_end(t);
            TRY(mpri_trainer_frames(t, err));
        }
        *ran = true;
        TRY(mpri_prepared_step(t->p, NULL, err));
    } while (t->p->micro);
    if (t->train) *epoch_over = t->p->batch >= t->batches;
    return MPR_OK;
}

/* ---- what happens around a step ---- */

/* A save that the disk refuses costs that checkpoint, not the training: the older ones are whole. */
static mpr_status save_on_the_way(mpr_trainer *t, Err *err)
{
    mpr_status status = mpri_trainer_save(t, err);
    if (status != MPR_E_IO) return status;
    mpri_log(&t->ctx->log, MPR_LOG_WARNING, "step %lld: checkpoint not saved, training goes on: %s",
             (long long)t->p->steps, err->message);
    mpri_err_clear(err);
    return MPR_OK;
}

static mpr_status after_save_or_eval(mpr_trainer *t, bool evaluate, bool save, Err *err)
{
    bool improved = false;
    if (evaluate || save) TRY(mpri_prepared_settle(t->p, err));
    if (evaluate) {
        TRY(mpri_trainer_evaluate(t, &improved, err));
        if (mpri_option_is(t->o, OPT_SAVE_STRATEGY, "best")) save |= improved;
        int64_t patience = mpri_option_int(t->o, OPT_PATIENCE, 0);
        if (patience && t->at.bad_evaluations >= patience) {
            mpri_log(&t->ctx->log, MPR_LOG_NOTICE,
                     "early stopping: %lld evaluations without a better %s",
                     (long long)t->at.bad_evaluations, mpri_option_text(t->o, OPT_BEST_METRIC));
            t->requests |= MPR_STOP;
        }
    }
    return save ? save_on_the_way(t, err) : MPR_OK;
}

/* Calm about the scale: the start-up search is one line, later back-offs are a line each. */
static void tell_scale(mpr_trainer *t, int64_t step)
{
    const mpr_prepared *p = t->p;
    const Log *log = &t->ctx->log;
    char now[32], before[32];
    mpri_print_f32(now, p->scaler->scale);
    if (t->last.outcome == MPR_STEP_SKIPPED) {
        if (!p->updates && !p->scaler->o.constant) t->at.calibration++;
        else
            mpri_log(log, MPR_LOG_INFO, "step %lld skipped: %s; loss scale %s -> %s",
                     (long long)step, t->last.first_bad ? t->last.first_bad : "",
                     mpri_print_f32(before, t->last.scale), now);
    } else if (t->at.calibration) {
        mpri_log(log, MPR_LOG_INFO, "loss scale found: %s after %lld skipped steps", now,
                 (long long)t->at.calibration);
        t->at.calibration = 0;
    }
}

static bool log_due(const mpr_trainer *t, int64_t step)
{
    return due(step, mpri_option_int(t->o, OPT_LOGGING_STEPS, 10)) ||
           (step == 1 && mpri_option_flag(t->o, OPT_LOGGING_FIRST));
}

static mpr_status count_step(mpr_trainer *t, int64_t step, Err *err)
{
    t->at.loss_sum += (double)t->last.loss;
    t->at.loss_steps++;
    t->at.loss_total += (double)t->last.loss;
    t->at.total_steps++;
    tell_scale(t, step);
    if (t->call.on_step)
        t->requests |= t->call.on_step(t->call.user, step, t->max_steps, &t->last);
    TRY(mpri_trainer_stats_log(t, err));
    return log_due(t, step) ? mpri_trainer_log_step(t, err) : MPR_OK;
}

/* Told in the order of the steps, of some only after later ones were given: what log lines, evaluation,
 * checkpoints and the end of the run need is settled before. */
static mpr_status step_ended(void *user, int64_t step, const mpr_step_result *r, mpr_status status,
                             Err *err)
{
    mpr_trainer *t = user;
    Err quiet;
    t->last = *r;
    if (status == MPR_OK) return count_step(t, step, err);
    mpri_err_clear(&quiet); /* the last step belongs to the log as well */
    if (count_step(t, step, &quiet) == MPR_OK && t->at.loss_steps)
        (void)!mpri_trainer_log_step(t, &quiet);
    return status;
}

/* Does something that comes now depend on how the last steps went? */
static bool asks(const mpr_trainer *t)
{
    bool exact = t->call.on_step && !t->call.on_step_late;
    bool last = t->count_updates && t->p->updates + t->p->late.n >= t->max_steps;
    return exact || last || log_due(t, t->p->steps);
}

static mpr_status end_step(mpr_trainer *t, Err *err)
{
    t->at.epoch_ended = false;
    if (asks(t)) TRY(mpri_prepared_settle(t->p, err));
    int64_t step = t->p->steps, logging = mpri_option_int(t->o, OPT_LOGGING_STEPS, 10);
    bool steps_eval = mpri_option_is(t->o, OPT_EVAL_STRATEGY, "steps") &&
                      due(step, mpri_option_int(t->o, OPT_EVAL_STEPS, logging));
    bool steps_save = mpri_option_is(t->o, OPT_SAVE_STRATEGY, "steps") &&
                      (due(step, mpri_option_int(t->o, OPT_SAVE_STEPS, 500)) || finished(t));
    int asked = t->requests & (MPR_EVALUATE | MPR_SAVE);
    t->requests &= ~asked;
    return after_save_or_eval(t, steps_eval || (asked & MPR_EVALUATE),
                              steps_save || (asked & MPR_SAVE), err);
}

static mpr_status end_epoch(mpr_trainer *t, Err *err)
{
    if (t->at.epoch_ended) return MPR_OK;
    t->at.epoch_ended = true;
    return after_save_or_eval(t, mpri_option_is(t->o, OPT_EVAL_STRATEGY, "epoch"),
                              mpri_option_is(t->o, OPT_SAVE_STRATEGY, "epoch"), err);
}

/* ---- the loop ---- */

static bool stop_asked(const mpr_trainer *t)
{
    return atomic_load(&((mpr_trainer *)(uintptr_t)t)->stop) || (t->requests & MPR_STOP);
}

static mpr_status loop(mpr_trainer *t, Err *err)
{
    bool epoch_over = t->train && t->p->batch >= t->batches; /* resumed at the end of an epoch */
    if (epoch_over) TRY(end_epoch(t, err));
    while (!finished(t) && !stop_asked(t)) {
        bool ran;
        TRY(run_window(t, &ran, &epoch_over, err));
        if (ran) TRY(end_step(t, err));
        if (epoch_over || finished(t)) TRY(end_epoch(t, err));
        if (epoch_over && !t->train) {
            t->p->epoch++;
            t->p->batch = 0;
        }
    }
    return mpri_prepared_settle(t->p, err);
}

static mpr_status begin(mpr_trainer *t, Err *err)
{
    TRY(mpri_folder_make(t->out, err));
    TRY(mpri_folder_lock(t->out, &t->lock, err));
    mpri_folder_sweep(t->out);
    TRY(mpri_trainer_resume(t, err));
    TRY(mpri_trainer_write_config(t, err));
    TRY(mpri_trainer_log_open(t, err));
    TRY(mpri_trainer_insight_begin(t, err));
    t->p->sink = (PreparedSink){t, tell_forward, step_ended};
    t->started = mpri_monotonic();
    t->started_step = t->p->steps;
    t->started_samples = t->p->samples;
    bool improved;
    if (mpri_option_flag(t->o, OPT_EVAL_ON_START) && !t->p->steps)
        TRY(mpri_trainer_evaluate(t, &improved, err));
    return MPR_OK;
}

static mpr_status finish(mpr_trainer *t, Err *err)
{
    TRY(mpri_trainer_load_best(t, err));
    TRY(mpri_trainer_log_end(t, err));
    TRY(mpri_trainer_write_state(t, err));
    const char *path = mpri_option_text(t->o, OPT_EXPORT);
    if (!path) path = mpri_arena_printf(&t->arena, "%s/model.onnx", t->out);
    return path ? mpri_session_export(t->s, path, err) : mpri_err_nomem(err, 0);
}

static mpr_status run(mpr_trainer *t, Err *err)
{
    TRY(begin(t, err));
    mpr_status status = loop(t, err);
    if (status != MPR_OK) { /* what was logged stays readable; the first error wins */
        Err quiet;
        mpri_err_clear(&quiet);
        if (mpri_trainer_write_state(t, &quiet) != MPR_OK)
            mpri_log(&t->ctx->log, MPR_LOG_WARNING, "trainer_state.json was not written: %s",
                     quiet.message);
        return status;
    }
    if (!atomic_load(&t->stop)) return finish(t, err);
    TRY(mpri_trainer_save(t, err));
    TRY(mpri_trainer_write_state(t, err));
    mpri_err_set(err, MPR_E_STOPPED, "stopped after step %lld; checkpoint-%lld is saved",
                 (long long)t->p->steps, (long long)t->p->steps);
    return mpri_err_advice(err, "go on with --resume-from-checkpoint last");
}

mpr_status mpri_trainer_run(mpr_trainer *t, mpr_trainer_result *result, Err *err)
{
    mpr_status status = MPR_OK;
    if (!mpri_option_flag(t->o, OPT_DRY_RUN)) {
        status = run(t, err);
        mpri_trainer_insight_end(t);
        mpri_trainer_log_close(t);
        mpri_folder_unlock(t->out, t->lock);
        t->lock = -1;
    }
    if (!result) return status;
    size_t size = result->size && result->size < sizeof(*result) ? result->size : sizeof(*result);
    mpr_trainer_result r = {
        .size = size,
        .steps = t->p->steps,
        .updates = t->p->updates,
        .skipped = t->p->scaler->skips,
        .train_loss = t->at.total_steps ? t->at.loss_total / (double)t->at.total_steps : NAN,
        .train_runtime = t->started > 0 ? mpri_monotonic() - t->started : 0,
        .eval_loss = t->eval_loss,
        .best_metric = t->at.has_best ? t->at.best : NAN,
        .stopped = stop_asked(t),
    };
    memcpy(result, &r, size);
    return status;
}
