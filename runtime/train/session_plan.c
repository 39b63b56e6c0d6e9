/* Plans of a session: one per mode and bound shapes, cached; all share one arena memory.
 *
 * Memory grows only here, when a plan is made: the old block goes, the new one is given to every
 * plan. The values of the last forward are gone then, which is why making a plan invalidates
 * `forward_done`. */
#include "runtime/train/session.h"

#include <string.h>

#include "runtime/train/binding.h"
#include "runtime/train/control.h"

static int key_length(const mpr_session *s)
{
    return s->n_inputs * (1 + MPRI_MAX_RANK);
}

static void fill_key(const mpr_session *s, int64_t *key)
{
    for (int i = 0; i < s->n_inputs; i++) {
        const SessionInput *in = &s->inputs[i];
        int64_t *k = key + i * (1 + MPRI_MAX_RANK);
        k[0] = in->bound ? in->rank : -1;
        for (int d = 0; d < MPRI_MAX_RANK; d++)
            k[1 + d] = in->bound && d < in->rank ? in->dims[d] : 0;
    }
}

static bool key_matches(const mpr_session *s, const int64_t *key)
{
    for (int i = 0; i < s->n_inputs; i++) {
        const SessionInput *in = &s->inputs[i];
        const int64_t *k = key + i * (1 + MPRI_MAX_RANK);
        if (k[0] != (in->bound ? in->rank : -1)) return false;
        for (int d = 0; in->bound && d < in->rank; d++)
            if (k[1 + d] != in->dims[d]) return false;
    }
    return true;
}

static mpr_status need_inputs(mpr_session *s, const Graph *g, Err *err)
{
    for (int i = 0; i < g->n_inputs; i++) {
        const SessionInput *in = mpri_session_find_input(s, g->inputs[i].value->name);
        const Value *v = g->inputs[i].value;
        if ((in && in->bound) || (!v->n_uses && !v->n_outputs)) continue;
        mpri_err_set(err, MPR_E_DATA, "input '%s' is not bound",
                     mpri_err_name(g->inputs[i].value->name));
        return mpri_err_advice(err, "bind every input with mpr_session_bind before the pass");
    }
    return MPR_OK;
}

static mpr_status bind_dims(mpr_session *s, const Graph *g, DimBinding *binding, Err *err)
{
    for (int i = 0; i < g->n_inputs; i++) {
        const SessionInput *in = mpri_session_find_input(s, g->inputs[i].value->name);
        if (in && in->bound)
            TRY(mpri_bind_input(g, binding, g->inputs[i].value, in->rank, in->dims, err));
    }
    return MPR_OK;
}

/* ---- trip counts that follow from shapes ---- */

static mpr_status decide_source(mpr_session *s, mpr_model *model, ImportedModel **out, Err *err)
{
    FedInput *fed = ARENA_ARRAY(&s->arena, FedInput, s->n_inputs + 1);
    int n = 0;
    if (!fed) return mpri_err_nomem(err, 0);
    for (int i = 0; i < s->n_inputs; i++) {
        const SessionInput *in = &s->inputs[i];
        if (!in->bound) continue;
        Tensor t = {.dtype = in->dtype, .rank = in->rank};
        memcpy(t.dims, in->dims, (size_t)in->rank * sizeof *t.dims);
        if (!mpri_size_elements(in->rank, in->dims, &t.n))
            return mpri_err_set(err, MPR_E_INTERNAL, "input '%s' has a bad shape", in->name);
        fed[n++] = (FedInput){.name = in->name, .t = t};
    }
    return mpri_control_decide(model, &s->device->kernels, fed, n, 0, out, err);
}

/* The parameters were listed when the session was opened: no others may appear. */
static mpr_status check_params(mpr_session *s, const Graph *g, Err *err)
{
    for (int i = 0; i < g->n_params; i++) {
        bool known = !g->params[i].trained;
        for (int k = 0; k < s->n_params && !known; k++)
            known = !strcmp(s->params[k].name, g->params[i].name);
        if (known) continue;
        mpri_err_set(err, MPR_E_UNSUPPORTED_OP,
                     "with these shapes parameter '%s' is trained too, which it was not before",
                     mpri_err_name(g->params[i].name));
        return mpri_err_advice(err, "export the model with a fixed number of turns");
    }
    return MPR_OK;
}

/* The imported graph for the bound shapes. */
static mpr_status find_source(mpr_session *s, SessionMode mode, const Graph **out, Err *err)
{
    mpr_model *model = mpri_session_model(s, mode);
    for (SessionSource *p = s->sources; p; p = p->next)
        if (p->model == model && key_matches(s, p->key)) {
            *out = p->m ? p->m->graph : model->m->graph;
            return MPR_OK;
        }
    SessionSource *p = CONTEXT_NEW(s->ctx, SessionSource);
    if (!p) return mpri_err_nomem(err, sizeof *p);
    p->key = ARENA_ARRAY(&s->arena, int64_t, key_length(s) + 1);
    mpr_status status = p->key ? decide_source(s, model, &p->m, err) : mpri_err_nomem(err, 0);
    if (status != MPR_OK) {
        mpri_free(&s->ctx->alloc, p);
        return status;
    }
    fill_key(s, p->key);
    p->model = model;
    p->next = s->sources;
    s->sources = p;
    *out = p->m ? p->m->graph : model->m->graph;
    return MPR_OK;
}

/* The prepared graph of a mode, to be bound, in `arena`. */
static mpr_status prepared_graph(mpr_session *s, SessionMode mode, Arena *arena, Graph **out,
                                 Err *err)
{
    if (!s->stand_in[mode]) {
        *out = mpri_graph_clone(s->graph[mode], arena);
        return *out ? MPR_OK : mpri_err_nomem(err, 0);
    }
    const Graph *source;
    TRY(need_inputs(s, s->graph[mode], err));
    TRY(find_source(s, mode, &source, err));
    TRY(mpri_session_prepare(s, mode, source, arena, out, err));
    return check_params(s, *out, err);
}

/* The bind passes on a prepared graph in `arena`. */
static mpr_status bind_graph(mpr_session *s, const PassOptions *o, const Log *log, Arena *arena,
                             Graph *g, Err *err)
{
    TRY(need_inputs(s, g, err));
    DimBinding *binding = mpri_binding_create(arena, g->sym);
    if (!binding) return mpri_err_nomem(err, 0);
    TRY(bind_dims(s, g, binding, err));
    Arena scratch;
    mpri_arena_init(&scratch, &s->ctx->alloc, 0);
    PassCtx ctx = {
        .scratch = &scratch,
        .alloc = &s->ctx->alloc,
        .log = log,
        .o = o,
        .ref = &s->device->kernels,
        .binding = binding,
    };
    mpr_status status = mpri_passes_run(&ctx, STAGE_BIND, g, err);
    mpri_arena_destroy(&scratch);
    return status;
}

/* A graph with the bound dims, after all bind passes, in `arena`. */
static mpr_status bound_graph(mpr_session *s, SessionMode mode, Arena *arena, Graph **out,
                              Err *err)
{
    TRY(prepared_graph(s, mode, arena, out, err));
    PassOptions o = s->pass[mode];
    o.grads = mode == MODE_TRAIN && s->loss ? GRADS_TO_SLOTS : GRADS_OFF;
    return bind_graph(s, &o, &s->ctx->log, arena, *out, err);
}

/* Takes the arena over, also when it fails. */
static mpr_status plan_of(mpr_session *s, mpr_status status, Graph *g, Arena *arena, Plan **out,
                          Err *err)
{
    if (status != MPR_OK) {
        mpri_arena_destroy(arena);
        return status;
    }
    PlanOptions o = {.kernels = s->o.kernels};
    return mpri_plan_create(s->device, &s->store, g, *arena, &o, out, err);
}

static mpr_status make_plan(mpr_session *s, SessionMode mode, Plan **out, Err *err)
{
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    Graph *g = NULL;
    mpr_status status = bound_graph(s, mode, &arena, &g, err);
    return plan_of(s, status, g, &arena, out, err);
}

/* ---- what float32 would take ---- */

static mpr_status plain_plan(mpr_session *s, Plan **out, Err *err)
{
    static const Log silent;
    Arena arena;
    Graph *g = NULL;
    PassOptions o = s->pass[MODE_TRAIN];
    o.autocast = MPR_DTYPE_NONE;
    o.profile = NULL;
    o.dump_after = NULL;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    mpr_status status = mpri_session_prepare_as(s, &o, &silent, s->model->m->graph, &arena, &g, err);
    o.grads = s->loss ? GRADS_TO_SLOTS : GRADS_OFF;
    if (status == MPR_OK) status = bind_graph(s, &o, &silent, &arena, g, err);
    return plan_of(s, status, g, &arena, out, err);
}

static double value_bytes(const Value *v)
{
    int64_t n = v ? mpri_shape_elements(&v->shape) : 0;
    return n > 0 ? (double)n * (double)mpri_dtype_size(v->dtype) : 0;
}

static double traffic(const Plan *p)
{
    double sum = 0;
    for (int i = 0; i < p->n_steps; i++) {
        const Node *n = p->steps[i].node;
        for (int k = 0; k < n->n_in; k++) sum += value_bytes(n->in[k]);
        for (int k = 0; k < n->n_out; k++) sum += value_bytes(n->out[k]);
    }
    return sum;
}

mpr_status mpri_session_forecast(mpr_session *s, SessionForecast *out, Err *err)
{
    SessionPlan *sp;
    Plan *plain;
    *out = (SessionForecast){0};
    if (!s->profile[MODE_TRAIN] || s->model->m->n_open) return MPR_OK;
    TRY(mpri_session_plan(s, MODE_TRAIN, &sp, err));
    TRY(plain_plan(s, &plain, err));
    *out = (SessionForecast){.known = true,
                             .memory = sp->plan->arena_bytes +
                                       mpri_store_bytes(&s->store, SLOT_COPY),
                             .memory_f32 = plain->arena_bytes,
                             .bytes = traffic(sp->plan),
                             .bytes_f32 = traffic(plain)};
    mpri_plan_destroy(plain);
    return MPR_OK;
}

void mpri_session_forecast_print(const mpr_session *s, const SessionForecast *f, Text *out)
{
    const char *low = mpri_dtype_long(s->autocast[MODE_TRAIN]);
    if (!f->known) return;
    mpri_text_add(out, "forecast     %s: %.3f MB of activations, %.3f MB moved in a step; "
                  "float32: %.3f MB, %.3f MB\n", low, 1e-6 * (double)f->memory, 1e-6 * f->bytes,
                  1e-6 * (double)f->memory_f32, 1e-6 * f->bytes_f32);
    if (f->memory > f->memory_f32)
        mpri_text_add(out, "             warning: %s needs more memory than float32 here; a larger "
                      "batch pays for the copies of the weights\n", low);
    if (f->bytes > f->bytes_f32)
        mpri_text_add(out, "             warning: %s will be slower than float32 here: the CPU "
                      "computes products in float32, and more bytes are moved\n", low);
}

static mpr_status check_memory(const mpr_session *s, const Plan *p, Err *err)
{
    int64_t limit = mpri_context_memory(s->ctx);
    size_t need = p->arena_bytes;
    for (int c = SLOT_PARAM; c <= SLOT_STATE; c++)
        need += mpri_store_bytes(&s->store, (SlotClass)c);
    if ((uint64_t)need <= (uint64_t)limit) return MPR_OK;
    mpri_err_set(
        err, MPR_E_NOMEM,
        "these shapes need %zu bytes (%zu of them activations and workspace), allowed are %lld",
        need, p->arena_bytes, (long long)limit);
    return mpri_err_advice(err, "use a smaller batch, or raise mpr_limits.memory_bytes");
}

/* ---- a kernel for each node ---- */

mpr_status mpri_session_unfused(mpr_session *s, Plan **out, Err *err)
{
    static const Log silent;
    Arena arena;
    Graph *g = NULL;
    PassOptions o = s->pass[MODE_TRAIN];
    o.grads = s->loss ? GRADS_TO_SLOTS : GRADS_OFF;
    o.no_fuse = true;
    o.dump_after = NULL;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    mpr_status status = prepared_graph(s, MODE_TRAIN, &arena, &g, err);
    if (status == MPR_OK) status = bind_graph(s, &o, &silent, &arena, g, err);
    TRY(plan_of(s, status, g, &arena, out, err));
    status = check_memory(s, *out, err);
    if (status == MPR_OK) status = mpri_plan_bind_memory(*out, NULL, err);
    if (status == MPR_OK) return MPR_OK;
    mpri_plan_destroy(*out);
    *out = NULL;
    return status;
}

/* Memory for the plan, grown when it is too small; then every plan gets the new pointers. */
static mpr_status share_memory(mpr_session *s, Plan *p, Err *err)
{
    if (p->arena_bytes > s->memory_bytes || !s->memory) {
        void *memory = NULL;
        size_t bytes = p->arena_bytes ? p->arena_bytes : 64;
        TRY(s->device->mem_alloc(s->device, bytes, &memory, err));
        for (SessionPlan *sp = s->plans; sp; sp = sp->next) {
            mpr_status status = mpri_plan_bind_memory(sp->plan, memory, err);
            if (status != MPR_OK) {
                s->device->mem_free(s->device, memory);
                return status;
            }
        }
        s->device->mem_free(s->device, s->memory);
        s->memory = memory;
        s->memory_bytes = bytes;
        s->current = NULL;
        s->forward_done = s->outputs_valid = false;
    }
    return mpri_plan_bind_memory(p, s->memory, err);
}

static mpr_status index_plan(mpr_session *s, SessionPlan *sp, Err *err)
{
    Plan *p = sp->plan;
    sp->key = ARENA_ARRAY(&p->arena, int64_t, key_length(s) + 1);
    sp->inputs = ARENA_ARRAY(&p->arena, Value *, s->n_inputs + 1);
    sp->writes_grad = ARENA_ARRAY(&p->arena, bool, s->n_params + 1);
    if (!sp->key || !sp->inputs || !sp->writes_grad) return mpri_err_nomem(err, 0);
    fill_key(s, sp->key);
    for (int i = 0; i < s->n_inputs; i++) sp->inputs[i] = mpri_plan_input(p, s->inputs[i].name);
    const Graph *g = p->graph;
    bool *used = ARENA_ARRAY(&p->arena, bool, s->store.n + 1); /* slots of the store in this plan */
    if (!used) return mpri_err_nomem(err, (size_t)s->store.n);
    for (int k = 0; k < g->n_slots; k++) {
        const StoreSlot *slot = mpri_store_find(&s->store, g->slots[k].name);
        if (slot) used[slot - s->store.slots] = true;
    }
    for (int i = 0; i < s->n_params; i++) {
        const StoreSlot *slot = mpri_store_find(&s->store, s->params[i].grad_slot);
        sp->writes_grad[i] = slot && used[slot - s->store.slots];
    }
    return MPR_OK;
}

mpr_status mpri_session_plan(mpr_session *s, SessionMode mode, SessionPlan **out, Err *err)
{
    for (SessionPlan *sp = s->plans; sp; sp = sp->next)
        if (sp->mode == mode && key_matches(s, sp->key)) {
            *out = sp;
            return MPR_OK;
        }
    SessionPlan *sp = CONTEXT_NEW(s->ctx, SessionPlan);
    if (!sp) return mpri_err_nomem(err, sizeof(*sp));
    sp->mode = mode;
    s->copies_stale = true; /* the plan may bring new ones */
    mpr_status status = make_plan(s, mode, &sp->plan, err);
    if (status == MPR_OK) status = check_memory(s, sp->plan, err);
    if (status == MPR_OK) status = index_plan(s, sp, err);
    if (status == MPR_OK) status = share_memory(s, sp->plan, err);
    if (status != MPR_OK) {
        char node[512];
        if (status == MPR_E_NOMEM && sp->plan)
            mpri_err_where(err, "%s", mpri_plan_largest(sp->plan, node, sizeof(node)));
        mpri_plan_destroy(sp->plan);
        mpri_free(&s->ctx->alloc, sp);
        return status;
    }
    sp->next = s->plans;
    s->plans = sp;
    *out = sp;
    return MPR_OK;
}

void mpri_session_plans_free(mpr_session *s)
{
    while (s->plans) {
        SessionPlan *sp = s->plans;
        s->plans = sp->next;
        mpri_plan_destroy(sp->plan);
        mpri_free(&s->ctx->alloc, sp);
    }
    if (s->device) s->device->mem_free(s->device, s->memory);
    s->memory = NULL;
    s->memory_bytes = 0;
}

mpr_status mpri_session_memory(mpr_session *s, mpr_memory_bill *out, Err *err)
{
    SessionPlan *sp = s->current;
    if (!sp) TRY(mpri_session_plan(s, MODE_TRAIN, &sp, err));
    const Plan *p = sp->plan;
    size_t size = out->size;
    mpr_memory_bill bill = {
        .size = sizeof(bill),
        .parameters = mpri_store_bytes(&s->store, SLOT_PARAM),
        .gradients = mpri_store_bytes(&s->store, SLOT_GRAD),
        .optimizer = mpri_store_bytes(&s->store, SLOT_MOMENT),
        .activations = p->arena_bytes,
        .activations_lower_bound = p->live_bound_bytes,
        .constants = p->const_bytes,
        .inputs = p->input_bytes,
        .copies = mpri_store_bytes(&s->store, SLOT_COPY),
    };
    memcpy(out, &bill, size && size < sizeof(bill) ? size : sizeof(bill));
    out->size = size ? size : sizeof(bill);
    return MPR_OK;
}

mpr_status mpri_session_flops(mpr_session *s, bool train, double *flops, Err *err)
{
    SessionPlan *sp;
    TRY(mpri_session_plan(s, MODE_TRAIN, &sp, err));
    double sum = 0;
    for (int i = 0; i < sp->plan->n_steps; i++) {
        const PlanStep *step = &sp->plan->steps[i];
        if (train || step->segment == SEG_FORWARD) sum += step->flops;
    }
    *flops = sum;
    return MPR_OK;
}

mpr_status mpri_session_plan_print(mpr_session *s, char **text, Err *err)
{
    SessionPlan *sp;
    *text = NULL;
    TRY(mpri_session_plan(s, MODE_TRAIN, &sp, err));
    Text t;
    mpri_text_init(&t, &s->ctx->alloc);
    mpr_status status = mpri_plan_print(sp->plan, &t);
    if (status != MPR_OK || t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(err, t.cap);
    }
    *text = t.text;
    return MPR_OK;
}
