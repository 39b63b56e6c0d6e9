/* Transpose, Concat, Split, Slice, its gradient and Expand, all as calls of one strided copy
 * (layout.h); any type, by element size. A tile is a fixed range of the index space, or of blocks
 * of it. */
#include "kernels/cpu/simd/layout.h"

enum { TILE_BYTES = 128 * 1024, BLOCK = 32 };

/* ---- the engine ---- */

typedef struct At { /* offsets in elements */
    int64_t in, out;
} At;

/* Offsets of the index-space position `rest` over dims [0, rank). */
static At at_of(const Move *m, int rank, int64_t rest)
{
    At a = {0, 0};
    for (int d = rank - 1; d >= 0; d--) {
        int64_t i = rest % m->dims[d];
        a.in += i * m->in[d];
        a.out += i * m->out[d];
        rest /= m->dims[d];
    }
    return a;
}

/* n elements with strides. The element size is a constant in each call, so the copies are plain
 * moves. */
VF_FN void strided(char *to, const char *from, int64_t n, int64_t out, int64_t in, size_t size)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * out * (int64_t)size, from + i * in * (int64_t)size, size);
}

static void copy_run(const Move *m, At a, int64_t n, int64_t in, int64_t out)
{
    char *to = m->to + a.out * (int64_t)m->size;
    const char *from = m->from + a.in * (int64_t)m->size;
    if (in == 1 && out == 1) {
        memcpy(to, from, (size_t)n * m->size);
        return;
    }
    switch (m->size) {
    case 1: strided(to, from, n, out, in, 1); break;
    case 2: strided(to, from, n, out, in, 2); break;
    case 4: strided(to, from, n, out, in, 4); break;
    default: strided(to, from, n, out, in, 8); break;
    }
}

static void run_tile(void *ctx, int64_t tile)
{
    const Move *m = ctx;
    int last = m->rank - 1;
    int64_t width = m->dims[last], i = tile * m->per_tile, end = least(m->n, i + m->per_tile);
    int64_t column = i % width, row = i / width, index[MPRI_TENSOR_RANK];
    At a = at_of(m, last, row);
    for (int d = last - 1; d >= 0; row /= m->dims[d--]) index[d] = row % m->dims[d];
    while (i < end) {
        int64_t n = least(width - column, end - i);
        copy_run(m, (At){a.in + column * m->in[last], a.out + column * m->out[last]}, n,
                 m->in[last], m->out[last]);
        i += n;
        column = 0;
        for (int d = last - 1; d >= 0; d--) { /* the next run: count up the outer coordinates */
            a.in += m->in[d];
            a.out += m->out[d];
            if (++index[d] < m->dims[d]) break;
            index[d] = 0;
            a.in -= m->dims[d] * m->in[d];
            a.out -= m->dims[d] * m->out[d];
        }
    }
}

/* Rows of the source become columns of the target, one square block at a time. */
VF_FN void transpose_block(char *to, const char *from, int64_t rows, int64_t columns,
                           int64_t in_pitch, int64_t out_pitch, size_t size)
{
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + (c * out_pitch + r) * (int64_t)size,
                   from + (r * in_pitch + c) * (int64_t)size, size);
}

/* Four-byte elements, whole vectors in registers. */
static void transpose_block_4(char *to, const char *from, int64_t rows, int64_t columns,
                              int64_t in_pitch, int64_t out_pitch)
{
    if (rows % VF_LANES || columns % VF_LANES) {
        transpose_block(to, from, rows, columns, in_pitch, out_pitch, 4);
        return;
    }
    for (int64_t r = 0; r < rows; r += VF_LANES)
        for (int64_t c = 0; c < columns; c += VF_LANES) {
            vf v[VF_LANES];
            for (int i = 0; i < VF_LANES; i++)
                v[i] = vf_load((const float *)(from + ((r + i) * in_pitch + c) * 4));
            vf_transpose(v);
            for (int i = 0; i < VF_LANES; i++)
                vf_store((float *)(to + ((c + i) * out_pitch + r) * 4), v[i]);
        }
}

/* Index space: dims [0, rank - 2) outside, then the source's rows (contiguous in the target), last
 * the source's columns (contiguous in the source). strip: BLOCK rows. */
static void block_strip(const Move *m, int64_t strip)
{
    int row = m->rank - 2, column = m->rank - 1;
    int64_t strips = tiles_of(m->dims[row], BLOCK), r0 = strip % strips * BLOCK;
    int64_t rows = least(BLOCK, m->dims[row] - r0);
    At a = at_of(m, row, strip / strips);
    for (int64_t c0 = 0; c0 < m->dims[column]; c0 += BLOCK) {
        int64_t columns = least(BLOCK, m->dims[column] - c0), ip = m->in[row], op = m->out[column];
        char *to = m->to + (a.out + r0 + c0 * op) * (int64_t)m->size;
        const char *from = m->from + (a.in + r0 * ip + c0) * (int64_t)m->size;
        switch (m->size) {
        case 1: transpose_block(to, from, rows, columns, ip, op, 1); break;
        case 2: transpose_block(to, from, rows, columns, ip, op, 2); break;
        case 4: transpose_block_4(to, from, rows, columns, ip, op); break;
        default: transpose_block(to, from, rows, columns, ip, op, 8); break;
        }
    }
}

static void block_tile(void *ctx, int64_t tile)
{
    const Move *m = ctx;
    for (int64_t i = tile * m->per_tile, end = least(m->n, i + m->per_tile); i < end; i++)
        block_strip(m, i);
}

static void swap_dims(Move *m, int a, int b)
{
    int64_t dim = m->dims[a], in = m->in[a], out = m->out[a];
    m->dims[a] = m->dims[b];
    m->in[a] = m->in[b];
    m->out[a] = m->out[b];
    m->dims[b] = dim;
    m->in[b] = in;
    m->out[b] = out;
}

/* Brings the dims into block_tile's order; false when source and target are contiguous along one
 * dim. */
static bool wants_blocks(Move *m)
{
    int in_dim = -1, out_dim = -1;
    for (int d = 0; d < m->rank; d++) {
        if (m->in[d] == 1) in_dim = d;
        if (m->out[d] == 1) out_dim = d;
    }
    if (in_dim < 0 || out_dim < 0 || in_dim == out_dim || m->dims[in_dim] < 4 ||
        m->dims[out_dim] < 4)
        return false;
    swap_dims(m, in_dim, m->rank - 1);
    if (out_dim == m->rank - 1) out_dim = in_dim;
    swap_dims(m, out_dim, m->rank - 2);
    return true;
}

void MPRI_NAME(cpu_move)(Move *m, Threads *threads)
{
    if (!m->rank) { /* a single element */
        m->dims[0] = m->in[0] = m->out[0] = 1;
        m->rank = 1;
    }
    m->n = 1;
    for (int d = 0; d < m->rank; d++) m->n *= m->dims[d];
    if (!m->n) return;
    if (!wants_blocks(m)) {
        m->per_tile = TILE_BYTES / (int64_t)m->size;
        mpri_parallel(threads, tiles_of(m->n, m->per_tile), run_tile, m);
        return;
    }
    int64_t rows = m->dims[m->rank - 2], columns = m->dims[m->rank - 1];
    /* from here on n counts strips */
    m->n = m->n / (rows * columns) * tiles_of(rows, BLOCK);
    m->per_tile = rows_per_tile(BLOCK * columns);
    mpri_parallel(threads, tiles_of(m->n, m->per_tile), block_tile, m);
}

typedef struct Zero {
    char *p;
    size_t n;
} Zero;

static void zero_tile(void *ctx, int64_t tile)
{
    const Zero *z = ctx;
    size_t from = (size_t)tile * TILE_BYTES;
    memset(z->p + from, 0, z->n - from < TILE_BYTES ? z->n - from : TILE_BYTES);
}

void MPRI_NAME(cpu_zero)(void *p, size_t n, Threads *threads)
{
    Zero z = {p, n};
    mpri_parallel(threads, (int64_t)((n + TILE_BYTES - 1) / TILE_BYTES), zero_tile, &z);
}

/* ---- operators ---- */

static mpr_status k_transpose(const KernelCall *c)
{
    const TransposeParams *p = c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Move m = move_begin(y->data, x->data, y->dtype);
    for (int k = 0; k < y->rank; k++) {
        int axis = p->perm.n ? (int)p->perm.v[k] : y->rank - 1 - k;
        move_dim(&m, y->dims[k], span(x, axis + 1, x->rank), span(y, k + 1, y->rank));
    }
    MPRI_NAME(cpu_move)(&m, c->threads);
    return MPR_OK;
}

static mpr_status k_concat(const KernelCall *c)
{
    const AxisParams *p = c->params;
    const Tensor *y = &c->out[0];
    int axis = axis_from_front(p->axis, y->rank);
    int64_t outer = span(y, 0, axis), pitch = span(y, axis, y->rank), at = 0;
    for (int k = 0; k < c->n_in; k++) {
        const Tensor *x = &c->in[k];
        int64_t run = span(x, axis, x->rank);
        Move m = move_begin((char *)y->data + at * (int64_t)mpri_dtype_size(y->dtype), x->data,
                            y->dtype);
        move_dim(&m, outer, run, pitch);
        move_dim(&m, run, 1, 1);
        MPRI_NAME(cpu_move)(&m, c->threads);
        at += run;
    }
    return MPR_OK;
}

static const char *refuse_concat(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (s->in[k].dtype != s->out[0].dtype) return "inputs of several types";
    return NULL;
}

static mpr_status k_split(const KernelCall *c)
{
    const SplitParams *p = c->params;
    const Tensor *x = &c->in[0];
    int axis = axis_from_front(p->axis, x->rank);
    int64_t outer = span(x, 0, axis), inner = span(x, axis + 1, x->rank),
            pitch = inner * x->dims[axis], at = 0;
    for (int k = 0; k < c->n_out; k++) {
        int64_t run = c->out[k].dims[axis] * inner;
        Move m =
            move_begin(c->out[k].data,
                       (const char *)x->data + at * (int64_t)mpri_dtype_size(x->dtype), x->dtype);
        move_dim(&m, outer, pitch, run);
        move_dim(&m, run, 1, 1);
        MPRI_NAME(cpu_move)(&m, c->threads);
        at += run;
    }
    return MPR_OK;
}

static const char *refuse_split(const KernelSig *s)
{
    for (int k = 0; k < s->n_out; k++)
        if (!mpri_tensor_here(&s->out[k])) return "an output is not wanted";
    return NULL;
}

/* Where a slice takes its elements from: start and step per axis of the large tensor. */
typedef struct Window {
    int64_t start[MPRI_TENSOR_RANK], step[MPRI_TENSOR_RANK];
} Window;

static Window whole(int rank)
{
    Window w = {.start = {0}};
    for (int k = 0; k < rank; k++) w.step[k] = 1;
    return w;
}

static int64_t int_at(const Tensor *t, int64_t i, int64_t otherwise)
{
    return t ? mpri_load_i64(t->dtype, t->data, i) : otherwise;
}

/* The copy between small (contiguous) and the window of large. */
static Move window_move(const Window *w, const Tensor *small, const Tensor *large,
                        bool out_of_large)
{
    int64_t base = 0;
    for (int k = 0; k < large->rank; k++) base += w->start[k] * span(large, k + 1, large->rank);
    char *inside = (char *)large->data + base * (int64_t)mpri_dtype_size(large->dtype);
    Move m = out_of_large ? move_begin(small->data, inside, large->dtype)
                          : move_begin(inside, small->data, large->dtype);
    for (int k = 0; k < large->rank; k++) {
        int64_t far = w->step[k] * span(large, k + 1, large->rank),
                near = span(small, k + 1, small->rank);
        move_dim(&m, small->dims[k], out_of_large ? far : near, out_of_large ? near : far);
    }
    return m;
}

static mpr_status k_slice(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *axes = input_or_null(c, 3), *steps = input_or_null(c, 4);
    Window w = whole(x->rank);
    if (!c->out[0].n) return MPR_OK;
    for (int64_t k = 0; k < c->in[1].n; k++) {
        int axis = axis_from_front(int_at(axes, k, k), x->rank);
        int64_t dim = x->dims[axis], start = int_at(&c->in[1], k, 0);
        w.step[axis] = int_at(steps, k, 1);
        if (start < 0) start += dim;
        if (start < 0) start = 0;
        w.start[axis] = least(start, w.step[axis] < 0 ? dim - 1 : dim);
    }
    Move m = window_move(&w, &c->out[0], x, true);
    MPRI_NAME(cpu_move)(&m, c->threads);
    return MPR_OK;
}

static mpr_status k_slice_grad(const KernelCall *c)
{
    const SliceGradParams *p = c->params;
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    Window w = whole(dx->rank);
    for (int64_t k = 0; k < p->starts.n; k++) {
        int axis = p->axes.n ? (int)p->axes.v[k] : (int)k;
        w.start[axis] = p->starts.v[k];
        w.step[axis] = p->steps.n ? p->steps.v[k] : 1;
    }
    MPRI_NAME(cpu_zero)(dx->data, (size_t)dx->n * mpri_dtype_size(dx->dtype), c->threads);
    if (!dy->n) return MPR_OK;
    Move m = window_move(&w, dy, dx, false);
    MPRI_NAME(cpu_move)(&m, c->threads);
    return MPR_OK;
}

static mpr_status k_expand(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Move m = move_begin(y->data, x->data, y->dtype);
    for (int d = 0, o = x->rank - y->rank; d < y->rank; d++, o++) {
        bool stays = o < 0 || x->dims[o] == 1;
        move_dim(&m, y->dims[d], stays ? 0 : span(x, o + 1, x->rank), span(y, d + 1, y->rank));
    }
    MPRI_NAME(cpu_move)(&m, c->threads);
    return MPR_OK;
}

#define LAYOUT(Op, lower, function, why) \
    {.op = OP_##Op, .name = MPRI_ROW(lower), .isa = MPRI_ISA_ID, .fn = (function), .refuse = (why)}

static const KernelRow rows[] = {
    LAYOUT(Transpose, "transpose", k_transpose, NULL),
    LAYOUT(Concat, "concat", k_concat, refuse_concat),
    LAYOUT(Split, "split", k_split, refuse_split),
    LAYOUT(Slice, "slice", k_slice, NULL),
    LAYOUT(SliceGrad, "slicegrad", k_slice_grad, NULL),
    LAYOUT(Expand, "expand", k_expand, NULL),
};

const KernelTable MPRI_NAME(cpu_layout) = {rows, sizeof rows / sizeof rows[0]};
