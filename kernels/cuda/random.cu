/* Random tensors: RandomNormal, RandomUniform, their Like forms, Bernoulli and Multinomial draw the numbers of
 * kernels/random_draw.h, as on every device. Computed in double and without fused multiply-adds, so that a
 * uniform number has the bits of the CPU; a normal one differs where the last bit of log or cos in double
 * decides about a rounding.
 *
 * A thread per element, which is the counter of the generator; nothing is read but the probabilities. For
 * Multinomial a thread per draw walks over the row's classes three times. 256 threads a block. */
#include "kernels/cuda/number.cuh"

#include "runtime/base/philox.h"

extern "C" {
#include "kernels/random_draw.h"
}

enum { RANDOM_THREADS = 256 };

/* Which numbers: kernels read seed and step of the pass in `counter`, for a launch may be recorded. */
typedef struct Draw {
    const uint64_t *counter;
    uint64_t seed, stream; /* own seed, or stream alone */
    bool own;
} Draw;

static Draw draw_of(const KernelCall *c, float seed, int64_t stream)
{
    KernelCall none = *c;
    none.seed = none.step = 0;
    RandomStream s = mpri_random_stream(&none, seed, stream);
    return Draw{((const CudaNotes *)c->device_fault)->counter, s.seed, s.stream, !isnan(seed)};
}

static __device__ __forceinline__ void words_of(const Draw &d, int64_t i, uint32_t word[4])
{
    uint64_t seed = d.own ? d.seed : d.counter[0];
    mpri_philox_words(seed, d.counter[1] << 24 ^ d.stream, (uint64_t)i, word);
}

static __device__ __forceinline__ double upper_half(const uint32_t *word, int digits)
{
    uint64_t bits = ((uint64_t)word[0] << 32 | word[1]) >> (64 - digits);
    return (double)bits * (1.0 / (double)((uint64_t)1 << digits));
}

static __device__ __forceinline__ double uniform_at(const Draw &d, int64_t i, int digits)
{
    uint32_t word[4];
    words_of(d, i, word);
    return upper_half(word, digits);
}

/* ---- normal and uniform ---- */

__global__ void k_normal(Draw d, double mean, double scale, void *y, int type, int64_t n)
{
    const double turn = 2 * 3.14159265358979323846, step = 1.0 / (double)((uint64_t)1 << 53);
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t word[4];
        words_of(d, i, word);
        double u = upper_half(word, 53) + step, v = upper_half(word + 2, 53); /* u in (0,1] */
        store_f64(y, type, i, mean + scale * (sqrt(-2 * log(u)) * cos(turn * v)));
    }
}

static __device__ __forceinline__ double rounded(double v, int type)
{
    if (type == MPR_FLOAT64) return v;
    if (type == MPR_FLOAT32) return (double)(float)v;
    if (type == MPR_FLOAT16) return (double)to_float((f16)__double2half(v));
    return (double)to_float((bf16)__double2bfloat16(v));
}

/* high itself is left out: where a store rounds to it, low takes its place. */
__global__ void k_uniform(Draw d, double low, double high, int digits, void *y, int type, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        double v = low + (high - low) * uniform_at(d, i, digits);
        store_f64(y, type, i, high > low && rounded(v, type) >= high ? low : v);
    }
}

static mpr_status distributed(const KernelCall *c, const RandomParams *p, bool normal)
{
    const Tensor *y = &c->out[0];
    Draw d = draw_of(c, p->seed, p->stream);
    double a = (double)p->a, b = (double)p->b;
    unsigned blocks = blocks_for(y->n, RANDOM_THREADS);
    if (!y->n) return MPR_OK;
    if (normal)
        MPRI_LAUNCH(k_normal, blocks, RANDOM_THREADS, 0, c->queue, d, a, b, y->data, (int)y->dtype, y->n);
    else
        MPRI_LAUNCH(k_uniform, blocks, RANDOM_THREADS, 0, c->queue, d, a, b,
                    mpri_random_digits(y->dtype), y->data, (int)y->dtype, y->n);
    return MPR_OK;
}

static mpr_status normal(const KernelCall *c)
{
    return distributed(c, &((const RandomShapedParams *)c->params)->r, true);
}
static mpr_status uniform(const KernelCall *c)
{
    return distributed(c, &((const RandomShapedParams *)c->params)->r, false);
}
static mpr_status normal_like(const KernelCall *c)
{
    return distributed(c, (const RandomParams *)c->params, true);
}
static mpr_status uniform_like(const KernelCall *c)
{
    return distributed(c, (const RandomParams *)c->params, false);
}

/* ---- Bernoulli ---- */

__global__ void k_bernoulli(Draw d, const void *x, int tx, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        bool hit = uniform_at(d, i, 53) < load_f64(x, tx, i);
        if (type_is_float(ty)) store_f64(y, ty, i, hit);
        else store_i64(y, ty, i, hit);
    }
}

static mpr_status bernoulli(const KernelCall *c)
{
    const BernoulliParams *p = (const BernoulliParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n)
        MPRI_LAUNCH(k_bernoulli, blocks_for(y->n, RANDOM_THREADS), RANDOM_THREADS, 0, c->queue,
                    draw_of(c, p->seed, p->stream), x->data, (int)x->dtype, y->data, (int)y->dtype, y->n);
    return MPR_OK;
}

/* ---- Multinomial: the inverse of the cumulative distribution of softmax(row) ---- */

__global__ void k_multinomial(Draw d, const void *x, int tx, int64_t classes, int64_t samples, void *y,
                              int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t row = i / samples * classes, k = 0;
        double top = load_f64(x, tx, row), sum = 0;
        for (int64_t j = 1; j < classes; j++) top = fmax(top, load_f64(x, tx, row + j));
        for (int64_t j = 0; j < classes; j++) sum += exp(load_f64(x, tx, row + j) - top);
        double left = sum * uniform_at(d, i, 53);
        while (k < classes - 1 && (left -= exp(load_f64(x, tx, row + k) - top)) >= 0) k++;
        store_i64(y, ty, i, k);
    }
}

static mpr_status multinomial(const KernelCall *c)
{
    const MultinomialParams *p = (const MultinomialParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n)
        MPRI_LAUNCH(k_multinomial, blocks_for(y->n, RANDOM_THREADS), RANDOM_THREADS, 0, c->queue,
                    draw_of(c, p->seed, p->stream), x->data, (int)x->dtype, x->dims[1], y->dims[1], y->data,
                    (int)y->dtype, y->n);
    return MPR_OK;
}

static const char *refuse_probabilities(const KernelSig *s)
{
    return type_is_float((int)s->in[0].dtype) ? NULL : "only float types";
}

static const KernelRow rows[] = {
    CUDA_ROW(RandomNormal, "randomnormal", normal),
    CUDA_ROW(RandomUniform, "randomuniform", uniform),
    CUDA_ROW(RandomNormalLike, "randomnormallike", normal_like),
    CUDA_ROW(RandomUniformLike, "randomuniformlike", uniform_like),
    CUDA_ROW(Bernoulli, "bernoulli", bernoulli, .refuse = refuse_probabilities),
    CUDA_ROW(Multinomial, "multinomial", multinomial, .refuse = refuse_probabilities),
};
extern "C" const KernelTable mpri_cuda_random = CUDA_TABLE(rows);
