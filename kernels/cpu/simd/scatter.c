/* ScatterElements and ScatterND with reductions none and add, and GatherElements.
 *
 * Along the axis of ScatterElements every line of updates meets one line of data, so a tile is a
 * fixed block of lines and walks the axis outside, the lines inside: neighbours in memory are met
 * together. Rows of ScatterND may meet each other, so there a tile is a strip of columns that walks
 * all rows in order. Either way the updates of one place add up in their order, whatever the number
 * of threads. 16-bit sums are carried in f32 and rounded once. */
#include "kernels/cpu/simd/layout.h"

enum { LINES = 256, STRIP = 64 };

static mpr_status check_index(const KernelCall *c, int64_t position, int64_t dim)
{
    int64_t v = mpri_load_i64(c->in[1].dtype, c->in[1].data, position);
    if (v >= -dim && v < dim) return MPR_OK;
    if (c->fault) *c->fault = (KernelFault){1, position, v, -dim, dim};
    return MPR_E_INDEX;
}

VF_FN int64_t index_at(const Tensor *t, int64_t i, int64_t dim)
{
    int64_t v =
        t->dtype == MPR_INT64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
    return v < 0 ? v + dim : v;
}

/* ---- where the result is built ---- */

typedef struct Result {
    const Tensor *updates;
    char *to;       /* the output, or sums */
    size_t size;    /* of an element there */
    bool add;
} Result;

typedef struct Convert {
    DType from_type, to_type;
    const void *from;
    void *to;
    int64_t n;
} Convert;

static void convert_tile(void *ctx, int64_t tile)
{
    const Convert *v = ctx;
    for (int64_t i = tile * TILE, end = least(v->n, i + TILE); i < end; i += VF_LANES) {
        int n = (int)least(VF_LANES, end - i);
        vf_st_n(v->to_type, v->to, i, vf_ld_n(v->from_type, v->from, i, n), n);
    }
}

static void convert(DType to_type, void *to, DType from_type, const void *from, int64_t n,
                    Threads *threads)
{
    Convert v = {from_type, to_type, from, to, n};
    mpri_parallel(threads, tiles_of(n, TILE), convert_tile, &v);
}

static bool carries(const char *reduction, DType t)
{
    return reduction[0] == 'a' && t != MPR_FLOAT32;
}

static Result begin(const KernelCall *c, const char *reduction)
{
    Tensor *y = &c->out[0];
    const Tensor *x = &c->in[0];
    Result r = {&c->in[2], y->data, mpri_dtype_size(y->dtype), reduction[0] == 'a'};
    if (carries(reduction, y->dtype)) {
        r.to = c->workspace;
        convert(MPR_FLOAT32, r.to, x->dtype, x->data, y->n, c->threads);
    } else if (y->data != x->data) {
        Move m = move_begin(y->data, x->data, y->dtype);
        move_dim(&m, y->n, 1, 1);
        MPRI_NAME(cpu_move)(&m, c->threads);
    }
    return r;
}

static mpr_status finish(const KernelCall *c, const Result *r)
{
    Tensor *y = &c->out[0];
    if (r->to != y->data) convert(y->dtype, y->data, MPR_FLOAT32, r->to, y->n, c->threads);
    return MPR_OK;
}

/* n neighbouring updates from `from` on, onto n neighbouring places. */
VF_FN void put_run(const Result *r, int64_t at, int64_t from, int64_t n)
{
    const Tensor *u = r->updates;
    if (!r->add) {
        memcpy(r->to + (size_t)at * r->size, (const char *)u->data + (size_t)from * r->size,
               (size_t)n * r->size);
        return;
    }
    float *to = (float *)r->to + at;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf_store_n(to + j, vf_load_n(to + j, k) + vf_ld_n(u->dtype, u->data, from + j, k), k);
    }
}

VF_FN float update_at(const Tensor *u, int64_t i)
{
    if (u->dtype == MPR_FLOAT32) return ((const float *)u->data)[i];
    uint16_t h = ((const uint16_t *)u->data)[i];
    return u->dtype == MPR_FLOAT16 ? mpri_f16_to_f32(h) : mpri_bf16_to_f32(h);
}

/* ---- along an axis ---- */

typedef struct Axis {
    const Tensor *large, *indices; /* data, and what has a place per index */
    Result r;                      /* scatter */
    const char *from;              /* gather: source and target */
    char *to;
    int axis;
    int64_t lines;
} Axis;

/* Offsets of a line: its first index, and its place in the large tensor. */
static void line_at(const Axis *a, int64_t line, int64_t *small, int64_t *large)
{
    const Tensor *t = a->indices, *x = a->large;
    *small = *large = 0;
    for (int k = t->rank - 1; k >= 0; k--) {
        if (k == a->axis) continue;
        int64_t i = line % t->dims[k];
        *small += i * span(t, k + 1, t->rank);
        *large += i * span(x, k + 1, x->rank);
        line /= t->dims[k];
    }
}

/* One index per line. The element size is a constant in each call. */
VF_FN void move_lines(const Axis *a, int n, const int64_t *small, const int64_t *large,
                      int64_t skip, int64_t stride, size_t size, bool gather)
{
    int64_t dim = a->large->dims[a->axis];
    for (int l = 0; l < n; l++) {
        int64_t s = small[l] + skip, at = large[l] + index_at(a->indices, s, dim) * stride;
        if (gather)
            memcpy(a->to + (size_t)s * size, a->from + (size_t)at * size, size);
        else
            memcpy(a->r.to + (size_t)at * size, (const char *)a->r.updates->data + (size_t)s * size,
                   size);
    }
}

static void add_lines(const Axis *a, int n, const int64_t *small, const int64_t *large,
                      int64_t skip, int64_t stride)
{
    int64_t dim = a->large->dims[a->axis];
    for (int l = 0; l < n; l++) {
        int64_t s = small[l] + skip;
        ((float *)a->r.to)[large[l] + index_at(a->indices, s, dim) * stride] +=
            update_at(a->r.updates, s);
    }
}

static void axis_tile(void *ctx, int64_t tile)
{
    const Axis *a = ctx;
    const Tensor *t = a->indices;
    int64_t small[LINES], large[LINES], first = tile * LINES;
    int n = (int)least(LINES, a->lines - first);
    int64_t step = span(t, a->axis + 1, t->rank), stride = span(a->large, a->axis + 1, t->rank);
    size_t size = mpri_dtype_size(a->large->dtype);
    for (int l = 0; l < n; l++) line_at(a, first + l, &small[l], &large[l]);
    for (int64_t i = 0; i < t->dims[a->axis]; i++) {
        bool gather = a->to != NULL;
        if (!gather && a->r.add) {
            add_lines(a, n, small, large, i * step, stride);
            continue;
        }
        switch (size) {
        case 1: move_lines(a, n, small, large, i * step, stride, 1, gather); break;
        case 2: move_lines(a, n, small, large, i * step, stride, 2, gather); break;
        case 4: move_lines(a, n, small, large, i * step, stride, 4, gather); break;
        default: move_lines(a, n, small, large, i * step, stride, 8, gather); break;
        }
    }
}

static mpr_status run_axis(const KernelCall *c, Axis *a)
{
    a->lines = a->indices->n / a->indices->dims[a->axis];
    mpri_parallel(c->threads, tiles_of(a->lines, LINES), axis_tile, a);
    return MPR_OK;
}

static mpr_status k_scatter_elements(const KernelCall *c)
{
    const ScatterParams *p = c->params;
    const Tensor *idx = &c->in[1];
    Axis a = {.large = &c->out[0], .indices = idx};
    a.axis = axis_from_front(p->axis, idx->rank);
    for (int64_t i = 0; i < idx->n; i++) TRY(check_index(c, i, a.large->dims[a.axis]));
    if (!a.large->n) return MPR_OK;
    a.r = begin(c, p->reduction);
    if (idx->n) TRY(run_axis(c, &a));
    return finish(c, &a.r);
}

static mpr_status k_gather_elements(const KernelCall *c)
{
    const AxisParams *p = c->params;
    const Tensor *idx = &c->in[1];
    Axis a = {.large = &c->in[0], .indices = idx, .from = c->in[0].data, .to = c->out[0].data};
    a.axis = axis_from_front(p->axis, idx->rank);
    for (int64_t i = 0; i < idx->n; i++) TRY(check_index(c, i, a.large->dims[a.axis]));
    return idx->n ? run_axis(c, &a) : MPR_OK;
}

/* ---- ScatterND ---- */

typedef struct Nd {
    const Tensor *y, *indices;
    Result r;
    int depth;
    int64_t count, slice;
} Nd;

static void nd_strip(void *ctx, int64_t tile)
{
    const Nd *s = ctx;
    int64_t c0 = tile * STRIP, n = least(STRIP, s->slice - c0);
    for (int64_t i = 0; i < s->count; i++) {
        int64_t row = 0;
        for (int k = 0; k < s->depth; k++)
            row = row * s->y->dims[k] + index_at(s->indices, i * s->depth + k, s->y->dims[k]);
        put_run(&s->r, row * s->slice + c0, i * s->slice + c0, n);
    }
}

static mpr_status k_scatter_nd(const KernelCall *c)
{
    const ScatterNDParams *p = c->params;
    const Tensor *y = &c->out[0], *idx = &c->in[1];
    Nd s = {.y = y, .indices = idx, .depth = (int)idx->dims[idx->rank - 1]};
    s.count = span(idx, 0, idx->rank - 1);
    s.slice = span(y, s.depth, y->rank);
    for (int64_t i = 0; i < s.count; i++)
        for (int k = 0; k < s.depth; k++) TRY(check_index(c, i * s.depth + k, y->dims[k]));
    if (!y->n) return MPR_OK;
    s.r = begin(c, p->reduction);
    mpri_parallel(c->threads, tiles_of(s.slice, STRIP), nd_strip, &s);
    return finish(c, &s.r);
}

/* ---- rows ---- */

static const char *refuse_reduction(const KernelSig *s, const char *reduction)
{
    if (s->in[1].dtype != MPR_INT64 && s->in[1].dtype != MPR_INT32) return "indices int32 or int64";
    for (int k = 0; k < s->n_in; k += 2)
        if (s->in[k].dtype != s->out[0].dtype) return "several types";
    if (reduction[0] == 'n') return NULL;
    if (reduction[0] != 'a') return "reductions none and add only";
    return vf_can(s->out[0].dtype) ? NULL : NOT_FLOAT;
}

static const char *refuse_elements(const KernelSig *s)
{
    return refuse_reduction(s, ((const ScatterParams *)s->params)->reduction);
}

static const char *refuse_nd(const KernelSig *s)
{
    return refuse_reduction(s, ((const ScatterNDParams *)s->params)->reduction);
}

static const char *refuse_gather(const KernelSig *s)
{
    return refuse_reduction(s, "none");
}

static size_t sums(const KernelSig *s, const char *reduction)
{
    return carries(reduction, s->out[0].dtype) ? (size_t)s->out[0].n * sizeof(float) : 0;
}

static size_t elements_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    return sums(s, ((const ScatterParams *)s->params)->reduction);
}

static size_t nd_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    return sums(s, ((const ScatterNDParams *)s->params)->reduction);
}

#define ROW(Op, lower, function, why, bytes) \
    {.op = OP_##Op, .name = MPRI_ROW(lower), .isa = MPRI_ISA_ID, .fn = (function), \
     .refuse = (why), .workspace = (bytes)}

static const KernelRow rows[] = {
    ROW(Scatter, "scatter", k_scatter_elements, refuse_elements, elements_workspace),
    ROW(ScatterElements, "scatterelements", k_scatter_elements, refuse_elements,
        elements_workspace),
    ROW(ScatterND, "scatternd", k_scatter_nd, refuse_nd, nd_workspace),
    ROW(GatherElements, "gatherelements", k_gather_elements, refuse_gather, NULL),
};

const KernelTable MPRI_NAME(cpu_scatter) = {rows, sizeof rows / sizeof rows[0]};
