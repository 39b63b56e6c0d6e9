/* Log lines of the trainer: one JSON object a line in log.jsonl and in the history of
 * trainer_state.json, given to the on_log callback as it is written. */
#include "runtime/train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "importer/source.h"
#include "runtime/train/json.h"

double mpri_monotonic(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static mpr_status log_failed(const mpr_trainer *t, int why, Err *err)
{
    mpri_err_set(err, MPR_E_IO, "cannot write '%s/log.jsonl': %s", mpri_err_name(t->out),
                 strerror(why));
    return mpri_err_advice(err, "free space on that disk; checkpoints saved before are whole");
}

static mpr_status append_file(mpr_trainer *t, const char *line, Err *err)
{
    size_t n = strlen(line), done = 0;
    if (t->log_fd < 0) return MPR_OK;
    while (done < n) {
        ssize_t k = write(t->log_fd, line + done, n - done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return log_failed(t, errno, err);
        done += (size_t)k;
    }
    return MPR_OK;
}

/* "step" of a log line, its last member; -1: it has none. */
static int64_t line_step(const char *line)
{
    static const char key[] = ", \"step\": ";
    const char *at = NULL;
    for (const char *p = line; (p = strstr(p, key)); p++) at = p;
    return at ? strtoll(at + sizeof(key) - 1, NULL, 10) : -1;
}

/* How many bytes of the old log belong to the run that goes on: its history line by line, and the
 * statistics between them, which no checkpoint keeps. -1: it is another run's log. */
static int64_t old_log(const mpr_trainer *t, FILE *f)
{
    char *line = NULL;
    size_t room = 0;
    int64_t kept = 0;
    int n = 0;
    for (ssize_t k; (k = getline(&line, &room, f)) > 0 && line[k - 1] == '\n'; kept += k) {
        line[k - 1] = 0;
        if (!strncmp(line, "{\"tensor_stats\": ", 17)) {
            if (line_step(line) > t->p->steps) break;
        } else {
            if (n == t->n_history || strcmp(line, t->history[n])) break;
            n++;
        }
    }
    free(line);
    return n == t->n_history ? kept : -1;
}

mpr_status mpri_trainer_log_open(mpr_trainer *t, Err *err)
{
    const char *path = mpri_arena_printf(&t->arena, "%s/log.jsonl", t->out);
    if (!path) return mpri_err_nomem(err, 0);
    FILE *old = t->p->steps ? fopen(path, "re") : NULL;
    int64_t kept = old ? old_log(t, old) : -1;
    if (old) fclose(old);
    if (kept >= 0 && truncate(path, kept)) kept = -1;
    int fd = open(path, O_WRONLY | O_CREAT | (kept < 0 ? O_TRUNC : 0) | O_CLOEXEC | O_APPEND, 0666);
    if (fd >= 0 && fd < 3) {
        int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        close(fd);
        fd = higher;
    }
    if (fd < 0) return log_failed(t, errno, err);
    t->log_fd = fd;
    for (int i = 0; kept < 0 && i < t->n_history; i++) {
        TRY(append_file(t, t->history[i], err));
        TRY(append_file(t, "\n", err));
    }
    return MPR_OK;
}

void mpri_trainer_log_close(mpr_trainer *t)
{
    if (t->log_fd >= 0) close(t->log_fd);
    t->log_fd = -1;
}

static mpr_status remember(mpr_trainer *t, const char *line, Err *err)
{
    if (t->n_history == t->cap_history) {
        int cap = t->cap_history ? 2 * t->cap_history : 64;
        const char **grown = ARENA_ARRAY(&t->arena, const char *, cap);
        if (!grown) return mpri_err_nomem(err, (size_t)cap * sizeof(*grown));
        if (t->n_history) memcpy(grown, t->history, (size_t)t->n_history * sizeof(*grown));
        t->history = grown;
        t->cap_history = cap;
    }
    if (!(t->history[t->n_history] = mpri_arena_strdup(&t->arena, line)))
        return mpri_err_nomem(err, strlen(line));
    t->n_history++;
    return MPR_OK;
}

static mpr_status log_line(mpr_trainer *t, const char *members, bool keep, Err *err)
{
    Text line;
    mpri_text_init(&line, &t->ctx->alloc);
    mpri_text_add(&line, "{%s, \"epoch\": ", members);
    mpri_json_f64(&line, mpri_trainer_epoch(t));
    mpri_text_add(&line, ", \"step\": %lld}", (long long)t->p->steps);
    mpr_status status = line.failed ? mpri_err_nomem(err, line.cap)
                        : keep      ? remember(t, line.text, err)
                                    : MPR_OK;
    if (status == MPR_OK) status = append_file(t, line.text, err);
    if (status == MPR_OK) status = append_file(t, "\n", err);
    if (status == MPR_OK && t->call.on_log) t->requests |= t->call.on_log(t->call.user, line.text);
    mpri_text_free(&line);
    return status;
}

mpr_status mpri_trainer_log(mpr_trainer *t, const char *members, Err *err)
{
    return log_line(t, members, true, err);
}

mpr_status mpri_trainer_log_only(mpr_trainer *t, const char *members, Err *err)
{
    return log_line(t, members, false, err);
}

static mpr_status log_text(mpr_trainer *t, Text *members, Err *err)
{
    mpr_status status = members->failed ? mpri_err_nomem(err, members->cap)
                                        : mpri_trainer_log(t, members->text, err);
    mpri_text_free(members);
    return status;
}

mpr_status mpri_trainer_log_step(mpr_trainer *t, Err *err)
{
    Text m;
    mpri_text_init(&m, &t->ctx->alloc);
    mpri_text_put(&m, "\"loss\": ");
    mpri_json_f32(&m, (float)(t->at.loss_sum / (double)(t->at.loss_steps ? t->at.loss_steps : 1)));
    mpri_text_put(&m, ", \"grad_norm\": ");
    mpri_json_f32(&m, t->last.grad_norm);
    mpri_text_put(&m, ", \"learning_rate\": ");
    mpri_json_f64(&m, t->last.learning_rate);
    mpri_text_put(&m, ", \"loss_scale\": ");
    mpri_json_f32(&m, t->last.scale);
    mpri_text_add(&m, ", \"skipped_steps\": %lld, \"updates\": %lld",
                  (long long)t->p->scaler->skips, (long long)t->p->updates);
    t->at.loss_sum = 0;
    t->at.loss_steps = 0;
    return log_text(t, &m, err);
}

mpr_status mpri_trainer_log_end(mpr_trainer *t, Err *err)
{
    double runtime = mpri_monotonic() - t->started,
           loss = t->at.loss_total / (double)(t->at.total_steps ? t->at.total_steps : 1);
    double per = runtime > 0 ? 1 / runtime : 0;
    Text m;
    mpri_text_init(&m, &t->ctx->alloc);
    mpri_text_put(&m, "\"train_runtime\": ");
    mpri_json_f64(&m, runtime);
    mpri_text_put(&m, ", \"train_samples_per_second\": ");
    mpri_json_f64(&m, (double)(t->p->samples - t->started_samples) * per);
    mpri_text_put(&m, ", \"train_steps_per_second\": ");
    mpri_json_f64(&m, (double)(t->p->steps - t->started_step) * per);
    mpri_text_put(&m, ", \"train_loss\": ");
    mpri_json_f64(&m, loss);
    mpri_text_add(&m, ", \"skipped_steps\": %lld, \"updates\": %lld",
                  (long long)t->p->scaler->skips, (long long)t->p->updates);
    return log_text(t, &m, err);
}

static mpr_status write_text(mpr_trainer *t, const char *name, Text *text, Err *err)
{
    const char *path = mpri_arena_printf(&t->arena, "%s/%s", t->out, name);
    mpr_status status = text->failed || !path
                            ? mpri_err_nomem(err, text->cap)
                            : mpri_write_file_atomic(path, text->text, text->len, err);
    mpri_text_free(text);
    return status;
}

mpr_status mpri_trainer_write_state(mpr_trainer *t, Err *err)
{
    Text s;
    mpri_text_init(&s, &t->ctx->alloc);
    int64_t logging = mpri_option_int(t->o, OPT_LOGGING_STEPS, 10);
    mpri_text_put(&s, "{\n  \"best_global_step\": ");
    if (t->at.has_best) mpri_text_add(&s, "%lld,\n  \"best_metric\": ", (long long)t->at.best_step);
    else mpri_text_put(&s, "null,\n  \"best_metric\": ");
    if (t->at.has_best) mpri_json_f64(&s, t->at.best);
    else mpri_text_put(&s, "null");
    mpri_text_put(&s, ",\n  \"best_model_checkpoint\": ");
    if (t->best_checkpoint[0]) mpri_json_string(&s, t->best_checkpoint);
    else mpri_text_put(&s, "null");
    mpri_text_put(&s, ",\n  \"epoch\": ");
    mpri_json_f64(&s, mpri_trainer_epoch(t));
    mpri_text_add(&s, ",\n  \"eval_steps\": %lld,\n  \"global_step\": %lld,\n",
                  (long long)mpri_option_int(t->o, OPT_EVAL_STEPS, logging),
                  (long long)t->p->steps);
    mpri_text_put(&s, "  \"is_hyper_param_search\": false,\n  \"is_local_process_zero\": true,\n  "
                      "\"is_world_process_zero\": true,\n  \"log_history\": [");
    for (int i = 0; i < t->n_history; i++)
        mpri_text_add(&s, "%s\n    %s", i ? "," : "", t->history[i]);
    mpri_text_add(&s,
                  "%s],\n  \"logging_steps\": %lld,\n  \"max_steps\": %lld,\n  "
                  "\"num_input_tokens_seen\": 0,\n  \"num_train_epochs\": ",
                  t->n_history ? "\n  " : "", (long long)logging, (long long)t->max_steps);
    mpri_json_f64(&s, ceil(t->epochs));
    mpri_text_add(&s,
                  ",\n  \"save_steps\": %lld,\n  \"stateful_callbacks\": {},\n  \"total_flos\": "
                  "0,\n  \"train_batch_size\": %lld,\n",
                  (long long)mpri_option_int(t->o, OPT_SAVE_STEPS, 500),
                  (long long)mpri_option_int(t->o, OPT_BATCH_SIZE, 8));
    mpri_text_put(&s, "  \"trial_name\": null,\n  \"trial_params\": null\n}\n");
    return write_text(t, "trainer_state.json", &s, err);
}

mpr_status mpri_trainer_write_config(mpr_trainer *t, Err *err)
{
    char *yaml;
    TRY(mpri_options_print(t->o, &yaml, err));
    Text s;
    mpri_text_init(&s, &t->ctx->alloc);
    mpri_text_put(&s, yaml);
    mpri_free(&t->ctx->alloc, yaml);
    return write_text(t, "config.yaml", &s, err);
}
