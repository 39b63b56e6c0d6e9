/* Level 2: session, optimizer, data and schedule joined into one loop with accumulation windows,
 * clipping, the loss scaler and checkpoints. Level 3 is built on it. */
#ifndef MPRI_TRAIN_PREPARE_H
#define MPRI_TRAIN_PREPARE_H

#include "runtime/train/dataset.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/scaler.h"
#include "runtime/train/schedule.h"

/* Where a window began: what goes back when it is run again. */
typedef struct LateMark {
    int64_t epoch, batch, steps, samples;
    uint64_t forward;
    int64_t generation, scaler_generation;
} LateMark;

enum { LATE_STEPS = 4, LATE_PLACES = LATE_STEPS + 1 }; /* that may be under way when a step returns */
enum { LATE_KEEP, LATE_LOSS, LATE_JUDGE, LATE_CLOSE, LATE_PLANS };

/* The batches of a window that no data set can bind again. */
typedef struct LateBatch {
    SessionBatch b;
    int64_t epoch, batch, rows;
} LateBatch;
typedef struct LateWindow {
    LateBatch *batch;
    int n, cap;
} LateWindow;

typedef struct PreparedLate { /* prepare_late.c; steps are under way where n > 0 */
    bool ready;          /* the slots are made */
    bool fresh;          /* the ledger goes on from the last window */
    bool open;           /* the host does not look at the window that is open */
    bool said;           /* why the host has to look */
    bool again;          /* steps are run again, with the host looking */
    int first, n;        /* records that are to come: places in a ring of LATE_PLACES */
    LateMark mark[LATE_PLACES], start;
    LateWindow window[LATE_PLACES]; /* by place, without a data set; the open one is at first + n */
    LateBatch current;              /* what is bound while steps are run again */
    const char *ledger, *note, *close, *loss; /* slots */
    const char **kept;   /* operands of LedgerKeep */
    int n_kept;
    Plan *plan[LATE_PLANS];
} PreparedLate;

/* Who is told of each step, in their order, as soon as the host knows of it; NULL: nobody. */
typedef struct PreparedSink {
    void *user;
    mpr_status (*bad_loss)(void *user, Err *err); /* the first in a window that is not finite */
    /* The step `step` has ended with status: MPR_OK or MPR_E_NONFINITE. Returns it, or what else fails. */
    mpr_status (*stepped)(void *user, int64_t step, const mpr_step_result *r, mpr_status status,
                          Err *err);
} PreparedSink;

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
    int64_t steps, updates; /* attempts, real updates (of those that the host knows of) */
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
    PreparedLate late;
    PreparedSink sink;
    mpr_step_result last; /* of the last step that the host knows of */
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
/* Tells the sink of a step and gives what it says. */
mpr_status mpri_prepared_tell(mpr_prepared *p, int64_t step, const mpr_step_result *r,
                              mpr_status status, Err *err);

/* ---- prepare_late.c ---- */
/* Waits for the steps that are under way and tells of them; from here on everything is as if the host had
 * looked all the time. An error is that of the first step that has one. */
mpr_status mpri_prepared_settle(mpr_prepared *p, Err *err);
/* The same for whatever is under way in a session, before a call of the API does something. */
mpr_status mpri_session_settle(Handle *session, Err *err);
/* A window begins; whether the host looks at it is late.open. looked_at: it must. */
mpr_status mpri_late_begin(mpr_prepared *p, bool looked_at, Err *err);
/* Before the forward pass: keeps the bound batch where nobody else can bring it back (prepare_kept.c). */
mpr_status mpri_late_keep(mpr_prepared *p, Err *err);
/* Goes back to m, where the window at the oldest place began, and runs again what was run since, with the
 * host looking; what is bound stays. */
mpr_status mpri_late_replay_kept(mpr_prepared *p, const LateMark *m, Err *err);
/* Everything as it was where the window of m began. */
mpr_status mpri_late_go_back(mpr_prepared *p, const LateMark *m, Err *err);
void mpri_late_kept_free(mpr_prepared *p);
/* After the forward pass of a micro-batch that the host does not look at. */
mpr_status mpri_late_loss(mpr_prepared *p, double weight, Err *err);
/* The end of such a window. *done false: it is one that the host looks at after all. */
mpr_status mpri_late_step(mpr_prepared *p, mpr_step_result *result, bool *done, Err *err);
void mpri_late_free(mpr_prepared *p);

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
