/* Cast between f32, f16 and bf16, and from bool to them. Everything else is left to the reference
 * kernels. */
#include "kernels/cpu/simd/tiles.h"

typedef struct Cast {
    const Tensor *x;
    Tensor *y;
} Cast;

VF_FN void convert(const Cast *c, int64_t tile, DType from, DType to)
{
    int64_t i = tile * TILE, end = least(c->y->n, i + TILE);
    for (; i + VF_LANES <= end; i += VF_LANES) vf_st(to, c->y->data, i, vf_ld(from, c->x->data, i));
    if (i < end)
        vf_st_n(to, c->y->data, i, vf_ld_n(from, c->x->data, i, (int)(end - i)), (int)(end - i));
}

static void bool_tile(void *ctx, int64_t tile)
{
    const Cast *c = ctx;
    const uint8_t *x = c->x->data;
    vf one = vf_set1(1.0f);
    for (int64_t i = tile * TILE, end = least(c->y->n, i + TILE); i < end; i += VF_LANES) {
        int n = (int)least(VF_LANES, end - i);
        vm m = n == VF_LANES ? vm_load_bool(x + i) : vm_load_bool_n(x + i, n);
        vf_st_n(c->y->dtype, c->y->data, i, vf_blend(m, one, vf_zero()), n);
    }
}

static void cast_tile(void *ctx, int64_t tile)
{
    const Cast *c = ctx;
    DType from = c->x->dtype, to = c->y->dtype;
    if (from == MPR_FLOAT32 && to == MPR_FLOAT16) convert(c, tile, MPR_FLOAT32, MPR_FLOAT16);
    else if (from == MPR_FLOAT16 && to == MPR_FLOAT32) convert(c, tile, MPR_FLOAT16, MPR_FLOAT32);
    else if (from == MPR_FLOAT32 && to == MPR_BFLOAT16) convert(c, tile, MPR_FLOAT32, MPR_BFLOAT16);
    else if (from == MPR_BFLOAT16 && to == MPR_FLOAT32) convert(c, tile, MPR_BFLOAT16, MPR_FLOAT32);
    else convert(c, tile, from, to);
}

static mpr_status k_cast(const KernelCall *c)
{
    Cast cast = {&c->in[0], &c->out[0]};
    mpri_parallel(c->threads, tiles_of(c->out[0].n, TILE),
                  c->in[0].dtype == MPR_BOOL ? bool_tile : cast_tile, &cast);
    return MPR_OK;
}

static const char *floats(const KernelSig *s)
{
    if (!vf_can(s->out[0].dtype)) return NOT_FLOAT;
    return vf_can(s->in[0].dtype) || s->in[0].dtype == MPR_BOOL
               ? NULL
               : "from f32, f16, bf16 and bool only";
}

static const KernelRow rows[] = {
    {.op = OP_Cast, .name = MPRI_ROW("cast"), .isa = MPRI_ISA_ID, .fn = k_cast, .refuse = floats},
};

const KernelTable MPRI_NAME(cpu_cast) = {rows, sizeof rows / sizeof rows[0]};
