/* Operators that only move elements: any type, by element size. */
#include "kernels/ref/util.h"

static void copy(const KernelCall *c, int64_t to, int64_t from)
{
    size_t size = mpri_dtype_size(c->out[0].dtype);
    memcpy((char *)c->out[0].data + (size_t)to * size,
           (const char *)c->in[0].data + (size_t)from * size, size);
}

/* Reshape, Squeeze, Unsqueeze, Flatten: the same bytes under another shape. */
static mpr_status k_same_bytes(const KernelCall *c)
{
    if (c->out[0].n && c->out[0].data != c->in[0].data)
        memcpy(c->out[0].data, c->in[0].data,
               (size_t)c->out[0].n * mpri_dtype_size(c->out[0].dtype));
    return MPR_OK;
}

static mpr_status k_transpose(const KernelCall *c)
{
    const TransposeParams *p = c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t rest = i, from = 0;
        for (int k = y->rank - 1; k >= 0; k--) {
            int axis = p->perm.n ? (int)p->perm.v[k] : y->rank - 1 - k;
            from += rest % y->dims[k] * mpri_ref_span(x, axis + 1, x->rank);
            rest /= y->dims[k];
        }
        copy(c, i, from);
    }
    return MPR_OK;
}

/* Blocks of `bytes` between a packed side and a side with a larger pitch. */
static void copy_blocks(char *to, size_t to_pitch, const char *from, size_t from_pitch,
                        size_t bytes, int64_t count)
{
    for (int64_t i = 0; i < count && bytes; i++)
        memcpy(to + (size_t)i * to_pitch, from + (size_t)i * from_pitch, bytes);
}

static mpr_status k_concat(const KernelCall *c)
{
    const AxisParams *p = c->params;
    Tensor *y = &c->out[0];
    int axis = mpri_ref_axis(p->axis, y->rank);
    int64_t outer = mpri_ref_span(y, 0, axis);
    size_t size = mpri_dtype_size(y->dtype), pitch = (size_t)mpri_ref_span(y, axis, y->rank) * size,
           at = 0;
    for (int k = 0; k < c->n_in; k++) {
        const Tensor *x = &c->in[k];
        if (!mpri_tensor_here(x)) continue;
        size_t bytes = (size_t)mpri_ref_span(x, axis, x->rank) * size;
        if (x->dtype == y->dtype)
            copy_blocks((char *)y->data + at, pitch, x->data, bytes, bytes, outer);
        else
            for (int64_t i = 0; i < x->n; i++) {
                int64_t row = i / (int64_t)(bytes / size), col = i % (int64_t)(bytes / size);
                mpri_ref_store(y, row * (int64_t)(pitch / size) + (int64_t)(at / size) + col,
                               mpri_ref_load(x, i));
            }
        at += bytes;
    }
    return MPR_OK;
}

static mpr_status k_split(const KernelCall *c)
{
    const SplitParams *p = c->params;
    const Tensor *x = &c->in[0];
    int axis = mpri_ref_axis(p->axis, x->rank);
    int64_t outer = mpri_ref_span(x, 0, axis), inner = mpri_ref_span(x, axis + 1, x->rank);
    size_t size = mpri_dtype_size(x->dtype), pitch = (size_t)(x->dims[axis] * inner) * size, at = 0;
    for (int k = 0; k < c->n_out; k++) {
        Tensor *y = &c->out[k];
        size_t bytes = (size_t)(y->dims[axis] * inner) * size;
        if (mpri_tensor_here(y))
            copy_blocks(y->data, bytes, (const char *)x->data + at, pitch, bytes, outer);
        at += bytes;
    }
    return MPR_OK;
}

/* ---- slices: start and step per axis of the large tensor, clamped as ONNX Slice says ---- */

typedef struct Window {
    int64_t start[MPRI_TENSOR_RANK], step[MPRI_TENSOR_RANK];
} Window;

static Window full_window(int rank)
{
    Window w = {.step = {0}};
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

/* Flat position in the large tensor of element i of the small one. */
static int64_t window_at(const Window *w, const Tensor *small, const Tensor *large, int64_t i)
{
    int64_t at = 0, stride = 1;
    for (int k = small->rank - 1; k >= 0; k--) {
        at += (w->start[k] + i % small->dims[k] * w->step[k]) * stride;
        stride *= large->dims[k];
        i /= small->dims[k];
    }
    return at;
}

static int64_t int_at(const Tensor *t, int64_t i)
{
    return mpri_load_i64(t->dtype, t->data, i);
}

/* Inputs data, starts, ends, axes (optional), steps (optional). The ends are already in the
 * output's shape. */
static mpr_status k_slice(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    bool has_axes = c->n_in > 3 && mpri_tensor_here(&c->in[3]);
    bool has_steps = c->n_in > 4 && mpri_tensor_here(&c->in[4]);
    Window w = full_window(x->rank);
    for (int64_t k = 0; k < c->in[1].n; k++) {
        int axis = mpri_ref_axis(has_axes ? int_at(&c->in[3], k) : k, x->rank);
        window_set(&w, axis, x->dims[axis], int_at(&c->in[1], k),
                   has_steps ? int_at(&c->in[4], k) : 1);
    }
    for (int64_t i = 0; i < y->n; i++) copy(c, i, window_at(&w, y, x, i));
    return MPR_OK;
}

/* Zeros with dy placed where the slice took its elements from. */
static mpr_status k_slice_grad(const KernelCall *c)
{
    const SliceGradParams *p = c->params;
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    Window w = full_window(dx->rank);
    for (int64_t k = 0; k < p->starts.n; k++) {
        int axis = mpri_ref_axis(p->axes.n ? p->axes.v[k] : k, dx->rank);
        window_set(&w, axis, dx->dims[axis], p->starts.v[k], p->steps.n ? p->steps.v[k] : 1);
    }
    if (dx->n) memset(dx->data, 0, (size_t)dx->n * mpri_dtype_size(dx->dtype));
    for (int64_t i = 0; i < dy->n; i++) copy(c, window_at(&w, dy, dx, i), i);
    return MPR_OK;
}

static mpr_status k_expand(const KernelCall *c)
{
    for (int64_t i = 0; i < c->out[0].n; i++)
        copy(c, i, mpri_ref_broadcast(&c->in[0], &c->out[0], i));
    return MPR_OK;
}

/* ---- shapes and constants ---- */

static int64_t clamp_axis(int64_t axis, int rank)
{
    if (axis < 0) axis += rank;
    return axis < 0 ? 0 : axis > rank ? rank : axis;
}

static mpr_status k_shape(const KernelCall *c)
{
    const ShapeParams *p = c->params;
    int64_t start = clamp_axis(p->start, c->in[0].rank);
    for (int64_t i = 0; i < c->out[0].n; i++)
        mpri_store_i64(c->out[0].dtype, c->out[0].data, i, c->in[0].dims[start + i]);
    return MPR_OK;
}

static mpr_status k_size(const KernelCall *c)
{
    mpri_store_i64(c->out[0].dtype, c->out[0].data, 0, c->in[0].n);
    return MPR_OK;
}

/* A one-element tensor attribute; f32 zero when it is left out. */
static mpr_status k_constant_of_shape(const KernelCall *c)
{
    const ConstantOfShapeParams *p = c->params;
    size_t size = mpri_dtype_size(c->out[0].dtype);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        char *to = (char *)c->out[0].data + (size_t)i * size;
        if (p->value.data) memcpy(to, p->value.data, size);
        else memset(to, 0, size);
    }
    return MPR_OK;
}

/* Inputs start, limit, delta: start + i * delta. */
static mpr_status k_range(const KernelCall *c)
{
    Tensor *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++)
        if (mpri_dtype_is_float(y->dtype))
            mpri_ref_store(y, i,
                           mpri_ref_load(&c->in[0], 0) + (double)i * mpri_ref_load(&c->in[2], 0));
        else
            mpri_store_i64(y->dtype, y->data, i,
                           (int64_t)((uint64_t)int_at(&c->in[0], 0) +
                                     (uint64_t)i * (uint64_t)int_at(&c->in[2], 0)));
    return MPR_OK;
}

static mpr_status k_constant(const KernelCall *c)
{
    const ConstantParams *p = c->params;
    if (c->out[0].n)
        memcpy(c->out[0].data, p->value.data,
               (size_t)c->out[0].n * mpri_dtype_size(c->out[0].dtype));
    return MPR_OK;
}

static mpr_status k_trilu(const KernelCall *c)
{
    const TriluParams *p = c->params;
    const Tensor *x = &c->in[0];
    int64_t cols = x->dims[x->rank - 1], rows = x->dims[x->rank - 2];
    int64_t k = c->n_in > 1 && mpri_tensor_here(&c->in[1]) ? int_at(&c->in[1], 0) : 0;
    size_t size = mpri_dtype_size(x->dtype);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t row = i / cols % rows, col = i % cols;
        bool keep = p->upper ? col - row >= k : col - row <= k;
        if (!keep) memset((char *)c->out[0].data + (size_t)i * size, 0, size);
        else if (c->out[0].data != x->data) copy(c, i, i);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Reshape, "reshape", k_same_bytes),
    REF_ROW(Transpose, "transpose", k_transpose),
    REF_ROW(Concat, "concat", k_concat),
    REF_ROW(Split, "split", k_split),
    REF_ROW(Slice, "slice", k_slice),
    REF_ROW(SliceGrad, "slicegrad", k_slice_grad),
    REF_ROW(Squeeze, "squeeze", k_same_bytes),
    REF_ROW(Unsqueeze, "unsqueeze", k_same_bytes),
    REF_ROW(Flatten, "flatten", k_same_bytes),
    REF_ROW(Expand, "expand", k_expand),
    REF_ROW(Trilu, "trilu", k_trilu),
    REF_ROW(Shape, "shape", k_shape),
    REF_ROW(Size, "size", k_size),
    REF_ROW(ConstantOfShape, "constantofshape", k_constant_of_shape),
    REF_ROW(Range, "range", k_range),
    REF_ROW(Constant, "constant", k_constant),
};
const KernelTable mpri_ref_layout = REF_TABLE(rows);
