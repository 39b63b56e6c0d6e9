/* Shared by the families of this folder: fixed tiles, row loops, sums of a run, reasons of refusal.
 *
 * A tile has a fixed number of elements, so neither results nor the order of additions depend on
 * the number of threads; work below one tile stays on the calling thread. */
#ifndef MPRI_CPU_TILES_H
#define MPRI_CPU_TILES_H

#include "kernels/cpu/simd/simd.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"

enum { TILE = 16384 }; /* elements: about 10 us of memory traffic */

VF_FN int64_t tiles_of(int64_t n, int64_t per_tile) { return (n + per_tile - 1) / per_tile; }
VF_FN int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Rows of `width` elements in one tile. */
VF_FN int64_t rows_per_tile(int64_t width)
{
    return width >= TILE ? 1 : width > 0 ? tiles_of(TILE, width) : TILE;
}

/* Rows of `width` elements in one block of a reduction over rows: at least a tile, at most `limit`
 * blocks. */
VF_FN int64_t rows_per_block(int64_t rows, int64_t width, int64_t limit)
{
    int64_t a = rows_per_tile(width), b = tiles_of(rows, limit);
    return a > b ? a : b;
}

VF_FN const Tensor *input_or_null(const KernelCall *c, int k)
{
    return c->n_in > k && mpri_tensor_here(&c->in[k]) ? &c->in[k] : NULL;
}
VF_FN Tensor *output_or_null(const KernelCall *c, int k)
{
    return c->n_out > k && mpri_tensor_here(&c->out[k]) ? &c->out[k] : NULL;
}
VF_FN bool sig_has_in(const KernelSig *s, int k)
{
    return s->n_in > k && mpri_tensor_here(&s->in[k]);
}
VF_FN bool sig_has_out(const KernelSig *s, int k)
{
    return s->n_out > k && mpri_tensor_here(&s->out[k]);
}

#define NOT_FLOAT "takes f32, f16 and bf16 only"

/* Every present input and output from the given ones on is f32, f16 or bf16. */
VF_FN bool sig_floats(const KernelSig *s, int first_in, int first_out)
{
    for (int k = first_in; k < s->n_in; k++)
        if (mpri_tensor_here(&s->in[k]) && !vf_can(s->in[k].dtype)) return false;
    for (int k = first_out; k < s->n_out; k++)
        if (mpri_tensor_here(&s->out[k]) && !vf_can(s->out[k].dtype)) return false;
    return true;
}

VF_FN int axis_from_front(int64_t axis, int rank) { return (int)(axis < 0 ? axis + rank : axis); }

VF_FN int64_t span(const Tensor *t, int from, int to)
{
    int64_t n = 1;
    for (int k = from; k < to; k++) n *= t->dims[k];
    return n;
}

/* Length of the rows along the last axes [axis, rank), and how many there are. */
typedef struct Rows {
    int64_t count, n;
} Rows;

VF_FN Rows rows_from(const Tensor *t, int axis)
{
    return (Rows){span(t, 0, axis), span(t, axis, t->rank)};
}

/* f(v) summed over elements [i, i + n) of a typed buffer: four interleaved vectors, joined in one
 * order every SUM_BLOCK elements, so that the rounding error of a long run stays that of a short
 * one. */
enum { SUM_BLOCK = 4096 };
typedef vf (*RunFn)(vf v, vf arg);
VF_FN float block_sum(DType t, const void *p, int64_t i, int64_t n, RunFn f, vf arg)
{
    vf s0 = vf_zero(), s1 = s0, s2 = s0, s3 = s0;
    int64_t j = 0;
    for (; j + 4 * VF_LANES <= n; j += 4 * VF_LANES) {
        s0 += f(vf_ld(t, p, i + j), arg);
        s1 += f(vf_ld(t, p, i + j + VF_LANES), arg);
        s2 += f(vf_ld(t, p, i + j + 2 * VF_LANES), arg);
        s3 += f(vf_ld(t, p, i + j + 3 * VF_LANES), arg);
    }
    for (; j + VF_LANES <= n; j += VF_LANES) s0 += f(vf_ld(t, p, i + j), arg);
    if (j < n) { /* lanes beyond the end must not count, whatever f makes of 0 */
        float last[VF_LANES];
        vf_store(last, f(vf_ld_n(t, p, i + j, (int)(n - j)), arg));
        s1 += vf_load_n(last, (int)(n - j));
    }
    return vf_hsum((s0 + s1) + (s2 + s3));
}
VF_FN float run_sum(DType t, const void *p, int64_t i, int64_t n, RunFn f, vf arg)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j += SUM_BLOCK)
        sum += (double)block_sum(t, p, i + j, least(SUM_BLOCK, n - j), f, arg);
    return (float)sum;
}
VF_FN vf run_value(vf v, vf arg) { (void)arg; return v; }

#endif
