/* Gather and its relatives, and the gradient of a table. An index may count from the end; one
 * outside the axis is noted in the device's fault, and zeros stand for what it names.
 *
 * Gathers: a thread per piece of a row, pieces of up to 16 bytes; every element of the result is
 * read and written once. 256 threads a block.
 *
 * The gradient adds the rows of dy that name one row of the table, in float and in the order of the
 * indices, as the CPU does; nothing depends on which thread comes first. (index, position) pairs
 * are sorted, then the first pair of each run owns the row. Runs of up to 32 pairs: a thread per
 * column. Longer ones (padding, token types) would wait for one load after the other: there 8 warps
 * fetch 128 rows of 32 columns into shared memory, of which one warp adds the columns in order.
 * Traffic: dy once, the table once written with zeros and once more where there is a sum. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/sort.cuh"

enum { THREADS = 256, SHORT = 32, STAGE_ROWS = 128, STAGE_COLUMNS = 32 };

typedef struct Indices {
    const void *at;
    int type, step;
    DeviceFault *fault;
} Indices;

static Indices indices_of(const KernelCall *c)
{
    return Indices{c->in[1].data, (int)c->in[1].dtype, c->step_id, c->device_fault};
}

/* Index at `position`, from the front; -1: there is none. */
static __device__ __forceinline__ int64_t index_at(const Indices &x, int64_t position, int64_t dim,
                                                   bool tell)
{
    int64_t v = load_int(x.at, x.type, position);
    if (v >= -dim && v < dim) return v < 0 ? v + dim : v;
    if (tell) note_fault(x.fault, x.step, 1, position, v, -dim, dim);
    return -1;
}

/* out[o, i, u] = data[o, indices[i], u], u counting pieces; I: uint32_t below 2^31 pieces. */
template <typename T, typename I> __global__ void
k_gather_rows(const T *x, Indices idx, T *y, int64_t total, I n, int64_t dim, I pieces)
{
    for (int64_t i = grid_begin(); i < total; i += grid_step()) {
        I row = (I)i / pieces, u = (I)i - row * pieces, o = row / n, at = row - o * n;
        int64_t from = index_at(idx, at, dim, u == 0 && o == 0);
        T v = {};
        if (from >= 0) v = x[((int64_t)o * dim + from) * pieces + u];
        y[i] = v;
    }
}

/* Pieces of up to 16 bytes for rows of `bytes` that begin at these places. */
static int piece_size(size_t bytes, const void *a, const void *b)
{
    uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)bytes;
    for (int size = 16; size > 1; size /= 2)
        if ((all & (uintptr_t)(size - 1)) == 0) return size;
    return 1;
}

template <typename F> static void with_piece(int size, F f)
{
    if (size == 16) f(Pack<uint64_t, 2>{});
    else with_size((size_t)size, f);
}

static mpr_status k_gather(const KernelCall *c)
{
    const AxisParams *p = (const AxisParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int axis = axis_of(p->axis, x->rank);
    int64_t n = c->in[1].n, dim = x->dims[axis];
    size_t bytes = (size_t)span_of(x, axis + 1, x->rank) * mpri_dtype_size(x->dtype);
    if (!y->n) return MPR_OK;
    int size = piece_size(bytes, x->data, y->data);
    int64_t pieces = (int64_t)bytes / size, total = span_of(x, 0, axis) * n * pieces;
    with_piece(size, [&](auto piece) {
        typedef decltype(piece) T;
        if (total < INT32_MAX)
            MPRI_LAUNCH((k_gather_rows<T, uint32_t>), blocks_for(total, THREADS), THREADS, 0,
                        c->queue, (const T *)x->data, indices_of(c), (T *)y->data, total,
                        (uint32_t)n, dim, (uint32_t)pieces);
        else
            MPRI_LAUNCH((k_gather_rows<T, uint64_t>), blocks_for(total, THREADS), THREADS, 0,
                        c->queue, (const T *)x->data, indices_of(c), (T *)y->data, total,
                        (uint64_t)n, dim, (uint64_t)pieces);
    });
    return MPR_OK;
}

static const char *refuse_gather(const KernelSig *s)
{
    return cuda_index(s->in[1].dtype) ? NULL : "indices are int32 or int64";
}

/* ---- gradient of the table ---- */

typedef struct TableGrad {
    const void *dy;
    int type;
    const uint64_t *sorted; /* index << 32 | position; indices that name no row are `dim` */
    int64_t n, dim, inner, outer;
    float *dx;
} TableGrad;

__global__ void k_index_keys(Indices idx, int64_t n, int64_t dim, uint64_t *keys)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t v = index_at(idx, i, dim, true);
        keys[i] = (uint64_t)(v < 0 ? dim : v) << 32 | (uint64_t)i;
    }
}

static __device__ __forceinline__ int64_t row_of(const TableGrad &g, int64_t j)
{
    return (int64_t)(g.sorted[j] >> 32);
}
static __device__ __forceinline__ int64_t position_of(const TableGrad &g, int64_t j)
{
    return (int64_t)(uint32_t)g.sorted[j];
}
static __device__ __forceinline__ bool is_long(const TableGrad &g, int64_t first, int64_t row)
{
    return first + SHORT < g.n && row_of(g, first + SHORT) == row;
}

/* A block per pair, those that do not begin a run have nothing to do. */
__global__ void k_table_short(TableGrad g)
{
    for (int64_t j = blockIdx.x; j < g.n; j += gridDim.x) {
        int64_t row = row_of(g, j);
        if (row == g.dim || (j > 0 && row_of(g, j - 1) == row) || is_long(g, j, row)) continue;
        for (int64_t c = threadIdx.x; c < g.outer * g.inner; c += blockDim.x) {
            int64_t o = c / g.inner, r = c - o * g.inner;
            float sum = 0;
            for (int64_t k = j; k < g.n && row_of(g, k) == row; k++)
                sum += load_float(g.dy, g.type, (o * g.n + position_of(g, k)) * g.inner + r);
            g.dx[(o * g.dim + row) * g.inner + r] = sum;
        }
    }
}

/* Block x looks at pair 32 x: a long run contains one such pair at least, the first of them owns
 * it. */
__global__ void k_table_long(TableGrad g, int64_t chunks_per_row, int64_t chunks)
{
    MPRI_SHARED(float, stage, STAGE_ROWS * STAGE_COLUMNS);
    int64_t first = (int64_t)blockIdx.x * SHORT, row = row_of(g, first);
    if (row == g.dim || (first > 0 && row_of(g, first - SHORT) == row)) return;
    while (first > 0 && row_of(g, first - 1) == row) first--;
    if (!is_long(g, first, row)) return;
    int64_t end = first, high = g.n;
    while (end < high) {
        int64_t middle = (end + high) / 2;
        if (row_of(g, middle) <= row) end = middle + 1;
        else high = middle;
    }
    int lane = threadIdx.x % STAGE_COLUMNS, warp = threadIdx.x / STAGE_COLUMNS;
    int warps = blockDim.x / STAGE_COLUMNS;
    for (int64_t chunk = blockIdx.y; chunk < chunks; chunk += gridDim.y) {
        int64_t o = chunk / chunks_per_row, r = chunk % chunks_per_row * STAGE_COLUMNS + lane;
        float sum = 0;
        for (int64_t base = first; base < end; base += STAGE_ROWS) {
            int rows = end - base < STAGE_ROWS ? (int)(end - base) : (int)STAGE_ROWS;
            for (int k = warp; k < rows; k += warps)
                if (r < g.inner)
                    stage[k * STAGE_COLUMNS + lane] = load_float(
                        g.dy, g.type, (o * g.n + position_of(g, base + k)) * g.inner + r);
            __syncthreads();
            if (warp == 0 && r < g.inner)
                for (int k = 0; k < rows; k++) sum += stage[k * STAGE_COLUMNS + lane];
            __syncthreads();
        }
        if (warp == 0 && r < g.inner) g.dx[(o * g.dim + row) * g.inner + r] = sum;
    }
}

static mpr_status k_gather_grad(const KernelCall *c)
{
    const GatherGradParams *p = (const GatherGradParams *)c->params;
    const Tensor *dy = &c->in[0], *idx = &c->in[1], *dx = &c->out[0];
    int axis = axis_of(p->axis, dx->rank);
    uint64_t *keys = (uint64_t *)c->workspace;
    TableGrad g = {dy->data,
                   (int)dy->dtype,
                   NULL,
                   idx->n,
                   dx->dims[axis],
                   span_of(dx, axis + 1, dx->rank),
                   span_of(dx, 0, axis),
                   (float *)dx->data};
    move_zero(dx, c->queue);
    if (!idx->n) return MPR_OK;
    MPRI_LAUNCH(k_index_keys, blocks_for(g.n, THREADS), THREADS, 0, c->queue, indices_of(c), g.n,
                g.dim, keys);
    if (!dy->n) return MPR_OK;
    g.sorted = mpri_cuda_sort(keys, keys + g.n, g.n, 1, c->queue);
    unsigned threads = g.outer * g.inner <= 32 ? 32 : g.outer * g.inner <= 128 ? 128 : THREADS;
    MPRI_LAUNCH(k_table_short, blocks_for(g.n, 1), threads, 0, c->queue, g);
    if (g.n > SHORT) {
        int64_t chunks_per_row = (g.inner + STAGE_COLUMNS - 1) / STAGE_COLUMNS,
                chunks = chunks_per_row * g.outer;
        dim3 grid((unsigned)((g.n + SHORT - 1) / SHORT), (unsigned)(chunks < 4096 ? chunks : 4096));
        MPRI_LAUNCH(k_table_long, grid, THREADS, 0, c->queue, g, chunks_per_row, chunks);
    }
    return MPR_OK;
}

static const char *refuse_gather_grad(const KernelSig *s)
{
    if (!cuda_float(s->in[0].dtype) || s->out[0].dtype != MPR_FLOAT32) return CUDA_NOT_FLOAT;
    if (s->in[1].n >= INT32_MAX || s->out[0].n / 2 >= INT32_MAX) return CUDA_TOO_LARGE;
    return refuse_gather(s);
}

static size_t gather_grad_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return 2 * sizeof(uint64_t) * (size_t)s->in[1].n;
}

/* ---- single elements and coordinates ---- */

typedef struct ElementWalk {
    int rank, axis;
    int64_t dims[MPRI_TENSOR_RANK], stride[MPRI_TENSOR_RANK]; /* of the result; of data */
    int64_t dim;                                              /* of the axis */
} ElementWalk;

template <typename T>
__global__ void k_elements(const T *x, Indices idx, T *y, int64_t n, ElementWalk w)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t index = index_at(idx, i, w.dim, true), from = 0, rest = i;
        for (int k = w.rank - 1; k >= 0; k--) {
            int64_t q = rest / w.dims[k];
            from += (k == w.axis ? index : rest - q * w.dims[k]) * w.stride[k];
            rest = q;
        }
        y[i] = index < 0 ? (T)0 : x[from];
    }
}

static mpr_status k_gather_elements(const KernelCall *c)
{
    const AxisParams *p = (const AxisParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    ElementWalk w = {};
    if (!y->n) return MPR_OK;
    w.rank = y->rank;
    w.axis = axis_of(p->axis, x->rank);
    w.dim = x->dims[w.axis];
    for (int k = 0; k < w.rank; k++) {
        w.dims[k] = y->dims[k];
        w.stride[k] = span_of(x, k + 1, x->rank);
    }
    with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_elements<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue,
                    (const T *)x->data, indices_of(c), (T *)y->data, y->n, w);
    });
    return MPR_OK;
}

typedef struct Coordinates { /* `depth` indices each, behind a shared batch number */
    int depth;
    int64_t per_batch, pieces;
    int64_t dims[MPRI_TENSOR_RANK];
} Coordinates;

template <typename T>
__global__ void k_coordinates(const T *x, Indices idx, T *y, int64_t total, Coordinates d)
{
    for (int64_t i = grid_begin(); i < total; i += grid_step()) {
        int64_t row = i / d.pieces, u = i - row * d.pieces, from = row / d.per_batch;
        bool here = true;
        for (int k = 0; k < d.depth; k++) {
            int64_t v = index_at(idx, row * d.depth + k, d.dims[k], u == 0);
            here = here && v >= 0;
            from = from * d.dims[k] + v;
        }
        T v = {};
        if (here) v = x[from * d.pieces + u];
        y[i] = v;
    }
}

static mpr_status k_gather_nd(const KernelCall *c)
{
    const GatherNDParams *p = (const GatherNDParams *)c->params;
    const Tensor *x = &c->in[0], *idx = &c->in[1], *y = &c->out[0];
    int batch = (int)p->batch_dims;
    Coordinates d = {};
    if (!y->n) return MPR_OK;
    d.depth = (int)idx->dims[idx->rank - 1];
    d.per_batch = span_of(idx, batch, idx->rank - 1);
    for (int k = 0; k < d.depth; k++) d.dims[k] = x->dims[batch + k];
    size_t bytes = (size_t)span_of(x, batch + d.depth, x->rank) * mpri_dtype_size(x->dtype);
    int size = piece_size(bytes, x->data, y->data);
    d.pieces = (int64_t)bytes / size;
    int64_t total = span_of(idx, 0, idx->rank - 1) * d.pieces;
    with_piece(size, [&](auto piece) {
        typedef decltype(piece) T;
        MPRI_LAUNCH(k_coordinates<T>, blocks_for(total, THREADS), THREADS, 0, c->queue,
                    (const T *)x->data, indices_of(c), (T *)y->data, total, d);
    });
    return MPR_OK;
}

static const KernelRow rows[] = {
    CUDA_ROW(Gather, "gather", k_gather, .refuse = refuse_gather),
    CUDA_ROW(GatherGrad, "gathergrad", k_gather_grad, .refuse = refuse_gather_grad,
             .workspace = gather_grad_bytes),
    CUDA_ROW(GatherElements, "gatherelements", k_gather_elements, .refuse = refuse_gather),
    CUDA_ROW(GatherND, "gathernd", k_gather_nd, .refuse = refuse_gather),
};
extern "C" const KernelTable mpri_cuda_index = CUDA_TABLE(rows);
