/* What the insight options show: statistics of a step's tensors every N steps, and the frames
 * before the first NaN or overflow. Without them no kernel is looked at. */
#include "runtime/train/trainer.h"

mpr_status mpri_trainer_insight_begin(mpr_trainer *t, Err *err)
{
    if (!mpri_option_is(t->o, OPT_DEBUG, "underflow_overflow")) return MPR_OK;
    t->frames = ARENA_NEW(&t->arena, DebugFrames);
    if (!t->frames) return mpri_err_nomem(err, sizeof(*t->frames));
    mpri_debug_frames_begin(t->frames, t->s);
    return MPR_OK;
}

void mpri_trainer_insight_end(mpr_trainer *t)
{
    if (t->frames) mpri_debug_frames_free(t->frames);
    mpri_tensor_stats_free(&t->stats);
    t->frames = NULL;
}

mpr_status mpri_trainer_stats_begin(mpr_trainer *t, Err *err)
{
    int64_t every = mpri_option_int(t->o, OPT_TENSOR_STATS, 0);
    if (every <= 0 || (t->p->steps + 1) % every) return MPR_OK;
    TRY(mpri_prepared_settle(t->p, err));
    mpri_tensor_stats_begin(&t->stats, t->s);
    return MPR_OK;
}

void mpri_trainer_stats_end(mpr_trainer *t)
{
    if (!t->s->watch[WATCH_STATS]) return;
    mpri_tensor_stats_end(&t->stats);
    t->stats_due = true;
}

mpr_status mpri_trainer_stats_log(mpr_trainer *t, Err *err)
{
    if (!t->stats_due) return MPR_OK;
    t->stats_due = false;
    if (t->stats.failed) return mpri_err_nomem(err, 0);
    double scale = (double)t->last.scale;
    Text json, text;
    mpri_text_init(&json, &t->ctx->alloc);
    mpri_text_init(&text, &t->ctx->alloc);
    mpri_tensor_stats_json(&t->stats, scale, &json);
    mpri_tensor_stats_text(&t->stats, scale, &text);
    mpr_status status = json.failed || text.failed ? mpri_err_nomem(err, json.cap) : MPR_OK;
    if (status == MPR_OK) {
        mpri_log(&t->ctx->log, MPR_LOG_NOTICE, "step %lld, tensors: %s", (long long)t->p->steps,
                 text.text);
        status = mpri_trainer_log_only(t, json.text, err);
    }
    mpri_text_free(&json);
    mpri_text_free(&text);
    return status;
}

mpr_status mpri_trainer_frames(mpr_trainer *t, Err *err)
{
    DebugFrames *d = t->frames;
    const Frame *last = d && d->bad ? &d->frame[(d->count - 1) % FRAMES] : NULL;
    if (!last || (last->backward && t->frames_told)) return MPR_OK;
    Text text;
    mpri_text_init(&text, &t->ctx->alloc);
    mpri_debug_frames_text(d, &text);
    if (!text.failed)
        mpri_log(&t->ctx->log, MPR_LOG_WARNING,
                 "Detected inf/nan during step %lld, micro-batch %d\n%s", (long long)t->p->steps + 1, t->p->micro, text.text);
    mpri_text_free(&text);
    t->frames_told |= last->backward; /* scaled gradients may overflow: the step is skipped */
    if (last->backward) return MPR_OK;
    mpri_err_set(err, MPR_E_NONFINITE,
                 "step %lld: the forward pass is not finite from node '%s' (%s) on",
                 (long long)t->p->steps + 1, mpri_err_name(last->node), last->op);
    return mpri_err_advice(err, "the frames before it were printed; keep the node in float32, look "
                                "at the data, or leave out --debug to go on");
}
