/* Gradients of MaxPool and AveragePool: a tile is a plane, collected in f32 phase rows (see pool.h). */
#include "kernels/cpu/simd/pool.h"

enum { MANY_TAPS = 64 };

VF_FN void add_rows(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES) vf_store(to + i, vf_load(to + i) + vf_load(from + i));
}

static void store_plane(const Pool *k, int64_t plane, const float *sums, float *line)
{
    for (int64_t r = 0; r < k->rows_in; r++)
        store_row(k->dx, (plane * k->rows_in + r) * k->last.in,
                  weave(k, sums + r * k->line, line) + k->last.begin, k->last.in);
}

/* dy of an output row to the taps that won, tap by tap. */
VF_FN void spread_max(const Pool *k, int64_t plane, int64_t o, const float *arg, float *sums)
{
    int64_t n = k->last.out, at = (plane * k->rows_out + o) * n;
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t r = row_at(k, o, v);
        if (r < 0) continue;
        for (int64_t kx = 0; kx < k->last.taps; kx++) {
            float *to = sums + r * k->line + tap_at(k, kx);
            vf number = vf_set1((float)(v * k->last.taps + kx));
            for (int64_t ox = 0; ox < n; ox += VF_LANES) {
                int left = (int)least(VF_LANES, n - ox);
                vf dy = vf_ld_n(k->dy->dtype, k->dy->data, at + ox, left);
                vf won = vf_blend(vm_eq(vf_load(arg + ox), number), dy, vf_zero());
                vf_store_n(to + ox, vf_load_n(to + ox, left) + won, left);
            }
        }
    }
}

/* The same output by output: for windows of many taps. */
static void scatter_max(const Pool *k, int64_t plane, int64_t o, const float *arg, float *sums)
{
    int64_t n = k->last.out, at = (plane * k->rows_out + o) * n;
    for (int64_t ox = 0; ox < n; ox++) {
        if (arg[ox] >= NO_TAP) continue;
        int64_t number = (int64_t)arg[ox], kx = number % k->last.taps;
        float *to = sums + row_at(k, o, number / k->last.taps) * k->line + tap_at(k, kx);
        to[ox] += vf_ld1(k->dy->dtype, k->dy->data, at + ox);
    }
}

static void max_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *from = line + k->line;
    float *values = from + k->line, *taps = values + k->line, *best = taps + k->line;
    float *arg = best + k->line, *sums = arg + k->line;
    fill(line, k->line, -INFINITY);
    fill(from, k->line, NO_TAP);
    memset(sums, 0, row_bytes(k, (int)k->rows_in));
    for (int64_t o = 0; o < k->rows_out; o++) {
        argmax_line(k, k->x->dtype, plane, o, line, from);
        argmax_row(k, deal(k, line, values), deal(k, from, taps), best, arg);
        if (k->taps * k->last.taps > MANY_TAPS) scatter_max(k, plane, o, arg, sums);
        else spread_max(k, plane, o, arg, sums);
    }
    store_plane(k, plane, sums, best);
}

static void average_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *counts = line + k->line, *row = counts + k->line;
    float *sums = row + k->line;
    int64_t n = k->last.out;
    column_counts(k, counts);
    memset(sums, 0, row_bytes(k, (int)k->rows_in));
    for (int64_t o = 0; o < k->rows_out; o++) {
        int64_t at = (plane * k->rows_out + o) * n;
        float rows = (float)row_count(k, o);
        memset(row, 0, row_bytes(k, 1));
        for (int64_t ox = 0; ox < n; ox += VF_LANES) {
            int left = (int)least(VF_LANES, n - ox);
            vf dy = vf_ld_n(k->dy->dtype, k->dy->data, at + ox, left);
            dy = dy / divisors(counts, ox, left, rows);
            for (int64_t kx = 0; kx < k->last.taps; kx++) {
                float *to = row + tap_at(k, kx) + ox;
                vf_store_n(to, vf_load_n(to, left) + dy, left);
            }
        }
        for (int64_t v = 0; v < k->taps; v++) {
            int64_t r = row_at(k, o, v);
            if (r >= 0) add_rows(sums + r * k->line, row, k->phase * k->last.stride);
        }
    }
    store_plane(k, plane, sums, line);
}

static mpr_status k_max_grad(const KernelCall *c)
{
    Pool k = pool_of(&((const MaxPoolParams *)c->params)->window, &c->in[1], &c->in[0]);
    if (c->out[0].n == 0) return MPR_OK;
    k.dy = &c->in[0];
    k.x = &c->in[1];
    k.dx = &c->out[0];
    k.workspace = c->workspace;
    k.per_worker = row_bytes(&k, 6 + (int)k.rows_in);
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, max_grad_tile, &k);
    return MPR_OK;
}

static size_t max_grad_workspace(const KernelSig *s, int threads)
{
    Pool k = pool_of(&((const MaxPoolParams *)s->params)->window, &s->in[1], &s->in[0]);
    return (size_t)threads * row_bytes(&k, 6 + (int)k.rows_in);
}

static mpr_status k_average_grad(const KernelCall *c)
{
    const AveragePoolParams *p = c->params;
    Pool k = pool_of(&p->window, &c->out[0], &c->in[0]);
    if (c->out[0].n == 0) return MPR_OK;
    k.dy = &c->in[0];
    k.dx = &c->out[0];
    k.pads = p->count_include_pad == 1;
    k.workspace = c->workspace;
    k.per_worker = row_bytes(&k, 3 + (int)k.rows_in);
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, average_grad_tile, &k);
    return MPR_OK;
}

static size_t average_grad_workspace(const KernelSig *s, int threads)
{
    Pool k = pool_of(&((const AveragePoolParams *)s->params)->window, &s->out[0], &s->in[0]);
    return (size_t)threads * row_bytes(&k, 3 + (int)k.rows_in);
}

/* ---- rows ---- */

static const char *refuse(const KernelSig *s)
{
    return sig_floats(s, 0, 0) ? NULL : NOT_FLOAT;
}

static const char *refuse_max(const KernelSig *s)
{
    const char *why = refuse(s);
    return why ? why : too_many_taps(&((const MaxPoolParams *)s->params)->window);
}

static const KernelRow rows[] = {
    {.op = OP_MaxPoolGrad, .name = MPRI_ROW("maxpoolgrad"), .isa = MPRI_ISA_ID, .fn = k_max_grad,
     .refuse = refuse_max, .workspace = max_grad_workspace},
    {.op = OP_AveragePoolGrad, .name = MPRI_ROW("averagepoolgrad"), .isa = MPRI_ISA_ID,
     .fn = k_average_grad, .refuse = refuse, .workspace = average_grad_workspace},
};

const KernelTable MPRI_NAME(cpu_pool_grad) = {rows, sizeof rows / sizeof rows[0]};
