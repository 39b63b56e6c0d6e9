/* Metrics. Predictions are the first largest logit along the class axis; labels equal to the ignore
 * index do not count. F1 as scikit-learn: binary for two classes, else macro. */
#include "runtime/train/metrics.h"

#include <math.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/base/size.h"

void mpri_metrics_choose(MetricSet *m, const char *const *names)
{
    *m = (MetricSet){0};
    for (; names && *names; names++) {
        m->accuracy |= !strcmp(*names, "accuracy");
        m->f1 |= !strcmp(*names, "f1");
        m->mse |= !strcmp(*names, "mse");
        m->perplexity |= !strcmp(*names, "perplexity");
    }
}

bool mpri_metrics_need_logits(const MetricSet *m)
{
    return m->accuracy || m->f1 || m->mse;
}

void mpri_metrics_reset(MetricSet *m)
{
    m->counted = m->right = m->elements = 0;
    m->squares = 0;
    for (int64_t c = 0; c < m->classes; c++) m->tp[c] = m->fp[c] = m->fn[c] = 0;
}

static mpr_status need_classes(MetricSet *m, Arena *arena, int64_t classes, Err *err)
{
    if (m->classes >= classes) return MPR_OK;
    int64_t *all = ARENA_ARRAY(arena, int64_t, 3 * classes);
    if (!all) return mpri_err_nomem(err, (size_t)classes * 24);
    for (int64_t c = 0; c < m->classes; c++) {
        all[c] = m->tp[c];
        all[classes + c] = m->fp[c];
        all[2 * classes + c] = m->fn[c];
    }
    m->tp = all;
    m->fp = all + classes;
    m->fn = all + 2 * classes;
    m->classes = classes;
    return MPR_OK;
}

static mpr_status mismatch(const mpr_tensor *logits, const mpr_tensor *labels, int64_t have,
                           int64_t want, Err *err)
{
    mpri_err_set(err, MPR_E_SHAPE,
                 "metrics: logits of rank %d need %lld labels, there are %lld (rank %d)",
                 logits->rank, (long long)want, (long long)have, labels->rank);
    return mpri_err_advice(
        err, "metrics other than eval_loss need one label per row of logits; leave --metrics out");
}

static mpr_status add_classes(MetricSet *m, Arena *arena, const mpr_tensor *logits, int axis,
                              const mpr_tensor *labels, int64_t n, int64_t ignore, Err *err)
{
    if (axis < 0) axis += logits->rank;
    if (axis < 0 || axis >= logits->rank) return mismatch(logits, labels, n, 0, err);
    int64_t classes = logits->dims[axis], inner = 1, outer = 1;
    for (int d = 0; d < logits->rank; d++)
        *(d < axis ? &outer : &inner) *= d == axis ? 1 : logits->dims[d];
    if (outer * inner != n) return mismatch(logits, labels, n, outer * inner, err);
    TRY(need_classes(m, arena, classes, err));
    const float *x = logits->data;
    for (int64_t i = 0; i < n; i++) {
        int64_t label = mpri_load_i64(labels->dtype, labels->data, i), best = 0;
        if (label == ignore || label < 0 || label >= classes) continue;
        const float *row = x + i / inner * classes * inner + i % inner;
        for (int64_t c = 1; c < classes; c++)
            if (row[c * inner] > row[best * inner]) best = c;
        m->counted++;
        m->right += best == label;
        if (best == label) m->tp[label]++;
        else m->fp[best]++, m->fn[label]++;
    }
    return MPR_OK;
}

mpr_status mpri_metrics_add(MetricSet *m, Arena *arena, const mpr_tensor *logits, int axis,
                            const mpr_tensor *labels, int64_t ignore, Err *err)
{
    int64_t n, k;
    if (!mpri_size_elements(labels->rank, labels->dims, &n) ||
        !mpri_size_elements(logits->rank, logits->dims, &k) || logits->dtype != MPR_FLOAT32)
        return mpri_err_set(err, MPR_E_INTERNAL, "metrics: bad tensors");
    if (m->accuracy || m->f1) {
        if (mpri_dtype_is_float(labels->dtype)) {
            mpri_err_set(err, MPR_E_USAGE,
                         "metrics accuracy and f1 need integer labels, these are %s",
                         mpri_dtype_long(labels->dtype));
            return mpri_err_advice(err, "use --metrics mse");
        }
        TRY(add_classes(m, arena, logits, axis, labels, n, ignore, err));
    }
    if (!m->mse) return MPR_OK;
    if (n != k) return mismatch(logits, labels, n, k, err);
    for (int64_t i = 0; i < n; i++) {
        double d = (double)((const float *)logits->data)[i] -
                   mpri_load_f64(labels->dtype, labels->data, i);
        m->squares += d * d;
    }
    m->elements += n;
    return MPR_OK;
}

double mpri_metrics_accuracy(const MetricSet *m)
{
    return m->counted ? (double)m->right / (double)m->counted : NAN;
}

double mpri_metrics_f1(const MetricSet *m)
{
    double sum = 0;
    int64_t occurring = 0;
    for (int64_t c = 0; c < m->classes; c++) {
        int64_t all = 2 * m->tp[c] + m->fp[c] + m->fn[c];
        double f1 = all ? 2.0 * (double)m->tp[c] / (double)all : 0;
        if (m->classes == 2 && c == 1) return f1;
        if (!all) continue;
        sum += f1;
        occurring++;
    }
    return occurring ? sum / (double)occurring : NAN;
}

double mpri_metrics_mse(const MetricSet *m)
{
    return m->elements ? m->squares / (double)m->elements : NAN;
}
