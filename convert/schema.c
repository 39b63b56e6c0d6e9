/* Reference: the type constraints of ONNX's operator changelog up to opset 28. The rule is float16
 * from the operator's first version on and bfloat16 from opset 13 on; the rows are the exceptions.
 *
 * The trap: an operator may take 16-bit data while one of its inputs must not, or need not, follow.
 * RMSNormalization has no row for its scale: the output has the scale's type there, so a float32
 * scale would lift the output. */
#include "convert/schema.h"

#include <string.h>

enum { NEVER = 1000, RULE = 13 };

typedef struct LowRow {
    const char *op;
    int f16, bf16; /* first opset; f16 0: from the beginning */
} LowRow;

typedef struct OwnRow {
    const char *op;
    int from, to;              /* opsets */
    uint32_t own;              /* inputs of another type variable than the data's */
    uint32_t no_f16, no_bf16;  /* those of them that are not of this type */
} OwnRow;

static const LowRow low_rows[] = {
    {"Acos", 0, 22},
    {"Acosh", 0, 22},
    {"AffineGrid", 20, 20},
    {"Asin", 0, 22},
    {"Asinh", 0, 22},
    {"Atan", 0, 22},
    {"Atanh", 0, 22},
    {"Attention", 23, 23},
    {"AveragePool", 0, 22},
    {"BatchNormalization", 0, 14},
    {"Bernoulli", 15, 22},
    {"CastLike", 15, 15},
    {"Celu", 28, 28},
    {"Clip", 0, 16}, /* is defined by a Where, which takes bfloat16 from 16 on */
    {"Compress", 9, 28},
    {"Conv", 0, 22},
    {"ConvTranspose", 0, 22},
    {"Cos", 0, 22},
    {"Cosh", 0, 22},
    {"CumSum", 14, 14},
    {"DFT", 17, 17},
    {"DeformConv", 19, 22},
    {"DequantizeLinear", 19, 19},
    {"Det", 0, 22},
    {"DynamicQuantizeLinear", NEVER, NEVER},
    {"Einsum", 12, 28},
    {"Elu", 0, 22},
    {"EyeLike", 0, 22},
    {"GRU", 0, 22},
    {"Gelu", 20, 20},
    {"GlobalAveragePool", 0, 22},
    {"GlobalLpPool", 0, 22},
    {"GlobalMaxPool", 0, 22},
    {"GreaterOrEqual", 0, 16},
    {"GridSample", 16, 22},
    {"GroupNormalization", 18, 18},
    {"HardSigmoid", 0, 22},
    {"HardSwish", 14, 22},
    {"InstanceNormalization", 0, 22},
    {"IsInf", 20, 20},
    {"LSTM", 0, 22},
    {"LayerNormalization", 17, 17},
    {"LeakyRelu", 0, 16},
    {"LessOrEqual", 0, 16},
    {"Loop", 0, 16},
    {"LpNormalization", 0, 22},
    {"LpPool", 0, 22},
    {"MaxPool", 0, 22},
    {"MaxRoiPool", 0, 22},
    {"MaxUnpool", 0, 22},
    {"Mish", 18, 22},
    {"Multinomial", 0, 22},
    {"NegativeLogLikelihoodLoss", 12, 22},
    {"NonMaxSuppression", NEVER, NEVER},
    {"OneHot", 9, NEVER},
    {"Optional", 15, 28},
    {"OptionalGetElement", 15, 28},
    {"OptionalHasElement", 15, 28},
    {"PRelu", 0, 16},
    {"QLinearConv", NEVER, NEVER},
    {"QLinearMatMul", 21, 21},
    {"QuantizeLinear", 19, 19},
    {"RMSNormalization", 23, 23},
    {"RNN", 0, 22},
    {"RandomNormalLike", 0, 22},
    {"RandomUniformLike", 0, 22},
    {"Range", 27, 27},
    {"ReverseSequence", 10, 28},
    {"RoiAlign", 10, 22},
    {"RotaryEmbedding", 23, 23},
    {"Round", 0, 22},
    {"STFT", 17, 17},
    {"Scan", 0, 16},
    {"Scatter", 9, NEVER},
    {"Selu", 0, 22},
    {"SequenceConstruct", 11, NEVER},
    {"SequenceInsert", 11, NEVER},
    {"SequenceMap", 17, NEVER},
    {"Shrink", 9, NEVER},
    {"Sin", 0, 22},
    {"Sinh", 0, 22},
    {"Softplus", 0, 22},
    {"Softsign", 0, 22},
    {"SplitToSequence", 11, 24},
    {"Swish", 24, 24},
    {"Tan", 0, 22},
    {"ThresholdedRelu", 10, 22},
    {"TopK", 0, 24},
    {"Trilu", 14, 14},
    {"Unique", 11, 28},
    {"Upsample", 0, NEVER},
    {"Where", 9, 16},
    {NULL, 0, RULE},
};

static const OwnRow own_rows[] = {
    {"Attention", 23, NEVER, 1 << 2 | 1 << 3 | 1 << 5, 0, 0},
    {"BatchNormalization", 14, 14, 1 << 3 | 1 << 4, 0, 0},
    {"BatchNormalization", 15, NEVER, 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4, 0, 0},
    {"CastLike", 15, NEVER, 1 << 1, 0, 0},
    {"Dropout", 12, 21, 1 << 1, 0, 1 << 1},
    {"Dropout", 22, NEVER, 1 << 1, 0, 0},
    {"GridSample", 16, 21, 1 << 1, 0, 1 << 1},
    {"GridSample", 22, NEVER, 1 << 1, 0, 0},
    {"LinearAttention", 27, NEVER, 1 << 3, 0, 0},
    {"OneHot", 9, 27, 1 << 1 | 1 << 2, 0, 1 << 1 | 1 << 2},
    {"OneHot", 28, NEVER, 1 << 1 | 1 << 2, 0, 1 << 1},
    {"Pow", 12, 14, 1 << 1, 0, 1 << 1},
    {"Pow", 15, NEVER, 1 << 1, 0, 0},
    {"QuantizeLinear", 10, 18, 1 << 1, 1 << 1, 1 << 1},
    {"QuantizeLinear", 23, NEVER, 1 << 1, 0, 0},
    {"Resize", 10, 10, 1 << 1, 1 << 1, 1 << 1},
    {"Resize", 11, NEVER, 1 << 1 | 1 << 2, 1 << 2, 1 << 1 | 1 << 2},
    {"Upsample", 9, NEVER, 1 << 1, 1 << 1, 1 << 1},
    {NULL, 0, 0, 0, 0, 0},
};

static const LowRow *low_row(const char *op)
{
    const LowRow *r = low_rows;
    while (r->op && strcmp(r->op, op) != 0) r++;
    return r;
}

bool mpri_schema_takes(const char *op, int64_t opset, DType t)
{
    const LowRow *r = low_row(op);
    if (t == MPR_FLOAT16) return opset >= r->f16;
    return t != MPR_BFLOAT16 || opset >= r->bf16;
}

static const OwnRow *own_row(const char *op, int64_t opset)
{
    const OwnRow *r = own_rows;
    while (r->op && (strcmp(r->op, op) != 0 || opset < r->from || opset > r->to)) r++;
    return r;
}

uint32_t mpri_schema_own(const char *op, int64_t opset)
{
    return own_row(op, opset)->own;
}

uint32_t mpri_schema_refuses(const char *op, int64_t opset, DType t)
{
    const OwnRow *r = own_row(op, opset);
    return t == MPR_FLOAT16 ? r->no_f16 : t == MPR_BFLOAT16 ? r->no_bf16 : 0;
}
