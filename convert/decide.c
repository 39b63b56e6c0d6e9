/* Decisions on file nodes. The prepare passes run with autocast on a clone; afterwards every canonical node
 * shows its type by its inputs, and lists the file nodes it stands for. A file node computes in the type of
 * its canonical node; one that no canonical node stands for any more keeps its declared types, or passes its
 * input's type through when it only moves it.
 *
 * Trap: a normalisation in a 16-bit type keeps f32 parameters here, which no ONNX operator allows. In the
 * file it runs in f32 and its output is rounded by a Cast: the same bits, and the plan fuses the casts. */
#include "convert/decide.h"

#include <string.h>

#include "importer/wire.h"
#include "runtime/base/hash.h"
#include "runtime/op/ops.h"

typedef struct NameIndex {
    const char *name; /* key */
    int value;
    bool lost;
    UT_hash_handle hh;
} NameIndex;

FileValue *mpri_convert_value(const Decisions *d, const char *name)
{
    NameIndex *e = NULL;
    HASH_FIND(hh, d->index, name, strlen(name), e);
    return e ? &d->values[e->value] : NULL;
}

static mpr_status add_value(Decisions *d, Arena *hash_arena, const char *name, int producer, Err *err)
{
    FileValue *v = mpri_convert_value(d, name);
    if (v || !*name) {
        if (v && producer >= 0) v->producer = producer;
        return MPR_OK;
    }
    if (d->n_values == d->cap_values) {
        int cap = d->cap_values ? d->cap_values * 2 : 256;
        FileValue *more = ARENA_ARRAY(hash_arena, FileValue, cap);
        if (!more) return mpri_err_nomem(err, sizeof *more * (size_t)cap);
        if (d->n_values) memcpy(more, d->values, sizeof *more * (size_t)d->n_values);
        d->values = more;
        d->cap_values = cap;
    }
    NameIndex *e = ARENA_NEW(hash_arena, NameIndex);
    if (!e) return mpri_err_nomem(err, sizeof *e);
    d->values[d->n_values] = (FileValue){.name = name, .producer = producer, .first_use = {-1, -1}};
    *e = (NameIndex){.name = name, .value = d->n_values++};
    HASH_ADD_KEYPTR(hh, d->index, e->name, strlen(e->name), e);
    return e->lost ? mpri_err_nomem(err, sizeof *e) : MPR_OK;
}

/* ---- names of a file node, from its bytes ---- */

enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_OP_TYPE = 4, NODE_DOMAIN = 7 };

static char *text_of(const Source *s, Span span, Arena *arena)
{
    char *p = mpri_arena_alloc(arena, span.len + 1);
    if (p) memcpy(p, s->bytes + span.at, span.len);
    return p;
}

static mpr_status read_node(const Source *s, SourceField field, FileNodeIO *n, Arena *arena, Err *err)
{
    size_t pos = field.body.at, end = field.body.at + field.body.len;
    WireField f;
    n->op_type = n->domain = "";
    while (mpri_wire_next(s->bytes, end, &pos, &f) == WIRE_OK) {
        n->n_in += f.number == NODE_INPUT;
        n->n_out += f.number == NODE_OUTPUT;
    }
    n->in = ARENA_ARRAY(arena, const char *, n->n_in);
    n->out = ARENA_ARRAY(arena, const char *, n->n_out);
    if (!n->in || !n->out) return mpri_err_nomem(err, sizeof(char *) * (size_t)(n->n_in + n->n_out));
    pos = field.body.at;
    int i = 0, o = 0;
    while (mpri_wire_next(s->bytes, end, &pos, &f) == WIRE_OK) {
        const char **to = f.number == NODE_INPUT ? &n->in[i++] : f.number == NODE_OUTPUT ? &n->out[o++] :
                          f.number == NODE_OP_TYPE ? &n->op_type : f.number == NODE_DOMAIN ? &n->domain : NULL;
        if (to && !(*to = text_of(s, f.body, arena))) return mpri_err_nomem(err, f.body.len);
    }
    if (!strcmp(n->domain, "ai.onnx")) n->domain = "";
    return MPR_OK;
}

static mpr_status read_nodes(const ImportedModel *m, Decisions *d, Arena *arena, Err *err)
{
    const Source *s = m->source;
    d->n_nodes = s->n_nodes;
    d->nodes = ARENA_ARRAY(arena, FileNodeIO, s->n_nodes);
    if (!d->nodes) return mpri_err_nomem(err, sizeof *d->nodes * (size_t)s->n_nodes);
    for (int i = 0; i < s->n_nodes; i++) {
        FileNodeIO *n = &d->nodes[i];
        TRY(read_node(s, s->nodes[i], n, arena, err));
        for (int k = 0; k < n->n_in; k++) TRY(add_value(d, arena, n->in[k], -1, err));
        for (int k = 0; k < n->n_out; k++) TRY(add_value(d, arena, n->out[k], i, err));
        n->passes = !*n->domain && (!strcmp(n->op_type, "Identity") || !strcmp(n->op_type, "Dropout"));
    }
    return MPR_OK;
}

/* ---- decisions ---- */

static DType compute_type(const Node *n)
{
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = n->in[k];
        if (!v || (k < 32 && (n->op->fixed_in & (1u << k)))) continue;
        if (v->dtype == MPR_FLOAT32 || mpri_dtype_is_low(v->dtype)) return v->dtype;
    }
    return MPR_DTYPE_NONE;
}

static bool mixed_inputs(const Node *n, DType first)
{
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && n->in[k]->dtype == MPR_FLOAT32 && first != MPR_FLOAT32 && !(k < 32 && (n->op->fixed_in & (1u << k)))) return true;
    return false;
}

static void decide_node(Decisions *d, const Node *n)
{
    bool opaque = n->op->flags & OPF_OPAQUE;
    DType t = opaque || mpri_is(n, OP_Cast) ? MPR_DTYPE_NONE : compute_type(n);
    bool round = t != MPR_DTYPE_NONE && t != MPR_FLOAT32 && n->n_out && n->out[0] && n->out[0]->dtype == t &&
                 (mixed_inputs(n, t) || mpri_is(n, OP_LayerNormalization));
    if (n->why == mpri_autocast_inside && t == MPR_FLOAT32 && n->out[0]->uses) {
        round = true;
        t = n->out[0]->uses->user->out[0]->dtype;
    }
    for (int i = 0; i < n->origin.n; i++) {
        if (n->origin.v[i] < 0 || n->origin.v[i] >= d->n_nodes) continue;
        FileNodeIO *f = &d->nodes[n->origin.v[i]];
        f->opaque = opaque;
        if (!strcmp(f->op_type, "Cast")) continue;
        if (n->origin.n == 1) f->fixed_in = n->op->fixed_in;
        f->compute = round ? MPR_FLOAT32 : t;
        f->round = round;
        f->round_to = t;
        f->passes = false;
    }
}

/* A recovered group: only values that leave it are rounded, so the flag belongs to its last node. */
static void keep_round_at_ends(Decisions *d, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (n->origin.n < 2 || !n->n_out || !n->out[0]) continue;
        for (int i = 0; i < n->origin.n; i++) {
            FileNodeIO *f = &d->nodes[n->origin.v[i]];
            bool last = false;
            for (int k = 0; k < f->n_out; k++) last |= !strcmp(f->out[k], n->out[0]->name);
            if (!last) f->round = false;
        }
    }
}

static bool castable(DType t) { return t == MPR_FLOAT32 || mpri_dtype_is_low(t); }

/* Type of a value in the original file. Names that the importer resolved away are found through the node
 * that only passes its input on. */
static void original_types(Decisions *d, const Graph *g, const int *order)
{
    for (int i = 0; i < d->n_values; i++) {
        const Value *v = mpri_graph_find_value(g, d->values[i].name);
        d->values[i].before = d->values[i].after = v ? v->dtype : MPR_DTYPE_NONE;
    }
    for (int k = 0; k < d->n_nodes; k++) {
        const FileNodeIO *n = &d->nodes[order[k]];
        if (strcmp(n->op_type, "Identity") || n->n_in < 1 || n->n_out < 1) continue;
        FileValue *in = mpri_convert_value(d, n->in[0]), *out = mpri_convert_value(d, n->out[0]);
        if (in && out && out->before == MPR_DTYPE_NONE) out->before = out->after = in->before;
    }
}

/* Producers before readers: file nodes in the importer's order, those it resolved away where they stand. */
static mpr_status file_order(const Decisions *d, Arena *arena, int **out, Err *err)
{
    int *order = ARENA_ARRAY(arena, int, d->n_nodes + 1), *waiting = ARENA_ARRAY(arena, int, d->n_nodes + 1), n = 0;
    bool *done = ARENA_ARRAY(arena, bool, d->n_nodes + 1);
    if (!order || !done || !waiting) return mpri_err_nomem(err, sizeof(int) * (size_t)d->n_nodes);
    for (int start = 0; start < d->n_nodes; start++) {
        int top = 0;
        if (!done[start]) waiting[top++] = start;
        while (top) {
            int i = waiting[top - 1], next = -1;
            for (int k = 0; k < d->nodes[i].n_in && next < 0; k++) {
                const FileValue *v = *d->nodes[i].in[k] ? mpri_convert_value(d, d->nodes[i].in[k]) : NULL;
                if (v && v->producer >= 0 && !done[v->producer]) next = v->producer;
            }
            if (next >= 0 && top < d->n_nodes) {
                waiting[top++] = next;
                continue;
            }
            top--;
            if (!done[i]) order[n++] = i;
            done[i] = true;
        }
    }
    *out = order;
    return MPR_OK;
}

static void types_after(Decisions *d, const int *order)
{
    for (int k = 0; k < d->n_nodes; k++) {
        const FileNodeIO *n = &d->nodes[order[k]];
        DType t = n->round ? n->round_to : n->compute;
        if (n->passes && n->n_in) {
            const FileValue *in = mpri_convert_value(d, n->in[0]);
            t = in ? in->after : MPR_DTYPE_NONE;
        }
        if (t == MPR_DTYPE_NONE) continue;
        if (t == MPR_FLOAT32) d->nodes_fp32 += n->compute != MPR_DTYPE_NONE;
        else d->nodes_low += n->compute != MPR_DTYPE_NONE;
        for (int i = 0; i < n->n_out; i++) {
            FileValue *v = mpri_convert_value(d, n->out[i]);
            if (v && castable(v->before)) v->after = t;
        }
    }
}

static void mark_restored(Decisions *d, const Graph *g)
{
    for (int i = 0; i < g->n_outputs; i++) {
        FileValue *v = mpri_convert_value(d, g->outputs[i].name);
        if (v && v->producer >= 0) v->restore = v->after != v->before;
    }
    for (const Node *n = g->first; n; n = n->next) /* captured by a subgraph: read by its name */
        if ((n->op->flags & OPF_OPAQUE) && n->origin.n)
            for (int k = 0; k < n->n_in; k++) {
                FileValue *v = n->in[k] ? mpri_convert_value(d, n->in[k]->name) : NULL;
                const FileNodeIO *f = &d->nodes[n->origin.v[0]];
                if (v && k >= f->n_in && v->after != v->before) v->restore = true;
            }
}

mpr_status mpri_convert_decide(const ImportedModel *m, const ConvertOptions *o, Arena *arena, Decisions *d, Err *err)
{
    Arena scratch;
    int *order;
    PassOptions po = {.autocast = o->to, .profile = o->profile};
    PassCtx ctx = {.scratch = &scratch, .alloc = o->alloc, .log = o->log, .o = &po, .ref = o->ref};
    Graph *g = mpri_graph_clone(m->graph, arena);
    if (!g) return mpri_err_nomem(err, sizeof *g);
    mpri_arena_init(&scratch, o->alloc, 0);
    mpr_status st = mpri_infer_graph(m->graph, err);
    if (st == MPR_OK) st = mpri_passes_run(&ctx, STAGE_PREPARE, g, err);
    mpri_arena_destroy(&scratch);
    TRY(st);
    TRY(read_nodes(m, d, arena, err));
    TRY(file_order(d, arena, &order, err));
    original_types(d, m->graph, order);
    for (const Node *n = g->first; n; n = n->next) decide_node(d, n);
    keep_round_at_ends(d, g);
    types_after(d, order);
    mark_restored(d, m->graph);
    return MPR_OK;
}
