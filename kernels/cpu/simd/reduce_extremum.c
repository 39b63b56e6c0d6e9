/* ReduceMax and ReduceMin of floats where the dims merge to [A, R, B] with R reduced: B = 1 row by
 * row, else strips of columns. NaN wins; over nothing the result is -inf or inf. */
#include "kernels/cpu/simd/reduce_form.h"

enum { COLUMNS = 1024 };

typedef struct Extremum {
    const Tensor *x;
    Tensor *y;
    int64_t a, r, b;
    int64_t per_tile; /* rows of one tile, B = 1 */
    int64_t strips;   /* tiles across B */
    bool least;       /* ReduceMin */
} Extremum;

VF_FN vf better(const Extremum *e, vf a, vf b)
{
    return e->least ? vf_min_nan(a, b) : vf_max_nan(a, b);
}
VF_FN float neutral(const Extremum *e) { return e->least ? HUGE_VALF : -HUGE_VALF; }

static void row_tile(void *ctx, int64_t tile)
{
    const Extremum *e = ctx;
    DType t = e->x->dtype;
    for (int64_t i = tile * e->per_tile, end = least(e->a, i + e->per_tile); i < end; i++) {
        vf m0 = vf_set1(neutral(e)), m1 = m0;
        int64_t at = i * e->r, j = 0;
        for (; j + 2 * VF_LANES <= e->r; j += 2 * VF_LANES) {
            m0 = better(e, m0, vf_ld(t, e->x->data, at + j));
            m1 = better(e, m1, vf_ld(t, e->x->data, at + j + VF_LANES));
        }
        for (; j < e->r; j++) m0 = better(e, m0, vf_set1(vf_ld1(t, e->x->data, at + j)));
        m0 = better(e, m0, m1);
        vf_st1(e->y->dtype, e->y->data, i, e->least ? vf_hmin_nan(m0) : vf_hmax_nan(m0));
    }
}

static void column_tile(void *ctx, int64_t tile)
{
    const Extremum *e = ctx;
    int64_t i = tile / e->strips, c0 = tile % e->strips * COLUMNS;
    for (int64_t j = c0, end = least(e->b, c0 + COLUMNS); j < end; j += VF_LANES) {
        int n = (int)least(VF_LANES, end - j);
        vf m = vf_set1(neutral(e));
        for (int64_t r = 0; r < e->r; r++)
            m = better(e, m, vf_ld_n(e->x->dtype, e->x->data, (i * e->r + r) * e->b + j, n));
        vf_st_n(e->y->dtype, e->y->data, i * e->b + j, m, n);
    }
}

static mpr_status reduce(const KernelCall *c, bool minimum)
{
    Form f = form_of(&c->in[0], reduce_axes(c->params, c->in[0].rank, input_or_null(c, 1)));
    Extremum e = {.x = &c->in[0], .y = &c->out[0], .a = f.dims[0], .r = f.dims[1], .b = f.dims[2],
                  .per_tile = rows_per_tile(f.dims[1]), .strips = tiles_of(f.dims[2], COLUMNS),
                  .least = minimum};
    if (!e.y->n) return MPR_OK;
    if (e.b == 1) mpri_parallel(c->threads, tiles_of(e.a, e.per_tile), row_tile, &e);
    else mpri_parallel(c->threads, e.a * e.strips, column_tile, &e);
    return MPR_OK;
}

static mpr_status k_max(const KernelCall *c) { return reduce(c, false); }
static mpr_status k_min(const KernelCall *c) { return reduce(c, true); }

static const char *refuse(const KernelSig *s)
{
    if (!vf_can(s->in[0].dtype) || !vf_can(s->out[0].dtype)) return NOT_FLOAT;
    if (sig_has_in(s, 1) && !(s->const_in & 2)) return "axes are not constant";
    Form f = reduce_form(s);
    return f.ok && !f.middle_stays ? NULL : ALTERNATE;
}

static const KernelRow rows[] = {
    {.op = OP_ReduceMax, .name = MPRI_ROW("reducemax"), .isa = MPRI_ISA_ID, .fn = k_max,
     .refuse = refuse},
    {.op = OP_ReduceMin, .name = MPRI_ROW("reducemin"), .isa = MPRI_ISA_ID, .fn = k_min,
     .refuse = refuse},
};

const KernelTable MPRI_NAME(cpu_reduce_extremum) = {rows, sizeof rows / sizeof rows[0]};
