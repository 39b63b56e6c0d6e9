/* Gradient accumulation and the optimizer, on slots. This page is the contract between the training
 * room and the kernels; every formula is computed in f32 exactly as written, because it defines the
 * bits.
 *
 * AccumulateGrad(acc f32 slot, dw any float, flag i32 scalar slot)
 *     flag 0: acc = f32(dw); else acc = acc + f32(dw).
 * UnscaleCheck(state f64[8] slot, scale f32 scalar slot, g_0 … g_n f32 slots)
 *     inv = f32(1 / f64(scale)). Per element: not finite -> found; then g = g * inv (no multiply
 *     when inv is 1); not finite afterwards -> found. Adds g^2 in f64: per tensor in blocks of 4096
 *     elements (16 sums, sum j of elements j, j + 16 ..., upper half onto lower half until one is
 *     left), blocks added in order, then tensors in order.
 *     state[0] = 1 if found, else unchanged 0 (set to 0 by the caller at the start of an update);
 *     state[1] = sum of squares; state[2] = f64(f32(sqrt(sum))), the norm.
 *     keep: g stays as it is, and state[5] = inv: what g has still to be multiplied by. Else state[5] = 0,
 *     which stands for 1 (-0 for 0). state[6] = 0.
 * ClipGradNorm(state, max_norm f32 scalar slot, g_0 … g_n)
 *     norm = sqrt(state[1]) in f64; state[2] = f32(norm). Unless state[0] is set or max_norm is 0:
 *     factor = f32(min(1, max_norm / (norm + 1e-6))), the quotient in f64; g = g * factor.
 *     keep: g stays, and state[6] = factor.
 * ScaleGrads(state, scale f32 scalar slot, g_0 … g_n)                 what was kept is done
 *     g = g * state[5], then g = g * state[6], where these are not 0; they are 0 afterwards. scale is
 *     not read.
 * SgdStep(state, hyper f64[8] slot, then p, g, buf per parameter)      torch.optim.SGD
 *     g is multiplied by state[5] and state[6] as ScaleGrads does, and stays as it is; AdamStep too.
 *     d = g + wd * p (wd 0: g); momentum 0: buf is absent and unused. buf = first step ? d : momentum * buf +
 *     (1 - dampening) * d; d = nesterov ? d + momentum * buf : buf; p = p - lr * d.
 * AdamStep(state, hyper, then p, g, m, v per parameter)                torch.optim.Adam, AdamW
 *     decoupled: p = p * (1 - lr * wd), else g = g + wd * p. m = m + (1 - b1) * (g - m);
 *     v = b2 * v + (1 - b2) * g * g; with t = step count: step_size = f32(lr / (1 - b1^t)) and
 *     bc = f32(sqrt(1 - b2^t)), both computed in f64;
 *     p = p - step_size * (m / (sqrt(v) / bc + eps)).
 * Behind the parameters both may have copies, f16 or bf16 slots: copy k is that of parameter copy_of[k]
 *     and gets the new p, rounded as Cast rounds it. copy_of does not fall; a parameter may have two.
 * CopyParams(then p, copy per copy)                                   copies whose p was set by the host
 *     copy = p, rounded as Cast rounds it.
 * Both steps do nothing when state[0] is set; else state[3], the step count, grows by one first.
 *     state[4] = 1 when the step was skipped, else 0: it stays until the next step.
 *     One step operator per state: the count is its own.
 *     hyper: learning rate, weight decay, then beta1, beta2, epsilon (AdamStep) or momentum,
 *     dampening (SgdStep). A parameter's own factors multiply the first two. What a parameter's
 *     rule needs (1 - lr * wd, 1 - beta1, step_size …) is computed in f64 and rounded once.
 * LossScale(out f32 scalar slot, scaler f64[16] slot, divisor f64 scalar slot)
 *     out = f32(scaler[0] / divisor).
 * ScaleUpdate(scaler f64[16] slot, rule f64[8] slot, state_0 … state_n f64[8] slots)
 *     torch.amp.GradScaler.update with limits and hysteresis, for the optimizers whose gradients
 *     were checked; kernels/update_rule.h has the entries of scaler and rule. None: an empty update.
 *     A flag in any state: scale = max(f32(scale * backoff), min) once the hysteresis is used up,
 *     tracker = 0. Else tracker + 1; at the interval scale = min(f32(scale * growth), max) if finite.
 * The other entries of state and hyper are zero.
 *
 * For loops whose host looks late; kernels/ledger_rule.h has entries and arithmetic:
 * LedgerLoss(ledger f64[40] slot, note f64[2] slot, loss any float scalar slot)
 *     adds a micro-batch to the window: weighted loss, and whether it is finite.
 * LedgerJudge(ledger, close f64[16] slot, state, hyper, scaler, rule)
 *     between clip and step: sets state[0] for a bad loss or a held step; the rate goes into hyper.
 * LedgerClose(ledger, close, state, scaler, rule)
 *     after the step: ScaleUpdate, counts and the record; nothing where the step is held.
 * LedgerKeep(ledger, close, from_0, to_0, from_1, to_1 … f32 slots)
 *     to = from unless a step is held: what a window that is run again begins with. */
#include "runtime/op/rules.h"

static const AttrRow keep_attrs[] = {
    ATTR_FLAG(KeepParams, keep, "keep", 0),
    ATTR_END,
};
static const AttrRow adam_attrs[] = {
    ATTR_FLAG(AdamParams, decoupled, "decoupled", 1),
    ATTR(AdamParams, decay_scale, "decay_scale", FLOATS),
    ATTR(AdamParams, lr_scale, "lr_scale", FLOATS),
    ATTR(AdamParams, copy_of, "copy_of", INTS),
    ATTR_END,
};
static const AttrRow sgd_attrs[] = {
    ATTR_FLAG(SgdParams, nesterov, "nesterov", 0),
    ATTR(SgdParams, decay_scale, "decay_scale", FLOATS),
    ATTR(SgdParams, lr_scale, "lr_scale", FLOATS),
    ATTR(SgdParams, copy_of, "copy_of", INTS),
    ATTR_END,
};

enum { FIRST = 2 }; /* inputs before the slots of the parameters */

/* The slot at input k: type, and shape when it is given. */
static mpr_status check_slot(InferCtx *c, int k, DType t, const Shape *shape, const char *what)
{
    if (!op_in(c, k))
        return mpri_err_set(c->err, MPR_E_INTERNAL, "%s: input %d (%s) is absent", c->n->op->name,
                            k, what);
    TRY(mpri_op_check_type(c, k, TS(t)));
    return mpri_op_expect_shape(c, k, shape, what);
}

/* From FIRST on, groups of `size` slots with one shape each, all f32, before `copies` other inputs. The
 * last of a group may be absent when it is optional. */
static mpr_status check_groups(InferCtx *c, int size, bool last_optional, int64_t copies)
{
    int n = c->n->n_in - FIRST - (int)copies;
    TRY(check_slot(c, 0, MPR_FLOAT64, &(Shape){.rank = 1, .d = {8}}, "state"));
    if (n < 0 || n % size)
        return mpri_err_set(c->err, MPR_E_INTERNAL, "%s takes groups of %d slots, found %d",
                            c->n->op->name, size, n);
    for (int k = 0; k < n; k++) {
        const Shape *own = op_shape(c, FIRST + k / size * size);
        if (last_optional && k % size == size - 1 && !op_in(c, FIRST + k)) continue;
        TRY(check_slot(c, FIRST + k, MPR_FLOAT32, own, "slot of the same parameter"));
    }
    return MPR_OK;
}

static const TypeSet low = TS(MPR_FLOAT16) | TS(MPR_BFLOAT16);

/* Input k is a copy of input p. */
static mpr_status check_copy(InferCtx *c, int k, int p)
{
    TRY(mpri_op_check_type(c, k, low));
    return mpri_op_expect_shape(c, k, op_shape(c, p), "16-bit copy of a parameter");
}

static mpr_status check_factors(InferCtx *c, int size, Floats decay, Floats rate, Ints copies)
{
    int64_t n = (c->n->n_in - FIRST - copies.n) / size;
    for (int64_t i = 0; i < copies.n; i++) {
        if (copies.v[i] < (i ? copies.v[i - 1] : 0) || copies.v[i] >= n)
            return mpri_err_set(c->err, MPR_E_INTERNAL, "%s: copy %lld is of parameter %lld of %lld",
                                c->n->op->name, (long long)i, (long long)copies.v[i], (long long)n);
        TRY(check_copy(c, (int)(FIRST + n * size + i), (int)(FIRST + copies.v[i] * size)));
    }
    TRY(check_slot(c, 1, MPR_FLOAT64, &(Shape){.rank = 1, .d = {8}}, "hyper"));
    if ((decay.n && decay.n != n) || (rate.n && rate.n != n))
        return mpri_err_set(c->err, MPR_E_INTERNAL,
                            "%s: %lld decay and %lld rate factors for %lld parameters",
                            c->n->op->name, (long long)decay.n, (long long)rate.n, (long long)n);
    return MPR_OK;
}

static mpr_status infer_accumulate(InferCtx *c)
{
    const Shape scalar = op_scalar();
    TRY(mpri_op_check_type(c, 0, TS(MPR_FLOAT32)));
    TRY(mpri_op_check_type(c, 1, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "gradient"));
    return check_slot(c, 2, MPR_INT32, &scalar, "flag");
}

static mpr_status infer_gradients(InferCtx *c)
{
    const Shape scalar = op_scalar();
    TRY(check_slot(c, 1, MPR_FLOAT32, &scalar, "scale or max_norm"));
    return check_groups(c, 1, false, 0);
}

static mpr_status infer_loss_scale(InferCtx *c)
{
    const Shape scalar = op_scalar();
    TRY(check_slot(c, 0, MPR_FLOAT32, &scalar, "scale"));
    TRY(check_slot(c, 1, MPR_FLOAT64, &(Shape){.rank = 1, .d = {16}}, "scaler"));
    return check_slot(c, 2, MPR_FLOAT64, &scalar, "divisor");
}

static mpr_status infer_scale_update(InferCtx *c)
{
    const Shape state = {.rank = 1, .d = {8}};
    TRY(check_slot(c, 0, MPR_FLOAT64, &(Shape){.rank = 1, .d = {16}}, "scaler"));
    for (int k = 1; k < c->n->n_in; k++) TRY(check_slot(c, k, MPR_FLOAT64, &state, "state"));
    return MPR_OK;
}

/* f64 slots from input k on, by size. */
static mpr_status check_numbers(InferCtx *c, int k, const int *size, int n)
{
    for (int i = 0; i < n; i++)
        TRY(check_slot(c, k + i, MPR_FLOAT64, &(Shape){.rank = 1, .d = {size[i]}}, "numbers"));
    return MPR_OK;
}

enum { LEDGER = 40, NOTE = 2, CLOSE = 16, STATE = 8, SCALER = 16 };

static mpr_status infer_ledger_loss(InferCtx *c)
{
    const Shape scalar = op_scalar();
    static const int sizes[] = {LEDGER, NOTE};
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 2, &scalar, "loss"));
    return check_numbers(c, 0, sizes, 2);
}

static mpr_status infer_ledger_judge(InferCtx *c)
{
    static const int sizes[] = {LEDGER, CLOSE, STATE, STATE, SCALER, STATE};
    return check_numbers(c, 0, sizes, 6);
}

static mpr_status infer_ledger_close(InferCtx *c)
{
    static const int sizes[] = {LEDGER, CLOSE, STATE, SCALER, STATE};
    return check_numbers(c, 0, sizes, 5);
}

static mpr_status infer_ledger_keep(InferCtx *c)
{
    static const int sizes[] = {LEDGER, CLOSE};
    TRY(check_numbers(c, 0, sizes, 2));
    for (int k = FIRST; k < c->n->n_in; k++)
        TRY(check_slot(c, k, MPR_FLOAT32, op_shape(c, k - k % 2), "slot of the same contents"));
    return MPR_OK;
}

static mpr_status infer_sgd(InferCtx *c)
{
    const SgdParams *p = c->n->params;
    TRY(check_groups(c, 3, true, p->copy_of.n));
    return check_factors(c, 3, p->decay_scale, p->lr_scale, p->copy_of);
}

static mpr_status infer_adam(InferCtx *c)
{
    const AdamParams *p = c->n->params;
    TRY(check_groups(c, 4, false, p->copy_of.n));
    return check_factors(c, 4, p->decay_scale, p->lr_scale, p->copy_of);
}

static mpr_status infer_copies(InferCtx *c)
{
    for (int k = 0; k + 1 < c->n->n_in; k += 2) {
        TRY(mpri_op_check_type(c, k, TS(MPR_FLOAT32)));
        TRY(check_copy(c, k + 1, k));
    }
    return MPR_OK;
}

/* Written: every input but the second. Parameters, gradients and moments alternate, and a mask
 * cannot say so for any number of them. */
#define UPDATE                                                                                     \
    .max_out = 0, .flags = OPF_INTERNAL | OPF_EFFECT, .cast_cuda = CAST_FIXED,                     \
    .cast_cpu = CAST_FIXED,                                                                        \
    .grad_state = GRAD_NONE, .grad_reason = "part of the update"
#define UPDATE_ALL UPDATE, .min_in = FIRST, .max_in = -1, .writes = ~(uint32_t)2

const OpDef mpri_op_AccumulateGrad = {
    MPRI_OP(AccumulateGrad, "mpr", "update"),
    .help = "add a gradient to its buffer, or start it anew", UPDATE,
    .min_in = 3, .max_in = 3, .writes = 1, .infer = infer_accumulate,
};
const OpDef mpri_op_UnscaleCheck = {
    MPRI_OP(UnscaleCheck, "mpr", "update"),
    .help = "gradients times 1/scale, found-inf and sum of squares",
    UPDATE_ALL, PARAMS(KeepParams, keep_attrs), .infer = infer_gradients,
};
const OpDef mpri_op_ClipGradNorm = {
    MPRI_OP(ClipGradNorm, "mpr", "update"),
    .help = "scale gradients down to a global norm", UPDATE_ALL,
    PARAMS(KeepParams, keep_attrs), .infer = infer_gradients,
};
const OpDef mpri_op_ScaleGrads = {
    MPRI_OP(ScaleGrads, "mpr", "update"),
    .help = "factors that were kept for the step go into the gradients", UPDATE_ALL,
    .infer = infer_gradients,
};
const OpDef mpri_op_SgdStep = {
    MPRI_OP(SgdStep, "mpr", "update"),
    .help = "SGD with momentum, unless found-inf is set", UPDATE_ALL,
    PARAMS(SgdParams, sgd_attrs), .infer = infer_sgd,
};
const OpDef mpri_op_AdamStep = {
    MPRI_OP(AdamStep, "mpr", "update"),
    .help = "Adam or AdamW, unless found-inf is set", UPDATE_ALL,
    PARAMS(AdamParams, adam_attrs), .infer = infer_adam,
};
const OpDef mpri_op_CopyParams = {
    MPRI_OP(CopyParams, "mpr", "update"),
    .help = "16-bit copies of parameters written anew", UPDATE,
    .min_in = 2, .max_in = -1, .writes = ~(uint32_t)0, .infer = infer_copies,
};
const OpDef mpri_op_LossScale = {
    MPRI_OP(LossScale, "mpr", "update"),
    .help = "the loss scale over a divisor, as a seed or a factor", UPDATE,
    .min_in = 3, .max_in = 3, .writes = 1, .infer = infer_loss_scale,
};
const OpDef mpri_op_ScaleUpdate = {
    MPRI_OP(ScaleUpdate, "mpr", "update"),
    .help = "next loss scale from the found-inf flags", UPDATE,
    .min_in = FIRST, .max_in = -1, .writes = 1, .infer = infer_scale_update,
};
const OpDef mpri_op_LedgerLoss = {
    MPRI_OP(LedgerLoss, "mpr", "update"),
    .help = "adds a micro-batch's loss to its window", UPDATE,
    .min_in = 3, .max_in = 3, .writes = 1, .infer = infer_ledger_loss,
};
const OpDef mpri_op_LedgerJudge = {
    MPRI_OP(LedgerJudge, "mpr", "update"),
    .help = "whether a step is applied, and with which rate", UPDATE,
    .min_in = 6, .max_in = 6, .writes = 1 | 4 | 8, .infer = infer_ledger_judge,
};
const OpDef mpri_op_LedgerClose = {
    MPRI_OP(LedgerClose, "mpr", "update"),
    .help = "next loss scale, counts and the record of a step", UPDATE,
    .min_in = 5, .max_in = 5, .writes = 1 | 8, .infer = infer_ledger_close,
};
const OpDef mpri_op_LedgerKeep = {
    MPRI_OP(LedgerKeep, "mpr", "update"),
    .help = "copies of slots as a window began", UPDATE_ALL, .infer = infer_ledger_keep,
};
