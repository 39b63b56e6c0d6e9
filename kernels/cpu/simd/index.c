/* Gather, and its gradient into the table (f32). All indices are checked before
 * anything is written. The gradient is cut into strips of columns: a strip belongs to one tile,
 * which walks all indices in order, so repeated rows add up in one order whatever the number of
 * threads. */
#include "kernels/cpu/simd/layout.h"

enum { STRIP = 64, GATHER_BYTES = 64 * 1024 };

static mpr_status check_indices(const KernelCall *c, int64_t dim)
{
    const Tensor *t = &c->in[1];
    for (int64_t i = 0; i < t->n; i++) {
        int64_t v = mpri_load_i64(t->dtype, t->data, i);
        if (v >= -dim && v < dim) continue;
        if (c->fault) *c->fault = (KernelFault){1, i, v, -dim, dim};
        return MPR_E_INDEX;
    }
    return MPR_OK;
}

VF_FN int64_t index_at(const Tensor *t, int64_t i, int64_t dim)
{
    int64_t v =
        t->dtype == MPR_INT64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
    return v < 0 ? v + dim : v;
}

typedef struct Gather {
    const Tensor *x, *indices;
    Tensor *y;
    int64_t dim, inner, runs, per_tile;
} Gather;

static void gather_tile(void *ctx, int64_t tile)
{
    const Gather *g = ctx;
    size_t bytes = (size_t)g->inner * mpri_dtype_size(g->y->dtype);
    for (int64_t i = tile * g->per_tile, end = least(g->runs, i + g->per_tile); i < end; i++) {
        int64_t row = i / g->indices->n * g->dim + index_at(g->indices, i % g->indices->n, g->dim);
        memcpy((char *)g->y->data + (size_t)i * bytes,
               (const char *)g->x->data + (size_t)row * bytes, bytes);
    }
}

static mpr_status k_gather(const KernelCall *c)
{
    const AxisParams *p = c->params;
    const Tensor *x = &c->in[0];
    int axis = axis_from_front(p->axis, x->rank);
    Gather g = {x, &c->in[1], &c->out[0], x->dims[axis], span(x, axis + 1, x->rank), 0, 1};
    TRY(check_indices(c, g.dim));
    if (!g.y->n) return MPR_OK;
    g.runs = span(x, 0, axis) * g.indices->n;
    int64_t bytes = g.inner * (int64_t)mpri_dtype_size(x->dtype);
    if (bytes < GATHER_BYTES) g.per_tile = GATHER_BYTES / bytes;
    mpri_parallel(c->threads, tiles_of(g.runs, g.per_tile), gather_tile, &g);
    return MPR_OK;
}

static const char *refuse_gather(const KernelSig *s)
{
    if (s->in[1].dtype != MPR_INT64 && s->in[1].dtype != MPR_INT32) return "indices int32 or int64";
    return NULL;
}

/* ---- gradient ---- */

static void grad_strip(void *ctx, int64_t tile)
{
    const Gather *g = ctx; /* x is dy */
    int64_t strips = tiles_of(g->inner, STRIP), o = tile / strips, c0 = tile % strips * STRIP;
    int64_t n = least(STRIP, g->inner - c0);
    for (int64_t i = 0; i < g->indices->n; i++) {
        int64_t row = o * g->dim + index_at(g->indices, i, g->dim);
        float *to = (float *)g->y->data + row * g->inner + c0;
        int64_t at = (o * g->indices->n + i) * g->inner + c0;
        for (int64_t j = 0; j < n; j += VF_LANES) {
            int k = (int)least(VF_LANES, n - j);
            vf_store_n(to + j, vf_load_n(to + j, k) + vf_ld_n(g->x->dtype, g->x->data, at + j, k),
                       k);
        }
    }
}

static mpr_status k_gather_grad(const KernelCall *c)
{
    const GatherGradParams *p = c->params;
    Tensor *dx = &c->out[0];
    int axis = axis_from_front(p->axis, dx->rank);
    Gather g = {.x = &c->in[0],
                .indices = &c->in[1],
                .y = dx,
                .dim = dx->dims[axis],
                .inner = span(dx, axis + 1, dx->rank)};
    TRY(check_indices(c, g.dim));
    MPRI_NAME(cpu_zero)(dx->data, (size_t)dx->n * sizeof(float), c->threads);
    mpri_parallel(c->threads, span(dx, 0, axis) * tiles_of(g.inner, STRIP), grad_strip, &g);
    return MPR_OK;
}

static const char *refuse_gather_grad(const KernelSig *s)
{
    if (!vf_can(s->in[0].dtype) || s->out[0].dtype != MPR_FLOAT32)
        return "takes f32, f16 or bf16 into f32";
    return refuse_gather(s);
}

static const KernelRow rows[] = {
    {.op = OP_Gather,
     .name = MPRI_ROW("gather"),
     .isa = MPRI_ISA_ID,
     .fn = k_gather,
     .refuse = refuse_gather},
    {.op = OP_GatherGrad,
     .name = MPRI_ROW("gathergrad"),
     .isa = MPRI_ISA_ID,
     .fn = k_gather_grad,
     .refuse = refuse_gather_grad},
};

const KernelTable MPRI_NAME(cpu_index) = {rows, sizeof rows / sizeof rows[0]};
