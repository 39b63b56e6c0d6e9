/* Activations of the form x * gate(x), which exporters write out:
 *
 *   Swish      x * Sigmoid(x), x * Sigmoid(alpha * x)   (SiLU; alpha = 1.702 is the quick GELU)
 *   Mish       x * Tanh(Softplus(x))
 *   HardSwish  x * HardSigmoid(x), alpha = 1 / 6, beta = 1 / 2
 *
 * Op by op, Softplus is on PyTorch's deny list and would lift Mish to f32; as one operator each
 * keeps the type of its input, rounds once, and the backward pass keeps x alone. */
#include "passes/recover.h"

#include <math.h>

/* Found at the gate: the operator, its parameters, and x as the gate reads it. */
typedef struct Gated {
    const OpDef *op;
    AlphaParams params; /* of Swish */
    Value *x;
} Gated;

static bool swish_gate(Match *m, Node *n, Gated *out)
{
    double k;
    *out = (Gated){.op = &mpri_op_Swish, .params = {.alpha = 1}, .x = n->in[0]};
    Match with = *m;
    Node *d = mpri_def(mpri_match_through(NULL, n->in[0]));
    Value *scaled = mpri_is(d, OP_Mul) ? mpri_match_scalar_operand(d, &k) : NULL;
    if (!scaled || !isfinite((float)k) || mpri_match_user_through(&with, d->out[0]) != n)
        return true;
    mpri_match_add(&with, d);
    *m = with;
    out->params.alpha = (float)k;
    out->x = scaled;
    return true;
}

static bool mish_gate(Match *m, Node *n, Gated *out)
{
    Node *d = mpri_def(mpri_match_through(m, n->in[0]));
    if (!mpri_is(d, OP_Softplus)) return false;
    mpri_match_add(m, d);
    *out = (Gated){.op = &mpri_op_Mish, .x = d->in[0]};
    return true;
}

static bool hard_gate(Node *n, Gated *out)
{
    const HardSigmoidParams *p = n->params;
    *out = (Gated){.op = &mpri_op_HardSwish, .x = n->in[0]};
    return mpri_match_near((double)p->alpha, 1.0 / 6) && p->beta == 0.5f;
}

static bool gate(Match *m, Node *n, Gated *out)
{
    switch (n->op->id) {
    case OP_Sigmoid: return swish_gate(m, n, out);
    case OP_Tanh: return mish_gate(m, n, out);
    case OP_HardSigmoid: return hard_gate(n, out);
    default: return false;
    }
}

static Value *behind_cast(Match *m, const Value *v)
{
    Node *d = mpri_def(v);
    if (!mpri_is(d, OP_Cast) || !mpri_prepare_eligible(v) || !mpri_prepare_eligible(d->in[0]))
        return NULL;
    mpri_match_add(m, d);
    return d->in[0];
}

/* The nearest value that a and b are, or are casts of; casts on the way belong to the pattern. */
static Value *common_x(Match *m, Value *a, Value *b)
{
    Match left = *m;
    for (Value *v = a; v; v = behind_cast(&left, v)) {
        Match both = left;
        for (Value *w = b; w; w = behind_cast(&both, w)) {
            if (v != w) continue;
            *m = both;
            return v;
        }
    }
    return NULL;
}

mpr_status mpri_recover_gated(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err)
{
    (void)ctx;
    Match m = {.node = {n}, .n = 1};
    Gated found;
    if (!gate(&m, n, &found)) return MPR_OK;
    Node *final = mpri_match_user_through(&m, n->out[0]);
    if (!mpri_is(final, OP_Mul)) return MPR_OK;
    mpri_match_add(&m, final);
    int side = mpri_def(mpri_match_through(NULL, final->in[0])) == n;
    Value *x = final->in[side];
    if (mpri_match_through(NULL, final->in[1 - side]) != n->out[0]) return MPR_OK;
    x = common_x(&m, x, found.x);
    if (!x || !mpri_prepare_eligible(x) || !mpri_match_closed(&m, final)) return MPR_OK;
    const void *params = found.op == &mpri_op_Swish ? &found.params : NULL;
    Value *y;
    *hit = true;
    TRY(mpri_match_build(g, final, found.op, final->name, params, 1, &x, &y, err));
    return mpri_match_replace(g, &m, final, y, err);
}
