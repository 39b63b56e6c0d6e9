/* The scalar side of the update: what each optimizer step derives from its state and hyper-parameters, and
 * the tree of the sum of squares. Every device takes it from here, because it defines the training bits;
 * runtime/op/update.c states the contract. */
#ifndef MPRI_UPDATE_RULE_H
#define MPRI_UPDATE_RULE_H

#include <math.h>
#include "runtime/exec/kernel.h"
#include "runtime/op/params.h"

/* Inputs of UnscaleCheck, ClipGradNorm, SgdStep, AdamStep begin with the state and one more slot. */
enum { UPDATE_FIRST = 2, UPDATE_BLOCK = 4096, UPDATE_SUMS = 16 };
enum { STATE_FOUND, STATE_SQUARES, STATE_NORM, STATE_STEP };

static inline double *mpri_update_state(const KernelCall *c) { return c->in[0].data; }

/* 1 / scale, rounded once. */
static inline float mpri_update_inverse(const KernelCall *c)
{
    return (float)(1.0 / (double)*(const float *)c->in[1].data);
}

/* The sums of a block: sum j takes elements j, j + 16, j + 32 …; then the upper half joins the lower. */
static inline double mpri_update_join(double sums[UPDATE_SUMS])
{
    for (int half = UPDATE_SUMS / 2; half; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

/* Stores norm and returns the clip factor; 1 when the buffers stay as they are. */
static inline float mpri_update_clip(const KernelCall *c)
{
    double *state = mpri_update_state(c);
    float max_norm = *(const float *)c->in[1].data, norm = (float)sqrt(state[STATE_SQUARES]);
    state[STATE_NORM] = norm;
    if (state[STATE_FOUND] != 0 || max_norm == 0) return 1;
    float factor = max_norm / (norm + 1e-6f);
    return factor < 1 ? factor : 1;
}

/* False: the step is skipped. Else the step count has grown. */
static inline bool mpri_update_begin(const KernelCall *c)
{
    double *state = mpri_update_state(c);
    if (state[STATE_FOUND] != 0) return false;
    state[STATE_STEP] += 1;
    return true;
}

static inline float mpri_update_hyper(const KernelCall *c, int index, const Floats *factor, int64_t param)
{
    float v = ((const float *)c->in[1].data)[index];
    return factor->n ? v * factor->v[param] : v;
}

typedef struct SgdRule {
    float lr, wd, momentum, rest; /* rest = 1 - dampening */
    bool first, nesterov;
} SgdRule;

static inline SgdRule mpri_update_sgd(const KernelCall *c, int64_t param)
{
    const SgdParams *p = c->params;
    return (SgdRule){mpri_update_hyper(c, 0, &p->lr_scale, param), mpri_update_hyper(c, 1, &p->decay_scale, param),
                     p->momentum, 1 - p->dampening, mpri_update_state(c)[STATE_STEP] == 1, p->nesterov != 0};
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
    float lr = mpri_update_hyper(c, 0, &p->lr_scale, param), wd = mpri_update_hyper(c, 1, &p->decay_scale, param);
    double t = mpri_update_state(c)[STATE_STEP];
    AdamRule r = {.keep = 1 - lr * wd, .wd = wd, .beta2 = p->beta2, .rest1 = 1 - p->beta1, .rest2 = 1 - p->beta2,
                  .epsilon = p->epsilon, .decoupled = p->decoupled != 0};
    r.step_size = (float)((double)lr / (1 - pow((double)p->beta1, t)));
    r.bc = (float)sqrt(1 - pow((double)p->beta2, t));
    return r;
}

#endif
