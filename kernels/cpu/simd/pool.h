/* Geometry and rows of the pools: MaxPool, AveragePool and their gradients, row by row of the last
 * spatial dim.
 *
 * The window is taken apart: all its dims but the last join the input rows that an output row sees into
 * one row, vector by vector; the last dim then joins neighbours within that row. Where the stride is
 * not 1 the row is first dealt into `stride` phases (elements p, p + stride, …), so that the k-th
 * neighbour of every output is a contiguous run of one phase. Backward does the same in reverse: an
 * output row is spread over phase rows of the plane's gradient, which are woven together at the end.
 *
 * Rows are f32; a result is rounded once. */
#ifndef MPRI_CPU_POOL_H
#define MPRI_CPU_POOL_H

#include "kernels/cpu/simd/tiles.h"
#include "runtime/op/window.h"

enum { LEAD = MPRI_TENSOR_RANK - 3 };

typedef struct Pool {
    int lead; /* spatial dims but the last */
    WindowDim d[LEAD], last;
    int64_t planes, rows_in, rows_out, taps; /* rows of a plane; taps of the leading dims */
    int64_t line, phase; /* padded row; one phase of it, with room for a vector behind */
    const Tensor *x, *dy;
    Tensor *y, *indices, *dx;
    bool pads, column_major; /* the mean counts padding; order of indices */
    int64_t per_tile;
    char *workspace;
    size_t per_worker;
    int64_t ring; /* rows of a plane that are kept at a time */
    int64_t kept, front, given; /* MaxPoolGrad: output rows kept; room before one; its floats */
} Pool;

VF_FN int64_t align_lanes(int64_t n) { return (n + 15) & ~(int64_t)15; }

VF_FN Pool pool_of(const PoolWindow *p, const Tensor *x, const Tensor *y)
{
    int spatial = x->rank - 2;
    Pool k = {.lead = spatial - 1, .rows_in = 1, .rows_out = 1, .taps = 1};
    k.planes = x->dims[0] * x->dims[1];
    for (int i = 0; i < k.lead; i++) {
        k.d[i] = mpri_window_dim(p, spatial, i, x->dims[i + 2], y->dims[i + 2]);
        k.rows_in *= k.d[i].in;
        k.rows_out *= k.d[i].out;
        k.taps *= k.d[i].taps;
    }
    k.last = mpri_window_dim(p, spatial, k.lead, x->dims[spatial + 1], y->dims[spatial + 1]);
    int64_t seen = (k.last.out - 1) * k.last.stride + (k.last.taps - 1) * k.last.dilation + 1;
    int64_t held = k.last.begin + k.last.in; /* a row may hold elements that no window sees */
    int64_t width = seen > held ? seen : held;
    k.phase = align_lanes(tiles_of(width, k.last.stride) + VF_LANES);
    k.line = align_lanes(k.phase * k.last.stride + VF_LANES);
    return k;
}

/* a / n, a >= 0; a division takes longer than the vectors of a short row. */
VF_FN int64_t divide(int64_t a, int64_t n, int64_t *rest)
{
    int64_t q = n == 1 ? a : n == 2 ? (int64_t)((uint64_t)a >> 1) : a / n;
    *rest = a - q * n;
    return q;
}
VF_FN int64_t modulo(int64_t a, int64_t n)
{
    int64_t rest;
    divide(a, n, &rest);
    return rest;
}

/* Input row of a plane that output row `o` sees through leading tap t, or -1 in the padding. */
VF_FN int64_t row_at(const Pool *k, int64_t o, int64_t t)
{
    int64_t at = 0, stride = 1;
    if (k->lead == 1) {
        int64_t r = o * k->d[0].stride + t * k->d[0].dilation - k->d[0].begin;
        return r >= 0 && r < k->d[0].in ? r : -1;
    }
    for (int i = k->lead - 1; i >= 0; i--) {
        const WindowDim *d = &k->d[i];
        int64_t r = o % d->out * d->stride + t % d->taps * d->dilation - d->begin;
        if (r < 0 || r >= d->in) return -1;
        at += r * stride;
        stride *= d->in;
        o /= d->out;
        t /= d->taps;
    }
    return at;
}

/* Output row that sees input row r through leading tap t, or -1: the inverse of row_at. */
VF_FN int64_t seen_at(const Pool *k, int64_t r, int64_t t)
{
    int64_t at = 0, stride = 1;
    if (k->lead == 1) { /* the general way divides six times */
        int64_t place = r + k->d[0].begin - t * k->d[0].dilation, rest, o;
        if (place < 0) return -1;
        o = divide(place, k->d[0].stride, &rest);
        return rest == 0 && o < k->d[0].out ? o : -1;
    }
    for (int i = k->lead - 1; i >= 0; i--) {
        const WindowDim *d = &k->d[i];
        int64_t o = r % d->in + d->begin - t % d->taps * d->dilation;
        if (o < 0 || o % d->stride || o / d->stride >= d->out) return -1;
        at += o / d->stride * stride;
        stride *= d->out;
        r /= d->in;
        t /= d->taps;
    }
    return at;
}

/* ---- which rows see which: what the gradients keep ---- */

/* Input rows [*begin, *end) lie from the first to the last row that output row o sees. */
VF_FN void rows_under(const Pool *k, int64_t o, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = k->rows_in;
    if (k->lead != 1) return;
    const WindowDim *d = &k->d[0];
    int64_t first = o * d->stride - d->begin, last = first + (d->taps - 1) * d->dilation;
    *begin = least(k->rows_in, first > 0 ? first : 0);
    *end = least(k->rows_in, last > -1 ? last + 1 : 0);
}

/* So many output rows see the input rows up to r. */
VF_FN int64_t rows_needed(const Pool *k, int64_t r)
{
    if (k->lead != 1) return k->rows_out;
    return least(k->rows_out, (r + k->d[0].begin) / k->d[0].stride + 1);
}

/* Input rows that are kept at a time, and output rows with room before each. */
VF_FN void keep_windows(Pool *k)
{
    k->ring = k->rows_in;
    k->kept = k->rows_out;
    if (k->lead == 1) {
        int64_t reach = (k->d[0].taps - 1) * k->d[0].dilation;
        k->ring = least(k->ring, reach + 1);
        k->kept = least(k->kept, reach / k->d[0].stride + 1);
    }
    k->front = align_lanes((k->last.taps - 1) * k->last.dilation / k->last.stride);
    k->given = k->front + k->phase;
}

/* ---- rows ---- */

VF_FN void fill(float *row, int64_t n, float v)
{
    for (int64_t i = 0; i < n; i++) row[i] = v;
}

/* line -> phases; they are one for stride 1. Returns where the phases are. */
VF_FN const float *deal(const Pool *k, const float *restrict line, float *restrict phases)
{
    int64_t s = k->last.stride, n = k->phase;
    if (s == 1) return line;
    if (s == 2) {
        float *restrict even = phases, *restrict odd = phases + n;
        for (int64_t i = 0; i < n; i++) {
            even[i] = line[2 * i];
            odd[i] = line[2 * i + 1];
        }
        return phases;
    }
    for (int64_t p = 0; p < s; p++)
        for (int64_t i = 0; i < n; i++) phases[p * n + i] = line[i * s + p];
    return phases;
}

/* phases -> line, its inverse. */
VF_FN const float *weave(const Pool *k, const float *restrict phases, float *restrict line)
{
    int64_t s = k->last.stride, n = k->phase;
    if (s == 1) return phases;
    if (s == 2) {
        const float *restrict even = phases, *restrict odd = phases + n;
        for (int64_t i = 0; i < n; i++) {
            line[2 * i] = even[i];
            line[2 * i + 1] = odd[i];
        }
        return line;
    }
    for (int64_t p = 0; p < s; p++)
        for (int64_t i = 0; i < n; i++) line[i * s + p] = phases[p * n + i];
    return line;
}

/* Where elements 0, 2, … of an input row begin among its phases, and elements 1, 3, … of it. For a
 * stride of 2 they are dealt and woven without the padding before them: a vector is then loaded as
 * it was stored, and does not wait for two stores. */
VF_FN void runs_of_two(const Pool *k, int64_t *even, int64_t *odd)
{
    int64_t pad = k->last.begin;
    *even = pad % 2 * k->phase + pad / 2;
    *odd = (pad + 1) % 2 * k->phase + (pad + 1) / 2;
}

/* The first lanes of v, `left` of them, if any. */
VF_FN void store_part(DType t, void *to, int64_t at, vf v, int64_t left)
{
    if (left >= VF_LANES) vf_st(t, to, at, v);
    else if (left > 0) vf_st_n(t, to, at, v, (int)left);
}

/* A row of n elements from its runs, as dx. */
VF_FN void store_runs_of_two(const Pool *k, const float *restrict phases, int64_t at, int64_t n)
{
    int64_t even, odd;
    runs_of_two(k, &even, &odd);
    for (int64_t i = 0; i < n; i += 2 * VF_LANES) {
        vf first, second;
        vf_zip(vf_load(phases + even + i / 2), vf_load(phases + odd + i / 2), &first, &second);
        store_part(k->dx->dtype, k->dx->data, at + i, first, n - i);
        store_part(k->dx->dtype, k->dx->data, at + i + VF_LANES, second, n - i - VF_LANES);
    }
}

/* Where output 0 finds its tap kx among the phases. */
VF_FN int64_t tap_at(const Pool *k, int64_t kx)
{
    int64_t x = kx * k->last.dilation;
    return x % k->last.stride * k->phase + x / k->last.stride;
}

VF_FN void store_row(Tensor *to, int64_t at, const float *row, int64_t n)
{
    int64_t i = 0;
    for (; i + VF_LANES <= n; i += VF_LANES) vf_st(to->dtype, to->data, at + i, vf_load(row + i));
    if (i < n) vf_st_n(to->dtype, to->data, at + i, vf_load_n(row + i, (int)(n - i)), (int)(n - i));
}

/* A worker's rows, one after the other. */
VF_FN float *worker_rows(const Pool *k, int worker)
{
    return (float *)(void *)(k->workspace + (size_t)worker * k->per_worker);
}

VF_FN size_t row_bytes(const Pool *k, int rows)
{
    return (size_t)(rows * k->line) * sizeof(float);
}

/* ---- divisors of a mean ---- */

VF_FN int64_t row_count(const Pool *k, int64_t o)
{
    int64_t n = 1;
    if (k->lead == 1) return mpri_window_count(&k->d[0], o, k->pads);
    for (int i = k->lead - 1; i >= 0; i--) {
        n *= mpri_window_count(&k->d[i], o % k->d[i].out, k->pads);
        o /= k->d[i].out;
    }
    return n;
}

/* How many elements of a row each output counts. */
VF_FN void column_counts(const Pool *k, float *counts)
{
    for (int64_t ox = 0; ox < k->last.out; ox++)
        counts[ox] = (float)mpri_window_count(&k->last, ox, k->pads);
}

/* The divisors of an output row; 1 where a window has only padding. */
VF_FN vf divisors(const float *counts, int64_t o, int left, float rows)
{
    vf n = vf_load_n(counts + o, left) * vf_set1(rows);
    return vf_max(n, vf_set1(1.0f));
}

VF_FN bool is_power_of_two(float n)
{
    int64_t i = (int64_t)n;
    return i > 0 && (i & (i - 1)) == 0;
}

typedef struct Divisors { /* of a row of outputs */
    float *counts, *inverse; /* inverse: NULL where one is not exact */
} Divisors;

/* In two rows of space. */
VF_FN Divisors divisors_of(const Pool *k, float *space)
{
    Divisors d = {space, space + k->line};
    bool exact = true;
    column_counts(k, d.counts);
    for (int64_t ox = 0; ox < k->last.out; ox++) {
        exact = exact && is_power_of_two(d.counts[ox]);
        d.inverse[ox] = 1.0f / d.counts[ox];
    }
    if (!exact) d.inverse = NULL;
    return d;
}

/* dy divided among the elements of its window. A product with a power of two is the quotient, too,
 * and divisions take longer than all else. */
VF_FN vf share(vf dy, const float *counts, const float *inverse, int64_t i, int left, float rows)
{
    if (inverse) return dy * (vf_load_n(inverse + i, left) * vf_set1(1.0f / rows));
    return dy / divisors(counts, i, left, rows);
}

VF_FN const char *too_vast(const PoolWindow *p)
{
    return mpri_window_is_vast(p) ? "a window or padding of more than 65536 elements" : NULL;
}

/* Taps are numbered in floats. */
VF_FN const char *too_many_taps(const PoolWindow *p)
{
    double n = 1;
    if (mpri_window_is_vast(p)) return too_vast(p);
    for (int64_t i = 0; i < p->kernel_shape.n; i++) n *= (double)p->kernel_shape.v[i];
    return n < 16777216.0 ? NULL : "a window of 2^24 elements or more";
}

#endif
