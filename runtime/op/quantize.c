/* QuantizeLinear and DequantizeLinear: integers as (q - zero point) * scale.
 *
 * The scale belongs to the whole tensor (one element), to a slice along the axis (1-D), or to a
 * block of block_size elements along the axis (rank of x). The zero point has the scale's shape.
 * Trap: the type in which the quotient is rounded before it becomes an integer is that of the scale
 * unless the attribute precision names another. Models are trained before they are quantised, so
 * there are no gradients. */
#include "runtime/op/rules.h"

#define TS_QUANT (TS(MPR_INT8) | TS(MPR_UINT8) | TS(MPR_INT16) | TS(MPR_UINT16))
#define TS_SCALE (TS(MPR_FLOAT32) | TS(MPR_FLOAT16) | TS(MPR_BFLOAT16) | TS(MPR_FLOAT64))

static const AttrRow quantize_attrs[] = {
    ATTR(QuantizeParams, at.axis, "axis", INT, .def_int = 1),
    ATTR(QuantizeParams, at.block_size, "block_size", INT, .min_int = 0, .max_int = INT64_MAX),
    ATTR(QuantizeParams, at.output_dtype, "output_dtype", INT),
    ATTR(QuantizeParams, precision, "precision", INT),
    ATTR_FLAG(QuantizeParams, saturate, "saturate", 1),
    ATTR_END,
};

static const AttrRow dequantize_attrs[] = {
    ATTR(DequantizeParams, axis, "axis", INT, .def_int = 1),
    ATTR(DequantizeParams, block_size, "block_size", INT, .min_int = 0, .max_int = INT64_MAX),
    ATTR(DequantizeParams, output_dtype, "output_dtype", INT),
    ATTR_END,
};

/* Scale in blocks: its dim along the axis counts them, the others are those of x. */
static mpr_status check_blocks(InferCtx *c, const DequantizeParams *p)
{
    const Shape *x = op_shape(c, 0), *scale = op_shape(c, 1);
    int64_t block = p->block_size;
    int axis;
    Shape want = *x;
    if (x->rank < 0 || scale->rank < 0) return MPR_OK;
    TRY(mpri_infer_axis(c, p->axis, x->rank, &axis));
    if (mpri_dim_const(x->d[axis])) want.d[axis] = x->d[axis] / block + (x->d[axis] % block != 0);
    else want.d[axis] = scale->rank == x->rank ? scale->d[axis] : 1;
    return mpri_op_expect_shape(c, 1, &want, "scale: one per block");
}

static mpr_status check_scale(InferCtx *c, const DequantizeParams *p)
{
    const Shape *x = op_shape(c, 0), *scale = op_shape(c, 1);
    int axis;
    TRY(mpri_op_check_type(c, 1, TS_SCALE));
    if (scale->rank >= 0) TRY(mpri_op_expect_shape(c, 2, scale, "zero point: shape of the scale"));
    if (p->block_size > 0) return check_blocks(c, p);
    if (scale->rank <= 0 || mpri_shape_elements(scale) == 1) return MPR_OK;
    TRY(mpri_op_check_rank(c, 1, 1, 1));
    if (x->rank < 0) return MPR_OK;
    TRY(mpri_infer_axis(c, x->rank == 1 ? 0 : p->axis, x->rank, &axis));
    return mpri_op_same_dim(c, "scale: one per slice along the axis", 0, x->d[axis], 1,
                            scale->d[0]);
}

static bool known_type(int64_t t) { return t >= 0 && t <= MPR_BFLOAT16; }

static mpr_status type_error(InferCtx *c, const char *attribute, int64_t t)
{
    return mpri_err_set(c->err, MPR_E_TYPE, "attribute %s is data type %lld, which is not computed",
                        attribute, (long long)t);
}

static mpr_status infer_quantize(InferCtx *c)
{
    const QuantizeParams *p = c->n->params;
    DType t = op_type(c, 2);
    TRY(mpri_op_check_type(c, 0, TS_SCALE | TS(MPR_INT32)));
    TRY(mpri_op_check_type(c, 2, TS_QUANT));
    TRY(check_scale(c, &p->at));
    if (p->precision && (!known_type(p->precision) || !(TS_SCALE & TS(p->precision))))
        return type_error(c, "precision", p->precision);
    int64_t want = p->at.output_dtype;
    if (want && (!known_type(want) || !(TS_QUANT & TS(want))))
        return type_error(c, "output_dtype", want);
    if (want && t && t != (DType)want)
        return mpri_err_set(c->err, MPR_E_TYPE, "output_dtype is %s, the zero point is %s",
                            mpri_dtype_name((DType)want), mpri_dtype_name(t));
    if (want) t = (DType)want;
    else if (!op_in(c, 2)) t = MPR_UINT8;
    return mpri_infer_set(c, 0, t, op_shape(c, 0));
}

static mpr_status infer_dequantize(InferCtx *c)
{
    const DequantizeParams *p = c->n->params;
    DType t = op_type(c, 1), zero = op_type(c, 2);
    TRY(mpri_op_check_type(c, 0, TS_QUANT | TS(MPR_INT32)));
    TRY(check_scale(c, p));
    if (zero && op_type(c, 0) && zero != op_type(c, 0))
        return mpri_err_set(c->err, MPR_E_TYPE, "x is %s, its zero point is %s",
                            mpri_dtype_name(op_type(c, 0)), mpri_dtype_name(zero));
    if (p->output_dtype && (!known_type(p->output_dtype) || !(TS_SCALE & TS(p->output_dtype))))
        return type_error(c, "output_dtype", p->output_dtype);
    return mpri_infer_set(c, 0, p->output_dtype ? (DType)p->output_dtype : t, op_shape(c, 0));
}

#define QUANTISED                                                                                  \
    .min_in = 2, .max_in = 3, .optional_in = 4, .min_out = 1, .max_out = 1,                        \
    .fixed_in = 7, .nondiff_in = 7,                         \
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .grad_state = GRAD_NONE,                      \
    .grad_reason = "quantised models are not trained: train the float file, then quantise it"

const OpDef mpri_op_QuantizeLinear = {
    MPRI_OP(QuantizeLinear, "", "quantize"), .help = "x / scale rounded to even, plus the zero point, saturated",
    PARAMS(QuantizeParams, quantize_attrs), .infer = infer_quantize, QUANTISED,
};
const OpDef mpri_op_DequantizeLinear = {
    MPRI_OP(DequantizeLinear, "", "quantize"), .help = "(x - zero point) * scale",
    PARAMS(DequantizeParams, dequantize_attrs), .infer = infer_dequantize, QUANTISED,
};
