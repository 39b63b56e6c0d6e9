/* Rotary position embedding (Su et al., "RoFormer", 2021): pairs of elements of each head turn by
 * an angle that depends on the token, y1 = c x1 - s x2, y2 = s x1 + c x2. The gradient turns back,
 * so it is the same operator with -sin.
 *
 * Unlike the ONNX text, caches of a 16-bit x may stay f32, and a leading 1 of theirs is
 * broadcast over the batch, as PyTorch's exporter writes them. */
#include "runtime/op/rules.h"

enum { X, COS, SIN, POSITIONS };

static const AttrRow rotary_attrs[] = {
    ATTR_FLAG(RotaryParams, interleaved, "interleaved", 0),
    ATTR(RotaryParams, num_heads, "num_heads", INT, .max_int = INT32_MAX),
    ATTR(RotaryParams, dim, "rotary_embedding_dim", INT, .max_int = INT32_MAX),
    ATTR_END,
};

/* Size of a head when it is known, else a fresh dim. */
static mpr_status head_size(InferCtx *c, int x, Dim *size)
{
    const RotaryParams *p = c->n->params;
    const Shape *s = op_shape(c, x);
    *size = s->rank == 4 ? s->d[3] : mpri_dim_fresh(c->sym);
    if (s->rank != 3) return MPR_OK;
    if (p->num_heads < 1)
        return mpri_err_set(c->err, MPR_E_SHAPE,
                            "attribute num_heads is %lld; an input of rank 3 needs a positive one",
                            (long long)p->num_heads);
    if (mpri_dim_const(s->d[2]) && s->d[2] % p->num_heads != 0)
        return mpri_op_shape_error(c, x, "the heads do not divide the last dim: heads",
                                   p->num_heads);
    *size = mpri_op_dim_div(c->sym, s->d[2], p->num_heads);
    return MPR_OK;
}

static mpr_status check_caches(InferCtx *c, int x, Dim half)
{
    const Shape *s = op_shape(c, x);
    bool chosen = op_in(c, x + POSITIONS) != NULL;
    for (int k = x + COS; k <= x + SIN; k++) {
        TRY(mpri_op_check_rank(c, k, 2, chosen ? 2 : 3));
        const Shape *cache = op_shape(c, k);
        if (cache->rank < 0) continue;
        TRY(mpri_op_same_dim(c, "halves of what turns", k, cache->d[cache->rank - 1], x, half));
        if (chosen || s->rank < 0) continue;
        Shape want = {.rank = cache->rank};
        want.d[0] = s->d[0];
        want.d[want.rank - 2] = s->d[s->rank - 2];
        want.d[want.rank - 1] = cache->d[cache->rank - 1];
        TRY(mpri_op_expect_broadcast_to(c, k, &want, "cache"));
    }
    return mpri_op_expect_shape(c, x + SIN, op_shape(c, x + COS), "sine cache");
}

/* Inputs from x on: x, cos, sin, positions. */
static mpr_status check_inputs(InferCtx *c, int x)
{
    const RotaryParams *p = c->n->params;
    const Shape *s = op_shape(c, x);
    DType t = op_type(c, x);
    Dim size;
    TRY(mpri_op_check_type(c, x, TS_FLOAT));
    for (int k = x + COS; k <= x + SIN; k++)
        TRY(mpri_op_check_type(c, k, t ? TS(t) | TS(mpri_op_wide(t)) : TS_FLOAT));
    TRY(mpri_op_check_type(c, x + POSITIONS, TS_INDEX));
    TRY(mpri_op_check_rank(c, x, 3, 4));
    TRY(head_size(c, x, &size));
    if (p->dim % 2 != 0 || (mpri_dim_const(size) && (p->dim ? p->dim > size : size % 2 != 0)))
        return mpri_op_shape_error(c, x, "elements of a head that turn must be even and fit",
                                   p->dim ? p->dim : size);
    TRY(check_caches(c, x, p->dim ? p->dim / 2 : mpri_op_dim_div(c->sym, size, 2)));
    if (!op_in(c, x + POSITIONS)) return MPR_OK;
    TRY(mpri_op_check_rank(c, x + POSITIONS, 2, 2));
    if (s->rank < 0) return MPR_OK;
    Shape want = {.rank = 2, .d = {s->d[0], s->d[s->rank - 2]}};
    return mpri_op_expect_broadcast_to(c, x + POSITIONS, &want, "positions");
}

static mpr_status infer_rotary(InferCtx *c)
{
    TRY(check_inputs(c, X));
    return mpri_op_infer_same(c);
}

static mpr_status infer_rotary_grad(InferCtx *c)
{
    TRY(check_inputs(c, 1));
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_expect_shape(c, 0, op_shape(c, 1), "cotangent"));
    DType t = mpri_op_wide(op_type(c, 1));
    TRY(mpri_infer_set(c, 0, t, op_shape(c, 2)));
    return mpri_infer_set(c, 1, t, op_shape(c, 3));
}

static mpr_status grad_rotary(GradCtx *c)
{
    const RotaryParams *p = c->n->params;
    Value *cos = grad_in(c, COS), *sin = grad_in(c, SIN), *at = grad_in(c, POSITIONS), *out[2];
    if (grad_needs(c, X))
        c->dx[X] = mpri_build(c->b, OP_RotaryEmbedding, p, at ? 4 : 3,
                              (Value *const[]){c->dy[0], cos,
                                               mpri_op_grad_unary(c, OP_Neg, sin), at},
                              1, NULL);
    if (grad_needs(c, COS) || grad_needs(c, SIN)) {
        mpri_build(c->b, OP_RotaryGrad, p, at ? 5 : 4,
                   (Value *const[]){c->dy[0], grad_in(c, X), cos, sin, at}, 2, out);
        for (int k = COS; k <= SIN; k++)
            if (grad_needs(c, k)) c->dx[k] = out[k - COS];
    }
    return mpri_op_grad_done(c);
}

const OpDef mpri_op_RotaryEmbedding = {
    MPRI_OP(RotaryEmbedding, "", "rotary"),
    .help = "pairs of elements of each head turned by an angle per token",
    .min_in = 3, .max_in = 4, .min_out = 1, .max_out = 1, .optional_in = 8,
    PARAMS(RotaryParams, rotary_attrs), .fixed_in = 1 << COS | 1 << SIN | 1 << POSITIONS,
    .nondiff_in = 1 << POSITIONS, .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_rotary, .grad_state = GRAD_FUNCTION, .grad = grad_rotary,
};
const OpDef mpri_op_RotaryGrad = {
    MPRI_OP(RotaryGrad, "mpr", "rotary"), .help = "(dy, x, cos, sin, positions): dcos, dsin",
    .min_in = 4, .max_in = 5, .min_out = 1, .max_out = 2, .optional_in = 16,
    PARAMS(RotaryParams, rotary_attrs), .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_rotary_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
