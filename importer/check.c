/* What can be said of a node without knowing its operator, and the rules of the nodes that hold
 * graphs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "importer/scope.h"

enum { N_KINDS = 15, DUPLICATES_AMONG = 64 };
static const char *const kind_names[N_KINDS] = {
    "undefined", "FLOAT (f)",     "INT (i)",        "STRING (s)", "TENSOR (t)",
    "GRAPH (g)", "FLOATS",        "INTS",           "STRINGS",    "TENSORS",
    "GRAPHS",    "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS",
};

/* Bit per AttributeType whose field is present. */
static uint32_t present(const AttributeProto *a)
{
    const bool has[N_KINDS] = {
        [1] = a->has_f,
        [2] = a->has_i,
        [3] = a->has_s,
        [4] = a->t,
        [5] = a->g,
        [6] = a->n_floats,
        [7] = a->n_ints,
        [8] = a->n_strings,
        [9] = a->n_tensors,
        [10] = a->n_graphs,
        [11] = a->sparse_tensor,
        [12] = a->n_sparse_tensors,
        [13] = a->tp,
        [14] = a->n_type_protos,
    };
    uint32_t bits = 0;
    for (int i = 1; i < N_KINDS; i++) bits |= (uint32_t)has[i] << i;
    return bits;
}

static int lowest(uint32_t bits)
{
    return bits ? __builtin_ctz(bits) : 0;
}

static const char *node_text(const NodeProto *p, int index, const char *where)
{
    static _Thread_local char text[768];
    const char *type = mpri_err_name(p->op_type);
    if (p->name && p->name[0])
        snprintf(text, sizeof text, "node '%s' (%s)%s", mpri_err_name(p->name), type, where);
    else snprintf(text, sizeof text, "node %d (%s)%s", index, type, where);
    return text;
}

static void check_value(const char *node, AttributeProto *a, Err *err)
{
    uint32_t bits = present(a);
    const char *name = mpri_err_name(a->name);
    int type = a->has_type ? (int)a->type : 0;
    if (type < 0 || type >= N_KINDS) {
        mpri_err_finding(err, MPR_E_INVALID_MODEL,
                         "%s: attribute %s has type %d, types 1 to 14 exist", node, name, type);
        return;
    }
    if (type == 0 && bits) { /* files before IR 2, and some writers, leave the type out */
        type = lowest(bits);
        a->has_type = true;
        a->type = (Onnx__AttributeProto__AttributeType)type;
    }
    uint32_t other = bits & ~((uint32_t)1 << type);
    if (other)
        mpri_err_finding(err, MPR_E_INVALID_MODEL,
                         "%s: attribute %s is of type %s but holds a value of type %s", node, name,
                         kind_names[type], kind_names[lowest(other)]);
    else if (!bits && (type == 0 || type == 4 || type == 5 || type == 11 || type == 13))
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s has no value", node, name);
}

static void check_attributes(const char *node, const NodeProto *p, bool in_function, Err *err)
{
    for (size_t i = 0; i < p->n_attribute; i++) {
        AttributeProto *a = p->attribute[i];
        if (!a->name || !a->name[0]) {
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %zu has no name", node, i);
            continue;
        }
        for (size_t k = 0; k < i && k < DUPLICATES_AMONG; k++)
            if (p->attribute[k]->name && !strcmp(p->attribute[k]->name, a->name)) {
                mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s is there twice", node,
                                 mpri_err_name(a->name));
                break;
            }
        bool reference = a->ref_attr_name && a->ref_attr_name[0];
        if (!reference) check_value(node, a, err);
        else if (!in_function)
            mpri_err_finding(err, MPR_E_INVALID_MODEL,
                             "%s: attribute %s refers to the attribute '%s' of a function, but the "
                             "node is in no function",
                             node, mpri_err_name(a->name), mpri_err_name(a->ref_attr_name));
    }
}

/* Names that have one kind in every operator of the standard: checked also for operators unknown
 * here. */
static void check_common(const char *node, const NodeProto *p, Err *err)
{
    static const struct {
        const char *name;
        int type;
    } common[] = {
        {"alpha", 1},     {"beta", 1},     {"gamma", 1},    {"epsilon", 1},      {"momentum", 1},
        {"group", 2},     {"keepdims", 2}, {"auto_pad", 3}, {"kernel_shape", 7}, {"strides", 7},
        {"dilations", 7}, {"pads", 7},     {"perm", 7},
    };
    for (size_t i = 0; i < p->n_attribute; i++) {
        const AttributeProto *a = p->attribute[i];
        bool reference = a->ref_attr_name && a->ref_attr_name[0];
        for (size_t k = 0; a->name && !reference && k < sizeof common / sizeof common[0]; k++)
            if (!strcmp(a->name, common[k].name) && a->has_type && (int)a->type != common[k].type &&
                (int)a->type > 0 && (int)a->type < N_KINDS)
                mpri_err_finding(err, MPR_E_INVALID_MODEL,
                                 "%s: attribute %s is of type %s, it must be %s", node, a->name,
                                 kind_names[a->type], kind_names[common[k].type]);
    }
}

static const GraphProto *branch(const NodeProto *p, const char *name, const char *node, Err *err)
{
    const AttributeProto *a = mpri_import_attr(p, name);
    if (a && a->g) return a->g;
    mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: the required attribute %s is missing", node,
                     name);
    return NULL;
}

static void check_if(const char *node, const NodeProto *p, Err *err)
{
    const GraphProto *b[2] = {branch(p, "then_branch", node, err),
                              branch(p, "else_branch", node, err)};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "else_branch" : "then_branch";
        if (!b[i]) continue;
        if (b[i]->n_input)
            mpri_err_finding(err, MPR_E_INVALID_MODEL,
                             "%s: %s has %zu inputs of its own, branches have none", node, name,
                             b[i]->n_input);
        if (b[i]->n_output < p->n_output)
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: %s has %zu outputs, the node has %zu",
                             node, name, b[i]->n_output, p->n_output);
    }
    if (b[0] && b[1] && b[0]->n_output != b[1]->n_output)
        mpri_err_finding(err, MPR_E_INVALID_MODEL,
                         "%s: then_branch has %zu outputs, else_branch has %zu", node,
                         b[0]->n_output, b[1]->n_output);
}

void mpri_check_node_form(const char *where, const NodeProto *p, int index, bool in_function,
                          Err *err)
{
    const char *node = node_text(p, index, where);
    if (!p->op_type[0]) mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s has no op_type", node);
    int before = err->findings;
    check_attributes(node, p, in_function, err);
    bool standard = !p->domain || !p->domain[0] || !strcmp(p->domain, "ai.onnx");
    if (standard && err->findings == before) check_common(node, p, err);
    if (standard && !strcmp(p->op_type, "If")) check_if(node, p, err);
    if (standard && (!strcmp(p->op_type, "Loop") || !strcmp(p->op_type, "Scan")))
        branch(p, "body", node, err);
}
