/* Arithmetic, logic and bits of integers and bool under numpy broadcasting; the walk is in
 * number.cuh. Everything is int64 inside: sums and products wrap around, stores drop the upper
 * bits. Only order and division differ for u64. A zero divisor gives 0, the one quotient that
 * overflows wraps; neither traps. */
#include "kernels/cuda/number.cuh"

#include <string.h>

#define UNARY(Name, expression)                                                     \
    struct Name {                                                                   \
        enum { N = 1 };                                                             \
        __device__ int64_t operator()(const int64_t *in, bool is_unsigned) const    \
        {                                                                           \
            int64_t x = in[0];                                                      \
            (void)is_unsigned;                                                      \
            return expression;                                                      \
        }                                                                           \
    };
#define BINARY(Name, expression)                                                    \
    struct Name {                                                                   \
        enum { N = 2 };                                                             \
        __device__ int64_t operator()(const int64_t *in, bool is_unsigned) const    \
        {                                                                           \
            int64_t a = in[0], b = in[1];                                           \
            (void)is_unsigned;                                                      \
            return expression;                                                      \
        }                                                                           \
    };

static __device__ int64_t quotient(int64_t a, int64_t b, bool is_unsigned)
{
    if (b == 0) return 0;
    if (is_unsigned) return (int64_t)((uint64_t)a / (uint64_t)b);
    return b == -1 ? negate(a) : a / b;
}
static __device__ int64_t remainder_of(int64_t a, int64_t b, bool is_unsigned)
{
    if (b == 0) return 0;
    if (is_unsigned) return (int64_t)((uint64_t)a % (uint64_t)b);
    return b == -1 ? 0 : a % b;
}
/* Sign of the divisor, as numpy.mod. */
static __device__ int64_t modulo(int64_t a, int64_t b, bool is_unsigned)
{
    int64_t r = remainder_of(a, b, is_unsigned);
    return !is_unsigned && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
/* A negative exponent truncates towards 0, as 1 / a^|b| does. */
static __device__ int64_t power(int64_t a, int64_t b, bool is_unsigned)
{
    if (!is_unsigned && b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    uint64_t r = 1, base = (uint64_t)a;
    for (uint64_t e = (uint64_t)b; e; e >>= 1, base *= base)
        if (e & 1) r *= base;
    return (int64_t)r;
}

UNARY(NegF, negate(x))
UNARY(AbsF, x < 0 && !is_unsigned ? negate(x) : x)
UNARY(ReluF, x < 0 ? 0 : x)
UNARY(NotF, !x)
UNARY(BitNotF, ~x)
UNARY(SignF, x < 0 && !is_unsigned ? -1 : x != 0)
BINARY(AddF, (int64_t)((uint64_t)a + (uint64_t)b))
BINARY(SubF, (int64_t)((uint64_t)a - (uint64_t)b))
BINARY(MulF, (int64_t)((uint64_t)a * (uint64_t)b))
BINARY(DivF, quotient(a, b, is_unsigned))
BINARY(ModF, modulo(a, b, is_unsigned))
BINARY(RemainderF, remainder_of(a, b, is_unsigned))
BINARY(PowF, power(a, b, is_unsigned))
BINARY(MaxF, less_i64(a, b, is_unsigned) ? b : a)
BINARY(MinF, less_i64(a, b, is_unsigned) ? a : b)
BINARY(AndF, a && b)
BINARY(OrF, a || b)
BINARY(BitAndF, a &b)
BINARY(BitOrF, a | b)
BINARY(BitXorF, a ^ b)

static mpr_status k_mod(const KernelCall *c)
{
    const ModParams *p = (const ModParams *)c->params;
    return p->fmod ? each<int64_t>(c, RemainderF()) : each<int64_t>(c, ModF());
}

/* Shifts by a negative number or by the width and more give what the sign alone gives. */
struct ShiftF {
    enum { N = 2 };
    int left, width;
    __device__ int64_t operator()(const int64_t *in, bool is_unsigned) const
    {
        int64_t a = in[0], b = in[1];
        bool inside = (uint64_t)b < (uint64_t)width;
        if (left) return inside ? (int64_t)((uint64_t)a << b) : 0;
        if (!inside) return a < 0 && !is_unsigned ? -1 : 0;
        return is_unsigned ? (int64_t)((uint64_t)a >> b) : a >> b;
    }
};
static mpr_status k_shift(const KernelCall *c)
{
    const BitShiftParams *p = (const BitShiftParams *)c->params;
    return each<int64_t>(c, ShiftF{strcmp(p->direction, "LEFT") == 0,
                                   8 * (int)mpri_dtype_size(c->in[0].dtype)});
}

/* ---- any number of inputs: one after another joins the result ---- */
struct CopyF {
    enum { N = 1 };
    __device__ int64_t operator()(const int64_t *in, bool) const { return in[0]; }
};
template <typename F> static mpr_status k_fold(const KernelCall *c)
{
    if (c->n_in == 1) return each<int64_t>(c, CopyF());
    const Tensor *in[2] = {&c->in[0], &c->in[1]};
    for (int k = 1; k < c->n_in; k++) {
        in[1] = &c->in[k];
        TRY(each_of<int64_t>(c, in, F()));
        in[0] = &c->out[0];
    }
    return MPR_OK;
}

/* ---- Clip: limits are scalars on the device ---- */
struct ClipF {
    enum { N = 1 };
    const void *low, *high;
    int type;
    __device__ int64_t operator()(const int64_t *in, bool is_unsigned) const
    {
        int64_t v = in[0];
        if (low) {
            int64_t l = load_i64(low, type, 0);
            if (less_i64(v, l, is_unsigned)) v = l;
        }
        if (high) {
            int64_t h = load_i64(high, type, 0);
            if (!less_i64(v, h, is_unsigned)) v = h;
        }
        return v;
    }
};
static mpr_status k_clip(const KernelCall *c)
{
    const Tensor *low = input_of(c, 1), *high = input_of(c, 2);
    return each<int64_t>(
        c, ClipF{low ? low->data : NULL, high ? high->data : NULL, (int)c->in[0].dtype});
}

static const KernelRow rows[] = {
    INT_ROW(Add, "add", AddF),
    INT_ROW(Sub, "sub", SubF),
    INT_ROW(Mul, "mul", MulF),
    INT_ROW(Div, "div", DivF),
    INT_ROW(Pow, "pow", PowF),
    INT_ROW(Neg, "neg", NegF),
    INT_ROW(Abs, "abs", AbsF),
    INT_ROW(Relu, "relu", ReluF),
    INT_ROW(Sign, "sign", SignF),
    INT_ROW(Not, "not", NotF),
    INT_ROW(And, "and", AndF),
    INT_ROW(Or, "or", OrF),
    INT_ROW(Xor, "xor", BitXorF),
    INT_ROW(BitwiseAnd, "bitwiseand", BitAndF),
    INT_ROW(BitwiseOr, "bitwiseor", BitOrF),
    INT_ROW(BitwiseXor, "bitwisexor", BitXorF),
    INT_ROW(BitwiseNot, "bitwisenot", BitNotF),
    CUDA_ROW(BitShift, "bitshift", k_shift, .refuse = refuse_int),
    CUDA_ROW(Mod, "mod.int", k_mod, .refuse = refuse_int),
    CUDA_ROW(Max, "max.int", k_fold<MaxF>, .refuse = refuse_int),
    CUDA_ROW(Min, "min.int", k_fold<MinF>, .refuse = refuse_int),
    CUDA_ROW(Sum, "sum.int", k_fold<AddF>, .refuse = refuse_int),
    CUDA_ROW(Clip, "clip.int", k_clip, .refuse = refuse_int),
};
extern "C" const KernelTable mpri_cuda_integer = CUDA_TABLE(rows);
