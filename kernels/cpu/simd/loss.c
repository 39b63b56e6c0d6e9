/* Cross-entropy along the last axis, forward and backward, without a probability tensor: forward
 * keeps one log-sum-exp per row, backward makes p = exp(x - lse) again and may write over the
 * logits. Mean squared error. Losses of rows or blocks go to f64 and are added in order on one
 * thread.
 *
 * Class weights are taken without label smoothing only. */
#include "kernels/cpu/simd/tiles.h"
#include "kernels/cpu/simd/vmath.h"

typedef struct CrossEntropy {
    const Tensor *x, *labels, *weights; /* weights may be NULL */
    int64_t rows, classes, per_tile, ignore;
    float smoothing;
    bool mean, none;
    /* forward */
    Tensor *lse;      /* may be NULL */
    double *row_loss;
    /* backward */
    const Tensor *saved, *dloss;
    Tensor *dx;
    float scale;      /* of a row's gradient, dloss of "none" apart */
} CrossEntropy;

static CrossEntropy cross_entropy(const KernelCall *c, int logits, int weights)
{
    const CrossEntropyParams *p = c->params;
    const char *how = p->reduction ? p->reduction : "mean";
    const Tensor *x = &c->in[logits];
    int64_t classes = x->dims[axis_from_front(p->axis, x->rank)];
    return (CrossEntropy){.x = x,
                          .labels = &c->in[logits + 1],
                          .weights = input_or_null(c, weights),
                          .rows = c->in[logits + 1].n,
                          .classes = classes,
                          .per_tile = rows_per_tile(classes),
                          .ignore = p->ignore_index,
                          .smoothing = p->label_smoothing,
                          .mean = strcmp(how, "mean") == 0,
                          .none = strcmp(how, "none") == 0};
}

/* Label of a row, or -1 when it does not count. */
VF_FN int64_t label_of(const CrossEntropy *e, int64_t row)
{
    int64_t v = e->labels->dtype == MPR_INT64 ? ((const int64_t *)e->labels->data)[row]
                                              : ((const int32_t *)e->labels->data)[row];
    return e->ignore != MPRI_NO_IGNORE && v == e->ignore ? -1 : v;
}

VF_FN float weight_of(const CrossEntropy *e, int64_t label)
{
    return e->weights ? vf_ld1(e->weights->dtype, e->weights->data, label) : 1;
}

static mpr_status check_labels(const CrossEntropy *e, const KernelCall *c)
{
    for (int64_t i = 0; i < e->rows; i++) {
        int64_t v = mpri_load_i64(e->labels->dtype, e->labels->data, i);
        if ((v >= 0 && v < e->classes) || (e->ignore != MPRI_NO_IGNORE && v == e->ignore)) continue;
        if (c->fault) *c->fault = (KernelFault){(int)(e->labels - c->in), i, v, 0, e->classes};
        return MPR_E_INDEX;
    }
    return MPR_OK;
}

/* ---- forward ---- */

VF_FN vf exp_from(vf x, vf top) { return vf_exp_share(x - top); }
VF_FN vf below(vf x, vf lse) { return lse - x; }

VF_FN float row_top(DType t, const void *x, int64_t at, int64_t n)
{
    vf a = vf_set1(-INFINITY);
    int64_t j = 0;
    for (; j + VF_LANES <= n; j += VF_LANES) a = vf_max_nan(a, vf_ld(t, x, at + j));
    float top = vf_hmax_nan(a);
    for (; j < n; j++) {
        float v = vf_ld1(t, x, at + j);
        top = v > top || v != v ? v : top;
    }
    return top;
}

VF_FN void forward_row(const CrossEntropy *e, DType t, int64_t row)
{
    int64_t at = row * e->classes, label = label_of(e, row);
    float top = row_top(t, e->x->data, at, e->classes);
    double lse = top, loss = 0;
    if (isfinite(top))
        lse += log((double)run_sum(t, e->x->data, at, e->classes, exp_from, vf_set1(top)));
    if (label >= 0) {
        loss = (double)weight_of(e, label) * (lse - (double)vf_ld1(t, e->x->data, at + label));
        if (e->smoothing != 0) {
            double soft = run_sum(t, e->x->data, at, e->classes, below, vf_set1((float)lse));
            loss = (1 - (double)e->smoothing) * loss +
                   (double)e->smoothing / (double)e->classes * soft;
        }
    }
    e->row_loss[row] = loss;
    if (e->lse) vf_st1(e->lse->dtype, e->lse->data, row, (float)lse);
}

typedef void (*RowFn)(const CrossEntropy *e, DType t, int64_t row);

VF_FN void rows_of_tile(const CrossEntropy *e, int64_t tile, RowFn row)
{
    for (int64_t i = tile * e->per_tile, end = least(e->rows, i + e->per_tile); i < end; i++)
        switch ((int)e->x->dtype) {
        case MPR_FLOAT32: row(e, MPR_FLOAT32, i); break;
        case MPR_FLOAT16: row(e, MPR_FLOAT16, i); break;
        default: row(e, MPR_BFLOAT16, i); break;
        }
}

static void forward_tile(void *ctx, int64_t tile) { rows_of_tile(ctx, tile, forward_row); }

/* Inputs logits, labels, weights; outputs loss, lse, count, each only where it is wanted: a backward
 * pass may ask for the statistics alone. */
static mpr_status k_cross_entropy(const KernelCall *c)
{
    CrossEntropy e = cross_entropy(c, 0, 2);
    double sum = 0, count = 0;
    Tensor *loss = output_or_null(c, 0), *counted = output_or_null(c, 2);
    e.lse = output_or_null(c, 1);
    e.row_loss = c->workspace;
    TRY(check_labels(&e, c));
    mpri_parallel(c->threads, tiles_of(e.rows, e.per_tile), forward_tile, &e);
    for (int64_t i = 0; i < e.rows; i++) {
        int64_t label = label_of(&e, i);
        sum += e.row_loss[i];
        count += label < 0 ? 0 : (double)weight_of(&e, label);
        if (loss && e.none) vf_st1(loss->dtype, loss->data, i, (float)e.row_loss[i]);
    }
    if (loss && !e.none)
        vf_st1(loss->dtype, loss->data, 0, (float)(e.mean ? sum / count : sum));
    if (counted) vf_st1(counted->dtype, counted->data, 0, (float)count);
    return MPR_OK;
}

/* ---- backward: g (p - s/C - (1 - s) [j = label]) ---- */

VF_FN void backward_row(const CrossEntropy *e, DType t, int64_t row)
{
    int64_t at = row * e->classes, label = label_of(e, row);
    DType to = e->dx->dtype;
    void *dx = e->dx->data;
    if (label < 0) {
        for (int64_t j = 0; j < e->classes; j += VF_LANES)
            vf_st_n(to, dx, at + j, vf_zero(), (int)least(VF_LANES, e->classes - j));
        return;
    }
    float g = e->scale * weight_of(e, label), soft = e->smoothing / (float)e->classes;
    if (e->none) g *= vf_ld1(e->dloss->dtype, e->dloss->data, row);
    vf lse = vf_set1(vf_ld1(e->saved->dtype, e->saved->data, row)), scale = vf_set1(g),
       rest = vf_set1(soft);
    float own[VF_LANES]; /* read the label's logit before it is written over */
    vf_store(own, vf_exp_share(vf_set1(vf_ld1(t, e->x->data, at + label)) - lse));
    int64_t j = 0;
    for (; j + VF_LANES <= e->classes; j += VF_LANES)
        vf_st(to, dx, at + j, scale * (vf_exp_share(vf_ld(t, e->x->data, at + j) - lse) - rest));
    int k = (int)(e->classes - j);
    if (k)
        vf_st_n(to, dx, at + j,
                scale * (vf_exp_share(vf_ld_n(t, e->x->data, at + j, k) - lse) - rest),
                k);
    vf_st1(to, dx, at + label, g * (own[0] - soft - (1 - e->smoothing)));
}

static void backward_tile(void *ctx, int64_t tile) { rows_of_tile(ctx, tile, backward_row); }

/* Inputs dloss, logits, labels, lse, count, weights. */
static mpr_status k_cross_entropy_grad(const KernelCall *c)
{
    CrossEntropy e = cross_entropy(c, 1, 5);
    e.dloss = &c->in[0];
    e.saved = &c->in[3];
    e.dx = &c->out[0];
    TRY(check_labels(&e, c));
    e.scale = e.none || !e.rows ? 1 : vf_ld1(e.dloss->dtype, e.dloss->data, 0);
    if (e.mean && e.rows) e.scale /= vf_ld1(c->in[4].dtype, c->in[4].data, 0);
    mpri_parallel(c->threads, tiles_of(e.rows, e.per_tile), backward_tile, &e);
    return MPR_OK;
}

static size_t row_loss_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)s->in[1].n * sizeof(double);
}

static const char *refuse_cross_entropy_at(const KernelSig *s, int logits, int weights)
{
    const CrossEntropyParams *p = s->params;
    const Tensor *x = &s->in[logits];
    for (int k = 0; k < s->n_in; k++)
        if (k != logits + 1 && mpri_tensor_here(&s->in[k]) && !vf_can(s->in[k].dtype))
            return NOT_FLOAT;
    for (int k = 0; k < s->n_out; k++)
        if (mpri_tensor_here(&s->out[k]) && !vf_can(s->out[k].dtype)) return NOT_FLOAT;
    if (s->in[logits + 1].dtype != MPR_INT32 && s->in[logits + 1].dtype != MPR_INT64)
        return "labels int32 or int64";
    if (span(x, axis_from_front(p->axis, x->rank) + 1, x->rank) != 1) return "last axis only";
    if (sig_has_in(s, weights) && p->label_smoothing != 0)
        return "class weights with label smoothing";
    return NULL;
}

static const char *refuse_cross_entropy(const KernelSig *s)
{
    return refuse_cross_entropy_at(s, 0, 2);
}
static const char *refuse_cross_entropy_grad(const KernelSig *s)
{
    return refuse_cross_entropy_at(s, 1, 5);
}

/* ---- mean squared error ---- */

typedef struct Mse {
    const Tensor *a, *b;
    Tensor *dx;
    double *partial; /* one per tile */
    float scale;
} Mse;

static void mse_tile(void *ctx, int64_t tile)
{
    const Mse *m = ctx;
    vf s0 = vf_zero(), s1 = s0;
    int64_t i = tile * TILE, end = least(m->a->n, i + TILE);
    for (; i + 2 * VF_LANES <= end; i += 2 * VF_LANES) {
        vf d0 = vf_ld(m->a->dtype, m->a->data, i) - vf_ld(m->b->dtype, m->b->data, i);
        vf d1 = vf_ld(m->a->dtype, m->a->data, i + VF_LANES) -
                vf_ld(m->b->dtype, m->b->data, i + VF_LANES);
        s0 = vf_fma(d0, d0, s0);
        s1 = vf_fma(d1, d1, s1);
    }
    for (; i < end; i += VF_LANES) {
        int k = (int)least(VF_LANES, end - i);
        vf d = vf_ld_n(m->a->dtype, m->a->data, i, k) - vf_ld_n(m->b->dtype, m->b->data, i, k);
        s0 = vf_fma(d, d, s0);
    }
    m->partial[tile] = vf_hsum(s0 + s1);
}

static bool is_mean(const KernelCall *c)
{
    const MseLossParams *p = c->params;
    return !(p->reduction && strcmp(p->reduction, "sum") == 0);
}

/* Inputs pred, target; outputs loss, count. */
static mpr_status k_mse(const KernelCall *c)
{
    Mse m = {.a = &c->in[0], .b = &c->in[1], .partial = c->workspace};
    int64_t tiles = tiles_of(m.a->n, TILE);
    double sum = 0, n = (double)m.a->n;
    mpri_parallel(c->threads, tiles, mse_tile, &m);
    for (int64_t i = 0; i < tiles; i++) sum += m.partial[i];
    vf_st1(c->out[0].dtype, c->out[0].data, 0, (float)(is_mean(c) ? sum / n : sum));
    if (output_or_null(c, 1)) vf_st1(c->out[1].dtype, c->out[1].data, 0, (float)n);
    return MPR_OK;
}

static size_t mse_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)tiles_of(s->in[0].n, TILE) * sizeof(double);
}

static void mse_grad_tile(void *ctx, int64_t tile)
{
    const Mse *m = ctx;
    vf scale = vf_set1(m->scale);
    for (int64_t i = tile * TILE, end = least(m->dx->n, i + TILE); i < end; i += VF_LANES) {
        int k = (int)least(VF_LANES, end - i);
        vf d = vf_ld_n(m->a->dtype, m->a->data, i, k) - vf_ld_n(m->b->dtype, m->b->data, i, k);
        vf_st_n(m->dx->dtype, m->dx->data, i, scale * d, k);
    }
}

/* Inputs dloss, pred, target, count. */
static mpr_status k_mse_grad(const KernelCall *c)
{
    Mse m = {.a = &c->in[1], .b = &c->in[2], .dx = &c->out[0]};
    if (!m.dx->n) return MPR_OK;
    m.scale = 2 * vf_ld1(c->in[0].dtype, c->in[0].data, 0);
    if (is_mean(c)) m.scale /= vf_ld1(c->in[3].dtype, c->in[3].data, 0);
    mpri_parallel(c->threads, tiles_of(m.dx->n, TILE), mse_grad_tile, &m);
    return MPR_OK;
}

static const char *floats(const KernelSig *s) { return sig_floats(s, 0, 0) ? NULL : NOT_FLOAT; }

static const KernelRow rows[] = {
    {.op = OP_CrossEntropy,
     .name = MPRI_ROW("crossentropy"),
     .isa = MPRI_ISA_ID,
     .fn = k_cross_entropy,
     .refuse = refuse_cross_entropy,
     .workspace = row_loss_bytes},
    {.op = OP_CrossEntropyGrad,
     .name = MPRI_ROW("crossentropygrad"),
     .isa = MPRI_ISA_ID,
     .fn = k_cross_entropy_grad,
     .refuse = refuse_cross_entropy_grad},
    {.op = OP_MseLoss,
     .name = MPRI_ROW("mseloss"),
     .isa = MPRI_ISA_ID,
     .fn = k_mse,
     .refuse = floats,
     .workspace = mse_bytes},
    {.op = OP_MseLossGrad,
     .name = MPRI_ROW("mselossgrad"),
     .isa = MPRI_ISA_ID,
     .fn = k_mse_grad,
     .refuse = floats},
};

const KernelTable MPRI_NAME(cpu_loss) = {rows, sizeof rows / sizeof rows[0]};
