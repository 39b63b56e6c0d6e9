/* Loop, Scan and SequenceMap become their turns, one after the other, as soon as it is known how
 * many there are. A turn is a copy of the body, like the branch of an If: its formal inputs are the
 * state of the turn before, an index, slices of the scanned tensors. What a turn gives for a scan
 * output is kept and joined at the end. A condition that a turn computes is asked for turn by turn:
 * what is known runs, and the rest waits as the operator it is in the file for the next import.
 *
 * Scan of opset 8 has a batch dim in front of everything: its rows are scanned one by one. */
#include <string.h>

#include "importer/inline_private.h"

typedef enum RepeatKind { REPEAT_LOOP, REPEAT_SCAN, REPEAT_MAP } RepeatKind;

typedef struct Pieces {
    const char **v;
    int n, cap;
} Pieces;

typedef struct Repeat {
    RepeatKind kind;
    const NodeProto *p; /* with the names of the place */
    const GraphProto *body;
    Expansion around, fixed; /* fixed: names of the body's constants, which all turns share */
    int64_t at, trips;
    int n_state, n_in, n_out; /* carried; scanned or mapped; collected */
    int first_in;             /* input of p that is scanned first */
    const char **state;
    const char *condition; /* of the next turn; NULL: none is looked at */
    Pieces *out;
    int64_t row, rows; /* Scan of opset 8 */
    Pieces *batch;     /* of it: finals and collected outputs of every row */
} Repeat;

static const char *const bodies[] = {"Loop", "Scan", "SequenceMap"};

static mpr_status add_piece(Inliner *x, Pieces *p, const char *name)
{
    if (!mpri_inline_grow(&x->im->scratch, (void **)&p->v, p->n, &p->cap, sizeof *p->v) || !name)
        return mpri_err_nomem(x->err, sizeof *p->v);
    p->v[p->n++] = name;
    return MPR_OK;
}

static bool batched(const Repeat *r)
{
    return r->kind == REPEAT_SCAN && mpri_opset_of(r->around.opsets, "") < 9;
}

/* Entry i of a list attribute of Scan, or 0. */
static int64_t entry(const NodeProto *p, const char *name, int i)
{
    const AttributeProto *a = mpri_import_attr(p, name);
    return a && (size_t)i < a->n_ints ? a->ints[i] : 0;
}

static int64_t in_axis(const Repeat *r, int i)
{
    return batched(r) ? 0 : entry(r->p, "scan_input_axes", i);
}

static bool in_reversed(const Repeat *r, int i)
{
    return entry(r->p, batched(r) ? "directions" : "scan_input_directions", i) == 1;
}

/* ---- how many turns */

/* What is not known is asked for; true when all is known. */
static mpr_status find_trips(Inliner *x, Repeat *r, bool *known)
{
    const char *first = r->first_in < (int)r->p->n_input ? r->p->input[r->first_in] : "";
    *known = true;
    r->rows = 1;
    if (r->kind == REPEAT_MAP) {
        const Sequence *s = mpri_sequence_find(x, first);
        *known = s != NULL;
        r->trips = s ? s->n : 0;
        return MPR_OK;
    }
    if (r->kind == REPEAT_SCAN) {
        int axis = (int)in_axis(r, 0) + batched(r);
        *known = mpri_inline_dim(x, first, axis, &r->trips);
        if (!*known) TRY(mpri_inline_ask(x, first, axis));
        if (!batched(r) || mpri_inline_dim(x, first, 0, &r->rows)) return MPR_OK;
        *known = false;
        return mpri_inline_ask(x, first, 0);
    }
    const char *limit = r->p->input[0];
    r->trips = INT64_MAX;
    if (limit[0] && !mpri_inline_known(x, limit, &r->trips)) {
        *known = false;
        TRY(mpri_inline_ask(x, limit, FACT_VALUE));
    }
    int64_t value;
    if (r->condition && !mpri_inline_known(x, r->condition, &value)) {
        *known = false;
        TRY(mpri_inline_ask(x, r->condition, FACT_VALUE));
    }
    return MPR_OK;
}

/* Does the node have the form of its operator? Else it stays as it is, and is reported. */
static bool well_formed(const Repeat *r)
{
    const GraphProto *b = r->body;
    size_t in = (size_t)(r->n_state + r->n_in), out = (size_t)(r->n_state + r->n_out);
    size_t head = r->kind == REPEAT_LOOP ? 2 : 0;
    if (r->n_state < 0 || r->n_in < 0 || r->n_out < 0 || b->n_sparse_initializer) return false;
    if (r->kind != REPEAT_LOOP && r->n_in < 1) return false;
    if (r->kind == REPEAT_LOOP && !r->p->input[0][0] && !r->condition) return false; /* endless */
    return b->n_input == in + head && b->n_output == out + (head != 0) && r->p->n_output <= out;
}

static mpr_status describe(Inliner *x, Repeat *r, const NodeProto *p, const NodeProto *from)
{
    const AttributeProto *body = mpri_import_attr(from, "body");
    r->p = p;
    r->body = body ? body->g : NULL;
    if (!r->body || p->n_input < 1) return MPR_OK;
    int n = (int)p->n_input, out = (int)r->body->n_output;
    if (r->kind == REPEAT_LOOP) {
        r->n_state = n - 2;
        r->n_out = out - 1 - r->n_state;
        if (n > 1 && p->input[1][0]) r->condition = p->input[1];
    } else if (r->kind == REPEAT_SCAN) {
        bool lengths = mpri_opset_of(r->around.opsets, "") < 9;
        int64_t scanned = mpri_inline_int(p, "num_scan_inputs", 0);
        r->n_in = scanned < 0 || scanned > n ? n + 1 : (int)scanned; /* n + 1: refused below */
        r->n_state = n - lengths - r->n_in;
        r->first_in = lengths + r->n_state;
        r->n_out = out - r->n_state;
        if (lengths && p->input[0][0]) r->body = NULL; /* rows of several lengths */
    } else {
        r->n_in = n;
        r->n_out = out;
    }
    if (!r->body || r->n_state < 0 || r->n_out < 0) return MPR_OK;
    r->state = ARENA_ARRAY(&x->im->scratch, const char *, r->n_state);
    r->out = ARENA_ARRAY(&x->im->scratch, Pieces, r->n_out);
    r->batch = ARENA_ARRAY(&x->im->scratch, Pieces, r->n_state + r->n_out);
    if (!r->state || !r->out || !r->batch) return mpri_err_nomem(x->err, sizeof *r);
    return MPR_OK;
}

/* ---- one turn */

static const char *body_input(Inliner *x, const Repeat *r, int i)
{
    return mpri_inline_intern(x, r->body->input[i]->name);
}

static mpr_status bind_number(Inliner *x, Expansion *e, const char *formal, DType t, int64_t value)
{
    const char *name = mpri_inline_fresh(x, e->path, formal);
    TRY(mpri_inline_number(x, e, t, 0, value, &name));
    return mpri_inline_put(x, &e->names->hash, formal, name);
}

/* Element `at` of what input i of the body goes along. */
static mpr_status bind_element(Inliner *x, const Repeat *r, Expansion *e, int i)
{
    const char *from = r->p->input[r->first_in + i], *formal = body_input(x, r, r->n_state + i);
    const Sequence *s = r->kind == REPEAT_MAP ? mpri_sequence_find(x, from) : NULL;
    if (!formal) return mpri_err_nomem(x->err, 0);
    if (r->kind == REPEAT_MAP)
        return mpri_inline_put(x, &e->names->hash, formal,
                               s && r->at < s->n ? s->items[r->at] : from);
    const char *name = mpri_inline_fresh(x, e->path, formal);
    if (batched(r)) {
        const char *row = NULL;
        TRY(mpri_inline_pick(x, e, from, r->row, 0, &row));
        from = row;
    }
    TRY(mpri_inline_pick(x, e, from, in_reversed(r, i) ? r->trips - 1 - r->at : r->at,
                         in_axis(r, i), &name));
    return mpri_inline_put(x, &e->names->hash, formal, name);
}

static mpr_status begin_turn(Inliner *x, Repeat *r)
{
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    Expansion e = r->fixed;
    e.names = names;
    e.repeat = r;
    e.path = r->rows > 1
                 ? mpri_arena_printf(&x->im->m->arena, "%s%lld.%lld/", r->fixed.path,
                                     (long long)r->row, (long long)r->at)
                 : mpri_arena_printf(&x->im->m->arena, "%s%lld/", r->fixed.path, (long long)r->at);
    if (!names || !e.path) return mpri_err_nomem(x->err, sizeof *names);
    names->outer = r->fixed.names;
    int head = 0;
    if (r->kind == REPEAT_LOOP) {
        const char *index = body_input(x, r, 0), *condition = body_input(x, r, 1);
        if (!index || !condition) return mpri_err_nomem(x->err, 0);
        if (index[0]) TRY(bind_number(x, &e, index, MPR_INT64, r->at));
        if (condition[0]) TRY(bind_number(x, &e, condition, MPR_BOOL, 1));
        head = 2;
    }
    for (int i = 0; i < r->n_state; i++) {
        const char *formal = body_input(x, r, head + i);
        if (!formal) return mpri_err_nomem(x->err, 0);
        TRY(mpri_inline_put(x, &names->hash, formal, r->state[i]));
    }
    for (int i = 0; i < r->n_in; i++) TRY(bind_element(x, r, &e, i));
    TRY(mpri_inline_define(x, names, e.path, r->body->node, r->body->n_node));
    return mpri_inline_push(x, e);
}

/* ---- the end */

/* A scan output of no turns: what the body declares, with a dim of 0. */
static mpr_status join_nothing(Inliner *x, const Repeat *r, int i, const char *out)
{
    int head = r->kind == REPEAT_LOOP;
    const ValueInfoProto *v = r->body->output[head + r->n_state + i];
    const Onnx__TypeProto__Tensor *type = v->type ? v->type->tensor_type : NULL;
    TensorProto *t = mpri_arena_alloc(&x->im->d->proto, sizeof *t);
    size_t rank = type && type->shape ? type->shape->n_dim : 0;
    int64_t *dims = mpri_arena_array(&x->im->d->proto, rank + 1, sizeof *dims);
    if (!t || !dims) return mpri_err_nomem(x->err, sizeof *t);
    if (!type) {
        mpri_err_set(x->err, MPR_E_UNSUPPORTED_OP,
                     "node '%s' (%s) makes no turn and its body declares no type for output '%s'",
                     mpri_err_name(r->p->name), r->p->op_type, mpri_err_name(out));
        return mpri_err_advice(x->err, "export the model with the types of inner values");
    }
    onnx__tensor_proto__init(t);
    t->has_data_type = true;
    t->data_type = type->elem_type;
    dims[0] = 0;
    for (size_t k = 0; k < rank; k++) {
        int64_t d = type->shape->dim[k]->dim_value;
        dims[k + 1] = d > 0 ? d : 0;
    }
    t->dims = dims;
    t->n_dims = rank + 1;
    return mpri_inline_tensor(x, t, out, &r->fixed);
}

static mpr_status join_output(Inliner *x, const Repeat *r, int i, const char *out)
{
    Pieces *p = &r->out[i];
    bool reversed =
        r->kind == REPEAT_SCAN && !batched(r) && entry(r->p, "scan_output_directions", i) == 1;
    if (r->kind == REPEAT_MAP) return mpri_sequence_put(x, out, p->n, p->v, false);
    if (p->n == 0) return join_nothing(x, r, i, out);
    for (int k = 0; reversed && k < p->n / 2; k++) {
        const char *swap = p->v[k];
        p->v[k] = p->v[p->n - 1 - k];
        p->v[p->n - 1 - k] = swap;
    }
    int64_t axis = r->kind == REPEAT_SCAN && !batched(r) ? entry(r->p, "scan_output_axes", i) : 0;
    return mpri_inline_join(x, &r->fixed, p->n, p->v, axis, true, out);
}

/* A row of the batch is done: its results wait for the others. */
static mpr_status end_row(Inliner *x, Repeat *r)
{
    for (int i = 0; i < r->n_state; i++) TRY(add_piece(x, &r->batch[i], r->state[i]));
    for (int i = 0; i < r->n_out; i++) {
        const char *name = mpri_inline_fresh(x, r->fixed.path, "row");
        if (!name) return mpri_err_nomem(x->err, 0);
        TRY(join_output(x, r, i, name));
        TRY(add_piece(x, &r->batch[r->n_state + i], name));
        r->out[i].n = 0;
    }
    r->row++;
    r->at = 0;
    return MPR_OK;
}

static mpr_status finish(Inliner *x, Repeat *r)
{
    for (int k = 0; k < (int)r->p->n_output; k++) {
        const char *out = r->p->output[k];
        if (!out[0]) continue;
        if (batched(r))
            TRY(mpri_inline_join(x, &r->fixed, r->batch[k].n, r->batch[k].v, 0, true, out));
        else if (k < r->n_state) TRY(mpri_inline_alias(x, r->state[k], out, &r->fixed));
        else TRY(join_output(x, r, k - r->n_state, out));
    }
    return MPR_OK;
}

/* The condition of the next turn is not known yet: the operator stays, and only the question reads
 * the turns so far. */
static mpr_status leave(Inliner *x, const Repeat *r)
{
    NodeProto *p = mpri_arena_dup(&x->im->d->proto, r->p, sizeof *p);
    if (!p) return mpri_err_nomem(x->err, sizeof *p);
    for (size_t i = 0; i < p->n_input; i++) TRY(mpri_sequence_write(x, p->input[i], &r->around));
    TRY(mpri_inline_ask(x, r->condition, FACT_VALUE));
    return mpri_inline_emit(x, p, &r->around);
}

static mpr_status begin_row(Inliner *x, Repeat *r)
{
    for (int i = 0; i < r->n_state; i++) {
        r->state[i] = r->p->input[r->kind == REPEAT_LOOP ? i + 2 : r->first_in - r->n_state + i];
        if (!batched(r)) continue;
        const char *row = NULL;
        TRY(mpri_inline_pick(x, &r->fixed, r->state[i], r->row, 0, &row));
        r->state[i] = row;
    }
    return MPR_OK;
}

/* The next turn, or the end. */
static mpr_status go_on(Inliner *x, Repeat *r)
{
    int64_t go = 1;
    while (batched(r) && r->row < r->rows && r->at >= r->trips) {
        TRY(end_row(x, r));
        if (r->row < r->rows) TRY(begin_row(x, r));
    }
    bool more = batched(r) ? r->row < r->rows : r->at < r->trips;
    if (more && r->condition && !mpri_inline_known(x, r->condition, &go)) return leave(x, r);
    if (!more || !go) return finish(x, r);
    if (r->at < x->im->limits.trips) return begin_turn(x, r);
    mpri_err_set(x->err, MPR_E_LIMIT, "node '%s' (%s): more than %lld turns",
                 mpri_err_name(r->p->name), r->p->op_type, (long long)x->im->limits.trips);
    return mpri_err_advice(x->err, "raise mpr_limits.trips, or export the model without the loop");
}

mpr_status mpri_unroll_next(Inliner *x, const Expansion *done)
{
    Repeat *r = done->repeat;
    int head = r->kind == REPEAT_LOOP;
    const char **names = ARENA_ARRAY(&x->im->scratch, const char *, r->body->n_output);
    if (!names) return mpri_err_nomem(x->err, r->body->n_output * sizeof *names);
    for (size_t i = 0; i < r->body->n_output; i++) {
        const char *formal = mpri_inline_intern(x, r->body->output[i]->name);
        if (!formal) return mpri_err_nomem(x->err, 0);
        names[i] = mpri_inline_look(done->names, formal);
    }
    if (r->condition) r->condition = names[0];
    for (int i = 0; i < r->n_state; i++) r->state[i] = names[head + i];
    for (int i = 0; i < r->n_out; i++) TRY(add_piece(x, &r->out[i], names[head + r->n_state + i]));
    r->at++;
    return go_on(x, r);
}

const char *mpri_unroll_op(int i) { return i < 3 ? bodies[i] : NULL; }

bool mpri_unroll_is(const NodeProto *p)
{
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        if (!strcmp(bodies[i], p->op_type)) return true;
    return false;
}

mpr_status mpri_unroll_enter(Inliner *x, const NodeProto *from, NodeProto *p,
                             const Expansion *around, bool *taken)
{
    int kind = 0;
    bool known;
    *taken = false;
    while (kind < 3 && strcmp(bodies[kind], p->op_type)) kind++;
    if (kind == 3) return MPR_OK;
    Repeat *r = ARENA_NEW(&x->im->scratch, Repeat);
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    if (!r || !names) return mpri_err_nomem(x->err, sizeof *r);
    r->kind = (RepeatKind)kind;
    r->around = *around;
    TRY(describe(x, r, p, from));
    if (!r->body || !well_formed(r)) return MPR_OK;
    TRY(find_trips(x, r, &known));
    if (!known) return MPR_OK;
    names->outer = around->names;
    r->fixed = (Expansion){.nodes = r->body->node,
                           .n = (int)r->body->n_node,
                           .names = names,
                           .opsets = around->opsets,
                           .call = around->call,
                           .function = around->function,
                           .body = true};
    r->fixed.path = mpri_inline_path(x, around->path, from, bodies[kind]);
    if (!r->fixed.path) return mpri_err_nomem(x->err, 0);
    TRY(mpri_inline_constants(x, r->body, &r->fixed));
    if (r->rows > 0) TRY(begin_row(x, r));
    *taken = x->changed = true;
    return go_on(x, r);
}
