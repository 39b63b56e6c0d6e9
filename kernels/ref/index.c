/* Gather and its relatives: an index may count from the end; one outside the axis is MPR_E_INDEX
 * with the position and the allowed range. Data move by element size; the gradient adds up in
 * double and rounds each table entry once. */
#include "kernels/ref/util.h"

static mpr_status out_of_range(const KernelCall *c, int input, int64_t position, int64_t value,
                               int64_t dim)
{
    if (c->fault) *c->fault = (KernelFault){input, position, value, -dim, dim};
    return MPR_E_INDEX;
}

/* Index at `position` of input 1, counted from the front. */
static mpr_status index_at(const KernelCall *c, int64_t position, int64_t dim, int64_t *index)
{
    int64_t v = mpri_load_i64(c->in[1].dtype, c->in[1].data, position);
    if (v < -dim || v >= dim) return out_of_range(c, 1, position, v, dim);
    *index = v < 0 ? v + dim : v;
    return MPR_OK;
}

static void copy(const KernelCall *c, int64_t to, int64_t from, int64_t n)
{
    size_t size = mpri_dtype_size(c->out[0].dtype);
    if (n)
        memcpy((char *)c->out[0].data + (size_t)to * size,
               (const char *)c->in[0].data + (size_t)from * size, (size_t)n * size);
}

/* Inputs data, indices: out[o, i, r] = data[o, indices[i], r]. */
static mpr_status k_gather(const KernelCall *c)
{
    const AxisParams *p = c->params;
    const Tensor *x = &c->in[0];
    int axis = mpri_ref_axis(p->axis, x->rank);
    int64_t outer = mpri_ref_span(x, 0, axis), inner = mpri_ref_span(x, axis + 1, x->rank),
            dim = x->dims[axis];
    for (int64_t i = 0; i < c->in[1].n; i++) {
        int64_t index;
        TRY(index_at(c, i, dim, &index));
        for (int64_t o = 0; o < outer; o++)
            copy(c, (o * c->in[1].n + i) * inner, (o * dim + index) * inner, inner);
    }
    return MPR_OK;
}

static int64_t index_from_front(const Tensor *indices, int64_t i, int64_t dim)
{
    int64_t v = mpri_load_i64(indices->dtype, indices->data, i);
    return v < 0 ? v + dim : v;
}

enum { CHUNK = 256 };

/* Sums the elements [r0, r0 + n) of row `index` over all indices from `first` on that name it. */
static void sum_row(const KernelCall *c, int64_t dim, int64_t inner, int64_t o, int64_t first,
                    int64_t r0, int64_t n)
{
    const Tensor *dy = &c->in[0], *indices = &c->in[1];
    int64_t index = index_from_front(indices, first, dim);
    double sum[CHUNK] = {0};
    for (int64_t i = first; i < indices->n; i++) {
        if (index_from_front(indices, i, dim) != index) continue;
        for (int64_t r = 0; r < n; r++)
            sum[r] += mpri_ref_load(dy, (o * indices->n + i) * inner + r0 + r);
    }
    for (int64_t r = 0; r < n; r++)
        mpri_ref_store(&c->out[0], (o * dim + index) * inner + r0 + r, sum[r]);
}

/* Inputs dy, indices; the output is shaped as the table. The first index of a row sums it. */
static mpr_status k_gather_grad(const KernelCall *c)
{
    const GatherGradParams *p = c->params;
    const Tensor *indices = &c->in[1];
    Tensor *dx = &c->out[0];
    int axis = mpri_ref_axis(p->axis, dx->rank);
    int64_t outer = mpri_ref_span(dx, 0, axis), inner = mpri_ref_span(dx, axis + 1, dx->rank);
    int64_t dim = dx->dims[axis], index;
    for (int64_t i = 0; i < indices->n; i++) TRY(index_at(c, i, dim, &index));
    if (dx->n) memset(dx->data, 0, (size_t)dx->n * mpri_dtype_size(dx->dtype));
    for (int64_t first = 0; first < indices->n; first++) {
        bool seen = false;
        index = index_from_front(indices, first, dim);
        for (int64_t i = 0; i < first && !seen; i++)
            seen = index_from_front(indices, i, dim) == index;
        for (int64_t o = 0; o < outer && !seen; o++)
            for (int64_t r = 0; r < inner; r += CHUNK)
                sum_row(c, dim, inner, o, first, r, inner - r < CHUNK ? inner - r : CHUNK);
    }
    return MPR_OK;
}

/* out[i0, …, ia, …] = data[i0, …, indices[i0, …, ia, …], …]. */
static mpr_status k_gather_elements(const KernelCall *c)
{
    const AxisParams *p = c->params;
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int axis = mpri_ref_axis(p->axis, x->rank);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t index, from = 0, stride = 1, rest = i;
        TRY(index_at(c, i, x->dims[axis], &index));
        for (int k = y->rank - 1; k >= 0; k--) {
            from += (k == axis ? index : rest % y->dims[k]) * stride;
            stride *= x->dims[k];
            rest /= y->dims[k];
        }
        copy(c, i, from, 1);
    }
    return MPR_OK;
}

/* The last dim of indices is a coordinate into data behind batch_dims shared leading dims. */
static mpr_status k_gather_nd(const KernelCall *c)
{
    const GatherNDParams *p = c->params;
    const Tensor *x = &c->in[0], *indices = &c->in[1];
    int batch = (int)p->batch_dims;
    int depth = (int)indices->dims[indices->rank - 1];
    int64_t slice = mpri_ref_span(x, batch + depth, x->rank);
    int64_t per_batch = mpri_ref_span(indices, batch, indices->rank - 1);
    int64_t count = mpri_ref_span(indices, 0, indices->rank - 1);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = per_batch ? i / per_batch : 0;
        for (int k = 0; k < depth; k++) {
            int64_t index, dim = x->dims[batch + k];
            TRY(index_at(c, i * depth + k, dim, &index));
            from = from * dim + index;
        }
        copy(c, i * slice, from * slice, slice);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Gather, "gather", k_gather),
    REF_ROW(GatherGrad, "gathergrad", k_gather_grad),
    REF_ROW(GatherElements, "gatherelements", k_gather_elements),
    REF_ROW(GatherND, "gathernd", k_gather_nd),
};
const KernelTable mpri_ref_index = REF_TABLE(rows);
