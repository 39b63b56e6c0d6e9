/* The scalar side of the update: what each optimizer step derives from its state and
 * hyper-parameters, and the tree of the sum of squares. Every device takes it from here, because it
 * defines the training bits; runtime/op/update.c states the contract. */
#ifndef MPRI_UPDATE_RULE_H
#define MPRI_UPDATE_RULE_H

#include <math.h>
#include <string.h>
#include "runtime/exec/kernel.h"
#include "runtime/op/params.h"

/* Inputs of UnscaleCheck, ClipGradNorm, SgdStep, AdamStep begin with the state and one slot. */
enum { UPDATE_FIRST = 2, UPDATE_BLOCK = 4096, UPDATE_SUMS = 16 };
enum { STATE_FOUND, STATE_SQUARES, STATE_NORM, STATE_STEP, STATE_SKIPPED };

static inline double *mpri_update_state(const KernelCall *c) { return c->in[0].data; }

/* 1 / scale, rounded once. */
static inline float mpri_update_inverse(const KernelCall *c)
{
    return (float)(1.0 / (double)*(const float *)c->in[1].data);
}

/* Sum j of a block takes elements j, j + 16, j + 32 …; then the upper half joins the lower. */
static inline double mpri_update_join(double sums[UPDATE_SUMS])
{
    for (int half = UPDATE_SUMS / 2; half; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

/* Stores norm and returns the clip factor, rounded once; 1 when the buffers stay as they are. In
 * double: the norm of finite gradients may lie above the largest float. */
static inline float mpri_update_clip(const KernelCall *c)
{
    double *state = mpri_update_state(c);
    double max_norm = (double)*(const float *)c->in[1].data, norm = sqrt(state[STATE_SQUARES]);
    state[STATE_NORM] = (float)norm;
    if (state[STATE_FOUND] != 0 || max_norm == 0) return 1;
    double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? (float)factor : 1;
}

/* False: the step is skipped. Else the step count has grown. */
static inline bool mpri_update_begin(const KernelCall *c)
{
    double *state = mpri_update_state(c);
    state[STATE_SKIPPED] = state[STATE_FOUND] != 0;
    if (state[STATE_SKIPPED] != 0) return false;
    state[STATE_STEP] += 1;
    return true;
}

enum {
    HYPER_RATE,
    HYPER_DECAY,
    HYPER_BETA1,
    HYPER_BETA2,
    HYPER_EPSILON,
    HYPER_MOMENTUM = HYPER_BETA1,
    HYPER_DAMPENING
};

static inline double mpri_update_hyper(const KernelCall *c, int index, const Floats *factor,
                                       int64_t param)
{
    double v = ((const double *)c->in[1].data)[index];
    return factor && factor->n ? v * (double)factor->v[param] : v;
}

/* Without decay nothing is added: 0 * inf would be NaN. */
static inline float mpri_update_decay(float wd, float p) { return wd != 0 ? wd * p : 0; }

typedef struct SgdRule {
    float lr, wd, momentum, rest; /* rest = 1 - dampening */
    bool first, nesterov;
} SgdRule;

static inline SgdRule mpri_update_sgd(const KernelCall *c, int64_t param)
{
    const SgdParams *p = c->params;
    return (SgdRule){(float)mpri_update_hyper(c, HYPER_RATE, &p->lr_scale, param),
                     (float)mpri_update_hyper(c, HYPER_DECAY, &p->decay_scale, param),
                     (float)mpri_update_hyper(c, HYPER_MOMENTUM, NULL, 0),
                     (float)(1 - mpri_update_hyper(c, HYPER_DAMPENING, NULL, 0)),
                     mpri_update_state(c)[STATE_STEP] == 1,
                     p->nesterov != 0};
}

typedef struct AdamRule {
    float keep;       /* 1 - lr * wd, decoupled decay */
    float wd;         /* else */
    float beta2, rest1, rest2, step_size, bc, epsilon;
    bool decoupled;
} AdamRule;

static inline AdamRule mpri_update_adam(const KernelCall *c, int64_t param)
{
    const AdamParams *p = c->params;
    double lr = mpri_update_hyper(c, HYPER_RATE, &p->lr_scale, param),
           wd = mpri_update_hyper(c, HYPER_DECAY, &p->decay_scale, param);
    double beta1 = mpri_update_hyper(c, HYPER_BETA1, NULL, 0),
           beta2 = mpri_update_hyper(c, HYPER_BETA2, NULL, 0);
    double t = mpri_update_state(c)[STATE_STEP];
    return (AdamRule){.keep = (float)(1 - lr * wd),
                      .wd = (float)wd,
                      .beta2 = (float)beta2,
                      .rest1 = (float)(1 - beta1),
                      .rest2 = (float)(1 - beta2),
                      .step_size = (float)(lr / (1 - pow(beta1, t))),
                      .bc = (float)sqrt(1 - pow(beta2, t)),
                      .epsilon = (float)mpri_update_hyper(c, HYPER_EPSILON, NULL, 0),
                      .decoupled = p->decoupled != 0};
}

/* ---- the loss scale ---- */

/* Whole numbers are exact in f64 far beyond any run. */
enum {
    SCALER_SCALE,
    SCALER_TRACKER,
    SCALER_LEFT, /* of the hysteresis */
    SCALER_ROW,  /* skips in a row */
    SCALER_SKIPS,
    SCALER_UPDATES,
    SCALER_EMPTY,
    SCALER_FALLS, /* how many scales follow: those before the last falls, newest last */
    SCALER_FALL,
    SCALER_SIZE = 16
};
enum {
    RULE_GROWTH,
    RULE_BACKOFF,
    RULE_INTERVAL,
    RULE_MIN,
    RULE_MAX,
    RULE_HYSTERESIS,
    RULE_CONSTANT /* != 0: the scale stays */
};

static inline void mpri_scale_fall(double *s, const double *rule)
{
    s[SCALER_TRACKER] = 0;
    s[SCALER_ROW] += 1;
    s[SCALER_SKIPS] += 1;
    if (s[SCALER_LEFT] > 0) s[SCALER_LEFT] -= 1;
    if (s[SCALER_LEFT] > 0 || rule[RULE_CONSTANT] != 0) return;
    double lower = (double)(float)(s[SCALER_SCALE] * rule[RULE_BACKOFF]);
    if (lower < rule[RULE_MIN]) lower = rule[RULE_MIN];
    if (lower == s[SCALER_SCALE]) return;
    int n = (int)s[SCALER_FALLS], room = SCALER_SIZE - SCALER_FALL;
    if (n == room) memmove(s + SCALER_FALL, s + SCALER_FALL + 1, (size_t)--n * sizeof(*s));
    s[SCALER_FALL + n] = s[SCALER_SCALE];
    s[SCALER_FALLS] = n + 1;
    s[SCALER_SCALE] = lower;
}

static inline void mpri_scale_clean(double *s, const double *rule)
{
    s[SCALER_ROW] = 0;
    s[SCALER_UPDATES] += 1;
    s[SCALER_TRACKER] += 1;
    if (s[SCALER_TRACKER] < rule[RULE_INTERVAL]) return;
    double higher = (double)(float)(s[SCALER_SCALE] * rule[RULE_GROWTH]);
    if (isfinite(higher) && rule[RULE_CONSTANT] == 0)
        s[SCALER_SCALE] = higher < rule[RULE_MAX] ? higher : rule[RULE_MAX];
    s[SCALER_TRACKER] = 0;
    s[SCALER_LEFT] = rule[RULE_HYSTERESIS];
}

/* Inputs scaler, rule, states. */
static inline void mpri_scale_update(const KernelCall *c)
{
    double *s = c->in[0].data;
    const double *rule = c->in[1].data;
    bool found = false;
    for (int k = UPDATE_FIRST; k < c->n_in; k++)
        found |= ((const double *)c->in[k].data)[STATE_FOUND] != 0;
    if (c->n_in == UPDATE_FIRST) s[SCALER_EMPTY] += 1;
    else if (found) mpri_scale_fall(s, rule);
    else mpri_scale_clean(s, rule);
}

#endif
