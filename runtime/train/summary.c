/* What the screen shows before the first step: model, parameters, precision, memory, length of the
 * run. */
#include "runtime/train/trainer.h"

#include <string.h>

#include "passes/profile.h"

static void put_bytes(Text *t, const char *name, size_t bytes)
{
    if (bytes >= 10000000) mpri_text_add(t, "  %-22s %.1f MB\n", name, (double)bytes * 1e-6);
    else mpri_text_add(t, "  %-22s %.1f kB\n", name, (double)bytes * 1e-3);
}

static void put_parameters(Text *t, const mpr_trainer *tr)
{
    const Graph *g = tr->s->graph[MODE_TRAIN];
    int64_t trained = 0, frozen = 0;
    int n_trained = 0;
    for (int i = 0; i < g->n_params; i++) {
        const Param *p = &g->params[i];
        int64_t n = p->value ? mpri_shape_elements(&p->value->shape) : 0;
        if (p->trained) trained += n, n_trained++;
        else frozen += n > 0 ? n : 0;
    }
    mpri_text_add(t, "parameters   %lld trained in %d tensors, %lld not trained\n",
                  (long long)trained, n_trained, (long long)frozen);
}

/* Operators by type, most frequent first, and the casts among them. */
static void put_operators(Text *t, const Graph *g)
{
    int count[OP_COUNT] = {0}, casts = 0;
    for (const Node *n = g->first; n; n = n->next) {
        count[n->op->id]++;
        casts += mpri_is(n, OP_Cast);
    }
    mpri_text_put(t, "operators    ");
    for (int shown = 0; shown < 8; shown++) {
        int best = -1;
        for (int i = 0; i < OP_COUNT; i++)
            if (count[i] && (best < 0 || count[i] > count[best])) best = i;
        if (best < 0) break;
        mpri_text_add(t, "%s%d %s", shown ? ", " : "", count[best],
                      mpri_op_table()->defs[best] ? mpri_op_table()->defs[best]->name : "other");
        count[best] = 0;
    }
    mpri_text_add(t, " (%d casts)\n", casts);
}

/* An export in evaluation mode has lost its Dropout: that is told, not guessed. */
static void put_dropout(Text *t, const Graph *g)
{
    int n = 0;
    for (const Node *node = g->first; node; node = node->next) n += mpri_is(node, OP_Dropout);
    if (n) mpri_text_add(t, "dropout      %d nodes\n", n);
    else mpri_text_put(t, "dropout      no Dropout found (--dropout P puts it in)\n");
}

static void put_precision(Text *t, const mpr_trainer *tr)
{
    const mpr_session *s = tr->s;
    const Profile *p = s->profile[MODE_TRAIN];
    char scale[32];
    if (p)
        mpri_text_add(t, "precision    %s autocast (%s)", mpri_dtype_long(s->autocast[MODE_TRAIN]),
                      mpri_err_name(p->name));
    else mpri_text_put(t, "precision    as in the file");
    mpri_text_add(t, ", FP32 master weights; loss scale %s%s\n",
                  mpri_print_f32(scale, tr->p->scaler->scale),
                  tr->p->scaler->o.constant ? "" : ", dynamic");
}

/* Operators by the type of what they make, where 16 bits are among them. */
static void put_types(Text *t, const Graph *g)
{
    static const DType types[] = {MPR_FLOAT16, MPR_BFLOAT16, MPR_FLOAT32};
    int count[3] = {0}, casts = 0;
    for (const Node *n = g->first; n; n = n->next) {
        if (mpri_is(n, OP_Cast)) casts++;
        for (int i = 0; i < 3 && !mpri_is(n, OP_Cast); i++)
            count[i] += n->n_out && n->out[0] && n->out[0]->dtype == types[i];
    }
    if (!count[0] && !count[1]) return;
    mpri_text_put(t, "computed in  ");
    for (int i = 0; i < 3; i++)
        if (count[i]) mpri_text_add(t, "%s: %d operators, ", mpri_dtype_long(types[i]), count[i]);
    mpri_text_add(t, "%d casts\n", casts);
}

static mpr_status put_memory(Text *t, mpr_trainer *tr, Err *err)
{
    int64_t rows;
    if (!tr->train) return MPR_OK;
    TRY(mpri_dataset_bind(tr->train, tr->p->epoch, 0, &rows, err));
    mpr_memory_bill bill = {.size = sizeof(bill)};
    TRY(mpri_session_memory(tr->s, &bill, err));
    mpri_text_put(t, "memory\n");
    put_bytes(t, "parameters", bill.parameters);
    put_bytes(t, "gradients", bill.gradients);
    put_bytes(t, "optimizer", bill.optimizer);
    put_bytes(t, "activations", bill.activations);
    if (bill.copies) put_bytes(t, "16-bit copies", bill.copies);
    put_bytes(t, "constants", bill.constants);
    SessionForecast forecast;
    Err why = {0}; /* what float32 would take is no reason to stop */
    if (mpri_session_forecast(tr->s, &forecast, &why) == MPR_OK)
        mpri_session_forecast_print(tr->s, &forecast, t);
    return MPR_OK;
}

mpr_status mpri_trainer_summary(mpr_trainer *tr, char **text, Err *err)
{
    const mpr_session *s = tr->s;
    Text t;
    char a[32], b[32];
    *text = NULL;
    mpri_text_init(&t, &tr->ctx->alloc);
    mpri_text_add(&t, "model        %s\n",
                  mpri_err_name(tr->model->m->path ? tr->model->m->path : ""));
    put_parameters(&t, tr);
    put_operators(&t, s->graph[MODE_TRAIN]);
    put_dropout(&t, s->graph[MODE_TRAIN]);
    mpri_text_add(&t, "loss         %s\n", s->loss);
    put_precision(&t, tr);
    if (s->profile[MODE_TRAIN]) mpri_profile_print(s->profile[MODE_TRAIN], &t);
    put_types(&t, s->graph[MODE_TRAIN]);
    mpri_text_add(&t, "optimizer    %s, learning rate %s, weight decay %s, schedule %s\n",
                  mpri_optimizer_name(tr->opt), mpri_print_f64(a, tr->p->base_rate),
                  mpri_print_f64(b, mpri_option_float(tr->o, OPT_WEIGHT_DECAY)),
                  mpri_option_text(tr->o, OPT_SCHEDULER));
    if (tr->train)
        mpri_text_add(&t, "data         %lld rows%s, batches of %lld x %d, %lld steps\n",
                      (long long)tr->train->rows,
                      mpri_option_here(tr->o, OPT_SYNTHETIC) ? " (synthetic)" : "",
                      (long long)tr->train->o.batch_size, tr->p->o.gradient_accumulation_steps,
                      (long long)tr->max_steps);
    mpri_text_add(&t, "device       %s, %s kernels, %d threads\n", s->device->name,
                  s->device->isa_name ? s->device->isa_name : "generic",
                  mpri_threads_count(s->device->threads));
    mpr_status status = put_memory(&t, tr, err);
    if (status == MPR_OK && t.failed) status = mpri_err_nomem(err, t.cap);
    if (status != MPR_OK) {
        mpri_text_free(&t);
        return status;
    }
    *text = t.text;
    return MPR_OK;
}
