/* The parameter rule: a float tensor of the file is trained when a differentiable path leads from
 * it to a float output. Paths end where no gradient flows: casts to integers, comparisons,
 * conditions, indices, the exponent of Pow, running statistics, the angles of rotary embeddings
 * (Sin or Cos of a constant and positions). Constants that have a path and are buffers all the same
 * are told by buffers.c. */
#include "importer/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "importer/buffers.h"
#include "importer/names.h"
#include "importer/roles.h"
#include "importer/tensors.h"
#include "runtime/op/ops.h"

enum { DEP_NONE = -1, DEP_MANY = -2, LIFT_ELEMENTS = 16, PATH_STEPS = 1000 };

typedef struct Finder {
    Import *im;
    Graph *g;
    const Scope *scope;
    const Ties *ties;
    int *first_copy, *next_copy; /* by initializer: its tied copies in file order, -1 none */
    bool *reached;               /* by value id: a gradient can arrive */
    int *depends; /* by value id: the only float constant it depends on, DEP_NONE, or DEP_MANY */
    Err *err;
} Finder;

/* ---- where gradients flow */

static bool named(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(name, *list)) return true;
    return false;
}

/* Operators without a definition here whose outputs do not depend smoothly on their inputs. */
static const char *const stopping[] = {
    "ArgMax",
    "ArgMin",
    "NonZero",
    "IsNaN",
    "IsInf",
    "EyeLike",
    "BitShift",
    "Bernoulli",
    "RandomNormalLike",
    "RandomUniformLike",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "Hardmax",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "Equal",
    "QuantizeLinear",
    "Multinomial",
    "OneHot",
    NULL,
};

static bool flows(const Node *n, int k)
{
    bool opaque = n->op->flags & OPF_OPAQUE;
    const char *type = mpri_node_type(n);
    if (!strcmp(type, "Pow") && k == 1) return false;
    if (!strcmp(type, "BatchNormalization") && k >= 3) return false;
    if (!strcmp(type, "Resize") && k >= 1) return false;
    if (!strcmp(type, "OneHot")) return false; /* the two values of a code */
    if (!strcmp(type, "RotaryEmbedding") && k >= 1) return false; /* tables of angles */
    if (opaque) return !named(type, stopping);
    if (n->op->grad_state != GRAD_FUNCTION) return false;
    return !(k < 32 && (n->op->nondiff_in >> k & 1));
}

static bool is_float(const Value *v)
{
    return mpri_dtype_is_float(v->dtype) || v->dtype == MPR_DTYPE_NONE;
}

static int join(int a, int b)
{
    if (a == DEP_NONE || a == b) return b;
    return b == DEP_NONE ? a : DEP_MANY;
}

static void find_dependencies(Finder *f)
{
    for (int i = 0; i < f->g->n_values; i++) {
        const Value *v = f->g->values[i];
        bool leaf = v->kind != VAL_NODE,
             single = v->kind == VAL_CONST && mpri_shape_elements(&v->shape) == 1;
        f->depends[i] = !leaf || single || !mpri_dtype_is_float(v->dtype) ? DEP_NONE
                        : v->kind == VAL_CONST                            ? i
                                                                          : DEP_MANY;
    }
    for (const Node *n = f->g->first; n; n = n->next) {
        int d = DEP_NONE;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) d = join(d, f->depends[n->in[k]->id]);
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k]) f->depends[n->out[k]->id] = d;
    }
}

static bool is_position_table(const Finder *f, const Node *n)
{
    return (mpri_is(n, OP_Sin) || mpri_is(n, OP_Cos)) && n->in[0] &&
           f->depends[n->in[0]->id] != DEP_MANY;
}

static void find_reached(Finder *f)
{
    for (int i = 0; i < f->g->n_outputs; i++)
        if (is_float(f->g->outputs[i].value)) f->reached[f->g->outputs[i].value->id] = true;
    for (const Node *n = f->g->last; n; n = n->prev) {
        bool any = false;
        for (int k = 0; k < n->n_out; k++) any |= n->out[k] && f->reached[n->out[k]->id];
        if (!any || is_position_table(f, n)) continue;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] && is_float(n->in[k]) && flows(n, k)) f->reached[n->in[k]->id] = true;
    }
}

/* ---- contents */

static void warn_nonfinite(const Finder *f, const Value *v, const char *name)
{
    int64_t n = mpri_shape_elements(&v->shape), bad = 0;
    if (v->dtype == MPR_FLOAT32) {
        const float *p = v->data;
        for (int64_t i = 0; i < n; i++) bad += !isfinite(p[i]);
    } else {
        for (int64_t i = 0; i < n; i++) bad += !isfinite(mpri_load_f64(v->dtype, v->data, i));
    }
    mpri_source_release(f->im->src, v->data, (size_t)n * mpri_dtype_size(v->dtype));
    if (bad)
        mpri_log(f->im->log, MPR_LOG_WARNING, "tensor '%s' holds %lld non-finite value%s",
                 mpri_err_name(name), (long long)bad, bad == 1 ? "" : "s");
}

/* ---- candidates */

static bool is_candidate(const Value *v, bool lifted)
{
    int64_t n = mpri_shape_elements(&v->shape);
    if (!mpri_dtype_is_float(v->dtype) || n < 1 || v->shape.rank < 1) return false;
    if (lifted) return n > LIFT_ELEMENTS || (n > 1 && mpri_in_layer_slot(v));
    return n > 1 || mpri_in_layer_slot(v) || strpbrk(v->name, "./");
}

/* The reader that is first in node order, so that texts do not depend on the order of the use list.
 */
static const Use *first_use(const Value *v)
{
    const Use *first = NULL;
    for (const Use *u = v->uses; u; u = u->next)
        if (!first || u->user->id < first->user->id) first = u;
    return first;
}

static Value *float_output(const Node *n)
{
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k] && mpri_dtype_is_float(n->out[k]->dtype)) return n->out[k];
    return NULL;
}

static const char *ends_at(const Finder *f, const Node *n, int input)
{
    const char *type = mpri_err_name(mpri_node_type(n)), *name = mpri_err_name(n->name);
    char text[600];
    if (is_position_table(f, n))
        return "frequencies of a position embedding: Sin and Cos of constants are not trained";
    if (flows(n, input)) /* its result is no float */
        snprintf(text, sizeof text, "its path ends at node '%s' (%s)", name, type);
    else
        snprintf(text, sizeof text, "input %d of node '%s' (%s) passes no gradient", input, name,
                 type);
    const char *s = mpri_intern(f->im->names, text);
    return s ? s : "its reader passes no gradient";
}

/* Follows the first readers to the node where the path ends. */
static const char *why_not(const Finder *f, const Value *v)
{
    if (v->n_uses == 0)
        return v->n_outputs ? "a graph output reads it, no operator does" : "nothing reads it";
    for (int steps = 0; steps < PATH_STEPS; steps++) {
        const Use *u = first_use(v);
        if (!u) break;
        const Value *next = float_output(u->user);
        if (!next || !flows(u->user, u->index) || is_position_table(f, u->user))
            return ends_at(f, u->user, u->index);
        v = next;
    }
    return "no differentiable path leads from it to a float output";
}

static mpr_status add_param(Finder *f, Value *v, const char *name, const char *identity_of,
                            bool made_up, Err *err)
{
    Param *p = mpri_graph_add_param(f->g);
    if (!p) return mpri_err_nomem(err, sizeof *p);
    v->param = f->g->n_params - 1;
    p->name = name;
    p->value = v;
    p->file_dtype = v->dtype;
    p->identity_of = identity_of;
    p->trained = f->reached[v->id];
    p->reason = p->trained ? "a differentiable path leads to an output" : why_not(f, v);
    const char *buffer = p->trained ? mpri_buffer_reason(f->g, v, made_up) : NULL;
    if (buffer) {
        p->trained = false;
        p->buffer = true;
        p->reason = buffer;
    }
    return MPR_OK;
}

/* ---- copies and names */

static mpr_status list_copies(Finder *f, Err *err)
{
    int n = f->im->src->n_tensors;
    f->first_copy = ARENA_ARRAY(&f->im->scratch, int, n);
    f->next_copy = ARENA_ARRAY(&f->im->scratch, int, n);
    if (!f->first_copy || !f->next_copy) return mpri_err_nomem(err, (size_t)n * sizeof(int));
    for (int i = 0; i < n; i++) f->first_copy[i] = -1;
    for (int i = n - 1; i >= 0; i--) {
        int with = f->ties->tie[i].with;
        if (with < 0) continue;
        f->next_copy[i] = f->first_copy[with];
        f->first_copy[with] = i;
    }
    return MPR_OK;
}

static mpr_status set_copies(Finder *f, Param *p, int tensor, Err *err)
{
    int n = 0;
    for (int i = f->first_copy[tensor]; i >= 0; i = f->next_copy[i]) n++;
    if (n == 0) return MPR_OK;
    ParamCopy *copies = ARENA_ARRAY(f->g->arena, ParamCopy, n);
    if (!copies) return mpri_err_nomem(err, (size_t)n * sizeof *copies);
    for (int i = f->first_copy[tensor], k = 0; i >= 0; i = f->next_copy[i])
        copies[k++] = (ParamCopy){f->im->src->tensors[i].name, f->ties->tie[i].transposed};
    p->copies = copies;
    p->n_copies = n;
    return MPR_OK;
}

static mpr_status set_public_name(Finder *f, Param *p, Err *err)
{
    const char **names = ARENA_ARRAY(&f->im->scratch, const char *, p->n_copies + 1);
    if (!names) return mpri_err_nomem(err, sizeof *names);
    names[0] = p->name;
    for (int i = 0; i < p->n_copies; i++) names[i + 1] = p->copies[i].name;
    p->public_name = mpri_param_public_name(f->im, p->value, names, p->n_copies + 1);
    return MPR_OK;
}

static int compare_public(const void *a, const void *b)
{
    const Param *x = *(const Param *const *)a, *y = *(const Param *const *)b;
    int c = strcmp(x->public_name, y->public_name);
    return c ? c : (x > y) - (x < y);
}

/* Two parameters of one public name would be one to --freeze and to reports: both keep their file
 * names. */
static mpr_status part_names(Finder *f, Err *err)
{
    int n = f->g->n_params;
    Param **p = ARENA_ARRAY(&f->im->scratch, Param *, n);
    if (!p) return mpri_err_nomem(err, (size_t)n * sizeof *p);
    for (int i = 0; i < n; i++) p[i] = &f->g->params[i];
    qsort(p, (size_t)n, sizeof *p, compare_public);
    for (int i = 0, k; i < n; i = k) {
        const char *name = p[i]->public_name;
        for (k = i + 1; k < n && !strcmp(p[k]->public_name, name);) k++;
        for (int j = i; k - i > 1 && j < k; j++) p[j]->public_name = p[j]->name;
    }
    return MPR_OK;
}

static mpr_status report_names(Finder *f)
{
    for (int i = 0; i < f->g->n_params; i++) {
        const Param *p = &f->g->params[i];
        if (p->trained && strcmp(p->name, p->public_name) != 0)
            mpri_log(f->im->log, MPR_LOG_DEBUG, "initializer '%s' is called '%s'",
                     mpri_err_name(p->name), mpri_err_name(p->public_name));
    }
    return MPR_OK;
}

/* ---- */

static mpr_status add_initializers(Finder *f, Err *err)
{
    const Source *s = f->im->src;
    for (int i = 0; i < s->n_tensors; i++) {
        const char *name = s->tensors[i].name;
        if (!name[0] || f->ties->tie[i].with >= 0) continue;
        Value *v = mpri_scope_find(f->scope, name)->value;
        if (!mpri_dtype_is_float(v->dtype)) continue;
        warn_nonfinite(f, v, name);
        if (!is_candidate(v, false)) continue;
        TRY(add_param(f, v, name, NULL, mpri_name_made_up(name), err));
        TRY(set_copies(f, &f->g->params[v->param], i, err));
    }
    return MPR_OK;
}

static mpr_status add_others(Finder *f, Err *err)
{
    for (int i = 0; i < f->ties->n_copies; i++) {
        const MergedCopy *c = &f->ties->copies[i];
        Value *v = mpri_graph_find_value(f->g, c->name);
        if (!v || !is_candidate(v, false)) continue;
        TRY(add_param(f, v, c->name, c->source, mpri_name_made_up(c->source), err));
    }
    const ImportDetail *d = f->im->d;
    bool any_initializer = false; /* else the file keeps its weights in Constant nodes */
    for (int i = 0; i < f->g->n_params; i++) any_initializer |= f->g->params[i].trained;
    for (int i = 0; i < d->n_constants; i++) {
        Value *v = mpri_graph_find_value(f->g, d->constants[i].name);
        if (!v || !is_candidate(v, true)) continue;
        warn_nonfinite(f, v, v->name);
        TRY(add_param(f, v, v->name, NULL, any_initializer, err));
    }
    return MPR_OK;
}

mpr_status mpri_params_find(Import *im, const Scope *scope, const Ties *ties, Err *err)
{
    Finder f = {.im = im, .g = im->m->graph, .scope = scope, .ties = ties, .err = err};
    f.reached = ARENA_ARRAY(&im->scratch, bool, f.g->n_values);
    f.depends = ARENA_ARRAY(&im->scratch, int, f.g->n_values);
    if (!f.reached || !f.depends) return mpri_err_nomem(err, (size_t)f.g->n_values * sizeof(int));
    TRY(list_copies(&f, err));
    TRY(mpri_param_names_prepare(im, err));
    find_dependencies(&f);
    find_reached(&f);
    TRY(add_initializers(&f, err));
    TRY(add_others(&f, err));
    for (int i = 0; i < f.g->n_params; i++) TRY(set_public_name(&f, &f.g->params[i], err));
    TRY(part_names(&f, err));
    return report_names(&f);
}
