/* Elements picked by contents. Sizes were counted by the shape rules; kernels fill what fits. */
#include "kernels/ref/util.h"
#include "runtime/op/unique.h"

static void copy(Tensor *y, const Tensor *x, int64_t to, int64_t from, int64_t n)
{
    size_t size = mpri_dtype_size(y->dtype);
    if (n)
        memcpy((char *)y->data + (size_t)to * size, (const char *)x->data + (size_t)from * size,
               (size_t)n * size);
}

/* Slices along an axis, or elements of the flat tensor. */
typedef struct Slices {
    int64_t outer, n, inner;
} Slices;

static Slices slices_of(const Tensor *x, int64_t axis)
{
    if (axis == MPRI_NO_AXIS) return (Slices){1, x->n, 1};
    int a = mpri_ref_axis(axis, x->rank);
    return (Slices){mpri_ref_span(x, 0, a), x->dims[a], mpri_ref_span(x, a + 1, x->rank)};
}

static mpr_status k_compress(const KernelCall *c)
{
    const CompressParams *p = c->params;
    const Tensor *x = &c->in[0], *cond = &c->in[1];
    Slices s = slices_of(x, p->axis), t = slices_of(&c->out[0], p->axis);
    int64_t to = 0;
    for (int64_t i = 0; i < cond->n && i < s.n; i++) {
        if (!mpri_load_i64(cond->dtype, cond->data, i)) continue;
        for (int64_t o = 0; o < s.outer && to < t.n; o++)
            copy(&c->out[0], x, (o * t.n + to) * s.inner, (o * s.n + i) * s.inner, s.inner);
        to++;
    }
    return MPR_OK;
}

static mpr_status k_reverse(const KernelCall *c)
{
    const ReverseSequenceParams *p = c->params;
    const Tensor *x = &c->in[0], *lens = &c->in[1];
    int batch = mpri_ref_axis(p->batch_axis, x->rank);
    int64_t inner = mpri_ref_span(x, 2, x->rank), time = x->dims[1 - batch];
    for (int64_t b = 0; b < lens->n; b++) {
        int64_t len = mpri_load_i64(lens->dtype, lens->data, b);
        if (len < 0 || len > time) {
            if (c->fault) *c->fault = (KernelFault){1, b, len, 0, time + 1};
            return MPR_E_INDEX;
        }
        for (int64_t t = 0; t < time; t++) {
            int64_t from = t < len ? len - 1 - t : t;
            int64_t y = batch ? t * lens->n + b : b * time + t,
                    at = batch ? from * lens->n + b : b * time + from;
            copy(&c->out[0], x, y * inner, at * inner, inner);
        }
    }
    return MPR_OK;
}

static mpr_status k_non_zero(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    int64_t found = 0, n = y->dims[1];
    for (int64_t i = 0; i < x->n && found < n; i++) {
        if (mpri_ref_load(x, i) == 0) continue;
        int64_t rest = i;
        for (int k = x->rank - 1; k >= 0; k--) {
            mpri_store_i64(y->dtype, y->data, k * n + found, rest % x->dims[k]);
            rest /= x->dims[k];
        }
        found++;
    }
    return MPR_OK;
}

/* ---- Unique ---- */

/* order: items by content. group: for each item, the number of its class among the sorted ones;
 * first: the first item of each class. Returns how many classes. */
static int64_t classes(const UniqueItems *u, const int64_t *order, int64_t *group, int64_t *first)
{
    int64_t n = 0;
    for (int64_t i = 0; i < u->n; i++) {
        if (i == 0 || mpri_unique_compare(u, order[i - 1], order[i])) first[n++] = order[i];
        group[order[i]] = n - 1;
    }
    return n;
}

/* Classes in the order in which they appear: rank[class] is the new number. */
static void by_appearance(const UniqueItems *u, const int64_t *group, int64_t *first, int64_t *rank)
{
    int64_t next = 0;
    for (int64_t i = 0; i < u->n; i++)
        if (first[group[i]] == i) rank[group[i]] = next++;
    for (int64_t i = 0, to = 0; i < u->n; i++)
        if (rank[group[i]] == to) first[to++] = i;
}

static void store(const KernelCall *c, int k, int64_t i, int64_t v)
{
    if (k < c->n_out && mpri_tensor_here(&c->out[k]) && i < c->out[k].n)
        mpri_store_i64(c->out[k].dtype, c->out[k].data, i, v);
}

static mpr_status k_unique(const KernelCall *c)
{
    const UniqueParams *p = c->params;
    const Tensor *x = &c->in[0];
    Tensor *y = &c->out[0];
    Slices s = slices_of(x, p->axis), t = slices_of(y, p->axis);
    UniqueItems u = {x->dtype, x->data, s.outer, s.n, s.inner};
    int64_t *order = c->workspace, *group = order + s.n, *first = group + s.n, *rank = first + s.n;
    mpri_unique_sort(&u, order, rank);
    int64_t n = classes(&u, order, group, first);
    for (int64_t i = 0; i < n; i++) rank[i] = i;
    if (!p->sorted) by_appearance(&u, group, first, rank);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t o = 0; o < s.outer && i < t.n; o++)
            copy(y, x, (o * t.n + i) * s.inner, (o * s.n + first[i]) * s.inner, s.inner);
        store(c, 1, i, first[i]);
        order[i] = 0; /* the order is done with: counts */
    }
    for (int64_t i = 0; i < s.n; i++) {
        store(c, 2, i, rank[group[i]]);
        order[rank[group[i]]]++;
    }
    for (int64_t i = 0; i < n; i++) store(c, 3, i, order[i]);
    return MPR_OK;
}

static size_t unique_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    const UniqueParams *p = s->params;
    return (size_t)slices_of(&s->in[0], p->axis).n * 4 * sizeof(int64_t);
}

static const KernelRow rows[] = {
    REF_ROW(Compress, "compress", k_compress),
    REF_ROW(ReverseSequence, "reversesequence", k_reverse),
    REF_ROW(NonZero, "nonzero", k_non_zero),
    {.op = OP_Unique, .name = "ref.unique", .fn = k_unique, .workspace = unique_workspace},
};
const KernelTable mpri_ref_select = REF_TABLE(rows);
