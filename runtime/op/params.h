/* Parameter structs: the attributes of each operator as plain C, shared by OpDefs, passes and
 * kernels. The attribute rows of an OpDef describe the same struct by offsets. Internal fields (not
 * ONNX) say so.
 *
 * out_dtype (internal, an mpr_dtype): type of output 0 where it differs from the rule of the
 * operator; 0 = the rule. Where it is set, float inputs may differ in type: the kernel computes in
 * f32. */
#ifndef MPRI_OP_PARAMS_H
#define MPRI_OP_PARAMS_H

#include "runtime/ir/opdef.h"

#define MPRI_NO_IGNORE INT64_MIN /* ignore_index of a loss that counts every label */

/* Every elementwise float operator (and its *Grad) begins with out_dtype. Gradient operators:
 * ReluGrad(dy, y), TanhGrad(dy, y), SigmoidGrad(dy, y), GeluGrad(dy, x); rule: type of dy. */
typedef struct ElementwiseParams {
    int64_t out_dtype;
} ElementwiseParams;
typedef struct GeluParams { /* Gelu, GeluGrad */
    int64_t out_dtype;
    const char *approximate; /* "none" or "tanh" */
} GeluParams;
typedef struct ModParams {
    int64_t fmod;
} ModParams;
typedef struct AlphaParams { /* LeakyRelu, ThresholdedRelu, Elu, Celu, Swish, SwiGLU, and
                                LeakyReluGrad(dy, x), SwishGrad(dy, x) */
    int64_t out_dtype;
    float alpha;
} AlphaParams;
typedef struct SeluParams {
    int64_t out_dtype;
    float alpha, gamma;
} SeluParams;
/* EluGrad(dy, x): dy * gamma where x > 0, else dy * gamma * alpha / divisor * e^(x / divisor). */
typedef struct EluGradParams {
    int64_t out_dtype;
    float alpha, gamma, divisor;
} EluGradParams;
typedef struct HardSigmoidParams { /* HardSigmoid, HardSigmoidGrad(dy, x) */
    int64_t out_dtype;
    float alpha, beta;
} HardSigmoidParams;
typedef struct ShrinkParams {
    int64_t out_dtype;
    float lambd, bias;
} ShrinkParams;
typedef struct IsInfParams {
    int64_t detect_negative, detect_positive;
} IsInfParams;
typedef struct BitShiftParams {
    const char *direction; /* "LEFT" or "RIGHT" */
} BitShiftParams;
typedef struct CastParams {
    int64_t to;                 /* mpr_dtype; CastLike: unused, the type is that of input 1 */
    int64_t saturate;           /* matters for 8-bit floats only */
    const char *round_mode;     /* matters for 8-bit floats only */
} CastParams;

typedef struct AxisParams { /* Concat, Flatten, Gather, GatherElements */
    int64_t axis;
} AxisParams;

typedef struct GemmParams {
    float alpha, beta;
    int64_t trans_a, trans_b;
} GemmParams;
typedef struct LinearParams {
    int64_t trans_w; /* y = x W^T + b when 1 (W is [N,K]), x W + b when 0 (W is [K,N]) */
} LinearParams;

/* C = act(alpha * op(A) op(B) + bias). A, B: rank >= 2; batch dims broadcast as MatMul; the last
 * two dims are transposed when trans_* is set. When B has rank 2 and trans_a is 0, A's leading dims
 * are flattened into rows. bias (optional input 2): [N], f32 or the type of A. activation: "",
 * "relu", "gelu", "gelu_tanh". Output 1 (optional): the value before the activation, when backward
 * needs it. */
typedef struct FusedMatMulParams {
    int64_t trans_a, trans_b;
    float alpha;
    const char *activation;
    int64_t out_dtype; /* rule: type of A */
} FusedMatMulParams;

typedef struct ReduceParams { /* axes: input 1 */
    int64_t keepdims, noop_with_empty_axes;
    int64_t out_dtype;
} ReduceParams;
typedef struct SumToParams {
    Ints dims; /* target shape, broadcastable to the input's */
    int64_t out_dtype;
} SumToParams;

typedef struct ArgParams { /* ArgMax, ArgMin */
    int64_t axis, keepdims, select_last_index;
} ArgParams;
typedef struct CumulativeParams { /* CumSum, CumProd, CumProdGrad(dy, x, axis); axis: last input */
    int64_t exclusive, reverse;
} CumulativeParams;
typedef struct TopKParams {
    int64_t axis, largest, sorted;
} TopKParams;
typedef struct TopKGradParams { /* TopKGrad(dy, indices): zeros of shape dims, dy at the indices */
    int64_t axis;
    Ints dims;
} TopKGradParams;

/* Softmax, LogSoftmax; SoftmaxGrad(dy, y), LogSoftmaxGrad(dy, y): type of dy. */
typedef struct SoftmaxParams {
    int64_t axis;
    int64_t out_dtype;
} SoftmaxParams;

/* LayerNormalization(x, scale, bias?) -> y, mean?, invstd?; statistics are f32 (f64 for f64 x),
 * shape of x with ones from axis on; scale and bias may be f32 with a low x, and broadcast to the
 * normalised axes.
 * LayerNormGrad(dy, x, scale, mean, invstd) -> dx (type of x), dscale, dbias (f32, or f64; shape of
 * the normalised axes). Each output may be absent. */
typedef struct LayerNormParams {
    int64_t axis;
    float epsilon;
    int64_t stash_type; /* f32 whatever it says: statistics never get narrower */
    int64_t out_dtype;
} LayerNormParams;

/* RMSNormalization(x, scale); RmsNormGrad(dy, x, scale) -> dx (type of x), dscale (f32, or f64; shape
 * of the normalised axes): LayerNormParams. */

/* GroupNormalization(x, scale, bias); GroupNormGrad(dy, x, scale) -> dx (type
 * of x), dscale, dbias (f32, or f64; shape of scale). */
typedef struct GroupNormParams {
    int64_t num_groups; /* 0: one group per channel */
    float epsilon;
    int64_t stash_type; /* f32 whatever it says */
    int64_t per_group;  /* internal: scale and bias have one value per group (opset 18) */
    int64_t out_dtype;
} GroupNormParams;

typedef struct InstanceNormParams {
    float epsilon;
    int64_t out_dtype;
} InstanceNormParams;

/* BatchNormalization(x, scale, bias, mean, var) -> y, running mean, running var (types of mean and
 * var), mean and var that were used (f32, or f64 for f64 x).
 * BatchNormGrad(dy, x, scale, mean, var) -> dx (type of x), dscale, dbias (f32, or f64); mean and
 * var are those that the forward pass used. */
typedef struct BatchNormParams {
    float epsilon, momentum; /* momentum weighs the old running value */
    int64_t training_mode;
    int64_t out_dtype;
} BatchNormParams;
typedef struct BatchNormUpdateParams {
    float momentum;
    int64_t count; /* elements of the batch per channel; 0: nothing is written */
} BatchNormUpdateParams;

typedef struct LpNormParams {
    int64_t axis, p;
} LpNormParams;
#define MPRI_MEAN_VARIANCE_EPSILON 1e-9f
typedef struct MeanVarianceParams {
    Ints axes; /* empty = 0, 2, 3 */
} MeanVarianceParams;
typedef struct LrnParams { /* LRN(x), LrnGrad(dy, x) */
    int64_t size;
    float alpha, beta, bias;
} LrnParams;

/* CrossEntropy(logits, labels, weights?) -> loss, lse, count.
 *   labels: int32 or int64, shape of logits without the class axis. weights: [C].
 *   loss: f32 (f64 for f64 logits): scalar for "mean" and "sum", shape of labels for "none".
 *   lse: log-sum-exp per label position, type of loss, shape of labels.
 *   count: scalar, type of loss: sum of weights (1 each without weights) of the labels that count.
 *   per counted label t, with s = smoothing:
 *     w[t] * (lse - x[t]) * (1 - s) + s / C * sum_c w[c] * (lse - x[c]);
 *   "mean" divides their sum by count (0 / 0 = NaN when no label counts, as PyTorch).
 * CrossEntropyGrad(dloss, logits, labels, lse, count, weights?) -> dlogits (type of logits);
 *   rows that do not count give zeros, also when count is 0. */
typedef struct CrossEntropyParams {
    int64_t axis;         /* class axis */
    int64_t ignore_index; /* labels of this value do not count, inside [0, C) or not;
                             MPRI_NO_IGNORE: none */
    float label_smoothing;
    const char *reduction; /* "mean", "sum", "none" */
    int64_t out_dtype;     /* CrossEntropyGrad only */
} CrossEntropyParams;
typedef struct SoftmaxCrossEntropyLossParams { /* class axis 1 */
    int64_t ignore_index; /* MPRI_NO_IGNORE: none */
    const char *reduction;
} SoftmaxCrossEntropyLossParams;

typedef struct NllLossParams { /* class axis 1 */
    int64_t ignore_index; /* MPRI_NO_IGNORE: none */
    const char *reduction;
} NllLossParams;
/* NllLossGrad(dloss, labels, weights?) -> gradient of the log-probabilities, of shape dims. */
typedef struct NllLossGradParams {
    int64_t ignore_index;
    const char *reduction;
    Ints dims;
} NllLossGradParams;

/* MseLoss(pred, target) -> loss, count: scalars, f32 (f64 for f64 pred); count = elements of pred.
 * MseLossGrad(dloss, pred, target, count) -> dpred (type of pred). pred and target: one shape. */
typedef struct MseLossParams {
    const char *reduction; /* "mean", "sum" */
    int64_t out_dtype;     /* MseLossGrad only */
} MseLossParams;

typedef struct ReshapeParams {
    int64_t allowzero;
} ReshapeParams;
typedef struct TransposeParams {
    Ints perm; /* empty = reversed */
} TransposeParams;
typedef struct TriluParams {
    int64_t upper; /* 1: keep on and above diagonal k (input 1, default 0); 0: on and below */
} TriluParams;
typedef struct SplitParams {
    int64_t axis, num_outputs;
} SplitParams;
/* SliceGrad(dy): zeros of shape dims, with dy element i along axes[k] stored at
 * starts[k] + i * steps[k]. Axes are not negative and distinct; starts are resolved:
 * 0 <= start < dim (0 when dy is empty). */
typedef struct SliceGradParams {
    Ints dims, starts, axes, steps;
} SliceGradParams;
typedef struct ShapeParams {
    int64_t start, end; /* end INT64_MAX = to the last dim */
} ShapeParams;
typedef struct ConstantOfShapeParams {
    TensorAttr value; /* one element; dtype NONE = f32 zero */
} ConstantOfShapeParams;
typedef struct ConstantParams {
    TensorAttr value;
} ConstantParams;

/* GatherGrad(dy, indices): table gradient of shape dims; repeated indices are summed in f32 and
 * stored as f32 (f64 for f64 dy). indices may be negative, as in Gather. */
typedef struct GatherGradParams {
    int64_t axis;
    Ints dims;
} GatherGradParams;
typedef struct GatherNDParams {
    int64_t batch_dims;
} GatherNDParams;

typedef struct PadParams { /* Pad(x, pads, constant_value?, axes?) */
    const char *mode; /* "constant", "reflect", "edge", "wrap" */
} PadParams;

/* ScatterElements(data, indices, updates), Scatter: reduction "none" (the last update wins), "add",
 * "mul", "max", "min". ScatterND: the same, indices as in GatherND. */
typedef struct ScatterParams {
    int64_t axis;
    const char *reduction;
} ScatterParams;
typedef struct ScatterNDParams {
    const char *reduction;
} ScatterNDParams;
typedef struct TensorScatterParams { /* TensorScatter(past_cache, update, write_indices?) */
    int64_t axis;
    const char *mode; /* "linear", "circular" */
} TensorScatterParams;

/* Compress(x, condition), Unique(x). */
#define MPRI_NO_AXIS INT64_MIN /* the tensor as one flat list */
typedef struct CompressParams {
    int64_t axis; /* or MPRI_NO_AXIS */
} CompressParams;
typedef struct UniqueParams {
    int64_t axis; /* or MPRI_NO_AXIS */
    int64_t sorted;
} UniqueParams;
typedef struct ReverseSequenceParams {
    int64_t batch_axis, time_axis;
} ReverseSequenceParams;
typedef struct OneHotParams {
    int64_t axis;
} OneHotParams;
typedef struct EinsumParams { /* see runtime/op/einsum.h */
    const char *equation;
} EinsumParams;
/* Random operators: seed NaN = that of the run; stream (internal): see DropoutParams. */
typedef struct RandomParams { /* RandomNormalLike, RandomUniformLike */
    int64_t dtype;            /* 0: type of the input */
    int64_t stream;
    float a, b;               /* mean and scale, or low and high */
    float seed;
} RandomParams;
typedef struct RandomShapedParams { /* RandomNormal, RandomUniform */
    RandomParams r;
    Ints shape;
} RandomShapedParams;
typedef struct BernoulliParams {
    int64_t dtype; /* 0: type of the input */
    int64_t stream;
    float seed;
} BernoulliParams;
typedef struct MultinomialParams {
    int64_t dtype, sample_size, stream;
    float seed;
} MultinomialParams;
typedef struct EyeLikeParams {
    int64_t dtype; /* 0: type of the input */
    int64_t k;
} EyeLikeParams;

/* Conv(x, w, b?); ConvGradInput(dy, w), ConvGradWeight(dy, x): dims = shape of the gradient. */
typedef struct ConvParams {
    const char *auto_pad; /* NOTSET, SAME_UPPER, SAME_LOWER, VALID */
    Ints dilations, kernel_shape, pads, strides; /* empty = default */
    int64_t group;
    Ints dims; /* internal */
} ConvParams;

/* ConvTranspose(x, w, b?): w is [in, out / group, taps…]. */
typedef struct ConvTransposeParams {
    const char *auto_pad; /* as in Conv */
    Ints dilations, kernel_shape, pads, strides, output_padding, output_shape; /* empty = default */
    int64_t group;
} ConvTransposeParams;

/* What all pools share: a window of kernel_shape elements, `dilations` apart, moved by `strides` over
 * spatial dims that are padded at both ends; see runtime/op/window.h. */
typedef struct PoolWindow {
    const char *auto_pad; /* NOTSET, SAME_UPPER, SAME_LOWER, VALID */
    Ints dilations, kernel_shape, pads, strides; /* empty = default */
    int64_t ceil_mode;
} PoolWindow;
/* MaxPool(x) -> y, indices?: flat positions in x of the first largest element of each window.
 * MaxPoolGrad(dy, x) -> dx. */
typedef struct MaxPoolParams {
    PoolWindow window;
    int64_t storage_order; /* of indices: 1 = column-major in the spatial dims */
} MaxPoolParams;
/* AveragePool(x); AveragePoolGrad(dy): dims = shape of x. */
typedef struct AveragePoolParams {
    PoolWindow window;
    int64_t count_include_pad;
    Ints dims; /* internal */
} AveragePoolParams;
/* LpPool(x); LpPoolGrad(dy, x, y) -> dx. GlobalLpPool has p only. */
typedef struct LpPoolParams {
    PoolWindow window;
    int64_t p;
} LpPoolParams;
typedef struct GlobalLpPoolParams {
    int64_t p;
} GlobalLpPoolParams;
/* MaxUnpool(x, indices, output_shape?): indices are flat positions in the result, as MaxPool gives
 * them. MaxUnpoolGrad(dy, indices) -> dx. */
typedef struct MaxUnpoolParams {
    Ints kernel_shape, pads, strides;
} MaxUnpoolParams;

/* Resize(x, roi?, scales?, sizes?); Upsample(x, scales) is the form before opset 10. An input without
 * elements counts as absent. ResizeGrad(dy, roi?, scales?, sizes?): dims = shape of x. */
typedef struct ResizeParams {
    int64_t antialias;
    Ints axes; /* empty = all */
    const char *coordinate_transformation_mode;
    float cubic_coeff_a, extrapolation_value;
    int64_t exclude_outside;
    const char *keep_aspect_ratio_policy, *mode, *nearest_mode;
    Ints dims; /* internal */
} ResizeParams;

/* GridSample(x, grid); GridSampleGrad(dy, x, grid) -> dx, dgrid. Each output may be absent. */
typedef struct GridSampleParams {
    int64_t align_corners;
    const char *mode;         /* linear, nearest, cubic */
    const char *padding_mode; /* zeros, border, reflection */
} GridSampleParams;
/* AffineGrid(theta, size); AffineGridGrad(dy) -> dtheta. */
typedef struct AffineGridParams {
    int64_t align_corners;
} AffineGridParams;

typedef struct DepthToSpaceParams {
    int64_t blocksize;
    const char *mode; /* DCR, CRD */
} DepthToSpaceParams;
typedef struct SpaceToDepthParams {
    int64_t blocksize;
} SpaceToDepthParams;
typedef struct CenterCropPadParams {
    Ints axes; /* empty = all */
} CenterCropPadParams;
typedef struct DequantizeParams {
    int64_t axis, block_size; /* 0: no blocks */
    int64_t output_dtype;     /* 0: of the scale */
} DequantizeParams;
typedef struct QuantizeParams {
    DequantizeParams at; /* output_dtype 0: of the zero point */
    int64_t precision;   /* type of the division; 0: of the scale */
    int64_t saturate;    /* 8-bit floats only */
} QuantizeParams;
/* Col2Im(columns, image_shape, block_shape); Col2ImGrad(dy, block_shape): dims = shape of columns. */
typedef struct Col2ImParams {
    Ints dilations, pads, strides; /* empty = default */
    Ints dims;                     /* internal */
} Col2ImParams;

/* Dropout(x, ratio?, training_mode?) -> y, mask?; mask is bool, true = kept (all true outside
 * training). DropoutGrad(dy, mask, ratio?, training_mode?) -> dx. Kept values are scaled by
 * 1/(1-ratio); ratio 1 gives zeros. Absent ratio = 0.5, absent training_mode = false. */
typedef struct DropoutParams {
    int64_t seed;
    int64_t stream; /* internal: number of the random stream; 0 = given at the first inference */
} DropoutParams;

/* Attention(q, k, v, mask?, past_k?, past_v?, lengths?) -> y, present_k?, present_v?, scores?, lse?
 *   q, k, v of rank 4 [batch, heads, length, size] or 3 [batch, length, heads * size]; query head h
 *   reads key head h / (heads / key heads). mask: bool (true = seen) or float (added), broadcastable
 *   to [batch, heads, queries, keys]; keys behind its last dim are masked. lengths [batch]: keys
 *   that count. lse (internal): log-sum-exp of each row of scores, [batch, heads, queries], f32 (f64
 *   for f64 q), +inf for a row that sees no key.
 * AttentionGrad(q, k, v, mask?, past_k?, past_v?, lengths?, dy?, y?, lse?, dscores?)
 *   -> dq, dk, dv, dmask?, dpast_k?, dpast_v?; types and shapes of what they belong to. */
typedef struct AttentionParams {
    float scale;   /* 0: 1 / sqrt(head size) */
    float softcap; /* 0: none */
    int64_t is_causal, q_num_heads, kv_num_heads;
    int64_t left_window, right_window; /* -1: unbounded */
    int64_t scores_mode; /* 0 products, 1 after softcap, 2 after the mask, 3 probabilities */
    int64_t softmax_type; /* never narrower than f32, whatever it says */
} AttentionParams;

/* RotaryEmbedding(x, cos, sin, positions?): x of rank 4 [batch, heads, length, size] or 3 [batch,
 * length, heads * size]; caches [positions, dim / 2], or [batch or 1, length, dim / 2] without
 * positions, in f32 or the type of x. RotaryGrad(dy, x, cos, sin, positions?) -> dcos, dsin. */
typedef struct RotaryParams {
    int64_t interleaved, num_heads;
    int64_t dim; /* leading part of a head that turns; 0: all of it */
} RotaryParams;

/* RNN, GRU, LSTM: see runtime/op/recurrent.c. RecurrentGrad has the attributes of its forward node;
 * cell: gates per step (1 RNN, 3 GRU, 4 LSTM). */
typedef struct RecurrentParams {
    int64_t hidden_size, layout, linear_before_reset, input_forget;
    const char *direction;   /* forward, reverse, bidirectional */
    const char *activations; /* one after the other, with spaces between; "": the default */
    Floats alpha, beta;      /* of the activations that have one, in order */
    float clip;              /* 0: none */
    int64_t cell;            /* internal */
} RecurrentParams;

/* ---- update: see runtime/op/update.c for the inputs of each operator ---- */
typedef struct KeepParams { /* UnscaleCheck, ClipGradNorm */
    int64_t keep;                /* 1: gradients stay, the factor is kept in the state for the step */
} KeepParams;
typedef struct AdamParams {
    int64_t decoupled;           /* 1: AdamW; 0: L2 term added to the gradient */
    Floats decay_scale, lr_scale; /* one per parameter; empty = all 1 */
    Ints copy_of;                 /* the parameter of each copy that is behind the parameters */
} AdamParams;
typedef struct SgdParams {
    int64_t nesterov;
    Floats decay_scale, lr_scale; /* one per parameter; empty = all 1 */
    Ints copy_of;
} SgdParams;

#endif
