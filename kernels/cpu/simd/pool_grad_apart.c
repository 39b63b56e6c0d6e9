/* Gradient of AveragePool for f16 and bf16 where windows two wide lie side by side: no element is in
 * two of them. What an output gives to an element is rounded once, doubled as a pair of words, and
 * the row copied to every input row under it; nothing is summed, dealt or woven. */
#include "kernels/cpu/simd/pool.h"

#include <string.h>

static Pool apart_of(const void *params, const Tensor *dy, const Tensor *dx)
{
    const AveragePoolParams *p = params;
    Pool k = pool_of(&p->window, dx, dy);
    k.pads = p->count_include_pad == 1;
    k.per_worker = row_bytes(&k, 3);
    return k;
}

/* Output row o as the words of an input row below it. */
VF_FN void pair_row(const Pool *k, DType t, int64_t plane, int64_t o, const Divisors *by,
                    uint16_t *words)
{
    int64_t n = k->last.out, at = (plane * k->rows_out + o) * n;
    float rows = (float)row_count(k, o);
    const float *inverse = is_power_of_two(rows) ? by->inverse : NULL;
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int left = (int)least(VF_LANES, n - i);
        vf dy = left == VF_LANES ? vf_ld(t, k->dy->data, at + i)
                                 : vf_ld_n(t, k->dy->data, at + i, left);
        vf v = share(dy, by->counts, inverse, i, left, rows);
        vh h = t == MPR_FLOAT16 ? vf_to_f16(v) : vf_to_bf16(v);
        vi high = (vi)vf_from_bf16(h), pair = high | (high >> 16 & vi_set1(0xffff));
        memcpy(words + 2 * i, &pair, sizeof pair);
    }
    for (int64_t i = 2 * n; i < k->last.in; i++) words[i] = 0;
}

VF_FN void apart_plane(const Pool *k, DType t, int64_t plane, const Divisors *by, uint16_t *words)
{
    int64_t n = k->last.in, filled = -1;
    uint16_t *dx = (uint16_t *)k->dx->data + plane * k->rows_in * n;
    for (int64_t r = 0; r < k->rows_in; r++, dx += n) {
        int64_t o = -1;
        for (int64_t v = 0; v < k->taps && o < 0; v++) o = seen_at(k, r, v);
        if (o < 0) {
            memset(dx, 0, (size_t)n * sizeof *dx);
            continue;
        }
        if (o != filled) pair_row(k, t, plane, o, by, words);
        filled = o;
        memcpy(dx, words, (size_t)n * sizeof *dx);
    }
}

static void apart_tile(void *ctx, int64_t plane, int worker)
{
    const Pool *k = ctx;
    float *rows = worker_rows(k, worker);
    Divisors by = divisors_of(k, rows);
    uint16_t *words = (uint16_t *)(void *)(rows + 2 * k->line);
    if (k->dx->dtype == MPR_FLOAT16) apart_plane(k, MPR_FLOAT16, plane, &by, words);
    else apart_plane(k, MPR_BFLOAT16, plane, &by, words);
}

static mpr_status k_apart(const KernelCall *c)
{
    Pool k = apart_of(c->params, &c->in[0], &c->out[0]);
    if (c->out[0].n == 0) return MPR_OK;
    k.dy = &c->in[0];
    k.dx = &c->out[0];
    k.workspace = c->workspace;
    mpri_parallel_worker(c->out[0].n < TILE ? NULL : c->threads, k.planes, apart_tile, &k);
    return MPR_OK;
}

static size_t apart_workspace(const KernelSig *s, int threads)
{
    Pool k = apart_of(s->params, &s->in[0], &s->out[0]);
    return (size_t)threads * k.per_worker;
}

static const char *refuse(const KernelSig *s)
{
    DType t = s->in[0].dtype;
    if (!mpri_dtype_is_low(t) || s->out[0].dtype != t) return "takes f16 and bf16 only";
    const char *vast = too_vast(&((const AveragePoolParams *)s->params)->window);
    if (vast) return vast;
    Pool k = apart_of(s->params, &s->in[0], &s->out[0]);
    const WindowDim *d = &k.last;
    bool apart = d->taps == 2 && d->stride == 2 && d->dilation == 1 && d->begin == 0;
    for (int i = 0; i < k.lead; i++)
        apart = apart && k.d[i].taps == k.d[i].stride && k.d[i].dilation == 1;
    return apart ? NULL : "windows two wide, side by side, without padding before a row only";
}

static const KernelRow rows[] = {
    {.op = OP_AveragePoolGrad, .name = MPRI_ROW("averagepoolgrad.apart"), .isa = MPRI_ISA_ID,
     .fn = k_apart, .refuse = refuse, .workspace = apart_workspace},
};

const KernelTable MPRI_NAME(cpu_pool_grad_apart) = {rows, sizeof rows / sizeof rows[0]};
