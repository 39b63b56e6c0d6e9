/* Declared types of values. */
#include <inttypes.h>
#include <string.h>

#include "importer/build.h"
#include "importer/tensors.h"

static mpr_status tensor_shape(Import *im, const ValueInfoProto *v, const Onnx__TensorShapeProto *s,
                               bool strict, Shape *shape, Err *err)
{
    SymTab *sym = im->m->graph->sym;
    if (s->n_dim > MPRI_MAX_RANK) {
        if (!strict && s->n_dim <= 64) return MPR_OK;
        return mpri_err_set(err, MPR_E_LIMIT, "value '%s': rank %zu, at most %d can be computed",
                            mpri_err_name(v->name), s->n_dim, MPRI_MAX_RANK);
    }
    shape->rank = (int)s->n_dim;
    for (int i = 0; i < shape->rank; i++) {
        const Onnx__TensorShapeProto__Dimension *d = s->dim[i];
        bool named = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM &&
                     d->dim_param && d->dim_param[0];
        bool number = d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
        if (number && d->dim_value < 0 && strict)
            return mpri_err_set(err, MPR_E_SHAPE,
                                "graph input '%s': dim %d is %" PRId64
                                ", dims are >= 0 or have a name",
                                mpri_err_name(v->name), i, d->dim_value);
        shape->d[i] = named                         ? mpri_dim_named(sym, d->dim_param)
                      : number && d->dim_value >= 0 ? d->dim_value
                                                    : mpri_dim_fresh(sym);
    }
    return mpri_symtab_failed(sym) ? mpri_err_nomem(err, sizeof(Dim)) : MPR_OK;
}

mpr_status mpri_build_type(Import *im, const ValueInfoProto *v, bool strict, DType *t, Shape *shape,
                           Err *err)
{
    *t = MPR_DTYPE_NONE;
    *shape = (Shape){.rank = MPRI_RANK_UNKNOWN};
    const TypeProto *p = v->type;
    if (!p || p->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE || !p->tensor_type)
        return MPR_OK;
    int64_t elem = p->tensor_type->has_elem_type ? p->tensor_type->elem_type : 0;
    if (elem < 0 || elem > 28) {
        mpri_err_set(err, MPR_E_TYPE,
                     "value '%s' is declared with element type %" PRId64 ", types 1 to 28 exist",
                     mpri_err_name(v->name), elem);
        return mpri_err_advice(err, "export the model again: the file was written by a faulty tool "
                                    "or is newer than this program");
    }
    *t = (DType)elem;
    return p->tensor_type->shape ? tensor_shape(im, v, p->tensor_type->shape, strict, shape, err)
                                 : MPR_OK;
}

/* Type of a name that is already known before inference: an initializer. */
static DType known_type(const Import *im, const Scope *scope, const char *name)
{
    const NameDef *d = mpri_scope_find(scope, name);
    return d && d->kind == DEF_INITIALIZER ? (DType)im->src->tensors[d->index].data_type
                                           : MPR_DTYPE_NONE;
}

DType mpri_build_guess(const Import *im, const Scope *scope, const char *name)
{
    static const char *const indexing[] = {"Gather",  "GatherElements", "GatherND",
                                           "Reshape", "Expand",         "Tile"};
    static const char *const same_type[] = {"MatMul", "Gemm", "Conv", "Add", "Sub", "Mul", "Div"};
    for (int i = 0; i < im->n_nodes; i++) {
        const NodeProto *p = im->nodes[i].p;
        for (size_t k = 0; k < p->n_input; k++) {
            if (p->input[k] != name) continue;
            for (size_t j = 0; k > 0 && j < sizeof indexing / sizeof indexing[0]; j++)
                if (!strcmp(p->op_type, indexing[j])) return MPR_INT64;
            for (size_t j = 0; p->n_input > 1 && j < sizeof same_type / sizeof same_type[0]; j++) {
                DType t = known_type(im, scope, p->input[k == 0]);
                if (!strcmp(p->op_type, same_type[j]) && t) return t;
            }
        }
    }
    return MPR_FLOAT32;
}
