/* Losses. Cross-entropy per counted label t, with weights w (1 when absent) and smoothing s:
 *   w[t] (lse - x[t]) (1 - s) + s / C * sum_c w[c] (lse - x[c])
 * "mean" divides the sum by the counted weights, so it is 0/0 when no label counts, as in PyTorch.
 * The backward pass makes the probabilities again from the logits and the saved log-sum-exp. A
 * label outside [0, C) that is not ignore_index is MPR_E_INDEX. */
#include "kernels/ref/util.h"

typedef struct Case { /* one cross-entropy call, whatever its operator */
    const Tensor *x, *labels, *weights; /* weights may be NULL */
    int64_t classes, inner, ignore;
    double smoothing;
    bool mean, none;
} Case;

static const Tensor *optional(const KernelCall *c, int k)
{
    return c->n_in > k && mpri_tensor_here(&c->in[k]) ? &c->in[k] : NULL;
}

static Tensor *wanted(const KernelCall *c, int k)
{
    return c->n_out > k && mpri_tensor_here(&c->out[k]) ? &c->out[k] : NULL;
}

static Case make_case(const Tensor *x, const Tensor *labels, const Tensor *weights, int axis,
                      int64_t ignore, double smoothing, const char *reduction)
{
    Case k = {
        .x = x, .labels = labels, .weights = weights, .ignore = ignore, .smoothing = smoothing};
    k.classes = x->dims[axis];
    k.inner = mpri_ref_span(x, axis + 1, x->rank);
    k.none = reduction && strcmp(reduction, "none") == 0;
    k.mean = !k.none && !(reduction && strcmp(reduction, "sum") == 0);
    return k;
}

static int64_t element(const Case *k, int64_t i, int64_t cls)
{
    return (i / k->inner * k->classes + cls) * k->inner + i % k->inner;
}

static double weight(const Case *k, int64_t cls)
{
    return k->weights ? mpri_ref_load(k->weights, cls) : 1;
}

/* Label i, or -1 when it does not count. */
static mpr_status label_at(const Case *k, const KernelCall *c, int64_t i, int64_t *label)
{
    int64_t v = mpri_load_i64(k->labels->dtype, k->labels->data, i);
    *label = -1;
    if (k->ignore != MPRI_NO_IGNORE && v == k->ignore) return MPR_OK;
    if (v < 0 || v >= k->classes) {
        if (c->fault) *c->fault = (KernelFault){(int)(k->labels - c->in), i, v, 0, k->classes};
        return MPR_E_INDEX;
    }
    *label = v;
    return MPR_OK;
}

static double log_sum_exp(const Case *k, int64_t i)
{
    double top = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < k->classes; j++) {
        double v = mpri_ref_load(k->x, element(k, i, j));
        if (isnan(v)) return v;
        if (v > top) top = v;
    }
    if (isinf(top)) return top;
    for (int64_t j = 0; j < k->classes; j++)
        sum += exp(mpri_ref_load(k->x, element(k, i, j)) - top);
    return top + log(sum);
}

static double row_loss(const Case *k, int64_t i, int64_t label, double lse)
{
    double hard = weight(k, label) * (lse - mpri_ref_load(k->x, element(k, i, label))), soft = 0;
    if (k->smoothing == 0) return hard;
    for (int64_t j = 0; j < k->classes; j++)
        soft += weight(k, j) * (lse - mpri_ref_load(k->x, element(k, i, j)));
    return (1 - k->smoothing) * hard + k->smoothing / (double)k->classes * soft;
}

/* Outputs that may be NULL: lse, log_prob, count. */
static mpr_status cross_entropy(const Case *k, const KernelCall *c, Tensor *loss, Tensor *lse,
                                Tensor *log_prob, Tensor *count)
{
    double sum = 0, counted = 0;
    for (int64_t i = 0; i < k->labels->n; i++) {
        int64_t label;
        TRY(label_at(k, c, i, &label));
        double l = log_sum_exp(k, i), row = label < 0 ? 0 : row_loss(k, i, label, l);
        sum += row;
        counted += label < 0 ? 0 : weight(k, label);
        if (k->none) mpri_ref_store(loss, i, row);
        if (lse) mpri_ref_store(lse, i, l);
        for (int64_t j = 0; j < k->classes && log_prob; j++)
            mpri_ref_store(log_prob, element(k, i, j), mpri_ref_load(k->x, element(k, i, j)) - l);
    }
    if (!k->none) mpri_ref_store(loss, 0, k->mean ? sum / counted : sum);
    if (count) mpri_ref_store(count, 0, counted);
    return MPR_OK;
}

/* Inputs logits, labels, weights (optional); outputs loss, lse, count. */
static mpr_status k_cross_entropy(const KernelCall *c)
{
    const CrossEntropyParams *p = c->params;
    Case k = make_case(&c->in[0], &c->in[1], optional(c, 2), mpri_ref_axis(p->axis, c->in[0].rank),
                       p->ignore_index, p->label_smoothing, p->reduction);
    return cross_entropy(&k, c, &c->out[0], wanted(c, 1), NULL, wanted(c, 2));
}

/* ONNX form: classes on axis 1; outputs loss, log_prob (optional). */
static mpr_status k_softmax_cross_entropy(const KernelCall *c)
{
    const SoftmaxCrossEntropyLossParams *p = c->params;
    Case k = make_case(&c->in[0], &c->in[1], optional(c, 2), 1, p->ignore_index, 0, p->reduction);
    return cross_entropy(&k, c, &c->out[0], NULL, wanted(c, 1), NULL);
}

/* Inputs dloss, logits, labels, lse, count, weights (optional); output dlogits, which may take the
 * logits' memory. Per element: g * ((1-s) w[t] (p - [c = t]) + s/C (sum(w) p - w[c])). */
static mpr_status k_cross_entropy_grad(const KernelCall *c)
{
    const CrossEntropyParams *p = c->params;
    const Tensor *dloss = &c->in[0];
    Case k = make_case(&c->in[1], &c->in[2], optional(c, 5), mpri_ref_axis(p->axis, c->in[1].rank),
                       p->ignore_index, p->label_smoothing, p->reduction);
    double all = 0, soft = k.smoothing / (double)k.classes;
    for (int64_t j = 0; j < k.classes; j++) all += weight(&k, j);
    for (int64_t i = 0; i < k.labels->n; i++) {
        int64_t label;
        TRY(label_at(&k, c, i, &label));
        double g = label < 0 ? 0 : mpri_ref_load(dloss, k.none ? i : 0);
        if (k.mean && label >= 0) g /= mpri_ref_load(&c->in[4], 0);
        double hard = label < 0 ? 0 : (1 - k.smoothing) * weight(&k, label),
               lse = mpri_ref_load(&c->in[3], i);
        for (int64_t j = 0; j < k.classes; j++) {
            int64_t at = element(&k, i, j);
            double prob = exp(mpri_ref_load(k.x, at) - lse);
            double d = hard * (prob - (j == label)) + soft * (all * prob - weight(&k, j));
            mpri_ref_store(&c->out[0], at, label < 0 ? 0 : g * d);
        }
    }
    return MPR_OK;
}

static bool is_mean(const MseLossParams *p)
{
    return !(p->reduction && strcmp(p->reduction, "sum") == 0);
}

/* Inputs pred, target; outputs loss, count. */
static mpr_status k_mse(const KernelCall *c)
{
    double sum = 0, n = (double)c->in[0].n;
    for (int64_t i = 0; i < c->in[0].n; i++) {
        double d = mpri_ref_load(&c->in[0], i) - mpri_ref_load(&c->in[1], i);
        sum += d * d;
    }
    mpri_ref_store(&c->out[0], 0, is_mean(c->params) ? sum / n : sum);
    if (wanted(c, 1)) mpri_ref_store(&c->out[1], 0, n);
    return MPR_OK;
}

/* Inputs dloss, pred, target, count. */
static mpr_status k_mse_grad(const KernelCall *c)
{
    double g = 2 * mpri_ref_load(&c->in[0], 0);
    if (is_mean(c->params)) g /= mpri_ref_load(&c->in[3], 0);
    for (int64_t i = 0; i < c->out[0].n; i++)
        mpri_ref_store(&c->out[0], i,
                       g * (mpri_ref_load(&c->in[1], i) - mpri_ref_load(&c->in[2], i)));
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(SoftmaxCrossEntropyLoss, "softmaxcrossentropyloss", k_softmax_cross_entropy),
    REF_ROW(CrossEntropy, "crossentropy", k_cross_entropy),
    REF_ROW(CrossEntropyGrad, "crossentropygrad", k_cross_entropy_grad),
    REF_ROW(MseLoss, "mseloss", k_mse),
    REF_ROW(MseLossGrad, "mselossgrad", k_mse_grad),
};
const KernelTable mpri_ref_loss = REF_TABLE(rows);
