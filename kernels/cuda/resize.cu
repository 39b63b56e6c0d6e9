/* Resize, Upsample and the gradient. Every resized axis has a table: for an output coordinate the first input
 * coordinate and a row of weights, as kernels/ref/resize.c defines them; positions outside read the edge. The
 * tables are made on the device in every step (one thread per row; a few thousand entries), from factors that
 * are constants.
 *
 * Forward: a thread per output goes over the product of at most three rows of weights. Backward: one axis after
 * the other in float32, a thread per result, which gathers the outputs whose row meets it; their range was found
 * beforehand, so nothing is added by atomics. Weights of 0 are left out: 0 * inf is no part of a sum.
 * Traffic: input from the cache, output once; backward one float32 tensor per axis but the last. */
#include "kernels/cuda/windows.cuh"

#include <math.h>

extern "C" {
#include "runtime/op/resize.h"
}

enum { RESIZE_THREADS = 256, RESIZED = 3 };

enum Way { /* how outputs map to inputs */
    HALF_PIXEL,
    PYTORCH_HALF_PIXEL,
    ALIGN_CORNERS,
    ASYMMETRIC,
    TF_HALF_PIXEL_FOR_NN,
    HALF_PIXEL_SYMMETRIC,
    CROP
};
enum Nearest { ROUND_PREFER_FLOOR, ROUND_PREFER_CEIL, FLOOR, CEIL };

typedef struct Axis {
    int in, out, width; /* width: weights of a row */
    int way, nearest;   /* nearest < 0: by weights */
    int cubic, antialias, exclude_outside;
    double scale, roi0, roi1, cubic_a;
    int *first;         /* [out]; -1: extrapolated. NULL: the axis stays as it is */
    float *weight;      /* [out][width] */
    int *range;         /* [in][2] first and last output that may meet an input; backward */
} Axis;

/* ---- tables ---- */

static __device__ double source(const Axis &a, int o)
{
    double in = a.in, length = in * a.scale, x = o, half = (x + 0.5) / a.scale - 0.5;
    switch (a.way) {
    case HALF_PIXEL: return half;
    case PYTORCH_HALF_PIXEL: return a.out > 1 ? half : 0;
    case ALIGN_CORNERS: return length == 1 ? 0 : x * (in - 1) / (length - 1);
    case ASYMMETRIC: return x / a.scale;
    case TF_HALF_PIXEL_FOR_NN: return (x + 0.5) / a.scale;
    case HALF_PIXEL_SYMMETRIC: return in / 2 * (1 - (double)a.out / length) + half;
    }
    if (a.out <= 1) return 0.5 * (a.roi0 + a.roi1) * (in - 1);
    return a.roi0 * (in - 1) + x * (a.roi1 - a.roi0) * (in - 1) / (double)(a.out - 1);
}

static __device__ double nearest(int how, double x)
{
    if (how == ROUND_PREFER_FLOOR) return ceil(x - 0.5);
    if (how == ROUND_PREFER_CEIL) return floor(x + 0.5);
    return how == FLOOR ? floor(x) : ceil(x);
}

/* Weight of an element at distance t: a triangle, or the cubic of Keys with its free coefficient. */
static __device__ double kernel_value(int cubic, double a, double t)
{
    t = fabs(t);
    if (!cubic) return t < 1 ? 1 - t : 0;
    if (t <= 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? ((a * t - 5 * a) * t + 8 * a) * t - 4 * a : 0;
}

static __device__ int clamp_to(double v, int n)
{
    return v < 0 ? 0 : v > (double)(n - 1) ? n - 1 : (int)v;
}

static __device__ void fill_row(const Axis &a, int o, double x)
{
    float *weight = a.weight + (int64_t)o * a.width;
    double stretch = a.antialias && a.scale < 1 ? 1 / a.scale : 1, support = (a.cubic ? 2 : 1) * stretch;
    double low = stretch > 1 ? floor(x - support) + 1 : floor(x) - (a.cubic ? 1 : 0);
    double high = stretch > 1 ? ceil(x + support) : low + (a.cubic ? 4 : 2), total = 0;
    int first = clamp_to(low, a.in);
    if (first > a.in - a.width) first = a.in - a.width;
    a.first[o] = first;
    for (int j = 0; j < a.width; j++) weight[j] = 0;
    for (int turn = 0; turn < 2; turn++) /* their sum, then their shares of it */
        for (double k = low; k < high; k++) {
            if (a.exclude_outside && (k < 0 || k > (double)(a.in - 1))) continue;
            double v = kernel_value(a.cubic, a.cubic_a, (k - x) / stretch);
            if (turn == 0) total += v;
            else weight[clamp_to(k, a.in) - first] += (float)(v / total);
        }
}

__global__ void k_table(Axis a)
{
    for (int64_t o = grid_begin(); o < a.out; o += grid_step()) {
        double x = source(a, (int)o);
        if (a.way == CROP && (x < 0 || x > (double)(a.in - 1))) {
            a.first[o] = -1;
        } else if (a.nearest < 0) {
            fill_row(a, (int)o, x);
        } else {
            a.first[o] = clamp_to(nearest(a.nearest, x), a.in);
            a.weight[o] = 1;
        }
    }
}

__global__ void k_ranges(Axis a)
{
    for (int64_t i = grid_begin(); i < a.in; i += grid_step()) {
        int low = a.out, high = -1;
        for (int o = 0; o < a.out; o++) {
            int first = a.first[o];
            if (first < 0 || i < first || i >= first + a.width) continue;
            if (o < low) low = o;
            high = o;
        }
        a.range[2 * i] = low;
        a.range[2 * i + 1] = high;
    }
}

/* ---- forward ---- */

typedef struct Resized { /* one axis in the tensors */
    Axis a;
    Divider by_out, by_step; /* coordinate of output i: i / step % out */
    int in_step;
} Resized;

typedef struct Resize {
    Resized r[RESIZED];
    int kept; /* runs of axes that stay, merged */
    Divider kept_by[MPRI_TENSOR_RANK], kept_step[MPRI_TENSOR_RANK];
    int kept_in[MPRI_TENSOR_RANK];
    float extrapolation;
} Resize;

static __device__ __forceinline__ int coordinate(const Divider &step, const Divider &size, uint32_t i)
{
    uint32_t rest, c;
    divide(size, divide(step, i, &rest), &c);
    return (int)c;
}

__global__ void k_resize(Resize s, const void *x, int tx, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t base = 0;
        int first[RESIZED];
        const float *weight[RESIZED];
        bool inside = true;
        for (int k = 0; k < s.kept; k++)
            base += (int64_t)coordinate(s.kept_step[k], s.kept_by[k], (uint32_t)i) * s.kept_in[k];
        for (int k = 0; k < RESIZED; k++) {
            const Axis &a = s.r[k].a;
            int o = a.first ? coordinate(s.r[k].by_step, s.r[k].by_out, (uint32_t)i) : 0;
            first[k] = a.first ? a.first[o] : 0;
            weight[k] = a.first ? a.weight + (int64_t)o * a.width : NULL;
            inside &= first[k] >= 0;
        }
        float sum = 0;
        for (int p = 0; inside && p < s.r[0].a.width; p++) {
            float wp = weight[0] ? weight[0][p] : 1.0f, sum_p = 0;
            if (wp == 0) continue;
            for (int q = 0; q < s.r[1].a.width; q++) {
                float wq = weight[1] ? weight[1][q] : 1.0f, sum_q = 0;
                if (wq == 0) continue;
                int64_t at = base + (int64_t)(first[0] + p) * s.r[0].in_step +
                             (int64_t)(first[1] + q) * s.r[1].in_step + (int64_t)first[2] * s.r[2].in_step;
                for (int r = 0; r < s.r[2].a.width; r++) {
                    float wr = weight[2] ? weight[2][r] : 1.0f;
                    if (wr != 0) sum_q += wr * load_float(x, tx, at + (int64_t)r * s.r[2].in_step);
                }
                sum_p += wq * sum_q;
            }
            sum += wp * sum_p;
        }
        store_float(y, ty, i, inside ? sum : s.extrapolation);
    }
}

/* ---- backward ---- */

/* [outer, out, inner] -> [outer, in, inner]; an axis without a table is copied. */
__global__ void k_resize_back(Axis a, Divider by_inner, Divider by_in, const void *dy, int td, void *dx,
                              int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t inner, p;
        int64_t outer = divide(by_in, divide(by_inner, (uint32_t)i, &inner), &p);
        float sum = 0;
        if (!a.first) {
            sum = load_float(dy, td, i);
        } else {
            for (int o = a.range[2 * p], last = a.range[2 * p + 1]; o <= last; o++) {
                int j = (int)p - a.first[o];
                if (a.first[o] < 0 || j < 0 || j >= a.width) continue;
                float w = a.weight[(int64_t)o * a.width + j];
                if (w != 0) sum += w * load_float(dy, td, (outer * a.out + o) * by_inner.d + inner);
            }
        }
        store_float(dx, to, i, sum);
    }
}

/* ---- host side ---- */

static int way_of(const char *mode)
{
    static const char *const names[] = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
                                        "tf_half_pixel_for_nn", "half_pixel_symmetric"};
    for (int k = 0; k < CROP; k++)
        if (strcmp(mode, names[k]) == 0) return k;
    return CROP;
}
static int nearest_of(const char *mode)
{
    static const char *const names[] = {"round_prefer_floor", "round_prefer_ceil", "floor"};
    for (int k = 0; k < CEIL; k++)
        if (strcmp(mode, names[k]) == 0) return k;
    return CEIL;
}

static int scales_input(int op) { return op == OP_Upsample ? 1 : 2; }

static const Tensor *given(const KernelSig *s, int k)
{
    return k < s->n_in && mpri_tensor_here(&s->in[k]) && s->in[k].n > 0 ? &s->in[k] : NULL;
}

typedef struct Plan {
    int n; /* resized axes, in the order of the tensor */
    int dim[MPRI_TENSOR_RANK];
    Axis axis[MPRI_TENSOR_RANK];
} Plan;

/* Entry k of n: factor and region of its axis. */
static void factor_of(const KernelSig *s, const Tensor *x, int n, int k, Axis *a)
{
    const ResizeParams *p = (const ResizeParams *)s->params;
    int at = scales_input(s->op);
    const Tensor *roi = at == 2 ? given(s, 1) : NULL, *sizes = at == 2 ? given(s, 3) : NULL;
    int64_t want[MPRI_TENSOR_RANK];
    a->roi0 = roi ? mpri_load_f64(roi->dtype, roi->host, k) : 0;
    a->roi1 = roi ? mpri_load_f64(roi->dtype, roi->host, k + n) : 1;
    if (!sizes) {
        a->scale = mpri_load_f64(s->in[at].dtype, s->in[at].host, k);
        return;
    }
    for (int i = 0; i < n; i++) want[i] = mpri_load_i64(sizes->dtype, sizes->host, i);
    a->scale = mpri_resize_factor(p, n, want, k, x->dims, x->rank);
}

static int width_of(const ResizeParams *p, const Axis &a)
{
    int width = strcmp(p->mode, "cubic") == 0 ? 4 : 2;
    if (strcmp(p->mode, "nearest") == 0) return 1;
    if (p->antialias && a.scale < 1) {
        double wide = ceil(width / a.scale) + 2;
        width = wide < a.in ? (int)wide : a.in;
    }
    return width < a.in ? width : a.in;
}

static Plan plan_of(const KernelSig *s, const Tensor *x, const Tensor *y)
{
    const ResizeParams *p = (const ResizeParams *)s->params;
    Plan plan = {};
    Axis found[MPRI_TENSOR_RANK] = {};
    int n = p->axes.n ? (int)p->axes.n : x->rank;
    for (int k = 0; k < n; k++) {
        int d = mpri_resize_axis(p, k, x->rank);
        Axis a = {};
        a.in = (int)x->dims[d], a.out = (int)y->dims[d];
        a.way = way_of(p->coordinate_transformation_mode);
        a.nearest = strcmp(p->mode, "nearest") == 0 ? nearest_of(p->nearest_mode) : -1;
        a.cubic = strcmp(p->mode, "cubic") == 0, a.cubic_a = (double)p->cubic_coeff_a;
        a.antialias = p->antialias != 0, a.exclude_outside = p->exclude_outside != 0;
        factor_of(s, x, n, k, &a);
        a.width = width_of(p, a);
        bool stays = a.in == a.out && a.scale == 1 && a.way != CROP && a.way != TF_HALF_PIXEL_FOR_NN;
        if (!stays) found[d] = a;
    }
    for (int d = 0; d < x->rank; d++)
        if (found[d].width) {
            plan.dim[plan.n] = d;
            plan.axis[plan.n++] = found[d];
        }
    return plan;
}

static size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Places the tables at `room`; returns their bytes. */
static size_t place(Plan *plan, char *room, bool backward)
{
    size_t at = 0;
    for (int k = 0; k < plan->n; k++) {
        Axis *a = &plan->axis[k];
        a->weight = (float *)(room + at);
        at += aligned((size_t)a->out * (size_t)a->width * sizeof(float));
        a->first = (int *)(room + at);
        at += aligned((size_t)a->out * sizeof(int));
        a->range = (int *)(room + at);
        at += backward ? aligned((size_t)a->in * 2 * sizeof(int)) : 0;
    }
    return at;
}

static void make_tables(const KernelCall *c, const Plan &plan, bool backward)
{
    for (int k = 0; k < plan.n; k++) {
        const Axis &a = plan.axis[k];
        MPRI_LAUNCH(k_table, blocks_for(a.out, 64), 64, 0, c->queue, a);
        if (backward) MPRI_LAUNCH(k_ranges, blocks_for(a.in, 64), 64, 0, c->queue, a);
    }
}

static KernelSig sig_of(const KernelCall *c, int op)
{
    KernelSig s = {};
    s.op = op, s.params = c->params;
    s.n_in = c->n_in, s.n_out = c->n_out, s.in = c->in, s.out = c->out;
    return s;
}

/* Axes that stay, runs of neighbours as one. */
static void keep_axes(Resize *r, const Plan &plan, const Tensor *x, const Tensor *y)
{
    int64_t step = 1, in_step = 1, run = 1, run_step = 1, run_in = 1;
    int next = plan.n - 1;
    for (int d = y->rank - 1; d >= -1; d--) {
        bool resized = d >= 0 && next >= 0 && plan.dim[next] == d;
        if ((resized || d < 0) && run > 1) {
            r->kept_by[r->kept] = divider_of(run), r->kept_step[r->kept] = divider_of(run_step);
            r->kept_in[r->kept++] = (int)run_in;
        }
        if (d < 0) break;
        if (resized) {
            Resized *z = &r->r[next--];
            z->by_out = divider_of(y->dims[d]), z->by_step = divider_of(step);
            z->in_step = (int)in_step;
            run = 1, run_step = step * y->dims[d], run_in = in_step * x->dims[d];
        } else {
            run *= y->dims[d];
        }
        step *= y->dims[d], in_step *= x->dims[d];
    }
}

template <int OP> static mpr_status k_forward(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    KernelSig s = sig_of(c, OP);
    Resize r = {};
    if (!y->n || !x->n) return MPR_OK;
    Plan plan = plan_of(&s, x, y);
    place(&plan, (char *)c->workspace, false);
    make_tables(c, plan, false);
    keep_axes(&r, plan, x, y);
    for (int k = 0; k < RESIZED; k++)
        if (k < plan.n) r.r[k].a = plan.axis[k];
        else r.r[k].a.width = 1;
    r.extrapolation = ((const ResizeParams *)c->params)->extrapolation_value;
    MPRI_LAUNCH(k_resize, blocks_for(y->n, RESIZE_THREADS), RESIZE_THREADS, 0, c->queue, r, x->data,
                (int)x->dtype, y->data, (int)y->dtype, y->n);
    return MPR_OK;
}

/* Elements after the passes over the axes before `pass` is done: those of dy with inputs in place of outputs. */
static int64_t elements_after(const Plan &plan, int pass, const Tensor *dy)
{
    int64_t n = dy->n;
    for (int k = 0; k <= pass; k++) n = n / plan.axis[k].out * plan.axis[k].in;
    return n;
}
static size_t buffer_bytes(const Plan &plan, const Tensor *dy)
{
    int64_t most = 0;
    for (int k = 0; k + 1 < plan.n; k++)
        if (elements_after(plan, k, dy) > most) most = elements_after(plan, k, dy);
    return aligned((size_t)most * sizeof(float));
}

/* Inputs dy, roi, scales, sizes. */
static mpr_status k_backward(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *dx = &c->out[0];
    KernelSig s = sig_of(c, OP_ResizeGrad);
    if (!dx->n) return MPR_OK;
    if (!dy->n) {
        cudaMemsetAsync(dx->data, 0, (size_t)dx->n * mpri_dtype_size(dx->dtype), (cudaStream_t)c->queue);
        return MPR_OK;
    }
    Plan plan = plan_of(&s, dx, dy);
    char *buffers = (char *)c->workspace + place(&plan, (char *)c->workspace, true);
    const void *from = dy->data;
    int type = (int)dy->dtype, passes = plan.n ? plan.n : 1;
    make_tables(c, plan, true);
    for (int k = 0; k < passes; k++) {
        bool last = k + 1 == passes;
        int64_t inner = 1, n = plan.n ? elements_after(plan, k, dy) : dx->n;
        int to_type = last ? (int)dx->dtype : MPR_FLOAT32;
        void *to = last ? dx->data : buffers + (k & 1) * buffer_bytes(plan, dy);
        for (int d = plan.n ? plan.dim[k] + 1 : dy->rank; d < dy->rank; d++) inner *= dy->dims[d];
        MPRI_LAUNCH(k_resize_back, blocks_for(n, RESIZE_THREADS), RESIZE_THREADS, 0, c->queue,
                    plan.axis[k], divider_of(inner), divider_of(plan.n ? plan.axis[k].in : 1), from, type,
                    to, to_type, n);
        from = to, type = to_type;
    }
    return MPR_OK;
}

/* ---- rows ---- */

static const char *refuse_resize(const KernelSig *s)
{
    bool backward = s->op == OP_ResizeGrad;
    const Tensor *x = backward ? &s->out[0] : &s->in[0], *y = backward ? &s->in[0] : &s->out[0];
    if (!cuda_float(x->dtype) || !cuda_float(y->dtype)) return CUDA_NOT_FLOAT;
    for (int k = 1; k < s->n_in; k++)
        if (given(s, k) && !(s->const_in >> k & 1)) return "factors, sizes or region are no constants";
    if (x->n >= INT32_MAX || y->n >= INT32_MAX) return CUDA_TOO_LARGE;
    if (!x->n || !y->n) return NULL;
    Plan plan = plan_of(s, x, y);
    for (int k = 0; backward && k + 1 < plan.n; k++)
        if (elements_after(plan, k, y) >= INT32_MAX) return CUDA_TOO_LARGE;
    return plan.n > RESIZED ? "more than three resized axes" : NULL;
}

static size_t table_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    bool backward = s->op == OP_ResizeGrad;
    const Tensor *x = backward ? &s->out[0] : &s->in[0], *y = backward ? &s->in[0] : &s->out[0];
    if (!x->n || !y->n) return 0;
    Plan plan = plan_of(s, x, y);
    return place(&plan, NULL, backward) + (backward ? 2 * buffer_bytes(plan, y) : 0);
}

#define RESIZE_ROW(Op, lower, fn) CUDA_ROW(Op, lower, fn, .refuse = refuse_resize, .workspace = table_bytes)
static const KernelRow rows[] = {
    RESIZE_ROW(Resize, "resize", k_forward<OP_Resize>),
    RESIZE_ROW(Upsample, "upsample", k_forward<OP_Upsample>),
    RESIZE_ROW(ResizeGrad, "resizegrad", k_backward),
};
extern "C" const KernelTable mpri_cuda_resize = CUDA_TABLE(rows);
