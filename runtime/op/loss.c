/* Losses: cross-entropy from logits (the fused form and the ONNX operator) and mean squared error.
 *
 * Loss values are f32 whatever the type of the logits, and f64 for f64. CrossEntropy keeps the
 * log-sum-exp per row instead of probabilities; the backward pass makes those from the logits. */
#include "runtime/op/loss.h"

static const AttrRow cross_entropy_attrs[] = {
    ATTR(CrossEntropyParams, axis, "axis", INT, .def_int = -1),
    ATTR(CrossEntropyParams, ignore_index, "ignore_index", INT, .def_int = MPRI_NO_IGNORE),
    ATTR(CrossEntropyParams, label_smoothing, "label_smoothing", FLOAT),
    ATTR(CrossEntropyParams, reduction, "reduction", STRING, .def_string = "mean",
         .choices = "mean|sum|none"),
    ATTR_OUT_DTYPE(CrossEntropyParams),
    ATTR_END,
};
static const AttrRow softmax_loss_attrs[] = {
    ATTR(SoftmaxCrossEntropyLossParams, ignore_index, "ignore_index", INT,
         .def_int = MPRI_NO_IGNORE),
    ATTR(SoftmaxCrossEntropyLossParams, reduction, "reduction", STRING, .def_string = "mean",
         .choices = "mean|sum|none"),
    ATTR_END,
};
static const AttrRow mse_attrs[] = {
    ATTR(MseLossParams, reduction, "reduction", STRING, .def_string = "mean",
         .choices = "mean|sum"),
    ATTR_OUT_DTYPE(MseLossParams),
    ATTR_END,
};

static bool is_none(const char *reduction) { return reduction && reduction[0] == 'n'; }

/* ---- type and shape rules ---- */

mpr_status mpri_loss_check_labels(InferCtx *c, int x, int64_t axis, int weights, Shape *rows)
{
    const Shape *s = op_shape(c, x);
    int at;
    *rows = *op_shape(c, x + 1);
    TRY(mpri_op_check_type(c, x + 1, TS_INDEX));
    TRY(mpri_op_check_rank(c, weights, 1, 1));
    if (s->rank < 0) return MPR_OK;
    TRY(mpri_op_check_rank(c, x, 1, MPRI_MAX_RANK));
    TRY(mpri_infer_axis(c, axis, s->rank, &at));
    Shape want = {.rank = s->rank - 1};
    for (int i = 0; i < want.rank; i++) want.d[i] = s->d[i < at ? i : i + 1];
    TRY(mpri_op_expect_shape(c, x + 1, &want,
                             "labels: shape of the scores without the class axis"));
    TRY(mpri_op_expect_shape(c, weights, &(Shape){.rank = 1, .d = {s->d[at]}},
                             "one weight per class"));
    *rows = want;
    return MPR_OK;
}

static mpr_status infer_cross_entropy(InferCtx *c)
{
    const CrossEntropyParams *p = c->n->params;
    const Shape scalar = op_scalar();
    Shape rows;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_loss_check_labels(c, 0, p->axis, 2, &rows));
    DType t = mpri_op_wide(op_type(c, 0));
    TRY(mpri_infer_set(c, 0, t, is_none(p->reduction) ? &rows : &scalar));
    TRY(mpri_infer_set(c, 1, t, &rows));
    return mpri_infer_set(c, 2, t, &scalar);
}

static mpr_status infer_cross_entropy_grad(InferCtx *c)
{
    const CrossEntropyParams *p = c->n->params;
    const Shape scalar = op_scalar();
    Shape rows;
    DType t;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_loss_check_labels(c, 1, p->axis, 5, &rows));
    TRY(mpri_op_expect_shape(c, 0, is_none(p->reduction) ? &rows : &scalar,
                             "cotangent of the loss"));
    TRY(mpri_op_expect_shape(c, 3, &rows, "log-sum-exp"));
    TRY(mpri_op_expect_shape(c, 4, &scalar, "count"));
    return mpri_infer_set(c, 0, t, op_shape(c, 1));
}

static mpr_status infer_softmax_loss(InferCtx *c)
{
    const SoftmaxCrossEntropyLossParams *p = c->n->params;
    const Shape scalar = op_scalar();
    Shape rows;
    DType t, w;
    TRY(mpri_op_common_type(c, 0, 1, TS_FLOAT, &t));
    TRY(mpri_op_common_type(c, 2, 3, TS_FLOAT, &w));
    TRY(mpri_op_check_rank(c, 0, 2, MPRI_MAX_RANK));
    TRY(mpri_loss_check_labels(c, 0, 1, 2, &rows));
    TRY(mpri_infer_set(c, 0, t, is_none(p->reduction) ? &rows : &scalar));
    return mpri_infer_set(c, 1, t, op_shape(c, 0));
}

static mpr_status infer_mse(InferCtx *c)
{
    const Shape scalar = op_scalar();
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_type(c, 1, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 1, op_shape(c, 0), "target: shape of the prediction"));
    DType t = mpri_op_wide(op_type(c, 0));
    TRY(mpri_infer_set(c, 0, t, &scalar));
    return mpri_infer_set(c, 1, t, &scalar);
}

static mpr_status infer_mse_grad(InferCtx *c)
{
    const MseLossParams *p = c->n->params;
    DType t;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_mixed_type(c, 1, 2, TS_FLOAT, p->out_dtype, &t));
    TRY(mpri_op_check_type(c, 2, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 2, op_shape(c, 1), "target: shape of the prediction"));
    return mpri_infer_set(c, 0, t, op_shape(c, 1));
}

/* ---- gradients ---- */

static Value *cross_entropy_grad(GradCtx *c, const CrossEntropyParams *p, Value *lse, Value *count)
{
    Value *in[6] = {c->dy[0], grad_in(c, 0), grad_in(c, 1), lse, count, grad_in(c, 2)};
    return mpri_build(c->b, OP_CrossEntropyGrad, p, in[5] ? 6 : 5, in, 1, NULL);
}

static mpr_status grad_cross_entropy(GradCtx *c)
{
    CrossEntropyParams p = *(const CrossEntropyParams *)c->n->params;
    Value *lse, *count;
    p.out_dtype = MPR_DTYPE_NONE;
    TRY(mpri_op_grad_only_first(c));
    TRY(mpri_op_grad_output(c, 1, &lse));
    TRY(mpri_op_grad_output(c, 2, &count));
    if (grad_needs(c, 0)) c->dx[0] = cross_entropy_grad(c, &p, lse, count);
    return mpri_op_grad_done(c);
}

/* The ONNX operator keeps no log-sum-exp: the fused form computes it once more for the backward
 * pass. */
static mpr_status grad_softmax_loss(GradCtx *c)
{
    const SoftmaxCrossEntropyLossParams *forward = c->n->params;
    CrossEntropyParams p = {
        .axis = 1, .ignore_index = forward->ignore_index, .reduction = forward->reduction};
    Value *dlog = grad_dy(c, 1), *again[3], *dx = NULL;
    if (!grad_needs(c, 0)) return MPR_OK;
    if (c->dy[0]) {
        Value *in[3] = {grad_in(c, 0), grad_in(c, 1), grad_in(c, 2)};
        mpri_build(c->b, OP_CrossEntropy, &p, in[2] ? 3 : 2, in, 3, again);
        dx = cross_entropy_grad(c, &p, again[1], again[2]);
    }
    if (dlog) {
        SoftmaxParams axis = {.axis = 1};
        dlog = mpri_build2(c->b, OP_LogSoftmaxGrad, &axis, dlog, c->n->out[1]);
        dx = dx ? mpri_op_grad_binary(c, OP_Add, dx, dlog) : dlog;
    }
    c->dx[0] = dx;
    return mpri_op_grad_done(c);
}

static mpr_status grad_mse(GradCtx *c)
{
    MseLossParams p = *(const MseLossParams *)c->n->params;
    Value *count, *d;
    p.out_dtype = MPR_DTYPE_NONE;
    TRY(mpri_op_grad_only_first(c));
    TRY(mpri_op_grad_output(c, 1, &count));
    d = mpri_build(c->b, OP_MseLossGrad, &p, 4,
                   (Value *const[]){c->dy[0], grad_in(c, 0), grad_in(c, 1), count}, 1, NULL);
    if (grad_needs(c, 0)) c->dx[0] = d;
    if (grad_needs(c, 1)) c->dx[1] = mpri_op_grad_unary(c, OP_Neg, d);
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

const OpDef mpri_op_SoftmaxCrossEntropyLoss = {
    MPRI_OP(SoftmaxCrossEntropyLoss, "", "loss"),
    .help = "cross-entropy of scores (N,C,...) and labels (N,...)",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 2, .optional_in = 4,
    PARAMS(SoftmaxCrossEntropyLossParams, softmax_loss_attrs), .flags = OPF_LOSS, .nondiff_in = 6,
    .cast_cuda = CAST_FP32, .cast_cpu = CAST_FP32, .infer = infer_softmax_loss,
    .grad_state = GRAD_FUNCTION, .grad = grad_softmax_loss,
};
const OpDef mpri_op_CrossEntropy = {
    MPRI_OP(CrossEntropy, "mpr", "loss"),
    .help = "(logits, labels, weights): loss, log-sum-exp, count",
    .min_in = 2, .max_in = 3, .min_out = 1, .max_out = 3, .optional_in = 4,
    PARAMS(CrossEntropyParams, cross_entropy_attrs),
    .flags = OPF_INTERNAL | OPF_LOSS | OPF_MIXED_IN,
    .nondiff_in = 6, .cast_cuda = CAST_FP32, .cast_cpu = CAST_FP32, .infer = infer_cross_entropy,
    .grad_state = GRAD_FUNCTION, .grad = grad_cross_entropy,
};
const OpDef mpri_op_CrossEntropyGrad = {
    MPRI_OP(CrossEntropyGrad, "mpr", "loss"),
    .help = "(dloss, logits, labels, lse, count, weights): dlogits",
    .min_in = 5, .max_in = 6, .min_out = 1, .max_out = 1, .optional_in = 32,
    PARAMS(CrossEntropyParams, cross_entropy_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT,
    .inplace = 2, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_cross_entropy_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
const OpDef mpri_op_MseLoss = {
    MPRI_OP(MseLoss, "mpr", "loss"),
    .help = "(pred, target): mean or sum of squared differences, count",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 2, PARAMS(MseLossParams, mse_attrs),
    .flags = OPF_INTERNAL | OPF_LOSS | OPF_MIXED_IN, .cast_cuda = CAST_FP32, .cast_cpu = CAST_FP32,
    .infer = infer_mse, .grad_state = GRAD_FUNCTION, .grad = grad_mse,
};
const OpDef mpri_op_MseLossGrad = {
    MPRI_OP(MseLossGrad, "mpr", "loss"), .help = "(dloss, pred, target, count): dpred",
    .min_in = 4, .max_in = 4, .min_out = 1, .max_out = 1, PARAMS(MseLossParams, mse_attrs),
    .flags = OPF_INTERNAL | OPF_MIXED_IN | OPF_MIXED_OUT, .inplace = 6, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_mse_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
