/* ReduceL1, L2, SumSquare, LogSum and LogSumExp. Floats are folded in double; a sum of squares of
 * doubles is scaled by the largest element, so that the norm overflows only where the result does.
 * Integers: sums wrap around as in C, the root and the logarithm are rounded towards zero. Over
 * nothing the sums are 0 and the logarithms -inf. */
#include "kernels/ref/reduce.h"

typedef enum Norm { NORM_L1, NORM_L2, NORM_SQUARE, NORM_LOG, NORM_LOG_EXP } Norm;

typedef struct Run { /* the elements that make one output element */
    const Tensor *x;
    const FoldPlan *p;
    int64_t base;
} Run;

static double element(const Run *r, int64_t j)
{
    return mpri_ref_load(r->x, r->base + mpri_ref_fold_step(r->p, j));
}

/* Largest element (or magnitude); NaN wins; -inf of nothing. */
static double largest(const Run *r, bool magnitude)
{
    double top = -HUGE_VAL;
    for (int64_t j = 0; j < r->p->n && !isnan(top); j++) {
        double v = magnitude ? fabs(element(r, j)) : element(r, j);
        if (isnan(v) || v > top) top = v;
    }
    return top;
}

static double root_of_squares(const Run *r)
{
    double top = largest(r, true), sum = 0;
    if (!(top > 0) || isinf(top)) return isnan(top) || top > 0 ? top : 0;
    for (int64_t j = 0; j < r->p->n; j++) {
        double v = element(r, j) / top;
        sum += v * v;
    }
    return top * sqrt(sum);
}

static double log_of_exps(const Run *r)
{
    double top = largest(r, false), sum = 0;
    if (isnan(top) || isinf(top)) return top;
    for (int64_t j = 0; j < r->p->n; j++) sum += exp(element(r, j) - top);
    return top + log(sum);
}

static double norm_of(const Run *r, Norm f)
{
    double sum = 0;
    if (f == NORM_L2) return root_of_squares(r);
    if (f == NORM_LOG_EXP) return log_of_exps(r);
    for (int64_t j = 0; j < r->p->n; j++) {
        double v = element(r, j);
        sum += f == NORM_L1 ? fabs(v) : f == NORM_SQUARE ? v * v : v;
    }
    return f == NORM_LOG ? log(sum) : sum;
}

static int64_t whole_norm(const Run *r, Norm f)
{
    uint64_t sum = 0;
    for (int64_t j = 0; j < r->p->n; j++) {
        int64_t at = r->base + mpri_ref_fold_step(r->p, j);
        uint64_t v = (uint64_t)mpri_load_i64(r->x->dtype, r->x->data, at);
        bool negative = r->x->dtype != MPR_UINT64 && (int64_t)v < 0;
        sum += f == NORM_SQUARE ? v * v : negative ? 0 - v : v;
    }
    return (int64_t)sum;
}

static mpr_status norm(const KernelCall *c, Norm f)
{
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    FoldPlan p = mpri_ref_fold_plan(x, mpri_ref_reduced_axes(c));
    bool whole = !mpri_dtype_is_float(x->dtype) && (f == NORM_L1 || f == NORM_SQUARE);
    for (int64_t i = 0; i < y->n; i++) {
        Run r = {x, &p, mpri_ref_fold_base(&p, i)};
        if (whole) mpri_store_i64(y->dtype, y->data, i, whole_norm(&r, f));
        else mpri_ref_store(y, i, norm_of(&r, f));
    }
    return MPR_OK;
}

static mpr_status k_l1(const KernelCall *c) { return norm(c, NORM_L1); }
static mpr_status k_l2(const KernelCall *c) { return norm(c, NORM_L2); }
static mpr_status k_square(const KernelCall *c) { return norm(c, NORM_SQUARE); }
static mpr_status k_log(const KernelCall *c) { return norm(c, NORM_LOG); }
static mpr_status k_log_exp(const KernelCall *c) { return norm(c, NORM_LOG_EXP); }

static const KernelRow rows[] = {
    REF_ROW(ReduceL1, "reducel1", k_l1),
    REF_ROW(ReduceL2, "reducel2", k_l2),
    REF_ROW(ReduceSumSquare, "reducesumsquare", k_square),
    REF_ROW(ReduceLogSum, "reducelogsum", k_log),
    REF_ROW(ReduceLogSumExp, "reducelogsumexp", k_log_exp),
};
const KernelTable mpri_ref_reduce_norms = REF_TABLE(rows);
