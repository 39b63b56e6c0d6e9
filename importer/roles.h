/* Where layers read their parameters, and which names nobody gave. */
#ifndef MPRI_IMPORTER_ROLES_H
#define MPRI_IMPORTER_ROLES_H

#include "runtime/ir/graph.h"

enum { MPRI_SLOT_CASTS = 2 }; /* of a mixed-precision file, between a parameter and its reader */

/* Inputs that hold parameters in the usual layers: weight and bias of MatMul, Gemm, Conv,
 * normalisations, operands of Add and Mul, table of Gather. Role: "weight", "bias" …; NULL when it
 * is none. */
const char *mpri_param_role(const char *op_type, int input);
/* Operator type as the file has it. */
const char *mpri_node_type(const Node *n);
/* A Cast between float types. */
bool mpri_float_cast(const Node *n);
/* The input has a role; operands of Add and Mul only beside a product. */
bool mpri_slot_holds_param(const Node *n, int input);
/* Read as the weight or bias of a layer, not merely as an operand; perhaps through Casts. */
bool mpri_in_layer_slot(const Value *v);
/* An exporter made the name up: numbers, val_12, onnx::MatMul_12, …Constant_3_output_0, node-like
 * paths. */
bool mpri_name_made_up(const char *name);

#endif
