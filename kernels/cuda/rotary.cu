/* RotaryEmbedding and the gradient of its caches; kernels/attention.h says which row of a cache belongs
 * to a token. Heads lie side by side in both layouts, so head r of x begins at r * size.
 *
 * Forward: a thread per pair of elements, or per four pairs of halves where sizes allow moves of four
 * elements; what does not turn is copied. Traffic: x once, y once, caches from the cache.
 * Gradient: a thread per element of a cache adds what all tokens of its row give, in their order; caches
 * are rarely trained. A position outside the caches is noted in the device's fault. */
#include "kernels/cuda/kernel.cuh"

extern "C" {
#include "kernels/attention.h"
}

enum { ROTARY_THREADS = 256, ROTARY_PACK = 4 };

typedef struct Rotary {
    RotaryForm f;
    const void *x, *cosine, *sine, *positions, *dy;
    void *y, *dcos, *dsin;
    int tx, tc, ts, tp, td, ty;
    int packed;   /* x of rank 3: heads stand behind tokens */
    int64_t n;    /* threads with work */
    int position_input, step;
    DeviceFault *fault;
} Rotary;

/* First element of the caches for a token; -1: a position outside of them. */
static __device__ __forceinline__ int64_t cache_row(const Rotary &a, int64_t b, int64_t t, bool tell)
{
    const RotaryForm &f = a.f;
    if (!a.positions) return b * f.cache_batch + t * f.cache_row;
    int64_t at = b * f.position_batch + t * f.position_row, row = load_int(a.positions, a.tp, at);
    if (row >= 0 && row < f.rows) return row * (f.turned / 2);
    if (tell) note_fault(a.fault, a.step, a.position_input, at, row, 0, f.rows);
    return -1;
}

/* Batch item and token of head r in the order of memory. */
static __device__ __forceinline__ void place_of(const Rotary &a, int64_t r, int64_t *b, int64_t *t)
{
    if (a.packed) r /= a.f.heads;
    *t = r % a.f.tokens;
    *b = r / a.f.tokens / (a.packed ? 1 : a.f.heads);
}

__global__ void k_rotary_any(Rotary a)
{
    const RotaryForm &f = a.f;
    int64_t half = f.turned / 2, per = f.size - half, b, t;
    for (int64_t i = grid_begin(); i < a.n; i += grid_step()) {
        int64_t r = i / per, e = i % per, head = r * f.size;
        if (e >= half) {
            store_float(a.y, a.ty, head + half + e, load_float(a.x, a.tx, head + half + e));
            continue;
        }
        place_of(a, r, &b, &t);
        int64_t row = cache_row(a, b, t, e == 0), p1 = head + e * f.step, p2 = p1 + f.pair;
        if (row < 0) continue;
        float u = load_float(a.x, a.tx, p1), v = load_float(a.x, a.tx, p2);
        float c = load_float(a.cosine, a.tc, row + e), s = load_float(a.sine, a.ts, row + e);
        store_float(a.y, a.ty, p1, c * u - s * v);
        store_float(a.y, a.ty, p2, s * u + c * v);
    }
}

/* Halves, whose sizes are multiples of the pack. */
template <typename T> __global__ void k_rotary_halves(Rotary a)
{
    typedef Pack<T, ROTARY_PACK> P;
    const RotaryForm &f = a.f;
    const P *x = (const P *)a.x;
    P *y = (P *)a.y;
    int64_t half = f.turned / 2 / ROTARY_PACK, size = f.size / ROTARY_PACK, per = size - half, b, t;
    for (int64_t i = grid_begin(); i < a.n; i += grid_step()) {
        int64_t r = i / per, e = i % per, head = r * size;
        if (e >= half) {
            y[head + half + e] = x[head + half + e];
            continue;
        }
        place_of(a, r, &b, &t);
        int64_t row = cache_row(a, b, t, e == 0);
        if (row < 0) continue;
        P u = x[head + e], v = x[head + half + e], p, q;
        MPRI_UNROLL
        for (int k = 0; k < ROTARY_PACK; k++) {
            int64_t at = row + e * ROTARY_PACK + k;
            float c = load_float(a.cosine, a.tc, at), s = load_float(a.sine, a.ts, at);
            p.v[k] = from_float<T>(c * to_float(u.v[k]) - s * to_float(v.v[k]));
            q.v[k] = from_float<T>(s * to_float(u.v[k]) + c * to_float(v.v[k]));
        }
        y[head + e] = p;
        y[head + half + e] = q;
    }
}

__global__ void k_rotary_grad(Rotary a)
{
    const RotaryForm &f = a.f;
    int64_t half = f.turned / 2;
    for (int64_t i = grid_begin(); i < a.n; i += grid_step()) {
        int64_t mine = i - i % half, e = i % half, b0 = 0, b1 = f.batch, t0 = 0, t1 = f.tokens;
        float dc = 0, ds = 0;
        if (!a.positions && f.cache_batch) {
            b0 = mine / f.cache_batch;
            b1 = b0 + 1;
        }
        if (!a.positions && f.cache_row) {
            t0 = mine / f.cache_row % f.tokens;
            t1 = t0 + 1;
        }
        for (int64_t b = b0; b < b1; b++)
            for (int64_t t = t0; t < t1; t++) {
                int64_t row = cache_row(a, b, t, i == 0);
                for (int64_t h = 0; h < f.heads && row == mine; h++) {
                    int64_t p1 = b * f.x.batch + h * f.x.head + t * f.x.row + e * f.step;
                    int64_t p2 = p1 + f.pair;
                    float u = load_float(a.x, a.tx, p1), v = load_float(a.x, a.tx, p2);
                    float g1 = load_float(a.dy, a.td, p1), g2 = load_float(a.dy, a.td, p2);
                    dc += g1 * u + g2 * v;
                    ds += g2 * u - g1 * v;
                }
            }
        if (a.dcos) store_float(a.dcos, a.ty, i, dc);
        if (a.dsin) store_float(a.dsin, a.ty, i, ds);
    }
}

/* Inputs from x on: x, cos, sin, positions. */
static Rotary rotary_of(const KernelCall *c, int x)
{
    const Tensor *in = c->in + x, *positions = input_of(c, x + 3);
    Rotary a = {};
    a.f = mpri_rotary_form((const RotaryParams *)c->params, &in[0], &in[1], positions);
    a.x = in[0].data, a.tx = (int)in[0].dtype;
    a.cosine = in[1].data, a.tc = (int)in[1].dtype;
    a.sine = in[2].data, a.ts = (int)in[2].dtype;
    if (positions) a.positions = positions->data, a.tp = (int)positions->dtype;
    a.packed = in[0].rank == 3;
    a.position_input = x + 3;
    a.step = c->step_id;
    a.fault = c->device_fault;
    return a;
}

static mpr_status k_rotary(const KernelCall *c)
{
    Rotary a = rotary_of(c, 0);
    const Tensor *x = &c->in[0], *y = &c->out[0];
    int64_t half = a.f.turned / 2, both = half | a.f.size;
    a.y = y->data, a.ty = (int)y->dtype;
    if (!y->n) return MPR_OK;
    a.n = x->n / a.f.size * (a.f.size - half);
    if (a.f.step == 2 || both % ROTARY_PACK || x->dtype != y->dtype || (uintptr_t)x->data & 15) {
        MPRI_LAUNCH(k_rotary_any, blocks_for(a.n, ROTARY_THREADS), ROTARY_THREADS, 0, c->queue, a);
        return MPR_OK;
    }
    a.n /= ROTARY_PACK;
    with_float(x->dtype, [&](auto zero) {
        MPRI_LAUNCH((k_rotary_halves<decltype(zero)>), blocks_for(a.n, ROTARY_THREADS),
                    ROTARY_THREADS, 0, c->queue, a);
    });
    return MPR_OK;
}

/* Inputs dy, x, cos, sin, positions; outputs dcos, dsin. */
static mpr_status k_rotary_gradient(const KernelCall *c)
{
    Rotary a = rotary_of(c, 1);
    const Tensor *dcos = output_of(c, 0), *dsin = output_of(c, 1), *any = dcos ? dcos : dsin;
    a.dy = c->in[0].data, a.td = (int)c->in[0].dtype;
    if (dcos) a.dcos = dcos->data;
    if (dsin) a.dsin = dsin->data;
    if (!any || !any->n) return MPR_OK;
    a.ty = (int)any->dtype;
    a.n = any->n;
    MPRI_LAUNCH(k_rotary_grad, blocks_for(a.n, ROTARY_THREADS), ROTARY_THREADS, 0, c->queue, a);
    return MPR_OK;
}

static const char *refuse_types(const KernelSig *s, int floats)
{
    for (int k = 0; k < floats; k++)
        if (!cuda_float(s->in[k].dtype)) return CUDA_NOT_FLOAT;
    for (int k = 0; k < s->n_out; k++)
        if (mpri_tensor_here(&s->out[k]) && !cuda_float(s->out[k].dtype)) return CUDA_NOT_FLOAT;
    return NULL;
}
static const char *refuse_rotary(const KernelSig *s) { return refuse_types(s, 3); }
static const char *refuse_gradient(const KernelSig *s) { return refuse_types(s, 4); }

static const KernelRow rows[] = {
    CUDA_ROW(RotaryEmbedding, "rotaryembedding", k_rotary, .refuse = refuse_rotary),
    CUDA_ROW(RotaryGrad, "rotarygrad", k_rotary_gradient, .refuse = refuse_gradient),
};
extern "C" const KernelTable mpri_cuda_rotary = CUDA_TABLE(rows);
