/* The search for the first non-finite tensor; forensics.h tells how. */
#include "runtime/train/forensics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- ranges ---- */

int64_t mpri_first_nonfinite(DType t, const void *data, int64_t n)
{
    if (t == MPR_FLOAT32) {
        const float *p = data;
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(p[i])) return i;
        return -1;
    }
    if (mpri_dtype_is_low(t)) {
        const uint16_t *p = data, exponent = t == MPR_FLOAT16 ? 0x7c00 : 0x7f80;
        for (int64_t i = 0; i < n; i++)
            if ((p[i] & exponent) == exponent) return i;
        return -1;
    }
    if (!mpri_dtype_is_float(t)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(mpri_load_f64(t, data, i))) return i;
    return -1;
}

void mpri_tensor_range(DType t, const void *data, int64_t n, TensorRange *r)
{
    *r = (TensorRange){.n = n, .first = -1, .low = INFINITY, .high = -INFINITY};
    for (int64_t i = 0; i < n; i++) {
        double x = mpri_load_f64(t, data, i);
        if (!isfinite(x)) {
            if (r->first < 0) r->first = i;
            r->nan += isnan(x);
            r->inf += x > 0;
            r->minus_inf += x < 0;
            continue;
        }
        if (x < r->low) r->low = x;
        if (x > r->high) r->high = x;
        if (x != 0 && (r->least == 0 || fabs(x) < r->least)) r->least = fabs(x);
    }
}

static const char *word(double v)
{
    return isnan(v) ? "NaN" : v > 0 ? "inf" : "-inf";
}

/* A slot's bytes on the host: where they lie, or copied into *copy, which the caller frees. NULL when
 * they cannot be had. */
static const void *slot_view(mpr_session *s, const StoreSlot *slot, void **copy)
{
    Device *d = s->device;
    Err err;
    mpri_err_clear(&err);
    *copy = NULL;
    if (d->shared) return slot->data;
    *copy = mpri_alloc(&s->ctx->alloc, slot->bytes ? slot->bytes : 1, 64);
    if (!*copy || d->copy_out(d, *copy, slot->data, slot->bytes, &err) != MPR_OK) return NULL;
    return *copy;
}

bool mpri_session_first_bad_gradient(mpr_session *s, char *buf, size_t size)
{
    Err quiet;
    mpri_err_clear(&quiet);
    (void)mpri_session_settle_grads(s, &quiet);
    for (int i = 0; i < s->n_params; i++) {
        const SessionParam *p = &s->params[i];
        const StoreSlot *slot = p->present ? mpri_store_find(&s->store, p->grad_slot) : NULL;
        void *copy = NULL;
        const void *data = slot ? slot_view(s, slot, &copy) : NULL;
        int64_t at = data ? mpri_first_nonfinite(slot->dtype, data, p->n) : -1;
        if (at >= 0)
            snprintf(buf, size, "gradient of '%s' is %s at element %lld",
                     mpri_err_name(p->public_name), word(mpri_load_f64(slot->dtype, data, at)),
                     (long long)at);
        mpri_free(&s->ctx->alloc, copy);
        if (at >= 0) return true;
    }
    return false;
}

/* ---- one look at every step ---- */

static const void *value_data(const Plan *p, const Value *v)
{
    return mpri_plan_view(p, v);
}

/* No kernel runs for a view: its bytes are those of its source. */
static const Value *source_of(const Value *v)
{
    while (v && v->kind == VAL_NODE && (v->def->op->flags & OPF_VIEW) && v->def->in[0])
        v = v->def->in[0];
    return v;
}

static unsigned signs_of(DType t, const void *data, int64_t n, int64_t from)
{
    unsigned signs = 0;
    for (int64_t i = from; i < n; i++) {
        double x = mpri_load_f64(t, data, i);
        if (isnan(x)) return STATE_BAD;
        if (isinf(x)) signs |= x > 0 ? STATE_INF : STATE_MINUS_INF;
    }
    return signs;
}

/* Nodes that hand an infinity on as it is. */
static bool hands_on(const Node *n)
{
    const OpDef *op = n->op;
    return (op->flags & (OPF_ELEMENTWISE | OPF_VIEW)) || op->cast_cuda == CAST_MOVE ||
           op->id == OP_Cast || op->id == OP_Where || op->id == OP_Concat || op->id == OP_Gather ||
           op->id == OP_ReduceMax || op->id == OP_ReduceMin || !strcmp(op->family, "layout");
}

void mpri_search_value(Search *f, int step, const Value *v)
{
    const Node *n = f->p->steps[step].node;
    const void *data = mpri_dtype_is_float(v->dtype) ? mpri_plan_view(f->p, v) : NULL;
    int64_t count = data ? mpri_shape_elements(&v->shape) : 0;
    int64_t at = count ? mpri_first_nonfinite(v->dtype, data, count) : -1;
    if (at < 0) return;
    unsigned signs = signs_of(v->dtype, data, count, at), meant = 0;
    const Value *root = NULL;
    for (int k = 0; k < n->n_in; k++) {
        const Value *x = source_of(n->in[k]);
        if (!x) continue;
        meant |= f->state[x->id] & (STATE_INF | STATE_MINUS_INF);
        if (f->roots[x->id]) root = f->roots[x->id];
    }
    f->roots[v->id] = root;
    if (signs != STATE_BAD && hands_on(n) && !(signs & ~meant)) {
        f->state[v->id] = (unsigned char)signs;
        return;
    }
    f->state[v->id] = STATE_BAD;
    int *first = &f->first[f->p->steps[step].segment != SEG_FORWARD];
    if (*first < 0) *first = step;
}

/* The first node that reads a copy of a weight which only the copy's type cannot hold. */
static void look_at_copies(Search *f, int step)
{
    const Node *n = f->p->steps[step].node;
    for (int k = 0; k < n->n_in && f->first[0] < 0; k++) {
        const Value *v = n->in[k];
        if (!v || v->kind != VAL_SLOT || f->state[v->id] != STATE_BAD) continue;
        f->copy = v;
        f->first[0] = step;
    }
}

static PlanWord first_run(void *user, int step, bool done)
{
    Search *f = user;
    const Node *n = f->p->steps[step].node;
    if (!done) look_at_copies(f, step);
    if (!done) return n->op->flags & OPF_EFFECT ? PLAN_SKIP : PLAN_GO;
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k]) mpri_search_value(f, step, n->out[k]);
    return f->first[1] >= 0 ? PLAN_STOP : PLAN_GO;
}

static void measure(const Search *f, const Value *v, TensorRange *r)
{
    const void *data = value_data(f->p, v);
    mpri_tensor_range(v->dtype, data, data ? mpri_shape_elements(&v->shape) : 0, r);
}

static void measure_inputs(const Search *f, const Node *n)
{
    NonFinite *o = f->out;
    for (int k = 0; k < n->n_in && o->n_in < BAD_OPERANDS; k++) {
        const Value *v = n->in[k];
        if (!v || !mpri_dtype_is_float(v->dtype) || !value_data(f->p, v)) continue;
        mpri_forensics_tensor(f->p, v, o->in[o->n_in].tensor, sizeof o->in[0].tensor);
        measure(f, v, &o->in[o->n_in++].range);
    }
}

static void measure_output(const Search *f, const Node *n)
{
    NonFinite *o = f->out;
    for (int k = 0; k < n->n_out; k++) {
        const Value *v = n->out[k];
        if (!v || f->state[v->id] != STATE_BAD) continue;
        measure(f, v, &o->range);
        mpri_forensics_tensor(f->p, v, o->tensor, sizeof o->tensor);
        o->dtype = v->dtype;
        if (o->range.first < 0) continue;
        o->is_nan = isnan(mpri_load_f64(v->dtype, value_data(f->p, v), o->range.first));
        return;
    }
}

static PlanWord second_run(void *user, int step, bool done)
{
    Search *f = user;
    const Node *n = f->p->steps[step].node;
    if (!done && step == f->stop_at) measure_inputs(f, n);
    if (!done) return n->op->flags & OPF_EFFECT ? PLAN_SKIP : PLAN_GO;
    if (step < f->stop_at) return PLAN_GO;
    measure_output(f, n);
    return PLAN_STOP;
}

static mpr_status run(Search *f, int segment, uint64_t count, PlanWatch watch, Err *err)
{
    mpr_session *s = f->s;
    for (int i = 0; segment == SEG_FORWARD && i < s->n_inputs; i++) {
        Value *v = mpri_plan_input(f->p, s->inputs[i].name);
        void *to = v ? mpri_plan_value_data(f->p, v) : NULL;
        if (to && s->inputs[i].bytes)
            TRY(s->device->copy_in(s->device, to, s->inputs[i].data, s->inputs[i].bytes, err));
    }
    return mpri_plan_run_watched(f->p, segment, s->o.seed, count, watch, f, err);
}

/* ---- what goes in: inputs, constants, parameters ---- */

/* The parameter in float32 of a copy in 16 bits. */
static const StoreSlot *master_of(const Search *f, const Value *v)
{
    const Store *store = &f->s->store;
    int param = f->p->graph->slots[v->slot].param;
    for (int i = 0; i < store->n; i++)
        if (store->slots[i].cls == SLOT_PARAM && store->slots[i].param == param) return &store->slots[i];
    return NULL;
}

static bool measure_master(const Search *f, const Value *v, TensorRange *r)
{
    const StoreSlot *master = v->kind == VAL_SLOT ? master_of(f, v) : NULL;
    void *copy = NULL;
    const void *data = master ? slot_view(f->s, master, &copy) : NULL;
    if (data) mpri_tensor_range(master->dtype, data, mpri_shape_elements(&v->shape), r);
    mpri_free(&f->s->ctx->alloc, copy);
    return data != NULL;
}

/* A NaN anywhere, or a parameter that is not finite, is the culprit; an infinity in an input or a
 * constant may be a mask. A copy of a good parameter overflowed when it was made: whoever reads it
 * comes first. */
bool mpri_search_sources(Search *f)
{
    const Plan *p = f->p;
    const Graph *g = p->graph;
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i];
        if (v->kind == VAL_NODE || !v->n_uses || !mpri_dtype_is_float(v->dtype)) continue;
        if (v->kind == VAL_SLOT && g->slots[v->slot].cls != SLOT_PARAM &&
            g->slots[v->slot].cls != SLOT_COPY)
            continue;
        const void *data = value_data(p, v);
        int64_t n = data ? mpri_shape_elements(&v->shape) : 0,
                at = n ? mpri_first_nonfinite(v->dtype, data, n) : -1;
        if (at < 0) continue;
        TensorRange r;
        if (v->kind == VAL_SLOT && g->slots[v->slot].cls == SLOT_COPY && measure_master(f, v, &r) && r.first < 0) {
            f->state[v->id] = STATE_BAD;
            continue;
        }
        unsigned signs = signs_of(v->dtype, data, n, at);
        f->state[v->id] = (unsigned char)signs;
        f->roots[v->id] = v;
        if (signs == STATE_BAD || v->kind == VAL_SLOT || v->param >= 0) return true;
    }
    return false;
}

static void describe_source(Search *f, const Value *v)
{
    NonFinite *o = f->out;
    o->kind = v->kind == VAL_INPUT                      ? BAD_INPUT
              : v->kind == VAL_CONST && v->param < 0 ? BAD_CONSTANT
                                                        : BAD_PARAMETER;
    mpri_forensics_tensor(f->p, v, o->tensor, sizeof o->tensor);
    o->dtype = v->dtype;
    measure(f, v, &o->range);
    o->is_nan = isnan(mpri_load_f64(v->dtype, value_data(f->p, v), o->range.first));
}

/* The cast that made the copy, as it would be told where it is a node. */
static void describe_copy(Search *f)
{
    NonFinite *o = f->out;
    const Value *v = f->copy;
    o->kind = BAD_FORWARD;
    mpri_forensics_node(f->s, f->p->steps[f->first[0]].node, o->node, o->op);
    snprintf(o->op, sizeof o->op, "cast to %s", mpri_dtype_long(v->dtype));
    mpri_forensics_tensor(f->p, v, o->tensor, sizeof o->tensor);
    o->dtype = v->dtype;
    measure(f, v, &o->range);
    snprintf(o->in[0].tensor, sizeof o->in[0].tensor, "%.100s", o->tensor);
    o->n_in = measure_master(f, v, &o->in[0].range);
}

mpr_status mpri_search_open(Search *f, mpr_session *s, Plan *p, Err *err)
{
    size_t n = (size_t)p->graph->n_values + 1;
    *f = (Search){.s = s, .p = p, .first = {-1, -1}, .stop_at = -1};
    f->state = mpri_context_alloc(s->ctx, n);
    f->roots = mpri_context_alloc(s->ctx, n * sizeof *f->roots);
    return f->state && f->roots ? MPR_OK : mpri_err_nomem(err, n * sizeof *f->roots);
}

void mpri_search_close(Search *f)
{
    mpri_free(&f->s->ctx->alloc, f->state);
    mpri_free(&f->s->ctx->alloc, (void *)f->roots);
    f->state = NULL;
    f->roots = NULL;
}

/* ---- the search ---- */

/* The inputs lie in buffers that activations use later: they are fed before they are looked at. */
static PlanWord no_run(void *user, int step, bool done)
{
    (void)user;
    (void)step;
    (void)done;
    return PLAN_STOP;
}

static const Value *bad_operand(const Search *f, int step)
{
    const Node *n = f->p->steps[step].node;
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = source_of(n->in[k]);
        if (v && f->state[v->id] == STATE_BAD) return v;
    }
    return NULL;
}

/* The input from which an infinity came that this step could not digest. */
static const Value *infinite_input(const Search *f, int step)
{
    const Node *n = f->p->steps[step].node;
    for (int k = 0; k < n->n_in && !hands_on(n); k++) {
        const Value *v = source_of(n->in[k]), *root = v ? f->roots[v->id] : NULL;
        if (root && root->kind == VAL_INPUT) return root;
    }
    return NULL;
}

static bool search(Search *f, uint64_t count, bool backward, Err *err)
{
    NonFinite *o = f->out;
    f->first[0] = f->first[1] = f->stop_at = -1;
    f->copy = NULL;
    if (run(f, SEG_FORWARD, count, first_run, err) != MPR_OK) return false;
    const Value *loss = mpri_plan_output(f->p, "loss");
    const void *data = loss ? mpri_plan_view(f->p, loss) : NULL;
    bool bad_loss = data && mpri_first_nonfinite(loss->dtype, data, 1) >= 0;
    int step = f->first[0];
    if (!bad_loss && backward) {
        if (run(f, SEG_BACKWARD, count, first_run, err) != MPR_OK) return false;
        const Value *v = f->first[1] >= 0 ? bad_operand(f, f->first[1]) : NULL;
        bool forward = v && (v->kind == VAL_SLOT || (v->kind == VAL_NODE && v->def->segment == SEG_FORWARD));
        if (!forward) step = f->first[1];
    } else if (!bad_loss) {
        return false;
    }
    if (step < 0) return false;
    if (f->copy && step == f->first[0]) {
        describe_copy(f);
        return true;
    }
    const Value *input = infinite_input(f, step);
    if (input) {
        if (run(f, SEG_FORWARD, count, no_run, err) != MPR_OK) return false;
        describe_source(f, input);
        return true;
    }
    o->kind = f->p->steps[step].segment == SEG_FORWARD ? BAD_FORWARD : BAD_BACKWARD;
    f->stop_at = step;
    if (run(f, SEG_FORWARD, count, second_run, err) != MPR_OK) return false;
    if (o->kind == BAD_BACKWARD && run(f, SEG_BACKWARD, count, second_run, err) != MPR_OK)
        return false;
    f->culprit = f->p->steps[step].node;
    mpri_forensics_node(f->s, f->culprit, o->node, o->op);
    mpri_forensics_others(f->s, f->culprit, o->node, o->also, sizeof o->also);
    return o->range.first >= 0;
}

/* The search in one plan; *culprit is the node when there is one. */
static bool search_plan(mpr_session *s, Plan *p, uint64_t count, bool backward, NonFinite *out,
                        const Node **culprit)
{
    Err err;
    Search f;
    bool found = false;
    mpri_err_clear(&err);
    *culprit = NULL;
    *out = (NonFinite){.range = {.first = -1}, .micro = 1, .micros = 1};
    if (mpri_search_open(&f, s, p, &err) == MPR_OK) {
        f.out = out;
        if (run(&f, SEG_FORWARD, count, no_run, &err) == MPR_OK) {
            found = mpri_search_sources(&f);
            if (found) {
                for (int i = 0; i < p->graph->n_values; i++)
                    if (f.roots[i] && (f.state[i] == STATE_BAD || f.roots[i]->kind == VAL_SLOT ||
                                       f.roots[i]->param >= 0))
                        describe_source(&f, f.roots[i]);
            } else {
                found = search(&f, count, backward, &err);
            }
        }
    }
    *culprit = f.culprit;
    mpri_search_close(&f);
    return found;
}

/* ---- kernels that do the work of several nodes ---- */

static bool share_origin(const Node *a, const Node *b)
{
    for (int i = 0; i < a->origin.n; i++)
        for (int k = 0; k < b->origin.n; k++)
            if (a->origin.v[i] == b->origin.v[k]) return true;
    return false;
}

/* Is b a part of what a computes, or a itself? */
static bool part_of(const Node *a, const Node *b)
{
    if (a->segment != b->segment) return false;
    if (!strcmp(a->name, b->name) || share_origin(a, b)) return true;
    for (int i = 0; i < a->n_out; i++)
        for (int k = 0; k < b->n_out; k++)
            if (a->out[i] && b->out[k] && !strcmp(a->out[i]->name, b->out[k]->name)) return true;
    return false;
}

/* With a kernel for each node, other roundings may overflow elsewhere: what is found there counts
 * only where it is a part of the kernel that was bad in the step itself. */
static void look_inside(mpr_session *s, uint64_t count, bool backward, const Node *fused,
                        NonFinite *out)
{
    Err quiet;
    Plan *plan;
    NonFinite part;
    const Node *culprit;
    mpri_err_clear(&quiet);
    if (mpri_session_unfused(s, &plan, &quiet) != MPR_OK) return;
    if (search_plan(s, plan, count, backward, &part, &culprit) && culprit &&
        part_of(fused, culprit))
        *out = part;
    mpri_plan_destroy(plan);
}

bool mpri_forensics_find(mpr_session *s, uint64_t forward_count, bool backward, NonFinite *out)
{
    Err err;
    SessionPlan *sp;
    const Node *culprit;
    mpri_err_clear(&err);
    *out = (NonFinite){.range = {.first = -1}};
    if (!s->loss || mpri_session_plan(s, MODE_TRAIN, &sp, &err) != MPR_OK) return false;
    if (s->current != sp) s->outputs_valid = false;
    s->forward_done = false;
    if (!search_plan(s, sp->plan, forward_count, backward, out, &culprit)) return false;
    if (culprit) look_inside(s, forward_count, backward, culprit, out);
    mpri_forensics_text(out);
    mpri_forensics_advice(out);
    return true;
}

bool mpri_session_first_bad(mpr_session *s, bool backward, char *buf, size_t size)
{
    NonFinite found;
    if (!s->forward_count || !mpri_forensics_find(s, s->forward_count - 1, backward, &found))
        return false;
    snprintf(buf, size, "%s", found.text);
    return true;
}
