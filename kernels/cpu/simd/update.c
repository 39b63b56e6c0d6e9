/* Gradient accumulation, unscale and check, clipping, SGD and Adam: the reference kernels' f32
 * arithmetic, operation by operation without fused multiply-adds, so the bits are the same on every
 * instruction set. The tensors of one call are cut into chunks of CHUNK elements, one tile each.
 *
 * The loops are plain C that the compiler vectorises; __restrict says that slots do not overlap. */
#include "kernels/cpu/simd/tiles.h"
#include "kernels/update_rule.h"

enum { CHUNK = 65536, CHUNK_BLOCKS = CHUNK / UPDATE_BLOCK };

/* ---- accumulation ---- */

typedef struct Accumulate {
    float *acc;
    const Tensor *dw;
    bool add;
} Accumulate;

static void accumulate_tile(void *ctx, int64_t tile)
{
    const Accumulate *a = ctx;
    DType t = a->dw->dtype;
    for (int64_t i = tile * TILE, end = least(a->dw->n, i + TILE); i < end; i += VF_LANES) {
        int k = (int)least(VF_LANES, end - i);
        vf v = vf_ld_n(t, a->dw->data, i, k);
        if (a->add) v = vf_load_n(a->acc + i, k) + v;
        vf_store_n(a->acc + i, v, k);
    }
}

static mpr_status k_accumulate(const KernelCall *c)
{
    Accumulate a = {c->in[0].data, &c->in[1], *(const int32_t *)c->in[2].data != 0};
    mpri_parallel(c->threads, tiles_of(a.dw->n, TILE), accumulate_tile, &a);
    return MPR_OK;
}

static const char *refuse_accumulate(const KernelSig *s)
{
    return vf_can(s->in[1].dtype) ? NULL : NOT_FLOAT;
}

/* ---- chunks of many tensors ---- */

typedef struct Many {
    const KernelCall *c;
    int step;           /* inputs per parameter; the first of them gives the count */
    bool keep;
    KeptRule kept;
    float factor;       /* inverse scale, or clip factor */
    Ints copy_of;       /* behind the parameters */
    double *squares;    /* per block of UPDATE_BLOCK: CHUNK_BLOCKS for each chunk */
} Many;

static int64_t chunks_of(const Tensor *in, int n_in, int step)
{
    int64_t n = 0;
    for (int k = UPDATE_FIRST; k < n_in; k += step) n += tiles_of(in[k].n, CHUNK);
    return n;
}

/* Input of the chunk; *from is its first element. */
static int chunk_at(const Many *m, int64_t chunk, int64_t *from, int64_t *n)
{
    int k = UPDATE_FIRST;
    for (int64_t here; chunk >= (here = tiles_of(m->c->in[k].n, CHUNK)); k += m->step)
        chunk -= here;
    *from = chunk * CHUNK;
    *n = least(CHUNK, m->c->in[k].n - *from);
    return k;
}

static void over_chunks(const KernelCall *c, Many *m, void (*tile)(void *ctx, int64_t tile))
{
    int end = mpri_update_end(c->n_in, m->copy_of);
    mpri_parallel(c->threads, chunks_of(c->in, end, m->step), tile, m);
}

static void write_copy(const Tensor *to, const float *p, int64_t from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int k = (int)least(VF_LANES, n - i);
        vf_st_n(to->dtype, to->data, from + i, vf_load_n(p + i, k), k);
    }
}

/* The 16-bit copies of n elements of the parameter at input k, which are in the cache now. */
static void write_copies(const Many *m, int k, const float *p, int64_t from, int64_t n)
{
    int end = mpri_update_end(m->c->n_in, m->copy_of);
    for (int64_t i = 0; i < m->copy_of.n && UPDATE_FIRST + m->copy_of.v[i] * m->step <= k; i++)
        if (UPDATE_FIRST + m->copy_of.v[i] * m->step == k) write_copy(&m->c->in[end + i], p, from, n);
}

/* ---- unscale: a value that is not finite, before or after the multiply, leaves a square that is
 * not, and no sum of finite squares overflows f64; so the sum of squares tells whether one was
 * found ---- */

typedef double Sums __attribute__((vector_size(UPDATE_SUMS * sizeof(double))));
typedef float Values __attribute__((vector_size(UPDATE_SUMS * sizeof(float))));

/* Multiplies (unless inv is 1) and sums squares. */
static double unscale_block(float *g, int64_t n, float inv, bool keep)
{
    Sums sums = {0};
    int64_t i = 0;
    for (; i + UPDATE_SUMS <= n; i += UPDATE_SUMS) {
        Values v;
        memcpy(&v, g + i, sizeof v);
        if (inv != 1) {
            v *= inv;
            if (!keep) memcpy(g + i, &v, sizeof v);
        }
        Sums d = __builtin_convertvector(v, Sums);
        sums += d * d;
    }
    double all[UPDATE_SUMS];
    memcpy(all, &sums, sizeof all);
    for (int64_t j = i; j < n; j++) {
        float v = inv != 1 ? g[j] * inv : g[j];
        if (!keep) g[j] = v;
        all[j - i] += (double)v * (double)v;
    }
    return mpri_update_join(all);
}

static void unscale_chunk(void *ctx, int64_t chunk)
{
    const Many *m = ctx;
    int64_t from, n;
    int k = chunk_at(m, chunk, &from, &n);
    float *g = (float *)m->c->in[k].data + from;
    for (int64_t b = 0; b * UPDATE_BLOCK < n; b++)
        m->squares[chunk * CHUNK_BLOCKS + b] = unscale_block(
            g + b * UPDATE_BLOCK, least(UPDATE_BLOCK, n - b * UPDATE_BLOCK), m->factor,
            m->keep);
}

static mpr_status k_unscale(const KernelCall *c)
{
    Many m = {.c = c,
              .step = 1,
              .keep = mpri_update_keeps(c),
              .factor = mpri_update_inverse(c),
              .squares = c->workspace};
    double *state = mpri_update_state(c), total = 0;
    state[STATE_INVERSE] = m.keep ? mpri_rule_keep(m.factor) : 0;
    state[STATE_FACTOR] = 0;
    int64_t chunk = 0;
    over_chunks(c, &m, unscale_chunk);
    for (int k = UPDATE_FIRST; k < c->n_in; k++) {
        double tensor = 0;
        for (int64_t from = 0; from < c->in[k].n; from += CHUNK, chunk++) {
            int64_t blocks = tiles_of(least(CHUNK, c->in[k].n - from), UPDATE_BLOCK);
            for (int64_t b = 0; b < blocks; b++) tensor += m.squares[chunk * CHUNK_BLOCKS + b];
        }
        total += tensor;
    }
    if (!isfinite(total)) state[STATE_FOUND] = 1;
    state[STATE_SQUARES] = total;
    state[STATE_NORM] = (float)sqrt(total);
    return MPR_OK;
}

static size_t unscale_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)chunks_of(s->in, s->n_in, 1) * CHUNK_BLOCKS * sizeof(double);
}

/* ---- clip ---- */

static void clip_chunk(void *ctx, int64_t chunk)
{
    const Many *m = ctx;
    int64_t from, n;
    int k = chunk_at(m, chunk, &from, &n);
    float *g = (float *)m->c->in[k].data + from;
    for (int64_t i = 0; i < n; i++) g[i] *= m->factor;
}

static mpr_status k_clip(const KernelCall *c)
{
    Many m = {.c = c, .step = 1, .factor = mpri_update_clip(c)};
    if (mpri_update_keeps(c)) mpri_update_state(c)[STATE_FACTOR] = mpri_rule_keep(m.factor);
    else if (m.factor != 1) over_chunks(c, &m, clip_chunk);
    return MPR_OK;
}

static void scale_chunk(void *ctx, int64_t chunk)
{
    const Many *m = ctx;
    int64_t from, n;
    int k = chunk_at(m, chunk, &from, &n);
    float *g = (float *)m->c->in[k].data + from;
    for (int64_t i = 0; i < n; i++) g[i] = mpri_update_kept(m->kept, g[i]);
}

static mpr_status k_scale_grads(const KernelCall *c)
{
    double *state = mpri_update_state(c);
    Many m = {.c = c, .step = 1, .kept = mpri_rule_kept(state)};
    over_chunks(c, &m, scale_chunk);
    state[STATE_INVERSE] = state[STATE_FACTOR] = 0;
    return MPR_OK;
}

/* ---- SGD ---- */

static void sgd_plain(const SgdRule *r, KeptRule kept, float *__restrict p, const float *__restrict g,
                      int64_t n)
{
    const float lr = r->lr, wd = r->wd;
    for (int64_t i = 0; i < n; i++)
        p[i] = p[i] - lr * (mpri_update_kept(kept, g[i]) + mpri_update_decay(wd, p[i]));
}

static void sgd_momentum(const SgdRule *r, KeptRule kept, float *__restrict p, const float *__restrict g,
                         float *__restrict buf, int64_t n)
{
    const float lr = r->lr, wd = r->wd, momentum = r->momentum, rest = r->rest;
    const bool first = r->first, nesterov = r->nesterov;
    for (int64_t i = 0; i < n; i++) {
        float d = mpri_update_kept(kept, g[i]) + mpri_update_decay(wd, p[i]);
        float b = first ? d : momentum * buf[i] + rest * d;
        buf[i] = b;
        p[i] = p[i] - lr * (nesterov ? d + momentum * b : b);
    }
}

static void sgd_chunk(void *ctx, int64_t chunk)
{
    const Many *m = ctx;
    int64_t from, n;
    int k = chunk_at(m, chunk, &from, &n);
    const Tensor *in = m->c->in + k;
    SgdRule r = mpri_update_sgd(m->c, (k - UPDATE_FIRST) / 3);
    float *p = (float *)in[0].data + from;
    const float *g = (const float *)in[1].data + from;
    if (r.momentum != 0) sgd_momentum(&r, m->kept, p, g, (float *)in[2].data + from, n);
    else sgd_plain(&r, m->kept, p, g, n);
    write_copies(m, k, p, from, n);
}

static mpr_status k_sgd(const KernelCall *c)
{
    Many m = {.c = c, .step = 3, .kept = mpri_rule_kept(mpri_update_state(c)), .copy_of = ((const SgdParams *)c->params)->copy_of};
    if (mpri_update_begin(c)) over_chunks(c, &m, sgd_chunk);
    return MPR_OK;
}

/* ---- Adam ---- */

static void adam_sweep(const AdamRule *rule, KeptRule kept, float *__restrict p, const float *__restrict grad,
                       float *__restrict m, float *__restrict v, int64_t n)
{
    const AdamRule r = *rule;
    for (int64_t i = 0; i < n; i++) {
        float w = r.decoupled ? p[i] * r.keep : p[i];
        float g = mpri_update_kept(kept, grad[i]);
        if (!r.decoupled) g = g + mpri_update_decay(r.wd, w);
        float mean = m[i] + r.rest1 * (g - m[i]);
        float square = r.beta2 * v[i] + r.rest2 * g * g;
        m[i] = mean;
        v[i] = square;
        p[i] = w - r.step_size * (mean / (sqrtf(square) / r.bc + r.epsilon));
    }
}

static void adam_chunk(void *ctx, int64_t chunk)
{
    const Many *many = ctx;
    int64_t from, n;
    int k = chunk_at(many, chunk, &from, &n);
    const Tensor *in = many->c->in + k;
    AdamRule r = mpri_update_adam(many->c, (k - UPDATE_FIRST) / 4);
    adam_sweep(&r, many->kept, (float *)in[0].data + from, (const float *)in[1].data + from,
               (float *)in[2].data + from, (float *)in[3].data + from, n);
    write_copies(many, k, (const float *)in[0].data + from, from, n);
}

static mpr_status k_adam(const KernelCall *c)
{
    Many m = {.c = c, .step = 4, .kept = mpri_rule_kept(mpri_update_state(c)), .copy_of = ((const AdamParams *)c->params)->copy_of};
    if (mpri_update_begin(c)) over_chunks(c, &m, adam_chunk);
    return MPR_OK;
}

static const KernelRow rows[] = {
    {.op = OP_AccumulateGrad,
     .name = MPRI_ROW("accumulategrad"),
     .isa = MPRI_ISA_ID,
     .fn = k_accumulate,
     .refuse = refuse_accumulate},
    {.op = OP_UnscaleCheck,
     .name = MPRI_ROW("unscalecheck"),
     .isa = MPRI_ISA_ID,
     .fn = k_unscale,
     .workspace = unscale_bytes},
    {.op = OP_ClipGradNorm, .name = MPRI_ROW("clipgradnorm"), .isa = MPRI_ISA_ID, .fn = k_clip},
    {.op = OP_ScaleGrads, .name = MPRI_ROW("scalegrads"), .isa = MPRI_ISA_ID, .fn = k_scale_grads},
    {.op = OP_SgdStep, .name = MPRI_ROW("sgdstep"), .isa = MPRI_ISA_ID, .fn = k_sgd},
    {.op = OP_AdamStep, .name = MPRI_ROW("adamstep"), .isa = MPRI_ISA_ID, .fn = k_adam},
};

const KernelTable MPRI_NAME(cpu_update) = {rows, sizeof rows / sizeof rows[0]};
