/* The loss: attached to an output of the model, or found in it. Afterwards the graph has an output
 * "loss", an f32 scalar, and, for the losses made here, an input for the labels.
 *
 * Trap: PyTorch flattens logits and labels and so means over every counted label of the batch;
 * CrossEntropy takes the class axis as it lies and gives the same mean. ONNX's own
 * SoftmaxCrossEntropyLoss has its classes on axis 1; it becomes the same internal operator, so
 * there is one loss to differentiate. */
#include <string.h>
#include "passes/recover.h"
#include "passes/rewrite.h"

static mpr_status list_outputs(const Graph *g, Err *err)
{
    char names[512] = "";
    size_t len = 0;
    for (int i = 0; i < g->n_outputs; i++) {
        const char *name = mpri_err_name(g->outputs[i].name);
        size_t n = strlen(name);
        if (len + n + 8 > sizeof names) {
            memcpy(names + len, ", ...", 6);
            break;
        }
        if (i) memcpy(names + len, ", ", 2), len += 2;
        memcpy(names + len, name, n + 1);
        len += n;
    }
    return mpri_err_advice(err, "outputs of the model: %s", names);
}

static GraphOutput *find_output(Graph *g, const char *name)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (!strcmp(g->outputs[i].name, name)) return &g->outputs[i];
    return NULL;
}

/* ---- SoftmaxCrossEntropyLoss of the file ---- */

static Value *log_prob(Builder *b, Node *n)
{
    SoftmaxParams p;
    mpri_params_default(&mpri_op_LogSoftmax, &p);
    p.axis = 1;
    return mpri_build1(b, OP_LogSoftmax, &p, n->in[0]);
}

static mpr_status rewrite_sce(Graph *g, Node *n, Err *err)
{
    const SoftmaxCrossEntropyLossParams *sp = n->params;
    Builder b = mpri_rewrite_builder(g, n, err);
    Value *old_log = n->n_out > 1 ? n->out[1] : NULL, *new_log = NULL;
    if (old_log && old_log->n_uses + old_log->n_outputs > 0) {
        new_log = log_prob(&b, n);
        TRY(b.failed);
        mpri_value_replace(g, old_log, new_log);
    }
    CrossEntropyParams p;
    mpri_params_default(&mpri_op_CrossEntropy, &p);
    p.axis = 1;
    p.ignore_index = sp->ignore_index;
    p.reduction = sp->reduction;
    Value *weights = n->n_in > 2 ? n->in[2] : NULL;
    Value *in[3] = {n->in[0], n->in[1], weights};
    Value *loss = mpri_build(&b, OP_CrossEntropy, &p, weights ? 3 : 2, in, 1, NULL);
    Value *to = mpri_build_cast(&b, loss, n->out[0]->dtype);
    TRY(b.failed);
    mpri_rewrite_supplant(g, n, to);
    if (new_log) mpri_value_rename(g, new_log, old_log->name);
    return MPR_OK;
}

/* ---- losses made here ---- */

/* The node that computes v, seen through the Casts of a mixed-precision file. */
static Node *computed_by(Value *v)
{
    return mpri_def(mpri_match_through(NULL, v));
}

static mpr_status choose_logits(const PassOptions *o, Graph *g, Value **out, Err *err)
{
    GraphOutput *found = NULL;
    if (o->logits) {
        found = find_output(g, o->logits);
        if (!found) {
            mpri_err_set(err, MPR_E_USAGE, "the model has no output '%s' for the loss to read",
                         mpri_err_name(o->logits));
            return list_outputs(g, err);
        }
    } else {
        found = g->n_outputs == 1 ? &g->outputs[0] : find_output(g, "logits");
        if (!found) {
            mpri_err_set(
                err, MPR_E_USAGE,
                "the model has %d outputs and none is named logits: which one does the loss read?",
                g->n_outputs);
            return list_outputs(g, err);
        }
    }
    *out = found->value;
    if (mpri_dtype_is_float((*out)->dtype)) return MPR_OK;
    mpri_err_set(err, MPR_E_NOT_DIFFERENTIABLE, "output '%s' has type %s: a loss needs a float one",
                 mpri_err_name(found->name), mpri_dtype_name((*out)->dtype));
    return list_outputs(g, err);
}

/* The input that takes the labels: a new one, or one of the model that has the same meaning. */
static mpr_status labels_input(const PassOptions *o, Graph *g, DType t, const Shape *shape,
                               Value **out, Err *err)
{
    const char *name = o->labels ? o->labels : "labels";
    for (int i = 0; i < g->n_inputs; i++) {
        Value *v = g->inputs[i].value;
        if (strcmp(v->name, name)) continue;
        bool same_kind = mpri_dtype_is_float(t) ? v->dtype == t
                                                : v->dtype == MPR_INT64 || v->dtype == MPR_INT32;
        bool open = v->shape.rank < 0 || shape->rank < 0; /* the rule of the loss compares them */
        if (same_kind && (open || v->shape.rank == shape->rank)) {
            *out = v;
            return MPR_OK;
        }
        char found[256], wanted[256];
        mpri_err_set(err, MPR_E_USAGE,
                     "the model has an input '%s' of type %s%s; the labels of the loss are %s%s",
                     mpri_err_name(name), mpri_dtype_name(v->dtype),
                     mpri_shape_print(g->sym, &v->shape, found, sizeof found), mpri_dtype_name(t),
                     mpri_shape_print(g->sym, shape, wanted, sizeof wanted));
        return mpri_err_advice(
            err,
            "give the labels another name, or use a loss of the model with --loss output:NAME");
    }
    *out = mpri_value_input(g, name, t, shape);
    return *out ? MPR_OK : mpri_err_nomem(err, sizeof **out);
}

static mpr_status no_rank(const Value *logits, Err *err)
{
    mpri_err_set(err, MPR_E_SHAPE, "the shape of '%s' is not known well enough for a loss on it",
                 mpri_err_name(logits->name));
    return mpri_err_advice(err, "declare the shape of that output in the model");
}

static mpr_status cross_entropy(PassCtx *ctx, Builder *b, Value *logits, Value **loss)
{
    const PassOptions *o = ctx->o;
    if (logits->shape.rank == 0) return no_rank(logits, b->err);
    if (mpri_is(computed_by(logits), OP_Softmax))
        mpri_log(ctx->log, MPR_LOG_WARNING,
                 "output '%s' is a Softmax, but cross-entropy takes logits: it is applied twice",
                 mpri_err_name(logits->name));
    Shape shape = {.rank = MPRI_RANK_UNKNOWN};
    if (logits->shape.rank > 0) {
        shape = logits->shape;
        shape.rank--;
    }
    Value *labels;
    TRY(labels_input(o, b->g, MPR_INT64, &shape, &labels, b->err));
    CrossEntropyParams p;
    mpri_params_default(&mpri_op_CrossEntropy, &p);
    p.axis = -1;
    p.ignore_index = o->ignore_index;
    p.label_smoothing = o->label_smoothing;
    p.reduction = "mean";
    *loss = mpri_build(b, OP_CrossEntropy, &p, 2, (Value *[]){logits, labels}, 1, NULL);
    return b->failed;
}

/* Labels of the shape of the prediction, and the prediction in f32. */
static mpr_status targets(Builder *b, const PassOptions *o, Value **pred, Value **target)
{
    TRY(labels_input(o, b->g, MPR_FLOAT32, &(*pred)->shape, target, b->err));
    *pred = mpri_build_cast(b, *pred, MPR_FLOAT32);
    return b->failed;
}

static Value *mean_of_all(Builder *b, Value *x)
{
    ReduceParams p;
    mpri_params_default(&mpri_op_ReduceMean, &p);
    p.keepdims = 0;
    return mpri_build1(b, OP_ReduceMean, &p, x);
}

static mpr_status mse(PassCtx *ctx, Builder *b, Value *pred, Value **loss)
{
    Value *target;
    TRY(targets(b, ctx->o, &pred, &target));
    *loss = mpri_build2(b, OP_MseLoss, NULL, pred, target);
    return b->failed;
}

static mpr_status l1(PassCtx *ctx, Builder *b, Value *pred, Value **loss)
{
    Value *target;
    if (pred->shape.rank < 0) return no_rank(pred, b->err); /* two shapes would broadcast */
    TRY(targets(b, ctx->o, &pred, &target));
    Value *d = mpri_build2(b, OP_Sub, NULL, pred, target);
    *loss = mean_of_all(b, mpri_build1(b, OP_Abs, NULL, d));
    return b->failed;
}

/* max(x, 0) - x t + log(1 + exp(-|x|)): never overflows. Max shares its gradient between equal
 * inputs, so the slope at x = 0 is 1/2 - t as it must be; Relu would give -t to a head that starts
 * at zero. */
static mpr_status bce_with_logits(PassCtx *ctx, Builder *b, Value *x, Value **loss)
{
    Value *t;
    Node *sigmoid = computed_by(x);
    if (mpri_is(sigmoid, OP_Sigmoid)) {
        mpri_log(ctx->log, MPR_LOG_NOTICE,
                 "output '%s' is a Sigmoid: the loss reads the logits in front of it",
                 mpri_err_name(x->name));
        x = sigmoid->in[0];
    }
    if (x->shape.rank < 0) return no_rank(x, b->err);
    TRY(targets(b, ctx->o, &x, &t));
    Value *one = mpri_build_scalar(b, MPR_FLOAT32, 1), *zero = mpri_build_scalar(b, MPR_FLOAT32, 0);
    Value *linear = mpri_build2(b, OP_Sub, NULL, mpri_build2(b, OP_Max, NULL, x, zero),
                                mpri_build2(b, OP_Mul, NULL, x, t));
    Value *decay = mpri_build1(b, OP_Exp, NULL,
                               mpri_build1(b, OP_Neg, NULL, mpri_build1(b, OP_Abs, NULL, x)));
    Value *tail = mpri_build1(b, OP_Log, NULL, mpri_build2(b, OP_Add, NULL, one, decay));
    *loss = mean_of_all(b, mpri_build2(b, OP_Add, NULL, linear, tail));
    return b->failed;
}

typedef struct LossKind {
    const char *name;
    mpr_status (*build)(PassCtx *ctx, Builder *b, Value *logits, Value **loss);
} LossKind;

static const LossKind kinds[] = {{"cross-entropy", cross_entropy},
                                 {"mse", mse},
                                 {"l1", l1},
                                 {"bce-with-logits", bce_with_logits}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* A scalar of the model. One element counts as a scalar. */
static mpr_status model_loss(Builder *b, const char *name, Value **loss)
{
    GraphOutput *out = find_output(b->g, name);
    if (!out) {
        mpri_err_set(b->err, MPR_E_USAGE, "the model has no output '%s' to take as the loss",
                     mpri_err_name(name));
        return list_outputs(b->g, b->err);
    }
    Value *v = out->value;
    /* A rank that only the data tell is checked when they are bound, by the Reshape. */
    bool scalar = v->shape.rank <= 0 || mpri_shape_elements(&v->shape) == 1;
    if (!scalar || !mpri_dtype_is_float(v->dtype)) {
        char shape[256];
        mpri_err_set(b->err, MPR_E_NOT_DIFFERENTIABLE,
                     "output '%s' is %s%s: a loss is one float number", mpri_err_name(name),
                     mpri_dtype_name(v->dtype),
                     mpri_shape_print(b->g->sym, &v->shape, shape, sizeof shape));
        return mpri_err_advice(
            b->err, "choose a loss on it instead: cross-entropy or mse, with --logits %s",
            mpri_err_name(name));
    }
    if (v->shape.rank != 0) v = mpri_build2(b, OP_Reshape, NULL, v, mpri_build_i64s(b, 0, NULL));
    *loss = mpri_build_cast(b, v, MPR_FLOAT32);
    return b->failed;
}

static mpr_status unknown_loss(const char *loss, Err *err)
{
    const char *known[N_KINDS + 1] = {"output:NAME"};
    for (int i = 0; i < N_KINDS; i++) known[i + 1] = kinds[i].name;
    mpri_err_set(err, MPR_E_USAGE, "there is no loss '%s'", mpri_err_name(loss));
    const char *near = mpri_nearest(loss, known, N_KINDS + 1);
    if (near) return mpri_err_advice(err, "did you mean '%s'?", near);
    return mpri_err_advice(err, "losses: cross-entropy, mse, l1, bce-with-logits, output:NAME");
}

static mpr_status build_loss(PassCtx *ctx, Builder *b, Value **loss)
{
    const PassOptions *o = ctx->o;
    if (!strncmp(o->loss, "output:", 7)) return model_loss(b, o->loss + 7, loss);
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(o->loss, kinds[i].name)) continue;
        Value *logits;
        TRY(choose_logits(o, b->g, &logits, b->err));
        return kinds[i].build(ctx, b, logits, loss);
    }
    return unknown_loss(o->loss, b->err);
}

/* The graph output "loss" shows v. An output of that name that the model has gives way. */
static mpr_status name_loss(PassCtx *ctx, Graph *g, Value *v, Err *err)
{
    GraphOutput *out = find_output(g, "loss");
    if (!out) return mpri_graph_add_output(g, "loss", v, err);
    if (out->value == v) return MPR_OK;
    if (strncmp(ctx->o->loss, "output:", 7))
        mpri_log(ctx->log, MPR_LOG_NOTICE,
                 "the output 'loss' of the model is replaced by the %s loss", ctx->o->loss);
    out->value->n_outputs--;
    out->value = v;
    v->n_outputs++;
    return MPR_OK;
}

mpr_status mpri_pass_loss(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (!mpri_is(n, OP_SoftmaxCrossEntropyLoss)) continue;
        TRY(rewrite_sce(g, n, err));
        *changed = true;
    }
    const PassOptions *o = ctx->o;
    if (!o->loss) return MPR_OK;
    Builder b = {.g = g, .scope = "loss", .segment = SEG_FORWARD, .err = err};
    Value *loss = NULL;
    TRY(build_loss(ctx, &b, &loss));
    TRY(name_loss(ctx, g, loss, err));
    *changed = true;
    if (!o->count_labels || strncmp(o->loss, "output:", 7)) return MPR_OK;
    Value *count = NULL;
    TRY(mpri_loss_count(&b, loss, o->loss + 7, &count));
    TRY(mpri_graph_add_output(g, MPRI_LOSS_COUNT, count, err));
    return MPR_OK;
}
