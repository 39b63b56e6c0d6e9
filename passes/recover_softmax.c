/* Softmax written as maximum, difference, exponential, sum, quotient over one axis:
 *
 *   m = ReduceMax(x); e = Exp(x - m); y = e / ReduceSum(e)
 *
 * Only the form with the maximum taken off is recovered: without it the written graph overflows
 * where Softmax does not, and the two would not compute the same. */
#include "passes/recover.h"

/* Input of a reduction over one axis with dims kept, and that axis; NULL when it is none. */
static Value *reduced(Match *m, Value *v, int op, int64_t *axis)
{
    Node *n = mpri_def(mpri_match_through(m, v));
    if (!mpri_is(n, op) || n->n_in < 2 || !n->in[1]) return NULL;
    const ReduceParams *p = n->params;
    const Value *axes = n->in[1];
    if (!p->keepdims || axes->kind != VAL_CONST || !axes->data ||
        mpri_shape_elements(&axes->shape) != 1)
        return NULL;
    int rank = n->in[0]->shape.rank;
    *axis = mpri_load_i64(axes->dtype, axes->data, 0);
    if (*axis >= 0 && rank >= 0) *axis -= rank;
    mpri_match_add(m, n);
    return n->in[0];
}

mpr_status mpri_recover_softmax(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err)
{
    (void)ctx;
    if (!mpri_is(n, OP_Div)) return MPR_OK;
    Match m = {.node = {n}, .n = 1};
    SoftmaxParams p;
    mpri_params_default(&mpri_op_Softmax, &p);
    int64_t sum_axis;
    Value *e = reduced(&m, n->in[1], OP_ReduceSum, &sum_axis);
    if (!e || mpri_match_through(&m, n->in[0]) != mpri_match_through(&m, e)) return MPR_OK;
    Node *exp_node = mpri_def(mpri_match_through(&m, e));
    if (!mpri_is(exp_node, OP_Exp)) return MPR_OK;
    Node *sub = mpri_def(mpri_match_through(&m, exp_node->in[0]));
    if (!mpri_is(sub, OP_Sub)) return MPR_OK;
    mpri_match_add(&m, exp_node);
    mpri_match_add(&m, sub);
    Value *x = sub->in[0], *of = reduced(&m, sub->in[1], OP_ReduceMax, &p.axis), *y;
    if (!of || p.axis != sum_axis || !mpri_prepare_eligible(x)) return MPR_OK;
    if (of != x) {
        x = mpri_match_through(&m, x);
        if (mpri_match_through(&m, of) != x) return MPR_OK;
    }
    if (!mpri_match_closed(&m, n)) return MPR_OK;
    *hit = true;
    TRY(mpri_match_build(g, n, &mpri_op_Softmax, n->name, &p, 1, &x, &y, err));
    return mpri_match_replace(g, &m, n, y, err);
}
