/* Packed matrix product after Goto and van de Geijn, arranged for threads and for ragged shapes.
 *
 * One of M and N, the larger, is cut into tiles ("local": every tile packs its own part, which then
 * stays in the L2 cache of its core); the other ("shared") is packed once per k block, by all, and
 * streamed. For each chunk of the shared side and each k block two parallel phases run: pack
 * shared, then the tiles. Sums of earlier k blocks wait in C when it is f32, in a bounded f32
 * buffer otherwise; the last block applies alpha, bias, activation and the conversion.
 *
 * Batches of small items give whole items to the workers instead. Nothing here depends on the
 * number of threads except how much workspace there is. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd/gemm_pack.h"
#include "kernels/cpu/simd/vmath.h"

enum {
    KC_MAX = 512,          /* k block: accumulators are written back once per so many products */
    SHARED_MAX = 1 << 20,  /* floats of packed shared side */
    PARTIAL_MAX = 1 << 20, /* floats of waiting sums */
    PACK_GRAIN = 1 << 16,  /* floats packed by one tile of the first phase */
#if defined(MPRI_ISA_avx512)
    TILE_ROWS = 140,
    TILE_COLS = 128,
#else
    TILE_ROWS = 24 * GEMM_MR,
    TILE_COLS = 8 * GEMM_NR,
#endif
};
#define GRAIN_OPS 4e6 /* below so many operations a tile is not worth handing to a thread */

typedef struct Job {
    const Gemm *g;
    const void *a, *b;
    void *c, *pre;
    Threads *threads;
    bool local_n;          /* the local side is N */
    bool in_c;             /* waiting sums are in C */
    int64_t local, shared; /* extents of the two sides */
    int64_t tile, chunk;   /* of the local side, of the shared side */
    int64_t super;         /* local extent between two packings of the shared side */
    int64_t kb, blocks;
    size_t shared_floats, partial_floats, local_floats; /* the last per worker */
    float *shared_pack, *partial, *local_pack;
    int64_t ld_partial;
    /* the phase being run */
    int64_t s0, sn, l0, ln, k0, kc, pack_panels;
    bool first, last;
} Job;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t b) { return div_up(a, b) * b; }

/* ---- panels: rows are shared out evenly, columns by full width with a ragged last one ---- */

static int64_t panels(bool columns, int64_t extent)
{
    return div_up(extent, columns ? GEMM_NR : GEMM_MR);
}

static int64_t panel_start(bool columns, int64_t extent, int64_t p)
{
    if (columns) return p * GEMM_NR;
    int64_t n = panels(false, extent), base = extent / n;
    return p * base + min64(p, extent % n);
}

static int panel_size(bool columns, int64_t extent, int64_t p)
{
    if (columns) return (int)min64(GEMM_NR, extent - p * GEMM_NR);
    int64_t n = panels(false, extent);
    return (int)(extent / n + (p < extent % n));
}

/* Panels p0 .. p1 - 1 of the rows (columns) at .. at + extent - 1. */
static void pack_panels(const Job *j, bool columns, float *dst, int64_t at, int64_t extent,
                        int64_t p0, int64_t p1)
{
    const Gemm *g = j->g;
    if (columns) {
        int64_t c0 = p0 * GEMM_NR, c1 = min64(extent, p1 * GEMM_NR);
        pack_b(g->tb, g->trans_b, dst + c0 * j->kc, j->b, g->ldb, at + c0, c1 - c0, j->k0, j->kc);
        return;
    }
    int64_t wide = extent % panels(false, extent); /* so many panels have one row more */
    for (int64_t p = p0; p < p1;) {
        int64_t start = panel_start(false, extent, p), end = p < wide ? min64(p1, wide) : p1;
        pack_a(g->ta, g->trans_a, dst + start * j->kc, j->a, g->lda, g->m, at + start,
               panel_size(false, extent, p), end - p, j->k0, j->kc);
        p = end;
    }
}

/* ---- the last k block: bias, rounding, activation, conversion ---- */

VF_FN vf activate(GemmAct act, vf x)
{
    switch (act) {
    case GEMM_RELU: return vf_max_nan(x, vf_zero());
    case GEMM_GELU: return vf_gelu(x);
    case GEMM_GELU_TANH: return vf_gelu_tanh(x);
    default: return x;
    }
}

VF_FN void finish_rows(DType t, GemmAct act, const Job *j, const float *tile, int mr, int64_t i,
                       int n, int64_t col)
{
    const Gemm *g = j->g;
    float bias[GEMM_NR];
    for (int v = 0; v < n; v += VF_LANES) {
        int left = n - v < VF_LANES ? n - v : VF_LANES;
        vf_store(bias + v,
                 g->bias && !g->bias_rows ? vf_ld_n(g->tbias, g->bias, col + v, left) : vf_zero());
    }
    for (int r = 0; r < mr; r++) {
        int64_t at = (i + r) * g->ldc + col;
        vf row_bias = vf_set1(g->bias && g->bias_rows ? vf_ld1(g->tbias, g->bias, i + r) : 0.0f);
        for (int v = 0; v < n; v += VF_LANES) {
            int left = n - v;
            vf x = vf_load(tile + r * GEMM_NR + v);
            if (g->bias) x = x + (g->bias_rows ? row_bias : vf_load(bias + v));
            if (act != GEMM_NONE) x = vf_quantize(t, x);
            if (left >= VF_LANES) {
                if (j->pre) vf_st(t, j->pre, at + v, x);
                vf_st(t, j->c, at + v, activate(act, x));
            } else {
                if (j->pre) vf_st_n(t, j->pre, at + v, x, left);
                vf_st_n(t, j->c, at + v, activate(act, x), left);
            }
        }
    }
}

#define FINISH(T, ACT)                                                                        \
    static void finish_##T##_##ACT(const Job *j, const float *tile, int mr, int64_t i, int n, \
                                   int64_t col)                                               \
    {                                                                                         \
        finish_rows(MPR_##T, ACT, j, tile, mr, i, n, col);                                    \
    }
#define FINISH_ALL(T) \
    FINISH(T, GEMM_NONE) FINISH(T, GEMM_RELU) FINISH(T, GEMM_GELU) FINISH(T, GEMM_GELU_TANH)
FINISH_ALL(FLOAT32)
FINISH_ALL(FLOAT16)
FINISH_ALL(BFLOAT16)
#define ROW(T)                                                               \
    {finish_##T##_GEMM_NONE, finish_##T##_GEMM_RELU, finish_##T##_GEMM_GELU, \
     finish_##T##_GEMM_GELU_TANH}
typedef void (*Finish)(const Job *, const float *, int, int64_t, int, int64_t);
static const Finish finish[3][4] = {ROW(FLOAT32), ROW(FLOAT16), ROW(BFLOAT16)};

static void tile(const Job *j, const float *ap, int mr, int64_t i, const float *bp, int n,
                 int64_t col)
{
    const Gemm *g = j->g;
    GemmKernel kernel = gemm_kernels[mr - 1][n > VF_LANES];
    float *wait = j->partial; /* where sums of earlier blocks are */
    int64_t ld_wait = j->ld_partial;
    if (j->in_c) {
        wait = (float *)j->c + i * g->ldc + col;
        ld_wait = g->ldc;
    } else if (wait) {
        int64_t row0 = j->local_n ? j->s0 : j->l0, col0 = j->local_n ? j->l0 : j->s0;
        wait += (i - row0) * ld_wait + col - col0;
    }
    const float *in = j->first && !g->add ? NULL : wait;
    bool plain = g->tc == MPR_FLOAT32 && !g->bias && !j->pre && g->act == GEMM_NONE;
    if (!j->last || plain) {
        kernel(j->kc, ap, bp, in, ld_wait, wait, ld_wait, n, j->last ? g->alpha : 1.0f);
        return;
    }
    float out[GEMM_MR * GEMM_NR] __attribute__((aligned(64)));
    kernel(j->kc, ap, bp, in, ld_wait, out, GEMM_NR, n, g->alpha);
    finish[g->tc == MPR_FLOAT32 ? 0 : g->tc == MPR_FLOAT16 ? 1 : 2][g->act](j, out, mr, i, n, col);
}

/* ---- phases ---- */

static void pack_shared(void *ctx, int64_t t)
{
    const Job *j = ctx;
    int64_t n = panels(!j->local_n, j->sn), p = t * j->pack_panels;
    pack_panels(j, !j->local_n, j->shared_pack, j->s0, j->sn, p, min64(n, p + j->pack_panels));
}

/* The side in the inner loop is the one that stays in the cache. */
static void run_tile(void *ctx, int64_t t, int worker)
{
    const Job *j = ctx;
    float *local = j->local_pack + (size_t)worker * j->local_floats;
    int64_t start = j->l0 + t * j->tile, size = min64(j->tile, j->l0 + j->ln - start);
    int64_t inner = panels(j->local_n, size), outer = panels(!j->local_n, j->sn);
    pack_panels(j, j->local_n, local, start, size, 0, inner);
    for (int64_t o = 0; o < outer; o++) {
        int64_t so = panel_start(!j->local_n, j->sn, o);
        int no = panel_size(!j->local_n, j->sn, o);
        const float *po = j->shared_pack + so * j->kc;
        for (int64_t p = 0; p < inner; p++) {
            int64_t sp = panel_start(j->local_n, size, p);
            int np = panel_size(j->local_n, size, p);
            const float *pp = local + sp * j->kc;
            if (j->local_n) tile(j, po, no, j->s0 + so, pp, np, start + sp);
            else tile(j, pp, np, start + sp, po, no, j->s0 + so);
        }
    }
}

static void run_job(Job *j)
{
    for (j->s0 = 0; j->s0 < j->shared; j->s0 += j->chunk) {
        j->sn = min64(j->chunk, j->shared - j->s0);
        for (j->l0 = 0; j->l0 < j->local; j->l0 += j->super) {
            j->ln = min64(j->super, j->local - j->l0);
            for (int64_t block = 0; block < j->blocks; block++) {
                j->k0 = block * j->kb;
                j->kc = min64(j->kb, j->g->k - j->k0);
                j->first = block == 0;
                j->last = block == j->blocks - 1;
                int64_t n = panels(!j->local_n, j->sn);
                j->pack_panels =
                    max64(1, PACK_GRAIN / (max64(1, j->kc) * (j->local_n ? GEMM_MR : GEMM_NR)));
                mpri_parallel(j->threads, div_up(n, j->pack_panels), pack_shared, j);
                mpri_parallel_worker(j->threads, div_up(j->ln, j->tile), run_tile, j);
            }
        }
    }
}

/* ---- how a shape is cut ---- */

static void plan(const Gemm *g, Job *j)
{
    *j = (Job){.g = g, .local_n = g->n >= g->m, .in_c = g->tc == MPR_FLOAT32};
    j->local = j->local_n ? g->n : g->m;
    j->shared = j->local_n ? g->m : g->n;
    int64_t local_unit = j->local_n ? GEMM_NR : GEMM_MR;
    int64_t shared_unit = j->local_n ? GEMM_MR : GEMM_NR;

    j->blocks = max64(1, div_up(g->k, KC_MAX));
    j->kb = max64(1, round_up(div_up(g->k, j->blocks), 16));
    j->blocks = max64(1, div_up(g->k, j->kb));

    /* Eight tiles or more where each is worth a thread, an even number while they are few. */
    double ops = 2.0 * (double)g->m * (double)g->n * (double)min64(j->kb, max64(1, g->k));
    int64_t tiles = div_up(j->local, j->local_n ? TILE_COLS : TILE_ROWS);
    if (tiles < 8) tiles = max64(tiles, ops / GRAIN_OPS < 8 ? (int64_t)(ops / GRAIN_OPS) : 8);
    if (tiles > 1 && tiles < 16) tiles = round_up(tiles, 2);
    j->tile = div_up(j->local, tiles);
    if (j->local_n || j->tile < GEMM_MR) j->tile = round_up(j->tile, local_unit);

    int64_t most = max64(shared_unit, SHARED_MAX / j->kb);
    j->chunk = round_up(div_up(j->shared, div_up(j->shared, most)), shared_unit);
    j->super = j->local;
    if (j->blocks > 1 && !j->in_c) {
        j->super = min64(j->local, max64(1, PARTIAL_MAX / j->chunk / j->tile) * j->tile);
        j->ld_partial = j->local_n ? round_up(j->super, 16) : round_up(j->chunk, 16);
        j->partial_floats = (size_t)(j->ld_partial * (j->local_n ? j->chunk : j->super));
    }
    j->shared_floats =
        (size_t)round_up(round_up(min64(j->chunk, j->shared), shared_unit) * j->kb, 16);
    j->partial_floats = (size_t)round_up((int64_t)j->partial_floats, 16);
    j->local_floats = (size_t)round_up(round_up(min64(j->tile, j->local), local_unit) * j->kb, 16);
}

static size_t job_floats(const Job *j, int workers)
{
    return j->shared_floats + j->partial_floats + (size_t)workers * j->local_floats;
}

static void start(Job *j, const Gemm *g, void *workspace, Threads *threads)
{
    j->threads = threads;
    j->shared_pack = workspace;
    j->partial = j->partial_floats ? j->shared_pack + j->shared_floats : NULL;
    j->local_pack = j->shared_pack + j->shared_floats + j->partial_floats;
    j->a = g->a;
    j->b = g->b;
    j->c = g->c;
    j->pre = g->pre;
}

/* ---- batches ---- */

static void item(Job *j, const Gemm *g, int64_t index)
{
    int64_t a = 0, b = 0, rest = index;
    for (int d = g->batch_rank - 1; d >= 0; d--) {
        int64_t i = rest % g->batch_dims[d];
        rest /= g->batch_dims[d];
        a += i * g->a_step[d];
        b += i * g->b_step[d];
    }
    size_t out = mpri_dtype_size(g->tc);
    j->a = (const char *)g->a + (size_t)a * mpri_dtype_size(g->ta);
    j->b = (const char *)g->b + (size_t)b * mpri_dtype_size(g->tb);
    j->c = (char *)g->c + (size_t)(index * g->c_step) * out;
    j->pre = g->pre ? (char *)g->pre + (size_t)(index * g->c_step) * out : NULL;
    run_job(j);
}

typedef struct Batch {
    const Gemm *g;
    const Job *proto;
    float *workspace;
    int64_t group; /* items of one tile */
} Batch;

static void run_group(void *ctx, int64_t t, int worker)
{
    const Batch *b = ctx;
    Job j = *b->proto;
    start(&j, b->g, b->workspace + (size_t)worker * job_floats(b->proto, 1), NULL);
    int64_t end = min64(b->g->batch, (t + 1) * b->group);
    for (int64_t i = t * b->group; i < end; i++) item(&j, b->g, i);
}

/* Whole items for the workers: many items, or small ones. */
static bool by_items(const Gemm *g, double ops)
{
    return g->batch > 1 && (g->batch >= 16 || ops < 6e7);
}

static double item_ops(const Gemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)max64(1, g->k);
}

static size_t workspace_bytes(const Gemm *g, int workers)
{
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0) return 0;
    Job j;
    plan(g, &j);
    size_t floats =
        by_items(g, item_ops(g)) ? (size_t)workers * job_floats(&j, 1) : job_floats(&j, workers);
    return floats * sizeof(float);
}

static void run(const Gemm *g, void *workspace, Threads *threads)
{
    if (g->m <= 0 || g->n <= 0 || g->batch <= 0) return;
    double ops = item_ops(g);
    if (ops * (double)g->batch < GRAIN_OPS) threads = NULL;
    Job j;
    plan(g, &j);
    if (by_items(g, ops)) {
        Batch b = {.g = g, .proto = &j, .workspace = workspace};
        b.group = max64(1, min64(g->batch, (int64_t)(GRAIN_OPS / ops)));
        mpri_parallel_worker(threads, div_up(g->batch, b.group), run_group, &b);
        return;
    }
    start(&j, g, workspace, threads);
    for (int64_t i = 0; i < g->batch; i++) item(&j, g, i);
}

double MPRI_NAME(fma_rounds)(int64_t rounds); /* peak.c */

const GemmApi MPRI_NAME(gemm) = {
    .workspace = workspace_bytes,
    .run = run,
    .fma = MPRI_NAME(fma_rounds),
};
