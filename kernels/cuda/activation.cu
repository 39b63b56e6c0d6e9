/* Activations and their gradients from the input, and their parameters; the walk is in
 * elementwise.cuh. A product with a slope of 0 is not taken: 0 * inf would turn a cut gradient into
 * NaN. An infinite input gives Swish, Mish and their derivatives NaN where the formula has inf * 0,
 * as the reference kernels. */
#include "kernels/cuda/number.cuh"

/* With parameters: f(x, alpha …) and f(dy, x, alpha …) over A, which the host fills from the
 * operator's. */
#define FORWARD(Name, Params, expression)                          \
    struct Name {                                                  \
        enum { N = 1 };                                            \
        Params p;                                                  \
        __device__ float operator()(const float *in) const         \
        {                                                          \
            float x = in[0];                                       \
            return expression;                                     \
        }                                                          \
    };
#define BACKWARD(Name, Params, expression)                         \
    struct Name {                                                  \
        enum { N = 2 };                                            \
        Params p;                                                  \
        __device__ float operator()(const float *in) const         \
        {                                                          \
            float dy = in[0], x = in[1];                           \
            return expression;                                     \
        }                                                          \
    };

typedef struct None {
    char unused;
} None;

static __device__ __forceinline__ float clamp01(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
static __device__ __forceinline__ float hard_slope(float dy, float y, float alpha)
{
    if (y != y) return y;
    return y > 0 && y < 1 ? dy * alpha : 0;
}
static __device__ __forceinline__ float elu_slope(float dy, float x, const EluGradParams &p)
{
    if (x > 0) return dy * p.gamma;
    return dy * p.gamma * (p.alpha / p.divisor) * expf(x / p.divisor);
}
static __device__ __forceinline__ float softplus(float x)
{
    return (x > 0 ? x : x != x ? x : 0) + log1pf(expf(-fabsf(x)));
}
/* With e = e^x and n = e (e + 2): tanh(log(1 + e)) = n / (n + 2). Above 20 the quotient is 1. */
static __device__ __forceinline__ float mish(float x)
{
    float e = expf(x < 20 ? x : 20.0f), n = e * (e + 2);
    return x != x ? x : x > 20 ? x : x * (n / (n + 2));
}
static __device__ __forceinline__ float mish_slope(float x)
{
    float e = expf(x < 20 ? x : 20.0f), n = e * (e + 2);
    float slope = 4 * e * (1 + e) / ((n + 2) * (n + 2));
    if (isinf(x)) return NAN;
    return x > 20 ? 1.0f : n / (n + 2) + x * slope;
}
static __device__ __forceinline__ float swish(float x, float alpha)
{
    return x * sigmoid(alpha * x);
}
static __device__ __forceinline__ float swish_slope(float x, float alpha)
{
    float z = alpha * x, s = sigmoid(z);
    return s + z * (s * sigmoid(-z));
}

FORWARD(LeakyReluF, AlphaParams, x > 0 ? x : p.alpha * x)
FORWARD(ThresholdedReluF, AlphaParams, x > p.alpha || x != x ? x : 0)
FORWARD(EluF, AlphaParams, x > 0 ? x : p.alpha * expm1f(x))
FORWARD(CeluF, AlphaParams, x > 0 ? x : p.alpha * expm1f(x / p.alpha))
FORWARD(SeluF, SeluParams, p.gamma * (x > 0 ? x : p.alpha * expm1f(x)))
FORWARD(HardSigmoidF, HardSigmoidParams, clamp01(p.alpha * x + p.beta))
FORWARD(HardSwishF, None, x * clamp01(x / 6 + 0.5f))
FORWARD(SoftplusF, None, softplus(x))
FORWARD(MishF, None, mish(x))
FORWARD(SwishF, AlphaParams, swish(x, p.alpha))
FORWARD(ShrinkF, ShrinkParams,
        x < -p.lambd ? x + p.bias : x > p.lambd ? x - p.bias : x != x ? x : 0)

BACKWARD(LeakyReluGradF, AlphaParams, x > 0 ? dy : p.alpha * dy)
BACKWARD(EluGradF, EluGradParams, elu_slope(dy, x, p))
BACKWARD(HardSigmoidGradF, HardSigmoidParams, hard_slope(dy, p.alpha * x + p.beta, p.alpha))
BACKWARD(HardSwishGradF, None, x <= -3 ? 0 : x >= 3 ? dy : dy * (x / 3 + 0.5f))
BACKWARD(SoftplusGradF, None, dy * sigmoid(x))
BACKWARD(MishGradF, None, dy * mish_slope(x))
BACKWARD(SwishGradF, AlphaParams, dy * swish_slope(x, p.alpha))

/* in[0] gates: swish(a) * b. */
struct SwiGluF {
    enum { N = 2 };
    AlphaParams p;
    __device__ float operator()(const float *in) const { return swish(in[0], p.alpha) * in[1]; }
};

/* F's parameters are the operator's, as they are. */
template <typename F> static mpr_status k_with_params(const KernelCall *c)
{
    F f = {};
    f.p = *(const decltype(f.p) *)c->params;
    return elements(c, f);
}

/* ---- PRelu: inputs x, slope; the slope broadcasts ---- */
struct PReluF {
    enum { N = 2 };
    __device__ float operator()(const float *in) const
    {
        return in[0] >= 0 ? in[0] : in[1] * in[0];
    }
};
struct PReluIntF {
    enum { N = 2 };
    int is_signed;
    __device__ int64_t operator()(const int64_t *in, bool) const
    {
        return is_signed && in[0] < 0 ? (int64_t)((uint64_t)in[1] * (uint64_t)in[0]) : in[0];
    }
};
static mpr_status k_prelu_int(const KernelCall *c)
{
    DType t = c->in[0].dtype;
    return each<int64_t>(c, PReluIntF{t == MPR_INT32 || t == MPR_INT64});
}

/* Integers are compared and moved as doubles; the bias is truncated to their type last. */
struct ShrinkIntF {
    enum { N = 1 };
    double lambd, bias;
    __device__ int64_t operator()(const int64_t *in, bool is_unsigned) const
    {
        double x = is_unsigned ? (double)(uint64_t)in[0] : (double)in[0];
        double y = x < -lambd ? x + bias : x > lambd ? x - bias : 0;
        return is_unsigned ? (y > 0 ? (int64_t)(uint64_t)y : 0) : (int64_t)y;
    }
};
static mpr_status k_shrink_int(const KernelCall *c)
{
    const ShrinkParams *p = (const ShrinkParams *)c->params;
    return each<int64_t>(c, ShrinkIntF{(double)p->lambd, (double)p->bias});
}
/* Smaller types saturate at the store. */
static const char *refuse_shrink_int(const KernelSig *s)
{
    return s->in[0].dtype == MPR_INT64 || s->in[0].dtype == MPR_INT32 ? refuse_int(s)
                                                                      : "only int32 and int64";
}

#define PARAM_ROW(Op, lower, F) CUDA_ROW(Op, lower, k_with_params<F>, .refuse = refuse_elements<F>)
static const KernelRow rows[] = {
    PARAM_ROW(LeakyRelu, "leakyrelu", LeakyReluF),
    PARAM_ROW(ThresholdedRelu, "thresholdedrelu", ThresholdedReluF),
    PARAM_ROW(Elu, "elu", EluF),
    PARAM_ROW(Celu, "celu", CeluF),
    PARAM_ROW(Selu, "selu", SeluF),
    PARAM_ROW(HardSigmoid, "hardsigmoid", HardSigmoidF),
    ELEMENT_ROW(HardSwish, "hardswish", HardSwishF),
    ELEMENT_ROW(Softplus, "softplus", SoftplusF),
    ELEMENT_ROW(Mish, "mish", MishF),
    PARAM_ROW(Swish, "swish", SwishF),
    PARAM_ROW(SwiGLU, "swiglu", SwiGluF),
    PARAM_ROW(Shrink, "shrink", ShrinkF),
    CUDA_ROW(Shrink, "shrink.int", k_shrink_int, .refuse = refuse_shrink_int),
    ELEMENT_ROW(PRelu, "prelu", PReluF),
    CUDA_ROW(PRelu, "prelu.int", k_prelu_int, .refuse = refuse_int),
    PARAM_ROW(LeakyReluGrad, "leakyrelugrad", LeakyReluGradF),
    PARAM_ROW(EluGrad, "elugrad", EluGradF),
    PARAM_ROW(HardSigmoidGrad, "hardsigmoidgrad", HardSigmoidGradF),
    ELEMENT_ROW(HardSwishGrad, "hardswishgrad", HardSwishGradF),
    ELEMENT_ROW(SoftplusGrad, "softplusgrad", SoftplusGradF),
    ELEMENT_ROW(MishGrad, "mishgrad", MishGradF),
    PARAM_ROW(SwishGrad, "swishgrad", SwishGradF),
};
extern "C" const KernelTable mpri_cuda_activation = CUDA_TABLE(rows);
