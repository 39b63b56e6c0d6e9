/* TopK by heap sort of the positions of a line: O(n + k log n). The order is total (value, then
 * index), so the result does not depend on how the heap is built. */
#include "kernels/ref/lines.h"

typedef struct Heap { /* of positions; the best on top */
    const Tensor *x;
    int64_t base, stride, n;
    int64_t *at;
    int sign; /* 1: largest first */
} Heap;

static bool better(const Heap *h, int64_t a, int64_t b)
{
    int order =
        h->sign * mpri_ref_compare(h->x, h->base + a * h->stride, h->base + b * h->stride);
    return order > 0 || (order == 0 && a < b);
}

static void sink(Heap *h, int64_t i)
{
    int64_t moved = h->at[i];
    for (int64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && better(h, h->at[child + 1], h->at[child])) child++;
        if (!better(h, h->at[child], moved)) break;
        h->at[i] = h->at[child];
    }
    h->at[i] = moved;
}

static void copy_element(const Tensor *from, int64_t i, Tensor *to, int64_t j)
{
    size_t size = mpri_dtype_size(from->dtype);
    memcpy((char *)to->data + (size_t)j * size, (const char *)from->data + (size_t)i * size, size);
}

static mpr_status k_topk(const KernelCall *c)
{
    const TopKParams *p = c->params;
    const Tensor *x = &c->in[0];
    Tensor *values = &c->out[0], *indices = c->n_out > 1 ? &c->out[1] : NULL;
    AxisLines l = mpri_ref_lines(x, p->axis), to = mpri_ref_lines(values, p->axis);
    for (int64_t i = 0; i < to.count && to.n; i++) {
        int64_t out = mpri_ref_line_base(&to, i);
        Heap h = {x, mpri_ref_line_base(&l, i), l.inner, l.n, c->workspace, p->largest ? 1 : -1};
        for (int64_t j = 0; j < h.n; j++) h.at[j] = j;
        for (int64_t j = h.n / 2 - 1; j >= 0; j--) sink(&h, j);
        for (int64_t j = 0; j < to.n; j++, out += to.inner) {
            copy_element(x, h.base + h.at[0] * h.stride, values, out);
            if (indices && mpri_tensor_here(indices)) ((int64_t *)indices->data)[out] = h.at[0];
            h.at[0] = h.at[--h.n];
            if (h.n) sink(&h, 0);
        }
    }
    return MPR_OK;
}

static size_t heap_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    const TopKParams *p = s->params;
    return (size_t)mpri_ref_lines(&s->in[0], p->axis).n * sizeof(int64_t);
}

/* Inputs dy, indices; the indices of a line are distinct. */
static mpr_status k_topk_grad(const KernelCall *c)
{
    const TopKGradParams *p = c->params;
    Tensor *dx = &c->out[0];
    AxisLines l = mpri_ref_lines(&c->in[0], p->axis), to = mpri_ref_lines(dx, p->axis);
    memset(dx->data, 0, (size_t)dx->n * mpri_dtype_size(dx->dtype));
    for (int64_t i = 0; i < l.count && l.n; i++)
        for (int64_t j = 0; j < l.n; j++) {
            int64_t at = mpri_ref_line_base(&l, i) + j * l.inner;
            int64_t index = ((const int64_t *)c->in[1].data)[at];
            if (index < 0 || index >= to.n) {
                if (c->fault) *c->fault = (KernelFault){.input = 1, .position = at, .value = index, .low = 0, .high = to.n};
                return MPR_E_INDEX;
            }
            copy_element(&c->in[0], at, dx, mpri_ref_line_base(&to, i) + index * to.inner);
        }
    return MPR_OK;
}

static const KernelRow rows[] = {
    {.op = OP_TopK, .name = "ref.topk", .fn = k_topk, .workspace = heap_bytes},
    REF_ROW(TopKGrad, "topkgrad", k_topk_grad),
};
const KernelTable mpri_ref_topk = REF_TABLE(rows);
