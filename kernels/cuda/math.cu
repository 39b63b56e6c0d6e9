/* Trigonometric and hyperbolic functions, rounding, sign, Mean, remainders, and powers with an
 * exponent of another kind; the walks are in elementwise.cuh and number.cuh. */
#include "kernels/cuda/number.cuh"

FLOAT_UNARY(TanF, tanf(x))
FLOAT_UNARY(AsinF, asinf(x))
FLOAT_UNARY(AcosF, acosf(x))
FLOAT_UNARY(AtanF, atanf(x))
FLOAT_UNARY(SinhF, sinhf(x))
FLOAT_UNARY(CoshF, coshf(x))
FLOAT_UNARY(AsinhF, asinhf(x))
FLOAT_UNARY(AcoshF, acoshf(x))
FLOAT_UNARY(AtanhF, atanhf(x))
FLOAT_UNARY(FloorF, floorf(x))
FLOAT_UNARY(CeilF, ceilf(x))
FLOAT_UNARY(RoundF, rintf(x)) /* halves to even */
FLOAT_UNARY(SignF, x != x ? x : (float)((x > 0) - (x < 0)))

/* fmod; ONNX's Mod on floats is defined with fmod = 1 only, without it the sign is the divisor's.
 */
template <bool OF_DIVISOR> struct ModF {
    enum { N = 2 };
    __device__ float operator()(const float *in) const
    {
        float r = fmodf(in[0], in[1]);
        return OF_DIVISOR && r != 0 && (r < 0) != (in[1] < 0) ? r + in[1] : r;
    }
};
static mpr_status k_mod(const KernelCall *c)
{
    const ModParams *p = (const ModParams *)c->params;
    return p->fmod ? elements(c, ModF<false>()) : elements(c, ModF<true>());
}

/* ---- Mean of one to four inputs ---- */
template <int COUNT> struct MeanF {
    enum { N = COUNT };
    __device__ float operator()(const float *in) const
    {
        double sum =
            0; /* 65504 + 65504 in f16 and the like stay whole in float, f32 sums may not */
        for (int k = 0; k < COUNT; k++) sum += (double)in[k];
        return (float)(sum / COUNT);
    }
};
static mpr_status k_mean(const KernelCall *c)
{
    if (c->n_in == 1) return elements(c, MeanF<1>());
    if (c->n_in == 2) return elements(c, MeanF<2>());
    return c->n_in == 3 ? elements(c, MeanF<3>()) : elements(c, MeanF<4>());
}
static const char *refuse_mean(const KernelSig *s)
{
    if (s->n_in > 4) return "at most four inputs";
    if (s->n_in == 1) return refuse_elements<MeanF<1>>(s);
    if (s->n_in == 2) return refuse_elements<MeanF<2>>(s);
    return s->n_in == 3 ? refuse_elements<MeanF<3>>(s) : refuse_elements<MeanF<4>>(s);
}

/* ---- Pow of a float to an integer ---- */
__global__ void k_power(Elements e, Walk w)
{
    for (int64_t i = grid_begin(); i < e.n; i += grid_step()) {
        double a = load_f64(e.in[0], e.type[0], walk_at(w, 0, (uint32_t)i));
        int64_t b = load_i64(e.in[1], e.type[1], walk_at(w, 1, (uint32_t)i));
        double exponent = e.type[1] == MPR_UINT64 ? (double)(uint64_t)b : (double)b;
        store_f64(e.out, e.out_type, i, pow(a, exponent));
    }
}
static mpr_status k_pow(const KernelCall *c)
{
    const Tensor *y = &c->out[0], *in[2] = {&c->in[0], &c->in[1]};
    Elements e = {};
    Walk w;
    if (!y->n) return MPR_OK;
    for (int k = 0; k < 2; k++) e.in[k] = in[k]->data, e.type[k] = (int)in[k]->dtype;
    e.out = y->data;
    e.out_type = (int)y->dtype;
    e.n = y->n;
    walk_init(&w, y, in, 2);
    MPRI_LAUNCH(k_power, blocks_for(e.n, ELEMENT_THREADS), ELEMENT_THREADS, 0, c->queue, e, w);
    return MPR_OK;
}
static const char *refuse_pow(const KernelSig *s)
{
    if (!type_is_float((int)s->in[0].dtype) || !type_is_float((int)s->out[0].dtype))
        return "a base of integers";
    if (!cuda_integer(s->in[1].dtype)) return "an exponent of floats";
    return s->out[0].n < INT32_MAX ? NULL : CUDA_TOO_LARGE;
}

static const KernelRow rows[] = {
    ELEMENT_ROW(Tan, "tan", TanF),
    ELEMENT_ROW(Asin, "asin", AsinF),
    ELEMENT_ROW(Acos, "acos", AcosF),
    ELEMENT_ROW(Atan, "atan", AtanF),
    ELEMENT_ROW(Sinh, "sinh", SinhF),
    ELEMENT_ROW(Cosh, "cosh", CoshF),
    ELEMENT_ROW(Asinh, "asinh", AsinhF),
    ELEMENT_ROW(Acosh, "acosh", AcoshF),
    ELEMENT_ROW(Atanh, "atanh", AtanhF),
    ELEMENT_ROW(Floor, "floor", FloorF),
    ELEMENT_ROW(Ceil, "ceil", CeilF),
    ELEMENT_ROW(Round, "round", RoundF),
    ELEMENT_ROW(Sign, "sign", SignF),
    CUDA_ROW(Mod, "mod", k_mod, .refuse = refuse_elements<ModF<false>>),
    CUDA_ROW(Mean, "mean", k_mean, .refuse = refuse_mean),
    CUDA_ROW(Pow, "pow.mixed", k_pow, .refuse = refuse_pow),
};
extern "C" const KernelTable mpri_cuda_math = CUDA_TABLE(rows);
