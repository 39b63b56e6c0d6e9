/* LayerNormalization and its gradient. The second pass over a row sums d = x - pivot and d^2 in
 * f32 lanes, which meet in double; the sum of d corrects both (Chan, Golub and LeVeque,
 * "Algorithms for computing the sample variance", 1983). The pivot is the mean of the first pass
 * with 12 bits: then d is exact for 16-bit x, and mostly for f32, so the mean is too.
 *
 * Gradient: one pass over a row takes its two averages and adds the row to the partial sums of
 * dscale and dbias, a second writes dx. Partial sums belong to a fixed block of rows, at most
 * BLOCKS of them, and are added in order of blocks, column by column. */
#include "kernels/cpu/simd/tiles.h"

enum { BLOCKS = 64 };

/* ---- forward ---- */

typedef struct Forward {
    const Tensor *x, *scale, *bias; /* bias may be NULL */
    Tensor *y, *mean, *inv;         /* the last two may be NULL */
    int64_t rows, n, per_tile;
    float epsilon;
} Forward;

VF_FN double lanes_sum(vf a)
{
    float lane[VF_LANES];
    vf_store(lane, a);
    double sum = 0;
    for (int i = 0; i < VF_LANES; i++) sum += (double)lane[i];
    return sum;
}

VF_FN float first_12_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xfffff000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

VF_FN void square_sums(DType t, const void *x, int64_t at, int64_t n, float pivot, double *sum,
                       double *squares)
{
    vf m = vf_set1(pivot), s0 = vf_zero(), s1 = s0, q0 = s0, q1 = s0;
    int64_t j = 0;
    for (; j + 2 * VF_LANES <= n; j += 2 * VF_LANES) {
        vf d0 = vf_ld(t, x, at + j) - m, d1 = vf_ld(t, x, at + j + VF_LANES) - m;
        s0 += d0;
        s1 += d1;
        q0 = vf_fma(d0, d0, q0);
        q1 = vf_fma(d1, d1, q1);
    }
    float rest_sum = 0, rest_squares = 0;
    for (; j < n; j++) {
        float d = vf_ld1(t, x, at + j) - pivot;
        rest_sum += d;
        rest_squares += d * d;
    }
    *sum = lanes_sum(s0) + lanes_sum(s1) + (double)rest_sum;
    *squares = lanes_sum(q0) + lanes_sum(q1) + (double)rest_squares;
}

VF_FN void normalise_row(const Forward *f, DType t, int64_t row)
{
    int64_t n = f->n, at = row * n;
    float pivot = first_12_bits(run_sum(t, f->x->data, at, n, run_value, vf_zero()) / (float)n);
    double sum, squares;
    square_sums(t, f->x->data, at, n, pivot, &sum, &squares);
    double shift = sum / (double)n;
    double var = (squares - sum * shift) / (double)n;
    float mean = (float)((double)pivot + shift);
    float inv = (float)(1 / sqrt((var < 0 ? 0 : var) + (double)f->epsilon));
    vf m = vf_set1(mean), r = vf_set1(inv);
    DType ts = f->scale->dtype, tb = f->bias ? f->bias->dtype : MPR_FLOAT32, ty = f->y->dtype;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf v = (vf_ld_n(t, f->x->data, at + j, k) - m) * r * vf_ld_n(ts, f->scale->data, j, k);
        if (f->bias) v += vf_ld_n(tb, f->bias->data, j, k);
        vf_st_n(ty, f->y->data, at + j, v, k);
    }
    if (f->mean) vf_st1(f->mean->dtype, f->mean->data, row, mean);
    if (f->inv) vf_st1(f->inv->dtype, f->inv->data, row, inv);
}

static void forward_tile(void *ctx, int64_t tile)
{
    const Forward *f = ctx;
    for (int64_t i = tile * f->per_tile, end = least(f->rows, i + f->per_tile); i < end; i++)
        switch ((int)f->x->dtype) {
        case MPR_FLOAT32: normalise_row(f, MPR_FLOAT32, i); break;
        case MPR_FLOAT16: normalise_row(f, MPR_FLOAT16, i); break;
        default: normalise_row(f, MPR_BFLOAT16, i); break;
        }
}

static mpr_status k_layer_norm(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *x = &c->in[0];
    Rows r = rows_from(x, axis_from_front(p->axis, x->rank));
    Forward f = {x,
                 &c->in[1],
                 input_or_null(c, 2),
                 &c->out[0],
                 output_or_null(c, 1),
                 output_or_null(c, 2),
                 r.count,
                 r.n,
                 rows_per_tile(r.n),
                 p->epsilon};
    if (x->n) mpri_parallel(c->threads, tiles_of(f.rows, f.per_tile), forward_tile, &f);
    return MPR_OK;
}

/* ---- backward ---- */

typedef struct Backward {
    const Tensor *dy, *x, *scale, *mean, *inv;
    Tensor *dx, *dscale, *dbias; /* each may be NULL */
    int64_t rows, n, per_block, blocks;
    float *partial;              /* [blocks][2][n]: dscale, dbias */
} Backward;

VF_FN vf normalised(const Backward *b, int64_t at, int k, vf mean, vf inv)
{
    return (vf_ld_n(b->x->dtype, b->x->data, at, k) - mean) * inv;
}

VF_FN void input_row(const Backward *b, int64_t at, vf mean, vf inv, float avg, float dot)
{
    vf a = vf_set1(avg), d = vf_set1(dot);
    for (int64_t j = 0; j < b->n; j += VF_LANES) {
        int k = (int)least(VF_LANES, b->n - j);
        vf g = vf_ld_n(b->dy->dtype, b->dy->data, at + j, k) *
               vf_ld_n(b->scale->dtype, b->scale->data, j, k);
        vf xh = normalised(b, at + j, k, mean, inv);
        vf_st_n(b->dx->dtype, b->dx->data, at + j, inv * (g - a - xh * d), k);
    }
}

/* Adds the row to the partial sums of its block, then writes dx, which may lie over dy or x. */
VF_FN void backward_row(const Backward *b, int64_t row, float *dscale, float *dbias)
{
    int64_t n = b->n, at = row * n;
    vf mean = vf_set1(vf_ld1(b->mean->dtype, b->mean->data, row));
    vf inv = vf_set1(vf_ld1(b->inv->dtype, b->inv->data, row));
    vf sum = vf_zero(), dot = sum;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf dy = vf_ld_n(b->dy->dtype, b->dy->data, at + j, k),
           xh = normalised(b, at + j, k, mean, inv);
        vf g = dy * vf_ld_n(b->scale->dtype, b->scale->data, j, k);
        sum += g;
        if (k == VF_LANES) {
            dot = vf_fma(g, xh, dot);
        } else { /* lanes beyond the row: g is 0, but 0 * xh may be NaN */
            float last[VF_LANES];
            vf_store(last, g * xh);
            dot += vf_load_n(last, k);
        }
        vf_store_n(dscale + j, vf_fma(dy, xh, vf_load_n(dscale + j, k)), k);
        vf_store_n(dbias + j, vf_load_n(dbias + j, k) + dy, k);
    }
    if (b->dx) input_row(b, at, mean, inv, vf_hsum(sum) / (float)n, vf_hsum(dot) / (float)n);
}

static void backward_block(void *ctx, int64_t block)
{
    const Backward *b = ctx;
    float *dscale = b->partial + block * 2 * b->n, *dbias = dscale + b->n;
    memset(dscale, 0, (size_t)(2 * b->n) * sizeof(float));
    for (int64_t i = block * b->per_block, end = least(b->rows, i + b->per_block); i < end; i++)
        backward_row(b, i, dscale, dbias);
}

static void join_columns(void *ctx, int64_t tile)
{
    const Backward *b = ctx;
    int64_t columns = TILE / BLOCKS;
    for (int64_t j = tile * columns, end = least(b->n, j + columns); j < end; j += VF_LANES) {
        int k = (int)least(VF_LANES, end - j);
        vf scale = vf_zero(), bias = scale;
        for (int64_t i = 0; i < b->blocks; i++) {
            scale += vf_load_n(b->partial + i * 2 * b->n + j, k);
            bias += vf_load_n(b->partial + i * 2 * b->n + b->n + j, k);
        }
        if (b->dscale) vf_st_n(b->dscale->dtype, b->dscale->data, j, scale, k);
        if (b->dbias) vf_st_n(b->dbias->dtype, b->dbias->data, j, bias, k);
    }
}

static mpr_status k_layer_norm_grad(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *dy = &c->in[0];
    Rows r = rows_from(dy, axis_from_front(p->axis, dy->rank));
    Backward b = {dy,
                  &c->in[1],
                  &c->in[2],
                  &c->in[3],
                  &c->in[4],
                  output_or_null(c, 0),
                  output_or_null(c, 1),
                  output_or_null(c, 2),
                  r.count,
                  r.n,
                  rows_per_block(r.count, r.n, BLOCKS),
                  0,
                  c->workspace};
    b.blocks = tiles_of(b.rows, b.per_block);
    mpri_parallel(c->threads, b.blocks, backward_block, &b);
    if (b.dscale || b.dbias)
        mpri_parallel(c->threads, tiles_of(b.n, TILE / BLOCKS), join_columns, &b);
    return MPR_OK;
}

static size_t partial_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    const LayerNormParams *p = s->params;
    Rows r = rows_from(&s->in[0], axis_from_front(p->axis, s->in[0].rank));
    int64_t blocks = tiles_of(r.count, rows_per_block(r.count, r.n, BLOCKS));
    return (size_t)(blocks * 2 * r.n) * sizeof(float);
}

/* scale and bias must have one value per element of a row. */
static const char *refuse(const KernelSig *s, int first_scale, int last_scale)
{
    const LayerNormParams *p = s->params;
    int64_t n = rows_from(&s->in[0], axis_from_front(p->axis, s->in[0].rank)).n;
    if (!sig_floats(s, 0, 0)) return NOT_FLOAT;
    for (int k = first_scale; k <= last_scale; k++)
        if (sig_has_in(s, k) && s->in[k].n != n) return "scale or bias is broadcast";
    return NULL;
}

static const char *refuse_forward(const KernelSig *s) { return refuse(s, 1, 2); }
static const char *refuse_backward(const KernelSig *s) { return refuse(s, 2, 2); }

static const KernelRow rows[] = {
    {.op = OP_LayerNormalization, .name = MPRI_ROW("layernormalization"), .isa = MPRI_ISA_ID,
     .fn = k_layer_norm, .refuse = refuse_forward},
    {.op = OP_LayerNormGrad, .name = MPRI_ROW("layernormgrad"), .isa = MPRI_ISA_ID,
     .fn = k_layer_norm_grad, .refuse = refuse_backward, .workspace = partial_bytes},
};

const KernelTable MPRI_NAME(cpu_norm) = {rows, sizeof rows / sizeof rows[0]};
