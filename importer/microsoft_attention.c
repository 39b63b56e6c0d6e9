/* com.microsoft's attention operators become projections, masks and the standard's Attention and
 * RotaryEmbedding. Reference: docs/ContribOperators.md of onnxruntime.
 *
 * A padding mask adds mask_filter_value (-10000) there, it does not remove the key: a query whose
 * keys are all padding sees them all alike, so the mask is a float one here too. Causality removes
 * keys on both sides. */
#include <string.h>

#include "importer/microsoft.h"

typedef struct Heads { /* an attention being put together */
    Value *q, *k, *v; /* [batch, tokens, heads * size] */
    Value *past_k, *past_v, *mask; /* each may be NULL */
    AttentionParams p;
} Heads;

static Dim last_dim(const Value *v)
{
    return v && v->shape.rank > 0 ? v->shape.d[v->shape.rank - 1] : -1;
}

static Value *attend(Fused *f, const Heads *a, int n_out, Value **out)
{
    Value *in[6] = {a->q, a->k, a->v, a->mask, a->past_k, a->past_v};
    int n_in = a->past_k ? 6 : a->mask ? 4 : 3;
    return mpri_build(&f->b, OP_Attention, &a->p, n_in, in, n_out, out);
}

/* ---- masks */

/* Keys in all: those of this call and the past ones, [1]. */
static Value *total_keys(Fused *f, const Heads *a)
{
    Value *n = mpri_fused_dim(f, a->k, 1);
    return a->past_k ? mpri_fused_op(f, OP_Add, NULL, n, mpri_fused_dim(f, a->past_k, 2)) : n;
}

/* Keys below the ends [batch] and, when they are given, not below the starts. */
static Value *between(Fused *f, const Heads *a, Value *ends, Value *starts)
{
    static const int64_t items[] = {-1, 1, 1, 1};
    Value *keys = mpri_fused_range(f, total_keys(f, a));
    ends = mpri_fused_reshape(f, mpri_build_cast(&f->b, ends, MPR_INT64), 4, items);
    Value *seen = mpri_fused_op(f, OP_Less, NULL, keys, ends);
    if (!starts) return seen;
    starts = mpri_fused_reshape(f, mpri_build_cast(&f->b, starts, MPR_INT64), 4, items);
    return mpri_fused_op(f, OP_And, NULL, seen,
                         mpri_fused_op(f, OP_GreaterOrEqual, NULL, keys, starts));
}

/* Which keys count, broadcastable to [batch, heads, queries, keys]; NULL with a reason when the
 * form of the mask is not known. */
static Value *seen_keys(Fused *f, const Heads *a, Value *mask)
{
    static const int64_t two[] = {1, 2}, one[] = {1};
    Dim batch = a->q->shape.rank > 0 ? a->q->shape.d[0] : -1, n = last_dim(mask);
    Value *half[2];
    switch (mask->shape.rank) {
    case 1:
        if (n == batch || (n >= 0 && batch < 0)) return between(f, a, mask, NULL);
        if (!mpri_dim_const(n) || !mpri_dim_const(batch) || n != 2 * batch) break;
        mpri_fused_split(f, mask, 0, 2, NULL, half);
        return between(f, a, half[0], half[1]);
    case 2:
        return mpri_fused_unsqueeze(f, mpri_build_cast(&f->b, mask, MPR_BOOL), 2, two);
    case 3:
        return mpri_fused_unsqueeze(f, mpri_build_cast(&f->b, mask, MPR_BOOL), 1, one);
    default: break;
    }
    f->d->opaque_why = "a padding mask of this form";
    return NULL;
}

/* The padding mask as what is added, together with the bias that is added anyway. */
static void add_masks(Fused *f, Heads *a, Value *padding, Value *bias)
{
    double off = (double)mpri_fused_float(f, "mask_filter_value", -10000);
    DType t = a->q && a->q->dtype ? a->q->dtype : MPR_FLOAT32;
    a->mask = bias;
    Value *seen = padding && a->q && a->k ? seen_keys(f, a, padding) : NULL;
    if (!seen) return;
    Value *in[3] = {seen, mpri_build_scalar(&f->b, t, 0), mpri_build_scalar(&f->b, t, off)};
    Value *added = mpri_build(&f->b, OP_Where, NULL, 3, in, 1, NULL);
    a->mask = mpri_fused_add(f, added, bias);
}

/* ---- Attention: one projection for all three */

/* past [2, batch, heads, tokens, size] in two, and present from two. */
static void unpack_past(Fused *f, Heads *a, Value *past)
{
    static const int64_t front = 0;
    Value *part[2];
    mpri_fused_split(f, past, 0, 2, NULL, part);
    a->past_k = mpri_fused_op(f, OP_Squeeze, NULL, part[0], mpri_build_i64s(&f->b, 1, &front));
    a->past_v = mpri_fused_op(f, OP_Squeeze, NULL, part[1], mpri_build_i64s(&f->b, 1, &front));
}

static Value *pack_present(Fused *f, Value *k, Value *v)
{
    static const int64_t front = 0;
    return mpri_fused_op(f, OP_Concat, &(AxisParams){.axis = 0},
                         mpri_fused_unsqueeze(f, k, 1, &front),
                         mpri_fused_unsqueeze(f, v, 1, &front));
}

static void refuse_flag(Fused *f, const char *name, const char *why)
{
    if (mpri_fused_int(f, name, 0) > 0) f->d->opaque_why = why;
}

/* Inputs input, weights, bias, mask_index, past, attention_bias. */
mpr_status mpri_fused_attention(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    Heads a = {.p = {.left_window = -1, .right_window = -1}};
    Value *x = fused_in(&f, 0), *part[3] = {NULL}, *got[3] = {NULL};
    int64_t heads = mpri_fused_int(&f, "num_heads", 0);
    Ints sizes = {0};
    mpri_adapt_take_ints(d, "qkv_hidden_sizes", &sizes, err);
    a.p.q_num_heads = a.p.kv_num_heads = heads;
    a.p.is_causal = mpri_fused_int(&f, "unidirectional", 0) != 0;
    a.p.scale = mpri_fused_float(&f, "scale", 0);
    refuse_flag(&f, "do_rotary", "rotary positions inside Attention");
    refuse_flag(&f, "past_present_share_buffer", "past and present in one buffer");
    mpri_adapt_take(d, "rotary_embedding_dim");
    if (heads < 1) d->opaque_why = "no number of heads";
    if (d->opaque_why || !x) return mpri_fused_end(&f, 6);
    x = mpri_fused_op(&f, OP_MatMul, NULL, x, fused_in(&f, 1));
    x = mpri_fused_add(&f, x, fused_in(&f, 2));
    if (x) mpri_fused_split(&f, x, -1, 3, sizes.n == 3 ? sizes.v : NULL, part);
    a.q = part[0], a.k = part[1], a.v = part[2];
    if (fused_in(&f, 4)) unpack_past(&f, &a, fused_in(&f, 4));
    add_masks(&f, &a, fused_in(&f, 3), fused_in(&f, 5));
    if (d->opaque_why) return f.b.failed;
    attend(&f, &a, fused_wants(&f, 1) ? 3 : 1, got);
    out[0] = got[0];
    if (fused_wants(&f, 1)) out[1] = pack_present(&f, got[1], got[2]);
    return mpri_fused_end(&f, 6);
}

/* ---- MultiHeadAttention: three inputs */

/* [batch, tokens, heads, n, size] into n of [batch, tokens, heads * size]. */
static void unpack_heads(Fused *f, Value *x, int n, Value **out)
{
    static const int64_t flat[] = {0, 0, -1};
    Value *part[3] = {NULL};
    mpri_fused_split(f, x, 3, n, NULL, part);
    for (int i = 0; i < n; i++) out[i] = mpri_fused_reshape(f, part[i], 3, flat);
}

/* [batch, heads, tokens, size] becomes [batch, tokens, heads * size]. */
static Value *flat_heads(Fused *f, Value *x)
{
    static const int64_t swap[] = {0, 2, 1, 3}, flat[] = {0, 0, -1};
    if (!x || x->shape.rank != 4) return x;
    x = mpri_fused_op(f, OP_Transpose, &(TransposeParams){.perm = {4, swap}}, x, NULL);
    return mpri_fused_reshape(f, x, 3, flat);
}

static bool take_operands(Fused *f, Heads *a)
{
    Value *q = fused_in(f, 0), *k = fused_in(f, 1), *v = fused_in(f, 2), *part[3] = {NULL};
    int rank = q ? q->shape.rank : -1, rank_k = k ? k->shape.rank : -1;
    if (rank == 5 && !k && !v) {
        unpack_heads(f, q, 3, part);
        *a = (Heads){part[0], part[1], part[2], .p = a->p};
    } else if (rank == 3 && rank_k == 5 && !v) {
        unpack_heads(f, k, 2, part);
        *a = (Heads){q, part[0], part[1], .p = a->p};
    } else if (rank == 3 && k && v && (rank_k == 3 || rank_k == 4)) {
        *a = (Heads){q, flat_heads(f, k), flat_heads(f, v), .p = a->p};
    } else {
        f->d->opaque_why = "query, key and value of these ranks";
        return false;
    }
    return true;
}

/* bias: those of the three projections, one behind the other. */
static void add_projection_bias(Fused *f, Heads *a, Value *bias)
{
    int64_t sizes[3] = {last_dim(a->q), last_dim(a->k), last_dim(a->v)};
    bool known = mpri_dim_const(sizes[0]) && mpri_dim_const(sizes[1]) && mpri_dim_const(sizes[2]) &&
                 sizes[0] >= 0 && sizes[1] >= 0 && sizes[2] >= 0;
    Value *part[3] = {NULL};
    mpri_fused_split(f, bias, 0, 3, known ? sizes : NULL, part);
    a->q = mpri_fused_add(f, a->q, part[0]);
    a->k = mpri_fused_add(f, a->k, part[1]);
    a->v = mpri_fused_add(f, a->v, part[2]);
}

/* Inputs query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value. */
mpr_status mpri_fused_multi_head(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    Heads a = {.p = {.left_window = -1, .right_window = -1}};
    a.p.q_num_heads = a.p.kv_num_heads = mpri_fused_int(&f, "num_heads", 0);
    a.p.is_causal = mpri_fused_int(&f, "unidirectional", 0) != 0;
    a.p.scale = mpri_fused_float(&f, "scale", 0);
    if (a.p.q_num_heads < 1) d->opaque_why = "no number of heads";
    if (d->opaque_why || !take_operands(&f, &a)) return f.b.failed;
    if (fused_in(&f, 3)) add_projection_bias(&f, &a, fused_in(&f, 3));
    a.past_k = fused_in(&f, 6);
    a.past_v = fused_in(&f, 7);
    add_masks(&f, &a, fused_in(&f, 4), fused_in(&f, 5));
    if (fused_wants(&f, 3)) d->opaque_why = "the scores as an output";
    if (d->opaque_why) return f.b.failed;
    attend(&f, &a, fused_wants(&f, 1) || fused_wants(&f, 2) ? 3 : 1, out);
    return mpri_fused_end(&f, 8);
}

/* ---- GroupQueryAttention and RotaryEmbedding */

static Value *rotated(Fused *f, Value *x, Value *cosine, Value *sine, Value *positions,
                      RotaryParams p)
{
    Dim half = last_dim(cosine);
    if (p.dim == 0 && mpri_dim_const(half) && half > 0) p.dim = 2 * half;
    return mpri_build(&f->b, OP_RotaryEmbedding, &p, 4,
                      (Value *const[]){x, cosine, sine, positions}, 1, NULL);
}

/* Positions [1, tokens] that follow the past ones. n, first: int64 [1], first may be NULL. */
static Value *positions_from(Fused *f, Value *n, Value *first)
{
    static const int64_t front = 0;
    Value *at = mpri_fused_add(f, mpri_fused_range(f, n), first);
    return mpri_fused_unsqueeze(f, at, 1, &front);
}

/* Query, key and value behind one another in the last dim of q. */
static bool unpack_groups(Fused *f, Heads *a)
{
    Dim hidden = last_dim(a->q);
    int64_t all = a->p.q_num_heads + 2 * a->p.kv_num_heads;
    if (!mpri_dim_const(hidden) || hidden < 0 || hidden % all != 0) {
        f->d->opaque_why = "packed heads of unknown size";
        return false;
    }
    int64_t size = hidden / all;
    int64_t sizes[3] = {size * a->p.q_num_heads, size * a->p.kv_num_heads,
                        size * a->p.kv_num_heads};
    Value *part[3] = {NULL};
    mpri_fused_split(f, a->q, -1, 3, sizes, part);
    a->q = part[0], a->k = part[1], a->v = part[2];
    return true;
}

static void take_group_attributes(Fused *f, Heads *a)
{
    static const char *const defaults[] = {"k_quant_type", "v_quant_type", "kv_cache_bit_width"};
    a->p.q_num_heads = mpri_fused_int(f, "num_heads", 0);
    a->p.kv_num_heads = mpri_fused_int(f, "kv_num_heads", 0);
    a->p.is_causal = 1;
    a->p.scale = mpri_fused_float(f, "scale", 0);
    a->p.softcap = mpri_fused_float(f, "softcap", 0);
    int64_t window = mpri_fused_int(f, "local_window_size", -1);
    a->p.left_window = window > 0 ? window - 1 : -1;
    a->p.right_window = -1;
    refuse_flag(f, "smooth_softmax", "a smooth softmax");
    refuse_flag(f, "qk_output", "the scores as an output");
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        const AttributeProto *q = mpri_adapt_take(f->d, defaults[i]);
        bool none = !q || (q->has_s && q->s.len == 4 && !memcmp(q->s.data, "NONE", 4)) ||
                    (!q->has_s && q->i == 0);
        if (!none) f->d->opaque_why = "quantised keys and values";
    }
    if (a->p.q_num_heads < 1 || a->p.kv_num_heads < 1) f->d->opaque_why = "no number of heads";
}

/* Inputs query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos, sin,
 * positions, attention_bias. Padding stands behind the tokens, where causality hides it, so the
 * lengths say nothing more. */
mpr_status mpri_fused_group_query(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    Heads a = {.q = fused_in(&f, 0), .k = fused_in(&f, 1), .v = fused_in(&f, 2)};
    RotaryParams turn = {.interleaved = mpri_fused_int(&f, "rotary_interleaved", 0) != 0};
    bool rotary = mpri_fused_int(&f, "do_rotary", 0) != 0;
    take_group_attributes(&f, &a);
    if (d->opaque_why || !a.q) return f.b.failed;
    if (!a.k && !unpack_groups(&f, &a)) return f.b.failed;
    a.past_k = fused_in(&f, 3);
    a.past_v = fused_in(&f, 4);
    if (rotary) {
        Value *cosine = fused_in(&f, 7), *sine = fused_in(&f, 8), *at = fused_in(&f, 9);
        if (!at)
            at = positions_from(&f, mpri_fused_dim(&f, a.q, 1),
                                a.past_k ? mpri_fused_dim(&f, a.past_k, 2) : NULL);
        turn.num_heads = a.p.q_num_heads;
        a.q = rotated(&f, a.q, cosine, sine, at, turn);
        turn.num_heads = a.p.kv_num_heads;
        a.k = rotated(&f, a.k, cosine, sine, at, turn);
    }
    a.mask = fused_in(&f, 10);
    attend(&f, &a, fused_wants(&f, 1) || fused_wants(&f, 2) ? 3 : 1, out);
    return mpri_fused_end(&f, 11);
}

/* Inputs x, positions ([batch, tokens], or the first one), cos, sin. */
mpr_status mpri_fused_rotary(Draft *d, Value **out, Err *err)
{
    Fused f;
    mpri_fused_begin(&f, d, err);
    RotaryParams p = {.interleaved = mpri_fused_int(&f, "interleaved", 0) != 0,
                      .num_heads = mpri_fused_int(&f, "num_heads", 0),
                      .dim = mpri_fused_int(&f, "rotary_embedding_dim", 0)};
    Value *x = fused_in(&f, 0), *at = fused_in(&f, 1), *cosine = fused_in(&f, 2);
    int rank = x ? x->shape.rank : -1;
    if (mpri_fused_float(&f, "scale", 1) != 1.0f) d->opaque_why = "a scale";
    refuse_flag(&f, "is_packed_batching", "packed batching");
    if (rank != 3 && rank != 4) d->opaque_why = "an input of unknown rank";
    if (rank == 3 && p.num_heads == 0 && p.dim == 0 && last_dim(cosine) > 0 &&
        mpri_dim_const(last_dim(x)) && mpri_dim_const(last_dim(cosine)))
        p.num_heads = last_dim(x) / (2 * last_dim(cosine));
    if (!at || (at->shape.rank != 1 && at->shape.rank != 2))
        d->opaque_why = "positions of this rank";
    if (d->opaque_why) return f.b.failed;
    if (at->shape.rank == 1)
        at = positions_from(&f, mpri_fused_dim(&f, x, rank == 4 ? 2 : 1),
                            mpri_build_cast(&f.b, at, MPR_INT64));
    out[0] = rotated(&f, x, cosine, fused_in(&f, 3), at, p);
    return mpri_fused_end(&f, 4);
}
