/* The digits model of tests/data/digits, opened for a test. */
#ifndef MPRI_TESTS_DIGITS_H
#define MPRI_TESTS_DIGITS_H

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Digits {
    mpr_context *ctx;
    mpr_model *model;
    mpr_tensors *train, *eval;
    mpr_tensor x, y, ex, ey;
} Digits;

static inline void digits_open(Digits *d, int threads)
{
    mpr_context_options o = {.size = sizeof(o), .device = TEST_DEVICE, .threads = threads};
    assert_int_equal(mpr_context_create(&o, &d->ctx), MPR_OK);
    assert_call(mpr_model_load(d->ctx, test_data("digits/model_ts.onnx"), NULL, &d->model), d->ctx);
    assert_call(mpr_tensors_load(d->ctx, test_data("digits/train.npz"), &d->train), d->ctx);
    assert_call(mpr_tensors_load(d->ctx, test_data("digits/eval.npz"), &d->eval), d->ctx);
    assert_call(mpr_tensors_get(d->train, "x", &d->x), d->train);
    assert_call(mpr_tensors_get(d->train, "labels", &d->y), d->train);
    assert_call(mpr_tensors_get(d->eval, "x", &d->ex), d->eval);
    assert_call(mpr_tensors_get(d->eval, "labels", &d->ey), d->eval);
}

static inline void digits_close(Digits *d)
{
    mpr_tensors_destroy(d->train);
    mpr_tensors_destroy(d->eval);
    mpr_model_destroy(d->model);
    mpr_context_destroy(d->ctx);
}

static inline mpr_session *digits_session(Digits *d, mpr_dtype autocast)
{
    mpr_session *s;
    mpr_session_options o = {.size = sizeof(o), .autocast = autocast, .loss = "cross-entropy"};
    assert_call(mpr_session_open(d->model, &o, &s), d->model);
    return s;
}

static inline void digits_bind(Digits *d, mpr_session *s, int64_t first, int64_t n)
{
    int64_t xs[2] = {n, 64}, ys[1] = {n};
    assert_call(mpr_session_bind(s, "x", (const float *)d->x.data + first * 64, MPR_FLOAT32, xs, 2),
                s);
    assert_call(mpr_session_bind(s, "labels", (const int64_t *)d->y.data + first, MPR_INT64, ys, 1),
                s);
}

/* A weight of the session into buf (8192 floats). */
static inline void digits_weight(mpr_session *s, float *buf)
{
    assert_call(mpr_session_parameter_get(s, "net.0.weight", buf, 128 * 64), s);
}

/* A prepared loop over the digits: SGD or AdamW, windows of three batches, gradients clipped, a schedule. */
typedef struct DigitsLoop {
    Digits *d;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_dataset *data;
    mpr_schedule *schedule;
    mpr_prepared *p;
} DigitsLoop;

typedef struct DigitsLoopOptions {
    mpr_dtype autocast;
    int64_t batch;
    bool sgd;
    const mpr_scaler_options *scaler; /* NULL: as autocast has it */
} DigitsLoopOptions;

static inline void digits_loop_open(DigitsLoop *l, Digits *d, const DigitsLoopOptions *o)
{
    const char *file = test_data("digits/train.npz");
    mpr_dataset_options data = {.size = sizeof data, .batch_size = o->batch, .shuffle = true, .seed = 3};
    mpr_prepare_options po = {
        .size = sizeof po, .gradient_accumulation_steps = 3, .max_grad_norm = 1, .scaler = o->scaler};
    mpr_sgd sgd = {.size = sizeof sgd, .learning_rate = 0.1, .momentum = 0.9};
    mpr_adamw adamw = {.size = sizeof adamw, .learning_rate = 3e-3, .weight_decay = 0.01};
    mpr_schedule_options sd = {.size = sizeof sd, .total_steps = 50};
    l->d = d;
    l->s = digits_session(d, o->autocast);
    if (o->sgd) assert_call(mpr_optimizer_sgd(l->s, &sgd, &l->opt), l->s);
    else assert_call(mpr_optimizer_adamw(l->s, &adamw, &l->opt), l->s);
    assert_call(mpr_dataset_open(l->s, &file, 1, &data, &l->data), l->s);
    assert_call(mpr_schedule_create(l->s, &sd, &l->schedule), l->s);
    assert_call(mpr_prepare(l->s, l->opt, l->data, l->schedule, &po, &l->p), l->s);
}

static inline void digits_loop_close(DigitsLoop *l)
{
    mpr_prepared_destroy(l->p);
    mpr_schedule_destroy(l->schedule);
    mpr_dataset_close(l->data);
    mpr_optimizer_destroy(l->opt);
    mpr_session_close(l->s);
}

#endif
