/* Dropout: zeros with probability `ratio`, the rest scaled by 1 / (1 - ratio), in training only.
 *
 * The random numbers depend on the run's seed, the node's stream, the forward pass and the
 * position, so results are the same for any number of threads and after a resume. The backward pass
 * uses the mask. */
#include "runtime/op/rules.h"

static const AttrRow dropout_attrs[] = {
    ATTR(DropoutParams, seed, "seed", INT),
    ATTR(DropoutParams, stream, "stream", INT, .internal = true),
    ATTR_END,
};

static mpr_status check_options(InferCtx *c, int ratio)
{
    Dim n;
    TRY(mpri_op_check_type(c, ratio, TS_FLOAT));
    TRY(mpri_op_check_type(c, ratio + 1, TS_BOOL));
    for (int k = ratio; k < ratio + 2; k++)
        if (mpri_op_elements(c, k, &n) && mpri_dim_const(n) && n != 1)
            return mpri_op_shape_error(c, k, "elements of ratio or training_mode, allowed 1", n);
    return MPR_OK;
}

/* Streams are numbered in the order of the Dropouts, whatever stands between them: a model draws
 * alike with and without the Casts of a conversion. */
static int64_t next_stream(const Graph *g)
{
    int64_t last = 0;
    for (const Node *n = g->first; n; n = n->next)
        if (mpri_is(n, OP_Dropout) && ((const DropoutParams *)n->params)->stream > last)
            last = ((const DropoutParams *)n->params)->stream;
    return last + 1;
}

/* The first inference numbers the node's random stream. Clones of the graph keep the number: no two
 * nodes draw alike, and a node draws alike for every bound shape. */
static mpr_status infer_dropout(InferCtx *c)
{
    DropoutParams *p = c->n->params;
    if (p->stream == 0) p->stream = next_stream(c->g);
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(check_options(c, 1));
    TRY(mpri_op_infer_same(c));
    return mpri_infer_set(c, 1, MPR_BOOL, op_shape(c, 0));
}

static mpr_status infer_dropout_grad(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS_BOOL));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "mask"));
    TRY(check_options(c, 2));
    return mpri_op_infer_same(c);
}

/* training_mode is absent or a constant false. */
static bool is_off(const Value *training)
{
    if (!training) return true;
    return training->kind == VAL_CONST && training->data &&
           mpri_shape_elements(&training->shape) == 1 &&
           mpri_load_i64(training->dtype, training->data, 0) == 0;
}

static mpr_status grad_dropout(GradCtx *c)
{
    DropoutParams p = *(const DropoutParams *)c->n->params;
    Value *mask;
    TRY(mpri_op_grad_only_first(c));
    if (is_off(grad_in(c, 2))) {
        c->dx[0] = c->dy[0];
        return MPR_OK;
    }
    TRY(mpri_op_grad_output(c, 1, &mask));
    c->dx[0] = mpri_build(c->b, OP_DropoutGrad, &p, 4,
                          (Value *const[]){c->dy[0], mask, grad_in(c, 1), grad_in(c, 2)}, 1, NULL);
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_Dropout = {
    MPRI_OP(Dropout, "", "dropout"), .help = "zeros at random in training, identity otherwise",
    .min_in = 1, .max_in = 3, .min_out = 1, .max_out = 2,
    .optional_in = 6, PARAMS(DropoutParams, dropout_attrs),
    .flags = OPF_RANDOM, .inplace = 1, .fixed_in = 6, .nondiff_in = 6,
    .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP, .infer = infer_dropout,
    .grad_state = GRAD_FUNCTION, .grad = grad_dropout,
};
const OpDef mpri_op_DropoutGrad = {
    MPRI_OP(DropoutGrad, "mpr", "dropout"),
    .help = "(dy, mask, ratio, training_mode): dy where kept, scaled",
    .min_in = 2, .max_in = 4, .min_out = 1, .max_out = 1,
    .optional_in = 12, PARAMS(DropoutParams, dropout_attrs),
    .flags = OPF_INTERNAL, .inplace = 1, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_dropout_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
