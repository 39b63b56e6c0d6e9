/* Old opsets of operators that compute: reductions, softmax, broadcasting before numpy's rule,
 * Dropout. */
#include <string.h>

#include "importer/adapt.h"

static mpr_status adapt_reduce_axes(Draft *d, Err *err)
{
    Ints axes;
    if (!mpri_adapt_take_ints(d, "axes", &axes, err)) return MPR_OK;
    return mpri_adapt_set_input(d, 1, mpri_adapt_ints(d, "axes", axes.n, axes.v), err);
}

static mpr_status adapt_clip(Draft *d, Err *err)
{
    static const char *const names[2] = {"min", "max"};
    DType t = d->n_in > 0 && d->in[0] && d->in[0]->dtype ? d->in[0]->dtype : MPR_FLOAT32;
    for (int k = 0; k < 2; k++) {
        float v;
        if (mpri_adapt_take_float(d, names[k], &v, err))
            TRY(mpri_adapt_set_input(d, k + 1, mpri_adapt_scalar(d, names[k], t, v), err));
    }
    return MPR_OK;
}

/* Before 12 the ratio was an attribute. Training was marked by is_test before 7, and not at all
 * from 7 on. */
static mpr_status adapt_dropout(Draft *d, Err *err)
{
    float ratio;
    int64_t is_test = 0;
    if (d->opset < 7) {
        mpri_adapt_take_int(d, "is_test", &is_test, err);
        if (!is_test)
            TRY(mpri_adapt_set_input(d, 2, mpri_adapt_scalar(d, "training", MPR_BOOL, 1), err));
    }
    if (!mpri_adapt_take_float(d, "ratio", &ratio, err)) return MPR_OK;
    return mpri_adapt_set_input(d, 1, mpri_adapt_scalar(d, "ratio", MPR_FLOAT32, ratio), err);
}

/* ---- softmax before 13: normalises over all dims from axis on, as if they were one */

static mpr_status emit_flat_softmax(Draft *d, Value **out, Err *err)
{
    SoftmaxParams last = {.axis = -1};
    AxisParams axis = {.axis = ((const SoftmaxParams *)d->params)->axis};
    Value *shape, *flat, *soft, *x = d->in[0];
    TRY(mpri_adapt_emit(d, OP_Shape, "shape", NULL, 1, &x, &shape, err));
    TRY(mpri_adapt_emit(d, OP_Flatten, "flat", &axis, 1, &x, &flat, err));
    TRY(mpri_adapt_emit(d, d->op->id, "normalised", &last, 1, &flat, &soft, err));
    Value *in[2] = {soft, shape};
    return mpri_adapt_emit(d, OP_Reshape, "unflat", NULL, 2, in, out, err);
}

static mpr_status adapt_softmax(Draft *d, Err *err)
{
    SoftmaxParams *p = d->params;
    int64_t axis = 1;
    mpri_adapt_take_int(d, "axis", &axis, err);
    p->axis = axis;
    int rank = d->n_in == 1 && d->in[0] ? d->in[0]->shape.rank : 0;
    if (axis == -1 || (rank > 0 && axis == rank - 1)) p->axis = -1;
    else if (d->n_in == 1 && d->in[0]) d->emit = emit_flat_softmax;
    return MPR_OK;
}

/* ---- broadcasting before 7: B is laid onto the dims of A from `axis` on, only when broadcast = 1
 */

static mpr_status adapt_broadcast(Draft *d, Err *err)
{
    int64_t broadcast = 0, axis = 0;
    bool on = mpri_adapt_take_int(d, "broadcast", &broadcast, err) && broadcast;
    bool placed = mpri_adapt_take_int(d, "axis", &axis, err);
    if (!on || !placed || d->n_in != 2 || !d->in[0] || !d->in[1]) return MPR_OK;
    int ra = d->in[0]->shape.rank, rb = d->in[1]->shape.rank;
    if (ra < 0 || rb < 0) {
        d->opaque_why = "broadcast=1 with an axis before opset 7, on tensors of unknown rank";
        return MPR_OK;
    }
    if (axis < 0) axis += ra;
    if (axis < 0 || axis + rb > ra) {
        mpri_err_finding(
            err, MPR_E_INVALID_MODEL,
            "%s: attribute axis places %d dims from dim %lld on, the other operand has rank %d",
            d->label, rb, (long long)axis, ra);
        return MPR_OK;
    }
    int64_t axes[MPRI_MAX_RANK], behind = ra - rb - axis;
    if (behind == 0) return MPR_OK;
    for (int64_t i = 0; i < behind; i++) axes[i] = rb + i;
    Value *in[2] = {d->in[1], mpri_adapt_ints(d, "axes", behind, axes)}, *wide;
    if (!in[1]) return mpri_err_nomem(err, sizeof axes);
    TRY(mpri_adapt_emit(d, OP_Unsqueeze, "wide", NULL, 2, in, &wide, err));
    d->in[1] = wide;
    return MPR_OK;
}

/* A slope per channel stood for dim 1 of the input, whatever follows it. */
static mpr_status adapt_prelu(Draft *d, Err *err)
{
    int64_t axes[MPRI_MAX_RANK];
    if (d->n_in != 2 || !d->in[0] || !d->in[1]) return MPR_OK;
    const Shape *x = &d->in[0]->shape, *slope = &d->in[1]->shape;
    if (slope->rank != 1 || slope->d[0] == 1 || x->rank < 3) return MPR_OK;
    for (int i = 0; i < x->rank - 2; i++) axes[i] = i + 1;
    Value *in[2] = {d->in[1], mpri_adapt_ints(d, "axes", x->rank - 2, axes)}, *wide;
    if (!in[1]) return mpri_err_nomem(err, sizeof axes);
    TRY(mpri_adapt_emit(d, OP_Unsqueeze, "wide", NULL, 2, in, &wide, err));
    d->in[1] = wide;
    return MPR_OK;
}

/* ---- others */

/* Before 6 the defaults had fewer digits. */
static mpr_status adapt_selu(Draft *d, Err *err)
{
    SeluParams *p = d->params;
    (void)err;
    p->alpha = 1.6732f;
    p->gamma = 1.0507f;
    return MPR_OK;
}

/* 8-bit floats and types of less than 8 bits are not computed; the file can still be looked at. */
static mpr_status adapt_quantised(Draft *d, Err *err)
{
    static const char *const attributes[] = {"output_dtype", "precision"};
    (void)err;
    for (int k = 0; k < d->n_in; k++)
        if (d->in[k] && d->in[k]->dtype && !mpri_dtype_size(d->in[k]->dtype))
            d->opaque_why = "a data type that is not computed";
    for (size_t i = 0; i < 2; i++) {
        const AttributeProto *a = mpri_import_attr(d->node->p, attributes[i]);
        if (a && a->i != 0 && !mpri_dtype_size((DType)a->i))
            d->opaque_why = "a data type that is not computed";
    }
    return MPR_OK;
}

/* The type of input 1 is known as a rule: then the node is a Cast. */
static mpr_status emit_cast(Draft *d, Value **out, Err *err)
{
    CastParams p = *(const CastParams *)d->params;
    p.to = d->in[1]->dtype;
    return mpri_adapt_emit(d, OP_Cast, "cast", &p, 1, d->in, out, err);
}

static mpr_status adapt_cast_like(Draft *d, Err *err)
{
    (void)err;
    if (d->n_in == 2 && d->in[0] && d->in[1] && mpri_dtype_size(d->in[1]->dtype) > 0)
        d->emit = emit_cast;
    return MPR_OK;
}

static mpr_status adapt_cast_1(Draft *d, Err *err)
{
    static const char *const names[] = {
        [1] = "FLOAT",   [2] = "UINT8",   [3] = "INT8",    [4] = "UINT16",     [5] = "INT16",
        [6] = "INT32",   [7] = "INT64",   [8] = "STRING",  [9] = "BOOL",       [10] = "FLOAT16",
        [11] = "DOUBLE", [12] = "UINT32", [13] = "UINT64", [14] = "COMPLEX64", [15] = "COMPLEX128",
    };
    CastParams *p = d->params;
    const AttributeProto *a = mpri_import_attr(d->node->p, "to");
    if (!a || !a->has_s) return MPR_OK;
    mpri_adapt_take(d, "to");
    for (size_t t = 1; t < sizeof names / sizeof names[0]; t++)
        if (strlen(names[t]) == a->s.len && !memcmp(names[t], a->s.data, a->s.len))
            p->to = (int64_t)t;
    if (p->to == 0)
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute to names no data type", d->label);
    else if (mpri_dtype_size((DType)p->to) == 0) d->opaque_why = "a data type that is not computed";
    return MPR_OK;
}

/* The fifth output exists for the gradient only. */
static mpr_status adapt_attention(Draft *d, Err *err)
{
    if (d->n_out > 4)
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s has %d outputs, it has 1 to 4", d->label,
                         d->n_out);
    return MPR_OK;
}

/* A list of names becomes one text. */
static mpr_status adapt_recurrent(Draft *d, Err *err)
{
    RecurrentParams *p = d->params;
    const AttributeProto *a = mpri_adapt_take(d, "activations");
    mpri_adapt_take(d, "output_sequence"); /* opset 1; the output says it */
    const char *text = "";
    for (size_t i = 0; a && text && i < a->n_strings; i++)
        text = mpri_arena_printf(&d->im->scratch, "%s%s%.*s", text, i ? " " : "",
                                 (int)a->strings[i].len, (const char *)a->strings[i].data);
    p->activations = text ? mpri_intern(d->im->names, text) : NULL;
    return p->activations ? MPR_OK : mpri_err_nomem(err, 64);
}

const AdaptRow mpri_adapt_compute[] = {
    {"RNN", 1, INT32_MAX, adapt_recurrent},
    {"GRU", 1, INT32_MAX, adapt_recurrent},
    {"LSTM", 1, INT32_MAX, adapt_recurrent},
    {"Attention", 1, INT32_MAX, adapt_attention},
    {"ReduceSum", 1, 12, adapt_reduce_axes},
    {"ReduceMean", 1, 17, adapt_reduce_axes},
    {"ReduceProd", 1, 17, adapt_reduce_axes},
    {"ReduceMax", 1, 17, adapt_reduce_axes},
    {"ReduceMin", 1, 17, adapt_reduce_axes},
    {"ReduceL1", 1, 17, adapt_reduce_axes},
    {"ReduceL2", 1, 17, adapt_reduce_axes},
    {"ReduceLogSum", 1, 17, adapt_reduce_axes},
    {"ReduceLogSumExp", 1, 17, adapt_reduce_axes},
    {"ReduceSumSquare", 1, 17, adapt_reduce_axes},
    {"Softmax", 1, 12, adapt_softmax},
    {"LogSoftmax", 1, 12, adapt_softmax},
    {"Hardmax", 1, 12, adapt_softmax},
    {"Clip", 1, 10, adapt_clip},
    {"Dropout", 1, 11, adapt_dropout},
    {"Cast", 1, 5, adapt_cast_1},
    {"Add", 1, 6, adapt_broadcast},
    {"Sub", 1, 6, adapt_broadcast},
    {"Mul", 1, 6, adapt_broadcast},
    {"Div", 1, 6, adapt_broadcast},
    {"Pow", 1, 6, adapt_broadcast},
    {"PRelu", 1, 6, adapt_prelu},
    {"Selu", 1, 5, adapt_selu},
    {"CastLike", 15, 1000, adapt_cast_like},
    {"QuantizeLinear", 1, INT32_MAX, adapt_quantised},
    {"DequantizeLinear", 1, INT32_MAX, adapt_quantised},
    {"And", 1, 6, adapt_broadcast},
    {"Xor", 1, 6, adapt_broadcast},
    {"Or", 1, 6, adapt_broadcast},
    {"Equal", 1, 6, adapt_broadcast},
    {"Less", 1, 6, adapt_broadcast},
    {"Greater", 1, 6, adapt_broadcast},
    {NULL, 0, 0, NULL},
};
