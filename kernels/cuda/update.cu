/* Gradient accumulation, unscale and check, clipping, SGD and Adam. The arithmetic is that of
 * kernels/update_rule.h, operation by operation (this file is compiled without fused multiply-adds), so bits
 * and skipped steps are the CPU's.
 *
 * Where the factors are kept for the step (KeepParams.keep, what a session asks for) unscale reads every
 * gradient once, clipping touches none, and the step multiplies as it reads. Adam reads p, g, m, v and writes
 * p, m, v and the 16-bit copy of p. 256 threads a block, 4,096 elements a block, many tensors a launch. */
#include "kernels/cuda/update.cuh"

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
__global__ void k_unscale(Many m, const float *scale, int keep, double *squares)
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
        if (inv != 1) v = v * inv;
        if (inv != 1 && !keep) g[i] = v;
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
__global__ void k_total_squares(double *state, const double *tensors, int n, const float *scale, int keep,
                                const DeviceFault *fault)
{
    double total = 0;
    state[STATE_INVERSE] = keep ? mpri_rule_keep(mpri_rule_inverse(*scale)) : 0;
    state[STATE_FACTOR] = 0;
    for (int k = 0; k < n; k++) total += tensors[k];
    if (!isfinite(total) || (fault && fault->step >= 0)) state[STATE_FOUND] = 1;
    state[STATE_SQUARES] = total;
    state[STATE_NORM] = (float)sqrt(total);
}

static mpr_status unscale(const KernelCall *c)
{
    bool keep = mpri_update_keeps(c);
    double *squares = (double *)c->workspace, *tensors = squares + all_blocks(c->in, c->n_in, 1);
    const Ints none = {};
    Many m = {};
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 1, 0, 1, NULL, NULL, none);) {
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_unscale, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m,
                        (const float *)c->in[1].data, (int)keep, squares);
        MPRI_LAUNCH(k_tensor_squares, 1, 64, 0, c->queue, m, squares, tensors);
    }
    MPRI_LAUNCH(k_total_squares, 1, 1, 0, c->queue, (double *)c->in[0].data, tensors,
                c->n_in - UPDATE_FIRST, (const float *)c->in[1].data, (int)keep, c->device_fault);
    return MPR_OK;
}

static size_t unscale_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)(all_blocks(s->in, s->n_in, 1) + s->n_in) * sizeof(double);
}

/* ---- clip ---- */

__global__ void k_clip_factor(double *state, const float *max_norm)
{
    state[STATE_FACTOR] = mpri_rule_keep(mpri_rule_clip(state, (double)*max_norm));
}

/* Multiplies by what is kept in the state. */
__global__ void k_scale(Many m, const double *state)
{
    KeptRule kept = mpri_rule_kept(state);
    if (kept.inverse == 1 && kept.factor == 1) return;
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK, end = from + UPDATE_BLOCK;
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x)
        m.p[k][0][i] = mpri_update_kept(kept, m.p[k][0][i]);
}

__global__ void k_scaled(double *state) { state[STATE_INVERSE] = state[STATE_FACTOR] = 0; }

static mpr_status scale_grads(const KernelCall *c)
{
    double *state = (double *)c->in[0].data;
    const Ints none = {};
    Many m = {};
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 1, 0, 1, NULL, NULL, none);)
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_scale, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m, (const double *)state);
    MPRI_LAUNCH(k_scaled, 1, 1, 0, c->queue, state);
    return MPR_OK;
}

static mpr_status clip(const KernelCall *c)
{
    MPRI_LAUNCH(k_clip_factor, 1, 1, 0, c->queue, (double *)c->in[0].data, (const float *)c->in[1].data);
    return mpri_update_keeps(c) ? MPR_OK : scale_grads(c);
}

/* ---- 16-bit copies ---- */

__global__ void k_copy(Many m)
{
    int k = tensor_of(m, blockIdx.x);
    int64_t from = (int64_t)(blockIdx.x - m.first_block[k]) * UPDATE_BLOCK, end = from + UPDATE_BLOCK;
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x)
        store_float(m.copy[k], m.copy_type[k], i, m.p[k][0][i]);
}

static void add_copy(Many *m, const Tensor *p, const Tensor *copy)
{
    m->p[m->n][0] = (float *)p->data;
    m->copy[m->n] = copy->data;
    m->copy_type[m->n] = (unsigned char)copy->dtype;
    m->size[m->n] = p->n;
    m->first_block[m->n + 1] = m->first_block[m->n] + (uint32_t)update_blocks(p->n);
    m->n++;
}

static void launch_copies(Many *m, const KernelCall *c)
{
    if (m->n && m->first_block[m->n])
        MPRI_LAUNCH(k_copy, m->first_block[m->n], UPDATE_THREADS, 0, c->queue, *m);
    m->n = 0;
}

static mpr_status copy_params(const KernelCall *c)
{
    Many m = {};
    for (int k = 0; k + 1 < c->n_in; k += 2) {
        add_copy(&m, &c->in[k], &c->in[k + 1]);
        if (m.n == MANY) launch_copies(&m, c);
    }
    launch_copies(&m, c);
    return MPR_OK;
}

/* A parameter's second copy, in the other type. After a skipped step it is what it was. */
static void further_copies(const KernelCall *c, Ints copy_of, int step)
{
    int end = mpri_update_end(c->n_in, copy_of);
    Many m = {};
    for (int64_t j = 1; j < copy_of.n; j++) {
        if (copy_of.v[j] != copy_of.v[j - 1]) continue;
        add_copy(&m, &c->in[UPDATE_FIRST + copy_of.v[j] * step], &c->in[end + j]);
        if (m.n == MANY) launch_copies(&m, c);
    }
    launch_copies(&m, c);
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
    KeptRule kept = mpri_rule_kept(state);
    float *p = m.p[k][0], *buf = m.p[k][2];
    const float *g = m.p[k][1];
    void *copy = m.copy[k];
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x) {
        float d = mpri_update_kept(kept, g[i]) + mpri_update_decay(r.wd, p[i]);
        if (r.momentum != 0) {
            float b = r.first ? d : r.momentum * buf[i] + r.rest * d;
            buf[i] = b;
            d = r.nesterov ? d + r.momentum * b : b;
        }
        p[i] = d = p[i] - r.lr * d;
        if (copy) store_float(copy, m.copy_type[k], i, d);
    }
}

static mpr_status sgd(const KernelCall *c)
{
    const SgdParams *p = (const SgdParams *)c->params;
    double *state = (double *)c->in[0].data;
    SgdRule *rules = (SgdRule *)c->workspace;
    Many m = {};
    MPRI_LAUNCH(k_begin, 1, 1, 0, c->queue, state);
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 3, 0, 3, &p->lr_scale, &p->decay_scale, p->copy_of);) {
        MPRI_LAUNCH(k_sgd_rules, 1, 64, 0, c->queue, m, state, (const double *)c->in[1].data,
                    (int)p->nesterov, rules);
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_sgd, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m, state, rules);
    }
    further_copies(c, p->copy_of, 3);
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
    KeptRule kept = mpri_rule_kept(state);
    float *p = m.p[k][0], *mean = m.p[k][2], *square = m.p[k][3];
    const float *grad = m.p[k][1];
    void *copy = m.copy[k];
    if (end > m.size[k]) end = m.size[k];
    for (int64_t i = from + threadIdx.x; i < end; i += blockDim.x) {
        float w = r.decoupled ? p[i] * r.keep : p[i];
        float g = mpri_update_kept(kept, grad[i]);
        if (!r.decoupled) g = g + mpri_update_decay(r.wd, w);
        float a = mean[i] + r.rest1 * (g - mean[i]);
        float b = r.beta2 * square[i] + r.rest2 * g * g;
        mean[i] = a;
        square[i] = b;
        p[i] = w = w - r.step_size * (a / (sqrtf(b) / r.bc + r.epsilon));
        if (copy) store_float(copy, m.copy_type[k], i, w);
    }
}

static mpr_status adam(const KernelCall *c)
{
    const AdamParams *p = (const AdamParams *)c->params;
    double *state = (double *)c->in[0].data;
    AdamRule *rules = (AdamRule *)c->workspace;
    Many m = {};
    MPRI_LAUNCH(k_begin, 1, 1, 0, c->queue, state);
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 4, 0, 4, &p->lr_scale, &p->decay_scale, p->copy_of);) {
        MPRI_LAUNCH(k_adam_rules, 1, 64, 0, c->queue, m, state, (const double *)c->in[1].data,
                    (int)p->decoupled, rules);
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_adam, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m, state, rules);
    }
    further_copies(c, p->copy_of, 4);
    return MPR_OK;
}

static size_t adam_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)(s->n_in / 4 + 1) * sizeof(AdamRule);
}

static const KernelRow rows[] = {
    CUDA_ROW(AccumulateGrad, "accumulategrad", accumulate, .refuse = refuse_accumulate),
    CUDA_ROW(UnscaleCheck, "unscalecheck", unscale, .workspace = unscale_bytes),
    CUDA_ROW(ClipGradNorm, "clipgradnorm", clip),
    CUDA_ROW(ScaleGrads, "scalegrads", scale_grads),
    CUDA_ROW(SgdStep, "sgdstep", sgd, .workspace = sgd_bytes),
    CUDA_ROW(AdamStep, "adamstep", adam, .workspace = adam_bytes),
    CUDA_ROW(CopyParams, "copyparams", copy_params),
};
extern "C" const KernelTable mpri_cuda_update = CUDA_TABLE(rows);
