/* Learning rate schedules: a factor on the base rate as a function of the number of real updates,
 * with the formulas of transformers/optimization.py. */
#ifndef MPRI_TRAIN_SCHEDULE_H
#define MPRI_TRAIN_SCHEDULE_H

#include "runtime/train/session.h"

typedef enum ScheduleKind {
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_COSINE_RESTARTS,
    SCHEDULE_POLYNOMIAL,
    SCHEDULE_CONSTANT,
    SCHEDULE_CONSTANT_WARMUP,
    SCHEDULE_INVERSE_SQRT,
    SCHEDULE_PLATEAU,
    SCHEDULE_KINDS
} ScheduleKind;

/* reduce_lr_on_plateau: torch.optim.lr_scheduler.ReduceLROnPlateau with its defaults. */
typedef struct Plateau {
    double factor, best;
    int64_t bad; /* evaluations without improvement */
    bool seen;
} Plateau;

struct mpr_schedule {
    Handle h;
    mpr_session *s;
    ScheduleKind kind;
    double warmup, total, base;
    Plateau plateau;
};

mpr_status mpri_schedule_create(mpr_session *s, const mpr_schedule_options *options,
                                mpr_schedule **out, Err *err);
double mpri_schedule_factor(const mpr_schedule *schedule, int64_t updates);
void mpri_schedule_destroy(mpr_schedule *schedule);
/* Tell a plateau schedule the metric of an evaluation; others ignore it. */
void mpri_schedule_metric(mpr_schedule *schedule, double metric, bool greater_is_better);

#endif
