/* Convolution and its gradients in bands of output rows.
 *
 * The patches of a whole image are taps times its size and leave the caches before the product has
 * read them. A band is so few output rows that its patches stay in the L2 cache of the core that
 * gathers, multiplies and (for dx) scatters them; every worker does whole bands by itself.
 *
 *   y    a tile is a band of one image and group.
 *   dw   a tile is a run of bands with a sum of its own; the sums are joined in order.
 *   dx   a tile is a run of input rows; it walks over the bands that reach them. Where bands
 *        overlap the sums wait in a window of input rows, which are dealt into `stride` phases (elements p,
 *        p + stride, …), so that every tap adds a contiguous run. Rounded once, when a row is done.
 *
 * The number of runs depends on the shape alone, so bits do not depend on threads. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd/conv_band.h"
#include "kernels/cpu/simd/conv_gather.h"
#include "kernels/cpu/simd/tiles.h"

enum {
    BAND = 1 << 17,        /* elements of the patches of a band */
    FEWEST = 96,           /* output positions of a band that pay for packing the weights */
    RUNS = 16,             /* tiles of dw or dx per group */
    SUMS_MAX = 1 << 20,    /* floats in the sums of dw */
};

typedef struct Work {
    const ConvBand *c;
    const ConvShape *s;
    int64_t rows, bands;   /* output rows of a band; bands of an image */
    int64_t runs, per_run; /* of bands (dw), of input rows of an image (dx) */
    int64_t window, phase, line; /* dx: input rows of a band; floats of a phase, of a row */
    size_t patches, sums, gemm, per_worker; /* bytes */
    float *partial; /* dw: [runs][group][co][ck] */
    char *workers;
} Work;

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

static void *at(const void *p, int64_t elements, DType t)
{
    return (char *)(uintptr_t)p + elements * (int64_t)mpri_dtype_size(t);
}

static int64_t band_rows(const ConvShape *s)
{
    int64_t rows = most(1, least(s->oh, BAND / most(1, s->ck * s->ow)));
    return tiles_of(s->oh, tiles_of(s->oh, rows)); /* bands of like size */
}

/* The product of one band of `rows` rows. */
static Gemm product(const ConvBand *c, int64_t rows)
{
    const ConvShape *s = &c->s;
    int64_t n = rows * s->ow;
    Gemm g = {.n = n, .ldb = n, .alpha = 1, .batch = 1, .m = s->co, .k = s->ck, .lda = s->ck};
    g.ta = c->tw;
    g.tb = c->tx;
    g.tc = c->ty;
    g.ldc = s->out;
    g.bias_rows = true;
    if (c->use == CONV_BAND_INPUT) {
        g.m = s->ck;
        g.k = s->co;
        g.trans_a = true;
        g.tb = c->ty;
        g.ldb = s->out;
        g.tc = MPR_FLOAT32;
        g.ldc = n;
    } else if (c->use == CONV_BAND_WEIGHT) {
        g.n = s->ck;
        g.k = n;
        g.ta = c->ty;
        g.lda = s->out;
        g.trans_b = true;
        g.tc = MPR_FLOAT32;
        g.ldc = s->ck;
    }
    return g;
}

static int64_t weights(const ConvShape *s) { return s->group * s->co * s->ck; }

static Work work_of(const ConvBand *c)
{
    const ConvShape *s = &c->s;
    Work k = {.c = c, .s = s, .rows = band_rows(s)};
    k.bands = tiles_of(s->oh, k.rows);
    size_t e = c->use == CONV_BAND_INPUT ? sizeof(float) : mpri_dtype_size(c->tx);
    k.patches = align64((size_t)(s->ck * k.rows * s->ow) * e);
    if (c->use == CONV_BAND_WEIGHT) {
        k.runs = least(least(RUNS, s->n * k.bands), most(1, SUMS_MAX / most(1, weights(s))));
        k.per_run = tiles_of(s->n * k.bands, k.runs);
        k.runs = tiles_of(s->n * k.bands, k.per_run);
    } else if (c->use == CONV_BAND_INPUT) {
        /* Runs of an image compute the bands between them twice. */
        int64_t reach = (s->kh - 1) * s->dh + 1, images = most(1, s->n * s->group);
        k.per_run = most(tiles_of(s->h, tiles_of(RUNS, images)), 8 * reach);
        k.runs = tiles_of(s->h, k.per_run);
        k.window = (k.rows - 1) * s->sh + reach;
        int64_t seen = (s->ow - 1) * s->sw + (s->kw - 1) * s->dw + 1;
        k.phase = (tiles_of(most(seen, s->pw + s->w), s->sw) + VF_LANES + 15) & ~(int64_t)15;
        k.line = k.phase * s->sw;
        k.sums = align64((size_t)((s->ci * k.window + 1) * k.line) * sizeof(float));
    }
    for (int64_t rows = 1; rows <= k.rows; rows++) { /* more rows may need less */
        Gemm g = product(c, rows);
        size_t bytes = align64(MPRI_NAME(gemm).workspace(&g, 1));
        if (bytes > k.gemm) k.gemm = bytes;
    }
    k.per_worker = k.patches + k.sums + k.gemm;
    return k;
}

static bool fits(const ConvShape *s, ConvBandUse use)
{
    if (s->n == 0 || s->out == 0 || s->in == 0 || s->ck == 0 || s->co == 0) return false;
    if (s->ph < 0 || s->pw < 0) return false;
    int64_t rows = band_rows(s), bands = s->n * tiles_of(s->oh, rows);
    if (s->sw > 2 || rows * s->ow < FEWEST || s->ck * rows * s->ow > 2 * BAND) return false;
    if (use == CONV_BAND_WEIGHT) return weights(s) <= SUMS_MAX / least(8, bands);
    return use == CONV_BAND_INPUT || bands * s->group >= 4;
}

static size_t workspace(const ConvBand *c, int threads)
{
    Work k = work_of(c);
    size_t partial = c->use == CONV_BAND_WEIGHT
                         ? align64((size_t)(k.runs * weights(&c->s)) * sizeof(float))
                         : 0;
    return partial + (size_t)threads * k.per_worker;
}

/* Patches of output rows [o0, o1) of an image and group (one number), [ck][(o1 - o0) ow]. */
static void gather(const Work *k, int64_t image, int64_t o0, int64_t o1, void *col)
{
    const ConvShape *s = k->s;
    int64_t n = (o1 - o0) * s->ow;
    DType t = k->c->tx;
    for (int64_t c = 0; c < s->ci; c++) {
        const void *x = at(k->c->x, (image * s->ci + c) * s->in, t);
        void *to = at(col, c * s->taps * n, t);
        if (mpri_dtype_size(t) == 4) conv_rows_uint32_t(s, x, to, n, o0, o1);
        else conv_rows_uint16_t(s, x, to, n, o0, o1);
    }
}

/* ---- y ---- */

static void forward_tile(void *ctx, int64_t tile, int worker)
{
    const Work *k = ctx;
    const ConvShape *s = k->s;
    char *col = k->workers + (size_t)worker * k->per_worker;
    int64_t image = tile / k->bands, group = image % s->group; /* image: with its group */
    int64_t o0 = tile % k->bands * k->rows, o1 = least(s->oh, o0 + k->rows);
    const Tensor *bias = k->c->bias;
    gather(k, image, o0, o1, col);
    Gemm g = product(k->c, o1 - o0);
    g.a = at(k->c->w, group * s->co * s->ck, k->c->tw);
    g.b = col;
    g.c = at(k->c->to, image * s->co * s->out + o0 * s->ow, k->c->ty);
    if (bias) {
        g.bias = at(bias->data, group * s->co, bias->dtype);
        g.tbias = bias->dtype;
    }
    MPRI_NAME(gemm).run(&g, col + k->patches, NULL);
}

/* ---- dw ---- */

static void weight_tile(void *ctx, int64_t tile, int worker)
{
    const Work *k = ctx;
    const ConvShape *s = k->s;
    char *col = k->workers + (size_t)worker * k->per_worker;
    int64_t group = tile % s->group, first = tile / s->group * k->per_run;
    float *sum = k->partial + tile * s->co * s->ck;
    for (int64_t b = first; b < least(first + k->per_run, s->n * k->bands); b++) {
        int64_t image = b / k->bands * s->group + group;
        int64_t o0 = b % k->bands * k->rows, o1 = least(s->oh, o0 + k->rows);
        gather(k, image, o0, o1, col);
        Gemm g = product(k->c, o1 - o0);
        g.a = at(k->c->y, image * s->co * s->out + o0 * s->ow, k->c->ty);
        g.b = col;
        g.c = sum;
        g.add = b > first;
        MPRI_NAME(gemm).run(&g, col + k->patches, NULL);
    }
}

static void join_tile(void *ctx, int64_t tile)
{
    const Work *k = ctx;
    int64_t all = weights(k->s), end = least(all, (tile + 1) * TILE);
    for (int64_t i = tile * TILE; i < end; i += VF_LANES) {
        int n = (int)least(VF_LANES, end - i);
        vf sum = vf_load_n(k->partial + i, n);
        for (int64_t r = 1; r < k->runs; r++) sum += vf_load_n(k->partial + r * all + i, n);
        vf_st_n(k->c->tw, k->c->to, i, sum, n);
    }
}

/* ---- dx ---- */

/* Adds the products of output rows [o0, o1) to the window, which begins with row o0 sh of the
 * padded input. */
static void scatter(const Work *k, const float *col, int64_t o0, int64_t o1, float *sums)
{
    const ConvShape *s = k->s;
    for (int64_t c = 0; c < s->ci; c++, sums += k->window * k->line)
        for (int64_t ky = 0; ky < s->kh; ky++)
            for (int64_t kx = 0; kx < s->kw; kx++)
                for (int64_t o = o0; o < o1; o++, col += s->ow) {
                    int64_t x = kx * s->dw, row = (o - o0) * s->sh + ky * s->dh;
                    float *to = sums + row * k->line + x % s->sw * k->phase + x / s->sw;
                    int64_t i = 0;
                    for (; i + VF_LANES <= s->ow; i += VF_LANES)
                        vf_store(to + i, vf_load(to + i) + vf_load(col + i));
                    if (i < s->ow) {
                        int n = (int)(s->ow - i);
                        vf_store_n(to + i, vf_load_n(to + i, n) + vf_load_n(col + i, n), n);
                    }
                }
}

/* Stores row y of channel c (of all images and groups); no window sees it if there are no sums. */
static void finish_row(const Work *k, int64_t c, int64_t y, const float *sums, float *line)
{
    const ConvShape *s = k->s;
    const float *from = s->sw == 1 && sums ? sums + s->pw : line;
    float start = 0;
    if (k->c->bias)
        start = vf_ld1(k->c->bias->dtype, k->c->bias->data, c % (s->group * s->ci));
    if (!sums) memset(line, 0, (size_t)s->w * sizeof *line);
    else if (s->sw == 2) {
        const float *even = sums, *odd = sums + k->phase;
        for (int64_t i = 0; i < k->phase; i++) {
            line[2 * i] = even[i];
            line[2 * i + 1] = odd[i];
        }
        from = line + s->pw;
    }
    for (int64_t i = 0; i < s->w; i += VF_LANES) {
        int n = (int)least(VF_LANES, s->w - i);
        vf v = vf_load_n(from + i, n) + vf_set1(start);
        if (n == VF_LANES) vf_st(k->c->tx, k->c->to, (c * s->h + y) * s->w + i, v);
        else vf_st_n(k->c->tx, k->c->to, (c * s->h + y) * s->w + i, v, n);
    }
}

/* Padded rows [r0, r1) are done; what lies behind them becomes the begin of the window. */
static void advance(const Work *k, int64_t image, int64_t y0, int64_t y1, int64_t r0, int64_t r1,
                    float *sums)
{
    const ConvShape *s = k->s;
    float *line = sums + s->ci * k->window * k->line;
    int64_t kept = most(0, k->window - (r1 - r0));
    for (int64_t c = 0; c < s->ci; c++) {
        float *rows = sums + c * k->window * k->line;
        for (int64_t y = most(y0, r0 - s->ph); y < least(y1, r1 - s->ph); y++) {
            int64_t r = y + s->ph - r0;
            finish_row(k, image * s->ci + c, y, r < k->window ? rows + r * k->line : NULL, line);
        }
        memmove(rows, rows + (k->window - kept) * k->line, (size_t)(kept * k->line) * sizeof *rows);
        memset(rows + kept * k->line, 0, (size_t)((k->window - kept) * k->line) * sizeof *rows);
    }
}

static void input_tile(void *ctx, int64_t tile, int worker)
{
    const Work *k = ctx;
    const ConvShape *s = k->s;
    char *mine = k->workers + (size_t)worker * k->per_worker;
    float *col = (float *)(void *)mine, *sums = (float *)(void *)(mine + k->patches);
    int64_t image = tile / k->runs, y0 = tile % k->runs * k->per_run;
    int64_t y1 = least(s->h, y0 + k->per_run), reach = (s->kh - 1) * s->dh;
    /* output rows whose windows end at or behind y0 and begin before y1 */
    int64_t o = tiles_of(most(0, y0 + s->ph - reach), s->sh);
    int64_t end = least(s->oh, (y1 - 1 + s->ph) / s->sh + 1);
    int64_t seen = o < end ? o * s->sh : y1 + s->ph;
    memset(sums, 0, k->sums);
    if (seen > y0 + s->ph) advance(k, image, y0, y1, y0 + s->ph, seen, sums);
    for (int64_t next; o < end; o = next) {
        next = least(end, o + k->rows);
        Gemm g = product(k->c, next - o);
        g.a = at(k->c->w, image % s->group * s->co * s->ck, k->c->tw);
        g.b = at(k->c->y, image * s->co * s->out + o * s->ow, k->c->ty);
        g.c = col;
        MPRI_NAME(gemm).run(&g, mine + k->patches + k->sums, NULL);
        scatter(k, col, o, next, sums);
        advance(k, image, y0, y1, o * s->sh, next < end ? next * s->sh : y1 + s->ph, sums);
    }
}

/* ---- */

static void run(const ConvBand *c, Threads *threads)
{
    Work k = work_of(c);
    const ConvShape *s = k.s;
    k.workers = c->workspace;
    int64_t images = s->n * s->group;
    switch (c->use) {
    case CONV_BAND_FORWARD:
        mpri_parallel_worker(threads, images * k.bands, forward_tile, &k);
        break;
    case CONV_BAND_INPUT:
        mpri_parallel_worker(threads, images * k.runs, input_tile, &k);
        break;
    case CONV_BAND_WEIGHT:
        k.partial = c->workspace;
        k.workers += align64((size_t)(k.runs * weights(s)) * sizeof(float));
        mpri_parallel_worker(threads, k.runs * s->group, weight_tile, &k);
        mpri_parallel(threads, tiles_of(weights(s), TILE), join_tile, &k);
        break;
    }
}

const ConvBandApi MPRI_NAME(conv_band) = {.fits = fits, .workspace = workspace, .run = run};
