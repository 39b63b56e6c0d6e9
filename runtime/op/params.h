/* Parameter structs: the attributes of each operator as plain C, shared by OpDefs, passes and kernels.
 * The attribute rows of an OpDef describe the same struct by offsets. Internal fields (not ONNX) say so. */
#ifndef MPRI_OP_PARAMS_H
#define MPRI_OP_PARAMS_H

#include "runtime/ir/opdef.h"

typedef struct CastParams { int64_t to; int64_t saturate; } CastParams; /* to: mpr_dtype */
typedef struct GeluParams { const char *approximate; } GeluParams;      /* Gelu, GeluGrad: "none" or "tanh" */
typedef struct ModParams { int64_t fmod; } ModParams;
typedef struct AxisParams { int64_t axis; } AxisParams;   /* Softmax LogSoftmax *Grad, Concat, Flatten, Gather, GatherElements */
typedef struct GemmParams { float alpha, beta; int64_t trans_a, trans_b; } GemmParams;
typedef struct LinearParams { int64_t trans_w; } LinearParams; /* y = x W^T when 1 (W is [N,K]), x W when 0 */

/* C = act(alpha * op(A) op(B) + bias). A,B: batch dims broadcast as MatMul; the last two dims are
 * transposed when trans_* is set. When B has rank 2 and trans_a is 0, A's leading dims are flattened into
 * rows. bias (optional input 2): [N], f32 or the type of A. activation: "", "relu", "gelu", "gelu_tanh".
 * Output 1 (optional): the value before the activation, when backward needs it. */
typedef struct FusedMatMulParams {
    int64_t trans_a, trans_b;
    float alpha;
    const char *activation;
    int64_t out_dtype; /* 0 = type of A */
} FusedMatMulParams;

typedef struct ReduceParams { int64_t keepdims, noop_with_empty_axes; } ReduceParams; /* axes: input 1 */
typedef struct SumToParams { Ints dims; int64_t out_dtype; } SumToParams; /* target shape (broadcastable to the input's); 0 = input's type */
typedef struct LayerNormParams { int64_t axis; float epsilon; int64_t stash_type; } LayerNormParams;
typedef struct CrossEntropyParams {
    int64_t axis;         /* class axis */
    int64_t ignore_index; /* labels of this value do not count; may lie outside [0, C) */
    int64_t has_ignore;
    float label_smoothing;
    const char *reduction; /* "mean", "sum", "none" */
} CrossEntropyParams;
typedef struct SoftmaxCrossEntropyLossParams { int64_t ignore_index; int64_t has_ignore; const char *reduction; } SoftmaxCrossEntropyLossParams;

typedef struct ReshapeParams { int64_t allowzero; } ReshapeParams;
typedef struct TransposeParams { Ints perm; } TransposeParams; /* empty = reversed */
typedef struct SplitParams { int64_t axis, num_outputs; } SplitParams;
typedef struct SliceGradParams { Ints dims, starts, axes, steps; } SliceGradParams; /* dims: shape of the sliced tensor */
typedef struct ShapeParams { int64_t start, end; int64_t has_end; } ShapeParams;
typedef struct ConstantOfShapeParams { TensorAttr value; } ConstantOfShapeParams;
typedef struct ConstantParams { TensorAttr value; } ConstantParams;
typedef struct GatherGradParams { int64_t axis; Ints dims; } GatherGradParams; /* dims: shape of the table */
typedef struct GatherNDParams { int64_t batch_dims; } GatherNDParams;

typedef struct ConvParams {
    const char *auto_pad; /* NOTSET, SAME_UPPER, SAME_LOWER, VALID */
    Ints dilations, kernel_shape, pads, strides; /* empty = default */
    int64_t group;
    Ints dims; /* ConvGradInput / ConvGradWeight: shape of the gradient */
} ConvParams;

typedef struct DropoutParams { int64_t seed; int64_t stream; } DropoutParams; /* stream: internal, node number */

/* ---- update: see runtime/op/update.c for the inputs of each operator ---- */
typedef struct AdamParams { float beta1, beta2, epsilon; int64_t decoupled; } AdamParams; /* decoupled: AdamW */
typedef struct SgdParams { float momentum; int64_t nesterov; } SgdParams;

#endif
