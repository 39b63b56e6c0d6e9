/* RNN, GRU (Cho et al., 2014) and LSTM (Hochreiter & Schmidhuber, 1997) over whole sequences.
 *
 * Inputs x, w, r, b?, lengths?, h0?, and for LSTM c0?, p?; outputs y?, y_h?, y_c?. Gates stand one
 * behind the other in w, r and b: zrh in a GRU, iofc in an LSTM. The gradient runs the cell forward
 * again and keeps nothing. clip bounds what goes into the activations of the gates, as onnxruntime
 * reads it: not the cell state in front of the last activation of an LSTM.
 *
 * RecurrentGrad(x, w, r, b?, lengths?, h0?, c0?, p?, dy?, dy_h?, dy_c?)
 *   -> dx, dw, dr, db?, dh0?, dc0?, dp?. */
#include "runtime/op/recurrent.h"

#include <string.h>
#include <strings.h>

#include "runtime/op/rules.h"

enum { X, W, R, B, LENGTHS, H0, C0, P, DY, DY_H, DY_C, N_IN };

static const AttrRow recurrent_attrs[] = {
    ATTR(RecurrentParams, hidden_size, "hidden_size", INT, .max_int = INT32_MAX),
    ATTR_FLAG(RecurrentParams, layout, "layout", 0),
    ATTR_FLAG(RecurrentParams, linear_before_reset, "linear_before_reset", 0),
    ATTR_FLAG(RecurrentParams, input_forget, "input_forget", 0),
    ATTR(RecurrentParams, direction, "direction", STRING, .def_string = "forward",
         .choices = "forward|reverse|bidirectional"),
    ATTR(RecurrentParams, activations, "activations", STRING, .def_string = ""),
    ATTR(RecurrentParams, alpha, "activation_alpha", FLOATS),
    ATTR(RecurrentParams, beta, "activation_beta", FLOATS),
    ATTR(RecurrentParams, clip, "clip", FLOAT),
    ATTR(RecurrentParams, cell, "cell", INT, .internal = true),
    ATTR_END,
};

/* ---- activations ---- */

static const struct {
    const char *name;
    bool alpha, beta;   /* has one */
    double alpha_default, beta_default;
} functions[FN_COUNT] = {
    [FN_SIGMOID] = {"Sigmoid", false, false, 0, 0},
    [FN_TANH] = {"Tanh", false, false, 0, 0},
    [FN_RELU] = {"Relu", false, false, 0, 0},
    [FN_AFFINE] = {"Affine", true, true, 1, 0},
    [FN_LEAKY_RELU] = {"LeakyRelu", true, false, 0.01, 0},
    [FN_THRESHOLDED_RELU] = {"ThresholdedRelu", true, false, 1, 0},
    [FN_SCALED_TANH] = {"ScaledTanh", true, true, 1, 1},
    [FN_HARD_SIGMOID] = {"HardSigmoid", true, true, 0.2, 0.5},
    [FN_ELU] = {"Elu", true, false, 1, 0},
    [FN_SOFTSIGN] = {"Softsign", false, false, 0, 0},
    [FN_SOFTPLUS] = {"Softplus", false, false, 0, 0},
};

static int find_function(const char *name, size_t len)
{
    for (int i = 0; i < FN_COUNT; i++)
        if (strlen(functions[i].name) == len && !strncasecmp(functions[i].name, name, len))
            return i;
    return -1;
}

const char *mpri_recurrent_acts(const RecurrentParams *p, int gates, RecurrentAct act[6])
{
    int per = gates == LSTM_GATES ? 3 : gates == GRU_GATES ? 2 : 1, n = 0;
    int wanted = per * mpri_recurrent_directions(p);
    int64_t alpha = 0, beta = 0;
    const char *s = p->activations ? p->activations : "";
    for (int k = 0; k < 6; k++)
        act[k].fn = k % 3 == 0 && gates != RNN_GATES ? FN_SIGMOID : FN_TANH;
    for (s += strspn(s, " "); *s; s += strspn(s, " ")) {
        size_t len = strcspn(s, " ");
        int fn = find_function(s, len);
        if (fn < 0) return s;
        if (n == wanted) return "…";
        RecurrentAct *a = &act[3 * (n / per) + n % per];
        *a = (RecurrentAct){(RecurrentFn)fn, functions[fn].alpha_default,
                            functions[fn].beta_default};
        if (functions[fn].alpha && alpha < p->alpha.n) a->alpha = (double)p->alpha.v[alpha++];
        if (functions[fn].beta && beta < p->beta.n) a->beta = (double)p->beta.v[beta++];
        n++;
        s += len;
    }
    return n == 0 || n == wanted ? NULL : "…";
}

/* ---- shapes ---- */

typedef struct Sizes {
    Dim steps, batch, input, hidden;
    Dim directions;
    bool layout;
} Sizes;

static Dim dim_of(InferCtx *c, int k, int i)
{
    const Shape *s = op_shape(c, k);
    return s->rank > i ? s->d[i] : mpri_dim_fresh(c->sym);
}

static Shape state_shape(const Sizes *z)
{
    return (Shape){.rank = 3, .d = {z->layout ? z->batch : z->directions,
                                    z->layout ? z->directions : z->batch, z->hidden}};
}

static Shape y_shape(const Sizes *z)
{
    if (z->layout)
        return (Shape){.rank = 4, .d = {z->batch, z->steps, z->directions, z->hidden}};
    return (Shape){.rank = 4, .d = {z->steps, z->directions, z->batch, z->hidden}};
}

static mpr_status check_shapes(InferCtx *c, int gates, Sizes *z)
{
    const RecurrentParams *p = c->n->params;
    TRY(mpri_op_check_rank(c, X, 3, 3));
    TRY(mpri_op_check_rank(c, W, 3, 3));
    TRY(mpri_op_check_rank(c, R, 3, 3));
    *z = (Sizes){.directions = mpri_recurrent_directions(p), .layout = p->layout != 0};
    z->steps = dim_of(c, X, z->layout);
    z->batch = dim_of(c, X, !z->layout);
    z->input = dim_of(c, X, 2);
    z->hidden = dim_of(c, R, 2);
    if (p->hidden_size)
        TRY(mpri_op_same_dim(c, "hidden_size and the last dim of the recurrence weights", R,
                             z->hidden, R, p->hidden_size));
    Dim rows = mpri_op_dim_mul(c->sym, gates, z->hidden);
    Shape w = {.rank = 3, .d = {z->directions, rows, z->input}}, r = w;
    r.d[2] = z->hidden;
    Shape b = {.rank = 2, .d = {z->directions, mpri_op_dim_mul(c->sym, 2, rows)}};
    Shape peep = {.rank = 2, .d = {z->directions, mpri_op_dim_mul(c->sym, 3, z->hidden)}};
    Shape lengths = {.rank = 1, .d = {z->batch}}, state = state_shape(z);
    TRY(mpri_op_expect_shape(c, W, &w, "weights"));
    TRY(mpri_op_expect_shape(c, R, &r, "recurrence weights"));
    TRY(mpri_op_expect_shape(c, B, &b, "bias"));
    TRY(mpri_op_expect_shape(c, LENGTHS, &lengths, "sequence lengths"));
    TRY(mpri_op_expect_shape(c, H0, &state, "initial hidden state"));
    TRY(mpri_op_expect_shape(c, C0, &state, "initial cell state"));
    return mpri_op_expect_shape(c, P, &peep, "peephole weights");
}

static mpr_status check_types(InferCtx *c, DType *t)
{
    *t = op_type(c, X);
    for (int k = X; k < N_IN; k++)
        if (k != LENGTHS) TRY(mpri_op_check_type(c, k, TS_FLOAT));
    return mpri_op_check_type(c, LENGTHS, TS_INDEX);
}

static mpr_status check_acts(InferCtx *c, int gates)
{
    RecurrentAct act[6];
    const char *bad = mpri_recurrent_acts(c->n->params, gates, act);
    if (!bad) return MPR_OK;
    if (strcmp(bad, "…") == 0)
        return mpri_err_set(c->err, MPR_E_INVALID_MODEL,
                            "attribute activations has another number of names than the cell has "
                            "activations");
    return mpri_err_set(c->err, MPR_E_INVALID_MODEL, "attribute activations: '%s' is not known",
                        mpri_err_name(bad));
}

static mpr_status infer_cell(InferCtx *c, int gates)
{
    Sizes z;
    DType t;
    TRY(check_types(c, &t));
    TRY(check_acts(c, gates));
    TRY(check_shapes(c, gates, &z));
    Shape y = y_shape(&z), state = state_shape(&z);
    TRY(mpri_infer_set(c, 0, t, &y));
    TRY(mpri_infer_set(c, 1, t, &state));
    return mpri_infer_set(c, 2, t, &state);
}

static mpr_status infer_rnn(InferCtx *c) { return infer_cell(c, RNN_GATES); }
static mpr_status infer_gru(InferCtx *c) { return infer_cell(c, GRU_GATES); }
static mpr_status infer_lstm(InferCtx *c) { return infer_cell(c, LSTM_GATES); }

static const int of[] = {X, W, R, B, H0, C0, P}; /* input that each gradient belongs to */
enum { GRADS = sizeof of / sizeof of[0] };

static mpr_status infer_grad(InferCtx *c)
{
    Sizes z;
    DType t;
    TRY(check_types(c, &t));
    TRY(check_shapes(c, (int)((const RecurrentParams *)c->n->params)->cell, &z));
    for (int i = 0; i < GRADS; i++)
        TRY(mpri_infer_set(c, i, op_type(c, of[i]), op_in(c, of[i]) ? op_shape(c, of[i]) : NULL));
    return MPR_OK;
}

/* ---- gradient ---- */

static mpr_status grad_cell(GradCtx *c, int gates)
{
    RecurrentParams p = *(const RecurrentParams *)c->n->params;
    Value *in[N_IN] = {NULL}, *out[GRADS];
    int n_out = 0;
    p.cell = gates;
    for (int k = X; k <= P; k++) in[k] = grad_in(c, k);
    for (int k = 0; k < 3; k++) in[DY + k] = grad_dy(c, k);
    for (int i = 0; i < GRADS; i++)
        if (grad_needs(c, of[i])) n_out = i + 1;
    if (n_out == 0) return MPR_OK;
    mpri_build(c->b, OP_RecurrentGrad, &p, N_IN, in, n_out, out);
    TRY(c->b->failed);
    for (int i = 0; i < n_out; i++)
        if (grad_needs(c, of[i])) c->dx[of[i]] = out[i];
    return MPR_OK;
}

static mpr_status grad_rnn(GradCtx *c) { return grad_cell(c, RNN_GATES); }
static mpr_status grad_gru(GradCtx *c) { return grad_cell(c, GRU_GATES); }
static mpr_status grad_lstm(GradCtx *c) { return grad_cell(c, LSTM_GATES); }

#define RECURRENT(Inputs, Outputs)                                                                 \
    .min_in = 3, .max_in = (Inputs), .min_out = 1, .max_out = (Outputs),                           \
    .optional_in = (1u << (Inputs)) - 8, PARAMS(RecurrentParams, recurrent_attrs),                 \
    .fixed_in = 1 << LENGTHS, .nondiff_in = 1 << LENGTHS, .cast_cuda = CAST_LOW,                   \
    .cast_cpu = CAST_LOW, .grad_state = GRAD_FUNCTION

const OpDef mpri_op_RNN = {
    MPRI_OP(RNN, "", "recurrent"), .help = "h' = f(W x + R h + b) along a sequence",
    RECURRENT(6, 2), .infer = infer_rnn, .grad = grad_rnn,
};
const OpDef mpri_op_GRU = {
    MPRI_OP(GRU, "", "recurrent"), .help = "gated recurrent unit along a sequence",
    RECURRENT(6, 2), .infer = infer_gru, .grad = grad_gru,
};
const OpDef mpri_op_LSTM = {
    MPRI_OP(LSTM, "", "recurrent"), .help = "long short-term memory along a sequence",
    RECURRENT(8, 3), .infer = infer_lstm, .grad = grad_lstm,
};
const OpDef mpri_op_RecurrentGrad = {
    MPRI_OP(RecurrentGrad, "mpr", "recurrent"),
    .help = "(x, w, r, b, lengths, h0, c0, p, dy, dy_h, dy_c): dx, dw, dr, db, dh0, dc0, dp",
    .min_in = 3, .max_in = N_IN, .min_out = 1, .max_out = GRADS, .optional_in = (1 << N_IN) - 8,
    PARAMS(RecurrentParams, recurrent_attrs), .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED,
    .cast_cpu = CAST_FIXED, .infer = infer_grad, .grad_state = GRAD_NONE,
    .grad_reason = "second derivatives are not built",
};
