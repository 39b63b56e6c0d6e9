/* Scaled dot-product attention (Vaswani et al., 2017) with grouped heads, masks, softcap, a window
 * and past keys: ONNX Attention, the meaning of opset 25. A query that sees no key gives zeros and
 * takes no gradient.
 *
 * The backward pass keeps the output and the log-sum-exp of each row, an output that only the
 * gradient rule asks for, and computes the probabilities again (Dao et al., "FlashAttention",
 * 2022). Trap: scale multiplies the product once here; the ONNX text multiplies q and k by its
 * root, which differs only where a product of that type would overflow. */
#include "runtime/op/rules.h"

enum { Q, K, V, MASK, PAST_K, PAST_V, LENGTHS, DY, Y, LSE, DSCORES, N_IN };
enum { OUT_Y, PRESENT_K, PRESENT_V, SCORES, OUT_LSE };

static const AttrRow attention_attrs[] = {
    ATTR(AttentionParams, scale, "scale", FLOAT),
    ATTR(AttentionParams, softcap, "softcap", FLOAT),
    ATTR_FLAG(AttentionParams, is_causal, "is_causal", 0),
    ATTR(AttentionParams, q_num_heads, "q_num_heads", INT, .max_int = INT32_MAX),
    ATTR(AttentionParams, kv_num_heads, "kv_num_heads", INT, .max_int = INT32_MAX),
    ATTR(AttentionParams, left_window, "left_window_size", INT, .def_int = -1, .min_int = -1,
         .max_int = INT32_MAX),
    ATTR(AttentionParams, right_window, "right_window_size", INT, .def_int = -1, .min_int = -1,
         .max_int = INT32_MAX),
    ATTR(AttentionParams, scores_mode, "qk_matmul_output_mode", INT, .max_int = 3),
    ATTR(AttentionParams, softmax_type, "softmax_precision", DTYPE),
    ATTR_END,
};

/* ---- shapes ---- */

typedef struct Sizes { /* fresh or unknown dims where the inputs do not say */
    bool packed;
    Dim batch, heads, kv_heads, queries, new_keys, keys, size, v_size;
} Sizes;

static mpr_status attribute_error(InferCtx *c, const char *name, int64_t found, const char *allowed)
{
    return mpri_err_set(c->err, MPR_E_SHAPE, "attribute %s is %lld; %s", name, (long long)found,
                        allowed);
}

/* hidden / heads of a packed input. */
static mpr_status head_size(InferCtx *c, int k, int64_t heads, const char *name, Dim *size)
{
    const Shape *s = op_shape(c, k);
    if (heads < 1) return attribute_error(c, name, heads, "inputs of rank 3 need a positive one");
    Dim hidden = s->rank == 3 ? s->d[2] : mpri_dim_fresh(c->sym);
    if (mpri_dim_const(hidden) && hidden % heads != 0)
        return mpri_op_shape_error(c, k, "the heads do not divide the last dim: heads", heads);
    *size = mpri_op_dim_div(c->sym, hidden, heads);
    return MPR_OK;
}

static Dim dim_of(InferCtx *c, int k, int i)
{
    const Shape *s = op_shape(c, k);
    return s->rank > i ? s->d[i] : mpri_dim_fresh(c->sym);
}

static mpr_status packed_sizes(InferCtx *c, Sizes *z)
{
    const AttentionParams *p = c->n->params;
    z->heads = p->q_num_heads;
    z->kv_heads = p->kv_num_heads;
    z->queries = dim_of(c, Q, 1);
    z->new_keys = dim_of(c, K, 1);
    TRY(head_size(c, Q, p->q_num_heads, "q_num_heads", &z->size));
    return head_size(c, V, p->kv_num_heads, "kv_num_heads", &z->v_size);
}

/* False when the rank of q is not known: then nothing can be said. */
static mpr_status sizes(InferCtx *c, Sizes *z, bool *known)
{
    int rank = op_shape(c, Q)->rank;
    *known = false;
    for (int k = Q; k <= V; k++) TRY(mpri_op_check_rank(c, k, 3, 4));
    if (rank < 0) return MPR_OK;
    for (int k = K; k <= V; k++) TRY(mpri_op_check_rank(c, k, rank, rank));
    z->packed = rank == 3;
    z->batch = dim_of(c, Q, 0);
    if (z->packed) {
        TRY(packed_sizes(c, z));
    } else {
        z->heads = dim_of(c, Q, 1);
        z->kv_heads = dim_of(c, K, 1);
        z->queries = dim_of(c, Q, 2);
        z->new_keys = dim_of(c, K, 2);
        z->size = dim_of(c, Q, 3);
        z->v_size = dim_of(c, V, 3);
    }
    if (mpri_dim_const(z->heads) && mpri_dim_const(z->kv_heads) &&
        (z->kv_heads == 0 ? z->heads != 0 : z->heads % z->kv_heads != 0))
        return mpri_op_shape_error(c, K, "query heads are no multiple of the key heads",
                                   z->heads);
    z->keys = op_in(c, PAST_K) ? mpri_op_dim_add(c->sym, dim_of(c, PAST_K, 2), z->new_keys)
                               : z->new_keys;
    *known = true;
    return MPR_OK;
}

static Shape shape4(Dim a, Dim b, Dim c, Dim d)
{
    return (Shape){.rank = 4, .d = {a, b, c, d}};
}

static mpr_status check_operands(InferCtx *c, const Sizes *z)
{
    for (int k = K; k <= V; k++) {
        Shape want = shape4(z->batch, z->kv_heads, z->new_keys, k == K ? z->size : z->v_size);
        if (z->packed)
            want = (Shape){.rank = 3, .d = {z->batch, z->new_keys,
                                            mpri_op_dim_mul(c->sym, z->kv_heads, want.d[3])}};
        TRY(mpri_op_expect_shape(c, k, &want, k == K ? "key" : "value"));
    }
    for (int k = PAST_K; k <= PAST_V; k++) {
        Shape want = shape4(z->batch, z->kv_heads, dim_of(c, PAST_K, 2),
                            k == PAST_K ? z->size : z->v_size);
        TRY(mpri_op_expect_shape(c, k, &want, k == PAST_K ? "past key" : "past value"));
    }
    return mpri_op_expect_shape(c, LENGTHS, &(Shape){.rank = 1, .d = {z->batch}}, "key lengths");
}

/* The last dim of the mask may be shorter than the keys. */
static mpr_status check_mask(InferCtx *c, const Sizes *z)
{
    const Shape *mask = op_shape(c, MASK);
    if (!op_in(c, MASK)) return MPR_OK;
    TRY(mpri_op_check_rank(c, MASK, 1, 4));
    if (mask->rank < 1) return MPR_OK;
    Dim last = mask->d[mask->rank - 1];
    if (mpri_dim_const(last) && mpri_dim_const(z->keys) && last > z->keys)
        return mpri_op_same_dim(c, "keys", MASK, last, K, z->keys);
    Shape want = shape4(z->batch, z->heads, z->queries, last);
    return mpri_op_expect_broadcast_to(c, MASK, &want, "attention mask");
}

static mpr_status check_inputs(InferCtx *c, Sizes *z, bool *known)
{
    for (int k = Q; k <= V; k++) TRY(mpri_op_check_type(c, k, TS_FLOAT));
    for (int k = PAST_K; k <= PAST_V; k++) TRY(mpri_op_check_type(c, k, TS_FLOAT));
    TRY(mpri_op_check_type(c, MASK, TS_FLOAT | TS_BOOL));
    TRY(mpri_op_check_type(c, LENGTHS, TS_INDEX));
    if (!op_in(c, PAST_K) != !op_in(c, PAST_V))
        return mpri_err_set(c->err, MPR_E_SHAPE,
                            "past keys and past values are given together or not at all");
    TRY(sizes(c, z, known));
    if (!*known) return MPR_OK;
    TRY(check_operands(c, z));
    return check_mask(c, z);
}

static mpr_status infer_attention(InferCtx *c)
{
    Sizes z = {0};
    bool known;
    DType t = op_type(c, Q);
    TRY(check_inputs(c, &z, &known));
    Shape y = shape4(z.batch, z.heads, z.queries, z.v_size), rows = shape4(z.batch, z.heads,
                                                                           z.queries, z.keys);
    Shape k = shape4(z.batch, z.kv_heads, z.keys, z.size), v = k;
    v.d[3] = z.v_size;
    if (known && z.packed)
        y = (Shape){.rank = 3,
                    .d = {z.batch, z.queries, mpri_op_dim_mul(c->sym, z.heads, z.v_size)}};
    TRY(mpri_infer_set(c, OUT_Y, t, known ? &y : NULL));
    TRY(mpri_infer_set(c, PRESENT_K, op_type(c, K), known ? &k : NULL));
    TRY(mpri_infer_set(c, PRESENT_V, op_type(c, V), known ? &v : NULL));
    TRY(mpri_infer_set(c, SCORES, t, known ? &rows : NULL));
    rows.rank = 3;
    return mpri_infer_set(c, OUT_LSE, mpri_op_wide(t), known ? &rows : NULL);
}

static mpr_status infer_attention_grad(InferCtx *c)
{
    static const int of[] = {Q, K, V, MASK, PAST_K, PAST_V};
    Sizes z = {0};
    bool known;
    TRY(check_inputs(c, &z, &known));
    for (int k = DY; k < N_IN; k++) TRY(mpri_op_check_type(c, k, TS_FLOAT));
    for (int i = 0; i < 6; i++)
        TRY(mpri_infer_set(c, i, op_type(c, of[i]), op_in(c, of[i]) ? op_shape(c, of[i]) : NULL));
    return MPR_OK;
}

/* ---- gradients ---- */

/* Tokens [from, to) of a cotangent of present keys or values, in the layout of `like`. */
static Value *part(GradCtx *c, Value *d, int64_t from, int64_t to, const Value *like)
{
    static const int64_t swap[] = {0, 2, 1, 3}, axis = 2;
    Builder *b = c->b;
    Value *in[4] = {d, mpri_build_i64s(b, 1, &from), mpri_build_i64s(b, 1, &to),
                    mpri_build_i64s(b, 1, &axis)};
    if (from != 0 || to != d->shape.d[2]) d = mpri_build(b, OP_Slice, NULL, 4, in, 1, NULL);
    if (d && like->shape.rank == 3)
        d = mpri_build1(b, OP_Transpose, &(TransposeParams){.perm = {4, swap}}, d);
    return mpri_op_grad_reshape_like(c, d, like);
}

/* What flows into new and past tokens through the outputs that hold both. */
static void add_present(GradCtx *c, Value *d, int fresh, int past)
{
    const Value *x = grad_in(c, fresh), *old = grad_in(c, past);
    int64_t n = old ? old->shape.d[2] : 0;
    if (!d) return;
    if (grad_needs(c, fresh)) {
        Value *more = part(c, d, n, d->shape.d[2], x), *have = c->dx[fresh];
        c->dx[fresh] = have ? mpri_op_grad_binary(c, OP_Add, have, more) : more;
    }
    if (grad_needs(c, past)) {
        Value *more = part(c, d, 0, n, old), *have = c->dx[past];
        c->dx[past] = have ? mpri_op_grad_binary(c, OP_Add, have, more) : more;
    }
}

/* The log-sum-exp of the forward node. Asking for it adds the outputs in front of it as well; those
 * that nobody wanted are dropped again, since their mere presence costs the fast kernel. */
static mpr_status ask_lse(GradCtx *c, Value **lse)
{
    bool there[OUT_LSE];
    for (int k = 0; k < OUT_LSE; k++) there[k] = k < c->n->n_out && c->n->out[k];
    TRY(mpri_op_grad_output(c, OUT_LSE, lse));
    for (int k = 0; k < OUT_LSE; k++)
        if (!there[k]) mpri_node_drop_output(c->b->g, c->n, k);
    return MPR_OK;
}

static mpr_status grad_attention(GradCtx *c)
{
    Value *in[N_IN] = {NULL}, *out[6];
    Value *dk = grad_dy(c, PRESENT_K), *dv = grad_dy(c, PRESENT_V);
    in[DY] = grad_dy(c, OUT_Y);
    in[DSCORES] = grad_dy(c, SCORES);
    bool mask = grad_needs(c, MASK), past = grad_in(c, PAST_K) != NULL;
    for (int k = Q; k <= LENGTHS; k++) in[k] = grad_in(c, k);
    if (in[DY] || in[DSCORES]) {
        in[Y] = c->n->out[OUT_Y];
        TRY(ask_lse(c, &in[LSE]));
        mpri_build(c->b, OP_AttentionGrad, c->n->params, N_IN, in, past ? 6 : mask ? 4 : 3, out);
        TRY(c->b->failed);
        for (int k = Q; k < (past ? 6 : mask ? 4 : 3); k++)
            if (grad_needs(c, k)) c->dx[k] = out[k];
    }
    add_present(c, dk, K, PAST_K);
    add_present(c, dv, V, PAST_V);
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_Attention = {
    MPRI_OP(Attention, "", "attention"),
    .help = "softmax(q k^T scale + mask) v by heads; a query that sees no key gives zeros",
    .min_in = 3, .max_in = 7, .min_out = 1, .max_out = 5, .optional_in = 0x78,
    PARAMS(AttentionParams, attention_attrs), .fixed_in = 1 << LENGTHS,
    .nondiff_in = 1 << LENGTHS, .cast_cuda = CAST_LOW, .cast_cpu = CAST_LOW,
    .infer = infer_attention, .grad_state = GRAD_FUNCTION, .grad = grad_attention,
};
const OpDef mpri_op_AttentionGrad = {
    MPRI_OP(AttentionGrad, "mpr", "attention"),
    .help = "(q, k, v, mask, past, lengths, dy, y, lse, dscores): dq, dk, dv, dmask, dpast",
    .min_in = 3, .max_in = N_IN, .min_out = 1, .max_out = 6, .optional_in = 0x7f8,
    PARAMS(AttentionParams, attention_attrs), .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_attention_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
