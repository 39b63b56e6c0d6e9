/* Gradient of MaxPool for f16 and bf16. It goes the way of pool_grad.c, in int16 lanes instead of
 * floats, twice as many to a vector, and no sum of dx passes through memory.
 *
 * An element of x becomes its key, an int16 that orders as the element does: -0 and 0 have the same
 * key, every NaN has the largest one, and the padding has one below that of -inf. So the first tap
 * that holds the largest key of a window is the one its gradient goes to, without a case apart; a
 * window that sees only padding has none. Sums are f32, taken in the order of pool_grad.c.
 *
 * Trap: vectors run over the ends of rows, so what lies behind an end is set again after each row:
 * keys of the padding, windows without a tap. */
#include "kernels/cpu/simd/pool.h"

enum { WORDS = 2 * VF_LANES, MOST_TAPS = 64, NO_KEY = INT16_MIN, NO_TAP = -1 };

typedef struct Seer { /* an output row that sees an input row, or one window around an element */
    int64_t at;
    int16_t tap;
} Seer;

/* What a row of dx is summed from. With few rows kept, the lists come round every few rows. */
typedef struct Lists {
    int64_t n_rows, n[2];
    Seer rows[MOST_TAPS], windows[2][MOST_TAPS]; /* windows around an element of either phase */
} Lists;
enum { LISTS = 4 };

typedef struct Space { /* of a worker */
    Lists lists[LISTS];
    int16_t phase[MOST_TAPS]; /* where output 0 finds its tap kx: in which phase, and how far in */
    int64_t back[MOST_TAPS];
    float *dy, *sums, *line;
    int16_t *found, *keys, *row; /* taps of windows; rows in phases; a row in order */
} Space;

VF_FN size_t row_words(const Pool *k) { return (size_t)align_lanes(k->last.in + 2 * WORDS); }

VF_FN void open_space(const Pool *k, int worker, Space *s)
{
    s->dy = worker_rows(k, worker);
    s->sums = s->dy + k->kept * k->given;
    s->line = s->sums + k->line;
    s->found = (int16_t *)(void *)(s->line + k->line);
    s->keys = s->found + k->kept * k->given;
    s->row = s->keys + k->ring * k->line;
    for (int i = 0; i < LISTS; i++) s->lists[i].n_rows = -1;
    for (int64_t kx = 0; kx < k->last.taps; kx++) {
        s->phase[kx] = (int16_t)(kx * k->last.dilation % k->last.stride);
        s->back[kx] = kx * k->last.dilation / k->last.stride;
    }
}

/* Rings have as many rows, so that a place in them costs no division. */
VF_FN int64_t power_of_two(int64_t least_n)
{
    int64_t n = 1;
    while (n < least_n) n *= 2;
    return n;
}

static Pool low_grad_of(const void *params, const Tensor *in)
{
    Pool k = pool_of(&((const MaxPoolParams *)params)->window, &in[1], &in[0]);
    k.phase += align_lanes(WORDS);
    k.line = k.phase * k.last.stride + align_lanes(WORDS);
    keep_windows(&k);
    k.ring = power_of_two(k.ring);
    k.kept = power_of_two(k.kept);
    k.per_worker = (size_t)(k.kept * k.given + 2 * k.line) * sizeof(float) +
                   ((size_t)(k.kept * k.given + k.ring * k.line) + row_words(&k)) * sizeof(int16_t);
    k.per_worker = (k.per_worker + 63) & ~(size_t)63;
    return k;
}

/* ---- forward: which tap has the maximum ---- */

/* The first n lanes. */
VF_FN vwm vwm_below(int n)
{
    static const int16_t lane[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                     11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                     22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    return vwm_gt(vw_set1((int16_t)n), vw_load(lane));
}

VF_FN vw keys_of(DType t, vw x)
{
    vw size = x & vw_set1(INT16_MAX), sign = x >> 15;
    vwm nan = vwm_gt(size, vw_set1(t == MPR_FLOAT16 ? 0x7c00 : 0x7f80));
    return vw_blend(nan, vw_set1(INT16_MAX), (size ^ sign) - sign);
}

/* Row r of a plane as keys in phases. */
VF_FN void load_keys(const Pool *k, DType t, int64_t plane, int64_t r, int16_t *restrict to,
                     int16_t *restrict row)
{
    int64_t n = k->last.in, s = k->last.stride, i = 0;
    const int16_t *x = (const int16_t *)k->x->data + (plane * k->rows_in + r) * n;
    int16_t *keys = s == 1 ? to + k->last.begin : row;
    for (; i + WORDS <= n; i += WORDS) vw_store(keys + i, keys_of(t, vw_load(x + i)));
    if (i < n) {
        vw last = keys_of(t, vw_load_n(x + i, (int)(n - i)));
        vw_store(keys + i, vw_blend(vwm_below((int)(n - i)), last, vw_set1(NO_KEY)));
        i += WORDS;
    }
    if (s == 1) return;
    vw_store(keys + i, vw_set1(NO_KEY)); /* vectors are loaded below as they were stored */
    if (s == 2) {
        int64_t even_at, odd_at;
        runs_of_two(k, &even_at, &odd_at);
        for (i = 0; 2 * i < n; i += WORDS) {
            vw even, odd;
            vw_unzip(vw_load(keys + 2 * i), vw_load(keys + 2 * i + WORDS), &even, &odd);
            vw_store(to + even_at + i, even);
            vw_store(to + odd_at + i, odd);
        }
        return;
    }
    for (i = 0; i < n; i++) {
        int64_t x_at = i + k->last.begin;
        to[x_at % s * k->phase + x_at / s] = keys[i];
    }
}

/* Of n windows: the first tap that holds the largest key. */
VF_FN void first_taps(const int16_t *const *place, const int16_t *number, int64_t taps, int64_t n,
                      int16_t *found)
{
    for (int64_t i = 0; i < n; i += WORDS) {
        vw top = vw_set1(NO_KEY), tap = vw_set1(NO_TAP);
        for (int64_t j = 0; j < taps; j++) {
            vw x = vw_load(place[j] + i);
            tap = vw_blend(vwm_gt(x, top), vw_set1(number[j]), tap);
            top = vw_max(x, top);
        }
        if (n - i < WORDS) tap = vw_blend(vwm_below((int)(n - i)), tap, vw_set1(NO_TAP));
        vw_store(found + i, tap);
    }
}

VF_FN void find_taps(const Pool *k, int64_t o, const Space *m, int16_t *found)
{
    int64_t n = k->last.out, taps = 0;
    const int16_t *place[MOST_TAPS];
    int16_t number[MOST_TAPS];
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t r = row_at(k, o, v);
        if (r < 0) continue;
        const int16_t *row = m->keys + (r & (k->ring - 1)) * k->line;
        for (int64_t kx = 0; kx < k->last.taps; kx++) {
            place[taps] = row + m->phase[kx] * k->phase + m->back[kx];
            number[taps++] = (int16_t)(v * k->last.taps + kx);
        }
    }
    if (taps == 9) first_taps(place, number, 9, n, found);
    else if (taps == 4) first_taps(place, number, 4, n, found);
    else first_taps(place, number, taps, n, found);
}

/* ---- backward: what the windows around an element give it ---- */

VF_FN void add_windows(const Space *m, const Seer *w, int64_t n, int64_t i, vf sum[2])
{
    sum[0] = sum[1] = vf_zero();
    for (int64_t j = 0; j < n; j++) {
        vwm hit = vwm_eq(vw_load(m->found + w[j].at + i), vw_set1(w[j].tap));
        const float *dy = m->dy + w[j].at + i;
        sum[0] += vf_blend(vwm_first(hit), vf_load(dy), vf_zero());
        sum[1] += vf_blend(vwm_second(hit), vf_load(dy + VF_LANES), vf_zero());
    }
}

VF_FN void sum_windows(const Space *m, const Seer *w, int64_t n, int64_t i, vf sum[2])
{
    if (n == 1) add_windows(m, w, 1, i, sum);
    else if (n == 2) add_windows(m, w, 2, i, sum);
    else if (n == 4) add_windows(m, w, 4, i, sum);
    else add_windows(m, w, n, i, sum);
}

/* The windows around element `from` of phase p, in whose row `rows` look. */
VF_FN int64_t windows_of(const Pool *k, const Space *m, const Seer *rows, int64_t n_rows, int64_t p,
                         int64_t from, Seer *windows)
{
    int64_t n = 0;
    for (int64_t kx = 0; kx < k->last.taps; kx++)
        for (int64_t j = 0; j < n_rows && m->phase[kx] == p; j++)
            windows[n++] = (Seer){rows[j].at - m->back[kx] + from, (int16_t)(rows[j].tap + kx)};
    return n;
}

/* The lists of row r; those of its elements for strides of 1 and 2 only. */
VF_FN const Lists *lists_of(const Pool *k, int64_t r, Space *m)
{
    Lists *l = &m->lists[r % LISTS];
    int64_t n = 0, pad = k->last.begin;
    bool same = true;
    for (int64_t v = 0; v < k->taps; v++) {
        int64_t o = seen_at(k, r, v);
        if (o < 0) continue;
        Seer seer = {(o & (k->kept - 1)) * k->given + k->front, (int16_t)(v * k->last.taps)};
        same = same && n < l->n_rows && l->rows[n].at == seer.at && l->rows[n].tap == seer.tap;
        l->rows[n++] = seer;
    }
    if (same && n == l->n_rows) return l;
    l->n_rows = n;
    if (k->last.stride == 1) {
        l->n[0] = windows_of(k, m, l->rows, n, 0, pad, l->windows[0]);
    } else if (k->last.stride == 2) {
        l->n[0] = windows_of(k, m, l->rows, n, pad % 2, pad / 2, l->windows[0]);
        l->n[1] = windows_of(k, m, l->rows, n, (pad + 1) % 2, (pad + 1) / 2, l->windows[1]);
    }
    return l;
}

VF_FN void sum_row(const Pool *k, DType t, int64_t plane, int64_t r, Space *m)
{
    const Lists *l = lists_of(k, r, m);
    int64_t n = k->last.in, s = k->last.stride, at = (plane * k->rows_in + r) * n;
    void *dx = k->dx->data;
    vf a[2], b[2], c[2];
    if (s == 1) {
        for (int64_t i = 0; i < n; i += WORDS) {
            sum_windows(m, l->windows[0], l->n[0], i, a);
            for (int h = 0; h < 2; h++)
                store_part(t, dx, at + i + h * VF_LANES, a[h], n - i - h * VF_LANES);
        }
    } else if (s == 2) {
        for (int64_t i = 0; 2 * i < n; i += WORDS) {
            sum_windows(m, l->windows[0], l->n[0], i, a);
            sum_windows(m, l->windows[1], l->n[1], i, b);
            for (int h = 0; h < 2; h++) {
                int64_t from = 2 * (i + h * VF_LANES);
                if (t == MPR_BFLOAT16 && n - from >= 2 * VF_LANES) {
                    vu pairs = vf_zip_bf16(a[h], b[h]);
                    memcpy((uint16_t *)dx + at + from, &pairs, sizeof pairs);
                    continue;
                }
                vf_zip(a[h], b[h], &c[0], &c[1]);
                store_part(t, dx, at + from, c[0], n - from);
                store_part(t, dx, at + from + VF_LANES, c[1], n - from - VF_LANES);
            }
        }
    } else {
        int64_t width = tiles_of(k->last.begin + n, s);
        for (int64_t p = 0; p < s; p++) {
            Seer windows[MOST_TAPS];
            int64_t count = windows_of(k, m, l->rows, l->n_rows, p, 0, windows);
            for (int64_t i = 0; i < width; i += WORDS) {
                sum_windows(m, windows, count, i, a);
                vf_store(m->sums + p * k->phase + i, a[0]);
                vf_store(m->sums + p * k->phase + i + VF_LANES, a[1]);
            }
        }
        store_row(k->dx, at, weave(k, m->sums, m->line) + k->last.begin, n);
    }
}

VF_FN void low_grad_plane(const Pool *k, DType t, int64_t plane, Space *m)
{
    int64_t ready = 0, loaded = 0, n = k->last.out;
    for (int64_t r = 0; r < k->rows_in; r++) {
        for (int64_t need = rows_needed(k, r); ready < need; ready++) {
            int64_t begin, end, to = (ready & (k->kept - 1)) * k->given + k->front;
            rows_under(k, ready, &begin, &end);
            for (loaded = loaded > begin ? loaded : begin; loaded < end; loaded++)
                load_keys(k, t, plane, loaded, m->keys + (loaded & (k->ring - 1)) * k->line,
                          m->row);
            find_taps(k, ready, m, m->found + to);
            int64_t at = (plane * k->rows_out + ready) * n, i = 0;
            for (; i + VF_LANES <= n; i += VF_LANES)
                vf_store(m->dy + to + i, vf_ld(t, k->dy->data, at + i));
            if (i < n) vf_store(m->dy + to + i, vf_ld_n(t, k->dy->data, at + i, (int)(n - i)));
        }
        sum_row(k, t, plane, r, m);
    }
}

VF_FN void fill_words(int16_t *p, int64_t n, int16_t v)
{
    for (int64_t i = 0; i < n; i++) p[i] = v;
}

static void low_grad_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    Space m;
    open_space(k, worker, &m);
    fill_words(m.keys, k->ring * k->line, NO_KEY);
    fill_words(m.found, k->kept * k->given, NO_TAP);
    if (k->x->dtype == MPR_FLOAT16) low_grad_plane(k, MPR_FLOAT16, plane, &m);
    else low_grad_plane(k, MPR_BFLOAT16, plane, &m);
}

/* ---- the operator ---- */

static mpr_status k_low_grad(const KernelCall *c)
{
    Pool k = low_grad_of(c->params, c->in);
    if (c->out[0].n == 0) return MPR_OK;
    k.dy = &c->in[0];
    k.x = &c->in[1];
    k.dx = &c->out[0];
    k.workspace = c->workspace;
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, low_grad_tile, &k);
    return MPR_OK;
}

static size_t low_grad_workspace(const KernelSig *s, int threads)
{
    Pool k = low_grad_of(s->params, s->in);
    return (size_t)threads * k.per_worker;
}

static const char *refuse(const KernelSig *s)
{
    const PoolWindow *p = &((const MaxPoolParams *)s->params)->window;
    const Ints *shape = &p->kernel_shape;
    double taps = 1;
    DType t = s->in[1].dtype;
    if (!mpri_dtype_is_low(t) || s->in[0].dtype != t || s->out[0].dtype != t)
        return "takes f16 and bf16 only, one of them for all";
    if (mpri_window_is_vast(p)) return too_vast(p);
    for (int64_t i = 0; i < shape->n; i++) taps *= (double)shape->v[i];
    return taps <= MOST_TAPS ? NULL : "a window of more than 64 elements";
}

static const KernelRow table[] = {
    {.op = OP_MaxPoolGrad, .name = MPRI_ROW("maxpoolgrad.low"), .isa = MPRI_ISA_ID,
     .fn = k_low_grad, .refuse = refuse, .workspace = low_grad_workspace},
};

const KernelTable MPRI_NAME(cpu_pool_grad_low) = {table, sizeof table / sizeof table[0]};
