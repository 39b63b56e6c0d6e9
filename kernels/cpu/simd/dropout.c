/* Dropout and its gradient; which elements stay is defined in kernels/dropout_mask.h. GROUPS counters of the
 * Philox generator run side by side (Salmon et al., SC'11), written so that the compiler vectorises them; the
 * words are those of mpri_philox. */
#include "kernels/cpu/simd/tiles.h"
#include "kernels/dropout_mask.h"

enum { GROUPS = 64, PER_PASS = 4 * GROUPS };

/* keep[4 g + k] for counters first … first + GROUPS - 1. */
static void draw(const DropoutDraw *d, int64_t first, float keep[PER_PASS])
{
    uint32_t c0[GROUPS], c1[GROUPS], c2[GROUPS], c3[GROUPS];
    uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
    for (int i = 0; i < GROUPS; i++) {
        uint64_t counter = (uint64_t)first + (uint64_t)i;
        c0[i] = (uint32_t)counter;
        c1[i] = (uint32_t)(counter >> 32);
        c2[i] = (uint32_t)d->stream;
        c3[i] = (uint32_t)(d->stream >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < GROUPS; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53 * c0[i], p1 = (uint64_t)0xCD9E8D57 * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    const uint32_t last = (uint32_t)(d->threshold - 1); /* words up to it are dropped; threshold > 0 */
    for (int i = 0; i < GROUPS; i++) {
        keep[4 * i] = c0[i] > last ? 1.0f : 0.0f;
        keep[4 * i + 1] = c1[i] > last ? 1.0f : 0.0f;
        keep[4 * i + 2] = c2[i] > last ? 1.0f : 0.0f;
        keep[4 * i + 3] = c3[i] > last ? 1.0f : 0.0f;
    }
}

typedef struct Dropout {
    const Tensor *x, *mask_in;
    Tensor *y, *mask; /* mask may be NULL */
    DropoutDraw d;
} Dropout;

static void dropout_tile(void *ctx, int64_t tile)
{
    const Dropout *o = ctx;
    float keep[PER_PASS];
    vf scale = vf_set1((float)o->d.scale), half = vf_set1(0.5f);
    for (int i = 0; i < PER_PASS; i++) keep[i] = 1;
    for (int64_t at = tile * TILE, end = least(o->y->n, at + TILE); at < end; at += PER_PASS) {
        int64_t n = least(PER_PASS, end - at);
        if (o->d.threshold) draw(&o->d, at / 4, keep);
        for (int64_t j = 0; j < n; j += VF_LANES) {
            int k = (int)least(VF_LANES, n - j);
            vf v = vf_ld_n(o->x->dtype, o->x->data, at + j, k) * scale;
            vf_st_n(o->y->dtype, o->y->data, at + j, vf_blend(vm_gt(vf_load(keep + j), half), v, vf_zero()), k);
        }
        for (int64_t j = 0; j < n && o->mask; j++) ((uint8_t *)o->mask->data)[at + j] = keep[j] != 0;
    }
}

static mpr_status k_dropout(const KernelCall *c)
{
    Dropout o = {.x = &c->in[0], .y = &c->out[0], .mask = output_or_null(c, 1), .d = mpri_dropout_draw(c, 1)};
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
    Dropout o = {.x = &c->in[0], .mask_in = &c->in[1], .y = &c->out[0], .d = mpri_dropout_draw(c, 2)};
    mpri_parallel(c->threads, tiles_of(o.y->n, TILE), grad_tile, &o);
    return MPR_OK;
}

static const char *floats(const KernelSig *s)
{
    return vf_can(s->in[0].dtype) && vf_can(s->out[0].dtype) ? NULL : NOT_FLOAT;
}

static const KernelRow rows[] = {
    {.op = OP_Dropout, .name = MPRI_ROW("dropout"), .isa = MPRI_ISA_ID, .fn = k_dropout, .refuse = floats},
    {.op = OP_DropoutGrad, .name = MPRI_ROW("dropoutgrad"), .isa = MPRI_ISA_ID, .fn = k_dropout_grad,
     .refuse = floats},
};

const KernelTable MPRI_NAME(cpu_dropout) = {rows, sizeof rows / sizeof rows[0]};
