/* Pools over any number of spatial dims, and their gradients. A pair (output position, tap) sees one
 * input position or the padding; the gradients run over the same pairs and find an input's outputs by
 * search, so that every sum is rounded once. */
#include "kernels/ref/windows.h"

/* p NULL: the window is the whole plane. */
static RefWindows pool_of(const PoolWindow *p, const Tensor *x, const Tensor *y)
{
    RefWindows g = mpri_ref_windows();
    int spatial = x->rank - 2;
    for (int k = 0; k < spatial; k++) {
        int64_t in = x->dims[k + 2], out = y->dims[k + 2];
        WindowDim whole = {.in = in, .out = out, .taps = in, .stride = 1, .dilation = 1};
        mpri_ref_windows_add(&g, p ? mpri_window_dim(p, spatial, k, in, out) : whole);
    }
    return g;
}

/* Position of the first largest element (the first NaN) that output o of a plane sees; -1: none. */
static int64_t largest(const RefWindows *g, const Tensor *x, int64_t plane, int64_t o, double *value)
{
    int64_t best = -1;
    *value = -INFINITY;
    for (int64_t t = 0; t < mpri_ref_windows_inputs(g); t++) {
        int64_t at = mpri_ref_windows_nth_input(g, o, t);
        if (at < 0) continue;
        double v = mpri_ref_load(x, plane * g->in_n + at);
        if (best >= 0 && !(v > *value) && (!isnan(v) || isnan(*value))) continue;
        best = at;
        *value = v;
    }
    return best;
}

/* Flat position in x, counted row by row or with the first spatial dim running fastest. */
static int64_t index_of(const RefWindows *g, int64_t plane, int64_t at, bool column_major)
{
    if (at < 0) return -1;
    if (!column_major) return plane * g->in_n + at;
    int64_t index = 0;
    for (int k = g->spatial - 1; k >= 0; k--) {
        int64_t before = 1;
        for (int j = 0; j < k; j++) before *= g->d[j].in;
        index += at % g->d[k].in * before;
        at /= g->d[k].in;
    }
    return plane * g->in_n + index;
}

static mpr_status max_pool(const KernelCall *c, const PoolWindow *p, bool column_major)
{
    RefWindows g = pool_of(p, &c->in[0], &c->out[0]);
    bool indices = c->n_out > 1 && mpri_tensor_here(&c->out[1]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double v;
        int64_t at = largest(&g, &c->in[0], i / g.out_n, i % g.out_n, &v);
        mpri_ref_store(&c->out[0], i, v);
        if (indices)
            mpri_store_i64(MPR_INT64, c->out[1].data, i,
                           index_of(&g, i / g.out_n, at, column_major));
    }
    return MPR_OK;
}

static mpr_status k_max(const KernelCall *c)
{
    const MaxPoolParams *p = c->params;
    return max_pool(c, &p->window, p->storage_order == 1);
}

static mpr_status k_global_max(const KernelCall *c) { return max_pool(c, NULL, false); }

/* Inputs dy, x. */
static mpr_status k_max_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1];
    RefWindows g = pool_of(&((const MaxPoolParams *)c->params)->window, x, dy);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t plane = i / g.in_n, at = i % g.in_n;
        double sum = 0, v;
        for (int64_t t = 0; t < mpri_ref_windows_outputs(&g); t++) {
            int64_t o = mpri_ref_windows_nth_output(&g, at, t);
            if (o >= 0 && largest(&g, x, plane, o, &v) == at)
                sum += mpri_ref_load(dy, plane * g.out_n + o);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* Elements that a mean divides by; 1 for a window that lies in the padding. */
static int64_t count(const RefWindows *g, int64_t o, bool pads)
{
    int64_t n = 1;
    for (int k = g->spatial - 1; k >= 0; k--) {
        n *= mpri_window_count(&g->d[k], o % g->d[k].out, pads);
        o /= g->d[k].out;
    }
    return n > 0 ? n : 1;
}

static mpr_status average_pool(const KernelCall *c, const PoolWindow *p, bool pads)
{
    const Tensor *x = &c->in[0];
    RefWindows g = pool_of(p, x, &c->out[0]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double sum = 0;
        for (int64_t t = 0; t < mpri_ref_windows_inputs(&g); t++) {
            int64_t at = mpri_ref_windows_nth_input(&g, i % g.out_n, t);
            if (at >= 0) sum += mpri_ref_load(x, i / g.out_n * g.in_n + at);
        }
        mpri_ref_store(&c->out[0], i, sum / (double)count(&g, i % g.out_n, pads));
    }
    return MPR_OK;
}

static mpr_status k_average(const KernelCall *c)
{
    const AveragePoolParams *p = c->params;
    return average_pool(c, &p->window, p->count_include_pad == 1);
}

static mpr_status k_global_average(const KernelCall *c) { return average_pool(c, NULL, false); }

static mpr_status k_average_grad(const KernelCall *c)
{
    const AveragePoolParams *p = c->params;
    const Tensor *dy = &c->in[0];
    RefWindows g = pool_of(&p->window, &c->out[0], dy);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double sum = 0;
        for (int64_t t = 0; t < mpri_ref_windows_outputs(&g); t++) {
            int64_t o = mpri_ref_windows_nth_output(&g, i % g.in_n, t);
            if (o < 0) continue;
            sum += mpri_ref_load(dy, i / g.in_n * g.out_n + o) /
                   (double)count(&g, o, p->count_include_pad == 1);
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* (sum |x|^p)^(1/p), scaled by the largest |x| so that no power overflows. */
static mpr_status lp_pool(const KernelCall *c, const PoolWindow *window, int64_t p)
{
    const Tensor *x = &c->in[0];
    RefWindows g = pool_of(window, x, &c->out[0]);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double largest_x = 0, sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t t = 0; t < mpri_ref_windows_inputs(&g); t++) {
                int64_t at = mpri_ref_windows_nth_input(&g, i % g.out_n, t);
                if (at < 0) continue;
                double v = fabs(mpri_ref_load(x, i / g.out_n * g.in_n + at));
                if (pass == 0) largest_x = v > largest_x || isnan(v) ? v : largest_x;
                else sum += pow(v / largest_x, (double)p);
            }
        bool plain = largest_x > 0 && !isinf(largest_x);
        mpri_ref_store(&c->out[0], i, plain ? largest_x * pow(sum, 1 / (double)p) : largest_x);
    }
    return MPR_OK;
}

static mpr_status k_lp(const KernelCall *c)
{
    const LpPoolParams *p = c->params;
    return lp_pool(c, &p->window, p->p);
}

static mpr_status k_global_lp(const KernelCall *c)
{
    return lp_pool(c, NULL, ((const GlobalLpPoolParams *)c->params)->p);
}

/* Inputs dy, x, y: dx = sum of dy sign(x) (|x| / y)^(p - 1). */
static mpr_status k_lp_grad(const KernelCall *c)
{
    const LpPoolParams *p = c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1], *y = &c->in[2];
    RefWindows g = pool_of(&p->window, x, dy);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double sum = 0, v = mpri_ref_load(x, i), sign = v > 0 ? 1 : v < 0 ? -1 : v;
        for (int64_t t = 0; t < mpri_ref_windows_outputs(&g); t++) {
            int64_t o = mpri_ref_windows_nth_output(&g, i % g.in_n, t);
            if (o < 0) continue;
            double norm = mpri_ref_load(y, i / g.in_n * g.out_n + o);
            double slope = norm == 0 ? 0 : sign * pow(fabs(v) / norm, (double)(p->p - 1));
            sum += mpri_ref_load(dy, i / g.in_n * g.out_n + o) * slope;
        }
        mpri_ref_store(&c->out[0], i, sum);
    }
    return MPR_OK;
}

/* ---- MaxUnpool: indices are flat positions in the result ---- */

static mpr_status position_at(const KernelCall *c, int64_t i, int64_t n, int64_t *at)
{
    *at = mpri_load_i64(c->in[1].dtype, c->in[1].data, i);
    if (*at >= 0 && *at < n) return MPR_OK;
    if (c->fault)
        *c->fault = (KernelFault){.input = 1, .position = i, .value = *at, .low = 0, .high = n};
    return MPR_E_INDEX;
}

/* Inputs x, indices; of two elements for one place the last stays. */
static mpr_status k_unpool(const KernelCall *c)
{
    size_t size = mpri_dtype_size(c->in[0].dtype);
    char *y = c->out[0].data;
    if (c->out[0].n) memset(y, 0, (size_t)c->out[0].n * size);
    for (int64_t i = 0; i < c->in[0].n; i++) {
        int64_t at;
        TRY(position_at(c, i, c->out[0].n, &at));
        memcpy(y + (size_t)at * size, (const char *)c->in[0].data + (size_t)i * size, size);
    }
    return MPR_OK;
}

/* Inputs dy, indices. */
static mpr_status k_unpool_grad(const KernelCall *c)
{
    for (int64_t i = 0; i < c->out[0].n; i++) {
        int64_t at;
        TRY(position_at(c, i, c->in[0].n, &at));
        mpri_ref_store(&c->out[0], i, mpri_ref_load(&c->in[0], at));
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(MaxPool, "maxpool", k_max),
    REF_ROW(GlobalMaxPool, "globalmaxpool", k_global_max),
    REF_ROW(MaxPoolGrad, "maxpoolgrad", k_max_grad),
    REF_ROW(AveragePool, "averagepool", k_average),
    REF_ROW(GlobalAveragePool, "globalaveragepool", k_global_average),
    REF_ROW(AveragePoolGrad, "averagepoolgrad", k_average_grad),
    REF_ROW(LpPool, "lppool", k_lp),
    REF_ROW(GlobalLpPool, "globallppool", k_global_lp),
    REF_ROW(LpPoolGrad, "lppoolgrad", k_lp_grad),
    REF_ROW(MaxUnpool, "maxunpool", k_unpool),
    REF_ROW(MaxUnpoolGrad, "maxunpoolgrad", k_unpool_grad),
};
const KernelTable mpri_ref_pool = REF_TABLE(rows);
