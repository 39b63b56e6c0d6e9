/* Evaluation: the whole evaluation set in order, losses weighted by the labels that count, metrics
 * over all rows. Tracks the best metric for save-strategy best, load-best-model-at-end and early
 * stopping. */
#include "runtime/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/json.h"

/* ---- logits and labels of the whole evaluation, for compute_metrics ---- */

typedef struct Collected {
    mpr_context *ctx;
    mpr_tensor logits, labels; /* data owned */
    size_t logits_bytes, labels_bytes, logits_cap, labels_cap;
} Collected;

static mpr_status append(Collected *c, mpr_tensor *all, size_t *bytes, size_t *cap,
                         const mpr_tensor *t, Err *err)
{
    int64_t n = mpri_tensor_elements(t);
    size_t more = (size_t)(n > 0 ? n : 0) * mpri_dtype_size(t->dtype);
    if (*bytes + more > *cap || !all->data) {
        size_t grown_cap = 2 * (*bytes + more) + 64;
        char *grown = mpri_context_alloc(c->ctx, grown_cap);
        if (!grown) return mpri_err_nomem(err, grown_cap);
        if (*bytes) memcpy(grown, all->data, *bytes);
        mpri_free(&c->ctx->alloc, (void *)(uintptr_t)all->data);
        all->data = grown;
        *cap = grown_cap;
    }
    if (more) memcpy((char *)(uintptr_t)all->data + *bytes, t->data, more);
    int64_t rows = all->rank ? all->dims[0] : 0;
    const void *data = all->data;
    *all = *t;
    all->data = data;
    if (all->rank) all->dims[0] += rows;
    *bytes += more;
    return MPR_OK;
}

/* ---- one pass ---- */

static const char *logits_name(const mpr_trainer *t)
{
    const char *wanted = mpri_option_text(t->o, OPT_LOGITS);
    const Graph *g = t->s->graph[MODE_EVAL];
    if (wanted) return wanted;
    const char *only = NULL;
    int n = 0;
    for (int i = 0; i < g->n_outputs; i++) {
        if (!strcmp(g->outputs[i].name, "logits")) return "logits";
        if (!strcmp(g->outputs[i].name, "loss")) continue;
        only = g->outputs[i].name;
        n++;
    }
    return n == 1 ? only : NULL;
}

static int class_axis(const mpr_trainer *t)
{
    for (const Node *n = t->s->graph[MODE_EVAL]->first; n; n = n->next)
        if (mpri_is(n, OP_CrossEntropy)) return (int)((const CrossEntropyParams *)n->params)->axis;
    return -1;
}

static mpr_tensor bound_labels(const mpr_trainer *t)
{
    const SessionInput *in = mpri_session_find_input(t->s, mpri_session_labels(t->s));
    mpr_tensor labels = {.dtype = MPR_DTYPE_NONE};
    if (!in || !in->bound) return labels;
    labels = (mpr_tensor){.data = in->data, .dtype = in->dtype, .rank = in->rank};
    memcpy(labels.dims, in->dims, sizeof(labels.dims));
    return labels;
}

static mpr_status collect(mpr_trainer *t, Collected *c, Err *err)
{
    bool metrics = mpri_metrics_need_logits(&t->metrics);
    if (!metrics && !t->call.compute_metrics) return MPR_OK;
    const char *name = logits_name(t);
    mpr_tensor labels = bound_labels(t), logits;
    if (!name || labels.dtype == MPR_DTYPE_NONE) {
        mpri_err_set(err, MPR_E_USAGE, "metrics need logits and labels: %s",
                     name ? "no labels are bound" : "which output holds the logits is not clear");
        return mpri_err_advice(err, "name the output with --logits");
    }
    TRY(mpri_session_output(t->s, name, &logits, err));
    if (metrics)
        TRY(mpri_metrics_add(&t->metrics, &t->arena, &logits, class_axis(t), &labels,
                             t->s->ignore_index, err));
    if (!t->call.compute_metrics) return MPR_OK;
    TRY(append(c, &c->logits, &c->logits_bytes, &c->logits_cap, &logits, err));
    return append(c, &c->labels, &c->labels_bytes, &c->labels_cap, &labels, err);
}

static mpr_status sweep(mpr_trainer *t, Collected *c, double *loss, int64_t *rows, Err *err)
{
    double sum = 0, counted = 0;
    int64_t batches = mpri_dataset_batches(t->eval);
    *rows = 0;
    mpri_metrics_reset(&t->metrics);
    for (int64_t b = 0; b < batches; b++) {
        int64_t n;
        float value;
        double weight;
        TRY(mpri_dataset_bind(t->eval, 0, b, &n, err));
        TRY(mpri_session_evaluate(t->s, &value, err));
        if (bound_labels(t).dtype == MPR_DTYPE_NONE) weight = (double)n;
        else TRY(mpri_session_label_count(t->s, &weight, err));
        if (weight > 0) sum += (double)value * weight;
        counted += weight;
        *rows += n;
        TRY(collect(t, c, err));
    }
    *loss = counted > 0 ? sum / counted : NAN;
    return MPR_OK;
}

/* ---- result ---- */

typedef struct EvalResult {
    Text members;
    double best_value; /* of the metric that decides */
    bool has_best;
    const char *best_name;
} EvalResult;

static void put_metric(EvalResult *r, const char *name, double value)
{
    mpri_text_add(&r->members, "%s\"eval_%s\": ", r->members.len ? ", " : "", name);
    mpri_json_f64(&r->members, value);
    const char *wanted = r->best_name;
    if (!strncmp(wanted, "eval_", 5)) wanted += 5;
    if (strcmp(name, wanted)) return;
    r->best_value = value;
    r->has_best = true;
}

/* {"name": number, …} of the caller's compute_metrics. */
static mpr_status put_own_metrics(mpr_trainer *t, const Collected *c, EvalResult *r, Err *err)
{
    enum { OWN_SIZE = 16384 };
    if (!t->call.compute_metrics) return MPR_OK;
    char *json = mpri_context_alloc(t->ctx, OWN_SIZE);
    if (!json) return mpri_err_nomem(err, OWN_SIZE);
    t->call.compute_metrics(t->call.user, &c->logits, &c->labels, json, OWN_SIZE);
    json[OWN_SIZE - 1] = 0;
    mpr_status status = MPR_OK;
    for (const char *p = json; status == MPR_OK && (p = strchr(p, '"'));) {
        const char *end = strchr(p + 1, '"');
        char name[64], number[64];
        double value;
        bool fits = end && (size_t)(end - p) < sizeof(name) &&
                    sscanf(end + 1, " : %63[^,} \t\n]", number) == 1 &&
                    mpri_parse_f64(number, &value);
        if (!fits) {
            mpri_err_set(err, MPR_E_USAGE,
                         "compute_metrics did not write an object of names and numbers");
            status = mpri_err_advice(err, "write, for example, {\"accuracy\": 0.5}");
            break;
        }
        memcpy(name, p + 1, (size_t)(end - p - 1));
        name[end - p - 1] = 0;
        put_metric(r, name, value);
        p = end + 1;
    }
    mpri_free(&t->ctx->alloc, json);
    return status;
}

static bool greater_is_better(const mpr_trainer *t, const char *name)
{
    if (mpri_option_here(t->o, OPT_GREATER)) return mpri_option_is(t->o, OPT_GREATER, "true");
    size_t n = strlen(name);
    return n < 4 || strcmp(name + n - 4, "loss");
}

static mpr_status judge(mpr_trainer *t, const EvalResult *r, bool *improved, Err *err)
{
    *improved = false;
    if (!r->has_best) {
        mpri_err_set(err, MPR_E_USAGE,
                     "metric-for-best-model '%s' is not among the metrics of the evaluation",
                     mpri_err_name(r->best_name));
        return mpri_err_advice(err, "ask for it with --metrics, or use loss");
    }
    bool greater = greater_is_better(t, r->best_name);
    *improved = !isnan(r->best_value) &&
                (!t->at.has_best ||
                 (greater ? r->best_value > t->at.best : r->best_value < t->at.best));
    if (t->schedule) mpri_schedule_metric(t->schedule, r->best_value, greater);
    if (!*improved) {
        t->at.bad_evaluations++;
        return MPR_OK;
    }
    t->at.bad_evaluations = 0;
    t->at.has_best = true;
    t->at.best = r->best_value;
    t->at.best_step = t->p->steps;
    return MPR_OK;
}

static mpr_status report(mpr_trainer *t, const Collected *c, double loss, int64_t rows,
                         double seconds, bool *improved, Err *err)
{
    EvalResult r = {.best_name = mpri_option_text(t->o, OPT_BEST_METRIC)};
    mpri_text_init(&r.members, &t->ctx->alloc);
    put_metric(&r, "loss", loss);
    if (t->metrics.accuracy) put_metric(&r, "accuracy", mpri_metrics_accuracy(&t->metrics));
    if (t->metrics.f1) put_metric(&r, "f1", mpri_metrics_f1(&t->metrics));
    if (t->metrics.mse) put_metric(&r, "mse", mpri_metrics_mse(&t->metrics));
    if (t->metrics.perplexity) put_metric(&r, "perplexity", exp(loss));
    mpr_status status = put_own_metrics(t, c, &r, err);
    double per = seconds > 0 ? 1 / seconds : 0;
    mpri_text_put(&r.members, ", \"eval_runtime\": ");
    mpri_json_f64(&r.members, seconds);
    mpri_text_put(&r.members, ", \"eval_samples_per_second\": ");
    mpri_json_f64(&r.members, (double)rows * per);
    mpri_text_put(&r.members, ", \"eval_steps_per_second\": ");
    mpri_json_f64(&r.members, (double)mpri_dataset_batches(t->eval) * per);
    if (status == MPR_OK) status = judge(t, &r, improved, err);
    if (status == MPR_OK)
        status = r.members.failed ? mpri_err_nomem(err, 0)
                                  : mpri_trainer_log(t, r.members.text, err);
    mpri_text_free(&r.members);
    return status;
}

mpr_status mpri_trainer_evaluate(mpr_trainer *t, bool *improved, Err *err)
{
    Collected c = {.ctx = t->ctx};
    double loss = NAN, start = mpri_monotonic();
    int64_t rows = 0;
    *improved = false;
    if (!t->eval) return MPR_OK;
    mpr_status status = sweep(t, &c, &loss, &rows, err);
    t->eval_loss = loss;
    if (status == MPR_OK)
        status = report(t, &c, loss, rows, mpri_monotonic() - start, improved, err);
    mpri_free(&t->ctx->alloc, (void *)(uintptr_t)c.logits.data);
    mpri_free(&t->ctx->alloc, (void *)(uintptr_t)c.labels.data);
    return status;
}
