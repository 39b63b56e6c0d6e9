/* Cross-entropy and mean squared error. Per counted label t, with weights w and smoothing s:
 *   w[t] (lse - x[t]) (1 - s) + s / C * sum_c w[c] (lse - x[c])
 *
 * Forward: one block per row of logits finds its largest element, then the sum of exponentials, then the
 * row's loss; a last block adds the rows in order, in double. Backward: one block per row makes the
 * probabilities again from the saved log-sum-exp and may write over the logits. Traffic: the logits twice
 * forward (the second time from the cache for rows of a few thousand classes), read and written once
 * backward. A label outside its range is noted in the device's fault. */
#include "kernels/cuda/kernel.cuh"

#include <math.h>

enum { LOSS_THREADS = 256 };

typedef struct LossArgs {
    const void *x, *labels, *weights; /* weights may be NULL */
    int tx, tl, tw;
    int64_t rows, classes, inner, ignore;
    float smoothing;
    int mean, none, has_ignore;
    int label_input, step;
    DeviceFault *fault;
} LossArgs;

static __device__ __forceinline__ int64_t row_base(const LossArgs &a, int64_t row)
{
    return row / a.inner * a.classes * a.inner + row % a.inner;
}

static __device__ __forceinline__ float weight_of(const LossArgs &a, int64_t c)
{
    return a.weights ? load_float(a.weights, a.tw, c) : 1.0f;
}

/* The label, or -1 when it does not count. */
static __device__ __forceinline__ int64_t label_of(const LossArgs &a, int64_t row, bool tell)
{
    int64_t v = load_int(a.labels, a.tl, row);
    if (a.has_ignore && v == a.ignore) return -1;
    if (v >= 0 && v < a.classes) return v;
    if (tell) note_fault(a.fault, a.step, a.label_input, row, v, 0, a.classes);
    return -1;
}

__global__ void k_loss_rows(LossArgs a, void *lse, int tlse, void *loss, int to, double *row_loss,
                            double *row_count)
{
    MPRI_SHARED(float, part, 33);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t base = row_base(a, row), label = label_of(a, row, threadIdx.x == 0);
        float top = -INFINITY, sum = 0, soft = 0;
        for (int64_t j = threadIdx.x; j < a.classes; j += blockDim.x)
            top = max_nan(top, load_float(a.x, a.tx, base + j * a.inner));
        top = block_max(top, part);
        for (int64_t j = threadIdx.x; j < a.classes; j += blockDim.x)
            sum += expf(load_float(a.x, a.tx, base + j * a.inner) - top);
        sum = block_sum<float>(sum, part);
        float l = isinf(top) ? top : top + logf(sum); /* NaN runs through */
        if (a.smoothing != 0) {
            for (int64_t j = threadIdx.x; j < a.classes; j += blockDim.x)
                soft += weight_of(a, j) * (l - load_float(a.x, a.tx, base + j * a.inner));
            soft = block_sum<float>(soft, part);
        }
        if (threadIdx.x) continue;
        float v = 0, w = 0;
        if (label >= 0) {
            w = weight_of(a, label);
            v = w * (l - load_float(a.x, a.tx, base + label * a.inner));
            if (a.smoothing != 0) v = (1 - a.smoothing) * v + a.smoothing / (float)a.classes * soft;
        }
        if (lse) store_float(lse, tlse, row, l);
        if (a.none && loss) store_float(loss, to, row, v);
        row_loss[row] = (double)v;
        row_count[row] = (double)w;
    }
}

/* One block: the rows in a fixed order. */
__global__ void k_loss_join(LossArgs a, const double *row_loss, const double *row_count, void *loss,
                            void *count, int to)
{
    MPRI_SHARED(double, part, 33);
    double sum = 0, n = 0;
    for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
        sum += row_loss[row];
        n += row_count[row];
    }
    sum = block_sum<double>(sum, part);
    n = block_sum<double>(n, part);
    if (threadIdx.x) return;
    if (!a.none && loss) store_float(loss, to, 0, (float)(a.mean ? sum / n : sum));
    if (count) store_float(count, to, 0, (float)n);
}

/* g ((1 - s) w[t] (p - [c = t]) + s / C (sum(w) p - w[c])) */
__global__ void k_loss_grad(LossArgs a, const void *dloss, int td, const void *lse, const void *count,
                            int to, void *dx, int tdx)
{
    MPRI_SHARED(float, part, 33);
    float soft = a.smoothing / (float)a.classes, all = (float)a.classes;
    if (a.weights && a.smoothing != 0) {
        float sum = 0;
        for (int64_t j = threadIdx.x; j < a.classes; j += blockDim.x) sum += weight_of(a, j);
        all = block_sum<float>(sum, part);
    }
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t base = row_base(a, row), label = label_of(a, row, threadIdx.x == 0);
        float g = 0, hard = 0, l = load_float(lse, to, row);
        if (label >= 0) {
            g = load_float(dloss, td, a.none ? row : 0);
            if (a.mean) g /= load_float(count, to, 0);
            hard = (1 - a.smoothing) * weight_of(a, label);
        }
        for (int64_t j = threadIdx.x; j < a.classes; j += blockDim.x) {
            int64_t at = base + j * a.inner;
            float p = expf(load_float(a.x, a.tx, at) - l);
            float d = hard * (p - (j == label ? 1.0f : 0.0f));
            if (a.smoothing != 0) d += soft * (all * p - weight_of(a, j));
            store_float(dx, tdx, at, label < 0 ? 0.0f : g * d);
        }
    }
}

static LossArgs loss_args(const KernelCall *c, int logits, int labels, int weights,
                          const CrossEntropyParams *p)
{
    const Tensor *x = &c->in[logits], *l = &c->in[labels], *w = input_of(c, weights);
    LossArgs a = {};
    int axis = (int)(p->axis < 0 ? p->axis + x->rank : p->axis);
    a.x = x->data, a.tx = (int)x->dtype;
    a.labels = l->data, a.tl = (int)l->dtype;
    if (w) a.weights = w->data, a.tw = (int)w->dtype;
    a.rows = l->n;
    a.classes = x->dims[axis];
    a.inner = 1;
    for (int k = axis + 1; k < x->rank; k++) a.inner *= x->dims[k];
    a.ignore = p->ignore_index;
    a.has_ignore = p->ignore_index != MPRI_NO_IGNORE;
    a.smoothing = p->label_smoothing;
    a.none = p->reduction && strcmp(p->reduction, "none") == 0;
    a.mean = !a.none && !(p->reduction && strcmp(p->reduction, "sum") == 0);
    a.label_input = labels;
    a.step = c->step_id;
    a.fault = c->device_fault;
    return a;
}

static unsigned threads_of(const LossArgs &a) { return a.classes <= 128 ? 32 : LOSS_THREADS; }

/* Any of the outputs may be absent, the loss where only its gradient is wanted; they have one type. */
static mpr_status k_cross_entropy(const KernelCall *c)
{
    LossArgs a = loss_args(c, 0, 1, 2, (const CrossEntropyParams *)c->params);
    Tensor *loss = output_of(c, 0), *lse = output_of(c, 1), *count = output_of(c, 2);
    double *sums = (double *)c->workspace, *counts = sums + a.rows;
    int to = (int)(loss ? loss : lse ? lse : count)->dtype;
    void *at = loss ? loss->data : NULL;
    if (a.rows)
        MPRI_LAUNCH(k_loss_rows, blocks_for(a.rows, 1), threads_of(a), 0, c->queue, a,
                    lse ? lse->data : NULL, to, at, to, sums, counts);
    if ((loss && !a.none) || count)
        MPRI_LAUNCH(k_loss_join, 1, LOSS_THREADS, 0, c->queue, a, sums, counts, at,
                    count ? count->data : NULL, to);
    return MPR_OK;
}

/* x - lse, in place of the softmax's logarithm. */
__global__ void k_log_prob(LossArgs a, const float *lse, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t line = i / a.inner, row = line / a.classes * a.inner + (i - line * a.inner);
        store_float(y, ty, i, load_float(a.x, a.tx, i) - lse[row]);
    }
}

/* ONNX's form: classes on axis 1; outputs loss, log_prob (optional). */
static mpr_status k_softmax_cross_entropy(const KernelCall *c)
{
    const SoftmaxCrossEntropyLossParams *s = (const SoftmaxCrossEntropyLossParams *)c->params;
    CrossEntropyParams p = {};
    p.axis = 1;
    p.ignore_index = s->ignore_index;
    p.reduction = s->reduction;
    LossArgs a = loss_args(c, 0, 1, 2, &p);
    Tensor *loss = &c->out[0], *log_prob = output_of(c, 1);
    double *sums = (double *)c->workspace, *counts = sums + a.rows;
    float *lse = (float *)(counts + a.rows);
    int to = (int)loss->dtype;
    if (a.rows)
        MPRI_LAUNCH(k_loss_rows, blocks_for(a.rows, 1), threads_of(a), 0, c->queue, a, lse,
                    (int)MPR_FLOAT32, loss->data, to, sums, counts);
    if (!a.none)
        MPRI_LAUNCH(k_loss_join, 1, LOSS_THREADS, 0, c->queue, a, sums, counts, loss->data, (void *)NULL,
                    to);
    if (log_prob && log_prob->n)
        MPRI_LAUNCH(k_log_prob, blocks_for(log_prob->n, LOSS_THREADS), LOSS_THREADS, 0, c->queue, a, lse,
                    log_prob->data, (int)log_prob->dtype, log_prob->n);
    return MPR_OK;
}

static mpr_status k_cross_entropy_grad(const KernelCall *c)
{
    LossArgs a = loss_args(c, 1, 2, 5, (const CrossEntropyParams *)c->params);
    const Tensor *dloss = &c->in[0], *lse = &c->in[3], *count = &c->in[4], *dx = &c->out[0];
    if (!dx->n) return MPR_OK;
    MPRI_LAUNCH(k_loss_grad, blocks_for(a.rows, 1), threads_of(a), 0, c->queue, a, dloss->data,
                (int)dloss->dtype, lse->data, count->data, (int)lse->dtype, dx->data, (int)dx->dtype);
    return MPR_OK;
}

static size_t row_sums(const KernelSig *s, int threads)
{
    (void)threads;
    return (2 * sizeof(double) + sizeof(float)) * (size_t)s->in[1].n + 16;
}

static const char *refuse_loss(const KernelSig *s, int logits, int labels, int weights)
{
    if (!cuda_index(s->in[labels].dtype)) return "labels are int32 or int64";
    if (!cuda_float(s->in[logits].dtype)) return CUDA_NOT_FLOAT;
    for (int k = 0; k < s->n_out; k++)
        if (mpri_tensor_here(&s->out[k]) && !cuda_float(s->out[k].dtype)) return CUDA_NOT_FLOAT;
    if (weights < s->n_in && mpri_tensor_here(&s->in[weights]) && !cuda_float(s->in[weights].dtype))
        return CUDA_NOT_FLOAT;
    return NULL;
}
static const char *refuse_forward(const KernelSig *s) { return refuse_loss(s, 0, 1, 2); }
static const char *refuse_grad(const KernelSig *s)
{
    return cuda_float(s->in[0].dtype) && cuda_float(s->in[3].dtype) ? refuse_loss(s, 1, 2, 5)
                                                                    : CUDA_NOT_FLOAT;
}

/* ---- mean squared error ---- */

/* Block b adds its part; the parts are of a size that follows from n. */
__global__ void k_mse_parts(const void *p, int tp, const void *t, int tt, int64_t n, int64_t size,
                            double *parts)
{
    MPRI_SHARED(double, part, 33);
    int64_t end = (blockIdx.x + 1) * size;
    double sum = 0;
    if (end > n) end = n;
    for (int64_t i = blockIdx.x * size + threadIdx.x; i < end; i += blockDim.x) {
        double d = (double)load_float(p, tp, i) - (double)load_float(t, tt, i);
        sum += d * d;
    }
    sum = block_sum<double>(sum, part);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void k_mse_join(const double *parts, int64_t n_parts, int64_t n, int mean, void *loss,
                           void *count, int to)
{
    MPRI_SHARED(double, part, 33);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n_parts; i += blockDim.x) sum += parts[i];
    sum = block_sum<double>(sum, part);
    if (threadIdx.x) return;
    store_float(loss, to, 0, (float)(mean ? sum / (double)n : sum));
    if (count) store_float(count, to, 0, (float)n);
}

__global__ void k_mse_grad(const void *dloss, int td, const void *p, int tp, const void *t, int tt,
                           const void *count, int tc, int mean, void *dp, int tdp, int64_t n)
{
    float g = 2 * load_float(dloss, td, 0);
    if (mean) g /= load_float(count, tc, 0);
    for (int64_t i = grid_begin(); i < n; i += grid_step())
        store_float(dp, tdp, i, g * (load_float(p, tp, i) - load_float(t, tt, i)));
}

enum { MSE_PART = 16384 };

static int64_t mse_parts(int64_t n) { return n / MSE_PART + 1; }

static int is_mean(const void *params)
{
    const MseLossParams *p = (const MseLossParams *)params;
    return !(p->reduction && strcmp(p->reduction, "sum") == 0);
}

static mpr_status k_mse(const KernelCall *c)
{
    const Tensor *p = &c->in[0], *t = &c->in[1], *loss = &c->out[0];
    Tensor *count = output_of(c, 1);
    int64_t parts = mse_parts(p->n);
    double *sums = (double *)c->workspace;
    MPRI_LAUNCH(k_mse_parts, (unsigned)parts, LOSS_THREADS, 0, c->queue, p->data, (int)p->dtype, t->data,
                (int)t->dtype, p->n, (int64_t)MSE_PART, sums);
    MPRI_LAUNCH(k_mse_join, 1, LOSS_THREADS, 0, c->queue, sums, parts, p->n, is_mean(c->params),
                loss->data, count ? count->data : NULL, (int)loss->dtype);
    return MPR_OK;
}

static mpr_status k_mse_gradient(const KernelCall *c)
{
    const Tensor *d = &c->in[0], *p = &c->in[1], *t = &c->in[2], *n = &c->in[3], *y = &c->out[0];
    if (!y->n) return MPR_OK;
    MPRI_LAUNCH(k_mse_grad, blocks_for(y->n, LOSS_THREADS), LOSS_THREADS, 0, c->queue, d->data,
                (int)d->dtype, p->data, (int)p->dtype, t->data, (int)t->dtype, n->data, (int)n->dtype,
                is_mean(c->params), y->data, (int)y->dtype, y->n);
    return MPR_OK;
}

static size_t mse_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return sizeof(double) * (size_t)mse_parts(s->in[0].n);
}

static const char *refuse_floats(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (!cuda_float(s->in[k].dtype)) return CUDA_NOT_FLOAT;
    return cuda_float(s->out[0].dtype) ? NULL : CUDA_NOT_FLOAT;
}

static const KernelRow rows[] = {
    CUDA_ROW(CrossEntropy, "crossentropy", k_cross_entropy, .refuse = refuse_forward,
             .workspace = row_sums),
    CUDA_ROW(SoftmaxCrossEntropyLoss, "softmaxcrossentropyloss", k_softmax_cross_entropy,
             .refuse = refuse_forward, .workspace = row_sums),
    CUDA_ROW(CrossEntropyGrad, "crossentropygrad", k_cross_entropy_grad, .refuse = refuse_grad),
    CUDA_ROW(MseLoss, "mseloss", k_mse, .refuse = refuse_floats, .workspace = mse_bytes),
    CUDA_ROW(MseLossGrad, "mselossgrad", k_mse_gradient, .refuse = refuse_floats),
};
extern "C" const KernelTable mpri_cuda_loss = CUDA_TABLE(rows);
