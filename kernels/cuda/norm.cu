/* LayerNormalization, RMSNormalization and their gradients. With xh = (x - mean) inv, g = dy scale:
 *   dx = inv (g - avg(g) - xh avg(g xh)); over rows, dscale = sum of dy xh, dbias = sum of dy
 * RMSNormalization is the same with mean 0 and without avg(g).
 *
 * Rows: a warp owns a row of up to 1024 elements, a block of 256 threads a longer one, and goes over it
 * two or three times (mean, squares of differences, result); only the first time comes from memory, so the
 * traffic is the input once and the output once. Four elements at a time where the row allows it.
 * Weight gradients in two stages: a block of 8 warps sums 32 or 128 columns of one part of the rows, warp w
 * its rows w, w + 8, …; then the parts are added. Parts follow from the shape only. They come before dx,
 * which may take the memory of dy or x. Traffic: dy and x twice (a second time for dx). */
#include "kernels/cuda/norm.cuh"

enum { NORM_THREADS = 256, WARP_ROW = 1024, LEAST_ROWS = 32, MOST_PARTS = 128, COLUMN_WARPS = 8 };

typedef struct Weight {
    const void *p; /* NULL: none */
    int type;
    int walk; /* broadcasts to the row: input of the walk that finds its elements; else -1 */
} Weight;

typedef struct NormArgs {
    const void *x, *dy;
    int tx, td;
    Weight scale, bias;
    Walk at;
    int64_t rows, n;
    float epsilon;
    int centred;
} NormArgs;

template <int V>
static __device__ __forceinline__ void load_weight(const NormArgs &a, const Weight &w, int64_t row,
                                                   int64_t j, float *v)
{
    if (w.walk < 0) load_vec<V>(w.p, w.type, j, v);
    else for (int k = 0; k < V; k++)
        v[k] = load_float(w.p, w.type, walk_at(a.at, w.walk, (uint32_t)(row * a.n + j + k)));
}

/* First row and step, first element and step of the thread. */
template <bool WARP> struct Turn {
    int64_t row, rows;
    int first, step;
    __device__ Turn()
    {
        int64_t warps = blockDim.x / 32;
        row = WARP ? blockIdx.x * warps + threadIdx.x / 32 : blockIdx.x;
        rows = WARP ? gridDim.x * warps : gridDim.x;
        first = (int)(WARP ? threadIdx.x & 31 : threadIdx.x);
        step = (int)(WARP ? 32 : blockDim.x);
    }
};

template <int V, bool WARP>
static __device__ __forceinline__ void row_statistics(const NormArgs &a, const Turn<WARP> &t, int64_t base,
                                                      SharedPtr<float> part, float *mean, float *inv)
{
    float sum = 0, squares = 0, v[V];
    *mean = 0;
    if (a.centred) {
        for (int64_t j = t.first * V; j < a.n; j += t.step * V) {
            load_vec<V>(a.x, a.tx, base + j, v);
            for (int k = 0; k < V; k++) sum += v[k];
        }
        *mean = own_sum<WARP>(sum, part) / (float)a.n;
    }
    for (int64_t j = t.first * V; j < a.n; j += t.step * V) {
        load_vec<V>(a.x, a.tx, base + j, v);
        for (int k = 0; k < V; k++) squares += (v[k] - *mean) * (v[k] - *mean);
    }
    *inv = 1.0f / sqrtf(own_sum<WARP>(squares, part) / (float)a.n + a.epsilon);
}

template <int V, bool WARP>
__global__ void k_norm(NormArgs a, void *y, int ty, void *means, void *invs, int tm)
{
    MPRI_SHARED(float, part, 33);
    Turn<WARP> t;
    for (int64_t row = t.row; row < a.rows; row += t.rows) {
        int64_t base = row * a.n;
        float mean, inv, v[V], w[V];
        row_statistics<V, WARP>(a, t, base, part, &mean, &inv);
        for (int64_t j = t.first * V; y && j < a.n; j += t.step * V) {
            load_vec<V>(a.x, a.tx, base + j, v);
            load_weight<V>(a, a.scale, row, j, w);
            for (int k = 0; k < V; k++) v[k] = (v[k] - mean) * inv * w[k];
            if (a.bias.p) {
                load_weight<V>(a, a.bias, row, j, w);
                for (int k = 0; k < V; k++) v[k] += w[k];
            }
            store_vec<V>(y, ty, base + j, v);
        }
        if (t.first) continue;
        if (means) store_float(means, tm, row, mean);
        if (invs) store_float(invs, tm, row, inv);
    }
}

/* means NULL: 0. */
template <int V, bool WARP>
__global__ void k_norm_input_grad(NormArgs a, const void *means, const void *invs, int tm, void *dx, int to)
{
    MPRI_SHARED(float, part, 33);
    Turn<WARP> t;
    for (int64_t row = t.row; row < a.rows; row += t.rows) {
        int64_t base = row * a.n;
        float mean = means ? load_float(means, tm, row) : 0.0f, inv = load_float(invs, tm, row);
        float sum = 0, dot = 0, g[V], x[V], w[V];
        for (int64_t j = t.first * V; j < a.n; j += t.step * V) {
            load_vec<V>(a.dy, a.td, base + j, g);
            load_vec<V>(a.x, a.tx, base + j, x);
            load_weight<V>(a, a.scale, row, j, w);
            for (int k = 0; k < V; k++) {
                sum += g[k] * w[k];
                dot += g[k] * w[k] * ((x[k] - mean) * inv);
            }
        }
        sum = a.centred ? own_sum<WARP>(sum, part) / (float)a.n : 0.0f;
        dot = own_sum<WARP>(dot, part) / (float)a.n;
        for (int64_t j = t.first * V; j < a.n; j += t.step * V) {
            load_vec<V>(a.dy, a.td, base + j, g);
            load_vec<V>(a.x, a.tx, base + j, x);
            load_weight<V>(a, a.scale, row, j, w);
            for (int k = 0; k < V; k++)
                g[k] = inv * (g[k] * w[k] - sum - (x[k] - mean) * inv * dot);
            store_vec<V>(dx, to, base + j, g);
        }
    }
}

/* Sums of a column by its 8 warps, in the order of the warps. */
static __device__ __forceinline__ float join_warps(SharedPtr<float> part, int at, int step)
{
    float v = 0;
    for (int w = 0; w < COLUMN_WARPS; w++) v += part[at + w * step];
    return v;
}

/* Part blockIdx.y of the rows; scale and bias: [parts, n], bias may be NULL. */
template <int V>
__global__ void k_norm_weight_parts(NormArgs a, const void *means, const void *invs, int tm, float *scale,
                                    float *bias, int64_t part_rows)
{
    MPRI_SHARED(float, part_scale, COLUMN_WARPS * 32 * V);
    MPRI_SHARED(float, part_bias, COLUMN_WARPS * 32 * V);
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    int64_t j = ((int64_t)blockIdx.x * 32 + lane) * V, part = blockIdx.y, end = (part + 1) * part_rows;
    float ds[V] = {}, db[V] = {}, g[V], x[V];
    if (end > a.rows) end = a.rows;
    for (int64_t row = part * part_rows + warp; j < a.n && row < end; row += COLUMN_WARPS) {
        float mean = means ? load_float(means, tm, row) : 0.0f, inv = load_float(invs, tm, row);
        load_vec<V>(a.dy, a.td, row * a.n + j, g);
        load_vec<V>(a.x, a.tx, row * a.n + j, x);
        for (int k = 0; k < V; k++) {
            ds[k] += g[k] * ((x[k] - mean) * inv);
            db[k] += g[k];
        }
    }
    for (int k = 0; k < V; k++) {
        part_scale[(warp * V + k) * 32 + lane] = ds[k];
        part_bias[(warp * V + k) * 32 + lane] = db[k];
    }
    __syncthreads();
    if (warp || j >= a.n) return;
    for (int k = 0; k < V; k++) {
        scale[part * a.n + j + k] = join_warps(part_scale, k * 32 + lane, 32 * V);
        if (bias) bias[part * a.n + j + k] = join_warps(part_bias, k * 32 + lane, 32 * V);
    }
}

/* 32 columns a block: warp w adds parts w, w + 8, … */
__global__ void k_norm_weight_join(const float *parts, int n_parts, void *out, int to, int64_t n)
{
    MPRI_SHARED(float, part, COLUMN_WARPS * 32);
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    int64_t j = (int64_t)blockIdx.x * 32 + lane;
    float v = 0;
    for (int p = warp; j < n && p < n_parts; p += COLUMN_WARPS) v += parts[p * n + j];
    part[warp * 32 + lane] = v;
    __syncthreads();
    if (warp == 0 && j < n) store_float(out, to, j, join_warps(part, lane, 32));
}

/* ---- host side ---- */

static void rows_of(const Tensor *x, const LayerNormParams *p, int64_t *rows, int64_t *n)
{
    int axis = (int)(p->axis < 0 ? p->axis + x->rank : p->axis);
    *rows = span_of(x, 0, axis);
    *n = span_of(x, axis, x->rank);
}

/* Exactly the normalised dims, leading dims of 1 aside. */
static bool fills_row(const Tensor *w, const Tensor *x, const LayerNormParams *p)
{
    int axis = (int)(p->axis < 0 ? p->axis + x->rank : p->axis);
    int64_t rows, n;
    rows_of(x, p, &rows, &n);
    if (w->n != n) return false;
    for (int o = x->rank - 1, k = w->rank - 1; o >= axis; o--, k--)
        if ((k >= 0 ? w->dims[k] : 1) != x->dims[o]) return false;
    return true;
}

/* scale, bias: inputs k and k + 1; has_bias: there may be one. */
static NormArgs norm_args(const KernelCall *c, const Tensor *x, int k, bool has_bias, bool centred)
{
    const LayerNormParams *p = (const LayerNormParams *)c->params;
    const Tensor *in[2] = {&c->in[k], has_bias ? input_of(c, k + 1) : NULL};
    Weight w[2] = {};
    NormArgs a = {};
    a.x = x->data, a.tx = (int)x->dtype;
    a.epsilon = p->epsilon, a.centred = centred;
    rows_of(x, p, &a.rows, &a.n);
    for (int i = 0; i < 2 && in[i]; i++)
        w[i] = Weight{in[i]->data, (int)in[i]->dtype, fills_row(in[i], x, p) ? -1 : i};
    if (!in[1]) in[1] = in[0];
    if (w[0].walk >= 0 || w[1].walk >= 0) walk_init(&a.at, x, in, 2);
    a.scale = w[0], a.bias = w[1];
    return a;
}

static bool vectors(const NormArgs &a, const Tensor *t)
{
    return aligned_rows(t, a.n) && ((uintptr_t)a.x & 15) == 0 && ((uintptr_t)a.dy & 15) == 0 &&
           (a.scale.walk >= 0 || ((uintptr_t)a.scale.p & 15) == 0) &&
           (a.bias.walk >= 0 || ((uintptr_t)a.bias.p & 15) == 0);
}

#define NORM_LAUNCH(kernel, V, ...)                                                              \
    do {                                                                                         \
        if (a.n <= WARP_ROW)                                                                     \
            MPRI_LAUNCH((kernel<V, true>), blocks_for(a.rows, NORM_THREADS / 32), NORM_THREADS, 0, \
                        c->queue, __VA_ARGS__);                                                  \
        else                                                                                     \
            MPRI_LAUNCH((kernel<V, false>), blocks_for(a.rows, 1), NORM_THREADS, 0, c->queue,    \
                        __VA_ARGS__);                                                            \
    } while (0)

static mpr_status forward(const KernelCall *c, bool centred)
{
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0], *mean = output_of(c, 1), *inv = output_of(c, 2);
    NormArgs a = norm_args(c, x, 1, centred, centred);
    void *m = mean ? mean->data : NULL, *i = inv ? inv->data : NULL;
    int tm = (int)(mean ? mean->dtype : inv ? inv->dtype : MPR_FLOAT32);
    if (!a.rows || (!x->n && !m && !i)) return MPR_OK;
    if (vectors(a, y)) NORM_LAUNCH(k_norm, 4, a, y->data, (int)y->dtype, m, i, tm);
    else NORM_LAUNCH(k_norm, 1, a, y->data, (int)y->dtype, m, i, tm);
    return MPR_OK;
}
static mpr_status k_layer_norm(const KernelCall *c) { return forward(c, true); }
static mpr_status k_rms_norm(const KernelCall *c) { return forward(c, false); }

static int parts_of(int64_t rows, int64_t *part_rows)
{
    int64_t parts = rows / LEAST_ROWS;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 1) parts = 1;
    *part_rows = (rows + parts - 1) / parts;
    if (*part_rows < 1) *part_rows = 1;
    return (int)(rows ? (rows + *part_rows - 1) / *part_rows : 1);
}

typedef struct Statistics {
    const void *mean, *inv;
    int type;
} Statistics;

/* parts: room for two times [parts, n]. */
static void weight_grads(const KernelCall *c, const NormArgs &a, Statistics s, float *parts)
{
    Tensor *out[2] = {output_of(c, 1), output_of(c, 2)};
    int64_t part_rows;
    int n_parts = parts_of(a.rows, &part_rows);
    float *second = parts + n_parts * a.n, *bias = out[1] ? second : NULL;
    if (!a.n || (!out[0] && !out[1])) return;
    int v = vectors(a, &c->in[1]) ? 4 : 1;
    dim3 grid((unsigned)((a.n + 32 * v - 1) / (32 * v)), (unsigned)n_parts);
    if (v == 4)
        MPRI_LAUNCH((k_norm_weight_parts<4>), grid, COLUMN_WARPS * 32, 0, c->queue, a, s.mean, s.inv,
                    s.type, parts, bias, part_rows);
    else
        MPRI_LAUNCH((k_norm_weight_parts<1>), grid, COLUMN_WARPS * 32, 0, c->queue, a, s.mean, s.inv,
                    s.type, parts, bias, part_rows);
    for (int k = 0; k < 2; k++)
        if (out[k])
            MPRI_LAUNCH(k_norm_weight_join, (unsigned)((a.n + 31) / 32), COLUMN_WARPS * 32, 0, c->queue,
                        (const float *)(k ? second : parts), n_parts, out[k]->data, (int)out[k]->dtype,
                        a.n);
}

static void input_grad(const KernelCall *c, const NormArgs &a, Statistics s)
{
    Tensor *dx = output_of(c, 0);
    if (!dx || !dx->n) return;
    int to = (int)dx->dtype;
    if (vectors(a, dx)) NORM_LAUNCH(k_norm_input_grad, 4, a, s.mean, s.inv, s.type, dx->data, to);
    else NORM_LAUNCH(k_norm_input_grad, 1, a, s.mean, s.inv, s.type, dx->data, to);
}

/* Inputs dy, x, scale, mean, inv; outputs dx, dscale, dbias, each optional. */
static mpr_status k_layer_norm_grad(const KernelCall *c)
{
    NormArgs a = norm_args(c, &c->in[1], 2, false, true);
    Statistics s = {c->in[3].data, c->in[4].data, (int)c->in[4].dtype};
    a.dy = c->in[0].data, a.td = (int)c->in[0].dtype;
    weight_grads(c, a, s, (float *)c->workspace);
    input_grad(c, a, s);
    return MPR_OK;
}

/* Inputs dy, x, scale; outputs dx, dscale, each optional. 1 / root of the rows is made again. */
static mpr_status k_rms_norm_grad(const KernelCall *c)
{
    NormArgs a = norm_args(c, &c->in[1], 2, false, false);
    int64_t part_rows;
    float *parts = (float *)c->workspace, *inv = parts + 2 * parts_of(a.rows, &part_rows) * a.n;
    Statistics s = {NULL, inv, MPR_FLOAT32};
    a.dy = c->in[0].data, a.td = (int)c->in[0].dtype;
    if (c->in[1].n) {
        void *none = NULL, *to = inv;
        if (vectors(a, &c->in[1])) NORM_LAUNCH(k_norm, 4, a, none, MPR_FLOAT32, none, to, MPR_FLOAT32);
        else NORM_LAUNCH(k_norm, 1, a, none, MPR_FLOAT32, none, to, MPR_FLOAT32);
    }
    weight_grads(c, a, s, parts);
    input_grad(c, a, s);
    return MPR_OK;
}

/* ---- rows ---- */

static size_t grad_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    int64_t rows, n, part_rows;
    rows_of(&s->in[1], (const LayerNormParams *)s->params, &rows, &n);
    int64_t parts = 2 * parts_of(rows, &part_rows) * n;
    return (size_t)(parts + (s->op == OP_RmsNormGrad ? rows : 0)) * sizeof(float);
}

static const char *refuse_norm(const KernelSig *s)
{
    bool grad = s->op == OP_LayerNormGrad || s->op == OP_RmsNormGrad;
    const LayerNormParams *p = (const LayerNormParams *)s->params;
    const Tensor *x = &s->in[grad];
    for (int k = 1 + grad; k < s->n_in && k < 3; k++)
        if (mpri_tensor_here(&s->in[k]) && !fills_row(&s->in[k], x, p) && x->n >= INT32_MAX)
            return CUDA_TOO_LARGE;
    return refuse_not_float(s);
}

static const KernelRow rows[] = {
    CUDA_ROW(LayerNormalization, "layernormalization", k_layer_norm, .refuse = refuse_norm),
    CUDA_ROW(RMSNormalization, "rmsnormalization", k_rms_norm, .refuse = refuse_norm),
    CUDA_ROW(LayerNormGrad, "layernormgrad", k_layer_norm_grad, .refuse = refuse_norm,
             .workspace = grad_bytes),
    CUDA_ROW(RmsNormGrad, "rmsnormgrad", k_rms_norm_grad, .refuse = refuse_norm, .workspace = grad_bytes),
};
extern "C" const KernelTable mpri_cuda_norm = CUDA_TABLE(rows);
