/* Elementwise operators under numpy broadcasting. Float types go through double with one rounding
 * at the store; integers through int64, whose wrapping arithmetic is done unsigned. Only order
 * (compare, min, max, division) differs between u64 and the rest. NaN propagates through Max, Min,
 * Clip and Relu. */
#include "kernels/ref/util.h"

static bool is_float(const Tensor *t)
{
    return mpri_dtype_is_float(t->dtype);
}

/* ---- one input ---- */

static mpr_status unary(const KernelCall *c, double (*f)(double))
{
    for (int64_t i = 0; i < c->out[0].n; i++)
        mpri_ref_store(&c->out[0], i, f(mpri_ref_load(&c->in[0], i)));
    return MPR_OK;
}

static double reciprocal(double x) { return 1 / x; }
static double softsign(double x) { return x / (1 + fabs(x)); }

static mpr_status k_reciprocal(const KernelCall *c) { return unary(c, reciprocal); }
static mpr_status k_sqrt(const KernelCall *c) { return unary(c, sqrt); }
static mpr_status k_exp(const KernelCall *c) { return unary(c, exp); }
static mpr_status k_log(const KernelCall *c) { return unary(c, log); }
static mpr_status k_sin(const KernelCall *c) { return unary(c, sin); }
static mpr_status k_cos(const KernelCall *c) { return unary(c, cos); }
static mpr_status k_erf(const KernelCall *c) { return unary(c, erf); }
static mpr_status k_tanh(const KernelCall *c) { return unary(c, tanh); }
static mpr_status k_sigmoid(const KernelCall *c) { return unary(c, mpri_ref_sigmoid); }
static mpr_status k_softsign(const KernelCall *c) { return unary(c, softsign); }

static bool gelu_is_tanh(const KernelCall *c)
{
    const GeluParams *p = c->params;
    return p->approximate && strcmp(p->approximate, "tanh") == 0;
}

static mpr_status k_gelu(const KernelCall *c)
{
    return unary(c, gelu_is_tanh(c) ? mpri_ref_gelu_tanh : mpri_ref_gelu);
}

static mpr_status unary_int(const KernelCall *c, int64_t (*g)(int64_t))
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++)
        mpri_store_i64(y->dtype, y->data, i, g(mpri_load_i64(x->dtype, x->data, i)));
    return MPR_OK;
}

static mpr_status unary_any(const KernelCall *c, double (*f)(double), int64_t (*g)(int64_t))
{
    return is_float(&c->in[0]) ? unary(c, f) : unary_int(c, g);
}

static double neg_f(double x) { return -x; }
static int64_t neg_i(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static int64_t abs_i(int64_t x) { return x < 0 ? neg_i(x) : x; }
static int64_t relu_i(int64_t x) { return x < 0 ? 0 : x; }
static int64_t not_i(int64_t x) { return !x; }

static mpr_status k_neg(const KernelCall *c) { return unary_any(c, neg_f, neg_i); }
static mpr_status k_abs(const KernelCall *c)
{
    if (c->in[0].dtype == MPR_UINT64) { /* its upper half looks negative */
        if (c->out[0].n) memmove(c->out[0].data, c->in[0].data, (size_t)c->out[0].n * 8);
        return MPR_OK;
    }
    return unary_any(c, fabs, abs_i);
}
static mpr_status k_relu(const KernelCall *c) { return unary_any(c, mpri_ref_relu, relu_i); }
static mpr_status k_not(const KernelCall *c) { return unary_int(c, not_i); }

/* ---- two inputs ---- */

typedef int64_t (*IntFn)(int64_t a, int64_t b, bool unsigned64);

static mpr_status binary_float(const KernelCall *c, double (*f)(double, double))
{
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double a = mpri_ref_load(&c->in[0], mpri_ref_broadcast(&c->in[0], &c->out[0], i));
        double b = mpri_ref_load(&c->in[1], mpri_ref_broadcast(&c->in[1], &c->out[0], i));
        mpri_ref_store(&c->out[0], i, f(a, b));
    }
    return MPR_OK;
}

static mpr_status binary_int(const KernelCall *c, IntFn g)
{
    const Tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    bool u = a->dtype == MPR_UINT64;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t av = mpri_load_i64(a->dtype, a->data, mpri_ref_broadcast(a, y, i));
        int64_t bv = mpri_load_i64(b->dtype, b->data, mpri_ref_broadcast(b, y, i));
        mpri_store_i64(y->dtype, y->data, i, g(av, bv, u));
    }
    return MPR_OK;
}

static mpr_status binary(const KernelCall *c, double (*f)(double, double), IntFn g)
{
    return is_float(&c->in[0]) || is_float(&c->in[1]) ? binary_float(c, f) : binary_int(c, g);
}

static double add_f(double a, double b) { return a + b; }
static double sub_f(double a, double b) { return a - b; }
static double mul_f(double a, double b) { return a * b; }
static double div_f(double a, double b) { return a / b; }
static double max_f(double a, double b) { return isnan(a) || a > b ? a : b; }
static double min_f(double a, double b) { return isnan(a) || a < b ? a : b; }

static bool less(int64_t a, int64_t b, bool u) { return u ? (uint64_t)a < (uint64_t)b : a < b; }

static int64_t add_i(int64_t a, int64_t b, bool u)
{
    (void)u;
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
static int64_t sub_i(int64_t a, int64_t b, bool u)
{
    (void)u;
    return (int64_t)((uint64_t)a - (uint64_t)b);
}
static int64_t mul_i(int64_t a, int64_t b, bool u)
{
    (void)u;
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
static int64_t max_i(int64_t a, int64_t b, bool u) { return less(a, b, u) ? b : a; }
static int64_t min_i(int64_t a, int64_t b, bool u) { return less(a, b, u) ? a : b; }

/* Truncating division; a zero divisor gives 0 and the one overflowing quotient wraps, neither
 * traps. */
static int64_t div_i(int64_t a, int64_t b, bool u)
{
    if (b == 0) return 0;
    if (u) return (int64_t)((uint64_t)a / (uint64_t)b);
    return b == -1 ? neg_i(a) : a / b;
}

static int64_t fmod_i(int64_t a, int64_t b, bool u)
{
    if (b == 0) return 0;
    if (u) return (int64_t)((uint64_t)a % (uint64_t)b);
    return b == -1 ? 0 : a % b;
}

static int64_t mod_i(int64_t a, int64_t b, bool u) /* sign of the divisor, as numpy.mod */
{
    int64_t r = fmod_i(a, b, u);
    return !u && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double mod_f(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* Integer power, wrapping; a negative exponent truncates towards 0 as 1 / a^|b| does. */
static int64_t pow_i(int64_t a, int64_t b, bool u)
{
    if (!u && b < 0) {
        if (a == 1) return 1;
        return a == -1 ? (b & 1 ? -1 : 1) : 0;
    }
    uint64_t r = 1, base = (uint64_t)a;
    for (uint64_t e = (uint64_t)b; e; e >>= 1, base *= base)
        if (e & 1) r *= base;
    return (int64_t)r;
}

static mpr_status k_add(const KernelCall *c) { return binary(c, add_f, add_i); }
static mpr_status k_sub(const KernelCall *c) { return binary(c, sub_f, sub_i); }
static mpr_status k_mul(const KernelCall *c) { return binary(c, mul_f, mul_i); }
static mpr_status k_div(const KernelCall *c) { return binary(c, div_f, div_i); }
static mpr_status k_pow(const KernelCall *c) { return binary(c, pow, pow_i); }
static mpr_status k_mod(const KernelCall *c)
{
    const ModParams *p = c->params;
    return p->fmod ? binary(c, fmod, fmod_i) : binary(c, mod_f, mod_i);
}

/* ---- comparisons and logic: any type in, bool out ---- */

static double equal_f(double a, double b) { return a == b; }
static double less_f(double a, double b) { return a < b; }
static double greater_f(double a, double b) { return a > b; }
static double less_equal_f(double a, double b) { return a <= b; }
static double greater_equal_f(double a, double b) { return a >= b; }
static int64_t equal_i(int64_t a, int64_t b, bool u) { (void)u; return a == b; }
static int64_t less_i(int64_t a, int64_t b, bool u) { return less(a, b, u); }
static int64_t greater_i(int64_t a, int64_t b, bool u) { return less(b, a, u); }
static int64_t less_equal_i(int64_t a, int64_t b, bool u) { return !less(b, a, u); }
static int64_t greater_equal_i(int64_t a, int64_t b, bool u) { return !less(a, b, u); }
static int64_t and_i(int64_t a, int64_t b, bool u) { (void)u; return a && b; }
static int64_t or_i(int64_t a, int64_t b, bool u) { (void)u; return a || b; }

static mpr_status k_equal(const KernelCall *c) { return binary(c, equal_f, equal_i); }
static mpr_status k_less(const KernelCall *c) { return binary(c, less_f, less_i); }
static mpr_status k_greater(const KernelCall *c) { return binary(c, greater_f, greater_i); }
static mpr_status k_less_equal(const KernelCall *c)
{
    return binary(c, less_equal_f, less_equal_i);
}
static mpr_status k_greater_equal(const KernelCall *c)
{
    return binary(c, greater_equal_f, greater_equal_i);
}
static mpr_status k_and(const KernelCall *c) { return binary_int(c, and_i); }
static mpr_status k_or(const KernelCall *c) { return binary_int(c, or_i); }

/* ---- any number of inputs ---- */

static mpr_status variadic(const KernelCall *c, double (*f)(double, double), IntFn g)
{
    Tensor *y = &c->out[0];
    bool u = c->in[0].dtype == MPR_UINT64, real = is_float(y);
    for (int64_t i = 0; i < y->n; i++) {
        double r = 0;
        int64_t n = 0;
        for (int k = 0; k < c->n_in; k++) {
            const Tensor *x = &c->in[k];
            int64_t at = mpri_ref_broadcast(x, y, i);
            if (real) {
                double v = mpri_ref_load(x, at);
                r = k ? f(r, v) : v;
            } else {
                int64_t v = mpri_load_i64(x->dtype, x->data, at);
                n = k ? g(n, v, u) : v;
            }
        }
        if (real) mpri_ref_store(y, i, r);
        else mpri_store_i64(y->dtype, y->data, i, n);
    }
    return MPR_OK;
}

static mpr_status k_max(const KernelCall *c) { return variadic(c, max_f, max_i); }
static mpr_status k_min(const KernelCall *c) { return variadic(c, min_f, min_i); }
static mpr_status k_sum(const KernelCall *c) { return variadic(c, add_f, add_i); }

/* Inputs x, min, max; the limits are optional scalars. max wins over min, as ONNX says. */
static mpr_status k_clip(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    const Tensor *lo = c->n_in > 1 && mpri_tensor_here(&c->in[1]) ? &c->in[1] : NULL;
    const Tensor *hi = c->n_in > 2 && mpri_tensor_here(&c->in[2]) ? &c->in[2] : NULL;
    Tensor *y = &c->out[0];
    bool u = x->dtype == MPR_UINT64;
    for (int64_t i = 0; i < y->n; i++) {
        if (is_float(x)) {
            double v = mpri_ref_load(x, i);
            if (lo && v < mpri_ref_load(lo, 0)) v = mpri_ref_load(lo, 0);
            if (hi && v > mpri_ref_load(hi, 0)) v = mpri_ref_load(hi, 0);
            mpri_ref_store(y, i, v);
        } else {
            int64_t v = mpri_load_i64(x->dtype, x->data, i);
            if (lo) v = max_i(v, mpri_load_i64(lo->dtype, lo->data, 0), u);
            if (hi) v = min_i(v, mpri_load_i64(hi->dtype, hi->data, 0), u);
            mpri_store_i64(y->dtype, y->data, i, v);
        }
    }
    return MPR_OK;
}

/* Inputs condition, x, y. */
static mpr_status k_where(const KernelCall *c)
{
    const Tensor *cond = &c->in[0];
    Tensor *y = &c->out[0];
    size_t size = mpri_dtype_size(y->dtype);
    for (int64_t i = 0; i < y->n; i++) {
        bool first = mpri_load_i64(cond->dtype, cond->data, mpri_ref_broadcast(cond, y, i)) != 0;
        const Tensor *x = &c->in[first ? 1 : 2];
        int64_t at = mpri_ref_broadcast(x, y, i);
        if (x->dtype == y->dtype)
            memmove((char *)y->data + (size_t)i * size, (const char *)x->data + (size_t)at * size,
                    size);
        else
            mpri_ref_store(y, i, mpri_ref_load(x, at));
    }
    return MPR_OK;
}

/* ---- gradients: dy and the saved tensor have one shape ---- */

static double relu_grad(double dy, double y) { return y <= 0 ? 0 : dy; }
static double tanh_grad(double dy, double y) { return dy * (1 - y * y); }
static double sigmoid_grad(double dy, double y) { return dy * (y * (1 - y)); }
static double gelu_grad(double dy, double x) { return dy * mpri_ref_gelu_grad(x); }
static double gelu_tanh_grad(double dy, double x) { return dy * mpri_ref_gelu_tanh_grad(x); }

static mpr_status k_relu_grad(const KernelCall *c) { return binary_float(c, relu_grad); }
static mpr_status k_tanh_grad(const KernelCall *c) { return binary_float(c, tanh_grad); }
static mpr_status k_sigmoid_grad(const KernelCall *c) { return binary_float(c, sigmoid_grad); }
static mpr_status k_gelu_grad(const KernelCall *c)
{
    return binary_float(c, gelu_is_tanh(c) ? gelu_tanh_grad : gelu_grad);
}

static const KernelRow rows[] = {
    REF_ROW(Add, "add", k_add),
    REF_ROW(Sub, "sub", k_sub),
    REF_ROW(Mul, "mul", k_mul),
    REF_ROW(Div, "div", k_div),
    REF_ROW(Pow, "pow", k_pow),
    REF_ROW(Max, "max", k_max),
    REF_ROW(Min, "min", k_min),
    REF_ROW(Sum, "sum", k_sum),
    REF_ROW(Neg, "neg", k_neg),
    REF_ROW(Abs, "abs", k_abs),
    REF_ROW(Reciprocal, "reciprocal", k_reciprocal),
    REF_ROW(Sqrt, "sqrt", k_sqrt),
    REF_ROW(Exp, "exp", k_exp),
    REF_ROW(Log, "log", k_log),
    REF_ROW(Sin, "sin", k_sin),
    REF_ROW(Cos, "cos", k_cos),
    REF_ROW(Erf, "erf", k_erf),
    REF_ROW(Tanh, "tanh", k_tanh),
    REF_ROW(Sigmoid, "sigmoid", k_sigmoid),
    REF_ROW(Softsign, "softsign", k_softsign),
    REF_ROW(Relu, "relu", k_relu),
    REF_ROW(Gelu, "gelu", k_gelu),
    REF_ROW(Clip, "clip", k_clip),
    REF_ROW(Mod, "mod", k_mod),
    REF_ROW(Where, "where", k_where),
    REF_ROW(Equal, "equal", k_equal),
    REF_ROW(Less, "less", k_less),
    REF_ROW(Greater, "greater", k_greater),
    REF_ROW(LessOrEqual, "lessorequal", k_less_equal),
    REF_ROW(GreaterOrEqual, "greaterorequal", k_greater_equal),
    REF_ROW(And, "and", k_and),
    REF_ROW(Or, "or", k_or),
    REF_ROW(Not, "not", k_not),
    REF_ROW(ReluGrad, "relugrad", k_relu_grad),
    REF_ROW(TanhGrad, "tanhgrad", k_tanh_grad),
    REF_ROW(SigmoidGrad, "sigmoidgrad", k_sigmoid_grad),
    REF_ROW(GeluGrad, "gelugrad", k_gelu_grad),
};
const KernelTable mpri_ref_elementwise = REF_TABLE(rows);
