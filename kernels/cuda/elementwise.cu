/* Elementwise operators on floats, with numpy broadcasting; the walk is in elementwise.cuh. NaN
 * propagates through Max, Min, Clip and Relu as in the reference kernels. */
#include "kernels/cuda/elementwise.cuh"

FLOAT_UNARY(NegF, -x)
FLOAT_UNARY(AbsF, fabsf(x))
FLOAT_UNARY(ReciprocalF, 1.0f / x)
FLOAT_UNARY(SqrtF, sqrtf(x))
FLOAT_UNARY(ExpF, expf(x))
FLOAT_UNARY(LogF, logf(x))
FLOAT_UNARY(SinF, sinf(x))
FLOAT_UNARY(CosF, cosf(x))
FLOAT_UNARY(ErfF, erff(x))
FLOAT_UNARY(TanhF, tanhf(x))
FLOAT_UNARY(SigmoidF, sigmoid(x))
FLOAT_UNARY(SoftsignF, x / (1.0f + fabsf(x)))
FLOAT_UNARY(ReluF, x > 0 || x != x ? x : 0)
FLOAT_UNARY(GeluF, gelu(x))
FLOAT_UNARY(GeluTanhF, gelu_tanh(x))

FLOAT_BINARY(AddF, a + b)
FLOAT_BINARY(SubF, a - b)
FLOAT_BINARY(MulF, a * b)
FLOAT_BINARY(DivF, a / b)
FLOAT_BINARY(PowF, powf(a, b))
FLOAT_BINARY(MaxF, a != a || a > b ? a : b)
FLOAT_BINARY(MinF, a != a || a < b ? a : b)
FLOAT_BINARY(ReluGradF, b <= 0 ? 0 : a)
FLOAT_BINARY(TanhGradF, a * (1 - b * b))
FLOAT_BINARY(SigmoidGradF, a * (b * (1 - b)))
FLOAT_BINARY(GeluGradF, a * gelu_slope(b))
FLOAT_BINARY(GeluTanhGradF, a * gelu_tanh_slope(b))

static bool is_tanh(const KernelCall *c)
{
    const GeluParams *p = (const GeluParams *)c->params;
    return p->approximate && strcmp(p->approximate, "tanh") == 0;
}
static mpr_status k_gelu(const KernelCall *c)
{
    return is_tanh(c) ? elements(c, GeluTanhF()) : elements(c, GeluF());
}
static mpr_status k_gelu_grad(const KernelCall *c)
{
    return is_tanh(c) ? elements(c, GeluTanhGradF()) : elements(c, GeluGradF());
}

/* ---- x squared, the most frequent power, from a constant exponent ---- */
FLOAT_UNARY(SquareF, x * x)
static const char *refuse_square(const KernelSig *s)
{
    bool two = s->n_in > 1 && (s->const_in >> 1 & 1) && s->in[1].n == 1 &&
               s->in[0].n == s->out[0].n && mpri_load_f64(s->in[1].dtype, s->in[1].host, 0) == 2;
    return two ? refuse_elements<SquareF>(s) : "the exponent is no constant 2";
}

/* ---- any number of inputs: two to four ---- */
template <typename F, int COUNT> struct FoldF {
    enum { N = COUNT };
    __device__ float operator()(const float *in) const
    {
        float pair[2] = {in[0], 0};
        for (int k = 1; k < COUNT; k++) {
            pair[1] = in[k];
            pair[0] = F()(pair);
        }
        return pair[0];
    }
};
template <typename F> static mpr_status k_fold(const KernelCall *c)
{
    if (c->n_in == 1) return elements(c, FoldF<F, 1>());
    if (c->n_in == 2) return elements(c, FoldF<F, 2>());
    if (c->n_in == 3) return elements(c, FoldF<F, 3>());
    return elements(c, FoldF<F, 4>());
}
template <typename F> static const char *refuse_fold(const KernelSig *s)
{
    if (s->n_in > 4) return "at most four inputs";
    if (s->n_in == 1) return refuse_elements<FoldF<F, 1>>(s);
    if (s->n_in == 2) return refuse_elements<FoldF<F, 2>>(s);
    return s->n_in == 3 ? refuse_elements<FoldF<F, 3>>(s) : refuse_elements<FoldF<F, 4>>(s);
}

/* ---- Clip: limits are scalars on the device; an absent one is infinite ---- */
struct ClipF {
    enum { N = 1 };
    const void *low, *high;
    int low_type, high_type;
    __device__ float operator()(const float *in) const
    {
        float v = in[0];
        if (low) {
            float l = load_float(low, low_type, 0);
            if (v < l) v = l;
        }
        if (high) {
            float h = load_float(high, high_type, 0);
            if (v > h) v = h;
        }
        return v;
    }
};
static mpr_status k_clip(const KernelCall *c)
{
    const Tensor *low = input_of(c, 1), *high = input_of(c, 2);
    ClipF f = {};
    if (low) f.low = low->data, f.low_type = (int)low->dtype;
    if (high) f.high = high->data, f.high_type = (int)high->dtype;
    return elements(c, f);
}
static const char *refuse_clip(const KernelSig *s)
{
    for (int k = 1; k < s->n_in; k++)
        if (mpri_tensor_here(&s->in[k]) && !cuda_float(s->in[k].dtype)) return CUDA_NOT_FLOAT;
    return refuse_elements<ClipF>(s);
}

static const KernelRow rows[] = {
    ELEMENT_ROW(Add, "add", AddF),
    ELEMENT_ROW(Sub, "sub", SubF),
    ELEMENT_ROW(Mul, "mul", MulF),
    ELEMENT_ROW(Div, "div", DivF),
    CUDA_ROW(Pow, "square", k_plain<SquareF>, .refuse = refuse_square),
    ELEMENT_ROW(Pow, "pow", PowF),
    CUDA_ROW(Max, "max", k_fold<MaxF>, .refuse = refuse_fold<MaxF>),
    CUDA_ROW(Min, "min", k_fold<MinF>, .refuse = refuse_fold<MinF>),
    CUDA_ROW(Sum, "sum", k_fold<AddF>, .refuse = refuse_fold<AddF>),
    ELEMENT_ROW(Neg, "neg", NegF),
    ELEMENT_ROW(Abs, "abs", AbsF),
    ELEMENT_ROW(Reciprocal, "reciprocal", ReciprocalF),
    ELEMENT_ROW(Sqrt, "sqrt", SqrtF),
    ELEMENT_ROW(Exp, "exp", ExpF),
    ELEMENT_ROW(Log, "log", LogF),
    ELEMENT_ROW(Sin, "sin", SinF),
    ELEMENT_ROW(Cos, "cos", CosF),
    ELEMENT_ROW(Erf, "erf", ErfF),
    ELEMENT_ROW(Tanh, "tanh", TanhF),
    ELEMENT_ROW(Sigmoid, "sigmoid", SigmoidF),
    ELEMENT_ROW(Softsign, "softsign", SoftsignF),
    ELEMENT_ROW(Relu, "relu", ReluF),
    CUDA_ROW(Gelu, "gelu", k_gelu, .refuse = refuse_elements<GeluF>),
    CUDA_ROW(Clip, "clip", k_clip, .refuse = refuse_clip),
    ELEMENT_ROW(ReluGrad, "relugrad", ReluGradF),
    ELEMENT_ROW(TanhGrad, "tanhgrad", TanhGradF),
    ELEMENT_ROW(SigmoidGrad, "sigmoidgrad", SigmoidGradF),
    CUDA_ROW(GeluGrad, "gelugrad", k_gelu_grad, .refuse = refuse_elements<GeluGradF>),
};
extern "C" const KernelTable mpri_cuda_elementwise = CUDA_TABLE(rows);
