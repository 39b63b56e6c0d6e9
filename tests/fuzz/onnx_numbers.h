/* The integers of an ONNX file, for a mutator that puts extreme ones where bytes rarely get: attributes, contents of
 * integer tensors, dims of values, in bodies and functions too. */
#ifndef MPRI_TESTS_ONNX_NUMBERS_H
#define MPRI_TESTS_ONNX_NUMBERS_H

#include <string.h>

#include "importer/onnx.pb-c.h"

enum { NUMBERS = 512, TENSOR_NUMBERS = 16 };

typedef struct OnnxNumbers {
    void *at[NUMBERS]; /* int64, at any alignment */
    int n;
} OnnxNumbers;

static inline void add_number(OnnxNumbers *x, void *at)
{
    if (x->n < NUMBERS) x->at[x->n++] = at;
}

static inline void numbers_of_tensor(OnnxNumbers *x, Onnx__TensorProto *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->n_dims; i++) add_number(x, &t->dims[i]);
    for (size_t i = 0; i < t->n_int64_data && i < TENSOR_NUMBERS; i++) add_number(x, &t->int64_data[i]);
    if (t->data_type == 7)
        for (size_t i = 0; i + 8 <= t->raw_data.len && i < 8 * TENSOR_NUMBERS; i += 8) add_number(x, t->raw_data.data + i);
}

static inline void numbers_of_value(OnnxNumbers *x, Onnx__ValueInfoProto *v)
{
    if (!v->type || v->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE || !v->type->tensor_type->shape) return;
    Onnx__TensorShapeProto *s = v->type->tensor_type->shape;
    for (size_t i = 0; i < s->n_dim; i++)
        if (s->dim[i]->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE) add_number(x, &s->dim[i]->dim_value);
}

static inline void numbers_of_graph(OnnxNumbers *x, Onnx__GraphProto *g);

static inline void numbers_of_node(OnnxNumbers *x, Onnx__NodeProto *n)
{
    for (size_t i = 0; i < n->n_attribute; i++) {
        Onnx__AttributeProto *a = n->attribute[i];
        if (a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT) add_number(x, &a->i);
        for (size_t k = 0; k < a->n_ints; k++) add_number(x, &a->ints[k]);
        numbers_of_tensor(x, a->t);
        if (a->g) numbers_of_graph(x, a->g);
    }
}

static inline void numbers_of_graph(OnnxNumbers *x, Onnx__GraphProto *g)
{
    for (size_t i = 0; i < g->n_initializer; i++) numbers_of_tensor(x, g->initializer[i]);
    for (size_t i = 0; i < g->n_input; i++) numbers_of_value(x, g->input[i]);
    for (size_t i = 0; i < g->n_value_info; i++) numbers_of_value(x, g->value_info[i]);
    for (size_t i = 0; i < g->n_node; i++) numbers_of_node(x, g->node[i]);
}

static inline OnnxNumbers numbers_of_model(Onnx__ModelProto *m)
{
    OnnxNumbers x = {.n = 0};
    for (size_t i = 0; i < m->n_opset_import; i++) add_number(&x, &m->opset_import[i]->version);
    if (m->graph) numbers_of_graph(&x, m->graph);
    for (size_t i = 0; i < m->n_functions; i++)
        for (size_t k = 0; k < m->functions[i]->n_node; k++) numbers_of_node(&x, m->functions[i]->node[k]);
    return x;
}

#endif
