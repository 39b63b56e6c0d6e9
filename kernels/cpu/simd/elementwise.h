/* One walk for all elementwise operators: numpy broadcasting reduced to runs.
 *
 * Neighbouring dims merge as long as every input either moves through them contiguously or stays,
 * so that tensors of one shape, a scalar, a row vector or a column become one or two loops. The
 * innermost dim is the run: there each input has stride 1 or 0. */
#ifndef MPRI_CPU_ELEMENTWISE_H
#define MPRI_CPU_ELEMENTWISE_H

#include "kernels/cpu/simd/tiles.h"

enum { ELEMENTWISE_IN = 8 };

typedef struct Operand {
    const void *p;
    DType t;
    int64_t stride[MPRI_TENSOR_RANK]; /* elements per step of each merged dim */
} Operand;

typedef struct Sweep {
    int n_in, rank;                 /* rank >= 1 */
    int64_t dims[MPRI_TENSOR_RANK]; /* merged, of the output */
    int64_t n;
    Operand in[ELEMENTWISE_IN];
    void *y;
    DType ty;
    const void *params;
} Sweep;

/* One run: output elements [at, at + n), input k from base[k] on with stride step[k] (0 or 1). */
typedef struct Run {
    int64_t at, n;
    int64_t base[ELEMENTWISE_IN];
    int64_t step[ELEMENTWISE_IN];
} Run;

/* The value of an input that stays for the whole run; loaded once, outside of the loop. */
VF_FN vf run_fixed(const Sweep *s, const Run *r, int k)
{
    return r->step[k] ? vf_zero() : vf_set1(vf_ld1(s->in[k].t, s->in[k].p, r->base[k]));
}
VF_FN vf run_load(const Sweep *s, const Run *r, int k, int64_t i, vf fixed)
{
    return r->step[k] ? vf_ld(s->in[k].t, s->in[k].p, r->base[k] + i) : fixed;
}
VF_FN vf run_load_n(const Sweep *s, const Run *r, int k, int64_t i, int n, vf fixed)
{
    return r->step[k] ? vf_ld_n(s->in[k].t, s->in[k].p, r->base[k] + i, n) : fixed;
}

VF_FN bool same_dim(const Sweep *s, int k, const int64_t stride[][MPRI_TENSOR_RANK], int dim,
                    int64_t size)
{
    for (int i = 0; i < k; i++)
        if (s->in[i].stride[s->rank - 1] != stride[i][dim] * size) return false;
    return true;
}

/* Merges the dims of the call's tensors, outermost first. Dims of size 1 vanish. */
VF_FN void sweep_init(Sweep *s, const KernelCall *c)
{
    const Tensor *y = &c->out[0];
    int64_t stride[ELEMENTWISE_IN][MPRI_TENSOR_RANK];
    *s = (Sweep){.n_in = c->n_in, .n = y->n, .y = y->data, .ty = y->dtype, .params = c->params};
    for (int k = 0; k < s->n_in; k++) {
        const Tensor *x = &c->in[k];
        int64_t step = 1;
        s->in[k].p = x->data;
        s->in[k].t = x->dtype;
        for (int d = y->rank - 1, o = x->rank - 1; d >= 0; d--, o--) {
            stride[k][d] = o < 0 || x->dims[o] == 1 ? 0 : step;
            if (o >= 0) step *= x->dims[o];
        }
    }
    for (int d = 0; d < y->rank; d++) {
        if (y->dims[d] == 1) continue;
        if (s->rank &&
            same_dim(s, s->n_in, (const int64_t(*)[MPRI_TENSOR_RANK])stride, d, y->dims[d])) {
            s->dims[s->rank - 1] *= y->dims[d];
        } else {
            s->dims[s->rank++] = y->dims[d];
        }
        for (int k = 0; k < s->n_in; k++) s->in[k].stride[s->rank - 1] = stride[k][d];
    }
    if (!s->rank) s->dims[s->rank++] = 1;
}

/* The run that holds output element `at`, from there to the end of the run or to `end`. */
VF_FN Run run_at(const Sweep *s, int64_t at, int64_t end)
{
    int64_t width = s->dims[s->rank - 1], rest = at / width, column = at % width;
    Run r = {.at = at, .n = least(width - column, end - at)};
    for (int k = 0; k < s->n_in; k++) {
        r.step[k] = s->in[k].stride[s->rank - 1];
        r.base[k] = column * r.step[k];
    }
    for (int d = s->rank - 2; d >= 0; d--) {
        int64_t coordinate = rest % s->dims[d];
        for (int k = 0; k < s->n_in; k++) r.base[k] += coordinate * s->in[k].stride[d];
        rest /= s->dims[d];
    }
    return r;
}

#endif
