/* Building the Graph from the checked lists of the file.
 *
 * Nodes are created in the order of scope.c and each is inferred at once, because adapters look at
 * types and ranks. A node that turns out to be wrong is a finding, and the others are still looked
 * at; inference stops after the first finding, since its errors would be consequences. */
#include "importer/build.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "importer/adapt.h"
#include "importer/inline.h"
#include "importer/microsoft.h"
#include "importer/sparse.h"
#include "importer/tensors.h"

typedef struct Build {
    Import *im;
    Graph *g;
    Scope *scope;
    const Ties *ties;
    struct Declared *declared;
    int capture; /* next one to use */
} Build;

typedef struct Declared { /* type of a name from value_info or the graph's outputs */
    UT_hash_handle hh;
    bool lost;
    const char *name;
    const ValueInfoProto *v;
} Declared;

/* ---- declarations */

static mpr_status declare_types(Build *b, ValueInfoProto **v, int n, Err *err)
{
    Arena *hash_arena = &b->im->scratch;
    for (int i = 0; i < n; i++) {
        Declared *d;
        const char *name = v[i]->name;
        HASH_FIND_PTR(b->declared, &name, d);
        if (d || !v[i]->type) continue;
        d = ARENA_NEW(hash_arena, Declared);
        if (!d) return mpri_err_nomem(err, sizeof *d);
        d->name = name;
        d->v = v[i];
        HASH_ADD_PTR(b->declared, name, d);
        if (d->lost) return mpri_err_nomem(err, sizeof *d);
    }
    return MPR_OK;
}

static mpr_status apply_declared(Build *b, Value *v, const char *name, Err *err)
{
    Declared *d;
    HASH_FIND_PTR(b->declared, &name, d);
    if (!d) return MPR_OK;
    TRY(mpri_build_type(b->im, d->v, false, &v->dtype, &v->shape, err));
    v->declared = true;
    return MPR_OK;
}

/* ---- inputs and constants */

static mpr_status add_inputs(Build *b, Err *err)
{
    Import *im = b->im;
    const char **over = ARENA_ARRAY(&im->m->arena, const char *, im->n_inputs);
    if (!over) return mpri_err_nomem(err, (size_t)im->n_inputs * sizeof *over);
    im->m->overridable = over;
    for (int i = 0; i < im->n_inputs; i++) {
        NameDef *d = mpri_scope_find(b->scope, im->inputs[i]->name);
        DType t;
        Shape shape;
        TRY(mpri_build_type(im, im->inputs[i], true, &t, &shape, err));
        if (d->overridable) {
            over[im->m->n_overridable++] = d->name;
            continue;
        }
        if (!im->inputs[i]->type) {
            t = mpri_build_guess(im, b->scope, d->name);
            mpri_log(im->log, MPR_LOG_NOTICE,
                     "graph input '%s' declares no type; %s is taken from its readers",
                     mpri_err_name(d->name), mpri_dtype_long(t));
        }
        d->value = mpri_value_input(b->g, d->name, t, &shape);
        if (!d->value) return mpri_err_nomem(err, sizeof(Value));
    }
    return MPR_OK;
}

static Shape shape_of(int rank, const int64_t *dims)
{
    Shape s = {.rank = rank};
    for (int i = 0; i < rank; i++) s.d[i] = dims[i];
    return s;
}

static Value *tensor_value(Build *b, const SourceTensor *t, const char *name)
{
    Shape shape = shape_of(t->rank, t->dims);
    return mpri_value_const(b->g, name, (DType)t->data_type, &shape, t->data);
}

/* A tied copy reads its master, through a Transpose where the exporter stored it transposed. */
static mpr_status tied_value(Build *b, const SourceTensor *t, const Tie *tie, Value **out, Err *err)
{
    NameDef *master = mpri_scope_find(b->scope, b->im->src->tensors[tie->with].name);
    *out = master->value;
    if (!tie->transposed) return MPR_OK;
    TransposeParams p = {.perm = {2, (const int64_t[]){1, 0}}};
    Node *n = mpri_node_create(b->g, NULL, b->g->ops->defs[OP_Transpose], t->name, &p, 1,
                               &master->value, 1);
    if (!n) return mpri_err_nomem(err, sizeof *n);
    mpri_value_rename(b->g, n->out[0], t->name);
    *out = n->out[0];
    return mpri_infer_node(b->g, n, err);
}

static mpr_status add_constants(Build *b, Err *err)
{
    Import *im = b->im;
    for (int i = 0; i < im->src->n_tensors; i++) {
        const SourceTensor *t = &im->src->tensors[i];
        const Tie *tie = &b->ties->tie[i];
        if (!t->name[0]) continue;
        NameDef *d = mpri_scope_find(b->scope, t->name);
        if (tie->with >= 0) TRY(tied_value(b, t, tie, &d->value, err));
        else if (!(d->value = tensor_value(b, t, t->name)))
            return mpri_err_nomem(err, sizeof(Value));
    }
    for (int i = 0; i < im->n_sparse; i++) {
        const TensorProto *values = im->sparse[i]->values;
        if (!values || !values->name || !values->name[0]) continue;
        NameDef *d = mpri_scope_find(b->scope, values->name);
        TensorData data;
        TRY(mpri_sparse_decode(im, im->sparse[i], values->name, &data, err));
        Shape shape = shape_of(data.rank, data.dims);
        d->value = mpri_value_const(b->g, d->name, (DType)data.data_type, &shape, data.data);
        if (!d->value) return mpri_err_nomem(err, sizeof(Value));
    }
    return MPR_OK;
}

/* ---- Constant */

static mpr_status decode_constant(Build *b, const FileNode *n, const AttributeProto *a,
                                  const char *label, TensorData *t, Err *err)
{
    static const int64_t empty;
    const bool strings = a->n_strings || a->has_s;
    if (a->t) {
        TensorForm form = mpri_tensor_form(a->t, n->p->output[0]);
        if (n->raw.len)
            form = (TensorForm){a->t, n->p->output[0], true, b->im->src->bytes + n->raw.at,
                                n->raw.len};
        TRY(mpri_tensor_decode(b->im, &form, t, err));
        return MPR_OK;
    }
    if (a->sparse_tensor)
        return mpri_sparse_decode(b->im, a->sparse_tensor, n->p->output[0], t, err);
    bool list = !strcmp(a->name, "value_floats") || !strcmp(a->name, "value_ints") ||
                !strcmp(a->name, "value_strings");
    bool ints = !strcmp(a->name, "value_int") || !strcmp(a->name, "value_ints");
    size_t count = !list ? 1 : strings ? a->n_strings : ints ? a->n_ints : a->n_floats;
    *t = (TensorData){.data_type = strings ? MPR_STRING
                                   : ints  ? MPR_INT64
                                           : MPR_FLOAT32,
                      .rank = list,
                      .dims = {(int64_t)count},
                      .elements = (int64_t)count};
    const void *from = strings || count == 0 ? (const void *)&empty
                       : ints                ? (list ? (const void *)a->ints : &a->i)
                                             : (list ? (const void *)a->floats : &a->f);
    t->data = mpri_arena_dup(&b->im->m->arena, from,
                             strings || count == 0 ? sizeof empty
                                                   : count * mpri_dtype_size((DType)t->data_type));
    (void)label;
    return t->data ? MPR_OK : mpri_err_nomem(err, count * 8);
}

static const AttributeProto *constant_value(const FileNode *n, const char *label, Err *err)
{
    static const struct {
        const char *name;
        int type;
    } forms[] = {
        {"value", 4},     {"sparse_value", 11}, {"value_float", 1},  {"value_floats", 6},
        {"value_int", 2}, {"value_ints", 7},    {"value_string", 3}, {"value_strings", 8},
    };
    const AttributeProto *found = NULL;
    for (size_t i = 0; i < n->p->n_attribute; i++) {
        const AttributeProto *a = n->p->attribute[i];
        size_t k = 0;
        while (k < sizeof forms / sizeof forms[0] && strcmp(forms[k].name, a->name) != 0) k++;
        if (k == sizeof forms / sizeof forms[0])
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s is unknown", label,
                             mpri_err_name(a->name));
        else if ((int)a->type != forms[k].type)
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s is of a wrong type", label,
                             forms[k].name);
        else if (found)
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: two values, in %s and %s; one must go",
                             label, found->name, a->name);
        else found = a;
    }
    if (!n->p->n_attribute)
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: the required attribute value is missing",
                         label);
    return found;
}

static mpr_status add_constant_node(Build *b, const FileNode *n, const char *label, Err *err)
{
    if (n->p->n_output != 1 || n->p->n_input != 0 || !n->p->output[0][0]) {
        mpri_err_finding(err, MPR_E_INVALID_MODEL,
                         "%s has %zu inputs and %zu outputs, it has none and 1", label,
                         n->p->n_input, n->p->n_output);
        return MPR_OK;
    }
    int before = err->findings;
    const AttributeProto *a = constant_value(n, label, err);
    if (!a || err->findings != before) return MPR_OK;
    TensorData t;
    mpr_status status = decode_constant(b, n, a, label, &t, err);
    if (status != MPR_OK) return mpri_err_where(err, "%s", label);
    NameDef *d = mpri_scope_find(b->scope, n->p->output[0]);
    Shape shape = shape_of(t.rank, t.dims);
    d->value = mpri_value_const(b->g, d->name, (DType)t.data_type, &shape, t.data);
    if (!d->value) return mpri_err_nomem(err, sizeof(Value));
    ImportDetail *detail = b->im->d;
    if (n->path[0] == '\0' && mpri_dtype_is_float((DType)t.data_type) && t.elements > 1)
        detail->constants[detail->n_constants++] =
            (LiftedConstant){d->name, n->origin, (DType)t.data_type, t.elements, t.data};
    return MPR_OK;
}

/* ---- nodes */

/* A copy that its reader sees through a Cast gets a Cast of its own. */
static mpr_status cast_copy(Build *b, const MergedCopy *copy, Value **v, Err *err)
{
    const NodeProto *cast = b->im->nodes[copy->cast].p;
    CastParams p = {.to = mpri_import_attr(cast, "to")->i};
    Node *n = mpri_node_create(b->g, NULL, b->g->ops->defs[OP_Cast], cast->name, &p, 1, v, 1);
    if (!n) return mpri_err_nomem(err, sizeof *n);
    *v = n->out[0];
    return mpri_infer_node(b->g, n, err);
}

static mpr_status input_value(Build *b, const FileNode *n, int index, size_t k, Value **out,
                              Err *err)
{
    const char *name = n->p->input[k];
    *out = NULL;
    if (!name[0]) return MPR_OK;
    const MergedCopy *copy = mpri_ties_copy(b->ties, index, (int)k);
    if (copy) *out = mpri_graph_find_value(b->g, copy->name);
    if (!*out) *out = mpri_scope_find(b->scope, name)->value;
    else if (copy->cast >= 0) return cast_copy(b, copy, out, err);
    return MPR_OK;
}

static mpr_status gather_inputs(Build *b, int index, Draft *d, bool *whole, Err *err)
{
    const NodeProto *p = d->node->p;
    size_t extra = 0;
    *whole = true;
    while (b->capture + (int)extra < b->scope->n_captures &&
           b->scope->captures[b->capture + (int)extra].node == index)
        extra++;
    d->in = ARENA_ARRAY(&b->im->scratch, Value *, p->n_input + extra + DRAFT_SPARE_INPUTS);
    if (!d->in) return mpri_err_nomem(err, p->n_input * sizeof(Value *));
    for (size_t k = 0; k < p->n_input; k++) {
        TRY(input_value(b, d->node, index, k, &d->in[k], err));
        if (p->input[k][0]) d->n_in = (int)k + 1;
        *whole &= d->in[k] || !p->input[k][0];
    }
    for (size_t k = 0; k < p->n_output; k++)
        if (p->output[k][0]) d->n_out = (int)k + 1;
    return MPR_OK;
}

/* Outer values that the branches of an opaque node read become inputs of it, so that order and
 * liveness see them. */
static void add_captures(Build *b, int index, Draft *d)
{
    const Scope *s = b->scope;
    for (; b->capture < s->n_captures && s->captures[b->capture].node == index; b->capture++) {
        Value *v = mpri_scope_find(s, s->captures[b->capture].name)->value;
        bool there = v == NULL;
        for (int k = 0; k < d->n_in; k++) there |= d->in[k] == v;
        if (!there) d->in[d->n_in++] = v;
    }
}

static mpr_status name_outputs(Build *b, Node *n, const NodeProto *p, Err *err)
{
    for (int k = 0; k < n->n_out; k++) {
        const char *name = p->output[k];
        if (!name[0]) {
            n->out[k] = NULL;
            continue;
        }
        mpri_value_rename(b->g, n->out[k], name);
        mpri_scope_find(b->scope, name)->value = n->out[k];
        n->out[k]->shape.rank = MPRI_RANK_UNKNOWN;
        TRY(apply_declared(b, n->out[k], name, err));
    }
    return MPR_OK;
}

static mpr_status create_node(Build *b, Draft *d, int index, Err *err)
{
    const NodeProto *p = d->node->p;
    bool opaque = d->op->flags & OPF_OPAQUE;
    if (opaque) add_captures(b, index, d);
    Node *n = mpri_node_create(b->g, NULL, d->op, p->name, opaque ? NULL : d->params, d->n_in,
                               d->in, d->n_out);
    if (!n) return mpri_err_nomem(err, sizeof *n);
    n->origin = d->origin;
    n->rounds = d->node->rounds;
    if (opaque) {
        n->opaque = p;
        n->opaque_type = d->node->key;
        n->why = d->opaque_why ? d->opaque_why : mpri_inline_why(d->node->key);
    }
    TRY(name_outputs(b, n, p, err));
    if (opaque) {
        mpri_build_guess_outputs(n);
        return MPR_OK;
    }
    return err->findings ? MPR_OK : mpri_build_infer(b->im, n, d->label, err);
}

static mpr_status emit_node(Build *b, Draft *d, int index, Err *err)
{
    if (!d->emit || err->findings) return MPR_OK;
    Value *out[DRAFT_OUTPUTS] = {NULL};
    mpr_status status = d->emit(d, out, err);
    if (status != MPR_OK) return mpri_err_where(err, "%s", d->label);
    if (d->opaque_why) return create_node(b, d, index, err);
    for (int k = 0; k < d->n_out; k++) {
        const char *name = d->node->p->output[k];
        if (!name[0]) continue;
        Value *v = k < DRAFT_OUTPUTS ? out[k] : NULL;
        if (!v)
            return mpri_err_finding(err, MPR_E_INVALID_MODEL,
                                    "%s: a required input is empty, or it has no output %d",
                                    d->label, k);
        mpri_value_rename(b->g, v, name);
        mpri_scope_find(b->scope, name)->value = v;
    }
    return MPR_OK;
}

static const OpDef *find_op(const Build *b, const FileNode *n)
{
    if (n->domain[0]) return b->g->ops->opaque;
    const OpDef *op = b->g->ops->find("", n->p->op_type);
    return op && !(op->flags & OPF_INTERNAL) ? op : b->g->ops->opaque;
}

static mpr_status add_merged_identity(Build *b, const MergedCopy *copy, Err *err)
{
    const NameDef *from = mpri_scope_find(b->scope, copy->source);
    NameDef *to = mpri_scope_find(b->scope, copy->name);
    to->value = tensor_value(b, &b->im->src->tensors[from->index], copy->name);
    return to->value ? MPR_OK : mpri_err_nomem(err, sizeof(Value));
}

static mpr_status add_node(Build *b, int index, Err *err)
{
    const FileNode *n = &b->im->nodes[index];
    Draft d = {.im = b->im,
               .g = b->g,
               .node = n,
               .label = mpri_import_node_name(n),
               .opset = mpri_opset_of(n->opsets, n->domain),
               .op = find_op(b, n)};
    const MergedCopy *copy = mpri_ties_copy(b->ties, index, -1);
    if (copy) return add_merged_identity(b, copy, err);
    if (d.op->id == OP_Constant) return add_constant_node(b, n, d.label, err);
    bool whole;
    TRY(gather_inputs(b, index, &d, &whole, err));
    if (!whole) return MPR_OK; /* its producer was found wrong */
    int *origin = ARENA_NEW(&b->im->m->arena, int);
    d.taken = ARENA_ARRAY(&b->im->scratch, bool, n->p->n_attribute);
    d.base = n->p->n_output ? n->p->output[0] : n->p->name;
    if (!origin || !d.taken) return mpri_err_nomem(err, n->p->n_attribute);
    *origin = n->origin;
    if (n->origin >= 0 || n->origin == MPRI_ORIGIN_BODY) d.origin = (Origin){origin, 1};
    bool opaque = d.op->flags & OPF_OPAQUE;
    d.emit = opaque ? mpri_microsoft_find(n->domain, n->p->op_type) : NULL;
    if (!opaque) TRY(mpri_adapt_node(&d, err));
    if (!opaque && d.opaque_why) d.op = b->g->ops->opaque, d.emit = NULL;
    return d.emit ? emit_node(b, &d, index, err) : create_node(b, &d, index, err);
}

/* Copies of merged tensors that a reader gets without an Identity between. */
static mpr_status add_reader_copies(Build *b, Err *err)
{
    for (int i = 0; i < b->ties->n_copies; i++) {
        const MergedCopy *c = &b->ties->copies[i];
        if (c->identity >= 0) continue;
        const NameDef *from = mpri_scope_find(b->scope, c->source);
        if (!tensor_value(b, &b->im->src->tensors[from->index], c->name))
            return mpri_err_nomem(err, sizeof(Value));
    }
    return MPR_OK;
}

static mpr_status add_outputs(Build *b, Err *err)
{
    for (int i = 0; i < b->im->n_outputs; i++) {
        const char *name = b->im->outputs[i]->name;
        bool again = false;
        for (int k = 0; k < b->g->n_outputs; k++) again |= b->g->outputs[k].name == name;
        if (again) {
            mpri_log(b->im->log, MPR_LOG_WARNING, "graph output '%s' is listed twice; once counts",
                     mpri_err_name(name));
            continue;
        }
        TRY(mpri_graph_add_output(b->g, name, mpri_scope_find(b->scope, name)->value, err));
    }
    return MPR_OK;
}

static mpr_status check_domains(const Import *im, Err *err)
{
    const char *last = NULL;
    for (int i = 0; i < im->n_nodes; i++) {
        const FileNode *n = &im->nodes[i];
        if (n->domain == last || mpri_opset_of(n->opsets, n->domain)) continue;
        last = n->domain;
        mpri_err_finding(err, MPR_E_OPSET, "%s: the model imports no opset of domain '%s'",
                         mpri_import_node_name(n), mpri_err_name(n->domain));
        mpri_err_advice(err, "add the domain to the model's opset_import, or export it again");
    }
    return err->code;
}

mpr_status mpri_build_graph(Import *im, Scope *scope, const Ties *ties, Err *err)
{
    Build b = {.im = im, .g = im->m->graph, .scope = scope, .ties = ties};
    ImportDetail *detail = im->d;
    int n_constants = 0;
    for (int i = 0; i < im->n_nodes; i++)
        n_constants += !strcmp(im->nodes[i].p->op_type, "Constant");
    detail->constants = ARENA_ARRAY(&im->m->arena, LiftedConstant, n_constants);
    if (!detail->constants)
        return mpri_err_nomem(err, (size_t)n_constants * sizeof(LiftedConstant));
    TRY(check_domains(im, err));
    TRY(declare_types(&b, im->infos, im->n_infos, err));
    TRY(declare_types(&b, im->outputs, im->n_outputs, err));
    TRY(add_inputs(&b, err));
    TRY(add_constants(&b, err));
    TRY(add_reader_copies(&b, err));
    /* captures are listed by node in file order, nodes are visited in execution order: look them up
     * by node */
    int *first = ARENA_ARRAY(&im->scratch, int, im->n_nodes + 1);
    if (!first) return mpri_err_nomem(err, (size_t)im->n_nodes * sizeof *first);
    for (int i = scope->n_captures - 1; i >= 0; i--) first[scope->captures[i].node] = i;
    for (int i = 0; i < im->n_nodes; i++) {
        b.capture = first[scope->order[i]];
        TRY(add_node(&b, scope->order[i], err));
    }
    if (err->findings) return err->code;
    return add_outputs(&b, err);
}
