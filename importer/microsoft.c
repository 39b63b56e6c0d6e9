/* com.microsoft without its attention: activations, products, normalisations, embeddings.
 * Reference: the operator texts of onnxruntime's docs/ContribOperators.md.
 *
 * Each decomposition takes the attributes and inputs it knows. A node with any other stays opaque
 * with the reason, so nothing is computed that the file did not ask for. */
#include "importer/microsoft.h"

#include <math.h>
#include <string.h>

/* ---- shared */

void mpri_fused_begin(Fused *f, Draft *d, Err *err)
{
    const char *name = d->node->p->name;
    *f = (Fused){.d = d,
                 .b = {.g = d->g, .scope = name && name[0] ? name : d->base, .err = err},
                 .origin = {.origin = d->origin}};
    f->b.origin = &f->origin;
}

mpr_status mpri_fused_end(Fused *f, int max_in)
{
    const NodeProto *p = f->d->node->p;
    for (size_t i = 0; i < p->n_attribute; i++) {
        if (f->d->taken[i]) continue;
        const char *why = mpri_arena_printf(&f->d->im->m->arena, "its attribute %s is not known",
                                            mpri_err_name(p->attribute[i]->name));
        f->d->opaque_why = why ? why : "an attribute that is not known";
    }
    if (f->d->n_in > max_in) f->d->opaque_why = "an input that is not known";
    return f->b.failed;
}

int64_t mpri_fused_int(Fused *f, const char *name, int64_t otherwise)
{
    int64_t v;
    return mpri_adapt_take_int(f->d, name, &v, f->b.err) ? v : otherwise;
}

float mpri_fused_float(Fused *f, const char *name, float otherwise)
{
    float v;
    return mpri_adapt_take_float(f->d, name, &v, f->b.err) ? v : otherwise;
}

static Value *build(Fused *f, int op, const void *params, int n_in, Value *const *in, int n_out,
                    Value **out)
{
    return mpri_build(&f->b, op, params, n_in, in, n_out, out);
}

Value *mpri_fused_op(Fused *f, int op, const void *params, Value *a, Value *b)
{
    return build(f, op, params, b ? 2 : 1, (Value *const[]){a, b}, 1, NULL);
}

Value *mpri_fused_add(Fused *f, Value *a, Value *b)
{
    return b ? mpri_fused_op(f, OP_Add, NULL, a, b) : a;
}

Value *mpri_fused_reshape(Fused *f, Value *x, int rank, const int64_t *dims)
{
    return mpri_fused_op(f, OP_Reshape, NULL, x, mpri_build_i64s(&f->b, rank, dims));
}

Value *mpri_fused_unsqueeze(Fused *f, Value *x, int n, const int64_t *axes)
{
    return mpri_fused_op(f, OP_Unsqueeze, NULL, x, mpri_build_i64s(&f->b, n, axes));
}

Value *mpri_fused_dim(Fused *f, Value *x, int axis)
{
    return mpri_fused_op(f, OP_Shape, &(ShapeParams){.start = axis, .end = axis + 1}, x, NULL);
}

Value *mpri_fused_range(Fused *f, Value *n)
{
    Value *end = mpri_fused_reshape(f, n, 0, NULL);
    Value *in[3] = {mpri_build_scalar(&f->b, MPR_INT64, 0), end,
                    mpri_build_scalar(&f->b, MPR_INT64, 1)};
    return build(f, OP_Range, NULL, 3, in, 1, NULL);
}

void mpri_fused_split(Fused *f, Value *x, int64_t axis, int n, const int64_t *sizes, Value **out)
{
    SplitParams p = {.axis = axis, .num_outputs = sizes ? 0 : n};
    Value *in[2] = {x, sizes ? mpri_build_i64s(&f->b, n, sizes) : NULL};
    build(f, OP_Split, &p, sizes ? 2 : 1, in, n, out);
}

static Value *gelu(Fused *f, Value *x, const char *form)
{
    return mpri_fused_op(f, OP_Gelu, &(GeluParams){.approximate = form}, x, NULL);
}

static Value *times(Fused *f, Value *x, double c)
{
    if (c == 1 || !x) return x;
    return mpri_fused_op(f, OP_Mul, NULL, x, mpri_build_scalar(&f->b, x->dtype, c));
}

/* ---- activations */

static mpr_status emit_gelu(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    bool fast = !strcmp(d->node->p->op_type, "FastGelu");
    out[0] = gelu(&f, mpri_fused_add(&f, fused_in(&f, 0), fused_in(&f, 1)), fast ? "tanh" : "none");
    return mpri_fused_end(&f, 2);
}

static mpr_status emit_quick_gelu(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    Value *x = fused_in(&f, 0);
    double alpha = (double)mpri_fused_float(&f, "alpha", 1.702f);
    Value *gate = mpri_fused_op(&f, OP_Sigmoid, NULL, times(&f, x, alpha), NULL);
    out[0] = mpri_fused_op(&f, OP_Mul, NULL, x, gate);
    return mpri_fused_end(&f, 1);
}

/* ---- products */

/* The last two dims trade places; batch: the first dim goes behind the other batch dims. */
static Value *turned(Fused *f, Value *x, bool trans, bool batch)
{
    int rank = x ? x->shape.rank : 0;
    int64_t perm[MPRI_MAX_RANK];
    if (rank < 0 && (trans || batch)) f->d->opaque_why = "a transposed operand of unknown rank";
    if (rank < 2 || (!trans && !batch)) return x;
    for (int i = 0; i < rank; i++) perm[i] = i;
    for (int i = 0; batch && i < rank - 2; i++) perm[i] = i + 1;
    if (batch) perm[rank - 2] = 0;
    if (trans) {
        int64_t t = perm[rank - 1];
        perm[rank - 1] = perm[rank - 2];
        perm[rank - 2] = t;
    }
    return mpri_fused_op(f, OP_Transpose, &(TransposeParams){.perm = {rank, perm}}, x, NULL);
}

static mpr_status emit_matmul(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    double alpha = (double)mpri_fused_float(&f, "alpha", 1);
    Value *a = turned(&f, fused_in(&f, 0), mpri_fused_int(&f, "transA", 0),
                      mpri_fused_int(&f, "transBatchA", 0));
    Value *b = turned(&f, fused_in(&f, 1), mpri_fused_int(&f, "transB", 0),
                      mpri_fused_int(&f, "transBatchB", 0));
    out[0] = times(&f, b ? mpri_fused_op(&f, OP_MatMul, NULL, a, b) : NULL, alpha);
    return mpri_fused_end(&f, 2);
}

/* x where it is positive, slope * x elsewhere: at 0 the slope counts, as in PyTorch. */
static Value *leaky_relu(Fused *f, Value *x, double slope)
{
    Value *zero = x ? mpri_build_scalar(&f->b, x->dtype, 0) : NULL;
    Value *in[3] = {mpri_fused_op(f, OP_Greater, NULL, x, zero), x, times(f, x, slope)};
    return build(f, OP_Where, NULL, 3, in, 1, NULL);
}

static Value *activated(Fused *f, Value *x, const char *name, size_t len, double alpha, double beta)
{
#define IS(text) (len == sizeof(text) - 1 && !memcmp(name, text, len))
    if (len == 0) return x;
    if (IS("Relu")) return mpri_fused_op(f, OP_Relu, NULL, x, NULL);
    if (IS("Tanh")) return mpri_fused_op(f, OP_Tanh, NULL, x, NULL);
    if (IS("Sigmoid")) return mpri_fused_op(f, OP_Sigmoid, NULL, x, NULL);
    if (IS("Softsign")) return mpri_fused_op(f, OP_Softsign, NULL, x, NULL);
    if (IS("LeakyRelu")) return leaky_relu(f, x, isnan(alpha) ? 0.01 : alpha);
    if (IS("HardSigmoid") && x) {
        Value *line = times(f, x, isnan(alpha) ? 0.2 : alpha);
        line = mpri_fused_add(f, line,
                              mpri_build_scalar(&f->b, x->dtype, isnan(beta) ? 0.5 : beta));
        Value *in[3] = {line, mpri_build_scalar(&f->b, x->dtype, 0),
                        mpri_build_scalar(&f->b, x->dtype, 1)};
        return build(f, OP_Clip, NULL, 3, in, 1, NULL);
    }
#undef IS
    f->d->opaque_why = "an activation that is not known";
    return NULL;
}

static mpr_status emit_gemm(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    GemmParams p = {.alpha = mpri_fused_float(&f, "alpha", 1),
                    .beta = mpri_fused_float(&f, "beta", 1),
                    .trans_a = mpri_fused_int(&f, "transA", 0) != 0,
                    .trans_b = mpri_fused_int(&f, "transB", 0) != 0};
    double alpha = (double)mpri_fused_float(&f, "activation_alpha", NAN),
           beta = (double)mpri_fused_float(&f, "activation_beta", NAN);
    const AttributeProto *act = mpri_adapt_take(d, "activation");
    mpri_adapt_take(d, "activation_gamma");
    Value *in[3] = {fused_in(&f, 0), fused_in(&f, 1), fused_in(&f, 2)};
    Value *y = build(&f, OP_Gemm, &p, in[2] ? 3 : 2, in, 1, NULL);
    out[0] = activated(&f, y, act && act->has_s ? (const char *)act->s.data : "",
                       act && act->has_s ? act->s.len : 0, alpha, beta);
    return mpri_fused_end(&f, 3);
}

static mpr_status emit_gemm_fast_gelu(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    Value *y = mpri_fused_op(&f, OP_MatMul, NULL, fused_in(&f, 0), fused_in(&f, 1));
    out[0] = gelu(&f, mpri_fused_add(&f, y, fused_in(&f, 2)), "tanh");
    return mpri_fused_end(&f, 3);
}

/* ---- normalisations */

static void layer_norm(Fused *f, Value *x, Value *scale, Value *bias, float epsilon, int n_out,
                       Value **out)
{
    LayerNormParams p = {.axis = -1, .epsilon = epsilon, .stash_type = MPR_FLOAT32};
    build(f, OP_LayerNormalization, &p, bias ? 3 : 2, (Value *const[]){x, scale, bias}, n_out, out);
}

static mpr_status emit_skip_layer_norm(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    float epsilon = mpri_fused_float(&f, "epsilon", 1e-12f);
    Value *sum = mpri_fused_add(&f, fused_in(&f, 0), fused_in(&f, 1));
    sum = mpri_fused_add(&f, sum, fused_in(&f, 4));
    bool statistics = fused_wants(&f, 1) || fused_wants(&f, 2);
    layer_norm(&f, sum, fused_in(&f, 2), fused_in(&f, 3), epsilon, statistics ? 3 : 1, out);
    out[3] = sum;
    return mpri_fused_end(&f, 5);
}

static mpr_status rms_norm(Fused *f, Value *x, Value *scale, int64_t axis, float epsilon,
                           int inverse, Value **out)
{
    LayerNormParams p = {.axis = axis, .epsilon = epsilon, .stash_type = MPR_FLOAT32};
    out[0] = mpri_fused_op(f, OP_RMSNormalization, &p, x, scale);
    if (inverse >= 0 && fused_wants(f, inverse))
        f->d->opaque_why = "the inverse deviation as an output";
    return f->b.failed;
}

static mpr_status emit_skip_rms_norm(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    float epsilon = mpri_fused_float(&f, "epsilon", 1e-12f);
    Value *sum = mpri_fused_add(&f, fused_in(&f, 0), fused_in(&f, 1));
    sum = mpri_fused_add(&f, sum, fused_in(&f, 3));
    TRY(rms_norm(&f, sum, fused_in(&f, 2), -1, epsilon, 2, out));
    if (fused_wants(&f, 1)) d->opaque_why = "the mean as an output";
    out[3] = sum;
    return mpri_fused_end(&f, 4);
}

static mpr_status emit_rms_norm(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    float epsilon = mpri_fused_float(&f, "epsilon", 1e-5f);
    int64_t axis = mpri_fused_int(&f, "axis", -1);
    mpri_adapt_take(d, "stash_type");
    TRY(rms_norm(&f, fused_in(&f, 0), fused_in(&f, 1), axis, epsilon, 1, out));
    return mpri_fused_end(&f, 2);
}

/* ---- embeddings */

static Value *rows_of(Fused *f, Value *table, Value *ids)
{
    return table && ids ? mpri_fused_op(f, OP_Gather, &(AxisParams){.axis = 0}, table, ids) : NULL;
}

/* Inputs ids, segments, words, places, kinds, gamma, beta, mask, positions. Output 1 counts the
 * ones of the mask, output 2 is the sum before the normalisation. */
static mpr_status emit_embed(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    float epsilon = mpri_fused_float(&f, "epsilon", 1e-12f);
    Value *ids = fused_in(&f, 0), *segments = fused_in(&f, 1), *mask = fused_in(&f, 7);
    Value *positions = fused_in(&f, 8);
    if (mpri_fused_int(&f, "mask_index_type", 1) != 1)
        d->opaque_why = "a mask index of another type";
    if (!ids) return mpri_fused_end(&f, 9);
    if (!positions) positions = mpri_fused_range(&f, mpri_fused_dim(&f, ids, 1));
    Value *sum = mpri_fused_add(&f, rows_of(&f, fused_in(&f, 2), ids),
                                rows_of(&f, fused_in(&f, 3), positions));
    if (segments) sum = mpri_fused_add(&f, sum, rows_of(&f, fused_in(&f, 4), segments));
    layer_norm(&f, sum, fused_in(&f, 5), fused_in(&f, 6), epsilon, 1, out);
    if (fused_wants(&f, 1)) {
        static const int64_t last = 1;
        static const int32_t none;
        Value *count = mask;
        if (!mask) {
            ConstantOfShapeParams zero = {
                .value = {.dtype = MPR_INT32, .shape = {.rank = 1, .d = {1}}, .data = &none}};
            count = mpri_fused_op(&f, OP_ConstantOfShape, &zero,
                                  mpri_fused_op(&f, OP_Shape,
                                                &(ShapeParams){.end = INT64_MAX}, ids, NULL), NULL);
        }
        out[1] = mpri_fused_op(&f, OP_ReduceSum, &(ReduceParams){.keepdims = 0}, count,
                               mpri_build_i64s(&f.b, 1, &last));
    }
    out[2] = sum;
    return mpri_fused_end(&f, 9);
}

static Value *compared(Fused *f, int op, Value *a, int64_t c)
{
    return mpri_fused_op(f, op, NULL, a, mpri_build_scalar(&f->b, MPR_INT64, (double)c));
}

/* Bucket of each distance, as T5 has them: exact ones first, then on a logarithmic scale. */
static Value *buckets_of(Fused *f, Value *distance, int64_t buckets, int64_t max_distance)
{
    int64_t exact = buckets / 2;
    DType t = MPR_FLOAT32;
    Builder *b = &f->b;
    Value *floor_of = compared(f, OP_Max, distance, exact); /* keeps the logarithm finite */
    Value *ratio = times(f, mpri_build_cast(b, floor_of, t), 1 / (double)exact);
    Value *steps = times(f, mpri_fused_op(f, OP_Log, NULL, ratio, NULL),
                         (double)(buckets - exact) / log((double)max_distance / (double)exact));
    Value *large = compared(f, OP_Add, mpri_build_cast(b, steps, MPR_INT64), exact);
    large = compared(f, OP_Min, large, buckets - 1);
    Value *in[3] = {compared(f, OP_Less, distance, exact), distance, large};
    return build(f, OP_Where, NULL, 3, in, 1, NULL);
}

/* Inputs table [buckets, heads], query length, key length; output [1, heads, queries, keys]. */
static mpr_status emit_relative_bias(Draft *d, Value **out, Err *err)
{
    static const int64_t row[] = {0}, column[] = {1}, front[] = {2, 0, 1};
    Fused f;
    mpri_fused_begin(&f, d, err);
    int64_t far = mpri_fused_int(&f, "max_distance", 128);
    bool both = mpri_fused_int(&f, "is_bidirectional", 0) != 0;
    Value *table = fused_in(&f, 0), *q = fused_in(&f, 1), *k = fused_in(&f, 2);
    Dim count = table && table->shape.rank == 2 ? table->shape.d[0] : -1;
    if (count < (both ? 4 : 2) || !q || !k || far <= (both ? count / 4 : count / 2)) {
        d->opaque_why = "a table of unknown size";
        return MPR_OK;
    }
    q = mpri_fused_unsqueeze(&f, mpri_fused_range(&f, mpri_build_cast(&f.b, q, MPR_INT64)), 1,
                             column);
    k = mpri_fused_unsqueeze(&f, mpri_fused_range(&f, mpri_build_cast(&f.b, k, MPR_INT64)), 1, row);
    Value *ahead = mpri_fused_op(&f, OP_Sub, NULL, k, q), *side = NULL, *distance;
    if (both) {
        count /= 2;
        Value *after = mpri_build_cast(&f.b, compared(&f, OP_Greater, ahead, 0), MPR_INT64);
        side = compared(&f, OP_Mul, after, count);
        distance = mpri_fused_op(&f, OP_Abs, NULL, ahead, NULL);
    } else {
        distance = compared(&f, OP_Max, mpri_fused_op(&f, OP_Neg, NULL, ahead, NULL), 0);
    }
    Value *at = mpri_fused_add(&f, buckets_of(&f, distance, count, far), side);
    Value *bias = mpri_fused_op(&f, OP_Transpose, &(TransposeParams){.perm = {3, front}},
                                rows_of(&f, table, at), NULL);
    out[0] = mpri_fused_unsqueeze(&f, bias, 1, row);
    return mpri_fused_end(&f, 3);
}

/* Inputs data, bias, residual, ratio, training_mode. */
static mpr_status emit_bias_dropout(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    DropoutParams p = {.seed = mpri_fused_int(&f, "seed", 0)};
    Value *in[3] = {mpri_fused_add(&f, fused_in(&f, 0), fused_in(&f, 1)), fused_in(&f, 3),
                    fused_in(&f, 4)};
    build(&f, OP_Dropout, &p, 3, in, fused_wants(&f, 1) ? 2 : 1, out);
    out[0] = mpri_fused_add(&f, out[0], fused_in(&f, 2));
    return mpri_fused_end(&f, 5);
}

/* ---- table */

static const struct {
    const char *domain, *op;
    EmitFn emit;
} rows[] = {
    {"com.microsoft", "Gelu", emit_gelu},
    {"com.microsoft", "BiasGelu", emit_gelu},
    {"com.microsoft", "FastGelu", emit_gelu},
    {"com.microsoft", "QuickGelu", emit_quick_gelu},
    {"com.microsoft", "FusedMatMul", emit_matmul},
    {"com.microsoft", "TransposeMatMul", emit_matmul},
    {"com.microsoft", "FusedGemm", emit_gemm},
    {"com.microsoft", "GemmFastGelu", emit_gemm_fast_gelu},
    {"com.microsoft", "SkipLayerNormalization", emit_skip_layer_norm},
    {"com.microsoft", "SkipSimplifiedLayerNormalization", emit_skip_rms_norm},
    {"com.microsoft", "SimplifiedLayerNormalization", emit_rms_norm},
    {"", "SimplifiedLayerNormalization", emit_rms_norm},
    {"com.microsoft", "EmbedLayerNormalization", emit_embed},
    {"com.microsoft", "RelativePositionBias", emit_relative_bias},
    {"com.microsoft", "BiasDropout", emit_bias_dropout},
    {"com.microsoft", "Attention", mpri_fused_attention},
    {"com.microsoft", "MultiHeadAttention", mpri_fused_multi_head},
    {"com.microsoft", "GroupQueryAttention", mpri_fused_group_query},
    {"com.microsoft", "RotaryEmbedding", mpri_fused_rotary},
};

const char *mpri_microsoft_op(int i, const char **domain)
{
    if (i >= (int)(sizeof rows / sizeof rows[0])) return NULL;
    *domain = rows[i].domain;
    return rows[i].op;
}

EmitFn mpri_microsoft_find(const char *domain, const char *op_type)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(rows[i].domain, domain) && !strcmp(rows[i].op, op_type)) return rows[i].emit;
    return NULL;
}
