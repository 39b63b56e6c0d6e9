/* Everything in double (mpr-run --dtype f64): inputs, parameters, constants and casts become f64,
 * and inference carries that through the graph. Central differences and closed forms are compared
 * against such a graph. Casts to integers stay. Trap: an operator whose output type is an
 * attribute (ConstantOfShape, out_dtype) would stay behind, so what is still narrow at the end is
 * cast where it is made. */
#include "passes/prepare.h"

static bool narrow(const Value *v)
{
    return v && mpri_prepare_eligible(v);
}

static mpr_status widen_data(Graph *g, Value *v, Err *err)
{
    int64_t n = mpri_shape_elements(&v->shape);
    double *data = n < 0 ? NULL : mpri_arena_array(g->arena, (size_t)n, sizeof *data);
    if (!data) return mpri_err_nomem(err, n < 0 ? 0 : (size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = mpri_load_f64(v->dtype, v->data, i);
    v->data = data;
    v->dtype = MPR_FLOAT64;
    return MPR_OK;
}

static mpr_status widen_node(Graph *g, Node *n, Err *err)
{
    if (mpri_is(n, OP_Cast)) {
        CastParams *p = n->params;
        if (p->to == MPR_FLOAT32 || mpri_dtype_is_low((DType)p->to)) p->to = MPR_FLOAT64;
    }
    if (n->op->flags & OPF_OPAQUE) return MPR_OK;
    TRY(mpri_infer_node(g, n, err));
    for (int i = 0; i < n->n_out; i++) {
        Value *v = n->out[i];
        if (!narrow(v)) continue;
        CastParams to;
        mpri_params_default(&mpri_op_Cast, &to);
        to.to = MPR_FLOAT64;
        Node *cast = mpri_node_create(g, n->next, &mpri_op_Cast, n->name, &to, 1, (Value *[]){NULL},
                                      1);
        if (!cast) return mpri_err_nomem(err, sizeof *cast);
        mpri_node_set_origin(g, cast, n);
        mpri_value_replace(g, v, cast->out[0]);
        mpri_node_set_input(cast, 0, v);
        TRY(mpri_infer_node(g, cast, err));
    }
    return MPR_OK;
}

mpr_status mpri_pass_widen(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->o->force != MPR_FLOAT64) return MPR_OK;
    for (int i = 0; i < g->n_values; i++) {
        Value *v = g->values[i];
        if (!narrow(v)) continue;
        if (v->kind == VAL_CONST) {
            TRY(widen_data(g, v, err));
        } else if (v->kind != VAL_NODE) {
            v->dtype = MPR_FLOAT64;
            if (v->kind == VAL_SLOT) g->slots[v->slot].dtype = MPR_FLOAT64;
        }
    }
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        TRY(widen_node(g, n, err));
    }
    *changed = true;
    return MPR_OK;
}
