/* Checkpoints of the trainer: checkpoint-N in the output folder, pruned to save-total-limit (never
 * the best, never the one just written), and the way back in. */
#include "runtime/train/trainer.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/train/folder.h"
#include "runtime/train/json.h"

/* ---- the trainer's part of state.json ---- */

static void put_extra(const mpr_trainer *t, Text *x)
{
    const TrainerProgress *a = &t->at;
    mpri_text_put(x, "{\"loss_sum\": ");
    mpri_json_f64(x, a->loss_sum);
    mpri_text_add(x, ", \"loss_steps\": %lld, \"loss_total\": ", (long long)a->loss_steps);
    mpri_json_f64(x, a->loss_total);
    mpri_text_add(x, ", \"total_steps\": %lld, \"has_best\": %s, \"best\": ",
                  (long long)a->total_steps, a->has_best ? "true" : "false");
    mpri_json_f64(x, a->best);
    mpri_text_add(x,
                  ", \"best_step\": %lld, \"bad_evaluations\": %lld, \"epoch_ended\": %s, "
                  "\"calibration\": %lld, \"best_checkpoint\": ",
                  (long long)a->best_step, (long long)a->bad_evaluations,
                  a->epoch_ended ? "true" : "false", (long long)a->calibration);
    mpri_json_string(x, t->best_checkpoint);
    mpri_text_put(x, ", \"log\": [");
    for (int i = 0; i < t->n_history; i++) {
        mpri_text_put(x, i ? ",\n" : "\n");
        mpri_json_string(x, t->history[i]);
    }
    mpri_text_put(x, "]}");
}

#if MPR_MINIMAL

static mpr_status take_extra(mpr_trainer *t, const char *text, Err *err)
{
    (void)t, (void)text, (void)err;
    return MPR_OK;
}

#else

#include <jansson.h>

static double real(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    double x = json_number_value(v);
    if (json_is_string(v) && !mpri_parse_f64(json_string_value(v), &x)) x = 0;
    return x;
}

static int64_t whole(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static mpr_status take_history(mpr_trainer *t, const json_t *log, Err *err)
{
    size_t n = json_array_size(log);
    t->history = ARENA_ARRAY(&t->arena, const char *, n + 64);
    if (!t->history) return mpri_err_nomem(err, n);
    t->cap_history = (int)n + 64;
    t->n_history = 0;
    for (size_t i = 0; i < n; i++) {
        const char *line = json_string_value(json_array_get(log, i));
        if (line && !(t->history[t->n_history++] = mpri_arena_strdup(&t->arena, line)))
            return mpri_err_nomem(err, 0);
    }
    return MPR_OK;
}

static mpr_status take_extra(mpr_trainer *t, const char *text, Err *err)
{
    json_t *root = json_loads(text, 0, NULL);
    if (!root)
        return mpri_err_set(err, MPR_E_CHECKPOINT, "state.json: the trainer's part is damaged");
    const char *best = json_string_value(json_object_get(root, "best_checkpoint"));
    t->at = (TrainerProgress){
        .loss_sum = real(root, "loss_sum"),
        .loss_steps = whole(root, "loss_steps"),
        .loss_total = real(root, "loss_total"),
        .total_steps = whole(root, "total_steps"),
        .has_best = json_is_true(json_object_get(root, "has_best")),
        .best = real(root, "best"),
        .best_step = whole(root, "best_step"),
        .bad_evaluations = whole(root, "bad_evaluations"),
        .epoch_ended = json_is_true(json_object_get(root, "epoch_ended")),
        .calibration = whole(root, "calibration"),
    };
    snprintf(t->best_checkpoint, sizeof(t->best_checkpoint), "%s", best ? best : "");
    mpr_status status = take_history(t, json_object_get(root, "log"), err);
    json_decref(root);
    return status;
}

#endif

/* ---- listing ---- */

static int64_t checkpoint_step(const char *name)
{
    int64_t n;
    if (strncmp(name, "checkpoint-", 11) || !mpri_parse_i64(name + 11, &n) || n < 0) return -1;
    return n;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Steps of the checkpoints in the output folder, newest first. */
static mpr_status list_checkpoints(mpr_trainer *t, int64_t **steps, int *n, Err *err)
{
    int cap = 0;
    *steps = NULL;
    *n = 0;
    DIR *d = opendir(t->out);
    if (!d) return MPR_OK;
    mpr_status status = MPR_OK;
    for (struct dirent *e; status == MPR_OK && (e = readdir(d));) {
        int64_t step = checkpoint_step(e->d_name);
        if (step < 0) continue;
        if (*n == cap) {
            cap = cap ? 2 * cap : 64;
            int64_t *grown = ARENA_ARRAY(&t->arena, int64_t, cap);
            if (!grown) status = mpri_err_nomem(err, 0);
            else if (*n) memcpy(grown, *steps, (size_t)*n * sizeof(*grown));
            *steps = grown;
        }
        if (status == MPR_OK) (*steps)[(*n)++] = step;
    }
    closedir(d);
    if (*n) qsort(*steps, (size_t)*n, sizeof(**steps), newest_first);
    return status;
}

static const char *checkpoint_path(mpr_trainer *t, int64_t step)
{
    return mpri_arena_printf(&t->arena, "%s/checkpoint-%lld", t->out, (long long)step);
}

/* ---- saving ---- */

static mpr_status prune(mpr_trainer *t, int64_t just_written, Err *err)
{
    int64_t limit = mpri_option_int(t->o, OPT_SAVE_LIMIT, 0), *steps;
    int n, kept = 0;
    if (limit < 1) return MPR_OK;
    TRY(list_checkpoints(t, &steps, &n, err));
    bool protect = (mpri_option_flag(t->o, OPT_LOAD_BEST) ||
                    mpri_option_is(t->o, OPT_SAVE_STRATEGY, "best")) &&
                   t->best_checkpoint[0];
    for (int pass = 0; pass < 2;
         pass++) /* first count what must stay, then fill up with the newest */
        for (int i = 0; i < n; i++) {
            const char *path = checkpoint_path(t, steps[i]);
            if (!path) return mpri_err_nomem(err, 0);
            bool must = steps[i] == just_written || (protect && !strcmp(path, t->best_checkpoint));
            if (pass == 0) kept += must;
            else if (!must && kept < limit) kept++;
            else if (!must) mpri_folder_remove(path);
        }
    return MPR_OK;
}

mpr_status mpri_trainer_save(mpr_trainer *t, Err *err)
{
    int64_t step = t->p->steps;
    const char *path = checkpoint_path(t, step);
    if (!path) return mpri_err_nomem(err, 0);
    char best_before[sizeof(t->best_checkpoint)];
    memcpy(best_before, t->best_checkpoint, sizeof(best_before));
    if (t->at.has_best && t->at.best_step == step)
        snprintf(t->best_checkpoint, sizeof(t->best_checkpoint), "%s", path);
    Text extra;
    mpri_text_init(&extra, &t->ctx->alloc);
    put_extra(t, &extra);
    mpr_status status = extra.failed ? mpri_err_nomem(err, extra.cap)
                                     : mpri_checkpoint_save(t->p, path, extra.text, err);
    mpri_text_free(&extra);
    if (status != MPR_OK) /* a checkpoint that is not there must not be the best one */
        memcpy(t->best_checkpoint, best_before, sizeof(best_before));
    TRY(status);
    TRY(prune(t, step, err));
    if (t->call.on_save) t->requests |= t->call.on_save(t->call.user, path);
    return MPR_OK;
}

/* ---- resuming ---- */

static mpr_status load(mpr_trainer *t, const char *path, Err *err)
{
    CheckpointOptions o = {.fresh_scaler = mpri_option_flag(t->o, OPT_FRESH_SCALER)};
    char *extra = NULL;
    TRY(mpri_checkpoint_load(t->p, path, &o, &extra, err));
    mpr_status status = extra ? take_extra(t, extra, err) : MPR_OK;
    mpri_free(&t->ctx->alloc, extra);
    if (status == MPR_OK)
        mpri_log(&t->ctx->log, MPR_LOG_NOTICE, "resumed from %s at step %lld", mpri_err_name(path),
                 (long long)t->p->steps);
    return status;
}

static mpr_status load_last(mpr_trainer *t, Err *err)
{
    int64_t *steps;
    int n;
    Text reasons;
    TRY(list_checkpoints(t, &steps, &n, err));
    mpri_text_init(&reasons, &t->ctx->alloc);
    for (int i = 0; i < n; i++) {
        Err why;
        mpri_err_clear(&why);
        const char *path = checkpoint_path(t, steps[i]);
        mpr_status status = path ? load(t, path, &why) : mpri_err_nomem(&why, 0);
        if (status == MPR_OK) {
            if (i)
                mpri_log(&t->ctx->log, MPR_LOG_WARNING,
                         "checkpoint-%lld could not be used, checkpoint-%lld is used instead (%s)",
                         (long long)steps[0], (long long)steps[i],
                         reasons.text ? reasons.text : "");
            mpri_text_free(&reasons);
            return MPR_OK;
        }
        if (status != MPR_E_CHECKPOINT) {
            mpri_text_free(&reasons);
            *err = why;
            return status;
        }
        mpri_text_add(&reasons, "%scheckpoint-%lld: %s", reasons.len ? "; " : "",
                      (long long)steps[i], why.message);
    }
    if (n)
        mpri_err_set(err, MPR_E_CHECKPOINT, "no checkpoint in '%s' is whole: %s",
                     mpri_err_name(t->out), reasons.text ? reasons.text : "");
    else
        mpri_err_set(err, MPR_E_CHECKPOINT, "there is no checkpoint in '%s'",
                     mpri_err_name(t->out));
    mpri_text_free(&reasons);
    return mpri_err_advice(err,
                           "start without --resume-from-checkpoint, or name a checkpoint folder");
}

mpr_status mpri_trainer_resume(mpr_trainer *t, Err *err)
{
    const char *from = mpri_option_text(t->o, OPT_RESUME);
    if (!from) return MPR_OK;
    return strcmp(from, "last") ? load(t, from, err) : load_last(t, err);
}

mpr_status mpri_trainer_load_best(mpr_trainer *t, Err *err)
{
    if (!mpri_option_flag(t->o, OPT_LOAD_BEST) || !t->best_checkpoint[0]) return MPR_OK;
    TRY(mpri_checkpoint_load_weights(t->s, t->best_checkpoint, err));
    mpri_log(&t->ctx->log, MPR_LOG_NOTICE, "weights of the best checkpoint %s are used (step %lld)",
             mpri_err_name(t->best_checkpoint), (long long)t->at.best_step);
    return MPR_OK;
}
