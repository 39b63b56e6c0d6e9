/* Attention and its gradient, one query at a time in double. See runtime/op/attention.c for the
 * operands and kernels/attention.h for what a query may see.
 *
 * A masked key is left out by choice, never by adding -inf, so NaN and inf behind a mask do no
 * harm. A query that sees no key gives zeros. */
#include "kernels/attention.h"
#include "kernels/ref/util.h"

typedef struct Row { /* one query of one head */
    int64_t b, h, kv, i;
    double *raw, *score, *p; /* per key: product, after softcap and mask (-inf: masked), softmax */
    double lse;
} Row;

/* Element of new or past keys (values) at [batch, head, token, e]. */
static int64_t at_step(const HeadSteps *s, int64_t b, int64_t h, int64_t token)
{
    return b * s->batch + h * s->head + token * s->row;
}

static double load_kv(const AttentionForm *f, const Tensor *in, bool value, const Row *r, int64_t j,
                      int64_t e)
{
    const HeadSteps *now = value ? &f->v : &f->k, *old = value ? &f->past_v : &f->past_k;
    if (j < f->past)
        return mpri_ref_load(&in[value ? 5 : 4], at_step(old, r->b, r->kv, j) + e);
    return mpri_ref_load(&in[value ? 2 : 1], at_step(now, r->b, r->kv, j - f->past) + e);
}

static double softcap(const AttentionForm *f, double raw)
{
    return f->softcap > 0 ? f->softcap * tanh(raw / f->softcap) : raw;
}

/* Products, scores and probabilities of one query. */
static void score_row(const AttentionForm *f, const Tensor *in, Row *r)
{
    const Tensor *mask = f->mask_of;
    int64_t low, high, q = at_step(&f->q, r->b, r->h, r->i);
    double top = -HUGE_VAL, sum = 0;
    mpri_attention_range(f, r->b, r->i, &low, &high);
    for (int64_t j = 0; j < f->keys; j++) {
        double dot = 0, bias = 0;
        for (int64_t e = 0; e < f->size; e++)
            dot += mpri_ref_load(&in[0], q + e) * load_kv(f, in, false, r, j, e);
        r->raw[j] = dot * f->scale;
        bool seen = j >= low && j < high;
        if (mask && seen) {
            int64_t m = at_step(&f->mask, r->b, r->h, r->i) + j;
            if (mask->dtype == MPR_BOOL) seen = mpri_load_i64(MPR_BOOL, mask->data, m) != 0;
            else bias = mpri_ref_load(mask, m);
        }
        seen = seen && bias != -HUGE_VAL;
        r->score[j] = seen ? softcap(f, r->raw[j]) + bias : -HUGE_VAL;
        if (isnan(r->score[j]) || r->score[j] > top) top = r->score[j];
    }
    bool none = top == -HUGE_VAL;
    for (int64_t j = 0; j < f->keys; j++) {
        r->p[j] = none || r->score[j] == -HUGE_VAL ? 0 : exp(r->score[j] - top);
        sum += r->p[j];
    }
    for (int64_t j = 0; j < f->keys && !none; j++) r->p[j] /= sum;
    r->lse = none ? HUGE_VAL : top + log(sum);
}

static bool wanted(const KernelCall *c, int k)
{
    return c->n_out > k && mpri_tensor_here(&c->out[k]);
}

/* ---- forward ---- */

static void store_row(const KernelCall *c, const AttentionForm *f, const Row *r, int64_t mode)
{
    int64_t y = at_step(&f->y, r->b, r->h, r->i);
    int64_t row = (r->b * f->heads + r->h) * f->queries + r->i;
    for (int64_t e = 0; e < f->v_size; e++) {
        double sum = 0;
        for (int64_t j = 0; j < f->keys; j++)
            if (r->p[j] != 0) sum += r->p[j] * load_kv(f, c->in, true, r, j, e);
        mpri_ref_store(&c->out[0], y + e, sum);
    }
    for (int64_t j = 0; wanted(c, 3) && j < f->keys; j++)
        mpri_ref_store(&c->out[3], row * f->keys + j,
                       mode == 0   ? r->raw[j]
                       : mode == 1 ? softcap(f, r->raw[j])
                       : mode == 2 ? r->score[j]
                                   : r->p[j]);
    if (wanted(c, 4)) mpri_ref_store(&c->out[4], row, r->lse);
}

/* Past and new tokens one behind the other, as [batch, heads, tokens, size]. */
static void store_present(const KernelCall *c, const AttentionForm *f, bool value)
{
    Tensor *out = &c->out[value ? 2 : 1];
    int64_t n = value ? f->v_size : f->size, at = 0;
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t h = 0; h < f->kv_heads; h++) {
            Row r = {.b = b, .kv = h};
            for (int64_t j = 0; j < f->keys; j++)
                for (int64_t e = 0; e < n; e++)
                    mpri_ref_store(out, at++, load_kv(f, c->in, value, &r, j, e));
        }
}

static mpr_status k_attention(const KernelCall *c)
{
    const AttentionParams *p = c->params;
    AttentionForm f = mpri_attention_form(p, c->in, c->n_in);
    double *work = c->workspace;
    Row r = {.raw = work, .score = work + f.keys, .p = work + 2 * f.keys};
    for (r.b = 0; r.b < f.batch; r.b++)
        for (r.h = 0; r.h < f.heads; r.h++)
            for (r.i = 0; r.i < f.queries; r.i++) {
                r.kv = r.h / (f.heads / f.kv_heads);
                score_row(&f, c->in, &r);
                store_row(c, &f, &r, p->scores_mode);
            }
    if (wanted(c, 1)) store_present(c, &f, false);
    if (wanted(c, 2)) store_present(c, &f, true);
    return MPR_OK;
}

static size_t workspace(const KernelSig *s, int threads)
{
    (void)threads;
    AttentionForm f = mpri_attention_form(s->params, s->in, s->n_in);
    return (size_t)f.keys * 3 * sizeof(double);
}

/* ---- backward ---- */

typedef struct Sums { /* of one key head, over the queries of its query heads; dmask over all */
    double *dk, *dv, *dmask, *ds;
} Sums;

/* dy (input 7) and the cotangent of the scores (input 10) of one query, through the softmax. */
static void row_grad(const KernelCall *c, const AttentionForm *f, const Row *r, int64_t mode,
                     const Sums *s)
{
    const Tensor *dy = mpri_attention_given(c->in, c->n_in, 7);
    const Tensor *dscores = mpri_attention_given(c->in, c->n_in, 10);
    int64_t y = at_step(&f->y, r->b, r->h, r->i), q = at_step(&f->q, r->b, r->h, r->i);
    int64_t row = ((r->b * f->heads + r->h) * f->queries + r->i) * f->keys;
    double dot = 0;
    for (int64_t j = 0; j < f->keys; j++) {
        double dp = 0;
        for (int64_t e = 0; dy && e < f->v_size && r->p[j] != 0; e++) {
            double g = mpri_ref_load(dy, y + e);
            dp += g * load_kv(f, c->in, true, r, j, e);
            s->dv[j * f->v_size + e] += r->p[j] * g;
        }
        if (dscores && mode == 3) dp += mpri_ref_load(dscores, row + j);
        s->ds[j] = dp;
        if (r->p[j] != 0) dot += r->p[j] * dp;
    }
    for (int64_t j = 0; j < f->keys; j++) {
        double ds = r->p[j] != 0 ? r->p[j] * (s->ds[j] - dot) : 0;
        double direct = dscores ? mpri_ref_load(dscores, row + j) : 0;
        if (mode == 2 && r->score[j] != -HUGE_VAL) ds += direct;
        if (s->dmask && j < f->mask_keys) s->dmask[at_step(&f->mask, r->b, r->h, r->i) + j] += ds;
        if (mode == 1) ds += direct;
        if (f->softcap > 0) {
            double t = tanh(r->raw[j] / f->softcap);
            ds *= ds != 0 ? 1 - t * t : 0;
        }
        if (mode == 0) ds += direct;
        s->ds[j] = ds * f->scale;
        for (int64_t e = 0; e < f->size && s->ds[j] != 0; e++)
            s->dk[j * f->size + e] += s->ds[j] * mpri_ref_load(&c->in[0], q + e);
    }
    for (int64_t e = 0; wanted(c, 0) && e < f->size; e++) {
        double sum = 0;
        for (int64_t j = 0; j < f->keys; j++)
            if (s->ds[j] != 0) sum += s->ds[j] * load_kv(f, c->in, false, r, j, e);
        mpri_ref_store(&c->out[0], q + e, sum);
    }
}

/* Sums of one key head to new and past tokens. */
static void store_head(const KernelCall *c, const AttentionForm *f, const Row *r, bool value,
                       const double *sum)
{
    int64_t n = value ? f->v_size : f->size;
    for (int64_t j = 0; j < f->keys; j++) {
        bool old = j < f->past;
        int out = (value ? 2 : 1) + (old ? 3 : 0);
        const HeadSteps *s = value ? (old ? &f->past_v : &f->v) : (old ? &f->past_k : &f->k);
        int64_t at = at_step(s, r->b, r->kv, old ? j : j - f->past);
        for (int64_t e = 0; e < n && wanted(c, out); e++)
            mpri_ref_store(&c->out[out], at + e, sum[j * n + e]);
    }
}

static int64_t mask_elements(const Tensor *in, int n_in)
{
    const Tensor *mask = mpri_attention_given(in, n_in, 3);
    return mask ? mask->n : 0;
}

static mpr_status k_attention_grad(const KernelCall *c)
{
    const AttentionParams *p = c->params;
    AttentionForm f = mpri_attention_form(p, c->in, c->n_in);
    int64_t group = f.kv_heads ? f.heads / f.kv_heads : 0, n_mask = mask_elements(c->in, c->n_in);
    double *work = c->workspace;
    Row r = {.raw = work, .score = work + f.keys, .p = work + 2 * f.keys};
    Sums s = {.ds = work + 3 * f.keys, .dk = work + 4 * f.keys};
    s.dv = s.dk + f.keys * f.size;
    s.dmask = wanted(c, 3) ? s.dv + f.keys * f.v_size : NULL;
    for (int64_t i = 0; s.dmask && i < n_mask; i++) s.dmask[i] = 0;
    for (r.b = 0; r.b < f.batch; r.b++)
        for (r.kv = 0; r.kv < f.kv_heads; r.kv++) {
            memset(s.dk, 0, (size_t)(f.keys * (f.size + f.v_size)) * sizeof(double));
            for (r.h = r.kv * group; r.h < (r.kv + 1) * group; r.h++)
                for (r.i = 0; r.i < f.queries; r.i++) {
                    score_row(&f, c->in, &r);
                    row_grad(c, &f, &r, p->scores_mode, &s);
                }
            store_head(c, &f, &r, false, s.dk);
            store_head(c, &f, &r, true, s.dv);
        }
    for (int64_t i = 0; s.dmask && i < n_mask; i++) mpri_ref_store(&c->out[3], i, s.dmask[i]);
    return MPR_OK;
}

static size_t grad_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    AttentionForm f = mpri_attention_form(s->params, s->in, s->n_in);
    return (size_t)(f.keys * (4 + f.size + f.v_size) + mask_elements(s->in, s->n_in)) *
           sizeof(double);
}

static const KernelRow rows[] = {
    {.op = OP_Attention, .name = "ref.attention", .fn = k_attention, .workspace = workspace},
    {.op = OP_AttentionGrad, .name = "ref.attentiongrad", .fn = k_attention_grad,
     .workspace = grad_workspace},
};
const KernelTable mpri_ref_attention = REF_TABLE(rows);
