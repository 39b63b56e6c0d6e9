/* Statistics of a step's tensors; see tensor_stats.h. */
#include "runtime/train/tensor_stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/json.h"

static const char *const kind_names[STAT_KINDS] = {"activation", "activation_gradient",
                                                   "weight_gradient"};

/* ---- collecting ---- */

static TensorStat *add_stat(TensorStats *t)
{
    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        TensorStat *grown = mpri_context_alloc(t->s->ctx, (size_t)cap * sizeof *grown);
        if (!grown) {
            t->failed = true;
            return NULL;
        }
        if (t->n) memcpy(grown, t->v, (size_t)t->n * sizeof *grown);
        mpri_free(&t->s->ctx->alloc, t->v);
        t->v = grown;
        t->cap = cap;
    }
    t->v[t->n] = (TensorStat){0};
    return &t->v[t->n++];
}

static void count_values(TensorStat *x, DType dtype, const void *data)
{
    for (int64_t i = 0; i < x->n; i++) {
        double v = fabs(mpri_load_f64(dtype, data, i));
        int e;
        if (v == 0) {
            x->zero++;
            continue;
        }
        if (!isfinite(v)) {
            x->nonfinite++;
            continue;
        }
        if (v > x->most) x->most = v;
        frexp(v, &e);
        e -= 1; /* v = m * 2^e, m in [1, 2) */
        x->count[(e < STAT_LEAST ? STAT_LEAST : e > STAT_MOST ? STAT_MOST : e) - STAT_LEAST]++;
    }
}

static void collect(TensorStats *t, StatKind kind, const Node *n, const Value *v, const char *name)
{
    const void *data = mpri_dtype_is_float(v->dtype) ? mpri_plan_view(t->plan, v) : NULL;
    char op[64];
    TensorStat *x = data ? add_stat(t) : NULL;
    if (!x) return;
    x->kind = kind;
    x->dtype = v->dtype;
    x->n = mpri_shape_elements(&v->shape);
    mpri_forensics_node(t->s, n, x->node, op);
    if (name) snprintf(x->tensor, sizeof x->tensor, "%s", name);
    else mpri_forensics_tensor(t->plan, v, x->tensor, sizeof x->tensor);
    count_values(x, v->dtype, data);
}

/* Only added to a parameter's buffer: the gradient of a weight. */
static bool is_weight_grad(const Value *v)
{
    if (!v->n_uses) return false;
    for (const Use *u = v->uses; u; u = u->next)
        if (!mpri_is(u->user, OP_AccumulateGrad)) return false;
    return true;
}

static PlanWord watch(void *user, int step, bool done)
{
    TensorStats *t = user;
    const Plan *p = t->s->current ? t->s->current->plan : NULL;
    if (!t->plan) t->plan = p;
    if (t->plan != p) return PLAN_GO;
    const Node *n = p->steps[step].node;
    if (!done) {
        const Value *acc = mpri_is(n, OP_AccumulateGrad) ? n->in[0] : NULL;
        const Graph *g = p->graph;
        if (acc && acc->param >= 0 && acc->param < g->n_params)
            collect(t, STAT_WEIGHT_GRAD, n, n->in[1], g->params[acc->param].public_name);
        return PLAN_GO;
    }
    bool copy = mpri_is(n, OP_Cast) && n->in[0]->kind == VAL_SLOT; /* of a weight */
    for (int k = 0; k < n->n_out && !copy; k++) {
        const Value *v = n->out[k];
        if (!v) continue;
        bool forward = p->steps[step].segment == SEG_FORWARD;
        if (forward && mpri_dtype_is_low(v->dtype)) collect(t, STAT_ACTIVATION, n, v, NULL);
        else if (!forward && !is_weight_grad(v)) collect(t, STAT_ACTIVATION_GRAD, n, v, NULL);
    }
    return PLAN_GO;
}

void mpri_tensor_stats_begin(TensorStats *t, mpr_session *s)
{
    t->s = s;
    t->n = 0;
    t->plan = NULL;
    t->failed = false;
    s->watch[WATCH_STATS] = watch;
    s->watch_user[WATCH_STATS] = t;
}

void mpri_tensor_stats_end(TensorStats *t)
{
    if (t->s) t->s->watch[WATCH_STATS] = NULL;
}

void mpri_tensor_stats_free(TensorStats *t)
{
    mpri_tensor_stats_end(t);
    if (t->s) mpri_free(&t->s->ctx->alloc, t->v);
    t->v = NULL;
    t->n = t->cap = 0;
}

/* ---- what follows ---- */

/* Elements whose exponent, lowered by `shift`, is below `limit`. */
static int64_t below(const TensorStat *x, int shift, int limit)
{
    int64_t sum = 0;
    for (int b = 0; b < STAT_BINS && b + STAT_LEAST - shift < limit; b++) sum += x->count[b];
    return sum;
}

static int exponent_of(double scale)
{
    int e;
    frexp(scale > 0 ? scale : 1, &e);
    return e - 1;
}

static double share(int64_t part, int64_t all) { return all ? (double)part / (double)all : 0; }

/* float16: least normal 2^-14, least subnormal 2^-24, a half of which rounds to zero. */
static double flushed_unscaled(const TensorStat *x, double scale)
{
    int64_t n = x->n - x->zero - x->nonfinite;
    return share(below(x, exponent_of(scale), -25), n);
}

static double subnormal(const TensorStat *x)
{
    return share(below(x, 0, -14), x->n - x->zero - x->nonfinite);
}

typedef struct Verdict {
    double most;          /* of all 16-bit gradients */
    double subnormal, lost; /* shares of their elements: stored as subnormals; zero without scale */
    int64_t nonfinite;
} Verdict;

static Verdict judge(const TensorStats *t, double scale)
{
    Verdict v = {0};
    int64_t all = 0;
    double small = 0, lost = 0;
    for (int i = 0; i < t->n; i++) {
        const TensorStat *x = &t->v[i];
        if (x->kind == STAT_ACTIVATION || !mpri_dtype_is_low(x->dtype)) continue;
        int64_t n = x->n - x->zero - x->nonfinite;
        all += n;
        small += subnormal(x) * (double)n;
        lost += flushed_unscaled(x, scale) * (double)n;
        v.nonfinite += x->nonfinite;
        if (x->most > v.most) v.most = x->most;
    }
    v.subnormal = all ? small / (double)all : 0;
    v.lost = all ? lost / (double)all : 0;
    return v;
}

static void put_advice(const TensorStats *t, double scale, Text *out)
{
    Verdict v = judge(t, scale);
    char now[32], room[32];
    mpri_print_f32(now, (float)scale);
    if (v.nonfinite) {
        mpri_text_add(out, "the loss scale %s is too high: %lld gradient elements overflow", now,
                      (long long)v.nonfinite);
        return;
    }
    double headroom = v.most > 0 ? exp2(floor(log2(65504 / v.most))) : 1;
    if (v.most == 0) mpri_text_put(out, "there are no gradients in 16 bits");
    else if (headroom >= 4 && v.subnormal > 0.01)
        mpri_text_add(out, "the loss scale %s is low: %.1f %% of the gradient elements are below "
                           "float16's normal range, and the largest leaves room for a factor %s",
                      now, 100 * v.subnormal, mpri_print_f32(room, (float)(headroom / 2)));
    else if (headroom < 2)
        mpri_text_add(out, "the loss scale %s is at its limit: the largest gradient is %.4g of "
                           "65504", now, v.most);
    else
        mpri_text_add(out, "the loss scale %s fits: %.2f %% of the gradient elements are below "
                           "float16's normal range, %.2f %% would be zero without it",
                      now, 100 * v.subnormal, 100 * v.lost);
}

/* ---- output ---- */

static void put_share(Text *out, const char *key, double v)
{
    mpri_text_add(out, ", \"%s\": ", key);
    mpri_json_f64(out, v);
}

static void put_tensor(const TensorStat *x, double scale, Text *out)
{
    int first = 0, last = STAT_BINS - 1;
    while (first < STAT_BINS && !x->count[first]) first++;
    while (last > first && !x->count[last]) last--;
    mpri_text_add(out, "{\"kind\": \"%s\", \"tensor\": ", kind_names[x->kind]);
    mpri_json_string(out, x->tensor);
    mpri_text_put(out, ", \"node\": ");
    mpri_json_string(out, x->node);
    mpri_text_add(out, ", \"dtype\": \"%s\", \"elements\": %lld, \"nonfinite\": %lld",
                  mpri_dtype_long(x->dtype), (long long)x->n, (long long)x->nonfinite);
    put_share(out, "zero", share(x->zero, x->n));
    put_share(out, "subnormal", subnormal(x));
    if (x->kind != STAT_ACTIVATION)
        put_share(out, "flushed_without_scale", flushed_unscaled(x, scale));
    put_share(out, "abs_max", x->most);
    mpri_text_add(out, ", \"first_exponent\": %d, \"counts\": [",
                  first < STAT_BINS ? first + STAT_LEAST : 0);
    for (int b = first; b <= last && first < STAT_BINS; b++)
        mpri_text_add(out, "%s%lld", b > first ? ", " : "", (long long)x->count[b]);
    mpri_text_put(out, "]}");
}

void mpri_tensor_stats_json(const TensorStats *t, double scale, Text *out)
{
    Text advice;
    mpri_text_init(&advice, &t->s->ctx->alloc);
    put_advice(t, scale, &advice);
    mpri_text_put(out, "\"tensor_stats\": {\"loss_scale\": ");
    mpri_json_f32(out, (float)scale);
    mpri_text_add(out, ", \"scale_exponent\": %d, \"advice\": ", exponent_of(scale));
    mpri_json_string(out, advice.failed ? "" : advice.text);
    mpri_text_put(out, ", \"tensors\": [");
    for (int i = 0; i < t->n; i++) {
        if (i) mpri_text_put(out, ", ");
        put_tensor(&t->v[i], scale, out);
    }
    mpri_text_put(out, "]}");
    mpri_text_free(&advice);
}

void mpri_tensor_stats_text(const TensorStats *t, double scale, Text *out)
{
    enum { SHOWN = 5 };
    int last = -1;
    double last_share = 2;
    put_advice(t, scale, out);
    for (int shown = 0; shown < SHOWN; shown++) { /* next lower, by position among equals */
        int best = -1;
        double most = 0;
        for (int i = 0; i < t->n; i++) {
            const TensorStat *x = &t->v[i];
            double lost = x->kind == STAT_ACTIVATION ? 0 : subnormal(x);
            bool later = lost < last_share || (lost == last_share && i > last);
            if (later && lost > most) best = i, most = lost;
        }
        if (best < 0) break;
        const TensorStat *x = &t->v[best];
        mpri_text_add(out, "\n  %-20s %-32s %5.1f %% subnormal, %5.1f %% zero, %5.1f %% zero "
                           "without scale, largest %.3g",
                      kind_names[x->kind], x->tensor, 100 * most, 100 * share(x->zero, x->n),
                      100 * flushed_unscaled(x, scale), x->most);
        last = best;
        last_share = most;
    }
}
