/* GridSample over any number of spatial dims, AffineGrid, and their gradients.
 *
 * A coordinate in [-1, 1] becomes a position among the elements; one outside is first brought back by the
 * padding mode, then its neighbours are, one by one. Every axis gives a few taps {element, weight, slope
 * of the weight}; the value is the sum over their product. Reference: ONNX GridSample-22.
 *
 * Trap: coordinates are listed last axis first. */
#include "kernels/ref/util.h"

enum { MAX_SPATIAL = MPRI_TENSOR_RANK - 2, MAX_TAPS = 4 };

typedef struct Taps {
    int n;
    int64_t at[MAX_TAPS]; /* -1: reads zero */
    double weight[MAX_TAPS], slope[MAX_TAPS];
} Taps;

typedef struct Sampler {
    bool corners, border, reflection;
    const char *mode;
    int spatial;
    int64_t dims[MAX_SPATIAL], in_n, points; /* points: per item */
} Sampler;

static Sampler sampler_of(const GridSampleParams *p, const Tensor *x, const Tensor *grid)
{
    Sampler s = {.corners = p->align_corners == 1,
                 .border = strcmp(p->padding_mode, "border") == 0,
                 .reflection = strcmp(p->padding_mode, "reflection") == 0,
                 .mode = p->mode,
                 .spatial = x->rank - 2,
                 .in_n = 1,
                 .points = mpri_ref_span(grid, 1, grid->rank - 1)};
    for (int k = 0; k < s.spatial; k++) {
        s.dims[k] = x->dims[k + 2];
        s.in_n *= s.dims[k];
    }
    return s;
}

/* x mirrored at low and high until it lies between; *sign: +1, or -1 after an odd number of times. */
static double reflect(double x, double low, double high, double *sign)
{
    double range = high - low;
    *sign = 1;
    if (!(x < low) && !(x > high)) return x;
    if (range <= 0) {
        *sign = 0;
        return low;
    }
    double over = x < low ? low - x : x - high, times = floor(over / range);
    double rest = over - times * range;
    bool from_low = (x < low) == (fmod(times, 2) == 0);
    *sign = from_low ? 1 : -1;
    if (x < low) *sign = -*sign;
    return from_low ? low + rest : high - rest;
}

/* Element that position i reads, or -1. */
static int64_t element(const Sampler *s, double i, int64_t n)
{
    double sign, edge = s->corners ? 0 : 0.5;
    if (s->reflection) i = trunc(reflect(i, -edge, (double)n - 1 + edge, &sign));
    if (s->border || s->reflection) i = i < 0 ? 0 : i > (double)(n - 1) ? (double)(n - 1) : i;
    return i >= 0 && i < (double)n ? (int64_t)i : -1;
}

/* The cubic of Keys with a = -0.75 at distance t, and its derivative. */
static double cubic(double t, double *slope)
{
    const double a = -0.75;
    double u = fabs(t), sign = t < 0 ? -1 : 1;
    if (u <= 1) {
        *slope = sign * (3 * (a + 2) * u - 2 * (a + 3)) * u;
        return ((a + 2) * u - (a + 3)) * u * u + 1;
    }
    *slope = u < 2 ? sign * ((3 * a * u - 10 * a) * u + 8 * a) : 0;
    return u < 2 ? ((a * u - 5 * a) * u + 8 * a) * u - 4 * a : 0;
}

/* Taps of the coordinate v on an axis of n elements; slopes are with respect to v. */
static Taps taps_of(const Sampler *s, double v, int64_t n)
{
    double size = (double)n, move = s->corners ? (size - 1) / 2 : size / 2, sign = 1;
    double x = s->corners ? (v + 1) / 2 * (size - 1) : ((v + 1) * size - 1) / 2;
    double edge = s->corners ? 0 : 0.5;
    if (!(fabs(x) < 1e9)) { /* so far outside, or NaN, that nothing moves with it */
        x = x > 0 ? 1e9 : -1e9;
        move = 0;
    }
    if (s->border && (x < -edge || x > size - 1 + edge)) {
        x = x < 0 ? 0 : size - 1;
        move = 0;
    } else if (s->reflection) {
        x = reflect(x, -edge, size - 1 + edge, &sign);
    }
    move *= sign;
    if (strcmp(s->mode, "nearest") == 0)
        return (Taps){.n = 1, .at = {element(s, nearbyint(x), n)}, .weight = {1}};
    double base = floor(x), t = x - base;
    if (strcmp(s->mode, "linear") == 0)
        return (Taps){.n = 2,
                      .at = {element(s, base, n), element(s, base + 1, n)},
                      .weight = {1 - t, t},
                      .slope = {-move, move}};
    Taps r = {.n = 4};
    for (int k = 0; k < 4; k++) {
        r.at[k] = element(s, base + k - 1, n);
        r.weight[k] = cubic(t - (k - 1), &r.slope[k]);
        r.slope[k] *= move;
    }
    return r;
}

/* Sum over the taps of the axes from k on. With `by` >= 0 that axis counts with its slopes. With dx, v is
 * spread instead. */
static double walk(const Sampler *s, const Taps *taps, int k, int64_t at, int by, const Tensor *x,
                   int64_t plane, double *dx, double v)
{
    if (k == s->spatial) {
        if (!dx) return mpri_ref_load(x, plane + at);
        dx[plane + at] += v;
        return 0;
    }
    double sum = 0;
    for (int j = 0; j < taps[k].n; j++) {
        double w = k == by ? taps[k].slope[j] : taps[k].weight[j];
        if (taps[k].at[j] < 0 || w == 0) continue;
        int64_t next = at * s->dims[k] + taps[k].at[j];
        sum += w * walk(s, taps, k + 1, next, by, x, plane, dx, v * w);
    }
    return sum;
}

static void taps_at(const Sampler *s, const Tensor *grid, int64_t point, Taps *taps)
{
    for (int k = 0; k < s->spatial; k++) {
        double v = mpri_ref_load(grid, point * s->spatial + (s->spatial - 1 - k));
        taps[k] = taps_of(s, v, s->dims[k]);
    }
}

static mpr_status k_sample(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *grid = &c->in[1];
    Sampler s = sampler_of(c->params, x, grid);
    int64_t channels = x->dims[1];
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t point = i % s.points, plane = i / s.points;
        Taps taps[MAX_SPATIAL];
        taps_at(&s, grid, plane / channels * s.points + point, taps);
        double v = s.in_n ? walk(&s, taps, 0, 0, -1, x, plane * s.in_n, NULL, 0) : 0;
        mpri_ref_store(&c->out[0], i, v);
    }
    return MPR_OK;
}

/* Inputs dy, x, grid. */
static mpr_status k_sample_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *grid = &c->in[2];
    Tensor *dx = mpri_tensor_here(&c->out[0]) ? &c->out[0] : NULL;
    Tensor *dgrid = c->n_out > 1 && mpri_tensor_here(&c->out[1]) ? &c->out[1] : NULL;
    Sampler s = sampler_of(c->params, x, grid);
    int64_t channels = x->dims[1], points = grid->dims[0] * s.points;
    double *sum = c->workspace;
    for (int64_t i = 0; dx && i < dx->n; i++) sum[i] = 0;
    for (int64_t point = 0; point < points; point++) {
        Taps taps[MAX_SPATIAL];
        double slope[MAX_SPATIAL] = {0};
        int64_t item = point / s.points;
        taps_at(&s, grid, point, taps);
        for (int64_t ch = 0; ch < channels && s.in_n; ch++) {
            int64_t plane = item * channels + ch;
            double v = mpri_ref_load(dy, plane * s.points + point % s.points);
            if (dx) walk(&s, taps, 0, 0, -1, NULL, plane * s.in_n, sum, v);
            for (int k = 0; dgrid && k < s.spatial; k++)
                slope[k] += v * walk(&s, taps, 0, 0, k, x, plane * s.in_n, NULL, 0);
        }
        for (int k = 0; dgrid && k < s.spatial; k++)
            mpri_ref_store(dgrid, point * s.spatial + (s.spatial - 1 - k), slope[k]);
    }
    for (int64_t i = 0; dx && i < dx->n; i++) mpri_ref_store(dx, i, sum[i]);
    return MPR_OK;
}

static size_t sums(const KernelSig *s, int threads)
{
    (void)threads;
    return mpri_tensor_here(&s->out[0]) ? (size_t)s->out[0].n * sizeof(double) : 0;
}

/* ---- AffineGrid ---- */

/* Coordinate of element i of n: -1 and 1 are the outer elements or their outer edges. */
static double coordinate(bool corners, int64_t i, int64_t n)
{
    if (corners) return n > 1 ? 2 * (double)i / (double)(n - 1) - 1 : 0;
    return (2 * (double)i + 1) / (double)n - 1;
}

/* (x, y, 1) or (x, y, z, 1) of a point of the grid of shape [N, …, spatial]. */
static void homogeneous(const AffineGridParams *p, const Tensor *grid, int64_t point, double *v)
{
    int spatial = grid->rank - 2;
    for (int k = spatial; k >= 1; k--) {
        v[spatial - k] = coordinate(p->align_corners == 1, point % grid->dims[k], grid->dims[k]);
        point /= grid->dims[k];
    }
    v[spatial] = 1;
}

static mpr_status k_affine(const KernelCall *c)
{
    Tensor *y = &c->out[0];
    int spatial = y->rank - 2;
    int64_t points = mpri_ref_span(y, 1, y->rank - 1);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t row = i % spatial, item = i / spatial / points;
        double v[MPRI_TENSOR_RANK], sum = 0;
        homogeneous(c->params, y, i / spatial % points, v);
        for (int k = 0; k <= spatial; k++)
            sum += v[k] * mpri_ref_load(&c->in[0], (item * spatial + row) * (spatial + 1) + k);
        mpri_ref_store(y, i, sum);
    }
    return MPR_OK;
}

static mpr_status k_affine_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0];
    int spatial = dy->rank - 2;
    int64_t points = mpri_ref_span(dy, 1, dy->rank - 1);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t column = i % (spatial + 1), row = i / (spatial + 1);
        int64_t item = row / spatial;
        double sum = 0, v[MPRI_TENSOR_RANK];
        for (int64_t point = 0; point < points; point++) {
            homogeneous(c->params, dy, point, v);
            sum += v[column] * mpri_ref_load(dy, (item * points + point) * spatial + row % spatial);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(GridSample, "gridsample", k_sample),
    {.op = OP_GridSampleGrad, .name = "ref.gridsamplegrad", .fn = k_sample_grad, .workspace = sums},
    REF_ROW(AffineGrid, "affinegrid", k_affine),
    REF_ROW(AffineGridGrad, "affinegridgrad", k_affine_grad),
};
const KernelTable mpri_ref_grid_sample = REF_TABLE(rows);
