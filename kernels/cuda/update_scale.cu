/* The loss scale, and the ledger of a loop whose host looks late: what a step decides, decided on the device by
 * the rules of kernels/update_rule.h and kernels/ledger_rule.h. Compiled without fused multiply-adds. A thread
 * each, but for what is kept of running statistics. */
#include "kernels/cuda/update.cuh"

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
    const Ints none = {};
    Many m = {};
    for (int k = UPDATE_FIRST; gather(&m, c, &k, 2, 0, 2, NULL, NULL, none);)
        if (m.first_block[m.n])
            MPRI_LAUNCH(k_ledger_keep, m.first_block[m.n], UPDATE_THREADS, 0, c->queue, m,
                        (const double *)c->in[0].data);
    return MPR_OK;
}

static const KernelRow rows[] = {
    CUDA_ROW(LossScale, "lossscale", loss_scale),
    CUDA_ROW(ScaleUpdate, "scaleupdate", scale_update, .refuse = refuse_states),
    CUDA_ROW(LedgerLoss, "ledgerloss", ledger_loss),
    CUDA_ROW(LedgerJudge, "ledgerjudge", ledger_judge),
    CUDA_ROW(LedgerClose, "ledgerclose", ledger_close),
    CUDA_ROW(LedgerKeep, "ledgerkeep", ledger_keep),
};
extern "C" const KernelTable mpri_cuda_update_scale = CUDA_TABLE(rows);
