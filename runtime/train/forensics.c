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

bool mpri_session_first_bad_gradient(mpr_session *s, char *buf, size_t size)
{
    for (int i = 0; i < s->n_params; i++) {
        const SessionParam *p = &s->params[i];
        const StoreSlot *slot = p->present ? mpri_store_find(&s->store, p->grad_slot) : NULL;
        int64_t at = slot ? mpri_first_nonfinite(slot->dtype, slot->data, p->n) : -1;
        if (at < 0) continue;
        snprintf(buf, size, "gradient of '%s' is %s at element %lld", mpri_err_name(p->public_name),
                 word(mpri_load_f64(slot->dtype, slot->data, at)), (long long)at);
        return true;
    }
    return false;
}

/* ---- names ---- */

static const Node *file_node(const mpr_session *s, const char *name, size_t n)
{
    const Graph *g = s->model->m->graph;
    for (const Node *x = g->first; x && n; x = x->next)
        if (strlen(x->name) == n && !memcmp(x->name, name, n)) return x;
    return NULL;
}

static bool moves(const Node *n) { return n->op->cast_cuda == CAST_MOVE || mpri_is(n, OP_Cast); }

/* A node of the file that n stands for; the last one where there are several. */
static const Node *origin_node(const mpr_session *s, const Node *n)
{
    const Graph *g = s->model->m->graph;
    for (const Node *x = n->origin.n ? g->last : NULL; x; x = x->prev)
        for (int i = 0; i < x->origin.n && (moves(n) || !moves(x)); i++)
            for (int k = 0; k < n->origin.n; k++)
                if (x->origin.v[i] == n->origin.v[k]) return x;
    return NULL;
}

static void put_name(char name[256], char op[64], const char *from, size_t n, const char *type)
{
    snprintf(name, 256, "%.*s", (int)(n < 255 ? n : 255), from);
    snprintf(op, 64, "%s", type);
}

/* An autocast's cast goes by the node that reads what it made. */
static bool name_cast(const mpr_session *s, const Node *n, char name[256], char op[64])
{
    const Use *u = mpri_is(n, OP_Cast) ? n->out[0]->uses : NULL;
    if (!u || n->segment != SEG_FORWARD || mpri_is(u->user, OP_Cast) ||
        file_node(s, n->name, strlen(n->name)))
        return false;
    mpri_forensics_node(s, u->user, name, op);
    snprintf(op, 64, "cast to %s", mpri_dtype_long(n->out[0]->dtype));
    return true;
}

void mpri_forensics_node(const mpr_session *s, const Node *n, char name[256], char op[64])
{
    static const char prefix[] = "grad:";
    const char *at = n->name;
    if (name_cast(s, n, name, op)) return;
    if (n->segment == SEG_BACKWARD && !strncmp(at, prefix, 5)) at += 5;
    /* "NODE/Op" of a rule, "NODE/Op/Op" of a rule's rule: the longest name that the file has */
    for (size_t len = strlen(at); len; len--) {
        const Node *x = len == strlen(at) || at[len] == '/' ? file_node(s, at, len) : NULL;
        if (!x) continue;
        const Node *y = moves(x) && !moves(n) ? origin_node(s, n) : NULL;
        if (y) x = y; /* the layout was taken into the node before it */
        put_name(name, op, x->name, strlen(x->name), x->op->name);
        return;
    }
    const Node *x = origin_node(s, n);
    if (x && x->name[0]) put_name(name, op, x->name, strlen(x->name), x->op->name);
    else put_name(name, op, at, strlen(at), n->op->name);
}

/* The name that people know: of a parameter its public one; a copy in another type goes by the name
 * of what it copies. */
void mpri_forensics_tensor(const Plan *p, const Value *v, char *buf, size_t size)
{
    const Graph *g = p->graph;
    const char *name = v->name, *copy = strstr(name, "__mpr_");
    size_t n = copy ? (size_t)(copy - name) : strlen(name);
    if (n > 6 && !memcmp(name, "param:", 6)) name += 6, n -= 6;
    for (int i = 0; i < g->n_params; i++) {
        const Param *x = &g->params[i];
        if (v->param != i && (strlen(x->name) != n || memcmp(x->name, name, n))) continue;
        name = x->public_name;
        n = strlen(name);
        break;
    }
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(n < 500 ? n : 500), name);
    snprintf(buf, size, "%s", mpri_err_name(text));
}

/* ---- one look at every step ---- */

static const void *value_data(const Plan *p, const Value *v)
{
    return v->kind == VAL_CONST ? v->data : mpri_plan_value_data(p, v);
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
    const void *data = mpri_dtype_is_float(v->dtype) ? mpri_plan_value_data(f->p, v) : NULL;
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

static PlanWord first_run(void *user, int step, bool done)
{
    Search *f = user;
    const Node *n = f->p->steps[step].node;
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

/* A NaN anywhere, or a parameter that is not finite, is the culprit; an infinity in an input or a
 * constant may be a mask. */
bool mpri_search_sources(Search *f)
{
    const Plan *p = f->p;
    const Graph *g = p->graph;
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i];
        if (v->kind == VAL_NODE || !v->n_uses || !mpri_dtype_is_float(v->dtype)) continue;
        if (v->kind == VAL_SLOT && g->slots[v->slot].cls != SLOT_PARAM) continue;
        const void *data = value_data(p, v);
        int64_t n = data ? mpri_shape_elements(&v->shape) : 0,
                at = n ? mpri_first_nonfinite(v->dtype, data, n) : -1;
        if (at < 0) continue;
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

/* ---- text ---- */

static void put_range(char *buf, size_t size, const TensorRange *r)
{
    size_t used = strlen(buf);
    int64_t bad = r->nan + r->inf + r->minus_inf;
    char low[32], high[32];
    if (used + 1 >= size) return;
    if (r->low <= r->high)
        snprintf(buf + used, size - used, "%s to %s", mpri_print_f32(low, (float)r->low),
                 mpri_print_f32(high, (float)r->high));
    else snprintf(buf + used, size - used, "no finite element");
    used = strlen(buf);
    if (bad && used + 1 < size)
        snprintf(buf + used, size - used, " (%lld not finite)", (long long)bad);
}

static const char *bad_word(const NonFinite *o)
{
    if (o->is_nan) return "NaN";
    return o->range.inf ? "inf" : "-inf";
}

static void write_text(NonFinite *o)
{
    static const char *const sources[] = {"input", "constant", "parameter"};
    char *t = o->text;
    size_t size = sizeof o->text;
    const TensorRange *r = &o->range;
    int64_t bad = r->nan + r->inf + r->minus_inf;
    if (o->kind <= BAD_PARAMETER)
        snprintf(t, size, "%s '%s' is %s at element %lld", sources[o->kind], o->tensor, bad_word(o),
                 (long long)r->first);
    else
        snprintf(t, size, "%s of node '%s' (%s): tensor '%s' is %s at element %lld",
                 o->kind == BAD_FORWARD ? "forward" : "gradient", o->node, o->op, o->tensor,
                 bad_word(o), (long long)r->first);
    size_t used = strlen(t);
    snprintf(t + used, size - used, "; %lld of %lld elements not finite (%lld NaN), the others ",
             (long long)bad, (long long)r->n, (long long)r->nan);
    if (bad < r->n) {
        TensorRange finite = *r;
        finite.nan = finite.inf = finite.minus_inf = 0;
        put_range(t, size, &finite);
    } else {
        t[strlen(t) - strlen(", the others ")] = 0;
    }
    for (int i = 0; i < o->n_in; i++) {
        used = strlen(t);
        snprintf(t + used, size - used, "%s'%s' ", i ? ", " : "; inputs: ", o->in[i].tensor);
        put_range(t, size, &o->in[i].range);
    }
}

static void write_advice(NonFinite *o)
{
    /* --keep-fp32 takes names that begin with a slash, and operators */
    const char *keep = o->node[0] == '/' ? o->node : o->op;
    char *t = o->advice;
    size_t size = sizeof o->advice;
    if (o->kind == BAD_INPUT) {
        snprintf(t, size, "look at the data of '%.100s'", o->tensor);
    } else if (o->kind <= BAD_PARAMETER) {
        snprintf(t, size, "'%.100s' itself is damaged: start from an earlier checkpoint, and look "
                          "at the learning rate", o->tensor);
    } else if (o->kind == BAD_BACKWARD) {
        snprintf(t, size, "lower the learning rate or --min-scale, or keep the node in float32 "
                          "with --keep-fp32 '%.200s'", keep);
    } else if (mpri_dtype_is_low(o->dtype)) {
        snprintf(t, size, "keep the node in float32 with --keep-fp32 '%.200s', or lower the "
                          "learning rate", keep);
    } else {
        snprintf(t, size, "look at what the node reads; lower the learning rate");
    }
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
    if (run(f, SEG_FORWARD, count, first_run, err) != MPR_OK) return false;
    const Value *loss = mpri_plan_output(f->p, "loss");
    const void *data = loss ? mpri_plan_value_data(f->p, loss) : NULL;
    bool bad_loss = data && mpri_first_nonfinite(loss->dtype, data, 1) >= 0;
    int step = f->first[0];
    if (!bad_loss && backward) {
        if (run(f, SEG_BACKWARD, count, first_run, err) != MPR_OK) return false;
        const Value *v = f->first[1] >= 0 ? bad_operand(f, f->first[1]) : NULL;
        bool forward = v && v->kind == VAL_NODE && v->def->segment == SEG_FORWARD;
        if (!forward) step = f->first[1];
    } else if (!bad_loss) {
        return false;
    }
    if (step < 0) return false;
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
    mpri_forensics_node(f->s, f->p->steps[step].node, o->node, o->op);
    return o->range.first >= 0;
}

bool mpri_forensics_find(mpr_session *s, uint64_t forward_count, bool backward, NonFinite *out)
{
    Err err;
    SessionPlan *sp;
    bool found = false;
    mpri_err_clear(&err);
    *out = (NonFinite){.range = {.first = -1}};
    if (!s->loss || mpri_session_plan(s, MODE_TRAIN, &sp, &err) != MPR_OK) return false;
    if (s->current != sp) s->outputs_valid = false;
    s->forward_done = false;
    Search f;
    if (mpri_search_open(&f, s, sp->plan, &err) == MPR_OK) {
        f.out = out;
        if (run(&f, SEG_FORWARD, forward_count, no_run, &err) == MPR_OK) {
            found = mpri_search_sources(&f);
            if (found) {
                for (int i = 0; i < sp->plan->graph->n_values; i++)
                    if (f.roots[i] && (f.state[i] == STATE_BAD || f.roots[i]->kind == VAL_SLOT ||
                                       f.roots[i]->param >= 0))
                        describe_source(&f, f.roots[i]);
            } else {
                found = search(&f, forward_count, backward, &err);
            }
        }
    }
    mpri_search_close(&f);
    if (found) {
        write_text(out);
        write_advice(out);
    }
    return found;
}

bool mpri_session_first_bad(mpr_session *s, bool backward, char *buf, size_t size)
{
    NonFinite found;
    if (!s->forward_count || !mpri_forensics_find(s, s->forward_count - 1, backward, &found))
        return false;
    snprintf(buf, size, "%s", found.text);
    return true;
}
