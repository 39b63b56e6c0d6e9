/* From a bound graph to a frozen plan: buffers for values, kernels for nodes, offsets for buffers.
 *
 * Lifetimes are counted in node positions. A view shares the buffer of its input; an in-place
 * output takes over the buffer of an input that dies there. The last use of a buffer is the latest
 * of all values in it, and since last uses are first propagated backwards through views, it is
 * known when the root is made. */
#include <string.h>

#include "runtime/base/size.h"
#include "runtime/exec/plan_private.h"

typedef struct Making { /* scratch of one plan_create */
    Plan *p;
    Device *d;
    const PlanOptions *o;
    Arena scratch;
    int n_time;    /* linked nodes */
    int *last_use; /* by value id, in node positions */
    bool *copied;  /* by node id: a view that has to be a copy */
    int *buf_last; /* by buffer, in node positions */
    int *buf_first;
    int *step_at; /* by node position: steps before it */
    int cap_buffers;
} Making;

static mpr_status shape_unknown(const Value *v, Err *err)
{
    mpri_err_set(err, MPR_E_SHAPE, "the shape of '%s' is not known before the first step",
                 mpri_err_name(v->name));
    return mpri_err_advice(err,
                           "give every dimension a number; operators whose output size depends "
                           "on data cannot be planned");
}

mpr_status mpri_tensor_of_value(const Value *v, Tensor *out, size_t *bytes, Err *err)
{
    *out = (Tensor){.dtype = v->dtype, .rank = v->shape.rank};
    if (!mpri_shape_const(&v->shape)) return shape_unknown(v, err);
    for (int i = 0; i < v->shape.rank; i++) out->dims[i] = v->shape.d[i];
    if (!mpri_size_elements(out->rank, out->dims, &out->n) ||
        !mpri_size_mul((size_t)out->n, mpri_dtype_size(v->dtype), bytes))
        return mpri_err_set(err, MPR_E_LIMIT, "'%s' has more bytes than the address space",
                            mpri_err_name(v->name));
    if (mpri_dtype_size(v->dtype) == 0)
        return mpri_err_set(err, MPR_E_TYPE, "'%s' has type %s, which cannot be computed",
                            mpri_err_name(v->name), mpri_dtype_name(v->dtype));
    return MPR_OK;
}

/* A view needs no kernel and no memory, unless it looks at a slot that is written while the view
 * still lives: then the values from before the write must be kept, by the operator's kernel. */
static bool looks_like_view(const Node *n)
{
    return (n->op->flags & OPF_VIEW) && n->n_in > 0 && n->in[0] && n->out[0];
}

static bool is_view(const Making *m, const Node *n)
{
    return looks_like_view(n) && !m->copied[n->id];
}

/* The value whose memory v is, through views. */
static const Value *root_of(const Making *m, const Value *v)
{
    while (v->kind == VAL_NODE && v->def_index == 0 && is_view(m, v->def)) v = v->def->in[0];
    return v;
}

static bool writes_slot(const Node *n, int slot)
{
    for (int k = 0; k < n->n_in; k++)
        if (mpri_op_mask(n->op->writes, k) && n->in[k] && n->in[k]->slot == slot) return true;
    return false;
}

/* Mark the views of slots that have to be copies; last uses, those of views included, are known. */
static void find_copies(Making *m)
{
    int time = 0;
    for (const Node *n = m->p->graph->first; n; n = n->next, time++) {
        if (!looks_like_view(n)) continue;
        const Value *root = root_of(m, n->in[0]);
        if (root->kind != VAL_SLOT) continue;
        int at = time + 1, last = m->last_use[n->out[0]->id];
        for (const Node *w = n->next; w && at <= last; w = w->next, at++)
            if (writes_slot(w, root->slot)) m->copied[n->id] = true;
    }
}

/* Last use of every value, views passing theirs on to what they look at. */
static mpr_status find_last_uses(Making *m, Err *err)
{
    Graph *g = m->p->graph;
    int time = 0;
    m->last_use = ARENA_ARRAY(&m->scratch, int, g->n_values + 1);
    m->copied = ARENA_ARRAY(&m->scratch, bool, g->next_node_id + 1);
    if (!m->last_use || !m->copied) return mpri_err_nomem(err, sizeof(int) * (size_t)g->n_values);
    for (int i = 0; i < g->n_values; i++) m->last_use[i] = -1;
    for (Node *n = g->first; n; n = n->next, time++) {
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i]) m->last_use[n->in[i]->id] = time;
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i])
                m->last_use[n->out[i]->id] = time; /* an output lives at least at its own node */
    }
    m->n_time = time;
    for (int i = 0; i < g->n_outputs; i++) m->last_use[g->outputs[i].value->id] = time;
    for (Node *n = g->last; n; n = n->prev)
        if (looks_like_view(n) && m->last_use[n->out[0]->id] > m->last_use[n->in[0]->id])
            m->last_use[n->in[0]->id] = m->last_use[n->out[0]->id];
    find_copies(m);
    return MPR_OK;
}

static mpr_status add_buffer(Making *m, Buffer b, int first, int last, int *index, Err *err)
{
    Plan *p = m->p;
    if (p->n_buffers >= m->cap_buffers)
        return mpri_err_set(err, MPR_E_INTERNAL, "more buffers than values");
    m->buf_first[p->n_buffers] = first;
    m->buf_last[p->n_buffers] = m->o->keep_all && b.cls == BUF_ARENA ? m->n_time : last;
    p->buffers[p->n_buffers] = b;
    *index = p->n_buffers++;
    return MPR_OK;
}

/* A constant that lies unaligned in its file gets a copy. */
static mpr_status constant_data(Making *m, const Value *v, size_t bytes, const void **data,
                                Err *err)
{
    size_t size = mpri_dtype_size(v->dtype);
    *data = v->data;
    if (!v->data && bytes)
        return mpri_err_set(err, MPR_E_INTERNAL, "constant '%s' has no data",
                            mpri_err_name(v->name));
    if (size && (uintptr_t)v->data % size) {
        *data = mpri_arena_dup(&m->p->arena, v->data, bytes);
        if (!*data) return mpri_err_nomem(err, bytes);
    }
    return MPR_OK;
}

static mpr_status buffer_of_source(Making *m, Value *v, Err *err)
{
    Plan *p = m->p;
    Tensor t;
    size_t bytes;
    int *slot = &p->value_buffer[v->id];
    if (*slot >= 0) return MPR_OK;
    TRY(mpri_tensor_of_value(v, &t, &bytes, err));
    Buffer b = {.bytes = bytes, .name = v->name, .slot = -1};
    if (v->kind == VAL_CONST) {
        b.cls = BUF_CONST;
        TRY(constant_data(m, v, bytes, &b.data, err));
        b.const_offset = p->const_bytes;
        p->const_bytes += (bytes + 63) & ~(size_t)63;
    } else if (v->kind == VAL_SLOT) {
        StoreSlot *s = mpri_store_find(p->store, p->graph->slots[v->slot].name);
        if (!s)
            return mpri_err_set(err, MPR_E_INTERNAL, "slot '%s' is not in the store",
                                mpri_err_name(v->name));
        b.cls = BUF_SLOT;
        b.slot = (int)(s - p->store->slots);
    } else {
        b.cls = BUF_INPUT;
        p->input_bytes += bytes;
    }
    return add_buffer(m, b, 0, m->n_time, slot, err);
}

/* Another input in the same buffer sees the output's bytes: harmless only element by element. */
static bool shared_input(const Making *m, const Node *n, int k)
{
    const int *buffer = m->p->value_buffer;
    for (int i = 0; i < n->n_in; i++)
        if (i != k && n->in[i] && buffer[n->in[i]->id] == buffer[n->in[k]->id])
            return !(n->op->flags & OPF_ELEMENTWISE);
    return false;
}

/* The input whose buffer output 0 of n may take over at this time, or -1. */
static int inplace_input(const Making *m, const Node *n, size_t bytes, int time)
{
    const Plan *p = m->p;
    if (m->o->keep_all || !n->op->inplace) return -1;
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = n->in[k];
        if (!mpri_op_mask(n->op->inplace, k) || !v) continue;
        int b = p->value_buffer[v->id];
        if (b < 0 || p->buffers[b].cls != BUF_ARENA || p->buffers[b].bytes != bytes) continue;
        if (m->buf_last[b] != time || shared_input(m, n, k)) continue;
        if (mpri_dtype_size(v->dtype) != mpri_dtype_size(n->out[0]->dtype)) continue;
        return k;
    }
    return -1;
}

static mpr_status buffers_of_node(Making *m, Node *n, int time, Err *err)
{
    Plan *p = m->p;
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->kind != VAL_NODE) TRY(buffer_of_source(m, n->in[i], err));
    if (is_view(m, n)) {
        int b = p->value_buffer[n->in[0]->id];
        p->value_buffer[n->out[0]->id] = b;
        if (m->last_use[n->out[0]->id] > m->buf_last[b])
            m->buf_last[b] = m->last_use[n->out[0]->id];
        return MPR_OK;
    }
    for (int i = 0; i < n->n_out; i++) {
        Value *v = n->out[i];
        Tensor t;
        size_t bytes;
        if (!v) continue;
        TRY(mpri_tensor_of_value(v, &t, &bytes, err));
        int k = i == 0 ? inplace_input(m, n, bytes, time) : -1;
        if (k >= 0) {
            int b = p->value_buffer[n->in[k]->id];
            p->value_buffer[v->id] = b;
            m->buf_last[b] = m->last_use[v->id];
            continue;
        }
        TRY(add_buffer(m, (Buffer){.cls = BUF_ARENA, .bytes = bytes, .name = v->name, .slot = -1},
                       time, m->last_use[v->id], &p->value_buffer[v->id], err));
    }
    return MPR_OK;
}

static mpr_status make_buffers(Making *m, Err *err)
{
    Plan *p = m->p;
    Graph *g = p->graph;
    int time = 0;
    m->cap_buffers = g->n_values + 1;
    p->buffers = ARENA_ARRAY(&p->arena, Buffer, m->cap_buffers);
    p->value_buffer = ARENA_ARRAY(&p->arena, int, g->n_values + 1);
    m->buf_first = ARENA_ARRAY(&m->scratch, int, m->cap_buffers);
    m->buf_last = ARENA_ARRAY(&m->scratch, int, m->cap_buffers);
    if (!p->buffers || !p->value_buffer || !m->buf_first || !m->buf_last)
        return mpri_err_nomem(err, sizeof(Buffer) * (size_t)m->cap_buffers);
    for (int i = 0; i <= g->n_values; i++) p->value_buffer[i] = -1;
    for (int i = 0; i < g->n_inputs; i++) TRY(buffer_of_source(m, g->inputs[i].value, err));
    for (int i = 0; i < g->n_slots; i++)
        if (g->slots[i].value) TRY(buffer_of_source(m, g->slots[i].value, err));
    for (Node *n = g->first; n; n = n->next) {
        mpr_status status = buffers_of_node(m, n, time++, err);
        if (status != MPR_OK)
            return mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name), n->op->name);
    }
    for (int i = 0; i < g->n_outputs; i++)
        if (g->outputs[i].value->kind != VAL_NODE)
            TRY(buffer_of_source(m, g->outputs[i].value, err));
    return MPR_OK;
}

static mpr_status step_tensors(Making *m, PlanStep *s, const Node *n, uint64_t *const_in, Err *err)
{
    Plan *p = m->p;
    size_t bytes;
    Tensor *in = ARENA_ARRAY(&p->arena, Tensor, n->n_in),
           *out = ARENA_ARRAY(&p->arena, Tensor, n->n_out);
    s->in_buffer = ARENA_ARRAY(&p->arena, int, n->n_in);
    s->out_buffer = ARENA_ARRAY(&p->arena, int, n->n_out);
    if (!in || !out || !s->in_buffer || !s->out_buffer)
        return mpri_err_nomem(err, sizeof(Tensor) * (size_t)(n->n_in + n->n_out));
    *const_in = 0;
    for (int i = 0; i < n->n_in; i++) {
        s->in_buffer[i] = -1;
        if (!n->in[i]) continue;
        TRY(mpri_tensor_of_value(n->in[i], &in[i], &bytes, err));
        s->in_buffer[i] = p->value_buffer[n->in[i]->id];
        if (n->in[i]->kind == VAL_CONST && i < 64) {
            *const_in |= (uint64_t)1 << i;
            in[i].data = (void *)p->buffers[s->in_buffer[i]].data;
            in[i].host = in[i].data;
        }
    }
    for (int i = 0; i < n->n_out; i++) {
        s->out_buffer[i] = -1;
        if (!n->out[i]) continue;
        TRY(mpri_tensor_of_value(n->out[i], &out[i], &bytes, err));
        s->out_buffer[i] = p->value_buffer[n->out[i]->id];
    }
    s->call =
        (KernelCall){.params = n->params, .n_in = n->n_in, .n_out = n->n_out, .in = in, .out = out};
    return MPR_OK;
}

static bool large_float(const PlanStep *s)
{
    for (int i = 0; i < s->call.n_in; i++)
        if (s->call.in[i].n > 64 && mpri_dtype_is_float(s->call.in[i].dtype)) return true;
    for (int i = 0; i < s->call.n_out; i++)
        if (s->call.out[i].n > 64 && mpri_dtype_is_float(s->call.out[i].dtype)) return true;
    return false;
}

static mpr_status choose_kernel(Making *m, PlanStep *s, const Node *n, Err *err)
{
    uint64_t const_in = 0;
    KernelChoice choice;
    TRY(step_tensors(m, s, n, &const_in, err));
    s->node = n;
    s->segment = n->segment;
    KernelSig sig = {.op = n->op->id,
                     .params = n->params,
                     .n_in = n->n_in,
                     .n_out = n->n_out,
                     .in = s->call.in,
                     .out = s->call.out,
                     .const_in = const_in,
                     .capability = m->d->capability};
    if (!mpri_kernel_choose(&m->d->kernels, &sig, m->d->isa, m->o->kernels, &choice)) {
        mpri_err_finding(err, MPR_E_UNSUPPORTED_OP,
                         "node '%s' (%s%s%s) has no kernel on %s for these types%s%s",
                         mpri_err_name(n->name), n->op->domain[0] ? n->op->domain : "",
                         n->op->domain[0] ? "." : "", n->opaque_type ? n->opaque_type : n->op->name,
                         m->d->name, choice.skipped[0] ? ": " : "", choice.skipped);
        return MPR_OK; /* all of them are collected */
    }
    if (n->op->flags & OPF_RANDOM) m->p->random = true;
    s->row = choice.row;
    s->on_host = choice.on_host;
    s->skipped = choice.skipped[0] ? mpri_arena_strdup(&m->p->arena, choice.skipped) : "";
    if (!s->skipped) return mpri_err_nomem(err, sizeof choice.skipped);
    s->workspace_bytes =
        choice.row->workspace ? choice.row->workspace(&sig, mpri_threads_count(m->d->threads)) : 0;
    s->flops = choice.row->flops ? choice.row->flops(&sig) : 0;
    if (choice.row->prepare)
        TRY(choice.row->prepare(&sig, m->d, &m->p->arena, &s->call.held, err));
    if (s->on_host) TRY(mpri_host_step_size(m->p, s, err));
    if (!strncmp(choice.row->name, "ref.", 4) && large_float(s)) m->p->n_ref_steps++;
    return MPR_OK;
}

static mpr_status make_steps(Making *m, Err *err)
{
    Plan *p = m->p;
    int time = 0;
    p->steps = ARENA_ARRAY(&p->arena, PlanStep, m->n_time + 1);
    m->step_at = ARENA_ARRAY(&m->scratch, int, m->n_time + 2);
    if (!p->steps || !m->step_at) return mpri_err_nomem(err, sizeof(PlanStep) * (size_t)m->n_time);
    for (Node *n = p->graph->first; n; n = n->next, time++) {
        m->step_at[time] = p->n_steps;
        if (is_view(m, n)) continue;
        TRY(choose_kernel(m, &p->steps[p->n_steps], n, err));
        for (int k = n->segment; k < 3; k++) p->segment_end[k] = p->n_steps + 1;
        if (p->n_steps && p->steps[p->n_steps - 1].segment > n->segment)
            return mpri_err_set(err, MPR_E_INTERNAL, "node '%s' stands after a later segment",
                                mpri_err_name(n->name));
        p->n_steps++;
    }
    m->step_at[time] = m->step_at[time + 1] = p->n_steps;
    for (int k = 1; k < 3; k++)
        if (p->segment_end[k] < p->segment_end[k - 1]) p->segment_end[k] = p->segment_end[k - 1];
    return err->code;
}

static mpr_status place(Making *m, Err *err)
{
    Plan *p = m->p;
    int n = 0, time = 0, step = 0;
    MemItem *items = ARENA_ARRAY(&m->scratch, MemItem, p->n_buffers + p->n_steps + 1);
    int *owner = ARENA_ARRAY(&m->scratch, int, p->n_buffers + p->n_steps + 1);
    if (!items || !owner)
        return mpri_err_nomem(err, sizeof *items * (size_t)(p->n_buffers + p->n_steps));
    for (int i = 0; i < p->n_buffers; i++) {
        Buffer *b = &p->buffers[i];
        b->first = m->step_at[m->buf_first[i]];
        b->last = m->step_at[m->buf_last[i]];
        if (b->cls != BUF_ARENA && b->cls != BUF_INPUT) continue;
        bool input = b->cls == BUF_INPUT;
        owner[n] = i;
        items[n++] = (MemItem){.bytes = b->bytes,
                               .first = input ? -1 : m->buf_first[i],
                               .last = input ? m->n_time : m->buf_last[i]};
    }
    int n_values = n;
    for (Node *node = p->graph->first; node; node = node->next, time++) {
        if (is_view(m, node)) continue;
        if (p->steps[step].workspace_bytes && !p->steps[step].on_host) {
            owner[n] = step;
            items[n++] =
                (MemItem){.bytes = p->steps[step].workspace_bytes, .first = time, .last = time};
        }
        step++;
    }
    TRY(mpri_memory_plan(items, n, &m->scratch, &p->arena_bytes, &p->live_bound_bytes, err));
    for (int i = 0; i < n; i++) {
        if (i < n_values)
            p->buffers[owner[i]].offset = items[i].offset;
        else
            p->steps[owner[i]].workspace_offset = items[i].offset;
    }
    return MPR_OK;
}

static mpr_status make(Making *m, Err *err)
{
    TRY(mpri_store_add_graph(m->p->store, m->p->graph, err));
    TRY(find_last_uses(m, err));
    TRY(make_buffers(m, err));
    TRY(make_steps(m, err));
    return place(m, err);
}

mpr_status mpri_plan_create(Device *d, Store *store, Graph *g, Arena arena, const PlanOptions *o,
                            Plan **out, Err *err)
{
    static const PlanOptions none;
    *out = NULL;
    Plan *p = ARENA_NEW(&arena, Plan);
    if (!p) {
        mpri_arena_destroy(&arena);
        return mpri_err_nomem(err, sizeof *p);
    }
    p->arena = arena;
    p->graph = g;
    p->device = d;
    p->store = store;
    mpri_graph_move(g, &p->arena);
    Making m = {.p = p, .d = d, .o = o ? o : &none};
    mpri_arena_init(&m.scratch, d->alloc, 0);
    mpr_status st = make(&m, err);
    mpri_arena_destroy(&m.scratch);
    if (st != MPR_OK) {
        mpri_plan_destroy(p);
        return st;
    }
    *out = p;
    return MPR_OK;
}

static void *buffer_data(const Plan *p, int index)
{
    if (index < 0) return NULL;
    const Buffer *b = &p->buffers[index];
    switch (b->cls) {
    case BUF_CONST:
        return p->constants ? (char *)p->constants + b->const_offset : (void *)b->data;
    case BUF_SLOT: return p->store->slots[b->slot].data;
    case BUF_ARENA:
    case BUF_INPUT:
        if (p->apart) return p->apart[index];
        return p->memory ? (char *)p->memory + b->offset : NULL;
    }
    return NULL;
}

/* Constants, once, for a device that does not see the host's memory. */
static mpr_status copy_constants(Plan *p, Err *err)
{
    Device *d = p->device;
    if (d->shared || p->constants || !p->const_bytes) return MPR_OK;
    TRY(d->mem_alloc(d, p->const_bytes, &p->constants, err));
    for (int i = 0; i < p->n_buffers; i++) {
        const Buffer *b = &p->buffers[i];
        if (b->cls == BUF_CONST && b->bytes)
            TRY(d->copy_in(d, (char *)p->constants + b->const_offset, b->data, b->bytes, err));
    }
    return MPR_OK;
}

static void free_apart(Plan *p)
{
    for (int i = 0; p->apart && i < p->n_buffers + p->n_steps; i++)
        p->device->mem_free(p->device, p->apart[i]);
    p->apart = NULL;
}

/* Memory of their own for every buffer, then for the workspace of every step. */
static mpr_status alloc_apart(Plan *p, Err *err)
{
    Device *d = p->device;
    if (p->apart) return MPR_OK;
    p->apart = ARENA_ARRAY(&p->arena, void *, p->n_buffers + p->n_steps + 1);
    if (!p->apart) return mpri_err_nomem(err, sizeof(void *) * (size_t)p->n_buffers);
    for (int i = 0; i < p->n_buffers; i++) {
        const Buffer *b = &p->buffers[i];
        if (b->cls == BUF_ARENA || b->cls == BUF_INPUT)
            TRY(d->mem_alloc(d, b->bytes, &p->apart[i], err));
    }
    for (int i = 0; i < p->n_steps; i++)
        if (p->steps[i].workspace_bytes && !p->steps[i].on_host)
            TRY(d->mem_alloc(d, p->steps[i].workspace_bytes, &p->apart[p->n_buffers + i], err));
    return MPR_OK;
}

static mpr_status own_memory(Plan *p, Err *err)
{
    void *own;
    if (p->device->apart) return alloc_apart(p, err);
    if (p->memory && !p->memory_shared) return MPR_OK;
    TRY(p->device->mem_alloc(p->device, p->arena_bytes ? p->arena_bytes : 64, &own, err));
    p->memory = own;
    p->memory_shared = false;
    return MPR_OK;
}

static void *workspace_of(const Plan *p, int step)
{
    const PlanStep *s = &p->steps[step];
    if (!s->workspace_bytes || s->on_host) return NULL;
    return p->apart ? p->apart[p->n_buffers + step] : (char *)p->memory + s->workspace_offset;
}

mpr_status mpri_plan_bind_memory(Plan *p, void *memory, Err *err)
{
    mpri_plan_forget_graphs(p);
    if (memory) {
        free_apart(p);
        if (p->memory && !p->memory_shared) p->device->mem_free(p->device, p->memory);
        p->memory = memory;
        p->memory_shared = true;
    } else {
        TRY(own_memory(p, err));
    }
    TRY(copy_constants(p, err));
    TRY(mpri_host_step_memory(p, err));
    for (int i = 0; i < p->n_steps; i++) {
        PlanStep *s = &p->steps[i];
        Tensor *in = (Tensor *)s->call.in;
        for (int k = 0; k < s->call.n_in; k++) in[k].data = buffer_data(p, s->in_buffer[k]);
        for (int k = 0; k < s->call.n_out; k++)
            s->call.out[k].data = buffer_data(p, s->out_buffer[k]);
        s->call.workspace = workspace_of(p, i);
        s->call.queue = p->device->queue;
    }
    return MPR_OK;
}

void *mpri_plan_value_data(const Plan *p, const Value *v)
{
    return v->id < p->graph->n_values ? buffer_data(p, p->value_buffer[v->id]) : NULL;
}

const void *mpri_plan_view(const Plan *p, const Value *v)
{
    Device *d = p->device;
    Plan *own = (Plan *)p; /* the view is no part of what the plan is */
    if (v->kind == VAL_CONST) return v->data;
    const void *data = mpri_plan_value_data(p, v);
    size_t bytes;
    Tensor t;
    Err err;
    mpri_err_clear(&err);
    if (d->shared || !data) return data;
    if (mpri_tensor_of_value(v, &t, &bytes, &err) != MPR_OK) return NULL;
    if (bytes > p->view_bytes || !p->view) {
        mpri_free(d->alloc, p->view);
        own->view_bytes = 0;
        own->view = mpri_alloc(d->alloc, bytes ? bytes : 64, 64);
        if (!own->view) return NULL;
        own->view_bytes = bytes;
    }
    return d->copy_out(d, own->view, data, bytes, &err) == MPR_OK ? p->view : NULL;
}

Value *mpri_plan_input(const Plan *p, const char *name)
{
    for (int i = 0; i < p->graph->n_inputs; i++)
        if (!strcmp(p->graph->inputs[i].value->name, name)) return p->graph->inputs[i].value;
    return NULL;
}

Value *mpri_plan_output(const Plan *p, const char *name)
{
    for (int i = 0; i < p->graph->n_outputs; i++)
        if (!strcmp(p->graph->outputs[i].name, name)) return p->graph->outputs[i].value;
    return NULL;
}

void mpri_plan_destroy(Plan *p)
{
    if (!p) return;
    mpri_plan_forget_graphs(p);
    free_apart(p);
    if (p->memory && !p->memory_shared) p->device->mem_free(p->device, p->memory);
    p->device->mem_free(p->device, p->constants);
    mpri_free(p->device->alloc, p->staging);
    mpri_free(p->device->alloc, p->view);
    Arena arena = p->arena; /* the plan itself lives in its arena */
    mpri_arena_destroy(&arena);
}
