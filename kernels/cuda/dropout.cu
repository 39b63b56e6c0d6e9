/* Dropout and its gradient: the bits of kernels/dropout_mask.h, as on every device.
 *
 * A thread takes one counter of the generator, whose four words decide on the elements i, i + 16, i + 32 and
 * i + 48 of a block of 64; 16 neighbours read 16 neighbours. ratio and training_mode are looked at by the
 * host where they are constants, else by the kernel. Traffic: x, y and one byte of mask per element.
 * 256 threads a block. */
#include "kernels/cuda/kernel.cuh"

extern "C" {
#include "kernels/dropout_mask.h"
}

enum { DROPOUT_THREADS = 256, BLOCK = 64, COUNTERS = 16 };

typedef struct Options { /* on the device; NULL: constant or absent, and in the draw */
    const uint64_t *counter; /* seed and step: a launch may be recorded and run again with others */
    uint64_t node_seed, node_stream;
    const void *ratio, *training;
    int t_ratio;
    double ratio_here;
    int training_here;
} Options;

static __device__ __forceinline__ DropoutDraw draw_of(DropoutDraw d, const Options &o)
{
    if (o.counter) mpri_dropout_pass(&d, o.node_seed, o.node_stream, o.counter[0], o.counter[1]);
    if (!o.ratio && !o.training) return d;
    double ratio = !o.ratio                    ? o.ratio_here
                   : o.t_ratio == MPR_FLOAT64 ? *(const double *)o.ratio
                                              : (double)load_float(o.ratio, o.t_ratio, 0);
    mpri_dropout_rule(&d, ratio, o.training ? *(const uint8_t *)o.training != 0 : o.training_here != 0);
    return d;
}

__global__ void k_dropout(DropoutDraw rule, Options o, const void *x, int tx, void *y, int ty,
                          uint8_t *mask, int64_t n)
{
    DropoutDraw d = draw_of(rule, o);
    float scale = (float)d.scale;
    int64_t counters = (n + BLOCK - 1) / BLOCK * COUNTERS;
    for (int64_t i = grid_begin(); i < counters; i += grid_step()) {
        uint32_t word[4];
        int64_t first = i / COUNTERS * BLOCK + i % COUNTERS;
        mpri_philox_words(d.seed, d.stream, (uint64_t)i, word);
        for (int k = 0; k < 4; k++) {
            int64_t at = first + k * COUNTERS;
            if (at >= n) break;
            bool keep = (int32_t)(word[k] >> 8) >= d.threshold;
            store_float(y, ty, at, keep ? load_float(x, tx, at) * scale : 0.0f);
            if (mask) mask[at] = keep;
        }
    }
}

__global__ void k_dropout_grad(DropoutDraw rule, Options o, const void *dy, int td, const uint8_t *mask,
                               void *dx, int to, int64_t n)
{
    float scale = (float)draw_of(rule, o).scale;
    for (int64_t i = grid_begin(); i < n; i += grid_step())
        store_float(dx, to, i, mask[i] ? load_float(dy, td, i) * scale : 0.0f);
}

/* ratio: input `at`, training_mode: input at + 1. */
static Options options_of(const KernelCall *c, int at, DropoutDraw *d)
{
    const Tensor *ratio = input_of(c, at), *training = input_of(c, at + 1);
    const DropoutParams *p = (const DropoutParams *)c->params;
    Options o = {};
    o.counter = ((const CudaNotes *)c->device_fault)->counter;
    o.node_seed = (uint64_t)p->seed, o.node_stream = (uint64_t)p->stream;
    o.ratio_here = 0.5;
    if (ratio && ratio->host) o.ratio_here = mpri_load_f64(ratio->dtype, ratio->host, 0);
    else if (ratio) o.ratio = ratio->data, o.t_ratio = (int)ratio->dtype;
    if (training && training->host) o.training_here = *(const uint8_t *)training->host != 0;
    else if (training) o.training = training->data;
    mpri_dropout_rule(d, o.ratio_here, o.training_here != 0);
    return o;
}

/* Inputs x, ratio, training_mode; outputs y, mask (optional). */
static mpr_status k_forward(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0], *mask = output_of(c, 1);
    DropoutDraw d = mpri_dropout_stream(c);
    Options o = options_of(c, 1, &d);
    if (y->n)
        MPRI_LAUNCH(k_dropout, blocks_for((y->n + BLOCK - 1) / BLOCK * COUNTERS, DROPOUT_THREADS),
                    DROPOUT_THREADS, 0, c->queue, d, o, x->data, (int)x->dtype, y->data, (int)y->dtype,
                    (uint8_t *)(mask ? mask->data : NULL), y->n);
    return MPR_OK;
}

/* Inputs dy, mask, ratio, training_mode. */
static mpr_status k_backward(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    DropoutDraw d = mpri_dropout_stream(c);
    Options o = options_of(c, 2, &d);
    if (dx->n)
        MPRI_LAUNCH(k_dropout_grad, blocks_for(dx->n, DROPOUT_THREADS), DROPOUT_THREADS, 0, c->queue, d,
                    o, dy->data, (int)dy->dtype, (const uint8_t *)c->in[1].data, dx->data, (int)dx->dtype,
                    dx->n);
    return MPR_OK;
}

static const char *refuse_dropout(const KernelSig *s)
{
    int at = s->op == OP_Dropout ? 1 : 2;
    if (!cuda_float(s->in[0].dtype) || !cuda_float(s->out[0].dtype)) return CUDA_NOT_FLOAT;
    if (s->n_in > at && mpri_tensor_here(&s->in[at]) && s->in[at].dtype != MPR_FLOAT64 &&
        !cuda_float(s->in[at].dtype))
        return "a ratio of another type";
    return NULL;
}

static const KernelRow rows[] = {
    CUDA_ROW(Dropout, "dropout", k_forward, .refuse = refuse_dropout),
    CUDA_ROW(DropoutGrad, "dropoutgrad", k_backward, .refuse = refuse_dropout),
};
extern "C" const KernelTable mpri_cuda_dropout = CUDA_TABLE(rows);
