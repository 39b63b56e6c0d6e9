/* Softmax and LogSoftmax along the last axis, and their gradients; other axes are left to the
 * reference kernels. A row is read once for its maximum and once for its sum of exponentials. An
 * f32 output keeps the exponentials in between; a 16-bit one would round them, so there they wait
 * on the stack, or are computed again for a long row. A row of only -inf gives 0 (its logarithm
 * -inf). A tile is a fixed number of rows. */
#include "kernels/cpu/simd/tiles.h"
#include "kernels/cpu/simd/vmath.h"

typedef struct Job {
    const Tensor *a, *b; /* x, or dy and y */
    Tensor *y;
    int64_t rows, n, per_tile;
} Job;

static mpr_status run(const KernelCall *c, void (*tile)(void *ctx, int64_t tile))
{
    const SoftmaxParams *p = c->params;
    const Tensor *x = &c->in[0];
    Rows r = rows_from(x, x->rank ? axis_from_front(p->axis, x->rank) : 0);
    Job job = {x, input_or_null(c, 1), &c->out[0], r.count, r.n, rows_per_tile(r.n)};
    if (x->n) mpri_parallel(c->threads, tiles_of(r.count, job.per_tile), tile, &job);
    return MPR_OK;
}

VF_FN float row_max(DType t, const void *x, int64_t at, int64_t n)
{
    vf a = vf_set1(-INFINITY), b = a;
    int64_t j = 0;
    for (; j + 2 * VF_LANES <= n; j += 2 * VF_LANES) {
        a = vf_max_nan(a, vf_ld(t, x, at + j));
        b = vf_max_nan(b, vf_ld(t, x, at + j + VF_LANES));
    }
    float top = vf_hmax_nan(vf_max_nan(a, b));
    for (; j < n; j++) {
        float v = vf_ld1(t, x, at + j);
        top = v > top || v != v ? v : top;
    }
    return top;
}

VF_FN vf exp_from(vf x, vf top) { return vf_exp_share(x - top); }

/* exp(x - top) into y (f32), returns the sum; joined every SUM_BLOCK elements as in run_sum. */
VF_FN float row_exp(DType t, const void *x, float *y, int64_t at, int64_t n, vf top)
{
    double sum = 0;
    for (int64_t j = 0; j < n;) {
        int64_t end = least(n, j + SUM_BLOCK);
        vf s0 = vf_zero(), s1 = s0;
        for (; j + 2 * VF_LANES <= end; j += 2 * VF_LANES) {
            vf e0 = exp_from(vf_ld(t, x, at + j), top),
               e1 = exp_from(vf_ld(t, x, at + j + VF_LANES), top);
            vf_store(y + at + j, e0);
            vf_store(y + at + j + VF_LANES, e1);
            s0 += e0;
            s1 += e1;
        }
        for (; j < end; j += VF_LANES) {
            int k = (int)least(VF_LANES, end - j);
            vf_store_n(y + at + j, exp_from(vf_ld_n(t, x, at + j, k), top), k);
            s0 += vf_load_n(y + at + j, k);
        }
        j = end;
        sum += (double)vf_hsum(s0 + s1);
    }
    return (float)sum;
}

VF_FN void row_fill(const Job *job, int64_t at, float v)
{
    for (int64_t j = 0; j < job->n; j += VF_LANES)
        vf_st_n(job->y->dtype, job->y->data, at + j, vf_set1(v), (int)least(VF_LANES, job->n - j));
}

VF_FN void row_softmax(const Job *job, DType t, int64_t at)
{
    const void *x = job->a->data;
    void *y = job->y->data;
    DType ty = job->y->dtype;
    float top = row_max(t, x, at, job->n);
    if (top == -INFINITY) {
        row_fill(job, at, 0);
        return;
    }
    vf shift = vf_set1(top);
    if (ty == MPR_FLOAT32) {
        vf scale = vf_set1(1.0f / row_exp(t, x, y, at, job->n, shift));
        for (int64_t j = 0; j < job->n; j += VF_LANES) {
            int k = (int)least(VF_LANES, job->n - j);
            vf_store_n((float *)y + at + j, vf_load_n((float *)y + at + j, k) * scale, k);
        }
        return;
    }
    if (job->n <= SUM_BLOCK) {
        float e[SUM_BLOCK];
        vf scale = vf_set1(1.0f / row_exp(t, (const char *)x + at * (int64_t)mpri_dtype_size(t), e,
                                          0, job->n, shift));
        for (int64_t j = 0; j < job->n; j += VF_LANES) {
            int k = (int)least(VF_LANES, job->n - j);
            vf_st_n(ty, y, at + j, vf_load_n(e + j, k) * scale, k);
        }
        return;
    }
    vf scale = vf_set1(1.0f / run_sum(t, x, at, job->n, exp_from, shift));
    for (int64_t j = 0; j < job->n; j += VF_LANES) {
        int k = (int)least(VF_LANES, job->n - j);
        vf_st_n(ty, y, at + j, exp_from(vf_ld_n(t, x, at + j, k), shift) * scale, k);
    }
}

VF_FN void row_log_softmax(const Job *job, DType t, int64_t at)
{
    const void *x = job->a->data;
    float top = row_max(t, x, at, job->n);
    if (top == -INFINITY) {
        row_fill(job, at, -INFINITY);
        return;
    }
    vf shift = vf_set1(top), log_sum = vf_set1(logf(run_sum(t, x, at, job->n, exp_from, shift)));
    for (int64_t j = 0; j < job->n; j += VF_LANES) {
        int k = (int)least(VF_LANES, job->n - j);
        vf_st_n(job->y->dtype, job->y->data, at + j, vf_ld_n(t, x, at + j, k) - shift - log_sum, k);
    }
}

/* dx = y (dy - sum(dy y)). */
VF_FN void row_softmax_grad(const Job *job, DType t, int64_t at)
{
    const void *dy = job->a->data, *y = job->b->data;
    DType ty = job->b->dtype;
    vf s0 = vf_zero(), s1 = s0;
    int64_t j = 0;
    for (; j + 2 * VF_LANES <= job->n; j += 2 * VF_LANES) {
        s0 = vf_fma(vf_ld(t, dy, at + j), vf_ld(ty, y, at + j), s0);
        s1 = vf_fma(vf_ld(t, dy, at + j + VF_LANES), vf_ld(ty, y, at + j + VF_LANES), s1);
    }
    for (; j < job->n; j += VF_LANES) {
        int k = (int)least(VF_LANES, job->n - j);
        s0 = vf_fma(vf_ld_n(t, dy, at + j, k), vf_ld_n(ty, y, at + j, k), s0);
    }
    vf dot = vf_set1(vf_hsum(s0 + s1));
    for (j = 0; j < job->n; j += VF_LANES) {
        int k = (int)least(VF_LANES, job->n - j);
        vf g = vf_ld_n(t, dy, at + j, k) - dot;
        vf_st_n(job->y->dtype, job->y->data, at + j, vf_ld_n(ty, y, at + j, k) * g, k);
    }
}

/* dx = dy - exp(y) sum(dy). */
VF_FN void row_log_softmax_grad(const Job *job, DType t, int64_t at)
{
    const void *dy = job->a->data, *y = job->b->data;
    vf sum = vf_set1(run_sum(t, dy, at, job->n, run_value, vf_zero()));
    for (int64_t j = 0; j < job->n; j += VF_LANES) {
        int k = (int)least(VF_LANES, job->n - j);
        vf p = vf_exp_share(vf_ld_n(job->b->dtype, y, at + j, k));
        vf_st_n(job->y->dtype, job->y->data, at + j, vf_fnma(p, sum, vf_ld_n(t, dy, at + j, k)), k);
    }
}

typedef void (*RowFn)(const Job *job, DType t, int64_t at);

/* The type of the first input is made constant: it is read most. */
VF_FN void rows_of_tile(const Job *job, int64_t tile, RowFn row)
{
    for (int64_t i = tile * job->per_tile, end = least(job->rows, i + job->per_tile); i < end; i++)
        switch ((int)job->a->dtype) {
        case MPR_FLOAT32: row(job, MPR_FLOAT32, i * job->n); break;
        case MPR_FLOAT16: row(job, MPR_FLOAT16, i * job->n); break;
        default: row(job, MPR_BFLOAT16, i * job->n); break;
        }
}

static void softmax_tile(void *ctx, int64_t tile) { rows_of_tile(ctx, tile, row_softmax); }
static void log_softmax_tile(void *ctx, int64_t tile) { rows_of_tile(ctx, tile, row_log_softmax); }
static void softmax_grad_tile(void *ctx, int64_t tile)
{
    rows_of_tile(ctx, tile, row_softmax_grad);
}
static void log_softmax_grad_tile(void *ctx, int64_t tile)
{
    rows_of_tile(ctx, tile, row_log_softmax_grad);
}

static mpr_status k_softmax(const KernelCall *c) { return run(c, softmax_tile); }
static mpr_status k_log_softmax(const KernelCall *c) { return run(c, log_softmax_tile); }
static mpr_status k_softmax_grad(const KernelCall *c) { return run(c, softmax_grad_tile); }
static mpr_status k_log_softmax_grad(const KernelCall *c) { return run(c, log_softmax_grad_tile); }

static const char *last_axis(const KernelSig *s)
{
    const SoftmaxParams *p = s->params;
    const Tensor *x = &s->in[0];
    if (!sig_floats(s, 0, 0)) return NOT_FLOAT;
    if (x->rank && span(x, axis_from_front(p->axis, x->rank) + 1, x->rank) != 1)
        return "last axis only";
    return NULL;
}

#define SOFTMAX(Op, lower, function)                                          \
    {.op = OP_##Op, .name = MPRI_ROW(lower), .isa = MPRI_ISA_ID, .fn = (function), \
     .refuse = last_axis}

static const KernelRow rows[] = {
    SOFTMAX(Softmax, "softmax", k_softmax),
    SOFTMAX(LogSoftmax, "logsoftmax", k_log_softmax),
    SOFTMAX(SoftmaxGrad, "softmaxgrad", k_softmax_grad),
    SOFTMAX(LogSoftmaxGrad, "logsoftmaxgrad", k_log_softmax_grad),
};

const KernelTable MPRI_NAME(cpu_softmax) = {rows, sizeof rows / sizeof rows[0]};
