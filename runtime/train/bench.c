/* The machine's own limits, measured in the process that trains, so that rates can be told as
 * shares. */
#include "runtime/train/bench.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/gemm.h"
#include "runtime/base/rng.h"
#include "runtime/base/size.h"
#include "runtime/train/json.h"
#include "runtime/train/trainer.h"

mpr_status mpri_bench_peak(mpr_context *ctx, double *flops_per_second, Err *err)
{
    Device *d;
    TRY(mpri_context_device(ctx, &d, err));
    *flops_per_second = d->shared ? mpri_cpu_peak(d->isa) : 0;
    mpri_device_destroy(d);
    return MPR_OK;
}

typedef struct GemmMemory {
    void *a, *b, *c, *workspace;
} GemmMemory;

static mpr_status gemm_alloc(Device *d, const BenchGemm *g, size_t workspace, GemmMemory *m,
                             Err *err)
{
    size_t size = mpri_dtype_size(g->dtype), na, nb, nc;
    bool fits = mpri_size_mul((size_t)g->m, (size_t)g->k, &na) &&
                mpri_size_mul((size_t)g->k, (size_t)g->n, &nb) &&
                mpri_size_mul((size_t)g->m, (size_t)g->n, &nc) && na < SIZE_MAX / 8 &&
                nb < SIZE_MAX / 8 && nc < SIZE_MAX / 8;
    if (!fits) return mpri_err_nomem(err, SIZE_MAX);
    TRY(d->mem_alloc(d, na * size, &m->a, err));
    TRY(d->mem_alloc(d, nb * size, &m->b, err));
    TRY(d->mem_alloc(d, nc * size, &m->c, err));
    TRY(d->mem_alloc(d, workspace + 64, &m->workspace, err));
    for (size_t i = 0; i < na; i++)
        mpri_store_f64(g->dtype, m->a, (int64_t)i, mpri_rng_uniform(1, 1, i) - 0.5);
    for (size_t i = 0; i < nb; i++)
        mpri_store_f64(g->dtype, m->b, (int64_t)i, mpri_rng_uniform(1, 2, i) - 0.5);
    return MPR_OK;
}

static mpr_status time_gemm(Device *d, const BenchGemm *g, GemmMemory *m, double *seconds, Err *err)
{
    const GemmApi *api = mpri_gemm_api(d->isa);
    Gemm p = {
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .ta = g->dtype,
        .tb = g->dtype,
        .tc = g->dtype,
        .tbias = MPR_FLOAT32,
        .trans_a = g->trans_a,
        .trans_b = g->trans_b,
        .lda = g->trans_a ? g->m : g->k,
        .ldb = g->trans_b ? g->k : g->n,
        .ldc = g->n,
        .alpha = 1,
        .batch = 1,
    };
    TRY(gemm_alloc(d, g, api->workspace(&p, mpri_threads_count(d->threads)), m, err));
    p.a = m->a;
    p.b = m->b;
    p.c = m->c;
    int repeat = g->repeat > 1 ? g->repeat : 1;
    for (int i = 0; i < repeat; i++) {
        double start = mpri_monotonic();
        api->run(&p, m->workspace, d->threads);
        double took = mpri_monotonic() - start;
        if (!i || took < *seconds) *seconds = took;
    }
    return MPR_OK;
}

/* On a device with memory of its own: the kernel that a plan there has for the node. */
static mpr_status time_node(mpr_context *ctx, Device *d, const BenchGemm *g, double *seconds,
                            Err *err)
{
    char inputs[128], node[64];
    mpr_op_rate rate = {.size = sizeof rate};
    snprintf(inputs, sizeof inputs, "a: F[%lld,%lld]|b: F[%lld,%lld]",
             (long long)(g->trans_a ? g->k : g->m), (long long)(g->trans_a ? g->m : g->k),
             (long long)(g->trans_b ? g->n : g->k), (long long)(g->trans_b ? g->k : g->n));
    snprintf(node, sizeof node, "Gemm(a, b) {transA=%d, transB=%d}", g->trans_a, g->trans_b);
    TRY(mpri_bench_node(ctx, d, inputs, node, g->dtype, g->repeat, &rate, err));
    *seconds = rate.seconds;
    return MPR_OK;
}

mpr_status mpri_bench_gemm(mpr_context *ctx, const BenchGemm *g, double *seconds, Err *err)
{
    bool type = g->dtype == MPR_FLOAT32 || mpri_dtype_is_low(g->dtype);
    if (g->m < 1 || g->n < 1 || g->k < 1 || !type) {
        mpri_err_set(err, MPR_E_USAGE,
                     "gemm of %lld x %lld x %lld in %s; allowed are sizes from 1 and float32, "
                     "float16, bfloat16",
                     (long long)g->m, (long long)g->n, (long long)g->k, mpri_dtype_long(g->dtype));
        return mpri_err_advice(err, "for example 512,512,512");
    }
    Device *d;
    GemmMemory m = {0};
    *seconds = 0;
    TRY(mpri_context_device(ctx, &d, err));
    mpr_status status = d->shared ? time_gemm(d, g, &m, seconds, err)
                                  : time_node(ctx, d, g, seconds, err);
    d->mem_free(d, m.a);
    d->mem_free(d, m.b);
    d->mem_free(d, m.c);
    d->mem_free(d, m.workspace);
    mpri_device_destroy(d);
    return status;
}

static void cpu_name(char *buf, size_t size)
{
    char line[256];
    snprintf(buf, size, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof(line), f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        snprintf(buf, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        buf[strcspn(buf, "\n")] = 0;
        break;
    }
    if (f) fclose(f);
}

mpr_status mpri_environment(mpr_context *ctx, char **json, Err *err)
{
    Device *d;
    char cpu[200];
    Text t;
    *json = NULL;
    TRY(mpri_context_device(ctx, &d, err));
    cpu_name(cpu, sizeof(cpu));
    mpri_text_init(&t, &ctx->alloc);
    mpri_text_add(&t, "{\"version\": \"%s\", \"cpu\": ", mpr_version());
    mpri_json_string(&t, cpu);
    mpri_text_add(&t,
                  ", \"isa\": \"%s\", \"device\": \"%s\", \"threads\": %d, \"cores\": %ld, "
                  "\"blas\": \"own\", \"memory_limit_bytes\": %lld, ",
                  d->isa_name ? d->isa_name : "generic", d->name, mpri_threads_count(d->threads),
                  sysconf(_SC_NPROCESSORS_ONLN), (long long)mpri_context_memory(ctx));
    mpri_text_put(&t, "\"compiler\": ");
    mpri_json_string(&t, __VERSION__);
    mpri_text_put(&t, "}");
    mpri_device_destroy(d);
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(err, t.cap);
    }
    *json = t.text;
    return MPR_OK;
}
