/* Level 2: session, optimizer, data and schedule joined into one loop with accumulation windows,
 * clipping, the loss scaler and checkpoints. Level 3 is built on it. */
#ifndef MPRI_TRAIN_PREPARE_H
#define MPRI_TRAIN_PREPARE_H

#include "runtime/train/dataset.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/scaler.h"
#include "runtime/train/schedule.h"

struct mpr_prepared {
    Handle h;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_dataset *data;      /* NULL: batches are bound by the caller */
    mpr_schedule *schedule; /* NULL: constant rate */
    mpr_scaler *scaler;     /* owned */
    mpr_prepare_options o;
    double base_rate;
    /* position */
    int64_t epoch, batch;   /* next batch to bind */
    int64_t steps, updates; /* attempts, real updates */
    int64_t samples;        /* rows seen */
    bool bound;             /* a batch is bound and not used yet */
    int64_t bound_rows;
    /* window */
    int micro, length; /* micro-batches done; planned (0: no window is open) */
    int divisor;       /* what their gradients are divided by so far: the length as it was planned */
    double labels;     /* of the first micro-batch that has any: a weight of 1 (mean_over_labels) */
    double weight;     /* of all micro-batches done; without mean_over_labels their number */
    double loss_sum;   /* weighted */
    bool loss_bad;
    char first_bad[1400];
};

mpr_status mpri_prepare(mpr_session *s, mpr_optimizer *opt, mpr_dataset *data,
                        mpr_schedule *schedule, const mpr_prepare_options *options,
                        mpr_prepared **out, Err *err);
mpr_status mpri_prepared_next(mpr_prepared *p, bool *more, Err *err);
mpr_status mpri_prepared_backward(mpr_prepared *p, float *loss, Err *err);
mpr_status mpri_prepared_step(mpr_prepared *p, mpr_step_result *result, Err *err);
/* The window ends with the micro-batches it has (own data source at the end of an epoch); then
 * step. */
void mpri_prepared_close_window(mpr_prepared *p);
void mpri_prepared_destroy(mpr_prepared *p);

/* ---- checkpoint.c ---- */
/* extra: a JSON object of the caller's (the trainer's state), or NULL. */
mpr_status mpri_checkpoint_save(mpr_prepared *p, const char *directory, const char *extra,
                                Err *err);
typedef struct CheckpointOptions {
    bool fresh_scaler; /* do not restore the loss scaler */
} CheckpointOptions;
/* Everything is checked before anything is changed. *extra (may be NULL) is allocated from the
 * context. */
mpr_status mpri_checkpoint_load(mpr_prepared *p, const char *directory, const CheckpointOptions *o,
                                char **extra, Err *err);
/* Weights only (the best model at the end). */
mpr_status mpri_checkpoint_load_weights(mpr_session *s, const char *directory, Err *err);

#endif
