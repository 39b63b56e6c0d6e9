/* Scopes, single assignment, missing producers, cycles.
 *
 * ONNX names are lexical: a branch sees the names around it and may not hide them; siblings may
 * reuse names; a function body sees nothing outside. Graphs nest, so they are walked with an
 * explicit stack of frames. A read that resolves in an outer graph is a dependency of the node that
 * owns the branch: an edge there, and a capture when the outer graph is the outermost. */
#include "importer/scope.h"

#include <stdio.h>
#include <string.h>

#include "importer/order.h"

enum { CYCLE_SHOWN = 16, NEAREST_AMONG = 20000 };

typedef struct Frame {
    const GraphProto *graph; /* NULL in a root */
    NodeProto **nodes;       /* of a nested graph or function; NULL: im->nodes */
    int n_nodes;
    int node, attr, sub; /* where the walk stands */
    Edge *edges;
    int n_edges, cap_edges;
    NameDef **made;
    int n_made, cap_made; /* names to forget at the end; NULL in the main graph */
} Frame;

typedef struct Walk {
    Import *im;
    Scope *scope;
    NameDef *defs;
    Frame *frames;
    int depth, max_depth;
    const FunctionProto *function; /* being checked, or NULL */
    bool main;
    int cap_captures;
    Err *err;
} Walk;

static bool grow(Arena *a, void **rows, int n, int *cap, size_t size)
{
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 16;
    void *p = mpri_arena_array(a, (size_t)want, size);
    if (!p) return false;
    if (n) memcpy(p, *rows, (size_t)n * size);
    *rows = p;
    *cap = want;
    return true;
}

NameDef *mpri_scope_find(const Scope *s, const char *interned)
{
    NameDef *d;
    HASH_FIND_PTR(s->defs, &interned, d);
    return d;
}

static const NodeProto *node_at(const Walk *w, const Frame *f, int i)
{
    return f->nodes ? f->nodes[i] : w->im->nodes[i].p;
}

/* ---- messages */

static const char *node_text(const NodeProto *p, int index)
{
    static _Thread_local char buffers[4][480];
    static _Thread_local unsigned next;
    char *out = buffers[next++ % 4];
    const char *type = mpri_err_name(p->op_type);
    if (p->name && p->name[0])
        snprintf(out, sizeof buffers[0], "node '%s' (%s)", mpri_err_name(p->name), type);
    else snprintf(out, sizeof buffers[0], "node %d (%s)", index, type);
    return out;
}

/* " in function 'F'" or "". */
static const char *place(const Walk *w)
{
    static _Thread_local char text[260];
    if (!w->function) return "";
    snprintf(text, sizeof text, " in function '%s'", mpri_err_name(w->function->name));
    return text;
}

static const char *writer_text(const Walk *w, const NameDef *d)
{
    static const char *const what[] = {[DEF_INPUT] = "a graph input",
                                       [DEF_INITIALIZER] = "an initializer",
                                       [DEF_SPARSE] = "a sparse initializer"};
    if (d->kind != DEF_NODE) return what[d->kind];
    const Frame *f = &w->frames[d->depth];
    return d->index < f->n_nodes ? node_text(node_at(w, f, d->index), d->index) : "a node";
}

static void written_twice(Walk *w, const NameDef *old, const char *by)
{
    char first[512];
    snprintf(first, sizeof first, "%s", writer_text(w, old));
    bool outer = old->depth < w->depth - 1;
    mpri_err_finding(w->err, MPR_E_INVALID_MODEL,
                     "value '%s' is written twice%s: by %s%s and by %s", mpri_err_name(old->name),
                     place(w), first, outer ? " outside" : "", by);
}

static void missing(Walk *w, const char *name, const char *reader)
{
    const char **candidates = NULL, *near = NULL;
    unsigned n = HASH_COUNT(w->defs);
    if (n <= NEAREST_AMONG && w->err->findings < 3)
        candidates = ARENA_ARRAY(&w->im->scratch, const char *, n);
    if (candidates) {
        size_t k = 0;
        for (NameDef *d = w->defs; d; d = d->hh.next) candidates[k++] = d->name;
        near = mpri_nearest(name, candidates, k);
    }
    mpri_err_finding(w->err, MPR_E_INVALID_MODEL,
                     "value '%s' does not exist%s but is read by %s%s%s%s", mpri_err_name(name),
                     place(w), reader, near ? "; did you mean '" : "",
                     near ? mpri_err_name(near) : "", near ? "'?" : "");
}

/* ---- declare */

static mpr_status declare(Walk *w, const char *name, DefKind kind, int index, const char *by)
{
    Arena *hash_arena = &w->im->scratch;
    NameDef *old, *d;
    HASH_FIND_PTR(w->defs, &name, old);
    if (old) {
        bool same = old->depth == w->depth - 1;
        if (same && old->kind == DEF_INPUT &&
            kind == DEF_INITIALIZER) { /* an input with a default value */
            old->kind = kind;
            old->index = index;
            old->overridable = true;
            return MPR_OK;
        }
        written_twice(w, old, by);
        return MPR_OK;
    }
    Frame *f = &w->frames[w->depth - 1];
    d = ARENA_NEW(hash_arena, NameDef);
    if (!d || !grow(hash_arena, (void **)&f->made, f->n_made, &f->cap_made, sizeof *f->made))
        return mpri_err_nomem(w->err, sizeof *d);
    d->name = name;
    d->kind = kind;
    d->index = index;
    d->depth = w->depth - 1;
    HASH_ADD_PTR(w->defs, name, d);
    if (d->lost) return mpri_err_nomem(w->err, sizeof *d);
    f->made[f->n_made++] = d;
    return MPR_OK;
}

static mpr_status intern_one(Walk *w, char **s)
{
    const char *name = mpri_intern(w->im->names, *s ? *s : "");
    if (!name) return mpri_err_nomem(w->err, 0);
    *s = (char *)(uintptr_t)name;
    return MPR_OK;
}

static mpr_status intern_node(Walk *w, NodeProto *p)
{
    for (size_t i = 0; i < p->n_input; i++) TRY(intern_one(w, &p->input[i]));
    for (size_t i = 0; i < p->n_output; i++) TRY(intern_one(w, &p->output[i]));
    TRY(intern_one(w, &p->name));
    return intern_one(w, &p->op_type);
}

static mpr_status declare_nodes(Walk *w)
{
    Frame *f = &w->frames[w->depth - 1];
    for (int i = 0; i < f->n_nodes; i++) {
        if (f->nodes) TRY(intern_node(w, f->nodes[i]));
        const NodeProto *p = node_at(w, f, i);
        for (size_t k = 0; k < p->n_output; k++)
            if (p->output[k][0]) TRY(declare(w, p->output[k], DEF_NODE, i, node_text(p, i)));
    }
    return MPR_OK;
}

static mpr_status declare_main(Walk *w)
{
    Import *im = w->im;
    for (int i = 0; i < im->n_inputs; i++) {
        const char *name = im->inputs[i]->name;
        if (!name[0])
            mpri_err_finding(w->err, MPR_E_INVALID_MODEL, "graph input %d has no name", i);
        else TRY(declare(w, name, DEF_INPUT, i, "another graph input"));
    }
    for (int i = 0; i < im->src->n_tensors; i++) {
        const char *name = im->src->tensors[i].name;
        if (name[0]) TRY(declare(w, name, DEF_INITIALIZER, i, "another initializer"));
    }
    for (int i = 0; i < im->n_sparse; i++) {
        TensorProto *values = im->sparse[i]->values;
        if (!values) continue;
        TRY(intern_one(w, &values->name));
        if (values->name[0]) TRY(declare(w, values->name, DEF_SPARSE, i, "a sparse initializer"));
    }
    return declare_nodes(w);
}

static mpr_status declare_nested(Walk *w, const GraphProto *g)
{
    for (size_t i = 0; i < g->n_input; i++) {
        TRY(intern_one(w, &g->input[i]->name));
        if (g->input[i]->name[0])
            TRY(declare(w, g->input[i]->name, DEF_INPUT, (int)i, "an input of a branch"));
    }
    for (size_t i = 0; i < g->n_initializer; i++) {
        TRY(intern_one(w, &g->initializer[i]->name));
        if (g->initializer[i]->name[0])
            TRY(declare(w, g->initializer[i]->name, DEF_INITIALIZER, (int)i,
                        "an initializer of a branch"));
    }
    for (size_t i = 0; i < g->n_sparse_initializer; i++) {
        TensorProto *values = g->sparse_initializer[i]->values;
        if (!values) continue;
        TRY(intern_one(w, &values->name));
        if (values->name[0])
            TRY(declare(w, values->name, DEF_SPARSE, (int)i, "a sparse initializer of a branch"));
    }
    for (size_t i = 0; i < g->n_output; i++) TRY(intern_one(w, &g->output[i]->name));
    return declare_nodes(w);
}

static mpr_status declare_function(Walk *w)
{
    const FunctionProto *fn = w->function;
    for (size_t i = 0; i < fn->n_input; i++) {
        TRY(intern_one(w, &fn->input[i]));
        if (fn->input[i][0]) TRY(declare(w, fn->input[i], DEF_INPUT, (int)i, "another input"));
    }
    for (size_t i = 0; i < fn->n_output; i++) TRY(intern_one(w, &fn->output[i]));
    return declare_nodes(w);
}

/* ---- read */

static mpr_status read_name(Walk *w, const char *name, const char *reader)
{
    NameDef *d;
    HASH_FIND_PTR(w->defs, &name, d);
    if (!d) {
        missing(w, name, reader);
        return MPR_OK;
    }
    Arena *a = &w->im->scratch;
    Frame *owner = &w->frames[d->depth];
    if (d->kind == DEF_NODE) {
        if (!grow(a, (void **)&owner->edges, owner->n_edges, &owner->cap_edges, sizeof(Edge)))
            return mpri_err_nomem(w->err, sizeof(Edge));
        owner->edges[owner->n_edges++] = (Edge){d->index, owner->node};
    }
    if (d->depth == 0 && w->depth > 1 && w->main) {
        Scope *s = w->scope;
        if (!grow(a, (void **)&s->captures, s->n_captures, &w->cap_captures, sizeof(Capture)))
            return mpri_err_nomem(w->err, sizeof(Capture));
        s->captures[s->n_captures++] = (Capture){w->frames[0].node, name};
    }
    return MPR_OK;
}

static mpr_status visit_node(Walk *w, const NodeProto *p, int index)
{
    mpri_check_node_form(place(w), p, index, w->function != NULL, w->err);
    for (size_t i = 0; i < p->n_input; i++)
        if (p->input[i][0]) TRY(read_name(w, p->input[i], node_text(p, index)));
    return MPR_OK;
}

/* ---- frames */

static mpr_status push(Walk *w, const GraphProto *g)
{
    if (w->depth >= w->max_depth)
        return mpri_err_set(w->err, MPR_E_LIMIT, "nesting depth of graphs: more than %d",
                            w->max_depth);
    Frame *f = &w->frames[w->depth++];
    *f = (Frame){.graph = g, .nodes = g->node, .n_nodes = (int)g->n_node};
    return declare_nested(w, g);
}

/* The next nested graph of the frame's current node, or NULL. */
static const GraphProto *next_graph(Frame *f, const NodeProto *p)
{
    for (; f->attr < (int)p->n_attribute; f->attr++, f->sub = 0) {
        const AttributeProto *a = p->attribute[f->attr];
        int k = f->sub++;
        if (k == 0 && a->g) return a->g;
        if (k == 0) k = f->sub++;
        if (k - 1 < (int)a->n_graphs) return a->graphs[k - 1];
    }
    return NULL;
}

static mpr_status check_cycle(Walk *w, Frame *f, int *order)
{
    int left, cycle[CYCLE_SHOWN];
    Arena *a = &w->im->scratch;
    if (!mpri_order(f->n_nodes, f->edges, f->n_edges, order, &left, a))
        return mpri_err_nomem(w->err, (size_t)f->n_nodes * 16);
    if (left == 0) return MPR_OK;
    int n = mpri_order_cycle(f->n_nodes, f->edges, f->n_edges, order, left, cycle, CYCLE_SHOWN, a);
    char text[2048];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i <= n && i <= CYCLE_SHOWN && used < sizeof text - 1; i++) {
        bool last = i == n, cut = i == CYCLE_SHOWN && !last;
        const NodeProto *p = node_at(w, f, cycle[last || cut ? 0 : i]);
        int written = cut ? snprintf(text + used, sizeof text - used, " -> … (%d nodes)", n)
                          : snprintf(text + used, sizeof text - used, "%s%s (value '%s')",
                                     i ? " -> " : "", node_text(p, cycle[last ? 0 : i]),
                                     p->n_output ? mpri_err_name(p->output[0]) : "");
        used += written > 0 ? (size_t)written : 0;
        if (cut) break;
    }
    mpri_err_finding(w->err, MPR_E_INVALID_MODEL,
                     "a cycle of nodes%s, each reads what the one before it writes: %s", place(w),
                     text);
    return MPR_OK;
}

static mpr_status check_outputs(Walk *w, const Frame *f)
{
    size_t n = f->graph      ? f->graph->n_output
               : w->function ? w->function->n_output
                             : (size_t)w->im->n_outputs;
    if (f->graph && n == 0)
        mpri_err_finding(w->err, MPR_E_INVALID_MODEL, "a branch%s has no outputs", place(w));
    for (size_t i = 0; i < n; i++) {
        const char *name = f->graph      ? f->graph->output[i]->name
                           : w->function ? w->function->output[i]
                                         : w->im->outputs[i]->name;
        NameDef *d;
        HASH_FIND_PTR(w->defs, &name, d);
        if (d || (w->function && !f->graph && !name[0])) continue;
        mpri_err_finding(w->err, MPR_E_INVALID_MODEL, "%s output '%s'%s has no producer",
                         f->graph      ? "branch"
                         : w->function ? "function"
                                       : "graph",
                         mpri_err_name(name), place(w));
    }
    if (f->graph) { /* a branch may pass a captured value out */
        for (size_t i = 0; i < n; i++)
            if (f->graph->output[i]->name[0]) {
                NameDef *d;
                const char *name = f->graph->output[i]->name;
                HASH_FIND_PTR(w->defs, &name, d);
                if (d && d->depth < w->depth - 1) TRY(read_name(w, name, "a branch output"));
            }
    }
    return MPR_OK;
}

static mpr_status pop(Walk *w)
{
    Frame *f = &w->frames[w->depth - 1];
    TRY(check_outputs(w, f));
    int *order = ARENA_ARRAY(&w->im->scratch, int, f->n_nodes);
    if (!order) return mpri_err_nomem(w->err, (size_t)f->n_nodes * sizeof(int));
    TRY(check_cycle(w, f, order));
    if (w->depth == 1 && w->main) {
        w->scope->order = order;
        w->scope->defs = w->defs;
    } else {
        for (int i = 0; i < f->n_made; i++) HASH_DEL(w->defs, f->made[i]);
    }
    w->depth--;
    return MPR_OK;
}

static mpr_status walk(Walk *w)
{
    while (w->depth > 0) {
        Frame *f = &w->frames[w->depth - 1];
        if (f->node >= f->n_nodes) {
            TRY(pop(w));
            continue;
        }
        const NodeProto *p = node_at(w, f, f->node);
        if (f->attr == 0 && f->sub == 0) TRY(visit_node(w, p, f->node));
        const GraphProto *g = next_graph(f, p);
        if (g) {
            TRY(push(w, g));
            continue;
        }
        f->node++;
        f->attr = f->sub = 0;
    }
    return MPR_OK;
}

static mpr_status check_functions(Walk *w)
{
    for (int i = 0; i < w->im->n_functions; i++) {
        w->function = w->im->functions[i];
        w->depth = 1;
        w->frames[0] = (Frame){.nodes = w->function->node, .n_nodes = (int)w->function->n_node};
        TRY(declare_function(w));
        TRY(walk(w));
    }
    w->function = NULL;
    return MPR_OK;
}

mpr_status mpri_scope_check(Import *im, Scope *out, Err *err)
{
    Walk w = {.im = im, .scope = out, .err = err, .max_depth = (int)im->limits.nesting + 1};
    *out = (Scope){0};
    w.frames = ARENA_ARRAY(&im->scratch, Frame, w.max_depth);
    if (!w.frames) return mpri_err_nomem(err, (size_t)w.max_depth * sizeof(Frame));
    if (im->n_outputs == 0) mpri_err_finding(err, MPR_E_INVALID_MODEL, "the graph has no outputs");
    TRY(check_functions(&w));
    w.defs = NULL;
    w.main = true;
    w.depth = 1;
    w.frames[0] = (Frame){.n_nodes = im->n_nodes};
    TRY(declare_main(&w));
    TRY(walk(&w));
    return err->code;
}
