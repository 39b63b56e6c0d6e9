/* The scalar side of the update: what each optimizer step derives from its state and
 * hyper-parameters, and the tree of the sum of squares. Every device takes it from here, because it
 * defines the training bits; runtime/op/update.c states the contract. */
#ifndef MPRI_UPDATE_RULE_H
#define MPRI_UPDATE_RULE_H

#include <math.h>
#include <string.h>
#include "runtime/base/philox.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/params.h"

/* Inputs of UnscaleCheck, ClipGradNorm, SgdStep, AdamStep begin with the state and one slot. */
enum { UPDATE_FIRST = 2, UPDATE_BLOCK = 4096, UPDATE_SUMS = 16 };
/* Inputs of the optimizers that belong to parameters; the 16-bit copies are behind them. */
static inline int mpri_update_end(int n_in, Ints copy_of) { return n_in - (int)copy_of.n; }
enum {
    STATE_FOUND,
    STATE_SQUARES,
    STATE_NORM,
    STATE_STEP,
    STATE_SKIPPED,
    STATE_INVERSE, /* factors that gradients were not multiplied by yet; 0: none */
    STATE_FACTOR
};

/* 1 / scale, rounded once. */
MPRI_RULE float mpri_rule_inverse(float scale) { return (float)(1.0 / (double)scale); }

/* Sum j of a block takes elements j, j + 16, j + 32 …; then the upper half joins the lower. */
MPRI_RULE double mpri_update_join(double *sums)
{
    for (int half = UPDATE_SUMS / 2; half; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

/* Stores norm and returns the clip factor, rounded once; 1 when the buffers stay as they are. In
 * double: the norm of finite gradients may lie above the largest float. */
MPRI_RULE float mpri_rule_clip(double *state, double max_norm)
{
    double norm = sqrt(state[STATE_SQUARES]);
    state[STATE_NORM] = (float)norm;
    if (state[STATE_FOUND] != 0 || max_norm == 0) return 1;
    double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? (float)factor : 1;
}

/* Gradients as the step sees them. */
typedef struct KeptRule {
    float inverse, factor; /* 1 where nothing was kept */
} KeptRule;

/* A factor of 0 is kept as -0. */
MPRI_RULE double mpri_rule_keep(float factor) { return factor == 0 ? -0.0 : (double)factor; }

MPRI_RULE float mpri_kept_factor(double kept)
{
    if (kept == 0) return signbit(kept) ? 0.0f : 1.0f;
    return (float)kept;
}

MPRI_RULE KeptRule mpri_rule_kept(const double *state)
{
    KeptRule r;
    r.inverse = mpri_kept_factor(state[STATE_INVERSE]);
    r.factor = mpri_kept_factor(state[STATE_FACTOR]);
    return r;
}

MPRI_RULE float mpri_update_kept(KeptRule r, float g)
{
    if (r.inverse != 1) g *= r.inverse;
    if (r.factor != 1) g *= r.factor;
    return g;
}

/* False: the step is skipped. Else the step count has grown. */
MPRI_RULE bool mpri_rule_begin(double *state)
{
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

/* Without decay nothing is added: 0 * inf would be NaN. */
MPRI_RULE float mpri_update_decay(float wd, float p) { return wd != 0 ? wd * p : 0; }

typedef struct SgdRule {
    float lr, wd, momentum, rest; /* rest = 1 - dampening */
    bool first, nesterov;
} SgdRule;

/* rate, decay: factors of this parameter. */
MPRI_RULE SgdRule mpri_rule_sgd(const double *state, const double *hyper, double rate, double decay,
                                bool nesterov)
{
    SgdRule r;
    r.lr = (float)(hyper[HYPER_RATE] * rate);
    r.wd = (float)(hyper[HYPER_DECAY] * decay);
    r.momentum = (float)hyper[HYPER_MOMENTUM];
    r.rest = (float)(1 - hyper[HYPER_DAMPENING]);
    r.first = state[STATE_STEP] == 1;
    r.nesterov = nesterov;
    return r;
}

typedef struct AdamRule {
    float keep;       /* 1 - lr * wd, decoupled decay */
    float wd;         /* else */
    float beta2, rest1, rest2, step_size, bc, epsilon;
    bool decoupled;
} AdamRule;

MPRI_RULE AdamRule mpri_rule_adam(const double *state, const double *hyper, double rate,
                                  double decay, bool decoupled)
{
    double lr = hyper[HYPER_RATE] * rate, wd = hyper[HYPER_DECAY] * decay;
    double beta1 = hyper[HYPER_BETA1], beta2 = hyper[HYPER_BETA2], t = state[STATE_STEP];
    AdamRule r;
    r.keep = (float)(1 - lr * wd);
    r.wd = (float)wd;
    r.beta2 = (float)beta2;
    r.rest1 = (float)(1 - beta1);
    r.rest2 = (float)(1 - beta2);
    r.step_size = (float)(lr / (1 - pow(beta1, t)));
    r.bc = (float)sqrt(1 - pow(beta2, t));
    r.epsilon = (float)hyper[HYPER_EPSILON];
    r.decoupled = decoupled;
    return r;
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
    RULE_CONSTANT, /* != 0: the scale stays */
    RULE_LIMIT     /* skips in a row that end the run; 0: none do */
};

MPRI_RULE void mpri_scale_fall(double *s, const double *rule)
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
    if (n == room) {
        n--;
        for (int i = 0; i < n; i++) s[SCALER_FALL + i] = s[SCALER_FALL + i + 1];
    }
    s[SCALER_FALL + n] = s[SCALER_SCALE];
    s[SCALER_FALLS] = n + 1;
    s[SCALER_SCALE] = lower;
}

MPRI_RULE void mpri_scale_clean(double *s, const double *rule)
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

/* states: how many optimizers were asked; found: one of them met a value that is not finite. */
MPRI_RULE void mpri_rule_scale(double *s, const double *rule, int states, bool found)
{
    if (!states) s[SCALER_EMPTY] += 1;
    else if (found) mpri_scale_fall(s, rule);
    else mpri_scale_clean(s, rule);
}

/* ---- the same from a call on the host ---- */

static inline double *mpri_update_state(const KernelCall *c) { return (double *)c->in[0].data; }
static inline const double *mpri_update_hyper(const KernelCall *c)
{
    return (const double *)c->in[1].data;
}
static inline double mpri_update_factor(const Floats *f, int64_t param)
{
    return f->n ? (double)f->v[param] : 1;
}

static inline float mpri_update_inverse(const KernelCall *c)
{
    return mpri_rule_inverse(*(const float *)c->in[1].data);
}

/* Left for the step instead of done. */
static inline bool mpri_update_keeps(const KernelCall *c)
{
    return c->params && ((const KeepParams *)c->params)->keep != 0;
}

static inline float mpri_update_clip(const KernelCall *c)
{
    return mpri_rule_clip(mpri_update_state(c), (double)*(const float *)c->in[1].data);
}

static inline bool mpri_update_begin(const KernelCall *c)
{
    return mpri_rule_begin(mpri_update_state(c));
}

static inline SgdRule mpri_update_sgd(const KernelCall *c, int64_t param)
{
    const SgdParams *p = (const SgdParams *)c->params;
    return mpri_rule_sgd(mpri_update_state(c), mpri_update_hyper(c),
                         mpri_update_factor(&p->lr_scale, param),
                         mpri_update_factor(&p->decay_scale, param), p->nesterov != 0);
}

static inline AdamRule mpri_update_adam(const KernelCall *c, int64_t param)
{
    const AdamParams *p = (const AdamParams *)c->params;
    return mpri_rule_adam(mpri_update_state(c), mpri_update_hyper(c),
                          mpri_update_factor(&p->lr_scale, param),
                          mpri_update_factor(&p->decay_scale, param), p->decoupled != 0);
}

/* Inputs scaler, rule, states. */
static inline void mpri_scale_update(const KernelCall *c)
{
    bool found = false;
    for (int k = UPDATE_FIRST; k < c->n_in; k++)
        found |= ((const double *)c->in[k].data)[STATE_FOUND] != 0;
    mpri_rule_scale((double *)c->in[0].data, (const double *)c->in[1].data, c->n_in - UPDATE_FIRST,
                    found);
}

#endif
