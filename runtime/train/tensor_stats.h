/* Exponents of the tensors of one training step: of activations in 16 bits, of the gradients of
 * activations, and of the gradients of weights, as they are stored, that is scaled.
 *
 * What they would be without the scale follows: all exponents are lower by its logarithm. From both
 * the share of elements that float16 flushes to zero, and whether the scale could be higher. */
#ifndef MPRI_TRAIN_TENSOR_STATS_H
#define MPRI_TRAIN_TENSOR_STATS_H

#include "runtime/base/text.h"
#include "runtime/train/forensics.h"

enum { STAT_LEAST = -40, STAT_MOST = 40, STAT_BINS = STAT_MOST - STAT_LEAST + 1 };

typedef enum StatKind {
    STAT_ACTIVATION,
    STAT_ACTIVATION_GRAD,
    STAT_WEIGHT_GRAD,
    STAT_KINDS
} StatKind;

typedef struct TensorStat {
    StatKind kind;
    DType dtype;
    char tensor[128], node[256];
    int64_t n, zero, nonfinite;
    int64_t count[STAT_BINS]; /* by exponent; the outer bins hold what lies beyond */
    double most;              /* largest absolute value that is finite */
} TensorStat;

typedef struct TensorStats {
    mpr_session *s;
    const Plan *plan; /* of the micro-batch that is looked at; others are passed over */
    TensorStat *v;
    int n, cap;
    bool failed; /* no memory */
} TensorStats;

/* From now on the session's next training pass is looked at. */
void mpri_tensor_stats_begin(TensorStats *t, mpr_session *s);
/* No further look. */
void mpri_tensor_stats_end(TensorStats *t);
/* Members for the log: "tensor_stats": {…}. scale: the loss scale of the step. */
void mpri_tensor_stats_json(const TensorStats *t, double scale, Text *out);
/* A few lines for people: the advice, then the tensors that lose most. */
void mpri_tensor_stats_text(const TensorStats *t, double scale, Text *out);
void mpri_tensor_stats_free(TensorStats *t);

#endif
