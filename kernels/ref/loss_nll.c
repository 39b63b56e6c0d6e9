/* NegativeLogLikelihoodLoss over axis 1, and its gradient. A label that equals ignore_index, inside
 * [0, C) or not, does not count; any other label outside is MPR_E_INDEX. */
#include "kernels/ref/util.h"

typedef struct Nll {
    const Tensor *labels, *weights; /* weights may be NULL */
    int64_t classes, inner;         /* the scores are [samples, classes, inner] */
    int64_t ignore;
    bool mean, none;
} Nll;

static Nll make_case(const KernelCall *c, const int64_t *dims, int rank, int64_t ignore,
                     const char *reduction)
{
    bool weighted = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    Nll k = {&c->in[1], weighted ? &c->in[2] : NULL, dims[1], 1, ignore,
             !reduction || reduction[0] == 'm', reduction && reduction[0] == 'n'};
    for (int i = 2; i < rank; i++) k.inner *= dims[i];
    return k;
}

/* *label = -1: does not count. */
static mpr_status label_at(const Nll *k, const KernelCall *c, int64_t i, int64_t *label)
{
    int64_t v = mpri_load_i64(k->labels->dtype, k->labels->data, i);
    *label = -1;
    if (k->ignore != MPRI_NO_IGNORE && v == k->ignore) return MPR_OK;
    if (v < 0 || v >= k->classes) {
        if (c->fault) *c->fault = (KernelFault){1, i, v, 0, k->classes};
        return MPR_E_INDEX;
    }
    *label = v;
    return MPR_OK;
}

static double weight(const Nll *k, int64_t label)
{
    return label < 0 ? 0 : k->weights ? mpri_ref_load(k->weights, label) : 1;
}

static int64_t element(const Nll *k, int64_t i, int64_t label)
{
    return (i / k->inner * k->classes + label) * k->inner + i % k->inner;
}

/* Inputs log-probabilities, labels, weights (optional). */
static mpr_status k_nll(const KernelCall *c)
{
    const NllLossParams *p = c->params;
    const Tensor *x = &c->in[0];
    Nll k = make_case(c, x->dims, x->rank, p->ignore_index, p->reduction);
    double sum = 0, counted = 0;
    for (int64_t i = 0; i < k.labels->n; i++) {
        int64_t label;
        TRY(label_at(&k, c, i, &label));
        double w = weight(&k, label),
               row = label < 0 ? 0 : -w * mpri_ref_load(x, element(&k, i, label));
        sum += row;
        counted += w;
        if (k.none) mpri_ref_store(&c->out[0], i, row);
    }
    if (!k.none) mpri_ref_store(&c->out[0], 0, k.mean ? sum / counted : sum);
    return MPR_OK;
}

/* Inputs dloss, labels, weights (optional). */
static mpr_status k_nll_grad(const KernelCall *c)
{
    const NllLossGradParams *p = c->params;
    Tensor *dx = &c->out[0];
    Nll k = make_case(c, dx->dims, dx->rank, p->ignore_index, p->reduction);
    double counted = 0;
    int64_t label;
    for (int64_t i = 0; i < k.labels->n; i++) {
        TRY(label_at(&k, c, i, &label));
        counted += weight(&k, label);
    }
    memset(dx->data, 0, (size_t)dx->n * mpri_dtype_size(dx->dtype));
    for (int64_t i = 0; i < k.labels->n; i++) {
        TRY(label_at(&k, c, i, &label));
        double g = mpri_ref_load(&c->in[0], k.none ? i : 0) / (k.mean ? counted : 1);
        if (label >= 0) mpri_ref_store(dx, element(&k, i, label), -weight(&k, label) * g);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(NegativeLogLikelihoodLoss, "negativeloglikelihoodloss", k_nll),
    REF_ROW(NllLossGrad, "nlllossgrad", k_nll_grad),
};
const KernelTable mpri_ref_loss_nll = REF_TABLE(rows);
