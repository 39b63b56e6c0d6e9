/* Resize and its gradient: every axis has a table of weights, and an output element is the sum over
 * the product of its axes' entries. Coordinates and weights follow the text of ONNX Resize-19; positions
 * outside read the edge.
 *
 * Trap: with antialias a window grows by the inverse factor, so a row of the table may be as long as
 * the input. */
#include "kernels/ref/util.h"
#include "runtime/op/resize.h"

typedef struct Axis {
    int64_t in, out, width; /* width: entries of a row of weights */
    int64_t *first;         /* [out] input position of the first weight; -1: extrapolated */
    double *weight;         /* [out][width] */
} Axis;

typedef struct Table {
    int rank;
    Axis axis[MPRI_TENSOR_RANK];
} Table;

static int scales_input(int op) { return op == OP_Upsample ? 1 : 2; }

static int64_t row_width(const ResizeParams *p, int64_t in)
{
    if (p->antialias || in < 4) return in;
    return strcmp(p->mode, "cubic") == 0 ? 4 : 2;
}

static size_t table_bytes(const ResizeParams *p, int rank, const int64_t *in, const int64_t *out)
{
    size_t bytes = 0;
    for (int a = 0; a < rank; a++)
        bytes += (size_t)out[a] * (sizeof(int64_t) + (size_t)row_width(p, in[a]) * sizeof(double));
    return bytes;
}

/* ---- one axis ---- */

typedef struct Way { /* how outputs of an axis map to inputs */
    double scale, roi0, roi1;
} Way;

static double source(const ResizeParams *p, const Axis *a, Way w, int64_t o)
{
    const char *mode = p->coordinate_transformation_mode;
    double in = (double)a->in, length = in * w.scale, x = (double)o;
    double half = (x + 0.5) / w.scale - 0.5;
    if (strcmp(mode, "half_pixel") == 0) return half;
    if (strcmp(mode, "pytorch_half_pixel") == 0) return a->out > 1 ? half : 0;
    if (strcmp(mode, "align_corners") == 0) return length == 1 ? 0 : x * (in - 1) / (length - 1);
    if (strcmp(mode, "asymmetric") == 0) return x / w.scale;
    if (strcmp(mode, "tf_half_pixel_for_nn") == 0) return (x + 0.5) / w.scale;
    if (strcmp(mode, "half_pixel_symmetric") == 0)
        return in / 2 * (1 - (double)a->out / length) + half;
    if (a->out <= 1) return 0.5 * (w.roi0 + w.roi1) * (in - 1);
    return w.roi0 * (in - 1) + x * (w.roi1 - w.roi0) * (in - 1) / (double)(a->out - 1);
}

static double nearest(const char *mode, double x)
{
    if (strcmp(mode, "round_prefer_floor") == 0) return ceil(x - 0.5);
    if (strcmp(mode, "round_prefer_ceil") == 0) return floor(x + 0.5);
    return strcmp(mode, "floor") == 0 ? floor(x) : ceil(x);
}

/* Weight of an element at distance t: a triangle, or the cubic of Keys with its free coefficient. */
static double kernel_value(bool cubic, double a, double t)
{
    t = fabs(t);
    if (!cubic) return t < 1 ? 1 - t : 0;
    if (t <= 1) return ((a + 2) * t - (a + 3)) * t * t + 1;
    return t < 2 ? ((a * t - 5 * a) * t + 8 * a) * t - 4 * a : 0;
}

static int64_t clamp(double v, int64_t n)
{
    return v < 0 ? 0 : v > (double)(n - 1) ? n - 1 : (int64_t)v;
}

/* Weights of the output around x; the window reaches `support` to both sides. */
static void fill_row(const ResizeParams *p, Axis *a, double scale, int64_t o, double x)
{
    double *weight = a->weight + o * a->width, total = 0;
    bool cubic = strcmp(p->mode, "cubic") == 0;
    double stretch = p->antialias && scale < 1 ? 1 / scale : 1, support = (cubic ? 2 : 1) * stretch;
    double low = stretch > 1 ? floor(x - support) + 1 : floor(x) - (cubic ? 1 : 0);
    double high = stretch > 1 ? ceil(x + support) : low + (cubic ? 4 : 2);
    for (int64_t j = 0; j < a->width; j++) weight[j] = 0;
    a->first[o] = clamp(low, a->in);
    if (a->first[o] > a->in - a->width) a->first[o] = a->in - a->width;
    for (double k = low; k < high; k++) {
        if (p->exclude_outside && (k < 0 || k > (double)(a->in - 1))) continue;
        double v = kernel_value(cubic, (double)p->cubic_coeff_a, (k - x) / stretch);
        total += v;
        weight[clamp(k, a->in) - a->first[o]] += v;
    }
    for (int64_t j = 0; j < a->width; j++) weight[j] /= total;
}

static void fill_axis(const ResizeParams *p, Axis *a, Way w)
{
    for (int64_t o = 0; o < a->out; o++) {
        double x = source(p, a, w, o);
        if (mpri_resize_crops(p) && (x < 0 || x > (double)(a->in - 1))) {
            a->first[o] = -1;
            continue;
        }
        if (strcmp(p->mode, "nearest") != 0) {
            fill_row(p, a, w.scale, o, x);
            continue;
        }
        a->first[o] = clamp(nearest(p->nearest_mode, x), a->in);
        a->weight[o * a->width] = 1;
    }
}

/* An axis that is not resized: itself. */
static void fill_identity(Axis *a)
{
    for (int64_t o = 0; o < a->out; o++) {
        a->first[o] = o;
        a->weight[o] = 1;
    }
}

/* ---- all axes ---- */

static const Tensor *given(const KernelCall *c, int k)
{
    return k < c->n_in && mpri_tensor_here(&c->in[k]) && c->in[k].n > 0 ? &c->in[k] : NULL;
}

static void way_of(const KernelCall *c, int scales, const Tensor *x, int n, int k, Way *w)
{
    const ResizeParams *p = c->params;
    const Tensor *roi = scales == 2 ? given(c, 1) : NULL, *sizes = scales == 2 ? given(c, 3) : NULL;
    int64_t want[MPRI_TENSOR_RANK];
    *w = (Way){.roi1 = 1};
    if (roi) {
        w->roi0 = mpri_ref_load(roi, k);
        w->roi1 = mpri_ref_load(roi, k + n);
    }
    if (!sizes) {
        w->scale = mpri_ref_load(&c->in[scales], k);
        return;
    }
    for (int i = 0; i < n; i++) want[i] = mpri_load_i64(sizes->dtype, sizes->data, i);
    w->scale = mpri_resize_factor(p, n, want, k, x->dims, x->rank);
}

/* Tables in the workspace for x -> y. */
static Table table_of(const KernelCall *c, int scales, const Tensor *x, const Tensor *y)
{
    const ResizeParams *p = c->params;
    Table t = {.rank = x->rank};
    char *room = c->workspace;
    int n = p->axes.n ? (int)p->axes.n : x->rank;
    bool resized[MPRI_TENSOR_RANK] = {false};
    for (int a = 0; a < t.rank; a++) {
        Axis *axis = &t.axis[a];
        *axis = (Axis){.in = x->dims[a], .out = y->dims[a], .width = row_width(p, x->dims[a])};
        axis->weight = (double *)(void *)room;
        room += (size_t)(axis->out * axis->width) * sizeof(double);
        axis->first = (int64_t *)(void *)room;
        room += (size_t)axis->out * sizeof(int64_t);
    }
    for (int k = 0; k < n; k++) {
        int a = mpri_resize_axis(p, k, t.rank);
        Way w;
        way_of(c, scales, x, n, k, &w);
        fill_axis(p, &t.axis[a], w);
        resized[a] = true;
    }
    for (int a = 0; a < t.rank; a++) {
        Axis *axis = &t.axis[a];
        if (!resized[a]) {
            axis->width = 1;
            fill_identity(axis);
        } else if (strcmp(p->mode, "nearest") == 0) {
            for (int64_t o = 1; o < axis->out; o++) axis->weight[o] = 1;
            axis->width = 1;
        } else if (axis->in == axis->out && !mpri_resize_crops(p)) {
            bool same = true; /* factor 1 leaves an axis as it is: no product with its weights */
            for (int64_t o = 0; o < axis->out && same; o++)
                for (int64_t j = 0; j < axis->width && same; j++)
                    same = axis->weight[o * axis->width + j] == (axis->first[o] + j == o);
            if (same) axis->width = 1, fill_identity(axis);
        }
    }
    return t;
}

/* The entries of output element i; false when one of its axes is extrapolated. */
static bool locate(const Table *t, int64_t i, int64_t *first, const double **weight)
{
    bool inside = true;
    for (int a = t->rank - 1; a >= 0; a--) {
        const Axis *axis = &t->axis[a];
        int64_t o = i % axis->out;
        i /= axis->out;
        first[a] = axis->first[o];
        weight[a] = axis->weight + o * axis->width;
        inside = inside && first[a] >= 0;
    }
    return inside;
}

/* Sum over the axes from a on, `at` being the position so far; with dx, v is spread instead. */
static double walk(const Table *t, int a, int64_t at, const int64_t *first, const double **weight,
                   const Tensor *x, double *dx, double v)
{
    if (a == t->rank) {
        if (!dx) return mpri_ref_load(x, at);
        dx[at] += v;
        return 0;
    }
    const Axis *axis = &t->axis[a];
    double sum = 0;
    for (int64_t j = 0; j < axis->width; j++) {
        double w = weight[a][j];
        if (w == 0) continue;
        sum += w * walk(t, a + 1, at * axis->in + first[a] + j, first, weight, x, dx, v * w);
    }
    return sum;
}

static mpr_status resize(const KernelCall *c, int scales)
{
    const ResizeParams *p = c->params;
    if (c->out[0].n == 0 || c->in[0].n == 0) return MPR_OK;
    Table t = table_of(c, scales, &c->in[0], &c->out[0]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t first[MPRI_TENSOR_RANK];
        const double *weight[MPRI_TENSOR_RANK];
        double v = (double)p->extrapolation_value;
        if (locate(&t, i, first, weight)) v = walk(&t, 0, 0, first, weight, &c->in[0], NULL, 0);
        mpri_ref_store(&c->out[0], i, v);
    }
    return MPR_OK;
}

static mpr_status k_resize(const KernelCall *c) { return resize(c, scales_input(OP_Resize)); }
static mpr_status k_upsample(const KernelCall *c) { return resize(c, scales_input(OP_Upsample)); }

/* Inputs dy, roi, scales, sizes. */
static mpr_status k_resize_grad(const KernelCall *c)
{
    const ResizeParams *p = c->params;
    const Tensor *dy = &c->in[0];
    Tensor *dx = &c->out[0];
    if (dx->n == 0) return MPR_OK;
    Table t = {0};
    double *sum = (double *)(void *)((char *)c->workspace +
                                     table_bytes(p, dx->rank, dx->dims, dy->dims));
    if (dy->n) t = table_of(c, scales_input(OP_Resize), dx, dy);
    for (int64_t i = 0; i < dx->n; i++) sum[i] = 0;
    for (int64_t i = 0; i < dy->n; i++) {
        int64_t first[MPRI_TENSOR_RANK];
        const double *weight[MPRI_TENSOR_RANK];
        if (locate(&t, i, first, weight))
            walk(&t, 0, 0, first, weight, NULL, sum, mpri_ref_load(dy, i));
    }
    for (int64_t i = 0; i < dx->n; i++) mpri_ref_store(dx, i, sum[i]);
    return MPR_OK;
}

static size_t workspace(const KernelSig *s, int threads)
{
    (void)threads;
    return table_bytes(s->params, s->in[0].rank, s->in[0].dims, s->out[0].dims);
}

static size_t workspace_grad(const KernelSig *s, int threads)
{
    (void)threads;
    const Tensor *dx = &s->out[0];
    return table_bytes(s->params, dx->rank, dx->dims, s->in[0].dims) +
           (size_t)dx->n * sizeof(double);
}

static const KernelRow rows[] = {
    {.op = OP_Resize, .name = "ref.resize", .fn = k_resize, .workspace = workspace},
    {.op = OP_Upsample, .name = "ref.upsample", .fn = k_upsample, .workspace = workspace},
    {.op = OP_ResizeGrad, .name = "ref.resizegrad", .fn = k_resize_grad, .workspace = workspace_grad},
};
const KernelTable mpri_ref_resize = REF_TABLE(rows);
