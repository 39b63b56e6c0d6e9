/* Scatters into a copy of data. The order of the updates counts: with "none" the last one of a
 * place wins, sums and products run in that order. So (place, update) pairs are sorted, and the
 * first pair of a place owns it: it walks its run and stores once, floats in double as the
 * reference kernels do. Traffic: data once, updates once, the pairs a few times. 256 threads a
 * block, one per element of a pair's slice.
 *
 * An index outside its axis is noted in the device's fault, its update is dropped. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"
#include "kernels/cuda/sort.cuh"

enum { THREADS = 256 };
enum Reduction { NONE, ADD, MUL, MAX, MIN };

static int reduction_of(const char *name)
{
    switch (name[1]) {
    case 'd': return ADD;
    case 'u': return MUL;
    case 'a': return MAX;
    case 'i': return MIN;
    default: return NONE;
    }
}

typedef struct Places {
    const void *at;
    int type, step;
    DeviceFault *fault;
    int depth; /* coordinates per update; 0: elements */
    int rank, axis;                                           /* elements: of the indices */
    int64_t dims[MPRI_TENSOR_RANK], stride[MPRI_TENSOR_RANK]; /* of the indices; of data */
    int64_t dim[MPRI_TENSOR_RANK];                            /* what index k is limited by */
    int64_t nowhere;                                          /* a place behind all others */
} Places;

static __device__ int64_t index_at(const Places &p, int64_t position, int64_t dim)
{
    int64_t v = load_int(p.at, p.type, position);
    if (v >= -dim && v < dim) return v < 0 ? v + dim : v;
    note_fault(p.fault, p.step, 1, position, v, -dim, dim);
    return -1;
}

__global__ void k_places(Places p, int64_t n, uint64_t *keys)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t at = 0, rest = i;
        bool here = true;
        if (p.depth) {
            for (int k = 0; k < p.depth; k++) {
                int64_t v = index_at(p, i * p.depth + k, p.dim[k]);
                here = here && v >= 0;
                at = at * p.dim[k] + v;
            }
        } else {
            int64_t index = index_at(p, i, p.dim[0]);
            here = index >= 0;
            for (int k = p.rank - 1; k >= 0; k--) {
                int64_t q = rest / p.dims[k];
                at += (k == p.axis ? index : rest - q * p.dims[k]) * p.stride[k];
                rest = q;
            }
        }
        keys[i] = (uint64_t)(here ? at : p.nowhere) << 32 | (uint64_t)i;
    }
}

static __device__ __forceinline__ int64_t place_of(uint64_t key) { return (int64_t)(key >> 32); }
static __device__ __forceinline__ int64_t update_of(uint64_t key) { return (int64_t)(uint32_t)key; }

/* The last pair of each run writes. */
template <typename T>
__global__ void k_last_wins(const uint64_t *sorted, int64_t n, int64_t slice, int64_t nowhere,
                            const T *updates, T *y)
{
    for (int64_t i = grid_begin(); i < n * slice; i += grid_step()) {
        int64_t j = i / slice, r = i - j * slice, place = place_of(sorted[j]);
        if (place == nowhere || (j + 1 < n && place_of(sorted[j + 1]) == place)) continue;
        y[place * slice + r] = updates[update_of(sorted[j]) * slice + r];
    }
}

static __device__ double join_float(int f, double a, double b)
{
    if (f == ADD) return a + b;
    if (f == MUL) return a * b;
    if (a != a || b != b) return NAN;
    return f == MAX ? fmax(a, b) : fmin(a, b);
}
static __device__ int64_t join_int(int f, int64_t a, int64_t b, bool is_unsigned)
{
    if (f == ADD) return (int64_t)((uint64_t)a + (uint64_t)b);
    if (f == MUL) return (int64_t)((uint64_t)a * (uint64_t)b);
    return less_i64(a, b, is_unsigned) == (f == MAX) ? b : a;
}

/* The first pair of each run walks it. */
__global__ void k_join_runs(const uint64_t *sorted, int64_t n, int64_t slice, int64_t nowhere,
                            const void *updates, void *y, int type, int f)
{
    for (int64_t i = grid_begin(); i < n * slice; i += grid_step()) {
        int64_t j = i / slice, r = i - j * slice, place = place_of(sorted[j]),
                at = place * slice + r;
        if (place == nowhere || (j > 0 && place_of(sorted[j - 1]) == place)) continue;
        if (type_is_float(type)) {
            double v = load_f64(y, type, at);
            for (int64_t k = j; k < n && place_of(sorted[k]) == place; k++)
                v = join_float(f, v, load_f64(updates, type, update_of(sorted[k]) * slice + r));
            store_f64(y, type, at, v);
        } else {
            int64_t v = load_i64(y, type, at);
            for (int64_t k = j; k < n && place_of(sorted[k]) == place; k++)
                v = join_int(f, v, load_i64(updates, type, update_of(sorted[k]) * slice + r),
                             type == MPR_UINT64);
            store_i64(y, type, at, v);
        }
    }
}

static void copy_data(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n && y->data != x->data)
        cudaMemcpyAsync(y->data, x->data, (size_t)y->n * mpri_dtype_size(y->dtype),
                        cudaMemcpyDeviceToDevice, (cudaStream_t)c->queue);
}

/* n updates of `slice` elements each. */
static mpr_status scatter(const KernelCall *c, const Places *p, int64_t n, int64_t slice,
                          const char *reduction)
{
    const Tensor *u = &c->in[2], *y = &c->out[0];
    uint64_t *keys = (uint64_t *)c->workspace;
    int f = reduction_of(reduction);
    copy_data(c);
    if (!n) return MPR_OK;
    MPRI_LAUNCH(k_places, blocks_for(n, THREADS), THREADS, 0, c->queue, *p, n, keys);
    if (!slice) return MPR_OK;
    const uint64_t *sorted = mpri_cuda_sort(keys, keys + n, n, 1, c->queue);
    unsigned blocks = blocks_for(n * slice, THREADS);
    if (f == NONE)
        with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
            typedef decltype(zero) T;
            MPRI_LAUNCH(k_last_wins<T>, blocks, THREADS, 0, c->queue, sorted, n, slice, p->nowhere,
                        (const T *)u->data, (T *)y->data);
        });
    else
        MPRI_LAUNCH(k_join_runs, blocks, THREADS, 0, c->queue, sorted, n, slice, p->nowhere,
                    u->data, y->data, (int)y->dtype, f);
    return MPR_OK;
}

static Places places_of(const KernelCall *c)
{
    Places p = {};
    p.at = c->in[1].data;
    p.type = (int)c->in[1].dtype;
    p.step = c->step_id;
    p.fault = c->device_fault;
    p.nowhere = c->out[0].n;
    return p;
}

static mpr_status k_scatter_elements(const KernelCall *c)
{
    const ScatterParams *s = (const ScatterParams *)c->params;
    const Tensor *idx = &c->in[1], *y = &c->out[0];
    Places p = places_of(c);
    p.rank = idx->rank;
    p.axis = axis_of(s->axis, y->rank);
    p.dim[0] = y->dims[p.axis];
    for (int k = 0; k < p.rank; k++) {
        p.dims[k] = idx->dims[k];
        p.stride[k] = span_of(y, k + 1, y->rank);
    }
    return scatter(c, &p, idx->n, 1, s->reduction);
}

static mpr_status k_scatter_nd(const KernelCall *c)
{
    const ScatterNDParams *s = (const ScatterNDParams *)c->params;
    const Tensor *idx = &c->in[1], *y = &c->out[0];
    Places p = places_of(c);
    p.depth = (int)idx->dims[idx->rank - 1];
    for (int k = 0; k < p.depth; k++) p.dim[k] = y->dims[k];
    return scatter(c, &p, span_of(idx, 0, idx->rank - 1), span_of(y, p.depth, y->rank),
                   s->reduction);
}

static const char *refuse_scatter(const KernelSig *s)
{
    if (!cuda_index(s->in[1].dtype)) return "indices are int32 or int64";
    if (s->in[2].dtype != s->out[0].dtype || s->in[0].dtype != s->out[0].dtype)
        return "data and updates of different types";
    return s->in[1].n < INT32_MAX && s->out[0].n < INT32_MAX ? NULL : CUDA_TOO_LARGE;
}

static size_t pair_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return 2 * sizeof(uint64_t) * (size_t)s->in[1].n;
}

/* ---- TensorScatter: a row of the update goes to where its index says; no two updates meet ---- */

typedef struct Rows {
    int64_t n, inner, room, per_row, total;
    int circular, type, step; /* type 0: all begin at 0 */
    const void *first;
    DeviceFault *fault;
} Rows;

template <typename T> __global__ void k_rows_at(const T *u, T *y, Rows s)
{
    for (int64_t i = grid_begin(); i < s.total; i += grid_step()) {
        int64_t line = i / s.inner, r = i - line * s.inner, o = line / s.n, j = line - o * s.n;
        int64_t row = o / s.per_row, at = s.type ? load_int(s.first, s.type, row) : 0;
        int64_t high = s.circular ? s.room : s.room - s.n + 1;
        if (at < 0 || at >= high) {
            if (r == 0 && j == 0 && o == row * s.per_row)
                note_fault(s.fault, s.step, 2, row, at, 0, high);
            continue;
        }
        y[(o * s.room + (at + j) % s.room) * s.inner + r] = u[i];
    }
}

static mpr_status k_tensor_scatter(const KernelCall *c)
{
    const TensorScatterParams *p = (const TensorScatterParams *)c->params;
    const Tensor *y = &c->out[0], *u = &c->in[1], *first = input_of(c, 2);
    int axis = axis_of(p->axis, y->rank);
    Rows s = {u->dims[axis],
              span_of(u, axis + 1, u->rank),
              y->dims[axis],
              span_of(u, 1, axis),
              u->n,
              p->mode[0] == 'c',
              first ? (int)first->dtype : 0,
              c->step_id,
              first ? first->data : NULL,
              c->device_fault};
    copy_data(c);
    if (!u->n) return MPR_OK;
    with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_rows_at<T>, blocks_for(u->n, THREADS), THREADS, 0, c->queue,
                    (const T *)u->data, (T *)y->data, s);
    });
    return MPR_OK;
}

static const char *refuse_tensor_scatter(const KernelSig *s)
{
    if (s->n_in > 2 && mpri_tensor_here(&s->in[2]) && !cuda_index(s->in[2].dtype))
        return "indices are int32 or int64";
    return s->in[1].dtype == s->out[0].dtype ? NULL : "cache and update of different types";
}

#define SCATTER_ROW(Op, lower, fn) \
    CUDA_ROW(Op, lower, fn, .refuse = refuse_scatter, .workspace = pair_bytes)
static const KernelRow rows[] = {
    SCATTER_ROW(Scatter, "scatter", k_scatter_elements),
    SCATTER_ROW(ScatterElements, "scatterelements", k_scatter_elements),
    SCATTER_ROW(ScatterND, "scatternd", k_scatter_nd),
    CUDA_ROW(TensorScatter, "tensorscatter", k_tensor_scatter, .refuse = refuse_tensor_scatter),
};
extern "C" const KernelTable mpri_cuda_scatter = CUDA_TABLE(rows);
