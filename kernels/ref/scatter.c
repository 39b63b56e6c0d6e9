/* Scatters into a copy of data. Sums and products of floats are carried in double for all elements
 * and rounded once at the end; the order is that of the updates. With "none" the last update of a
 * place wins. max and min let NaN through. */
#include "kernels/ref/util.h"

typedef enum Reduction { NONE, ADD, MUL, MAX, MIN } Reduction;

typedef struct Job {
    const KernelCall *c;
    const Tensor *updates;
    Reduction r;
    double *sum; /* NULL: the result is built in the output */
} Job;

static Reduction reduction_of(const char *name)
{
    switch (name[1]) {
    case 'd': return ADD;
    case 'u': return MUL;
    case 'a': return MAX;
    case 'i': return MIN;
    default: return NONE;
    }
}

static Job begin(const KernelCall *c, const Tensor *updates, const char *reduction)
{
    Job j = {.c = c, .updates = updates, .r = reduction_of(reduction)};
    Tensor *y = &c->out[0];
    const Tensor *x = &c->in[0];
    if ((j.r == ADD || j.r == MUL) && mpri_dtype_is_float(y->dtype)) {
        j.sum = c->workspace;
        for (int64_t i = 0; i < y->n; i++) j.sum[i] = mpri_ref_load(x, i);
    } else if (y->n && y->data != x->data) {
        memcpy(y->data, x->data, (size_t)y->n * mpri_dtype_size(y->dtype));
    }
    return j;
}

static double pick_f64(Reduction r, double a, double b)
{
    if (isnan(a) || isnan(b)) return NAN;
    return r == MAX ? fmax(a, b) : fmin(a, b);
}

static int64_t reduce_i64(Reduction r, DType t, int64_t a, int64_t b)
{
    bool less = t == MPR_UINT64 ? (uint64_t)a < (uint64_t)b : a < b;
    switch (r) {
    case ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
    case MUL: return (int64_t)((uint64_t)a * (uint64_t)b);
    case MAX: return less ? b : a;
    default: return less ? a : b;
    }
}

static void put(const Job *j, int64_t at, int64_t update)
{
    Tensor *y = &j->c->out[0];
    const Tensor *u = j->updates;
    size_t size = mpri_dtype_size(y->dtype);
    if (j->sum) {
        double v = mpri_ref_load(u, update);
        j->sum[at] = j->r == ADD ? j->sum[at] + v : j->sum[at] * v;
    } else if (j->r == NONE) {
        memcpy((char *)y->data + (size_t)at * size, (const char *)u->data + (size_t)update * size,
               size);
    } else if (mpri_dtype_is_float(y->dtype)) {
        mpri_ref_store(y, at, pick_f64(j->r, mpri_ref_load(y, at), mpri_ref_load(u, update)));
    } else {
        mpri_store_i64(y->dtype, y->data, at,
                       reduce_i64(j->r, y->dtype, mpri_load_i64(y->dtype, y->data, at),
                                  mpri_load_i64(u->dtype, u->data, update)));
    }
}

static mpr_status end(const Job *j)
{
    Tensor *y = &j->c->out[0];
    for (int64_t i = 0; j->sum && i < y->n; i++) mpri_ref_store(y, i, j->sum[i]);
    return MPR_OK;
}

/* Index at `position` of input k, counted from the front. */
static mpr_status index_at(const KernelCall *c, int k, int64_t position, int64_t dim,
                           int64_t *index)
{
    int64_t v = mpri_load_i64(c->in[k].dtype, c->in[k].data, position);
    if (v < -dim || v >= dim) {
        if (c->fault) *c->fault = (KernelFault){k, position, v, -dim, dim};
        return MPR_E_INDEX;
    }
    *index = v < 0 ? v + dim : v;
    return MPR_OK;
}

static mpr_status k_scatter_elements(const KernelCall *c)
{
    const ScatterParams *p = c->params;
    const Tensor *y = &c->out[0], *idx = &c->in[1];
    int axis = mpri_ref_axis(p->axis, y->rank);
    Job j = begin(c, &c->in[2], p->reduction);
    for (int64_t i = 0; i < idx->n; i++) {
        int64_t index, at = 0, stride = 1, rest = i;
        TRY(index_at(c, 1, i, y->dims[axis], &index));
        for (int k = y->rank - 1; k >= 0; k--) {
            at += (k == axis ? index : rest % idx->dims[k]) * stride;
            stride *= y->dims[k];
            rest /= idx->dims[k];
        }
        put(&j, at, i);
    }
    return end(&j);
}

static mpr_status k_scatter_nd(const KernelCall *c)
{
    const ScatterNDParams *p = c->params;
    const Tensor *y = &c->out[0], *idx = &c->in[1];
    int depth = (int)idx->dims[idx->rank - 1];
    int64_t slice = mpri_ref_span(y, depth, y->rank), count = mpri_ref_span(idx, 0, idx->rank - 1);
    Job j = begin(c, &c->in[2], p->reduction);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;
        for (int k = 0; k < depth; k++) {
            int64_t index;
            TRY(index_at(c, 1, i * depth + k, y->dims[k], &index));
            at = at * y->dims[k] + index;
        }
        for (int64_t r = 0; r < slice; r++) put(&j, at * slice + r, i * slice + r);
    }
    return end(&j);
}

/* Inputs past_cache, update, write_indices (optional). Row b of the update goes to position
 * write_indices[b] on; circular ones go on at the front. */
static mpr_status k_tensor_scatter(const KernelCall *c)
{
    const TensorScatterParams *p = c->params;
    const Tensor *y = &c->out[0], *u = &c->in[1];
    const Tensor *first = c->n_in > 2 && mpri_tensor_here(&c->in[2]) ? &c->in[2] : NULL;
    int axis = mpri_ref_axis(p->axis, y->rank);
    int64_t outer = mpri_ref_span(u, 0, axis), inner = mpri_ref_span(u, axis + 1, u->rank),
            n = u->dims[axis], room = y->dims[axis], per_row = mpri_ref_span(u, 1, axis);
    bool circular = p->mode[0] == 'c';
    Job j = begin(c, u, "none");
    for (int64_t o = 0; o < outer; o++) {
        int64_t at = first ? mpri_load_i64(first->dtype, first->data, o / per_row) : 0;
        int64_t high = circular ? room : room - n + 1;
        if (n && (at < 0 || at >= high)) {
            if (c->fault) *c->fault = (KernelFault){2, o / per_row, at, 0, high};
            return MPR_E_INDEX;
        }
        for (int64_t i = 0; i < n; i++)
            for (int64_t r = 0; r < inner; r++)
                put(&j, (o * room + (at + i) % room) * inner + r, (o * n + i) * inner + r);
    }
    return end(&j);
}

static size_t sums(const KernelSig *s, const char *reduction)
{
    Reduction r = reduction_of(reduction);
    bool carried = (r == ADD || r == MUL) && mpri_dtype_is_float(s->out[0].dtype);
    return carried ? (size_t)s->out[0].n * sizeof(double) : 0;
}

static size_t elements_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    return sums(s, ((const ScatterParams *)s->params)->reduction);
}

static size_t nd_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    return sums(s, ((const ScatterNDParams *)s->params)->reduction);
}

static const KernelRow rows[] = {
    {.op = OP_Scatter, .name = "ref.scatter", .fn = k_scatter_elements,
     .workspace = elements_workspace},
    {.op = OP_ScatterElements, .name = "ref.scatterelements", .fn = k_scatter_elements,
     .workspace = elements_workspace},
    {.op = OP_ScatterND, .name = "ref.scatternd", .fn = k_scatter_nd, .workspace = nd_workspace},
    REF_ROW(TensorScatter, "tensorscatter", k_tensor_scatter),
};
const KernelTable mpri_ref_scatter = REF_TABLE(rows);
