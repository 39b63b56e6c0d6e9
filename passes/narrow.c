/* Products, and functions whose gradient is one kernel, between casts. A file that keeps such a node
 * in f32 because its opset knows it in no 16-bit type says: widen the inputs, compute, round. That
 * is what the kernel on 16-bit tensors does, so it becomes one: the same bits, and the same graph
 * as the operator written in 16 bits.
 *
 * Before autodiff, because the backward pass runs in the forward's types. Operators that a profile
 * denies 16 bits are not among them: those stay in f32 on purpose. */
#include "passes/prepare.h"
#include "passes/rewrite.h"

static bool same_in_16_bits(const Node *n)
{
    static const int ops[] = {
        OP_Conv, OP_ConvTranspose, OP_Einsum, OP_MatMul, OP_Gemm, OP_Linear, OP_PRelu, OP_Elu,
        OP_Selu, OP_Celu, OP_HardSigmoid, OP_HardSwish, OP_LeakyRelu, OP_Mish, OP_AveragePool,
        OP_GlobalAveragePool, OP_MaxPool, OP_GlobalMaxPool,
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (mpri_is(n, ops[i])) return n->n_out == 1;
    return false;
}

/* The 16-bit value that v, f32, holds. */
static Value *narrow_source(const Value *v)
{
    const Node *d = mpri_def(v);
    if (v->dtype != MPR_FLOAT32 || !mpri_is(d, OP_Cast)) return NULL;
    return mpri_dtype_is_low(d->in[0]->dtype) ? d->in[0] : NULL;
}

/* The only reader of v, when it rounds it to a 16-bit type. */
static Node *rounding(const Value *v)
{
    Node *user = v->n_uses == 1 && !v->n_outputs ? v->uses->user : NULL;
    bool rounds = user && mpri_is(user, OP_Cast) && mpri_dtype_is_low(user->out[0]->dtype);
    return rounds ? user : NULL;
}

static bool between(const Node *n, DType t)
{
    for (int k = 0; k < n->n_in; k++) {
        const Value *low = n->in[k] ? narrow_source(n->in[k]) : NULL;
        if (n->in[k] && (!low || low->dtype != t)) return false;
    }
    return true;
}

mpr_status mpri_pass_narrow(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    (void)ctx;
    for (Node *n = g->first; n; n = n->next) {
        Node *cast = same_in_16_bits(n) ? rounding(n->out[0]) : NULL;
        if (!cast || !between(n, cast->out[0]->dtype)) continue;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) mpri_node_set_input(n, k, narrow_source(n->in[k]));
        TRY(mpri_infer_node(g, n, err));
        mpri_rewrite_forward(g, cast, n->out[0]);
        *changed = true;
    }
    return MPR_OK;
}
