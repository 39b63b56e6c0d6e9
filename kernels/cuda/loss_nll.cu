/* NegativeLogLikelihoodLoss over axis 1, and its gradient. A label that equals ignore_index does
 * not count; any other outside [0, C) is noted in the device's fault and does not count either.
 * Only one element of each row is read: sums are taken by one block in a fixed order, in double.
 * Traffic: labels and one sector of every row; the gradient writes zeros and one element of every
 * row. 256 threads a block. */
#include "kernels/cuda/move.cuh"

enum { THREADS = 256 };

typedef struct Nll {
    const void *x, *labels, *weights; /* x: the scores, or dloss; weights may be NULL */
    int tx, tl, tw;
    int64_t rows, classes, inner; /* the scores are [samples, classes, inner] */
    int64_t ignore;
    int has_ignore, mean, none, step;
    DeviceFault *fault;
} Nll;

/* -1: does not count. */
static __device__ int64_t label_of(const Nll &a, int64_t row, bool tell)
{
    int64_t v = load_int(a.labels, a.tl, row);
    if (a.has_ignore && v == a.ignore) return -1;
    if (v >= 0 && v < a.classes) return v;
    if (tell) note_fault(a.fault, a.step, 1, row, v, 0, a.classes);
    return -1;
}
static __device__ float weight_of(const Nll &a, int64_t label)
{
    return label < 0 ? 0.0f : a.weights ? load_float(a.weights, a.tw, label) : 1.0f;
}
static __device__ int64_t element_of(const Nll &a, int64_t row, int64_t label)
{
    int64_t o = row / a.inner;
    return (o * a.classes + label) * a.inner + (row - o * a.inner);
}
static __device__ float row_loss(const Nll &a, int64_t row, int64_t label)
{
    return label < 0 ? 0.0f
                     : -weight_of(a, label) * load_float(a.x, a.tx, element_of(a, row, label));
}

__global__ void k_nll_rows(Nll a, void *loss, int to)
{
    for (int64_t row = grid_begin(); row < a.rows; row += grid_step())
        store_float(loss, to, row, row_loss(a, row, label_of(a, row, true)));
}

/* One block. loss: NULL in the backward pass, which wants the counted weights only. */
__global__ void k_nll_sum(Nll a, void *loss, int to, double *counted)
{
    MPRI_SHARED(double, part, 33);
    double sum = 0, n = 0;
    for (int64_t row = threadIdx.x; row < a.rows; row += blockDim.x) {
        int64_t label = label_of(a, row, true);
        if (loss) sum += (double)row_loss(a, row, label);
        n += (double)weight_of(a, label);
    }
    sum = block_sum<double>(sum, part);
    n = block_sum<double>(n, part);
    if (threadIdx.x) return;
    if (loss) store_float(loss, to, 0, (float)(a.mean ? sum / n : sum));
    if (counted) *counted = n;
}

__global__ void k_nll_slope(Nll a, const double *counted, void *dx, int ty)
{
    for (int64_t row = grid_begin(); row < a.rows; row += grid_step()) {
        int64_t label = label_of(a, row, true);
        if (label < 0) continue;
        float g = load_float(a.x, a.tx, a.none ? row : 0);
        if (a.mean) g = (float)((double)g / *counted);
        store_float(dx, ty, element_of(a, row, label), -weight_of(a, label) * g);
    }
}

static Nll nll_args(const KernelCall *c, const Tensor *scores, int64_t ignore,
                    const char *reduction)
{
    const Tensor *w = input_of(c, 2);
    Nll a = {};
    a.x = c->in[0].data, a.tx = (int)c->in[0].dtype;
    a.labels = c->in[1].data, a.tl = (int)c->in[1].dtype;
    if (w) a.weights = w->data, a.tw = (int)w->dtype;
    a.rows = c->in[1].n;
    a.classes = scores->dims[1];
    a.inner = span_of(scores, 2, scores->rank);
    a.ignore = ignore;
    a.has_ignore = ignore != MPRI_NO_IGNORE;
    a.mean = !reduction || reduction[0] == 'm';
    a.none = reduction && reduction[0] == 'n';
    a.step = c->step_id;
    a.fault = c->device_fault;
    return a;
}

/* Inputs log-probabilities, labels, weights (optional). */
static mpr_status k_nll(const KernelCall *c)
{
    const NllLossParams *p = (const NllLossParams *)c->params;
    const Tensor *y = &c->out[0];
    Nll a = nll_args(c, &c->in[0], p->ignore_index, p->reduction);
    if (!a.none)
        MPRI_LAUNCH(k_nll_sum, 1, THREADS, 0, c->queue, a, y->data, (int)y->dtype, (double *)NULL);
    else if (a.rows)
        MPRI_LAUNCH(k_nll_rows, blocks_for(a.rows, THREADS), THREADS, 0, c->queue, a, y->data,
                    (int)y->dtype);
    return MPR_OK;
}

/* Inputs dloss, labels, weights (optional). */
static mpr_status k_nll_grad(const KernelCall *c)
{
    const NllLossGradParams *p = (const NllLossGradParams *)c->params;
    const Tensor *dx = &c->out[0];
    Nll a = nll_args(c, dx, p->ignore_index, p->reduction);
    double *counted = (double *)c->workspace;
    move_zero(dx, c->queue);
    if (!a.rows || !dx->n) return MPR_OK;
    if (a.mean) MPRI_LAUNCH(k_nll_sum, 1, THREADS, 0, c->queue, a, (void *)NULL, 0, counted);
    MPRI_LAUNCH(k_nll_slope, blocks_for(a.rows, THREADS), THREADS, 0, c->queue, a, counted,
                dx->data, (int)dx->dtype);
    return MPR_OK;
}

static size_t count_bytes(const KernelSig *s, int threads)
{
    (void)s;
    (void)threads;
    return sizeof(double);
}

static const char *refuse_nll(const KernelSig *s)
{
    if (!cuda_index(s->in[1].dtype)) return "labels are int32 or int64";
    if (s->n_in > 2 && mpri_tensor_here(&s->in[2]) && !cuda_float(s->in[2].dtype))
        return CUDA_NOT_FLOAT;
    return cuda_float(s->in[0].dtype) && cuda_float(s->out[0].dtype) ? NULL : CUDA_NOT_FLOAT;
}

static const KernelRow rows[] = {
    CUDA_ROW(NegativeLogLikelihoodLoss, "negativeloglikelihoodloss", k_nll, .refuse = refuse_nll),
    CUDA_ROW(NllLossGrad, "nlllossgrad", k_nll_grad, .refuse = refuse_nll,
             .workspace = count_bytes),
};
extern "C" const KernelTable mpri_cuda_loss_nll = CUDA_TABLE(rows);
