/* Operators on bits under numpy broadcasting. Integers of every type are widened to 64 bits and
 * stored back by dropping the upper ones. A shift by a negative number or by at least the width
 * gives what the sign alone gives: -1 for a negative number to the right, else 0. */
#include "kernels/ref/util.h"

typedef int64_t (*BitFn)(int64_t a, int64_t b, DType t);

static mpr_status binary(const KernelCall *c, BitFn f)
{
    const Tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t av = mpri_load_i64(a->dtype, a->data, mpri_ref_broadcast(a, y, i));
        int64_t bv = mpri_load_i64(b->dtype, b->data, mpri_ref_broadcast(b, y, i));
        mpri_store_i64(y->dtype, y->data, i, f(av, bv, a->dtype));
    }
    return MPR_OK;
}

static bool in_width(int64_t by, DType t)
{
    return (uint64_t)by < 8 * mpri_dtype_size(t); /* a negative count is huge */
}

static int64_t and_bits(int64_t a, int64_t b, DType t) { (void)t; return a & b; }
static int64_t or_bits(int64_t a, int64_t b, DType t) { (void)t; return a | b; }
static int64_t xor_bits(int64_t a, int64_t b, DType t) { (void)t; return a ^ b; }
static int64_t left(int64_t a, int64_t b, DType t)
{
    return in_width(b, t) ? (int64_t)((uint64_t)a << b) : 0;
}
static int64_t right(int64_t a, int64_t b, DType t)
{
    bool is_unsigned = t == MPR_UINT64;
    if (!in_width(b, t)) return a < 0 && !is_unsigned ? -1 : 0;
    return is_unsigned ? (int64_t)((uint64_t)a >> b) : a >> b;
}

static mpr_status k_and(const KernelCall *c) { return binary(c, and_bits); }
static mpr_status k_or(const KernelCall *c) { return binary(c, or_bits); }
static mpr_status k_xor(const KernelCall *c) { return binary(c, xor_bits); }
static mpr_status k_shift(const KernelCall *c)
{
    const BitShiftParams *p = c->params;
    return binary(c, strcmp(p->direction, "LEFT") == 0 ? left : right);
}

static mpr_status k_not(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++)
        mpri_store_i64(y->dtype, y->data, i, ~mpri_load_i64(x->dtype, x->data, i));
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Xor, "xor", k_xor),
    REF_ROW(BitShift, "bitshift", k_shift),
    REF_ROW(BitwiseAnd, "bitwiseand", k_and),
    REF_ROW(BitwiseOr, "bitwiseor", k_or),
    REF_ROW(BitwiseXor, "bitwisexor", k_xor),
    REF_ROW(BitwiseNot, "bitwisenot", k_not),
};
const KernelTable mpri_ref_bitwise = REF_TABLE(rows);
