/* Softmax, LogSoftmax and Hardmax along one axis, and their gradients from the saved output. The maximum is
 * taken out first. A row of only -inf (all keys masked) gives 0, not NaN, its logarithm -inf. */
#include "kernels/ref/util.h"

typedef struct Line { /* the elements along the axis: base + j * stride */
    int64_t base, stride, n;
} Line;

typedef struct Lines {
    int64_t count, n, inner;
} Lines;

static Lines lines_of(const Tensor *t, int64_t axis)
{
    int a = mpri_ref_axis(axis, t->rank);
    if (t->rank == 0) return (Lines){.count = 1, .n = 1, .inner = 1};
    return (Lines){.count = mpri_ref_span(t, 0, a) * mpri_ref_span(t, a + 1, t->rank),
                   .n = t->dims[a], .inner = mpri_ref_span(t, a + 1, t->rank)};
}

static Line line(const Lines *l, int64_t i)
{
    return (Line){i / l->inner * l->n * l->inner + i % l->inner, l->inner, l->n};
}

static void softmax(const Tensor *x, Tensor *y, Line l, bool log_form)
{
    double top = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < l.n; j++) {
        double v = mpri_ref_load(x, l.base + j * l.stride);
        if (isnan(v) || v > top) top = v;
        if (isnan(top)) break;
    }
    bool masked = top == -HUGE_VAL;
    for (int64_t j = 0; j < l.n && !masked; j++)
        sum += exp(mpri_ref_load(x, l.base + j * l.stride) - top);
    for (int64_t j = 0; j < l.n; j++) {
        double d = masked ? -HUGE_VAL : mpri_ref_load(x, l.base + j * l.stride) - top;
        double r = log_form ? (masked ? d : d - log(sum)) : (masked ? 0 : exp(d) / sum);
        mpri_ref_store(y, l.base + j * l.stride, r);
    }
}

static mpr_status forward(const KernelCall *c, bool log_form)
{
    const SoftmaxParams *p = c->params;
    Lines l = lines_of(&c->in[0], p->axis);
    for (int64_t i = 0; i < l.count; i++) softmax(&c->in[0], &c->out[0], line(&l, i), log_form);
    return MPR_OK;
}

/* 1 at the first largest element; a NaN is the largest. */
static mpr_status k_hardmax(const KernelCall *c)
{
    const SoftmaxParams *p = c->params;
    const Tensor *x = &c->in[0];
    Lines lines = lines_of(x, p->axis);
    for (int64_t i = 0; i < lines.count; i++) {
        Line l = line(&lines, i);
        int64_t best = 0;
        double top = l.n ? mpri_ref_load(x, l.base) : 0;
        for (int64_t j = 1; j < l.n && !isnan(top); j++) {
            double v = mpri_ref_load(x, l.base + j * l.stride);
            if (!(v > top) && !isnan(v)) continue;
            top = v;
            best = j;
        }
        for (int64_t j = 0; j < l.n; j++)
            mpri_ref_store(&c->out[0], l.base + j * l.stride, j == best);
    }
    return MPR_OK;
}

/* dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm. A masked row: y = dx = 0. */
static void softmax_grad(const Tensor *dy, const Tensor *y, Tensor *dx, Line l, bool log_form)
{
    double sum = 0;
    for (int64_t j = 0; j < l.n; j++) {
        int64_t at = l.base + j * l.stride;
        sum += log_form ? mpri_ref_load(dy, at) : mpri_ref_load(dy, at) * mpri_ref_load(y, at);
    }
    for (int64_t j = 0; j < l.n; j++) {
        int64_t at = l.base + j * l.stride;
        double g = mpri_ref_load(dy, at), v = mpri_ref_load(y, at);
        mpri_ref_store(dx, at, log_form ? g - exp(v) * sum : v * (g - sum));
    }
}

/* Inputs dy, y. */
static mpr_status backward(const KernelCall *c, bool log_form)
{
    const SoftmaxParams *p = c->params;
    Lines l = lines_of(&c->in[0], p->axis);
    for (int64_t i = 0; i < l.count; i++)
        softmax_grad(&c->in[0], &c->in[1], &c->out[0], line(&l, i), log_form);
    return MPR_OK;
}

static mpr_status k_softmax(const KernelCall *c) { return forward(c, false); }
static mpr_status k_log_softmax(const KernelCall *c) { return forward(c, true); }
static mpr_status k_softmax_grad(const KernelCall *c) { return backward(c, false); }
static mpr_status k_log_softmax_grad(const KernelCall *c) { return backward(c, true); }

static const KernelRow rows[] = {
    REF_ROW(Softmax, "softmax", k_softmax),
    REF_ROW(LogSoftmax, "logsoftmax", k_log_softmax),
    REF_ROW(Hardmax, "hardmax", k_hardmax),
    REF_ROW(SoftmaxGrad, "softmaxgrad", k_softmax_grad),
    REF_ROW(LogSoftmaxGrad, "logsoftmaxgrad", k_log_softmax_grad),
};
const KernelTable mpri_ref_softmax = REF_TABLE(rows);
