/* The ordered list of passes, and the runner. Read the rows from top to bottom: that is what
 * happens to a graph between the importer and the plan. See pass.h for the two stages. */
#include <string.h>
#include <time.h>
#include "passes/pass.h"
#include "runtime/ir/text_form.h"

static const PassRow rows[] = {
    {"simplify", STAGE_PREPARE, mpri_pass_simplify,
     "constants and aliases resolved, dead code and idle Dropout gone"},
    {"narrow", STAGE_PREPARE, mpri_pass_narrow,
     "what a converted file holds in f32 for want of a 16-bit form is in 16 bits"},
    {"recover", STAGE_PREPARE, mpri_pass_recover,
     "Linear, normalisations, Gelu, gates and Softmax found in their exported forms"},
    {"dropout", STAGE_PREPARE, mpri_pass_dropout, "the ratio that was asked for, in training"},
    {"batchnorm", STAGE_PREPARE, mpri_pass_batch_norm,
     "BatchNormalization in the session's mode, running statistics as slots"},
    {"loss", STAGE_PREPARE, mpri_pass_loss, "graph output \"loss\", an f32 scalar"},
    {"autocast", STAGE_PREPARE, mpri_pass_autocast,
     "every operator in the type of its class, by casts"},
    {"tidy", STAGE_PREPARE, mpri_pass_tidy,
     "equal casts are one, idle ones gone, each stands behind what it reads"},
    {"widen", STAGE_PREPARE, mpri_pass_widen, "every float f64, when asked for"},
    {"bind", STAGE_BIND, mpri_pass_bind, "dims become numbers, trained parameters slots"},
    {"fold", STAGE_BIND, mpri_pass_fold, "constants computed, shape code gone"},
    {"slide", STAGE_BIND, mpri_pass_slide, "narrowing casts before layout operators"},
    {"attention", STAGE_BIND, mpri_pass_attention, "products around a Softmax as one Attention"},
    {"running", STAGE_BIND, mpri_pass_running, "updates of running statistics"},
    {"autodiff", STAGE_BIND, mpri_pass_autodiff, "the backward segment"},
    {"lower", STAGE_BIND, mpri_pass_lower, "matrix products in their one internal form"},
    {"copies", STAGE_BIND, mpri_pass_copies,
     "16-bit parameters that the optimizer writes, where the device keeps them"},
    {"recompute", STAGE_BIND, mpri_pass_recompute, "what is cheap made again, not kept for backward"},
    {"fuse", STAGE_BIND, mpri_pass_fuse, "epilogues and casts inside the kernels"},
    {"schedule", STAGE_BIND, mpri_pass_schedule, "an order that frees memory early"},
};

const PassRow *mpri_passes(int *count)
{
    *count = (int)(sizeof rows / sizeof rows[0]);
    return rows;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static mpr_status dump(const PassCtx *ctx, const Graph *g, const char *name, Err *err)
{
    Text text;
    mpri_text_init(&text, ctx->alloc ? ctx->alloc : mpri_alloc_default());
    mpr_status status = mpri_graph_print(g, &text, err);
    if (status == MPR_OK && text.failed) status = mpri_err_nomem(err, text.cap);
    if (status == MPR_OK)
        mpri_log(ctx->log, MPR_LOG_DEBUG, "after pass %s:\n%s", name, text.text ? text.text : "");
    mpri_text_free(&text);
    return status;
}

static mpr_status run_one(PassCtx *ctx, const PassRow *row, Graph *g, Err *err)
{
    double start = now_ms();
    bool changed = false;
    mpr_status status = row->fn(ctx, g, &changed, err);
    mpri_arena_reset(ctx->scratch);
    if (status != MPR_OK) return mpri_err_where(err, "pass %s", row->name);
    if (mpri_graph_sweep(g)) changed = true;
    if (changed && mpri_infer_graph(g, err) != MPR_OK)
        return mpri_err_where(err, "after pass %s", row->name);
    mpri_log(ctx->log, MPR_LOG_DEBUG, "pass %s: %s, %d nodes, %.2f ms", row->name,
             changed ? "changed" : "no change", g->n_nodes, now_ms() - start);
#ifndef NDEBUG
    TRY(mpri_graph_validate(g, row->name, err));
#endif
    const char *wanted = ctx->o->dump_after;
    if (wanted && (!strcmp(wanted, row->name) || !strcmp(wanted, "all")))
        TRY(dump(ctx, g, row->name, err));
    return MPR_OK;
}

static mpr_status check_dump_name(const PassOptions *o, Err *err)
{
    enum { N = sizeof rows / sizeof rows[0] };
    const char *names[N + 1];
    if (!o->dump_after) return MPR_OK;
    for (int i = 0; i < N; i++) names[i] = rows[i].name;
    names[N] = "all";
    for (int i = 0; i <= N; i++)
        if (!strcmp(o->dump_after, names[i])) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "there is no pass '%s'", mpri_err_name(o->dump_after));
    const char *near = mpri_nearest(o->dump_after, names, N + 1);
    return mpri_err_advice(err, "did you mean '%s'? --dump-after takes the name of a pass, or all",
                           near ? near : "all");
}

mpr_status mpri_passes_run(PassCtx *ctx, PassStage stage, Graph *g, Err *err)
{
    TRY(check_dump_name(ctx->o, err));
    if (mpri_infer_graph(g, err) != MPR_OK) return err->code;
    const PassRow *last = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].stage != stage) continue;
        TRY(run_one(ctx, &rows[i], g, err));
        last = &rows[i];
    }
    return last ? mpri_graph_validate(g, last->name, err) : MPR_OK;
}
