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

#endif
