/* Level 2: session, optimizer, data and schedule joined by mpr_prepare, as with Hugging Face
 * Accelerate.
 *
 *   prepare [MODEL.onnx TRAIN.npz]
 *
 * Gradients are accumulated over four micro-batches; the last window of an epoch may be shorter and
 * is divided by its real length. The loop only asks for the next batch, runs it, and offers a
 * step. */
#include <mpr.h>

#include <stdio.h>

#ifndef EXAMPLE_DATA
#define EXAMPLE_DATA "tests/data/digits/" /* from the folder of the sources */
#endif

static int failed(const void *handle)
{
    mpr_error e = mpr_last_error(handle);
    fprintf(stderr, "%s: %s\n%s\n%s\n", mpr_status_text(e.code), e.message, e.where, e.advice);
    return 1;
}

static const void *loop(mpr_prepared *p)
{
    for (;;) {
        bool more;
        mpr_step_result r;
        int64_t epoch, steps, updates;
        if (mpr_prepared_next(p, &more) != MPR_OK) return p;
        if (!more) return NULL;
        if (mpr_prepared_backward(p, NULL) != MPR_OK || mpr_prepared_step(p, &r) != MPR_OK)
            return p;
        if (r.window_open) continue;
        if (mpr_prepared_position(p, &epoch, NULL, &steps, &updates) != MPR_OK) return p;
        if (r.outcome == MPR_STEP_SKIPPED)
            printf("step %lld skipped: %s\n", (long long)steps, r.first_bad);
        if (steps % 10 == 0)
            printf("epoch %lld  step %lld  updates %lld  loss %.4f  norm %.3f  scale %g\n",
                   (long long)epoch, (long long)steps, (long long)updates, (double)r.loss,
                   (double)r.grad_norm, (double)r.scale);
    }
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : EXAMPLE_DATA "model_ts.onnx";
    const char *file = argc > 2 ? argv[2] : EXAMPLE_DATA "train.npz";
    mpr_context *ctx = NULL;
    mpr_model *model = NULL;
    mpr_session *s = NULL;
    mpr_optimizer *opt = NULL;
    mpr_dataset *data = NULL;
    mpr_schedule *schedule = NULL;
    mpr_prepared *p = NULL;
    const void *bad = NULL;
    mpr_session_options so = {.size = sizeof(so), .autocast = MPR_FLOAT16, .loss = "cross-entropy"};
    mpr_dataset_options data_options = {
        .size = sizeof(data_options), .batch_size = 16, .shuffle = true, .seed = 42};
    mpr_schedule_options schedule_options = {
        .size = sizeof(schedule_options), .type = "cosine", .warmup_steps = 5, .total_steps = 66};
    mpr_prepare_options po = {
        .size = sizeof(po), .gradient_accumulation_steps = 4, .max_grad_norm = 1, .epochs = 3};
    if (mpr_context_create(NULL, &ctx) != MPR_OK) bad = ctx;
    else if (mpr_model_load(ctx, path, NULL, &model) != MPR_OK) bad = ctx;
    else if (mpr_session_open(model, &so, &s) != MPR_OK) bad = model;
    else if (mpr_optimizer_adamw(s, &(mpr_adamw){.size = sizeof(mpr_adamw), .learning_rate = 5e-3},
                                 &opt) != MPR_OK)
        bad = s;
    else if (mpr_dataset_open(s, &file, 1, &data_options, &data) != MPR_OK) bad = s;
    else if (mpr_schedule_create(s, &schedule_options, &schedule) != MPR_OK) bad = s;
    else if (mpr_prepare(s, opt, data, schedule, &po, &p) != MPR_OK) bad = s;
    else bad = loop(p);
    int code = bad ? failed(bad) : 0;
    mpr_prepared_destroy(p);
    mpr_schedule_destroy(schedule);
    mpr_dataset_close(data);
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    return code;
}
