/* Expanding calls and constant branches.
 *
 * A call's body is copied node by node with its names replaced: formal inputs and outputs by the
 * actual ones, inner names by fresh ones. Attribute references take the value of the call, else the
 * function's default. Of an If with a constant condition one branch is taken in the same way; it
 * sees the names around it. Nested bodies are expanded when the walk comes to their nodes, with a
 * stack of frames instead of recursion.
 *
 * Inlined nodes have no origin: the converter leaves calls and branches of the file as they are. */
#include "importer/inline.h"

#include <stdio.h>
#include <string.h>

typedef struct Rename { /* one name of a body */
    UT_hash_handle hh;
    bool lost;
    const char *from, *to; /* interned */
} Rename;

typedef struct Names { /* of one expansion, with what it sees around it */
    Rename *hash;
    struct Names *outer; /* NULL: the main graph, whose names stay */
    bool closed;         /* a function body: nothing outside is seen */
} Names;

typedef struct Expansion { /* a frame of the walk */
    NodeProto **nodes;     /* NULL: im->nodes */
    int n, at;
    Names *names;
    const Opsets *opsets;
    const char *path;
    const NodeProto *call; /* for attribute references; NULL in branches of the main graph */
    const FunctionInfo *function;
} Expansion;

typedef struct Inliner {
    Import *im;
    const Functions *f;
    const Scope *scope;
    Expansion *stack;
    int depth, cap;
    FileNode *out;
    int n_out, cap_out;
    Rename *truth; /* Constants and initializers that hold one bool: to = "1" or "" */
    bool changed;
    Err *err;
} Inliner;

static bool grow(Arena *a, void **rows, int n, int *cap, size_t size)
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

static mpr_status put_name(Inliner *x, Rename **hash, const char *from, const char *to)
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

static const char *look_up(const Names *names, const char *name)
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
static const char *fresh(Inliner *x, const char *path, const char *name)
{
    for (int k = 0;; k++) {
        const char *text = k ? mpri_arena_printf(&x->im->scratch, "%s%s_%d", path, name, k)
                             : mpri_arena_printf(&x->im->scratch, "%s%s", path, name);
        if (!text) return NULL;
        if (!mpri_intern_find(x->im->names, text)) return mpri_intern(x->im->names, text);
    }
}

static const char *interned(Inliner *x, const char *s)
{
    return mpri_intern(x->im->names, s ? s : "");
}

/* ---- copying nodes */

static mpr_status rename_list(Inliner *x, const Names *names, size_t n, char ***list)
{
    char **copy = mpri_arena_array(&x->im->d->proto, n, sizeof *copy);
    if (!copy) return mpri_err_nomem(x->err, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        const char *name = interned(x, (*list)[i]);
        if (!name) return mpri_err_nomem(x->err, 0);
        copy[i] = (char *)(uintptr_t)(name[0] ? look_up(names, name) : name);
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
    if (!copy || !grow(&x->im->scratch, (void **)&w->todo, w->n, &w->cap, sizeof *w->todo))
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
static mpr_status define_nodes(Inliner *x, Names *names, const char *path, NodeProto **nodes,
                               size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i]->n_output; k++) {
            const char *name = interned(x, nodes[i]->output[k]);
            if (!name) return mpri_err_nomem(x->err, 0);
            Rename *old;
            HASH_FIND_PTR(names->hash, &name, old);
            if (name[0] && !old) TRY(put_name(x, &names->hash, name, fresh(x, path, name)));
        }
    return MPR_OK;
}

static mpr_status rename_values(Inliner *x, Names *names, const char *path, size_t n,
                                ValueInfoProto ***list, bool define)
{
    ValueInfoProto **copy = mpri_arena_array(&x->im->d->proto, n, sizeof *copy);
    if (!copy) return mpri_err_nomem(x->err, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        const char *name = interned(x, (*list)[i]->name);
        copy[i] = mpri_arena_dup(&x->im->d->proto, (*list)[i], sizeof **copy);
        if (!name || !copy[i]) return mpri_err_nomem(x->err, 0);
        if (define && name[0]) TRY(put_name(x, &names->hash, name, fresh(x, path, name)));
        copy[i]->name = (char *)(uintptr_t)(name[0] ? look_up(names, name) : name);
    }
    *list = copy;
    return MPR_OK;
}

static mpr_status rename_tensors(Inliner *x, Names *names, const char *path, GraphProto *g)
{
    TensorProto **copy = mpri_arena_array(&x->im->d->proto, g->n_initializer, sizeof *copy);
    if (!copy) return mpri_err_nomem(x->err, 0);
    for (size_t i = 0; i < g->n_initializer; i++) {
        const char *name = interned(x, g->initializer[i]->name);
        copy[i] = mpri_arena_dup(&x->im->d->proto, g->initializer[i], sizeof **copy);
        if (!name || !copy[i]) return mpri_err_nomem(x->err, 0);
        if (!name[0]) continue;
        TRY(put_name(x, &names->hash, name, fresh(x, path, name)));
        copy[i]->name = (char *)(uintptr_t)look_up(names, name);
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
    TRY(define_nodes(x, names, e->path, g->node, g->n_node));
    NodeProto **nodes = mpri_arena_array(&x->im->d->proto, g->n_node, sizeof *nodes);
    if (!nodes) return mpri_err_nomem(x->err, g->n_node * sizeof *nodes);
    for (size_t i = 0; i < g->n_node; i++) TRY(copy_node(x, w, e, names, g->node[i], &nodes[i]));
    g->node = nodes;
    g->n_value_info = 0;
    return rename_values(x, names, e->path, g->n_output, &g->output, false);
}

/* ---- emitting */

static mpr_status emit(Inliner *x, NodeProto *p, const Expansion *e)
{
    Arena *a = &x->im->scratch;
    if (!grow(a, (void **)&x->out, x->n_out, &x->cap_out, sizeof *x->out))
        return mpri_err_nomem(x->err, sizeof *x->out);
    FileNode *n = &x->out[x->n_out++];
    *n = (FileNode){.p = p, .origin = -1, .opsets = e->opsets, .path = e->path};
    return mpri_import_finish_node(x->im, n, x->err);
}

static NodeProto *make_node(Inliner *x, const char *op, const char *input, const char *output)
{
    NodeProto *p = mpri_arena_alloc(&x->im->d->proto, sizeof *p);
    char **names = mpri_arena_alloc(&x->im->d->proto, 2 * sizeof *names);
    if (!p || !names) return NULL;
    onnx__node_proto__init(p);
    names[0] = (char *)(uintptr_t)input;
    names[1] = (char *)(uintptr_t)output;
    p->n_input = input != NULL;
    p->input = names;
    p->n_output = 1;
    p->output = names + 1;
    p->op_type = (char *)(uintptr_t)op;
    return p;
}

static mpr_status emit_identity(Inliner *x, const char *from, const char *to, const Expansion *e)
{
    NodeProto *p = make_node(x, "Identity", from, to);
    return p ? emit(x, p, e) : mpri_err_nomem(x->err, sizeof *p);
}

/* ---- constants that decide branches */

static mpr_status note_truth(Inliner *x, const char *name, bool value)
{
    return put_name(x, &x->truth, name, value ? "1" : "");
}

static mpr_status note_constant(Inliner *x, const NodeProto *p)
{
    const AttributeProto *a =
        p->n_attribute == 1 && p->n_output == 1 && !strcmp(p->op_type, "Constant") ? p->attribute[0]
                                                                                   : NULL;
    const TensorProto *t = a ? a->t : NULL;
    if (!t || !t->has_data_type || t->data_type != MPR_BOOL || t->n_dims > 1 ||
        (t->n_dims == 1 && t->dims[0] != 1))
        return MPR_OK;
    if (t->has_raw_data && t->raw_data.len == 1)
        return note_truth(x, p->output[0], t->raw_data.data[0] != 0);
    return t->n_int32_data == 1 ? note_truth(x, p->output[0], t->int32_data[0] != 0) : MPR_OK;
}

static mpr_status note_main(Inliner *x)
{
    const Source *s = x->im->src;
    for (int i = 0; i < s->n_tensors; i++) {
        const SourceTensor *t = &s->tensors[i];
        if (t->data_type != MPR_BOOL || t->rank > 1 || (t->rank == 1 && t->dims[0] != 1) ||
            !t->name[0])
            continue;
        const NameDef *d = mpri_scope_find(x->scope, t->name);
        if (d && !d->overridable) TRY(note_truth(x, t->name, *(const uint8_t *)t->data != 0));
    }
    for (int i = 0; i < x->im->n_nodes; i++)
        if (!x->im->nodes[i].domain[0]) TRY(note_constant(x, x->im->nodes[i].p));
    return MPR_OK;
}

/* ---- frames */

static mpr_status push(Inliner *x, Expansion e)
{
    if (!grow(&x->im->scratch, (void **)&x->stack, x->depth, &x->cap, sizeof *x->stack))
        return mpri_err_nomem(x->err, sizeof e);
    x->stack[x->depth++] = e;
    return MPR_OK;
}

static const char *inner_path(Inliner *x, const char *path, const NodeProto *p, const char *what)
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
        const char *formal = interned(x, formals[i]), *actual = p->output[i];
        Rename *old;
        if (!formal) return mpri_err_nomem(x->err, 0);
        if (!actual[0] || !formal[0]) continue;
        HASH_FIND_PTR(names->hash, &formal, old);
        if (old) TRY(emit_identity(x, old->to, actual, e));
        else TRY(put_name(x, &names->hash, formal, actual));
    }
    return MPR_OK;
}

static mpr_status enter_call(Inliner *x, const FunctionInfo *fn, NodeProto *p, const char *path)
{
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    Expansion e = {.nodes = fn->p->node,
                   .n = (int)fn->p->n_node,
                   .names = names,
                   .opsets = &fn->opsets,
                   .call = p,
                   .function = fn};
    e.path = inner_path(x, path, p, fn->p->name);
    if (!names || !e.path) return mpri_err_nomem(x->err, sizeof *names);
    names->closed = true;
    for (size_t i = 0; i < fn->p->n_input; i++) {
        const char *formal = interned(x, fn->p->input[i]);
        if (!formal) return mpri_err_nomem(x->err, 0);
        TRY(put_name(x, &names->hash, formal, i < p->n_input ? p->input[i] : ""));
    }
    TRY(bind_outputs(x, names, fn->p->n_output, (const char *const *)fn->p->output, p, &e));
    TRY(define_nodes(x, names, e.path, e.nodes, fn->p->n_node));
    x->changed = true;
    return push(x, e);
}

static mpr_status add_branch_constants(Inliner *x, const GraphProto *g, const Expansion *e)
{
    for (size_t i = 0; i < g->n_initializer; i++) {
        TensorProto *t = g->initializer[i];
        const char *name = interned(x, t->name);
        if (!name) return mpri_err_nomem(x->err, 0);
        if (!name[0]) continue;
        TRY(put_name(x, &e->names->hash, name, fresh(x, e->path, name)));
        NodeProto *p = make_node(x, "Constant", NULL, look_up(e->names, name));
        AttributeProto *a = mpri_arena_alloc(&x->im->d->proto, sizeof *a),
                       **list = mpri_arena_alloc(&x->im->d->proto, sizeof *list);
        if (!p || !a || !list) return mpri_err_nomem(x->err, sizeof *a);
        onnx__attribute_proto__init(a);
        a->name = (char *)(uintptr_t) "value";
        a->has_type = true;
        a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR;
        a->t = t;
        list[0] = a;
        p->attribute = list;
        p->n_attribute = 1;
        TRY(emit(x, p, e));
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
            const char *name = interned(x, g->node[i]->output[k]);
            if (!name) return mpri_err_nomem(x->err, 0);
            TRY(put_name(x, &written.hash, name, name));
        }
    for (size_t i = 0; i < g->n_output && i < p->n_output; i++) {
        const char *formal = interned(x, formals[i]);
        Rename *inner;
        if (!formal) return mpri_err_nomem(x->err, 0);
        HASH_FIND_PTR(written.hash, &formal, inner);
        if (!inner && p->output[i][0]) {
            TRY(emit_identity(x, look_up(e->names, formal), p->output[i], e));
            formals[i] = "";
        }
    }
    return bind_outputs(x, e->names, g->n_output, formals, p, e);
}

static mpr_status enter_branch(Inliner *x, const GraphProto *g, NodeProto *p,
                               const Expansion *around)
{
    Names *names = ARENA_NEW(&x->im->scratch, Names);
    Expansion e = {.nodes = g->node,
                   .n = (int)g->n_node,
                   .names = names,
                   .opsets = around->opsets,
                   .call = around->call,
                   .function = around->function};
    e.path = inner_path(x, around->path, p, g->name && g->name[0] ? g->name : "branch");
    if (!names || !e.path) return mpri_err_nomem(x->err, sizeof *names);
    names->outer = around->names;
    TRY(add_branch_constants(x, g, &e));
    TRY(bind_branch(x, g, p, &e));
    TRY(define_nodes(x, names, e.path, e.nodes, g->n_node));
    x->changed = true;
    return push(x, e);
}

/* The branch that a constant condition takes; NULL when it is known at run time only. */
static const GraphProto *constant_branch(const Inliner *x, const NodeProto *p)
{
    Rename *r;
    if (strcmp(p->op_type, "If") || (p->domain && p->domain[0] && strcmp(p->domain, "ai.onnx")) ||
        p->n_input != 1)
        return NULL;
    const char *condition = p->input[0];
    HASH_FIND_PTR(x->truth, &condition, r);
    const AttributeProto *a =
        r ? mpri_import_attr(p, r->to[0] ? "then_branch" : "else_branch") : NULL;
    return a && a->g && a->g->n_sparse_initializer == 0 ? a->g : NULL;
}

/* ---- the walk */

static mpr_status take_main(Inliner *x, Expansion *e, int i)
{
    FileNode *n = &x->im->nodes[i];
    const FunctionInfo *fn = mpri_functions_of(x->im, x->f, n->p);
    const GraphProto *g = fn ? NULL : constant_branch(x, n->p);
    if (fn) return enter_call(x, fn, n->p, "");
    if (g) return enter_branch(x, g, n->p, e);
    if (!grow(&x->im->scratch, (void **)&x->out, x->n_out, &x->cap_out, sizeof *x->out))
        return mpri_err_nomem(x->err, sizeof *n);
    x->out[x->n_out++] = *n;
    return MPR_OK;
}

static mpr_status take_inner(Inliner *x, Expansion e, const NodeProto *from)
{
    CopyWork work = {0};
    NodeProto *p;
    TRY(copy_node(x, &work, &e, e.names, from, &p));
    const FunctionInfo *fn = mpri_functions_of(x->im, x->f, p);
    if (!fn && (!p->domain || !p->domain[0])) TRY(note_constant(x, p));
    const GraphProto *g = fn ? NULL : constant_branch(x, p);
    if (g) { /* the branch as it was, since its names are renamed when it is entered */
        const AttributeProto *a = mpri_import_attr(
            from, g == mpri_import_attr(p, "then_branch")->g ? "then_branch" : "else_branch");
        return enter_branch(x, a->g, p, &e);
    }
    while (work.n > 0) TRY(rename_graph(x, &work, &e, work.todo[--work.n]));
    if (fn) return enter_call(x, fn, p, e.path);
    p->name = (char *)(uintptr_t)mpri_arena_printf(&x->im->d->proto, "%s%s", e.path,
                                                   from->name ? from->name : "");
    return p->name ? emit(x, p, &e) : mpri_err_nomem(x->err, 0);
}

mpr_status mpri_inline(Import *im, const Functions *f, const Scope *scope, bool *changed, Err *err)
{
    Inliner x = {.im = im, .f = f, .scope = scope, .err = err};
    TRY(note_main(&x));
    TRY(push(&x, (Expansion){.n = im->n_nodes, .opsets = &im->opsets, .path = ""}));
    while (x.depth > 0) {
        Expansion *e = &x.stack[x.depth - 1];
        if (e->at == e->n) {
            x.depth--;
            continue;
        }
        int i = e->at++;
        if (e->nodes) TRY(take_inner(&x, *e, e->nodes[i]));
        else TRY(take_main(&x, e, i));
        if (x.n_out > im->limits.nodes)
            return mpri_err_set(err, MPR_E_LIMIT, "nodes after inlining: more than %lld",
                                (long long)im->limits.nodes);
    }
    *changed = x.changed;
    if (!x.changed) return MPR_OK;
    im->nodes = x.out;
    im->n_nodes = x.n_out;
    return MPR_OK;
}
