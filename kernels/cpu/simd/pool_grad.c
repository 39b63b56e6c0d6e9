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

/* ---- MaxPool: a window's dy goes to its first element that equals its maximum ---- */

/* The rows of a plane in phases, -inf in the padding. */
VF_FN void load_rows(const Pool *k, DType t, int64_t plane, float *rows, float *line)
{
    int64_t n = k->last.in, pad = k->last.begin;
    for (int64_t r = 0; r < k->rows_in; r++, rows += k->line) {
        float *to = k->last.stride == 1 ? rows : line;
        int64_t at = (plane * k->rows_in + r) * n, i = 0;
        fill(to, pad, -INFINITY);
        fill(to + pad + n, k->line - pad - n, -INFINITY);
        for (; i + VF_LANES <= n; i += VF_LANES) vf_store(to + pad + i, vf_ld(t, k->x->data, at + i));
        if (i < n) vf_store_n(to + pad + i, vf_ld_n(t, k->x->data, at + i, (int)(n - i)), (int)(n - i));
        deal(k, line, rows);
    }
}

/* One window by itself: of any number of taps, with -inf and NaN among its elements. */
static void spread_window(const Pool *k, int64_t o, int64_t ox, float dy, const float *rows,
                          float *sums)
{
    int64_t best = -1;
    float top = -INFINITY;
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t r = row_at(k, o, v);
        for (int64_t kx = 0; r >= 0 && kx < k->last.taps; kx++) {
            int64_t ix = ox * k->last.stride + kx * k->last.dilation - k->last.begin;
            int64_t at = r * k->line + tap_at(k, kx) + ox;
            if (ix < 0 || ix >= k->last.in) continue;
            if (best >= 0 && !(rows[at] > top) && (rows[at] == rows[at] || top != top)) continue;
            best = at;
            top = rows[at];
        }
    }
    if (best >= 0) sums[best] += dy;
}

/* Windows of an output row, as many at a time as a vector has lanes. */
VF_FN void spread_row(const Pool *k, int64_t plane, int64_t o, const float *rows, float *sums)
{
    int64_t n = k->last.out, at = (plane * k->rows_out + o) * n, taps = 0, place[MANY_TAPS];
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t r = row_at(k, o, v);
        for (int64_t kx = 0; r >= 0 && kx < k->last.taps; kx++)
            place[taps++] = r * k->line + tap_at(k, kx);
    }
    for (int64_t ox = 0; ox < n; ox += VF_LANES) {
        int left = (int)least(VF_LANES, n - ox);
        float given[VF_LANES], tops[VF_LANES];
        vf dy = vf_ld_n(k->dy->dtype, k->dy->data, at + ox, left), top = vf_set1(-INFINITY);
        for (int64_t j = 0; j < taps; j++) top = vf_max_nan(top, vf_load(rows + place[j] + ox));
        if (left < VF_LANES) { /* what lies behind the row is not looked at */
            vf_store(tops, top);
            top = vf_load_n(tops, left);
        }
        if (vm_any(vm_or(vm_nan(top), vm_eq(top, vf_set1(-INFINITY))))) {
            vf_store(given, dy);
            for (int i = 0; i < left; i++) spread_window(k, o, ox + i, given[i], rows, sums);
            continue;
        }
        for (int64_t j = 0; j < taps; j++) {
            float *to = sums + place[j] + ox;
            vm hit = vm_eq(vf_load(rows + place[j] + ox), top);
            vf_store(to, vf_load(to) + vf_blend(hit, dy, vf_zero()));
            dy = vf_blend(hit, vf_zero(), dy); /* given once */
        }
    }
}

static void max_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *rows = line + k->line;
    float *sums = rows + k->rows_in * k->line;
    switch ((int)k->x->dtype) {
    case MPR_FLOAT32: load_rows(k, MPR_FLOAT32, plane, rows, line); break;
    case MPR_FLOAT16: load_rows(k, MPR_FLOAT16, plane, rows, line); break;
    default: load_rows(k, MPR_BFLOAT16, plane, rows, line); break;
    }
    memset(sums, 0, row_bytes(k, (int)k->rows_in));
    for (int64_t o = 0; o < k->rows_out; o++) {
        if (k->taps * k->last.taps <= MANY_TAPS) {
            spread_row(k, plane, o, rows, sums);
            continue;
        }
        int64_t at = (plane * k->rows_out + o) * k->last.out;
        for (int64_t ox = 0; ox < k->last.out; ox++)
            spread_window(k, o, ox, vf_ld1(k->dy->dtype, k->dy->data, at + ox), rows, sums);
    }
    store_plane(k, plane, sums, line);
}

/* ---- AveragePool ---- */

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
    k.per_worker = row_bytes(&k, 1 + 2 * (int)k.rows_in);
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, max_grad_tile, &k);
    return MPR_OK;
}

static size_t max_grad_workspace(const KernelSig *s, int threads)
{
    Pool k = pool_of(&((const MaxPoolParams *)s->params)->window, &s->in[1], &s->in[0]);
    return (size_t)threads * row_bytes(&k, 1 + 2 * (int)k.rows_in);
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

static const KernelRow rows[] = {
    {.op = OP_MaxPoolGrad, .name = MPRI_ROW("maxpoolgrad"), .isa = MPRI_ISA_ID, .fn = k_max_grad,
     .refuse = refuse, .workspace = max_grad_workspace},
    {.op = OP_AveragePoolGrad, .name = MPRI_ROW("averagepoolgrad"), .isa = MPRI_ISA_ID,
     .fn = k_average_grad, .refuse = refuse, .workspace = average_grad_workspace},
};

const KernelTable MPRI_NAME(cpu_pool_grad) = {rows, sizeof rows / sizeof rows[0]};
