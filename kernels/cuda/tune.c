/* Timing what cuBLASLt offers for a product, where Device.tune asks for it: candidates of the heuristic run on
 * made-up operands, the fastest stays. Times differ from process to process, and so may the choice and with
 * it the last bits; within a process one shape has one choice, which is remembered by the device. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/product.h"

enum { ROUNDS = 3, RUNS = 5 };

typedef struct LtTuned {
    struct LtTuned *next;
    LtProduct p;
    cublasLtMatmulAlgo_t algo;
    int rank, found;
    float us, us_first;
} LtTuned;

static bool same(const LtProduct *a, const LtProduct *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && a->type == b->type && a->out == b->out &&
           a->epilogue == b->epilogue && a->aux == b->aux && a->bias == b->bias && a->batch == b->batch &&
           a->a_step == b->a_step && a->b_step == b->b_step && a->c_step == b->c_step &&
           a->a_align == b->a_align && a->b_align == b->b_align && a->c_align == b->c_align &&
           a->workspace == b->workspace;
}

/* ---- operands ---- */

typedef struct Trial {
    LtHeld *h;
    char *memory, *a, *b, *c, *aux, *bias, *workspace;
    size_t bytes;
    bool has_aux, has_bias;
    void *queue;
} Trial;

static size_t span(int64_t step, int64_t batch, int64_t item, DType t)
{
    return (((size_t)(step * (batch - 1) + item) * mpri_dtype_size(t)) + 255) & ~(size_t)255;
}

/* fill: every byte of the operands. */
static bool open_trial(Trial *t, const LtProduct *p, const CudaDevice *d, LtHeld *h, int fill)
{
    size_t a = span(p->a_step, p->batch, p->m * p->k, p->type), b = span(p->b_step, p->batch, p->k * p->n, p->type),
           c = span(p->c_step, p->batch, p->m * p->n, p->out), bias = span(0, 1, p->n, p->out);
    *t = (Trial){.h = h, .queue = d->d.queue, .has_aux = p->aux, .has_bias = p->bias};
    t->bytes = a + b + 2 * c + bias + h->workspace;
    if (cudaMalloc((void **)&t->memory, t->bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    t->a = t->memory;
    t->b = t->a + a;
    t->c = t->b + b;
    t->aux = t->c + c;
    t->bias = t->aux + c;
    t->workspace = t->bias + bias;
    return cudaMemsetAsync(t->memory, fill, t->bytes, (cudaStream_t)t->queue) == cudaSuccess;
}

static void close_trial(Trial *t)
{
    (void)cudaStreamSynchronize((cudaStream_t)t->queue);
    (void)cudaFree(t->memory);
    (void)cudaGetLastError();
}

static mpr_status run_trial(void *user)
{
    Trial *t = user;
    if (t->has_aux) {
        mpr_status status = mpri_cuda_product_aux(t->h, t->aux);
        if (status != MPR_OK) return status;
    }
    return mpri_cuda_product_run(t->h, 1, t->a, t->b, t->has_bias ? t->bias : NULL, t->c, t->workspace,
                                 t->queue);
}

/* ---- time ---- */

static float time_round(const CudaDevice *d, mpr_status (*fn)(void *user), void *user, cudaEvent_t from,
                        cudaEvent_t to)
{
    cudaStream_t queue = d->d.queue;
    float ms = -1;
    if (cudaEventRecord(from, queue) != cudaSuccess) return -1;
    for (int i = 0; i < RUNS; i++)
        if (fn(user) != MPR_OK) return -1;
    if (cudaEventRecord(to, queue) != cudaSuccess || cudaEventSynchronize(to) != cudaSuccess ||
        cudaEventElapsedTime(&ms, from, to) != cudaSuccess)
        return -1;
    return ms * 1e3f / RUNS;
}

float mpri_cuda_time(const CudaDevice *d, mpr_status (*fn)(void *user), void *user)
{
    cudaEvent_t from = NULL, to = NULL;
    float least = -1;
    if (cudaEventCreateWithFlags(&from, cudaEventDefault) == cudaSuccess &&
        cudaEventCreateWithFlags(&to, cudaEventDefault) == cudaSuccess &&
        fn(user) == MPR_OK) /* once before: the library loads what it needs */
        for (int i = 0; i < ROUNDS; i++) {
            float us = time_round(d, fn, user, from, to);
            if (us < 0) {
                least = -1;
                break;
            }
            if (i == 0 || us < least) least = us;
        }
    if (from) (void)cudaEventDestroy(from);
    if (to) (void)cudaEventDestroy(to);
    return least;
}

/* ---- the choice ---- */

static void take(LtHeld *h, const LtTuned *t)
{
    h->algo = t->algo;
    h->rank = t->rank;
    h->found = t->found;
    h->us = t->us;
    h->us_first = t->us_first;
}

/* d is const to those who run products; what it remembers is its own. */
static bool remember(const CudaDevice *d, const LtTuned *now)
{
    LtTuned *t = mpri_alloc(d->d.alloc, sizeof *t, 16);
    if (!t) return false;
    *t = *now;
    t->next = *d->tuned;
    *d->tuned = t;
    return true;
}

bool mpri_cuda_tune(const LtProduct *p, const CudaDevice *d, LtHeld *h,
                    const cublasLtMatmulHeuristicResult_t *from, int n)
{
    for (const LtTuned *t = *d->tuned; t; t = t->next)
        if (same(&t->p, p)) {
            take(h, t);
            return true;
        }
    Trial trial;
    if (!open_trial(&trial, p, d, h, 0x3c)) return false; /* 16-bit and float32 numbers near 1 and 0.01 */
    LtTuned best = {.p = *p, .algo = h->algo, .found = n, .us = -1};
    for (int i = 0; i < n; i++) {
        h->algo = from[i].algo;
        float us = mpri_cuda_time(d, run_trial, &trial);
        if (i == 0) best.us_first = us;
        if (us < 0 || (best.us >= 0 && us >= best.us)) continue;
        best.us = us;
        best.rank = i + 1;
        best.algo = h->algo;
    }
    close_trial(&trial);
    h->algo = from[0].algo;
    if (best.us < 0) return false;
    take(h, &best);
    return remember(d, &best);
}

bool mpri_cuda_keeps_nan(const LtProduct *p, const CudaDevice *d, LtHeld *h)
{
    Trial trial;
    unsigned char raw[4] = {0};
    if (!open_trial(&trial, p, d, h, 0xff)) return false;
    bool ran = run_trial(&trial) == MPR_OK &&
               cudaMemcpyAsync(raw, trial.c, mpri_dtype_size(p->out), cudaMemcpyDeviceToHost,
                               (cudaStream_t)trial.queue) == cudaSuccess;
    close_trial(&trial);
    double v = ran ? mpri_load_f64(p->out, raw, 0) : 0;
    return v != v;
}

void mpri_cuda_tune_forget(CudaDevice *d)
{
    while (d->tuned && *d->tuned) {
        LtTuned *t = *d->tuned;
        *d->tuned = t->next;
        mpri_free(d->d.alloc, t);
    }
}
