/* Context: allocator, log sink, limits and device choice. A model lives in a context, a session in
 * a model; each session makes a device (with its thread pool) of its own. */
#ifndef MPRI_TRAIN_CONTEXT_H
#define MPRI_TRAIN_CONTEXT_H

#include "importer/importer.h"
#include "runtime/base/log.h"
#include "runtime/train/handle.h"

struct mpr_context {
    Handle h;
    Alloc alloc;
    Log log;
    mpr_limits limits;
    char device[16]; /* "cpu", "null" or "cuda:N" */
    int threads;
    bool no_graphs;   /* of a device that can record */
    bool tune;        /* a device that can time its libraries does */
};

struct mpr_model {
    Handle h;
    mpr_context *ctx;
    ImportedModel *m;
    Arena arena; /* of the options below */
    const char *const *tie, *const *untie, *const *train_only, *const *freeze;
    /* of a painted model, see painted.h: its bytes instead of those at the path, and reasons */
    const void *image;
    size_t image_size;
    const struct MixedWhy *why;
    int n_why;
};

mpr_status mpri_context_create(const mpr_context_options *options, mpr_context **out);
void mpri_context_destroy(mpr_context *ctx);
/* A device as the context says; the caller destroys it. */
mpr_status mpri_context_device(mpr_context *ctx, Device **out, Err *err);
/* Bytes that this process may use: the limit of the context, or 80 % of what cgroup and machine
 * allow. */
int64_t mpri_context_memory(const mpr_context *ctx);

mpr_status mpri_model_load(mpr_context *ctx, const char *path, const mpr_model_options *options,
                           mpr_model **out, Err *err);
void mpri_model_destroy(mpr_model *model);
/* Name, type and dims of a graph value for people; dims -1 where symbolic. */
void mpri_value_describe(const Graph *g, const char *name, const Value *v, mpr_value_info *out);

void mpri_param_describe(const Param *p, mpr_parameter_info *out);

/* Zeroed memory from the context's allocator. NULL when there is none. */
void *mpri_context_alloc(const mpr_context *ctx, size_t bytes);
#define CONTEXT_NEW(ctx, T) ((T *)mpri_context_alloc((ctx), sizeof(T)))

#endif
