/* Dynamic loss scaling: torch.amp.GradScaler with limits, hysteresis, order checks and a hard stop.
 *
 * Scale, tracker and counters live in a slot that kernels read and write, the found-inf flags in
 * the optimizers' slots. Scaling, unscale, clip, step and update read nothing back; whoever wants a
 * number calls mpri_scaler_read first.
 *
 * Per optimizer a stage READY -> UNSCALED -> STEPPED, which only update (or abandon) resets; per
 * gradient buffer a generation, which update and abandon advance. Both together make every wrong
 * order of calls an error instead of a silently wrong gradient. */
#ifndef MPRI_TRAIN_SCALER_H
#define MPRI_TRAIN_SCALER_H

#include "runtime/train/session.h"

typedef enum OptStage { OPT_READY, OPT_UNSCALED, OPT_STEPPED } OptStage;

typedef struct ScalerEntry {
    mpr_optimizer *opt;
    OptStage stage;
    bool checked;     /* a check was recorded */
    bool stepped;     /* there is an outcome: nothing, or what the optimizer's slot says */
    bool nothing;     /* the last step had no gradient */
    bool planned;     /* `checked` as the update plan has it */
    Plan *scale_plan; /* puts the scale where the optimizer's unscale reads it */
} ScalerEntry;

#define SCALER_HISTORY 8

struct mpr_scaler {
    Handle h;
    mpr_session *s;
    mpr_scaler_options o; /* every field meant as it stands; max_consecutive_skips 0 = never stop */
    bool started;         /* a loss was scaled */
    bool waits;           /* update looks at what it did, whatever the device */
    bool waited;          /* somebody has read that this window is skipped */
    Arena arena;
    struct {
        const char *state, *rule, *divisor; /* as kernels/update_rule.h says */
    } slot;
    Plan *seed_plan, *update_plan;
    /* copy of the slot: good after mpri_scaler_read */
    bool stale;
    float scale;
    int32_t tracker, hysteresis_left, skips_in_row;
    int64_t skips, updates, empty;
    float history[SCALER_HISTORY]; /* scales before the last falls, newest last */
    int n_history;
    int64_t generation;
    ScalerEntry *entries;
    int n_entries, cap_entries;
    char first_bad[1400];  /* what the last skip was for; part of the diverged message */
    char advice[400];      /* what to do about it, "" */
    bool searched;         /* first_bad comes from a search, not from a look at the gradients */
    bool described;        /* first_bad is of this window */
    double extra;        /* factor on the next unscale: a window that ended early; 0 = 1 */
    mpr_scaler *next;    /* of the same session */
};

/* Zero fields become defaults, the torch preset is applied, -1 (never stop) becomes 0. */
mpr_scaler_options mpri_scaler_fill(const mpr_scaler_options *o);
/* Takes filled options literally. */
mpr_status mpri_scaler_create(mpr_session *s, const mpr_scaler_options *filled, mpr_scaler **out,
                              Err *err);
void mpri_scaler_destroy(mpr_scaler *scaler);
bool mpri_scaler_enabled(const mpr_scaler *scaler);
/* A loss is scaled: from now on the scaler is started. */
void mpri_scaler_begin(mpr_scaler *scaler);
/* Writes scale / divisor into the f32 slot that the backward pass starts from. */
mpr_status mpri_scaler_seed(mpr_scaler *scaler, const char *slot, float divisor, Err *err);
/* May more be added to this gradient buffer, scaled by this scaler (NULL: not scaled)? MPR_E_ORDER
 * when it is unscaled, of an older window, or scaled otherwise. */
mpr_status mpri_scaler_check_add(mpr_session *s, const SessionParam *p, const mpr_scaler *by,
                                 Err *err);
/* The same without a word on who scales what is added. */
mpr_status mpri_scaler_check_write(mpr_session *s, const SessionParam *p, Err *err);
/* May the gradients of opt be clipped? MPR_E_ORDER while they are scaled. */
mpr_status mpri_scaler_check_clip(mpr_session *s, mpr_optimizer *opt, Err *err);
/* Was a check of the gradients of opt recorded in this window? */
bool mpri_scaler_checked(const mpr_session *s, const mpr_optimizer *opt);

mpr_status mpri_scaler_unscale(mpr_scaler *scaler, mpr_optimizer *opt, Err *err);
mpr_status mpri_scaler_step(mpr_scaler *scaler, mpr_optimizer *opt, mpr_step_outcome *outcome,
                            Err *err);
/* Outcome of the last step of opt, also after update: for callers that did not wait in step. */
mpr_status mpri_scaler_outcome(mpr_scaler *scaler, mpr_optimizer *opt, mpr_step_outcome *outcome,
                               Err *err);
mpr_status mpri_scaler_update(mpr_scaler *scaler, Err *err);
mpr_status mpri_scaler_update_to(mpr_scaler *scaler, float scale, Err *err);
mpr_status mpri_scaler_abandon(mpr_scaler *scaler, Err *err);
/* Treat the window of opt as non-finite (a loss that is not finite). After unscale. */
mpr_status mpri_scaler_poison(mpr_scaler *scaler, mpr_optimizer *opt, Err *err);
mpr_status mpri_scaler_set(mpr_scaler *scaler, const char *option, double value, Err *err);
mpr_status mpri_scaler_state(mpr_scaler *scaler, mpr_scaler_state *out, Err *err);
/* Every optimizer READY? MPR_E_ORDER names what is open. */
mpr_status mpri_scaler_check_idle(const mpr_scaler *scaler, Err *err);
/* MPR_E_USAGE tells which field and what is allowed. */
mpr_status mpri_scaler_validate(const mpr_scaler_options *o, double scale, Err *err);
void mpri_scaler_forget(mpr_session *s, const mpr_optimizer *opt); /* an optimizer goes */

/* ---- scaler_device.c ---- */
mpr_status mpri_scaler_slots(mpr_scaler *scaler, Err *err);
void mpri_scaler_plans_free(mpr_scaler *scaler);
/* From the slot into the fields, unless they are good; from fields and options into the slots. */
mpr_status mpri_scaler_read(mpr_scaler *scaler, Err *err);
mpr_status mpri_scaler_write(mpr_scaler *scaler, Err *err);
/* The fields from a copy of the slot (its 16 numbers) as it was after some step. */
void mpri_scaler_take(mpr_scaler *scaler, const double *state);
mpr_status mpri_scaler_write_scale(mpr_scaler *scaler, float scale, Err *err);
/* Slot = scale / divisor; the effect of the flags of all optimizers that were checked. */
mpr_status mpri_scaler_over(mpr_scaler *scaler, const char *slot, double divisor, Plan **plan,
                            Err *err);
mpr_status mpri_scaler_next(mpr_scaler *scaler, Err *err);

/* ---- scaler_state.c ---- */
mpr_status mpri_scaler_save(mpr_scaler *scaler, char **json, Err *err);
mpr_status mpri_scaler_load(mpr_scaler *scaler, const char *json, Err *err);

#endif
