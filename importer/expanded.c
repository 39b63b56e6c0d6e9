/* Operators without a row of their own, which the importer turns into others: control flow and
 * sequences while functions are inlined, fused operators while the graph is built. For tables that
 * tell what can be read; a test holds this one against the code that does it. */
#include "importer/importer.h"

#define CONTROL "its body becomes nodes, once what decides is constant, fixed by a shape, or fed"
#define SEQUENCE "tensors without a sequence around them; its length must be known"
#define FUSED "decomposed into operators of the standard"

static const ExpandedOp rows[] = {
    {"", "If", true, CONTROL},
    {"", "Loop", true, CONTROL},
    {"", "Scan", true, CONTROL},
    {"", "SequenceMap", true, CONTROL},
    {"", "SequenceConstruct", true, SEQUENCE},
    {"", "SequenceEmpty", true, SEQUENCE},
    {"", "SequenceInsert", true, SEQUENCE},
    {"", "SequenceErase", true, SEQUENCE},
    {"", "SequenceAt", true, SEQUENCE},
    {"", "SequenceLength", false, SEQUENCE},
    {"", "ConcatFromSequence", true, SEQUENCE},
    {"", "SplitToSequence", true, SEQUENCE},
    {"", "Optional", true, SEQUENCE},
    {"", "OptionalGetElement", true, SEQUENCE},
    {"", "OptionalHasElement", false, SEQUENCE},
    {"com.microsoft", "Gelu", true, FUSED},
    {"com.microsoft", "BiasGelu", true, FUSED},
    {"com.microsoft", "FastGelu", true, FUSED},
    {"com.microsoft", "QuickGelu", true, FUSED},
    {"com.microsoft", "FusedMatMul", true, FUSED},
    {"com.microsoft", "TransposeMatMul", true, FUSED},
    {"com.microsoft", "FusedGemm", true, FUSED},
    {"com.microsoft", "GemmFastGelu", true, FUSED},
    {"com.microsoft", "SkipLayerNormalization", true, FUSED},
    {"com.microsoft", "SkipSimplifiedLayerNormalization", true, FUSED},
    {"com.microsoft", "SimplifiedLayerNormalization", true, FUSED},
    {"com.microsoft", "EmbedLayerNormalization", true, FUSED},
    {"com.microsoft", "RelativePositionBias", true, FUSED},
    {"com.microsoft", "BiasDropout", true, FUSED},
    {"com.microsoft", "Attention", true, FUSED},
    {"com.microsoft", "MultiHeadAttention", true, FUSED},
    {"com.microsoft", "GroupQueryAttention", true, FUSED},
    {"com.microsoft", "RotaryEmbedding", true, FUSED},
};

const ExpandedOp *mpri_import_expanded(int *n)
{
    *n = (int)(sizeof rows / sizeof *rows);
    return rows;
}
