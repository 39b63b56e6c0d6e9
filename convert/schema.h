/* What ONNX says about the float types of its operators, at any opset: which take float16 and
 * bfloat16, and which inputs have a type of their own. */
#ifndef MPRI_CONVERT_SCHEMA_H
#define MPRI_CONVERT_SCHEMA_H

#include "runtime/base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/* The data of an operator of the default domain may be of this type (float32, a low one). */
bool mpri_schema_takes(const char *op, int64_t opset, DType t);
/* Bit k: input k need not have the type of the data. */
uint32_t mpri_schema_own(const char *op, int64_t opset);
/* Bit k: input k, which has a type of its own, may not be of this type. */
uint32_t mpri_schema_refuses(const char *op, int64_t opset, DType t);

#endif
