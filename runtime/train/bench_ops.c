/* Single operators timed by the kernels that a plan chooses, so that they can be told as shares of what
 * the same process reaches in a matrix product and in a copy.
 *
 * A row is a graph in text form with F for the type under test. The inputs are read from memory and the
 * outputs written to it in every run; bytes count each of them once. Inputs are random: vectors (scales
 * and variances) positive, whole numbers below 1000. */
#include "runtime/train/bench.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/rng.h"
#include "runtime/exec/plan.h"
#include "runtime/ir/text_form.h"
#include "runtime/op/ops.h"
#include "runtime/train/trainer.h"

typedef struct OpRow {
    const char *name, *inputs;
    const char *node; /* of output y, or "OUTPUT, OUTPUT = NODE" */
} OpRow;

static const OpRow rows[] = {
    {"conv 16x16 s16 3->192 224^2", "x: F[8,3,224,224]|w: F[192,3,16,16]",
     "Conv(x, w) {strides=[16,16]}"},
    {"its input gradient", "dy: F[8,192,14,14]|w: F[192,3,16,16]",
     "ConvGradInput(dy, w) {strides=[16,16], dims=[8,3,224,224]}"},
    {"its weight gradient", "dy: F[8,192,14,14]|x: F[8,3,224,224]",
     "ConvGradWeight(dy, x) {strides=[16,16], dims=[192,3,16,16]}"},
    {"conv 7x7 s2 3->64 224^2", "x: F[8,3,224,224]|w: F[64,3,7,7]",
     "Conv(x, w) {strides=[2,2], pads=[3,3,3,3]}"},
    {"its input gradient", "dy: F[8,64,112,112]|w: F[64,3,7,7]",
     "ConvGradInput(dy, w) {strides=[2,2], pads=[3,3,3,3], dims=[8,3,224,224]}"},
    {"its weight gradient", "dy: F[8,64,112,112]|x: F[8,3,224,224]",
     "ConvGradWeight(dy, x) {strides=[2,2], pads=[3,3,3,3], dims=[64,3,7,7]}"},
    {"conv 3x3 64->64 56^2", "x: F[8,64,56,56]|w: F[64,64,3,3]", "Conv(x, w) {pads=[1,1,1,1]}"},
    {"its input gradient", "dy: F[8,64,56,56]|w: F[64,64,3,3]",
     "ConvGradInput(dy, w) {pads=[1,1,1,1], dims=[8,64,56,56]}"},
    {"its weight gradient", "dy: F[8,64,56,56]|x: F[8,64,56,56]",
     "ConvGradWeight(dy, x) {pads=[1,1,1,1], dims=[64,64,3,3]}"},
    {"max pool 3x3 s2 112^2", "x: F[8,64,112,112]",
     "MaxPool(x) {kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]}"},
    {"its gradient", "dy: F[8,64,56,56]|x: F[8,64,112,112]",
     "MaxPoolGrad(dy, x) {kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]}"},
    {"average pool 2x2 s2 112^2", "x: F[8,64,112,112]",
     "AveragePool(x) {kernel_shape=[2,2], strides=[2,2]}"},
    {"its gradient", "dy: F[8,64,56,56]",
     "AveragePoolGrad(dy) {kernel_shape=[2,2], strides=[2,2], dims=[8,64,112,112]}"},
    {"global average pool 14^2", "x: F[32,512,14,14]", "GlobalAveragePool(x)"},
    {"global max pool 14^2", "x: F[32,512,14,14]", "GlobalMaxPool(x)"},
    {"attention 3 heads 197x64", "q: F[8,3,197,64]|k: F[8,3,197,64]|v: F[8,3,197,64]",
     "y, _, _, _, lse = Attention(q, k, v)"},
    {"its gradient",
     "q: F[8,3,197,64]|k: F[8,3,197,64]|v: F[8,3,197,64]|dy: F[8,3,197,64]|y: F[8,3,197,64]|"
     "lse: f32[8,3,197]",
     "dq, dk, dv = AttentionGrad(q, k, v, _, _, _, _, dy, y, lse)"},
    {"batch norm 64x112^2",
     "x: F[8,64,112,112]|scale: f32[64]|bias: f32[64]|mean: f32[64]|var: f32[64]",
     "y, rm, rv, bm, bv = BatchNormalization(x, scale, bias, mean, var) {training_mode=1}"},
    {"its gradient",
     "dy: F[8,64,112,112]|x: F[8,64,112,112]|scale: f32[64]|mean: f32[64]|var: f32[64]",
     "dx, dscale, dbias = BatchNormGrad(dy, x, scale, mean, var) {training_mode=1}"},
    {"gradient of an embedding 8192x512", "dy: F[8,512,512]|indices: i64[8,512]",
     "GatherGrad(dy, indices) {dims=[8192,512]}"},
};

/* ---- the plan of a row ---- */

static void add_typed(Text *t, const char *text, DType type)
{
    for (; *text; text++) {
        if (*text == 'F' && text[1] == '[') mpri_text_put(t, mpri_dtype_name(type));
        else if (*text == '|') mpri_text_put(t, "\n input ");
        else mpri_text_add(t, "%c", *text);
    }
}

static mpr_status make_graph(mpr_context *ctx, const OpRow *row, DType type, Arena *arena, Graph **g,
                             Err *err)
{
    Text t;
    mpri_text_init(&t, &ctx->alloc);
    mpri_text_put(&t, "graph \"op\" {\n input ");
    add_typed(&t, row->inputs, type);
    const char *end = strstr(row->node, " = "), *output = end ? row->node : "y";
    mpri_text_add(&t, "\n %s%s", end ? "" : "y = ", row->node);
    for (int n; *output && *output != '='; output += n + (int)strspn(output + n, ", ")) {
        n = (int)strcspn(output, ", ");
        if (*output != '_') mpri_text_add(&t, "\n output %.*s = %.*s", n, output, n, output);
    }
    mpri_text_put(&t, "\n}\n");
    Intern *names = mpri_intern_create(arena);
    mpr_status status = t.failed || !names ? mpri_err_nomem(err, t.cap)
                                           : mpri_graph_parse(t.text, arena, names, mpri_op_table(),
                                                              g, err);
    mpri_text_free(&t);
    return status;
}

static mpr_status fill_inputs(const Plan *p, double *sum, Err *err)
{
    double bytes = 0;
    const Graph *g = p->graph;
    for (int i = 0; i < g->n_inputs; i++) {
        const Value *v = g->inputs[i].value;
        void *to = mpri_plan_value_data(p, v);
        int64_t n = mpri_shape_elements(&v->shape);
        size_t size = (size_t)n * mpri_dtype_size(v->dtype);
        bytes += (double)size;
        void *data = to && size ? mpri_alloc(p->device->alloc, size, 64) : NULL;
        if (to && size && !data) return mpri_err_nomem(err, size);
        for (int64_t k = 0; data && k < n; k++) {
            double u = (double)mpri_rng_uniform(1, (uint64_t)i, (uint64_t)k);
            if (v->dtype == MPR_INT64) u = (double)(int)(1000 * u);
            else if (v->shape.rank > 1) u -= 0.5;
            mpri_store_f64(v->dtype, data, k, u);
        }
        mpr_status status = data ? p->device->copy_in(p->device, to, data, size, err) : MPR_OK;
        mpri_free(p->device->alloc, data);
        TRY(status);
    }
    for (int i = 0; i < g->n_outputs; i++) {
        const Value *v = g->outputs[i].value;
        bytes += (double)mpri_shape_elements(&v->shape) * (double)mpri_dtype_size(v->dtype);
    }
    *sum = bytes;
    return MPR_OK;
}

static mpr_status time_plan(Plan *p, int repeat, mpr_op_rate *rate, Err *err)
{
    TRY(mpri_plan_bind_memory(p, NULL, err));
    TRY(fill_inputs(p, &rate->bytes, err));
    for (int i = 0; i < p->n_steps; i++) {
        rate->flops += p->steps[i].flops;
        snprintf(rate->kernel, sizeof rate->kernel, "%s", p->steps[i].row->name);
    }
    for (int i = 0; i <= repeat; i++) { /* the first run warms up */
        double start = mpri_monotonic();
        TRY(mpri_plan_run(p, -1, 0, 0, err));
        if (p->device->synchronize) TRY(p->device->synchronize(p->device, err));
        double took = mpri_monotonic() - start;
        if (i == 1 || (i > 1 && took < rate->seconds)) rate->seconds = took;
    }
    return MPR_OK;
}

static mpr_status run_row(mpr_context *ctx, Device *d, const OpRow *row, DType type, int repeat,
                          mpr_op_rate *rate, Err *err)
{
    Arena arena;
    Store store;
    Plan *plan = NULL;
    Graph *g = NULL;
    TRY(mpri_store_init(&store, d, err));
    mpri_arena_init(&arena, &ctx->alloc, 0);
    mpr_status status = make_graph(ctx, row, type, &arena, &g, err);
    if (status != MPR_OK) mpri_arena_destroy(&arena);
    else status = mpri_plan_create(d, &store, g, arena, &(PlanOptions){0}, &plan, err);
    if (status == MPR_OK) status = time_plan(plan, repeat > 1 ? repeat : 1, rate, err);
    mpri_plan_destroy(plan);
    mpri_store_destroy(&store);
    return status;
}

mpr_status mpri_bench_node(mpr_context *ctx, Device *d, const char *inputs, const char *node,
                           mpr_dtype type, int repeat, mpr_op_rate *rate, Err *err)
{
    const OpRow row = {.inputs = inputs, .node = node};
    return run_row(ctx, d, &row, type, repeat, rate, err);
}

mpr_status mpri_bench_op(mpr_context *ctx, int index, mpr_dtype type, int repeat, mpr_op_rate *rate,
                         Err *err)
{
    Device *d;
    *rate = (mpr_op_rate){.size = sizeof *rate};
    if (index < 0 || index >= (int)(sizeof rows / sizeof rows[0])) return MPR_OK;
    if (type != MPR_FLOAT32 && !mpri_dtype_is_low(type))
        return mpri_err_set(err, MPR_E_USAGE, "type %s; allowed are float32, float16, bfloat16",
                            mpri_dtype_long(type));
    rate->name = rows[index].name;
    TRY(mpri_context_device(ctx, &d, err));
    mpr_status status = run_row(ctx, d, &rows[index], type, repeat, rate, err);
    mpri_device_destroy(d);
    return status;
}

/* ---- the copy that memory-bound operators are measured by ---- */

enum { COPY_TILE = 1 << 18, COPY_TILES = 256 }; /* 64 MiB: beyond the caches */

static void copy_tile(void *ctx, int64_t tile)
{
    char *const *m = ctx;
    memcpy(m[1] + tile * COPY_TILE, m[0] + tile * COPY_TILE, COPY_TILE);
}

/* A device with memory of its own: by a kernel that reads and writes every element once. */
static mpr_status time_kernel(mpr_context *ctx, Device *d, int repeat, double *bytes_per_second,
                              Err *err)
{
    mpr_op_rate rate = {.size = sizeof rate};
    TRY(mpri_bench_node(ctx, d, "x: F[16777216]", "Neg(x)", MPR_FLOAT32, repeat, &rate, err));
    if (rate.seconds > 0) *bytes_per_second = rate.bytes / rate.seconds;
    return MPR_OK;
}

static void time_copy(Device *d, void **memory, int repeat, double *bytes_per_second)
{
    size_t bytes = (size_t)COPY_TILE * COPY_TILES;
    memset(memory[0], 1, bytes);
    for (int i = 0; i <= repeat; i++) {
        double start = mpri_monotonic();
        mpri_parallel(d->threads, COPY_TILES, copy_tile, memory);
        double rate = 2 * (double)bytes / (mpri_monotonic() - start);
        if (i && rate > *bytes_per_second) *bytes_per_second = rate;
    }
}

mpr_status mpri_bench_copy(mpr_context *ctx, int repeat, double *bytes_per_second, Err *err)
{
    Device *d;
    void *memory[2] = {NULL, NULL};
    size_t bytes = (size_t)COPY_TILE * COPY_TILES;
    *bytes_per_second = 0;
    TRY(mpri_context_device(ctx, &d, err));
    if (!d->shared) {
        mpr_status timed = time_kernel(ctx, d, repeat > 1 ? repeat : 1, bytes_per_second, err);
        mpri_device_destroy(d);
        return timed;
    }
    mpr_status status = d->mem_alloc(d, bytes, &memory[0], err);
    if (status == MPR_OK) status = d->mem_alloc(d, bytes, &memory[1], err);
    if (status == MPR_OK) time_copy(d, memory, repeat > 1 ? repeat : 1, bytes_per_second);
    d->mem_free(d, memory[0]);
    d->mem_free(d, memory[1]);
    mpri_device_destroy(d);
    return status;
}
