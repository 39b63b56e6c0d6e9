/* MaxPool, AveragePool and the global pools; see pool.h for the way of a row.
 *
 * Where the indices are wanted, a maximum is carried with the number of its tap, as a float: row-major
 * order decides ties. */
#include "kernels/cpu/simd/pool.h"

#define NO_TAP 1e9f /* number of a tap in the padding; real ones are smaller */

/* ---- MaxPool ---- */

/* line[begin + i] = max or sum of the elements i of the rows that output row o sees; so many rows
 * at a time as have their vector joined in registers. */
enum { AT_ONCE = 8 };
VF_FN void join_rows(const Pool *k, DType t, bool max, int64_t plane, int64_t o, float *line)
{
    bool first = true;
    int64_t n = k->last.in, at[AT_ONCE];
    float *to = line + k->last.begin;
    for (int64_t v = 0; v < k->taps;) {
        int rows = 0;
        for (; v < k->taps && rows < AT_ONCE; v++) {
            int64_t r = row_at(k, o, v);
            if (r >= 0) at[rows++] = (plane * k->rows_in + r) * n;
        }
        for (int64_t i = 0; rows && i < n; i += VF_LANES) {
            int left = (int)least(VF_LANES, n - i);
            bool whole = left == VF_LANES;
            vf all = first ? vf_set1(max ? -INFINITY : 0.0f) : vf_load_n(to + i, left);
            for (int j = 0; j < rows; j++) {
                vf x = whole ? vf_ld(t, k->x->data, at[j] + i)
                             : vf_ld_n(t, k->x->data, at[j] + i, left);
                if (j == 0 && first) all = x;
                else if (max) all = vf_max_nan(all, x);
                else all += x;
            }
            if (whole) vf_store(to + i, all);
            else vf_store_n(to + i, all, left);
        }
        if (rows) first = false;
    }
    if (first) fill(to, n, max ? -INFINITY : 0.0f);
}

/* a is taken over b: larger, or the first NaN. */
VF_FN vm above(vf a, vf b) { return vm_or(vm_gt(a, b), vm_and(vm_nan(a), vm_not(vm_nan(b)))); }

/* line[begin + i] = max of the rows that output row o sees, from[begin + i] = the leading tap that it
 * came through. */
VF_FN void argmax_line(const Pool *k, DType t, int64_t plane, int64_t o, float *line, float *from)
{
    int64_t n = k->last.in;
    float *to = line + k->last.begin, *id = from + k->last.begin;
    fill(to, n, -INFINITY);
    fill(id, n, NO_TAP);
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t r = row_at(k, o, v), at = (plane * k->rows_in + r) * n;
        if (r < 0) continue;
        for (int64_t i = 0; i < n; i += VF_LANES) {
            int left = (int)least(VF_LANES, n - i);
            vf x = vf_ld_n(t, k->x->data, at + i, left), best = vf_load_n(to + i, left);
            vf seen = vf_load_n(id + i, left), tap = vf_set1((float)v);
            vm take = vm_or(above(x, best), vm_and(vm_eq(x, best), vm_lt(tap, seen)));
            vf_store_n(to + i, vf_blend(take, x, best), left);
            vf_store_n(id + i, vf_blend(take, tap, seen), left);
        }
    }
}

/* Numbers of the taps of the maxima of an output row, NO_TAP or more where all is padding; into
 * arg[out], and the maxima into best[out]. */
VF_FN void argmax_row(const Pool *k, const float *values, const float *taps, float *best, float *arg)
{
    for (int64_t o = 0; o < k->last.out; o += VF_LANES) {
        vf top = vf_set1(-INFINITY), number = vf_set1(NO_TAP);
        for (int64_t kx = 0; kx < k->last.taps; kx++) {
            int64_t at = tap_at(k, kx) + o;
            vf x = vf_load(values + at);
            vf tap = vf_load(taps + at) * vf_set1((float)k->last.taps) + vf_set1((float)kx);
            vm take = vm_or(above(x, top), vm_and(vm_eq(x, top), vm_lt(tap, number)));
            top = vf_blend(take, x, top);
            number = vf_blend(take, tap, number);
        }
        vf_store(best + o, top);
        vf_store(arg + o, number);
    }
}

VF_FN void max_row(const Pool *k, DType t, int64_t row, float *line, float *phases, float *out)
{
    join_rows(k, t, true, row / k->rows_out, row % k->rows_out, line);
    const float *from = deal(k, line, phases);
    for (int64_t o = 0; o < k->last.out; o += VF_LANES) {
        vf top = vf_load(from + tap_at(k, 0) + o);
        for (int64_t kx = 1; kx < k->last.taps; kx++)
            top = vf_max_nan(top, vf_load(from + tap_at(k, kx) + o));
        vf_store(out + o, top);
    }
    store_row(k->y, row * k->last.out, out, k->last.out);
}

static void max_tile(void *ctx, int64_t tile, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *phases = line + k->line, *out = phases + k->line;
    int64_t all = k->planes * k->rows_out, end = least(all, (tile + 1) * k->per_tile);
    fill(line, k->line, -INFINITY);
    for (int64_t row = tile * k->per_tile; row < end; row++)
        switch ((int)k->x->dtype) {
        case MPR_FLOAT32: max_row(k, MPR_FLOAT32, row, line, phases, out); break;
        case MPR_FLOAT16: max_row(k, MPR_FLOAT16, row, line, phases, out); break;
        default: max_row(k, MPR_BFLOAT16, row, line, phases, out); break;
        }
}

/* Position in its plane of the element of tap `number` of output (o, ox). */
VF_FN int64_t position(const Pool *k, int64_t o, int64_t ox, int64_t number)
{
    int64_t kx = number % k->last.taps, v = number / k->last.taps;
    int64_t ix = ox * k->last.stride + kx * k->last.dilation - k->last.begin;
    if (!k->column_major) return row_at(k, o, v) * k->last.in + ix;
    int64_t r = row_at(k, o, v);
    int64_t at = ix * k->rows_in, before = k->rows_in;
    for (int i = k->lead - 1; i >= 0; i--) {
        before /= k->d[i].in;
        at += r % k->d[i].in * before;
        r /= k->d[i].in;
    }
    return at;
}

static void index_tile(void *ctx, int64_t tile, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *from = line + k->line;
    float *values = from + k->line, *taps = values + k->line, *best = taps + k->line;
    float *arg = best + k->line;
    int64_t all = k->planes * k->rows_out, end = least(all, (tile + 1) * k->per_tile);
    fill(line, k->line, -INFINITY);
    fill(from, k->line, NO_TAP);
    for (int64_t row = tile * k->per_tile; row < end; row++) {
        int64_t plane = row / k->rows_out, o = row % k->rows_out;
        argmax_line(k, k->x->dtype, plane, o, line, from);
        argmax_row(k, deal(k, line, values), deal(k, from, taps), best, arg);
        store_row(k->y, row * k->last.out, best, k->last.out);
        for (int64_t ox = 0; ox < k->last.out; ox++)
            ((int64_t *)k->indices->data)[row * k->last.out + ox] =
                arg[ox] >= NO_TAP ? -1 : plane * k->rows_in * k->last.in +
                                             position(k, o, ox, (int64_t)arg[ox]);
    }
}

static mpr_status k_max(const KernelCall *c)
{
    const MaxPoolParams *p = c->params;
    Pool k = pool_of(&p->window, &c->in[0], &c->out[0]);
    if (c->out[0].n == 0) return MPR_OK;
    k.x = &c->in[0];
    k.y = &c->out[0];
    k.indices = output_or_null(c, 1);
    k.column_major = p->storage_order == 1;
    k.workspace = c->workspace;
    k.per_worker = row_bytes(&k, k.indices ? 6 : 3);
    k.per_tile = rows_per_tile(k.last.in * k.taps);
    mpri_parallel_worker(c->threads, tiles_of(k.planes * k.rows_out, k.per_tile),
                         k.indices ? index_tile : max_tile, &k);
    return MPR_OK;
}

static size_t max_workspace(const KernelSig *s, int threads)
{
    Pool k = pool_of(&((const MaxPoolParams *)s->params)->window, &s->in[0], &s->out[0]);
    return (size_t)threads * row_bytes(&k, sig_has_out(s, 1) ? 6 : 3);
}

/* ---- AveragePool ---- */

VF_FN void average_row(const Pool *k, DType t, int64_t row, float *line, float *phases, float *counts)
{
    int64_t o = row % k->rows_out, n = k->last.out;
    join_rows(k, t, false, row / k->rows_out, o, line);
    const float *from = deal(k, line, phases);
    float rows = (float)row_count(k, o);
    for (int64_t ox = 0; ox < n; ox += VF_LANES) {
        int left = (int)least(VF_LANES, n - ox);
        vf sum = vf_load(from + tap_at(k, 0) + ox);
        for (int64_t kx = 1; kx < k->last.taps; kx++) sum += vf_load(from + tap_at(k, kx) + ox);
        vf mean = sum / divisors(counts, ox, left, rows);
        vf_st_n(k->y->dtype, k->y->data, row * n + ox, mean, left);
    }
}

static void average_tile(void *ctx, int64_t tile, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *phases = line + k->line, *counts = phases + k->line;
    int64_t all = k->planes * k->rows_out, end = least(all, (tile + 1) * k->per_tile);
    fill(line, k->line, 0.0f);
    column_counts(k, counts);
    for (int64_t row = tile * k->per_tile; row < end; row++)
        switch ((int)k->x->dtype) {
        case MPR_FLOAT32: average_row(k, MPR_FLOAT32, row, line, phases, counts); break;
        case MPR_FLOAT16: average_row(k, MPR_FLOAT16, row, line, phases, counts); break;
        default: average_row(k, MPR_BFLOAT16, row, line, phases, counts); break;
        }
}

static mpr_status k_average(const KernelCall *c)
{
    const AveragePoolParams *p = c->params;
    Pool k = pool_of(&p->window, &c->in[0], &c->out[0]);
    if (c->out[0].n == 0) return MPR_OK;
    k.x = &c->in[0];
    k.y = &c->out[0];
    k.pads = p->count_include_pad == 1;
    k.workspace = c->workspace;
    k.per_worker = row_bytes(&k, 3);
    k.per_tile = rows_per_tile(k.last.in * k.taps);
    mpri_parallel_worker(c->threads, tiles_of(k.planes * k.rows_out, k.per_tile), average_tile, &k);
    return MPR_OK;
}

static size_t average_workspace(const KernelSig *s, int threads)
{
    Pool k = pool_of(&((const AveragePoolParams *)s->params)->window, &s->in[0], &s->out[0]);
    return (size_t)threads * row_bytes(&k, 3);
}

/* ---- global pools: a plane is a run ---- */

VF_FN float run_max(DType t, const void *p, int64_t at, int64_t n)
{
    vf top = vf_set1(-INFINITY), second = top, third = top, fourth = top;
    int64_t i = 0;
    for (; i + 4 * VF_LANES <= n; i += 4 * VF_LANES) {
        top = vf_max_nan(top, vf_ld(t, p, at + i));
        second = vf_max_nan(second, vf_ld(t, p, at + i + VF_LANES));
        third = vf_max_nan(third, vf_ld(t, p, at + i + 2 * VF_LANES));
        fourth = vf_max_nan(fourth, vf_ld(t, p, at + i + 3 * VF_LANES));
    }
    for (; i + VF_LANES <= n; i += VF_LANES) top = vf_max_nan(top, vf_ld(t, p, at + i));
    if (i < n) {
        int left = (int)(n - i);
        second = vf_max_nan(second, vf_blend(vm_first(left), vf_ld_n(t, p, at + i, left), second));
    }
    return vf_hmax_nan(vf_max_nan(vf_max_nan(top, second), vf_max_nan(third, fourth)));
}

VF_FN void global_planes(const Pool *k, DType t, int64_t begin, int64_t end)
{
    int64_t n = k->rows_in;
    for (int64_t i = begin; i < end; i++) {
        float v = k->pads ? run_sum(t, k->x->data, i * n, n, run_value, vf_zero()) / (float)n
                          : run_max(t, k->x->data, i * n, n);
        vf_st1(k->y->dtype, k->y->data, i, v);
    }
}

static void global_tile(void *ctx, int64_t tile)
{
    const Pool *k = ctx;
    int64_t begin = tile * k->per_tile, end = least(k->planes, begin + k->per_tile);
    switch ((int)k->x->dtype) {
    case MPR_FLOAT32: global_planes(k, MPR_FLOAT32, begin, end); break;
    case MPR_FLOAT16: global_planes(k, MPR_FLOAT16, begin, end); break;
    default: global_planes(k, MPR_BFLOAT16, begin, end); break;
    }
}

static mpr_status global_pool(const KernelCall *c, bool mean)
{
    Rows r = rows_from(&c->in[0], 2);
    Pool k = {.x = &c->in[0], .y = &c->out[0], .planes = r.count, .rows_in = r.n, .pads = mean};
    k.per_tile = rows_per_tile(r.n);
    mpri_parallel(c->threads, tiles_of(r.count, k.per_tile), global_tile, &k);
    return MPR_OK;
}

static mpr_status k_global_max(const KernelCall *c) { return global_pool(c, false); }
static mpr_status k_global_average(const KernelCall *c) { return global_pool(c, true); }

/* ---- rows ---- */

static const char *refuse(const KernelSig *s)
{
    return sig_floats(s, 0, 0) ? NULL : NOT_FLOAT;
}

static const char *refuse_average(const KernelSig *s)
{
    const char *why = refuse(s);
    return why ? why : too_vast(&((const AveragePoolParams *)s->params)->window);
}

static const char *refuse_max(const KernelSig *s)
{
    const PoolWindow *p = &((const MaxPoolParams *)s->params)->window;
    if (!vf_can(s->in[0].dtype)) return NOT_FLOAT;
    return sig_has_out(s, 1) ? too_many_taps(p) : too_vast(p);
}

static const KernelRow rows[] = {
    {.op = OP_MaxPool, .name = MPRI_ROW("maxpool"), .isa = MPRI_ISA_ID, .fn = k_max,
     .refuse = refuse_max, .workspace = max_workspace},
    {.op = OP_AveragePool, .name = MPRI_ROW("averagepool"), .isa = MPRI_ISA_ID, .fn = k_average,
     .refuse = refuse_average, .workspace = average_workspace},
    {.op = OP_GlobalMaxPool, .name = MPRI_ROW("globalmaxpool"), .isa = MPRI_ISA_ID,
     .fn = k_global_max, .refuse = refuse},
    {.op = OP_GlobalAveragePool, .name = MPRI_ROW("globalaveragepool"), .isa = MPRI_ISA_ID,
     .fn = k_global_average, .refuse = refuse},
};

const KernelTable MPRI_NAME(cpu_pool) = {rows, sizeof rows / sizeof rows[0]};
