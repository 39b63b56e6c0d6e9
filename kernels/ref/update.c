/* Gradient accumulation and optimizers, in f32 exactly as runtime/op/update.c writes them: these
 * kernels define the training bits, so here a double would be wrong. Slots are read and written in
 * place. */
#include "kernels/ref/util.h"
#include "kernels/ledger_rule.h"

/* Inputs acc, dw, flag. */
static mpr_status k_accumulate(const KernelCall *c)
{
    float *acc = c->in[0].data;
    bool add = mpri_load_i64(c->in[2].dtype, c->in[2].data, 0) != 0;
    for (int64_t i = 0; i < c->in[0].n; i++) {
        float v = (float)mpri_ref_load(&c->in[1], i);
        acc[i] = add ? acc[i] + v : v;
    }
    return MPR_OK;
}

static double block_squares(const float *g, int64_t n, float factor)
{
    double sums[UPDATE_SUMS] = {0};
    for (int64_t i = 0; i < n; i++) {
        float v = factor != 1 ? g[i] * factor : g[i];
        sums[i % UPDATE_SUMS] += (double)v * (double)v;
    }
    return mpri_update_join(sums);
}

/* Inputs state, scale, gradients. */
static mpr_status k_unscale(const KernelCall *c)
{
    double *state = mpri_update_state(c), total = 0;
    const bool keep = mpri_update_keeps(c);
    const float inv = mpri_update_inverse(c), seen = keep ? inv : 1;
    state[STATE_INVERSE] = keep ? mpri_rule_keep(inv) : 0;
    state[STATE_FACTOR] = 0;
    for (int k = UPDATE_FIRST; k < c->n_in; k++) {
        float *g = c->in[k].data;
        double tensor = 0;
        for (int64_t i = 0; i < c->in[k].n; i++) {
            if (!isfinite(g[i]) || !isfinite(g[i] * inv)) state[STATE_FOUND] = 1;
            if (inv != 1 && !keep) g[i] *= inv;
        }
        for (int64_t i = 0; i < c->in[k].n; i += UPDATE_BLOCK)
            tensor += block_squares(
                g + i, c->in[k].n - i < UPDATE_BLOCK ? c->in[k].n - i : UPDATE_BLOCK, seen);
        total += tensor;
    }
    state[STATE_SQUARES] = total;
    state[STATE_NORM] = (float)sqrt(total);
    return MPR_OK;
}

/* Inputs state, max_norm, gradients. */
static mpr_status k_clip(const KernelCall *c)
{
    float factor = mpri_update_clip(c);
    if (mpri_update_keeps(c)) {
        mpri_update_state(c)[STATE_FACTOR] = mpri_rule_keep(factor);
        return MPR_OK;
    }
    for (int k = UPDATE_FIRST; k < c->n_in && factor != 1; k++)
        for (int64_t i = 0; i < c->in[k].n; i++) ((float *)c->in[k].data)[i] *= factor;
    return MPR_OK;
}

/* Inputs state, scale, gradients. */
static mpr_status k_scale_grads(const KernelCall *c)
{
    double *state = mpri_update_state(c);
    const KeptRule kept = mpri_rule_kept(state);
    for (int k = UPDATE_FIRST; k < c->n_in; k++)
        for (int64_t i = 0; i < c->in[k].n; i++) {
            float *g = (float *)c->in[k].data + i;
            *g = mpri_update_kept(kept, *g);
        }
    state[STATE_INVERSE] = state[STATE_FACTOR] = 0;
    return MPR_OK;
}

/* Copies of the new parameters, `step` inputs each. */
static void write_copies(const KernelCall *c, Ints copy_of, int step)
{
    int end = mpri_update_end(c->n_in, copy_of);
    for (int64_t k = 0; k < copy_of.n; k++) {
        const Tensor *p = &c->in[UPDATE_FIRST + copy_of.v[k] * step];
        Tensor copy = c->in[end + k];
        for (int64_t i = 0; i < p->n; i++) mpri_ref_store(&copy, i, mpri_ref_load(p, i));
    }
}

/* Inputs p, copy. */
static mpr_status k_copy_params(const KernelCall *c)
{
    for (int k = 0; k + 1 < c->n_in; k += 2) {
        Tensor copy = c->in[k + 1];
        for (int64_t i = 0; i < copy.n; i++) mpri_ref_store(&copy, i, mpri_ref_load(&c->in[k], i));
    }
    return MPR_OK;
}

/* Inputs state, hyper, then p, g, buf (absent without momentum) per parameter. */
static mpr_status k_sgd(const KernelCall *c)
{
    if (!mpri_update_begin(c)) return MPR_OK;
    const Ints copies = ((const SgdParams *)c->params)->copy_of;
    const KeptRule kept = mpri_rule_kept(mpri_update_state(c));
    for (int k = UPDATE_FIRST; k < mpri_update_end(c->n_in, copies); k += 3) {
        SgdRule r = mpri_update_sgd(c, (k - UPDATE_FIRST) / 3);
        float *p = c->in[k].data, *buf = c->in[k + 2].data;
        const float *g = c->in[k + 1].data;
        for (int64_t i = 0; i < c->in[k].n; i++) {
            float d = mpri_update_kept(kept, g[i]) + mpri_update_decay(r.wd, p[i]);
            if (r.momentum != 0) {
                buf[i] = r.first ? d : r.momentum * buf[i] + r.rest * d;
                d = r.nesterov ? d + r.momentum * buf[i] : buf[i];
            }
            p[i] = p[i] - r.lr * d;
        }
    }
    write_copies(c, copies, 3);
    return MPR_OK;
}

/* Inputs state, hyper, then p, g, m, v per parameter. */
static mpr_status k_adam(const KernelCall *c)
{
    if (!mpri_update_begin(c)) return MPR_OK;
    const Ints copies = ((const AdamParams *)c->params)->copy_of;
    const KeptRule kept = mpri_rule_kept(mpri_update_state(c));
    for (int k = UPDATE_FIRST; k < mpri_update_end(c->n_in, copies); k += 4) {
        AdamRule r = mpri_update_adam(c, (k - UPDATE_FIRST) / 4);
        float *p = c->in[k].data, *m = c->in[k + 2].data, *v = c->in[k + 3].data;
        const float *grad = c->in[k + 1].data;
        for (int64_t i = 0; i < c->in[k].n; i++) {
            float w = p[i], g = mpri_update_kept(kept, grad[i]);
            if (r.decoupled) w = w * r.keep;
            else g = g + mpri_update_decay(r.wd, w);
            m[i] = m[i] + r.rest1 * (g - m[i]);
            v[i] = r.beta2 * v[i] + r.rest2 * g * g;
            p[i] = w - r.step_size * (m[i] / (sqrtf(v[i]) / r.bc + r.epsilon));
        }
    }
    write_copies(c, copies, 4);
    return MPR_OK;
}

/* Inputs out, scaler, divisor. */
static mpr_status k_loss_scale(const KernelCall *c)
{
    const double *scaler = c->in[1].data, *divisor = c->in[2].data;
    *(float *)c->in[0].data = (float)(scaler[SCALER_SCALE] / *divisor);
    return MPR_OK;
}

static mpr_status k_scale_update(const KernelCall *c)
{
    mpri_scale_update(c);
    return MPR_OK;
}

/* ---- the ledger ---- */

static double *numbers(const KernelCall *c, int k)
{
    return c->in[k].data;
}

static mpr_status k_ledger_loss(const KernelCall *c)
{
    float loss = (float)mpri_load_f64(c->in[2].dtype, c->in[2].data, 0);
    mpri_ledger_loss(numbers(c, 0), numbers(c, 1), loss);
    return MPR_OK;
}

static mpr_status k_ledger_judge(const KernelCall *c)
{
    bool wrong = c->device_fault && c->device_fault->step >= 0;
    mpri_ledger_judge(numbers(c, 0), numbers(c, 1), numbers(c, 2), numbers(c, 3), numbers(c, 4),
                      numbers(c, 5), wrong);
    return MPR_OK;
}

static mpr_status k_ledger_close(const KernelCall *c)
{
    mpri_ledger_close(numbers(c, 0), numbers(c, 1), numbers(c, 2), numbers(c, 3), numbers(c, 4));
    return MPR_OK;
}

static mpr_status k_ledger_keep(const KernelCall *c)
{
    for (int k = UPDATE_FIRST; k < c->n_in && numbers(c, 0)[LEDGER_HELD] == 0; k += 2)
        if (c->in[k].n) memcpy(c->in[k + 1].data, c->in[k].data, (size_t)c->in[k].n * sizeof(float));
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(AccumulateGrad, "accumulategrad", k_accumulate),
    REF_ROW(UnscaleCheck, "unscalecheck", k_unscale),
    REF_ROW(ClipGradNorm, "clipgradnorm", k_clip),
    REF_ROW(SgdStep, "sgdstep", k_sgd),
    REF_ROW(AdamStep, "adamstep", k_adam),
    REF_ROW(ScaleGrads, "scalegrads", k_scale_grads),
    REF_ROW(CopyParams, "copyparams", k_copy_params),
    REF_ROW(LossScale, "lossscale", k_loss_scale),
    REF_ROW(ScaleUpdate, "scaleupdate", k_scale_update),
    REF_ROW(LedgerLoss, "ledgerloss", k_ledger_loss),
    REF_ROW(LedgerJudge, "ledgerjudge", k_ledger_judge),
    REF_ROW(LedgerClose, "ledgerclose", k_ledger_close),
    REF_ROW(LedgerKeep, "ledgerkeep", k_ledger_keep),
};
const KernelTable mpri_ref_update = REF_TABLE(rows);
