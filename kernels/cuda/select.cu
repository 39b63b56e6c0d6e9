/* Elements picked by contents: Compress, NonZero, ReverseSequence. Sizes were counted by the shape
 * rules, kernels fill what fits. One block numbers what is picked: its threads count pieces of the
 * list, a scan over the pieces tells each where its first one goes, then they write in order.
 * Traffic: the list twice; rows of Compress are then moved by all blocks. 1024 threads count, 256 a
 * block move. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"

enum { THREADS = 256, COUNTERS = 1024 };

static __device__ __forceinline__ bool is_set(const void *p, int type, int64_t i)
{
    return type_is_float(type) ? load_f64(p, type, i) != 0 : load_i64(p, type, i) != 0;
}

/* found[k] = position of set element k, for k < room. One block. */
__global__ void k_find(const void *p, int type, int64_t n, int64_t *found, int64_t room)
{
    MPRI_SHARED(int64_t, count, COUNTERS);
    int64_t piece = (n + blockDim.x - 1) / blockDim.x, from = piece * threadIdx.x,
            to = from + piece, mine = 0;
    if (to > n) to = n;
    for (int64_t i = from; i < to; i++) mine += is_set(p, type, i);
    count[threadIdx.x] = mine;
    __syncthreads();
    for (int step = 1; step < COUNTERS; step *= 2) { /* Hillis and Steele 1986 */
        int64_t below = (int)threadIdx.x >= step ? count[threadIdx.x - step] : 0;
        __syncthreads();
        count[threadIdx.x] += below;
        __syncthreads();
    }
    int64_t at = count[threadIdx.x] - mine;
    for (int64_t i = from; i < to; i++)
        if (is_set(p, type, i) && at < room) found[at++] = i;
}

/* The list may be longer than what it picks from: what lies behind is not looked at. */
template <typename T> __global__ void k_pick(const T *x, T *y, const int64_t *found, int64_t total,
                                             int64_t n, int64_t picked, int64_t inner)
{
    for (int64_t i = grid_begin(); i < total; i += grid_step()) {
        int64_t line = i / inner, o = line / picked;
        y[i] = x[(o * n + found[line - o * picked]) * inner + (i - line * inner)];
    }
}

typedef struct Slices {
    int64_t outer, n, inner;
} Slices;

static Slices slices_of(const Tensor *x, int64_t axis)
{
    if (axis == MPRI_NO_AXIS) return Slices{1, x->n, 1};
    int a = axis_of(axis, x->rank);
    return Slices{span_of(x, 0, a), x->dims[a], span_of(x, a + 1, x->rank)};
}

static mpr_status k_compress(const KernelCall *c)
{
    const CompressParams *p = (const CompressParams *)c->params;
    const Tensor *x = &c->in[0], *condition = &c->in[1], *y = &c->out[0];
    Slices s = slices_of(x, p->axis), t = slices_of(y, p->axis);
    int64_t *found = (int64_t *)c->workspace, n = condition->n < s.n ? condition->n : s.n;
    if (!y->n) return MPR_OK;
    MPRI_LAUNCH(k_find, 1, COUNTERS, 0, c->queue, condition->data, (int)condition->dtype, n, found,
                t.n);
    with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_pick<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue, (const T *)x->data,
                    (T *)y->data, found, y->n, s.n, t.n, s.inner);
    });
    return MPR_OK;
}

static size_t found_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    const CompressParams *p = (const CompressParams *)s->params;
    return sizeof(int64_t) * (size_t)slices_of(&s->out[0], p->axis).n;
}

/* ---- NonZero: positions, then their coordinates ---- */

typedef struct Dims {
    int rank;
    int64_t dims[MPRI_TENSOR_RANK];
} Dims;

/* y is [rank, n]; its last row holds the positions, read before it is written. */
__global__ void k_coordinates(int64_t *y, int64_t n, Dims d)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t rest = y[(d.rank - 1) * n + i];
        for (int k = d.rank - 1; k >= 0; k--) {
            y[k * n + i] = rest % d.dims[k];
            rest /= d.dims[k];
        }
    }
}

static mpr_status k_non_zero(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Dims d = {};
    if (!y->n) return MPR_OK;
    d.rank = x->rank;
    for (int k = 0; k < x->rank; k++) d.dims[k] = x->dims[k];
    int64_t n = y->dims[1], *out = (int64_t *)y->data;
    MPRI_LAUNCH(k_find, 1, COUNTERS, 0, c->queue, x->data, (int)x->dtype, x->n,
                out + (d.rank - 1) * n, n);
    MPRI_LAUNCH(k_coordinates, blocks_for(n, THREADS), THREADS, 0, c->queue, out, n, d);
    return MPR_OK;
}

/* ---- ReverseSequence ---- */

typedef struct Sequences {
    const void *lengths;
    int type, batch_second, step;
    int64_t batch, time, inner, total;
    DeviceFault *fault;
} Sequences;

template <typename T> __global__ void k_reverse(const T *x, T *y, Sequences s)
{
    for (int64_t i = grid_begin(); i < s.total; i += grid_step()) {
        int64_t line = i / s.inner, r = i - line * s.inner;
        int64_t b = s.batch_second ? line % s.batch : line / s.time,
                t = s.batch_second ? line / s.batch : line % s.time,
                len = load_int(s.lengths, s.type, b);
        if (len < 0 || len > s.time) {
            if (t == 0 && r == 0) note_fault(s.fault, s.step, 1, b, len, 0, s.time + 1);
            len = 0;
        }
        int64_t from = t < len ? len - 1 - t : t;
        y[i] = x[(s.batch_second ? from * s.batch + b : b * s.time + from) * s.inner + r];
    }
}

static mpr_status k_reverse_sequence(const KernelCall *c)
{
    const ReverseSequenceParams *p = (const ReverseSequenceParams *)c->params;
    const Tensor *x = &c->in[0], *lengths = &c->in[1], *y = &c->out[0];
    int batch = axis_of(p->batch_axis, x->rank);
    Sequences s = {lengths->data, (int)lengths->dtype, batch, c->step_id, x->dims[batch],
                   x->dims[1 - batch], span_of(x, 2, x->rank), y->n, c->device_fault};
    if (!y->n) return MPR_OK;
    with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_reverse<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue,
                    (const T *)x->data, (T *)y->data, s);
    });
    return MPR_OK;
}

static const char *refuse_reverse(const KernelSig *s)
{
    return cuda_index(s->in[1].dtype) ? NULL : "lengths are int32 or int64";
}

static const KernelRow rows[] = {
    CUDA_ROW(Compress, "compress", k_compress, .workspace = found_bytes),
    CUDA_ROW(NonZero, "nonzero", k_non_zero),
    CUDA_ROW(ReverseSequence, "reversesequence", k_reverse_sequence, .refuse = refuse_reverse),
};
extern "C" const KernelTable mpri_cuda_select = CUDA_TABLE(rows);
