/* ReduceSum, ReduceMean and SumTo over floats, f32 sums. The dims merge into one of two forms:
 *   [A, R, B]  R is summed, A and B stay (B = 1: rows; A = 1: columns; A = B = 1: everything)
 *   [P, K, Q]  P and Q are summed, K stays (the gradient of a convolution's bias)
 * Other patterns are left to the reference kernels.
 *
 * In the first form R is cut into fixed blocks, at most BLOCKS of them; each block sums in order
 * into its own partial result, and partial results are added in order. */
#include "kernels/cpu/simd/reduce_form.h"

enum { BLOCKS = 64, COLUMNS = 2048, STRIP = 1024 };

typedef struct Sum {
    const Tensor *x;
    Tensor *y;
    int64_t a, r, b;            /* or p, k, q */
    int64_t per_block, blocks;  /* of R */
    int64_t per_tile;           /* rows (B = 1) or kept entries ([P, K, Q]) of one tile */
    int64_t strips;             /* tiles across B */
    float divisor;              /* 1 for a sum */
    float *partial;             /* [A][blocks][B] */
} Sum;

/* ---- B = 1: rows ---- */

static void row_tile(void *ctx, int64_t tile)
{
    const Sum *s = ctx;
    int64_t group = tile / s->blocks, block = tile % s->blocks, from = block * s->per_block;
    int64_t n = least(s->per_block, s->r - from);
    for (int64_t i = group * s->per_tile, end = least(s->a, i + s->per_tile); i < end; i++)
        s->partial[i * s->blocks + block] =
            run_sum(s->x->dtype, s->x->data, i * s->r + from, n, run_value, vf_zero());
}

/* ---- columns ---- */

/* to += the sum of four rows (or of one), in pairs: fewer passes over `to`, and smaller rounding
 * errors. */
VF_FN void add_rows(const Sum *s, float *to, int64_t at, int64_t columns, bool four)
{
    DType t = s->x->dtype;
    const void *x = s->x->data;
    for (int64_t j = 0; j < columns; j += VF_LANES) {
        int k = (int)least(VF_LANES, columns - j);
        vf v = vf_ld_n(t, x, at + j, k);
        if (four) {
            v += vf_ld_n(t, x, at + s->b + j, k);
            v += vf_ld_n(t, x, at + 2 * s->b + j, k) + vf_ld_n(t, x, at + 3 * s->b + j, k);
        }
        vf_store_n(to + j, vf_load_n(to + j, k) + v, k);
    }
}

static void column_tile(void *ctx, int64_t tile)
{
    const Sum *s = ctx;
    int64_t strip = tile % s->strips, block = tile / s->strips % s->blocks,
            i = tile / s->strips / s->blocks;
    int64_t c0 = strip * COLUMNS, columns = least(COLUMNS, s->b - c0);
    int64_t r = block * s->per_block, end = least(s->r, r + s->per_block);
    float *to = s->partial + (i * s->blocks + block) * s->b + c0;
    memset(to, 0, (size_t)columns * sizeof(float));
    for (; r + 4 <= end; r += 4) add_rows(s, to, (i * s->r + r) * s->b + c0, columns, true);
    for (; r < end; r++) add_rows(s, to, (i * s->r + r) * s->b + c0, columns, false);
}

/* Partial results of a strip of outputs, block after block. B = 1: a strip of rows, else of one
 * row's columns. */
static void join_rows(void *ctx, int64_t tile)
{
    const Sum *s = ctx;
    for (int64_t i = tile * STRIP, end = least(s->a, i + STRIP); i < end; i++) {
        float sum = 0;
        for (int64_t k = 0; k < s->blocks; k++) sum += s->partial[i * s->blocks + k];
        vf_st1(s->y->dtype, s->y->data, i, sum / s->divisor);
    }
}

static void join_columns(void *ctx, int64_t tile)
{
    const Sum *s = ctx;
    int64_t strips = tiles_of(s->b, STRIP), i = tile / strips;
    vf divisor = vf_set1(s->divisor);
    for (int64_t j = tile % strips * STRIP, end = least(s->b, j + STRIP); j < end; j += VF_LANES) {
        int n = (int)least(VF_LANES, end - j);
        vf sum = vf_zero();
        for (int64_t k = 0; k < s->blocks; k++)
            sum += vf_load_n(s->partial + (i * s->blocks + k) * s->b + j, n);
        vf_st_n(s->y->dtype, s->y->data, i * s->b + j, sum / divisor, n);
    }
}

/* ---- [P, K, Q] ---- */

static void middle_tile(void *ctx, int64_t tile)
{
    const Sum *s = ctx;
    for (int64_t k = tile * s->per_tile, end = least(s->r, k + s->per_tile); k < end; k++) {
        float sum = 0;
        for (int64_t p = 0; p < s->a; p++)
            sum +=
                run_sum(s->x->dtype, s->x->data, (p * s->r + k) * s->b, s->b, run_value, vf_zero());
        vf_st1(s->y->dtype, s->y->data, k, sum / s->divisor);
    }
}

/* Fixes blocks and tiles; false for the form [P, K, Q]. */
static bool cut(Sum *s, const Form *f)
{
    s->a = f->dims[0];
    s->r = f->dims[1];
    s->b = f->dims[2];
    if (f->middle_stays) {
        s->per_tile = rows_per_tile(s->a * s->b);
        return false;
    }
    s->per_block = rows_per_block(s->r, least(s->b, COLUMNS), BLOCKS);
    s->blocks = s->r ? tiles_of(s->r, s->per_block) : 1;
    s->per_tile = rows_per_tile(s->r); /* B = 1 */
    s->strips = tiles_of(s->b, COLUMNS);
    return true;
}

static mpr_status sum_over(const KernelCall *c, uint32_t axes, bool mean)
{
    Form f = form_of(&c->in[0], axes);
    Sum s = {.x = &c->in[0], .y = &c->out[0], .divisor = 1, .partial = c->workspace};
    if (!s.y->n) return MPR_OK;
    bool blocked = cut(&s, &f);
    if (mean) s.divisor = (float)s.x->n / (float)s.y->n;
    if (!blocked) {
        mpri_parallel(c->threads, tiles_of(s.r, s.per_tile), middle_tile, &s);
        return MPR_OK;
    }
    if (s.b == 1) {
        mpri_parallel(c->threads, tiles_of(s.a, s.per_tile) * s.blocks, row_tile, &s);
        mpri_parallel(c->threads, tiles_of(s.a, STRIP), join_rows, &s);
    } else {
        mpri_parallel(c->threads, s.a * s.blocks * s.strips, column_tile, &s);
        mpri_parallel(c->threads, s.a * tiles_of(s.b, STRIP), join_columns, &s);
    }
    return MPR_OK;
}

static mpr_status k_sum(const KernelCall *c)
{
    return sum_over(c, reduce_axes(c->params, c->in[0].rank, input_or_null(c, 1)), false);
}
static mpr_status k_mean(const KernelCall *c)
{
    return sum_over(c, reduce_axes(c->params, c->in[0].rank, input_or_null(c, 1)), true);
}
static mpr_status k_sum_to(const KernelCall *c)
{
    return sum_over(c, axes_of_target(&c->in[0], &c->out[0]), false);
}

static size_t partial_bytes(const Form *f)
{
    Sum s = {0};
    return cut(&s, f) ? (size_t)(s.a * s.blocks * s.b) * sizeof(float) : 0;
}

static Form sum_to_form(const KernelSig *s)
{
    return form_of(&s->in[0], axes_of_target(&s->in[0], &s->out[0]));
}

static size_t reduce_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    Form f = reduce_form(s);
    return partial_bytes(&f);
}
static size_t sum_to_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    Form f = sum_to_form(s);
    return partial_bytes(&f);
}

static const char *refuse_reduce(const KernelSig *s)
{
    if (!vf_can(s->in[0].dtype) || !vf_can(s->out[0].dtype)) return NOT_FLOAT;
    if (sig_has_in(s, 1) && !(s->const_in & 2)) return "axes are not constant";
    return reduce_form(s).ok ? NULL : ALTERNATE;
}
static const char *refuse_sum_to(const KernelSig *s)
{
    if (!vf_can(s->in[0].dtype) || !vf_can(s->out[0].dtype)) return NOT_FLOAT;
    return sum_to_form(s).ok ? NULL : ALTERNATE;
}

static const KernelRow rows[] = {
    {.op = OP_ReduceSum, .name = MPRI_ROW("reducesum"), .isa = MPRI_ISA_ID, .fn = k_sum,
     .refuse = refuse_reduce, .workspace = reduce_bytes},
    {.op = OP_ReduceMean, .name = MPRI_ROW("reducemean"), .isa = MPRI_ISA_ID, .fn = k_mean,
     .refuse = refuse_reduce, .workspace = reduce_bytes},
    {.op = OP_SumTo, .name = MPRI_ROW("sumto"), .isa = MPRI_ISA_ID, .fn = k_sum_to,
     .refuse = refuse_sum_to, .workspace = sum_to_bytes},
};

const KernelTable MPRI_NAME(cpu_reduce) = {rows, sizeof rows / sizeof rows[0]};
