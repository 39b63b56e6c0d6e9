/* Binding inputs and running passes of a session.
 *
 * Inputs are kept in the session, in the graph's type, and copied into the plan's buffers right
 * before each forward: the plan reuses those buffers for activations. Checks of ids and labels
 * happen inside the kernels that read them, which is before anything persistent is written. */
#include "runtime/train/session.h"
#include "runtime/train/scaler.h"

#include <string.h>

SessionInput *mpri_session_find_input(mpr_session *s, const char *name)
{
    for (int i = 0; i < s->n_inputs; i++)
        if (!strcmp(s->inputs[i].name, name)) return &s->inputs[i];
    return NULL;
}

const char *mpri_session_labels(const mpr_session *s)
{
    return s->o.labels ? s->o.labels : "labels";
}

static mpr_status unknown_input(mpr_session *s, const char *name, Err *err)
{
    Text list;
    mpri_text_init(&list, &s->ctx->alloc);
    for (int i = 0; i < s->n_inputs; i++)
        mpri_text_add(&list, "%s'%s'", i ? ", " : "", mpri_err_name(s->inputs[i].name));
    mpri_err_set(err, MPR_E_DATA, "the model has no input '%s'; it has %s", mpri_err_name(name),
                 s->n_inputs ? list.text : "none");
    mpri_text_free(&list);
    return mpri_err_advice(err, "use one of the names listed");
}

static mpr_status check_shape(mpr_session *s, const SessionInput *in, const int64_t *dims, int rank,
                              Err *err)
{
    bool fits = in->declared.rank < 0 || in->declared.rank == rank;
    for (int i = 0; fits && i < rank && in->declared.rank >= 0; i++)
        fits = !mpri_dim_const(in->declared.d[i]) || in->declared.d[i] == dims[i];
    if (fits) return MPR_OK;
    char want[256], have[256];
    Shape shape = {.rank = rank};
    memcpy(shape.d, dims, (size_t)rank * sizeof(*dims));
    SymTab *sym = s->graph[MODE_TRAIN]->sym;
    mpri_shape_print(sym, &in->declared, want, sizeof(want));
    mpri_shape_print(sym, &shape, have, sizeof(have));
    mpri_err_set(err, MPR_E_SHAPE, "input '%s' has shape %s, the model says %s",
                 mpri_err_name(in->name), have, want);
    return mpri_err_advice(err, "only the symbolic dims may change from batch to batch");
}

mpr_status mpri_session_reserve(mpr_session *s, SessionInput *in, size_t bytes, Err *err)
{
    if (bytes <= in->capacity && in->data) return MPR_OK;
    void *data = mpri_alloc(&s->ctx->alloc, bytes ? bytes : 1, 64);
    if (!data) return mpri_err_nomem(err, bytes);
    mpri_free(&s->ctx->alloc, in->data);
    in->data = data;
    in->capacity = bytes;
    return MPR_OK;
}

static mpr_status copy_values(SessionInput *in, const void *data, DType dtype, int64_t n, Err *err)
{
    if (dtype == in->dtype) {
        if (n) memcpy(in->data, data, (size_t)n * mpri_dtype_size(dtype));
        return MPR_OK;
    }
    if (in->dtype == MPR_INT64) {
        for (int64_t i = 0; i < n; i++) ((int64_t *)in->data)[i] = ((const int32_t *)data)[i];
        return MPR_OK;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t v = ((const int64_t *)data)[i];
        if (v < INT32_MIN || v > INT32_MAX) {
            mpri_err_set(err, MPR_E_INDEX,
                         "input '%s': position %lld holds %lld, which does not fit int32",
                         mpri_err_name(in->name), (long long)i, (long long)v);
            return mpri_err_advice(err, "the model reads int32 here");
        }
        ((int32_t *)in->data)[i] = (int32_t)v;
    }
    return MPR_OK;
}

mpr_status mpri_session_bind(mpr_session *s, const char *name, const void *data, DType dtype,
                             const int64_t *dims, int rank, Err *err)
{
    SessionInput *in = mpri_session_find_input(s, name);
    if (!in) return unknown_input(s, name, err);
    if (rank < 0 || rank > MPRI_MAX_RANK) {
        mpri_err_set(err, MPR_E_SHAPE, "input '%s': rank %d; allowed are 0 to %d",
                     mpri_err_name(name), rank, MPRI_MAX_RANK);
        return mpri_err_advice(err, "reshape the data");
    }
    bool ints = (dtype == MPR_INT32 || dtype == MPR_INT64) &&
                (in->dtype == MPR_INT32 || in->dtype == MPR_INT64);
    if (dtype != in->dtype && !ints) {
        mpri_err_set(err, MPR_E_TYPE, "input '%s' is %s, the model reads %s", mpri_err_name(name),
                     mpri_dtype_long(dtype), mpri_dtype_long(in->dtype));
        return mpri_err_advice(
            err, "convert the data; only int32 and int64 are converted into each other");
    }
    int64_t n;
    if (!mpri_size_elements(rank, dims, &n)) {
        mpri_err_set(err, MPR_E_SHAPE,
                     "input '%s': a dim is negative, or the product of the dims overflows",
                     mpri_err_name(name));
        return mpri_err_advice(err, "pass dims >= 0");
    }
    if (n) TRY(mpri_api_pointer(data, "data", err));
    TRY(check_shape(s, in, dims, rank, err));
    size_t bytes;
    if (!mpri_size_mul((size_t)n, mpri_dtype_size(in->dtype), &bytes))
        return mpri_err_nomem(err, SIZE_MAX);
    mpri_window_retire(s);
    TRY(mpri_session_reserve(s, in, bytes, err));
    s->forward_done = false;
    in->bound = false;
    TRY(copy_values(in, data, dtype, n, err));
    in->rank = rank;
    if (rank) memcpy(in->dims, dims, (size_t)rank * sizeof(*dims));
    in->bytes = bytes;
    in->bound = true;
    return MPR_OK;
}

static mpr_status feed(mpr_session *s, const SessionPlan *sp, Err *err)
{
    Device *d = s->device;
    mpr_status (*give)(Device *, void *, const void *, size_t, Err *) = d->stage ? d->stage : d->copy_in;
    for (int i = 0; i < s->n_inputs; i++) {
        void *to = sp->inputs[i] ? mpri_plan_value_data(sp->plan, sp->inputs[i]) : NULL;
        if (to && s->inputs[i].bytes)
            TRY(give(d, to, s->inputs[i].data, s->inputs[i].bytes, err));
    }
    return MPR_OK;
}

static mpr_status read_loss(mpr_session *s, const SessionPlan *sp, float *loss, Err *err)
{
    const Value *v = s->loss ? mpri_plan_output(sp->plan, "loss") : NULL;
    const void *data = v ? mpri_plan_value_data(sp->plan, v) : NULL;
    if (!data) return mpri_err_set(err, MPR_E_INTERNAL, "the plan has no loss");
    unsigned char raw[16];
    TRY(mpri_plan_check(sp->plan, err));
    TRY(s->device->copy_out(s->device, raw, data, mpri_dtype_size(v->dtype), err));
    *loss = (float)mpri_load_f64(v->dtype, raw, 0);
    return MPR_OK;
}

static PlanWord watch_all(void *user, int step, bool done)
{
    mpr_session *s = user;
    PlanWord word = PLAN_GO;
    for (int i = 0; i < SESSION_WATCHES; i++)
        if (s->watch[i] && s->watch[i](s->watch_user[i], step, done) == PLAN_STOP) word = PLAN_STOP;
    return word;
}

static mpr_status run_segment(mpr_session *s, const SessionPlan *sp, Segment segment,
                              uint64_t count, Err *err)
{
    bool watched = false;
    for (int i = 0; i < SESSION_WATCHES; i++) watched |= s->watch[i] != NULL;
    if (!watched || sp->mode != MODE_TRAIN) {
        mpr_status status = mpri_plan_run(sp->plan, (int)segment, s->o.seed, count, err);
        if (sp->plan->refused[0] && !s->refusal_told) {
            s->refusal_told = true;
            mpri_log(&s->ctx->log, MPR_LOG_NOTICE, "no CUDA graph, kernels are launched one by one: %s",
                     sp->plan->refused);
        }
        return status;
    }
    return mpri_plan_run_watched(sp->plan, (int)segment, s->o.seed, count, watch_all, s, err);
}

static mpr_status run(mpr_session *s, SessionMode mode, float *loss, Err *err)
{
    SessionPlan *sp;
    if (loss && !s->loss) {
        mpri_err_set(err, MPR_E_USAGE, "the session has no loss to return");
        return mpri_err_advice(err, "open it with a loss, or pass NULL");
    }
    if (mode == MODE_TRAIN) mpri_window_retire(s);
    TRY(mpri_session_plan(s, mode, &sp, err));
    s->current = sp;
    s->forward_done = s->outputs_valid = false;
    TRY(mpri_session_copies(s, err));
    TRY(feed(s, sp, err));
    TRY(run_segment(s, sp, SEG_FORWARD, s->forward_count, err));
    if (mode == MODE_TRAIN) s->forward_count++;
    if (loss) TRY(read_loss(s, sp, loss, err));
    s->forward_done = mode == MODE_TRAIN && s->loss;
    s->backward_done = false;
    s->outputs_valid = true;
    return MPR_OK;
}

mpr_status mpri_session_forward(mpr_session *s, float *loss, Err *err)
{
    return run(s, MODE_TRAIN, loss, err);
}

mpr_status mpri_session_evaluate(mpr_session *s, float *loss, Err *err)
{
    return run(s, MODE_EVAL, loss, err);
}

/* ---- backward ---- */

static mpr_status set_state(mpr_session *s, const char *name, DType t, const void *value, Err *err)
{
    StoreSlot *slot = mpri_store_find(&s->store, name);
    if (!slot) return MPR_OK; /* the plan has no such slot: nothing reads it */
    if (slot->dtype != t)
        return mpri_err_set(err, MPR_E_INTERNAL, "slot '%s' has type %s", name,
                            mpri_dtype_name(slot->dtype));
    return s->device->copy_in(s->device, slot->data, value, mpri_dtype_size(t), err);
}

/* 0: every buffer is written anew; 1: all are added to, those without contents are zeroed
 * before. */
static mpr_status prepare_buffers(mpr_session *s, const SessionPlan *sp, Err *err)
{
    int32_t accumulate = 0;
    for (int i = 0; i < s->n_params; i++) accumulate |= s->params[i].present && sp->writes_grad[i];
    for (int i = 0; accumulate && i < s->n_params; i++) {
        if (s->params[i].present || !sp->writes_grad[i]) continue;
        StoreSlot *slot = mpri_store_find(&s->store, s->params[i].grad_slot);
        if (slot) TRY(s->device->zero(s->device, slot->data, slot->bytes, err));
    }
    return set_state(s, "grad_accumulate", MPR_INT32, &accumulate, err);
}

mpr_status mpri_session_backward(mpr_session *s, mpr_scaler *scaler, Err *err)
{
    if (!s->forward_done) {
        mpri_err_set(err, MPR_E_ORDER, "backward without a forward pass before it");
        return mpri_err_advice(
            err,
            "call mpr_session_forward with the batch bound; each backward needs its own forward");
    }
    const SessionPlan *sp = s->current;
    bool scaled = scaler && mpri_scaler_enabled(scaler);
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].present && sp->writes_grad[i])
            TRY(mpri_scaler_check_add(s, &s->params[i], scaled ? scaler : NULL, err));
    const float seed = 1.0f / s->loss_divisor;
    if (scaled) TRY(mpri_scaler_seed(scaler, "loss_seed", s->loss_divisor, err));
    else TRY(set_state(s, "loss_seed", MPR_FLOAT32, &seed, err));
    TRY(mpri_session_settle_grads(s, err));
    TRY(prepare_buffers(s, sp, err));
    s->forward_done = false;
    TRY(run_segment(s, sp, SEG_BACKWARD, s->forward_count - 1, err));
    s->backward_done = true;
    mpri_window_take(s);
    for (int i = 0; i < s->n_params; i++) {
        SessionParam *p = &s->params[i];
        if (!sp->writes_grad[i]) continue;
        if (!p->present) p->generation = s->generation;
        p->present = true;
        p->unscaled = false;
        p->scaled = scaled;
        p->by = scaled ? scaler : NULL;
    }
    return MPR_OK;
}

/* ---- outputs ---- */

/* Graph outputs that are the session's own. */
static bool inner_output(const char *name)
{
    return !strcmp(name, MPRI_LOSS_COUNT);
}

static mpr_status unknown_output(mpr_session *s, const char *name, Err *err)
{
    const Graph *g = s->current->plan->graph;
    Text list;
    mpri_text_init(&list, &s->ctx->alloc);
    for (int i = 0; i < g->n_outputs; i++)
        if (!inner_output(g->outputs[i].name))
            mpri_text_add(&list, "%s'%s'", list.len ? ", " : "", mpri_err_name(g->outputs[i].name));
    mpri_err_set(err, MPR_E_USAGE, "no output '%s'; there are %s", mpri_err_name(name),
                 g->n_outputs ? list.text : "none");
    mpri_text_free(&list);
    return mpri_err_advice(err, "use one of the names listed");
}

static mpr_status reserve_fetch(mpr_session *s, size_t bytes, Err *err)
{
    if (bytes <= s->fetch_bytes) return MPR_OK;
    void *fetch = mpri_alloc(&s->ctx->alloc, bytes, 64);
    if (!fetch) return mpri_err_nomem(err, bytes);
    mpri_free(&s->ctx->alloc, s->fetch);
    s->fetch = fetch;
    s->fetch_bytes = bytes;
    return MPR_OK;
}

mpr_status mpri_session_output(mpr_session *s, const char *name, mpr_tensor *out, Err *err)
{
    if (!s->current || !s->outputs_valid) {
        mpri_err_set(err, MPR_E_ORDER,
                     "no outputs: no forward or evaluate has run since the shapes changed");
        return mpri_err_advice(err, "call mpr_session_forward or mpr_session_evaluate first");
    }
    const Value *v = mpri_plan_output(s->current->plan, name);
    if (!v || inner_output(name)) return unknown_output(s, name, err);
    const void *data = mpri_plan_value_data(s->current->plan, v);
    if (!data && v->kind == VAL_CONST) data = v->data;
    int64_t n;
    if (!mpri_size_elements(v->shape.rank, v->shape.d, &n) || (!data && n))
        return mpri_err_set(err, MPR_E_INTERNAL, "output '%s' has no buffer", mpri_err_name(name));
    *out = (mpr_tensor){.data = data, .dtype = v->dtype, .rank = v->shape.rank};
    for (int i = 0; i < v->shape.rank; i++) out->dims[i] = v->shape.d[i];
    if (!s->device->shared) {
        TRY(mpri_plan_check(s->current->plan, err));
        out->data = data = mpri_plan_view(s->current->plan, v);
        if (!data && n)
            return mpri_err_set(err, MPR_E_DEVICE, "output '%s' cannot be read from the device",
                                mpri_err_name(name));
    }
    if (!mpri_dtype_is_low(v->dtype)) return MPR_OK;
    TRY(reserve_fetch(s, (size_t)n * sizeof(float), err));
    for (int64_t i = 0; i < n; i++)
        ((float *)s->fetch)[i] = (float)mpri_load_f64(v->dtype, data, i);
    out->data = s->fetch;
    out->dtype = MPR_FLOAT32;
    return MPR_OK;
}

/* What the loss of the model counted in the last forward pass. */
static mpr_status own_count(mpr_session *s, const Value *v, double *count, Err *err)
{
    float n;
    if (!s->outputs_valid) {
        mpri_err_set(err, MPR_E_ORDER, "no labels are counted: no forward pass has run");
        return mpri_err_advice(err, "call mpr_session_forward first");
    }
    if (v->kind == VAL_CONST) memcpy(&n, v->data, sizeof n);
    else TRY(s->device->copy_out(s->device, &n, mpri_plan_value_data(s->current->plan, v),
                                 sizeof n, err));
    *count = (double)n;
    return MPR_OK;
}

mpr_status mpri_session_label_count(mpr_session *s, double *count, Err *err)
{
    const Value *own = s->current ? mpri_plan_output(s->current->plan, MPRI_LOSS_COUNT) : NULL;
    if (own) return own_count(s, own, count, err);
    const SessionInput *in = mpri_session_find_input(s, mpri_session_labels(s));
    if (!in || !in->bound) {
        mpri_err_set(err, MPR_E_ORDER, "no labels are bound under '%s'",
                     mpri_err_name(mpri_session_labels(s)));
        return mpri_err_advice(err, "bind them with mpr_session_bind");
    }
    int64_t n, counted = 0;
    if (!mpri_size_elements(in->rank, in->dims, &n))
        return mpri_err_set(err, MPR_E_INTERNAL, "labels have a bad shape");
    bool ints = mpri_dtype_is_int(in->dtype);
    for (int64_t i = 0; i < n; i++)
        counted += !ints || mpri_load_i64(in->dtype, in->data, i) != s->ignore_index;
    *count = (double)counted;
    return MPR_OK;
}
