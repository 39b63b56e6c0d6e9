/* Optimizers: a set of parameters, their groups, and three small plans over slots that the executor
 * runs like any other: unscale and check, clip, step. What each operator reads is told in
 * runtime/op/update.c. */
#ifndef MPRI_TRAIN_OPTIMIZER_H
#define MPRI_TRAIN_OPTIMIZER_H

#include "runtime/train/session.h"

typedef enum OptimizerKind { OPTIMIZER_ADAM, OPTIMIZER_SGD } OptimizerKind;

typedef struct OptimizerParam {
    SessionParam *p;
    float rate_ratio;      /* on the base rate */
    float decay_ratio;     /* on the base decay */
    const char *moment[2]; /* slot names; NULL: none */
} OptimizerParam;

typedef enum UpdatePart { UPDATE_UNSCALE, UPDATE_CLIP, UPDATE_STEP, UPDATE_SETTLE, UPDATE_PARTS } UpdatePart;

struct mpr_optimizer {
    Handle h;
    mpr_session *s;
    OptimizerKind kind;
    Arena arena;
    OptimizerParam *params;
    int n_params;
    double rate, decay; /* base values */
    double factors[3];  /* beta1, beta2, epsilon; or momentum, dampening */
    bool decoupled, nesterov;
    /* slots: state f64[8] and hyper f64[8] as update.c says, and two scalars */
    StoreSlot state, hyper, scale, max_norm;
    bool rate_there;          /* the rate in hyper is the device's own */
    bool kept;                /* the gradients' factors lie in the state (Device.fused_update): the step
                                 multiplies, mpri_optimizer_settle does it before anybody else looks */
    bool measured;            /* state[1] is the sum of squares of the gradients as they are */
    Plan *plan[UPDATE_PARTS]; /* for the gradients present; made anew when that set changes */
    bool *planned;            /* per parameter: in the plans */
    int planned_copies;       /* 16-bit copies that the session had then */
};

mpr_status mpri_optimizer_adamw(mpr_session *s, const mpr_adamw *options, mpr_optimizer **out,
                                Err *err);
mpr_status mpri_optimizer_sgd(mpr_session *s, const mpr_sgd *options, mpr_optimizer **out,
                              Err *err);
void mpri_optimizer_destroy(mpr_optimizer *opt);
mpr_status mpri_optimizer_set_rate(mpr_optimizer *opt, double rate, Err *err);
double mpri_optimizer_rate(const mpr_optimizer *opt);
/* "adamw", "adam" or "sgd" */
const char *mpri_optimizer_name(const mpr_optimizer *opt);
bool mpri_optimizer_any_present(const mpr_optimizer *opt);
/* Some gradient is scaled and not unscaled. */
bool mpri_optimizer_any_scaled(const mpr_optimizer *opt);
/* Gradients of an older window: MPR_E_ORDER. */
mpr_status mpri_optimizer_check_generation(const mpr_optimizer *opt, Err *err);
/* May the gradients be unscaled? They are f32 and of this window. */
mpr_status mpri_optimizer_check_unscale(const mpr_optimizer *opt, Err *err);
/* Multiply by 1/scale, as the scale's slot has it, and test; there is a gradient. Nothing is read
 * back: the flag stays on the device, where clip and apply look at it. */
mpr_status mpri_optimizer_unscale(mpr_optimizer *opt, Err *err);
/* Reads the flag; whether the last step was skipped; sets the flag. */
mpr_status mpri_optimizer_found(mpr_optimizer *opt, bool *found, Err *err);
mpr_status mpri_optimizer_skipped(mpr_optimizer *opt, bool *skipped, Err *err);
mpr_status mpri_optimizer_flag(mpr_optimizer *opt, bool found, Err *err);
/* Multiplies the gradients by the factors that were kept for the step. */
mpr_status mpri_optimizer_settle(mpr_optimizer *opt, Err *err);
mpr_status mpri_optimizer_clip(mpr_optimizer *opt, float max_norm, float *norm, Err *err);
/* The update itself; nothing changes when the flag is set. */
mpr_status mpri_optimizer_apply(mpr_optimizer *opt, Err *err);
/* Without a scaler: check, then apply unless something is not finite. */
mpr_status mpri_optimizer_step(mpr_optimizer *opt, mpr_step_outcome *outcome, Err *err);
/* Number of slots that hold its state, and their names (moments, step counters): for checkpoints;
 * -1 on failure. */
int mpri_optimizer_slots(const mpr_optimizer *opt, Arena *arena, const char *const **names,
                         Err *err);

/* ---- optimizer_plan.c ---- */
/* "optimizer0:state": slot names of an optimizer; moments are named by kind and parameter. */
mpr_status mpri_optimizer_make_slots(mpr_optimizer *opt, Err *err);
/* The plan of one part for the gradients present. */
mpr_status mpri_optimizer_plan(mpr_optimizer *opt, UpdatePart part, Plan **out, Err *err);
void mpri_optimizer_plans_free(mpr_optimizer *opt);

#endif
