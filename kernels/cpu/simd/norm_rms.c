/* RMSNormalization and its gradient. The sum of squares of a row is taken in f32 vectors; where it
 * leaves the comfortable range of f32, a second look in double decides, so rows of huge or tiny
 * values come out as the formula says.
 *
 * Gradient: the row's root again (the row is in the cache then), one pass for the average of
 * dy scale xh and the partial sums of dscale, one that writes dx. Partial sums belong to a fixed
 * block of rows, at most BLOCKS of them, and are added in order of blocks, column by column. */
#include "kernels/cpu/simd/tiles.h"

enum { BLOCKS = 64 };

VF_FN vf run_square(vf v, vf arg)
{
    (void)arg;
    return v * v;
}

/* 1 / sqrt(mean(x^2) + epsilon) of the row at element `at`. */
VF_FN float inverse_root(DType t, const void *x, int64_t at, int64_t n, float epsilon)
{
    double squares = (double)run_sum(t, x, at, n, run_square, vf_zero());
    if (!(squares < 1e37) || squares < 1e-30) {
        squares = 0;
        for (int64_t j = 0; j < n; j++) {
            double v = (double)vf_ld1(t, x, at + j);
            squares += v * v;
        }
    }
    return (float)(1 / sqrt(squares / (double)n + (double)epsilon));
}

/* ---- forward ---- */

typedef struct Forward {
    const Tensor *x, *scale;
    Tensor *y;
    int64_t rows, n, per_tile;
    float epsilon;
} Forward;

VF_FN void normalise_row(const Forward *f, DType t, int64_t row)
{
    int64_t n = f->n, at = row * n;
    vf r = vf_set1(inverse_root(t, f->x->data, at, n, f->epsilon));
    DType ts = f->scale->dtype, ty = f->y->dtype;
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf v = vf_ld_n(t, f->x->data, at + j, k) * r * vf_ld_n(ts, f->scale->data, j, k);
        vf_st_n(ty, f->y->data, at + j, v, k);
    }
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

static mpr_status k_rms_norm(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *x = &c->in[0];
    Rows r = rows_from(x, axis_from_front(p->axis, x->rank));
    Forward f = {x, &c->in[1], &c->out[0], r.count, r.n, rows_per_tile(r.n), p->epsilon};
    if (x->n) mpri_parallel(c->threads, tiles_of(f.rows, f.per_tile), forward_tile, &f);
    return MPR_OK;
}

/* ---- backward ---- */

typedef struct Backward {
    const Tensor *dy, *x, *scale;
    Tensor *dx, *dscale; /* each may be NULL */
    int64_t rows, n, per_block, blocks;
    float epsilon;
    float *partial;      /* [blocks][n] */
} Backward;

/* Adds the row to the partial sums of its block, then writes dx, which may lie over dy or x. */
VF_FN void backward_row(const Backward *b, int64_t row, float *dscale)
{
    int64_t n = b->n, at = row * n;
    DType td = b->dy->dtype, tx = b->x->dtype, ts = b->scale->dtype;
    float inverse = inverse_root(tx, b->x->data, at, n, b->epsilon);
    vf inv = vf_set1(inverse), dot = vf_zero();
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf xh = vf_ld_n(tx, b->x->data, at + j, k) * inv;
        vf v = vf_ld_n(td, b->dy->data, at + j, k) * xh;
        vf_store_n(dscale + j, vf_load_n(dscale + j, k) + v, k);
        v *= vf_ld_n(ts, b->scale->data, j, k);
        if (k < VF_LANES) { /* beyond the row 0 * inv may be NaN */
            float last[VF_LANES];
            vf_store(last, v);
            v = vf_load_n(last, k);
        }
        dot += v;
    }
    if (!b->dx) return;
    vf avg = vf_set1(vf_hsum(dot) / (float)n);
    for (int64_t j = 0; j < n; j += VF_LANES) {
        int k = (int)least(VF_LANES, n - j);
        vf g = vf_ld_n(td, b->dy->data, at + j, k) * vf_ld_n(ts, b->scale->data, j, k);
        vf xh = vf_ld_n(tx, b->x->data, at + j, k) * inv;
        vf_st_n(b->dx->dtype, b->dx->data, at + j, inv * (g - xh * avg), k);
    }
}

static void backward_block(void *ctx, int64_t block)
{
    const Backward *b = ctx;
    float *dscale = b->partial + block * b->n;
    memset(dscale, 0, (size_t)b->n * sizeof(float));
    for (int64_t i = block * b->per_block, end = least(b->rows, i + b->per_block); i < end; i++)
        backward_row(b, i, dscale);
}

static void join_columns(void *ctx, int64_t tile)
{
    const Backward *b = ctx;
    int64_t columns = TILE / BLOCKS;
    for (int64_t j = tile * columns, end = least(b->n, j + columns); j < end; j += VF_LANES) {
        int k = (int)least(VF_LANES, end - j);
        vf sum = vf_zero();
        for (int64_t i = 0; i < b->blocks; i++) sum += vf_load_n(b->partial + i * b->n + j, k);
        vf_st_n(b->dscale->dtype, b->dscale->data, j, sum, k);
    }
}

static mpr_status k_rms_norm_grad(const KernelCall *c)
{
    const LayerNormParams *p = c->params;
    const Tensor *x = &c->in[1];
    Rows r = rows_from(x, axis_from_front(p->axis, x->rank));
    Backward b = {.dy = &c->in[0], .x = x, .scale = &c->in[2], .dx = output_or_null(c, 0),
                  .dscale = output_or_null(c, 1), .rows = r.count, .n = r.n,
                  .per_block = rows_per_block(r.count, r.n, BLOCKS), .epsilon = p->epsilon,
                  .partial = c->workspace};
    b.blocks = tiles_of(b.rows, b.per_block);
    mpri_parallel(c->threads, b.blocks, backward_block, &b);
    if (b.dscale) mpri_parallel(c->threads, tiles_of(b.n, TILE / BLOCKS), join_columns, &b);
    return MPR_OK;
}

static size_t partial_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    const LayerNormParams *p = s->params;
    Rows r = rows_from(&s->in[1], axis_from_front(p->axis, s->in[1].rank));
    int64_t blocks = tiles_of(r.count, rows_per_block(r.count, r.n, BLOCKS));
    return (size_t)(blocks * r.n) * sizeof(float);
}

static const char *refuse(const KernelSig *s, int x, int scale)
{
    const LayerNormParams *p = s->params;
    int64_t n = rows_from(&s->in[x], axis_from_front(p->axis, s->in[x].rank)).n;
    if (!sig_floats(s, 0, 0)) return NOT_FLOAT;
    return s->in[scale].n == n ? NULL : "scale is broadcast";
}

static const char *refuse_forward(const KernelSig *s) { return refuse(s, 0, 1); }
static const char *refuse_backward(const KernelSig *s) { return refuse(s, 1, 2); }

static const KernelRow rows[] = {
    {.op = OP_RMSNormalization, .name = MPRI_ROW("rmsnormalization"), .isa = MPRI_ISA_ID,
     .fn = k_rms_norm, .refuse = refuse_forward},
    {.op = OP_RmsNormGrad, .name = MPRI_ROW("rmsnormgrad"), .isa = MPRI_ISA_ID,
     .fn = k_rms_norm_grad, .refuse = refuse_backward, .workspace = partial_bytes},
};

const KernelTable MPRI_NAME(cpu_norm_rms) = {rows, sizeof rows / sizeof rows[0]};
