/* Evaluation metrics over batches: accuracy, macro F1 and mean squared error from logits and
 * labels. */
#ifndef MPRI_TRAIN_METRICS_H
#define MPRI_TRAIN_METRICS_H

#include "runtime/base/arena.h"
#include "runtime/base/text.h"

typedef struct MetricSet {
    bool accuracy, f1, mse, perplexity; /* wanted */
    int64_t counted, right;
    double squares;
    int64_t elements;
    int64_t classes;
    int64_t *tp, *fp, *fn; /* by class */
} MetricSet;

/* names: NULL-terminated, NULL = none. They were checked when they were set. */
void mpri_metrics_choose(MetricSet *m, const char *const *names);
bool mpri_metrics_need_logits(const MetricSet *m);
void mpri_metrics_reset(MetricSet *m);
/* logits: f32, class axis `axis` (negative from the end); labels as bound. MPR_E_SHAPE when they do
 * not fit. */
mpr_status mpri_metrics_add(MetricSet *m, Arena *arena, const mpr_tensor *logits, int axis,
                            const mpr_tensor *labels, int64_t ignore, Err *err);
double mpri_metrics_accuracy(const MetricSet *m);
/* Two classes: of class 1; more: mean over the classes that occur. */
double mpri_metrics_f1(const MetricSet *m);
double mpri_metrics_mse(const MetricSet *m);

#endif
