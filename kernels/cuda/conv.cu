/* Convolutions over one to three spatial dims, their two gradients, and ConvTranspose, which is the gradient
 * of the input of another convolution (runtime/op/conv_transpose.h). Everything is a product of cuBLASLt per
 * image, with the inputs that windows see laid out as columns; W is [co, ck], ck = ci taps, per group:
 *   forward      y[co, out]   = W columns[ck, out]
 *   input        columns      = W' dy[co, out], in float32; then an element gathers the taps that saw it
 *   weight       dW[co, ck]   = dy[co, images out] columns'[images out, ck]: one long sum for many images, so
 *                dy and the columns lie with the images side by side, padded with zeros to 8 elements
 * As many images at a time as fit into 64 MiB of columns; the sums of the weight's gradient over these tiles
 * are added in their order. Convolutions of 1 x 1 need no columns. A bias is added to the float32 product,
 * so a result is rounded once.
 * Depthwise ones (few channels per group) go directly, a thread per result; each weight's gradient is summed by
 * blocks of 32 Ki positions and a tree. No atomics; tiles and parts follow from the shape.
 * Traffic: columns are written and read once, taps times the input; direct: input and output once. */
#include "kernels/cuda/windows.cuh"

#include "kernels/cuda/product.h"

extern "C" {
#include "runtime/base/arena.h"
#include "runtime/op/conv_transpose.h"
}

enum { CONV_THREADS = 256, DIRECT_CHANNELS = 16, MOST_PARTS = 256 };
#if defined(MPR_CUDA_ON_CPU) /* small, so that the shapes of tests have several tiles and parts */
enum { PART_POSITIONS = 16, COLUMN_BYTES = 2048 };
#else
enum { PART_POSITIONS = 32768, COLUMN_BYTES = 64 << 20 };
#endif

/* ci, co: channels per group of the convolution's input and output; in the gradients too. */
typedef struct Geometry {
    int n, group, ci, co, ck;
    Windows w;
    Divider by_in, by_out, by_taps, by_in_channels, by_out_channels;
} Geometry;

/* ---- columns ---- */

typedef struct Columns {
    int64_t row_step, image_step; /* element (channel and tap, image, position) of the columns */
    int used, all;                /* positions of a row, and with the zeros behind them */
} Columns;

/* x: first image of the tile. U: an unsigned integer of the element's size. */
template <typename U> __global__ void k_columns(Geometry s, Columns to, const U *x, U *columns)
{
    int rows = s.group * s.ck, channels = s.group * s.ci;
    int q = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (q >= to.all) return;
    uint32_t o;
    int64_t image = divide(s.by_out, (uint32_t)q, &o);
    At at = output_at(s.w, (int)o);
    for (int r = (int)blockIdx.y; r < rows; r += (int)gridDim.y) {
        uint32_t t;
        int c = (int)divide(s.by_taps, (uint32_t)r, &t);
        int i = q < to.used ? input_seen(s.w, at, tap_at(s.w, (int)t)) : -1;
        columns[r * to.row_step + image * to.image_step + o] =
            i < 0 ? (U)0 : x[(image * channels + c) * s.w.in_n + i];
    }
}

/* dy with the images side by side: the same for one tap of the output's own positions. */
template <typename U> __global__ void k_side_by_side(Geometry s, Columns to, const U *dy, U *out)
{
    int channels = s.group * s.co, q = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (q >= to.all) return;
    uint32_t o;
    int64_t image = divide(s.by_out, (uint32_t)q, &o);
    for (int c = (int)blockIdx.y; c < channels; c += (int)gridDim.y)
        out[c * to.row_step + image * to.image_step + o] =
            q < to.used ? dy[(image * channels + c) * s.w.out_n + o] : (U)0;
}

/* dx of n elements from the columns [image, channel, tap, position]. */
__global__ void k_gather(Geometry s, const float *columns, const void *bias, int tb, void *dx, int to,
                         int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t at, c;
        uint32_t plane = divide(s.by_in, (uint32_t)i, &at);
        const float *from = columns + (int64_t)plane * s.w.tap_n * s.w.out_n;
        divide(s.by_in_channels, plane, &c);
        float sum = bias ? load_float(bias, tb, c) : 0.0f;
        each_output(s.w, (int)at, [&](int t, int o) { sum += from[(int64_t)t * s.w.out_n + o]; });
        store_float(dx, to, i, sum);
    }
}

/* y = x + bias of the channel, rounded once; x may be y. */
__global__ void k_add_bias(Geometry s, const float *x, const void *bias, int tb, void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t o, c;
        divide(s.by_out_channels, divide(s.by_out, (uint32_t)i, &o), &c);
        store_float(y, ty, i, x[i] + load_float(bias, tb, c));
    }
}

__global__ void k_add_parts(const float *parts, int n_parts, void *out, int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        float v = 0;
        for (int p = 0; p < n_parts; p++) v += parts[p * n + i];
        store_float(out, to, i, v);
    }
}

/* ---- directly ---- */

__global__ void k_direct(Geometry s, const void *x, int tx, const void *w, int tw, const void *bias, int tb,
                         void *y, int ty, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t o, c;
        int64_t image = divide(s.by_out_channels, divide(s.by_out, (uint32_t)i, &o), &c);
        int64_t plane = (image * s.group + (int)c / s.co) * s.ci;
        float sum = bias ? load_float(bias, tb, c) : 0.0f;
        each_input(s.w, (int)o, [&](int t, int at) {
            for (int k = 0; k < s.ci; k++)
                sum += load_float(x, tx, (plane + k) * s.w.in_n + at) *
                       load_float(w, tw, ((int64_t)c * s.ci + k) * s.w.tap_n + t);
        });
        store_float(y, ty, i, sum);
    }
}

__global__ void k_direct_input(Geometry s, const void *dy, int td, const void *w, int tw,
                               const void *bias, int tb, void *dx, int to, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        uint32_t at, c;
        int64_t image = divide(s.by_in_channels, divide(s.by_in, (uint32_t)i, &at), &c);
        int own = (int)c % s.ci;
        int64_t first = (int64_t)((int)c / s.ci) * s.co; /* output channel */
        float sum = bias ? load_float(bias, tb, c) : 0.0f;
        each_output(s.w, (int)at, [&](int t, int o) {
            for (int k = 0; k < s.co; k++)
                sum += load_float(dy, td, ((image * s.group * s.co) + first + k) * s.w.out_n + o) *
                       load_float(w, tw, ((first + k) * s.ci + own) * s.w.tap_n + t);
        });
        store_float(dx, to, i, sum);
    }
}

/* Part blockIdx.y of weight blockIdx.x. */
__global__ void k_direct_weight(Geometry s, const void *dy, int td, const void *x, int tx, float *parts,
                                int64_t weights, int64_t part)
{
    MPRI_SHARED(float, sums, 33);
    uint32_t t;
    int64_t row = divide(s.by_taps, blockIdx.x, &t), oc = row / s.ci;
    int64_t ic = oc / s.co * s.ci + row % s.ci, end = (blockIdx.y + 1) * part;
    At tap = tap_at(s.w, (int)t);
    float sum = 0;
    if (end > (int64_t)s.n * s.w.out_n) end = (int64_t)s.n * s.w.out_n;
    for (int64_t q = blockIdx.y * part + threadIdx.x; q < end; q += blockDim.x) {
        uint32_t o;
        int64_t image = divide(s.by_out, (uint32_t)q, &o);
        int at = input_seen(s.w, output_at(s.w, (int)o), tap);
        if (at < 0) continue;
        sum += load_float(dy, td, (image * s.group * s.co + oc) * s.w.out_n + o) *
               load_float(x, tx, (image * s.group * s.ci + ic) * s.w.in_n + at);
    }
    sum = block_sum<float>(sum, sums);
    if (threadIdx.x == 0) parts[blockIdx.y * weights + blockIdx.x] = sum;
}

/* ---- what is to be done ---- */

enum Way { WAY_FORWARD, WAY_INPUT, WAY_WEIGHT };

typedef struct Job {
    Way way;
    Geometry s;
    bool direct, plain;    /* plain: 1 x 1, the input is its own columns */
    bool bias, wide;       /* wide: a float32 product that is rounded later */
    DType type;
    int tile, tiles, rest; /* images at a time; of the last tile */
    int64_t positions;     /* WAY_WEIGHT: of a row of a full tile, with the zeros */
    size_t columns, second, all; /* offsets in the workspace; second: dy, or a float32 product, or parts */
    size_t parts;
} Job;

typedef struct Held {
    LtHeld full, rest;
} Held;

static size_t aligned(size_t bytes) { return (bytes + 255) & ~(size_t)255; }
static int64_t up_to_8(int64_t n) { return (n + 7) & ~(int64_t)7; }

/* x, y: input and output of the convolution, in the gradients too. */
static Geometry shape_of(const KernelSig *s, const Tensor *x, const Tensor *w, const Tensor *y)
{
    Geometry g = {};
    int spatial = x->rank - 2;
    bool transposed = s->op == OP_ConvTranspose;
    const ConvParams *p = (const ConvParams *)s->params;
    const ConvTransposeParams *tp = (const ConvTransposeParams *)s->params;
    Ints strides = transposed ? tp->strides : p->strides,
         dilations = transposed ? tp->dilations : p->dilations;
    int64_t group = transposed ? tp->group : p->group;
    g.n = (int)x->dims[0];
    g.group = group > 0 ? (int)group : 1;
    g.ci = (int)(x->dims[1] / g.group), g.co = (int)(w->dims[0] / g.group);
    g.w = windows_none();
    for (int k = 0; k < spatial; k++) {
        WindowDim d = {x->dims[k + 2], y->dims[k + 2], w->dims[k + 2], strides.n ? strides.v[k] : 1,
                       dilations.n ? dilations.v[k] : 1, 0, 0};
        if (transposed) d.begin = mpri_transposed_begin(tp, k, d.out, d.taps, d.in);
        else mpri_window_pad(&d, p->auto_pad, p->pads, spatial, k);
        windows_set(&g.w, spatial, k, d);
    }
    g.ck = g.ci * g.w.tap_n;
    g.by_in = divider_of(g.w.in_n ? g.w.in_n : 1), g.by_out = divider_of(g.w.out_n ? g.w.out_n : 1);
    g.by_taps = divider_of(g.w.tap_n ? g.w.tap_n : 1);
    g.by_in_channels = divider_of(g.ci ? g.group * g.ci : 1);
    g.by_out_channels = divider_of(g.co ? g.group * g.co : 1);
    return g;
}

static bool is_plain(const Windows &w)
{
    bool plain = w.tap_n == 1;
    for (int k = 0; k < WINDOW_DIMS; k++)
        plain &= w.d[k].stride == 1 && w.d[k].begin == 0 && w.d[k].in == w.d[k].out;
    return plain;
}

static int parts_of(const Geometry &s, int64_t *part)
{
    int64_t n = (int64_t)s.n * s.w.out_n, parts = (n + PART_POSITIONS - 1) / PART_POSITIONS;
    if (parts > MOST_PARTS) parts = MOST_PARTS;
    if (parts < 1) parts = 1;
    *part = (n + parts - 1) / parts;
    return (int)parts;
}

static void cut_into_tiles(Job *j, size_t image_bytes)
{
    size_t fit = image_bytes ? (size_t)COLUMN_BYTES / image_bytes : (size_t)j->s.n;
    j->tile = fit > (size_t)j->s.n ? j->s.n : fit < 1 ? 1 : (int)fit;
    j->tiles = (j->s.n + j->tile - 1) / j->tile;
    j->rest = j->s.n - (j->tiles - 1) * j->tile;
}

/* Items of one call: all images of a tile, or the groups of one image. */
static int64_t batch_of(const Job &j, int images)
{
    return j.way == WAY_WEIGHT || j.s.group > 1 ? j.s.group : images;
}

static size_t product_workspace(const Job &j, int64_t outputs)
{
    return mpri_cuda_product_workspace(outputs * batch_of(j, j.tile));
}

static Job job_of(const KernelSig *k)
{
    Job j = {};
    const Tensor *a = &k->in[0], *b = &k->in[1], *out = &k->out[0];
    int64_t weights, part;
    j.type = a->dtype;
    j.way = k->op == OP_Conv ? WAY_FORWARD : k->op == OP_ConvGradWeight ? WAY_WEIGHT : WAY_INPUT;
    j.s = j.way == WAY_FORWARD  ? shape_of(k, a, b, out)
          : j.way == WAY_WEIGHT ? shape_of(k, b, out, a)
                                : shape_of(k, out, b, a);
    const Geometry &s = j.s;
    if (!s.w.fits) return j; /* refused */
    size_t size = mpri_dtype_size(j.type), pixels = (size_t)s.group * (size_t)s.w.out_n;
    weights = (int64_t)s.group * s.co * s.ck;
    j.bias = k->n_in > 2 && mpri_tensor_here(&k->in[2]);
    j.plain = is_plain(s.w);
    j.direct =
        (s.group > 1 && s.ci * s.co <= DIRECT_CHANNELS) || !s.n || !weights || !s.w.out_n || !s.w.in_n;
    if (j.direct) {
        j.all = j.way == WAY_WEIGHT ? (size_t)(parts_of(s, &part) * weights) * sizeof(float) : 0;
        return j;
    }
    if (j.way == WAY_FORWARD) {
        j.wide = j.bias && j.type != MPR_FLOAT32;
        cut_into_tiles(&j, (j.plain ? 0 : pixels * (size_t)s.ck * size) +
                               (j.wide ? pixels * (size_t)s.co * sizeof(float) : 0));
        j.columns = product_workspace(j, s.co * (int64_t)s.w.out_n);
        j.second = j.columns + (j.plain ? 0 : aligned((size_t)j.tile * pixels * (size_t)s.ck * size));
        j.all = j.second + (j.wide ? (size_t)j.tile * pixels * (size_t)s.co * sizeof(float) : 0);
    } else if (j.way == WAY_INPUT) {
        j.plain &= !j.bias;
        cut_into_tiles(&j, j.plain ? 0 : pixels * (size_t)s.ck * sizeof(float));
        j.columns = product_workspace(j, s.ck * (int64_t)s.w.out_n);
        j.all = j.columns + (j.plain ? 0 : (size_t)j.tile * pixels * (size_t)s.ck * sizeof(float));
    } else {
        cut_into_tiles(&j, pixels * (size_t)(s.ck + s.co) * size);
        j.columns = product_workspace(j, s.co * (int64_t)s.ck);
        j.positions = up_to_8((int64_t)j.tile * s.w.out_n);
        j.second = j.columns + aligned((size_t)(j.positions * s.group * s.ck) * size);
        j.parts = j.second + aligned((size_t)(j.positions * s.group * s.co) * size);
        j.all = j.parts + (j.tiles > 1 ? (size_t)(j.tiles * weights) * sizeof(float) : 0);
    }
    return j;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* One group: all images of a tile are one batch. More: a call per image, whose batch are the groups. */
static mpr_status prepare_tile(const Job &j, int images, const CudaDevice *d, LtHeld *h, Err *err)
{
    const Geometry &s = j.s;
    LtProduct p = {};
    int64_t out = s.w.out_n, weight = (int64_t)s.co * s.ck;
    p.type = j.type;
    p.batch = batch_of(j, images);
    p.workspace = j.columns; /* stands before the columns */
    p.out = j.way == WAY_INPUT && !j.plain ? MPR_FLOAT32 : j.type;
    if (j.way == WAY_FORWARD) {
        p.m = s.co, p.n = out, p.k = s.ck;
        p.out = j.wide ? MPR_FLOAT32 : j.type;
        p.a_step = s.group > 1 ? weight : 0, p.b_step = s.ck * out, p.c_step = s.co * out;
    } else if (j.way == WAY_INPUT) {
        p.m = s.ck, p.n = out, p.k = s.co;
        p.trans_a = true;
        p.a_step = s.group > 1 ? weight : 0, p.b_step = s.co * out, p.c_step = s.ck * out;
    } else {
        p.m = s.co, p.n = s.ck, p.k = up_to_8(images * out);
        p.trans_b = true;
        p.out = j.tiles > 1 ? MPR_FLOAT32 : j.type;
        p.a_step = s.co * p.k, p.b_step = s.ck * p.k, p.c_step = weight;
    }
    p.a_align = least(16, mpri_cuda_step_align(p.a_step, p.type));
    p.b_align = least(16, mpri_cuda_step_align(p.b_step, p.type));
    p.c_align = least(16, mpri_cuda_step_align(p.c_step, p.out));
    return mpri_cuda_product_prepare(&p, d, h, err);
}

static mpr_status prepare_conv(const KernelSig *s, Device *d, Arena *arena, void **held, Err *err)
{
    Job j = job_of(s);
    if (j.direct) return MPR_OK;
    Held *h = (Held *)mpri_arena_alloc(arena, sizeof *h);
    if (!h) return mpri_err_nomem(err, sizeof *h);
    *held = h;
    TRY(prepare_tile(j, j.tile, (const CudaDevice *)d, &h->full, err));
    return prepare_tile(j, j.rest, (const CudaDevice *)d, &h->rest, err);
}

/* ---- steps ---- */

#define FOR_EACH(kernel, n, ...) \
    MPRI_LAUNCH(kernel, blocks_for(n, CONV_THREADS), CONV_THREADS, 0, c->queue, __VA_ARGS__, n)

static const void *at_element(const void *p, int64_t i, size_t size)
{
    return (const char *)p + (size_t)i * size;
}
static void *at_element(void *p, int64_t i, size_t size) { return (char *)p + (size_t)i * size; }

/* rows: channels, or channels and taps. */
static dim3 grid_of(const Columns &to, int rows)
{
    return dim3((unsigned)((to.all + CONV_THREADS - 1) / CONV_THREADS),
                (unsigned)(rows < 65535 ? rows : 65535));
}

static void make_columns(const KernelCall *c, const Job &j, Columns to, const void *x, void *columns)
{
    dim3 grid = grid_of(to, j.s.group * j.s.ck);
    if (mpri_dtype_size(j.type) == 4)
        MPRI_LAUNCH((k_columns<uint32_t>), grid, CONV_THREADS, 0, c->queue, j.s, to, (const uint32_t *)x,
                    (uint32_t *)columns);
    else
        MPRI_LAUNCH((k_columns<uint16_t>), grid, CONV_THREADS, 0, c->queue, j.s, to, (const uint16_t *)x,
                    (uint16_t *)columns);
}

static void put_side_by_side(const KernelCall *c, const Job &j, Columns to, const void *dy, void *out)
{
    dim3 grid = grid_of(to, j.s.group * j.s.co);
    if (mpri_dtype_size(j.type) == 4)
        MPRI_LAUNCH((k_side_by_side<uint32_t>), grid, CONV_THREADS, 0, c->queue, j.s, to,
                    (const uint32_t *)dy, (uint32_t *)out);
    else
        MPRI_LAUNCH((k_side_by_side<uint16_t>), grid, CONV_THREADS, 0, c->queue, j.s, to,
                    (const uint16_t *)dy, (uint16_t *)out);
}

/* The product of a tile whose operand b and result c step from image to image. */
static mpr_status multiply(const KernelCall *c, const Job &j, LtHeld *h, int images, const void *w,
                           const void *b, int64_t b_image, void *to, int64_t to_image, size_t to_size)
{
    size_t size = mpri_dtype_size(j.type);
    int calls = j.s.group > 1 ? images : 1;
    for (int i = 0; i < calls; i++)
        TRY(mpri_cuda_product_run(h, 1, w, at_element(b, i * b_image, size), NULL,
                                  at_element(to, i * to_image, to_size), c->workspace, c->queue));
    return MPR_OK;
}

static mpr_status forward_tile(const KernelCall *c, const Job &j, int tile, int images, LtHeld *h)
{
    const Geometry &s = j.s;
    const Tensor *bias = input_of(c, 2);
    size_t size = mpri_dtype_size(j.type);
    int64_t out = s.w.out_n, x_image = (int64_t)s.group * s.ci * s.w.in_n, y_image = s.group * s.co * out;
    int64_t first = (int64_t)tile * j.tile, columns_image = s.group * s.ck * out;
    const void *columns = at_element((const void *)c->in[0].data, first * x_image, size);
    void *y = at_element(c->out[0].data, first * y_image, size);
    void *to = j.wide ? (char *)c->workspace + j.second : y;
    if (!j.plain) {
        Columns layout = {out, columns_image, (int)(images * out), (int)(images * out)};
        void *room = (char *)c->workspace + j.columns;
        make_columns(c, j, layout, columns, room);
        columns = room;
    }
    TRY(multiply(c, j, h, images, c->in[1].data, columns, columns_image, to, y_image, j.wide ? 4 : size));
    if (bias)
        FOR_EACH(k_add_bias, images * y_image, s, (const float *)to, bias->data, (int)bias->dtype, y,
                 (int)j.type);
    return MPR_OK;
}

static mpr_status input_tile(const KernelCall *c, const Job &j, int tile, int images, LtHeld *h)
{
    const Geometry &s = j.s;
    const Tensor *bias = input_of(c, 2);
    size_t size = mpri_dtype_size(j.type);
    int64_t out = s.w.out_n, dx_image = (int64_t)s.group * s.ci * s.w.in_n, dy_image = s.group * s.co * out;
    int64_t first = (int64_t)tile * j.tile;
    const void *dy = at_element((const void *)c->in[0].data, first * dy_image, size);
    void *dx = at_element(c->out[0].data, first * dx_image, size),
         *columns = (char *)c->workspace + j.columns;
    TRY(multiply(c, j, h, images, c->in[1].data, dy, dy_image, j.plain ? dx : columns, s.group * s.ck * out,
                 j.plain ? size : 4));
    if (!j.plain)
        FOR_EACH(k_gather, images * dx_image, s, (const float *)columns, bias ? bias->data : NULL,
                 bias ? (int)bias->dtype : 0, dx, (int)j.type);
    return MPR_OK;
}

static mpr_status weight_tile(const KernelCall *c, const Job &j, int tile, int images, LtHeld *h)
{
    const Geometry &s = j.s;
    size_t size = mpri_dtype_size(j.type);
    int64_t out = s.w.out_n, used = images * out, all = up_to_8(used), first = (int64_t)tile * j.tile;
    const void *dy = at_element((const void *)c->in[0].data, first * s.group * s.co * out, size);
    const void *x = at_element((const void *)c->in[1].data, first * s.group * s.ci * s.w.in_n, size);
    char *work = (char *)c->workspace;
    float *parts = (float *)(work + j.parts) + (int64_t)tile * s.group * s.co * s.ck;
    Columns layout = {all, out, (int)used, (int)all};
    make_columns(c, j, layout, x, work + j.columns);
    put_side_by_side(c, j, layout, dy, work + j.second);
    return mpri_cuda_product_run(h, 1, work + j.second, work + j.columns, NULL,
                                 j.tiles > 1 ? (void *)parts : c->out[0].data, c->workspace, c->queue);
}

static mpr_status run_tiles(const KernelCall *c, const Job &j)
{
    Held *h = (Held *)c->held;
    for (int t = 0; t < j.tiles; t++) {
        bool last = t == j.tiles - 1;
        int images = last ? j.rest : j.tile;
        LtHeld *p = last ? &h->rest : &h->full;
        TRY(j.way == WAY_FORWARD ? forward_tile(c, j, t, images, p)
            : j.way == WAY_INPUT ? input_tile(c, j, t, images, p)
                                 : weight_tile(c, j, t, images, p));
    }
    if (j.way == WAY_WEIGHT && j.tiles > 1)
        FOR_EACH(k_add_parts, c->out[0].n, (const float *)((char *)c->workspace + j.parts), j.tiles,
                 c->out[0].data, (int)j.type);
    return MPR_OK;
}

static mpr_status run_direct(const KernelCall *c, const Job &j)
{
    const Tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0], *bias = input_of(c, 2);
    const void *bias_at = bias ? bias->data : NULL;
    int ta = (int)a->dtype, tb = (int)b->dtype, ty = (int)y->dtype, t_bias = bias ? (int)bias->dtype : 0;
    if (j.way == WAY_FORWARD) {
        FOR_EACH(k_direct, y->n, j.s, a->data, ta, b->data, tb, bias_at, t_bias, y->data, ty);
    } else if (j.way == WAY_INPUT) {
        FOR_EACH(k_direct_input, y->n, j.s, a->data, ta, b->data, tb, bias_at, t_bias, y->data, ty);
    } else {
        int64_t part;
        int parts = parts_of(j.s, &part);
        float *work = (float *)c->workspace;
        MPRI_LAUNCH(k_direct_weight, dim3((unsigned)y->n, (unsigned)parts), CONV_THREADS, 0, c->queue,
                    j.s, a->data, ta, b->data, tb, work, y->n, part);
        FOR_EACH(k_add_parts, y->n, (const float *)work, parts, y->data, ty);
    }
    return MPR_OK;
}

template <int OP> static mpr_status k_conv(const KernelCall *c)
{
    KernelSig s = {};
    s.op = OP, s.params = c->params;
    s.n_in = c->n_in, s.n_out = c->n_out, s.in = c->in, s.out = c->out;
    if (!c->out[0].n) return MPR_OK;
    Job j = job_of(&s);
    return j.direct ? run_direct(c, j) : run_tiles(c, j);
}

/* ---- rows ---- */

static const char *refuse_conv(const KernelSig *s)
{
    const Tensor *large = s->op == OP_ConvGradWeight ? &s->in[1] : &s->out[0];
    for (int k = 0; k < s->n_in; k++)
        if (mpri_tensor_here(&s->in[k]) && s->in[k].dtype != s->out[0].dtype)
            return "tensors of different types";
    if (!cuda_float(s->out[0].dtype)) return CUDA_NOT_FLOAT;
    const char *why = refuse_windows(&s->in[0], large);
    return why || job_of(s).s.w.fits ? why : CUDA_TOO_LARGE;
}

static void describe_conv(const void *held, char *buf, size_t size)
{
    mpri_cuda_product_describe(&((const Held *)held)->full, buf, size);
}

static size_t conv_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return job_of(s).all;
}

static double flops(const Tensor *w, const Tensor *y)
{
    return w->n && w->dims[0] ? 2.0 * (double)y->n * (double)(w->n / w->dims[0]) : 0;
}
static double flops_conv(const KernelSig *s) { return flops(&s->in[1], &s->out[0]); }
static double flops_input(const KernelSig *s) { return flops(&s->in[1], &s->in[0]); }
static double flops_weight(const KernelSig *s) { return flops(&s->out[0], &s->in[0]); }

#define CONV_ROW(Op, lower, count)                                                                    \
    CUDA_ROW(Op, lower, k_conv<OP_##Op>, .refuse = refuse_conv, .workspace = conv_bytes, .flops = (count), \
             .prepare = prepare_conv, .describe = describe_conv)
static const KernelRow rows[] = {
    CONV_ROW(Conv, "conv", flops_conv),
    CONV_ROW(ConvGradInput, "convgradinput", flops_input),
    CONV_ROW(ConvGradWeight, "convgradweight", flops_weight),
    CONV_ROW(ConvTranspose, "convtranspose", flops_input),
};
extern "C" const KernelTable mpri_cuda_conv = CUDA_TABLE(rows);
