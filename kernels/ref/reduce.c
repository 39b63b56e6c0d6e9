/* Reductions over any axes, and SumTo, the reverse of broadcasting. The output position of an input
 * element follows from its coordinates with the reduced axes left out. Floats accumulate in double
 * in order of position. An empty reduction gives the neutral element (0, 1, the type's lowest or
 * highest value); the mean of nothing is 0/0. */
#include <limits.h>
#include "kernels/ref/reduce.h"

typedef enum Fold { FOLD_SUM, FOLD_MEAN, FOLD_PROD, FOLD_MAX, FOLD_MIN } Fold;

static double fold_f(Fold f, double a, double v)
{
    switch (f) {
    case FOLD_PROD: return a * v;
    case FOLD_MAX: return isnan(a) || a > v ? a : v;
    case FOLD_MIN: return isnan(a) || a < v ? a : v;
    default: return a + v;
    }
}

static void reduce_float(const Tensor *x, Tensor *y, const FoldPlan *p, Fold f)
{
    static const double neutral[] = {0, 0, 1, -HUGE_VAL, HUGE_VAL};
    for (int64_t i = 0; i < y->n; i++) {
        int64_t base = mpri_ref_fold_base(p, i);
        double a = neutral[f];
        for (int64_t j = 0; j < p->n; j++)
            a = fold_f(f, a, mpri_ref_load(x, base + mpri_ref_fold_step(p, j)));
        mpri_ref_store(y, i, f == FOLD_MEAN ? a / (double)p->n : a);
    }
}

/* Lowest or highest value of an integer type, as mpri_load_i64 shows it. */
static int64_t int_limit(DType t, bool highest)
{
    int bits = 8 * (int)mpri_dtype_size(t);
    bool is_signed = t == MPR_INT8 || t == MPR_INT16 || t == MPR_INT32 || t == MPR_INT64;
    if (t == MPR_BOOL) return highest;
    if (!is_signed) return highest ? (int64_t)(UINT64_MAX >> (64 - bits)) : 0;
    int64_t top = (int64_t)(UINT64_MAX >> (65 - bits));
    return highest ? top : -top - 1;
}

static void reduce_int(const Tensor *x, Tensor *y, const FoldPlan *p, Fold f)
{
    bool u = x->dtype == MPR_UINT64;
    uint64_t flip = u ? (uint64_t)1 << 63 : 0; /* makes signed order of u64 */
    uint64_t start = f == FOLD_PROD ? 1 : 0;
    if (f == FOLD_MAX || f == FOLD_MIN) start = (uint64_t)int_limit(x->dtype, f == FOLD_MIN);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t base = mpri_ref_fold_base(p, i);
        uint64_t a = start;
        for (int64_t j = 0; j < p->n; j++) {
            int64_t at = base + mpri_ref_fold_step(p, j);
            uint64_t v = (uint64_t)mpri_load_i64(x->dtype, x->data, at);
            bool above = (int64_t)(v ^ flip) > (int64_t)(a ^ flip);
            if (f == FOLD_PROD) a *= v;
            else if (f == FOLD_MAX) a = above ? v : a;
            else if (f == FOLD_MIN) a = above ? a : v;
            else a += v;
        }
        if (f == FOLD_MEAN && p->n) a = u ? a / (uint64_t)p->n : (uint64_t)((int64_t)a / p->n);
        mpri_store_i64(y->dtype, y->data, i, (int64_t)a);
    }
}

static mpr_status fold_axes(const Tensor *x, Tensor *y, uint32_t axes, Fold f)
{
    FoldPlan p = mpri_ref_fold_plan(x, axes);
    if (mpri_dtype_is_float(x->dtype)) reduce_float(x, y, &p, f);
    else reduce_int(x, y, &p, f);
    return MPR_OK;
}

static mpr_status reduce(const KernelCall *c, Fold f)
{
    return fold_axes(&c->in[0], &c->out[0], mpri_ref_reduced_axes(c), f);
}

static mpr_status k_mean(const KernelCall *c) { return reduce(c, FOLD_MEAN); }
static mpr_status k_sum(const KernelCall *c) { return reduce(c, FOLD_SUM); }
static mpr_status k_prod(const KernelCall *c) { return reduce(c, FOLD_PROD); }
static mpr_status k_max(const KernelCall *c) { return reduce(c, FOLD_MAX); }
static mpr_status k_min(const KernelCall *c) { return reduce(c, FOLD_MIN); }

/* Sums leading axes, and axes where the output has 1. */
static mpr_status k_sum_to(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    uint32_t axes = 0;
    for (int k = 0, o = y->rank - x->rank; k < x->rank; k++, o++)
        if (o < 0 || (y->dims[o] == 1 && x->dims[k] != 1)) axes |= 1u << k;
    return fold_axes(x, &c->out[0], axes, FOLD_SUM);
}

static const KernelRow rows[] = {
    REF_ROW(ReduceMean, "reducemean", k_mean),
    REF_ROW(ReduceSum, "reducesum", k_sum),
    REF_ROW(ReduceProd, "reduceprod", k_prod),
    REF_ROW(ReduceMax, "reducemax", k_max),
    REF_ROW(ReduceMin, "reducemin", k_min),
    REF_ROW(SumTo, "sumto", k_sum_to),
};
const KernelTable mpri_ref_reduce = REF_TABLE(rows);
