/* CumSum, CumProd and the gradient of the latter. Floats run in double, each result rounded once;
 * integers wrap around. */
#include "kernels/ref/lines.h"

static AxisLines lines_along(const KernelCall *c, const Tensor *x, int axis_input)
{
    const Tensor *axis = &c->in[axis_input];
    return mpri_ref_lines(x, mpri_load_i64(axis->dtype, axis->data, 0));
}

/* Position of step j of a line, from its start or its end. */
static int64_t step_at(const AxisLines *l, int64_t base, int64_t j, bool reverse)
{
    return base + (reverse ? l->n - 1 - j : j) * l->inner;
}

static void run_float(const Tensor *x, Tensor *y, const AxisLines *l, int64_t base,
                      const CumulativeParams *p, bool product)
{
    double sum = product;
    for (int64_t j = 0; j < l->n; j++) {
        int64_t at = step_at(l, base, j, p->reverse);
        double v = mpri_ref_load(x, at), next = product ? sum * v : sum + v;
        mpri_ref_store(y, at, p->exclusive ? sum : next);
        sum = next;
    }
}

static void run_int(const Tensor *x, Tensor *y, const AxisLines *l, int64_t base,
                    const CumulativeParams *p, bool product)
{
    uint64_t sum = product;
    for (int64_t j = 0; j < l->n; j++) {
        int64_t at = step_at(l, base, j, p->reverse);
        uint64_t v = (uint64_t)mpri_load_i64(x->dtype, x->data, at),
                 next = product ? sum * v : sum + v;
        mpri_store_i64(y->dtype, y->data, at, (int64_t)(p->exclusive ? sum : next));
        sum = next;
    }
}

static mpr_status run(const KernelCall *c, bool product)
{
    const Tensor *x = &c->in[0];
    if (x->n == 0) return MPR_OK;
    AxisLines l = lines_along(c, x, 1);
    for (int64_t i = 0; i < l.count; i++) {
        int64_t base = mpri_ref_line_base(&l, i);
        if (mpri_dtype_is_float(x->dtype))
            run_float(x, &c->out[0], &l, base, c->params, product);
        else run_int(x, &c->out[0], &l, base, c->params, product);
    }
    return MPR_OK;
}

static mpr_status k_sum(const KernelCall *c) { return run(c, false); }
static mpr_status k_product(const KernelCall *c) { return run(c, true); }

/* Inputs dy, x, axis. The suffix sums S of a line go into the workspace, then the prefix products
 * follow. Exclusive: S_j = dy_(j+1) + x_(j+1) S_(j+1), and 0 for the last. */
static mpr_status k_product_grad(const KernelCall *c)
{
    const CumulativeParams *p = c->params;
    const Tensor *dy = &c->in[0], *x = &c->in[1];
    double *s = c->workspace;
    if (x->n == 0) return MPR_OK;
    AxisLines l = lines_along(c, x, 2);
    for (int64_t i = 0; i < l.count; i++) {
        int64_t base = mpri_ref_line_base(&l, i);
        for (int64_t j = l.n - 1; j >= 0; j--) {
            bool last = j + 1 == l.n;
            int64_t next = last ? 0 : step_at(&l, base, j + 1, p->reverse);
            double tail = last ? 0 : mpri_ref_load(x, next) * s[j + 1];
            if (!p->exclusive) s[j] = mpri_ref_load(dy, step_at(&l, base, j, p->reverse)) + tail;
            else s[j] = last ? 0 : mpri_ref_load(dy, next) + tail;
        }
        double before = 1;
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = step_at(&l, base, j, p->reverse);
            double v = mpri_ref_load(x, at);
            mpri_ref_store(&c->out[0], at, before * s[j]);
            before *= v;
        }
    }
    return MPR_OK;
}

/* The axis may be known at run time only: the longest dim. */
static size_t longest_line(const KernelSig *s, int threads)
{
    (void)threads;
    int64_t n = 1;
    for (int k = 0; k < s->in[1].rank; k++) n = s->in[1].dims[k] > n ? s->in[1].dims[k] : n;
    return (size_t)n * sizeof(double);
}

static const KernelRow rows[] = {
    REF_ROW(CumSum, "cumsum", k_sum),
    REF_ROW(CumProd, "cumprod", k_product),
    {.op = OP_CumProdGrad, .name = "ref.cumprodgrad", .fn = k_product_grad,
     .workspace = longest_line},
};
const KernelTable mpri_ref_cumulative = REF_TABLE(rows);
