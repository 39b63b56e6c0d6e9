/* BatchNormalization and its gradient, over x as [samples, channels, inner]. A tile is a strip of
 * at most STRIP channels, so every channel is summed by one thread in one order. Two layouts of
 * the loops: planes, where a channel of a sample is a run of `inner` elements, and columns for
 * inner = 1, where vectors hold neighbouring channels.
 *
 * Statistics are f32: run by run (or BLOCK rows) and these sums in double, first the mean, then
 * the squares about it. The gradient is dx = a dy + b (x - mean) + c with three numbers per
 * channel, see kernels/ref/norm_batch.c for the formula. */
#include "kernels/cpu/simd/tiles.h"

enum { STRIP = 64, BLOCK = 256 };

typedef struct Norm {
    const Tensor *x, *dy; /* dy: backward only */
    const Tensor *scale, *bias, *mean, *var;
    Tensor *y;            /* or dx */
    Tensor *running[2], *used[2], *dscale, *dbias;
    int64_t samples, channels, inner, per_tile;
    float epsilon, momentum;
    bool training;
} Norm;

typedef struct Strip {
    int64_t first;
    int n;
    float mean[STRIP], a[STRIP], b[STRIP], c[STRIP];
} Strip;

static bool as_columns(const Norm *f) { return f->inner == 1; }

static void set_layout(Norm *f, const Tensor *x)
{
    f->x = x;
    f->samples = x->rank > 1 ? x->dims[0] : 1;
    f->channels = x->rank > 1 ? x->dims[1] : 1;
    f->inner = x->rank > 1 ? span(x, 2, x->rank) : x->n;
    f->per_tile = as_columns(f) ? STRIP : least(STRIP, rows_per_tile(f->samples * f->inner));
}

VF_FN vf run_centred(vf v, vf mean) { return (v - mean) * (v - mean); }

/* ---- sums over a strip: x, or its squares about the mean ---- */

static void plane_sums(const Norm *f, const Strip *s, bool squares, double *sums)
{
    DType t = f->x->dtype;
    for (int i = 0; i < s->n; i++) {
        vf mean = vf_set1(squares ? s->mean[i] : 0);
        sums[i] = 0;
        for (int64_t k = 0; k < f->samples; k++) {
            int64_t at = (k * f->channels + s->first + i) * f->inner;
            sums[i] += (double)(squares ? run_sum(t, f->x->data, at, f->inner, run_centred, mean)
                                        : run_sum(t, f->x->data, at, f->inner, run_value, mean));
        }
    }
}

static void column_sums(const Norm *f, const Strip *s, bool squares, double *sums)
{
    float block[STRIP];
    for (int i = 0; i < s->n; i++) sums[i] = 0;
    for (int64_t from = 0; from < f->samples; from += BLOCK) {
        memset(block, 0, sizeof block);
        for (int64_t k = from, end = least(f->samples, from + BLOCK); k < end; k++)
            for (int j = 0; j < s->n; j += VF_LANES) {
                int n = (int)least(VF_LANES, s->n - j);
                vf v = vf_ld_n(f->x->dtype, f->x->data, k * f->channels + s->first + j, n);
                if (squares) v = run_centred(v, vf_load_n(s->mean + j, n));
                vf_store_n(block + j, vf_load_n(block + j, n) + v, n);
            }
        for (int i = 0; i < s->n; i++) sums[i] += (double)block[i];
    }
}

static void strip_sums(const Norm *f, const Strip *s, bool squares, double *sums)
{
    if (as_columns(f)) column_sums(f, s, squares, sums);
    else plane_sums(f, s, squares, sums);
}

/* ---- forward ---- */

/* y = (x - mean) * a + b */
static void apply_forward(const Norm *f, const Strip *s)
{
    DType tx = f->x->dtype, ty = f->y->dtype;
    for (int64_t k = 0; k < f->samples; k++) {
        if (as_columns(f)) {
            int64_t at = k * f->channels + s->first;
            for (int j = 0; j < s->n; j += VF_LANES) {
                int n = (int)least(VF_LANES, s->n - j);
                vf v = vf_ld_n(tx, f->x->data, at + j, n) - vf_load_n(s->mean + j, n);
                v = vf_fma(v, vf_load_n(s->a + j, n), vf_load_n(s->b + j, n));
                vf_st_n(ty, f->y->data, at + j, v, n);
            }
            continue;
        }
        for (int i = 0; i < s->n; i++) {
            int64_t at = (k * f->channels + s->first + i) * f->inner;
            vf mean = vf_set1(s->mean[i]), a = vf_set1(s->a[i]), b = vf_set1(s->b[i]);
            for (int64_t j = 0; j < f->inner; j += VF_LANES) {
                int n = (int)least(VF_LANES, f->inner - j);
                vf v = vf_fma(vf_ld_n(tx, f->x->data, at + j, n) - mean, a, b);
                vf_st_n(ty, f->y->data, at + j, v, n);
            }
        }
    }
}

static void forward_tile(void *ctx, int64_t tile)
{
    const Norm *f = ctx;
    Strip s = {.first = tile * f->per_tile};
    double sums[STRIP], count = (double)(f->samples * f->inner);
    float var[STRIP], low[STRIP] = {0}, keep = f->momentum; /* low: what f32 loses of the mean */
    s.n = (int)least(f->per_tile, f->channels - s.first);
    for (int i = 0; i < s.n; i++) {
        s.mean[i] = vf_ld1(f->mean->dtype, f->mean->data, s.first + i);
        var[i] = vf_ld1(f->var->dtype, f->var->data, s.first + i);
    }
    float old[2][STRIP];
    memcpy(old[0], s.mean, sizeof old[0]);
    memcpy(old[1], var, sizeof old[1]);
    if (f->training) {
        strip_sums(f, &s, false, sums);
        for (int i = 0; i < s.n; i++) {
            s.mean[i] = (float)(sums[i] / count);
            low[i] = (float)(sums[i] / count - (double)s.mean[i]);
        }
        strip_sums(f, &s, true, sums);
        for (int i = 0; i < s.n; i++)
            var[i] = (float)(sums[i] / count - (double)low[i] * (double)low[i]);
    }
    for (int i = 0; i < s.n; i++) {
        int64_t at = s.first + i;
        float used[2] = {s.mean[i], var[i]};
        for (int k = 0; k < 2; k++) {
            float next = f->training ? old[k][i] * keep + used[k] * (1 - keep) : old[k][i];
            if (f->running[k]) vf_st1(f->running[k]->dtype, f->running[k]->data, at, next);
            if (f->used[k]) vf_st1(f->used[k]->dtype, f->used[k]->data, at, used[k]);
        }
        double inv = 1 / sqrt((double)(var[i] < 0 ? 0 : var[i]) + (double)f->epsilon);
        s.a[i] = (float)((double)vf_ld1(f->scale->dtype, f->scale->data, at) * inv);
        s.b[i] = vf_ld1(f->bias->dtype, f->bias->data, at) - low[i] * s.a[i];
    }
    apply_forward(f, &s);
}

static mpr_status k_batch_norm(const KernelCall *c)
{
    const BatchNormParams *p = c->params;
    Norm f = {.scale = &c->in[1], .bias = &c->in[2], .mean = &c->in[3], .var = &c->in[4],
              .y = &c->out[0], .running = {output_or_null(c, 1), output_or_null(c, 2)},
              .used = {output_or_null(c, 3), output_or_null(c, 4)}, .epsilon = p->epsilon,
              .momentum = p->momentum, .training = p->training_mode};
    set_layout(&f, &c->in[0]);
    mpri_parallel(c->threads, tiles_of(f.channels, f.per_tile), forward_tile, &f);
    return MPR_OK;
}

/* ---- backward ---- */

/* sum += dy, dot += dy * (x - mean) over a run of one channel. */
static void add_run(const Norm *f, int64_t at, float centre, double *sum, double *dot)
{
    vf mean = vf_set1(centre);
    for (int64_t from = 0; from < f->inner; from += SUM_BLOCK) {
        vf s0 = vf_zero(), d0 = s0;
        for (int64_t j = from, end = least(f->inner, from + SUM_BLOCK); j < end; j += VF_LANES) {
            int n = (int)least(VF_LANES, end - j);
            vf dy = vf_ld_n(f->dy->dtype, f->dy->data, at + j, n);
            s0 += dy; /* beyond the run dy is 0 and x - mean finite, or the result is NaN anyway */
            d0 = vf_fma(dy, vf_ld_n(f->x->dtype, f->x->data, at + j, n) - mean, d0);
        }
        *sum += (double)vf_hsum(s0);
        *dot += (double)vf_hsum(d0);
    }
}

static void gradient_sums(const Norm *f, const Strip *s, double *sum, double *dot)
{
    for (int i = 0; i < s->n; i++) sum[i] = dot[i] = 0;
    if (!as_columns(f)) {
        for (int i = 0; i < s->n; i++)
            for (int64_t k = 0; k < f->samples; k++)
                add_run(f, (k * f->channels + s->first + i) * f->inner, s->mean[i], &sum[i],
                        &dot[i]);
        return;
    }
    float block[2][STRIP];
    for (int64_t from = 0; from < f->samples; from += BLOCK) {
        memset(block, 0, sizeof block);
        for (int64_t k = from, end = least(f->samples, from + BLOCK); k < end; k++)
            for (int j = 0; j < s->n; j += VF_LANES) {
                int n = (int)least(VF_LANES, s->n - j);
                int64_t at = k * f->channels + s->first + j;
                vf dy = vf_ld_n(f->dy->dtype, f->dy->data, at, n);
                vf d = vf_ld_n(f->x->dtype, f->x->data, at, n) - vf_load_n(s->mean + j, n);
                vf_store_n(block[0] + j, vf_load_n(block[0] + j, n) + dy, n);
                vf_store_n(block[1] + j, vf_fma(dy, d, vf_load_n(block[1] + j, n)), n);
            }
        for (int i = 0; i < s->n; i++) {
            sum[i] += (double)block[0][i];
            dot[i] += (double)block[1][i];
        }
    }
}

/* dx = a dy + b (x - mean) + c, or a dy where the statistics were constants. */
VF_FN vf slope(const Norm *f, int64_t at, int n, vf mean, vf a, vf b, vf c)
{
    vf dy = vf_ld_n(f->dy->dtype, f->dy->data, at, n);
    if (!f->training) return dy * a;
    return vf_fma(vf_ld_n(f->x->dtype, f->x->data, at, n) - mean, b, vf_fma(dy, a, c));
}

static void apply_backward(const Norm *f, const Strip *s)
{
    DType t = f->y->dtype;
    for (int64_t k = 0; k < f->samples; k++) {
        if (as_columns(f)) {
            int64_t at = k * f->channels + s->first;
            for (int j = 0; j < s->n; j += VF_LANES) {
                int n = (int)least(VF_LANES, s->n - j);
                vf v = slope(f, at + j, n, vf_load_n(s->mean + j, n), vf_load_n(s->a + j, n),
                             vf_load_n(s->b + j, n), vf_load_n(s->c + j, n));
                vf_st_n(t, f->y->data, at + j, v, n);
            }
            continue;
        }
        for (int i = 0; i < s->n; i++) {
            int64_t at = (k * f->channels + s->first + i) * f->inner;
            vf mean = vf_set1(s->mean[i]), a = vf_set1(s->a[i]), b = vf_set1(s->b[i]),
               c = vf_set1(s->c[i]);
            for (int64_t j = 0; j < f->inner; j += VF_LANES) {
                int n = (int)least(VF_LANES, f->inner - j);
                vf_st_n(t, f->y->data, at + j, slope(f, at + j, n, mean, a, b, c), n);
            }
        }
    }
}

static void backward_tile(void *ctx, int64_t tile)
{
    const Norm *f = ctx;
    Strip s = {.first = tile * f->per_tile};
    double sum[STRIP], dot[STRIP], count = (double)(f->samples * f->inner);
    s.n = (int)least(f->per_tile, f->channels - s.first);
    for (int i = 0; i < s.n; i++)
        s.mean[i] = vf_ld1(f->mean->dtype, f->mean->data, s.first + i);
    gradient_sums(f, &s, sum, dot);
    for (int i = 0; i < s.n; i++) {
        int64_t at = s.first + i;
        double inv = 1 / sqrt((double)vf_ld1(f->var->dtype, f->var->data, at) + (double)f->epsilon);
        double a = (double)vf_ld1(f->scale->dtype, f->scale->data, at) * inv;
        if (f->dscale) vf_st1(f->dscale->dtype, f->dscale->data, at, (float)(dot[i] * inv));
        if (f->dbias) vf_st1(f->dbias->dtype, f->dbias->data, at, (float)sum[i]);
        s.a[i] = (float)a;
        s.b[i] = (float)(-a * inv * inv * dot[i] / count);
        s.c[i] = (float)(-a * sum[i] / count);
    }
    if (f->y) apply_backward(f, &s);
}

static mpr_status k_batch_norm_grad(const KernelCall *c)
{
    const BatchNormParams *p = c->params;
    Norm f = {.dy = &c->in[0], .scale = &c->in[2], .mean = &c->in[3], .var = &c->in[4],
              .y = output_or_null(c, 0), .dscale = output_or_null(c, 1),
              .dbias = output_or_null(c, 2), .epsilon = p->epsilon, .training = p->training_mode};
    set_layout(&f, &c->in[1]);
    mpri_parallel(c->threads, tiles_of(f.channels, f.per_tile), backward_tile, &f);
    return MPR_OK;
}

static const char *refuse(const KernelSig *s) { return sig_floats(s, 0, 0) ? NULL : NOT_FLOAT; }

static const KernelRow rows[] = {
    {.op = OP_BatchNormalization, .name = MPRI_ROW("batchnormalization"), .isa = MPRI_ISA_ID,
     .fn = k_batch_norm, .refuse = refuse},
    {.op = OP_BatchNormGrad, .name = MPRI_ROW("batchnormgrad"), .isa = MPRI_ISA_ID,
     .fn = k_batch_norm_grad, .refuse = refuse},
};

const KernelTable MPRI_NAME(cpu_norm_batch) = {rows, sizeof rows / sizeof rows[0]};
