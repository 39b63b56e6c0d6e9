/* Operators on bits: exclusive or of booleans, and, or, exclusive or, complement and shifts of
 * integers. Nothing here has a gradient. */
#include "runtime/op/rules.h"

static const AttrRow shift_attrs[] = {
    ATTR(BitShiftParams, direction, "direction", STRING, .required = true, .def_string = "LEFT",
         .choices = "LEFT|RIGHT"),
    ATTR_END,
};

static mpr_status infer_binary(InferCtx *c, TypeSet set)
{
    DType t;
    Shape s;
    TRY(mpri_op_common_type(c, 0, 2, set, &t));
    TRY(mpri_op_broadcast(c, 0, 2, &s));
    return mpri_infer_set(c, 0, t, &s);
}

static mpr_status infer_bits(InferCtx *c) { return infer_binary(c, TS_INT); }
static mpr_status infer_xor(InferCtx *c) { return infer_binary(c, TS_BOOL); }

static mpr_status infer_not(InferCtx *c)
{
    TRY(mpri_op_check_type(c, 0, TS_INT));
    return mpri_op_infer_same(c);
}

#define BITS                                                                                       \
    .min_out = 1, .max_out = 1, .flags = OPF_ELEMENTWISE, .cast_cuda = CAST_FIXED,                 \
    .cast_cpu = CAST_FIXED, .grad_state = GRAD_ZERO
#define TWO_INPUTS .min_in = 2, .max_in = 2, .inplace = 3, .nondiff_in = 3

const OpDef mpri_op_Xor = {
    MPRI_OP(Xor, "", "bitwise"), .help = "either a or b, not both", BITS, TWO_INPUTS,
    .infer = infer_xor,
};
const OpDef mpri_op_BitShift = {
    MPRI_OP(BitShift, "", "bitwise"), .help = "a shifted by b bits; right is arithmetic", BITS,
    TWO_INPUTS, PARAMS(BitShiftParams, shift_attrs), .infer = infer_bits,
};
const OpDef mpri_op_BitwiseAnd = {
    MPRI_OP(BitwiseAnd, "", "bitwise"), .help = "bits of both", BITS, TWO_INPUTS,
    .infer = infer_bits,
};
const OpDef mpri_op_BitwiseOr = {
    MPRI_OP(BitwiseOr, "", "bitwise"), .help = "bits of either", BITS, TWO_INPUTS,
    .infer = infer_bits,
};
const OpDef mpri_op_BitwiseXor = {
    MPRI_OP(BitwiseXor, "", "bitwise"), .help = "bits of one only", BITS, TWO_INPUTS,
    .infer = infer_bits,
};
const OpDef mpri_op_BitwiseNot = {
    MPRI_OP(BitwiseNot, "", "bitwise"), .help = "the other bits", BITS,
    .min_in = 1, .max_in = 1, .inplace = 1, .nondiff_in = 1, .infer = infer_not,
};
