/* Decisions on file nodes. The prepare passes run with autocast on a clone, with the options of
 * training; afterwards every canonical node shows its type by its inputs, and lists the file nodes
 * it stands for. A file node that no canonical node stands for keeps its declared types.
 *
 * Traps. An adapted node (Softmax of an old opset) is several canonical ones: that of the node's
 * own name decides. What ONNX does not allow in 16 bits, by operator and opset or because an input
 * stays float32, runs in float32 in the file between Casts that round where the profile rounds:
 * the same bits, and the importer gives training the same graph. */
#include "convert/decide.h"

#include <string.h>

#include "convert/schema.h"
#include "runtime/op/ops.h"

typedef struct Decide {
    FileGraph *f;
    const Graph *g;  /* after autocast */
    const Node **by; /* by file node: the canonical node that decides */
    DType low;
} Decide;

/* ---- which canonical node decides ---- */

static bool names_op(const FileNodeIO *n, const Node *by)
{
    return by && !strcmp(n->op_type, by->op->name);
}

static void find_deciders(Decide *d)
{
    for (const Node *n = d->g->first; n; n = n->next) {
        if ((n->op->flags & OPF_OPAQUE) || mpri_is(n, OP_Cast)) continue;
        for (int i = 0; i < n->origin.n; i++) {
            int k = n->origin.v[i];
            if (k < 0 || k >= d->f->n_nodes || !strcmp(d->f->nodes[k].op_type, "Cast")) continue;
            if (d->f->nodes[k].domain[0]) continue; /* another schema: it stays as it is */
            if (!names_op(&d->f->nodes[k], d->by[k]) || names_op(&d->f->nodes[k], n))
                d->by[k] = n;
        }
    }
}

static bool fixed(const Node *n, int k)
{
    return k < 32 && n->op->fixed_in >> k & 1;
}

/* Type of the data that a canonical node reads; NONE when it reads no float. */
static DType reads(const Node *n)
{
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && !fixed(n, k) && mpri_file_castable(n->in[k]->dtype))
            return n->in[k]->dtype;
    return MPR_DTYPE_NONE;
}

static bool stands_for(const Node *n, int file_node)
{
    for (int i = 0; n && i < n->origin.n; i++)
        if (n->origin.v[i] == file_node) return true;
    return false;
}

/* The canonical value of a file value: of its name, and made for its node. */
static const Value *canonical(const Decide *d, const FileValue *v)
{
    const Value *c = mpri_graph_find_value(d->g, v->name);
    const Node *n = mpri_def(c);
    if (!n || !n->linked) return NULL;
    if (mpri_is(n, OP_Cast) && n->why == mpri_autocast_inside) n = mpri_def(n->in[0]);
    return stands_for(n, v->producer) ? c : NULL;
}

/* ---- one file node ---- */

/* An input of the data's type variable that training leaves in f32 beside low data. */
static bool lifted(const Decide *d, const FileNodeIO *n, const Node *by, uint32_t own)
{
    for (int k = 0; names_op(n, by) && k < n->n_in && k < by->n_in && k < 32; k++) {
        const FileValue *v = mpri_file_value(d->f, n->in[k]);
        if (v && fixed(by, k) && !(own >> k & 1) && by->in[k] && by->in[k]->dtype == MPR_FLOAT32)
            return true;
    }
    return false;
}

/* Constants that autocast clamped: a Cast would make them infinite. */
static mpr_status find_saturated(Decide *d, FileNodeIO *n, const Node *by, Err *err)
{
    for (int k = 0; names_op(n, by) && k < n->n_in && k < by->n_in && k < 32; k++) {
        const FileValue *v = mpri_file_value(d->f, n->in[k]);
        const Value *was = v ? mpri_graph_find_value(d->f->m->graph, v->name) : NULL;
        const Value *c = by->in[k];
        if (!c || c->kind != VAL_CONST || !was || was->kind != VAL_CONST || c->dtype == was->dtype)
            continue;
        int64_t count = mpri_shape_elements(&was->shape);
        bool clamped = false;
        for (int64_t i = 0; i < count && !clamped; i++) {
            uint16_t rounded;
            double x = mpri_load_f64(was->dtype, was->data, i);
            mpri_store_f64(c->dtype, &rounded, 0, x);
            clamped = mpri_load_f64(c->dtype, &rounded, 0) != mpri_load_f64(c->dtype, c->data, i) &&
                      x == x;
        }
        if (!clamped) continue;
        if (!n->constants) n->constants = ARENA_ARRAY(d->f->arena, const Value *, n->n_in);
        if (!n->constants) return mpri_err_nomem(err, sizeof c * (size_t)n->n_in);
        n->constants[k] = c;
        n->saturate |= 1u << k;
    }
    return MPR_OK;
}

/* An input of a type that nothing tells: it may be float32, so the others stay what they are. */
static bool reads_unknown(const Decide *d, const FileNodeIO *n)
{
    for (int k = 0; k < n->n_in; k++) {
        const FileValue *v = mpri_file_value(d->f, n->in[k]);
        if (v && v->before == MPR_DTYPE_NONE) return true;
    }
    return false;
}

static mpr_status decide_node(Decide *d, int i, Err *err)
{
    FileNodeIO *n = &d->f->nodes[i];
    const Node *by = n->by = d->by[i];
    n->reads = ARENA_ARRAY(d->f->arena, const char *, n->n_in + 1);
    if (!n->reads) return mpri_err_nomem(err, sizeof *n->reads * (size_t)n->n_in);
    if (!by || reads_unknown(d, n)) return MPR_OK;
    n->runs = n->compute = reads(by);
    if (n->runs == MPR_DTYPE_NONE) return MPR_OK;
    if (by->why == mpri_autocast_inside && n->runs == MPR_FLOAT32) n->compute = d->low;
    uint32_t own = mpri_schema_own(n->op_type, d->f->opset);
    for (int k = 0; k < n->n_in && k < 32; k++)
        if ((own >> k & 1) && names_op(n, by) && fixed(by, k)) n->own |= 1u << k;
    if (n->runs == MPR_FLOAT32) return MPR_OK;
    n->wide = mpri_schema_refuses(n->op_type, d->f->opset, n->runs) & ~n->own;
    n->rounds_in = !mpri_schema_takes(n->op_type, d->f->opset, n->runs);
    n->forced = n->rounds_in || lifted(d, n, by, own);
    if (n->forced) n->runs = MPR_FLOAT32;
    for (int k = 0; n->runs == MPR_FLOAT32 && names_op(n, by) && k < n->n_in && k < 32; k++)
        if (fixed(by, k)) n->own |= 1u << k; /* f32 beside low data: there is nothing to round */
    return n->runs == MPR_FLOAT32 ? MPR_OK : find_saturated(d, n, by, err);
}

/* Types of what a node writes. */
static void decide_outputs(const Decide *d, const FileNodeIO *n)
{
    for (int k = 0; k < n->n_out; k++) {
        FileValue *v = mpri_file_value(d->f, n->out[k]);
        if (!v || !mpri_file_castable(v->before)) continue;
        if (n->alias) {
            const FileValue *in = mpri_file_value(d->f, n->in[0]);
            if (in) v->meant = in->meant, v->held = in->held, v->forced = in->forced;
            continue;
        }
        if (n->compute == MPR_DTYPE_NONE) continue;
        const Value *c = canonical(d, v);
        v->meant = c && mpri_file_castable(c->dtype) ? c->dtype : n->compute;
        v->held = n->runs == n->compute ? v->meant : MPR_FLOAT32;
        v->forced = n->forced && v->held != v->meant;
    }
}

static void release(const void *source, const void *bytes, size_t n)
{
    mpri_source_release(source, bytes, n);
}

mpr_status mpri_convert_decide(FileGraph *f, const ConvertOptions *o, ConvertResult *r, Err *err)
{
    Arena scratch;
    PassOptions po = {.autocast = o->to, .profile = o->profile, .training = true, .seen = release,
                      .seen_user = f->m->source};
    PassCtx ctx = {.scratch = &scratch, .alloc = o->alloc, .log = o->log, .o = &po, .ref = o->ref};
    Graph *g = mpri_graph_clone(f->m->graph, f->arena);
    if (!g) return mpri_err_nomem(err, sizeof *g);
    mpri_arena_init(&scratch, o->alloc, 0);
    mpr_status st = mpri_passes_run(&ctx, STAGE_PREPARE, g, err);
    mpri_arena_destroy(&scratch);
    TRY(st);
    f->decided = g;
    Decide d = {.f = f, .g = g, .low = o->to};
    d.by = ARENA_ARRAY(f->arena, const Node *, f->n_nodes);
    if (!d.by) return mpri_err_nomem(err, sizeof *d.by * (size_t)f->n_nodes);
    find_deciders(&d);
    for (int i = 0; i < f->n_nodes; i++) {
        const FileNodeIO *n = &f->nodes[f->order[i]];
        TRY(decide_node(&d, f->order[i], err));
        decide_outputs(&d, n);
        r->nodes_low += n->compute != MPR_DTYPE_NONE && n->compute != MPR_FLOAT32;
        r->nodes_fp32 += n->compute == MPR_FLOAT32;
    }
    return MPR_OK;
}
