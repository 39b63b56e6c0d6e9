/* The builder: nodes with their types inferred at once, errors sticky. */
#include <string.h>

#include "runtime/base/text.h"
#include "runtime/ir/graph.h"

static Value *fail(Builder *b, mpr_status status)
{
    b->failed = status;
    return NULL;
}

static Value *no_memory(Builder *b, size_t bytes)
{
    return fail(b, mpri_err_nomem(b->err, bytes));
}

static const char *node_name(Builder *b, const OpDef *op)
{
    if (!b->scope || !b->scope[0]) return op->name;
    return mpri_arena_printf(b->g->arena, "%s/%s", b->scope, op->name);
}

Value *mpri_build(Builder *b, int op_id, const void *params, int n_in, Value *const *in, int n_out,
                  Value **out)
{
    for (int i = 0; out && i < n_out; i++) out[i] = NULL;
    if (b->failed != MPR_OK) return NULL;
    const OpTable *ops = b->g->ops;
    const OpDef *op = op_id >= 0 && op_id < ops->count ? ops->defs[op_id] : NULL;
    if (!op || n_in < op->min_in || (op->max_in >= 0 && n_in > op->max_in) || n_out < op->min_out ||
        (op->max_out >= 0 && n_out > op->max_out))
        return fail(b, mpri_err_set(b->err, MPR_E_INTERNAL,
                                    "cannot build operator %d (%s) with %d inputs and %d outputs",
                                    op_id, op ? op->name : "unknown", n_in, n_out));
    for (int i = 0; i < n_in && i < op->min_in; i++)
        if (!in[i] && !mpri_op_mask(op->optional_in, i)) return NULL;
    const char *name = node_name(b, op);
    Node *n = name ? mpri_node_create(b->g, b->before, op, name, params, n_in, in, n_out) : NULL;
    if (!n) return no_memory(b, sizeof(Node));
    n->segment = b->segment;
    if (b->origin) mpri_node_set_origin(b->g, n, b->origin);
    mpr_status status = mpri_infer_node(b->g, n, b->err);
    if (status != MPR_OK) {
        mpri_node_remove(b->g, n);
        return fail(b, status);
    }
    for (int i = 0; out && i < n_out; i++) out[i] = n->out[i];
    return n_out > 0 ? n->out[0] : NULL;
}

Value *mpri_build1(Builder *b, int op_id, const void *params, Value *x)
{
    return mpri_build(b, op_id, params, 1, &x, 1, NULL);
}

Value *mpri_build2(Builder *b, int op_id, const void *params, Value *x, Value *y)
{
    return mpri_build(b, op_id, params, 2, (Value *const[]){x, y}, 1, NULL);
}

Value *mpri_build3(Builder *b, int op_id, const void *params, Value *x, Value *y, Value *z)
{
    return mpri_build(b, op_id, params, 3, (Value *const[]){x, y, z}, 1, NULL);
}

/* Found again by its name, such as "f32:0.5". */
Value *mpri_build_scalar(Builder *b, DType t, double v)
{
    static const Shape scalar;
    if (b->failed != MPR_OK) return NULL;
    uint64_t bits[2] = {0, 0};
    mpri_store_f64(t, bits, 0, v);
    char number[32], name[64] = "";
    strcat(strcat(strcat(name, mpri_dtype_name(t)), ":"), mpri_print_f64(number, v));
    Value *known = mpri_graph_find_value(b->g, name);
    bool same = known && known->kind == VAL_CONST && known->dtype == t && known->shape.rank == 0 &&
                known->data && !memcmp(known->data, bits, mpri_dtype_size(t));
    if (same) return known;
    Value *c = mpri_value_const_copy(b->g, name, t, &scalar, bits);
    return c ? c : no_memory(b, sizeof bits);
}

Value *mpri_build_i64s(Builder *b, int64_t n, const int64_t *v)
{
    if (b->failed != MPR_OK) return NULL;
    Shape shape = {.rank = 1, .d = {n}};
    Value *c = mpri_value_const_copy(b->g, "i64s", MPR_INT64, &shape, v);
    return c ? c : no_memory(b, (size_t)n * sizeof *v);
}

Value *mpri_build_cast(Builder *b, Value *x, DType t)
{
    enum { PARAMS_ROOM = 64 };
    if (b->failed != MPR_OK || !x) return NULL;
    if (x->dtype == t) return x;
    const OpDef *cast = b->g->ops->find("", "Cast");
    const AttrRow *to = cast ? mpri_params_row(cast, "to") : NULL;
    _Alignas(16) char params[PARAMS_ROOM];
    if (!to || cast->params_size > sizeof params)
        return fail(b,
                    mpri_err_set(b->err, MPR_E_INTERNAL, "the operator table has no usable Cast"));
    mpri_params_default(cast, params);
    int64_t type = t;
    memcpy(params + to->offset, &type, sizeof type);
    return mpri_build1(b, cast->id, params, x);
}
