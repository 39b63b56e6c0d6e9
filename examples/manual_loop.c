/* Level 1: the training loop by hand, as with torch.autocast and torch.amp.GradScaler.
 *
 *   manual_loop [MODEL.onnx TRAIN.npz EVAL.npz]
 *
 * Trains the digits model that comes with the tests in float16 and prints the accuracy on rows it
 * has not seen. Every call that can fail is checked; the error text is on the handle that the call
 * took first. */
#include <mpr.h>

#include <stdio.h>

#ifndef EXAMPLE_DATA
#define EXAMPLE_DATA "tests/data/digits/" /* from the folder of the sources */
#endif

enum { BATCH = 32, EPOCHS = 12, CLASSES = 10 };

static int failed(const void *handle)
{
    mpr_error e = mpr_last_error(handle);
    fprintf(stderr, "%s: %s\n%s\n%s\n", mpr_status_text(e.code), e.message, e.where, e.advice);
    return 1;
}

/* Rows [first, first + n) of the images and labels as the next batch. */
static mpr_status bind_rows(mpr_session *s, const mpr_tensor *x, const mpr_tensor *y, int64_t first,
                            int64_t n)
{
    int64_t width = x->dims[1], xs[2] = {n, width}, ys[1] = {n};
    mpr_status status = mpr_session_bind(s, "x", (const float *)x->data + first * width,
                                         MPR_FLOAT32, xs, 2);
    if (status != MPR_OK) return status;
    return mpr_session_bind(s, "labels", (const int64_t *)y->data + first, MPR_INT64, ys, 1);
}

/* One optimizer step; returns the handle that failed, or NULL. */
static const void *train_step(mpr_session *s, mpr_optimizer *opt, mpr_scaler *scaler, float *loss)
{
    mpr_step_outcome outcome;
    float norm;
    if (mpr_session_forward(s, loss) != MPR_OK) return s;
    if (mpr_session_backward(s, scaler) != MPR_OK) return s; /* gradients of loss x scale */
    if (mpr_scaler_unscale(scaler, opt) != MPR_OK) return scaler;
    if (mpr_optimizer_clip_grad_norm(opt, 1.0f, &norm) != MPR_OK) return opt;
    if (mpr_scaler_step(scaler, opt, &outcome) != MPR_OK)
        return scaler; /* skipped when a gradient overflowed */
    if (mpr_scaler_update(scaler) != MPR_OK) return scaler;
    return mpr_session_zero_grad(s) == MPR_OK ? NULL : s;
}

static const void *evaluate(mpr_session *s, const mpr_tensor *x, const mpr_tensor *y,
                            double *accuracy)
{
    mpr_tensor logits;
    int64_t rows = x->dims[0], right = 0;
    if (bind_rows(s, x, y, 0, rows) != MPR_OK || mpr_session_evaluate(s, NULL) != MPR_OK) return s;
    if (mpr_session_output(s, "logits", &logits) != MPR_OK) return s;
    for (int64_t i = 0; i < rows; i++) {
        const float *row = (const float *)logits.data + i * CLASSES;
        int best = 0;
        for (int c = 1; c < CLASSES; c++)
            if (row[c] > row[best]) best = c;
        right += best == ((const int64_t *)y->data)[i];
    }
    *accuracy = (double)right / (double)rows;
    return NULL;
}

static const void *run(mpr_session *s, mpr_optimizer *opt, mpr_scaler *scaler,
                       const mpr_tensors *train, const mpr_tensors *eval)
{
    mpr_tensor x, y, ex, ey;
    double accuracy;
    float loss = 0;
    if (mpr_tensors_get(train, "x", &x) != MPR_OK || mpr_tensors_get(train, "labels", &y) != MPR_OK)
        return train;
    if (mpr_tensors_get(eval, "x", &ex) != MPR_OK || mpr_tensors_get(eval, "labels", &ey) != MPR_OK)
        return eval;
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (int64_t row = 0; row + BATCH <= x.dims[0]; row += BATCH) {
            if (bind_rows(s, &x, &y, row, BATCH) != MPR_OK) return s;
            const void *bad = train_step(s, opt, scaler, &loss);
            if (bad) return bad;
        }
    const void *bad = evaluate(s, &ex, &ey, &accuracy);
    if (bad) return bad;
    printf("last loss %.4f, loss scale %g, accuracy %.4f\n", (double)loss,
           (double)mpr_scaler_scale(scaler), accuracy);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : EXAMPLE_DATA "model_ts.onnx";
    const char *train_file = argc > 2 ? argv[2] : EXAMPLE_DATA "train.npz",
               *eval_file = argc > 3 ? argv[3] : EXAMPLE_DATA "eval.npz";
    mpr_context *ctx = NULL;
    mpr_model *model = NULL;
    mpr_session *s = NULL;
    mpr_optimizer *opt = NULL;
    mpr_scaler *scaler = NULL;
    mpr_tensors *train = NULL, *eval = NULL;
    const void *bad = NULL;
    if (mpr_context_create(NULL, &ctx) != MPR_OK) bad = ctx;
    else if (mpr_model_load(ctx, path, NULL, &model) != MPR_OK) bad = ctx;
    else if (mpr_tensors_load(ctx, train_file, &train) != MPR_OK ||
             mpr_tensors_load(ctx, eval_file, &eval) != MPR_OK)
        bad = ctx;
    else if (mpr_session_open(model,
                              &(mpr_session_options){.size = sizeof(mpr_session_options),
                                                     .autocast = MPR_FLOAT16,
                                                     .loss = "cross-entropy"},
                              &s) != MPR_OK)
        bad = model;
    else if (mpr_optimizer_adamw(s, &(mpr_adamw){.size = sizeof(mpr_adamw), .learning_rate = 3e-3},
                                 &opt) != MPR_OK)
        bad = s;
    else if (mpr_scaler_create(s, NULL, &scaler) != MPR_OK) bad = s;
    else bad = run(s, opt, scaler, train, eval);
    int code = bad ? failed(bad) : 0;
    mpr_scaler_destroy(scaler);
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    mpr_tensors_destroy(train);
    mpr_tensors_destroy(eval);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    return code;
}
