/* Random tensors: normal, uniform, coin flips, draws from a distribution over classes. None has a
 * gradient. kernels/random_draw.h says which numbers come.
 *
 * Streams are numbered among these operators by the first inference, as those of Dropout are among
 * Dropouts; clones of the graph keep the numbers. */
#include <math.h>

#include "runtime/op/rules.h"

#define DRAW(T, Draw) \
    ATTR(T, Draw seed, "seed", FLOAT, .def_float = NAN), \
    ATTR(T, Draw stream, "stream", INT, .internal = true)
#define DISTRIBUTION(T, Draw, Default, A, DefaultA, B) \
    ATTR(T, Draw dtype, "dtype", DTYPE, .def_int = (Default)), \
    ATTR(T, Draw a, A, FLOAT, .def_float = (DefaultA)), ATTR(T, Draw b, B, FLOAT, .def_float = 1), \
    DRAW(T, Draw)
#define SHAPE ATTR(RandomShapedParams, shape, "shape", INTS, .required = true)

static const AttrRow normal_attrs[] = {
    DISTRIBUTION(RandomShapedParams, r., MPR_FLOAT32, "mean", 0, "scale"), SHAPE, ATTR_END};
static const AttrRow uniform_attrs[] = {
    DISTRIBUTION(RandomShapedParams, r., MPR_FLOAT32, "low", 0, "high"), SHAPE, ATTR_END};
static const AttrRow normal_like_attrs[] = {
    DISTRIBUTION(RandomParams, , 0, "mean", 0, "scale"), ATTR_END};
static const AttrRow uniform_like_attrs[] = {
    DISTRIBUTION(RandomParams, , 0, "low", 0, "high"), ATTR_END};
static const AttrRow bernoulli_attrs[] = {
    ATTR(BernoulliParams, dtype, "dtype", DTYPE), DRAW(BernoulliParams, ), ATTR_END};
static const AttrRow multinomial_attrs[] = {
    ATTR(MultinomialParams, dtype, "dtype", DTYPE, .def_int = MPR_INT32),
    ATTR(MultinomialParams, sample_size, "sample_size", INT, .def_int = 1, .min_int = 0,
         .max_int = INT32_MAX),
    DRAW(MultinomialParams, ),
    ATTR_END,
};

/* ---- streams ---- */

static int64_t *stream_of(Node *n)
{
    switch (n->op->id) {
    case OP_RandomNormal:
    case OP_RandomUniform: return &((RandomShapedParams *)n->params)->r.stream;
    case OP_RandomNormalLike:
    case OP_RandomUniformLike: return &((RandomParams *)n->params)->stream;
    case OP_Bernoulli: return &((BernoulliParams *)n->params)->stream;
    case OP_Multinomial: return &((MultinomialParams *)n->params)->stream;
    default: return NULL;
    }
}

static void number_stream(InferCtx *c)
{
    int64_t last = 0, *own = stream_of(c->n);
    if (*own) return;
    for (Node *n = c->g->first; n; n = n->next) {
        const int64_t *s = stream_of(n);
        if (s && *s > last) last = *s;
    }
    *own = last + 1;
}

/* ---- shape rules ---- */

static mpr_status check_result(InferCtx *c, DType t, TypeSet set)
{
    if (t == MPR_DTYPE_NONE || (set & TS(t))) return MPR_OK;
    return mpri_err_set(c->err, MPR_E_TYPE, "attribute dtype is %s, which %s does not draw",
                        mpri_dtype_name(t), c->n->op->name);
}

static mpr_status infer_shaped(InferCtx *c)
{
    const RandomShapedParams *p = c->n->params;
    Shape out;
    number_stream(c);
    TRY(mpri_op_dims_shape(c, p->shape, &out));
    TRY(check_result(c, (DType)p->r.dtype, TS_FLOAT));
    return mpri_infer_set(c, 0, (DType)p->r.dtype, &out);
}

static mpr_status infer_like(InferCtx *c)
{
    const RandomParams *p = c->n->params;
    DType t = p->dtype ? (DType)p->dtype : op_type(c, 0);
    number_stream(c);
    TRY(check_result(c, t, TS_FLOAT));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status infer_bernoulli(InferCtx *c)
{
    const BernoulliParams *p = c->n->params;
    DType t = p->dtype ? (DType)p->dtype : op_type(c, 0);
    number_stream(c);
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(check_result(c, t, TS_NUMBER | TS_BOOL));
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status infer_multinomial(InferCtx *c)
{
    const MultinomialParams *p = c->n->params;
    const Shape *x = op_shape(c, 0);
    number_stream(c);
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_check_rank(c, 0, 2, 2));
    TRY(check_result(c, (DType)p->dtype, TS_INDEX));
    if (x->rank == 2 && x->d[1] == 0)
        return mpri_op_shape_error(c, 0, "classes of Multinomial, allowed: at least 1", 0);
    Shape out = {.rank = 2, .d = {x->rank == 2 ? x->d[0] : mpri_dim_fresh(c->sym), p->sample_size}};
    return mpri_infer_set(c, 0, (DType)p->dtype, &out);
}

/* ---- definitions ---- */

#define RANDOM \
    .min_out = 1, .max_out = 1, .flags = OPF_RANDOM, .cast_cuda = CAST_FIXED, \
    .cast_cpu = CAST_FIXED, .grad_state = GRAD_ZERO
#define OF_INPUT RANDOM, .min_in = 1, .max_in = 1, .nondiff_in = 1

const OpDef mpri_op_RandomNormal = {
    MPRI_OP(RandomNormal, "", "random"), .help = "normally distributed numbers", RANDOM,
    PARAMS(RandomShapedParams, normal_attrs), .infer = infer_shaped,
};
const OpDef mpri_op_RandomUniform = {
    MPRI_OP(RandomUniform, "", "random"), .help = "numbers between low and high", RANDOM,
    PARAMS(RandomShapedParams, uniform_attrs), .infer = infer_shaped,
};
const OpDef mpri_op_RandomNormalLike = {
    MPRI_OP(RandomNormalLike, "", "random"),
    .help = "normally distributed numbers in the shape of the input", OF_INPUT,
    PARAMS(RandomParams, normal_like_attrs), .infer = infer_like,
};
const OpDef mpri_op_RandomUniformLike = {
    MPRI_OP(RandomUniformLike, "", "random"),
    .help = "numbers between low and high in the shape of the input", OF_INPUT,
    PARAMS(RandomParams, uniform_like_attrs), .infer = infer_like,
};
const OpDef mpri_op_Bernoulli = {
    MPRI_OP(Bernoulli, "", "random"), .help = "1 with the probability that the input holds",
    OF_INPUT, PARAMS(BernoulliParams, bernoulli_attrs), .infer = infer_bernoulli,
};
const OpDef mpri_op_Multinomial = {
    MPRI_OP(Multinomial, "", "random"), .help = "classes drawn by unnormalised log-probabilities",
    OF_INPUT, PARAMS(MultinomialParams, multinomial_attrs), .infer = infer_multinomial,
};
