/* Gradients of MaxPool and AveragePool in f32 phase rows (see pool.h); a tile is a plane.
 *
 * With one leading dim the windows sweep over the plane, and only the rows under the window are kept,
 * in a ring in the L1 cache; with more of them the ring holds all rows. */
#include "kernels/cpu/simd/pool.h"

enum { MANY_TAPS = 64 };

/* ---- MaxPool: a window's dy goes to its first element that equals its maximum ---- */

/* Row r of a plane in phases, -inf in the padding. */
VF_FN void load_row(const Pool *k, DType t, int64_t plane, int64_t r, float *row, float *line)
{
    int64_t n = k->last.in, pad = k->last.begin, at = (plane * k->rows_in + r) * n, i = 0;
    float *to = k->last.stride == 1 ? row : line;
    fill(to, pad, -INFINITY);
    fill(to + pad + n, k->line - pad - n, -INFINITY);
    for (; i + VF_LANES <= n; i += VF_LANES) vf_store(to + pad + i, vf_ld(t, k->x->data, at + i));
    if (i < n) vf_store_n(to + pad + i, vf_ld_n(t, k->x->data, at + i, (int)(n - i)), (int)(n - i));
    deal(k, line, row);
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
            int64_t at = r % k->ring * k->line + tap_at(k, kx) + ox;
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
            place[taps++] = r % k->ring * k->line + tap_at(k, kx);
    }
    for (int64_t ox = 0; ox < n; ox += VF_LANES) {
        int left = (int)least(VF_LANES, n - ox);
        vf dy = vf_ld_n(k->dy->dtype, k->dy->data, at + ox, left), top = vf_set1(-INFINITY);
        for (int64_t j = 0; j < taps; j++) top = vf_max_nan(top, vf_load(rows + place[j] + ox));
        vm odd = vm_or(vm_nan(top), vm_eq(top, vf_set1(-INFINITY)));
        if (vm_any(vm_and(odd, vm_first(left)))) { /* what lies behind the row is not looked at */
            float given[VF_LANES];
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

/* Input rows [*begin, *end) lie from the first to the last row that output row o sees. */
static void rows_under(const Pool *k, int64_t o, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = k->rows_in;
    if (k->lead != 1) return;
    const WindowDim *d = &k->d[0];
    int64_t first = o * d->stride - d->begin, last = first + (d->taps - 1) * d->dilation;
    *begin = least(k->rows_in, first > 0 ? first : 0);
    *end = least(k->rows_in, last > -1 ? last + 1 : 0);
}

VF_FN void max_grad_plane(const Pool *k, DType t, int64_t plane, float *line, float *rows,
                          float *sums)
{
    int64_t loaded = 0, stored = 0;
    for (int64_t o = 0; o <= k->rows_out; o++) {
        int64_t begin = k->rows_in, end = k->rows_in;
        if (o < k->rows_out) rows_under(k, o, &begin, &end);
        for (; stored < begin; stored++) {
            float *sum = sums + stored % k->ring * k->line;
            if (stored >= loaded) memset(sum, 0, row_bytes(k, 1)); /* seen by no window */
            store_row(k->dx, (plane * k->rows_in + stored) * k->last.in,
                      weave(k, sum, line) + k->last.begin, k->last.in);
        }
        if (o == k->rows_out) break;
        for (loaded = loaded > begin ? loaded : begin; loaded < end; loaded++) {
            int64_t at = loaded % k->ring * k->line;
            load_row(k, t, plane, loaded, rows + at, line);
            memset(sums + at, 0, row_bytes(k, 1));
        }
        if (k->taps * k->last.taps <= MANY_TAPS) {
            spread_row(k, plane, o, rows, sums);
            continue;
        }
        int64_t at = (plane * k->rows_out + o) * k->last.out;
        for (int64_t ox = 0; ox < k->last.out; ox++)
            spread_window(k, o, ox, vf_ld1(k->dy->dtype, k->dy->data, at + ox), rows, sums);
    }
}

static void max_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *rows = line + k->line;
    float *sums = rows + k->ring * k->line;
    switch ((int)k->x->dtype) {
    case MPR_FLOAT32: max_grad_plane(k, MPR_FLOAT32, plane, line, rows, sums); break;
    case MPR_FLOAT16: max_grad_plane(k, MPR_FLOAT16, plane, line, rows, sums); break;
    default: max_grad_plane(k, MPR_BFLOAT16, plane, line, rows, sums); break;
    }
}

/* ---- AveragePool: an output row is spread over a line, an input row adds the lines that see it ---- */

/* What output row o gives to each input row it sees. */
VF_FN void spread_line(const Pool *k, DType t, int64_t plane, int64_t o, const float *counts,
                       float *row, float *line)
{
    int64_t n = k->last.out, at = (plane * k->rows_out + o) * n;
    float rows = (float)row_count(k, o), *to = k->last.stride == 1 ? line : row;
    memset(to, 0, row_bytes(k, 1));
    for (int64_t ox = 0; ox < n; ox += VF_LANES) {
        int left = (int)least(VF_LANES, n - ox);
        vf dy = vf_ld_n(t, k->dy->data, at + ox, left) / divisors(counts, ox, left, rows);
        for (int64_t kx = 0; kx < k->last.taps; kx++) { /* dy is 0 behind the row */
            float *p = to + tap_at(k, kx) + ox;
            vf_store(p, vf_load(p) + dy);
        }
    }
    weave(k, to, line);
}

/* dx of row r: the sum of the lines of the output rows that see it. */
static void store_sum(const Pool *k, int64_t plane, int64_t r, const float *lines, int64_t *seers)
{
    int64_t n = k->last.in, at = (plane * k->rows_in + r) * n, count = 0;
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t o = seen_at(k, r, v);
        if (o >= 0) seers[count++] = o % k->ring * k->line + k->last.begin;
    }
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf sum = count > 0 ? vf_load(lines + seers[0] + i) : vf_zero();
        for (int64_t j = 1; j < count; j++) sum += vf_load(lines + seers[j] + i);
        if (i + VF_LANES <= n) vf_st(k->dx->dtype, k->dx->data, at + i, sum);
        else vf_st_n(k->dx->dtype, k->dx->data, at + i, sum, (int)(n - i));
    }
}

VF_FN void average_grad_plane(const Pool *k, DType t, int64_t plane, float *space)
{
    float *counts = space, *row = counts + k->line, *lines = row + k->line;
    int64_t *seers = (int64_t *)(void *)(lines + k->ring * k->line), ready = 0;
    column_counts(k, counts);
    for (int64_t r = 0; r < k->rows_in; r++) {
        int64_t need = k->rows_out;
        if (k->lead == 1) need = least(need, (r + k->d[0].begin) / k->d[0].stride + 1);
        for (; ready < need; ready++)
            spread_line(k, t, plane, ready, counts, row, lines + ready % k->ring * k->line);
        store_sum(k, plane, r, lines, seers);
    }
}

static void average_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *space = worker_rows(k, worker);
    switch ((int)k->dy->dtype) {
    case MPR_FLOAT32: average_grad_plane(k, MPR_FLOAT32, plane, space); break;
    case MPR_FLOAT16: average_grad_plane(k, MPR_FLOAT16, plane, space); break;
    default: average_grad_plane(k, MPR_BFLOAT16, plane, space); break;
    }
}

/* ---- operators ---- */

static Pool max_grad_of(const void *params, const Tensor *in)
{
    Pool k = pool_of(&((const MaxPoolParams *)params)->window, &in[1], &in[0]);
    k.ring = k.rows_in;
    if (k.lead == 1) k.ring = least(k.ring, (k.d[0].taps - 1) * k.d[0].dilation + 1);
    k.per_worker = row_bytes(&k, 1 + 2 * (int)k.ring);
    return k;
}

static Pool average_grad_of(const void *params, const Tensor *dy, const Tensor *dx)
{
    const AveragePoolParams *p = params;
    Pool k = pool_of(&p->window, dx, dy);
    k.pads = p->count_include_pad == 1;
    k.ring = k.rows_out;
    if (k.lead == 1)
        k.ring = least(k.ring, (k.d[0].taps - 1) * k.d[0].dilation / k.d[0].stride + 1);
    k.per_worker = row_bytes(&k, 2 + (int)k.ring) + (size_t)align_lanes(k.taps) * sizeof(int64_t);
    return k;
}

static mpr_status k_max_grad(const KernelCall *c)
{
    Pool k = max_grad_of(c->params, c->in);
    if (c->out[0].n == 0) return MPR_OK;
    k.dy = &c->in[0];
    k.x = &c->in[1];
    k.dx = &c->out[0];
    k.workspace = c->workspace;
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, max_grad_tile, &k);
    return MPR_OK;
}

static size_t max_grad_workspace(const KernelSig *s, int threads)
{
    Pool k = max_grad_of(s->params, s->in);
    return (size_t)threads * k.per_worker;
}

static mpr_status k_average_grad(const KernelCall *c)
{
    Pool k = average_grad_of(c->params, &c->in[0], &c->out[0]);
    if (c->out[0].n == 0) return MPR_OK;
    k.dy = &c->in[0];
    k.dx = &c->out[0];
    k.workspace = c->workspace;
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, average_grad_tile, &k);
    return MPR_OK;
}

static size_t average_grad_workspace(const KernelSig *s, int threads)
{
    Pool k = average_grad_of(s->params, &s->in[0], &s->out[0]);
    return (size_t)threads * k.per_worker;
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
