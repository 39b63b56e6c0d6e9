/* Einsum by its definition: for each element of the result, the sum over all other labels of the
 * product of the operands. Floats in double, integers modulo 2^64. */
#include "kernels/ref/util.h"
#include "runtime/op/einsum.h"

typedef struct Walk {
    int n, n_out;                      /* labels: those of the result first */
    int64_t size[MPRI_EINSUM_LABELS];
    int64_t stride[MPRI_EINSUM_INPUTS][MPRI_EINSUM_LABELS]; /* 0: the operand has not the label */
    int64_t at[MPRI_EINSUM_LABELS];
} Walk;

static int place_of(Walk *w, int *place, int label)
{
    if (place[label] < 0) {
        place[label] = w->n;
        w->size[w->n++] = 1;
    }
    return place[label];
}

static void walk_begin(const KernelCall *c, const EinsumForm *f, Walk *w)
{
    int place[MPRI_EINSUM_LABELS];
    *w = (Walk){0};
    for (int l = 0; l < MPRI_EINSUM_LABELS; l++) place[l] = -1;
    for (int i = 0; i < f->out.n; i++) place_of(w, place, f->out.label[i]);
    w->n_out = w->n;
    for (int k = 0; k < c->n_in; k++)
        for (int i = 0; i < c->in[k].rank; i++) {
            int p = place_of(w, place, f->in[k].label[i]);
            if (c->in[k].dims[i] == 1) continue;
            w->size[p] = c->in[k].dims[i];
            w->stride[k][p] += mpri_ref_span(&c->in[k], i + 1, c->in[k].rank);
        }
}

/* The next position of the labels [from, to); false after the last one. */
static bool next(Walk *w, int from, int to)
{
    for (int p = to - 1; p >= from; p--) {
        if (++w->at[p] < w->size[p]) return true;
        w->at[p] = 0;
    }
    return false;
}

static int64_t position(const Walk *w, int k)
{
    int64_t at = 0;
    for (int p = 0; p < w->n; p++) at += w->at[p] * w->stride[k][p];
    return at;
}

static double product_f64(const KernelCall *c, const Walk *w)
{
    double v = 1;
    for (int k = 0; k < c->n_in; k++) v *= mpri_ref_load(&c->in[k], position(w, k));
    return v;
}

static uint64_t product_i64(const KernelCall *c, const Walk *w)
{
    uint64_t v = 1;
    for (int k = 0; k < c->n_in; k++)
        v *= (uint64_t)mpri_load_i64(c->in[k].dtype, c->in[k].data, position(w, k));
    return v;
}

static mpr_status k_einsum(const KernelCall *c)
{
    const EinsumParams *p = c->params;
    Tensor *y = &c->out[0];
    int rank[MPRI_EINSUM_INPUTS];
    bool empty = false, floats = mpri_dtype_is_float(y->dtype);
    EinsumForm f;
    Walk w;
    for (int k = 0; k < c->n_in; k++) {
        rank[k] = c->in[k].rank;
        empty = empty || c->in[k].n == 0;
    }
    if (mpri_einsum_parse(p->equation, c->n_in, rank, &f)) return MPR_E_DEVICE;
    walk_begin(c, &f, &w);
    for (int64_t i = 0; i < y->n; i++) {
        double sum = 0;
        uint64_t total = 0;
        if (!empty) do {
            if (floats) sum += product_f64(c, &w);
            else total += product_i64(c, &w);
        } while (next(&w, w.n_out, w.n));
        if (floats) mpri_ref_store(y, i, sum);
        else mpri_store_i64(y->dtype, y->data, i, (int64_t)total);
        next(&w, 0, w.n_out);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Einsum, "einsum", k_einsum),
};
const KernelTable mpri_ref_einsum = REF_TABLE(rows);
