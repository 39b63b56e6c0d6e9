/* Expanding calls and branches whose condition is known.
 *
 * A call's body is copied node by node with its names replaced: formal inputs and outputs by the
 * actual ones, inner names by fresh ones. Attribute references take the value of the call, else the
 * function's default. Of an If with a known condition one branch is taken in the same way; it
 * sees the names around it. Loops and sequences are expanded by the same walk (unroll.c,
 * sequences.c). Nested bodies are expanded when the walk comes to their nodes, with a stack of
 * frames instead of recursion.
 *
 * Inlined nodes have no node of the main graph as their origin; those of bodies say so (MPRI_ORIGIN_BODY). */
#include "importer/inline_private.h"

#include <stdio.h>
#include <string.h>

bool mpri_inline_grow(Arena *a, void **rows, int n, int *cap, size_t size)
{
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 64;
    void *p = mpri_arena_array(a, (size_t)want, size);
    if (!p) return false;
    if (n) memcpy(p, *rows, (size_t)n * size);
    *rows = p;
    *cap = want;
    return true;
}

/* ---- names */

mpr_status mpri_inline_put(Inliner *x, Rename **hash, const char *from, const char *to)
{
    Arena *hash_arena = &x->im->scratch;
    Rename *r, *old;
    HASH_FIND_PTR(*hash, &from, old);
    if (old) return MPR_OK;
    r = ARENA_NEW(hash_arena, Rename);
    if (!r || !to) return mpri_err_nomem(x->err, sizeof *r);
    r->from = from;
    r->to = to;
    HASH_ADD_PTR(*hash, from, r);
    return r->lost ? mpri_err_nomem(x->err, sizeof *r) : MPR_OK;
}

const char *mpri_inline_look(const Names *names, const char *name)
{
    for (const Names *n = names; n; n = n->outer) {
        Rename *r;
        HASH_FIND_PTR(n->hash, &name, r);
        if (r) return r->to;
        if (n->closed) return "";
    }
    return name;
}

/* A name that nothing in the model has: path and old name, with a number when needed. */
const char *mpri_inline_fresh(Inliner *x, const char *path, const char *name)
{
    for (int k = 0;; k++) {
        const char *text = k ? mpri_arena_printf(&x->im->scratch, "%s%s_%d", path, name, k)
                             : mpri_arena_printf(&x->im->scratch, "%s%s", path, name);
        if (!text) return NULL;
        if (!mpri_intern_find(x->im->names, text)) return mpri_intern(x->im->names, text);
    }
}

const char *mpri_inline_intern(Inliner *x, const char *s)
{
    return mpri_intern(x->im->names, s ? s : "");
}

/* ---- copying nodes */

static mpr_status rename_list(Inliner *x, const Names *names, size_t n, char ***list)
{
    char **copy = mpri_arena_array(&x->im->d->proto, n, sizeof *copy);
    if (!copy) return mpri_err_nomem(x->err, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        const char *name = mpri_inline_intern(x, (*list)[i]);
        if (!name) return mpri_err_nomem(x->err, 0);
        copy[i] = (char *)(uintptr_t)(name[0] ? mpri_inline_look(names, name) : name);
    }
    *list = copy;
    return MPR_OK;
}

typedef struct GraphCopy { /* a nested graph that still has to be renamed */
    GraphProto *g;
    Names *names; /* around it */
} GraphCopy;

typedef struct CopyWork {
    GraphCopy *todo;
    int n, cap;
} CopyWork;

/* The attribute that a reference stands for: of the call, else the function's default; NULL: left
 * out. */
static const AttributeProto *resolve(const Expansion *e, const AttributeProto *a)
{
    if (!a->ref_attr_name || !a->ref_attr_name[0] || !e->call) return a;
    const AttributeProto *given = mpri_import_attr(e->call, a->ref_attr_name);
    for (size_t i = 0; !given && i < e->function->p->n_attribute_proto; i++) {
        const AttributeProto *def = e->function->p->attribute_proto[i];
        if (def->name && !strcmp(def->name, a->ref_attr_name)) given = def;
    }
    return given;
}

static mpr_status copy_graph(Inliner *x, CopyWork *w, Names *names, GraphProto **g)
{
    GraphProto *copy = mpri_arena_dup(&x->im->d->proto, *g, sizeof **g);
    if (!copy ||
        !mpri_inline_grow(&x->im->scratch, (void **)&w->todo, w->n, &w->cap, sizeof *w->todo))
        return mpri_err_nomem(x->err, sizeof *copy);
    w->todo[w->n++] = (GraphCopy){copy, names};
    *g = copy;
    return MPR_OK;
}

static mpr_status copy_attributes(Inliner *x, CopyWork *w, const Expansion *e, Names *names,
                                  NodeProto *p)
{
    AttributeProto **list = mpri_arena_array(&x->im->d->proto, p->n_attribute, sizeof *list);
    size_t n = 0;
    if (!list) return mpri_err_nomem(x->err, p->n_attribute * sizeof *list);
    for (size_t i = 0; i < p->n_attribute; i++) {
        const AttributeProto *a = resolve(e, p->attribute[i]);
        if (!a) continue;
        AttributeProto *copy = mpri_arena_dup(&x->im->d->proto, a, sizeof *a);
        if (!copy) return mpri_err_nomem(x->err, sizeof *copy);
        copy->name = p->attribute[i]->name;
        if (copy->g) TRY(copy_graph(x, w, names, &copy->g));
        if (copy->n_graphs) {
            copy->graphs = mpri_arena_dup(&x->im->d->proto, copy->graphs,
                                          copy->n_graphs * sizeof *copy->graphs);
            if (!copy->graphs) return mpri_err_nomem(x->err, 0);
            for (size_t k = 0; k < copy->n_graphs; k++)
                TRY(copy_graph(x, w, names, &copy->graphs[k]));
        }
        list[n++] = copy;
    }
    p->attribute = list;
    p->n_attribute = n;
    return MPR_OK;
}

static mpr_status copy_node(Inliner *x, CopyWork *w, const Expansion *e, Names *names,
                            const NodeProto *from, NodeProto **out)
{
    NodeProto *p = mpri_arena_dup(&x->im->d->proto, from, sizeof *from);
    *out = p;
    if (!p) return mpri_err_nomem(x->err, sizeof *p);
    TRY(rename_list(x, names, p->n_input, &p->input));
    TRY(rename_list(x, names, p->n_output, &p->output));
    return copy_attributes(x, w, e, names, p);
}

/* Names that a graph defines get fresh ones in `names`. */
mpr_status mpri_inline_define(Inliner *x, Names *names, const char *path, NodeProto **nodes,
                              size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i]->n_output; k++) {
            const char *name = mpri_inline_intern(x, nodes[i]->output[k]);
            if (!name) return mpri_err_nomem(x->err, 0);
            Rename *old;
            HASH_FIND_PTR(names->hash, &name, old);
            if (name[0] && !old)
                TRY(mpri_inline_put(x, &names->hash, name, mpri_inline_fresh(x, path, name)));
        }
    return MPR_OK;
}

static mpr_status rename_values(Inliner *x, Names *names, const char *path, size_t n,
                                ValueInfoProto ***list, bool define)
{
    ValueInfoProto **copy = mpri_arena_array(&x->im->d->proto, n, sizeof *copy);
    if (!copy) return mpri_err_nomem(x->err, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        const char *name = mpri_inline_intern(x, (*list)[i]->name);
        copy[i] = mpri_arena_dup(&x->im->d->proto, (*list)[i], sizeof **copy);
        if (!name || !copy[i]) return mpri_err_nomem(x->err, 0);
        if (define && name[0])
            TRY(mpri_inline_put(x, &names->hash, name, mpri_inline_fresh(x, path, name)));
        copy[i]->name = (char *)(uintptr_t)(name[0] ? mpri_inline_look(names, name) : name);
    }
    *list = copy;
    return MPR_OK;
}

static mpr_status rename_tensors(Inliner *x, Names *names, const char *path, GraphProto *g)
{
    TensorProto **copy = mpri_arena_array(&x->im->d->proto, g->n_initializer, sizeof *copy);
    if (!copy) return mpri_err_nomem(x->err, 0);
    for (size_t i = 0; i < g->n_initializer; i++) {
        const char *name = mpri_inline_intern(x, g->initializer[i]->name);
        copy[i] = mpri_arena_dup(&x->im->d->proto, g->initializer[i], sizeof **copy);
        if (!name || !copy[i]) return mpri_err_nomem(x->err, 0);
        if (!name[0]) continue;
        TRY(mpri_inline_put(x, &names->hash, name, mpri_inline_fresh(x, path, name)));
        copy[i]->name = (char *)(uintptr_t)mpri_inline_look(names, name);
    }
    g->initializer = copy;
    return MPR_OK;
}

static mpr_status rename_graph(Inliner *x, CopyWork *w, const Expansion *e, GraphCopy item)
{
    GraphProto *g = item.g;
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    if (!names) return mpri_err_nomem(x->err, sizeof *names);
    names->outer = item.names;
    TRY(rename_values(x, names, e->path, g->n_input, &g->input, true));
    TRY(rename_tensors(x, names, e->path, g));
    TRY(mpri_inline_define(x, names, e->path, g->node, g->n_node));
    NodeProto **nodes = mpri_arena_array(&x->im->d->proto, g->n_node, sizeof *nodes);
    if (!nodes) return mpri_err_nomem(x->err, g->n_node * sizeof *nodes);
    for (size_t i = 0; i < g->n_node; i++) TRY(copy_node(x, w, e, names, g->node[i], &nodes[i]));
    g->node = nodes;
    g->n_value_info = 0;
    return rename_values(x, names, e->path, g->n_output, &g->output, false);
}

/* ---- emitting */

mpr_status mpri_inline_emit(Inliner *x, NodeProto *p, const Expansion *e)
{
    Arena *a = &x->im->scratch;
    if (!mpri_inline_grow(a, (void **)&x->out, x->n_out, &x->cap_out, sizeof *x->out))
        return mpri_err_nomem(x->err, sizeof *x->out);
    FileNode *n = &x->out[x->n_out++];
    *n = (FileNode){.p = p, .origin = e->body ? MPRI_ORIGIN_BODY : -1, .opsets = e->opsets, .path = e->path};
    return mpri_import_finish_node(x->im, n, x->err);
}

/* ---- frames */

mpr_status mpri_inline_push(Inliner *x, Expansion e)
{
    if (!mpri_inline_grow(&x->im->scratch, (void **)&x->stack, x->depth, &x->cap, sizeof *x->stack))
        return mpri_err_nomem(x->err, sizeof e);
    x->stack[x->depth++] = e;
    return MPR_OK;
}

const char *mpri_inline_path(Inliner *x, const char *path, const NodeProto *p, const char *what)
{
    const char *call = p->name && p->name[0] ? p->name : p->n_output ? p->output[0] : "";
    return mpri_arena_printf(&x->im->m->arena, "%s%s/%s/", path, call, what);
}

/* Actual names of a call's outputs: a formal that is an input, or is listed twice, is copied by an
 * Identity. */
static mpr_status bind_outputs(Inliner *x, Names *names, size_t n, const char *const *formals,
                               const NodeProto *p, const Expansion *e)
{
    for (size_t i = 0; i < n && i < p->n_output; i++) {
        const char *formal = mpri_inline_intern(x, formals[i]), *actual = p->output[i];
        Rename *old;
        if (!formal) return mpri_err_nomem(x->err, 0);
        if (!actual[0] || !formal[0]) continue;
        HASH_FIND_PTR(names->hash, &formal, old);
        if (old) TRY(mpri_inline_alias(x, old->to, actual, e));
        else TRY(mpri_inline_put(x, &names->hash, formal, actual));
    }
    return MPR_OK;
}

/* from: the node as the file has it, p: with the names of the place. */
static mpr_status enter_call(Inliner *x, const FunctionInfo *fn, const NodeProto *from,
                             NodeProto *p, const Expansion *around)
{
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    Expansion e = {.nodes = fn->p->node,
                   .n = (int)fn->p->n_node,
                   .names = names,
                   .opsets = &fn->opsets,
                   .call = p,
                   .function = fn,
                   .body = around->body};
    e.path = mpri_inline_path(x, around->path, from, fn->p->name);
    if (!names || !e.path) return mpri_err_nomem(x->err, sizeof *names);
    names->closed = true;
    for (size_t i = 0; i < fn->p->n_input; i++) {
        const char *formal = mpri_inline_intern(x, fn->p->input[i]);
        if (!formal) return mpri_err_nomem(x->err, 0);
        TRY(mpri_inline_put(x, &names->hash, formal, i < p->n_input ? p->input[i] : ""));
    }
    TRY(bind_outputs(x, names, fn->p->n_output, (const char *const *)fn->p->output, p, &e));
    TRY(mpri_inline_define(x, names, e.path, e.nodes, fn->p->n_node));
    x->changed = true;
    return mpri_inline_push(x, e);
}

mpr_status mpri_inline_constants(Inliner *x, const GraphProto *g, const Expansion *e)
{
    for (size_t i = 0; i < g->n_initializer; i++) {
        TensorProto *t = g->initializer[i];
        const char *name = mpri_inline_intern(x, t->name);
        if (!name) return mpri_err_nomem(x->err, 0);
        if (!name[0]) continue;
        const char *to = mpri_inline_fresh(x, e->path, name);
        TRY(mpri_inline_put(x, &e->names->hash, name, to));
        TRY(mpri_inline_tensor(x, t, to, e));
    }
    return MPR_OK;
}

/* Branch outputs: the node's names where a node of the branch writes them, else an Identity of what
 * is seen. */
static mpr_status bind_branch(Inliner *x, const GraphProto *g, const NodeProto *p, Expansion *e)
{
    const char **formals = ARENA_ARRAY(&x->im->scratch, const char *, g->n_output);
    Names written = {0};
    if (!formals) return mpri_err_nomem(x->err, g->n_output * sizeof *formals);
    for (size_t i = 0; i < g->n_output; i++) formals[i] = g->output[i]->name;
    for (size_t i = 0; i < g->n_node; i++)
        for (size_t k = 0; k < g->node[i]->n_output; k++) {
            const char *name = mpri_inline_intern(x, g->node[i]->output[k]);
            if (!name) return mpri_err_nomem(x->err, 0);
            TRY(mpri_inline_put(x, &written.hash, name, name));
        }
    for (size_t i = 0; i < g->n_output && i < p->n_output; i++) {
        const char *formal = mpri_inline_intern(x, formals[i]);
        Rename *inner;
        if (!formal) return mpri_err_nomem(x->err, 0);
        HASH_FIND_PTR(written.hash, &formal, inner);
        if (!inner && p->output[i][0]) {
            TRY(mpri_inline_alias(x, mpri_inline_look(e->names, formal), p->output[i], e));
            formals[i] = "";
        }
    }
    return bind_outputs(x, e->names, g->n_output, formals, p, e);
}

static mpr_status enter_branch(Inliner *x, const GraphProto *g, const NodeProto *from,
                               NodeProto *p, const Expansion *around)
{
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    Expansion e = {.nodes = g->node,
                   .n = (int)g->n_node,
                   .names = names,
                   .opsets = around->opsets,
                   .call = around->call,
                   .function = around->function,
                   .body = true};
    e.path = mpri_inline_path(x, around->path, from, mpri_inline_branch(g, from));
    if (!names || !e.path) return mpri_err_nomem(x->err, sizeof *names);
    names->outer = around->names;
    TRY(mpri_inline_constants(x, g, &e));
    TRY(bind_branch(x, g, p, &e));
    TRY(mpri_inline_define(x, names, e.path, e.nodes, g->n_node));
    x->changed = true;
    return mpri_inline_push(x, e);
}

static bool is_standard(const NodeProto *p)
{
    return !p->domain || !p->domain[0] || !strcmp(p->domain, "ai.onnx");
}

/* The branch that a known condition takes; NULL when it is known at run time only, which is asked
 * for. */
static mpr_status known_branch(Inliner *x, const NodeProto *p, const GraphProto **branch)
{
    int64_t condition;
    *branch = NULL;
    if (!is_standard(p) || strcmp(p->op_type, "If") || p->n_input != 1) return MPR_OK;
    if (!mpri_inline_known(x, p->input[0], &condition))
        return mpri_inline_ask(x, p->input[0], FACT_VALUE);
    const AttributeProto *a = mpri_import_attr(p, condition ? "then_branch" : "else_branch");
    if (a && a->g && a->g->n_sparse_initializer == 0) *branch = a->g;
    return MPR_OK;
}

/* A node that is not expanded: the sequences it reads need a writer. */
static mpr_status write_sequences(Inliner *x, const NodeProto *p, const Expansion *e)
{
    for (size_t k = 0; k < p->n_input; k++) TRY(mpri_sequence_write(x, p->input[k], e));
    return MPR_OK;
}

/* ---- the walk */

static mpr_status take_main(Inliner *x, Expansion *at, int i)
{
    FileNode *n = &x->im->nodes[i];
    const Expansion e = *at; /* the stack may move */
    const FunctionInfo *fn = mpri_functions_of(x->im, x->f, n->p);
    const GraphProto *g = NULL;
    bool taken = false;
    if (fn) return enter_call(x, fn, n->p, n->p, &e);
    if (is_standard(n->p)) TRY(mpri_inline_note_node(x, n->p));
    TRY(known_branch(x, n->p, &g));
    if (g) return enter_branch(x, g, n->p, n->p, &e);
    if (is_standard(n->p)) TRY(mpri_sequence_node(x, n->p, &e, &taken));
    if (is_standard(n->p) && !taken) TRY(mpri_unroll_enter(x, n->p, n->p, &e, &taken));
    if (taken) {
        x->changed = true;
        return MPR_OK;
    }
    TRY(write_sequences(x, n->p, &e));
    if (!mpri_inline_grow(&x->im->scratch, (void **)&x->out, x->n_out, &x->cap_out, sizeof *x->out))
        return mpri_err_nomem(x->err, sizeof *n);
    x->out[x->n_out++] = *n;
    return MPR_OK;
}

static mpr_status take_inner(Inliner *x, Expansion e, const NodeProto *from)
{
    CopyWork work = {0};
    NodeProto *p;
    bool taken = false;
    const GraphProto *g = NULL;
    TRY(copy_node(x, &work, &e, e.names, from, &p));
    const FunctionInfo *fn = mpri_functions_of(x->im, x->f, p);
    if (!fn && is_standard(p)) TRY(mpri_inline_note_node(x, p));
    if (!fn) TRY(known_branch(x, p, &g));
    if (g) { /* the branch as it was, since its names are renamed when it is entered */
        const AttributeProto *a = mpri_import_attr(
            from, g == mpri_import_attr(p, "then_branch")->g ? "then_branch" : "else_branch");
        return enter_branch(x, a->g, from, p, &e);
    }
    p->name = (char *)(uintptr_t)mpri_arena_printf(&x->im->d->proto, "%s%s", e.path,
                                                   from->name ? from->name : "");
    if (!p->name) return mpri_err_nomem(x->err, 0);
    if (fn) {
        while (work.n > 0) TRY(rename_graph(x, &work, &e, work.todo[--work.n]));
        return enter_call(x, fn, from, p, &e);
    }
    if (is_standard(p)) TRY(mpri_sequence_node(x, p, &e, &taken));
    if (taken) return MPR_OK;
    if (is_standard(p) &&
        mpri_unroll_is(p)) { /* it may stay after some turns, with a body of its own */
        while (work.n > 0) TRY(rename_graph(x, &work, &e, work.todo[--work.n]));
        TRY(mpri_unroll_enter(x, from, p, &e, &taken));
        if (taken) return MPR_OK;
    }
    while (work.n > 0) TRY(rename_graph(x, &work, &e, work.todo[--work.n]));
    TRY(write_sequences(x, p, &e));
    return mpri_inline_emit(x, p, &e);
}

static mpr_status end_frame(Inliner *x)
{
    Expansion done = x->stack[--x->depth];
    return done.repeat ? mpri_unroll_next(x, &done) : MPR_OK;
}

static mpr_status walk(Inliner *x)
{
    while (x->depth > 0) {
        Expansion *e = &x->stack[x->depth - 1];
        if (e->at == e->n) {
            TRY(end_frame(x));
            continue;
        }
        int i = e->at++;
        if (e->nodes) TRY(take_inner(x, *e, e->nodes[i]));
        else TRY(take_main(x, e, x->scope->order[i]));
        if (x->n_out > x->im->limits.nodes)
            return mpri_err_set(x->err, MPR_E_LIMIT, "nodes after inlining: more than %lld",
                                (long long)x->im->limits.nodes);
    }
    return MPR_OK;
}

/* What control flow asks for goes to the model, which answers on the next import. */
static mpr_status keep_questions(Inliner *x)
{
    ImportedModel *m = x->im->m;
    m->open = mpri_arena_dup(&m->arena, x->open, (size_t)x->n_open * sizeof *x->open);
    if (x->n_open && !m->open) return mpri_err_nomem(x->err, (size_t)x->n_open * sizeof *x->open);
    m->n_open = x->n_open;
    return MPR_OK;
}

mpr_status mpri_inline(Import *im, const Functions *f, const Scope *scope, bool *changed, Err *err)
{
    Inliner x = {.im = im, .f = f, .scope = scope, .err = err};
    const Expansion main = {.n = im->n_nodes, .opsets = &im->opsets, .path = ""};
    TRY(mpri_inline_note_all(&x));
    TRY(mpri_inline_push(&x, main));
    TRY(walk(&x));
    for (int i = 0; i < im->n_outputs; i++)
        TRY(mpri_sequence_write(&x, im->outputs[i]->name, &main));
    TRY(keep_questions(&x));
    *changed = x.changed;
    if (!x.changed) return MPR_OK;
    im->nodes = x.out;
    im->n_nodes = x.n_out;
    return MPR_OK;
}
