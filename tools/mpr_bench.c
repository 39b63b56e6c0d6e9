/* mpr-bench: how fast a model trains or runs here, as ratios within one process.
 *
 * Heap allocations are counted by this program's own malloc, which stands before the C library's: the
 * count per step includes every library. */
#include "tools/common/cli.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* ---- counting allocator in front of glibc's ---- */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t m);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t a, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t m);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t a, size_t n);
int posix_memalign(void **p, size_t a, size_t n);
static atomic_long allocations;

#if !defined(__SANITIZE_ADDRESS__)
void *malloc(size_t n) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); return __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    *p = __libc_memalign(a, n);
    return *p ? 0 : ENOMEM;
}
#endif

static const CliRow rows[] = {
    {"batch-size", 0, NULL, CLI_STRING, NULL, NULL, "N,N", "first symbolic dim of the inputs (from --inputs, else 8)", "what"},
    {"precision", 0, NULL, CLI_STRING, "fp32", NULL, "P,P", "fp32, fp16, bf16", "what"},
    {"threads", 0, NULL, CLI_STRING, "0", NULL, "N,N", "threads; 0 = as many as the process may use", "what"},
    {"phase", 0, NULL, CLI_STRING, "train", NULL, "P,P", "forward, train", "what"},
    {"gemm", 0, NULL, CLI_STRING, NULL, NULL, "M,N,K", "one matrix product instead of a model (with --precision)", "what"},
    {"ops", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "single operators, as shares of a matrix product and of a copy in this process (with --precision)", "what"},
    {"peak", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "register-only FMA rate of one thread", "what"},
    {"bind", 0, NULL, CLI_LIST, NULL, NULL, "NAME=N", "sizes of other symbolic dims", "data"},
    {"inputs", 0, NULL, CLI_STRING, NULL, NULL, "FILE.npz", "one batch with labels (random rows otherwise)", "data"},
    {"synthetic", 0, NULL, CLI_INT, "1", NULL, "N", "how many different random batches", "data"},
    {"labels", 0, NULL, CLI_STRING, "labels", NULL, "KEY", "labels in --inputs", "data"},
    {"loss", 0, NULL, CLI_STRING, "cross-entropy", NULL, "KIND", "objective", "training"},
    {"logits", 0, NULL, CLI_STRING, NULL, NULL, "NAME", "output that the loss reads", "training"},
    {"optim", 0, NULL, CLI_STRING, "adamw", "adamw|adam|sgd", NULL, "optimizer", "training"},
    {"autocast-profile", 0, NULL, CLI_STRING, "torch-cuda", NULL, "NAME|FILE", "policy of fp16 and bf16, as in mpr-train", "training"},
    {"repeat", 0, NULL, CLI_INT, "5", NULL, "N", "timed steps; on a GPU timings, of as many steps as fill 50 ms", "timing"},
    {"warmup", 0, NULL, CLI_INT, "3", NULL, "N", "untimed steps before", "timing"},
    {"format", 'O', NULL, CLI_STRING, "md", "md|csv|json", NULL, "form of the result", "timing"},
    {NULL, 0, NULL, CLI_FLAG, NULL, NULL, NULL, NULL, NULL},
};

typedef struct Row {
    char model[200];
    const char *phase, *precision;
    int threads;
    int64_t batch;
    double median_ms, min_ms, flops, peak;
    float loss;
    mpr_memory_bill memory;
    long rss;
    double allocs;
} Row;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct Bench { /* everything of one row */
    Cli *cli;
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_scaler *scaler;
    mpr_dataset *data;
    mpr_tensors *inputs;
    bool train;
    int64_t synthetic, turn;
} Bench;

static const void *bench_bind(Bench *b, bool all)
{
    if (b->inputs) {
        if (!all) return NULL;
        for (int i = 0; i < mpr_tensors_count(b->inputs); i++) {
            const char *name = mpr_tensors_name(b->inputs, i);
            mpr_tensor t;
            bool label = !strcmp(name, cli_text(b->cli, "labels"));
            if (label && !b->train) continue;
            if (mpr_tensors_get(b->inputs, name, &t) != MPR_OK) return b->inputs;
            if (mpr_session_bind(b->s, label ? "labels" : name, t.data, t.dtype, t.dims, t.rank) != MPR_OK) return b->s;
        }
        return NULL;
    }
    if (!all && b->synthetic == 1) return NULL;
    return mpr_dataset_bind(b->data, 0, b->turn++ % b->synthetic, NULL) == MPR_OK ? NULL : b->data;
}

/* How many steps one timing takes. A GPU runs behind the host, which waits where it reads the loss: there
 * a timing is of many steps, of which the last reads it; 50 ms keep the wait small. */
static int steps_per_timing(const Cli *cli, double step_ms)
{
    enum { MOST = 200 };
    if (!strcmp(cli_text(cli, "device"), "cpu")) return 1;
    return step_ms * MOST < 50 ? MOST : step_ms < 50 ? (int)(50 / step_ms) : 1;
}

/* One step: the handle that failed, or NULL. */
static const void *bench_step(Bench *b, float *loss)
{
    const void *bad = bench_bind(b, false);
    if (bad) return bad;
    if (!b->train) return mpr_session_evaluate(b->s, NULL) == MPR_OK ? NULL : b->s;
    if (mpr_session_zero_grad(b->s) != MPR_OK) return b->s;
    if (mpr_session_forward(b->s, loss) != MPR_OK) return b->s;
    if (mpr_session_backward(b->s, b->scaler) != MPR_OK) return b->s;
    if (b->scaler) {
        if (mpr_scaler_unscale(b->scaler, b->opt) != MPR_OK) return b->scaler;
        if (mpr_scaler_step(b->scaler, b->opt, NULL) != MPR_OK) return b->scaler;
        if (mpr_scaler_update(b->scaler) != MPR_OK) return b->scaler;
        return NULL;
    }
    return mpr_optimizer_step(b->opt, NULL) == MPR_OK ? NULL : b->opt;
}

static const void *bench_open(Bench *b, const char *path, const char *precision, int threads, int64_t batch)
{
    const char *optim = cli_text(b->cli, "optim");
    mpr_dtype low = !strcmp(precision, "fp16") ? MPR_FLOAT16 : !strcmp(precision, "bf16") ? MPR_BFLOAT16 : MPR_DTYPE_NONE;
    mpr_context_options co = {.size = sizeof co, .device = cli_text(b->cli, "device"), .threads = threads, .no_cuda_graph = cli_flag(b->cli, "no-cuda-graph"),
                              .cuda_tune = cli_flag(b->cli, "cuda-tune")};
    mpr_session_options so = {.size = sizeof so, .autocast = low, .eval_autocast = b->train ? MPR_DTYPE_NONE : low,
                              .autocast_profile = cli_is_set(b->cli, "autocast-profile") ? cli_text(b->cli, "autocast-profile") : NULL, .loss = b->train ? cli_text(b->cli, "loss") : NULL,
                              .logits = cli_text(b->cli, "logits"), .seed = (uint64_t)cli_int(b->cli, "seed")};
    if (mpr_context_create(&co, &b->ctx) != MPR_OK) return b->ctx;
    if (mpr_model_load(b->ctx, path, NULL, &b->model) != MPR_OK) return b->ctx;
    if (mpr_session_open(b->model, &so, &b->s) != MPR_OK) return b->model;
    if (b->train) {
        mpr_adamw adam = {.size = sizeof adam, .learning_rate = 1e-4f, .weight_decay = 0.01f, .l2 = !strcmp(optim, "adam")};
        mpr_sgd sgd = {.size = sizeof sgd, .learning_rate = 1e-4f, .momentum = 0.9f};
        mpr_status st = !strcmp(optim, "sgd") ? mpr_optimizer_sgd(b->s, &sgd, &b->opt) : mpr_optimizer_adamw(b->s, &adam, &b->opt);
        if (st != MPR_OK) return b->s;
        if (low == MPR_FLOAT16 && mpr_scaler_create(b->s, NULL, &b->scaler) != MPR_OK) return b->s;
    }
    if (cli_text(b->cli, "inputs")) return mpr_tensors_load(b->ctx, cli_text(b->cli, "inputs"), &b->inputs) == MPR_OK ? NULL : b->ctx;
    b->synthetic = cli_int(b->cli, "synthetic");
    mpr_dataset_options d = {.size = sizeof d, .synthetic_rows = batch * b->synthetic, .batch_size = batch, .seed = so.seed,
                             .bind = cli_list(b->cli, "bind")};
    return mpr_dataset_open(b->s, NULL, 0, &d, &b->data) == MPR_OK ? NULL : b->s;
}

static void bench_close(Bench *b)
{
    mpr_dataset_close(b->data);
    mpr_tensors_destroy(b->inputs);
    mpr_scaler_destroy(b->scaler);
    mpr_optimizer_destroy(b->opt);
    mpr_session_close(b->s);
    mpr_model_destroy(b->model);
    mpr_context_destroy(b->ctx);
}

static int measure(Cli *cli, const char *path, Row *row, int64_t batch)
{
    Bench b = {.cli = cli, .train = !strcmp(row->phase, "train")};
    int64_t repeat = cli_int(cli, "repeat"), warmup = cli_int(cli, "warmup");
    const char *base = strrchr(path, '/');
    struct rusage use;
    double *ms = __libc_calloc((size_t)repeat, sizeof *ms);
    const void *bad = bench_open(&b, path, row->precision, row->threads, batch);
    if (!bad) bad = bench_bind(&b, true);
    double last = 0;
    for (int64_t i = 0; !bad && i < warmup; i++) {
        double start = now_ms();
        bad = bench_step(&b, &row->loss);
        last = now_ms() - start;
    }
    int steps = steps_per_timing(cli, last);
    long before = atomic_load(&allocations);
    for (int64_t i = 0; !bad && i < repeat; i++) {
        double start = now_ms();
        for (int k = 1; !bad && k < steps; k++) bad = bench_step(&b, NULL);
        if (!bad) bad = bench_step(&b, &row->loss);
        ms[i] = (now_ms() - start) / steps;
    }
    row->allocs = (double)(atomic_load(&allocations) - before) / (double)(repeat * steps);
    row->memory.size = sizeof row->memory;
    if (!bad && mpr_session_memory(b.s, &row->memory) != MPR_OK) bad = b.s;
    if (!bad && mpr_session_flops(b.s, b.train, &row->flops) != MPR_OK) bad = b.s;
    if (!bad && mpr_bench_peak(b.ctx, &row->peak) != MPR_OK) bad = b.ctx;
    getrusage(RUSAGE_SELF, &use);
    row->rss = use.ru_maxrss * 1024;
    snprintf(row->model, sizeof row->model, "%s", base ? base + 1 : path);
    if (strlen(row->model) > 5 && !strcmp(row->model + strlen(row->model) - 5, ".onnx")) row->model[strlen(row->model) - 5] = 0;
    row->batch = batch;
    if (b.inputs && mpr_tensors_count(b.inputs)) {
        mpr_tensor t;
        if (mpr_tensors_get(b.inputs, mpr_tensors_name(b.inputs, 0), &t) == MPR_OK && t.rank) row->batch = t.dims[0];
    }
    if (!bad) {
        qsort(ms, (size_t)repeat, sizeof *ms, by_value);
        row->median_ms = repeat % 2 ? ms[repeat / 2] : 0.5 * (ms[repeat / 2] + ms[repeat / 2 - 1]);
        row->min_ms = ms[0];
    }
    int code = bad ? cli_fail(cli, bad) : 0;
    bench_close(&b);
    free(ms);
    return code;
}

static void print_row(const char *format, const Row *r, bool first, json_t *list)
{
    double seconds = r->median_ms * 1e-3, gflops = r->flops / seconds * 1e-9, fraction = r->peak > 0 ? r->flops / seconds / (r->peak * r->threads) : 0;
    double rate = (double)r->batch / seconds;
    if (list) {
        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:i,s:I,s:f,s:f,s:f,s:f,s:f,s:o,s:I,s:I,s:I,s:I,s:I,s:f}", "model", r->model, "phase", r->phase,
            "precision", r->precision, "threads", r->threads, "batch_size", (json_int_t)r->batch, "median_ms", r->median_ms, "min_ms", r->min_ms,
            "samples_per_s", rate, "gflops", gflops, "peak_fraction", fraction, "loss", isfinite(r->loss) ? json_real((double)r->loss) : json_string("nan"),
            "arena_bytes", (json_int_t)(r->memory.activations + r->memory.inputs), "arena_lower_bound_bytes", (json_int_t)(r->memory.activations_lower_bound + r->memory.inputs),
            "param_bytes", (json_int_t)r->memory.parameters, "optimizer_bytes", (json_int_t)r->memory.optimizer, "peak_rss_bytes", (json_int_t)r->rss, "allocs_per_step", r->allocs));
        return;
    }
    bool csv = !strcmp(format, "csv");
    if (first) printf("%s", csv ? "model,phase,precision,threads,batch_size,median_ms,min_ms,samples_per_s,gflops,peak_fraction,loss,arena_bytes,arena_lower_bound_bytes,param_bytes,optimizer_bytes,peak_rss_bytes,allocs_per_step\n"
        : "| model | phase | precision | threads | batch | median ms | min ms | samples/s | GFLOP/s | of peak | loss | arena MiB | bound MiB | RSS MiB | allocs/step |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    if (csv) printf("%s,%s,%s,%d,%lld,%.6g,%.6g,%.6g,%.6g,%.6g,%.9g,%zu,%zu,%zu,%zu,%ld,%.3g\n", r->model, r->phase, r->precision, r->threads, (long long)r->batch, r->median_ms, r->min_ms, rate, gflops, fraction,
        (double)r->loss, r->memory.activations + r->memory.inputs, r->memory.activations_lower_bound + r->memory.inputs, r->memory.parameters, r->memory.optimizer, r->rss, r->allocs);
    else printf("| %s | %s | %s | %d | %lld | %.3f | %.3f | %.0f | %.1f | %.2f | %.5f | %.2f | %.2f | %.0f | %.3g |\n", r->model, r->phase, r->precision, r->threads, (long long)r->batch, r->median_ms, r->min_ms, rate, gflops, fraction,
        (double)r->loss, (double)(r->memory.activations + r->memory.inputs) / 1048576, (double)(r->memory.activations_lower_bound + r->memory.inputs) / 1048576, (double)r->rss / 1048576, r->allocs);
    fflush(stdout);
}

/* The k-th entry of a comma list into buf; false past the end. */
static bool item(const char *list, int k, char buf[32])
{
    while (k-- > 0) {
        list = strchr(list, ',');
        if (!list) return false;
        list++;
    }
    size_t n = strcspn(list, ",");
    snprintf(buf, 32, "%.*s", (int)(n < 31 ? n : 31), list);
    return n > 0;
}

static int bench_models(Cli *cli, const char *format)
{
    char batch[32], precision[32], threads[32], phase[32];
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    json_t *list = !strcmp(format, "json") ? json_array() : NULL;
    bool first = true;
    int code = 0;
    const char *batches = cli_text(cli, "batch-size") ? cli_text(cli, "batch-size") : "8";
    for (int m = 0; m < cli->n_args && !code; m++)
        for (int p = 0; !code && item(cli_text(cli, "phase"), p, phase); p++)
            for (int q = 0; !code && item(cli_text(cli, "precision"), q, precision); q++)
                for (int t = 0; !code && item(cli_text(cli, "threads"), t, threads); t++)
                    for (int n = 0; !code && item(batches, n, batch); n++) {
                        Row r = {0};
                        long long size = atoll(batch);
                        for (int i = 0; i < 3; i++)
                            if (!strcmp(names[i], precision)) r.precision = names[i];
                        r.phase = !strcmp(phase, "train") ? "train" : !strcmp(phase, "forward") ? "forward" : NULL;
                        r.threads = atoi(threads) ? atoi(threads) : (int)sysconf(_SC_NPROCESSORS_ONLN);
                        if (!r.precision) code = cli_usage(cli, "fp32, fp16 or bf16", "unknown precision '%s'", precision);
                        else if (!r.phase) code = cli_usage(cli, "forward or train", "unknown phase '%s'", phase);
                        else if (size < 1) code = cli_usage(cli, "1 or more", "batch size %s", batch);
                        else code = measure(cli, cli->args[m], &r, size);
                        if (!code) print_row(format, &r, first, list);
                        first = false;
                    }
    if (list && !code) {
        char *s = json_dumps(list, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        printf("%s\n", s ? s : "[]");
        free(s);
    }
    json_decref(list);
    return code;
}

static int bench_machine(Cli *cli)
{
    double peak = 0, seconds = 0;
    const char *gemm = cli_text(cli, "gemm");
    long long m = 0, n = 0, k = 0;
    if (mpr_bench_peak(cli->ctx, &peak) != MPR_OK) return cli_fail(cli, cli->ctx);
    if (cli_flag(cli, "peak")) printf(cli->json ? "{\"peak_gflops_per_thread\":%.2f}\n" : "FMA peak of one thread: %.1f GFLOP/s (registers only)\n", peak * 1e-9);
    if (!gemm) return 0;
    if (sscanf(gemm, "%lld,%lld,%lld", &m, &n, &k) != 3 || m < 1 || n < 1 || k < 1) return cli_usage(cli, "--gemm 512,512,512", "--gemm takes M,N,K, found '%s'", gemm);
    char precision[32];
    for (int q = 0; item(cli_text(cli, "precision"), q, precision); q++) {
        mpr_dtype t = !strcmp(precision, "fp16") ? MPR_FLOAT16 : !strcmp(precision, "bf16") ? MPR_BFLOAT16 : MPR_FLOAT32;
        for (int form = 0; form < 3; form++) {
            static const char *const forms[] = {"NN", "NT", "TN"};
            if (mpr_bench_gemm(cli->ctx, m, n, k, t, form == 2, form == 1, (int)cli_int(cli, "repeat"), &seconds) != MPR_OK) return cli_fail(cli, cli->ctx);
            double rate = 2.0 * (double)m * (double)n * (double)k / seconds;
            printf(cli->json ? "{\"gemm\":\"%s\",\"precision\":\"%s\",\"milliseconds\":%.4f,\"gflops\":%.2f,\"peak_fraction\":%.4f}\n"
                             : "gemm %s %s: %.3f ms, %.1f GFLOP/s, %.2f of one thread's peak\n", forms[form], precision, seconds * 1e3, rate * 1e-9, peak > 0 ? rate / peak : 0); /* the peak is known for CPUs */
        }
    }
    return 0;
}

static mpr_dtype dtype_of(const char *precision)
{
    return !strcmp(precision, "fp16") ? MPR_FLOAT16 : !strcmp(precision, "bf16") ? MPR_BFLOAT16 : MPR_FLOAT32;
}

/* Product, copy and operator take turns, and the best of each counts: others may use the machine
 * meanwhile. */
static int bench_ops(Cli *cli)
{
    enum { N = 512, TURNS = 8 };
    char precision[32];
    int repeat = (int)cli_int(cli, "repeat");
    if (!cli->json) printf("| operator | precision | kernel | ms | GFLOP/s | of product | GB/s | of copy |\n|---|---|---|---|---|---|---|---|\n");
    for (int q = 0; item(cli_text(cli, "precision"), q, precision); q++)
        for (int i = 0;; i++) {
            mpr_dtype t = dtype_of(precision);
            mpr_op_rate r = {.size = sizeof r, .seconds = INFINITY};
            double gemm = INFINITY, copy = 0;
            for (int turn = 0; turn < TURNS; turn++) {
                mpr_op_rate again = {.size = sizeof again};
                double seconds, rate;
                if (mpr_bench_op(cli->ctx, i, t, repeat, &again) != MPR_OK) return cli_fail(cli, cli->ctx);
                if (!again.name) break;
                if (mpr_bench_gemm(cli->ctx, N, N, N, t, false, false, 5, &seconds) != MPR_OK) return cli_fail(cli, cli->ctx);
                if (mpr_bench_copy(cli->ctx, 3, &rate) != MPR_OK) return cli_fail(cli, cli->ctx);
                gemm = fmin(gemm, seconds);
                copy = fmax(copy, rate);
                again.seconds = fmin(again.seconds, r.seconds);
                r = again;
            }
            if (!r.name) break;
            double flops = r.flops / r.seconds, product = 2.0 * N * N * N / gemm, bytes = r.bytes / r.seconds;
            printf(cli->json ? "{\"op\":\"%s\",\"precision\":\"%s\",\"kernel\":\"%s\",\"milliseconds\":%.4f,\"gflops\":%.2f,\"of_product\":%.4f,\"gbytes\":%.2f,\"of_copy\":%.4f}\n"
                             : "| %s | %s | %s | %.3f | %.1f | %.2f | %.1f | %.2f |\n",
                   r.name, precision, r.kernel, r.seconds * 1e3, flops * 1e-9, flops / product, bytes * 1e-9, bytes / copy);
            fflush(stdout);
        }
    return 0;
}

int main(int argc, char **argv)
{
    Cli cli = {.tool = "mpr-bench", .usage = "MODEL.onnx… [options]", .about = "how fast a model trains or runs here",
               .examples = "  mpr-bench model.onnx --precision fp32,fp16 --threads 1,2 --batch-size 64\n"
                           "  mpr-bench --peak --gemm 1024,1024,1024 --precision fp32,fp16\n"};
    bool done;
    int code = cli_parse(&cli, rows, argc, argv, &done);
    if (!code && !done) {
        bool ops = cli_flag(&cli, "ops"), machine = ops || cli_flag(&cli, "peak") || cli_text(&cli, "gemm");
        if (cli_int(&cli, "repeat") < 1 || cli_int(&cli, "warmup") < 0) code = cli_usage(&cli, "1 or more", "--repeat %s --warmup %s", cli_text(&cli, "repeat"), cli_text(&cli, "warmup"));
        else if (machine) { code = cli_context(&cli); if (!code) code = bench_machine(&cli); if (!code && ops) code = bench_ops(&cli); }
        if (!code && cli.n_args) code = bench_models(&cli, cli.json ? "json" : cli_text(&cli, "format"));
        else if (!code && !machine) code = cli_usage(&cli, "mpr-bench MODEL.onnx", "expected a MODEL, found none");
        code = cli_finish(&cli, code);
    }
    cli_free(&cli);
    return code;
}
