/* How many labels a loss of the model itself counts, as graph output "mpr.loss_count": an
 * accumulation window that means over all its labels weighs each micro-batch by this number.
 *
 * A cross-entropy means over the labels that are not ignore_index, each with its class weight, so
 * the number is computed from the labels as they arrive at that node, behind any shift and
 * reshape. Nothing else is seen through but casts and changes of shape: a loss with a further term
 * is no such mean. */
#include <string.h>
#include "passes/recover.h"
#include "passes/rewrite.h"

/* The node whose mean v is, and its ignore_index; NULL when there is none. */
static Node *mean_over_labels(Value *v, int64_t *ignore)
{
    Node *n = mpri_def(v);
    while (mpri_is(n, OP_Cast) || mpri_is(n, OP_Reshape) || mpri_is(n, OP_Squeeze))
        n = mpri_def(n->in[0]);
    const char *how = NULL;
    if (mpri_is(n, OP_CrossEntropy)) {
        const CrossEntropyParams *p = n->params;
        how = p->reduction;
        *ignore = p->ignore_index;
    } else if (mpri_is(n, OP_NegativeLogLikelihoodLoss)) {
        const NllLossParams *p = n->params;
        how = p->reduction;
        *ignore = p->ignore_index;
    }
    return how && !strcmp(how, "mean") ? n : NULL;
}

static Value *label_constant(Builder *b, DType t, int64_t v)
{
    Value *one = mpri_build_i64s(b, 1, &v);
    return mpri_build_cast(b, one, t);
}

mpr_status mpri_loss_count(Builder *b, Value *loss, const char *name, Value **count)
{
    int64_t ignore;
    Node *n = mean_over_labels(loss, &ignore);
    if (!n) {
        mpri_err_set(b->err, MPR_E_USAGE,
                     "the labels of loss '%s' cannot be counted: it is not the mean of a "
                     "cross-entropy", mpri_err_name(name));
        return mpri_err_advice(b->err, "give micro-batches equal weights, or attach the loss here: "
                               "--loss cross-entropy");
    }
    Value *labels = n->in[1];
    Value *ones = mpri_build_scalar(b, MPR_FLOAT32, 1), *zero = mpri_build_scalar(b, MPR_FLOAT32, 0);
    Value *none = label_constant(b, labels->dtype, ignore);
    Value *out = mpri_build2(b, OP_Equal, NULL, labels, none), *weight = ones;
    if (n->n_in > 2 && n->in[2]) {
        AxisParams rows = {.axis = 0};
        Value *safe = label_constant(b, labels->dtype, 0);
        Value *at = mpri_build(b, OP_Where, NULL, 3, (Value *[]){out, safe, labels}, 1, NULL);
        weight = mpri_build_cast(b, n->in[2], MPR_FLOAT32);
        weight = mpri_build2(b, OP_Gather, &rows, weight, at);
    }
    Value *each = mpri_build(b, OP_Where, NULL, 3, (Value *[]){out, zero, weight}, 1, NULL);
    ReduceParams all;
    mpri_params_default(&mpri_op_ReduceSum, &all);
    all.keepdims = 0;
    *count = mpri_build1(b, OP_ReduceSum, &all, each);
    return b->failed;
}
