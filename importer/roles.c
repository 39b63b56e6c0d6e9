/* Where layers read their parameters, and which names nobody gave. */
#include "importer/roles.h"

#include <string.h>

#include "runtime/op/ops.h"

enum { VIEW_STEPS = 4 };

static const struct {
    const char *op;
    int input;
    const char *role;
} roles[] = {
    {"MatMul", 1, "weight"},
    {"MatMul", 0, "weight"},
    {"Gemm", 1, "weight"},
    {"Gemm", 0, "weight"},
    {"Gemm", 2, "bias"},
    {"Conv", 1, "weight"},
    {"Conv", 2, "bias"},
    {"ConvTranspose", 1, "weight"},
    {"ConvTranspose", 2, "bias"},
    {"LayerNormalization", 1, "weight"},
    {"LayerNormalization", 2, "bias"},
    {"SimplifiedLayerNormalization", 1, "weight"},
    {"RMSNormalization", 1, "weight"},
    {"BatchNormalization", 1, "weight"},
    {"BatchNormalization", 2, "bias"},
    {"BatchNormalization", 3, "running_mean"},
    {"BatchNormalization", 4, "running_var"},
    {"InstanceNormalization", 1, "weight"},
    {"InstanceNormalization", 2, "bias"},
    {"GroupNormalization", 1, "weight"},
    {"GroupNormalization", 2, "bias"},
    {"PRelu", 1, "slope"},
    {"Gather", 0, "weight"},
    {"Add", 0, "bias"},
    {"Add", 1, "bias"},
    {"Mul", 0, "scale"},
    {"Mul", 1, "scale"},
};

const char *mpri_param_role(const char *op_type, int input)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (roles[i].input == input && !strcmp(roles[i].op, op_type)) return roles[i].role;
    return NULL;
}

const char *mpri_node_type(const Node *n)
{
    return n->op->flags & OPF_OPAQUE ? n->opaque_type : n->op->name;
}

bool mpri_float_cast(const Node *n)
{
    return mpri_is(n, OP_Cast) && mpri_dtype_is_float(n->in[0]->dtype) &&
           mpri_dtype_is_float(n->out[0]->dtype);
}

/* v is a tensor of the file, perhaps cast, transposed or reshaped. */
static bool is_weight(const Value *v)
{
    for (int steps = 0; v && steps < VIEW_STEPS; steps++) {
        const Node *n = mpri_def(v);
        if (!n) return v->kind == VAL_CONST;
        if (!mpri_is(n, OP_Cast) && !mpri_is(n, OP_Transpose) && !mpri_is(n, OP_Reshape)) break;
        v = n->in[0];
    }
    return false;
}

/* The product of a layer: one side is its weight. Scores of attention have none. */
static bool is_layer_product(const Node *n)
{
    static const char *const products[] = {"MatMul", "Gemm", "Conv"};
    const char *type = n ? mpri_node_type(n) : "";
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (!strcmp(type, products[i])) return is_weight(n->in[0]) || is_weight(n->in[1]);
    return false;
}

bool mpri_slot_holds_param(const Node *n, int input)
{
    const char *type = mpri_node_type(n);
    if (!mpri_param_role(type, input)) return false;
    if (strcmp(type, "Add") != 0 && strcmp(type, "Mul") != 0) return true;
    const Node *other = n->n_in == 2 ? mpri_def(n->in[1 - input]) : NULL;
    while (mpri_float_cast(other)) other = mpri_def(other->in[0]);
    return is_layer_product(other);
}

static bool read_in_slot(const Value *v, int casts)
{
    for (const Use *u = v->uses; u; u = u->next)
        if (mpri_float_cast(u->user) && casts > 0 ? read_in_slot(u->user->out[0], casts - 1)
                                                  : mpri_slot_holds_param(u->user, u->index))
            return true;
    return false;
}

bool mpri_in_layer_slot(const Value *v)
{
    return read_in_slot(v, MPRI_SLOT_CASTS);
}

bool mpri_name_made_up(const char *s)
{
    if (strstr(s, "onnx::") || strstr(s, "Constant") || strstr(s, "_output_")) return true;
    if (!strncmp(s, "val_", 4)) s += 4;
    return s[0] && s[strspn(s, "0123456789")] == '\0';
}
