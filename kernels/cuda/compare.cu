/* Comparisons of every type, tests for NaN and infinity, and Where. Floats are compared as floats,
 * doubles as doubles, integers as integers; the walk is in number.cuh. Where moves elements by
 * size: any type. Traffic: every input once, the result once. 256 threads a block. */
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/number.cuh"

#define COMPARE(Name, of_ints, of_floats)                                            \
    template <typename V> struct Name {                                              \
        enum { N = 2 };                                                              \
        __device__ bool operator()(const V *in, bool is_unsigned) const              \
        {                                                                            \
            V a = in[0], b = in[1];                                                  \
            if constexpr (std::is_same_v<V, int64_t>) {                              \
                bool u = is_unsigned;                                                \
                (void)u;                                                             \
                return of_ints;                                                      \
            } else {                                                                 \
                return of_floats;                                                    \
            }                                                                        \
        }                                                                            \
    };
COMPARE(EqualF, a == b, a == b)
COMPARE(LessF, less_i64(a, b, u), a < b)
COMPARE(GreaterF, less_i64(b, a, u), a > b)
COMPARE(LessEqualF, !less_i64(b, a, u), a <= b)
COMPARE(GreaterEqualF, !less_i64(a, b, u), a >= b)

template <template <typename> class F> static mpr_status k_compare(const KernelCall *c)
{
    DType a = c->in[0].dtype, b = c->in[1].dtype;
    if (cuda_integer(a)) return each<int64_t>(c, F<int64_t>());
    if (cuda_float(a) && cuda_float(b)) return each<float>(c, F<float>());
    return each<double>(c, F<double>());
}
static const char *refuse_compare(const KernelSig *s)
{
    bool a = cuda_integer(s->in[0].dtype), b = cuda_integer(s->in[1].dtype);
    return a == b ? refuse_walk(s) : "an integer and a float";
}

struct IsNanF {
    enum { N = 1 };
    template <typename V> __device__ bool operator()(const V *in, bool) const
    {
        return in[0] != in[0];
    }
};
struct IsInfF {
    enum { N = 1 };
    int negative, positive;
    template <typename V> __device__ bool operator()(const V *in, bool) const
    {
        return isinf(in[0]) && (in[0] > 0 ? positive : negative);
    }
};
template <typename F> static mpr_status test(const KernelCall *c, F f)
{
    return c->in[0].dtype == MPR_FLOAT64 ? each<double>(c, f) : each<float>(c, f);
}
static mpr_status k_is_nan(const KernelCall *c) { return test(c, IsNanF()); }
static mpr_status k_is_inf(const KernelCall *c)
{
    const IsInfParams *p = (const IsInfParams *)c->params;
    return test(c, IsInfF{p->detect_negative != 0, p->detect_positive != 0});
}

/* ---- Where ---- */

typedef struct Choice {
    const uint8_t *condition;
    const void *in[2];
    void *out;
    int64_t n;
    int type[2], out_type, walk;
} Choice;

template <typename T> __global__ void k_choose(Choice c, Walk w)
{
    for (int64_t i = grid_begin(); i < c.n; i += grid_step()) {
        bool first = c.condition[c.walk ? walk_at(w, 0, (uint32_t)i) : i];
        T v; /* fixed places in the parameters only: no copy of them in local memory */
        if (first) v = ((const T *)c.in[0])[c.walk ? walk_at(w, 1, (uint32_t)i) : i];
        else v = ((const T *)c.in[1])[c.walk ? walk_at(w, 2, (uint32_t)i) : i];
        ((T *)c.out)[i] = v;
    }
}

/* Floats of several types. */
__global__ void k_choose_mixed(Choice c, Walk w)
{
    for (int64_t i = grid_begin(); i < c.n; i += grid_step()) {
        bool first = c.condition[c.walk ? walk_at(w, 0, (uint32_t)i) : i];
        double v;
        if (first) v = load_f64(c.in[0], c.type[0], c.walk ? walk_at(w, 1, (uint32_t)i) : i);
        else v = load_f64(c.in[1], c.type[1], c.walk ? walk_at(w, 2, (uint32_t)i) : i);
        store_f64(c.out, c.out_type, i, v);
    }
}

static mpr_status k_where(const KernelCall *c)
{
    const Tensor *y = &c->out[0], *in[3] = {&c->in[0], &c->in[1], &c->in[2]};
    Choice a = {(const uint8_t *)in[0]->data, {in[1]->data, in[2]->data}, y->data, y->n,
                {(int)in[1]->dtype, (int)in[2]->dtype}, (int)y->dtype, 0};
    Walk w = {};
    if (!y->n) return MPR_OK;
    a.walk = in[0]->n != y->n || in[1]->n != y->n || in[2]->n != y->n;
    if (a.walk) walk_init(&w, y, in, 3);
    unsigned blocks = blocks_for(y->n, ELEMENT_THREADS);
    if (in[1]->dtype != y->dtype || in[2]->dtype != y->dtype)
        MPRI_LAUNCH(k_choose_mixed, blocks, ELEMENT_THREADS, 0, c->queue, a, w);
    else
        with_size(mpri_dtype_size(y->dtype), [&](auto zero) {
            typedef decltype(zero) T;
            MPRI_LAUNCH(k_choose<T>, blocks, ELEMENT_THREADS, 0, c->queue, a, w);
        });
    return MPR_OK;
}

static const char *refuse_where(const KernelSig *s)
{
    for (int k = 1; k < 3; k++)
        if (s->in[k].dtype != s->out[0].dtype &&
            !(type_is_float((int)s->in[k].dtype) && type_is_float((int)s->out[0].dtype)))
            return "integers of several types";
    return refuse_walk(s);
}

#define COMPARE_ROW(Op, lower, F) CUDA_ROW(Op, lower, k_compare<F>, .refuse = refuse_compare)
static const KernelRow rows[] = {
    COMPARE_ROW(Equal, "equal", EqualF),
    COMPARE_ROW(Less, "less", LessF),
    COMPARE_ROW(Greater, "greater", GreaterF),
    COMPARE_ROW(LessOrEqual, "lessorequal", LessEqualF),
    COMPARE_ROW(GreaterOrEqual, "greaterorequal", GreaterEqualF),
    CUDA_ROW(IsNaN, "isnan", k_is_nan),
    CUDA_ROW(IsInf, "isinf", k_is_inf),
    CUDA_ROW(Where, "where", k_where, .refuse = refuse_where),
};
extern "C" const KernelTable mpri_cuda_compare = CUDA_TABLE(rows);
