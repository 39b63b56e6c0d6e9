/* Operators that move elements without looking at them (any type, by element size) and those that
 * write shapes and constants. Moves are strides for the engine of move.cuh: a transposed tensor, a
 * slice, a part of a concatenation, a broadcast. Views run here only when they must be copies.
 * Traffic: what is moved, read and written once; SliceGrad writes zeros first. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"

#include <string.h>

enum { THREADS = 256 };

static mpr_status k_same_bytes(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n && y->data != x->data)
        cudaMemcpyAsync(y->data, x->data, (size_t)y->n * mpri_dtype_size(y->dtype),
                        cudaMemcpyDeviceToDevice, (cudaStream_t)c->queue);
    return MPR_OK;
}

static mpr_status k_transpose(const KernelCall *c)
{
    const TransposeParams *p = (const TransposeParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Move m = move_begin(y->data, x->data, y->dtype);
    for (int k = 0; k < y->rank; k++) {
        int axis = p->perm.n ? (int)p->perm.v[k] : y->rank - 1 - k;
        move_dim(&m, y->dims[k], span_of(x, axis + 1, x->rank), span_of(y, k + 1, y->rank));
    }
    mpri_cuda_move(&m, c->queue);
    return MPR_OK;
}

/* ---- parts along an axis ---- */

/* `outer` blocks of `count` elements, which begin a pitch apart on either side. */
static void move_blocks(const KernelCall *c, void *to, int64_t to_pitch, const void *from,
                        int64_t from_pitch, DType t, int64_t outer, int64_t count)
{
    Move m = move_begin(to, from, t);
    move_dim(&m, outer, from_pitch, to_pitch);
    move_dim(&m, count, 1, 1);
    mpri_cuda_move(&m, c->queue);
}

static mpr_status k_concat(const KernelCall *c)
{
    const AxisParams *p = (const AxisParams *)c->params;
    const Tensor *y = &c->out[0];
    int axis = axis_of(p->axis, y->rank), size = (int)mpri_dtype_size(y->dtype);
    int64_t outer = span_of(y, 0, axis), pitch = span_of(y, axis, y->rank), at = 0;
    for (int k = 0; k < c->n_in; k++) {
        const Tensor *x = input_of(c, k);
        if (!x || !x->n) continue;
        int64_t columns = span_of(x, axis, x->rank);
        move_blocks(c, (char *)y->data + at * size, pitch, x->data, columns, y->dtype, outer,
                    columns);
        at += columns;
    }
    return MPR_OK;
}

static mpr_status k_split(const KernelCall *c)
{
    const SplitParams *p = (const SplitParams *)c->params;
    const Tensor *x = &c->in[0];
    int axis = axis_of(p->axis, x->rank), size = (int)mpri_dtype_size(x->dtype);
    int64_t outer = span_of(x, 0, axis), pitch = span_of(x, axis, x->rank), at = 0;
    for (int k = 0; k < c->n_out; k++) {
        const Tensor *y = &c->out[k];
        int64_t columns = y->dims[axis] * span_of(x, axis + 1, x->rank);
        if (mpri_tensor_here(y) && y->n)
            move_blocks(c, y->data, columns, (const char *)x->data + at * size, pitch, x->dtype,
                        outer, columns);
        at += columns;
    }
    return MPR_OK;
}

/* ---- slices: start and step per axis of the large tensor, clamped as ONNX Slice says ---- */

typedef struct Window {
    int64_t start[MPRI_TENSOR_RANK], step[MPRI_TENSOR_RANK];
} Window;

static Window full_window(int rank)
{
    Window w = {};
    for (int k = 0; k < rank; k++) w.step[k] = 1;
    return w;
}

static void window_set(Window *w, int axis, int64_t dim, int64_t start, int64_t step)
{
    int64_t high = step < 0 ? dim - 1 : dim;
    if (start < 0) start += dim;
    w->start[axis] = start < 0 ? 0 : start > high ? high : start;
    w->step[axis] = step;
}

/* The move between the small tensor and its place in the large one. */
static Move window_move(const Window *w, const Tensor *small, const Tensor *large, bool take)
{
    int64_t at = 0;
    for (int k = 0; k < large->rank; k++) at += w->start[k] * span_of(large, k + 1, large->rank);
    size_t offset = (size_t)at * mpri_dtype_size(large->dtype);
    Move m = take ? move_begin(small->data, (const char *)large->data + offset, small->dtype)
                  : move_begin((char *)large->data + offset, small->data, small->dtype);
    for (int k = 0; k < small->rank; k++) {
        int64_t here = w->step[k] * span_of(large, k + 1, large->rank),
                packed = span_of(small, k + 1, small->rank);
        move_dim(&m, small->dims[k], take ? here : packed, take ? packed : here);
    }
    return m;
}

static int64_t host_int(const Tensor *t, int64_t i) { return mpri_load_i64(t->dtype, t->host, i); }

/* Inputs data, starts, ends, axes (optional), steps (optional). The ends are already in the
 * output's shape. */
static mpr_status k_slice(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0], *axes = input_of(c, 3), *steps = input_of(c, 4);
    Window w = full_window(x->rank);
    if (!y->n) return MPR_OK;
    for (int64_t k = 0; k < c->in[1].n; k++) {
        int axis = axis_of(axes ? host_int(axes, k) : k, x->rank);
        window_set(&w, axis, x->dims[axis], host_int(&c->in[1], k), steps ? host_int(steps, k) : 1);
    }
    Move m = window_move(&w, y, x, true);
    mpri_cuda_move(&m, c->queue);
    return MPR_OK;
}

static const char *refuse_slice(const KernelSig *s)
{
    for (int k = 1; k < s->n_in; k++)
        if (k != 2 && mpri_tensor_here(&s->in[k]) && !(s->const_in >> k & 1))
            return "starts, axes and steps are no constants";
    return NULL;
}

static mpr_status k_slice_grad(const KernelCall *c)
{
    const SliceGradParams *p = (const SliceGradParams *)c->params;
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    Window w = full_window(dx->rank);
    for (int k = 0; k < p->starts.n; k++) {
        int axis = axis_of(p->axes.n ? p->axes.v[k] : k, dx->rank);
        window_set(&w, axis, dx->dims[axis], p->starts.v[k], p->steps.n ? p->steps.v[k] : 1);
    }
    if (dy->n != dx->n) move_zero(dx, c->queue);
    if (!dy->n) return MPR_OK;
    Move m = window_move(&w, dy, dx, false);
    mpri_cuda_move(&m, c->queue);
    return MPR_OK;
}

static mpr_status k_expand(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    Move m = move_begin(y->data, x->data, y->dtype);
    for (int o = 0, k = x->rank - y->rank; o < y->rank; o++, k++) {
        bool stays = k < 0 || x->dims[k] == 1;
        move_dim(&m, y->dims[o], stays ? 0 : span_of(x, k + 1, x->rank),
                 span_of(y, o + 1, y->rank));
    }
    mpri_cuda_move(&m, c->queue);
    return MPR_OK;
}

/* ---- triangles ---- */

template <typename T>
__global__ void k_triangle(const T *x, T *y, int64_t n, int64_t rows, int64_t cols, int upper,
                           const void *diagonal, int type)
{
    int64_t k = diagonal ? load_int(diagonal, type, 0) : 0;
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t line = i / cols, col = i - line * cols, row = line % rows;
        y[i] = (upper ? col - row >= k : col - row <= k) ? x[i] : (T)0;
    }
}

static mpr_status k_trilu(const KernelCall *c)
{
    const TriluParams *p = (const TriluParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0], *k = input_of(c, 1);
    if (!y->n) return MPR_OK;
    with_size(mpri_dtype_size(x->dtype), [&](auto zero) {
        typedef decltype(zero) T;
        MPRI_LAUNCH(k_triangle<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue,
                    (const T *)x->data, (T *)y->data, y->n, x->dims[x->rank - 2],
                    x->dims[x->rank - 1], (int)(p->upper != 0), k ? k->data : NULL,
                    k ? (int)k->dtype : 0);
    });
    return MPR_OK;
}

/* ---- shapes and constants ---- */

template <typename T> __global__ void k_fill(T *y, int64_t n, T v)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) y[i] = v;
}

/* A one-element tensor attribute; f32 zero when it is left out. */
static mpr_status k_constant_of_shape(const KernelCall *c)
{
    const ConstantOfShapeParams *p = (const ConstantOfShapeParams *)c->params;
    const Tensor *y = &c->out[0];
    if (!p->value.data) {
        move_zero(y, c->queue);
        return MPR_OK;
    }
    if (!y->n) return MPR_OK;
    with_size(mpri_dtype_size(y->dtype), [&](auto v) {
        typedef decltype(v) T;
        memcpy(&v, p->value.data, sizeof v);
        MPRI_LAUNCH(k_fill<T>, blocks_for(y->n, THREADS), THREADS, 0, c->queue, (T *)y->data, y->n,
                    v);
    });
    return MPR_OK;
}

typedef struct Numbers {
    int64_t v[MPRI_TENSOR_RANK];
} Numbers;

__global__ void k_numbers(int64_t *y, int n, Numbers numbers)
{
    for (int k = 0; k < MPRI_TENSOR_RANK; k++) /* the parameter is read at fixed places only */
        if (k == (int)threadIdx.x && k < n) y[k] = numbers.v[k];
}

static mpr_status k_shape(const KernelCall *c)
{
    const ShapeParams *p = (const ShapeParams *)c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t start = p->start < 0 ? p->start + x->rank : p->start;
    Numbers numbers = {};
    if (!y->n) return MPR_OK;
    if (start < 0) start = 0;
    for (int64_t k = 0; k < y->n; k++) numbers.v[k] = x->dims[start + k];
    MPRI_LAUNCH(k_numbers, 1, 32, 0, c->queue, (int64_t *)y->data, (int)y->n, numbers);
    return MPR_OK;
}

static mpr_status k_size(const KernelCall *c)
{
    Numbers numbers = {{c->in[0].n}};
    MPRI_LAUNCH(k_numbers, 1, 32, 0, c->queue, (int64_t *)c->out[0].data, 1, numbers);
    return MPR_OK;
}

/* start + i * delta */
__global__ void k_progression(void *y, int type, int64_t n, const void *start, const void *delta)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step())
        if (type_is_float(type))
            store_f64(y, type, i, load_f64(start, type, 0) + (double)i * load_f64(delta, type, 0));
        else
            store_i64(y, type, i, (int64_t)((uint64_t)load_i64(start, type, 0) +
                                            (uint64_t)i * (uint64_t)load_i64(delta, type, 0)));
}

static mpr_status k_range(const KernelCall *c)
{
    const Tensor *y = &c->out[0];
    if (!y->n) return MPR_OK;
    MPRI_LAUNCH(k_progression, blocks_for(y->n, THREADS), THREADS, 0, c->queue, y->data,
                (int)y->dtype, y->n, c->in[0].data, c->in[2].data);
    return MPR_OK;
}

static const char *refuse_concat(const KernelSig *s)
{
    for (int k = 0; k < s->n_in; k++)
        if (mpri_tensor_here(&s->in[k]) && s->in[k].dtype != s->out[0].dtype)
            return "parts of several types";
    return NULL;
}

static const KernelRow rows[] = {
    CUDA_ROW(Reshape, "reshape", k_same_bytes),
    CUDA_ROW(Squeeze, "squeeze", k_same_bytes),
    CUDA_ROW(Unsqueeze, "unsqueeze", k_same_bytes),
    CUDA_ROW(Flatten, "flatten", k_same_bytes),
    CUDA_ROW(Transpose, "transpose", k_transpose),
    CUDA_ROW(Concat, "concat", k_concat, .refuse = refuse_concat),
    CUDA_ROW(Split, "split", k_split),
    CUDA_ROW(Slice, "slice", k_slice, .refuse = refuse_slice),
    CUDA_ROW(SliceGrad, "slicegrad", k_slice_grad),
    CUDA_ROW(Expand, "expand", k_expand),
    CUDA_ROW(Trilu, "trilu", k_trilu),
    CUDA_ROW(Shape, "shape", k_shape),
    CUDA_ROW(Size, "size", k_size),
    CUDA_ROW(ConstantOfShape, "constantofshape", k_constant_of_shape),
    CUDA_ROW(Range, "range", k_range),
};
extern "C" const KernelTable mpri_cuda_layout = CUDA_TABLE(rows);
