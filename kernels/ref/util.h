/* Shared by the reference families: row macro, broadcasting, axes and small scalar functions. */
#ifndef MPRI_REF_UTIL_H
#define MPRI_REF_UTIL_H

#include <math.h>
#include <string.h>
#include "runtime/exec/kernel.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"

/* The rows of each family, at the end of its file. */
extern const KernelTable mpri_ref_elementwise, mpri_ref_cast, mpri_ref_matmul, mpri_ref_reduce,
    mpri_ref_softmax, mpri_ref_norm;
extern const KernelTable mpri_ref_loss, mpri_ref_layout, mpri_ref_index, mpri_ref_conv,
    mpri_ref_dropout, mpri_ref_update, mpri_ref_attention, mpri_ref_rotary, mpri_ref_recurrent;
extern const KernelTable mpri_ref_tile_pad, mpri_ref_scatter, mpri_ref_select, mpri_ref_onehot;
extern const KernelTable mpri_ref_activation, mpri_ref_math, mpri_ref_bitwise;
extern const KernelTable mpri_ref_reduce_norms, mpri_ref_reduce_arg, mpri_ref_cumulative,
    mpri_ref_topk, mpri_ref_norm_rms, mpri_ref_norm_group, mpri_ref_norm_batch,
    mpri_ref_norm_lp, mpri_ref_det, mpri_ref_loss_nll;
extern const KernelTable mpri_ref_einsum, mpri_ref_random;
extern const KernelTable mpri_ref_pool, mpri_ref_resize, mpri_ref_conv_transpose,
    mpri_ref_grid_sample, mpri_ref_space, mpri_ref_quantize;

#define REF_TABLE(rows) {(rows), (int)(sizeof(rows) / sizeof((rows)[0]))}
#define REF_ROW(Op, lower, function) {.op = OP_##Op, .name = "ref." lower, .fn = (function)}

/* Element of `in` that meets element i of `out` under numpy broadcasting (dims align right). */
static inline int64_t mpri_ref_broadcast(const Tensor *in, const Tensor *out, int64_t i)
{
    if (in->n == out->n) return i;
    if (in->n <= 1) return 0;
    int64_t at = 0, stride = 1;
    for (int k = in->rank - 1, o = out->rank - 1; k >= 0; k--, o--) {
        if (in->dims[k] != 1) at += i % out->dims[o] * stride;
        stride *= in->dims[k];
        i /= out->dims[o];
    }
    return at;
}

/* Axis counted from the front. */
static inline int mpri_ref_axis(int64_t axis, int rank)
{
    return (int)(axis < 0 ? axis + rank : axis);
}

/* Product of dims [from, to). */
static inline int64_t mpri_ref_span(const Tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int k = from; k < to; k++) n *= t->dims[k];
    return n;
}

static inline double mpri_ref_load(const Tensor *t, int64_t i)
{
    return mpri_load_f64(t->dtype, t->data, i);
}

static inline void mpri_ref_store(Tensor *t, int64_t i, double v)
{
    mpri_store_f64(t->dtype, t->data, i, v);
}

static inline double mpri_ref_sigmoid(double x)
{
    if (x >= 0) return 1 / (1 + exp(-x));
    double e = exp(x);
    return e / (1 + e);
}

static inline double mpri_ref_relu(double x)
{
    return x > 0 || isnan(x) ? x : 0;
}

/* x * Phi(x). erfc keeps the relative precision of the tail that 1 + erf loses. */
static inline double mpri_ref_gelu(double x)
{
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

static inline double mpri_ref_gelu_grad(double x)
{
    double density = exp(-0.5 * x * x) * (0.5 * M_SQRT1_2 * M_2_SQRTPI);
    return 0.5 * erfc(-x * M_SQRT1_2) + (density > 0 ? x * density : 0 * x);
}

/* sqrt(2/pi) (x + 0.044715 x^3); 0.5 (1 + tanh u) is sigmoid(2u). */
#define REF_GELU_C0 (M_2_SQRTPI * M_SQRT1_2)
#define REF_GELU_C1 0.044715
static inline double mpri_ref_gelu_tanh(double x)
{
    return x * mpri_ref_sigmoid(2 * REF_GELU_C0 * (x + REF_GELU_C1 * x * x * x));
}

static inline double mpri_ref_gelu_tanh_grad(double x)
{
    double s = mpri_ref_sigmoid(2 * REF_GELU_C0 * (x + REF_GELU_C1 * x * x * x));
    double slope = s * (1 - s); /* 0 in both tails, where x^3 may be infinite */
    return s + (slope > 0 ? x * slope * 2 * REF_GELU_C0 * (1 + 3 * REF_GELU_C1 * x * x) : 0 * x);
}

#endif
