/* Dropout and its gradient; which elements stay is defined in kernels/dropout_mask.h. A vector of
 * counters runs through Philox4x32-10 (Salmon et al., SC'11) at once; the words are those of
 * mpri_philox. */
#include "kernels/cpu/simd/tiles.h"
#include "kernels/dropout_mask.h"

enum { BLOCK = 64, COUNTERS = 16 }; /* elements and counters of a block of the mask */

/* Words of the counters first … first + W - 1. */
VF_FN void philox(const DropoutDraw *d, uint64_t first, vi word[4])
{
    static const int32_t steps[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
    vi step, h0, l0, h1, l1;
    memcpy(&step, steps, sizeof step);
    vi c0 = vi_set1((int32_t)first) + step; /* first is a multiple of W: no carry */
    vi c1 = vi_set1((int32_t)(first >> 32)), c2 = vi_set1((int32_t)d->stream);
    vi c3 = vi_set1((int32_t)(d->stream >> 32));
    for (int round = 0; round < 10; round++) {
        vi_mul_wide(c0, 0xD2511F53, &h0, &l0);
        vi_mul_wide(c2, 0xCD9E8D57, &h1, &l1);
        c0 = h1 ^ c1 ^ vi_set1((int32_t)k0);
        c2 = h0 ^ c3 ^ vi_set1((int32_t)k1);
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

typedef struct Dropout {
    const Tensor *x, *mask_in;
    Tensor *y, *mask; /* mask may be NULL */
    DropoutDraw d;
} Dropout;

/* W elements from `at` on, of which the first n exist. */
VF_FN void drop(const Dropout *o, int64_t at, int n, vm keep)
{
    vf v = vf_ld_n(o->x->dtype, o->x->data, at, n) * vf_set1((float)o->d.scale);
    vf_st_n(o->y->dtype, o->y->data, at, vf_blend(keep, v, vf_zero()), n);
    if (o->mask) vm_store_bool_n((uint8_t *)o->mask->data + at, keep, n);
}

static void dropout_tile(void *ctx, int64_t tile)
{
    const Dropout *o = ctx;
    vf threshold = vf_set1((float)o->d.threshold);
    for (int64_t at = tile * TILE, end = least(o->y->n, at + TILE); at < end; at += BLOCK)
        for (int i = 0; i < COUNTERS; i += VF_LANES) {
            vi word[4];
            philox(&o->d, (uint64_t)(at / BLOCK * COUNTERS + i), word);
            for (int k = 0; k < 4; k++) {
                int64_t from = at + k * COUNTERS + i, n = least(VF_LANES, end - from);
                vi upper = (word[k] >> 8) & vi_set1(0xffffff);
                if (n > 0) drop(o, from, (int)n, vm_ge(vf_from_vi(upper), threshold));
            }
        }
}

static mpr_status k_dropout(const KernelCall *c)
{
    Dropout o = {.x = &c->in[0],
                 .y = &c->out[0],
                 .mask = output_or_null(c, 1),
                 .d = mpri_dropout_draw(c, 1)};
    mpri_parallel(c->threads, tiles_of(o.y->n, TILE), dropout_tile, &o);
    return MPR_OK;
}

static void grad_tile(void *ctx, int64_t tile)
{
    const Dropout *o = ctx;
    const uint8_t *mask = o->mask_in->data;
    vf scale = vf_set1((float)o->d.scale);
    for (int64_t i = tile * TILE, end = least(o->y->n, i + TILE); i < end; i += VF_LANES) {
        int k = (int)least(VF_LANES, end - i);
        vf v = vf_ld_n(o->x->dtype, o->x->data, i, k) * scale;
        vm keep = k == VF_LANES ? vm_load_bool(mask + i) : vm_load_bool_n(mask + i, k);
        vf_st_n(o->y->dtype, o->y->data, i, vf_blend(keep, v, vf_zero()), k);
    }
}

static mpr_status k_dropout_grad(const KernelCall *c)
{
    Dropout o = {
        .x = &c->in[0], .mask_in = &c->in[1], .y = &c->out[0], .d = mpri_dropout_draw(c, 2)};
    mpri_parallel(c->threads, tiles_of(o.y->n, TILE), grad_tile, &o);
    return MPR_OK;
}

static const char *floats(const KernelSig *s)
{
    return vf_can(s->in[0].dtype) && vf_can(s->out[0].dtype) ? NULL : NOT_FLOAT;
}

static const KernelRow rows[] = {
    {.op = OP_Dropout,
     .name = MPRI_ROW("dropout"),
     .isa = MPRI_ISA_ID,
     .fn = k_dropout,
     .refuse = floats},
    {.op = OP_DropoutGrad,
     .name = MPRI_ROW("dropoutgrad"),
     .isa = MPRI_ISA_ID,
     .fn = k_dropout_grad,
     .refuse = floats},
};

const KernelTable MPRI_NAME(cpu_dropout) = {rows, sizeof rows / sizeof rows[0]};
