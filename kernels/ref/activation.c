/* Activations and their gradients from the input, one element at a time, in double. A product with
 * a slope of 0 is not taken: 0 * inf would turn a cut gradient into NaN. An infinite input gives
 * Swish, Mish and their derivatives NaN where the formula has inf * 0, as PyTorch. */
#include "kernels/ref/util.h"

typedef double (*Fn)(double x, const void *params);
typedef double (*PairFn)(double dy, double x, const void *params);

static mpr_status each(const KernelCall *c, Fn f)
{
    for (int64_t i = 0; i < c->out[0].n; i++)
        mpri_ref_store(&c->out[0], i, f(mpri_ref_load(&c->in[0], i), c->params));
    return MPR_OK;
}

/* Inputs dy, x. */
static mpr_status each_grad(const KernelCall *c, PairFn f)
{
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double dy = mpri_ref_load(&c->in[0], i), x = mpri_ref_load(&c->in[1], i);
        mpri_ref_store(&c->out[0], i, f(dy, x, c->params));
    }
    return MPR_OK;
}

static double alpha_of(const void *params)
{
    return (double)((const AlphaParams *)params)->alpha;
}

/* ---- rectifiers ---- */

static double leaky_relu(double x, const void *p) { return x > 0 ? x : alpha_of(p) * x; }
static double leaky_relu_grad(double dy, double x, const void *p)
{
    return x > 0 ? dy : alpha_of(p) * dy;
}
static double thresholded_relu(double x, const void *p)
{
    return x > alpha_of(p) || isnan(x) ? x : 0;
}

static mpr_status k_prelu(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *slope = &c->in[1];
    Tensor *y = &c->out[0];
    bool real = mpri_dtype_is_float(y->dtype), is_signed = x->dtype == MPR_INT32 ||
                                                           x->dtype == MPR_INT64;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at = mpri_ref_broadcast(slope, y, i);
        if (real) {
            double v = mpri_ref_load(x, i);
            mpri_ref_store(y, i, v >= 0 ? v : mpri_ref_load(slope, at) * v);
        } else {
            int64_t v = mpri_load_i64(x->dtype, x->data, i);
            uint64_t s = (uint64_t)mpri_load_i64(slope->dtype, slope->data, at);
            mpri_store_i64(y->dtype, y->data, i,
                           is_signed && v < 0 ? (int64_t)(s * (uint64_t)v) : v);
        }
    }
    return MPR_OK;
}

/* Integers are compared and moved as doubles; the bias is truncated to their type last. */
static double shrink(double x, const void *params)
{
    const ShrinkParams *p = params;
    double lambd = (double)p->lambd, bias = (double)p->bias;
    if (x < -lambd) return x + bias;
    return x > lambd ? x - bias : isnan(x) ? x : 0;
}

static mpr_status k_leaky_relu(const KernelCall *c) { return each(c, leaky_relu); }
static mpr_status k_leaky_relu_grad(const KernelCall *c) { return each_grad(c, leaky_relu_grad); }
static mpr_status k_thresholded_relu(const KernelCall *c) { return each(c, thresholded_relu); }
static mpr_status k_shrink(const KernelCall *c) { return each(c, shrink); }

/* ---- exponential ones ---- */

static double elu(double x, const void *p) { return x > 0 ? x : alpha_of(p) * expm1(x); }
static double celu(double x, const void *p)
{
    return x > 0 ? x : alpha_of(p) * expm1(x / alpha_of(p));
}
static double selu(double x, const void *params)
{
    const SeluParams *p = params;
    return (double)p->gamma * (x > 0 ? x : (double)p->alpha * expm1(x));
}
static double elu_grad(double dy, double x, const void *params)
{
    const EluGradParams *p = params;
    if (x > 0) return dy * (double)p->gamma;
    double divisor = (double)p->divisor;
    return dy * (double)p->gamma * ((double)p->alpha / divisor) * exp(x / divisor);
}

static mpr_status k_elu(const KernelCall *c) { return each(c, elu); }
static mpr_status k_selu(const KernelCall *c) { return each(c, selu); }
static mpr_status k_celu(const KernelCall *c) { return each(c, celu); }
static mpr_status k_elu_grad(const KernelCall *c) { return each_grad(c, elu_grad); }

/* ---- hard ones ---- */

static double clamp01(double x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

static double hard_sigmoid(double x, const void *params)
{
    const HardSigmoidParams *p = params;
    return clamp01((double)p->alpha * x + (double)p->beta);
}
static double hard_sigmoid_grad(double dy, double x, const void *params)
{
    const HardSigmoidParams *p = params;
    double y = (double)p->alpha * x + (double)p->beta;
    if (isnan(y)) return y;
    return y > 0 && y < 1 ? dy * (double)p->alpha : 0;
}
static double hard_swish(double x, const void *p)
{
    (void)p;
    return x * clamp01(x / 6 + 0.5);
}
static double hard_swish_grad(double dy, double x, const void *p)
{
    (void)p;
    if (x <= -3) return 0;
    return x >= 3 ? dy : dy * (x / 3 + 0.5);
}

static mpr_status k_hard_sigmoid(const KernelCall *c) { return each(c, hard_sigmoid); }
static mpr_status k_hard_sigmoid_grad(const KernelCall *c)
{
    return each_grad(c, hard_sigmoid_grad);
}
static mpr_status k_hard_swish(const KernelCall *c) { return each(c, hard_swish); }
static mpr_status k_hard_swish_grad(const KernelCall *c) { return each_grad(c, hard_swish_grad); }

/* ---- smooth ones ---- */

static double softplus(double x, const void *p)
{
    (void)p;
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}
static double softplus_grad(double dy, double x, const void *p)
{
    (void)p;
    return dy * mpri_ref_sigmoid(x);
}

/* With e = e^x and n = e (e + 2): tanh(log(1 + e)) = n / (n + 2). */
static double mish(double x, const void *p)
{
    (void)p;
    double e = exp(x < 300 ? x : 300), n = e * (e + 2);
    return isnan(x) ? x : x * (n / (n + 2));
}
static double mish_grad(double dy, double x, const void *p)
{
    (void)p;
    double e = exp(x < 100 ? x : 100), n = e * (e + 2);
    double slope = 4 * e * (1 + e) / ((n + 2) * (n + 2));
    return dy * (n / (n + 2) + (isinf(x) ? NAN : x * slope));
}

static double swish(double x, const void *p) { return x * mpri_ref_sigmoid(alpha_of(p) * x); }
static double swish_grad(double dy, double x, const void *p)
{
    double z = alpha_of(p) * x, s = mpri_ref_sigmoid(z);
    return dy * (s + z * (s * mpri_ref_sigmoid(-z)));
}

static mpr_status k_swiglu(const KernelCall *c)
{
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double a = mpri_ref_load(&c->in[0], i), b = mpri_ref_load(&c->in[1], i);
        mpri_ref_store(&c->out[0], i, swish(a, c->params) * b);
    }
    return MPR_OK;
}

static mpr_status k_softplus(const KernelCall *c) { return each(c, softplus); }
static mpr_status k_softplus_grad(const KernelCall *c) { return each_grad(c, softplus_grad); }
static mpr_status k_mish(const KernelCall *c) { return each(c, mish); }
static mpr_status k_mish_grad(const KernelCall *c) { return each_grad(c, mish_grad); }
static mpr_status k_swish(const KernelCall *c) { return each(c, swish); }
static mpr_status k_swish_grad(const KernelCall *c) { return each_grad(c, swish_grad); }

static const KernelRow rows[] = {
    REF_ROW(LeakyRelu, "leakyrelu", k_leaky_relu),
    REF_ROW(PRelu, "prelu", k_prelu),
    REF_ROW(ThresholdedRelu, "thresholdedrelu", k_thresholded_relu),
    REF_ROW(Elu, "elu", k_elu),
    REF_ROW(Selu, "selu", k_selu),
    REF_ROW(Celu, "celu", k_celu),
    REF_ROW(HardSigmoid, "hardsigmoid", k_hard_sigmoid),
    REF_ROW(HardSwish, "hardswish", k_hard_swish),
    REF_ROW(Softplus, "softplus", k_softplus),
    REF_ROW(Mish, "mish", k_mish),
    REF_ROW(Swish, "swish", k_swish),
    REF_ROW(SwiGLU, "swiglu", k_swiglu),
    REF_ROW(Shrink, "shrink", k_shrink),
    REF_ROW(LeakyReluGrad, "leakyrelugrad", k_leaky_relu_grad),
    REF_ROW(EluGrad, "elugrad", k_elu_grad),
    REF_ROW(HardSigmoidGrad, "hardsigmoidgrad", k_hard_sigmoid_grad),
    REF_ROW(HardSwishGrad, "hardswishgrad", k_hard_swish_grad),
    REF_ROW(SoftplusGrad, "softplusgrad", k_softplus_grad),
    REF_ROW(MishGrad, "mishgrad", k_mish_grad),
    REF_ROW(SwishGrad, "swishgrad", k_swish_grad),
};
const KernelTable mpri_ref_activation = REF_TABLE(rows);
