/* CumSum of floats: lines side by side in strips, each summed in double and rounded element by
 * element. The axis must be a constant. */
#include "kernels/cpu/simd/tiles.h"

enum { STRIP = 64 };

typedef struct Sums {
    const Tensor *x;
    Tensor *y;
    int64_t outer, n, inner;
    int64_t strips, per_tile; /* strips of one line of outer, (outer, strip) pairs of a tile */
    bool exclusive, reverse;
} Sums;

static void strip(const Sums *s, int64_t o, int64_t c0)
{
    double sum[STRIP] = {0};
    DType tx = s->x->dtype, ty = s->y->dtype;
    int64_t count = least(STRIP, s->inner - c0);
    for (int64_t j = 0; j < s->n; j++) {
        int64_t at = (o * s->n + (s->reverse ? s->n - 1 - j : j)) * s->inner + c0;
        for (int64_t i = 0; i < count; i++) {
            double next = sum[i] + (double)vf_ld1(tx, s->x->data, at + i);
            vf_st1(ty, s->y->data, at + i, (float)(s->exclusive ? sum[i] : next));
            sum[i] = next;
        }
    }
}

static void tile_of_strips(void *ctx, int64_t tile)
{
    const Sums *s = ctx;
    int64_t all = s->outer * s->strips;
    for (int64_t i = tile * s->per_tile, end = least(all, i + s->per_tile); i < end; i++)
        strip(s, i / s->strips, i % s->strips * STRIP);
}

static mpr_status k_sum(const KernelCall *c)
{
    const CumulativeParams *p = c->params;
    const Tensor *x = &c->in[0], *axis = &c->in[1];
    if (x->n == 0) return MPR_OK;
    int a = axis_from_front(mpri_load_i64(axis->dtype, axis->data, 0), x->rank);
    Sums s = {.x = x, .y = &c->out[0], .outer = span(x, 0, a), .n = x->dims[a],
              .inner = span(x, a + 1, x->rank), .exclusive = p->exclusive, .reverse = p->reverse};
    s.strips = tiles_of(s.inner, STRIP);
    s.per_tile = rows_per_tile(s.n * least(STRIP, s.inner));
    mpri_parallel(c->threads, tiles_of(s.outer * s.strips, s.per_tile), tile_of_strips, &s);
    return MPR_OK;
}

static const char *refuse(const KernelSig *s)
{
    if (!vf_can(s->in[0].dtype) || !vf_can(s->out[0].dtype)) return NOT_FLOAT;
    return s->const_in & 2 ? NULL : "the axis is not constant";
}

static const KernelRow rows[] = {
    {.op = OP_CumSum, .name = MPRI_ROW("cumsum"), .isa = MPRI_ISA_ID, .fn = k_sum,
     .refuse = refuse},
};

const KernelTable MPRI_NAME(cpu_cumulative) = {rows, sizeof rows / sizeof rows[0]};
