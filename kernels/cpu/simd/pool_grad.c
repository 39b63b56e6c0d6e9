/* Gradients of MaxPool and AveragePool in f32 phase rows (see pool.h); a tile is a plane. Every
 * element of dx looks at the windows it lies in and is written once; for a maximum they are asked
 * for the number of the tap that their gradient goes to, their first element that equals it.
 *
 * With one leading dim the windows sweep over the plane, and only the rows under the window are
 * kept, in a ring in the L1 cache; with more of them the ring holds all rows. */
#include "kernels/cpu/simd/pool.h"

enum { MANY_TAPS = 64 };

typedef struct Seer { /* an output row that sees an input row */
    int64_t at, tap;  /* where it is kept; its first tap that does */
} Seer;

/* ---- MaxPool ---- */

/* Elements of a row from i on, `left` of them; behind them is -inf. */
VF_FN vf load_part(DType t, const void *x, int64_t i, int64_t left)
{
    if (left >= VF_LANES) return vf_ld(t, x, i);
    if (left <= 0) return vf_set1(-INFINITY);
    return vf_blend(vm_first((int)left), vf_ld_n(t, x, i, (int)left), vf_set1(-INFINITY));
}

/* Row r of a plane in phases; beside it is -inf. True if there is a NaN in it. */
VF_FN bool load_row(const Pool *k, DType t, int64_t plane, int64_t r, float *restrict row,
                    float *restrict line)
{
    int64_t n = k->last.in, s = k->last.stride, at = (plane * k->rows_in + r) * n;
    const void *x = k->x->data;
    vm odd = vm_first(0);
    if (s == 2) {
        int64_t even_at, odd_at;
        runs_of_two(k, &even_at, &odd_at);
        for (int64_t i = 0; i < n; i += 2 * VF_LANES) {
            vf a = load_part(t, x, at + i, n - i), evens, odds;
            vf b = load_part(t, x, at + i + VF_LANES, n - i - VF_LANES);
            odd = vm_or(odd, vm_or(vm_nan(a), vm_nan(b)));
            vf_unzip(a, b, &evens, &odds);
            vf_store(row + even_at + i / 2, evens);
            vf_store(row + odd_at + i / 2, odds);
        }
        return vm_any(odd);
    }
    float *to = (s == 1 ? row : line) + k->last.begin;
    if (s > 2) fill(line, k->line, -INFINITY);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf v = load_part(t, x, at + i, n - i);
        odd = vm_or(odd, vm_nan(v));
        if (n - i >= VF_LANES) vf_store(to + i, v);
        else vf_store_n(to + i, v, (int)(n - i));
    }
    deal(k, line, row);
    return vm_any(odd);
}

/* What the phases of an input row hold becomes row r of dx. */
VF_FN void finish_row(const Pool *k, int64_t plane, int64_t r, const float *restrict sums,
                      float *restrict line)
{
    int64_t n = k->last.in, at = (plane * k->rows_in + r) * n;
    if (k->last.stride != 2) {
        store_row(k->dx, at, weave(k, sums, line) + k->last.begin, n);
        return;
    }
    store_runs_of_two(k, sums, at, n);
}

/* The tap that a window's gradient goes to, or -1: of any number of taps, with -inf and NaN among
 * its elements. */
static float find_tap(const Pool *k, int64_t o, int64_t ox, const float *rows)
{
    int64_t best = -1;
    float top = -INFINITY;
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t r = row_at(k, o, v);
        for (int64_t kx = 0; r >= 0 && kx < k->last.taps; kx++) {
            int64_t ix = ox * k->last.stride + kx * k->last.dilation - k->last.begin;
            float x = rows[r % k->ring * k->line + tap_at(k, kx) + ox];
            if (ix < 0 || ix >= k->last.in) continue;
            if (best >= 0 && !(x > top) && (x == x || top != top)) continue;
            best = v * k->last.taps + kx;
            top = x;
        }
    }
    return (float)best;
}

/* Of n windows: the first tap that holds the maximum. True if there is nothing above -inf in one. */
VF_FN bool first_taps(const float *restrict const *place, const float *number, int64_t taps,
                      int64_t n, float *restrict found)
{
    vm odd = vm_first(0);
    for (int64_t ox = 0; ox < n; ox += VF_LANES) {
        int left = (int)least(VF_LANES, n - ox);
        vf top = vf_load(place[0] + ox), tap = vf_set1(number[0]);
        for (int64_t j = 1; j < taps; j++) {
            vf x = vf_load(place[j] + ox);
            tap = vf_blend(vm_gt(x, top), vf_set1(number[j]), tap);
            top = vf_max(x, top);
        }
        if (left == VF_LANES) vf_store(found + ox, tap);
        else vf_store_n(found + ox, tap, left);
        odd = vm_or(odd, vm_and(vm_eq(top, vf_set1(-INFINITY)), vm_first(left)));
    }
    return vm_any(odd);
}

/* Taps of the windows of an output row, as many at a time as a vector has lanes; one by one where
 * `odd` says that they see a NaN. */
VF_FN void find_taps(const Pool *k, int64_t o, const float *rows, bool odd, float *found)
{
    int64_t n = k->last.out, taps = 0;
    const float *place[MANY_TAPS];
    float number[MANY_TAPS];
    bool many = k->taps * k->last.taps > MANY_TAPS;
    for (int64_t v = 0; v < k->taps && !many; v++) {
        int64_t r = row_at(k, o, v), phase = 0, back = 0; /* of tap kx */
        if (r < 0) continue;
        const float *row = rows + r % k->ring * k->line;
        for (int64_t kx = 0; kx < k->last.taps; kx++) {
            place[taps] = row + phase * k->phase + back;
            number[taps++] = (float)(v * k->last.taps + kx);
            for (phase += k->last.dilation; phase >= k->last.stride; phase -= k->last.stride)
                back++;
        }
    }
    if (taps == 9 && !odd) odd = first_taps(place, number, 9, n, found);
    else if (taps == 4 && !odd) odd = first_taps(place, number, 4, n, found);
    else if (taps > 0 && !odd) odd = first_taps(place, number, taps, n, found);
    if (taps > 0 && !odd) return;
    for (int64_t ox = 0; ox < n; ox++) found[ox] = find_tap(k, o, ox, rows);
}

/* sums[i] = (added to it: +=) what the n windows around element i give it. */
VF_FN void collect_n(const float *restrict found, const float *restrict dy,
                     const Seer *restrict windows, int64_t n, bool add, float *restrict sums,
                     int64_t width)
{
    for (int64_t i = 0; i < width; i += VF_LANES) {
        vf sum = add ? vf_load(sums + i) : vf_zero();
        for (int64_t j = 0; j < n; j++) {
            vm hit = vm_eq(vf_load(found + windows[j].at + i), vf_set1((float)windows[j].tap));
            sum += vf_blend(hit, vf_load(dy + windows[j].at + i), vf_zero());
        }
        vf_store(sums + i, sum);
    }
}

VF_FN void collect_phase(const float *restrict found, const float *restrict dy,
                         const Seer *restrict windows, int64_t n, bool add, float *restrict sums,
                         int64_t width)
{
    if (add) collect_n(found, dy, windows, n, true, sums, width);
    else if (n == 1) collect_n(found, dy, windows, 1, false, sums, width);
    else if (n == 2) collect_n(found, dy, windows, 2, false, sums, width);
    else if (n == 4) collect_n(found, dy, windows, 4, false, sums, width);
    else collect_n(found, dy, windows, n, false, sums, width);
}

/* dx of row r in phases: every element looks at the windows that it lies in. */
VF_FN void collect_row(const Pool *k, int64_t r, const float *found, const float *dy, float *sums,
                       Seer *seers)
{
    int64_t s = k->last.stride, dilation = k->last.dilation, count = 0;
    int64_t width = tiles_of(k->last.begin + k->last.in, s); /* of a phase: what becomes dx */
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t o = seen_at(k, r, v);
        if (o >= 0) seers[count++] = (Seer){modulo(o, k->kept) * k->given + k->front,
                                            v * k->last.taps};
    }
    for (int64_t p = 0; p < s; p++) {
        Seer windows[MANY_TAPS];
        int64_t n = 0, phase = 0, back = 0; /* of tap kx */
        bool add = false;
        for (int64_t kx = 0; kx < k->last.taps; kx++) {
            for (int64_t j = 0; j < count && phase == p; j++) {
                if (n == MANY_TAPS) {
                    collect_phase(found, dy, windows, n, add, sums + p * k->phase, width);
                    add = true;
                    n = 0;
                }
                windows[n++] = (Seer){seers[j].at - back, seers[j].tap + kx};
            }
            for (phase += dilation; phase >= s; phase -= s) back++;
        }
        collect_phase(found, dy, windows, n, add, sums + p * k->phase, width);
    }
}

VF_FN void max_grad_plane(const Pool *k, DType t, int64_t plane, float *line)
{
    float *sums = line + k->line, *rows = sums + k->line, *found = rows + k->ring * k->line;
    float *dy = found + k->kept * k->given;
    Seer *seers = (Seer *)(void *)(dy + k->kept * k->given);
    int64_t ready = 0, loaded = 0, n = k->last.out, last_odd = -1; /* the last row with a NaN */
    for (int64_t r = 0; r < k->rows_in; r++) {
        for (int64_t need = rows_needed(k, r); ready < need; ready++) {
            int64_t begin, end, to = modulo(ready, k->kept) * k->given + k->front;
            rows_under(k, ready, &begin, &end);
            for (loaded = loaded > begin ? loaded : begin; loaded < end; loaded++)
                if (load_row(k, t, plane, loaded, rows + loaded % k->ring * k->line, line))
                    last_odd = loaded;
            find_taps(k, ready, rows, last_odd >= begin, found + to);
            for (int64_t i = 0; i < n; i += VF_LANES) {
                int left = (int)least(VF_LANES, n - i);
                int64_t at = (plane * k->rows_out + ready) * n + i;
                vf_store_n(dy + to + i, vf_ld_n(k->dy->dtype, k->dy->data, at, left), left);
            }
        }
        collect_row(k, r, found, dy, sums, seers);
        finish_row(k, plane, r, sums, line);
    }
}

static void max_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *line = worker_rows(k, worker), *found = line + (2 + k->ring) * k->line;
    fill(line, (2 + k->ring) * k->line, -INFINITY); /* beside what is loaded */
    fill(found, k->kept * k->given, -1.0f);         /* beside the rows: no tap */
    switch ((int)k->x->dtype) {
    case MPR_FLOAT32: max_grad_plane(k, MPR_FLOAT32, plane, line); break;
    case MPR_FLOAT16: max_grad_plane(k, MPR_FLOAT16, plane, line); break;
    default: max_grad_plane(k, MPR_BFLOAT16, plane, line); break;
    }
}

/* ---- AveragePool: an output row fills phase rows, an input row adds those that see it ---- */

/* Rows and lists of a plane's work. */
typedef struct Average {
    Divisors by;
    float *sums, *line, *given; /* scratch; an output row, divided, with 0 beside it */
    float *rows;                /* ring of output rows as they spread, in phases */
    int64_t *seers, *back, *begin; /* back[begin[p]] …: how far back phase p looks for its taps */
} Average;

VF_FN void open_average(const Pool *k, float *space, Average *a)
{
    int64_t n = 0;
    *a = (Average){.by = divisors_of(k, space), .sums = space + 2 * k->line,
                   .line = space + 3 * k->line, .given = space + 4 * k->line};
    a->rows = a->given + k->given;
    a->seers = (int64_t *)(void *)(a->rows + k->ring * k->line);
    a->back = a->seers + align_lanes(k->taps);
    a->begin = a->back + align_lanes(k->last.taps);
    fill(a->given, k->given, 0.0f);
    for (int64_t p = 0; p < k->last.stride; p++) {
        a->begin[p] = n;
        for (int64_t kx = 0; kx < k->last.taps; kx++)
            if (kx * k->last.dilation % k->last.stride == p)
                a->back[n++] = kx * k->last.dilation / k->last.stride;
    }
    a->begin[k->last.stride] = n;
}

/* to[i] = sum of the elements `back` before i. */
VF_FN void add_shifted(const float *restrict from, const int64_t *restrict back, int64_t n,
                       float *restrict to, int64_t width)
{
    for (int64_t i = 0; i < width; i += VF_LANES) {
        vf sum = vf_zero();
        for (int64_t j = 0; j < n; j++) sum += vf_load(from + i - back[j]);
        vf_store(to + i, sum);
    }
}

/* What output row o gives to each input row it sees, in phases. */
VF_FN void spread_row(const Pool *k, DType t, int64_t plane, int64_t o, const Average *a,
                      float *phases)
{
    int64_t n = k->last.out, s = k->last.stride, at = (plane * k->rows_out + o) * n, i = 0;
    int64_t width = tiles_of(k->last.begin + k->last.in, s); /* of a phase: what becomes dx */
    float rows = (float)row_count(k, o), *dy = a->given + k->front;
    const float *inverse = is_power_of_two(rows) ? a->by.inverse : NULL, *counts = a->by.counts;
    int left = (int)(n % VF_LANES);
    for (; i + VF_LANES <= n; i += VF_LANES)
        vf_store(dy + i, share(vf_ld(t, k->dy->data, at + i), counts, inverse, i, VF_LANES, rows));
    if (left)
        vf_store(dy + i, share(vf_ld_n(t, k->dy->data, at + i, left), counts, inverse, i, left,
                               rows));
    for (int64_t p = 0; p < s; p++) {
        const int64_t *back = a->back + a->begin[p];
        int64_t taps = a->begin[p + 1] - a->begin[p];
        float *to = phases + p * k->phase;
        if (taps == 1) add_shifted(dy, back, 1, to, width);
        else if (taps == 2) add_shifted(dy, back, 2, to, width);
        else add_shifted(dy, back, taps, to, width);
    }
}

VF_FN vf sum_rows(const float *rows, const int64_t *seers, int64_t count, int64_t i)
{
    vf sum = count > 0 ? vf_load(rows + seers[0] + i) : vf_zero();
    for (int64_t j = 1; j < count; j++) sum += vf_load(rows + seers[j] + i);
    return sum;
}

/* dx of row r: the sum of the phase rows of the output rows that see it. */
VF_FN void store_sum(const Pool *k, DType t, int64_t plane, int64_t r, const Average *a)
{
    const float *rows = a->rows;
    int64_t *seers = a->seers;
    int64_t n = k->last.in, s = k->last.stride, at = (plane * k->rows_in + r) * n, count = 0;
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t o = seen_at(k, r, v);
        if (o >= 0) seers[count++] = modulo(o, k->ring) * k->line;
    }
    if (s == 1) {
        for (int64_t i = 0; i < n; i += VF_LANES)
            store_part(t, k->dx->data, at + i, sum_rows(rows, seers, count, k->last.begin + i),
                       n - i);
    } else if (s == 2) {
        int64_t even, odd;
        runs_of_two(k, &even, &odd);
        for (int64_t i = 0; i < n; i += 2 * VF_LANES) {
            vf first, second;
            vf_zip(sum_rows(rows, seers, count, even + i / 2),
                   sum_rows(rows, seers, count, odd + i / 2), &first, &second);
            store_part(t, k->dx->data, at + i, first, n - i);
            store_part(t, k->dx->data, at + i + VF_LANES, second, n - i - VF_LANES);
        }
    } else {
        for (int64_t i = 0; i < s * k->phase; i += VF_LANES)
            vf_store(a->sums + i, sum_rows(rows, seers, count, i));
        store_row(k->dx, at, weave(k, a->sums, a->line) + k->last.begin, n);
    }
}

VF_FN void average_grad_plane(const Pool *k, DType t, int64_t plane, const Average *a)
{
    int64_t ready = 0;
    for (int64_t r = 0; r < k->rows_in; r++) {
        for (int64_t need = rows_needed(k, r); ready < need; ready++)
            spread_row(k, t, plane, ready, a, a->rows + modulo(ready, k->ring) * k->line);
        store_sum(k, k->dx->dtype, plane, r, a);
    }
}

static void average_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    Average a;
    open_average(k, worker_rows(k, worker), &a);
    switch ((int)k->dy->dtype) {
    case MPR_FLOAT32: average_grad_plane(k, MPR_FLOAT32, plane, &a); break;
    case MPR_FLOAT16: average_grad_plane(k, MPR_FLOAT16, plane, &a); break;
    default: average_grad_plane(k, MPR_BFLOAT16, plane, &a); break;
    }
}

/* ---- operators ---- */

static Pool max_grad_of(const void *params, const Tensor *in)
{
    Pool k = pool_of(&((const MaxPoolParams *)params)->window, &in[1], &in[0]);
    keep_windows(&k);
    k.per_worker = row_bytes(&k, 2 + (int)k.ring) +
                   (size_t)(2 * k.kept * k.given) * sizeof(float) +
                   (size_t)align_lanes(k.taps) * sizeof(Seer);
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
    k.front = align_lanes((k.last.taps - 1) * k.last.dilation / k.last.stride);
    k.given = k.front + k.phase;
    k.per_worker = row_bytes(&k, 4 + (int)k.ring) + (size_t)k.given * sizeof(float) +
                   (size_t)(align_lanes(k.taps) + align_lanes(k.last.taps) +
                            align_lanes(k.last.stride + 1)) * sizeof(int64_t);
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
    if (!sig_floats(s, 0, 0)) return NOT_FLOAT;
    if (s->op != OP_MaxPoolGrad) return too_vast(&((const AveragePoolParams *)s->params)->window);
    return too_many_taps(&((const MaxPoolParams *)s->params)->window);
}

static const KernelRow rows[] = {
    {.op = OP_MaxPoolGrad, .name = MPRI_ROW("maxpoolgrad"), .isa = MPRI_ISA_ID, .fn = k_max_grad,
     .refuse = refuse, .workspace = max_grad_workspace},
    {.op = OP_AveragePoolGrad, .name = MPRI_ROW("averagepoolgrad"), .isa = MPRI_ISA_ID,
     .fn = k_average_grad, .refuse = refuse, .workspace = average_grad_workspace},
};

const KernelTable MPRI_NAME(cpu_pool_grad) = {rows, sizeof rows / sizeof rows[0]};
