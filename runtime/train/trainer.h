/* Level 3: the trainer, with the semantics of Hugging Face's Trainer: when an epoch ends, when a
 * line is logged, when the model is evaluated and saved. Built on prepare.h.
 *
 *   trainer_setup.c   options to session, optimizer, schedule, data
 *   trainer.c         the loop
 *   trainer_eval.c    evaluation; metrics.c the metrics
 *   trainer_log.c     log lines, log.jsonl, trainer_state.json
 *   trainer_insight.c what --tensor-stats and --debug show
 *   trainer_save.c    checkpoints: save, prune, resume, best */
#ifndef MPRI_TRAIN_TRAINER_H
#define MPRI_TRAIN_TRAINER_H

#include <stdatomic.h>

#include "runtime/train/metrics.h"
#include "runtime/train/options.h"
#include "runtime/train/prepare.h"
#include "runtime/train/debug_frames.h"
#include "runtime/train/tensor_stats.h"

typedef struct TrainerProgress { /* what a checkpoint remembers of the trainer */
    double loss_sum;             /* since the last log line */
    int64_t loss_steps;
    double loss_total; /* of all steps of this run */
    int64_t total_steps;
    bool has_best;
    double best;
    int64_t best_step;
    int64_t bad_evaluations; /* in a row, for early stopping */
    bool epoch_ended;        /* the events of the epoch's end were handled */
    int64_t calibration;     /* skips before the first update that are not reported yet */
} TrainerProgress;

struct mpr_trainer {
    Handle h;
    mpr_context *ctx;
    mpr_model *model;
    mpr_trainer_options *o; /* own copy */
    mpr_trainer_callbacks call;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_schedule *schedule;
    mpr_dataset *train, *eval;
    mpr_prepared *p;
    Arena arena;
    /* plan of the run */
    int64_t batches; /* micro-batches per epoch; 0: unknown (own data source) */
    int64_t max_steps;
    double epochs;
    bool count_updates;
    const char *out; /* output folder */
    int lock;
    /* state */
    TrainerProgress at;
    mpr_step_result last;
    double eval_loss;
    char best_checkpoint[4200];
    int requests;         /* mpr_trainer_request bits from callbacks */
    const char **history; /* log lines */
    int n_history, cap_history;
    int log_fd;
    double started; /* monotonic seconds */
    int64_t started_step, started_samples;
    atomic_int stop;
    MetricSet metrics;
    TensorStats stats;   /* --tensor-stats */
    bool stats_due;      /* collected, not told yet */
    DebugFrames *frames; /* --debug underflow_overflow; in the arena */
    bool frames_told;    /* an overflow of gradients was shown */
};

mpr_status mpri_trainer_create(mpr_model *model, const mpr_trainer_options *o,
                               const mpr_trainer_callbacks *callbacks, mpr_trainer **out, Err *err);
mpr_status mpri_trainer_run(mpr_trainer *t, mpr_trainer_result *result, Err *err);
mpr_status mpri_trainer_summary(mpr_trainer *t, char **text, Err *err);
void mpri_trainer_destroy(mpr_trainer *t);

double mpri_trainer_epoch(const mpr_trainer *t); /* as logged: 1.25 */
double mpri_monotonic(void);                     /* seconds */

/* ---- trainer_log.c ---- */
mpr_status mpri_trainer_log_open(mpr_trainer *t, Err *err); /* log.jsonl with the history so far */
void mpri_trainer_log_close(mpr_trainer *t);
/* Members without braces, such as "\"loss\": 1.5"; epoch and step are added. */
mpr_status mpri_trainer_log(mpr_trainer *t, const char *members, Err *err);
mpr_status mpri_trainer_log_step(mpr_trainer *t, Err *err);
mpr_status mpri_trainer_log_end(mpr_trainer *t, Err *err);
mpr_status mpri_trainer_write_state(mpr_trainer *t, Err *err);  /* trainer_state.json */
mpr_status mpri_trainer_write_config(mpr_trainer *t, Err *err); /* config.yaml */

/* A line of log.jsonl and for the callback that trainer_state.json does not keep. */
mpr_status mpri_trainer_log_only(mpr_trainer *t, const char *members, Err *err);

/* ---- trainer_insight.c ---- */
mpr_status mpri_trainer_insight_begin(mpr_trainer *t, Err *err); /* of the run */
void mpri_trainer_insight_end(mpr_trainer *t);
/* Around the first micro-batch of a window: the statistics of its tensors, when they are due. */
mpr_status mpri_trainer_stats_begin(mpr_trainer *t, Err *err);
void mpri_trainer_stats_end(mpr_trainer *t);
mpr_status mpri_trainer_stats_log(mpr_trainer *t, Err *err); /* after the step */
/* After each micro-batch: MPR_E_NONFINITE when a forward pass met a NaN or overflowed. */
mpr_status mpri_trainer_frames(mpr_trainer *t, Err *err);

/* ---- trainer_eval.c ---- */
/* Evaluates, logs, tracks the best metric; *improved says whether this one is the best so far. */
mpr_status mpri_trainer_evaluate(mpr_trainer *t, bool *improved, Err *err);

/* ---- trainer_save.c ---- */
mpr_status mpri_trainer_save(mpr_trainer *t, Err *err);
mpr_status mpri_trainer_resume(mpr_trainer *t,
                               Err *err); /* as option resume-from-checkpoint says */
mpr_status mpri_trainer_load_best(mpr_trainer *t, Err *err);

#endif
