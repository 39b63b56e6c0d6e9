/* Context and model: the two handles that everything else is made from. */
#include "runtime/train/context.h"
#include "runtime/train/control.h"
#include "runtime/train/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *mpri_context_alloc(const mpr_context *ctx, size_t bytes)
{
    void *p = mpri_alloc(&ctx->alloc, bytes ? bytes : 1, 64);
    if (p) memset(p, 0, bytes);
    return p;
}

static mpr_status open_cuda(const mpr_context *ctx, int index, Device **out, Err *err)
{
    if (mpri_device_cuda) {
        TRY(mpri_device_cuda(&ctx->alloc, index, ctx->threads, out, err));
        if (ctx->no_graphs) (*out)->graphs = false;
        (*out)->tune = ctx->tune;
        return MPR_OK;
    }
    mpri_err_set(err, MPR_E_DEVICE, "this build has no CUDA support");
    return mpri_err_advice(err, "build it where nvcc is (-DMPR_CUDA=ON), or use --device cpu");
}

/* Opened and closed: that it is there is known before any work. */
static mpr_status try_cuda(mpr_context *ctx, const char *name, int index, Err *err)
{
    Device *d;
    mpr_status status = open_cuda(ctx, index, &d, err);
    if (status != MPR_OK) return mpri_err_where(err, "device '%s'", mpri_err_name(name));
    mpri_device_destroy(d);
    snprintf(ctx->device, sizeof(ctx->device), "cuda:%d", index);
    return MPR_OK;
}

static bool cuda_index(const char *name, int *index)
{
    int end = 0;
    *index = 0;
    if (!strcmp(name, "cuda")) return true;
    return sscanf(name, "cuda:%3d%n", index, &end) == 1 && !name[end] && *index >= 0;
}

/* "cpu", "null", "auto", "cuda", "cuda:N". */
static mpr_status choose_device(mpr_context *ctx, const char *name, Err *err)
{
    int index;
    if (!name || !*name || !strcmp(name, "cpu")) name = "cpu";
    if (!strcmp(name, "auto")) {
        Err why;
        mpri_err_clear(&why);
        if (try_cuda(ctx, name, 0, &why) == MPR_OK) return MPR_OK;
        mpri_log(&ctx->log, MPR_LOG_NOTICE, "device auto: the CPU is used: %s", why.message);
        name = "cpu";
    }
    if (!strcmp(name, "cpu") || !strcmp(name, "null")) {
        snprintf(ctx->device, sizeof(ctx->device), "%s", name);
        return MPR_OK;
    }
    if (cuda_index(name, &index)) return try_cuda(ctx, name, index, err);
    mpri_err_set(err, MPR_E_USAGE, "device '%s' is unknown; allowed are cpu, cuda, cuda:N, auto",
                 mpri_err_name(name));
    return mpri_err_advice(err, "use --device cpu");
}

static mpr_status fill_context(mpr_context *ctx, const mpr_context_options *o, Err *err)
{
    ctx->threads = o->threads;
    ctx->no_graphs = o->no_cuda_graph;
    ctx->tune = o->cuda_tune != 0;
    if (o->threads < 0 || o->threads > 4096) {
        mpri_err_set(err, MPR_E_USAGE,
                     "threads is %d; allowed are 0 (as many as the process may use) to 4096",
                     o->threads);
        return mpri_err_advice(err, "leave it at 0");
    }
    if (!o->alloc != !o->free) {
        mpri_err_set(err, MPR_E_USAGE, "only one of alloc and free is given");
        return mpri_err_advice(err, "supply both or none");
    }
    if (o->limits)
        TRY(mpri_take_options(&ctx->limits, sizeof(ctx->limits), o->limits, "mpr_limits", err));
    return choose_device(ctx, o->device, err);
}

mpr_status mpri_context_create(const mpr_context_options *options, mpr_context **out)
{
    Err err;
    mpri_err_clear(&err);
    mpr_context_options o;
    mpr_status status = mpri_take_options(&o, sizeof(o), options, "mpr_context_options", &err);
    if (status != MPR_OK) memset(&o, 0, sizeof(o));
    Alloc alloc = *mpri_alloc_default();
    if (o.alloc && o.free) alloc = (Alloc){o.alloc, o.free, o.alloc_user};
    mpr_context *ctx = mpri_alloc(&alloc, sizeof(*ctx), 64);
    *out = ctx;
    if (!ctx) return MPR_E_NOMEM;
    memset(ctx, 0, sizeof(*ctx));
    ctx->alloc = alloc;
    ctx->log = (Log){o.log, o.log_user};
    mpri_handle_init(&ctx->h, HANDLE_CONTEXT, NULL);
    if (status == MPR_OK) status = fill_context(ctx, &o, &err);
    if (status != MPR_OK) ctx->h.err = err;
    return status;
}

void mpri_context_destroy(mpr_context *ctx)
{
    if (!ctx) return;
    Alloc alloc = ctx->alloc;
    mpri_handle_end(&ctx->h);
    mpri_free(&alloc, ctx);
}

mpr_status mpri_context_device(mpr_context *ctx, Device **out, Err *err)
{
    int index;
    if (!strcmp(ctx->device, "null")) return mpri_device_null(&ctx->alloc, out, err);
    if (cuda_index(ctx->device, &index)) return open_cuda(ctx, index, out, err);
    return mpri_device_cpu(&ctx->alloc, ctx->threads, out, err);
}

static int64_t read_number(const char *path)
{
    char text[64] = "";
    FILE *f = fopen(path, "re");
    if (!f) return INT64_MAX;
    if (!fgets(text, sizeof(text), f)) text[0] = 0;
    fclose(f);
    char *end;
    long long v = strtoll(text, &end, 10);
    return end == text || v <= 0 ? INT64_MAX : (int64_t)v;
}

int64_t mpri_context_memory(const mpr_context *ctx)
{
    if (ctx->limits.memory_bytes > 0) return ctx->limits.memory_bytes;
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    int64_t limit = pages > 0 && page > 0 ? pages * page : INT64_MAX;
    int64_t group = read_number("/sys/fs/cgroup/memory.max");
    int64_t group1 = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
    if (group < limit) limit = group;
    if (group1 < limit) limit = group1;
    return limit / 5 * 4;
}

/* Control flow that constants and fixed shapes decide. */
static mpr_status decide_control(mpr_model *model, Err *err)
{
    Device *device;
    ImportedModel *m = NULL;
    TRY(mpri_context_device(model->ctx, &device, err));
    mpr_status status = mpri_control_decide(model, &device->kernels, NULL, 0, 0, &m, err);
    mpri_device_destroy(device);
    if (!m) return status;
    mpri_import_destroy(model->m, &model->ctx->alloc);
    model->m = m;
    return status;
}

mpr_status mpri_model_load(mpr_context *ctx, const char *path, const mpr_model_options *options,
                           mpr_model **out, Err *err)
{
    *out = NULL;
    mpr_model_options o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_model_options", err));
    mpr_model *model = CONTEXT_NEW(ctx, mpr_model);
    if (!model) return mpri_err_nomem(err, sizeof(*model));
    mpri_handle_init(&model->h, HANDLE_MODEL, NULL);
    model->ctx = ctx;
    ImportOptions import = {
        .alloc = &ctx->alloc,
        .log = &ctx->log,
        .limits = &ctx->limits,
        .tie = o.tie,
        .untie = o.untie,
        .train_only = o.train_only,
        .freeze = o.freeze,
    };
    mpri_arena_init(&model->arena, &ctx->alloc, 0);
    mpr_status status = mpri_copy_strings(&model->arena, o.tie, &model->tie, err);
    if (status == MPR_OK) status = mpri_copy_strings(&model->arena, o.untie, &model->untie, err);
    if (status == MPR_OK)
        status = mpri_copy_strings(&model->arena, o.train_only, &model->train_only, err);
    if (status == MPR_OK) status = mpri_copy_strings(&model->arena, o.freeze, &model->freeze, err);
    if (status == MPR_OK) status = mpri_import_file(path, &import, &model->m, err);
    if (status == MPR_OK && model->m->n_open) status = decide_control(model, err);
    if (status != MPR_OK) {
        mpri_model_destroy(model);
        return status;
    }
    *out = model;
    return MPR_OK;
}

void mpri_model_destroy(mpr_model *model)
{
    if (!model) return;
    const Alloc *alloc = &model->ctx->alloc;
    mpri_import_destroy(model->m, alloc);
    mpri_arena_destroy(&model->arena);
    mpri_handle_end(&model->h);
    mpri_free(alloc, model);
}

void mpri_value_describe(const Graph *g, const char *name, const Value *v, mpr_value_info *out)
{
    memset(out, 0, sizeof(*out));
    out->name = name;
    out->dtype = v->dtype;
    out->rank = v->shape.rank;
    for (int i = 0; i < v->shape.rank; i++) {
        Dim d = v->shape.d[i];
        out->dims[i] = mpri_dim_const(d) ? d : -1;
        if (mpri_dim_const(d)) continue;
        char text[256];
        mpri_dim_print(g->sym, d, text, sizeof(text));
        out->dim_names[i] = mpri_intern_find(g->names, text);
    }
}
