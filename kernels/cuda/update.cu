/* Gradient accumulation, unscale and check, clipping, SGD and Adam, and the loss scale: everything that a
 * step decides, decided on the device. The arithmetic is that of kernels/update_rule.h, operation by
 * operation (this file is compiled without fused multiply-adds), so bits and skipped steps are the CPU's.
 *
 * Many tensors per launch: a launch carries pointers and sizes of up to MANY tensors as its parameters;
 * block b finds its chunk by them. Traffic: unscale reads (and, with a scale, writes) every gradient once;
 * Adam reads p, g, m, v and writes p, m, v. 256 threads a block, 4,096 elements a block. */
#include "kernels/cuda/kernel.cuh"

#include <math.h>

extern "C" {
#include "kernels/ledger_rule.h"
}

enum { MANY = 40, UPDATE_THREADS = 256 };

typedef struct Many {
    int n;
    float *p[MANY][4];
    int64_t size[MANY];
    uint32_t first_block[MANY + 1]; /* of tensor k, in blocks of UPDATE_BLOCK */
    float rate[MANY], decay[MANY];
    int64_t block_base;             /* blocks of the launches before */
    int rule_base;                  /* tensors of the launches before */
} Many;

/* The tensor that holds block b of a launch. */
static __device__ __forceinline__ int tensor_of(const Many &m, uint32_t b)
{
    int k = 0;
    while (k + 1 < m.n && m.first_block[k + 1] <= b) k++;
    return k;
}

static __host__ __device__ inline int64_t update_blocks(int64_t n)
{
    return (n + UPDATE_BLOCK - 1) / UPDATE_BLOCK;
}

/* Fills m with tensors from input *k on, `step` inputs each, of which `pointers` are wanted from
 * `offset` on. False: none is left. */
static bool gather(Many *m, const KernelCall *c, int *k, int step, int offset, int pointers,
                   const Floats *rate, const Floats *decay)
{
    m->block_base += m->n ? m->first_block[m->n] : 0;
    m->rule_base += m->n;
    m->n = 0;
    m->first_block[0] = 0;
    for (; *k < c->n_in && m->n < MANY; *k += step) {
        const Tensor *t = &c->in[*k];
        int param = (*k - UPDATE_FIRST) / step;
        for (int j = 0; j < pointers; j++) m->p[m->n][j] = (float *)t[offset + j].data;
        m->size[m->n] = t->n;
        m->rate[m->n] = rate && rate->n ? rate->v[param] : 1;
        m->decay[m->n] = decay && decay->n ? decay->v[param] : 1;
        m->first_block[m->n + 1] = m->first_block[m->n] + (uint32_t)update_blocks(t->n);
        m->n++;
    }
    return m->n > 0;
}

static int64_t all_blocks(const Tensor *in, int n_in, int step)
{
    int64_t n = 0;
    for (int k = UPDATE_FIRST; k < n_in; k += step) n += update_blocks(in[k].n);
    return n;
}

/* ---- accumulation ---- */

__global__ void k_accumulate(float *acc, const void *dw, int type, const int32_t *add, int64_t n)
{
    bool sum = *add != 0;
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        float v = load_float(dw, type, i);
        acc[i] = sum ? acc[i] + v : v;
    }
}

static mpr_status accumulate(const KernelCall *c)
{
    int64_t n = c->in[0].n;
    if (!n) return MPR_OK;
    MPRI_LAUNCH(k_accumulate, blocks_for(n, UPDATE_THREADS), UPDATE_THREADS, 0, c->queue,
                (float *)c->in[0].data, c->in[1].data, (int)c->in[1].dtype, (const int32_t *)c->in[2].data,
                n);
    return MPR_OK;
}

static const char *refuse_accumulate(const KernelSig *s)
{
    if (s->in[2].dtype != MPR_INT32) return "the flag is int32";
    return cuda_float(s->in[1].dtype) ? NULL : CUDA_NOT_FLOAT;
}

/* ---- unscale: a value that is not finite, before or after the multiply, leaves a square that is not,
 * and no sum of finite squares overflows double ---- */

/* A block of threads takes one block of elements. Sum j of it is that of elements j, j + 16, …: thread
 * t of the first 16 lanes' worth adds nothing out of that order, so each of 16 threads walks its own. */
__global__ void k_unscale(Many m, const float *scale, double *squares)
{
    MPRI_SHARED(float, value, UPDATE_BLOCK);
    MPRI_SHARED(double, sums, UPDATE_SUMS);
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK;
    int64_t left = m.size[k] - from;
    int n = left < UPDATE_BLOCK ? (int)left : (int)UPDATE_BLOCK;
    float inv = mpri_rule_inverse(*scale), *g = m.p[k][0] + from;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = g[i];
        if (inv != 1) g[i] = v = v * inv;
        value[i] = v;
    }
    __syncthreads();
    if (threadIdx.x < UPDATE_SUMS) {
        double sum = 0;
        for (int i = threadIdx.x; i < n; i += UPDATE_SUMS) {
            double v = (double)(float)value[i];
            sum += v * v;
        }
        sums[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double all[UPDATE_SUMS];
        for (int j = 0; j < UPDATE_SUMS; j++) all[j] = sums[j];
        squares[m.block_base + blockIdx.x] = mpri_update_join(all);
    }
}

/* A thread per tensor adds its blocks in order. */
__global__ void k_tensor_squares(Many m, const double *squares, double *tensors)
{
    int k = (int)threadIdx.x;
    if (k >= m.n) return;
    double sum = 0;
    for (int64_t b = m.first_block[k]; b < m.first_block[k + 1]; b++) sum += squares[m.block_base + b];
    tensors[m.rule_base + k] = sum;
}

/* Wrong data in the forward pass keep the step from being applied, too. */
__global__ void k_total_squares(double *state, const double *tensors, int n, const DeviceFault *fault)
{
    double total = 0;
    for (int k = 0; k < n; k++) total += tensors[k];
    if (!isfinite(total) || (fault && fault->step >= 0)) state[STATE_FOUND] = 1;
    state[STATE_SQUARES] = total;
    state[STATE_NORM] = (float)sqrt(total);
}

static mpr_status unscale(const KernelCall *c)
{
    double *squares = (double *)c->workspace, *tensors = squares + all_blocks(c->in, c->n_in, 1);
    Many m = {};
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 1, 0, 1, NULL, NULL);) {
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_unscale, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m,
                        (const float *)c->in[1].data, squares);
        MPRI_LAUNCH(k_tensor_squares, 1, 64, 0, c->queue, m, squares, tensors);
    }
    MPRI_LAUNCH(k_total_squares, 1, 1, 0, c->queue, (double *)c->in[0].data, tensors,
                c->n_in - UPDATE_FIRST, c->device_fault);
    return MPR_OK;
}

static size_t unscale_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)(all_blocks(s->in, s->n_in, 1) + s->n_in) * sizeof(double);
}

/* ---- clip ---- */

__global__ void k_clip_factor(double *state, const float *max_norm, float *factor)
{
    *factor = mpri_rule_clip(state, (double)*max_norm);
}

__global__ void k_clip(Many m, const float *factor)
{
    float f = *factor;
    if (f == 1) return;
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK, end = from + UPDATE_BLOCK;
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x) m.p[k][0][i] *= f;
}

static mpr_status clip(const KernelCall *c)
{
    float *factor = (float *)c->workspace;
    Many m = {};
    MPRI_LAUNCH(k_clip_factor, 1, 1, 0, c->queue, (double *)c->in[0].data, (const float *)c->in[1].data,
                factor);
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 1, 0, 1, NULL, NULL);)
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_clip, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m, factor);
    return MPR_OK;
}

static size_t clip_bytes(const KernelSig *s, int threads)
{
    (void)s;
    (void)threads;
    return sizeof(float);
}

/* ---- SGD ---- */

__global__ void k_begin(double *state) { (void)mpri_rule_begin(state); }

/* The scalars of every tensor, once. */
__global__ void k_sgd_rules(Many m, const double *state, const double *hyper, int nesterov,
                            SgdRule *rules)
{
    int k = (int)threadIdx.x;
    if (k < m.n && state[STATE_SKIPPED] == 0)
        rules[m.rule_base + k] = mpri_rule_sgd(state, hyper, (double)m.rate[k], (double)m.decay[k],
                                               nesterov != 0);
}

__global__ void k_sgd(Many m, const double *state, const SgdRule *rules)
{
    if (state[STATE_SKIPPED] != 0) return;
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK, end = from + UPDATE_BLOCK;
    SgdRule r = rules[m.rule_base + k];
    float *p = m.p[k][0], *buf = m.p[k][2];
    const float *g = m.p[k][1];
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x) {
        float d = g[i] + mpri_update_decay(r.wd, p[i]);
        if (r.momentum != 0) {
            float b = r.first ? d : r.momentum * buf[i] + r.rest * d;
            buf[i] = b;
            d = r.nesterov ? d + r.momentum * b : b;
        }
        p[i] = p[i] - r.lr * d;
    }
}

static mpr_status sgd(const KernelCall *c)
{
    const SgdParams *p = (const SgdParams *)c->params;
    double *state = (double *)c->in[0].data;
    SgdRule *rules = (SgdRule *)c->workspace;
    Many m = {};
    MPRI_LAUNCH(k_begin, 1, 1, 0, c->queue, state);
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 3, 0, 3, &p->lr_scale, &p->decay_scale);) {
        MPRI_LAUNCH(k_sgd_rules, 1, 64, 0, c->queue, m, state, (const double *)c->in[1].data,
                    (int)p->nesterov, rules);
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_sgd, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m, state, rules);
    }
    return MPR_OK;
}

static size_t sgd_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)(s->n_in / 3 + 1) * sizeof(SgdRule);
}

/* ---- Adam ---- */

__global__ void k_adam_rules(Many m, const double *state, const double *hyper, int decoupled,
                             AdamRule *rules)
{
    int k = (int)threadIdx.x;
    if (k < m.n && state[STATE_SKIPPED] == 0)
        rules[m.rule_base + k] = mpri_rule_adam(state, hyper, (double)m.rate[k], (double)m.decay[k],
                                                decoupled != 0);
}

__global__ void k_adam(Many m, const double *state, const AdamRule *rules)
{
    if (state[STATE_SKIPPED] != 0) return;
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK, end = from + UPDATE_BLOCK;
    AdamRule r = rules[m.rule_base + k];
    float *p = m.p[k][0], *mean = m.p[k][2], *square = m.p[k][3];
    const float *grad = m.p[k][1];
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x) {
        float w = r.decoupled ? p[i] * r.keep : p[i];
        float g = r.decoupled ? grad[i] : grad[i] + mpri_update_decay(r.wd, w);
        float a = mean[i] + r.rest1 * (g - mean[i]);
        float b = r.beta2 * square[i] + r.rest2 * g * g;
        mean[i] = a;
        square[i] = b;
        p[i] = w - r.step_size * (a / (sqrtf(b) / r.bc + r.epsilon));
    }
}

static mpr_status adam(const KernelCall *c)
{
    const AdamParams *p = (const AdamParams *)c->params;
    double *state = (double *)c->in[0].data;
    AdamRule *rules = (AdamRule *)c->workspace;
    Many m = {};
    MPRI_LAUNCH(k_begin, 1, 1, 0, c->queue, state);
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 4, 0, 4, &p->lr_scale, &p->decay_scale);) {
        MPRI_LAUNCH(k_adam_rules, 1, 64, 0, c->queue, m, state, (const double *)c->in[1].data,
                    (int)p->decoupled, rules);
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_adam, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m, state, rules);
    }
    return MPR_OK;
}

static size_t adam_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)(s->n_in / 4 + 1) * sizeof(AdamRule);
}

/* ---- the loss scale ---- */

__global__ void k_loss_scale(float *out, const double *scaler, const double *divisor)
{
    *out = (float)(scaler[SCALER_SCALE] / *divisor);
}

static mpr_status loss_scale(const KernelCall *c)
{
    MPRI_LAUNCH(k_loss_scale, 1, 1, 0, c->queue, (float *)c->in[0].data, (const double *)c->in[1].data,
                (const double *)c->in[2].data);
    return MPR_OK;
}

enum { MOST_STATES = 32 };
typedef struct States {
    const double *v[MOST_STATES];
    int n;
} States;

__global__ void k_scale_update(double *scaler, const double *rule, States states)
{
    bool found = false;
    for (int k = 0; k < states.n; k++) found |= states.v[k][STATE_FOUND] != 0;
    mpri_rule_scale(scaler, rule, states.n, found);
}

static mpr_status scale_update(const KernelCall *c)
{
    States s = {};
    for (int k = UPDATE_FIRST; k < c->n_in; k++) s.v[s.n++] = (const double *)c->in[k].data;
    MPRI_LAUNCH(k_scale_update, 1, 1, 0, c->queue, (double *)c->in[0].data, (const double *)c->in[1].data, s);
    return MPR_OK;
}

static const char *refuse_states(const KernelSig *s)
{
    return s->n_in - UPDATE_FIRST <= MOST_STATES ? NULL : "more than 32 optimizers";
}

/* ---- the ledger of a loop whose host looks late ---- */

__global__ void k_ledger_loss(double *ledger, const double *note, const void *loss, int type)
{
    mpri_ledger_loss(ledger, note, type == MPR_FLOAT64 ? (float)*(const double *)loss
                                                       : load_float(loss, type, 0));
}

static mpr_status ledger_loss(const KernelCall *c)
{
    MPRI_LAUNCH(k_ledger_loss, 1, 1, 0, c->queue, (double *)c->in[0].data, (const double *)c->in[1].data,
                (const void *)c->in[2].data, (int)c->in[2].dtype);
    return MPR_OK;
}

__global__ void k_ledger_judge(double *ledger, const double *close, double *state, double *hyper,
                               const double *scaler, const double *rule, const DeviceFault *fault)
{
    mpri_ledger_judge(ledger, close, state, hyper, scaler, rule, fault && fault->step >= 0);
}

static mpr_status ledger_judge(const KernelCall *c)
{
    MPRI_LAUNCH(k_ledger_judge, 1, 1, 0, c->queue, (double *)c->in[0].data, (const double *)c->in[1].data,
                (double *)c->in[2].data, (double *)c->in[3].data, (const double *)c->in[4].data,
                (const double *)c->in[5].data, (const DeviceFault *)c->device_fault);
    return MPR_OK;
}

__global__ void k_ledger_close(double *ledger, const double *close, const double *state, double *scaler,
                               const double *rule)
{
    mpri_ledger_close(ledger, close, state, scaler, rule);
}

static mpr_status ledger_close(const KernelCall *c)
{
    MPRI_LAUNCH(k_ledger_close, 1, 1, 0, c->queue, (double *)c->in[0].data, (const double *)c->in[1].data,
                (const double *)c->in[2].data, (double *)c->in[3].data, (const double *)c->in[4].data);
    return MPR_OK;
}

__global__ void k_ledger_keep(Many m, const double *ledger)
{
    if (ledger[LEDGER_HELD] != 0) return;
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK, end = from + UPDATE_BLOCK;
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x) m.p[k][1][i] = m.p[k][0][i];
}

static mpr_status ledger_keep(const KernelCall *c)
{
    Many m = {};
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 2, 0, 2, NULL, NULL);)
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_ledger_keep, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m,
                        (const double *)c->in[0].data);
    return MPR_OK;
}

static const KernelRow rows[] = {
    CUDA_ROW(AccumulateGrad, "accumulategrad", accumulate, .refuse = refuse_accumulate),
    CUDA_ROW(UnscaleCheck, "unscalecheck", unscale, .workspace = unscale_bytes),
    CUDA_ROW(ClipGradNorm, "clipgradnorm", clip, .workspace = clip_bytes),
    CUDA_ROW(SgdStep, "sgdstep", sgd, .workspace = sgd_bytes),
    CUDA_ROW(AdamStep, "adamstep", adam, .workspace = adam_bytes),
    CUDA_ROW(LossScale, "lossscale", loss_scale),
    CUDA_ROW(ScaleUpdate, "scaleupdate", scale_update, .refuse = refuse_states),
    CUDA_ROW(LedgerLoss, "ledgerloss", ledger_loss),
    CUDA_ROW(LedgerJudge, "ledgerjudge", ledger_judge),
    CUDA_ROW(LedgerClose, "ledgerclose", ledger_close),
    CUDA_ROW(LedgerKeep, "ledgerkeep", ledger_keep),
};
extern "C" const KernelTable mpri_cuda_update = CUDA_TABLE(rows);
