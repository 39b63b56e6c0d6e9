/* Inference of a node that was just built, and what the file declares about its outputs. */
#include <stdio.h>
#include <string.h>

#include "importer/build.h"
#include "importer/tensors.h"

enum { FEW_OUTPUTS = 8 }; /* whose declarations need no memory of their own */

static mpr_status check_declared(const Value *v, DType declared, Err *err)
{
    if (!declared || !v->dtype || v->dtype == declared) return MPR_OK;
    return mpri_err_set(err, MPR_E_TYPE, "value '%s' is declared as %s but the operator gives %s",
                        mpri_err_name(v->name), mpri_dtype_long(declared),
                        mpri_dtype_long(v->dtype));
}

/* Types and shapes of the inputs, in the standard's words: what the error of a shape rule is about. */
static mpr_status tell_inputs(const Graph *g, const Node *n, Err *err)
{
    char text[1200], shape[200];
    size_t used = 0;
    text[0] = '\0';
    for (int k = 0; k < n->n_in && used < sizeof text - 1; k++) {
        const Value *v = n->in[k];
        if (!v) continue;
        int len = snprintf(text + used, sizeof text - used, "%s'%s' %s%s", used ? ", " : "",
                           mpri_err_name(v->name), mpri_tensor_type_name(v->dtype),
                           mpri_shape_print(g->sym, &v->shape, shape, sizeof shape));
        used += len > 0 ? (size_t)len : 0;
    }
    return mpri_err_where(err, "inputs %s", text);
}

/* A dim about which nothing is known; symbols that the rules found are better than a declaration,
 * which may be left over from an export with fixed sizes. */
static bool is_unknown(const SymTab *sym, Dim d)
{
    char text[32];
    return d < 0 && mpri_dim_print(sym, d, text, sizeof text)[0] == '?';
}

/* A declared shape adds what the rule could not find. One that contradicts the rule makes no model
 * unreadable (converting needs no shapes), but it cannot be run: the mark is reported by
 * mpri_import_check_supported. */
static mpr_status meet_declared(Import *im, Node *n, const Shape *declared, Err *err)
{
    const SymTab *sym = im->m->graph->sym;
    char x[200], y[200];
    for (int k = 0; k < n->n_out; k++) {
        Value *v = n->out[k];
        if (!v || declared[k].rank < 0) continue;
        Shape found = v->shape;
        bool clash = found.rank >= 0 && found.rank != declared[k].rank;
        for (int i = 0; i < declared[k].rank && !clash; i++) {
            Dim d = declared[k].d[i], f = found.rank < 0 ? -1 : found.d[i];
            clash = found.rank >= 0 && d >= 0 && f >= 0 && d != f;
            if (found.rank < 0 || is_unknown(sym, f)) v->shape.d[i] = d;
        }
        if (!clash) {
            v->shape.rank = declared[k].rank;
            continue;
        }
        v->shape = found;
        v->declared = true;
        char *why = mpri_arena_printf(
            &im->m->arena, "value '%s' is declared as %s but the operator gives %s",
            mpri_err_name(v->name), mpri_shape_print(sym, &declared[k], x, sizeof x),
            mpri_shape_print(sym, &found, y, sizeof y));
        if (!why) return mpri_err_nomem(err, sizeof x);
        n->why = why;
        mpri_log(im->log, MPR_LOG_WARNING, "%s", why);
    }
    return MPR_OK;
}

mpr_status mpri_build_infer(Import *im, Node *n, const char *label, Err *err)
{
    DType few_types[FEW_OUTPUTS], *types = few_types;
    Shape few_shapes[FEW_OUTPUTS], *shapes = few_shapes;
    if (n->n_out > FEW_OUTPUTS) {
        types = ARENA_ARRAY(&im->scratch, DType, n->n_out);
        shapes = ARENA_ARRAY(&im->scratch, Shape, n->n_out);
        if (!types || !shapes) return mpri_err_nomem(err, (size_t)n->n_out * sizeof *shapes);
    }
    for (int k = 0; k < n->n_out; k++) {
        Value *v = n->out[k];
        types[k] = v ? v->dtype : MPR_DTYPE_NONE;
        shapes[k] = v && v->declared ? v->shape : (Shape){.rank = MPRI_RANK_UNKNOWN};
        if (v) v->declared = false;
    }
    if (mpri_infer_node(im->m->graph, n, err) != MPR_OK) return tell_inputs(im->m->graph, n, err);
    for (int k = 0; !im->o->stale_types && k < n->n_out; k++)
        if (n->out[k] && check_declared(n->out[k], types[k], err) != MPR_OK)
            return mpri_err_where(err, "%s", label);
    return meet_declared(im, n, shapes, err);
}

/* What the graph in an attribute declares of its output k. */
static DType declared_in(const NodeProto *p, const char *attribute, size_t k)
{
    const AttributeProto *a = mpri_import_attr(p, attribute);
    const TypeProto *t = a && a->g && k < a->g->n_output ? a->g->output[k]->type : NULL;
    bool tensor = t && t->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE && t->tensor_type;
    int64_t elem = tensor && t->tensor_type->has_elem_type ? t->tensor_type->elem_type : 0;
    return elem > 0 && elem <= 28 ? (DType)elem : MPR_DTYPE_NONE;
}

/* Outputs of If, Loop and Scan have the types of what their graphs give. */
static bool guess_control_flow(Node *n)
{
    const NodeProto *p = n->opaque;
    bool branches = !strcmp(n->opaque_type, "If"), loop = !strcmp(n->opaque_type, "Loop");
    if (!branches && !loop && strcmp(n->opaque_type, "Scan") != 0) return false;
    for (int k = 0; k < n->n_out; k++) {
        if (!n->out[k] || n->out[k]->declared) continue;
        size_t i = (size_t)k + loop; /* a Loop's graph gives its condition first */
        DType t = declared_in(p, branches ? "then_branch" : "body", i);
        bool same = !branches || declared_in(p, "else_branch", i) == t;
        n->out[k]->dtype = same ? t : MPR_DTYPE_NONE;
    }
    return true;
}

/* Outputs of an opaque node that nothing declares. Operators of ONNX that compute on floats mostly
 * keep the type; what else is not known, and all of other domains, stays unknown: a wrong guess would
 * make the readers look wrong. */
void mpri_build_guess_outputs(Node *n)
{
    static const struct {
        const char *op;
        DType t;
    } fixed[] = {
        {"ArgMax", MPR_INT64},         {"ArgMin", MPR_INT64},
        {"NonZero", MPR_INT64},        {"IsNaN", MPR_BOOL},
        {"IsInf", MPR_BOOL},           {"Xor", MPR_BOOL},
        {"RandomNormal", MPR_FLOAT32}, {"RandomUniform", MPR_FLOAT32},
        {"QuantizeLinear", MPR_DTYPE_NONE}, {"CastLike", MPR_DTYPE_NONE},
        {"DynamicQuantizeLinear", MPR_DTYPE_NONE}, {"BitCast", MPR_DTYPE_NONE},
        {"NonMaxSuppression", MPR_INT64}, {"SequenceLength", MPR_INT64},
        {"OptionalHasElement", MPR_BOOL},
    };
    if (n->opaque && guess_control_flow(n)) return;
    bool foreign = n->opaque_type && strchr(n->opaque_type, ':');
    bool floats = n->n_in && n->in[0] && mpri_dtype_is_float(n->in[0]->dtype);
    DType t = floats && !foreign ? n->in[0]->dtype : MPR_DTYPE_NONE;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (!strcmp(fixed[i].op, n->opaque_type)) t = fixed[i].t;
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k] && !n->out[k]->declared) n->out[k]->dtype = t;
}
