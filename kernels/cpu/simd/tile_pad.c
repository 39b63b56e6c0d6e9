/* Tile is one strided copy (layout.h): each axis is walked as copies and elements, and copies stay
 * at the same source. Pad goes row by row of the output: where a position comes from is worked out
 * once per axis, the inside of a row is one block. Any type, by element size. */
#include "kernels/cpu/simd/layout.h"
#include "runtime/op/pad_index.h"

/* ---- Tile ---- */

static mpr_status k_tile(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Move m = move_begin(y->data, x->data, y->dtype);
    if (!y->n) return MPR_OK;
    for (int k = 0; k < y->rank; k++) {
        int64_t inner = span(y, k + 1, y->rank);
        move_dim(&m, y->dims[k] / x->dims[k], 0, x->dims[k] * inner);
        move_dim(&m, x->dims[k], span(x, k + 1, x->rank), inner);
    }
    MPRI_NAME(cpu_move)(&m, c->threads);
    return MPR_OK;
}

static const char *refuse_tile(const KernelSig *s)
{
    int walked = 0;
    for (int k = 0; k < s->in[0].rank; k++)
        walked += (s->in[0].dims[k] != 1) + (s->in[0].dims[k] != s->out[0].dims[k]);
    return walked > MPRI_TENSOR_RANK ? "more than 8 dims to walk" : NULL;
}

/* ---- Pad ---- */

typedef struct Pad {
    const Tensor *x;
    Tensor *y;
    int64_t *from[MPRI_TENSOR_RANK]; /* per output position of an axis: source offset, or -1 */
    int64_t first, end;              /* inside of the last axis */
    char fill[8];
    size_t size;
    int64_t rows, per_tile;
} Pad;

VF_FN void fill_run(char *to, const char *value, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++) memcpy(to + (size_t)i * size, value, size);
}

static void fill(const Pad *p, char *to, int64_t n)
{
    switch (p->size) {
    case 1: fill_run(to, p->fill, n, 1); break;
    case 2: fill_run(to, p->fill, n, 2); break;
    case 4: fill_run(to, p->fill, n, 4); break;
    default: fill_run(to, p->fill, n, 8); break;
    }
}

/* Elements [a, b) of a row outside its inside. */
static void border(const Pad *p, char *to, const char *from, int64_t a, int64_t b)
{
    const int64_t *last = p->from[p->y->rank - 1];
    if (a < b && last[a] < 0) {
        fill(p, to + (size_t)a * p->size, b - a);
        return;
    }
    for (int64_t i = a; i < b; i++)
        memcpy(to + (size_t)i * p->size, from + (size_t)last[i] * p->size, p->size);
}

static void pad_row(const Pad *p, int64_t row)
{
    int last = p->y->rank - 1;
    int64_t width = p->y->dims[last], offset = 0, rest = row;
    char *to = (char *)p->y->data + (size_t)(row * width) * p->size;
    for (int k = last - 1; k >= 0; k--) {
        int64_t at = p->from[k][rest % p->y->dims[k]];
        if (at < 0) {
            fill(p, to, width);
            return;
        }
        offset += at;
        rest /= p->y->dims[k];
    }
    const char *from = (const char *)p->x->data + (size_t)offset * p->size;
    border(p, to, from, 0, p->first);
    if (p->end > p->first)
        memcpy(to + (size_t)p->first * p->size, from + (size_t)p->from[last][p->first] * p->size,
               (size_t)(p->end - p->first) * p->size);
    border(p, to, from, p->end, width);
}

static void pad_tile(void *ctx, int64_t tile)
{
    const Pad *p = ctx;
    for (int64_t r = tile * p->per_tile, end = least(p->rows, r + p->per_tile); r < end; r++)
        pad_row(p, r);
}

/* Inputs data, pads, constant_value (optional), axes (optional). */
static void read_pads(const KernelCall *c, int64_t *before, int64_t *after)
{
    const Tensor *pads = &c->in[1], *axes = input_or_null(c, 3);
    int64_t n = pads->n / 2;
    for (int64_t i = 0; i < n; i++) {
        int64_t axis = axes ? mpri_load_i64(axes->dtype, axes->data, i) : i;
        int k = axis_from_front(axis, c->in[0].rank);
        before[k] = mpri_load_i64(pads->dtype, pads->data, i);
        after[k] = mpri_load_i64(pads->dtype, pads->data, n + i);
    }
}

static mpr_status k_pad(const KernelCall *c)
{
    const PadParams *o = c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0], *value = input_or_null(c, 2);
    int64_t before[MPRI_TENSOR_RANK] = {0}, after[MPRI_TENSOR_RANK] = {0}, *at = c->workspace;
    Pad p = {.x = x, .y = &c->out[0], .size = mpri_dtype_size(y->dtype)};
    int last = y->rank - 1;
    if (!y->n) return MPR_OK;
    read_pads(c, before, after);
    if (value) memcpy(p.fill, value->data, p.size);
    for (int k = 0; k < y->rank; at += y->dims[k++]) {
        int64_t stride = span(x, k + 1, x->rank);
        p.from[k] = at;
        for (int64_t i = 0; i < y->dims[k]; i++) {
            int64_t from = mpri_pad_source(o->mode, x->dims[k], before[k], after[k], i);
            at[i] = from < 0 ? -1 : from * stride;
        }
    }
    int64_t kept = mpri_pad_kept(x->dims[last], before[last], after[last]);
    p.first = least(before[last] > 0 ? before[last] : 0, y->dims[last]);
    p.end = p.first + (kept > 0 ? kept : 0);
    p.rows = y->n / y->dims[last];
    p.per_tile = rows_per_tile(y->dims[last]);
    mpri_parallel(c->threads, tiles_of(p.rows, p.per_tile), pad_tile, &p);
    return MPR_OK;
}

static const char *refuse_pad(const KernelSig *s)
{
    return s->in[0].rank == 0 ? "a scalar" : NULL;
}

static size_t pad_workspace(const KernelSig *s, int threads)
{
    size_t n = 0;
    (void)threads;
    for (int k = 0; k < s->out[0].rank; k++) n += (size_t)s->out[0].dims[k];
    return n * sizeof(int64_t);
}

static const KernelRow rows[] = {
    {.op = OP_Tile, .name = MPRI_ROW("tile"), .isa = MPRI_ISA_ID, .fn = k_tile,
     .refuse = refuse_tile},
    {.op = OP_Pad, .name = MPRI_ROW("pad"), .isa = MPRI_ISA_ID, .fn = k_pad, .refuse = refuse_pad,
     .workspace = pad_workspace},
};

const KernelTable MPRI_NAME(cpu_tile_pad) = {rows, sizeof rows / sizeof rows[0]};
