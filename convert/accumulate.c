/* Sums in 16 bits, as units without a wide accumulator make them: one term after the other, rounded
 * after each addition. Products of two factors are exact before they are added.
 *
 * Covered are the operators whose result is such a sum: matrix products, convolutions, Einsum and
 * the sums and means of the Reduce family. The others keep float32 inside. */
#include <math.h>
#include <string.h>

#include "convert/evaluate.h"
#include "runtime/op/conv_transpose.h"
#include "runtime/op/einsum.h"
#include "runtime/op/window.h"

static double rounded(DType t, double x)
{
    uint16_t bits = t == MPR_FLOAT16 ? mpri_f64_to_f16(x) : mpri_f64_to_bf16(x);
    return (double)(t == MPR_FLOAT16 ? mpri_f16_to_f32(bits) : mpri_bf16_to_f32(bits));
}

static double at(const Tensor *t, int64_t i)
{
    return mpri_load_f64(t->dtype, t->data, i);
}

static bool here(const Node *n, const Tensor *in, int k)
{
    return n->n_in > k && mpri_tensor_here(&in[k]);
}

static int64_t span(const Tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int k = from; k < to; k++) n *= t->dims[k];
    return n;
}

/* ---- matrix products ---- */

/* Offset of batch entry i in an operand whose leading dims broadcast to the first `lead` of y. */
static int64_t batch_offset(const Tensor *t, const Tensor *y, int lead, int64_t i)
{
    int own = t->rank > 1 ? t->rank - 2 : 0;
    int64_t offset = 0, stride = own ? t->dims[t->rank - 2] * t->dims[t->rank - 1] : 0;
    for (int k = 1; k <= own; k++) {
        int64_t d = t->dims[own - k], whole = y->dims[lead - k];
        offset += d == 1 ? 0 : i % whole * stride;
        stride *= d;
        i /= whole;
    }
    return offset;
}

static void matmul(const Tensor *a, const Tensor *b, Tensor *y, DType sums)
{
    int lead = y->rank - (a->rank > 1) - (b->rank > 1);
    int64_t depth = a->dims[a->rank - 1];
    int64_t rows = a->rank > 1 ? a->dims[a->rank - 2] : 1;
    int64_t cols = b->rank > 1 ? b->dims[b->rank - 1] : 1;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t c = i % cols, r = i / cols % rows, batch = i / cols / rows;
        int64_t from_a = batch_offset(a, y, lead, batch) + r * depth;
        int64_t from_b = batch_offset(b, y, lead, batch) + c;
        double sum = 0;
        for (int64_t k = 0; k < depth; k++)
            sum = rounded(sums, sum + at(a, from_a + k) * at(b, from_b + k * cols));
        mpri_store_f64(y->dtype, y->data, i, sum);
    }
}

static void gemm(const Node *n, const Tensor *in, Tensor *y, DType sums)
{
    const GemmParams *p = n->params;
    const Tensor *a = &in[0], *b = &in[1], *c = here(n, in, 2) ? &in[2] : NULL;
    int64_t depth = a->dims[p->trans_a ? 0 : 1], cols = y->dims[1];
    int64_t a_row = p->trans_a ? 1 : a->dims[1], a_step = p->trans_a ? a->dims[1] : 1;
    int64_t b_col = p->trans_b ? b->dims[1] : 1, b_step = p->trans_b ? 1 : b->dims[1];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t row = i / cols, col = i % cols, where = 0;
        double sum = 0;
        for (int64_t k = 0; k < depth; k++)
            sum = rounded(sums,
                          sum + at(a, row * a_row + k * a_step) * at(b, col * b_col + k * b_step));
        sum = rounded(sums, (double)p->alpha * sum);
        if (c && c->rank == 2)
            where = (c->dims[0] == 1 ? 0 : row) * c->dims[1] + (c->dims[1] == 1 ? 0 : col);
        else if (c && c->rank == 1)
            where = c->dims[0] == 1 ? 0 : col;
        mpri_store_f64(y->dtype, y->data, i, c ? sum + (double)p->beta * at(c, where) : sum);
    }
}

/* ---- convolutions ---- */

typedef struct Windows { /* as of a convolution from `in` to `out` positions */
    int n;
    int64_t in, out, taps;
    WindowDim d[MPRI_TENSOR_RANK];
} Windows;

static void add_dim(Windows *w, WindowDim d)
{
    w->d[w->n++] = d;
    w->in *= d.in;
    w->out *= d.out;
    w->taps *= d.taps;
}

/* Input position under tap t of output position o; -1 in the padding. */
static int64_t input_under(const Windows *w, int64_t o, int64_t t)
{
    int64_t where = 0, stride = 1;
    for (int k = w->n - 1; k >= 0; k--) {
        const WindowDim *d = &w->d[k];
        int64_t i = o % d->out * d->stride + t % d->taps * d->dilation - d->begin;
        if (i < 0 || i >= d->in) return -1;
        where += i * stride;
        stride *= d->in;
        o /= d->out;
        t /= d->taps;
    }
    return where;
}

/* Output position that has input position i under tap t; -1: none. */
static int64_t output_over(const Windows *w, int64_t i, int64_t t)
{
    int64_t where = 0, stride = 1;
    for (int k = w->n - 1; k >= 0; k--) {
        const WindowDim *d = &w->d[k];
        int64_t o = i % d->in + d->begin - t % d->taps * d->dilation;
        if (o < 0 || o % d->stride || o / d->stride >= d->out) return -1;
        where += o / d->stride * stride;
        stride *= d->out;
        i /= d->in;
        t /= d->taps;
    }
    return where;
}

static void conv(const Node *n, const Tensor *in, Tensor *y, DType sums)
{
    const ConvParams *p = n->params;
    const Tensor *x = &in[0], *w = &in[1];
    int64_t group = p->group > 0 ? p->group : 1, outs = w->dims[0], ins = w->dims[1];
    Windows g = {.in = 1, .out = 1, .taps = 1};
    for (int k = 0; k < x->rank - 2; k++) {
        WindowDim d = {.in = x->dims[k + 2], .out = y->dims[k + 2], .taps = w->dims[k + 2],
                       .stride = p->strides.n ? p->strides.v[k] : 1,
                       .dilation = p->dilations.n ? p->dilations.v[k] : 1};
        mpri_window_pad(&d, p->auto_pad, p->pads, x->rank - 2, k);
        add_dim(&g, d);
    }
    for (int64_t i = 0; i < y->n; i++) {
        int64_t o = i % g.out, oc = i / g.out % outs, image = i / g.out / outs;
        int64_t first = image * ins * group + oc / (outs / group) * ins;
        double sum = 0;
        for (int64_t c = 0; c < ins; c++)
            for (int64_t t = 0; t < g.taps; t++) {
                int64_t from = input_under(&g, o, t);
                if (from < 0) continue;
                sum = rounded(sums, sum + at(x, (first + c) * g.in + from) *
                                              at(w, (oc * ins + c) * g.taps + t));
            }
        mpri_store_f64(y->dtype, y->data, i, here(n, in, 2) ? sum + at(&in[2], oc) : sum);
    }
}

static void conv_transpose(const Node *n, const Tensor *in, Tensor *y, DType sums)
{
    const ConvTransposeParams *p = n->params;
    const Tensor *x = &in[0], *w = &in[1];
    int64_t group = p->group > 0 ? p->group : 1, outs = y->dims[1], per = w->dims[1];
    int64_t ins = x->dims[1] / group;
    Windows g = {.in = 1, .out = 1, .taps = 1};
    for (int k = 0; k < x->rank - 2; k++) {
        int64_t from = x->dims[k + 2], taps = w->dims[k + 2], to = y->dims[k + 2];
        add_dim(&g, (WindowDim){.in = to, .out = from, .taps = taps,
                                .stride = p->strides.n ? p->strides.v[k] : 1,
                                .dilation = p->dilations.n ? p->dilations.v[k] : 1,
                                .begin = mpri_transposed_begin(p, k, from, taps, to)});
    }
    for (int64_t i = 0; i < y->n; i++) {
        int64_t o = i % g.in, oc = i / g.in % outs, image = i / g.in / outs, first = oc / per * ins;
        double sum = 0;
        for (int64_t c = first; c < first + ins; c++)
            for (int64_t t = 0; t < g.taps; t++) {
                int64_t from = output_over(&g, o, t);
                if (from < 0) continue;
                sum = rounded(sums, sum + at(x, (image * x->dims[1] + c) * g.out + from) *
                                              at(w, (c * per + oc % per) * g.taps + t));
            }
        mpri_store_f64(y->dtype, y->data, i, here(n, in, 2) ? sum + at(&in[2], oc) : sum);
    }
}

/* ---- Einsum ---- */

typedef struct Labels {
    int n, n_out; /* labels, those of the result first */
    int64_t size[MPRI_EINSUM_LABELS], at[MPRI_EINSUM_LABELS];
    int64_t stride[MPRI_EINSUM_INPUTS][MPRI_EINSUM_LABELS];
} Labels;

static int label_place(Labels *l, int *place, int label)
{
    if (place[label] < 0) {
        place[label] = l->n;
        l->size[l->n++] = 1;
    }
    return place[label];
}

static bool advance(Labels *l, int from, int to)
{
    for (int p = to - 1; p >= from; p--) {
        if (++l->at[p] < l->size[p]) return true;
        l->at[p] = 0;
    }
    return false;
}

static bool einsum(const Node *n, const Tensor *in, Tensor *y, DType sums)
{
    const EinsumParams *p = n->params;
    int rank[MPRI_EINSUM_INPUTS], place[MPRI_EINSUM_LABELS];
    EinsumForm f;
    Labels l = {0};
    for (int k = 0; k < n->n_in; k++) {
        rank[k] = in[k].rank;
        if (!in[k].n) return false;
    }
    if (mpri_einsum_parse(p->equation, n->n_in, rank, &f)) return false;
    for (int i = 0; i < MPRI_EINSUM_LABELS; i++) place[i] = -1;
    for (int i = 0; i < f.out.n; i++) label_place(&l, place, f.out.label[i]);
    l.n_out = l.n;
    for (int k = 0; k < n->n_in; k++)
        for (int i = 0; i < in[k].rank; i++) {
            int where = label_place(&l, place, f.in[k].label[i]);
            if (in[k].dims[i] == 1) continue;
            l.size[where] = in[k].dims[i];
            l.stride[k][where] += span(&in[k], i + 1, in[k].rank);
        }
    for (int64_t i = 0; i < y->n; i++) {
        double sum = 0;
        do {
            double term = 1;
            for (int k = 0; k < n->n_in; k++) {
                int64_t from = 0;
                for (int q = 0; q < l.n; q++) from += l.at[q] * l.stride[k][q];
                term *= at(&in[k], from);
            }
            sum = rounded(sums, sum + term);
        } while (advance(&l, l.n_out, l.n));
        mpri_store_f64(y->dtype, y->data, i, sum);
        advance(&l, 0, l.n_out);
    }
    return true;
}

/* ---- reductions ---- */

typedef enum Fold { FOLD_SUM, FOLD_MEAN, FOLD_L1, FOLD_L2, FOLD_SQUARE, FOLD_LOG } Fold;

static uint32_t reduced_axes(const Node *n, const Tensor *in)
{
    const ReduceParams *p = n->params;
    uint32_t axes = 0;
    for (int64_t i = 0; here(n, in, 1) && i < in[1].n; i++) {
        int64_t a = mpri_load_i64(in[1].dtype, in[1].data, i);
        axes |= 1u << (a < 0 ? a + in[0].rank : a);
    }
    return axes || p->noop_with_empty_axes ? axes : (1u << in[0].rank) - 1;
}

static double folded(Fold f, double x)
{
    return f == FOLD_L1 ? fabs(x) : f == FOLD_L2 || f == FOLD_SQUARE ? x * x : x;
}

static double finished(Fold f, double sum, int64_t count)
{
    if (f == FOLD_MEAN) return sum / (double)count;
    return f == FOLD_L2 ? sqrt(sum) : f == FOLD_LOG ? log(sum) : sum;
}

static void reduce(const Node *n, const Tensor *in, Tensor *y, Fold f, DType sums)
{
    const Tensor *x = &in[0];
    uint32_t axes = reduced_axes(n, in);
    int64_t count = 1;
    for (int k = 0; k < x->rank; k++) count *= axes >> k & 1 ? x->dims[k] : 1;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t base = 0, rest = i;
        double sum = 0;
        for (int k = x->rank - 1; k >= 0; k--) {
            if (axes >> k & 1) continue;
            base += rest % x->dims[k] * span(x, k + 1, x->rank);
            rest /= x->dims[k];
        }
        for (int64_t j = 0; j < count; j++) {
            int64_t from = base, part = j;
            for (int k = x->rank - 1; k >= 0; k--) {
                if (!(axes >> k & 1)) continue;
                from += part % x->dims[k] * span(x, k + 1, x->rank);
                part /= x->dims[k];
            }
            sum = rounded(sums, sum + folded(f, at(x, from)));
        }
        mpri_store_f64(y->dtype, y->data, i, finished(f, sum, count));
    }
}

/* ---- */

bool mpri_accumulate_low(const Node *n, const Tensor *in, Tensor *out, DType sums)
{
    static const struct { int op; Fold fold; } reductions[] = {
        {OP_ReduceSum, FOLD_SUM}, {OP_ReduceMean, FOLD_MEAN}, {OP_ReduceL1, FOLD_L1},
        {OP_ReduceL2, FOLD_L2}, {OP_ReduceSumSquare, FOLD_SQUARE}, {OP_ReduceLogSum, FOLD_LOG},
    };
    if (mpri_is(n, OP_MatMul)) matmul(&in[0], &in[1], &out[0], sums);
    else if (mpri_is(n, OP_Gemm)) gemm(n, in, &out[0], sums);
    else if (mpri_is(n, OP_Conv)) conv(n, in, &out[0], sums);
    else if (mpri_is(n, OP_ConvTranspose)) conv_transpose(n, in, &out[0], sums);
    else if (mpri_is(n, OP_Einsum)) return einsum(n, in, &out[0], sums);
    else {
        for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
            if (mpri_is(n, reductions[i].op)) {
                reduce(n, in, &out[0], reductions[i].fold, sums);
                return true;
            }
        return false;
    }
    return true;
}
